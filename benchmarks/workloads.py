"""The table of workloads: the work, its implementations, and the targets for vecrl.

It names the functions in `benchmarks.implementations` and never imports them: most need other environments.
"""

from __future__ import annotations

import signal

from benchmarks.harness import Implementation as C
from benchmarks.records import OURS, Limit, Target, Workload
from benchmarks.with_mujoco import with_mujoco
from benchmarks.with_policy import FLOOR, FLOORS, with_policies


def workloads() -> list[Workload]:
    """Returns the workloads in the order of the table."""
    return [
        *with_policies(),
        *(_one_process(n, same_step) for same_step in (False, True) for n in FLOORS),
        _serial_cartpole(64),
        *(_burn(n, micros, out) for out in ("floats", "image") for n in (8, 64) for micros in (0, 100, 1000)),
        *(_sb3_cartpole(n) for n in (8, 64)),
        _first_pool(16),
        _next_pool(16),
        _cheetah(8),
        *with_mujoco(),
        *(_native(n) for n in (64, 4096, 65536)),
        _native_not_compiled(64, 1.2),
        _native_not_compiled(4096, 2.0),
        _rollout(4096, 100),
        *(_policy(n) for n in (10, 256, 4096)),
        _ray(64, 100),
        _population(256),
        _ray_population(256),
        _native_population(256),
        _native_population_not_compiled(256),
        *(_gym_env(1000, way) for way in ("", "ready", "transformed")),
        _serial_env(64, 50),
        *(_parallel(n, micros, out) for out in ("floats", "image") for n in (8, 64) for micros in (0, 100, 1000)),
        _parallel_start(8),
        _native_env(4096, 256),
        _pendulum(4096, 256),
        _pixels(8),
        _normed(64),
        _memory(16, 1000),
        _killed("raise"),
        _killed("restart"),
        _stuck(1.0),
        _checkpoint(4096),
        *(_ids(kind, n, workers) for kind in ("shmem", "subproc") for n in (8, 64) for workers in (None, 2)),
        _waiting(64, 1.0),
        _norm_obs(64),
    ]


def _one_process(n: int, same_step: bool) -> Workload:
    entry, floor, ratio = "serial_cartpole", *FLOORS[n]
    return Workload(
        name=f"oneprocess{'-same-step' * same_step}-{n}",
        title=f"VectorEnv of {n} CartPole-v1 in one process, {'same-step auto-reset' if same_step else 'defaults'}",
        implementations=[
            C(OURS, "main", f"on_vecrl:{entry}"),
            C(FLOOR, "main", f"by_hand_flat:{entry}"),
            C("gymnasium Sync", "main", f"on_gymnasium:{entry}"),
        ],
        parameters={"num_envs": n, "same_step": same_step},
        targets=[Target((FLOOR,), floor), Target(("gymnasium Sync",), ratio)],
        rows=n,
        quick=n == 8,
    )


def _serial_cartpole(n: int) -> Workload:
    entry = "serial_cartpole"
    return Workload(
        name=f"serial-cartpole-{n}",
        title=f"{n} × gymnasium CartPole-v1 in one process, same-step auto-reset",
        implementations=[
            C(OURS, "main", f"on_vecrl:{entry}"),
            C("bare loop", "main", "by_hand:loop_cartpole"),
            C("bare loop, rows dropped", "main", "by_hand:loop_cartpole", {"keep": False}),
            C("gymnasium Sync", "main", f"on_gymnasium:{entry}"),
            C("EvoTorch Sync", "evotorch", f"on_evotorch:{entry}"),
            C("SB3 Dummy", "sb3", f"on_sb3:{entry}"),
            C("Tianshou Dummy", "tianshou", f"on_tianshou:{entry}"),
            C("PufferLib Serial", "pufferlib", f"on_pufferlib:{entry}"),
        ],
        parameters={"num_envs": n},
        targets=[
            Target(("bare loop",), 0.95),
            Target(("gymnasium Sync", "EvoTorch Sync", "SB3 Dummy", "Tianshou Dummy", "PufferLib Serial"), 1.0),
        ],
        rows=n,
        quick=True,
    )


