"""What the front end says when it cannot go on, and that places in messages name no folders."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.export import symbolic_shape

import dvm
import dvm.pipeline
from graph_kernel.from_jaxpr import trace
from tests.graph_kernel.jaxpr_cases import D, specs
from vm.errors import CompileError, UnsupportedOp

F32 = jnp.float32
MATRIX = specs(("b, s", F32))


def test_all_missing_primitives_are_listed_once():
    def body(c, a):
        return c, jnp.fft.fft(a).real

    def fn(x):
        y = jnp.linalg.svd(x, compute_uv=False).sum()
        return jax.lax.scan(body, 0.0, x)[1] + jnp.fft.fft(x).imag + y

    with pytest.raises(UnsupportedOp) as err:
        trace(fn, MATRIX)
    text = str(err.value)
    for part in ("5 operations", "fft: 2x", "svd: 1x", "real: 1x", "imag: 1x", "test_jaxpr_errors.py:"):
        assert part in text, text
    assert "/" not in text


def test_unused_primitives_are_not_missing():
    trace(lambda x: (jnp.linalg.svd(x), x + 1)[1], MATRIX)


@pytest.mark.parametrize(
    "fn,args,dims,message",
    [
        (
            lambda x: x if x.shape[0] > 3 else -x,
            MATRIX,
            {},
            r'b > 3 .*Dim\("b", min=4\) .*true, Dim\("b", max=3\) .*false',
        ),
        (lambda x: x if x.shape[0] > 3 else -x, MATRIX, {"b": D("b", multiple_of=2)}, r"b > 3 for every size"),
        (
            lambda x: x if x.shape[0] >= x.shape[1] else -x,
            MATRIX,
            {},
            r'constraints=\["b >= s"\] makes it true.*"b < s"\] makes it false',
        ),
        (lambda x: x[: max(x.shape[0] - 4, 0)], MATRIX, {}, "max_dim"),
        (lambda x: x.reshape(4, -1), MATRIX, {}, r'multiple_of=4\) or Dim\("s", multiple_of=4\)'),
        (lambda x: x * float(x.shape[0]), MATRIX, {}, "used as a number"),
        (lambda x: [x for _ in range(x.shape[0])], MATRIX, {}, "used as a number.*fori_loop"),
        (lambda x: np.asarray(x) + 1, MATRIX, {}, "use jax.numpy in its place"),
        (lambda x, y: x + y, specs(("b, 2", F32), ("c, 2", F32)), {}, "every size of b, c"),
        (lambda x: x + 1, MATRIX, {"q": D("q")}, "no argument has a dimension named 'q'"),
        (lambda x: x + 1, MATRIX, {"b": D("q")}, "names must agree"),
    ],
)
def test_questions_about_sizes_name_the_dim_and_the_fact_that_helps(fn, args, dims, message):
    with pytest.raises(CompileError, match=message):
        trace(fn, args, dims=dims)


HELPS = {  # what stops, what the error names, and that declaration
    "max over a size that may be 0": (
        lambda x: x.max(),
        'Dim("n", min=1)',
        {"n": dvm.Dim(min=0)},
        {"n": dvm.Dim(min=1)},
    ),
    "argmin along it": (lambda x: jnp.argmin(x, 0), 'Dim("n", min=1)', {"n": dvm.Dim(min=0)}, {"n": dvm.Dim(min=1)}),
    "rows of 8": (lambda x: x.reshape(-1, 8), 'Dim("n", multiple_of=8)', {}, {"n": dvm.Dim(multiple_of=8)}),
    "an equal split": (lambda x: jnp.split(x, 3), 'Dim("n", multiple_of=3)', {}, {"n": dvm.Dim(multiple_of=3)}),
    "a size against a number": (lambda x: x if x.shape[0] > 3 else -x, 'Dim("n", min=4)', {}, {"n": dvm.Dim(min=4)}),
    "top k": (lambda x: jax.lax.top_k(x, 4)[0], 'Dim("n", min=4)', {}, {"n": dvm.Dim(min=4)}),
    "a window": (lambda x: jax.lax.dynamic_slice(x, (0,), (5,)), 'Dim("n", min=5)', {}, {"n": dvm.Dim(min=5)}),
}


@pytest.mark.parametrize("name", HELPS)
def test_the_declaration_that_the_error_names_helps(name):
    fn, said, without, with_it = HELPS[name]
    with pytest.raises(CompileError) as err:
        dvm.compile(fn, dvm.spec("n"), dims=without)
    assert said in str(err.value) and "test_jaxpr_errors.py:" in str(err.value), str(err.value)
    dvm.pipeline.from_function(fn, [dvm.spec("n")], {}, with_it)


@pytest.mark.parametrize(
    "fn, constraint",
    [
        (lambda x, y: x if x.shape[0] >= y.shape[0] else x + 1, "n >= m"),
        (lambda x, y: x if x.shape[0] < y.shape[0] else x + 1, "n < m"),
        (lambda x, y: jnp.stack([x, y]), "n == m"),
        (lambda x, y: jax.lax.scan(lambda c, a: (c, a[0] + a[1]), 0.0, (x, y))[1], "n == m"),
        (lambda x, y: x @ y, "n == m"),
    ],
)
def test_the_constraint_that_the_error_names_helps(fn, constraint):
    with pytest.raises(CompileError) as err:
        dvm.compile(fn, dvm.spec("n"), dvm.spec("m"))
    assert f'"{constraint}"' in str(err.value), str(err.value)
    dvm.pipeline.from_function(fn, [dvm.spec("n"), dvm.spec("m")], {}, None, [constraint])


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: x if x.sum() > 0 else -x,
        lambda x: x[x > 0],
        lambda x: jnp.nonzero(x)[0],
        lambda x: jnp.unique(x),
        lambda x: x[: int(x.sum())],
    ],
)
def test_values_that_only_the_data_tells(fn):
    with pytest.raises(CompileError, match=r"only the data tells at test_jaxpr_errors.py:.*lax.cond.*size="):
        dvm.compile(fn, dvm.spec("n"))


@pytest.mark.parametrize("fn", [lambda x: x * int(x.shape[0]), lambda x: x + np.zeros(x.shape[0])])
def test_sizes_used_as_numbers(fn):
    with pytest.raises(CompileError, match="used as a number at test_jaxpr_errors.py:"):
        dvm.compile(fn, dvm.spec("n"))


def test_a_branch_on_a_declared_range_is_decided():
    traced = trace(lambda x: x if x.shape[0] > 3 else -x, MATRIX, dims={"b": D("b", min=4, max=9)})
    assert not traced.graph.nodes


def test_equality_that_jax_cannot_decide_is_required_not_assumed():
    def fn(x):
        if x.shape[0] == 3 or x.shape[0] == 0 or (x.shape[1], 4) != x.T.shape:
            return x * 2
        return x

    traced = trace(fn, specs(("b, 4", F32)))
    checks = [(str(c.rel), str(c.origin)) for c in traced.graph.scope.checks]
    assert [rel for rel, _ in checks] == ["b != 3", "b != 4"] and "test_jaxpr_errors.py" in checks[0][1]
    assert traced.graph.scope.holds({"b": 2}) and not traced.graph.scope.holds({"b": 3})
    with pytest.raises(CompileError):  # nothing else is left of b
        trace(fn, specs(("b, 4", F32)), dims={"b": D("b", min=3, max=3)})


def test_a_dim_of_another_scope():
    (c,) = symbolic_shape("c")
    with pytest.raises(CompileError, match="another symbolic scope at test_jaxpr_errors.py"):
        trace(lambda x: x.shape[0] * c, MATRIX)


def test_a_dim_that_no_argument_has():
    scope = jax.export.SymbolicScope()
    b, c = symbolic_shape("b, c", scope=scope)
    with pytest.raises(CompileError, match="'c' is not in the shape of any argument"):
        trace(lambda x: x.sum() + jnp.zeros(c), [jax.ShapeDtypeStruct((b,), F32)])


def test_closing_over_a_dim_of_the_arguments_own_scope():
    (b,) = symbolic_shape("b")
    traced = trace(lambda x: x + jnp.zeros(b), [jax.ShapeDtypeStruct((b,), F32)])
    assert str(traced.graph.outputs[0].shape[0]) == "b"


def test_dims_of_several_scopes_are_one_by_name():
    args = [specs(("b, s", F32))[0], specs(("b, s", F32))[0]]
    traced = trace(lambda x, y: x + y, args)
    assert len(traced.graph.scope.symbols) == 2 and not traced.graph.scope.checks


def test_other_errors_pass_through():
    def fn(x):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        trace(fn, MATRIX)
    with pytest.raises(TypeError, match="incompatible shapes"):
        trace(lambda x: x + np.zeros((3, 4)), [np.zeros((2, 4))])


def test_origins_name_the_source_line():
    traced = trace(lambda x: jnp.tanh(x), MATRIX)
    (node,) = traced.graph.nodes
    assert node.origin.op == "tanh" and node.origin.place.startswith("test_jaxpr_errors.py:")


def test_same_function_same_graph():
    def text():
        traced = trace(lambda x: jax.nn.softmax(x) @ x.T + x.shape[0], MATRIX)
        return [(repr(n), sorted((k, str(v)) for k, v in n.attrs.items())) for n in traced.graph.nodes]

    assert text() == text()


@pytest.mark.parametrize(
    "fn, shapes, facts",
    [
        (lambda x, y: x + y, ("a, b, 4", "c, d, 4"), ["a == c", "b == d"]),
        (lambda x, y: x[: y.shape[0]] * y, ("a", "c"), ["c <= a"]),
        (lambda x, y: x[:, : y.shape[0]] * y, ("b, a", "c"), ["c <= a"]),
        (lambda x, y: x @ y, ("a, c", "d, 4"), ["c == d"]),
        (lambda x, y: jnp.concatenate([x, y]), ("a, c", "d, e"), ["c == e"]),
    ],
)
def test_the_facts_that_are_missing_are_named_and_help(fn, shapes, facts):
    """What the message says to declare makes it compile."""
    given = [dvm.spec(shape, F32) for shape in shapes]
    with pytest.raises(CompileError) as error:
        dvm.compile(fn, *given)
    assert f"constraints=[{', '.join(f'{chr(34)}{fact}{chr(34)}' for fact in facts)}]" in str(error.value)
    dvm.compile(fn, *given, constraints=facts)
