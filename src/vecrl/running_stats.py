"""Running mean and variance: the one implementation that every normalizer of the library uses.

`RunningMeanStd` (arrays), `RunningNorm` (tensors), `RunningStat` and `VecNorm` (TensorDicts) are thin layers over
`RunningStats`. It keeps a count, a mean and a sum of squared deviations in float64. Batches are added by the parallel
form of Welford's recurrence (Chan, Golub and LeVeque, 1979), so long runs with a large mean and a small variance stay
exact. This module knows nothing of environments, policies or training. It imports torch only for statistics on a torch
device, since processes that step environments use it without torch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from vecrl.errors import SpaceError
from vecrl.validation import parse_device

if TYPE_CHECKING:
    import torch

Array = Any
"""A NumPy array or a torch tensor."""


class RunningStats:
    """Count, mean and variance of the rows so far, for each element of a row.

    The statistics are NumPy arrays, or tensors on one torch device. Batches may be arrays or tensors on any device;
    `normalize` returns the kind, device and floating dtype of its input.

    Args:
        shape: shape of one row, without batch dimensions; `()` for scalars such as rewards.
        epsilon: added to the variance before the square root.
        min_variance: lower bound of the variance that `normalize` uses.
        clip: normalized values are clipped to `[-clip, clip]`, or to `(low, high)`; None for no clipping.
        decay: factor on the weight of the earlier rows at each update; 1 for equal weights.
        device: None for NumPy, else the torch device ("cpu", "cuda:0", …) of the statistics.

    Attributes:
        training: False while frozen; `update` then does nothing.
        empty: True before the first rows; unlike `count`, it needs no synchronisation with a device.

    >>> stats = RunningStats((2,), clip=5.0)
    >>> stats.update(np.array([[0.0, 10.0], [2.0, 30.0]]))
    >>> stats.count, stats.mean.tolist(), stats.var.tolist()
    (2, [1.0, 20.0], [1.0, 100.0])
    >>> stats.normalize(np.array([3.0, 0.0])).round(3).tolist()
    [2.0, -2.0]
    """

    def __init__(
        self,
        shape: int | tuple[int, ...] = (),
        *,
        epsilon: float = 1e-8,
        min_variance: float = 0.0,
        clip: float | tuple[float, float] | None = None,
        decay: float = 1.0,
        device: str | torch.device | None = None,
    ):
        if not 0 < decay <= 1:
            raise ValueError(f"Expected a decay in (0, 1], got {decay}.")
        self.shape: tuple[int, ...] = (shape,) if isinstance(shape, int) else tuple(shape)
        self.epsilon = float(epsilon)
        self.min_variance = float(min_variance)
        self.clip = bounds_of(clip)
        self.decay = float(decay)
        self.device = None if device is None else parse_device(device)
        self.training = True
        self.reset()

    def reset(self) -> None:
        """Resets the statistics to those of no rows."""
        self._set(0, np.zeros(self.shape), np.zeros(self.shape))

    # ------------------------------------------------------------------ statistics

    @property
    def count(self) -> int:
        """The number of rows, weighted by `decay`; if elements were masked, the largest number of any element."""
        return int(self._count if _ndim(self._count) == 0 else self._count.max())

    @property
    def weight(self) -> Array:
        """The weight of the rows: a number, or `[*shape]` if elements were masked."""
        return self._count

    @property
    def mean(self) -> Array:
        """The mean of the rows, `[*shape]` float64; zeros before the first row. Updates do not change the array."""
        return self._mean

    @property
    def var(self) -> Array:
        """The population variance of the rows (divided by the count), `[*shape]` float64; ones before the first row."""
        if self._all_counted:
            return self._m2 / self._count
        return self._m2 / _at_least_one(self._count) + (self._count == 0)

    @property
    def std(self) -> Array:
        """The square root of `var`, `[*shape]` float64."""
        return self.var**0.5

    # ------------------------------------------------------------------ updates

    def update(self, batch: Array, mask: Array | None = None) -> None:
        """Adds the rows of `batch` `[*batch_shape, *shape]` (any number of leading dimensions, also none).

        Args:
            batch: numbers of any dtype. Gradients do not flow into the statistics.
            mask: bool `[*batch_shape]`; rows where it is False are ignored, whatever they contain (also nan). Or
                `[*batch_shape, *shape]`, which ignores single elements; each element then has its own count.

        Raises:
            SpaceError: the shape of `batch` does not end in `shape`, or `mask` does not have the leading shape.
        """
        if not self.training:
            return
        rows = self._as_own_array(batch)
        batch_shape = _batch_shape(tuple(rows.shape), self.shape)
        if mask is not None:
            mask = self._own_mask(mask, batch_shape)
        if len(batch_shape) != 1:
            rows = rows.reshape(math.prod(batch_shape), *self.shape)
        if mask is None and isinstance(self._count, int | float) and self._count >= len(rows) > 0:
            self._merge_rows(rows)
            return
        moments = (_moments_numpy if self.device is None else _moments_torch)(rows, mask)
        if self.decay != 1.0:
            decay_factor = 1.0 - (1.0 - self.decay) * (moments[0] > 0)
            self._count, self._m2 = self._count * decay_factor, self._m2 * decay_factor
        self._merge_moments(*moments)

    def merge(self, other: RunningStats) -> RunningStats:
        """Adds all rows of `other`, as if `update` had been called with them; returns itself.

        Raises:
            SpaceError: the shapes of the rows differ.
            ValueError: these statistics are frozen.
        """
        if other.shape != self.shape:
            raise SpaceError(f"Expected statistics of rows of shape {self.shape}, got {other.shape}.")
        if not self.training:
            raise ValueError("Expected statistics that can change, got frozen ones. Call train() before merge().")
        if other.empty:
            return self
        self._merge_moments(self._scalar(other._count), self._as_own_array(other._mean), self._as_own_array(other._m2))
        return self

    def train(self, mode: bool = True) -> RunningStats:
        """Makes `update` add rows (True) or do nothing (False); returns itself."""
        self.training = bool(mode)
        return self

    def freeze(self) -> RunningStats:
        """Makes `update` do nothing, as `train(False)` does; returns itself."""
        return self.train(False)

    def eval(self) -> RunningStats:
        """Makes `update` do nothing, as `freeze` does; returns itself. This is the name that torch's modules use."""
        return self.train(False)

    # ------------------------------------------------------------------ use

    def normalize(self, x: Array, *, clip: float | tuple[float, float] | None = None) -> Array:
        """Returns `(x - mean) / sqrt(max(var, min_variance) + epsilon)`, clipped.

        The difference is computed in float64, so a large mean loses no digits.

        Args:
            x: `[..., *shape]`; an array or a tensor on any device.
            clip: replaces the constructor's.

        Returns:
            A new array or tensor like `x`: its floating dtype, or float32 if `x` holds integers or bools.
        """
        bounds = self.clip if clip is None else bounds_of(clip)
        if hasattr(x, "detach"):
            return self._normalize_torch(x, bounds)
        x = np.asarray(x)
        _batch_shape(x.shape, self.shape)
        mean, scale = self.affine()
        if self.device is not None:
            mean, scale = mean.numpy(force=True), scale.numpy(force=True)
        out = np.subtract(x, mean, dtype=np.float64)
        out = out * scale
        if bounds is not None:
            out = np.minimum(np.maximum(out, bounds[0]), bounds[1])
        return out.astype(x.dtype if x.dtype.kind == "f" else np.float32, copy=False)

    def _normalize_torch(self, x: torch.Tensor, bounds: tuple[float, float] | None) -> torch.Tensor:
        torch = _torch()
        _batch_shape(tuple(x.shape), self.shape)
        mean, scale = (torch.as_tensor(a, dtype=torch.float64, device=x.device) for a in self.affine())
        out = (x.double() - mean) * scale
        if bounds is not None:
            out = out.clamp(*bounds)
        return out.to(x.dtype if x.is_floating_point() else torch.float32)

    def affine(self) -> tuple[Array, Array]:
        """Returns `mean` and `scale`, `[*shape]` float64; the normalized values are `(x - mean) * scale`."""
        if self._scale is None:
            var = self.var
            if self.min_variance:
                var = np.maximum(var, self.min_variance) if self.device is None else var.clip(self.min_variance, None)
            self._scale = (var + self.epsilon if self.epsilon else var) ** -0.5
        return self._mean, self._scale

    # ------------------------------------------------------------------ states and devices

    def state_dict(self) -> dict[str, Array]:
        """Returns copies of `count`, `mean` and `m2` (the sum of squared deviations), float64, on the same device."""
        state = {"count": self._count, "mean": self._mean, "m2": self._m2}
        return {k: np.array(v, np.float64) if self.device is None else v.clone() for k, v in state.items()}

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        """Restores what `state_dict` returned, for NumPy or any device."""
        for name in ("count", "mean", "m2"):
            shape = tuple(getattr(state[name], "shape", ()))
            if shape != self.shape and not (name == "count" and not shape):
                raise SpaceError(f"Expected {name!r} to have the shape {self.shape}, got {shape}.")
        self._set(state["count"], state["mean"], state["m2"])

    def to(self, device: str | torch.device | None) -> RunningStats:
        """Returns a copy of these statistics on a torch device, or as NumPy arrays if `device` is None."""
        options = {"epsilon": self.epsilon, "min_variance": self.min_variance}
        other = RunningStats(self.shape, **options, clip=self.clip, decay=self.decay, device=device)
        other.load_state_dict(self.state_dict())
        return other.train(self.training)

    def __repr__(self) -> str:
        location = "numpy" if self.device is None else str(self.device)
        return (
            f"RunningStats(shape={self.shape}, count={self.count}, "
            f"device={location}{'' if self.training else ', frozen'})"
        )

    # ------------------------------------------------------------------ internals

    def _merge_moments(self, count: Array, mean: Array, m2: Array) -> None:
        """Adds the moments of other rows. Creates new arrays, so arrays returned earlier do not change."""
        total = self._count + count
        self._all_counted = self._all_counted or (isinstance(count, int | float) and count > 0)
        weight = count / (total if self._all_counted else _at_least_one(total))
        delta = mean - self._mean
        self._mean = self._mean + delta * weight
        self._m2 = self._m2 + m2 + delta * delta * (self._count * weight)
        self._count = total
        self._scale = None
        self.empty = self.device is None and self.empty and not np.any(total)

    def _merge_rows(self, rows: np.ndarray) -> None:
        """Adds no more rows than there are already, by their deviations from the mean so far: half the operations.

        The subtrahend is at most half of the minuend, so no digits are lost.
        """
        decayed_count = self._count * self.decay
        total = decayed_count + len(rows)
        deviations = rows - self._mean
        total_deviation = np.add.reduce(deviations, 0)
        shift = total_deviation / total
        squares = np.add.reduce(deviations * deviations, 0)
        self._m2 = (self._m2 if self.decay == 1.0 else self._m2 * self.decay) + (squares - total_deviation * shift)
        self._mean = self._mean + shift
        self._count = total if self.decay != 1.0 else self._count + len(rows)
        self._scale = None

    def _set(self, count: Array, mean: Array, m2: Array) -> None:
        self._count = self._scalar(count)
        self._all_counted = False  # whether every element is known to have been counted
        self.empty = not bool((self._count > 0).any()) if _ndim(self._count) else not self._count
        self._mean, self._m2 = (_copy(self._as_own_array(a)) for a in (mean, m2))
        self._scale: Array | None = None

    def _scalar(self, count: Array) -> Array:
        """Returns a count: a Python number or an array for NumPy; a tensor on a device, as reading a number waits."""
        array = self._as_own_array(count)
        if self.device is None and array.size and (array == array.flat[0]).all():  # equal for all elements
            return array.flat[0].item()
        return array.copy() if array.ndim else array

    def _as_own_array(self, x: Array) -> Array:
        if self.device is None:
            return np.asarray(x.numpy(force=True) if hasattr(x, "detach") else x, np.float64)
        torch = _torch()
        if isinstance(x, np.ndarray) and not x.flags.writeable:
            x = x.copy()
        return torch.as_tensor(x).detach().to(self.device, torch.float64)

    def _own_mask(self, mask: Array, batch_shape: tuple[int, ...]) -> Array:
        if self.device is None:
            mask = np.asarray(mask.numpy(force=True) if hasattr(mask, "detach") else mask, bool)
        else:
            torch = _torch()
            mask = torch.as_tensor(mask, dtype=torch.bool, device=self.device)
        shape = tuple(mask.shape)
        if shape == batch_shape:
            return mask.reshape(-1)
        if shape == (*batch_shape, *self.shape):
            return mask.reshape(-1, *self.shape)
        raise SpaceError(
            f"Expected a mask of shape {batch_shape} (one value a row) or {(*batch_shape, *self.shape)}, got {shape}."
        )


