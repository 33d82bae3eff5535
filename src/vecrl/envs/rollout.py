"""Rollouts: play, and put the steps behind one another along a dimension named "time"."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sized
from inspect import signature
from itertools import islice, repeat
from operator import index
from typing import TYPE_CHECKING, Any, SupportsIndex

import torch
from tensordict import LazyStackedTensorDict, TensorDict, TensorDictBase
from tensordict.nn import TensorDictModule

from ..errors import SpaceError
from .check_specs import check_actions, check_all_actions, check_first_step
from .done_flags import rows_done
from .overrides import overrides_any
from .row_masks import merge_into
from .spec_container import join_key, split_key
from .trajectory import Trajectory

if TYPE_CHECKING:
    from .base import EnvBase

Policy = Callable[[TensorDictBase], Any]
_STEP_METHODS = ("reset", "step", "maybe_reset", "step_and_maybe_reset", "step_mdp", "_reset", "_step")


def rollout(
    env: EnvBase,
    max_steps: int,
    policy: Policy | None = None,
    callback: Callable[[Any, TensorDictBase], Any] | None = None,
    *,
    actions: Iterable[Any] | None = None,
    auto_reset: bool = True,
    auto_cast_to_device: bool = False,
    break_when_any_done: bool | None = None,
    break_when_all_done: bool | None = None,
    return_contiguous: bool | None = None,
    tensordict: TensorDictBase | None = None,
    set_truncated: bool = False,
    out: TensorDictBase | None = None,
    trust_policy: bool = False,
    storing_device: Any = None,
) -> TensorDictBase:
    """Step an environment up to `max_steps` times.

    Args:
        env: whom to step.
        max_steps: 1 or more.
        policy: any function or module that takes the TensorDict of a step and writes actions into it, or returns
            another TensorDict, the entries of which are merged into it; random actions by default. A module over
            tensors gets the observations that its arguments are named by, or the only one there is. Gradients flow:
            use `torch.no_grad()` where none are wanted.
        callback: called with the environment and the TensorDict of each step, "next" included.
        actions: instead of a policy: a tensor or TensorDict `[*batch_size, time, ...]`, or anything else that holds one
            action a step. The rollout ends with them.
        auto_reset: reset first; otherwise go on from `tensordict`, the rows of which that are done are reset first.
        auto_cast_to_device: move what the policy gets to its device, and its actions back.
        break_when_any_done: end with the first row that is done (the default). Where it is False, rows that are done
            begin anew.
        break_when_all_done: end when all rows are done; those that are done earlier are not stepped any more.
        return_contiguous: True stacks the steps into one block of memory a leaf, in the order of the dimensions. None
            does so with time in front, unless a shape is dynamic; False keeps the steps as they are, lazily stacked.
        tensordict: for the reset, or to go on from.
        set_truncated: mark the last step truncated and done.
        out: where to write the result.
        trust_policy: take what the policy returns for a TensorDict without looking.
        storing_device: where the result is to be.

    Returns:
        A TensorDict `[*batch_size, steps]` whose last batch dimension is named "time".

    Raises:
        ValueError, TypeError: arguments that contradict each other.
        SpaceError: the first step, or actions that were given, have another shape, dtype or device than the specs say.
    """
    _check(max_steps, auto_reset or tensordict is not None)
    stop_rule = _StopRule(env, bool(break_when_all_done), break_when_any_done, set_truncated)
    if not auto_reset:
        env._check_open()
    if policy is not None and actions is not None:
        raise TypeError("policy and actions both say what to do: give one of them.")
    if isinstance(actions, torch.Tensor):
        check_all_actions(env, actions)
    action_iter, max_steps = _iterate_actions(actions, env.batch_dims, max_steps, set_truncated)
    has_no_hooks = policy is None and callback is None and tensordict is None and out is None and storing_device is None
    fast_path_allowed = (
        has_no_hooks
        and return_contiguous is not False
        and not set_truncated
        and (stop_rule.stops_at_first_done or stop_rule.never_stops)
    )
    if fast_path_allowed and not env.is_closed and isinstance(actions, torch.Tensor | None):
        result = rollout_at_once(env, max_steps, actions, stop_rule.stops_at_first_done)
        if result is not None:
            return result.contiguous() if return_contiguous else result
    act = _make_act(env, policy, auto_cast_to_device, trust_policy)
    length_is_known = stop_rule.never_stops and (actions is None or isinstance(action_iter, Sized))
    reset_td = _first(env, None if tensordict is None else tensordict.copy(), auto_reset)
    contiguous = not env.has_dynamic_specs if return_contiguous is None else return_contiguous
    step_buffer = _StepBuffer(env, (max_steps, length_is_known, return_contiguous is None), contiguous, out)
    for data in _steps(env, reset_td, act, islice(action_iter, max_steps), stop_rule, max_steps):
        if callback is not None:
            callback(env, data)
        step_buffer.add(data if storing_device is None else data.to(storing_device))
    return step_buffer.to_tensordict()


def rollout_at_once(env: EnvBase, steps: int, actions: Any, break_when_any_done: bool) -> TensorDictBase | None:
    """What `env._rollout_at_once` gives, where step by step would give the same: what it leaves out is no subclass's
    own."""
    defining_class = next(cls for cls in type(env).__mro__ if "_rollout_at_once" in vars(cls))
    names = _STEP_METHODS if actions is not None else (*_STEP_METHODS, "rand_action")
    return (
        None
        if env.run_type_checks or overrides_any(env, defining_class, names)
        else env._rollout_at_once(steps, actions, break_when_any_done)
    )


def _first(env: EnvBase, action_iter: TensorDictBase | None, auto_reset: bool) -> TensorDictBase:
    """Returns the root of the first step; `action_iter` is updated in place."""
    if auto_reset or action_iter is None:
        return env.reset(action_iter)
    env._check_batch(action_iter)
    return env.maybe_reset(env._complete_flags(action_iter))


def _steps(
    env: EnvBase, data: TensorDictBase, act: Policy, action_iter: Iterable[Any], stop_rule: _StopRule, max_steps: int
) -> Iterator[TensorDictBase]:
    for step_index, action in enumerate(action_iter, 1):
        data = act(data) if action is None else _with_action(env, data, action)
        if step_index == 1:
            check_actions(env, data, action is not None)
        is_last, root = step_index == max_steps, None
        if stop_rule.never_stops and not is_last:
            data, root = env.step_and_maybe_reset(data)
        else:
            data = env.step(data)
        if step_index == 1:
            check_first_step(env, data.get("next"))
        if is_last:
            stop_rule.truncate(data)
        yield data
        if is_last or stop_rule.is_over(data):
            return
        data = stop_rule.next_root(data) if root is None else root


class _StopRule:
    """When a rollout ends, and how it goes on otherwise."""

    def __init__(self, env: EnvBase, stop_when_all: bool, stop_when_any: bool | None, set_truncated: bool):
        if stop_when_any and stop_when_all:
            raise TypeError("break_when_any_done and break_when_all_done contradict each other: give one of them.")
        self._env = env
        self._stop_when_all = stop_when_all
        self._stop_when_any = not stop_when_all if stop_when_any is None else stop_when_any
        self.stops_at_first_done = self._stop_when_any or (stop_when_all and not env.batch_size)
        self.never_stops = not (self._stop_when_any or stop_when_all)
        self._truncated = [join_key(prefix, "truncated") for prefix in env.done_prefixes]
        if not set_truncated:
            self._truncated = []
        elif not set(self._truncated) <= set(env.done_keys):
            raise SpaceError("set_truncated needs a 'truncated' flag: call env.add_truncated_keys() first.")

    def truncate(self, data: TensorDictBase) -> None:
        """Mark a last step."""
        next_td = data.get("next")
        for key in self._truncated:
            true_flags = torch.ones_like(next_td.get(key))
            next_td.set(key, true_flags).set(join_key(split_key(key)[0], "done"), true_flags)

    def is_over(self, data: TensorDictBase) -> bool:
        """Whether this step was the last."""
        if self._stop_when_any:
            return self._env.any_done(data.get("next"))
        return self._stop_when_all and all(
            bool(data.get("next").get(join_key(prefix, "done")).all()) for prefix in self._env.done_prefixes
        )

    def next_root(self, data: TensorDictBase) -> TensorDictBase:
        """The root of the next step, where rows that are done stay so."""
        root = self._env.step_mdp(data)
        if self._stop_when_any:
            return root
        done = rows_done(root, self._env.done_prefixes, require_all=True)
        return root.set("_step", ~done) if bool(done.any()) else root


def _make_act(env: EnvBase, policy: Policy | None, cast: bool, trust: bool) -> Policy:
    if policy is None:
        return env.rand_action
    device = _device_of(policy) if cast else None
    policy = _as_tensordict_module(env, policy)

    def act(data: TensorDictBase) -> TensorDictBase:
        action_iter = data if device is None else data.to(device)
        result = policy(action_iter)
        if result is None:
            result = action_iter
        elif not trust and not isinstance(result, TensorDictBase):
            raise TypeError(f"Expected the policy to return a TensorDict, got {result!r}. Return one with the action.")
        if result is not data:
            result = merge_into(data, result)
        return result if device is None or env.device is None else result.to(env.device)

    return act


def _as_tensordict_module(env: EnvBase, policy: Any) -> Policy:
    """A module over tensors as one over TensorDicts; anything else as it is."""
    if not isinstance(policy, torch.nn.Module) or hasattr(policy, "in_keys"):
        return policy
    parameters = [
        parameter for parameter in signature(policy.forward).parameters.values() if parameter.default is parameter.empty
    ]
    names: list[Any] = [parameter.name for parameter in parameters]
    signature_text = f"{names[0]} {parameters[0].annotation}".lower() if len(names) == 1 else ""
    if "td" in signature_text or "tensordict" in signature_text:
        return policy
    keys: list[Any] = list(env.observation_keys)
    if not names or not set(names) <= set(keys):
        if len(names) != 1 or len(keys) != 1:
            return policy
        return TensorDictModule(policy, in_keys=keys, out_keys=list(env.action_keys))
    return TensorDictModule(policy, in_keys=[*names], out_keys=list(env.action_keys))


def _device_of(policy: Any) -> torch.device | None:
    if not isinstance(policy, torch.nn.Module):
        return None
    return next((tensor.device for tensor in (*policy.parameters(), *policy.buffers())), None)


def _check(max_steps: Any, has_start: bool) -> None:
    if not isinstance(max_steps, SupportsIndex):
        raise TypeError(f"Expected max_steps as an int, but {max_steps!r} came.")
    if index(max_steps) < 1:
        raise ValueError(f"Expected max_steps of 1 or more, but {max_steps} came.")
    if not has_start:
        raise ValueError("auto_reset=False goes on from a tensordict: give one, such as what env.reset() returns.")


def _iterate_actions(actions: Any, batch_dims: int, max_steps: int, need_all: bool) -> tuple[Iterable[Any], int]:
    """One action a step (None: none is given), and how many steps there may be.

    Args:
        actions: None, or whatever holds one action a step.
        batch_dims: of the environment.
        max_steps: how many steps are asked for.
        need_all: whether it must be known which one is the last.
    """
    if actions is None:
        return repeat(None), max_steps
    action_iter = _unbind_steps(actions, batch_dims)
    if need_all and not isinstance(action_iter, Sized):
        action_iter = list(islice(action_iter, max_steps))
    max_steps = min(max_steps, len(action_iter)) if isinstance(action_iter, Sized) else max_steps
    if not max_steps:
        raise ValueError("Expected actions for one step or more, but there were none.")
    return action_iter, max_steps


def _unbind_steps(actions: Any, batch_dims: int) -> Iterable[Any]:
    """One action a step: with a length where that is known."""
    if isinstance(actions, TensorDictBase | torch.Tensor):
        return actions.unbind(batch_dims)
    return actions


def _with_action(env: EnvBase, data: TensorDictBase, action: Any) -> TensorDictBase:
    if isinstance(action, TensorDictBase):
        return data.update(action.select(*env.action_keys))
    return data.set(env.action_key, action)


class _StepBuffer:
    """The steps so far: as a recording where they are to be contiguous, otherwise as they are."""

    def __init__(
        self, env: EnvBase, trajectory_options: tuple[int, bool, bool], contiguous: bool, out: TensorDictBase | None
    ):
        self._env = env
        self._out = out
        self._contiguous = contiguous
        self._trajectory_options = trajectory_options
        self._trajectory: Trajectory | None = None
        self._steps: list[TensorDictBase] = []

    def add(self, data: TensorDictBase) -> None:
        if not self._steps and self._trajectory is None:
            self._dim = self._env.batch_dims if self._env.batch_locked else data.batch_dims
            if self._contiguous and self._out is None and type(data) is TensorDict:
                self._trajectory = Trajectory(self._dim, *self._trajectory_options)
        if self._trajectory is None:
            self._steps.append(data)
        else:
            self._trajectory.add(data)

    def _stack_steps(self) -> Any:
        stack: Any = torch.stack  # which takes TensorDicts too
        try:
            return stack(self._steps, self._dim, out=self._out)
        except RuntimeError as error:
            batch = list(self._steps[0].batch_size)
            size = [*batch[: self._dim], len(self._steps), *batch[self._dim :]]
            destination = "" if self._out is None else f" into out, of batch size {list(self._out.batch_size)}"
            raise SpaceError(
                f"Expected steps of one shape, which stack to a batch size of {size}{destination}, but they do not. "
                f"Sizes "
                "that vary are not for return_contiguous=True."
            ) from error

    def to_tensordict(self) -> TensorDictBase:
        if self._trajectory is not None:
            return self._trajectory.to_tensordict()
        if not self._steps:
            raise ValueError("Expected actions for one step or more, but there were none.")
        if self._contiguous or self._out is not None:
            result = self._stack_steps()
        else:
            result = LazyStackedTensorDict.lazy_stack(self._steps, self._dim)
        names = list(result.names)
        if names[self._dim] != "time":
            names[self._dim] = "time"
            result.names = names
        return result
