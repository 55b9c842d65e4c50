"""The words that hand-written kernels are made of. ``Vocabulary`` is what ``Kernel`` inherits: every method adds operations to its graph.

Operands are tensors (what these methods return), run-time scalars (``k.scalar``), Python numbers, or sizes (``x.shape[0]``). Scalars,
numbers and sizes take the dtype of the tensor they meet; tensors of different dtypes need a ``k.cast``. Shapes broadcast as in NumPy. Sizes
that cannot be compared while the kernel is built are compared at each launch, and a mismatch is a ``dvm.ShapeError``.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

import symbolic
from dvm.handwritten.arguments import Argument, as_dtype, is_number
from dvm.handwritten.emission import KernelBuilder
from dvm.handwritten.kinds import Section
from graph_kernel.ir import Origin
from graph_kernel.ir import Value as Node
from graph_kernel.ops import OPS, Pattern
from graph_kernel.ops.base import is_float
from symbolic import Dim
from vm.errors import CompileError

if TYPE_CHECKING:
    from graph_kernel.ir import Graph

UNARY = {
    "sqrt": "sqrt", "abs": "abs", "log": "log", "exp": "exp", "reciprocal": "reciprocal", "isfinite": "is_finite",
    "logicalnot": "not", "round": "round", "floor": "floor", "ceil": "ceil", "trunc": "trunc",
}  # fmt: skip
BINARY = {
    "equal": "eq", "notequal": "ne", "greater": "gt", "greaterequal": "ge", "less": "lt", "lessequal": "le",
    "add": "add", "sub": "sub", "mul": "mul", "div": "div", "pow": "pow", "maximum": "max", "minimum": "min",
    "logicaland": "and", "logicalor": "or",
}  # fmt: skip
REDUCE = {"sum": "reduce_sum", "max": "reduce_max", "min": "reduce_min"}
_LOGICAL = ("not", "and", "or")
_HERE = os.path.dirname(__file__)


@dataclass(frozen=True, eq=False)
class Tensor:
    """A value inside a kernel. ``weak``: a run-time scalar, which takes the dtype of the tensor that it meets."""

    node: Node
    section: Section | None = None  # None: loaded, which every child of a kernel may read
    weak: bool = False

    @property
    def shape(self) -> tuple[Dim, ...]:
        """The sizes: whole numbers and symbolic dims, which can be used in other shapes."""
        return self.node.shape

    @property
    def dtype(self) -> np.dtype:
        """The dtype of the elements."""
        return self.node.dtype

    def __repr__(self) -> str:
        return f"<{'scalar' if self.weak else 'tensor'} {self.dtype}[{', '.join(map(str, self.shape))}]>"


def plain_name(name: str) -> str:
    """``GreaterEqual`` and ``greater_equal`` as ``greaterequal``."""
    return name.replace("_", "").lower()


def find_op(table: dict[str, str], name: str, count: int) -> str:
    """The op of the graph IR behind an operator's name: the original's names, and all other elementwise ops of the op table."""
    if plain_name(name) in table:
        return table[plain_name(name)]
    for op in OPS.values():
        if plain_name(op.name) == plain_name(name) and op.pattern is Pattern.ELEMENTWISE and op.n_inputs == count:
            return op.name
    raise CompileError(f"there is no operator {name!r} of {count} operand{'s' * (count > 1)}; see docs/kernels.md")


class Vocabulary:
    """What a kernel's body can say. Subclasses own ``graph``, ``builder`` and the current ``section``."""

    graph: Graph
    builder: KernelBuilder
    section: Section

    # ---- operators by name

    def unary(self, op: str, x: Any) -> Tensor:
        """An elementwise operator of one operand by name: ``k.unary("Sqrt", x)``."""
        self._at(op)
        found = find_op(UNARY, op, 1)
        (node,), weak = self._operands(x)
        return self._made(op, self.builder.unary(found, self._truth(node) if found == "not" else node), weak)

    def binary(self, op: str, x: Any, y: Any) -> Tensor:
        """An elementwise operator or comparison of two operands by name: ``k.binary("Add", x, 1.0)``. Comparisons give bool; integer
        division truncates towards zero."""
        self._at(op)
        found = find_op(BINARY, op, 2)
        (a, b), weak = self._operands(x, y)
        if found in _LOGICAL and "logical" in plain_name(op):
            a, b = self._truth(a), self._truth(b)
        return self._made(op, self.builder.binary(found, a, b), weak)

    def reduce(self, op: str, x: Any, dims: int | Sequence[int] | None = None, keepdims: bool = False) -> Tensor:
        """``sum``, ``max`` or ``min`` over axes (all if None); with ``keepdims`` they stay with size 1. 16-bit floats are summed in
        float32. An empty sum is 0, an empty maximum -inf or the least integer."""
        self._at(op)
        if plain_name(op) not in REDUCE:
            raise CompileError(f"there is no reduction {op!r}; there are {', '.join(REDUCE)}")
        node = self._tensor(x)
        axes = self._axes(range(node.rank) if dims is None else dims, node.rank)
        return self._made(op, self.builder.reduce(REDUCE[plain_name(op)], node, axes, keepdims))

    # ---- unary

    def sqrt(self, x: Any) -> Tensor:
        """The square root."""
        return self.unary("sqrt", x)

    def abs(self, x: Any) -> Tensor:
        """The absolute value."""
        return self.unary("abs", x)

    def log(self, x: Any) -> Tensor:
        """The natural logarithm."""
        return self.unary("log", x)

    def exp(self, x: Any) -> Tensor:
        """e to the power of x."""
        return self.unary("exp", x)

    def reciprocal(self, x: Any) -> Tensor:
        """1 / x."""
        return self.unary("reciprocal", x)

    def isfinite(self, x: Any) -> Tensor:
        """Whether x is neither infinite nor NaN, as bool."""
        return self.unary("isfinite", x)

    is_finite = isfinite

    def logical_not(self, x: Any) -> Tensor:
        """Whether x is zero or false, as bool."""
        return self.unary("logical_not", x)

    def round(self, x: Any) -> Tensor:
        """The nearest whole number; halves go to the even one."""
        return self.unary("round", x)

    def floor(self, x: Any) -> Tensor:
        """The largest whole number that is not above x."""
        return self.unary("floor", x)

    def ceil(self, x: Any) -> Tensor:
        """The least whole number that is not below x."""
        return self.unary("ceil", x)

    def trunc(self, x: Any) -> Tensor:
        """The integer part."""
        return self.unary("trunc", x)

    # ---- binary

    def add(self, x: Any, y: Any) -> Tensor:
        """x + y."""
        return self.binary("add", x, y)

    def sub(self, x: Any, y: Any) -> Tensor:
        """x - y."""
        return self.binary("sub", x, y)

    def mul(self, x: Any, y: Any) -> Tensor:
        """x * y."""
        return self.binary("mul", x, y)

    def div(self, x: Any, y: Any) -> Tensor:
        """x / y; integers truncate towards zero."""
        return self.binary("div", x, y)

    def pow(self, x: Any, y: Any) -> Tensor:
        """x to the power of y."""
        return self.binary("pow", x, y)

    def maximum(self, x: Any, y: Any) -> Tensor:
        """The larger of both; NaN wins."""
        return self.binary("maximum", x, y)

    def minimum(self, x: Any, y: Any) -> Tensor:
        """The smaller of both; NaN wins."""
        return self.binary("minimum", x, y)

    def equal(self, x: Any, y: Any) -> Tensor:
        """x == y, as bool."""
        return self.binary("equal", x, y)

    def not_equal(self, x: Any, y: Any) -> Tensor:
        """x != y, as bool."""
        return self.binary("not_equal", x, y)

    def greater(self, x: Any, y: Any) -> Tensor:
        """x > y, as bool."""
        return self.binary("greater", x, y)

    def greater_equal(self, x: Any, y: Any) -> Tensor:
        """x >= y, as bool."""
        return self.binary("greater_equal", x, y)

    def less(self, x: Any, y: Any) -> Tensor:
        """x < y, as bool."""
        return self.binary("less", x, y)

    def less_equal(self, x: Any, y: Any) -> Tensor:
        """x <= y, as bool."""
        return self.binary("less_equal", x, y)

    def logical_and(self, x: Any, y: Any) -> Tensor:
        """Whether both are nonzero, as bool."""
        return self.binary("logical_and", x, y)

    def logical_or(self, x: Any, y: Any) -> Tensor:
        """Whether one is nonzero, as bool."""
        return self.binary("logical_or", x, y)

    # ---- reductions

    def sum(self, x: Any, dims: int | Sequence[int] | None = None, keepdims: bool = False) -> Tensor:
        """The sum over axes."""
        return self.reduce("sum", x, dims, keepdims)

    def max(self, x: Any, dims: int | Sequence[int] | None = None, keepdims: bool = False) -> Tensor:
        """The maximum over axes; NaN wins."""
        return self.reduce("max", x, dims, keepdims)

    def min(self, x: Any, dims: int | Sequence[int] | None = None, keepdims: bool = False) -> Tensor:
        """The minimum over axes; NaN wins."""
        return self.reduce("min", x, dims, keepdims)

    # ---- select and cast

    def select(self, cond: Any, x: Any, y: Any) -> Tensor:
        """x where cond is true or nonzero, else y."""
        self._at("select")
        pred = self._truth(self._tensor(cond))
        (a, b), _ = self._operands(x, y)
        return self._made("select", self.builder.select(pred, a, b))

    def cast(self, x: Any, dtype: Any) -> Tensor:
        """x as ``dtype``. To bool it is ``x != 0``; floats become integers by truncation, within their range."""
        self._at("cast")
        return self._made("cast", self.builder.cast(self._tensor(x), as_dtype(dtype)))

    # ---- shapes

    def broadcast(self, x: Any, shape: Any, dtype: Any = None) -> Tensor:
        """x, a tensor, scalar or number, repeated to ``shape`` as NumPy does it; a number becomes ``dtype`` (float32)."""
        self._at("broadcast")
        if is_number(x):
            node = self._number(x, as_dtype(dtype or np.float32))
        else:
            node = self._tensor(x)
            node = node if dtype is None else self.builder.cast(node, as_dtype(dtype))
        target = self._shape(shape)
        if len(target) < node.rank:
            raise CompileError(
                f"{self._where}: cannot broadcast {self._show(node)} to {symbolic.shape_text(target)} of lower rank"
            )
        return self._made("broadcast", self.builder.broadcast_to(node, target))

    def reshape(self, x: Any, shape: Any) -> Tensor:
        """The elements of x in row-major order in another shape; one size may be -1."""
        self._at("reshape")
        node = self._tensor(x)
        target = symbolic.reshape(self.builder.scope, node.shape, self._shape(shape, hole=True), self._where)
        return self._made("reshape", self.builder.reshape(node, target))

    def permute(self, x: Any, dims: Sequence[int]) -> Tensor:
        """Axis ``dims[i]`` of x becomes axis i."""
        self._at("permute")
        node = self._tensor(x)
        return self._made("permute", self.builder.transpose(node, self._axes(dims, node.rank)))

    def slice(self, x: Any, *where: Any) -> Tensor:
        """A part of x: ``k.slice(x, start, size)`` with one start and size per axis (size -1: to the end), or ``k.slice(x, dim, begin,
        end)`` along one axis (end None: to the end; negative numbers count from the end). Sizes outside x are refused."""
        self._at("slice")
        node = self._tensor(x)
        if len(where) == 2:
            starts, wanted = self._shape(where[0]), self._shape(where[1], hole=True)
            if len(starts) != node.rank or len(wanted) != node.rank:
                raise CompileError(
                    f"{self._where}: expected {node.rank} starts and sizes, got {len(starts)} and {len(wanted)}"
                )
            ends = [
                n if isinstance(size, int) and size == -1 else start + size
                for n, start, size in zip(node.shape, starts, wanted, strict=True)
            ]
        elif len(where) == 3:
            (axis,) = self._axes(where[0], node.rank)
            first: list[Dim] = [0] * node.rank
            ends = list(node.shape)
            first[axis] = self._position(where[1], node.shape[axis])
            ends[axis] = node.shape[axis] if where[2] is None else self._position(where[2], node.shape[axis])
            starts = tuple(first)
        else:
            raise CompileError(f"{self._where}: slice takes (x, start, size) or (x, dim, begin, end)")
        return self._made("slice", self._sliced(node, tuple(starts), tuple(ends)))

    def _sliced(self, node: Node, starts: tuple[Dim, ...], ends: tuple[Dim, ...]) -> Node:
        return self.builder.op("slice", node, starts=starts, limits=ends, strides=(1,) * node.rank)

    def split(self, x: Any, dim: int, size: int, num: int) -> tuple[Tensor, ...]:
        """``num`` parts of ``size`` along an axis, one after another from its beginning."""
        return tuple(self.slice(x, dim, i * size, (i + 1) * size) for i in range(num))

    def concat(self, xs: Sequence[Any], dim: int) -> Tensor:
        """The tensors one after another along an axis; their other sizes must agree."""
        self._at("concat")
        nodes = [self._tensor(x) for x in xs]
        if not nodes:
            raise CompileError(f"{self._where}: nothing to concatenate")
        (axis,) = self._axes(dim, nodes[0].rank)
        return self._made("concat", self.builder.concat(nodes, axis))

    def one_hot(
        self, indices: Any, depth: Any, axis: int = -1, on: Any = 1.0, off: Any = 0.0, dtype: Any = np.float32
    ) -> Tensor:
        """``on`` at the index and ``off`` elsewhere along a new axis of size ``depth``; an index outside [0, depth) gives ``off``."""
        self._at("one_hot")
        node = self._tensor(indices)
        (axis,) = self._axes(axis, node.rank + 1)
        shape = list(node.shape)
        shape.insert(axis, self._shape((depth,))[0])
        spread = self.builder.broadcast_to(self.builder.unsqueeze(node, axis), shape)
        hit = self.builder.op("eq", spread, self.builder.iota(shape, axis, node.dtype))
        target = as_dtype(dtype)
        a, b = (
            self._number(v, target) if is_number(v) else self.builder.cast(self._tensor(v), target) for v in (on, off)
        )
        return self._made("one_hot", self.builder.select(hit, a, b))

    def copy(self, x: Any) -> Tensor:
        """x itself: values are never changed in place."""
        return self._made("copy", self._tensor(x))

    # ---- the matrix product

    def matmul(self, a: Any, b: Any, trans_a: bool = False, trans_b: bool = False, bias: Any = None) -> Tensor:
        """``a @ b``, the last two axes of each transposed where asked for, plus ``bias`` of one axis, of the size of the last;
        leading axes broadcast. 16-bit floats are accumulated, and the bias added, in float32."""
        self._at("matmul")
        x, y = self._tensor(a), self._tensor(b)
        if x.rank < 2 or y.rank < 2 or x.dtype != y.dtype:
            raise CompileError(
                f"{self._where}: expected two matrices of one dtype, got {self._show(x)} and {self._show(y)}"
            )
        wide = np.dtype(np.float32) if is_float(x.dtype) else x.dtype
        out = self._product(x, y, trans_a, trans_b, wide)
        if bias is not None:
            out = self._biased(out, self.builder.cast(self._tensor(bias), wide))
        return self._made("matmul", self.builder.cast(out, x.dtype))

    def _biased(self, out: Node, bias: Node) -> Node:
        if bias.rank != 1:
            raise CompileError(f"{self._where}: expected a bias of one axis, got {self._show(bias)}")
        size = out.shape[-1]
        self.builder.require_equal(
            bias.shape[0], size, f"the bias must have the size of a row, {bias.shape[0]} == {size}"
        )
        return self.builder.op("add", out, self.builder.op("broadcast", bias, shape=out.shape, dims=(out.rank - 1,)))

    def _product(self, x: Node, y: Node, trans_a: bool, trans_b: bool, dtype: np.dtype) -> Node:
        b = self.builder
        if y.rank == 2 and not trans_a:
            return b.dot(x, y, ((x.rank - 1,), (1 if trans_b else 0,)), dtype=dtype)
        batch = b.broadcast_shape(x.shape[:-2], y.shape[:-2])
        x, y = b.broadcast_to(x, batch + x.shape[-2:]), b.broadcast_to(y, batch + y.shape[-2:])
        axes, n = tuple(range(len(batch))), len(batch)
        return b.dot(x, y, ((n if trans_a else n + 1,), (n + 1 if trans_b else n,)), (axes, axes), dtype)

    # ---- operands

    def _operands(self, *xs: Any) -> tuple[list[Node], bool]:
        """Operands of one dtype, which is that of the tensors among them; whether all were scalars."""
        xs = tuple(self._resolved(x) for x in xs)
        tensors = [x for x in xs if isinstance(x, Tensor)]
        if not tensors:
            raise CompileError(f"{self._where}: one operand has to be a tensor or a scalar of the kernel")
        strong = [x for x in tensors if not x.weak]
        dtype = self._common([x.dtype for x in strong]) if strong else _widest(tensors)
        return [self._as(x, dtype) for x in xs], not strong

    def _common(self, dtypes: list[np.dtype]) -> np.dtype:
        if any(d != dtypes[0] for d in dtypes):
            raise CompileError(f"{self._where}: operands of {dtypes[0]} and {dtypes[1]}; make them equal with k.cast")
        return dtypes[0]

    def _as(self, x: Any, dtype: np.dtype) -> Node:
        if isinstance(x, symbolic.Expr):
            return self.builder.dim(x, dtype)
        if not isinstance(x, Tensor):
            return self._number(x, dtype)
        if x.weak and is_float(x.dtype) and not is_float(dtype):
            raise CompileError(
                f"{self._where}: a {x.dtype} scalar does not fit {dtype} tensors; cast the tensor or the scalar"
            )
        return self.builder.cast(self._node(x), dtype)

    def _number(self, number: Any, dtype: np.dtype) -> Node:
        fits = is_float(dtype) or float(number).is_integer()
        if fits and dtype.kind in "iu":
            fits = np.iinfo(dtype).min <= int(number) <= np.iinfo(dtype).max
        if dtype == np.bool_:
            fits = float(number) in (0.0, 1.0)
        if not fits:
            raise CompileError(f"{self._where}: {number} does not fit {dtype} tensors")
        return self.builder.scalar(number, dtype)

    def _tensor(self, x: Any) -> Node:
        resolved = self._resolved(x)
        if not isinstance(resolved, Tensor):
            raise CompileError(f"{self._where}: expected a tensor of the kernel, got {x!r}")
        return self._node(resolved)

    def _resolved(self, x: Any) -> Any:
        """A number, a size, or a tensor; the handle of a number becomes a scalar."""
        if isinstance(x, Argument):
            if x.form == "number":
                return self.scalar(x)
            raise CompileError(f"{self._where}: {x!r} has to be loaded first: k.load({x.name})")
        if isinstance(x, Tensor):
            self._check_owner(x)
            return x
        if isinstance(x, symbolic.Expr) or is_number(x):
            return x
        raise CompileError(f"{self._where}: expected a tensor, a scalar or a number, got {type(x).__name__} {x!r}")

    def scalar(self, what: Any, dtype: Any = None) -> Tensor:
        raise NotImplementedError

    def _check_owner(self, x: Tensor) -> None:
        raise NotImplementedError

    def _node(self, x: Tensor) -> Node:
        raise NotImplementedError

    def _truth(self, node: Node) -> Node:
        return self.builder.cast(node, np.bool_)

    def _made(self, name: str, node: Node, weak: bool = False) -> Tensor:
        made = Tensor(node, self.section, weak)
        self.section.ops.append((plain_name(name), made))
        return made

    # ---- axes and sizes

    def _axes(self, dims: Any, rank: int) -> list[int]:
        found = []
        for axis in [dims] if hasattr(dims, "__index__") else list(dims):
            if isinstance(axis, bool) or not hasattr(axis, "__index__") or not -rank <= axis < rank:
                raise CompileError(f"{self._where}: {axis!r} is no axis of a tensor of rank {rank}")
            found.append(axis.__index__() % rank)
        return found

    def _shape(self, shape: Any, hole: bool = False) -> tuple[Dim, ...]:
        raise NotImplementedError

    def _position(self, position: Any, size: Dim) -> Dim:
        if hasattr(position, "__index__") and position < 0:
            return size + position.__index__()
        return self._shape((position,))[0]

    def _show(self, node: Node) -> str:
        return f"{node.dtype}{symbolic.shape_text(node.shape)}"

    # ---- places

    def _at(self, op: str) -> None:
        """Remembers the user's line as the origin of what comes next."""
        frame = sys._getframe(1)
        while frame.f_back is not None and os.path.dirname(frame.f_code.co_filename) == _HERE:
            frame = frame.f_back
        place = f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno} ({frame.f_code.co_name})"
        if self.section.name:
            place += f", {self.section.name}"
        self.builder.origin = Origin(op, place)

    @property
    def _where(self) -> str:
        return str(self.builder.origin)


def _widest(tensors: list[Tensor]) -> np.dtype:
    """What scalars alone are computed in: the first float among them, else the largest."""
    floats = [t.dtype for t in tensors if is_float(t.dtype)]
    return floats[0] if floats else max((t.dtype for t in tensors), key=lambda d: (d.kind != "b", d.itemsize))
