"""vecrl's own backends in the public conformance suite."""

import pytest

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
