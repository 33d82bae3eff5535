"""What the loops of an evaluation share: the rules of fitness, normalization of observations, noise, and the result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...engine.simulator import Array
from ...seeding import stream_for
from ..obs_norm import RunningNorm


@dataclass(frozen=True, slots=True)
class AliveBonus:
    """A bonus per step: 0 before step `t0` of the episode, linear from `t0` to `t1`, and constant after `t1`.

    Attributes:
        t0: the step of an episode from which the bonus grows.
        t1: the step from which the bonus is constant; with `t0 == t1` it has no linear part.
        bonus: the constant bonus.

    >>> bonus = AliveBonus(100, 200, 8.0)
    >>> tuple(bonus(t) for t in (0, 100, 150, 200, 500))
    (0.0, 0.0, 4.0, 8.0, 8.0)
    >>> import numpy as np
    >>> bonus(np.array([150, 300])).tolist()
    [4.0, 8.0]
    """

    t0: float
    t1: float
    bonus: float

    def __post_init__(self) -> None:
        if self.t1 < self.t0:
            raise ValueError(f"Expected an alive bonus with t0 <= t1, got t0={self.t0} and t1={self.t1}.")

    @classmethod
    def from_schedule(cls, schedule: AliveBonus | Sequence[float] | None) -> AliveBonus:
        """Makes a bonus from `(t0, t1, bonus)`, `(t, bonus)` (constant from t) or None (no bonus).

        An `AliveBonus` is returned unchanged.

        >>> AliveBonus.from_schedule((100, 8.0))
        AliveBonus(t0=100, t1=100, bonus=8.0)
        """
        if isinstance(schedule, AliveBonus):
            return schedule
        if schedule is None:
            return cls(0, 0, 0.0)
        if len(schedule) not in (2, 3):
            raise ValueError(f"Expected an alive bonus (t0, t1, bonus) or (t, bonus), got {schedule!r}.")
        return cls(schedule[0], schedule[-2], schedule[-1])

    def __call__(self, t: Any) -> Any:
        """Returns the bonus at step `t` of the episode: a float for a number, floats of its shape for an array or
        tensor."""
        if self.t0 == self.t1:
            fraction = (t >= self.t0) * 1.0
        else:
            fraction = (t - self.t0) / (self.t1 - self.t0)
            fraction = fraction.clip(0.0, 1.0) if hasattr(fraction, "clip") else min(max(fraction, 0.0), 1.0)
        return fraction * self.bonus


def alive_bonus(t: Any, schedule: AliveBonus | Sequence[float] | None) -> Any:
    """Returns the bonus of `schedule` (see `AliveBonus.from_schedule`) at step `t`, a number, an array or a tensor.

    >>> alive_bonus(150, (100, 200, 8.0))
    4.0
    """
    return AliveBonus.from_schedule(schedule)(t)


Seeding = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""Returns the seeds of the episodes `(members, episodes)`, which broadcast."""
STATS_BUFFER_ROWS = 4096  # observations per update of the statistics


