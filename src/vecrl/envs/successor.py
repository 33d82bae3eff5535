"""From one step to the next: what "next" holds becomes the root.

Knows TensorDicts and keys, not environments.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tensordict import LazyStackedTensorDict, TensorDictBase, is_non_tensor, is_tensor_collection

from .owner import Key

Keys = Key | Sequence[Key]


def step_mdp(
    tensordict: TensorDictBase,
    next_tensordict: TensorDictBase | None = None,
    keep_other: bool = True,
    exclude_reward: bool = True,
    exclude_done: bool = False,
    exclude_action: bool = True,
    reward_keys: Keys = "reward",
    done_keys: Keys = "done",
    action_keys: Keys = "action",
) -> TensorDictBase:
    """The root of the next step: what `tensordict` holds under "next", and what of its own root is to be kept.

    Args:
        tensordict: what `step` returned.
        next_tensordict: where to write the result; a new one by default.
        keep_other: keep entries of the root that "next" has no newer ones of.
        exclude_reward: leave out the rewards.
        exclude_done: leave out the done flags.
        exclude_action: leave out the actions.
        reward_keys, done_keys, action_keys: which these are, a key or a list of them.

    >>> from tensordict import TensorDict
    >>> td = TensorDict({"action": 1, "obs": 0, "next": TensorDict({"obs": 1, "reward": 2, "done": False})})
    >>> sorted(step_mdp(td).items())
    [('done', tensor(False)), ('obs', tensor(1))]
    """
    if isinstance(tensordict, LazyStackedTensorDict):  # whose entries may have no common shape
        switches = keep_other, exclude_reward, exclude_done, exclude_action, reward_keys, done_keys, action_keys
        dim = tensordict.stack_dim
        parts = [step_mdp(part, None, *switches) for part in tensordict.unbind(dim)]
        return _written(LazyStackedTensorDict.lazy_stack(parts, dim), next_tensordict)
    new = tensordict.get("next")
    gone: list[Key] = []
    if exclude_reward:
        gone += as_keys(reward_keys)
    if exclude_done:
        gone += as_keys(done_keys)
    if keep_other:
        result = overlaid(tensordict.exclude("next", *as_keys(action_keys) if exclude_action else ()), new)
    else:
        result = new.copy()
        if not exclude_action:
            for key in as_keys(action_keys):
                result.set(key, tensordict.get(key))
    result = result.exclude(*gone, inplace=True) if gone else result
    return _written(result, next_tensordict)


def _written(result: TensorDictBase, where: TensorDictBase | None) -> TensorDictBase:
    return result if where is None else where.update(result)


def as_keys(keys: Any) -> list[Key]:
    """A key (text, or a tuple of text) or a sequence of keys, as a list.

    >>> as_keys("done"), as_keys(("agents", "done")), as_keys(["done", ("agents", "done")])
    (['done'], [('agents', 'done')], ['done', ('agents', 'done')])
    """
    if isinstance(keys, str) or (isinstance(keys, tuple) and all(isinstance(k, str) for k in keys)):
        return [keys]
    return list(keys)


def overlaid(base: TensorDictBase, top: TensorDictBase) -> TensorDictBase:
    """A new TensorDict with the entries of both, those of `top` where both have one. Values are not copied."""
    result = base.copy()
    value: Any
    for key, value in top.items():
        below = result.get(key, None)
        if below is not None and _is_branch(value) and _is_branch(below):
            value = overlaid(below, value)
        result.set(key, value)
    return result


def _is_branch(value: Any) -> bool:
    return is_tensor_collection(value) and not is_non_tensor(value)
