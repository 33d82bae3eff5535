"""EnvPool as a batched simulator."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from vecrl.classic import GymEnv
from vecrl.envs.libs.envpool import MultiThreadedEnv
from vecrl.errors import SpaceError
from vecrl.simulators.envpool import EnvPoolSimulator, make_batch, names
from vecrl.testing import BatchSimulatorConformance
from vecrl.vector import make_vector_env
from vecrl.venv.batched_venv import BatchedVenv

pytestmark = pytest.mark.simulators


class TestCartPole(BatchSimulatorConformance):
    num_steps = 60
    has_states = False

    def make(self, num_envs: int) -> EnvPoolSimulator:
        return make_batch("CartPole-v1", num_envs, num_threads=1)


class TestDictObservations(BatchSimulatorConformance):
    num_steps = 12
    has_states = False

    def make(self, num_envs: int) -> EnvPoolSimulator:
        return make_batch("CartpoleSwingup-v1", num_envs, num_threads=1, max_episode_steps=5)


class TestDiscreteObservations(BatchSimulatorConformance):
    num_steps = 30
    has_states = False
    deterministic_reset = True

    def make(self, num_envs: int) -> EnvPoolSimulator:
        return make_batch("FrozenLake-v1", num_envs, num_threads=1)


def actions(simulator: Any, step: int) -> Any:
    return BatchSimulatorConformance().action(simulator, step)


@pytest.mark.parametrize(
    "name", ["Pong-v5", "HalfCheetah-v4", "LunarLander-v3", "MiniGrid-Empty-5x5-v0", "Blackjack-v1"]
)
def test_kinds_of_environments(name: str) -> None:
    sim = make_batch(name, 2, num_threads=1)
    obs = sim.reset([0, 1])
    for step in range(3):
        row = {key: value[0].numpy() for key, value in obs.items()} if isinstance(obs, dict) else obs[0].numpy()
        space = sim.observation_space
        if isinstance(space, gymnasium.spaces.Dict):
            row = {key: part.dtype.type(row[key]) if part.shape == () else row[key] for key, part in space.items()}
        assert space.contains(row)
        obs = sim.step(actions(sim, step)).next_obs


def test_rows_are_those_of_environments_with_their_seeds() -> None:
    """Row i of a batch is the environment that EnvPool makes with the seed of the row."""
    import envpool

    sim = make_batch("CartPole-v1", 3, num_threads=1)
    obs = sim.reset([5, 6, 7])
    expected = envpool.make("CartPole-v1", env_type="gymnasium", num_envs=1, seed=6)
    assert np.array_equal(expected.reset()[0][0], obs[1].numpy())
    for number in range(20):
        action = actions(sim, number)
        step = sim.step(action)
        assert np.array_equal(expected.step(action[1:2].numpy())[0][0], step.next_obs[1].numpy())
        if step.terminated[1]:
            break
        sim.reset_where(step.terminated)


def test_no_action_is_lost_at_a_reset() -> None:
    """After a reset of a row that was done, its next step obeys the action: the second observation is no first one."""
    env = make_vector_env("envpool::CartPole-v1", num_envs=2, autoreset_mode="same_step", num_threads=1)
    env.reset(seed=0)
    ended = 0
    for _ in range(80):
        obs, _, terminated, truncated, info = env.step(np.zeros(2, np.int64))
        for row in np.flatnonzero(terminated | truncated):
            assert abs(info["final_obs"][row][2]) > 0.2 > abs(obs[row][2])  # the angle of the pole
            ended += 1
        if ended:
            before = obs
            after = env.step(np.ones(2, np.int64))[0]
            assert (after[:, 1] > before[:, 1]).all()  # the push to the right
            break
    assert ended
    env.close()


def test_all_autoreset_modes_play_the_same_episodes() -> None:
    """In next-step mode EnvPool's own resets are used, so that there is one call of EnvPool per step."""
    first_obs: dict[str, list[Any]] = {"same_step": [], "next_step": []}
    for mode, starts in first_obs.items():
        env = make_vector_env("envpool::CartPole-v1", num_envs=2, autoreset_mode=mode, num_threads=1)
        env.reset(seed=3)
        resets: list[Any] = []
        library_env = env.unwrapped.simulator.env
        library_env_reset = library_env.reset
        library_env.reset = lambda ids, call=library_env_reset, resets=resets: (resets.append(ids), call(ids))[1]
        done = np.zeros(2, bool)
        for _ in range(60):
            obs, _, terminated, truncated, _ = env.step(np.zeros(2, np.int64))
            if mode == "next_step":
                starts += [obs[0]] * int(done[0])
                done = terminated | truncated
            elif (terminated | truncated)[0]:
                starts.append(obs[0])
        assert len(resets) == 0 or mode == "same_step"
        env.close()
    number = min(map(len, first_obs.values()))
    assert number > 3
    assert np.array_equal(first_obs["same_step"][:number], first_obs["next_step"][:number])


def test_a_reset_after_a_partial_step_is_done_once() -> None:
    sim = make_batch("CartPole-v1", 2, num_threads=1, max_episode_steps=1)
    sim.reset([0, 1])
    first = sim.step(actions(sim, 0))
    assert first.truncated.all()
    step = sim.step_where(torch.tensor([True, False]), actions(sim, 1))  # EnvPool resets row 0
    obs = sim.reset_where(torch.tensor([True, True]))
    assert torch.equal(obs[0], step.next_obs[0])
    assert not torch.equal(obs[1], step.next_obs[1])
    assert torch.equal(first.next_obs[1], step.next_obs[1])
    again = sim.reset_where(torch.tensor([True, False]))
    assert not torch.equal(again[0], obs[0])
    assert torch.equal(again[1], obs[1])


