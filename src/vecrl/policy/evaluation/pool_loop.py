"""How members of a population play episodes over a `Pool`: whoever is done is stepped no more, and costs nothing.

Members act in subbatches, each a batch of its own, in the order of their numbers: what comes out hangs on who is in a
subbatch, not on who else plays, on who steps them where or who is first. What a batched simulator on one device does
instead is in `vecrl.policy.evaluation.device_loop`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from vecrl.engine.pool import Pool
from vecrl.policy.obs_norm import RunningNorm
from vecrl.policy.policy import Policy
from vecrl.policy.policy_io import PolicyIO
from vecrl.policy.reward_shaping import AliveBonus
from vecrl.seeding import stream_for

Seeding = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""Seeds of the episodes `(members, episodes)`, which broadcast."""
RESELECT_FRACTION = 0.8  # a selection of the policies is made anew once no more than this share of it is left
STATS_BUFFER_ROWS = 4096  # observations that statistics take in at once


@dataclass(frozen=True, slots=True)
class FitnessRules:
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
    def max_episodes(self) -> int:
        """How many episodes a member can begin."""
        return self.num_episodes if self.max_steps is None else min(self.num_episodes, self.max_steps)

    @property
    def has_shaping(self) -> bool:
        """Whether fitness and returns differ."""
        return self.alive_bonus is not None or self.decrease_rewards_by != 0

    def shape_reward(self, reward: Any, terminated: Any, episode_step: Any) -> Any:
        """What steps are worth, from arrays or tensors `[n]`; `episode_step` counts the step itself."""
        shaped_reward = reward - self.decrease_rewards_by
        return (
            shaped_reward
            if self.alive_bonus is None
            else shaped_reward + self.alive_bonus(episode_step) * (~terminated)
        )


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What a population was worth.

    Attributes:
        fitness: `[P]` float64, mean return of the shaped rewards; the returns themselves without shaping. NaN where a
            reward was, which `PopulationSearch` takes for the worst.
        returns: `[P]` float64, mean sum of the environment's own rewards over the member's episodes.
        lengths: `[P]` float64, mean length of the episodes in steps.
        interactions: steps of environments in all.
    """

    fitness: Tensor
    returns: Tensor
    lengths: Tensor
    interactions: int

    @classmethod
    def concat(cls, parts: Sequence[Evaluation]) -> Evaluation:
        """Of populations that were run in parts."""
        fitness, returns, lengths = (
            torch.cat([getattr(part, name) for part in parts]) for name in ("fitness", "returns", "lengths")
        )
        return cls(fitness, returns, lengths, sum(part.interactions for part in parts))


class Normalizer:
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
        self.add(features, alive)
        if self.layer is not None:
            features = self.layer(features)
        return features.float()

    def add(self, features: Tensor, alive: Tensor | None = None) -> None:
        """Learn from rows of features, sooner or later."""
        if self.norm is None:
            return
        self._rows.append(features)
        if alive is not None:
            self._masks.append(alive)
        self._count += len(features)
        if self._count >= STATS_BUFFER_ROWS:
            self.flush()

    def flush(self) -> None:
        """Learn from what is still in the buffer."""
        if self.norm is not None and self._rows:
            self.norm.update(torch.cat(self._rows), torch.cat(self._masks) if self._masks else None)
            self._rows, self._masks, self._count = [], [], 0


class ActionNoise:
    """Gaussian noise on outputs: a member's own, whoever else still plays."""

    def __init__(self, stdev: float, members: int, generator: torch.Generator | None):
        self.stdev, self.members, self.generator = stdev, members, generator

    def __call__(self, outputs: Tensor, rows: Tensor) -> Tensor:
        """Outputs `[k, ...]` of the members `rows`, with noise."""
        if not self.stdev:
            return outputs
        shape = self.members, *outputs.shape[1:]
        return outputs + self.stdev * torch.randn(shape, generator=self.generator, device=outputs.device)[rows]


@dataclass(frozen=True, slots=True)
class EvaluationSettings:
    """How every subbatch of a call is judged.

    Attributes:
        rules: what counts.
        layer: what members look through; None lets observations through.
        updates_norm: whether what they see is wanted.
        name: of the call, and of the part of the population that is played.
    """

    rules: FitnessRules
    layer: Callable[[Tensor], Tensor] | None
    updates_norm: bool
    name: str = ""

    def normalizer(self, obs_length: int | tuple[int, ...], device: torch.device | str = "cpu") -> Normalizer:
        """A new one, which has seen nothing."""
        return Normalizer(self.layer, RunningNorm(shape=obs_length, device=device) if self.updates_norm else None)

    def noise(self, members: int, first_member: int, seed: int, device: torch.device | str = "cpu") -> ActionNoise:
        """That of so many members, the first of whom has this number and begins with this seed (others may, too)."""
        generator = torch.Generator(device)
        generator.manual_seed(stream_for(seed, f"noise {self.name} {first_member}"))
        return ActionNoise(self.rules.action_noise, members, generator)


