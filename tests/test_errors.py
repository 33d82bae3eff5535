"""The exception classes: their base classes, their messages, and pickling."""

from __future__ import annotations

import copy
import pickle
import threading
import traceback
from dataclasses import dataclass

import pytest

from vecrl import errors
from vecrl.errors import (
    CheckpointError,
    ClosedError,
    Failure,
    LockedError,
    NetParsingError,
    OutOfSpecError,
    PendingError,
    PlatformError,
    SerializationError,
    SpaceError,
    StateError,
    StepTimeout,
    VecrlError,
    VersionError,
    VideoError,
    WorkerCrash,
    WorkerError,
    failures_to_error,
    remap_failures,
)

RAISED = Failure((2,), "step", "ValueError: bad", "Traceback: line 1\nline 2\n", worker=1, pid=77, step=5)
CRASHED = Failure((0, 1), "reset", "its worker process exited with code 3", worker=0, pid=76, kind="crashed")
TIMED_OUT = Failure((3,), "step", "no reply within 1 s", worker=2, kind="timed_out")


@pytest.mark.parametrize(
    ("error", "kinds"),
    [
        (SpaceError, (TypeError, ValueError, RuntimeError)),
        (OutOfSpecError, (SpaceError, AssertionError)),
        (LockedError, (RuntimeError,)),
        (ClosedError, (ValueError,)),
        (PendingError, (RuntimeError,)),
        (SerializationError, (ValueError,)),
        (VersionError, (ModuleNotFoundError,)),
        (PlatformError, (NotImplementedError,)),
        (NetParsingError, (ValueError,)),
        (StateError, (ValueError,)),
        (CheckpointError, (StateError,)),
        (WorkerError, (RuntimeError,)),
        (WorkerCrash, (WorkerError,)),
        (StepTimeout, (WorkerError, TimeoutError)),
        (VideoError, (OSError,)),
    ],
)
def test_errors_derive_from_builtin_exceptions(error: type[Exception], kinds: tuple[type[Exception], ...]) -> None:
    assert issubclass(error, (VecrlError,))
    assert all(issubclass(error, kind) for kind in kinds)


def test_the_docstring_shows_every_exception() -> None:
    samples = errors.__doc__ or ""
    classes = [e for e in vars(errors).values() if isinstance(e, type) and issubclass(e, VecrlError)]
    assert len(classes) == 17
    assert all(e.__name__ in samples for e in classes)


def test_messages_name_environment_command_cause_and_advice() -> None:
    text = str(WorkerError([RAISED]))
    assert text.splitlines() == [
        "environment 2 (worker 1, pid 77) in 'step' number 5: ValueError: bad",
        "    Traceback: line 1",
        "    line 2",
        "The other environments are unaffected. Reset the failed ones, or all, to continue.",
    ]
    assert str(WorkerCrash([CRASHED])).startswith("environments 0, 1 (worker 0, pid 76) in 'reset': its worker")


def test_the_most_severe_failure_selects_the_error() -> None:
    assert type(failures_to_error([RAISED, TIMED_OUT, CRASHED])) is WorkerCrash
    assert type(failures_to_error([RAISED, TIMED_OUT])) is StepTimeout
    error = failures_to_error([RAISED, CRASHED], transition="rows")
    assert error.env_ids == (0, 1, 2), "in the order of the environments"
    assert [f.kind for f in error.failures] == ["crashed", "raised"]
    assert error.transition == "rows"


@pytest.mark.parametrize("command", ["construct", "close"])
def test_advice_fits_the_command(command: str) -> None:
    for kind in ("raised", "crashed", "timed_out"):
        text = str(failures_to_error([Failure((0,), command, "bad", kind=kind)]))
        assert "reset" not in text
        assert "wait" not in text


def test_the_exception_itself_is_the_cause() -> None:
    cause = KeyError("x")
    error = WorkerError([RAISED, Failure((4,), "step", "KeyError: 'x'", exception=cause)])
    assert error.__cause__ is cause


class Stuck(Exception):
    """Cannot be pickled."""

    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()