def test_an_episode_that_was_started_is_kept_while_other_rows_are_stepped() -> None:
    sim = make_batch("CartPole-v1", 2, num_threads=1, max_episode_steps=1)
    sim.reset([0, 1])
    assert sim.step(actions(sim, 0)).truncated.all()
    for row in (0, 1):
        step = sim.step_where(torch.arange(2) == row, actions(sim, 1))  # EnvPool resets the row
    assert torch.equal(sim.reset_where(torch.tensor([True, True])), step.next_obs)


def test_some_rows_are_stepped_without_states() -> None:
    """Row 1 is as if only it had been stepped."""
    results = []
    for other_rows in (True, False):
        envs = BatchedVenv(make_batch("CartPole-v1", 3, num_threads=1))
        envs.reset(seed=[1, 2, 3])
        if other_rows:
            envs.step([0, 1], id=[2, 0])
        results.append(envs.step([0], id=[1])[0])
        envs.close()
    assert results[0].shape == (1, 4)
    assert np.array_equal(*results)


def test_infos() -> None:
    sim = make_batch("HalfCheetah-v4", 2, num_threads=1)
    sim.reset([0, 1])
    info = sim.step(actions(sim, 0)).info
    assert {key: tuple(value.shape) for key, value in info.items()} == {
        **dict.fromkeys(("reward_run", "reward_ctrl", "x_position", "x_velocity", "elapsed_step"), (2,))
    }
    sim = make_batch("HalfCheetah-v4", 2, num_threads=1, infos=False)
    sim.reset([0, 1])
    assert sim.step(actions(sim, 0)).info == {}


def test_environments_over_tensordicts_are_made_by_the_prefix() -> None:
    from vecrl.envs import make_env

    env = make_env("envpool::CartPole-v1", num_envs=2)
    assert isinstance(env, MultiThreadedEnv)
    assert env.rollout(2).shape == (2, 2)
    env.close()


def test_bounds_are_infinite_where_envpool_has_the_largest_floats() -> None:
    space = make_batch("LunarLander-v3", 1).observation_space
    assert space == gymnasium.spaces.Box(-np.inf, np.inf, (8,), np.float32)


def test_what_envpool_cannot_do() -> None:
    sim = make_batch("CartPole-v1", 2, num_threads=1)
    sim.reset()
    assert sim.render(0) is None
    with pytest.raises(NotImplementedError, match="cannot read its states"):
        sim.get_state()
    with pytest.raises(NotImplementedError, match="cannot write its states"):
        sim.set_state({})
    with pytest.raises(SpaceError, match="Expected no reset options for EnvPool"):
        sim.reset(options={"x": 1})
    with pytest.raises(ValueError, match="Expected the name of an environment of EnvPool, got 'nope'"):
        make_batch("nope", 2)
    for wrong in ({"device": "cuda"}, {"render_mode": "rgb_array"}):
        with pytest.raises(ValueError, match="Expected device 'cpu' and render_mode None"):
            make_batch("CartPole-v1", 2, **wrong)


def test_threads_and_further_arguments_reach_envpool() -> None:
    sim = make_batch("CartPole-v1", 2, num_threads=1, max_episode_steps=3)
    sim.reset([0, 1])
    assert sim.env.config["num_threads"] == 1
    steps = [sim.step(actions(sim, number)) for number in range(3)]
    assert [step.truncated.tolist() for step in steps] == [[False] * 2, [False] * 2, [True] * 2]
    assert "CartPole-v1" in names()
    assert MultiThreadedEnv.available_envs == names()
    assert steps[0].reward.dtype == torch.float32


def test_actions_and_seeds_are_checked() -> None:
    with closing(make_batch("CartPole-v1", 3)) as simulator:
        with pytest.raises(SpaceError, match="Expected a seed of 0 or more, got -1"):
            simulator.reset([0, -1, 2])
        simulator.reset()
        with pytest.raises(SpaceError, match=r"Expected actions from 0 to 1 for EnvPool's CartPole-v1, got \[7\] for"):
            simulator.step(torch.tensor([0, 7, 1]))
        with pytest.raises(SpaceError, match=r"got \[-1\] for the environments \[2\]"):
            simulator.step_where(torch.tensor([False, False, True]), torch.tensor([0, 0, -1]))
        assert simulator.step(torch.tensor([0, 1, 1])).reward.tolist() == [1.0, 1.0, 1.0]


def test_resets_without_seeds_make_no_new_environments() -> None:
    """Resets without a seed of one environment go on with the episodes that a loop over EnvPool itself plays."""
    import envpool

    own = envpool.make("CartPole-v1", env_type="gymnasium", num_envs=1, seed=6)
    simulator, env = make_batch("CartPole-v1", 1), GymEnv("envpool::CartPole-v1")
    with closing(simulator), closing(env):
        simulator.reset([6])
        env.seed(6)
        pool = simulator.env
        own.reset()
        env.reset()
        for _ in range(3):
            expected = own.reset(np.arange(1))[0][0]
            assert np.array_equal(simulator.reset([None])[0].numpy(), expected)
            assert np.array_equal(env.reset(), expected)
        assert simulator.env is pool
