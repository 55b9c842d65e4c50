"""bfloat16 inside a kernel: computed in float32 and rounded where it leaves.

The vector unit has no bfloat16 arithmetic; an instruction on bfloat16 tiles widens its operands, computes, and rounds. In a chain of such
instructions all but the last rounding cost time and accuracy. ``keep_wide`` leaves them out: a value that a chain hands on stays
float32, and is rounded once where it is stored, multiplied by the cube, moved, or compared.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import ml_dtypes
import numpy as np

from codegen.tileir import VInsn, VLoop, VTile, walk
from graph_kernel.ops import OPS
from graph_kernel.ops.base import Pattern

Body = list[VInsn | VLoop]

NARROW = np.dtype(ml_dtypes.bfloat16)
WIDE = np.dtype(np.float32)


def keep_wide(body: Body) -> Body | None:
    """The body with float32 where a chain handed bfloat16 on, or None if there is no such chain. Tiles that are not part of a chain are the
    same objects; the given body is left as it is."""
    rewriter = _Rewriter(body)
    out = rewriter.block(body)
    return _without_unused(out) if rewriter.changed else None


class _Rewriter:
    def __init__(self, body: Body) -> None:
        self.writers = Counter(i.fields["dst"] for i in walk(body) if isinstance(i, VInsn) and "dst" in i.fields)
        # Rounded tiles that another instruction widens again, by itself or as it computes.
        self.wanted = {
            i.fields[k]
            for i in walk(body)
            if isinstance(i, VInsn) and (_computes(i) or _widens(i))
            for k in ("x", "y")
            if isinstance(i.fields.get(k), VTile)
        }
        self.wide: dict[Any, VTile] = {}  # bfloat16 tile -> float32 tile that it is rounded from
        self.same: dict[VTile, VTile] = {}  # float32 tile widened from a rounded one -> the one before rounding
        self.changed = False

    def block(self, body: Body) -> Body:
        """One block, its operands renamed."""
        outer = dict(self.wide)
        out: Body = []
        for item in body:
            if isinstance(item, VLoop):
                out.append(VLoop(item.axis, item.kind, self.block(item.body)))
            else:
                out += self.insn(item)
        self.wide = outer  # what is made in a loop is not read behind it
        return out

    def insn(self, insn: VInsn) -> list[VInsn | VLoop]:
        """What an instruction becomes."""
        fields = {k: self.same.get(v, v) if isinstance(v, VTile) else v for k, v in insn.fields.items()}
        tail = [{k: self.same.get(v, v) if isinstance(v, VTile) else v for k, v in t.items()} for t in insn.tail]
        now = VInsn(insn.name, fields, tail, dict(insn.sync))
        dst, x = fields.get("dst"), fields.get("x")
        if not isinstance(dst, VTile) or self.writers[dst] != 1:
            return [now]
        if _computes(now) and (dst in self.wanted or any(fields.get(k) in self.wide for k in ("x", "y"))):
            return self._widened(now, dst)
        if not isinstance(x, VTile) or x.dims != dst.dims:
            return [now]
        if _widens(now) and x in self.wide:
            self.same[dst] = self.wide[x]
            self.changed = True
            return []
        if _rounds(now) and dst in self.wanted and (self.writers[x] == 1 or x.space != dst.space):
            return self._rounded(now, x, dst)
        return [now]

    def _rounded(self, insn: VInsn, x: VTile, dst: VTile) -> list[VInsn | VLoop]:
        """A rounding cast, after which the value is known in float32 too; vector code cannot read the cube's memory."""
        if x.space == dst.space:
            self.wide[dst] = x
            return [insn]
        wide = VTile(dst.dims, WIDE, dst.space)
        self.wide[dst] = wide
        self.writers[wide] = 1
        return [VInsn("copy", {"dst": wide, "x": x}, [], insn.sync), VInsn("cast", {"dst": dst, "x": wide})]

    def _widened(self, insn: VInsn, dst: VTile) -> list[VInsn | VLoop]:
        """The instruction on float32 tiles, with its result rounded for those who want it so."""
        self.changed = True
        out: list[VInsn | VLoop] = []
        fields = dict(insn.fields)
        for k in ("x", "y"):
            v = fields.get(k)
            if isinstance(v, VTile):
                if v not in self.wide:
                    wide = VTile(v.dims, WIDE, v.space)
                    out.append(VInsn("cast", {"dst": wide, "x": v}))
                    self.wide[v] = wide
                fields[k] = self.wide[v]
        wide = VTile(dst.dims, WIDE, dst.space)
        out.append(VInsn(insn.name, {**fields, "dst": wide}, insn.tail, insn.sync))
        out.append(VInsn("cast", {"dst": dst, "x": wide}))
        self.wide[dst] = wide
        self.writers[wide] = 1
        return out


def _rounds(insn: VInsn) -> bool:
    return _is_cast(insn, WIDE, NARROW)


def _widens(insn: VInsn) -> bool:
    return _is_cast(insn, NARROW, WIDE)


def _is_cast(insn: VInsn, source: np.dtype, target: np.dtype) -> bool:
    x, dst = insn.fields.get("x"), insn.fields.get("dst")
    return (
        insn.name == "cast"
        and isinstance(x, VTile)
        and isinstance(dst, VTile)
        and (x.dtype, dst.dtype) == (source, target)
    )


def _computes(insn: VInsn) -> bool:
    """Whether an instruction is elementwise from bfloat16 to bfloat16."""
    dst = insn.fields.get("dst")
    operands = [v for k, v in insn.fields.items() if k in ("x", "y")]
    return (
        insn.name in OPS
        and OPS[insn.name].pattern is Pattern.ELEMENTWISE
        and not insn.tail
        and isinstance(dst, VTile)
        and dst.dtype == NARROW
        and all(isinstance(v, VTile) and v.dtype == NARROW for v in operands)
    )


def _without_unused(body: Body) -> Body:
    """The body without casts whose result nothing reads."""
    used = {
        v
        for i in walk(body)
        if isinstance(i, VInsn)
        for k, v in (*i.fields.items(), *(pair for t in i.tail for pair in t.items()))
        if isinstance(v, VTile) and k != "dst"
    }

    def block(items: Body) -> Body:
        out: Body = []
        for item in items:
            if isinstance(item, VLoop):
                out.append(VLoop(item.axis, item.kind, block(item.body)))
            elif not (item.name == "cast" and item.fields["dst"] not in used):
                out.append(item)
        return out

    return block(body)
