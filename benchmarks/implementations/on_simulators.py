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
            environments `num_envs` is always None. None if TorchRL has no class for it.
        name: its name for vecrl, with the prefix.
        is_batched: whether the simulator steps many rows in one call.
        batch_name: its name for vecrl's vector environment, if it is another one.
        bare: the function of `BARE` that steps the simulator's own batch, `bare(num_envs)`, without vecrl or TorchRL.
        alone: the function of `ALONE` that steps the simulator, one environment of it, without vecrl or TorchRL.
        autoreset_mode: of the vector environment that is compared with it: the mode of the simulator's own batch.
    """

    make: Callable[[Any, int | None], Any] | None
    name: str
    is_batched: bool = False
    batch_name: str | None = None
    bare: str | None = None
    alone: str | None = None
    autoreset_mode: str = "same_step"


def _pettingzoo(envs: Any) -> Any:
    from mpe2 import simple_spread_v3

    return envs.PettingZooWrapper(simple_spread_v3.parallel_env())


TASKS: dict[str, Task] = {
    "DMControl cheetah-run": Task(
        lambda envs, _: envs.DMControlEnv("cheetah", "run"), "dmc::cheetah-run", alone="dm_control"
    ),
    "PettingZoo simple_spread": Task(
        lambda envs, _: _pettingzoo(envs), "pettingzoo::mpe2/simple_spread_v3", alone="simple_spread"
    ),
    "PettingZoo tictactoe": Task(
        lambda envs, _: envs.PettingZooEnv("tictactoe_v3", parallel=False, use_mask=True),
        "pettingzoo::tictactoe_v3",
        alone="tictactoe",
    ),
    "OpenSpiel tic_tac_toe": Task(
        lambda envs, _: envs.OpenSpielEnv("tic_tac_toe"), "openspiel::tic_tac_toe", alone="openspiel"
    ),
    "MiniGrid Empty": Task(
        lambda envs, _: envs.GymEnv("MiniGrid-Empty-5x5-v0"), "minigrid::MiniGrid-Empty-5x5-v0", alone="minigrid"
    ),
    "Atari Pong": Task(
        lambda envs, _: envs.GymEnv("ALE/Pong-v5"),
        "atari::ALE/Pong-v5",
        batch_name="atari-vector::pong",
        bare="atari",
        alone="atari",
    ),
    "MO-Gymnasium deep sea": Task(
        lambda envs, _: envs.MOGymEnv("deep-sea-treasure-v0"), "mo::deep-sea-treasure-v0", alone="mo_gymnasium"
    ),
    "VMAS balance": Task(lambda envs, n: envs.VmasEnv("balance", num_envs=n or 1), "vmas::balance", True, bare="vmas"),
    "Jumanji Snake": Task(
        lambda envs, n: envs.JumanjiEnv("Snake-v1", batch_size=[n or 1]), "jumanji::Snake-v1", True, bare="jumanji"
    ),
    "Brax inverted_pendulum": Task(
        lambda envs, n: envs.BraxEnv("inverted_pendulum", batch_size=[n or 1]),
        "brax::inverted_pendulum",
        True,
        bare="brax",
    ),
    "EnvPool CartPole": Task(
        lambda envs, n: envs.MultiThreadedEnv(n or 1, "CartPole-v1"),
        "envpool::CartPole-v1",
        True,
        bare="envpool",
        autoreset_mode="next_step",
    ),
    "Pgx tic_tac_toe": Task(None, "pgx::tic_tac_toe", True, bare="pgx"),
    "Navix Empty": Task(None, "navix::Navix-Empty-5x5-v0", True, bare="navix"),
    "XLand-MiniGrid Empty": Task(None, "xminigrid::MiniGrid-Empty-5x5", True, bare="xminigrid"),
    "JaxMARL simple_spread": Task(None, "jaxmarl::MPE_simple_spread_v3", True, bare="jaxmarl"),
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

    entry, name = find_entry(TASKS[task].batch_name or TASKS[task].name)
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
    actions = _choices(num_envs, 6)

    def run(units: int) -> None:
        for _ in range(units):
            env.step(actions)

    yield run
    env.close()


def _choices(num_envs: int, count: int) -> np.ndarray:
    """Returns a random action for each row, as `vector` has: the work of many simulators depends on the actions."""
    return np.random.default_rng(0).integers(0, count, num_envs)


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


def _jax_steps(step: Callable[..., Any], state: Any, actions: Any) -> RunFactory:
    """Steps of a compiled function of the state, the actions and a key, which returns the next state."""
    import jax

    step, key = jax.jit(step), jax.random.PRNGKey(1)
    actions = jax.tree.map(jax.numpy.asarray, actions)

    def run(units: int) -> None:
        nonlocal state
        for _ in range(units):
            state = step(state, actions, key)
        jax.block_until_ready(state)

    run(3)
    yield run


def _keys(num_envs: int) -> Any:
    import jax

    return jax.random.split(jax.random.PRNGKey(0), num_envs)


def _jumanji(num_envs: int) -> RunFactory:
    import jax
    import jumanji
    from jumanji.wrappers import VmapAutoResetWrapper

    env = VmapAutoResetWrapper(jumanji.make("Snake-v1"))
    state = jax.jit(env.reset)(_keys(num_envs))
    yield from _jax_steps(lambda last, actions, _: env.step(last[0], actions), state, _choices(num_envs, 4))


def _brax(num_envs: int) -> RunFactory:
    import jax
    from brax import envs

    env = envs.create("inverted_pendulum", batch_size=num_envs)
    state = jax.jit(env.reset)(jax.random.PRNGKey(0))
    actions = np.random.default_rng(0).uniform(-1, 1, (num_envs, env.action_size))
    yield from _jax_steps(lambda state, actions, _: env.step(state, actions), state, actions)


def _pgx(num_envs: int) -> RunFactory:
    import jax
    import pgx
    from pgx.experimental.wrappers import auto_reset

    env = pgx.make("tic_tac_toe")
    step_rows = jax.vmap(auto_reset(env.step, env.init))
    state = jax.jit(jax.vmap(env.init))(_keys(num_envs))

    def step(state: Any, actions: Any, key: Any) -> Any:
        return step_rows(state, actions, jax.random.split(key, num_envs))

    yield from _jax_steps(step, state, _choices(num_envs, 9))


def _navix(num_envs: int) -> RunFactory:
    import jax
    import navix

    env = navix.make("Navix-Empty-5x5-v0")
    state = jax.jit(jax.vmap(env.reset))(_keys(num_envs))
    actions = _choices(num_envs, len(env.action_set))
    yield from _jax_steps(lambda state, actions, _: jax.vmap(env.step)(state, actions), state, actions)


def _xminigrid(num_envs: int) -> RunFactory:
    import jax
    import xminigrid
    from xminigrid.wrappers import GymAutoResetWrapper

    env, params = xminigrid.make("MiniGrid-Empty-5x5")
    env, actions = GymAutoResetWrapper(env), _choices(num_envs, env.num_actions(params))
    state = jax.jit(jax.vmap(lambda key: env.reset(params, key)))(_keys(num_envs))
    step_rows = jax.vmap(lambda state, action: env.step(params, state, action))
    yield from _jax_steps(lambda state, actions, _: step_rows(state, actions), state, actions)


def _jaxmarl(num_envs: int) -> RunFactory:
    import jax
    from jaxmarl import make

    env = make("MPE_simple_spread_v3")
    actions = {agent: _choices(num_envs, env.action_spaces[agent].n) for agent in env.agents}
    _, state = jax.jit(jax.vmap(env.reset))(_keys(num_envs))

    def step(state: Any, actions: Any, key: Any) -> Any:
        """Resets rows that are done; observations and rewards are parts of the state, so that they are computed."""
        return jax.vmap(env.step)(jax.random.split(key, num_envs), state[1], actions)[:3]

    obs, rewards = ({agent: jax.numpy.zeros(num_envs) for agent in env.agents} for _ in range(2))
    yield from _jax_steps(step, (obs, state, rewards), actions)


def _envpool(num_envs: int) -> RunFactory:
    import envpool

    env = envpool.make("CartPole-v1", env_type="gymnasium", num_envs=num_envs, num_threads=2)
    env.reset()
    actions = _choices(num_envs, 2)

    def run(units: int) -> None:
        for _ in range(units):
            env.step(actions)

    yield run


def alone(task: str) -> RunFactory:
    """One environment of the simulator, without vecrl or TorchRL; it is reset when it is done."""
    work = TASKS[task]
    if work.bare and not work.alone:
        yield from BARE[work.bare](1)
        return
    step_or_reset = ALONE[work.alone or ""]()

    def run(units: int) -> None:
        for _ in range(units):
            step_or_reset()

    run(3)
    yield run


def _gymnasium_alone(name: str, library: str, **options: Any) -> Callable[[], object]:
    import gymnasium

    gymnasium.register_envs(import_module(library))
    env = gymnasium.make(name, disable_env_checker=True, **options)
    env.reset(seed=0)
    actions = [env.action_space.sample() for _ in range(1000)]
    count = 0

    def step_or_reset() -> None:
        nonlocal count
        count += 1
        _, _, terminated, truncated, _ = env.step(actions[count % 1000])
        if terminated or truncated:
            env.reset()

    return step_or_reset


def _dm_control_alone() -> Callable[[], object]:
    from dm_control import suite

    env = suite.load("cheetah", "run", task_kwargs={"random": 0})
    env.reset()
    action = np.zeros(env.action_spec().shape)
    return lambda: env.step(action)  # resets by itself after the last step


def _simple_spread_alone() -> Callable[[], object]:
    from mpe2 import simple_spread_v3

    env = simple_spread_v3.parallel_env()
    env.reset(seed=0)

    def step_or_reset() -> None:
        if not env.agents:
            env.reset()
        env.step(dict.fromkeys(env.agents, 1))

    return step_or_reset


def _tictactoe_alone() -> Callable[[], object]:
    from pettingzoo.classic import tictactoe_v3

    env = tictactoe_v3.env()
    env.reset(seed=0)

    def step_or_reset() -> None:
        observation, _, terminated, truncated, _ = env.last()
        if terminated or truncated:
            env.reset()
        else:
            env.step(int(observation["action_mask"].argmax()))

    return step_or_reset


def _openspiel_alone() -> Callable[[], object]:
    import pyspiel

    game = pyspiel.load_game("tic_tac_toe")
    state = game.new_initial_state()

    def step_or_reset() -> None:
        nonlocal state
        if state.is_terminal():
            state = game.new_initial_state()
        state.apply_action(state.legal_actions()[0])
        state.rewards()
        if not state.is_terminal():
            state.observation_tensor()

    return step_or_reset


ALONE: dict[str, Callable[[], Callable[[], object]]] = {
    "dm_control": _dm_control_alone,
    "simple_spread": _simple_spread_alone,
    "tictactoe": _tictactoe_alone,
    "openspiel": _openspiel_alone,
    "minigrid": lambda: _gymnasium_alone("MiniGrid-Empty-5x5-v0", "minigrid"),
    "atari": lambda: _gymnasium_alone("ALE/Pong-v5", "ale_py", frameskip=1),
    "mo_gymnasium": lambda: _gymnasium_alone("deep-sea-treasure-v0", "mo_gymnasium"),
}
BARE = {
    "atari": _atari,
    "vmas": _vmas,
    "jumanji": _jumanji,
    "brax": _brax,
    "envpool": _envpool,
    "pgx": _pgx,
    "navix": _navix,
    "xminigrid": _xminigrid,
    "jaxmarl": _jaxmarl,
}
