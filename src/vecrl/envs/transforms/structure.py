"""Transforms of the structure of data: stacks, expanded entries, empty groups and batch sizes. Values stay the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase, is_non_tensor, is_tensor_collection
from torch import Tensor

from ...errors import SpaceError
from ...specs import Composite, TensorSpec
from ..entries.keys import Key, join_key, split_key
from ..entries.row_masks import stack_lazily
from ..entries.step_mdp import as_keys
from .base import StatelessTransform, Transform
from .keyed_module import Keys
from .keys import JoinTransform, remove_entries
from .ragged_entries import is_heterogeneous
from .shapes import parse_dim
from .spec_hooks import infer_spec

__all__ = ["BatchSizeTransform", "ExpandAs", "RemoveEmptySpecs", "Stack"]


class Stack(JoinTransform):
    """Stacks entries along a new dimension, for example agents with equal specs, and unstacks inputs.

    Args:
        in_keys: the keys of tensors or groups of equal shapes.
        out_key: the key of the stack.
        in_key_inv: the key of a stack that the user gives; none by default.
        out_keys_inv: the keys of inputs of the environment into which it is unstacked.
        dim: the new dimension. It is counted from the end: of a tensor, or of the batch dimensions of a group.
        allow_positive_dim: whether to accept a dimension counted from 0 after the batch dimensions.
        del_keys: whether to remove the `in_keys`, except those that the next step of the environment needs.

    Raises:
        ValueError: `dim` is not negative, without `allow_positive_dim`, or only one of `in_key_inv` and `out_keys_inv`
            is given.
        SpaceError: on use in an environment, if the entries cannot be stacked.

    >>> from tensordict import TensorDict
    >>> agents = {"a": {"speed": torch.zeros(3)}, "b": {"speed": torch.ones(3)}}
    >>> Stack(["a", "b"], "agents")(TensorDict(agents))["agents", "speed"]
    tensor([[0., 0., 0.],
            [1., 1., 1.]])
    """

    _takes_records = True
    _checked_keys = ("in_keys",)  # `in_key_inv` is made of entries of the environment

    def __init__(
        self,
        in_keys: Keys,
        out_key: Key,
        in_key_inv: Key | None = None,
        out_keys_inv: Keys = None,
        dim: int = -1,
        allow_positive_dim: bool = False,
        *,
        del_keys: bool = True,
    ):
        if (in_key_inv is None) != (out_keys_inv is None):
            raise ValueError(f"Expected in_key_inv and out_keys_inv, or neither, got {in_key_inv!r}, {out_keys_inv!r}.")
        super().__init__(in_keys, out_key, del_keys, in_key_inv, out_keys_inv)
        self.dim = parse_dim(dim, allow_positive_dim)

    def _validate_keys(self, name: str, keys: list[Key]) -> list[Key]:
        return keys

    def _dim(self, batch_dims: int) -> int:
        return self.dim if self.dim < 0 else self.dim + batch_dims

    def _join(self, values: list[Any], batch_dims: int) -> Any:
        return torch.stack(values, self._dim(batch_dims))

    def _inv_call(self, tensordict: TensorDictBase) -> TensorDictBase:
        for key in self.in_keys_inv:
            stack = tensordict.get(key, None)
            if stack is None:
                if self._allow_missing:
                    return tensordict
                raise self._missing(key, tensordict)
            parts = stack.unbind(self._dim(tensordict.batch_dims))
            if len(parts) != len(self.out_keys_inv):
                raise SpaceError(
                    f"Expected {key!r} to have {len(self.out_keys_inv)} parts, for {self.out_keys_inv}, got "
                    f"{len(parts)}. Give a key for each."
                )
            remove_entries(tensordict, [key])
            for new_key, part in zip(self.out_keys_inv, parts, strict=True):
                tensordict.set(new_key, part)
        return tensordict

    @property
    def _has_inverse(self) -> bool:
        return bool(self.in_keys_inv)

    @property
    def _changes_layout(self) -> bool:
        return self._has_inverse

    def _to_parent_layout(self, tensordict: TensorDictBase) -> TensorDictBase:
        return self._tolerant(self._inv_call, tensordict.copy())

    def _from_parent_layout(self, tensordict: TensorDictBase) -> TensorDictBase:
        tensordict = tensordict.copy()
        parts: list[Any] = [tensordict.get(key, None) for key in self.out_keys_inv]
        if all(part is not None for part in parts):
            dim = self._dim(tensordict.batch_dims)
            is_group = is_tensor_collection(parts[0])  # groups may have different entries
            stack = stack_lazily(parts, dim % (parts[0].ndim + 1)) if is_group else torch.stack(parts, dim)
            for key in self.in_keys_inv:
                remove_entries(tensordict, self.out_keys_inv)
                tensordict.set(key, stack)
        return tensordict

    def _stack_specs(self, specs: Composite, keys: list[Key], new_key: Key, removed_keys: list[Key]) -> Composite:
        """Replaces the specs of `keys`, if there are any, by that of their stack."""
        parts = [specs.get(key, None) for key in keys]
        if all(part is None for part in parts):
            return specs
        try:
            stack: Any = torch.stack(parts, self._dim(specs.ndim))  # pyright: ignore[reportArgumentType, reportCallIssue]
            if is_heterogeneous(stack):
                raise SpaceError(f"Expected entries with equal specs, got {stack}.")
        except (TypeError, RuntimeError, IndexError, SpaceError) as error:
            shapes = [None if part is None else _shapes(part) for part in parts]
            raise SpaceError(
                f"Expected entries of one shape to stack along dim={self.dim}, got the shapes "
                f"{dict(zip(keys, shapes, strict=True))}. Give other keys or another dim."
            ) from error
        remove_entries(specs, removed_keys)
        specs[new_key] = stack
        return specs

    def _forward_spec(self, specs: Composite) -> Composite:
        return self._stack_specs(specs, self.in_keys, self.out_key, self._removed_keys)

    def _inverse_spec(self, specs: Composite) -> Composite:
        for key in self.in_keys_inv:
            self._stack_specs(specs, self.out_keys_inv, key, self.out_keys_inv)
        return specs

    def transform_done_spec(self, done_spec: Composite) -> Composite:
        """Stacks the specs of flags."""
        return self._forward_spec(done_spec)


def _shapes(spec: Any) -> Any:
    """Returns the shape of a spec, or those of the leaves of a group by their keys."""
    return (
        {key: _shapes(leaf) for key, leaf in spec.items(True, True)} if isinstance(spec, Composite) else (*spec.shape,)
    )


class ExpandAs(StatelessTransform):
    """Expands an entry to the shape of another one, by new dimensions at its end.

    Args:
        in_key: the key of the entry, the shape of which is a prefix of the other shape if sizes of 1 are expanded.
        ref_key: the key of the entry with the shape. If it is missing in the output of a reset, as rewards are, its
            spec has the shape.
        out_key: the key of the result; `in_key` by default.

    Raises:
        SpaceError: on use, if the shapes do not fit, or if the result is a done flag in a group without "done".

    >>> from tensordict import TensorDict
    >>> data = TensorDict({"done": torch.tensor([[True], [False]]), "reward": torch.zeros(2, 3, 1)}, [2])
    >>> ExpandAs("done", "reward")(data)["done"].squeeze(-1)
    tensor([[ True,  True,  True],
            [False, False, False]])
    """

    elementwise = True
    _takes_records = True

    def __init__(self, in_key: Key, ref_key: Key, out_key: Key | None = None):
        super().__init__(as_keys(in_key), None if out_key is None else as_keys(out_key))
        self.ref_key: Key = as_keys(ref_key)[0]

    def _call(self, next_tensordict: TensorDictBase) -> TensorDictBase:
        return self._set_entries(
            next_tensordict, self._key_pairs, lambda value: _expand_right(value, self._ref_shape(next_tensordict))
        )

    def _ref_shape(self, td: TensorDictBase) -> torch.Size:
        ref = td.get(self.ref_key, None)
        if ref is not None:
            return ref.shape
        if self.parent is None:
            raise self._missing(self.ref_key, td)
        spec, _ = self._find(self.parent.output_spec, self.ref_key)
        return torch.Size((*td.batch_size, *spec.shape[self.parent.batch_dims :]))

    def transform_output_spec(self, output_spec: Composite) -> Composite:
        """Adds the spec of the result, or replaces that of the entry."""
        ((in_key, out_key),) = self._key_pairs
        spec, specs = self._find(output_spec, in_key)
        shape = self._find(output_spec, self.ref_key)[0].shape
        done_key = join_key(split_key(out_key)[0], "done")
        if specs is output_spec.get("full_done_spec", None) and done_key not in (*specs.keys(True, True), out_key):
            raise SpaceError(
                f"Expected {done_key!r} beside the done flag {out_key!r}, got none. Expand it first, by "
                f'ExpandAs("done", {self.ref_key!r}, {done_key!r}).'
            )
        try:
            specs[out_key] = _expand_right(spec, shape)
        except SpaceError:  # its last dimension is one choice
            specs[out_key] = infer_spec(spec, lambda value: _expand_right(value, shape))
        return output_spec

    def _find(self, output_spec: Composite, key: Key) -> tuple[TensorSpec, Composite]:
        groups: list[Any] = list(output_spec.values())
        for specs in groups:
            if key in specs:
                return specs[key], specs
        available = [key for specs in groups for key in specs.keys(True, True)]
        raise SpaceError(f"Expected keys of the environment, {available}, got {key!r}. Give one of them.")


def _expand_right(x: Any, shape: torch.Size) -> Any:
    """Returns a tensor or a spec expanded to a shape, by new dimensions at its end."""
    for _ in range(len(shape) - x.ndim):
        x = x.unsqueeze(-1)
    try:
        expanded = x.expand(shape)
    except (RuntimeError, SpaceError) as error:
        raise SpaceError(f"Expected an entry that can be expanded to {tuple(shape)}, got {tuple(x.shape)}.") from error
    return expanded.contiguous() if isinstance(x, Tensor) else expanded


class RemoveEmptySpecs(StatelessTransform):
    """Removes groups without entries from outputs and specs, and adds them to the inputs of the environment.

    Args:
        in_keys, out_keys, in_keys_inv, out_keys_inv: have no effect.

    >>> from tensordict import TensorDict
    >>> sorted(RemoveEmptySpecs()(TensorDict({"a": {"b": {}}, "c": 1})).keys())
    ['c']
    """

    elementwise = True
    _takes_records = True

    def __init__(
        self, in_keys: Keys = None, out_keys: Keys = None, in_keys_inv: Keys = None, out_keys_inv: Keys = None
    ):
        super().__init__(in_keys, out_keys, in_keys_inv, out_keys_inv)

    def _call(self, next_tensordict: TensorDictBase) -> TensorDictBase:
        entries: list[tuple[str, Any]] = list(next_tensordict.items())
        for key, value in entries:
            if is_tensor_collection(value) and not is_non_tensor(value) and self._call(value).is_empty():
                del next_tensordict[key]
        return next_tensordict

    @cached_property
    def _empty_inputs(self) -> list[tuple[Key, Composite]]:
        """The keys and specs of the empty groups of inputs of the environment."""
        if self.parent is None:
            return []
        return [item for specs in self.parent.input_spec.values() for item in _empty_groups(specs)]

    @property
    def _has_inverse(self) -> bool:
        return bool(self._empty_inputs)

    def _inv_call(self, tensordict: TensorDictBase) -> TensorDictBase:
        for key, spec in self._empty_inputs:
            if tensordict.get(key, None) is None:
                tensordict.set(key, spec.zero(tensordict.batch_size[: tensordict.batch_dims - spec.ndim]))
        return tensordict

    def transform_output_spec(self, output_spec: Composite) -> Composite:
        """Removes the specs of empty groups."""
        return self._without_empty_groups(output_spec)

    def transform_input_spec(self, input_spec: Composite) -> Composite:
        """Removes the specs of empty groups."""
        return self._without_empty_groups(input_spec)

    def _without_empty_groups(self, all_specs: Composite) -> Composite:
        for specs in all_specs.values():
            remove_entries(specs, [key for key, _ in _empty_groups(specs)])
        return all_specs


def _empty_groups(specs: Any, prefix: tuple[str, ...] = ()) -> Iterator[tuple[Key, Composite]]:
    """Yields the key and the spec of each group in a `Composite` that has no entries."""
    for name, spec in specs.items():
        if isinstance(spec, Composite):
            if spec.is_empty():
                yield (*prefix, name), spec
            else:
                yield from _empty_groups(spec, (*prefix, name))


class BatchSizeTransform(Transform):
    """Gives an environment another batch size.

    `batch_size` is for environments that accept TensorDicts of any batch size, which then have a fixed one.
    `reshape_fn` arranges the rows of other environments.

    Args:
        batch_size: the new batch size; an int for one dimension.
        reshape_fn: takes a TensorDict or a `Composite`, and returns it with the same rows in another batch size, for
            example by `reshape`, `flatten`, `unflatten`, `squeeze` or `unsqueeze`.
        reset_func: takes the input and the output of a reset of the environment, and returns the output of the reset,
            in the new batch size. Without it, the environment is reset in that batch size.
        env_kwarg: whether `reset_func` gets the environment too, by the keyword `env`.

    Raises:
        ValueError: both or neither of `batch_size` and `reshape_fn` are given; `batch_size` has a negative size; a
            function cannot be called.
        SpaceError: on use, if `batch_size` is given for an environment with a fixed one, or if `reshape_fn` does not
            keep each row.

    >>> from vecrl.envs import GymEnv, PendulumEnv
    >>> reshape = BatchSizeTransform(reshape_fn=lambda data: data.reshape(1, 1))
    >>> GymEnv("CartPole-v1").append_transform(reshape).batch_size
    torch.Size([1, 1])
    >>> PendulumEnv().append_transform(BatchSizeTransform(batch_size=[5])).rollout(3).shape
    torch.Size([5, 3])
    """

    def __init__(
        self,
        *,
        batch_size: int | Sequence[int] | None = None,
        reshape_fn: Callable[[Any], Any] | None = None,
        reset_func: Callable[..., TensorDictBase] | None = None,
        env_kwarg: bool = False,
    ):
        if (batch_size is None) == (reshape_fn is None):
            given = "neither" if batch_size is None else "both"
            raise ValueError(f"Expected either batch_size or reshape_fn, got {given}. Give one.")
        for name, function in (("reshape_fn", reshape_fn), ("reset_func", reset_func)):
            if function is not None and not callable(function):
                raise ValueError(f"Expected {name} to be a function, got {function!r:.80}.")
        super().__init__()
        self.batch_size = None if batch_size is None else _parse_size(batch_size)
        self.reshape_fn = reshape_fn
        self.reset_func = reset_func
        self.env_kwarg = env_kwarg

    # -- rows

    def _row_numbers(self, batch_size: torch.Size) -> Tensor:
        """Returns the number of each row of the parent, in the new batch size."""
        assert self.reshape_fn is not None
        numbers = torch.arange(batch_size.numel()).reshape(batch_size)
        reshaped = self.reshape_fn(TensorDict({"row": numbers}, batch_size)).get("row")
        if not reshaped.flatten().sort().values.equal(numbers.flatten()):
            raise SpaceError(
                f"Expected reshape_fn to keep each of {batch_size.numel()} rows, got the rows {reshaped.tolist()}. "
                f"Use reshape, for example."
            )
        return reshaped

    @cached_property
    def _order(self) -> Tensor | None:
        """The position of each row of the parent in the new batch, or None if they are in order."""
        order = self._row_numbers(self._require_parent().batch_size).flatten().argsort()
        return None if order.equal(torch.arange(len(order))) else order

    def _to_parent_layout(self, tensordict: TensorDictBase) -> TensorDictBase:
        if self.reshape_fn is None:
            return tensordict
        parent_batch = self._require_parent().batch_size
        rows = tensordict.reshape(-1)
        if self._order is not None:
            rows = rows[self._order]
        return rows.reshape(parent_batch) if parent_batch else rows[0]

    def _from_parent_layout(self, tensordict: TensorDictBase) -> TensorDictBase:
        return tensordict if self.reshape_fn is None else self.reshape_fn(tensordict)

    # -- steps and resets

    def _call(self, next_tensordict: TensorDictBase) -> TensorDictBase:
        return self._from_parent_layout(next_tensordict)

    def _inv_call(self, tensordict: TensorDictBase) -> TensorDictBase:
        return tensordict if self.parent is None else self._to_parent_layout(tensordict)

    @property
    def _has_inverse(self) -> bool:
        return self.reshape_fn is not None

    def _reset_env_preprocess(self, tensordict: TensorDictBase | None) -> TensorDictBase | None:
        if tensordict is not None:
            return self._to_parent_layout(tensordict)
        if self.batch_size is None or self.reset_func is not None:
            return None
        return TensorDict({}, self.batch_size, device=self._require_parent().device)

    def _reset(self, tensordict: TensorDictBase, tensordict_reset: TensorDictBase) -> TensorDictBase:
        if self.reset_func is None:
            return self._call(tensordict_reset)
        env = {"env": self._env} if self.env_kwarg else {}
        return self.reset_func(tensordict, tensordict_reset, **env)

    # -- specs

    def transform_env_batch_size(self, batch_size: torch.Size) -> torch.Size:
        """Returns the new batch size."""
        return self._row_numbers(batch_size).shape if self.batch_size is None else self.batch_size

    def _reshaped(self, specs: Composite) -> Composite:
        if self.reshape_fn is not None:
            return self.reshape_fn(specs)
        assert self.batch_size is not None
        parent = self._require_parent()
        if parent.batch_locked and parent.batch_size != self.batch_size:
            raise SpaceError(
                f"Expected an environment that accepts any batch size, got one of {tuple(parent.batch_size)}. Use "
                f"reshape_fn."
            )
        return specs.expand(self.batch_size)

    def transform_output_spec(self, output_spec: Composite) -> Composite:
        """Returns the specs in the new batch size."""
        return self._reshaped(output_spec)

    def transform_input_spec(self, input_spec: Composite) -> Composite:
        """Returns the specs in the new batch size."""
        return self._reshaped(input_spec)


def _parse_size(batch_size: int | Sequence[int]) -> torch.Size:
    """Returns a batch size. Raises a ValueError if a size is negative."""
    size = torch.Size([batch_size] if isinstance(batch_size, int) else batch_size)
    if any(number < 0 for number in size):
        raise ValueError(f"Expected batch_size to have sizes of 0 or more, got {batch_size}.")
    return size
