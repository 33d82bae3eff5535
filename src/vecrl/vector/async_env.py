"""`AsyncVectorEnv`: gymnasium's vector environment in processes, by its own names, on the engine.

Whoever wrote against `gymnasium.vector.AsyncVectorEnv` changes the import: constructor, asking and waiting apart, and
the errors are gymnasium's. The rest is `VectorEnv`'s.
"""

from __future__ import annotations

import contextlib
import multiprocessing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, TypeVar

import numpy as np
from gymnasium import error as gymnasium_error

from ..engine.backends.processes import start_method_of
from ..engine.pool_factory import BackendName
from ..engine.space_layout import Tree
from ..engine.transition import AutoresetMode, GymStep
from ..errors import ClosedError, PendingError, StepTimeout, WorkerError
from .vector_env import EnvFn, ObservationMode, VectorEnv

Call = Literal["reset", "step", "call"]
Result = TypeVar("Result")
_CLOSE_TIMEOUT_S = 10.0  # seconds that a call under way may take when everything is closed
_RESERVED_NAMES = ("reset", "step", "close")


class AsyncPendingError(PendingError, gymnasium_error.AlreadyPendingCallError):
    """A call while another is under way; gymnasium's `AlreadyPendingCallError` too.

    Attributes:
        name: what is under way: "reset", "step" or "call".
    """

    def __init__(self, message: str, name: str):
        PendingError.__init__(self, message)
        self.name = name


class NoAsyncError(PendingError, gymnasium_error.NoAsyncCallError):
    """Waiting for what was not asked; gymnasium's `NoAsyncCallError` too.

    Attributes:
        name: what was waited for: "reset", "step" or "call".
    """

    def __init__(self, message: str, name: str):
        PendingError.__init__(self, message)
        self.name = name


class AsyncClosedError(ClosedError, gymnasium_error.ClosedEnvironmentError):
    """A call after `close`; gymnasium's `ClosedEnvironmentError` too."""


class AsyncTimeout(StepTimeout, multiprocessing.TimeoutError):
    """No answer in time; `multiprocessing.TimeoutError` too."""


