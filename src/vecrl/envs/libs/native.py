"""The native tasks over TensorDicts: gymnasium's classic control as batches of tensors, on any device.

With a batch size, an environment keeps its rows itself, and `vecrl.simulators.native` steps them as it does for
dialect 1, bit for bit. Without one, the rows travel in the TensorDict, under "rows", so that any batch size will do on
the fly. Both are the same functions of rows; they differ in where the rows come from and where they go.
"""

from __future__ import annotations

from typing import Any, Self

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from ...errors import SpaceError
from ...simulators.native import NativeSimulator, make_native
from ...simulators.native.base import Rows, leading
from ...simulators.native.counter_rng import keys_of
from ...simulators.native.tape import record
from ...specs import Categorical, Composite, OneHot, Unbounded
from ...specs.conversions import spec_from_gym
from ..base import EnvBase
from ..overriding import overrides
from ..owner import FLAGS
from ..partial import Masks


class NativeEnv(EnvBase):
    """A batch of one of the native tasks.

    Row i's first episode after `set_seed(seed)` is that of the seed `seed + i`, as in `vecrl.vector`; where a row
    starts hangs on its seed and on how many episodes it had, and on nothing else. Rows that travel in the TensorDict
    take their seeds along: where only some of them begin anew, they do so by those.

    Args:
        env_name: gymnasium's id: "CartPole-v1", "Acrobot-v1", "MountainCar-v0", "MountainCarContinuous-v0",
            "Pendulum-v1".
        num_envs: how many, where that is one number; the same as a `batch_size` of `(num_envs,)`.
        batch_size: of the environment, in any number of dimensions. Where neither is given, the environment keeps no
            rows of its own (`batch_locked` is False): they are entries "rows" of what `reset` returns and `step` needs.
        categorical_action_encoding: discrete actions as indices `[*batch]` instead of one-hot rows `[*batch, options]`.
        device: where everything is computed and lives; the CPU for None.
        run_type_checks, spec_locked: see `EnvBase`.
        kwargs: those of `vecrl.simulators.native.NativeSimulator`: `dtype`, `max_episode_steps`, `render_mode`,
            `check_actions`, `compile` (which needs a batch size).

    Entries: "observation" `[*batch, k]`, "reward" `[*batch, 1]`, "done", "terminated" and "truncated" `[*batch, 1]`; a
    time limit truncates. "next" holds the true successors, final observations included. On a GPU neither a step nor a
    masked reset waits for the data.

    Raises:
        ValueError: an unknown name, or arguments that contradict each other.

    >>> env = NativeEnv("CartPole-v1", 3)
    >>> env.rollout(5, break_when_any_done=False)["next", "observation"].shape
    torch.Size([3, 5, 4])
    >>> NativeEnv("Pendulum-v1").reset(TensorDict(batch_size=[2, 7]))["observation"].shape
    torch.Size([2, 7, 3])
    """

    not_state = ("simulator",)  # of whose functions only use is made
    state_classes = (Rows,)

    def __init__(
        self,
        env_name: str,
        num_envs: int | None = None,
        *,
        batch_size: Any = None,
        categorical_action_encoding: bool = False,
        device: Any = None,
        run_type_checks: bool = False,
        spec_locked: bool = True,
        **kwargs: Any,
    ):
        if num_envs is not None and batch_size is not None and torch.Size(batch_size) != (num_envs,):
            raise ValueError(
                f"num_envs={num_envs} and batch_size={batch_size} contradict each other: give one of them."
            )
        free = num_envs is None and batch_size is None
        if free and kwargs.get("compile"):
            raise ValueError(
                "What is compiled is compiled for one size: give num_envs or batch_size with compile=True."
            )
        shape = (num_envs,) if num_envs is not None else batch_size
        super().__init__(
            device=device,
            batch_size=shape,
            run_type_checks=run_type_checks,
            spec_locked=spec_locked,
            allow_done_after_reset=True,  # no task begins at its end, and to look whether one did would be to wait
        )
        self.batch_locked, self.supports_set_state = not free, free
        self.env_name = env_name
        self._kwargs = kwargs
        self._one_hot = not categorical_action_encoding
        self._rows: Rows | None = None
        self.simulator = self._made()
        self._set_seed(None)
        self._set_specs()

    def _made(self) -> NativeSimulator:
        device = self.device or torch.device("cpu")
        return make_native(self.env_name, self.batch_size.numel(), device=device, **self._kwargs)

    def _set_specs(self) -> None:
        simulator, batch, where = self.simulator, self.batch_size, self.simulator.device
        seen = spec_from_gym(simulator.observation_space, device=where)
        entries: dict[str, Any] = {"observation": seen.expand(*batch, *seen.shape)}
        if not self.batch_locked:
            width = len(simulator.rows_begun(*self._streams(1)).state)
            whole = {"dtype": torch.int32, "device": where}
            entries["rows"] = Composite(
                state=Unbounded((width,), dtype=simulator.dtype, device=where),
                steps=Unbounded((), **whole),
                episodes=Unbounded((), **whole),
                keys=Unbounded((2,), **whole),
            )
            self.state_spec = Composite(rows=entries["rows"])
        self.observation_spec = Composite(entries, shape=batch)
        act = spec_from_gym(simulator.action_space, device=where, categorical=not self._one_hot)
        self._one_hot = isinstance(act, OneHot)
        self.action_spec = act.expand(*batch, *act.shape)
        self.reward_spec = Unbounded((*batch, 1), dtype=simulator.dtype, device=where)
        flag = Categorical(2, (*batch, 1), dtype=torch.bool, device=where)
        self.full_done_spec = Composite({name: flag.clone() for name in FLAGS}, shape=batch)

    # -- rows: their own, or those of a TensorDict

    def _rows_of(self, tensordict: TensorDictBase | None) -> Rows | None:
        if self.batch_locked:
            return self._rows
        if tensordict is None or tensordict.get("rows", None) is None:
            return None
        found = tensordict.get("rows")
        n = tensordict.batch_size.numel()
        return Rows(*(leading(found.get(name).reshape(n, *_width(name))) for name in Rows._fields))

    def _told(self, obs: Tensor, rows: Rows, shape: torch.Size, **more: Tensor) -> TensorDict:
        """What is handed out of rows, which are kept or go along."""
        entries: dict[str, Any] = {"observation": obs.reshape((*shape, -1))}
        entries |= {name: value.reshape((*shape, 1)) for name, value in more.items()}
        if not self.batch_locked:
            parts = {name: leading(value) for name, value in rows._asdict().items()}
            parts = {name: value.reshape((*shape, *value.shape[1:])) for name, value in parts.items()}
            entries["rows"] = TensorDict(parts, shape, device=self.device)
        else:
            self._rows = rows
        return TensorDict(entries, shape, device=self.device)

    def _streams(self, n: int) -> tuple[Tensor, Tensor]:
        """The keys of the next n seeds, and the number of their first episode."""
        seeds = np.uint64(self._seed) + np.arange(n, dtype=np.uint64)  # which wraps around
        keys = torch.from_numpy(keys_of(seeds)).to(self.simulator.device)
        return keys, torch.zeros(n, dtype=torch.int32, device=self.simulator.device)

    def _begin(self, n: int, rows: Rows | None, options: Any = None) -> Rows:
        """Episodes in n rows: the next of their streams, or the first of new ones where there are none yet."""
        if rows is not None and not self._reseeded:
            return self.simulator.rows_begun(rows.keys, rows.episodes + 1, options)
        return self.simulator.rows_begun(*self._next_streams(n), options)

    def _restarted(self, mask: Tensor, rows: Rows, options: Any = None) -> tuple[Tensor, Rows]:
        """Observations and rows, of which those in `mask` `[n]` begin anew; a seed waits for the reset of its row."""
        if self._reseeded and self.batch_locked:
            keys, first = self._next_streams(len(mask))
            rows = rows._replace(keys=keys, episodes=first - 1)
        if not options:
            return self.simulator.rows_restarted(mask, rows)
        rows = _either(mask, self.simulator.rows_begun(rows.keys, rows.episodes + 1, options), rows)
        return self.simulator.rows_obs(rows), rows

    def _next_streams(self, n: int) -> tuple[Tensor, Tensor]:
        streams = self._streams(n)
        self._seed = (self._seed + n) % 2**64
        self._reseeded = False
        return streams

    def _set_seed(self, seed: int | None) -> None:
        self._seed = int(np.random.SeedSequence().generate_state(1, np.uint64)[0]) if seed is None else seed % 2**64
        self._reseeded = True

    # -- step by step

    def _reset(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, tensordict: TensorDictBase | None = None, *, options: Any = None, set_state: bool | None = None
    ) -> TensorDictBase:
        shape = self.batch_size if tensordict is None else tensordict.batch_size
        rows = self._rows_of(tensordict)
        mask = None if tensordict is None else tensordict.get("_reset", None)
        if mask is None or rows is None:
            if rows is None or not set_state:
                rows = self._begin(shape.numel(), rows, options)
            return self._told(self.simulator.rows_obs(rows), rows, shape)
        return self._told(*self._restarted(_by_row(mask, shape), rows, options), shape)

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        shape = tensordict.batch_size
        rows = self._rows_of(tensordict)
        if rows is None:
            where = "was no reset" if self.batch_locked else 'are no "rows" in the TensorDict'
            raise SpaceError(f"There {where}: step what env.reset() or a step before gave.")
        step, rows = self.simulator.rows_stepped(self._numbers(tensordict.get("action"), shape), rows)
        ends = {"terminated": step.terminated, "truncated": step.truncated}
        done = torch.logical_or(step.terminated, step.truncated)
        return self._told(step.next_obs, rows, shape, reward=step.reward, done=done, **ends)

    def _numbers(self, action: Tensor, shape: torch.Size) -> Tensor:
        """Actions of `shape` as the simulator takes them, in one batch dimension."""
        n, inner = shape.numel(), self.action_spec.shape[self.ndim :]
        if action.shape != (*shape, *inner):
            raise SpaceError(f"Expected actions of shape {(*shape, *inner)}, but {tuple(action.shape)} came.")
        action = action.reshape(n, *inner)
        if self.batch_locked:
            action = action.detach()
        if not self._one_hot:
            return self.simulator.as_actions(action, n)
        # Elementwise, as a reduction over two or three options is slow; in range whatever the rows hold.
        number = action[:, 1].to(self.simulator.dtype)
        for option in range(2, action.shape[-1]):
            number = torch.maximum(number, action[:, option].to(number.dtype) * option)
        return number

    def _step_some(self, tensordict: TensorDictBase, mask: Tensor) -> TensorDictBase:
        before = self._rows
        following = self._advance(tensordict)
        if before is not None and self._rows is not None:
            some = _by_row(mask, self.batch_size)
            self._rows = _either(some, self._rows, before)
        return following

    def _nobody(self, masks: Masks) -> bool:
        return self.simulator.may_look() and masks.nobody

    def maybe_reset(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Begin anew in the rows of `tensordict` that are done; the others stay as they are."""
        rows = self._rows_of(tensordict)
        if rows is None or overrides(self, NativeEnv, ("_reset", "_step")):
            return super().maybe_reset(tensordict)
        # What is given of all rows is right for all of them, so that nothing needs to be merged.
        shape, done = tensordict.batch_size, tensordict.get("done")
        obs, rows = self._restarted(_by_row(done, shape), rows)
        flags = {name: torch.zeros_like(done) for name in FLAGS}
        return tensordict.update(self._told(obs, rows, shape, **flags))

    # -- a rollout at once

    def _play(self, steps: int, actions: Any, stop: bool) -> TensorDictBase | None:
        if not self.batch_locked:
            return None
        batch = self.batch_size
        given = self.action_spec.rand((steps,)) if actions is None else actions.movedim(self.ndim, 0)[:steps].clone()
        whole = torch.Size([len(given), *batch])
        numbers = self._numbers(given, whole)
        numbers = numbers.reshape(whole[0], -1, *numbers.shape[1:])
        tape, rows = record(self.simulator, self._begin(batch.numel(), self._rows), numbers, stop)
        self._rows = rows
        whole = torch.Size([len(tape.reward), *batch])
        ends = {"terminated": tape.terminated, "truncated": tape.truncated}
        following = {"reward": tape.reward, "done": tape.terminated | tape.truncated, **ends}
        none = {name: torch.zeros_like(tape.terminated) for name in FLAGS}
        root = self._unrolled(whole, tape.obs, none)
        root.set("action", given[: len(tape.reward)].movedim(0, self.ndim))
        root.set("next", self._unrolled(whole, tape.next_obs, following))
        root.names = [*[None] * self.ndim, "time"]
        return root

    def _unrolled(self, whole: torch.Size, obs: Tensor, more: dict[str, Tensor]) -> TensorDict:
        """Leaves with time in front as entries with time behind the batch."""
        flat = {"observation": obs.reshape(*whole, -1)} | {name: leaf.reshape(*whole, 1) for name, leaf in more.items()}
        turned = {name: leaf.movedim(0, self.ndim) for name, leaf in flat.items()}
        return TensorDict(turned, [*self.batch_size, whole[0]], device=self.device)

    # -- the rest

    def to(self, device: Any) -> Self:
        """Compute and live on another device from now on, rows included; returns the environment."""
        super().to(device)
        self.simulator.close()
        self.simulator = self._made()
        if self._rows is not None:
            self._rows = Rows(*(value.to(self.device) for value in self._rows))
        return self

    def render(self, row: int = 0) -> np.ndarray | None:
        """A frame `[height, width, 3]` uint8 of one row, counted through the batch; None without a render mode."""
        if self._rows is None:
            raise SpaceError("There is nothing to render: it takes a batch size, and a reset before.")
        self.simulator.rows = self._rows
        return self.simulator.render(row)

    def close(self, *, raise_if_closed: bool = False) -> None:
        """Close the renderer, and be closed; twice is harmless unless `raise_if_closed`."""
        self.simulator.close()
        super().close(raise_if_closed=raise_if_closed)

    def __repr__(self) -> str:
        return f"NativeEnv({self.env_name!r}, batch_size={tuple(self.batch_size)}, device={self.device})"


def _width(name: str) -> tuple[int, ...]:
    return (-1,) if name in ("state", "keys") else ()


def _either(mask: Tensor, new: Rows, old: Rows) -> Rows:
    return Rows(*(torch.where(mask, one, other) for one, other in zip(new, old, strict=True)))


def _by_row(mask: Tensor, shape: torch.Size) -> Tensor:
    """A mask of `shape`, with or without a dimension behind it, in one dimension."""
    return mask.reshape(shape.numel(), -1).any(-1)
