"""Environments get the numbers of actions as gymnasium passes them, in every dtype, on every backend."""

import sys
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from gymnasium.vector import SyncVectorEnv as GymnasiumSyncVectorEnv
from tests.fixtures.equality import assert_same

from vecrl.simulators.gymnasium import env_fn
from vecrl.vector import AsyncVectorEnv, SyncVectorEnv, TorchWrapper, VectorEnv, make_vector_env
from vecrl.venv import DummyVectorEnv, SubprocVectorEnv

PLACES = [("serial", 1), ("serial", 2), ("threads", 2), ("processes", 2)]
SPACES = {
    "Box": spaces.Box(-2, 2, (3,)),
    "scalar Box": spaces.Box(-2, 2, ()),
    "Dict": spaces.Dict({"x": spaces.Box(-2, 2, (2,)), "n": spaces.Discrete(3)}),
    "MultiBinary": spaces.MultiBinary(3),
}


class Report(gymnasium.Env):
    """Returns the dtype and the values of its action in the info, and ends every third episode."""

    observation_space = spaces.Box(-1, 1, (1,))

    def __init__(self, action_space: Any, row: int):
        self.action_space, self._row, self._steps = action_space, row, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self._steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        self._steps += 1
        x = action["x"] if isinstance(action, dict) else action
        info = {"dtype": str(x.dtype), "action": np.ravel(x).astype(float)}
        return np.zeros(1, np.float32), float(np.sum(x * x)), self._steps % (3 + self._row) == 0, False, info


def reports(name: str, count: int = 4) -> list[Any]:
    return [lambda row=row: Report(SPACES[name], row) for row in range(count)]


def batch(name: str, dtype: Any, rng: np.random.Generator, count: int = 4) -> Any:
    if name == "MultiBinary":
        return (rng.integers(0, 2, (count, 3)) + 300 * (np.arange(count) == 2)[:, None]).astype(dtype)
    if name == "Dict":
        x = rng.uniform(-2, 2, (count, 2)).astype(dtype)
        return {"x": x, "n": rng.integers(0, 3, count)}
    return rng.uniform(-2, 2, (count, *SPACES[name].shape)).astype(dtype)


@pytest.mark.parametrize(
    ("name", "dtype"),
    [(name, dtype) for name in ("Box", "scalar Box", "Dict") for dtype in ("f8", "f4", "f2", "i8")]
    + [("MultiBinary", "i8")],
)
@pytest.mark.parametrize(("backend", "num_workers"), PLACES)
@pytest.mark.parametrize("mode", list(AutoresetMode)[:2])
def test_actions_arrive_as_in_gymnasium(name, dtype, backend, num_workers, mode):
    expected = GymnasiumSyncVectorEnv(reports(name), autoreset_mode=mode)
    with VectorEnv(reports(name), autoreset_mode=mode, backend=backend, num_workers=num_workers) as envs:
        expected.reset(seed=1)
        envs.reset(seed=1)
        for step in range(8):
            actions = batch(name, dtype, np.random.default_rng(step))
            if name == "MultiBinary":  # elements that fit into the dtype of the space have it
                result, reference = envs.step(actions), expected.step(actions)
                assert_same(result[1], reference[1])
                continue
            assert_same(envs.step(actions), expected.step(actions))
    expected.close()


@pytest.mark.parametrize("kind", [VectorEnv, AsyncVectorEnv, SyncVectorEnv, DummyVectorEnv, SubprocVectorEnv])
def test_steps_of_pendulum_equal_gymnasiums(kind):
    def make() -> Any:
        return gymnasium.make("Pendulum-v1")

    expected = GymnasiumSyncVectorEnv([make] * 2)
    envs = kind([make] * 2)
    obs, _ = expected.reset(seed=[3, 4])
    first, _ = envs.reset(seed=[3, 4])
    assert_same(np.asarray(first), obs)
    rng = np.random.default_rng(0)
    for _ in range(20):
        actions = rng.uniform(-2, 2, (2, 1))
        obs, reward, *_ = expected.step(actions)
        result = envs.step(actions)
        assert_same(np.asarray(result[0]), obs)
        assert_same(np.asarray(result[1]), reward)
    expected.close()
    envs.close()


