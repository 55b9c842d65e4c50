"""Every error class of the project. ``dvm`` re-exports them; nothing else defines one."""

from __future__ import annotations


class DvmError(Exception):
    """Base class of all errors that DVM raises on purpose."""


class CompileError(DvmError):
    """A graph, its dimensions or its constraints cannot be compiled as given."""


class UnsupportedOp(DvmError):
    """One or more operators are neither on the NPU nor declared as host operators.

    The message lists every missing operator with its count and where it occurs.
    """


class InputError(DvmError):
    """A launch got the wrong number of inputs, an unknown name, a wrong rank or a wrong dtype."""


class ShapeError(InputError):
    """A size given at launch breaks a declared or deduced constraint."""


class ProgramError(DvmError):
    """A program file or its words are malformed; raised before anything of it runs."""


class Hazard(ProgramError):
    """What the reference executor finds wrong with a program while it runs.

    ``kind`` is one of ``race``, ``deadlock``, ``event``, ``out-of-bounds``, ``uninitialised read``, ``overwritten``, ``read-only`` and
    ``mismatch``; ``kernel`` names the kernel (empty: a host step or a result) and ``word`` says where in its words the instruction is.
    """

    def __init__(self, kind: str, kernel: str, word: int, what: str) -> None:
        super().__init__(f"{kind} in kernel {kernel}, word {word}: {what}" if kernel else f"{kind}: {what}")
        self.kind, self.kernel, self.word, self.what = kind, kernel, word, what

    def __reduce__(self) -> tuple[type[Hazard], tuple[str, str, int, str]]:
        return type(self), (self.kind, self.kernel, self.word, self.what)


class OutOfMemory(DvmError):
    """A launch needs more device memory than the chip's description allows."""


class Unfit(DvmError):
    """A kernel that the interpreter's image cannot hold or express: another tier runs it."""
