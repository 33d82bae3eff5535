"""`CatFrames`: the last few values of an entry, one behind the other.

In an environment the last stack of every row is kept in a buffer, since later transforms may change what the
TensorDict holds of it. On stored trajectories it follows from the data alone.
"""

from __future__ import annotations

from typing import Any, Self
from urllib.parse import quote

import torch
from tensordict import TensorDictBase
from torch import Tensor

from ...errors import SpaceError
from ...specs import Bounded, Composite, TensorSpec, Unbounded
from ..row_masks import broadcast_mask
from ..spec_container import Key
from .counters import Tracker, episode_starts

_PREFIX = "_cat_buffers_"


class CatFrames(Tracker):
    """The last `N` values, the oldest first, concatenated along one dimension.

    A clone works on the same stacks: the buffers of one are the buffers of the other.

    Stored trajectories `[..., time]` are stacked by `forward`; episodes end by the flags in "next". An entry
    ("next", key) among the `in_keys` has the history of `key`, where that is among them too, else its own.

    Args:
        N: how many, 1 or more.
        dim: which dimension, counted from the end: -1 or less.
        in_keys: what is stacked, "pixels" by default.
        out_keys: where to; in place by default.
        padding: what stands before the first value of an episode: "same" repeats it, "constant" takes `padding_value`.
        padding_value: a number.
        as_inverse: stack on the way into a store (by `inv`), not on the way out of it; not for environments.
        reset_key: the mask that begins stacks anew; by default the one that resets the entry's own group.
        done_key: the flag below "next" that ends stored episodes, "done" by default.

    >>> from vecrl.envs import GymEnv
    >>> env = GymEnv("CartPole-v1").append_transform(CatFrames(4, -1, in_keys=["observation"], out_keys=["last"]))
    >>> env.rollout(3)["last"].shape
    torch.Size([3, 16])
    """

    def __init__(
        self,
        N: int,
        dim: int,
        in_keys: Any = None,
        out_keys: Any = None,
        padding: str = "same",
        padding_value: Any = 0,
        as_inverse: bool = False,
        reset_key: Any = None,
        done_key: Any = None,
    ):
        if N < 1:
            raise ValueError(f"Expected N of 1 or more, but {N} came.")
        if dim >= 0:
            raise ValueError(f"Expected dim to count from the end, as -1 does, whatever the batch is, but {dim} came.")
        if padding not in ("same", "constant"):
            raise ValueError(f'Expected padding to be "same" or "constant", but {padding!r} came.')
        super().__init__(["pixels"] if in_keys is None else in_keys, out_keys)
        self.N, self.dim = N, dim
        self.padding, self.padding_value = padding, padding_value
        self.as_inverse = as_inverse
        self.reset_key, self.done_key = reset_key, "done" if done_key is None else done_key

    def clone(self) -> Self:
        """One that belongs to nobody and works on the same stacks, those that are yet to come included."""
        cloned = super().clone()
        cloned.__dict__["_buffers"] = self.__dict__["_buffers"]
        return cloned

    # -- in an environment

    def _step(self, tensordict: TensorDictBase, next_tensordict: TensorDictBase) -> TensorDictBase:
        mask = tensordict.get("_step", None)
        for key, out_key in self._key_pairs:
            frame = next_tensordict.get(key, None)
            if frame is not None:
                next_tensordict.set(out_key, self._store(key, self._push(key, frame), mask))
            elif not self._allow_missing:
                raise self._missing(key, next_tensordict)
        return next_tensordict

    def _reset(self, tensordict: TensorDictBase, tensordict_reset: TensorDictBase) -> TensorDictBase:
        for key, out_key in self._key_pairs:
            frame = tensordict_reset.get(key, None)
            if frame is not None:
                mask = self._mask(tensordict, key)
                tensordict_reset.set(out_key, self._store(key, torch.cat(self._pad(frame), self.dim), mask))
        return tensordict_reset

    def _mask(self, tensordict: TensorDictBase, key: Key) -> Tensor | None:
        if self.reset_key is not None:
            return tensordict.get(self.reset_key, None)
        return self._masks(tensordict).for_key(key)

    def _pad(self, frame: Tensor) -> list[Tensor]:
        """The values of an episode that begins with `frame`."""
        padding = frame if self.padding == "same" else torch.full_like(frame, self.padding_value)
        return [*[padding] * (self.N - 1), frame]

    def _push(self, key: Key, frame: Tensor) -> Tensor:
        """The last stack with `frame` for its oldest value."""
        previous = self._buffers.get(_buffer_name(key))
        if previous is None:
            return torch.cat(self._pad(frame), self.dim)
        size = frame.shape[self.dim]
        kept_frames = previous.narrow(self.dim, size, (self.N - 1) * size)
        if kept_frames.shape[: self.dim] != frame.shape[: self.dim]:
            raise SpaceError(
                f"CatFrames holds {tuple(previous.shape)} of {key!r}, to which {tuple(frame.shape)} cannot be added. "
                "Reset the environment with the batch that is to be stepped."
            )
        return torch.cat([kept_frames, frame], self.dim)

    def _store(self, key: Key, frames: Tensor, mask: Tensor | None) -> Tensor:
        """Keep a stack for the next step, of the rows of `mask` alone; returns one that the caller may change."""
        previous = self._buffers.get(_buffer_name(key))
        if mask is not None and previous is not None and previous.shape == frames.shape:
            frames = torch.where(broadcast_mask(mask, frames), frames, previous)
        self._buffers[_buffer_name(key)] = frames.detach()
        return frames.clone()

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any, **kwargs: Any) -> None:
        self._buffers.clear()
        for name, value in state_dict.items():
            if name.startswith(prefix + _PREFIX):
                self._buffers[name.removeprefix(prefix)] = torch.empty_like(value)
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)

    # -- on trajectories

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Stack along stored trajectories, in place; returns them."""
        return tensordict if self.as_inverse else self.unfolding(tensordict)

    def inv(self, tensordict: TensorDictBase) -> TensorDictBase:
        """What a store gets for `tensordict`, which is left as it is: stacks, where that is asked for."""
        return self.unfolding(tensordict.copy()) if self.as_inverse else super().inv(tensordict)

    def unfolding(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Stack along trajectories `[..., time]`, in place; returns them.

        Raises:
            ValueError: without a dimension of time.
            KeyError: without the flags that end episodes, or without an entry that is to be stacked.
        """
        if not tensordict.batch_dims:
            raise ValueError("CatFrames stacks along time: it needs trajectories [..., time].")
        next_td = tensordict.get("next", None)
        if next_td is None or next_td.get(self.done_key, None) is None:
            raise KeyError(f"CatFrames needs the flags {('next', self.done_key)!r}, to know where episodes begin.")
        start_indices = _start_indices(episode_starts(next_td, self.done_key))
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
                self._stack_frames(value, start_indices)
                if root is None
                else self._stack_frames(root, start_indices, value)
            )
            tensordict.set(out_key, stacked_value)
        return tensordict

    def _apply_to_rollout(self, root: TensorDictBase, next_td: TensorDictBase, is_first: Tensor) -> None:
        start_indices = _start_indices(is_first)
        for key, out_key in self._key_pairs:
            value, next_values = root.get(key), next_td.get(key)
            root.set(out_key, self._stack_frames(value, start_indices))
            next_td.set(out_key, self._stack_frames(value, start_indices, next_values))
            self._buffers[_buffer_name(key)] = next_td.get(out_key).select(is_first.ndim - 1, -1).clone()

    def _stack_frames(self, values: Tensor, start_indices: Tensor, next_values: Tensor | None = None) -> Tensor:
        """Stacks of `values` `[*batch, time, ...]`: up to each step, or, with the values `next_values` each step, up to
        those."""
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

    # -- specs

    def transform_observation_spec(self, observation_spec: Composite) -> Composite:
        """With `N` times the size along the dimension."""
        if self.as_inverse:
            raise RuntimeError("CatFrames(as_inverse=True) is for stores: give an environment one without.")
        for key, out_key in self._key_pairs:
            spec = observation_spec.get(key, None)
            if spec is not None:
                if spec.ndim - observation_spec.ndim < -self.dim:
                    raise SpaceError(
                        f"Expected {key!r} to have a dimension {self.dim} behind the batch, but its shape is "
                        f"{tuple(spec.shape)}. UnsqueezeTransform gives it one."
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


def _buffer_name(key: Key) -> str:
    """Of the buffer for an entry."""
    names = [key] if isinstance(key, str) else key
    return _PREFIX + "/".join(quote(name, safe="").replace(".", "%2E") for name in names)


def _key_below_next(key: Key) -> Key | None:
    """`key` of ("next", key); None for others."""
    if isinstance(key, str) or key[0] != "next":
        return None
    return key[1] if len(key) == 2 else key[1:]


def _start_indices(is_first: Tensor) -> Tensor:
    """`[..., time]` int64: when the episode of each step began."""
    steps = torch.arange(is_first.shape[-1], device=is_first.device)
    return torch.where(is_first, steps, 0).cummax(-1).values
