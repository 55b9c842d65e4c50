"""Chip descriptions: what the emulated NPU has, read from ``configs/npu/*.toml``.

The TOML tables are the dataclasses below, key by key; units are part of the names. A file may name a ``base``, whose keys it
overrides: a file of the same directory or, for a user's own file, a chip that comes with DVM.
"""

from __future__ import annotations

import dataclasses
import difflib
import os
import tomllib
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from vm.errors import DvmError

_MAX_BASES = 4


@dataclass(frozen=True)
class Cores:
    """Cube cores (AIC) and how many vector cores (AIV) belong to each."""

    cube: int
    vector_per_cube: int


@dataclass(frozen=True)
class Clock:
    """The clock of all pipes."""

    hz: int


@dataclass(frozen=True)
class Memory:
    """Sizes. ``hbm``, ``l2`` and its lines are of the chip, the others of a core."""

    hbm_bytes: int
    l2_bytes: int
    l2_line_bytes: int
    ub_bytes: int
    ub_reserved_bytes: int
    ub_block_bytes: int
    ub_bank_bytes: int
    ub_banks: int
    ub_bank_groups: int
    l1_bytes: int
    l0a_bytes: int
    l0b_bytes: int
    l0c_bytes: int
    bt_bytes: int
    fb_bytes: tuple[int, ...]


@dataclass(frozen=True)
class Bandwidth:
    """Rates of one core. The first five are for all cores at work, the next six are of a single transfer; of the rates of L2 and HBM a
    stream of transfers reaches ``sustained_ratio``."""

    ddr_bytes_per_cycle: float
    l2_read_bytes_per_cycle: float
    l2_write_bytes_per_cycle: float
    ub_to_l2_bytes_per_cycle: float
    l1_to_l0a_bytes_per_cycle: float
    core_ddr_bytes_per_cycle: float
    ub_bytes_per_cycle: float
    l1_write_bytes_per_cycle: float
    l0a_write_bytes_per_cycle: float
    l0b_write_bytes_per_cycle: float
    l0c_read_bytes_per_cycle: float
    sustained_ratio: float
    l2_to_ddr_ratio: float
    full_rate_dma_bytes: int


@dataclass(frozen=True)
class Latency:
    """Cycles from issue to completion beside the transfer itself."""

    gm_read_cycles: int
    gm_read_path_cycles: int
    gm_write_cycles: int
    gm_write_path_cycles: int
    gm_diversity_cycles: int
    ub_copy_cycles: int
    scalar_load_cycles: int
    scalar_store_cycles: int
    scalar_alu_cycles: int
    move_mask_cycles: int


@dataclass(frozen=True)
class Issue:
    """Events per pair of pipes, the depth of a pipe's queue, bytes of data movement issued per cycle."""

    events: int
    queue_depth: int
    dma_uop_bytes: int


@dataclass(frozen=True)
class Cube:
    """The fractal that the cube multiplies per cycle, by operand width, and its overheads."""

    m: int
    n: int
    k_4bit: int
    k_8bit: int
    k_16bit: int
    k_32bit: int
    startup_cycles: int
    l1_to_l0_2d_cycles: int
    l1_to_l0_3d_cycles: int
    l1_to_l0_base_cycles: int


@dataclass(frozen=True)
class VectorCost:
    """Of one kind of vector instruction: bytes issued per cycle, cycles of delay, how often it passes over its data."""

    bytes_per_cycle: int
    delay_cycles: int
    passes: int = 1


@dataclass(frozen=True)
class Vector:
    """The vector unit. ``costs`` are pairs sorted by name; ``Chip.vector_cost`` looks one up."""

    repeat_bytes: int
    pipeline_cycles: int
    costs: tuple[tuple[str, VectorCost], ...]


