"""``CompiledProgram``: what ``dvm.compile`` and ``dvm.load`` return.

Imports nothing of the compiler, so that a loaded program runs alone.
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from dvm import explain as explaining
from dvm.trees import Signature
from vm.dtypes import dtype_of
from vm.errors import InputError, ProgramError, ShapeError
from vm.program import Program, Step, Symbol, TensorSpec

if TYPE_CHECKING:
    import jax

    from dvm.memory_report import Memory
    from dvm.profile import Profile
    from dvm.report import Report
    from vm.binder import Binder, BoundProgram

TIERS = ("auto", "reference", "interpreter", "specialised")


@dataclass
class Made:
    """How a program of this process was compiled: what ``report`` says beyond the program itself. Not saved."""

    options: Any  # dvm.Options
    seconds: float  # from the first look at the function or model to the finished program
    passes: Sequence[Any]  # graph_kernel.passes.PassReport
    again: Callable[[], Any] | None  # traces anew, to compile with other options


class CompiledProgram:
    """A compiled graph. Call it with arrays of any sizes that meet ``constraints``; nothing is compiled again.

    ``prog(*args)`` takes and returns the pytrees of the function it was compiled from. An ONNX program takes its inputs in order or by
    name and returns a tuple. Results are ``jax.Array``s, except 64-bit types, which are NumPy arrays unless the user has enabled x64 in
    JAX. Raises ``InputError`` for a wrong count, name, rank or dtype and ``ShapeError`` for a size that breaks a constraint; the program
    works afterwards as before. Calls from several threads are safe.
    """

    def __init__(
        self,
        program: Program,
        signature: Signature | None = None,
        tier: str = "auto",
        pass_seconds: Sequence[float] = (),
    ):
        if tier not in TIERS:
            raise InputError(f"unknown tier {tier!r}; there are {', '.join(TIERS)}")
        self._program = program
        self._tier = tier
        self._pass_seconds = list(pass_seconds)  # of the passes in the debug data; not saved
        self._lock = threading.Lock()
        self._executable: Any = None
        self._made: Made | None = None
        self._worker: ThreadPoolExecutor | None = None  # runs what is submitted
        self._foreign = False  # read from a file: what it accesses is checked at every new size
        names = [spec.name for spec in program.inputs]
        title = str(program.debug.get("title", ""))
        self._signature = signature or Signature.from_data(
            program.in_tree, program.out_tree, names, len(program.outputs), title
        )
        self._expected = [(dtype_of(spec.dtype), len(spec.dims)) for spec in program.inputs]
        self._admit = [
            _admitter(spec, label, self._signature.form != "onnx")
            for spec, label in zip(program.inputs, self._labels(), strict=True)
        ]
        self._wide_outputs = [i for i, spec in enumerate(program.outputs) if _is_wide(dtype_of(spec.dtype))]

    # ---- running

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Launches the program on ``args``; returns without waiting for the result."""
        return self.unflatten(self.launch_flat(self._signature.flatten(args, kwargs)))

    def run(
        self, output_names: str | Sequence[str] | None = None, feeds: Mapping[str, Any] | None = None
    ) -> list[np.ndarray]:
        """As onnxruntime's ``InferenceSession.run``: NumPy arrays by input name in, the named outputs (all if None) as NumPy arrays out.

        Inputs of a function are named by parameter and path, as ``x`` or ``params['w'][0]``; see ``inputs``. Waits for the result.
        """
        feeds = dict(feeds or {})
        known = [spec.name for spec in self._program.inputs]
        unknown = [name for name in feeds if name not in known]
        missing = [name for name in known if name not in feeds]
        if unknown or missing:
            parts = [f"unknown {', '.join(map(repr, unknown))}"] * bool(unknown)
            parts += [f"missing {', '.join(map(repr, missing))}"] * bool(missing)
            raise InputError(
                f"run: wrong input names: {'; '.join(parts)}; the inputs are {', '.join(map(repr, known))}"
            )
        outputs = [spec.name for spec in self._program.outputs]
        wanted = (
            [output_names] if isinstance(output_names, str) else outputs if output_names is None else list(output_names)
        )
        for name in wanted:
            if name not in outputs:
                raise InputError(f"run: unknown output {name!r}; the outputs are {', '.join(map(repr, outputs))}")
        results = self._launch([feeds[name] for name in known])
        return [np.asarray(results[outputs.index(name)]) for name in wanted]

    def unflatten(self, results: Sequence[Any]) -> Any:
        """The result tree of flat results."""
        return self._signature.unflatten(results)

    def launch_flat(self, leaves: Sequence[Any]) -> list[Any]:
        """Launches on flat inputs and returns flat results, as ``__call__`` does for trees."""
        return self._as_jax(self._launch(leaves))

    def _as_jax(self, results: list[Any]) -> list[Any]:
        numpy_only = self._wide_outputs if self._wide_outputs and not x64_enabled() else ()
        for i in numpy_only:
            results[i] = np.asarray(results[i])
        moved = [i for i, result in enumerate(results) if type(result) is np.ndarray and i not in numpy_only]
        if len(moved) == len(results):
            return _to_jax(results)
        for i, array in zip(moved, _to_jax([results[i] for i in moved]), strict=True):
            results[i] = array
        return results

    def submit(self, *args: Any, **kwargs: Any) -> Future[Any]:
        """A call whose result comes as a future. Inputs are checked and sizes bound here, in the caller's thread and while an earlier
        launch may be running; launches run one after the other, in order, on a thread of the program's own. The arrays must not change
        before the result is there. Raises at once what is wrong with the inputs."""
        leaves = self._admitted(self._signature.flatten(args, kwargs))
        executable = self.executable
        bound, wide = executable.bind(leaves), x64_enabled()

        def run() -> Any:
            import jax

            with jax.enable_x64(wide):
                return self.unflatten(self._as_jax(list(executable.launch(leaves, bound))))

        with self._lock:
            if self._worker is None:
                self._worker = ThreadPoolExecutor(1, thread_name_prefix="dvm-submit")
        return self._worker.submit(run)

    def _launch(self, leaves: Sequence[Any]) -> list[Any]:
        executable = self.executable
        arrays, sizes = self._measured(leaves)
        return list(executable.launch(arrays, executable.binder.bind_sizes(sizes)))

    def _measured(self, leaves: Sequence[Any]) -> tuple[Sequence[Any], tuple[int, ...]]:
        """The inputs, admitted, and the sizes of all their axes, as ``Binder.check_inputs`` gives them: one look at each array does for
        both, because a launch begins with cold caches and every attribute counts."""
        if len(leaves) == len(self._expected):
            sizes: list[int] = []
            types = _array_types()
            for leaf, (dtype, rank) in zip(leaves, self._expected):
                if type(leaf) not in types or leaf.dtype != dtype:
                    break
                shape = leaf.shape
                if len(shape) != rank:
                    break
                sizes += shape
            else:
                return leaves, tuple(sizes)
        arrays = self._admitted(leaves)
        return arrays, self.executable.binder.check_inputs(arrays)

    def _admitted(self, leaves: Sequence[Any]) -> list[Any]:
        if len(leaves) != len(self._admit):
            raise InputError(f"expected {len(self._admit)} arrays, got {len(leaves)}")
        return [admit(leaf) for admit, leaf in zip(self._admit, leaves)]

    @property
    def executable(self) -> Any:
        """The ``vm.runtime.Executable`` that launches this program; made when first needed."""
        if self._executable is None:
            with self._lock:
                if self._executable is None:
                    executable = make_executable(self._program, self._tier)
                    if self._foreign:
                        from vm import verifier

                        executable.binder.check = verifier.BoundCheck(self._program)
                    self._executable = executable
        return self._executable

    def wait(self) -> CompiledProgram:
        """Waits for work in the background: specialised code that is being built while the interpreter serves, and images of the
        interpreter. Raises what went wrong there. Launches after it run specialised code."""
        self.executable.wait()
        return self

    def reserve(self, dims: Mapping[str, int] | None = None, /, **more: int) -> CompiledProgram:
        """Sizes device memory for these dims ahead, so that no launch inside them grows it. Symbols left out must have a maximum. Raises
        ``ShapeError`` for a size that the symbol never has, ``OutOfMemory`` for more than there is."""
        sizes = self._symbol_values(dims, more, partial=True)
        for name, size in sizes.items():
            symbol = self.symbols[name]
            if size < symbol.min or (symbol.max is not None and size > symbol.max):
                raise ShapeError(f"reserve: dimension {name!r} is {size}, but it has {_range_line(symbol)}")
        self.executable.reserve(sizes)
        return self

    def bind(self, dims: Mapping[str, int] | None = None, /, **more: int) -> BoundProgram:
        """The program with these sizes filled in, without arrays: to inspect. Raises ``ShapeError`` if they break a constraint."""
        return self._binder.bind_symbols(self._symbol_values(dims, more, partial=False))

    def bind_flat(self, leaves: Sequence[Any]) -> BoundProgram:
        """The program with the sizes of these flat inputs filled in. Raises as a launch would, and runs nothing."""
        binder = self._binder
        return binder.bind_sizes(binder.check_inputs(self._admitted(leaves)))

    def memory(self, dims: Mapping[str, int] | None = None, /, **more: int) -> Memory:
        """Device memory at these sizes, in bytes: ``.peak``, ``.temp``, ``.inputs``, ``.constants``, ``.outputs``, ``.buffers`` with their
        lifetimes, ``.unshared`` and ``.saved``; print it for a table. Raises ``ShapeError`` for sizes that break a constraint."""
        from dvm.memory_report import Memory

        return Memory(self.bind(dims, **more))

    def report(self, dims: Mapping[str, int] | None = None, /, **more: int) -> Report:
        """What compiling did and what it is worth at these sizes (of symbols left out, a typical size); print it, or take ``.to_dict()``.
        A program of this process is compiled once more without fusion, to compare."""
        from dvm.report import Report

        return Report(self, self._symbol_values(dims, more, partial=True))

    @functools.cached_property
    def _binder(self) -> Binder:
        if self._executable is not None:
            return self._executable.binder
        from vm.binder import Binder

        return Binder(self._program)

    def _symbol_values(self, dims: Mapping[str, int] | None, more: Mapping[str, int], partial: bool) -> dict[str, int]:
        given, symbols = {**(dims or {}), **more}, self.symbols
        for name, size in given.items():
            if name not in symbols:
                raise InputError(f"unknown dimension {name!r}; the program has {', '.join(symbols) or 'none'}")
            if isinstance(size, bool) or not hasattr(size, "__index__"):
                raise InputError(f"dimension {name!r}: expected a whole number, got {size!r}")
        names = list(symbols)
        data = names[len(names) - len(self._program.data_sizes) :]  # may be left open: no input determines them
        for name, symbol in symbols.items():
            if symbol.min == symbol.max and name not in data:
                given.setdefault(name, symbol.min)
        missing = [
            name for name in names if name not in given and (name not in data or not given.keys().isdisjoint(data))
        ]
        if missing and not partial:
            sizes = f"give {'their sizes' if len(missing) > 1 else 'its size'}, as {missing[0]}=16"
            raise InputError(f"missing dimension{'s' * (len(missing) > 1)} {', '.join(missing)}: {sizes}")
        return {name: given[name].__index__() for name in symbols if name in given}

    # ---- saving

    def save(self, path: str | os.PathLike[str], strip: bool = False) -> None:
        """Writes the program file; ``strip`` leaves out names of operations, explanations and reports."""
        from vm import serialise

        serialise.save(self._program, path, strip)

    # ---- looking inside

    @property
    def program(self) -> Program:
        """The program as data."""
        return self._program

    @property
    def tier(self) -> str:
        """The executor that was asked for."""
        return self._tier

    @property
    def symbols(self) -> dict[str, Symbol]:
        """The symbolic dimensions by name, with their ranges."""
        return {symbol.name: symbol for symbol in self._program.symbols}

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        """Flat inputs: name, dtype and dims as text."""
        return self._program.inputs

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """Flat outputs: name, dtype and dims as text."""
        return self._program.outputs

    @property
    def constraints(self) -> list[str]:
        """One line each: declared ranges, deduced relations with their cause, launch checks, and what ``dvm.jit`` kept fixed and why."""
        with explaining.readable():
            return self._constraints()

    def _constraints(self) -> list[str]:
        debug = self._program.debug
        lines = [str(line) for line in debug.get("constraints", ())]
        if not lines:  # a stripped program knows its ranges and checks, not who deduced them
            lines = [_range_line(symbol) for symbol in self._program.symbols]
            for check in self._program.checks:
                lines.append(f"at launch: {check.message}" + (f"  ({check.origin})" if check.origin else ""))
        return list(dict.fromkeys([*lines, *map(str, debug.get("jit", ()))]))

    @property
    def kernels(self) -> tuple[explaining.Kernel, ...]:
        """The fusion groups in launch order."""
        return explaining.kernels(self._program)

    @property
    def steps(self) -> list[Step]:
        """All steps, those inside branches and loops included."""
        from vm.disassembler import walk

        return list(walk(self._program.steps))

    def explain(self) -> explaining.Explanation:
        """For every kernel which operations it holds and for every cut why; print it, or take ``.to_dict()``."""
        return explaining.Explanation(self._program, self.constraints, self._pass_seconds)

    def profile(self, /, *args: Any, **kwargs: Any) -> Profile:
        """Emulated time of one call, kernel by kernel; nothing is run. Takes what a call takes, of which only sizes count, or the sizes
        themselves: ``prog.profile(b=2, s=128)`` or ``prog.profile({"b": 2, "s": 128})``. Print the result, or see ``dvm.profile``."""
        from dvm.profile import Profile
        from vm.timing import Machine

        bound = self._bound_at(args, kwargs)
        time = Machine(self._program, self._binder, timeline=True).time(bound)
        return Profile(time, bound.dims, self.launches, tuple(explaining.forms(bound)))

    def _bound_at(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> BoundProgram:
        """The program at the sizes of a call's arguments, or at given sizes."""
        named = (
            {**args[0], **kwargs} if len(args) == 1 and isinstance(args[0], Mapping) else kwargs if not args else None
        )
        if (
            named is not None
            and set(named) <= set(self.symbols)
            and all(hasattr(v, "__index__") for v in named.values())
        ):
            return self.bind(named)
        leaves = self._signature.flatten(args, kwargs)
        arrays = [admit(leaf) for admit, leaf in zip(self._admit, leaves, strict=True)]
        return self._binder.bind_sizes(self._binder.check_inputs(arrays))

    @property
    def stages(self) -> tuple[tuple[str, ...], ...]:
        """Names of the kernels in launch order, those together that run side by side on cores of their own; of parts that have two forms,
        the one with fewer kernels."""
        from vm.program.stages import stages

        merged = (0,) * len(self._program.choices)
        return tuple(tuple(step.name for step in stage) for stage in stages(self._program, merged))

    @property
    def launches(self) -> int:
        """Launches of one call: all kernels between two host operations are one, control flow whose predicate a kernel computes
        included."""
        from vm.program.stages import launches

        return launches(self._program)

    def disassemble(self, kernel: str | int | None = None) -> str:
        """The instructions as text, of one kernel (by name or number) or of all."""
        from vm import disassembler

        return disassembler.disassemble(self._program, kernel)

    def __repr__(self) -> str:
        def show(specs: Iterable[TensorSpec]) -> str:
            return ", ".join(f"{spec.name}: {spec.dtype}[{', '.join(spec.text)}]" for spec in specs)

        title = f" {self._signature.title}" if self._signature.title else ""
        return f"<dvm program{title}({show(self.inputs)}) -> ({show(self.outputs)})>"

    def _labels(self) -> list[str]:
        """How messages name each flat input."""
        if self._signature.form == "onnx":
            return [f"input {spec.name!r}" for spec in self._program.inputs]
        return self._signature.labels


def make_executable(program: Program, tier: str) -> Any:
    """A ``vm.runtime.Executable`` or its like; tests put a double here."""
    if tier == "reference":
        from vm import reference

        return reference.Executable(program)
    from vm import jaxevents

    jaxevents.install()
    from vm.runtime import Executable

    return Executable(program, tier)


def load(path: str | os.PathLike[str], tier: str = "auto") -> CompiledProgram:
    """The program saved at ``path``. Needs neither SymPy nor onnx. Raises ``ProgramError`` for a damaged file."""
    from vm import serialise, verifier

    try:
        program = serialise.load(path)
    except OSError as error:
        raise ProgramError(f"cannot read {os.fspath(path)!r}: {error.strerror or error}") from error
    except ProgramError as error:
        raise ProgramError(f"{os.fspath(path)}: {error}") from error
    verifier.verify(program)
    loaded = CompiledProgram(program, tier=tier)
    loaded._foreign = True
    return loaded


def _range_line(symbol: Symbol) -> str:
    upper = f" <= {symbol.max}" if symbol.max is not None else ""
    line = f"{symbol.min} <= {symbol.name}{upper}"
    if symbol.multiple_of > 1:
        line += f", {symbol.name} % {symbol.multiple_of} == {symbol.remainder}"
    return line + (f"  ({symbol.origin})" if symbol.origin else "")


# ---- arrays in and out


def _is_wide(dtype: np.dtype) -> bool:
    """Whether JAX needs x64 for ``dtype``."""
    return dtype.kind in "iuf" and dtype.itemsize == 8 or dtype.kind == "c" and dtype.itemsize == 16


def x64_enabled() -> bool:
    """Whether the user has enabled x64 in JAX, globally or around this call."""
    import jax

    return jax.dtypes.canonicalize_dtype(np.int64) == np.int64


def _to_jax(arrays: list[np.ndarray]) -> list[jax.Array]:
    """The arrays as JAX arrays; compiles nothing, and copies only what is not aligned for XLA."""
    take, known = _importer(), _plain_types()
    if take is not None:
        for a in arrays:
            if a.dtype not in known:
                break
        else:
            cpu = _cpu()
            return [take(a.__dlpack__(), cpu, None) for a in arrays]
    import jax

    return jax.device_put(arrays, _cpu()) if arrays else []


@functools.cache
def _importer() -> Callable[..., jax.Array] | None:
    from vm.memory import importer  # imports JAX, which ``import dvm`` leaves until it is needed

    return importer()


@functools.cache
def _plain_types() -> frozenset[np.dtype]:
    """Types that DLPack takes to JAX as they are: it has no bfloat16, and what JAX makes of 64-bit types is for it to say."""
    names = ["bool", "int8", "int16", "int32", "uint8", "uint16", "uint32", "float16", "float32"]
    return frozenset(map(np.dtype, names))


@functools.cache
def _cpu() -> jax.Device:
    import jax

    return jax.devices("cpu")[0]


def _admitter(spec: TensorSpec, label: str, canonicalise: bool) -> Callable[[Any], Any]:
    """A function that lets one input in: checks its rank and dtype and makes other array-likes NumPy arrays.

    With ``canonicalise`` (functions and jaxprs) a 64-bit array becomes what JAX would make of it while x64 is off.
    """
    dtype, rank = dtype_of(spec.dtype), len(spec.text)
    shape = f"[{', '.join(spec.text)}]"

    def admit(value: Any) -> Any:
        if type(value) in _array_types() and value.dtype == dtype:
            array = value
        else:
            array = _convert(value, dtype, label, canonicalise)
        if len(array.shape) != rank:
            raise InputError(
                f"{label}: expected {rank} dimension{'s' * (rank != 1)} {shape}, got {len(array.shape)}: shape {tuple(array.shape)}"
            )
        return array

    return admit


@functools.cache
def _array_types() -> tuple[type, ...]:
    import jax

    return (
        np.ndarray,
        type(jax.device_put(np.zeros((), np.float32), _cpu())),
    )  # tracers are jax.Arrays too


_WEAK: dict[type, str] = {bool: "b", int: "iufc", float: "fc", complex: "c"}


def _convert(value: Any, dtype: np.dtype, label: str, canonicalise: bool) -> Any:
    """``value`` as an array of ``dtype``, or an ``InputError``."""
    import jax

    if isinstance(value, jax.core.Tracer):
        raise InputError(
            f"{label}: got a JAX tracer; a compiled program takes arrays only (dvm.jit functions nest in JAX transformations)"
        )
    kind = "f" if dtype.kind in "fV" else dtype.kind
    if type(value) in _WEAK:
        if kind in _WEAK[type(value)]:
            try:
                return np.asarray(value, dtype)
            except OverflowError:
                raise InputError(f"{label}: {value} does not fit {dtype}") from None
        raise InputError(f"{label}: expected {dtype}, got a Python {type(value).__name__}")
    if isinstance(value, jax.ShapeDtypeStruct):
        raise InputError(f"{label}: expected an array, got {value}")
    if isinstance(value, jax.Array) and jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key):
        value = jax.random.key_data(value)  # programs carry typed random keys as their words
    try:
        array = (
            value
            if isinstance(value, jax.Array)
            else np.asarray(value, dtype if isinstance(value, (list, tuple)) else None)
        )
    except (TypeError, ValueError) as error:
        raise InputError(f"{label}: expected an array, got {type(value).__name__}: {error}") from error
    if array.dtype == dtype:
        return array
    if canonicalise and array.dtype.kind in "iufc" and jax.dtypes.canonicalize_dtype(array.dtype) == dtype:
        return np.asarray(array).astype(dtype)
    raise InputError(f"{label}: expected dtype {dtype}, got {array.dtype}")
