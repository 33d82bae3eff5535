"""Defines the memory layout of the elements of a space: one array per leaf, one row per environment.

Box, Discrete, MultiDiscrete and MultiBinary are leaves with a shape and a dtype; Dict and Tuple nest them. Any other
space (Text, Graph, Sequence, OneOf, a user-defined space) is an opaque leaf: its elements are not in the batch buffers
but pickled in commands and replies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import islice
from operator import itemgetter
from typing import Any

import numpy as np
from gymnasium import spaces

from ..errors import SpaceError

Path = tuple[str | int, ...]
AnySpace = spaces.Space[Any]
DType = np.dtype[Any]
Tree = Any
"""Arrays nested in dicts and tuples, as the leaves are in the space."""
LeafRows = np.ndarray | list[Any]
"""The values of one leaf in several rows: an array `[rows, ...]`, or a list if the leaf is opaque."""
_NESTED_SPACES = spaces.Dict, spaces.Tuple


@dataclass(frozen=True, slots=True)
class Leaf:
    """One leaf of a space, which has one array in the batch buffers.

    Attributes:
        path: the keys from the root to the leaf.
        shape: the shape of one row.
        dtype: the dtype of its elements; None for an opaque leaf.
    """

    path: Path
    shape: tuple[int, ...]
    dtype: DType | None

    @property
    def name(self) -> str:
        """The path of the leaf, for messages."""
        return "".join(f"[{key!r}]" for key in self.path) or "the root"


class Layout:
    """The leaves of a space. Converts between trees of arrays and flat lists of leaf arrays.

    >>> layout = Layout(spaces.Dict({"x": spaces.Box(-1, 1, (2,)), "n": spaces.Discrete(3)}))
    >>> [(leaf.path, leaf.shape) for leaf in layout.leaves]
    [(('n',), ()), (('x',), (2,))]
    >>> layout.build([1, 2])
    {'n': 1, 'x': 2}
    """

    excluded_from_state = ("build",)

    def __init__(self, space: AnySpace):
        self.space = space
        self.leaves = tuple(_leaves(space, ()))
        self.flat = self.leaves[0].path == () if len(self.leaves) == 1 else False
        self.opaque = tuple(i for i, leaf in enumerate(self.leaves) if leaf.dtype is None)
        self.is_array = self.flat and not self.opaque  # each element is one array or number
        self._number_dtype = self.leaves[0].dtype if self.is_array and not self.leaves[0].shape else None

    @cached_property
    def build(self) -> Callable[[Sequence[Tree]], Tree]:
        """A function that returns the tree of the leaves in order; the inverse of `split`."""
        if self.flat:
            return itemgetter(0)
        if isinstance(self.space, spaces.Dict) and [leaf.path for leaf in self.leaves] == [(k,) for k in self.space]:
            return partial(_name, tuple(self.space.spaces))
        return partial(_nest, self.space)

    def split(self, tree: Tree) -> list[Tree]:
        """Returns the leaves of one element (or of one batch) in order; the inverse of `build`."""
        if self.flat:
            return [tree]
        values: list[Tree] = []
        for leaf in self.leaves:
            value = tree
            try:
                for key in leaf.path:
                    value = value[key]
            except (KeyError, IndexError, TypeError) as error:
                raise SpaceError(
                    f"Expected {leaf.name}, got {describe(value)} without it. Give every key of the space."
                ) from error
            values.append(value)
        return values

    def columns(self, elements: list[Tree]) -> list[list[Tree]]:
        """Returns, for each leaf, the list of its values in these elements."""
        if self.flat:
            return [elements]
        rows = [self.split(element) for element in elements]
        return [[row[i] for row in rows] for i in range(len(self.leaves))]

    def batch(self, tree: Tree, rows: int) -> list[LeafRows]:
        """Returns a batch of `rows` actions as leaf arrays of the right shape; opaque leaves as lists.

        Raises:
            SpaceError: a key is missing, a leading size or shape is wrong, or a dtype cannot be cast to the leaf's
                dtype within its kind.
        """
        values = [tree] if self.flat else self.split(tree)
        for i, leaf in enumerate(self.leaves):
            array = values[i]
            if type(array) is not np.ndarray or array.dtype != leaf.dtype or array.shape != (rows, *leaf.shape):
                values[i] = _batch_leaf(array, leaf, rows)
        return values

    def elements(self, tree: Tree, rows: int) -> Sequence[Tree]:
        """Returns the actions of a batch one by one, as `batch` checks them, for environments that may keep them.

        They have the dtypes of the space where this changes no value.
        """
        dtype = self._number_dtype
        if dtype is not None and type(tree) is np.ndarray and tree.dtype == dtype and tree.shape == (rows,):
            return list(islice(tree, rows))
        leaves: list[Any] = self.batch(tree, rows)
        for i, leaf in enumerate(self.leaves):
            values = leaves[i]
            if leaf.dtype is not None and (leaf.shape or values.dtype != leaf.dtype):  # no copy of numbers
                leaves[i] = values.astype(values.dtype if would_change(values, leaf.dtype) else leaf.dtype)
        return self.lazy_rows(leaves, rows)

    def rows(self, leaves: Sequence[Tree], count: int) -> Sequence[Tree]:
        """Returns one element per row from leaf arrays of leading size `count`."""
        if self.flat:
            return leaves[0] if isinstance(leaves[0], list) else list(leaves[0])
        if not leaves:  # an empty Dict or Tuple
            return [self.build(()) for _ in range(count)]
        return list(map(self.build, zip(*leaves, strict=True)))

    def lazy_rows(self, leaves: Sequence[Tree], count: int) -> Sequence[Tree]:
        """Returns the same as `rows`; elements of several leaves are built when they are read."""
        if self.flat:
            return list(islice(leaves[0], count))  # faster than `list`, which ends with an IndexError of the array
        return LazyRows(self.build, leaves) if leaves else self.rows(leaves, count)

    def empty(self, rows: int) -> list[Any]:
        """Returns leaf arrays of zeros for `rows` rows; a list of None for an opaque leaf."""
        return [
            [None] * rows if leaf.dtype is None else np.zeros((rows, *leaf.shape), leaf.dtype) for leaf in self.leaves
        ]


class LazyRows(Sequence[Tree]):
    """The elements of rows, each of which is built when it is read.

    Args:
        build: returns an element from its leaves.
        leaves: one array, or list, per leaf, with one value per row.

    Attributes:
        leaves: the argument, for a simulator that takes all rows at once.
    """

    def __init__(self, build: Callable[[Sequence[Tree]], Tree], leaves: Sequence[LeafRows]):
        self.leaves = leaves
        self._build = build

    def __len__(self) -> int:
        return len(self.leaves[0])

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return LazyRows(self._build, [leaf[index] for leaf in self.leaves])
        return self._build([leaf[index] for leaf in self.leaves])

    def __iter__(self) -> Iterator[Tree]:
        return map(self._build, zip(*self.leaves, strict=True))


def _leaves(space: AnySpace, path: Path) -> Iterator[Leaf]:
    if isinstance(space, spaces.Dict):
        for key, sub in space.spaces.items():
            yield from _leaves(sub, (*path, key))
    elif isinstance(space, spaces.Tuple):
        for index, sub in enumerate(space.spaces):
            yield from _leaves(sub, (*path, index))
    elif isinstance(space, spaces.Box | spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary):
        yield Leaf(path, tuple(space.shape or ()), np.dtype(space.dtype))
    else:
        yield Leaf(path, (), None)


def _name(names: Sequence[str], values: Iterable[Tree]) -> Tree:
    return dict(zip(names, values, strict=True))


def _nest(space: Any, values: Iterable[Tree]) -> Tree:
    """Returns the next values as the tree of a space; leaves cost no call, since every step builds trees."""
    values, is_dict = iter(values), isinstance(space, spaces.Dict)
    children: list[Tree] = []
    for sub in space.spaces.values() if is_dict else space.spaces:
        children.append(_nest(sub, values) if isinstance(sub, _NESTED_SPACES) else next(values))
    return dict(zip(space.spaces, children, strict=True)) if is_dict else tuple(children)


def _batch_leaf(value: Tree, leaf: Leaf, rows: int) -> LeafRows:
    if leaf.dtype is None:
        value = list(value)
        if len(value) != rows:
            raise SpaceError(f"Expected {rows} actions at {leaf.name}, one per environment, got {len(value)}.")
        return value
    try:
        array = np.asarray(value)
    except ValueError as error:  # rows of different lengths
        raise SpaceError(
            f"Expected actions of shape {(rows, *leaf.shape)} at {leaf.name} (environments first), got "
            f"{describe(value)}. Give one row per environment, all of one shape."
        ) from error
    if array.shape != (rows, *leaf.shape):
        found = describe(value) if array.dtype.kind in "OUS" else array.shape
        raise SpaceError(
            f"Expected actions of shape {(rows, *leaf.shape)} at {leaf.name} (environments first), got {found}."
        )
    if array.dtype != leaf.dtype and not np.can_cast(array.dtype, leaf.dtype, "same_kind"):
        raise SpaceError(
            f"Expected actions of dtype {leaf.dtype} at {leaf.name}, got {array.dtype}, which does not cast safely."
        )
    return array


def would_change(values: np.ndarray, dtype: DType) -> bool:
    """Returns whether a cast to the dtype of the space would change results.

    This is assumed for all other floats, since an environment computes in the precision of its action.
    """
    return values.dtype != dtype and (dtype.kind == "f" or bool((values.astype(dtype) != values).any()))


def describe(value: object) -> str:
    """Describes a value for error messages: kind, shape, dtype."""
    if isinstance(value, np.ndarray):
        return f"an array of shape {value.shape} and dtype {value.dtype}"
    if isinstance(value, Mapping):
        return f"a dict with the keys {list(value)}"  # pyright: ignore[reportUnknownArgumentType]
    return f"{type(value).__name__} {str(value)[:60]!r}"


def is_single_number(array: np.ndarray, shape: tuple[int, ...]) -> bool:
    """Returns whether `array` is a number that stands for an array of one number: shape () instead of (1,)."""
    return array.shape == () and shape == (1,)


def check_element(value: object, leaf: Leaf) -> None:
    """Raises a `SpaceError` if `value` cannot be stored at `leaf` without a change of shape or of kind of dtype.

    A number may stand for an array of one number.
    """
    if leaf.dtype is None:
        return
    array = np.asarray(value)
    if array.shape != leaf.shape and not is_single_number(array, leaf.shape):
        raise SpaceError(
            f"expected an observation of shape {leaf.shape} at {leaf.name}, as its space declares, got {array.shape}. "
            "Return what observation_space declares, or declare what you return."
        )
    if not np.can_cast(array.dtype, leaf.dtype, "same_kind"):
        raise SpaceError(
            f"expected an observation of dtype {leaf.dtype} at {leaf.name}, as its space declares, got {array.dtype}, "
            "which cannot be cast within its kind. Return what observation_space declares, or declare what you return."
        )
