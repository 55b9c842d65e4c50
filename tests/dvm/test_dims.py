"""``dvm.Dim`` and ``dvm.spec``: what can be declared, how declarations travel, and what contradicts itself."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dvm
from dvm.dims import declared


def test_spec_is_a_shape_dtype_struct():
    spec = dvm.spec("b, 2*s + 1, 4096", jnp.bfloat16, s=dvm.Dim("s", max=8192))
    assert isinstance(spec, jax.ShapeDtypeStruct)
    assert [str(d) for d in spec.shape] == ["b", "2*s + 1", "4096"]
    assert spec.dtype == jnp.bfloat16
    assert declared([spec.shape]) == {"s": dvm.Dim("s", max=8192)}


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ("", ()),
        ("b", ("b",)),
        ("(b, 3)", ("b", "3")),
        ("(b + 1)*2, 3", ("2*b + 2", "3")),
        ((2, "b", "b + 1"), ("2", "b", "b + 1")),
        ((dvm.Dim("n", min=2), 7), ("n", "7")),
        (5, ("5",)),
        ([np.int64(5)], ("5",)),
        ("max(b, 16), b", ("max(b, 16)", "b")),
        ("b//2, b%4, b^2, -1 + b", ("floordiv(b, 2)", "mod(b, 4)", "b^2", "b - 1")),
        ("b, 3,", ("b", "3")),
        ("0", ("0",)),
    ],
)
def test_shapes(shape, expected):
    assert tuple(map(str, dvm.spec(shape).shape)) == expected
    assert dvm.spec(shape).dtype == np.float32


@pytest.mark.parametrize(
    ("shape", "dims", "message"),
    [
        ("b, ?", {}, "cannot read the shape"),
        ("b c", {}, "cannot read the shape"),
        ("b.c", {}, "is not a size"),
        ("f(b, 2)", {}, "unknown function 'f'"),
        ("b/2", {}, "is not a size"),
        ("b//0", {}, "division by zero"),
        ("b", {"c": dvm.Dim()}, "does not use the declared dimension 'c'"),
        ("b", {"b": dvm.Dim("c")}, "declared with Dim\\('c', ...\\): the names differ"),
        ("b", {"b": 3.5}, "expected a dvm.Dim"),
        ((dvm.Dim("b"), dvm.Dim("b", max=3)), {}, "declared twice and differently"),
        ((dvm.Dim(), 2), {}, "needs a name"),
        ("-3", {}, "negative size"),
        (("b", 2.5), {}, "must be a whole number"),
    ],
)
def test_shapes_that_are_refused(shape, dims, message):
    with pytest.raises(dvm.CompileError, match=message):
        dvm.spec(shape, **dims)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"min": -1}, "cannot be negative"),
        ({"min": 5, "max": 4}, "no size from 5 to 4"),
        ({"min": 1, "max": 7, "multiple_of": 8}, "no size that is a multiple of 8 from 1 to 7"),
        ({"multiple_of": 0}, "at least 1"),
        ({"max": "8"}, "max must be a whole number"),
        ({"name": ""}, "non-empty string"),
        ({"name": 3}, "non-empty string"),
    ],
)
def test_dims_that_are_refused(arguments, message):
    with pytest.raises(dvm.CompileError, match=message):
        dvm.Dim(**arguments)


def test_a_dim_is_a_value():
    assert dvm.Dim("s", max=np.int64(8)) == dvm.Dim("s", 1, 8)
    assert dvm.Dim("s", 1, 8, 4).range_text == "1 <= s <= 8, multiple of 4"
    assert dvm.Dim("s", min=0, max=0).max == 0


def test_declarations_survive_what_jax_does_with_specs():
    spec = dvm.spec("b, s", b=dvm.Dim(max=8), s=dvm.Dim(multiple_of=8))
    copies = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[::-1], jnp.int32), {"k": [spec]})
    assert declared([copies["k"][0].shape]) == {"b": dvm.Dim("b", max=8), "s": dvm.Dim("s", multiple_of=8)}
    result = jax.eval_shape(lambda x: x.sum(0), spec)
    assert "s" in declared([result.shape])


def test_declarations_of_several_specs_are_joined_and_must_agree():
    x = dvm.spec("b, s", b=dvm.Dim(max=8))
    y = dvm.spec("s, b", s=dvm.Dim(max=9), b=dvm.Dim(max=8))
    assert list(declared([x.shape, y.shape])) == ["b", "s"]
    with pytest.raises(dvm.CompileError, match=r"'b' is declared twice and differently: 1 <= b <= 8; and 1 <= b <= 7"):
        declared([x.shape, dvm.spec("b", b=dvm.Dim(max=7)).shape])
    assert declared([x.shape], {"s": dvm.Dim(max=4)})["s"] == dvm.Dim("s", max=4)
    assert declared([x.shape], {"s": 4})["s"] == dvm.Dim("s", 4, 4)
    with pytest.raises(dvm.CompileError, match="no input has a dimension 'q'; the inputs have b, s"):
        declared([x.shape], {"q": dvm.Dim()})
    with pytest.raises(dvm.CompileError, match="declared twice"):
        declared([x.shape], {"b": dvm.Dim()})


def test_dims_of_jax_itself_are_accepted():
    (b,) = jax.export.symbolic_shape("b", constraints=["b <= 8"])
    assert declared([(b, 3)]) == {}
    assert declared([(b, 3)], {"b": dvm.Dim(max=8)}) == {"b": dvm.Dim("b", max=8)}


def test_declarations_die_with_their_scope():
    import gc

    from dvm import dims

    before = len(dims._declared)
    for _ in range(50):
        dvm.spec("b", b=dvm.Dim())
    gc.collect()
    assert len(dims._declared) <= before + 5


def test_a_dtype_that_is_none():
    with pytest.raises(dvm.CompileError, match="'floaty' is no dtype"):
        dvm.spec("b", "floaty")
