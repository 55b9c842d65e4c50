"""``Kernel``: a kernel that is built by hand, compiled once, and run at any number of shapes."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

import symbolic
from dvm.dims import Dim as DimSpec
from dvm.handwritten.arguments import Argument, IntArray, as_dtype, is_number, number_dtype, sizes
from dvm.handwritten.emission import KernelBuilder
from dvm.handwritten.kinds import (
    CHILDREN,
    Section,
    check_contents,
    check_program,
    checked_kind,
    live_values,
    one_kernel,
)
from dvm.handwritten.vocabulary import Tensor, Vocabulary
from dvm.program import CompiledProgram
from graph_kernel.ir import Graph, Value
from symbolic import Dim
from vm.errors import CompileError, InputError

_PROGRAMS = 256  # compiled kernels that are remembered by their text
_programs: OrderedDict[tuple[str, ...], CompiledProgram] = OrderedDict()
_lock = threading.Lock()


@dataclass(eq=False)
class Parameter:
    """One thing that a run needs: a tensor, a scalar, or sizes. ``source`` is the argument's handle or the object that holds the sizes."""

    form: str
    node: Value
    tensor: Tensor | None = None
    source: Any = None
    count: int = 0
    current: Any = None

    @property
    def name(self) -> str:
        """The name in messages and in the program."""
        return self.node.name


