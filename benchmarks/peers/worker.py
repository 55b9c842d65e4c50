"""A peer in a process of its own, asked over a pipe."""

from __future__ import annotations

import multiprocessing as mp
import time
import traceback
from multiprocessing.connection import Connection
from typing import Any

PAUSE = 0.003  # seconds between turns: worker threads of the previous peer stop spinning


def serve(pipe: Connection, workload: str, peer: str) -> None:
    """A worker: makes the peer and answers ('prepare' | 'bind' | 'call' | 'result', k) with milliseconds or arrays."""
    try:
        from benchmarks.peers.runners import RUNNERS
        from benchmarks.peers.workloads import WORKLOADS

        runner = RUNNERS[peer](WORKLOADS[workload]())
        pipe.send(None)
        while True:
            command, k = pipe.recv()
            if command == "stop":
                return
            if command == "result":
                pipe.send(runner.result(k))
                continue
            start = time.perf_counter()
            value = None
            if command == "prepare":
                runner.prepare()
            elif command == "bind":
                runner.bind(k)
            else:
                value = runner.call(k)
            elapsed = (time.perf_counter() - start) * 1e3
            del value
            pipe.send(elapsed)
    except BaseException:
        pipe.send(RuntimeError(traceback.format_exc()))


class Worker:
    """The other end of ``serve``."""

    def __init__(self, workload: str, peer: str) -> None:
        context = mp.get_context("spawn")
        self.pipe, other = context.Pipe()
        self.process = context.Process(target=serve, args=(other, workload, peer), daemon=True)
        self.process.start()
        other.close()  # so that a dead worker ends the wait
        self._answer()

    def _answer(self) -> Any:
        answer = self.pipe.recv()
        if isinstance(answer, Exception):
            raise answer
        return answer

    def ask(self, command: str, k: int = 0) -> Any:
        """The worker's answer to a command; raises what it raised."""
        time.sleep(PAUSE)
        self.pipe.send((command, k))
        return self._answer()

    def stop(self) -> None:
        """Ends the process."""
        if self.process.is_alive():
            self.pipe.send(("stop", 0))
            self.process.join(10)
            self.process.kill()
