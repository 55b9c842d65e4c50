"""``dvm.Options``: which passes run, and where the compiler writes what it does. ``docs/passes.md`` has the table."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from vm.errors import CompileError

LEVELS = {
    0: "no optional pass and no fusion: one kernel a node",
    1: "clean-up and fusion",
    2: "also algebra and folding of data movement",
    3: "also moves of whole regions, speculation, and stacking (the default)",
}
FUSION, SPECULATION, STACKING = STAGES = ("fusion", "speculation", "stacking")  # after the passes, left out like one


@dataclass(frozen=True)
class Options:
    """How to compile.

    ``level`` is 0 to 3 (``LEVELS``). ``disable`` names passes that are left out whatever the level, also ``fusion``, ``speculation`` and
    ``stacking``.
    ``dump`` is a folder for the graph after every pass that changed it, numbered, in the text form that ``graph_kernel.text.parse`` and
    ``dvm opt`` read. ``chip`` is the name of a description in ``configs/npu`` or the path of one. Raises ``CompileError`` for a level or
    a pass that does not exist.
    """

    level: int = 3
    disable: tuple[str, ...] = ()
    dump: str | os.PathLike[str] | None = None
    chip: str = "910B1"
    siblings: Any = None  # a graph_kernel.fusion.fuse.Siblings, for experiments

    def __post_init__(self) -> None:
        if isinstance(self.level, bool) or self.level not in LEVELS:
            raise CompileError(f"there is no level {self.level!r}; levels are {', '.join(map(str, LEVELS))}")
        names = (self.disable,) if isinstance(self.disable, str) else tuple(self.disable)
        object.__setattr__(self, "disable", names)
        if names:
            from graph_kernel.passes import PASSES

            known = (*PASSES, *STAGES)
            for name in names:
                if name not in known:
                    raise CompileError(f"there is no pass {name!r}; passes are {', '.join(known)}")

    @property
    def fusion(self) -> bool:
        """Whether kernels hold more than one node."""
        return self.level > 0 and FUSION not in self.disable

    @property
    def speculation(self) -> bool:
        """Whether parts of a program may be there in two forms, of which sizes choose one."""
        return self.level > 2 and SPECULATION not in self.disable

    @property
    def stacking(self) -> bool:
        """Whether independent kernels run side by side."""
        return self.level > 2 and STACKING not in self.disable

    def for_passes(self) -> tuple[str, ...]:
        """The graph passes among ``disable``."""
        return tuple(name for name in self.disable if name not in STAGES)

    def for_code(self) -> dict[str, Any]:
        """What code generation takes."""
        stages = {name: getattr(self, name) for name in STAGES}
        from vm.timing import Stopwatch

        return {"chip": self.chip, "siblings": self.siblings, "clock": Stopwatch, **stages}


def options_of(given: Options | Mapping[str, Any] | None) -> Options:
    """``given`` as ``Options``; a mapping has the fields by name (and ``fusion=False`` for ``disable=("fusion",)``)."""
    if given is None:
        return Options()
    if isinstance(given, Options):
        return given
    known = dict(given)
    disable = known.pop("disable", ())
    disable = (disable,) if isinstance(disable, str) else tuple(disable)
    if not known.pop("fusion", True):
        disable = (*disable, FUSION)
    names = [field.name for field in fields(Options)]
    wrong = [name for name in known if name not in names]
    if wrong:
        raise CompileError(f"unknown option {wrong[0]!r}; options are {', '.join(names)}")
    return Options(**known, disable=disable)
