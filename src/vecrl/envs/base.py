"""`EnvBase`: an environment over TensorDicts. A subclass gives `_reset`, `_step` and `_set_seed`; all else is here.

What a subclass returns is completed (done flags, shapes of rewards), partial resets and steps are masked, and seeds are
passed on. Rollouts are in `vecrl.envs.rollout`, masks in `vecrl.envs.row_masks`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Self

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from ..errors import ClosedError, SpaceError
from ..snapshot import Stateful
from . import rollout as rollouts
from .base_extras import EnvExtras
from .done_flags import any_true, fill_flags, has_all_flags
from .entry_copies import owned
from .row_masks import RowMasks, check_not_done, drop_keys, fill_missing, is_leaf, merge_into
from .seed_chain import next_seed, validate_seed
from .self_reset import SelfResetBuffer
from .spec_container import OUTPUTS, SpecContainer, device_of, join_key
from .step_mdp import leaves_of, step_mdp_for
from .step_validation import check_result, missing_input_error, reshape_reward
from .unwrapped_gym import UnwrappedGymEnv

Policy = Callable[[TensorDictBase], TensorDictBase]


_STATE_FACT_SPECS = ("observation", "action")


class EnvBase(EnvExtras, Stateful, SpecContainer):
    """An environment, or a batch of them, that takes and gives TensorDicts.

    A subclass sets its specs and gives

    - `_reset(tensordict, **kwargs)`: the first entries of an episode. Where `tensordict` has a "_reset" mask, only
      those rows need to begin anew; the others are put back to what they were.
    - `_step(tensordict)`: what follows from the action in it: observations, reward, done flags.
    - `_set_seed(seed)`.

    "done" is the union of all ends of an episode. A lone "done" counts as "terminated", and every environment has both.

    A subclass may return its own buffers and update them in place later: entries that it still holds are copied, so
    that the results of `reset`, `step` and `rollout` stay the caller's own. It must not write into the tensors that it
    is given.

    Args:
        device: where inputs and outputs live; None where that is not said.
        batch_size: of the environment; every spec's shape begins with it.
        run_type_checks: check every step's outputs against the specs.
        allow_done_after_reset: let a reset give rows that are done.
        spec_locked: lock the specs, so that what is derived from them stays true.
        auto_reset: the simulator begins anew by itself: what `_step` observes on a done row is the next episode's.
        auto_reset_replace: where it does, put NaN (or zeros) in place of the final observations that are lost so.

    >>> import torch
    >>> from tensordict import TensorDict
    >>> from vecrl.specs import Composite, Unbounded
    >>> class Count(EnvBase):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.observation_spec = Composite(count=Unbounded((1,), dtype=torch.int64))
    ...         self.action_spec = Unbounded((1,))
    ...     def _reset(self, tensordict=None):
    ...         return TensorDict({"count": torch.zeros(1, dtype=torch.int64)})
    ...     def _step(self, tensordict):
    ...         count = tensordict["count"] + 1
    ...         return TensorDict({"count": count, "reward": torch.ones(1), "done": count >= 3})
    ...     def _set_seed(self, seed): ...
    >>> Count().rollout(10)["next", "count"].squeeze(-1)
    tensor([1, 2, 3])
    """

    batch_locked = True
    supports_set_state = False
    _arrays_are_new = False  # whether tensors over the memory of arrays are never written again

    def __init__(
        self,
        *,
        device: Any = None,
        batch_size: Any = None,
        run_type_checks: bool = False,
        allow_done_after_reset: bool = False,
        spec_locked: bool = True,
        auto_reset: bool = False,
        auto_reset_replace: bool | None = None,
    ):
        super().__init__(device, batch_size, spec_locked)
        self.run_type_checks = run_type_checks
        self.is_closed = False
        self._allow_done_after_reset = allow_done_after_reset
        replace = auto_reset_replace is None or auto_reset_replace
        self._self_reset = SelfResetBuffer(replace) if auto_reset else None

    # -- what a subclass gives

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        raise NotImplementedError(f"{type(self).__name__} has no _reset.")

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        raise NotImplementedError(f"{type(self).__name__} has no _step.")

    def _set_seed(self, seed: int | None) -> None:
        raise NotImplementedError(f"{type(self).__name__} has no _set_seed.")

    def _rollout_at_once(self, steps: int, actions: Any, break_when_any_done: bool) -> TensorDictBase | None:
        """A whole rollout of `steps` from a reset on, with `actions` `[steps, ...]` or random ones (None), until the
        first end if `break_when_any_done`; None where the environment has no quicker way than step by step."""
        return None

    def _unwrapped_gym(self) -> UnwrappedGymEnv | None:
        """What is under the environment, where batches of it may be stepped instead; None where they may not."""
        return None

    def _state_facts(self) -> dict[str, Any]:
        shapes = [
            (name, str(key), list(self._full(name)[key].shape))
            for name in _STATE_FACT_SPECS
            for key in self._leaf_keys(name)
        ]
        return {"batch_size": list(self.batch_size), "entries": str(shapes)}

    # -- resets

    def reset(
        self, tensordict: TensorDictBase | None = None, *, set_state: bool | None = None, **kwargs: Any
    ) -> TensorDictBase:
        """Begin episodes.

        Args:
            tensordict: may hold masks "_reset" beside done flags: then only those rows begin anew, and the others keep
                what it holds. It is updated in place and returned, without the masks.
            set_state: begin where `tensordict` says, or do not; None as the environment usually does. `_reset` gets it.
            kwargs: for `_reset`.

        Raises:
            SpaceError: a mask in the wrong place or of the wrong shape; rows that are done after their reset.
        """
        self._check_open()
        if set_state is not None and self.supports_set_state:
            kwargs["set_state"] = set_state
        elif set_state:
            raise NotImplementedError(f"{type(self).__name__} begins where it will, so it takes no set_state=True.")
        masks = None
        if tensordict is not None:
            self._check_batch(tensordict)
            masks = RowMasks.from_tensordict(tensordict, "_reset", self.done_prefixes)
            if masks and self._none_selected(masks):
                completed, noop_step = self._complete_flags(tensordict), self._noop_step
                return self._drop_reset_masks(
                    fill_missing(completed, self.observation_keys, noop_step, self.reward_keys)
                )
        reset_td = self._reset_and_complete(tensordict, **kwargs)
        if not self._allow_done_after_reset:
            check_not_done(reset_td, masks, self._done_keys_by_prefix)
        if masks and not masks.single_true:
            reset_td = masks.select(reset_td, tensordict)
        return reset_td if tensordict is None else self._drop_reset_masks(merge_into(tensordict, reset_td))

    def _reset_and_complete(self, tensordict: TensorDictBase | None, **kwargs: Any) -> TensorDictBase:
        """What a reset gives, with all its flags; rows that no mask in `tensordict` means hold anything."""
        if self._self_reset is None or tensordict is None or not self._self_reset.has_pending:
            return self._reset_rows(tensordict, **kwargs)
        reset_fn = partial(self._reset_rows, **kwargs)
        return self._complete_flags(self._self_reset.on_reset(tensordict, self.done_prefixes, self.done_keys, reset_fn))

    def _reset_rows(self, tensordict: TensorDictBase | None, **kwargs: Any) -> TensorDictBase:
        reset_td = self._reset(tensordict, **kwargs)
        check_result(self, reset_td, None, "_reset")
        reset_td = owned(reset_td, tensordict, self._arrays_are_new)
        return self._drop_reset_masks(self._complete_flags(reset_td.exclude(*self._reward_keys_not_in_root)))

    def maybe_reset(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Begin anew in the rows of `tensordict` that are done; the others stay as they are."""
        masks = self._done_masks(tensordict)
        if masks is None:
            return tensordict
        for prefix, mask in masks.items():
            tensordict.set(join_key(prefix, "_reset"), mask)
        return self.reset(tensordict)

    def any_done(self, tensordict: TensorDictBase) -> bool:
        """Whether a row is done."""
        return self._done_masks(tensordict) is not None

    def _done_masks(self, tensordict: TensorDictBase) -> dict[tuple[str, ...], Tensor] | None:
        """Who is done, place by place; None where nobody is."""
        masks = {prefix: tensordict.get(key) for prefix, key in self._done_keys_by_prefix}
        return masks if any(map(any_true, masks.values())) else None

    def _none_selected(self, masks: RowMasks) -> bool:
        """Whether it is known that nobody is meant. To look may be to wait, which an environment may leave."""
        return masks.none_selected

    def _drop_reset_masks(self, tensordict: TensorDictBase) -> TensorDictBase:
        return drop_keys(tensordict, self._cached("reset_keys", lambda: self.reset_keys))

    # -- steps

    def step(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Take the action in `tensordict`.

        Args:
            tensordict: of the batch size, with actions and whatever else the environment needs. A mask "_step" names
                the rows to step; the others keep what it holds.

        Returns:
            `tensordict` itself, with what follows under "next".
        """
        self._check_open()
        self._check_batch(tensordict)
        mask = tensordict.get("_step", None)
        if mask is None:
            return self._with_next(tensordict, self._step_and_complete(tensordict))
        masks = RowMasks.from_tensordict(tensordict, "_step", [()])
        tensordict.pop("_step")
        if self._none_selected(masks):
            next_td = self._noop_step(tensordict)
        else:
            next_td = masks.select(self._step_masked(tensordict, masks.masks[()]), tensordict)
        return self._with_next(tensordict, next_td)

    def _with_next(self, tensordict: TensorDictBase, next_td: TensorDictBase) -> TensorDictBase:
        """`tensordict` with what follows under "next", beside what a policy put there."""
        if "next" in tensordict.keys():  # noqa: SIM118 - a TensorDict is no dict
            next_td = merge_into(tensordict.get("next").copy(), next_td)
        return tensordict.set("next", next_td)

    def _step_masked(self, tensordict: TensorDictBase, mask: Tensor) -> TensorDictBase:
        """What follows, of which only the rows of `mask` count."""
        if self.batch_locked or not tensordict.batch_dims:
            next_td = self._step_and_complete(tensordict.set("_step", mask))
            del tensordict["_step"]
            return next_td.exclude("_step", inplace=True)
        row_mask = mask.reshape(*tensordict.batch_size, -1).any(-1)
        stepped_rows: Any = self._step_and_complete(tensordict[row_mask])
        full_batch: Any = (
            torch.zeros_like(stepped_rows[:1]).expand(tensordict.batch_size.numel(), *stepped_rows.shape[1:]).clone()
        )
        full_batch[row_mask.reshape(-1)] = stepped_rows
        return full_batch.reshape(tensordict.batch_size)

    def _noop_step(self, tensordict: TensorDictBase) -> TensorDictBase:
        """What follows where nobody steps."""
        next_td = TensorDict({}, tensordict.batch_size, device=self.device)
        for name in OUTPUTS:
            next_td.update(self._full(name).zero(self._extra_batch_shape(tensordict)))
        keys = next_td.keys(True, True, is_leaf=is_leaf)
        return next_td.update(tensordict.select(*keys, strict=False))

    def _step_and_complete(self, tensordict: TensorDictBase) -> TensorDictBase:
        try:
            next_td = self._step(tensordict)
        except (KeyError, AttributeError, TypeError) as error:
            input_error = missing_input_error(self, tensordict, error)
            if input_error is None:
                raise
            raise input_error from error
        check_result(self, next_td, tensordict, "_step")
        next_td = self._complete_flags(owned(next_td, tensordict, self._arrays_are_new))
        for key in self.reward_keys:
            actual = next_td.get(key, None)
            reward = reshape_reward(actual, key, self.full_reward_spec[key].shape, self.batch_locked)
            if reward is not actual:
                next_td.set(key, reward)
        if self.run_type_checks:
            self._check_types(next_td)
        if self._self_reset is not None:
            done_masks = self._done_masks(next_td) or {}
            self._self_reset.on_step(next_td, done_masks, self.observation_keys, tensordict.get("_step", None))
        return next_td

    def _complete_flags(self, tensordict: TensorDictBase) -> TensorDictBase:
        """See that every done flag of the spec is there: "done" is any of the others, a lone "done" is "terminated"."""
        if not has_all_flags(tensordict, self._flags()):
            for group in self._cached("flag_groups", self._flag_groups):
                fill_flags(tensordict, *group)
        return tensordict

    def step_and_maybe_reset(self, tensordict: TensorDictBase) -> tuple[TensorDictBase, TensorDictBase]:
        """Step, and begin anew where that ended something.

        Returns:
            `tensordict` with "next" as `step` gives it, and the root of the next step: of the rows that ended, that of
            a new episode.
        """
        self._check_open()
        self._check_batch(tensordict)
        if "_step" in tensordict.keys():  # noqa: SIM118 - a TensorDict is no dict
            result = self.step(tensordict)
            return result, self.maybe_reset(self.step_mdp(result))
        next_td, reset_td = self._step_and_reset_done(tensordict)
        root = self.step_mdp(self._with_next(tensordict, next_td))
        return tensordict, self.maybe_reset(root) if reset_td is None else self._merge_reset_rows(root, reset_td)

    def _step_and_reset_done(self, tensordict: TensorDictBase) -> tuple[TensorDictBase, TensorDictBase | None]:
        """What follows, and, where what ended began anew in the same go, the roots of the new episodes.

        Only the rows of the latter whose done flag is set in the former count; None: nothing began anew.
        """
        return self._step_and_complete(tensordict), None

    def _merge_reset_rows(self, root: TensorDictBase, reset_td: TensorDictBase) -> TensorDictBase:
        """Put what `_step_and_reset_done` began anew into the root of the next step, which is returned."""
        masks = self._done_masks(root)
        return root if masks is None else merge_into(root, RowMasks(masks, self.done_prefixes).select(reset_td, root))

    def step_mdp(self, tensordict: TensorDictBase) -> TensorDictBase:
        """The root of the next step, see `vecrl.envs.utils.step_mdp`, by this environment's keys.

        Of "next", it takes what a spec names and what the root has too; of the root, it keeps whatever is not newer
        there.
        """
        return self._cached("successor", lambda: step_mdp_for(self))(tensordict)

    # -- checks

    def _check_open(self) -> None:
        if self.is_closed:
            raise ClosedError(f"This {type(self).__name__} is closed; make a new one.")

    def _check_batch(self, tensordict: TensorDictBase) -> None:
        batch = getattr(tensordict, "batch_size", None)
        if batch is None or (self.batch_locked and batch != self.batch_size):
            actual = f"{tensordict!r:.80}" if batch is None else f"one of {tuple(batch)}"
            raise SpaceError(f"Expected a TensorDict of batch size {tuple(self.batch_size)}, but {actual} came.")

    def _check_types(self, next_td: TensorDictBase) -> None:
        for spec in (self.full_observation_spec, self.full_reward_spec, self.full_done_spec):
            spec.assert_is_in(next_td.select(*spec.keys(True, True)))

    # -- actions, rollouts, seeds

    def rand_action(self, tensordict: TensorDictBase | None = None) -> TensorDictBase:
        """A random action for every row, written into `tensordict` (a new one by default), which is returned."""
        if tensordict is None:
            tensordict = TensorDict({}, self.batch_size, device=self.device)
        return merge_into(tensordict, self.full_action_spec.rand(self._extra_batch_shape(tensordict)))

    @property
    def _has_custom_rand_action(self) -> bool:
        """Whether random actions are more than values of the action specs."""
        return type(self).rand_action is not EnvBase.rand_action

    def _seeded_rand_action(self, tensordict: TensorDictBase, seed: int) -> TensorDictBase:
        """The actions of `rand_action` alone, by a seed from elsewhere, with torch's randomness here as it was."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return self.rand_action(tensordict).select(*leaves_of(self.full_action_spec))

    def _extra_batch_shape(self, tensordict: TensorDictBase) -> Any:
        """The sizes of a batch that the specs do not have yet."""
        return () if self.batch_locked or self.batch_size else tensordict.batch_size

    def rand_step(self, tensordict: TensorDictBase | None = None) -> TensorDictBase:
        """A step with random actions, from `tensordict` or from a TensorDict with nothing else in it."""
        return self.step(self.rand_action(tensordict))

    def rollout(
        self,
        max_steps: int,
        policy: Policy | None = None,
        callback: Callable[[Any, TensorDictBase], Any] | None = None,
        *,
        actions: Iterable[Any] | None = None,
        auto_reset: bool = True,
        auto_cast_to_device: bool = False,
        break_when_any_done: bool | None = None,
        break_when_all_done: bool | None = None,
        return_contiguous: bool | None = None,
        tensordict: TensorDictBase | None = None,
        set_truncated: bool = False,
        out: TensorDictBase | None = None,
        trust_policy: bool = False,
        storing_device: Any = None,
    ) -> TensorDictBase:
        """Play; see `vecrl.envs.rollout.rollout`, which this is."""
        arguments = {name: value for name, value in locals().items() if name not in ("self", "__class__")}
        return rollouts.rollout(self, **arguments)

    def set_seed(self, seed: int | None = None, static_seed: bool = False) -> int | None:
        """Seed the environment; returns the seed for the next one, so that no two of a batch are alike.

        Args:
            seed: None leaves the seeds to chance.
            static_seed: return `seed` itself.
        """
        self._set_seed(validate_seed(seed))
        return seed if static_seed or seed is None else next_seed(seed)

    def to(self, device: Any) -> Self:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Have inputs and outputs on another device; returns the environment."""
        self._device = device_of(device)
        for name, spec in list(self._specs.items()):
            self._set_full(name, spec)
        return super().to(self._device)

    def close(self, *, raise_if_closed: bool = False) -> None:
        """End; twice is harmless unless `raise_if_closed`."""
        if raise_if_closed:
            self._check_open()
        self.is_closed = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}(batch_size={tuple(self.batch_size)}, device={self.device})"
