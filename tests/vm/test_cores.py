"""The division of a kernel's steps over cores: every step is taken once."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from vm.isa import LoopKind
from vm.reference_core import ReadyLoop, Share, core_count, inside, nested, outermost, steps_inside


def loop(axis: int, trips: int, body: list[ReadyLoop], kind: LoopKind = LoopKind.PARALLEL) -> ReadyLoop:
    return ReadyLoop(0, axis, kind, 1, trips, trips, list(body))


leaves = st.builds(lambda n, k: loop(2, n, [], k), st.integers(0, 5), st.sampled_from(LoopKind))
middles = st.builds(lambda n, body: loop(1, n, body), st.integers(0, 5), st.lists(leaves, max_size=2))
kernels = st.lists(
    st.builds(lambda n, body: loop(0, n, body), st.integers(0, 9), st.lists(middles | leaves, max_size=3)), max_size=2
)


def walk(
    body: list[ReadyLoop], share: Share, cores: int, path: tuple, took: Counter, stored: Counter, stores: bool
) -> None:
    stored[path] += stores
    for k, item in enumerate(body):
        parallel = item.kind == LoopKind.PARALLEL
        begin, end, inner = share(item) if parallel else (0, item.trips, 1)
        for step, low, high in steps_inside(begin, end, inner):
            within = inside(low, high, inner, cores) if parallel else share
            place = (*path, k, step)
            took[place] += 1
            walk(item.body, within, cores, place, took, stored, low == 0 if parallel else stores)


def every(body: list[ReadyLoop], path: tuple = ()) -> list[tuple]:
    out = [path]
    for k, item in enumerate(body):
        for step in range(item.trips):
            out += every(item.body, (*path, k, step))
    return out


@given(kernels, st.integers(1, 12))
def test_every_step_is_taken_and_stored_once(body: list[ReadyLoop], limit: int) -> None:
    cores = core_count(body, limit)
    took: Counter = Counter()
    stored: Counter = Counter()
    for core in range(cores):
        walk(body, outermost(core, cores), cores, (), took, stored, core == 0)
    places = every(body)
    assert set(took) == set(places) - {()}
    assert all(stored[place] == 1 for place in places)


def test_few_rows_are_shared_by_many_cores() -> None:
    row = loop(0, 1, [loop(1, 16, []), loop(1, 4, [])])
    assert nested(row, 25) == 16 and core_count([row], 25) == 16
    took = Counter()
    for core in range(16):
        walk([row], outermost(core, 16), 16, (), took, Counter(), core == 0)
    assert took[0, 0] == 16  # what is outside of the inner loops is repeated
    assert all(n == 1 for place, n in took.items() if len(place) == 4) and len(took) == 1 + 16 + 4
