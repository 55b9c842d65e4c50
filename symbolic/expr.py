"""Dimension expressions: integer polynomials over symbols and a few integer functions, always in one normal form.

An ``Expr`` maps monomials to integer coefficients. A monomial is a sorted tuple of interned ``Atom`` objects (repeated for
powers); an atom is a symbol or an application of floor-division, modulo, max, min or broadcast (rules in ``functions.py``).
Rewrites made here hold for *all* integers, because an expression knows no facts; what needs facts is done by ``Scope``.
Division by zero gives 0, as in ``vm.intcode``.
"""

from __future__ import annotations

import collections
import contextlib
import hashlib
import operator
import weakref
from collections.abc import Callable, Iterable, Mapping
from functools import reduce
from math import gcd
from typing import TYPE_CHECKING, Any, NoReturn

from vm.errors import CompileError

if TYPE_CHECKING:
    import sympy

SYMBOL, FLOORDIV, MOD, MAX, MIN, BROADCAST = "symbol", "floordiv", "mod", "max", "min", "broadcast"
MAX_DEPTH = 200  # of nested function applications: what walks an expression recurses
_LONG = 16  # terms; a sum of so many passes on what is known about it
_HASH_MODULUS = (1 << 61) - 1
_KEY_LENGTH = 120  # longer sort keys are replaced by a digest, so that shared sub-expressions cannot blow them up


class Atom:
    """One factor of a monomial: a symbol (``args`` holds its name) or a function application (``args`` holds dims).

    Atoms are interned, so identity is equality and monomials hash at C speed. ``key`` is a deterministic sort key.
    """

    __slots__ = ("__weakref__", "args", "depth", "key", "op", "range", "symbols")

    op: str
    args: tuple[Any, ...]
    key: str
    symbols: frozenset[str]
    range: tuple[int | None, int | None]  # bounds that hold for all integers
    depth: int  # of nested applications; a symbol has 0

    def __copy__(self) -> Atom:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Atom:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return (
            intern_symbol if self.op == SYMBOL else _intern_from_args,
            (self.op, self.args) if self.op != SYMBOL else self.args,
        )

    def __repr__(self) -> str:
        return f"Atom({self.op}, {', '.join(map(str, self.args))})"


Mono = tuple[Atom, ...]
_atoms: weakref.WeakValueDictionary[tuple[Any, ...], Atom] = weakref.WeakValueDictionary()
_by_key = operator.attrgetter("key")


def intern_symbol(name: str) -> Atom:
    """The atom of the symbol ``name``."""
    atom = _atoms.get((SYMBOL, name))
    if atom is None:
        atom = Atom()
        atom.op, atom.args, atom.key, atom.symbols, atom.range = SYMBOL, (name,), name, frozenset((name,)), (None, None)
        atom.depth = 0
        atom = _atoms.setdefault((SYMBOL, name), atom)
    return atom


def intern_function(op: str, args: tuple[Dim, ...], bounds: tuple[int | None, int | None]) -> Atom:
    """The atom of a function application whose arguments are already in normal form; ``bounds`` hold for all integers."""
    atom = _atoms.get((op, args))
    if atom is None:
        atom = Atom()
        atom.op, atom.args, atom.range = op, args, bounds
        atom.depth = 1 + max((a.depth for e in args if isinstance(e, Expr) for m in e.terms for a in m), default=0)
        if atom.depth > MAX_DEPTH:
            raise CompileError(
                f"a dimension nests {op} and other divisions, max and min more than {MAX_DEPTH} deep; "
                "give an intermediate size a name of its own (a symbol with a constraint)"
            )
        atom.symbols = frozenset().union(*(a.symbol_set for a in args if isinstance(a, Expr)))
        key = f"~{op}({','.join(a.key if isinstance(a, Expr) else str(a) for a in args)})"
        if len(key) > _KEY_LENGTH:
            key = f"~{op}#{hashlib.blake2b(key.encode(), digest_size=12).hexdigest()}"
        atom.key = key
        atom = _atoms.setdefault((op, args), atom)
    return atom


