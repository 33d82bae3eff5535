"""Transforms of the last values of an entry: `CatFrames` concatenates them, `TimeMaxPool` takes their maximum.

In an environment, the last stack of every row is kept in a buffer, because later transforms may change the entry in the
TensorDict. For stored trajectories, stacks are computed from the data alone.
"""

from __future__ import annotations

from urllib.parse import quote

import torch
from tensordict import TensorDictBase
from torch import Tensor

from ...errors import SpaceError
from ...specs import Bounded, Composite, TensorSpec, Unbounded
from ...validation import parse_count, parse_number
from ..entries.keys import Key
from ..entries.row_masks import broadcast_mask
from .base import RowStateTransform
from .counters import episode_starts, start_indices
from .keyed_module import Keys
from .shapes import parse_dim

__all__ = ["CatFrames", "TimeMaxPool"]

_PREFIX = "_cat_buffers_"


class LastValues(RowStateTransform):
    """The base of transforms of the last `N` values of entries, which form a stack along one dimension.

    Args:
        N: the number of values, 1 or more.
        dim: the dimension, counted from the end: -1 or less.
        in_keys, out_keys: the keys of the values and of the results.
        padding: how to fill stacks at the start of an episode: "same" repeats the first value, "constant" uses
            `padding_value`.
        padding_value: a number.
        reset_key: the key of the mask of rows that start new stacks; by default the mask of the group of the entry.
        done_key: the key of the flag under "next" that ends stored episodes, "done" by default.
    """

    _takes_records = True

    def __init__(
        self,
        N: int,
        dim: int,
        in_keys: Keys,
        out_keys: Keys = None,
        padding: str = "same",
        padding_value: float = 0,
        reset_key: Key | None = None,
        done_key: Key | None = None,
    ):
        super().__init__(in_keys, out_keys)
        self.N, self.dim = N, dim
        self.padding, self.padding_value = padding, parse_number("padding_value", padding_value)
        self.reset_key, self.done_key = reset_key, "done" if done_key is None else done_key

    # -- in an environment

    def _step(self, tensordict: TensorDictBase, next_tensordict: TensorDictBase) -> TensorDictBase:
        mask = tensordict.get("_step", None)
        for key, out_key in self._key_pairs:
            frame = next_tensordict.get(key, None)
            if frame is not None:
                next_tensordict.set(out_key, self._store(_buffer_name(key), self._push(key, frame), mask))
            elif not self._allow_missing:
                raise self._missing(key, next_tensordict)
        return next_tensordict

    def _reset(self, tensordict: TensorDictBase, tensordict_reset: TensorDictBase) -> TensorDictBase:
        for key, out_key in self._key_pairs:
            frame = tensordict_reset.get(key, None)
            if frame is not None:
                stack = self._push(key, frame, is_first=True)
                tensordict_reset.set(out_key, self._store(_buffer_name(key), stack, self._mask(tensordict, key)))
        return tensordict_reset

    def _mask(self, tensordict: TensorDictBase, key: Key) -> Tensor | None:
        if self.reset_key is not None:
            return tensordict.get(self.reset_key, None)
        return self._reset_masks(tensordict).for_key(key)

    def _pad(self, frame: Tensor) -> list[Tensor]:
        """Returns the `N` values of the first stack of an episode, the last one of which is `frame`."""
        padding = frame if self.padding == "same" else torch.full_like(frame, self.padding_value)
        return [*[padding] * (self.N - 1), frame]

    def _push(self, key: Key, frame: Tensor, is_first: bool = False) -> Tensor:
        """Returns the last stack without its oldest value and with `frame` as the newest; a new stack if `is_first`."""
        previous = None if is_first else self._buffers.get(_buffer_name(key))
        if previous is None:
            return torch.cat(self._pad(frame), self.dim)
        size = frame.shape[self.dim]
        kept_frames = previous.narrow(self.dim, size, (self.N - 1) * size)
        if kept_frames.shape[: self.dim] != frame.shape[: self.dim]:
            raise SpaceError(
                f"Expected a value of {key!r} that fits stacks of shape {tuple(previous.shape)}, got shape "
                f"{tuple(frame.shape)}. Reset the environment with the batch to step."
            )
        return torch.cat([kept_frames, frame], self.dim)

    # -- on trajectories

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Changes stored trajectories `[..., time]` in place and returns them."""
        return self.unfolding(tensordict)

    def unfolding(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Changes stored trajectories `[..., time]` in place and returns them.

        Raises:
            ValueError: there is no time dimension.
            KeyError: the done flags or an entry to stack are missing.
        """
        if not tensordict.batch_dims:
            raise ValueError(
                f"Expected trajectories [..., time] as input of {type(self).__name__}, got no batch dimension."
            )
        next_td = tensordict.get("next", None)
        if next_td is None or next_td.get(self.done_key, None) is None:
            raise KeyError(
                f"Expected done flags at {('next', self.done_key)!r}, which mark the ends of episodes, got none. "
                f"Add them, or give another done_key."
            )
        starts = start_indices(episode_starts(next_td, self.done_key))
        values = {key: tensordict.get(key, None) for key in self.in_keys}
        for key, out_key in self._key_pairs:
            value = values[key]
            if value is None:
                if self._allow_missing:
                    continue
                raise self._missing(key, tensordict)
            key_below = _key_below_next(key)
            root = None if key_below is None else values.get(key_below)
            stacked_value = (
                self._stack_frames(value, starts) if root is None else self._stack_frames(root, starts, value)
            )
            tensordict.set(out_key, stacked_value)
        return tensordict

    @property
    def supports_rollout(self) -> bool:
        return self._has_no_step_hooks

    def _apply_to_rollout(self, root: TensorDictBase, next_td: TensorDictBase, is_first: Tensor) -> None:
        starts = start_indices(is_first)
        for key, out_key in self._key_pairs:
            value, next_values = root.get(key, None), next_td.get(key, None)
            if next_values is None:
                if self._allow_missing:
                    continue
                raise self._missing(key, next_td)
            root.set(out_key, self._stack_frames(value, starts))
            next_td.set(out_key, self._stack_frames(value, starts, next_values))
            self._buffers[_buffer_name(key)] = next_td.get(out_key).select(is_first.ndim - 1, -1).clone()

    def _stack_frames(self, values: Tensor, start_indices: Tensor, next_values: Tensor | None = None) -> Tensor:
        """Returns the stacks of `values` up to each step.

        Args:
            values: `[*batch, time, ...]`.
            start_indices: `[*batch, time]` int64, the first step of the episode of each step.
            next_values: with the shape of `values`. If given, they are the newest value of each stack.
        """
        steps = torch.arange(start_indices.shape[-1], device=start_indices.device)
        rows = torch.arange(start_indices[..., 0].numel(), device=start_indices.device).reshape(
            *start_indices.shape[:-1], 1
        ) * len(steps)
        flat, size = values.flatten(0, start_indices.ndim - 1), values.shape[self.dim]
        shape = list(values.shape)
        shape[self.dim] = size * self.N
        stacked_frames = values.new_empty(shape)
        slices = list(stacked_frames.split(size, self.dim))
        slices.pop().copy_(values if next_values is None else next_values)
        for offset, frame_slice in enumerate(reversed(slices), next_values is None):
            source = steps - offset
            frame_slice.copy_(flat[(rows + source.maximum(start_indices)).flatten()].view(values.shape))
            if self.padding == "constant":
                frame_slice.masked_fill_(broadcast_mask(source < start_indices, frame_slice), self.padding_value)
        return stacked_frames


