"""Divides the environments of `RolloutWorkers` between its workers, each of which makes its own pool."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from ..engine.backends.registry import BackendName
from ..engine.env_index import split_evenly
from ..engine.pool import Pool
from ..engine.pool_options import PoolOptions
from ..errors import SpaceError
from ..imports import require_extra
from ..simulators.registry import find_entry
from ..validation import parse_count
from .env_fns import split_env_fns
from .vector_env import EnvFn

if TYPE_CHECKING:
    from .simulator_pool import EpisodePool

AnyPool: TypeAlias = "Pool | EpisodePool"
WorkerParts: TypeAlias = list[tuple[Callable[[], AnyPool], range]]
"""For each worker, what makes its pool, and the numbers of its environments."""
_OWN_ARGUMENTS = "num_envs", "infos"  # of simulators, which `_parts_of_name` gives


def parts_of(
    env_fns: Iterable[EnvFn] | str,
    num_envs: int | None,
    env_options: Mapping[str, Any] | None,
    backend: BackendName,
    num_workers: int | None,
    options: PoolOptions,
) -> WorkerParts:
    """Returns the parts of environments that functions make, or of a name; `options` are those of each worker's pool.

    Raises:
        ValueError: the name is unknown, or an argument does not apply to it, or to functions.
        TypeError: the simulator does not take an argument.
        VersionError: (an ImportError) a batch needs torch, and it is not installed.
    """
    if not isinstance(env_options, Mapping | None):
        raise TypeError(f"Expected env_options to be a dict of arguments of the simulator, got {env_options!r:.80}.")
    if isinstance(env_fns, str):
        return _parts_of_name(env_fns, num_envs, env_options or {}, backend, num_workers, options)
    if num_envs is not None or env_options is not None:
        argument = "env_options" if num_envs is None else "num_envs"
        raise ValueError(f"Expected no {argument} with functions that make environments, got it. Omit it.")
    return _parts_of_functions(env_fns, backend, num_workers, options)


def _parts_of_functions(
    env_fns: Iterable[EnvFn], backend: BackendName, num_workers: int | None, options: PoolOptions
) -> WorkerParts:
    parts: WorkerParts = []
    start = 0
    for maker in split_env_fns(env_fns, backend, num_workers):
        worker_options = replace(options, env_id_offset=start).keywords
        parts.append((partial(Pool, [maker], **worker_options), range(start, start + maker[1])))
        start += maker[1]
    return parts


def _parts_of_name(
    name: str,
    num_envs: int | None,
    env_options: Mapping[str, Any],
    backend: BackendName,
    num_workers: int | None,
    options: PoolOptions,
) -> WorkerParts:
    entry, env_name = find_entry(name)
    if num_envs is None:
        raise ValueError(f"Expected num_envs with the name {name!r}, got none. Give the number of environments.")
    num_envs = parse_count("num_envs", num_envs)
    if own := [argument for argument in _OWN_ARGUMENTS if argument in env_options]:
        raise TypeError(f"Expected arguments of {name!r} in env_options, got {own[0]!r}, which is set here. Omit it.")
    if entry.env_fn is not None:
        env_fn = entry.env_fn(env_name, **env_options)
        return _parts_of_functions([env_fn] * num_envs, backend, num_workers, options)
    if entry.make_batch is None:
        raise ValueError(
            f"Expected an environment that workers can make, got {name!r}, of which only a maker is registered. "
            "Register it with env_fn or make_batch."
        )
    if options.on_failure != "raise":
        raise ValueError(
            f"Expected on_failure='raise' for {name!r}, got {options.on_failure!r}: if one row of a batch raises, all "
            "of its rows fail. Omit it."
        )
    require_extra("torch", f"batches such as {name!r}")
    from .factory import make_simulator  # they import torch
    from .simulator_pool import EpisodePool

    count = min(parse_count("num_workers", 1 if num_workers is None else num_workers, error=SpaceError), num_envs)
    return [
        (
            partial(EpisodePool, partial(make_simulator, entry, env_name, len(ids), infos=False, **env_options)),
            range(ids[0], ids[-1] + 1),
        )
        for _, ids in split_evenly(range(num_envs), count)
    ]
