"""What the executors could not run safely is refused here, before anything runs.

``verify`` looks at a program as it is in a file: every template is decoded and every instruction's operands are checked against what the
instruction means. ``BoundCheck`` looks at one binding: loops, and with interval arithmetic every access to global memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from vm import isa, stacking, verifier_adds, verifier_choices, verifier_order, verifier_types
from vm.binder import BoundProgram
from vm.chip import Chip
from vm.decode import Address, Kernel, Loop, Op, decode, operations, stored_buffers
from vm.disassembler import kernel_steps
from vm.dtypes import dtype_of, item_size
from vm.errors import DvmError, Hazard, ProgramError
from vm.program import WRITABLE, ForStep, HostStep, KernelStep, Program, Step, Template, inner_blocks
from vm.program.stages import run_together, stages

ALIGNMENT = isa.LOCAL_BLOCK  # bytes, of tiles in local memory
MAX_STEPS = 1 << 28  # of all loops of a kernel together


def verify(program: Program) -> None:
    """Raises ``ProgramError`` unless every kernel of ``program`` is well formed; sizes are another matter (``BoundCheck``)."""
    try:
        chip = Chip.load(program.chip)
    except DvmError as error:
        raise ProgramError(str(error)) from error
    kernels: dict[int, Kernel] = {}
    for number, step in enumerate(kernel_steps(program.steps)):
        where = f"kernel {number}{f' ({step.name})' if step.name else ''}"
        try:
            if step.template not in kernels:
                kernels[step.template] = verify_template(program.templates[step.template], chip)
            _buffers(kernels[step.template], program, step.buffers)
        except Hazard:
            raise
        except ProgramError as error:
            raise ProgramError(f"{where}: {error}") from error
    verifier_adds.check_begun(program, kernels)
    verifier_choices.check(program, kernels)
    stacking.check_independence(program)


def verify_template(template: Template, chip: Chip) -> Kernel:
    """The decoded template, if it is well formed."""
    kernel = decode(template)
    _known_bits(template)
    capacity = {
        isa.Space.UB: chip.ub_bytes - chip.ub_reserved_bytes,
        isa.Space.L1: chip.l1_bytes,
        isa.Space.L0C: chip.l0c_bytes,
    }
    for tile in kernel.tiles.values():
        end = tile.end
        if tile.address % ALIGNMENT or end > capacity[tile.space]:
            raise ProgramError(
                f"tile {tile.id} covers bytes {tile.address} to {end} of {tile.space.name}, which has {capacity[tile.space]} and "
                f"wants multiples of {ALIGNMENT}"
            )
    _loops(kernel, kernel.body, {})
    for op in operations(kernel.body):
        verifier_types.check(op, kernel.tiles)
        _sync(op, template.words)
    verifier_adds.added(kernel)
    verifier_adds.check(kernel)
    _Definitions(kernel).run()
    verifier_order.check(kernel, template, chip)
    return kernel


def _known_bits(template: Template) -> None:
    """No bit is set that no field covers."""
    words, at = template.words, isa.HEAD_WORDS
    entry = _mask((isa.ENTRY_TYPE, isa.ENTRY_MIX, isa.ENTRY_WORDS, isa.ENTRY_BLOCKS), 1)
    if int(words[0]) or int(words[1]) & ~entry or isa.get(words, 0, isa.ENTRY_TYPE):
        raise ProgramError("the head of the kernel has bits that mean nothing")
    while words[at]:
        insn = isa.BY_ID[isa.get(words, at, isa.HEAD_ID)]
        for i in range(isa.get(words, at, isa.HEAD_LEN)):
            inside = i - insn.fixed_words
            mask = _MASKS[insn.id][i] if inside < 0 else _TAIL_MASKS[insn.id][inside % insn.tail_words]
            if int(words[at + i]) & ~mask:
                raise ProgramError(f"word {at + i}: {insn.name} has bits set that no field covers")
        at += isa.get(words, at, isa.HEAD_LEN)


def _mask(fields: tuple[isa.Field, ...], word: int) -> int:
    return sum(((1 << f.width) - 1) << f.lo for f in fields if f.word == word)


def _head(insn: isa.Insn) -> tuple[isa.Field, ...]:
    """The fields of a head; what runs on no queue has no events in it."""
    sync = () if insn.family in ("control", "sync") else isa.SYNC
    return (isa.HEAD_ID, isa.HEAD_LEN, isa.HEAD_TAIL, *sync)


_MASKS = {i.id: [_mask((*_head(i), *i.fields), w) for w in range(i.fixed_words)] for i in isa.BY_ID.values()}
_TAIL_MASKS = {i.id: [_mask(i.tail, w) for w in range(i.tail_words)] for i in isa.BY_ID.values()}


def _loops(kernel: Kernel, body: list[Op | Loop], seen: dict[int, int], inside: bool = False) -> None:
    """Tiles of an axis hold what a step of its loops covers."""
    for item in body:
        if isinstance(item, Loop) and item.kind == isa.LoopKind.ORDER:
            if inside:
                raise ProgramError(f"word {item.op.at}: an ORDER loop cannot stand in another kind of loop")
            _ordered(item)
            _loops(kernel, item.body, seen)
        elif isinstance(item, Loop) and item.kind == isa.LoopKind.SPLIT:
            _loops(kernel, item.body, seen, True)
        elif isinstance(item, Loop):
            tile = step_of(kernel, item)
            if tile < 1 or seen.setdefault(item.axis, tile) != tile:
                raise ProgramError(
                    f"word {item.op.at}: a loop over axis {item.axis} has steps of {tile}, not {seen.get(item.axis, 1)}"
                )
            for declared in kernel.tiles.values():
                if any(axis == item.axis and size != tile for size, axis in declared.dims):
                    raise ProgramError(
                        f"word {item.op.at}: tile {declared.id} does not hold a step of {tile} along axis {item.axis}"
                    )
            _loops(kernel, item.body, seen, True)


def step_of(kernel: Kernel, loop: Loop) -> int:
    """The most elements that a step of a loop covers: what its words say or, for a parallel loop whose step is bound, what tiles hold."""
    if isinstance(loop.op.fields["tile"], int) or loop.kind != isa.LoopKind.PARALLEL:
        return loop.op.fixed("tile")
    return max((size for tile in kernel.tiles.values() for size, axis in tile.dims if axis == loop.axis), default=1)


def _ordered(loop: Loop) -> None:
    """An ORDER loop changes nothing but the order: in it is one nest of parallel loops, one over its axis around all that is done."""
    if len(loop.body) != 1 or not isinstance(loop.body[0], Loop):
        raise ProgramError(f"word {loop.op.at}: an ORDER loop wants one loop inside and nothing else")

    def visit(body: list[Op | Loop], within: bool) -> None:
        for item in body:
            if isinstance(item, Loop):
                order = item.kind == isa.LoopKind.ORDER
                if (order and (within or body is not loop.body)) or (not order and not within and not _parallel(item)):
                    raise ProgramError(
                        f"word {item.op.at}: this loop cannot stand in the ORDER loop over axis {loop.axis}"
                    )
                visit(item.body, within or (not order and item.axis == loop.axis))
            elif not within and item.insn.family != "sync":
                raise ProgramError(
                    f"word {item.at}: {item.insn.name} stands in no loop over axis {loop.axis}, which is ordered"
                )

    visit(loop.body, False)


def _parallel(loop: Loop) -> bool:
    return loop.kind == isa.LoopKind.PARALLEL


def _sync(op: Op, words: np.ndarray) -> None:
    """Every pipe that a sync field names exists."""
    pipes = [isa.get(words, op.at, f) for f in isa.SYNC if f.name.endswith("_pipe")]
    if op.insn.family == "sync":
        pipes = [op.fixed(f.name) for f in op.insn.fields if f.name in ("pipe", "other")]
        if op.insn.name != "barrier" and 0 in pipes:
            raise ProgramError(f"word {op.at}: {op.insn.name} wants a pipe other than S")
    if max(pipes) >= len(isa.Pipe):
        raise ProgramError(f"word {op.at}: there is no pipe {max(pipes)}")


class _Definitions:
    """Every tile is written before it is read, and not overwritten in between; iterations of parallel loops are independent."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        tiles = list(kernel.tiles.values())
        self.overlaps: dict[int, list[int]] = {
            t.id: [
                u.id for u in tiles if u.id != t.id and u.space == t.space and u.address < t.end and t.address < u.end
            ]
            for t in tiles
        }

    def run(self) -> None:
        self.block(self.kernel.body, set())

    def block(self, body: list[Op | Loop], defined: set[int]) -> None:
        """Walks a body; ``defined`` are the tiles that hold something and becomes what they are behind it."""
        for item in body:
            if isinstance(item, Loop):
                if item.kind != isa.LoopKind.REDUCE:
                    self._independent(item)
                before = set(defined)
                for _ in range(2):  # the second iteration sees what the first one destroyed
                    self.block(item.body, defined)
                    defined &= before  # what an iteration defines is its own
                defined -= self._overwritten(item)
                continue
            for number in isa.tiles_read(item.insn, item.fields, item.tail):
                if number not in defined:
                    what = "which nothing has written or another tile has overwritten"
                    raise ProgramError(f"word {item.at}: {item.insn.name} reads tile {number}, {what}")
            for number in isa.tiles_written(item.insn, item.fields):
                defined.difference_update(self.overlaps[number])
                defined.add(number)

    def _overwritten(self, loop: Loop) -> set[int]:
        """Tiles that every iteration writes anew: what they hold behind the loop would depend on its last step, if there was one."""
        written, exposed = self._uses(loop)
        return written - set(exposed)

    def _uses(self, loop: Loop) -> tuple[set[int], dict[int, int]]:
        """Tiles that an iteration writes, and those that it reads before it writes them, with the word where."""
        written: set[int] = set()
        exposed: dict[int, int] = {}
        for op in operations(loop.body):
            for number in isa.tiles_read(op.insn, op.fields, op.tail):
                if number not in written:
                    exposed.setdefault(number, op.at)
            written.update(isa.tiles_written(op.insn, op.fields))
        return written, exposed

    def _independent(self, loop: Loop) -> None:
        written, exposed = self._uses(loop)
        for number, at in exposed.items():
            if number in written:
                what = f"an iteration of the parallel loop over axis {loop.axis} reads tile {number} from another one"
                raise ProgramError(f"word {at}: {what}")


