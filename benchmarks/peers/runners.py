"""One class a peer. ``call(k)`` runs the stream's k-th shape, native arrays in, finished native arrays out."""

from __future__ import annotations

import io
from typing import Any

import numpy as np

from benchmarks.peers.workloads import Dims, Workload, grow, power_of_two


class Runner:
    """What all peers share: inputs are made native once, outside every measured time."""

    def __init__(self, workload: Workload) -> None:
        self.workload = workload
        self.params = workload.params()
        self.inputs = [self.native(workload.arrays(dims)) for dims in workload.stream]

    def native(self, arrays: list[np.ndarray]) -> list[Any]:
        """The arrays as the peer's users hold them."""
        return list(arrays)

    def prepare(self) -> None:
        """What is done once, before any shape is known."""

    def bind(self, k: int) -> None:
        """What can be done for shape ``k`` before it is run, if anything."""

    def call(self, k: int) -> Any:
        """Runs shape ``k`` and waits."""
        raise NotImplementedError

    def result(self, k: int) -> list[np.ndarray]:
        """The result of shape ``k`` as NumPy arrays (not measured)."""
        value = self.call(k)
        return [np.array(v) for v in (value if isinstance(value, (tuple, list)) else [value])]


class _Jax(Runner):
    def native(self, arrays: list[np.ndarray]) -> list[Any]:
        import jax

        return [jax.block_until_ready(jax.device_put(a)) for a in arrays]

    def _params(self) -> Any:
        import jax

        return jax.block_until_ready(jax.tree.map(jax.device_put, self.params))


def jax_leaves(tree: Any) -> list[Any]:
    """The arrays of a pytree in order."""
    import jax

    return jax.tree.leaves(tree)


class Dvm(_Jax):
    """This product: compiled once with every dim symbolic."""

    def prepare(self) -> None:
        import dvm

        self.params = self._params()
        self.program = dvm.compile(self.workload.jax_fn, self.params, *self.workload.specs())
        self.program.wait()

    def bind(self, k: int) -> None:
        self.program.bind_flat([*jax_leaves(self.params), *self.inputs[k]])

    def call(self, k: int) -> Any:
        import jax

        return jax.block_until_ready(self.program(self.params, *self.inputs[k]))


class Jit(_Jax):
    """``jax.jit``, weights as arguments."""

    def prepare(self) -> None:
        import jax

        self.params = self._params()
        self.fn = jax.jit(self.workload.jax_fn)

    def call(self, k: int) -> Any:
        import jax

        return jax.block_until_ready(self.fn(self.params, *self.inputs[k]))


class PaddedJit(Jit):
    """``jax.jit`` on inputs padded to powers of two; padding and cropping are part of the call."""

    def native(self, arrays: list[np.ndarray]) -> list[Any]:
        return list(arrays)

    def prepare(self) -> None:
        import jax

        self.params = self._params()
        self.fn = jax.jit(self.workload.padded_fn or self.workload.jax_fn)

    def call(self, k: int) -> Any:
        w, dims = self.workload, self.workload.stream[k]
        larger: Dims = {d: power_of_two(n) for d, n in dims.items()}
        if w.pad is not None:
            arrays = w.pad(self.inputs[k], dims, larger)
        else:
            arrays = [grow(a, w.shape(n, larger)) for n, a in zip(w.inputs, self.inputs[k], strict=True)]
        result = self.fn(self.params, *arrays)
        values = [np.asarray(v) for v in result] if isinstance(result, (tuple, list)) else np.asarray(result)
        return w.crop(values, dims) if w.crop is not None else values


class Eager(Runner):
    """PyTorch eager."""

    def native(self, arrays: list[np.ndarray]) -> list[Any]:
        import torch

        return [torch.from_numpy(a) for a in arrays]

    def prepare(self) -> None:
        self.module = self.workload.make_torch(self.params)
        self.fn = self.module

    def call(self, k: int) -> Any:
        import torch

        with torch.inference_mode():
            return self.fn(*self.inputs[k])


class Compiled(Eager):
    """``torch.compile(dynamic=True)``."""

    dynamic = True

    def prepare(self) -> None:
        import torch

        super().prepare()
        torch._dynamo.config.cache_size_limit = 256
        self.fn = torch.compile(self.module, dynamic=self.dynamic)


class Recompiled(Compiled):
    """``torch.compile(dynamic=False)``: compiled anew for every shape."""

    dynamic = False


class Ort(Runner):
    """ONNX Runtime on the PyTorch module's export."""

    def prepare(self) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        model = self.workload.make_onnx() if self.workload.make_onnx is not None else self._export()
        self.session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        names = list(self.workload.inputs)
        self.feeds = [dict(zip(names, arrays, strict=True)) for arrays in self.inputs]

    def _export(self) -> bytes:
        import warnings

        import torch

        module = self.workload.make_torch(self.params)
        names = list(self.workload.inputs)
        axes = {n: {i: d for i, d in enumerate(s) if isinstance(d, str)} for n, s in self.workload.inputs.items()}
        sample = max(range(len(self.inputs)), key=lambda i: min(self.workload.stream[i].values()))
        args = tuple(torch.from_numpy(a) for a in self.inputs[sample])
        file = io.BytesIO()
        with warnings.catch_warnings(), torch.inference_mode():
            warnings.simplefilter("ignore")
            torch.onnx.export(module, args, file, dynamo=False, opset_version=17, input_names=names, dynamic_axes=axes)
        return file.getvalue()

    def call(self, k: int) -> Any:
        return self.session.run(None, self.feeds[k])


RUNNERS: dict[str, type[Runner]] = {
    "dvm": Dvm,
    "jit": Jit,
    "jit_pow2": PaddedJit,
    "eager": Eager,
    "torch_dynamic": Compiled,
    "torch_static": Recompiled,
    "ort": Ort,
}
