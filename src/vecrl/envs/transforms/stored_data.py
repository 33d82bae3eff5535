"""Transforms of stored trajectories `[..., time]`: multi-step returns, returns to go, burn-in, random crops, and next
observations as differences.

They look at several steps at once, some of them later ones. Call `inv` on data before they are stored, and the
transform itself on data that are read.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch import Tensor

from ...errors import SpaceError
from ...validation import parse_count, parse_int, parse_number
from ..entries.keys import FLAGS, Key, join_key, key_path, split_key
from ..entries.row_masks import broadcast_mask, reduce_to_rows
from ..entries.step_mdp import as_keys
from .base import Transform
from .keyed_module import Keys
from .spec_hooks import parse_numbers

__all__ = [
    "BurnInTransform",
    "MultiStepTransform",
    "NextObservationDelta",
    "NextStateReconstructor",
    "RandomCropTensorDict",
    "Reward2GoTransform",
]


class StoredDataTransform(Transform):
    """The base of transforms of stored trajectories, which refuse to be part of an environment."""

    stored_data_only = True

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Returns data that are read from a storage; unchanged by default."""
        return tensordict

    def inv(self, tensordict: TensorDictBase) -> Any:
        """Returns data to store; unchanged by default."""
        return tensordict

    def _check_batch(self, tensordict: TensorDictBase) -> None:
        if not tensordict.batch_dims:
            raise ValueError(
                f"Expected trajectories [..., time] as input of {type(self).__name__}, got data without a batch size. "
                "Give a stored rollout."
            )

    def _entry(self, tensordict: TensorDictBase, key: Key) -> Any:
        value = tensordict.get(key, None)
        if value is None:
            raise self._missing(key, tensordict)
        return value


def parse_discount(gamma: Any) -> float:
    """Returns a discount factor as a float. Raises a ValueError unless it is a number from 0 to 1."""
    return parse_number("gamma", gamma, 0, 1)


def below_next(key: Key) -> tuple[str, ...]:
    """Returns the key of the same entry under "next"."""
    return ("next", *key_path(key))


def take_steps(tensordict: TensorDictBase, index: Tensor, dim: int) -> TensorDictBase:
    """Returns the steps at `index`, which has the batch size of the data except for the length of `dim`."""
    numbers = [torch.arange(size, device=index.device) for size in index.shape]
    grid = [*torch.meshgrid(*numbers, indexing="ij")]
    taken = tensordict[(*grid[:dim], index, *grid[dim + 1 :])]
    if any(name is not None for name in tensordict.names):
        taken.names = tensordict.names
    return taken


