"""Executes commands on one simulator. Every backend runs this code, and no other, in its workers.

A worker owns one simulator of k environments with consecutive ids, and their rows of the batch buffers. `execute`
writes the rows and returns the rest as a `WorkerReply`; so does `step`, for a caller in the same thread. They do not
raise an environment's exception: failures are part of the reply.
"""

from __future__ import annotations

import math
import os
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from types import TracebackType
from typing import Any, Literal

import numpy as np

from ..errors import Failure, SpaceError, StateError
from .batch_buffers import BatchBuffers
from .infos import InfoBatch, InfoPacker, Infos
from .simulator import (
    ObjectRows,
    ResetOptions,
    RowBuffers,
    RowFailures,
    Simulator,
    StepNotes,
    StepsAndResets,
    SupportsInnermostEnvs,
    SupportsRebuild,
    SupportsSetSpaces,
    SupportsState,
    raise_if_of_caller,
)
from .space_layout import AnySpace, LeafRows, Tree, describe


class Op(IntEnum):
    """The operation of a command."""

    CONSTRUCT = 0
    ATTACH = 1
    RESET = 2
    STEP = 3
    INVOKE = 4
    CLOSE = 5
    REBUILD = 6


@dataclass(slots=True)
class Command:
    """One request to one worker.

    Attributes:
        op: the operation.
        seq: the number of the command, which the reply repeats.
        slot: index of the slot to write.
        reset_done: whether a row in which the episode ends is reset at once.
        masked: whether the `reset_mask` of the batch buffers selects rows to reset instead of stepping them.
        rows: rows relative to the worker's first row; None for all. In a step, a negative number r means: reset row
            `~r`.
        extra: further arguments of the operation.
    """

    op: Op
    seq: int = 0
    slot: int = 0
    reset_done: bool = False
    masked: bool = False
    rows: Sequence[int] | None = None
    extra: Any = None


@dataclass(slots=True)
class WorkerReply:
    """What a worker returns in addition to the rows that it wrote. It uses environment ids, not rows."""

    infos: Infos = field(default_factory=Infos)
    final_infos: Infos = field(default_factory=Infos)
    objects: ObjectRows = field(default_factory=ObjectRows)
    final_objects: ObjectRows = field(default_factory=ObjectRows)
    failures: list[Failure] = field(default_factory=list[Failure])
    result: Any = None


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """What a worker reports about itself after it has constructed its simulator.

    `env_ids` are the identities of its environments behind all wrappers, valid in the process `pid`.
    """

    num_envs: int
    observation_space: AnySpace
    action_space: AnySpace
    metadata: dict[str, Any]
    render_mode: str | None
    spec: Any
    pid: int
    env_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """The arguments from which a worker is constructed.

    Attributes:
        index: index of the worker.
        start: the id of its first environment.
        num_envs: k.
        make: constructs its simulator.
        infos: whether to return infos; "dicts": always as dicts, never as columns.
        check_nan: whether a NaN in an observation or a reward is a failure.
        seed: seeds the global random generators if the worker has its own process, 0 <= seed < 2**64.
    """

    index: int
    start: int
    num_envs: int
    make: Callable[[], Simulator]
    infos: bool | Literal["dicts"] = True
    check_nan: bool = False
    seed: int = 0

    @property
    def ids(self) -> tuple[int, ...]:
        """The ids of its environments."""
        return tuple(range(self.start, self.start + self.num_envs))


