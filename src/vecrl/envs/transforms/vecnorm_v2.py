"""`VecNormV2`: `VecNorm` with statistics for each environment of a batch, or in the entries of the TensorDict.

It must not know how running statistics are computed: that is in `running_stats`.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from functools import wraps
from typing import TYPE_CHECKING, Any

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from ...specs import Composite, Unbounded
from ..keys import Key, key_path
from .part import Keys
from .vecnorm import VecNorm

__all__ = ["VecNormV2"]

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
