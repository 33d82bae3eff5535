"""`step_mdp`: makes the root of the next step from the "next" entries of a step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from tensordict import (
    LazyStackedTensorDict,
    TensorDict,
    TensorDictBase,
    is_non_tensor,
    is_tensor_collection,
    is_tensorclass,
)
from torch import Tensor

from ...errors import SpaceError
from ...specs import Composite, StackedComposite, TensorSpec
from ...specs.composite import entries_of
from .keys import Key, Prefix, flat_key, is_key, join_key, sorted_keys, split_key
from .row_masks import stack_lazily

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
    """Returns the root of the next step: the entries under "next", and those entries of the root that are kept.

    Args:
        tensordict: the result of `step`.
        next_tensordict: the TensorDict to write the result into; by default a new one.
        keep_other: keep entries of the root that "next" does not have.
        exclude_reward: omit the rewards.
        exclude_done: omit the done flags.
        exclude_action: omit the actions.
        reward_keys, done_keys, action_keys: their keys, a single key or a list.

    Raises:
        SpaceError: if there is no "next" entry.

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
    result = _drop_empty_groups(step_rule(tensordict))
    return result if next_tensordict is None else next_tensordict.update(result)


def _drop_empty_groups(data: TensorDictBase) -> TensorDictBase:
    """Deletes the nested TensorDicts without leaves from `data`, which is new, in place."""
    if type(data) is TensorDict:
        groups: list[tuple[str, Any]] = [(name, value) for name, value in data.items() if _is_branch(value)]
        for name, group in groups:
            if _drop_empty_groups(group).is_empty():
                del data[name]
    return data


def make_step_mdp(
    root_exclude: Sequence[Key],
    both_exclude: Sequence[Key],
    root_select: Sequence[Key] | tuple[()] = (),
    next_select: Sequence[Key] | None = None,
) -> Callable[[TensorDictBase], TensorDictBase]:
    """Returns a `step_mdp` function for a fixed set of keys.

    Args:
        root_exclude: keys to omit from the root, in addition to "next".
        both_exclude: keys to omit from the root and from "next".
        root_select: a list of the only keys to keep from the root; `()` for all.
        next_select: keys to take from "next", in addition to those that the root has; None for all.
    """
    skip_root = _key_tree([*root_exclude, *both_exclude, "next"])
    skip_next, keep_tree = _key_tree(both_exclude), None if next_select is None else _key_tree(next_select)

    def apply_rule(tensordict: TensorDictBase) -> TensorDictBase:
        next_td = tensordict.get("next", None)
        if next_td is None:
            raise SpaceError(
                f"Expected the result of a step, with entries under 'next', got a TensorDict with "
                f"{sorted_keys(tensordict)}."
            )
        root = tensordict if root_select == () else tensordict.select(*root_select, strict=False)
        if type(root) is TensorDict and type(next_td) is TensorDict:
            entries = _merge_tensors(root, next_td, skip_root, skip_next, keep_tree)
            if entries is not None:
                return TensorDict(entries, next_td.batch_size, device=next_td.device)
        return _merge_tree(root, next_td, skip_root, skip_next, keep_tree)

    return apply_rule


def _merge_tensors(
    base: TensorDict, overlay: TensorDict, skip_base: Tree, skip_overlay: Tree, keep_tree: Tree | None
) -> dict[str, Any] | None:
    """Returns the entries of `_merge_tree` in less time; None if some of them are no tensors."""
    entries: dict[str, Any] = {}
    for name, value in base.items():
        if skip_base.get(name) is True:
            continue
        if type(value) is not Tensor:
            return None
        entries[name] = value
    for name, value in overlay.items():
        if type(value) is not Tensor:
            return None
        if name not in skip_overlay and (keep_tree is None or name in keep_tree or name in entries):
            entries[name] = value
    return entries


