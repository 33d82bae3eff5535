"""What a network sees of an environment and does in it: observations as features, outputs as actions.

The one place where spaces meet networks. It knows no simulators, episodes or parameters.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from gymnasium.spaces import Box, Discrete, Space
from torch import Tensor
from torch.nn import functional as F

from vecrl.errors import SpaceError


class PolicyIO:
    """Between a network and the spaces of one environment.

    A `Box` is seen flat and as float32, a `Discrete` as a one-hot vector. A network does, in a `Box`, what it puts
    out, clipped to the bounds; in a `Discrete`, what has the largest output.

    Args:
        observation_space, action_space: of one environment, `Box` or `Discrete`.

    Attributes:
        observation_space, action_space: as given.
        obs_length, act_length: how many numbers a network takes in and puts out.
        bounds: `[2, *shape]`, the least and the greatest actions of a `Box`, on the device where they were last used.

    Raises:
        SpaceError: another kind of space.

    >>> interface = PolicyIO(Discrete(3), Box(-1, 1, (2,)))
    >>> interface.features(np.array([2, 0])).tolist()
    [[0.0, 0.0, 1.0], [1.0, 0.0, 0.0]]
    >>> interface.actions(torch.tensor([[0.5, 7.0]])).tolist()
    [[0.5, 1.0]]
    """

    def __init__(self, observation_space: Space[Any], action_space: Space[Any]):
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
        """What a network in the network language may refer to."""
        return {"obs_length": self.obs_length, "act_length": self.act_length}

    def features(self, obs: Any) -> Tensor:
        """Observations `[n, ...]`, an array or a tensor, as `[n, obs_length]`: floating, of their own precision."""
        obs = torch.from_numpy(obs) if isinstance(obs, np.ndarray) else torch.as_tensor(obs)
        if self._one_hot is not None:
            return F.one_hot(obs.long() - int(self._one_hot.start), self.obs_length).float()
        if obs.ndim != 2:
            obs = obs.reshape(len(obs), self.obs_length)
        return obs if obs.is_floating_point() else obs.float()

    def actions(self, outputs: Tensor, bounds: Tensor | None = None) -> Tensor:
        """Outputs `[n, act_length]` as a batch of actions `[n, ...]` on their device.

        Args:
            bounds: the attribute, for functions that may not close over tensors.
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
    def check(self, act: Callable[[Tensor], Any], device: torch.device | str = "cpu") -> None:
        """Try a network on zeros, so that one that does not fit is found out before anything is stepped.

        Args:
            act: from features `[1, obs_length]` to outputs.
            device: of the features.

        Raises:
            SpaceError: it does not take so many features, or puts out something else than `[1, act_length]`.
        """
        expected = f"Expected a network from {self.obs_length} features to {self.act_length} outputs"
        advice = "use obs_length and act_length in its description, or mend the sizes of its layers."
        try:
            with torch.random.fork_rng(devices=[]):  # a network that draws numbers leaves those of others alone
                outputs = act(torch.zeros(1, self.obs_length, device=device))
        except Exception as error:  # whatever layers may raise
            actual = f"{type(error).__name__}: {error}".splitlines()[0].rstrip(".")
            raise SpaceError(f"{expected}, but on zeros it raised {actual}; {advice}") from error
        allowed_shapes = {(1, self.act_length)} | ({(1, *self._shape)} if self._discrete is None else set())
        actual = tuple(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__
        if actual not in allowed_shapes:
            raise SpaceError(f"{expected}, that is (1, {self.act_length}), but {actual} came; {advice}")


def _length(space: Space[Any], space_name: str) -> int:
    if isinstance(space, Box):
        return math.prod(space.shape)
    if isinstance(space, Discrete):
        return int(space.n)
    raise SpaceError(
        f"Expected the {space_name} space to be a Box or Discrete, but it is {space}. "
        "Wrap the environment so that it is one, for instance in gymnasium.wrappers.FlattenObservation."
    )


def _torch_dtype(dtype: Any) -> torch.dtype:
    return torch.from_numpy(np.empty(0, dtype)).dtype
