"""Conformance suites: what must hold of a simulator, an environment, a transform or a backend, as tests to inherit.

The author of an adapter derives a test class from the suite and says how to make one. pytest does the rest:

    from vecrl.testing import BatchSimulatorConformance

    class TestDrift(BatchSimulatorConformance):
        def make(self, num_envs):
            return DriftSimulator(num_envs)

vecrl's own parts are tested by the same suites. Each test says in its docstring what it demands. The suites need pytest
only to be collected: they use plain assertions. They know the public interfaces alone.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .backends import BackendConformance
    from .envs import EnvConformance
    from .independent_rows import IndependentRowsEnv
    from .simulators import BatchSimulatorConformance, SimulatorConformance
    from .transforms import TransformConformance

_MODULES = {
    "BackendConformance": "backends",
    "BatchSimulatorConformance": "simulators",
    "EnvConformance": "envs",
    "IndependentRowsEnv": "independent_rows",
    "SimulatorConformance": "simulators",
    "TransformConformance": "transforms",
}

__all__ = [
    "BackendConformance",
    "BatchSimulatorConformance",
    "EnvConformance",
    "IndependentRowsEnv",
    "SimulatorConformance",
    "TransformConformance",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_MODULES[name]}", __name__), name)
