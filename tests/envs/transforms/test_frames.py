"""Stacks of recent values: expected numbers from TorchRL 0.14.1, and cases in which a stack must keep its values."""

from typing import Any

import pytest
import torch
from tensordict import TensorDict, TensorDictBase
from tests.fixtures.tensordict_envs import CountingRowsEnv

from vecrl.envs.transforms import CatFrames, Compose, FunctionTransform, TimeMaxPool, TransformedEnv
from vecrl.errors import SpaceError
from vecrl.specs import Bounded
from vecrl.testing import IndependentRowsEnv

# The stacks of TorchRL for an environment that counts 0, 1, 2, 3 and is then reset.
SAME = [[0, 0, 0], [0, 0, 1], [0, 1, 2], [0, 0, 0], [0, 0, 1]]
SAME_NEXT = [[0, 0, 1], [0, 1, 2], [1, 2, 3], [0, 0, 1], [0, 1, 2]]
CONSTANT = [[-7, -7, 0], [-7, 0, 1], [0, 1, 2], [-7, -7, 0], [-7, 0, 1]]
CONSTANT_NEXT = [[-7, 0, 1], [0, 1, 2], [1, 2, 3], [-7, 0, 1], [0, 1, 2]]
PADDINGS = pytest.mark.parametrize(
    ("padding", "root", "following"), [("same", SAME, SAME_NEXT), ("constant", CONSTANT, CONSTANT_NEXT)]
)


def counted(transform: Any = None) -> TensorDictBase:
    env = TransformedEnv(CountingRowsEnv(3), transform)
    return env.rollout(5, break_when_any_done=False)[0]


@PADDINGS
def test_stacks_in_environments(padding: str, root: Any, following: Any) -> None:
    stack = CatFrames(3, -1, in_keys=["count"], out_keys=["last"], padding=padding, padding_value=-7)
    rollout = counted(stack)
    assert rollout["last"].tolist() == root
    assert rollout["next", "last"].tolist() == following
    assert list(dict(stack.named_buffers())) == ["_cat_buffers_count"]


@PADDINGS
def test_stacks_of_stored_trajectories(padding: str, root: Any, following: Any) -> None:
    stored = counted()
    complete = CatFrames(3, -1, in_keys=["count", ("next", "count")], padding=padding, padding_value=-7)
    made = complete(stored.copy())
    assert made["count"].tolist() == root
    assert made["next", "count"].tolist() == following
    batch = complete(torch.stack([stored, stored]))  # pyright: ignore[reportArgumentType, reportCallIssue]
    assert batch["next", "count"].tolist() == [following, following]
    alone = CatFrames(3, -1, in_keys=["count"], padding=padding, padding_value=-7)(stored.copy())
    assert torch.equal(alone["next", "count"], stored["next", "count"])


def test_entries_only_below_next_have_their_own_history() -> None:
    made = CatFrames(3, -1, in_keys=[("next", "count")])(counted())
    assert made["next", "count"].tolist() == [[1, 1, 1], [1, 1, 2], [1, 2, 3], [1, 1, 1], [1, 1, 2]]


def test_as_inverse_stacks_in_replay_buffers() -> None:
    stored, stack = counted(), CatFrames(3, -1, in_keys=["count"], as_inverse=True)
    assert stack.inv(stored)["count"].tolist() == SAME
    assert Compose(stack).inv(stored)["count"].tolist() == SAME
    assert stack(stored) is stored
    assert stored["count"].shape == (5, 1)
    with pytest.raises(RuntimeError, match="stores of data"):
        TransformedEnv(CountingRowsEnv(3), CatFrames(3, -1, in_keys=["count"], as_inverse=True)).reset()


def test_stored_data_need_done_flags() -> None:
    stack = CatFrames(3, -1, in_keys=["count"])
    with pytest.raises(KeyError, match="ends of episodes"):
        stack(counted().exclude("next"))
    with pytest.raises(ValueError, match="time"):
        stack(counted()[0])
    flags = counted().select("count").set("next", TensorDict({"over": counted()["next", "done"]}, [5]))
    assert CatFrames(3, -1, in_keys=["count"], done_key="over")(flags)["count"].tolist() == SAME
    with pytest.raises(KeyError, match="pixels"):
        CatFrames(3, -1)(counted())


def test_images_are_stacked_along_any_dimension() -> None:
    for dim, shape in ((-3, (18, 8, 3)), (-2, (6, 24, 3)), (-1, (6, 8, 9))):
        env = TransformedEnv(IndependentRowsEnv(0), CatFrames(3, dim))
        assert env.observation_spec["pixels"].shape == shape
        assert env.rollout(2)["pixels"].shape == (2, *shape)


def test_stacks_are_copies() -> None:
    double = FunctionTransform(lambda td: td.set("last", td["last"].mul_(2)))
    env = TransformedEnv(CountingRowsEnv(9), CatFrames(3, -1, in_keys=["count"], out_keys=["last"]))
    env.append_transform(double)
    step_td = env.rand_step(env.reset())
    step_td["next", "last"].fill_(99)
    assert env.rand_step(env.step_mdp(step_td))["next", "last"].tolist() == [[0, 2, 4]]


