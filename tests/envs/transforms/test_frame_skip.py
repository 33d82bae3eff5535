"""Repeated actions, and random actions at the start of episodes."""

from typing import Any

import pytest
import torch
from tests.fixtures.tensordict_envs import CountingRowsEnv, GroupsEnv

from vecrl.envs import EnvBase, check_env_specs
from vecrl.envs.transforms import (
    CatFrames,
    Compose,
    FrameSkipTransform,
    MultiAction,
    NoopResetEnv,
    StepCounter,
    Transform,
    TransformedEnv,
)
from vecrl.errors import SpaceError
from vecrl.specs import Bounded
from vecrl.testing import IndependentRowsEnv


def test_actions_repeat_until_each_row_is_done() -> None:
    env = TransformedEnv(CountingRowsEnv(5, 9), FrameSkipTransform(3))
    rollout = env.rollout(5, break_when_any_done=False)
    assert rollout["next", "count"].squeeze(-1).tolist() == [[3, 5, 3, 5, 3], [3, 6, 9, 3, 6]]
    assert rollout["next", "reward"].squeeze(-1).tolist() == [[3, 2, 3, 2, 3], [3, 3, 3, 3, 3]]
    assert rollout["next", "done"].squeeze(-1).tolist() == [[0, 1, 0, 1, 0], [0, 0, 1, 0, 0]]


def test_inner_transforms_receive_every_frame() -> None:
    stack = CatFrames(3, -1, in_keys=["count"], out_keys=["last"])
    env = TransformedEnv(CountingRowsEnv(99), Compose(stack, FrameSkipTransform(4), StepCounter()))
    next_td = env.rollout(2)[0]["next"]
    assert next_td["last"].tolist() == [[2, 3, 4], [6, 7, 8]]
    assert next_td["step_count"].flatten().tolist() == [1, 2]


class Doubled(Transform):
    """Doubles the action for the environment."""

    def __init__(self) -> None:
        super().__init__(in_keys_inv=["action"])

    def _inv_apply_transform(self, value: torch.Tensor) -> torch.Tensor:
        return value * 2


def test_actions_are_read_at_the_position_of_the_transform() -> None:
    for order, scale in ((lambda s: (Doubled(), s), 2), (lambda s: (s, Doubled()), 2)):
        env = TransformedEnv(IndependentRowsEnv(0), Compose(*order(FrameSkipTransform(2))))
        root = env.reset()
        root["action"], root["choice"] = torch.tensor([1.0, 10.0]), torch.tensor(0)
        assert env.step(root)["next", "observation"][1:].tolist() == [2 * scale, 20 * scale]


def test_groups_stop_when_any_agent_is_done() -> None:
    class Ending(GroupsEnv):
        def _step(self, tensordict: Any) -> Any:
            next_td = super()._step(tensordict)
            self.steps = getattr(self, "steps", 0) + 1
            next_td["a", "done"][0] = self.steps == 2
            return next_td

    base = Ending(("a",), root=False)
    next_td = TransformedEnv(base, FrameSkipTransform(5)).rand_step(base.reset())["next"]
    assert next_td["a", "done"].flatten().tolist() == [True, False]
    assert next_td["a", "reward"].flatten().tolist() == [2, 2]


def test_reward_bounds_are_scaled() -> None:
    base = CountingRowsEnv(3)
    base.reward_spec = Bounded(-1, 2, (1, 1))
    spec = TransformedEnv(base, FrameSkipTransform(4)).reward_spec
    assert (float(spec.low), float(spec.high)) == (-4, 8)


@pytest.mark.parametrize("random", [True, False])
def test_noops_precede_episodes(random: bool) -> None:
    torch.manual_seed(0)
    env = TransformedEnv(CountingRowsEnv(99, 99), NoopResetEnv(4, random))
    counts = {int(count) for _ in range(40) for count in env.reset()["count"]}
    assert counts == ({0, 1, 2, 3} if random else {4})


def test_noops_apply_to_reset_rows_only() -> None:
    env = TransformedEnv(IndependentRowsEnv((0, 1, 2)), NoopResetEnv(1, random=False))
    root = env.reset()
    assert root["ticks"].flatten().tolist() == [1, 1, 1]
    assert "action" not in root
    assert "next" not in root
    root = env.step_mdp(env.step(env.rand_action(root).set("_step", torch.tensor([True, True, False]))))
    root = env.reset(root.set("_reset", torch.tensor([[True], [False], [False]])))
    assert root["ticks"].flatten().tolist() == [1, 2, 1]


def test_rows_done_during_noops_are_reset() -> None:
    # first episodes of 2, 3 and 4 steps
    env = TransformedEnv(IndependentRowsEnv((0, 1, 2)), NoopResetEnv(4, random=False))
    root = env.reset()
    assert root["ticks"].flatten().tolist() == [2, 1, 0]  # the second episode of row 0 has 3 steps
    assert not root["done"].any()