def _sb3_cartpole(n: int) -> Workload:
    entry, workers = "on_sb3:vecrl_cartpole", {"backend": "processes", "num_workers": 2}
    return Workload(
        name=f"sb3-cartpole-{n}",
        title=f"{n} × gymnasium CartPole-v1 as Stable-Baselines3's VecEnv",
        implementations=[
            C(OURS, "sb3", entry),
            C("vecrl, 2 workers", "sb3", entry, workers),
            C("vecrl, native task", "sb3", "on_sb3:vecrl_native_cartpole"),
            C("SB3 Dummy", "sb3", "on_sb3:serial_cartpole"),
            C("SB3 Subproc", "sb3", "on_sb3:subproc_cartpole"),
        ],
        parameters={"num_envs": n},
        targets=[Target(("SB3 Dummy", "SB3 Subproc"), 1.0)] if n >= 64 else [],
        rows=n,
    )


def _burn(n: int, micros: int, out: str) -> Workload:
    entry = "processes_burn"
    peers = ("gymnasium Async", "Tianshou Subproc", "Tianshou Shmem", "SB3 Subproc")
    faster = {("floats", 8): 8.0, ("floats", 64): 25.0, ("image", 8): 6.0, ("image", 64): 6.0}[out, n]
    targets = {0: [Target(peers, faster)], 100: [Target(("floor",), 0.95)], 1000: []}[micros]
    what = {"floats": "16 floats", "image": "84×84×4 bytes"}[out]
    return Workload(
        name=f"burn-{out}-{n}-{micros}us",
        title=f"{n} environments over 2 workers, a step burns {micros:,} µs, {what} out",
        implementations=[
            C(OURS, "main", f"on_vecrl:{entry}"),
            C("vecrl, pinned", "main", f"on_vecrl:{entry}", {"pin_workers": True}),
            C("floor", "main", "by_hand:pipes_burn"),
            C("gymnasium Async", "main", f"on_gymnasium:{entry}"),
            C("Tianshou Subproc", "tianshou", f"on_tianshou:{entry}", {"kind": "subproc"}),
            C("Tianshou Shmem", "tianshou", f"on_tianshou:{entry}", {"kind": "shmem"}),
            C("SB3 Subproc", "sb3", f"on_sb3:{entry}"),
            C("PufferLib", "pufferlib", f"on_pufferlib:{entry}"),
        ],
        parameters={"num_envs": n, "microseconds": micros, "out": out},
        targets=targets,
        rows=n,
        core_micros=n * micros,
        quick=(n, out) == (8, "floats") and micros < 1000,
    )


def _first_pool(n: int) -> Workload:
    return Workload(
        name="startup-first",
        title=f"starting {n} workers with a module that takes 0.5 s to import, the first time",
        implementations=[
            C(OURS, "main", "on_vecrl:startup", fresh=True),
            *(
                C(f"gymnasium Async, {m}", "main", "on_gymnasium:startup", {"method": m}, fresh=True)
                for m in ("spawn", "forkserver")
            ),
            *(C(f"SB3, {m}", "sb3", "on_sb3:startup", {"method": m}, fresh=True) for m in ("spawn", "forkserver")),
        ],
        parameters={"num_workers": n},
        targets=[Limit(1.0)],
        rounds=2,
    )


def _next_pool(n: int) -> Workload:
    return Workload(
        name="startup-next",
        title=f"starting {n} such workers again, in the same process",
        implementations=[
            C(OURS, "main", "on_vecrl:startup"),
            C("gymnasium Async, forkserver", "main", "on_gymnasium:startup", {"method": "forkserver"}),
        ],
        parameters={"num_workers": n},
        targets=[Limit(0.2)],
        rounds=2,
    )


