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
from .arena import Arena
from .infos import Block, Columns, Infos
from .layout import Tree, describe
from .simulator import Notes, Rows, RowsFailed, Simulator


class Op(IntEnum):
    """What a command asks for."""

    CONSTRUCT = 0
    ATTACH = 1
    RESET = 2
    STEP = 3
    INVOKE = 4
    CLOSE = 5
    REMAKE = 6


@dataclass(slots=True)
class Command:
    """One request to one worker.

    Attributes:
        op: what to do.
        seq: its number, which the answer repeats.
        slot: the slot of the arena to write.
        eager: whether a row that ends begins anew at once.
        masked: whether the arena's `begin` mask names rows to begin instead of stepping.
        rows: the worker's own rows; None for all. A step begins row `~row` anew where the number is negative.
        extra: what the operation needs beside.
    """

    op: Op
    seq: int = 0
    slot: int = 0
    eager: bool = False
    masked: bool = False
    rows: Sequence[int] | None = None
    extra: Any = None


@dataclass(slots=True)
class Report:
    """What a worker says beside the rows it wrote; rows are already environment ids here."""

    infos: Infos = field(default_factory=Infos)
    final_infos: Infos = field(default_factory=Infos)
    objects: dict[int, list[tuple[int, Any]]] = field(default_factory=dict[int, list[tuple[int, Any]]])
    final_objects: dict[int, list[tuple[int, Any]]] = field(default_factory=dict[int, list[tuple[int, Any]]])
    failures: list[Failure] = field(default_factory=list[Failure])
    result: Any = None


@dataclass(frozen=True, slots=True)
class Card:
    """What a worker says of itself when its simulator stands."""

    num_envs: int
    observation_space: Space[Any]
    action_space: Space[Any]
    metadata: dict[str, Any]
    render_mode: str | None
    spec: Any
    pid: int