def test_invalid_arguments_raise() -> None:
    with pytest.raises(ValueError, match="frame_skip"):
        FrameSkipTransform(0)
    with pytest.raises(ValueError, match="noops"):
        NoopResetEnv(0)
    with pytest.raises(RuntimeError, match="environment"):
        FrameSkipTransform(2)._step(CountingRowsEnv(2).reset(), CountingRowsEnv(2).reset())


def steps_of(env: EnvBase, *counts: int) -> list[Any]:
    """Returns the results of steps with so many actions each."""
    step, results = env.reset(), []
    for count in counts:
        root = env.maybe_reset(env.step_mdp(step)) if results else step
        step = env.step(root.set("action", torch.zeros(*env.batch_size, count, 2)))
        results.append(step["next"])
    return results


class TestMultiAction:
    def test_actions_are_taken_until_each_row_is_done(self) -> None:
        first, second, third = steps_of(TransformedEnv(CountingRowsEnv(4, 9), MultiAction()), 3, 2, 1)
        assert first["count"].squeeze(-1).tolist() == [3, 3]
        assert first["reward"].squeeze(-1).tolist() == [[1, 1, 1], [1, 1, 1]]
        assert second["count"].squeeze(-1).tolist() == [4, 5]
        assert second["reward"].squeeze(-1).tolist() == [[1, 0], [1, 1]]
        assert second["done"].squeeze(-1).tolist() == [True, False]
        assert third["count"].squeeze(-1).tolist() == [1, 6]

    def test_all_rows_are_done(self) -> None:
        [step] = steps_of(TransformedEnv(CountingRowsEnv(2, 1), MultiAction(stack_observations=True)), 4)
        assert step["reward"].squeeze(-1).tolist() == [[1, 1, 0, 0], [1, 0, 0, 0]]
        assert step["count"].squeeze(-1).tolist() == [[1, 2, 2, 2], [1, 1, 1, 1]]

    def test_last_rewards_and_stacked_observations(self) -> None:
        env = TransformedEnv(CountingRowsEnv(4, 9), MultiAction(stack_rewards=False, stack_observations=True))
        first, second = steps_of(env, 3, 2)
        assert first["reward"].squeeze(-1).tolist() == [1, 1]
        assert second["reward"].squeeze(-1).tolist() == [1, 1]
        assert first["count"].squeeze(-1).tolist() == [[1, 2, 3], [1, 2, 3]]
        assert second["count"].squeeze(-1).tolist() == [[4, 4], [4, 5]]
        assert env.reset()["count"].shape == (2, 1, 1)
        check_env_specs(env)

    def test_each_action_reaches_the_environment(self) -> None:
        env, plain = TransformedEnv(IndependentRowsEnv(2), MultiAction()), IndependentRowsEnv(2)
        actions, choices = torch.rand(3, 2), torch.tensor([0, 3, 1])
        step = env.step(env.reset().update({"action": actions, "choice": choices}))["next"]
        root, rewards = plain.reset(), []
        for action, choice in zip(actions, choices, strict=True):
            next_td = plain.step(root.update({"action": action, "choice": choice}))["next"]
            rewards.append(next_td["reward"])
            root = next_td.exclude("reward")
        assert step["reward"].equal(torch.stack(rewards))
        assert step["observation"].equal(root["observation"])

    def test_transforms_before_and_after(self) -> None:
        env = TransformedEnv(
            CountingRowsEnv(9),
            Compose(StepCounter(step_count_key="inner"), MultiAction(), StepCounter(step_count_key="outer")),
        )
        *_, last = steps_of(env, 3, 2)
        assert (last["inner"].tolist(), last["outer"].tolist()) == ([[5]], [[2]])

    def test_another_dimension(self) -> None:
        env = TransformedEnv(CountingRowsEnv(9), MultiAction(dim=2))
        assert env.action_spec.shape == (1, 2, -1)
        step = env.step(env.reset().set("action", torch.zeros(1, 2, 3)))["next"]
        assert step["reward"].tolist() == [[[1, 1, 1]]]

    def test_partial_steps(self) -> None:
        env = TransformedEnv(CountingRowsEnv(9, 9), MultiAction())
        mask = torch.tensor([True, False])
        step = env.step(env.reset().update({"action": torch.zeros(2, 3, 2), "_step": mask}))["next"]
        assert step["reward"].squeeze(-1).tolist() == [[1, 1, 1], [0, 0, 0]]
        assert step["count"].squeeze(-1).tolist() == [3, 0]

    def test_errors(self) -> None:
        with pytest.raises(ValueError, match="Expected dim of 1 or more"):
            MultiAction(dim=0)
        env = TransformedEnv(IndependentRowsEnv(), MultiAction())
        with pytest.raises(SpaceError, match=r"the same number of actions.*\{'action': 3, 'choice': 2\}"):
            env.step(env.reset().update({"action": torch.rand(3, 2), "choice": torch.tensor([0, 3])}))
        with pytest.raises(SpaceError, match="1 or more, at all keys"):
            steps_of(TransformedEnv(CountingRowsEnv(3), MultiAction()), 0)
