"""Converts observations to features for a network, and outputs of a network to actions.

The leaves of a space lie one after another in a row, in the order of `Layout`. Loops run over leaves, never over rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import numpy as np
import torch
from gymnasium.spaces import Box, Discrete, MultiBinary, MultiDiscrete
from numpy.typing import DTypeLike
from torch import Tensor
from torch.nn import functional as F

from ..engine.space_layout import AnySpace, Layout, Leaf, Tree
from ..errors import OutOfSpecError, SpaceError


class PolicyIO:
    """The conversion between a network and the spaces of one environment.

    Features of a `Box` are its flattened values, features of a `Discrete` a one-hot vector. The action in a `Box` is
    the network's output, clipped to the bounds; the action in a `Discrete` is the index of the largest output. For
    other and for nested spaces see `FlatObservations` and `FlatActions`.

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


UNBOUNDED_RANGE = 3**0.5  # uniform values within ± this have unit variance
IMAGE_NDIM = 2  # a uint8 Box of this many dimensions or more is an image


@dataclass(frozen=True, slots=True)
class ObservationLeaf:
    """The conversion of one leaf of observations.

    Attributes:
        size: how many numbers the leaf has in a row.
        convert: converts a tensor `[n, ...]` of the leaf to numbers `[n, size]`.
        description: the kind and size of the leaf, as text.
    """

    size: int
    convert: Callable[[Tensor], Tensor]
    description: str


class FlatObservations:
    """Converts batches of observations to numbers `[n, length]`, as `gymnasium.spaces.flatten` does for one.

    Values of a `Box` or `MultiBinary` are raveled, a `Discrete` or `MultiDiscrete` is one-hot. Images in a `Dict` or
    `Tuple`, that is a uint8 `Box` of at least two dimensions, are divided by 255. Leaves with elements that are no
    arrays (texts, graphs, sequences) are omitted.

    Args:
        space: the observation space of one environment.

    Attributes:
        length: how many numbers a row has.
        omitted: the names of the leaves that are omitted.
        description: the leaves of a row, as text; spaces with the same description have rows of the same meaning.

    Raises:
        SpaceError: no leaf has arrays as elements.

    >>> from gymnasium.spaces import Dict, Text
    >>> flat = FlatObservations(Dict({"x": Box(-1, 1, (2,)), "n": Discrete(3), "t": Text(9)}))
    >>> flat({"x": np.ones((1, 2)), "n": np.array([2]), "t": ["hello"]}).tolist()
    [[0.0, 0.0, 1.0, 1.0, 1.0]]
    >>> flat.description, flat.omitted
    ("['n']: Discrete(3); ['x']: Box(2,)", ("['t']",))
    """

    def __init__(self, space: AnySpace):
        self._space, self._layout = space, Layout(space)
        kept = [index for index, leaf in enumerate(self._layout.leaves) if leaf.dtype is not None]
        self.omitted = tuple(self._layout.leaves[index].name for index in self._layout.opaque)
        leaves = {index: _observation_leaf(space, self._layout.leaves[index]) for index in kept}
        if not leaves:
            raise SpaceError(
                f"Expected an observation space with arrays, got {space}. Wrap the environment, for example in "
                "gymnasium.wrappers.TransformObservation, so that a policy gets numbers."
            )
        self.length = sum(leaf.size for leaf in leaves.values())
        self.description = _describe(self._layout, {index: leaf.description for index, leaf in leaves.items()})
        self._leaves = [(index, leaf.convert) for index, leaf in leaves.items()]
        self._convert_root = leaves[0].convert if self._layout.flat else None

    def __call__(self, obs: Tree) -> Tensor:
        """Converts a batch of observations, nested as the space is, of arrays or tensors `[n, ...]`.

        Floats keep their dtype, the widest one if there are several; other numbers become float32.

        Raises:
            OutOfSpecError: torch cannot convert observations that are not in the space.
        """
        try:
            if self._convert_root is not None:
                return self._convert_root(_tensor(obs))
            values = self._layout.split(obs)
            parts = [convert(_tensor(values[index])) for index, convert in self._leaves]
            return parts[0] if len(parts) == 1 else torch.cat(parts, 1)
        except RuntimeError as error:
            raise OutOfSpecError(
                f"Expected observations in {self._space}, got others ({error}). Return observations of the space."
            ) from error


class ActionLeaf(Protocol):
    """The conversion of one leaf of actions.

    Attributes:
        size: how many numbers of a row belong to the leaf.
        low, high: arrays `[size]`; uniform numbers between them make all actions of the leaf equally likely.
    """

    size: int
    low: np.ndarray
    high: np.ndarray

    def __call__(self, outputs: Tensor) -> Tensor:
        """Converts numbers `[n, size]` to actions `[n, ...]` of the leaf."""
        ...


