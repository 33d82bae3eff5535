"""A module that takes half a second to import, as simulators do, and the environment that lives in it."""

from __future__ import annotations

import time

from benchmarks.burn import BurnEnv

time.sleep(0.5)


class SlowImportEnv(BurnEnv):
    """Cheap to build and to step, once its module is there."""
