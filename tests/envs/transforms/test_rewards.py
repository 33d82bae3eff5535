"""Transforms of rewards."""

from typing import Any

import pytest
import torch
from tensordict import TensorDict
from tests.fixtures.tensordict_envs import BoundedValuesEnv, CountingRowsEnv, GroupsEnv

from vecrl.envs import PendulumEnv, check_env_specs
from vecrl.envs.transforms import (
    BinarizeReward,
    Compose,
    LineariseRewards,
    RewardClipping,
    RewardScaling,
    RewardSum,
    TargetReturn,
    TransformedEnv,
)
from vecrl.errors import SpaceError
from vecrl.specs import Binary, Bounded, Unbounded
from vecrl.testing import IndependentRowsEnv

BATCHES = pytest.mark.parametrize("batch", [(), (4,)], ids=["single", "batch"])


def ends(spec: Any) -> tuple[float, float]:
    return spec.low.min().item(), spec.high.max().item()


@pytest.mark.parametrize(
    ("transform", "expected"),
    [
        (lambda: RewardScaling(1.0, 2.0), (-1.0, 7.0)),
        (lambda: RewardScaling(1.0, 2.0, standard_normal=True), (-1.0, 1.0)),
        (lambda: RewardScaling(0, -1), (-3.0, 1.0)),
        (lambda: RewardClipping(-0.5, 0.5), (-0.5, 0.5)),
        (lambda: RewardClipping(clamp_min=0.0), (0.0, 3.0)),
        (lambda: RewardClipping(clamp_max=0.0), (-1.0, 0.0)),
        (lambda: RewardClipping(), (-1.0, 3.0)),
    ],
)
@BATCHES
def test_bounds_are_mapped(batch: Any, transform: Any, expected: Any) -> None:
    env = TransformedEnv(BoundedValuesEnv(*batch), transform())
    assert ends(env.reward_spec) == expected
    assert env.reward_spec.shape == (*batch, 1)
    check_env_specs(env)


def test_values_of_stored_data() -> None:
    reward = torch.randn(2, 3, 1) * 3
    for transform, expected in (
        (RewardScaling(1.0, 2.0), reward * 2 + 1),
        (RewardScaling(1.0, 2.0, standard_normal=True), (reward - 1) / 2),
        (RewardClipping(-1, 2), reward.clamp(-1, 2)),
        (BinarizeReward(), (reward > 0).to(torch.int8)),
    ):
        assert torch.equal(transform(TensorDict({"reward": reward}, [2, 3]))["reward"], expected)
    saved = RewardClipping(0, 1, ["reward"], ["small"])(TensorDict({"reward": reward}, [2, 3]))
    assert torch.equal(saved["reward"], reward)
    assert torch.equal(saved["small"], reward.clamp(0, 1))


def test_unbounded_rewards() -> None:
    assert TransformedEnv(IndependentRowsEnv(), RewardScaling(1.0, 2.0)).reward_spec == Unbounded((1,))
    assert TransformedEnv(IndependentRowsEnv(), RewardClipping(-1, 2)).reward_spec == Bounded(-1, 2, (1,))


def test_binarize() -> None:
    env = TransformedEnv(BoundedValuesEnv(4), BinarizeReward())
    assert env.reward_spec == Binary(1, (4, 1))
    assert env.rollout(4)["next", "reward"].dtype == torch.int8
    check_env_specs(env)


def test_rewards_of_groups_are_transformed() -> None:
    env = TransformedEnv(GroupsEnv(("a", "b"), root=False), Compose(RewardScaling(0.0, 5.0), RewardSum()))
    assert env.transform[0].in_keys == [("a", "reward"), ("b", "reward")]
    assert (env.rollout(3)["next", "b", "episode_reward"][-1] == 15).all()
    check_env_specs(env)


def test_missing_rewards_raise_with_their_key() -> None:
    with pytest.raises(KeyError, match="'reward'"):
        RewardScaling(0.0, 1.0)(TensorDict({"x": torch.zeros(2)}, [2]))


def test_state() -> None:
    reset_td, second = RewardScaling(1.0, 2.0), RewardScaling(0.0, 0.0)
    second.load_state_dict(reset_td.state_dict())
    assert second(TensorDict({"reward": torch.ones(1)}))["reward"] == 3


def test_reward_sums_in_reward_spec_accumulate() -> None:
    plain = TransformedEnv(IndependentRowsEnv((0, 1)), RewardSum())
    check_env_specs(TransformedEnv(IndependentRowsEnv((0, 1)), RewardSum(reward_spec=True)))
    env = TransformedEnv(IndependentRowsEnv((0, 1)), RewardSum(reward_spec=True))
    rollout = []
    for each in (plain, env):
        torch.manual_seed(0)
        rollout.append(each.rollout(6, break_when_any_done=False))
    assert "episode_reward" in env.full_reward_spec
    assert rollout[0]["next", "episode_reward"].equal(rollout[1]["next", "episode_reward"])