def _buffers(kernel: Kernel, program: Program, buffers: tuple[int, ...]) -> None:
    """Loads and stores agree with the buffers of a step, and what is added to is not touched under another name."""
    roots = [b if program.buffers[b].alias is None else program.buffers[b].alias for b in buffers]
    for k in verifier_adds.added(kernel):
        if roots.count(roots[k]) > 1:
            raise ProgramError(f"a kernel adds to buffer {buffers[k]} and uses its memory as another one as well")
    for op in operations(kernel.body):
        address = op.fields.get("address")
        if not isinstance(address, Address):
            continue
        buffer = program.buffers[buffers[address.buffer]]
        tile = kernel.tiles[op.fixed("dst" if op.insn.name == "load" else "x")]
        if dtype_of(buffer.dtype) != tile.dtype:
            raise ProgramError(f"word {op.at}: {op.insn.name} of {tile.dtype} in a buffer of {buffer.dtype}")
        if op.insn.name == "store" and buffer.space not in WRITABLE:
            raise ProgramError(f"word {op.at}: a store to read-only buffer {buffers[address.buffer]}")


class BoundCheck:
    """Checks of bindings of one verified program. Everything that does not depend on sizes is laid out here, once."""

    def __init__(self, program: Program) -> None:
        self.program = program
        steps = list(kernel_steps(program.steps))
        kernels = {t: decode(program.templates[t]) for t in sorted({s.template for s in steps})}
        # word, word of its loop (-1: none), size, bounded, gather, dim
        self.terms: list[tuple[int, int, int, int, int, int]] = []
        self.groups: list[int] = []  # first term
        self.accesses: list[
            tuple[int, int, int, int, int]
        ] = []  # first group, word of the offset, register of elements, kernel, word
        self.sizes: list[tuple[int, int, int]] = []  # access, word of a loop (-1), size: of every tile dim
        self.loops: list[
            tuple[int, int, int, int, int]
        ] = []  # word, nest, kernel, word of its ORDER loop (or its own), largest step
        self.nests: list[int] = []
        self.stores: list[int] = []  # accesses
        base = 0
        for number, step in enumerate(steps):
            kernel = kernels[step.template]
            extents: dict[int, int] = {}
            self._walk(kernel, kernel.body, base, number, step.buffers, extents, (), {})
            base += len(program.templates[step.template].words)
        self.repeated = list(_repeated(program.steps))
        self.side_by_side = _side_by_side(program, kernels)
        self.added = _added(steps, program, kernels)
        self._freeze()

    def _walk(
        self, kernel: Kernel, body: list[Op | Loop], base: int, number: int, buffers: tuple[int, ...], extents: dict[int, int],
        nest: tuple[tuple[int, int, int], ...], ordered: dict[int, int],
    ) -> None:  # fmt: skip
        for item in body:
            if isinstance(item, Loop):
                word, order = base + item.op.at, item.kind.divides
                most = (1 << 24) - 1 if order else step_of(kernel, item)
                inner = (*nest, (word, ordered.get(item.axis, word), most))
                if not any(isinstance(x, Loop) for x in item.body):
                    self.nests.append(len(self.loops))
                    self.loops += [(own, len(self.nests) - 1, number, outer, top) for own, outer, top in inner]
                within = {**ordered, item.axis: word} if order else ordered
                self._walk(kernel, item.body, base, number, buffers, {**extents, item.axis: word}, inner, within)
            elif "address" in item.fields:
                self._access(kernel, item, base, number, buffers, extents)

    def _access(
        self, kernel: Kernel, op: Op, base: int, number: int, buffers: tuple[int, ...], extents: dict[int, int]
    ) -> None:
        address = op.fields["address"]
        assert isinstance(address, Address)
        tile = kernel.tiles[op.fixed("dst" if op.insn.name == "load" else "x")]
        if op.insn.name == "store":
            self.stores.append(len(self.accesses))
        places = [(extents[axis], 0) if axis != isa.NO_AXIS else (-1, size) for size, axis in tile.dims]
        offset = base + op.at + next(f.word for f in op.insn.fields if f.name == "offset")
        if not op.tail:
            self.groups.append(len(self.terms))
            self.terms.append((-1, -1, 1, 0, 0, isa.NO_DIM))
        first = len(self.groups) - (not op.tail)
        self.accesses.append((first, offset, self.program.buffers[buffers[address.buffer]].elements, number, op.at))
        self.sizes += [(len(self.accesses) - 1, loop, size) for loop, size in places]
        begins = True
        for i, t in enumerate(op.tail):
            if begins:
                self.groups.append(len(self.terms))
            dim = t["dim"]
            assert isinstance(dim, int)
            loop, size = (-1, 1) if t["gather"] or dim == isa.NO_DIM else places[dim]
            word = base + op.at + op.insn.fixed_words + i * op.insn.tail_words
            self.terms.append((word, loop, size, int(bool(t["bounded"])), int(bool(t["gather"])), dim))
            begins = not t["chain"]

    def _freeze(self) -> None:
        def columns(rows: list[tuple[int, ...]], n: int) -> list[np.ndarray]:
            return [np.array(c, np.intp) for c in (zip(*rows, strict=True) if rows else [()] * n)]

        self._word, self._loop, self._size, bounded, gather, _ = columns(self.terms, 6)  # type: ignore[arg-type]
        self._group = np.array(self.groups, np.intp)
        self._first, self._offset, self._elements, self._kernel, self._at = columns(self.accesses, 5)  # type: ignore[arg-type]
        ends = np.append(self._group[1:], len(self.terms)) - 1
        self._last = ends  # a group's last term holds start, stride and hi
        self._bounded = (
            np.logical_or.reduceat(bounded.astype(bool), self._group) if len(self.groups) else np.zeros(0, bool)
        )
        self._gather = gather.astype(bool)
        self._clips = (
            self._bounded | np.logical_or.reduceat(self._gather, self._group) if len(self.groups) else self._bounded
        )
        self._size_access, self._size_loop, self._size_fixed = columns(self.sizes, 3)  # type: ignore[arg-type]
        self._loop_word, _, self._loop_kernel, self._loop_outer, self._loop_most = columns(self.loops, 5)  # type: ignore[arg-type]
        self._nest = np.array(self.nests, np.intp)

    def __call__(self, bound: BoundProgram) -> None:
        """Raises ``ProgramError`` if a loop's numbers disagree, if loops take too many steps, or if an access may leave its buffer."""
        words = bound.words
        resting = bound.unbound.union(*(kernels for count, kernels in self.repeated if bound.regs[count] <= 0))
        if len(self.loops):
            self._check_loops(words, resting)
        if len(self.accesses):
            bad = self._outside(words, bound, resting)
            for i in bad.tolist():
                self._exact(i, bound)
            for i in self.stores:
                if int(self._kernel[i]) not in resting:
                    self._once(i, words)

        self._check_stages(bound)
        for kernel, written, other in self.added:
            if kernel not in bound.skipped and bound.region(written).overlaps(bound.region(other)):
                raise ProgramError(
                    f"kernel {kernel} adds to buffer {written}, whose memory overlaps buffer {other}, which it uses too"
                )

    def _check_stages(self, bound: BoundProgram) -> None:
        """Nothing that a kernel of a stage writes overlaps what another one of it uses."""
        for stage, written, other, *kernels in self.side_by_side:
            if bound.skipped.isdisjoint(kernels) and bound.region(written).overlaps(bound.region(other)):
                raise ProgramError(
                    f"stage {stage}: kernels run side by side, but one writes buffer {written}, whose memory overlaps buffer {other} of "
                    f"another one"
                )

    def _check_loops(self, words: np.ndarray, unbound: frozenset[int]) -> None:
        first, extent = words[self._loop_word + 1], words[self._loop_word + 2] & np.uint64((1 << 40) - 1)
        tile, trips = first >> np.uint64(8) & np.uint64((1 << 24) - 1), first >> np.uint64(32)
        outer = words[self._loop_outer + 1] >> np.uint64(8) & np.uint64((1 << 24) - 1)
        ordered = self._loop_outer != self._loop_word
        covered = np.where(ordered, np.minimum(extent, outer), extent)
        wrong = trips != (covered + tile - np.uint64(1)) // np.maximum(tile, np.uint64(1))
        wrong |= (tile < 1) | (tile > self._loop_most.astype(np.uint64))
        wrong |= ordered & (words[self._loop_outer + 2] & np.uint64((1 << 40) - 1) != extent)
        if unbound:
            wrong &= ~np.isin(self._loop_kernel, list(unbound))
        steps = np.multiply.reduceat(trips.astype(np.float64), self._nest)
        if wrong.any():
            i = int(wrong.argmax())
            raise ProgramError(
                f"kernel {self._loop_kernel[i]}: {trips[i]} steps of {tile[i]} do not make a loop of {extent[i]} elements"
            )
        if steps.sum() > MAX_STEPS:
            i = int(self._nest[int(steps.argmax())])
            raise ProgramError(f"kernel {self._loop_kernel[i]} takes {steps.max():.3g} steps, more than {MAX_STEPS}")

    def _extent(self, words: np.ndarray, loop: np.ndarray, fixed: np.ndarray) -> np.ndarray:
        found = (words[np.maximum(loop, 0) + 2] & np.uint64((1 << 40) - 1)).astype(np.float64)
        return np.where(loop >= 0, found, fixed)

    def _outside(self, words: np.ndarray, bound: BoundProgram, resting: frozenset[int]) -> np.ndarray:
        """The accesses that may leave their buffers, those of ``resting`` kernels aside. Floats: what wraps must not look small."""
        word = np.maximum(self._word, 0)
        real = self._word >= 0
        signed = words.view(np.int64)
        step = np.where(real, signed[word + 1], 0).astype(np.float64)
        split = words[word + 2]
        div = np.maximum(split & np.uint64((1 << 32) - 1), np.uint64(1)).astype(np.float64)
        mod = (split >> np.uint64(32)).astype(np.float64)
        top = np.floor(np.maximum(self._extent(words, self._loop, self._size) - 1, 0) / div)
        reach = step * np.where(mod > 0, np.minimum(top, mod - 1), top)
        low, high = np.minimum(reach, 0), np.maximum(reach, 0)
        low[self._gather], high[self._gather] = -1e300, 1e300
        last = word[self._last]
        known = real[self._last]
        start, stride, hi = (np.where(known, signed[last + k], 0).astype(np.float64) for k in (3, 4, 5))
        low = np.add.reduceat(low, self._group) + start
        high = np.add.reduceat(high, self._group) + start
        empty = self._bounded & ((high < 0) | (low >= hi) | (hi <= 0))
        limit = np.maximum(hi - 1, 0)
        low = np.where(self._clips, np.clip(low, 0, limit), low) * stride
        high = np.where(self._clips, np.clip(high, 0, limit), high) * stride
        offset = signed[self._offset].astype(np.float64)
        least = np.add.reduceat(np.minimum(low, high), self._first) + offset
        most = np.add.reduceat(np.maximum(low, high), self._first) + offset
        nothing = np.logical_or.reduceat(empty, self._first)
        sizes = self._extent(words, self._size_loop, self._size_fixed)
        np.logical_or.at(nothing, self._size_access, sizes == 0)
        elements = np.array([bound.regs[r] for r in self._elements.tolist()], np.float64)
        bad = ((least < 0) | (most >= elements)) & ~nothing
        if resting:  # they do not run, or are checked when their sizes are known
            bad &= ~np.isin(self._kernel, list(resting))
        return np.flatnonzero(bad)

    def _once(self, i: int, words: np.ndarray) -> None:
        """A store writes no element twice: taken from the smallest step up, every dim steps over all that the dims before it reach."""
        begin = self._group[self._first[i]]
        end = self._group[self._first[i + 1]] if i + 1 < len(self._first) else len(self.terms)
        shared: dict[int, list[tuple[int, int, int, int]]] = {}
        stride, sizes = 0, {d: self._size_of(words, *place) for d, place in enumerate(self._dims(i))}
        for word, _, _, _, gather, dim in reversed(self.terms[begin:end]):
            if word < 0 or gather or dim == isa.NO_DIM:
                continue
            field = {name: isa.get(words, word, _TERM[name]) for name in ("step", "div", "mod", "stride", "chain")}
            stride = stride if field["chain"] else field["stride"]
            use = (field["step"] * stride, max(field["div"], 1), field["mod"], sizes[dim])
            shared.setdefault(dim, []).append(use)
        if 0 in sizes.values():
            return
        steps = sorted(digit for d, n in sizes.items() if n > 1 for digit in _digits(shared.get(d, []), n))
        reached = 0
        for step, span in steps:
            if step <= reached:
                raise ProgramError(f"kernel {self._kernel[i]}, word {self._at[i]}: a store may write an element twice")
            reached += span

    def _dims(self, i: int) -> list[tuple[int, int]]:
        return [(loop, size) for access, loop, size in self.sizes if access == i]

    def _size_of(self, words: np.ndarray, loop: int, size: int) -> int:
        return isa.get(words, loop, _EXTENT) if loop >= 0 else size

    def _exact(self, i: int, bound: BoundProgram) -> None:
        """The access again: where several terms share a dim, its indices are enumerated instead of adding the terms' ranges."""
        words = bound.words

        def field(word: int, name: str) -> int:
            return isa.get(words, word, _TERM[name])

        elements = bound.regs[int(self._elements[i])]
        least = most = int(words[self._offset[i]].view(np.int64))
        shared: dict[int, list[tuple[int, int, int, int]]] = {}  # dim -> coefficient, div, mod, size
        groups = self._group[self._first[i] : self._first[i + 1] if i + 1 < len(self._first) else None].tolist()
        for first in groups:
            last = first
            while self.terms[last][0] >= 0 and field(self.terms[last][0], "chain"):
                last += 1
            if self.terms[last][0] < 0:
                continue
            start, stride, hi = (field(self.terms[last][0], name) for name in ("start", "stride", "hi"))
            parts = []
            for word, loop, fixed, _, gather, dim in self.terms[first : last + 1]:
                size = isa.get(words, loop, _EXTENT) if loop >= 0 else fixed
                parts.append((field(word, "step"), max(field(word, "div"), 1), field(word, "mod"), size, dim, gather))
            if any(part[5] for part in parts) or any(t[3] for t in self.terms[first : last + 1]):
                reach = [step * _top(div, mod, size) for step, div, mod, size, _, gather in parts if not gather]
                low, high = start + sum(min(r, 0) for r in reach), start + sum(max(r, 0) for r in reach)
                if any(part[5] for part in parts):
                    low, high = 0, max(hi - 1, 0)
                ends = [min(max(pos, 0), max(hi - 1, 0)) * stride for pos in (low, high)]
                least, most = least + min(ends), most + max(ends)
                continue
            least, most = least + start * stride, most + start * stride
            for step, div, mod, size, dim, _ in parts:
                shared.setdefault(dim, []).append((step * stride, div, mod, size))
        for uses in shared.values():
            low, high = _reach(uses)
            least, most = least + low, most + high
        if least < 0 or most >= elements:
            raise ProgramError(
                f"kernel {self._kernel[i]}, word {self._at[i]}: accesses elements {least} to {most} of a buffer of {elements}"
            )