def _merge_tree(
    base: TensorDictBase | None,
    overlay: TensorDictBase | None,
    skip_base: Tree,
    skip_overlay: Tree,
    keep_tree: Tree | None = None,
) -> TensorDictBase:
    """Returns a new TensorDict with the entries of `base` and `overlay`, without copies of the values.

    Args:
        base: the root, or a nested TensorDict of it.
        overlay: the same of "next"; its values replace those of `base`.
        skip_base: keys to omit from `base`.
        skip_overlay: keys to omit from `overlay`.
        keep_tree: the only keys to take from `overlay`, in addition to those of `base`; None for all.
    """
    lazy_stack = next((td for td in (overlay, base) if isinstance(td, LazyStackedTensorDict)), None)
    if lazy_stack is not None:  # its entries may have no common shape
        dim, absent = lazy_stack.stack_dim, [None] * len(lazy_stack.tensordicts)
        base_rows, overlay_rows = (absent if td is None else td.unbind(dim) for td in (base, overlay))
        rows = zip(base_rows, overlay_rows, strict=True)
        return stack_lazily([_merge_tree(*row, skip_base, skip_overlay, keep_tree) for row in rows], dim)
    entries: dict[str, Any] = {}
    value: Any
    shape = base if overlay is None else overlay
    assert shape is not None
    for source, skip in ((base, skip_base), (overlay, skip_overlay)):
        if source is None:
            continue
        for name, value in source.items():
            sub_skip = skip.get(name) if skip else None
            if sub_skip is True:
                continue
            sub_keep = None  # which parts of the entry to keep: None for all, or a tree of nested keys
            if keep_tree is not None and source is overlay:
                sub_keep = keep_tree.get(name)
                if sub_keep is None and name not in entries:
                    continue
                sub_keep = None if sub_keep is True else sub_keep or _EMPTY_TREE
            if not isinstance(value, Tensor) and _is_branch(value):
                base_value = entries.get(name) if source is overlay else None
                merged = _merge_tree(base_value, value, _EMPTY_TREE, sub_skip or _EMPTY_TREE, sub_keep)
                if (sub_skip or sub_keep is not None) and merged.is_empty():  # all of its entries were skipped
                    continue
                value = _as_class_of(value, merged)
            entries[name] = value
    return TensorDict(entries, shape.batch_size, device=shape.device)


def _as_class_of(value: Any, merged: TensorDictBase) -> Any:
    """Returns merged entries in the class of `value`, a TensorDict or a tensorclass; if it has its fields."""
    if not is_tensorclass(value) or set(merged.keys()) != set(value.keys()):
        return merged
    return type(value).from_tensordict(merged)


def leaves_of(*specs: Composite) -> list[Key]:
    """Returns the keys of all leaves, including those that only some rows of a heterogeneous batch have."""
    return list(dict.fromkeys(key for spec in specs for key in _leaves(spec, ())))


def _leaves(spec: TensorSpec | None, place: Prefix) -> Iterator[Key]:
    if isinstance(spec, StackedComposite):
        for part in spec.specs:
            yield from _leaves(part, place)
    elif isinstance(spec, Composite):
        for name, part in entries_of(spec).items():
            yield from _leaves(part, (*place, name))
    else:
        yield join_key(place[:-1], place[-1])


Tree = Mapping[str, Any]
"""Nested keys: True for the whole entry, or a tree of the keys inside it."""
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


def as_keys(keys: Keys) -> list[Key]:
    """Converts a key (a string, or a tuple of strings) or a sequence of keys to a list of keys.

    >>> as_keys("done"), as_keys(("agents", "done")), as_keys(["done", ("agents", "done")])
    (['done'], [('agents', 'done')], ['done', ('agents', 'done')])
    >>> as_keys(("done",)), as_keys(())
    (['done'], [])

    Raises:
        ValueError: they are no such keys.
    """
    if is_key(keys) and (isinstance(keys, str) or all(isinstance(name, str) for name in keys)):
        return [flat_key(keys)]
    if not isinstance(keys, Iterable) or not all(map(is_key, keys := list(keys))):
        raise ValueError(f"Expected a key (a name, or a tuple of names), or a sequence of keys, got {keys!r:.80}.")
    return [flat_key(key) for key in keys]


def _is_branch(value: Any) -> bool:
    return is_tensor_collection(value) and not is_non_tensor(value)
