"""Runs the episodes of a population's members over a `Pool`; finished members are no longer stepped.

Members act in subbatches, in the order of their numbers. The policies of one subbatch run as one batch, so results
depend only on the members of the subbatch, not on other subbatches, the workers or the timing.
`vecrl.policy.evaluation.device_loop` is the counterpart for a batched simulator on one device.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from ...engine.pool import Pool
from ..obs_norm import RunningNorm
from ..policy import Policy
from ..policy_io import PolicyIO
from .settings import ActionNoise, EvaluationSettings, FitnessRules, Normalizer

RESELECT_FRACTION = 0.8  # the policies are selected again when at most this share of them is active


@dataclass(frozen=True, slots=True)
class Subbatch:
    """Members that act together.

    Attributes:
        members: `[k]`, the numbers of the members.
        parameters: `[k, L]` float32.
        seeds: `[k, e]`, the seeds of all episodes that each member may start.
    """

    members: np.ndarray
    parameters: np.ndarray
    seeds: np.ndarray


@dataclass(frozen=True, slots=True)
class SubbatchResult:
    """The results of a subbatch, as arrays, since they may be pickled.

    Attributes:
        scores: `[3, k]` float64: fitness, returns and lengths as in `Evaluation`.
        interactions: the number of environment steps.
        norm_state: the state of the statistics of its observations; None without statistics.
    """

    scores: np.ndarray
    interactions: int
    norm_state: dict[str, np.ndarray] | None


class MemberBatch:
    """The policies of a subbatch's active members, from their features `[k, obs_length]` to outputs `[k, act_length]`.

    Policies of finished members are dropped several at a time, not one by one, because a selection copies parameters.
    """

    def __init__(self, policy: Policy, normalizer: Normalizer, noise: ActionNoise):
        self.normalizer = normalizer
        self._policy = policy
        self._noise = noise
        self._size = len(policy.parameters)
        self._rows = torch.arange(self._size)  # the active members
        self._positions: Tensor | None = None  # the active members among the current policies; None if all are active
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
        """Keeps only the active members in the bool `mask`."""
        self._rows = self._rows[mask]
        positions = torch.arange(self._size)[mask] if self._positions is None else self._positions[mask]
        if 0 < len(positions) <= RESELECT_FRACTION * self._size:
            self._policy, self._size, positions = self._policy.select(positions), len(positions), None
        self._positions = positions

    def start_episodes(self, mask: Tensor) -> None:
        """Resets the hidden states of the active members in `mask`."""
        if self._policy.h is not None:
            self._policy.reset(mask.nonzero().squeeze(1) if self._positions is None else self._positions[mask])


class MemberBatches:
    """The member batches of several subbatches, with concatenated rows."""

    def __init__(self, member_batches: Sequence[MemberBatch]):
        self._member_batches = [*member_batches]
        self._sizes = [len(member_batch) for member_batch in member_batches]

    def __call__(self, features: Tensor) -> Tensor:
        if len(self._member_batches) == 1:
            return self._member_batches[0](features)
        parts = zip(self._member_batches, features.split(self._sizes), strict=True)
        return torch.cat([member_batch(part) for member_batch, part in parts])

    def keep(self, mask: Tensor) -> None:
        """Keeps only the active members in `mask`, like `MemberBatch.keep`."""
        for member_batch, part in zip(self._member_batches, mask.split(self._sizes), strict=True):
            if not part.all():
                member_batch.keep(part)
        self._member_batches = [member_batch for member_batch in self._member_batches if len(member_batch)]
        self._sizes = [len(member_batch) for member_batch in self._member_batches]

    def start_episodes(self, mask: Tensor) -> None:
        """Resets the hidden states of the active members in `mask`, like `MemberBatch.start_episodes`."""
        for member_batch, part in zip(self._member_batches, mask.split(self._sizes), strict=True):
            member_batch.start_episodes(part)


class EpisodeAccounting:
    """Counts steps, episodes and rewards of the active members, one row each; stores the results of finished members.

    Attributes:
        ids: `[k]`, the ids of the active members.
        episodes: `[k]`, the number of episodes that each has ended.
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
        """Counts a step of all active members; returns masks `[k]` of ended episodes and of finished members."""
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
        """Records that the members in `rows` start an episode."""
        self._episode_start[rows] = self._steps[rows]

    def record_finished(self, finished: np.ndarray) -> None:
        """Stores the results of finished members, and removes their rows."""
        episodes = self.episodes[finished]
        self._results[:2, self.ids[finished]] = self._sums[:, finished] / episodes
        self._results[2, self.ids[finished]] = self._steps[finished] / episodes
        self._results[3, self.ids[finished]] = self._steps[finished]
        kept = ~finished
        self.ids, self.episodes, self._steps = self.ids[kept], self.episodes[kept], self._steps[kept]
        self._episode_start, self._sums = self._episode_start[kept], self._sums[:, kept]

    def result(self, start: int, stop: int, norm: RunningNorm | None) -> SubbatchResult:
        """Returns the results of the members from `start` to `stop`, which must be finished."""
        fitness, returns, lengths, steps = self._results[:, start:stop]
        scores = np.stack([fitness if self.rules.has_shaping else returns, returns, lengths])
        norm_state = None if norm is None else {name: value.numpy() for name, value in norm.state_dict().items()}
        return SubbatchResult(scores, int(steps.sum()), norm_state)


@contextmanager
def single_threaded() -> Iterator[None]:
    """Makes torch use one thread, as in workers, because the number of threads may change the last bit of results."""
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
    """Runs the episodes of the members of subbatches and returns the results of each subbatch.

    Args:
        pool: the pool of environments.
        net: the network.
        policy_io: the conversion between network and spaces.
        settings: the settings of the call.
        subbatches: the subbatches, with m members in total.
        envs: `[m]`, the id in the pool of each member's environment.

    Raises:
        WorkerError: environments failed. The next call resets everything.
    """
    bounds = np.cumsum([0, *(len(subbatch.seeds) for subbatch in subbatches)]).tolist()
    seeds = np.concatenate([subbatch.seeds for subbatch in subbatches])
    member_batches = [_make_member_batch(net, policy_io, settings, subbatch) for subbatch in subbatches]
    accounting, policies = EpisodeAccounting(bounds[-1], settings.rules), MemberBatches(member_batches)

    def start_episodes(ids: np.ndarray, episodes: np.ndarray) -> Tensor:
        return policy_io.features(pool.reset(seeds[ids, episodes].tolist(), ids=envs[ids]).obs)

    with single_threaded():
        features = start_episodes(accounting.ids, accounting.episodes)
        while len(accounting.ids):
            pool.send(envs[accounting.ids], policy_io.action_arrays(policies(features)))
            step = pool.recv()
            features = policy_io.features(step.obs)
            done, finished = accounting.add(step.reward, step.terminated, step.done)
            if not done.any():
                continue
            if finished.any():
                kept = torch.from_numpy(~finished)
                features, done = features[kept], done[~finished]
                accounting.record_finished(finished)
                policies.keep(kept)
            if done.any():
                restarting = torch.from_numpy(done)
                features[restarting] = start_episodes(accounting.ids[done], accounting.episodes[done])
                accounting.start_episodes(done)
                policies.start_episodes(restarting)
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
