"""Contextual bandits from data sets over TensorDicts, under TorchRL's name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor

from ...simulators.data_sets import available_names
from ...simulators.openml import DataSetBandit
from ...simulators.row_task import RowState
from ...specs import Categorical, Composite, Unbounded
from ..env_specs import Device
from .gym.backends import AvailableEnvs
from .native import NativeEnv

_TORCHRL_NAMES = ("adult_num", "adult_onehot", "mushroom_num", "mushroom_onehot", "covertype", "shuttle", "magic")


class OpenMLEnv(NativeEnv):
    """A contextual bandit from a data set: each episode is one step, with a reward of 1 for the class of the row.

    Entries: "observation" `[*batch, features]` float32, "y" `[*batch]` int64 (the class), "action" `[*batch]` int64,
    "reward" `[*batch, 1]` float32, "done" and "terminated" `[*batch, 1]`. The observation and the class of "next" are
    those of the step.

    Args:
        dataset_name: a name of `available_envs`, the id of a data set in the cache of the OpenML client, or a path that
            ends with ".arff". Nothing is downloaded.
        device: the device of all tensors.
        batch_size: the batch size; None for a single environment.
        target, encoding: see `vecrl.simulators.data_sets.load`.

    Attributes:
        available_envs: class attribute, the names that TorchRL has, the bundled data sets of scikit-learn, and those in
            the cache of the OpenML client.

    Raises:
        VersionError: scikit-learn or the OpenML client is missing.
        FileNotFoundError: the data set is not in the cache; the message says which call puts it there.

    >>> OpenMLEnv("iris", batch_size=[2, 3]).rollout(1)["next", "reward"].shape  # doctest: +SKIP
    torch.Size([2, 3, 1, 1])
    """

    available_envs: Any = AvailableEnvs(lambda: dict.fromkeys((*_TORCHRL_NAMES, *available_names())))
    simulator: Any  # a DataSetBandit
    _flag_names = "done", "terminated"  # an episode is one step, so none is truncated

    def __init__(
        self,
        dataset_name: str,
        device: Device = "cpu",
        batch_size: Sequence[int] | None = None,
        **kwargs: Any,
    ):
        super().__init__(dataset_name, batch_size=torch.Size(batch_size or ()), device=device, **kwargs)

    def _make_simulator(self) -> DataSetBandit:
        device = self.device or torch.device("cpu")
        return DataSetBandit(self.env_name, self.batch_size.numel(), device=device, **self._kwargs)

    def _set_specs(self) -> None:
        self._one_hot, device = False, self.simulator.device
        obs_spec = Unbounded((self.simulator.contexts.shape[-1],), device=device)
        label_spec = Unbounded((), dtype=torch.int64, device=device)
        action_spec = Categorical(len(self.simulator.classes), (), dtype=torch.int64, device=device)
        entries = Composite(observation=obs_spec, y=label_spec)
        self._set_row_specs(action_spec, entries, Unbounded((1,), device=device), None)

    def _to_tensordict(self, obs: Tensor, rows: RowState, shape: torch.Size, others: Any = None) -> TensorDict:
        return super()._to_tensordict(
            {"observation": obs, "y": self.simulator.labels_of(rows.state)}, rows, shape, others
        )

    def _rollout_at_once(self, steps: int, actions: Tensor | None, break_when_any_done: bool) -> None:
        return None  # its trajectories have no classes

    def __repr__(self) -> str:
        return f"OpenMLEnv({self.env_name!r}, batch_size={tuple(self.batch_size)}, device={self.device})"
