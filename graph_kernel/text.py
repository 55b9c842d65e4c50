"""The text form of a graph: what dumps, golden tests and bug reports show. ``parse(to_text(graph))`` gives an equal graph.

    graph main {
      symbol seq [1, 4096]
      check past + seq <= total "node_GatherND" "the indices have to be inside the axis"
      input %x: float32[seq, 8]
      %w: float32[8, 8] = constant value=blob<float32[8, 8]: 5d41402abc4b2a76>
      %y: float32[seq, 8] = dot(%x, %w) contract=[[1], [0]] batch=[[], []] dtype=!float32 // MatMul at node_3
      output %y
    }

Attribute values: integers, floats, ``true``/``false``/``none``, "strings", ``!dtype``, ``<dimension>``,
``[lists]``, arrays and graphs. Arrays of at most ``INLINE`` elements are spelled out (``dense``; ``bits`` in
hexadecimal where decimal digits would lose something); larger ones are named by a digest of their content and kept
in a table beside the text. The same graph always gives the same text.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

import numpy as np

import symbolic
from graph_kernel.ir import NO_ORIGIN, Graph, Node, Origin, Value
from graph_kernel.ops.base import is_float, is_int
from symbolic import Dim, Expr, Fact, LaunchCheck, Scope
from vm.errors import CompileError

INLINE = 16
Blobs = dict[str, np.ndarray]

_WORD = re.compile(r"[\w.$:/\-]+")


def to_text(graph: Graph, blobs: Blobs | None = None) -> str:
    """The text of ``graph``; arrays that are not spelled out are put into ``blobs`` under their digests."""
    return "\n".join(_graph_lines(graph, blobs if blobs is not None else {}, None)) + "\n"


def same_graph(a: Graph, b: Graph) -> bool:
    """Whether two graphs have the same text, constants included."""
    return to_text(a) == to_text(b)


# --- printing ---------------------------------------------------------------------------------------------------------


def _graph_lines(graph: Graph, blobs: Blobs, scope: Scope | None) -> list[str]:
    lines = [f"graph {_name(graph.name)} {{"]
    if graph.scope is not scope:
        lines += [f"  {line}" for line in _scope_lines(graph.scope)]
    lines += [f"  input {_typed(v)}" for v in graph.inputs]
    for node in graph.nodes:
        lines += [f"  {line}" for line in _node_text(node, blobs, graph.scope).split("\n")]
    outputs = ", ".join(f"%{_name(v.name)}" for v in graph.outputs)
    return [*lines, f"  output {outputs}".rstrip(), "}"]


def _scope_lines(scope: Scope) -> Iterator[str]:
    for info in scope.symbols.values():
        line = f"symbol {symbolic.quote(info.name)} [{info.min}, {'inf' if info.max is None else info.max}]"
        if info.multiple_of > 1:
            line += f" step {info.multiple_of} + {info.remainder}"
        yield line + (" data" if info.data_dependent else "") + _strings(info.origin)
    for fact in scope.facts:
        yield f"fact {fact.rel}" + _strings(fact.origin)
    for check in scope.checks:
        yield f"check {check.rel}" + _strings(check.origin, check.message)


def _strings(*texts: str) -> str:
    while texts and not texts[-1]:
        texts = texts[:-1]
    return "".join(f" {json.dumps(t)}" for t in texts)


def _name(name: str) -> str:
    return name if _WORD.fullmatch(name) and not name.endswith(":") else json.dumps(name)


def _typed(value: Value) -> str:
    return f"%{_name(value.name)}: {_type(value.dtype, value.shape)}"


def _type(dtype: np.dtype, shape: tuple[Dim, ...]) -> str:
    return f"{dtype.name}[{', '.join(map(str, shape))}]"


def _node_text(node: Node, blobs: Blobs, scope: Scope) -> str:
    inputs = ", ".join(f"%{_name(v.name)}" for v in node.inputs)
    text = f"{', '.join(map(_typed, node.outputs))} = {node.op}" + (f"({inputs})" if inputs else "")
    for key, value in node.attrs.items():
        text += f" {key}={_attr(value, blobs, scope)}"
    return text + (f" // {_one_line(str(node.origin))}" if str(node.origin) else "")


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _attr(value: Any, blobs: Blobs, scope: Scope) -> str:
    if value is None or isinstance(value, bool | np.bool_):
        return "none" if value is None else "true" if value else "false"
    if isinstance(value, str):
        return json.dumps(value)
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, Expr):
        return f"<{value}>"
    if isinstance(value, np.dtype) or (isinstance(value, type) and issubclass(value, np.generic)):
        return f"!{np.dtype(value).name}"
    if isinstance(value, tuple | list):
        return f"[{', '.join(_attr(v, blobs, scope) for v in value)}]"
    if isinstance(value, np.ndarray | np.generic):
        return _array(np.asarray(value), blobs)
    if isinstance(value, Graph):
        return "\n".join(_graph_lines(value, blobs, scope))
    raise CompileError(f"an attribute of type {type(value).__name__} has no text form")


def _array(array: np.ndarray, blobs: Blobs) -> str:
    kind = f"{array.dtype.name}[{', '.join(map(str, array.shape))}]"
    raw = np.ascontiguousarray(array).tobytes()
    if array.size > INLINE:
        digest = hashlib.sha256(kind.encode() + raw).hexdigest()[:16]
        blobs[digest] = array
        return f"blob<{kind}: {digest}>"
    flat = array.reshape(-1)
    if array.dtype == np.bool_:
        return f"dense<{kind}: {', '.join('true' if x else 'false' for x in flat)}>"
    if is_int(array.dtype):
        return f"dense<{kind}: {', '.join(str(int(x)) for x in flat)}>"
    if is_float(array.dtype) and not np.isnan(flat.astype(np.float64)).any():
        return f"dense<{kind}: {', '.join(repr(float(x)) for x in flat)}>"
    return f"bits<{kind}: {raw.hex()}>"


# --- parsing ----------------------------------------------------------------------------------------------------------


def parse(text: str, blobs: Mapping[str, np.ndarray] | None = None) -> Graph:
    """The graph that ``text`` describes, in a scope of its own. Raises ``CompileError`` that names the line."""
    reader = _Reader(text, blobs or {})
    graph = reader.graph(None)
    reader.space()
    if reader.at < len(text):
        reader.fail("expected the end")
    return graph


class _Reader:
    """A cursor over the text with one method for each thing of the grammar."""

    def __init__(self, text: str, blobs: Mapping[str, np.ndarray]) -> None:
        self.text = text
        self.at = 0
        self.blobs = blobs

    def fail(self, why: str) -> NoReturn:
        line = self.text.count("\n", 0, self.at) + 1
        raise CompileError(f"graph text, line {line}: {why}, found {self.text[self.at : self.at + 24]!r}")

    def space(self) -> None:
        while self.at < len(self.text) and self.text[self.at].isspace():
            self.at += 1

    def sign(self, text: str) -> bool:
        """Consumes ``text`` if it comes next."""
        self.space()
        found = self.text.startswith(text, self.at)
        self.at += len(text) if found else 0
        return found

    def expect(self, text: str) -> None:
        if not self.sign(text):
            self.fail(f"expected {text!r}")

    def keyword(self, word: str) -> bool:
        """Consumes ``word`` if it comes next as a whole word."""
        self.space()
        match = re.compile(rf"{word}(?![\w.])").match(self.text, self.at)
        self.at = match.end() if match else self.at
        return match is not None

    def match(self, pattern: str, what: str) -> str:
        self.space()
        found = re.compile(pattern).match(self.text, self.at)
        if found is None:
            self.fail(f"expected {what}")
        self.at = found.end()
        return found.group()

    def line(self) -> str:
        """The rest of the line."""
        end = self.text.find("\n", self.at)
        end = len(self.text) if end < 0 else end
        rest, self.at = self.text[self.at : end].strip(), end
        return rest

    def string(self) -> str:
        self.space()
        try:
            value, self.at = json.JSONDecoder().raw_decode(self.text, self.at)
        except ValueError:
            self.fail("expected a string")
        return str(value)

    def name(self) -> str:
        self.space()
        if self.text.startswith('"', self.at):
            return self.string()
        word = self.match(_WORD.pattern, "a name").rstrip(":")
        if self.text[self.at - 1] == ":":
            self.at -= 1
        return word

    def until(self, close: str) -> str:
        """The text up to ``close`` outside brackets and backticks, which is consumed."""
        start, depth, quoted = self.at, 0, False
        while self.at < len(self.text):
            c = self.text[self.at]
            if c == "`":
                quoted = not quoted
            elif not quoted and depth == 0 and c in close:
                self.at += 1
                return self.text[start : self.at - 1]
            elif not quoted and c in "([":
                depth += 1
            elif not quoted and c in ")]":
                depth -= 1
            self.at += 1
        self.fail(f"expected one of {close!r}")

    # graphs and scopes

    def graph(self, outer: Scope | None) -> Graph:
        self.expect("graph")
        name = self.name()
        self.expect("{")
        scope = self.scope(name) if outer is None or self.owns_scope() else outer
        graph = Graph(scope, name=name)
        values: dict[str, Value] = {}
        while self.keyword("input"):
            graph.inputs.append(self.typed(values))
        while not self.keyword("output"):
            graph.nodes.append(self.node(values, scope))
        while self.sign("%"):
            graph.outputs.append(self.use(values))
            self.sign(",")
        self.expect("}")
        numbers = [int(v) for v in values if v.isdigit()]
        graph._ids = itertools.count(max(numbers, default=-1) + 1)
        return graph

    def owns_scope(self) -> bool:
        self.space()
        return re.compile(r"(symbol|fact|check)\s").match(self.text, self.at) is not None

    def scope(self, name: str) -> Scope:
        scope = Scope(name)
        while self.keyword("symbol"):
            self.symbol(scope)
        while self.keyword("fact"):
            rel, (origin, _) = self.relation()
            scope.assume(rel, origin)
        while self.keyword("check"):
            rel, (origin, message) = self.relation()
            if Fact(rel, origin) not in scope.facts:  # an either-or fact does not prove itself quickly
                scope.assume(rel, origin)
            scope.checks.append(LaunchCheck(rel, origin, message))
        return scope

    def symbol(self, scope: Scope) -> None:
        self.space()
        line = self.line()
        found = re.fullmatch(r"(.+?) \[(-?\d+), (-?\d+|inf)\](?: step (\d+) \+ (\d+))?( data)?( \".*\")?", line)
        if found is None:
            self.fail(f"cannot read the symbol {line!r}")
        quoted, low, high, step, rest, data, origin = found.groups()
        dim = symbolic.parse(quoted)
        name = dim.symbols[0] if isinstance(dim, Expr) else quoted
        top = None if high == "inf" else int(high)
        text = json.loads(origin) if origin else ""
        if data:
            scope.fresh(name, int(low), text, top)
        else:
            scope.declare(name, int(low), top, int(step or 1), int(rest or 0), text)

    def relation(self) -> tuple[symbolic.Relation, tuple[str, str]]:
        line = self.line()
        texts: list[str] = []
        found = re.search(r'(?: "(?:[^"\\]|\\.)*")+$', line)
        if found:
            rest, line = found.group(), line[: found.start()]
            while rest:
                value, end = json.JSONDecoder().raw_decode(rest, 1)
                texts.append(value)
                rest = rest[end:]
        origin, message = (*texts, "", "")[:2]
        return symbolic.parse_relation(line), (origin, message)

    # values and nodes

    def typed(self, values: dict[str, Value]) -> Value:
        self.expect("%")
        name = self.name()
        self.expect(":")
        dtype, shape = self.type()
        if name in values:
            self.fail(f"%{name} is defined twice")
        values[name] = Value(shape, dtype, name)
        return values[name]

    def type(self) -> tuple[np.dtype, tuple[Dim, ...]]:
        dtype = self.dtype()
        self.expect("[")
        shape: list[Dim] = []
        while not self.sign("]"):
            shape.append(symbolic.parse(self.until(",]")))
            if self.text[self.at - 1] == "]":
                break
        return dtype, tuple(shape)

    def dtype(self) -> np.dtype:
        name = self.match(r"\w+", "a dtype")
        try:
            return np.dtype(name)
        except TypeError:
            self.fail(f"there is no dtype {name!r}")

    def use(self, values: dict[str, Value]) -> Value:
        name = self.name()
        if name not in values:
            self.fail(f"%{name} is not defined before its use")
        return values[name]

    def node(self, values: dict[str, Value], scope: Scope) -> Node:
        defined: dict[str, Value] = {}
        outputs = [self.typed(defined)]
        while self.sign(","):
            outputs.append(self.typed(defined))
        self.expect("=")
        op = self.match(r"\w+", "an op")
        inputs: list[Value] = []
        if self.sign("("):
            while self.sign("%"):
                inputs.append(self.use(values))
                self.sign(",")
            self.expect(")")
        attrs: dict[str, Any] = {}
        while not self.text.startswith("\n", self.at) and not self._line_ends():
            key = self.match(r"\w+", "an attribute")
            self.expect("=")
            attrs[key] = self.attr(scope)
        origin = NO_ORIGIN
        if self.text.startswith(" //", self.at):
            self.at += 3
            what, _, place = self.line().partition(" at ")
            origin = Origin(what, place)
        values.update(defined)
        node = Node(op, tuple(inputs), tuple(outputs), attrs, origin)
        for value in outputs:
            value.producer = node
        return node

    def _line_ends(self) -> bool:
        return re.compile(r"[ \t]*(\n|//|$)").match(self.text, self.at) is not None

    def attr(self, scope: Scope) -> Any:
        self.space()
        if self.sign("["):
            items = []
            while not self.sign("]"):
                items.append(self.attr(scope))
                self.sign(",")
            return tuple(items)
        if self.sign("<"):
            return symbolic.parse(self.until(">"))
        if self.sign("!"):
            return self.dtype()
        if self.text.startswith('"', self.at):
            return self.string()
        if self.text.startswith("graph ", self.at):
            return self.graph(scope)
        word = self.match(r"[\w.+\-]+", "a value")
        if word in ("dense", "bits", "blob") and self.sign("<"):
            return self.array(word)
        if word in ("none", "true", "false"):
            return {"none": None, "true": True, "false": False}[word]
        try:
            return int(word) if re.fullmatch(r"-?\d+", word) else float(word)
        except ValueError:
            self.fail(f"cannot read the value {word!r}")

    def array(self, kind: str) -> np.ndarray:
        dtype, dims = self.type()
        shape = tuple(d for d in dims if isinstance(d, int))
        self.expect(":")
        body = self.until(">").strip()
        if kind == "blob":
            if body not in self.blobs:
                self.fail(f"the array {body} is not in the table given with the text")
            return np.asarray(self.blobs[body]).reshape(shape)
        if kind == "bits":
            return np.frombuffer(bytes.fromhex(body), dtype=dtype).reshape(shape).copy()
        words = [w.strip() for w in body.split(",")] if body else []
        if dtype == np.bool_:
            return np.array([w == "true" for w in words], dtype=dtype).reshape(shape)
        numbers: list[Any] = [int(w) if is_int(dtype) else float(w) for w in words]
        return np.array(numbers, dtype=dtype).reshape(shape)