def bounds_of(clip: float | tuple[float, float] | None) -> tuple[float, float] | None:
    """Returns `(low, high)` of a clip that is one positive number or a pair; None for None.

    >>> bounds_of(5), bounds_of((-1, 2)), bounds_of(None)
    ((-5.0, 5.0), (-1.0, 2.0), None)
    """
    if clip is None:
        return None
    low, high = clip if isinstance(clip, tuple | list) else (-clip, clip)
    if not low < high:
        raise ValueError(f"Expected clip to be a positive number or a pair (low, high) with low < high, got {clip!r}.")
    return float(low), float(high)


def _moments_numpy(rows: np.ndarray, mask: np.ndarray | None) -> tuple[Array, Array, Array]:
    if mask is not None and mask.ndim > 1:
        count = np.add.reduce(mask, 0, np.float64)
        mean = np.add.reduce(np.where(mask, rows, 0.0), 0) / np.maximum(count, 1.0)
        deviations = np.where(mask, rows, mean) - mean
        return count, mean, np.add.reduce(deviations * deviations, 0)
    if mask is not None:
        rows = rows[mask]
    count = len(rows)
    mean = np.add.reduce(rows, 0) / max(count, 1)
    deviations = rows - mean
    return count, mean, np.add.reduce(deviations * deviations, 0)


