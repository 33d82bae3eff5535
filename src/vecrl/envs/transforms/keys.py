"""Transforms that concatenate, rename, select or exclude entries. Values stay the same."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import torch
from tensordict import LazyStackedTensorDict, TensorDictBase
from torch import Tensor

from ...errors import SpaceError
from ...specs import Bounded, Composite, TensorSpec, Unbounded
from ...validation import parse_int
from ..entries.keys import FLAGS, Key, parse_key, split_key
from ..entries.step_mdp import as_keys
from .base import ObservationTransform, StatelessTransform
from .keyed_module import Keys
from .ragged_entries import entries_at, is_heterogeneous
from .spec_hooks import probe_output

__all__ = ["CatTensors", "ExcludeTransform", "RenameTransform", "SelectTransform"]


class JoinTransform(ObservationTransform):
    """The base of transforms that join several entries into one.

    Args:
        in_keys: the keys of the entries.
        out_key: the key of the result.
        del_keys: whether to remove the `in_keys`, except those that the next step of the environment needs.
        in_keys_inv, out_keys_inv: as in `Transform`.
    """

    elementwise = True
    _takes_records = True

    def __init__(
        self, in_keys: Keys, out_key: Key, del_keys: bool, in_keys_inv: Keys = None, out_keys_inv: Keys = None
    ):
        super().__init__(in_keys, None, in_keys_inv, out_keys_inv)
        self.out_key = parse_key("out_key", out_key)
        self.del_keys = del_keys

    @property
    def out_keys(self) -> list[Key]:
        """The key of the result."""
        return [self.out_key]

    @out_keys.setter
    def out_keys(self, keys: Keys) -> None:
        if keys is not None:
            (self.out_key,) = as_keys(keys)

    def _join(self, values: list[Any], batch_dims: int) -> Any:
        """Returns the joined entry for entries `[*batch, ...]`."""
        raise NotImplementedError

    def _call(self, next_tensordict: TensorDictBase) -> TensorDictBase:
        values: list[Any] = [next_tensordict.get(key, None) for key in self.in_keys]
        if any(value is None for value in values):
            if self._allow_missing:
                return next_tensordict
            raise self._missing(self.in_keys[values.index(None)], next_tensordict)
        if values:
            remove_entries(next_tensordict, self._removed_keys)
            next_tensordict.set(self.out_key, self._join(values, next_tensordict.batch_dims))
        return next_tensordict

    @cached_property
    def _removed_keys(self) -> list[Key]:
        """The keys to remove: none that the next step of the environment needs."""
        return self._removable(self.in_keys) if self.del_keys else []


def remove_entries(container: Any, keys: list[Key]) -> None:
    """Removes entries of a TensorDict or specs of a Composite in place, and groups that are empty without them."""
    for key in keys:
        del container[key]
        prefix = split_key(key)[0]
        while prefix and container.get(prefix).is_empty():
            del container[prefix]
            prefix = prefix[:-1]


class CatTensors(JoinTransform):
    """Concatenates tensors into one entry.

    Args:
        in_keys: the keys of entries to concatenate; by default observations with one dimension after the batch
            dimensions.
        out_key: the key of the result, in the dtype to which torch promotes the entries.
        dim: the dimension; a negative one is counted from the end, others from 0 after the batch dimensions.
        del_keys: whether to remove the `in_keys`, except those that the next step of the environment needs.
        unsqueeze_if_oor: whether to add the dimension to entries without it.
        sort: whether to concatenate entries in the order of their names.

    Raises:
        SpaceError: on use in an environment, if the entries cannot be concatenated along `dim`.

    >>> from tensordict import TensorDict
    >>> td = TensorDict({"b": torch.ones(3, 1), "a": torch.zeros(3, 2)}, [3])
    >>> CatTensors(["b", "a"], "both")(td)["both"][0]
    tensor([0., 0., 1.])
    """

    def __init__(
        self,
        in_keys: Keys = None,
        out_key: Key = "observation_vector",
        dim: int = -1,
        *,
        del_keys: bool = True,
        unsqueeze_if_oor: bool = False,
        sort: bool = True,
    ):
        super().__init__(None, out_key, del_keys)
        self._sort = sort
        if in_keys is not None:
            self.in_keys = self._sort_keys([*in_keys] if isinstance(in_keys, tuple) else as_keys(in_keys))
        self.dim = parse_int("dim", dim)
        self.unsqueeze_if_oor = unsqueeze_if_oor

    def _sort_keys(self, keys: list[Key]) -> list[Key]:
        return sorted(keys, key=lambda key: key if isinstance(key, str) else ".".join(key)) if self._sort else keys

    def _default_in_keys(self) -> list[Key]:
        parent = self.parent
        if parent is None:
            return []
        specs = parent.full_observation_spec
        return self._sort_keys([key for key in parent.observation_keys if specs[key].ndim == parent.batch_dims + 1])

    def _join(self, values: list[Tensor], batch_dims: int) -> Tensor:
        dim = self.dim if self.dim < 0 else self.dim + batch_dims
        if self.unsqueeze_if_oor:
            min_dims = -dim if dim < 0 else self.dim + 1
            values = [value if value.ndim - batch_dims >= min_dims else value.unsqueeze(dim) for value in values]
        return torch.cat(values, dim)

    def transform_observation_spec(self, observation_spec: Composite) -> Composite:
        """Adds the spec of the result, and removes those of the removed entries. It is bounded if all entries are."""
        missing = [key for key in self.in_keys if key not in observation_spec]
        if missing and not self._allow_missing:
            raise SpaceError(
                f"Expected CatTensors to concatenate observations, {list(observation_spec.keys(True, True))}, got "
                f"in_keys {missing}, which are none. Give other in_keys."
            )
        specs: list[TensorSpec] = [] if missing else [observation_spec[key] for key in self.in_keys]
        if not specs:
            return observation_spec
        dims = observation_spec.ndim
        try:
            concatenated, shape = probe_output(lambda *values: self._join(list(values), dims), *specs)
        except (RuntimeError, IndexError) as error:
            if any(map(is_heterogeneous, specs)):  # see heterogeneous_errors
                raise
            descriptions = ", ".join(
                f"{key!r} of {tuple(spec.shape)}" for key, spec in zip(self.in_keys, specs, strict=True)
            )
            raise SpaceError(
                f"Expected entries that can be concatenated along dim={self.dim}, got {descriptions}. "
                "unsqueeze_if_oor=True adds the dimension to entries without it."
            ) from error
        remove_entries(observation_spec, self._removed_keys)
        observation_spec[self.out_key] = self._spec_of(specs, concatenated, shape, dims)
        return observation_spec

    def transform_reward_spec(self, reward_spec: Composite) -> Composite:
        """Returns the specs unchanged, because observations are concatenated."""
        return reward_spec

    def _spec_of(
        self, specs: list[TensorSpec], concatenated: Tensor, shape: tuple[int, ...], batch_dims: int
    ) -> TensorSpec:
        bounded = [spec for spec in specs if isinstance(spec, Bounded)]
        # the positions of bounds after a dynamic size are not known
        is_dynamic = shape[self.dim if self.dim < 0 else self.dim + batch_dims] == -1
        if len(bounded) < len(specs) or is_dynamic:
            return Unbounded(shape, dtype=concatenated.dtype, device=concatenated.device)
        low = self._join([spec.low for spec in bounded], batch_dims)
        high = self._join([spec.high for spec in bounded], batch_dims)
        return Bounded(low, high, shape, dtype=concatenated.dtype, device=concatenated.device)


class RenameTransform(StatelessTransform):
    """Renames entries.

    Args:
        in_keys, out_keys: the keys in the environment and for the user, of observations and rewards; also of done flags
            if `create_copy`.
        in_keys_inv, out_keys_inv: the keys in the environment and for the user, of actions and other inputs.
        create_copy: whether to keep the old entries too; the new ones are copies.

    Raises:
        SpaceError: on use, if a done flag is renamed, which environments need, or if a new key is nested in a value.

    >>> from tensordict import TensorDict
    >>> sorted(RenameTransform(["a"], ["b"])(TensorDict({"a": 1})).keys())
    ['b']
    """

    elementwise = True
    _takes_records = True
    _inverse_needs_keys = True

    def __init__(
        self,
        in_keys: Keys,
        out_keys: Keys,
        in_keys_inv: Keys = None,
        out_keys_inv: Keys = None,
        create_copy: bool = False,
    ):
        super().__init__(in_keys, out_keys, in_keys_inv, out_keys_inv)
        self.create_copy = create_copy

    def _call(self, next_tensordict: TensorDictBase) -> TensorDictBase:
        return self._rename(next_tensordict, self._key_pairs)

    def _inv_call(self, tensordict: TensorDictBase) -> TensorDictBase:
        return self._rename(tensordict, self._inverse_key_pairs)

    @property
    def _changes_layout(self) -> bool:
        return any(out_key != in_key for out_key, in_key in self._inverse_key_pairs)

    def _to_parent_layout(self, tensordict: TensorDictBase) -> TensorDictBase:
        return self._tolerant(self._inv_call, tensordict.copy())

    def _from_parent_layout(self, tensordict: TensorDictBase) -> TensorDictBase:
        pairs = [(in_key, out_key) for out_key, in_key in self._inverse_key_pairs]
        return self._tolerant(lambda td: self._rename(td, pairs), tensordict.copy())

    def _rename(self, td: TensorDictBase, key_pairs: list[tuple[Key, Key]]) -> TensorDictBase:
        if isinstance(td, LazyStackedTensorDict):  # its entries may have different shapes by row
            for row in td.tensordicts:
                self._rename(row, key_pairs)
            return td
        renamed: list[tuple[TensorDictBase, Key, Any]] = []
        for old_key, new_key in key_pairs:
            for part, key, value in entries_at(td, old_key, new_key):
                if value is not None:
                    renamed.append((part, key, value.clone() if self.create_copy else value))
                elif not self._allow_missing:
                    raise self._missing(old_key, td)
        if not self.create_copy:
            td.exclude(*[old_key for old_key, _ in key_pairs], inplace=True)
        for part, key, value in renamed:
            part.set(key, value)
        return td

    def transform_observation_spec(self, observation_spec: Composite) -> Composite:
        """Renames the specs."""
        return self._rename_spec(observation_spec)

    def transform_reward_spec(self, reward_spec: Composite) -> Composite:
        """Renames the specs."""
        return self._rename_spec(reward_spec)

    def transform_done_spec(self, done_spec: Composite) -> Composite:
        """Adds copies of the specs under the new keys."""
        for old_key, new_key in self._key_pairs:
            if not self.create_copy and split_key(old_key)[1] in FLAGS and old_key in done_spec:
                raise SpaceError(
                    f"Expected a done flag such as {old_key!r} to keep its key, got {new_key!r}. Use "
                    "RenameTransform(…, create_copy=True), which keeps both."
                )
        return self._rename_spec(done_spec)

    def _inverse_spec(self, specs: Composite) -> Composite:
        kept = {key: specs[key] for key in self.in_keys_inv if self.create_copy and key in specs}
        specs = super()._inverse_spec(specs)
        for key, spec in kept.items():
            specs[key] = spec
        return specs

    def _rename_spec(self, specs: Composite) -> Composite:
        renamed = [(old_key, new_key, specs[old_key]) for old_key, new_key in self._key_pairs if old_key in specs]
        if not self.create_copy:
            for old_key, _, _ in renamed:
                del specs[old_key]
        for old_key, new_key, spec in renamed:
            prefix = split_key(new_key)[0]
            for ancestor in (prefix[:n] for n in range(1, len(prefix) + 1)):
                if not isinstance(specs.get(ancestor, None), Composite | None):
                    raise SpaceError(
                        f"Expected a new key for {old_key!r} not nested in a value, got {new_key!r}, and {ancestor!r} "
                        f"is a value. Use another key."
                    )
            specs[new_key] = spec.clone()
        return specs


class SelectTransform(StatelessTransform):
    """Keeps selected entries of outputs, and those that the next step of the environment needs.

    Args:
        selected_keys: the keys of the entries.
        keep_rewards: whether to keep rewards too; "reward" in stored data.
        keep_dones: whether to keep done flags too; "done", "terminated" and "truncated" in stored data. Without them no
            episode ends.

    >>> from tensordict import TensorDict
    >>> sorted(SelectTransform("a")(TensorDict({"a": 1, "b": 2, "reward": 3.0})).keys())
    ['a', 'reward']
    """

    elementwise = True
    _takes_records = True

    def __init__(self, *selected_keys: Key, keep_rewards: bool = True, keep_dones: bool = True):
        super().__init__()
        self.selected_keys: list[Key] = [as_keys(key)[0] for key in selected_keys]
        self.keep_rewards = keep_rewards
        self.keep_dones = keep_dones

    @cached_property
    def _kept_keys(self) -> list[Key]:
        parent = self.parent
        rewards: list[Key] = ["reward"] if parent is None else parent.reward_keys
        flags: list[Key] = list(FLAGS) if parent is None else parent.done_keys
        states: list[Key] = [] if parent is None else parent.state_keys
        extra_keys = [*states, *(rewards if self.keep_rewards else []), *(flags if self.keep_dones else [])]
        return list(dict.fromkeys([*self.selected_keys, *extra_keys]))

    def _call(self, next_tensordict: TensorDictBase) -> TensorDictBase:
        return next_tensordict.select(*self._kept_keys, inplace=True, strict=False)

    def _apply_to_rollout(self, root: TensorDictBase, next_td: TensorDictBase, is_first: Tensor) -> None:
        parent = self._require_parent()  # inputs such as actions are kept in the roots
        outputs: list[Key] = [*parent.observation_keys, *parent.done_keys]
        root.exclude(*(key for key in outputs if key not in self._kept_keys), inplace=True)
        self._call(next_td)

    def transform_observation_spec(self, observation_spec: Composite) -> Composite:
        """Returns the specs of the entries to keep."""
        return observation_spec.select(*self._kept_keys, strict=False)

    def transform_reward_spec(self, reward_spec: Composite) -> Composite:
        """Returns all specs, or those of the selected entries without `keep_rewards`."""
        return reward_spec if self.keep_rewards else reward_spec.select(*self.selected_keys, strict=False)

    def transform_done_spec(self, done_spec: Composite) -> Composite:
        """Returns all specs, or those of the selected entries without `keep_dones`."""
        return done_spec if self.keep_dones else done_spec.select(*self.selected_keys, strict=False)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(keys={self.selected_keys})"


class ExcludeTransform(StatelessTransform):
    """Removes entries from outputs or, with `inverse`, from inputs.

    Args:
        excluded_keys: the keys of the entries.
        inverse: whether to remove the entries from inputs (for example data to store) instead of outputs.

    Raises:
        KeyError: on use, if the environment has no such entry.
        SpaceError: on use, if a "done" flag is removed.
    """

    elementwise = True
    _takes_records = True

    def __init__(self, *excluded_keys: Key, inverse: bool = False):
        super().__init__()
        self.excluded_keys: list[Key] = [as_keys(key)[0] for key in excluded_keys]
        self.inverse = inverse

    @property
    def _has_inverse(self) -> bool:
        return self.inverse

    def _call(self, next_tensordict: TensorDictBase) -> TensorDictBase:
        return next_tensordict if self.inverse else next_tensordict.exclude(*self.excluded_keys, inplace=True)

    def _inv_call(self, tensordict: TensorDictBase) -> TensorDictBase:
        return tensordict.exclude(*self.excluded_keys, inplace=True) if self.inverse else tensordict

    def transform_output_spec(self, output_spec: Composite) -> Composite:
        """Removes the specs of the entries."""
        if self.inverse:
            return output_spec
        specs: list[Any] = list(output_spec.values())
        for key in self.excluded_keys:
            if split_key(key)[1] == "done" and key in output_spec["full_done_spec"]:
                raise SpaceError(f"Expected keys other than the done flags, got {key!r}, which ends episodes. Keep it.")
            containing_specs = [spec for spec in specs if key in spec]
            if not containing_specs:
                available = [
                    existing_key for spec in specs for existing_key in spec.keys(include_nested=True, leaves_only=True)
                ]
                raise KeyError(f"Expected keys of the environment, {available}, got {key!r}.")
            for spec in containing_specs:
                del spec[key]
        return output_spec

    def __repr__(self) -> str:
        return f"{type(self).__name__}(keys={self.excluded_keys})"
