"""`RunningMeanStd`: the running mean and deviation of whole batches, by Tianshou's names, on `vecrl.running_stats`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..running_stats import RunningStats

_EPS = float(np.finfo(np.float32).eps)


class RunningMeanStd:
    """Mean and variance of all rows seen so far, an element of a row each.

    Batches are joined by Welford's recurrence for whole batches, in float64, so that long runs stay exact.

    Args:
        mean, std: what `norm` goes by until the first `update`, from when on only data count.
        clip_max: normalised values are clipped to `[-clip_max, clip_max]`; None leaves them.
        epsilon: added to the variance before the root is taken.

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
        """Mean of the rows, `[*shape]` float64."""
        return self._mean if self._stats is None else self._stats.mean

    @property
    def var(self) -> Any:
        """Variance of the rows (divided by the count), `[*shape]` float64."""
        return self._var if self._stats is None else self._stats.var

    @property
    def count(self) -> int:
        """How many rows were seen."""
        return 0 if self._stats is None else self._stats.count

    def update(self, data_array: np.ndarray) -> None:
        """Take in the rows of a batch `[n, *shape]`, n may be 0; without effect while frozen.

        Raises:
            SpaceError: rows of another shape than before.
        """
        if not self._training or not len(data_array):
            return
        if self._stats is None:
            self._stats = RunningStats(np.shape(data_array)[1:], epsilon=self.eps, clip=self.clip_max)
        self._stats.update(data_array)

    def norm(self, data_array: Any) -> Any:
        """`(x - mean) / sqrt(var + epsilon)`, clipped; `[..., *shape]` in x's floating dtype (integers: float32)."""
        stats = self._stats
        if stats is None:  # they have no shape yet
            array = np.asarray(data_array)
            scaled = (array - self._mean) / np.sqrt(self._var + self.eps)
            clipped = scaled if self.clip_max is None else np.clip(scaled, -self.clip_max, self.clip_max)
            return clipped.astype(array.dtype if array.dtype.kind == "f" else np.float32)
        return stats.normalize(data_array)

    def train(self, mode: bool = True) -> RunningMeanStd:
        """Let `update` learn (True) or ignore what it is given (False); returns itself."""
        self._training = bool(mode)
        return self

    def freeze(self) -> RunningMeanStd:
        """The same as `train(False)`."""
        return self.train(False)

    def state_dict(self) -> dict[str, np.ndarray]:
        """`count`, `mean` and `m2` (the sum of squared deviations), float64; all 0 before any rows."""
        return (self._stats or RunningStats()).state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` gave."""
        self._stats = None
        if np.any(state["count"]):
            self._stats = RunningStats(np.shape(state["mean"]), epsilon=self.eps, clip=self.clip_max)
            self._stats.load_state_dict(state)

    def __repr__(self) -> str:
        return f"RunningMeanStd(count={self.count}, clip_max={self.clip_max})"
