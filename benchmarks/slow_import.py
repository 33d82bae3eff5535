"""A module that takes half a second of a core to import, as simulators do, with an environment."""

from __future__ import annotations

import time

from benchmarks.busy_env import BusyEnv

_START = time.process_time()
while time.process_time() < _START + 0.5:  # if it slept, sixteen imports could run on one core at the same time
    pass


class SlowImportEnv(BusyEnv):
    """Cheap to create and to step after the import of its module."""
