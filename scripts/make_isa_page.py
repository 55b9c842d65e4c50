"""Writes ``docs/isa.md`` from the instruction table: ``python -m scripts.make_isa_page`` (with ``--check``: says whether it is stale)."""

from __future__ import annotations

import sys
from itertools import groupby
from pathlib import Path

from vm import isa

PAGE = Path(__file__).parents[1] / "docs" / "isa.md"

INTRODUCTION = """\
# The instruction set

Made from the table in `vm/isa.py` by `scripts/make_isa_page.py`; a test fails if it is stale. `dvm dis` prints a program's instructions in
these terms.

A kernel's image is a sequence of 64-bit words: two head words, then instructions, then a terminator (a zero word). Word 0 is reserved for
the cross-core sync base, word 1 is the entry word. An instruction is a head word, operand words and, for some, a counted tail of equal
groups of words.

Operands are *tiles*: `tile` declares one, with its place in local memory, its dtype and its dims. A dim is a fixed number of elements or an
*axis*, the index of an enclosing `loop`, whose tile is then the dim's extent. So the words say which part of a tile moves with which loop,
and an executor may run many iterations of a parallel loop as one wider tile.

A tile may have several *places* (`more` of them behind the first, each a multiple of 32 bytes): an instruction that writes it without
reading it moves on to the next one, and those that follow in the order of issue mean that place; after the last comes the first. So the
next operands are loaded while the unit works on the ones before. What orders this are counted events: as many sets before the loops as
there are places, one wait a load, one set when a place is free again, and as many waits behind the loops.

The step of a PARALLEL loop may be chosen when a program is bound, up to what tiles hold. An ORDER loop stands around PARALLEL ones and says
in which order the cores visit their steps: all cores walk the ORDER loop's steps, and share what lies inside. Executors that take larger
steps leave it out. A SPLIT loop stands around REDUCE ones over its axis: its steps are shared out among cores, each of which sums up its
part and adds it to memory with a store that has `add`. Additions of several cores come in any order, so that their sum is rounded in any
order too (the executors of this machine add in the order of the steps); what is added to must hold something before, and the kernel may use
it for nothing else. Both loops have a bound step, so that the sizes of a launch decide how many steps there are.

A field whose value depends on a dimension is a *hole*: the template lists it as a patch (word, lowest bit, width, parameter), and
binding writes the parameter's value there. `{p0}` in a listing is such a hole. An address is a relocation: binding writes the buffer's
space, item size and first lane row (128 elements) there; `#0` in a listing is the step's buffer 0.
"""

FAMILIES = {
    "control": "Loops and tiles",
    "memory": "Global memory",
    "move": "Generators and movement inside local memory",
    "unary": "Elementwise, one operand",
    "binary": "Elementwise, two operands",
    "select": "Selection",
    "reduce": "Reductions",
    "argreduce": "Index reductions",
    "cumulative": "Cumulative operations",
    "cube": "Matrix products",
    "sync": "Synchronisation",
}


def place(field: isa.Field, base: str = "") -> str:
    """``dst`` 1[0:10] is bits 0 to 9 of word 1."""
    word = f"{base}{field.word}"
    kind = "" if field.kind == "int" else f" {field.kind}"
    return f"`{field.name}` {word}[{field.lo}:{field.lo + field.width}]{' signed' if field.signed else ''}{kind}"


def row(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def table(*headings: str) -> list[str]:
    return [row(*headings), row(*("---" for _ in headings))]


def instruction_row(insn: isa.Insn) -> str:
    fields = ", ".join(map(place, insn.fields))
    if insn.tail and insn.tail is not isa.TERM:
        fields += "; tail: " + ", ".join(place(f, "+") for f in insn.tail)
    elif insn.tail:
        fields += "; tail: terms"
    return row(f"`{insn.name}`", str(insn.id), insn.pipe.name, fields, insn.doc)


def words() -> list[str]:
    head = (isa.HEAD_ID, isa.HEAD_LEN, isa.HEAD_TAIL, *isa.SYNC)
    entry = (isa.ENTRY_TYPE, isa.ENTRY_MIX, isa.ENTRY_WORDS, isa.ENTRY_BLOCKS)
    return [
        "## Words",
        "",
        "`name` w[a:b] means bits a to b - 1 of word w of the instruction; +w counts from the start of a tail item.",
        "",
        *table("word", "fields"),
        row("entry", ", ".join(place(f) for f in entry)),
        row("head of an instruction", ", ".join(place(f) for f in head)),
        row("address", ", ".join(f"{n} [{lo}:{lo + w}]" for n, (lo, w) in ADDRESS)),
        "",
        HEADS,
    ]


HEADS = """\
`len` counts words, `tail` counts tail items. `set_*` and `wait_*` name events between pipes; `back_*` ones are carried by a loop: waited
for from the second iteration on, set in all but the last.
"""
ADDRESS = (("lane row", isa.ADDR_ROW), ("log2 of the item size", isa.ADDR_ITEM), ("space", isa.ADDR_SPACE))


def terms() -> list[str]:
    return [
        "## Terms of a global access",
        "",
        f"`load` and `store` have one tail item of {isa.TERM_WORDS} words per term: "
        + ", ".join(place(f, "+") for f in isa.TERM)
        + ".",
        "",
        TERMS.replace("NO_DIM", str(isa.NO_DIM)),
    ]


TERMS = """\
The position along one dim of the source is `start + sum(step * ((i // div) % mod))` over its chained terms, with i the index along the
tile's dim `dim` (no modulo if `mod` is 0); the element is `offset + sum(position * stride)` over the source's dims. `chain` joins a term to
the next one of the same source dim; `dim` NO_DIM means that only `start` counts. With `bounded`, elements whose position is outside
[0, `hi`) read `fill`. With `gather`, i is the value of tile `index`, whose dims are the destination's dims in `mask`, and the position is
clamped to [0, `hi`). Reshapes, transposes, slices, reversals, pads and lookups are terms, not copies.
"""


def enumerations() -> list[str]:
    lines = ["## Numbers", "", *table("what", "values")]
    for title, kind in (("pipe", isa.Pipe), ("local memory", isa.Space), ("loop kind", isa.LoopKind)):
        lines.append(row(title, ", ".join(f"{e.name} {e.value}" for e in kind)))
    lines.append(row("dtype", ", ".join(f"{d.name} {code}" for d, code in isa.DTYPE_CODE.items())))
    lines.append(
        row("role of a dim in `mmad`", f"batch {isa.DOT_BATCH}, free {isa.DOT_FREE}, contracted {isa.DOT_CONTRACT}")
    )
    lines.append(row("limits", f"{isa.MAX_AXES} axes, rank {isa.MAX_RANK}; axis {isa.NO_AXIS} means none"))
    return [*lines, ""]


def page() -> str:
    """The page's text."""
    lines = [INTRODUCTION, *words(), *enumerations()]
    for family, group in groupby(isa.TABLE.values(), key=lambda insn: insn.family):
        lines += [f"## {FAMILIES.get(family, family)}", "", *table("instruction", "id", "pipe", "operands", "meaning")]
        lines += [*map(instruction_row, group), ""]
        if family == "memory":
            lines += terms()
    return "\n".join(lines).rstrip() + "\n"


def main() -> None:
    if "--check" in sys.argv:
        sys.exit(PAGE.read_text() != page() and f"{PAGE.name} is stale: run python -m scripts.make_isa_page")
    PAGE.write_text(page())


if __name__ == "__main__":
    main()
