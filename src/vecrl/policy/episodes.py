"""How a population plays episodes over a `Pool`: whoever is done is stepped no more, and costs nothing any more.

Members act in lock step, in the order of their numbers, so that nothing hangs on who steps them where or who is first.
What a batched simulator on one device does instead is in `vecrl.policy.fused`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vecrl.engine.pool import Pool
from vecrl.policy.interface import Interface
from vecrl.policy.lasting import LastingPool, Seeding
from vecrl.policy.norm import RunningNorm
from vecrl.policy.policy import Policy
from vecrl.policy.shaping import AliveBonus

SHRINK = 0.8  # a selection of the policies is made anew once no more than this share of it is left
BUFFER = 4096  # observations that statistics take in at once


@dataclass(frozen=True, slots=True)
class Rules:
    """How members are judged.

    Attributes:
        num_episodes: how many episodes each plays.
        max_steps: steps that a member may take over all its episodes; the one under way counts as it then stands.
        decrease_rewards_by: taken off the reward of every step.
        alive_bonus: added to the reward of every step that does not terminate, by the age of the episode after it.
        action_noise: standard deviation of Gaussian noise on the network's outputs.
    """

    num_episodes: int = 1
    max_steps: int | None = None
    decrease_rewards_by: float = 0.0
    alive_bonus: AliveBonus | None = None
    action_noise: float = 0.0

    @property
    def shaping(self) -> bool:
        """Whether fitness and returns differ."""
        return self.alive_bonus is not None or self.decrease_rewards_by != 0

    def shaped(self, reward: Any, terminated: Any, age: Any) -> Any:
        """What steps are worth, from arrays or tensors `[n]`; `age` counts the step itself."""
        worth = reward - self.decrease_rewards_by
        return worth if self.alive_bonus is None else worth + self.alive_bonus(age) * (~terminated)


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What a population was worth.

    Attributes:
        fitness: `[P]` float64, mean return of the shaped rewards; the returns themselves without shaping.
        returns: `[P]` float64, mean sum of the environment's own rewards over the member's episodes.
        lengths: `[P]` float64, mean length of the episodes in steps.
        interactions: steps of environments in all.
    """

    fitness: Tensor
    returns: Tensor
    lengths: Tensor
    interactions: int

    @classmethod
    def joined(cls, parts: Sequence[Evaluation]) -> Evaluation:
        """Of populations that were run in parts."""
        fitness, returns, lengths = (
            torch.cat([getattr(part, name) for part in parts]) for name in ("fitness", "returns", "lengths")
        )
        return cls(fitness, returns, lengths, sum(part.interactions for part in parts))


class Normaliser:
    """Observations on their way to the network, and what is learnt of them meanwhile.

    Args:
        layer: normalises; None lets observations through.
        norm: learns from the rows of those who play; None learns nothing.
    """

    def __init__(self, layer: Callable[[Tensor], Tensor] | None, norm: RunningNorm | None):
        self.layer = layer
        self.norm = norm
        self._rows: list[Tensor] = []
        self._masks: list[Tensor] = []
        self._count = 0

    def __call__(self, features: Tensor, alive: Tensor | None = None) -> Tensor:
        """Features `[k, obs_length]` as the network takes them; rows outside the mask `alive` teach nothing."""
        self.take_in(features, alive)
        if self.layer is not None:
            features = self.layer(features)
        return features.float()

    def take_in(self, features: Tensor, alive: Tensor | None = None) -> None:
        """Learn from rows of features, sooner or later."""
        if self.norm is None:
            return
        self._rows.append(features)
        if alive is not None:
            self._masks.append(alive)
        self._count += len(features)
        if self._count >= BUFFER:
            self.flush()

    def flush(self) -> None:
        """Learn from what is still in the buffer."""
        if self.norm is not None and self._rows:
            self.norm.update(torch.cat(self._rows), torch.cat(self._masks) if self._masks else None)
            self._rows, self._masks, self._count = [], [], 0


class Crowd:
    """The policies of the members that still play: those that left are dropped in a few goes, not one by one."""

    def __init__(self, policy: Policy):
        self._policy = policy
        self._size = len(policy.parameters)
        self._places: Tensor | None = None  # of those who play among those selected; None while they are the same
        self._x = torch.empty(0)

    def __call__(self, x: Tensor) -> Tensor:
        if self._places is None:
            return self._policy(x)
        if self._x.shape != (self._size, x.shape[1]):
            self._x = x.new_zeros(self._size, x.shape[1])
        self._x[self._places] = x
        return self._policy(self._x)[self._places]

    def keep(self, mask: Tensor) -> None:
        """Go on with those for whom the bool `mask` holds, of those who play."""
        places = torch.arange(self._size)[mask] if self._places is None else self._places[mask]
        if 0 < len(places) <= SHRINK * self._size:
            self._policy, self._size, places = self._policy.select(places), len(places), None
        self._places = places

    def begin(self, mask: Tensor) -> None:
        """Forget the hidden states of those who play and for whom `mask` holds."""
        if self._policy.h is not None:
            self._policy.reset(mask.nonzero().squeeze(1) if self._places is None else self._places[mask])


