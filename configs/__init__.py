"""Data that an installed wheel carries: model configurations (``models/*.json``) and chip descriptions (``npu/*.toml``)."""

from importlib.resources import files
from importlib.resources.abc import Traversable


def model_names() -> tuple[str, ...]:
    """Names of the model configurations that come with DVM, sorted."""
    entries = files(__name__).joinpath("models").iterdir()
    return tuple(sorted(e.name.removesuffix(".json") for e in entries if e.name.endswith(".json")))


def model_file(name: str) -> Traversable:
    """The file of the model configuration ``name``; it need not exist."""
    return files(__name__).joinpath("models", f"{name}.json")
