"""The exceptions that vecrl defines, in one tree. Knows no other module of the library.

    VecrlError
    ├── SpaceError (TypeError, ValueError,    a space, spec, shape, dtype or device does not fit
    │   │           RuntimeError)
    │   └── OutOfSpecError (AssertionError)  a value or a space is not the required one
    ├── LockedError (RuntimeError)           a locked object is changed
    ├── ClosedError (ValueError)             a closed object is used
    ├── ForkedError (RuntimeError)           a fork of the process that made a pool uses it
    ├── PendingError (RuntimeError)          another command is pending, or none is
    ├── SerializationError (ValueError)      a factory cannot be sent to a worker process
    ├── VersionError (ModuleNotFoundError)   a library is missing, or its version is not supported
    ├── PlatformError (NotImplementedError)  the platform lacks what is needed
    ├── StateError (ValueError)              a state cannot be captured, or cannot be restored into the object
    │   └── CheckpointError                  a file is no checkpoint, or is incomplete
    ├── NetParsingError (ValueError)         a network description is not in the grammar
    ├── VideoError (OSError)                 a video could not be encoded or written
    └── WorkerError (RuntimeError)           one or more environments failed; also of the class of its cause
        ├── WorkerCrash                      their worker process ended
        └── StepTimeout (TimeoutError)       they did not reply within the timeout

A message names the environments, says what was expected and what was found, and what to do.
"""

from __future__ import annotations

import os
import pickle
import re
import traceback
from collections.abc import Callable, Container, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from types import MemberDescriptorType
from typing import Any

import cloudpickle


class VecrlError(Exception):
    """Base class of the errors that vecrl defines."""


class SpaceError(VecrlError, TypeError, ValueError, RuntimeError):
    """A space, spec, shape, dtype or device does not fit what was declared."""


class OutOfSpecError(SpaceError, AssertionError):
    """A value is not in the spec that it was checked against, or a space is not equal to the required one."""


class LockedError(VecrlError, RuntimeError):
    """A locked object was to be changed."""


class ClosedError(VecrlError, ValueError):
    """An object was used after it was closed."""


class ForkedError(VecrlError, RuntimeError):
    """A fork of the process that made a pool called it. The workers and the pool of that process are unchanged."""


class PendingError(VecrlError, RuntimeError):
    """A call was made while another command was pending, or waited for a reply while none was pending."""


class SerializationError(VecrlError, ValueError):
    """A factory cannot be pickled, so it cannot be sent to a worker process."""


class VersionError(VecrlError, ModuleNotFoundError):
    """A library is not installed, or its version is not supported."""


class PlatformError(VecrlError, NotImplementedError):
    """The platform, such as Windows, lacks calls of the system that are needed."""


class StateError(VecrlError, ValueError):
    """A state cannot be captured, or does not fit the object that it is restored into."""


class CheckpointError(StateError):
    """A file is no checkpoint, has another version, is truncated or damaged, or lacks a requested entry."""


class NetParsingError(VecrlError, ValueError):
    """A network description is not in the network language.

    Attributes:
        line: 1-based line of the offending text, or None.
        column: 1-based column of the offending text, or None.
    """

    def __init__(self, message: str, line: int | None = None, column: int | None = None):
        where = "" if line is None else f" (line {line}, column {column})"
        super().__init__(message + where)
        self.line = line
        self.column = column


class VideoError(VecrlError, OSError):
    """A video could not be encoded or written whole; a file that was there before is unchanged."""


