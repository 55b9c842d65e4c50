"""Elementwise ops that the host computes."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np

from graph_kernel.ir import Origin, Value
from graph_kernel.ops.base import Attrs, OpDef, Pattern, Type, fail, is_float, is_int, register
from graph_kernel.ops.elementwise import infer_elementwise, rounded
from symbolic import Scope


def _scipy(name: str) -> Callable[..., Any]:
    def call(*xs: np.ndarray) -> np.ndarray:
        special = importlib.import_module("scipy.special")  # for the oracle and for constant folding only
        return getattr(special, name)(*xs)

    return call


def _popcount(x: np.ndarray) -> np.ndarray:
    bits = np.unpackbits(np.ascontiguousarray(x)[..., None].view(np.uint8), axis=-1)
    return bits.sum(-1).reshape(x.shape)


def _clz(x: np.ndarray) -> np.ndarray:
    width = x.dtype.itemsize * 8
    rest = x.view(f"u{x.dtype.itemsize}")
    count = np.full(x.shape, width, dtype=x.dtype)
    for bit in range(width):
        count = np.where((rest >> np.array(bit, rest.dtype)) & np.array(1, rest.dtype) != 0, width - 1 - bit, count)
    return count


def _nextafter(xs: list[np.ndarray], attrs: Attrs) -> list[np.ndarray]:
    return [np.nextafter(xs[0], xs[1])]


for _name, _n, _fn, _accepts, _doc in (
    ("lgamma", 1, _scipy("gammaln"), is_float, "logarithm of |gamma(x)|"),
    ("digamma", 1, _scipy("digamma"), is_float, "derivative of lgamma"),
    ("bessel_i0e", 1, _scipy("i0e"), is_float, "exponentially scaled Bessel function of order 0"),
    ("bessel_i1e", 1, _scipy("i1e"), is_float, "exponentially scaled Bessel function of order 1"),
    ("igamma", 2, _scipy("gammainc"), is_float, "regularised lower incomplete gamma function"),
    ("igammac", 2, _scipy("gammaincc"), is_float, "regularised upper incomplete gamma function"),
    ("zeta", 2, _scipy("zeta"), is_float, "Hurwitz zeta function"),
    ("polygamma", 2, lambda n, x: _scipy("polygamma")(n.astype(int), x), is_float, "n-th derivative of digamma"),
    ("betainc", 3, _scipy("betainc"), is_float, "regularised incomplete beta function"),
    ("population_count", 1, _popcount, is_int, "number of one bits"),
    ("clz", 1, _clz, is_int, "number of leading zero bits"),
):
    register(
        OpDef(
            _name,
            Pattern.HOST,
            _n,
            infer_elementwise(_name, _accepts),
            rounded(_fn),
            chip=False,
            host=_name,
            doc=f"{_doc}; elementwise",
        )
    )

register(
    OpDef(
        "nextafter",
        Pattern.HOST,
        2,
        infer_elementwise("nextafter", is_float),
        _nextafter,
        chip=False,
        host="nextafter",
        doc="the next floating-point number from x toward y; elementwise",
    )
)


def _infer_bitcast(scope: Scope, inputs: tuple[Value, ...], attrs: Attrs, origin: Origin) -> list[Type]:
    (x,), dtype = inputs, np.dtype(attrs["dtype"])
    if x.dtype.itemsize == dtype.itemsize:
        return [(x.shape, dtype)]
    if x.dtype.itemsize > dtype.itemsize:
        return [((*x.shape, x.dtype.itemsize // dtype.itemsize), dtype)]
    if not x.shape or x.shape[-1] != dtype.itemsize // x.dtype.itemsize:
        raise fail(origin, f"cannot reinterpret {x!r} as {dtype}")
    return [(x.shape[:-1], dtype)]


def _evaluate_bitcast(xs: list[np.ndarray], attrs: Attrs) -> list[np.ndarray]:
    x, dtype = np.ascontiguousarray(xs[0]).reshape(xs[0].shape), np.dtype(attrs["dtype"])
    if x.dtype.itemsize > dtype.itemsize:
        return [x[..., None].view(dtype)]
    return [x.view(dtype) if x.dtype.itemsize == dtype.itemsize else x.view(dtype)[..., 0]]


register(
    OpDef(
        "bitcast",
        Pattern.HOST,
        1,
        _infer_bitcast,
        _evaluate_bitcast,
        chip=False,
        host="bitcast",
        doc="the bits of x read as dtype; a narrower dtype adds a last axis, a wider one removes it",
    )
)


def threefry2x32(k1: np.ndarray, k2: np.ndarray, x1: np.ndarray, x2: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The Threefry-2x32 block cipher with 20 rounds (Salmon et al., 2011); all arrays uint32 of one shape."""
    rotations = ((13, 15, 26, 6), (17, 29, 16, 24))
    keys = (k1, k2, k1 ^ k2 ^ np.uint32(0x1BD11BDA))
    with np.errstate(over="ignore"):
        a, b = x1 + keys[0], x2 + keys[1]
        for group in range(5):
            for r in rotations[group % 2]:
                a = a + b
                b = a ^ ((b << np.uint32(r)) | (b >> np.uint32(32 - r)))
            a = a + keys[(group + 1) % 3]
            b = b + keys[(group + 2) % 3] + np.uint32(group + 1)
    return a, b


def _infer_threefry(scope: Scope, inputs: tuple[Value, ...], attrs: Attrs, origin: Origin) -> list[Type]:
    return infer_elementwise("threefry2x32", lambda d: d == np.uint32)(scope, inputs, attrs, origin) * 2


register(
    OpDef(
        "threefry2x32",
        Pattern.HOST,
        4,
        _infer_threefry,
        lambda xs, attrs: list(threefry2x32(*xs)),
        chip=False,
        host="threefry2x32",
        doc="Threefry-2x32 of key words k1, k2 and counter words x1, x2 (uint32): two results",
    )
)
