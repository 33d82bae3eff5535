"""`TransformedEnv`: an environment with a transform applied to its inputs, outputs and specs.

Its specs are computed from those of the base environment when they are first read, and again after every change.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor
from torch.types import Device

from ..._utils import auto_unwrap_transformed_env
from ...specs import Composite, TensorSpec
from ..adapters import adapt_env
from ..base import EnvBase
from ..entries.keys import INPUTS, OUTPUTS, Key, Prefix, join_key
from ..entries.records import RecordSteps, record_steps
from ..entries.row_masks import RowMasks, merge_into
from ..env_specs import check_done_names, is_defined, spec_cached_property
from ..rollouts.rollout import rollout_at_once
from .actions import ActionDiscretizer, ActionMask
from .base import Transform, owned
from .compose import Compose, TransformLike, as_transform
from .counters import episode_starts
from .keyed_module import SubmoduleAttribute
from .ragged_entries import Hook, heterogeneous_errors, with_heterogeneous_errors
from .spec_hooks import check_keys
from .transformed_steps import TransformedSteps

__all__ = ["TransformedEnv"]


def _of_base(name: str, doc: str) -> Any:
    """Returns a property with the value of the base environment."""
    return property(lambda env: getattr(env.base_env, name), doc=doc)


class TransformedEnv(EnvBase):
    """An environment with transforms applied to its inputs and outputs.

    Attributes that are not found here are looked up in the base environment, except the methods `async_…` of an
    `AsyncEnvPool`.

    Args:
        env: the base environment, also one of TorchRL; it is closed with this one. The keyword `base_env`
            is accepted too.
        transform: a transform, or a function over TensorDicts; none by default.
        device: the device of the environment, which is moved there; by default it is not moved.
        auto_unwrap: whether a `TransformedEnv` as `env`, not of a derived class, is replaced by its base environment,
            with clones of its transforms before `transform`; by default as `set_auto_unwrap_transformed_env` says,
            which is False. Otherwise it is the base environment.

    Attributes:
        base_env: the base environment.
        transform: the transform.

    Raises:
        AttributeError: the transform belongs to another environment. Use `transform.clone()`, which belongs to none.
        TypeError: `env` is no environment of `vecrl.envs`, or `base_env` is given too.

    >>> from vecrl.envs import GymEnv
    >>> from vecrl.envs.transforms import RewardSum, StepCounter
    >>> env = TransformedEnv(GymEnv("CartPole-v1"), Compose(StepCounter(), RewardSum()))
    >>> rollout = env.rollout(3)
    >>> rollout["next", "step_count"].squeeze(-1), rollout["next", "episode_reward"].squeeze(-1)
    (tensor([1, 2, 3]), tensor([1., 2., 3.]))
    """

    base_env = SubmoduleAttribute[EnvBase]()
    transform = SubmoduleAttribute[Transform]()
    excluded_from_state = ("_parents", "_part_of", "_same_actions")
    _part_of: tuple[weakref.ref[TransformedEnv] | None, Sequence[Transform]] = (None, ())
    """For a parent: the environment that it is a part of, and its transforms there, so that parents are shared."""

    def __init__(
        self,
        env: EnvBase | None = None,
        transform: TransformLike | None = None,
        *,
        device: Device = None,
        base_env: EnvBase | None = None,
        auto_unwrap: bool | None = None,
    ):
        if env is not None and base_env is not None:
            raise TypeError("Expected one base environment, got env and base_env. Omit one of them.")
        env = adapt_env(base_env if env is None else env)
        if not isinstance(env, EnvBase):
            raise TypeError(f"Expected an environment of vecrl.envs, got {env!r}.")
        unwraps = auto_unwrap_transformed_env() if auto_unwrap is None else auto_unwrap
        if unwraps and type(env) is type(self) is TransformedEnv:
            env, transform = _unwrap(env, transform)
        super().__init__(
            device=env.device, batch_size=env.batch_size, allow_done_after_reset=env._allow_done_after_reset
        )
        self._parents: dict[tuple[int, ...], TransformedEnv] = {}
        self._lock_after_init = env.is_spec_locked
        transform = Compose() if transform is None else as_transform(transform)
        transform.set_container(self)
        self.base_env = env
        self.transform = transform
        env._dependents.add(self)
        if device is not None:
            env.to(device)
        self.empty_cache()

    # -- parts

    def append_transform(self, transform: TransformLike) -> Self:
        """Appends a transform, or a function, after all others. Returns the environment."""
        return self.insert_transform(len(self._as_compose()), transform)

    def insert_transform(self, index: int, transform: TransformLike) -> Self:
        """Inserts a transform, or a function, before the one at `index`. Returns the environment."""
        self._as_compose().insert(index, transform)
        return self

    def set_missing_tolerance(self, mode: bool = False) -> None:
        """Sets whether entries at the `in_keys` of the transforms may be missing."""
        self.transform.set_missing_tolerance(mode)
        self.empty_cache()

    def set_state(self, state: Mapping[str, Any], **kwargs: Any) -> None:
        super().set_state(state, **kwargs)
        self._parents.clear()  # they hold clones of the transforms in the old state

    def _as_compose(self) -> Compose:
        """Returns the transform as a `Compose`; a single one is replaced by a `Compose` of it."""
        if not isinstance(self.transform, Compose):
            single = self.transform
            single.reset_parent()
            self.transform = Compose(single)
        return self.transform

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in ("base_env", "transform") or name not in self.__dict__.get("_modules", ()):
            super().__setattr__(name, value)
            return
        previous: Any = self._modules[name]
        if name == "base_env":
            previous._dependents.discard(self)
            value._dependents.add(self)
        elif value is not previous:
            value = as_transform(value)
            value.set_container(self)
            if previous.container is self:
                previous.reset_parent()
        super().__setattr__(name, value)
        self.empty_cache()

    def _parent_with(self, transforms: Sequence[Transform]) -> TransformedEnv:
        """Returns the base environment with clones of `transforms`, as the parent of the transform after them."""
        whole, parts = self._part_of
        if whole is not None and [*transforms] == [*self._as_compose()][: len(transforms)] and (env := whole()):
            return env._parent_with(parts[: len(transforms)])
        key = tuple(map(id, transforms))
        if key not in self._parents:
            part = self._make_part(Compose(*[transform.clone() for transform in transforms]))
            part._part_of = weakref.ref(self), [*transforms]
            self._parents[key] = part
        return self._parents[key]

    def _make_part(self, transform: Compose) -> TransformedEnv:
        """Returns the base environment with the first transforms alone, as a parent of a later transform."""
        return TransformedEnv(self.base_env, transform)

    # -- specs

    def empty_cache(self) -> None:
        """Clears cached specs, parents and other values, and updates the batch size and the device."""
        if "transform" in self._modules:
            self._batch_size = self.transform.transform_env_batch_size(self.base_env.batch_size)
            self._device = self.transform.transform_env_device(self.base_env.device)
            self._specs.clear()
            self._parents.clear()
            self.transform.empty_cache()
        super().empty_cache()

    def _full(self, name: str) -> Composite:
        if name not in self._specs:
            self._compute_specs()
        return self._specs[name]

    def _compute_specs(self) -> None:
        """Computes the specs from those of the base environment and the transform."""
        base = self.base_env
        input_spec = base.input_spec.clone().unlock_(recurse=True)
        output_spec = base.output_spec.clone().unlock_(recurse=True)
        check_keys(self.transform, "in_keys_inv", input_spec)
        check_keys(self.transform, "in_keys", output_spec)
        with heterogeneous_errors(self.transform, base.specs):
            input_spec = self.transform.transform_input_spec(input_spec)
            output_spec = self.transform.transform_output_spec(output_spec)
        for names, specs in ((INPUTS, input_spec), (OUTPUTS, output_spec)):
            unlocked_specs = owned(specs)
            self._specs.update({name: unlocked_specs[f"full_{name}_spec"] for name in names})
        check_done_names(self._specs["done"])
        self._set_group_shapes()
        if self._locked:
            for spec in self._specs.values():
                spec.lock_(recurse=True)
        base_actions = base.full_action_spec
        if not base.batch_locked and base_actions.shape != self.batch_size:
            base_actions = base_actions.expand(self.batch_size)
        self._same_actions = self._specs["action"] == base_actions  # here, since an `ActionMask` changes masks later

    def _set_group_shapes(self) -> None:
        """Sets the batch size of each group that the transform creates in a spec to that of the group in other specs.

        For instance, a tracker creates a group of agents in the state spec, while the base has it in other specs only.
        """
        base_groups = {name: groups_of(self.base_env._full(name)) for name in (*OUTPUTS, *INPUTS)}
        groups = {name: groups_of(self._specs[name]) for name in base_groups}
        shapes: dict[Prefix, torch.Size] = {}
        for name, specs in groups.items():
            for prefix in specs.keys() & base_groups[name].keys():
                shapes.setdefault(prefix, specs[prefix].shape)
        for name, specs in groups.items():
            created = specs.keys() & (shapes.keys() - base_groups[name].keys())
            for prefix in sorted(created, key=len):  # outer groups before those in them
                specs[prefix].shape = shapes[prefix]

    def _added_groups(self, *names: str) -> dict[Prefix, torch.Size]:
        """Returns the groups that only the transform writes, with their sizes after those of the environment.

        Args:
            names: the names of the specs that describe a result, such as "observation" and "done".
        """
        base_groups = {prefix for name in names for prefix in groups_of(self.base_env._full(name))}
        groups = {prefix: spec.shape for name in names for prefix, spec in groups_of(self._full(name)).items()}
        added = {prefix: shape[self.ndim :] for prefix, shape in groups.items() if prefix not in base_groups}
        return {prefix: shape for prefix, shape in added.items() if shape}

    def _set_full(self, name: str, spec: object) -> None:
        raise AttributeError(
            f"Expected no assignment to the {name} spec of a TransformedEnv, which is computed from those of its base "
            f"environment, got {spec!r:.80}. Set it on base_env, or append a transform that changes it."
        )

    def set_spec_lock_(self, mode: bool = True) -> Self:
        """Locks or unlocks the specs, also those of the base environment. Returns this environment."""
        self._locked = mode
        if self.base_env.is_spec_locked != mode:
            self.base_env.set_spec_lock_(mode)
        self.empty_cache()
        return self

    def _set_auto_reset(self, replace: bool | None) -> None:
        self.base_env._set_auto_reset(replace)

    def add_truncated_keys(self) -> Self:
        """Adds a "truncated" entry beside each "done" entry. Returns the environment."""
        self.base_env.add_truncated_keys()
        return self

    _batch_locked = _of_base("batch_locked", "Whether only TensorDicts of the batch size are accepted.")
    _supports_set_state = _of_base("supports_set_state", "Whether `reset` can start from the state in its TensorDict.")

    def configure_parallel(self, **settings: Any) -> Self:
        """Sets how the base environment runs in parallel; settings as in `ParallelEnv`. Returns this environment."""
        self.base_env.configure_parallel(**settings)
        return self

    # -- reset and step

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        input_td = self.transform._reset_env_preprocess(tensordict)
        reset_td = self._reset_base(input_td if input_td is None else self._drop_changed_keys(input_td), **kwargs)
        reset_request = TensorDict({}, reset_td.batch_size, device=self.device) if input_td is None else input_td
        return self._transform_reset(reset_request, reset_td)

    def _reset_base(self, input_td: TensorDictBase | None, **kwargs: Any) -> TensorDictBase:
        """Returns the result of a reset of the base environment, with all done flags."""
        return self.base_env._reset_and_complete(input_td, **kwargs)

    def _drop_changed_keys(self, input_td: TensorDictBase) -> TensorDictBase:
        """Returns the input for the reset of the base environment, without observations of changed shape or dtype."""
        return input_td.exclude(*self._changed_keys) if self._changed_keys else input_td

    # values of the environment and the transform that do not change between steps; reading them calls no function

    @spec_cached_property
    def _has_inverse(self) -> bool:
        return self.transform._has_inverse

    @spec_cached_property
    def _preserves_done(self) -> bool:
        return self.transform.preserves_done and self.done_prefixes == self.base_env.done_prefixes

    @spec_cached_property
    def _transform_step(self) -> Hook:
        hook = with_heterogeneous_errors(self.transform._step, self.transform, self.base_env.specs)
        return with_group_sizes(hook, self._added_groups(*OUTPUTS))

    @spec_cached_property
    def _transform_reset(self) -> Hook:
        groups = self._added_groups("observation", "done")  # raises if a transform does not fit, before it gets data
        return with_group_sizes(
            with_heterogeneous_errors(self.transform._reset, self.transform, self.base_env.specs), groups
        )

    @spec_cached_property
    def _base_step(self) -> Callable[[TensorDictBase], TensorDictBase]:
        return self.base_env._step_and_complete

    @spec_cached_property
    def _action_masks(self) -> list[ActionMask]:
        return [part for part in self.transform.modules() if isinstance(part, ActionMask)]

    @spec_cached_property
    def _shown_actions(self) -> list[Key]:
        """The keys of actions of the base environment that are written beside those which the user gives."""
        parts = [part for part in self.transform.modules() if isinstance(part, ActionDiscretizer)]
        keys = {key for part in parts for key in part.in_keys_inv if not self.transform._changes_layout}
        return [key for key in self.base_env.action_keys if key in keys and key not in self.action_keys]

    @spec_cached_property
    def _shown_specs(self) -> dict[Key, TensorSpec]:
        """The specs of the actions that steps write beside those which the user gives, also in the base environment."""
        base, specs = self.base_env, self.base_env.full_action_spec
        passes_on = isinstance(base, TransformedEnv) and not self._has_inverse and not self.transform._changes_layout
        return {**(base._shown_specs if passes_on else {}), **{key: specs[key] for key in self._shown_actions}}

    @spec_cached_property
    def _step_mdp(self) -> Callable[[TensorDictBase], TensorDictBase]:
        step_mdp, shown = super()._step_mdp, self._shown_specs
        return (lambda td: step_mdp(td).exclude(*shown)) if shown else step_mdp

    @spec_cached_property
    def _changed_keys(self) -> list[Key]:
        base, before, after = self.base_env, self.base_env.full_observation_spec, self.full_observation_spec
        keys = [key for key in base.observation_keys if key in after and key not in base.state_keys]
        return [key for key in keys if (before[key].shape, before[key].dtype) != (after[key].shape, after[key].dtype)]

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        return self._step_and_complete(tensordict)

    def _step_and_complete(self, tensordict: TensorDictBase) -> TensorDictBase:
        base_td, mask = self._invert(tensordict) if self._has_inverse else (tensordict, None)
        if mask is None:
            return self._transform_step(tensordict, self._base_step(base_td))
        return self._step_masked_rows(tensordict, base_td, mask)

    def _invert(self, tensordict: TensorDictBase) -> tuple[TensorDictBase, Tensor | None]:
        """Returns the input of the base environment, and the mask of rows to step if a transform set one, or None."""
        base_td: Any = self.transform.inv(tensordict) if self._has_inverse else tensordict
        for key in self._shown_actions:
            tensordict.set(key, base_td.get(key))
        mask = base_td.pop("_step", None) if self._has_inverse else None
        if mask is not None and self.transform._changes_layout:
            mask = _convert_mask(self.transform._from_parent_layout, mask, base_td.batch_size)
        return base_td, mask

    def _step_masked_rows(self, tensordict: TensorDictBase, base_td: TensorDictBase, mask: Tensor) -> TensorDictBase:
        """Steps only the rows of `mask`, which a transform set."""
        masks = RowMasks({(): mask}, [()])
        if masks.none_selected:
            return self._noop_step(tensordict)
        return masks.select(self._step_rows(tensordict, base_td, mask), tensordict)

    def _step_masked(self, tensordict: TensorDictBase, mask: Tensor) -> TensorDictBase:
        base_td, base_mask = self._invert(tensordict)
        if base_mask is None:
            return self._step_rows(tensordict, base_td, mask)
        return self._step_masked_rows(tensordict, base_td, mask & base_mask.reshape(mask.shape))

    def _step_rows(self, tensordict: TensorDictBase, base_td: TensorDictBase, mask: Tensor) -> TensorDictBase:
        """Returns the result of a partial step; the transform finds the mask under "_step" of its input."""
        input_td = tensordict.copy().set("_step", mask)
        if self.transform._changes_layout:
            mask = _convert_mask(self.transform._to_parent_layout, mask, tensordict.batch_size)
        return self._transform_step(input_td, self.base_env._step_masked(base_td, mask))

    def _step_and_reset_done(self, tensordict: TensorDictBase) -> tuple[TensorDictBase, TensorDictBase | None]:
        base_td, mask = self._invert(tensordict)
        if mask is not None:
            return self._step_masked_rows(tensordict, base_td, mask), None
        if not self._preserves_done:
            return self._transform_step(tensordict, self._base_step(base_td)), None
        next_td, reset_td = self.base_env._step_and_reset_done(base_td)
        base_done = self.base_env._done_masks(next_td) if reset_td is not None else None
        next_td = self._transform_step(tensordict, next_td)
        if base_done is None:
            return next_td, None
        masks = self._done_masks(next_td)
        assert masks is not None
        root = _with_reset_masks(self.step_mdp(tensordict.copy().set("next", next_td)), masks)
        preprocessed = self.transform._reset_env_preprocess(root)
        reset_request = root if preprocessed is None else preprocessed
        extra_masks = {prefix: mask & ~base_done[prefix] for prefix, mask in masks.items()}
        if any(bool(row_mask.any()) for row_mask in extra_masks.values()):  # rows that only the transform ended
            extra_reset = self._reset_base(self._drop_changed_keys(_with_reset_masks(reset_request, extra_masks)))
            reset_td = RowMasks(extra_masks, self.base_env.done_prefixes).select(extra_reset, reset_td)
            reset_request = _with_reset_masks(reset_request, masks)
        return next_td, self._drop_reset_masks(self._transform_reset(reset_request, reset_td))

    def _rollout_at_once(
        self, steps: int, actions: Tensor | TensorDictBase | None, break_when_any_done: bool
    ) -> TensorDictBase | None:
        if self._has_inverse or not self.transform.supports_rollout:
            return None
        if actions is None and self.full_action_spec != self.base_env.full_action_spec:  # edited by a user
            return None
        rollout = rollout_at_once(self.base_env, steps, actions, break_when_any_done)
        if rollout is None:
            return None
        next_td = rollout.get("next")
        root = rollout.exclude("next")
        self.transform._apply_to_rollout(root, next_td, episode_starts(next_td))
        return root.set("next", next_td)

    def _record_steps(self) -> RecordSteps | None:
        transform = self.transform
        if transform._changes_layout or not transform._accepts_records or self._shown_actions:
            return None
        if self._has_inverse and self.base_env.state_keys:  # the inputs of resets are changed
            return None
        base_steps = record_steps(self.base_env)
        if base_steps is None:
            return None
        steps = TransformedSteps(base_steps, transform, self.batch_size, self.device)
        return RecordSteps(steps.step, steps.reset)

    def rand_action(self, tensordict: TensorDictBase | None = None) -> TensorDictBase:
        """Samples an action for every row, writes them into `tensordict` (a new one by default) and returns it."""
        base, specs = self.base_env, self.full_action_spec
        if tensordict is not None and self._action_masks:
            for action_mask in self._action_masks:
                specs = action_mask._mask_action_spec(tensordict, specs)
            return merge_into(tensordict, specs.rand())
        if self._same_actions and base._has_custom_rand_action:
            return base.rand_action(tensordict)
        return super().rand_action(tensordict)

    @property
    def _has_custom_rand_action(self) -> bool:
        if type(self).rand_action is not TransformedEnv.rand_action or self._action_masks:
            return True
        self._full("action")  # sets _same_actions too
        return self.base_env._has_custom_rand_action and self._same_actions

    def _apply_seed(self, seed: int | None, static_seed: bool) -> int | None:
        return self.base_env._seed_next_reset(seed, static_seed)

    def _reset_seeded(self) -> None:
        self.base_env._reset_after_seed()

    @property
    def _resets_when_seeded(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.base_env._resets_when_seeded

    def _set_seed(self, seed: int | None) -> None:
        self.base_env._set_seed(seed)

    def fake_tensordict(self) -> TensorDictBase:
        """Returns a TensorDict with the entries of a step, filled with zeros."""
        fake = super().fake_tensordict()
        for key, spec in self._shown_specs.items():
            fake.set(key, spec.zero())
        return self.transform.transform_fake_tensordict(fake)

    # -- the rest

    def to(self, device: torch.device | str | int) -> Self:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Moves inputs and outputs to another device. Returns the environment."""
        self.base_env.to(device)
        self.transform.to(device)
        self.empty_cache()
        return self

    @property
    def is_closed(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whether the environment is closed."""
        base_env = self._modules.get("base_env")
        return base_env is not None and base_env.is_closed  # pyright: ignore[reportReturnType]

    @is_closed.setter
    def is_closed(self, value: bool) -> None:
        if "base_env" in self._modules:
            self.base_env.is_closed = value

    def _open(self) -> None:
        self.base_env._open()

    def _check_open(self) -> None:
        self.base_env._check_open()

    def close(self, *, raise_if_closed: bool = False) -> None:
        """Closes the environment. A second call does nothing, or raises if `raise_if_closed`."""
        self.base_env.close(raise_if_closed=raise_if_closed)
        self.transform.close()

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if is_defined(self, name) or name.startswith("__") or "base_env" not in self._modules:
                raise
        base_env = self.base_env
        if name in base_env._methods_without_transforms:
            cls = type(base_env).__name__
            raise AttributeError(
                f"Expected an environment without transforms around it for {name}, got a TransformedEnv of {cls}. Put "
                f"the transforms into its environments: {cls}([lambda: TransformedEnv(...), ...])."
            )
        return getattr(base_env, name)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        rename_torchrl_keys(state_dict, prefix)
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_parents": {}, "_part_of": (None, ())}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self.transform.reset_parent()
        self.transform.set_container(self)
        self.base_env._dependents.add(self)

    def __copy__(self) -> Self:
        modules = {**self._modules, "transform": self.transform.clone()}
        copied = type(self).__new__(type(self))
        copied.__setstate__({**self.__getstate__(), "_modules": modules, "_specs": {}})
        return copied

    def __repr__(self) -> str:
        lines = [f"env={self.base_env!r}", f"transform={self.transform!r}"]
        lines_text = ",\n".join(f"    {line}" for text in lines for line in [text.replace("\n", "\n    ")])
        return f"{type(self).__name__}(\n{lines_text})"


def _unwrap(env: Any, transform: TransformLike | None) -> tuple[EnvBase, Compose]:
    """Returns the base environment of a `TransformedEnv`, and clones of its transforms with `transform` after them."""
    appended = [] if transform is None else [*transform] if isinstance(transform, Compose) else [transform]
    cloned = env.transform.clone()
    return env.base_env, Compose([*(cloned if isinstance(cloned, Compose) else [cloned]), *appended])


def _with_reset_masks(root: TensorDictBase, masks: Mapping[tuple[str, ...], Tensor]) -> TensorDictBase:
    """Sets the masks of the rows to reset as "_reset" entries of `root`, and returns it."""
    for prefix, row_mask in masks.items():
        root.set(join_key(prefix, "_reset"), row_mask)
    return root


def _convert_mask(convert: Callable[[TensorDictBase], TensorDictBase], mask: Tensor, batch: torch.Size) -> Tensor:
    return convert(TensorDict({"mask": mask}, batch)).get("mask")


def groups_of(spec: Composite) -> dict[Prefix, Composite]:
    """Returns the nested Composites of a spec by their paths."""
    items = spec.items(include_nested=True)
    return {(key,) if isinstance(key, str) else key: group for key, group in items if type(group) is Composite}


def with_group_sizes(hook: Hook, groups: Mapping[Prefix, torch.Size]) -> Hook:
    """Returns a hook of a transform that sets the batch sizes of groups in its result."""
    if not groups:
        return hook

    def sized_hook(tensordict: TensorDictBase, result_td: TensorDictBase) -> TensorDictBase:
        result_td = hook(tensordict, result_td)
        for prefix, shape in groups.items():
            group_td = result_td.get(prefix, None)
            if group_td is not None:
                group_td.batch_size = (*result_td.batch_size, *shape)
        return result_td

    return sized_hook


_CHILDREN = ("transform.", "base_env.")
TORCHRL_ARGUMENTS = ("standard_normal",)
"""Entries of TorchRL that are arguments of vecrl's transforms."""


def rename_torchrl_keys(state_dict: dict[str, Any], prefix: str) -> None:
    """Renames the keys of TorchRL under `prefix`: "transforms.1.loc" is "transform.transforms.1.loc" in vecrl.

    A dictionary with vecrl's keys is not changed.

    >>> state = {"transforms.0.loc": 1.0, "transforms.0.standard_normal": True}
    >>> rename_torchrl_keys(state, "")
    >>> state
    {'transform.transforms.0.loc': 1.0}
    """
    keys = [key for key in state_dict if key.startswith(prefix)]
    if any(key.removeprefix(prefix).startswith(_CHILDREN) for key in keys):
        return
    for key in keys:
        value, name = state_dict.pop(key), key.removeprefix(prefix)
        if name.rpartition(".")[2] not in TORCHRL_ARGUMENTS:
            state_dict[f"{prefix}transform.{name}"] = value
