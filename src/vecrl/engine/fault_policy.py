"""Handles environments that fail, under `on_failure="restart"` and `on_failure="mask"`.

The episode of a failed environment ends as truncated, with its last known observation and reward 0. Under "restart",
the environment is constructed again (or its whole worker, if that crashed or timed out) and is reset with a seed
derived from its previous one. Under "mask", it is excluded from then on.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ..errors import Failure, SpaceError, place_in
from ..seeding import seed_for
from .backends.base import Backend
from .batch_buffers import BatchBuffers
from .env_index import EnvIndex
from .infos import Info, Infos
from .pending import PendingCommand, PendingCommands
from .pool_options import PoolOptions
from .space_layout import Layout, LeafRows, Tree
from .transition_builder import TransitionBuilder
from .worker import Command, Op, WorkerInfo, WorkerReply

_BUDGET_WINDOW_S = 3600.0  # seconds
_MAX_RESTART_ATTEMPTS = 3  # how often one restart is tried
_log = logging.getLogger("vecrl")


class WorkerRestarter:
    """Restarts crashed workers.

    Args:
        backend: runs the workers.
        pending: the pending commands of the pool.
        worker_infos: what each worker reported when it was first constructed.
    """

    def __init__(self, backend: Backend, pending: PendingCommands, worker_infos: Sequence[WorkerInfo]):
        self._backend = backend
        self._pending = pending
        self._worker_infos = worker_infos

    def replace(self, workers: Sequence[int]) -> list[Failure]:
        """Restarts crashed workers and returns the failures. If there are any, all these workers count as crashed."""
        try:
            failures = self._replace(workers)
        except BaseException:  # Ctrl-C
            self._pending.open.pop(0, None)
            text = "interrupted while its worker was restarted"
            for worker in workers:
                ids = self._pending.ids_of([worker])
                self._mark_crashed(worker, Failure(ids, "construct", text, worker=worker, kind="crashed"))
            raise
        for worker in workers if failures else ():
            self._mark_crashed(worker, failures[0])
        return failures

    def _mark_crashed(self, worker: int, failure: Failure) -> None:
        self._pending.crashed.setdefault(worker, failure)
        self._backend.kill(worker)

    def _replace(self, workers: Sequence[int]) -> list[Failure]:
        pending = self._pending
        for worker in workers:
            pending.crashed.pop(worker, None)
            self._backend.respawn(worker)
        command = pending.register_internal(Op.CONSTRUCT, workers)
        failures = pending.wait_for(command, None)
        if not failures:
            failures = [f for worker, reply in command.replies for f in self._check_spaces(worker, reply.result)]
        if not failures:
            for worker in workers:
                self._backend.reattach(worker)
            failures = pending.wait_for(pending.register_internal(Op.ATTACH, workers), None)
        return failures

    def _check_spaces(self, worker: int, info: WorkerInfo) -> list[Failure]:
        expected = self._worker_infos[worker]
        if (info.observation_space, info.action_space) == (expected.observation_space, expected.action_space):
            return []
        error = SpaceError(
            f"expected the spaces {expected.observation_space} and {expected.action_space}, as before the restart, got "
            f"{info.observation_space} and {info.action_space}."
        )
        ids = self._pending.ids_of([worker])
        return [Failure(ids, "construct", f"SpaceError: {error}", worker=worker, exception=error)]


class FaultPolicy:
    """Restarts or excludes environments that fail, and writes their rows.

    Args:
        options: those of the pool, with "restart" or "mask" as `on_failure`. After `restarts_per_hour` failures within
            an hour, any further failure is returned as unhandled.
        backend, pending, env_index, buffers, transition_builder: those of the pool.
        layout: the layout of observations.
        restarter: restarts crashed workers.
        gather: waits for a command, at most as long as a step may take, and returns its failures.

    Attributes:
        alive: `[n]` bool, the environments that are not excluded.
        unreported: `[n]` bool, environments that failed while no command to them was pending. The next transition
            reports the end of their episodes.
    """

    def __init__(
        self,
        options: PoolOptions,
        backend: Backend,
        pending: PendingCommands,
        env_index: EnvIndex,
        buffers: BatchBuffers,
        layout: Layout,
        transition_builder: TransitionBuilder,
        restarter: WorkerRestarter,
        gather: Callable[[PendingCommand], list[Failure]],
    ):
        n = env_index.num_envs
        self.alive = np.ones(n, bool)
        self.unreported = np.zeros(n, bool)
        self._options = options
        self._backend = backend
        self._pending = pending
        self._env_index = env_index
        self._buffers = buffers
        self._transition_builder = transition_builder
        self._restarter = restarter
        self._gather = gather
        self._restart_slot = buffers.reserve_slot()  # for the observations of the resets after restarts
        self._last_obs = layout.empty(n)  # copies: an environment may write invalid values before it fails
        # the opaque observations, by leaf and id, and the infos, by id, of the resets after restarts
        self._first_objects: dict[int, dict[int, Tree]] = {leaf: {} for leaf in layout.opaque}
        self._first_infos: dict[int, Info] = {}
        self._errors: dict[int, str] = {}  # the latest error of each environment that failed
        self._returns = np.zeros(n)
        self._lengths = np.zeros(n, np.int64)
        self._seeds: list[int | None] = [None] * n
        self._restarts = [0] * n  # the number of restarts since that seed was given
        self._failure_times: deque[float] = deque()  # of failures within the last hour
        self._exclusion_reported = np.zeros(n, bool)  # excluded environments that a transition has reported
        self._current_commands: Sequence[PendingCommand] = ()  # the argument of `handle_failures` while it runs
        # to recognize a crash, which is the failure of every command that was pending on the worker
        self._handled_failures: deque[Failure] = deque(maxlen=2 * n)

    # -- records -----------------------------------------------------------------------------------

    def record_seeds(self, ids: Iterable[int], seeds: Sequence[int | None]) -> None:
        """Records the seeds of a reset. A seed of None changes nothing."""
        for env_id, seed in zip(ids, seeds, strict=True):
            if seed is not None:
                self._seeds[env_id], self._restarts[env_id] = seed, 0

    def seed_of(self, env_id: int) -> dict[str, int | None]:
        """Returns, for a saved state, the seed of an environment and the number of its restarts since."""
        return {"seed": self._seeds[env_id], "restarts": self._restarts[env_id]}

    def restore_state(self, env_id: int, state: Mapping[str, Any]) -> None:
        """Records a restored state. The last observation of the environment is not known until it steps."""
        self._returns[env_id], self._lengths[env_id] = state["return"], state["length"]
        self._seeds[env_id], self._restarts[env_id] = state.get("seed"), state.get("restarts", 0)
        self.unreported[env_id] = False

    def record(self, command: PendingCommand) -> None:
        """Records the observations, returns and lengths after a command, for environments that fail later."""
        slot = self._buffers.slots[command.slot]
        ids = slice(None) if command.ids is None else command.ids
        for last, leaf in zip(self._last_obs, slot.obs, strict=True):
            if leaf is not None:
                last[ids] = leaf[ids]
        if command.op == Op.RESET:
            self._returns[ids] = self._lengths[ids] = 0
            return
        terminated, truncated, was_reset = slot.flags[:, ids]
        self._returns[ids] += slot.reward[ids]
        self._lengths[ids] += 1
        done = terminated | truncated | was_reset
        self._returns[ids] *= ~done
        self._lengths[ids] *= ~done

    def excluded(self, reset_mask: np.ndarray | slice | None = None) -> np.ndarray | None:
        """Returns the environments that must not be sent the next command, `[n]` bool; None for none.

        Args:
            reset_mask: indexes the environments to be reset. The end of their episodes need not be reported any more.
        """
        if reset_mask is not None:
            self.unreported[reset_mask] &= ~self.alive[reset_mask]
        excluded = self.unreported | ~self.alive
        return excluded if excluded.any() else None

    def forget(self) -> None:
        """Drops the commands of restarts that timed out or were interrupted: nothing collects their replies."""
        for command in [command for command in self._pending.open.values() if command.slot == self._restart_slot]:
            del self._pending.open[command.seq]

    # -- failures ----------------------------------------------------------------------------------

    def kill_overdue(self, workers: Iterable[int], limit: float) -> bool:
        """Kills workers that timed out and records them as crashed. Returns False if one cannot be killed."""
        for worker in sorted(workers):
            if not self._backend.kill(worker):
                return False
            ids = self._pending.ids_of([worker])
            op_name = next((c.op for c in self._pending.open.values() if worker in c.waiting), Op.STEP).name.lower()
            text = f"no reply within {limit:g} s, so its worker was killed"
            failure = Failure(ids, op_name, text, worker=worker, kind="crashed")
            self._pending.on_replies([(worker, -1, WorkerReply(failures=[failure]))])
        return True

    def handle_failures(self, commands: Sequence[PendingCommand]) -> list[Failure]:
        """Handles the failures of commands, writes the rows of failed environments, and returns unhandled failures."""
        self._current_commands = commands
        unhandled = self._handle([failure for command in commands for failure in command.failures])
        self._current_commands = ()
        unhandled_ids = {i for failure in unhandled for i in failure.env_ids}
        for command in commands:
            failed = {i for failure in command.failures for i in failure.env_ids} - unhandled_ids
            requested_ids = range(self._env_index.num_envs) if command.ids is None else command.ids.tolist()
            self._write(
                command, [i for i in requested_ids if i in failed], [i for i in requested_ids if i in command.excluded]
            )
        return unhandled

    def handle_idle_failures(self, failures: Sequence[Failure]) -> list[Failure]:
        """Handles failures of workers without a pending command and returns unhandled failures."""
        return self._handle(failures)

    def _handle(self, failures: Sequence[Failure]) -> list[Failure]:
        unhandled: list[Failure] = []
        for failure in failures:
            is_handled = any(failure is handled for handled in self._handled_failures)
            if is_handled and failure is not self._pending.crashed.get(failure.worker):  # unless Ctrl-C ended a restart
                continue
            if any(failure is other for other in unhandled):
                continue
            ids = [i for i in failure.env_ids if self.alive[i]]
            if ids and not self._within_budget(ids, failure.error + place_in(failure.traceback)):
                unhandled.append(failure)  # change nothing else, so that the next call finds the failure again
                continue
            self._handled_failures.append(failure)
            if not ids:
                continue
            self._errors |= dict.fromkeys(ids, failure.error)
            if self._options.on_failure == "mask":
                self.alive[ids] = False
                self._mark_unreported(ids, [failure])
            elif restart_failures := self._restart(failure, _MAX_RESTART_ATTEMPTS):
                unhandled += [failure, *restart_failures]
        return unhandled

    def _mark_unreported(self, ids: Sequence[int], failures: Sequence[Failure]) -> None:
        """Marks the ended episodes of `ids` as unreported, except those that the result of a command reports."""
        reported: set[int] = set()
        for command in [*self._current_commands, *self._pending.completed]:
            for failure in failures:
                if any(failure is handled for handled in command.failures):
                    reported.update(
                        failure.env_ids if command.ids is None else set(failure.env_ids) & set(command.ids.tolist())
                    )
        self.unreported[[i for i in ids if i not in reported]] = True

    def _within_budget(self, ids: Sequence[int], error: str) -> bool:
        now = time.monotonic()
        while self._failure_times and now - self._failure_times[0] > _BUDGET_WINDOW_S:
            self._failure_times.popleft()
        if len(self._failure_times) >= self._options.restarts_per_hour:
            return False
        self._failure_times.append(now)
        action = "excluded" if self._options.on_failure == "mask" else "restarted"
        count = f"{len(self._failure_times)} of {self._options.restarts_per_hour} within an hour"
        _log.warning("%s failed and are %s (%s): %s", self._env_index.name(np.array(ids)), action, count, error)
        return True

    def _restart(self, failure: Failure, attempts: int) -> list[Failure]:
        """Restarts the environments of a failure and returns the failures of the last attempt."""
        worker, ids = failure.worker, failure.env_ids
        crash_failure = self._pending.crashed.get(worker)
        if crash_failure is None:
            restart_failures = self._send_and_wait(worker, ids, Op.REBUILD, None)
        else:  # all environments of the worker are lost, also those that are not part of `failure`
            self._handled_failures.append(crash_failure)
            ids = self._pending.ids_of([worker])
            self._errors |= dict.fromkeys(ids, crash_failure.error) | dict.fromkeys(failure.env_ids, failure.error)
            self._mark_unreported(ids, [failure, crash_failure])
            restart_failures = self._restarter.replace([worker])
        if not restart_failures:
            seeds = [self._next_seed(i) for i in ids]
            restart_failures = self._send_and_wait(worker, ids, Op.RESET, (seeds, None))
        if restart_failures and attempts > 1:
            failed = [p for restart_failure in restart_failures if (p := self._restart(restart_failure, attempts - 1))]
            restart_failures = list(itertools.chain.from_iterable(failed))
        return restart_failures

    def _next_seed(self, env_id: int) -> int | None:
        self._restarts[env_id] += 1
        seed = self._seeds[env_id]
        return None if seed is None else seed_for(seed, 0, self._restarts[env_id])

    def _send_and_wait(self, worker: int, ids: Sequence[int], op: Op, extra: object) -> list[Failure]:
        """Sends one worker a restart command, keeps its infos and opaque observations, and returns its failures."""
        slot = self._restart_slot
        rows = [i - int(self._env_index.worker_bounds[worker]) for i in ids]
        updating, self._pending.updating = self._pending.updating, True  # if this raises, `forget` drops the command
        command = self._pending.register(op, [worker], slot=slot)
        self._backend.send([(worker, Command(op, command.seq, slot, rows=rows, extra=extra))])
        failures = self._gather(command)
        self._pending.updating = updating
        for _, reply in command.replies:
            self._first_infos |= dict(reply.infos.items())
            for leaf, pairs in reply.objects.items():
                self._first_objects[leaf] |= dict(pairs)
        return failures

    # -- rows --------------------------------------------------------------------------------------

    def _write(self, command: PendingCommand, failed: Sequence[int], excluded: Sequence[int]) -> None:
        """Writes the rows of environments that failed now, and of those that were not sent the command."""
        command.failed = [*failed, *excluded]
        for ids in (failed, excluded):
            for env_id in ids:
                ends_episode = env_id in failed or bool(self.unreported[env_id])
                self._write_one(command, env_id, ends_episode and not self._exclusion_reported[env_id])
                self._exclusion_reported[env_id] = not self.alive[env_id]
        self.unreported[command.failed] = False

    def _write_one(self, command: PendingCommand, i: int, ends_episode: bool) -> None:
        slot, reply = self._buffers.slots[command.slot], WorkerReply()
        info: Info = {"failed": True, "error": self._errors[i]}
        reset_requested = command.op == Op.RESET or (command.reset_mask is not None and bool(command.reset_mask[i]))
        is_reset = bool(self.alive[i]) and (reset_requested or command.reset_done)
        if is_reset and not reset_requested:
            _copy(self._last_obs, self._buffers.final_obs, i)
            reply.final_infos.dicts.append((i, info))
            reply.final_objects = {
                leaf: [(i, self._transition_builder.latest(leaf, i))] for leaf in self._first_objects
            }
            info = self._first_infos.get(i, {})
        elif is_reset:
            info = {**self._first_infos.get(i, {}), **info}
        if is_reset:
            _copy(self._buffers.slots[self._restart_slot].obs, slot.obs, i)
            reply.objects = {leaf: [(i, objects[i])] for leaf, objects in self._first_objects.items()}
        else:
            _copy(self._last_obs, slot.obs, i)
        reply.infos.dicts.append((i, info))
        if not self._options.infos:
            reply.infos, reply.final_infos = Infos(), Infos()
        slot.reward[i] = 0.0
        slot.terminated[i], slot.truncated[i], slot.was_reset[i] = False, ends_episode and not reset_requested, is_reset
        slot.returns[i], slot.lengths[i] = self._returns[i], self._lengths[i]
        self._first_infos.pop(i, None)
        for _, other_reply in command.replies:
            _drop_row(other_reply, i)
        command.replies.append((0, reply))


def _copy(source: Sequence[Any], target: Sequence[LeafRows | None], i: int) -> None:
    for old, new in zip(source, target, strict=True):
        if new is not None:
            new[i] = old[i]


def _drop_row(reply: WorkerReply, i: int) -> None:
    """Removes the infos and objects of an environment, which it returned before it failed, from a reply."""
    for infos in (reply.infos, reply.final_infos):
        infos.dicts = [pair for pair in infos.dicts if pair[0] != i]
        if any(block.start <= i < block.start + len(block.data) for block in infos.batches):
            remaining = [pair for pair in infos.items() if pair[0] != i]
            infos.batches, infos.dicts = [], remaining
    for objects in (reply.objects, reply.final_objects):
        for leaf, pairs in objects.items():
            objects[leaf] = [pair for pair in pairs if pair[0] != i]
