"""Every workload that this Python environment can run, at tiny sizes. The table names functions that exist."""

from __future__ import annotations

import ast
import gc
import inspect
from contextlib import contextmanager
from pathlib import Path

import pytest
from benchmarks.environments import ENVIRONMENTS
from benchmarks.implementation import resolve, timed
from benchmarks.records import OURS, Target
from benchmarks.workloads import workloads

WORKLOADS = workloads()
IMPLEMENTATIONS = Path(inspect.getfile(resolve)).parent / "implementations"

TINY = [
    ("by_hand:loop_cartpole", {"num_envs": 2}),
    ("by_hand:loop_cartpole", {"num_envs": 2, "keep": False}),
    ("by_hand:loop_cheetah", {"num_envs": 1}),
    ("by_hand:rollout_cartpole", {"steps": 40}),
    ("by_hand_flat:serial_cartpole", {"num_envs": 2}),
    ("by_hand_flat:vector_env", {"num_envs": 2, "steps": 5}),
    ("by_hand_flat:rollout_cartpole", {"steps": 40}),
    ("by_hand_flat:serial_env", {"num_envs": 2, "steps": 40}),
    ("by_hand:pipes_burn", {"num_envs": 3, "microseconds": 10, "out": "image"}),
    ("by_hand:pipes_cheetah", {"num_envs": 2}),
    ("by_hand_policy:replayed_cartpole", {"num_envs": 2, "steps": 5}),
    ("by_hand_policy:policy_alone", {"num_envs": 2, "steps": 5}),
    ("by_hand_policy:gymnasium_sync", {"num_envs": 2, "steps": 5}),
    ("on_vecrl_acting:vector_env", {"num_envs": 2, "steps": 5}),
    ("on_vecrl_acting:rollout_workers", {"num_envs": 3, "steps": 5}),
    ("on_tensordict_policy:rollout_cartpole", {"library": "vecrl", "steps": 5}),
    *(
        (
            "on_tensordict_policy:rollout_cartpole",
            {"library": "vecrl", "steps": 5, "transforms": 5, "batch": batch, "num_envs": 2},
        )
        for batch in ("SerialEnv", "ParallelEnv")
    ),
    (
        "on_tensordict_policy:rollout_cartpole",
        {"library": "vecrl", "steps": 5, "transforms": 3, "batch": "SerialEnv", "num_envs": 2, "outside": True},
    ),
    ("on_tensordict_policy:bare_loop", {"steps": 5}),
    ("on_tensordict_policy:policy_alone", {"steps": 5}),
    ("on_tensordict_policy:calls", {"library": "vecrl", "what": "rollout"}),
    ("on_tensordict_policy:calls", {"library": "vecrl", "what": "serial"}),
    ("by_hand_torch:policy", {"members": 3, "way": "bmm"}),
    ("by_hand_torch:policy", {"members": 3, "way": "sum"}),
    ("by_hand_mujoco:rollout", {"name": "HalfCheetah-v5", "num_envs": 3, "act_size": 6}),
    ("by_hand_mujoco:python_threads", {"name": "Ant-v5", "num_envs": 3, "act_size": 8}),
    ("on_gymnasium:mujoco", {"name": "HalfCheetah-v5", "num_envs": 2, "act_size": 6, "kind": "sync"}),
    ("on_gymnasium:mujoco", {"name": "HalfCheetah-v5", "num_envs": 1, "act_size": 6, "kind": "async"}),
    ("on_vecrl:mujoco", {"name": "HalfCheetah-v5", "num_envs": 3, "act_size": 6}),
    ("on_vecrl:mujoco", {"name": "Ant-v5", "num_envs": 3, "act_size": 8, "tensors": True}),
    ("on_gymnasium:serial_cartpole", {"num_envs": 2}),
    ("on_gymnasium:batch_cartpole", {"num_envs": 3}),
    ("on_gymnasium:processes_burn", {"num_envs": 2, "microseconds": 10, "out": "floats"}),
    ("on_gymnasium:processes_cheetah", {"num_envs": 1}),
    ("on_gymnasium:startup", {"num_workers": 1, "method": "spawn"}),
    ("on_vecrl:serial_cartpole", {"num_envs": 2}),
    ("on_vecrl:processes_burn", {"num_envs": 3, "microseconds": 10, "out": "image"}),
    ("on_vecrl:cheetah", {"num_envs": 2}),
    ("on_vecrl:startup", {"num_workers": 1}),
    ("on_vecrl:killed", {"on_failure": "raise"}),
    ("on_vecrl:killed", {"on_failure": "restart"}),
    ("on_vecrl:stuck", {"step_timeout": 0.5}),
    ("on_gymnasium:rollout_cartpole", {"num_envs": 2, "steps": 5}),
    ("on_tensordict:rollout_cartpole", {"library": "vecrl", "steps": 40}),
    ("on_tensordict:rollout_cartpole", {"library": "vecrl", "steps": 40, "ready": True}),
    ("on_tensordict:rollout_cartpole", {"library": "vecrl", "steps": 40, "transformed": True}),
    ("on_tensordict:rollout_pendulum", {"library": "vecrl", "num_envs": 3, "steps": 5}),
    ("on_tensordict:native", {"name": "CartPole-v1", "num_envs": 3, "steps": 5}),
    ("on_tensordict:native_dialect_1", {"name": "CartPole-v1", "num_envs": 3, "steps": 5}),
    ("on_tensordict:pixels", {"library": "vecrl", "num_envs": 2}),
    ("on_tensordict:normed", {"library": "vecrl", "num_envs": 3}),
    ("by_hand_torch:pixels", {"num_envs": 2}),
    ("by_hand_torch:pixels", {"num_envs": 2, "antialias": False}),
    ("by_hand:normed", {"num_envs": 3}),
    ("on_gymnasium:normed", {"num_envs": 3}),
    ("on_tensordict:serial_cartpole", {"library": "vecrl", "num_envs": 3, "steps": 5}),
    ("on_tensordict:processes_burn", {"library": "vecrl", "num_envs": 4, "microseconds": 10, "out": "image"}),
    ("on_tensordict:startup", {"library": "vecrl", "num_workers": 1}),
    ("on_tensordict:peak", {"library": "vecrl", "num_envs": 2, "steps": 400}),
    ("on_venv:stepping", {"library": "vecrl", "kind": "shmem", "num_envs": 3, "num_workers": 2}),
    ("on_venv:waiting", {"library": "vecrl", "kind": "subproc", "num_envs": 4, "milliseconds": 0.1}),
    ("on_venv:normed", {"library": "vecrl", "num_envs": 3}),
    ("on_vecrl_native:batch_cartpole", {"num_envs": 3, "compiled": False}),
    ("on_vecrl_native:rollout_cartpole", {"num_envs": 3, "steps": 4, "compiled": False, "chunk": 2}),
    ("on_vecrl_states:save_and_load", {"num_envs": 3, "what": "save"}),
    ("on_vecrl_states:save_and_load", {"num_envs": 3, "what": "load"}),
    ("on_vecrl_states:save_and_load", {"num_envs": 3, "what": "disk"}),
    ("on_vecrl_policy:policy", {"members": 3}),
    ("on_vecrl_policy:population_cartpole", {"members": 3, "backend": "processes", "num_workers": 2}),
    ("on_vecrl_policy:population_native", {"members": 3, "compiled": False}),
]


