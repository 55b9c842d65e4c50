"""Facts, proofs, requirements and what a scope tells a person."""

import pytest

from symbolic import (
    Scope,
    ceildiv,
    divides,
    either,
    eq,
    ge,
    gt,
    le,
    lt,
    ne,
    parse,
    parse_relation,
    smax,
    symbol,
)
from vm.errors import CompileError


@pytest.fixture
def scope():
    """a, b, s >= 1; z, y >= 0; c a multiple of 8; k <= 16."""
    sc = Scope()
    for name in "abs":
        sc.declare(name)
    sc.declare("z", min=0)
    sc.declare("y", min=0)
    sc.declare("c", multiple_of=8)
    sc.declare("k", max=16)
    return sc


PROVED = """
    c % 4 == 0
    (2*c) % 16 == 0
    (c*s) % 8 == 0
    (c//8)*8 == c
    a//2 + (a + 1)//2 == a
    a//3 + (a + 1)//3 + (a + 2)//3 == a
    a % 2 + (a + 1) % 2 == 1
    (a*(a + 1)) % 2 == 0
    (a//b)//s == a//(b*s)
    (a//4)//3 == a//12
    b*s == s*b
    (b*s)//s == b
    (b*s + s)//s == b + 1
    (a*b + s)//b == a + s//b
    (b*s*a)//(a*s) == b
    a == b*(a//b) + a % b
    a - a % 4 == 4*(a//4)
    (a//b)*b <= a
    a % b < b
    a//b <= a
    a <= ceildiv(a, 8)*8
    ceildiv(a, 8)*8 < a + 8
    a <= ceildiv(a, b)*b
    ceildiv(a, b)*b < a + b
    ceildiv(ceildiv(a, 2), 4) == ceildiv(a, 8)
    max(a, b) == max(b, a)
    max(a, b) + min(a, b) == a + b
    max(a, b) >= b
    min(a, b) <= max(a, s)
    max(a, 1) == a
    max(2*a, a) == 2*a
    max(a - b, 0) + min(a, b) == a
    max(a, b) == a or max(a, b) == b
    max(max(a, b), s) == max(a, max(b, s))
    broadcast(a, b) == max(a, b)
    broadcast(z, y) >= 0
    a*b >= a
    a*b >= a + b - 1
    k*a <= 16*a
    a*b*s >= a*b
    (a + b)*(a + b) >= 4*a*b
    z*b >= z
    (a + b)//2 <= max(a, b)
    ((a - 1)//2 + 1 - 1)//2 + 1 == (a - 1)//4 + 1
    (a + 2*1 - 3)//1 + 1 == a
    a != a + 1
    2*a != 2*b + 1
    (a + b) % 2 == (a - b) % 2
    a//4*4 + a % 4 == a
    k <= 16
    k*k <= 256
    (k + 15)//16 == 1
    k % 17 == k
"""

DISPROVED = [
    "a == b",
    "c % 16 == 0",
    "a//2*2 == a",
    "(b*z)//z == b",
    "max(z, 1) == z",
    "a <= b",
    "k < 16",
    "a % 3 == 1",
]


@pytest.mark.parametrize("text", [line.strip() for line in PROVED.strip().splitlines()])
def test_proved(scope, text):
    answer = scope.prove(parse_relation(text))
    assert answer.proved, answer
    assert answer.reason


@pytest.mark.parametrize("text", DISPROVED)
def test_disproved_with_a_real_counterexample(scope, text):
    rel = parse_relation(text)
    answer = scope.prove(rel)
    assert answer.disproved, answer
    assert not rel.holds(answer.counterexample)
    assert all(scope.symbols[n].holds(v) for n, v in answer.counterexample.items())


def test_answers_have_no_truth_value(scope):
    for text in ("c % 4 == 0", "a == b"):
        with pytest.raises(TypeError, match="truth value"):
            bool(scope.prove(parse_relation(text)))
    with pytest.raises(TypeError, match="truth value"):
        bool(eq(symbol("a"), 1))


