"""Rollouts: step an environment and stack the steps along a dimension named "time"."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sized
from inspect import Parameter, signature
from itertools import islice, repeat
from operator import index
from typing import TYPE_CHECKING, Any

import torch
from tensordict import LazyStackedTensorDict, TensorDict, TensorDictBase
from tensordict.nn import TensorDictModule

from ...errors import SpaceError
from ...validation import check_callable, parse_device
from ..check_specs import check_actions, check_all_actions, check_first_step
from ..entries.keys import join_key, split_key
from ..entries.records import RecordLoop, record_loop
from ..entries.row_masks import merge_into, rows_done
from ..env_specs import Device
from ..fast_paths import overrides_bypassed
from .array_rollout import draw_actions
from .trajectory_buffers import StepEntries, TensorDictBuffer

if TYPE_CHECKING:
    from ..base import EnvBase

Policy = Callable[[TensorDictBase], Any]


def rollout(
    env: EnvBase,
    max_steps: int,
    policy: Policy | None = None,
    callback: Callable[[Any, TensorDictBase], object] | None = None,
    *,
    actions: Iterable[object] | None = None,
    auto_reset: bool = True,
    auto_cast_to_device: bool = False,
    break_when_any_done: bool | None = None,
    break_when_all_done: bool | None = None,
    return_contiguous: bool | None = None,
    tensordict: TensorDictBase | None = None,
    set_truncated: bool = False,
    out: TensorDictBase | None = None,
    trust_policy: bool = False,
    storing_device: Device = None,
) -> TensorDictBase:
    """Steps an environment up to `max_steps` times and returns the steps.

    Args:
        env: the environment to step.
        max_steps: 1 or more.
        policy: any function or module that takes the TensorDict of a step and writes actions into it, or returns
            another TensorDict, which is merged into it, or the action; random actions by default. A single argument
            with the name "data", or with "td" or "tensordict" in its name or annotation, is that TensorDict. Otherwise
            a function or module without `in_keys` gets the observations named like its arguments or, if it has as many
            arguments as there are observations, these in their order, and returns the action; else it gets the
            TensorDict. Gradients are recorded: use `torch.no_grad()` if you need none.
        callback: called with the environment and the TensorDict of each step, "next" included.
        actions: instead of a policy: a tensor or TensorDict `[*batch_size, time, ...]`, or any iterable of one action
            per step. The rollout ends after the last action.
        auto_reset: reset first; otherwise start from `tensordict`, after a reset of its rows that are done.
        auto_cast_to_device: move the policy's input to its device, and its actions back.
        break_when_any_done: stop after the first step in which any row is done (the default). If it is False, rows that
            are done are reset.
        break_when_all_done: stop when all rows are done; rows that are done earlier are not stepped further.
        return_contiguous: True stacks the steps into one contiguous tensor per leaf, in the order of the dimensions.
            None does so too, unless a shape is dynamic. False stacks the steps lazily, without a copy.
        tensordict: the argument of the reset, or the start if `auto_reset` is False.
        set_truncated: mark the last step as truncated and done.
        out: the TensorDict to write the result into.
        trust_policy: do not check that the policy returns a TensorDict.
        storing_device: the device of the result.

    Returns:
        A TensorDict `[*batch_size, steps]`; its last batch dimension is named "time".

    Raises:
        ValueError, TypeError: if arguments are invalid or contradict each other.
        SpaceError: if the first step, or `actions`, have another shape, dtype or device than the specs.
    """
    _check(env, max_steps, policy, callback, actions, tensordict, auto_reset)
    if out is not None and not isinstance(out, TensorDictBase):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"Expected out to be a TensorDict to write the result into, or None, got {out!r:.80}.")
    stop_rule = _StopRule(env, bool(break_when_all_done), break_when_any_done, set_truncated)
    if not auto_reset:
        env._check_open()
    batch_dims = env.batch_dims if env.batch_locked or tensordict is None else tensordict.batch_dims
    action_iter, max_steps = _iterate_actions(actions, batch_dims, max_steps, set_truncated)
    has_no_hooks = policy is None and callback is None and tensordict is None and out is None and storing_device is None
    fast_path_allowed = (
        has_no_hooks
        and return_contiguous is not False
        and not set_truncated
        and (stop_rule.stops_at_first_done or stop_rule.never_stops)
    )
    if fast_path_allowed and not env.is_closed and isinstance(actions, torch.Tensor | None):
        random_state = None if actions is not None else _GeneratorState(env.full_action_spec.device)
        result = rollout_at_once(env, max_steps, actions, stop_rule.stops_at_first_done)
        if result is not None:
            if random_state is not None and result.shape[-1] < max_steps:  # actions were sampled for all steps
                random_state.restore()
                draw_actions(env.action_spec, result.shape[-1])
            return result if result.is_contiguous() else result.contiguous()
    act = _make_act(env, policy, auto_cast_to_device, trust_policy)
    length_is_known = stop_rule.never_stops and (actions is None or isinstance(action_iter, Sized))
    reset_td = _first_root(env, None if tensordict is None else tensordict.copy(), auto_reset)
    contiguous = not env.has_dynamic_specs if return_contiguous is None else return_contiguous
    device = None if storing_device is None else parse_device(storing_device)
    step_buffer = _StepBuffer(env, (max_steps, length_is_known), contiguous, out)

    def on_step(data: Any) -> None:
        if callback is not None:
            callback(env, data)
        step_buffer.add(data if device is None else data.to(device))

    store = step_buffer.add if callback is None and device is None else on_step
    by_records = (
        all(argument is None for argument in (actions, callback, device, out))
        and contiguous
        and not set_truncated
        and (stop_rule.stops_at_first_done or stop_rule.never_stops)
    )
    loop = record_loop(env) if by_records else None
    _play(env, reset_td, act, islice(action_iter, max_steps), stop_rule, max_steps, store, loop)
    return step_buffer.to_tensordict()


class _GeneratorState:
    """The state of torch's default generator of a device, None for the CPU's, when the object is made."""

    def __init__(self, device: torch.device | None):
        on_cpu = device is None or device.type in ("cpu", "meta")  # nothing is sampled on the latter
        self._module: Any = torch.random if on_cpu else torch.get_device_module(device)
        self._arguments = () if on_cpu else (device,)
        self._state = self._module.get_rng_state(*self._arguments)

    def restore(self) -> None:
        self._module.set_rng_state(self._state, *self._arguments)


def rollout_at_once(
    env: EnvBase, steps: int, actions: torch.Tensor | None, break_when_any_done: bool
) -> TensorDictBase | None:
    """Returns the result of `env._rollout_at_once`, or None where single steps could differ from it.

    They could if a subclass overrides a method that `_rollout_at_once` does not call, or if types are checked.
    """
    if env.run_type_checks or overrides_bypassed(type(env), "_rollout_at_once"):
        return None
    return env._rollout_at_once(steps, actions, break_when_any_done)


def _first_root(env: EnvBase, tensordict: TensorDictBase | None, auto_reset: bool) -> TensorDictBase:
    """Returns the root of the first step; `tensordict` is updated in place."""
    if auto_reset or tensordict is None:
        return env.reset(tensordict)
    env._check_batch(tensordict)
    return env.maybe_reset(env._complete_flags(tensordict))


def _play(
    env: EnvBase,
    data: TensorDictBase,
    act: Policy,
    action_iter: Iterable[object],
    stop_rule: _StopRule,
    max_steps: int,
    store: Callable[[StepEntries], None],
    loop: RecordLoop | None,
) -> None:
    """Steps the environment from the root `data` and stores each step; after the first over records, with a `loop`."""
    for step_index, action in enumerate(action_iter, 1):
        data = act(data) if action is None else _with_action(env, data, action)
        is_last, root = step_index == max_steps, None
        if step_index == 1:
            check_actions(env, data, action is not None)
        elif loop is not None and loop.set_root(data):
            loop.step(reset_done=stop_rule.never_stops and not is_last)
            store(loop.entries())
            if is_last or (loop.is_done and not stop_rule.never_stops):
                return
            data = loop.next_root()
            continue
        if stop_rule.never_stops and not is_last:
            data, root = env.step_and_maybe_reset(data)
        else:
            data = env.step(data)
        if step_index == 1:
            check_first_step(env, data.get("next"))
        if is_last:
            stop_rule.truncate(data)
        store(data)
        if root is not None:
            data = root
        elif is_last or stop_rule.is_over(data):
            return
        else:
            data = stop_rule.next_root(data)


class _StopRule:
    """Decides when a rollout ends, and returns the root of the next step otherwise."""

    def __init__(self, env: EnvBase, stop_when_all: bool, stop_when_any: bool | None, set_truncated: bool):
        if stop_when_any and stop_when_all:
            raise TypeError("Expected break_when_any_done or break_when_all_done, got both. Give one of them.")
        self._env = env
        self._stop_when_all = stop_when_all
        self._stop_when_any = not stop_when_all if stop_when_any is None else stop_when_any
        self.stops_at_first_done = self._stop_when_any or (stop_when_all and not env.batch_size)
        self.never_stops = not (self._stop_when_any or stop_when_all)
        self._truncated = [join_key(prefix, "truncated") for prefix in env.done_prefixes]
        if not set_truncated:
            self._truncated = []
        elif not set(self._truncated) <= set(env.done_keys):
            raise SpaceError(
                f"Expected a 'truncated' flag for set_truncated, got {env.done_keys}. Call env.add_truncated_keys()."
            )

    def truncate(self, data: TensorDictBase) -> None:
        """Marks the last step as truncated, if `set_truncated` asks for it."""
        next_td = data.get("next")
        for key in self._truncated:
            true_flags = torch.ones_like(next_td.get(key))
            next_td.set(key, true_flags).set(join_key(split_key(key)[0], "done"), true_flags)

    def is_over(self, data: TensorDictBase) -> bool:
        """Returns whether the rollout ends after this step."""
        if self._stop_when_any:
            return self._env.any_done(data.get("next"))
        return self._stop_when_all and all(
            bool(data.get("next").get(join_key(prefix, "done")).all()) for prefix in self._env.outer_done_prefixes
        )

    def next_root(self, data: TensorDictBase) -> TensorDictBase:
        """Returns the root of the next step, with a "_step" mask that excludes the rows that are done."""
        root = self._env.step_mdp(data)
        if self._stop_when_any:
            return root
        done = rows_done(root, self._env.outer_done_prefixes, require_all=True)
        return root.set("_step", ~done) if bool(done.any()) else root


def _make_act(env: EnvBase, policy: Policy | None, cast: bool, trust: bool) -> Policy:
    if policy is None:
        return env.rand_action
    device = _device_of(policy) if cast else None
    policy = _as_tensordict_module(env, policy)

    def act(data: TensorDictBase) -> TensorDictBase:
        policy_td = data if device is None else data.to(device)
        result = policy(policy_td)
        if isinstance(result, torch.Tensor) and len(env.action_keys) == 1:
            result = policy_td.set(env.action_key, result)
        elif result is None:
            result = policy_td
        elif not trust and not isinstance(result, TensorDictBase):
            raise TypeError(f"Expected the policy to return a TensorDict, got {result!r}. Return one with the action.")
        if result is not data:
            result = merge_into(data, result)
        return result if device is None or env.device is None else result.to(env.device)

    return act


def _as_tensordict_module(env: EnvBase, policy: Any) -> Policy:
    """Converts a function or a module over tensors to a module over TensorDicts; returns any other policy unchanged."""
    if hasattr(policy, "in_keys"):
        return policy
    try:
        parameters = signature(policy.forward if isinstance(policy, torch.nn.Module) else policy).parameters.values()
    except ValueError:  # a function of a C extension
        return policy
    required = [p for p in parameters if p.default is p.empty and p.kind not in (p.KEYWORD_ONLY, p.VAR_KEYWORD)]
    names: list[Any] = [parameter.name for parameter in required]
    keys: list[Any] = list(env.observation_keys)
    text = f"{names[0]} {required[0].annotation}".lower() if len(names) == 1 else ""
    if not names or names == ["data"] or "td" in text or "tensordict" in text:
        return policy
    if set(names) <= set(keys):
        keys = names
    elif len(names) != len(keys) and [parameter.kind for parameter in required] != [Parameter.VAR_POSITIONAL]:
        return policy
    return TensorDictModule(policy, in_keys=keys, out_keys=list(env.action_keys))


def _device_of(policy: object) -> torch.device | None:
    if not isinstance(policy, torch.nn.Module):
        return None
    return next((tensor.device for tensor in (*policy.parameters(), *policy.buffers())), None)


def _check(
    env: EnvBase, max_steps: Any, policy: object, callback: object, actions: object, tensordict: Any, auto_reset: bool
) -> None:
    """Checks arguments of `rollout`."""
    try:
        count = index(max_steps)
    except TypeError:
        raise TypeError(f"Expected max_steps to be an int, got {max_steps!r}.") from None
    if count < 1:
        raise ValueError(f"Expected max_steps to be 1 or more, got {max_steps}.")
    if tensordict is not None:
        env._check_batch(tensordict)
    elif not auto_reset:
        raise ValueError("Expected a tensordict with auto_reset=False, got None. Give one, such as env.reset().")
    for name, function in (("policy", policy), ("callback", callback)):
        if function is not None:
            check_callable(name, function)
    if policy is not None and actions is not None:
        raise TypeError("Expected policy or actions, got both. Give one of them.")
    if actions is not None and not isinstance(actions, Iterable):
        raise TypeError(f"Expected actions to be a tensor, or one action for each step, got {actions!r:.80}.")
    if isinstance(actions, torch.Tensor):
        check_all_actions(env, actions)


def _iterate_actions(actions: object, batch_dims: int, max_steps: int, need_all: bool) -> tuple[Iterable[Any], int]:
    """Returns an iterable with one action per step (None where the policy acts), and the maximum number of steps.

    Args:
        actions: None, or an iterable of one action per step.
        batch_dims: the number of batch dimensions before time.
        max_steps: the requested number of steps.
        need_all: whether the last action must be known in advance.
    """
    if actions is None:
        return repeat(None), max_steps
    action_iter = _unbind_steps(actions, batch_dims)
    if need_all and not isinstance(action_iter, Sized):
        action_iter = list(islice(action_iter, max_steps))
    max_steps = min(max_steps, len(action_iter)) if isinstance(action_iter, Sized) else max_steps
    if not max_steps:
        raise ValueError("Expected actions for one step or more, got none.")
    return action_iter, max_steps


def _unbind_steps(actions: Any, batch_dims: int) -> Iterable[Any]:
    """Returns one action per step, as a sequence if the length is known."""
    if isinstance(actions, TensorDictBase | torch.Tensor):
        return actions.unbind(batch_dims)
    return actions


def _with_action(env: EnvBase, data: TensorDictBase, action: Any) -> TensorDictBase:
    if isinstance(action, TensorDictBase):
        return data.update(action.select(*env.action_keys))
    try:
        return data.set(env.action_key, action)
    except RuntimeError as error:
        raise SpaceError(
            f"Expected actions of shape {tuple(env.action_spec.shape)}, one for each step, got {action!r:.80}."
        ) from error


class _StepBuffer:
    """Collects the steps: in a `TensorDictBuffer` if the result is to be contiguous, otherwise in a list."""

    def __init__(
        self, env: EnvBase, trajectory_options: tuple[int, bool], contiguous: bool, out: TensorDictBase | None
    ):
        self._env = env
        self._out = out
        self._contiguous = contiguous
        self._trajectory_options = trajectory_options
        self._trajectory: TensorDictBuffer | None = None
        self._steps: list[TensorDictBase] = []

    def add(self, data: Any) -> None:
        if not self._steps and self._trajectory is None:
            self._dim = self._env.batch_dims if self._env.batch_locked else data.batch_dims
            if self._contiguous and self._out is None and type(data) is TensorDict:
                self._trajectory = TensorDictBuffer(self._dim, *self._trajectory_options)
        if self._trajectory is None:
            self._steps.append(data)
        else:
            self._trajectory.add(data)

    def _stack_steps(self) -> TensorDictBase:
        stack: Any = torch.stack  # which takes TensorDicts too
        try:
            return stack(self._steps, self._dim, out=self._out)
        except RuntimeError as error:
            batch = list(self._steps[0].batch_size)
            size = [*batch[: self._dim], len(self._steps), *batch[self._dim :]]
            destination = "" if self._out is None else f" into out, of batch size {list(self._out.batch_size)}"
            raise SpaceError(
                f"Expected steps that stack to a batch size of {size}{destination}, got shapes that do not fit. Use "
                "return_contiguous=False if shapes vary."
            ) from error

    def to_tensordict(self) -> TensorDictBase:
        if self._trajectory is not None:
            return self._trajectory.to_tensordict()
        if not self._steps:
            raise ValueError("Expected actions for one step or more, got none.")
        if self._contiguous or self._out is not None:
            result = self._stack_steps()
        else:
            result = LazyStackedTensorDict.lazy_stack(self._steps, self._dim, stack_dim_name="time")
        names = list(result.names)
        if names[self._dim] != "time":
            names[self._dim] = "time"
            result.names = names
        return result
