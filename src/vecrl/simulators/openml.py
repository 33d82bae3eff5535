"""Contextual bandits from data sets with classes: a context is a row, an action is a class, and an episode is one step.

The reward is 1 for the class of the row, else 0. The rows of a batch sample contexts as the native tasks sample start
states, so that a context depends only on the seed and the number of the episode. This module knows no dialects.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import torch
from gymnasium.spaces import Box, Discrete
from torch import Tensor

from ..engine.simulator import ResetOptions
from .data_sets import available_names, load
from .row_task import RowTaskSimulator, make_row_batch


class DataSetBandit(RowTaskSimulator):
    """n contextual bandits over one data set; a `vecrl.engine.simulator.BatchSimulator`.

    Observations are `[n, features]` float32, actions `[n]` integers, rewards `[n]` float32. Every step terminates, and
    its "next" observation is the context of the step.

    Args:
        name: of the data set, see `vecrl.simulators.data_sets.load`.
        num_envs: n, at least 1.
        device: a torch device or its name.
        target, encoding: see `vecrl.simulators.data_sets.load`.

    Attributes:
        contexts: `[rows, features]` float32, the data set.
        labels: `[rows]` int64, the class of each row.
        classes: the names of the classes.
    """

    id = "openml"
    episode_steps = -1  # the task itself ends an episode
    fps = None
    num_draws = 1

    def __init__(
        self,
        name: str,
        num_envs: int,
        *,
        device: str | torch.device = "cpu",
        target: str | None = None,
        encoding: str | None = None,
    ):
        data = load(name, target=target, encoding=encoding)
        self.observation_space = Box(data.features.min(0), data.features.max(0), dtype=np.float32)
        self.action_space = Discrete(len(data.classes))
        super().__init__(num_envs, device=device)
        self.contexts = torch.from_numpy(data.features).to(self.device)
        self.labels = torch.from_numpy(data.labels).to(self.device)
        self.classes = data.classes

    # The state is `[1, n]`, the index of the context

    def initial(self, uniforms: Tensor, options: ResetOptions) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Samples the indices of contexts, `[1, n]`."""
        index = (uniforms * len(self.labels)).floor()
        return index.clamp_(max=len(self.labels) - 1)  # a product may be rounded up

    def advance(self, state: Tensor, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Computes rewards; the context does not change."""
        reward = (self.labels_of(state) == action).to(self.dtype)
        return state, reward, torch.ones_like(reward, dtype=torch.bool)

    def observe(self, state: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Returns the contexts, `[features, n]`."""
        return self.contexts[state[0].long()].t()

    def labels_of(self, state: Tensor) -> Tensor:
        """Returns the classes `[n]` of the contexts of `state` `[1, n]`."""
        return self.labels[state[0].long()]


make_batch = partial(make_row_batch, DataSetBandit)


def names() -> list[str]:
    """Returns the names of the bundled data sets and of those in the cache of the OpenML client."""
    return available_names()
