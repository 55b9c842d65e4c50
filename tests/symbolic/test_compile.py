"""What a user sees of the engine: declared constraints, launch checks and their failures, explanations, JAX's and ONNX's dims."""

import jax.numpy as jnp
import numpy as np
import onnx
import pytest
from onnx import parser

import dvm
from vm.errors import CompileError, ShapeError

f32 = jnp.float32


def ones(*shape: int) -> np.ndarray:
    return np.ones(shape, np.float32)


@pytest.fixture(scope="module")
def program() -> dvm.CompiledProgram:
    """The three constraints of the documentation, each used or checked."""

    def fn(x, y, past, w):
        return jnp.sum(x) + jnp.sum(y) + jnp.sum(past) + w.reshape(-1, 8).sum()

    return dvm.compile(
        fn,
        *(dvm.spec(name, f32) for name in ("b", "s", "past", "h")),
        constraints=["s <= 4*b", "h % 8 == 0", "past + s <= 4096"],
        tier="reference",
    )


def test_constraints_are_used_and_checked_at_launch(program):
    assert float(program(ones(2), ones(8), ones(3), ones(16))) == 29
    with pytest.raises(ShapeError) as info:
        program(ones(2), ones(9), ones(3), ones(16))
    text = str(info.value)
    assert "s <= 4*b" in text and "input 'x' axis 0 (b) is 2" in text and "input 'y' axis 0 (s) is 9" in text
    with pytest.raises(ShapeError, match="'h' is 12, but it must be a multiple of 8"):
        program(ones(2), ones(8), ones(3), ones(12))
    with pytest.raises(ShapeError, match="past \\+ s <= 4096"):
        program(ones(2000), ones(4000), ones(97), ones(16))
    assert float(program(ones(1), ones(4), ones(4092), ones(8))) == 1 + 4 + 4092 + 8


def test_symbols_say_who_introduced_them(program):
    assert program.symbols["b"].origin == "input 'x' axis 0"
    assert program.symbols["h"].multiple_of == 8
    lines = program.constraints
    assert any(line.startswith("1 <= b  (input 'x'") for line in lines)
    assert sum("at launch" in line for line in lines) == 2


def test_a_contradiction_names_the_clashing_facts():
    with pytest.raises(CompileError) as info:
        dvm.compile(
            lambda x, y: jnp.sum(x) + jnp.sum(y),
            dvm.spec("b", f32),
            dvm.spec("s", f32, s=dvm.Dim(min=100)),
            constraints=["s <= 4*b", "b <= 20"],
        )
    text = str(info.value)
    assert "b <= 20 can never hold" in text and "s <= 4*b" in text and "100 <= s" in text


def test_a_contradiction_with_an_equality_is_said_in_the_words_of_the_user():
    """JAX replaces b by 2*s where they are declared equal, which must not show."""
    with pytest.raises(CompileError) as info:
        dvm.compile(lambda x: x + 1, dvm.spec("b, s", f32), constraints=["b == 2*s", "b % 2 == 1"])
    assert "the constraint b % 2 == 1" in str(info.value) and "the constraint b == 2*s" in str(info.value)


def test_constraints_are_quoted_as_they_were_written():
    program = dvm.compile(lambda x, y: (x, y), dvm.spec("b", f32), dvm.spec("s", f32), constraints=["4*b >= s"])
    with pytest.raises(ShapeError, match=r"\(the constraint 4\*b >= s\)"):
        program(jnp.ones(1, f32), jnp.ones(5, f32))


@pytest.mark.parametrize(
    ("constraint", "message"),
    [("q <= 4*b", "the dimensions are b"), ("b <= 4b", "column"), ("b =< 4", "column"), ("b + 1", "expected")],
)
def test_a_constraint_that_cannot_be_read(constraint, message):
    with pytest.raises(CompileError, match=message):
        dvm.compile(lambda x: x * 2, dvm.spec("b", f32), constraints=[constraint])


