"""Utilities for users of TensorDict environments: policies, exploration types, checks, `step_mdp`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from operator import attrgetter
from typing import Any

import torch
from tensordict import TensorDictBase
from tensordict.nn.probabilistic import InteractionType as ExplorationType
from tensordict.nn.probabilistic import interaction_type as exploration_type
from tensordict.nn.probabilistic import set_interaction_type as set_exploration_type

from ..errors import SpaceError
from ..specs import Composite, TensorSpec
from .check_specs import check_env_specs
from .entries.keys import FLAGS, Key, join_key, split_key
from .entries.step_mdp import step_mdp
from .env_specs import EnvSpecs
from .marl_groups import MarlGroupMapType, check_marl_grouping
from .spec_inference import make_composite_from_td

__all__ = [
    "ExplorationType",
    "MarlGroupMapType",
    "RandomPolicy",
    "check_env_specs",
    "check_marl_grouping",
    "clear_mpi_env_vars",
    "exploration_type",
    "get_available_libraries",
    "make_composite_from_td",
    "make_tensordict",
    "set_exploration_type",
    "step_mdp",
    "terminated_or_truncated",
]


SIMULATORS = ("envpool", "gym", "gymnasium", "mo_gymnasium")
"""The libraries that `vecrl.envs.libs` wraps."""


def get_available_libraries() -> dict[str, bool]:
    """Returns whether each library of `vecrl.envs.libs` is installed, by import name."""
    return {name: find_spec(name) is not None for name in SIMULATORS}


def make_tensordict(env: EnvSpecs, policy: Callable[[TensorDictBase], TensorDictBase] | None = None) -> TensorDictBase:
    """Returns the entries of one step of an environment, filled with zeros. The environment is not stepped.

    Args:
        env: the environment.
        policy: is called with the entries of the root; those that it writes are added.

    >>> from vecrl.envs import PendulumEnv
    >>> data = make_tensordict(PendulumEnv(), lambda td: td.set("hidden", torch.ones(4)))
    >>> data["hidden"], data["next", "reward"]
    (tensor([0., 0., 0., 0.]), tensor([0.]))
    """
    data: Any = env.fake_tensordict()  # pyright: ignore[reportAttributeAccessIssue]
    if policy is not None:
        written = policy(data.exclude("next").clone())
        data = data.update(torch.zeros_like(written.exclude("next")))  # pyright: ignore[reportArgumentType]
    return data


@contextmanager
def clear_mpi_env_vars() -> Iterator[None]:
    """Removes the environment variables of MPI ("OMPI_…", "PMI_…") in the context, so that processes start without it.

    >>> with clear_mpi_env_vars():
    ...     any(name.startswith("OMPI_") for name in os.environ)
    False
    """
    removed = {name: os.environ.pop(name) for name in list(os.environ) if name.startswith(("OMPI_", "PMI_"))}
    try:
        yield
    finally:
        os.environ.update(removed)


class RandomPolicy:
    """Writes random actions into a TensorDict.

    Args:
        action_spec: the spec to sample from; it may be set later.
        action_key: the key of the action, if the spec is no `Composite`.
    """

    def __init__(self, action_spec: TensorSpec | None = None, action_key: Key = "action"):
        self.action_spec = action_spec
        self.action_key = action_key

    def __call__(self, td: TensorDictBase) -> TensorDictBase:
        """Writes random actions into `td` and returns it.

        Raises:
            ValueError: if there is no action spec.
        """
        if self.action_spec is None:
            raise ValueError("Expected an action_spec for RandomPolicy, got None. Set env.full_action_spec or another.")
        actions = self.action_spec.rand()
        return td.update(actions) if isinstance(self.action_spec, Composite) else td.set(self.action_key, actions)


def terminated_or_truncated(
    data: TensorDictBase,
    full_done_spec: Composite | None = None,
    key: str | None = "_reset",
    write_full_false: bool = False,
) -> bool:
    """Returns whether any row is done; if so, writes the union of the flags beside them.

    Args:
        data: a TensorDict with done flags at the root or in groups.
        full_done_spec: the spec with the keys of the flags; by default all flags in `data` are used.
        key: the name of the written entry, the union of the flags. None writes nothing.
        write_full_false: also write the entry if no row is done.

    >>> import torch
    >>> from tensordict import TensorDict
    >>> data = TensorDict({"done": torch.tensor([[True], [False]])}, [2])
    >>> terminated_or_truncated(data), data["_reset"].squeeze(-1)
    (True, tensor([ True, False]))
    """
    source = data if full_done_spec is None else full_done_spec
    end_flags: dict[tuple[str, ...], list[torch.Tensor]] = {}
    for key_found in source.keys(include_nested=True, leaves_only=True):
        prefix, name = split_key(key_found)
        if name in FLAGS and data.get(key_found, None) is not None:
            end_flags.setdefault(prefix, []).append(data.get(key_found))
    masks = {prefix: torch.stack(flags).any(0) for prefix, flags in end_flags.items()}
    any_ended = any(bool(mask.any()) for mask in masks.values())
    if key is not None and (any_ended or write_full_false):
        for prefix, mask in masks.items():
            data.set(join_key(prefix, key), mask)
    return any_ended


def attribute_at(env: Any, path: str) -> Any:
    """Returns the attribute of an environment at a path with dots.

    A batch of environments returns a list with that of each, since it looks up the whole path in each environment.

    Raises:
        AttributeError: there is no such attribute.
    """
    try:
        return getattr(env, path)
    except AttributeError:
        if "." not in path:
            raise
        return attrgetter(path)(env)


def single_observation_key(env: EnvSpecs, requested: Key | None = None) -> Key:
    """Returns the key of the observation of an environment that is to be used without TensorDicts.

    Such an environment has one observation (unless one is requested), one action, one reward, and done flags only at
    the root.

    Raises:
        SpaceError: if the environment has other keys, or does not have the requested observation.
    """
    keys = list(env.observation_keys)
    if requested is None and len(keys) != 1:
        raise SpaceError(f"Expected one observation, got {keys}. Name one, or join them with CatTensors.")
    if requested is not None and requested not in keys:
        raise SpaceError(f"Expected one of the observations {keys}, got {requested!r}.")
    for name, keys_found in (("action", env.action_keys), ("reward", env.reward_keys)):
        if len(keys_found) != 1:
            raise SpaceError(f"Expected one {name}, got {keys_found}.")
    if env.done_prefixes != [()]:
        raise SpaceError(f"Expected done flags at the root only, got {env.done_keys}.")
    return keys[0] if requested is None else requested
