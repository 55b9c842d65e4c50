"""How much of a compile is spent on proving: ``python -m benchmarks.symbols_share [MODEL.onnx ..] [--write docs/symbols.md]``.

Every question, requirement and fact that the compiler puts to a ``Scope`` is timed from outside (the outermost call counts), over the front
end, the passes and code generation. JAX's tracing and XLA are in neither figure. Also lists every launch check.
"""

from __future__ import annotations

import argparse
import functools
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.symbols_strength import replace_section
from symbolic import Scope, functions

METHODS = (
    "declare",
    "fresh",
    "assume",
    "require",
    "prove",
    "proves",
    "equal",
    "simplify",
    "bounds",
    "missing",
    "examples",
)
MODELS = Path(__file__).parents[1] / "tests" / "data" / "models"
CONFIGS = (
    "qwen2.5-0.5b",
    "qwen2.5-7b",
    "qwen3-0.6b",
    "llama-2-7b",
    "llama-3.1-8b",
    "llama-3.2-1b",
    "bert-base",
    "mmoe",
)


@dataclass
class Share:
    """Seconds of one compile."""

    name: str
    total: float = 0.0
    proving: float = 0.0
    tracing: float = 0.0
    calls: int = 0
    kernels: int = 0
    shape_nodes: int = 0
    checks: list[str] = field(default_factory=list)
    constraints: list[str] = field(default_factory=list)

    @property
    def share(self) -> float:
        """Proving over the whole, without tracing."""
        return self.proving / (self.total - self.tracing)


@contextmanager
def timed(share: Share) -> Iterator[None]:
    """Adds what happens inside to ``share``."""
    import jax

    depth = 0

    def watch(method: Callable[..., Any], what: str) -> Callable[..., Any]:
        @functools.wraps(method)
        def timed_method(*args: Any, **kwargs: Any) -> Any:
            nonlocal depth
            if depth:
                return method(*args, **kwargs)
            depth += 1
            begun = time.process_time()
            try:
                return method(*args, **kwargs)
            finally:
                setattr(share, what, getattr(share, what) + time.process_time() - begun)
                share.calls += what == "proving"
                depth -= 1

        return timed_method

    originals = {name: getattr(Scope, name) for name in METHODS}
    make_jaxpr = jax.make_jaxpr

    def traced(*args: Any, **kwargs: Any) -> Callable[..., Any]:
        return watch(make_jaxpr(*args, **kwargs), "tracing")

    for name, method in originals.items():
        setattr(Scope, name, watch(method, "proving"))
    jax.make_jaxpr = traced
    begun = time.process_time()
    try:
        yield
    finally:
        share.total += time.process_time() - begun
        jax.make_jaxpr = make_jaxpr
        for name, method in originals.items():
            setattr(Scope, name, method)


def of_model(path: Path, dims: Any = None) -> Share:
    """An ONNX model."""
    from dvm import pipeline

    return _measured(path.stem, lambda: pipeline.from_onnx_model(path, dims))


def of_block(name: str) -> Share:
    """The block of a configuration, float32, with symbolic batch, sequence and past."""
    import jax.numpy as jnp

    import dvm
    from dvm import models, pipeline

    config = models.load_config(name)
    params = models.param_specs(config)
    dims = {"b": dvm.Dim("b", max=64), "s": dvm.Dim("s", max=8192), "p": dvm.Dim("p", min=0, max=8192)}

    def spec(shape: str, dtype: Any = jnp.float32) -> Any:
        return dvm.spec(shape, dtype, **{n: d for n, d in dims.items() if n in shape.split(", ")})

    if isinstance(config, models.MMoEConfig):
        args = [spec(f"b, {config.num_features}")]
    elif isinstance(config, models.BertConfig):
        args = [spec(f"b, s, {config.hidden_size}"), spec("b, s", jnp.int32)]
    else:
        cache = f"b, {config.num_key_value_heads}, p, {config.head_dim}"
        args = [spec(f"b, s, {config.hidden_size}"), spec(cache), spec(cache)]
    return _measured(name, lambda: pipeline.from_function(models.block(config), (params, *args), {}))


def _measured(name: str, trace: Callable[[], Any]) -> Share:
    share = Share(name)
    trace()  # imports and JAX's own caches
    functions._cache.clear()
    with timed(share):
        program = trace().compile(start=False)
    share.kernels = len(program.kernels)
    raw = program.program
    share.checks = [c.message + (f"  ({c.origin})" if c.origin else "") for c in raw.checks]
    share.constraints = program.constraints
    share.shape_nodes = sum(op in ("dim", "shape") for k in program.kernels for op in k.ops)
    return share


def shares(paths: list[Path]) -> list[Share]:
    """The models given, or all of the test data, and the configured blocks."""
    found = [of_model(p) for p in paths or sorted(MODELS.glob("*.onnx"))]
    return found if paths else found + [of_block(name) for name in CONFIGS]


def markdown(found: list[Share]) -> str:
    """The generated section of the documentation."""
    lines = [
        "| program | compile, s | proving, s | share | calls | kernels | shape nodes left | launch checks |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for s in found:
        figures = (
            f"{s.total - s.tracing:.2f} | {s.proving:.3f} | {s.share:.0%} | {s.calls} | {s.kernels} | {s.shape_nodes}"
        )
        lines.append(f"| {s.name} | {figures} | {len(s.checks)} |")
    for s in found:
        lines += ["", f"Launch checks of {s.name}:", ""]
        lines += [f"- {check}" for check in s.checks] or ["- none: every size in the declared ranges runs"]
    return "\n".join(lines)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        description="How much of a compile is spent on proving, and the launch checks of each program."
    )
    parser.add_argument("models", nargs="*", type=Path)
    parser.add_argument("--write", metavar="FILE", help="replace the generated section of this file")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    found = shares(args.models)
    if args.write:
        replace_section(args.write, "share", markdown(found))
    plain = [{**vars(s), "share": s.share} for s in found]
    print(json.dumps(plain, indent=1) if args.json else markdown(found))


if __name__ == "__main__":
    main()

__all__ = ["Share", "main", "of_block", "of_model", "timed"]
