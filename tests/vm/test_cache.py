"""The cache of executables: hits across processes, damage, privacy, the size limit."""

import os
import subprocess
import sys

import numpy as np
import pytest

from vm import cache, counters

PROGRAM = """
import jax.numpy as jnp, numpy as np
import dvm
prog = dvm.compile(lambda x: jnp.exp(x) * 3 + x, dvm.spec("n", jnp.float32, n=dvm.Dim("n", max=100)))
assert np.allclose(prog(np.zeros(7, np.float32)), 3)
stats = dvm.stats()
print(stats["specialised_compiles"] if "specialised_compiles" in stats else 0, stats["cache_hits"] if "cache_hits" in stats else 0)
"""


def run(folder):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, "DVM_CACHE_DIR": str(folder)},
        capture_output=True,
        text=True,
        check=True,
    )
    built, hits = done.stdout.split()
    return int(built), int(hits)


def test_a_second_process_compiles_nothing(tmp_path):
    assert run(tmp_path) == (1, 0)
    assert run(tmp_path) == (0, 1)
    (entry,) = (tmp_path / "executables").iterdir()
    data = bytearray(entry.read_bytes())
    data[len(data) // 2] ^= 1
    entry.write_bytes(bytes(data))
    assert run(tmp_path) == (1, 0), "a damaged entry is a miss"
    assert run(tmp_path) == (0, 1), "and is replaced"


def test_nothing_is_read_from_a_folder_that_others_can_write(tmp_path, monkeypatch):
    monkeypatch.setenv("DVM_CACHE_DIR", str(tmp_path))
    assert cache.directory() == tmp_path / "executables"
    (tmp_path / "executables").chmod(0o770)
    assert cache.directory() is None
    monkeypatch.setenv("DVM_CACHE_DIR", "")
    assert cache.directory() is None


def test_the_size_limit_removes_the_oldest(tmp_path, monkeypatch):
    monkeypatch.setenv("DVM_CACHE_MB", "1")
    for i in range(4):
        path = tmp_path / f"entry{i}"
        path.write_bytes(bytes(400 << 10))
        os.utime(path, (i, i))
    cache._prune(tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["entry2", "entry3"]


def test_keys_depend_on_every_part():
    keys = {cache.key_of(b"a", b"b"), cache.key_of(b"ab", b""), cache.key_of(b"a", b"c")}
    assert len(keys) == 3


def test_one_process_builds_an_executable_once():
    built = []
    key = cache.key_of(b"test", np.random.default_rng().bytes(16))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DVM_CACHE_DIR", "")
        for _ in range(2):
            assert cache.get(key, (0,), 0, lambda: built.append(1) or "code") == "code"
    assert built == [1]
    assert counters.get("cache_bad_entries") >= 0
