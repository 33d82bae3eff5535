"""TensorDict environments with a policy, of vecrl and TorchRL: the same code for both, since the names are equal."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import Any

import gymnasium
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule

from benchmarks.implementation import Measurement, RunFactory
from benchmarks.network import Greedy

torch.set_num_threads(1)


def _policy() -> TensorDictModule:
    return TensorDictModule(Greedy(), in_keys=["observation"], out_keys=["action"])


def _cartpole(library: str, transforms: int = 0) -> Any:
    """Returns CartPole through the first `transforms` of five transforms."""
    env = import_module(f"{library}.envs").GymEnv("CartPole-v1", categorical_action_encoding=True)
    return _transformed(library, env, transforms) if transforms else env


def _transformed(library: str, env: Any, transforms: int) -> Any:
    t = import_module(f"{library}.envs.transforms")
    norm = t.ObservationNorm(0.0, 1.0, in_keys=["observation"])
    chosen = [t.StepCounter(), t.RewardSum(), norm, t.InitTracker(), t.DoubleToFloat()][:transforms]
    return t.TransformedEnv(env, t.Compose(*chosen))


def rollout_cartpole(
    library: str,
    steps: int,
    transforms: int = 0,
    batch: str = "",
    num_envs: int = 1,
    processes: int | None = None,
    envs_per_worker: int | None = None,
    outside: bool = False,
) -> RunFactory:
    """Rollouts over several episodes, of one environment or of a `batch`: the name of a class.

    TorchRL has one process per environment, or with `processes` one per `SerialEnv`; vecrl takes `envs_per_worker`.
    With `outside`, the batch is transformed instead of each environment.
    """
    inside = 0 if outside else transforms
    make, policy, envs = partial(_cartpole, library, inside), _policy(), import_module(f"{library}.envs")
    if processes is not None:
        make, num_envs = partial(envs.SerialEnv, num_envs // processes, make), processes
    workers = {} if envs_per_worker is None else {"envs_per_worker": envs_per_worker}
    env = getattr(envs, batch)(num_envs, make, **workers) if batch else make()
    if outside:
        env = _transformed(library, env, transforms)

    def run(units: int) -> None:
        with torch.no_grad():
            for _ in range(units):
                env.rollout(steps, policy, break_when_any_done=False)

    yield run
    env.close()


def bare_loop(steps: int) -> RunFactory:
    """The policy on TensorDicts in a loop over gymnasium's environment; nothing is kept."""
    env, policy = gymnasium.make("CartPole-v1"), _policy()

    def run(units: int) -> None:
        with torch.no_grad():
            for _ in range(units):
                obs = env.reset()[0]
                for _ in range(steps):
                    action = policy(TensorDict({"observation": torch.from_numpy(obs)}, []))["action"]
                    obs, _, terminated, truncated, _ = env.step(action.item())
                    if terminated or truncated:
                        obs = env.reset()[0]

    yield run
    env.close()


def policy_alone(steps: int, num_envs: int | None = None) -> RunFactory:
    """The policy on a TensorDict of observations."""
    batch, policy = [] if num_envs is None else [num_envs], _policy()
    data = TensorDict({"observation": torch.randn(*batch, 4) / 10}, batch)

    def run(units: int) -> None:
        with torch.no_grad():
            for _ in range(units * steps):
                policy(data)

    yield run


def collected_cartpole(num_envs: int, steps: int, num_workers: int = 2) -> RunFactory:
    """TorchRL's collector, with a copy of the policy in each worker."""
    from torchrl.collectors import MultiSyncCollector
    from torchrl.envs import SerialEnv

    make = partial(SerialEnv, num_envs // num_workers, partial(_cartpole, "torchrl"))
    collector = MultiSyncCollector(
        [make] * num_workers, _policy(), frames_per_batch=num_envs * steps, total_frames=-1, cat_results="stack"
    )
    batches = iter(collector)

    def run(units: int) -> None:
        for _ in range(units):
            next(batches)

    yield run
    collector.shutdown()


def calls(library: str, what: str) -> RunFactory:
    """The number of calls of the library's Python functions per step, without the setup of a rollout."""
    count = {"rollout": _rollout_calls, "serial": _serial_calls}[what](library)

    def run(units: int) -> Measurement:
        return Measurement(count * units, units)

    yield run


def _rollout_calls(library: str) -> float:
    env, policy = _cartpole(library), _policy()

    def play(steps: int) -> None:
        env.set_seed(0)
        env.rollout(steps, policy)  # ends with the first episode

    play(2)
    few, many = (own_calls(library, partial(play, steps)) for steps in (3, 8))
    env.close()
    return (many - few) / 5


def _serial_calls(library: str) -> float:
    envs, t = (import_module(f"{library}.{name}") for name in ("envs", "envs.transforms"))
    env = envs.SerialEnv(
        2, lambda: envs.TransformedEnv(envs.GymEnv("CartPole-v1"), t.Compose(t.StepCounter(), t.RewardSum()))
    )
    env.set_seed(0)
    data = env.rand_action(env.reset())
    env.step(data.copy())
    found = own_calls(library, lambda: env.step(data.copy()))
    env.close()
    return found


def own_calls(library: str, work: Callable[[], object]) -> int:
    """Returns how often `work` calls Python functions of a library, including resumed generators."""
    home = str(Path(import_module(library).__file__ or "").parent)
    count = 0

    def see(frame: FrameType, event: str, _: object) -> None:
        nonlocal count
        count += event == "call" and frame.f_code.co_filename.startswith(home)

    sys.setprofile(see)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count