@pytest.mark.parametrize("backend", ["serial", "processes"])
def test_some_environments_get_the_dtype_too(backend):
    """A partial step, and one with excluded rows, sends each environment its own row."""
    envs = SubprocVectorEnv(reports("Box")) if backend == "processes" else DummyVectorEnv(reports("Box"))
    envs.reset()
    actions = np.random.default_rng(0).uniform(-2, 2, (2, 3))
    for ids in ([3, 1], [0, 2]):
        *_, infos = envs.step(actions, ids)
        assert [info["dtype"] for info in infos] == ["float64"] * 2
        assert_same(np.stack([info["action"] for info in infos]), actions)
    envs.close()


def test_callers_may_write_to_their_actions_later():
    kept = []

    class Keeps(Report):
        def step(self, action: Any) -> Any:
            kept.append(action)
            return super().step(action)

    with VectorEnv([lambda: Keeps(SPACES["Box"], 0)] * 2) as envs:
        envs.reset()
        actions = np.ones((2, 3))
        envs.step(actions)
        actions[:] = 5
        envs.step(actions)
    assert [float(action[0]) for action in kept] == [1, 1, 5, 5]


@pytest.mark.parametrize("dtype", ["f8", "f4", "i8"])
def test_tensors_keep_their_dtype(dtype):
    """`TorchWrapper` passes numbers for a Box of floats on, as EvoTorch's does."""
    actions = torch.from_numpy(batch("Box", dtype, np.random.default_rng(0), 2))
    for env in (TorchWrapper(SyncVectorEnv(reports("Box", 2))), TorchWrapper(VectorEnv(reports("Box", 2)))):
        env.reset()
        info = env.step(actions)[-1]
        assert {str(name) for name in info["dtype"]} == {str(np.dtype(dtype))}
        env.close()
    single = TorchWrapper(Report(SPACES["Box"], 0))
    single.reset()
    assert single.step(actions[0])[-1]["dtype"] == str(np.dtype(dtype))


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.int64])
def test_mujoco_batches_equal_gymnasium_in_every_dtype(dtype):
    pytest.importorskip("mujoco")
    pytest.importorskip("numba")
    expected = GymnasiumSyncVectorEnv([lambda: gymnasium.make("HalfCheetah-v5")] * 2)
    env = make_vector_env("mujoco::HalfCheetah-v5", num_envs=2, num_threads=1)
    expected.reset(seed=1)
    env.reset(seed=1)
    rng = np.random.default_rng(0)
    for _ in range(10):
        actions = rng.uniform(-1.9, 1.9, (2, 6)).astype(dtype)
        obs, reward, *_ = expected.step(actions)
        result = env.step(torch.tensor(actions, requires_grad=dtype is not np.int64))
        assert np.array_equal(result[0].numpy(), obs)
        assert np.array_equal(result[1].numpy(), reward)
    env.close()
    expected.close()


@pytest.mark.parametrize("mode", list(AutoresetMode)[:2])
def test_environments_on_another_interpreter_get_the_dtype_too(mode):
    make = env_fn("Pendulum-v1", python=sys.executable, max_episode_steps=4)
    expected = GymnasiumSyncVectorEnv(
        [lambda: gymnasium.make("Pendulum-v1", max_episode_steps=4)] * 3, autoreset_mode=mode
    )
    with VectorEnv([make] * 3, backend="processes", num_workers=2, autoreset_mode=mode) as envs:
        assert_same(envs.reset(seed=2)[0], expected.reset(seed=2)[0])
        rng = np.random.default_rng(0)
        for _ in range(3 if mode is AutoresetMode.SAME_STEP else 10):
            actions = rng.uniform(-2, 2, (3, 1))
            assert_same(envs.step(actions)[:4], expected.step(actions)[:4])
    expected.close()
