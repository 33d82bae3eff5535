"""Transforms of numbers, each value by itself: norms, clips, signs, dtypes, and any function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ...specs import Bounded, TensorSpec
from ..owner import Key
from .base import Transform, inferred


class ObservationTransform(Transform):
    """The base of transforms of observations: where no `in_keys` are given, they are all that the environment has.

    Args:
        in_keys, out_keys, in_keys_inv, out_keys_inv: see `Transform`.
    """

    keeps_done = True

    def _default_in_keys(self) -> list[Key]:
        parent = self.parent
        return [] if parent is None else list(parent.observation_keys)


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

    pointwise = True
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
        self.register_buffer("loc", _number(loc))
        self.register_buffer("scale", _number(scale))

    def _default_in_keys(self) -> list[Key]:
        parent = self.parent
        if parent is None:
            return []
        specs = parent.full_observation_spec
        return [key for key in parent.observation_keys if specs[key].dtype.is_floating_point]

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
        """
        if self.initialized:
            raise RuntimeError("loc and scale are known already: init_stats would replace them.")
        keys = self.in_keys
        if key is None and len(keys) != 1:
            raise ValueError(f"Expected key to name one of {keys}.")
        dims = (reduce_dim,) if isinstance(reduce_dim, int) else tuple(reduce_dim)
        if cat_dim is None:
            if len(dims) != 1:
                raise ValueError("Where reduce_dim has several dimensions, give cat_dim too.")
            cat_dim = dims[0]
        data = self._gather(num_iter, keys[0] if key is None else key, cat_dim)
        kept = tuple(dim % data.ndim for dim in keep_dims or ())
        mean, deviation = data.mean(dims, keepdim=True), data.std(dims, keepdim=True)
        for dim in sorted({dim % data.ndim for dim in dims} - set(kept), reverse=True):
            mean, deviation = mean.squeeze(dim), deviation.squeeze(dim)
        if not (torch.isfinite(mean).all() and torch.isfinite(deviation).all()):
            raise RuntimeError(f"The values have no finite mean and deviation over {num_iter} steps.")
        deviation = deviation.clamp_min(self.eps)
        self.loc = mean if self.standard_normal else -mean / deviation
        self.scale = deviation if self.standard_normal else 1 / deviation
        if (holder := self.container) is not None:
            holder._changed()

    def _gather(self, steps: int, key: Key, dim: int) -> Tensor:
        parent = self._require_parent()
        found: list[Tensor] = []
        left = steps
        while left > 0:
            played = parent.rollout(left)
            found.append(played.get(key))
            left -= played.shape[-1]
        return torch.cat(found, dim)

    def _known(self) -> tuple[Tensor, Tensor]:
        if self.loc is None or self.scale is None:
            raise RuntimeError("ObservationNorm has neither loc nor scale: give them, or call init_stats first.")
        return self.loc, self.scale

    def _apply_transform(self, value: Tensor) -> Tensor:
        loc, scale = self._known()
        if self.standard_normal:
            return (value - loc) / scale.clamp_min(self.eps)
        return value * scale + loc

    def _inv_apply_transform(self, value: Tensor) -> Tensor:
        loc, scale = self._known()
        if self.standard_normal:
            return value * scale + loc
        return (value - loc) / scale

    def _spec(self, spec: TensorSpec) -> TensorSpec:
        return _mapped(spec, self._apply_transform) if self.initialized else spec

    def _inv_spec(self, spec: TensorSpec) -> TensorSpec:
        """The outer values are those that the inverse maps into `spec`."""
        if not self.initialized:
            return spec
        loc, scale = self._known()
        if self.standard_normal:
            return _mapped(spec, lambda value: (value - loc) / scale)
        return _mapped(spec, lambda value: value * scale + loc)

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any) -> None:
        for name in ("loc", "scale"):
            if prefix + name in state_dict:
                setattr(self, name, torch.empty_like(state_dict[prefix + name]))
        super()._load_from_state_dict(state_dict, prefix, *args)


def _number(value: Any) -> Tensor | None:
    if value is None:
        return None
    value = torch.as_tensor(value)
    return value if value.is_floating_point() else value.to(torch.get_default_dtype())


def _mapped(spec: TensorSpec, function: Callable[[Tensor], Tensor]) -> TensorSpec:
    """The spec of what a monotonous function makes of values of `spec`: its bounds are mapped along."""
    value = function(spec.zero())
    if not isinstance(spec, Bounded):
        return inferred(spec, value)
    ends = [function(end.expand(spec.shape)) for end in (spec.low, spec.high)]
    low, high = torch.minimum(*ends), torch.maximum(*ends)
    return Bounded(
        low.nan_to_num(-torch.inf), high.nan_to_num(torch.inf), value.shape, dtype=value.dtype, device=spec.device
    )


class ClipTransform(ObservationTransform):
    """Clips values to [low, high].

    Args:
        in_keys, out_keys: what is clipped on the way out.
        in_keys_inv, out_keys_inv: what is clipped on the way in.
        low, high: the ends; a number alone as `high` stands for [-high, high] where `low` is left out, and the other
            way round.
    """

    pointwise = True
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
            raise ValueError("Expected low, high or both, but neither came.")
        super().__init__([] if in_keys is None else in_keys, out_keys, in_keys_inv, out_keys_inv)
        self.register_buffer("low", torch.as_tensor(-torch.inf if low is None else low))
        self.register_buffer("high", torch.as_tensor(torch.inf if high is None else high))

    def _apply_transform(self, value: Tensor) -> Tensor:
        return value.clamp(self.low.to(value.dtype), self.high.to(value.dtype))

    _inv_apply_transform = _apply_transform

    def _spec(self, spec: TensorSpec) -> TensorSpec:
        low, high = self.low.expand(spec.shape), self.high.expand(spec.shape)
        if isinstance(spec, Bounded):
            low, high = self._apply_transform(spec.low), self._apply_transform(spec.high)
        return Bounded(low, high, spec.shape, dtype=spec.dtype, device=spec.device)
