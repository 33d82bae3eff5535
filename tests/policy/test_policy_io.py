"""Network inputs and outputs for each space."""

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, Text

from vecrl.errors import SpaceError
from vecrl.policy.policy_io import PolicyIO

ANY = Box(-1, 1, (2,))


def test_boxes_are_flattened_in_their_dtype():
    policy_io = PolicyIO(Box(0, 255, (2, 3), np.uint8), ANY)
    assert policy_io.constants == {"obs_length": 6, "act_length": 2}
    features = policy_io.features(np.arange(12, dtype=np.uint8).reshape(2, 2, 3))
    assert features.tolist() == [[0, 1, 2, 3, 4, 5], [6, 7, 8, 9, 10, 11]]
    assert features.dtype == torch.float32
    assert PolicyIO(Box(-1, 1, (2,), np.float64), ANY).features(np.zeros((3, 2))).dtype == torch.float64
    assert PolicyIO(Box(-1, 1, ()), ANY).features(np.zeros(3, np.float32)).shape == (3, 1)


def test_discrete_observations_are_one_hot_from_their_start():
    assert PolicyIO(Discrete(2, start=-1), ANY).features(torch.tensor([0, -1])).tolist() == [[0, 1], [1, 0]]


def test_actions_respect_bounds_shape_and_dtype():
    space = Box(np.array([[-1.0, -2.0]]), np.array([[np.inf, 2.0]]), dtype=np.float64)
    actions = PolicyIO(ANY, space).actions(torch.tensor([[-3.0, -3.0], [9.0, 9.0]]))
    assert actions.tolist() == [[[-1.0, -2.0]], [[9.0, 2.0]]]
    assert actions.dtype == torch.float64


def test_the_largest_output_is_the_action():
    assert PolicyIO(ANY, Discrete(3)).actions(torch.tensor([[0.0, 2.0, 1.0]])).tolist() == [1]
    assert PolicyIO(ANY, Discrete(3, start=4)).actions(torch.tensor([[0.0, 2.0, 1.0]])).tolist() == [5]


@pytest.mark.parametrize("space", [Text(3), Dict({"a": Text(3)}), Dict()])
def test_spaces_without_arrays_raise_with_their_name(space):
    with pytest.raises(SpaceError, match=r"observation space with arrays, got .*TransformObservation"):
        PolicyIO(space, ANY)
    with pytest.raises(SpaceError, match=r"action space of Box, .*got .*TransformAction"):
        PolicyIO(ANY, space)


def test_valid_networks_are_not_changed():
    state = torch.random.get_rng_state()
    PolicyIO(ANY, Box(-1, 1, (2, 2))).check(lambda x: torch.rand(len(x), 2, 2))
    PolicyIO(ANY, Discrete(3)).check(lambda x: torch.rand(len(x), 3))
    assert torch.equal(torch.random.get_rng_state(), state)


@pytest.mark.parametrize("outputs", [torch.zeros(1, 4), torch.zeros(3), torch.zeros(1, 3, 1), None])
def test_wrong_output_sizes_raise(outputs):
    with pytest.raises(SpaceError, match=r"from 2 features to 3 outputs, that is \(1, 3\), got .*"):
        PolicyIO(ANY, Discrete(3)).check(lambda _: outputs)
