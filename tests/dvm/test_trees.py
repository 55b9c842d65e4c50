"""Argument and result trees as plain data."""

from __future__ import annotations

import collections
import json

import jax
import pytest

import dvm
from dvm.trees import LEAF, Signature, check, count, describe, flatten, has_custom, paths, unflatten

Cache = collections.namedtuple("Cache", "k v")


@jax.tree_util.register_pytree_node_class
class Custom:
    def __init__(self, a, b):
        self.a, self.b = a, b

    def tree_flatten(self):
        return (self.a, self.b), None

    @classmethod
    def tree_unflatten(cls, _, children):
        return cls(*children)


TREES = [
    1,
    (1, [2, None], {}),
    {"b": [1, 2], "a": (), 3: None},
    {"x": Cache(1, (2, 3))},
    collections.OrderedDict(z=1, a=2),
    collections.defaultdict(list, q=1),
    (),
    None,
]


@pytest.mark.parametrize("tree", [t for t in TREES if not (isinstance(t, dict) and 3 in t)])
def test_layouts_are_plain_data_and_agree_with_jax(tree):
    leaves, treedef = jax.tree_util.tree_flatten(tree)
    layout = json.loads(json.dumps(describe(treedef)))
    assert count(layout) == len(leaves)
    assert flatten(layout, tree, "it") == leaves
    rebuilt = unflatten(layout, iter(leaves))
    assert flatten(layout, rebuilt, "it") == leaves
    jax_paths = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_flatten_with_path(tree)[0]]
    assert list(paths(layout)) == jax_paths
    assert not has_custom(layout)
    if "Cache" not in repr(tree) and not isinstance(tree, collections.defaultdict):
        assert rebuilt == tree and type(rebuilt) is type(tree)


def test_custom_nodes_are_described_as_flat():
    treedef = jax.tree_util.tree_structure({"m": Custom(1, [2, 3])})
    layout = describe(treedef)
    assert layout["items"][0]["kind"] == "custom" and layout["items"][0]["leaves"] == 3
    assert layout["items"][0]["name"].endswith("Custom")
    assert has_custom(layout)
    assert flatten(layout, {"m": Custom(1, [2, 3])}, "it") == [1, 2, 3]  # the class, where it is registered
    assert flatten(layout, {"m": (1, 2, 3)}, "it") == [1, 2, 3]  # or a flat tuple
    assert unflatten(layout, iter([1, 2, 3])) == {"m": (1, 2, 3)}
    with pytest.raises(
        dvm.InputError, match=r"it \['m'\]: expected a .*Custom or a tuple of its 3 arrays, got a tuple with 2"
    ):
        flatten(layout, {"m": (1, 2)}, "it")


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((1, {"k": [1], "v": 2}), r"argument 1 \['k'\]: expected a list of 2, got a list of 1"),
        ((1, {"k": (1, 2), "v": 2}), r"argument 1 \['k'\]: expected a list of 2, got a tuple of 2"),
        ((1, {"k": [1, [2]], "v": 2}), r"argument 1 \['k'\]\[1\]: expected an array, got a list"),
        ((1, {"k": [1, 2]}), r"argument 1: wrong dict keys: missing \['v'\]"),
        ((1, {"k": [1, 2], "v": 2, "w": 3}), r"argument 1: wrong dict keys: unknown \['w'\]"),
        ((None, {"k": [1, 2], "v": 2}), r"argument 0: expected an array, got None"),
        ((1, 2), r"argument 1: expected a dict with keys \['k', 'v'\], got a int"),
        ((1,), r"f: expected 3 arguments, got 2; missing cache; it takes \(x, cache, scale\)"),
        ((1, {"k": [1, 2], "v": 2}, 3), "f: expected 3 arguments, got 4"),
    ],
)
@pytest.mark.parametrize("loaded", [False, True])
def test_errors_name_the_place(args, message, loaded):
    tree = jax.tree_util.tree_structure(((1, {"k": [1, 2], "v": 2}), {"scale": 1}))
    signature = Signature.of_function("f", ["x", "cache"], tree, tree)
    if loaded:
        signature = Signature.from_data(*signature.to_data(), signature.feeds, 5, "f")
    assert signature.flatten((1, {"k": [2, 3], "v": 4}), {"scale": 5}) == [1, 2, 3, 4, 5]
    assert signature.flatten((), {"scale": 5, "cache": {"k": [2, 3], "v": 4}, "x": 1}) == [1, 2, 3, 4, 5]
    with pytest.raises(dvm.InputError, match=message):
        signature.flatten(args, {"scale": 5})
    with pytest.raises(dvm.InputError, match="unknown argument 'q'"):
        signature.flatten((1, {"k": [2, 3], "v": 4}), {"scale": 5, "q": 1})


def test_names_of_inputs():
    tree = jax.tree_util.tree_structure(((1, {"k": [1, 2]}), {"scale": (1,)}))
    signature = Signature.of_function("f", ["x", "cache"], tree, tree)
    assert signature.feeds == ["x", "cache['k'][0]", "cache['k'][1]", "scale[0]"]
    assert signature.labels[1] == "argument 1 ['k'][0] (cache['k'][0])"
    assert Signature.of_function("f", [], tree, tree).feeds[0] == "arg0"


def test_malformed_descriptions_are_program_errors():
    for data in (
        {},
        {"form": "function", "args": 3, "kwargs": {}, "names": []},
        [1],
        {"form": "x", "args": [LEAF], "kwargs": 1, "names": []},
    ):
        with pytest.raises(dvm.ProgramError):
            Signature.from_data(data, LEAF, ["x"], 1)
    with pytest.raises(dvm.ProgramError, match="does not fit"):
        Signature.from_data(Signature.flat("onnx", ["x", "y"], 1).to_data()[0], LEAF, ["x"], 1)


@pytest.mark.parametrize("tree", [t for t in TREES if not (isinstance(t, dict) and 3 in t)])
def test_layouts_of_trees_are_sound_and_damaged_ones_are_not(tree):
    layout = describe(jax.tree_util.tree_structure(((tree,), Custom(1, 2))))
    check(layout)
    nodes = [layout, layout["items"][0], layout["items"][1]]
    for node in nodes:
        for key in list(node):
            if key in ("name", "items"):  # without items it is an empty node, which the number of leaves gives away
                continue
            damaged = {k: v for k, v in node.items() if k != key}
            with pytest.raises((ValueError, KeyError, TypeError)):
                check(damaged)
