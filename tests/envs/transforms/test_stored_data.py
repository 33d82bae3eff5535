"""Transforms of stored trajectories."""

from typing import Any

import pytest
import torch
from tensordict import LazyStackedTensorDict, NonTensorData, TensorDict
from tensordict.nn import TensorDictModule, TensorDictSequential
from torch import Tensor, nn

from vecrl.envs import GymEnv
from vecrl.envs.transforms import (
    BurnInTransform,
    Compose,
    MultiStepTransform,
    NextObservationDelta,
    RandomCropTensorDict,
    Reward2GoTransform,
    RewardScaling,
    RewardSum,
    TransformedEnv,
)
from vecrl.errors import SpaceError


class GRU(nn.Module):
    """A GRU cell over sequences `[..., time]`, from the hidden state of their first step."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRUCell(2, 4)

    def forward(self, observation: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        state, states = hidden[..., 0, :], []
        for value in observation.unbind(-2):
            state = self.cell(value.reshape(-1, 2), state.reshape(-1, 4)).reshape(state.shape)
            states.append(state)
        return torch.stack(states, -2) * 2, torch.stack(states, -2)


def gru() -> TensorDictModule:
    return TensorDictModule(GRU(), in_keys=["observation", "hidden"], out_keys=["out", ("next", "hidden")])


def random_steps(shape: tuple[int, ...], ends: float = 0.15) -> Any:
    """Returns steps with batch size `shape`, the last dimension of which is time, with episodes of random lengths."""
    random = torch.Generator().manual_seed(1)
    terminated, truncated = (torch.rand(2, *shape, 1, generator=random) < ends / 2).unbind(0)
    observation = torch.rand(*shape, 2, generator=random)
    flags = {"done": terminated | truncated, "terminated": terminated, "truncated": truncated}
    next_td = {"observation": observation + 1, "reward": torch.rand(*shape, 1, generator=random), **flags}
    roots = {"observation": observation, "done": torch.zeros_like(terminated)}
    return TensorDict({**roots, "next": TensorDict(next_td, shape)}, shape)


def counted_steps(length: int, *ends: int) -> Any:
    """Returns steps in which observations are the number of the step, rewards are 1, and `ends` are done."""
    number = torch.arange(length)
    done = torch.isin(number, torch.tensor(ends)).unsqueeze(-1)
    next_td = {"observation": number + 1, "reward": torch.ones(length, 1), "done": done}
    return TensorDict({"observation": number, "next": TensorDict(next_td, [length])}, [length])


def expected_multi_step(data: Any, n_steps: int, gamma: float) -> list[tuple[float, int, int]]:
    """Returns the sum, the next observation and the number of steps of each step, computed one by one."""
    found, length = [], len(data)
    done, reward = data["next", "done"].flatten().tolist(), data["next", "reward"].flatten().tolist()
    for start in range(length - n_steps):
        total, last = 0.0, start
        for number in range(n_steps):
            last = start + number
            total += gamma**number * reward[last]
            if done[last]:
                break
        found.append((total, last, last - start + 1))
    return found


class TestMultiStep:
    @pytest.mark.parametrize("n_steps", [1, 2, 5])
    def test_sums_end_with_episodes(self, n_steps: int) -> None:
        data = random_steps((50,))
        stored = MultiStepTransform(n_steps, 0.9).inv(data)
        sums, last, lengths = zip(*expected_multi_step(data, n_steps, 0.9), strict=True)
        torch.testing.assert_close(stored["next", "reward"].flatten(), torch.tensor(sums))
        assert stored["next", "observation"].equal(data["next", "observation"][list(last)])
        assert stored["steps_to_next_obs"].tolist() == list(lengths)
        torch.testing.assert_close(stored["gamma"], 0.9 ** torch.tensor(lengths))
        assert stored["next", "original_reward"].equal(data["next", "reward"][:-n_steps])
        assert stored["nonterminal"].equal(~data["next", "done"][:-n_steps].squeeze(-1))
        assert stored["observation"].equal(data["observation"][:-n_steps])

    def test_parts_give_the_same_as_all_at_once(self) -> None:
        data = random_steps((2, 40))
        complete, transform = MultiStepTransform(3, 0.9).inv(data), MultiStepTransform(3, 0.9)
        given = [part.clone() for part in data.split([1, 2, 1, 16, 20], -1)]
        parts = []
        for part in given:
            parts.append(transform.inv(part))
            part["next", "reward"].zero_()  # what is kept is a copy
        assert parts[:2] == [None, None]
        joined = torch.cat(parts[2:], -1)
        for key in complete.keys(True, True):
            assert joined[key].equal(complete[key]), key

    def test_flags_are_those_of_the_step_or_of_the_last_step(self) -> None:
        data = counted_steps(6, 2)
        assert MultiStepTransform(2, 1.0).inv(data)["next", "done"].flatten().tolist() == [False, False, True, False]
        assert MultiStepTransform(2, 1.0, done_keys=[]).inv(data)["next", "done"].flatten().tolist() == [
            *[False, True, True, False]
        ]

    def test_the_input_and_what_is_read_do_not_change(self) -> None:
        data = random_steps((10,))
        before = data.clone()
        MultiStepTransform(3, 0.5).inv(data)
        assert set(data.keys(True, True)) == set(before.keys(True, True))
        assert (data == before).all()
        assert MultiStepTransform(3, 0.5)(data) is data

    def test_the_number_of_steps_can_be_set(self) -> None:
        transform = MultiStepTransform(3, 1.0)
        transform.inv(counted_steps(5))
        transform.n_steps = 1
        assert transform.inv(counted_steps(2))["next", "reward"].flatten().tolist() == [1.0] * 4

    def test_several_rewards_in_groups_and_integers(self) -> None:
        data = counted_steps(6, 2)
        data["next", "agents"] = TensorDict({"reward": torch.ones(6, 3, 1, dtype=torch.int64)}, [6, 3])
        stored = MultiStepTransform(2, 0.5, reward_keys=["reward", ("agents", "reward")]).inv(data)
        assert stored["next", "reward"].flatten().tolist() == [1.5, 1.5, 1.0, 1.5]
        assert stored["next", "agents", "reward"].squeeze(-1).tolist() == [[1.5] * 3] * 2 + [[1.0] * 3, [1.5] * 3]
        assert stored["next", "agents", "original_reward"].equal(data["next", "agents", "reward"][:4])

    def test_invalid_steps_are_marked(self) -> None:
        data = counted_steps(6).set("mask", torch.arange(6) < 2)
        assert MultiStepTransform(2, 0.5).inv(data)["nonterminal"].tolist() == [True, True, False, False]
        assert MultiStepTransform(2, 0.5, mask_key="other").inv(data)["nonterminal"].all()

    def test_text_and_names_of_dimensions(self) -> None:
        data = counted_steps(5, 1).refine_names("time")
        data["next"] = data["next"].set("text", list("abcde"))
        stored = MultiStepTransform(2, 0.5).inv(data)
        assert stored["next", "text"] == ["b", "b", "d"]
        assert stored.names == ["time"]

    def test_in_a_chain_until_there_is_something_to_store(self) -> None:
        chain = Compose(NextObservationDelta(["observation"]), MultiStepTransform(3, 1.0))
        data = counted_steps(5).apply(torch.Tensor.float)
        assert chain.inv(data[:3]) is None
        stored = chain.inv(data[3:])
        assert stored["next", "delta", "observation"].tolist() == [3.0, 3.0]
        assert chain(stored)["next", "observation"].tolist() == [3.0, 4.0]

    def test_errors(self) -> None:
        for number in (0, -1, 2.5):
            with pytest.raises(ValueError, match="n_steps to be an int of 1 or more"):
                MultiStepTransform(number, 0.9)  # pyright: ignore[reportArgumentType]
        with pytest.raises(ValueError, match=r"trajectories \[..., time\]"):
            MultiStepTransform(1, 0.9).inv(counted_steps(1)[0])
        for key in ("reward", "done"):
            with pytest.raises(KeyError, match=f"expects an entry.*{key}"):
                MultiStepTransform(1, 0.9).inv(counted_steps(3).exclude(("next", key)))


class TestReward2Go:
    @pytest.mark.parametrize("shape", [(64,), (3, 37), (2, 2, 5)])
    def test_sums_go_to_the_ends_of_episodes(self, shape: tuple[int, ...]) -> None:
        data = random_steps(shape)
        data["next", "done"].view(-1, shape[-1])[0, 3] = True
        stored = Reward2GoTransform(0.9, out_keys=["sum"]).inv(data)
        later, expected = torch.zeros(*shape[:-1], 1), []
        for step in reversed(data.unbind(-1)):
            later = step["next", "reward"] + 0.9 * later.where(~step["next", "done"], torch.zeros(()))
            expected.insert(0, later)
        torch.testing.assert_close(stored["sum"], torch.stack(expected, -2))
        assert stored["next", "reward"].equal(data["next", "reward"])
        assert "sum" not in data.keys()  # noqa: SIM118 - a TensorDict is no dict

    def test_the_reward_is_replaced_by_default(self) -> None:
        data = counted_steps(5, 2)
        assert Reward2GoTransform().inv(data)["next", "reward"].flatten().tolist() == [3.0, 2.0, 1.0, 2.0, 1.0]
        assert Reward2GoTransform(None).inv(data)["next", "reward"].flatten().tolist() == [3.0, 2.0, 1.0, 2.0, 1.0]
        assert Reward2GoTransform()(data) is data

    def test_shapes_and_dtypes_of_rewards(self) -> None:
        data = counted_steps(4, 1)
        for shape in ((4,), (4, 1), (4, 3), (4, 2, 1)):
            data["next", "reward"] = torch.ones(shape, dtype=torch.int64)
            sums = Reward2GoTransform(torch.tensor(0.5)).inv(data)["next", "reward"]
            assert sums.shape == shape
            assert sums.reshape(4, -1)[:, 0].tolist() == [1.5, 1.0, 1.5, 1.0]

    def test_other_flags_and_several_rewards(self) -> None:
        data = counted_steps(4, 1)
        data["next", "agents", "over"] = torch.tensor([False, False, True, False])
        data["next", "agents", "pay"] = torch.full((4,), 2.0)
        keys = [("next", "agents", "pay"), ("next", "reward")]
        stored = Reward2GoTransform(1.0, keys, ["a", "b"], ("agents", "over")).inv(data)
        assert stored["a"].tolist() == [6.0, 4.0, 2.0, 2.0]
        assert stored["b"].flatten().tolist() == [3.0, 2.0, 1.0, 1.0]

    def test_state(self) -> None:
        transform = Reward2GoTransform(0.5)
        transform.load_state_dict(Reward2GoTransform(0.25).state_dict())
        assert float(transform.gamma) == 0.25

    def test_errors(self) -> None:
        with pytest.raises(ValueError, match="end of an episode"):
            Reward2GoTransform().inv(counted_steps(3))
        with pytest.raises(KeyError, match="'other'"):
            Reward2GoTransform(in_keys="other").inv(counted_steps(3, 1))
        with pytest.raises(ValueError, match=r"trajectories \[..., time\]"):
            Reward2GoTransform().inv(counted_steps(3, 1)[1])
        with pytest.raises(ValueError, match="a key in out_keys for each"):
            Reward2GoTransform(in_keys=["a", "b"], out_keys=["c"])


class TestBurnIn:
    @pytest.mark.parametrize("shape", [(9,), (3, 9), (2, 3, 9)])
    def test_the_state_after_the_first_steps_is_at_the_start(self, shape: tuple[int, ...]) -> None:
        module, data = gru(), random_steps(shape).set("hidden", torch.rand(*shape, 4))
        before = data.clone()
        read = BurnInTransform([module], 4)(data)
        expected = module(data[..., :4].clone())["next", "hidden"][..., -1, :]
        torch.testing.assert_close(read["hidden"][..., 0, :], expected)
        assert not read["hidden"].requires_grad
        assert read["hidden"][..., 1:, :].equal(data["hidden"][..., 5:, :])
        assert read["observation"].equal(data["observation"][..., 4:, :])
        assert read.batch_size == (*shape[:-1], 5)
        assert (data == before).all()
        assert ("next", "hidden") not in read.keys(True)

    def test_training_after_burn_in_equals_the_whole_sequence(self) -> None:
        module, data = gru(), random_steps((2, 9)).set("hidden", torch.zeros(2, 9, 4))
        whole = module(data.clone())["out"][:, 4:]
        torch.testing.assert_close(module(BurnInTransform(module, 4)(data))["out"], whole)

    def test_several_modules_and_other_keys(self) -> None:
        first, data = gru(), random_steps((2, 6)).set("hidden", torch.zeros(2, 6, 4))
        second = TensorDictModule(lambda out: out.cumsum(-2), in_keys=["out"], out_keys=[("next", "sum")])
        transform = BurnInTransform([first, second], 2, out_keys=["hidden", ("a", "sum")])
        assert transform.in_keys == ["observation", "hidden", "out"]
        read = transform(data)
        assert read["a", "sum"].shape == (2, 4, 4)
        torch.testing.assert_close(
            read["a", "sum"][:, 0], TensorDictSequential(first, second)(data[:, :2])["next", "sum"][:, 1]
        )
        assert not read["a", "sum"][:, 1:].any()

    def test_nothing_to_burn_in(self) -> None:
        data = random_steps((2, 6))
        assert BurnInTransform([gru()], 0)(data) is data
        assert BurnInTransform([gru()], 3).inv(data) is data

    def test_parameters_stay_those_of_the_module(self) -> None:
        transform = BurnInTransform([gru()], 3)
        assert not list(transform.parameters())
        assert not transform.state_dict()
        assert repr(transform) == ("BurnInTransform(burn_in=3, in_keys=['observation', 'hidden'], out_keys=['hidden'])")

    def test_errors(self) -> None:
        with pytest.raises(ValueError, match="burn_in to be an int of 0 or more"):
            BurnInTransform([gru()], -1)
        with pytest.raises(ValueError, match='out_keys under "next"'):
            BurnInTransform([TensorDictModule(nn.Linear(2, 2), in_keys=["observation"], out_keys=["out"])], 2)
        with pytest.raises(ValueError, match="a key in out_keys for each"):
            BurnInTransform([gru()], 2, out_keys=["a", "b"])
        for length in (2, 3):
            with pytest.raises(ValueError, match="more than burn_in=3 steps"):
                BurnInTransform([gru()], 3)(random_steps((2, length)).set("hidden", torch.zeros(2, length, 4)))


class TestRandomCrop:
    def test_each_trajectory_has_a_start_of_its_own(self) -> None:
        torch.manual_seed(0)
        data = TensorDict({"x": torch.arange(10).expand(300, 10)}, [300, 10], names=[None, "time"])
        part = RandomCropTensorDict(4)(data)
        assert part.batch_size == (300, 4)
        assert part.names == [None, "time"]
        assert set(part["x"][:, 0].tolist()) == {*range(7)}
        assert (part["x"].diff(dim=1) == 1).all()

    @pytest.mark.parametrize("dim", [0, -3, 1, -2, 2, -1])
    def test_any_dimension(self, dim: int) -> None:
        steps = torch.arange(6).view(*[-1 if i == dim % 3 else 1 for i in range(3)]).expand(6, 6, 6)
        part = RandomCropTensorDict(2, dim)(TensorDict({"x": steps}, [6, 6, 6]))["x"]
        assert part.shape == tuple(2 if i == dim % 3 else 6 for i in range(3))
        assert (part.diff(dim=dim) == 1).all()

    def test_only_valid_steps(self) -> None:
        torch.manual_seed(0)
        lengths = torch.tensor([4, 6, 9]).repeat(50)
        data = TensorDict({"x": torch.arange(9).expand(150, 9)}, [150, 9])
        data["mask"] = (data["x"] < lengths[:, None]).unsqueeze(-1)
        part = RandomCropTensorDict(4, mask_key="mask")(data)
        assert part["mask"].all()
        assert [set(part["x"][i::3, 0].tolist()) for i in range(3)] == [{0}, {0, 1, 2}, {0, 1, 2, 3, 4, 5}]
        assert (part["x"][:, 0] + 3).equal(part["x"][:, 3])

    def test_whole_trajectories_and_one_without_a_mask(self) -> None:
        data = counted_steps(5)
        assert RandomCropTensorDict(5, mask_key="mask")(data)["observation"].tolist() == [0, 1, 2, 3, 4]
        assert RandomCropTensorDict(3).inv(data) is data

    def test_text_and_unlike_shapes(self) -> None:
        rows = [TensorDict({"x": torch.full((i,), i), "t": NonTensorData(str(i))}) for i in range(8)]
        part = RandomCropTensorDict(3)(LazyStackedTensorDict(*rows))
        start = int(part[0]["t"])
        assert [part[i]["x"].tolist() for i in range(3)] == [[start + i] * (start + i) for i in range(3)]

    def test_errors(self) -> None:
        with pytest.raises(ValueError, match="sub_seq_len to be an int of 1 or more"):
            RandomCropTensorDict(0)
        with pytest.raises(ValueError, match="at least sub_seq_len=6 steps, got 5"):
            RandomCropTensorDict(6)(counted_steps(5))
        with pytest.raises(ValueError, match="at least sub_seq_len=4 steps, got 3"):
            RandomCropTensorDict(4, mask_key="m")(counted_steps(5).set("m", torch.arange(5) < 3))
        with pytest.raises(ValueError, match="without a batch size"):
            RandomCropTensorDict(1)(counted_steps(5)[0])
        with pytest.raises(ValueError, match=r"a batch dimension of data of shape \(5,\), got 5"):
            RandomCropTensorDict(1, sample_dim=5)(counted_steps(5))


@pytest.mark.parametrize(
    "make",
    [
        lambda: MultiStepTransform(3, 0.9),
        Reward2GoTransform,
        lambda: BurnInTransform([gru()], 3),
        lambda: RandomCropTensorDict(3),
    ],
)
def test_no_environment_takes_them(make: Any) -> None:
    for transform in (make(), Compose(Compose(make()))):
        with pytest.raises(ValueError, match=r"Expected a transform for steps .* stored trajectories"):
            TransformedEnv(GymEnv("CartPole-v1"), transform)
    env = GymEnv("CartPole-v1").append_transform(RewardScaling(0, 1))
    transform = make()
    with pytest.raises(ValueError, match="Expected a transform for steps"):
        env.append_transform(transform)
    with pytest.raises(ValueError, match="Expected a transform for steps"):
        env.transform = make()
    assert len(env.rollout(3)) == 3
    assert Compose(transform)[0] is transform


def test_agents_must_end_together() -> None:
    done = torch.zeros(6, 2, 1, dtype=torch.bool)
    agents = TensorDict({"reward": torch.ones(6, 2, 1), "done": done}, [6, 2])
    steps = TensorDict({"next": {"agents": agents}}, [6])
    keys: Any = {"reward_keys": [("agents", "reward")], "done_key": ("agents", "done")}
    done[1] = True
    sums = MultiStepTransform(3, 1.0, **keys).inv(steps)["next", "agents", "reward"]
    assert sums[..., 0].tolist() == [[2, 2], [1, 1], [3, 3]]
    done[0, 0] = True
    with pytest.raises(SpaceError, match=r"one end of an episode for all agents, got flags at .* that differ"):
        MultiStepTransform(3, 1.0, **keys).inv(steps)


def test_sums_are_floating_point() -> None:
    steps = counted_steps(6, 5)
    steps["next", "reward"] = steps["next", "reward"].long()
    summed = MultiStepTransform(2, 1).inv(steps)
    for value in (summed["next", "reward"], summed["gamma"], Reward2GoTransform(1).inv(steps)["next", "reward"]):
        assert value.dtype is torch.float32


@pytest.mark.parametrize("gamma", ["x", 1.5, -0.1, True])
def test_discount_factors(gamma: Any) -> None:
    with pytest.raises(ValueError, match="gamma to be a number from 0 to 1, got"):
        MultiStepTransform(3, gamma)
    with pytest.raises(ValueError, match="n_steps to be an int of 1 or more, got True"):
        MultiStepTransform(True, 0.9)


@pytest.mark.parametrize("batch", [(), (2,)])
def test_reward_sums_of_keys_below_next(batch: tuple[int, ...]) -> None:
    done = torch.tensor([False, False, True, False, False]).expand(*batch, 5).unsqueeze(-1)
    rewards = torch.tensor([1.0, 2.0, 4.0, 8.0, 16.0]).expand(*batch, 5).unsqueeze(-1)
    data = TensorDict({"next": TensorDict({"reward": rewards, "done": done}, [*batch, 5])}, [*batch, 5])
    by_default = RewardSum()(data.clone())
    summed = RewardSum(in_keys=[("next", "reward")], out_keys=[("next", "episode_reward")])(data)
    assert summed["next", "episode_reward"].reshape(-1, 5)[-1].tolist() == [1, 3, 7, 8, 24]
    assert summed["next", "episode_reward"].equal(by_default["next", "episode_reward"])
    assert "episode_reward" not in summed.keys()  # noqa: SIM118 - a TensorDict is no dict
    with pytest.raises(KeyError, match=r"RewardSum expects an entry \('next', 'profit'\)|'profit'"):
        RewardSum(in_keys=[("next", "profit")], out_keys=[("next", "sum")])(data)