@dataclass(frozen=True, slots=True)
class Subbatch:
    """Members who act together.

    Attributes:
        members: `[k]`, their numbers.
        parameters: `[k, L]` float32.
        seeds: `[k, e]`, of all episodes that each may play.
    """

    members: np.ndarray
    parameters: np.ndarray
    seeds: np.ndarray


@dataclass(frozen=True, slots=True)
class SubbatchResult:
    """What a subbatch came to, in arrays, since it may travel.

    Attributes:
        scores: `[3, k]` float64: fitness, returns and lengths as in `Evaluation`.
        interactions: steps of environments.
        seen: state of the statistics of what they saw; None where nothing is learnt.
    """

    scores: np.ndarray
    interactions: int
    norm_state: dict[str, np.ndarray] | None


class MemberBatch:
    """The policies of a subbatch's members that still play: those that left are dropped in a few goes, not singly.

    From features `[k, obs_length]` of those who play to outputs `[k, act_length]`.
    """

    def __init__(self, policy: Policy, normalizer: Normalizer, noise: ActionNoise):
        self.normalizer = normalizer
        self._policy = policy
        self._noise = noise
        self._size = len(policy.parameters)
        self._rows = torch.arange(self._size)  # of those who play
        self._positions: Tensor | None = None  # of those among the policies at hand; None while they are the same
        self._x = torch.empty(0)

    def __len__(self) -> int:
        return len(self._rows)

    def __call__(self, features: Tensor) -> Tensor:
        x = self.normalizer(features)
        if self._positions is None:
            return self._noise(self._policy(x), self._rows)
        if self._x.shape != (self._size, x.shape[1]):
            self._x = x.new_zeros(self._size, x.shape[1])
        self._x[self._positions] = x
        return self._noise(self._policy(self._x)[self._positions], self._rows)

    def keep(self, mask: Tensor) -> None:
        """Go on with those for whom the bool `mask` holds, of those who play."""
        self._rows = self._rows[mask]
        positions = torch.arange(self._size)[mask] if self._positions is None else self._positions[mask]
        if 0 < len(positions) <= RESELECT_FRACTION * self._size:
            self._policy, self._size, positions = self._policy.select(positions), len(positions), None
        self._positions = positions

    def start_episodes(self, mask: Tensor) -> None:
        """Forget the hidden states of those who play and for whom `mask` holds."""
        if self._policy.h is not None:
            self._policy.reset(mask.nonzero().squeeze(1) if self._positions is None else self._positions[mask])


class MemberBatches:
    """Those of several subbatches, side by side."""

    def __init__(self, member_batches: Sequence[MemberBatch]):
        self._crowds = [*member_batches]
        self._sizes = [len(member_batch) for member_batch in member_batches]

    def __call__(self, features: Tensor) -> Tensor:
        if len(self._crowds) == 1:
            return self._crowds[0](features)
        parts = zip(self._crowds, features.split(self._sizes), strict=True)
        return torch.cat([member_batch(part) for member_batch, part in parts])

    def keep(self, mask: Tensor) -> None:
        """See `MemberBatch`."""
        for member_batch, part in zip(self._crowds, mask.split(self._sizes), strict=True):
            if not part.all():
                member_batch.keep(part)
        self._crowds = [member_batch for member_batch in self._crowds if len(member_batch)]
        self._sizes = [len(member_batch) for member_batch in self._crowds]

    def start_episodes(self, mask: Tensor) -> None:
        """See `MemberBatch`."""
        for member_batch, part in zip(self._crowds, mask.split(self._sizes), strict=True):
            member_batch.start_episodes(part)


