"""Workloads with a policy in the loop: the time that a library adds to the policy and to the simulator.

Where a workload has parts, both are timed alone in the same rounds, and subtracted. Two more workloads count the Python
calls that vecrl makes in a step, since the load of the machine does not change that number.
"""

from __future__ import annotations

from benchmarks.harness import Implementation as C
from benchmarks.records import OURS, Beyond, Limit, Target, Workload

OUTSIDE = "vecrl, transforms over SerialEnv"
POLICY, SIMULATOR = "policy alone", "simulator alone"
FLOOR = "flat loop"
FLOORS = {1: (0.8, 1.35), 4: (0.91, 1.1), 8: (0.91, 1.03), 64: (0.95, 1.03)}
"""Numbers of environments, and how fast VectorEnv must be beside the flat loop and beside gymnasium."""
STEPPED = "vecrl, stepped from the caller"
TENSORDICTS = "on_tensordict_policy"


def with_policies() -> list[Workload]:
    """Returns the workloads in the order of the table."""
    return [
        _gym_env(1000, 0),
        _gym_env(1000, 5),
        _serial_env(8, 50),
        _parallel_env(8, 50),
        _collector(8, 800),
        _rollout_workers(16, 100),
        *(_vector_env(n, 200) for n in FLOORS),
        _calls("rollout", "a step of GymEnv.rollout with a policy", 30),
        _calls("serial", "SerialEnv.step of 2 environments, each under two transforms", 100),
    ]


def _gym_env(steps: int, transforms: int) -> Workload:
    entry, options = f"{TENSORDICTS}:rollout_cartpole", {"transforms": transforms}
    return Workload(
        name=f"acting-gymenv{'-transformed' if transforms else ''}",
        title=f"GymEnv on CartPole-v1{', through five transforms' * bool(transforms)}, a rollout of {steps:,} steps "
        "past ends under an MLP 4-64-2",
        implementations=[
            C(OURS, "main", entry, {"library": "vecrl", **options}),
            C(POLICY, "main", f"{TENSORDICTS}:policy_alone"),
            C(SIMULATOR, "main", "by_hand_policy:replayed_cartpole"),
            C("bare loop", "main", f"{TENSORDICTS}:bare_loop"),
            *([] if transforms else [C(FLOOR, "main", "by_hand_flat:rollout_cartpole")]),
            C("TorchRL", "torchrl", entry, {"library": "torchrl", **options}),
        ],
        parameters={"steps": steps},
        targets=[Target(("bare loop",), 0.6), Target(("TorchRL",), 6.0)]
        if transforms
        else [Target(("bare loop",), 0.8), Target((FLOOR,), 0.8), Target(("TorchRL",), 4.0), Beyond(25.0)],
        rows=steps,
        quick=not transforms,
        parts=(POLICY, SIMULATOR),
    )


def _serial_env(n: int, steps: int) -> Workload:
    entry = f"{TENSORDICTS}:rollout_cartpole"
    options = {"transforms": 3, "batch": "SerialEnv", "num_envs": n}
    parts = {"num_envs": n}
    return Workload(
        name=f"acting-serialenv-transformed-{n}",
        title=f"SerialEnv of {n} GymEnvs on CartPole-v1, each under three transforms, a rollout of {steps} steps past "
        "ends under an MLP 4-64-2",
        implementations=[
            C(OURS, "main", entry, {"library": "vecrl", **options}),
            C(OUTSIDE, "main", entry, {"library": "vecrl", **options, "outside": True}),
            C(FLOOR, "main", "by_hand_flat:serial_env", parts),
            C(POLICY, "main", f"{TENSORDICTS}:policy_alone", parts),
            C(SIMULATOR, "main", "by_hand_policy:replayed_cartpole", parts),
            C("TorchRL", "torchrl", entry, {"library": "torchrl", **options}),
        ],
        parameters={"steps": steps},
        targets=[Target(("TorchRL",), 10.0), Target((FLOOR,), 0.71), Beyond((60.0 + 10.0 * n) / n)],
        rows=n * steps,
        quick=True,
        parts=(POLICY, SIMULATOR),
    )


def _parallel_env(n: int, steps: int) -> Workload:
    entry = f"{TENSORDICTS}:rollout_cartpole"
    options = {"transforms": 3, "batch": "ParallelEnv", "num_envs": n}
    peers = {"TorchRL, 8 processes": {}, "TorchRL, 2 processes": {"processes": 2}}
    return Workload(
        name=f"acting-parallelenv-transformed-{n}",
        title=f"ParallelEnv of {n} GymEnvs on CartPole-v1, each under three transforms, over 2 workers, a rollout of "
        f"{steps} steps past ends under an MLP 4-64-2",
        implementations=[
            C(OURS, "main", entry, {"library": "vecrl", **options, "envs_per_worker": n // 2}),
            *(C(peer, "torchrl", entry, {"library": "torchrl", **options, **how}) for peer, how in peers.items()),
        ],
        parameters={"steps": steps},
        targets=[Target(tuple(peers), 10.0)],
        rows=n * steps,
    )


def _collector(n: int, frames: int) -> Workload:
    entry = "on_torchrl_collector:ppo"
    return Workload(
        name=f"acting-collector-{n}",
        title=f"TorchRL's Collector over SerialEnv of {n} GymEnvs on CartPole-v1: {frames} frames, with PPO on them "
        "unless it collects only",
        implementations=[
            C(OURS, "simulators", entry, {"library": "vecrl"}),
            C("vecrl, collecting only", "simulators", entry, {"library": "vecrl", "train": False}),
            C("TorchRL", "simulators", entry, {"library": "torchrl"}),
            C("TorchRL, collecting only", "simulators", entry, {"library": "torchrl", "train": False}),
        ],
        parameters={"num_envs": n, "frames": frames},
        targets=[Target(("TorchRL",), 3.0)],
        rows=frames,
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
            C(STEPPED, "main", "on_vecrl_acting:vector_env", {"num_envs": n, "num_workers": 2}),
            C("TorchRL", "torchrl", f"{TENSORDICTS}:collected_cartpole", {"num_envs": n}),
        ],
        parameters={"steps": steps},
        targets=[Target((STEPPED,), 5.0)],
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
            C(FLOOR, "main", "by_hand_flat:vector_env"),
            C("gymnasium Sync", "main", "by_hand_policy:gymnasium_sync"),
        ],
        parameters={"num_envs": n, "steps": steps},
        targets=[Target((FLOOR,), FLOORS[n][0]), Target(("gymnasium Sync",), FLOORS[n][1])],
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
