"""Combinators of shape rules: symbolic results agree with NumPy at concrete sizes."""

import itertools

import numpy as np
import pytest

from symbolic import (
    Scope,
    broadcast,
    clamp_slice,
    concat_dim,
    evaluate,
    numel,
    pad_dim,
    require_same_shape,
    reshape,
    reshape_groups,
    same_shape,
    slice_dim,
    symbol,
    window_dim,
)
from vm.errors import CompileError


@pytest.fixture
def scope():
    sc = Scope()
    for name in "bshd":
        sc.declare(name)
    for name in "xyz":
        sc.declare(name, min=0)
    return sc


b, s, h, d, x, y, z = map(symbol, "bshdxyz")


def test_broadcast_of_known_relations_needs_no_check(scope):
    assert broadcast(scope, [(b, 1, 4), (s, 4), (1,)], "add") == (b, s, 4)
    assert broadcast(scope, [(b, s), (b, s)], "add") == (b, s)
    assert broadcast(scope, [(), (3,)], "add") == (3,)
    assert scope.checks == []


def test_row_7_a_symbol_against_a_number(scope):
    assert broadcast(scope, [(b, 16), (4, 16)], "add at model.py:3") == (4, 16)
    assert [str(c) for c in scope.checks] == ["b == 4 or b == 1  (add at model.py:3)"]
    assert scope.bounds(b) == (1, 4)


def test_row_8_three_unknown_sizes_agree_with_numpy(scope):
    (out,) = broadcast(scope, [(x,), (y,), (z,)], "add")
    legal = 0
    for sizes in itertools.product((0, 1, 5), repeat=3):
        values = dict(zip("xyz", sizes, strict=True))
        try:
            expected = np.broadcast_shapes(*[(n,) for n in sizes])[0]
        except ValueError:
            assert not all(c.rel.holds(values) for c in scope.checks), values
            continue
        legal += 1
        assert all(c.rel.holds(values) for c in scope.checks), values
        assert evaluate(out, values) == expected, values
    assert legal == 15


def test_broadcast_that_cannot_work(scope):
    with pytest.raises(CompileError, match="cannot be broadcast"):
        broadcast(scope, [(3,), (4,)], "add")


def test_a_wide_side_is_the_result(scope):
    scope.declare("w", min=2)
    w = symbol("w")
    assert broadcast(scope, [(x,), (w,)], "mul") == (w,)
    assert str(scope.checks[0].rel) == "x == w or x == 1"


