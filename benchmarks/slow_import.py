"""A module that takes half a second of a core to import, as simulators do, and the environment that lives in it."""

from __future__ import annotations

import time

from benchmarks.busy_env import BusyEnv

_START = time.process_time()
while time.process_time() < _START + 0.5:  # sleeping instead would let sixteen imports share a core at no cost
    pass


class SlowImportEnv(BusyEnv):
    """Cheap to build and to step, once its module is there."""