class AsyncVectorEnv(VectorEnv):
    """n gymnasium environments in worker processes, asked and waited for apart.

    A drop-in for gymnasium's class of this name, with these differences:

    * A timeout leaves the call under way: wait for it again, or `reset`, which waits for it and drops it.
      No later step is ever one behind.
    * An environment's exception arrives as a `WorkerError` that names it, with its traceback, and as its `__cause__`.
    * No environment is made in this process, and a worker may run several.

    >>> import gymnasium
    >>> envs = AsyncVectorEnv([lambda: gymnasium.make("CartPole-v1")] * 2, num_workers=1)
    >>> obs, info = envs.reset(seed=1)
    >>> envs.step_async(np.array([0, 1]))
    >>> envs.step_wait(timeout=10)[1]
    array([1., 1.])
    >>> envs.close()

    Args:
        env_fns: n functions, each of which makes an environment.
        shared_memory: taken for gymnasium's sake. Observations are in shared memory in any case, save those that
            have no fixed size (text, graphs, sequences, a user's own spaces), which travel pickled.
        copy: as for `VectorEnv`: results are the caller's own in any case.
        context: "forkserver" or "spawn", see `VectorEnv`'s `start_method`. None and "fork" mean "forkserver", which
            starts workers as fast without taking this process's threads, locks and GPU contexts with them.
        daemon: taken for gymnasium's sake. Workers always end with this process, and may always have children.
        worker: must be None; what other workers were for (modes of auto-reset, handling failures) is built in.
        observation_mode, autoreset_mode: as for `VectorEnv`.
        max_concurrency: at most so many environments run at any time, which is at most so many workers.
        num_workers: how many processes share the environments; by default as many as there are cores. For
            environments that wait rather than compute (for a network, another program), take `len(env_fns)`.
        backend: "processes", or one of `VectorEnv`'s others.
        vector_options: `empty_info`, `check_nan`, `step_timeout`, `on_failure`, `restarts_per_hour`,
            `threads_per_worker`, `preload`, `pin_workers`, `ray_options`: see `VectorEnv`.
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
                "Expected worker to be None, but a function came: the engine's own worker runs the environments. "
                "Put what yours does into a wrapper around each environment."
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
            start_method=start_method_of(context),
            **vector_options,
        )

    # -- asking and waiting ------------------------------------------------------------------------

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Tree, dict[str, Any]]:
        """See `VectorEnv.reset`."""
        with self._interruptible("reset"):
            self.reset_async(seed, options)
            return self.reset_wait()

    def reset_async(
        self, seed: int | Sequence[int | None] | None = None, options: Mapping[str, Any] | None = None
    ) -> None:
        """Ask for a `reset` without waiting.

        Raises:
            AsyncPendingError: another call is under way (one that timed out or was interrupted is dropped).
        """
        if self._has_unread_replies and (options is None or options.get("reset_mask") is None):
            self._wait(lambda _: self._pool.drain(), None)
        self._start_call("reset", lambda: self._start_reset(seed, options))

    def reset_wait(self, timeout: float | None = None) -> tuple[Tree, dict[str, Any]]:
        """What the `reset` that was asked for returns.

        Args:
            timeout: seconds to wait (default: `step_timeout`).

        Raises:
            NoAsyncError: no reset was asked for.
            AsyncTimeout: it is late; call again to go on waiting.
        """
        return self._finish_call("reset", self._finish_reset, timeout)

    def step(self, actions: Any) -> GymStep:
        """See `VectorEnv.step`."""
        with self._interruptible("step"):
            self.step_async(actions)
            return self.step_wait()

    def step_async(self, actions: Any) -> None:
        """Ask for a `step` without waiting.

        Raises:
            AsyncPendingError: another call is under way.
        """
        self._start_call("step", lambda: self._start_step(actions))

    def step_wait(self, timeout: float | None = None) -> GymStep:
        """What the `step` that was asked for returns; arguments and errors as `reset_wait`'s."""
        return self._finish_call("step", self._finish_step, timeout)

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """See `VectorEnv.call`."""
        with self._interruptible("call"):
            self.call_async(name, *args, **kwargs)
            return self.call_wait()

    def call_async(self, name: str, /, *args: Any, **kwargs: Any) -> None:
        """Ask for a `call` without waiting.

        Raises:
            AsyncPendingError: another call is under way.
            ValueError: `name` is one of "reset", "step" and "close", which have methods of their own.
        """
        if name in _RESERVED_NAMES:
            raise ValueError(f"Expected the name of another method or attribute, but {name!r} came: use `{name}`.")
        values = [(args, kwargs)] * self.num_envs
        self._start_call("call", lambda: self._pool.invoke_async("call", name, values))

    def call_wait(self, timeout: float | None = None) -> tuple[Any, ...]:
        """What the `call` that was asked for returns; arguments and errors as `reset_wait`'s."""
        return tuple(self._finish_call("call", self._pool.invoke_wait, timeout))

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """See `VectorEnv.get_attr`."""
        self._check_no_pending_call("get_attr")
        return super().get_attr(name)

    def set_attr(self, name: str, values: Any) -> None:
        """See `VectorEnv.set_attr`."""
        self._check_no_pending_call("set_attr")
        super().set_attr(name, values)

    def render(self) -> tuple[Any, ...] | None:
        """See `VectorEnv.render`."""
        self._check_no_pending_call("render")
        return super().render()

    def close_extras(self, timeout: float | None = None, terminate: bool = False, **_: Any) -> None:
        """Let the call under way end, close every environment, end every worker.

        Args:
            timeout: seconds that each of these may take (default: `step_timeout`, or 10), after which
                workers are ended by force.
            terminate: end them by force at once.

        Raises:
            AsyncTimeout: environments did not close in time; everything is closed all the same.
            WorkerError: what environments raised while closing; likewise.
        """
        if self._pending_call is not None and not terminate and not self._pool.in_use:
            with contextlib.suppress(WorkerError, PendingError):  # nothing is, where Ctrl-C took the answer
                limit = self._pool.step_timeout if timeout is None else timeout
                wait = self._pool.invoke_wait if self._pending_call == "call" else self._finish_pending
                wait(_CLOSE_TIMEOUT_S if limit is None else limit)
        try:
            self._pool.close(0.0 if terminate else timeout)
        except StepTimeout as error:
            if not terminate:
                raise AsyncTimeout(error.failures) from None

    # -- inside ------------------------------------------------------------------------------------

    def _finish_pending(self, timeout: float) -> Any:
        return self._finish_reset(timeout) if self._pending_call == "reset" else self._finish_step(timeout)

    @contextlib.contextmanager
    def _interruptible(self, call: Call) -> Iterator[None]:
        """Ask and wait in one: interrupted, it leaves what the next `reset` or `close` makes good."""
        try:
            yield
        except KeyboardInterrupt:
            self._pending_call, self._has_unread_replies = call, True
            raise

    def _check_no_pending_call(self, name: str) -> None:
        if self.closed:
            raise AsyncClosedError(f"This {type(self).__name__} is closed; make a new one.")
        if self._pending_call is not None:
            raise AsyncPendingError(
                f"Expected no call under way at {name!r}, but {self._pending_call!r} is: call "
                f"{self._pending_call}_wait() first"
                f"{', or reset()' if self._has_unread_replies else ''}.",
                self._pending_call,
            )

    def _start_call(self, call: Call, start: Callable[[], None]) -> None:
        self._check_no_pending_call(f"{call}_async")
        start()
        self._pending_call = call

    def _finish_call(self, call: Call, finish: Callable[[float | None], Result], timeout: float | None) -> Result:
        if self.closed:
            raise AsyncClosedError(f"This {type(self).__name__} is closed; make a new one.")
        if self._pending_call != call:
            raise NoAsyncError(f"Expected {call}_async before {call}_wait, but it was not called.", call)
        return self._wait(finish, timeout)

    def _wait(self, finish: Callable[[float | None], Result], timeout: float | None) -> Result:
        """The result of the call under way, which stays under way where it is late."""
        try:
            return finish(timeout)
        except StepTimeout as error:
            raise AsyncTimeout(error.failures, error.transition) from error.__cause__
        except ClosedError as error:  # another thread closed this
            raise AsyncClosedError(str(error)) from error
        except PendingError as error:
            text = f"The answer to {self._pending_call!r} was lost as Ctrl-C came: reset() to go on."
            raise NoAsyncError(text, self._pending_call or "") from error
        finally:
            self._has_unread_replies = len(self._pool.pending) > 0
            if not self._has_unread_replies:
                self._pending_call = None


def _limit(num_workers: int | None, max_concurrency: int | None) -> int | None:
    """The number of workers that runs at most `max_concurrency` environments at a time."""
    if max_concurrency is None:
        return num_workers
    if not isinstance(max_concurrency, int | np.integer) or max_concurrency < 1:
        raise ValueError(f"Expected max_concurrency to be a positive integer or None, but {max_concurrency!r} came.")
    if num_workers is None:
        num_workers = multiprocessing.cpu_count()
    return min(num_workers, int(max_concurrency))
