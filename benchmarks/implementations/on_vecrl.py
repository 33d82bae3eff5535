"""vecrl's vector environments over ordinary gymnasium environments."""

from __future__ import annotations

import signal
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import torch

from benchmarks.actions import continuous, discrete, play
from benchmarks.busy_env import burners
from benchmarks.fault_envs import FaultEnv, fault_runs
from benchmarks.implementation import RunFactory
from benchmarks.stopwatch import starts
from vecrl.engine.backends.registry import BackendName
from vecrl.engine.backends.worker_options import Wait
from vecrl.simulators.mujoco import make_batch
from vecrl.vector import BatchedVectorEnv, VectorEnv


def serial_cartpole(num_envs: int, same_step: bool = True) -> RunFactory:
    """Same-step auto-reset, or the defaults."""
    makers = [partial(gymnasium.make, "CartPole-v1")] * num_envs
    options: dict[str, Any] = {"autoreset_mode": "same_step"} if same_step else {}
    yield from _stepping(VectorEnv(makers, **options), discrete(num_envs))


def processes_burn(
    num_envs: int, microseconds: float, out: str, num_workers: int = 2, pin_workers: bool = False
) -> RunFactory:
    makers = burners(num_envs, microseconds, out)
    env = VectorEnv(makers, backend="processes", num_workers=num_workers, pin_workers=pin_workers)
    yield from _stepping(env, discrete(num_envs))


def ray_burn(num_envs: int, microseconds: float, out: str, num_workers: int = 2) -> RunFactory:
    makers = burners(num_envs, microseconds, out)
    env = VectorEnv(makers, backend="ray", num_workers=num_workers)
    yield from _stepping(env, discrete(num_envs))


def cheetah(num_envs: int, backend: BackendName = "processes", wait: Wait = "auto") -> RunFactory:
    makers = [partial(gymnasium.make, "HalfCheetah-v5")] * num_envs
    env = VectorEnv(makers, backend=backend, num_workers=2, wait=wait)
    yield from _stepping(env, continuous(num_envs, 6))


def mujoco(name: str, num_envs: int, act_size: int, num_threads: int = 2, tensors: bool = False) -> RunFactory:
    """`mujoco::` tasks, by NumPy arrays with infos as gymnasium's, or by tensors without infos."""
    simulator = make_batch(name, num_envs, num_threads=num_threads, infos=not tensors)
    env, batches = BatchedVectorEnv(simulator, empty_info=tensors), continuous(num_envs, act_size)
    env.reset(seed=0)
    if tensors:
        yield play(env.tensor_step, [torch.from_numpy(batch) for batch in batches])
    else:
        yield play(env.step, batches)
    env.close()


def startup(num_workers: int) -> RunFactory:
    from benchmarks.slow_import import SlowImportEnv

    yield starts(lambda: VectorEnv([SlowImportEnv] * num_workers, backend="processes", num_workers=num_workers))


def killed(on_failure: str) -> RunFactory:
    options: dict[str, Any] = {"backend": "processes", "num_workers": 2, "on_failure": on_failure}
    yield fault_runs(lambda: VectorEnv([FaultEnv] * 8, **options), signal.SIGKILL, on_failure == "restart")


def stuck(step_timeout: float) -> RunFactory:
    options: dict[str, Any] = {"backend": "processes", "num_workers": 2, "on_failure": "restart"}
    yield fault_runs(lambda: VectorEnv([FaultEnv] * 8, step_timeout=step_timeout, **options), signal.SIGSTOP, True)


def _stepping(env: VectorEnv, batches: np.ndarray) -> RunFactory:
    env.reset(seed=0)
    yield play(env.step, batches)
    env.close()
