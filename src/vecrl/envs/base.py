"""`EnvBase`: the base class of environments over TensorDicts. A subclass defines `_reset`, `_step` and `_set_seed`.

`EnvBase` completes what these return (done flags, shapes of rewards), masks partial resets and steps, and derives the
next seed. `vecrl.envs` puts what it needs of modules that import this one into `upper_modules`.
"""

from __future__ import annotations

import weakref
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from ..errors import ClosedError, SpaceError, VecrlError
from ..snapshot import Stateful
from ..validation import check_seed, parse_device
from .check_specs import (
    Dtypes,
    check_env_specs,
    check_result,
    flag_error,
    integral_entries,
    missing_input_error,
    reshape_reward,
    with_exact_dtypes,
)
from .entries.keys import OUTPUTS, Key, Prefix, join_key
from .entries.records import RecordSteps, record_keys, record_loop
from .entries.row_masks import (
    RowMasks,
    any_true,
    check_not_done,
    drop_keys,
    fill_flags,
    fill_missing,
    has_all_flags,
    is_leaf,
    merge_into,
    reduce_to_rows,
)
from .entries.shared_entries import copy_entries, declares_new_tensors
from .entries.step_mdp import leaves_of, make_step_mdp
from .env_specs import Device, EnvSpecs, spec_cached_property
from .fast_paths import bypassed_by, overrides_bypassed
from .rollouts import rollout as rollouts
from .seed_chain import next_seed, validate_seed
from .self_reset import SelfResetBuffer
from .spec_inference import auto_specs

Policy = Callable[[TensorDictBase], TensorDictBase]

upper_modules: dict[str, Callable[..., Any]] = {}
"""Classes and functions that are defined in modules which import this one."""
_COMPILED = "step_and_maybe_reset"  # the method that `compile=True` compiles
_STATE_FACT_SPECS = ("observation", "action")
_NOT_A_TENSORDICT = AttributeError, TypeError, KeyError  # what other objects than TensorDicts cause
_bypassed = bypassed_by("_rollout_at_once", "_unwrapped_gym")

# Not an attribute of the environment, since that would be pickled with it
_COLLECTORS: weakref.WeakKeyDictionary[EnvBase, weakref.ref[object]] = weakref.WeakKeyDictionary()


@dataclass(frozen=True, slots=True)
class UnwrappedGymEnv:
    """The gymnasium environment under an `EnvBase`.

    Attributes:
        env: the `gymnasium.Env`. `reset` and `step` of the `EnvBase` only call it and apply the specs.
        keys: the keys of its observation leaves, in the order of `engine.space_layout.Layout`.
    """

    env: Any
    keys: tuple[Key, ...]


