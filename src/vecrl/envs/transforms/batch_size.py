"""`BatchSizeTransform`: gives an environment another batch size. It must not know what the rows are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from ...errors import SpaceError
from ...specs import Composite
from .base import Transform

__all__ = ["BatchSizeTransform"]


class BatchSizeTransform(Transform):
    """Gives an environment another batch size.

    `batch_size` is for environments that accept TensorDicts of any batch size, which then have a fixed one.
    `reshape_fn` arranges the rows of other environments.

    Args:
        batch_size: the new batch size; an int for one dimension.
        reshape_fn: takes a TensorDict or a `Composite`, and returns it with the same rows in another batch size, for
            example by `reshape`, `flatten`, `unflatten`, `squeeze` or `unsqueeze`.
        reset_func: takes the input and the output of a reset of the environment, and returns the output of the reset,
            in the new batch size. Without it, the environment is reset in that batch size.
        env_kwarg: whether `reset_func` gets the environment too, by the keyword `env`.

    Raises:
        ValueError: both or neither of `batch_size` and `reshape_fn` are given; `batch_size` has a negative size; a
            function cannot be called.
        SpaceError: on use, if `batch_size` is given for an environment with a fixed one, or if `reshape_fn` does not
            keep each row.

    >>> from vecrl.envs import GymEnv, PendulumEnv
    >>> reshape = BatchSizeTransform(reshape_fn=lambda data: data.reshape(1, 1))
    >>> GymEnv("CartPole-v1").append_transform(reshape).batch_size
    torch.Size([1, 1])
    >>> PendulumEnv().append_transform(BatchSizeTransform(batch_size=[5])).rollout(3).shape
    torch.Size([5, 3])
    """

    def __init__(
        self,
        *,
        batch_size: int | Sequence[int] | None = None,
        reshape_fn: Callable[[Any], Any] | None = None,
        reset_func: Callable[..., TensorDictBase] | None = None,
        env_kwarg: bool = False,
    ):
        if (batch_size is None) == (reshape_fn is None):
            given = "neither" if batch_size is None else "both"
            raise ValueError(f"Expected either batch_size or reshape_fn, got {given}. Give one.")
        for name, function in (("reshape_fn", reshape_fn), ("reset_func", reset_func)):
            if function is not None and not callable(function):
                raise ValueError(f"Expected {name} to be a function, got {function!r:.80}.")
        super().__init__()
        self.batch_size = None if batch_size is None else _parse_size(batch_size)
        self.reshape_fn = reshape_fn
        self.reset_func = reset_func
        self.env_kwarg = env_kwarg

    # -- rows

    def _row_numbers(self, batch_size: torch.Size) -> Tensor:
        """Returns the number of each row of the parent, in the new batch size."""
        assert self.reshape_fn is not None
        numbers = torch.arange(batch_size.numel()).reshape(batch_size)
        reshaped = self.reshape_fn(TensorDict({"row": numbers}, batch_size)).get("row")
        if not reshaped.flatten().sort().values.equal(numbers.flatten()):
            raise SpaceError(
                f"Expected reshape_fn to keep each of {batch_size.numel()} rows, got the rows {reshaped.tolist()}. "
                f"Use reshape, for example."
            )
        return reshaped

    @cached_property
    def _order(self) -> Tensor | None:
        """The position of each row of the parent in the new batch, or None if they are in order."""
        order = self._row_numbers(self._require_parent().batch_size).flatten().argsort()
        return None if order.equal(torch.arange(len(order))) else order

    def _to_parent_layout(self, tensordict: TensorDictBase) -> TensorDictBase:
        if self.reshape_fn is None:
            return tensordict
        parent_batch = self._require_parent().batch_size
        rows = tensordict.reshape(-1)
        if self._order is not None:
            rows = rows[self._order]
        return rows.reshape(parent_batch) if parent_batch else rows[0]

    def _from_parent_layout(self, tensordict: TensorDictBase) -> TensorDictBase:
        return tensordict if self.reshape_fn is None else self.reshape_fn(tensordict)

    # -- steps and resets

    def _call(self, next_tensordict: TensorDictBase) -> TensorDictBase:
        return self._from_parent_layout(next_tensordict)

    def _inv_call(self, tensordict: TensorDictBase) -> TensorDictBase:
        return tensordict if self.parent is None else self._to_parent_layout(tensordict)

    @property
    def _has_inverse(self) -> bool:
        return self.reshape_fn is not None

    def _reset_env_preprocess(self, tensordict: TensorDictBase | None) -> TensorDictBase | None:
        if tensordict is not None:
            return self._to_parent_layout(tensordict)
        if self.batch_size is None or self.reset_func is not None:
            return None
        return TensorDict({}, self.batch_size, device=self._require_parent().device)

    def _reset(self, tensordict: TensorDictBase, tensordict_reset: TensorDictBase) -> TensorDictBase:
        if self.reset_func is None:
            return self._call(tensordict_reset)
        env = {"env": self._env} if self.env_kwarg else {}
        return self.reset_func(tensordict, tensordict_reset, **env)

    # -- specs

    def transform_env_batch_size(self, batch_size: torch.Size) -> torch.Size:
        """Returns the new batch size."""
        return self._row_numbers(batch_size).shape if self.batch_size is None else self.batch_size

    def _reshaped(self, specs: Composite) -> Composite:
        if self.reshape_fn is not None:
            return self.reshape_fn(specs)
        assert self.batch_size is not None
        parent = self._require_parent()
        if parent.batch_locked and parent.batch_size != self.batch_size:
            raise SpaceError(
                f"Expected an environment that accepts any batch size, got one of {tuple(parent.batch_size)}. Use "
                f"reshape_fn."
            )
        return specs.expand(self.batch_size)

    def transform_output_spec(self, output_spec: Composite) -> Composite:
        """Returns the specs in the new batch size."""
        return self._reshaped(output_spec)

    def transform_input_spec(self, input_spec: Composite) -> Composite:
        """Returns the specs in the new batch size."""
        return self._reshaped(input_spec)


def _parse_size(batch_size: int | Sequence[int]) -> torch.Size:
    """Returns a batch size. Raises a ValueError if a size is negative."""
    size = torch.Size([batch_size] if isinstance(batch_size, int) else batch_size)
    if any(number < 0 for number in size):
        raise ValueError(f"Expected batch_size to have sizes of 0 or more, got {batch_size}.")
    return size
