"""`Search`: the interface of a search over flat parameters, and what its algorithms have in common.

`ask` returns a population, and `tell` takes the fitness of each member. `vecrl.policy.population_search` has the
default algorithm, `vecrl.policy.search_algorithms` has others.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from ..errors import PendingError, SpaceError


class Search(ABC):
    """A search for the parameter vector with the greatest fitness: a Gaussian distribution that moves and changes.

    A subclass updates the distribution, and may draw the noise and make the members from it in another way.

    Args:
        center: `[L]`, the initial center, of a float dtype; it is copied. The search runs on its device.
        popsize: the number of members per generation, at least 2.
        stdev: the initial standard deviation of the noise.
        seed: the seed of the noise; None takes entropy from the operating system.

    Attributes:
        center: `[L]`, the current estimate.
        stdev: `[L]`, the standard deviation of the noise of each parameter.
        generation: the number of completed generations.

    Raises:
        ValueError: an argument is out of its range.
    """

    state_names: ClassVar[tuple[str, ...]] = ("center", "stdev")
    """The attributes in the state: tensors, of the shapes that they have when the search is made."""
    center: Tensor
    stdev: Tensor

    def __init__(self, center: Tensor, popsize: int, *, stdev: float = 0.1, seed: int | None = None):
        if center.ndim != 1 or not center.is_floating_point() or not len(center):
            raise ValueError(f"Expected a center [L] of floats, got {center.dtype} of shape {tuple(center.shape)}.")
        if popsize < 2:
            raise ValueError(f"Expected a popsize of 2 or more, got {popsize}.")
        if not 0 < stdev < math.inf:
            raise ValueError(f"Expected a stdev above 0 and finite, got {stdev!r}.")
        self.center = center.detach().clone()
        self.stdev = torch.full_like(self.center, stdev)
        self.generation = 0
        self.popsize = popsize
        self._noise: Tensor | None = None
        self._generator = torch.Generator(self.center.device)
        _ = self._generator.seed() if seed is None else self._generator.manual_seed(seed)

    def ask(self) -> Tensor:
        """Returns the members to evaluate next, `[popsize, L]`; the same ones until `tell`."""
        if self._noise is None:
            self._noise = self._draw()
        return self._members(self._noise)

    @torch.no_grad()
    def tell(self, fitness: Tensor) -> None:
        """Updates the search with the fitness of the members of the last `ask`.

        Args:
            fitness: `[popsize]`, greater is better; NaN is the worst.

        Raises:
            PendingError: `ask` was not called before.
            SpaceError: `fitness` has another shape.
        """
        noise = self._noise
        if noise is None:
            raise PendingError("Expected a population that waits for its fitness, got none. Call ask first.")
        fitness = torch.as_tensor(fitness, device=self.center.device)
        if fitness.shape != (self.popsize,):
            raise SpaceError(f"Expected {self.popsize} values, one per member, got shape {tuple(fitness.shape)}.")
        self._update(noise, fitness)
        self._noise = None
        self.generation += 1

    def _normal(self, rows: int) -> Tensor:
        """Returns samples of the standard normal distribution, `[rows, L]`."""
        options = {"dtype": self.center.dtype, "device": self.center.device}
        return torch.randn(rows, len(self.center), generator=self._generator, **options)

    def _draw(self) -> Tensor:
        """Returns the noise of the next population: by default a sample for each member."""
        return self._normal(self.popsize)

    def _members(self, noise: Tensor) -> Tensor:
        """Returns the population `[popsize, L]`, a new tensor; by default with a deviation for each parameter."""
        return self.center + self.stdev * noise

    @abstractmethod
    def _update(self, noise: Tensor, fitness: Tensor) -> None:
        """Changes the distribution.

        Args:
            noise: what `_draw` returned.
            fitness: `[popsize]`; it may have values that are not finite.
        """

    def state_dict(self) -> dict[str, Any]:
        """Returns what later calls depend on besides the arguments of the constructor.

        It has tensors, numbers and texts, which `torch.load(weights_only=True)` can read.

        Raises:
            PendingError: a population waits for its fitness.
        """
        if self._noise is not None:
            raise PendingError("Expected no population that waits for its fitness, got one. Call tell first.")
        return {
            **{name.strip("_"): getattr(self, name).clone() for name in self.state_names},
            "generator": self._generator.get_state(),
            "generation": self.generation,
            "popsize": self.popsize,
            "algorithm": type(self).__name__,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores a state that `state_dict` of a search of the same class, with the same arguments, returned.

        Raises:
            ValueError: the class, the population size or the number of parameters differs.
        """
        own = type(self).__name__
        if state.get("algorithm", "PopulationSearch") != own:  # of which earlier versions did not save the name
            found = state.get("algorithm", "PopulationSearch")
            raise ValueError(f"Expected a state of {own}, got one of {found!r:.80}. Make a search of that class.")
        state_sizes, own_sizes = (len(state["center"]), state["popsize"]), (len(self.center), self.popsize)
        if state_sizes != own_sizes:
            raise ValueError(
                f"Expected a state of {own_sizes[0]} parameters and {own_sizes[1]} members, got {state_sizes}."
            )
        tensors: dict[str, Tensor] = {}
        for name in self.state_names:
            current, tensor = getattr(self, name), state[name.strip("_")]
            if tensor.shape != current.shape:
                raise ValueError(
                    f"Expected {name.strip('_')} of shape {tuple(current.shape)}, got shape {tuple(tensor.shape)}."
                )
            tensors[name] = tensor.to(current, copy=True)
        self._generator.set_state(state["generator"].cpu())
        self.generation = int(state["generation"])
        self._noise = None
        for name, tensor in tensors.items():
            setattr(self, name, tensor)


