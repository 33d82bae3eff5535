"""What makes sub-environments, and how it is shared out among workers."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from numbers import Integral
from typing import Any, Literal

import cloudpickle
import numpy as np

from ...errors import SpaceError
from ..base import EnvBase
from ..shared_folder import SharedFolder
from .autograd_graphs import Graphs
from .env_simulator import EnvSimulator
from .metadata import EnvMetaData

Kwargs = Mapping[str, Any]


class EnvCreator:
    """A function that makes an environment, with its arguments; travels pickled by value.

    Environments of one creator and its variants share the counts of `TrajCounter` and the statistics of `VecNorm`, in
    all processes of one machine: the n-th `TrajCounter` of each takes its numbers from the same count. Transforms
    inside of a `SerialEnv` or `ParallelEnv` that a creator makes share theirs only if they come from a creator too.

    Args:
        create_env_fn: makes an environment.
        create_env_kwargs: its keywords; further ones may be given by name.
        share_memory: whether environments share that state.

    >>> from vecrl.envs import GymEnv
    >>> make = EnvCreator(GymEnv, env_name="Pendulum-v1")
    >>> make().action_spec.shape, make.make_variant(frame_skip=2)().frame_skip
    (torch.Size([1]), 2)
    """

    def __init__(
        self,
        create_env_fn: Callable[..., EnvBase],
        create_env_kwargs: Kwargs | None = None,
        share_memory: bool = True,
        **kwargs: Any,
    ):
        if isinstance(create_env_fn, EnvBase) or not callable(create_env_fn):
            raise TypeError(f"Expected a function that makes an environment, but {create_env_fn!r:.80} came.")
        self.create_env_fn = create_env_fn
        self.create_env_kwargs = {**(create_env_kwargs or {}), **kwargs}
        self.share_memory = share_memory
        self._folder = SharedFolder()

    def __call__(self, **kwargs: Any) -> EnvBase:
        """A new environment; `kwargs` go before those of the constructor."""
        env = self.create_env_fn(**{**self.create_env_kwargs, **kwargs})
        if self.share_memory:
            self._folder.attach(env)
        return env

    def make_variant(self, **kwargs: Any) -> EnvCreator:
        """Returns a creator with other keywords, whose environments share their state with those of this one."""
        variant = type(self)(self.create_env_fn, {**self.create_env_kwargs, **kwargs}, self.share_memory)
        variant._folder = self._folder
        return variant

    @property
    def meta_data(self) -> EnvMetaData:
        """What such an environment says of itself; one is made for it, and closed."""
        env = self()
        try:
            return EnvMetaData.metadata_from_env(env)
        finally:
            env.close()

    def __reduce__(self) -> Any:
        arguments = self.create_env_fn, self.create_env_kwargs, self.share_memory
        return _rebuild_creator, (type(self), cloudpickle.dumps(arguments), self._folder)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.create_env_fn}, {self.create_env_kwargs})"


def _rebuild_creator(kind: type[EnvCreator], arguments: bytes, folder: SharedFolder) -> EnvCreator:
    creator = kind(*cloudpickle.loads(arguments))
    creator._folder = folder
    return creator


def make_env_fns(count: int, create_env_fn: Any, create_env_kwargs: Kwargs | Sequence[Kwargs] | None) -> list[Any]:
    """One function without arguments for each of `count` environments.

    Raises:
        SpaceError: not as many functions or keywords as environments, or what is no function.
        TypeError: a number of environments that is none.
    """
    if not isinstance(count, Integral):
        hint = "num_workers comes first, then create_env_fn."
        raise TypeError(f"Expected num_workers to be an integer, but {count!r:.80} came: {hint}")
    if count < 1:
        raise SpaceError(f"Expected num_workers of 1 or more, but {count} came.")
    functions = _one_per_env("create_env_fn", create_env_fn, count, callable(create_env_fn))
    kwargs = create_env_kwargs or {}
    keywords = _one_per_env("create_env_kwargs", kwargs, count, isinstance(kwargs, Mapping))
    for index, function in enumerate(functions):
        if isinstance(function, EnvBase) or not callable(function):
            raise SpaceError(
                f"Expected functions that make environments, but number {index} is {type(function).__name__}. "
                "Give `lambda: GymEnv(...)` rather than an environment."
            )
    return [partial(function, **kw) if kw else function for function, kw in zip(functions, keywords, strict=True)]


def _one_per_env(name: str, value: Any, count: int, single: bool) -> list[Any]:
    if single:
        return [value] * count
    if not isinstance(value, Sequence) or len(value) != count:
        num_given = len(value) if isinstance(value, Sequence) else repr(value)[:80]
        raise SpaceError(f"Expected {name} to be one, or a list of {count}, one an environment, but {num_given} came.")
    return list(value)


def merge_kwargs(old: Kwargs | Sequence[Kwargs] | None, new: Kwargs | Sequence[Kwargs], count: int) -> Any:
    """Keywords for all, or one mapping for each of `count` environments, with `new` ones going before `old` ones."""
    old = old or {}
    if isinstance(new, Mapping) and isinstance(old, Mapping):
        return {**old, **new}
    old_list = _one_per_env("create_env_kwargs", old, count, isinstance(old, Mapping))
    new_list = _one_per_env("kwargs", new, count, isinstance(new, Mapping))
    return [{**old_kwargs, **new_kwargs} for old_kwargs, new_kwargs in zip(old_list, new_list, strict=True)]


def parse_start_method(name: str | None) -> Literal["forkserver", "spawn"]:
    """How worker processes start.

    Raises:
        ValueError: neither "forkserver" (also for None) nor "spawn".
    """
    if name in (None, "forkserver"):
        return "forkserver"
    if name == "spawn":
        return "spawn"
    reason = " A fork copies this process with the locks that its threads hold." if name == "fork" else ""
    raise ValueError(f"Expected mp_start_method to be 'forkserver' or 'spawn', but {name!r} came.{reason}")


def split_makers(
    makers: Sequence[Any], envs_per_worker: int | None, single_worker: bool, graphs: Graphs | None = None
) -> list[tuple[Any, int]]:
    """For each worker, what makes its simulator and of how many environments: neighbours stay together.

    Args:
        makers: one an environment.
        envs_per_worker: how many share a worker; by default there are as many workers as cores.
        single_worker: one worker has all.
        graphs: see `TensorDictRows`.
    """
    if envs_per_worker is not None and envs_per_worker < 1:
        raise SpaceError(f"Expected envs_per_worker of 1 or more, but {envs_per_worker} came.")
    count = len(makers)
    workers = (
        -(-count // envs_per_worker) if envs_per_worker else 1 if single_worker else min(os.cpu_count() or 1, count)
    )
    bounds = np.linspace(0, count, workers + 1).round().astype(int).tolist()
    return [(partial(EnvSimulator, list(makers[a:b]), a, graphs), b - a) for a, b in itertools.pairwise(bounds)]
