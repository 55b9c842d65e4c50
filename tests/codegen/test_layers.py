"""Repeated structure is compiled once: what a program holds does not grow with the number of equal layers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from benchmarks.layers import stack
from codegen.build import ProgramBuilder
from codegen.structure import Structure
from codegen.tileir import Imm, VInsn, VTile
from dvm import pipeline
from graph_kernel.fusion.fuse import Fuser
from tests.must_show.exported import MODELS
from vm import serialise


def test_equal_layers_share_templates_and_integer_code() -> None:
    few, many = (stack(n).compile(start=False) for n in (3, 6))
    assert len(many.kernels) > 1.8 * len(few.kernels)
    assert len(many.program.templates) == len(few.program.templates)
    assert len(many.program.code.code) == len(few.program.code.code)  # offsets of equal layers are equal expressions
    sizes = {"b": 2, "s": 33}
    assert many.memory(sizes).temp == few.memory(sizes).temp < 0.25 * many.memory(sizes).unshared


class Forgetful(dict):
    """Remembers nothing."""

    def __setitem__(self, key: object, value: object) -> None:
        pass


class Counting(dict):
    """Counts what is found."""

    found = 0

    def get(self, key: object, default: object = None) -> object:
        value = super().get(key, default)
        Counting.found += value is not None
        return value


def bert() -> pipeline.Traced:
    return pipeline.from_onnx_model(MODELS / "bert.onnx", {})


@pytest.mark.parametrize("make", [lambda: stack(2), bert], ids=["blocks", "bert"])
def test_code_of_equal_structure_is_what_would_be_made_anew(
    make: Callable[[], pipeline.Traced], monkeypatch: pytest.MonkeyPatch
) -> None:
    builder, fuser = ProgramBuilder.__init__, Fuser.__init__

    def programs(kind: type[dict]) -> bytes:
        def init_builder(self: ProgramBuilder, *args: object, **kwargs: object) -> None:
            builder(self, *args, **kwargs)  # type: ignore[arg-type]
            self.finished = kind()

        def init_fuser(self: Fuser, *args: object, **kwargs: object) -> None:
            fuser(self, *args, **kwargs)  # type: ignore[arg-type]
            self.completed, self.verdicts = kind(), kind()

        monkeypatch.setattr(ProgramBuilder, "__init__", init_builder)
        monkeypatch.setattr(Fuser, "__init__", init_fuser)
        return serialise.dumps(make().compile(start=False).program)

    Counting.found = 0
    assert programs(Forgetful) == programs(Counting)
    assert Counting.found > 50


def test_signed_zeros_are_different_code() -> None:
    def body(zero: float) -> Structure:
        tile = VTile((), np.dtype(np.float32))
        return Structure([VInsn("fill", {"dst": tile, "imm": Imm(zero, np.dtype(np.float32))})], [], "k")

    assert body(0.0).key == body(0.0).key != body(-0.0).key
    assert body(float("nan")).key == body(float("nan")).key
