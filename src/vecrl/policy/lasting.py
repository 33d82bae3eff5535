"""Environments that outlast their workers: what a lost one had lived through is lived through again, elsewhere.

An episode follows from its seed and the actions that it was given, which are kept until it ends. Where a worker is gone
(its process was killed, its node went), another takes its place, begins the same episodes and is given the same
actions: then it stands where the lost one stood, to the bit, and the others have waited for it. No policy is asked
again. Knows pools and seeds, nothing of policies.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import numpy as np

from vecrl.engine.pool import Pool
from vecrl.engine.transitions import Transition
from vecrl.errors import WorkerCrash

Seeding = Callable[[np.ndarray, np.ndarray], np.ndarray]
PATIENCE = 3  # how often an environment may lose its worker within one evaluation, before that is its own doing
_log = logging.getLogger("vecrl")


class LastingPool:
    """The environments of one evaluation.

    Args:
        pool: whose workers may be lost; its observations are arrays.
        seeds: of the episodes `(ids, episodes)`.
        members: how many of the pool's environments play.
    """

    def __init__(self, pool: Pool, seeds: Seeding, members: int):
        self._pool = pool
        self._seeds = seeds
        self._playing = np.arange(members)
        self._episodes = np.zeros(members, np.int64)
        self._begun = np.zeros(members, np.int64)  # the number of the step with which each one's episode begins
        self._losses = np.zeros(members, np.int64)
        self._steps: list[tuple[np.ndarray, np.ndarray]] = []  # ids and their actions, as far back as is needed
        self._first = 0  # the number of the first of them

    @property
    def _now(self) -> int:
        """How many steps there were."""
        return self._first + len(self._steps)

    def begin(self, ids: np.ndarray, episodes: np.ndarray) -> np.ndarray:
        """Begin these episodes; the observations `[len(ids), ...]`.

        Raises:
            WorkerError: environments failed, or lose every worker that they are given.
        """
        self._episodes[ids], self._begun[ids] = episodes, self._now
        oldest = int(self._begun[self._playing].min())
        del self._steps[: oldest - self._first]
        self._first = oldest
        while True:
            try:
                return self._reset(ids).obs
            except WorkerCrash as error:
                self._restore(error, self._now)

    def step(self, ids: np.ndarray, actions: np.ndarray) -> Transition:
        """Step all who play.

        Raises:
            WorkerError: as `begin`.
        """
        self._playing = ids
        while True:
            try:
                self._pool.send(ids, actions)
                self._steps.append((ids, actions))
                return self._pool.recv()
            except WorkerCrash as error:
                if error.transition is not None:  # the others took the step
                    return self._completed(error)
                self._restore(error, self._now)

    def _completed(self, error: WorkerCrash) -> Transition:
        """The transition of a step that some did not live to see."""
        step: Transition = error.transition
        lost, last = self._restore(error, self._now)
        if last is not None:
            where = np.isin(step.ids, lost)
            for name in ("obs", "reward", "terminated", "truncated"):
                getattr(step, name)[where] = getattr(last, name)
        return step

    def _reset(self, ids: np.ndarray) -> Transition:
        return self._pool.reset(self._seeds(ids, self._episodes[ids]).tolist(), ids=ids)

    def _restore(self, error: WorkerCrash, stop: int) -> tuple[np.ndarray, Transition | None]:
        """Replace the workers that are gone, and bring theirs who play to where they were after `stop` steps.

        Returns:
            `[m]`, those, and what the last step yielded them; None where there was none.
        """
        lost = np.zeros(self._pool.num_envs, bool)
        while True:
            ids = self._playing[np.isin(self._playing, error.env_ids)]
            self._losses[ids] += 1
            if (self._losses > PATIENCE).any() or any(failure.kind != "crashed" for failure in error.failures):
                raise error
            _log.warning("%s Their episodes are lived through again in others.", str(error).splitlines()[0])
            try:
                lost[self._pool.replace_lost()] = True
                ids = self._playing[lost[self._playing]]
                return ids, self._replay(ids, stop)
            except WorkerCrash as another:
                error = another

    def _replay(self, lost: np.ndarray, stop: int) -> Transition | None:
        """Have these live through their episodes again, up to the step `stop`; what the last step yielded."""
        last = None
        if len(lost):
            self._reset(lost)
            for number in range(int(self._begun[lost].min()), stop):
                ids, actions = self._steps[number - self._first]
                mine = np.isin(ids, lost) & (self._begun[ids] <= number)
                if mine.any():
                    self._pool.send(ids[mine], actions[mine])
                    last = self._pool.recv()
        return last
