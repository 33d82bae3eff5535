"""Normalizes entries by their running mean and standard deviation. The statistics are in `vecnorm_stats`."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from copy import copy
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from ...specs import Composite, TensorSpec, Unbounded
from ...validation import is_number, scalar_of
from ..base import EnvBase
from ..entries.keys import Key, key_path
from ..entries.row_masks import RowMasks
from ..entries.step_mdp import as_keys
from .base import Transform
from .compose import Compose
from .elementwise import ObservationNorm, is_floating
from .keyed_module import Keys
from .vecnorm_stats import (
    STAT_NAMES,
    Array,
    StatsTable,
    check_shared,
    joined_statistics,
    lock_for,
    memory_mapped_stats,
    read,
    stat_key,
    write,
)

__all__ = ["VecNorm", "VecNormV2"]


DEFAULT_KEYS: tuple[Key, ...] = ("observation", "reward")


class VecNorm(Transform):
    """Normalizes entries by their running mean and standard deviation: `(value - mean) / max(var, eps) ** 0.5`.

    Statistics are updated with the values of every reset, step and `forward` before these are normalized. Partial
    resets and steps count only the rows that were reset or stepped. (TorchRL counts all rows.) A row is one
    environment, and statistics have the shape of the entry of one environment. They are float64. The result has the
    dtype of the entry, or float32 for integers.

    After `freeze()`, and in evaluation mode (`eval()`), statistics are not updated. (TorchRL updates them in evaluation
    mode too.) Clones share the statistics and `frozen`, but not the mode.

    Args:
        in_keys: the keys of entries to normalize; "observation" and "reward" by default.
        out_keys: the keys of the results; `in_keys` by default.
        shared_td: statistics that processes share, from `VecNorm.build_td_for_shared_vecnorm`. The environments of one
            `EnvCreator` share statistics without it.
        lock: a context manager that is held during updates; by default a lock for statistics from the function above.
        decay: the factor of the weight of earlier rows in each update.
        eps: the minimum of the variance.
        shapes: the shape of each of `in_keys` in one environment; by default as in the specs of the environment or in
            the first data.
        new_api: True makes a `VecNormV2`, with the arguments of that class; None and False have no effect.

    Raises:
        ValueError: `decay` is not in (0, 1], `eps` is negative, or `shapes` and `in_keys` have different lengths.
        TypeError: `shared_td` is no TensorDict.
        KeyError: `shared_td` has no statistics of an entry.

    >>> norm = VecNorm(in_keys=["x"], decay=1.0)
    >>> norm(TensorDict({"x": torch.tensor([[1.0], [3.0]])}, [2]))["x"].squeeze(-1)
    tensor([-1.,  1.])
    >>> norm.freeze()(TensorDict({"x": torch.tensor([[4.0]])}, [1]))["x"].squeeze(-1)
    tensor([2.])
    """

    preserves_done = True
    _takes_records = True

    def __init__(
        self,
        in_keys: Keys = None,
        out_keys: Keys = None,
        shared_td: TensorDictBase | None = None,
        lock: AbstractContextManager[Any] | None = None,
        decay: float = 0.9999,
        eps: float = 1e-4,
        shapes: Sequence[Sequence[int]] | None = None,
        new_api: bool | None = None,
    ):
        super().__init__(list(DEFAULT_KEYS) if in_keys is None else in_keys, out_keys)
        decay = scalar_of(decay)
        if not is_number(decay) or not 0 < decay <= 1:
            raise ValueError(f"Expected a decay above 0 and up to 1 (no decay), got {decay!r}.")
        if not isinstance(eps, int | float) or not eps >= 0:
            raise ValueError(f"Expected eps to be a number of 0 or more, got {eps!r}.")
        if shared_td is not None:
            check_shared(shared_td, self.in_keys)
        if shapes is not None and len(shapes) != len(self.in_keys):
            raise ValueError(f"Expected a shape for each of {self.in_keys}, got {shapes}.")
        self.decay = decay
        self.eps = eps
        self._shared = shared_td
        self.lock = lock if lock is not None else nullcontext() if shared_td is None else lock_for(shared_td)
        known_shapes = None if shapes is None else [torch.Size(shape) for shape in shapes]
        self._table = StatsTable(self.in_keys, decay, self._min_variance(eps), known_shapes)

    if not TYPE_CHECKING:  # type checkers know the signature of `__init__`

        @wraps(__init__, assigned=())
        def __new__(cls, *_: Any, new_api: bool | None = None, **__: Any) -> Any:
            made: Any = cls
            if cls is VecNorm and new_api:
                made = VecNormV2  # a derived class, so its `__init__` gets the arguments
            return super().__new__(made)

    @staticmethod
    def _min_variance(eps: float) -> float:
        return eps

    def _counted_batch(self, batch: torch.Size) -> torch.Size:
        """Returns the dimensions of environments with common statistics."""
        return batch

    # -- values

    def _call(self, next_tensordict: TensorDictBase) -> TensorDictBase:
        return self._normalize(next_tensordict, None)

    def _step(self, tensordict: TensorDictBase, next_tensordict: TensorDictBase) -> TensorDictBase:
        mask = tensordict.get("_step", None)
        return self._normalize(next_tensordict, None if mask is None else RowMasks({(): mask}, [()]))

    def _reset(self, tensordict: TensorDictBase, tensordict_reset: TensorDictBase) -> TensorDictBase:
        return self._normalize(tensordict_reset, self._reset_masks(tensordict) or None, tolerant=True)

    def _normalize(self, td: TensorDictBase, masks: RowMasks | None, tolerant: bool = False) -> TensorDictBase:
        values: list[Tensor | None] = []
        missing: list[Key] = []
        for key, _ in self._key_pairs:
            value: Any = td.get(key, None)
            values.append(value)
            if value is None:
                missing.append(key)
        if missing and not (tolerant or self._allow_missing):
            raise self._missing(missing[0], td)
        if len(missing) == len(values):
            return td
        stats_table, batch = self._table, td.batch_size
        counted = self._counted_batch(batch)
        if stats_table.stats is None:
            self._open_table(values, len(counted))
        n = counted.numel()
        rows = stats_table.rows(values, n)
        self._update(rows, stats_table.mask(values, masks, batch, n) if missing or masks is not None else None)
        for (_, out_key), value in zip(self._key_pairs, stats_table.normalize(rows, values), strict=True):
            if value is not None:
                td.set(out_key, value)
        return td

    def _update(self, rows: Array, mask: Tensor | None) -> None:
        stats = self._table.stats
        assert stats is not None
        is_learning = self.training and not self.frozen
        if self._shared is None:
            if is_learning:
                stats.update(rows, mask)
            return
        with self.lock:
            self._table.load(read(self._shared, self.in_keys))
            if is_learning:
                stats.update(rows, mask)
                write(self._shared, self._table.state())

    @property
    def _current_table(self) -> StatsTable:
        """The table, after loading shared statistics."""
        if self._shared is not None:
            with self.lock:
                state = read(self._shared, self.in_keys)
                if self._table.stats is None and any(state[stat_key(key, "count")].any() for key in self.in_keys):
                    self._table.open([torch.Size(state[stat_key(key, "mean")].shape) for key in self.in_keys], None)
                if self._table.stats is not None:
                    self._table.load(state)
        return self._table

    def _open_table(self, values: Sequence[Tensor | None], batch_dims: int) -> None:
        """Creates the statistics on the device of the first data."""
        shapes = self._table.shapes or [
            self._row_shape(key) if value is None else value.shape[batch_dims:]
            for key, value in zip(self.in_keys, values, strict=True)
        ]
        device = next(value.device for value in values if value is not None)
        self._table.open(shapes, None if device.type == "cpu" else device)

    def _row_shape(self, key: Key) -> torch.Size:
        return self._entry_shapes([key])[key]

    def _entry_shapes(self, keys: Sequence[Key]) -> dict[Key, torch.Size]:
        """Returns the shapes of the statistics of entries of the environment."""
        parent = self._require_parent()
        return _shapes(parent, keys, len(self._counted_batch(parent.batch_size)))

    def _spec(self, spec: TensorSpec) -> TensorSpec:
        dtype = spec.dtype if is_floating(spec) else torch.float32
        return Unbounded(spec.shape, dtype=dtype, device=spec.device)

    def _apply_transform(self, value: Tensor) -> Tensor:
        raise NotImplementedError(
            "VecNorm normalizes TensorDicts only, because it needs their batch size to find rows."
        )

    # -- statistics

    def freeze(self) -> Self:
        """Stops updates of the statistics. Returns the transform."""
        self._table.frozen = True
        return self

    def unfreeze(self) -> Self:
        """Resumes updates of the statistics. Returns the transform."""
        self._table.frozen = False
        return self

    @property
    def frozen(self) -> bool:
        """Whether statistics are not updated."""
        return self._table.frozen

    def frozen_copy(self) -> VecNorm:
        """Returns a frozen copy without a container. It never updates the statistics, but follows those of this one.

        So an environment for tests, with such a copy, normalizes as the environment that is used for training. A copy
        in another process follows only statistics in a `shared_td`.

        Raises:
            RuntimeError: there are no statistics yet.
        """
        self._affine()
        copied = self.clone()
        copied._table = copy(self._table)  # the same statistics, with an own `frozen`
        return copied.freeze()

    def denorm(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Returns a copy with the entries `in_keys`, computed from `out_keys` by the inverse of the normalization.

        Raises:
            RuntimeError: there are no statistics yet.
        """
        loc, scale = self._affine()
        result = tensordict.copy()
        for in_key, out_key in self._key_pairs:
            value = tensordict.get(out_key, None)
            if value is not None:
                mean, deviation = (stat.get(in_key).to(value) for stat in (loc, scale))
                result.set(in_key, value * deviation + mean)
        return result

    standard_normal = True

    @property
    def loc(self) -> TensorDict:
        """The means by `in_keys`, with the shapes of entries of one environment."""
        return self._affine()[0]

    @property
    def scale(self) -> TensorDict:
        """The standard deviations by `in_keys`, which values are divided by."""
        return self._affine()[1]

    def _affine(self) -> tuple[TensorDict, TensorDict]:
        loc, scale = TensorDict({}), TensorDict({})
        for key, mean, deviation in self._current_table.affine():
            loc.set(key, mean)
            scale.set(key, deviation)
        return loc, scale

    def to_observation_norm(self) -> ObservationNorm | Compose:
        """Returns the current normalization as an `ObservationNorm`, or a `Compose` of one per entry."""
        norms = [
            ObservationNorm(mean, scale, in_keys=[in_key], out_keys=[out_key], standard_normal=True)
            for (in_key, out_key), (_, mean, scale) in zip(self._key_pairs, self._current_table.affine(), strict=True)
        ]
        return norms[0] if len(norms) == 1 else Compose(*norms)

    def get_extra_state(self) -> dict[str, Tensor]:
        """Returns "count", "mean" and "m2" of each entry, float64, for `state_dict`; empty before the first data."""
        if self._current_table.stats is None:
            return {}
        return {_flat_name(key): torch.from_numpy(value) for key, value in self._table.state().items()}

    def set_extra_state(self, state: dict[str, Tensor]) -> None:
        """Sets the statistics to those that `get_extra_state` returned."""
        if not state:
            return
        values = {
            stat_key(key, stat_name): state[_flat_name(stat_key(key, stat_name))]
            for key in self.in_keys
            for stat_name in STAT_NAMES
        }
        if self._table.stats is None:
            self._table.open([state[_flat_name(stat_key(key, "mean"))].shape for key in self.in_keys], None)
        self._table.load(values)
        if self._shared is not None:
            with self.lock:
                write(self._shared, self._table.state())

    @staticmethod
    def build_td_for_shared_vecnorm(env: EnvBase, keys: Keys = None) -> TensorDictBase:
        """Returns statistics for the `shared_td` of several transforms, in this process and in others.

        They are memory-mapped files that are deleted with the returned TensorDict. Keep it while they are in use.

        Args:
            env: the environment of the entries.
            keys: the keys of the entries; the default `in_keys` of VecNorm by default.
        """
        return memory_mapped_stats(_shapes(env, list(DEFAULT_KEYS) if keys is None else as_keys(keys), env.batch_dims))

    def share_state_(self, path: Path) -> None:
        """Shares statistics in files with all transforms that were given this path. No effect with a `shared_td`.

        Raises:
            SpaceError: a size in the spec of an entry is dynamic.
        """
        if self._shared is not None:
            return
        known_shapes = self._table.shapes
        if known_shapes is None:
            shapes = self._entry_shapes(self.in_keys)
        else:
            shapes = dict(zip(self.in_keys, known_shapes, strict=True))
        state = {} if self._table.stats is None else self._table.state()
        self._shared = joined_statistics(path, shapes, state)
        if isinstance(self.lock, nullcontext):
            self.lock = lock_for(self._shared)
        self._invalidate()

    def __repr__(self) -> str:
        return f"{type(self).__name__}(keys={self.in_keys}, decay={self.decay}, eps={self.eps}, frozen={self.frozen})"