def test_reshape_groups(scope):
    c = scope.declare("c", multiple_of=8)
    assert reshape_groups(scope, (b, s, 32), (b * s, 32)) == [((0, 1), (0,)), ((2,), (1,))]
    assert reshape_groups(scope, (b, s, h * d), (b, s, h, d)) == [((0,), (0,)), ((1,), (1,)), ((2,), (2, 3))]
    assert reshape_groups(scope, (c, s), (c // 8, 8, s)) == [((0,), (0, 1)), ((1,), (2,))]
    assert reshape_groups(scope, (1, b), (b, 1)) == [((0,), ()), ((1,), (0,)), ((), (1,))]
    assert reshape_groups(scope, (b, s), (s, b)) == [((0, 1), (0, 1))]
    assert reshape_groups(scope, (6, 4), (4, 6)) == [((0, 1), (0, 1))]
    assert reshape_groups(scope, (), (1,)) == [((), (0,))]
    assert reshape_groups(scope, (b, s), (b, h)) is None


def test_reshape_infers_minus_one(scope):
    u = scope.declare("u")
    assert reshape(scope, (4, u, 20), (-1, 80), "reshape") == (u, 80)  # row 11: no relation is demanded
    assert reshape(scope, (x, 8), (x, -1), "reshape") == (x, 8)  # cancels even where x may be 0
    assert reshape(scope, (b, s, h * d), (b * s, h, -1), "reshape") == (b * s, h, d)
    assert scope.checks == []
    assert reshape(scope, (b,), (-1, 8), "reshape") == (scope.simplify(b // 8), 8)
    assert [str(c.rel) for c in scope.checks] == ["b % 8 == 0"]
    assert scope.equal(b // 8 * 8, b)


def test_row_16_a_baked_shape_becomes_a_check(scope):
    out = reshape(scope, (b, 16, 144), (5, -1, 144), "Reshape_7")
    assert str(scope.checks[0].rel) == "b % 5 == 0" or str(scope.checks[0].rel) == "(16*b) % 5 == 0"
    assert evaluate(out[1], {"b": 5}) == 16
    with pytest.raises(CompileError, match="Reshape_8"):
        reshape(scope, (3, 7), (2, -1), "Reshape_8")
    with pytest.raises(CompileError, match="more than one"):
        reshape(scope, (3, 7), (-1, -1), "Reshape_9")


def test_reshape_to_a_full_shape_requires_equal_counts(scope):
    reshape(scope, (b, s), (s, b), "r1")
    assert scope.checks == []
    reshape(scope, (b, 6), (h, 3), "r2")
    assert scope.equal(h, 2 * b)


def test_same_shape_and_counts(scope):
    assert numel((b, s, 2)) == 2 * b * s and numel(()) == 1
    assert same_shape(scope, (b, s * 2), (b, s + s)) and not same_shape(scope, (b,), (s,))
    require_same_shape(scope, (b, 4), (s, 4), "add")
    assert scope.equal(b, s)
    with pytest.raises(CompileError, match="rank"):
        require_same_shape(scope, (b,), (b, 1), "add")


def test_row_17_sizes_print_as_people_write_them(scope):
    scope.declare("N", min=0)
    assert str(concat_dim(scope, [5, symbol("N")])) == "N + 5"
    assert str(reshape(scope, (b, s, 32), (-1, 32), "r")[0]) == "b*s"


def test_slices_agree_with_python(scope):
    n = symbol("x")
    for start, limit, step in itertools.product((-7, -2, 0, 1, 3, 9), (-8, -1, 0, 2, 5, 9), (1, 2, 3, -1, -2)):
        first, _, size = clamp_slice(scope, n, start, limit, step)
        for value in (0, 1, 2, 5, 8):
            expected = range(value)[slice(start, limit, step)] if step > 0 else range(value)[start:limit:step]
            assert evaluate(size, {"x": value}) == len(expected), (start, limit, step, value)
            if len(expected):
                assert evaluate(first, {"x": value}) == expected[0]
    assert slice_dim(scope, s, 0, s) == s and slice_dim(scope, s + 4, 1, s + 1) == s
    assert str(slice_dim(scope, s, 0, s, 2)) == "(s + 1)//2"


def test_windows(scope):
    assert window_dim(scope, h, 3, lo=1, hi=1) == h
    assert str(window_dim(scope, h, 2, stride=2)) == "h//2"
    for size, stride, pad, dilation, up in itertools.product((1, 2, 3), (1, 2, 3), (0, 1), (1, 2), (False, True)):
        out = window_dim(scope, x, size, stride, pad, pad, dilation, up)
        for n in range(12):
            extent = (size - 1) * dilation + 1
            starts = list(range(-pad, n + pad, stride))
            if up:
                count = (
                    len([p for p in starts if p < n and p + extent - stride < n + pad])
                    if n + 2 * pad >= extent
                    else None
                )
            else:
                count = len([p for p in starts if p + extent <= n + pad])
            if count is not None:
                assert evaluate(out, {"x": n}) == count, (size, stride, pad, dilation, up, n)


def test_padding(scope):
    assert pad_dim(scope, s, 1, 2) == s + 3 and pad_dim(scope, s, 0, 0, interior=1) == 2 * s - 1
    assert evaluate(pad_dim(scope, x, -2, 0), {"x": 1}) == 0
