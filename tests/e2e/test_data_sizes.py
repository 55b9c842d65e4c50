"""Sizes that only the data tells: a symbol of their own, bound when the operation that finds them has run. One compile for all counts."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from onnx import parser

import dvm
from codegen import compile_graph
from dvm import pipeline
from dvm.program import CompiledProgram
from graph_kernel import passes
from graph_kernel.ir import Graph
from symbolic import Scope, highest, parse
from tests.e2e.harness import check, random, simulate
from vm import serialise, validate
from vm.errors import CompileError, ProgramError, UnsupportedOp
from vm.program import DataSize, HostStep, Program

MASKS = {
    "none": lambda n: np.zeros(n, bool),
    "all": lambda n: np.ones(n, bool),
    "last": lambda n: np.arange(n) == n - 1,
    "third": lambda n: np.arange(n) % 3 == 1,
}


def model(body: str) -> onnx.ModelProto:
    return parser.parse_model(f'<ir_version: 9, opset_import: ["": 18]> {body}')


def words(what: onnx.ModelProto | Graph) -> Program:
    """The program alone, for the tests' tile machine."""
    graph = what if isinstance(what, Graph) else pipeline.from_onnx_model(what, None, ()).graph
    passes.optimise(graph)
    return compile_graph(graph)


CHAIN = model("""f (bool[n] m, float[n, 5] x) => (float[k, 5] e, float[k] rows, float[5] columns, float all) {
    zero = Constant<value = int64[1] {0}>()  one = Constant<value = int64[1] {1}>()
    where = NonZero(m)  at = Squeeze(where, zero)  g = Gather<axis = 0>(x, at)  t = Mul(g, g)  e = Exp(t)
    rows = ReduceSum<keepdims = 0>(e, one)  columns = ReduceSum<keepdims = 0>(e, zero)  all = ReduceMax<keepdims = 0>(g) }""")


def chain(m: np.ndarray, x: np.ndarray) -> list[np.ndarray]:
    g = x[m]
    e = np.exp(g * g)
    return [e, e.sum(1), e.sum(0), np.asarray(g.max(initial=-np.inf))]


def test_nonzero_gather_elementwise_reduce_in_every_tier() -> None:
    before = dvm.stats()
    program = dvm.compile(CHAIN, dims={"n": dvm.Dim(min=0, max=300)})
    assert (dvm.stats() - before).compiles == 1
    assert [k for k, s in program.symbols.items()] == ["n", "nonzero"]
    made = dvm.stats()
    reference = CompiledProgram(program.program, tier="reference")
    machine = program.program
    for n in (0, 1, 7, 129, 300):
        for name, mask in MASKS.items():
            m, x = mask(n), random((n, 5), scale=0.5)
            want = chain(m, x)
            results = {"specialised": program.run(None, {"m": m, "x": x})}
            if n <= 7 or name == "third" and n < 200:
                results["reference"] = reference.run(None, {"m": m, "x": x})
                results["machine"] = simulate(machine, m, x)
            for tier, got in results.items():
                for k, (a, b) in enumerate(zip(got, want, strict=True)):
                    check(a, b.astype(np.float32), 2e-5, f"{tier}, result {k} at {n}, {name}")
    assert (dvm.stats() - made).xla_compiles == 0 and (dvm.stats() - made).arena_growths == 0


def test_what_is_said_of_such_a_symbol() -> None:
    program = dvm.compile(CHAIN)
    said = [line for line in program.constraints if "nonzero" in line]
    assert said == [
        "0 <= nonzero  (NonZero at where, known once that has run)",
        "nonzero <= n  (NonZero at where)",
    ]
    assert program.outputs[0].text == ("nonzero", "5")
    bound = program.bind(n=9)
    assert bound.dims == {"n": 9} and bound.unknown and bound.waiting
    assert program.bind(n=9, nonzero=4).output_shapes[0] == (4, 5) and not program.bind(n=9, nonzero=4).unknown
    with pytest.raises(dvm.ShapeError, match="nonzero.*10.*9"):
        program.bind(n=9, nonzero=10)
    with pytest.raises(dvm.InputError, match="missing"):
        program.bind(nonzero=1)
    program.reserve(n=40)
    before = dvm.stats()
    check(program.run(None, {"m": np.ones(40, bool), "x": random((40, 5))})[0], np.exp(random((40, 5)) ** 2), 1e-5)
    assert (dvm.stats() - before).xla_compiles == 0


def test_saved_and_loaded(tmp_path: Any) -> None:
    program = dvm.compile(CHAIN)
    for strip in (False, True):
        program.save(tmp_path / "p.dvm", strip=strip)
        loaded = dvm.load(tmp_path / "p.dvm")
        for mask in MASKS.values():
            m, x = mask(11), random((11, 5), scale=0.5)
            for a, b in zip(loaded.run(None, {"m": m, "x": x}), chain(m, x), strict=True):
                check(a, b.astype(np.float32), 2e-5)


