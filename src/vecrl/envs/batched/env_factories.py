"""Functions that create sub-environments, and their distribution to workers. It must not know pools."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from numbers import Integral
from typing import Any

import cloudpickle

from ...engine.env_index import split_evenly
from ...errors import SpaceError
from ...validation import parse_count, parse_optional_count, scalar_of
from ..adapters import adapt_env
from ..base import EnvBase
from ..shared_folder import SharedFolder, shared_modules
from .autograd_graphs import Graphs
from .env_simulator import EnvSimulator
from .metadata import EnvMetaData

Kwargs = Mapping[str, Any]
EnvFn = Callable[..., EnvBase]


class EnvCreator:
    """A function that creates an environment, with its arguments. It is pickled by value.

    Environments of one creator and its variants share the counters of `TrajCounter` and the statistics of `VecNorm`, in
    all processes of one machine. The n-th `TrajCounter` of each environment uses the same counter. If a creator creates
    a `SerialEnv` or `ParallelEnv`, transforms inside it share only if its environments are from a creator too.

    Args:
        create_env_fn: a function that creates an environment.
        create_env_kwargs: its keyword arguments; more can be given as keywords here.
        share_memory: whether environments share the state described above.

    Raises:
        TypeError: `create_env_fn` is no function.

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
            raise TypeError(f"Expected a function that creates an environment, got {create_env_fn!r:.80}.")
        self.create_env_fn = create_env_fn
        self.create_env_kwargs = {**(create_env_kwargs or {}), **kwargs}
        self.share_memory = share_memory
        self._folder = SharedFolder()
        if share_memory:
            _ = self._folder.path  # made now, so that forked processes share it

    def __call__(self, **kwargs: Any) -> EnvBase:
        """Creates an environment. `kwargs` override those of the constructor."""
        env = adapt_env(self.create_env_fn(**{**self.create_env_kwargs, **kwargs}))
        if self.share_memory:
            self._folder.attach(env)
        return env

    def make_variant(self, **kwargs: Any) -> EnvCreator:
        """Returns a creator with other keyword arguments. Environments of both creators share their state."""
        variant = type(self).__new__(type(self))
        variant.__dict__.update(self.__dict__)
        variant.create_env_kwargs = {**self.create_env_kwargs, **kwargs}
        return variant

    @property
    def meta_data(self) -> EnvMetaData:
        """The metadata of the environments. An environment is created for it and closed."""
        env = self()
        try:
            return EnvMetaData.metadata_from_env(env)
        finally:
            env.close()

    def state_dict(self) -> dict[str, Any]:
        """Returns the current state that the environments share: statistics of `VecNorm`, counts of `TrajCounter`.

        An environment is created for it and closed. The keys are those of its `state_dict`. Without shared state, or
        with `share_memory=False`, the result is empty.
        """
        env = self()
        try:
            prefixes = tuple(f"{name}." for name in shared_modules(env)) if self.share_memory else ()
            return {key: value for key, value in env.state_dict().items() if key.startswith(prefixes)}
        finally:
            env.close()

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Sets the state that the environments share, also that of environments which exist already.

        Args:
            state_dict: as from `state_dict`.

        Raises:
            RuntimeError: it has keys that the environments do not have.
        """
        env = self()
        try:
            env.load_state_dict({**env.state_dict(), **state_dict})
        finally:
            env.close()

    def __getstate__(self) -> tuple[bytes, SharedFolder]:
        return cloudpickle.dumps((self.create_env_fn, self.create_env_kwargs, self.share_memory)), self._folder

    def __setstate__(self, state: tuple[bytes, SharedFolder]) -> None:
        arguments, self._folder = state
        self.create_env_fn, self.create_env_kwargs, self.share_memory = cloudpickle.loads(arguments)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.create_env_fn}, {self.create_env_kwargs})"


def env_creator(create_env_fn: Callable[..., EnvBase]) -> EnvCreator:
    """Returns an `EnvCreator` of a function that creates an environment; may be used as a decorator.

    >>> from vecrl.envs import GymEnv
    >>> @env_creator
    ... def make():
    ...     return GymEnv("Pendulum-v1")
    >>> make().action_spec.shape
    torch.Size([1])
    """
    return EnvCreator(create_env_fn)


def get_env_metadata(
    env_or_creator: EnvBase | Callable[..., EnvBase],
    kwargs: Kwargs | None = None,
    *,
    env_validator: Callable[[EnvBase], None] | None = None,
) -> EnvMetaData:
    """Returns the metadata of an environment, or of the environments that a function creates.

    Args:
        env_or_creator: an environment, which stays open, or a function such as an `EnvCreator`. The function is called
            once, and its environment is closed.
        kwargs: keyword arguments of the function; not used for an environment.
        env_validator: is called with the environment first, and raises if it is not valid.

    Raises:
        TypeError: `env_or_creator` is neither, or the function returns no environment.

    >>> from vecrl.envs import GymEnv
    >>> get_env_metadata(GymEnv, {"env_name": "Pendulum-v1"}).spec("action").shape
    torch.Size([1])
    """
    env_or_creator = adapt_env(env_or_creator)
    is_env = isinstance(env_or_creator, EnvBase)
    if not is_env and not callable(env_or_creator):
        raise TypeError(f"Expected an environment, or a function that creates one, got {env_or_creator!r:.80}.")
    env = env_or_creator if isinstance(env_or_creator, EnvBase) else adapt_env(env_or_creator(**(kwargs or {})))
    if not isinstance(env, EnvBase):
        raise TypeError(f"Expected a function that creates an EnvBase, got one that returns {env!r:.80}.")
    try:
        if env_validator is not None:
            env_validator(env)
        return EnvMetaData.metadata_from_env(env)
    finally:
        if not is_env:
            env.close()


def make_env_fns(
    count: int, create_env_fn: EnvFn | Sequence[EnvFn], create_env_kwargs: Kwargs | Sequence[Kwargs] | None
) -> list[EnvFn]:
    """Returns one function without arguments for each of `count` environments.

    Raises:
        SpaceError: the number of functions or keyword mappings is wrong, or an element is no function.
        TypeError: `count` is no integer.
    """
    count = scalar_of(count)
    if not isinstance(count, Integral) or isinstance(count, bool):
        hint = "num_workers comes first, then create_env_fn."
        raise TypeError(f"Expected num_workers to be an integer, got {count!r:.80}: {hint}")
    count = parse_count("num_workers", count, error=SpaceError)
    functions = _one_per_env("create_env_fn", create_env_fn, count, callable(create_env_fn))
    kwargs = create_env_kwargs or {}
    keywords = _one_per_env("create_env_kwargs", kwargs, count, isinstance(kwargs, Mapping))
    for index, function in enumerate(functions):
        if isinstance(function, EnvBase) or not callable(function):
            raise SpaceError(
                f"Expected create_env_fn to be functions, got {type(function).__name__} at index {index}. "
                "Give `lambda: GymEnv(...)` instead of an environment."
            )
    for kw in keywords:
        if not isinstance(kw, Mapping):
            raise TypeError(f"Expected create_env_kwargs to be a mapping, or a list of mappings, got {kw!r:.80}.")
    return [partial(function, **kw) if kw else function for function, kw in zip(functions, keywords, strict=True)]


def _one_per_env(name: str, value: Any, count: int, single: bool) -> list[Any]:
    if single:
        return [value] * count
    is_list = isinstance(value, Sequence) and not isinstance(value, str)
    if not is_list or len(value) != count:
        num_given = len(value) if is_list else repr(value)[:80]
        raise SpaceError(f"Expected {name} to be one, or a list of {count}, one per environment, got {num_given}.")
    return list(value)


def merge_kwargs(
    old: Kwargs | Sequence[Kwargs] | None, new: Kwargs | Sequence[Kwargs], count: int
) -> Kwargs | Sequence[Kwargs]:
    """Returns `old` keyword arguments updated with `new`: one mapping for all, or one per environment (`count`)."""
    old = old or {}
    if isinstance(new, Mapping) and isinstance(old, Mapping):
        return {**old, **new}
    old_list = _one_per_env("create_env_kwargs", old, count, isinstance(old, Mapping))
    new_list = _one_per_env("kwargs", new, count, isinstance(new, Mapping))
    return [{**old_kwargs, **new_kwargs} for old_kwargs, new_kwargs in zip(old_list, new_list, strict=True)]


def split_makers(
    makers: Sequence[EnvFn], envs_per_worker: int | None, default_workers: int, graphs: Graphs | None = None
) -> list[tuple[Callable[[], Any], int]]:
    """Returns, for each worker, the function that creates its simulator, and its number of environments.

    Each worker has consecutive environments.

    Args:
        makers: one function per environment.
        envs_per_worker: the number of environments per worker.
        default_workers: the largest number of workers if `envs_per_worker` is None.
        graphs: as in `TensorDictRows`.

    Raises:
        SpaceError: `envs_per_worker` is less than 1.
    """
    envs_per_worker = parse_optional_count("envs_per_worker", envs_per_worker, error=SpaceError)
    count = len(makers)
    workers = -(-count // envs_per_worker) if envs_per_worker else min(default_workers, count)
    parts = split_evenly(makers, workers)
    return [(partial(EnvSimulator, part, start, graphs), len(part)) for start, part in parts]
