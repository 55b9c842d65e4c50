"""Repeated structure is compiled once: what a program holds does not grow with the number of equal layers."""

from __future__ import annotations

from benchmarks.layers import stack


def test_equal_layers_share_templates_and_integer_code() -> None:
    few, many = (stack(n).compile(start=False) for n in (3, 6))
    assert len(many.kernels) > 1.8 * len(few.kernels)
    assert len(many.program.templates) == len(few.program.templates)
    assert len(many.program.code.code) == len(few.program.code.code)  # offsets of equal layers are equal expressions
    sizes = {"b": 2, "s": 33}
    assert many.memory(sizes).temp == few.memory(sizes).temp < 0.25 * many.memory(sizes).unshared
