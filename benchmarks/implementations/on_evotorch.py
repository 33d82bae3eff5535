"""EvoTorch: its serial vector environment, its batched policy, its evaluation of a population."""

from __future__ import annotations

from functools import partial

import gymnasium
import torch
from evotorch import SolutionBatch
from evotorch.neuroevolution import VecGymNE
from evotorch.neuroevolution.net.vecrl import Policy, SyncVectorEnv

from benchmarks.actions import discrete, play
from benchmarks.implementation import Measurement, RunFactory
from benchmarks.population import NETWORK, observations, parameters
from benchmarks.stopwatch import watch

torch.set_num_threads(1)


def serial_cartpole(num_envs: int) -> RunFactory:
    env = SyncVectorEnv([partial(gymnasium.make, "CartPole-v1")] * num_envs, empty_info=True)
    env.reset(seed=0)
    yield play(env.step, discrete(num_envs))
    env.close()


def policy(members: int) -> RunFactory:
    net = Policy(NETWORK)
    net.set_parameters(torch.from_numpy(parameters(members)))
    x = torch.from_numpy(observations(members))

    def run(units: int) -> None:
        with torch.no_grad():
            for _ in range(units):
                net(x)

    yield run


def population_cartpole(members: int, actors: int = 0) -> RunFactory:
    """Runs one episode per member; counts environment steps."""
    problem = VecGymNE("CartPole-v1", NETWORK, num_actors=actors or None, env_config={})
    batch = SolutionBatch(problem, popsize=members)
    values = torch.from_numpy(parameters(members))

    def evaluate() -> None:
        batch.set_values(values)
        problem.evaluate(batch)

    def run(units: int) -> Measurement:
        before = int(problem.status.get("total_interaction_count", 0))
        seconds = watch(evaluate, units)
        return Measurement(seconds, int(problem.status["total_interaction_count"]) - before)

    evaluate()  # the first evaluation builds the actors and their environments
    yield run
    problem.kill_actors()