class EnvBase(Stateful, EnvSpecs):
    """An environment, or a batch of environments, with TensorDicts as inputs and outputs.

    A subclass sets its specs and defines

    - `_reset(tensordict, **kwargs)`: returns the first entries of an episode. If `tensordict` has a "_reset" mask, only
      the rows of the mask need a reset; `reset` restores the entries of the other rows.
    - `_step(tensordict)`: applies the action in `tensordict` and returns observations, reward and done flags.
    - `_set_seed(seed)`: seeds the simulator.

    It may set specs before or after `super().__init__()`, and edit those that its parent declared: they are locked when
    the `__init__` of the environment's class has returned. Without a reward spec, there is no reward. `spec_locked`,
    `auto_reset`, `auto_reset_replace`, `compile` and `policy` are keywords of every subclass, whatever its `__init__`
    takes. `compile=True`, or a dict of arguments of `torch.compile`, compiles `step_and_maybe_reset`. With a
    `policy` that is a module, the result is a `TransformedEnv` with an `InitTracker` and the primers that parts of the
    policy make by `make_tensordict_primer`; transforms that the environment has already are not added.

    "done" is the union of "terminated" and "truncated". A spec with "done" alone gets "terminated" too, with the same
    values.

    A subclass may return its own buffers and update them in place later: entries that it still holds are copied, so
    the results of `reset`, `step` and `rollout` never change afterwards. It must not write into its input tensors.

    Args:
        device: the device of inputs and outputs; None if it is not fixed.
        batch_size: the batch size of the environment; the shape of every spec starts with it.
        run_type_checks: check the outputs of every step against the specs.
        allow_done_after_reset: allow a reset to return rows that are done.
        spec_locked: lock the specs after the construction, so that values derived from them stay valid.
        auto_reset: the simulator resets itself: on a done row, `_step` returns the next episode's first observation.
        auto_reset_replace: with `auto_reset`, write NaN (or zeros) in place of the final observations, which are lost.

    >>> import torch
    >>> from tensordict import TensorDict
    >>> from vecrl.specs import Composite, Unbounded
    >>> class Count(EnvBase):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.observation_spec = Composite(count=Unbounded((1,), dtype=torch.int64))
    ...         self.action_spec = self.reward_spec = Unbounded((1,))
    ...     def _reset(self, tensordict=None):
    ...         return TensorDict({"count": torch.zeros(1, dtype=torch.int64)})
    ...     def _step(self, tensordict):
    ...         count = tensordict["count"] + 1
    ...         return TensorDict({"count": count, "reward": torch.ones(1), "done": count >= 3})
    ...     def _set_seed(self, seed): ...
    >>> Count().rollout(10)["next", "count"].squeeze(-1)
    tensor([1, 2, 3])
    """

    run_type_checks = False
    _converts_actions = False  # whether `_step` takes actions of any dtype
    _resets_when_seeded = False  # whether `set_seed` resets
    returns_new_tensors = False
    """Whether the environment never writes to what its `_reset` and `_step` have returned; otherwise it is copied.

    Class attribute. It holds for the methods of the class that sets it, and not for those that a subclass overrides,
    which may set it too.
    """
    excluded_from_state = (_COMPILED, "_compile_options")
    _compile_options: dict[str, Any] | None = None
    _result_methods: tuple[str, ...] = ("_reset", "_step")  # make the results
    _methods_without_transforms: tuple[str, ...] = ()
    """Methods that transforms around the environment cannot apply to; a `TransformedEnv` does not have them."""

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
        self,
        *,
        auto_reset: bool = False,
        auto_reset_replace: bool | None = None,
        compile: bool | Mapping[str, Any] | None = None,  # noqa: A002 - its public name
        **options: Any,
    ) -> None:
        if auto_reset:
            self._set_auto_reset(auto_reset_replace)
        super()._complete_init(**options)
        self._compile_steps(compile)

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

    _record_keys = spec_cached_property(record_keys)

    def _record_steps(self) -> RecordSteps | None:
        """Returns what steps the environment over records; None if it needs TensorDicts."""
        return None

    def _rollout_at_once(self, steps: int, actions: Tensor | None, break_when_any_done: bool) -> TensorDictBase | None:
        """Returns a whole rollout, or None if the environment has no faster way than single steps.

        Args:
            steps: the maximum number of steps after the reset.
            actions: `[steps, ...]`; None for random actions.
            break_when_any_done: stop at the first step that is done.
        """
        return None

    def _unwrapped_gym(self) -> UnwrappedGymEnv | None:
        """Returns the gymnasium environment that a batch may step in place of this one; None if it must not."""
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
        try:
            masks = self._done_masks(tensordict)
        except _NOT_A_TENSORDICT:
            self._check_batch(tensordict)
            raise
        return tensordict if masks is None else self._reset_done_rows(tensordict, masks)

    def _reset_done_rows(self, tensordict: TensorDictBase, masks: dict[Prefix, Tensor]) -> TensorDictBase:
        for prefix, mask in masks.items():
            tensordict.set(join_key(prefix, "_reset"), mask)
        return self.reset(tensordict)

    def any_done(self, tensordict: TensorDictBase) -> bool:
        """Returns whether any row of `tensordict` is done. Flags at the root override those of groups below."""
        done_flags = (tensordict[self._done_keys_by_prefix[prefix]] for prefix in self.outer_done_prefixes)
        try:
            return any(map(any_true, done_flags))
        except _NOT_A_TENSORDICT:
            self._check_batch(tensordict)
            raise

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

    @spec_cached_property
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
        for key, shape in self._reward_shapes:
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
        if not has_all_flags(tensordict, self._flag_shapes):
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
        loop = record_loop(self)
        if loop is not None and loop.set_root(tensordict):
            loop.step(reset_done=True)
            return tensordict.set("next", loop.next_tensordict()), loop.next_root()
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
        try:
            return self._step_mdp(tensordict)
        except _NOT_A_TENSORDICT:
            self._check_batch(tensordict)
            raise

    @spec_cached_property
    def _step_mdp(self) -> Callable[[TensorDictBase], TensorDictBase]:
        next_keys = leaves_of(self.full_observation_spec, self.full_done_spec, self.full_state_spec)
        return make_step_mdp(self.action_keys, self._reward_keys_not_in_root, next_select=next_keys)

    # -- actions

    @bypassed_by("_rollout_at_once")
    def rand_action(self, tensordict: TensorDictBase | None = None) -> TensorDictBase:
        """Writes a random action for every row into `tensordict` (by default a new one) and returns it."""
        if tensordict is None:
            tensordict = TensorDict({}, self.batch_size, device=self.device)
        else:
            self._check_batch(tensordict)
        return merge_into(tensordict, self.full_action_spec.rand(self._extra_batch_shape(tensordict)))

    @property
    def _has_custom_rand_action(self) -> bool:
        """Whether a subclass overrides `rand_action`, so that it may do more than sample from the action specs."""
        return type(self).rand_action is not EnvBase.rand_action

    def _seeded_rand_action(self, tensordict: TensorDictBase, seed: int) -> TensorDictBase:
        """Returns only the actions of `rand_action`, sampled with `seed`; leaves torch's CPU generator unchanged."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return self.rand_action(tensordict).select(*leaves_of(self.full_action_spec))

    def _extra_batch_shape(self, tensordict: TensorDictBase) -> Sequence[int]:
        """Returns the leading sizes of `tensordict` that the specs do not have."""
        return () if self.batch_locked or self.batch_size else tensordict.batch_size

    def rand_step(self, tensordict: TensorDictBase | None = None) -> TensorDictBase:
        """Steps with random actions, from `tensordict` or, by default, from a TensorDict that holds only these."""
        return self.step(self.rand_action(tensordict))

    # -- rollouts, checks, transforms

    def rollout(
        self,
        max_steps: int,
        policy: Policy | None = None,
        callback: Callable[[EnvBase, TensorDictBase], object] | None = None,
        *,
        actions: Iterable[object] | None = None,
        auto_reset: bool = True,
        auto_cast_to_device: bool = False,
        break_when_any_done: bool | None = None,
        break_when_all_done: bool | None = None,
        return_contiguous: bool | None = None,
        tensordict: TensorDictBase | None = None,
        set_truncated: bool = False,
        out: TensorDictBase | None = None,
        trust_policy: bool = False,
        storing_device: Device = None,
    ) -> TensorDictBase:
        """Steps up to `max_steps` times; see `vecrl.envs.rollouts.rollout.rollout` for the arguments."""
        arguments = {name: value for name, value in locals().items() if name not in ("self", "__class__")}
        return rollouts.rollout(self, **arguments)

    def register_collector(self, collector: object) -> None:
        """Registers a collector as `env.collector`, by a weak reference."""
        _COLLECTORS[self] = weakref.ref(collector)

    @property
    def collector(self) -> Any:
        """The registered collector; None if there is none or it was deleted."""
        return _COLLECTORS[self]() if self in _COLLECTORS else None

    def auto_specs_(self, policy: Policy, **keys: Any) -> Self:
        """Infers the specs from steps with `policy` and sets them; `vecrl.envs.spec_inference.auto_specs` has the same
        arguments."""
        return auto_specs(self, (self._reset, self._step), policy, **keys)

    def check_env_specs(self, *args: Any, **kwargs: Any) -> None:
        """Checks that the environment returns what its specs say; see `vecrl.envs.utils.check_env_specs`."""
        check_env_specs(self, *args, **kwargs)

    def append_transform(self, transform: Any) -> EnvBase:
        """Returns a `TransformedEnv` with this environment and a transform, or a function over TensorDicts."""
        return upper_modules["TransformedEnv"](self, transform)

    def _with_policy(self, policy: object) -> EnvBase:
        return upper_modules["add_policy_transforms"](self, policy)

    @staticmethod
    def make_parallel(create_env_fn: object, *, num_envs: int = 1, **kwargs: object) -> EnvBase:
        """Returns a `ParallelEnv` of `num_envs` environments; `kwargs` are passed to it."""
        return upper_modules["ParallelEnv"](num_envs, create_env_fn, **kwargs)

    def configure_parallel(self, **settings: object) -> Self:
        """Returns the environment unchanged; `ParallelEnv` overrides this method."""
        return self

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Calls `step`, so that the environment can be used as a module."""
        return self.step(tensordict)

    @classmethod
    def register_gym(
        cls,
        id: str,  # noqa: A002 - its public name
        *,
        entry_point: Callable[..., object] | None = None,
        transform: object = None,
        info_keys: Sequence[Key] | None = None,
        backend: object = None,
        to_numpy: bool = False,
        reward_threshold: float | None = None,
        nondeterministic: bool = False,
        max_episode_steps: int | None = None,
        order_enforce: bool = True,
        autoreset: bool | None = None,
        disable_env_checker: bool = False,
        apply_api_compatibility: bool = False,
        **kwargs: object,
    ) -> None:
        """Registers the environment class with gymnasium, so that `gymnasium.make(id)` makes an environment.

        Its observations are dicts with the environment's keys.

        Args:
            id: the name, such as "Mine-v0".
            entry_point: a function that makes the environment; by default the class itself.
            transform: a transform or a list of transforms to apply; `make` accepts it too.
            info_keys: observation keys to return in the info instead; `make` accepts it too.
            backend: "gymnasium", "gym", or any other argument of `set_gym_backend`; by default the current backend.
            to_numpy: return arrays, numbers and bools instead of tensors; `make` accepts it too.
            reward_threshold, nondeterministic, max_episode_steps: passed to the backend's `register`.
            order_enforce, autoreset, disable_env_checker, apply_api_compatibility: the same, if its version has them.
            kwargs: passed to the environment.
        """
        upper_modules["register_gym"](
            id,
            cls if entry_point is None else entry_point,
            backend=backend,
            transform=transform,
            info_keys=info_keys,
            to_numpy=to_numpy,
            registration={
                "reward_threshold": reward_threshold,
                "nondeterministic": nondeterministic,
                "max_episode_steps": max_episode_steps,
                "order_enforce": order_enforce,
                "autoreset": autoreset,
                "disable_env_checker": disable_env_checker,
                "apply_api_compatibility": apply_api_compatibility,
            },
            arguments=kwargs,
        )

    # -- compiled steps

    def _compile_steps(self, options: bool | Mapping[str, Any] | None) -> None:
        """Compiles `step_and_maybe_reset`.

        Args:
            options: the arguments of `torch.compile`; True for none. Nothing is compiled if it is False or None.
        """
        if options is None or options is False:
            return
        self._compile_options = dict(options) if isinstance(options, Mapping) else {}
        vars(self)[_COMPILED] = torch.compile(getattr(self, _COMPILED), **self._compile_options)

    def eager(self) -> Self:
        """Undoes `compile=True` of the constructor and returns the environment."""
        self._compile_options = None
        vars(self).pop(_COMPILED, None)
        return self

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in super().__getstate__().items() if name != _COMPILED}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._compile_steps(self._compile_options)

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
        seed = validate_seed(seed)
        self._set_seed(seed)
        return seed if static_seed or seed is None else next_seed(seed)

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

    # -- the end

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
