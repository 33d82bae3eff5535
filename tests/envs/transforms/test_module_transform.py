"""Modules as transforms."""

from typing import Any

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import nn

from vecrl.envs import GymEnv, check_env_specs
from vecrl.envs.transforms import ModuleTransform, TransformedEnv
from vecrl.specs import Bounded, Composite, Unbounded


def features() -> TensorDictModule:
    return TensorDictModule(nn.Linear(3, 2), in_keys=["observation"], out_keys=["features"])


def env_with(**options: Any) -> TransformedEnv:
    return TransformedEnv(GymEnv("Pendulum-v1"), ModuleTransform(**options))


def test_outputs_of_resets_and_steps() -> None:
    module = features()
    env = env_with(module=module, no_grad=True)
    check_env_specs(env)
    assert (env.transform.in_keys, env.transform.out_keys) == (["observation"], ["features"])
    assert env.observation_spec["features"].shape == (2,)
    rollout = env.rollout(3)
    for td in (rollout, rollout["next"]):
        torch.testing.assert_close(td["features"], module.module(td["observation"]))


def test_gradients() -> None:
    data = TensorDict({"observation": torch.ones(3)})
    assert ModuleTransform(module=features())(data.clone())["features"].requires_grad
    assert not ModuleTransform(module=features(), no_grad=True)(data.clone())["features"].requires_grad
    with torch.no_grad():
        assert not ModuleTransform(module=features())(data.clone())["features"].requires_grad


def test_a_factory_is_called_once() -> None:
    calls: list[int] = []

    def make() -> TensorDictModule:
        calls.append(1)
        return features()

    env = env_with(module_factory=make)
    env.rollout(3)
    assert calls == [1]
    assert [name for name, _ in env.transform.named_parameters()] == ["module.module.weight", "module.module.bias"]


def test_inverse() -> None:
    double = TensorDictModule(lambda action: action * 2, in_keys=["half"], out_keys=["action"])

    def change(spec: Composite) -> None:
        del spec["action"]
        spec["half"] = Bounded(-1, 1, (1,))

    env = env_with(module=double, inverse=True, action_spec_transform=change)
    assert (env.transform.in_keys_inv, env.transform.out_keys_inv) == (["action"], ["half"])
    assert env.action_keys == ["half"]
    check_env_specs(env)
    data = TensorDict({"half": torch.ones(1)})
    assert env.transform.inv(data)["action"] == 2
    assert env.transform(data.copy()).keys() == data.keys()
    assert ModuleTransform(module=double).inv(data).keys() == data.keys()


def test_given_specs() -> None:
    whole = Composite(features=Unbounded((2,)), observation=Unbounded((3,)))
    env = env_with(module=features(), no_grad=True, observation_spec_transform=whole)
    assert env.observation_spec == whole
    env = env_with(module=features(), no_grad=True, observation_spec_transform=lambda s: s.set("features", whole[0]))
    reward = TensorDictModule(lambda reward: reward.clamp(-1, 0), in_keys=["reward"], out_keys=["reward"])
    env = env_with(module=_tolerant(reward), reward_spec_transform=Bounded(-1, 0, (1,)))
    assert env.full_reward_spec["reward"].low == -1
    check_env_specs(env)


def _tolerant(module: TensorDictModule) -> Any:
    """Returns a function that calls a module unless there is no reward, as in the output of a reset."""
    return lambda td: td if td.get("reward", None) is None else module(td)


def test_a_device() -> None:
    transform = ModuleTransform(module=features().double().float(), device="cpu", no_grad=True)
    data = TensorDict({"observation": torch.ones(3)})
    assert transform(data)["features"].device.type == "cpu"
    meta = ModuleTransform(module=features(), device="meta")
    assert next(meta.module.parameters()).device.type == "meta"
    env = TransformedEnv(GymEnv("Pendulum-v1"), transform)
    check_env_specs(env)


def test_done_flags_that_a_module_may_change() -> None:
    assert ModuleTransform(module=features()).preserves_done
    assert not ModuleTransform(module=lambda td: td).preserves_done
    flags = TensorDictModule(lambda done: ~done, in_keys=["done"], out_keys=["done"])
    assert not ModuleTransform(module=flags).preserves_done


def test_errors() -> None:
    with pytest.raises(ValueError, match="got neither"):
        ModuleTransform()
    with pytest.raises(ValueError, match="got both"):
        ModuleTransform(module=features(), module_factory=features)
