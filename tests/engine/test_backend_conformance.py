"""vecrl's own backends in the public conformance suite."""

import re
from collections.abc import Collection
from typing import Any

import pytest

from vecrl.engine import register_backend
from vecrl.engine.backends.processes import ProcessBackend
from vecrl.engine.backends.registry import unregister_backend
from vecrl.engine.backends.serial import SerialBackend
from vecrl.errors import WorkerCrash
from vecrl.testing import BackendConformance


class TestSerial(BackendConformance):
    backend = "serial"


class TestThreads(BackendConformance):
    backend = "threads"


class TestProcesses(BackendConformance):
    backend = "processes"
    can_crash = True


class TestSpawned(TestProcesses):
    options = {"start_method": "spawn"}


@pytest.mark.ray
class TestRay(TestProcesses):
    backend = "ray"


class _NoKill(ProcessBackend):
    def kill(self, worker: int) -> Any:
        return None


class _NoRespawn(ProcessBackend):
    def respawn(self, worker: int) -> None:
        pass


class _NothingTimesOut(SerialBackend):
    def timed_out(self, overdue: set[int]) -> Any:
        return None


class _ReceivesNone(SerialBackend):
    def receive(self, timeout: float | None, awaited: Collection[int] = ()) -> Any:
        return super().receive(timeout, awaited) or None


@pytest.mark.parametrize(
    ("cls", "test", "text"),
    [
        (_NoKill, "test_workers_can_be_replaced", "Expected kill to return True or False, got None"),
        (_NoRespawn, "test_workers_can_be_replaced", r"reply of the new worker to Op.CONSTRUCT, number 0, got \[\]"),
        (_NothingTimesOut, "test_some_environments_that_take_too_long_are_reported", "Expected timed_out to return"),
        (_ReceivesNone, "test_receive_returns_a_list", r"Expected receive to return \[\].* got None"),
    ],
)
def test_faulty_backends_are_noticed(cls: Any, test: str, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vecrl.testing.backends._REPLY_TIMEOUT_S", 1.0)
    is_serial = issubclass(cls, SerialBackend)
    register_backend("faulty", lambda: cls, in_process=is_serial, runs_inline=is_serial)
    try:
        suite = BackendConformance()
        suite.backend = "faulty"
        with pytest.raises((AssertionError, WorkerCrash)) as caught:  # the end of the pool may raise too
            getattr(suite, test)()
        assert re.search(text, f"{caught.value} {caught.value.__context__}")
    finally:
        unregister_backend("faulty")
