"""What ``dvm.jit`` decides: which dims become symbols, how often it compiles, and what it says about it."""

from __future__ import annotations

import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dvm_double import install

import dvm


@pytest.fixture
def double(monkeypatch):
    return install(monkeypatch)


def ones(*shape, dtype=np.float32):
    return np.ones(shape, dtype)


def test_first_call_is_compiled_for_its_shapes_and_a_changed_dim_becomes_a_symbol(double):
    f = dvm.jit(lambda x: x * 2)
    for n in (3, 3, 5, 7, 3, 1, 0):
        assert f(ones(n, 4)).shape == (n, 4)
    assert double.compiles == 2
    first, second = f.programs
    assert [spec.text for spec in first.inputs] == [("3", "4")]
    assert list(second.symbols) == ["x_0"]
    assert "argument 0 (x): axis 1 = 4: fixed, the same in every call so far" in second.constraints


def test_dims_that_were_equal_so_far_share_a_symbol_until_they_differ(double):
    f = dvm.jit(lambda x, y: (x * 2, y + 1))
    f(ones(3), ones(3))
    f(ones(5), ones(5))
    assert double.compiles == 2
    assert list(f.programs[-1].symbols) == ["x_0"]
    assert any(
        "argument 0 (x) axis 0 == argument 1 (y) axis 0: equal in every call" in c for c in f.programs[-1].constraints
    )
    f(ones(5), ones(6))
    assert double.compiles == 3
    assert list(f.programs[-1].symbols) == ["x_0", "y_0"]
    for n, m in ((1, 9), (9, 1), (4, 4)):
        f(ones(n), ones(m))
    assert double.compiles == 3


def test_a_large_number_of_dims_compiles_at_most_once_per_dim_that_changes(double):
    double.values = False
    f = dvm.jit(lambda *xs: sum(jnp.sum(x) for x in xs))
    rng = np.random.default_rng(0)
    for _ in range(40):
        f(*(ones(rng.integers(1, 9), rng.integers(1, 9)) for _ in range(3)))
    assert double.compiles <= 1 + 6


def attention(q, k, v, past_k, past_v, mask):
    k, v = jnp.concatenate([past_k, k], 1), jnp.concatenate([past_v, v], 1)
    scores = jnp.einsum("bsd,btd->bst", q, k) + mask
    return jnp.einsum("bst,btd->bsd", jax.nn.softmax(scores), v), k, v


@pytest.mark.parametrize(
    ("calls", "compiles"),
    [
        ([(2, 7, 0), (2, 1, 7)], 2),
        ([(1, 5, 3), (2, 4, 9)], 2),
        ([(1, 1, 5), (3, 2, 0)], 2),
        # Here the mask's width was past + 1, or was the sequence, in both calls.
        ([(1, 1, 1), (1, 1, 2)], 3),
        ([(1, 7, 0), (1, 9, 0)], 3),
    ],
)
def test_an_attention_layer_with_a_cache_and_a_mask(double, calls, compiles):
    double.values = False
    f = dvm.jit(attention)
    for b, s, p in [*calls, (3, 1, 9), (1, 16, 0), (2, 5, 3), (1, 1, 1)]:
        x, past = ones(b, s, 8), ones(b, p, 8)
        out, k, _ = f(x, x, x, past, past, ones(b, s, p + s))
        assert out.shape == (b, s, 8) and k.shape == (b, p + s, 8)
    assert double.compiles == compiles, f.programs[-1].constraints


@pytest.mark.parametrize("first", [(1, 1, 1), (1, 7, 0), (2, 7, 3), (3, 1, 64)])
@pytest.mark.parametrize("second", [(1, 1, 2), (1, 9, 0), (2, 1, 7), (3, 7, 7)])
def test_an_attention_layer_with_a_cache_compiles_twice(double, first, second):
    """Whichever of batch, sequence and past changes first; thrice where the sequence and the past were equal or 7 in both calls."""
    double.values = False
    f = dvm.jit(lambda q, k, v, past_k, past_v: attention(q, k, v, past_k, past_v, 0))
    for b, s, p in [first, second, (3, 1, 9), (1, 16, 0), (2, 5, 3), (1, 1, 1), (2, 2, 2)]:
        f(*[ones(b, s, 8)] * 3, *[ones(b, p, 8)] * 2)
    assert double.compiles == (3 if second == (3, 7, 7) and first != (3, 1, 64) else 2)