def _cheetah(n: int) -> Workload:
    entry = "processes_cheetah"
    peers = ("gymnasium Async", "Tianshou Subproc", "Tianshou Shmem", "SB3 Subproc")
    return Workload(
        name="cheetah",
        title=f"HalfCheetah-v5, {n} environments over 2 workers, or in one process if that is faster (backend=auto)",
        implementations=[
            C(OURS, "main", "on_vecrl:cheetah", {"backend": "auto"}),
            C("vecrl, 2 workers", "main", "on_vecrl:cheetah"),
            C("vecrl, 2 workers, wait=spin", "main", "on_vecrl:cheetah", {"wait": "spin"}),
            C("bare loop", "main", "by_hand:loop_cheetah"),
            C("floor", "main", "by_hand:pipes_cheetah"),
            C("gymnasium Async", "main", f"on_gymnasium:{entry}"),
            C("Tianshou Subproc", "tianshou", f"on_tianshou:{entry}", {"kind": "subproc"}),
            C("Tianshou Shmem", "tianshou", f"on_tianshou:{entry}", {"kind": "shmem"}),
            C("SB3 Subproc", "sb3", f"on_sb3:{entry}"),
            C("EnvPool sync, 2 threads", "batched", "on_envpool:threads_cheetah"),
        ],
        parameters={"num_envs": n},
        targets=[
            Target(("bare loop",), 0.85),
            Target(peers, 4.0),
            Target(("EnvPool sync, 2 threads",), 1.0),
        ],
        rows=n,
        quick=True,
    )


def _native(n: int) -> Workload:
    entry = "batch_cartpole"
    envpool = ("EnvPool, 1 thread", "EnvPool, 2 threads")
    targets = {
        64: [Target(("gymnasium NumPy",), 1.5), Target(envpool, 3.0)],
        4096: [Target(envpool, 10.0), Target(("gymnax",), 1.0)],
    }
    return Workload(
        name=f"native-cartpole-{n}",
        title=f"native CartPole, {n:,} rows, a step at a time",
        implementations=[
            C(OURS, "main", f"on_vecrl_native:{entry}", {"compiled": True}),
            C("vecrl, eager", "main", f"on_vecrl_native:{entry}", {"compiled": False}),
            C("gymnasium NumPy", "main", f"on_gymnasium:{entry}"),
            C("EnvPool, 1 thread", "batched", f"on_envpool:{entry}", {"num_threads": 1}),
            C("EnvPool, 2 threads", "batched", f"on_envpool:{entry}", {"num_threads": 2}),
            C("gymnax", "batched", f"on_gymnax:{entry}", cores=1),
        ],
        parameters={"num_envs": n},
        targets=targets.get(n, []),
        rows=n,
        quick=n < 65536,
    )


def _native_not_compiled(n: int, ratio: float) -> Workload:
    entry = "batch_cartpole"
    return Workload(
        name=f"native-plain-{n}",
        title=f"native CartPole, not compiled, {n:,} rows, a step at a time",
        implementations=[
            C(OURS, "main", f"on_vecrl_native:{entry}", {"compiled": False}),
            C("vecrl, torch", "main", f"on_vecrl_native:{entry}", {"compiled": False, "arrays": "torch"}),
            C("gymnasium NumPy", "main", f"on_gymnasium:{entry}"),
        ],
        parameters={"num_envs": n},
        targets=[Target(("gymnasium NumPy",), ratio)],
        rows=n,
        quick=True,
    )


def _rollout(n: int, steps: int) -> Workload:
    return Workload(
        name="native-rollout",
        title=f"native CartPole, {n:,} rows × {steps} steps under a policy, in one compiled region",
        implementations=[
            C(OURS, "main", "on_vecrl_native:rollout_cartpole"),
            C("gymnax scan", "batched", "on_gymnax:rollout_cartpole", cores=1),
        ],
        parameters={"num_envs": n, "steps": steps},
        targets=[Target(("gymnax scan",), 1.0)],
        rows=n * steps,
    )


