"""Code generation: a fused kernel becomes tiles and loops, a local-memory plan, and a bytecode template."""

from codegen.build import compile_graph

__all__ = ["compile_graph"]
