"""Products whose sum is divided among cores: where that is faster, the program has it as a second form, and both are right.

``DEEP`` is a product of few results over a long dim: two kernels up to some number of rows (zeros, and the product that adds to them), a
third one where there is an epilogue or a rounding to 16 bits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import dvm
from codegen import division
from codegen.build import MOST_OF_A_BLOCK
from codegen.choices import Decision, Speculation
from dvm import models, pipeline
from graph_kernel.fusion import division as parts
from graph_kernel.fusion.rules import Group
from graph_kernel.ir import Graph
from symbolic import Scope
from tests.counting import count_calls
from tests.e2e import harness
from tests.e2e.harness import check, program_of, random, simulate, spec
from tests.models import harness as blocks
from vm import assembler, disassembler, intcode, isa, reference, serialise, verifier, verifier_adds
from vm.binder import Binder
from vm.decode import decode, stored_buffers
from vm.errors import Hazard, ProgramError
from vm.geometry import loops_of
from vm.program import KernelStep, Program
from vm.program.stages import kernels_of
from vm.timing import emulate

K, N = 2048, 96
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
DTYPES = [np.dtype(np.float32), np.dtype(np.float16), BFLOAT16]
IDS = [dtype.name for dtype in DTYPES]


def plain(x, w):
    return x @ w


def epilogue(x, w):
    return jax.nn.relu(x @ w) + x[:, :1]


def kept(x, w):
    """The product itself is a result as well."""
    y = x @ w
    return y, jnp.tanh(y)


def reduced(x, w):
    """Short rows are reduced in the product's kernel."""
    return jax.nn.softmax(x @ w, -1)


def program(fn: Callable[..., Any] = plain, dtype: Any = np.float32, k: int = K, n: int = N, **options: Any) -> Program:
    return program_of(fn, spec(f"m, {k}", dtype, m=(0, 4096)), spec(f"{k}, {n}", dtype), **options)


def limit(prog: Program) -> int:
    """The largest number of rows at which the sum is divided."""
    assert len(prog.choices) == 1 and [s.name for s in prog.symbols] == ["m"]
    chosen = [prog.code.run((m,))[prog.choices[0].reg] for m in range(4097)]
    last = max(m for m in range(4097) if chosen[m])
    assert chosen == [1] * (last + 1) + [0] * (4096 - last), "one limit"
    return last


def names(prog: Program, *sizes: int) -> list[str]:
    """The kernels that run."""
    return [step.name for step in kernels_of(prog.steps, Binder(prog).bind(sizes).chosen)]


def referred(prog: Program, *arrays: np.ndarray, cores: int | None = None) -> list[np.ndarray]:
    """What the reference executor gives; it finds races, and elements that nobody has set."""
    binder = Binder(prog)
    bound = binder.bind_sizes(binder.check_inputs(list(arrays)))
    verifier.BoundCheck(prog)(bound)
    return reference.run(prog, bound, list(arrays), cores=cores)


def operands(m: int, k: int = K, n: int = N, dtype: Any = np.float32) -> tuple[np.ndarray, np.ndarray]:
    return random((m, k), dtype), random((k, n), dtype, seed=1, scale=0.05)


def wanted(fn: Callable[..., Any], *arrays: np.ndarray) -> list[np.ndarray]:
    """The results, computed in float32: of 16-bit types JAX rounds in between."""
    dtype = arrays[0].dtype
    found = jax.jit(fn)(*(a.astype(np.float32) for a in arrays))
    return [np.asarray(a).astype(dtype) for a in jax.tree_util.tree_leaves(found)]


@pytest.mark.parametrize("dtype", DTYPES, ids=IDS)
@pytest.mark.parametrize("fn", [plain, epilogue, kept, reduced])
def test_both_forms_give_the_product(fn: Callable[..., Any], dtype: np.dtype) -> None:
    """On both sides of the limit, with 0 and 1 rows, with the chip's tiles and small ones."""
    prog = program(fn, dtype)
    verifier.verify(prog)
    last = limit(prog)
    more = fn in (epilogue, reduced) or (fn is kept) or dtype != np.float32
    assert [len(names(prog, m)) for m in (0, 1, last, last + 1)] == [2 + more] * 3 + [1]
    assert len(prog.debug["kernels"]) == 1, "one fusion group"
    for m in dict.fromkeys((0, 1, 5, min(last, 70), last + 1)):
        x, w = operands(m, dtype=dtype)
        want = wanted(fn, x, w)
        for found in (referred(prog, x, w), *(simulate(prog, x, w, tile=t) for t in ((None, 100) if m == 5 else ()))):
            for got, expected in zip(found, want, strict=True):
                check(np.asarray(got).reshape(expected.shape), expected, 1e-5 if dtype == np.float32 else None)