class MultiStepTransform(StoredDataTransform):
    """Replaces rewards by discounted sums over `n_steps` steps, and next observations by those after these steps.

    `inv` changes data before they are stored. The sum of a step ends with its episode, so it may have fewer terms. The
    last `n_steps` steps of the data are kept until the next call, which continues them; None is returned as long as
    there are no others. The kept steps are not part of the `state_dict`. Reading (`forward`) changes nothing.

    It writes, all `[..., time]`:

    - ("next", reward): the sum, and ("next", "original_reward"): the reward of the step ("original_" and the name of
      the reward, in its group);
    - ("next", other keys): those of the last step of the sum;
    - "steps_to_next_obs", int64: the number of terms; "gamma", float32: `gamma` to the power of it, by which a learner
      discounts the value of the next observation;
    - "nonterminal", bool: whether the step is not the last one of its episode, and valid.

    Flags named in `done_keys` are those of the step itself, so that they still mark the ends of episodes in a storage.
    A learner that reads from them whether the next observation is terminal needs `done_keys=[]`, with which they are
    those of the last step of the sum.

    Args:
        n_steps: the number of steps, at least 1. It can be set later.
        gamma: the discount factor, from 0 to 1.
        reward_keys: the keys of rewards under "next"; "reward" by default.
        done_key: the key under "next" of the flag that ends episodes; "done" by default.
        done_keys: the keys under "next" of flags that are not changed; "done", "terminated" and "truncated" by default.
        mask_key: the key of the mask of valid steps, if there is one; "mask" by default.

    Raises:
        ValueError: `n_steps` is not a positive integer, or `gamma` not from 0 to 1; data have no batch size; the
            transform is put into an environment.
        SpaceError: the done flags of a step differ between agents.
        KeyError: a reward or the done flag is missing.

    >>> from tensordict import TensorDict
    >>> reward, done = torch.arange(1.0, 7.0).unsqueeze(-1), torch.zeros(6, 1, dtype=torch.bool)
    >>> steps = TensorDict({"next": {"observation": reward.clone(), "reward": reward, "done": done}}, [6])
    >>> stored = MultiStepTransform(n_steps=2, gamma=0.5).inv(steps)
    >>> stored["next", "reward"].squeeze(-1), stored["next", "observation"].squeeze(-1)
    (tensor([2.0000, 3.5000, 5.0000, 6.5000]), tensor([2., 3., 4., 5.]))
    """

    def __init__(
        self,
        n_steps: int,
        gamma: float,
        *,
        reward_keys: Keys = None,
        done_key: Key | None = None,
        done_keys: Keys = None,
        mask_key: Key | None = None,
    ):
        super().__init__()
        self.n_steps = n_steps
        self.gamma = parse_discount(gamma)
        self.reward_keys = as_keys("reward" if reward_keys is None else reward_keys)
        self.done_key: Key = "done" if done_key is None else done_key
        self.done_keys = as_keys([*FLAGS] if done_keys is None else done_keys)
        self.mask_key: Key = "mask" if mask_key is None else mask_key
        self._kept: TensorDictBase | None = None

    @property
    def n_steps(self) -> int:
        """The number of steps of a sum."""
        return self._n_steps

    @n_steps.setter
    def n_steps(self, value: int) -> None:
        self._n_steps = parse_count("n_steps", value)

    def inv(self, tensordict: TensorDictBase) -> Any:
        """Returns the data to store: earlier steps that are complete now, without the last `n_steps`, or None."""
        self._check_batch(tensordict)
        dim = tensordict.batch_dims - 1
        steps: Any = tensordict if self._kept is None else torch.cat([self._kept, tensordict], dim)
        count = steps.batch_size[-1] - self.n_steps
        complete = self._sum_steps(steps, count) if count > 0 else None
        self._kept = steps[..., -self.n_steps :].clone()
        return complete

    def _sum_steps(self, steps: TensorDictBase, count: int) -> TensorDictBase:
        """Returns the first `count` steps with their sums; at least `n_steps` more are in `steps`."""
        next_td, dim = steps.get("next"), steps.batch_dims - 1
        done = self._ends(steps)
        numbers = torch.arange(done.shape[-1], device=done.device)
        ends = torch.where(done, numbers, done.shape[-1]).flip(-1).cummin(-1).values.flip(-1)
        last = torch.minimum(ends, numbers + self.n_steps - 1)[..., :count]
        lengths = last - numbers[:count] + 1
        moved_td = take_steps(next_td.exclude(*self.reward_keys, *self.done_keys), last, dim)
        complete = steps[..., :count].copy()
        next_td = complete.get("next").copy().update(moved_td)
        for key in self.reward_keys:
            reward, (prefix, name) = self._entry(steps, below_next(key)), split_key(key)
            next_td.set(key, self._discount(reward, lengths, dim))
            next_td.set(join_key(prefix, f"original_{name}"), reward.narrow(dim, 0, count))
        valid = complete.get(self.mask_key, None)
        nonterminal = ~done[..., :count]
        if valid is not None:
            nonterminal &= reduce_to_rows(valid, complete.batch_size)
        values = {"steps_to_next_obs": lengths, "gamma": self.gamma**lengths, "nonterminal": nonterminal}
        return complete.update({"next": next_td, **values})

    def _ends(self, steps: TensorDictBase) -> Tensor:
        """Returns the steps that end an episode, `[..., time]` bool."""
        flags = self._entry(steps, below_next(self.done_key))
        done = reduce_to_rows(flags, steps.batch_size)
        if not done.equal(reduce_to_rows(flags, steps.batch_size, require_all=True)):
            raise SpaceError(
                f"Expected one end of an episode for all agents, got flags at {below_next(self.done_key)} that differ "
                "within a step. Give done_key a flag of the whole step, or transform the data of each agent alone."
            )
        return done

    def _discount(self, reward: Tensor, lengths: Tensor, dim: int) -> Tensor:
        """Returns the discounted sum over `lengths` steps from each step on."""
        total: Any = 0
        for number in range(self.n_steps):
            later = reward.narrow(dim, number, lengths.shape[-1])
            total = total + torch.where(broadcast_mask(lengths > number, later), later, 0) * self.gamma**number
        return total


