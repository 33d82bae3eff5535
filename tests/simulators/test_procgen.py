"""Procgen's games."""

from threading import Thread

import numpy as np
import pytest
import torch
from tensordict import TensorDict

from vecrl.envs import ProcgenEnv, ProcgenWrapper, check_env_specs, make_env
from vecrl.errors import SpaceError
from vecrl.simulators.gymnasium import GymnasiumSimulator
from vecrl.simulators.procgen import env_fn, names, procgen_library
from vecrl.testing import SimulatorConformance
from vecrl.venv import SubprocVectorEnv

pytestmark = pytest.mark.simulators


class TestCoinrun(SimulatorConformance):
    num_steps = 10

    def make(self, num_envs):
        return GymnasiumSimulator([env_fn("coinrun", distribution_mode="easy")] * num_envs)


@pytest.mark.parametrize("name", ["bigfish", "coinrun", "maze", "starpilot"])
def test_games_are_made_and_stepped(name):
    env = env_fn(name)()
    obs, info = env.reset(seed=1)
    assert env.observation_space.contains(obs)
    assert info == {}
    obs, reward, terminated, truncated, info = env.step(3)
    assert env.observation_space.contains(obs)
    assert (type(reward), terminated, truncated) == (float, False, False)
    assert set(info) == {"level_seed", "prev_level_seed", "prev_level_complete"}
    assert name in names()


def test_seeds_determine_the_sequence_of_levels():
    first, second, other = (env_fn("coinrun")() for _ in range(3))
    frames = []
    for env, seed in ((first, 3), (second, 3), (other, 4)):
        frames.append([env.reset(seed=seed)[0], env.reset()[0], env.reset()[0]])
    assert np.array_equal(frames[0], frames[1])
    assert not np.array_equal(frames[0], frames[2])
    assert not np.array_equal(frames[0][0], frames[0][1])  # another level, also without a step in between


def test_the_step_that_ends_an_episode_returns_the_first_observation_of_the_next_one():
    env = env_fn("bigfish", distribution_mode="easy")()
    env.reset(seed=0)
    for step in range(2000):
        obs, _, terminated, _, _ = env.step(step % 9)
        if terminated:
            break
    assert terminated
    np.testing.assert_array_equal(env.reset()[0], obs)


def test_a_game_is_destroyed_while_another_holds_the_lock_of_its_library():
    """The garbage collector does so. pytest cannot interrupt a thread that waits for a lock of cffi."""
    env = env_fn("coinrun")()
    with env._game._ffi._lock:
        closing = Thread(target=env._game.close, daemon=True)
        closing.start()
        closing.join(10)
        assert not closing.is_alive()


def test_environments_in_workers_and_over_tensordicts():
    with SubprocVectorEnv([env_fn("maze")] * 2, num_workers=2) as envs:
        assert envs.reset(seed=[1, 2])[0].shape == (2, 64, 64, 3)
    env = make_env("procgen::maze")
    assert isinstance(env, ProcgenEnv)
    assert env.rollout(3)["next", "observation"].shape == (3, 3, 64, 64)
    game = env_fn("maze")()
    game.reset(seed=795726461)  # the seed after 0 in the chain
    frames = game.reset()[0]  # `set_seed` resets once too
    env.set_seed(795726461)
    assert np.array_equal(env.reset()["observation"].permute(1, 2, 0), frames)


def test_games_over_tensordicts() -> None:
    env = ProcgenEnv("bigfish", num_envs=2, distribution_mode="easy", seed=1)
    check_env_specs(env, break_when_any_done="both")
    assert (env.batch_size, env.action_spec.shape, env.action_spec.dtype) == ((2,), (2,), torch.int64)
    env._seed_next_reset(1)
    first = env.reset()["observation"]
    again = ProcgenEnv("bigfish", num_envs=2, distribution_mode="easy", seed=1).reset()["observation"]
    assert first.equal(again)
    assert not first[0].equal(first[1])
    assert ProcgenEnv("coinrun").batch_size == (1,)
    assert ProcgenEnv.available_envs == names()


def test_wrapped_games_are_stepped_in_one_call() -> None:
    games = procgen_library().ProcgenEnv(3, "bigfish", distribution_mode="easy", rand_seed=1)
    env = ProcgenWrapper(games)
    rollout = env.rollout(300, break_when_any_done=False)
    assert rollout["next", "observation"].shape == (3, 300, 3, 64, 64)
    ends = rollout["next", "done"].squeeze(-1)[:, :-1]
    assert ends.any()
    assert rollout["observation"][:, 1:].equal(rollout["next", "observation"][:, :-1])  # also where an episode ends
    assert not env.reset()["observation"].equal(rollout["observation"][:, 0])
    mask = torch.tensor([[True], [False], [False]])
    with pytest.raises(SpaceError, match="Expected a reset of all games of Procgen"):
        env.reset(TensorDict({"_reset": mask}, [3]))
    with pytest.warns(UserWarning, match="Procgen takes seeds only when it makes games"):
        env.set_seed(1)
    with pytest.raises(TypeError, match="Expected games of Procgen, got 3"):
        ProcgenWrapper(3)


def test_wrong_arguments_raise():
    with pytest.raises(SpaceError, match=r"a game of Procgen, got .*bigfish"):
        env_fn("pong")()
    with pytest.raises(SpaceError, match="None or 'rgb_array'"):
        env_fn("maze", render_mode="human")()
    with pytest.raises(SpaceError, match="no reset options"):
        env_fn("maze")().reset(options={"level": 3})


def test_only_its_actions_are_taken() -> None:
    env = env_fn("coinrun")()
    env.reset(seed=0)
    for action in (-1, 15):
        with pytest.raises(SpaceError, match=f"Expected an action from 0 to 14, got {action}"):
            env.step(action)