@pytest.mark.parametrize(
    ("fn", "specs", "helps"),
    [
        (lambda w: w.reshape(-1, 8), ["h"], 'Dim("h", multiple_of=8)'),
        (lambda x: x * 2 if x.shape[0] > 3 else x, ["b"], 'Dim("b", min=4)'),
        (lambda x, y: x + y, ["a", "b"], 'constraints=["a == b"]'),
    ],
)
def test_where_jax_stops_the_error_says_which_fact_helps(fn, specs, helps):
    with pytest.raises(CompileError) as info:
        dvm.compile(fn, *(dvm.spec(s, f32) for s in specs))
    assert helps in str(info.value) and "test_compile.py" in str(info.value)


@pytest.mark.parametrize(
    ("fn", "specs", "options"),
    [
        (lambda w: w.reshape(-1, 8) + 1, ["h"], {"dims": {"h": dvm.Dim("h", multiple_of=8)}}),
        (lambda w: w.reshape(-1, 8) + 1, ["h"], {"constraints": ["h % 8 == 0"]}),
        (lambda w: w.reshape(-1, 24) + 1, ["h"], {"constraints": ["h % 8 == 0", "h % 6 == 0"]}),
        (lambda x: x * 2 if x.shape[0] > 3 else x, ["b"], {"dims": {"b": dvm.Dim("b", min=4)}}),
        (lambda x, y: x + y, ["a", "b"], {"constraints": ["a == b"]}),
        (lambda x: x[:6] * 1, ["b"], {"constraints": ["b >= 6"]}),
    ],
)
def test_and_with_that_fact_it_compiles(fn, specs, options):
    assert dvm.compile(fn, *(dvm.spec(s, f32) for s in specs), tier="reference", **options).kernels


def test_launch_checks_are_minimal():
    """Of a, b, c that are all added, two equalities are left; what follows from them is not checked again."""
    model = onnx.ModelProto()
    model.CopyFrom(
        parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
        m (float[a, 4] x, float[b, 4] y, float[c, 4] z) => (float[n, 4] out) {
            p = Add (x, y)
            q = Mul (p, z)
            r = Sub (q, x)
            out = Add (r, y)
        }""")
    )
    wide = {n: dvm.Dim(n, min=2) for n in "abc"}
    program = dvm.compile(model, dims=wide, tier="reference")
    checks = [c for c in program.constraints if c.startswith("at launch")]
    assert len(checks) == 2 and "a == b" in checks[0] and "Add" in checks[0]
    facts = [f for k in program.kernels for f in k.facts]
    assert any("a == b" in f or "b == a" in f for f in facts), facts
    assert "given" in str(program.explain())


def test_a_baked_constant_of_an_exporter_is_a_named_check():
    text = """<ir_version: 8, opset_import: ["" : 17]>
    m (float[`batch size`, past + seq] x) => (float[n, 4] y) <int64[2] shape = {-1, 4}> {
        y = Reshape (x, shape)
    }"""
    model = parser.parse_model(text.replace("`batch size`", "B").replace("past + seq", "S"))
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "batch size"
    model.graph.input[0].type.tensor_type.shape.dim[1].dim_param = "3*h"
    model.graph.node[0].name = "to_fours"
    program = dvm.compile(model, tier="reference")
    assert set(program.symbols) == {"batch size", "h"}
    (out,) = program.run(None, {"x": ones(4, 6)})
    assert out.shape == (6, 4)
    with pytest.raises(ShapeError) as info:
        program.run(None, {"x": ones(1, 6)})
    message = str(info.value)
    assert "to_fours" in message and "input 'x' axis 0 (`batch size`) is 1" in message and "is 6" in message
    with pytest.raises(ShapeError, match="3\\*h"):
        program.run(None, {"x": ones(4, 7)})


def test_a_baked_constant_that_no_size_meets_is_refused_at_load():
    model = parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
    m (float[4, B] x) => (float[n, 3] y) <int64[2] shape = {5, 3}> { y = Reshape (x, shape) }""")
    with pytest.raises(CompileError, match="as many elements as .5, 3., needed by Reshape at y"):
        dvm.compile(model, tier="reference")
