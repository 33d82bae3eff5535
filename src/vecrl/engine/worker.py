"""The only loop body of the library: what a worker does on a command.

A worker owns one simulator of k environments, whose ids follow one another, and their rows of the arena. However the
command came (a call, a queue, a pipe), `execute` does the work and gives back what is to be said beside the
rows. It never raises on account of an environment: failures are part of the report.
"""

from __future__ import annotations

import math
import os
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Literal

import numpy as np
from gymnasium import Space

from ..errors import Failure, SpaceError, StateError
from .batch_buffers import BatchBuffers
from .infos import InfoBatch, InfoPacker, Infos
from .simulator import (
    RowBuffers,
    RowFailures,
    Simulator,
    StepNotes,
    SupportsRebuild,
    SupportsSetSpaces,
    SupportsState,
)
from .space_layout import Tree, describe


class Op(IntEnum):
    """What a command asks for."""

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
        op: what to do.
        seq: its number, which the answer repeats.
        slot: the slot of the arena to write.
        reset_done: whether a row that ends begins anew at once.
        masked: whether the arena's `begin` mask names rows to begin instead of stepping.
        rows: the worker's own rows; None for all. A step begins row `~row` anew where the number is negative.
        extra: what the operation needs beside.
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
    """What a worker says beside the rows it wrote; rows are already environment ids here."""

    infos: Infos = field(default_factory=Infos)
    final_infos: Infos = field(default_factory=Infos)
    objects: dict[int, list[tuple[int, Any]]] = field(default_factory=dict[int, list[tuple[int, Any]]])
    final_objects: dict[int, list[tuple[int, Any]]] = field(default_factory=dict[int, list[tuple[int, Any]]])
    failures: list[Failure] = field(default_factory=list[Failure])
    result: Any = None


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """What a worker says of itself when its simulator stands."""

    num_envs: int
    observation_space: Space[Any]
    action_space: Space[Any]
    metadata: dict[str, Any]
    render_mode: str | None
    spec: Any
    pid: int


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """What a worker is to be.

    Attributes:
        index: its number among the workers.
        start: the id of its first environment.
        num_envs: k.
        make: makes its simulator.
        infos: whether infos are wanted; "dicts": never as columns.
        check_nan: whether a NaN in an observation or a reward is a failure.
        seed: of the global random generators of a process that is the worker's own, 0 <= seed < 2**64.
    """

    index: int
    start: int
    num_envs: int
    make: Callable[[], Simulator]
    infos: bool | Literal["dicts"] = True
    check_nan: bool = False
    seed: int = 0


