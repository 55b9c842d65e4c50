"""Graphs in files: the text form, and beside it a table (``.npz``) of the arrays that the text names by digest."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from graph_kernel.ir import Graph
from graph_kernel.text import Blobs, parse, to_text
from vm.dtypes import dtype_of
from vm.errors import CompileError


def write_graph(path: str | os.PathLike[str], graph: Graph) -> None:
    """Writes ``graph`` to ``path``, and ``path`` with ``.npz`` if it has arrays that are not spelled out."""
    blobs: Blobs = {}
    text = to_text(graph, blobs)
    path = Path(path)
    path.write_text(text)
    if blobs:  # as bytes: .npz cannot name 16-bit floats
        raw = {f"{k}:{a.dtype.name}": np.ascontiguousarray(a).reshape(-1).view(np.uint8) for k, a in blobs.items()}
        np.savez(path.with_suffix(".npz"), **raw)  # type: ignore[arg-type]


def read_graph(path: str | os.PathLike[str]) -> Graph:
    """The graph that ``write_graph`` wrote. Raises ``CompileError`` that names the line of what cannot be read."""
    path = Path(path)
    table = path.with_suffix(".npz")
    blobs: Blobs = {}
    if table.exists():
        try:
            with np.load(table, allow_pickle=False) as arrays:
                for key in arrays.files:
                    digest, _, dtype = key.partition(":")
                    blobs[digest] = arrays[key].view(dtype_of(dtype))
        except (ValueError, OSError, KeyError) as error:
            raise CompileError(f"{table}: not a table of arrays: {error}") from error
    return parse(path.read_text(), blobs)
