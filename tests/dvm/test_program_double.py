"""Calling, running and saving programs: what is accepted and what the errors say."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dvm_double import install

import dvm


@pytest.fixture
def double(monkeypatch):
    return install(monkeypatch)


def f(x, cache, *, scale):
    return {"y": x * scale + cache["k"][0], "n": jnp.sum(x > 0), "none": None}


@pytest.fixture
def program(double):
    cache = {"k": [dvm.spec("b, s"), dvm.spec("3", jnp.int32)]}
    return dvm.compile(f, dvm.spec("b, s", b=dvm.Dim(max=8)), cache, scale=dvm.spec(""))


def feeds(b=2, s=3):
    return np.ones((b, s), np.float32), {"k": [np.ones((b, s), np.float32), np.zeros(3, np.int32)]}


def test_trees_in_and_out(program):
    x, cache = feeds()
    result = program(x, cache, scale=np.float32(2))
    assert list(result) == ["n", "none", "y"] and result["none"] is None
    assert isinstance(result["y"], jax.Array) and result["y"].shape == (2, 3)
    np.testing.assert_array_equal(result["y"], 3 * np.ones((2, 3)))
    assert program(x, cache, scale=2).keys() == result.keys()  # a Python number is a scalar
    assert program(cache=cache, x=x, scale=2).keys() == result.keys()


def test_run_by_name(program):
    x, cache = feeds()
    values = {"x": x, "cache['k'][0]": cache["k"][0], "cache['k'][1]": cache["k"][1], "scale": np.float32(2)}
    assert [s.name for s in program.inputs] == list(values)
    results = program.run(None, values)
    assert all(type(r) is np.ndarray for r in results) and len(results) == 2
    names = [s.name for s in program.outputs]
    (y,) = program.run(names[-1:], values)
    np.testing.assert_array_equal(y, 3 * np.ones((2, 3)))
    with pytest.raises(dvm.InputError, match="unknown 'z'; missing 'scale'"):
        program.run(None, {k: v for k, v in values.items() if k != "scale"} | {"z": x})
    with pytest.raises(dvm.InputError, match="unknown output 'q'"):
        program.run(["q"], values)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x, c: (x[0], c), r"argument 0 \(x\): expected 2 dimensions \[b, s\], got 1: shape \(3,\)"),
        (lambda x, c: (x.astype(np.int32), c), r"argument 0 \(x\): expected dtype float32, got int32"),
        (lambda x, c: (x.astype(np.float16), c), r"argument 0 \(x\): expected dtype float32, got float16"),
        (lambda x, c: (x, {"k": [x]}), r"argument 1 \['k'\]: expected a list of 2"),
        (
            lambda x, c: (x, {"k": [x, x[0]]}),
            r"argument 1 \['k'\]\[1\] \(cache\['k'\]\[1\]\): expected dtype int32, got float32",
        ),
        (lambda x, c: (x, {"k": [x, "text"]}), r"argument 1 \['k'\]\[1\].*expected dtype int32"),
        (lambda x, c: (2.5, c), r"argument 0 \(x\): expected 2 dimensions"),
        (lambda x, c: (x, {"k": [x, [1, 2, 3]]}), r"argument 1 \['k'\]\[1\]: expected an array, got a list"),
        (lambda x, c: (dvm.spec("2, 3"), c), r"argument 0 \(x\): expected an array, got ShapeDtypeStruct"),
        (lambda x, c: (x,), r"f: expected 3 arguments, got 2; missing cache; it takes \(x, cache, scale\)"),
        (lambda x, c: (x, c, x), "f: expected 3 arguments, got 4"),
    ],
)
def test_wrong_inputs_are_named_and_the_program_still_works(program, change, message):
    with pytest.raises(dvm.InputError, match=message) as caught:
        program(*change(*feeds()), scale=np.float32(1))
    assert type(caught.value) is dvm.InputError
    assert program(*feeds(5, 4), scale=1)["y"].shape == (5, 4)


def test_sizes_that_break_a_constraint(program):
    x, cache = feeds()
    with pytest.raises(dvm.ShapeError, match="x.*cache"):  # both inputs that disagree on s are named
        program(np.ones((2, 5), np.float32), cache, scale=1)
    with pytest.raises(dvm.ShapeError, match="must be 3"):
        program(x, {"k": [x, np.zeros(4, np.int32)]}, scale=1)
    assert program(x, cache, scale=1)["y"].shape == (2, 3)


def test_64_bit_numpy_arrays_become_what_jax_makes_of_them(double):
    program = dvm.compile(lambda x, n: x * n, dvm.spec("b"), dvm.spec("", np.int32))
    assert program(np.ones(3), np.int64(2)).dtype == np.float32  # float64 and int64, x64 is off
    with pytest.raises(dvm.InputError, match="expected dtype float32, got int64"):
        program(np.ones(3, np.int64), np.int64(2))
    with pytest.raises(dvm.InputError, match="expected int32, got a Python float"):
        program(np.ones(3), 2.5)
    with pytest.raises(dvm.InputError, match="does not fit int32"):
        program(np.ones(3), 1 << 40)


def test_arrays_fix_their_shapes_and_numbers_are_scalars(double):
    program = dvm.compile(lambda x, w, a: (x @ w) * a, dvm.spec("b, 3"), np.ones((3, 2), np.float32), 2.0)
    assert [spec.text for spec in program.inputs] == [("b", "3"), ("3", "2"), ()]
    assert program(np.ones((5, 3), np.float32), jnp.ones((3, 2)), 4.0).shape == (5, 2)
    with pytest.raises(dvm.ShapeError, match="'w' axis 1 is 4, but it must be 2"):
        program(np.ones((5, 3), np.float32), np.ones((3, 4), np.float32), 4.0)


def test_dims_and_constraints_arguments(double):
    program = dvm.compile(lambda x, y: x + y, dvm.spec("2*a"), dvm.spec("2*b"), constraints=["a == b"])
    assert list(program.symbols) in (["a"], ["b"])  # JAX keeps one of the two
    assert program(np.ones(4, np.float32), np.ones(4, np.float32)).shape == (4,)
    with pytest.raises(dvm.ShapeError):
        program(np.ones(4, np.float32), np.ones(6, np.float32))
    with pytest.raises(dvm.CompileError, match="no input has a dimension 'q'"):
        dvm.compile(lambda x: x, dvm.spec("b"), dims={"q": dvm.Dim()})
    with pytest.raises(dvm.CompileError, match="names q; the dimensions are b"):
        dvm.compile(lambda x: x, dvm.spec("b"), constraints="q <= 3")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((3,), "compile takes a JAX function"),
        ((lambda x: x, "text"), r"argument 0 \(x\): expected a ShapeDtypeStruct or an array, got a str; .*partial"),
        ((lambda x: x, {"k": dvm.Dim("b")}), r"argument 0 \['k'\].*write dvm.spec"),
        (("model.onnx", dvm.spec("b")), "only a function takes specs"),
    ],
)
def test_compile_refuses(double, arguments, message):
    with pytest.raises(dvm.CompileError, match=message):
        dvm.compile(*arguments)


def test_unknown_tier(double):
    with pytest.raises(dvm.CompileError, match="unknown tier 'fast'; there are auto"):
        dvm.compile(lambda x: x, dvm.spec("b"), tier="fast")


def test_bind_reserve_and_wait(program):
    bound = program.bind(b=2, s=5)
    assert bound.input_shapes[0] == (2, 5)
    assert program.bind({"b": 2, "s": 5}).dims == {"b": 2, "s": 5}
    for arguments, message in (({"b": 2}, "missing dimension s"), ({"b": 2, "s": 1, "q": 1}, "unknown dimension 'q'")):
        with pytest.raises(dvm.InputError, match=message):
            program.bind(arguments)
    with pytest.raises(dvm.InputError, match="whole number"):
        program.bind(b=2.5, s=1)
    assert program.reserve(b=8, s=64) is program and program.executable.reserved == {"b": 8, "s": 64}
    with pytest.raises(dvm.ShapeError, match="reserve: dimension 'b' is 0, but it has 1 <= b"):
        program.reserve(b=0, s=64)
    assert program.wait() is program


def test_what_it_says_about_itself(program):
    assert list(program.symbols) == ["b", "s"]
    assert program.kernels[0].name == "k0" and program.kernels[0].ops == ("add",)
    text = str(program.explain())
    assert "1 kernel," in text and "k0: add" in text and "from here" in text
    assert program.explain().to_dict()["kernels"] == [{"name": "k0", "ops": ["add"], "origin": ["here"], "facts": []}]
    assert repr(program).startswith("<dvm program f(x: float32[b, s], cache['k'][0]: float32[b, s]")


def test_stats_count(double):
    before = dvm.stats()
    dvm.compile(lambda x: x, dvm.spec("b"))
    after = dvm.stats()
    assert (after - before).compiles == 1 == after["compiles"] - before["compiles"]
    assert after.launches >= 0 and dict(after)["compiles"] == after.compiles
    with pytest.raises(AttributeError, match="no counter 'nothing'"):
        _ = after.nothing


def test_xla_compiles_are_counted_less_cache_hits():
    before = dvm.stats().xla_compiles
    jax.jit(lambda x: x * 2 + 1.2345)(jnp.ones(3))
    between = dvm.stats().xla_compiles
    assert between > before
    jax.jit(lambda x: x)  # not called: nothing is compiled
    assert dvm.stats().xla_compiles == between
