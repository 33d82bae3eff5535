"""Transforms of single values: functions, affine maps, clips and signs; and a check that numbers are finite."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from tensordict import NonTensorStack, TensorDictBase, is_non_tensor
from torch import Tensor

from ...errors import SpaceError
from ...specs import NonTensor, TensorSpec, Unbounded
from ...specs.shape_ops import concrete
from ...validation import check_callable, parse_number
from ..entries.keys import Key
from .base import ObservationTransform, StatelessTransform
from .keyed_module import Keys
from .ragged_entries import part_leaves
from .spec_hooks import Numbers, clip_bounds_of, clip_to, map_bounds, parse_numbers, probe_output

__all__ = ["ClipTransform", "FiniteTensorDictCheck", "ObservationNorm", "SignTransform", "UnaryTransform"]


class UnaryTransform(ObservationTransform):
    """Applies a function to single entries.

    The spec of its output has the shape and dtype of the output for zeros, and no bounds. For a non-tensor, the
    `example_data` of its spec is used instead of zeros.

    Args:
        in_keys, out_keys: the keys of outputs that `fn` reads and writes.
        in_keys_inv, out_keys_inv: the keys of inputs that `inv_fn` writes and reads.
        fn: takes a tensor with all its batch dimensions (or an object) and returns a new one, or any object. The
            spec of inputs that users give is computed with `fn` too, as the inverse of `inv_fn`.
        inv_fn: the same for inputs.
        use_raw_nontensor: whether the functions get a `NonTensorData` or `NonTensorStack` instead of its content (in a
            batch a list).

    Raises:
        ValueError: `in_keys_inv` are given without `inv_fn`.

    >>> from tensordict import TensorDict
    >>> half = UnaryTransform(["x"], ["half"], fn=lambda x: x / 2)
    >>> half(TensorDict({"x": torch.tensor([3.0])}))["half"]
    tensor([1.5000])
    """

    def __init__(
        self,
        in_keys: Keys,
        out_keys: Keys,
        in_keys_inv: Keys = None,
        out_keys_inv: Keys = None,
        *,
        fn: Callable[[Any], Any],
        inv_fn: Callable[[Any], Any] | None = None,
        use_raw_nontensor: bool = False,
    ):
        super().__init__(in_keys, out_keys, in_keys_inv, out_keys_inv)
        if inv_fn is None and self._in_keys_inv:
            raise ValueError(
                f"Expected inv_fn, which computes {self.in_keys_inv} from {self.out_keys_inv}, got None. Give inv_fn."
            )
        check_callable("fn", fn)
        self._fn = fn
        self._inv_fn = inv_fn
        self._use_raw_nontensor = use_raw_nontensor

    def _apply_fn(self, function: Callable[[Any], Any], value: Any) -> Any:
        if not self._use_raw_nontensor and is_non_tensor(value):
            value = value.tolist()
        result = function(value)
        return NonTensorStack(*result) if isinstance(result, list) else result

    def _apply_transform(self, value: Any) -> Any:
        return self._apply_fn(self._fn, value)

    def _inv_apply_transform(self, value: Any) -> Any:
        assert self._inv_fn is not None
        return self._apply_fn(self._inv_fn, value)

    def _spec(self, spec: TensorSpec) -> TensorSpec:
        result, shape = probe_output(self._apply_transform, spec)
        if isinstance(result, Tensor):
            return Unbounded(shape, dtype=result.dtype, device=spec.device)
        return NonTensor(spec.shape if self.parent is None else self.parent.batch_size, device=spec.device)

    _inv_spec = _spec  # the values that the user gives are outputs of fn


class ObservationNorm(ObservationTransform):
    """Normalizes values by an affine map: `loc + scale * value`, or `(value - loc) / scale` with `standard_normal`.

    Without `loc` and `scale`, call `init_stats` before using the environment.

    Args:
        loc, scale: numbers or tensors that broadcast with the values; both or none.
        in_keys: the keys of outputs to map; the floating-point observations of the environment by default.
        out_keys: the keys of the results; `in_keys` by default.
        in_keys_inv, out_keys_inv: the keys of inputs to which the inverse is applied; none by default.
        standard_normal: whether to return `(value - loc) / scale`, which has mean 0 and standard deviation 1 if `loc`
            and `scale` are the mean and standard deviation.
        eps: the minimum of the scale as a divisor, 1e-6 by default.

    Raises:
        ValueError: only one of `loc` and `scale` is given.
        RuntimeError: on use, if there are neither.

    >>> from tensordict import TensorDict
    >>> norm = ObservationNorm(loc=1.0, scale=2.0, in_keys=["x"], standard_normal=True)
    >>> norm(TensorDict({"x": torch.tensor([3.0])}))["x"]
    tensor([1.])
    """

    elementwise = True
    _takes_parts = True
    loc: Tensor | None
    scale: Tensor | None

    def __init__(
        self,
        loc: Numbers | None = None,
        scale: Numbers | None = None,
        in_keys: Keys = None,
        out_keys: Keys = None,
        in_keys_inv: Keys = None,
        out_keys_inv: Keys = None,
        standard_normal: bool = False,
        eps: float | None = None,
    ):
        if (loc is None) != (scale is None):
            raise ValueError(f"Expected loc and scale, or neither, got loc={loc!r} and scale={scale!r}.")
        super().__init__(in_keys, out_keys, in_keys_inv, out_keys_inv)
        self.standard_normal = standard_normal
        self.eps = 1e-6 if eps is None else parse_number("eps", eps, 0)
        self.register_buffer("loc", parse_optional_floats("loc", loc))
        self.register_buffer("scale", parse_optional_floats("scale", scale))

    def _default_in_keys(self) -> list[Key]:
        parent = self.parent
        if parent is None:
            return []
        specs = parent.full_observation_spec
        return [key for key in parent.observation_keys if is_floating(specs[key])]

    @property
    def initialized(self) -> bool:
        """Whether loc and scale are set."""
        return self.loc is not None

    def init_stats(
        self,
        num_iter: int,
        reduce_dim: int | tuple[int, ...] = 0,
        cat_dim: int | None = None,
        key: Key | None = None,
        keep_dims: tuple[int, ...] | None = None,
    ) -> None:
        """Computes loc and scale from rollouts with random actions.

        Args:
            num_iter: the number of steps, 1 or more.
            reduce_dim: the dimensions over which mean and standard deviation are computed; time is the last batch
                dimension.
            cat_dim: the dimension along which rollouts are concatenated; `reduce_dim` by default, if that is one
                dimension.
            key: the entry to use; needed if there are several `in_keys`.
            keep_dims: dimensions that the result keeps with size 1.

        Raises:
            RuntimeError: loc and scale are already set, or the mean or standard deviation is not finite.
            ValueError: `key` or `cat_dim` is needed, or the rollouts cannot be concatenated along `cat_dim`.
        """
        if num_iter < 1:
            raise ValueError(f"Expected num_iter of 1 or more, got {num_iter}.")
        if self.initialized:
            raise RuntimeError(
                "Expected no loc and scale before init_stats, got both already. Use a new ObservationNorm."
            )
        keys = self.in_keys
        if key is None and len(keys) != 1:
            raise ValueError(f"Expected key to be one of {keys}, got None. Give key.")
        dims = (reduce_dim,) if isinstance(reduce_dim, int) else tuple(reduce_dim)
        if cat_dim is None:
            if len(dims) != 1:
                raise ValueError(f"Expected cat_dim for several reduce_dim, {dims}, got None. Give cat_dim.")
            cat_dim = dims[0]
        data = self._collect_values(num_iter, keys[0] if key is None else key, cat_dim)
        if math.prod(data.shape[dim] for dim in dims) < 2:
            raise RuntimeError(
                f"Expected two values or more for a standard deviation, got one in {num_iter} steps. Increase num_iter."
            )
        mean, deviation = _moments(data, dims, keep_dims or ())
        if not (torch.isfinite(mean).all() and torch.isfinite(deviation).all()):
            raise RuntimeError(
                f"Expected a finite mean and standard deviation over {num_iter} steps, got NaN or infinite ones. "
                f"Check the values of the entry."
            )
        deviation = deviation.clamp_min(self.eps)
        self.scale = deviation if self.standard_normal else 1 / deviation
        self.loc = mean if self.standard_normal else -mean * self.scale
        self._invalidate()

    def _collect_values(self, steps: int, key: Key, dim: int) -> Tensor:
        parent = self._require_parent()
        collected: list[Tensor] = []
        steps_left = steps
        while steps_left > 0:
            rollout = parent.rollout(steps_left)
            collected.append(rollout.get(key))
            steps_left -= rollout.shape[-1]
        try:
            return torch.cat(collected, dim)
        except RuntimeError as error:
            shapes = ", ".join(str(tuple(tensor.shape)) for tensor in collected[:3])
            raise ValueError(
                f"Expected rollouts that can be concatenated along dimension {dim}, got the shapes {shapes}. Give the "
                f"dimension of time, cat_dim={parent.batch_dims}, and as reduce_dim all dimensions over which mean and "
                f"standard deviation are computed."
            ) from error

    def _require_stats(self) -> tuple[Tensor, Tensor]:
        loc, scale = self.loc, self.scale
        if loc is None or scale is None:
            raise RuntimeError(
                "Expected loc and scale in ObservationNorm, got neither. Give them, or call init_stats first."
            )
        return loc, scale

    def _apply_transform(self, value: Tensor) -> Tensor:
        loc, scale = self._require_stats()
        if self.standard_normal:
            return (value - loc) / scale.clamp_min(self.eps)
        return value * scale + loc

    def _inv_apply_transform(self, value: Tensor) -> Tensor:
        loc, scale = self._require_stats()
        if self.standard_normal:
            return value * scale + loc
        return (value - loc) / scale

    def _spec(self, spec: TensorSpec) -> TensorSpec:
        if not self.initialized:
            return spec
        loc, scale = self._require_stats()
        try:
            torch.broadcast_shapes(concrete(spec.shape), loc.shape, scale.shape)
        except RuntimeError as error:
            raise SpaceError(
                f"Expected loc and scale that broadcast with values of shape {tuple(spec.shape)}, got the shapes "
                f"{tuple(loc.shape)} and {tuple(scale.shape)}."
            ) from error
        return map_bounds(spec, self._apply_transform)

    def _inv_spec(self, spec: TensorSpec) -> TensorSpec:
        """Returns the spec of the values that the inverse maps into `spec`."""
        return map_bounds(spec, self._apply_transform) if self.initialized else spec

    def _load_from_state_dict(self, state_dict: Mapping[str, Tensor], prefix: str, *args: Any, **kwargs: Any) -> None:
        for name in ("loc", "scale"):
            if prefix + name in state_dict:
                setattr(self, name, torch.empty_like(state_dict[prefix + name]))
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)
        self._invalidate()


class ClipTransform(ObservationTransform):
    """Clips values to [low, high].

    The result has the dtype of the entry. If an integer or bool dtype cannot represent a clipped value (a bound of 0.5,
    or a `low` of 300 in uint8), the result and its spec have torch's default floating-point dtype.

    Args:
        in_keys, out_keys: the keys of outputs to clip; none by default.
        in_keys_inv, out_keys_inv: the keys of inputs to clip; none by default.
        low, high: the bounds, numbers or tensors; None for no bound.

    Raises:
        SpaceError: neither `low` nor `high` is given.
        ValueError: `low` is above `high`.

    >>> from tensordict import TensorDict
    >>> ClipTransform(["x"], low=-0.5, high=0.5)(TensorDict({"x": torch.tensor([0, 3])}))["x"]
    tensor([0.0000, 0.5000])
    """

    elementwise = True
    _takes_parts = True
    low: Tensor
    high: Tensor

    def __init__(
        self,
        in_keys: Keys = None,
        out_keys: Keys = None,
        in_keys_inv: Keys = None,
        out_keys_inv: Keys = None,
        *,
        low: Numbers | None = None,
        high: Numbers | None = None,
    ):
        if low is None and high is None:
            raise SpaceError("Expected low, high or both, got neither.")
        super().__init__([] if in_keys is None else in_keys, out_keys, in_keys_inv, out_keys_inv)
        self.register_buffer("low", parse_numbers("low", -torch.inf if low is None else low))
        self.register_buffer("high", parse_numbers("high", torch.inf if high is None else high))
        if bool((self.low > self.high).any()):
            raise ValueError(f"Expected low <= high, got low={low} and high={high}.")

    def _apply_transform(self, value: Tensor) -> Tensor:
        return clip_to(value, self.low, self.high)

    _inv_apply_transform = _apply_transform

    def _spec(self, spec: TensorSpec) -> TensorSpec:
        return clip_bounds_of(spec, self._apply_transform, self.low, self.high)


class SignTransform(ObservationTransform):
    """Replaces values by their sign: -1, 0 or 1.

    Args:
        in_keys, out_keys: the keys of outputs to change; none by default.
        in_keys_inv, out_keys_inv: the keys of inputs to change; none by default.
    """

    elementwise = True
    _takes_parts = True

    def __init__(
        self, in_keys: Keys = None, out_keys: Keys = None, in_keys_inv: Keys = None, out_keys_inv: Keys = None
    ):
        super().__init__([] if in_keys is None else in_keys, out_keys, in_keys_inv, out_keys_inv)

    def _apply_transform(self, value: Tensor) -> Tensor:
        return value.sign()

    _inv_apply_transform = _apply_transform

    def _spec(self, spec: TensorSpec) -> TensorSpec:
        return clip_bounds_of(spec, self._apply_transform, -1, 1)


def parse_floats(name: str, value: object) -> Tensor:
    """Returns the result of `parse_numbers` as a floating-point tensor."""
    tensor = parse_numbers(name, value)
    return tensor if tensor.is_floating_point() else tensor.to(torch.get_default_dtype())


def parse_optional_floats(name: str, value: object) -> Tensor | None:
    """Returns None for None, and otherwise the tensor that `parse_floats` returns."""
    return None if value is None else parse_floats(name, value)


def is_floating(spec: TensorSpec) -> bool:
    """Returns whether the values of a spec are floating-point tensors."""
    return spec.dtype is not None and spec.dtype.is_floating_point


def _moments(data: Tensor, dims: tuple[int, ...], keep_dims: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Returns mean and standard deviation over `dims`; dimensions in `keep_dims` are kept with size 1."""
    kept_dims = {dim % data.ndim for dim in keep_dims}
    removed_dims = tuple(dim for dim in sorted({dim % data.ndim for dim in dims}) if dim not in kept_dims)
    mean, deviation = data.mean(dims, keepdim=True), data.std(dims, keepdim=True)
    return mean.squeeze(removed_dims), deviation.squeeze(removed_dims)


