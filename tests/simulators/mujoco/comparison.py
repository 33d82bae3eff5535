"""Plays the same episodes in vecrl's MuJoCo simulator and in gymnasium's environments, and compares every bit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
import torch

from vecrl.simulators.mujoco import make_batch

RESET_INFOS = {"x_position", "y_position"}


def assert_same_bits(found: Any, expected: Any, what: str) -> None:
    """Raises AssertionError unless two arrays are equal, NaN included."""
    assert np.array_equal(np.asarray(found), np.asarray(expected), equal_nan=True), f"{what}: {found} != {expected}"


def make_envs(name: str, num_envs: int, **kwargs: Any) -> list[gymnasium.Env]:
    return [gymnasium.make(name, disable_env_checker=True, **kwargs) for _ in range(num_envs)]


def assert_equal_to_gymnasium(
    name: str,
    num_envs: int,
    steps: int,
    *,
    num_threads: int = 1,
    seeds: Sequence[int] | None = None,
    limit: int | None = None,
    scale: float = 1.0,
    **kwargs: Any,
) -> int:
    """Plays `steps` steps with resets of rows that are done, and of row 0 now and then; returns the number of ends."""
    seeds = list(range(7, 7 + num_envs)) if seeds is None else list(seeds)
    envs = make_envs(name, num_envs, max_episode_steps=limit, **kwargs)
    sim = make_batch(name, num_envs, num_threads=num_threads, max_episode_steps=limit, **kwargs)
    assert sim.observation_space == envs[0].observation_space
    assert sim.action_space == envs[0].action_space
    assert sim.metadata["render_fps"] == envs[0].metadata["render_fps"]
    obs = sim.reset(seeds)
    expected = [env.reset(seed=seed)[0] for env, seed in zip(envs, seeds, strict=True)]
    assert_same_bits(obs, expected, "the first observations")
    rng, ends = np.random.default_rng(3), 0
    low, high = sim.action_space.low, sim.action_space.high
    for number in range(steps):
        actions = (rng.uniform(low, high, (num_envs, *low.shape)) * scale).astype(np.float32)
        step, done, obs = sim.step_and_reset(torch.from_numpy(actions))
        for row, env in enumerate(envs):
            next_obs, reward, terminated, truncated, info = env.step(actions[row])
            where = f"row {row} of step {number}"
            assert_same_bits(step.next_obs[row], next_obs, f"observation in {where}")
            assert float(step.reward[row]) == float(reward), f"reward in {where}: {step.reward[row]} != {reward}"
            assert (bool(step.terminated[row]), bool(step.truncated[row])) == (terminated, truncated), where
            assert {*step.info} == {*info}, f"{sorted(step.info)} != {sorted(info)}"
            for key, value in info.items():
                assert_same_bits(step.info[key][row], value, f"{key} in {where}")
            assert bool(done[row]) == (terminated or truncated)
            if terminated or truncated:
                ends += 1
                next_obs = env.reset()[0]
            assert_same_bits(obs[row], next_obs, f"observation after the reset in {where}")
        if number % 17 == 16:
            obs = sim.reset_where(torch.arange(num_envs) == 0)
            assert_same_bits(obs[0], envs[0].reset()[0], f"observation after a reset of row 0 in step {number}")
    sim.close()
    for env in envs:
        env.close()
    return ends
