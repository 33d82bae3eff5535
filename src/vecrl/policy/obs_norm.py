"""Observation normalization for populations: `RunningNorm` for tensors, `RunningStat` for arrays, and their layer.

Both wrap `vecrl.running_stats.RunningStats`, which keeps the numbers, with the names and defaults that neuroevolution
code uses, and convert to a module for deployment.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor, nn

from ..running_stats import Array, RunningStats, bounds_of
from ..validation import normalize_device
from .batched_kernels import BatchedForward, Parameters, register_batched

MIN_VARIANCE = 1e-2


class ObsNormLayer(nn.Module):
    """A frozen normalization `(x - mean) / stdev`, clipped: the first layer of a deployed policy.

    Args:
        mean: `[*shape]`.
        stdev: `[*shape]`, positive.
        low: the lower bound of results; None means no bound.
        high: the upper bound of results; None means no bound.

    The computation is in float64; the result has the dtype of `x` `[..., *shape]`.

    >>> ObsNormLayer(torch.tensor([1.0]), torch.tensor([2.0]), high=3.0)(torch.tensor([[2.0], [9.0]])).tolist()
    [[0.5], [3.0]]
    """

    mean: Tensor
    stdev: Tensor

    def __init__(self, mean: Tensor, stdev: Tensor, low: float | None = None, high: float | None = None):
        super().__init__()
        self.low, self.high = low, high
        self.register_buffer("mean", torch.as_tensor(mean, dtype=torch.float64).clone())
        self.register_buffer("stdev", torch.as_tensor(stdev, dtype=torch.float64).clone())

    def forward(self, x: Tensor) -> Tensor:
        y = (x.to(self.mean.dtype) - self.mean) / self.stdev
        if self.low is not None or self.high is not None:
            y = y.clamp(self.low, self.high)
        return y.to(x.dtype)

    def extra_repr(self) -> str:
        return f"shape={tuple(self.mean.shape)}, low={self.low}, high={self.high}"


@register_batched(ObsNormLayer)
def _obs_norm(module: ObsNormLayer, parameters: Parameters) -> BatchedForward:
    return module.forward


class RunningBase:
    """The base class of `RunningNorm` and `RunningStat`: the statistics under the names of neuroevolution code."""

    stats: RunningStats

    @property
    def count(self) -> int:
        """The number of observations."""
        return self.stats.count

    @property
    def sum(self) -> Array:
        """The sum of the observations, float64."""
        return self.stats.mean * self.count

    @property
    def sum_of_squares(self) -> Array:
        """The sum of the squared observations, float64."""
        return self.stats.mean**2 * self.count + self.stats.var * self.count

    def reset(self) -> None:
        """Resets the statistics to no observations."""
        self.stats.reset()

    def state_dict(self) -> dict[str, Array]:
        """Returns copies of the count, the mean and the sum of squared deviations."""
        return self.stats.state_dict()

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        """Restores statistics that `state_dict` returned, from any device."""
        self.stats.load_state_dict(state)

    def to_layer(self) -> ObsNormLayer:
        """Returns a module for deployment with the current statistics.

        Raises:
            ValueError: there are no observations yet.
        """
        _require_data(self.stats)
        stdev = (self.stats.var.clip(self.stats.min_variance, None)) ** 0.5
        low, high = self.stats.clip or (None, None)
        return ObsNormLayer(torch.as_tensor(self.stats.mean), torch.as_tensor(stdev), low, high)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.stats!r})"


class RunningNorm(RunningBase):
    """A running normalization of observation tensors, on any device.

    Args:
        shape: the shape of one observation.
        dtype: the dtype that `normalize` returns.
        device: the device of the statistics.
        min_variance: the lower bound of variances.
        clip: normalized observations are clipped to `[-clip, clip]`, or to `(low, high)`.

    Attributes:
        stats: the `RunningStats`; `stats.freeze()` and `stats.train()` turn updates off and on.

    >>> norm = RunningNorm(shape=2, clip=5.0)
    >>> norm.update_and_normalize(torch.tensor([[0.0, 10.0], [2.0, 30.0]])).tolist()
    [[-1.0, -1.0], [1.0, 1.0]]
    >>> norm.count, norm.to_layer()(torch.tensor([3.0, 20.0])).tolist()
    (2, [2.0, 0.0])
    """

    def __init__(
        self,
        *,
        shape: int | tuple[int, ...],
        dtype: torch.dtype | str = torch.float32,
        device: torch.device | str | None = None,
        min_variance: float = MIN_VARIANCE,
        clip: float | tuple[float, float] | None = None,
    ):
        self.dtype: torch.dtype = getattr(torch, dtype) if isinstance(dtype, str) else dtype
        stats_device = "cpu" if device is None else device
        self.stats = RunningStats(shape, epsilon=0.0, min_variance=min_variance, clip=clip, device=stats_device)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one observation."""
        return self.stats.shape

    @property
    def device(self) -> torch.device:
        """The device of the statistics."""
        return self.stats.mean.device

    @property
    def min_variance(self) -> float:
        """The lower bound of variances."""
        return self.stats.min_variance

    @property
    def low(self) -> float | None:
        """The lower bound of normalized observations, or None."""
        return self.stats.clip[0] if self.stats.clip else None

    @property
    def high(self) -> float | None:
        """The upper bound of normalized observations, or None."""
        return self.stats.clip[1] if self.stats.clip else None

    @property
    def mean(self) -> Tensor:
        """The mean of the observations, `[*shape]` of `dtype`."""
        return self.stats.mean.to(self.dtype)

    @property
    def stdev(self) -> Tensor:
        """The standard deviation, at least the square root of `min_variance`, `[*shape]` of `dtype`."""
        return self.stats.var.clip(self.min_variance).sqrt().to(self.dtype)

    def update(self, x: Array | RunningNorm | RunningStats, mask: Array | None = None) -> None:
        """Updates the statistics with observations, or merges those of another instance.

        Args:
            x: `[*lead, *shape]`, a tensor of any device or an array; or another `RunningNorm` or `RunningStats`.
            mask: bool `[*lead]`; rows where it is False are ignored.

        Raises:
            SpaceError: a shape does not fit.
            ValueError: a mask is given with another instance.
        """
        if not isinstance(x, RunningBase | RunningStats):
            self.stats.update(x, mask)
            return
        if mask is not None:
            raise ValueError("Expected no mask with another instance, which is merged as a whole. Omit the mask.")
        self.stats.merge(x.stats if isinstance(x, RunningBase) else x)

    def normalize(self, x: Array) -> Array:
        """Returns `(x - mean) / stdev`, clipped: a tensor of `dtype` on the device of `x`, or an array for an array.

        Raises:
            ValueError: there are no observations yet.
            SpaceError: the shape of `x` does not end in `shape`.
        """
        _require_data(self.stats)
        y = self.stats.normalize(torch.as_tensor(x)).to(self.dtype)
        return y.numpy() if isinstance(x, np.ndarray) else y

    def update_and_normalize(self, x: Array, mask: Array | None = None) -> Array:
        """Calls `update(x, mask)`, then returns `normalize(x)` of all rows."""
        self.update(x, mask)
        return self.normalize(x)

    def to(self, device: torch.device | str) -> RunningNorm:
        """Returns a copy on `device`, or this object if it is there already."""
        if torch.device(normalize_device(device)) == self.device:
            return self
        copied = RunningNorm(shape=self.shape, dtype=self.dtype)
        copied.stats = self.stats.to(device)
        return copied


