"""Floors: the same work with the same results, in one flat loop over gymnasium's CartPole-v1, without a library.

A TensorDict is made where the policy needs one, and of the result.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule

from benchmarks.actions import discrete, play
from benchmarks.implementation import RunFactory
from benchmarks.network import Greedy, play_greedily

torch.set_num_threads(1)
Entries = dict[str, Any]


class FlatVectorEnv:
    """CartPoles with checked actions, new arrays in every step, and next-step or same-step auto-reset."""

    def __init__(self, num_envs: int, same_step: bool = False):
        self.envs = [gymnasium.make("CartPole-v1") for _ in range(num_envs)]
        self.same_step = same_step
        self.ended: list[int] = []

    def reset(self, seed: int) -> tuple[np.ndarray, Entries]:
        self.ended = []
        return np.stack([env.reset(seed=seed + i)[0] for i, env in enumerate(self.envs)]), {}

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, Entries]:
        n = len(self.envs)
        rows = actions.tolist()
        if actions.shape != (n,) or min(rows) < 0 or max(rows) > 1:
            raise ValueError(f"Expected {n} numbers of 0 and 1, got {actions}.")
        obs, rewards = np.empty((n, 4), np.float32), np.zeros(n)
        terminations, truncations = np.zeros(n, bool), np.zeros(n, bool)
        to_reset, ended, infos = self.ended, [], {}
        for i, env in enumerate(self.envs):
            if to_reset and i in to_reset:
                obs[i], info = env.reset()
            else:
                row, rewards[i], terminated, truncated, info = env.step(rows[i])
                if terminated or truncated:
                    terminations[i], truncations[i] = terminated, truncated
                    if self.same_step:
                        infos.setdefault("final_obs", np.full(n, None, object))[i] = row
                        row, info = env.reset()
                    else:
                        ended.append(i)
                obs[i] = row
            if info:
                infos[i] = info
        self.ended = ended
        return obs, rewards, terminations, truncations, infos


def serial_cartpole(num_envs: int, same_step: bool = True) -> RunFactory:
    env = FlatVectorEnv(num_envs, same_step)
    env.reset(seed=0)
    yield play(env.step, discrete(num_envs))


def vector_env(num_envs: int, steps: int) -> RunFactory:
    """The vector environment under the policy, same-step auto-reset."""
    yield play_greedily(FlatVectorEnv(num_envs, same_step=True), steps)


def rollout_cartpole(steps: int) -> RunFactory:
    """What `GymEnv.rollout` past ends returns."""
    env, policy = gymnasium.make("CartPole-v1"), _policy()
    yield _repeated(lambda: flat_rollout(env, policy, steps))


def flat_rollout(env: gymnasium.Env, policy: TensorDictModule, steps: int) -> TensorDict:
    """Returns `steps` steps past ends, as one TensorDict `[steps]`."""
    off = torch.zeros(1, dtype=torch.bool)
    obs = torch.from_numpy(env.reset()[0])
    columns: Entries = {name: [] for name in ("observation", "action", "next", "reward", "terminated", "truncated")}
    observations, actions, next_observations, rewards, terminations, truncations = columns.values()
    for _ in range(steps):
        data = policy(_new({"observation": obs, "done": off, "terminated": off, "truncated": off}, ()))
        actions.append(action := data.get("action"))
        array, reward, terminated, truncated, _ = env.step(action.item())
        observations.append(obs)
        next_observations.append(obs := torch.from_numpy(array))
        rewards.append(reward)
        terminations.append(terminated)
        truncations.append(truncated)
        if terminated or truncated:
            obs = torch.from_numpy(env.reset()[0])
    flags = {name: torch.tensor(columns[name])[:, None] for name in ("terminated", "truncated")}
    next_entries = {
        "observation": torch.stack(next_observations),
        "reward": torch.tensor(rewards, dtype=torch.float32)[:, None],
        "done": flags["terminated"] | flags["truncated"],
        **flags,
    }
    root = {"observation": torch.stack(observations), "action": torch.stack(actions)}
    root |= {name: torch.zeros(steps, 1, dtype=torch.bool) for name in ("done", *flags)}
    return _new({**root, "next": _new(next_entries, (steps,))}, (steps,))


def serial_env(num_envs: int, steps: int) -> RunFactory:
    """What `SerialEnv.rollout` past ends returns, each environment through StepCounter, RewardSum, ObservationNorm."""
    envs, policy = [gymnasium.make("CartPole-v1") for _ in range(num_envs)], _policy()
    yield _repeated(lambda: flat_serial_rollout(envs, policy, steps))


def flat_serial_rollout(envs: list[gymnasium.Env], policy: TensorDictModule, steps: int) -> TensorDict:
    """Returns `steps` steps past ends of all environments, as one TensorDict `[len(envs), steps]`."""
    n, loc, scale = len(envs), torch.zeros(()), torch.ones(())
    off = torch.zeros(n, 1, dtype=torch.bool)
    obs = torch.from_numpy(np.stack([env.reset()[0] for env in envs])) * scale + loc
    count, total = torch.zeros(n, 1, dtype=torch.int64), torch.zeros(n, 1)
    roots: list[Entries] = []
    nexts: list[Entries] = []
    for _ in range(steps):
        root = {"observation": obs, "done": off, "terminated": off, "truncated": off}
        root |= {"step_count": count, "episode_reward": total}
        roots.append(root)
        root["action"] = policy(_new(root.copy(), (n,))).get("action")
        obs_rows, rewards = np.empty((n, 4), np.float32), np.empty((n, 1), np.float32)
        terminations, truncations = np.empty((n, 1), bool), np.empty((n, 1), bool)
        for i, (env, action) in enumerate(zip(envs, root["action"].tolist(), strict=True)):
            obs_rows[i], rewards[i], terminations[i], truncations[i], _ = env.step(action)
        obs, reward = torch.from_numpy(obs_rows) * scale + loc, torch.from_numpy(rewards)
        terminated, truncated = torch.from_numpy(terminations), torch.from_numpy(truncations)
        count, total, done = count + 1, total + reward, terminated | truncated
        flags = {"done": done, "terminated": terminated, "truncated": truncated}
        nexts.append({"observation": obs, "reward": reward, **flags, "step_count": count, "episode_reward": total})
        if done.any():
            obs, count, total = obs.clone(), count.masked_fill(done, 0), total.masked_fill(done, 0.0)
            for i in done[:, 0].nonzero()[:, 0].tolist():
                obs[i] = torch.from_numpy(envs[i].reset()[0]) * scale + loc
    return _new({**_stacked(roots), "next": _new(_stacked(nexts), (n, steps))}, (n, steps))


def _stacked(entries: list[Entries]) -> Entries:
    return {key: torch.stack([step[key] for step in entries], 1) for key in entries[0]}


def _new(entries: Entries, batch_size: tuple[int, ...]) -> TensorDict:
    return TensorDict._new_unsafe(entries, batch_size=torch.Size(batch_size))


def _policy() -> TensorDictModule:
    return TensorDictModule(Greedy(), in_keys=["observation"], out_keys=["action"])


def _repeated(work: Any) -> Any:
    def run(units: int) -> None:
        with torch.no_grad():
            for _ in range(units):
                work()

    return run
