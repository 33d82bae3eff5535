"""vecrl's batched policies, and its evaluation of populations."""

from __future__ import annotations

from typing import Any

import torch

from benchmarks.implementation import Measurement, RunFactory
from benchmarks.population import NETWORK, observations, parameters
from benchmarks.stopwatch import watch
from vecrl.policy import Policy
from vecrl.policy.population import PopulationEvaluator

torch.set_num_threads(1)


def policy(members: int) -> RunFactory:
    """The forward pass alone, parameters set beforehand."""
    net = Policy(NETWORK)
    net.set_parameters(torch.from_numpy(parameters(members)))
    x = torch.from_numpy(observations(members))

    def run(units: int) -> None:
        with torch.no_grad():
            for _ in range(units):
                net(x)

    yield run


def population_cartpole(members: int, backend: str, num_workers: int | None = None) -> RunFactory:
    """Runs one episode per member in Python environments; counts environment steps."""
    yield from _evaluating("CartPole-v1", members, backend=backend, num_workers=num_workers)


def population_native(members: int, compiled: bool = True) -> RunFactory:
    """Runs one episode per member in one batched simulator; counts environment steps."""
    yield from _evaluating("native::CartPole-v1", members, compile=compiled)


def _evaluating(env: str, members: int, **settings: Any) -> RunFactory:
    values = torch.from_numpy(parameters(members))
    with PopulationEvaluator(env, NETWORK, members, seed=0, **settings) as evaluate:
        evaluate(values)

        def run(units: int) -> Measurement:
            steps = 0

            def once() -> None:
                nonlocal steps
                steps += evaluate(values).interactions

            return Measurement(watch(once, units), steps)

        yield run
