"""The search for the most general plan, on sizes alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dvm.specialise import History, Plan, Relation, Site, search

SITES = tuple(Site(i // 2, i % 2, f"argument {i // 2}", f"x{i // 2}") for i in range(4))


def history(*rows: tuple[int, ...]) -> History:
    made = History(SITES)
    for row in rows:
        made.record(row)
    return made


def test_classes_split_and_never_join():
    h = history((3, 3, 4, 3))
    assert h.classes == (0, 0, 1, 0) and h.changed_classes() == []
    h.record((5, 5, 4, 3))
    assert h.classes == (0, 0, 1, 2) and h.changed_classes() == [0]
    h.record((5, 5, 5, 5))
    assert h.classes == (0, 0, 1, 2) and h.changed_classes() == [0, 1, 2]


def test_plans_accept_what_they_say():
    h = history((3, 3, 4, 8), (5, 5, 4, 8))
    plan = h.plan((5, 5, 4, 8), {})
    assert plan.dims() == ("x0_0", "x0_0", 4, 8)
    assert plan.accepts((0, 0, 4, 8)) and plan.accepts((9, 9, 4, 8))
    assert not plan.accepts((9, 8, 4, 8)) and not plan.accepts((9, 9, 5, 8))
    assert not h.plan((5, 5, 4, 8), h.may_start_at_1(plan)).accepts((0, 0, 4, 8))


def test_relations_are_found_from_the_sizes():
    h = history((7, 0, 7, 14), (1, 7, 8, 16))  # s, past, total = past + s, 2*total
    found = h.relations()
    assert Relation(2, terms=(0, 1)) in found or any(r.text("abcd".__getitem__) == "a + b" for r in found)
    assert any(r.target == 3 and r.scale == 2 and r.factors == (2,) for r in found)
    h.record((2, 3, 6, 12))  # it was a coincidence
    assert not any(set(r.terms) == {0, 1} and not r.constant for r in h.relations())


def attempt_needing(*needs):
    """Fails unless every predicate holds for the plan; counts the calls."""

    def attempt(plan: Plan) -> Plan:
        attempt.calls += 1
        for need in needs:
            if not need(plan):
                raise TypeError("JAX cannot decide")
        return plan

    attempt.calls = 0
    return attempt


def test_search_prefers_the_most_general_plan():
    h = history((8, 4, 4, 4), (16, 4, 4, 4))
    found = search(h, (16, 4, 4, 4), attempt_needing())
    assert found.plan.kind == ("independent",) and found.plan.variables[0].min == 0 and not found.reason
    positive = search(h, (16, 4, 4, 4), attempt_needing(lambda p: all(v.min == 1 for v in p.variables.values())))
    assert positive.plan.variables[0].min == 1 and "JAX cannot decide" in positive.reason
    multiple = search(
        h, (16, 4, 4, 4), attempt_needing(lambda p: all(v.multiple_of == 8 for v in p.variables.values()))
    )
    assert multiple.plan.variables[0].multiple_of == 8
    assert any("multiple of 8, as in every call" in note for note in multiple.plan.notes(multiple.reason))
    fixed = search(h, (16, 4, 4, 4), attempt_needing(lambda p: not p.variables))
    assert fixed.plan.kind == ("fixed",) and fixed.plan.dims() == (16, 4, 4, 4)


def test_search_relaxes_one_dim_after_the_other():
    h = history((7, 5, 4, 4), (3, 2, 4, 4))
    need = attempt_needing(lambda p: 0 not in p.variables or p.variables[0].min == 1)  # the first must not be empty
    found = search(h, (3, 2, 4, 4), need)
    assert [v.min for v in found.plan.variables.values()] == [1, 0]


def test_search_keeps_only_the_dim_fixed_that_must_be():
    h = history((7, 5, 4, 4), (3, 2, 4, 4))
    found = search(h, (3, 2, 4, 4), attempt_needing(lambda p: 0 in p.fixed))
    assert found.plan.pinned == (0,) and list(found.plan.variables) == [1]
    assert any("argument 0 axis 0 is fixed at 3" in note for note in found.plan.notes(found.reason))


def test_search_raises_the_functions_own_error_early():
    h = history((7, 5, 4, 4), (3, 2, 4, 4))
    need = attempt_needing(lambda p: False)
    with pytest.raises(TypeError, match="cannot decide"):
        search(h, (3, 2, 4, 4), need)
    assert need.calls <= 3


def test_what_worked_is_tried_first_the_next_time():
    h = history((7, 5, 4, 4), (3, 2, 4, 4))
    need = attempt_needing(lambda p: 0 in p.fixed)
    kind = search(h, (3, 2, 4, 4), need).plan.kind
    first = need.calls
    search(h, (4, 2, 4, 4), need, kind)
    assert need.calls - first <= 2 < first


def test_dims_that_usually_change_become_symbols_early():
    h = history((2, 7, 2, 64), (2, 9, 2, 64))  # a batch that has not changed, a sequence that has, and weights
    plan = search(h, (2, 9, 2, 64), attempt_needing()).plan
    assert plan.dims() == ("x0_0", "x0_1", "x0_0", 64)
    assert any("argument 0 axis 0 == argument 1 axis 0: x0_0 may change" in note for note in plan.notes())
    h = history((1, 7, 1, 1), (1, 9, 1, 1))
    one_by_one = attempt_needing(lambda p: p.dims()[3] == 1)  # size 1, but the function needs it
    plan = search(h, (1, 9, 1, 1), one_by_one).plan
    assert plan.dims() == ("x0_0", "x0_1", "x0_0", 1)


sizes = st.tuples(*[st.integers(0, 3)] * 4)


@given(st.lists(sizes, min_size=1, max_size=20))
def test_the_number_of_compiles_is_bounded_and_every_call_runs(calls):
    """At most 1 + the number of dims that ever change, if everything can be traced."""
    h, plans, compiles = History(SITES), [], 0
    for call in calls:
        if any(plan.accepts(call) for plan in plans):
            continue
        h.record(call)
        plans.append(search(h, call, attempt_needing()).plan)
        compiles += 1
        assert plans[-1].accepts(call)
    changed = sum(len({call[i] for call in calls}) > 1 for i in range(4))
    assert compiles <= 1 + changed


@given(st.lists(sizes, min_size=2, max_size=8))
def test_relations_hold_for_all_rows_they_came_from(calls):
    h = history(*calls)
    first = h.first_sites
    for relation in h.relations():
        plan = h.plan(calls[-1], {}, relations=[relation])
        assert plan.accepts(calls[-1])
        for row in h.rows:
            assert row[first[relation.target]] == relation.value(lambda c, row=row: row[first[c]])
