"""Ways between the dialects: the same rows, seen through other names."""

from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from vecrl.dialects import to_tensordict, to_vector
from vecrl.envs import EnvBase, GymEnv, SerialEnv, TransformedEnv
from vecrl.envs.transforms import StepCounter
from vecrl.errors import SpaceError
from vecrl.vector import VectorEnv


def batch(**kwargs: Any) -> SerialEnv:
    return SerialEnv(3, partial(GymEnv, "CartPole-v1", categorical_action_encoding=True, **kwargs))


@pytest.mark.parametrize("mode", ["same_step", "next_step", "disabled"])
def test_an_environment_over_tensordicts_as_a_vector_environment(mode: str) -> None:
    """It gives what the engine's own vector environment gives for the same seeds, in every mode."""
    env = to_vector(batch(), autoreset_mode=mode)
    seeds, seed = [], 0
    for _ in range(3):
        seeds.append(seed)
        seed = GymEnv("CartPole-v1").set_seed(seed)
    expected = VectorEnv([partial(gymnasium.make, "CartPole-v1")] * 3, autoreset_mode=mode, backend="serial")
    obs, _ = env.reset(seed=0)
    np.testing.assert_array_equal(obs, expected.reset(seed=seeds)[0])
    rng = np.random.default_rng(0)
    for _ in range(60):
        actions = rng.integers(0, 2, 3)
        obs, reward, terminated, truncated, info = env.step(torch.from_numpy(actions))
        want = expected.step(actions)
        np.testing.assert_array_equal(obs, want[0])
        np.testing.assert_array_equal(reward, want[1])
        np.testing.assert_array_equal(terminated, want[2])
        np.testing.assert_array_equal(truncated, want[3])
        if mode == "same_step" and "final_obs" in want[4]:
            for row in np.flatnonzero(want[4]["_final_obs"]):
                np.testing.assert_array_equal(info["final_obs"][row], want[4]["final_obs"][row])
        if mode == "disabled" and terminated.any():
            mask = terminated.numpy()
            obs, _ = env.reset(options={"reset_mask": terminated})
            np.testing.assert_array_equal(obs, expected.reset(options={"reset_mask": mask})[0])
    env.close()
    expected.close()


def test_actions_may_be_indices_where_they_are_one_hot() -> None:
    env = to_vector(SerialEnv(2, partial(GymEnv, "CartPole-v1")))
    env.reset(seed=0)
    assert env.action_space == gymnasium.spaces.MultiDiscrete([2, 2])
    assert env.step(torch.tensor([0, 1]))[1].tolist() == [1.0, 1.0]
    env.close()


def test_what_a_vector_environment_cannot_say_is_told() -> None:
    with pytest.raises(SpaceError, match="one batch dimension"):
        to_vector(GymEnv("CartPole-v1"))
    several = TransformedEnv(batch(), StepCounter())
    with pytest.raises(SpaceError, match="one observation"):
        to_vector(several)
    env = to_vector(several, observation="observation")
    assert env.reset(seed=1)[0].shape == (3, 4)
    env.close()


def test_environments_of_gymnasium_over_tensordicts() -> None:
    single = to_tensordict(gymnasium.make("CartPole-v1"))
    assert isinstance(single, EnvBase)
    assert to_tensordict(single) is single
    with pytest.raises(TypeError, match="environment of gymnasium or vecrl"):
        to_tensordict(3)


@pytest.mark.parametrize("seeds", [[0, 99, 1], [3, 3, 3], [None, 1, 2], [0, None, 2]])
def test_seeds_of_single_rows_are_refused(seeds: Any) -> None:
    env = to_vector(batch())
    with pytest.raises(ValueError, match="give an int"):
        env.reset(seed=seeds)
    obs = env.reset(seed=5)[0].clone()
    assert env.reset(seed=[5, 6, 7])[0].equal(obs)
    env.close()
