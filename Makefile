# Every target makes what it needs: `make demo` and `make test` work in a fresh clone on a machine with Python 3.11 or newer.

VENV ?= .venv
PY := $(VENV)/bin/python
# The first interpreter that is new enough and can make environments.
FIND_PYTHON = for p in $(PYTHON) python3 python3.13 python3.12 python3.11; do \
	  $$p -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$p; exit 0; }; \
	done; echo "Python 3.11 or newer with the venv module is needed; set PYTHON=/path/to/python" >&2; exit 1
PIP_FLAGS := --quiet --disable-pip-version-check
PYTEST_ARGS ?= -n 2 --dist worksteal -q
DEMO_ARGS ?=
BENCH_ARGS ?=

.PHONY: demo test test-slow lint format typecheck bench docs clean

demo: $(VENV)/.installed
	$(PY) -m benchmarks.demo $(DEMO_ARGS)

test: $(VENV)/.installed-test
	$(PY) -m pytest $(PYTEST_ARGS)

test-slow: $(VENV)/.installed-test $(VENV)/.installed-hf
	$(PY) -m pytest --slow $(PYTEST_ARGS)

lint: $(VENV)/.installed-lint
	$(PY) -m ruff check
	$(PY) -m ruff format --check

format: $(VENV)/.installed-lint
	$(PY) -m ruff check --fix
	$(PY) -m ruff format

typecheck: $(VENV)/.installed-lint
	$(PY) -m mypy

bench: $(VENV)/.installed
	$(PY) -m benchmarks.demo --rounds 20 $(BENCH_ARGS)

docs: $(VENV)/.installed-docs
	$(PY) -m mkdocs build --strict

# One stamp an extra; pyproject.toml is the only thing that makes them stale, since the install is editable.
$(VENV)/.installed: pyproject.toml | $(PY)
	$(PY) -m pip install $(PIP_FLAGS) -e .
	@touch $@

$(VENV)/.installed-%: pyproject.toml | $(PY)
	$(PY) -m pip install $(PIP_FLAGS) -e '.[$*]'
	@touch $@

$(PY):
	@python=$$($(FIND_PYTHON)) && echo "making $(VENV) with $$($$python --version)" && $$python -m venv $(VENV)

clean:
	rm -rf $(VENV) build dist *.egg-info
