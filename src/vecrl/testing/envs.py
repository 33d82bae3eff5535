"""What every `EnvBase` must do; see `vecrl.testing`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeVar

import torch
from tensordict import TensorDict, TensorDictBase

from ..envs import EnvBase, SerialEnv, check_env_specs

T = TypeVar("T")


class EnvConformance:
    """Tests of an environment over TensorDicts. Derive a class with a name that begins with `Test`, and define `make`.

    Attributes:
        num_steps: steps of each comparison; enough of them that some episode ends.
        seeded: whether `set_seed` determines what the environment does.
        deterministic: whether nothing in the environment is random.

    >>> from vecrl.envs import PendulumEnv
    >>> class TestPendulum(EnvConformance):
    ...     def make(self):
    ...         return PendulumEnv()
    >>> TestPendulum().test_specs_agree_with_data()
    """

    num_steps = 20
    seeded = True
    deterministic = False

    def make(self) -> EnvBase:
        """Returns a new environment, which the test closes."""
        raise NotImplementedError(f"Expected {type(self).__name__} to define make().")

    def test_specs_agree_with_data(self) -> None:
        """Resets, steps and rollouts have the entries, shapes and dtypes that the specs declare."""
        env = self.make()
        check_env_specs(env, break_when_any_done="both")
        env.close()

    def test_equal_seeds_give_equal_rollouts(self) -> None:
        """Two environments with equal seeds and actions give equal results, through the ends of episodes."""
        if not self.seeded:
            return
        rollouts = []
        for _ in range(2):
            env = self.make()
            env.set_seed(3)
            rollouts.append(seeded(0, partial(env.rollout, self.num_steps, break_when_any_done=False)))
            env.close()
        assert_equal_tensordicts(rollouts[0], rollouts[1], "rollout")

    def test_other_seeds_give_other_rollouts(self) -> None:
        """`set_seed` determines what is random: equal actions under another seed give other results."""
        if not self.seeded or self.deterministic:
            return
        rollouts = []
        for seed in (3, 1003):
            env = self.make()
            env.set_seed(seed)
            rollouts.append(seeded(0, partial(env.rollout, self.num_steps, break_when_any_done=False)))
            env.close()
        keys = list(rollouts[0].keys(True, True))
        same = [torch.equal(rollouts[0].get(key), rollouts[1].get(key)) for key in keys]
        assert not all(same), "the seed has no effect"

    def test_states_restore_the_same_future(self) -> None:
        """A state restored in another environment gives the same later steps and resets."""
        env = self.make()
        if not env.batch_locked:
            env.close()
            return
        other = self.make()
        env.set_seed(3)
        other.set_seed(1003)
        root = env.step_and_maybe_reset(env.rand_action(env.reset()))[1]
        other.reset()
        state, start = env.get_state(), root.clone()
        futures = []
        for each in (env, other):
            each.set_state(state)
            torch.manual_seed(0)
            root, steps = start.clone(), []
            for _ in range(self.num_steps):
                step, root = each.step_and_maybe_reset(each.rand_action(root))
                steps.append(step.clone())
            futures.append(TensorDict.stack(steps, each.batch_dims))
        assert_equal_tensordicts(futures[0], futures[1], "after set_state")
        env.close()
        other.close()

    def test_a_rollout_equals_its_steps(self) -> None:
        """`rollout` gives what `reset` and `step_and_maybe_reset` give one after another."""
        if not self.seeded:
            return
        env, stepped = self.make(), self.make()
        for each in (env, stepped):
            each.set_seed(3)
        rollout = seeded(0, partial(env.rollout, self.num_steps, break_when_any_done=False))
        torch.manual_seed(0)
        root, steps = stepped.reset(), []
        for _ in range(self.num_steps):
            step, root = stepped.step_and_maybe_reset(stepped.rand_action(root))
            steps.append(step)
        assert_equal_tensordicts(rollout, TensorDict.stack(steps, stepped.batch_dims), "rollout")
        env.close()
        stepped.close()

    def test_earlier_results_do_not_change(self) -> None:
        """What a reset or a step returned is not written by later calls."""
        env = self.make()
        root = env.reset()
        results = [(root, root.clone())]
        for _ in range(5):
            step, root = env.step_and_maybe_reset(env.rand_action(root.copy()))
            results.append((step, step.clone()))
        for number, (result, copied) in enumerate(results):
            assert_equal_tensordicts(result, copied, f"result {number} after later calls")
        env.close()

    def test_masked_resets_leave_other_rows(self) -> None:
        """With a "_reset" mask, the rows that it does not select keep their entries."""
        env = self.make()
        if env.ndim != 1 or len(env.done_keys_groups) != 1 or env.batch_size[0] < 2:
            env.close()
            return
        root = env.step_mdp(env.rand_step(env.reset()))
        done_key = env.done_keys[0]
        mask = torch.zeros_like(root.get(done_key))
        mask[0] = True
        before = root.clone()
        after = env.reset(root.set("_reset", mask))
        keys = [key for key in env.observation_spec.keys(True, True) if key in after.keys(True, True)]
        assert_equal_tensordicts(after[1:].select(*keys), before[1:].select(*keys), "rows that are not reset")
        env.close()

    def test_in_a_batch_it_is_equal(self) -> None:
        """A `SerialEnv` of two gives in its first row what one gives."""
        env = self.make()
        if not self.seeded or not env.batch_locked:
            env.close()
            return
        batch = SerialEnv(2, self.make)
        env.set_seed(3)
        batch.set_seed(3)
        root, batch_root = env.reset(), batch.reset()
        for number in range(self.num_steps):
            with_actions = batch.rand_action(batch_root)
            action = with_actions[0].select(*env.action_keys)
            step, root = env.step_and_maybe_reset(root.update(action))
            batch_step, batch_root = batch.step_and_maybe_reset(with_actions)
            assert_equal_tensordicts(batch_step[0]["next"], step["next"], f"step {number}")
        env.close()
        batch.close()

    def test_close_may_be_called_twice(self) -> None:
        """The second `close` has no effect."""
        env = self.make()
        env.close()
        env.close()


def assert_equal_tensordicts(first: TensorDictBase, second: TensorDictBase, where: str, tolerance: float = 0.0) -> None:
    """Raises AssertionError unless both have the same entries with equal values; NaN equals NaN.

    Args:
        where: begins the message.
        tolerance: by how much numbers may differ, absolute and relative.
    """
    keys = {str(key) for key in first.keys(include_nested=True, leaves_only=True)}
    others = {str(key) for key in second.keys(include_nested=True, leaves_only=True)}
    assert keys == others, f"{where}: only one of them has {sorted(keys ^ others)}"
    for key in first.keys(include_nested=True, leaves_only=True):
        one, other = first.get(key), second.get(key)
        same = torch.equal(one, other) or torch.allclose(one, other, rtol=tolerance, atol=tolerance, equal_nan=True)
        assert same, f"{where}: {key} is {one} and {other}"


def seeded(seed: int, function: Callable[..., T], *args: object) -> T:
    """Returns `function(*args)`, called after `torch.manual_seed(seed)`."""
    torch.manual_seed(seed)
    return function(*args)
