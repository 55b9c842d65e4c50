"""The example that docs/architecture.md follows: RMSNorm, a matrix product and SiLU, for any batch and sequence length."""

import jax
import jax.numpy as jnp
import numpy as np

import dvm


def layer(w, x):
    scale = jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-6)
    return jax.nn.silu((x * scale) @ w)


b, s = dvm.Dim("b", max=16), dvm.Dim("s", max=512)
specs = (dvm.spec("128, 64"), dvm.spec("b, s, 128", b=b, s=s))


if __name__ == "__main__":
    program = dvm.compile(layer, *specs)
    rng = np.random.default_rng(0)
    w = rng.standard_normal((128, 64), np.float32)
    for shape in ((1, 1, 128), (2, 7, 128), (16, 512, 128)):
        x = rng.standard_normal(shape, np.float32)
        y = program(w, x)
        print(y.shape, "agrees with JAX:", np.allclose(y, layer(w, x), rtol=1e-5, atol=1e-5))
