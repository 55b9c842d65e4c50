"""What ``import dvm`` and a loaded program may import, and in which direction packages import each other."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import dvm

ROOT = Path(__file__).parents[2]
HEAVY = ("jax", "sympy", "onnx", "graph_kernel", "symbolic", "codegen", "click")

# Package -> what it may import of the others.
ARROWS = {
    "vm": ("configs",),
    "symbolic": ("vm.errors", "vm.intcode", "vm.counters"),
    "graph_kernel": ("symbolic", "vm.errors", "vm.intcode", "vm.counters"),
    "codegen": ("graph_kernel", "symbolic", "configs", "vm"),
    "configs": (),
    "dvm": ("codegen", "graph_kernel", "symbolic", "configs", "vm"),
}


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_import_dvm_is_light():
    assert run(f"import dvm, sys; dir(dvm); print([m for m in {HEAVY} if m in sys.modules])").strip() == "[]"


def test_programs_that_only_are_looked_at_need_no_jax():
    assert run(f"import dvm.program, sys; print([m for m in {HEAVY} if m in sys.modules])").strip() == "[]"


def test_errors_need_nothing_else():
    text = run(f"import dvm, sys; print(dvm.ShapeError.__mro__[1].__name__, [m for m in {HEAVY} if m in sys.modules])")
    assert text.strip() == "InputError []"


def test_every_public_name_is_there():
    for name in dvm.__all__:
        value = getattr(dvm, name)
        assert value.__doc__ or hasattr(value, "itemsize")  # dtypes need none
    assert set(dvm.__all__) <= set(dir(dvm))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = dvm.nothing  # type: ignore[attr-defined]
    assert issubclass(dvm.ShapeError, dvm.InputError) and issubclass(dvm.InputError, dvm.DvmError)
    for name in ("CompileError", "UnsupportedOp", "ProgramError", "OutOfMemory"):
        assert issubclass(getattr(dvm, name), dvm.DvmError)


def imported(path: Path) -> list[str]:
    names = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    return names


@pytest.mark.parametrize("package", sorted(ARROWS))
def test_imports_go_one_way(package):
    wrong = []
    for path in sorted((ROOT / package).rglob("*.py")):
        for name in imported(path):
            top = name.split(".")[0]
            if (
                top in ARROWS
                and top != package
                and not any(name == a or name.startswith(f"{a}.") for a in ARROWS[package])
            ):
                wrong.append(f"{path.relative_to(ROOT)}: {name}")
            if package == "vm" and top in ("sympy", "onnx"):
                wrong.append(f"{path.relative_to(ROOT)}: {name}")
    assert wrong == []


PROGRAM = """
import sys, numpy as np, dvm
p = dvm.load(sys.argv[1]) if len(sys.argv) > 1 else dvm.load({path!r})
x = np.arange(6, dtype=np.float32).reshape(2, 3)
out = p(x)
print(type(out).__name__, out[0].shape, float(np.asarray(out[0]).sum()), dvm.stats().launches)
print([m for m in ("sympy", "onnx", "symbolic", "graph_kernel", "codegen") if m in sys.modules])
"""


def test_a_loaded_program_runs_without_the_compiler(tmp_path):
    path = tmp_path / "p.dvm"
    program = dvm.compile(lambda x: [x * 2, x.sum()], dvm.spec("b, s"))
    program.save(path)
    first, second = run(PROGRAM.format(path=str(path))).strip().splitlines()
    assert first == "list (2, 3) 30.0 1"
    assert second == "[]"