def _intern_from_args(op: str, args: tuple[Dim, ...]) -> Atom:
    dim = functions.apply(op, args)
    if not isinstance(dim, Expr) or dim.as_atom is None:
        raise CompileError(f"{op}{args} is not in normal form")
    return dim.as_atom


class Expr:
    """An integer-valued expression that is not constant. Immutable and hashable.

    ``==`` compares normal forms: it serves as a dictionary key and never means "proved equal" (ask ``Scope.prove``).
    An expression is never silently a number: ``int``, ``bool``, ``float`` and indexing raise ``TypeError``.
    """

    __slots__ = ("__weakref__", "_flat", "_hash", "_key", "_parts", "_set", "_sympy", "_text", "terms")
    terms: dict[Mono, int]

    def __init__(self, terms: dict[Mono, int]) -> None:
        """Use ``make``: ``terms`` must hold no zero and at least one non-constant monomial."""
        self.terms = terms
        self._hash: int | None = None
        self._set: frozenset[str] | None = None
        self._flat: bool | None = None
        self._key: str | None = None
        self._text: str | None = None
        self._sympy: Any = None
        self._parts: tuple[Expr, Expr] | None = None  # what a long sum was made of: it may drop its terms

    def __getattr__(self, name: str) -> Any:
        """Called for an empty slot only: a long sum whose terms were dropped adds them up again."""
        if name != "terms":
            raise AttributeError(f"a dimension has no attribute {name!r}")
        self.terms = terms = _added_up(self)
        _hold(self)
        return terms

    # --- identity -------------------------------------------------------------------------------------------------

    def __hash__(self) -> int:
        if self._hash is None:
            self._hash = sum(map(hash, self.terms.items())) % _HASH_MODULUS  # a sum, so that ``_sum`` can go on from it
        return self._hash

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return isinstance(other, Expr) and hash(self) == hash(other) and self.terms == other.terms

    def __reduce__(self) -> tuple[Any, ...]:
        return make, (self.terms,)

    @property
    def key(self) -> str:
        """A deterministic sort key, equal for equal expressions only."""
        if self._key is None:
            key = "+".join(f"{c}*{'*'.join([a.key for a in m])}" for m, c in self.ordered())
            if len(key) > _KEY_LENGTH:
                key = "#" + hashlib.blake2b(key.encode(), digest_size=12).hexdigest()
            self._key = key
        return self._key

    @property
    def symbol_set(self) -> frozenset[str]:
        """The names of all symbols (for membership; iterate over ``symbols``, which is sorted)."""
        if self._set is None:
            atoms = {a for m in self.terms for a in m}
            self._set = frozenset().union(*(a.symbols for a in atoms))
        return self._set

    @property
    def symbols(self) -> tuple[str, ...]:
        """The names of all symbols, sorted."""
        return tuple(sorted(self.symbol_set))

    @property
    def flat(self) -> bool:
        """Whether it is a polynomial over symbols, without functions."""
        if self._flat is None:
            self._flat = all(a.op == SYMBOL for m in self.terms for a in m)
        return self._flat

    @property
    def constant(self) -> int:
        """The constant term."""
        return self.terms.get((), 0)

    @property
    def as_atom(self) -> Atom | None:
        """The atom if the expression is exactly one atom, else None."""
        if len(self.terms) == 1:
            ((mono, coefficient),) = self.terms.items()
            if coefficient == 1 and len(mono) == 1:
                return mono[0]
        return None

    @property
    def as_symbol(self) -> str | None:
        """The name if the expression is exactly one symbol, else None."""
        atom = self.as_atom
        return atom.args[0] if atom is not None and atom.op == SYMBOL else None

    def ordered(self) -> list[tuple[Mono, int]]:
        """The terms in canonical order: falling degree, then by name; the constant comes last."""
        return sorted(self.terms.items(), key=lambda t: (-len(t[0]), [a.key for a in t[0]]))

    # --- arithmetic -----------------------------------------------------------------------------------------------

    def __add__(self, other: Any) -> Dim:
        if isinstance(other, int):
            if other == 0:
                return self
            terms = dict(self.terms)
            total = terms.get((), 0) + other
            if total:
                terms[()] = total
            else:
                del terms[()]
            return Expr(terms)
        if not isinstance(other, Expr):
            other = _coerce(other)
            return NotImplemented if other is None else self + other
        return _sum(self, other)

    __radd__ = __add__

    def __neg__(self) -> Expr:
        return Expr({m: -c for m, c in self.terms.items()})

    def __pos__(self) -> Expr:
        return self

    def __sub__(self, other: Any) -> Dim:
        if isinstance(other, int):
            return self + (-other)
        if not isinstance(other, Expr):
            other = _coerce(other)
            return NotImplemented if other is None else self - other
        if self is other:
            return 0
        return make(_added(self.terms, other.terms, -1))

    def __rsub__(self, other: Any) -> Dim:
        return (-self) + other

    def __mul__(self, other: Any) -> Dim:
        if isinstance(other, int):
            if other == 0:
                return 0
            return self if other == 1 else Expr({m: c * other for m, c in self.terms.items()})
        if not isinstance(other, Expr):
            other = _coerce(other)
            return NotImplemented if other is None else self * other
        out: dict[Mono, int] = {}
        for m1, c1 in self.terms.items():
            for m2, c2 in other.terms.items():
                mono = tuple(sorted(m1 + m2, key=_by_key)) if m1 and m2 else m1 or m2
                total = out.get(mono, 0) + c1 * c2
                if total:
                    out[mono] = total
                else:
                    out.pop(mono, None)
        return make(out)

    __rmul__ = __mul__

    def __pow__(self, exponent: Any) -> Dim:
        if not isinstance(exponent, int) or exponent < 0:
            raise TypeError(f"a dimension can only be raised to a non-negative integer, not to {exponent!r}")
        result: Dim = 1
        for _ in range(exponent):
            result = result * self
        return result

    def __floordiv__(self, other: Any) -> Dim:
        other = _coerce(other)
        return NotImplemented if other is None else functions.floordiv(self, other)

    def __rfloordiv__(self, other: Any) -> Dim:
        other = _coerce(other)
        return NotImplemented if other is None else functions.floordiv(other, self)

    def __mod__(self, other: Any) -> Dim:
        other = _coerce(other)
        return NotImplemented if other is None else functions.mod(self, other)

    def __rmod__(self, other: Any) -> Dim:
        other = _coerce(other)
        return NotImplemented if other is None else functions.mod(other, self)

    def __divmod__(self, other: Any) -> tuple[Dim, Dim]:
        return self // other, self % other

    # --- never a number -------------------------------------------------------------------------------------------

    def _refuse(self, what: str) -> NoReturn:
        raise TypeError(
            f"the symbolic dimension {self} has no {what}: its value is known only at launch. Compute with the expression "
            "itself, ask Scope.prove about it, or use evaluate() with values for its symbols."
        )

    def __int__(self) -> int:
        self._refuse("integer value")

    def __index__(self) -> int:  # noqa: PLE0305  (it exists to explain)
        self._refuse("integer value")

    def __float__(self) -> float:
        self._refuse("float value")

    def __bool__(self) -> bool:  # noqa: PLE0304
        self._refuse("truth value")

    def __lt__(self, other: object) -> bool:
        self._refuse("known order (use lt/le and Scope.prove)")

    __le__ = __gt__ = __ge__ = __lt__

    # --- use ------------------------------------------------------------------------------------------------------

    def subs(self, mapping: Mapping[str, Dim]) -> Dim:
        """The expression with symbols replaced, all at once, in normal form."""
        if self.symbol_set.isdisjoint(mapping):
            return self
        return self.rebuild(lambda atom: mapping.get(atom.args[0]) if atom.op == SYMBOL else None)

    def rebuild(self, replace: Callable[[Atom], Dim | None], memo: dict[Atom, Dim] | None = None) -> Dim:
        """Replaces atoms bottom-up: ``replace`` sees each atom (its arguments already rebuilt); None keeps it."""
        memo = {} if memo is None else memo
        total: Dim = 0
        kept: dict[Mono, int] = {}
        for mono, coefficient in self.terms.items():
            values = []
            for atom in mono:  # loops and not comprehensions where recursion passes: half the stack
                values.append(_rebuild_atom(atom, replace, memo))
            if all(v is None for v in values):
                kept[mono] = coefficient
                continue
            value: Dim = coefficient
            for atom, new in zip(mono, values, strict=True):
                value = value * (Expr({(atom,): 1}) if new is None else new)
            total = total + value
        return total + make(kept) if kept else total

    def evaluate(self, mapping: Mapping[str, int]) -> int:
        """The value where every symbol has the given value. Raises ``KeyError`` for a symbol without one."""
        return _evaluate(self, mapping, {})

    @property
    def sympy(self) -> sympy.Expr:
        """The SymPy expression, built with our own FloorDiv, Mod, Max, Min and Broadcast functions."""
        if self._sympy is None:
            from symbolic.sympy_bridge import to_sympy  # SymPy is imported only where it is asked for

            self._sympy = to_sympy(self)
        return self._sympy

    def __str__(self) -> str:
        if self._text is None:
            self._text = text.expr_text(self)
        return self._text

    def __repr__(self) -> str:
        return f"Expr({self})"


