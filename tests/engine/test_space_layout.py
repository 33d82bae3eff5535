"""Spaces as leaves: the leaves of each space, and conversions between trees, leaves, batches and rows."""

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

from vecrl.engine.space_layout import Layout, check_element, describe
from vecrl.errors import SpaceError

NESTED = spaces.Dict(
    {
        "b": spaces.Box(-1, 1, (2, 3), np.float32),
        "t": spaces.Tuple((spaces.Discrete(4, start=2), spaces.Dict({"m": spaces.MultiBinary(3)}))),
        "d": spaces.MultiDiscrete([2, 5]),
        "x": spaces.Text(4),
    }
)
ALL = [
    spaces.Box(0, 255, (4, 4), np.uint8),
    spaces.Box(-np.inf, np.inf, (), np.float64),
    spaces.Box(-1, 1, (0,)),
    spaces.Discrete(3),
    spaces.MultiDiscrete(np.array([[2, 3], [4, 5]])),
    spaces.MultiBinary((2, 2)),
    spaces.Text(5),
    spaces.Sequence(spaces.Discrete(2)),
    spaces.Graph(spaces.Box(-1, 1, (2,)), None),
    spaces.OneOf((spaces.Discrete(2), spaces.Box(0, 1, (2,)))),
    spaces.Tuple((spaces.Discrete(2),)),
    NESTED,
]
OPAQUE = (spaces.Text, spaces.Sequence, spaces.Graph, spaces.OneOf)


def _flat_spaces() -> st.SearchStrategy[spaces.Space[Any]]:
    return st.sampled_from(ALL[:6])


def _nested_spaces() -> st.SearchStrategy[spaces.Space[Any]]:
    def nest(inner: st.SearchStrategy[spaces.Space[Any]]) -> st.SearchStrategy[spaces.Space[Any]]:
        keys = st.text("abc", min_size=1, max_size=2)
        dicts = st.dictionaries(keys, inner, min_size=1, max_size=3).map(spaces.Dict)
        return dicts | st.lists(inner, min_size=1, max_size=3).map(lambda parts: spaces.Tuple(tuple(parts)))

    return st.recursive(_flat_spaces(), nest, max_leaves=6)


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, dict):
        return list(a) == list(b) and all(_same(a[k], b[k]) for k in a)
    if isinstance(a, tuple):
        return len(a) == len(b) and all(map(_same, a, b))
    return bool(np.array_equal(a, b)) and np.asarray(a).dtype == np.asarray(b).dtype


def test_leaves_of_a_nested_space() -> None:
    layout = Layout(NESTED)
    assert [(leaf.path, leaf.shape, leaf.dtype) for leaf in layout.leaves] == [
        (("b",), (2, 3), np.float32),
        (("d",), (2,), np.int64),
        (("t", 0), (), np.int64),
        (("t", 1, "m"), (3,), np.int8),
        (("x",), (), None),
    ]
    assert layout.opaque == (4,)
    assert layout.leaves[3].name == "['t'][1]['m']"
    assert Layout(spaces.Discrete(2)).leaves[0].name == "the root"


@pytest.mark.parametrize("space", ALL, ids=lambda s: type(s).__name__)
def test_every_space_round_trips(space: spaces.Space[Any]) -> None:
    layout = Layout(space)
    elements = [space.sample() for _ in range(3)]
    assert [len(column) for column in layout.columns(elements)] == [3] * len(layout.leaves)
    leaves = [
        column if leaf.dtype is None else np.array(column, leaf.dtype).reshape(3, *leaf.shape)
        for leaf, column in zip(layout.leaves, layout.columns(elements), strict=True)
    ]
    for value, leaf in zip(layout.split(elements[0]), layout.leaves, strict=True):
        check_element(value, leaf)
        assert (leaf.dtype is None) == isinstance(space, OPAQUE) or len(layout.leaves) > 1
    rows = layout.rows(leaves, 3)
    assert len(rows) == 3
    for row, element in zip(rows, elements, strict=True):
        for actual, gave in zip(layout.split(row), layout.split(element), strict=True):
            assert actual is gave or np.array_equal(actual, gave)


@given(_nested_spaces())
def test_building_is_the_inverse_of_splitting(space: spaces.Space[Any]) -> None:
    layout = Layout(space)
    element = space.sample()
    assert _same(layout.build(layout.split(element)), element)
    batch = layout.build([np.stack([leaf, leaf]) for leaf in layout.split(element)])
    split = layout.batch(batch, 2)
    assert all(_same(row, element) for row in layout.rows(split, 2))
    assert [leaf.shape[1:] for leaf in layout.empty(2)] == [leaf.shape for leaf in layout.leaves]


@pytest.mark.parametrize(
    ("space", "batch", "text"),
    [
        (spaces.Discrete(3), [0, 1], r"Expected actions of shape \(3,\) at the root .environments first., got \(2,\)"),
        (spaces.Discrete(3), 1, r"got \(\)"),
        (spaces.Discrete(3), [0.5, 1.0, 2.0], "Expected actions of dtype int64 at the root, got float64"),
        (spaces.Discrete(3), ["a", "b", "c"], "which does not cast safely"),
        (
            spaces.Box(-1, 1, (2,)),
            np.zeros((3, 2), complex),
            "actions of dtype float32 at the root, got complex128",
        ),
        (spaces.Text(3), ["a"], "Expected 3 actions at the root, one per environment, got 1"),
        (spaces.Dict({"a": spaces.Discrete(2)}), {"b": [0, 1, 0]}, r"Expected \['a'\], got a dict with"),
        (spaces.Tuple((spaces.Discrete(2),) * 2), ([0, 1, 0],), r"Expected \[1\], got "),
        (spaces.Dict({"a": spaces.Discrete(2)}), 7, r"Expected \['a'\], got int '7' without it"),
    ],
)
def test_invalid_batches_raise(space: spaces.Space[Any], batch: Any, text: str) -> None:
    with pytest.raises(SpaceError, match=text):
        Layout(space).batch(batch, 3)


def test_batches_of_smaller_dtypes_are_accepted() -> None:
    (leaf,) = Layout(spaces.Box(-1, 1, (2,))).batch([[0, 1], [True, False]], 2)
    np.testing.assert_array_equal(leaf, [[0, 1], [1, 0]])


def test_descriptions_are_short() -> None:
    assert describe(np.zeros((2, 3), np.int8)) == "an array of shape (2, 3) and dtype int8"
    assert describe({"a": 1}) == "a dict with the keys ['a']"
    assert len(describe("x" * 1000)) < 80
