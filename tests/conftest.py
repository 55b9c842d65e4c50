"""Options and settings that every test shares."""

import os
import pathlib

# The machine lives on the CPU; an accelerator that happens to be installed must not change what the tests measure.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Compiled kernels are shared between tests, workers and runs, but not with the user's own cache.
os.environ.setdefault("DVM_CACHE_DIR", str(pathlib.Path(__file__).parent.parent / ".dvm-cache"))
# What is compiled when must not depend on how fast a thread is: tests of background work switch it on.
os.environ.setdefault("DVM_BACKGROUND", "0")

import hypothesis
import pytest

hypothesis.settings.register_profile("default", deadline=None, derandomize=True, max_examples=100)
hypothesis.settings.register_profile("thorough", deadline=None, max_examples=2000)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--slow", action="store_true", help="also run the tests marked slow: all combinations, full-size models"
    )
    parser.addoption("--update-golden", action="store_true", help="write expected texts again; read the difference")


@pytest.fixture
def update_golden(request: pytest.FixtureRequest) -> bool:
    """Whether expected texts are to be written again."""
    return bool(request.config.getoption("--update-golden"))


def pytest_configure(config: pytest.Config) -> None:
    # --hypothesis-profile on the command line wins over both.
    hypothesis.settings.load_profile("thorough" if config.getoption("--slow") else "default")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--slow"):
        return
    skip = pytest.mark.skip(reason="slow; run with --slow")
    for item in items:
        if "slow" in item.keywords:
            item.add_marker(skip)