@dataclass(frozen=True, slots=True)
class FitnessRules:
    """The rules for episodes and fitness.

    Attributes:
        num_episodes: the number of episodes of each member.
        max_steps: the largest number of steps of a member over all its episodes; an episode that this limit cuts counts
            as far as it went.
        decrease_rewards_by: subtracted from the reward of every step.
        alive_bonus: added to the reward of every step that does not terminate, by the episode's length after the step.
        action_noise: the standard deviation of Gaussian noise on the network's outputs.
    """

    num_episodes: int = 1
    max_steps: int | None = None
    decrease_rewards_by: float = 0.0
    alive_bonus: AliveBonus | None = None
    action_noise: float = 0.0

    @property
    def max_episodes(self) -> int:
        """The largest number of episodes that a member can start."""
        return self.num_episodes if self.max_steps is None else min(self.num_episodes, self.max_steps)

    @property
    def has_shaping(self) -> bool:
        """Whether fitness differs from returns."""
        return self.alive_bonus is not None or self.decrease_rewards_by != 0

    def shape_reward(self, reward: Array, terminated: Array, episode_step: Array) -> Array:
        """Returns shaped rewards, from arrays or tensors `[n]`; `episode_step` includes the current step."""
        shaped_reward = reward - self.decrease_rewards_by
        return (
            shaped_reward
            if self.alive_bonus is None
            else shaped_reward + self.alive_bonus(episode_step) * (~terminated)
        )


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The results of a population of P members.

    Attributes:
        fitness: `[P]` float64, the mean return of the shaped rewards; equals `returns` without shaping. NaN if a reward
            was NaN, which `PopulationSearch` treats as the worst.
        returns: `[P]` float64, the mean return of the environment's rewards over the member's episodes.
        lengths: `[P]` float64, the mean length of the episodes in steps.
        interactions: the total number of environment steps.
    """

    fitness: Tensor
    returns: Tensor
    lengths: Tensor
    interactions: int

    @classmethod
    def concat(cls, parts: Sequence[Evaluation]) -> Evaluation:
        """Concatenates the results of the parts of a population."""
        fitness, returns, lengths = (
            torch.cat([getattr(part, name) for part in parts]) for name in ("fitness", "returns", "lengths")
        )
        return cls(fitness, returns, lengths, sum(part.interactions for part in parts))


class Normalizer:
    """Normalizes observations for the network, and updates statistics with them.

    Args:
        layer: the normalization; None leaves observations unchanged.
        norm: the statistics, updated with the rows of active members; None for no statistics.
    """

    def __init__(self, layer: Callable[[Tensor], Tensor] | None, norm: RunningNorm | None):
        self.layer = layer
        self.norm = norm
        self._rows: list[Tensor] = []
        self._masks: list[Tensor] = []
        self._count = 0

    def __call__(self, features: Tensor, active: Tensor | None = None) -> Tensor:
        """Returns normalized float32 features `[k, obs_length]`; rows not in the mask `active` update no statistics."""
        self.add(features, active)
        if self.layer is not None:
            features = self.layer(features)
        return features.float()

    def add(self, features: Tensor, active: Tensor | None = None) -> None:
        """Adds rows of features to the buffer, and updates the statistics when it is full."""
        if self.norm is None:
            return
        self._rows.append(features)
        if active is not None:
            self._masks.append(active)
        self._count += len(features)
        if self._count >= STATS_BUFFER_ROWS:
            self.flush()

    def flush(self) -> None:
        """Updates the statistics with the rows in the buffer."""
        if self.norm is not None and self._rows:
            self.norm.update(torch.cat(self._rows), torch.cat(self._masks) if self._masks else None)
            self._rows, self._masks, self._count = [], [], 0


class ActionNoise:
    """Gaussian noise on outputs; the noise of a member does not depend on which other members are active."""

    def __init__(self, stdev: float, members: int, generator: torch.Generator | None):
        self.stdev, self.members, self.generator = stdev, members, generator

    def __call__(self, outputs: Tensor, rows: Tensor) -> Tensor:
        """Adds noise to the outputs `[k, ...]` of the members `rows`."""
        if not self.stdev:
            return outputs
        shape = self.members, *outputs.shape[1:]
        return outputs + self.stdev * torch.randn(shape, generator=self.generator, device=outputs.device)[rows]


@dataclass(frozen=True, slots=True)
class EvaluationSettings:
    """The settings of all subbatches in one call.

    Attributes:
        rules: the rules for episodes and fitness.
        layer: the normalization of observations; None leaves them unchanged.
        collects_stats: whether to return statistics of the observations.
        noise_stream: names the call and the part of the population; the seeds of noise depend on it.
    """

    rules: FitnessRules
    layer: Callable[[Tensor], Tensor] | None
    collects_stats: bool
    noise_stream: str = ""

    def normalizer(self, obs_length: int | tuple[int, ...], device: torch.device | str = "cpu") -> Normalizer:
        """Makes a normalizer without observations."""
        return Normalizer(self.layer, RunningNorm(shape=obs_length, device=device) if self.collects_stats else None)

    def noise(self, members: int, first_member: int, seed: int, device: torch.device | str = "cpu") -> ActionNoise:
        """Makes the noise of `members` members.

        Args:
            members: the number of members.
            first_member: the number of the first member.
            seed: the seed of its first episode; other members may have the same seed.
            device: the device of the noise.
        """
        generator = torch.Generator(device)
        generator.manual_seed(stream_for(seed, f"noise {self.noise_stream} {first_member}"))
        return ActionNoise(self.rules.action_noise, members, generator)
