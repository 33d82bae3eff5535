"""Transforms of keys: entries joined, renamed, chosen or left out. Values stay as they are."""

from __future__ import annotations

from typing import Any

import torch
from tensordict import LazyStackedTensorDict, TensorDictBase
from torch import Tensor

from ...errors import SpaceError
from ...specs import Bounded, Composite, TensorSpec, Unbounded
from ..spec_container import FLAGS, Key, split_key
from ..step_mdp import as_keys
from .base import Transform
from .heterogeneous import is_heterogeneous
from .spec_probe import probe_output
from .stateless import ObservationTransform, StatelessTransform


class CatTensors(ObservationTransform):
    """Puts tensors behind one another, into one entry.

    Args:
        in_keys: what is joined; by default the environment's observations of one dimension (after those of the batch).
        out_key: the result; in the dtype that torch promotes them to.
        dim: along which dimension, counted from the end; from 0 on it is counted after those of the batch.
        del_keys: take the `in_keys` out, but for those that the environment's next step goes on from.
        unsqueeze_if_oor: where the entries have no such dimension, give it to them.
        sort: join them in the order of their names.

    >>> from tensordict import TensorDict
    >>> td = TensorDict({"b": torch.ones(3, 1), "a": torch.zeros(3, 2)}, [3])
    >>> CatTensors(["b", "a"], "both")(td)["both"][0]
    tensor([0., 0., 1.])
    """

    elementwise = True

    def __init__(
        self,
        in_keys: Any = None,
        out_key: Key = "observation_vector",
        dim: int = -1,
        *,
        del_keys: bool = True,
        unsqueeze_if_oor: bool = False,
        sort: bool = True,
    ):
        super().__init__()
        self._sort = sort
        self.in_keys = None if in_keys is None else self._sort_keys(as_keys(in_keys))
        self.out_key: Key = as_keys(out_key)[0]
        self.dim = dim
        self.del_keys = del_keys
        self.unsqueeze_if_oor = unsqueeze_if_oor

    def _sort_keys(self, keys: list[Key]) -> list[Key]:
        return sorted(keys, key=lambda key: key if isinstance(key, str) else ".".join(key)) if self._sort else keys

    def _default_in_keys(self) -> list[Key]:
        parent = self.parent
        if parent is None:
            return []
        specs = parent.full_observation_spec
        return self._sort_keys([key for key in parent.observation_keys if specs[key].ndim == parent.batch_dims + 1])

    @property
    def out_keys(self) -> list[Key]:
        """The result."""
        return [self.out_key]

    @out_keys.setter
    def out_keys(self, keys: Any) -> None:
        if keys is not None:
            (self.out_key,) = as_keys(keys)

    def _call(self, next_tensordict: TensorDictBase) -> TensorDictBase:
        values: list[Any] = [next_tensordict.get(key, None) for key in self.in_keys]
        if any(value is None for value in values):
            if self._allow_missing:
                return next_tensordict
            raise self._missing(self.in_keys[values.index(None)], next_tensordict)
        if values:
            next_tensordict.exclude(*self._removed_keys, inplace=True)
            next_tensordict.set(self.out_key, self._concat(values, next_tensordict.batch_dims))
        return next_tensordict

    @property
    def _removed_keys(self) -> list[Key]:
        """What is taken out."""
        return self._cached("gone", lambda: _removable_keys(self, self.in_keys)) if self.del_keys else []

    def _concat(self, values: list[Tensor], batch_dims: int) -> Tensor:
        dim = self.dim if self.dim < 0 else self.dim + batch_dims
        if self.unsqueeze_if_oor:
            min_dims = -dim if dim < 0 else self.dim + 1
            values = [value if value.ndim - batch_dims >= min_dims else value.unsqueeze(dim) for value in values]
        return torch.cat(values, dim)

    def transform_observation_spec(self, observation_spec: Composite) -> Composite:
        """With the result, whose bounds are those of its parts where all of them have some."""
        specs: list[TensorSpec] = [observation_spec[key] for key in self.in_keys]
        if not specs:
            return observation_spec
        dims = observation_spec.ndim
        try:
            concatenated, shape = probe_output(lambda *values: self._concat(list(values), dims), *specs)
        except (RuntimeError, IndexError) as error:
            if any(map(is_heterogeneous, specs)):  # which is told where all transforms are applied
                raise
            descriptions = ", ".join(
                f"{key!r} of {tuple(spec.shape)}" for key, spec in zip(self.in_keys, specs, strict=True)
            )
            raise SpaceError(
                f"Expected entries that go behind one another along dim={self.dim}, but they are {descriptions}. "
                "unsqueeze_if_oor=True gives the dimension to those without it."
            ) from error
        for key in self._removed_keys:
            del observation_spec[key]
        observation_spec[self.out_key] = self._spec_of(specs, concatenated, shape, dims)
        return observation_spec

    def transform_reward_spec(self, reward_spec: Composite) -> Composite:
        """As they are: observations are joined."""
        return reward_spec

    def _spec_of(
        self, specs: list[TensorSpec], concatenated: Tensor, shape: tuple[int, ...], batch_dims: int
    ) -> TensorSpec:
        bounded = [spec for spec in specs if isinstance(spec, Bounded)]
        # behind which bounds have no place
        is_dynamic = shape[self.dim if self.dim < 0 else self.dim + batch_dims] == -1
        if len(bounded) < len(specs) or is_dynamic:
            return Unbounded(shape, dtype=concatenated.dtype, device=concatenated.device)
        low = self._concat([spec.low for spec in bounded], batch_dims)
        high = self._concat([spec.high for spec in bounded], batch_dims)
        return Bounded(low, high, shape, dtype=concatenated.dtype, device=concatenated.device)