class FlatActions:
    """Converts numbers `[n, length]` to batches of actions.

    The action in a `Box` is clipped to its bounds, and rounded if it has integers. A `Discrete` takes n numbers, and
    the action is the index of the largest; so does each element of a `MultiDiscrete`. An element of a `MultiBinary` is
    1 if its number is positive.

    Args:
        space: the action space of one environment.

    Attributes:
        length: how many numbers a row has.
        low, high: arrays `[length]`; uniform numbers between them make all actions equally likely.
        description: the leaves of a row, as text; spaces with the same description have rows of the same meaning.
        root: the only leaf, if the space is neither a `Dict` nor a `Tuple`; else None.

    Raises:
        SpaceError: the space contains one with elements that are no arrays.

    >>> from gymnasium.spaces import Dict
    >>> flat = FlatActions(Dict({"move": Box(-1, 1, (2,)), "jump": Discrete(2)}))
    >>> actions = flat(torch.tensor([[3.0, 4.0, 0.5, -7.0]]))
    >>> {key: value.tolist() for key, value in actions.items()}
    {'jump': [1], 'move': [[0.5, -1.0]]}
    """

    def __init__(self, space: AnySpace):
        self._layout = Layout(space)
        if self._layout.opaque or not self._layout.leaves:
            raise SpaceError(
                f"Expected an action space of Box, Discrete, MultiDiscrete or MultiBinary spaces, got {space}. "
                "Wrap the environment, for example in gymnasium.wrappers.TransformAction."
            )
        self._leaves = [_action_leaf(_subspace(space, leaf)) for leaf in self._layout.leaves]
        self._sizes = [leaf.size for leaf in self._leaves]
        self.length = sum(self._sizes)
        self.low, self.high = (
            np.concatenate([getattr(leaf, name) for leaf in self._leaves]) for name in ("low", "high")
        )
        subspaces = enumerate(_subspace(space, leaf) for leaf in self._layout.leaves)
        self.description = _describe(self._layout, {index: _kind(subspace) for index, subspace in subspaces})
        self.root = self._leaves[0] if self._layout.flat else None

    def __call__(self, outputs: Tensor) -> Tree:
        """Converts numbers `[n, length]` to actions of tensors `[n, ...]` on their device, nested as the space is."""
        if self.root is not None:
            return self.root(outputs)
        parts = outputs.split(self._sizes, 1)
        return self._layout.build([leaf(part) for leaf, part in zip(self._leaves, parts, strict=True)])

    def arrays(self, outputs: Tensor) -> Tree:
        """Converts numbers `[n, length]` to actions of NumPy arrays `[n, ...]`, nested as the space is."""
        actions = self(outputs)
        if self.root is not None:
            return actions.cpu().numpy()
        return self._layout.build([value.cpu().numpy() for value in self._layout.split(actions)])


class BoxActions:
    """Converts numbers to actions in a `Box`.

    Attributes:
        shape: the shape of one action.
        bounds: `[2, *shape]`, the lower and upper bounds, on the device of their last use.
    """

    def __init__(self, space: Box):
        self.shape, self.size = space.shape, math.prod(space.shape)
        self._dtype = _torch_dtype(space.dtype)
        self._rounds = not self._dtype.is_floating_point
        self._float = torch.float32 if self._rounds else self._dtype
        self.bounds = torch.from_numpy(np.stack([space.low, space.high])).to(self._float)
        is_bounded = np.isfinite(space.low) & np.isfinite(space.high)
        self.low = np.where(is_bounded, space.low, -UNBOUNDED_RANGE).ravel()
        self.high = np.where(is_bounded, space.high, UNBOUNDED_RANGE).ravel()

    def __call__(self, outputs: Tensor, bounds: Tensor | None = None) -> Tensor:
        outputs = outputs.reshape(len(outputs), *self.shape).to(self._float)
        if bounds is None:
            if self.bounds.device != outputs.device:
                self.bounds = self.bounds.to(outputs.device)
            bounds = self.bounds
        actions = outputs.clamp(bounds[0], bounds[1])
        return actions.round().to(self._dtype) if self._rounds else actions


class DiscreteActions:
    """Converts scores to actions in a `Discrete`: the index of the largest."""

    def __init__(self, space: Discrete):
        self.size, self._start = int(space.n), int(space.start)
        self.low, self.high = np.zeros(self.size), np.ones(self.size)

    def __call__(self, outputs: Tensor) -> Tensor:
        best_actions = outputs.argmax(1)
        return best_actions + self._start if self._start else best_actions


