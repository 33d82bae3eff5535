"""Calls into the environments of a pool: attributes, methods, rendering and states."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from ..errors import PendingError, StateError, failures_to_error
from ..validation import check_length
from .env_index import Ids
from .pool_lifecycle import PoolLifecycle
from .worker import Command, Op

EnvState = dict[str, Any]
"""The state of an environment as plain data, and its return, length and seeds."""
InvokeKind = Literal["get", "set", "call", "render", "is_wrapped", "get_state", "set_state"]


class EnvAccess(PoolLifecycle):
    """Workers and their environments, which can be called."""

    def invoke(
        self, kind: InvokeKind, name: str = "", values: Sequence[object] | None = None, ids: Ids | None = None
    ) -> list[Any]:
        """Gets, sets, calls or renders in environments and returns the results.

        Args:
            kind: what to do.
            name: the name of the attribute or method; for "is_wrapped" the full name of the class of a wrapper.
            values: one per environment: the value to set, or args and kwargs of the call.
            ids: the environments; None for all.

        Returns:
            One result per environment, in the order of `ids`; None for those that are not `alive`.
        """
        self.invoke_async(kind, name, values, ids)
        return self.invoke_wait()

    def invoke_async(
        self, kind: InvokeKind, name: str = "", values: Sequence[object] | None = None, ids: Ids | None = None
    ) -> None:
        """Sends the commands of `invoke` without waiting."""
        with self._closer.lock:
            checked_ids = self._check_ids(np.arange(self.num_envs) if ids is None else ids)
            check_length("values", values, len(checked_ids))
            alive_rows = np.flatnonzero(self.alive[checked_ids])
            parts = {
                worker: (rows, alive_rows[places])
                for worker, rows, places in self._env_index.split(checked_ids[alive_rows])
            }
            self._invoke_request = len(checked_ids), {worker: places for worker, (_, places) in parts.items()}
            self._pending.updating = True
            command = self._pending.register(Op.INVOKE, parts)
            commands: list[tuple[int, Command]] = []
            for worker, (rows, places) in parts.items():
                row_values = [None] * len(rows) if values is None else [values[int(p)] for p in places]
                extra = (kind, name, row_values)
                commands.append((worker, Command(Op.INVOKE, command.seq, rows=rows.tolist(), extra=extra)))
            self._send([command], commands)
            self._pending.updating = False

    def invoke_wait(self, timeout: float | None = None) -> list[Any]:
        """Waits for the pending `invoke_async` and returns its results.

        Raises:
            PendingError: no call is pending.
            WorkerError: environments failed; the results of the others are in the error's `results`.
        """
        with self._closer.lock:
            self._enter()
            command = self._pending.sync_command
            if command is None or command.op != Op.INVOKE:
                raise PendingError("Expected a pending call, got none. Call invoke_async first.")
            failures = self._pending.wait_for(command, self.step_timeout if timeout is None else timeout)
        count, places = self._invoke_request
        results: list[Any] = [None] * count
        for worker, reply in command.replies:
            if reply.result is not None:  # it is None if the worker crashed
                for place, result in zip(places[worker].tolist(), reply.result, strict=True):
                    results[place] = result
        if failures:
            error = failures_to_error(failures)
            error.results = results
            raise error
        return results

    def drop_call(self, timeout: float | None = None) -> None:
        """Waits for the pending call, or the pending command to all environments, if any, and drops its result.

        Args:
            timeout: seconds to wait (default: the pool's `step_timeout`).

        Raises:
            StepTimeout: it timed out.
        """
        with self._closer.lock:
            self._enter()
            command = self._pending.sync_command
            if command is not None:
                self._mark_completed(command, self._gather(command, timeout))

    # -- states ------------------------------------------------------------------------------------

    state_is_plain_data = True  # a snapshot of an object that has a pool stores the result of `get_state` unchanged

    def get_state(self, ids: Ids | None = None) -> list[EnvState]:
        """Returns the states of all environments or of `ids`, as plain data, in their order.

        Raises:
            PendingError: some of them are pending, or have failed and were not reset.
            WorkerError: the state of an environment cannot be saved. The cause is a `StateError`, which says which
                environment and why.
        """
        self._env_index.require_healthy(slice(None) if ids is None else ids)
        states = self.invoke("get_state", ids=ids)
        if self._fault_policy is not None:
            for env_id, state in zip(self._env_index.id_list(ids), states, strict=True):
                state |= self._fault_policy.seed_of(env_id)
        return states

    def set_state(self, states: Sequence[Any], ids: Ids | None = None, *, allow: Iterable[type | str] = ()) -> None:
        """Restores states that `get_state` returned. Environments that failed need no reset after this.

        Args:
            states: one per environment, in the order of `ids`.
            ids: the environments; None for all.
            allow: classes, or their names, that a state may hold; see `vecrl.snapshot.restore`.

        Raises:
            StateError: the number of states is wrong, or they are not states.
            WorkerError: an environment was constructed differently from the one that was saved. The cause is a
                `StateError`.
        """
        count = self.num_envs if ids is None else len(ids)
        if len(states) != count or not all(isinstance(state, Mapping) and "env" in state for state in states):
            raise StateError(
                f"Expected {count} states as get_state returns them, got {len(states)} items. Pass one per environment."
            )
        names = [
            class_or_name
            if isinstance(class_or_name, str)
            else f"{class_or_name.__module__}.{class_or_name.__qualname__}"
            for class_or_name in allow
        ]
        self.invoke("set_state", "", [(state, names) for state in states], ids)
        if self._fault_policy is not None:
            for env_id, state in zip(self._env_index.id_list(ids), states, strict=True):
                self._fault_policy.restore_state(env_id, state)
        self._env_index.failed[slice(None) if ids is None else ids] = False
