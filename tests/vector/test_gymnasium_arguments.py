"""gymnasium's arguments, by position and by name, for the classes that stand in for gymnasium's."""

import inspect
from typing import Any

import gymnasium
import numpy as np
import pytest

from vecrl.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv

FNS = [lambda: gymnasium.make("CartPole-v1")] * 2


def _names(cls: Any) -> list[str]:
    parameters = inspect.signature(cls.__init__).parameters.values()
    return [parameter.name for parameter in parameters if parameter.kind is parameter.POSITIONAL_OR_KEYWORD][1:]


def test_the_order_of_arguments_is_gymnasiums() -> None:
    vector = gymnasium.vector
    assert _names(VectorEnv) == _names(vector.SyncVectorEnv)
    expected = _names(vector.AsyncVectorEnv)
    assert _names(AsyncVectorEnv)[: len(expected)] == expected


def test_positional_arguments_have_the_effect_of_gymnasiums() -> None:
    results: list[Any] = []
    for cls in (VectorEnv, gymnasium.vector.SyncVectorEnv):
        envs = cls(FNS, False, "same", gymnasium.vector.AutoresetMode.SAME_STEP)
        assert envs.metadata["autoreset_mode"].value == "SameStep"
        first = np.array(envs.reset(seed=1)[0])
        steps = [np.array(envs.step(np.array([0, 1]))[0]) for _ in range(30)]
        results.append([first, *steps])
        envs.close()
    np.testing.assert_array_equal(results[0], results[1])
    with AsyncVectorEnv(FNS, True, False, None, True, None, "same", AutoresetMode.DISABLED, num_workers=1) as envs:
        assert (envs.autoreset_mode, envs.copy) == (AutoresetMode.DISABLED, False)


def test_the_class_of_evotorchs_name_takes_gymnasiums_arguments() -> None:
    with SyncVectorEnv(FNS, copy=False, observation_mode="same", autoreset_mode="same_step") as envs:
        assert envs.reset(seed=1)[0].shape == (2, 4)
    for arguments in ({"autoreset_mode": "next_step"}, {"observation_mode": "different"}):
        with pytest.raises(ValueError, match=r"Expected observation_mode='same'.*Use VectorEnv"):
            SyncVectorEnv(FNS, **arguments)
    with pytest.raises(TypeError, match="'env_makers'"):
        SyncVectorEnv(env_fns=FNS)  # pyright: ignore[reportCallIssue]


def test_arguments_of_another_class_are_explained() -> None:
    arguments: Any = (True, True)  # shared_memory and copy of AsyncVectorEnv
    with pytest.raises(ValueError, match=r"Expected observation_mode to be 'same', 'different' or a pair.*got True"):
        VectorEnv(FNS, *arguments)