@dataclass(frozen=True)
class Chip:
    """One NPU."""

    name: str
    cores: Cores
    clock: Clock
    memory: Memory
    bandwidth: Bandwidth
    latency: Latency
    issue: Issue
    cube: Cube
    vector: Vector

    @staticmethod
    def names() -> tuple[str, ...]:
        """The chips that come with DVM, sorted."""
        entries = (entry.name for entry in files("configs").joinpath("npu").iterdir())
        return tuple(sorted(n.removesuffix(".toml") for n in entries if n.endswith(".toml") and not n.startswith("_")))

    @staticmethod
    def load(name: str | os.PathLike[str]) -> Chip:
        """The chip called ``name``, or described by the TOML file ``name`` if that is a path (it ends in ``.toml``). ``DvmError`` if
        there is none, or if a key is missing, unknown or has a bad value."""
        text = os.fspath(name)
        if text.endswith(".toml"):
            return _build(_read_file(Path(text)), text)
        return _load(text)

    @property
    def cube_cores(self) -> int:
        """Number of cube cores."""
        return self.cores.cube

    @property
    def vector_cores(self) -> int:
        """Number of vector cores."""
        return self.cores.cube * self.cores.vector_per_cube

    @property
    def clock_hz(self) -> int:
        """Clock of all pipes."""
        return self.clock.hz

    @property
    def ub_bytes(self) -> int:
        """Unified buffer of a vector core, the reserved part included."""
        return self.memory.ub_bytes

    @property
    def ub_reserved_bytes(self) -> int:
        """What a kernel may not use at the start of the unified buffer."""
        return self.memory.ub_reserved_bytes

    @property
    def block_bytes(self) -> int:
        """Unit of data moves and of alignment in local memory."""
        return self.memory.ub_block_bytes

    @property
    def l1_bytes(self) -> int:
        """L1 of a cube core."""
        return self.memory.l1_bytes

    @property
    def l0a_bytes(self) -> int:
        """L0A of a cube core: left operands."""
        return self.memory.l0a_bytes

    @property
    def l0b_bytes(self) -> int:
        """L0B of a cube core: right operands."""
        return self.memory.l0b_bytes

    @property
    def l0c_bytes(self) -> int:
        """L0C of a cube core: accumulators."""
        return self.memory.l0c_bytes

    @property
    def hbm_bytes(self) -> int:
        """Device memory."""
        return self.memory.hbm_bytes

    @property
    def l2_bytes(self) -> int:
        """L2 cache of the chip."""
        return self.memory.l2_bytes

    @property
    def events(self) -> int:
        """Events per pair of pipes."""
        return self.issue.events

    @property
    def hbm_bytes_per_second(self) -> float:
        """Device memory bandwidth of the chip, all cores at work."""
        return self.bandwidth.ddr_bytes_per_cycle * self.cores.cube * self.clock.hz

    @property
    def l2_read_bytes_per_second(self) -> float:
        """L2 read bandwidth of the chip, all cores at work."""
        return self.bandwidth.l2_read_bytes_per_cycle * self.cores.cube * self.clock.hz

    @property
    def l2_write_bytes_per_second(self) -> float:
        """L2 write bandwidth of the chip, all cores at work."""
        return self.bandwidth.l2_write_bytes_per_cycle * self.cores.cube * self.clock.hz

    def cube_k(self, item_bytes: float) -> int:
        """The k of the cube's fractal for operands of 0.5, 1, 2 or 4 bytes."""
        by_size = {0.5: self.cube.k_4bit, 1: self.cube.k_8bit, 2: self.cube.k_16bit, 4: self.cube.k_32bit}
        if item_bytes not in by_size:
            raise DvmError(f"the cube has no operands of {item_bytes} bytes")
        return by_size[item_bytes]

    def cube_flops_per_second(self, item_bytes: float = 2) -> float:
        """Peak of all cube cores, a multiply-add counted as two."""
        return 2.0 * self.cube.m * self.cube.n * self.cube_k(item_bytes) * self.cores.cube * self.clock.hz

    def vector_cost(self, kind: str) -> VectorCost:
        """The cost of one kind of vector instruction, such as ``add_float``."""
        for name, cost in self.vector.costs:
            if name == kind:
                return cost
        raise DvmError(f"{self.name} has no vector cost {kind!r}; it has {', '.join(n for n, _ in self.vector.costs)}")