def _gym_env(steps: int, way: str) -> Workload:
    entry = "on_tensordict:rollout_cartpole"
    title = {"": "random actions", "ready": "given actions", "transformed": "through five transforms"}[way]
    options = {way: True} if way else {}
    targets = {"": [("TorchRL", 7.0), ("bare loop", 1 / 3.5)], "ready": [("TorchRL", 10.0)]}
    return Workload(
        name=f"gymenv-rollout{f'-{way}' if way else ''}",
        title=f"GymEnv on CartPole-v1, a rollout of {steps:,} steps past ends, {title}",
        implementations=[
            C(OURS, "main", entry, {"library": "vecrl", **options}),
            C("bare loop", "main", "by_hand:rollout_cartpole"),
            C("TorchRL", "torchrl", entry, {"library": "torchrl", **options}),
        ],
        parameters={"steps": steps},
        targets=[Target((rival,), ratio) for rival, ratio in targets.get(way, [("TorchRL", 8.0)])],
        rows=steps,
        quick=True,
    )


def _serial_env(n: int, steps: int) -> Workload:
    entry = "on_tensordict:serial_cartpole"
    return Workload(
        name=f"serialenv-{n}",
        title=f"SerialEnv of {n} GymEnvs on CartPole-v1, a rollout of {steps} steps past ends, random actions",
        implementations=[
            C(OURS, "main", entry, {"library": "vecrl"}),
            C("TorchRL", "torchrl", entry, {"library": "torchrl"}),
            C("gymnasium Sync", "main", "on_gymnasium:rollout_cartpole"),
        ],
        parameters={"num_envs": n, "steps": steps},
        targets=[Target(("TorchRL",), 15.0), Target(("gymnasium Sync",), 0.8)],
        rows=n * steps,
        quick=True,
    )


def _parallel(n: int, micros: int, out: str) -> Workload:
    entry = "on_tensordict:processes_burn"
    peers = ("TorchRL, 8 processes", "TorchRL, 2 processes")
    ideal = n * micros / 2e6
    targets = {0: [Target(peers, 10.0)], 100: [Limit(ideal / 0.85)] if n == 64 else [], 1000: []}[micros]
    what = {"floats": "16 floats", "image": "84×84×4 bytes"}[out]
    return Workload(
        name=f"parallelenv-{out}-{n}-{micros}us",
        title=f"ParallelEnv of {n} environments over 2 workers, a step burns {micros:,} µs, {what} out",
        implementations=[
            C(OURS, "main", entry, {"library": "vecrl"}),
            C(peers[0], "torchrl", entry, {"library": "torchrl", "processes": 8}),
            C(peers[1], "torchrl", entry, {"library": "torchrl", "processes": 2}),
        ],
        parameters={"num_envs": n, "microseconds": micros, "out": out},
        targets=targets,
        rows=n,
        core_micros=n * micros,
        quick=(n, micros, out) == (8, 0, "floats"),
    )


def _parallel_start(n: int) -> Workload:
    entry = "on_tensordict:startup"
    return Workload(
        name="parallelenv-start",
        title=f"ParallelEnv: start {n} workers, an environment each",
        implementations=[
            C(OURS, "main", entry, {"library": "vecrl"}, fresh=True),
            C("TorchRL", "torchrl", entry, {"library": "torchrl"}, fresh=True),
        ],
        parameters={"num_workers": n},
        targets=[Limit(3.0)],
        rows=n,
        rounds=3,
    )


def _native_env(n: int, steps: int) -> Workload:
    entry = "on_tensordict:native"
    return Workload(
        name=f"nativeenv-{n}",
        title=f"native CartPole as an environment over TensorDicts, {n:,} rows, a rollout of {steps} steps",
        implementations=[
            C(OURS, "main", entry),
            C("dialect 1", "main", f"{entry}_dialect_1"),
        ],
        parameters={"name": "CartPole-v1", "num_envs": n, "steps": steps},
        targets=[Target(("dialect 1",), 0.8)],
        rows=n * steps,
    )