def test_any_number_of_cores_gives_the_same_up_to_rounding() -> None:
    prog = program()
    x, w = operands(3)
    for cores in (1, 2, 7, 24):
        (got,), (again,) = (referred(prog, x, w, cores=cores) for _ in range(2))
        check(got, x @ w, 1e-5)
        np.testing.assert_array_equal(got, again, "the parts are added in one order")


def lengths(prog: Program, m: int, most: int = 8192) -> int:
    """The length of sums from which on these are divided; ``most`` if none is."""
    reg, ordered = prog.choices[0].reg, [s.name for s in prog.symbols]
    runs = [prog.code.run(tuple({"m": m, "k": k}[name] for name in ordered))[reg] for k in range(most + 1)]
    first = runs.index(1) if 1 in runs else most
    assert runs[:first] == [0] * first and all(runs[first:most])
    return first


def test_the_length_of_the_sums_may_be_symbolic() -> None:
    prog = program_of(plain, spec("16, k", k=(0, 1 << 20)), spec(f"k, {N}"))
    verifier.verify(prog)
    first = next(k for k in range(1, 8192) if prog.code.run((k,))[prog.choices[0].reg])
    assert 256 <= first <= 1024 and f"{first - 1} < k" in prog.debug["kernels"][0]["apart"]["where"]
    for k in (0, 1, first - 1, first, first + 1, 5 * first + 3):
        x, w = operands(16, k)
        assert len(names(prog, k)) == (2 if k >= first else 1)
        check(referred(prog, x, w)[0], x @ w, 1e-5)


def test_more_rows_need_longer_sums() -> None:
    prog = program_of(epilogue, spec("m, k", m=(0, 4096), k=(1, 1 << 20)), spec(f"k, {N}"))
    verifier.verify(prog)
    firsts = [lengths(prog, m) for m in (1, 20, 64)]
    assert 256 <= firsts[0] < firsts[1] < firsts[2] < 8192 and lengths(prog, 4096) == 8192
    assert " and " in prog.debug["kernels"][0]["apart"]["where"]
    for m, k in ((0, 3000), (1, 1), (1, firsts[0] - 1), (1, firsts[0]), (64, firsts[1] - 1), (64, firsts[1])):
        x, w = operands(m, k)
        for got in (referred(prog, x, w)[0], simulate(prog, x, w, tile=100 if m == 1 else None)[0]):
            check(got, *wanted(epilogue, x, w), 1e-5)


def test_sums_of_nothing_are_zero() -> None:
    """Also where the sums are always divided: k 0 leaves what the first kernel has set."""
    prog = program_of(plain, spec("4, k", k=(0, 1 << 20)), spec(f"k, {N}"))
    code = list(prog.code.code)
    at = prog.choices[0].reg - prog.code.n_inputs
    code[at] = (intcode.CONST, 1, 0)
    divided = replace(prog, code=replace(prog.code, code=tuple(code)))
    for p in (prog, divided):
        (got,) = referred(p, *operands(4, 0))
        np.testing.assert_array_equal(got, np.zeros((4, N), np.float32))
    check(referred(divided, *operands(4, 7))[0], operands(4, 7)[0] @ operands(4, 7)[1], 1e-5)


@pytest.mark.parametrize("dtype", DTYPES, ids=IDS)
def test_nan_and_infinities_pass(dtype: np.dtype) -> None:
    prog = program(dtype=dtype)
    x, w = operands(4, dtype=dtype)
    x[0, 5], x[1, K - 1], x[2, 0] = np.nan, np.inf, -np.inf
    assert len(names(prog, 4)) > 1
    for found in (referred(prog, x, w), simulate(prog, x, w)):
        check(np.asarray(found[0]), *wanted(plain, x, w), 1e-5 if dtype == np.float32 else None)
        assert np.isnan(np.asarray(found[0])[0].astype(np.float32)).all()


