"""Resets of some environments of a vector environment: checks their masks, and keeps the observations of the others.

A mask without a True raises if environments are on the CPU (`LatestObs.reset_ids`). `BatchedVectorEnv` accepts it and
resets no row, because a check would wait for the device.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..engine.infos import InfoDict
from ..engine.space_layout import Layout, Tree, describe
from ..errors import OutOfSpecError, SpaceError


class LatestObs:
    """The latest observations of all environments, which a reset of some environments returns with the new ones.

    They are copies, because callers may write to the observations that they received.

    Args:
        layout: the layout of the observations.
        num_envs: the number of environments.

    Attributes:
        has_obs: whether observations were stored, which the first reset does.
    """

    def __init__(self, layout: Layout, num_envs: int):
        self._layout = layout
        self._num_envs = num_envs
        self._leaves = layout.empty(num_envs)
        self.has_obs = False

    def store(self, obs: Tree, ids: np.ndarray | None = None) -> None:
        """Stores the observations of all environments, or of `ids`.

        Args:
            obs: a tree of arrays `[n, ...]`, or `[len(ids), ...]` with ids.
            ids: the ids of the environments, an integer array; None for all.
        """
        self.has_obs = True
        if ids is None and self._layout.flat:
            self._leaves[0][:] = obs
            return
        for leaf, new in zip(self._leaves, self._layout.split(obs), strict=True):
            if ids is None:
                leaf[:] = new
            elif isinstance(leaf, list):
                for env_id, value in zip(ids.tolist(), new, strict=True):
                    leaf[env_id] = value
            else:
                leaf[ids] = new

    def write_into(self, obs: Tree, ids: np.ndarray, env_ids: Sequence[int]) -> None:
        """Writes the latest observations of environments that failed into the rows of `obs`, which have no new ones.

        Args:
            obs: a tree of arrays `[m, ...]`; its objects are the latest ones already.
            ids: `[m]`, the environments of its rows.
            env_ids: the environments that failed.
        """
        rows = np.flatnonzero(np.isin(ids, env_ids))
        for leaf, new in zip(self._leaves, self._layout.split(obs), strict=True):
            if isinstance(new, np.ndarray):
                new[rows] = leaf[ids[rows]]

    def copy_tree(self) -> Tree:
        """Returns a copy of all observations, a tree of arrays `[n, ...]`."""
        return self._layout.build([tuple(leaf) if isinstance(leaf, list) else leaf.copy() for leaf in self._leaves])

    def reset_ids(self, mask: Any) -> np.ndarray | None:
        """Returns the ids of the environments that a reset mask selects.

        Args:
            mask: a mask from `split_options`, which checks its dtype and shape: bool `[n]`, an array, or a tensor on
                any device; None for none.

        Returns:
            ids, int64 `[k]`; None, which means all, without a mask and in a first reset.

        Raises:
            OutOfSpecError: the mask has no True, or does not select all in a first reset.
        """
        if mask is None:
            return None
        array = mask.numpy(force=True) if hasattr(mask, "numpy") else np.asarray(mask)  # torch is not imported here
        if not array.any():
            raise mask_error(mask, self._num_envs)
        if self.has_obs:
            return np.flatnonzero(array)
        if not array.all():
            raise OutOfSpecError(
                "Expected a first reset of all environments, got a reset_mask for some of them. Unselected "
                "environments keep their observations, so reset all first."
            )
        return None


def split_options(options: object, num_envs: int) -> tuple[InfoDict | None, Any]:
    """Returns the options of a reset without the mask, as a new dict, and the mask; None for each that is absent.

    The mask is an array or a tensor, bool `[num_envs]`. Its values are not read, since it may be on a device.

    Raises:
        SpaceError: the options are no mapping.
        OutOfSpecError: the mask is not an array or tensor of bools `[num_envs]`, or a list of them.
    """
    if options is None:
        return None, None
    if not isinstance(options, Mapping):
        raise SpaceError(
            f"Expected options to be a dict or None, got {describe(options)}. Give a dict such as {{'level': 2}}."
        )
    others = dict(options)
    mask = others.pop("reset_mask", None)
    if mask is None:
        return others, None
    if not hasattr(mask, "dtype"):
        try:
            mask = np.array(mask)  # a copy, since torch cannot share read-only arrays
        except ValueError as error:  # rows of different lengths
            raise mask_error(mask, num_envs) from error
    if tuple(mask.shape) != (num_envs,) or _dtype_name(mask) != "bool":
        raise mask_error(mask, num_envs)
    return others, mask


def mask_error(mask: Any, num_envs: int) -> OutOfSpecError:
    """Returns the error for a `reset_mask` that is not bool `[num_envs]` with a True.

    Args:
        mask: the mask: an array or a tensor of any shape and dtype, or the object that is none.
        num_envs: the number of environments.
    """
    if hasattr(mask, "dtype"):
        got = f"{_dtype_name(mask)} of shape {tuple(mask.shape)}"
        got += "" if mask.any() or tuple(mask.shape) != (num_envs,) else " without a True"
    else:
        got = describe(mask)
    return OutOfSpecError(
        f"Expected reset_mask to be {num_envs} bools, at least one of them True, got {got}. Give one bool per "
        "environment, True for each to reset."
    )


def _dtype_name(mask: Any) -> str:
    return str(mask.dtype).removeprefix("torch.")