@dataclass(frozen=True, slots=True)
class Plan:
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

    def __init__(self, plan: Plan):
        self.plan = plan
        self.sim: Simulator | None = None
        self.steps = 0
        self._columns = Columns()
        begin = self._construct, self._attach
        self._do = (*begin, self._reset, self._step, self._invoke, self._close, self._remake)  # in Op's order

    def execute(self, command: Command) -> Report | None:
        """Do as told; None where there is nothing to say."""
        try:
            return self._do[command.op](command)
        except RowsFailed as error:
            return Report(failures=self._failures(command.op, error.failures))
        except (Exception, SystemExit) as error:
            return Report(failures=[self._failure(command.op, range(self.plan.num_envs), error)])

    # -- operations ------------------------------------------------------------------------------

    def _construct(self, command: Command) -> Report:
        sim = self.plan.make()
        if sim.num_envs != self.plan.num_envs:
            raise SpaceError(f"Expected a simulator of {self.plan.num_envs} environments, but it has {sim.num_envs}.")
        self.sim = sim
        spaces = sim.observation_space, sim.action_space
        return Report(result=Card(sim.num_envs, *spaces, dict(sim.metadata), sim.render_mode, sim.spec, os.getpid()))

    def _attach(self, command: Command) -> None:
        """Take this worker's rows of the arena (`extra`: the arena, and the layout of observations and actions)."""
        arena, self.obs_layout, self.action_layout = command.extra
        assert isinstance(arena, Arena)
        start, stop = self.plan.start, self.plan.start + self.plan.num_envs
        self.slots = arena.rows(start, stop)
        self.actions = [None if a is None else a[start:stop] for a in arena.actions]
        self.begin = arena.begin[start:stop]
        if (lay_out := getattr(self.sim, "lay_out", None)) is not None:
            lay_out(self.obs_layout.space, self.action_layout.space)
        self.returns = np.zeros(self.plan.num_envs)
        self.lengths = np.zeros(self.plan.num_envs, np.int64)

    def _reset(self, command: Command) -> Report | None:
        seeds, options = command.extra or (None, None)
        return self._report(command.op, self._begin(command.rows, seeds, options, self.slots[command.slot]))

    def _begin(self, rows: Sequence[int] | None, seeds: Any, options: Any, out: Rows) -> Notes:
        assert self.sim is not None
        notes = self.sim.reset(rows, seeds, options, out)
        where: Any = slice(None) if rows is None else rows
        out.reward[where] = 0.0
        out.terminated[where] = out.truncated[where] = False
        out.begun[where] = True
        self.returns[where] = 0.0
        self.lengths[where] = 0
        if self.plan.check_nan:
            self._find_nan(where, out, notes)
        return notes

    def _step(self, command: Command) -> Report | None:
        self.steps += 1
        out = self.slots[command.slot]
        if command.rows is None and not command.masked:
            return self._report(command.op, self._advance(None, command.extra, out, command.eager))
        rows, begin = self._split(command)
        report = self._report(Op.RESET, self._begin(begin, None, None, out)) if begin else None
        if not rows:
            return report
        return self._report(command.op, self._advance(rows, command.extra, out, command.eager), report)

    def _split(self, command: Command) -> tuple[list[int], list[int]]:
        """The rows to step and those to begin anew."""
        if command.rows is not None:
            return [r for r in command.rows if r >= 0], [~r for r in command.rows if r < 0]
        return np.flatnonzero(~self.begin).tolist(), np.flatnonzero(self.begin).tolist()

    def _advance(self, rows: Sequence[int] | None, objects: Any, out: Rows, eager: bool) -> Notes:
        """Step `rows`, and count."""
        assert self.sim is not None
        if rows is None:
            out.flags.fill(False)
            notes = self.sim.step(None, self._actions(None, objects), out, eager)
            if self.plan.num_envs == 1:  # quicker than operations on arrays
                self.returns[0] += out.reward[0]
                self.lengths[0] += 1
            else:
                self.returns += out.reward
                self.lengths += 1
        else:
            where = np.array(rows)
            out.flags[:, where] = False
            notes = self.sim.step(rows, self._actions(where, objects), out, eager)
            self.returns[where] += out.reward[where]
            self.lengths[where] += 1
        for row in notes.ended:
            out.returns[row] = self.returns[row]
            out.lengths[row] = self.lengths[row]
            if eager:
                out.begun[row] = True
                self.returns[row] = self.lengths[row] = 0
        if self.plan.check_nan:
            self._find_nan(slice(None) if rows is None else rows, out, notes)
        return notes

    def _actions(self, rows: np.ndarray | None, objects: Any) -> Sequence[Tree]:
        """One action a row; copies, since a simulator may keep them."""
        count = self.plan.num_envs if rows is None else len(rows)
        if rows is None and not self.action_layout.opaque:
            return self.action_layout.rows([leaf.copy() for leaf in self.actions if leaf is not None], count)
        leaves: list[Any] = []
        for index, leaf in enumerate(self.actions):
            if leaf is None:
                leaves.append(objects[index])
            else:
                leaves.append(leaf.copy() if rows is None else leaf[rows])
        return self.action_layout.rows(leaves, count)

    def _invoke(self, command: Command) -> Report:
        assert self.sim is not None
        kind, name, values = command.extra
        rows = range(self.plan.num_envs) if command.rows is None else command.rows
        results: list[Any] = []
        failures: list[tuple[int, BaseException]] = []
        for row, value in zip(rows, values, strict=True):
            try:
                results.append(self._reach(row, kind, name, value))
            except (Exception, SystemExit) as error:
                results.append(None)
                failures.append((row, error))
        verb = name if kind == "call" else kind
        return Report(result=results, failures=self._failures(verb, failures))

    def _reach(self, row: int, kind: str, name: str, value: Any) -> Any:
        """Reach into one environment; to its state belongs what is counted here."""
        sim: Any = self.sim
        if kind not in ("get_state", "set_state"):
            return sim.invoke(row, kind, name, value)
        if not hasattr(sim, "get_state"):
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

    def _close(self, command: Command) -> Report | None:
        if self.sim is not None:
            self.sim.close()
        return None

    def _remake(self, command: Command) -> Report | None:
        """Make `rows` anew, as far as the simulator can; a reset does for those that cannot."""
        remake = getattr(self.sim, "remake", None)
        failures: list[tuple[int, BaseException]] = []
        for row in command.rows or []:
            try:
                if remake is not None:
                    remake(row)
            except (Exception, SystemExit) as error:
                failures.append((row, error))
        return Report(failures=self._failures("construct", failures)) if failures else None

    # -- reports ---------------------------------------------------------------------------------

    def _report(self, op: Op, notes: Notes, base: Report | None = None) -> Report | None:
        """`base` with what `notes` say added; None where there is nothing to say."""
        wordy = self.plan.infos and (notes.infos or notes.final_infos)
        if not wordy and not notes.objects and not notes.failures:
            return base
        report = base or Report()
        report.infos.extend(self._infos(notes.infos, notes))
        report.final_infos.extend(self._infos(notes.final_infos, notes))
        for leaf, pairs in self._shift(notes.objects).items():
            report.objects[leaf] = report.objects.get(leaf, []) + pairs
        report.final_objects |= self._shift(notes.final_objects)
        report.failures += self._failures(op, notes.failures)
        return report

    def _infos(self, infos: Sequence[tuple[int, Any]], notes: Notes) -> Infos:
        if not infos or not self.plan.infos:
            return Infos()
        start = self.plan.start
        whole = len(infos) == self.plan.num_envs and self.plan.infos != "dicts"
        if whole and (data := self._columns.pack(infos)) is not None:
            return Infos(blocks=[Block(start, data)])
        said = Infos()
        for row, info in infos:
            if isinstance(info, Mapping):
                said.dicts.append((start + row, info))
            else:
                notes.failures.append((row, SpaceError(f"the info should be a dict, but is {describe(info)}.")))
        return said

    def _shift(self, objects: Mapping[int, list[tuple[int, Any]]]) -> dict[int, list[tuple[int, Any]]]:
        start = self.plan.start
        return {leaf: [(start + row, value) for row, value in pairs] for leaf, pairs in objects.items()}

    def _failures(self, op: Op | str, failures: Sequence[tuple[int, BaseException]]) -> list[Failure]:
        return [self._failure(op, [row], error) for row, error in failures]

    def _failure(self, op: Op | str, rows: Iterable[int], error: BaseException) -> Failure:
        ids = tuple(self.plan.start + row for row in rows)
        command = op.name.lower() if isinstance(op, Op) else op
        return describe_failure(ids, command, error, self.plan.index, self.steps)

    def _find_nan(self, where: Any, out: Rows, notes: Notes) -> None:
        """Report rows whose reward or observation, also the final one, holds a NaN."""
        final = np.zeros(len(out.reward), bool)
        final[notes.ended] = out.begun[notes.ended]
        bad = np.isnan(out.reward) | _nan_rows(out.obs) | (_nan_rows(out.final_obs) & final)
        chosen = np.zeros(len(bad), bool)
        chosen[where] = True
        known = {row for row, _ in notes.failures}
        for row in np.flatnonzero(bad & chosen).tolist():
            if row not in known:
                what = "reward" if np.isnan(out.reward[row]) else "observation"
                notes.failures.append((row, FloatingPointError(f"the {what} is NaN (found since check_nan=True)")))


def _nan_rows(leaves: Sequence[Any]) -> np.ndarray | bool:
    """`[k]` bool: where one of these arrays `[k, ...]` holds a NaN."""
    bad: np.ndarray | bool = False
    for leaf in leaves:
        if leaf is not None and leaf.dtype.kind == "f":
            bad = bad | np.isnan(leaf).reshape(len(leaf), math.prod(leaf.shape[1:])).any(1)
    return bad


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