@pytest.mark.ray
def test_workloads_run_on_ray():
    test_workloads_run("on_vecrl:ray_burn", {"num_envs": 3, "microseconds": 10, "out": "image"})
    test_workloads_run("on_vecrl_policy:population_cartpole", {"members": 3, "backend": "ray", "num_workers": 2})


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize(("entry", "parameters"), TINY, ids=lambda value: value if isinstance(value, str) else "")
def test_workloads_run(entry, parameters):
    with contextmanager(resolve(f"benchmarks.implementations.{entry}"))(**parameters) as run:
        measurement = timed(run, 2)
    assert measurement.seconds > 0
    assert measurement.units >= 2


@pytest.mark.filterwarnings("ignore")  # from gymnasium, when its leftover objects are collected
def test_a_failing_peer_is_reported():
    test_workloads_run("on_gymnasium:struck", {"number": 9})
    gc.collect()


def test_every_benchmark_function_is_covered():
    named = {c.entry for w in WORKLOADS for c in w.implementations if c.environment == "main"}
    assert named == {entry for entry, _ in TINY} | {"on_gymnasium:struck"}


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda w: w.name)
def test_implementations_accept_the_arguments_of_the_table(workload):
    for implementation in workload.implementations:
        assert implementation.environment in ENVIRONMENTS
        needed, known = _arguments(implementation.entry)
        inputs = {*workload.parameters, *implementation.parameters}
        assert needed <= inputs <= known, implementation.name


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda w: w.name)
def test_targets_and_parts_name_contestants(workload):
    names = [c.name for c in workload.implementations]
    assert set(workload.parts) <= {*names} - {OURS}
    assert len(names) == len(set(names))
    assert OURS not in names[1:]
    for target in workload.targets:
        if isinstance(target, Target):
            assert set(target.rivals) <= {*names} - {OURS}


def test_workload_names_are_unique():
    names = [w.name for w in WORKLOADS]
    assert len(names) == len(set(names))


def _arguments(entry: str) -> tuple[set[str], set[str]]:
    """Returns the required argument names of a function and all names it accepts. Reads the source, since most modules
    cannot be imported here."""
    module, _, name = entry.partition(":")
    tree = ast.parse((IMPLEMENTATIONS / f"{module}.py").read_text())
    function = next(node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == name)
    names = [argument.arg for argument in function.args.args]
    return set(names[: len(names) - len(function.args.defaults)]), set(names)