class Reward2GoTransform(StoredDataTransform):
    """Writes the discounted sum of rewards from each step to the end of its episode, by `inv`, before data are stored.

    Episodes that go on at the end of the data are summed up to there. Reading (`forward`) changes nothing.

    Args:
        gamma: the discount factor; None for 1.
        in_keys: the keys of rewards; ("next", "reward") by default.
        out_keys: the keys of the sums, with the shapes of the rewards; `in_keys` by default.
        done_key: the key under "next" of the flag that ends episodes.

    Raises:
        ValueError: no episode ends in the data; data have no batch size; the transform is put into an environment.
        KeyError: a reward or the done flag is missing.

    >>> from tensordict import TensorDict
    >>> done = torch.tensor([False, False, True, True]).unsqueeze(-1)
    >>> steps = TensorDict({"next": {"reward": torch.ones(4, 1), "done": done}}, [4])
    >>> Reward2GoTransform(gamma=0.5, out_keys=["reward_to_go"]).inv(steps)["reward_to_go"].squeeze(-1)
    tensor([1.7500, 1.5000, 1.0000, 1.0000])
    """

    gamma: Tensor

    def __init__(
        self,
        gamma: float | Tensor | None = 1.0,
        in_keys: Keys = None,
        out_keys: Keys = None,
        done_key: Key | None = "done",
    ):
        super().__init__([("next", "reward")] if in_keys is None else in_keys, out_keys)
        gamma = parse_numbers("gamma", 1.0 if gamma is None else gamma)
        if not bool(((gamma >= 0) & (gamma <= 1)).all()):
            raise ValueError(f"Expected gamma to be a number from 0 to 1, got {gamma}.")
        self.register_buffer("gamma", gamma if gamma.is_floating_point() else gamma.float())
        self.done_key: Key = "done" if done_key is None else done_key

    def inv(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Returns the data to store, with the sums."""
        self._check_batch(tensordict)
        done = self._entry(tensordict, below_next(self.done_key))
        if not done.any():
            raise ValueError(
                f"Expected the end of an episode in the data, got none in {tuple(tensordict.batch_size)} steps. Give "
                "longer trajectories."
            )
        stored, dim = tensordict.copy(), tensordict.batch_dims - 1
        for key, out_key in self._key_pairs:
            reward = self._entry(tensordict, key)
            going_on = torch.where(broadcast_mask(done, reward), 0, self.gamma)
            stored.set(out_key, sum_ahead(reward * torch.ones_like(self.gamma), going_on.expand_as(reward), dim))
        return stored


def sum_ahead(values: Tensor, factors: Tensor, dim: int) -> Tensor:
    """Returns `sums` with `sums[t] = values[t] + factors[t] * sums[t + 1]` along `dim`.

    The spans of the sums are doubled in each pass, so the number of passes is the logarithm of the length.
    """
    sums, factors = values.clone(), factors.clone()
    span = 1
    while span < values.shape[dim]:
        length = values.shape[dim] - span
        head, tail = (factors.narrow(dim, start, length) for start in (0, span))
        sums.narrow(dim, 0, length).add_(head * sums.narrow(dim, span, length))
        head.copy_(head * tail)
        span *= 2
    return sums


class BurnInTransform(StoredDataTransform):
    """Computes the recurrent state of a sequence from its first steps, and removes these steps.

    The modules are called without gradients on the first `burn_in` steps of the data that are read. The state after
    them is written into the first of the steps that are left. The input is not changed.

    Args:
        modules: one or several modules over TensorDicts `[..., time]`, which write their next state under "next".
        burn_in: the number of steps to remove; less than the length of the data.
        out_keys: the keys to write the states to; by default the `out_keys` of the modules under "next", without
            "next".

    Raises:
        ValueError: `burn_in` is negative, or not less than the length of the data; no module writes under "next";
            `out_keys` are not as many as these entries; the transform is put into an environment.

    >>> from tensordict import TensorDict
    >>> from tensordict.nn import TensorDictModule
    >>> sums = TensorDictModule(lambda x: x.cumsum(-1), in_keys=["x"], out_keys=[("next", "state")])
    >>> read = BurnInTransform(sums, burn_in=2)(TensorDict({"x": torch.arange(5), "state": torch.zeros(5)}, [5]))
    >>> read["x"], read["state"]
    (tensor([2, 3, 4]), tensor([1., 0., 0.]))
    """

    def __init__(
        self, modules: TensorDictModuleBase | Sequence[TensorDictModuleBase], burn_in: int, out_keys: Keys = None
    ):
        parts = [modules] if isinstance(modules, TensorDictModuleBase) else [*modules]
        burn_in = parse_int("burn_in", burn_in, 0)
        keys = [key for part in parts for key in part.out_keys if isinstance(key, tuple) and key[0] == "next"]
        if not keys:
            raise ValueError(
                f'Expected modules with out_keys under "next", got {[key for part in parts for key in part.out_keys]}. '
                'Let them write their next state there, as ("next", "hidden").'
            )
        own_keys = [join_key(key[1:-1], key[-1]) for key in keys]
        out_keys = own_keys if out_keys is None else as_keys(out_keys)
        if len(out_keys) != len(keys):
            raise ValueError(f"Expected a key in out_keys for each of {keys}, got {out_keys}.")
        super().__init__([*dict.fromkeys(key for part in parts for key in part.in_keys)], out_keys)
        self._next_keys = keys
        self._parts = parts  # in a list, so that their parameters are not those of the transform
        self.burn_in = burn_in

    def _validate_keys(self, name: str, keys: list[Key]) -> list[Key]:
        return keys

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Returns the steps after the first `burn_in`, with the states in the first of them."""
        if self.burn_in == 0:
            return tensordict
        self._check_batch(tensordict)
        dim, length = tensordict.batch_dims - 1, tensordict.batch_size[-1]
        if length <= self.burn_in:
            raise ValueError(
                f"Expected trajectories of more than burn_in={self.burn_in} steps, got {length} steps. Store longer "
                "ones or reduce burn_in."
            )
        burnt_td = tensordict[..., : self.burn_in].copy()
        with torch.no_grad():
            for part in self._parts:
                parameter = next(part.parameters(), None)
                burnt_td = part(burnt_td if parameter is None else burnt_td.to(parameter.device))
        rest_td = tensordict[..., self.burn_in :].copy()
        for key, out_key in zip(self._next_keys, self.out_keys, strict=True):
            state = self._entry(burnt_td, key).narrow(dim, self.burn_in - 1, 1)
            old_states = rest_td.get(out_key, None)
            shape = [*rest_td.batch_size, *state.shape[dim + 1 :]]
            states = state.new_zeros(shape) if old_states is None else old_states.clone()
            states.narrow(dim, 0, 1).copy_(state)
            rest_td.set(out_key, states)
        return rest_td

    def __repr__(self) -> str:
        return f"{type(self).__name__}(burn_in={self.burn_in}, in_keys={self.in_keys}, out_keys={self.out_keys})"


class RandomCropTensorDict(StoredDataTransform):
    """Takes a random part of each trajectory that is read, with a given number of successive steps.

    Args:
        sub_seq_len: the number of steps, at least 1.
        sample_dim: the batch dimension of time; the last one by default.
        mask_key: the key of the mask of valid steps `[..., time]` bool, which are the first ones of each trajectory;
            only valid steps are taken. By default, and in data without it, all are valid.

    Raises:
        ValueError: `sub_seq_len` is not a positive integer; a trajectory has fewer steps; data have no batch dimension
            `sample_dim`; the transform is put into an environment.

    >>> from tensordict import TensorDict
    >>> part = RandomCropTensorDict(3)(TensorDict({"x": torch.arange(10)}, [10]))["x"]
    >>> bool((part == part[0] + torch.arange(3)).all())
    True
    """

    def __init__(self, sub_seq_len: int, sample_dim: int = -1, mask_key: Key | None = None):
        super().__init__()
        self.sub_seq_len = parse_count("sub_seq_len", sub_seq_len)
        self.sample_dim = sample_dim
        self.mask_key = mask_key

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Returns the part of each trajectory, with a start of its own for each."""
        self._check_batch(tensordict)
        sizes = list(tensordict.batch_size)
        if self.sample_dim not in range(-len(sizes), len(sizes)):
            raise ValueError(
                f"Expected sample_dim to be a batch dimension of data of shape {tuple(sizes)}, got {self.sample_dim}. "
                "Give that of time, such as -1."
            )
        dim = range(len(sizes))[self.sample_dim]
        mask = None if self.mask_key is None else tensordict.get(self.mask_key, None)
        if mask is None:
            lengths = torch.full((*sizes[:dim], 1, *sizes[dim + 1 :]), sizes[dim], device=tensordict.device)
        else:
            lengths = reduce_to_rows(mask, sizes).sum(dim, keepdim=True)
        if (lengths < self.sub_seq_len).any():
            raise ValueError(
                f"Expected trajectories of at least sub_seq_len={self.sub_seq_len} steps, got {int(lengths.min())} "
                "valid steps. Store longer ones or reduce sub_seq_len."
            )
        last_starts = lengths - self.sub_seq_len
        starts = (torch.rand(lengths.shape, device=lengths.device) * (last_starts + 1)).long().minimum(last_starts)
        offsets = torch.arange(self.sub_seq_len, device=lengths.device)
        return take_steps(tensordict, starts + offsets.view(-1, *[1] * (len(sizes) - dim - 1)), dim)


_DISCRETE_DTYPES = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool)


class NextObservationDelta(Transform):
    """Stores the observations under "next" as differences from those of the root, in a dtype with fewer bits.

    `inv` compresses data to store: it replaces ("next", key) by ("next", "delta", key), the difference. `forward`
    restores ("next", key) in data that are read. Observations of the root are kept as they are, so the ends of episodes
    are restored like other steps. The loss is the rounding of the difference to `delta_dtype`: of float16, about a
    thousandth of the difference, which must be below 65504.

    In an environment it changes nothing, so that data agree with the specs. Compress the data where they are stored:
    `transform.inv(rollout)`. (TorchRL removes the observations from the steps of an environment.)

    Args:
        in_keys: the keys of observations to compress; by default all of the environment, except those of
            `excluded_dtypes`.
        delta_dtype: the dtype of the differences, floating-point.
        restore_dtype: the dtype of restored observations; "root" for that of the observation of the root.
        drop_delta: whether `forward` removes the differences.
        excluded_dtypes: the dtypes that are not compressed by default; integers and bool.

    Raises:
        ValueError: `delta_dtype` is not floating-point, or `restore_dtype` is no dtype.
        ValueError: on use, if there are neither `in_keys` nor an environment.
        KeyError: on use, if an observation of the root is missing.

    >>> from tensordict import TensorDict
    >>> delta = NextObservationDelta(["x"])
    >>> data = TensorDict({"x": torch.tensor([1.0]), "next": {"x": torch.tensor([1.5])}})
    >>> stored = delta.inv(data)
    >>> stored["next", "delta", "x"]
    tensor([0.5000], dtype=torch.float16)
    >>> delta(stored)["next", "x"]
    tensor([1.5000])
    """

    preserves_done = True

    def __init__(
        self,
        in_keys: Keys = None,
        *,
        delta_dtype: torch.dtype = torch.float16,
        restore_dtype: Any = "root",
        drop_delta: bool = True,
        excluded_dtypes: tuple[torch.dtype, ...] = _DISCRETE_DTYPES,
    ):
        if not delta_dtype.is_floating_point:
            raise ValueError(f"Expected delta_dtype to be a floating-point dtype, got {delta_dtype}.")
        if restore_dtype != "root" and not isinstance(restore_dtype, torch.dtype):
            raise ValueError(f'Expected restore_dtype to be a dtype or "root", got {restore_dtype!r}.')
        super().__init__(in_keys)
        self.delta_dtype = delta_dtype
        self.restore_dtype = restore_dtype
        self.drop_delta = drop_delta
        self.excluded_dtypes = excluded_dtypes

    def _default_in_keys(self) -> list[Key]:
        parent = self.parent
        if parent is None:
            raise ValueError(
                "Expected NextObservationDelta outside an environment to have in_keys, got none. Give in_keys."
            )
        leaves = parent.full_observation_spec.items(include_nested=True, leaves_only=True)
        return [key for key, spec in leaves if spec.dtype is not None and spec.dtype not in self.excluded_dtypes]

    @cached_property
    def _paths(self) -> list[tuple[Key, Key, Key]]:
        """The keys of each observation in the root, under "next", and of the difference."""
        paths = [(key, key_path(key)) for key in self.in_keys]
        return [(key, ("next", *path), ("next", "delta", *path)) for key, path in paths]

    def _root_value(self, tensordict: TensorDictBase, key: Key) -> Tensor:
        value = tensordict.get(key, None)
        if value is None:
            raise self._missing(key, tensordict)
        return value

    def _step(self, tensordict: TensorDictBase, next_tensordict: TensorDictBase) -> TensorDictBase:
        return next_tensordict

    def _reset(self, tensordict: TensorDictBase, tensordict_reset: TensorDictBase) -> TensorDictBase:
        return tensordict_reset

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Restores the observations under "next" in place, if there are differences, and returns the data."""
        for key, next_key, delta_key in self._paths:
            delta = tensordict.get(delta_key, None)
            if delta is None:
                continue
            root = self._root_value(tensordict, key)
            dtype = root.dtype if self.restore_dtype == "root" else self.restore_dtype
            tensordict.set(next_key, (root + delta.to(root.dtype)).to(dtype))
            if self.drop_delta:
                del tensordict[delta_key]
        deltas = tensordict.get(("next", "delta"), None)
        if deltas is not None and deltas.is_empty():
            del tensordict["next", "delta"]
        return tensordict

    def inv(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Returns data to store, with differences instead of the observations under "next"."""
        stored = tensordict.copy()
        for key, next_key, delta_key in self._paths:
            next_value = stored.get(next_key, None)
            if next_value is not None:
                del stored[next_key]
                stored.set(delta_key, (next_value - self._root_value(stored, key)).to(self.delta_dtype))
        return stored

    def _forward_spec(self, specs: Any) -> Any:
        return specs


class NextStateReconstructor(Transform):
    """Restores next observations of stored steps from the observations of the steps that follow them.

    Where the following step of a trajectory is not the next row of the data, for example at the end of an episode,
    the value is `fill_value`. In an environment it changes nothing.

    Args:
        keys: the keys of observations; the results are written under "next".
        traj_key: the key of the number of the trajectory of each step; None for one trajectory.
        done_key: the key of flags that are True if the step ends a trajectory; None to ignore them.
        step_count_key: the key of the number of each step in its trajectory, which must increase by 1; None to ignore
            it.
        fill_value: the value where the next observation is not in the data.
        strict: whether an error is raised if `traj_key`, `done_key` or `step_count_key` is missing.

    Raises:
        KeyError: on use, if an entry is missing.
        SpaceError: on use, if the data have not exactly one batch dimension, or if `fill_value` is NaN and an
            observation is not floating-point.

    >>> from tensordict import TensorDict
    >>> data = TensorDict({"observation": torch.arange(4.0), "trajectory": torch.tensor([0, 0, 0, 1])}, [4])
    >>> NextStateReconstructor(traj_key="trajectory", done_key=None)(data)["next", "observation"]
    tensor([1., 2., nan, nan])
    """

    preserves_done = True

    def __init__(
        self,
        keys: Key | Sequence[Key] = ("observation",),
        *,
        traj_key: Key | None = ("collector", "traj_ids"),
        done_key: Key | None = ("next", "done"),
        step_count_key: Key | None = None,
        fill_value: float = float("nan"),
        strict: bool = True,
    ):
        super().__init__()
        self.keys = as_keys(keys)
        self.traj_key = traj_key
        self.done_key = done_key
        self.step_count_key = step_count_key
        self.fill_value = fill_value
        self.strict = strict

    def _call(self, next_tensordict: TensorDictBase) -> TensorDictBase:
        return next_tensordict

    def _marker(self, tensordict: TensorDictBase, key: Key | None) -> Tensor | None:
        """Returns an entry `[rows, values]`, or None if it is not used."""
        value = None if key is None else tensordict.get(key, None)
        if value is None:
            if key is not None and self.strict:
                raise self._missing(key, tensordict)
            return None
        return value.reshape(value.shape[0], -1)

    def _has_next(self, tensordict: TensorDictBase) -> Tensor:
        """Returns the mask of rows that the next step follows, bool `[rows]`."""
        mask = torch.ones(tensordict.batch_size, dtype=torch.bool, device=tensordict.device)
        mask[-1:] = False
        if (trajectory := self._marker(tensordict, self.traj_key)) is not None:
            mask[:-1] &= (trajectory[1:] == trajectory[:-1]).all(-1)
        if (done := self._marker(tensordict, self.done_key)) is not None:
            mask &= ~done.any(-1)
        if (count := self._marker(tensordict, self.step_count_key)) is not None:
            mask[:-1] &= (count[1:] == count[:-1] + 1).all(-1)
        return mask

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Writes the observations under "next" in place and returns the data."""
        if tensordict.batch_dims != 1:
            raise SpaceError(
                f"Expected data with one batch dimension, got batch size {tuple(tensordict.batch_size)}. Call "
                f"reshape(-1) first, if the steps of each trajectory follow each other then."
            )
        mask = self._has_next(tensordict)
        for key in self.keys:
            value = tensordict.get(key, None)
            if value is None:
                raise self._missing(key, tensordict)
            if self.fill_value != self.fill_value and not value.is_floating_point():
                raise SpaceError(
                    f"Expected floating-point observations, of which NaN can be a value, got {key!r} of {value.dtype}. "
                    f"Give a fill_value."
                )
            next_value = value.roll(-1, 0)
            tensordict.set(
                ("next", *key_path(key)), torch.where(broadcast_mask(mask, value), next_value, self.fill_value)
            )
        return tensordict
