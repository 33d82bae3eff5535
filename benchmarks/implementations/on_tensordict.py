"""TensorDict environments of vecrl and TorchRL: the same code for both, since the names are equal."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict

from benchmarks.actions import BATCHES, discrete
from benchmarks.busy_env import BusyEnv, burners
from benchmarks.implementation import Measurement, RunFactory
from benchmarks.stopwatch import starts

torch.set_num_threads(1)


def rollout_cartpole(library: str, steps: int, ready: bool = False, transformed: bool = False) -> RunFactory:
    """A rollout over several episodes, with random or given (`ready`) actions, and with five transforms or none."""
    envs = import_module(f"{library}.envs")
    env = envs.GymEnv("CartPole-v1")
    if transformed:
        t = import_module(f"{library}.envs.transforms")
        norm = t.ObservationNorm(0.0, 2.0, in_keys=["observation"])
        env = envs.TransformedEnv(
            env, t.Compose(t.InitTracker(), t.StepCounter(), t.RewardSum(), t.DoubleToFloat(), norm)
        )
    rows = torch.eye(2, dtype=torch.int64)[torch.from_numpy(np.random.default_rng(0).integers(0, 2, steps))]

    def run(units: int) -> None:
        for _ in range(units):
            if ready:
                env.rollout(steps, actions=rows, break_when_any_done=False)
            else:
                env.rollout(steps, break_when_any_done=False)

    yield run
    env.close()


def serial_cartpole(library: str, num_envs: int, steps: int) -> RunFactory:
    """A rollout of `steps` vector steps over several episodes with random actions."""
    envs = import_module(f"{library}.envs")
    env = envs.SerialEnv(num_envs, partial(envs.GymEnv, "CartPole-v1"))

    def run(units: int) -> None:
        for _ in range(units):
            env.rollout(steps, break_when_any_done=False)

    env.rollout(2)
    yield run
    env.close()


def processes_burn(
    library: str, num_envs: int, microseconds: float, out: str, processes: int | None = None
) -> RunFactory:
    """Steps with given actions over two workers; TorchRL has a `SerialEnv` in each of its `processes`."""
    envs = import_module(f"{library}.envs")
    make = partial(_burner, library, microseconds, out)
    actions = torch.from_numpy(discrete(num_envs))
    if processes is None:
        env = envs.ParallelEnv(num_envs, make, envs_per_worker=num_envs // 2)
    elif processes == num_envs:
        env = envs.ParallelEnv(num_envs, make)
    else:
        each = num_envs // processes
        env = envs.ParallelEnv(processes, partial(envs.SerialEnv, each, make))
        actions = actions.reshape(BATCHES, processes, each)
    root = env.reset()

    def run(units: int) -> None:
        nonlocal root
        for i in range(units):
            _, root = env.step_and_maybe_reset(root.set("action", actions[i % BATCHES]))

    yield run
    env.close()


def _burner(library: str, microseconds: float, out: str) -> Any:
    envs = import_module(f"{library}.envs")
    return envs.GymWrapper(BusyEnv(microseconds, out), categorical_action_encoding=True)


def startup(library: str, num_workers: int) -> RunFactory:
    """From the constructor to the first observations."""
    envs = import_module(f"{library}.envs")
    make = partial(_burner, library, 0.0, "floats")
    more = {"envs_per_worker": 1} if library == "vecrl" else {}
    yield starts(lambda: envs.ParallelEnv(num_workers, make, **more))


def rollout_pendulum(library: str, num_envs: int, steps: int) -> RunFactory:
    """The stateless Pendulum over a batch, random actions."""
    env = import_module(f"{library}.envs").PendulumEnv()
    first = env.reset(env.gen_params(batch_size=[num_envs]))

    def run(units: int) -> None:
        for _ in range(units):
            env.rollout(steps, tensordict=first.copy(), auto_reset=False, break_when_any_done=False)

    yield run


def native(name: str, num_envs: int, steps: int) -> RunFactory:
    """A rollout of a native task as an environment over TensorDicts, random actions."""
    from vecrl.envs import NativeEnv

    env = NativeEnv(name, num_envs=num_envs)
    yield _rollouts(env, steps)


def _rollouts(env: Any, steps: int) -> Callable[[int], None]:
    def run(units: int) -> None:
        for _ in range(units):
            env.rollout(steps, break_when_any_done=False)

    return run


def native_dialect_1(name: str, num_envs: int, steps: int) -> RunFactory:
    """The same steps by dialect 1, rows stored."""
    from vecrl.vector import make_vector_env

    env = make_vector_env(f"native::{name}", num_envs=num_envs)
    env.reset(seed=0)
    actions = torch.from_numpy(discrete(num_envs))

    def run(units: int) -> None:
        for _ in range(units):
            saved: list[list[torch.Tensor]] = [[] for _ in range(4)]
            for i in range(steps):
                for column, value in zip(saved, env.step(actions[i % BATCHES]), strict=False):
                    column.append(value)
            for column in saved:
                torch.stack(column, 1)

    yield run
    env.close()


def pixels(library: str, num_envs: int, antialias: bool | None = None) -> RunFactory:
    """A step's frames 210×160×3 through `Compose(ToTensorImage, GrayScale, Resize(84), CatFrames(4))`."""
    if library == "torchrl":
        define_torchvision_operators()
    t = import_module(f"{library}.envs.transforms")
    frames = _frames(num_envs)
    env = _FixedEnv(library, {"pixels": frames[0]}, num_envs).make()
    keys = {"in_keys": ["pixels"]}
    options = {} if antialias is None else {"antialias": antialias}
    resize = t.Resize(84, 84, **keys, **options)
    chain = t.Compose(t.ToTensorImage(**keys), t.GrayScale(**keys), resize, t.CatFrames(4, dim=-3, **keys))
    yield _apply_to_steps(library, env, chain, "pixels", frames)