class TestTargetReturn:
    def test_values(self) -> None:
        for mode, root, following in (
            ("reduce", [[5, 4, 5, 4], [5, 4, 3, 5]], [[4, 3, 4, 3], [4, 3, 2, 4]]),
            ("constant", [[5] * 4] * 2, [[5] * 4] * 2),
        ):
            env = TransformedEnv(CountingRowsEnv(2, 3), TargetReturn(5.0, mode))
            rollout = env.rollout(4, break_when_any_done=False)
            assert rollout["target_return"].squeeze(-1).tolist() == root
            assert rollout["next", "target_return"].squeeze(-1).tolist() == following
            assert "target_return" in env.state_spec

    def test_a_target_of_the_user(self) -> None:
        env = TransformedEnv(CountingRowsEnv(9), TargetReturn(5.0))
        root = env.reset().set("target_return", torch.tensor([[20.0]]))
        rollout = env.rollout(3, tensordict=root, auto_reset=False)
        assert rollout["target_return"].flatten().tolist() == [20, 19, 18]

    def test_stored_trajectories(self) -> None:
        env = TransformedEnv(CountingRowsEnv(2, 3), TargetReturn(5.0))
        rollout = env.rollout(6, break_when_any_done=False)
        keys = ["target_return", ("next", "target_return")]
        again = TargetReturn(5.0)(rollout.exclude(*keys))
        assert all(again[key].equal(rollout[key]) for key in keys)

    def test_groups(self) -> None:
        env = TransformedEnv(GroupsEnv(("a", "b"), root=True), TargetReturn(5.0))
        assert env.reset()["a", "target_return"].shape == (2, 1)
        assert TargetReturn(1, in_keys=["x", ("a", "y")]).out_keys == ["target_return", ("a", "target_return")]

    def test_reset_key(self) -> None:
        env = TransformedEnv(CountingRowsEnv(9, 9), TargetReturn(5.0, reset_key="_reset"))
        root = env.step_mdp(env.rand_step(env.reset()))
        root["_reset"] = torch.tensor([[True], [False]])
        assert env.reset(root)["target_return"].flatten().tolist() == [5, 4]

    def test_errors(self) -> None:
        with pytest.raises(ValueError, match='mode to be "reduce" or "constant"'):
            TargetReturn(1.0, "sum")
        with pytest.raises(ValueError, match=r"out_keys for the rewards \['x', 'y'\]"):
            TargetReturn(1.0, in_keys=["x", "y"]).out_keys  # noqa: B018


def test_keys_of_reward_sums_are_checked() -> None:
    with pytest.raises(ValueError, match="a key in out_keys for each in in_keys"):
        RewardSum(["a", "b"], ["c"])
    with pytest.raises(ValueError, match=r"for each reward, \['reward'\], got \['a', 'b'\]"):
        TransformedEnv(PendulumEnv(), RewardSum(out_keys=["a", "b"])).reset()
    with pytest.raises(ValueError, match="as many different out_keys"):
        TransformedEnv(PendulumEnv(), RewardSum(["reward", "reward"], ["a", "a"])).reset()
    with pytest.raises(ValueError, match=r"one of reset_keys for all rewards, or one for each of \['reward'\]"):
        TransformedEnv(PendulumEnv(), RewardSum(reset_keys=["_reset", "other"])).reset()
    with pytest.raises(SpaceError, match="RewardSum to write a new entry, got 'th', which is an observation"):
        TransformedEnv(PendulumEnv(), RewardSum(out_keys=["th"])).reset()


# -- LineariseRewards


class TwoObjectives(IndependentRowsEnv):
    """Has rewards of two objectives in [-1, 2] and [0, inf]."""

    def __init__(self, ids: Any = 0) -> None:
        super().__init__(ids)
        low, high = torch.tensor([-1.0, 0.0]), torch.tensor([2.0, torch.inf])
        shape = (*self.batch_size, 2)
        self.reward_spec = Bounded(low.expand(shape), high.expand(shape), shape)

    def _step(self, tensordict: Any) -> Any:
        reward = torch.tensor([2.0, 3.0]).expand(*self.batch_size, 2)
        return super()._step(tensordict).set("reward", reward)


@pytest.mark.parametrize("ids", [0, (0, 1)])
def test_rewards_of_objectives_are_summed(ids: Any) -> None:
    env = TransformedEnv(TwoObjectives(ids), LineariseRewards(["reward"], weights=[2.0, -1.0]))
    check_env_specs(env)
    assert env.full_reward_spec["reward"].shape == (*env.batch_size, 1)
    assert env.full_reward_spec["reward"].low.unique().item() == -torch.inf
    assert env.full_reward_spec["reward"].high.unique().item() == 4
    assert env.rollout(2)["next", "reward"].unique().tolist() == [1]
    env = TransformedEnv(TwoObjectives(ids), LineariseRewards(["reward"], ["sum"]))
    check_env_specs(env)
    assert env.reward_keys == ["reward", "sum"]
    assert env.full_reward_spec["sum"].low.unique().item() == -1
    assert env.rollout(2)["next", "sum"].unique().tolist() == [5]


def test_a_weight_of_zero_of_an_infinite_bound() -> None:
    spec = TransformedEnv(TwoObjectives(), LineariseRewards(["reward"], weights=[1, 0])).full_reward_spec["reward"]
    assert (spec.low, spec.high) == (-1, 2)


def test_weights_are_in_the_state() -> None:
    assert LineariseRewards(["reward"], weights=[1, 2]).state_dict()["weights"].tolist() == [1, 2]
    integers = LineariseRewards(["reward"])(TensorDict({"reward": torch.tensor([1, 2])}))["reward"]
    assert integers.tolist() == [3]
    assert integers.dtype == torch.int64


def test_wrong_weights() -> None:
    with pytest.raises(ValueError, match="one dimension"):
        LineariseRewards(["reward"], weights=torch.ones(2, 2))
    with pytest.raises(SpaceError, match="3 objectives"):
        LineariseRewards(["reward"], weights=[1, 2, 3])(TensorDict({"reward": torch.ones(2)}))
