"""Checks that environments return what their specs say; one message lists all differences.

This module must not know how environments step.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from tensordict import LazyStackedTensorDict, TensorDictBase, is_non_tensor, is_tensor_collection

from ..errors import SpaceError
from ..specs import StackedComposite
from .adapters import adapt_env
from .env_specs import EnvSpecs
from .keys import FLAGS, INPUTS, OUTPUTS, Key, Prefix, join_key, split_key
from .step_mdp import leaves_of
from .step_validation import form_difference, leaf_values

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
