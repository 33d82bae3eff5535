"""Checks that environments return what their specs say; one message lists all differences.

This module must not know how environments step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from tensordict import LazyStackedTensorDict, TensorDictBase

from ..errors import SpaceError
from ..specs import Composite
from .spec_container import Key, SpecContainer

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
    """Compares the results of a reset, a step and a rollout of an environment with its specs.

    This changes the state of the environment; the state of torch's CPU generator is restored afterwards.

    Args:
        env: the environment to check.
        return_contiguous: argument of the rollout.
        check_dtype: compare dtypes too.
        seed: seed the environment with it first.
        tensordict: argument of the resets.
        break_when_any_done: argument of the rollout; "both" tries True and False.

    Raises:
        TypeError: if `env` is no environment over TensorDicts.
        SpaceError: if entries differ, with a line per entry: its key, what was expected, and what was found.
    """
    if not isinstance(env, SpecContainer):
        actual = f"the class {env.__name__}. Make an instance" if isinstance(env, type) else f"{env!r:.80}. Wrap it"
        raise TypeError(f"Expected an environment over TensorDicts, got {actual}; GymWrapper wraps gymnasium's.")
    state = torch.random.get_rng_state()
    try:
        differences = _find_differences(env, return_contiguous, check_dtype, seed, tensordict, break_when_any_done)
    finally:
        torch.random.set_rng_state(state)
    if differences:
        lines = "\n".join(f"  {line}" for line in dict.fromkeys(differences))
        raise SpaceError(f"Expected {type(env).__name__} to return what its specs say, got these differences:\n{lines}")


def _find_differences(
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
    differences: list[str] = []
    reset_td = env.reset(None if tensordict is None else tensordict.copy())
    differences += _differences("reset", env, reset_td, ("observation", "done"), check_dtype)
    if any("missing" in line for line in differences):  # a step may need the missing entry
        return differences
    with_action = env.rand_action(reset_td.copy())
    differences += _differences(
        "step", env, with_action, ("action", "state"), check_dtype
    )  # before the step changes masks
    step_td = env.step(with_action)
    differences += _differences("step", env, step_td.get("next"), ("observation", "reward", "done"), check_dtype)
    break_options: Any = (True, False) if break_when_any_done == "both" else (break_when_any_done,)
    for break_option in break_options:
        if differences:
            break
        initial_td = None if tensordict is None else tensordict.copy()
        rollout = env.rollout(
            3, return_contiguous=return_contiguous, break_when_any_done=break_option, tensordict=initial_td
        )
        for step in rollout.unbind(env.batch_dims if env.batch_locked else rollout.batch_dims - 1):
            next_td = step.get("next")
            differences += _differences("rollout", env, next_td, ("observation", "reward", "done"), check_dtype)
    return differences


def _differences(method: str, env: EnvBase, data: Any, names: tuple[str, ...], check_dtype: bool) -> list[str]:
    """Returns a line per difference between `data` and the specs of these names."""
    return _entry_differences(
        method, env, data, {name: getattr(env, f"full_{name}_spec") for name in names}, check_dtype
    )


def _entry_differences(
    method: str, env: EnvBase, data: Any, specs: dict[str, Composite], check_dtype: bool
) -> list[str]:
    lines: list[str] = []
    if isinstance(data, LazyStackedTensorDict):  # its rows may differ in shapes and keys
        index_prefix = (slice(None),) * data.stack_dim
        for i, row in enumerate(data.unbind(data.stack_dim)):
            lines += _entry_differences(
                method, env, row, {name: spec[(*index_prefix, i)] for name, spec in specs.items()}, check_dtype
            )
        return lines
    spec_keys: set[Key] = set()
    for name, full_spec in specs.items():
        if not env.batch_locked:
            full_spec = full_spec.expand(*data.batch_size[: data.batch_dims - env.batch_dims], *full_spec.shape)
        for key, spec in full_spec.items(include_nested=True, leaves_only=True):
            spec_keys.add(key)
            value = data.get(key, None)
            reason = _difference(spec, value, check_dtype)
            lines += [] if reason is None else [f"{method}: {key!r} ({name}_spec): {reason}"]
    if "observation" in specs:
        inputs = {*env.action_keys, *env.state_keys, *env.reward_keys, *env.done_keys}
        for key in data.keys(include_nested=True, leaves_only=True):
            if key not in spec_keys and key not in inputs:
                lines.append(f"{method}: {key!r}: returned, but not in observation_spec")
    return lines


def check_first_step(env: EnvBase, next_td: TensorDictBase) -> None:
    """Compares the shapes, dtypes and devices of the result of a step with the specs, once until the specs change.

    Raises:
        SpaceError: if entries differ, with a line per entry.
    """
    if "first_step_checked" in env._cache or isinstance(next_td, LazyStackedTensorDict):
        return
    lines_found: list[str] = []
    for name in ("observation", "reward", "done"):
        for key, spec in getattr(env, f"full_{name}_spec").items(include_nested=True, leaves_only=True):
            value = next_td.get(key, None)
            if isinstance(value, torch.Tensor):
                batch = value.shape[: next_td.batch_dims]
                reason = _form_difference(spec, (*batch, *spec.shape[env.ndim :]), value, True)
                lines_found += [] if reason is None else [f"  {key!r} ({name}_spec): {reason}"]
    if lines_found:
        lines = "\n".join(lines_found)
        raise SpaceError(
            f"Expected {type(env).__name__} to return what its specs say, got these differences:\n{lines}\n"
            "Correct the specs or the results."
        )
    env._cache["first_step_checked"] = True


def no_action(key: Key) -> SpaceError:
    """Returns the error for a step without an action at `key`."""
    return SpaceError(
        f"Expected {key!r} in the input of step, got none. env.rand_action(tensordict) adds a random action."
    )


def wrong_action(key: Key, action: torch.Tensor, shape: Sequence[int], domain: str | None = None) -> SpaceError:
    """Returns the error for an action at `key` of another shape than `shape`, with a hint if it may be an index."""
    one_hot = domain == "discrete" and tuple(action.shape) == tuple(shape)[:-1]
    hint = f" env.action_spec.encode({action.tolist()!r:.40}) makes one-hot rows of indices." if one_hot else ""
    return SpaceError(f"Expected shape {tuple(shape)} at {key!r}, got {tuple(action.shape)}.{hint}")


def check_actions(env: EnvBase, data: TensorDictBase, check_shapes: bool) -> None:
    """Checks that `data`, which a policy returned or actions were written into, has all actions.

    Args:
        env: the environment.
        data: the input of a step.
        check_shapes: also compare the shapes of the actions with their specs.

    Raises:
        KeyError: if actions are missing.
        SpaceError: if an action has another shape than its spec.
    """
    missing = [key for key in env.action_keys if data.get(key, None) is None]
    if missing:
        available = list(data.keys(include_nested=True, leaves_only=True))
        raise KeyError(f"Expected the policy to write actions at {missing}, got only {available}.")
    if not check_shapes or isinstance(data, LazyStackedTensorDict):
        return
    for key in env.action_keys:
        value, spec = data.get(key), env.full_action_spec[key]
        shape = (*data.batch_size, *spec.shape[env.ndim :])
        if isinstance(value, torch.Tensor) and not _shape_matches(value.shape, shape):
            raise wrong_action(key, value, shape, spec.domain)


def check_all_actions(env: EnvBase, actions: torch.Tensor) -> None:
    """Checks that the actions of all steps, `[*batch_size, time, ...]`, have the shape of their spec.

    Raises:
        SpaceError: if they have another shape.
    """
    dims, spec = env.ndim, env.full_action_spec[env.action_key]
    shape = (*env.batch_size, -1, *spec.shape[dims:])
    if env.batch_locked and not _shape_matches(actions.shape, shape):
        shape_text = ", ".join("time" if i == dims else str(size) for i, size in enumerate(shape))
        hint = " env.action_spec.encode makes one-hot rows of indices." if spec.domain == "discrete" else ""
        raise SpaceError(
            f"Expected actions of shape [{shape_text}] at {env.action_key!r}, with time after the batch, got "
            f"{tuple(actions.shape)}.{hint} A list with one action per step is accepted too."
        )


def _shape_matches(actual: Sequence[int], shape: Sequence[int]) -> bool:
    return len(actual) == len(shape) and all(size in (-1, c) for c, size in zip(actual, shape, strict=True))


def _difference(spec: Any, value: Any, check_dtype: bool) -> str | None:
    if value is None:
        return "expected, but missing"
    if not isinstance(value, torch.Tensor):
        return spec.mismatch(value)
    return _form_difference(spec, spec.shape, value, check_dtype) or spec.mismatch(value.to(spec.dtype))


def _form_difference(spec: Any, shape: Sequence[int], value: torch.Tensor, check_dtype: bool) -> str | None:
    if check_dtype and spec.dtype is not None and value.dtype != spec.dtype:
        return f"expected dtype {spec.dtype}, found {value.dtype}"
    if not _shape_matches(value.shape, shape):
        return f"expected shape {tuple(shape)}, found {tuple(value.shape)}"
    if spec.device is not None and value.device != spec.device:
        return f"expected device {spec.device}, found {value.device}"
    return None
