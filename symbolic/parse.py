"""Reads dims and relations from text: ``"2*s + 1"``, ``"ceildiv(past + s, 16)"``, ``"h % 8 == 0"``, ``"past + s <= 4096"``.

Grammar, with Python's precedences (there is no ``eval`` anywhere):

    relation := disjunct ("or" disjunct)*          disjunct := sum (== | != | <= | < | >= | >) sum
    sum := term ((+ | -) term)*                    term := unary ((* | // | %) unary)*
    unary := - unary | + unary | power             power := atom ["**" unary]
    atom := number | name | `quoted name` | function "(" sum ("," sum)* ")" | "(" sum ")"
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NoReturn

from symbolic import functions
from symbolic.expr import Dim, product, symbol
from symbolic.relations import Relation, divides, either, eq, ge, gt, le, lt, ne
from vm.errors import CompileError

_TOKEN = re.compile(
    r"\s*(?:(?P<number>\d+)|(?P<name>[^\W\d][\w@.']*|@[\w@.']+)|`(?P<quoted>(?:\\.|[^`\\])+)`"
    r"|(?P<sign>\*\*|//|==|!=|<=|>=|[-+*%(),<>^/]))"
)
_FUNCTIONS: dict[str, Callable[..., Dim]] = {
    "max": functions.smax,
    "min": functions.smin,
    "broadcast": functions.broadcast_dim,
    "ceildiv": functions.ceildiv,
    "floordiv": functions.floordiv,
    "mod": functions.mod,
}
_ARITY = {"ceildiv": 2, "floordiv": 2, "mod": 2}
_COMPARE: dict[str, Callable[[Dim, Dim], Relation]] = {"==": eq, "!=": ne, "<=": le, "<": lt, ">=": ge, ">": gt}
_MAX_DEPTH = 100
_MAX_POWER = 64


class _Parser:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.depth = 0
        self.remainder: tuple[Dim, Dim] | None = None  # (x, d) where what was read last is just "x % d"
        self.tokens: list[tuple[str, str, int]] = []
        position = 0
        while text[position:].strip():
            match = _TOKEN.match(text, position)
            if match is None:
                self._fail("unexpected character", position + len(text[position:]) - len(text[position:].lstrip()))
            kind = match.lastgroup or ""
            value = match.group(kind)
            if kind == "quoted":
                value = re.sub(r"\\(.)", r"\1", value)
            self.tokens.append((kind, value, match.start(kind)))
            position = match.end()

    def _fail(self, why: str, position: int | None = None) -> NoReturn:
        if position is None:
            position = self.tokens[self.at][2] if self.at < len(self.tokens) else len(self.text)
        raise CompileError(
            f"cannot read {self.text!r}: {why} at column {position + 1}. A dimension is made of integers, names, + - * // % **, "
            "max, min, ceildiv, floordiv, mod and parentheses; odd names go in backticks."
        )

    def sign(self, *signs: str) -> str | None:
        """Consumes and returns the next token if it is one of ``signs``."""
        if self.at < len(self.tokens):
            kind, value, _ = self.tokens[self.at]
            if kind == "sign" and value in signs:
                self.at += 1
                return value
        return None

    def expect(self, sign: str) -> None:
        if self.sign(sign) is None:
            self._fail(f"expected {sign!r}")

    def end(self) -> None:
        if self.at < len(self.tokens):
            self._fail(f"unexpected {self.tokens[self.at][1]!r}")

    def sum(self) -> Dim:
        value = self.term()
        while op := self.sign("+", "-"):
            right = self.term()
            value = value + right if op == "+" else value - right
            self.remainder = None
        return value

    def term(self) -> Dim:
        value = self.unary()
        while op := self.sign("*", "//", "%", "/", "^"):
            if op == "/":
                self._fail(
                    "'/' is not a dimension operator, use '//' (rounds down) or ceildiv", self.tokens[self.at - 1][2]
                )
            if op == "^":
                self._fail("'^' is not a dimension operator, use '**'", self.tokens[self.at - 1][2])
            right = self.unary()
            self.remainder = (value, right) if op == "%" else None
            if op == "*":
                value = value * right
            elif isinstance(right, int) and right == 0:
                self._fail("division by zero")
            else:
                value = functions.floordiv(value, right) if op == "//" else functions.mod(value, right)
        return value

    def unary(self) -> Dim:
        self.depth += 1
        if self.depth > _MAX_DEPTH:
            self._fail("too deeply nested")
        try:
            if self.sign("-"):
                value = -self.unary()
                self.remainder = None
                return value
            if self.sign("+"):
                return self.unary()
            return self.power()
        finally:
            self.depth -= 1

    def power(self) -> Dim:
        base = self.atom()
        if self.sign("**"):
            exponent = self.unary()
            if not isinstance(exponent, int) or not 0 <= exponent <= _MAX_POWER:
                self._fail(f"an exponent is an integer from 0 to {_MAX_POWER}")
            self.remainder = None
            return product([base] * exponent)
        return base

    def atom(self) -> Dim:
        if self.at >= len(self.tokens):
            self._fail("unexpected end")
        kind, value, _ = self.tokens[self.at]
        if kind == "sign":
            self.expect("(")
            inner = self.sum()
            self.expect(")")
            return inner
        self.at += 1
        self.remainder = None
        if kind == "number":
            return int(value)
        if kind == "name" and value in _FUNCTIONS and self.sign("("):
            return self.call(value)
        return symbol(value)

    def call(self, name: str) -> Dim:
        args = [self.sum()]
        while self.sign(","):
            args.append(self.sum())
        self.expect(")")
        self.remainder = None
        if len(args) != _ARITY.get(name, len(args)):
            self._fail(f"{name} takes {_ARITY[name]} arguments")
        if name in _ARITY and isinstance(args[1], int) and args[1] == 0:
            self._fail("division by zero")
        return _FUNCTIONS[name](*args)

    def relation(self) -> Relation:
        parts = [self.comparison()]
        while self.at < len(self.tokens) and self.tokens[self.at][:2] == ("name", "or"):
            self.at += 1
            parts.append(self.comparison())
        return either(*parts)

    def comparison(self) -> Relation:
        left = self.sum()
        op = self.sign(*_COMPARE)
        if op is None:
            self._fail("expected ==, !=, <=, <, >= or >")
        remainder = self.remainder
        right = self.sum()
        if op == "==" and remainder is not None and isinstance(right, int) and right == 0:
            return divides(remainder[1], remainder[0])
        return _COMPARE[op](left, right)


def parse(text: str) -> Dim:
    """The dim that ``text`` describes. Raises ``CompileError`` with the column where reading failed."""
    parser = _Parser(text)
    value = parser.sum()
    parser.end()
    return value


def parse_relation(text: str) -> Relation:
    """The relation that ``text`` describes, such as ``"s <= 4*b"``. Raises ``CompileError``."""
    parser = _Parser(text)
    rel = parser.relation()
    parser.end()
    return rel