def test_a_size_the_function_decides_by_stays_fixed_and_says_why(double):
    def f(x):
        return x * 2 if x.shape[0] > 4 else x + jnp.ones(x.shape[1])

    g = dvm.jit(f)
    for n, m in ((3, 2), (3, 4), (6, 4), (6, 9), (8, 9), (3, 5)):
        np.testing.assert_array_equal(g(ones(n, m)), f(ones(n, m)))
    notes = [c for p in g.programs for c in p.constraints]
    assert any("argument 0 (x) axis 0 is fixed at 6, other sizes get their own program" in note for note in notes), (
        notes
    )
    assert any("Inconclusive" in note or "symbolic" in note for note in notes), notes
    g(ones(6, 30))
    assert double.compiles == len(g.programs) <= 6


def test_sizes_that_must_be_multiples(double):
    f = dvm.jit(lambda x: x.reshape(-1, 4, x.shape[1]).sum(1))
    for n in (8, 16, 24, 40):
        assert f(ones(n, 3)).shape == (n // 4, 3)
    assert double.compiles == 2
    assert any("multiple of 8" in c for c in f.programs[-1].constraints)
    assert f(ones(12, 3)).shape == (3, 3)
    assert double.compiles == 3


def test_an_error_in_the_function_is_the_functions_own(double):
    f = dvm.jit(lambda x, y: x + y)
    f(ones(3), ones(3))
    with pytest.raises(Exception, match="incompatible shapes"):
        f(ones(4), ones(6))
    for n in (5, 9, 0):
        assert f(ones(n), ones(n)).shape == (n,)
    assert double.compiles == 2


def test_sizes_without_code_get_programs_of_their_own(double, monkeypatch):
    import codegen

    real = codegen.compile_graph

    def refuses_symbols(graph, options):
        if graph.dims:
            raise dvm.CompileError("no code for this at every size")
        return real(graph, options)

    monkeypatch.setattr(codegen, "compile_graph", refuses_symbols)
    f = dvm.jit(lambda x: x * 2)
    for n in (3, 4, 5, 4):
        assert f(ones(n)).shape == (n,)
    assert len(f.programs) == 3
    assert any("fixed at 5" in c and "no code for this" in c for c in f.programs[-1].constraints)


def test_dtype_rank_tree_and_static_arguments_make_new_entries(double):
    f = dvm.jit(lambda x, n=1: jax.tree.map(lambda v: v * n, x), static_argnums=1)
    f(ones(3))
    f(ones(3, dtype=np.int32))
    f(ones(3, 1))
    f([ones(3)])
    assert double.compiles == 4
    np.testing.assert_array_equal(f(ones(3), 4), 4 * ones(3))
    f(ones(3), 4)
    assert double.compiles == 5
    f(ones(3), 4.0)  # another type than 4
    f(ones(3), n=4)  # static by name too
    assert double.compiles == 7
    with pytest.raises(dvm.InputError, match="static argument 1 must be hashable"):
        f(ones(3), [4])


def test_specs_mean_one_compile(double):
    f = dvm.jit(lambda x, y: x @ y, specs=(dvm.spec("n, k", k=dvm.Dim(max=64)), dvm.spec("k, 3")))
    for n, k in ((1, 2), (5, 7), (9, 64)):
        assert f(ones(n, k), ones(k, 3)).shape == (n, 3)
    assert f(y=ones(4, 3), x=ones(2, 4)).shape == (2, 3)
    assert double.compiles == 1
    with pytest.raises(dvm.InputError, match="argument 0"):
        f(ones(3), ones(3, 3))


def test_keyword_arguments(double):
    f = dvm.jit(lambda x, *, scale: x * scale)
    np.testing.assert_array_equal(f(ones(3), scale=np.float32(2)), 2 * ones(3))
    np.testing.assert_array_equal(f(ones(4), scale=np.float32(3)), 3 * ones(4))
    assert double.compiles == 2


def test_python_numbers_are_weakly_typed(double):
    f = dvm.jit(lambda x, a: x * a)
    assert f(jnp.ones(3, jnp.bfloat16), 2).dtype == jnp.bfloat16
    assert f(jnp.ones(3, jnp.bfloat16), 2.5).dtype == jnp.bfloat16
    assert double.compiles == 2
    f(jnp.ones(3, jnp.bfloat16), 3.5)
    assert double.compiles == 2


def test_nests_in_jax_transformations(double):
    f = dvm.jit(lambda x: jnp.sin(x) * 2)
    x = jnp.arange(3.0)
    np.testing.assert_allclose(jax.jit(lambda x: f(x) + 1)(x), f(x) + 1)
    np.testing.assert_allclose(jax.grad(lambda x: f(x).sum())(x), 2 * jnp.cos(x))
    np.testing.assert_allclose(jax.vmap(f)(jnp.ones((2, 3))), 2 * jnp.sin(jnp.ones((2, 3))))
    np.testing.assert_allclose(jax.lax.scan(lambda c, v: (c + f(v), f(c)), jnp.float32(0), x)[0], f(x).sum(), rtol=1e-6)
    closed = jax.jit(lambda y: dvm.jit(lambda x: x * y)(jnp.ones(3)))  # the tracer comes in by the closure
    np.testing.assert_array_equal(closed(2.0), 2 * jnp.ones(3))
    assert double.compiles == 1


def test_a_compiled_program_refuses_tracers(double):
    program = dvm.compile(lambda x: x * 2, dvm.spec("n"))
    with pytest.raises(dvm.InputError, match="tracer.*dvm.jit"):
        jax.jit(program)(jnp.ones(3))


def test_methods(double):
    class Model:
        @dvm.jit
        def __call__(self, x):
            return x * self.scale

        def __init__(self, scale):
            self.scale = scale

        def __hash__(self):
            return hash(self.scale)

        def __eq__(self, other):
            return self.scale == other.scale

    jax.tree_util.register_pytree_node(Model, lambda m: ((m.scale,), None), lambda _, c: Model(c[0]))
    np.testing.assert_array_equal(Model(3.0)(ones(2)), 3 * ones(2))


def test_threads_compile_once(double):
    double.values = False
    f = dvm.jit(lambda x: x * 2)
    f(ones(2))
    threads = [threading.Thread(target=f, args=(ones(n),)) for n in range(3, 19)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert double.compiles == 2


def test_trace_and_lower(double):
    f = dvm.jit(lambda x: (x * 2).sum(-1))
    traced = f.trace(dvm.spec("n, 4"))
    assert str(traced.out_info.shape) == "(n,)"
    assert "mul" in str(traced.jaxpr)
    program = f.lower(dvm.spec("n, 4")).compile()
    assert program(ones(6, 4)).shape == (6,)
    assert isinstance(program, dvm.CompiledProgram)
    assert double.compiles == 1


def test_decorator_forms_and_names(double):
    @dvm.jit(tier="specialised")
    def doubled(x):
        """Twice x."""
        return x * 2

    assert doubled.__name__ == "doubled" and doubled.__doc__ == "Twice x."
    doubled(ones(2))
    assert doubled.programs[0].tier == "specialised"
    doubled.clear()
    assert doubled.programs == ()
    with pytest.raises(dvm.CompileError, match="unknown tier"):
        dvm.jit(lambda x: x, tier="fast")
    with pytest.raises(dvm.CompileError, match="static_argnums: 3 is out of range"):
        dvm.jit(lambda x: x, static_argnums=3)
    with pytest.raises(dvm.InputError, match="static_argnums"):
        dvm.jit(lambda x: x)("text")
