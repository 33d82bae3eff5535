"""The device "cpu:0" is "cpu", wherever users give a device."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium
import pytest
import torch
from torch import nn

from vecrl.envs import (
    Compose,
    EnvBase,
    GymEnv,
    ParallelEnv,
    PendulumEnv,
    SerialEnv,
    StepCounter,
    TensorDictPrimer,
    TransformedEnv,
    make_env,
)
from vecrl.errors import SpaceError
from vecrl.policy import ModuleExpectingFlatParameters, RunningNorm
from vecrl.running_stats import RunningStats
from vecrl.specs import Bounded, Categorical, Composite, NonTensor, OneHot, Unbounded
from vecrl.vector import SyncVectorEnv, make_vector_env

CPU = torch.device("cpu")
CPU0: list[Any] = ["cpu:0", torch.device("cpu", 0)]

pendulum = partial(GymEnv, "Pendulum-v1")


@pytest.mark.parametrize("device", CPU0)
@pytest.mark.parametrize(
    "make",
    [
        partial(Unbounded, (2,)),
        partial(Bounded, 0, 1, (2,)),
        partial(Categorical, 3),
        partial(OneHot, 3),
        NonTensor,
        lambda device: Unbounded((2,)).to(device),
        lambda device: Composite(a=Unbounded((2,), device=device), b=NonTensor(), device=device),
        lambda device: Composite(a=Unbounded((2,))).to(device),
    ],
)
def test_specs(make: Callable[..., Any], device: Any) -> None:
    spec = make(device=device)
    assert spec.device == CPU
    assert spec == make(device="cpu")
    assert spec.is_in(spec.rand())


@pytest.mark.parametrize(
    "make",
    [
        pendulum,
        lambda device: pendulum().to(device),
        PendulumEnv,
        lambda device: SerialEnv(2, partial(pendulum, device=device)),
        lambda device: SerialEnv(2, pendulum, device=device),
        lambda device: SerialEnv(2, pendulum).to(device),
        lambda device: ParallelEnv(2, pendulum, device=device),
        lambda device: TransformedEnv(pendulum(), StepCounter(), device=device),
        lambda device: TransformedEnv(
            pendulum(device=device), Compose(TensorDictPrimer(h=Unbounded((3,), device=device)), StepCounter())
        ),
        partial(make_env, "native::CartPole-v1", num_envs=2),
        partial(make_env, "Pendulum-v1"),
    ],
)
def test_tensordict_environments(make: Callable[..., EnvBase]) -> None:
    env = make(device="cpu:0")
    try:
        env.check_env_specs()
        rollout = env.rollout(3)
        assert env.device == rollout.device == CPU
    finally:
        env.close()


def test_the_default_device() -> None:
    with torch.device("cpu:0"):
        assert Unbounded((2,)).device == CPU
        PendulumEnv().check_env_specs()


def test_the_device_of_a_stored_rollout() -> None:
    assert pendulum().rollout(3, storing_device="cpu:0").device == CPU


@pytest.mark.parametrize("name", ["gym::CartPole-v1", "native::CartPole-v1"])
def test_vector_environments(name: str) -> None:
    envs, others = (make_vector_env(name, num_envs=2, device=device) for device in ("cpu:0", "cpu"))
    try:
        assert torch.equal(envs.reset(seed=0)[0], others.reset(seed=0)[0])
        actions = torch.tensor([0, 1])
        step, other = envs.step(actions), others.step(actions)
        assert all(torch.equal(*parts) and parts[0].device == CPU for parts in zip(step[:4], other[:4], strict=True))
        assert getattr(envs, "device", CPU) == CPU
    finally:
        envs.close()
        others.close()


@pytest.mark.parametrize("name", ["gym::CartPole-v1", "native::CartPole-v1", "mujoco::Hopper-v5"])
def test_devices_that_do_not_exist(name: str) -> None:
    with pytest.raises(SpaceError, match=r"Expected a device, such as 'cpu' or 'cuda:0', got 'gpu'\."):
        make_vector_env(name, num_envs=2, device="gpu")


def test_sync_vector_environments() -> None:
    envs = SyncVectorEnv([lambda: gymnasium.make("CartPole-v1")], device="cpu:0")
    assert envs.reset(seed=0)[0].device == CPU
    envs.close()


def test_what_is_on_the_cpu_already_is_not_copied() -> None:
    norm = RunningNorm(shape=2, device="cpu:0")
    assert norm.to("cpu:0") is norm
    assert norm.to("cpu") is norm
    function = ModuleExpectingFlatParameters(nn.BatchNorm1d(2))
    assert function.to("cpu:0") is function
    assert RunningStats(2, device="cpu:0").device == CPU
