"""The record of merges and cuts that ``explain()`` prints."""

from __future__ import annotations

from graph_kernel.ir import Node, Value


def describe(node: Node) -> str:
    """A node and where it comes from."""
    return f"{node.op} ({node.origin})" if str(node.origin) else node.op


def cut(a: Node | None, b: Node, value: Value, reason: str) -> dict[str, str]:
    """Why ``a`` and ``b`` are not one kernel."""
    return {"from": describe(a) if a is not None else "", "to": describe(b), "value": value.name, "reason": reason}


def once(cuts: list[dict[str, str]]) -> list[dict[str, str]]:
    """The record without repetitions: a pair of groups is tried again by every rule."""
    return list({tuple(sorted(cut.items())): cut for cut in cuts}.values())
