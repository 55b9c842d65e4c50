"""One program for prefill and decode: a Qwen3 block with a key/value cache, compiled once, saved, loaded and run token by token."""

import tempfile
from pathlib import Path

import jax.numpy as jnp
import numpy as np

import dvm
from dvm import models


def main() -> None:
    """Prefills five tokens, then decodes three, and shows that nothing was compiled on the way."""
    config = models.as_decoder(models.scaled(models.load_config("qwen3-0.6b")))
    params = models.init_params(config)
    kv, head_dim, hidden = config.num_key_value_heads, config.head_dim, config.hidden_size

    b, s = dvm.Dim("b", max=4), dvm.Dim("s", max=64)
    p = dvm.Dim("p", min=0, max=256)  # tokens already in the cache
    x = dvm.spec(f"b, s, {hidden}", jnp.float32, b=b, s=s)
    cache = dvm.spec(f"b, {kv}, p, {head_dim}", jnp.float32, b=b, p=p)
    program = dvm.compile(models.block(config), params, x, cache, cache)

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "block.dvm"
        program.save(path)
        print(f"saved {path.stat().st_size:,} bytes")
        program = dvm.load(path).wait()

    rng = np.random.default_rng(0)
    k = v = np.zeros((1, kv, 0, head_dim), np.float32)
    for tokens in (5, 1, 1, 1):
        y, k, v = program(params, rng.standard_normal((1, tokens, hidden), np.float32), k, v)
        print(f"{tokens} token(s) in, output {y.shape}, cache {k.shape}")
    print(dvm.stats())


if __name__ == "__main__":
    main()
