"""The table of frozen trajectories.

A case is one trajectory and the ways of recording it that must give equal values: backends, classes, and calls that
mean the same. The first way is the one that is written to the file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

from tests.frozen import on_arrays as arrays
from tests.frozen import on_tensordicts as tensordicts
from tests.frozen.digests import Trace
from tests.frozen.tasks import INEXACT, NATIVE

GYMNASIUM = ("CartPole-v1", "Pendulum-v1", "HalfCheetah-v5")
EXACT = tuple(name for name in GYMNASIUM if name not in INEXACT)
MODES = ("next_step", "same_step", "disabled")
BACKENDS: dict[str, dict[str, Any]] = {
    "serial": {"backend": "serial", "num_workers": 1},
    "threads": {"backend": "threads", "num_workers": 2},
    "processes": {"backend": "processes", "num_workers": 2},
    "ray": {"backend": "ray", "num_workers": 2},
}
IDS: dict[str, dict[str, Any]] = {
    "dummy": {"kind": "DummyVectorEnv"},
    "subproc": {"kind": "SubprocVectorEnv", "num_workers": 2},
    "shmem": {"kind": "ShmemVectorEnv"},
    "ray": {"kind": "RayVectorEnv", "num_workers": 2},
}
WAITING: dict[str, dict[str, Any]] = {
    "dummy": {"kind": "DummyVectorEnv"},
    "dummy, waiting for 2": {"kind": "DummyVectorEnv", "wait_num": 2},
    "subproc, timeout": {"kind": "SubprocVectorEnv", "timeout": 0.001},
    "shmem, waiting for 1": {"kind": "ShmemVectorEnv", "wait_num": 1},
}
BATCHES: dict[str, dict[str, Any]] = {
    "serial": {"kind": "serial"},
    "serial, one by one": {"kind": "serial", "envs_per_worker": 1},
    "threads": {"kind": "parallel", "backend": "threads", "envs_per_worker": 2},
    "processes": {"kind": "parallel", "envs_per_worker": 2},
    "ray": {"kind": "parallel", "backend": "ray", "envs_per_worker": 2},
}
WAYS = ("actions", "policy", "steps")
ENDS: dict[str, dict[str, Any]] = {
    "past ends": {"break_when_any_done": False},
    "to the first end": {"break_when_any_done": True},
    "to the last end": {"break_when_all_done": True},
}


Ways = dict[str, Callable[[], Trace]]


@dataclass(frozen=True, slots=True)
class Case:
    """A trajectory.

    Attributes:
        ways: functions that record it, by name. Names that start with "ray" need Ray.
        exact: whether its floats are equal on every CPU after conversion to float32.
    """

    ways: Ways
    exact: bool


def cases() -> dict[str, Case]:
    """Returns all cases by name."""
    found: dict[str, Case] = {}
    for part in (_vector, _native, _venv, _classic, _workers, _single, _batches, _transformed):
        for key, case in part():
            assert key not in found
            found[key] = case
    return found


def _over(places: dict[str, dict[str, Any]], record: Callable[..., Trace], *args: Any, ray: bool = False) -> Ways:
    """Returns a way for each place; on Ray only if `ray`, since its actors take seconds to start."""
    return {
        place: partial(record, *args, **options)
        for place, options in places.items()
        if ray or not place.startswith("ray")
    }


def _vector() -> Iterator[tuple[str, Case]]:
    for name, mode in product(GYMNASIUM, MODES):
        ways = _over(BACKENDS, arrays.vector, name, mode, ray=(name, mode) == ("CartPole-v1", "same_step"))
        ways["AsyncVectorEnv"] = partial(arrays.asynchronous, name, mode, num_workers=2)
        yield f"vector {name} {mode}", Case(ways, name in EXACT)
    for name, count in (("CartPole-v1", None), ("CartPole-v1", 2), ("Pendulum-v1", 1), ("HalfCheetah-v5", 2)):
        ways = _over(BACKENDS, arrays.counted, name, count, None, ray=name == "Pendulum-v1")
        yield f"vector SyncVectorEnv {name} num_episodes={count}", Case(ways, name in EXACT)
    for name in EXACT:
        tensors = {"serial": partial(arrays.counted, name, 2, "cpu")}
        yield f"vector SyncVectorEnv {name} device=cpu", Case(tensors, True)
        yield f"vector make_vector_env gym::{name}", Case({"serial": partial(arrays.wrapped, name)}, True)


def _native() -> Iterator[tuple[str, Case]]:
    for name, mode in product(NATIVE, MODES):
        yield f"native {name} {mode}", Case({"batch": partial(arrays.native, name, mode)}, False)
    for mode in MODES[:2]:
        counted = {"batch": partial(arrays.native, "CartPole-v1", mode, num_episodes=2, episode_stats=True)}
        yield f"native CartPole-v1 {mode} num_episodes=2", Case(counted, False)
    for name in NATIVE:
        yield f"native {name} rollout", Case({"NativeEnv": partial(tensordicts.native, name)}, False)
    yield "native PendulumEnv", Case({"steps": tensordicts.pendulums}, False)


def _venv() -> Iterator[tuple[str, Case]]:
    for name in GYMNASIUM:
        yield f"venv {name}", Case(_over(IDS, arrays.ids, name, ray=name == "CartPole-v1"), name in EXACT)
    for name in EXACT:
        yield f"venv {name} by environment", Case(_over(WAITING, arrays.waiting, name), True)
        yield f"venv VectorEnvNormObs {name}", Case({"dummy": partial(arrays.normalized, name)}, True)


def _classic() -> Iterator[tuple[str, Case]]:
    for name in GYMNASIUM:
        yield f"classic {name}", Case({"GymEnv": partial(arrays.single, name)}, name in EXACT)
    scaled = {"running_normalize_states": True, "scale_reward": True}
    for name in EXACT:
        yield f"classic {name} scaled", Case({"GymEnv": partial(arrays.single, name, **scaled)}, True)
        yield f"classic {name} over TensorDicts", Case({"from_classic": partial(arrays.converted, name)}, True)
    fixed = {"GymEnv": partial(arrays.single, "Pendulum-v1", fixed_normalize_states=True)}
    yield "classic Pendulum-v1 fixed", Case(fixed, True)


def _workers() -> Iterator[tuple[str, Case]]:
    for name in GYMNASIUM:
        yield (
            f"RolloutWorkers {name}",
            Case(_over(BACKENDS, arrays.rollouts, name, ray=name == "Pendulum-v1"), name in EXACT),
        )
    ways = _over(BACKENDS, arrays.population, "CartPole-v1", ray=True)
    yield "PopulationEvaluator CartPole-v1", Case(ways, True)
    yield "PopulationEvaluator Pendulum-v1", Case(_over(BACKENDS, arrays.population, "Pendulum-v1"), False)
    fused = {"batch": partial(arrays.population, "native::CartPole-v1")}
    yield "PopulationEvaluator native::CartPole-v1", Case(fused, False)


def _single() -> Iterator[tuple[str, Case]]:
    for name, stop in product(GYMNASIUM, (False, True)):
        ways = {method_name: partial(tensordicts.single, name, method_name, stop) for method_name in WAYS}
        yield f"GymEnv {name} rollout {'to the first end' if stop else 'past ends'}", Case(ways, name in EXACT)
    yield "TicTacToeEnv rollout", Case({"serial": tensordicts.games}, True)


def _batches() -> Iterator[tuple[str, Case]]:
    for name in GYMNASIUM:
        ways = _over(BATCHES, tensordicts.rolled_batch, name, ray=name == "Pendulum-v1")
        ways["processes, policy"] = partial(tensordicts.rolled_batch, name, way="policy", **BATCHES["processes"])
        ways |= {
            f"serial, {method_name}": partial(tensordicts.rolled_batch, name, way=method_name, kind="serial")
            for method_name in WAYS[1:]
        }
        ways["GymEnv(num_envs=...)"] = partial(tensordicts.rolled_vector, name)
        yield f"batch {name} rollout", Case(ways, name in EXACT)
    for name in EXACT:
        yield f"batch {name} masks", Case(_over(BATCHES, tensordicts.partly, name, ray=name == "CartPole-v1"), True)
        yield f"batch {name} random actions", Case(_over(BATCHES, tensordicts.drawn_batch, name), True)
        for end, arguments in ENDS.items():
            yield f"batch {name} policy {end}", Case(_over(BATCHES, tensordicts.steered, name, arguments), True)


def _transformed() -> Iterator[tuple[str, Case]]:
    """Returns a batch under transforms, or a batch of environments that each have transforms."""
    for name in EXACT:
        places = {place: {"inside": False, **options} for place, options in BATCHES.items()}
        places |= {f"{place}, inside": {"inside": True, **options} for place, options in BATCHES.items()}
        yield f"transformed {name} rollout", Case(_over(places, tensordicts.rolled_batch, name), True)
        yield f"transformed {name} masks", Case(_over(places, tensordicts.partly, name), True)
        few = {place: options for place, options in places.items() if place.startswith("serial")}
        for end, arguments in ENDS.items():
            yield f"transformed {name} policy {end}", Case(_over(few, tensordicts.steered, name, arguments), True)
        yield f"transformed VecNorm {name}", Case({"serial": partial(tensordicts.learnt, name)}, False)