def normed(library: str, num_envs: int, way: str = "VecNorm") -> RunFactory:
    """A step's observations and rewards through VecNorm."""
    t = import_module(f"{library}.envs.transforms")
    obs = torch.from_numpy(np.random.default_rng(0).normal(2, 3, (BATCHES, num_envs, 4)).astype(np.float32))
    env = _FixedEnv(library, {"observation": obs[0]}, num_envs).make()
    transform = getattr(t, way)(in_keys=["observation"])
    yield _apply_to_steps(library, env, transform, "observation", obs)


class _FixedEnv:
    """An environment of either library with given observations."""

    def __init__(self, library: str, first: dict[str, torch.Tensor], num_envs: int):
        self.library, self.first, self.num_envs = library, first, num_envs

    def make(self) -> Any:
        base = import_module(f"{self.library}.envs").EnvBase
        specs = import_module("vecrl.specs" if self.library == "vecrl" else "torchrl.data")
        first, n = self.first, self.num_envs

        class FixedEnv(base):
            def __init__(self):
                super().__init__(batch_size=[n])
                seen = {key: specs.Unbounded(value.shape, dtype=value.dtype) for key, value in first.items()}
                self.observation_spec = specs.Composite(seen, shape=[n])
                self.action_spec = specs.Unbounded((n, 1))
                self.reward_spec = specs.Unbounded((n, 1))

            def _reset(self, tensordict=None, **kwargs):
                return TensorDict({**first, "done": torch.zeros(n, 1, dtype=torch.bool)}, [n])

            def _step(self, tensordict):
                done = torch.zeros(n, 1, dtype=torch.bool)
                return TensorDict({**first, "reward": torch.ones(n, 1), "done": done}, [n])

            def _set_seed(self, seed):
                pass

        return FixedEnv()


def _apply_to_steps(
    library: str, base: Any, transform: Any, key: str, values: torch.Tensor
) -> Callable[[int], Measurement]:
    """Returns a run that applies a transform to the results of steps; creating the TensorDict is not timed."""
    env = import_module(f"{library}.envs").TransformedEnv(base, transform)
    root = env.rand_action(env.reset())
    env.step(root.copy())
    template = base.step(root.copy()).get("next")
    transform_step = env.transform._step

    def run(units: int) -> Measurement:
        seconds = 0.0
        for i in range(units):
            next_td = template.copy().set(key, values[i % len(values)])
            start = time.perf_counter()
            transform_step(root, next_td)
            seconds += time.perf_counter() - start
        return Measurement(seconds, units)

    return run


def define_torchvision_operators() -> None:
    """Defines the operators that torchvision, built for CUDA, needs on import; none of them is called."""
    if _LIBRARIES:
        return
    library = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _LIBRARIES.append(library)


_LIBRARIES: list[torch.library.Library] = []  # an operator is defined as long as its library exists


def _frames(num_envs: int) -> torch.Tensor:
    rng = np.random.default_rng(0)
    return torch.from_numpy(rng.integers(0, 256, (8, num_envs, 210, 160, 3), dtype=np.uint8))


def peak(library: str, num_envs: int, steps: int) -> RunFactory:
    """The peak of memory in a rollout of images, divided by the size of the rollout."""
    envs = import_module(f"{library}.envs")
    make = [partial(envs.GymWrapper, make()) for make in burners(num_envs, 0.0, "image")]
    env = envs.SerialEnv(num_envs, make)
    env.rollout(3)

    def run(units: int) -> Measurement:
        before = _peak_bytes(reset=True)
        rollout = env.rollout(steps)
        size = sum(leaf.numel() * leaf.element_size() for leaf in rollout.values(True, True))
        return Measurement((_peak_bytes() - before) / size * units, units)

    yield run
    env.close()


def _peak_bytes(reset: bool = False) -> int:
    """Returns the peak of this process's memory so far; `reset` first sets it to the present value."""
    if reset:
        with open("/proc/self/clear_refs", "w") as f:
            f.write("5")
    with open("/proc/self/status") as f:
        lines = dict(line.split(":", 1) for line in f)
    return int(lines["VmHWM"].split()[0]) * 1024
