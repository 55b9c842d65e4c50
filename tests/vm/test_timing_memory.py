"""Global memory in emulated time: the L2 model against the five measured products, and the port."""

from __future__ import annotations

import pytest

from vm.binder import Region
from vm.chip import Chip
from vm.timing_memory import Access, Cache, Port, Traffic, bandwidth, rates

M, K = 2560, 8192
# n, measured TB/s, measured hit rate: float16 products in the public tuning guide.
MEASURED = [(4096, 3.87, 0.938), (8192, 3.73, 0.937), (10240, 3.52, 0.893), (12288, 2.13, 0.576), (16384, 1.62, 0.323)]


def product_traffic(chip: Chip, n: int) -> Traffic:
    """What tiles of 128 x 256 read and write."""
    a, b, c = (Region((0, i), 0, 2 * size) for i, size in enumerate((M * K, n * K, M * n)))
    reads = [Access(a, a.bytes * (n // 256), a.bytes), Access(b, b.bytes * (M // 128), b.bytes)]
    return Cache(chip).kernel(reads, [Access(c, c.bytes, c.bytes)])


@pytest.mark.parametrize("name", ["910B1", "910B2"])
@pytest.mark.parametrize(("n", "measured", "hit"), MEASURED)
def test_measured_points_follow_from_the_sizes(name: str, n: int, measured: float, hit: float) -> None:
    chip = Chip.load(name)
    traffic = product_traffic(chip, n)
    assert traffic.read_hit == pytest.approx(hit, abs=0.03)
    got = chip.cube_cores * chip.clock_hz / rates(chip, traffic, chip.cube_cores).read / 1e12
    assert got == pytest.approx(measured, rel=0.15)


@pytest.mark.parametrize(("n", "measured", "hit"), MEASURED)
def test_measured_points_at_the_measured_hit_rate(n: int, measured: float, hit: float) -> None:
    chip = Chip.load("910B1")
    sustained = chip.bandwidth.sustained_ratio
    got = bandwidth(hit, chip.l2_read_bytes_per_second * sustained, chip.hbm_bytes_per_second * sustained)
    assert got / 1e12 == pytest.approx(measured, rel=0.15)


def test_a_core_alone_gets_no_more_than_its_own_rate() -> None:
    chip = Chip.load("910B1")
    cold = Traffic(100, 0, 100, 0)
    assert 1 / rates(chip, cold, 1).read == pytest.approx(chip.bandwidth.core_ddr_bytes_per_cycle)
    half = chip.bandwidth.ddr_bytes_per_cycle * chip.bandwidth.sustained_ratio / 2
    assert 1 / rates(chip, cold, chip.vector_cores).read == pytest.approx(half)


def test_what_was_written_is_read_from_the_cache() -> None:
    cache = Cache(Chip.load("910B1"))
    x, t = Region((0, 4), 0, 1 << 20), Region((1, 4), 0, 1 << 20)
    first = cache.kernel([Access(x, x.bytes, x.bytes)], [Access(t, t.bytes, t.bytes)])
    assert (first.hbm_read, first.hbm_written) == (x.bytes, 0)
    part = Region((1, 4), 1 << 10, 1 << 11)
    assert cache.kernel([Access(part, part.bytes, part.bytes)], []).hbm_read == 0
    other = Region((1, 4), 1 << 20, 1 << 21)
    assert cache.kernel([Access(other, other.bytes, other.bytes)], []).hbm_read == other.bytes


def test_dirty_bytes_are_written_back_when_they_are_pushed_out() -> None:
    chip = Chip.load("910B1")
    cache = Cache(chip)
    t = Region((1, 4), 0, 1 << 20)
    cache.kernel([], [Access(t, t.bytes, t.bytes)])
    large = Region((0, 4), 0, chip.l2_bytes)
    assert cache.kernel([Access(large, large.bytes, large.bytes)], []).hbm_written == t.bytes


def test_port_interleaves_transfers() -> None:
    port = Port()
    assert port.take(0, 10) == 10
    assert port.take(30, 10) == 40
    assert port.take(5, 25) == 45  # 10 to 30, then what is left
    assert port.take(0, 1) == 46
    assert port.busy == [(0, 46)]
    port.shift(4)
    port.forget(100)
    assert port.take(0, 4) == 4
