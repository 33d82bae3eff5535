"""Makes the pool of a `BaseVectorEnv`, and checks its arguments. This module must not know how results are returned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..engine.backends.registry import BackendName
from ..engine.pool import Pool
from ..engine.pool_options import Spaces
from ..engine.worker import WorkerInfo
from ..simulators.heterogeneous import HeterogeneousSimulator, common_space
from ..validation import check_seconds
from ..vector.env_fns import split_env_fns


def make_pool(
    env_fns: Sequence[Any], backend: BackendName, num_workers: int, trust_spaces: bool, options: Mapping[str, Any]
) -> Pool:
    """Returns a pool of the environments, which may have different spaces; arguments as of `BaseVectorEnv`."""
    makers = split_env_fns(env_fns, backend, num_workers, HeterogeneousSimulator, trust_spaces=trust_spaces)
    return Pool(makers, backend, infos="dicts", resolve_spaces=_resolve_spaces, **options)


def _resolve_spaces(worker_infos: Sequence[WorkerInfo]) -> Spaces:
    """Returns the spaces for the batch buffers: those that the spaces of all workers share."""
    actions = common_space([worker_info.action_space for worker_info in worker_infos], nested=False)
    return common_space([worker_info.observation_space for worker_info in worker_infos]), actions


def check_waiting(env_num: int, wait_num: int | None, timeout: float | None) -> bool:
    """Returns whether steps are asynchronous with these arguments.

    Raises:
        ValueError: one of them is invalid.
    """
    if wait_num is not None and not (isinstance(wait_num, int | np.integer) and 1 <= wait_num <= env_num):
        raise ValueError(f"Expected wait_num to be an integer from 1 to {env_num}, or None, got {wait_num!r}.")
    check_seconds("timeout", timeout)
    return timeout is not None or (wait_num is not None and wait_num < env_num)
