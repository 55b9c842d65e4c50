"""XLA executables of kernels, kept in the process and on disk, so that equal kernels are compiled once per machine.

An entry's key covers the template's words, the kinds and sizes of its arguments, the versions of JAX and of this package's executor, and
the processor. JAX can only restore an executable by unpickling, so the cache directory must belong to the user with mode 0700: in any
other directory nothing is read. A damaged entry is a miss. ``DVM_CACHE_DIR`` names the directory (empty: no disk cache) and
``DVM_CACHE_MB`` its size limit; the least recently used entries go first. Files are replaced atomically, so processes can share it.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import pathlib
import platform
import stat
import sys
import tempfile
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from vm import counters

FORMAT = 2  # raised when the executor's code for the same words changes
MAGIC = b"DVMX"
DEFAULT_MB = 1024
_IN_PROCESS = 512  # executables kept alive beside the programs that use them

_lock = threading.Lock()
_known: OrderedDict[str, Any] = OrderedDict()


KERNEL_SOURCES = (
    "access.py",
    "decode.py",
    "geometry.py",
    "isa.py",
    "packing.py",
    "products.py",
    "semantics.py",
    "specialised.py",
    "tails.py",
    "unit_code.py",
)


def key_of(*parts: bytes, modules: tuple[str, ...] = KERNEL_SOURCES) -> str:
    """The name of an entry. ``modules`` are those of this package whose code becomes part of it."""
    digest = hashlib.blake2b(digest_size=20)
    for part in (_environment(), _sources(*modules), *parts):
        digest.update(len(part).to_bytes(8, "little") + part)
    return digest.hexdigest()


def has(key: str) -> bool:
    """Whether ``get`` will very likely find ``key`` without building it."""
    with _lock:
        if key in _known:
            return True
    folder = directory()
    return folder is not None and (folder / key).is_file()


def get(key: str, arguments: Any, results: Any, build: Callable[[], Any]) -> Any:
    """The executable ``key``: from this process, from disk, or built (and then kept). ``arguments`` and ``results`` are its trees, with
    anything for leaves."""
    with _lock:
        found = _known.get(key)
        if found is not None:
            _known.move_to_end(key)
            return found
    found = _load(key, arguments, results)
    if found is None:
        found = build()
        _save(key, found)
    with _lock:
        found = _known.setdefault(key, found)
        while len(_known) > _IN_PROCESS:
            _known.popitem(last=False)
    return found


def clear() -> None:
    """Forgets what this process keeps (not the files)."""
    with _lock:
        _known.clear()


def directory() -> pathlib.Path | None:
    """Where entries live, or None if there is no disk cache: it is off, or the place is not private to the user."""
    named = os.environ.get("DVM_CACHE_DIR")
    if named == "":
        return None
    import platformdirs

    path = pathlib.Path(named or platformdirs.user_cache_dir("dvm", appauthor=False)) / "executables"
    with contextlib.suppress(OSError):
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        info = path.stat(follow_symlinks=False)
        if stat.S_ISDIR(info.st_mode) and stat.S_IMODE(info.st_mode) == 0o700 and info.st_uid == os.getuid():
            return path
    return None


@functools.cache
def _environment() -> bytes:
    """What else an executable depends on: versions and the processor's instruction set."""
    import jax
    import jaxlib

    cpu = platform.processor() or platform.machine()
    with contextlib.suppress(OSError):
        lines = pathlib.Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
        cpu += next((line for line in lines if line.startswith(("flags", "Features"))), "")
        cpu += next((line for line in lines if line.startswith("model name")), "")
    parts = (
        str(FORMAT),
        jax.__version__,
        jaxlib.__version__,
        cpu,
        os.environ.get("XLA_FLAGS", ""),
        str(os.cpu_count()),
    )
    return "\n".join(parts).encode()


@functools.cache
def _sources(*names: str) -> bytes:
    """A digest of the modules whose code becomes part of executables, so that an upgrade never meets old ones."""
    here = pathlib.Path(__file__).parent
    digest = hashlib.blake2b(digest_size=20)
    for name in names:
        digest.update((here / name).read_bytes())
    return digest.digest()


def _load(key: str, arguments: Any, results: Any) -> Any:
    folder = directory()
    if folder is None:
        return None
    path = folder / key
    try:
        data = path.read_bytes()
        if data[:4] != MAGIC or hashlib.blake2b(data[24:], digest_size=20).digest() != data[4:24]:
            return None
        import jax
        from jax.experimental import serialize_executable

        tree = jax.tree_util.tree_structure
        inputs, outputs = tree((arguments, {})), tree(results)
        with jax.enable_x64(True):
            found = serialize_executable.deserialize_and_load(data[24:], inputs, outputs)
        os.utime(path)
    except FileNotFoundError:
        return None
    except Exception:  # whatever is wrong with an entry, it is a miss
        counters.add("cache_bad_entries")
        return None
    counters.add("cache_hits")
    return found


def _save(key: str, executable: Any) -> None:
    folder = directory()
    if folder is None:
        return
    with contextlib.suppress(Exception):  # a full disk or a backend that cannot serialise costs only the cache
        from jax.experimental import serialize_executable

        payload = serialize_executable.serialize(executable)[0]
        data = MAGIC + hashlib.blake2b(payload, digest_size=20).digest() + payload
        handle, name = tempfile.mkstemp(dir=folder, prefix=".new-")
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.replace(name, folder / key)
        _prune(folder)


@functools.cache
def _limit(text: str) -> int:
    """``DVM_CACHE_MB`` as a number, in MiB; the default, said once, where it is none."""
    if text.isdecimal():
        return int(text)
    print(f"dvm: DVM_CACHE_MB: {text!r} is no number of MiB; {DEFAULT_MB} is used", file=sys.stderr)
    return DEFAULT_MB


def _prune(folder: pathlib.Path) -> None:
    """Removes the least recently used entries beyond the size limit."""
    limit = _limit(os.environ.get("DVM_CACHE_MB") or str(DEFAULT_MB)) << 20
    entries = []
    for path in folder.iterdir():
        with contextlib.suppress(OSError):
            info = path.stat()
            entries.append((info.st_mtime, info.st_size, path))
    total = sum(size for _, size, _ in entries)
    for _, size, path in sorted(entries, key=lambda e: e[:2]):
        if total <= limit:
            return
        with contextlib.suppress(OSError):
            path.unlink()
        total -= size
