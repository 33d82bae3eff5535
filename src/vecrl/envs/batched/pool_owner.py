"""`PoolOwner`: an environment that starts and closes a pool of the engine, and passes calls to its environments.

This module must not know how environments are reset and stepped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Self

import numpy as np
import torch

from ...engine.backends.registry import BackendName, backend_entry
from ...engine.backends.worker_options import parse_start_method
from ...engine.env_index import Ids
from ...engine.pool import Pool
from ...engine.pool_options import PoolOptions
from ...errors import ClosedError
from ...validation import parse_device, parse_optional_count
from ..base import EnvBase
from ..env_specs import is_defined
from .autograd_graphs import Graphs
from .env_factories import EnvFn, Kwargs, make_env_fns, merge_kwargs, split_makers
from .env_simulator import METHOD, MISSING
from .metadata import EnvMetaData

_POOL_SETTINGS = {
    "mp_start_method": "start_method",
    "num_sub_threads": "threads_per_worker",
    **{name: name for name in ("step_timeout", "on_failure", "restarts_per_hour", "ray_options", "wait")},
}
"""The arguments that `PoolOwner.configure_parallel` changes, each with the name of the pool's option."""
_IGNORED_SETTINGS = {"use_buffers", "shared_memory", "memmap", "daemon"}


class AttributeList(list[Any]):
    """The values of an attribute of all environments; their attributes are lists again, looked up in the environments.

    Args:
        values: the values.
        look_up: returns the values at a path with dots.
        path: the path of these values.
    """

    def __init__(self, values: Iterable[Any], look_up: Callable[[str], Any], path: str):
        super().__init__(values)
        self._look_up, self._path = look_up, path

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return self._look_up(f"{self._path}.{name}")

    def __reduce__(self):
        return list, (list(self),)