class RunningStat(RunningBase):
    """A running normalization of single observations or batches, as NumPy arrays of float32.

    The first observation sets the shape of an observation.

    Args:
        min_variance: the lower bound of variances.
        clip: normalized observations are clipped to `[-clip, clip]`, or to `(low, high)`.

    Attributes:
        stats: the `RunningStats`, of shape `()` until the first observation.

    >>> stat = RunningStat()
    >>> stat.update([0.0, 10.0]), stat.update(np.array([2.0, 30.0]))
    (None, None)
    >>> stat.count, stat.normalize([3.0, 20.0]).tolist()
    (2, [2.0, 0.0])
    """

    def __init__(self, *, min_variance: float = MIN_VARIANCE, clip: float | tuple[float, float] | None = None):
        bounds_of(clip)
        self._options = {"epsilon": 0.0, "min_variance": min_variance, "clip": clip}
        self.reset()

    def reset(self) -> None:
        """Resets the statistics to no observations and no shape."""
        self.stats = RunningStats((), **self._options)

    @property
    def mean(self) -> np.ndarray:
        """The mean of the observations, float32."""
        return np.asarray(self.stats.mean, np.float32)

    @property
    def stdev(self) -> np.ndarray:
        """The standard deviation, at least the square root of `min_variance`, float32."""
        return np.asarray(np.maximum(self.stats.var, self.stats.min_variance) ** 0.5, np.float32)

    def update(self, x: Array | RunningStat | RunningStats, mask: Array | None = None) -> None:
        """Updates the statistics with one observation or a batch, or merges those of another instance.

        Args:
            x: `[*shape]`, or `[*lead, *shape]` if the shape is known; or another `RunningStat` or `RunningStats`.
                As long as the shape is not known, `x` is one observation without a `mask`, and a batch with one.
            mask: bool `[*lead]`; rows where it is False are ignored.

        Raises:
            SpaceError: a shape does not fit.
        """
        if isinstance(x, RunningBase | RunningStats):
            other = x.stats if isinstance(x, RunningBase) else x
            if not other.count:
                return
            self._init_stats(other.shape)
            self.stats.merge(other)
            return
        x = np.asarray(x)
        self._init_stats(x.shape if mask is None else x.shape[np.ndim(mask) :])
        self.stats.update(x, mask)

    def normalize(self, x: Array) -> np.ndarray:
        """Returns `(x - mean) / stdev`, clipped, float32.

        Raises:
            ValueError: there are no observations yet.
            SpaceError: the shape of `x` does not end in that of an observation.
        """
        _require_data(self.stats)
        return self.stats.normalize(np.asarray(x)).astype(np.float32, copy=False)

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        """Restores statistics that `state_dict` returned."""
        self.stats = RunningStats(tuple(state["mean"].shape), **self._options)
        self.stats.load_state_dict(state)

    def _init_stats(self, shape: tuple[int, ...]) -> None:
        if not self.count and self.stats.training:
            self.stats = RunningStats(shape, **self._options)


def _require_data(stats: RunningStats) -> None:
    if stats.empty:
        raise ValueError("Expected at least one observation before normalizing, got none: call update first.")
