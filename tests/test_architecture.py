"""The shape of the code base: which package may import which, and what no package may do."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("vm", "symbolic", "graph_kernel", "codegen", "dvm", "configs")

# What each package may import of the others, besides itself. A package name allows all of its modules.
_SHARED = ("vm.errors", "vm.intcode", "vm.counters")
ARROWS: dict[str, tuple[str, ...]] = {
    "configs": (),
    "vm": (),
    "symbolic": _SHARED,
    "graph_kernel": ("symbolic", *_SHARED),
    "codegen": ("graph_kernel", "symbolic", *_SHARED, "vm.isa", "vm.program", "vm.chip"),
    "dvm": ("codegen", "graph_kernel", "symbolic", "vm", "configs"),
}
# Third-party packages that a package may not import.
FORBIDDEN: dict[str, tuple[str, ...]] = {
    "vm": ("sympy", "onnx", "onnxruntime", "torch"),
    "symbolic": ("jax", "onnx", "onnxruntime", "torch"),
    "graph_kernel": ("sympy", "onnxruntime", "torch"),
    "codegen": ("sympy", "onnx", "onnxruntime", "torch"),
    "dvm": ("sympy", "onnxruntime", "torch"),
    "configs": ("jax", "numpy", "sympy", "onnx"),
}
NO_CODE_LOADERS = ("pickle", "cloudpickle", "dill", "marshal", "shelve", "jsonpickle")


def sources() -> list[Path]:
    """All Python files of the packages."""
    return [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]


def imports(path: Path) -> Iterator[tuple[str, int]]:
    """Every module that a file imports anywhere, as ``package.module``, with its line."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, node.lineno
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                here = path.relative_to(ROOT).with_suffix("").parts
                base = ".".join([*here[: len(here) - node.level], *([node.module] if node.module else [])])
            if base in PACKAGES:  # "from vm import isa" means vm.isa, where that is a module
                for alias in node.names:
                    is_module = (ROOT / base / f"{alias.name}.py").exists() or (ROOT / base / alias.name).is_dir()
                    yield (f"{base}.{alias.name}" if is_module else base), node.lineno
            else:
                yield base, node.lineno


def within(module: str, allowed: tuple[str, ...]) -> bool:
    """True if ``module`` is one of ``allowed`` or inside one."""
    return any(module == a or module.startswith(f"{a}.") for a in allowed)


@pytest.mark.parametrize("package", PACKAGES)
def test_imports_follow_the_arrows(package: str) -> None:
    wrong = []
    for path in sorted((ROOT / package).rglob("*.py")):
        for module, line in imports(path):
            top = module.split(".")[0]
            inner = top in PACKAGES and top != package and not within(module, ARROWS[package])
            if inner or top in FORBIDDEN[package]:
                wrong.append(f"{path.relative_to(ROOT)}:{line} imports {module}")
    assert not wrong, "\n".join(wrong)


def bound_names(tree: ast.AST) -> set[str]:
    """Names that a file defines or imports itself, and which therefore are not the built-in ones."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            names |= {alias.asname or alias.name for alias in node.names}
    return names


def test_nothing_loads_code_from_data() -> None:
    wrong = []
    for path in sources():
        where, tree = path.relative_to(ROOT), ast.parse(path.read_text())
        builtin = {"eval", "exec", "compile"} - bound_names(tree)
        wrong += [f"{where}:{line} imports {m}" for m, line in imports(path) if within(m, NO_CODE_LOADERS)]
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in builtin:
                wrong.append(f"{where}:{node.lineno} calls {node.func.id}")
    assert not wrong, "\n".join(wrong)


def test_sympy_mod_and_floor_are_never_built() -> None:
    """SymPy's Mod simplifies some nested expressions wrongly; the project has its own."""
    names = ("Mod", "floor", "ceiling", "frac")
    wrong = []
    for path in sources():
        where, tree, aliases = path.relative_to(ROOT), ast.parse(path.read_text()), {"sympy"}
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                aliases |= {a.asname for a in node.names if a.name == "sympy" and a.asname}
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "sympy":
                wrong += [f"{where}:{node.lineno} {a.name}" for a in node.names if a.name in names]
        for node in ast.walk(tree):
            of_name = isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
            if of_name and node.value.id in aliases and node.attr in names:
                wrong.append(f"{where}:{node.lineno} sympy.{node.attr}")
    assert not wrong, "\n".join(wrong)


def in_fresh_process(code: str) -> str:
    """What ``code`` prints."""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def modules(package: str) -> list[str]:
    """Every module of a package."""
    paths = [p.relative_to(ROOT).with_suffix("").parts for p in sorted((ROOT / package).rglob("*.py"))]
    return [".".join(p[:-1] if p[-1] == "__init__" else p) for p in paths]


LOADED = "import sys; print(sorted({m.split('.')[0] for m in sys.modules} & "


def test_vm_runs_without_sympy_and_onnx() -> None:
    names = ", ".join(modules("vm"))
    assert (
        in_fresh_process(f"import {names}; {LOADED}{{'sympy', 'onnx', 'symbolic', 'graph_kernel', 'codegen', 'dvm'}}))")
        == "[]"
    )


def test_a_program_file_is_read_and_bound_with_little_loaded() -> None:
    code = "import vm.serialise, vm.binder, vm.chip, vm.host; "
    assert in_fresh_process(f"{code}{LOADED}{{'jax', 'scipy', 'sympy', 'onnx'}}))") == "[]"


def test_importing_dvm_is_lazy() -> None:
    assert in_fresh_process(f"import dvm; {LOADED}{{'sympy', 'onnx', 'graph_kernel', 'codegen'}}))") == "[]"


def test_files_fit_in_one_head() -> None:
    long = [f"{p.relative_to(ROOT)}: {n} lines" for p in sources() if (n := len(p.read_text().splitlines())) > 800]
    assert not long, "\n".join(long)
