"""Transforms of numbers, each value by itself: any function, norms, clips and signs."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from tensordict import NonTensorStack, is_non_tensor
from torch import Tensor

from ...errors import SpaceError
from ...specs import Bounded, NonTensor, TensorSpec, Unbounded
from ...specs.shape_ops import concrete
from ..spec_container import Key
from .spec_probe import probe_output
from .stateless import ObservationTransform


class UnaryTransform(ObservationTransform):
    """Any function of one entry.

    The spec of what it makes has the shape and dtype of what it makes of zeros (of a non-tensor, of the `example_data`
    of its spec), and no bounds.

    Args:
        in_keys, out_keys: what `fn` reads and writes, of what comes out.
        in_keys_inv, out_keys_inv: what `inv_fn` writes and reads, of what goes in.
        fn: takes a tensor with all its batch dimensions (or a non-tensor) and returns a new one, or anything else; it
            also says what users are to give for `inv_fn`, which it is the inverse of.
        inv_fn: the same, on the way in.
        use_raw_nontensor: give the functions what is inside a non-tensor (a list of it where there is a batch).

    >>> from tensordict import TensorDict
    >>> half = UnaryTransform(["x"], ["half"], fn=lambda x: x / 2)
    >>> half(TensorDict({"x": torch.tensor([3.0])}))["half"]
    tensor([1.5000])
    """

    def __init__(
        self,
        in_keys: Any,
        out_keys: Any,
        in_keys_inv: Any = None,
        out_keys_inv: Any = None,
        *,
        fn: Callable[[Any], Any],
        inv_fn: Callable[[Any], Any] | None = None,
        use_raw_nontensor: bool = False,
    ):
        super().__init__(in_keys, out_keys, in_keys_inv, out_keys_inv)
        if inv_fn is None and self._in_keys_inv:
            raise ValueError(f"Expected inv_fn, which makes {self.in_keys_inv} of {self.out_keys_inv}, but None came.")
        self._fn = fn
        self._inv_fn = inv_fn
        self._use_raw_nontensor = use_raw_nontensor

    def _apply_fn(self, function: Callable[[Any], Any], value: Any) -> Any:
        if self._use_raw_nontensor and is_non_tensor(value):
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
        return NonTensor(spec.shape, device=spec.device)

    _inv_spec = _spec  # the outer values are what fn makes of inner ones


class ObservationNorm(ObservationTransform):
    """An affine map: `loc + scale * value`, or `(value - loc) / scale` where `standard_normal` is set.

    Without `loc` and `scale`, call `init_stats` before the environment is used.

    Args:
        loc, scale: numbers or tensors that broadcast with the values; both or none.
        in_keys: what is mapped on the way out; the environment's floating-point observations by default.
        out_keys: where to; in place by default.
        in_keys_inv, out_keys_inv: what the inverse maps on the way in; nothing by default.
        standard_normal: whether the result has mean 0 and deviation 1 where `loc` and `scale` are mean and deviation.
        eps: the least scale that is divided by, 1e-6 by default.

    >>> from tensordict import TensorDict
    >>> norm = ObservationNorm(loc=1.0, scale=2.0, in_keys=["x"], standard_normal=True)
    >>> norm(TensorDict({"x": torch.tensor([3.0])}))["x"]
    tensor([1.])
    """

    elementwise = True
    loc: Tensor | None
    scale: Tensor | None

    def __init__(
        self,
        loc: Any = None,
        scale: Any = None,
        in_keys: Any = None,
        out_keys: Any = None,
        in_keys_inv: Any = None,
        out_keys_inv: Any = None,
        standard_normal: bool = False,
        eps: float | None = None,
    ):
        if (loc is None) != (scale is None):
            raise ValueError(f"Expected loc and scale, or neither, but loc={loc!r} and scale={scale!r} came.")
        super().__init__(in_keys, out_keys, in_keys_inv, out_keys_inv)
        self.standard_normal = standard_normal
        self.eps = 1e-6 if eps is None else eps
        self.register_buffer("loc", as_number(loc))
        self.register_buffer("scale", as_number(scale))

    def _default_in_keys(self) -> list[Key]:
        parent = self.parent
        if parent is None:
            return []
        specs = parent.full_observation_spec
        return [key for key in parent.observation_keys if is_floating(specs[key])]

    @property
    def initialized(self) -> bool:
        """Whether loc and scale are known."""
        return self.loc is not None

    def init_stats(
        self,
        num_iter: int,
        reduce_dim: int | tuple[int, ...] = 0,
        cat_dim: int | None = None,
        key: Any = None,
        keep_dims: tuple[int, ...] | None = None,
    ) -> None:
        """Take loc and scale from what the environment gives for random actions.

        Args:
            num_iter: how many steps to take.
            reduce_dim: the dimensions over which mean and deviation are taken; time is the last one of the batch.
            cat_dim: where rollouts are put behind one another; `reduce_dim` where that is one dimension.
            key: which entry, where there are several in_keys.
            keep_dims: dimensions that the result keeps, with size 1.

        Raises:
            RuntimeError: loc and scale are known already, or the values have no finite mean or deviation.
            ValueError: `key` or `cat_dim` is needed.
        """
        if num_iter < 1:
            raise ValueError(f"Expected num_iter of 1 or more, but {num_iter} came.")
        if self.initialized:
            raise RuntimeError("loc and scale are known already: init_stats would replace them.")
        keys = self.in_keys
        if key is None and len(keys) != 1:
            raise ValueError(f"Expected key to name one of {keys}.")
        dims = (reduce_dim,) if isinstance(reduce_dim, int) else tuple(reduce_dim)
        if cat_dim is None:
            if len(dims) != 1:
                raise ValueError(f"Where reduce_dim has several dimensions, {dims}, give cat_dim too.")
            cat_dim = dims[0]
        data = self._gather(num_iter, keys[0] if key is None else key, cat_dim)
        if math.prod(data.shape[dim] for dim in dims) < 2:
            raise RuntimeError(f"Expected two values or more for a deviation, but {num_iter} steps gave one alone.")
        mean, deviation = _moments(data, dims, keep_dims or ())
        if not (torch.isfinite(mean).all() and torch.isfinite(deviation).all()):
            raise RuntimeError(f"The values have no finite mean and deviation over {num_iter} steps.")
        deviation = deviation.clamp_min(self.eps)
        self.loc = mean if self.standard_normal else -mean / deviation
        self.scale = deviation if self.standard_normal else 1 / deviation
        self._invalidate()

    def _gather(self, steps: int, key: Key, dim: int) -> Tensor:
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
                f"Expected rollouts that go behind one another along dimension {dim}, but they have the shapes "
                f"{shapes}. Give the dimension of time, cat_dim={parent.batch_dims}, and as reduce_dim all dimensions "
                "over which mean and deviation are taken."
            ) from error

    def _require_stats(self) -> tuple[Tensor, Tensor]:
        loc, scale = self.loc, self.scale
        if loc is None or scale is None:
            raise RuntimeError("ObservationNorm has neither loc nor scale: give them, or call init_stats first.")
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
                f"Expected loc and scale that broadcast with values of shape {tuple(spec.shape)}, but they have "
                f"{tuple(loc.shape)} and {tuple(scale.shape)}."
            ) from error
        return map_bounds(spec, self._apply_transform)

    def _inv_spec(self, spec: TensorSpec) -> TensorSpec:
        """The outer values are those that the inverse maps into `spec`."""
        return map_bounds(spec, self._apply_transform) if self.initialized else spec

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any, **kwargs: Any) -> None:
        for name in ("loc", "scale"):
            if prefix + name in state_dict:
                setattr(self, name, torch.empty_like(state_dict[prefix + name]))
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)
        self._invalidate()


class ClipTransform(ObservationTransform):
    """Clips values to [low, high].

    The result has the dtype of the entry. Only where an integer or bool dtype cannot hold an end (0.5, or 300 in
    uint8), the result and its spec have torch's default floating-point dtype.

    Args:
        in_keys, out_keys: what is clipped on the way out; nothing by default.
        in_keys_inv, out_keys_inv: what is clipped on the way in; nothing by default.
        low, high: the ends, numbers or tensors; None for no end.

    Raises:
        SpaceError: neither `low` nor `high` is given.
        ValueError: `low` is above `high`.

    >>> from tensordict import TensorDict
    >>> ClipTransform(["x"], low=-0.5, high=0.5)(TensorDict({"x": torch.tensor([0, 3])}))["x"]
    tensor([0.0000, 0.5000])
    """

    elementwise = True
    low: Tensor
    high: Tensor

    def __init__(
        self,
        in_keys: Any = None,
        out_keys: Any = None,
        in_keys_inv: Any = None,
        out_keys_inv: Any = None,
        *,
        low: Any = None,
        high: Any = None,
    ):
        if low is None and high is None:
            raise SpaceError("Expected low, high or both, got neither.")
        if low is not None and high is not None and bool((torch.as_tensor(low) > torch.as_tensor(high)).any()):
            raise ValueError(f"Expected low <= high, but low={low} and high={high} came.")
        super().__init__([] if in_keys is None else in_keys, out_keys, in_keys_inv, out_keys_inv)
        self.register_buffer("low", torch.as_tensor(-torch.inf if low is None else low))
        self.register_buffer("high", torch.as_tensor(torch.inf if high is None else high))

    def _apply_transform(self, value: Tensor) -> Tensor:
        return clip_to(value, self.low, self.high)

    _inv_apply_transform = _apply_transform

    def _spec(self, spec: TensorSpec) -> TensorSpec:
        return clip_bounds_of(spec, self._apply_transform, self.low, self.high)


class SignTransform(ObservationTransform):
    """The sign of values: -1, 0 or 1.

    Args:
        in_keys, out_keys: what is replaced by its sign on the way out; nothing by default.
        in_keys_inv, out_keys_inv: what is replaced by its sign on the way in; nothing by default.
    """

    elementwise = True

    def __init__(self, in_keys: Any = None, out_keys: Any = None, in_keys_inv: Any = None, out_keys_inv: Any = None):
        super().__init__([] if in_keys is None else in_keys, out_keys, in_keys_inv, out_keys_inv)

    def _apply_transform(self, value: Tensor) -> Tensor:
        return value.sign()

    _inv_apply_transform = _apply_transform

    def _spec(self, spec: TensorSpec) -> TensorSpec:
        return clip_bounds_of(spec, self._apply_transform, -1, 1)


# -- specs


def as_number(value: Any) -> Tensor | None:
    """A floating-point tensor of `value`; None for None."""
    if value is None:
        return None
    value = torch.as_tensor(value)
    return value if value.is_floating_point() else value.to(torch.get_default_dtype())


def is_floating(spec: TensorSpec) -> bool:
    """Whether its values are floating-point tensors."""
    return spec.dtype is not None and spec.dtype.is_floating_point


def clip_to(value: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Values cut to [low, high], in their own dtype; in torch's default one where theirs does not have the ends."""
    if not (value.dtype.is_floating_point or _holds(value.dtype, low, high)):
        value = value.to(torch.get_default_dtype())
    elif not (value.dtype.is_floating_point or value.dtype is torch.bool):
        low, high = _inside(low, value.dtype), _inside(high, value.dtype)
    return torch.maximum(torch.minimum(value, high), low).to(value.dtype)


