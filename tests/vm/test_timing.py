"""Emulated time: the model against what can be worked out by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import jax.numpy as jnp
import onnx.parser
import pytest

import dvm
from dvm import pipeline
from tests.vm.emulated import compiled, program, time_of
from vm.binder import Binder
from vm.chip import Chip
from vm.isa import Pipe
from vm.program import Reloc
from vm.timing import Stopwatch

CHIP = Chip.load("910B1")


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("add", [{"n": n} for n in (0, 1, 4096, 4097, 300_001)]),
        ("chain", [{"n": 777_777}]),
        ("layer_norm", [{"b": b} for b in (1, 53, 3001)]),
        ("softmax", [{"b": 997}]),
        ("matmul", [{"m": m} for m in (1, 64, 65, 300)]),
        ("matmul32", [{"m": 300}]),
        ("dynamic", [{"m": 100, "k": k} for k in (1, 128, 1000)]),
    ],
)
def test_skipping_repeated_steps_changes_nothing(name: str, sizes: list[dict[str, int]]) -> None:
    for dims in sizes:
        skipped, walked = (time_of(program(name), exact=exact, **dims) for exact in (False, True))
        for a, b in zip(skipped.kernels, walked.kernels, strict=True):
            assert a.cycles == pytest.approx(b.cycles, rel=1e-9), dims
            assert a.utilisation == pytest.approx(b.utilisation), dims


def test_bytes_and_operations_of_a_product() -> None:
    m, n, k = 300, 4096, 4096
    (kernel,) = time_of(program("matmul"), m=m).kernels
    assert kernel.flops == pytest.approx(2 * m * n * k, rel=1e-6)
    assert kernel.bytes["written"] == 2 * m * n
    assert kernel.bytes["hbm_read"] >= 2 * (m * k + k * n)
    assert kernel.bytes["read"] >= kernel.bytes["hbm_read"]
    assert kernel.cores <= CHIP.cube_cores


def test_bytes_of_an_elementwise_kernel() -> None:
    n = 3_000_001
    (kernel,) = time_of(program("add"), n=n).kernels
    assert (kernel.bytes["read"], kernel.bytes["written"], kernel.flops) == (8 * n, 4 * n, n)
    assert kernel.intensity == pytest.approx(1 / 12)


def test_no_pipe_and_no_memory_is_busier_than_the_time() -> None:
    for name, dims in (("add", {"n": 1 << 27}), ("layer_norm", {"b": 1 << 16}), ("matmul", {"m": 4096})):
        for kernel in time_of(program(name), **dims).kernels:
            assert set(kernel.utilisation) == {p.name for p in Pipe} | {"HBM", "L2"}
            assert all(0 <= share <= 1 for share in kernel.utilisation.values()), (name, kernel.utilisation)
            assert kernel.utilisation[kernel.bound] >= 0.95 * max(kernel.utilisation.values())


def test_a_large_elementwise_kernel_is_bound_by_hbm() -> None:
    (kernel,) = time_of(program("add"), n=1 << 28).kernels
    assert kernel.bound == "HBM"
    assert kernel.utilisation["HBM"] >= 0.85
    peak = CHIP.hbm_bytes_per_second * CHIP.bandwidth.sustained_ratio
    assert 12 * (1 << 28) / peak <= kernel.us / 1e6 <= 12 * (1 << 28) / peak / 0.85


@pytest.mark.parametrize("chip", ["910B1", "910B2", "910B3", "910B4"])
def test_a_large_product_keeps_the_cube_busy(chip: str) -> None:
    n = 4096
    specs = dvm.spec(f"m, {n}", jnp.float16, m=dvm.Dim("m", max=1 << 14)), dvm.spec(f"{n}, {n}", jnp.float16)
    prog = compiled(jnp.dot, *specs, chip=chip)
    for m in (4096, 8192):
        (kernel,) = time_of(prog, m=m).kernels
        found = Chip.load(chip)
        peak = found.cube_cores * found.cube.m * found.cube.n * found.cube_k(2)  # multiply-adds a cycle
        assert kernel.flops == 2 * m * n * n
        assert kernel.flops / 2 / kernel.cycles >= 0.85 * peak, (m, kernel.utilisation)


def test_time_grows_with_the_work() -> None:
    times = [time_of(program("add"), n=n).us for n in (1, 1 << 12, 1 << 20, 1 << 24, 1 << 28)]
    assert times == sorted(times)
    assert times[0] > 0
    cycles = time_of(program("add"), n=1).cycles
    latency = CHIP.latency
    assert cycles >= 2 * latency.gm_read_path_cycles + latency.gm_write_path_cycles  # fetch of the code, load, store
    assert cycles <= 3 * latency.gm_read_path_cycles + latency.gm_write_path_cycles


def test_the_sizes_decide_and_not_the_tiles() -> None:
    """A large product is evaluated in a few hundred instructions."""
    small, large = (time_of(program("matmul"), m=m) for m in (128 * 25, 128 * 25 * 4))
    assert large.cycles / small.cycles == pytest.approx(4, rel=0.05)


def test_empty_programs_take_the_time_to_find_out() -> None:
    result = time_of(program("add"), n=0)
    assert result.kernels[0].moved == 0
    assert 0 < result.cycles < 2 * CHIP.latency.gm_read_path_cycles
    assert math.isclose(result.us, result.cycles / CHIP.clock_hz * 1e6)


def test_sizes_that_depend_on_data_count_as_the_most_they_can_be() -> None:
    body = """f (bool[n] m, float[n, 5] x) => (float[k, 5] e) {
        zero = Constant<value = int64[1] {0}>()
        where = NonZero(m)  at = Squeeze(where, zero)  g = Gather<axis = 0>(x, at)  e = Exp(g) }"""
    model = onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["": 18]> {body}')
    profile = pipeline.from_onnx_model(model, None, ()).compile(start=False).profile(n=64)
    assert profile.kernels[-1].bytes["written"] == 64 * 5 * 4
    assert profile.time.host_ops >= 1 and "depend on data" in profile.time.notes[0]


@pytest.mark.parametrize(
    ("name", "dims"), [("layer_norm", {"b": 1 << 18}), ("softmax", {"b": 1 << 18}), ("chain", {"n": 1 << 28})]
)
def test_fusion_gains_what_traffic_predicts(name: str, dims: dict[str, int]) -> None:
    """Beyond L2, so that every byte passes HBM. A fused row kernel waits for its own loads, hence the margin below."""
    fused, unfused = (time_of(program(name, on), **dims) for on in (True, False))
    assert len(fused.kernels) == 1 < len(unfused.kernels)
    moved = [sum(kernel.hbm_bytes for kernel in result.kernels) for result in (unfused, fused)]
    predicted, gained = moved[0] / moved[1], unfused.us / fused.us
    assert predicted >= 4
    assert 0.7 * predicted <= gained <= 1.2 * predicted


def test_equal_words_of_other_buffers_are_another_kernel() -> None:
    """x + y and x + x may have the same words: which buffers they work on is not in them."""
    made = program("add").program
    bound = Binder(made).bind_symbols(n=5000)
    (template,), words = made.templates, bound.kernel_words(0)
    twice = replace(template, relocs=tuple(Reloc(r.word, min(r.buffer, 1)) for r in template.relocs), n_buffers=2)
    watch = Stopwatch(CHIP)
    watch.cycles([(template, words, [(0, 20_000), (1, 20_000), (2, 20_000)])])
    together = [(twice, words, [(0, 20_000), (1, 20_000)])]
    assert watch.cycles(together) == Stopwatch(CHIP).cycles(together)