class CatFrames(LastValues):
    """Concatenates the last `N` values, the oldest first, along one dimension.

    A clone shares the buffers of stacks with the original.

    `forward` stacks stored trajectories `[..., time]`, in which the done flags in "next" end episodes. An entry
    ("next", key) of `in_keys` uses the earlier values of `key` if that is in `in_keys` too, else its own.

    Args:
        N: the number of values, 1 or more.
        dim: the dimension, counted from the end: -1 or less.
        in_keys: the keys of entries to stack, "pixels" by default.
        out_keys: the keys of the stacks; `in_keys` by default.
        padding: how to fill stacks at the start of an episode: "same" repeats the first value, "constant" uses
            `padding_value`.
        padding_value: a number.
        as_inverse: whether to stack data when they are stored (by `inv`), not when they are read. Not for environments.
        reset_key: the key of the mask of rows that start new stacks; by default the mask of the group of the entry.
        done_key: the key of the flag under "next" that ends stored episodes, "done" by default.

    Raises:
        ValueError: `N` is no int of 1 or more, `dim` is not negative, or `padding` is unknown.
        SpaceError: on use, if an entry does not have the dimension or the batch has changed without a reset.

    >>> from vecrl.envs import GymEnv
    >>> env = GymEnv("CartPole-v1").append_transform(CatFrames(4, -1, in_keys=["observation"], out_keys=["last"]))
    >>> env.rollout(3)["last"].shape
    torch.Size([3, 16])
    """

    _takes_records = True

    def __init__(
        self,
        N: int,
        dim: int,
        in_keys: Keys = None,
        out_keys: Keys = None,
        padding: str = "same",
        padding_value: float = 0,
        as_inverse: bool = False,
        reset_key: Key | None = None,
        done_key: Key | None = None,
    ):
        dim = parse_dim(dim, allow_positive_dim=False)
        if padding not in ("same", "constant"):
            raise ValueError(f'Expected padding to be "same" or "constant", got {padding!r}.')
        keys = ["pixels"] if in_keys is None else in_keys
        super().__init__(parse_count("N", N), dim, keys, out_keys, padding, padding_value, reset_key, done_key)
        self.as_inverse = as_inverse

    # -- on trajectories

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Stacks stored trajectories in place and returns them; with `as_inverse` nothing is changed."""
        return tensordict if self.as_inverse else self.unfolding(tensordict)

    def inv(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Returns a copy of `tensordict` to store, with stacks if `as_inverse`."""
        return self.unfolding(tensordict.copy()) if self.as_inverse else super().inv(tensordict)

    # -- specs

    def transform_observation_spec(self, observation_spec: Composite) -> Composite:
        """Multiplies the size of the dimension by `N` in the specs of the stacks."""
        if self.as_inverse:
            raise RuntimeError(
                "Expected as_inverse=False in an environment, got as_inverse=True, which is for stores of data."
            )
        for key, out_key in self._key_pairs:
            spec = observation_spec.get(key, None)
            if spec is not None:
                if spec.ndim - observation_spec.ndim < -self.dim:
                    raise SpaceError(
                        f"Expected {key!r} to have a dimension {self.dim} after the batch dimensions, got shape "
                        f"{tuple(spec.shape)}. Add one with UnsqueezeTransform."
                    )
                observation_spec[out_key] = self._spec(spec)
        return observation_spec

    def _spec(self, spec: TensorSpec) -> TensorSpec:
        shape = list(spec.shape)
        shape[self.dim] *= self.N if shape[self.dim] >= 0 else 1
        if not isinstance(spec, Bounded) or shape[self.dim] < 0:
            return Unbounded(shape, dtype=spec.dtype, device=spec.device)
        low, high = (torch.cat([bound] * self.N, self.dim) for bound in (spec.low, spec.high))
        if self.padding == "constant":
            low, high = low.clamp(max=self.padding_value), high.clamp(min=self.padding_value)
        return Bounded(low, high, shape, dtype=spec.dtype, device=spec.device)


