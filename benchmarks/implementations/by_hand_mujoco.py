"""MuJoCo's physics without a library around it: the most that gymnasium's tasks can reach on two threads.

Neither makes observations, rewards or resets.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import gymnasium
import mujoco
import numpy as np
from mujoco.rollout import Rollout

from benchmarks.actions import continuous, play
from benchmarks.implementation import RunFactory

FULL = mujoco.mjtState.mjSTATE_FULLPHYSICS


def rollout(name: str, num_envs: int, act_size: int, num_threads: int = 2) -> RunFactory:
    """`mujoco.rollout`, one step of the task a call, from the states of the call before."""
    model, skip, datas = _model(name)
    state = np.empty((num_envs, mujoco.mj_stateSize(model, FULL)))
    for row in state:
        mujoco.mj_getState(model, datas(), row, FULL)
    batches = continuous(num_envs, act_size, np.float64)
    with Rollout(nthread=num_threads) as pool:
        workers = [datas() for _ in range(num_threads)]

        def step(actions: np.ndarray) -> None:
            nonlocal state
            controls = np.repeat(actions[:, None], skip, axis=1)
            state = np.ascontiguousarray(pool.rollout(model, workers, state, controls)[0][:, -1])

        yield play(step, batches)


def python_threads(name: str, num_envs: int, act_size: int, num_threads: int = 2) -> RunFactory:
    """`mj_step` on Python threads, each with its part of the environments."""
    model, skip, make = _model(name)
    datas = [make() for _ in range(num_envs)]
    batches = continuous(num_envs, act_size, np.float64)
    parts = [range(first, num_envs, num_threads) for first in range(num_threads)]
    with ThreadPoolExecutor(num_threads) as pool:

        def step(actions: np.ndarray) -> None:
            def step_part(rows: range) -> None:
                for row in rows:
                    datas[row].ctrl[:] = actions[row]
                    mujoco.mj_step(model, datas[row], skip)

            list(pool.map(step_part, parts))

        yield play(step, batches)


def _model(name: str) -> tuple[Any, int, Callable[[], Any]]:
    """Returns the model of a task, its frame skip, and a function that makes data at a random start."""
    env, rng = gymnasium.make(name).unwrapped, np.random.default_rng(0)
    model: Any = env.model

    def make() -> Any:
        data = mujoco.MjData(model)
        data.qvel[:] = 0.1 * rng.normal(size=model.nv)
        return data

    return model, env.frame_skip, make