def _removable_keys(transform: Transform, keys: list[Key]) -> list[Key]:
    """Those that the environment's next step does not go on from."""
    parent = transform.parent
    return keys if parent is None else [key for key in keys if key not in parent.state_keys]


class RenameTransform(StatelessTransform):
    """Gives entries other names.

    Args:
        in_keys, out_keys: the names inside and outside, of observations and rewards (and, as copies, done flags).
        in_keys_inv, out_keys_inv: the names inside and outside, of actions and other inputs.
        create_copy: have both names, each with a tensor of its own.

    Raises:
        SpaceError: a done flag is renamed, by which environments know where episodes end.

    >>> from tensordict import TensorDict
    >>> sorted(RenameTransform(["a"], ["b"])(TensorDict({"a": 1})).keys())
    ['b']
    """

    elementwise = True

    def __init__(
        self, in_keys: Any, out_keys: Any, in_keys_inv: Any = None, out_keys_inv: Any = None, create_copy: bool = False
    ):
        super().__init__(in_keys, out_keys, in_keys_inv, out_keys_inv)
        self.create_copy = create_copy

    def _call(self, next_tensordict: TensorDictBase) -> TensorDictBase:
        return self._rename(next_tensordict, self._key_pairs)

    def _inv_call(self, tensordict: TensorDictBase) -> TensorDictBase:
        return self._rename(tensordict, self._inverse_key_pairs)

    def _rename(self, td: TensorDictBase, routes: list[tuple[Key, Key]]) -> TensorDictBase:
        if isinstance(td, LazyStackedTensorDict):  # whose entries may have no common shape
            for row in td.tensordicts:
                self._rename(row, routes)
            return td
        renamed: list[tuple[Key, Any]] = []
        for old_key, new_key in routes:
            value = td.get(old_key, None)
            if value is not None:
                renamed.append((new_key, value.clone() if self.create_copy else value))
            elif not self._allow_missing:
                raise self._missing(old_key, td)
        if not self.create_copy:
            td.exclude(*[old_key for old_key, _ in routes], inplace=True)
        for new_key, value in renamed:
            td.set(new_key, value)
        return td

    def transform_observation_spec(self, observation_spec: Composite) -> Composite:
        """With the new names."""
        return self._rename_spec(observation_spec)

    def transform_reward_spec(self, reward_spec: Composite) -> Composite:
        """With the new names."""
        return self._rename_spec(reward_spec)

    def transform_done_spec(self, done_spec: Composite) -> Composite:
        """With copies under the new names."""
        for old_key, new_key in self._key_pairs:
            if not self.create_copy and split_key(old_key)[1] in FLAGS and old_key in done_spec:
                raise SpaceError(
                    f"{old_key!r} says where episodes end, so it cannot be renamed to {new_key!r}; RenameTransform(…, "
                    "create_copy=True) gives it a second name."
                )
        return self._rename_spec(done_spec)

    def _rename_spec(self, specs: Composite) -> Composite:
        renamed = [(old_key, new_key, specs[old_key]) for old_key, new_key in self._key_pairs if old_key in specs]
        if not self.create_copy:
            for old_key, _, _ in renamed:
                del specs[old_key]
        for old_key, new_key, spec in renamed:
            prefix = split_key(new_key)[0]
            for ancestor in (prefix[:n] for n in range(1, len(prefix) + 1)):
                if not isinstance(specs.get(ancestor, None), Composite | None):
                    raise SpaceError(f"{old_key!r} cannot be named {new_key!r}, since {ancestor!r} is a value itself.")
            specs[new_key] = spec.clone()
        return specs