class Kernel(Vocabulary):
    """A kernel under construction, and the program that it became.

    Build it with the vocabulary (``load``, ``add``, ``sum``, ..., ``store``); then, for every shape, ``input`` the arrays and scalars,
    ``codegen()``, ``run()`` and read each ``output``. It is compiled once: later sizes are filled in. In a ``dynamic`` kernel a size of -1
    in a load is any size; a kernel that is not dynamic has fixed sizes only.

    ``ktype``: ``vector`` (becomes one kernel), ``cube`` (one matrix product), ``mix`` (a matrix product and what is elementwise after it),
    ``parallel`` (independent children), ``sequence`` (children in order), ``split`` (anything), ``eager`` (as split; rebuilt often).
    One thread at a time may use a ``Kernel``.
    """

    def __init__(self, ktype: str = "split", dynamic: bool = True, *, tier: str = "auto", name: str = "kernel") -> None:
        self.tier, self.name = tier, name
        self.kind, self.dynamic = checked_kind(ktype), bool(dynamic)
        self.reset()

    def reset(self, ktype: str | None = None, dynamic: bool | None = None) -> Kernel:
        """Forgets everything that was built, to build anew; an equal kernel that was compiled before is not compiled again."""
        self.kind = self.kind if ktype is None else checked_kind(ktype)
        self.dynamic = self.dynamic if dynamic is None else bool(dynamic)
        self.graph = Graph(symbolic.Scope(), name=self.name)
        self.builder = KernelBuilder(self.graph)
        self.section = Section(self.kind)
        self.sections = [self.section]
        self.parameters: list[Parameter] = []
        self.stores: list[Tensor] = []
        self._barriers: dict[tuple[Value, int], Value] = {}
        self._program: CompiledProgram | None = None
        self._built = 0  # nodes and outputs that the program has
        self._results: list[Any] | None = None
        return self

    clear = reset

    # ---- loads and stores

    def load(self, what: Any, *more: Any, name: str = "", shape: Any = None, dtype: Any = None) -> Tensor:
        """A tensor to read: ``k.load(shape, dtype)``, or ``k.load(argument, dtype, shape)`` in a function that takes arguments.

        Sizes are whole numbers, -1 (any size; each -1 is a size of its own), names such as ``"n"`` (any size, the same wherever the name
        occurs), ``dvm.Dim("n", max=512)``, or sizes of other tensors and of ``k.int_array``. Without a shape an argument may have any sizes
        (of the rank of the first call), or in a static kernel those of the first call.
        """
        self._at("load")
        if isinstance(what, Argument):
            given = list(more) + [None] * (2 - len(more))
            return self._load_argument(what, given[0] if dtype is None else dtype, given[1] if shape is None else shape)
        kind = more[0] if more else dtype
        if kind is None or isinstance(what, str) or len(more) > 1:
            raise CompileError(
                f"{self._where}: k.load takes a shape and a dtype, such as k.load([-1, 64], dvm.float32)"
            )
        return self._input(what, as_dtype(kind), name or f"arg{len(self.parameters)}", None)

    def _load_argument(self, what: Argument, dtype: Any, shape: Any) -> Tensor:
        if what.form != "array":
            raise CompileError(
                f"{self._where}: {what!r} is no array: use k.{'scalar' if what.form == 'number' else 'int_array'}"
            )
        assert what.dtype is not None
        expected = what.dtype if dtype is None else as_dtype(dtype)
        if expected != what.dtype:
            raise InputError(f"argument {what.name!r}: expected {expected}, got {what.dtype}")
        if shape is None:
            shape = (-1,) * what.rank if what.shape is None else what.shape
        if len(shape) != what.rank:
            raise InputError(f"argument {what.name!r}: expected {len(shape)} dimensions, got {what.rank}")
        return self._input(shape, expected, what.name, what)

    def _input(self, shape: Any, dtype: np.dtype, name: str, source: Any) -> Tensor:
        taken = {p.name for p in self.parameters}
        for parameter in self.parameters:
            if source is not None and parameter.source is source and parameter.tensor is not None:
                return parameter.tensor  # the same argument again
        if name in taken:
            raise CompileError(f"{self._where}: two inputs are named {name!r}")
        dims = self._load_shape(shape, name)
        for axis, dim in enumerate(dims):
            for used in symbolic.symbols_of(dim):
                self.builder.scope.introduced(used, f"input {name!r} axis {axis}")
        node = self.graph.add_input(dims, dtype, name)
        tensor = Tensor(node)
        self.parameters.append(Parameter("tensor", node, tensor, source))
        return tensor

    def scalar(self, what: Any, dtype: Any = None) -> Tensor:
        """A number that is given at run time: ``k.scalar(dvm.float32)``, ``k.scalar(argument)``, or ``k.scalar(0.5)``, which begins
        with that value. It takes the dtype of the tensors that it meets."""
        self._at("scalar")
        source, current = None, None
        if isinstance(what, Argument):
            if what.form == "sizes" or what.rank:
                raise CompileError(f"{self._where}: {what!r} is no number")
            source, kind = what, what.dtype if dtype is None else as_dtype(dtype)
        elif is_number(what):
            current, kind = what, number_dtype(what) if dtype is None else as_dtype(dtype)
        else:
            kind = as_dtype(what if dtype is None else dtype)
        for parameter in self.parameters:
            if source is not None and parameter.source is source and parameter.tensor is not None:
                return parameter.tensor
        name = source.name if source is not None else f"arg{len(self.parameters)}"
        node = self.graph.add_input((), kind, name)
        tensor = Tensor(node, weak=True)
        self.parameters.append(Parameter("scalar", node, tensor, source, current=current))
        return tensor

    def int_array(self, ref: Any) -> tuple[Dim, ...]:
        """Sizes that are given at run time, to use as a shape or singly in shapes: of an argument that is a list of whole numbers, of a
        ``dvm.IntArray`` or list (read again at every run), or, given a whole number, that many as one more argument."""
        self._at("int_array")
        for parameter in self.parameters:
            if parameter.form == "sizes" and parameter.source is ref:
                return parameter.node.shape[:-1]
        if isinstance(ref, Argument):
            if ref.form != "sizes":
                raise CompileError(f"{self._where}: {ref!r} is no list of sizes; give it as a list or tuple")
            count, name = ref.count, ref.name
        elif isinstance(ref, (IntArray, list)):
            count, name = len(sizes(ref, "int_array")), f"sizes{len(self.parameters)}"
        elif isinstance(ref, int) and not isinstance(ref, bool) and ref >= 0:
            count, name, ref = ref, f"arg{len(self.parameters)}", None
        else:
            raise CompileError(f"{self._where}: expected a dvm.IntArray, a list or a number of entries, got {ref!r}")
        if not self.dynamic:
            raise CompileError(f"{self._where}: a static kernel has no sizes that change")
        dims = [self._fresh(f"{name}_{i}", f"entry {i} of {name!r}") for i in range(count)]
        # Sizes reach a program as sizes of its inputs: this one has no elements.
        node = self.graph.add_input((*dims, 0), np.bool_, name)
        self.parameters.append(Parameter("sizes", node, None, ref, count))
        return tuple(dims)

    def store(self, x: Any, dtype: Any = None) -> Tensor:
        """Makes x a result, as ``dtype`` where given. Returns the handle for ``output``."""
        self._at("store")
        tensor = self._resolved(x)
        if not isinstance(tensor, Tensor):
            raise CompileError(f"{self._where}: expected a tensor of the kernel, got {x!r}")
        if tensor.section is not None and tensor.section is not self.section and dtype is None:
            node = tensor.node
        else:
            node = self._node(tensor)
        if dtype is not None:
            node = self.builder.cast(node, as_dtype(dtype))
        taken = {v.name for v in (*self.graph.inputs, *self.graph.outputs)}
        wanted = f"out{len(self.stores)}"
        if node.producer is not None and node not in self.graph.outputs:
            node.name = wanted + "_" * sum(wanted == name for name in taken)
        stored = Tensor(node, self.section)
        self.graph.outputs.append(node)
        self.stores.append(stored)
        return stored

    # ---- children

    def sequence_add(self, ktype: str = "vector") -> None:
        """Begins the next child of a ``sequence`` kernel. It may use what earlier children made, which is stored for it."""
        self._at("sequence_add")
        if self.kind != "sequence":
            raise CompileError(f"{self._where}: only a sequence kernel has children in order, not a {self.kind} kernel")
        self._begin(Section(checked_kind(ktype, CHILDREN["sequence"]), self.section.stage + bool(self.section.name)))

    def parallel_add(self, ktype: str = "vector") -> None:
        """Begins the next child of a ``parallel`` kernel, or of a child of that kind. It may use loads, but nothing that others make."""
        self._at("parallel_add")
        if self.section.kind != "parallel" and not self.section.lane:
            raise CompileError(
                f"{self._where}: only a parallel kernel has independent children, not a {self.section.kind} kernel"
            )
        self._begin(Section(checked_kind(ktype, CHILDREN["parallel"]), self.section.stage, self.section.lane + 1))

    def parallel_next(self) -> None:
        """``parallel_add("vector")``."""
        self.parallel_add("vector")

    def spec_next(self) -> None:
        """Allows a cut here: what follows may become another kernel where it cannot be in one with what precedes it (after a reduction
        whose row is too long, say). Changes no result."""
        self.section.marks += 1

    def _begin(self, section: Section) -> None:
        last = self.section
        if last.ops and last.kind in CHILDREN:  # what was said before the first child is a child
            section.stage += self.kind == "sequence" and not last.name
            section.lane += last.kind == "parallel"
            last.lane = int(last.kind == "parallel")
            last.kind = "vector"
            if not last.name:
                last.name = "child 1"
                for node in self.graph.nodes:
                    node.origin = replace(node.origin, place=f"{node.origin.place}, child 1")
        section.name = f"child {1 + sum(bool(s.name) for s in self.sections)}"
        self.section = section
        self.sections.append(section)

    def _check_owner(self, x: Tensor) -> None:
        mine = x.section in self.sections if x.section is not None else any(p.tensor is x for p in self.parameters)
        if not mine:
            raise CompileError(f"{self._where}: {x!r} belongs to another kernel, or to this one before its reset")

    def _node(self, x: Tensor) -> Value:
        owner, here = x.section, self.section
        if owner is None or owner is here:
            return x.node
        if owner.stage == here.stage:
            raise CompileError(
                f"{self._where}: {here.name} uses what {owner.name} makes; children of a parallel kernel are independent"
            )
        key = (x.node, here.stage)
        if key not in self._barriers:
            self._barriers[key] = self.builder.op("barrier", x.node)
        return self._barriers[key]

    # ---- shapes

    def _fresh(self, hint: str, origin: str) -> Dim:
        name, count = hint, 0
        while name in self.builder.scope.symbols:
            count += 1
            name = f"{hint}_{count}"
        return self.builder.scope.declare(name, min=0, origin=origin)

    def _load_shape(self, shape: Any, name: str) -> tuple[Dim, ...]:
        entries = self.int_array(shape) if isinstance(shape, IntArray) else self._entries(shape)
        dims: list[Dim] = []
        for axis, entry in enumerate(entries):
            where = f"input {name!r} axis {axis}"
            if isinstance(entry, int) and entry == -1:
                if not self.dynamic:
                    raise CompileError(f"{self._where}: a static kernel has fixed sizes, not -1; use dynamic=True")
                dims.append(self._fresh(f"{name}_{axis}", where))
            else:
                dims.append(self._dim(entry))
        return tuple(dims)

    def _shape(self, shape: Any, hole: bool = False) -> tuple[Dim, ...]:
        if isinstance(shape, (IntArray, Argument)):
            return self.int_array(shape)
        return tuple(-1 if hole and isinstance(e, int) and e == -1 else self._dim(e) for e in self._entries(shape))

    def _entries(self, shape: Any) -> Sequence[Any]:
        if isinstance(shape, (str, bytes)) or not hasattr(shape, "__iter__"):
            raise CompileError(f"{self._where}: expected a shape, such as [-1, 64], got {shape!r}")
        return [
            e if isinstance(e, (bool, symbolic.Expr)) or not hasattr(e, "__index__") else e.__index__() for e in shape
        ]

    def _dim(self, entry: Any) -> Dim:
        if isinstance(entry, symbolic.Expr):
            return entry
        if isinstance(entry, int) and not isinstance(entry, bool) and entry >= 0:
            return entry
        if isinstance(entry, str) and entry.isidentifier():
            return self._named(DimSpec(entry, min=0))
        if isinstance(entry, DimSpec) and entry.name:
            return self._named(entry)
        raise CompileError(
            f"{self._where}: a size is a whole number, -1 (in a load), a name, a dvm.Dim with a name, or a size of a tensor; got {entry!r}"
        )

    def _named(self, spec: DimSpec) -> Dim:
        assert spec.name is not None
        if not self.dynamic:
            raise CompileError(f"{self._where}: a static kernel has fixed sizes, not {spec.name!r}; use dynamic=True")
        known = self.builder.scope.symbols
        if spec == DimSpec(spec.name, min=0) and spec.name in known:
            return symbolic.symbol(spec.name)
        return self.builder.scope.declare(
            spec.name, min=spec.min, max=spec.max, multiple_of=spec.multiple_of, origin="declared in the kernel"
        )

    # ---- running

    @property
    def program(self) -> CompiledProgram:
        """What the kernel was compiled to; compiles it if need be. Raises ``CompileError`` where its kind forbids something."""
        built = len(self.graph.nodes) + len(self.stores)
        if self._program is None or self._built != built:
            self._program, self._built = self._compiled(), built
        return self._program

    def _compiled(self) -> CompiledProgram:
        if not self.stores:
            raise CompileError(f"kernel {self.name!r} has no result: call k.store(x)")
        from dvm.pipeline import Traced, check_declared
        from dvm.trees import Signature
        from graph_kernel.text import parse

        for section in self.sections:
            check_contents(section, self.graph, self.name)
        blobs: dict[str, np.ndarray] = {}
        text = self._text(blobs)
        marks = [f"{s.kind} {s.marks}" for s in self.sections]
        key = (text, self.tier, *marks)
        with _lock:
            if key in _programs:
                _programs.move_to_end(key)
                return _programs[key]
        graph = parse(text, blobs)  # a copy: compiling changes it
        check_declared(graph)
        names = [value.name for value in graph.inputs]
        program = Traced(graph, Signature.flat("onnx", names, len(self.stores), self.name)).compile(
            self.tier, {"siblings": one_kernel(self.sections)}, start=False
        )
        named = [s for s in self.sections if s.name or s is self.section]
        check_program(named, program.program, self.name)
        with _lock:
            program = _programs.setdefault(key, program)
            while len(_programs) > _PROGRAMS:
                _programs.popitem(last=False)
        return program

    def _text(self, blobs: dict[str, np.ndarray] | None = None) -> str:
        from graph_kernel.text import to_text

        live = live_values(self.graph)
        nodes = [node for node in self.graph.nodes if any(v in live for v in node.outputs)]
        return to_text(Graph(self.graph.scope, self.graph.inputs, self.graph.outputs, nodes, self.name), blobs)

    def input(self, op: Tensor, value: Any) -> None:
        """Gives a loaded tensor its array (NumPy or JAX), or a scalar its number, for the runs to come."""
        for parameter in self.parameters:
            if parameter.tensor is op:
                parameter.current = value
                return
        raise InputError(f"{op!r} is neither a load nor a scalar of kernel {self.name!r}")

    def codegen(self) -> Kernel:
        """Compiles the kernel unless that was done, and fills in the sizes of its inputs. Raises ``CompileError``, and ``ShapeError`` if
        the sizes do not fit."""
        self.program.bind_flat(self._values())
        return self

    def run(self) -> Kernel:
        """Runs the kernel on its inputs and waits for the results."""
        self._results = self.launch(self._values())
        return self

    def output(self, op: Tensor | int = 0) -> Any:
        """A result of the last run, by what ``store`` returned or by number: a NumPy array, or a ``jax.Array`` if an input was one."""
        if self._results is None:
            raise InputError(f"kernel {self.name!r} has not run yet: call run()")
        if isinstance(op, int):
            return self._results[op]
        for stored, result in zip(self.stores, self._results, strict=True):
            if stored is op or stored.node is op.node:
                return result
        raise InputError(f"{op!r} is not stored by kernel {self.name!r}")

    def _values(self) -> list[Any]:
        values = []
        for parameter in self.parameters:
            if parameter.form == "sizes" and parameter.source is not None:
                values.append(size_carrier(sizes(parameter.source, parameter.name, parameter.count)))
            elif parameter.current is None:
                raise InputError(f"input {parameter.name!r} of kernel {self.name!r} is not set: call k.input(x, array)")
            else:
                values.append(parameter.current)
        return values

    def launch(self, values: Sequence[Any]) -> list[Any]:
        """Runs on the values of all parameters in order: NumPy results, or ``jax.Array``s if a value is one."""
        import jax

        program = self.program
        if any(isinstance(value, jax.Array) for value in values):
            return program.launch_flat(values)
        names = [parameter.name for parameter in self.parameters]
        results = program.run(None, dict(zip(names, values, strict=True)))
        return list(results)

    # ---- looking inside

    def shape(self, op: Tensor) -> tuple[Dim, ...]:
        """The sizes of a tensor, as numbers and symbolic dims."""
        return op.shape

    def dump(self) -> str:
        """Prints the graph as it was built, and returns the text."""
        text = self._text()
        print(text, end="")
        return text

    def das(self) -> str:
        """Prints the bytecode, as ``dvm dis`` shows it, and returns the text."""
        text = self.program.disassemble()
        print(text)
        return text

    def __repr__(self) -> str:
        return f"<dvm kernel {self.name} ({self.kind}, {'dynamic' if self.dynamic else 'static'}), {len(self.graph.nodes)} operations>"


def size_carrier(values: Sequence[int]) -> np.ndarray:
    """The array that carries sizes: it has them as its own, and no element."""
    return np.empty((*values, 0), np.bool_)