def test_integer_products_are_exact_and_in_one_form() -> None:
    prog = program(dtype=np.int32)
    assert not prog.choices and len(prog.steps) == 1
    x = np.full((2, K), 1 << 20, np.int32)
    w = np.full((K, N), 3, np.int32)
    np.testing.assert_array_equal(referred(prog, x, w)[0], np.full((2, N), np.int64(3 * K) << 20).astype(np.int32))


@pytest.mark.parametrize("fn", [plain, epilogue])
def test_all_executors_switch_without_a_compile(fn: Callable[..., Any]) -> None:
    prog = program_of(fn, spec(f"m, {K}", m=(0, 700)), spec(f"{K}, {N}"))
    last = max(m for m in range(701) if Binder(prog).bind((m,)).chosen == (1,))
    assert 1 < last < 700
    machines = {tier: dvm.CompiledProgram(prog, tier=tier) for tier in ("reference", "interpreter", "specialised")}
    machines["interpreter"](*operands(3))  # loads the image
    machines["specialised"].reserve()
    before = dvm.stats().xla_compiles
    for m in (0, 1, 2, last, last + 1, 1):
        x, w = operands(m)
        want = x @ w if fn is plain else np.maximum(x @ w, 0) + x[:, :1]
        for name, machine in machines.items():
            got, again = (np.asarray(machine(x, w)).reshape(want.shape) for _ in range(2))
            check(got, want, 1e-5, f"{name} at {m}")
            np.testing.assert_array_equal(got, again)
    assert dvm.stats().xla_compiles == before


