"""`BaseVectorEnv`: the batched spaces that it derives."""

import subprocess
import sys

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Sequence, Text, Tuple

from vecrl.errors import SpaceError
from vecrl.vector.base import BaseVectorEnv, batch_space

UNIT = Box(-1.0, 1.0, (2,))


def test_is_a_gymnasium_vector_env_with_all_attributes():
    """BaseVectorEnv: a `gymnasium.vector.VectorEnv` that sets num_envs and the four spaces."""
    act = Discrete(3)
    env = BaseVectorEnv(4, UNIT, act)
    assert isinstance(env, gymnasium.vector.VectorEnv)
    assert env.num_envs == 4
    assert env.single_observation_space is UNIT
    assert env.single_action_space is act
    assert env.observation_space == Box(-1.0, 1.0, (4, 2))
    assert env.action_space == MultiDiscrete([3, 3, 3, 3])


def test_closes_once_and_shares_no_metadata():
    """BaseVectorEnv: gymnasium's close works, also twice, and metadata is not gymnasium's shared dict."""
    env, other = BaseVectorEnv(1, UNIT, UNIT), BaseVectorEnv(1, UNIT, UNIT)
    env.metadata["autoreset_mode"] = "mine"
    assert "autoreset_mode" not in other.metadata
    assert "autoreset_mode" not in gymnasium.vector.VectorEnv.metadata
    assert not env.closed
    env.close()
    env.close()
    assert env.closed
    assert not other.closed


@pytest.mark.parametrize("space", [Text(3), Dict(a=Text(3)), Tuple((UNIT, Text(3))), Sequence(UNIT)], ids=str)
@pytest.mark.parametrize("place", ["observation", "action"])
def test_other_spaces_raise_with_their_name(space, place):
    """BaseVectorEnv: single spaces have elements that are arrays; any other is a TypeError that names the space."""
    spaces = (space, UNIT) if place == "observation" else (UNIT, space)
    with pytest.raises(TypeError, match=r"Text|Sequence") as exc_info:
        BaseVectorEnv(2, *spaces)
    assert isinstance(exc_info.value, SpaceError)
    assert isinstance(exc_info.value, ValueError)


@pytest.mark.parametrize("num_envs", [0, -1, 1.5])
def test_num_envs_is_a_positive_integer(num_envs):
    """BaseVectorEnv: a num_envs that is not a positive integer is a ValueError."""
    with pytest.raises(ValueError, match="num_envs"):
        BaseVectorEnv(num_envs, UNIT, UNIT)


@pytest.mark.parametrize("start", [0, 5, -2])
def test_discrete_start_survives_the_round_trip(start):
    """BaseVectorEnv: a batched Discrete(n) is a MultiDiscrete of n repeated, with the same start."""
    single = Discrete(3, start=start)
    batched = batch_space(single, 64)
    assert isinstance(batched, MultiDiscrete)
    assert (batched.nvec == 3).all()
    assert (batched.start == start).all()
    batched.seed(0)
    rows = batched.sample()
    assert all(single.contains(row) for row in rows)
    assert set(rows.tolist()) == {start, start + 1, start + 2}
    assert np.array([single.start + single.n - 1] * 64) in batched
    assert np.array([single.start + single.n] * 64) not in batched


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.uint8, np.int16, np.int64])
def test_box_keeps_dtype_and_values_of_each_element(dtype):
    """BaseVectorEnv: Box bounds keep their dtype and per-element values."""
    low, high = np.array([[0, 1, 2]], dtype), np.array([[3, 5, 7]], dtype)
    batched = batch_space(Box(low, high, dtype=dtype), 2)
    assert batched.dtype == batched.low.dtype == dtype
    assert batched.shape == (2, 1, 3)
    np.testing.assert_array_equal(batched.low, np.stack([low, low]))
    np.testing.assert_array_equal(batched.high, np.stack([high, high]))


def test_box_keeps_infinite_bounds():
    """BaseVectorEnv: infinite Box bounds are kept, of floats and of integers."""
    low, high = np.array([-np.inf, 0.0, -np.inf]), np.array([np.inf, np.inf, 2.0])
    for single in (Box(low, high, dtype=np.float64), Box(-np.inf, np.inf, (3,), dtype=np.int32)):
        batched = batch_space(single, 2)
        for row in range(2):
            np.testing.assert_array_equal(batched.low[row], single.low)
            np.testing.assert_array_equal(batched.high[row], single.high)
            np.testing.assert_array_equal(batched.bounded_below[row], single.bounded_below)
            np.testing.assert_array_equal(batched.bounded_above[row], single.bounded_above)
        assert batched.sample().shape == (2, 3)


def test_nested_spaces_are_batched_leaf_by_leaf():
    """BaseVectorEnv: Dict and Tuple keep their structure; MultiDiscrete and MultiBinary become gymnasium's spaces."""
    space = Dict(a=Tuple((Discrete(3, start=2), MultiBinary(2))), b=MultiDiscrete([2, 3]))
    assert batch_space(space, 4) == gymnasium.vector.utils.batch_space(space, 4)


def test_box_without_dimensions_gets_one():
    """BaseVectorEnv: a Box of shape () becomes one of shape (num_envs,)."""
    assert batch_space(Box(0.0, 1.0, ()), 5).shape == (5,)


def test_large_bounds_are_views():
    """BaseVectorEnv: bounds of large observations take no memory for each environment."""
    low = np.arange(2**20, dtype=np.uint8)
    single = Box(low, 255, (2**20,), dtype=np.uint8)
    batched = batch_space(single, 3)
    for name in ("low", "high", "bounded_below", "bounded_above"):
        values = getattr(batched, name)
        assert values.shape == (3, 2**20)
        assert values.strides[0] == 0
        np.testing.assert_array_equal(values[1], getattr(single, name))
    assert batched.dtype == np.uint8
    samples = batched.sample(), batch_space(single, 3).sample()
    assert samples[0].shape == (3, 2**20)
    assert (samples[0] != samples[1]).any(), "they do not share the random stream of the single space"


def test_the_single_bounds_are_not_shared():
    """BaseVectorEnv: writing to the batched bounds does not change the single space."""
    single = Box(-1.0, 1.0, (2,))
    batch_space(single, 2).low[:] = -9
    assert (single.low == -1).all()


def test_an_old_gymnasium_is_named():
    code = """
import gymnasium.vector
gymnasium.__version__ = "0.29.1"
vars(gymnasium.vector).pop("AutoresetMode")
try:
    import vecrl.vector
except ImportError as error:
    assert str(error).startswith("Expected gymnasium 1.3 or newer, got 0.29.1. Update it: pip install"), error
else:
    raise AssertionError
"""
    subprocess.run([sys.executable, "-c", code], check=True)
