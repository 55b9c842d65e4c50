"""A launch beyond the chip's memory is an ``OutOfMemory`` that says how much; the program and others work afterwards as before."""

from __future__ import annotations

import re

import numpy as np
import pytest

import dvm
from vm.chip import Chip


@pytest.mark.parametrize("tier", ["reference", "auto"])
def test_a_result_larger_than_the_chip(tier: str) -> None:
    outer = dvm.compile(lambda x: x[:, None] * x[None, :], dvm.spec("n"), tier=tier)
    other = dvm.compile(lambda x: x + 1, dvm.spec("n"), tier=tier)

    def works(n: int) -> None:
        x = np.arange(n, dtype=np.float32)
        np.testing.assert_array_equal(np.asarray(outer(x)), np.outer(x, x))
        np.testing.assert_array_equal(np.asarray(other(x)), x + 1)

    works(3)
    have = Chip.load(outer.program.chip).hbm_bytes
    n = 2 * int((have / 4) ** 0.5)
    for _ in range(2):
        with pytest.raises(dvm.OutOfMemory) as caught:
            outer(np.ones(n, np.float32))
        needed = max(int(number.replace(",", "")) for number in re.findall(r"\d[\d,]+", str(caught.value)))
        assert needed >= 4 * n * n
        works(5)
    works(1)


def test_what_a_message_says() -> None:
    outer = dvm.compile(lambda x: x[:, None] * x[None, :], dvm.spec("n"))
    have = Chip.load(outer.program.chip).hbm_bytes
    with pytest.raises(dvm.OutOfMemory, match=rf"n=300000.*bytes of device memory; {outer.program.chip} has {have:,}"):
        outer(np.ones(300_000, np.float32))
