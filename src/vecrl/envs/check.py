"""`check_env_specs`: does an environment give what its specs say? One message for all that it does not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from tensordict import LazyStackedTensorDict, TensorDictBase

from ..errors import SpaceError
from ..specs import Composite
from .owner import Key, SpecOwner

if TYPE_CHECKING:
    from .base import EnvBase


def check_env_specs(
    env: EnvBase,
    return_contiguous: bool | None = None,
    check_dtype: bool = True,
    seed: int | None = None,
    tensordict: TensorDictBase | None = None,
    break_when_any_done: bool | str | None = None,
) -> None:
    """Compare what an environment gives in a reset, a step and a rollout with its specs.

    The environment moves on by that; torch's own randomness goes on afterwards as if nothing had happened.

    Args:
        env: whom to check.
        return_contiguous: of the rollout.
        check_dtype: compare dtypes too.
        seed: seed the environment with it first.
        tensordict: for the resets.
        break_when_any_done: of the rollout; "both" tries both.

    Raises:
        SpaceError: with a line for every entry that differs: where, what was expected, what was found.
    """
    if not isinstance(env, SpecOwner):
        what = f"the class {env.__name__}: make one" if isinstance(env, type) else f"{env!r:.80}: wrap it"
        raise TypeError(f"Expected an environment over TensorDicts, but got {what}. GymWrapper wraps gymnasium's.")
    state = torch.random.get_rng_state()
    try:
        found = _found(env, return_contiguous, check_dtype, seed, tensordict, break_when_any_done)
    finally:
        torch.random.set_rng_state(state)
    if found:
        lines = "\n".join(f"  {line}" for line in dict.fromkeys(found))
        raise SpaceError(f"{type(env).__name__} does not give what its specs say:\n{lines}")


def _found(
    env: EnvBase,
    return_contiguous: bool | None,
    check_dtype: bool,
    seed: int | None,
    tensordict: TensorDictBase | None,
    break_when_any_done: bool | str | None,
) -> list[str]:
    if seed is not None:
        torch.manual_seed(seed)
        env.set_seed(seed)
    found: list[str] = []
    first = env.reset(None if tensordict is None else tensordict.copy())
    found += _differences("reset", env, first, ("observation", "done"), check_dtype)
    if any("missing" in line for line in found):  # which a step may go by
        return found
    acted = env.rand_action(first.copy())
    found += _differences("step", env, acted, ("action", "state"), check_dtype)  # now, before masks change
    stepped = env.step(acted)
    found += _differences("step", env, stepped.get("next"), ("observation", "reward", "done"), check_dtype)
    stops: Any = (True, False) if break_when_any_done == "both" else (break_when_any_done,)
    for stop in stops:
        if found:
            break
        anew = None if tensordict is None else tensordict.copy()
        played = env.rollout(3, return_contiguous=return_contiguous, break_when_any_done=stop, tensordict=anew)
        for step in played.unbind(env.batch_dims if env.batch_locked else played.batch_dims - 1):
            following = step.get("next")
            found += _differences("rollout", env, following, ("observation", "reward", "done"), check_dtype)
    return found


def _differences(when: str, env: EnvBase, data: Any, names: tuple[str, ...], check_dtype: bool) -> list[str]:
    """Lines on what differs between `data` and the specs of these names."""
    return _lines(when, env, data, {name: getattr(env, f"full_{name}_spec") for name in names}, check_dtype)


def _lines(when: str, env: EnvBase, data: Any, specs: dict[str, Composite], check_dtype: bool) -> list[str]:
    lines: list[str] = []
    if isinstance(data, LazyStackedTensorDict):  # whose rows may have no common shape, nor the same keys
        before = (slice(None),) * data.stack_dim
        for i, row in enumerate(data.unbind(data.stack_dim)):
            lines += _lines(when, env, row, {name: spec[(*before, i)] for name, spec in specs.items()}, check_dtype)
        return lines
    known: set[Key] = set()
    for name, whole in specs.items():
        if not env.batch_locked:
            whole = whole.expand(*data.batch_size[: data.batch_dims - env.batch_dims], *whole.shape)
        for key, spec in whole.items(include_nested=True, leaves_only=True):
            known.add(key)
            value = data.get(key, None)
            why = _difference(spec, value, check_dtype)
            lines += [] if why is None else [f"{when}: {key!r} ({name}_spec): {why}"]
    if "observation" in specs:
        inputs = {*env.action_keys, *env.state_keys, *env.reward_keys, *env.done_keys}
        for key in data.keys(include_nested=True, leaves_only=True):
            if key not in known and key not in inputs:
                lines.append(f"{when}: {key!r}: not in observation_spec, but came")
    return lines


def check_first_step(env: EnvBase, following: TensorDictBase) -> None:
    """Compare the form (shape, dtype, device) of what a step gave with the specs, once as long as these are the same.

    Raises:
        SpaceError: with a line for every entry that differs.
    """
    if "seen" in env._cache or isinstance(following, LazyStackedTensorDict):
        return
    found: list[str] = []
    for name in ("observation", "reward", "done"):
        for key, spec in getattr(env, f"full_{name}_spec").items(include_nested=True, leaves_only=True):
            value = following.get(key, None)
            if isinstance(value, torch.Tensor):
                batch = value.shape[: following.batch_dims]
                why = _other_form(spec, (*batch, *spec.shape[env.ndim :]), value, True)
                found += [] if why is None else [f"  {key!r} ({name}_spec): {why}"]
    if found:
        lines = "\n".join(found)
        raise SpaceError(f"{type(env).__name__} does not give what its specs say:\n{lines}\nMend one or the other.")
    env._cache["seen"] = True


def no_action(key: Key) -> SpaceError:
    """The error for a step without an action at `key`."""
    return SpaceError(
        f"Expected {key!r} among what is to be stepped, but it is not there: env.rand_action(tensordict) puts in a "
        "random one."
    )


def wrong_action(key: Key, action: torch.Tensor, shape: Sequence[int], domain: str | None = None) -> SpaceError:
    """The error for an action at `key` that should be of `shape`; in a discrete domain, it may be that of an index."""
    one_hot = domain == "discrete" and tuple(action.shape) == tuple(shape)[:-1]
    hint = f" env.action_spec.encode({action.tolist()!r:.40}) makes one-hot rows of indices." if one_hot else ""
    return SpaceError(f"Expected shape {tuple(shape)} at {key!r}, but {tuple(action.shape)} came.{hint}")


def check_actions(env: EnvBase, data: TensorDictBase, given: bool) -> None:
    """See that what a policy returned holds actions; and that actions that were `given` have their specs' shapes.

    Raises:
        KeyError: there are none.
        SpaceError: they have another shape.
    """
    missing = [key for key in env.action_keys if data.get(key, None) is None]
    if missing:
        there = list(data.keys(include_nested=True, leaves_only=True))
        raise KeyError(f"Expected the policy to give actions at {missing}, but after it there are only {there}.")
    if not given or isinstance(data, LazyStackedTensorDict):
        return
    for key in env.action_keys:
        value, spec = data.get(key), env.full_action_spec[key]
        shape = (*data.batch_size, *spec.shape[env.ndim :])
        if isinstance(value, torch.Tensor) and not _are(value.shape, shape):
            raise wrong_action(key, value, shape, spec.domain)


def check_all_actions(env: EnvBase, actions: torch.Tensor) -> None:
    """See that actions of all steps, `[*batch_size, time, ...]`, have their spec's shape.

    Raises:
        SpaceError: they have not.
    """
    dims, spec = env.ndim, env.full_action_spec[env.action_key]
    shape = (*env.batch_size, -1, *spec.shape[dims:])
    if env.batch_locked and not _are(actions.shape, shape):
        said = ", ".join("time" if i == dims else str(size) for i, size in enumerate(shape))
        hint = " env.action_spec.encode makes one-hot rows of indices." if spec.domain == "discrete" else ""
        raise SpaceError(
            f"Expected actions of shape [{said}] at {env.action_key!r}, time behind the batch, but "
            f"{tuple(actions.shape)} came.{hint} A list may hold an action a step instead."
        )


def _are(came: Sequence[int], shape: Sequence[int]) -> bool:
    return len(came) == len(shape) and all(size in (-1, c) for c, size in zip(came, shape, strict=True))


def _difference(spec: Any, value: Any, check_dtype: bool) -> str | None:
    if value is None:
        return "expected, but missing"
    if not isinstance(value, torch.Tensor):
        return spec.mismatch(value)
    return _other_form(spec, spec.shape, value, check_dtype) or spec.mismatch(value.to(spec.dtype))


def _other_form(spec: Any, shape: Sequence[int], value: torch.Tensor, check_dtype: bool) -> str | None:
    if check_dtype and spec.dtype is not None and value.dtype != spec.dtype:
        return f"expected dtype {spec.dtype}, found {value.dtype}"
    if not _are(value.shape, shape):
        return f"expected shape {tuple(shape)}, found {tuple(value.shape)}"
    if spec.device is not None and value.device != spec.device:
        return f"expected device {spec.device}, found {value.device}"
    return None
