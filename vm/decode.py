"""From words to a loop tree: what every executor, the verifier and the disassembler start from."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from vm import isa
from vm.errors import ProgramError
from vm.program import Patch, Reloc, Template


@dataclass(frozen=True)
class Hole:
    """A field whose value is only known when a launch is bound."""

    word: int
    lo: int
    width: int
    signed: bool


@dataclass(frozen=True)
class Address:
    """An address field that a relocation fills in: buffer number ``buffer`` of the step."""

    buffer: int
    word: int


Operand = int | Hole | Address


@dataclass(eq=False)
class Op:
    """A decoded instruction."""

    insn: isa.Insn
    at: int
    fields: dict[str, Operand]
    tail: list[dict[str, Operand]]

    def fixed(self, name: str) -> int:
        """A field that must not be a hole."""
        value = self.fields[name]
        if not isinstance(value, int):
            raise ProgramError(f"word {self.at}: field {name} of {self.insn.name} must be fixed")
        return value


@dataclass(eq=False)
class Loop:
    """A decoded loop with its body."""

    op: Op
    axis: int
    kind: isa.LoopKind
    extent: Operand
    body: list[Op | Loop]


@dataclass(frozen=True)
class Tile:
    """A declared tile. ``dims`` are (size, axis): with an axis, size is the most that a step of its loop covers.

    A tile may have several ``places``, one behind the other: an instruction that writes it without reading it moves on to the next one
    (the first writes the first, after the last comes the first), and those behind it in the program mean that place. So a load can fill
    one place while an earlier step still works on another.
    """

    id: int
    space: isa.Space
    address: int
    dtype: np.dtype
    dims: tuple[tuple[int, int], ...]
    places: int = 1

    @property
    def bytes(self) -> int:
        """Bytes of one place at the tile's largest extent."""
        return self.dtype.itemsize * math.prod(size for size, _ in self.dims)

    @property
    def stride(self) -> int:
        """Bytes from one place to the next."""
        return -(-self.bytes // isa.LOCAL_BLOCK) * isa.LOCAL_BLOCK

    @property
    def end(self) -> int:
        """The address behind the last place."""
        return self.address + (self.places - 1) * self.stride + self.bytes

    def at(self, place: int) -> Tile:
        """The tile at one of its places, as a tile of one."""
        return replace(self, address=self.address + place * self.stride, places=1)


@dataclass(eq=False)
class Kernel:
    """A decoded template."""

    tiles: dict[int, Tile]
    body: list[Op | Loop]
    mix: bool

    @property
    def in_16_bits(self) -> bool:
        """Whether it works on 16-bit elements."""
        return any(tile.dtype.itemsize == 2 for tile in self.tiles.values())


class _Holes:
    def __init__(self, patches: Sequence[Patch], relocs: Sequence[Reloc]):
        self.patches: dict[int, list[Patch]] = {}
        for p in patches:
            self.patches.setdefault(p.word, []).append(p)
        self.relocs = {r.word: r.buffer for r in relocs}

    def read(self, words: np.ndarray, base: int, field: isa.Field) -> Operand:
        word = base + field.word
        if field.kind == "address":
            if word not in self.relocs:
                raise ProgramError(f"word {word}: the address has no relocation")
            return Address(self.relocs[word], word)
        for p in self.patches.get(word, ()):
            if p.lo == field.lo and p.width == field.width:
                return Hole(word, p.lo, p.width, field.signed)
            if p.lo < field.lo + field.width and field.lo < p.lo + p.width:
                raise ProgramError(f"word {word}: a patch covers field {field.name} in part")
        return isa.get(words, base, field)


def _op(words: np.ndarray, at: int, holes: _Holes) -> Op:
    insn = isa.BY_ID.get(isa.get(words, at, isa.HEAD_ID))
    if insn is None:
        raise ProgramError(f"word {at}: unknown instruction {isa.get(words, at, isa.HEAD_ID)}")
    n_tail, length = isa.get(words, at, isa.HEAD_TAIL), isa.get(words, at, isa.HEAD_LEN)
    if length != insn.fixed_words + n_tail * insn.tail_words or (n_tail and not insn.tail):
        raise ProgramError(f"word {at}: {insn.name} has a wrong length")
    if at + length >= len(words):
        raise ProgramError(f"word {at}: {insn.name} runs past the end")
    if 0 in {p.word - at for p in holes.patches.get(at, ())}:
        raise ProgramError(f"word {at}: an instruction head cannot be patched")
    fields = {f.name: holes.read(words, at, f) for f in insn.fields}
    tail = []
    for i in range(n_tail):
        base = at + insn.fixed_words + i * insn.tail_words
        tail.append({f.name: holes.read(words, base, f) for f in insn.tail})
    return Op(insn, at, fields, tail)


def _declare(op: Op, tiles: dict[int, Tile]) -> None:
    number, dtype, space = op.fixed("id"), op.fixed("dtype"), op.fixed("space")
    if number in tiles:
        raise ProgramError(f"word {op.at}: tile {number} is declared twice")
    if dtype >= len(isa.DTYPES) or space >= len(isa.Space) or len(op.tail) > isa.MAX_RANK:
        raise ProgramError(f"word {op.at}: tile {number} is malformed")
    dims = []
    for item in op.tail:
        size, axis = item["size"], item["axis"]
        if not isinstance(size, int) or not isinstance(axis, int):
            raise ProgramError(f"word {op.at}: dims of tile {number} must be fixed")
        dims.append((size, axis))
    address, places = op.fixed("address"), 1 + op.fixed("more")
    tiles[number] = Tile(number, isa.Space(space), address, isa.DTYPES[dtype], tuple(dims), places)


def decode(template: Template) -> Kernel:
    """The loop tree of a template. Raises ``ProgramError`` where the words are not a well-formed program."""
    words = template.words
    holes = _Holes(template.patches, template.relocs)
    if len(words) < isa.HEAD_WORDS + 1 or isa.get(words, 0, isa.ENTRY_WORDS) != len(words) or words[-1]:
        raise ProgramError("template: entry word and length disagree, or the terminator is missing")
    tiles: dict[int, Tile] = {}
    stack: list[list[Op | Loop]] = [[]]
    open_axes: list[int] = []  # those that tiles can move with
    opened: list[tuple[int, bool]] = []  # axis, whether it is one of them
    at = isa.HEAD_WORDS
    while words[at]:
        op = _op(words, at, holes)
        at += isa.get(words, at, isa.HEAD_LEN)
        if op.insn.name == "tile":
            _declare(op, tiles)
        elif op.insn.name == "loop":
            axis, kind = op.fixed("axis"), op.fixed("kind")
            own = kind >= len(isa.LoopKind) or not isa.LoopKind(kind).divides
            taken = axis in open_axes or (not own and (axis, False) in opened)
            if taken or axis >= isa.MAX_AXES or kind >= len(isa.LoopKind):
                raise ProgramError(f"word {op.at}: loop over axis {axis} is malformed")
            opened.append((axis, own))
            loop = Loop(op, axis, isa.LoopKind(kind), op.fields["extent"], [])
            stack[-1].append(loop)
            stack.append(loop.body)
            if own:
                open_axes.append(axis)
        elif op.insn.name == "endloop":
            if not opened or opened[-1][0] != op.fixed("axis"):
                raise ProgramError(f"word {op.at}: endloop does not match its loop")
            if opened.pop()[1]:
                open_axes.pop()
            stack.pop()
        else:
            _check_operands(op, tiles, open_axes)
            stack[-1].append(op)
        if at >= len(words):
            raise ProgramError("template: no terminator")
    if opened or at != len(words) - 1:
        raise ProgramError("template: open loop or words after the terminator")
    return Kernel(tiles, stack[0], bool(isa.get(words, 0, isa.ENTRY_MIX)))


def _check_operands(op: Op, tiles: dict[int, Tile], axes: list[int]) -> None:
    for fields, specs in ((op.fields, op.insn.fields), *((item, op.insn.tail) for item in op.tail)):
        for spec in specs:
            if spec.kind != "tile" or (spec.name == "index" and not fields["gather"]):
                continue
            number = fields[spec.name]
            if spec.name == "y" and "carry" in fields and not fields["carry"]:
                continue
            if not isinstance(number, int) or number not in tiles:
                raise ProgramError(f"word {op.at}: {op.insn.name} uses tile {number}, which is not declared")
            for _, axis in tiles[number].dims:
                if axis != isa.NO_AXIS and axis not in axes:
                    raise ProgramError(f"word {op.at}: {op.insn.name} uses axis {axis} outside its loop")


def unordered(kernel: Kernel) -> Kernel:
    """The kernel without its ORDER and SPLIT loops, for executors that choose their own order."""

    def flat(body: Sequence[Op | Loop]) -> list[Op | Loop]:
        out: list[Op | Loop] = []
        for item in body:
            if not isinstance(item, Loop):
                out.append(item)
            elif item.kind.divides:
                out += flat(item.body)
            else:
                out.append(replace(item, body=flat(item.body)))
        return out

    return replace(kernel, body=flat(kernel.body))


def operations(body: Sequence[Op | Loop]) -> Iterator[Op]:
    """All instructions of a loop tree, in order."""
    for item in body:
        if isinstance(item, Loop):
            yield from operations(item.body)
        else:
            yield item


def stored_buffers(kernel: Kernel) -> list[int]:
    """The step's buffers that the kernel stores into."""
    found: dict[int, None] = {}
    for op in operations(kernel.body):
        address = op.fields.get("address")
        if op.insn.name == "store" and isinstance(address, Address):
            found[address.buffer] = None
    return list(found)