def _flat_name(key: Key) -> str:
    return key if isinstance(key, str) else ".".join(key)


def _shapes(env: EnvBase, keys: Sequence[Key], batch_dims: int) -> dict[Key, torch.Size]:
    """Returns the shape of each entry after the first `batch_dims` dimensions."""
    specs = (env.full_observation_spec, env.full_reward_spec)
    shapes: dict[Key, torch.Size] = {}
    for key in keys:
        containing_spec = next((spec for spec in specs if key in spec), None)
        if containing_spec is None:
            raise KeyError(
                f"Expected an entry of the environment, {[*env.observation_keys, *env.reward_keys]}, got {key!r}."
            )
        shapes[key] = containing_spec[key].shape[batch_dims:]
    return shapes


_STATS = ("loc", "var", "count")


class VecNormV2(VecNorm):
    """Normalizes entries by their running mean and standard deviation: `(value - mean) / max(std, eps)`.

    It differs from `VecNorm` in three ways. Each environment of a batch has its own statistics, unless
    `reduce_batch_dims`. The minimum `eps` is one of the standard deviation. And without `stateful`, the statistics are
    entries of the TensorDict, so that they are part of stored data and start again with a reset of all environments.

    Args:
        in_keys: the keys of entries to normalize.
        out_keys: the keys of the results; `in_keys` by default.
        lock: a context manager that is held during updates of `shared_data`.
        stateful: whether the transform holds the statistics. Otherwise they are the entries ("_vecnorm_loc", key),
            ("_vecnorm_var", key) and ("_vecnorm_count", key) of the observations, float64 with the shape of the entry.
            (TorchRL stores the mean of squares as "_vecnorm_var".)
        decay: the factor of the weight of earlier values in each update.
        eps: the minimum of the standard deviation.
        shared_data: statistics that several transforms share, from `VecNorm.build_td_for_shared_vecnorm`; only with
            `reduce_batch_dims` or in environments without batch.
        reduce_batch_dims: whether the environments of a batch have common statistics, as in `VecNorm`.
        new_api: has no effect here; `VecNorm(..., new_api=True)` makes this class.

    Raises:
        ValueError: `decay` is not in (0, 1], or `eps` is negative.
        RuntimeError: `reduce_batch_dims` without `stateful`, or use of the statistics without `stateful`.

    >>> norm = VecNormV2(["x"], decay=1.0)
    >>> for value in (1.0, 3.0):
    ...     normed = norm(TensorDict({"x": torch.tensor([[value], [-value]])}, [2]))
    >>> normed["x"].squeeze(-1), norm.loc["x"].squeeze(-1)
    (tensor([ 1., -1.]), tensor([ 2., -2.]))
    """

    prefix = "_vecnorm"

    _takes_records = True

    def __init__(
        self,
        in_keys: Keys,
        out_keys: Keys = None,
        *,
        lock: AbstractContextManager[Any] | None = None,
        stateful: bool = True,
        decay: float = 0.9999,
        eps: float = 1e-4,
        shared_data: TensorDictBase | None = None,
        reduce_batch_dims: bool = False,
        new_api: bool | None = None,
    ):
        if reduce_batch_dims and not stateful:
            raise RuntimeError(
                "Expected stateful=True with reduce_batch_dims=True, got False. Each environment carries statistics."
            )
        super().__init__(in_keys, out_keys, shared_data, lock, decay, eps)
        self.stateful = stateful
        self.reduce_batch_dims = reduce_batch_dims

    if not TYPE_CHECKING:  # type checkers know the signature of `__init__`

        @wraps(__init__, assigned=())
        def __new__(cls, *_: Any, **__: Any) -> Any:
            return super().__new__(cls)

    @staticmethod
    def _min_variance(eps: float) -> float:
        return eps**2

    def _counted_batch(self, batch: torch.Size) -> torch.Size:
        return batch if self.reduce_batch_dims else torch.Size(())

    def frozen_copy(self) -> VecNormV2:
        """Returns a frozen copy without a container, with a copy of the statistics, as TorchRL does.

        Raises:
            RuntimeError: there are no statistics yet, or no `stateful`.
        """
        self._affine()
        options = {"decay": self.decay, "eps": self.eps, "reduce_batch_dims": self.reduce_batch_dims}
        copied = VecNormV2(self.in_keys, self.out_keys, **options)
        copied.set_extra_state(self.get_extra_state())
        return copied.freeze()

    def _affine(self) -> tuple[TensorDict, TensorDict]:
        if not self.stateful:
            raise RuntimeError(
                f"Expected a stateful VecNormV2, got stateful=False. Its statistics are below {self.prefix}_loc, "
                f"{self.prefix}_var and {self.prefix}_count in the TensorDicts of the environment."
            )
        return super()._affine()

    # -- statistics in the TensorDict

    def _call(self, next_tensordict: TensorDictBase) -> TensorDictBase:
        return super()._call(next_tensordict) if self.stateful else self._carry(next_tensordict, next_tensordict)

    def _step(self, tensordict: TensorDictBase, next_tensordict: TensorDictBase) -> TensorDictBase:
        if self.stateful:
            return super()._step(tensordict, next_tensordict)
        return self._carry(tensordict, next_tensordict)

    def _reset(self, tensordict: TensorDictBase, tensordict_reset: TensorDictBase) -> TensorDictBase:
        if self.stateful:
            return super()._reset(tensordict, tensordict_reset)
        return self._tolerant(lambda td: self._carry(tensordict, td), tensordict_reset)

    def _carry(self, previous: TensorDictBase, td: TensorDictBase) -> TensorDictBase:
        """Normalizes the entries of `td` by the statistics in `previous` and their own values, and sets these in `td`.

        Entries that are missing, such as the reward of a reset, keep their statistics.
        """
        for key, out_key in self._key_pairs:
            value = td.get(key, None)
            if value is None and not self._allow_missing:
                raise self._missing(key, td)
            stats = [previous.get(self._stat_key(name, key), None) for name in _STATS]
            if value is None:
                value, out_key = self._zero(key, td), None
                stats = [torch.zeros_like(value, dtype=torch.float64) if stat is None else stat for stat in stats]
            else:
                stats = self._updated(value.detach().double(), stats)
            for name, stat in zip(_STATS, stats, strict=True):
                td.set(self._stat_key(name, key), stat)
            if out_key is not None:
                dtype = value.dtype if value.is_floating_point() else torch.float32
                scale = stats[1].sqrt().clamp_min(self.eps)
                td.set(out_key, ((value - stats[0]) / scale).to(dtype))
        return td

    def _updated(self, value: Tensor, stats: list[Any]) -> list[Tensor]:
        """Returns mean, variance and weight after one more value of each element."""
        if stats[0] is None:
            return [value, torch.zeros_like(value), torch.ones_like(value)]
        mean, var, weight = stats
        if self.frozen or not self.training:
            return stats
        weight = weight * self.decay
        total = weight + 1
        delta = value - mean
        return [mean + delta / total, (var + delta**2 / total) * weight / total, total]

    def _zero(self, key: Key, td: TensorDictBase) -> Tensor:
        shape = self._entry_shapes([key])[key]
        return torch.zeros(shape, device=td.device)

    def _stat_key(self, name: str, key: Key) -> Key:
        return (f"{self.prefix}_{name}", *key_path(key))

    def _stat_specs(self, specs: Composite) -> Composite:
        for key, shape in ({} if self.stateful else self._entry_shapes(self.in_keys)).items():
            for name in _STATS:
                specs[self._stat_key(name, key)] = Unbounded(shape, dtype=torch.float64, device=specs.device)
        return specs

    def transform_observation_spec(self, observation_spec: Composite) -> Composite:
        """Sets the specs of the normalized observations and, without `stateful`, those of the statistics."""
        return self._stat_specs(super().transform_observation_spec(observation_spec))

    def transform_state_spec(self, state_spec: Composite) -> Composite:
        """Adds the specs of the statistics, without `stateful`, which are inputs of the next step."""
        return self._stat_specs(super().transform_state_spec(state_spec))

    def get_extra_state(self) -> dict[str, Tensor]:
        """Returns the state of `VecNorm`; empty without `stateful` or before the first data."""
        return super().get_extra_state() if self.stateful else {}

    def __repr__(self) -> str:
        return f"{type(self).__name__}(keys={self.in_keys}, stateful={self.stateful}, decay={self.decay})"