class Worker:
    """Executes commands on one simulator."""

    def __init__(self, worker_spec: WorkerSpec):
        self.worker_spec = worker_spec
        self.rows = slice(worker_spec.start, worker_spec.start + worker_spec.num_envs)
        self.sim: Simulator | None = None
        self.num_steps = 0
        self._info_packer = InfoPacker()
        startup = self._construct, self._attach
        self._handlers = (*startup, self._reset, self._step, self._invoke, self._close, self._rebuild)  # in Op's order

    def execute(self, command: Command) -> WorkerReply | None:
        """Executes a command. Returns None if everything is in the rows."""
        try:
            return self._handlers[command.op](command)
        except BaseException as error:
            raise_if_of_caller(error)
            return self._failed_reply(command.op, error)

    def step(self, actions: Sequence[Tree], buffers: RowBuffers, reset_done: bool, masked: bool) -> WorkerReply | None:
        """Steps all rows, or resets them where the reset mask holds. Returns None if everything is in the rows.

        Args:
            actions: one per row, in memory that the environments may keep.
            buffers: the rows to write.
            reset_done: whether a row in which the episode ends is reset at once.
            masked: whether the `reset_mask` of the batch buffers selects rows to reset instead of stepping them.
        """
        sim: Any = self.sim
        try:
            if masked and not self._can_mix:
                rows, reset_rows = _split(self.reset_mask)
                return self._step_some(rows, reset_rows, [actions[row] for row in rows], buffers, reset_done)
            buffers.flags.fill(False)
            self.num_steps += 1
            if masked:
                notes = sim.step(None, actions, buffers, reset_done, self.reset_mask.tolist())
            else:
                notes = sim.step(None, actions, buffers, reset_done)
            if len(self.returns) == 1:  # faster than an array operation
                self.returns[0] += buffers.reward[0]
            else:
                self.returns += buffers.reward
            if masked:
                for row in self.reset_mask.nonzero()[0].tolist():
                    buffers.was_reset[row] = True
                    self._start_episodes(row)
            if notes.done_rows or self.worker_spec.check_nan:
                self._end_step(notes, slice(None), buffers, reset_done)
            if notes.infos or notes.final_infos or notes.objects or notes.failures:
                return self._make_reply(Op.STEP, notes, reset_mask=self.reset_mask if masked else None)
            return None
        except BaseException as error:
            raise_if_of_caller(error)
            return self._failed_reply(Op.STEP, error)

    # -- operations ------------------------------------------------------------------------------

    def _construct(self, command: Command) -> WorkerReply:
        sim = self.worker_spec.make()
        if sim.num_envs != self.worker_spec.num_envs:
            raise SpaceError(f"Expected a simulator of {self.worker_spec.num_envs} environments, got {sim.num_envs}.")
        self.sim = sim
        spaces = sim.observation_space, sim.action_space
        facts = dict(sim.metadata), sim.render_mode, sim.spec, os.getpid()
        env_ids = tuple(map(id, sim.innermost_envs)) if isinstance(sim, SupportsInnermostEnvs) else ()
        return WorkerReply(result=WorkerInfo(sim.num_envs, *spaces, *facts, env_ids))

    def _attach(self, command: Command) -> None:
        """Attaches to the batch buffers; `extra` holds the buffers and the layouts of observations and actions."""
        batch_buffers, self.obs_layout, self.action_layout = command.extra
        assert isinstance(batch_buffers, BatchBuffers)
        self.slots = batch_buffers.rows(self.rows.start, self.rows.stop)
        self.actions = [None if a is None else a[self.rows] for a in batch_buffers.actions]
        self.reset_mask = batch_buffers.reset_mask[self.rows]
        self._can_mix = isinstance(self.sim, StepsAndResets)
        if isinstance(self.sim, SupportsSetSpaces):
            self.sim.set_spaces(self.obs_layout.space, self.action_layout.space)
        self.returns = np.zeros(self.worker_spec.num_envs)
        # `num_steps` when the episode of a row started, plus the later steps of other rows without this one
        self._first_steps = np.full(self.worker_spec.num_envs, self.num_steps)

    def _reset(self, command: Command) -> WorkerReply | None:
        seeds, options = command.extra or (None, None)
        return self._make_reply(command.op, self._reset_rows(command.rows, seeds, options, self.slots[command.slot]))

    def _reset_rows(
        self,
        rows: Sequence[int] | None,
        seeds: Sequence[int | None] | None,
        options: ResetOptions | None,
        buffers: RowBuffers,
    ) -> StepNotes:
        assert self.sim is not None
        notes = self.sim.reset(rows, seeds, options, buffers)
        index = slice(None) if rows is None else rows
        buffers.reward[index] = 0.0
        buffers.terminated[index] = buffers.truncated[index] = False
        buffers.was_reset[index] = True
        self._start_episodes(index)
        if self.worker_spec.check_nan:
            self._find_nan(index, buffers, notes)
        return notes

    def _start_episodes(self, rows: int | Sequence[int] | slice) -> None:
        self.returns[rows] = 0.0
        self._first_steps[rows] = self.num_steps

    def _step(self, command: Command) -> WorkerReply | None:
        """Steps or resets the rows of a command."""
        buffers, reset_done = self.slots[command.slot], command.reset_done
        if command.rows is not None or (command.masked and command.extra):
            if command.rows is None:
                rows, reset_rows = _split(self.reset_mask)
            else:
                rows, reset_rows = [r for r in command.rows if r >= 0], [~r for r in command.rows if r < 0]
            actions = self._actions(np.array(rows, np.int64), command.extra)
            return self._step_some(rows, reset_rows, actions, buffers, reset_done)
        return self.step(self._actions(None, command.extra), buffers, reset_done, command.masked)

    def _step_some(
        self,
        rows: Sequence[int],
        reset_rows: Sequence[int],
        actions: Sequence[Tree],
        buffers: RowBuffers,
        reset_done: bool,
    ) -> WorkerReply | None:
        """Resets some rows and steps others with one action each, and updates their returns."""
        assert self.sim is not None
        self.num_steps += 1
        self._first_steps += 1  # of the rows that are not stepped
        buffers.flags[:, [*rows, *reset_rows]] = False
        reply = self._make_reply(Op.RESET, self._reset_rows(reset_rows, None, None, buffers)) if reset_rows else None
        if not rows:
            return reply
        index = np.array(rows)
        notes = self.sim.step(rows, actions, buffers, reset_done)
        self.returns[index] += buffers.reward[index]
        self._first_steps[index] -= 1
        self._end_step(notes, rows, buffers, reset_done)
        return self._make_reply(Op.STEP, notes, reply)

    def _end_step(self, notes: StepNotes, index: Sequence[int] | slice, buffers: RowBuffers, reset_done: bool) -> None:
        """Records the episodes that ended in a step of the rows of `index`."""
        for row in notes.done_rows:
            buffers.returns[row] = self.returns[row]
            buffers.lengths[row] = self.num_steps - self._first_steps[row]
            if reset_done:
                buffers.was_reset[row] = True
                self._start_episodes(row)
        if self.worker_spec.check_nan:
            self._find_nan(index, buffers, notes)

    def _actions(self, rows: np.ndarray | None, objects: Mapping[int, LeafRows] | None) -> Sequence[Tree]:
        """Returns one action per row. They are copies, since a simulator may keep them."""
        count = self.worker_spec.num_envs if rows is None else len(rows)
        if rows is None and not objects:
            return self.action_layout.lazy_rows([leaf.copy() for leaf in self.actions if leaf is not None], count)
        leaves: list[LeafRows] = []
        sent = objects or {}
        for index, leaf in enumerate(self.actions):
            if leaf is None or index in sent:
                leaves.append(sent[index])
            else:
                leaves.append(leaf.copy() if rows is None else leaf[rows])
        return self.action_layout.lazy_rows(leaves, count)

    def _invoke(self, command: Command) -> WorkerReply:
        assert self.sim is not None
        kind, name, values = command.extra
        rows = range(self.worker_spec.num_envs) if command.rows is None else command.rows
        results: list[object] = []
        failures: list[tuple[int, BaseException]] = []
        for row, value in zip(rows, values, strict=True):
            try:
                results.append(self._access(row, kind, name, value))
            except BaseException as error:
                raise_if_of_caller(error)
                results.append(None)
                failures.append((row, error))
        verb = name if kind == "call" else kind
        return WorkerReply(result=results, failures=self._failures(verb, failures))

    def _access(self, row: int, kind: str, name: str, value: Any) -> object:
        """Accesses one environment. Its state includes the return and length that this worker counts."""
        sim = self.sim
        assert sim is not None
        if kind not in ("get_state", "set_state"):
            return sim.invoke(row, kind, name, value)
        if not isinstance(sim, SupportsState):
            raise StateError(
                "Expected a simulator with get_state(row) and set_state(row, state, allow), got "
                f"{type(sim).__name__} without get_state. Add both methods, or save only what you need to construct "
                "and reset the environments."
            )
        if kind == "get_state":
            length = int(self.num_steps - self._first_steps[row])
            return {"env": sim.get_state(row), "return": float(self.returns[row]), "length": length}
        state, allow = value
        sim.set_state(row, state["env"], allow)
        self.returns[row], self._first_steps[row] = state["return"], self.num_steps - state["length"]
        return None

    def _close(self, command: Command) -> WorkerReply | None:
        if self.sim is not None:
            self.sim.close()
        return None

    def _rebuild(self, command: Command) -> WorkerReply | None:
        """Rebuilds `rows` if the simulator can do that. For one that cannot, the reset that follows must suffice."""
        failures: list[tuple[int, BaseException]] = []
        for row in command.rows or []:
            try:
                if isinstance(self.sim, SupportsRebuild):
                    self.sim.rebuild(row)
            except BaseException as error:
                raise_if_of_caller(error)
                failures.append((row, error))
        return WorkerReply(failures=self._failures("construct", failures)) if failures else None

    # -- replies ---------------------------------------------------------------------------------

    def _make_reply(
        self,
        op: Op,
        notes: StepNotes,
        previous: WorkerReply | None = None,
        reset_mask: np.ndarray | None = None,
    ) -> WorkerReply | None:
        """Returns `previous` extended by `notes`, or None if the reply would be empty.

        Failures in rows of `reset_mask` are failures of a reset.
        """
        has_infos = self.worker_spec.infos and (notes.infos or notes.final_infos)
        if not has_infos and not notes.objects and not notes.failures:
            return previous
        infos, final_infos = self._infos(notes.infos, notes), self._infos(notes.final_infos, notes)
        if previous is None:
            reply = WorkerReply(infos, final_infos)
        else:
            reply = previous
            reply.infos.extend(infos)
            reply.final_infos.extend(final_infos)
        if notes.objects or notes.final_objects:
            for leaf, pairs in self._to_env_ids(notes.objects).items():
                reply.objects[leaf] = reply.objects.get(leaf, []) + pairs
            reply.final_objects |= self._to_env_ids(notes.final_objects)
        for row, error in notes.failures:
            is_reset = reset_mask is not None and reset_mask[row]
            reply.failures.append(self._failure(Op.RESET if is_reset else op, [row], error))
        return reply

    def _infos(self, infos: Sequence[tuple[int, Any]], notes: StepNotes) -> Infos:
        if not infos or not self.worker_spec.infos:
            return Infos()
        start = self.worker_spec.start
        all_rows = len(infos) == self.worker_spec.num_envs and self.worker_spec.infos != "dicts"
        if all_rows and (data := self._info_packer.pack(infos)) is not None:
            return Infos(batches=[InfoBatch(start, data)])
        result = Infos()
        for row, info in infos:
            if isinstance(info, Mapping):
                result.dicts.append((start + row, info))
            else:
                notes.failures.append((row, SpaceError(f"expected a dict as the info, got {describe(info)}.")))
        return result

    def _to_env_ids(self, objects: ObjectRows) -> ObjectRows:
        start = self.worker_spec.start
        return {leaf: [(start + row, value) for row, value in pairs] for leaf, pairs in objects.items()}

    def _failed_reply(self, op: Op, error: BaseException) -> WorkerReply:
        """Returns the reply for an operation that raised: some rows failed, or all."""
        if isinstance(error, RowFailures):
            return WorkerReply(failures=self._failures(op, error.failures))
        return WorkerReply(failures=[self._failure(op, range(self.worker_spec.num_envs), error)])

    def _failures(self, op: Op | str, failures: Sequence[tuple[int, BaseException]]) -> list[Failure]:
        return [self._failure(op, [row], error) for row, error in failures]

    def _failure(self, op: Op | str, rows: Iterable[int], error: BaseException) -> Failure:
        ids = tuple(self.worker_spec.start + row for row in rows)
        command = op.name.lower() if isinstance(op, Op) else op
        return describe_failure(ids, command, error, self.worker_spec.index, self.num_steps)

    def _find_nan(self, index: Sequence[int] | slice, buffers: RowBuffers, notes: StepNotes) -> None:
        """Adds a failure for each row with a NaN in its reward, observation or final observation."""
        final = np.zeros(len(buffers.reward), bool)
        final[notes.done_rows] = buffers.was_reset[notes.done_rows]
        has_nan = np.isnan(buffers.reward) | _nan_rows(buffers.obs) | (_nan_rows(buffers.final_obs) & final)
        selected = np.zeros(len(has_nan), bool)
        selected[index] = True
        already_failed = {row for row, _ in notes.failures}
        for row in np.flatnonzero(has_nan & selected).tolist():
            if row not in already_failed:
                quantity = "reward" if np.isnan(buffers.reward[row]) else "observation"
                notes.failures.append((row, FloatingPointError(f"the {quantity} is NaN (found since check_nan=True)")))


