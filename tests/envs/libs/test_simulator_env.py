"""`SimulatorEnv` over native tasks and nested simulators; `make_env` of every kind of name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box
from tests.fixtures.nested_simulators import NestedBatch, NestedEnv, StatelessBatch

from vecrl.engine.simulator import BatchStep
from vecrl.envs import (
    EnvBase,
    GymEnv,
    GymWrapper,
    NativeEnv,
    ParallelEnv,
    SerialEnv,
    SimulatorEnv,
    check_env_specs,
    env_maker,
    make_env,
)
from vecrl.envs.seed_chain import seed_chain
from vecrl.errors import SpaceError
from vecrl.simulators import registry
from vecrl.simulators.native import make_native
from vecrl.testing import EnvConformance
from vecrl.testing.envs import assert_equal_tensordicts, seeded
from vecrl.vector import BatchedVectorEnv

N = 3


class TestNative(EnvConformance):
    num_steps = 40

    def make(self) -> EnvBase:
        return SimulatorEnv("native::CartPole-v1", num_envs=N, max_episode_steps=15)


class TestSingle(EnvConformance):
    num_steps = 30

    def make(self) -> EnvBase:
        return SimulatorEnv("native::Pendulum-v1", max_episode_steps=12)


class TestNested(EnvConformance):
    num_steps = 25

    def make(self) -> EnvBase:
        return SimulatorEnv(NestedBatch(N))


class TestNestedCategorical(EnvConformance):
    num_steps = 25

    def make(self) -> EnvBase:
        return SimulatorEnv(NestedBatch(2 * N), batch_size=(2, N), categorical_action_encoding=True)


class TestPixels(EnvConformance):
    def make(self) -> EnvBase:
        return SimulatorEnv(NestedBatch(2, "rgb_array"), from_pixels=True, pixels_only=False)


@pytest.mark.parametrize("break_when_any_done", [True, False])
def test_equals_the_vector_environment(break_when_any_done: bool) -> None:
    env = SimulatorEnv("native::CartPole-v1", num_envs=N, max_episode_steps=15)
    vector = BatchedVectorEnv(make_native("CartPole-v1", N, max_episode_steps=15))
    env.set_seed(3)
    rollout = env.rollout(30, break_when_any_done=break_when_any_done)
    vector.tensor_reset(seed=list(seed_chain(3, N)))
    obs, _ = vector.tensor_reset()  # `set_seed` resets once too
    for t in range(rollout.shape[1]):
        step = rollout[:, t]
        assert torch.equal(step["observation"], obs)
        obs, reward, terminated, truncated, info = vector.tensor_step(step["action"].argmax(-1))
        assert torch.equal(step["next", "observation"], info["final_obs"])
        assert torch.equal(step["next", "reward"][:, 0], reward)
        assert torch.equal(step["next", "terminated"][:, 0], terminated)
        assert torch.equal(step["next", "truncated"][:, 0], truncated)
    assert rollout.shape[1] < 30 if break_when_any_done else rollout["next", "done"].sum() > N


def test_entries_of_nested_spaces() -> None:
    env = SimulatorEnv(NestedBatch(2 * N), batch_size=(2, N))
    env._seed_next_reset(7)
    root = env.reset()
    assert root["clock", "1", "seed"].flatten().tolist() == list(seed_chain(7, 2 * N))
    assert root["clock", "0"].shape == (2, N, 100)
    step = env.rand_step(root)
    assert step["mode", "0"].shape == (2, N, 3)
    assert step["mode", "1"].shape == (2, N, 6)
    choices = torch.stack(step["mode", "1"].split([2, 4], -1)[0].argmax(-1, keepdim=True).unbind(), 0)
    choices = choices + step["mode", "1"][..., 2:].argmax(-1, keepdim=True)
    assert torch.equal(step["next", "reward"], choices.float())
    factor = step["mode", "0"].argmax(-1, keepdim=True) + 1
    torch.testing.assert_close(step["next", "position"], root["position"] + step["move"] * factor)


def test_resets_with_masks_and_seeds() -> None:
    env = SimulatorEnv(NestedBatch(N))
    first, second = seed_chain(5, N), seed_chain(50, N)
    env._seed_next_reset(5)
    root = env.step_mdp(env.rand_step(env.reset()))
    env._seed_next_reset(50)
    mask = torch.tensor([[False], [True], [False]])
    root = env.reset(root.set("_reset", mask))
    assert root["clock", "1", "seed"].flatten().tolist() == [first[0], second[1], first[2]]
    assert root["clock", "0"].argmax(-1).tolist() == [1, 0, 1]
    assert env.reset()["clock", "1", "seed"][0] == first[0], "seeds are used once"


def test_steps_of_some_rows() -> None:
    for simulator in (NestedBatch(N), StatelessBatch(N)):
        env = SimulatorEnv(simulator)
        root = env.rand_action(env.reset())
        mask = torch.tensor([True, False, True])
        if isinstance(simulator, StatelessBatch):
            with pytest.raises(NotImplementedError, match="on a robot"):
                env.step(root.clone().set("_step", mask))
            root["done"][1] = True  # so that its step may be anything
        step = env.step(root.set("_step", mask))
        assert step["next", "clock", "0"].argmax(-1).tolist() == [1, 0, 1]
    env._seed_next_reset(1)
    root = env.step_mdp(step).set("_reset", mask.unsqueeze(-1))
    with pytest.raises(NotImplementedError, match="needs a simulator with states"):
        env.reset(root)


def test_pixels() -> None:
    env = make_env("native::Pendulum-v1", from_pixels=True)
    env.set_seed(0)  # a pendulum may also stay within a pixel of its start for three steps
    rollout = env.rollout(3)
    assert rollout["next", "pixels"].dtype == torch.uint8
    assert rollout["pixels"].shape == (3, 500, 500, 3)
    assert "observation" not in rollout.keys()  # noqa: SIM118
    assert not torch.equal(rollout["pixels"][0], rollout["next", "pixels"][-1])
    both = SimulatorEnv(NestedBatch(2, "rgb_array"), from_pixels=True, pixels_only=False).rollout(2)
    assert both["next", "pixels"][0, -1].unique().tolist() == [2]
    assert "position" in both.keys()  # noqa: SIM118
    with pytest.raises(SpaceError, match="render_mode 'rgb_array' with from_pixels, got None"):
        SimulatorEnv(NestedBatch(2), from_pixels=True)


def test_infos_become_entries() -> None:
    env = SimulatorEnv(NestedBatch(N)).auto_register_info_dict()
    assert env.observation_spec["factor"].shape == (N,)
    rollout = env.rollout(4, break_when_any_done=False)
    assert torch.equal(rollout["next", "factor"], rollout["mode", "0"].argmax(-1) + 1)
    check_env_specs(env)


class SlopeBatch(NestedBatch):
    """Keeps the graphs of its results."""

    observation_space = Box(-np.inf, np.inf, (1,), np.float32)
    action_space = Box(-1, 1, (1,), np.float32)
    differentiable = True

    def _obs(self) -> torch.Tensor:
        return self.position[:, :1].clone()

    def step(self, actions: torch.Tensor) -> BatchStep:
        self.position = self.position + self.slope * actions
        never = torch.zeros(self.num_envs, dtype=torch.bool)
        return BatchStep(self._obs(), self.position.sum(1), never, never)


def test_gradients_flow_through_the_simulator() -> None:
    simulator: Any = SlopeBatch(2)
    simulator.slope = torch.tensor(3.0, requires_grad=True)
    env = SimulatorEnv(simulator)
    action = torch.ones(2, 1, requires_grad=True)
    root = env.reset()
    for _ in range(3):
        step, root = env.step_and_maybe_reset(root.set("action", action))
    step["next", "reward"].sum().backward()
    assert action.grad is not None
    assert action.grad.tolist() == [[18.0], [18.0]]  # three steps, two coordinates, slope 3
    assert simulator.slope.grad == 12
    simulator.position = torch.zeros(2, 2)
    assert env.rollout(2)["next", "observation"].requires_grad


def test_batch_sizes_and_errors() -> None:
    assert SimulatorEnv("native::CartPole-v1").batch_size == ()
    assert SimulatorEnv("native::CartPole-v1", batch_size=[2, 2]).rollout(2).shape == (2, 2, 2)
    assert SimulatorEnv(NestedBatch(1), batch_size=()).rollout(2).shape == (2,)
    for arguments, message in [
        ((NestedBatch(3), 4), r"batch size of 3 rows, got \(4,\)"),
        (("native::CartPole-v1", 3, [4]), "contradict each other"),
        (("CartPole-v1",), r"steps many environments in one call, got 'CartPole-v1'\. Use vecrl"),
    ]:
        simulator, num_envs, batch_size = (*arguments, None, None)[:3]
        with pytest.raises(ValueError, match=message):
            SimulatorEnv(simulator, num_envs, batch_size=batch_size)
    with pytest.raises(TypeError, match=r"got g\. Omit them"):
        SimulatorEnv(NestedBatch(3), g=9.81)
    with pytest.raises(TypeError, match=r"Expected arguments of CartPole-v1 \(device, .*got 'gravity'"):
        SimulatorEnv("native::CartPole-v1", gravity=9.81)
    env = SimulatorEnv(NestedBatch(2))
    with pytest.raises(SpaceError, match=r"actions of shape \(2, 2\) at \('move',\), got shape \(2, 3\)"):
        env.step(env.rand_action(env.reset()).set("move", torch.zeros(2, 3)))


# -- by name -----------------------------------------------------------------------------------------


@pytest.fixture
def registered() -> Iterator[None]:
    registry.register("batch", make_batch=lambda name, num_envs, device=None, infos=True: NestedBatch(num_envs))
    registry.register("single", env_fn=lambda name, render_mode=None: NestedEnv)
    yield
    registry.unregister("batch")
    registry.unregister("single")


@pytest.mark.parametrize(
    ("name", "num_envs", "kind"),
    [
        ("native::CartPole-v1", 3, NativeEnv),
        ("native::CartPole-v1", None, NativeEnv),
        ("CartPole-v1", 2, GymEnv),
        ("gym::CartPole-v1", None, GymEnv),
        ("batch::x", 3, SimulatorEnv),
        ("batch::x", None, SimulatorEnv),
        ("single::x", 2, GymWrapper),
        ("single::x", None, GymWrapper),
    ],
)
def test_every_name_makes_an_environment(registered: None, name: str, num_envs: int | None, kind: type) -> None:
    env = make_env(name, num_envs)
    assert type(env) is (NativeEnv if num_envs is None and kind is NativeEnv else kind)
    if kind is NativeEnv and num_envs is None:
        assert not env.batch_locked
    assert env.rollout(2).batch_size == (*(() if num_envs is None else (num_envs,)), 2)
    check_env_specs(env)
    env.close()


def test_single_and_batched_entries_give_equal_rollouts(registered: None) -> None:
    batch, single = make_env("batch::x"), make_env("single::x")
    for env in (batch, single):
        env.set_seed(4)
    first, second = (seeded(0, env.rollout, 20) for env in (batch, single))
    assert_equal_tensordicts(first.exclude("next"), second.exclude("next"), "roots")
    assert_equal_tensordicts(first["next"], second["next"], "next")


def test_names_of_users_in_workers(registered: None) -> None:
    with ParallelEnv(2, env_maker("batch::x", 3)) as env:
        assert env.rollout(1).batch_size == (2, 3, 1)
    with pytest.raises(ValueError, match="one of the prefixes"):
        env_maker("nothing::x")


def test_a_class_without_batches_is_batched(monkeypatch: pytest.MonkeyPatch) -> None:
    class Named(GymWrapper):
        def __init__(self, first: str, second: str):
            super().__init__(NestedEnv())
            self.names = first, second

        @classmethod
        def from_name(cls, name: str) -> Named:
            return cls(*name.split("-"))

    monkeypatch.setattr("vecrl.envs.libs.gym.Named", Named, raising=False)
    registry.register("named", env_fn=lambda name: NestedEnv, env_class="gym:Named")
    try:
        single, batch = make_env("named::a-b"), make_env("named::a-b", 2)
    finally:
        registry.unregister("named")
    assert single.names == ("a", "b")
    assert type(batch) is SerialEnv
    assert batch.rollout(3).batch_size == (2, 3)