def test_row_3_congruences():
    sc = Scope()
    b, c, a = sc.declare("b", multiple_of=8), sc.declare("c", multiple_of=8), sc.declare("a", min=0)
    assert sc.equal(b // 8 * 8, b) and sc.equal(c % 4, 0) and sc.equal((2 * c) % 16, 0)
    assert sc.equal(a // 2 + (a + 1) // 2, a)
    odd = sc.declare("odd", multiple_of=6, remainder=5)
    assert sc.equal(odd % 3, 2) and sc.equal(odd % 2, 1) and sc.proves(divides(6, odd + 1))
    assert not sc.proves(divides(4, odd + 1))


def test_equalities_chain_in_any_order():
    sc = Scope()
    names = [sc.declare(f"n{i}") for i in range(1500)]
    for left, right in zip(reversed(names[:-1]), reversed(names[1:]), strict=True):
        sc.assume(eq(right, left + 1), "step")
    assert sc.equal(names[-1], names[0] + 1499)
    assert str(sc.simplify(names[1000])) == "n0 + 1000"


def test_affine_and_linear_facts(scope):
    a, b, s, z = map(symbol, "absz")
    scope.assume(eq(2 * a, 3 * b), "ratio")  # so a = 3t, b = 2t
    assert scope.proves(divides(3, a)) and scope.proves(divides(2, b)) and scope.proves(lt(b, a))
    assert scope.equal(a * 2 + s, b * 3 + s)
    scope.assume(le(s, 4 * b), "user")
    scope.assume(le(z + s, 4096), "user")
    assert scope.proves(le(s, 8 * b)) and scope.proves(le(s * 3, 8 * a)) and scope.proves(le(z, 4095))
    assert scope.equal(smax(s, 4 * b), 4 * b)


def test_divisibility_facts(scope):
    a, b, s = map(symbol, "abs")
    scope.assume(divides(8, a), "user")
    assert scope.proves(divides(4, a)) and scope.equal(a // 8 * 8, a) and scope.proves(ge(a, 8))
    scope.assume(divides(6, a), "user")
    assert scope.proves(divides(24, a)) and not scope.proves(divides(48, a))
    scope.assume(divides(16, b + s), "user")
    assert scope.equal((b + s) // 16 * 16, b + s) and scope.equal((b + s + 3) % 16, 3)
    assert str(scope.simplify(b + s)) == "b + s"


def test_symbolic_divisors_and_products(scope):
    a, b, s, c = map(symbol, "absc")
    scope.assume(divides(s, a), "heads")
    assert scope.equal(a // s * s, a)
    scope.assume(eq(b * c, 24 * s), "same size")
    assert scope.equal(b * c // 24, s) and scope.equal(b * c * a, 24 * s * a)


def test_floor_division_facts(scope):
    a, b = symbol("a"), symbol("b")
    scope.assume(eq(a // 4, b), "pool")
    assert scope.proves(ge(a, 4 * b)) and scope.proves(le(a, 4 * b + 3)) and scope.proves(ge(a, 4))
    scope.assume(eq(a % 4, 1), "rest")
    assert scope.equal(a, 4 * b + 1)


def test_alternatives(scope):
    z, y, a = symbol("z"), symbol("y"), symbol("a")
    scope.assume(either(eq(a, 4), eq(a, 1)), "add")
    assert scope.bounds(a) == (1, 4) and scope.proves(ne(a, 7)) and scope.proves(either(eq(a, 1), gt(a, 3)))
    assert scope.prove(eq(a, 4)).disproved and scope.prove(ne(a, 2)).proved
    scope.assume(ne(a, 1), "not one")
    assert scope.equal(a, 4)
    scope.assume(either(eq(z, y), eq(z, 1), eq(y, 1)), "mul")
    assert scope.proves(parse_relation("broadcast(z, y) == y or broadcast(z, y) == z"))


def test_min_zero_is_an_ordinary_size(scope):
    z, b = symbol("z"), symbol("b")
    assert scope.prove(eq(b * z // z, b)).disproved
    assert scope.prove(ge(z, 1)).disproved
    scope.assume(ge(z, 1), "non-empty")
    assert scope.equal(b * z // z, b)


def test_unknown_names_a_missing_fact():
    sc = Scope()
    n, m = sc.declare("n", min=0), sc.declare("m", min=0)
    answer = sc.prove(eq((n**3 + m**3 + 7) % 9999991, 5 * n - m + 11))
    assert not answer.proved
    hard = sc.prove(ne(n**3 + m**3 + 3, symbol("n") ** 2 * 1000003 + 999983 * m * m))
    assert hard.unknown or hard.disproved
    if hard.unknown:
        assert hard.missing


def test_contradictions_list_the_facts_that_clash(scope):
    a, b = symbol("a"), symbol("b")
    scope.assume(le(a, b), "first rule")
    with pytest.raises(CompileError, match="first rule") as info:
        scope.assume(lt(b, a), "second rule")
    assert "second rule" in str(info.value) and "b < a" in str(info.value)
    assert len(scope.facts) == 1 and not scope.proves(lt(a, b))  # the refused fact left nothing behind
    with pytest.raises(CompileError):
        scope.assume(divides(16, symbol("c") + 4), "odd")
    with pytest.raises(CompileError, match="not declared"):
        scope.assume(eq(symbol("nobody"), 1), "x")
    with pytest.raises(CompileError):
        scope.declare("w", min=5, max=4)


def test_require(scope):
    a, b, c = map(symbol, "abc")
    scope.require(divides(4, c), "proved, so no check")
    assert scope.checks == []
    scope.require(eq(a, b), "add at line 3", "both operands of add must have the same size")
    scope.require(eq(b, a), "again")
    scope.require(eq(2 * a, 2 * b), "implied")
    assert [str(x) for x in scope.checks] == ["a == b  (add at line 3)"]
    assert scope.checks[0].message == "both operands of add must have the same size"
    assert scope.checks[0].text == "both operands of add must have the same size: a == b must hold"
    assert scope.equal(a, b)
    with pytest.raises(CompileError, match="line 9"):
        scope.require(eq(a, b + 1), "sub at line 9")
    scope.require(divides(2, a), "halves")
    scope.require(divides(8, a), "eighths")  # implies the check before it
    assert [str(x.rel) for x in scope.checks] == ["a == b", "a % 8 == 0"]


def test_constraints_are_printable(scope):
    scope.declare("t", min=2, max=64, multiple_of=2, origin="input x, axis 1")
    scope.assume(le(symbol("a"), 100), "user")
    scope.require(eq(symbol("a"), symbol("b")), "add")
    lines = scope.constraints
    assert "2 <= t <= 64, t % 2 == 0  (input x, axis 1)" in lines
    assert "a <= 100  (user)" in lines and "at launch: a == b  (add)" in lines


def test_fresh_symbols_are_distinct(scope):
    n, m = scope.fresh("nonzero", origin="NonZero"), scope.fresh("nonzero")
    assert n != m and scope.symbols[n.as_symbol].data_dependent and scope.bounds(n) == (0, None)


def test_declaring_again_refines():
    sc = Scope()
    sc.declare("n")
    sc.declare("n", min=3, max=9, multiple_of=2)
    assert sc.bounds(symbol("n")) == (4, 8)
    with pytest.raises(CompileError):
        sc.declare("n", min=10)


def test_simplify_is_canonical(scope):
    a, b, c, s = map(symbol, "abcs")
    scope.assume(eq(a, b), "same")
    assert scope.simplify(b * s) == scope.simplify(a * s) == a * s
    assert scope.simplify(c // 8 * 8) == c and scope.simplify(smax(s, 1)) == s
    assert scope.simplify((a * s) // s) == a and scope.simplify(7) == 7
    assert str(scope.simplify(c // 4)) == str(scope.simplify(2 * (c // 8)))


def test_bounds(scope):
    k, z, a = symbol("k"), symbol("z"), symbol("a")
    assert scope.bounds(k) == (1, 16) and scope.bounds(z) == (0, None) and scope.bounds(a % 8) == (0, 7)
    assert scope.bounds(ceildiv(k, 4)) == (1, 4) and scope.bounds(k * k - 3) == (-2, 253) and scope.bounds(5) == (5, 5)


def test_bounds_follow_from_inequalities():
    sc = Scope()
    b, s, past = sc.declare("b", max=64), sc.declare("s", max=8192), sc.declare("past", min=0)
    sc.assume(parse_relation("s <= 4*b"), "user")
    sc.assume(parse_relation("past + s <= 4096"), "user")
    assert sc.bounds(s) == (1, 256) and sc.bounds(past) == (0, 4095) and sc.bounds(past + s) == (1, 4096)
    assert sc.bounds(b * s) == (1, 64 * 256)


def test_work_grows_linearly_with_the_number_of_symbols():
    steps = {}
    for n in (250, 1000):
        sc = Scope()
        names = [sc.declare(f"s{i}") for i in range(n)]
        for i in range(n - 1):
            sc.assume(eq(names[i] * (2 if i % 3 == 0 else 1), names[i + 1] * (2 if i % 3 == 0 else 1)), "x")
        for q in range(5 * n):
            assert sc.equal(names[q % n] * 4, names[(q * 7) % n] * 4)
        steps[n] = sc._store.steps
    assert steps[1000] < 5 * steps[250]


def test_no_question_runs_away():
    sc = Scope()
    names = [sc.declare(f"v{i}", min=0) for i in range(12)]
    dim = parse("0")
    for i, v in enumerate(names):
        dim = dim + smax(v // (i + 2), names[i - 1] % (i + 3)) * names[i - 2]
    before = sc._store.steps
    assert not sc.prove(le(dim, 3 * dim // 2 - names[0])).proved
    assert sc._store.steps - before < 60_000
