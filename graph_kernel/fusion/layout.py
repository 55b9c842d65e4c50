"""The loop structure of a group: which atoms become loops, which stay whole in a tile, and how loops' indices reach memory.

Parallel atoms up to the innermost dynamic one are merged into one *row* loop where that is possible, so that a kernel has one loop over
everything that varies with the launch. Dynamic reduced atoms become *stage* loops: a reduction over one is a pass over memory.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from enum import Enum

from graph_kernel.fusion.axes import Axes, Refusal
from graph_kernel.fusion.views import LoadMap, Part
from graph_kernel.ir import Node, Value
from symbolic import Dim, Scope, product

ROW_BYTES = 40 * 1024  # most bytes of one value's whole dims: several such rows must fit in a unified buffer of 192 KiB
OPERAND_BYTES = 256 * 1024  # most bytes of whole dims of a product's operand in a kernel that computes the other one
MAX_TILE_RANK = 8  # dims of a tile
CUBE_SPAN = 128  # elements of a matrix dim per chip tile

Add = Callable[[list[int], bool], None]  # makes a loop of atoms; True for a stage loop


class Sharing(Enum):
    """What of a kernel is shared out among cores."""

    TILES = 0  # tiles of its results, as large as local memory and, of products, the number of cores say
    ROWS = 1  # rows of its results, however few
    SUM = 2  # tiles of its results and, of each, parts of the sum: each is added to the result in memory


@dataclass
class LoopAxis:
    """A loop over the merged index of ``atoms`` (outermost first). ``stage`` loops carry reductions."""

    id: int
    atoms: tuple[int, ...]
    extent: Dim
    stage: bool = False
    inner: bool = False  # a parallel loop that only some of the results vary with
    tile: int = 1  # elements a chip tile covers; set by codegen


@dataclass(frozen=True)
class TileDim:
    """A dim of a tile: a loop's step (``loop`` >= 0) or a whole atom."""

    loop: int
    atom: int
    size: Dim


@dataclass
class Layout:
    """Loops of a group and the canonical order of tile dims."""

    axes: Axes
    loops: list[LoopAxis]
    loop_of: dict[int, int]  # atom -> loop id
    order: list[int]  # canonical order of atoms
    rank_of: dict[int, int] = field(default_factory=dict)
    sharing: Sharing = Sharing.TILES

    def outer(self) -> list[LoopAxis]:
        """The parallel loops that every result varies with, outermost first: the kernel's tile loops. Others belong to some results."""
        found = [x for x in self.loops if not x.stage and not x.inner]
        return sorted(found, key=lambda x: self.depth(x.id))

    def depth(self, loop: int) -> tuple[bool, int]:
        """A key that sorts loops from the outside in."""
        found = self.loops[loop]
        return found.stage, self.rank_of[found.atoms[0]]

    def tile_dims(self, value: Value) -> tuple[TileDim, ...]:
        """The dims of a value's tile in canonical order; merged atoms appear as their loop, once."""
        seen: set[int] = set()
        out: list[tuple[int, TileDim]] = []
        for a in self.axes.of(value):
            loop = self.loop_of.get(a, -1)
            if loop < 0:
                out.append((self.rank_of[a], TileDim(-1, a, self.axes.atoms[a].size)))
            elif loop not in seen:
                seen.add(loop)
                first = self.loops[loop].atoms[0]
                out.append((self.rank_of[first], TileDim(loop, -1, self.loops[loop].extent)))
        return tuple(d for _, d in sorted(out, key=lambda item: item[0]))

    def index_parts(self, atom: int, scope: Scope, div: Dim = 1, mod: Dim = 0) -> tuple[TileDim, Dim, Dim]:
        """``(i_atom // div) % mod`` as ``(i_dim // div') % mod'`` of the tile dim that carries the atom."""
        loop = self.loop_of.get(atom, -1)
        if loop < 0:
            return TileDim(-1, atom, self.axes.atoms[atom].size), div, mod
        atoms = self.loops[loop].atoms
        k = atoms.index(atom)
        inner = product([self.axes.atoms[a].size for a in atoms[k + 1 :]])
        dim = TileDim(loop, -1, self.loops[loop].extent)
        size = self.axes.atoms[atom].size
        if k and mod == 0:
            if div != 1:
                if not scope.equal(size % div, 0):
                    raise Refusal(f"an index of size {size} is divided by {div}")
                mod = size // div
            else:
                mod = size
        elif k and not scope.equal(size % (div * mod), 0):
            raise Refusal(f"an index of size {size} is taken modulo {mod} after division by {div}")
        return dim, inner * div, mod


