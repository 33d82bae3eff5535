"""A search over flat parameters: mirrored samples around a centre that follows their ranks with momentum.

`PopulationSearch` is PGPE (Sehnke et al., "Parameter-exploring policy gradients", 2010) with centred ranks (Salimans
et al., 2017) and ClipUp (Toklu, Liskowski and Srivastava, 2020). It asks for a population to be judged and is told
what each member was worth; it knows nothing of networks, environments or devices other than its centre's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from vecrl.errors import PendingError, SpaceError


class PopulationSearch:
    """Looks for the parameter vector of the greatest fitness.

    Each generation, half of the population is the centre plus Gaussian noise and the other half the centre minus the
    same noise. Fitness counts by its ranks alone, so that its scale and its outliers do not matter. The centre goes
    `step_size` along the gradient that follows from them, with momentum and no faster than `max_speed`; the standard
    deviation of each parameter adapts by a bounded share.

    Args:
        center: `[L]`, where to begin; floating. The search lives on its device. It is copied.
        popsize: members a generation, even and at least 2.
        stdev: standard deviation of the noise at the beginning.
        max_speed: how far the centre may move in a generation; by default a fifteenth of the length of typical noise.
        step_size: how far one gradient alone moves it; by default half of `max_speed`.
        momentum: the share of the last move that goes on.
        stdev_rate: how fast the standard deviations adapt; 0 keeps them.
        stdev_change: no standard deviation changes by more than this share of itself in a generation.
        seed: of the noise; None takes entropy from the operating system.

    Attributes:
        center: `[L]`, the best guess so far.
        stdev: `[L]`, of the noise of each parameter.
        generation: how many populations were told.

    Raises:
        ValueError: an argument out of its range.

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
            raise ValueError(f"Expected a centre [L] of floats, but {center.dtype} of {tuple(center.shape)} came.")
        if popsize < 2 or popsize % 2:
            raise ValueError(f"Expected an even popsize of 2 or more, for members come in pairs, but {popsize} came.")
        for name, value in (("stdev", stdev), ("max_speed", max_speed), ("step_size", step_size)):
            if value is not None and not 0 < value < math.inf:
                raise ValueError(f"Expected a {name} above 0 and finite, but {value!r} came.")
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
        """The members to judge next, `[popsize, L]`; the same ones until `tell`."""
        noise = self._noise
        if noise is None:
            shape = self.popsize // 2, len(self.center)
            options = {"dtype": self.center.dtype, "device": self.center.device}
            noise = self._noise = torch.randn(shape, generator=self._generator, **options) * self.stdev
        return torch.cat([self.center + noise, self.center - noise])

    @torch.no_grad()
    def tell(self, fitness: Tensor) -> None:
        """Learn what the members of the last `ask` were worth.

        Args:
            fitness: `[popsize]`, the greater the better; nan is worse than all.

        Raises:
            PendingError: there was no `ask` to answer.
            SpaceError: another number of values.
        """
        noise = self._noise
        if noise is None:
            raise PendingError("No population waits for its fitness; call ask first.")
        fitness = torch.as_tensor(fitness, device=self.center.device)
        if fitness.shape != (self.popsize,):
            raise SpaceError(f"Expected {self.popsize} values, one a member, but shape {tuple(fitness.shape)} came.")
        plus_ranks, minus_ranks = centered_ranks(fitness).to(self.center.dtype).chunk(2)
        stdev_score = (noise.square() - self.stdev.square()) / self.stdev
        self._move_center((plus_ranks - minus_ranks) @ noise)
        self._adapt_stdev((plus_ranks + minus_ranks) @ stdev_score / len(noise))
        self._noise = None
        self.generation += 1

    def _move_center(self, gradient: Tensor) -> None:
        """ClipUp: the gradient gives a direction, the speed has a limit."""
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
        """All that goes on from here exactly, in tensors and numbers that `torch.load(weights_only=True)` reads.

        Raises:
            PendingError: a population waits for its fitness; tell it first.
        """
        if self._noise is not None:
            raise PendingError("A population waits for its fitness; tell it before the state is kept.")
        tensors = {"center": self.center, "stdev": self.stdev, "velocity": self._velocity}
        return {
            **{name: tensor.clone() for name, tensor in tensors.items()},
            "generator": self._generator.get_state(),
            "generation": self.generation,
            "popsize": self.popsize,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` gave, of a search of the same size.

        Raises:
            ValueError: the population or the number of parameters differs.
        """
        state_sizes, own_sizes = (len(state["center"]), state["popsize"]), (len(self.center), self.popsize)
        if state_sizes != own_sizes:
            raise ValueError(
                f"Expected a state of {own_sizes[0]} parameters and {own_sizes[1]} members, but {state_sizes} came."
            )
        for name in ("center", "stdev", "velocity"):
            if state[name].shape != self.center.shape:
                raise ValueError(f"Expected {name} of {own_sizes[0]} numbers, but {tuple(state[name].shape)} came.")
        self.center, self.stdev, self._velocity = (
            state[name].to(self.center, copy=True) for name in ("center", "stdev", "velocity")
        )
        self._generator.set_state(state["generator"].cpu())
        self.generation = int(state["generation"])
        self._noise = None


def centered_ranks(fitness: Tensor) -> Tensor:
    """Ranks `[n]`, n > 1, from -0.5, the worst, to 0.5, the best; equals share the mean of theirs.

    >>> centered_ranks(torch.tensor([3.0, 10.0, 3.0, float("nan"), 4.0])).tolist()
    [-0.125, 0.5, -0.125, -0.5, 0.25]
    """
    values = fitness.double().nan_to_num(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf)
    _, rank_index, counts = values.unique(return_inverse=True, return_counts=True)
    ranks = counts.cumsum(0) - (counts + 1) / 2
    return (ranks / (len(values) - 1) - 0.5)[rank_index]
