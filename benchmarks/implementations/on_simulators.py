"""Environments of simulators: through vecrl and TorchRL (the same code, since the names are equal), and bare.

A unit is one step of all rows. Actions are random; through TensorDicts they are drawn at each step.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np
import torch

from benchmarks.implementation import RunFactory

torch.set_num_threads(1)


@dataclass(frozen=True)
class Task:
    """An environment of a simulator.

    Attributes:
        make: `make(envs, num_envs)` makes it, given the module `envs` of a library. For a simulator of single
            environments `num_envs` is always None.
        name: its name for vecrl, with the prefix.
        is_batched: whether the simulator steps many rows in one call.
        bare: the function below that steps the simulator without vecrl or TorchRL, `bare(num_envs)`.
        autoreset_mode: of the vector environment that is compared with it: the mode of the simulator's own batch.
    """

    make: Callable[[Any, int | None], Any]
    name: str
    is_batched: bool = False
    bare: str | None = None
    autoreset_mode: str = "same_step"


def _pettingzoo(envs: Any) -> Any:
    from mpe2 import simple_spread_v3

    return envs.PettingZooWrapper(simple_spread_v3.parallel_env())


TASKS: dict[str, Task] = {
    "DMControl cheetah-run": Task(lambda envs, _: envs.DMControlEnv("cheetah", "run"), "dmc::cheetah-run"),
    "PettingZoo simple_spread": Task(lambda envs, _: _pettingzoo(envs), "pettingzoo::mpe2/simple_spread_v3"),
    "PettingZoo tictactoe": Task(
        lambda envs, _: envs.PettingZooEnv("tictactoe_v3", parallel=False, use_mask=True), "pettingzoo::tictactoe_v3"
    ),
    "OpenSpiel tic_tac_toe": Task(lambda envs, _: envs.OpenSpielEnv("tic_tac_toe"), "openspiel::tic_tac_toe"),
    "MiniGrid Empty": Task(lambda envs, _: envs.GymEnv("MiniGrid-Empty-5x5-v0"), "minigrid::MiniGrid-Empty-5x5-v0"),
    "Atari Pong": Task(lambda envs, _: envs.GymEnv("ALE/Pong-v5"), "atari::ALE/Pong-v5", bare="atari"),
    "MO-Gymnasium deep sea": Task(lambda envs, _: envs.MOGymEnv("deep-sea-treasure-v0"), "mo::deep-sea-treasure-v0"),
    "VMAS balance": Task(lambda envs, n: envs.VmasEnv("balance", num_envs=n or 1), "vmas::balance", True, "vmas"),
    "Jumanji Snake": Task(
        lambda envs, n: envs.JumanjiEnv("Snake-v1", batch_size=[n or 1]), "jumanji::Snake-v1", True, "jumanji"
    ),
    "Brax inverted_pendulum": Task(
        lambda envs, n: envs.BraxEnv("inverted_pendulum", batch_size=[n or 1]), "brax::inverted_pendulum", True, "brax"
    ),
    "EnvPool CartPole": Task(
        lambda envs, n: envs.MultiThreadedEnv(n or 1, "CartPole-v1"),
        "envpool::CartPole-v1",
        True,
        "envpool",
        "next_step",
    ),
}


def tensordicts(library: str, task: str, form: str, num_envs: int) -> RunFactory:
    """Steps of environments over TensorDicts, with resets of rows that are done.

    Args:
        library: "vecrl" or "torchrl".
        form: "single", "batch" (of `num_envs`, in this process) or "workers" (the same, over 2 processes where the
            library has this option).
    """
    import gymnasium

    for module in ("ale_py", "minigrid"):
        gymnasium.register_envs(import_module(module))
    envs = import_module(f"{library}.envs")
    work = TASKS[task]
    yield from _steps(_make(envs, work, form, num_envs))


def _make(envs: Any, work: Task, form: str, num_envs: int) -> Any:
    if form == "single":
        return work.make(envs, None)
    if form == "batch":
        make_all: Callable[[], Any] = lambda: work.make(envs, num_envs)  # noqa: E731
        return make_all() if work.is_batched else envs.SerialEnv(num_envs, lambda: work.make(envs, None))
    if work.is_batched:
        return envs.ParallelEnv(2, lambda: work.make(envs, num_envs // 2))
    return envs.ParallelEnv(num_envs, lambda: work.make(envs, None))


def _steps(env: Any) -> RunFactory:
    env.set_seed(0)
    state = env.reset()

    def run(units: int) -> None:
        nonlocal state
        for _ in range(units):
            _, state = env.step_and_maybe_reset(env.rand_action(state))

    run(3)
    try:
        yield run
    finally:
        env.close()


def vector(task: str, num_envs: int) -> RunFactory:
    """vecrl's vector environment of a name, with prepared actions; tensors for batched simulators, else arrays."""
    from vecrl.simulators.registry import find_entry
    from vecrl.vector import BatchedVectorEnv, VectorEnv

    entry, name = find_entry(TASKS[task].name)
    mode = TASKS[task].autoreset_mode
    if entry.make_batch is None:
        env: Any = VectorEnv([entry.env_fn(name)] * num_envs, autoreset_mode=mode)
        step = env.step
    else:
        env = BatchedVectorEnv(entry.make_batch(name, num_envs, infos=False), empty_info=True, autoreset_mode=mode)
        step = env.tensor_step
    with closing(env):
        env.reset(seed=0)
        env.action_space.seed(0)
        actions = env.action_space.sample()
        if step != env.step:
            actions = _as_tensors(actions)

        def run(units: int) -> None:
            for _ in range(units):
                step(actions)

        run(3)
        yield run


