"""The API on the real compiler and machine: the three forms, jit, saving, bad input. Small programs; the models have tests of their own."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import dvm

rng = np.random.default_rng(0)


def normal(*shape):
    return rng.standard_normal(shape).astype(np.float32)


def mlp(params, x):
    return {"y": jax.nn.gelu(x @ params["w"] + params["b"]), "norm": jnp.sqrt(jnp.sum(x * x, -1))}


PARAMS = {"w": normal(8, 6), "b": normal(6)}


@pytest.fixture(scope="module")
def program():
    return dvm.compile(mlp, PARAMS, dvm.spec("n, 8", n=dvm.Dim(max=512)))


def agrees(result, x):
    expected = mlp(PARAMS, x)
    assert jax.tree.structure(result) == jax.tree.structure(expected)
    for got, want in zip(jax.tree.leaves(result), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5)


def test_a_function_at_every_size_without_a_compile(program):
    program(PARAMS, normal(3, 8))
    before = dvm.stats().xla_compiles
    inputs = [normal(n, 8) for n in (1, 512, 7, 128, 129, 127, 3)]
    results = [program(PARAMS, x) for x in inputs]  # results are held: later launches must not overwrite them
    assert dvm.stats().xla_compiles == before
    for result, x in zip(results, inputs, strict=True):
        agrees(result, x)
    assert isinstance(results[0]["y"], jax.Array)


def test_typed_random_keys_are_arguments():
    def noise(key, x):
        return x * jax.random.uniform(key, x.shape)

    program, jitted = dvm.compile(noise, jax.random.key(0), dvm.spec("n")), dvm.jit(noise)
    for seed, n in ((0, 3), (1, 5), (2, 8)):
        key, x = jax.random.key(seed), np.ones(n, np.float32)
        for function in (program, jitted):
            np.testing.assert_array_equal(function(key, x), jax.random.uniform(key, (n,)))
    with pytest.raises(dvm.ShapeError, match="'key' axis 0 is 4"):
        program(jax.random.key(0, impl="rbg"), x)


def test_reserving_more_than_there_is_is_an_out_of_memory():
    program = dvm.compile(lambda x: x + 1, dvm.spec("n"))
    with pytest.raises(dvm.OutOfMemory, match="reserve needs"):
        program.reserve(n=10**15)
    np.testing.assert_array_equal(program(np.ones(3, np.float32)), np.full(3, 2))


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((PARAMS, normal(513, 8)), dvm.ShapeError, "n.*513.*512"),
        ((PARAMS, normal(0, 8)), dvm.ShapeError, "n.*is 0"),
        ((PARAMS, normal(3, 9)), dvm.ShapeError, "'x' axis 1 is 9"),
        ((PARAMS, normal(8)), dvm.InputError, r"argument 1 \(x\): expected 2 dimensions"),
        ((PARAMS, np.ones((3, 8), np.int32)), dvm.InputError, r"argument 1 \(x\): expected dtype float32, got int32"),
        ((PARAMS,), dvm.InputError, "missing x"),
        (({"w": PARAMS["w"]}, normal(3, 8)), dvm.InputError, r"argument 0: wrong dict keys: missing \['b'\]"),
    ],
)
def test_bad_input_is_refused_and_the_program_still_works(program, arguments, error, message):
    with pytest.raises(error, match=message):
        program(*arguments)
    x = normal(5, 8)
    agrees(program(PARAMS, x), x)


def test_save_and_load(program, tmp_path):
    program.save(tmp_path / "p.dvm")
    loaded = dvm.load(tmp_path / "p.dvm")
    x = normal(9, 8)
    ours, theirs = program(PARAMS, x), loaded(PARAMS, x)
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_array_equal(a, b)
    assert loaded.symbols == program.symbols and loaded.constraints == program.constraints
    assert [k.ops for k in loaded.kernels] == [k.ops for k in program.kernels]
    assert loaded.disassemble() == program.disassemble()
    program.save(tmp_path / "s.dvm", strip=True)
    stripped = dvm.load(tmp_path / "s.dvm")
    agrees(stripped(PARAMS, x), x)
    assert len(stripped.kernels) >= 1 and "stripped" in str(stripped.explain())
    with pytest.raises(dvm.ShapeError, match="n.*513.*512"):
        stripped(PARAMS, normal(513, 8))
    with pytest.raises(dvm.ProgramError, match="cannot read"):
        dvm.load(tmp_path / "no.dvm")


def test_equal_graphs_give_equal_files(program):
    from vm import serialise

    again = dvm.compile(mlp, PARAMS, dvm.spec("n, 8", n=dvm.Dim(max=512)))
    assert serialise.dumps(again.program) == serialise.dumps(program.program)
    assert "seconds" in again.explain().to_dict()["passes"][0]


def test_it_says_what_it_did(program):
    assert list(program.symbols) == ["n"] and program.symbols["n"].max == 512
    assert any("n <= 512" in line for line in program.constraints)
    ops = [op for kernel in program.kernels for op in kernel.ops]
    assert "dot" in ops and "reduce_sum" in ops
    assert "test_real.py" in str(program.explain())
    assert "mmad" in program.disassemble()
    assert program.bind(n=7).output_shapes[-1] == (7, 6)
    with pytest.raises(dvm.ShapeError, match="n"):
        program.bind(n=513)


def test_every_cut_between_kernels_has_a_reason():
    def layer(w, x):
        return jax.nn.silu(x @ w) @ w

    program = dvm.compile(layer, dvm.spec("8, 8"), dvm.spec("n, 8"))
    first, second = program.kernels
    (cut,) = program.explain().to_dict()["cuts"]
    assert (cut["from"], cut["to"]) == (first.name, second.name) and "one product makes" in cut["reason"]
    assert f"{first.name} | {second.name}" in str(program.explain())
    assert first.ops[0] == "dot" and "logistic" in first.ops and second.ops == ("dot",)


def test_what_runs_on_the_host_is_counted_and_shown():
    program = dvm.compile(lambda x: jnp.sort(x * 2), dvm.spec("n"))
    assert [(row["op"], row["count"]) for row in program.explain().to_dict()["host"]] == [("sort", 1)]
    assert "host operations:\n  sort x1" in str(program.explain())
    before = dvm.stats()
    x = normal(9)
    np.testing.assert_array_equal(program(x), np.sort(x * 2))
    assert (dvm.stats() - before).host_ops == 1


def test_a_closed_jaxpr():
    (b,) = jax.export.symbolic_shape("b")
    jaxpr = jax.make_jaxpr(lambda x, y: (x * 2 + y, jnp.max(x)))(jax.ShapeDtypeStruct((b, 3), jnp.float32), normal(3))
    program = dvm.compile(jaxpr, dims={"b": dvm.Dim(max=10)})
    x, y = normal(4, 3), normal(3)
    first, second = program(x, y)
    np.testing.assert_allclose(first, x * 2 + y, rtol=1e-6)
    assert second == x.max()
    with pytest.raises(dvm.ShapeError, match="b"):
        program(normal(11, 3), y)


def model(dims_a=("n", 4), dims_b=("n", 4)):
    nodes = [
        helper.make_node("Add", ["a", "b"], ["s"], name="add"),
        helper.make_node("ReduceMax", ["s"], ["m"], keepdims=0),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, d) for n, d in (("a", dims_a), ("b", dims_b))],
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in ("s", "m")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


def test_onnx_by_position_and_by_name(tmp_path):
    onnx.save(model(), tmp_path / "m.onnx")
    a, b = normal(5, 4), normal(5, 4)
    for source in (model(), str(tmp_path / "m.onnx"), tmp_path / "m.onnx"):
        program = dvm.compile(source, dims={"n": dvm.Dim(min=0, max=100)})
        s, m = program(a, b)
        np.testing.assert_array_equal(s, a + b)
        assert m == (a + b).max()
    s, m = program.run(None, {"b": b, "a": a})
    np.testing.assert_array_equal(s, a + b)
    (m,) = program.run(["m"], {"a": a, "b": b})
    assert m.shape == () and type(m) is np.ndarray
    assert program(b=b, a=a)[1] == m
    with pytest.raises(dvm.InputError, match="unknown 'c'; missing 'b'"):
        program.run(None, {"a": a, "c": b})
    with pytest.raises(dvm.ShapeError, match="'a'.*'b'"):
        program(a, normal(6, 4))
    with pytest.raises(dvm.InputError, match="input 'a': expected dtype float32, got float64"):
        program(a.astype(np.float64), b)
    with pytest.raises(dvm.ShapeError, match="101"):
        program(normal(101, 4), normal(101, 4))


def test_onnx_that_cannot_be_compiled(tmp_path):
    data = model().SerializeToString()
    for cut in (10, len(data) // 2):
        (tmp_path / "cut.onnx").write_bytes(data[:cut])
        with pytest.raises(dvm.CompileError):
            dvm.compile(tmp_path / "cut.onnx")
    with pytest.raises(dvm.CompileError):
        dvm.compile(tmp_path / "missing.onnx")
    strange = model()
    strange.graph.node[0].op_type = "NoSuchOp"
    with pytest.raises(dvm.UnsupportedOp, match="NoSuchOp"):
        dvm.compile(strange)
    with pytest.raises(dvm.CompileError, match="width"):
        dvm.compile(model(), dims={"width": dvm.Dim()})


def test_jit_compiles_twice_and_agrees():
    calls = 0

    @dvm.jit
    def f(x, w):
        nonlocal calls
        calls += 1
        return jax.nn.softmax(x @ w, -1)

    w = normal(8, 8)
    before = dvm.stats()
    for n in (3, 5, 1, 0, 40):
        x = normal(n, 8)
        np.testing.assert_allclose(f(x, w), jax.nn.softmax(x @ w, -1), rtol=1e-5, atol=1e-6)
    assert (dvm.stats() - before).compiles == 2 == len(f.programs)
    traced = calls
    np.testing.assert_allclose(jax.grad(lambda x: f(x, w).sum())(normal(3, 8)), np.zeros((3, 8)), atol=1e-5)
    assert calls > traced
    assert jax.vmap(f, (0, None))(normal(2, 3, 8), w).shape == (2, 3, 8)


def test_64_bit_results_are_numpy_unless_x64_is_enabled():
    a = helper.make_tensor_value_info("a", TensorProto.INT64, ["n"])
    b = helper.make_tensor_value_info("b", TensorProto.INT64, ["n"])
    graph = helper.make_graph([helper.make_node("Add", ["a", "a"], ["b"])], "g", [a], [b])
    program = dvm.compile(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10))
    big = np.array([1 << 40, 3], np.int64)
    (result,) = program(big)
    assert type(result) is np.ndarray and result.dtype == np.int64 and list(result) == [1 << 41, 6]
    with jax.enable_x64(True):
        (result,) = program(big)
        assert isinstance(result, jax.Array) and result.dtype == np.int64


def test_constraints_are_checked_at_launch():
    program = dvm.compile(
        lambda x, y: jnp.concatenate([x, y]), dvm.spec("a"), dvm.spec("b"), constraints=["a + b <= 10", "a % 2 == 0"]
    )
    assert program(normal(4), normal(6)).shape == (10,)
    with pytest.raises(dvm.ShapeError, match=r"a \+ b <= 10"):
        program(normal(4), normal(7))
    with pytest.raises(dvm.ShapeError, match="a"):
        program(normal(3), normal(1))
    (c,) = jax.export.symbolic_shape("c", constraints=["c >= 4"])  # JAX's own constraints count as well
    own = dvm.compile(lambda x: x * 2, jax.ShapeDtypeStruct((c,), jnp.float32))
    assert own(normal(4)).shape == (4,)
    with pytest.raises(dvm.ShapeError, match="c"):
        own(normal(3))


def test_multiple_of_and_min_0_are_what_jax_needs():
    program = dvm.compile(lambda x: x.reshape(-1, 8).sum(1), dvm.spec("s", s=dvm.Dim(min=0, multiple_of=8)))
    for n in (0, 8, 64, 136):
        assert program(normal(n)).shape == (n // 8,)
    with pytest.raises(dvm.ShapeError, match="s.*multiple of 8"):
        program(normal(12))
    assert list(program.symbols) == ["s"]
    with pytest.raises(dvm.CompileError, match="s.*multiple"):
        dvm.compile(lambda x: x.reshape(-1, 8).sum(1), dvm.spec("s"))
