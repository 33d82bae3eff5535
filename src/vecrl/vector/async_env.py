"""`AsyncVectorEnv`: a replacement for `gymnasium.vector.AsyncVectorEnv`, on the engine.

It has the constructor, the `*_async` and `*_wait` methods and the error types of gymnasium's class, so that existing
code only changes its import. Everything else is inherited from `VectorEnv`.
"""

from __future__ import annotations

import contextlib
import multiprocessing
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Literal, TypeVar

from gymnasium import error as gymnasium_error

from ..engine.backends.registry import BackendName
from ..engine.backends.worker_options import parse_start_method
from ..engine.infos import InfoDict
from ..engine.simulator import ResetOptions
from ..engine.space_layout import Tree
from ..engine.transition import AutoresetMode, GymStep
from ..errors import ClosedError, PendingError, StepTimeout, WorkerError
from ..validation import check_text, parse_optional_count
from .reset_masks import split_options
from .vector_env import EnvFn, ObservationMode, VectorEnv

Call = Literal["reset", "step", "call"]
Result = TypeVar("Result")
_CLOSE_TIMEOUT_S = 10.0  # seconds that close waits for a pending call
_RESERVED_NAMES = ("reset", "step", "close")


class AsyncPendingError(PendingError, gymnasium_error.AlreadyPendingCallError):
    """A call was made while another is pending; also gymnasium's `AlreadyPendingCallError`.

    Attributes:
        name: the pending call: "reset", "step" or "call".
    """

    def __init__(self, message: str, name: str):
        PendingError.__init__(self, message)
        self.name = name


class NoAsyncError(PendingError, gymnasium_error.NoAsyncCallError):
    """A `*_wait` method was called without a pending call; also gymnasium's `NoAsyncCallError`.

    Attributes:
        name: the call that was waited for: "reset", "step" or "call".
    """

    def __init__(self, message: str, name: str):
        PendingError.__init__(self, message)
        self.name = name


class AsyncClosedError(ClosedError, gymnasium_error.ClosedEnvironmentError):
    """A method was called after `close`; also gymnasium's `ClosedEnvironmentError`."""


class AsyncTimeout(StepTimeout, multiprocessing.TimeoutError):
    """A call timed out; also `multiprocessing.TimeoutError`."""