def _moments_torch(rows: torch.Tensor, mask: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Returns count, mean and squared deviations without reading a tensor on the host.

    So there is no synchronisation with a device, and `torch.compile` can trace it.
    """
    torch = _torch()
    if mask is None:
        count = rows.new_full((), len(rows))
        mean = rows.sum(0) / max(len(rows), 1)
        return count, mean, (rows - mean).square().sum(0)
    row_mask = mask if mask.ndim == rows.ndim else mask.reshape(-1, *[1] * (rows.ndim - 1))
    count = mask.sum(0, dtype=torch.float64)
    mean = torch.where(row_mask, rows, 0.0).sum(0) / count.clamp(min=1)
    return count, mean, torch.where(row_mask, rows - mean, 0.0).square().sum(0)


def _at_least_one(count: Array) -> Array:
    if isinstance(count, int | float):
        return max(count, 1)
    return count.clamp(min=1) if hasattr(count, "clamp") else np.maximum(count, 1)


def _ndim(x: Array) -> int:
    return getattr(x, "ndim", 0)


def _copy(x: Array) -> Array:
    return x.clone() if hasattr(x, "clone") else x.copy()


def _batch_shape(actual: tuple[int, ...], shape: tuple[int, ...]) -> tuple[int, ...]:
    """Returns the leading dimensions of a shape that should end in `shape`."""
    num_batch_dims = len(actual) - len(shape)
    if num_batch_dims < 0 or actual[num_batch_dims:] != shape:
        raise SpaceError(f"Expected an array with a shape that ends in {shape} (one row), got shape {actual}.")
    return actual[:num_batch_dims]


def _torch() -> ModuleType:
    import torch

    return torch
