"""Converts observations to features for a network, and outputs of a network to actions.

Only this module connects spaces and networks. It must not know simulators, episodes or parameters.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ..engine.space_layout import AnySpace, Tree
from ..errors import SpaceError
from .flat_spaces import BoxActions, FlatActions, FlatObservations


class PolicyIO:
    """The conversion between a network and the spaces of one environment.

    Features of a `Box` are its flattened values, features of a `Discrete` a one-hot vector. The action in a `Box` is
    the network's output, clipped to the bounds; the action in a `Discrete` is the index of the largest output. For
    other and for nested spaces see `FlatObservations` and `FlatActions` in `vecrl.policy.flat_spaces`.

    Args:
        observation_space, action_space: the spaces of one environment.

    Attributes:
        observation_space, action_space: the arguments.
        obs_length, act_length: the numbers of inputs and outputs of a network.
        observations: the `FlatObservations`.
        flat_actions: the `FlatActions`.

    Raises:
        SpaceError: the observation space has no arrays, or the action space other elements than arrays.

    >>> from gymnasium.spaces import Box, Discrete
    >>> interface = PolicyIO(Discrete(3), Box(-1, 1, (2,)))
    >>> interface.features(torch.tensor([2, 0])).tolist()
    [[0.0, 0.0, 1.0], [1.0, 0.0, 0.0]]
    >>> interface.actions(torch.tensor([[0.5, 7.0]])).tolist()
    [[0.5, 1.0]]
    """

    def __init__(self, observation_space: AnySpace, action_space: AnySpace):
        self.observation_space, self.action_space = observation_space, action_space
        self.observations, self.flat_actions = FlatObservations(observation_space), FlatActions(action_space)
        self.obs_length, self.act_length = self.observations.length, self.flat_actions.length
        self._box = self.flat_actions.root if isinstance(self.flat_actions.root, BoxActions) else None

    @property
    def constants(self) -> dict[str, int]:
        """The constants that a network in the network language may use."""
        return {"obs_length": self.obs_length, "act_length": self.act_length}

    @property
    def spaces(self) -> dict[str, str]:
        """The meaning of features and outputs as text, under the keys "observations" and "actions"."""
        return {"observations": self.observations.description, "actions": self.flat_actions.description}

    @property
    def bounds(self) -> Tensor:
        """The lower and upper bounds `[2, *shape]` of a `Box` of actions, on the device of their last use.

        Empty for other action spaces.
        """
        return torch.empty(2, 0) if self._box is None else self._box.bounds

    def features(self, obs: Tree) -> Tensor:
        """Converts observations, arrays or tensors `[n, ...]` nested as the space is, to features `[n, obs_length]`.

        Float observations keep their dtype; others become float32.
        """
        return self.observations(obs)

    def actions(self, outputs: Tensor, bounds: Tensor | None = None) -> Tree:
        """Converts outputs `[n, act_length]` to actions `[n, ...]` on their device, nested as the space is.

        Args:
            outputs: `[n, act_length]`.
            bounds: the attribute `bounds`, as an argument for compiled functions, which may not close over tensors.
        """
        return self.flat_actions(outputs) if self._box is None else self._box(outputs, bounds)

    def action_arrays(self, outputs: Tensor) -> Tree:
        """Converts outputs `[n, act_length]` to actions `[n, ...]` as NumPy arrays, nested as the space is."""
        return self.flat_actions.arrays(outputs)

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
        allowed_shapes = {(1, self.act_length)} | ({(1, *self._box.shape)} if self._box is not None else set())
        actual = tuple(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__
        if actual not in allowed_shapes:
            raise SpaceError(f"{expected}, that is (1, {self.act_length}), got {actual}. {advice}")
