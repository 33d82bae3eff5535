"""`SteppedEnv`: resets and steps of environments over TensorDicts.

It completes what `_reset` and `_step` of a subclass return (done flags, shapes of rewards), masks partial resets and
steps, and derives the next seed. Masks are in `vecrl.envs.row_masks`. It must not know rollouts, policies and vector
environments.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Self

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from ..errors import ClosedError, SpaceError, VecrlError
from ..snapshot import Stateful
from ..validation import check_seed, parse_device
from .action_dtypes import Dtypes, integral_entries, with_exact_dtypes
from .compiled_steps import CompiledSteps
from .done_flags import any_true, fill_flags, has_all_flags, reduce_to_rows
from .env_specs import Device, derived
from .fast_paths import bypassed_by, overrides_bypassed
from .keys import OUTPUTS, Prefix, join_key
from .random_actions import RandomActions
from .row_masks import RowMasks, check_not_done, drop_keys, fill_missing, is_leaf, merge_into
from .seed_chain import next_seed, validate_seed
from .self_reset import SelfResetBuffer
from .shared_entries import copy_entries, declares_new_tensors
from .step_mdp import leaves_of, make_step_mdp
from .step_validation import check_result, flag_error, missing_input_error, reshape_reward

_bypassed = bypassed_by("_rollout_at_once", "_unwrapped_gym")
_STATE_FACT_SPECS = ("observation", "action")


class SteppedEnv(CompiledSteps, Stateful, RandomActions):
    """The base of `EnvBase`: everything that a reset and a step need. Its arguments are those of `EnvBase`."""

    run_type_checks = False
    _converts_actions = False  # whether `_step` takes actions of any dtype
    _resets_when_seeded = False  # whether `set_seed` resets
    returns_new_tensors = False
    """Whether the environment never writes to what its `_reset` and `_step` have returned; otherwise it is copied.

    Class attribute. It holds for the methods of the class that sets it, and not for those that a subclass overrides,
    which may set it too.
    """
    _result_methods: tuple[str, ...] = ("_reset", "_step")  # make the results

    def __init__(
        self,
        *,
        device: Device = None,
        batch_size: Sequence[int] | int | None = None,
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
        self._self_reset: SelfResetBuffer | None = None
        if auto_reset:
            self._set_auto_reset(auto_reset_replace)

    def _complete_init(
        self, *, auto_reset: bool = False, auto_reset_replace: bool | None = None, **options: Any
    ) -> None:
        if auto_reset:
            self._set_auto_reset(auto_reset_replace)
        super()._complete_init(**options)

    def _set_auto_reset(self, replace: bool | None) -> None:
        """Declares that the simulator resets itself; `replace` is the argument `auto_reset_replace`."""
        self._self_reset = SelfResetBuffer(replace is None or replace)

    # -- methods that a subclass defines

    @_bypassed
    @abstractmethod
    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase: ...

    @_bypassed
    @abstractmethod
    def _step(self, tensordict: TensorDictBase) -> TensorDictBase: ...

    @bypassed_by("_unwrapped_gym")
    def _set_seed(self, seed: int | None) -> None:
        raise NotImplementedError(f"{type(self).__name__} has no _set_seed.")

    def _rollout_at_once(self, steps: int, actions: Tensor | None, break_when_any_done: bool) -> TensorDictBase | None:
        """Returns a whole rollout, or None if the environment has no faster way than single steps.

        Args:
            steps: the maximum number of steps after the reset.
            actions: `[steps, ...]`; None for random actions.
            break_when_any_done: stop at the first step that is done.
        """
        return None

    def _state_facts(self) -> dict[str, Any]:
        shapes = [
            (name, str(key), list(self._full(name)[key].shape))
            for name in _STATE_FACT_SPECS
            for key in self._leaf_keys(name)
        ]
        return {"batch_size": list(self.batch_size), "entries": str(shapes)}

    # -- resets

    @_bypassed
    def reset(
        self,
        tensordict: TensorDictBase | None = None,
        *,
        set_state: bool | None = None,
        select_reset_only: bool = False,
        **kwargs: Any,
    ) -> TensorDictBase:
        """Resets the environment and returns the first entries of the new episodes. Opens it first if it is closed.

        Args:
            tensordict: may hold "_reset" masks beside done flags: then only these rows are reset, and the other rows
                keep its entries. It is updated in place and returned, without the masks.
            set_state: whether to start from the state in `tensordict`; None for the environment's default. Passed to
                `_reset`.
            select_reset_only: accepted for scripts of TorchRL. It has no effect there either on what is returned.
            kwargs: passed to `_reset`.

        Returns:
            `tensordict`, updated, or a new TensorDict if it is None.

        Raises:
            ClosedError: if the environment was closed and cannot be opened again.
            NotImplementedError: if `set_state` is true and the environment does not support it.
            SpaceError: if a mask is in the wrong place or has the wrong shape, or rows are done after their reset.
        """
        if self.is_closed:
            return self._open_and_reset(tensordict, set_state=set_state, **kwargs)
        if kwargs:
            check_seed(kwargs.get("seed"))
        if set_state is not None and self.supports_set_state:
            kwargs["set_state"] = set_state
        elif set_state:
            raise NotImplementedError(f"{type(self).__name__} chooses its own initial states: omit set_state=True.")
        masks = None
        if tensordict is not None:
            self._check_batch(tensordict)
            masks = RowMasks.from_tensordict(tensordict, "_reset", self.done_prefixes, self._done_shapes)
            if masks and self._none_selected(masks):
                completed, noop_step = self._complete_flags(tensordict), self._noop_step
                return self._drop_reset_masks(
                    fill_missing(completed, self.observation_keys, noop_step, self.reward_keys)
                )
        reset_td = self._reset_and_complete(tensordict, **kwargs)
        if not self._allow_done_after_reset:
            check_not_done(reset_td, masks, self._done_keys_by_prefix.values())
        if masks and not masks.single_true:
            reset_td = masks.select(reset_td, tensordict)
        return reset_td if tensordict is None else self._drop_reset_masks(merge_into(tensordict, reset_td))

    def _open(self) -> None:
        """Opens a closed environment for a reset. A subclass makes what its `close` has released."""
        self.is_closed = False

    def _open_and_reset(self, tensordict: TensorDictBase | None, **kwargs: Any) -> TensorDictBase:
        if tensordict is not None:
            masks = RowMasks.from_tensordict(tensordict, "_reset", self.done_prefixes, self._done_shapes)
            if not all(bool(mask.all()) for mask in masks.masks.values()):
                raise ClosedError(
                    f"Expected a reset of all rows of {type(self).__name__}, which is closed, got a mask of some. The "
                    'episodes of the others ended with close: omit "_reset".'
                )
        self._open()
        try:
            return self.reset(tensordict, **kwargs)
        except Exception as error:
            if isinstance(error, VecrlError) and not isinstance(error, ClosedError):
                raise
            self.is_closed = True
            raise ClosedError(
                f"Expected {type(self).__name__} to be reset after close, got {error!r:.200}. Make a new one."
            ) from error

    def _reset_and_complete(self, tensordict: TensorDictBase | None, **kwargs: Any) -> TensorDictBase:
        """Returns the result of a reset with all done flags; rows outside the masks in `tensordict` are undefined."""
        if self._self_reset is None:
            return self._reset_rows(tensordict, **kwargs)
        reset_fn = partial(self._reset_rows, **kwargs)
        return self._complete_flags(self._self_reset.on_reset(tensordict, self.done_prefixes, self.done_keys, reset_fn))

    def _reset_rows(self, tensordict: TensorDictBase | None, **kwargs: Any) -> TensorDictBase:
        reset_td = self._reset(tensordict, **kwargs)
        check_result(self, reset_td, None, "_reset")
        reset_td = self._own_result(reset_td, tensordict)
        return self._complete_flags(drop_keys(reset_td, self._keys_not_in_reset))

    def _own_result(self, data: TensorDictBase, inputs: TensorDictBase | None) -> TensorDictBase:
        """Returns the result of `_reset` or `_step` of `inputs`; a copy if the environment may write to it later."""
        if declares_new_tensors(type(self), self._result_methods) and not data.is_locked:
            return data
        return copy_entries(data, inputs)

    @_bypassed
    def maybe_reset(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Resets the rows of `tensordict` that are done and returns it; the other rows are unchanged."""
        masks = self._done_masks(tensordict)
        return tensordict if masks is None else self._reset_done_rows(tensordict, masks)

    def _reset_done_rows(self, tensordict: TensorDictBase, masks: dict[Prefix, Tensor]) -> TensorDictBase:
        for prefix, mask in masks.items():
            tensordict.set(join_key(prefix, "_reset"), mask)
        return self.reset(tensordict)

    def any_done(self, tensordict: TensorDictBase) -> bool:
        """Returns whether any row of `tensordict` is done. Flags at the root override those of groups below."""
        done_flags = (tensordict[self._done_keys_by_prefix[prefix]] for prefix in self.outer_done_prefixes)
        return any(map(any_true, done_flags))

    def _done_masks(self, tensordict: TensorDictBase) -> dict[Prefix, Tensor] | None:
        """Returns the "done" flags by prefix; None if no row is done."""
        masks: dict[Prefix, Tensor] = {}
        for prefix, key in self._done_keys_by_prefix.items():
            masks[prefix] = tensordict[key]
        return masks if any(any_true(masks[prefix]) for prefix in self.outer_done_prefixes) else None

    def _none_selected(self, masks: RowMasks) -> bool:
        """Returns whether the masks are known to select no row; a subclass may skip the check, as it waits for GPUs."""
        return masks.none_selected

    def _drop_reset_masks(self, tensordict: TensorDictBase) -> TensorDictBase:
        return drop_keys(tensordict, self._reset_keys)

    # -- steps

    @bypassed_by("_rollout_at_once", "_unwrapped_gym", "_step_and_reset_done")
    def step(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Applies the actions in `tensordict` and writes the results under "next".

        Args:
            tensordict: has the environment's batch size, and holds actions and the environment's other inputs. A
                "_step" mask selects the rows to step; the other rows keep its entries.

        Returns:
            `tensordict` itself, with observations, rewards and done flags under "next".

        Raises:
            ClosedError: if the environment is closed.
            SpaceError: if the batch size or the mask does not fit, or the result of `_step` is invalid.
        """
        if self.is_closed:
            self._check_open()
        self._check_batch(tensordict)
        mask = tensordict.get("_step", None)
        if mask is None:
            return self._with_next(tensordict, self._step_and_complete(tensordict))
        masks = RowMasks.from_tensordict(tensordict, "_step", [()], self._done_shapes)
        tensordict.pop("_step")
        if self._none_selected(masks):
            next_td = self._noop_step(tensordict)
        else:
            next_td = masks.select(self._step_masked(tensordict, masks.masks[()]), tensordict)
        return self._with_next(tensordict, next_td)

    def _with_next(self, tensordict: TensorDictBase, next_td: TensorDictBase) -> TensorDictBase:
        """Returns `tensordict` with the step's result under "next", where a policy may have put other entries."""
        if "next" in tensordict.keys():  # noqa: SIM118 - a TensorDict is no dict
            next_td = merge_into(tensordict.get("next").copy(), next_td)
        return tensordict.set("next", next_td)

    def _step_masked(self, tensordict: TensorDictBase, mask: Tensor) -> TensorDictBase:
        """Returns the result of a step, which is valid only in the rows of `mask`."""
        if self.batch_locked or not tensordict.batch_dims:
            next_td = self._step_and_complete(tensordict.set("_step", mask))
            del tensordict["_step"]
            return next_td.exclude("_step", inplace=True)
        row_mask = reduce_to_rows(mask, tensordict.batch_size)
        stepped_rows: Any = self._step_and_complete(tensordict[row_mask])
        full_batch: Any = (
            torch.zeros_like(stepped_rows[:1]).expand(tensordict.batch_size.numel(), *stepped_rows.shape[1:]).clone()
        )
        full_batch[row_mask.reshape(-1)] = stepped_rows
        return full_batch.reshape(tensordict.batch_size)

    def _noop_step(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Returns the result of a step in which no row is stepped."""
        next_td = TensorDict({}, tensordict.batch_size, device=self.device)
        for name in OUTPUTS:
            next_td.update(self._full(name).zero(self._extra_batch_shape(tensordict)))
        keys = next_td.keys(True, True, is_leaf=is_leaf)
        return next_td.update(tensordict.select(*keys, strict=False), update_batch_size=True)

    @derived
    def _integral_actions(self) -> Dtypes:
        return [] if self._converts_actions else integral_entries(self.full_action_spec)

    def _step_and_complete(self, tensordict: TensorDictBase) -> TensorDictBase:
        if self._integral_actions:
            tensordict = with_exact_dtypes(tensordict, self._integral_actions)
        try:
            next_td = self._step(tensordict)
        except (KeyError, AttributeError, TypeError) as error:
            input_error = missing_input_error(self, tensordict, error)
            if input_error is None:
                raise
            raise input_error from error
        check_result(self, next_td, tensordict, "_step")
        next_td = self._complete_flags(self._own_result(next_td, tensordict))
        for key, shape in self._rewards:
            actual = next_td.get(key, None)
            if actual is None or actual.shape != shape:
                reward = reshape_reward(actual, key, shape, self.batch_locked)
                next_td.set(key, reward)
        if self.run_type_checks:
            self._check_types(next_td)
        if self._self_reset is not None:
            done_masks = self._done_masks(next_td) or {}
            self._self_reset.on_step(next_td, done_masks, self.observation_keys, tensordict.get("_step", None))
        return next_td

    def _complete_flags(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Adds missing done flags: "done" is the union of the others, "terminated" equals a lone "done"."""
        if not has_all_flags(tensordict, self._flags):
            try:
                for group in self._flag_groups:
                    fill_flags(tensordict, *group)
            except SpaceError as error:
                raise flag_error(self, tensordict, error) from error
        return tensordict

    @_bypassed
    def step_and_maybe_reset(self, tensordict: TensorDictBase) -> tuple[TensorDictBase, TensorDictBase]:
        """Steps the environment and resets the rows that are done after the step.

        Returns:
            `tensordict` with "next" as `step` sets it, and the root of the next step, in which the rows that were done
            hold the first entries of a new episode.
        """
        if self.is_closed:
            self._check_open()
        self._check_batch(tensordict)
        if "_step" in tensordict.keys() or overrides_bypassed(type(self), "_step_and_reset_done"):  # noqa: SIM118
            result = self.step(tensordict)
            return result, self.maybe_reset(self.step_mdp(result))
        next_td, reset_td = self._step_and_reset_done(tensordict)
        root = self.step_mdp(self._with_next(tensordict, next_td))
        return tensordict, self.maybe_reset(root) if reset_td is None else self._merge_reset_rows(root, reset_td)

    def _step_and_reset_done(self, tensordict: TensorDictBase) -> tuple[TensorDictBase, TensorDictBase | None]:
        """Returns the result of a step, and the first entries of the episodes that it started with an auto-reset.

        The second is valid only in the rows that are done in the first; None if no row was reset.
        """
        return self._step_and_complete(tensordict), None

    def _merge_reset_rows(self, root: TensorDictBase, reset_td: TensorDictBase) -> TensorDictBase:
        """Merges the reset rows from `_step_and_reset_done` into the root of the next step and returns it."""
        masks = self._done_masks(root)
        return root if masks is None else merge_into(root, RowMasks(masks, self.done_prefixes).select(reset_td, root))

    @_bypassed
    def step_mdp(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Returns the root of the next step: `vecrl.envs.utils.step_mdp` with the keys of this environment.

        From "next", it takes the entries that a spec names or that the root has too. It keeps the other entries of the
        root.
        """
        return self._step_mdp(tensordict)

    @derived
    def _step_mdp(self) -> Callable[[TensorDictBase], TensorDictBase]:
        next_keys = leaves_of(self.full_observation_spec, self.full_done_spec, self.full_state_spec)
        return make_step_mdp(self.action_keys, self._reward_keys_not_in_root, next_select=next_keys)

    # -- checks

    def _check_open(self) -> None:
        if self.is_closed:
            raise ClosedError(f"Expected an open {type(self).__name__}, got a closed one. Call reset() to open it.")

    def _check_batch(self, tensordict: TensorDictBase) -> None:
        batch = getattr(tensordict, "batch_size", None)
        if batch is None or (batch != self._batch_size and self.batch_locked):
            actual = f"{tensordict!r:.80}" if batch is None else f"one of {tuple(batch)}"
            raise SpaceError(f"Expected a TensorDict of batch size {tuple(self.batch_size)}, got {actual}.")

    def _check_types(self, next_td: TensorDictBase) -> None:
        for spec in (self.full_observation_spec, self.full_reward_spec, self.full_done_spec):
            spec.assert_is_in(next_td.select(*spec.keys(True, True)))

    # -- seeds

    @bypassed_by("_unwrapped_gym")
    def set_seed(self, seed: int | None = None, static_seed: bool = False) -> int | None:
        """Seeds the environment and returns the seed for the next environment of a batch, which is a different one.

        As in TorchRL, environments of gymnasium and of libraries like it are reset at once, so that the next reset
        starts the second episode of the seed.

        Args:
            seed: None for a random seed, which the next reset uses. The rows of an environment get the seeds of single
                ones, one after another.
            static_seed: return `seed` itself.
        """
        following_seed = self._apply_seed(seed, static_seed)
        if seed is not None:
            self._reset_seeded()
        return following_seed

    @property
    def _has_own_set_seed(self) -> bool:
        """Whether `set_seed` is that of vecrl, and not one of a user's class."""
        return type(self).set_seed.__module__.partition(".")[0] == __name__.partition(".")[0]

    def _seed_next_reset(self, seed: int | None, static_seed: bool = False) -> int | None:
        """Does the same as `set_seed`, but the next reset starts the first episode of the seed."""
        return self._apply_seed(seed, static_seed) if self._has_own_set_seed else self.set_seed(seed, static_seed)

    def _reset_after_seed(self) -> None:
        """Does what `set_seed` does after `_seed_next_reset`."""
        if self._has_own_set_seed:
            self._reset_seeded()

    def _reset_seeded(self) -> None:
        if self._resets_when_seeded:
            if self.is_closed:
                self._open()
            self._reset()

    def _apply_seed(self, seed: int | None, static_seed: bool) -> int | None:
        """Seeds the environment for its next reset, and returns what `set_seed` returns."""
        self._set_seed(validate_seed(seed))
        return seed if static_seed or seed is None else next_seed(seed)

    def to(self, device: torch.device | str | int) -> Self:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Moves inputs, outputs and specs to another device and returns the environment."""
        self._device = parse_device(device)
        for name, spec in list(self._specs.items()):
            self._set_full(name, spec)
        return super().to(self._device)

    def close(self, *, raise_if_closed: bool = False) -> None:
        """Closes the environment. The next `reset` opens it again.

        Args:
            raise_if_closed: raise a `ClosedError` if it is closed already; otherwise a second call does nothing.
        """
        if raise_if_closed:
            self._check_open()
        self.is_closed = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}(batch_size={tuple(self.batch_size)}, device={self.device})"