def _repeated(steps: Iterable[Step], first: int = 0) -> Iterator[tuple[int, frozenset[int]]]:
    """For every counted loop the register of its count, and its kernels, which rest where that is 0. ``first`` is the first kernel."""
    for step in steps:
        end = first + len(list(kernel_steps([step])))
        if isinstance(step, ForStep):
            yield step.count, frozenset(range(first, end))
        for block in () if isinstance(step, KernelStep | HostStep) else inner_blocks(step):
            yield from _repeated(block, first)
            first += len(list(kernel_steps(block)))
        first = end


def _added(steps: list[KernelStep], program: Program, kernels: dict[int, Kernel]) -> list[tuple[int, int, int]]:
    """(kernel, a buffer that it adds to, another one that it uses), where both are in one arena."""
    out: list[tuple[int, int, int]] = []
    for number, step in enumerate(steps):
        for k in verifier_adds.added(kernels[step.template]):
            own = program.buffers[step.buffers[k]]
            for u in dict.fromkeys(step.buffers):
                other = program.buffers[u]
                same = (own.space, item_size(own.dtype)) == (other.space, item_size(other.dtype))
                if u != step.buffers[k] and same:
                    out.append((number, step.buffers[k], u))
    return out


def _side_by_side(program: Program, kernels: dict[int, Kernel]) -> list[tuple[int, int, int, int, int]]:
    """(stage, a buffer that one of its kernels writes, a buffer that another one uses, these kernels), where both are in one arena and
    the kernels can run together."""
    out: dict[tuple[int, int, int, int, int], None] = {}
    first = 0
    for number, stage in enumerate(stages(program)):
        for i, a in enumerate(stage) if len(stage) > 1 else ():
            for k in stored_buffers(kernels[a.template]):
                w = a.buffers[k]
                arena = (program.buffers[w].space, item_size(program.buffers[w].dtype))
                for j, b in enumerate(stage):
                    for u in b.buffers if i != j and run_together(a, b) else ():
                        if (program.buffers[u].space, item_size(program.buffers[u].dtype)) == arena:
                            out[number, w, u, first + i, first + j] = None
        first += len(stage)
    return list(out)


