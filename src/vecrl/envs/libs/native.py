"""The native tasks over TensorDicts: gymnasium's classic control as batches of tensors, on any device.

With a batch size, the environment holds the rows (the simulator state), and `vecrl.simulators.native` steps them to the
same bits as for `vecrl.vector`. Without one, the rows are entries of the TensorDict, under "rows", and each call may
have another batch size. Both ways use the same functions of rows.
"""

from __future__ import annotations

from typing import Any, Self

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from ...engine.simulator import BatchStep, ResetOptions
from ...engine.space_layout import Layout
from ...errors import SpaceError
from ...seeding import random_seed
from ...simulators.counter_rng import keys_of
from ...simulators.native import make_native
from ...simulators.row_task import RowState, RowTaskSimulator, env_first
from ...specs import Composite, OneHot, Unbounded
from ...specs.choices import rounded_ones
from ...specs.convert import spec_from_gym
from ..entries.row_masks import RowMasks
from ..env_specs import Device
from ..fast_paths import overrides_bypassed
from ..rollouts.array_rollout import known_actions, rollout_arrays, to_tensordict
from .row_task_env import RowTaskEnv
from .simulator_env import SimulatorArrays, batch_size_of


class NativeEnv(RowTaskEnv):
    """A batch of environments of one native task.

    The first episode of row i after `set_seed(seed)` is that of the seed `seed + i`, as in `vecrl.vector`. The initial
    state of a row depends only on its seed and the number of its earlier episodes. Rows in the TensorDict contain their
    seeds, which a partial reset uses.

    Args:
        env_name: gymnasium's id: "CartPole-v1", "Acrobot-v1", "MountainCar-v0", "MountainCarContinuous-v0",
            "Pendulum-v1".
        num_envs: number of environments; the same as a `batch_size` of `(num_envs,)`.
        batch_size: the batch size, with any number of dimensions. If neither is given, the environment holds no rows
            (`batch_locked` is False): `reset` returns them as the entry "rows", which `step` needs.
        categorical_action_encoding: discrete actions as indices `[*batch]`, not as one-hot rows `[*batch, options]`.
        device: the device of all computations and tensors; None for the CPU.
        run_type_checks, spec_locked: see `EnvBase`.
        compile: compile the step of the task and its resets into one region, which needs a batch size.
        kwargs: arguments of `vecrl.simulators.native.NativeSimulator`: `dtype`, `max_episode_steps`, `render_mode`,
            `check_actions`, `arrays`, and the physical constants of the task.

    Entries: "observation" `[*batch, k]`, "reward" `[*batch, 1]`, "done", "terminated" and "truncated" `[*batch, 1]`; a
    time limit truncates. "next" holds the true successors, final observations included. On a GPU, neither a step nor a
    masked reset waits for data.

    Raises:
        ValueError: if the name is unknown, or arguments contradict each other.
        TypeError: if an argument is unknown, or `compile` is no bool.

    >>> env = NativeEnv("CartPole-v1", 3)
    >>> env.rollout(5, break_when_any_done=False)["next", "observation"].shape
    torch.Size([3, 5, 4])
    >>> NativeEnv("Pendulum-v1").reset(TensorDict(batch_size=[2, 7]))["observation"].shape
    torch.Size([2, 7, 3])
    """

    excluded_from_state = ("simulator",)  # its functions have no state
    state_classes = (RowState,)

    def __init__(
        self,
        env_name: str,
        num_envs: int | None = None,
        *,
        batch_size: Any = None,
        categorical_action_encoding: bool = False,
        device: Device = None,
        run_type_checks: bool = False,
        spec_locked: bool = True,
        compile: bool = False,  # noqa: A002 -- torch's name for it
        **kwargs: Any,
    ):
        if not isinstance(compile, bool):
            raise TypeError(
                f"Expected compile to be True or False, got {compile!r}. Native tasks compile their step themselves, "
                "so omit the options of torch.compile."
            )
        shape = batch_size_of(num_envs, batch_size)
        is_free = shape is None
        if is_free and compile:
            raise ValueError(
                "Expected num_envs or batch_size with compile=True, which compiles for one size, got neither. Give one."
            )
        super().__init__(
            device=device,
            batch_size=shape,
            run_type_checks=run_type_checks,
            spec_locked=spec_locked,
            allow_done_after_reset=True,  # no initial state is done, and a check would wait for the GPU
        )
        self._batch_locked, self._supports_set_state = not is_free, is_free
        self.env_name = env_name
        self._kwargs = {**kwargs, "compile": True} if compile else kwargs
        self._one_hot = not categorical_action_encoding
        self._state: RowState | None = None
        self.simulator = self._make_simulator()
        self._set_seed(None)
        self._set_specs()

    def _make_simulator(self) -> RowTaskSimulator:
        device = self.device or torch.device("cpu")
        return make_native(self.env_name, self.batch_size.numel(), device=device, **self._kwargs)

    def _set_specs(self) -> None:
        options: dict[str, Any] = {"device": self.simulator.device}
        action_spec = spec_from_gym(self.simulator.action_space, categorical=not self._one_hot, **options)
        self._one_hot = isinstance(action_spec, OneHot)
        obs_spec = spec_from_gym(self.simulator.observation_space, **options)
        reward_spec, rows_spec = Unbounded((1,), dtype=self.simulator.dtype, **options), None
        if not self.batch_locked:
            rows = self.simulator.start_rows(*self._streams(1))._asdict()
            rows_spec = Composite({name: Unbounded(v.shape[:-1], v.device, v.dtype) for name, v in rows.items()})
        self._set_row_specs(action_spec, obs_spec, reward_spec, rows_spec)

    # -- rows, held by the environment or by a TensorDict

    def _rows_of(self, tensordict: TensorDictBase | None) -> RowState | None:
        if self.batch_locked:
            return self._state
        if tensordict is None or tensordict.get("rows", None) is None:
            return None
        rows_td = tensordict.get("rows")
        num_rows = tensordict.batch_size.numel()
        return RowState(*(env_first(rows_td.get(name).reshape(num_rows, *_width(name))) for name in RowState._fields))

    def _store_rows(self, rows: RowState, shape: torch.Size) -> TensorDict | None:
        if self.batch_locked:
            self._state = rows
            return None
        parts = {name: env_first(value) for name, value in rows._asdict().items()}
        parts = {name: value.reshape((*shape, *value.shape[1:])).clone() for name, value in parts.items()}
        return TensorDict(parts, shape, device=self.device)

    def _streams(self, num_rows: int) -> tuple[Tensor, Tensor]:
        """Returns the keys of the next `num_rows` seeds, and the numbers of their first episodes, which are zeros."""
        seeds = np.uint64(self._seed) + np.arange(num_rows, dtype=np.uint64)  # wraps around at 2**64
        keys = torch.from_numpy(keys_of(seeds)).to(self.simulator.device)
        return keys, torch.zeros(num_rows, dtype=torch.int32, device=self.simulator.device)

    def _start_rows(self, num_rows: int, state: RowState | None, options: ResetOptions | None = None) -> RowState:
        """Starts episodes in all rows: the next ones of `state`, or the first of new seeds if there are none yet."""
        if state is not None and not self._reseeded:
            return self.simulator.start_rows(state.keys, state.episodes + 1, options)
        return self.simulator.start_rows(*self._next_streams(num_rows), options)

    def _restart_rows(
        self, mask: Tensor, state: RowState, options: ResetOptions | None = None
    ) -> tuple[Tensor, RowState]:
        """Returns observations and rows after a reset of the rows of `mask` `[num_rows]`.

        After `set_seed`, every row gets its new seed here, and uses it at its own next reset.
        """
        if self._reseeded and self.batch_locked:
            keys, first_episodes = self._next_streams(len(mask))
            state = state._replace(keys=keys, episodes=first_episodes - 1)
        if not options:
            return self.simulator.restart_rows(mask, state)
        state = self.simulator.start_rows(state.keys, state.episodes + 1, options).where(mask, state)
        return self.simulator.rows_obs(state), state

    def _next_streams(self, num_rows: int) -> tuple[Tensor, Tensor]:
        streams = self._streams(num_rows)
        self._seed = (self._seed + num_rows) % 2**64
        self._reseeded = False
        return streams

    def _set_seed(self, seed: int | None) -> None:
        self._seed = random_seed(64) if seed is None else seed % 2**64
        self._reseeded = True

    # -- single steps

    def _reset(  # pyright: ignore[reportIncompatibleMethodOverride]
        self,
        tensordict: TensorDictBase | None = None,
        *,
        options: ResetOptions | None = None,
        set_state: bool | None = None,
    ) -> TensorDictBase:
        shape = self.batch_size if tensordict is None else tensordict.batch_size
        state = self._rows_of(tensordict)
        mask = None if tensordict is None else tensordict.get("_reset", None)
        if mask is None or state is None:
            if state is None or not set_state:
                state = self._start_rows(shape.numel(), state, options)
            return self._to_tensordict(self.simulator.rows_obs(state), state, shape)
        return self._to_tensordict(*self._restart_rows(_row_mask(mask, shape), state, options), shape)

    def _step_rows(self, tensordict: TensorDictBase) -> tuple[BatchStep, RowState]:
        state = self._rows_of(tensordict)
        if state is None:
            missing_text = "a reset before the first step" if self.batch_locked else '"rows" in the TensorDict'
            raise SpaceError(
                f"Expected {missing_text}, got none. Step the result of env.reset() or of an earlier step."
            )
        actions = self._numeric_actions(tensordict.get("action"), tensordict.batch_size)
        return self.simulator.step_rows(actions, state)

    def _numeric_actions(self, action: Tensor, shape: torch.Size) -> Tensor:
        """Converts actions of the batch size `shape` to those of the simulator, with one batch dimension."""
        num_rows, action_shape = shape.numel(), self.action_spec.shape[self.ndim :]
        if action.shape != (*shape, *action_shape):
            raise SpaceError(f"Expected actions of shape {(*shape, *action_shape)}, got {tuple(action.shape)}.")
        action = action.reshape(num_rows, *action_shape)
        if self.batch_locked:
            action = action.detach()
        if not self._one_hot:
            return self.simulator.as_actions(action, num_rows)
        ones = rounded_ones(action) if self.simulator.checks_values(action) else action > 0.5
        if ones is None:
            raise SpaceError(
                f"Expected one-hot rows of {action.shape[-1]} options, got {action!r:.80} of shape "
                f"{tuple(action.shape)}. Use action_spec.encode to convert indices."
            )
        # Elementwise, since a reduction over two or three options is slow. The first of several ones counts, and the
        # result is in range for any input.
        index: Any = action.shape[-1] - 1
        for option in range(action.shape[-1] - 2, -1, -1):
            index = torch.where(ones[:, option], option, index)
        if self.batch_locked:
            return index
        index = index.to(self.simulator.dtype)  # floats, which have gradients
        if not action.requires_grad:
            return index
        slopes = (action * torch.arange(action.shape[-1], device=action.device)).sum(-1)
        return index + slopes - slopes.detach()

    def _step_masked(self, tensordict: TensorDictBase, mask: Tensor) -> TensorDictBase:
        state_before = self._state
        next_td = self._step_and_complete(tensordict)
        if state_before is not None and self._state is not None:
            self._state = self._state.where(_row_mask(mask, self.batch_size), state_before)
        return next_td

    def _none_selected(self, masks: RowMasks) -> bool:
        return self.simulator.can_sync_host() and masks.none_selected

    def maybe_reset(self, tensordict: TensorDictBase) -> TensorDictBase:
        state = self._rows_of(tensordict)
        if state is None or overrides_bypassed(type(self), "_rollout_at_once"):
            return super().maybe_reset(tensordict)
        # The entries are valid in all rows, so no merge is needed.
        shape, done = tensordict.batch_size, tensordict.get("done")
        obs, state = self._restart_rows(_row_mask(done, shape), state)
        tensordict.update({name: torch.zeros_like(done) for name in self._flag_names})
        return tensordict.update(self._to_tensordict(obs, state, shape))

    # -- whole rollouts

    def _rollout_at_once(self, steps: int, actions: Tensor | None, break_when_any_done: bool) -> TensorDictBase | None:
        if not self.batch_locked:
            return None
        rows = (self.numel(),)
        actions = known_actions(self, steps, actions)
        numeric = self._numeric_actions(actions, torch.Size([len(actions), *self.batch_size]))
        action_steps = numeric.reshape(len(actions), *rows, *numeric.shape[1:]).unbind(0)
        simulator, waits = self.simulator, not self.simulator.can_sync_host()
        simulator.rows = state = self._start_rows(*rows, self._state)
        layout = Layout(simulator.observation_space)
        arrays = SimulatorArrays(simulator, lambda: simulator.rows_obs(state), layout, waits=waits, fuses=True)
        trajectory = rollout_arrays(arrays, action_steps, rows, simulator.dtype, break_when_any_done)
        self._state = simulator.rows
        if waits:  # the rows that are done were reset after the last step too
            done = trajectory.terminated[..., -1] | trajectory.truncated[..., -1]
            self._state = self._state._replace(episodes=self._state.episodes - done.int())
        return to_tensordict(self, ["observation"], trajectory.with_rows(self.batch_size), actions)

    # -- devices, rendering, closing

    def to(self, device: torch.device | str | int) -> Self:
        """Moves the environment to another device, rows included, and returns it."""
        super().to(device)
        self.simulator.close()
        self.simulator = self._make_simulator()
        if self._state is not None:
            self._state = RowState(*(value.to(self.device) for value in self._state))
        return self

    def render(self, row: int = 0) -> np.ndarray | None:
        """Returns a frame `[height, width, 3]` uint8 of one row, an index into the flat batch.

        Returns None without a render mode.
        """
        if self._state is None:
            raise SpaceError("Expected a batch size and a reset before render, got no rows. Call env.reset() first.")
        self.simulator.rows = self._state
        return self.simulator.render(row)

    def close(self, *, raise_if_closed: bool = False) -> None:
        """Closes the renderer and the environment.

        Args:
            raise_if_closed: raise a `ClosedError` if it is closed already; otherwise a second call does nothing.
        """
        self.simulator.close()
        super().close(raise_if_closed=raise_if_closed)

    def __repr__(self) -> str:
        return f"NativeEnv({self.env_name!r}, batch_size={tuple(self.batch_size)}, device={self.device})"


def _width(name: str) -> tuple[int, ...]:
    return (-1,) if name in ("state", "keys") else ()


def _row_mask(mask: Tensor, shape: torch.Size) -> Tensor:
    """Flattens a mask of the batch size `shape`, with or without more dimensions, to one dimension."""
    return mask.reshape(shape.numel(), -1).any(-1)
