"""Damaged programs, with their checksums mended so that the damage gets through: a ``DvmError`` or an answer, never another exception."""

from __future__ import annotations

import random

import numpy as np

import dvm
from dvm.program import CompiledProgram
from vm import serialise


def test_looking_at_damaged_programs():
    program = dvm.compile(lambda x, c: {"a": x * 2 + c["k"][0]}, dvm.spec("b, s"), {"k": [dvm.spec("b, s")]})
    data = serialise.dumps(program.program)
    x = np.ones((2, 3), np.float32)
    choose = random.Random(0)
    refused = 0
    for _ in range(600):
        damaged = bytearray(data)
        damaged[choose.randrange(len(data))] ^= 1 << choose.randrange(8)
        try:
            loaded = CompiledProgram(serialise.loads(serialise.mend(bytes(damaged))))
            _ = str(loaded.explain()), loaded.constraints, loaded.kernels, repr(loaded), loaded.disassemble()
            loaded._signature.flatten((x, {"k": [x]}), {})
        except dvm.DvmError:
            refused += 1
    assert 0 < refused < 600