def _holds(dtype: torch.dtype, low: Tensor, high: Tensor) -> bool:
    """Whether values of an integer or bool dtype, cut to [low, high], are of that dtype."""
    least, most = (0, 1) if dtype is torch.bool else (torch.iinfo(dtype).min, torch.iinfo(dtype).max)
    whole = all(bool((bound == bound.round()).all()) for bound in (low, high))
    return whole and bool((low <= most).all()) and bool((high >= least).all())


def _inside(bound: Tensor, dtype: torch.dtype) -> Tensor:
    """The value of an integer dtype that is nearest to a whole number."""
    limits = torch.iinfo(dtype)
    clamped = (bound.double() if bound.is_floating_point() else bound).clamp(limits.min, limits.max)
    return torch.where(clamped >= limits.max, limits.max, clamped.to(dtype))


def map_bounds(spec: TensorSpec, function: Callable[[Tensor], Tensor]) -> TensorSpec:
    """The spec of what a monotonous function makes of values of `spec`: its bounds are mapped along."""
    zero = spec.zero()
    value = function(zero)
    shape = spec.shape if value.shape == zero.shape else value.shape
    if not isinstance(spec, Bounded):
        return Unbounded(shape, dtype=value.dtype, device=spec.device)
    mapped_bounds = [function(bound) for bound in (spec.low, spec.high)]
    low, high = (
        bound.nan_to_num(fill, posinf=torch.inf, neginf=-torch.inf)
        for bound, fill in ((torch.minimum(*mapped_bounds), -torch.inf), (torch.maximum(*mapped_bounds), torch.inf))
    )
    return Bounded(low, high, shape, dtype=value.dtype, device=spec.device)


def clip_bounds_of(spec: TensorSpec, function: Callable[[Tensor], Tensor], low: Any, high: Any) -> TensorSpec:
    """The spec of what a monotonous function with values in [low, high] makes of values of `spec`."""
    if isinstance(spec, Bounded):
        return map_bounds(spec, function)
    value = function(spec.zero())
    if not (value.dtype.is_floating_point or value.dtype is torch.bool):  # which have no infinite ends
        limits = torch.iinfo(value.dtype)
        low, high = (function(torch.full_like(value, bound)) for bound in (limits.min, limits.max))
    return Bounded(low, high, spec.shape, dtype=value.dtype, device=spec.device)


def _moments(data: Tensor, dims: tuple[int, ...], keep_dims: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Mean and deviation over `dims`, of which those in `keep_dims` stay with size 1."""
    kept_dims = {dim % data.ndim for dim in keep_dims}
    removed_dims = tuple(dim for dim in sorted({dim % data.ndim for dim in dims}) if dim not in kept_dims)
    mean, deviation = data.mean(dims, keepdim=True), data.std(dims, keepdim=True)
    return mean.squeeze(removed_dims), deviation.squeeze(removed_dims)
