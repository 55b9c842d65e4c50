"""Every error class of the project. ``dvm`` re-exports them; nothing else defines one."""


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


class OutOfMemory(DvmError):
    """A launch needs more device memory than the chip's description allows."""
