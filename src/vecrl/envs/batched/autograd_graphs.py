"""Tensors that require grad, on their way between a `SerialEnv` and its environments.

Rows of the arena cannot keep an autograd graph. Where caller and environments share a thread, tensors with a graph pass
beside the arena too, and take the place of their values again on the other side. Knows rows, paths and tensors.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import torch
from tensordict import TensorDictBase
from torch import Tensor

from .entry_layout import Path, key_of

ByRow = dict[int, dict[Path, Tensor]]


@dataclass(slots=True)
class Graphs:
    """The tensors with a graph of the latest step or reset. Empty dicts where there are none, which is usual.

    Attributes:
        inputs: actions and states of all environments, `[n, ...]`.
        cut: entries of the environments' roots that the caller has detached.
        obs, final_obs: by environment, what it returned, as `Transition` names it.
    """

    inputs: dict[Path, Tensor] = field(default_factory=dict[Path, Tensor])
    cut: list[Path] = field(default_factory=list[Path])
    obs: ByRow = field(default_factory=ByRow)
    final_obs: ByRow = field(default_factory=ByRow)

    def take(self, inputs: dict[Path, Tensor], data: TensorDictBase) -> None:
        """Takes the inputs of a step from `data`, which holds what the caller has made of the latest roots."""
        self.inputs, self.cut, self.final_obs = inputs, [], {}
        for path in {path: None for row in self.obs.values() for path in row}:
            seen = data.get(key_of(path), None)
            if isinstance(seen, Tensor) and not seen.requires_grad:
                self.cut.append(path)

    def keep(self, row: int, tensors: dict[Path, Tensor], final: bool) -> None:
        """Keeps what an environment returned, which may be nothing, in place of what it returned before."""
        rows = self.final_obs if final else self.obs
        if tensors:
            rows[row] = tensors
        elif rows:
            rows.pop(row, None)

    def restore(self, leaves: dict[Path, Tensor], ids: np.ndarray, final: Iterable[int] = ()) -> None:
        """Puts the tensors into `leaves` `[m, ...]` of the environments `ids` `[m]`.

        Args:
            leaves: by path, as they came out of the arena.
            ids: the environments in the order of the rows.
            final: the rows whose final observations are wanted.
        """
        if not (self.obs or self.final_obs):
            return
        rows = [self.obs.get(i, {}) for i in ids.tolist()]
        for row in final:
            rows[row] = self.final_obs.get(int(ids[row]), {})
        for path in {path: None for row in rows for path in row}:
            if (leaf := leaves.get(path)) is not None:
                found = [row[path].to(leaf) if path in row else value for row, value in zip(rows, leaf, strict=True)]
                leaves[path] = torch.stack(found)