class PoolOwner(EnvBase):
    """The base of `BatchedEnv`: creates and closes the environments of a pool, and gets and calls their attributes."""

    _backend: BackendName = "serial"
    excluded_from_state = (
        "_seed_before_use",
        "_pool_options",
        "_num_threads",
        "_envs_per_worker",
        "_requested_device",
    )
    num_workers: int
    create_env_fn: EnvFn | Sequence[EnvFn]
    create_env_kwargs: Kwargs | Sequence[Kwargs] | None
    non_blocking: bool
    _pool_options: PoolOptions
    _num_threads: int | None
    _envs_per_worker: int | None
    _pool: Pool | None
    _seed_before_use: tuple[Any, ...] | None  # the arguments of `set_seed`; None after the first reset
    _requested_device: torch.device | None

    def _set_auto_reset(self, replace: bool | None) -> None:
        raise TypeError("Expected auto_reset for the environments of a batch, got it for the batch. Pass it to them.")

    def _set_metadata(self, metas: list[EnvMetaData], pool: Pool, graphs: Graphs | None) -> None:
        """Sets the specs from the metadata of the environments."""
        raise NotImplementedError

    # -- start and close

    def start(self) -> None:
        """Creates the environments if there are none or they were closed."""
        if self._pool is not None:
            return
        makers = make_env_fns(self.num_workers, self.create_env_fn, self.create_env_kwargs)
        if self._num_threads is not None:
            torch.set_num_threads(self._num_threads)
        entry = backend_entry(self._pool_options.backend)
        graphs = Graphs() if entry.runs_inline else None
        parts = split_makers(makers, self._envs_per_worker, entry.default_workers, graphs)
        pool = Pool(parts, **self._pool_options.keywords)
        try:
            self._set_metadata([meta for worker_info in pool.worker_infos for meta in worker_info.spec], pool, graphs)
        except BaseException:
            pool.close()
            raise
        self._pool, self._seeds, self.is_closed, self._seed_before_use = pool, {}, False, ()

    def close(self, *, raise_if_closed: bool = False) -> None:
        """Closes all environments and workers. A second call does nothing, or raises if `raise_if_closed`."""
        if raise_if_closed:
            self._require_pool()
        pool, self._pool, self.is_closed = self._pool, None, True
        if pool is not None:
            pool.close()

    def cancel(self, ids: Ids) -> np.ndarray:
        """Cancels pending commands of environments after a `StepTimeout`, as `Pool.cancel` does. Reset them next."""
        return self._require_pool().cancel(ids)

    def _open(self) -> None:
        self.start()

    def _check_open(self) -> None:
        self._require_pool()

    def update_kwargs(self, kwargs: Kwargs | Sequence[Kwargs]) -> None:
        """Adds keyword arguments of the functions that create the environments: one mapping for all, or one for each.

        Open environments are closed. If they have never been reset, new ones are created at once and get the same seed.
        Otherwise the next `reset` or `start` creates them.
        """
        self.create_env_kwargs = merge_kwargs(self.create_env_kwargs, kwargs, self.num_workers)
        if self._pool is None:
            return
        seed = self._seed_before_use
        self.close()
        if seed is not None:
            self.start()
            if seed:
                self.set_seed(*seed)

    def configure_parallel(self, **settings: Any) -> Self:
        """Changes arguments of the constructor and closes the environments. Returns the environment.

        The next `reset` or `start` creates new environments.

        Args:
            settings: `num_threads`, `num_sub_threads`, `mp_start_method`, `non_blocking`, `envs_per_worker`,
                `step_timeout`, `on_failure`, `restarts_per_hour`, `ray_options` or `wait`. `use_buffers`,
                `shared_memory`, `memmap` and `daemon` are accepted and ignored. None does not change a setting.

        Raises:
            TypeError: a setting is unknown.
        """
        settings = {name: value for name, value in settings.items() if value is not None}
        self.non_blocking = settings.pop("non_blocking", self.non_blocking)
        self._num_threads = parse_optional_count("num_threads", settings.pop("num_threads", self._num_threads))
        self._envs_per_worker = settings.pop("envs_per_worker", self._envs_per_worker)
        if unknown := settings.keys() - _POOL_SETTINGS.keys() - _IGNORED_SETTINGS:
            expected = ["non_blocking", "num_threads", "envs_per_worker", *_POOL_SETTINGS]
            raise TypeError(f"Expected settings among {expected}, got {sorted(unknown)}.")
        if "mp_start_method" in settings:
            settings["mp_start_method"] = parse_start_method(settings["mp_start_method"], "mp_start_method")
        options = {_POOL_SETTINGS[name]: value for name, value in settings.items() if name in _POOL_SETTINGS}
        self._pool_options = replace(self._pool_options, **options)
        self.close()
        return self

    def _require_pool(self) -> Pool:
        if self._pool is None:
            raise ClosedError(
                f"Expected an open {type(self).__name__}, got a closed one. Call start() or reset() to open it."
            )
        return self._pool

    def to(self, device: torch.device | str | int) -> Self:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Moves inputs and outputs to another device. Returns the environment."""
        self._requested_device = parse_device(device)
        return super().to(device)

    # -- attributes and states of the environments

    def _state_facts(self) -> dict[str, Any]:
        self._require_pool()
        return super()._state_facts()

    def set_state(self, state: Mapping[str, Any], **kwargs: Any) -> None:
        """Sets the state as `EnvBase.set_state` does. Creates closed environments first."""
        self.start()
        self._seed_before_use = None
        super().set_state(state, **kwargs)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if is_defined(self, name):
                raise
            pool = self.__dict__.get("_pool")
            if pool is None or name.startswith("_"):
                reason = " (its environments are closed)" if pool is None and not name.startswith("_") else ""
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}{reason}") from None
        return self._attributes_at(pool, name)

    def _attributes_at(self, pool: Pool, name: str) -> Any:
        """Returns the values of an attribute, or a function that calls a method, in all environments."""
        values = pool.invoke("get", name)
        kinds = {kind for kind, _ in values}
        if MISSING in kinds:
            lacking_rows = [row for row, (kind, _) in enumerate(values) if kind == MISSING]
            raise AttributeError(f"Neither {type(self).__name__} nor its environments {lacking_rows} have {name!r}.")
        if METHOD not in kinds:
            return AttributeList((value for _, value in values), lambda path: self._attributes_at(pool, path), name)

        def call(*args: Any, **kwargs: Any) -> list[Any]:
            return self._require_pool().invoke("call", name, [(args, kwargs)] * self.num_workers)

        call.__name__ = name
        return call

    def __getstate__(self) -> Any:
        raise TypeError(
            f"{type(self).__name__} objects cannot be copied or pickled, because workers cannot. Create another one."
        )

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        states = self._require_pool().invoke("call", "state_dict", [((), {})] * self.num_workers)
        for row, state in enumerate(states):
            destination.update({f"{prefix}worker{row}.{key}": value for key, value in state.items()})

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *_: Any, **__: Any) -> None:
        prefixes = [f"{prefix}worker{row}." for row in range(self.num_workers)]
        states = [
            {k.removeprefix(prefix): value for k, value in state_dict.items() if k.startswith(prefix)}
            for prefix in prefixes
        ]
        self._require_pool().invoke("call", "load_state_dict", [((state,), {}) for state in states])
