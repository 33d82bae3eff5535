"""Wrappers for vector environments of this package, for other wrappers and for EnvPool's; `RunningMeanStd`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..engine.space_layout import Tree
from ..errors import SpaceError
from ..running_stats import RunningStats
from ..validation import parse_number
from .base import BaseVectorEnv, Id, Step
from .result_format import Obs

FLOAT32_EPS = float(np.finfo(np.float32).eps)


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
        epsilon: float = FLOAT32_EPS,
    ):
        self.clip_max = None if clip_max is None else parse_number("clip_max", clip_max, 0)
        self.eps = parse_number("epsilon", epsilon, 0)
        self._mean, deviation = _numbers("mean", mean)[()], _numbers("std", std)
        if not (deviation >= 0).all() or (np.ndim(mean) * deviation.ndim and np.shape(mean) != deviation.shape):
            raise SpaceError(f"Expected std of 0 or more, of the shape of mean, got {std!r:.80}.")
        self._var = deviation**2
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
            SpaceError: the rows have another shape than before, or are no numbers.
        """
        rows = _numbers("data_array", data_array)
        if not rows.ndim:
            raise SpaceError(f"Expected data_array to be rows [n, *shape], got {data_array!r:.80}.")
        if not self._training or not len(rows):
            return
        if self._stats is None:
            self._stats = RunningStats(rows.shape[1:], epsilon=self.eps, clip=self.clip_max)
        self._stats.update(rows)

    def norm(self, data_array: Any) -> Any:
        """Returns `(x - mean) / sqrt(var + epsilon)`, clipped: `[..., *shape]`, x's float dtype (ints: float32)."""
        stats = self._stats
        if stats is None:  # the shape is not known yet
            array = _numbers("data_array", data_array)
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
        """Restores statistics that `state_dict` returned.

        Raises:
            SpaceError: they are no such statistics.
        """
        names = {"count", "mean", "m2"}
        if not isinstance(state, Mapping) or not names <= set(state):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise SpaceError(f"Expected a state with 'count', 'mean' and 'm2', got {state!r:.80}.")
        self._stats = None
        if np.any(state["count"]):
            self._stats = RunningStats(np.shape(state["mean"]), epsilon=self.eps, clip=self.clip_max)
            self._stats.load_state_dict(state)

    def __repr__(self) -> str:
        return f"RunningMeanStd(count={self.count}, clip_max={self.clip_max})"


def _numbers(name: str, values: Any) -> np.ndarray:
    try:
        array = np.asarray(values)
    except ValueError:  # rows of several lengths
        array = np.empty(0, object)
    if array.dtype.kind not in "biuf":
        raise SpaceError(f"Expected {name} to be numbers, got {values!r:.80}.")
    return array


