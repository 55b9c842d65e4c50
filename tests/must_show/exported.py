"""The exported ONNX models that the tests of this folder share: one compile each, their cases, and how close a result must be."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import numpy as np

import dvm

ROOT = Path(__file__).parents[2]
MODELS = ROOT / "tests" / "data" / "models"

# Declared maxima, so that everything is compiled before the first launch. The names are those that the exporter wrote.
DIMS: dict[str, dict[str, dvm.Dim]] = {
    "bert": {"batch": dvm.Dim(max=8), "seq": dvm.Dim(max=256)},
    "llama": {
        "batch": dvm.Dim(max=4),
        "seq": dvm.Dim(max=64),
        "past": dvm.Dim(min=0, max=128),
        "total": dvm.Dim(max=192),
    },
    "mmoe": {"batch": dvm.Dim(min=0, max=512)},
    "qwen2": {"batch": dvm.Dim(max=8), "seq": dvm.Dim(max=128)},
}
NAMES = tuple(DIMS)
TOLERANCE = 1e-4  # relative and absolute, float32


@cache
def compiled(name: str) -> dvm.CompiledProgram:
    """The model's program, compiled once for all tests of the process."""
    return dvm.compile(MODELS / f"{name}.onnx", dims=DIMS[name])


@cache
def cases(name: str) -> dict[str, tuple[dict[str, np.ndarray], dict[str, np.ndarray]]]:
    """By case: inputs and expected outputs, ONNX Runtime's where the file has them, else PyTorch's."""
    arrays = np.load(MODELS / f"{name}.cases.npz")
    data = json.loads((MODELS / f"{name}.json").read_text())
    found = {}
    for case in sorted({key.split("/")[0] for key in arrays.files}):
        feeds = {spec["name"]: arrays[f"{case}/in/{spec['name']}"] for spec in data["inputs"]}
        want = {}
        for spec in data["outputs"]:
            exact = f"{case}/ort/{spec['name']}"
            want[spec["name"]] = arrays[exact if exact in arrays.files else f"{case}/out/{spec['name']}"]
        found[case] = feeds, want
    return found


def close(got: np.ndarray, want: np.ndarray) -> None:
    """Fails unless shapes and dtypes are equal and every element is within ``TOLERANCE``."""
    assert got.shape == want.shape and got.dtype == want.dtype
    np.testing.assert_allclose(got, want, rtol=TOLERANCE, atol=TOLERANCE)