@lru_cache
def _load(name: str) -> Chip:
    if name not in Chip.names():
        raise DvmError(f"no chip {name!r}; there are {', '.join(Chip.names())}, or give the path of a .toml file")
    return _build(_read_known(name), name)


def _read_known(name: str) -> dict[str, Any]:
    return _parse(files("configs").joinpath("npu", f"{name}.toml").read_bytes(), name)


def _read_file(path: Path) -> dict[str, Any]:
    try:
        return _parse(path.read_bytes(), str(path))
    except OSError as error:
        raise DvmError(f"cannot read the chip description {path}: {error.strerror}") from error


def _parse(data: bytes, source: str) -> dict[str, Any]:
    try:
        return tomllib.loads(data.decode())
    except ValueError as error:  # not UTF-8, or not TOML
        raise DvmError(f"{source}: not a TOML file: {error}") from error


def _build(tables: dict[str, Any], source: str) -> Chip:
    for _ in range(_MAX_BASES):
        base = tables.pop("base", None)
        if base is None:
            return _record(Chip, tables, source, "")
        known = files("configs").joinpath("npu", f"{base}.toml")
        if not isinstance(base, str) or "/" in base or not known.is_file():
            raise DvmError(f"{source}: base {base!r} is none of {', '.join(Chip.names())}")
        tables = _merged(_read_known(base), tables)
    raise DvmError(f"{source}: more than {_MAX_BASES} bases")


def _merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    out = dict(base)
    for key, value in over.items():
        old = out.get(key)
        out[key] = _merged(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return out


def _record(cls: Any, table: Any, source: str, path: str) -> Any:
    """An instance of the data class ``cls`` from a TOML table; every message names the key."""
    if not isinstance(table, dict):
        raise DvmError(f"{source}: {path.rstrip('.')} must be a table, not {table!r}")
    fields = {f.name: f for f in dataclasses.fields(cls)}
    types = typing.get_type_hints(cls)
    for key in table:
        if key not in fields:
            near = difflib.get_close_matches(key, fields, 1)
            raise DvmError(f"{source}: unknown key {path}{key}" + (f"; did you mean {path}{near[0]}?" if near else ""))
    values = {}
    for name, field in fields.items():
        if name in table:
            values[name] = _value(types[name], table[name], source, path + name)
        elif field.default is dataclasses.MISSING:
            raise DvmError(f"{source}: key {path}{name} is missing")
    return cls(**values)


def _value(kind: Any, value: Any, source: str, path: str) -> Any:
    if dataclasses.is_dataclass(kind):
        return _record(kind, value, source, f"{path}.")
    if path == "vector.costs":
        if not isinstance(value, dict):
            raise DvmError(f"{source}: {path} must be a table, not {value!r}")
        return tuple(
            (name, _record(VectorCost, cost, source, f"{path}.{name}.")) for name, cost in sorted(value.items())
        )
    if kind is str:
        if isinstance(value, str) and value:
            return value
        raise DvmError(f"{source}: {path} must be a text, not {value!r}")
    if kind == tuple[int, ...]:
        if isinstance(value, list):
            return tuple(_value(int, item, source, path) for item in value)
        raise DvmError(f"{source}: {path} must be a list of integers, not {value!r}")
    number = isinstance(value, int if kind is int else (int, float)) and not isinstance(value, bool)
    if not number or not 0 < value < 1 << 63:
        expected = "a positive integer" if kind is int else "a positive number"
        raise DvmError(f"{source}: {path} must be {expected}, not {value!r}")
    return kind(value)