class Tally:
    """What the members that still play have reached, one row each; rows of those who leave are put by.

    Attributes:
        ids: `[k]`, who plays.
        episodes: `[k]`, how many they ended.
    """

    def __init__(self, members: int, rules: Rules):
        self.rules = rules
        self.ids = np.arange(members)
        self.episodes = np.zeros(members, np.int64)
        self._steps = np.zeros(members, np.int64)
        self._begun_at = np.zeros(members, np.int64)
        self._sums = np.zeros((2, members))  # fitness and returns; the first stays zero without shaping
        self._results = np.zeros((3, members))
        self.interactions = 0

    def add(self, reward: np.ndarray, terminated: np.ndarray, done: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Count a step of all who play: masks `[k]` of who ended an episode, and of who is thereby over."""
        self.interactions += len(self.ids)
        self._steps += 1
        self._sums[1] += reward
        if self.rules.shaping:
            self._sums[0] += self.rules.shaped(reward, terminated, self._steps - self._begun_at)
        limit = self.rules.max_steps
        spent = None if limit is None else self._steps >= limit
        if spent is not None and spent.any():
            done = done | spent
        self.episodes += done
        over = self.episodes >= self.rules.num_episodes
        return done, over if spent is None else over | spent

    def begin(self, rows: np.ndarray) -> None:
        """These begin an episode."""
        self._begun_at[rows] = self._steps[rows]

    def drop(self, over: np.ndarray) -> None:
        """Put by the results of these, and go on without them."""
        episodes = self.episodes[over]
        self._results[:2, self.ids[over]] = self._sums[:, over] / episodes
        self._results[2, self.ids[over]] = self._steps[over] / episodes
        keep = ~over
        self.ids, self.episodes, self._steps = self.ids[keep], self.episodes[keep], self._steps[keep]
        self._begun_at, self._sums = self._begun_at[keep], self._sums[:, keep]

    def result(self) -> Evaluation:
        """When nobody plays any more."""
        fitness, returns, lengths = torch.from_numpy(self._results)
        return Evaluation(fitness if self.rules.shaping else returns, returns, lengths, self.interactions)


class Noise:
    """Gaussian noise on outputs: a member's own, whoever else still plays."""

    def __init__(self, stdev: float, members: int, generator: torch.Generator | None):
        self.stdev, self.members, self.generator = stdev, members, generator

    def __call__(self, outputs: Tensor, rows: Tensor) -> Tensor:
        """Outputs `[k, ...]` of the members `rows`, with noise."""
        if not self.stdev:
            return outputs
        shape = self.members, *outputs.shape[1:]
        return outputs + self.stdev * torch.randn(shape, generator=self.generator, device=outputs.device)[rows]


@torch.no_grad()
def play_pool(
    pool: Pool,
    policy: Policy,
    interface: Interface,
    rules: Rules,
    seeds: Seeding,
    normaliser: Normaliser,
    generator: torch.Generator | None = None,
) -> Evaluation:
    """Let each of the policy's members, no more than the pool has environments, play its episodes.

    Args:
        seeds: of the episodes `(ids, episodes)`.
        generator: of the action noise.
    """
    members = len(policy.parameters)
    tally, crowd = Tally(members, rules), Crowd(policy)
    noise = Noise(rules.action_noise, members, generator)

    stage = LastingPool(pool, seeds, members)
    obs = stage.begin(tally.ids, tally.episodes)
    while len(tally.ids):
        outputs = crowd(normaliser(interface.features(obs)))
        if rules.action_noise:
            outputs = noise(outputs, torch.from_numpy(tally.ids))
        step = stage.step(tally.ids, interface.actions(outputs).numpy())
        obs, done = step.obs, step.done
        ended, over = tally.add(step.reward, step.terminated, done)
        if not ended.any():
            continue
        if over.any():
            keep = ~over
            obs, ended = obs[keep], ended[keep]
            tally.drop(over)
            crowd.keep(torch.from_numpy(keep))
        if ended.any():
            obs[ended] = stage.begin(tally.ids[ended], tally.episodes[ended])
            tally.begin(ended)
            crowd.begin(torch.from_numpy(ended))
    normaliser.flush()
    return tally.result()
