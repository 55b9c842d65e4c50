"""Matrix products of every form, with what fuses into them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from tests.e2e.harness import BFLOAT16, Case, spec, verify

F32 = jnp.float32


def S(shape, dtype=F32, low=0):
    """A spec whose one-letter dims may be ``low`` to 1000."""
    return spec(shape, dtype, **{k: (low, 1000) for k in "abcmnks" if k in shape})


def S1(shape, dtype=F32):
    return S(shape, dtype, 1)


CASES = []


def add(name, fn, specs, launches, dtypes=(), tol=None, kernels=None, host=0):
    CASES.append(Case(name, fn, specs, launches, dtypes, tol, kernels, host))


add(
    "mm w",
    lambda x, y: x @ y,
    [S("a,64"), spec("64,128")],
    [((1, 64), (64, 128)), ((0, 64), (64, 128)), ((130, 64), (64, 128))],
    kernels=1,
    tol=1e-5,
)
add(
    "mm bigk",
    lambda x, y: x @ y,
    [S("a,4096"), spec("4096,32")],
    [((1, 4096), (4096, 32)), ((3, 4096), (4096, 32))],
    kernels=1,
    tol=1e-5,
)
add(
    "mm batch",
    lambda x, y: x @ y,
    [S("a,b,c"), S("a,c,n")],
    [((1, 1, 1), (1, 1, 1)), ((2, 5, 7), (2, 7, 3)), ((0, 5, 7), (0, 7, 3))],
    kernels=1,
    tol=1e-5,
)
add(
    "mm batch 4",
    lambda x, y: x @ y,
    [S("a,4,b,c"), S("a,4,c,n")],
    [((1, 4, 1, 1), (1, 4, 1, 1)), ((2, 4, 5, 7), (2, 4, 7, 3))],
    kernels=1,
    tol=1e-5,
)
for ein, sa, sb, cs in [
    ("ab,cb->ac", "a,b", "c,b", [((5, 7), (3, 7)), ((1, 1), (1, 1)), ((2, 0), (3, 0))]),
    ("ba,bc->ac", "b,a", "b,c", [((5, 7), (5, 3)), ((1, 1), (1, 1))]),
    ("ba,cb->ca", "b,a", "c,b", [((5, 7), (3, 5))]),
    ("abc,cbn->an", "a,b,c", "c,b,n", [((2, 3, 4), (4, 3, 5)), ((1, 1, 1), (1, 1, 1)), ((2, 0, 4), (4, 0, 5))]),
    ("abc,nbc->an", "a,b,c", "n,b,c", [((2, 3, 4), (5, 3, 4))]),
    ("a,a->", "a", "a", [((5,), (5,)), ((0,), (0,)), ((1,), (1,))]),
    ("ab,ab->a", "a,b", "a,b", [((5, 3), (5, 3)), ((1, 1), (1, 1))]),
    ("ab,ab->", "a,b", "a,b", [((5, 3), (5, 3))]),
    ("ab,b->a", "a,b", "b", [((5, 3), (3,)), ((1, 1), (1,))]),
    ("a,ab->b", "a", "a,b", [((5,), (5, 3))]),
    ("a,b->ab", "a", "b", [((5,), (3,)), ((1,), (1,))]),
    ("abc,acn->bn", "a,b,c", "a,c,n", [((2, 3, 4), (2, 4, 5))]),
    ("bmk,kn->bmn", "b,m,k", "k,n", [((2, 3, 4), (4, 5)), ((1, 1, 1), (1, 1))]),
    ("bkm,bkn->bmn", "b,k,m", "b,k,n", [((2, 3, 4), (2, 3, 5))]),
    ("bshd,hde->bse", "b,s,4,8", "4,8,16", [((2, 3, 4, 8), (4, 8, 16)), ((1, 1, 4, 8), (4, 8, 16))]),
    ("bse,ehd->bhsd", "b,s,16", "16,4,8", [((2, 3, 16), (16, 4, 8)), ((1, 1, 16), (16, 4, 8))]),
]:
    add("ein " + ein, lambda x, y, ein=ein: jnp.einsum(ein, x, y), [S(sa), S(sb)], cs, tol=1e-5)
    add(
        "einpre " + ein,
        lambda x, y, ein=ein: jnp.tanh(jnp.einsum(ein, jnp.sin(x), y + 1)) * 0.5,
        [S(sa), S(sb)],
        cs,
        tol=1e-5,
    )
add("x@x.T", lambda x: x @ x.T, [S("a,b")], [((5, 7),), ((1, 1),), ((0, 4),), ((4, 0),)], tol=1e-5)
add("x.T@x", lambda x: x.T @ x, [S("a,b")], [((5, 7),), ((1, 1),)], tol=1e-5)
add("x@x", lambda x: x @ x, [S("a,a")], [((5, 5),), ((1, 1),)], tol=1e-5)
add("x@x.T static", lambda x: x @ x.T, [S("a,16")], [((5, 16),), ((1, 16),)], tol=1e-5)
add("gram batch", lambda x: jnp.einsum("bij,bkj->bik", x, x), [S("b,a,16")], [((2, 5, 16),), ((1, 1, 16),)], tol=1e-5)
add(
    "int mm",
    lambda x, y: x @ y,
    [S("a,b", jnp.int32), S("b,c", jnp.int32)],
    [((1, 1), (1, 1)), ((5, 7), (7, 3))],
    dtypes=[np.int32, np.int32],
)
add(
    "i8 mm",
    lambda x, y: lax.dot_general(x, y, (((1,), (0,)), ((), ())), preferred_element_type=jnp.int32),
    [S("a,b", jnp.int8), S("b,c", jnp.int8)],
    [((1, 1), (1, 1)), ((5, 7), (7, 3))],
    dtypes=[np.int8, np.int8],
)
for d, nd in ((jnp.bfloat16, BFLOAT16), (jnp.float16, np.float16)):
    add(
        f"mm {nd}",
        lambda x, y: x @ y,
        [S("a,b", d), S("b,c", d)],
        [((1, 1), (1, 1)), ((5, 7), (7, 3))],
        dtypes=[nd, nd],
        tol=2e-2,
    )
    add(
        f"mmf32 {nd}",
        lambda x, y: lax.dot_general(x, y, (((1,), (0,)), ((), ())), preferred_element_type=jnp.float32) + 1,
        [S("a,b", d), S("b,c", d)],
        [((1, 1), (1, 1)), ((5, 7), (7, 3))],
        dtypes=[nd, nd],
        tol=2e-2,
    )
add(
    "mlp",
    lambda x, w, v: jax.nn.silu(x @ w) @ v,
    [S("b,s,64"), spec("64,96"), spec("96,64")],
    [((1, 1, 64), (64, 96), (96, 64)), ((2, 7, 64), (64, 96), (96, 64))],
    tol=2e-5,
    kernels=2,
)
add(
    "mm bias res",
    lambda x, w, c, r: x @ w + c + r,
    [S("b,s,64"), spec("64,96"), spec("96"), S("b,s,96")],
    [((1, 1, 64), (64, 96), (96,), (1, 1, 96)), ((2, 7, 64), (64, 96), (96,), (2, 7, 96))],
    tol=2e-5,
    kernels=1,
)
add(
    "mm T out", lambda x, w: (x @ w).T, [S("a,64"), spec("64,96")], [((1, 64), (64, 96)), ((5, 64), (64, 96))], tol=2e-5
)
add(
    "mm then softmax",
    lambda x, w: jax.nn.softmax(x @ w, -1),
    [S1("a,64"), spec("64,96")],
    [((1, 64), (64, 96)), ((5, 64), (64, 96))],
    tol=2e-5,
)
add(
    "mm then reduce dyn",
    lambda x, w: jnp.sum(x @ w, 0),
    [S1("a,64"), spec("64,96")],
    [((1, 64), (64, 96)), ((5, 64), (64, 96))],
    tol=2e-5,
)
add(
    "mm chain",
    lambda x, y, z: x @ y @ z,
    [S("a,b"), S("b,c"), S("c,a")],
    [((2, 3), (3, 4), (4, 2)), ((1, 1), (1, 1), (1, 1))],
    tol=2e-5,
)
add(
    "heads",
    lambda x, w: jnp.transpose((x @ w).reshape(*x.shape[:2], 4, 8), (0, 2, 1, 3)),
    [S("b,s,16"), spec("16,32")],
    [((2, 3, 16), (16, 32)), ((1, 1, 16), (16, 32))],
    tol=2e-5,
)
add(
    "heads merge",
    lambda x, w: jnp.transpose(x, (0, 2, 1, 3)).reshape(x.shape[0], x.shape[2], 32) @ w,
    [S("b,4,s,8"), spec("32,16")],
    [((2, 4, 3, 8), (32, 16)), ((1, 4, 1, 8), (32, 16))],
    tol=2e-5,
)
add("broadcast batch mm", lambda x, y: x @ y, [S("b,m,k"), S("1,k,n")], [((2, 3, 4), (1, 4, 5))], tol=2e-5)
add(
    "bcast mm dyn",
    lambda x, y: jnp.matmul(x[:, None], y[None]),
    [S("a,m,k"), S("b,k,n")],
    [((2, 3, 4), (3, 4, 5)), ((1, 1, 1), (1, 1, 1))],
    tol=2e-5,
)
add(
    "repeat kv",
    lambda q, k: jnp.einsum("bhqd,bhkd->bhqk", q, jnp.repeat(k, 3, axis=1)),
    [S("b,6,s,8"), S("b,2,s,8")],
    [((2, 6, 3, 8), (2, 2, 3, 8)), ((1, 6, 1, 8), (1, 2, 1, 8))],
    tol=2e-5,
)
add(
    "dot const lhs",
    lambda x: jnp.asarray(np.eye(3, dtype=np.float32)) @ x,
    [S("3,b")],
    [((3, 5),), ((3, 1),), ((3, 0),)],
    tol=1e-5,
)
add(
    "outer3",
    lambda x, y, z: jnp.einsum("a,b,c->abc", x, y, z),
    [S("a"), S("b"), S("c")],
    [((2,), (3,), (4,)), ((1,), (1,), (1,))],
    tol=1e-5,
)

# Operands that have their contracted or batch axes in two orders.
add(
    "contracted in two orders",
    lambda x, y: lax.dot_general(x, y, (((1, 2), (2, 0)), ((), ()))),
    [S("a,4,6"), spec("6,5,4")],
    [((1, 4, 6), (6, 5, 4)), ((3, 4, 6), (6, 5, 4)), ((0, 4, 6), (6, 5, 4))],
    kernels=1,
    tol=1e-5,
)
add(
    "contracted in two orders, equal sizes",
    lambda x, y: lax.dot_general(x, y, (((0, 1, 2), (2, 0, 1)), ((), ()))),
    [S("3,3,3,a"), spec("3,3,3,5")],
    [((3, 3, 3, 1), (3, 3, 3, 5)), ((3, 3, 3, 7), (3, 3, 3, 5))],
    kernels=1,
    tol=1e-5,
)
add(
    "batches in two orders",
    lambda x, y: lax.dot_general(x, y, (((2,), (3,)), ((0, 1), (1, 0)))),
    [S("3,3,4,a"), S("3,3,b,4")],
    [((3, 3, 4, 2), (3, 3, 5, 4)), ((3, 3, 4, 1), (3, 3, 1, 4))],
    kernels=1,
    tol=1e-5,
)
add(
    "dynamic batches in two orders",
    lambda x, y: lax.dot_general(x, y, (((2,), (2,)), ((0, 1), (1, 0)))),
    [S("a,b,4"), S("b,a,4")],
    [((3, 2, 4), (2, 3, 4)), ((3, 3, 4), (3, 3, 4))],
    tol=1e-5,
)
add(
    "dynamic contraction in two orders",
    lambda x, y: lax.dot_general(x, y, (((0, 1), (1, 0)), ((), ()))),
    [S("a,b,4"), S("b,a,5")],
    [((3, 2, 4), (2, 3, 5)), ((3, 3, 4), (3, 3, 5)), ((65, 7, 4), (7, 65, 5))],
    tol=1e-5,
)
add(
    "two products of one operand in two orders",
    lambda x, y, z: (
        lax.dot_general(x, y, (((1, 2), (0, 1)), ((), ()))) * lax.dot_general(x, z, (((1, 2), (1, 0)), ((), ())))
    ),
    [S("a,3,3"), spec("3,3,5"), spec("3,3,5")],
    [((1, 3, 3), (3, 3, 5), (3, 3, 5)), ((7, 3, 3), (3, 3, 5), (3, 3, 5))],
    kernels=1,
    tol=1e-5,
)
add(
    "grouped heads to rows",
    lambda w, v, o: jnp.einsum("gnst,tgd->sgnd", w, v).reshape(w.shape[2], 8) @ o,
    [S("2,2,s,s", low=1), S("s,2,2", low=1), spec("8,6")],
    [((2, 2, 1, 1), (1, 2, 2), (8, 6)), ((2, 2, 5, 5), (5, 2, 2), (8, 6))],
    tol=1e-5,
)
add(
    "what one product sums over is a column of the next",
    lambda x, w: (x @ w) @ w.T,
    [S("a,b"), S("b,130")],
    [((3, 5), (5, 130)), ((1, 200), (200, 130)), ((2, 0), (0, 130))],
    kernels=2,
    tol=1e-5,
)


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name.replace(" ", "-"))
def test_words(case):
    verify(case)