@pytest.mark.parametrize("kind", ["raised", "crashed", "timed_out"])
def test_errors_pickle(kind: str) -> None:
    error = failures_to_error([Failure((4,), "step", "Stuck", "trace", kind=kind, exception=Stuck())], object())
    for back in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(back) is type(error)
        assert str(back) == str(error)
        assert back.env_ids == (4,)
    reported = failures_to_error([Failure((4,), "step", "KeyError: 'x'", exception=KeyError("x"))], advice="Go home.")
    back = pickle.loads(pickle.dumps(reported))
    assert str(back).endswith("Go home.")
    assert back.__cause__.args == ("x",)


class Collision(Exception):
    """Takes other arguments than those that it passes on, and cannot be pickled."""

    advice = "turn left"

    def __init__(self, position: int, reason: str):
        super().__init__(f"{reason} at {position}")
        self.position = position
        self.lock = threading.Lock()

    def __str__(self) -> str:
        return "not the message of the error"


def _failure(exception: BaseException) -> Failure:
    return Failure((4,), "step", str(exception), "trace", exception=exception)


def test_errors_have_the_class_and_attributes_of_their_cause() -> None:
    error = failures_to_error([_failure(Collision(3, "wall"))], "rows", advice="Go home.")
    assert isinstance(error, Collision)
    assert isinstance(error, WorkerError)
    assert type(error).__name__ == "WorkerError"
    assert (error.position, error.transition, error.results, error.env_ids) == (3, "rows", None, (4,))
    text = str(WorkerError([_failure(Collision(3, "wall"))], advice="Go home."))
    assert str(error) == text
    assert f"vecrl.errors.WorkerError: {text}" in "".join(traceback.format_exception(error))
    with pytest.raises(OSError, match="no such room") as caught:
        raise failures_to_error([_failure(FileNotFoundError(2, "no such room"))])
    assert caught.value.errno == 2
    assert isinstance(failures_to_error([_failure(KeyError("x"))]), KeyError)
    assert failures_to_error([Failure((0,), "step", "left", kind="crashed"), _failure(KeyError("x"))]).env_ids == (0, 4)
    remapped = failures_to_error([_failure(Collision(3, "wall"))])
    with pytest.raises(Collision), remap_failures(lambda failure: [failure]):
        raise remapped
    inner = failures_to_error([_failure(failures_to_error([_failure(KeyError("x"))]))])
    assert isinstance(inner, KeyError), "of a pool inside a worker"


@dataclass(frozen=True)
class Frozen(Exception):
    number: int


class OwnNew(Exception):
    def __new__(cls, number: int) -> OwnNew:
        return super().__new__(cls, number)


class ReadOnly(Exception):
    @property
    def failures(self) -> int:
        return 3


class Registered(Exception):
    def __init_subclass__(cls, *, key: str) -> None:
        pass


@pytest.mark.parametrize(
    ("cause", "combines"),
    [
        (Frozen(3), True),
        (UnicodeDecodeError("utf8", b"x", 0, 1, "bad"), True),
        (OwnNew(3), True),
        (ReadOnly(), False),
        (Registered(), False),
        (ExceptionGroup("several", [KeyError("x")]), False),
        (StopIteration(3), False),
        (SystemExit(3), False),
        (KeyboardInterrupt(), False),
        (ClosedError("of another object"), False),
    ],
)
def test_classes_that_cannot_be_combined_are_the_cause_only(cause: BaseException, combines: bool) -> None:
    error = failures_to_error([_failure(cause)])
    for each in (error, pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert isinstance(each, type(cause)) == combines
        assert isinstance(each.__cause__, type(cause))
        assert str(each) == str(WorkerError([_failure(cause)]))
        each.results = [1]
    assert type(failures_to_error([_failure(RuntimeError("x"))])) is WorkerError, "it is one already"


def test_combined_errors_pickle() -> None:
    error = failures_to_error([_failure(Collision(3, "wall"))])
    for back in (pickle.loads(pickle.dumps(error)), copy.copy(error), copy.deepcopy(error)):
        assert type(back) is type(error), "the combined class exists once"
        assert isinstance(back.__cause__, Collision)
        assert str(back) == str(error)
    del error.__cause__.lock
    assert pickle.loads(pickle.dumps(error)).position == 3, "attributes that can be pickled stay"


def test_parsing_errors_have_a_position() -> None:
    error = NetParsingError("no such layer", 2, 5)
    assert str(error) == "no such layer (line 2, column 5)"
    assert (error.line, error.column) == (2, 5)
    assert str(NetParsingError("empty")) == "empty"
