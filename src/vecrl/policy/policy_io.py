"""Converts observations to features for a network, and outputs of a network to actions.

Only this module connects spaces and networks. It must not know simulators, episodes or parameters.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from gymnasium.spaces import Box, Discrete
from numpy.typing import DTypeLike
from torch import Tensor
from torch.nn import functional as F

from ..engine.space_layout import AnySpace
from ..errors import SpaceError


class PolicyIO:
    """The conversion between a network and the spaces of one environment.

    Features of a `Box` are its flattened values, features of a `Discrete` a one-hot vector. The action in a `Box` is
    the network's output, clipped to the bounds; the action in a `Discrete` is the index of the largest output.

    Args:
        observation_space, action_space: the spaces of one environment, `Box` or `Discrete`.

    Attributes:
        observation_space, action_space: the arguments.
        obs_length, act_length: the numbers of inputs and outputs of a network.
        bounds: `[2, *shape]`, the lower and upper bounds of a `Box` of actions, on the device of their last use.

    Raises:
        SpaceError: a space is neither a `Box` nor a `Discrete`.

    >>> interface = PolicyIO(Discrete(3), Box(-1, 1, (2,)))
    >>> interface.features(np.array([2, 0])).tolist()
    [[0.0, 0.0, 1.0], [1.0, 0.0, 0.0]]
    >>> interface.actions(torch.tensor([[0.5, 7.0]])).tolist()
    [[0.5, 1.0]]
    """

    def __init__(self, observation_space: AnySpace, action_space: AnySpace):
        self.observation_space, self.action_space = observation_space, action_space
        self.obs_length = _length(observation_space, "observation")
        self.act_length = _length(action_space, "action")
        self._one_hot = observation_space if isinstance(observation_space, Discrete) else None
        self._discrete = action_space if isinstance(action_space, Discrete) else None
        self.bounds = torch.empty(2, 0)
        if isinstance(action_space, Box):
            self._shape = action_space.shape
            dtype = _torch_dtype(action_space.dtype)
            self._dtype = dtype if dtype.is_floating_point else torch.float32
            self.bounds = torch.from_numpy(np.stack([action_space.low, action_space.high])).to(self._dtype)

    @property
    def constants(self) -> dict[str, int]:
        """The constants that a network in the network language may use."""
        return {"obs_length": self.obs_length, "act_length": self.act_length}

    def features(self, obs: np.ndarray | Tensor) -> Tensor:
        """Converts observations `[n, ...]`, an array or a tensor, to features `[n, obs_length]`.

        Float observations keep their dtype; others become float32.
        """
        obs = torch.from_numpy(obs) if isinstance(obs, np.ndarray) else torch.as_tensor(obs)
        if self._one_hot is not None:
            return F.one_hot(obs.long() - int(self._one_hot.start), self.obs_length).float()
        if obs.ndim != 2:
            obs = obs.reshape(len(obs), self.obs_length)
        return obs if obs.is_floating_point() else obs.float()

    def actions(self, outputs: Tensor, bounds: Tensor | None = None) -> Tensor:
        """Converts outputs `[n, act_length]` to actions `[n, ...]` on their device.

        Args:
            outputs: `[n, act_length]`.
            bounds: the attribute `bounds`, as an argument for compiled functions, which may not close over tensors.
        """
        if self._discrete is not None:
            best_actions = outputs.argmax(1)
            return best_actions + int(self._discrete.start) if self._discrete.start else best_actions
        outputs = outputs.reshape(len(outputs), *self._shape).to(self._dtype)
        if bounds is None:
            if self.bounds.device != outputs.device:
                self.bounds = self.bounds.to(outputs.device)
            bounds = self.bounds
        return outputs.clamp(bounds[0], bounds[1])

    @torch.no_grad()
    def check(self, act: Callable[[Tensor], object], device: torch.device | str = "cpu") -> None:
        """Calls a network on zeros, to detect a wrong size before any environment is stepped.

        Args:
            act: the network, from features `[1, obs_length]` to outputs.
            device: the device of the features.

        Raises:
            SpaceError: the network does not take `obs_length` features, or its outputs are not `[1, act_length]`.
        """
        expected = f"Expected a network from {self.obs_length} features to {self.act_length} outputs"
        advice = "Use obs_length and act_length in its description, or correct the sizes of its layers."
        try:
            with torch.random.fork_rng(devices=[]):  # keeps torch's random state if the network draws numbers
                outputs = act(torch.zeros(1, self.obs_length, device=device))
        except Exception as error:  # layers may raise any exception
            actual = f"{type(error).__name__}: {error}".splitlines()[0].rstrip(".")
            raise SpaceError(f"{expected}, but on zeros it raised {actual}. {advice}") from error
        allowed_shapes = {(1, self.act_length)} | ({(1, *self._shape)} if self._discrete is None else set())
        actual = tuple(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__
        if actual not in allowed_shapes:
            raise SpaceError(f"{expected}, that is (1, {self.act_length}), got {actual}. {advice}")


def _length(space: AnySpace, space_name: str) -> int:
    if isinstance(space, Box):
        return math.prod(space.shape)
    if isinstance(space, Discrete):
        return int(space.n)
    raise SpaceError(
        f"Expected the {space_name} space to be a Box or Discrete, got {space}. "
        "Wrap the environment, for example in gymnasium.wrappers.FlattenObservation."
    )


def _torch_dtype(dtype: DTypeLike) -> torch.dtype:
    return torch.from_numpy(np.empty(0, dtype)).dtype
