"""Settings for every test and the processes that tests start: one thread for numerical libraries, and Ctrl-C enabled (a
shell disables SIGINT for programs that it runs in the background)."""

import gc
import os
import signal
import warnings
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from tests.fixtures.processes import wait_until
from tests.fixtures.ray_cluster import TestCluster
from vecrl.interop.peer_imports import RegistrationWarning

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(name, "1")

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Examples must not fail because a shared machine is slow.
settings.register_profile("vecrl", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("vecrl")

os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # makes Ray use only the loopback address


MARKED_FILES = pytest.StashKey[dict[str, set[str]]]()
GROUPS = (
    "ray",
    "torchrl",
    "peers",
    "loggers",
    "language",
    "vision",
    "simulators",
    "unity",
    "genesis",
    "mjlab",
    "old_pythons",
    "brax_v1",
)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keeps which files have tests of which groups, before `-m` drops tests."""
    config.stash[MARKED_FILES] = {
        group: {item.nodeid.partition("::")[0] for item in items if item.get_closest_marker(group)} for group in GROUPS
    }


def pytest_collection_finish() -> None:
    """Excludes modules and thousands of collected tests from later runs of the garbage collector."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _failed_registrations() -> None:
    """Makes a failed registration with another library an error, also in tests that ignore warnings of the library."""
    warnings.filterwarnings("error", category=RegistrationWarning)  # until pytest resets the filters after the test


@pytest.fixture(scope="session")
def cluster() -> Iterator[TestCluster]:
    """Starts Ray once for the session, since it takes seconds."""
    found = TestCluster()
    yield found
    found.close()


@pytest.fixture(autouse=True)
def _ray(request: pytest.FixtureRequest) -> Iterator[None]:
    """Starts Ray for tests marked `ray` and checks that no actor remains after the test."""
    if request.node.get_closest_marker("ray") is None:
        yield
        return
    found: TestCluster = request.getfixturevalue("cluster")
    yield
    assert wait_until(lambda: not found.actors()), found.actors()


@pytest.fixture
def one_thread() -> Iterator[None]:
    """One thread of torch, which is faster for small networks, and the same on every machine."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
