"""The normal form: what is rewritten, what stays, how it prints, and that nothing is ever silently a number."""

import copy
import pickle

import pytest
import sympy

from symbolic import Expr, Scope, ceildiv, evaluate, parse, product, smax, smin, ssum, symbol, symbols_of
from symbolic.sympy_bridge import from_sympy
from vm.errors import CompileError

a, b, c, s, x = map(symbol, "abcsx")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("(8*a)//8", "a"),
        ("(8*a + 3)//8", "a"),
        ("(8*a + b)//8", "a + b//8"),
        ("(6*a + 4)//4", "(3*a)//2 + 1"),
        ("(x//4)//3", "x//12"),
        ("(x//4 + 1)//3", "(x + 4)//12"),
        ("(a - 1)//2", "(a + 1)//2 - 1"),
        ("a//-3", "(-a)//3"),
        ("(8*a) % 8", "0"),
        ("(x % 12) % 4", "x % 4"),
        ("(3*(x % 12) + 5) % 4", "(-x + 1) % 4"),
        ("(x % 12)//4", "(x//4) % 3"),
        ("(6*a) % 4", "2*(a % 2)"),
        ("(x % 4)//8", "0"),
        ("(x % 4) % 8", "x % 4"),
        ("x % 1", "0"),
        ("x//1", "x"),
        ("(b*s)//s", "(b*s)//s"),
        ("(b*s) % s", "0"),
        ("(b*s + a) % s", "a % s"),
        ("(2*a)//(2*b)", "a//b"),
        ("(2*a) % (2*b)", "2*(a % b)"),
        ("0//s", "0"),
        ("mod(8*mod(x//64, 4), 64)", "8*((x//64) % 4)"),
        ("((24*a + 672)*(b*c//2016) + 21)//22", "(12*a*((b*c)//2016) + 336*((b*c)//2016) + 10)//11"),
        ("max(a, a + 2, b)", "max(a + 2, b)"),
        ("max(a + 1, b + 1)", "max(a, b) + 1"),
        ("max(s + 1, 17)", "max(s, 16) + 1"),
        ("max(2*a, 2*b, 6)", "2*max(a, b, 3)"),
        ("max(max(a, b), c)", "max(a, b, c)"),
        ("min(x % 8, 7)", "x % 8"),
        ("max(x % 8, 7)", "7"),
        ("broadcast(a, 1)", "a"),
        ("broadcast(a, a)", "a"),
        ("broadcast(0, 1)", "0"),
        ("ceildiv(a, 8)*8", "8*((a + 7)//8)"),
        ("a - a", "0"),
        ("(a + b)**2", "a**2 + 2*a*b + b**2"),
        ("-(a//2)", "-(a//2)"),
        ("N + 5", "N + 5"),
        ("B*S", "B*S"),
        ("`batch size`*2", "2*`batch size`"),
        ("`a``b`" if False else "`or`", "`or`"),
    ],
)
def test_normal_form(text, expected):
    dim = parse(text)
    assert str(dim) == str(parse(expected))
    assert parse(str(dim)) == dim


def test_row_23_nested_modulo():
    assert evaluate(parse("mod(8*mod(x//64, 4), 64)"), {"x": 148}) == 16


def test_row_24_stays_an_integer():
    dim = parse("((24*a + 672)*(b*c//2016) + 21)//22")
    for va in range(0, 40, 3):
        for vb, vc in ((1, 1), (63, 64), (2016, 5), (100, 700)):
            expected = ((24 * va + 672) * (vb * vc // 2016) + 21) // 22
            value = evaluate(dim, {"a": va, "b": vb, "c": vc})
            assert type(value) is int and value == expected


def test_constants_are_plain_ints():
    for value in (a - a, (a + 3) - a, (8 * a) % 8, a * 0, smax(a, a + 1) - a, product([]), ssum([a, -a])):
        assert type(value) is int


@pytest.mark.parametrize("use", [int, float, bool, len, lambda e: [1, 2][e], lambda e: e < 3, lambda e: range(e)])
def test_an_expression_is_not_a_number(use):
    with pytest.raises(TypeError):
        use(a + 1)


def test_identity_hash_and_copies():
    e, f = (a + b) * 2, 2 * b + 2 * a
    assert e == f and hash(e) == hash(f) and e != a and {e: 1}[f] == 1
    g = parse("max(a, b//3) + a % 5")
    assert copy.deepcopy(g) == g and pickle.loads(pickle.dumps(g)) == g
    assert symbols_of(g) == ("a", "b") and symbols_of(3) == ()


def test_numpy_integers_are_integers():
    np = pytest.importorskip("numpy")
    assert a + np.int64(2) == a + 2 and np.int64(2) * a == 2 * a and a // np.int32(1) == a


def test_ceildiv():
    assert ceildiv(7, 2) == 4 and ceildiv(-7, 2) == -3
    assert [evaluate(ceildiv(a, 4), {"a": v}) for v in range(6)] == [0, 1, 1, 1, 1, 2]


def test_sympy_view_uses_our_functions_only():
    dim = parse("max(a, min(b, 3)) + (a//3)*(b % 4) + broadcast(a, b)")
    text = sympy.srepr(dim.sympy)
    assert "floor" not in text and "ceiling" not in text
    assert not dim.sympy.has(sympy.Mod)
    assert from_sympy(dim.sympy) == dim
    assert dim.sympy.subs({sympy.Symbol("a", integer=True): 5, sympy.Symbol("b", integer=True): 7}) == dim.evaluate(
        {"a": 5, "b": 7}
    )


@pytest.mark.parametrize(
    "text", ["", "a +", "a/2", "a^2", "(a", "max(", "ceildiv(a)", "a//0", "a % 0", "a**b", "a b", "`a", "a ** -1"]
)
def test_bad_text_is_refused(text):
    with pytest.raises(CompileError, match="cannot read"):
        parse(text)


def test_shared_subexpressions_do_not_blow_up():
    dim = a
    for _ in range(60):
        dim = smax(dim // 3 + dim, b)
    assert isinstance(dim, Expr) and len(dim.key) < 200
    assert dim.evaluate({"a": 1, "b": 2}) == evaluate(dim, {"a": 1, "b": 2})


def test_deep_nesting_works_up_to_a_limit():
    dim, scope = a, Scope()
    scope.declare("a"), scope.declare("b")
    with pytest.raises(CompileError, match="nests"):
        for i in range(300):
            dim = smax(dim // 3 + i, b) + a
            last = dim
    assert evaluate(last, {"a": 1, "b": 2}) > 0
    assert scope.simplify(last) is not None and scope.bounds(last)[0] > 0
    assert str(last) and last.subs({"a": symbol("c")}).symbols == ("b", "c")


def test_dividing_by_zero_gives_zero():
    assert parse("a//b").evaluate({"a": 5, "b": 0}) == 0 == parse("a % b").evaluate({"a": 5, "b": 0})
    assert parse("a//b").subs({"b": 0}) == 0
    with pytest.raises(ZeroDivisionError):
        a // 0


def test_smin_smax_of_numbers():
    assert smax(1, 2) == 2 and smin(1, 2) == 1
