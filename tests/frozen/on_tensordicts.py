"""Trajectories of dialect 3: single environments, batches, transforms and native tasks."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch
from tests.frozen.digests import Trace
from tests.frozen.tasks import LIMITS, N, act, actions

from vecrl.envs import EnvBase, GymEnv, NativeEnv, ParallelEnv, PendulumEnv, SerialEnv, TicTacToeEnv, TransformedEnv
from vecrl.envs.transforms import (
    CatFrames,
    Compose,
    DoubleToFloat,
    InitTracker,
    ObservationNorm,
    RewardScaling,
    RewardSum,
    StepCounter,
    VecNorm,
)

INDICES = {"categorical_action_encoding": True}


def gym_env(name: str) -> GymEnv:
    """Returns one environment with discrete actions as indices."""
    return GymEnv(name, **(INDICES if name == "CartPole-v1" else {}), **LIMITS[name])


def transforms() -> Compose:
    """Returns transforms of independent rows; scales are powers of 2, so that rounding is equal on every CPU."""
    return Compose(
        InitTracker(),
        StepCounter(max_steps=9),
        DoubleToFloat(),
        ObservationNorm(0.5, 2.0, in_keys=["observation"]),
        CatFrames(2, dim=-1, in_keys=["observation"], out_keys=["frames"]),
        RewardScaling(0.5, 2.0),
        RewardSum(),
    )


def transformed(name: str) -> TransformedEnv:
    """Returns one environment under transforms."""
    return TransformedEnv(gym_env(name), transforms())


def batch(name: str, kind: str, inside: bool | None = None, **place: Any) -> EnvBase:
    """Returns a batch of N environments, under transforms, or each under its own if `inside`."""
    make = partial(transformed if inside else gym_env, name)
    env = {"serial": SerialEnv, "parallel": ParallelEnv}[kind](N, make, **place)
    return TransformedEnv(env, transforms()) if inside is False else env


# -- rollouts --------------------------------------------------------------------------------------


def single(name: str, way: str, break_when_any_done: bool) -> Trace:
    """Records a rollout of one `GymEnv`: equal actions given in advance, by a policy, or step by step."""
    return _rolled(gym_env(name), torch.from_numpy(actions(name)[:, 0]), way, break_when_any_done)


def rolled_batch(name: str, *, way: str = "actions", **place: Any) -> Trace:
    """Records a rollout of a batch over several episodes, in one of the same three ways."""
    return _rolled(batch(name, **place), torch.from_numpy(actions(name)).transpose(0, 1), way, False)


def rolled_vector(name: str) -> Trace:
    """Records the same rollout of a `GymEnv` with several rows."""
    env = GymEnv(name, num_envs=N, **(INDICES if name == "CartPole-v1" else {}), **LIMITS[name])
    return _rolled(env, torch.from_numpy(actions(name)).transpose(0, 1), "actions", False)


def steered(name: str, options: dict[str, bool], **place: Any) -> Trace:
    """Records a rollout of a batch under a policy that depends on observations."""
    env = batch(name, **place)
    rule = act(name)
    return _closing(env, lambda: env.rollout(len(actions(name)), rule, **options))


def drawn_batch(name: str, **place: Any) -> Trace:
    """Records a rollout of a batch with random actions."""
    return drawn(batch(name, **place))


def drawn(env: EnvBase) -> Trace:
    """Records a rollout over several episodes with random actions from torch's seed."""
    torch.manual_seed(9)
    return _closing(env, lambda: env.rollout(20, break_when_any_done=False))


def native(name: str) -> Trace:
    """Records a rollout of a native task over several episodes."""
    env = NativeEnv(name, num_envs=N, max_episode_steps=13, categorical_action_encoding=True)
    rows = torch.from_numpy(actions(name, 24)).transpose(0, 1)
    return _closing(env, lambda: env.rollout(24, actions=rows, break_when_any_done=False))


def pendulums() -> Trace:
    """Records the stateless Pendulum over a batch."""
    env = PendulumEnv(seed=0)
    trace = Trace()
    env.set_seed(3)
    data = env.reset(env.gen_params(batch_size=[N]))
    for row in torch.from_numpy(actions("Pendulum-v1", 10)).squeeze(-1):
        step_td = env.step(data.set("action", row))
        trace.add_tensordict(step_td)
        data = env.step_mdp(step_td)
    return trace


def games() -> Trace:
    """Records games of TicTacToe with random moves."""
    return drawn(TicTacToeEnv())


def _closing(env: EnvBase, play: Any) -> Trace:
    trace = Trace()
    try:
        env.set_seed(6)
        trace.add_tensordict(play())
    finally:
        env.close()
    return trace


def _rolled(env: EnvBase, rows: Any, way: str, stop: bool) -> Trace:
    steps = rows.shape[env.batch_dims]
    if way == "actions":
        return _closing(env, lambda: env.rollout(steps, actions=rows, break_when_any_done=stop))
    ahead = iter(rows.unbind(env.batch_dims))
    if way == "policy":
        policy = lambda td: td.set("action", next(ahead))  # noqa: E731
        return _closing(env, lambda: env.rollout(steps, policy, break_when_any_done=stop))

    def play() -> Any:
        root, saved = env.reset(), []
        for row in ahead:
            step_td, root = env.step_and_maybe_reset(root.set("action", row))
            saved.append(step_td)
            if stop and bool(step_td["next", "done"].any()):
                break
        rollout: Any = torch.stack(saved, env.batch_dims)
        rollout.names = [*rollout.names[:-1], "time"]
        return rollout

    return _closing(env, play)


# -- masks -----------------------------------------------------------------------------------------


def partly(name: str, **place: Any) -> Trace:
    """Records steps of some rows (`_step`), and resets of ended rows and some others (`_reset`)."""
    trace, rng, env = Trace(), np.random.default_rng(8), batch(name, **place)
    env.set_seed(5)
    root = env.reset()
    trace.add_tensordict(root)
    for turn, row in enumerate(torch.from_numpy(actions(name)[:20])):
        data = root.set("action", row)
        moving = torch.from_numpy(rng.random(N) < 0.7)
        if turn % 2 and bool(moving.any()):
            data.set("_step", moving)
        step_td = env.step(data)
        trace.add_tensordict(step_td)
        root = env.step_mdp(step_td)
        mask = root["done"] | torch.from_numpy(rng.random((N, 1)) < 0.1)
        if bool(mask.any()):
            root = env.reset(root.set("_reset", mask))
            trace.add_tensordict(root)
    env.close()
    return trace


def learnt(name: str) -> Trace:
    """Records a rollout under statistics over the batch."""
    env = TransformedEnv(batch(name, "serial"), VecNorm(in_keys=["observation"]))
    return _rolled(env, torch.from_numpy(actions(name)).transpose(0, 1), "actions", False)