@dataclass(frozen=True, slots=True)
class Failure:
    """One failure, as a worker reports it.

    Attributes:
        env_ids: the environments that failed.
        command: the command that failed: "construct", "reset", "step", "close", "invoke" or the name of a method, …
        error: the type and text of the exception, on one line.
        traceback: the worker's traceback as text ("" if there is none).
        worker: the worker's index.
        pid: the worker's process id.
        step: how many step commands the worker had received.
        exception: the exception if it, or a copy of it with fewer attributes, could be sent to the caller, else None.
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


MAX_IDS = 16  # more consecutive ids than these are abbreviated in messages

_ADVICE_BY_COMMAND = {
    "construct": "No environment was created, and no worker is left running.",
    "close": "The pool is closed nevertheless.",
}


class WorkerError(VecrlError, RuntimeError):
    """One or more environments failed; the message contains the traceback of each.

    The error is also an instance of the class of its `__cause__`, the first exception that an environment raised, and
    has its attributes. So `except MyError` catches a `MyError` of an environment on every backend. Not combined are
    StopIteration, which would end a loop or generator of the caller in silence; SystemExit and KeyboardInterrupt, which
    would end the program without a message; SyntaxError, of which Python prints other lines; ClosedError and
    PendingError, which are about an object of the worker; and classes with a constructor or layout that does not allow
    it. Then only the cause is of this class.

    Attributes:
        failures: the failures, ordered by environment.
        env_ids: the ids of all environments that failed.
        transition: the transition of the other environments if the command was a step or a reset, else None.
        results: the results of the other environments if the command was a call, with None for each that failed;
            else None.
    """

    results: list[Any] | None = None
    _cause_class: type[BaseException] | None = None  # set in classes that are combined with that of the cause
    advice = "The other environments are unaffected. Reset the failed ones, or all, to continue."

    def __init__(self, failures: Sequence[Failure], transition: Any = None, advice: str | None = None):
        self.transition = transition
        unique = {id(failure): failure for failure in failures}  # a crash fails all commands of its worker
        self.failures = tuple(sorted(unique.values(), key=lambda f: f.env_ids))
        self.env_ids = tuple(i for f in self.failures for i in f.env_ids)
        if advice is None:
            commands = {failure.command for failure in self.failures}
            advice = _ADVICE_BY_COMMAND.get(commands.pop(), self.advice) if len(commands) == 1 else self.advice
        self.advice = advice
        text = "\n".join([*map(_describe, _merge(self.failures)), advice])
        RuntimeError.__init__(self, text)  # `super()` may be the class of the cause
        self.__cause__ = next((f.exception for f in self.failures if f.exception is not None), None)

    def __reduce__(self):
        cls = type(self) if self._cause_class is None else type(self).__bases__[0]
        return _rebuild_error, (cls, pickle_exceptions(self.failures), self.advice)


class WorkerCrash(WorkerError):
    """A worker process exited or was killed."""

    advice = (
        "The environments of that worker are lost. Close this object and create a new one, "
        'or use on_failure="restart", which creates them again.'
    )


class StepTimeout(WorkerError, TimeoutError):
    """Environments did not reply within the timeout; their commands are still pending."""

    advice = (
        "They stay pending, and the other environments stay in sync. Reset (which waits for them first), cancel them, "
        "or close. Asynchronous classes can also receive again: by step_wait, step(None) or async_step_recv. "
        'on_failure="restart" replaces environments that time out.'
    )


def failures_to_error(failures: Sequence[Failure], transition: Any = None, advice: str | None = None) -> WorkerError:
    """Returns the error for the worst of `failures`: a crash is worse than a timeout, a timeout than an exception.

    It is also an instance of the class of its cause, see `WorkerError`.
    """
    kinds = {f.kind for f in failures}
    cls = WorkerCrash if "crashed" in kinds else StepTimeout if "timed_out" in kinds else WorkerError
    return _make_error(cls, failures, transition, advice)


def _make_error(
    cls: type[WorkerError], failures: Sequence[Failure], transition: Any, advice: str | None
) -> WorkerError:
    """Returns an error of `cls` that is also of the class of its cause, if both can be combined."""
    error = cls(failures, transition, advice)
    cause = error.__cause__
    if cause is None:
        return error
    cause_class: type[BaseException] = getattr(cause, "_cause_class", None) or type(cause)
    if isinstance(error, cause_class) or not issubclass(cause_class, Exception) or issubclass(cause_class, _SPECIAL):
        return error
    try:
        combined: object = _combine(cls, cause_class)(failures, transition, advice)
        if not isinstance(combined, WorkerError):
            return error
        _copy_attributes(cause, combined, {"results", "__notes__", *vars(error)})
    except Exception:  # the layouts conflict, or hooks of the class raise
        return error
    return combined


# Python treats the first three in a special way; the others are about an object of the worker, not of the caller
_SPECIAL = (StopIteration, StopAsyncIteration, SyntaxError, ClosedError, PendingError)
# the methods of the combined class that do not come from the class of the cause
_METHODS = (
    *("__str__", "__repr__", "__eq__", "__hash__", "__setstate__"),
    *("__getattribute__", "__setattr__", "__delattr__"),
)


@lru_cache(maxsize=256)
def _combine(cls: type[WorkerError], cause_class: type[BaseException]) -> type[WorkerError]:
    namespace = {name: getattr(BaseException, name) for name in _METHODS}
    names = {"__module__": cls.__module__, "__qualname__": cls.__qualname__, "__doc__": cls.__doc__}
    return type(cls.__name__, (cls, cause_class), {**namespace, **names, "_cause_class": cause_class})


def _copy_attributes(source: BaseException, target: BaseException, own: Container[str]) -> None:
    """Copies attributes of an exception, those in slots (such as `errno`) included, except those in `own`."""
    for name, value in vars(source).items():
        if name not in own:
            setattr(target, name, value)
    for cls in type(source).__mro__:
        for name, slot in vars(cls).items():
            if isinstance(slot, MemberDescriptorType) and name not in own and cls is not BaseException:
                with suppress(AttributeError):  # not set
                    slot.__set__(target, slot.__get__(source))


class remap_failures:
    """Context manager that replaces the failures of a `WorkerError` raised in its block; cause and results stay.

    Args:
        remap: returns the failures that replace one failure.
        advice: replaces the default advice of the error.
    """

    def __init__(self, remap: Callable[[Failure], Iterable[Failure]], advice: str | None = None):
        self._remap, self._advice = remap, advice

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, WorkerError):
            remapped = failures_to_error([new for f in error.failures for new in self._remap(f)], advice=self._advice)
            remapped.results = error.results
            raise remapped from remapped.__cause__


def pickle_exceptions(failures: Iterable[Failure]) -> list[Failure]:
    """Returns the failures with their exceptions pickled; None for each with a class that cannot be pickled.

    An exception that cannot be pickled and unpickled, often because of the arguments of its constructor, is replaced by
    one of the same class that is made without its constructor: with the same attributes if they can be pickled.
    """
    return [replace(failure, exception=_pickle_exception(failure.exception)) for failure in failures]


def unpickle_exceptions(failures: Iterable[Failure]) -> list[Failure]:
    """Returns the failures with their exceptions unpickled; None for each that this process cannot unpickle."""
    return [replace(failure, exception=_unpickle_exception(failure.exception)) for failure in failures]


def _rebuild_error(cls: type[WorkerError], failures: list[Failure], advice: str) -> WorkerError:
    return _make_error(cls, unpickle_exceptions(failures), None, advice)


def _pickle_exception(error: BaseException | None) -> bytes | None:
    if error is None:
        return None
    copies = (lambda: error, lambda: _CopyOf(error, error.args, vars(error)), lambda: _CopyOf(error, (str(error),), {}))
    for make_copy in copies:
        try:
            body = cloudpickle.dumps(make_copy())
            if type(pickle.loads(body)) is type(error) or isinstance(error, WorkerError):
                return body
        except BaseException:  # constructors may raise anything
            continue
    return None


class _CopyOf:
    """Unpickles as an exception of the class of `error`, made without calling its constructor."""

    def __init__(self, error: BaseException, args: tuple[Any, ...], attributes: dict[str, Any]):
        self._contents = type(error), args, attributes

    def __reduce__(self):
        return _remake_exception, self._contents


def _remake_exception(cls: type[BaseException], args: tuple[Any, ...], attributes: dict[str, Any]) -> BaseException:
    error = cls.__new__(cls, *args)
    BaseException.__setattr__(error, "args", args)  # the class may forbid changes
    error.__dict__.update(attributes)
    return error


def _unpickle_exception(body: object) -> BaseException | None:
    try:
        return pickle.loads(body) if isinstance(body, bytes) else None
    except BaseException:  # its module may be missing here
        return None


def _merge(failures: Iterable[Failure]) -> list[Failure]:
    """Returns the failures; constructions with the same error and no traceback become one."""
    merged: dict[object, Failure] = {}
    for failure in failures:
        is_plain = failure.command == "construct" and not failure.traceback
        key = failure.error if is_plain else id(failure)
        first = merged.get(key)
        if first is not None:
            same = first.worker == failure.worker
            failure = replace(first, env_ids=first.env_ids + failure.env_ids, worker=first.worker if same else -1)
        merged[key] = failure
    return list(merged.values())


def _describe(failure: Failure) -> str:
    process = f", pid {failure.pid}" if failure.pid else ""
    worker = "" if failure.worker < 0 else f" (worker {failure.worker}{process})"
    head = f"{name_ids(failure.env_ids)}{worker} in {failure.command!r}"
    if failure.command == "step" and failure.step:
        head += f" number {failure.step}"
    text = f"{head}: {failure.error}"
    return f"{text}\n{_indent(failure.traceback)}" if failure.traceback else text


def name_ids(ids: Sequence[int]) -> str:
    """Returns the ids of environments as text; many consecutive ones as the first and the last.

    >>> name_ids([3]), name_ids(range(64))
    ('environment 3', 'environments 0 to 63')
    """
    if len(ids) == 1:
        return f"environment {ids[0]}"
    if len(ids) > MAX_IDS and tuple(ids) == tuple(range(ids[0], ids[0] + len(ids))):
        return f"environments {ids[0]} to {ids[-1]}"
    return f"environments {', '.join(map(str, ids))}"


def _indent(text: str) -> str:
    return "\n".join("    " + line for line in text.rstrip().splitlines())


_PLACE = re.compile(r'File "([^"]+)", line (\d+), in (\S+)')
_PACKAGES = "site-packages", "dist-packages"
_NOT_OF_THE_USER = os.path.dirname(os.__file__), os.path.dirname(__file__), "<"


def place_in(text: str) -> str:
    """Returns where in the user's code a traceback ends, such as " (arm.py:46, in step)".

    That is its last line that is neither of the standard library, an installed package nor vecrl; "" if there is none.
    """
    found = _PLACE.findall(text)
    places = [place for place in found if not place[0].startswith(_NOT_OF_THE_USER)]
    places = [place for place in places if not any(packages in place[0] for packages in _PACKAGES)]
    return " ({}:{}, in {})".format(os.path.basename(places[-1][0]), *places[-1][1:]) if places else ""


def place_of(error: BaseException) -> str:
    """Returns where in the user's code an exception was raised, also in a worker, as `place_in` does."""
    return place_in("".join(traceback.format_exception(error)))
