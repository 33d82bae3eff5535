"""Lower bounds: the minimum that the work costs in Python, without a library."""

from __future__ import annotations

import mmap
import os
import signal
from collections.abc import Callable, Sequence

import gymnasium
import numpy as np

from benchmarks.actions import BATCHES, continuous, discrete, play
from benchmarks.busy_env import burners
from benchmarks.implementation import RunFactory


def loop_cartpole(num_envs: int, keep: bool = True) -> RunFactory:
    """Steps environments one after another, with same-step auto-reset; rows are stored in arrays, or dropped."""
    yield from _loop([gymnasium.make("CartPole-v1") for _ in range(num_envs)], discrete(num_envs), keep)


def loop_cheetah(num_envs: int) -> RunFactory:
    """`loop_cartpole` with HalfCheetah-v5, rows stored."""
    yield from _loop([gymnasium.make("HalfCheetah-v5") for _ in range(num_envs)], continuous(num_envs, 6), True)


def rollout_cartpole(steps: int) -> RunFactory:
    """Steps one environment with given actions and same-step auto-reset; stores nothing."""
    env = gymnasium.make("CartPole-v1")
    actions = np.random.default_rng(0).integers(0, 2, steps)

    def run(units: int) -> None:
        for _ in range(units):
            env.reset()
            for action in actions:
                _, _, terminated, truncated, _ = env.step(action)
                if terminated or truncated:
                    env.reset()

    yield run
    env.close()


def pipes_burn(num_envs: int, microseconds: float, out: str, num_workers: int = 2) -> RunFactory:
    """Workers that read a byte, step their rows into shared memory and write a byte."""
    yield from _pipes(burners(num_envs, microseconds, out), discrete(num_envs), num_workers)


def pipes_cheetah(num_envs: int, num_workers: int = 2) -> RunFactory:
    """`pipes_burn` with HalfCheetah-v5."""
    make = lambda: gymnasium.make("HalfCheetah-v5")  # noqa: E731
    yield from _pipes([make] * num_envs, continuous(num_envs, 6), num_workers)


def normed(num_envs: int) -> RunFactory:
    """Updates the mean and variance of all rows so far with a batch, and normalizes the batch."""
    batches = np.random.default_rng(0).normal(2, 3, (BATCHES, num_envs, 4)).astype(np.float32)
    count, mean, var = 1e-4, np.zeros(4), np.ones(4)

    def step(rows: np.ndarray) -> np.ndarray:
        nonlocal count, mean, var
        n, row_mean, row_var = len(rows), rows.mean(0), rows.var(0)
        total, delta = count + n, row_mean - mean
        var = (var * count + row_var * n + delta**2 * count * n / total) / total
        mean = mean + delta * n / total
        count = total
        return (rows - mean) / np.sqrt(var + 1e-8)

    yield play(step, batches)


def _loop(envs: Sequence[gymnasium.Env], batches: np.ndarray, keep: bool) -> RunFactory:
    space = envs[0].observation_space
    obs = np.zeros((len(envs), *space.shape), space.dtype)
    rewards = np.zeros(len(envs))
    terminations, truncations = np.zeros((2, len(envs)), bool)

    def step_and_keep(actions: np.ndarray) -> None:
        for i, (env, action) in enumerate(zip(envs, actions, strict=True)):
            obs[i], rewards[i], terminated, truncated, _ = env.step(action)
            terminations[i], truncations[i] = terminated, truncated
            if terminated or truncated:
                obs[i], _ = env.reset()

    def step(actions: np.ndarray) -> None:
        for env, action in zip(envs, actions, strict=True):
            _, _, terminated, truncated, _ = env.step(action)
            if terminated or truncated:
                env.reset()

    for i, env in enumerate(envs):
        env.reset(seed=i)
    yield play(step_and_keep if keep else step, batches)
    for env in envs:
        env.close()


def _pipes(makers: Sequence[Callable[[], gymnasium.Env]], batches: np.ndarray, num_workers: int) -> RunFactory:
    probe = makers[0]()
    space = probe.observation_space
    obs = _shared((len(makers), *space.shape), space.dtype)
    rewards = _shared((len(makers),), np.float64)
    flags = _shared((2, len(makers)), np.bool_)
    actions = _shared(batches.shape[1:], batches.dtype)
    commands, answers, pids = [], [], []
    for ids in np.array_split(np.arange(len(makers)), num_workers):
        get, put = os.pipe()
        done_get, done_put = os.pipe()
        pid = os.fork()
        if not pid:
            for end in (put, done_get, *commands, *answers):
                os.close(end)
            _work([makers[i]() for i in ids], ids, (obs, rewards, flags, actions), get, done_put)
        os.close(get)
        os.close(done_put)
        commands.append(put)
        answers.append(done_get)
        pids.append(pid)

    def step(batch: np.ndarray) -> None:
        actions[:] = batch
        for command in commands:
            os.write(command, b"s")
        for answer in answers:
            os.read(answer, 1)

    yield play(step, batches)
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    for end in (*commands, *answers):
        os.close(end)


def _work(envs: Sequence[gymnasium.Env], ids: np.ndarray, arrays: tuple[np.ndarray, ...], get: int, put: int) -> None:
    obs, rewards, (terminations, truncations), actions = arrays
    rows = list(zip(ids.tolist(), envs, strict=True))
    for i, env in rows:
        obs[i], _ = env.reset(seed=i)
    while os.read(get, 1):
        for i, env in rows:
            o, rewards[i], terminations[i], truncations[i], _ = env.step(actions[i])
            obs[i] = env.reset()[0] if terminations[i] or truncations[i] else o
        os.write(put, b"d")
    os._exit(0)


def _shared(shape: tuple[int, ...], dtype: np.typing.DTypeLike) -> np.ndarray:
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    return np.frombuffer(mmap.mmap(-1, size), dtype).reshape(shape)
