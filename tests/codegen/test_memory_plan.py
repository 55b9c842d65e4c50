"""The plan by itself: which places are proved, which are bound at the launch, and that both are sound."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from codegen.memory_plan import MemoryPlan
from symbolic import Dim, Scope, ceildiv, lower
from vm.intcode import Builder
from vm.program import LANES, TEMP, Buffer, KernelStep
from vm.program.lifetimes import lifetimes

Item = tuple[Dim, int, int]  # elements, first and last step


class Plan:
    """Temporaries of given sizes and lifetimes, planned: steps are kernels that access what lives."""

    def __init__(self, scope: Scope, items: list[Item]) -> None:
        self.scope, self.items = scope, items
        self.names = list(scope.symbols)
        self.code = Builder(len(self.names))
        env = {name: i for i, name in enumerate(self.names)}
        self.plan = MemoryPlan(scope, self.code, self.names)
        self.rows = []
        buffers = []
        for i, (elements, _, _) in enumerate(items):
            size = ceildiv(elements, LANES)
            self.rows.append(lower(size, self.code, env))
            buffers.append(Buffer(TEMP, "float32", lower(elements, self.code, env), None, (), name=str(i)))
            self.plan.need(i, 4, size, self.rows[-1])
        last = max(end for _, _, end in items)
        steps = [
            KernelStep(0, (), tuple(i for i, (_, a, b) in enumerate(items) if t in (a, b))) for t in range(last + 1)
        ]
        self.buffers, self.arenas = self.plan.finish(buffers, steps)
        self.life = lifetimes(steps, buffers)

    def at(self, *sizes: int) -> tuple[list[tuple[int, int]], int]:
        """First and end row of every buffer, and all rows together."""
        regs = self.code.finish().run(sizes)
        spans = [
            (regs[b.offset or 0], regs[b.offset or 0] + regs[r]) for b, r in zip(self.buffers, self.rows, strict=True)
        ]
        return spans, sum(regs[reg] for reg in self.arenas.values())

    def sound(self, *sizes: int) -> bool:
        spans, total = self.at(*sizes)
        by_space = [b.space for b in self.buffers]
        for i, (_, a, b) in enumerate(self.items):
            for j, (_, c, d) in enumerate(self.items[:i]):
                apart = spans[i][1] <= spans[j][0] or spans[j][1] <= spans[i][0] or by_space[i] != by_space[j]
                if a <= d and c <= b and not apart:
                    return False
        return all(end <= total for _, end in spans)


def scope(*names: str) -> tuple[Scope, list[Dim]]:
    made = Scope()
    return made, [made.declare(name, min=0) for name in names]


def test_a_smaller_buffer_takes_the_place_of_a_dead_one() -> None:
    made, (n,) = scope("n")
    plan = Plan(made, [(256 * n, 0, 1), (128 * n, 2, 3), (128 * n, 2, 3)])
    assert plan.at(5)[1] == 10 and plan.plan.shared == {"proved": 2, "bound": 0}


def test_what_lies_above_two_unrelated_sizes_is_bound() -> None:
    """A row of n and one of m lie in one place one after the other; what lives with both lies above the larger one."""
    made, (n, m) = scope("n", "m")
    plan = Plan(made, [(128 * n, 0, 1), (128 * m, 2, 3), (128 * n + 128 * m, 1, 4), (128 * m, 4, 5)])
    for sizes in ((3, 50), (50, 3), (0, 7), (7, 0), (1, 1)):
        assert plan.sound(*sizes)
        assert plan.at(*sizes)[1] <= sum(sizes) + max(sizes)
    assert plan.plan.shared == {"proved": 2, "bound": 1}


SIZE = st.integers(1, 300)


@given(st.data())
def test_every_plan_is_sound_at_every_size(data: st.DataObject) -> None:
    made, (n, m) = scope("n", "m")
    items: list[Item] = []
    for _ in range(data.draw(st.integers(1, 8))):
        a, b, c = data.draw(st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(0, 200)))
        first = data.draw(st.integers(0, 6))
        items.append((a * 64 * n + b * 128 * m + c + 1, first, first + data.draw(st.integers(0, 3))))
    plan = Plan(made, items)
    for _ in range(5):
        assert plan.sound(data.draw(st.integers(0, 300)), data.draw(st.integers(0, 300)))
