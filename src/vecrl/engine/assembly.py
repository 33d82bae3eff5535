"""Puts a transition together from the arena's rows and what workers said beside them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .arena import Arena
from .flights import Flight, WorkerReport
from .infos import Infos
from .layout import Layout, Tree
from .transitions import Transition
from .worker import Op


class Assembly:
    """Makes transitions of n environments.

    Args:
        arena: where the rows are.
        layout: of the observations.
    """

    def __init__(self, arena: Arena, layout: Layout):
        self._arena = arena
        self._layout = layout
        self._all = np.arange(arena.num_envs)
        self._objects = layout.empty(arena.num_envs)  # the latest opaque observations, by leaf

    def latest(self, leaf: int, env_id: int) -> Any:
        """The latest object of an opaque leaf."""
        return self._objects[leaf][env_id]

    def whole(self, flight: Flight) -> Transition:
        """Of a command to all: views of the slot's own observations, or copies of them where no slot was free."""
        slot = self._arena.slots[flight.slot]
        infos, final_infos = self._notes(flight.reports) if flight.reports else (Infos(), Infos())
        terminated, truncated, begun = slot.flags.copy()
        ended = done = (terminated | truncated).nonzero()[0]
        final_obs = tally = None
        if len(done):
            tally = slot.returns.copy(), slot.lengths.copy()
            ended = done[begun[done]]
            final_obs = self._finals(flight.reports, ended) if len(ended) else None
        return Transition(
            self._all,
            self._layout,
            self._obs(slot.obs, copy=flight.slot == 0),
            slot.reward.copy(),
            terminated,
            truncated,
            begun,
            ended,
            final_obs,
            infos,
            final_infos,
            done,
            tally,
            flight.failed,
        )

    def _obs(self, leaves: Sequence[Any], copy: bool) -> Tree:
        if self._layout.flat and not copy and leaves[0] is not None:
            return leaves[0][:]
        return self._layout.build(
            [
                tuple(self._objects[i]) if leaf is None else leaf.copy() if copy else leaf[:]
                for i, leaf in enumerate(leaves)
            ]
        )

    def rows(self, flights: Sequence[Flight], order: np.ndarray | None = None) -> Transition:
        """Of commands to some; copies, from the first slot.

        Args:
            flights: in the order in which they landed, which is the order of the rows
            order: unless `order` `[n]` says, by its values at their ids, which comes first.
        """
        slot = self._arena.slots[0]
        parts = [flight.ids for flight in flights if flight.ids is not None]
        ids = parts[0] if len(parts) == 1 else np.concatenate(parts)
        if order is not None:
            rank = order[ids]
            if (rank[1:] < rank[:-1]).any():
                ids = ids[rank.argsort()]
        reports = [pair for flight in flights for pair in flight.reports]
        infos, final_infos = self._notes(reports)
        terminated, truncated, begun = slot.flags.take(ids, 1)
        done = (terminated | truncated).nonzero()[0]
        if len(done):
            began = [part for part, flight in zip(parts, flights, strict=True) if flight.op != Op.STEP]
            done = done[~np.isin(ids[done], np.concatenate(began))] if began else done
        ended = done[begun[done]]
        obs: list[Any] = [
            tuple(self._objects[i][j] for j in ids.tolist()) if leaf is None else leaf[ids]
            for i, leaf in enumerate(slot.obs)
        ]
        return Transition(
            ids,
            self._layout,
            self._layout.build(obs),
            slot.reward[ids],
            terminated,
            truncated,
            begun,
            ended,
            self._finals(reports, ids[ended]) if len(ended) else None,
            infos,
            final_infos,
            done,
            (slot.returns[ids], slot.lengths[ids]) if len(done) else None,
            _places([i for flight in flights for i in flight.failed], ids),
        )

    def _finals(self, reports: Sequence[WorkerReport], ids: np.ndarray) -> Any:
        """The final observations of `ids`, as a tree of arrays."""
        leaves: list[Any] = [None if leaf is None else leaf.take(ids, 0) for leaf in self._arena.final_obs]
        for index in self._layout.opaque:
            said = {i: value for _, report in reports for i, value in report.final_objects.get(index, [])}
            leaves[index] = tuple(said.get(i) for i in ids.tolist())
        return self._layout.build(leaves)

    def _notes(self, reports: Sequence[WorkerReport]) -> tuple[Infos, Infos]:
        infos, final_infos = Infos(), Infos()
        for _, report in reports:
            infos.extend(report.infos)
            final_infos.extend(report.final_infos)
            for index, pairs in report.objects.items():
                for env_id, value in pairs:
                    self._objects[index][env_id] = value
        return infos, final_infos


def _places(some: Sequence[int], ids: np.ndarray) -> Sequence[int]:
    """Where these are among `ids`."""
    return np.flatnonzero(np.isin(ids, some)).tolist() if some else ()
