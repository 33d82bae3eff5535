"""Registers vecrl's classes with TorchRL. Its collectors, losses and modules test `isinstance` of its own classes.

TorchRL's specs and environments are abstract base classes, so vecrl's become virtual subclasses of them. vecrl's own
tests of `isinstance` do not change.
"""

from __future__ import annotations

from abc import ABCMeta
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ...envs.transforms import Transform
    from ...specs import Bounded, Composite


def register_specs() -> None:
    """Makes every spec class of vecrl a virtual subclass of the one with its name in `torchrl.data`.

    TorchRL finds the name of an action space, such as "one_hot", by the class of a spec, in a table. vecrl's classes
    get entries there.
    """
    data = import_module("torchrl.data")
    from torchrl.data.utils import ACTION_SPACE_MAP

    from ... import specs

    for own, theirs in _same_names(specs, data):
        theirs.register(own)
        if theirs in ACTION_SPACE_MAP:
            ACTION_SPACE_MAP[own] = ACTION_SPACE_MAP[theirs]
    for cls, method in (
        (specs.Bounded, _register_batch_size),
        (specs.Composite, _propagate_lock),
        (specs.Composite, _propagate_unlock),
        (specs.Composite, _check_unlock),
    ):
        setattr(cls, method.__name__, method)


def register_envs() -> None:
    """Makes vecrl's base classes of environments virtual subclasses of those with their names in `torchrl.envs`."""
    theirs = import_module("torchrl.envs")

    from ... import envs

    for name in ("EnvBase", "TransformedEnv", "SerialEnv", "ParallelEnv"):
        getattr(theirs, name).register(getattr(envs, name))


def register_adapters() -> None:
    """Lets the classes of each library adapt environments and transforms of the other one.

    TorchRL's `Transform` cannot have virtual subclasses. TorchRL takes any other transform for a function, and makes an
    instance of one class for it, which returns an adapter for a transform of vecrl. TorchRL's `TransformedEnv` calls
    private methods of the base environment, so it returns a `TransformedEnv` of vecrl for an environment of vecrl.
    """
    from torchrl.envs import TransformedEnv
    from torchrl.envs.transforms.transforms import _CallableTransform as Functions

    from ...envs.adapters import register_adapters as register
    from ...envs.transforms import Transform

    register(env=_adapt_env, transform=_adapt_transform)
    Functions.__new__ = staticmethod(_new_function_transform)
    TransformedEnv.__new__ = staticmethod(_new_transformed_env)
    setattr(Transform, _check_batched_worker_compat.__name__, _check_batched_worker_compat)


def _adapt_env(value: object) -> object:
    """Returns an environment of TorchRL as one of vecrl, None for anything else."""
    from torchrl.envs import EnvBase

    from .environments import TorchRLEnv

    return TorchRLEnv(value) if EnvBase in type(value).__mro__ else None


def _adapt_transform(value: object) -> object:
    """Returns a transform of TorchRL as one of vecrl, None for anything else."""
    from .transforms import TorchRLTransform, is_torchrl_transform

    return TorchRLTransform(value) if is_torchrl_transform(value) else None


def _new_function_transform(cls: type, function: object = None) -> object:
    """Returns an adapter for a transform of vecrl, or for an `nn.Sequential` with one; a new `cls` otherwise."""
    from torch import nn

    from ...envs.transforms import Transform

    parts = function if isinstance(function, nn.Sequential) else [function]
    if any(isinstance(part, Transform) for part in parts):
        from .transforms_in_torchrl import TransformInTorchRL

        return TransformInTorchRL(function)
    return nn.Module.__new__(cls)


def _new_transformed_env(cls: Any, *args: Any, **kwargs: Any) -> object:
    """Returns a `TransformedEnv` of vecrl for a base environment of vecrl, a new `cls` for one of TorchRL."""
    from torchrl.envs import TransformedEnv

    from ... import envs

    base_env = args[0] if args else kwargs.get("base_env", kwargs.get("env"))
    if not isinstance(base_env, envs.EnvBase):
        return super(TransformedEnv, cls).__new__(cls, *args, **kwargs)
    if cls is not TransformedEnv:
        raise TypeError(
            f"Expected an environment of TorchRL in {cls.__name__}, got vecrl's {type(base_env).__name__}. Derive "
            f"{cls.__name__} from vecrl.envs.TransformedEnv."
        )
    return envs.TransformedEnv(*args, **kwargs)


def _same_names(own: ModuleType, theirs: ModuleType) -> list[tuple[type, ABCMeta]]:
    """Returns the public classes of `own` with the abstract base classes of `theirs` that have their names."""
    pairs = [(getattr(own, name), getattr(theirs, name, None)) for name in own.__all__]
    return [(cls, peer) for cls, peer in pairs if isinstance(cls, type) and isinstance(peer, ABCMeta)]


# Methods that TorchRL's batches call on the transforms of their environments, and its Composites on the specs in them


def _check_batched_worker_compat(self: Transform) -> None:
    """Has no effect: every transform of vecrl may be in a batch of environments."""


def _register_batch_size(self: Bounded, batch_size: object) -> None:
    """Has no effect: the bounds of vecrl's specs always have the shape of the spec."""


def _propagate_lock(self: Composite, *, recurse: bool, **_: object) -> None:
    """Locks the Composite because the one that contains it is locked."""
    self.lock_(recurse=recurse)


def _propagate_unlock(self: Composite, recurse: bool) -> list[object]:
    """Unlocks the Composite because the one that contains it is unlocked. Returns no other Composites to unlock."""
    self.unlock_(recurse=recurse)
    return []


def _check_unlock(self: Composite, first_attempt: bool = True) -> None:
    """Has no effect: vecrl's Composites may be unlocked although another one contains them."""
