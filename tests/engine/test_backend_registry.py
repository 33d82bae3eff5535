"""A backend that vecrl does not know works in every interface once it is registered."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from tests.fixtures.equality import assert_same
from tests.fixtures.gym_envs import counting

from vecrl.engine.backends.registry import (
    backend_entry,
    backend_names,
    register_backend,
    unregister_backend,
)
from vecrl.engine.backends.serial import SerialBackend
from vecrl.engine.backends.worker_options import WorkerOptions
from vecrl.engine.pool import Pool
from vecrl.engine.worker import Command
from vecrl.envs import GymEnv, SerialEnv
from vecrl.policy.population import PopulationEvaluator
from vecrl.testing import BackendConformance
from vecrl.vector import RolloutWorkers, VectorEnv
from vecrl.vector.env_fns import split_env_fns
from vecrl.venv import DummyVectorEnv
from vecrl.venv.base import BaseVectorEnv

NAME = "toy"


class ToyBackend(SerialBackend):
    """A serial backend that counts its broadcasts and keeps its options."""

    made: list[ToyBackend] = []

    def __init__(self, worker_specs: Any, options: WorkerOptions):
        self.options = options
        self.broadcasts = 0
        super().__init__(worker_specs, options)
        self.made.append(self)

    def broadcast(self, command: Command) -> None:
        self.broadcasts += 1
        super().broadcast(command)


@pytest.fixture(autouse=True)
def _registered() -> Iterator[None]:
    register_backend(NAME, lambda: ToyBackend, in_process=True, runs_inline=True)
    ToyBackend.made.clear()
    yield
    unregister_backend(NAME)


class TestToy(BackendConformance):
    backend = NAME


def test_options_reach_the_backend() -> None:
    options: dict[str, Any] = {"start_method": "spawn", "threads_per_worker": 3, "preload": ["json"]}
    Pool(split_env_fns(counting(2), NAME, None), NAME, **options, pin_workers=True).close()
    assert ToyBackend.made[0].options == WorkerOptions("spawn", 3, ["json"], True)
    assert ToyBackend.made[0].num_workers == 1, "an inline backend has one worker by default"


def trajectory(envs: Any) -> list[Any]:
    with envs:
        return [envs.reset(seed=3), *(envs.step(np.ones(3, int)) for _ in range(4))]


def test_vector_environments_use_it() -> None:
    assert_same(trajectory(VectorEnv(counting(3), backend=NAME)), trajectory(VectorEnv(counting(3), backend="serial")))
    assert ToyBackend.made[0].broadcasts > 4


def test_tianshou_environments_use_it() -> None:
    def play(envs: Any) -> list[Any]:
        results = [envs.reset(seed=3), envs.step(np.ones(3, int)), envs.step(np.ones(2, int), id=[2, 0])]
        envs.close()
        return results

    assert_same(play(BaseVectorEnv(counting(3), backend=NAME)), play(DummyVectorEnv(counting(3))))
    assert ToyBackend.made[0].num_workers == 1


def test_populations_use_it() -> None:
    def evaluate(backend: str) -> Any:
        net = "Linear(obs_length, act_length)"
        with PopulationEvaluator("CartPole-v1", net, 4, seed=1, backend=backend, subbatch_size=2) as evaluator:
            return evaluator(torch.zeros(4, evaluator.parameter_length)).returns.tolist()

    assert evaluate(NAME) == evaluate("serial")
    assert ToyBackend.made


def test_tensordict_environments_and_rollouts_use_it() -> None:
    with SerialEnv(2, lambda: GymEnv("CartPole-v1"), backend=NAME) as env:
        assert env.rollout(3)["next", "reward"].shape[0] == 2
    with RolloutWorkers(counting(2), lambda obs: np.ones(len(obs), int), backend=NAME) as workers:
        assert workers.rollout(3).reward.shape == (3, 2)
    assert len(ToyBackend.made) == 2


def test_unknown_backends_raise_with_the_registered_names() -> None:
    assert backend_names() == ["serial", "threads", "processes", "ray", NAME]
    with pytest.raises(ValueError, match="'processes', 'ray' or 'toy', got 'toys'"):
        backend_entry("toys")
    unregister_backend(NAME)
    with pytest.raises(ValueError, match="'processes', 'ray' or 'auto', got 'toy'"):
        VectorEnv(counting(2), backend=NAME)


def test_inline_backends_outside_the_process_raise() -> None:
    with pytest.raises(ValueError, match="runs_inline=True together with steps_inline=True for the backend 'odd'"):
        register_backend("odd", lambda: ToyBackend, steps_inline=True)
    with pytest.raises(ValueError, match="in_process=True together with runs_inline=True for the backend 'odd'"):
        register_backend("odd", lambda: ToyBackend, runs_inline=True)
    assert "odd" not in backend_names()


def test_names_that_are_registered_are_replaced_on_request_only() -> None:
    for name in ("serial", NAME):
        with pytest.raises(ValueError, match=f"not registered, got '{name}'. .* replace=True"):
            register_backend(name, lambda: ToyBackend, in_process=True)
    register_backend(NAME, lambda: SerialBackend, in_process=True, replace=True)
    assert not backend_entry(NAME).runs_inline


@pytest.mark.parametrize("load", [ToyBackend, "toy:ToyBackend", None, lambda specs, options: ToyBackend])
def test_loaders_that_are_no_functions_raise(load: Any) -> None:
    with pytest.raises(TypeError, match="load of the backend 'odd' to be a function"):
        register_backend("odd", load)


def test_empty_names_raise() -> None:
    for name in ("", None):
        with pytest.raises(ValueError, match="name of a backend as text"):
            register_backend(name, lambda: ToyBackend)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("load", "message"),
    [
        (lambda: None, "to return the class of the backend, got None"),
        (lambda: type("Odd", (), {"send": print}), "got Odd without attach, broadcast, receive, timed_out, kill"),
        (
            lambda: type("Odd", (SerialBackend,), {"__init__": lambda self: None}),
            r"to take \(worker_specs, options\), got",
        ),
    ],
)
def test_incomplete_backends_are_named_when_they_are_used(load: Any, message: str) -> None:
    register_backend(NAME, load, in_process=True, replace=True)
    with pytest.raises(TypeError, match=message):
        VectorEnv(counting(2), backend=NAME)
