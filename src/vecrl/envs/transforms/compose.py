"""`Compose`: a sequence of transforms as one transform. It must not know what its transforms do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Self

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn

from ...specs import Composite
from ..spec_container import Key
from .base import SubmoduleAttribute, Transform, owned
from .function_transform import as_transform


class Compose(Transform):
    """A sequence of transforms. Outputs pass from the first transform to the last, inputs from the last to the first.

    `compose[i]` is the transform itself; `compose[a:b]` is a Compose of clones without a container.

    Args:
        trsfs: transforms, or functions from TensorDict to TensorDict.

    >>> from tensordict import TensorDict
    >>> double = Compose(lambda td: td.set("x", td["x"] + 1), lambda td: td.set("x", td["x"] * 2))
    >>> int(double(TensorDict({"x": 1}))["x"]), len(double[:1])
    (4, 1)
    """

    transforms: nn.ModuleList = SubmoduleAttribute()  # pyright: ignore[reportAssignmentType]

    def __init__(self, *trsfs: Any):
        super().__init__()
        self.transforms = nn.ModuleList()
        for transform in trsfs:
            self.append(transform)

    # -- parts

    def __len__(self) -> int:
        return len(self.transforms)

    def __iter__(self) -> Iterator[Transform]:
        return iter(self.transforms)  # pyright: ignore[reportReturnType]

    def __getitem__(self, item: Any) -> Any:
        if isinstance(item, slice):
            return Compose(*[transform.clone() for transform in list(self)[item]])
        return self.transforms[item]

    def append(self, transform: Any) -> None:
        """Appends a transform, or a function, after all others."""
        self.insert(len(self), transform)

    def insert(self, index: int, transform: Any) -> None:
        """Inserts a transform, or a function, before the one at `index`. A negative index counts from the end.

        Raises:
            IndexError: the index is out of range.
            ValueError: the transform contains this Compose.
        """
        if not -len(self) <= index <= len(self):
            raise IndexError(f"Expected an index between {-len(self)} and {len(self)}, got {index}.")
        transform = as_transform(transform)
        if any(part is self for part in transform.modules()):
            raise ValueError("Expected a transform without this Compose in it, got one with it. Insert a clone().")
        transform.set_container(self)
        self.transforms.insert(index if index >= 0 else len(self) + index, transform)
        self._invalidate_specs()

    def pop(self, index: int | None = None) -> Transform:
        """Removes the transform at `index`, the last one by default, and returns it."""
        transform = self.transforms[-1 if index is None else index]
        del self.transforms[-1 if index is None else index]
        assert isinstance(transform, Transform)
        transform.reset_parent()
        self._invalidate_specs()
        return transform

    def _invalidate_specs(self) -> None:
        container = self.container
        if container is not None:
            container._invalidate_specs()

    def _clear_parents(self) -> None:
        container = self.container
        if container is not None:
            container._clear_parents()

    def _parent_for(self, transform: Transform, following: Sequence[Transform] = ()) -> Any:
        """Returns the environment with the transforms before `transform`, then those `following` inside it."""
        container = self.container
        if container is None:
            return None
        transforms = list(self)
        return container._parent_for(self, [*transforms[: transforms.index(transform)], *following])

    @property
    def in_keys(self) -> list[Key]:
        """The keys that any of the transforms reads from outputs."""
        return list(dict.fromkeys(key for transform in self._transforms() for key in transform.in_keys))

    @in_keys.setter
    def in_keys(self, keys: Any) -> None:
        self._reject_keys("in_keys", keys)

    @property
    def out_keys(self) -> list[Key]:
        """The keys that any of the transforms writes for the user."""
        return list(dict.fromkeys(key for transform in self._transforms() for key in transform.out_keys))

    @out_keys.setter
    def out_keys(self, keys: Any) -> None:
        self._reject_keys("out_keys", keys)

    @property
    def in_keys_inv(self) -> list[Key]:
        """The keys that any of the transforms writes into inputs."""
        return list(dict.fromkeys(key for transform in self._transforms() for key in transform.in_keys_inv))

    @in_keys_inv.setter
    def in_keys_inv(self, keys: Any) -> None:
        self._reject_keys("in_keys_inv", keys)

    @property
    def out_keys_inv(self) -> list[Key]:
        """The keys that any of the transforms reads from inputs."""
        return list(dict.fromkeys(key for transform in self._transforms() for key in transform.out_keys_inv))

    @out_keys_inv.setter
    def out_keys_inv(self, keys: Any) -> None:
        self._reject_keys("out_keys_inv", keys)

    def _reject_keys(self, name: str, keys: Any) -> None:
        if keys is not None:
            raise AttributeError(f"Expected no {name} for a Compose, got {keys!r}. Set the {name} of its transforms.")

    def _transforms(self) -> list[Transform]:
        return list(self) if "transforms" in self._modules else []

    def clone(self) -> Self:
        """Returns a `Compose` of clones of the transforms, without a container."""
        return type(self)(*[transform.clone() for transform in self])

    __copy__ = clone

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        for transform in self:
            transform.reset_parent()
            transform.set_container(self)

    # -- values

    @property
    def preserves_done(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whether no transform clears done flags."""
        return all(transform.preserves_done for transform in self)

    @property
    def _has_inverse(self) -> bool:
        return any(transform._has_inverse for transform in self)

    def _call(self, next_tensordict: TensorDictBase) -> TensorDictBase:
        for transform in self:
            next_tensordict = transform._call(next_tensordict)
        return next_tensordict

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Changes stored data by each transform in order."""
        for transform in self:
            tensordict = transform(tensordict)
        return tensordict

    def _step(self, tensordict: TensorDictBase, next_tensordict: TensorDictBase) -> TensorDictBase:
        for transform in self:
            next_tensordict = transform._step(tensordict, next_tensordict)
        return next_tensordict

    def _reset(self, tensordict: TensorDictBase, tensordict_reset: TensorDictBase) -> TensorDictBase:
        for transform in self:
            tensordict_reset = transform._reset(tensordict, tensordict_reset)
        return tensordict_reset

    def _reset_env_preprocess(self, tensordict: TensorDictBase | None) -> TensorDictBase | None:
        for transform in reversed(list(self)):
            tensordict = transform._reset_env_preprocess(tensordict)
        return tensordict

    def _inv_call(self, tensordict: TensorDictBase) -> TensorDictBase:
        for transform in reversed(list(self)):
            if transform._has_inverse:
                tensordict = transform._inv_call(tensordict)
        return tensordict

    def inv(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Returns the input of the environment, or the data to store, by each transform from last to first."""
        tensordict = tensordict.copy()
        for transform in reversed(list(self)):
            tensordict = transform.inv(tensordict)
        return tensordict

    @property
    def _masks_actions(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return any(transform._masks_actions for transform in self)

    def _mask_action_spec(self, specs: Composite, tensordict: TensorDictBase) -> Composite:
        for transform in self:
            specs = transform._mask_action_spec(specs, tensordict)
        return specs

    @property
    def supports_rollout(self) -> bool:
        return all(transform.supports_rollout for transform in self)

    def _apply_to_rollout(self, root: TensorDictBase, next_td: TensorDictBase, is_first: Tensor) -> None:
        for transform in self:
            transform._apply_to_rollout(root, next_td, is_first)

    # -- specs

    def transform_output_spec(self, output_spec: Composite) -> Composite:
        """Changes the specs of all outputs by each transform in order."""
        for transform in self:
            output_spec = owned(transform.transform_output_spec(output_spec))
        return output_spec

    def transform_input_spec(self, input_spec: Composite) -> Composite:
        """Changes the specs of all inputs by each transform in order, the first one first."""
        for transform in self:
            input_spec = owned(transform.transform_input_spec(input_spec))
        return input_spec

    def transform_observation_spec(self, observation_spec: Composite) -> Composite:
        """Changes the specs of the observations by each transform in order."""
        for transform in self:
            observation_spec = transform.transform_observation_spec(observation_spec)
        return observation_spec

    def transform_reward_spec(self, reward_spec: Composite) -> Composite:
        """Changes the specs of the rewards by each transform in order."""
        for transform in self:
            reward_spec = transform.transform_reward_spec(reward_spec)
        return reward_spec

    def transform_done_spec(self, done_spec: Composite) -> Composite:
        """Changes the specs of the done flags by each transform in order."""
        for transform in self:
            done_spec = transform.transform_done_spec(done_spec)
        return done_spec

    def transform_action_spec(self, action_spec: Composite) -> Composite:
        """Changes the specs of the actions by each transform in order, the first one first."""
        for transform in self:
            action_spec = transform.transform_action_spec(action_spec)
        return action_spec

    def transform_state_spec(self, state_spec: Composite) -> Composite:
        """Changes the specs of other inputs by each transform in order, the first one first."""
        for transform in self:
            state_spec = transform.transform_state_spec(state_spec)
        return state_spec

    def transform_env_batch_size(self, batch_size: torch.Size) -> torch.Size:
        for transform in self:
            batch_size = transform.transform_env_batch_size(batch_size)
        return batch_size

    def transform_env_device(self, device: torch.device | None) -> torch.device | None:
        for transform in self:
            device = transform.transform_env_device(device)
        return device

    def transform_fake_tensordict(self, fake_tensordict: TensorDictBase) -> TensorDictBase:
        """Changes the fake TensorDict of zeros by each transform in order."""
        for transform in self:
            fake_tensordict = transform.transform_fake_tensordict(fake_tensordict)
        return fake_tensordict

    # -- the rest

    def init(self, tensordict: TensorDictBase) -> None:
        """Initializes each transform from the first data."""
        for transform in self:
            transform.init(tensordict)

    def empty_cache(self) -> None:
        """Clears cached values of each transform."""
        for transform in self:
            transform.empty_cache()

    def close(self) -> None:
        """Closes each transform."""
        for transform in self:
            transform.close()

    def dump(self, **kwargs: Any) -> None:
        """Writes collected data of each transform to its destination."""
        for transform in self:
            transform.dump(**kwargs)

    def set_missing_tolerance(self, mode: bool = False) -> None:
        """Sets whether entries may be missing, for each transform."""
        super().set_missing_tolerance(mode)
        for transform in self:
            transform.set_missing_tolerance(mode)

    def __repr__(self) -> str:
        lines = ",\n".join(f"    {line}" for transform in self for line in repr(transform).splitlines())
        return f"{type(self).__name__}(\n{lines})" if len(self) else f"{type(self).__name__}()"
