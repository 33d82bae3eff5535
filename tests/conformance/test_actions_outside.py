"""Actions that no element of the action space can be are refused in every dialect, and never played as another one."""

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from vecrl.classic import GymEnv as ClassicGymEnv
from vecrl.envs import GymWrapper, NativeEnv, SerialEnv
from vecrl.errors import SpaceError
from vecrl.vector import SyncVectorEnv, TorchWrapper, VectorEnv, make_vector_env
from vecrl.venv import DummyVectorEnv

NAN = float("nan")
SPACES = {
    "Discrete": (spaces.Discrete(3), 1, [0.5, NAN, float("inf")]),
    "MultiDiscrete": (spaces.MultiDiscrete([2, 3]), [1, 2], [[0.5, 1.0], [NAN, 0.0]]),
    "MultiBinary": (spaces.MultiBinary(2), [0, 1], [[0.5, 0.0], [NAN, 1.0], [300.5, 0.0]]),
}


class Recorder(gymnasium.Env):
    """Returns the action that it got as the reward."""

    observation_space = spaces.Box(-1, 1, (1,))

    def __init__(self, action_space: Any):
        self.action_space = action_space

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        return np.zeros(1, np.float32), float(np.ravel(action) @ [1, 10][: np.size(action)]), False, False, {}


def stepped_arrays(make: Callable[[list[Any]], Any]) -> Callable[[Any, Any], float]:
    def rewards(space: Any, action: Any) -> float:
        envs = make([lambda: Recorder(space)] * 2)
        envs.reset()
        as_array = torch.tensor if isinstance(envs, TorchWrapper) else np.array
        return float(envs.step(as_array([action, action]))[1][1])

    return rewards


def classic(space: Any, action: Any) -> float:
    gymnasium.register("vecrl/Recorder-v0", lambda: Recorder(space))
    try:
        env = ClassicGymEnv("vecrl/Recorder-v0", disable_env_checker=True)
        env.reset()
        return env.step(action)[1]
    finally:
        del gymnasium.registry["vecrl/Recorder-v0"]


def tensordict(make: Callable[[Any], Any]) -> Callable[[Any, Any], float]:
    def rewards(space: Any, action: Any) -> float:
        env = make(lambda: GymWrapper(Recorder(space), categorical_action_encoding=True))
        data = env.reset()
        data["action"] = torch.tensor(action).expand((*env.batch_size, *np.shape(action)))
        return env.step(data)["next", "reward"].flatten()[-1].item()

    return rewards


DIALECTS = {
    "VectorEnv": stepped_arrays(VectorEnv),
    "SyncVectorEnv": stepped_arrays(SyncVectorEnv),
    "TorchWrapper": stepped_arrays(lambda makers: TorchWrapper(SyncVectorEnv(makers))),
    "DummyVectorEnv": stepped_arrays(DummyVectorEnv),
    "classic": classic,
    "GymWrapper": tensordict(lambda make: make()),
    "SerialEnv": tensordict(lambda make: SerialEnv(2, make)),
}


@pytest.mark.parametrize("kind", SPACES)
@pytest.mark.parametrize("dialect", DIALECTS)
def test_fractions_and_nan_are_refused_for_spaces_of_integers(dialect, kind):
    space, element, wrong = SPACES[kind]
    step = DIALECTS[dialect]
    assert step(space, element) == np.ravel(element) @ [1, 10][: np.size(element)]
    for action in wrong:
        with pytest.raises(SpaceError):
            step(space, action)


def test_the_message_of_classic_environments():
    env = ClassicGymEnv("CartPole-v1")
    env.reset()
    with pytest.raises(SpaceError, match=r"Expected whole numbers that int64 can hold for Discrete\(2\), got 0.5"):
        env.step(0.5)
    assert len(env.step(np.float32(1))) == 4


@pytest.mark.parametrize("actions", [[0.5, 1.0], [NAN, 1.0], [2, 0], [-1, 0]])
def test_native_tasks_refuse_indices_outside(actions):
    env = make_vector_env("native::CartPole-v1", num_envs=2)
    env.reset(seed=1)
    with pytest.raises(SpaceError):
        env.step(torch.tensor(actions))
    tensordicts = NativeEnv("CartPole-v1", 2, categorical_action_encoding=True)
    with pytest.raises(SpaceError):
        tensordicts.step(tensordicts.reset().set("action", torch.tensor(actions)))


WRONG_ROWS = [
    [99, 99, 99],
    [-1, -1, -1],
    [-(2**63), 0, 1],
    [0, 0, 0],
    [2, 0, 0],
    [NAN, 0.0, 0.0],
    [0.0, NAN, 1.0],
    [0.5, 0.0, 1.0],
]


@pytest.mark.parametrize("row", WRONG_ROWS)
@pytest.mark.parametrize("batch", [{"num_envs": 2}, {"batch_size": (1, 2)}, {}])
def test_native_one_hot_rows_that_are_none_raise(row, batch):
    env = NativeEnv("MountainCar-v0", **batch)
    data = env.reset() if batch else env.reset(env.reset().expand(2).select().clone())
    actions = torch.tensor([[0, 1, 0], row]).expand(*data.batch_size, 3)
    with pytest.raises(SpaceError, match=r"Expected one-hot rows of 3 options|Expected whole numbers"):
        env.step(data.set("action", actions))
    if batch:
        with pytest.raises(SpaceError, match=r"Expected one-hot rows of 3 options|Expected whole numbers"):
            env.rollout(2, lambda td: td.set("action", actions))


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int64, torch.float32, torch.float64])
@pytest.mark.parametrize(("name", "options"), [("CartPole-v1", 2), ("MountainCar-v0", 3)])
def test_native_one_hot_rows_choose_the_first_one(name, options, dtype):
    """Every row of zeros and ones plays its first 1, in each dtype; a policy of equal values writes several ones."""
    rows = torch.cartesian_prod(*[torch.arange(2)] * options)[1:]
    for batch in ({"num_envs": len(rows)}, {}):
        env = NativeEnv(name, **batch)
        indices = env._numeric_actions(rows.to(dtype), torch.Size([len(rows)]))
        assert indices.tolist() == [row.index(1) for row in rows.tolist()]


def test_native_one_hot_rows_with_gradients_and_under_compile_and_vmap():
    env = NativeEnv("MountainCar-v0")
    data = env.reset(env.reset().expand(2).select().clone())
    weights = torch.tensor([[0.0, 1, 0], [0, 0, 1]], requires_grad=True)
    env.step(data.set("action", weights))["next", "observation"].sum().backward()
    assert weights.grad is not None
    assert torch.equal(weights.grad != 0, torch.tensor([[False, True, True]] * 2))

    def numeric(rows: torch.Tensor) -> torch.Tensor:
        return env._numeric_actions(rows, torch.Size([2]))

    stacked = torch.eye(3)[torch.tensor([[0, 2], [1, 1]])]
    assert torch.vmap(numeric)(stacked).tolist() == [[0, 2], [1, 1]]
    compiled = torch.compile(numeric, backend="eager", fullgraph=True)
    assert compiled(stacked[0]).tolist() == [0, 2]
    assert compiled(torch.full((2, 3), 99.0)).tolist() == [0, 0]  # unchecked, and yet in range
