"""What every `Transform` must do; see `vecrl.testing`.

A transform is tested in environments with independent rows, so that a batch must equal single environments.
"""

from __future__ import annotations

import copy
import pickle
from collections.abc import Sequence
from functools import partial
from typing import Any

import cloudpickle
import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from ..envs import EnvBase, ParallelEnv, SerialEnv, check_env_specs
from ..envs.entries.keys import Key
from ..envs.transforms import Compose, Transform, TransformedEnv
from .comparisons import error_of
from .envs import assert_equal_tensordicts, seeded
from .independent_rows import IndependentRowsEnv

Ids = Sequence[int] | int
IDS: tuple[Ids, ...] = (0, (0,), (0, 1, 2))
"""A single environment, a batch of one row, a batch of three."""


class TransformConformance:
    """Tests of a `Transform`. Derive a class with a name that begins with `Test`, and define `make`.

    The transform is applied to `IndependentRowsEnv`, which has the entries "observation", "position", "pixels",
    "ticks", "action_mask", the actions "action" and "choice", and "reward"; or to what `base` returns.

    Attributes:
        independent: whether a row does not depend on the other rows. Running statistics of a batch are not.
        movable: whether it may be used within a batched environment as well as around it.
        env_class: the kind of transformed environment that it belongs in.
        tolerance: by how much results of batches and of single rows may differ, absolute and relative. Convolutions of
            batches of different sizes add numbers in different order.
        num_interleavings: random sequences of partial resets and steps that are tried.

    >>> from vecrl.envs import StepCounter
    >>> class TestStepCounter(TransformConformance):
    ...     def make(self):
    ...         return StepCounter(max_steps=3)
    >>> TestStepCounter().test_specs_agree_with_data()
    """

    independent = True
    movable = True
    env_class: type[TransformedEnv] = TransformedEnv
    tolerance = 0.0
    num_interleavings = 20

    def make(self) -> Transform:
        """Returns a new transform."""
        raise NotImplementedError(f"Expected {type(self).__name__} to define make().")

    def base(self, ids: Ids) -> EnvBase:
        """Returns the environment of the rows `ids`; of one without a batch dimension where `ids` is a number."""
        return IndependentRowsEnv(ids)

    def env(self, ids: Ids) -> TransformedEnv:
        """Returns the transform in an environment of the rows `ids`."""
        return self.env_class(self.base(ids), self.make())

    def batch(self) -> TransformedEnv:
        """Returns the transform around a `SerialEnv` of three environments."""
        return self.env_class(SerialEnv(3, [partial(self.base, i) for i in range(3)]), self.make())

    # -- specs and data ----------------------------------------------------------------------------

    def test_specs_agree_with_data(self) -> None:
        """Resets, steps and rollouts have the entries, shapes and dtypes that the specs declare."""
        for ids in IDS:
            check_env_specs(self.env(ids), break_when_any_done="both")

    def test_entries_under_other_names_are_unchanged(self) -> None:
        """An entry that the transform reads, and writes under another name, is not written in place."""
        env, base = self.env((0, 1, 2)), self.base((0, 1, 2))
        if isinstance(env.transform, Compose) or not self.independent:
            return
        root, base_root = env.reset(), base.reset()
        for key in set(env.transform.in_keys).difference(env.transform.out_keys):
            if root.get(key, None) is not None and base_root.get(key, None) is not None:
                assert torch.equal(root.get(key), base_root.get(key)), f"{key} was changed in place"

    def test_tensors_are_not_written_in_place(self) -> None:
        """The tensors that an environment returns, and those that a user gives to a step, keep their values."""
        if self.env_class is not TransformedEnv:
            return
        seen: list[tuple[Key, Tensor, Tensor]] = []

        def record(td: TensorDictBase) -> TensorDictBase:
            seen.extend((key, value, value.clone()) for key, value in td.items(True, True) if isinstance(value, Tensor))
            return td

        env = TransformedEnv(self.base((0, 1, 2)), Compose(record, self.make()))
        root = env.reset()
        for _ in range(3):
            with_action = env.rand_action(root)
            record(with_action)
            root = env.step_and_maybe_reset(with_action)[1]
        for key, value, copied in seen:
            assert torch.equal(value.nan_to_num(), copied.nan_to_num()), f"{key!r} was changed in place: return a copy"

    def test_rows_are_independent_environments(self) -> None:
        """Under any sequence of partial resets and steps, a batch equals environments of one row each."""
        if not self.independent:
            return
        for seed in range(self.num_interleavings):
            random = np.random.default_rng(seed)
            torch.manual_seed(seed)
            batch, singles = self.env((0, 1, 2)), [self.env((i,)) for i in range(3)]
            root: TensorDictBase = batch.reset()
            roots: list[Any] = [env.reset() for env in singles]
            for _ in range(12):
                mask = torch.from_numpy(random.random(3) < 0.5)
                if random.random() < 0.3:
                    root = batch.reset(root.set("_reset", mask.unsqueeze(-1)))
                    roots = [env.reset(r) if m else r for env, r, m in zip(singles, roots, mask, strict=True)]
                elif mask.any():
                    with_action = batch.rand_action(root.copy())
                    root = batch.step_mdp(batch.step(with_action.copy().set("_step", mask)))
                    for i in mask.nonzero().flatten().tolist():
                        single = roots[i].update(with_action[i : i + 1].select(*batch.action_keys))
                        roots[i] = singles[i].step_mdp(singles[i].step(single))
                for i in range(3):
                    assert_equal_tensordicts(root[i : i + 1], roots[i], f"row {i}, seed {seed}", self.tolerance)

    def test_step_and_maybe_reset_equals_single_calls(self) -> None:
        """`step_and_maybe_reset` equals `step`, `step_mdp` and `maybe_reset`."""
        for first, second in ((self.env((0, 1, 2)), self.env((0, 1, 2))), (self.batch(), self.batch())):
            root, other_root = seeded(0, first.reset), seeded(0, second.reset)
            for number in range(12):
                with_action = first.rand_action(root)
                other_root = other_root.update(with_action.select(*first.action_keys))
                step, root = seeded(number, first.step_and_maybe_reset, with_action)
                torch.manual_seed(number)
                other_step = second.step(other_root)
                other_root = second.maybe_reset(second.step_mdp(other_step))
                assert_equal_tensordicts(step["next"], other_step["next"], f"step {number}")
                assert_equal_tensordicts(root, other_root, f"root {number}")

    def test_earlier_results_do_not_change(self) -> None:
        """A step's TensorDict is not written by later steps, and a rollout equals its steps."""
        rollout = seeded(0, partial(self.env((0, 1, 2)).rollout, 8, break_when_any_done=False))
        torch.manual_seed(0)
        env = self.env((0, 1, 2))
        root, steps = env.reset(), []
        for _ in range(8):
            step, root = env.step_and_maybe_reset(env.rand_action(root))
            steps.append((step, step.clone()))
        for step, copied in steps:
            assert_equal_tensordicts(step, copied, "a step after later ones")
        assert_equal_tensordicts(rollout, TensorDict.stack([step for step, _ in steps], 1), "rollout")

    def test_rollouts_at_once_equal_steps(self) -> None:
        """Applied to a whole rollout of the base environment, it gives what it gives step by step."""
        if type(self).base is not TransformConformance.base:
            return
        for ids in (1, (0, 1, 2)):
            at_once = self.env_class(_WholeRolloutEnv(ids), self.make())
            if not at_once.transform.supports_rollout:
                assert at_once._rollout_at_once(3, None, False) is None
                continue
            complete = seeded(3, partial(at_once.rollout, 15, break_when_any_done=False))
            stepwise = seeded(3, partial(self.env(ids).rollout, 15, break_when_any_done=False))
            assert complete.names == stepwise.names
            assert_equal_tensordicts(complete, stepwise, "rollout")

    def test_inside_and_around_a_batch_it_is_equal(self) -> None:
        """Each environment of a batch with its own transform equals the batch with one, in processes too."""
        if not (self.independent and self.movable):
            return
        for batch_class in (SerialEnv, ParallelEnv):
            inside = batch_class(3, [partial(self.env, i) for i in range(3)])
            around = self.env_class(batch_class(3, [partial(self.base, i) for i in range(3)]), self.make())
            try:
                torch.manual_seed(0)
                root, other_root = inside.reset(), around.reset()
                for number in range(8):
                    with_action = inside.rand_action(root)
                    other_root = other_root.update(with_action.select(*inside.action_keys))
                    step, root = inside.step_and_maybe_reset(with_action)
                    other_step, other_root = around.step_and_maybe_reset(other_root)
                    assert_equal_tensordicts(step["next"], other_step["next"], f"step {number}", self.tolerance)
                    assert_equal_tensordicts(root, other_root, f"root {number}", self.tolerance)
            finally:
                inside.close()
                around.close()

    # -- the object --------------------------------------------------------------------------------

    def test_state_dict_restores_the_transform(self) -> None:
        """After `load_state_dict`, another transform of its kind gives the same results."""
        torch.manual_seed(0)
        env = self.env((0, 1, 2))
        root = env.reset()
        for _ in range(4):
            _, root = env.step_and_maybe_reset(env.rand_action(root))
        other = self.env((0, 1, 2))
        other.reset()
        other.base_env = copy.deepcopy(env.base_env)
        other.transform.load_state_dict(copy.deepcopy(env.transform.state_dict()))
        other_root = root.clone()
        for number in range(6):
            with_action = env.rand_action(root)
            other_root = other_root.update(with_action.select(*env.action_keys))
            step, root = seeded(number, env.step_and_maybe_reset, with_action)
            other_step, other_root = seeded(number, other.step_and_maybe_reset, other_root)
            assert_equal_tensordicts(step, other_step, f"step {number}")

    def test_a_clone_belongs_to_no_environment(self) -> None:
        """`clone` has no container and shares the buffers; the original cannot be used in a second environment."""
        env = self.env((0, 1))
        assert "clone" in str(error_of(AttributeError, TransformedEnv, self.base((0, 1)), env.transform))
        clone = env.transform.clone()
        assert clone.container is None
        assert clone.parent is None
        buffers = dict(env.transform.named_buffers())
        assert all(buffers[key] is value for key, value in clone.named_buffers())
        check_env_specs(self.env_class(self.base((0, 1)), clone))

    def test_it_can_be_pickled(self) -> None:
        """A transformed environment can be sent to another process."""
        env = pickle.loads(cloudpickle.dumps(self.env((0, 1))))
        assert env.transform.parent.base_env is env.base_env
        check_env_specs(env)


class _WholeRolloutEnv(IndependentRowsEnv):
    """Plays a whole rollout in one call."""

    def _rollout_at_once(self, steps: int, actions: object, break_when_any_done: bool) -> TensorDictBase | None:
        plain = IndependentRowsEnv(self.ids.tolist() if self.ids.ndim else int(self.ids))
        root, played = plain.reset(), []
        for _ in range(steps):
            step, root = plain.step_and_maybe_reset(plain.rand_action(root))
            played.append(step)
            if break_when_any_done and plain.any_done(step["next"]):
                break
        result = TensorDict.stack(played, plain.batch_dims)
        result.names = [None] * plain.batch_dims + ["time"]
        return result
