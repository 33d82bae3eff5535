"""`PopulationSearch`, the default search: mirrored samples around a center, which moves by their ranks with momentum.

It is PGPE (Sehnke et al., "Parameter-exploring policy gradients", 2010) with centered ranks (Salimans et al., 2017) and
ClipUp (Toklu, Liskowski and Srivastava, 2020).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .search import MirroredSearch, centered_ranks


class PopulationSearch(MirroredSearch):
    """Searches for the parameter vector with the greatest fitness.

    In each generation, half of the population is the center plus Gaussian noise and the other half is the center minus
    the same noise. Only the ranks of the fitness are used, so its scale and outliers have no effect. The center moves
    by `step_size` along the estimated gradient, with momentum and by at most `max_speed`; the standard deviation of
    each parameter changes by a bounded share.

    Args:
        center, popsize, stdev, seed: see `Search`; `popsize` is even.
        max_speed: the largest distance that the center moves per generation; by default a fifteenth of the length of
            typical noise.
        step_size: the distance that one gradient moves the center; by default half of `max_speed`.
        momentum: the share of the last move that is added to the next one.
        stdev_rate: the learning rate of the standard deviations; 0 keeps them constant.
        stdev_change: the largest relative change of a standard deviation per generation.

    Raises:
        ValueError: an argument is out of its range.

    >>> search = PopulationSearch(torch.zeros(3), popsize=50, stdev=1.0, seed=1)
    >>> for _ in range(100):
    ...     population = search.ask()
    ...     search.tell(-(population - torch.tensor([1.0, 2.0, 3.0])).square().sum(1))
    >>> search.center.round().tolist()
    [1.0, 2.0, 3.0]
    """

    state_names = ("center", "stdev", "_velocity")

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
        super().__init__(center, popsize, stdev=stdev, seed=seed)
        for name, value in (("max_speed", max_speed), ("step_size", step_size)):
            if value is not None and not 0 < value < math.inf:
                raise ValueError(f"Expected a {name} above 0 and finite, got {value!r}.")
        self.max_speed = stdev * math.sqrt(len(center)) / 15 if max_speed is None else max_speed
        self.step_size = self.max_speed / 2 if step_size is None else step_size
        self.momentum = momentum
        self.stdev_rate = stdev_rate
        self.stdev_change = stdev_change
        self._velocity = torch.zeros_like(self.center)

    def _update(self, noise: Tensor, fitness: Tensor) -> None:
        plus_ranks, minus_ranks = centered_ranks(fitness).to(self.center.dtype).chunk(2)
        stdev_score = (noise.square() - self.stdev.square()) / self.stdev
        self._move_center((plus_ranks - minus_ranks) @ noise)
        stdev_gradient = (plus_ranks + minus_ranks) @ stdev_score / len(noise)
        self._move_stdev(self.stdev_rate * stdev_gradient, self.stdev_change)

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
