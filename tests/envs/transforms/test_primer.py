"""Entries that a policy needs and the environment does not have."""

from typing import Any

import pytest
import torch
from tensordict import TensorDict, TensorDictBase
from tests.fixtures.tensordict_envs import CountingRowsEnv, GroupsEnv

from vecrl.envs import NativeEnv, PendulumEnv, SerialEnv, check_env_specs
from vecrl.envs.transforms import Compose, StepCounter, TensorDictPrimer, TransformedEnv, gSDENoise
from vecrl.specs import Bounded, Categorical, Composite, Unbounded
from vecrl.testing import IndependentRowsEnv


def primed(*args: Any, **kwargs: Any) -> TransformedEnv:
    return TransformedEnv(CountingRowsEnv(2, 3), TensorDictPrimer(*args, **kwargs))


def test_recurrent_states_are_carried() -> None:
    def policy(td: TensorDictBase) -> TensorDictBase:
        td["action"] = torch.zeros(2, 2)
        td["next", "hidden"] = td["hidden"] + 1
        return td

    rollout = primed(hidden=Unbounded((1,))).rollout(5, policy, break_when_any_done=False)
    assert rollout["hidden"].squeeze(-1).tolist() == [[0, 1, 0, 1, 0], [0, 1, 2, 0, 1]]
    assert rollout["next", "hidden"].squeeze(-1).tolist() == [[1, 2, 1, 2, 1], [1, 2, 3, 1, 2]]


def test_primers_are_carried_without_a_policy() -> None:
    env = primed(hidden=Unbounded((2,)), default_value=1.5)
    root = env.reset()
    root["hidden"] += 1
    assert (env.rand_step(root)["next", "hidden"] == 2.5).all()
    assert (env.rand_step(env.reset().exclude("hidden"))["next", "hidden"] == 1.5).all()


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, [0, 0]),
        (3, [3, 3]),
        (lambda: torch.tensor([7.0, 8.0]), [7, 8]),
        (lambda: 2.0, [2, 2]),
        ({"hidden": 4.0}, [4, 4]),
        ({"hidden": lambda: torch.tensor([5.0, 6.0])}, [5, 6]),
        ({"hidden": torch.tensor([1.0, 2.0])}, [1, 2]),
    ],
)
def test_default_values(value: Any, expected: list[float]) -> None:
    assert primed(hidden=Unbounded((2,)), default_value=value).reset()["hidden"].tolist() == [expected] * 2


@pytest.mark.parametrize(
    "value", [2, 2.0, torch.tensor(2), lambda: torch.tensor(2), lambda: 2, {"a": lambda: torch.tensor(2)}]
)
def test_default_values_of_single_numbers(value: Any) -> None:
    env = TransformedEnv(PendulumEnv(), TensorDictPrimer(a=Categorical(3), default_value=value))
    assert env.reset()["a"].equal(torch.tensor(2))
    assert env.rollout(2)["next", "a"].tolist() == [2, 2]


@pytest.mark.parametrize("zero", [0, 0.0, torch.tensor(0.0)])
def test_random_values_accept_a_default_of_zero(zero: Any) -> None:
    assert primed(hidden=Bounded(2, 3, (2,)), random=True, default_value=zero).reset()["hidden"].min() >= 2


def test_random_values_are_in_the_spec_and_differ() -> None:
    env = primed(hidden=Bounded(2, 3, (2,)), random=True)
    check_env_specs(env)
    hidden = env.reset()["hidden"]
    assert ((hidden >= 2) & (hidden <= 3)).all()
    assert hidden.unique().numel() == 4


def test_single_default_value_receives_the_reset_mask() -> None:
    reset_request: list[list[bool]] = []

    def make(reset: torch.Tensor) -> TensorDict:
        reset_request.append(reset.tolist())
        n = int(reset.sum())
        return TensorDict({"a": torch.full((n, 1), float(len(reset_request))), "b": torch.zeros(n)}, [n])

    env = primed(a=Unbounded((1,)), b=Unbounded(()), default_value=make, single_default_value=True)
    root = env.reset()
    root = env.reset(root.set("_reset", torch.tensor([[False], [True]])))
    assert reset_request == [[True, True], [False, True]]
    assert root["a"].flatten().tolist() == [1, 2]


def test_specs_are_expanded_unless_they_have_the_batch_size() -> None:
    assert primed(x=Unbounded((2, 4))).reset()["x"].shape == (2, 2, 4)
    assert primed(x=Unbounded((2, 4)), expand_specs=True).reset()["x"].shape == (2, 2, 4)
    assert primed(x=Unbounded((2, 4)), expand_specs=False).reset()["x"].shape == (2, 4)
    assert primed(Composite(x=Unbounded((2, 4)), shape=(2,))).reset()["x"].shape == (2, 4)
    assert primed({"x": Unbounded((4,))}).full_state_spec["x"].shape == (2, 4)


def test_group_entries_are_reset_with_their_groups() -> None:
    env = TransformedEnv(GroupsEnv(("a", "b"), root=False), TensorDictPrimer({("a", "h"): Unbounded((2, 1))}))
    root = env.reset()
    root["a", "h"] += 1
    root["a", "_reset"] = torch.tensor([[True], [False]])
    root["b", "_reset"] = torch.ones(2, 1, dtype=torch.bool)
    assert env.reset(root)["a", "h"].flatten().tolist() == [0, 1]