def _pendulum(n: int, steps: int) -> Workload:
    return Workload(
        name=f"pendulumenv-{n}",
        title=f"native Pendulum as an environment over TensorDicts, {n:,} rows, a rollout of {steps} steps",
        implementations=[
            C(OURS, "main", "on_tensordict:native", {"name": "Pendulum-v1"}),
            C("vecrl PendulumEnv", "main", "on_tensordict:rollout_pendulum", {"library": "vecrl"}),
            C("TorchRL PendulumEnv", "torchrl", "on_tensordict:rollout_pendulum", {"library": "torchrl"}),
        ],
        parameters={"num_envs": n, "steps": steps},
        targets=[Target(("TorchRL PendulumEnv",), 3.0)],
        rows=n * steps,
    )


def _pixels(n: int) -> Workload:
    entry = "on_tensordict:pixels"
    return Workload(
        name=f"pixels-{n}",
        title=f"{n} frames of 210×160×3 through ToTensorImage, GrayScale, Resize(84), CatFrames(4)",
        implementations=[
            C(OURS, "main", entry, {"library": "vecrl"}),
            C("vecrl, not antialiased", "main", entry, {"library": "vecrl", "antialias": False}),
            C("torch by hand", "main", "by_hand_torch:pixels"),
            C("torch by hand, not antialiased", "main", "by_hand_torch:pixels", {"antialias": False}),
            C("TorchRL", "torchrl-vision", entry, {"library": "torchrl"}),
        ],
        parameters={"num_envs": n},
        targets=[Target(("TorchRL",), 2.5), Target(("torch by hand",), 1.0)],
        rows=n,
        quick=True,
    )


def _normed(n: int) -> Workload:
    entry = "on_tensordict:normed"
    peers = ("TorchRL VecNorm", "TorchRL VecNormV2", "gymnasium", "Tianshou")
    return Workload(
        name=f"vecnorm-{n}",
        title=f"VecNorm: what it adds to a step of {n} environments with 4 floats each",
        implementations=[
            C(OURS, "main", entry, {"library": "vecrl"}),
            C("NumPy by hand", "main", "by_hand:normed"),
            C(peers[0], "torchrl", entry, {"library": "torchrl"}),
            C(peers[1], "torchrl", entry, {"library": "torchrl", "way": "VecNormV2"}),
            C(peers[2], "main", "on_gymnasium:normed"),
            C(peers[3], "tianshou", "on_tianshou:normed"),
        ],
        parameters={"num_envs": n},
        targets=[Target(peers, 1.3), Target(("NumPy by hand",), 1 / 1.5)],
        rows=n,
        quick=True,
    )


def _memory(n: int, steps: int) -> Workload:
    entry = "on_tensordict:peak"
    return Workload(
        name="rollout-memory",
        title=f"peak of memory in a rollout of {steps:,} steps × {n} environments × 84×84×4 bytes, over its own size",
        implementations=[
            C(OURS, "main", entry, {"library": "vecrl"}, fresh=True),
            C("TorchRL", "torchrl", entry, {"library": "torchrl"}, fresh=True),
        ],
        parameters={"num_envs": n, "steps": steps},
        targets=[Limit(1.1)],
        rounds=2,
        unit=" ×",
    )


def _killed(on_failure: str) -> Workload:
    reported = on_failure == "raise"
    what = "the caller gets the error" if reported else "two more steps are done"
    peers = _struck(signal.SIGKILL) if reported else []
    return Workload(
        name=f"killed-{on_failure}",
        title=f"8 environments, a worker is killed: until {what}",
        implementations=[C(OURS, "main", "on_vecrl:killed", {"on_failure": on_failure}), *peers],
        targets=[Limit(0.2 if reported else 1.0)],
        rounds=3,
    )


def _stuck(timeout: float) -> Workload:
    return Workload(
        name="stuck-restart",
        title=f"8 environments, a worker is stopped, steps may take {timeout:g} s: until two more steps are done",
        implementations=[C(OURS, "main", "on_vecrl:stuck", {"step_timeout": timeout}), *_struck(signal.SIGSTOP)],
        targets=[Limit(timeout + 1.0)],
        rounds=3,
    )