class FiniteTensorDictCheck(StatelessTransform):
    """Raises an error if a number in the output of a step or reset, or in stored data, is NaN or infinite.

    Raises:
        ValueError: some numbers are not finite; the message names their entries.

    >>> import torch
    >>> from tensordict import TensorDict
    >>> FiniteTensorDictCheck()(TensorDict({"x": torch.tensor([0.0, torch.nan])}))
    Traceback (most recent call last):
    ...
    ValueError: Expected finite numbers, got NaN or infinite ones in 'x' (1 of 2).
    """

    elementwise = True
    _takes_records = True

    def _call(self, next_tensordict: TensorDictBase) -> TensorDictBase:
        non_finite = [f"{key!r} ({count} of {size})" for key, count, size in _not_finite(next_tensordict)]
        if non_finite:
            raise ValueError(f"Expected finite numbers, got NaN or infinite ones in {', '.join(non_finite)}.")
        return next_tensordict


def _not_finite(td: TensorDictBase) -> Iterator[tuple[Any, int, int]]:
    """Yields each entry with numbers that are not finite: its key, the count of these numbers, and its size."""
    for _, key, value in part_leaves(td):
        if isinstance(value, Tensor) and (value.is_floating_point() or value.is_complex()):
            finite = value.isfinite()
            if not bool(finite.all()):
                yield key, int((~finite).sum()), value.numel()
