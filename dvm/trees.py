"""Argument and result pytrees as plain data, so that a saved program can take and return them without importing anyone's classes.

A *layout* is nested plain data: ``"*"`` is a leaf (an array); a node is a dict ``{"kind": ..., ...}``:

    {"kind": "none"}
    {"kind": "tuple" | "list", "items": [layout, ...]}
    {"kind": "dict" | "OrderedDict" | "defaultdict", "keys": [...], "items": [layout, ...]}
    {"kind": "namedtuple", "name": "Cache", "fields": ["k", "v"], "items": [layout, ...]}
    {"kind": "custom", "name": "module.Class", "leaves": n}

A custom node (a class registered with JAX) is kept as the number of its leaves only. In the process that compiled it the live JAX
tree definition is used instead; a loaded program takes an object of the class, or a flat tuple of its arrays, and returns a flat tuple.
"""

from __future__ import annotations

import collections
from collections.abc import Iterator, Sequence
from typing import Any

from vm.errors import InputError, ProgramError

LEAF = "*"
Layout = Any  # LEAF or a dict as above
_DICTS: dict[type, str] = {dict: "dict", collections.OrderedDict: "OrderedDict", collections.defaultdict: "defaultdict"}
_PLAIN_KEYS = (str, int, float, bool, type(None))


def describe(treedef: Any) -> Layout:
    """The layout of a JAX ``PyTreeDef``."""
    if treedef.num_leaves == treedef.num_nodes == 1:
        return LEAF
    kind, data = treedef.node_data()
    if kind is type(None):
        return {"kind": "none"}
    if kind in _DICTS:
        keys = list(data[1] if kind is collections.defaultdict else data)
        if all(type(key) in _PLAIN_KEYS for key in keys):
            return {"kind": _DICTS[kind], "keys": keys, "items": [describe(c) for c in treedef.children()]}
    items = [describe(c) for c in treedef.children()]
    if kind in (tuple, list):
        return {"kind": kind.__name__, "items": items}
    if issubclass(kind, tuple) and hasattr(kind, "_fields"):
        return {"kind": "namedtuple", "name": kind.__name__, "fields": list(kind._fields), "items": items}
    return {"kind": "custom", "name": f"{kind.__module__}.{kind.__qualname__}", "leaves": treedef.num_leaves}


def check(layout: Layout) -> None:
    """Raises ``ValueError`` (or ``KeyError``, ``TypeError``) unless ``layout`` is one, so that nothing fails later on."""
    if layout == LEAF:
        return
    kind, items = layout["kind"], layout.get("items", [])
    if kind == "custom":
        if type(layout["leaves"]) is not int or not 0 <= layout["leaves"] < 1 << 20 or items:
            raise ValueError("a custom node needs the number of its leaves")
        return
    if kind not in ("none", "tuple", "list", "namedtuple", *_DICTS.values()):
        raise ValueError(f"unknown kind of node {kind!r}")
    if kind == "namedtuple":
        collections.namedtuple(layout["name"], layout["fields"])
    if len(_steps(layout)) != len(items) or any(type(key) not in _PLAIN_KEYS for key in layout.get("keys", ())):
        raise ValueError(f"a malformed {kind}")
    if ("keys" in layout) != (kind in _DICTS.values()) or ("fields" in layout) != (kind == "namedtuple"):
        raise ValueError(f"a malformed {kind}")
    for item in items:
        check(item)


def count(layout: Layout) -> int:
    """Number of leaves."""
    if layout == LEAF:
        return 1
    return layout["leaves"] if layout["kind"] == "custom" else sum(map(count, layout.get("items", ())))


def has_custom(layout: Layout) -> bool:
    """Whether a class that is not part of Python occurs."""
    return layout != LEAF and (layout["kind"] == "custom" or any(map(has_custom, layout.get("items", ()))))


def paths(layout: Layout, path: str = "") -> Iterator[str]:
    """The path of every leaf in order, as ``['k'][0]`` or ``.field``."""
    if layout == LEAF:
        yield path
    elif layout["kind"] == "custom":
        yield from (f"{path}[{i}]" for i in range(layout["leaves"]))
    else:
        for step, item in zip(_steps(layout), layout.get("items", ()), strict=True):
            yield from paths(item, path + step)


def _steps(layout: dict[str, Any]) -> list[str]:
    if "keys" in layout:
        return [f"[{key!r}]" for key in layout["keys"]]
    if "fields" in layout:
        return [f".{name}" for name in layout["fields"]]
    return [f"[{i}]" for i in range(len(layout.get("items", ())))]


