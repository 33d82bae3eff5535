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
from vecrl.vector import BatchedVectorEnv, VectorEnv, make_vector_env


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


def test_the_way_there_and_back_takes_seeds() -> None:
    there = to_vector(SerialEnv(2, lambda: GymEnv("CartPole-v1")))
    env, plain = to_tensordict(there), SerialEnv(2, lambda: GymEnv("CartPole-v1"))
    assert env.set_seed(3) == plain.set_seed(3)
    assert env.reset()["observation"].equal(plain.reset()["observation"])


@pytest.mark.parametrize("seeds", [[0, 99, 1], [3, 3, 3], [None, 1, 2], [0, None, 2]])
def test_seeds_of_single_rows_are_refused(seeds: Any) -> None:
    env = to_vector(batch())
    with pytest.raises(ValueError, match="give an int"):
        env.reset(seed=seeds)
    obs = env.reset(seed=5)[0].clone()
    assert env.reset(seed=[5, 6, 7])[0].equal(obs)
    env.close()


@pytest.mark.parametrize("name", ["CartPole-v1", "native::CartPole-v1"])
def test_vector_environments_by_name_over_tensordicts(name: str) -> None:
    """True successors on both sides of an end, and the seeds that single environments have, one after another."""
    env = to_tensordict(make_vector_env(name, num_envs=3), categorical_action_encoding=True)
    assert env.batch_size == (3,)
    env.set_seed(0)
    played = env.rollout(60, break_when_any_done=False)
    seeds = [0]
    for _ in range(2):
        seeds.append(GymEnv("CartPole-v1").set_seed(seeds[-1]))
    whole = make_vector_env(name, num_envs=3)
    torch.testing.assert_close(played["observation"][:, 0], whole.reset(seed=seeds)[0])
    done = played["next", "done"].squeeze(-1)
    assert done.any()
    after = played["next", "observation"]
    assert (after[done][:, [0, 2]].abs() > torch.tensor([2.4, 0.209])).any(-1).all()  # where CartPole ends
    torch.testing.assert_close(after[:, :-1][~done[:, :-1]], played["observation"][:, 1:][~done[:, :-1]])
    for t in range(60):
        obs, _, terminated, _, _ = whole.step(played["action"][:, t])
        assert terminated.equal(done[:, t])
        torch.testing.assert_close(obs[~terminated], after[:, t][~terminated])
        if t < 59:
            torch.testing.assert_close(obs, played["observation"][:, t + 1])


def test_batched_vector_environments_over_tensordicts_hand_their_tensors_on() -> None:
    whole = make_vector_env("native::CartPole-v1", num_envs=3).env
    assert isinstance(whole, BatchedVectorEnv)
    given = []
    simulate = whole.simulator.reset
    whole.simulator.reset = lambda *args: given.append(simulate(*args)) or given[-1]
    assert to_tensordict(whole).reset()["observation"].data_ptr() == given[0].data_ptr()


@pytest.mark.parametrize("name", ["CartPole-v1", "native::CartPole-v1"])
def test_single_environments_by_name_over_tensordicts(name: str) -> None:
    env = to_tensordict(make_vector_env(name, force_classic_api=True))
    env.set_seed(0)
    expected = make_vector_env(name).reset(seed=0)[0]
    played = env.rollout(5)
    torch.testing.assert_close(played["observation"][0], expected)
    assert played["next", "reward"].tolist() == [[1.0]] * 5


def test_wrappers_that_change_actions_are_told() -> None:
    with pytest.raises(SpaceError, match="leaves actions as they are"):
        to_tensordict(make_vector_env("CartPole-v1", num_envs=2, discrete_to_continuous_act=True))


def test_what_is_no_environment_over_tensordicts_is_told() -> None:
    wrong: Any = 3
    with pytest.raises(TypeError, match="an EnvBase, but 3 came"):
        to_vector(wrong)
