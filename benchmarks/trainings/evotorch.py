"""PGPE of EvoTorch on its vector environments, on vecrl's, and with vecrl's evaluation of populations."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from evotorch import Problem
from evotorch.algorithms import PGPE
from evotorch.neuroevolution import VecGymNE

from vecrl.policy import PopulationEvaluator
from vecrl.vector import make_vector_env

from .log import Log

NETWORK = "Linear(obs_length, 16) >> Tanh() >> Linear(16, act_length)"
WAYS: dict[str, Callable[[str], Any]] = {
    "EvoTorch VecGymNE": lambda env: env,
    "vecrl, environments": lambda env: partial(make_vector_env, f"{_prefix(env)}{env}"),
}
EVALUATOR = "vecrl, PopulationEvaluator"


def _prefix(env: str) -> str:
    return "native::" if env == "CartPole-v1" else "mujoco::"


class _Evaluated(Problem):
    """A population that vecrl evaluates."""

    def __init__(self, env: str, popsize: int, seed: int):
        self.evaluator = PopulationEvaluator(f"{_prefix(env)}{env}", NETWORK, popsize, obs_norm=True, seed=seed)
        super().__init__(
            "max", solution_length=self.evaluator.parameter_length, initial_bounds=(-0.01, 0.01), seed=seed
        )

    def _evaluate_batch(self, solutions: Any) -> None:
        solutions.set_evals(torch.as_tensor(self.evaluator(solutions.values).fitness, dtype=torch.float32))


def train(way: str, seed: int, log: Log, *, env: str, popsize: int, generations: int) -> None:
    """Searches for so many generations."""
    if way == EVALUATOR:
        problem: Any = _Evaluated(env, popsize, seed)
        problem._evaluate_batch = log.timed(problem._evaluate_batch)
    else:
        problem = VecGymNE(WAYS[way](env), NETWORK, observation_normalization=True)
        problem.manual_seed(seed)
        problem._evaluate_all = log.timed(problem._evaluate_all)
    searcher = PGPE(problem, popsize=popsize, center_learning_rate=0.3, stdev_learning_rate=0.1, radius_init=1.0)
    log.start()
    for generation in range(1, generations + 1):
        searcher.step()
        log.add(generation * popsize, float(searcher.status["mean_eval"]))
