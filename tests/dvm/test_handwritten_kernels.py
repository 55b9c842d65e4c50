"""Kernels that are built and driven by hand, the kinds and what they forbid, and what kernels say about themselves."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

import dvm
from graph_kernel.text import parse, to_text

TIER = "reference"


def numbers(shape, dtype=np.float32, seed=0):
    return np.random.default_rng(seed).uniform(-3, 3, shape).astype(dtype)


def close(got, want, rtol=1e-5):
    assert np.shape(got) == np.shape(want)
    np.testing.assert_allclose(np.asarray(got, np.float64), np.asarray(want, np.float64), rtol=rtol, atol=rtol)


# ---- by hand


def test_one_kernel_driven_at_many_shapes():
    k = dvm.Kernel("vector", tier=TIER)
    x, s = k.load([-1, -1], dvm.float32), k.scalar(dvm.float32)
    out = k.store(k.reduce("sum", k.unary("Sqrt", k.binary("Add", k.mul(x, x), s)), [1], True))
    before = dvm.stats().compiles
    for i, shape in enumerate([(5, 7), (0, 3), (1, 1), (3, 127), (2, 129)]):
        array = numbers(shape, seed=i)
        k.input(x, array)
        k.input(s, 0.5 + i)
        k.codegen()
        for _ in range(2):
            k.run()
            close(k.output(out), np.sqrt(array * array + np.float32(0.5 + i)).sum(1, keepdims=True))
    assert dvm.stats().compiles - before == 1


def test_sizes_that_are_references():
    ref = dvm.IntArray([2, 3])
    plain = [4]
    k = dvm.Kernel(tier=TIER)
    x = k.load(ref, dvm.float32)
    (times,) = k.int_array(plain)
    rows = k.store(k.broadcast(k.sum(x, 0), [times, x.shape[1]]))
    flat = k.store(k.reshape(x, [-1]))
    before = dvm.stats().compiles
    for sizes, n in [((2, 3), 4), ((5, 7), 1), ((1, 1), 0)]:
        ref[:] = sizes
        plain[0] = n
        array = numbers(sizes)
        k.input(x, array)
        k.codegen().run()
        close(k.output(rows), np.broadcast_to(array.sum(0), (n, sizes[1])))
        close(k.output(flat), array.reshape(-1))
    assert dvm.stats().compiles - before == 1
    with pytest.raises(dvm.ShapeError, match="arg0"):
        k.input(x, numbers((4, 4)))
        k.codegen()
    with pytest.raises(dvm.InputError, match="at least 0, got -1"):
        plain[0] = -1
        k.run()
    with pytest.raises(dvm.InputError, match="keeps its number of entries"):
        ref[:] = [1, 2, 3]


def test_scalars_begin_with_a_value():
    k = dvm.Kernel(tier=TIER)
    x, s = k.load([3], dvm.float32), k.scalar(2.0)
    out = k.store(k.mul(x, s))
    k.input(x, np.ones(3, np.float32))
    close(k.run().output(out), [2, 2, 2])
    k.input(s, 3.0)
    close(k.run().output(out), [3, 3, 3])


def test_order_of_use():
    k = dvm.Kernel(tier=TIER)
    x = k.load([-1], dvm.float32)
    out = k.store(k.exp(x))
    with pytest.raises(dvm.InputError, match="'arg0' of kernel 'kernel' is not set"):
        k.run()
    with pytest.raises(dvm.InputError, match="has not run yet"):
        k.output(out)
    with pytest.raises(dvm.InputError, match="neither a load nor a scalar"):
        k.input(out, 1.0)
    k.input(x, numbers((3,), np.float64))
    with pytest.raises(dvm.InputError, match="expected dtype float32, got float64"):
        k.run()
    k.input(x, numbers((3,)))
    more = k.store(k.add(x, 1.0))  # a kernel may grow
    k.run()
    close(k.output(more), numbers((3,)) + 1)
    other = dvm.Kernel()
    for foreign in (x, k.exp(x)):
        with pytest.raises(dvm.CompileError, match="belongs to another kernel"):
            other.store(foreign)


def test_eager_kernels_are_reset_and_rebuilt():
    k = dvm.Kernel("eager", tier=TIER)
    before = dvm.stats().compiles
    for i in range(6):
        k.reset()
        x = k.load([-1, 4], dvm.float32)
        out = k.store(k.exp(x) if i % 2 else k.mul(x, 3.0))
        array = numbers((i, 4))
        k.input(x, array)
        close(k.run().output(out), np.exp(array) if i % 2 else array * 3)
    assert dvm.stats().compiles - before == 2  # two different kernels


# ---- kinds


def softmax(k, x):
    e = k.exp(k.sub(x, k.max(x, -1, True)))
    return k.div(e, k.sum(e, -1, True))


def built(ktype, body):
    k = dvm.Kernel(ktype, tier=TIER, name="f")
    body(k, k.load(["m", "n"], dvm.float32), k.load(["n", "p"], dvm.float32))
    return k


KINDS_OF_ERRORS = [
    ("vector", lambda k, a, b: k.store(k.matmul(a, b)), "has no matrix product"),
    (
        "vector",
        lambda k, a, b: k.store(k.concat([k.permute(softmax(k, a), [1, 0]), b], 1)),
        "which is 1 kernel, but needs 2",
    ),
    ("cube", lambda k, a, b: k.store(k.exp(a)), "exactly one matrix product, not 0"),
    ("cube", lambda k, a, b: k.store(k.matmul(k.matmul(a, b), k.permute(b, [1, 0]))), "not 2"),
    ("cube", lambda k, a, b: k.store(k.exp(k.matmul(a, b))), "and nothing else, not exp"),
    ("mix", lambda k, a, b: k.store(k.sum(k.matmul(a, b), -1)), "elementwise, sum is not"),
    ("mix", lambda k, a, b: k.store(k.matmul(k.exp(a), b)), "exp comes before it"),
    ("mix", lambda k, a, b: k.store(k.exp(a)), "exactly one matrix product, not 0"),
]


@pytest.mark.parametrize("ktype,body,text", KINDS_OF_ERRORS, ids=range(len(KINDS_OF_ERRORS)))
def test_what_kinds_forbid(ktype, body, text):
    with pytest.raises(dvm.CompileError) as caught:
        _ = built(ktype, body).program
    assert text in str(caught.value) and "'f'" in str(caught.value) and f"kind {ktype}" in str(caught.value)
    assert built("split", body).program.kernels  # anything goes


def test_a_vector_kernel_says_why_it_is_not_one():
    k = dvm.Kernel("vector", name="f")
    x = k.load([-1, -1], dvm.float32)
    k.store(k.add(softmax(k, x), k.load([-1], dvm.float32)))
    with pytest.raises(dvm.CompileError, match=r"computed again for every index(.|\n)*k.load\(\['n', 64\]"):
        _ = k.program


def test_spec_next_allows_a_cut():
    def body(k, mark):
        x = k.load(["m", "n"], dvm.float32)
        z = k.load(["m", "p"], dvm.float32)
        y = softmax(k, x)
        if mark:
            k.spec_next()
        return (x, z), k.store(k.permute(k.concat([k.permute(y, [1, 0]), k.permute(z, [1, 0])], 0), [1, 0]))

    strict = dvm.Kernel("vector", tier=TIER)
    body(strict, False)
    with pytest.raises(dvm.CompileError, match="which is 1 kernel"):
        _ = strict.program
    k = dvm.Kernel("vector", tier=TIER)
    (x, z), out = body(k, True)
    assert len(k.program.kernels) == 2
    array, other = numbers((3, 5)), numbers((3, 4))
    e = np.exp(array - array.max(-1, keepdims=True))
    k.input(x, array)
    k.input(z, other)
    close(k.run().output(out), np.concatenate([e / e.sum(-1, keepdims=True), other], 1))


def test_vector_and_mix_are_one_kernel_with_several_results():
    @dvm.kernel("mix", tier=TIER)
    def mixed(k, a, b, bias):
        y = k.matmul(k.load(a, shape=["m", 16]), k.load(b, shape=[16, "n"]), bias=k.load(bias, shape=["n"]))
        return k.store(k.maximum(y, 0.0)), k.store(y, dvm.float16)

    for m, n in [(5, 7), (1, 33), (0, 3)]:
        a, b, bias = numbers((m, 16)), numbers((16, n), seed=1), numbers((n,), seed=2)
        first, second = mixed(a, b, bias)
        close(first, np.maximum(a @ b + bias, 0))
        close(second, (a @ b + bias).astype(np.float16), rtol=1e-3)
    assert len(mixed.program.kernels) == 1


def parallel_kernel():
    k = dvm.Kernel("parallel", tier=TIER, name="f")
    x, y = k.load(["m", "n"], dvm.float32), k.load(["p"], dvm.float32)
    k.parallel_add("vector")
    first = k.store(softmax(k, x))
    k.parallel_next()
    second = k.store(k.mul(y, 2.0))
    k.parallel_add("cube")
    third = k.store(k.matmul(x, x, trans_b=True))
    return k, x, y, (first, second, third)


def test_parallel_children():
    k, x, y, outs = parallel_kernel()
    a, b = numbers((3, 5)), numbers((7,))
    k.input(x, a)
    k.input(y, b)
    k.run()
    e = np.exp(a - a.max(-1, keepdims=True))
    for out, want in zip(outs, [e / e.sum(-1, keepdims=True), b * 2, a @ a.T], strict=True):
        close(k.output(out), want)
    assert len(k.program.kernels) == 3
    origins = [{o.rsplit(", ", 1)[1] for o in kernel.origin} for kernel in k.program.kernels]
    assert sorted(map(sorted, origins)) == [["child 1"], ["child 2"], ["child 3"]]


def test_parallel_children_are_independent_and_legal():
    k = dvm.Kernel("parallel", name="f")
    x = k.load([-1], dvm.float32)
    y = k.exp(x)  # the first child, without saying so
    k.parallel_next()
    with pytest.raises(dvm.CompileError, match="child 2 uses what child 1 makes"):
        k.add(y, 1.0)
    with pytest.raises(dvm.CompileError, match="possible here: vector, cube, mix"):
        k.parallel_add("sequence")
    with pytest.raises(dvm.CompileError, match="only a parallel kernel"):
        dvm.Kernel("split").parallel_next()
    with pytest.raises(dvm.CompileError, match="only a sequence kernel"):
        k.sequence_add()
    k.store(k.log(k.matmul(k.load(["m", 4], dvm.float32), k.load([4, "n"], dvm.float32))))
    with pytest.raises(dvm.CompileError, match="child 2, is of kind vector, which has no matrix product"):
        _ = k.program


def sequence_kernel():
    k = dvm.Kernel("sequence", tier=TIER, name="f")
    x, w = k.load(["m", 8], dvm.float32), k.load([8, "n"], dvm.float32)
    k.sequence_add("vector")
    y = k.mul(x, 0.5)
    k.sequence_add("mix")
    z = k.exp(k.matmul(y, w))
    k.sequence_add("parallel")
    k.parallel_add("vector")
    first = k.store(k.sum(z, -1))
    k.parallel_add("vector")
    second = k.store(k.add(z, 1.0))
    k.sequence_add("vector")
    third = k.store(k.sub(z, 2.0))
    return k, x, w, (first, second, third)


def test_children_in_order():
    k, x, w, outs = sequence_kernel()
    before = dvm.stats().compiles
    for m, n in [(5, 7), (1, 1), (0, 3)]:
        a, b = numbers((m, 8)), numbers((8, n), seed=1) / 8
        k.input(x, a)
        k.input(w, b)
        k.run()
        z = np.exp((a * np.float32(0.5)) @ b)
        for out, want in zip(outs, [z.sum(-1), z + 1, z - 2], strict=True):
            close(k.output(out), want)
    assert dvm.stats().compiles - before == 1
    places = [[o.rsplit(", ", 1)[1] for o in kernel.origin] for kernel in k.program.kernels]
    assert [set(p) for p in places] == [{"child 1"}, {"child 2"}, {"child 4"}, {"child 5"}, {"child 6"}]


# ---- looking inside


def sizes_that_meet_at_launch():
    k = dvm.Kernel(tier=TIER)
    k.store(k.add(k.mul(k.load([-1, -1], dvm.float32), k.load([-1, -1], dvm.float32)), k.load([-1], dvm.float32)))
    return (k,)


@pytest.mark.parametrize("make", [parallel_kernel, sequence_kernel, sizes_that_meet_at_launch])
def test_dump_parses_back(make, capsys):
    k = make()[0]
    text = k.dump()
    assert capsys.readouterr().out == text
    assert to_text(parse(text)) == text
    _ = k.program
    assert k.dump() == text  # compiling leaves it alone


def test_das_is_what_dvm_dis_prints(tmp_path, capsys):
    @dvm.kernel("vector", tier=TIER)
    def f(k, x):
        return k.store(softmax(k, k.load(x)))

    with pytest.raises(dvm.CompileError, match="call it first"):
        f.dump()
    f(numbers((2, 3)))
    text = f.das()
    assert capsys.readouterr().out == text + "\n" and "exp" in text
    f.program.save(tmp_path / "f.dvm")
    command = [sys.executable, "-m", "dvm", "dis", str(tmp_path / "f.dvm")]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.rstrip("\n") == text.rstrip("\n")
    loaded = dvm.load(tmp_path / "f.dvm", tier=TIER)
    (result,) = loaded.run(None, {"x": numbers((4, 5))})
    np.testing.assert_array_equal(result, f(numbers((4, 5))))
