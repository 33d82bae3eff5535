"""An environment is in one row of a batch only: functions that return one object twice are refused everywhere."""

from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium
import pytest
from gymnasium.wrappers import TimeLimit

from vecrl.envs import AsyncEnvPool, GymEnv, GymWrapper, PendulumEnv, SerialEnv
from vecrl.envs.transforms import RewardSum, TransformedEnv
from vecrl.errors import SpaceError
from vecrl.vector import AsyncVectorEnv, SyncVectorEnv, VectorEnv
from vecrl.venv import DummyVectorEnv, SubprocVectorEnv

THREADS = {"backend": "threads", "num_workers": 2}
PROCESS = {"backend": "processes", "num_workers": 1}


def cartpole() -> Any:
    return gymnasium.make("CartPole-v1")


class Duck:
    """An environment of no library's class."""

    def reset(self) -> int:
        return 0

    def step(self, action: Any) -> Any:
        return 0, 0.0, False, {}


ARRAYS: dict[str, Callable[[list[Any]], Any]] = {
    "VectorEnv": VectorEnv,
    "VectorEnv, two workers": partial(VectorEnv, backend="serial", num_workers=2),
    "VectorEnv, threads": partial(VectorEnv, **THREADS),
    "VectorEnv, one process": partial(VectorEnv, **PROCESS),
    "AsyncVectorEnv": partial(AsyncVectorEnv, num_workers=1),
    "SyncVectorEnv": SyncVectorEnv,
    "SyncVectorEnv, threads": partial(SyncVectorEnv, **THREADS),
    "DummyVectorEnv": DummyVectorEnv,
}
TENSORDICTS: dict[str, Callable[[Any], Any]] = {
    "SerialEnv": lambda make: SerialEnv(2, make),
    "AsyncEnvPool": lambda make: AsyncEnvPool([make] * 2, backend="threading"),
}


@pytest.mark.parametrize("kind", ARRAYS)
@pytest.mark.parametrize("wrap", [lambda env: env, partial(TimeLimit, max_episode_steps=5)], ids=["itself", "wrapped"])
def test_one_gymnasium_environment_in_two_rows_raises(kind, wrap):
    shared = cartpole()
    with pytest.raises(SpaceError, match=r"environment 2: Expected functions that make a new .*got the environment 1 "):
        ARRAYS[kind]([cartpole, *[lambda: wrap(shared)] * 2])


def test_one_environment_of_another_class_in_two_rows_raises():
    duck = Duck()
    with pytest.raises(SpaceError, match="environment 1: Expected functions that make a new environment"):
        DummyVectorEnv([lambda: duck] * 2)


@pytest.mark.parametrize("kind", TENSORDICTS)
@pytest.mark.parametrize(
    "wrap",
    [
        lambda env: env,
        lambda env: TransformedEnv(env, RewardSum()),
        lambda env: GymWrapper(env._env) if isinstance(env, GymEnv) else TransformedEnv(env),
    ],
    ids=["itself", "transformed", "wrapped"],
)
@pytest.mark.parametrize("make", [partial(GymEnv, "Pendulum-v1"), PendulumEnv])
def test_one_tensordict_environment_in_two_rows_raises(kind, wrap, make):
    shared = make()
    with pytest.raises(SpaceError, match="environment 1: Expected functions that make a new environment"):
        TENSORDICTS[kind](lambda: wrap(shared)).reset()


def test_copies_in_processes_and_later_uses_are_allowed():
    shared = cartpole()
    for _ in range(2):  # the same environment in one pool after another
        with VectorEnv([lambda: shared]) as envs:
            envs.reset(seed=1)
    envs = SubprocVectorEnv([lambda: shared] * 2)  # each process has its own copy
    envs.reset()
    envs.close()