class SelectTransform(StatelessTransform):
    """Keeps the chosen entries, of what comes out, and those that the environment's next step goes on from.

    Args:
        selected_keys: the entries.
        keep_rewards: keep the rewards too; of stored data "reward".
        keep_dones: keep the done flags too; of stored data "done", "terminated" and "truncated". Without them no
            episode ends.

    >>> from tensordict import TensorDict
    >>> sorted(SelectTransform("a")(TensorDict({"a": 1, "b": 2, "reward": 3.0})).keys())
    ['a', 'reward']
    """

    elementwise = True

    def __init__(self, *selected_keys: Any, keep_rewards: bool = True, keep_dones: bool = True):
        super().__init__()
        self.selected_keys: list[Key] = [as_keys(key)[0] for key in selected_keys]
        self.keep_rewards = keep_rewards
        self.keep_dones = keep_dones

    @property
    def _kept_keys(self) -> list[Key]:
        return self._cached("kept", self._find_kept_keys)

    def _find_kept_keys(self) -> list[Key]:
        parent = self.parent
        rewards: list[Key] = ["reward"] if parent is None else parent.reward_keys
        flags: list[Key] = list(FLAGS) if parent is None else parent.done_keys
        states: list[Key] = [] if parent is None else parent.state_keys
        extra_keys = [*states, *(rewards if self.keep_rewards else []), *(flags if self.keep_dones else [])]
        return list(dict.fromkeys([*self.selected_keys, *extra_keys]))

    def _call(self, next_tensordict: TensorDictBase) -> TensorDictBase:
        return next_tensordict.select(*self._kept_keys, inplace=True, strict=False)

    def _apply_to_rollout(self, root: TensorDictBase, next_td: TensorDictBase, is_first: Tensor) -> None:
        parent = self._require_parent()  # what went in, such as actions, stays in the roots
        outputs: list[Key] = [*parent.observation_keys, *parent.done_keys]
        root.exclude(*(key for key in outputs if key not in self._kept_keys), inplace=True)
        self._call(next_td)

    def transform_observation_spec(self, observation_spec: Composite) -> Composite:
        """Of the chosen entries alone."""
        return observation_spec.select(*self._kept_keys, strict=False)

    def transform_reward_spec(self, reward_spec: Composite) -> Composite:
        """All of them, or the chosen ones."""
        return reward_spec if self.keep_rewards else reward_spec.select(*self.selected_keys, strict=False)

    def transform_done_spec(self, done_spec: Composite) -> Composite:
        """All of them, or the chosen ones."""
        return done_spec if self.keep_dones else done_spec.select(*self.selected_keys, strict=False)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(keys={self.selected_keys})"


class ExcludeTransform(StatelessTransform):
    """Leaves entries out, of what comes out or, with `inverse`, of what goes in.

    Args:
        excluded_keys: the entries.
        inverse: leave them out of what goes in (into a store, for instance), and nothing of what comes out.

    Raises:
        KeyError: the environment has no such entry.
    """

    elementwise = True

    def __init__(self, *excluded_keys: Any, inverse: bool = False):
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
        """Without the entries."""
        if self.inverse:
            return output_spec
        specs: list[Any] = list(output_spec.values())
        for key in self.excluded_keys:
            if split_key(key)[1] == "done" and key in output_spec["full_done_spec"]:
                raise SpaceError(f"{key!r} says where episodes end, so it cannot be left out.")
            containing_specs = [spec for spec in specs if key in spec]
            if not containing_specs:
                available = [
                    existing_key for spec in specs for existing_key in spec.keys(include_nested=True, leaves_only=True)
                ]
                raise KeyError(f"There is no {key!r} to leave out; the environment gives {available}.")
            for spec in containing_specs:
                del spec[key]
        return output_spec

    def __repr__(self) -> str:
        return f"{type(self).__name__}(keys={self.excluded_keys})"
