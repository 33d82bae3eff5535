"""Searches by the algorithms of well-known papers, with the settings that these recommend: PGPE, SNES, CEM and CMA-ES.

`ALGORITHMS` has the names by which `vecrl evolve --algorithm` finds them, and `PopulationSearch`; the default is first.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .population_search import PopulationSearch
from .search import MirroredSearch, Search, by_rank, ordered

MAX_CMA_PARAMETERS = 2000  # the covariance and its basis, which each checkpoint contains, have 64 MB then
_STDEV_CHANGE = 0.2  # the largest relative change of a standard deviation in a generation of PGPE


class PGPE(MirroredSearch):
    """Parameter-exploring policy gradients with symmetric sampling (Sehnke et al., 2010), with its learning rates.

    The paper updates after each pair of members. Here a generation adds the updates of all its pairs, and changes a
    standard deviation by at most a fifth, which keeps it positive. So moves grow with the population: with many
    hundreds of members, give a smaller `center_rate`. Rewards are normalized, as in the paper, by the best return so
    far; the baseline is the mean of the last generations' means, with the weight 0.1 for the latest.

    Args:
        center, popsize, stdev, seed: see `Search`; `popsize` is even.
        center_rate, stdev_rate: the learning rates, 0.2 and 0.1 in the paper.

    >>> search = PGPE(torch.zeros(2), popsize=20, stdev=1.0, seed=1)
    >>> for _ in range(100):
    ...     search.tell(-(search.ask() - torch.tensor([1.0, 2.0])).square().sum(1))
    >>> search.center.round().tolist()
    [1.0, 2.0]
    """

    state_names = ("center", "stdev", "_best", "_baseline")

    def __init__(
        self,
        center: Tensor,
        popsize: int,
        *,
        stdev: float = 0.1,
        center_rate: float = 0.2,
        stdev_rate: float = 0.1,
        seed: int | None = None,
    ):
        super().__init__(center, popsize, stdev=stdev, seed=seed)
        self.center_rate, self.stdev_rate = center_rate, stdev_rate
        self._best = torch.tensor(-torch.inf, dtype=torch.float64, device=center.device)
        self._baseline = torch.zeros((), dtype=torch.float64, device=center.device)

    def _update(self, noise: Tensor, fitness: Tensor) -> None:
        values = ordered(fitness)
        is_finite = values.isfinite()
        if not is_finite.any():
            return
        low, high = values[is_finite].min(), values[is_finite].max()
        values = values.clamp(low, high)
        first = self.generation == 0 or not self._best.isfinite()
        self._best = torch.maximum(self._best, high)
        self._baseline = values.mean() if first else 0.9 * self._baseline + 0.1 * values.mean()
        plus, minus = values.chunk(2)
        distance = 2 * self._best - plus - minus
        scale = self._best - self._baseline
        center_weights = torch.where(distance > 0, (plus - minus) / distance, 0.0)
        stdev_weights = ((plus + minus) / 2 - self._baseline) / scale if scale > 0 else torch.zeros_like(plus)
        stdev_score = (noise.square() - self.stdev.square()) / self.stdev
        self.center = self.center + self.center_rate * center_weights.to(noise) @ noise
        self._move_stdev(self.stdev_rate * stdev_weights.to(noise) @ stdev_score, _STDEV_CHANGE)


class SNES(Search):
    """Separable natural evolution strategies (Schaul, Glasmachers and Schmidhuber, 2011), with its utilities and rates.

    >>> search = SNES(torch.zeros(2), popsize=20, stdev=1.0, seed=1)
    >>> for _ in range(100):
    ...     search.tell(-(search.ask() - torch.tensor([1.0, 2.0])).square().sum(1))
    >>> search.center.round().tolist()
    [1.0, 2.0]
    """

    def __init__(self, center: Tensor, popsize: int, *, stdev: float = 0.1, seed: int | None = None):
        super().__init__(center, popsize, stdev=stdev, seed=seed)
        length = len(center)
        self.stdev_rate = (3 + math.log(length)) / (5 * math.sqrt(length))
        ranks = torch.arange(1, popsize + 1, dtype=torch.float64)
        utilities = (math.log(popsize / 2 + 1) - ranks.log()).clamp(min=0)
        self._utilities = utilities / utilities.sum() - 1 / popsize

    def _update(self, noise: Tensor, fitness: Tensor) -> None:
        weights = by_rank(fitness, self._utilities).to(noise)
        self.center = self.center + self.stdev * (weights @ noise)
        self.stdev = self.stdev * (0.5 * self.stdev_rate * (weights @ (noise.square() - 1))).exp()


class CEM(Search):
    """The cross-entropy method with decreasing noise (Szita and Lőrincz, "Learning Tetris", 2006), with its settings.

    The next distribution is that of the best tenth of the members. To its variance is added a twentieth of the initial
    variance, and less in each later generation, until nothing is added from the 50th on. A standard deviation is never
    below a millionth of the initial one.

    >>> search = CEM(torch.zeros(2), popsize=50, stdev=1.0, seed=1)
    >>> for _ in range(60):
    ...     search.tell(-(search.ask() - torch.tensor([1.0, 2.0])).square().sum(1))
    >>> search.center.round().tolist()
    [1.0, 2.0]
    """

    def __init__(self, center: Tensor, popsize: int, *, stdev: float = 0.1, seed: int | None = None):
        super().__init__(center, popsize, stdev=stdev, seed=seed)
        self._initial_stdev = stdev
        elites = min(popsize, max(2, round(0.1 * popsize)))
        self._weights = (torch.arange(popsize) < elites).double() / elites

    def _update(self, noise: Tensor, fitness: Tensor) -> None:
        members, weights = self._members(noise), by_rank(fitness, self._weights).to(noise)
        extra = self._initial_stdev**2 * max(0.05 - 0.001 * self.generation, 0.0)
        self.center = weights @ members
        stdev = (weights @ (members - self.center).square() + extra).sqrt()
        self.stdev = stdev.clamp(min=1e-6 * self._initial_stdev)


class CMAES(Search):
    """CMA-ES: evolution strategies with covariance matrix adaptation, with the settings of Hansen's tutorial (2016).

    "The CMA evolution strategy: a tutorial", arXiv 1604.00772, without its negative weights. It keeps the covariance of
    all pairs of parameters, so time and memory grow with the square of their number, and sometimes with its cube.

    Raises:
        ValueError: an argument is out of its range, or there are more than 2,000 parameters.

    >>> search = CMAES(torch.zeros(2), popsize=20, stdev=1.0, seed=1)
    >>> for _ in range(50):
    ...     search.tell(-(search.ask() - torch.tensor([1.0, 2.0])).square().sum(1))
    >>> search.center.round().tolist()
    [1.0, 2.0]
    """

    state_names = ("center", "stdev", "_sigma", "_covariance", "_basis", "_scales", "_path", "_sigma_path")

    def __init__(self, center: Tensor, popsize: int, *, stdev: float = 0.1, seed: int | None = None):
        super().__init__(center, popsize, stdev=stdev, seed=seed)
        n = len(center)
        if n > MAX_CMA_PARAMETERS:
            raise ValueError(
                f"Expected at most {MAX_CMA_PARAMETERS:,} parameters for CMA-ES, which keeps the covariance of all "
                f"pairs, got {n:,}. Use another algorithm, such as SNES, or a smaller network."
            )
        double = {"dtype": torch.float64, "device": center.device}
        parents = popsize // 2
        weights = math.log((popsize + 1) / 2) - torch.arange(1, popsize + 1, dtype=torch.float64).log()
        weights[parents:] = 0.0
        self._weights = weights / weights.sum()
        self._effective = effective = 1 / float(self._weights.square().sum())
        self._path_rate = (4 + effective / n) / (n + 4 + 2 * effective / n)
        self._sigma_rate = (effective + 2) / (n + effective + 5)
        self._rank_one_rate = 2 / ((n + 1.3) ** 2 + effective)
        rank_mu_rate = 2 * (effective - 2 + 1 / effective) / ((n + 2) ** 2 + effective)
        self._rank_mu_rate = min(1 - self._rank_one_rate, rank_mu_rate)
        self._damping = 1 + 2 * max(0.0, math.sqrt((effective - 1) / (n + 1)) - 1) + self._sigma_rate
        self._expected_norm = math.sqrt(n) * (1 - 1 / (4 * n) + 1 / (21 * n**2))
        self._interval = max(1, int(1 / (10 * n * (self._rank_one_rate + self._rank_mu_rate))))
        self._sigma = torch.tensor(stdev, **double)
        self._covariance, self._basis = torch.eye(n, **double), torch.eye(n, **double)
        self._scales = torch.ones(n, **double)
        self._path, self._sigma_path = torch.zeros(n, **double), torch.zeros(n, **double)

    def _members(self, noise: Tensor) -> Tensor:
        return self.center + (self._sigma * self._steps(noise)).to(self.center)

    def _steps(self, noise: Tensor) -> Tensor:
        """Returns samples `[popsize, L]` float64 of the covariance, for samples of the standard normal distribution."""
        return (noise.double() * self._scales) @ self._basis.T

    def _update(self, noise: Tensor, fitness: Tensor) -> None:
        weights, steps = by_rank(fitness, self._weights), self._steps(noise)
        mean_step, mean_noise = weights @ steps, weights @ noise.double()
        self.center = self.center + (self._sigma * mean_step).to(self.center)
        rate, sigma_rate = self._path_rate, self._sigma_rate
        self._sigma_path = (1 - sigma_rate) * self._sigma_path + math.sqrt(
            sigma_rate * (2 - sigma_rate) * self._effective
        ) * (self._basis @ mean_noise)
        norm = float(self._sigma_path.norm()) / self._expected_norm
        decay = math.sqrt(1 - (1 - sigma_rate) ** (2 * (self.generation + 1)))
        grows = norm / decay < 1.4 + 2 / (len(mean_step) + 1)  # False: the step size is increasing fast
        self._path = (1 - rate) * self._path
        if grows:
            self._path = self._path + math.sqrt(rate * (2 - rate) * self._effective) * mean_step
        one, mu = self._rank_one_rate, self._rank_mu_rate
        kept = 1 - one - mu + (0.0 if grows else one * rate * (2 - rate))
        self._covariance = (
            kept * self._covariance + one * torch.outer(self._path, self._path) + mu * (steps.T * weights) @ steps
        )
        self._sigma = self._sigma * math.exp(min(1.0, sigma_rate / self._damping * (norm - 1)))
        self.stdev = (self._sigma * self._covariance.diagonal().sqrt()).to(self.center)
        if (self.generation + 1) % self._interval == 0:
            squares, self._basis = torch.linalg.eigh((self._covariance + self._covariance.T) / 2)
            self._scales = squares.clamp(min=1e-20).sqrt()


ALGORITHMS: dict[str, type[Search]] = {
    "cem": CEM,
    "pgpe-clipup": PopulationSearch,
    "pgpe": PGPE,
    "snes": SNES,
    "cma-es": CMAES,
}
