"""Every error that vecrl raises of its own accord, in one tree.

    VecrlError
    ├── SpaceError (TypeError, ValueError)   a space, spec, shape, dtype or device that does not fit
    │   └── OutOfSpecError (AssertionError)  a value that a spec does not allow
    ├── LockedError (RuntimeError)           a change of something that is locked
    ├── ClosedError (ValueError)             a call on something that was closed
    ├── PendingError (RuntimeError)          a call that must wait for one under way, or has none to wait for
    ├── SerializationError (ValueError)               a factory that cannot be sent to a worker process
    ├── VersionError (ModuleNotFoundError)   a library that is missing, or in a version that nothing here is for
    ├── StateError (ValueError)              a state that cannot be taken, or put back where it is to go
    │   └── CheckpointError                  a file that is no checkpoint, or not a whole one
    ├── NetParsingError (ValueError)         a network description that is not in the grammar
    └── WorkerError (RuntimeError)           one or more environments failed
        ├── WorkerCrash                      their worker process is gone
        └── StepTimeout (TimeoutError)       their answer is late

A message says which environments, what was expected, what came, and what to do.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import cloudpickle


class VecrlError(Exception):
    """Base of all errors raised by vecrl itself."""


class SpaceError(VecrlError, TypeError, ValueError):
    """A space, shape or dtype that does not fit what was declared."""


class OutOfSpecError(SpaceError, AssertionError):
    """A value that is not in the spec it was held against."""


class LockedError(VecrlError, RuntimeError):
    """A change of something that is locked against changes."""


class ClosedError(VecrlError, ValueError):
    """Something was used after it had been closed."""


class PendingError(VecrlError, RuntimeError):
    """A call came while another was under way, or asked for an answer to none."""


class SerializationError(VecrlError, ValueError):
    """A factory that cannot be pickled, so that no worker process can have it."""


class VersionError(VecrlError, ModuleNotFoundError):
    """A library that is not installed, or in a version that nothing here was written for."""


class StateError(VecrlError, ValueError):
    """A state that cannot be taken, or that is none of the object that it is put into."""


class CheckpointError(StateError):
    """A file that is no checkpoint, is of another version, cut short or damaged, or lacks what is asked of it."""


class NetParsingError(VecrlError, ValueError):
    """A network description that is not in the network language.

    Attributes:
        line: 1-based line of the offending text, or None.
        column: 1-based column of the offending text, or None.
    """

    def __init__(self, message: str, line: int | None = None, column: int | None = None):
        where = "" if line is None else f" (line {line}, column {column})"
        super().__init__(message + where)
        self.line = line
        self.column = column


@dataclass(frozen=True, slots=True)
class Failure:
    """What one worker reports of one thing that went wrong.

    Attributes:
        env_ids: the environments it concerns.
        command: what was being done: "construct", "reset", "step", "render", "call", "close", …
        error: the type and text of the exception, on one line.
        traceback: the worker's own traceback as text ("" where there is none).
        worker: the worker's index.
        pid: the worker's process id.
        step: how many steps the worker had been asked for.
        exception: the exception itself where it could be brought over, else None.
        kind: "raised", "crashed" or "timed_out".
    """

    env_ids: tuple[int, ...]
    command: str
    error: str
    traceback: str = ""
    worker: int = 0
    pid: int = 0
    step: int = 0
    exception: BaseException | None = None
    kind: str = "raised"


_ENDINGS = {
    "construct": "Nothing was made, and nothing is left running.",
    "close": "Everything is closed all the same.",
}


class WorkerError(VecrlError, RuntimeError):
    """One or more environments failed; the message carries each one's own traceback.

    Attributes:
        failures: one `Failure` a thing that went wrong, in the order of the environments.
        env_ids: all environments concerned.
        transition: what the other environments yielded, where the command was a step or a reset.
        results: what the other environments gave, None for those that failed, where the command was a call.
    """

    results: list[Any] | None = None
    advice = "The other environments are unharmed; reset the failed ones (or all) to go on."

    def __init__(self, failures: Sequence[Failure], transition: Any = None, advice: str | None = None):
        self.transition = transition
        unique = {id(failure): failure for failure in failures}  # a crash is told to all who waited for the worker
        self.failures = tuple(sorted(unique.values(), key=lambda f: f.env_ids))
        self.env_ids = tuple(i for f in self.failures for i in f.env_ids)
        if advice is None:
            commands = {failure.command for failure in self.failures}
            advice = _ENDINGS.get(commands.pop(), self.advice) if len(commands) == 1 else self.advice
        self.advice = advice
        super().__init__("\n".join([*map(_describe, self.failures), advice]))
        self.__cause__ = next((f.exception for f in self.failures if f.exception is not None), None)

    def __reduce__(self):
        return _rebuild_error, (type(self), pickle_exceptions(self.failures), self.advice)


class WorkerCrash(WorkerError):
    """A worker process is gone: it exited or was killed."""

    advice = (
        "The environments of that worker are lost: close this object and make a new one, "
        'or have them made anew by on_failure="restart".'
    )


class StepTimeout(WorkerError, TimeoutError):
    """Environments did not answer within the timeout; they are still under way."""

    advice = (
        "They stay pending, and no other is out of step: reset, which waits for them first, wait again where there is "
        "a call for it (step_wait, step(None)), or cancel them, or close. "
        'on_failure="restart" replaces those who are late.'
    )


def failures_to_error(failures: Sequence[Failure], transition: Any = None, advice: str | None = None) -> WorkerError:
    """The error that fits the worst of `failures`: a crash before a timeout before an exception."""
    kinds = {f.kind for f in failures}
    cls = WorkerCrash if "crashed" in kinds else StepTimeout if "timed_out" in kinds else WorkerError
    return cls(failures, transition, advice)


class remap_failures:
    """Around calls: what they raise of failures is told as other ones, with the same cause and results.

    Args:
        remap: what a failure is told as.
        advice: what to do now, where it is not what usually helps.
    """

    def __init__(self, remap: Callable[[Failure], Iterable[Failure]], advice: str | None = None):
        self._remap, self._advice = remap, advice

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, WorkerError):
            remapped = failures_to_error([new for f in error.failures for new in self._remap(f)], advice=self._advice)
            remapped.results = error.results
            raise remapped from remapped.__cause__


def pickle_exceptions(failures: Iterable[Failure]) -> list[Failure]:
    """Failures that can travel: their exceptions in bytes, if they can be pickled and rebuilt."""
    return [replace(failure, exception=_pickle_exception(failure.exception)) for failure in failures]


def unpickle_exceptions(failures: Iterable[Failure]) -> list[Failure]:
    """Failures that travelled, with the exceptions that this process can rebuild."""
    return [replace(failure, exception=_unpickle_exception(failure.exception)) for failure in failures]


def _rebuild_error(cls: type[WorkerError], failures: list[Failure], advice: str) -> WorkerError:
    return cls(unpickle_exceptions(failures), advice=advice)


def _pickle_exception(error: BaseException | None) -> Any:
    if error is None:
        return None
    try:
        body = cloudpickle.dumps(error)
        pickle.loads(body)
    except BaseException:  # odd constructors raise anything
        return None
    return body


def _unpickle_exception(body: Any) -> BaseException | None:
    try:
        return pickle.loads(body) if body else None
    except BaseException:  # its module may be missing here
        return None


def _describe(failure: Failure) -> str:
    ids = ", ".join(map(str, failure.env_ids))
    many = "s" if len(failure.env_ids) > 1 else ""
    process = f", pid {failure.pid}" if failure.pid else ""
    head = f"environment{many} {ids} (worker {failure.worker}{process}) in {failure.command!r}"
    if failure.command == "step" and failure.step:
        head += f" number {failure.step}"
    text = f"{head}: {failure.error}"
    return f"{text}\n{_indent(failure.traceback)}" if failure.traceback else text


def _indent(text: str) -> str:
    return "\n".join("    " + line for line in text.rstrip().splitlines())