def test_clones_share_stacks() -> None:
    env = TransformedEnv(
        CountingRowsEnv(9), Compose(CatFrames(3, -1, in_keys=["count"], out_keys=["last"]), lambda td: td)
    )
    parent = env.transform[1].parent
    assert parent is not None
    root = parent.rand_step(parent.reset())
    assert env.rand_step(env.step_mdp(root))["next", "last"].tolist() == [[0, 1, 2]]
    assert env.transform[0].clone().state_dict().keys() == {"_cat_buffers_count"}


def test_empty_states_can_be_loaded() -> None:
    fresh, used = CatFrames(3, -3), CatFrames(3, -3)
    TransformedEnv(IndependentRowsEnv(0), used).rollout(2)
    assert dict(used.named_buffers())
    used.load_state_dict(fresh.state_dict())
    assert not dict(used.named_buffers())


def test_reset_key_selects_the_mask() -> None:
    env = TransformedEnv(
        CountingRowsEnv(9, 9), CatFrames(2, -1, in_keys=["count"], out_keys=["last"], reset_key="restart")
    )
    root = env.step_mdp(env.rand_step(env.reset()))
    root = env.reset(root.set("restart", torch.tensor([[True], [False]])))
    assert root["last"].tolist() == [[0, 0], [0, 1]]


def test_bounds_include_the_padding() -> None:
    spec = TransformedEnv(
        IndependentRowsEnv(0), CatFrames(2, -1, padding="constant", padding_value=3)
    ).observation_spec["pixels"]
    assert isinstance(spec, Bounded)
    assert (int(spec.low.max()), int(spec.high.min())) == (0, 255)
    low = CatFrames(2, -1, in_keys=["x"], padding="constant", padding_value=-5)._spec(Bounded(0, 1, (1,)))
    assert isinstance(low, Bounded)
    assert low.low.tolist() == [-5, -5]


def test_invalid_arguments_raise() -> None:
    with pytest.raises(ValueError, match="from the end"):
        CatFrames(4, 0)
    for number in (0, 2.5, "2"):
        with pytest.raises(ValueError, match=f"Expected N to be an int of 1 or more, got {number!r}"):
            CatFrames(number, -1)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="padding"):
        CatFrames(4, -1, padding="zeros")
    stack = CatFrames(2, -1, in_keys=["x"])
    stack._reset(TensorDict({}, [2]), TensorDict({"x": torch.zeros(2, 1)}, [2]))
    with pytest.raises(SpaceError, match="Reset the environment"):
        stack._step(TensorDict({}, [3]), TensorDict({"x": torch.zeros(3, 1)}, [3]))


def test_similar_names_have_separate_stacks() -> None:
    keys: list[Any] = ["a_b", ("a", "b"), "a.b"]
    frames = CatFrames(2, -1, in_keys=keys)
    reset_td = TensorDict({"a_b": torch.zeros(1), "a": {"b": torch.ones(1)}, "a.b": torch.full((1,), 2.0)})
    step_td = frames._step(TensorDict({}), frames._reset(reset_td.clone(), reset_td.clone()).update(reset_td))
    assert [step_td[key].tolist() for key in keys] == [[0, 0], [1, 1], [2, 2]]


class TestTimeMaxPool:
    @staticmethod
    def add_negated(td: TensorDictBase) -> TensorDictBase:
        """Adds counts that decrease, so that the maximum is the oldest value."""
        return td.set("low", -td["count"] - 7)

    def test_values(self) -> None:
        rising = counted(TimeMaxPool(["count"], ["highest"], T=2))
        assert rising["highest"].equal(rising["count"])
        falling = counted(Compose(FunctionTransform(self.add_negated), TimeMaxPool(["low"], ["highest"], T=2)))
        assert falling["low"].flatten().tolist() == [-7, -8, -9, -7, -8]
        assert falling["highest"].flatten().tolist() == [-7, -7, -8, -7, -7]
        assert falling["next", "highest"].flatten().tolist() == [-7, -8, -9, -7, -8]

    def test_a_single_value(self) -> None:
        assert counted(TimeMaxPool(["count"]))["count"].equal(counted()["count"])

    def test_stored_trajectories(self) -> None:
        pool = TimeMaxPool(["low", ("next", "low")], ["highest", ("next", "highest")], T=2)
        stored = pool(counted(FunctionTransform(self.add_negated)))
        assert stored["highest"].flatten().tolist() == [-7, -7, -8, -7, -7]
        assert stored["next", "highest"].flatten().tolist() == [-7, -8, -9, -7, -8]

    def test_specs_and_state(self) -> None:
        pool = TimeMaxPool(["pixels"], T=2)
        env = TransformedEnv(IndependentRowsEnv(), pool)
        assert env.observation_spec["pixels"] == IndependentRowsEnv().observation_spec["pixels"]
        env.reset()
        assert pool.T == 2
        assert [tuple(value.shape) for value in pool.state_dict().values()] == [(6, 8, 3, 2)]

    def test_errors(self) -> None:
        with pytest.raises(ValueError, match=r"Expected T to be an int of 1 or more, got 2\.5"):
            TimeMaxPool(T=2.5)  # pyright: ignore[reportArgumentType]
