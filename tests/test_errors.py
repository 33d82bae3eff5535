"""The exception classes: their base classes, their messages, and pickling."""

import copy
import pickle
import threading

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
    SerializationError,
    SpaceError,
    StateError,
    StepTimeout,
    VecrlError,
    VersionError,
    WorkerCrash,
    WorkerError,
    failures_to_error,
)

RAISED = Failure((2,), "step", "ValueError: bad", "Traceback: line 1\nline 2\n", worker=1, pid=77, step=5)
CRASHED = Failure((0, 1), "reset", "its worker process exited with code 3", worker=0, pid=76, kind="crashed")
TIMED_OUT = Failure((3,), "step", "no reply within 1 s", worker=2, kind="timed_out")


@pytest.mark.parametrize(
    ("error", "kinds"),
    [
        (SpaceError, (TypeError, ValueError)),
        (OutOfSpecError, (SpaceError, AssertionError)),
        (LockedError, (RuntimeError,)),
        (ClosedError, (ValueError,)),
        (PendingError, (RuntimeError,)),
        (SerializationError, (ValueError,)),
        (VersionError, (ModuleNotFoundError,)),
        (NetParsingError, (ValueError,)),
        (StateError, (ValueError,)),
        (CheckpointError, (StateError,)),
        (WorkerError, (RuntimeError,)),
        (WorkerCrash, (WorkerError,)),
        (StepTimeout, (WorkerError, TimeoutError)),
    ],
)
def test_errors_derive_from_builtin_exceptions(error: type[Exception], kinds: tuple[type[Exception], ...]) -> None:
    assert issubclass(error, (VecrlError,))
    assert all(issubclass(error, kind) for kind in kinds)


def test_the_docstring_shows_every_exception() -> None:
    samples = errors.__doc__ or ""
    classes = [e for e in vars(errors).values() if isinstance(e, type) and issubclass(e, VecrlError)]
    assert len(classes) == 14
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


def test_parsing_errors_have_a_position() -> None:
    error = NetParsingError("no such layer", 2, 5)
    assert str(error) == "no such layer (line 2, column 5)"
    assert (error.line, error.column) == (2, 5)
    assert str(NetParsingError("empty")) == "empty"
