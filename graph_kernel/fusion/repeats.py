"""The structure of a set of nodes, so that equal sets are analysed once: the layers of a deep model repeat.

A structure holds everything that the analysis of a kernel looks at (``find_axes``, ``plan``, ``wasteful`` and code generation): operators
with attributes and types, which operand is which value, what is stored, and the order of it all. Values are numbers in the order in which
they appear; what they stand for is put back from that order. What only says where a node came from is left out.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from graph_kernel.fusion.axes import Axes
from graph_kernel.fusion.layout import Layout
from graph_kernel.fusion.prepare import is_carried
from graph_kernel.fusion.views import constant_scalar
from graph_kernel.ir import Node, Value
from graph_kernel.passes.cse import ConstantPool, attrs_key

ARRAY = "array in memory"  # stands for a constant that kernels load: what is in it makes no difference


@dataclass(frozen=True)
class Structure:
    """A hashable ``key`` and the values of the nodes by number."""

    key: Hashable
    values: dict[Value, int]

    def written(self, text: str) -> str:
        """A message with numbers in place of the names of values."""
        names = {f"%{v.name}": n for v, n in self.values.items()}
        pattern = "|".join(re.escape(name) for name in sorted(names, key=len, reverse=True))
        return re.sub(pattern, lambda found: f"\0{names[found[0]]}\0", text) if "%" in text else text

    def read(self, text: str) -> str:
        """A message that an equal structure has ``written``, with the names of this one's values."""
        if "\0" not in text:
            return text
        values = list(self.values)
        return re.sub("\0(\\d+)\0", lambda found: f"%{values[int(found[1])].name}", text)


class Structures:
    """Makes the structures of one graph's nodes."""

    def __init__(self) -> None:
        self._kinds: dict[Hashable, int] = {}
        self._of_node: dict[Node, int] = {}
        self._of_value: dict[Value, int] = {}
        self._pool = ConstantPool()

    def of(
        self,
        nodes: Sequence[Node],
        marks: Mapping[Node, int],
        outputs: Sequence[Value],
        loaded: Collection[Value],
        tied: Sequence[tuple[Value, Value]] = (),
        *more: Hashable,
    ) -> Structure:
        """The structure of ``nodes`` (in order) of which some have ``marks``; ``outputs`` are stored, constants in ``loaded`` lie in
        memory, and pairs of values are ``tied``. ``more`` becomes part of the key."""
        numbers: dict[Value, int] = {}
        key: list[int] = []
        for node in nodes:
            kind = self._of_node.get(node)
            key.append(self._node(node) if kind is None else kind)
            key.append(marks.get(node, 0))
            for value in node.inputs:
                number = numbers.get(value)
                if number is None:
                    number = numbers[value] = len(numbers)
                    found = self._of_value.get(value)
                    key.append(-1 - (self._value(value) if found is None else found))
                else:
                    key.append(number)
            for value in node.outputs:
                numbers[value] = len(numbers)
            if node.op == "constant" and node.outputs[0] in loaded:
                key.append(-1)
        ends = tuple([numbers[v] for v in outputs])
        return Structure((tuple(key), ends, tuple([(numbers[a], numbers[b]) for a, b in tied]), more), numbers)

    def _number(self, kind: Hashable) -> int:
        return self._kinds.setdefault(kind, len(self._kinds))

    def _node(self, node: Node) -> int:
        if node.op == "constant" and not is_carried(node):
            attrs: Hashable = ARRAY
        else:
            attrs = attrs_key(node.attrs, self._pool)
        if attrs is None:
            attrs = (ARRAY, len(self._of_node))  # nodes with graphs are like no other
        types = tuple((v.shape, v.dtype) for v in node.outputs)
        number = self._of_node[node] = self._number((node.op, len(node.inputs), attrs, types))
        return number

    def _value(self, value: Value) -> int:
        """The kind of a value that comes from elsewhere; of one number everywhere, the number is part of it."""
        scalar = constant_scalar(value)
        content = None if scalar is None else self._pool.number(scalar)
        number = self._of_value[value] = self._number((value.shape, value.dtype, content))
        return number


class Code(Protocol):
    """What code generation makes of a group."""

    def over(self, values: Mapping[Value, Value]) -> Code:
        """The same code for a group that is equal but for its values: each is replaced by what ``values`` has for it."""
        ...


@dataclass(frozen=True)
class Completed:
    """What was found out about the groups of one structure; ``values`` are those of the first one, by number."""

    values: tuple[Value, ...]
    axes: Axes
    layout: Layout
    facts: list[str]
    code: Code | None


@dataclass
class Known:
    """What has been found out about groups, by structure: the kernel or why there is none, and why not to merge."""

    structures: Structures = field(default_factory=Structures)
    completed: dict[Hashable, Completed | str] = field(default_factory=dict)
    verdicts: dict[Hashable, str] = field(default_factory=dict)
