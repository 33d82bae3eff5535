"""From one step to the next: what "next" holds becomes the root.

Knows TensorDicts, specs and keys, not how environments step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from tensordict import LazyStackedTensorDict, TensorDict, TensorDictBase, is_non_tensor, is_tensor_collection
from torch import Tensor

from ..errors import SpaceError
from ..specs import Composite, StackedComposite
from .owner import Key, SpecOwner, joined, split

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
    behind: Sequence[Key],
    gone: Sequence[Key],
    kept: Sequence[Key] | tuple[()] = (),
    carried: Sequence[Key] | None = None,
) -> Callable[[TensorDictBase], TensorDictBase]:
    """`step_mdp` for keys that are known beforehand.

    Args:
        behind: entries of the root that are left behind, beside "next".
        gone: entries that are left out wherever they are.
        kept: what alone is kept of the root, as a list; everything for `()`.
        carried: what is taken of "next", beside newer values of what the root has; None for everything.
    """
    skip_root = _tree([*behind, *gone, "next"])
    skip_next, keep = _tree(gone), None if carried is None else _tree(carried)

    def rule(tensordict: TensorDictBase) -> TensorDictBase:
        following = tensordict.get("next", None)
        if following is None:
            raise SpaceError(f"Expected a step, with what follows under 'next', but {_names(tensordict)} came.")
        lazy = tensordict if isinstance(tensordict, LazyStackedTensorDict) else following
        if isinstance(lazy, LazyStackedTensorDict):  # whose entries may have no common shape
            dim = lazy.stack_dim
            return LazyStackedTensorDict.lazy_stack([rule(part) for part in tensordict.unbind(dim)], dim)
        root = tensordict if kept == () else tensordict.select(*kept, strict=False)
        return _overlaid(root, following, skip_root, skip_next, keep)

    return rule


def _overlaid(
    base: TensorDictBase | None, top: TensorDictBase | None, skip_base: Tree, skip_top: Tree, keep: Tree | None = None
) -> TensorDictBase:
    """A new TensorDict with the entries of both but those to skip, and of `top` only those that `keep` or `base` has;
    `top` wins. Values are not copied."""
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
            within = None if keep is None or source is not top else _carried(name, keep, found)
            if within is False:
                continue
            if not isinstance(value, Tensor) and _is_branch(value):
                other = found.get(name) if source is top else None
                value = _overlaid(other, value, _NOTHING, below or _NOTHING, within)
                if (below or within is not None) and value.is_empty():  # all that was in it is left out
                    continue
            found[name] = value
    return TensorDict(found, shape.batch_size, device=shape.device)


def _carried(name: str, keep: Tree, base: Mapping[str, Any]) -> Any:
    """What is to be kept of an entry of "next": None for all, False for nothing, else what is kept of what is in it."""
    known = keep.get(name, False)
    if known is False and name in base:
        return _NOTHING
    return None if known is True else known


def rule_of(owner: SpecOwner) -> Callable[[TensorDictBase], TensorDictBase]:
    """`step_mdp` by the keys of an environment: see `EnvBase.step_mdp`."""
    carried = leaves_of(owner.full_observation_spec, owner.full_done_spec, owner.full_state_spec)
    return successor_rule(owner.action_keys, owner._left_behind, carried=carried)


def leaves_of(*specs: Composite) -> list[Key]:
    """The keys of all leaves, those that only some of a heterogeneous batch have as well."""
    return list(dict.fromkeys(key for spec in specs for key in _leaves(spec, ())))


def _leaves(spec: Any, place: tuple[str, ...]) -> Iterator[Key]:
    if isinstance(spec, StackedComposite):
        for part in spec.specs:
            yield from _leaves(part, place)
    elif isinstance(spec, Composite):
        for name, part in spec._entries().items():
            yield from _leaves(part, (*place, name))
    else:
        yield joined(place[:-1], place[-1])


def _names(td: TensorDictBase) -> str:
    return f"a TensorDict with {sorted(map(str, td.keys(include_nested=True, leaves_only=True)))}"


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
