"""Environments of gymnasium and of the old gym, single or vectors, as environments over TensorDicts.

Observations that are no dict are under "observation", or "pixels" if they are images; dict observations keep their
keys. Actions of discrete spaces are one-hot unless requested otherwise. Arrays that an environment may write again
later are copied.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any
from warnings import warn

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from ....engine.backends.registry import backend_entry
from ....engine.backends.worker_options import Wait
from ....engine.space_layout import Layout, Leaf
from ....errors import SpaceError, StateError
from ....gym_interface import raise_explained
from ....seeding import random_seed
from ....simulators.gymnasium.make import (
    RewardInInfo,
    apply_pixel_wrappers,
    as_gymnasium,
    is_image_space,
    make_wrapped,
    maker,
    takes_frameskip,
)
from ....simulators.registry import BARE, SEPARATOR, check_env_name, explained_arguments
from ....snapshot import capture, restore
from ....specs import Categorical, Composite, TensorSpec, Unbounded
from ....specs.convert import spec_from_gym
from ....specs.dtypes import numpy_dtype
from ...base import UnwrappedGymEnv
from ...entries.keys import FLAGS
from ...entries.records import Entries, RecordSteps
from ...entries.row_masks import RowMasks
from ...entries.shared_entries import declares_new_tensors
from ...env_specs import spec_cached_property
from ...fast_paths import bypassed_by, overrides_bypassed
from ...gym_like import Encoder, GymLikeEnv, StepOutput, fast_encoder
from ...library_env import ENV_ARGUMENTS
from ...rollouts.array_rollout import known_actions, rollout_arrays, to_tensordict
from ...seed_chain import next_seed, seed_chain
from .arrays import GymArrays, encode_checked, step_env
from .backends import AvailableEnvs, gym_backend, registered_names
from .spaces import convert_action_space, observation_keys_of
from .vector import VectorEnvAdapter, check_gym_env, is_vector, make_gym_vector, num_rows_of, single_spaces_of


class GymWrapper(GymLikeEnv):
    """A gymnasium environment, or a vector environment, as an `EnvBase`.

    A vector environment of n rows has the batch size (n,). In every auto-reset mode, "next" holds the true successors,
    final observations included, and rows that are done hold the first observation of a new episode in the next root.
    For this, a vector environment in next-step or disabled mode must support `options["reset_mask"]`. With one that
    does not (`CartPoleVectorEnv`), rollouts must stop at the first row that is done. A vector environment that takes a
    single seed gets that of the first row.

    Args:
        env: a `gymnasium.Env` or `gymnasium.vector.VectorEnv`, or an environment of the old gym (0.21 to 0.26).
        categorical_action_encoding: encode discrete actions and observations as indices, not as one-hot rows.
        from_pixels: add rendered frames under "pixels", uint8 `[H, W, C]`; the render mode must be "rgb_array". If
            observations are images, from 0 to 255 with three channels, they are under "pixels" in any case.
        pixels_only: return the frames instead of the environment's observations, not beside them.
        frame_skip: number of steps of the environment per step; their rewards are summed.
        missing_obs_value: the value of final observations that a vector environment does not return.
        kwargs: see `GymLikeEnv`.

    Raises:
        SpaceError: if the batch size is not the environment's, or `from_pixels` or `frame_skip` is given for a vector
            environment, where the single environments must do this.

    >>> import gymnasium
    >>> env = GymWrapper(gymnasium.make("CartPole-v1"))
    >>> env.set_seed(0)
    795726461
    >>> env.rollout(3)["next", "observation"].shape
    torch.Size([3, 4])
    """

    libname = "gym"
    _resets_when_seeded = True
    returns_new_tensors = True
    _vector_reward = False  # whether rewards are vectors

    def __init__(
        self,
        env: object = None,
        categorical_action_encoding: bool = False,
        *,
        from_pixels: bool = False,
        pixels_only: bool = True,
        frame_skip: int | None = None,
        missing_obs_value: float = math.nan,
        **kwargs: Any,
    ):
        self._categorical = categorical_action_encoding
        self._missing_obs_value = missing_obs_value
        self._seed: int | None = None
        self._vector: VectorEnvAdapter | None = None
        self.from_pixels, self.pixels_only = from_pixels, pixels_only
        pixel_options = {"from_pixels": from_pixels, "pixels_only": pixels_only}
        super().__init__(env=env, frame_skip=frame_skip, pixel_options=pixel_options, **kwargs)

    def _build_env(self, pixel_options: dict[str, Any], env: Any = None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        check_gym_env(env)
        if not is_vector(env):
            if self.batch_size:
                raise SpaceError(f"Expected a batch size of () for one environment, got {tuple(self.batch_size)}.")
            return apply_pixel_wrappers(as_gymnasium(env), frame_skip=self.frame_skip, **pixel_options)
        if self.batch_size not in ((), (env.num_envs,)):
            raise SpaceError(f"Expected a batch size of {(env.num_envs,)}, got {tuple(self.batch_size)}.")
        if pixel_options["from_pixels"] or self.frame_skip > 1:
            raise SpaceError(
                "Expected no from_pixels or frame_skip with a vector environment. Apply them to its single "
                "environments, as GymEnv(name, num_envs=n, frame_skip=k) does."
            )
        self.batch_size = [env.num_envs]
        self._vector = VectorEnvAdapter(env, self._output_transform, self._missing_obs_value)
        return env

    def _make_specs(self, env: Any) -> None:
        vector = self._vector
        spec_device = self.device or torch.device("cpu")
        to_spec = partial(spec_from_gym, device=spec_device, categorical=self._categorical, merge_equal=True)
        obs_space, action_space = single_spaces_of(env)
        self._layout = Layout(obs_space) if vector is None else vector.layout
        obs_spec = to_spec(obs_space)
        is_image = is_image_space(obs_space)
        self.from_pixels = self.from_pixels or is_image
        obs_key = "pixels" if is_image else "observation"
        self.observation_spec = self._batched(
            obs_spec if isinstance(obs_spec, Composite) else Composite({obs_key: obs_spec})
        )
        action_space, self._restore_action = convert_action_space(obs_space, action_space)
        action_spec = to_spec(action_space)
        self.action_spec = self._batched(action_spec)
        self._dict_actions = isinstance(action_spec, Composite)
        self.reward_spec = self._batched(self._reward_spec(spec_device))
        flags = {flag: Categorical(2, (1,), device=spec_device, dtype=torch.bool) for flag in FLAGS}
        self.full_done_spec = self._batched(Composite(flags))
        self._obs_keys = [(obs_key,)] if is_image else observation_keys_of(self._layout, self.action_keys)
        self._action_key = next(iter(self.action_keys), "action")
        is_plain = self._convert_actions_to_numpy and len(self.action_keys) == 1 and not self._dict_actions
        is_plain = is_plain and (self._vector_reward or self.reward_spec.shape == (1,))
        self._has_fast_step = is_plain and vector is None and not overrides_bypassed(type(self), "_fast_step")
        self._reward_dtype, self._reward_shape = numpy_dtype(self.reward_spec.dtype), self.reward_spec.shape
        pairs = zip(self._obs_keys, self._layout.leaves, strict=True)
        self._encoders = [(key, self._encoder(self.observation_spec[key].to("cpu"), leaf)) for key, leaf in pairs]

    def _encoder(self, spec: TensorSpec, leaf: Leaf) -> Encoder:
        """Returns a function that converts a leaf of an observation (of all rows, for a vector) to its tensor."""
        vector = self._vector
        count, copy = ((), True) if vector is None else ((vector.num_envs,), not vector.returns_copies)
        return fast_encoder(spec, leaf.dtype, copy, partial(encode_checked, spec, leaf, count))

    def _reward_spec(self, device: torch.device) -> TensorSpec:
        return Unbounded((1,), device=device)

    # -- single steps

    def read_obs(self, observations: object) -> dict[str, Any]:
        """Converts an observation of the environment to a nested dict of tensors."""
        entries: dict[str, Any] = {}
        values = [observations] if self._layout.flat else self._layout.split(observations)
        for (path, encode), value in zip(self._encoders, values, strict=True):
            branch = entries
            for name_part in path[:-1]:
                branch = branch.setdefault(name_part, {})
            branch[path[-1]] = encode(value)
        return entries

    def read_action(self, action: Tensor | TensorDictBase | None) -> Any:
        """Converts an action, a tensor or a TensorDict of several, to an element of the environment's action space."""
        numpy_action = super().read_action(action)
        return numpy_action if self._restore_action is None else self._restore_action(numpy_action)

    @bypassed_by("_rollout_at_once", "_unwrapped_gym")
    def _reset_env(self, **kwargs: object) -> Any:
        seed, self._seed = self._seed, None
        try:
            result = self._env.reset(**{"seed": seed, **kwargs})
        except (TypeError, ValueError) as error:
            raise_explained(error, self._env)
            raise
        return self._reset_output_transform(result)

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        if self._vector is None:
            obs, info = self._reset_env(**kwargs)
        else:
            mask = None if tensordict is None else tensordict.get("_reset", None)
            mask = None if mask is None else mask.reshape(self._vector.num_envs, -1).any(-1).cpu().numpy()
            obs, info = self._vector.reset(mask, self._row_seeds(), **kwargs)
        return self._with_info(self.read_obs(obs), info)

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        if self.info_dict_reader or not self._has_fast_step:
            return super()._step(tensordict)
        return self._fast_step(tensordict)

    def _fast_step(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Does the same as `_step` of `GymLikeEnv` for a single environment with one action, if nothing is changed."""
        return TensorDict(self._step_entries(tensordict), self._batch_size, device=self._device)

    def _step_entries(self, root: Entries | TensorDictBase) -> Entries:
        key: Any = self._action_key
        action = self.read_action(root.get(key))
        if self._vector_reward:
            obs, reward, terminated, truncated = step_env(self._env, action, np.asarray)
            reward = self.read_reward(reward)
        else:
            obs, reward, terminated, truncated = step_env(self._env, action)
            reward = torch.from_numpy(np.array((reward,), self._reward_dtype))
        entries = self.read_obs(obs)
        entries["reward"] = reward
        entries["done"] = torch.from_numpy(_FLAG_ARRAYS[terminated or truncated].copy())
        entries["terminated"] = torch.from_numpy(_FLAG_ARRAYS[terminated].copy())
        entries["truncated"] = torch.from_numpy(_FLAG_ARRAYS[truncated].copy())
        return entries

    def _step_and_complete(self, tensordict: TensorDictBase) -> TensorDictBase:
        # The result of `_fast_step` has all flags, and every entry has the shape of its spec
        is_plain = not (self.run_type_checks or self.info_dict_reader) and self._self_reset is None
        if is_plain and self._step_is_complete:
            return self._fast_step(tensordict)
        return super()._step_and_complete(tensordict)

    @spec_cached_property
    def _step_is_complete(self) -> bool:
        """Whether the result of `_fast_step` is complete, because neither the specs nor the step were changed."""
        shapes = {key: spec.shape for key, spec in (*self.full_done_spec.items(), *self.full_reward_spec.items())}
        default_shapes = shapes == {**dict.fromkeys(FLAGS, (1,)), "reward": self._reward_shape}
        is_plain = type(self)._step is GymWrapper._step and declares_new_tensors(type(self), self._result_methods)
        return default_shapes and self._has_fast_step and is_plain

    def _step_env(self, action: object) -> StepOutput:
        if self._vector is not None:
            output = self._vector.step(action, self._vector_reward or bool(self.info_dict_reader))
            if self._vector_reward and RewardInInfo.KEY in output[5]:
                return output[0], output[5][RewardInInfo.KEY], *output[2:]
            return output
        return self._output_transform(self._env.step(action))  # which skips the frames

    # -- vectors

    def read_reward(self, reward: object) -> Tensor:
        """Converts a reward, or the rewards of all rows, to a tensor of `reward_spec`."""
        if self._vector_reward:
            values = np.array(reward, self._reward_dtype)
            return torch.from_numpy(values) if values.shape == self._reward_shape else self.reward_spec.encode(values)
        if type(reward) is not np.ndarray or self.reward_spec.dtype != torch.float32:
            return super().read_reward(reward.clone() if isinstance(reward, Tensor) else reward)
        return torch.from_numpy(reward.astype(np.float32)).unsqueeze(-1)

    def _flag(self, flag: object) -> Tensor:
        if type(flag) is np.ndarray:
            return torch.from_numpy(flag.copy()).unsqueeze(-1)
        return super()._flag(flag.clone() if isinstance(flag, Tensor) else flag)

    def _reset_done_rows(self, tensordict: TensorDictBase, masks: dict[tuple[str, ...], Tensor]) -> TensorDictBase:
        # Rows that the step itself reset (same-step mode) are merged directly, without a call of `reset`
        self_reset_rows = None if self._vector is None else self._vector.self_reset_rows
        has_hooks = bool(self.info_dict_reader) or self._self_reset is not None
        if self_reset_rows is None or has_hooks or overrides_bypassed(type(self), "_rollout_at_once"):
            return super()._reset_done_rows(tensordict, masks)
        done = tensordict.get("done")
        mask = torch.from_numpy(self_reset_rows).unsqueeze(-1).to(done.device)
        if self._vector is None or not mask.equal(done):
            return super()._reset_done_rows(tensordict, masks)
        reset_td = self._with_info(self.read_obs(self._vector.reset(self_reset_rows)[0]), {})
        RowMasks({(): mask}, [()]).select(reset_td, tensordict)
        return tensordict.update(reset_td).update({flag: torch.zeros_like(mask) for flag in FLAGS})

    def _step_masked(self, tensordict: TensorDictBase, mask: Tensor) -> TensorDictBase:
        if self._vector is not None and not bool((mask.reshape(-1, 1) | tensordict.get("done")).all()):
            raise SpaceError(
                "Expected a '_step' mask that excludes only rows that are done, since a vector environment steps all "
                "rows. Put the environments into a SerialEnv or a ParallelEnv to step some of them."
            )
        return super()._step_masked(tensordict, mask)

    # -- seeds

    def _set_seed(self, seed: int | None) -> None:
        self._seed = random_seed(31) if seed is None else seed

    def _row_seeds(self) -> list[int | None] | None:
        seed, self._seed = self._seed, None
        return None if seed is None else list(seed_chain(seed, self.numel()))

    def _apply_seed(self, seed: int | None, static_seed: bool) -> int | None:
        last_seed = super()._apply_seed(seed, static_seed)
        if self._vector is None or static_seed or seed is None:
            return last_seed
        return next_seed(seed_chain(seed, self.numel())[-1])

    # -- whole rollouts

    @property
    def _has_array_steps(self) -> bool:
        """Whether `GymArrays` does the same as `_step`, unless a subclass overrides a method."""
        has_hooks = bool(self.info_dict_reader) or self._self_reset is not None
        is_plain = self._has_fast_step and not self._vector_reward and not self._layout.opaque
        return is_plain and self._restore_action is None and not has_hooks

    # -- copies

    def __getstate__(self) -> dict[str, Any]:
        """Returns what a copy needs: the state of the episode too, which gymnasium's EzPickle leaves out."""
        state = super().__getstate__()
        if self._vector is None and any(base.__name__ == "EzPickle" for base in type(self._env.unwrapped).__mro__):
            try:
                state["_episode"] = capture(self._env, {})
            except StateError as error:
                advice = "Reset the copy before its first step."
                warn(f"Expected a state that can be copied, got: {error} {advice}", stacklevel=2)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        episode = state.get("_episode")
        super().__setstate__({name: value for name, value in state.items() if name != "_episode"})
        if episode is not None:
            restore(self._env, episode)

    def _record_steps(self) -> RecordSteps | None:
        is_plain = self._has_array_steps and self._step_is_complete and not self.state_keys
        return RecordSteps(self._step_record, self._reset_record) if is_plain else None

    def _step_record(self, root: Entries, reset_done: bool) -> tuple[Entries, None]:
        return self._step_entries(root), None

    def _reset_record(self, mask: Tensor, root: Entries) -> Entries:
        return self.read_obs(self._reset_env()[0]) | {flag: torch.zeros(1, dtype=torch.bool) for flag in FLAGS}

    def _unwrapped_gym(self) -> UnwrappedGymEnv | None:
        is_plain = self._has_array_steps and not self.run_type_checks
        if not is_plain or overrides_bypassed(type(self), "_unwrapped_gym"):
            return None
        return UnwrappedGymEnv(self._env, tuple(self._obs_keys))

    def _rollout_at_once(self, steps: int, actions: Tensor | None, break_when_any_done: bool) -> TensorDictBase | None:
        if not self._has_array_steps:
            return None
        spec = self.action_spec
        actions = known_actions(self, steps, actions)
        gym_actions = list(spec.expand(len(actions), *spec.shape).to_numpy(actions))
        arrays = GymArrays(self._env, self._reset_env, self._layout)
        trajectory = rollout_arrays(arrays, gym_actions, (), self.reward_spec.dtype, break_when_any_done)
        return to_tensordict(self, self._obs_keys, trajectory, actions)

    # -- the library's environment

    @property
    def lib(self) -> Any:
        """The module of the environment's library: gymnasium or gym."""
        return import_module(self.get_library_name())

    def get_library_name(self, env: object = None) -> str:
        """Returns the name of the library of an environment, by default of this one: "gymnasium" or "gym"."""
        env = self._env if env is None else env
        env = getattr(env, "unwrapped", env)
        classes = type(getattr(env, "legacy_env", env)).__mro__
        return "gym" if any(cls.__module__.partition(".")[0] == "gym" for cls in classes) else "gymnasium"

    def _lookup_attribute(self, name: str) -> Any:
        if self._vector is None:
            return self._env.get_wrapper_attr(name)
        if hasattr(self._env, name):
            return getattr(self._env, name)
        try:
            return list(self._env.get_attr(name))
        except Exception as error:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}") from error


