"""Any `BatchSimulator` over TensorDicts: `SimulatorEnv`.

Rows are stepped in one call, and tensors are neither copied nor moved from the simulator's device. This module must not
know any simulator.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from ...engine.simulator import BatchSimulator, ResetOptions, SupportsStepWhere
from ...engine.space_layout import Layout, Tree
from ...errors import SpaceError
from ...seeding import random_seed
from ...simulators.registry import find_entry
from ...specs import Categorical, Composite, TensorSpec, Unbounded
from ...specs.choices import CategoricalSpec
from ...specs.convert import spec_from_gym
from ...specs.shape_ops import concrete_size
from ...validation import parse_optional_count
from ...vector.checked_simulator import CheckedSimulator
from ...vector.factory import make_simulator
from ..entries.keys import FLAGS, Key
from ..fast_paths import bypassed_by, overrides_bypassed
from ..gym_like import GymLikeEnv, set_nested
from ..library_env import pop_env_arguments
from ..rollouts.array_rollout import known_actions, rollout_arrays, to_tensordict
from ..rollouts.trajectory_buffers import ArrayBuffer, Leaves
from ..seed_chain import next_seed, seed_chain
from .gym.spaces import observation_keys_of


class SimulatorEnv(GymLikeEnv):
    """The rows of a `BatchSimulator` as an `EnvBase`.

    Observations that are no dict are under "observation"; those of nested spaces have nested keys, with "0", "1", … for
    the parts of a Tuple. "next" holds the true successors, final observations included. Gradients flow through a
    simulator that keeps graphs.

    Args:
        simulator: a registered name of a batched simulator ("native::CartPole-v1"), or a `BatchSimulator`.
        num_envs: the number of rows; the batch size is `(num_envs,)`. None for a single row without batch dimensions,
            or for all rows of a `BatchSimulator`.
        batch_size: the batch size, with any number of dimensions, instead of `num_envs`.
        categorical_action_encoding: encode discrete actions and observations as indices, not as one-hot rows.
        from_pixels: add rendered frames under "pixels", uint8 `[*batch, H, W, C]`.
        pixels_only: return the frames instead of the simulator's observations, not beside them.
        device: the device of inputs and outputs, and of a simulator that is made by name; None for the simulator's.
        kwargs: arguments of `GymLikeEnv`; for names, all others are passed to the simulator.

    Attributes:
        simulator: the simulator.

    Infos of steps become entries by `auto_register_info_dict()` or `set_info_dict_reader()`.

    Raises:
        ValueError: if the name is that of single environments, or `num_envs` and `batch_size` contradict each other.
        SpaceError: if the batch size does not fit the simulator.

    >>> env = SimulatorEnv("native::CartPole-v1", num_envs=3)
    >>> env.rollout(5, break_when_any_done=False)["next", "observation"].shape
    torch.Size([3, 5, 4])
    >>> SimulatorEnv("native::Pendulum-v1").rollout(5).shape
    torch.Size([5])
    """

    libname = "simulator"
    _resets_when_seeded = True
    _remake: Callable[[], BatchSimulator] | None = None  # of a simulator that was made by name
    excluded_from_state = ("_remake", "_checked", "_encoders", "_decoders", "_layout", "_action_layout")
    returns_new_tensors = True  # a simulator does not write to results

    def __init__(
        self,
        simulator: str | BatchSimulator,
        num_envs: int | None = None,
        *,
        batch_size: Any = None,
        categorical_action_encoding: bool = False,
        from_pixels: bool = False,
        pixels_only: bool = True,
        device: torch.device | str | int | None = None,
        **kwargs: Any,
    ):
        env_kwargs = pop_env_arguments(kwargs, "frame_skip", "convert_actions_to_numpy")
        shape = batch_size_of(num_envs, batch_size)
        if isinstance(simulator, str):
            shape = torch.Size() if shape is None else shape
            if from_pixels:
                kwargs.setdefault("render_mode", "rgb_array")
            self._remake = partial(_make, simulator, shape.numel(), device=device, **kwargs)
            simulator = self._remake()
        elif kwargs:
            raise TypeError(f"Expected arguments of GymLikeEnv with a simulator, got {', '.join(kwargs)}. Omit them.")
        if not hasattr(simulator, "num_envs"):
            raise TypeError(
                f"Expected simulator to be the name of an environment, or a BatchSimulator, got {simulator!r:.80}."
            )
        shape = torch.Size([simulator.num_envs]) if shape is None else shape
        if device is None and torch.device(simulator.device).type != "cpu":
            device = simulator.device
        self._one_hot = not categorical_action_encoding
        self.from_pixels, self.pixels_only = from_pixels, pixels_only
        self._seeds: list[int] | None = None
        self._was_reset = False
        super().__init__(simulator, device=device, batch_size=shape, **env_kwargs)

    def _build_env(self, env: Any = None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        if env.num_envs != self.batch_size.numel():
            raise SpaceError(f"Expected a batch size of {env.num_envs} rows, got {tuple(self.batch_size)}.")
        if self.frame_skip > 1:
            raise SpaceError(f"Expected frame_skip=1 for a batched simulator, got {self.frame_skip}.")
        if self.from_pixels and env.render_mode != "rgb_array":
            raise SpaceError(f"Expected render_mode 'rgb_array' with from_pixels, got {env.render_mode!r}.")
        self._checked = CheckedSimulator(env)
        self._steps_rows = isinstance(env, SupportsStepWhere)
        return env

    def _open(self) -> None:
        if self._remake is not None:
            self._env, self._was_reset = self._build_env(env=self._remake()), False
        super()._open()

    @property
    def simulator(self) -> BatchSimulator:
        """The simulator."""
        return self._env

    def _make_specs(self, env: BatchSimulator) -> None:
        spec_device = self.device or torch.device("cpu")
        options: dict[str, Any] = {"device": spec_device, "categorical": not self._one_hot}
        self._layout, self._action_layout = Layout(env.observation_space), Layout(env.action_space)
        obs_spec = spec_from_gym(env.observation_space, **options)
        entries = obs_spec if isinstance(obs_spec, Composite) else Composite(observation=obs_spec)
        if self.from_pixels:
            env.reset()
            frames = Unbounded(np.asarray(env.render(0)).shape, dtype=torch.uint8, device=spec_device)
            entries = Composite(pixels=frames) if self.pixels_only else entries.set("pixels", frames)
        self.observation_spec = self._batched(entries)
        self.action_spec = self._batched(spec_from_gym(env.action_space, **options))
        self.reward_spec = self._batched(Unbounded((1,), device=spec_device))
        flag = Categorical(2, (1,), dtype=torch.bool, device=spec_device)
        self.full_done_spec = self._batched(Composite({name: flag.clone() for name in FLAGS}))
        self._encoders = [] if self.from_pixels and self.pixels_only else self._make_encoders(obs_spec)
        is_nested = not self._action_layout.flat
        paths = [tuple(map(str, leaf.path)) if is_nested else "action" for leaf in self._action_layout.leaves]
        self._decoders = self._make_decoders(paths)

    def _make_encoders(self, obs_spec: TensorSpec) -> list[tuple[Key, Callable[[Tensor], Tensor]]]:
        """Returns the keys of the observation leaves, and functions of leaves of all rows."""
        encoders: list[tuple[Key, Callable[[Tensor], Tensor]]] = []
        for key in observation_keys_of(self._layout, []):
            spec = obs_spec[key] if isinstance(obs_spec, Composite) else obs_spec
            spec = spec.expand(self.numel(), *spec.shape)
            encoders.append((key, partial(_encode, spec, self.batch_size)))
        return encoders

    def _make_decoders(self, keys: Sequence[Key]) -> list[tuple[Key, Callable[[Tensor], Tensor]]]:
        """Returns the keys of actions, and functions from entries to actions of all rows."""
        return [(key, partial(_decode, self.full_action_spec[key], key, self.batch_size)) for key in keys]

    # -- resets and steps

    def read_obs(self, observations: Tree) -> dict[str, Any]:
        """Converts observations of all rows to a nested dict of tensors."""
        entries: dict[str, Any] = {}
        if self._encoders:
            for (key, encode), leaf in zip(self._encoders, self._layout.split(observations), strict=True):
                set_nested(entries, key, encode(leaf))
        if self.from_pixels:
            frames = torch.from_numpy(np.stack([self._env.render(row) for row in range(self.numel())]))
            entries["pixels"] = frames.reshape(*self.batch_size, *frames.shape[1:])
        return entries

    def _reset(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, tensordict: TensorDictBase | None = None, *, options: ResetOptions | None = None
    ) -> TensorDictBase:
        mask = None if tensordict is None else tensordict.get("_reset", None)
        if mask is None or not self._was_reset:
            return self._with_info(self.read_obs(self._reset_all(options)), {})
        seeds, self._seeds = self._seeds, None
        return self._with_info(self.read_obs(self._checked.reset_rows(self._row_mask(mask), seeds, options)), {})

    def _reset_all(self, options: ResetOptions | None = None) -> Tree:
        seeds, self._seeds = self._seeds, None
        self._was_reset = True
        return self._checked.reset(seeds, options)

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        mask = tensordict.get("_step", None)
        actions = self._actions_of(tensordict)
        if mask is None or self._may_step_all(mask, tensordict):
            step = self._checked.step(actions)
        else:
            step = self._checked.step_where(self._row_mask(mask), actions)
        entries, shape = self.read_obs(step.next_obs), (*self.batch_size, 1)
        entries["reward"] = step.reward.reshape(shape).to(torch.float32)
        entries["terminated"], entries["truncated"] = step.terminated.reshape(shape), step.truncated.reshape(shape)
        entries["done"] = entries["terminated"] | entries["truncated"]
        return self._with_info(entries, step.info)

    def _may_step_all(self, mask: Tensor, tensordict: TensorDictBase) -> bool:
        """Returns whether a step of all rows has no effect on rows outside of `mask`, because these are done."""
        done = tensordict.get("done", None)
        return not self._steps_rows and done is not None and bool((self._row_mask(mask) | self._row_mask(done)).all())

    def _actions_of(self, tensordict: TensorDictBase) -> Tree:
        return self._action_layout.build([decode(tensordict.get(key)) for key, decode in self._decoders])

    def _row_mask(self, mask: Tensor) -> Tensor:
        return mask.reshape(self.numel(), -1).any(-1).to(self._env.device)

    @bypassed_by("_rollout_at_once")
    def maybe_reset(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Resets the rows of `tensordict` that are done and returns it; the other rows are unchanged."""
        has_hooks = bool(self.info_dict_reader) or self._self_reset is not None or self._seeds is not None
        if has_hooks or not self._was_reset or overrides_bypassed(type(self), "_rollout_at_once"):
            return super().maybe_reset(tensordict)
        done = tensordict.get("done")
        if done.device.type == "cpu" and not bool(done.any()):
            return tensordict
        # The simulator returns the observations of all rows, so no merge is needed, and nothing waits for a device.
        entries = self.read_obs(self._checked.reset_where(self._row_mask(done)))
        entries |= {name: torch.zeros_like(done) for name in FLAGS}
        return tensordict.update(TensorDict(entries, self.batch_size, device=self._device))

    def _rollout_at_once(self, steps: int, actions: Tensor | None, break_when_any_done: bool) -> TensorDictBase | None:
        has_hooks = bool(self.info_dict_reader) or self._self_reset is not None or self.from_pixels
        is_elsewhere = self.device is not None and self.device != torch.device(self._env.device)
        needs_graph = torch.is_grad_enabled() and getattr(self._env, "differentiable", False)
        if has_hooks or is_elsewhere or needs_graph or not self._action_layout.flat:
            return None
        actions, (_, decode), rows = known_actions(self, steps, actions), self._decoders[0], (self.numel(),)
        waits = torch.device(self._env.device).type != "cpu"
        arrays = SimulatorArrays(self._checked, self._reset_all, self._layout, waits=waits)
        dtype = self.reward_spec.dtype
        trajectory = rollout_arrays(arrays, list(map(decode, actions)), rows, dtype, break_when_any_done)
        keys = [key for key, _ in self._encoders]
        return to_tensordict(self, keys, trajectory.with_rows(self.batch_size), actions)

    # -- seeds, rendering

    def _set_seed(self, seed: int | None) -> None:
        self._seeds = list(seed_chain(random_seed() if seed is None else seed, self.numel()))

    def _apply_seed(self, seed: int | None, static_seed: bool) -> int | None:
        next_one = super()._apply_seed(seed, static_seed)  # rows get the seeds of single environments in a batch
        return next_one if seed is None or static_seed else next_seed(seed_chain(seed, self.numel())[-1])

    def render(self, row: int = 0) -> np.ndarray | None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Returns a frame `[height, width, 3]` uint8 of one row, an index into the flat batch; None without a mode."""
        return self._env.render(row)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._env!r}, batch_size={tuple(self.batch_size)}, device={self.device})"


class SimulatorArrays:
    """Rows of a simulator at array level, see `ArrayEnv`.

    Args:
        simulator: the simulator, or a `CheckedSimulator`.
        reset: resets all rows and returns their observations.
        layout: of the observation space.
        waits: whether reading the flags of rows waits for a device; then they are not read.
        fuses: step and reset rows by `step_and_reset`; if reading waits, also where no reset is necessary.
    """

    def __init__(self, simulator: Any, reset: Callable[[], Tree], layout: Layout, *, waits: bool, fuses: bool = False):
        self._simulator, self._reset, self._layout = simulator, reset, layout
        self._waits, self._fuses = waits, fuses

    def reset_arrays(self) -> Leaves:
        return self._layout.split(self._reset())

    def step_arrays(self, action: Any, t: int, out: ArrayBuffer, reset_done: bool) -> bool | Tensor:
        first_obs: Tree = None
        if self._fuses and (reset_done or self._waits):
            step, done, first_obs = self._simulator.step_and_reset(action)
        else:
            step = self._simulator.step(action)
            done = torch.logical_or(step.terminated, step.truncated)
        for column, leaf in zip(out.next_obs, self._layout.split(step.next_obs), strict=True):
            column[t] = leaf
        out.reward[t] = step.reward
        rows: Any = ... if self._waits else done.nonzero().squeeze(-1)  # flags on the CPU are read at no cost
        if rows is not ... and not len(rows):
            return False
        out.add_flags(t, step.terminated, step.truncated)
        if reset_done:
            first_obs = self._layout.split(self._simulator.reset_where(done) if first_obs is None else first_obs)
            out.add_first_obs(t + 1, rows, first_obs if rows is ... else [leaf[rows] for leaf in first_obs])
        return done if rows is ... else True


def batch_size_of(num_envs: int | None, batch_size: Any) -> torch.Size | None:
    """Returns the batch size of one of two arguments, or None if both are None; they must not contradict each other."""
    count = parse_optional_count("num_envs", num_envs)
    if batch_size is None:
        return None if count is None else torch.Size([count])
    shape = concrete_size("batch_size", batch_size)
    if count is not None and shape != (count,):
        raise ValueError(
            f"Expected num_envs or batch_size, got num_envs={num_envs} and batch_size={tuple(shape)}, which contradict "
            "each other. Give one of them."
        )
    return shape


def _make(name: str, num_envs: int, **kwargs: Any) -> BatchSimulator:
    entry, env_name = find_entry(name)
    if entry.make_batch is None:
        raise ValueError(
            f"Expected the name of a simulator that steps many environments in one call, got {name!r}. "
            "Use vecrl.envs.make_env, which takes every name."
        )
    return make_simulator(entry, env_name, num_envs, **kwargs)


def _encode(spec: TensorSpec, batch_size: Sequence[int], leaf: Tensor) -> Tensor:
    """Converts a leaf `[rows, ...]` to an entry `[*batch, ...]` of a spec of all rows."""
    if leaf.dtype != spec.dtype or leaf.shape != spec.shape:
        leaf = spec.encode(leaf)  # for example one-hot
    return leaf if len(batch_size) == 1 else leaf.reshape(*batch_size, *leaf.shape[1:])


def _decode(spec: TensorSpec, key: Key, batch_size: Sequence[int], action: Tensor | None) -> Tensor:
    """Converts an entry `[*batch, ...]` to actions `[rows, ...]`, with indices for one-hot rows."""
    if action is None or action.shape != spec.shape:
        found = "none" if action is None else f"shape {tuple(action.shape)}"
        raise SpaceError(f"Expected actions of shape {tuple(spec.shape)} at {key!r}, got {found}.")
    if isinstance(spec, CategoricalSpec):
        action = spec.to_categorical(action)
    dims = len(batch_size)
    return action if dims == 1 else action.reshape(math.prod(batch_size), *action.shape[dims:])
