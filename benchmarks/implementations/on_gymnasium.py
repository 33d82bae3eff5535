"""gymnasium's own vector environments."""

from __future__ import annotations

from functools import partial

import gymnasium
import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.wrappers.vector import NormalizeObservation

from benchmarks.actions import BATCHES, continuous, discrete, play
from benchmarks.busy_env import burners
from benchmarks.fault_envs import FaultEnv, fault_runs
from benchmarks.implementation import RunFactory
from benchmarks.stopwatch import starts


def serial_cartpole(num_envs: int, same_step: bool = True) -> RunFactory:
    """`SyncVectorEnv` with same-step auto-reset, or its defaults."""
    makers = [partial(gymnasium.make, "CartPole-v1")] * num_envs
    options = {"autoreset_mode": AutoresetMode.SAME_STEP} if same_step else {}
    yield from _stepping(SyncVectorEnv(makers, **options), discrete(num_envs))


def processes_burn(num_envs: int, microseconds: float, out: str) -> RunFactory:
    """`AsyncVectorEnv` with shared memory and one process per environment, its only mode."""
    yield from _stepping(AsyncVectorEnv(burners(num_envs, microseconds, out), shared_memory=True), discrete(num_envs))


def processes_cheetah(num_envs: int) -> RunFactory:
    """`AsyncVectorEnv` with shared memory."""
    makers = [partial(gymnasium.make, "HalfCheetah-v5")] * num_envs
    yield from _stepping(AsyncVectorEnv(makers, shared_memory=True), continuous(num_envs, 6))


def mujoco(name: str, num_envs: int, act_size: int, kind: str) -> RunFactory:
    """A MuJoCo task in `AsyncVectorEnv` with shared memory, or in `SyncVectorEnv`."""
    makers = [partial(gymnasium.make, name)] * num_envs
    env = AsyncVectorEnv(makers, shared_memory=True) if kind == "async" else SyncVectorEnv(makers)
    yield from _stepping(env, continuous(num_envs, act_size))


def batch_cartpole(num_envs: int) -> RunFactory:
    """gymnasium's own batched CartPole in NumPy."""
    env = gymnasium.make_vec("CartPole-v1", num_envs=num_envs, vectorization_mode="vector_entry_point")
    yield from _stepping(env, discrete(num_envs))


def rollout_cartpole(num_envs: int, steps: int) -> RunFactory:
    """A reset and `steps` steps of `SyncVectorEnv` with same-step auto-reset."""
    makers = [partial(gymnasium.make, "CartPole-v1")] * num_envs
    env = SyncVectorEnv(makers, autoreset_mode=AutoresetMode.SAME_STEP)
    batches = discrete(num_envs)

    def run(units: int) -> None:
        for _ in range(units):
            env.reset()
            for i in range(steps):
                env.step(batches[i % BATCHES])

    yield run
    env.close()


def normed(num_envs: int) -> RunFactory:
    """`NormalizeObservation` on the observations of a step."""
    env = NormalizeObservation(SyncVectorEnv([partial(gymnasium.make, "CartPole-v1")] * num_envs))
    batches = np.random.default_rng(0).normal(2, 3, (BATCHES, num_envs, 4)).astype(np.float32)
    yield play(env.observations, batches)
    env.close()


def struck(number: int) -> RunFactory:
    yield fault_runs(lambda: AsyncVectorEnv([FaultEnv] * 8), number, False)


def startup(num_workers: int, method: str) -> RunFactory:
    """From the constructor to the first observations."""
    from benchmarks.slow_import import SlowImportEnv

    yield starts(lambda: AsyncVectorEnv([SlowImportEnv] * num_workers, context=method))


def _stepping(env: VectorEnv, batches: np.ndarray) -> RunFactory:
    env.reset(seed=0)
    yield play(env.step, batches)
    env.close()
