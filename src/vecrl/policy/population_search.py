"""A search over flat parameters: mirrored samples around a center, which moves by their ranks with momentum.

`PopulationSearch` is PGPE (Sehnke et al., "Parameter-exploring policy gradients", 2010) with centered ranks (Salimans
et al., 2017) and ClipUp (Toklu, Liskowski and Srivastava, 2020). `ask` returns a population, and `tell` takes the
fitness of each member.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ..errors import PendingError, SpaceError


class PopulationSearch:
    """Searches for the parameter vector with the greatest fitness.

    In each generation, half of the population is the center plus Gaussian noise and the other half is the center minus
    the same noise. Only the ranks of the fitness are used, so its scale and outliers have no effect. The center moves
    by `step_size` along the estimated gradient, with momentum and by at most `max_speed`; the standard deviation of
    each parameter changes by a bounded share.

    Args:
        center: `[L]`, the initial center, of a float dtype; it is copied. The search runs on its device.
        popsize: the number of members per generation, even and at least 2.
        stdev: the initial standard deviation of the noise.
        max_speed: the largest distance that the center moves per generation; by default a fifteenth of the length of
            typical noise.
        step_size: the distance that one gradient moves the center; by default half of `max_speed`.
        momentum: the share of the last move that is added to the next one.
        stdev_rate: the learning rate of the standard deviations; 0 keeps them constant.
        stdev_change: the largest relative change of a standard deviation per generation.
        seed: the seed of the noise; None takes entropy from the operating system.

    Attributes:
        center: `[L]`, the current estimate.
        stdev: `[L]`, the standard deviation of the noise of each parameter.
        generation: the number of completed generations.

    Raises:
        ValueError: an argument is out of its range.

    >>> search = PopulationSearch(torch.zeros(3), popsize=50, stdev=1.0, seed=1)
    >>> for _ in range(100):
    ...     population = search.ask()
    ...     search.tell(-(population - torch.tensor([1.0, 2.0, 3.0])).square().sum(1))
    >>> search.center.round().tolist()
    [1.0, 2.0, 3.0]
    """

    def __init__(
        self,
        center: Tensor,
        popsize: int,
        *,
        stdev: float = 0.1,
        max_speed: float | None = None,
        step_size: float | None = None,
        momentum: float = 0.9,
        stdev_rate: float = 0.1,
        stdev_change: float = 0.2,
        seed: int | None = None,
    ):
        if center.ndim != 1 or not center.is_floating_point() or not len(center):
            raise ValueError(f"Expected a center [L] of floats, got {center.dtype} of shape {tuple(center.shape)}.")
        if popsize < 2 or popsize % 2:
            raise ValueError(f"Expected an even popsize of 2 or more, since members are pairs, got {popsize}.")
        for name, value in (("stdev", stdev), ("max_speed", max_speed), ("step_size", step_size)):
            if value is not None and not 0 < value < math.inf:
                raise ValueError(f"Expected a {name} above 0 and finite, got {value!r}.")
        self.center = center.detach().clone()
        self.stdev = torch.full_like(self.center, stdev)
        self.generation = 0
        self.popsize = popsize
        self.max_speed = stdev * math.sqrt(len(center)) / 15 if max_speed is None else max_speed
        self.step_size = self.max_speed / 2 if step_size is None else step_size
        self.momentum = momentum
        self.stdev_rate = stdev_rate
        self.stdev_change = stdev_change
        self._velocity = torch.zeros_like(self.center)
        self._noise: Tensor | None = None
        self._generator = torch.Generator(self.center.device)
        _ = self._generator.seed() if seed is None else self._generator.manual_seed(seed)

    def ask(self) -> Tensor:
        """Returns the members to evaluate next, `[popsize, L]`; the same ones until `tell`."""
        noise = self._noise
        if noise is None:
            shape = self.popsize // 2, len(self.center)
            options = {"dtype": self.center.dtype, "device": self.center.device}
            noise = self._noise = torch.randn(shape, generator=self._generator, **options) * self.stdev
        return torch.cat([self.center + noise, self.center - noise])

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
        plus_ranks, minus_ranks = centered_ranks(fitness).to(self.center.dtype).chunk(2)
        stdev_score = (noise.square() - self.stdev.square()) / self.stdev
        self._move_center((plus_ranks - minus_ranks) @ noise)
        self._adapt_stdev((plus_ranks + minus_ranks) @ stdev_score / len(noise))
        self._noise = None
        self.generation += 1

    def _move_center(self, gradient: Tensor) -> None:
        """Moves the center by ClipUp: the gradient gives only the direction, and the speed is limited."""
        length = gradient.norm()
        if length > 0:
            self._velocity = self.momentum * self._velocity + gradient * (self.step_size / length)
        else:
            self._velocity = self.momentum * self._velocity
        speed = self._velocity.norm()
        if speed > self.max_speed:
            self._velocity *= self.max_speed / speed
        self.center = self.center + self._velocity

    def _adapt_stdev(self, gradient: Tensor) -> None:
        limit = self.stdev_change * self.stdev
        self.stdev = self.stdev + (self.stdev_rate * gradient).clamp(-limit, limit)

    def state_dict(self) -> dict[str, Any]:
        """Returns the complete state, as tensors and numbers that `torch.load(weights_only=True)` can read.

        Raises:
            PendingError: a population waits for its fitness.
        """
        if self._noise is not None:
            raise PendingError("Expected no population that waits for its fitness, got one. Call tell first.")
        tensors = {"center": self.center, "stdev": self.stdev, "velocity": self._velocity}
        return {
            **{name: tensor.clone() for name, tensor in tensors.items()},
            "generator": self._generator.get_state(),
            "generation": self.generation,
            "popsize": self.popsize,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores a state that `state_dict` of a search of the same size returned.

        Raises:
            ValueError: the population size or the number of parameters differs.
        """
        state_sizes, own_sizes = (len(state["center"]), state["popsize"]), (len(self.center), self.popsize)
        if state_sizes != own_sizes:
            raise ValueError(
                f"Expected a state of {own_sizes[0]} parameters and {own_sizes[1]} members, got {state_sizes}."
            )
        for name in ("center", "stdev", "velocity"):
            if state[name].shape != self.center.shape:
                raise ValueError(f"Expected {name} of {own_sizes[0]} numbers, got shape {tuple(state[name].shape)}.")
        self.center, self.stdev, self._velocity = (
            state[name].to(self.center, copy=True) for name in ("center", "stdev", "velocity")
        )
        self._generator.set_state(state["generator"].cpu())
        self.generation = int(state["generation"])
        self._noise = None


def centered_ranks(fitness: Tensor) -> Tensor:
    """Returns ranks `[n]`, n > 1, from -0.5 (worst) to 0.5 (best); equal values get the mean of their ranks.

    >>> centered_ranks(torch.tensor([3.0, 10.0, 3.0, float("nan"), 4.0])).tolist()
    [-0.125, 0.5, -0.125, -0.5, 0.25]
    """
    values = fitness.double().nan_to_num(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf)
    _, rank_index, counts = values.unique(return_inverse=True, return_counts=True)
    ranks = counts.cumsum(0) - (counts + 1) / 2
    return (ranks / (len(values) - 1) - 0.5)[rank_index]