class VectorEnvWrapper(BaseVectorEnv):
    """Forwards everything to `venv`; the base class of wrappers.

    Args:
        venv: a vector environment, another wrapper, or an object with a `reset` that takes ids and a `step` that takes
            actions and ids, such as EnvPool's environments.

    Attributes:
        venv: the wrapped vector environment.
    """

    def __init__(self, venv: Any):
        if not callable(getattr(venv, "step", None)):
            raise TypeError(f"Expected venv to be a vector environment with a method step, got {venv!r:.80}.")
        self.venv = venv

    def reset(self, env_id: Id = None, **kwargs: Any) -> tuple[Obs, np.ndarray]:
        return self.venv.reset(_as_array(env_id), **kwargs)

    def step(self, action: Tree, id: Id = None) -> Step:  # noqa: A002
        return self.venv.step(action, _as_array(id))

    def cancel(self, id: Id = None) -> np.ndarray:  # noqa: A002
        return self.venv.cancel(id)

    def seed(self, seed: int | Sequence[int] | None = None) -> list[list[int | None]]:
        return self.venv.seed(seed)

    def render(self, **kwargs: Any) -> Any:
        return self.venv.render(**kwargs)

    def get_env_attr(self, key: str, id: Id = None) -> list[Any]:  # noqa: A002
        return self.venv.get_env_attr(key, id)

    def set_env_attr(self, key: str, value: object, id: Id = None) -> None:  # noqa: A002
        self.venv.set_env_attr(key, value, id)

    def close(self, *args: object, **kwargs: object) -> None:
        self.venv.close(*args, **kwargs)

    def __len__(self) -> int:
        return len(self.venv)

    @property
    def env_num(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The number of environments."""
        return len(self.venv)

    @property
    def is_closed(self) -> bool:
        """Whether `venv` is closed."""
        venv = self.venv
        return venv.is_closed if hasattr(venv, "is_closed") else venv.closed

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "venv":
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self.venv, name)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.venv!r})"


def _forward(name: str) -> None:
    setattr(VectorEnvWrapper, name, property(lambda self: getattr(self.venv, name), doc=f"The `{name}` of `venv`."))


for _name in ("is_async", "wait_num", "timeout", "waiting_id", "ready_id", "action_space", "observation_space"):
    _forward(_name)
for _name in ("metadata", "spec", "reward_range", "workers"):
    _forward(_name)


class VectorEnvNormObs(VectorEnvWrapper):
    """Normalizes each element of observations by the running mean and standard deviation of all observations so far.

    >>> import gymnasium
    >>> from vecrl.venv import DummyVectorEnv
    >>> train, test = (DummyVectorEnv([lambda: gymnasium.make("CartPole-v1")] * 8) for _ in range(2))
    >>> train = VectorEnvNormObs(train)
    >>> test = VectorEnvNormObs(test, update_obs_rms=False)
    >>> test.set_obs_rms(train.get_obs_rms())
    >>> train.reset(seed=1)[0].shape, test.get_obs_rms().count
    ((8, 4), 8)

    Args:
        venv: see `VectorEnvWrapper`; its observations must be one array of numbers.
        update_obs_rms: whether `reset` and `step` update the statistics with their observations.
    """

    def __init__(self, venv: Any, update_obs_rms: bool = True):
        super().__init__(venv)
        self.update_obs_rms = update_obs_rms
        self.obs_rms = RunningMeanStd()

    def reset(self, env_id: Id = None, **kwargs: Any) -> tuple[Obs, np.ndarray]:
        """Resets the selected environments and returns their normalized observations."""
        obs, info = super().reset(env_id, **kwargs)
        return self._norm(obs), info

    def step(self, action: Tree, id: Id = None) -> Step:  # noqa: A002
        """Steps the selected environments and returns the results, with normalized observations."""
        obs, rew, terminated, truncated, info = super().step(action, id)
        return self._norm(obs), rew, terminated, truncated, info

    def _norm(self, obs: Obs) -> Obs:
        if not isinstance(obs, np.ndarray) or obs.dtype == object:
            raise SpaceError(
                "Expected observations that are one array of numbers, got dicts, different shapes, or no arrays. "
                "Flatten them first (gymnasium.wrappers.FlattenObservation)."
            )
        if self.update_obs_rms:
            self.obs_rms.update(obs)
        return self.obs_rms.norm(obs)

    def get_obs_rms(self) -> RunningMeanStd:
        """Returns the statistics, not a copy of them."""
        return self.obs_rms

    def set_obs_rms(self, obs_rms: RunningMeanStd) -> None:
        """Sets the statistics to use from now on; they are shared, not copied."""
        if not all(callable(getattr(obs_rms, name, None)) for name in ("update", "norm")):
            raise TypeError(f"Expected obs_rms to be a RunningMeanStd, got {obs_rms!r:.80}.")
        self.obs_rms = obs_rms


def _as_array(ids: Id) -> np.ndarray | None:
    """Converts ids to an array, since EnvPool takes only arrays."""
    return ids if ids is None or isinstance(ids, np.ndarray) else np.atleast_1d(ids)