class EpisodeAccounting:
    """What the members that still play have reached, one row each; rows of those who leave are put by.

    Attributes:
        ids: `[k]`, who plays.
        episodes: `[k]`, how many they ended.
    """

    def __init__(self, members: int, rules: FitnessRules):
        self.rules = rules
        self.ids = np.arange(members)
        self.episodes = np.zeros(members, np.int64)
        self._steps = np.zeros(members, np.int64)
        self._episode_start = np.zeros(members, np.int64)
        self._sums = np.zeros((2, members))  # fitness and returns; the first stays zero without shaping
        self._results = np.zeros((4, members))

    def add(self, reward: np.ndarray, terminated: np.ndarray, done: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Count a step of all who play: masks `[k]` of who ended an episode, and of who is thereby over."""
        self._steps += 1
        self._sums[1] += reward
        if self.rules.has_shaping:
            self._sums[0] += self.rules.shape_reward(reward, terminated, self._steps - self._episode_start)
        limit = self.rules.max_steps
        out_of_steps = None if limit is None else self._steps >= limit
        if out_of_steps is not None and out_of_steps.any():
            done = done | out_of_steps
        self.episodes += done
        finished = self.episodes >= self.rules.num_episodes
        return done, finished if out_of_steps is None else finished | out_of_steps

    def start_episodes(self, rows: np.ndarray) -> None:
        """These begin an episode."""
        self._episode_start[rows] = self._steps[rows]

    def record_finished(self, finished: np.ndarray) -> None:
        """Put by the results of these, and go on without them."""
        episodes = self.episodes[finished]
        self._results[:2, self.ids[finished]] = self._sums[:, finished] / episodes
        self._results[2, self.ids[finished]] = self._steps[finished] / episodes
        self._results[3, self.ids[finished]] = self._steps[finished]
        kept = ~finished
        self.ids, self.episodes, self._steps = self.ids[kept], self.episodes[kept], self._steps[kept]
        self._episode_start, self._sums = self._episode_start[kept], self._sums[:, kept]

    def result(self, start: int, stop: int, norm: RunningNorm | None) -> SubbatchResult:
        """Of some who play no more."""
        fitness, returns, lengths, steps = self._results[:, start:stop]
        scores = np.stack([fitness if self.rules.has_shaping else returns, returns, lengths])
        norm_state = None if norm is None else {name: value.numpy() for name, value in norm.state_dict().items()}
        return SubbatchResult(scores, int(steps.sum()), norm_state)


@contextmanager
def single_threaded() -> Iterator[None]:
    """Have torch use one thread, as it does in workers: how it shares work out may show in the last bit."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@torch.no_grad()
def evaluate_on_pool(
    pool: Pool,
    net: nn.Module,
    policy_io: PolicyIO,
    settings: EvaluationSettings,
    subbatches: Sequence[Subbatch],
    envs: np.ndarray,
) -> list[SubbatchResult]:
    """Let the members of subbatches play their episodes.

    Args:
        envs: `[m]`, the pool's environments that they play in, in their order.

    Raises:
        WorkerError: environments failed. Everything begins anew with the next call.
    """
    bounds = np.cumsum([0, *(len(subbatch.seeds) for subbatch in subbatches)]).tolist()
    seeds = np.concatenate([subbatch.seeds for subbatch in subbatches])
    member_batches = [_make_member_batch(net, policy_io, settings, subbatch) for subbatch in subbatches]
    accounting, policies = EpisodeAccounting(bounds[-1], settings.rules), MemberBatches(member_batches)

    def start_episodes(ids: np.ndarray, episodes: np.ndarray) -> np.ndarray:
        return pool.reset(seeds[ids, episodes].tolist(), ids=envs[ids]).obs

    with single_threaded():
        obs = start_episodes(accounting.ids, accounting.episodes)
        while len(accounting.ids):
            outputs = policies(policy_io.features(obs))
            pool.send(envs[accounting.ids], policy_io.actions(outputs).numpy())
            step = pool.recv()
            obs = step.obs
            done, finished = accounting.add(step.reward, step.terminated, step.done)
            if not done.any():
                continue
            if finished.any():
                kept = ~finished
                obs, done = obs[kept], done[kept]
                accounting.record_finished(finished)
                policies.keep(torch.from_numpy(kept))
            if done.any():
                obs[done] = start_episodes(accounting.ids[done], accounting.episodes[done])
                accounting.start_episodes(done)
                policies.start_episodes(torch.from_numpy(done))
        for member_batch in member_batches:
            member_batch.normalizer.flush()
    parts = zip(bounds, bounds[1:], member_batches, strict=False)
    return [accounting.result(start, stop, member_batch.normalizer.norm) for start, stop, member_batch in parts]


def _make_member_batch(
    net: nn.Module, policy_io: PolicyIO, settings: EvaluationSettings, subbatch: Subbatch
) -> MemberBatch:
    policy = Policy(net)
    policy.set_parameters(torch.from_numpy(subbatch.parameters))
    noise = settings.noise(len(subbatch.seeds), int(subbatch.members[0]), int(subbatch.seeds[0, 0]))
    return MemberBatch(policy, settings.normalizer(policy_io.obs_length), noise)
