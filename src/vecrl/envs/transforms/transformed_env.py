"""`TransformedEnv`: an environment seen through a transform.

Its specs are those of the environment, changed by the transform, and are derived again after every edit. Knows
environments and transforms; which engine steps the environment is nothing to it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

from tensordict import LazyStackedTensorDict, TensorDict, TensorDictBase
from torch import Tensor

from ..base import EnvBase
from ..rollout import rollout_at_once
from ..row_masks import RowMasks, merge_into
from ..spec_container import INPUTS, OUTPUTS, join_key
from .base import SubmoduleAttribute, Transform, owned
from .compose import Compose
from .counters import episode_starts
from .function_transform import as_transform
from .heterogeneous import heterogeneous_errors


class TransformedEnv(EnvBase):
    """An environment seen through transforms.

    Attributes that it does not have are those of the environment.

    Args:
        env: the environment; it is closed with this one.
        transform: what lies between, a function over TensorDicts too; nothing by default.

    Attributes:
        base_env: the environment.
        transform: the transform.

    Raises:
        AttributeError: the transform belongs to another environment; `transform.clone()` does not.

    >>> from vecrl.envs import GymEnv
    >>> from vecrl.envs.transforms import RewardSum, StepCounter
    >>> env = TransformedEnv(GymEnv("CartPole-v1"), Compose(StepCounter(), RewardSum()))
    >>> rollout_at_once = env.rollout(3)
    >>> rollout_at_once["next", "step_count"].squeeze(-1), rollout_at_once["next", "episode_reward"].squeeze(-1)
    (tensor([1, 2, 3]), tensor([1., 2., 3.]))
    """

    base_env: EnvBase = SubmoduleAttribute()  # pyright: ignore[reportAssignmentType]
    transform: Transform = SubmoduleAttribute()  # pyright: ignore[reportAssignmentType]
    excluded_from_state = ("_parents", "_same_actions")

    def __init__(self, env: EnvBase, transform: Any = None, *, device: Any = None):
        if not isinstance(env, EnvBase):
            raise TypeError(f"Expected an environment of vecrl.envs, but {env!r} came.")
        super().__init__(
            device=env.device, batch_size=env.batch_size, allow_done_after_reset=env._allow_done_after_reset
        )
        self._parents: dict[Any, TransformedEnv] = {}
        self._locked = env.is_spec_locked
        transform = Compose() if transform is None else as_transform(transform)
        transform.set_container(self)
        self.base_env = env
        self.transform = transform
        env._dependents.add(self)
        if device is not None:
            env.to(device)
        self._invalidate_specs()

    # -- what it is made of

    def append_transform(self, transform: Any) -> Self:
        """Put a transform, or a function, between this environment and the user; returns the environment."""
        return self.insert_transform(len(self._as_compose()), transform)

    def insert_transform(self, index: int, transform: Any) -> Self:
        """Put a transform, or a function, before the one at `index`; returns the environment."""
        self._as_compose().insert(index, transform)
        return self

    def set_state(self, state: Mapping[str, Any], **kwargs: Any) -> None:
        """See `EnvBase.set_state`."""
        super().set_state(state, **kwargs)
        self._parents.clear()  # which are of clones of the transforms that were

    def _as_compose(self) -> Compose:
        """The transform as a `Compose`."""
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
        self._invalidate_specs()

    def _parent_for(self, transform: Transform, preceding: Sequence[Transform] = ()) -> TransformedEnv:
        """The environment up to `transform`, and those `preceding` it that come before the one that asks."""
        key = tuple(map(id, preceding))
        if key not in self._parents:
            self._parents[key] = self._make_part(Compose(*[other.clone() for other in preceding]))
        return self._parents[key]

    def _make_part(self, transform: Compose) -> TransformedEnv:
        """The environment with another transform, which begins as its own does; for transforms that ask."""
        return TransformedEnv(self.base_env, transform)

    def _clear_parents(self) -> None:
        """Make those of the transforms anew, with clones of what these are now."""
        self._parents.clear()

    def _invalidate_specs(self) -> None:
        """Derive anew what follows from the environment and the transform."""
        self._batch_size = self.transform.transform_env_batch_size(self.base_env.batch_size)
        self._device = self.transform.transform_env_device(self.base_env.device)
        self._specs.clear()
        self._parents.clear()
        self.transform.empty_cache()
        super().empty_cache()

    def empty_cache(self) -> None:
        """Forget what was derived from the environment and the transform."""
        if "transform" in self._modules:
            self._invalidate_specs()
        else:
            super().empty_cache()

    def _full(self, name: str) -> Any:
        if name not in self._specs:
            self._derive()
        return self._specs[name]

    def _derive(self) -> None:
        """The specs of the environment, seen through the transform."""
        base = self.base_env
        base_specs = base.input_spec.clone().unlock_(recurse=True), base.output_spec.clone().unlock_(recurse=True)
        with heterogeneous_errors(self.transform, base.specs):
            transformed = (
                self.transform.transform_input_spec(base_specs[0]),
                self.transform.transform_output_spec(base_specs[1]),
            )
        for names, specs in zip((INPUTS, OUTPUTS), transformed, strict=True):
            mine = owned(specs)
            for name in names:
                spec = mine[f"full_{name}_spec"]
                self._specs[name] = spec.lock_(recurse=True) if self._locked else spec
        self._same_actions = self._specs["action"] == base.full_action_spec  # now, before masks are updated

    def _set_full(self, name: str, spec: Any) -> None:
        raise AttributeError(
            f"The {name} spec of a TransformedEnv follows from its environment and its transform: set it on base_env, "
            "or append a transform that changes it."
        )

    def set_spec_lock_(self, mode: bool = True) -> Self:
        """Lock or unlock the specs, the environment's too; returns this one."""
        self._locked = mode
        self.base_env.set_spec_lock_(mode)
        self._invalidate_specs()
        return self

    def add_truncated_keys(self) -> Self:
        """Have a "truncated" flag wherever there is a "done"; returns the environment."""
        self.base_env.add_truncated_keys()
        self._invalidate_specs()
        return self

    @property
    def batch_locked(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whether only TensorDicts of the batch size are taken."""
        return self.base_env.batch_locked

    @property
    def supports_set_state(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whether `reset` can be told to begin where its TensorDict says."""
        return self.base_env.supports_set_state

    def configure_parallel(self, **settings: Any) -> Self:
        """Say how the environment runs in parallel, see `ParallelEnv`; returns this one."""
        self.base_env.configure_parallel(**settings)
        return self

    # -- what happens

    def reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        """See `EnvBase.reset`. Where the environment was closed and can start anew, it does."""
        if self.is_closed:
            base: Any = self.base_env
            while isinstance(base, TransformedEnv):
                base = base.base_env
            if hasattr(type(base), "start"):
                base.start()
        return super().reset(tensordict, **kwargs)

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        input_td = self.transform._reset_env_preprocess(tensordict)
        reset_td = self.base_env._reset_and_complete(
            input_td if input_td is None else self._drop_changed_keys(input_td), **kwargs
        )
        reset_request = TensorDict({}, reset_td.batch_size, device=self.device) if input_td is None else input_td
        if type(reset_td) is not LazyStackedTensorDict:
            return self.transform._reset(reset_request, reset_td)
        with heterogeneous_errors(self.transform, self.base_env.specs):
            return self.transform._reset(reset_request, reset_td)

    def _drop_changed_keys(self, input_td: TensorDictBase) -> TensorDictBase:
        """What the environment's reset is given: without its observations in the shape or dtype that users see."""
        changed = self._cached("changed", self._changed_keys)
        return input_td.exclude(*changed) if changed else input_td

    def _changed_keys(self) -> list[Any]:
        base, observation_spec = self.base_env, self.full_observation_spec
        keys = [key for key in base.observation_keys if key in observation_spec and key not in base.state_keys]
        pairs = [(key, base.full_observation_spec[key], observation_spec[key]) for key in keys]
        return [
            key
            for key, before_spec, after_spec in pairs
            if (before_spec.shape, before_spec.dtype) != (after_spec.shape, after_spec.dtype)
        ]

    def _step_and_complete(self, tensordict: TensorDictBase) -> TensorDictBase:
        return self._step_base(tensordict, *self._invert(tensordict))

    def _step_base(self, tensordict: TensorDictBase, base_td: TensorDictBase, mask: Tensor | None) -> TensorDictBase:
        """What follows from `tensordict`, of which `_invert` has made the others."""
        if mask is not None:
            return self._step_masked_rows(tensordict, base_td, mask)
        next_td = self.base_env._step_and_complete(base_td)
        if type(next_td) is not LazyStackedTensorDict:
            return self.transform._step(tensordict, next_td)
        with heterogeneous_errors(self.transform, self.base_env.specs):
            return self.transform._step(tensordict, next_td)

    def _invert(self, tensordict: TensorDictBase) -> tuple[TensorDictBase, Tensor | None]:
        """What the environment gets, and the rows that a transform asks to step, where one does."""
        if not self._cached("inverts", lambda: self.transform._has_inverse):
            return tensordict, None
        base_td: Any = self.transform.inv(tensordict)
        return base_td, base_td.pop("_step", None)

    def _step_masked_rows(self, tensordict: TensorDictBase, base_td: TensorDictBase, mask: Tensor) -> TensorDictBase:
        """A step of the rows of `mask` alone, because a transform says so."""
        masks = RowMasks({(): mask}, [()])
        if masks.none_selected:
            return self._noop_step(tensordict)
        next_td = self._transform_step(tensordict, self.base_env._step_masked(base_td, mask), mask)
        return masks.select(next_td, tensordict)

    def _step_masked(self, tensordict: TensorDictBase, mask: Tensor) -> TensorDictBase:
        base_td, base_mask = self._invert(tensordict)
        combined_mask = mask if base_mask is None else mask & base_mask.reshape(mask.shape)
        next_td = self._transform_step(tensordict, self.base_env._step_masked(base_td, combined_mask), combined_mask)
        return next_td if base_mask is None else RowMasks({(): combined_mask}, [()]).select(next_td, tensordict)

    def _transform_step(self, tensordict: TensorDictBase, next_td: TensorDictBase, mask: Tensor) -> TensorDictBase:
        """A partial step through the transform, which finds the mask in the TensorDict that it gets."""
        return self.transform._step(tensordict.copy().set("_step", mask), next_td)

    def _step_and_reset_done(self, tensordict: TensorDictBase) -> tuple[TensorDictBase, TensorDictBase | None]:
        base_td, mask = self._invert(tensordict)
        if mask is not None or not self._cached("preserves_done", lambda: self.transform.preserves_done):
            return self._step_base(tensordict, base_td, mask), None
        next_td, reset_td = self.base_env._step_and_reset_done(base_td)
        base_done = self.base_env._done_masks(next_td) if reset_td is not None else None
        next_td = self.transform._step(tensordict, next_td)
        if base_done is None:
            return next_td, None
        masks = self._done_masks(next_td)
        assert masks is not None
        root = _with_reset_masks(self.step_mdp(tensordict.copy().set("next", next_td)), masks)
        preprocessed = self.transform._reset_env_preprocess(root)
        reset_request = root if preprocessed is None else preprocessed
        extra_masks = {prefix: mask & ~base_done[prefix] for prefix, mask in masks.items()}
        if any(bool(row_mask.any()) for row_mask in extra_masks.values()):  # those that the transform ended
            extra_reset = self.base_env._reset_and_complete(
                self._drop_changed_keys(_with_reset_masks(reset_request, extra_masks))
            )
            reset_td = RowMasks(extra_masks, self.base_env.done_prefixes).select(extra_reset, reset_td)
            reset_request = _with_reset_masks(reset_request, masks)
        return next_td, self._drop_reset_masks(self.transform._reset(reset_request, reset_td))

    def _rollout_at_once(self, steps: int, actions: Any, break_when_any_done: bool) -> TensorDictBase | None:
        if self._cached("inverts", lambda: self.transform._has_inverse) or not self.transform.supports_rollout:
            return None
        rollout = rollout_at_once(self.base_env, steps, actions, break_when_any_done)
        if rollout is None:
            return None
        next_td = rollout.get("next")
        root = rollout.exclude("next")
        self.transform._apply_to_rollout(root, next_td, episode_starts(next_td))
        return root.set("next", next_td)

    def rand_action(self, tensordict: TensorDictBase | None = None) -> TensorDictBase:
        """A random action for every row, written into `tensordict` (a new one by default), which is returned."""
        base, specs = self.base_env, self.full_action_spec
        if tensordict is not None and self._cached("restricts", lambda: self.transform._masks_actions):
            return merge_into(tensordict, self.transform._mask_action_spec(specs, tensordict).rand())
        if self._same_actions and base._has_custom_rand_action:
            return base.rand_action(tensordict)
        return super().rand_action(tensordict)

    @property
    def _has_custom_rand_action(self) -> bool:
        if type(self).rand_action is not TransformedEnv.rand_action or self.transform._masks_actions:
            return True
        self._full("action")  # which also says whether they are the same
        return self.base_env._has_custom_rand_action and self._same_actions

    def set_seed(self, seed: int | None = None, static_seed: bool = False) -> int | None:
        """Seed the environment; returns the seed for the next one."""
        return self.base_env.set_seed(seed, static_seed)

    def _set_seed(self, seed: int | None) -> None:
        self.base_env._set_seed(seed)

    def fake_tensordict(self) -> TensorDictBase:
        """A TensorDict that looks like one of a step, filled with zeros."""
        return self.transform.transform_fake_tensordict(super().fake_tensordict())

    # -- the rest

    def to(self, device: Any) -> Self:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Have inputs and outputs on another device; returns the environment."""
        self.base_env.to(device)
        self.transform.to(device)
        self._invalidate_specs()
        return self

    @property
    def is_closed(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whether the environment is closed."""
        return self.base_env.is_closed if "base_env" in self._modules else False

    @is_closed.setter
    def is_closed(self, value: bool) -> None: ...

    def _check_open(self) -> None:
        self.base_env._check_open()

    def close(self, *, raise_if_closed: bool = False) -> None:
        """Close the environment; twice is harmless unless `raise_if_closed`."""
        self.base_env.close(raise_if_closed=raise_if_closed)
        self.transform.close()

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name.startswith("__") or "base_env" not in self._modules:
                raise
        return getattr(self._modules["base_env"], name)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_parents": {}}

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


def _with_reset_masks(root: TensorDictBase, masks: Mapping[tuple[str, ...], Tensor]) -> TensorDictBase:
    """`root` with the masks of those that begin anew."""
    for prefix, row_mask in masks.items():
        root.set(join_key(prefix, "_reset"), row_mask)
    return root