@settings(max_examples=25, deadline=None)
@given(hnp.arrays(bool, hnp.array_shapes(min_dims=2, max_dims=2, min_side=0, max_side=9)), st.integers(0, 99))
def test_a_boolean_mask_as_exporters_write_it(mask: np.ndarray, seed: int) -> None:
    """``x[mask]`` is NonZero, Transpose, GatherND."""
    x = random(mask.shape, seed=seed)
    (got, size) = simulate(MASKED, x, mask)
    check(got, np.tanh(x[mask]), 1e-5)
    check(size, np.asarray([mask.sum()], np.int64))


MASKED = words(
    model("""f (float[a, b] x, bool[a, b] m) => (float[k] y, int64[1] size) {
    i = NonZero(m)  at = Transpose(i)  g = GatherND(x, at)  y = Tanh(g)  size = Shape(y) }""")
)


def test_compress_along_axes_and_flat() -> None:
    for axis in (0, 1, None):
        option = "" if axis is None else f"<axis = {axis}>"
        rank = 1 if axis is None else 2
        out = "k" if axis is None else "k, l"
        program = words(
            model(f"f (float[a, b] x, bool[c] m) => (float[{out}] y) {{ z = Compress{option}(x, m) y = Neg(z) }}")
        )
        for a, b in ((1, 1), (3, 4), (7, 2)):
            x = random((a, b))
            full = a * b if axis is None else (a, b)[axis]
            for length in {0, full, max(full - 1, 0)}:
                for mask in MASKS.values():
                    m = mask(length)
                    (got,) = simulate(program, x, m)
                    check(got, -np.compress(m, x, axis).reshape(got.shape))
                    assert got.ndim == rank
            with pytest.raises(dvm.ShapeError, match="Compress"):
                simulate(program, x, np.ones(full + 1, bool))


def test_the_same_mask_twice_is_one_symbol_and_two_masks_are_a_check() -> None:
    one = words(
        model("""f (float[n] x, float[n] y, bool[n] m) => (float[k] z) {
        a = Compress<axis = 0>(x, m)  b = Compress<axis = 0>(y, m)  z = Add(a, b) }""")
    )
    assert [s.name for s in one.symbols] == ["n", "nonzero"] and not one.checks
    two = words(
        model("""f (float[n] x, bool[n] m, bool[n] o) => (float[k] z, float[l] s) {
        a = Compress<axis = 0>(x, m)  b = Compress<axis = 0>(x, o)  s = Exp(a)  z = Add(a, b) }""")
    )
    x = random((6,))
    m, o = np.arange(6) < 3, np.arange(6) >= 3
    check(simulate(one, x, 2 * x, m)[0], 3 * x[:3])
    check(simulate(two, x, m, o)[0], x[:3] + x[3:])
    check(simulate(two, x, m, np.arange(6) == 2)[0], x[:3] + x[2])  # one entry is broadcast
    with pytest.raises(dvm.ShapeError, match=r"Add.*nonzero.*3.*nonzero_1.*2|Add.*nonzero_1 = 2.*nonzero = 3"):
        simulate(two, x, m, np.arange(6) > 3)


@pytest.mark.parametrize("axis, sort", [(None, 1), (None, 0), (0, 1), (1, 0), (1, 1)])
def test_unique(axis: int | None, sort: int) -> None:
    option = f"<sorted = {sort}{'' if axis is None else f', axis = {axis}'}>"
    out = "k" if axis is None else "k, l"
    program = words(
        model(f"""f (float[a, b] x) => (float[{out}] y, int64[p] i, int64[q] v, int64[r] c) {{
        u, i, v, c = Unique{option}(x)  y = Exp(u) }}""")
    )
    for shape in ((1, 1), (4, 3), (7, 2), (2, 9)):
        x = np.round(random(shape) * 0.7)
        got, first, inverse, counts = simulate(program, x)
        values, at, back, many = np.unique(x, True, True, True, axis=axis)
        if not sort:
            order = np.argsort(at)
            values = np.take(values, order, axis or 0)
            back = np.argsort(order)[back.reshape(-1)]
            at, many = at[order], many[order]
        check(got, np.exp(values).astype(np.float32), 1e-5)
        for a, b in ((first, at), (inverse, back), (counts, many)):
            check(a, b.reshape(-1).astype(np.int64))


def test_a_size_is_known_before_what_only_its_number_needs() -> None:
    """No value of NonZero is used, only how many there are: the nodes that need the number come after it all the same."""
    program = words(
        model("""f (float[n] x, float[n] m) => (float[k] y, int64[1] count, float[n] z) {
        one = Constant<value = int64[1] {1}>()  i = NonZero(m)  s = Shape(i)  count = Gather(s, one)
        f = ConstantOfShape<value = float[1] {2.5}>(count)  y = Exp(f)  z = Exp(x) }""")
    )
    assert isinstance(program.steps[0], HostStep)
    for n, chosen in ((0, 0), (5, 0), (5, 3), (130, 130)):
        x, m = random((n,)), (np.arange(n) < chosen).astype(np.float32)
        y, count, z = simulate(program, x, m)
        check(y, np.full(chosen, np.exp(np.float32(2.5))), 1e-5)
        check(count, np.asarray([chosen], np.int64))
        check(z, np.exp(x), 1e-5)


