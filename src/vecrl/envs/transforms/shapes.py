"""Transforms of shapes: flatten, squeeze, unsqueeze, permute.

Each transform defines the new shape once, for tensors and specs. Negative dimensions are counted from the end, so the
batch size does not matter. Other dimensions are counted from 0 after the batch dimensions. Values stay the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property, partial
from typing import TypeVar

import torch
from tensordict import TensorDictBase
from torch import Tensor

from ...errors import SpaceError
from ...specs import TensorSpec
from ...validation import parse_int
from ..entries.keys import Key
from .actions import ActionTransform
from .base import ObservationTransform
from .keyed_module import Keys
from .spec_hooks import infer_spec

__all__ = ["FlattenAction", "FlattenObservation", "PermuteTransform", "SqueezeTransform", "UnsqueezeTransform"]


Shaped = TypeVar("Shaped", Tensor, TensorSpec)


class ShapeTransform(ObservationTransform):
    """The base of transforms of shapes.

    Args:
        in_keys, out_keys, in_keys_inv, out_keys_inv: as in `Transform`; none by default.
    """

    elementwise = True
    _takes_records = True
    _inverse_needs_keys = True

    def __init__(
        self, in_keys: Keys = None, out_keys: Keys = None, in_keys_inv: Keys = None, out_keys_inv: Keys = None
    ):
        super().__init__([] if in_keys is None else in_keys, out_keys, in_keys_inv, out_keys_inv)

    def _forward_shape(self, x: Shaped, num_feature_dims: int) -> Shaped:
        """Returns a tensor or a spec with its last `num_feature_dims` dimensions (all after the batch) changed."""
        raise NotImplementedError

    def _inverse_shape(self, x: Shaped, num_feature_dims: int) -> Shaped:
        """Applies the inverse of `_forward_shape`."""
        raise NotImplementedError(f"{type(self).__name__} has no inverse.")

    def _call(self, next_tensordict: TensorDictBase) -> TensorDictBase:
        batch_dims = next_tensordict.batch_dims
        return self._set_entries(
            next_tensordict, self._key_pairs, lambda value: self._forward_shape(value, value.ndim - batch_dims)
        )

    def _inv_call(self, tensordict: TensorDictBase) -> TensorDictBase:
        batch_dims = tensordict.batch_dims
        return self._set_entries(
            tensordict, self._inverse_key_pairs, lambda value: self._inverse_shape(value, value.ndim - batch_dims)
        )

    def _apply_transform(self, value: Tensor) -> Tensor:
        return self._forward_shape(value, value.ndim - self._batch_dims)

    def _inv_apply_transform(self, value: Tensor) -> Tensor:
        return self._inverse_shape(value, value.ndim - self._batch_dims)

    def _spec(self, spec: TensorSpec) -> TensorSpec:
        try:
            return self._forward_shape(spec, spec.ndim - self._batch_dims)
        except SpaceError:  # the change merges or moves a dimension that encodes one choice
            return infer_spec(spec, self._apply_transform)

    def _inv_spec(self, spec: TensorSpec) -> TensorSpec:
        return self._forward_shape(spec, spec.ndim - self._batch_dims)


def _negative_dim(dim: int, num_feature_dims: int) -> int:
    return dim if dim < 0 else dim - num_feature_dims


def parse_dim(dim: object, allow_positive_dim: bool, name: str = "dim") -> int:
    """Returns a dimension; raises a ValueError unless it is a negative int, or any with `allow_positive_dim`."""
    dim = parse_int(name, dim)
    if dim >= 0 and not allow_positive_dim:
        raise ValueError(
            f"Expected a negative {name}, which is counted from the end, got {dim}. Give allow_positive_dim=True to "
            "count dimensions from 0 after the batch dimensions."
        )
    return dim


class FlattenObservation(ShapeTransform):
    """Flattens adjacent dimensions into one.

    Args:
        first_dim, last_dim: the first and the last of these dimensions.
        in_keys: the keys of entries to flatten; "pixels" by default.
        out_keys: the keys of the results; `in_keys` by default.
        allow_positive_dim: whether to accept dimensions counted from 0 after the batch dimensions.

    Raises:
        ValueError: a dimension is not negative, without `allow_positive_dim`.

    >>> import torch
    >>> from tensordict import TensorDict
    >>> FlattenObservation(-2, -1, in_keys=["x"])(TensorDict({"x": torch.zeros(5, 2, 3)}))["x"].shape
    torch.Size([5, 6])
    """

    def __init__(
        self,
        first_dim: int,
        last_dim: int,
        in_keys: Keys = None,
        out_keys: Keys = None,
        allow_positive_dim: bool = False,
    ):
        super().__init__(["pixels"] if in_keys is None else in_keys, out_keys)
        self.first_dim = parse_dim(first_dim, allow_positive_dim, "first_dim")
        self.last_dim = parse_dim(last_dim, allow_positive_dim, "last_dim")

    def _forward_shape(self, x: Shaped, num_feature_dims: int) -> Shaped:
        return x.flatten(
            _negative_dim(self.first_dim, num_feature_dims), _negative_dim(self.last_dim, num_feature_dims)
        )


class FlattenAction(ActionTransform):
    """Flattens adjacent dimensions of an action into one for the user, and restores them for the environment.

    Args:
        first_dim, last_dim: the first and the last of these dimensions; negative, counted from the end.
        in_keys_inv: the keys of actions of the environment; "action" by default.
        out_keys_inv: the keys of the actions that the user sets; `in_keys_inv` by default.
        in_keys, out_keys: the keys that `forward` reads, to flatten stored actions, and writes; by default
            `in_keys_inv` and `out_keys_inv`.
        allow_positive_dim: whether to accept dimensions counted from 0 after the batch dimensions.
        action_shape: the sizes of these dimensions, for stored data; in an environment they are those of its actions.

    Raises:
        ValueError: a dimension is not negative, without `allow_positive_dim`, or `first_dim` is after `last_dim`.
        SpaceError: on use, if an action does not have the dimensions.
        RuntimeError: on use of `inv`, if there are neither `action_shape` nor an environment.

    >>> from tensordict import TensorDict
    >>> flatten = FlattenAction(action_shape=(3, 5))
    >>> flatten(TensorDict(action=torch.zeros(7, 3, 5)))["action"].shape
    torch.Size([7, 15])
    >>> flatten.inv(TensorDict(action=torch.zeros(7, 15)))["action"].shape
    torch.Size([7, 3, 5])
    """

    _takes_records = True

    def __init__(
        self,
        first_dim: int = -2,
        last_dim: int = -1,
        in_keys_inv: Keys = None,
        out_keys_inv: Keys = None,
        in_keys: Keys = None,
        out_keys: Keys = None,
        allow_positive_dim: bool = False,
        *,
        action_shape: Sequence[int] | None = None,
    ):
        super().__init__("action" if in_keys_inv is None else in_keys_inv, out_keys_inv, in_keys, out_keys)
        self.first_dim = parse_dim(first_dim, allow_positive_dim, "first_dim")
        self.last_dim = parse_dim(last_dim, allow_positive_dim, "last_dim")
        if first_dim > last_dim if (first_dim < 0) == (last_dim < 0) else first_dim < 0:
            raise ValueError(f"Expected first_dim <= last_dim, got {first_dim} and {last_dim}.")
        self.action_shape = None if action_shape is None else torch.Size(action_shape)

    def _flatten(self, x: Shaped, num_feature_dims: int) -> Shaped:
        """Returns a tensor or a spec flattened, the last `num_feature_dims` dimensions of which are the action."""
        first, last = (_negative_dim(dim, num_feature_dims) for dim in (self.first_dim, self.last_dim))
        if min(first, last) < -num_feature_dims or first > last:
            raise SpaceError(
                f"Expected an action with the dimensions {self.first_dim} to {self.last_dim}, got {num_feature_dims} "
                f"dimensions after the batch dimensions. Give other dimensions."
            )
        return x.flatten(first, last)

    def _call(self, next_tensordict: TensorDictBase) -> TensorDictBase:
        batch_dims = next_tensordict.batch_dims
        return self._set_entries(
            next_tensordict, self._key_pairs, lambda value: self._flatten(value, value.ndim - batch_dims)
        )

    def _inv_call(self, tensordict: TensorDictBase) -> TensorDictBase:
        dim = self.last_dim if self.last_dim < 0 else self.first_dim + tensordict.batch_dims
        for pair in self._inverse_key_pairs:
            self._set_entries(tensordict, [pair], partial(torch.unflatten, dim=dim, sizes=self._sizes[pair[1]]))
        return tensordict

    @cached_property
    def _sizes(self) -> dict[Key, torch.Size]:
        """The sizes of the dimensions of each action of the environment."""
        if self.parent is None:
            if self.action_shape is None:
                raise RuntimeError(
                    "Expected FlattenAction outside an environment to have action_shape, got None. Give the sizes of "
                    "the dimensions that are flattened."
                )
            return dict.fromkeys(self.in_keys_inv, self.action_shape)
        batch_dims, sizes = self.parent.batch_dims, {}
        for key in self.in_keys_inv:
            shape = self._action_spec(key).shape
            first, last = (_negative_dim(dim, len(shape) - batch_dims) for dim in (self.first_dim, self.last_dim))
            sizes[key] = shape[len(shape) + first : len(shape) + last + 1]
        return sizes

    def _inv_spec(self, spec: TensorSpec) -> TensorSpec:
        return self._flatten(spec, spec.ndim - self._batch_dims)


class UnsqueezeTransform(ShapeTransform):
    """Inserts a dimension of size 1 in outputs, and removes it from inputs.

    Args:
        dim: the position of the dimension.
        allow_positive_dim: whether to accept a dimension counted from 0 after the batch dimensions.
        in_keys, out_keys: the keys of outputs to change; none by default.
        in_keys_inv, out_keys_inv: the keys of inputs to change; none by default.

    Raises:
        TypeError: `dim` is not given.
        ValueError: `dim` is not negative, without `allow_positive_dim`.
    """

    def __init__(
        self,
        dim: int | None = None,
        *,
        allow_positive_dim: bool = False,
        in_keys: Keys = None,
        out_keys: Keys = None,
        in_keys_inv: Keys = None,
        out_keys_inv: Keys = None,
    ):
        if dim is None:
            raise TypeError(f"Expected dim for {type(self).__name__}, got None. Give the dimension to change.")
        super().__init__(in_keys, out_keys, in_keys_inv, out_keys_inv)
        self.dim = parse_dim(dim, allow_positive_dim)

    def _unsqueeze(self, x: Shaped, num_feature_dims: int) -> Shaped:
        return x.unsqueeze(_negative_dim(self.dim, num_feature_dims + 1))

    def _squeeze(self, x: Shaped, num_feature_dims: int) -> Shaped:
        return x.squeeze(_negative_dim(self.dim, num_feature_dims))

    _forward_shape, _inverse_shape = _unsqueeze, _squeeze


class SqueezeTransform(UnsqueezeTransform):
    """Removes a dimension of size 1 from outputs, and inserts it in inputs. Other sizes are not changed.

    Args:
        dim: the position of the dimension.
        allow_positive_dim: whether to accept a dimension counted from 0 after the batch dimensions.
        in_keys, out_keys: the keys of outputs to change; none by default.
        in_keys_inv, out_keys_inv: the keys of inputs to change; none by default.
    """

    def _forward_shape(self, x: Shaped, num_feature_dims: int) -> Shaped:
        return self._squeeze(x, num_feature_dims)

    def _inverse_shape(self, x: Shaped, num_feature_dims: int) -> Shaped:
        return self._unsqueeze(x, num_feature_dims)


class PermuteTransform(ShapeTransform):
    """Permutes the last dimensions of outputs, and permutes those of inputs back.

    Args:
        dims: the last dimensions in their new order, counted from the end: `(-1, -3, -2)` moves channels from the last
            dimension before height and width.
        in_keys, out_keys: the keys of outputs to permute; none by default.
        in_keys_inv, out_keys_inv: the keys of inputs to permute back; none by default.

    Raises:
        ValueError: `dims` is no permutation of the last dimensions.
    """

    def __init__(
        self,
        dims: Sequence[int],
        in_keys: Keys = None,
        out_keys: Keys = None,
        in_keys_inv: Keys = None,
        out_keys_inv: Keys = None,
    ):
        super().__init__(in_keys, out_keys, in_keys_inv, out_keys_inv)
        if not isinstance(dims, Iterable):
            raise ValueError(f"Expected dims to be a sequence of dimensions, got {dims!r:.80}.")
        self.dims = tuple(parse_int("dims", dim) for dim in dims)
        count = len(self.dims)
        if sorted(self.dims) != list(range(-count, 0)):
            raise ValueError(f"Expected dims to be a permutation of {tuple(range(-count, 0))}, got {self.dims}.")
        self._inverse_dims = tuple(self.dims.index(dim) - count for dim in range(-count, 0))

    def _forward_shape(self, x: Shaped, num_feature_dims: int) -> Shaped:
        return _permute(x, self.dims)

    def _inverse_shape(self, x: Shaped, num_feature_dims: int) -> Shaped:
        return _permute(x, self._inverse_dims)


def _permute(x: Shaped, dims: tuple[int, ...]) -> Shaped:
    return x.permute(*range(x.ndim - len(dims)), *(x.ndim + dim for dim in dims))
