"""Pickled copies of environments of every class, which go on with the episode; errors of those with workers."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium
import pytest
import torch
from gymnasium.vector import SyncVectorEnv
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import TensorDictModule
from tests.fixtures.agents_envs import Countdown
from torch import Tensor

from vecrl import envs
from vecrl.envs import EnvBase, GymEnv, NativeEnv, SimulatorEnv, TransformedEnv
from vecrl.envs.libs.parallel_agents import ParallelAgentsEnv
from vecrl.envs.transforms import CatFrames, Compose, InitTracker, ObservationNorm, RewardSum, StepCounter, VecNorm

STEPS = 4


def cart_pole() -> EnvBase:
    return GymEnv("CartPole-v1")


def normed() -> EnvBase:
    norm = ObservationNorm(loc=0.0, scale=2.0, in_keys=["observation"])
    return TransformedEnv(GymEnv("Pendulum-v1"), Compose(norm, RewardSum(), CatFrames(2, -1, in_keys=["observation"])))


def agents() -> EnvBase:
    return ParallelAgentsEnv(game := Countdown(), game)


def predict(action: Tensor, observation: TensorDictBase) -> tuple[Tensor, Tensor]:
    return observation["mean"] + action, observation["var"] + 0.1 * torch.eye(3)


def imagined() -> EnvBase:
    keys = [("next", "observation", "mean"), ("next", "observation", "var")]
    return envs.ImaginedEnv(TensorDictModule(predict, ["action", "observation"], keys), GymEnv("Pendulum-v1"))


class Prompted(envs.LLMHashingEnv):
    """Starts each episode from the same tokens."""

    def _reset(self, tensordict: Any = None, **kwargs: Any) -> Any:
        return super()._reset(TensorDict(observation=torch.tensor([1, 2])), **kwargs)


MAKERS: dict[str, Callable[[], EnvBase]] = {
    "GymEnv": cart_pole,
    "GymEnv of MuJoCo": partial(GymEnv, "InvertedPendulum-v5"),
    "GymWrapper": lambda: envs.GymWrapper(gymnasium.make("Pendulum-v1")),
    "GymWrapper of a vector": lambda: envs.GymWrapper(SyncVectorEnv([partial(gymnasium.make, "CartPole-v1")] * 2)),
    "TransformedEnv": normed,
    "TransformedEnv VecNorm": lambda: TransformedEnv(cart_pole(), VecNorm(in_keys=["observation"])),
    "NativeEnv": partial(NativeEnv, "Pendulum-v1"),
    "NativeEnv batch": partial(NativeEnv, "CartPole-v1", batch_size=(2,)),
    "SimulatorEnv": partial(SimulatorEnv, "native::CartPole-v1", num_envs=2),
    "PendulumEnv": envs.PendulumEnv,
    "TicTacToeEnv": envs.TicTacToeEnv,
    "ChessEnv": partial(envs.ChessEnv, include_fen=True),
    "FinancialRegimeEnv": envs.FinancialRegimeEnv,
    "LLMHashingEnv": partial(Prompted, vocab_size=5),
    "ImaginedEnv": imagined,
    "ParallelAgentsEnv": agents,
}


def transformed(env: EnvBase) -> EnvBase:
    env = TransformedEnv(env, Compose(StepCounter(step_count_key="age"), InitTracker()))
    env.rollout(STEPS, env.rand_action, break_when_any_done=False)
    return env


def used(env: EnvBase, run: Callable[[EnvBase], object]) -> EnvBase:
    run(env)
    return env


STATES: dict[str, Callable[[EnvBase], EnvBase]] = {
    "fresh": lambda env: env,
    "stepped": partial(used, run=lambda env: env.step_and_maybe_reset(env.rand_action(env.reset()))),
    "random rollout": partial(used, run=lambda env: env.rollout(STEPS)),
    "policy": partial(used, run=lambda env: env.rollout(STEPS, env.rand_action)),
    "transforms": transformed,
    "specs read": partial(used, run=lambda env: (env.specs, env.fake_tensordict(), env.rand_action())),
}


def pickled(env: EnvBase) -> EnvBase:
    return pickle.loads(pickle.dumps(env))


def saved(env: EnvBase) -> EnvBase:
    torch.save(env, file := io.BytesIO())
    file.seek(0)
    return torch.load(file, weights_only=False)


def play(env: EnvBase, root: TensorDictBase) -> TensorDictBase:
    """Goes on with the episode, then plays another one."""
    torch.manual_seed(1)
    first = env.rollout(STEPS, auto_reset=False, tensordict=root.clone(), break_when_any_done=False)
    return torch.cat([first, env.rollout(STEPS, break_when_any_done=False)], first.ndim - 1)


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_copies_step_like_the_original(name: str, state: str) -> None:
    torch.manual_seed(0)
    env = MAKERS[name]()
    env.set_seed(0)
    env = STATES[state](env)
    copies = [pickled(env), saved(env)]
    env.set_seed(2)
    expected = play(env, env.reset())
    for made in copies:
        assert type(made) is type(env)
        made.set_seed(2)
        assert (play(made, made.reset()) == expected).all()
    root = env.reset()
    copies = [pickled(env), saved(env)]
    expected = play(env, root)
    for made in copies:
        assert (play(made, root) == expected).all()


WITH_WORKERS: dict[str, tuple[Callable[[], Any], str]] = {
    "SerialEnv": (partial(envs.SerialEnv, 2, cart_pole), "Create another one"),
    "ParallelEnv": (partial(envs.ParallelEnv, 2, cart_pole), "Create another one"),
    "AsyncEnvPool": (partial(envs.ThreadingAsyncEnvPool, [cart_pole] * 2), "Create another one"),
    "GymEnv": (partial(GymEnv, "CartPole-v1", num_envs=2, backend="serial"), "Construct another pool"),
    "mujoco": (partial(SimulatorEnv, "mujoco::Swimmer-v5", num_envs=2), "set_state"),
}


@pytest.mark.parametrize("name", WITH_WORKERS)
def test_environments_with_workers_say_that_they_cannot_be_copied(name: str) -> None:
    make, hint = WITH_WORKERS[name]
    with make() as env, TransformedEnv(env, StepCounter()) as with_transform:
        for copied in (pickle.dumps, copy.deepcopy, lambda env: torch.save(env, io.BytesIO())):
            for either in (env, with_transform):
                with pytest.raises(TypeError, match=f"copied or pickled.*{hint}"):
                    copied(either)
