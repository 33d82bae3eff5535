"""How a process waits for a pipe: asleep, or asking again and again for a while before it sleeps.

To wake a sleeping process can take longer than a step of eight environments. A process that asks gives way to others
after every question. This module must not know what is sent.
"""

from __future__ import annotations

import os
import select
import time
from collections.abc import Sequence
from functools import partial
from typing import Literal

Wait = Literal["sleep", "auto", "spin"]
_PATIENCE = {"sleep": 0.0, "auto": 1e-4, "spin": 2e-2}  # seconds
_give_way = getattr(os, "sched_yield", partial(time.sleep, 0))


def patience_of(wait: Wait, num_workers: int) -> float:
    """Returns for how many seconds to ask before sleeping: none if there are more workers than cores."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return _PATIENCE[wait] if num_workers <= cores else 0.0


def ask(poll: select.poll, seconds: float) -> Sequence[tuple[int, int]]:
    """Asks `poll` for up to `seconds`, and returns the descriptors that are ready with their events."""
    end = time.monotonic() + seconds
    while not (ready := poll.poll(0)) and time.monotonic() < end:
        _give_way()
    return ready
