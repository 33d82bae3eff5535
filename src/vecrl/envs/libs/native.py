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
from ...simulators.native.base import NativeState, env_first
from ...simulators.native.counter_rng import keys_of
from ...simulators.native.trajectory import record_trajectory
from ...specs import Categorical, Composite, OneHot, Unbounded
from ...specs.convert import spec_from_gym
from ..base import EnvBase
from ..overrides import overrides_any
from ..row_masks import RowMasks
from ..spec_container import FLAGS


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

    excluded_from_state = ("simulator",)  # of whose functions only use is made
    state_classes = (NativeState,)

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
        is_free = num_envs is None and batch_size is None
        if is_free and kwargs.get("compile"):
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
        self.batch_locked, self.supports_set_state = not is_free, is_free
        self.env_name = env_name
        self._kwargs = kwargs
        self._one_hot = not categorical_action_encoding
        self._state: NativeState | None = None
        self.simulator = self._make_simulator()
        self._set_seed(None)
        self._set_specs()

    def _make_simulator(self) -> NativeSimulator:
        device = self.device or torch.device("cpu")
        return make_native(self.env_name, self.batch_size.numel(), device=device, **self._kwargs)

    def _set_specs(self) -> None:
        simulator, batch, spec_device = self.simulator, self.batch_size, self.simulator.device
        obs_spec = spec_from_gym(simulator.observation_space, device=spec_device)
        entries: dict[str, Any] = {"observation": obs_spec.expand(*batch, *obs_spec.shape)}
        if not self.batch_locked:
            state_size = len(simulator.start_rows(*self._streams(1)).state)
            int_options = {"dtype": torch.int32, "device": spec_device}
            entries["rows"] = Composite(
                state=Unbounded((state_size,), dtype=simulator.dtype, device=spec_device),
                steps=Unbounded((), **int_options),
                episodes=Unbounded((), **int_options),
                keys=Unbounded((2,), **int_options),
            )
            self.state_spec = Composite(rows=entries["rows"])
        self.observation_spec = Composite(entries, shape=batch)
        action_spec = spec_from_gym(simulator.action_space, device=spec_device, categorical=not self._one_hot)
        self._one_hot = isinstance(action_spec, OneHot)
        self.action_spec = action_spec.expand(*batch, *action_spec.shape)
        self.reward_spec = Unbounded((*batch, 1), dtype=simulator.dtype, device=spec_device)
        flag = Categorical(2, (*batch, 1), dtype=torch.bool, device=spec_device)
        self.full_done_spec = Composite({name: flag.clone() for name in FLAGS}, shape=batch)

    # -- rows: their own, or those of a TensorDict

    def _rows_of(self, tensordict: TensorDictBase | None) -> NativeState | None:
        if self.batch_locked:
            return self._state
        if tensordict is None or tensordict.get("rows", None) is None:
            return None
        rows_td = tensordict.get("rows")
        num_rows = tensordict.batch_size.numel()
        return NativeState(
            *(env_first(rows_td.get(name).reshape(num_rows, *_width(name))) for name in NativeState._fields)
        )

    def _to_tensordict(self, obs: Tensor, state: NativeState, shape: torch.Size, **extra_entries: Tensor) -> TensorDict:
        """What is handed out of rows, which are kept or go along."""
        entries: dict[str, Any] = {"observation": obs.reshape((*shape, -1))}
        entries |= {name: value.reshape((*shape, 1)) for name, value in extra_entries.items()}
        if not self.batch_locked:
            parts = {name: env_first(value) for name, value in state._asdict().items()}
            parts = {name: value.reshape((*shape, *value.shape[1:])) for name, value in parts.items()}
            entries["rows"] = TensorDict(parts, shape, device=self.device)
        else:
            self._state = state
        return TensorDict(entries, shape, device=self.device)

    def _streams(self, num_rows: int) -> tuple[Tensor, Tensor]:
        """The keys of the next n seeds, and the number of their first episode."""
        seeds = np.uint64(self._seed) + np.arange(num_rows, dtype=np.uint64)  # which wraps around
        keys = torch.from_numpy(keys_of(seeds)).to(self.simulator.device)
        return keys, torch.zeros(num_rows, dtype=torch.int32, device=self.simulator.device)

    def _start_rows(self, num_rows: int, state: NativeState | None, options: Any = None) -> NativeState:
        """Episodes in n rows: the next of their streams, or the first of new ones where there are none yet."""
        if state is not None and not self._reseeded:
            return self.simulator.start_rows(state.keys, state.episodes + 1, options)
        return self.simulator.start_rows(*self._next_streams(num_rows), options)

    def _restart_rows(self, mask: Tensor, state: NativeState, options: Any = None) -> tuple[Tensor, NativeState]:
        """Observations and rows, of which those in `mask` `[num_rows]` begin anew; a seed waits for the reset of its
        row."""
        if self._reseeded and self.batch_locked:
            keys, first_episodes = self._next_streams(len(mask))
            state = state._replace(keys=keys, episodes=first_episodes - 1)
        if not options:
            return self.simulator.restart_rows(mask, state)
        state = _where(mask, self.simulator.start_rows(state.keys, state.episodes + 1, options), state)
        return self.simulator.rows_obs(state), state

    def _next_streams(self, num_rows: int) -> tuple[Tensor, Tensor]:
        streams = self._streams(num_rows)
        self._seed = (self._seed + num_rows) % 2**64
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
        state = self._rows_of(tensordict)
        mask = None if tensordict is None else tensordict.get("_reset", None)
        if mask is None or state is None:
            if state is None or not set_state:
                state = self._start_rows(shape.numel(), state, options)
            return self._to_tensordict(self.simulator.rows_obs(state), state, shape)
        return self._to_tensordict(*self._restart_rows(_row_mask(mask, shape), state, options), shape)

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        shape = tensordict.batch_size
        state = self._rows_of(tensordict)
        if state is None:
            missing_text = "was no reset" if self.batch_locked else 'are no "rows" in the TensorDict'
            raise SpaceError(f"There {missing_text}: step what env.reset() or a step before gave.")
        step, state = self.simulator.step_rows(self._numeric_actions(tensordict.get("action"), shape), state)
        end_flags = {"terminated": step.terminated, "truncated": step.truncated}
        done = torch.logical_or(step.terminated, step.truncated)
        return self._to_tensordict(step.next_obs, state, shape, reward=step.reward, done=done, **end_flags)

    def _numeric_actions(self, action: Tensor, shape: torch.Size) -> Tensor:
        """Actions of `shape` as the simulator takes them, in one batch dimension."""
        num_rows, action_shape = shape.numel(), self.action_spec.shape[self.ndim :]
        if action.shape != (*shape, *action_shape):
            raise SpaceError(f"Expected actions of shape {(*shape, *action_shape)}, but {tuple(action.shape)} came.")
        action = action.reshape(num_rows, *action_shape)
        if self.batch_locked:
            action = action.detach()
        if not self._one_hot:
            return self.simulator.as_actions(action, num_rows)
        # Elementwise, as a reduction over two or three options is slow; in range whatever the rows hold.
        action_index = action[:, 1].to(self.simulator.dtype)
        for option in range(2, action.shape[-1]):
            action_index = torch.maximum(action_index, action[:, option].to(action_index.dtype) * option)
        return action_index

    def _step_masked(self, tensordict: TensorDictBase, mask: Tensor) -> TensorDictBase:
        state_before = self._state
        next_td = self._step_and_complete(tensordict)
        if state_before is not None and self._state is not None:
            row_mask = _row_mask(mask, self.batch_size)
            self._state = _where(row_mask, self._state, state_before)
        return next_td

    def _none_selected(self, masks: RowMasks) -> bool:
        return self.simulator.can_sync_host() and masks.none_selected

    def maybe_reset(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Begin anew in the rows of `tensordict` that are done; the others stay as they are."""
        state = self._rows_of(tensordict)
        if state is None or overrides_any(self, NativeEnv, ("_reset", "_step")):
            return super().maybe_reset(tensordict)
        # What is given of all rows is right for all of them, so that nothing needs to be merged.
        shape, done = tensordict.batch_size, tensordict.get("done")
        obs, state = self._restart_rows(_row_mask(done, shape), state)
        flags = {name: torch.zeros_like(done) for name in FLAGS}
        return tensordict.update(self._to_tensordict(obs, state, shape, **flags))

    # -- a rollout at once

    def _rollout_at_once(self, steps: int, actions: Any, break_when_any_done: bool) -> TensorDictBase | None:
        if not self.batch_locked:
            return None
        batch = self.batch_size
        action_steps = (
            self.action_spec.rand((steps,)) if actions is None else actions.movedim(self.ndim, 0)[:steps].clone()
        )
        steps_shape = torch.Size([len(action_steps), *batch])
        numeric_actions = self._numeric_actions(action_steps, steps_shape)
        numeric_actions = numeric_actions.reshape(steps_shape[0], -1, *numeric_actions.shape[1:])
        trajectory, state = record_trajectory(
            self.simulator, self._start_rows(batch.numel(), self._state), numeric_actions, break_when_any_done
        )
        self._state = state
        steps_shape = torch.Size([len(trajectory.reward), *batch])
        end_flags = {"terminated": trajectory.terminated, "truncated": trajectory.truncated}
        next_td = {"reward": trajectory.reward, "done": trajectory.terminated | trajectory.truncated, **end_flags}
        no_flags = {name: torch.zeros_like(trajectory.terminated) for name in FLAGS}
        root = self._steps_to_tensordict(steps_shape, trajectory.obs, no_flags)
        root.set("action", action_steps[: len(trajectory.reward)].movedim(0, self.ndim))
        root.set("next", self._steps_to_tensordict(steps_shape, trajectory.next_obs, next_td))
        root.names = [*[None] * self.ndim, "time"]
        return root

    def _steps_to_tensordict(
        self, steps_shape: torch.Size, obs: Tensor, extra_entries: dict[str, Tensor]
    ) -> TensorDict:
        """Leaves with time in front as entries with time behind the batch."""
        flat = {"observation": obs.reshape(*steps_shape, -1)} | {
            name: leaf.reshape(*steps_shape, 1) for name, leaf in extra_entries.items()
        }
        batch_first = {name: leaf.movedim(0, self.ndim) for name, leaf in flat.items()}
        return TensorDict(batch_first, [*self.batch_size, steps_shape[0]], device=self.device)

    # -- the rest

    def to(self, device: Any) -> Self:
        """Compute and live on another device from now on, rows included; returns the environment."""
        super().to(device)
        self.simulator.close()
        self.simulator = self._make_simulator()
        if self._state is not None:
            self._state = NativeState(*(value.to(self.device) for value in self._state))
        return self

    def render(self, row: int = 0) -> np.ndarray | None:
        """A frame `[height, state_size, 3]` uint8 of one row, counted through the batch; None without a render mode."""
        if self._state is None:
            raise SpaceError("There is nothing to render: it takes a batch size, and a reset before.")
        self.simulator.rows = self._state
        return self.simulator.render(row)

    def close(self, *, raise_if_closed: bool = False) -> None:
        """Close the renderer, and be closed; twice is harmless unless `raise_if_closed`."""
        self.simulator.close()
        super().close(raise_if_closed=raise_if_closed)

    def __repr__(self) -> str:
        return f"NativeEnv({self.env_name!r}, batch_size={tuple(self.batch_size)}, device={self.device})"


def _width(name: str) -> tuple[int, ...]:
    return (-1,) if name in ("state", "keys") else ()


def _where(mask: Tensor, new: NativeState, old: NativeState) -> NativeState:
    return NativeState(
        *(torch.where(mask, new_value, old_value) for new_value, old_value in zip(new, old, strict=True))
    )


def _row_mask(mask: Tensor, shape: torch.Size) -> Tensor:
    """A mask of `shape`, with or without a dimension behind it, in one dimension."""
    return mask.reshape(shape.numel(), -1).any(-1)