Dim = int | Expr


def make(terms: dict[Mono, int]) -> Dim:
    """The dim with these terms (no zero coefficients): an int when only the constant is left."""
    if not terms:
        return 0
    if len(terms) == 1 and () in terms:
        return terms[()]
    return Expr(terms)


def _added(a: dict[Mono, int], b: dict[Mono, int], sign: int) -> dict[Mono, int]:
    out = dict(a)
    for mono, c in b.items():
        total = out.get(mono, 0) + sign * c
        if total:
            out[mono] = total
        else:
            del out[mono]
    return out


def _sum(a: Expr, b: Expr) -> Dim:
    """``a + b``. Long sums grow by few terms at a time: the longer one is copied as a whole, with what is known about it."""
    if len(a.terms) < len(b.terms):
        a, b = b, a
    result = make(_added(a.terms, b.terms, 1))
    if len(a.terms) >= _LONG and isinstance(result, Expr) and a._set is not None:
        met = sum(m in a.terms for m in b.terms)
        if len(result.terms) == len(a.terms) + len(b.terms) - met:  # nothing has cancelled
            result._set = a._set | b.symbol_set
            result._flat = a.flat and b.flat
            if not met:
                result._hash = (hash(a) + hash(b)) % _HASH_MODULUS
                result._parts = a, b
                _hold(result)
    return result