def test_call_before_env_reset_primes_the_reset_input() -> None:
    seen: list[Any] = []

    class Seeing(IndependentRowsEnv):
        def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
            seen.append(None if tensordict is None else tensordict.get("hidden", None))
            return super()._reset(tensordict, **kwargs)

    for before_value in (True, False):
        primer = TensorDictPrimer(hidden=Unbounded((1,)), default_value=2, call_before_env_reset=before_value)
        assert TransformedEnv(Seeing(0), primer).reset()["hidden"].tolist() == [2]
    assert seen == [torch.tensor([2.0]), None]


def test_reset_key_selects_primed_rows() -> None:
    env = primed(hidden=Unbounded(()), reset_key="restart")
    root = env.reset()
    root["hidden"] += 1
    assert env.reset(root.set("restart", torch.tensor([True, False])))["hidden"].tolist() == [0, 1]


def test_stored_data_keep_their_entries() -> None:
    primer = TensorDictPrimer(hidden=Unbounded((2,)), default_value=2)
    assert primer(TensorDict({}, [4]))["hidden"].tolist() == [[2, 2]] * 4
    assert TensorDictPrimer(hidden=Unbounded((4, 2)))(TensorDict({}, [4]))["hidden"].shape == (4, 2)


def test_contradicting_arguments_raise() -> None:
    with pytest.raises(ValueError, match="both"):
        TensorDictPrimer({"a": Unbounded(())}, b=Unbounded(()))
    with pytest.raises(ValueError, match="both"):
        TensorDictPrimer(a=Unbounded(()), random=True, default_value=1.0)
    with pytest.raises(ValueError, match="keys"):
        TensorDictPrimer(a=Unbounded(()), default_value={"b": 1.0})


def test_primed_entries_reach_every_reset() -> None:
    seen: list[float] = []

    class Sees(IndependentRowsEnv):
        def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
            assert tensordict is not None
            seen.append(tensordict["hidden"].sum().item())
            return super()._reset(tensordict, **kwargs)

    primer = TensorDictPrimer(hidden=Unbounded((1,)), default_value=2.0, call_before_env_reset=True)
    env = TransformedEnv(Sees((0,)), Compose(primer, StepCounter(max_steps=2)))
    env.rollout(6, break_when_any_done=False)
    assert len(seen) >= 3
    assert set(seen) == {2.0}


def test_call_before_env_reset_applies_to_autoreset() -> None:
    primer = TensorDictPrimer(hidden=Unbounded((1,)), default_value=2.0, call_before_env_reset=True)
    env = TransformedEnv(SerialEnv(2, IndependentRowsEnv), Compose(primer, StepCounter(max_steps=3)))
    root = env.reset()
    for _ in range(8):
        with_action = env.rand_action(root).set("next", TensorDict({"hidden": torch.full((2, 1), 9.0)}, [2]))
        step_td, root = env.step_and_maybe_reset(with_action)
        assert root["hidden"].equal(torch.where(step_td["next", "done"], 2.0, 9.0))


class TestStateDependentNoise:
    def test_each_episode_has_its_own_noise(self) -> None:
        env = TransformedEnv(CountingRowsEnv(2, 3), gSDENoise(state_dim=3, action_dim=2))
        noise = env.rollout(4, break_when_any_done=False)["_eps_gSDE"]
        assert noise.shape == (2, 4, 2, 3)
        assert noise[0, 0].equal(noise[0, 1])
        assert noise[1, 0].equal(noise[1, 2])
        assert not noise[0, 1].equal(noise[0, 2])
        assert not noise[0, 0].equal(noise[1, 0])

    def test_noise_is_normal(self) -> None:
        torch.manual_seed(0)
        noise = TransformedEnv(CountingRowsEnv(1), gSDENoise(100, 100)).reset()["_eps_gSDE"]
        assert abs(noise.mean()) < 0.05
        assert abs(noise.std() - 1) < 0.05

    def test_shapes(self) -> None:
        for options, shape in (
            ({"state_dim": 3, "action_dim": 2, "shape": (2,)}, (2, 2, 3)),
            ({"state_dim": 3, "action_dim": 2, "shape": (5,)}, (2, 5, 2, 3)),
            ({"shape": (2,)}, (2, 1)),
            ({}, (2, 1)),
        ):
            env = TransformedEnv(CountingRowsEnv(2, 3), gSDENoise(**options))
            noise = env.reset()["_eps_gSDE"]
            assert noise.shape == shape
            assert bool(noise.any()) == ("state_dim" in options)
            check_env_specs(env)

    def test_errors(self) -> None:
        with pytest.raises(ValueError, match="Expected state_dim and action_dim, or neither"):
            gSDENoise(state_dim=3)


def test_scalars_of_a_single_environment() -> None:
    env = TransformedEnv(IndependentRowsEnv(0), TensorDictPrimer(number=Unbounded(()), default_value=3.0))
    assert env.rollout(2)["number"].tolist() == [3.0, 3.0]


def test_values_are_on_the_device_of_the_environment() -> None:
    def ones(reset: torch.Tensor) -> TensorDict:
        return TensorDict({"n": torch.ones(2, 3)}, [2])

    primer = TensorDictPrimer(n=Unbounded((3,)), default_value=ones, single_default_value=True)
    root = TransformedEnv(NativeEnv("CartPole-v1", 2, device="meta"), primer).reset()
    mask = torch.zeros(2, 1, dtype=torch.bool, device="meta")
    assert primer._reset(root.copy().set("_reset", mask), root)["n"].device.type == "meta"
