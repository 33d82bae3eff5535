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
from .spec_container import Key, SpecContainer, join_key, split_key

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
        tensordict: what `name_part` returned.
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
    step_rule = make_step_mdp(
        as_keys(action_keys) if exclude_action else [],
        [*(as_keys(reward_keys) if exclude_reward else []), *(as_keys(done_keys) if exclude_done else [])],
        () if keep_other else [] if exclude_action else as_keys(action_keys),
    )
    result = step_rule(tensordict)
    return result if next_tensordict is None else next_tensordict.update(result)


def make_step_mdp(
    root_exclude: Sequence[Key],
    both_exclude: Sequence[Key],
    root_select: Sequence[Key] | tuple[()] = (),
    next_select: Sequence[Key] | None = None,
) -> Callable[[TensorDictBase], TensorDictBase]:
    """`step_mdp` for keys that are known beforehand.

    Args:
        root_exclude: entries of the root that are left behind, beside "next".
        both_exclude: entries that are left out wherever they are.
        root_select: what alone is kept of the root, as a list; everything for `()`.
        next_select: what is taken of "next", beside newer values of what the root has; None for everything.
    """
    skip_root = _key_tree([*root_exclude, *both_exclude, "next"])
    skip_next, keep_tree = _key_tree(both_exclude), None if next_select is None else _key_tree(next_select)

    def apply_rule(tensordict: TensorDictBase) -> TensorDictBase:
        next_td = tensordict.get("next", None)
        if next_td is None:
            raise SpaceError(f"Expected a step, with what follows under 'next', but {_describe_keys(tensordict)} came.")
        lazy_stack = tensordict if isinstance(tensordict, LazyStackedTensorDict) else next_td
        if isinstance(lazy_stack, LazyStackedTensorDict):  # whose entries may have no common shape
            dim = lazy_stack.stack_dim
            return LazyStackedTensorDict.lazy_stack([apply_rule(part) for part in tensordict.unbind(dim)], dim)
        root = tensordict if root_select == () else tensordict.select(*root_select, strict=False)
        return _merge_tree(root, next_td, skip_root, skip_next, keep_tree)

    return apply_rule


def _merge_tree(
    base: TensorDictBase | None,
    overlay: TensorDictBase | None,
    skip_base: Tree,
    skip_top: Tree,
    keep_tree: Tree | None = None,
) -> TensorDictBase:
    """A new TensorDict with the entries of both but those to skip, and of `overlay` only those that `keep_tree` or
    `base` has;
    `overlay` wins. Values are not copied."""
    entries: dict[str, Any] = {}
    value: Any
    shape = base if overlay is None else overlay
    assert shape is not None
    for source, skip in ((base, skip_base), (overlay, skip_top)):
        if source is None:
            continue
        for name, value in source.items():
            sub_skip = skip.get(name) if skip else None
            if sub_skip is True:
                continue
            sub_keep = None if keep_tree is None or source is not overlay else _sub_keep(name, keep_tree, entries)
            if sub_keep is False:
                continue
            if not isinstance(value, Tensor) and _is_branch(value):
                base_value = entries.get(name) if source is overlay else None
                value = _merge_tree(base_value, value, _EMPTY_TREE, sub_skip or _EMPTY_TREE, sub_keep)
                if (sub_skip or sub_keep is not None) and value.is_empty():  # all that was in it is left out
                    continue
            entries[name] = value
    return TensorDict(entries, shape.batch_size, device=shape.device)


def _sub_keep(name: str, keep_tree: Tree, base: Mapping[str, Any]) -> Any:
    """What is to be kept of an entry of "next": None for all, False for nothing, else what is kept of what is in it."""
    sub_keep = keep_tree.get(name, False)
    if sub_keep is False and name in base:
        return _EMPTY_TREE
    return None if sub_keep is True else sub_keep


def step_mdp_for(owner: SpecContainer) -> Callable[[TensorDictBase], TensorDictBase]:
    """`step_mdp` by the keys of an environment: see `EnvBase.step_mdp`."""
    next_select = leaves_of(owner.full_observation_spec, owner.full_done_spec, owner.full_state_spec)
    return make_step_mdp(owner.action_keys, owner._reward_keys_not_in_root, next_select=next_select)


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
        yield join_key(place[:-1], place[-1])


def _describe_keys(td: TensorDictBase) -> str:
    return f"a TensorDict with {sorted(map(str, td.keys(include_nested=True, leaves_only=True)))}"


Tree = Mapping[str, Any]
"""Names to skip: True for all of it, or the same for what is below."""
_EMPTY_TREE: Tree = {}


def _key_tree(keys: Sequence[Key]) -> Tree:
    tree: dict[str, Any] = {}
    for key in keys:
        prefix, name = split_key(key)
        sub_skip = tree
        for name_part in prefix:
            sub_skip = sub_skip.setdefault(name_part, {})
            if sub_skip is True:
                break
        else:
            sub_skip[name] = True
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
