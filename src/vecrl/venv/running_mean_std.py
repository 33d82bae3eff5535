"""`RunningMeanStd`: the running mean and standard deviation of batches, with Tianshou's names.

`vecrl.running_stats` does the computation. This module must not know environments.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..running_stats import RunningStats

_EPS = float(np.finfo(np.float32).eps)


class RunningMeanStd:
    """The mean and variance of all rows so far, separately for each element of a row.

    Batches are merged by Welford's recurrence for whole batches, in float64, so that long runs stay exact.

    Args:
        mean, std: the values that `norm` uses until the first `update`; data do not mix with them.
        clip_max: normalized values are clipped to `[-clip_max, clip_max]`; None disables clipping.
        epsilon: added to the variance before its square root.

    >>> rms = RunningMeanStd()
    >>> rms.update(np.array([[0.0, 10.0], [2.0, 30.0]]))
    >>> rms.mean, rms.var, rms.count
    (array([ 1., 20.]), array([  1., 100.]), 2)
    >>> rms.norm(np.array([3.0, 0.0])).round(3)
    array([ 2., -2.])
    """

    def __init__(
        self,
        mean: float | np.ndarray = 0.0,
        std: float | np.ndarray = 1.0,
        clip_max: float | None = 10.0,
        epsilon: float = _EPS,
    ):
        self.clip_max = clip_max
        self.eps = epsilon
        self._mean = mean
        self._var = std**2
        self._stats: RunningStats | None = None
        self._training = True

    @property
    def mean(self) -> Any:
        """The mean of the rows, `[*shape]` float64."""
        return self._mean if self._stats is None else self._stats.mean

    @property
    def var(self) -> Any:
        """The variance of the rows (divided by the count), `[*shape]` float64."""
        return self._var if self._stats is None else self._stats.var

    @property
    def count(self) -> int:
        """The number of rows."""
        return 0 if self._stats is None else self._stats.count

    def update(self, data_array: np.ndarray) -> None:
        """Updates the statistics with the rows of a batch `[n, *shape]`, n may be 0; has no effect while frozen.

        Raises:
            SpaceError: the rows have another shape than before.
        """
        if not self._training or not len(data_array):
            return
        if self._stats is None:
            self._stats = RunningStats(np.shape(data_array)[1:], epsilon=self.eps, clip=self.clip_max)
        self._stats.update(data_array)

    def norm(self, data_array: Any) -> Any:
        """Returns `(x - mean) / sqrt(var + epsilon)`, clipped: `[..., *shape]`, x's float dtype (ints: float32)."""
        stats = self._stats
        if stats is None:  # the shape is not known yet
            array = np.asarray(data_array)
            scaled = (array - self._mean) / np.sqrt(self._var + self.eps)
            clipped = scaled if self.clip_max is None else np.clip(scaled, -self.clip_max, self.clip_max)
            return clipped.astype(array.dtype if array.dtype.kind == "f" else np.float32)
        return stats.normalize(data_array)

    def train(self, mode: bool = True) -> RunningMeanStd:
        """Makes `update` change the statistics (True) or ignore its data (False); returns this object."""
        self._training = bool(mode)
        return self

    def freeze(self) -> RunningMeanStd:
        """Calls `train(False)`; returns this object."""
        return self.train(False)

    def state_dict(self) -> dict[str, np.ndarray]:
        """Returns `count`, `mean` and `m2` (the sum of squared deviations), float64; all 0 without rows."""
        return (self._stats or RunningStats()).state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores statistics that `state_dict` returned."""
        self._stats = None
        if np.any(state["count"]):
            self._stats = RunningStats(np.shape(state["mean"]), epsilon=self.eps, clip=self.clip_max)
            self._stats.load_state_dict(state)

    def __repr__(self) -> str:
        return f"RunningMeanStd(count={self.count}, clip_max={self.clip_max})"