class MirroredSearch(Search):
    """A search in which half of the population is the center plus noise, and the other half is the center minus it."""

    def __init__(self, center: Tensor, popsize: int, *, stdev: float = 0.1, seed: int | None = None):
        if popsize < 2 or popsize % 2:
            raise ValueError(f"Expected an even popsize of 2 or more, since members are pairs, got {popsize}.")
        super().__init__(center, popsize, stdev=stdev, seed=seed)

    def _draw(self) -> Tensor:
        return self._normal(self.popsize // 2) * self.stdev

    def _members(self, noise: Tensor) -> Tensor:
        return torch.cat([self.center + noise, self.center - noise])

    def _move_stdev(self, change: Tensor, share: float) -> None:
        """Adds a change to the standard deviations, at most a share of each."""
        limit = share * self.stdev
        self.stdev = self.stdev + change.clamp(-limit, limit)


def ordered(fitness: Tensor) -> Tensor:
    """Returns fitness as float64 that can be compared: NaN is the worst."""
    return fitness.double().nan_to_num(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf)


def centered_ranks(fitness: Tensor) -> Tensor:
    """Returns ranks `[n]`, n > 1, from -0.5 (worst) to 0.5 (best); equal values get the mean of their ranks.

    >>> centered_ranks(torch.tensor([3.0, 10.0, 3.0, float("nan"), 4.0])).tolist()
    [-0.125, 0.5, -0.125, -0.5, 0.25]
    """
    values = ordered(fitness)
    _, rank_index, counts = values.unique(return_inverse=True, return_counts=True)
    ranks = counts.cumsum(0) - (counts + 1) / 2
    return (ranks / (len(values) - 1) - 0.5)[rank_index]


def by_rank(fitness: Tensor, weights: Tensor) -> Tensor:
    """Returns the weight of each member: `weights[k]` for the k-th best; equal values get the mean of their weights.

    Args:
        fitness: `[n]`; NaN is the worst.
        weights: `[n]`, from the best to the worst.

    Returns:
        `[n]` float64, on the device of `fitness`.

    >>> by_rank(torch.tensor([3.0, 10.0, 3.0, float("nan")]), torch.tensor([0.5, 0.25, 0.25, 0.0])).tolist()
    [0.25, 0.5, 0.25, 0.0]
    """
    _, group_index, counts = ordered(fitness).unique(return_inverse=True, return_counts=True)
    worst_first = weights.double().to(fitness.device).flip(0)
    sums = torch.zeros(len(worst_first) + 1, dtype=torch.float64, device=fitness.device)
    sums[1:] = worst_first.cumsum(0)
    ends = counts.cumsum(0)
    return ((sums[ends] - sums[ends - counts]) / counts)[group_index]
