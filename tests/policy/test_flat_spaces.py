"""Rows of numbers for observations and actions of every space."""

import re

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, Graph, MultiBinary, MultiDiscrete, Sequence, Text, Tuple, flatten
from gymnasium.vector.utils import batch_space

from vecrl.engine.space_layout import Layout
from vecrl.errors import OutOfSpecError, SpaceError
from vecrl.policy.policy_io import FlatActions, FlatObservations

SPACES = [
    Box(-1, 1, (3,)),
    Box(-1, 1, (2, 2), np.float64),
    Discrete(4, start=-1),
    MultiDiscrete([2, 3, 4]),
    MultiDiscrete([[2, 3], [4, 1]]),
    MultiBinary((2, 3)),
    Tuple((Discrete(32), Discrete(11), Discrete(2))),
    Dict({"x": Box(-1, 1, ()), "inner": Tuple((MultiBinary(3), Dict({"n": Discrete(3), "m": MultiDiscrete([2, 2])})))}),
]


@pytest.mark.parametrize("space", SPACES, ids=str)
@pytest.mark.parametrize("as_tensors", [False, True])
def test_rows_are_those_of_gymnasium(space, as_tensors):
    space.seed(3)
    rows, flat = [space.sample() for _ in range(5)], FlatObservations(space)
    layout = Layout(space)
    leaves = [np.stack(column) for column in layout.columns(rows)]
    numbers = flat(layout.build([torch.from_numpy(leaf) for leaf in leaves] if as_tensors else leaves))
    assert numbers.shape == (5, flat.length)
    assert numbers.is_floating_point()
    for row, expected in zip(numbers, rows, strict=True):
        np.testing.assert_array_equal(row.numpy(), flatten(space, expected))


@pytest.mark.parametrize("space", [Discrete(3), MultiDiscrete([3]), Dict({"n": Discrete(3)})], ids=str)
@pytest.mark.parametrize("value", [-1, 3])
def test_observations_outside_of_their_space_are_an_error(space, value):
    leaf = np.array([[value]]) if isinstance(space, MultiDiscrete) else np.array([value])
    with pytest.raises(OutOfSpecError, match=r"Expected observations in .*\(.*3.*\), got others \(.*\)\. Return"):
        FlatObservations(space)({"n": leaf} if isinstance(space, Dict) else leaf)


@pytest.mark.parametrize("value", [[2, 0], [0, -1], [0, 3], [-1, 0]])
def test_indices_in_the_columns_of_another_element_are_an_error(value):
    with pytest.raises(OutOfSpecError, match=rf"got others \(for example {re.escape(str(value))}\)"):
        FlatObservations(MultiDiscrete([2, 3]))(np.array([[1, 2], value]))


def test_multi_discrete_observations_start_anywhere():
    flat = FlatObservations(MultiDiscrete([2, 3], start=[-1, 5]))
    assert flat(np.array([[0, 5], [-1, 7]])).tolist() == [[0, 1, 1, 0, 0], [1, 0, 0, 0, 1]]


def test_only_nested_images_are_scaled():
    image, vector = Box(0, 255, (1, 2, 1), np.uint8), Box(0, 255, (2,), np.uint8)
    pixels = np.array([[[[51], [255]]]], np.uint8)
    assert FlatObservations(image)(pixels).tolist() == [[51, 255]]
    nested = FlatObservations(Dict({"image": image, "vector": vector}))
    assert nested({"image": pixels, "vector": np.array([[7, 8]], np.uint8)}).tolist() == [[pytest.approx(0.2), 1, 7, 8]]
    assert nested.description == "['image']: Box(1, 2, 1) / 255; ['vector']: Box(2,)"


def test_leaves_without_arrays_are_omitted():
    space = Dict({"t": Text(3), "x": Box(-1, 1, (2,)), "g": Graph(Discrete(2), None), "s": Sequence(Discrete(2))})
    flat = FlatObservations(space)
    assert (flat.length, flat.omitted) == (2, ("['g']", "['s']", "['t']"))
    obs = {"t": ["a", "b"], "x": np.ones((2, 2), np.float32), "g": [None] * 2, "s": [(), ()]}
    assert flat(obs).tolist() == [[1, 1], [1, 1]]


@pytest.mark.parametrize("space", SPACES, ids=str)
def test_actions_are_elements_of_the_space(space):
    flat = FlatActions(space)
    outputs = torch.from_numpy(np.random.default_rng(0).normal(size=(7, flat.length)).astype(np.float32)) * 3
    batch = flat.arrays(outputs)
    assert batch in batch_space(space, 7)
    leaves = Layout(space).split(flat(outputs))
    for tensor, array in zip(leaves, Layout(space).split(batch), strict=True):
        np.testing.assert_array_equal(tensor.numpy(), array)


def test_each_leaf_gets_its_numbers():
    space = Dict(
        {"a": Box(-1, 1, (2,)), "b": Tuple((Discrete(3, start=1), MultiBinary(2))), "c": MultiDiscrete([2, 3])}
    )
    flat = FlatActions(space)
    assert flat.description == (
        "['a']: Box(2,); ['b'][0]: Discrete(3); ['b'][1]: MultiBinary(2,); ['c']: MultiDiscrete([2, 3])"
    )
    actions = flat.arrays(torch.tensor([[0.5, -9, 0, 0, 1, -0.1, 0.1, 1, 0, 0, 5, 6]]))
    assert actions["a"].tolist() == [[0.5, -1]]
    assert actions["b"][0].tolist() == [3]
    assert actions["b"][1].tolist() == [[0, 1]]
    assert actions["c"].tolist() == [[0, 2]]


def test_actions_of_integer_boxes_are_rounded():
    flat = FlatActions(Box(0, 5, (3,), np.int32))
    actions = flat.arrays(torch.tensor([[1.6, -3.0, 9.0]]))
    assert actions.tolist() == [[2, 0, 5]]
    assert actions.dtype == np.int32


@pytest.mark.parametrize("space", SPACES, ids=str)
def test_ranges_reach_every_action(space):
    flat = FlatActions(space)
    uniform = np.random.default_rng(1).uniform(flat.low, flat.high, (2000, flat.length)).astype(np.float32)
    for leaf, values in zip(
        Layout(space).leaves, Layout(space).split(flat.arrays(torch.from_numpy(uniform))), strict=True
    ):
        if np.issubdtype(leaf.dtype, np.floating):
            assert values.min() < -0.9
            assert values.max() > 0.9
        else:
            columns = values.reshape(len(values), -1).T
            shares = [np.unique(column, return_counts=True)[1] / len(values) for column in columns]
            assert all((share * len(share) > 0.5).all() for share in shares)


def test_action_spaces_with_objects_raise():
    with pytest.raises(SpaceError, match="Expected an action space of Box, Discrete"):
        FlatActions(Dict({"x": Box(-1, 1, (2,)), "say": Text(4)}))
