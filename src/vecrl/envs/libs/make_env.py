"""`make_env` and `env_maker`: environments over TensorDicts of any registered name.

The entry of the registry names the class, or says whether the simulator is one of single environments or of batches.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

from ...simulators.gymnasium.make import make_wrapped
from ...simulators.registry import SEPARATOR, Entry, explained_arguments, find_entry, register_entry
from ...validation import parse_optional_count
from ..base import EnvBase
from ..batched import SerialEnv
from .gym.env import GymEnv, GymWrapper
from .gym.vector import make_gym_vector, num_rows_of
from .simulator_env import SimulatorEnv

_PIXEL_ARGUMENTS = "from_pixels", "pixels_only", "frame_skip"
_VECTOR_ARGUMENTS = "backend", "num_workers", "ray_options", "wait"


def make_env(name: str, num_envs: int | None = None, **kwargs: Any) -> EnvBase:
    """Makes an environment over TensorDicts of any registered simulator by name.

    Args:
        name: as for `vecrl.vector.make_vector_env`: "native::CartPole-v1", a bare name of gymnasium, or one with a
            prefix that `vecrl.vector.register` added.
        num_envs: the number of environments; the batch size is `(num_envs,)`. None for one without batch dimensions;
            those of `envpool::` and `vmas::` are always batches, with the batch size (1,) in this case.
        kwargs: arguments of the class of the environment, and of the simulator.

    Returns:
        An environment of the class that the entry of the registry names; else a `GymWrapper` around single
        environments, or a `SimulatorEnv` around a batched simulator.

    Raises:
        ValueError: the prefix is unknown, or its entry has only a `maker`.

    >>> make_env("native::Pendulum-v1", num_envs=2).rollout(3).shape
    torch.Size([2, 3])
    >>> make_env("CartPole-v1", categorical_action_encoding=True).action_spec.shape
    torch.Size([])
    """
    return env_maker(name, num_envs, **kwargs)()


def env_maker(name: str, num_envs: int | None = None, **kwargs: Any) -> Callable[[], EnvBase]:
    """Returns a function that calls `make_env`, also in worker processes where the name is not registered.

    Args:
        name, num_envs, kwargs: see `make_env`.

    >>> from vecrl.envs import SerialEnv
    >>> SerialEnv(2, env_maker("CartPole-v1")).rollout(3).shape
    torch.Size([2, 3])
    """
    entry, bare_name = find_entry(name)
    return partial(_make, entry, bare_name, parse_optional_count("num_envs", num_envs), **kwargs)


def _make(entry: Entry, name: str, num_envs: int | None, **kwargs: Any) -> EnvBase:
    register_entry(entry)
    with explained_arguments(entry.prefix + SEPARATOR + name, kwargs):
        return _make_registered(entry, name, num_envs, **kwargs)


def _make_registered(entry: Entry, name: str, num_envs: int | None, **kwargs: Any) -> EnvBase:
    if entry.env_class is not None:
        module, class_name = entry.env_class.split(":")
        cls = getattr(import_module(f".{module}", __package__), class_name)
        return _make_of_class(cls, entry, name, num_envs, kwargs)
    if entry.env_fn is not None:
        return _make_of_function(entry.env_fn, name, num_envs, kwargs)
    return SimulatorEnv(entry.prefix + SEPARATOR + name, num_envs, **kwargs)


def _make_of_class(
    cls: type[EnvBase], entry: Entry, name: str, num_envs: int | None, kwargs: dict[str, Any]
) -> EnvBase:
    make: Any = getattr(cls, "from_name", cls)
    # `own` are the parameters of `make` itself, `parameters` also those that it passes to base classes
    own, parameters = inspect.signature(make).parameters, _parameters(cls)
    if kwargs.get("from_pixels") and "from_pixels" not in parameters and entry.make_batch is not None:
        return SimulatorEnv(entry.prefix + SEPARATOR + name, num_envs, **kwargs)
    if "num_envs" in own or ("num_envs" in parameters and "batch_size" not in own):
        is_required = "num_envs" in own and own["num_envs"].default is inspect.Parameter.empty
        return make(name, num_envs=1 if num_envs is None and is_required else num_envs, **kwargs)
    if num_envs is None:
        return make(name, **kwargs)
    if entry.is_batched:
        return make(name, batch_size=[num_envs], **kwargs)
    return SerialEnv(num_envs, partial(make, name, **kwargs))


def _parameters(cls: type) -> dict[str, inspect.Parameter]:
    """Returns the parameters of the constructor by name, with those of base classes that get its other keywords."""
    found: dict[str, inspect.Parameter] = {}
    for base in cls.__mro__:
        if "__init__" in vars(base):
            parameters = inspect.signature(base.__init__).parameters
            found = {**parameters, **found}
            if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
                break
    return found


def _make_of_function(
    env_fn: Callable[..., Callable[[], Any]], name: str, num_envs: int | None, kwargs: dict[str, Any]
) -> EnvBase:
    """Makes a `GymWrapper` around an environment of a registered function, or around a vector of them."""
    wrapper_names = "categorical_action_encoding", *GymEnv._WRAPPER_ARGUMENTS
    pixel_kwargs, vector_kwargs, wrapper_kwargs = (
        {key: kwargs.pop(key) for key in names if key in kwargs}
        for names in (_PIXEL_ARGUMENTS, _VECTOR_ARGUMENTS, wrapper_names)
    )
    if pixel_kwargs.get("from_pixels"):
        kwargs.setdefault("render_mode", "rgb_array")
    make_single, num_workers = env_fn(name, **kwargs), vector_kwargs.pop("num_workers", None)
    num_rows = num_rows_of(num_envs, num_workers)
    if num_rows is None:
        return GymWrapper(make_single(), **pixel_kwargs, **wrapper_kwargs)
    backend = vector_kwargs.pop("backend", None)
    make_one = partial(make_wrapped, make_single, pixel_kwargs, False)
    vector = make_gym_vector(make_one, num_rows, backend, num_workers or None, **vector_kwargs)
    return GymWrapper(vector, **wrapper_kwargs)
