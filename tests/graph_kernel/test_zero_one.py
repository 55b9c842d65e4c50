"""Every op of the table at sizes 0, 1 and 3 in each axis where NumPy allows it: one symbolic graph an op, results as NumPy's and JAX's.

The evaluator asserts every deduced shape and dtype at every size, so a shape rule that is wrong at 0 or 1 fails here as well.
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.random import threefry2x32_p

import dvm
from graph_kernel.evaluate import evaluate
from graph_kernel.ir import Graph
from graph_kernel.ops import OPS, Pattern
from symbolic import Scope, parse, symbol
from vm.errors import CompileError

SIZES = (0, 1, 3)
m, n, k = map(symbol, "mnk")


@dataclass
class Case:
    """One op: input types such as ``f m,n``, attributes (or a function of the graph that gives them), and what it means."""

    op: str
    inputs: Sequence[str]
    attrs: Any
    expected: Callable[..., Any]
    least: dict[str, int] = field(default_factory=dict)  # where NumPy has no result for a smaller size
    name: str = ""

    def __str__(self) -> str:
        return self.name or self.op


def arrays(texts: Sequence[str], sizes: dict[str, int], largest: bool = False) -> list[np.ndarray]:
    """Inputs: f floats in (0.2, 0.9), i small integers, b booleans, u unsigned; the smaller ones are corners of the largest."""
    out = []
    for j, text in enumerate(texts):
        kind, _, dims = text.partition(" ")
        shape = tuple(
            parse(d).evaluate(sizes) if not d.strip().isdigit() else int(d) for d in dims.split(",") if d.strip()
        )
        rng = np.random.default_rng(j + 1)
        full = rng.random([max(s, 8) for s in shape])
        part = full[tuple(slice(0, s) for s in shape)]
        values = {
            "f": lambda v: (0.2 + 0.7 * v).astype(np.float32),
            "i": lambda v: (v * 3).astype(np.int32),
            "l": lambda v: (v * 3).astype(np.int64),
            "u": lambda v: (v * 9).astype(np.uint32),
            "b": lambda v: v > 0.5,
        }
        out.append(np.asarray(values[kind](part)))
    return out


DTYPES = {"f": np.float32, "i": np.int32, "l": np.int64, "u": np.uint32, "b": np.bool_}


def dims_of(text: str) -> tuple[Any, ...]:
    return tuple(parse(d) if not d.strip().isdigit() else int(d) for d in text.split(",") if d.strip())


def build(case: Case) -> Graph:
    """The one symbolic graph."""
    graph = Graph(Scope())
    for name in "mnk":
        graph.scope.declare(name, min=case.least.get(name, 0))
    values = []
    for i, text in enumerate(case.inputs):
        kind, _, dims = text.partition(" ")
        values.append(graph.add_input(dims_of(dims), DTYPES[kind], f"x{i}"))
    attrs = case.attrs(graph) if callable(case.attrs) else case.attrs
    graph.outputs = list(graph.add_multi(case.op, values, attrs))
    return graph


# --- elementwise: on a corner of an array, the corner of the result ---------------------------------------------------------

INTEGERS = {
    "and",
    "or",
    "xor",
    "not",
    "shift_left",
    "shift_right_logical",
    "shift_right_arithmetic",
    "population_count",
    "clz",
}
SPECIAL = {"polygamma": "f f", "betainc": "f f f"}


def elementwise() -> list[Case]:
    cases = []
    for name, op in OPS.items():
        same_shape = op.pattern is Pattern.ELEMENTWISE or name in (
            "lgamma", "digamma", "bessel_i0e", "bessel_i1e", "igamma", "igammac", "zeta", "polygamma", "betainc",
            "population_count", "clz", "nextafter",
        )  # fmt: skip
        if not same_shape:
            continue
        kinds = ["i" if name in INTEGERS else "f"] * (op.n_inputs or 1)
        attrs: dict[str, Any] = {}
        if name == "select":
            kinds = ["b", "f", "f"]
        if name == "cast":
            attrs = {"dtype": np.dtype(np.int32)}
        cases.append(Case(name, [f"{c} m,n" for c in kinds], attrs, lambda *xs: xs))
    return cases


@pytest.mark.parametrize("case", elementwise(), ids=str)
def test_elementwise(case):
    graph = build(case)
    whole = evaluate(graph, arrays(case.inputs, {"m": 3, "n": 3, "k": 3}), {"m": 3, "n": 3, "k": 3})[0]
    for a, b in itertools.product(SIZES, repeat=2):
        (got,) = evaluate(graph, arrays(case.inputs, {"m": a, "n": b, "k": 3}), {"m": a, "n": b, "k": 3})
        np.testing.assert_array_equal(got, whole[:a, :b])


# --- everything else ----------------------------------------------------------------------------------------------------------

F = np.dtype(np.float32)
I32 = np.dtype(np.int32)


def reductions() -> list[Case]:
    table = {
        "reduce_sum": ("f", lambda x, a: x.sum(a)),
        "reduce_prod": ("f", lambda x, a: x.prod(a)),
        "reduce_max": ("f", lambda x, a: np.max(x, a, initial=-np.inf)),
        "reduce_min": ("f", lambda x, a: np.min(x, a, initial=np.inf)),
        "reduce_and": ("b", lambda x, a: np.all(x, a)),
        "reduce_or": ("b", lambda x, a: np.any(x, a)),
    }
    return [
        Case(op, [f"{kind} m,n,k"], {"axes": axes}, lambda x, fn=fn, axes=axes: fn(x, axes), name=f"{op}{axes}")
        for op, (kind, fn) in table.items()
        for axes in ((0,), (1, 2), (0, 1, 2), ())
    ]


def running() -> list[Case]:
    lax = {"cumsum": jax.lax.cumsum, "cumprod": jax.lax.cumprod, "cummax": jax.lax.cummax, "cummin": jax.lax.cummin}
    lax["cumlogsumexp"] = jax.lax.cumlogsumexp
    return [
        Case(
            op,
            ["f m,n"],
            {"axis": axis, "reverse": back},
            lambda x, fn=fn, axis=axis, back=back: _or_same(fn, x, axis, back),
        )
        for op, fn in lax.items()
        for axis, back in ((0, False), (1, True))
    ]


def _or_same(fn: Callable[..., Any], x: np.ndarray, axis: int, back: bool) -> Any:
    return x if x.size == 0 else fn(jnp.asarray(x), axis=axis, reverse=back)


def conv_expected(x: np.ndarray, w: np.ndarray) -> Any:
    return jax.lax.conv_general_dilated(x, w, (2, 1), ((1, 1), (0, 0)), dimension_numbers=("NCHW", "OIHW", "NCHW"))


def window_expected(x: np.ndarray) -> Any:
    if x.size == 0:
        counts = [max(s + 2 - 2, -1) // 1 + 1 if s + 2 >= 2 else 0 for s in x.shape[1:]]
        return np.full((x.shape[0], *counts), -np.inf, np.float32)
    return jax.lax.reduce_window(x, -np.inf, jax.lax.max, (1, 2), (1, 1), ((0, 0), (1, 1)))


CONV = {
    "strides": (2, 1), "padding": ((1, 1), (0, 0)), "base_dilation": (1, 1), "window_dilation": (1, 1), "groups": 1,
    "batch_groups": 1, "dtype": F,
}  # fmt: skip
GATHER = {
    "offset_dims": (1,), "collapsed_dims": (0,), "start_index_map": (0,), "operand_batch_dims": (), "indices_batch_dims": (),
    "slice_sizes": (1, n), "mode": "clip", "fill": 0,
}  # fmt: skip
SCATTER = {
    "kind": "add", "update_window_dims": (1,), "inserted_dims": (0,), "start_index_map": (0,), "operand_batch_dims": (),
    "indices_batch_dims": (), "mode": "fill",
}  # fmt: skip


def scatter_expected(x: np.ndarray, i: np.ndarray, u: np.ndarray) -> np.ndarray:
    out = x.copy()
    for row, at in enumerate(i[:, 0]):
        if 0 <= at < x.shape[0]:
            out[at] += u[row]
    return out


def unique_expected(x: np.ndarray) -> list[np.ndarray]:
    values, first, inverse, counts = np.unique(x, return_index=True, return_inverse=True, return_counts=True)
    return [values, first, inverse.reshape(x.shape), counts]


def take_expected(x: np.ndarray, i: np.ndarray) -> np.ndarray:
    return np.take(x, np.clip(i, 0, x.shape[0] - 1), axis=0)


def branch(scope: Scope, op: str) -> Graph:
    graph = Graph(scope, name=op)
    x = graph.add_input((m, n), F, "x")
    graph.outputs = [graph.add(op, x)]
    return graph


def loop(graph: Graph) -> dict[str, Any]:
    """``while i < 2: i, x = i + 1, x + x``."""
    test, body = Graph(graph.scope, name="test"), Graph(graph.scope, name="body")
    i, _ = test.add_input((), I32, "i"), test.add_input((m, n), F, "x")
    test.outputs = [test.add("lt", i, test.constant(2, I32))]
    i, x = body.add_input((), I32, "i"), body.add_input((m, n), F, "x")
    body.outputs = [body.add("add", i, body.constant(1, I32)), body.add("add", x, x)]
    return {"cond_graph": test, "body_graph": body, "cond_consts": 0, "body_consts": 0}


def scan(graph: Graph) -> dict[str, Any]:
    """The carry adds up the rows; each step also gives the sum so far."""
    body = Graph(graph.scope, name="body")
    carry, row = body.add_input((n,), F, "carry"), body.add_input((n,), F, "row")
    total = body.add("add", carry, row)
    body.outputs = [total, total]
    return {"body": body, "num_consts": 0, "num_carry": 1, "length": m, "reverse": False}


CASES = [
    *reductions(),
    *running(),
    Case("argmax", ["f m,n"], {"axis": 1, "dtype": I32}, lambda x: x.argmax(1), {"n": 1}),
    Case("argmin", ["f m,n"], {"axis": 0, "dtype": I32}, lambda x: x.argmin(0), {"m": 1}),
    Case("sort", ["f m,n"], {"axis": 1, "num_keys": 1}, lambda x: np.sort(x, 1)),
    Case("top_k", ["f m,n"], {"axis": 1, "k": 1, "dtype": I32}, lambda x: [x.max(1, keepdims=True), x.argmax(1)[:, None]], {"n": 1}),
    Case("gather", ["f m,n", "i k,1"], GATHER, lambda x, i: take_expected(x, i[:, 0]), {"m": 1}),
    Case("scatter", ["f m,n", "i k,1", "f k,n"], SCATTER, scatter_expected),
    Case("reduce_window", ["f m,n"], {
        "kind": "max", "window": (1, 2), "strides": (1, 1), "padding": ((0, 0), (1, 1)), "base_dilation": (1, 1), "window_dilation": (1, 1),
    }, window_expected),
    Case("conv", ["f m,3,n,k", "f 2,3,3,1"], CONV, conv_expected),
    Case("conv", ["f 2,3,5,4", "f k,3,3,1"], CONV, conv_expected, name="conv of no filters"),
    Case("nonzero", ["i m,n"], {}, lambda x: np.stack(np.nonzero(x))),
    Case("nonzero", ["b m"], {}, lambda x: np.stack(np.nonzero(x)), name="nonzero of a mask"),
    Case("unique", ["i m"], {"sorted": True}, unique_expected),
    Case("dot", ["f m,n", "f n,k"], {"contract": ((1,), (0,)), "batch": ((), ()), "dtype": F}, lambda a, b: a @ b),
    Case("dot", ["f m,n,2", "f m,k,2"], {"contract": ((2,), (2,)), "batch": ((0,), (0,)), "dtype": F},
         lambda a, b: np.einsum("mnx,mkx->mnk", a, b), name="batched dot"),
    Case("take", ["f m,n", "i k"], {"axis": 0, "mode": "clip"}, take_expected, {"m": 1}),
    Case("take", ["f m,n", "i k"], {"axis": 0, "mode": "fill", "fill": 0.5},
         lambda x, i: np.array([x[j] if j < x.shape[0] else np.full(x.shape[1], 0.5, F) for j in i], F).reshape(len(i), x.shape[1]),
         name="take with fill"),
    Case("take_along", ["f m,n", "i m,k"], {"axis": 1}, lambda x, i: np.take_along_axis(x, np.clip(i, 0, x.shape[1] - 1), 1), {"n": 1}),
    Case("dynamic_slice", ["f m,n", "i ", "i "], {"sizes": (m, 1)}, lambda x, a, b: x[:, min(b, x.shape[1] - 1) :][:, :1], {"n": 1}),
    Case("dynamic_update_slice", ["f m,n", "f m,1", "i ", "i "], {},
         lambda x, u, a, b: np.concatenate([x[:, : min(b, x.shape[1] - 1)], u, x[:, min(b, x.shape[1] - 1) + 1 :]], 1), {"n": 1}),
    Case("constant", [], {"value": np.zeros((0, 1), F)}, lambda: np.zeros((0, 1), F)),
    Case("dim", [], {"expr": m * n, "dtype": np.dtype(np.int64)}, None),
    Case("iota", [], {"shape": (m, n), "axis": 1, "dtype": I32}, None),
    Case("bitcast", ["f m,n"], {"dtype": I32}, lambda x: x.view(np.int32)),
    Case("threefry2x32", ["u m", "u m", "u m", "u m"], {}, None),
    Case("broadcast", ["f m"], {"shape": (n, m, k), "dims": (1,)}, None),
    Case("broadcast", ["f 1,n"], {"shape": (m, n), "dims": (0, 1)}, None, name="broadcast of a size 1"),
    Case("barrier", ["f m,n"], {}, lambda x: x),
    Case("reshape", ["f m,n"], {"shape": (m * n,)}, lambda x: x.reshape(-1)),
    Case("reshape", ["f m,n,2"], {"shape": (n, 2, m)}, None, name="reshape to another order"),
    Case("transpose", ["f m,n,k"], {"perm": (2, 0, 1)}, lambda x: x.transpose(2, 0, 1)),
    Case("slice", ["f m,n"], {"starts": (0, 0), "limits": (m, n), "strides": (2, 3)}, lambda x: x[::2, ::3]),
    Case("slice", ["f m,n + 2"], {"starts": (0, 1), "limits": (m, n + 1), "strides": (1, 1)}, lambda x: x[:, 1:-1], name="inner slice"),
    Case("rev", ["f m,n"], {"axes": (0, 1)}, lambda x: x[::-1, ::-1]),
    Case("pad", ["f m,n", "f "], {"low": (1, 0), "high": (0, 2), "interior": (0, 1)},
         lambda x, v: jax.lax.pad(x, v, ((1, 0, 0), (0, 2, 1)))),
    Case("pad", ["f m,n", "f "], {"low": (-1, 0), "high": (0, 0), "interior": (0, 0)}, lambda x, v: x[1:], {"m": 1}, name="pad that cuts"),
    Case("concat", ["f m,n", "f k,n"], {"axis": 0}, lambda a, b: np.concatenate([a, b], 0)),
    Case("concat", ["f m,n", "f m,k", "f m,n"], {"axis": 1}, lambda a, b, c: np.concatenate([a, b, c], 1), name="concat of three"),
    Case("cond", ["b ", "f m,n"], lambda g: {"branches": (branch(g.scope, "neg"), branch(g.scope, "exp"))},
         lambda p, x: np.exp(x) if p else -x),
    Case("while", ["i ", "f m,n"], loop, lambda i, x: [max(int(i), 2), x * 2.0 ** max(2 - int(i), 0)]),
    Case("scan", ["f n", "f m,n"], scan, lambda c, x: [c + x.sum(0), c + np.cumsum(x, 0)]),
]  # fmt: skip


def expected(case: Case, given: list[np.ndarray], sizes: dict[str, int]) -> list[Any]:
    a, b, c = (sizes[s] for s in "mnk")
    if case.expected is not None:
        found = case.expected(*given)
    elif case.op == "dim":
        found = a * b
    elif case.op == "iota":
        found = np.broadcast_to(np.arange(b), (a, b))
    elif case.name == "broadcast of a size 1":
        found = np.broadcast_to(given[0], (a, b))
    elif case.op == "broadcast":
        found = np.broadcast_to(given[0][:, None], (b, a, c))
    elif case.op == "reshape":
        found = given[0].reshape(b, 2, a)
    else:
        assert case.op == "threefry2x32"
        found = threefry2x32_p.bind(*given)
    return list(found) if isinstance(found, list | tuple) else [found]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_op(case):
    graph = build(case)
    used = sorted(
        {
            s
            for text in case.inputs
            for d in dims_of(text.partition(" ")[2])
            if not isinstance(d, int)
            for s in d.symbols
        }
    )
    used = used or ["m", "n", "k"]
    for point in itertools.product(SIZES, repeat=len(used)):
        sizes = {"m": 3, "n": 3, "k": 3} | dict(zip(used, point, strict=True))
        if case.op == "broadcast" and not case.name:
            sizes |= {"n": point[0], "k": 1}
        if any(sizes[s] < low for s, low in case.least.items()):
            continue
        if not all(check.rel.holds(sizes) for check in graph.scope.checks):
            continue
        given = arrays(case.inputs, sizes)
        got = evaluate(graph, given, sizes)
        want = expected(case, given, sizes)
        assert len(got) == len(want)
        for g, w in zip(got, want, strict=True):
            w = np.asarray(w)
            assert g.shape == w.shape, (sizes, g.shape, w.shape)
            np.testing.assert_allclose(
                np.asarray(g, np.float64), np.asarray(w, np.float64), 2e-5, 2e-6, err_msg=str(sizes)
            )


def test_every_op_of_the_table_is_here():
    """Composites and calls stand for bodies of these ops, which tests/passes/test_recognise.py and test_outline_random.py run."""
    ops = {name for name, op in OPS.items() if op.pattern is not Pattern.COMPOSITE and name != "call"}
    assert {c.op for c in (*CASES, *elementwise())} == ops


# --- through the compiler -------------------------------------------------------------------------------------------------------

FUNCTIONS: dict[str, tuple[Callable[..., Any], tuple[str, ...]]] = {
    "elementwise": (lambda x, y: jnp.tanh(x) * y + x, ("m, n", "m, n")),
    "softmax": (
        lambda x: jnp.exp(x - jnp.sum(x, 1, keepdims=True)) / (1 + jnp.sum(jnp.exp(x), 1, keepdims=True)),
        ("m, n",),
    ),
    "reduce everything": (lambda x: (jnp.sum(x), jnp.prod(x, 0), jnp.any(x > 0.5, axis=1)), ("m, n",)),
    "matrix product": (lambda x, w: x @ w + 1, ("m, n", "n, k")),
    "concat and transpose": (lambda x, y: jnp.concatenate([x, y, x], 0).T * 2, ("m, n", "k, n")),
    "reshape": (lambda x: (x.reshape(-1) + 1).reshape(x.shape[1], x.shape[0]), ("m, n",)),
    "outer": (lambda x, y: x[:, None] * y[None, :] + 1, ("m", "n")),
    "running sum": (lambda x: jnp.cumsum(x, 0) + x, ("m, n",)),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_compiled_once(name):
    fn, specs = FUNCTIONS[name]
    dims = {s: dvm.Dim(s, min=0, max=8) for s in "mnk" if any(s in text for text in specs)}
    program = dvm.compile(fn, *(dvm.spec(text, jnp.float32) for text in specs), dims=dims)
    before = dvm.stats()
    for point in itertools.product(SIZES, repeat=len(dims)):
        sizes = {"m": 3, "n": 3, "k": 3} | dict(zip(dims, point, strict=True))
        given = arrays([f"f {text}" for text in specs], sizes)
        got, want = program(*given), fn(*map(jnp.asarray, given))
        for g, w in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
            assert g.shape == w.shape, sizes
            np.testing.assert_allclose(
                np.asarray(g, np.float64), np.asarray(w, np.float64), 2e-5, 2e-6, err_msg=str(sizes)
            )
    assert (dvm.stats() - before).compiles == 0


def test_sizes_that_cannot_be_are_refused():
    with pytest.raises(CompileError, match="negative"):
        dvm.Dim("m", min=-1)
