"""Trajectories of dialects 1, 2 and 4, of rollout workers and of populations."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import torch
from tests.frozen.digests import Trace
from tests.frozen.tasks import LIMITS, STEERING, STEPS, N, actions, makers

from vecrl import classic, venv
from vecrl.classic import from_classic
from vecrl.policy import PopulationEvaluator
from vecrl.simulators.native import make_native
from vecrl.vector import AsyncVectorEnv, BatchedVectorEnv, RolloutWorkers, SyncVectorEnv, VectorEnv, make_vector_env

NET = "Linear(obs_length, 3) >> Tanh() >> Linear(3, act_length)"

# -- dialect 1 -------------------------------------------------------------------------------------


def vector(name: str, mode: str, kind: type[VectorEnv] = VectorEnv, **place: Any) -> Trace:
    """Records steps of `VectorEnv`; if resets are the caller's, ended rows are reset by a mask."""
    return _stepped(kind(makers(name), autoreset_mode=mode, **place), actions(name), mode)


def asynchronous(name: str, mode: str, **place: Any) -> Trace:
    """Records the same steps from `AsyncVectorEnv`."""
    return vector(name, mode, AsyncVectorEnv, **place)


def counted(name: str, num_episodes: int | None, device: str | None, **place: Any) -> Trace:
    """Records steps of `SyncVectorEnv`, as arrays or tensors."""
    env = SyncVectorEnv(makers(name), num_episodes=num_episodes, device=device, **place)
    return _stepped(env, actions(name), "same_step")


def wrapped(name: str) -> Trace:
    """Records steps of a gymnasium environment from `make_vector_env`, with tensors as inputs and outputs."""
    env = make_vector_env(f"gym::{name}", num_envs=N, **LIMITS[name])
    return _stepped(env, torch.from_numpy(actions(name)), "same_step")


def native(name: str, mode: str, **options: Any) -> Trace:
    """Records steps of a native task, with episodes of at most 13 steps."""
    env = BatchedVectorEnv(make_native(name, N, max_episode_steps=13), autoreset_mode=mode, **options)
    tensors = SimpleNamespace(reset=env.tensor_reset, step=env.tensor_step, close=env.close)
    return _stepped(tensors, torch.from_numpy(actions(name, 24)), mode)


def _stepped(env: Any, rows: Any, mode: str) -> Trace:
    trace = Trace()
    try:
        obs, info = env.reset(seed=11)
        trace.add(reset=obs, reset_info=info)
        for row in rows:
            result = env.step(row)
            trace.add_step(result)
            done = result[2] | result[3]
            if mode == "disabled" and bool(done.any()):
                obs, info = env.reset(options={"reset_mask": done})
                trace.add(reset=obs, reset_info=info)
    finally:
        env.close()
    return trace


# -- dialect 2 -------------------------------------------------------------------------------------


def ids(name: str, kind: str, **place: Any) -> Trace:
    """Records steps of all and of some environments, and resets of those that ended, by ids."""
    trace, rows, rng = Trace(), actions(name), np.random.default_rng(3)
    with getattr(venv, kind)(makers(name), **place) as env:
        env.seed(5)
        trace.add(reset=env.reset()[0])
        for turn, row in enumerate(rows):
            subset = rng.permutation(N)[: 1 + turn % N]
            result = env.step(row) if turn % 3 else env.step(row[subset], subset)
            trace.add_step(result)
            is_over = [info["env_id"] for info, end in zip(result[4], result[2] | result[3], strict=True) if end]
            if is_over:
                trace.add(reset=env.reset(is_over, **({"seed": turn} if turn % 2 else {}))[0])
    return trace


def waiting(name: str, kind: str, **place: Any) -> Trace:
    """Records the results of each environment in any finishing order: its own actions, and a reset after each
    episode."""
    rows, seen = actions(name), [Trace() for _ in range(N)]
    used, is_over = [0] * N, set[int]()
    with getattr(venv, kind)(makers(name), **place) as env:
        for i, obs in enumerate(env.reset(list(range(N)), seed=list(range(N)))[0]):
            seen[i].add(reset=obs)
        while min(used) < len(rows):
            free = [i for i in env.ready_id if used[i] < len(rows)]
            for i in sorted(is_over.intersection(free)):
                seen[i].add(reset=env.reset([i])[0][0])
                is_over.discard(i)
            result = env.step(rows[[used[i] for i in free], free], free) if free else env.step(None)
            for row, info in enumerate(result[4]):
                i = info["env_id"]
                seen[i].add_step(tuple(part[row] for part in result))
                used[i] += 1
                is_over.update([i] if result[2][row] or result[3][row] else [])
    trace = Trace()
    for i in range(N):
        trace.add(**seen[i].streams)
    return trace


def normalized(name: str) -> Trace:
    """Records observations that a wrapper normalizes by running statistics."""
    trace = Trace()
    env = venv.VectorEnvNormObs(venv.DummyVectorEnv(makers(name)))
    env.seed(5)
    trace.add(reset=env.reset()[0])
    for row in actions(name)[:10]:
        obs, reward, terminated, truncated, _ = env.step(row)
        trace.add(obs=obs, reward=reward, terminated=terminated, truncated=truncated)
    rms = env.get_obs_rms()
    trace.add(stats=[rms.mean, rms.var])
    env.close()
    return trace


# -- dialect 4 -------------------------------------------------------------------------------------


def single(name: str, **options: Any) -> Trace:
    """Records a classic environment; the caller resets it at the end of an episode."""
    trace = Trace()
    with classic.GymEnv(name, seed=3, **LIMITS[name], **options) as env:
        trace.add(reset=env.reset())
        for action in actions(name)[:, 0]:
            state, reward, done, info = env.step(action)
            trace.add(obs=state, reward=reward, done=done, info=info)
            if done:
                trace.add(reset=env.reset())
    return trace


def converted(name: str) -> Trace:
    """Records a classic environment over TensorDicts."""
    trace, env = Trace(), from_classic(classic.GymEnv(name, **LIMITS[name]))
    env.set_seed(4)
    rows = torch.stack([env.action_spec.encode(action) for action in actions(name)[:, 0]])
    trace.add_tensordict(env.rollout(len(rows), actions=rows, break_when_any_done=False))
    env.close()
    return trace


# -- policies in workers ---------------------------------------------------------------------------


def rollouts(name: str, **place: Any) -> Trace:
    """Records two successive rollouts of workers that have the policy."""
    trace = Trace()
    with RolloutWorkers(makers(name), STEERING[name], **place) as workers:
        workers.reset(seed=21)
        for steps in (STEPS[name] // 3, STEPS[name]):
            rollout = workers.rollout(steps)
            fields = ("obs", "action", "reward", "terminated", "truncated", "last_obs", "ends", "final_obs", "returns")
            trace.add(**{field: getattr(rollout, field) for field in (*fields, "lengths")})
    return trace


def population(name: str, **place: Any) -> Trace:
    """Records fitness, returns and lengths of a population, twice."""
    env: Any = name if "::" in name else partial(gymnasium.make, name, **LIMITS[name])
    rules = {"seed": 2, "num_episodes": 2, "max_steps": 60, "subbatch_size": 3}
    trace = Trace()
    with PopulationEvaluator(env, NET, 6, **rules, **place) as evaluate:
        rng = np.random.default_rng(5)
        for _ in range(2):
            result = evaluate(torch.from_numpy(rng.normal(0, 1, (6, evaluate.parameter_length)).astype(np.float32)))
            trace.add(fitness=result.fitness, returns=result.returns, lengths=result.lengths)
            trace.add(interactions=result.interactions)
    return trace