class AsyncVectorEnv(VectorEnv):
    """n gymnasium environments in worker processes, with separate methods to start a call and to wait for it.

    A drop-in replacement for gymnasium's class of this name, with these differences:

    * After a timeout the call stays pending: wait for it again, or `reset`, which waits for it and drops its result.
      A later step never returns the result of an earlier one.
    * An exception in an environment is raised as a `WorkerError` with the environment's number and traceback; its
      `__cause__` is the exception.
    * No environment is made in this process, and a worker may run several environments.

    >>> import numpy as np
    >>> import gymnasium
    >>> envs = AsyncVectorEnv([lambda: gymnasium.make("CartPole-v1")] * 2, num_workers=1)
    >>> obs, info = envs.reset(seed=1)
    >>> envs.step_async(np.array([0, 1]))
    >>> envs.step_wait(timeout=10)[1]
    array([1., 1.])
    >>> envs.close()

    Args:
        env_fns: n functions, each of which makes an environment.
        shared_memory: accepted for compatibility with gymnasium. It has no effect: observations are in shared memory,
            except those without a fixed size (text, graphs, sequences, custom spaces), which are pickled.
        copy: see `VectorEnv`; it has no effect.
        context: "forkserver" or "spawn", see `start_method` of `VectorEnv`. None and "fork" mean "forkserver", which
            starts workers as fast as "fork" but without this process's threads, locks and GPU contexts.
        daemon: accepted for compatibility with gymnasium. It has no effect: workers end with this process, and may
            start child processes.
        worker: must be None; the features for which custom workers were used (auto-reset modes, failure handling) are
            built in.
        observation_mode, autoreset_mode: see `VectorEnv`.
        max_concurrency: the largest number of environments that run at the same time; it limits the number of workers.
        num_workers: the number of processes that share the environments; by default the number of cores. If the
            environments mostly wait (for a network or another program), use `len(env_fns)`.
        backend: "processes" or another backend of `VectorEnv`.
        vector_options: `empty_info`, `check_nan`, `step_timeout`, `on_failure`, `restarts_per_hour`,
            `threads_per_worker`, `preload`, `pin_workers`, `ray_options`, `wait`: see `VectorEnv`.
    """

    def __init__(
        self,
        env_fns: Iterable[EnvFn],
        shared_memory: bool = True,
        copy: bool = True,
        context: str | None = None,
        daemon: bool = True,
        worker: None = None,
        observation_mode: ObservationMode = "same",
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
        max_concurrency: int | None = None,
        *,
        num_workers: int | None = None,
        backend: BackendName = "processes",
        **vector_options: Any,
    ):
        self.closed = True
        self._pending_call: Call | None = None
        self._has_unread_replies = False
        if worker is not None:
            raise ValueError(
                f"Expected worker to be None, got {worker!r}. The engine's worker runs the environments; move the code "
                "of yours into a wrapper around each environment."
            )
        self.shared_memory = shared_memory
        self.context = context
        self.daemon = daemon
        self.max_concurrency = max_concurrency
        super().__init__(
            env_fns,
            backend=backend,
            num_workers=_limit(num_workers, max_concurrency),
            copy=copy,
            observation_mode=observation_mode,
            autoreset_mode=autoreset_mode,
            start_method=parse_start_method(context, "context", (None, "fork")),
            **vector_options,
        )

    # -- asynchronous calls ------------------------------------------------------------------------

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Tree, InfoDict]:
        with self._interruptible("reset"):
            self.reset_async(seed, options)
            return self.reset_wait()

    def reset_async(self, seed: int | Sequence[int | None] | None = None, options: ResetOptions | None = None) -> None:
        """Starts a `reset` without waiting for it.

        Raises:
            AsyncPendingError: another call is pending (a call that timed out or was interrupted is dropped instead).
        """
        if self._has_unread_replies and split_options(options, self.num_envs)[1] is None:
            self._wait(lambda _: self._pool.drain(), None)
        self._start_call("reset", lambda: self._start_reset(seed, options))

    def reset_wait(self, timeout: float | None = None) -> tuple[Tree, InfoDict]:
        """Waits for the pending `reset` and returns its result.

        Args:
            timeout: seconds to wait (default: `step_timeout`).

        Raises:
            NoAsyncError: no reset is pending.
            AsyncTimeout: the reset timed out; it stays pending, so call this method again to wait longer.
        """
        return self._finish_call("reset", self._finish_reset, timeout)

    def step(self, actions: Tree) -> GymStep:
        with self._interruptible("step"):
            self.step_async(actions)
            return self.step_wait()

    def step_async(self, actions: Tree) -> None:
        """Starts a `step` without waiting for it.

        Raises:
            AsyncPendingError: another call is pending.
        """
        self._start_call("step", lambda: self._start_step(actions))

    def step_wait(self, timeout: float | None = None) -> GymStep:
        """Waits for the pending `step` and returns its result; arguments and errors are those of `reset_wait`."""
        return self._finish_call("step", self._finish_step, timeout)

    def call(self, name: str, *args: object, **kwargs: object) -> tuple[Any, ...]:
        with self._interruptible("call"):
            self.call_async(name, *args, **kwargs)
            return self.call_wait()

    def call_async(self, name: str, /, *args: object, **kwargs: object) -> None:
        """Starts a `call` without waiting for it.

        Raises:
            AsyncPendingError: another call is pending.
            ValueError: `name` is "reset", "step" or "close", for which this class has methods.
        """
        check_text("name", name)
        if name in _RESERVED_NAMES:
            raise ValueError(f"Expected a name other than 'reset', 'step' and 'close', got {name!r}. Use `{name}()`.")
        values = [(args, kwargs)] * self.num_envs
        self._start_call("call", lambda: self._pool.invoke_async("call", name, values))

    def call_wait(self, timeout: float | None = None) -> tuple[Any, ...]:
        """Waits for the pending `call` and returns its results; arguments and errors are those of `reset_wait`."""
        return tuple(self._finish_call("call", self._pool.invoke_wait, timeout))

    def get_attr(self, name: str) -> tuple[Any, ...]:
        self._check_no_pending_call("get_attr")
        return super().get_attr(name)

    def set_attr(self, name: str, values: object) -> None:
        self._check_no_pending_call("set_attr")
        super().set_attr(name, values)

    def render(self) -> tuple[Any, ...] | None:
        self._check_no_pending_call("render")
        return super().render()

    def close_extras(self, timeout: float | None = None, terminate: bool = False, **_: object) -> None:
        """Waits for the pending call, closes every environment and stops every worker.

        Args:
            timeout: seconds that each of these may take (default: `step_timeout`, or 10); workers are killed after
                that.
            terminate: whether to kill the workers at once.

        Raises:
            AsyncTimeout: environments did not close in time; everything is closed nevertheless.
            WorkerError: environments raised while closing; everything is closed nevertheless.
        """
        if self._pending_call is not None and not terminate and not self._pool.in_use:
            with contextlib.suppress(WorkerError, PendingError):  # no call is pending if Ctrl-C lost the reply
                limit = self._pool.step_timeout if timeout is None else timeout
                wait = self._pool.invoke_wait if self._pending_call == "call" else self._finish_pending
                wait(_CLOSE_TIMEOUT_S if limit is None else limit)
        try:
            self._pool.close(0.0 if terminate else timeout)
        except StepTimeout as error:
            if not terminate:
                raise AsyncTimeout(error.failures) from None

    # -- private methods ---------------------------------------------------------------------------

    def _finish_pending(self, timeout: float) -> Any:
        return self._finish_reset(timeout) if self._pending_call == "reset" else self._finish_step(timeout)

    @contextlib.contextmanager
    def _interruptible(self, call: Call) -> Iterator[None]:
        """Keeps the call pending if Ctrl-C interrupts it, so that the next `reset` or `close` handles its replies."""
        try:
            yield
        except KeyboardInterrupt:
            self._pending_call, self._has_unread_replies = call, True
            raise

    def _check_no_pending_call(self, name: str) -> None:
        if self.closed:
            raise self._closed_error()
        if self._pending_call is not None:
            raise AsyncPendingError(
                f"Expected no pending call at {name!r}, got a pending {self._pending_call!r}. Call "
                f"{self._pending_call}_wait() first"
                f"{', or reset()' if self._has_unread_replies else ''}.",
                self._pending_call,
            )

    def _closed_error(self) -> AsyncClosedError:
        return AsyncClosedError(f"This {type(self).__name__} is closed. Make a new one.")

    def _start_call(self, call: Call, start: Callable[[], None]) -> None:
        self._check_no_pending_call(f"{call}_async")
        start()
        self._pending_call = call

    def _finish_call(self, call: Call, finish: Callable[[float | None], Result], timeout: float | None) -> Result:
        if self.closed:
            raise self._closed_error()
        if self._pending_call != call:
            raise NoAsyncError(f"Expected a pending {call!r}, got none. Call {call}_async before {call}_wait.", call)
        return self._wait(finish, timeout)

    def _wait(self, finish: Callable[[float | None], Result], timeout: float | None) -> Result:
        """Returns the result of the pending call, which stays pending if it times out."""
        try:
            return finish(timeout)
        except StepTimeout as error:
            raise AsyncTimeout(error.failures, error.transition) from error.__cause__
        except ClosedError as error:  # another thread closed this
            raise AsyncClosedError(str(error)) from error
        except PendingError as error:
            if self.closed:  # another thread closes this, and has waited for the pending call
                raise self._closed_error() from error
            text = f"The reply to {self._pending_call!r} was lost because Ctrl-C interrupted the call. Call reset()."
            raise NoAsyncError(text, self._pending_call or "") from error
        finally:
            self._has_unread_replies = len(self._pool.pending) > 0
            if not self._has_unread_replies:
                self._pending_call = None


def _limit(num_workers: int | None, max_concurrency: int | None) -> int | None:
    """Returns the number of workers, at most `max_concurrency`."""
    limit = parse_optional_count("max_concurrency", max_concurrency)
    if limit is None:
        return num_workers
    return min(multiprocessing.cpu_count() if num_workers is None else num_workers, limit)