def _split(reset_mask: np.ndarray) -> tuple[list[int], list[int]]:
    """Returns the rows to step and the rows to reset."""
    return np.flatnonzero(~reset_mask).tolist(), np.flatnonzero(reset_mask).tolist()


def _nan_rows(leaves: Sequence[Any]) -> np.ndarray | bool:
    """Returns a mask `[k]` bool of the rows in which one of these arrays `[k, ...]` holds a NaN."""
    has_nan: np.ndarray | bool = False
    for leaf in leaves:
        if leaf is not None and leaf.dtype.kind == "f":
            has_nan = has_nan | np.isnan(leaf).reshape(len(leaf), math.prod(leaf.shape[1:])).any(1)
    return has_nan


def describe_failure(ids: tuple[int, ...], command: str, error: BaseException, worker: int, step: int) -> Failure:
    """Returns a `Failure` for an exception, also if the exception's own `__str__` raises.

    It has no traceback if the exception was made to explain another one, and never raised; or if a construction failed
    in this library or gymnasium, before any code of an environment ran, as with an unknown name or a missing library.
    """
    try:
        text = f"{type(error).__name__}: {error}"
    except Exception:
        text = f"{type(error).__name__} (its __str__ raised)"
    is_explained = error.__traceback__ is None and error.__cause__ is None
    if is_explained or (command == "construct" and _is_of_libraries(error.__traceback__)):
        return Failure(ids, command, text, "", worker, os.getpid(), step, error)
    try:
        trace = "".join(traceback.format_exception(error))
    except Exception:
        trace = "".join(traceback.format_tb(error.__traceback__))
    return Failure(ids, command, text, trace, worker, os.getpid(), step, error)


def _is_of_libraries(trace: TracebackType | None) -> bool:
    """Returns whether all code in a traceback is of this library, gymnasium or Python's own modules for both."""
    frames = [frame for frame, _ in traceback.walk_tb(trace)]
    modules = {str(frame.f_globals.get("__name__")).partition(".")[0] for frame in frames}
    return modules <= {__name__.partition(".")[0], "gymnasium", "importlib", "contextlib"}
