"""From one step to the next: what "next" holds becomes the root.

Knows TensorDicts and keys, not environments.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tensordict import LazyStackedTensorDict, TensorDict, TensorDictBase, is_non_tensor, is_tensor_collection
from torch import Tensor

from .owner import Key, split

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
    rule = successor_rule(
        as_keys(action_keys) if exclude_action else [],
        [*(as_keys(reward_keys) if exclude_reward else []), *(as_keys(done_keys) if exclude_done else [])],
        () if keep_other else [] if exclude_action else as_keys(action_keys),
    )
    result = rule(tensordict)
    return result if next_tensordict is None else next_tensordict.update(result)


def successor_rule(
    behind: Sequence[Key], gone: Sequence[Key], kept: Sequence[Key] | tuple[()]
) -> Callable[[TensorDictBase], TensorDictBase]:
    """`step_mdp` for keys that are known beforehand.

    Args:
        behind: entries of the root that are left behind, beside "next".
        gone: entries that are left out wherever they are.
        kept: what alone is kept of the root, as a list; everything for `()`.
    """
    skip_root = _tree([*behind, *gone, "next"])
    skip_next = _tree(gone)

    def rule(tensordict: TensorDictBase) -> TensorDictBase:
        following = tensordict.get("next")
        lazy = tensordict if isinstance(tensordict, LazyStackedTensorDict) else following
        if isinstance(lazy, LazyStackedTensorDict):  # whose entries may have no common shape
            dim = lazy.stack_dim
            return LazyStackedTensorDict.lazy_stack([rule(part) for part in tensordict.unbind(dim)], dim)
        root = tensordict if kept == () else tensordict.select(*kept, strict=False)
        return _overlaid(root, following, skip_root, skip_next)

    return rule


def _overlaid(
    base: TensorDictBase | None, top: TensorDictBase | None, skip_base: Tree, skip_top: Tree
) -> TensorDictBase:
    """A new TensorDict with the entries of both but those to skip; `top` wins. Values are not copied."""
    found: dict[str, Any] = {}
    value: Any
    shape = base if top is None else top
    assert shape is not None
    for source, skip in ((base, skip_base), (top, skip_top)):
        if source is None:
            continue
        for name, value in source.items():
            below = skip.get(name) if skip else None
            if below is True:
                continue
            if not isinstance(value, Tensor) and _is_branch(value):
                other = found.get(name) if source is top else None
                value = _overlaid(other, value, _NOTHING, below or _NOTHING)
                if below and value.is_empty():  # all that was in it is left out
                    continue
            found[name] = value
    return TensorDict(found, shape.batch_size, device=shape.device)


Tree = Mapping[str, Any]
"""Names to skip: True for all of it, or the same for what is below."""
_NOTHING: Tree = {}


def _tree(keys: Sequence[Key]) -> Tree:
    tree: dict[str, Any] = {}
    for key in keys:
        prefix, name = split(key)
        below = tree
        for step in prefix:
            below = below.setdefault(step, {})
            if below is True:
                break
        else:
            below[name] = True
    return tree


def as_keys(keys: Any) -> list[Key]:
    """A key (text, or a tuple of text) or a sequence of keys, as a list.

    >>> as_keys("done"), as_keys(("agents", "done")), as_keys(["done", ("agents", "done")])
    (['done'], [('agents', 'done')], ['done', ('agents', 'done')])
    """
    if isinstance(keys, str) or (isinstance(keys, tuple) and all(isinstance(k, str) for k in keys)):
        return [keys]
    return list(keys)


def _is_branch(value: Any) -> bool:
    return is_tensor_collection(value) and not is_non_tensor(value)