class Worker:
    """Carries out commands on one simulator. See the module."""

    def __init__(self, worker_spec: WorkerSpec):
        self.worker_spec = worker_spec
        self.sim: Simulator | None = None
        self.num_steps = 0
        self._info_packer = InfoPacker()
        startup = self._construct, self._attach
        self._handlers = (*startup, self._reset, self._step, self._invoke, self._close, self._rebuild)  # in Op's order

    def execute(self, command: Command) -> WorkerReply | None:
        """Do as told; None where there is nothing to say."""
        try:
            return self._handlers[command.op](command)
        except RowFailures as error:
            return WorkerReply(failures=self._failures(command.op, error.failures))
        except (Exception, SystemExit) as error:
            return WorkerReply(failures=[self._failure(command.op, range(self.worker_spec.num_envs), error)])

    # -- operations ------------------------------------------------------------------------------

    def _construct(self, command: Command) -> WorkerReply:
        sim = self.worker_spec.make()
        if sim.num_envs != self.worker_spec.num_envs:
            raise SpaceError(
                f"Expected a simulator of {self.worker_spec.num_envs} environments, but it has {sim.num_envs}."
            )
        self.sim = sim
        spaces = sim.observation_space, sim.action_space
        return WorkerReply(
            result=WorkerInfo(sim.num_envs, *spaces, dict(sim.metadata), sim.render_mode, sim.spec, os.getpid())
        )

    def _attach(self, command: Command) -> None:
        """Take this worker's rows of the arena (`extra`: the arena, and the layout of observations and actions)."""
        batch_buffers, self.obs_layout, self.action_layout = command.extra
        assert isinstance(batch_buffers, BatchBuffers)
        start, stop = self.worker_spec.start, self.worker_spec.start + self.worker_spec.num_envs
        self.slots = batch_buffers.rows(start, stop)
        self.actions = [None if a is None else a[start:stop] for a in batch_buffers.actions]
        self.reset_mask = batch_buffers.reset_mask[start:stop]
        if isinstance(self.sim, SupportsSetSpaces):
            self.sim.set_spaces(self.obs_layout.space, self.action_layout.space)
        self.returns = np.zeros(self.worker_spec.num_envs)
        self.lengths = np.zeros(self.worker_spec.num_envs, np.int64)

    def _reset(self, command: Command) -> WorkerReply | None:
        seeds, options = command.extra or (None, None)
        return self._make_reply(command.op, self._reset_rows(command.rows, seeds, options, self.slots[command.slot]))

    def _reset_rows(self, rows: Sequence[int] | None, seeds: Any, options: Any, buffers: RowBuffers) -> StepNotes:
        assert self.sim is not None
        notes = self.sim.reset(rows, seeds, options, buffers)
        index: Any = slice(None) if rows is None else rows
        buffers.reward[index] = 0.0
        buffers.terminated[index] = buffers.truncated[index] = False
        buffers.was_reset[index] = True
        self.returns[index] = 0.0
        self.lengths[index] = 0
        if self.worker_spec.check_nan:
            self._find_nan(index, buffers, notes)
        return notes

    def _step(self, command: Command) -> WorkerReply | None:
        self.num_steps += 1
        buffers = self.slots[command.slot]
        if command.rows is None and not command.masked:
            return self._make_reply(command.op, self._step_rows(None, command.extra, buffers, command.reset_done))
        rows, reset_rows = self._split(command)
        reply = self._make_reply(Op.RESET, self._reset_rows(reset_rows, None, None, buffers)) if reset_rows else None
        if not rows:
            return reply
        return self._make_reply(command.op, self._step_rows(rows, command.extra, buffers, command.reset_done), reply)

    def _split(self, command: Command) -> tuple[list[int], list[int]]:
        """The rows to step and those to begin anew."""
        if command.rows is not None:
            return [r for r in command.rows if r >= 0], [~r for r in command.rows if r < 0]
        return np.flatnonzero(~self.reset_mask).tolist(), np.flatnonzero(self.reset_mask).tolist()

    def _step_rows(self, rows: Sequence[int] | None, objects: Any, buffers: RowBuffers, reset_done: bool) -> StepNotes:
        """Step `rows`, and count."""
        assert self.sim is not None
        if rows is None:
            buffers.flags.fill(False)
            notes = self.sim.step(None, self._actions(None, objects), buffers, reset_done)
            if self.worker_spec.num_envs == 1:  # quicker than operations on arrays
                self.returns[0] += buffers.reward[0]
                self.lengths[0] += 1
            else:
                self.returns += buffers.reward
                self.lengths += 1
        else:
            index = np.array(rows)
            buffers.flags[:, index] = False
            notes = self.sim.step(rows, self._actions(index, objects), buffers, reset_done)
            self.returns[index] += buffers.reward[index]
            self.lengths[index] += 1
        for row in notes.done_rows:
            buffers.returns[row] = self.returns[row]
            buffers.lengths[row] = self.lengths[row]
            if reset_done:
                buffers.was_reset[row] = True
                self.returns[row] = self.lengths[row] = 0
        if self.worker_spec.check_nan:
            self._find_nan(slice(None) if rows is None else rows, buffers, notes)
        return notes

    def _actions(self, rows: np.ndarray | None, objects: Any) -> Sequence[Tree]:
        """One action a row; copies, since a simulator may keep them."""
        count = self.worker_spec.num_envs if rows is None else len(rows)
        if rows is None and not self.action_layout.opaque:
            return self.action_layout.rows([leaf.copy() for leaf in self.actions if leaf is not None], count)
        leaves: list[Any] = []
        for index, leaf in enumerate(self.actions):
            if leaf is None:
                leaves.append(objects[index])
            else:
                leaves.append(leaf.copy() if rows is None else leaf[rows])
        return self.action_layout.rows(leaves, count)

    def _invoke(self, command: Command) -> WorkerReply:
        assert self.sim is not None
        kind, name, values = command.extra
        rows = range(self.worker_spec.num_envs) if command.rows is None else command.rows
        results: list[Any] = []
        failures: list[tuple[int, BaseException]] = []
        for row, value in zip(rows, values, strict=True):
            try:
                results.append(self._access(row, kind, name, value))
            except (Exception, SystemExit) as error:
                results.append(None)
                failures.append((row, error))
        verb = name if kind == "call" else kind
        return WorkerReply(result=results, failures=self._failures(verb, failures))

    def _access(self, row: int, kind: str, name: str, value: Any) -> Any:
        """Reach into one environment; to its state belongs what is counted here."""
        sim = self.sim
        assert sim is not None
        if kind not in ("get_state", "set_state"):
            return sim.invoke(row, kind, name, value)
        if not isinstance(sim, SupportsState):
            raise StateError(
                f"{type(sim).__name__} cannot save its environments: it has no get_state(row) and no set_state(row, "
                "state, allow). Give it both, or save what is needed to begin anew."
            )
        if kind == "get_state":
            return {"env": sim.get_state(row), "return": float(self.returns[row]), "length": int(self.lengths[row])}
        state, allow = value
        sim.set_state(row, state["env"], allow)
        self.returns[row], self.lengths[row] = state["return"], state["length"]
        return None

    def _close(self, command: Command) -> WorkerReply | None:
        if self.sim is not None:
            self.sim.close()
        return None

    def _rebuild(self, command: Command) -> WorkerReply | None:
        """Make `rows` anew, as far as the simulator can; a reset does for those that cannot."""
        failures: list[tuple[int, BaseException]] = []
        for row in command.rows or []:
            try:
                if isinstance(self.sim, SupportsRebuild):
                    self.sim.rebuild(row)
            except (Exception, SystemExit) as error:
                failures.append((row, error))
        return WorkerReply(failures=self._failures("construct", failures)) if failures else None

    # -- reports ---------------------------------------------------------------------------------

    def _make_reply(self, op: Op, notes: StepNotes, previous: WorkerReply | None = None) -> WorkerReply | None:
        """`previous` with what `notes` say added; None where there is nothing to say."""
        has_infos = self.worker_spec.infos and (notes.infos or notes.final_infos)
        if not has_infos and not notes.objects and not notes.failures:
            return previous
        reply = previous or WorkerReply()
        reply.infos.extend(self._infos(notes.infos, notes))
        reply.final_infos.extend(self._infos(notes.final_infos, notes))
        for leaf, pairs in self._to_env_ids(notes.objects).items():
            reply.objects[leaf] = reply.objects.get(leaf, []) + pairs
        reply.final_objects |= self._to_env_ids(notes.final_objects)
        reply.failures += self._failures(op, notes.failures)
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
                notes.failures.append((row, SpaceError(f"the info should be a dict, but is {describe(info)}.")))
        return result

    def _to_env_ids(self, objects: Mapping[int, list[tuple[int, Any]]]) -> dict[int, list[tuple[int, Any]]]:
        start = self.worker_spec.start
        return {leaf: [(start + row, value) for row, value in pairs] for leaf, pairs in objects.items()}

    def _failures(self, op: Op | str, failures: Sequence[tuple[int, BaseException]]) -> list[Failure]:
        return [self._failure(op, [row], error) for row, error in failures]

    def _failure(self, op: Op | str, rows: Iterable[int], error: BaseException) -> Failure:
        ids = tuple(self.worker_spec.start + row for row in rows)
        command = op.name.lower() if isinstance(op, Op) else op
        return describe_failure(ids, command, error, self.worker_spec.index, self.num_steps)

    def _find_nan(self, index: Any, buffers: RowBuffers, notes: StepNotes) -> None:
        """Report rows whose reward or observation, also the final one, holds a NaN."""
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


def _nan_rows(leaves: Sequence[Any]) -> np.ndarray | bool:
    """`[k]` bool: where one of these arrays `[k, ...]` holds a NaN."""
    has_nan: np.ndarray | bool = False
    for leaf in leaves:
        if leaf is not None and leaf.dtype.kind == "f":
            has_nan = has_nan | np.isnan(leaf).reshape(len(leaf), math.prod(leaf.shape[1:])).any(1)
    return has_nan


def describe_failure(ids: tuple[int, ...], command: str, error: BaseException, worker: int, step: int) -> Failure:
    """A `Failure` from an exception, whatever oddities its class has."""
    try:
        text = f"{type(error).__name__}: {error}"
    except Exception:
        text = f"{type(error).__name__} (its text cannot be had)"
    try:
        trace = "".join(traceback.format_exception(error))
    except Exception:
        trace = "".join(traceback.format_tb(error.__traceback__))
    return Failure(ids, command, text, trace, worker, os.getpid(), step, error)