class MultiDiscreteActions:
    """Converts scores to actions in a `MultiDiscrete`: for each element, the index of the largest of its scores."""

    def __init__(self, space: MultiDiscrete):
        self._shape, self._dtype = space.nvec.shape, _torch_dtype(space.dtype)
        self._counts = space.nvec.ravel().tolist()
        self._start = torch.from_numpy(np.asarray(space.start).reshape(self._shape)).to(self._dtype)
        self.size = sum(self._counts)
        self.low, self.high = np.zeros(self.size), np.ones(self.size)

    def __call__(self, outputs: Tensor) -> Tensor:
        columns = [scores.argmax(1) for scores in outputs.split(self._counts, 1)]
        actions = torch.stack(columns, 1).reshape(len(outputs), *self._shape).to(self._dtype)
        return actions + self._start.to(actions.device)


class MultiBinaryActions:
    """Converts numbers to actions in a `MultiBinary`: 1 for positive numbers."""

    def __init__(self, space: MultiBinary):
        self._shape, self._dtype = tuple(space.shape), _torch_dtype(space.dtype)
        self.size = math.prod(self._shape)
        self.low, self.high = -np.ones(self.size), np.ones(self.size)

    def __call__(self, outputs: Tensor) -> Tensor:
        return (outputs > 0).to(self._dtype).reshape(len(outputs), *self._shape)


_ACTION_LEAVES: dict[type[AnySpace], Callable[..., ActionLeaf]] = {
    Box: BoxActions,
    Discrete: DiscreteActions,
    MultiDiscrete: MultiDiscreteActions,
    MultiBinary: MultiBinaryActions,
}


def _action_leaf(space: AnySpace) -> ActionLeaf:
    return next(make(space) for kind, make in _ACTION_LEAVES.items() if isinstance(space, kind))


def _observation_leaf(root: AnySpace, leaf: Leaf) -> ObservationLeaf:
    space = _subspace(root, leaf)
    if isinstance(space, Discrete):
        return ObservationLeaf(
            int(space.n), partial(_one_hot, start=int(space.start), length=int(space.n)), _kind(space)
        )
    if isinstance(space, MultiDiscrete):
        counts, starts = torch.from_numpy(space.nvec.ravel()), torch.from_numpy(np.asarray(space.start).ravel())
        return ObservationLeaf(int(counts.sum()), partial(_several_one_hot, starts=starts, counts=counts), _kind(space))
    length, is_nested = math.prod(leaf.shape), leaf.path != ()
    if is_nested and leaf.dtype == np.uint8 and len(leaf.shape) >= IMAGE_NDIM:
        return ObservationLeaf(length, partial(_scaled, length=length), f"{_kind(space)} / 255")
    return ObservationLeaf(length, partial(_ravel, length=length), _kind(space))


def _ravel(values: Tensor, length: int) -> Tensor:
    if values.ndim != 2:
        values = values.reshape(len(values), length)
    return values if values.is_floating_point() else values.float()


def _scaled(values: Tensor, length: int) -> Tensor:
    return _ravel(values, length) / 255


def _one_hot(values: Tensor, start: int, length: int) -> Tensor:
    return F.one_hot(values.long() - start, length).float()


def _several_one_hot(values: Tensor, starts: Tensor, counts: Tensor) -> Tensor:
    starts, counts = starts.to(values.device), counts.to(values.device)
    indices = values.reshape(len(values), len(counts)).long() - starts
    is_wrong = ((indices < 0) | (indices >= counts)).any(1)
    if is_wrong.any():  # the columns of such an index may be those of another element
        raise RuntimeError(f"for example {values[is_wrong][0].tolist()}")
    positions = indices + counts.cumsum(0) - counts
    return torch.zeros(len(values), int(counts.sum()), device=values.device).scatter_(1, positions, 1.0)


def _subspace(space: AnySpace, leaf: Leaf) -> AnySpace:
    for key in leaf.path:
        space = space[key]  # pyright: ignore[reportIndexIssue] -- a Dict or Tuple
    return space


def _kind(space: AnySpace) -> str:
    """Returns the kind and size of a leaf, without bounds and float dtypes, which do not change the meaning of rows."""
    if isinstance(space, Discrete):
        return f"Discrete({int(space.n)})"
    if isinstance(space, MultiDiscrete):
        return f"MultiDiscrete({space.nvec.tolist()})"
    return f"{type(space).__name__}{tuple(space.shape or ())}"


def _describe(layout: Layout, descriptions: dict[int, str]) -> str:
    """Returns the descriptions of leaves, each with its name, as one text."""
    if layout.flat:
        return descriptions[0]
    return "; ".join(f"{layout.leaves[index].name}: {text}" for index, text in descriptions.items())


def _tensor(values: np.ndarray | Tensor) -> Tensor:
    return torch.from_numpy(values) if isinstance(values, np.ndarray) else torch.as_tensor(values)


def _torch_dtype(dtype: DTypeLike) -> torch.dtype:
    return torch.from_numpy(np.empty(0, dtype)).dtype
