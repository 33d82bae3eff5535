"""Workloads on gymnasium's MuJoCo tasks: `mujoco::` beside the other libraries and the rollouts of MuJoCo itself.

Random actions, same-step auto-reset where a library has it. `mujoco.rollout` computes the physics only: it makes no
observations, rewards or resets.
"""

from __future__ import annotations

from benchmarks.harness import Implementation as C
from benchmarks.records import OURS, Target, Workload

SYNC, ASYNC, ROLLOUT, WORKERS = "EnvPool sync", "EnvPool async", "mujoco.rollout", "gymnasium Async"
ACT_SIZES = {"HalfCheetah-v5": 6, "Ant-v5": 8, "Humanoid-v5": 17}


def with_mujoco() -> list[Workload]:
    """Returns the workloads in the order of the table."""
    cheetah = Target((SYNC,), 1.5), Target((ASYNC,), 1.0), Target((ROLLOUT,), 0.85)
    others = Target((SYNC,), 1.2), Target((WORKERS,), 3.0)
    return [
        _task("HalfCheetah-v5", 8, cheetah),
        _task("HalfCheetah-v5", 64, others),
        _task("HalfCheetah-v5", 1024, others[:1]),
        _task("Ant-v5", 8, others),
        _task("Humanoid-v5", 8, others),
    ]


def _task(name: str, n: int, targets: tuple[Target, ...]) -> Workload:
    kinds = {"gymnasium Sync": "sync", WORKERS: "async"} if n <= 64 else {}  # a process for each environment
    return Workload(
        name=f"mujoco-{name.removesuffix('-v5').lower()}-{n}",
        title=f"{name}, {n:,} environments, 2 threads",
        implementations=[
            C(OURS, "main", "on_vecrl:mujoco"),
            C("vecrl, tensors", "main", "on_vecrl:mujoco", {"tensors": True}),
            C(ROLLOUT, "main", "by_hand_mujoco:rollout"),
            C("mj_step, Python threads", "main", "by_hand_mujoco:python_threads"),
            C(SYNC, "batched", "on_envpool:mujoco"),
            C(ASYNC, "batched", "on_envpool:mujoco", {"asynchronous": True}),
            *(C(kind, "main", "on_gymnasium:mujoco", {"kind": value}) for kind, value in kinds.items()),
        ],
        parameters={"name": name, "num_envs": n, "act_size": ACT_SIZES[name]},
        targets=targets,
        rows=n,
        quick=n == 8,
    )
