"""`RowTaskEnv`: environments over arrays of all rows, with the rows in TensorDicts or held."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from ...engine.simulator import BatchStep
from ...engine.space_layout import Tree
from ...specs import Categorical, Composite, TensorSpec
from ..base import EnvBase
from ..entries.keys import FLAGS


class RowTaskEnv(EnvBase):
    """A batch of environments of one task over rows.

    The rows are the state of the simulator: entries of each TensorDict below `_rows_key`. So a step depends on its
    input only, and TensorDicts of any batch size may be stepped. An environment with a batch size may hold its rows
    instead. A subclass defines `_step_rows`, `_store_rows` and `_reset`, and calls `_set_row_specs`.
    """

    returns_new_tensors = True
    _rows_key = "rows"
    _flag_names: Sequence[str] = FLAGS  # those that a step returns

    def _set_row_specs(self, action: TensorSpec, obs: TensorSpec, reward: TensorSpec, rows: Composite | None) -> None:
        """Sets all specs, from those of one row; `rows` are those below `_rows_key`, or None if they are held."""
        batch, device = self.batch_size, self.device
        obs = obs if isinstance(obs, Composite) else Composite(observation=obs, device=device)
        if rows is not None:
            obs[self._rows_key] = rows
            self.state_spec = Composite({self._rows_key: rows.clone()}, device=device).expand(batch)
        self.observation_spec = obs.expand(batch)
        self.action_spec = action.expand(*batch, *action.shape)
        self.reward_spec = reward.expand(*batch, *reward.shape)
        flag = Categorical(2, (*batch, 1), reward.device, torch.bool)
        self.full_done_spec = Composite({name: flag.clone() for name in self._flag_names}, shape=batch, device=device)

    def _step_rows(self, tensordict: TensorDictBase) -> tuple[BatchStep, Any]:
        """Steps the rows of `tensordict` with its action; returns the step and the next rows, with one dimension."""
        raise NotImplementedError(f"Expected {type(self).__name__} to define _step_rows.")

    def _store_rows(self, rows: Any, shape: torch.Size) -> TensorDict | None:
        """Returns rows as entries of the batch size `shape`, or holds them and returns None."""
        raise NotImplementedError(f"Expected {type(self).__name__} to define _store_rows.")

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        step, rows = self._step_rows(tensordict)
        flags = {"terminated": step.terminated, "truncated": step.truncated}
        flags["done"] = torch.logical_or(step.terminated, step.truncated)
        entries = {"reward": step.reward, **{name: flags[name] for name in self._flag_names}}
        return self._to_tensordict(step.next_obs, rows, tensordict.batch_size, entries)

    def _to_tensordict(
        self, obs: Tree, rows: Any, shape: torch.Size, others: Mapping[str, Tensor] | None = None
    ) -> TensorDict:
        """Returns observations, `others` by name, and rows as a TensorDict of the batch size `shape`."""
        entries = _with_batch(obs if isinstance(obs, dict) else {"observation": obs}, shape)
        for name, value in (others or {}).items():
            entries[name] = value.reshape((*shape, *(value.shape[1:] or (1,))))
        rows_td = self._store_rows(rows, shape)
        if rows_td is not None:
            entries[self._rows_key] = rows_td
        return TensorDict(entries, shape, device=self.device)


def _with_batch(obs: dict[str, Any], shape: torch.Size) -> dict[str, Any]:
    return {
        key: _with_batch(value, shape) if isinstance(value, dict) else value.reshape((*shape, *value.shape[1:]))
        for key, value in obs.items()
    }
