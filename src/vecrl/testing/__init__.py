"""Conformance suites: what must hold of a simulator, an environment, a transform or a backend, as tests to inherit.

The author of an adapter derives a test class from the suite and says how to make one. pytest does the rest:

    from vecrl.testing import BatchSimulatorConformance

    class TestDrift(BatchSimulatorConformance):
        def make(self, num_envs):
            return DriftSimulator(num_envs)

vecrl's own parts are tested by the same suites. Each test says in its docstring what it demands. The suites need pytest
only to be collected: they use plain assertions, which show the compared values under pytest. They know the public
interfaces alone.
"""

import sys
from importlib import import_module
from typing import TYPE_CHECKING

from ..imports import require_extra

if TYPE_CHECKING:
    from .backends import BackendConformance
    from .batch_simulators import BatchSimulatorConformance
    from .envs import EnvConformance
    from .independent_rows import IndependentRowsEnv
    from .simulators import SimulatorConformance
    from .transforms import TransformConformance

_MODULES = {
    "BackendConformance": "backends",
    "BatchSimulatorConformance": "batch_simulators",
    "EnvConformance": "envs",
    "IndependentRowsEnv": "independent_rows",
    "SimulatorConformance": "simulators",
    "TransformConformance": "transforms",
}
_WITHOUT_EXTRA = {"backends", "simulators"}

__all__ = [
    "BackendConformance",
    "BatchSimulatorConformance",
    "EnvConformance",
    "IndependentRowsEnv",
    "SimulatorConformance",
    "TransformConformance",
]

if "pytest" in sys.modules:  # pytest shows the values in assertions of the modules that it rewrites
    sys.modules["pytest"].register_assert_rewrite(
        *(f"{__name__}.{module}" for module in {*_MODULES.values(), "comparisons"})
    )


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if _MODULES[name] not in _WITHOUT_EXTRA:
        require_extra("tensordict", f"{__name__}.{name}")
    return getattr(import_module(f".{_MODULES[name]}", __name__), name)
