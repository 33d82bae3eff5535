"""Builds transitions from the rows of the batch buffers and the replies of workers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .batch_buffers import BatchBuffers
from .infos import Infos
from .pending import PendingCommand
from .space_layout import Layout, Tree
from .transition import Transition
from .worker import Op, WorkerReply

Replies = Sequence[tuple[int, WorkerReply]]
"""Non-empty replies, each with its worker."""


class TransitionBuilder:
    """Builds transitions of n environments.

    Args:
        buffers: the batch buffers with the rows.
        layout: the layout of the observations.
    """

    def __init__(self, buffers: BatchBuffers, layout: Layout):
        self._buffers = buffers
        self._layout = layout
        self._all_ids = np.arange(buffers.num_envs)
        self._objects = layout.empty(buffers.num_envs)  # the latest opaque observations, by leaf

    def latest(self, leaf: int, env_id: int) -> Tree:
        """Returns the latest object of an environment in an opaque leaf."""
        return self._objects[leaf][env_id]

    def full(self, slot_index: int, replies: Replies, failed: Sequence[int] = ()) -> Transition:
        """Builds the transition of a command to all environments, from a slot.

        The observations are leases of the slot's memory, or copies of slot 0.

        Args:
            slot_index: the slot with the rows.
            replies: the non-empty replies of workers.
            failed: environments with rows written by the fault policy.
        """
        infos = self._merge_replies(replies) if replies else None  # which sets the objects that `_build` reads
        slot = self._buffers.slots[slot_index]
        if slot_index:
            obs = self._build(slot.lease_obs())
        elif self._layout.is_array:
            obs = slot.obs[0].copy()
        else:
            obs = self._build([None if leaf is None else leaf.copy() for leaf in slot.obs])
        transition = Transition(
            self._all_ids,
            self._layout,
            obs,
            slot.reward.copy(),
            slot.terminated.copy(),  # three copies of a row take half of the time that one copy and its three rows take
            slot.truncated.copy(),
            slot.was_reset.copy(),
        )
        if infos is not None:
            transition.infos, transition.final_infos = infos
        if failed:
            transition.failed = failed
        if b"\1" in slot.flags.tobytes() and len(done := transition.done.nonzero()[0]):  # faster than `any`
            self._add_episodes(transition, done, (slot.returns.copy(), slot.lengths.copy()), replies)
        return transition

    def _build(self, leaves: Sequence[np.ndarray | None]) -> Tree:
        return self._layout.build([tuple(self._objects[i]) if leaf is None else leaf for i, leaf in enumerate(leaves)])

    def partial(self, commands: Sequence[PendingCommand], order: np.ndarray | None = None) -> Transition:
        """Builds the transition of commands by id. The arrays are copies, from slot 0.

        Args:
            commands: the completed commands, in the order of completion, which is also the order of the rows.
            order: `[n]`, if given: the rows are sorted by the values of `order` at their ids instead.
        """
        slot = self._buffers.slots[0]
        parts = [command.ids for command in commands if command.ids is not None]
        ids = parts[0] if len(parts) == 1 else np.concatenate(parts)
        if order is not None:
            rank = order[ids]
            if (rank[1:] < rank[:-1]).any():
                ids = ids[rank.argsort()]
        replies = [pair for command in commands for pair in command.replies]
        infos = self._merge_replies(replies)
        terminated, truncated, was_reset = slot.flags.take(ids, 1)
        done = (terminated | truncated).nonzero()[0]
        if len(done):
            reset_ids = [part for part, command in zip(parts, commands, strict=True) if command.op != Op.STEP]
            done = done[~np.isin(ids[done], np.concatenate(reset_ids))] if reset_ids else done
        obs: list[Tree] = [
            tuple(self._objects[i][j] for j in ids.tolist()) if leaf is None else leaf[ids]
            for i, leaf in enumerate(slot.obs)
        ]
        transition = Transition(
            ids, self._layout, self._layout.build(obs), slot.reward[ids], terminated, truncated, was_reset
        )
        transition.infos, transition.final_infos = infos
        if len(done):
            self._add_episodes(transition, done, (slot.returns[ids], slot.lengths[ids]), replies)
        transition.failed = _positions([i for command in commands for i in command.failed], ids)
        return transition

    def _add_episodes(
        self, transition: Transition, done: np.ndarray, stats: tuple[np.ndarray, np.ndarray], replies: Replies
    ) -> None:
        """Adds the rows in which an episode ended, their statistics, and the final observations of those reset."""
        transition.done_rows, transition.episode_stats = done, stats
        rows = done[transition.was_reset[done]]
        if not len(rows):
            return
        transition.final_rows, ids = rows, transition.ids[rows]
        leaves: list[Tree] = [None if leaf is None else leaf.take(ids, 0) for leaf in self._buffers.final_obs]
        for index in self._layout.opaque:
            objects = {i: value for _, reply in replies for i, value in reply.final_objects.get(index, [])}
            leaves[index] = tuple(objects.get(i) for i in ids.tolist())
        transition.final_obs = self._layout.build(leaves)

    def _merge_replies(self, replies: Replies) -> tuple[Infos, Infos]:
        """Keeps the latest objects, and returns the infos and the final infos of all."""
        for _, reply in replies:
            for index, pairs in reply.objects.items():
                for env_id, value in pairs:
                    self._objects[index][env_id] = value
        if len(replies) == 1:
            return replies[0][1].infos, replies[0][1].final_infos
        infos, final_infos = Infos(), Infos()
        for _, reply in replies:
            infos.extend(reply.infos)
            final_infos.extend(reply.final_infos)
        return infos, final_infos


def _positions(subset: Sequence[int], ids: np.ndarray) -> Sequence[int]:
    """Returns the positions of the elements of `subset` in `ids`."""
    return np.flatnonzero(np.isin(ids, subset)).tolist() if subset else ()