# Long sums that hold their terms, the newest last. The n partial sums of n sizes, which a chain of concatenations has, would
# hold n * n / 2 terms; so only the newest hold theirs, and the others their two parts.
_HELD = 32
_held: collections.deque[weakref.ref[Expr]] = collections.deque()


def _hold(expr: Expr) -> None:
    """Notes that a long sum holds its terms, and lets the oldest of many drop its own."""
    _held.append(weakref.ref(expr))
    if len(_held) > _HELD:
        oldest = _held.popleft()()
        if oldest is not None and oldest is not expr:
            oldest._set = None
            with contextlib.suppress(AttributeError):  # noted twice, and dropped already
                del oldest.terms


def _added_up(expr: Expr) -> dict[Mono, int]:
    """The terms of a long sum: those of the nearest part that holds its own, and what was added to it since."""
    added: list[Expr] = []
    found: dict[Mono, int] | None = None
    while found is None:
        assert expr._parts is not None  # who drops terms has parts
        expr, other = expr._parts
        added.append(other)
        with contextlib.suppress(AttributeError):
            found = object.__getattribute__(expr, "terms")
    terms = dict(found)
    for other in reversed(added):
        terms.update(other.terms)  # nothing met when they were added
    return terms


def _coerce(value: Any) -> Dim | None:
    """An int or Expr from anything integer-like (NumPy scalars included), None for the rest."""
    if isinstance(value, Expr):
        return value
    try:
        return operator.index(value)
    except TypeError:
        return None


def to_dim(value: Any) -> Dim:
    """``value`` as a dim; raises ``TypeError`` when it is neither integer-like nor an expression."""
    dim = _coerce(value)
    if dim is None:
        raise TypeError(f"a dimension is an integer or a symbolic expression, not {value!r}")
    return dim


