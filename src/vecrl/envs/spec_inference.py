"""Infers the specs of an environment from the data that its `_reset` and `_step` return."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from tensordict import TensorDictBase, is_non_tensor, is_tensor_collection, is_tensorclass

from ..errors import SpaceError
from ..specs import Categorical, Composite, NonTensor, TensorSpec, Unbounded
from .entries.keys import FLAGS, Key, join_key, split_key
from .entries.step_mdp import as_keys
from .env_specs import EnvSpecs

Env = TypeVar("Env", bound=EnvSpecs)
Policy = Callable[[TensorDictBase], TensorDictBase | None]
ResetAndStep = tuple[Callable[[TensorDictBase | None], TensorDictBase], Callable[[TensorDictBase], TensorDictBase]]


def make_composite_from_td(
    data: TensorDictBase, *, unsqueeze_null_shapes: bool = True, dynamic_shape: bool = False
) -> Composite:
    """Returns unbounded specs with the shapes, dtypes, devices and tensorclasses of `data`.

    Args:
        data: any TensorDict or tensorclass, also with nested and non-tensor entries.
        unsqueeze_null_shapes: give tensors of shape `()` the shape `(1,)`.
        dynamic_shape: use -1 for all sizes after the batch dimensions.

    >>> from tensordict import TensorDict
    >>> spec = make_composite_from_td(TensorDict({"obs": torch.zeros(3, 2), "text": "hello"}))
    >>> spec["obs"].shape, type(spec["text"]).__name__
    (torch.Size([3, 2]), 'NonTensor')
    """
    entries: dict[str, TensorSpec] = {}
    data_cls = type(data) if is_tensorclass(data) else None
    if data_cls is not None:
        data = data.to_tensordict()  # in which fields that are no tensors are non-tensor data
    for name in data.keys():  # noqa: SIM118 -- a TensorDict iterates over its rows
        value: Any = data.get(name)
        if is_non_tensor(value):
            entries[name] = NonTensor(value.shape, device=value.device, example_data=value.data)
        elif is_tensor_collection(value):
            entries[name] = make_composite_from_td(
                value, unsqueeze_null_shapes=unsqueeze_null_shapes, dynamic_shape=dynamic_shape
            )
        else:
            entries[name] = _unbounded_like(value, data.batch_dims, unsqueeze_null_shapes, dynamic_shape)
    return Composite(entries, shape=data.shape, device=data.device, data_cls=data_cls)


def _unbounded_like(value: torch.Tensor, batch_dims: int, unsqueeze: bool, dynamic_shape: bool) -> TensorSpec:
    shape = value.shape
    if dynamic_shape:
        shape = (*shape[:batch_dims], *[-1] * (len(shape) - batch_dims))
    if not shape and unsqueeze:
        shape = (1,)
    return Unbounded(shape, dtype=value.dtype, device=value.device)


def auto_specs(
    env: Env,
    reset_and_step: ResetAndStep,
    policy: Policy,
    *,
    tensordict: TensorDictBase | None = None,
    action_key: Key | Sequence[Key] = "action",
    done_key: Key | Sequence[Key] | None = None,
    observation_key: Key | Sequence[Key] = "observation",
    reward_key: Key | Sequence[Key] = "reward",
) -> Env:
    """Infers the specs of an environment from a reset and two steps, and sets them.

    Sizes that differ between the steps are -1 in the specs.

    Args:
        env: the environment; its batch size must be correct. It is returned.
        reset_and_step: its `_reset` and `_step`.
        policy: writes the actions.
        tensordict: the argument of the reset.
        action_key, observation_key, reward_key: required keys, a single key or a list. All other results of a step are
            observations, and all other inputs are states.
        done_key: the done flags; by default all entries named "done", "terminated" or "truncated".

    Raises:
        SpaceError: if a required entry is missing.
    """
    reset_td, steps = _probe_steps(reset_and_step, policy, tensordict)
    next_td = steps[0].get("next")
    dones = _done_flag_keys(next_td) if done_key is None else as_keys(done_key)
    rewards, actions, obs = as_keys(reward_key), as_keys(action_key), as_keys(observation_key)
    missing = [key for key in (*rewards, *dones, *obs) if next_td.get(key, None) is None]
    missing += [key for key in actions if steps[0].get(key, None) is None]
    if missing:
        raise SpaceError(f"Expected the entries {missing} from the environment or the policy, got none of these.")
    observation_spec = _spec_of_steps(steps, lambda step: step.get("next"))
    flag_and_reward_keys = {*rewards, *dones, *(join_key(split_key(key)[0], flag) for key in dones for flag in FLAGS)}
    env.full_action_spec = _spec_of_steps(steps, lambda step: step.select(*actions))
    env.full_done_spec = _select_leaves(observation_spec, dones, env.batch_size, _flag_spec)
    env.full_reward_spec = _select_leaves(observation_spec, rewards, env.batch_size, Unbounded)
    env.full_observation_spec = observation_spec.select(
        *[key for key in observation_spec.keys(True, True) if key not in flag_and_reward_keys]
    )
    other_keys = {*flag_and_reward_keys, *actions, *reset_td.keys(True, True), *next_td.keys(True, True)}
    state = [key for key in steps[0].exclude("next").keys(True, True) if key not in other_keys]
    env.full_state_spec = _spec_of_steps(steps, lambda step: step.exclude("next")).select(*state)
    return env


def _probe_steps(
    reset_and_step: ResetAndStep, policy: Policy, tensordict: TensorDictBase | None
) -> tuple[TensorDictBase, list[TensorDictBase]]:
    """Returns the result of a reset and of two steps after it, made without the specs, which are not known yet."""
    reset, step = reset_and_step
    data = reset(None if tensordict is None else tensordict.copy())
    reset_td = data.copy()
    if tensordict is not None:
        data = tensordict.copy().update(data)
    steps: list[TensorDictBase] = []
    for _ in range(2):
        data = data.copy()
        policy_result = policy(data)
        data = data if policy_result is None else policy_result
        data = data.set("next", step(data))
        steps.append(data)
        data = data.exclude("next").update(data.get("next"))
    return reset_td, steps


def _spec_of_steps(steps: list[TensorDictBase], select: Callable[[TensorDictBase], TensorDictBase]) -> Composite:
    """Returns the specs of a part of every step, with -1 for sizes that differ between steps."""
    spec, *other_specs = (make_composite_from_td(select(step), unsqueeze_null_shapes=False) for step in steps)
    for key in spec.keys(True, True):
        shapes = {tuple(other[key].shape) for other in other_specs if key in other.keys(True, True)} | {spec[key].shape}
        if len(shapes) > 1:
            sizes = [
                candidates.pop() if len(candidates := set(column)) == 1 else -1 for column in zip(*shapes, strict=True)
            ]
            spec[key] = Unbounded(sizes, dtype=spec[key].dtype, device=spec[key].device)
    return spec


def _done_flag_keys(data: TensorDictBase) -> list[Key]:
    return [key for key in data.keys(True, True) if split_key(key)[1] in FLAGS]


def _select_leaves(
    spec: Composite, keys: Sequence[Key], batch_size: torch.Size, make: Callable[..., TensorSpec]
) -> Composite:
    """Returns the specs of rewards or flags; those of batch size get a dimension of size 1."""
    composite = Composite(shape=batch_size)
    for key in keys:
        leaf = spec[key]
        shape = torch.Size([*batch_size, 1]) if leaf.shape == batch_size else leaf.shape
        composite[key] = make(shape, dtype=leaf.dtype, device=leaf.device)
    return composite


def _flag_spec(shape: torch.Size, dtype: torch.dtype, device: torch.device | None) -> TensorSpec:
    return Categorical(2, shape, dtype=torch.bool, device=device)