def _struck(number: int) -> list[C]:
    """Returns the other libraries, with a worker that gets a signal; a step that hangs ends after ten seconds."""
    kinds = {"gymnasium Async": "gymnasium", "Tianshou Subproc": "tianshou", "SB3 Subproc": "sb3"}
    homes = {"gymnasium": "main"}
    return [
        C(name, homes.get(library, library), f"on_{library}:struck", {"number": number}, fresh=True)
        for name, library in kinds.items()
    ]


def _checkpoint(n: int) -> Workload:
    entry = "on_vecrl_states:save_and_load"
    return Workload(
        name=f"checkpoint-{n}",
        title=f"a checkpoint of {n:,} native environments with statistics, a policy and its optimizer",
        implementations=[
            C(OURS, "main", entry, {"what": "save"}),
            C("the disk alone, not counted above", "main", entry, {"what": "disk"}),
            C("vecrl, loading", "main", entry, {"what": "load"}),
        ],
        parameters={"num_envs": n},
        targets=[Limit(0.05)],
        rows=n,
        quick=True,
    )


def _ids(kind: str, n: int, workers: int | None) -> Workload:
    entry = "on_venv:stepping"
    spread = "each in a process" if workers is None else f"over {workers} workers (Tianshou: each in a process)"
    return Workload(
        name=f"venv-{kind}-{n}" + ("" if workers is None else f"-over-{workers}"),
        title=f"{kind.title()}VectorEnv of {n} environments that do nothing, {spread}",
        implementations=[
            C(OURS, "main", entry, {"library": "vecrl", "num_workers": workers}),
            C("Tianshou", "tianshou", entry, {"library": "tianshou"}),
        ],
        parameters={"kind": kind, "num_envs": n},
        targets=[Target(("Tianshou",), 3.0 if workers is None else 10.0)],
        rows=n,
        quick=(kind, n) == ("shmem", 8),
    )


def _waiting(n: int, milliseconds: float) -> Workload:
    entry = "on_venv:waiting"
    return Workload(
        name=f"venv-async-{n}",
        title=f"a transition of {n} environments, waiting for half of them; steps sleep {milliseconds:g} ms on average",
        implementations=[
            C(OURS, "main", entry, {"library": "vecrl", "kind": "shmem"}),
            C("Tianshou", "tianshou", entry, {"library": "tianshou", "kind": "shmem"}),
            C("PufferLib, 2 workers", "pufferlib", "on_pufferlib:waiting"),
        ],
        parameters={"num_envs": n, "milliseconds": milliseconds},
        targets=[Target(("Tianshou",), 1.5)],
        quick=True,
    )


def _norm_obs(n: int) -> Workload:
    entry = "on_venv:normed"
    return Workload(
        name=f"venv-normobs-{n}",
        title=f"VectorEnvNormObs: what it adds to a step of {n} environments with 4 floats each",
        implementations=[
            C(OURS, "main", entry, {"library": "vecrl"}),
            C("NumPy by hand", "main", "by_hand:normed"),
            C("Tianshou", "tianshou", entry, {"library": "tianshou"}),
        ],
        parameters={"num_envs": n},
        targets=[Target(("NumPy by hand",), 1 / 1.3)],
        rows=n,
        quick=True,
    )


def _policy(n: int) -> Workload:
    entry = "by_hand_torch:policy"
    hand = {
        "bmm by hand": {"way": "bmm"},
        "sums by hand": {"way": "sum"},
        "bmm compiled": {"way": "bmm", "compiled": True},
        "sums compiled": {"way": "sum", "compiled": True},
    }
    return Workload(
        name=f"policy-{n}",
        title=f"policy forward, MLP 4-64-2, {n:,} members",
        implementations=[
            C(OURS, "main", "on_vecrl_policy:policy"),
            C("EvoTorch Policy", "evotorch", "on_evotorch:policy"),
            *(C(name, "main", entry, parameters) for name, parameters in hand.items()),
        ],
        parameters={"members": n},
        targets=[
            Target(("EvoTorch Policy",), {10: 8.0, 256: 2.0, 4096: 1.3}[n]),
            Target(tuple(hand), 0.8),
        ],
        rows=n,
        quick=n == 256,
    )