def _rebuild_atom(atom: Atom, replace: Callable[[Atom], Dim | None], memo: dict[Atom, Dim]) -> Dim | None:
    """The new value of ``atom``, or None where it stays what it is."""
    if atom in memo:
        value = memo[atom]
        return None if isinstance(value, Expr) and value.as_atom is atom else value
    result: Dim = atom_expr(atom)
    if atom.op == SYMBOL:
        new = replace(atom)
        result = result if new is None else new
    else:
        args = []
        for arg in atom.args:
            args.append(arg.rebuild(replace, memo) if isinstance(arg, Expr) else arg)
        if tuple(args) != atom.args:
            result = functions.apply(atom.op, args)
        # What the rules made of new arguments is not searched again: its symbols may be replacements already.
        top = result.as_atom if isinstance(result, Expr) else None
        if top is not None and top.op != SYMBOL:
            new = replace(top)
            result = result if new is None else new
    memo[atom] = result
    return None if isinstance(result, Expr) and result.as_atom is atom else result


def atom_expr(atom: Atom) -> Expr:
    """The expression that is just ``atom``."""
    return Expr({(atom,): 1})


def _evaluate(dim: Dim, mapping: Mapping[str, int], memo: dict[Atom, int]) -> int:
    if isinstance(dim, int):
        return dim
    total = 0
    for mono, value in dim.terms.items():
        for atom in mono:
            if atom.op == SYMBOL:
                value *= mapping[atom.args[0]]
                continue
            known = memo.get(atom)
            if known is None:
                args = []
                for arg in atom.args:
                    args.append(_evaluate(arg, mapping, memo))
                known = memo[atom] = functions.apply_ints(atom.op, args)
            value *= known
        total += value
    return total


# --- small helpers over dims ----------------------------------------------------------------------------------------


def symbol(name: str) -> Expr:
    """The expression of the symbol ``name``."""
    if not name:
        raise CompileError("a symbol needs a name")
    return atom_expr(intern_symbol(name))


def product(dims: Iterable[Dim]) -> Dim:
    """The product of ``dims`` (1 for none)."""
    result: Dim = 1
    for dim in dims:
        result = dim * result if isinstance(dim, Expr) else result * to_dim(dim)
    return result


def ssum(dims: Iterable[Dim]) -> Dim:
    """The sum of ``dims`` (0 for none), in time linear in the number of terms."""
    dims = list(dims)
    if len(dims) == 2:
        return to_dim(dims[0]) + to_dim(dims[1])
    terms: dict[Mono, int] = {}
    for dim in dims:
        items: Iterable[tuple[Mono, int]] = dim.terms.items() if isinstance(dim, Expr) else (((), int(dim)),)
        for mono, c in items:
            terms[mono] = terms.get(mono, 0) + c
    return make({m: c for m, c in terms.items() if c})


def evaluate(dim: Dim, mapping: Mapping[str, int]) -> int:
    """The value of ``dim`` where every symbol has the given value."""
    return dim.evaluate(mapping) if isinstance(dim, Expr) else int(dim)


def symbols_of(dim: Dim) -> tuple[str, ...]:
    """The names of the symbols in ``dim``, sorted."""
    return dim.symbols if isinstance(dim, Expr) else ()


def is_static(dim: Dim) -> bool:
    """Whether ``dim`` is a plain number."""
    return not isinstance(dim, Expr)


def substitute(dim: Dim, mapping: Mapping[str, Dim]) -> Dim:
    """``dim`` with symbols replaced."""
    return dim.subs(mapping) if isinstance(dim, Expr) else dim


def content(dim: Expr, with_constant: bool = True) -> int:
    """The greatest common divisor of the coefficients."""
    return reduce(gcd, (c for m, c in dim.terms.items() if m or with_constant), 0)


def exact_div(dim: Dim, divisor: int) -> Dim:
    """``dim / divisor`` where every coefficient is a multiple of ``divisor``."""
    if isinstance(dim, int):
        return dim // divisor
    return Expr({m: c // divisor for m, c in dim.terms.items()})


from symbolic import functions, text  # noqa: E402  (the rules need Expr; Expr's operators need the rules)
