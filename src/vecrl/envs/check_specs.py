"""Checks of actions, of what `_reset` and `_step` return, and of whole environments (`check_env_specs`).

Messages name each entry that differs from its spec.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import repeat
from typing import TYPE_CHECKING, Any

import torch
from tensordict import LazyStackedTensorDict, TensorDictBase, is_non_tensor, is_tensor_collection
from torch import Tensor

from ..errors import SpaceError, VecrlError
from ..specs import Composite, StackedComposite, TensorSpec
from ..specs.composite import entries_of
from ..specs.dtypes import cast_exactly, is_integral
from .adapters import adapt_env
from .entries.keys import FLAGS, INPUTS, OUTPUTS, Key, Prefix, join_key, sorted_keys, split_key
from .entries.step_mdp import leaves_of
from .env_specs import EnvSpecs

if TYPE_CHECKING:
    from .base import EnvBase

Dtypes = Sequence[tuple[Key, torch.dtype]]


def check_result(owner: EnvSpecs, result: object, tensordict: TensorDictBase | None, method: str) -> None:
    """Checks that `_reset` or `_step` returned a new TensorDict.

    Raises:
        TypeError: if `result` is no TensorDict.
        SpaceError: if `result` is the input, `tensordict`.
    """
    env_name = type(owner).__name__
    if not isinstance(result, TensorDictBase):
        raise TypeError(f"Expected {env_name}.{method} to return a TensorDict, got {result!r:.200}.")
    if result is tensordict:
        raise SpaceError(
            f"Expected {env_name}.{method} to return a new TensorDict, got its input. "
            "Put observations, reward and done flags into TensorDict({...}, tensordict.batch_size)."
        )


def missing_input_error(owner: EnvSpecs, tensordict: TensorDictBase, error: Exception) -> SpaceError | None:
    """Returns the error that explains `error` of a step if `tensordict` lacks an input; otherwise None."""
    if isinstance(error, VecrlError):
        return None
    available = sorted_keys(tensordict)
    inputs = [key for key in [*owner.action_keys, *owner.state_keys] if tensordict.get(key, None) is None]
    if inputs:
        return SpaceError(
            f"Expected {', '.join(map(repr, inputs))} in the input of step, got only {available}. Step the result of "
            "reset or step_mdp, with actions: env.rand_action(tensordict) adds random ones."
        )
    if not owner.action_keys and "action" in str(error):
        return SpaceError(f"Expected an action_spec, since {type(owner).__name__} takes an action, got none. Set it.")
    missing_obs = [
        key for key in owner.observation_keys if tensordict.get(key, None) is None and split_key(key)[1] in str(error)
    ]
    if missing_obs and isinstance(error, KeyError):
        return SpaceError(
            f"Expected {', '.join(map(repr, missing_obs))}, which {type(owner).__name__} reads and which is in its "
            f"observation_spec, got only {available}. Return it in _reset, and step the result of reset or step_mdp."
        )
    return None


def reshape_reward(reward: Tensor | None, key: Key, expected: torch.Size, must_match: bool) -> Tensor:
    """Returns the reward in the shape of its spec.

    Args:
        reward: the reward from `_step`; None if it is missing.
        key: its key.
        expected: the shape of the spec; -1 for any size.
        must_match: whether the shape must be `expected`, without more batch dimensions before it.

    Raises:
        SpaceError: if it is missing or has another number of elements.
    """
    if reward is None:
        raise SpaceError(f"Expected _step to return {key!r}, as reward_spec says, got none. Add it to the result.")
    if not must_match or reward.shape == expected or -1 in expected:
        return reward
    if reward.numel() != expected.numel():
        raise SpaceError(f"Expected {key!r} of shape {tuple(expected)}, got {tuple(reward.shape)}.")
    return reward.reshape(expected)


def check_first_step(env: EnvSpecs, next_td: TensorDictBase) -> None:
    """Compares the shapes, dtypes and devices of the result of a step with the specs, once until the specs change.

    Raises:
        SpaceError: if entries differ, with a line per entry.
    """
    if "first_step_checked" in env._cache or isinstance(next_td, LazyStackedTensorDict):
        return
    lines = "\n".join(_form_differences(env, ("observation", "reward", "done"), next_td))
    if lines:
        hint = " Flags are bool: return done.bool()." if "(done_spec): expected dtype torch.bool" in lines else ""
        raise SpaceError(
            f"Expected {type(env).__name__} to return what its specs say, got these differences:\n{lines}\n"
            f"Correct the specs or the results.{hint}"
        )
    env._cache["first_step_checked"] = True


def _form_differences(env: EnvSpecs, names: Sequence[str], data: TensorDictBase) -> list[str]:
    """Returns a line per tensor with another shape, dtype or device than in the specs of these names."""
    lines: list[str] = []
    for name in names:
        for key, spec, value in leaf_values(env, name, data):
            reason = form_difference(spec, value, True) if isinstance(value, torch.Tensor) else None
            lines += [] if reason is None else [f"  {key!r} ({name}_spec): {reason}"]
    return lines


def flag_error(env: EnvSpecs, data: TensorDictBase, error: SpaceError) -> SpaceError:
    """Returns the error for a done flag of a wrong shape, with the wrong entries from which it may be computed."""
    lines = _form_differences(env, ("observation",), data)
    return SpaceError("\n".join([f"{error} These entries differ from their specs too:", *lines])) if lines else error


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


def check_actions(env: EnvSpecs, data: TensorDictBase, check_shapes: bool) -> None:
    """Checks that `data`, which a policy returned or actions were written into, has all actions.

    Args:
        env: the environment.
        data: the input of a step.
        check_shapes: also compare the shapes of the actions with their specs.

    Raises:
        KeyError: if actions are missing.
        SpaceError: if an action has another shape than its spec.
    """
    actions = list(leaf_values(env, "action", data))
    missing = list(dict.fromkeys(key for key, _, value in actions if value is None))
    if missing:
        raise KeyError(f"Expected the policy to write actions at {missing}, got only {sorted_keys(data)}.")
    for key, spec, value in actions if check_shapes else ():
        if isinstance(value, torch.Tensor) and not _shape_matches(value.shape, spec.shape):
            raise wrong_action(key, value, spec.shape, spec.domain)


def check_all_actions(env: EnvSpecs, actions: torch.Tensor) -> None:
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


def integral_entries(specs: Composite) -> Dtypes:
    """Returns the key and dtype of each entry of integers or flags."""
    dtypes = [(key, None if spec is None else spec.dtype) for key, spec in specs.items(True, True)]
    return [(key, dtype) for key, dtype in dtypes if dtype is not None and is_integral(dtype)]


def with_exact_dtypes(data: TensorDictBase, dtypes: Dtypes) -> TensorDictBase:
    """Returns `data` with these dtypes; `data` itself, which is not changed, if it has them already.

    Raises:
        SpaceError: values are no whole numbers, or the dtype cannot hold them.
    """
    result = data
    for key, dtype in dtypes:
        value = data.get(key, None)
        if isinstance(value, torch.Tensor) and value.dtype != dtype:
            result = data.copy() if result is data else result
            result.set(key, cast_exactly(value, dtype, key))
    return result


def leaf_values(env: EnvSpecs, name: str, data: TensorDictBase) -> Iterator[tuple[Key, TensorSpec, Any]]:
    """Yields the key, the spec and the value of each leaf that the environment's spec `name` declares.

    The spec has the batch size of `data`. Leaves of lazy stacks have no common shape, so those of each element are
    yielded. The value is None if it is missing.
    """
    spec = env._full(name)
    if not env.batch_locked:
        spec = spec.expand(*data.batch_size[: data.batch_dims - env.batch_dims], *spec.shape)
    return _leaf_values(spec, data, ())


def _leaf_values(spec: Composite, data: Any, prefix: Prefix) -> Iterator[tuple[Key, TensorSpec, Any]]:
    is_stacked = isinstance(spec, StackedComposite)
    if is_stacked or (isinstance(data, LazyStackedTensorDict) and data.stack_dim < spec.ndim):
        dim = spec.stack_dim if is_stacked else data.stack_dim
        rows = repeat(None) if data is None else data.unbind(dim)
        for row_spec, row in zip(spec.unbind(dim), rows, strict=data is not None):
            yield from _leaf_values(row_spec, row, prefix)
        return
    for name, entry in entries_of(spec).items():
        value = None if data is None else data.get(name, None)
        if isinstance(entry, Composite):
            yield from _leaf_values(entry, value, (*prefix, name))
        elif entry is not None:
            yield join_key(prefix, name), entry, value


def form_difference(spec: TensorSpec, value: torch.Tensor, check_dtype: bool) -> str | None:
    """Returns how the dtype, shape or device of a value differs from its spec; None if it does not."""
    if check_dtype and spec.dtype is not None and value.dtype != spec.dtype:
        return f"expected dtype {spec.dtype}, found {value.dtype}"
    if not _shape_matches(value.shape, spec.shape):
        return f"expected shape {tuple(spec.shape)}, found {tuple(value.shape)}"
    if spec.device is not None and value.device != spec.device:
        return f"expected device {spec.device}, found {value.device}"
    return None


def check_env_specs(
    env: EnvBase,
    return_contiguous: bool | None = None,
    check_dtype: bool = True,
    seed: int | None = None,
    tensordict: TensorDictBase | None = None,
    break_when_any_done: bool | str | None = None,
) -> None:
    """Compares the results of a reset, a step and a rollout of an environment with its specs.

    The batch sizes of groups, such as those of agents, must be those of `fake_tensordict`. A `_step` that returns no
    done flag or changes its input is reported too.

    This changes the state of the environment; the state of torch's CPU generator is restored afterwards.

    Args:
        env: the environment to check, also one of TorchRL.
        return_contiguous: argument of the rollout.
        check_dtype: compare dtypes too.
        seed: seed the environment with it first.
        tensordict: argument of the resets.
        break_when_any_done: argument of the rollout; "both" tries True and False.

    Raises:
        TypeError: if `env` is no environment over TensorDicts.
        SpaceError: if entries differ, with a line per entry: its key, what was expected, and what was found.
    """
    env = adapt_env(env)
    if not isinstance(env, EnvSpecs):
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
    rows_differ = isinstance(env.full_observation_spec, StackedComposite)
    fake = None if rows_differ else env.fake_tensordict()
    reset_td = env.reset(None if tensordict is None else tensordict.copy())
    differences = _differences("reset", env, reset_td, ("observation", "done"), check_dtype)
    differences += _size_differences("reset", fake, reset_td)
    if any("missing" in line for line in differences):  # a step may need the missing entry
        return differences
    with_action = env.rand_action(reset_td.copy())
    differences += _differences(
        "step", env, with_action, ("action", "state"), check_dtype
    )  # before the step changes masks
    with _watch_step(env) as step_faults:
        step_td = env.step(with_action)
    differences += _differences("step", env, step_td.get("next"), ("observation", "reward", "done"), check_dtype)
    differences += _size_differences("step", fake, step_td)
    break_options = (True, False) if break_when_any_done == "both" else (break_when_any_done,)
    for break_option in break_options:
        if differences:
            break
        initial_td = None if tensordict is None else tensordict.copy()
        runner: Any = env  # its class may override the rollout
        rollout = runner.rollout(
            3, return_contiguous=return_contiguous, break_when_any_done=break_option, tensordict=initial_td
        )
        for step in rollout.unbind(env.batch_dims if env.batch_locked else rollout.batch_dims - 1):
            next_td = step.get("next")
            differences += _differences("rollout", env, next_td, ("observation", "reward", "done"), check_dtype)
    return differences or step_faults


@contextmanager
def _watch_step(env: EnvBase) -> Iterator[list[str]]:
    """Yields a list of lines about `_step` calls in the context: done flags that miss, and inputs that change."""
    base: Any = env
    while (inner := vars(base)["_modules"].get("base_env")) is not None:
        base = inner
    step, lines = base._step, []

    def watched_step(tensordict: TensorDictBase) -> TensorDictBase:
        inputs_before = _inputs(base, tensordict.clone())
        result = step(tensordict)
        if not isinstance(result, TensorDictBase):
            return result  # the environment raises an error
        lines.extend(
            f"step: {key!r} (done_spec): _step returns no done flag, so episodes never end. Return it, False if they "
            "do not"
            for prefix, key in base._done_keys_by_prefix.items()
            if all(result.get(join_key(prefix, flag), None) is None for flag in FLAGS)
        )
        lines.extend(
            f"step: {key!r}: _step changes its input in place. Return a new tensor, or change a clone"
            for (key, before), (_, after) in zip(inputs_before, _inputs(base, tensordict), strict=True)
            if not torch.equal(before.nan_to_num(), after.nan_to_num())
        )
        return result

    vars(base)["_step"] = watched_step
    try:
        yield lines
    finally:
        del vars(base)["_step"]


def _inputs(env: EnvBase, data: TensorDictBase) -> list[tuple[Key, torch.Tensor]]:
    entries = [entry for name in ("action", "state", "observation") for entry in leaf_values(env, name, data)]
    return [(key, value) for key, _, value in entries if isinstance(value, torch.Tensor)]


def _differences(
    method: str, env: EnvBase, data: TensorDictBase, names: tuple[str, ...], check_dtype: bool
) -> list[str]:
    """Returns a line per difference between `data` and the specs of these names."""
    lines: list[str] = []
    for name in names:
        for key, spec, value in leaf_values(env, name, data):
            reason = _difference(spec, value, check_dtype)
            lines += [] if reason is None else [f"{method}: {key!r} ({name}_spec): {reason}"]
    if "observation" in names:
        known = leaves_of(*(env._full(name) for name in (*INPUTS, *OUTPUTS)))
        rows = data.tensordicts if isinstance(data, LazyStackedTensorDict) else [data]
        returned = dict.fromkeys(key for row in rows for key in row.keys(include_nested=True, leaves_only=True))
        lines += [f"{method}: {key!r}: {_unknown_reason(key)}" for key in returned if key not in known]
    return lines


def _unknown_reason(key: Key) -> str:
    """Returns what is wrong with an entry that no spec has."""
    if split_key(key)[1] == "reward":
        return "returned, but there is no spec of this reward. Set reward_spec"
    return "returned, but not in observation_spec"


def _size_differences(method: str, expected: Any, data: Any, prefix: Prefix = ()) -> list[str]:
    """Returns a line per nested TensorDict of `data` with another batch size than in `expected`, which may be None."""
    if expected is None:
        return []
    lines: list[str] = []
    extra_sizes = data.batch_size[: data.batch_dims - expected.batch_dims]
    if isinstance(data, LazyStackedTensorDict) and not extra_sizes:  # its rows may have different shapes
        rows = zip(expected.unbind(data.stack_dim), data.unbind(data.stack_dim), strict=True)
        return [line for pair in rows for line in _size_differences(method, *pair, prefix)]
    for name in {*expected.keys()} & {*data.keys()}:
        group, expected_group = data.get(name), expected.get(name)
        if not is_tensor_collection(group) or is_non_tensor(group):
            continue
        key, expected_size = join_key(prefix, name), (*extra_sizes, *expected_group.batch_size)
        if tuple(group.batch_size) != expected_size:
            found = tuple(group.batch_size)
            lines.append(f"{method}: {key!r}: expected batch size {expected_size}, found {found}")
        else:
            lines += _size_differences(method, expected_group, group, (*prefix, name))
    return lines


def _difference(spec: Any, value: object, check_dtype: bool) -> str | None:
    if value is None:
        return "expected, but missing"
    if not isinstance(value, torch.Tensor):
        return spec.mismatch(value)
    return form_difference(spec, value, check_dtype) or spec.mismatch(value.to(spec.dtype))