@dataclass(frozen=True)
class IndexPart:
    """``coefficient * ((i_dim // div) % mod)`` with ``dim`` a tile dim."""

    dim: TileDim
    coefficient: Dim
    div: Dim = 1
    mod: Dim = 0


def value_parts(layout: Layout, value: Value, part: Part, scope: Scope) -> list[IndexPart]:
    """A load map's part over a value's dim, as parts over tile dims."""
    atoms = layout.axes.dims[value][part.dim]
    if len(atoms) == 1:
        dim, div, mod = layout.index_parts(atoms[0], scope, part.div, part.mod)
        return [IndexPart(dim, part.step, div, mod)]
    if part.div != 1 or part.mod != 0:
        raise Refusal("a merged dim is divided and split again")
    out = []
    for k, a in enumerate(atoms):
        inner = product([layout.axes.atoms[x].size for x in atoms[k + 1 :]])
        dim, div, mod = layout.index_parts(a, scope)
        out.append(IndexPart(dim, part.step * inner, div, mod))
    return out


def collapse(parts: list[IndexPart], scope: Scope) -> list[IndexPart]:
    """Joins parts over one dim that together are one linear index: ``(i // n) * (c * n) + (i % n) * c`` is ``i * c``."""
    parts = [p for p in parts if p.coefficient != 0]
    changed = True
    while changed:
        changed = False
        for i, p in enumerate(parts):
            for j, q in enumerate(parts):
                if i == j or p.dim != q.dim or q.mod == 0:
                    continue
                if scope.equal(p.div, q.div * q.mod) and scope.equal(p.coefficient, q.coefficient * q.mod):
                    merged = IndexPart(p.dim, q.coefficient, q.div, p.mod * q.mod if p.mod != 0 else 0)
                    parts = [x for k, x in enumerate(parts) if k not in (i, j)] + [merged]
                    changed = True
                    break
            if changed:
                break
    return parts


def strides(shape: tuple[Dim, ...]) -> list[Dim]:
    """Row-major element strides."""
    return [product(shape[d + 1 :]) for d in range(len(shape))]


def plan(nodes: list[Node], axes: Axes, outputs: list[Value], scope: Scope) -> Layout:
    """The loops of a group that stores ``outputs``. Raises ``Refusal`` with the reason if it cannot be one kernel."""
    dots = [n for n in axes.computed if n.op == "dot"]
    atoms = axes.atoms
    stored_atoms = [axes.of(v) for v in outputs]
    parallel = {a for lst in stored_atoms for a in lst if not atoms[a].reduced}
    _same_domain(axes, outputs, parallel)
    primary = dots[-1].output if dots else max(outputs, key=lambda v: len(axes.of(v)))
    order = list(dict.fromkeys(axes.of(primary)))
    for value in outputs:
        order += [a for a in axes.of(value) if a not in order]
    order += [a.id for a in atoms if a.id not in order]

    loops: list[LoopAxis] = []
    loop_of: dict[int, int] = {}

    def add(members: list[int], stage: bool) -> None:
        if not members:
            return
        loop = LoopAxis(len(loops), tuple(members), product([atoms[a].size for a in members]), stage)
        loops.append(loop)
        for a in members:
            loop_of[a] = loop.id

    sequence = [a for a in order if a in parallel]
    if dots:
        _cube_loops(axes, dots, sequence, add)
    else:
        _vector_loops(axes, sequence, add)
    dynamic_stages = [a for a in order if atoms[a].reduced and not atoms[a].static]
    _stage_loops(axes, dynamic_stages, add)
    layout = Layout(axes, loops, loop_of, order)
    _limit_rows(layout, order, add, dots)
    _canonical(layout)
    for loop in loops:
        loop.inner = not loop.stage and any(loop.id not in map(loop_of.get, axes.of(v)) for v in outputs)
    for value, found in axes.loads.items():
        check_load(layout, value, found, scope)
    for dot in dots:
        product_roles(layout, dot)
    return layout