class GymEnv(GymWrapper):
    """A gymnasium environment, or several, made by name; see `GymWrapper`.

    Args:
        env_name: the name for `make` of the current backend, see `set_gym_backend`; or one with a simulator's prefix.
        categorical_action_encoding, from_pixels, pixels_only: see `GymWrapper`.
        frame_skip: see `GymWrapper`. The emulator of Atari skips the frames itself: without this and `frameskip`, it
            skips none, as in TorchRL, whatever the name says. Names with a prefix have the frames of their library.
        num_envs: number of environments in a `vecrl.vector.VectorEnv`; the batch size is (num_envs,). None or 0 for a
            single environment without batch dimensions.
        num_workers: number of worker processes; without `num_envs` it is also the number of environments.
        backend: the `VectorEnv`'s backend: "serial", "threads", "ray" or "processes", the default for several workers.
        ray_options, wait: passed to the `VectorEnv`.
        kwargs: arguments of `GymWrapper`, `GymLikeEnv` and `EnvBase`; all others are passed to `make`, with
            `disable_env_checker` true.

    Attributes:
        available_envs: class attribute, the names of the environments that the current backend can make.
        env_name: the name, as it was given.

    >>> GymEnv("Pendulum-v1", g=9.81).rollout(5).shape
    torch.Size([5])
    >>> GymEnv("Pendulum-v1", num_envs=3).rollout(5).shape
    torch.Size([3, 5])
    """

    available_envs: Any = AvailableEnvs(registered_names)
    excluded_from_state = ("_constructor_kwargs", "_remake")
    _remake: Callable[[], Any] | None = None  # makes the vector environment
    _WRAPPER_ARGUMENTS = (*ENV_ARGUMENTS, "convert_actions_to_numpy", "missing_obs_value")

    def __init__(
        self,
        env_name: str,
        categorical_action_encoding: bool = False,
        *,
        from_pixels: bool = False,
        pixels_only: bool = True,
        frame_skip: int | None = None,
        num_envs: int | None = None,
        num_workers: int | None = None,
        backend: object = None,
        ray_options: object = None,
        wait: Wait = "auto",
        **kwargs: Any,
    ):
        check_env_name(env_name)
        wrapper_kwargs = {name: kwargs.pop(name) for name in self._WRAPPER_ARGUMENTS if name in kwargs}
        if "python" not in kwargs and takes_frameskip(env_name, self._library()):
            if frame_skip is not None and frame_skip < 1:
                raise ValueError(f"Expected frame_skip of 1 or more, got {frame_skip}.")
            if frame_skip is not None and "frameskip" in kwargs:
                raise ValueError(f"Expected frame_skip or frameskip, got frame_skip={frame_skip} and {kwargs!r}.")
            kwargs, frame_skip = {"frameskip": 1 if frame_skip is None else frame_skip, **kwargs}, None
        pixel_options: dict[str, Any] = {
            "from_pixels": from_pixels,
            "pixels_only": pixels_only,
            "frame_skip": frame_skip,
        }
        make_env = maker(env_name, self._library(), from_pixels=from_pixels, **kwargs)
        num_rows = num_rows_of(num_envs, num_workers)
        if backend is not None:
            backend_entry(backend)  # a single environment needs none, but a wrong one is an error
        if num_rows is not None:
            make_env = partial(make_wrapped, make_env, pixel_options, self._vector_reward)
            pool_options: Any = {"ray_options": ray_options, "wait": wait}
            remake = partial(make_gym_vector, make_env, num_rows, backend, num_workers or None, **pool_options)
            make, pixel_options = remake, {}
        else:
            make, remake = make_env, None
        with explained_arguments(env_name if SEPARATOR in env_name else BARE + SEPARATOR + env_name, kwargs):
            env = make()
        super().__init__(env, categorical_action_encoding, **pixel_options, **wrapper_kwargs)
        self.from_pixels, self.pixels_only = from_pixels or self.from_pixels, pixels_only
        self.env_name, self._remake = env_name, remake
        self._constructor_kwargs = {**kwargs, "env_name": env_name}  # scripts read it

    def _open(self) -> None:
        if self._remake is not None:  # workers ended
            self._env = self._remake()
            self._vector = VectorEnvAdapter(self._env, self._output_transform, self._missing_obs_value)
        super()._open()

    @classmethod
    def _library(cls) -> str:
        """Returns the name of the library with which environments are made."""
        return gym_backend().__name__


_FLAG_ARRAYS = np.zeros(1, np.bool_), np.ones(1, np.bool_)  # faster to copy than tensors