def _population(n: int) -> Workload:
    entry = "population_cartpole"
    return Workload(
        name="population-gym",
        title=f"{n} members, one episode each of gymnasium CartPole-v1: an environment step",
        implementations=[
            C(OURS, "main", f"on_vecrl_policy:{entry}", {"backend": "serial"}),
            C("vecrl, 2 workers", "main", f"on_vecrl_policy:{entry}", {"backend": "processes", "num_workers": 2}),
            C("EvoTorch VecGymNE", "evotorch", f"on_evotorch:{entry}"),
            C("EvoTorch VecGymNE, 2 actors", "evotorch", f"on_evotorch:{entry}", {"actors": 2}, fresh=True),
        ],
        parameters={"members": n},
        targets=[Target(("EvoTorch VecGymNE",), 5.0)],
    )


def _ray(n: int, micros: int) -> Workload:
    """Ray's processes cannot be stopped, and many idle ones slow down other turns, so each turn has new processes.

    Tianshou has one actor per environment, and each imports torch: minutes, and 20 GB of memory, for 64.
    """
    return Workload(
        name=f"ray-{n}-{micros}us",
        title=f"{n} environments on Ray over 2 actors (Tianshou: {n}), a step burns {micros} µs, 16 floats out",
        implementations=[
            C(OURS, "ray", "on_vecrl:ray_burn", fresh=True, units=500),
            C("vecrl, 2 processes", "ray", "on_vecrl:processes_burn", fresh=True, units=500),
            C("Tianshou Ray", "tianshou", "on_tianshou:ray_burn", fresh=True, units=50),
        ],
        parameters={"num_envs": n, "microseconds": micros, "out": "floats"},
        targets=[Target(("Tianshou Ray",), 10.0)],
        rows=n,
        core_micros=n * micros,
        rounds=3,
    )


def _ray_population(n: int) -> Workload:
    entry = "population_cartpole"
    return Workload(
        name="population-ray",
        title=f"{n} members over 2 actors, one episode each of gymnasium CartPole-v1: an environment step",
        implementations=[
            C(OURS, "ray", f"on_vecrl_policy:{entry}", {"backend": "ray", "num_workers": 2}),
            C("EvoTorch VecGymNE, 2 actors", "evotorch", f"on_evotorch:{entry}", {"actors": 2}, fresh=True),
        ],
        parameters={"members": n},
        targets=[Target(("EvoTorch VecGymNE, 2 actors",), 3.0)],
        rounds=3,
    )


def _native_population_not_compiled(n: int) -> Workload:
    return Workload(
        name="population-native-plain",
        title=f"{n} members, one episode each of native CartPole, not compiled: an environment step",
        implementations=[
            C(OURS, "main", "on_vecrl_policy:population_native", {"compiled": False}),
            C("gymnax while_loop", "batched", "on_gymnax:population_cartpole", cores=1),
        ],
        parameters={"members": n},
        targets=[Target(("gymnax while_loop",), 2.0)],
    )


def _native_population(n: int) -> Workload:
    entry = "population_cartpole"
    return Workload(
        name="population-native",
        title=f"{n} members, one episode each of native CartPole: an environment step",
        implementations=[
            C(OURS, "main", "on_vecrl_policy:population_native"),
            C("EvoTorch VecGymNE", "evotorch", f"on_evotorch:{entry}"),
            C("gymnax while_loop", "batched", f"on_gymnax:{entry}", cores=1),
        ],
        parameters={"members": n},
        targets=[Target(("EvoTorch VecGymNE",), 20.0), Target(("gymnax while_loop",), 2.0)],
        quick=True,
    )
