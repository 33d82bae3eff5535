"""Workloads with a policy in the loop: the time that a library adds to the policy and to the simulator.

Both are timed alone in the same rounds, and subtracted. Two more workloads count the Python calls that vecrl makes in a
step, since the load of the machine does not change that number.
"""

from __future__ import annotations

from benchmarks.harness import Implementation as C
from benchmarks.records import OURS, Beyond, Limit, Workload

POLICY, SIMULATOR = "policy alone", "simulator alone"
TENSORDICTS = "on_tensordict_policy"


def with_policies() -> list[Workload]:
    """Returns the workloads in the order of the table."""
    return [
        _gym_env(1000, False),
        _gym_env(1000, True),
        _serial_env(8, 50),
        _rollout_workers(8, 100),
        *(_vector_env(n, 200) for n in (8, 64)),
        _calls("rollout", "a step of GymEnv.rollout with a policy", 30),
        _calls("serial", "SerialEnv.step of 2 environments, each under two transforms", 100),
    ]


def _gym_env(steps: int, transformed: bool) -> Workload:
    entry, options = f"{TENSORDICTS}:rollout_cartpole", {"transformed": transformed}
    return Workload(
        name=f"acting-gymenv{'-transformed' if transformed else ''}",
        title=f"GymEnv on CartPole-v1{', through five transforms' * transformed}, a rollout of {steps:,} steps past "
        "ends under an MLP 4-64-2",
        implementations=[
            C(OURS, "main", entry, {"library": "vecrl", **options}),
            C(POLICY, "main", f"{TENSORDICTS}:policy_alone"),
            C(SIMULATOR, "main", "by_hand_policy:replayed_cartpole"),
            C("TorchRL", "torchrl", entry, {"library": "torchrl", **options}),
        ],
        parameters={"steps": steps},
        targets=[] if transformed else [Beyond(60.0)],
        rows=steps,
        quick=not transformed,
        parts=(POLICY, SIMULATOR),
    )


def _serial_env(n: int, steps: int) -> Workload:
    entry = f"{TENSORDICTS}:rollout_cartpole"
    options = {"transformed": True}
    return Workload(
        name=f"acting-serialenv-transformed-{n}",
        title=f"SerialEnv of {n} GymEnvs on CartPole-v1, each under five transforms, a rollout of {steps} steps past "
        "ends under an MLP 4-64-2",
        implementations=[
            C(OURS, "main", entry, {"library": "vecrl", **options}),
            C(POLICY, "main", f"{TENSORDICTS}:policy_alone"),
            C(SIMULATOR, "main", "by_hand_policy:replayed_cartpole"),
            C("TorchRL", "torchrl", entry, {"library": "torchrl", **options}),
        ],
        parameters={"num_envs": n, "steps": steps},
        targets=[Beyond(120.0)],
        rows=n * steps,
        quick=True,
        parts=(POLICY, SIMULATOR),
    )


def _rollout_workers(n: int, steps: int) -> Workload:
    """The parts are those of one worker, which does half of the rows."""
    half = {"num_envs": n // 2}
    return Workload(
        name=f"acting-rolloutworkers-{n}",
        title=f"RolloutWorkers of {n} CartPole-v1 over 2 workers (TorchRL: MultiSyncCollector), {steps} steps under an "
        "MLP 4-64-2",
        implementations=[
            C(OURS, "main", "on_vecrl_acting:rollout_workers", {"num_envs": n}),
            C(POLICY, "main", "by_hand_policy:policy_alone", half),
            C(SIMULATOR, "main", "by_hand_policy:replayed_cartpole", half),
            C("TorchRL", "torchrl", f"{TENSORDICTS}:collected_cartpole", {"num_envs": n}),
        ],
        parameters={"steps": steps},
        rows=n * steps,
        parts=(POLICY, SIMULATOR),
    )


def _vector_env(n: int, steps: int) -> Workload:
    return Workload(
        name=f"acting-vectorenv-{n}",
        title=f"VectorEnv of {n} CartPole-v1 in one process, same-step auto-reset, {steps} steps under an MLP 4-64-2",
        implementations=[
            C(OURS, "main", "on_vecrl_acting:vector_env"),
            C(POLICY, "main", "by_hand_policy:policy_alone"),
            C(SIMULATOR, "main", "by_hand_policy:replayed_cartpole"),
            C("gymnasium Sync", "main", "by_hand_policy:gymnasium_sync"),
        ],
        parameters={"num_envs": n, "steps": steps},
        rows=n * steps,
        quick=n == 8,
        parts=(POLICY, SIMULATOR),
    )


def _calls(what: str, title: str, most: int) -> Workload:
    entry = f"{TENSORDICTS}:calls"
    return Workload(
        name=f"calls-{what}",
        title=f"Python calls of the library's own functions in {title}",
        implementations=[
            C(OURS, "main", entry, {"library": "vecrl"}, fresh=True),
            C("TorchRL", "torchrl", entry, {"library": "torchrl"}, fresh=True),
        ],
        parameters={"what": what},
        targets=[Limit(most)],
        rounds=1,
        quick=True,
        unit=" calls",
    )
