"""Random graphs with symbolic dims, for tests that compare a graph before and after a rewrite.

Data are small integers, so that sums and products are exact in float32 and a reordering of them does not show. What
makes fractions (div, rsqrt) is never fed to a comparison or a rounding op.
"""

from __future__ import annotations

import numpy as np

from graph_kernel.evaluate import evaluate
from graph_kernel.ir import Graph, Value
from symbolic import Dim, Scope, eq

SIZES = tuple({"a": a, "b": b, "c": 2 * b} for a, b in ((0, 2), (1, 1), (3, 1), (2, 5)))
FLOAT, INT, BOOL = np.dtype(np.float32), np.dtype(np.int32), np.dtype(bool)


class Maker:
    """Grows a random graph node by node."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        scope = Scope("random")
        self.a, self.b, self.c = scope.declare("a", 0), scope.declare("b", 1), scope.declare("c", 1)
        scope.assume(eq(self.c, 2 * self.b))  # so that equal sizes come in unequal forms
        self.graph = Graph(scope)
        self.values: list[Value] = []
        pool: list[Dim] = [self.a, self.b, self.c, 2 * self.b, 1, 2, 4, 6]
        for k in range(int(self.rng.integers(1, 4))):
            shape = [pool[int(self.rng.integers(len(pool)))] for _ in range(int(self.rng.integers(1, 5)))]
            self.values.append(self.graph.add_input(shape, FLOAT if self.rng.random() < 0.7 else INT, f"x{k}"))

    def pick(self, *dtypes: np.dtype) -> Value | None:
        """A random value, recent ones more often, of one of the dtypes."""
        found = [v for v in self.values if not dtypes or v.dtype in dtypes]
        if not found:
            return None
        return found[-1 - int(min(self.rng.integers(len(found)), self.rng.integers(len(found))))]

    def choose(self, *items: object) -> object:
        return items[int(self.rng.integers(len(items)))]

    def axis(self, x: Value) -> int:
        return int(self.rng.integers(x.rank))

    def partner(self, x: Value) -> Value:
        """Something of the shape and dtype of x: a value, a broadcast of a part of it, or a constant."""
        same = [v for v in self.values if v.shape == x.shape and v.dtype == x.dtype]
        kind = self.rng.random()
        if kind < 0.5 and same:
            return same[int(self.rng.integers(len(same)))]
        if kind < 0.75 and x.rank and x.dtype != BOOL:
            gone = self.axis(x)
            small = self.graph.add("reduce_max" if x.shape[gone] != self.a else "reduce_sum", x, axes=(gone,))
            dims = tuple(i for i in range(x.rank) if i != gone)
            return self.graph.add("broadcast", small, shape=x.shape, dims=dims)
        number = bool(self.rng.integers(2)) if x.dtype == BOOL else int(self.choose(0, 1, 1, 2, -1, 3))  # type: ignore[call-overload]
        if self.rng.random() < 0.3 and x.rank and isinstance(x.shape[-1], int):
            line = self.graph.constant(self.rng.integers(0, 3, x.shape[-1]), x.dtype)
            return self.graph.add("broadcast", line, shape=x.shape, dims=(x.rank - 1,))
        scalar = self.graph.constant(number, x.dtype)
        return self.graph.add("broadcast", scalar, shape=x.shape, dims=()) if x.rank else scalar

    def step(self) -> Value | None:
        """One more op."""
        name = str(self.choose(*(n[4:] for n in dir(self) if n.startswith("make"))))
        made: Value | None = getattr(self, "make" + name)()
        if made is not None:
            self.values.append(made)
        return made

    def make_unary(self) -> Value | None:
        x = self.pick(FLOAT, INT)
        return x and self.graph.add(str(self.choose("neg", "abs", "sign", "square" if self._small(x) else "neg")), x)

    def _small(self, x: Value) -> bool:
        """Whether squares of the value's entries stay exact: few nodes above it."""
        depth, work = 0, [x]
        while work and depth < 8:
            node = work.pop().producer
            if node is not None:
                depth += node.op in ("mul", "dot", "square", "cumsum", "reduce_sum")
                work.extend(node.inputs)
        return depth < 2

    def make_binary(self) -> Value | None:
        x = self.pick(FLOAT, INT)
        if x is None:
            return None
        op = str(self.choose("add", "sub", "max", "min", "mul" if self._small(x) else "add"))
        pair = [x, self.partner(x)]
        if self.rng.random() < 0.5:
            pair.reverse()
        return self.graph.add(op, *pair)

    def make_logic(self) -> Value | None:
        x = self.pick(BOOL)
        return x and (
            self.graph.add("not", x)
            if self.rng.random() < 0.4
            else self.graph.add(str(self.choose("and", "or")), x, self.partner(x))
        )

    def make_compare(self) -> Value | None:
        x = self.pick(INT, FLOAT)
        return x and self.graph.add(str(self.choose("lt", "le", "eq", "ne", "gt", "ge")), x, self.partner(x))

    def make_select(self) -> Value | None:
        pred = self.pick(BOOL)
        if pred is None:
            return None
        same = [v for v in self.values if v.shape == pred.shape and v.dtype != BOOL]
        return self.graph.add("select", pred, same[-1], self.partner(same[-1])) if same else None

    def make_cast(self) -> Value | None:
        x = self.pick()
        return x and self.graph.add("cast", x, dtype=self.choose(FLOAT, INT))

    def make_reduce(self) -> Value | None:
        x = self.pick(FLOAT, INT)
        if x is None or not x.rank:
            return None
        axes = tuple(sorted({self.axis(x), self.axis(x)}))
        op = (
            "reduce_sum"
            if any(x.shape[i] == self.a for i in axes)
            else str(self.choose("reduce_sum", "reduce_max", "reduce_min"))
        )
        out = self.graph.add(op, x, axes=axes)
        if self.rng.random() < 0.6:
            kept = tuple(1 if i in axes else d for i, d in enumerate(x.shape))
            out = self.graph.add("reshape", out, shape=kept)
            if self.rng.random() < 0.7:
                out = self.graph.add("broadcast", out, shape=x.shape, dims=tuple(range(x.rank)))
        return out

    def make_transpose(self) -> Value | None:
        x = self.pick()
        return x and self.graph.add("transpose", x, perm=tuple(int(i) for i in self.rng.permutation(x.rank)))

    def make_reshape(self) -> Value | None:
        x = self.pick()
        if x is None:
            return None
        shape = list(x.shape)
        kind = int(self.rng.integers(4))
        if kind == 0 and len(shape) >= 2:
            i = int(self.rng.integers(len(shape) - 1))
            shape[i : i + 2] = [shape[i] * shape[i + 1]]
        elif kind == 1:
            for i, d in enumerate(shape):
                if d == self.c or d == 2 * self.b:
                    shape[i : i + 1] = [2, self.b] if self.rng.random() < 0.7 else [self.c]
                    break
                if isinstance(d, int) and d in (4, 6):
                    shape[i : i + 1] = [2, d // 2]
                    break
        elif kind == 2 and len(shape) < 5:
            shape.insert(int(self.rng.integers(len(shape) + 1)), 1)
        elif 1 in shape:
            shape.remove(1)
        return self.graph.add("reshape", x, shape=tuple(shape))

    def make_broadcast(self) -> Value | None:
        x = self.pick()
        if x is None or x.rank >= 4:
            return None
        at = int(self.rng.integers(x.rank + 1))
        shape = list(x.shape)
        shape.insert(at, self.choose(self.a, self.b, 2, 1))  # type: ignore[arg-type]
        dims = tuple(i + (i >= at) for i in range(x.rank))
        return self.graph.add("broadcast", x, shape=tuple(shape), dims=dims)

    def make_slice(self) -> Value | None:
        x = self.pick()
        if x is None or not x.rank:
            return None
        i = self.axis(x)
        n = x.shape[i]
        starts, limits, strides = [0] * x.rank, list(x.shape), [1] * x.rank
        if isinstance(n, int) and n > 1:
            starts[i], limits[i], strides[i] = int(self.rng.integers(n)), n, int(self.rng.integers(1, 3))
        elif not isinstance(n, int) and n == self.b:
            limits[i] = 1
        return self.graph.add("slice", x, starts=tuple(starts), limits=tuple(limits), strides=tuple(strides))

    def make_concat(self) -> Value | None:
        x = self.pick()
        if x is None or not x.rank:
            return None
        return self.graph.add("concat", x, self.partner(x), axis=self.axis(x))

    def make_halves(self) -> Value | None:
        """The rotation of rotary embeddings: slices, a negation, a concat."""
        x = self.pick(FLOAT)
        if x is None or not x.rank or x.shape[-1] not in (4, 6):
            return None
        n = x.shape[-1]
        assert isinstance(n, int)
        lead = tuple(x.shape[:-1])
        zeros, ones = (0,) * (x.rank - 1), (1,) * x.rank
        left = self.graph.add("slice", x, starts=(*zeros, 0), limits=(*lead, n // 2), strides=ones)
        right = self.graph.add("slice", x, starts=(*zeros, n // 2), limits=(*lead, n), strides=ones)
        return self.graph.add("concat", self.graph.add("neg", right), left, axis=x.rank - 1)

    def make_pad(self) -> Value | None:
        x = self.pick(FLOAT, INT)
        if x is None or not x.rank:
            return None
        low, high = [0] * x.rank, [0] * x.rank
        i = self.axis(x)
        low[i], high[i] = int(self.rng.integers(3)), int(self.rng.integers(3))
        value = self.graph.constant(int(self.rng.integers(2)), x.dtype)
        return self.graph.add("pad", x, value, low=tuple(low), high=tuple(high), interior=(0,) * x.rank)

    def make_rev(self) -> Value | None:
        x = self.pick()
        return x and (self.graph.add("rev", x, axes=(self.axis(x),)) if x.rank else None)

    def make_cumulative(self) -> Value | None:
        x = self.pick(FLOAT, INT)
        if x is None or not x.rank or not self._small(x):
            return None
        return self.graph.add("cumsum", x, axis=self.axis(x), reverse=bool(self.rng.integers(2)))

    def make_iota(self) -> Value | None:
        x = self.pick()
        return x and (self.graph.add("iota", shape=x.shape, axis=self.axis(x), dtype=INT) if x.rank else None)

    def make_take(self) -> Value | None:
        x = self.pick()
        if x is None or not x.rank:
            return None
        axis = self.axis(x)
        n = x.shape[axis]
        if isinstance(n, int) and self.rng.random() < 0.6:
            index = self.graph.constant(np.arange(int(self.rng.integers(1, n + 1))) + int(self.rng.integers(2)), INT)
        else:
            index = self.graph.add("iota", shape=(n, 2), axis=0, dtype=INT)
        return self.graph.add("take", x, index, axis=axis, mode="clip") if x.rank < 4 else None

    def make_dot(self) -> Value | None:
        x = self.pick(FLOAT)
        if x is None or not x.rank or not self._small(x):
            return None
        axis = self.axis(x)
        others = [
            v
            for v in self.values
            if v.dtype == FLOAT and x.shape[axis] in v.shape and self._small(v) and v.rank + x.rank <= 6
        ]
        n = x.shape[axis]
        if others and self.rng.random() < 0.6:
            y = others[int(self.rng.integers(len(others)))]
            contract = ((axis,), (y.shape.index(n),))
            batch: tuple[list[int], list[int]] = ([], [])
            for i, d in enumerate(x.shape):
                for j, e in enumerate(y.shape):
                    if d == e and i != axis and j != contract[1][0] and j not in batch[1] and i not in batch[0]:
                        batch[0].append(i)
                        batch[1].append(j)
            return self.graph.add("dot", x, y, contract=contract, batch=(tuple(batch[0]), tuple(batch[1])), dtype=FLOAT)
        if not isinstance(n, int):
            return None
        w = self.graph.constant(self.rng.integers(-2, 3, (n, 4)), FLOAT)
        return self.graph.add("dot", x, w, contract=((axis,), (0,)), batch=((), ()), dtype=FLOAT)


def random_graph(seed: int, nodes: int = 14) -> Graph:
    """A graph of about ``nodes`` random ops with one to three outputs."""
    maker = Maker(seed)
    for _ in range(nodes):
        maker.step()
    made = [v for v in maker.values if v.producer is not None] or maker.values
    maker.graph.outputs = list(dict.fromkeys([made[-1], *(made[int(i)] for i in maker.rng.integers(0, len(made), 2))]))
    return maker.graph


def run(graph: Graph, dims: dict[str, int], seed: int = 0) -> list[np.ndarray]:
    """The graph's results on small random integers."""
    rng = np.random.default_rng(seed)
    arrays = []
    for value in graph.inputs:
        shape = [d if isinstance(d, int) else d.evaluate(dims) for d in value.shape]
        arrays.append(rng.integers(-2, 3, shape).astype(value.dtype))
    return evaluate(graph, arrays, dims)


def assert_same(got: list[np.ndarray], want: list[np.ndarray], tol: float = 1e-5) -> None:
    """Equal shapes, dtypes and values (NaN where NaN); floats within ``tol``."""
    assert len(got) == len(want)
    for g, w in zip(got, want, strict=True):
        assert g.shape == w.shape and g.dtype == w.dtype
        if g.dtype.kind in "iub":
            np.testing.assert_array_equal(g, w)
        else:
            np.testing.assert_allclose(g.astype(np.float64), w.astype(np.float64), rtol=tol, atol=tol)