def flatten(layout: Layout, tree: Any, where: str, path: str = "") -> list[Any]:
    """The leaves of ``tree``, which must have this layout; otherwise an ``InputError`` names the place: ``where``, then its path."""
    place = f"{where} {path}".rstrip()
    if layout == LEAF:
        if isinstance(tree, (dict, list, tuple)) or tree is None:
            raise InputError(f"{place}: expected an array, got {_name(tree)}")
        return [tree]
    kind = layout["kind"]
    if kind == "none":
        if tree is not None:
            raise InputError(f"{place}: expected None, got {_name(tree)}")
        return []
    if kind == "custom":
        return _custom_leaves(layout, tree, place)
    children = _mapping(layout, tree, place) if "keys" in layout else _sequence(layout, tree, place)
    leaves: list[Any] = []
    for step, item, child in zip(_steps(layout), layout["items"], children, strict=True):
        leaves += flatten(item, child, where, path + step)
    return leaves


def _mapping(layout: dict[str, Any], tree: Any, place: str) -> list[Any]:
    if not isinstance(tree, dict):
        raise InputError(f"{place}: expected a dict with keys {layout['keys']}, got {_name(tree)}")
    missing = [key for key in layout["keys"] if key not in tree]
    unknown = [key for key in tree if key not in layout["keys"]]
    if missing or unknown:
        parts = [f"missing {missing}"] * bool(missing) + [f"unknown {unknown}"] * bool(unknown)
        raise InputError(f"{place}: wrong dict keys: {', '.join(parts)}")
    return [tree[key] for key in layout["keys"]]


def _sequence(layout: dict[str, Any], tree: Any, place: str) -> Sequence[Any]:
    kind, n = layout["kind"], len(layout["items"])
    expected = f"a {layout['name']}({', '.join(layout['fields'])})" if kind == "namedtuple" else f"a {kind} of {n}"
    if not isinstance(tree, list if kind == "list" else tuple) or len(tree) != n:
        got = f"{_name(tree)} of {len(tree)}" if isinstance(tree, (list, tuple)) else _name(tree)
        raise InputError(f"{place}: expected {expected}, got {got}")
    fields = getattr(tree, "_fields", None)
    if kind == "namedtuple" and fields is not None and list(fields) != layout["fields"]:
        raise InputError(f"{place}: expected {expected}, got {type(tree).__name__}({', '.join(fields)})")
    return tree


def _custom_leaves(layout: dict[str, Any], tree: Any, place: str) -> list[Any]:
    import jax

    leaves = jax.tree_util.tree_leaves(tree)
    if len(leaves) != layout["leaves"] or (len(leaves) == 1 and leaves[0] is tree):
        raise InputError(
            f"{place}: expected a {layout['name']} or a tuple of its {layout['leaves']} arrays, got {_name(tree)} with {len(leaves)}"
        )
    return leaves


def _name(tree: Any) -> str:
    return "None" if tree is None else f"a {type(tree).__name__}"


def unflatten(layout: Layout, leaves: Iterator[Any]) -> Any:
    """The tree of this layout, filled with the next leaves. Named tuples come back as new classes of the same name and fields."""
    if layout == LEAF:
        return next(leaves)
    kind = layout["kind"]
    if kind == "none":
        return None
    if kind == "custom":
        return tuple(next(leaves) for _ in range(layout["leaves"]))
    items = [unflatten(item, leaves) for item in layout["items"]]
    if kind == "list":
        return items
    if kind == "namedtuple":
        return collections.namedtuple(layout["name"], layout["fields"])(*items)
    if kind == "tuple":
        return tuple(items)
    pairs = zip(layout["keys"], items, strict=True)
    return collections.OrderedDict(pairs) if kind == "OrderedDict" else dict(pairs)


