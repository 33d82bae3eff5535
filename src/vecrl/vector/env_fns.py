"""Checks functions that make environments, and divides them between workers.

This module must not know how the environments are stepped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from ..engine.backends.registry import backend_entry
from ..engine.env_index import split_evenly
from ..engine.simulator import SimulatorMaker
from ..errors import SpaceError
from ..simulators.gymnasium import GymnasiumSimulator
from ..validation import check_callables, parse_count


def env_fn_list(env_fns: Iterable[Callable[[], Any]]) -> list[Callable[[], Any]]:
    """Returns the functions as a list; raises a `SpaceError` for none, a name, a single function or an environment."""
    if isinstance(env_fns, str) or not isinstance(env_fns, Iterable):
        make = f"lambda: gymnasium.make({env_fns!r})" if isinstance(env_fns, str) else "function"
        raise SpaceError(
            f"Expected a list of functions that make environments, got {env_fns!r:.80}. Give [{make}] * n."
        )
    env_fns = list(env_fns)
    if not env_fns:
        raise SpaceError("Expected at least one function that makes an environment, got none.")
    check_callables(
        "functions that make environments", env_fns, "Give `lambda: gymnasium.make(...)` instead of an environment."
    )
    return env_fns


def split_env_fns(
    env_fns: Iterable[Callable[[], Any]],
    backend: str,
    num_workers: int | None,
    simulator: type[GymnasiumSimulator] = GymnasiumSimulator,
    **simulator_options: object,
) -> list[tuple[SimulatorMaker, int]]:
    """Returns, for each worker, its simulator's factory and its number of environments; each worker gets consecutive
    environments."""
    env_fns = env_fn_list(env_fns)
    if num_workers is None:
        num_workers = backend_entry(backend).default_workers
    parts = split_evenly(env_fns, min(parse_count("num_workers", num_workers, error=SpaceError), len(env_fns)))
    return [(SimulatorMaker(simulator, part, simulator_options), len(part)) for _, part in parts]
