"""Steps that repeat an action, and random actions at the beginning."""

from typing import Any

import pytest
import torch

from vecrl.envs import SerialEnv
from vecrl.envs.transforms import (
    CatFrames,
    Compose,
    FrameSkipTransform,
    NoopResetEnv,
    StepCounter,
    Transform,
    TransformedEnv,
)
from vecrl.specs import Bounded

from ..counting import Counting, Groups
from ..rows import Rows


def test_an_action_is_repeated_until_the_end_of_each_row() -> None:
    env = TransformedEnv(Counting(5, 9), FrameSkipTransform(3))
    played = env.rollout(5, break_when_any_done=False)
    assert played["next", "count"].squeeze(-1).tolist() == [[3, 5, 3, 5, 3], [3, 6, 9, 3, 6]]
    assert played["next", "reward"].squeeze(-1).tolist() == [[3, 2, 3, 2, 3], [3, 3, 3, 3, 3]]
    assert played["next", "done"].squeeze(-1).tolist() == [[0, 1, 0, 1, 0], [0, 0, 1, 0, 0]]


def test_a_batch_skips_frames_as_its_environments_would() -> None:
    makers: Any = [lambda: Counting(5), lambda: Counting(9)]
    outside = TransformedEnv(SerialEnv(2, makers), FrameSkipTransform(3))
    inside = SerialEnv(2, [lambda m=m: TransformedEnv(m(), FrameSkipTransform(3)) for m in makers])
    plays = [env.rollout(5, break_when_any_done=False) for env in (outside, inside)]  # which takes any actions alike
    for env in (outside, inside):
        env.close()
    assert torch.equal(plays[0]["next", "reward"], plays[1]["next", "reward"])
    assert torch.equal(plays[0]["next", "count"], plays[1]["next", "count"])


def test_transforms_before_it_see_every_frame_and_those_behind_it_one_in_so_many() -> None:
    stack = CatFrames(3, -1, in_keys=["count"], out_keys=["last"])
    env = TransformedEnv(Counting(99), Compose(stack, FrameSkipTransform(4), StepCounter()))
    following = env.rollout(2)[0]["next"]
    assert following["last"].tolist() == [[2, 3, 4], [6, 7, 8]]
    assert following["step_count"].flatten().tolist() == [1, 2]


class Doubled(Transform):
    """The environment gets twice the action."""

    def __init__(self) -> None:
        super().__init__(in_keys_inv=["action"])

    def _inv_apply_transform(self, value: torch.Tensor) -> torch.Tensor:
        return value * 2


def test_actions_are_those_at_its_place() -> None:
    for order, scale in ((lambda s: (Doubled(), s), 2), (lambda s: (s, Doubled()), 2)):
        env = TransformedEnv(Rows(0), Compose(*order(FrameSkipTransform(2))))
        root = env.reset()
        root["action"], root["choice"] = torch.tensor([1.0, 10.0]), torch.tensor(0)
        assert env.step(root)["next", "observation"][1:].tolist() == [2 * scale, 20 * scale]


def test_groups_stop_when_anybody_is_done() -> None:
    class Ending(Groups):
        def _step(self, tensordict: Any) -> Any:
            following = super()._step(tensordict)
            self.steps = getattr(self, "steps", 0) + 1
            following["a", "done"][0] = self.steps == 2
            return following

    base = Ending(("a",), root=False)
    following = TransformedEnv(base, FrameSkipTransform(5)).rand_step(base.reset())["next"]
    assert following["a", "done"].flatten().tolist() == [True, False]
    assert following["a", "reward"].flatten().tolist() == [2, 2]


def test_bounds_of_rewards_grow() -> None:
    base = Counting(3)
    base.reward_spec = Bounded(-1, 2, (1, 1))
    spec = TransformedEnv(base, FrameSkipTransform(4)).reward_spec
    assert (float(spec.low), float(spec.high)) == (-4, 8)


@pytest.mark.parametrize("random", [True, False])
def test_episodes_begin_after_some_actions(random: bool) -> None:
    torch.manual_seed(0)
    env = TransformedEnv(Counting(99, 99), NoopResetEnv(4, random))
    counts = {int(count) for _ in range(40) for count in env.reset()["count"]}
    assert counts == ({0, 1, 2, 3} if random else {4})


def test_only_rows_that_begin_anew_take_actions() -> None:
    env = TransformedEnv(Rows((0, 1, 2)), NoopResetEnv(1, random=False))
    root = env.reset()
    assert root["ticks"].flatten().tolist() == [1, 1, 1]
    assert "action" not in root
    assert "next" not in root
    root = env.step_mdp(env.step(env.rand_action(root).set("_step", torch.tensor([True, True, False]))))
    root = env.reset(root.set("_reset", torch.tensor([[True], [False], [False]])))
    assert root["ticks"].flatten().tolist() == [1, 2, 1]


def test_a_row_that_ends_meanwhile_begins_anew() -> None:
    env = TransformedEnv(Rows((0, 1, 2)), NoopResetEnv(4, random=False))  # episodes of 2, 3, 4 steps at first
    root = env.reset()
    assert root["ticks"].flatten().tolist() == [2, 1, 0]  # the first one's second episode is of 3 steps
    assert not root["done"].any()


def test_what_cannot_be_meant_is_refused() -> None:
    with pytest.raises(ValueError, match="frame_skip"):
        FrameSkipTransform(0)
    with pytest.raises(ValueError, match="noops"):
        NoopResetEnv(0)
    with pytest.raises(RuntimeError, match="environment"):
        FrameSkipTransform(2)._step(Counting(2).reset(), Counting(2).reset())
