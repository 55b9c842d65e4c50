"""Graphs: the IR, the op table, the front ends, the passes and fusion."""
