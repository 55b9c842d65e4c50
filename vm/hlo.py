"""What is looked for in XLA's optimised code (HLO text), where it shows only there whether code is any good."""

from __future__ import annotations

import re
from collections.abc import Iterable

from vm.program import LANES

_COMPUTATION = re.compile(r"(?:ENTRY )?%?([\w.-]+) \(.*\{$")
_INSTRUCTION = re.compile(r"\s+(?:ROOT )?%?([\w.-]+) = (\w+)\[")
_PRODUCT = re.compile(r"= f32\[\S* dot\(%?([\w.-]+), %?([\w.-]+)\)")


def copies_arenas(hlo: str, rows: Iterable[int]) -> bool:
    """Whether optimised code copies a whole arena of so many lane rows, as XLA does where it cannot tell that an old value is dead."""
    sizes = set(rows)
    for elements, lanes in re.findall(r"= \w+\[(\d+)(,\d+)?\]\S* copy\(", hlo):
        if (int(elements) if lanes == f",{LANES}" else int(elements) // LANES) in sizes:
            return True
    return False


def narrow_products(hlo: str) -> bool:
    """Whether optimised code has a product of 16-bit factors with 32-bit sums that is neither fused nor widened: XLA's runtime has
    none. XLA leaves 16-bit factors to a library that has fast code for them, and decides that before it has settled which axis
    of an operand comes last; a product that the library then refuses is left over, and fails when it runs."""
    fused = set(re.findall(r"calls=%?([\w.-]+)", hlo))
    inside = False
    kinds: dict[str, str] = {}
    for line in hlo.splitlines():
        if not line.startswith(" "):
            if (head := _COMPUTATION.match(line)) is not None:
                inside, kinds = head[1] in fused, {}
            continue
        if inside or (found := _INSTRUCTION.match(line)) is None:
            continue
        kinds[found[1]] = found[2]
        product = _PRODUCT.search(line)
        if product is not None and any(kinds.get(name) in ("bf16", "f16") for name in product.groups()):
            return True
    return False
