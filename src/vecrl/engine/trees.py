"""Functions of trees: arrays that are nested in dicts and tuples, as the elements of Dict and Tuple spaces are.

An array alone is a tree too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from gymnasium import spaces

from ..errors import SpaceError
from .space_layout import AnySpace, Tree, describe


def is_nested(space: object) -> bool:
    """Returns whether the elements of a space are dicts or tuples."""
    return isinstance(space, spaces.Dict | spaces.Tuple)


def leaf_spaces(space: AnySpace) -> list[AnySpace]:
    """Returns the spaces of the leaves, in order.

    >>> leaf_spaces(spaces.Dict(a=spaces.Discrete(2), b=spaces.Tuple([spaces.Discrete(3)])))
    [Discrete(2), Discrete(3)]
    """
    if not is_nested(space):
        return [space]
    parts: Any = space.spaces.values() if isinstance(space, spaces.Dict) else space.spaces  # type: ignore[attr-defined]
    return [leaf for part in parts for leaf in leaf_spaces(part)]


def map_tree(function: Callable[..., Any], tree: Tree, *others: Tree) -> Tree:
    """Returns the tree of the results of `function`, called with each leaf of `tree` and those of `others` there.

    >>> map_tree(lambda x, y: x + y, {"a": 1, "b": (2, 3)}, {"a": 10, "b": (20, 30)})
    {'a': 11, 'b': (22, 33)}
    """
    if isinstance(tree, dict):
        return {key: map_tree(function, part, *(other[key] for other in others)) for key, part in tree.items()}
    if isinstance(tree, tuple):
        return tuple(map_tree(function, *parts) for parts in zip(tree, *others, strict=True))
    return function(tree, *others)


def first_leaf(tree: Tree) -> Any:
    """Returns the first leaf of a tree; an empty dict or tuple itself if the tree has no leaf before it.

    >>> first_leaf({"a": (3, 4), "b": 5})
    3
    """
    while isinstance(tree, dict | tuple) and tree:
        tree = next(iter(tree.values())) if isinstance(tree, dict) else tree[0]
    return tree


def named_leaves(name: str, space: AnySpace, tree: Tree) -> Iterator[tuple[str, AnySpace, Any]]:
    """Yields the name, the space and the value of each leaf of a tree, in the order of the space.

    Args:
        name: the name of the tree; the names of its leaves contain their paths.
        space: the space that gives the structure.
        tree: the tree.

    Raises:
        SpaceError: the tree has another structure.

    >>> space = spaces.Dict(a=spaces.Discrete(2), b=spaces.Tuple([spaces.Discrete(3)]))
    >>> list(named_leaves("the action", space, {"a": 1, "b": (2,)}))
    [("the action['a']", Discrete(2), 1), ("the action['b'][0]", Discrete(3), 2)]
    """
    if isinstance(space, spaces.Dict):
        if not isinstance(tree, dict) or tree.keys() != space.spaces.keys():
            raise SpaceError(
                f"Expected {name} to be a dict with the keys {list(space.spaces)}, got {describe(tree)}. "
                "Give every key of the space, and no other."
            )
        for key, part in space.spaces.items():
            yield from named_leaves(f"{name}[{key!r}]", part, tree[key])
    elif isinstance(space, spaces.Tuple):
        if not isinstance(tree, tuple) or len(tree) != len(space.spaces):
            found = f"a tuple of {len(tree)}" if isinstance(tree, tuple) else describe(tree)
            raise SpaceError(
                f"Expected {name} to be a tuple of {len(space.spaces)}, got {found}. Give one item per part of the "
                "space."
            )
        for index, part in enumerate(space.spaces):
            yield from named_leaves(f"{name}[{index}]", part, tree[index])
    else:
        yield name, space, tree