@pytest.mark.parametrize(
    ("n", "k", "m", "built"), [(N, 200, 1, 0), (4096, 4096, 1, 0), (512, 1024, 4096, 0), (512, 1024, 1, 1)]
)
def test_where_nothing_is_gained_the_program_is_what_it_was(
    n: int, k: int, m: int, built: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With short sums and with many tiles: byte for byte. Where bounds show it, nothing is built to find that out."""
    count: Counter[str] = Counter()
    count_calls(monkeypatch, count, parts, "parts_of")
    specs = spec(f"m, {k}", jnp.float16, m=(m, 8192)), spec(f"{k}, {n}", jnp.float16)
    one, without = (replace(program_of(plain, *specs, speculation=s), debug={}) for s in (True, False))
    assert serialise.dumps(one) == serialise.dumps(without)
    assert count["parts_of"] == built


def test_a_band_of_rows_may_gain() -> None:
    """One row of float16 is bound by HBM with eight tiles, 64 rows are not."""
    prog = program(plain, np.float16, 16384, 512)
    assert [len(names(prog, m)) for m in (0, 1, 64, 256, 4096)] == [1, 1, 3, 3, 1]
    (kernel,) = prog.debug["kernels"]
    assert " <= m and m <= " in kernel["apart"]["where"]


def test_sizes_that_no_limits_tell_apart_are_not_compared() -> None:
    square = program_of(plain, spec("k, k", k=(1, 1 << 14)), spec(f"k, {N}"))
    (said,) = square.debug["speculation"]
    assert not square.choices and said["reason"] == "rows and summands depend on one size"
    free = program_of(plain, spec("m, k", m=(1, 99), k=(1, 1 << 14)), harness.spec("k, n", k=(1, 1 << 14), n=(1, 99)))
    assert not free.choices and len(free.steps) == 1 and not free.debug["speculation"]


def test_the_only_product_over_operands_in_memory_is_divided() -> None:
    graph = Graph(Scope())
    x, w = (graph.add_input(shape, np.dtype(np.float32), name) for name, shape in (("x", (4, K)), ("w", (K, N))))
    computed = graph.add("exp", x)
    dots = [graph.add("dot", a, w, contract=((1,), (0,)), batch=((), ()), dtype=x.dtype) for a in (x, computed)]
    first, second = (dot.producer for dot in dots)
    assert first is not None and second is not None and computed.producer is not None
    assert parts.product_of(Group(0, [first])) is first
    assert parts.product_of(Group(0, [second])) is second, "what another kernel computes lies in memory"
    assert parts.product_of(Group(0, [computed.producer, second])) is None
    assert parts.product_of(Group(0, [first, second])) is None


def test_without_speculation() -> None:
    assert not program(speculation=False).choices and len(program(speculation=False).steps) == 1
    prog = pipeline.from_function(plain, [spec(f"m, {K}", m=(0, 9)), spec(f"{K}, {N}")], {}).compile(
        start=False, options=dvm.Options(disable=("speculation",))
    )
    assert len(prog.kernels) == 1


def test_of_fixed_sizes_there_is_one_form() -> None:
    prog = program_of(epilogue, spec(f"2, {K}"), spec(f"{K}, {N}"))
    verifier.verify(serialise.loads(serialise.dumps(prog)))
    assert not prog.choices and [k["ops"] for k in prog.debug["kernels"]] == [["broadcast"], ["dot"], ["max", "add"]]
    (said,) = prog.debug["speculation"]
    assert said["rule"] == "divided product" and "at its sizes" in said["reason"]
    x, w = operands(2)
    check(referred(prog, x, w)[0], *wanted(epilogue, x, w), 1e-5)


@pytest.mark.parametrize(("others", "divided"), [(4, True), (5, False), (6, True)])
def test_a_block_is_held_to_six_kernels(others: int, divided: bool) -> None:
    """A larger program has more in any case."""

    def fn(x, w, y, v):
        for _ in range(others):
            y = y @ v
        return x @ w, y

    prog = program_of(fn, spec(f"m, {K}", m=(0, 99)), spec(f"{K}, {N}"), spec("m, 64", m=(0, 99)), spec("64, 64"))
    assert divided is (others + 2 <= MOST_OF_A_BLOCK or others + 1 > MOST_OF_A_BLOCK)
    assert len(kernels_of(prog.steps)) == others + 1 + divided and not prog.choices, "at all sizes in one form"


@pytest.mark.parametrize("name", ["qwen2.5-0.5b", "bert-base", "mmoe"])
def test_nothing_is_built_for_products_that_cannot_gain(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of models are decided by bounds alone."""
    config = models.load_config(name)
    traced = pipeline.from_function(
        models.block(config), (models.param_specs(config, jnp.float32), *blocks.specs(config, jnp.float32)), {}
    )
    count: Counter[str] = Counter()
    count_calls(monkeypatch, count, division, "candidates")
    count_calls(monkeypatch, count, parts, "parts_of")
    traced.compile(start=False)
    assert count["candidates"] >= 1 and not count["parts_of"]


SIZES = [(np.float32, 128, 4096), (np.float32, 512, 4096), (np.float32, 256, 16384), (np.float16, 128, 16384)]


@pytest.mark.parametrize(("dtype", "n", "k"), SIZES, ids=str)
def test_the_form_that_runs_takes_less_emulated_time(dtype: Any, n: int, k: int) -> None:
    """Divided from 1 to 64 rows; at every size hardly more than the other form, and at few rows much less."""
    prog, one = program(plain, dtype, k, n), program(plain, dtype, k, n, speculation=False)
    gains = {}
    for m in (1, 2, 16, 64, 128, 300, 1024, 4096):
        bound = Binder(prog).bind((m,))
        mine, other = (emulate(p, Binder(p).bind((m,))).us for p in (prog, one))
        gains[m] = other / mine
        assert gains[m] == 1.0 if bound.chosen == (0,) else gains[m] >= 1.1, gains
    assert all(gains[m] >= 1.4 for m in (1, 16, 64)) and gains[4096] == 1.0, gains


def test_rows_that_are_hardly_more_than_a_tile_are_shared_out_evenly() -> None:
    prog = program(plain, np.float32, 16384, 256)
    few, many = (emulate(prog, Binder(prog).bind((m,))).us for m in (130, 256))
    assert few < 0.85 * many


def test_reports_say_which_form_runs_and_why() -> None:
    prog = dvm.CompiledProgram(program(epilogue), tier="reference")
    last = limit(prog.program)
    (kernel,) = prog.kernels
    assert kernel.where == f"m <= {last}" and [part.ops for part in kernel.apart] == [
        ("broadcast",), ("dot",), ("max", "add")
    ]  # fmt: skip
    assert f"where m <= {last}, it is 3 kernels" in str(prog.explain())
    (said,) = prog.report(m=last).to_dict()["forms"]
    assert "instead of" in said and kernel.where in said and "1 rows" in said
    assert len(prog.profile(m=last).kernels) == 3 and len(prog.profile(m=last + 1).kernels) == 1


@pytest.mark.parametrize("fn", [plain, epilogue])
def test_files_and_text_keep_both_forms(fn: Callable[..., Any]) -> None:
    prog = program(fn)
    again = serialise.loads(serialise.dumps(prog))
    verifier.verify(again)
    assert again.steps == prog.steps and again.choices == prog.choices
    assert serialise.dumps(again) == serialise.dumps(prog)
    for template in prog.templates:
        text = disassembler.template_text(template)
        np.testing.assert_array_equal(assembler.assemble_template(text).words, template.words)
    x, w = operands(3)
    check(referred(again, x, w)[0], *wanted(fn, x, w), 1e-5)


def steps(prog: Program) -> tuple[KernelStep, KernelStep, KernelStep]:
    """The kernel of one form, that of the zeros, and the product that adds."""
    merged, zeros, product = sorted(kernels_of(prog.steps), key=lambda s: (s.alternative, s.name))
    return merged, zeros, product


@pytest.mark.parametrize("order", [0, 1], ids=["as compiled", "merged first"])
def test_a_product_whose_zeros_are_missing_is_refused(order: int) -> None:
    """The verifier refuses it though the other form stores the result; the reference executor finds elements that nobody has set."""
    prog = program()
    merged, zeros, product = steps(prog)
    assert stored_buffers(decode(prog.templates[zeros.template])) == [0]

    def changed(*mine: KernelStep) -> Program:
        return replace(prog, steps=mine, stages=())

    verifier.verify(changed(merged, zeros, product))
    there = (merged, product) if order else (product, merged)
    with pytest.raises(ProgramError, match="no step before it stores"):
        verifier.verify(changed(*there))
    with pytest.raises(Hazard, match="uninitialised read"):
        referred(changed(*there), *operands(3))
    with pytest.raises(ProgramError, match="no step before it stores"):  # zeros that are set where the other form runs
        verifier.verify(changed(merged, replace(zeros, alternative=0), product))
    with pytest.raises(ProgramError, match="no step before it stores"):
        verifier.verify(changed(merged, product, zeros))


def test_a_mutated_product_is_refused() -> None:
    prog = program()
    _, _, product = steps(prog)
    template = prog.templates[product.template]
    text = disassembler.template_text(template)
    kinds = [loop.kind for loop in loops_of(decode(template).body)]
    assert isa.LoopKind.SPLIT in kinds

    def refused(match: str, old: str, new: str) -> None:
        assert old in text
        written = assembler.assemble_template(text.replace(old, new, 1))
        templates = [written if t is template else t for t in prog.templates]
        with pytest.raises(ProgramError, match=match):
            verifier.verify(replace(prog, templates=tuple(templates)))

    refused("must add", "add=1", "add=0")
    refused("wants loops that sum up|not a sum", "kind=REDUCE", "kind=PARALLEL")
    refused("not a sum", "imm=0", "imm=1.0")
    refused("malformed|add again|SPLIT", "kind=SPLIT", "kind=PARALLEL")


def test_equal_layers_share_both_forms() -> None:
    def layers(x, w, v):
        for _ in range(8):
            x = jax.nn.relu(x @ w) @ v
        return x

    prog = program_of(layers, spec(f"m, {K}", m=(0, 4096)), spec(f"{K}, 64"), spec(f"64, {K}"))
    verifier.verify(prog)
    assert len(prog.choices) == 1 and len(prog.templates) <= 6
    x, w, v = random((3, K)), random((K, 64), seed=1, scale=0.02), random((64, K), seed=2, scale=0.1)
    check(referred(prog, x, w, v)[0], *wanted(layers, x, w, v), 1e-4)


@pytest.mark.parametrize("where", ["scan", "cond"])
def test_inside_of_control_flow(where: str) -> None:
    """Branches and bodies have both forms; the zeros are set in every step."""

    def scan(x, w):
        return jax.lax.scan(lambda c, _: (c + jnp.tanh(x @ w), None), jnp.zeros((x.shape[0], N)), None, length=3)[0]

    def cond(x, w):
        return jax.lax.cond(x.sum() > 0, lambda: x @ w, lambda: jnp.zeros((x.shape[0], N)) + w[0])

    fn = {"scan": scan, "cond": cond}[where]
    prog = program(fn)
    verifier.verify(serialise.loads(serialise.dumps(prog)))
    assert len(prog.choices) == 1
    last = limit(prog)
    for m, sign in ((1, 1), (1, -1), (4, 1), (last + 1, 1)):
        x, w = operands(m)
        x *= sign * np.sign(x.sum())
        check(referred(prog, x, w)[0], *wanted(fn, x, w), 1e-5)


def wide_columns(x, w):
    return jax.nn.gelu(x @ w)[:, ::2]


KINDS: dict[str, tuple[Callable[..., Any], tuple[str, ...], int]] = {
    "left operand transposed": (lambda x, w: x.T @ w, ("300, m", "300, 40"), 1),
    "right operand transposed": (lambda x, w: jnp.tanh(x @ w.T), ("m, k", "40, k"), 1),
    "batches": (lambda x, w: jnp.einsum("bmk,bkn->bmn", x, w), ("3, m, 300", "3, 300, 40"), 1),
    "sums over two dims": (lambda x, w: jnp.einsum("mhk,hkn->mn", x, w), ("m, 3, 600", "3, 600, 40"), 0),
    "rows of two dims": (lambda x, w: x @ w, ("2, m, k", "k, 130"), 1),
    "operands with an offset": (lambda x, w: x[:, 3:] @ w[:-3], ("m, 300", "300, 40"), 1),
    "reshaped": (lambda x, w: (x @ w).reshape(-1, 20, 2).transpose(0, 2, 1) + 1, ("m, 300", "300, 40"), 1),
    "parts of a larger result": (
        lambda x, w, y, v: jnp.concatenate([x @ w, y @ v], 0),
        ("m, 300", "300, 40", "m, 260", "260, 40"),
        2,
    ),
    "epilogue in a larger result": (
        lambda x, w: jnp.concatenate([jnp.tanh(x @ w), x[:, :7]], 1),
        ("m, 300", "300, 40"),
        1,
    ),
    "several results": (lambda x, w: (x @ w, (x @ w) * 2, (x @ w).sum(1)), ("m, 300", "300, 40"), 1),
    "some columns": (wide_columns, ("m, k", "k, 40"), 1),
    "two products": (lambda x, w: (x @ w) @ w.T, ("m, 300", "300, 140"), 2),
    "a vector": (lambda x, w: x @ w, ("m, 300", "300"), 1),
    "one number": (lambda x, w: x @ w, ("k", "k"), 1),
}


@pytest.mark.parametrize("dtype", DTYPES, ids=IDS)
@pytest.mark.parametrize("name", KINDS)
def test_products_of_every_kind_divided(name: str, dtype: np.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether that is faster or not; one whose place is in a larger result is not."""
    fn, shapes, count = KINDS[name]
    monkeypatch.setattr(division, "_idle", lambda group, scope, chip: parts.product_of(group) is not None)
    monkeypatch.setattr(Speculation, "divide", lambda *_, **__: Decision(True, "to try it"))
    specs = [spec(s, dtype, **{d: (0, 1000) for d in "mk" if d in s}) for s in shapes]
    prog = serialise.loads(serialise.dumps(program_of(fn, *specs)))
    verifier.verify(prog)
    adding = [step for step in kernels_of(prog.steps) if verifier_adds.added(decode(prog.templates[step.template]))]
    assert len(adding) == (0 if name == "parts of a larger result" and dtype == np.float32 else count)
    for m, k in ((0, 300), (1, 300), (130, 300)) + (((5, 0), (3, 1)) if any("k" in s for s in shapes) else ()):
        sizes = {"m": m, "k": k}
        at = [tuple(sizes[d] if d in sizes else int(d) for d in s.split(", ")) for s in shapes]
        arrays = [random(s, dtype, i, 0.05 if i else 1) for i, s in enumerate(at)]
        want = wanted(fn, *arrays)
        for found in (referred(prog, *arrays), simulate(prog, *arrays, tile=100 if m == 130 else None)):
            for got, expected in zip(found, want, strict=True):
                check(np.asarray(got).reshape(expected.shape), expected, 1e-5 if dtype == np.float32 else None)
