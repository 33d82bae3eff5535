"""vecrl's native tasks: batched torch simulators."""

from __future__ import annotations

import torch

from benchmarks.actions import discrete, play
from benchmarks.implementation import Measurement, RunFactory
from benchmarks.population import parameters, split
from benchmarks.stopwatch import watch
from vecrl.simulators.array_library import ArrayLibrary
from vecrl.simulators.native import make_native
from vecrl.simulators.native.fused_rollout import FusedRollout
from vecrl.vector.batched_vector_env import BatchedVectorEnv

torch.set_num_threads(1)


def batch_cartpole(num_envs: int, compiled: bool, arrays: ArrayLibrary | None = None) -> RunFactory:
    """One step at a time, with same-step auto-reset and actions as tensors."""
    simulator = make_native("CartPole-v1", num_envs, compile=compiled, arrays=arrays)
    env = BatchedVectorEnv(simulator, autoreset_mode="same_step")
    env.reset(seed=0)
    yield play(env.tensor_step, torch.from_numpy(discrete(num_envs)))
    env.close()


def rollout_cartpole(num_envs: int, steps: int, compiled: bool = True, chunk: int = 10) -> RunFactory:
    """`steps` steps of all rows under one policy, in compiled regions of `chunk` steps; a unit is the whole rollout."""
    simulator = make_native("CartPole-v1", num_envs, compile=compiled)
    simulator.reset([*range(num_envs)])
    rollout = FusedRollout(simulator, _act, chunk=chunk)
    weights = tuple(t.contiguous() for t in split(torch.from_numpy(parameters(256)[-1])))

    def once() -> None:
        with torch.no_grad():
            rollout(steps, weights)

    once()
    yield lambda units: Measurement(watch(once, units), units)


def _act(obs: torch.Tensor, weights: tuple[torch.Tensor, ...]) -> torch.Tensor:
    first, first_bias, second, second_bias = weights
    hidden = torch.tanh(torch.addmm(first_bias, obs, first.t()))
    return torch.addmm(second_bias, hidden, second.t()).argmax(-1)
