"""`AsyncEnvPool`: a batch of environments that are sent actions and return results independently of each other.

It is a thin form of the engine's `send` and `recv` for TensorDicts. This module must not know how environments are
stepped.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import numpy as np
import torch
from tensordict import LazyStackedTensorDict, NonTensorData, NonTensorStack, TensorDictBase, lazy_stack

from ...engine.env_index import Ids
from ...engine.simulator import ResetOptions
from ...engine.transition import Transition
from ...errors import PendingError, SpaceError, StepTimeout, WorkerError
from ...validation import check_callables, check_choice, parse_count
from ..adapters import adapt_env
from ..base import EnvBase
from ..entries.row_masks import merge_into
from .codecs import GymCodec
from .env_factories import EnvFn, Kwargs
from .serial_parallel_env import BatchedEnv

Operation = Literal["step", "reset", "step and reset"]
EnvIndex = int | Sequence[int] | None
Rows = tuple[TensorDictBase, ...]
"""The TensorDicts of one environment that a receive returns."""

_BACKENDS: Mapping[str, Any] = {"threading": "threads", "multiprocessing": "processes"}
_STACKS: Mapping[str, Callable[[list[Any]], Any]] = {
    "dense": torch.stack,
    "maybe_dense": LazyStackedTensorDict.maybe_dense_stack,
    "lazy": lazy_stack,
}


class AsyncEnvPool(BatchedEnv):
    """n environments that are stepped and reset independently, each in a thread or process.

    `async_step_send` returns at once, and `async_step_recv` returns the results of those environments that are ready.
    The same holds for resets, and for steps with a reset of ended episodes. The entry "env_index" names the environment
    of each row. `reset`, `step` and `rollout` of all environments work as in `ParallelEnv`. A `TransformedEnv` of this
    class does not have the methods `async_…`: put the transforms into the environments.

    Args:
        env_makers: a function that creates an environment, or an environment, or a list of them.
        backend: "threading" or "multiprocessing", or a backend of `ParallelEnv`.
        stack: how results of the methods `async_…_recv` are stacked: "dense"; "lazy"; or "maybe_dense", which is lazy
            only if shapes differ.
        create_env_kwargs: keyword arguments of the functions, or one mapping for each.
        kwargs: further arguments of `ParallelEnv`, such as `step_timeout`.

    Attributes:
        min_get: how many environments a receive waits for by default: 1.
        num_envs: n.
        backend, stack: the arguments.

    Raises:
        ValueError: `stack` has no valid value.
        SpaceError: there is no environment, or one environment is given twice.

    >>> from vecrl.envs import GymEnv
    >>> with AsyncEnvPool([lambda: GymEnv("Pendulum-v1")] * 4) as env:
    ...     env.async_step_send(env.rand_action(env.reset()))
    ...     ready = env.async_step_recv(min_get=2)
    ...     rest = env.async_step_recv(min_get=4 - len(ready)) if len(ready) < 4 else ready[:0]
    >>> sorted([*ready["env_index"], *rest["env_index"]])
    [0, 1, 2, 3]
    """

    excluded_from_state = ("_ready", "_operations", "_sent", "_receive_lock")
    min_get = 1
    _default_backend = "threading"
    _methods_without_transforms = tuple(
        f"async_{operation}_{end}"
        for operation in ("step", "reset", "step_and_maybe_reset")
        for end in ("send", "recv")
    )

    def __init__(
        self,
        env_makers: Any,
        *,
        backend: str | None = None,
        stack: Literal["dense", "maybe_dense", "lazy"] = "dense",
        create_env_kwargs: Kwargs | Sequence[Kwargs] | None = None,
        **kwargs: Any,
    ):
        check_choice("stack", stack, _STACKS)
        makers = _as_makers(env_makers if isinstance(env_makers, Sequence) else [env_makers])
        self.backend, self.stack = backend or self._default_backend, stack
        self._clear()
        self._receive_lock = threading.Lock()
        kwargs = {"envs_per_worker": 1, "create_env_kwargs": create_env_kwargs, **kwargs}
        super().__init__(len(makers), makers, backend=_BACKENDS.get(self.backend, self.backend), **kwargs)

    @property
    def num_envs(self) -> int:
        """The number of environments."""
        return self.num_workers

    @property
    def env_batch_sizes(self) -> list[torch.Size]:
        """The batch size of each environment."""
        return [self.batch_size[1:]] * self.num_workers

    def close(self, *, raise_if_closed: bool = False) -> None:
        """Closes the environments and drops all results, as `EnvBase.close` does."""
        self._clear()
        super().close(raise_if_closed=raise_if_closed)

    def cancel(self, ids: Ids) -> np.ndarray:
        """Cancels pending operations of environments after a `StepTimeout`, as `Pool.cancel` does. Reset them next."""
        cancelled = super().cancel(ids)
        self._forget({*self._operations} - {*self._require_pool().pending.tolist()})
        return cancelled

    def shutdown(self) -> None:
        """Closes the environments and ends their workers."""
        self.close()

    def _clear(self) -> None:
        """Forgets all operations and their results."""
        self._operations: dict[int, Operation] = {}  # of environments that have not replied, by their index
        self._sent: dict[int, TensorDictBase] = {}  # the rows that these environments were sent
        self._ready: dict[Operation, dict[int, Rows]] = {"step": {}, "reset": {}, "step and reset": {}}

    # -- all environments

    def reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        """Resets the environments as `EnvBase.reset` does, and adds the entry "env_index".

        A reset of all environments waits for pending operations first, and drops their results.
        """
        if tensordict is None:
            self._clear()
        return _with_index(super().reset(tensordict, **kwargs), range(self.num_workers))

    # -- send and receive

    def async_step_send(self, tensordict: TensorDictBase, env_index: EnvIndex = None) -> None:
        """Starts a step of environments and returns at once.

        Args:
            tensordict: the actions and other inputs, one row per environment; of one environment, without the batch
                dimension, if `env_index` or its entry "env_index" is an int.
            env_index: the environments; by default those of the entry "env_index", or all.

        Raises:
            PendingError: an environment has not returned the result of its last operation yet.
            SpaceError: the number of rows differs from that of the environments.
        """
        self._send_step("step", tensordict, env_index)

    def async_step_recv(self, min_get: int | None = None, env_index: int | None = None) -> TensorDictBase:
        """Waits for steps and returns the TensorDicts that were sent, with results under "next".

        Args:
            min_get: how many environments to wait for; all that are ready are returned. `self.min_get` by default.
            env_index: wait for this environment only; its result has no batch dimension.

        Raises:
            PendingError: fewer environments are being stepped.
            WorkerError: environments failed; the results of others are returned by the next call.
        """
        return self._receive("step", min_get, env_index)[0]

    def async_step_and_maybe_reset_send(self, tensordict: TensorDictBase, env_index: EnvIndex = None) -> None:
        """Starts a step as `async_step_send` does, and a reset if the episode ends."""
        self._send_step("step and reset", tensordict, env_index)

    def async_step_and_maybe_reset_recv(
        self, min_get: int | None = None, env_index: int | None = None
    ) -> tuple[TensorDictBase, TensorDictBase]:
        """Waits as `async_step_recv` does; returns the results of steps, and the roots of the next steps."""
        step_td, root = self._receive("step and reset", min_get, env_index)
        return step_td, root

    def async_reset_send(self, tensordict: TensorDictBase | None = None, env_index: EnvIndex = None) -> None:
        """Starts a reset of environments and returns at once.

        Args:
            tensordict: states, which are passed to the environments as by `reset`, one row per environment as in
                `async_step_send`. Masks "_reset" are not used.
            env_index: the environments; by default those of the entry "env_index", or all.

        Raises:
            PendingError: an environment has not returned the result of its last operation yet.
            SpaceError: the number of rows differs from that of the environments.
        """
        self.start()
        ids, rows = self._ids_and_rows(tensordict, env_index)
        self._seed_before_use = None
        seeds = [self._seeds.pop(i, None) for i in ids.tolist()] if self._seeds else None
        with self._registered("reset", ids):
            self._require_pool().send_reset(ids, seeds, self._reset_options(ids, rows))

    def _reset_options(self, ids: np.ndarray, rows: TensorDictBase | None) -> ResetOptions | None:
        """Returns the states of environments in the form that their workers expect, or None if there are none."""
        if rows is None or isinstance(self._codec, GymCodec):
            return None
        states = self._reset_data(rows, self._reset_inputs(None, True), None)
        return {"kwargs": {}, "data": {int(ids[row]): state for row, state in states.items()}} if states else None

    def async_reset_recv(self, min_get: int | None = None, env_index: int | None = None) -> TensorDictBase:
        """Waits for resets as `async_step_recv` does for steps, and returns their root TensorDicts."""
        return self._receive("reset", min_get, env_index)[0]

    def _send_step(self, operation: Operation, tensordict: TensorDictBase, env_index: EnvIndex) -> None:
        ids, data = self._ids_and_rows(tensordict, env_index)
        assert data is not None
        inputs = self._codec.inputs(data, np.arange(len(ids)), env_ids=ids)
        rows = _with_index(data.copy(), ids.tolist()).unbind(0)
        with self._registered(operation, ids, rows):
            self._require_pool().send(ids, inputs, reset_done=operation == "step and reset")

    @contextmanager
    def _registered(
        self, operation: Operation, ids: np.ndarray, rows: Sequence[TensorDictBase] = ()
    ) -> Generator[None]:
        """Registers an operation before a reply to it can arrive, and forgets it if the send fails."""
        self._sent |= dict(zip(ids.tolist(), rows, strict=bool(rows)))
        self._operations |= dict.fromkeys(ids.tolist(), operation)
        try:
            yield
        except BaseException:
            self._forget(ids.tolist())
            raise

    def _forget(self, ids: Iterable[int]) -> None:
        """Forgets the operations of environments."""
        for index in ids:
            self._operations.pop(index, None)
            self._sent.pop(index, None)

    def _ids_and_rows(
        self, tensordict: TensorDictBase | None, env_index: EnvIndex
    ) -> tuple[np.ndarray, TensorDictBase | None]:
        """Returns the environments to send to and the row of each, if there is a TensorDict."""
        ids, is_single = self._ids_of(tensordict, env_index)
        if tensordict is None:
            return ids, None
        rows: TensorDictBase = tensordict.unsqueeze(0) if is_single else tensordict
        if not rows.batch_dims or len(rows) != len(ids):
            raise SpaceError(f"Expected one row for each of {len(ids)} environments, got {tuple(rows.batch_size)}.")
        return ids, rows

    def _ids_of(self, tensordict: TensorDictBase | None, env_index: EnvIndex) -> tuple[np.ndarray, bool]:
        """Returns the environments to send to, and whether a single one was given without a batch dimension."""
        is_single = isinstance(env_index, int | np.integer)
        if env_index is None:
            given: Any = None if tensordict is None else tensordict.get("env_index", None)
            nested = range(self.num_workers) if given is None else given.tolist()  # one number, or many, per row
            is_single = given is not None and np.ndim(nested) < self.ndim and len({*np.ravel(nested).tolist()}) == 1
            env_index = [int(np.ravel(numbers)[0]) for numbers in ([nested] if is_single else nested)]
        ids = np.array(env_index, np.int64).reshape(-1)
        unknown = sorted({*ids.tolist()} - {*range(self.num_workers)})
        if unknown or len({*ids.tolist()}) < len(ids):
            raise SpaceError(f"Expected different environments from 0 to {self.num_workers - 1}, got {ids.tolist()}.")
        unread = sorted({*self._operations, *(i for ready in self._ready.values() for i in ready)} & {*ids.tolist()})
        if unread:
            raise PendingError(f"Environments {unread} have results that were not received. Receive them first.")
        return ids, is_single

    def _receive(self, operation: Operation, min_get: int | None, env_index: int | None) -> Rows:
        """Waits for environments of one operation; returns what each receive returns, stacked."""
        if not isinstance(env_index, int | np.integer | None):
            raise TypeError(
                f"Expected env_index to be an int or None, got {env_index!r:.80}. Receive one after another."
            )
        ready = self._ready[operation]
        wanted = parse_count("min_get", self.min_get if min_get is None else min_get)
        while True:
            with self._receive_lock:  # it is released after each reply, for receives in other threads
                if env_index is not None and env_index in ready:
                    return ready.pop(env_index)
                if env_index is None and len(ready) >= wanted:
                    rows = [ready.pop(i) for i in sorted(ready)]
                    return tuple(_STACKS[self.stack](list(column)) for column in zip(*rows, strict=True))
                pending = [i for i, other in list(self._operations.items()) if other == operation]
                if env_index not in pending if env_index is not None else len(ready) + len(pending) < wanted:
                    subject = f"{wanted} environments" if env_index is None else f"environment {env_index}"
                    raise PendingError(
                        f"Expected a pending {operation} of {subject}, got those of {sorted({*ready, *pending})}. Send "
                        "it first."
                    )
                self._await_any()

    def _await_any(self) -> None:
        """Waits until any environment replies, and stores the results of all that have."""
        try:
            self._store(self._require_pool().recv(1))
        except WorkerError as error:
            if isinstance(error, StepTimeout):
                raise
            self._forget(error.env_ids)
            if isinstance(error.transition, Transition):
                self._store(error.transition)
            error.transition = None
            raise

    def _store(self, transition: Transition) -> None:
        """Stores the result of each environment under its operation."""
        operations: list[Operation | None] = [self._operations.pop(i, None) for i in transition.ids.tolist()]
        roots = nexts = None
        if {*operations} - {"step"}:
            roots = self._to_own_device(self._codec.root_tensordict(transition)).unbind(0)
        if {*operations} - {"reset"}:
            nexts = self._to_own_device(self._codec.next_tensordict(transition), is_step=True).unbind(0)
        was_reset = {*transition.ids[transition.final_rows].tolist()}
        for row, (index, operation) in enumerate(zip(transition.ids.tolist(), operations, strict=True)):
            if operation == "reset" and roots is not None:
                self._ready[operation][index] = (_with_index(roots[row], index),)
            elif operation is not None and nexts is not None:
                stepped = self._sent.pop(index).set("next", nexts[row])
                result: Rows = (stepped,)
                if operation == "step and reset" and roots is not None:
                    root = self.step_mdp(stepped)
                    result = stepped, merge_into(root, roots[row]) if index in was_reset else root
                self._ready[operation][index] = result


class ThreadingAsyncEnvPool(AsyncEnvPool):
    """An `AsyncEnvPool` with environments in threads of this process."""


class ProcessorAsyncEnvPool(AsyncEnvPool):
    """An `AsyncEnvPool` with environments in worker processes."""

    _default_backend = "multiprocessing"


def _as_makers(items: Sequence[EnvFn | EnvBase]) -> list[EnvFn]:
    """Returns functions that create environments; an environment itself is used, or pickled for a process."""
    if not items:
        raise SpaceError("Expected env_makers to be one or more functions or environments, got none.")
    check_callables("env_makers to be functions or environments", items, "Give `lambda: GymEnv(...)`.")
    items = [adapt_env(item) for item in items]
    env_ids = [id(item) for item in items if isinstance(item, EnvBase)]
    if len({*env_ids}) < len(env_ids):
        raise SpaceError("Expected env_makers to be different environments, got one twice. Give functions instead.")
    return [(lambda item=item, **_: item) if isinstance(item, EnvBase) else item for item in items]


def _with_index(data: TensorDictBase, index: int | Sequence[int]) -> TensorDictBase:
    """Sets the entry "env_index" of rows, or of one row, and returns `data`."""
    if isinstance(index, int):
        entry: Any = NonTensorData(index, batch_size=data.batch_size)
    else:
        entry = NonTensorStack(*(NonTensorData(number, batch_size=data.batch_size[1:]) for number in index))
    return data.set("env_index", entry)
