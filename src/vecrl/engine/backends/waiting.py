"""How a process waits for a pipe: asleep, or polling the pipe for a while before it sleeps.

To wake a sleeping process can take longer than a step of eight environments. A process that polls lets others
run after every poll. This module must not know what is sent.
"""

from __future__ import annotations

import os
import select
import time
from collections.abc import Sequence
from functools import partial
from typing import Literal

from ...cores import num_cores

Wait = Literal["sleep", "auto", "spin"]
_SPIN_S = {"sleep": 0.0, "auto": 1e-4, "spin": 2e-2}
_yield_core = getattr(os, "sched_yield", partial(time.sleep, 0))


def spin_seconds(wait: Wait, num_workers: int) -> float:
    """Returns for how many seconds to poll before sleeping: 0 if there are more workers than cores."""
    return _SPIN_S[wait] if num_workers <= num_cores() else 0.0


def spin(poll: select.poll, seconds: float) -> Sequence[tuple[int, int]]:
    """Polls for up to `seconds`, and returns the descriptors that are ready, with their events."""
    end = time.monotonic() + seconds
    while not (ready := poll.poll(0)) and time.monotonic() < end:
        _yield_core()
    return ready
