"""Work beside the user's: specialised code on one daemon thread, the interpreter's image in a process of its own.

``DVM_BACKGROUND=0`` switches both off. When the process exits, the thread is let finish the kernel that it is compiling (XLA must not be
torn down under it) and starts nothing more; a process that builds an image is ended.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import pathlib
import queue
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future

from vm import cache, counters

_lock = threading.Lock()
_jobs: queue.SimpleQueue[tuple[Future[None], Callable[[], None]] | None] = queue.SimpleQueue()
_thread: threading.Thread | None = None
_closing = threading.Event()
_images: dict[tuple[int, int], subprocess.Popen[bytes]] = {}


def enabled() -> bool:
    """Whether work may be done in the background."""
    return os.environ.get("DVM_BACKGROUND", "1") != "0" and not _closing.is_set()


def closing() -> bool:
    """Whether the process is exiting: long jobs ask between their steps."""
    return _closing.is_set()


def submit(job: Callable[[], None]) -> Future[None]:
    """Runs ``job`` on the background thread, after those submitted before."""
    global _thread
    future: Future[None] = Future()
    with _lock:
        if _thread is None:
            _thread = threading.Thread(target=_work, name="dvm-background", daemon=True)
            _thread.start()
            atexit.register(_close)
        _jobs.put((future, job))
    return future


def _work() -> None:
    while (item := _jobs.get()) is not None:
        future, job = item
        if _closing.is_set() or not future.set_running_or_notify_cancel():
            future.cancel()
            continue
        try:
            job()
        except BaseException as error:  # the one who waits is told
            future.set_exception(error)
        else:
            future.set_result(None)


def _close() -> None:
    _closing.set()
    _jobs.put(None)
    if _thread is not None:
        _thread.join()


def load_image(words: int, wide_words: int) -> None:
    """Loads the interpreter's image for so many words of pinned arrays on a thread, if it is in the disk cache: a program that is being
    compiled will want it."""
    from vm import interpreter_image

    classes = interpreter_image.classes(words, wide_words)
    if not enabled() or not interpreter_image.cached(*classes):
        return
    thread = threading.Thread(target=interpreter_image.compiled, args=classes, name="dvm-image", daemon=True)
    thread.start()
    atexit.register(thread.join)


def build_image(classes: tuple[int, int]) -> None:
    """Starts a process that puts the interpreter's image for these classes into the disk cache, once per process and classes."""
    with _lock:
        if classes in _images or not sys.executable or cache.directory() is None:
            return
        code = f"import os; os.nice(10); from vm import interpreter_image as i; i.compiled({classes[0]}, {classes[1]})"
        root = str(pathlib.Path(__file__).parent.parent)
        path = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
        environment = {**os.environ, "PYTHONPATH": path, "JAX_PLATFORMS": "cpu"}
        with contextlib.suppress(OSError):
            _images[classes] = subprocess.Popen(
                [sys.executable, "-c", code], env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )  # fmt: skip
            counters.add("image_builds")
            atexit.register(_end, _images[classes])


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.terminate()
    process.wait()


def wait_for_images() -> None:
    """Waits until all images that are being built are in the cache."""
    with _lock:
        running = list(_images.values())
    for process in running:
        process.wait()