class Signature:
    """How Python arguments become flat program inputs, and flat results a tree.

    ``form`` is ``function`` (pytrees), ``jaxpr`` (flat arrays in, list out) or ``onnx`` (arrays in order or by name, tuple out). ``names``
    are the parameter names of the positional arguments where they are known. ``live`` holds JAX's tree definitions of
    ``((args...), {kwargs})`` and of the result in the process that traced the function.
    """

    def __init__(
        self,
        form: str,
        args: Sequence[Layout],
        kwargs: dict[str, Layout] | None = None,
        names: Sequence[str] = (),
        out: Layout = LEAF,
        title: str = "",
        live: tuple[Any, Any] | None = None,
    ):
        self.form = form
        self.args = list(args)
        self.kwargs = dict(sorted((kwargs or {}).items()))
        self.names = list(names)
        self.out = out
        self.title = title
        self.live = live
        labels: list[str] = []
        feeds: list[str] = []
        for i, layout in enumerate(self.args):
            name = self.names[i] if i < len(self.names) else ""
            for path in paths(layout):
                feeds.append(f"{name or f'arg{i}'}{path}")
                labels.append(f"argument {i}{' ' if path else ''}{path}" + (f" ({name}{path})" if name else ""))
        for key, layout in self.kwargs.items():
            for path in paths(layout):
                feeds.append(f"{key}{path}")
                labels.append(f"argument {key}{' ' if path else ''}{path}")
        self.feeds = feeds  # one name per flat input, for ``run``
        self.labels = labels  # the same for messages
        self.results = [f"out{path}" for path in paths(out)]  # one name per flat output

    @property
    def n_inputs(self) -> int:
        """Number of flat inputs."""
        return len(self.labels)

    def flatten(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        """The flat inputs of a call; an ``InputError`` says what does not fit and where."""
        if self.live is not None:
            import jax

            leaves, treedef = jax.tree_util.tree_flatten((args, kwargs))
            if treedef == self.live[0]:
                return leaves
        args, kwargs = self._match(args, kwargs)
        leaves = []
        for i, (layout, value) in enumerate(zip(self.args, args, strict=True)):
            leaves += flatten(layout, value, f"argument {i}")
        for key, layout in self.kwargs.items():
            leaves += flatten(layout, kwargs[key], f"argument {key}")
        return leaves

    def _match(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Moves positional parameters that were given by name into place and checks the counts."""
        positional = list(args)
        kwargs = dict(kwargs)
        while (
            len(positional) < len(self.args)
            and len(positional) < len(self.names)
            and self.names[len(positional)] in kwargs
        ):
            positional.append(kwargs.pop(self.names[len(positional)]))
        for key in self.kwargs:  # the function was traced with it by name, but it may be the next positional parameter
            if key not in kwargs and len(positional) > len(self.args) and self.names[len(self.args) :][:1] == [key]:
                kwargs[key] = positional.pop(len(self.args))
        wanted = self.names[len(positional) : len(self.args)] + [key for key in self.kwargs if key not in kwargs]
        unknown = [key for key in kwargs if key not in self.kwargs]
        if unknown:
            raise InputError(f"{self._who}: unknown argument {', '.join(map(repr, unknown))}; it takes {self._takes}")
        if len(positional) != len(self.args) or wanted:
            missing = f"; missing {', '.join(wanted)}" if wanted else ""
            total, given = len(self.args) + len(self.kwargs), len(positional) + len(kwargs)
            raise InputError(
                f"{self._who}: expected {total} argument{'s' * (total != 1)}, got {given}{missing}; it takes {self._takes}"
            )
        return tuple(positional), kwargs

    @property
    def _who(self) -> str:
        return self.title or "program"

    @property
    def _takes(self) -> str:
        named = [self.names[i] if i < len(self.names) else f"argument {i}" for i in range(len(self.args))] + list(
            self.kwargs
        )
        return f"({', '.join(named)})"

    def unflatten(self, leaves: Sequence[Any]) -> Any:
        """The result of a call from its flat outputs."""
        if self.live is not None:
            return self.live[1].unflatten(leaves)
        return unflatten(self.out, iter(leaves))

    def to_data(self) -> tuple[dict[str, Any], Layout]:
        """Plain data for ``Program.in_tree`` and ``Program.out_tree``."""
        data = {"form": self.form, "names": self.names, "args": self.args, "kwargs": self.kwargs}
        return data, self.out

    @classmethod
    def from_data(
        cls, in_tree: Any, out_tree: Any, input_names: Sequence[str], n_outputs: int, title: str = ""
    ) -> Signature:
        """The signature of a loaded program. Without tree data (``in_tree`` None) arrays are taken in order or by name."""
        if in_tree is None:
            return cls.flat("onnx", input_names, n_outputs, title)
        try:
            for layout in (*in_tree["args"], *in_tree["kwargs"].values(), out_tree):
                check(layout)
            made = cls(in_tree["form"], in_tree["args"], in_tree["kwargs"], in_tree["names"], out_tree, title)
            fits = made.n_inputs == len(input_names) and count(out_tree) == n_outputs
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
            raise ProgramError(f"the description of the arguments is malformed: {error!r}") from error
        if not fits:
            raise ProgramError("the description of the arguments does not fit the program's inputs and outputs")
        return made

    @classmethod
    def flat(cls, form: str, input_names: Sequence[str], n_outputs: int, title: str = "") -> Signature:
        """Arrays in order in; a tuple (``onnx``) or list (``jaxpr``) of arrays out."""
        kind = "list" if form == "jaxpr" else "tuple"
        out = {"kind": kind, "items": [LEAF] * n_outputs}
        return cls(form, [LEAF] * len(input_names), {}, list(input_names), out, title)

    @classmethod
    def of_function(cls, title: str, names: Sequence[str], in_tree: Any, out_tree: Any) -> Signature:
        """The signature of a traced function; ``in_tree`` is JAX's tree definition of ``((args...), {kwargs})``."""
        args_tree, kwargs_tree = in_tree.children()
        keys = kwargs_tree.node_data()[1]
        kwargs = {key: describe(child) for key, child in zip(keys, kwargs_tree.children(), strict=True)}
        args = [describe(child) for child in args_tree.children()]
        return cls("function", args, kwargs, names, describe(out_tree), title, (in_tree, out_tree))