class TimeMaxPool(LastValues):
    """Takes the maximum of the last `T` values of each element, for example of the frames of a game that flickers.

    At the start of an episode it is the maximum of the values so far. (In TorchRL 0 is among them.)

    `forward` takes the maxima of stored trajectories `[..., time]`, as `CatFrames` stacks them.

    Args:
        in_keys: the keys of entries; "observation" by default.
        out_keys: the keys of the maxima, with the same specs; `in_keys` by default.
        T: the number of values, 1 or more.
        reset_key: the key of the mask of rows in which episodes start; by default the mask of the group of the entry.

    Raises:
        ValueError: `T` is no int of 1 or more.

    >>> from vecrl.envs import GymEnv
    >>> pool = TimeMaxPool(in_keys=["observation"], out_keys=["highest"], T=3)
    >>> rollout = GymEnv("Pendulum-v1").append_transform(pool).rollout(4)
    >>> rollout["highest"][3].equal(rollout["observation"][1:4].amax(0))
    True
    """

    def __init__(self, in_keys: Keys = None, out_keys: Keys = None, T: int = 1, reset_key: Key | None = None):
        keys = ["observation"] if in_keys is None else in_keys
        super().__init__(parse_count("T", T), -1, keys, out_keys, reset_key=reset_key)

    @property
    def T(self) -> int:
        """The number of values."""
        return self.N

    def _push(self, key: Key, frame: Tensor, is_first: bool = False) -> Tensor:
        return super()._push(key, frame.unsqueeze(-1), is_first)

    def _store(self, name: str, value: Tensor, mask: Tensor | None) -> Tensor:
        return super()._store(name, value, mask).amax(-1)

    def _stack_frames(self, values: Tensor, start_indices: Tensor, next_values: Tensor | None = None) -> Tensor:
        next_values = None if next_values is None else next_values.unsqueeze(-1)
        return super()._stack_frames(values.unsqueeze(-1), start_indices, next_values).amax(-1)

    @property
    def supports_rollout(self) -> bool:
        return False  # the values after the rollout would be needed, not only their maxima

    def transform_observation_spec(self, observation_spec: Composite) -> Composite:
        """Copies the specs of the entries, of which the maxima are values too."""
        for key, out_key in self._key_pairs:
            spec = observation_spec.get(key, None)
            if spec is not None:
                observation_spec[out_key] = spec.clone()
        return observation_spec


def _buffer_name(key: Key) -> str:
    """Returns the name of the buffer of an entry."""
    names = [key] if isinstance(key, str) else key
    return _PREFIX + "/".join(quote(name, safe="").replace(".", "%2E") for name in names)


def _key_below_next(key: Key) -> Key | None:
    """Returns `key` of ("next", key); None for other keys."""
    if isinstance(key, str) or key[0] != "next":
        return None
    return key[1] if len(key) == 2 else key[1:]
