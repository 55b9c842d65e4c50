"""The questions of the strength table, by family: ``relation @ declarations @ facts``.

A symbol is any size from 1 unless declared: ``z:0`` may be 0, ``c%8`` is a multiple of 8, ``k<16`` is at most 16, ``w:2`` is at least 2.
Facts are separated by ``&``. Every relation is true under its declarations and facts, except in the family of false ones.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

FAMILIES: dict[str, str] = {
    "linear arithmetic": """
        a + b == b + a
        2*a + 3 != 2*b
        3*a - 2*a == a
        a <= 2*a
        a + 1 <= 2*a + b
        4*a != 6*b + 1
        k + 7 <= 24 @ k<16 k:1
        2*k - 1 <= 31 @ k<16
        3*a + 5*b >= 8
        z >= 0 @ z:0
        a + z >= 1 @ z:0
        7*w - 3*w >= 8 @ w:2
        k + j <= 24 @ k<16 j<8
        -a < b
        6*a + 9*b != 3*s + 1
        a - b + s - (s - b) == a
    """,
    "congruences": """
        c % 4 == 0 @ c%8
        (2*c) % 16 == 0 @ c%8
        (c + 3) % 8 == 3 @ c%8
        (c*a) % 8 == 0 @ c%8
        (c*d) % 48 == 0 @ c%8 d%6
        (c + d) % 2 == 0 @ c%8 d%6
        a % 2 + (a + 1) % 2 == 1
        (a*(a + 1)) % 2 == 0
        (3*a + 6*b) % 3 == 0
        (a + 8*b) % 8 == a % 8
        (a % 12) % 4 == a % 4
        (5*(a % 6)) % 3 == (2*a) % 3
        c % 3 != 1 or (c + 2) % 3 == 0 @ c%8
        (a - b) % 2 == (a + b) % 2
        8 <= c @ c%8
        (a*a + a*b + b*b + b) % 2 == (a*b + b*b + b + a) % 2
        c // 8 * 8 == c @ c%8
        (a*(a + 1)*(a + 2)) % 3 == 0
    """,
    "floor division": """
        a//2 + (a + 1)//2 == a
        a//3 + (a + 1)//3 + (a + 2)//3 == a
        (a//b)*b <= a
        a < (a//b)*b + b
        a == b*(a//b) + a % b
        a - a % 4 == 4*(a//4)
        a//b <= a
        (8*a + 5)//8 == a
        (a + 16)//8 == a//8 + 2
        (a*b + s)//b == a + s//b
        (6*a + 3)//9 == (2*a + 1)//3
        (a + 7)//8 >= a//8
        k//17 == 0 @ k<16
        (a + b)//2 <= a + b - 1
        -((-a)//8) == (a + 7)//8
        a//4 + b//4 <= (a + b)//4
        (a + b)//4 <= a//4 + b//4 + 1
    """,
    "nested divisions": """
        (a//2)//3 == a//6
        (a//b)//s == a//(b*s)
        ((a + 1)//2 + 1)//2 == (a + 3)//4
        (a//4 + 3)//2 == (a + 12)//8
        ((a//2)//2)//2 == a//8
        (a//6) % 2 == (a % 12)//6
        (a % 64)//8 == (a//8) % 8
        (a//8*8)//4 == 2*(a//8)
        (a//b*b)//b == a//b
        ((a//b)//s)//b == a//(b*b*s)
        ((a - 1)//2 + 1 - 1)//2 + 1 == (a - 1)//4 + 1
        ((a % (b*s))//s) == (a//s) % b
        (a//2 + b)//3 == (a + 2*b)//6
        (8*(a//64 % 4)) % 64 == 8*(a//64 % 4)
    """,
    "min and max": """
        max(a, b) == max(b, a)
        max(a, b) + min(a, b) == a + b
        max(a, 1) == a
        max(2*a, a) == 2*a
        min(a, a + z) == a @ z:0
        max(a - b, 0) + min(a, b) == a
        max(max(a, b), s) == max(a, max(b, s))
        min(a, b) <= max(a, s)
        max(a, b) <= a + b - 1
        max(2*a, 2*b) == 2*max(a, b)
        max(a + s, b + s) == max(a, b) + s
        -min(-a, -b) == max(a, b)
        (a + b)//2 <= max(a, b)
        min(a, b) <= (a + b)//2
        max(a, b) == a or max(a, b) == b
        min(k, 20) == k @ k<16
        max(min(a, 8), 8) == 8
        max(z, 1) >= z @ z:0
        max(a, b) - min(a, b) == max(a - b, b - a)
        max(a, b)*s == max(a*s, b*s)
    """,
    "products": """
        b*s == s*b
        (b*s)//s == b
        (b*s + s)//s == b + 1
        (b*s*a)//(a*s) == b
        (a + b)*(a - b) == a*a - b*b
        (b*s) % s == 0
        (a*b*s) % (a*s) == 0
        (2*a*b)//(4*a) == b//2
        (a*b + a) % a == 0
        (a*a + 2*a*b + b*b)//(a + b) == a + b
        (a*s + b*s)//(a + b) == s
        (a*b)//b*b == a*b
        (12*a*b)//(3*b) == 4*a
        a*b*s != a*b*s + a
        (a*s + b)//s - b//s == a
        (6*a*b) % (4*b) == 2*b*((3*a) % 2)
    """,
    "inequalities with products": """
        a*b >= a
        a*b >= a + b - 1
        a*b*s >= a*b
        z*b >= z @ z:0
        k*a <= 16*a @ k<16
        k*k <= 256 @ k<16
        (a + b)*(a + b) >= 4*a*b
        a*a + b*b >= 2*a*b
        a*w >= a + 1 @ w:2
        w*v >= w + v @ w:2 v:2
        2*a*b <= a*a*b + b
        a*b <= a*b*s
        a*b + s >= a + s
        a*(b + 1) > a*b
        (a//b)*s <= a*s
        k*j <= 128 @ k<16 j<8
        a*b*c >= 8*a @ c%8
    """,
    "padding to a multiple": """
        a <= ceildiv(a, 8)*8
        ceildiv(a, 8)*8 < a + 8
        a <= ceildiv(a, b)*b
        ceildiv(a, b)*b < a + b
        ceildiv(ceildiv(a, 2), 4) == ceildiv(a, 8)
        (ceildiv(a, 16)*16) % 16 == 0
        ceildiv(a, 16)*16 >= 16
        ceildiv(c, 8)*8 == c @ c%8
        ceildiv(a, 8) <= a
        ceildiv(a*b, b) == a
        ceildiv(a, 4)*4 - a <= 3
        ceildiv(ceildiv(a, 8)*8, 8) == ceildiv(a, 8)
        ceildiv(a + 8, 8) == ceildiv(a, 8) + 1
        ceildiv(k, 16) == 1 @ k<16
        (-a) % 8 == ceildiv(a, 8)*8 - a
        max(a, 16) <= ceildiv(max(a, 16), 16)*16
        ceildiv(ceildiv(a, b), s) == ceildiv(a, b*s)
        ceildiv(a + b, 8) <= ceildiv(a, 8) + ceildiv(b, 8)
        ceildiv(a, 8)*8*b >= a*b
    """,
    "convolution and pooling": """
        (a + 2 - 3)//1 + 1 == a
        (2*a - 2)//2 + 1 == a
        (a + 2 - 3)//2 + 1 == ceildiv(a, 2)
        (a - 1)//2 + 1 == (a + 1)//2
        ((a + 2 - 3)//2 + 1 + 2 - 3)//2 + 1 == ceildiv(a, 4)
        (a - 2)//2 + 1 == a//2
        2*((a - 2)//2 + 1) <= a
        a - 2*(a//2) <= 1
        (c - 8)//8 + 1 == c//8 @ c%8
        8*((c - 8)//8 + 1) == c @ c%8
        (a + 2*2 - (2*(3 - 1) + 1))//1 + 1 == a
        (h - 7 + 6)//2 + 1 <= h @ h:1
        max((a - 3)//2 + 1, 0) == max((a - 1)//2, 0)
        ((a - 1)*2 - 2 + 4)//2 == a
        (h + 2*3 - 7)//2 + 1 == (h - 1)//2 + 1
        min((a - 1)//2 + 1, ceildiv(a, 2)) == ceildiv(a, 2)
        2*(a//2) == a or 2*(a//2) == a - 1
        3*((a - 3)//3 + 1) >= a - 2
    """,
    "declared constraints": """
        s <= 8*b @ @ s <= 4*b
        3*s <= 12*b @ @ s <= 4*b
        max(s, 4*b) == 4*b @ @ s <= 4*b
        s <= 4095 @ @ past + s <= 4096
        past + s + t <= 4096 @ past:0 t:0 @ past + s <= 4000 & t <= 96
        h//8*8 == h @ @ h % 8 == 0
        (h*b) % 16 == 0 @ @ h % 8 == 0 & b % 2 == 0
        a//s*s == a @ @ a % s == 0
        a % 24 == 0 @ @ a % 8 == 0 & a % 6 == 0
        b < a @ @ 2*a == 3*b
        a % 3 == 0 @ @ 2*a == 3*b
        a*s == b*s @ @ a == b
        a == s @ @ a == b & b == s
        b*c*a == 24*s*a @ @ b*c == 24*s
        a <= s + 3 @ @ a <= b + 1 & b <= s + 2
        a == 4*b + 1 @ @ a//4 == b & a % 4 == 1
        b == 4 @ @ b == 4 or b == 1 & b != 1
        min(a, 7) == a @ @ a + b <= 8
        t*d <= 4096*d @ @ past + t <= 4096
        n - m >= 0 @ @ m <= k & k <= n
    """,
    "sizes that may be 0": """
        z*0 == 0 @ z:0
        z + 1 >= 1 @ z:0
        (z*b)//b == z @ z:0
        max(z, 0) == z @ z:0
        z <= z*b @ z:0
        z//8 <= z @ z:0
        ceildiv(z, 8)*8 >= z @ z:0
        z*y >= 0 @ z:0 y:0
        broadcast(z, 1) == z @ z:0
        broadcast(a, b) == max(a, b)
        max(z - 1, 0) <= z @ z:0
        z == 0 or z >= 1 @ z:0
        (z + b - 1)//b == ceildiv(z, b) @ z:0
        z*y == 0 or z*y >= z @ z:0 y:0
    """,
    "false": """
        a == b
        a <= b
        c % 16 == 0 @ c%8
        a//2*2 == a
        (z + b)//b == z//b + 2 @ z:0
        max(z, 1) == z @ z:0
        k < 16 @ k<16
        a*b == a + b
        (a + b)//4 == a//4 + b//4
        a % 3 == 1
        a*a != 4*b
        z*b >= b @ z:0
        ceildiv(a, b) == a//b + 1
        s <= 3*b @ @ s <= 4*b
        (a % b) % s == a % s
    """,
    "hard": """
        (a*a) % 3 != 2
        (a*a*a - a) % 6 == 0
        (a//b)*(b//a) <= 1
        (a*a) % 4 == 0 or (a*a) % 4 == 1
        a*a*a + b*b*b >= a*a*b + a*b*b
        3*a*b*s <= a*a*a + b*b*b + s*s*s
        a*a != 2*b*b
        (a*b) % (2*b) == b*(a % 2)
        (a*b) // (2*b) == a//2
        (a + b) % s == ((a % s) + (b % s)) % s
        a*a*b*b + 1 >= 2*a*b
        (a*(a + 1)*(2*a + 1)) % 6 == 0
        a//s + b//s <= (a + b)//s
        max(a*b, s) <= a*max(b, s)
    """,
}


@dataclass(frozen=True)
class Declared:
    """``min <= name <= max``, a multiple of ``multiple_of``."""

    name: str
    min: int = 1
    max: int | None = None
    multiple_of: int = 1


@dataclass(frozen=True)
class Query:
    """One line of the table."""

    family: str
    relation: str
    declared: tuple[Declared, ...]
    facts: tuple[str, ...]

    @property
    def text(self) -> str:
        """As it is shown."""
        limits = [f"{d.name} >= {d.min}" for d in self.declared if d.min != 1]
        limits += [f"{d.name} <= {d.max}" for d in self.declared if d.max is not None]
        limits += [f"{d.name} % {d.multiple_of} == 0" for d in self.declared if d.multiple_of != 1]
        given = ", ".join([*limits, *self.facts])
        return self.relation + (f"  (given {given})" if given else "")


def queries() -> list[Query]:
    """All of them, in order."""
    return [
        _read(family, line) for family, text in FAMILIES.items() for line in map(str.strip, text.splitlines()) if line
    ]


def _read(family: str, line: str) -> Query:
    relation, declarations, facts = (part.strip() for part in [*line.split("@"), "", ""][:3])
    given = tuple(f.strip() for f in facts.split("&") if f.strip())
    found: dict[str, Declared] = {}
    for text in declarations.split():
        name, sign = (text.split(s)[0] for s in ":%<" if s in text), next(s for s in ":%<" if s in text)
        key, value = next(iter(name)), int(text.split(sign)[1])
        old = found.get(key, Declared(key))
        found[key] = {
            ":": Declared(key, value, old.max, old.multiple_of),
            "<": Declared(key, old.min, value, old.multiple_of),
            "%": Declared(key, old.min, old.max, value),
        }[sign]
    words = re.findall(r"[a-z]+", " ".join((relation, *given)))
    names = dict.fromkeys(w for w in words if w not in ("max", "min", "ceildiv", "broadcast", "or"))
    return Query(family, relation, tuple(found.get(n, Declared(n)) for n in names), given)
