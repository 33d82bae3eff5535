"""Transforms of dtypes, devices and memory."""

from typing import Any

import pytest
import torch
from tensordict import TensorDict
from tests.fixtures.tensordict_envs import BoundedValuesEnv

from vecrl.envs import check_env_specs
from vecrl.envs.transforms import (
    Compose,
    DeviceCastTransform,
    DoubleToFloat,
    DTypeCastTransform,
    PinMemoryTransform,
    StepCounter,
    TransformedEnv,
)
from vecrl.specs import Bounded, Composite, Unbounded

BATCHES = pytest.mark.parametrize("batch", [(), (4,)], ids=["single", "batch"])
DOUBLE = torch.float64


@BATCHES
def test_double_to_float_casts_all_doubles(batch: Any) -> None:
    env = TransformedEnv(BoundedValuesEnv(*batch, dtype=DOUBLE), DoubleToFloat())
    transform = env.transform
    assert (transform.in_keys, transform.in_keys_inv) == (["observation", "image", "reward"], ["action"])
    root = env.step(env.rand_action(env.reset()))
    assert root["action"].dtype == root["next", "reward"].dtype == root["next", "image"].dtype == torch.float32
    assert env.base_env.given["action"].dtype == DOUBLE
    check_env_specs(env)


def test_only_named_keys_are_cast() -> None:
    env = TransformedEnv(BoundedValuesEnv(4, dtype=DOUBLE), DoubleToFloat(["observation"], ["small"]))
    assert env.observation_spec["small"].dtype == torch.float32
    assert env.observation_spec["observation"].dtype == env.reward_spec.dtype == env.action_spec.dtype == DOUBLE
    check_env_specs(env)
    env = TransformedEnv(BoundedValuesEnv(4, dtype=DOUBLE), DoubleToFloat(in_keys_inv=["action"]))
    assert env.transform.in_keys == ["observation", "image", "reward"]  # as in TorchRL
    assert env.action_spec.dtype == torch.float32
    check_env_specs(env)


def test_bounds_of_actions_are_rounded_inwards() -> None:
    env = TransformedEnv(BoundedValuesEnv(dtype=DOUBLE), DoubleToFloat())
    assert torch.tensor(0.1).double() > env.base_env.action_spec.high[0]  # the nearest value would be out of bounds
    for end in (env.action_spec.low, env.action_spec.high):
        assert env.base_env.action_spec.is_in(end.double())
    assert env.observation_spec["observation"] == Bounded(-2, 4, (3,))


def test_integers_are_cast() -> None:
    env = TransformedEnv(BoundedValuesEnv(4), DTypeCastTransform(torch.int64, torch.float32))
    assert env.transform.in_keys == ["index", "kind"]
    assert env.observation_spec["index"] == Bounded(0, 9, (4, 1))
    check_env_specs(env)


def test_stored_data_are_cast_at_every_level() -> None:
    def data() -> TensorDict:
        x = torch.zeros(2, 3, 1)
        return TensorDict({"a": x.double(), "b": x, "next": TensorDict({"a": x.double()}, [2, 3])}, [2, 3])

    cast = DoubleToFloat()(data())
    assert cast["a"].dtype == cast["next", "a"].dtype == torch.float32
    back = DoubleToFloat().inv(cast)
    assert back["a"].dtype == back["b"].dtype == back["next", "a"].dtype == DOUBLE
    assert cast["a"].dtype == torch.float32
    subset = DoubleToFloat(["a"])(data())
    assert (subset["a"].dtype, subset["next", "a"].dtype) == (torch.float32, DOUBLE)
    assert DoubleToFloat(["a"]).inv(subset)["a"].dtype == torch.float32


@BATCHES
def test_device_of_all_entries(batch: Any) -> None:
    env = TransformedEnv(BoundedValuesEnv(*batch), Compose(DeviceCastTransform("cpu:0"), StepCounter(max_steps=2)))
    assert env.device == torch.device("cpu")
    assert env.transform[0].orig_device == torch.device("cpu")
    assert env.rollout(5).device == torch.device("cpu")
    check_env_specs(env)
    env = TransformedEnv(BoundedValuesEnv(*batch), DeviceCastTransform("meta"))
    assert env.device == env.action_spec.device == env.observation_spec["image"].device == torch.device("meta")
    data = DeviceCastTransform("meta")(TensorDict({"x": torch.zeros(2), "next": TensorDict({"x": torch.zeros(2)})}))
    assert data.device == torch.device("meta")
    assert data["next", "x"].is_meta


def test_device_of_some_keys() -> None:
    cast = DeviceCastTransform("meta", in_keys=["observation"], out_keys=["there"])
    env = TransformedEnv(BoundedValuesEnv(4, device="cpu"), cast)
    assert env.device is None
    root = env.step(env.rand_action(env.reset()))
    assert root["next", "there"].device.type == "meta"
    assert root["next", "observation"].device.type == "cpu"
    assert env.observation_spec["there"].device.type == "meta"


def test_device_of_inverse_keys() -> None:
    env = TransformedEnv(BoundedValuesEnv(4, device="cpu"), DeviceCastTransform("cpu:0", in_keys_inv=["action"]))
    env.step(env.rand_action(env.reset()))
    assert env.base_env.given["action"].device == torch.device("cpu")
    with pytest.raises(RuntimeError, match="orig_device"):
        DeviceCastTransform("cpu").inv(TensorDict({"x": torch.zeros(2)}))
    available = DeviceCastTransform("cpu", orig_device="meta").inv(TensorDict({"x": torch.zeros(2)}))
    assert available["x"].is_meta


def test_pinned_memory() -> None:
    env = TransformedEnv(BoundedValuesEnv(4), PinMemoryTransform())
    check_env_specs(env)
    assert env.reset()["observation"].is_pinned() == torch.cuda.is_available()


def test_missing_specs_are_skipped() -> None:
    specs = Composite(full_state_spec=None, full_action_spec=Composite(push=Unbounded((1,), dtype=DOUBLE)))
    changed = DoubleToFloat(in_keys_inv=["push"]).transform_input_spec(specs)
    assert changed["full_state_spec"] is None
    assert changed["full_action_spec", "push"].dtype is torch.float32