def _same_domain(axes: Axes, outputs: list[Value], parallel: Collection[int]) -> None:
    dynamic = {a for a in parallel if not axes.atoms[a].static}
    for value in outputs:
        missing = dynamic - set(axes.of(value))
        if missing:
            sizes = ", ".join(str(axes.atoms[a].size) for a in sorted(missing))
            raise Refusal(f"the results do not share one iteration space: %{value.name} does not vary over {sizes}")


def _vector_loops(axes: Axes, sequence: list[int], add: Add) -> None:
    atoms = axes.atoms
    dynamic = [i for i, a in enumerate(sequence) if not atoms[a].static]
    if not dynamic and len(atoms) <= MAX_TILE_RANK:
        rows = [a for a in sequence[:-1] if not atoms[a].local]
        if rows:
            add(rows, False)
        return
    rank = max((len(axes.of(v)) for v in axes.dims), default=0)
    surplus = len(atoms) - MAX_TILE_RANK if rank > MAX_TILE_RANK else 0  # dims that no tile has room for become one
    last = max([*dynamic[-1:], 0, surplus])
    rows = [a for a in sequence[: last + 1] if not atoms[a].local]
    if last == len(sequence) - 1 and len(rows) > 1:
        members = set(rows)
        uniform = all(len(members & {a for d in dims for a in d}) in (0, len(members)) for dims in axes.dims.values())
        if not uniform:
            add(rows[:-1], False)
            add(rows[-1:], False)
            return
    add(rows, False)


def _cube_loops(axes: Axes, dots: list[Node], sequence: list[int], add: Add) -> None:
    atoms = axes.atoms
    signature = {a: tuple(_role(axes, d, a) for d in dots) for a in sequence}
    i = 0
    while i < len(sequence):
        a = sequence[i]
        run = [a]
        while i + len(run) < len(sequence) and signature[sequence[i + len(run)]] == signature[a]:
            run.append(sequence[i + len(run)])
        i += len(run)
        dynamic = [k for k, x in enumerate(run) if not atoms[x].static]
        if dynamic:
            head = [x for x in run[: dynamic[-1] + 1] if not atoms[x].local]
            if "batch" in signature[a]:
                static = [x for x in head if atoms[x].static]
                add([x for x in head if not atoms[x].static], False)
                for x in static:
                    add([x], False)
            else:
                add(head, False)
            run = run[dynamic[-1] + 1 :]
        if "batch" in signature[a]:
            for x in run:
                if not atoms[x].local:
                    add([x], False)
        elif run and not atoms[run[0]].local and static_size(axes, run) > CUBE_SPAN:
            add([run[0]], False)


def _role(axes: Axes, dot: Node, atom: int) -> str:
    batch_of_a, _ = dot.attrs["batch"]
    a, b = dot.inputs
    in_a = [d for d, group in enumerate(axes.dims[a]) if atom in group]
    in_b = [d for d, group in enumerate(axes.dims[b]) if atom in group]
    if in_a and in_b:
        return "batch" if in_a[0] in batch_of_a else "contract"
    return "x" if in_a else "y" if in_b else ""


def static_size(axes: Axes, members: list[int]) -> int:
    """Elements over the atoms of static size."""
    n = 1
    for a in members:
        size = axes.atoms[a].size
        n *= size if isinstance(size, int) else 1
    return n


def _stage_loops(axes: Axes, dynamic: list[int], add: Add) -> None:
    if not dynamic:
        return
    members = set(dynamic)
    for dims in axes.dims.values():
        present = members & {a for d in dims for a in d}
        if present and present != members:
            raise Refusal("two different dynamic dims are reduced in one kernel")
    add(dynamic, True)


