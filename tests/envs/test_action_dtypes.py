"""Whole numbers as actions for specs of integers and flags: the same in single environments and in batches."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tensordict import TensorDict, TensorDictBase

from vecrl.envs import EnvBase, GymEnv, NativeEnv, SerialEnv, TransformedEnv
from vecrl.errors import SpaceError
from vecrl.specs import Binary, Bounded, Composite, OneHot, TensorSpec, Unbounded

SPECS = {
    "int8": Bounded(-5, 5, (2,), dtype=torch.int8),
    "bool": Binary(2, (2,), dtype=torch.bool),
    "one-hot": OneHot(2),
}


class EchoEnv(EnvBase):
    """Returns the dtype and values of the action that it got."""

    def __init__(self, action_spec: TensorSpec):
        super().__init__()
        self.action_spec = action_spec.clone()
        self.observation_spec = Composite(received=Unbounded((2,)), is_spec_dtype=Unbounded((), dtype=torch.bool))

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        return TensorDict({"received": torch.zeros(2), "is_spec_dtype": torch.tensor(False)})

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        action = tensordict["action"]
        is_spec_dtype = torch.tensor(action.dtype == self.action_spec.dtype)
        entries = {"received": action.float(), "is_spec_dtype": is_spec_dtype, "reward": torch.zeros(1)}
        return TensorDict({**entries, "done": torch.zeros(1, dtype=torch.bool)})

    def _set_seed(self, seed: int | None) -> None:
        pass


def _make(kind: str, spec: TensorSpec) -> EnvBase:
    if kind == "single":
        return EchoEnv(spec)
    if kind == "transformed":
        return TransformedEnv(EchoEnv(spec))
    return SerialEnv(2, lambda: EchoEnv(spec))


@pytest.mark.parametrize("kind", ["single", "transformed", "batch"])
@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.uint8])
def test_whole_numbers_are_cast(kind: str, name: str, dtype: torch.dtype) -> None:
    env = _make(kind, SPECS[name])
    root = env.reset()
    action = torch.tensor([1, 0], dtype=dtype).expand(*env.batch_size, 2).clone()
    stepped = env.step(root.set("action", action))
    assert stepped["action"] is action, "the caller's data are not changed"
    assert stepped["next", "is_spec_dtype"].all()
    assert torch.equal(stepped["next", "received"], action.float())
    env.close()


@pytest.mark.parametrize("kind", ["single", "transformed", "batch"])
@pytest.mark.parametrize(
    ("name", "values", "text"),
    [
        ("int8", [0.5, 1.0], r"whole numbers that torch.int8 can hold at 'action', got 0\.5 of torch.float32"),
        ("int8", [1.0, torch.nan], "got nan"),
        ("int8", [300, 1], "got 300 of torch.int64"),
        ("bool", [1.0, 2.0], r"torch.bool can hold at 'action', got 2\.0"),
        ("one-hot", [0.25, 0.75], r"got 0\.25"),
    ],
)
def test_other_numbers_are_refused(kind: str, name: str, values: list[float], text: str) -> None:
    env = _make(kind, SPECS[name])
    root = env.reset()
    root["action"] = torch.tensor(values).expand(*env.batch_size, 2).clone()
    with pytest.raises(SpaceError, match=text):
        env.step(root)
    env.close()


def test_actions_with_gradients_keep_their_dtype() -> None:
    for kind in ("single", "batch"):
        env = _make(kind, SPECS["one-hot"])
        root = env.reset()
        weights = torch.rand(*env.batch_size, 2, requires_grad=True)
        one_hot = (weights > weights.mean(-1, keepdim=True)).float()
        stepped = env.step(root.set("action", one_hot + weights - weights.detach()))
        stepped["next", "received"].sum().backward()
        assert torch.equal(weights.grad, torch.ones_like(weights))
        env.close()


@pytest.mark.parametrize("make", [GymEnv, NativeEnv])
def test_indices_may_be_floats(make: Any) -> None:
    results: list[torch.Tensor] = []
    single = make("CartPole-v1", categorical_action_encoding=True, **({} if make is GymEnv else {"num_envs": 1}))
    batch = SerialEnv(2, lambda: make("CartPole-v1", categorical_action_encoding=True, batch_size=[]))
    for env in (single, batch):
        for action in (1.0, 1):
            env.set_seed(0)
            root = env.reset()
            results.append(env.step(root.set("action", torch.full(env.batch_size, action)))["next", "observation"])
        with pytest.raises(SpaceError, match=r"whole numbers that torch.int64 can hold.*got 0\.5"):
            env.step(env.reset().set("action", torch.full(env.batch_size, 0.5)))
    single.close()
    batch.close()
    assert all(torch.equal(result.reshape(-1, 4)[0], results[0].reshape(-1, 4)[0]) for result in results)
