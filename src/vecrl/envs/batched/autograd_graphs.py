"""Passes tensors that require grad between a `SerialEnv` and its environments.

Rows of the batch buffers hold values without an autograd graph. If caller and environments share a thread, tensors with
a graph are also passed as objects, and replace their values on the other side. This module knows rows, paths and
tensors. It must not know pools or workers.
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
    """The tensors with an autograd graph of the last step or reset. The dicts are usually empty.

    Attributes:
        inputs: actions and states of all environments, `[n, ...]`.
        detached_paths: entries of the environments' roots that the caller has detached.
        obs, final_obs: by environment, the entries that it returned, as in `Transition`.
    """

    inputs: dict[Path, Tensor] = field(default_factory=dict[Path, Tensor])
    detached_paths: list[Path] = field(default_factory=list[Path])
    obs: ByRow = field(default_factory=ByRow)
    final_obs: ByRow = field(default_factory=ByRow)

    def take_inputs(self, inputs: dict[Path, Tensor], data: TensorDictBase) -> None:
        """Stores the inputs of a step, and the paths of the last outputs that are detached in `data` of the caller."""
        self.inputs, self.detached_paths, self.final_obs = inputs, [], {}
        if self.obs:
            for path in {path: None for row in self.obs.values() for path in row}:
                value = data.get(key_of(path), None)
                if isinstance(value, Tensor) and not value.requires_grad:
                    self.detached_paths.append(path)

    def store_outputs(self, start: int, rows: Iterable[int], tensors: ByRow, final: bool) -> None:
        """Replaces the stored tensors of environments by those that they returned.

        Args:
            start: the index of the first environment of the worker.
            rows: the rows of the environments in the worker.
            tensors: the tensors of environments that returned any.
            final: whether they are final observations.
        """
        stored = self.final_obs if final else self.obs
        if stored:
            for row in rows:
                stored.pop(start + row, None)
        stored.update(tensors)

    def restore(self, leaves: dict[Path, Tensor], ids: np.ndarray, final: Iterable[int] = ()) -> None:
        """Replaces values in `leaves` by the tensors with a graph, in place.

        Args:
            leaves: values `[m, ...]` from the batch buffers, by path.
            ids: `[m]`, the environments in the order of the rows.
            final: the rows for which final observations are used.
        """
        if not (self.obs or self.final_obs):
            return
        rows = [self.obs.get(i, {}) for i in ids.tolist()]
        for row in final:
            rows[row] = self.final_obs.get(int(ids[row]), {})
        for path in {path: None for row in rows for path in row}:
            if (leaf := leaves.get(path)) is not None:
                tensors = [row[path].to(leaf) if path in row else value for row, value in zip(rows, leaf, strict=True)]
                leaves[path] = torch.stack(tensors)