def _limit_rows(layout: Layout, order: list[int], add: Add, dots: list[Node]) -> None:
    """Turns whole atoms into loops until every value's whole dims fit a row; contractions get a loop of their own."""
    atoms = layout.axes.atoms
    whole_rows = _prologues(layout.axes, dots)
    for dot in dots:
        contracted = [
            a for d in dot.attrs["contract"][0] for a in layout.axes.dims[dot.inputs[0]][d] if a not in layout.loop_of
        ]
        if whole_rows & set(contracted):
            continue  # computed once for a block of rows, for all columns
        if contracted and static_size(layout.axes, contracted) > CUBE_SPAN:
            candidates = [a for a in contracted if not atoms[a].local]
            if candidates:
                add([candidates[0]], True)
    operands = dict.fromkeys(v for dot in dots for v in dot.inputs)
    loaded = [v for v in operands if whole_rows & set(layout.axes.of(v)) and v in layout.axes.loads]
    while True:
        worst, over = None, 1.0
        for value in layout.axes.dims:
            whole = [a for a in layout.axes.of(value) if a not in layout.loop_of]
            limit = ROW_BYTES
            if value in loaded:  # without a loop over its columns it stays in local memory beside the others
                limit = OPERAND_BYTES if len(whole) < len(layout.axes.of(value)) else OPERAND_BYTES // len(loaded)
            n = static_size(layout.axes, whole) * value.dtype.itemsize
            if n > limit * over:
                worst, over, size = value, n / limit, n
        if worst is None:
            return
        kept = whole_rows if worst in loaded else set()
        free = [a for a in layout.axes.of(worst) if a not in layout.loop_of and not atoms[a].local and a not in kept]
        if not free:
            raise Refusal(f"a row of %{worst.name} ({size} bytes) does not fit in local memory")
        largest = max(free, key=lambda a: (atoms[a].size if isinstance(atoms[a].size, int) else 0, -a))
        if worst in loaded:
            largest = free[0]  # a contiguous part of every row
        add([largest], atoms[largest].reduced)


def _prologues(axes: Axes, dots: list[Node]) -> set[int]:
    """Contracted indices of products whose operand this kernel computes, from anything but a product."""
    makers = {v: n for n in axes.computed for v in n.outputs}
    out: set[int] = set()
    for dot in dots:
        for side, value in enumerate(dot.inputs):
            if value in axes.loads:
                continue
            stack, seen = [value], set()
            while stack:
                node = makers.get(stack.pop())
                if node is not None and node not in seen:
                    seen.add(node)
                    stack += [v for v in node.inputs if v not in axes.loads]
            if not any(n.op == "dot" for n in seen):
                contracted = {a for d in dot.attrs["contract"][side] for a in axes.dims[value][d]}
                out |= {a for a in contracted if axes.atoms[a].static}
    return out


def _canonical(layout: Layout) -> None:
    """Parallel loops first in order, then everything else, in the primary order."""
    layout.rank_of = {a: k for k, a in enumerate(layout.order)}


def value_dims(layout: Layout, value: Value, axis: int) -> list[TileDim]:
    """Tile dims that carry one dim of a value."""
    out = []
    for a in layout.axes.dims[value][axis]:
        loop = layout.loop_of.get(a, -1)
        d = TileDim(loop, -1, layout.loops[loop].extent) if loop >= 0 else TileDim(-1, a, layout.axes.atoms[a].size)
        if d not in out:
            out.append(d)
    return out


BATCH, FREE, CONTRACT = range(3)  # roles of a product's dims


def product_roles(layout: Layout, dot: Node) -> tuple[list[tuple[TileDim, int]], list[tuple[TileDim, int]]]:
    """For both operands' tile dims, whether they are batch, free or contracted. Raises ``Refusal`` where loops mix roles."""
    sides = []
    for side in (0, 1):
        value = dot.inputs[side]
        contract, batch = dot.attrs["contract"][side], dot.attrs["batch"][side]
        of: dict[TileDim, int] = {}
        for axis in range(value.rank):
            role = CONTRACT if axis in contract else BATCH if axis in batch else FREE
            for d in value_dims(layout, value, axis):
                if of.setdefault(d, role) != role:
                    raise Refusal("a merged index has two roles in a product")
        sides.append([(d, of[d]) for d in layout.tile_dims(value)])
    x, y = sides
    for d, role in x:
        for e, other in y:
            if d == e and role != other:
                raise Refusal("a merged index has two roles in a product")
            if d == e and role == FREE:
                raise Refusal("both operands of a product vary freely over one index")
    dims = [d for d, r in x if r != CONTRACT] + [d for d, r in y if r == FREE]
    if set(dims) != set(layout.tile_dims(dot.output)):
        raise Refusal("a product's result does not vary over its operands' indices")
    return x, y


def check_load(layout: Layout, value: Value, found: LoadMap, scope: Scope) -> None:
    """Raises ``Refusal`` if a load's map cannot be expressed over the loops."""
    for pos in found.positions:
        for part in pos.parts:
            value_parts(layout, value, part, scope)