def _as_tensors(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {key: _as_tensors(value) for key, value in tree.items()}
    return tuple(map(_as_tensors, tree)) if isinstance(tree, tuple) else torch.as_tensor(tree)


def bare(task: str, num_envs: int) -> RunFactory:
    """The simulator's own batch, without vecrl or TorchRL."""
    yield from BARE[TASKS[task].bare or ""](num_envs)


def _atari(num_envs: int) -> RunFactory:
    from ale_py.vector_env import AtariVectorEnv

    env = AtariVectorEnv("pong", num_envs=num_envs, num_threads=2)
    env.reset(seed=0)
    actions = np.zeros(num_envs, np.int64)

    def run(units: int) -> None:
        for _ in range(units):
            env.step(actions)

    yield run
    env.close()


def _vmas(num_envs: int) -> RunFactory:
    from vmas import make_env

    env = make_env("balance", num_envs=num_envs, continuous_actions=True, seed=0)
    actions = [env.get_random_action(agent) for agent in env.agents]

    def run(units: int) -> None:
        for _ in range(units):
            done = env.step(actions)[2]
            for row in done.nonzero().flatten().tolist():
                env.reset_at(row)

    run(3)
    yield run


def _jumanji(num_envs: int) -> RunFactory:
    import jax
    import jumanji
    from jumanji.wrappers import VmapAutoResetWrapper

    env = VmapAutoResetWrapper(jumanji.make("Snake-v1"))
    step = jax.jit(env.step)
    state, _ = jax.jit(env.reset)(jax.random.split(jax.random.PRNGKey(0), num_envs))
    actions = jax.numpy.zeros(num_envs, int)

    def run(units: int) -> None:
        nonlocal state
        for _ in range(units):
            state, timestep = step(state, actions)
        jax.block_until_ready(timestep)

    run(3)
    yield run


def _brax(num_envs: int) -> RunFactory:
    import jax
    from brax import envs

    env = envs.create("inverted_pendulum", batch_size=num_envs)
    step = jax.jit(env.step)
    state = jax.jit(env.reset)(jax.random.PRNGKey(0))
    actions = jax.numpy.zeros((num_envs, env.action_size))

    def run(units: int) -> None:
        nonlocal state
        for _ in range(units):
            state = step(state, actions)
        jax.block_until_ready(state)

    run(3)
    yield run


def _envpool(num_envs: int) -> RunFactory:
    import envpool

    env = envpool.make("CartPole-v1", env_type="gymnasium", num_envs=num_envs, num_threads=2)
    env.reset()
    actions = np.zeros(num_envs, np.int64)

    def run(units: int) -> None:
        for _ in range(units):
            env.step(actions)

    yield run


BARE = {"atari": _atari, "vmas": _vmas, "jumanji": _jumanji, "brax": _brax, "envpool": _envpool}