def test_one_such_size_inside_another() -> None:
    """What the second mask chooses from is what the first one chose; other values live between and after."""
    program = dvm.compile(
        model("""f (float[n, 3] x, float[3, 4] w) => (float[k] r, float[l, 4] p, float[m] q) {
        zero = Constant<value = float {0.0}>()  first = Constant<value = int64[1] {0}>()  last = Constant<value = int64[1] {1}>()
        s = ReduceSum<keepdims = 0>(x, last)  a = Greater(s, zero)  c = Compress<axis = 0>(x, a)
        p = MatMul(c, w)  t = ReduceMax<keepdims = 0>(p, last)  s1 = Constant<value = float {1.5}>()  b = Less(t, s1)
        d = Compress<axis = 0>(c, b)  r = ReduceSum<keepdims = 0>(d, last)  q = Neg(s) }""")
    )
    w = random((3, 4), seed=5)
    for n in (1, 0, 7, 200, 7):
        x = random((n, 3), seed=n)
        chosen = x[x.sum(1) > 0]
        p = chosen @ w
        r, got, q = program.run(None, {"x": x, "w": w})
        check(got, p, 1e-5)
        check(r, chosen[p.max(1) < 1.5].sum(1) if len(p) else np.zeros(0, np.float32), 1e-4)
        check(q, -x.sum(1), 1e-4)


def test_inside_a_branch_or_body_it_is_refused_by_name() -> None:
    m = model("""f (float[n] x, bool c) => (float[] y) {
        y = If (c) <
          then_branch = g1 () => (float[] a) { i = NonZero(x)  s = Cast<to = 1>(i)  a = ReduceSum<keepdims = 0>(s) },
          else_branch = g2 () => (float[] b) { b = ReduceSum<keepdims = 0>(x) }> }""")
    with pytest.raises(UnsupportedOp, match="nonzero.*branch or a loop body"):
        dvm.compile(m)


def test_most_that_a_size_can_be() -> None:
    scope = Scope()
    n, b = scope.declare("n", 0), scope.declare("b")
    k = scope.fresh("k", 0)
    tops = {"k": n * b}
    for text, want in (
        ("k + 3", "n*b + 3"),
        ("n - k", "n"),
        ("b*(n*b - k)", "n*b*b"),
        ("max(k, 7) * 2", "2*max(n*b, 7)"),
        ("(k + 7)//8*8", "(n*b + 7)//8*8"),
        ("k % 5", "4"),
        ("n // (k + 1)", "n"),
    ):
        assert str(highest(scope, parse(text), tops)) == str(parse(want)), text
        top = highest(scope, parse(text), tops)
        for values in ((0, 1), (3, 2), (5, 1)):
            at = dict(zip("nb", values, strict=True))
            most = max(parse(text).evaluate({**at, "k": x}) for x in range(values[0] * values[1] + 1))
            assert most <= (top if isinstance(top, int) else top.evaluate(at)), text
    with pytest.raises(CompileError, match="no upper limit"):
        highest(scope, parse("n // (k - 3)"), tops)
    assert scope.bounds(k) == (0, None)


def test_damaged_files_are_refused() -> None:
    program = words(CHAIN)
    (size,) = program.data_sizes
    data = program.symbols.index(next(s for s in program.symbols if s.name == "nonzero"))
    damage = {
        "not one host step": DataSize(0, 0, size.limit),
        "axis": DataSize(size.buffer, 9, size.limit),
        "register": DataSize(size.buffer, size.axis, 1 << 20),
        "limit depends on data": DataSize(size.buffer, size.axis, data),
    }
    for said, broken in damage.items():
        with pytest.raises(ProgramError, match=said):
            validate.validate(dataclasses.replace(program, data_sizes=(broken,)))
    with pytest.raises(ProgramError, match="solved"):
        validate.validate(dataclasses.replace(program, data_sizes=()))
    place = next(i for i, b in enumerate(program.buffers) if b.offset is not None)
    moved = dataclasses.replace(program.buffers[place], offset=data)
    buffers = (*program.buffers[:place], moved, *program.buffers[place + 1 :])
    with pytest.raises(ProgramError, match="place in memory depends on data"):
        validate.validate(dataclasses.replace(program, buffers=buffers))
    # the limit is what memory was laid out for: a result that is larger never reaches a buffer
    zero = next(r for r in range(program.code.n_registers) if not program.code.run((5, 0))[r] and r >= 2)
    small = dataclasses.replace(program, data_sizes=(DataSize(size.buffer, size.axis, zero),))
    if zero not in validate.dependents(program.code, data, data + 1):
        with pytest.raises(dvm.ShapeError, match="more than"):
            simulate(serialise.loads(serialise.dumps(small)), np.ones(5, bool), random((5, 5)))


def test_programs_without_such_sizes_do_not_pay() -> None:
    program = dvm.compile(lambda x: x * 2, dvm.spec("n", n=dvm.Dim(max=9)))
    assert program.program.data_sizes == () and program.bind(n=3).unknown == program.bind(n=3).waiting == frozenset()
