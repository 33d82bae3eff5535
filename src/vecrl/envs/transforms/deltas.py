"""Transforms that store next observations in less memory, and restore them. They must not know where."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor

from ...errors import SpaceError
from ..keys import Key, key_path
from ..row_masks import broadcast_mask
from ..step_mdp import as_keys
from .base import Transform
from .part import Keys

__all__ = ["NextObservationDelta", "NextStateReconstructor"]

_DISCRETE_DTYPES = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool)


class NextObservationDelta(Transform):
    """Stores the observations under "next" as differences from those of the root, in a dtype with fewer bits.

    `inv` compresses data to store: it replaces ("next", key) by ("next", "delta", key), the difference. `forward`
    restores ("next", key) in data that are read. Observations of the root are kept as they are, so the ends of episodes
    are restored like other steps. The loss is the rounding of the difference to `delta_dtype`: of float16, about a
    thousandth of the difference, which must be below 65504.

    In an environment it changes nothing, so that data agree with the specs. Compress the data where they are stored:
    `transform.inv(rollout)`. (TorchRL removes the observations from the steps of an environment.)

    Args:
        in_keys: the keys of observations to compress; by default all of the environment, except those of
            `excluded_dtypes`.
        delta_dtype: the dtype of the differences, floating-point.
        restore_dtype: the dtype of restored observations; "root" for that of the observation of the root.
        drop_delta: whether `forward` removes the differences.
        excluded_dtypes: the dtypes that are not compressed by default; integers and bool.

    Raises:
        ValueError: `delta_dtype` is not floating-point, or `restore_dtype` is no dtype.
        ValueError: on use, if there are neither `in_keys` nor an environment.
        KeyError: on use, if an observation of the root is missing.

    >>> from tensordict import TensorDict
    >>> delta = NextObservationDelta(["x"])
    >>> data = TensorDict({"x": torch.tensor([1.0]), "next": {"x": torch.tensor([1.5])}})
    >>> stored = delta.inv(data)
    >>> stored["next", "delta", "x"]
    tensor([0.5000], dtype=torch.float16)
    >>> delta(stored)["next", "x"]
    tensor([1.5000])
    """

    preserves_done = True

    def __init__(
        self,
        in_keys: Keys = None,
        *,
        delta_dtype: torch.dtype = torch.float16,
        restore_dtype: Any = "root",
        drop_delta: bool = True,
        excluded_dtypes: tuple[torch.dtype, ...] = _DISCRETE_DTYPES,
    ):
        if not delta_dtype.is_floating_point:
            raise ValueError(f"Expected delta_dtype to be a floating-point dtype, got {delta_dtype}.")
        if restore_dtype != "root" and not isinstance(restore_dtype, torch.dtype):
            raise ValueError(f'Expected restore_dtype to be a dtype or "root", got {restore_dtype!r}.')
        super().__init__(in_keys)
        self.delta_dtype = delta_dtype
        self.restore_dtype = restore_dtype
        self.drop_delta = drop_delta
        self.excluded_dtypes = excluded_dtypes

    def _default_in_keys(self) -> list[Key]:
        parent = self.parent
        if parent is None:
            raise ValueError(
                "Expected NextObservationDelta outside an environment to have in_keys, got none. Give in_keys."
            )
        leaves = parent.full_observation_spec.items(include_nested=True, leaves_only=True)
        return [key for key, spec in leaves if spec.dtype is not None and spec.dtype not in self.excluded_dtypes]

    @cached_property
    def _paths(self) -> list[tuple[Key, Key, Key]]:
        """The keys of each observation in the root, under "next", and of the difference."""
        paths = [(key, key_path(key)) for key in self.in_keys]
        return [(key, ("next", *path), ("next", "delta", *path)) for key, path in paths]

    def _root_value(self, tensordict: TensorDictBase, key: Key) -> Tensor:
        value = tensordict.get(key, None)
        if value is None:
            raise self._missing(key, tensordict)
        return value

    def _step(self, tensordict: TensorDictBase, next_tensordict: TensorDictBase) -> TensorDictBase:
        return next_tensordict

    def _reset(self, tensordict: TensorDictBase, tensordict_reset: TensorDictBase) -> TensorDictBase:
        return tensordict_reset

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Restores the observations under "next" in place, if there are differences, and returns the data."""
        for key, next_key, delta_key in self._paths:
            delta = tensordict.get(delta_key, None)
            if delta is None:
                continue
            root = self._root_value(tensordict, key)
            dtype = root.dtype if self.restore_dtype == "root" else self.restore_dtype
            tensordict.set(next_key, (root + delta.to(root.dtype)).to(dtype))
            if self.drop_delta:
                del tensordict[delta_key]
        deltas = tensordict.get(("next", "delta"), None)
        if deltas is not None and deltas.is_empty():
            del tensordict["next", "delta"]
        return tensordict

    def inv(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Returns data to store, with differences instead of the observations under "next"."""
        stored = tensordict.copy()
        for key, next_key, delta_key in self._paths:
            next_value = stored.get(next_key, None)
            if next_value is not None:
                del stored[next_key]
                stored.set(delta_key, (next_value - self._root_value(stored, key)).to(self.delta_dtype))
        return stored

    def _forward_spec(self, specs: Any) -> Any:
        return specs


class NextStateReconstructor(Transform):
    """Restores next observations of stored steps from the observations of the steps that follow them.

    Where the following step of a trajectory is not the next row of the data, for example at the end of an episode,
    the value is `fill_value`. In an environment it changes nothing.

    Args:
        keys: the keys of observations; the results are written under "next".
        traj_key: the key of the number of the trajectory of each step; None for one trajectory.
        done_key: the key of flags that are True if the step ends a trajectory; None to ignore them.
        step_count_key: the key of the number of each step in its trajectory, which must increase by 1; None to ignore
            it.
        fill_value: the value where the next observation is not in the data.
        strict: whether an error is raised if `traj_key`, `done_key` or `step_count_key` is missing.

    Raises:
        KeyError: on use, if an entry is missing.
        SpaceError: on use, if the data have not exactly one batch dimension, or if `fill_value` is NaN and an
            observation is not floating-point.

    >>> from tensordict import TensorDict
    >>> data = TensorDict({"observation": torch.arange(4.0), "trajectory": torch.tensor([0, 0, 0, 1])}, [4])
    >>> NextStateReconstructor(traj_key="trajectory", done_key=None)(data)["next", "observation"]
    tensor([1., 2., nan, nan])
    """

    preserves_done = True

    def __init__(
        self,
        keys: Key | Sequence[Key] = ("observation",),
        *,
        traj_key: Key | None = ("collector", "traj_ids"),
        done_key: Key | None = ("next", "done"),
        step_count_key: Key | None = None,
        fill_value: float = float("nan"),
        strict: bool = True,
    ):
        super().__init__()
        self.keys = as_keys(keys)
        self.traj_key = traj_key
        self.done_key = done_key
        self.step_count_key = step_count_key
        self.fill_value = fill_value
        self.strict = strict

    def _call(self, next_tensordict: TensorDictBase) -> TensorDictBase:
        return next_tensordict

    def _marker(self, tensordict: TensorDictBase, key: Key | None) -> Tensor | None:
        """Returns an entry `[rows, values]`, or None if it is not used."""
        value = None if key is None else tensordict.get(key, None)
        if value is None:
            if key is not None and self.strict:
                raise self._missing(key, tensordict)
            return None
        return value.reshape(value.shape[0], -1)

    def _has_next(self, tensordict: TensorDictBase) -> Tensor:
        """Returns the mask of rows that the next step follows, bool `[rows]`."""
        mask = torch.ones(tensordict.batch_size, dtype=torch.bool, device=tensordict.device)
        mask[-1:] = False
        if (trajectory := self._marker(tensordict, self.traj_key)) is not None:
            mask[:-1] &= (trajectory[1:] == trajectory[:-1]).all(-1)
        if (done := self._marker(tensordict, self.done_key)) is not None:
            mask &= ~done.any(-1)
        if (count := self._marker(tensordict, self.step_count_key)) is not None:
            mask[:-1] &= (count[1:] == count[:-1] + 1).all(-1)
        return mask

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Writes the observations under "next" in place and returns the data."""
        if tensordict.batch_dims != 1:
            raise SpaceError(
                f"Expected data with one batch dimension, got batch size {tuple(tensordict.batch_size)}. Call "
                f"reshape(-1) first, if the steps of each trajectory follow each other then."
            )
        mask = self._has_next(tensordict)
        for key in self.keys:
            value = tensordict.get(key, None)
            if value is None:
                raise self._missing(key, tensordict)
            if self.fill_value != self.fill_value and not value.is_floating_point():
                raise SpaceError(
                    f"Expected floating-point observations, of which NaN can be a value, got {key!r} of {value.dtype}. "
                    f"Give a fill_value."
                )
            next_value = value.roll(-1, 0)
            tensordict.set(
                ("next", *key_path(key)), torch.where(broadcast_mask(mask, value), next_value, self.fill_value)
            )
        return tensordict