_TERM = {f.name: f for f in isa.TERM}
_EXTENT = next(f for f in isa.TABLE["loop"].fields if f.name == "extent")
_ENUMERATED = 1 << 24  # indices of one dim; beyond that a range must do


def _digits(uses: list[tuple[int, int, int, int]], n: int) -> list[tuple[int, int]]:
    """The terms (coefficient, div, mod, size) of a dim as digits of its index: (step, span) each. A step of 0 if two indices below ``n``
    have the same digits."""
    out: list[tuple[int, int]] = []
    weight = 1
    for c, div, mod, _ in sorted(
        uses, key=lambda use: (use[1], use[2] == 0, use[2])
    ):  # i % 1 says nothing, before all of i
        if div != weight or not weight:
            return [(0, 0)]
        top = _top(div, mod, n)
        if top:  # a digit that is always 0 adds nothing
            out.append((abs(c), abs(c) * top))
        weight = div * mod
    return out if not weight or weight >= n else [(0, 0)]


def _positions(uses: list[tuple[int, int, int, int]], n: int) -> np.ndarray:
    i = np.arange(n, dtype=np.int64)
    total = np.zeros_like(i)
    for c, div, mod, _ in uses:
        part = i // div
        total += c * (part % mod if mod else part)
    return total


def _top(div: int, mod: int, size: int) -> int:
    """The largest value of (i // div) % mod for i below ``size``."""
    top = max(size - 1, 0) // div
    return min(top, mod - 1) if mod else top


def _reach(uses: list[tuple[int, int, int, int]]) -> tuple[int, int]:
    """The range of the sum of several terms of one dim: (coefficient, div, mod, size) each."""
    size = uses[0][3]
    large = any(abs(c) * max(size, 1) >= 1 << 60 for c, _, _, _ in uses)
    if len(uses) == 1 or size > _ENUMERATED or large:
        reach = [c * _top(div, mod, size) for c, div, mod, _ in uses]
        return sum(min(r, 0) for r in reach), sum(max(r, 0) for r in reach)
    total = _positions(uses, max(size, 1))
    return int(total.min()), int(total.max())


__all__ = ["BoundCheck", "verify", "verify_template"]
