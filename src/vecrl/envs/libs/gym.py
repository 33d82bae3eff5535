"""gymnasium's environments, single ones and vectors of them, over TensorDicts; those of the old gym as well.

Observations that are no dict lie under "observation"; those of dicts under their own keys. Actions are one-hot where
the space is discrete, unless asked otherwise. What an environment hands out is copied, unless it is the caller's.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from ...engine.space_layout import Layout, Leaf
from ...errors import SpaceError
from ...simulators.gym_factory import apply_pixel_wrappers, as_gymnasium, make, make_wrapped
from ...specs import Categorical, Composite, TensorSpec, Unbounded
from ...specs.convert import spec_from_gym
from ...specs.convert.dtypes import numpy_dtype
from ..gym_like import GymLikeEnv, StepOutput, default_info_dict_reader, fast_encoder
from ..gym_outputs import step_output_error, to_float, to_leaf_array
from ..gym_trajectory import record_trajectory
from ..overrides import overrides_any
from ..row_masks import RowMasks
from ..seed_chain import next_seed, seed_chain
from ..spec_container import FLAGS
from ..unwrapped_gym import UnwrappedGymEnv
from .gym_backends import DEFAULT_GYM, gym_backend, set_gym_backend
from .gym_spaces import find_tuple_spaces, observation_keys_of, register_gym_spec_conversion, restore_tuples
from .gym_vector import VectorEnvAdapter, check_gym_env, is_vector, make_gym_vector, single_spaces_of

__all__ = [
    "DEFAULT_GYM",
    "GymEnv",
    "GymWrapper",
    "default_info_dict_reader",
    "gym_backend",
    "register_gym_spec_conversion",
    "set_gym_backend",
]


class GymWrapper(GymLikeEnv):
    """A gymnasium environment, or a vector of them, as an `EnvBase`.

    A vector environment of n rows has the batch size (n,). Whatever its auto-reset mode, "next" holds the true
    successors, final observations included, and rows that ended begin anew in the root that follows. For that, one in
    next-step or disabled mode must heed `options["reset_mask"]`; with one that does not (`CartPoleVectorEnv`), rollouts
    must end with the first end. One that takes a single seed gets the first row's.

    Args:
        env: any `gymnasium.Env` or `gymnasium.vector.VectorEnv`, or an environment of the old gym (0.21 to 0.26).
        categorical_action_encoding: discrete actions and observations as indices instead of one-hot rows.
        from_pixels: observe what the environment renders, under "pixels", uint8 `[H, W, C]`; its render mode must be
            "rgb_array".
        pixels_only: do so instead of what it observes itself, otherwise beside it.
        frame_skip: how many steps of the environment make one here; their rewards are added up.
        missing_obs_value: what stands for the final observation where a vector environment loses it.
        kwargs: see `GymLikeEnv`.

    Raises:
        SpaceError: a batch size that is not the environment's; `from_pixels` or `frame_skip` for a vector, whose
            environments must do that themselves.

    >>> import gymnasium
    >>> env = GymWrapper(gymnasium.make("CartPole-v1"))
    >>> env.set_seed(0)
    795726461
    >>> env.rollout(3)["next", "observation"].shape
    torch.Size([3, 4])
    """

    libname = "gym"
    _arrays_are_new = True
    _vector_reward = False  # whether rewards are vectors

    def __init__(
        self,
        env: Any = None,
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
        pixel_options = {"from_pixels": from_pixels, "pixels_only": pixels_only, "frame_skip": 1}
        if from_pixels and frame_skip is not None and frame_skip > 1:  # so that skipped frames are not rendered
            pixel_options["frame_skip"], frame_skip = frame_skip, None
        super().__init__(env=env, frame_skip=frame_skip, pixel_options=pixel_options, **kwargs)

    def _build_env(self, pixel_options: dict[str, Any], env: Any = None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        check_gym_env(env)
        if not is_vector(env):
            if self.batch_size:
                raise SpaceError(f"Expected a batch size of () for one environment, but {tuple(self.batch_size)} came.")
            return apply_pixel_wrappers(as_gymnasium(env), **pixel_options)
        if self.batch_size not in ((), (env.num_envs,)):
            raise SpaceError(f"Expected a batch size of {(env.num_envs,)}, but {tuple(self.batch_size)} came.")
        if pixel_options["from_pixels"] or pixel_options["frame_skip"] > 1 or self.frame_skip > 1:
            raise SpaceError(
                "from_pixels and frame_skip are for single environments: let those of the vector do it themselves, as "
                "GymEnv(name, num_envs=n, frame_skip=k) has them do."
            )
        self.batch_size = [env.num_envs]
        self._vector = VectorEnvAdapter(env, self._output_transform, self._missing_obs_value)
        return env

    def _make_specs(self, env: Any) -> None:
        vector = self._vector
        spec_device = self.device or torch.device("cpu")
        conversion_options: dict[str, Any] = {"device": spec_device, "categorical": self._categorical}
        obs_space, action_space = single_spaces_of(env)
        self._layout = Layout(obs_space) if vector is None else vector.layout
        obs_spec = spec_from_gym(
            env.observation_space if vector is None else env.single_observation_space, **conversion_options
        )
        self.observation_spec = self._batched(
            obs_spec if isinstance(obs_spec, Composite) else Composite(observation=obs_spec)
        )
        action_spec = spec_from_gym(action_space, **conversion_options)
        self.action_spec = self._batched(action_spec)
        self._dict_actions = isinstance(action_spec, Composite)
        self._tuples = find_tuple_spaces(action_space)
        self.reward_spec = self._batched(self._reward_spec(spec_device))
        flags = {flag: Categorical(2, (1,), device=spec_device, dtype=torch.bool) for flag in FLAGS}
        self.full_done_spec = self._batched(Composite(flags))
        keys = observation_keys_of(self._layout)
        self._leaves: list[tuple[Any, TensorSpec]] = [(key, self.observation_spec[key]) for key in keys]
        self._action_key = next(iter(self.action_keys), "action")
        not_overridden = not overrides_any(self, GymWrapper, _READ_METHODS)
        is_plain = self._convert_actions_to_numpy and len(self.action_keys) == 1 and not self._dict_actions
        self._fast_path = not_overridden and is_plain and vector is None  # whether a step may go without detours
        self._reward_dtype = numpy_dtype(self.reward_spec.dtype)
        pairs = zip(self._leaves, self._layout.leaves, strict=True)
        self._encoders = [(key, self._encoder(spec.to("cpu"), leaf)) for (key, spec), leaf in pairs]

    def _encoder(self, spec: TensorSpec, leaf: Leaf) -> Callable[[Any], Any]:
        """From an observation's leaf, of all rows where there are several, to its tensor."""
        vector = self._vector
        count = () if vector is None else (vector.num_envs,)
        return fast_encoder(
            spec, leaf.dtype, vector is None or not vector.returns_copies, partial(_encode_checked, spec, leaf, count)
        )

    def _reward_spec(self, device: torch.device) -> TensorSpec:
        return Unbounded((1,), device=device)

    # -- step by step

    def read_obs(self, observations: Any) -> dict[str, Any]:
        """An observation of the environment's as tensors by their keys."""
        entries: dict[str, Any] = {}
        for (path, encode), value in zip(self._encoders, self._layout.split(observations), strict=True):
            branch = entries
            for name_part in path[:-1]:
                branch = branch.setdefault(name_part, {})
            branch[path[-1]] = encode(value)
        return entries

    def read_action(self, action: Any) -> Any:
        """An action's tensor (of several, a TensorDict) as the environment wants it."""
        numpy_action = super().read_action(action)
        return restore_tuples(numpy_action, self._tuples) if self._tuples else numpy_action

    def _reset_env(self, **kwargs: Any) -> Any:
        seed, self._seed = self._seed, None
        return self._reset_output_transform(self._env.reset(**{"seed": seed, **kwargs}))

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        if self._vector is None:
            obs, info = self._reset_env(**kwargs)
        else:
            mask = None if tensordict is None else tensordict.get("_reset", None)
            mask = None if mask is None else mask.reshape(self._vector.num_envs, -1).any(-1).cpu().numpy()
            obs, info = self._vector.reset(mask, self._row_seeds(), **kwargs)
        return self._with_info(self.read_obs(obs), info)

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        if self.info_dict_reader or not self._fast_path:
            return super()._step(tensordict)
        obs, reward, terminated, truncated = self._step_recorded(self.read_action(tensordict.get(self._action_key)))
        entries = self.read_obs(obs)
        entries["reward"] = torch.from_numpy(np.array((reward,), self._reward_dtype))
        entries["done"] = torch.from_numpy(_FLAG_ARRAYS[terminated or truncated].copy())
        entries["terminated"] = torch.from_numpy(_FLAG_ARRAYS[terminated].copy())
        entries["truncated"] = torch.from_numpy(_FLAG_ARRAYS[truncated].copy())
        return TensorDict(entries, self._batch_size, device=self._device)

    def _step_and_complete(self, tensordict: TensorDictBase) -> TensorDictBase:
        """See `EnvBase._step_and_complete`: what a quick step gives has all flags, and all in the shapes of the
        specs."""
        is_plain = not (self.run_type_checks or self.info_dict_reader) and self._self_reset is None
        if is_plain and self._cached("whole", self._has_default_shapes):
            return self._step(tensordict)
        return super()._step_and_complete(tensordict)

    def _has_default_shapes(self) -> bool:
        """Whether what `_step` gives needs no completing, since nobody has changed the specs or the step."""
        shapes = {key: spec.shape for key, spec in (*self.full_done_spec.items(), *self.full_reward_spec.items())}
        default_shapes = shapes == dict.fromkeys((*FLAGS, "reward"), (1,))
        return default_shapes and self._fast_path and not overrides_any(self, GymWrapper, ("_step",))

    def _step_env(self, action: Any) -> StepOutput:
        if self._vector is not None:
            return self._vector.step(action, self._vector_reward or bool(self.info_dict_reader))
        return super()._step_env(action)

    # -- vectors

    def read_reward(self, reward: Any) -> Tensor:
        """A reward, or those of all rows, as a tensor of `reward_spec`."""
        if type(reward) is not np.ndarray or self.reward_spec.dtype != torch.float32:
            return super().read_reward(reward)
        return torch.from_numpy(reward.astype(np.float32)).unsqueeze(-1)

    def _flag(self, flag: Any) -> Tensor:
        return torch.from_numpy(flag.copy()).unsqueeze(-1) if type(flag) is np.ndarray else super()._flag(flag)

    def maybe_reset(self, tensordict: TensorDictBase) -> TensorDictBase:
        """See `EnvBase.maybe_reset`; rows that began anew in the step itself are spared the way through a reset."""
        if self._vector is None:
            return super().maybe_reset(tensordict)
        self_reset_rows = self._vector.self_reset_rows
        not_overridden = not overrides_any(self, GymWrapper, ("_reset", "reset"))
        if self_reset_rows is None or not not_overridden or self.info_dict_reader or self._self_reset is not None:
            return super().maybe_reset(tensordict)
        done = tensordict.get("done")
        mask = torch.from_numpy(self_reset_rows).unsqueeze(-1).to(done.device)
        if not mask.equal(done):
            return super().maybe_reset(tensordict)
        reset_td = self._with_info(self.read_obs(self._vector.reset(self_reset_rows)[0]), {})
        RowMasks({(): mask}, [()]).select(reset_td, tensordict)
        return tensordict.update(reset_td).update({flag: torch.zeros_like(mask) for flag in FLAGS})

    def _step_masked(self, tensordict: TensorDictBase, mask: Tensor) -> TensorDictBase:
        if self._vector is not None and not bool((mask.reshape(-1, 1) | tensordict.get("done")).all()):
            raise SpaceError(
                "A vector environment steps all of its rows: a '_step' mask may only leave out those that are done. "
                "Put the environments into a SerialEnv or a ParallelEnv to step some of them."
            )
        return super()._step_masked(tensordict, mask)

    # -- seeds

    def _set_seed(self, seed: int | None) -> None:
        self._seed = seed

    def _row_seeds(self) -> list[int | None] | None:
        seed, self._seed = self._seed, None
        return None if seed is None else list(seed_chain(seed, self.numel()))

    def set_seed(self, seed: int | None = None, static_seed: bool = False) -> int | None:
        """See `EnvBase.set_seed`; rows of a vector get the seeds that as many environments would, one by one."""
        last_seed = super().set_seed(seed, static_seed)
        if self._vector is None or static_seed or seed is None:
            return last_seed
        return next_seed(seed_chain(seed, self.numel())[-1])

    # -- a rollout at once

    def _step_recorded(self, action: Any) -> tuple[Any, float, bool, bool]:
        result, reward_so_far, frames_left = self._checked_step(action), 0.0, self.frame_skip - 1
        while frames_left and not (result[2] or result[3]):
            reward_so_far, frames_left = reward_so_far + result[1], frames_left - 1
            result = self._checked_step(action)
        return (result[0], reward_so_far + result[1], *result[2:]) if reward_so_far else result

    def _checked_step(self, action: Any) -> tuple[Any, float, bool, bool]:
        output = self._env.step(action)
        try:
            obs, reward, terminated, truncated, _ = output
        except (TypeError, ValueError):
            raise step_output_error(output) from None
        return obs, reward if type(reward) is float else to_float(reward), bool(terminated), bool(truncated)

    def _unwrapped_gym(self) -> UnwrappedGymEnv | None:
        is_overridden = overrides_any(self, GymWrapper, (*_RECORD_METHODS, *_UNWRAP_METHODS))
        is_plain = self._fast_path and self.frame_skip == 1 and self._self_reset is None and not self.run_type_checks
        if is_overridden or not is_plain or self._tuples or self._layout.opaque or self.info_dict_reader:
            return None
        return UnwrappedGymEnv(self._env, tuple(key for key, _ in self._leaves))

    def _rollout_at_once(self, steps: int, actions: Any, break_when_any_done: bool) -> TensorDictBase | None:
        is_plain = (
            self._fast_path and not self.info_dict_reader and not self._layout.opaque and self._self_reset is None
        )
        if not is_plain or overrides_any(self, GymWrapper, _RECORD_METHODS):
            return None
        spec = self.action_spec
        actions = spec.rand((steps,)) if actions is None else actions[:steps].clone()
        numpy_action = spec.expand(len(actions), *spec.shape).to_numpy(actions)
        trajectory = record_trajectory(
            lambda: self._reset_env()[0], self._step_recorded, list(numpy_action), self._layout, break_when_any_done
        )
        num_steps = len(trajectory.reward)
        end_flags = torch.from_numpy(trajectory.terminated), torch.from_numpy(trajectory.truncated)
        flags = dict(zip(FLAGS, (end_flags[0] | end_flags[1], *end_flags), strict=True))
        next_td = self._steps_to_tensordict(
            trajectory.next_obs, num_steps, {flag: value.unsqueeze(-1) for flag, value in flags.items()}
        )
        next_td.set("reward", torch.from_numpy(trajectory.reward).to(self.reward_spec.dtype).unsqueeze(-1))
        root = self._steps_to_tensordict(
            trajectory.obs, num_steps, {flag: torch.zeros(num_steps, 1, dtype=torch.bool) for flag in FLAGS}
        )
        root.set(self.action_key, actions[:num_steps])
        root.set("next", next_td)
        root.names = ["time"]
        return root

    def _steps_to_tensordict(self, leaves: Any, num_steps: int, entries: dict[str, Any]) -> TensorDict:
        data = TensorDict(entries, [num_steps], device=self.device)
        for (key, spec), values in zip(self._leaves, leaves, strict=True):
            same_layout = _same_memory_layout(spec, values)
            data.set(
                key, torch.from_numpy(values) if same_layout else spec.expand(num_steps, *spec.shape).encode(values)
            )
        return data

    # -- the library's environment

    @property
    def lib(self) -> Any:
        """The library that the environment comes from: gymnasium, or gym."""
        return import_module(self.get_library_name())

    def get_library_name(self, env: Any = None) -> str:
        """Which library an environment (this one by default) comes from: "gymnasium" or "gym"."""
        env = self._env if env is None else env
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


class _AvailableEnvs:
    """A class's `_env_names()`, as an attribute of the class."""

    def __get__(self, owner: Any, cls: Any = None) -> list[str]:
        return cls._env_names()


class GymEnv(GymWrapper):
    """A gymnasium environment by its name, or several of them, see `GymWrapper`.

    Args:
        env_name: as the `make` of the current backend takes it, see `set_gym_backend`.
        categorical_action_encoding, from_pixels, pixels_only, frame_skip: see `GymWrapper`.
        num_envs: how many; the batch size is (num_envs,) then. They are stepped by a `vecrl.vector.VectorEnv`.
        num_workers: how many worker processes share them; alone, it also says how many environments there are.
        backend: of that `VectorEnv`: "serial", "threads", "ray" or "processes", the default for several workers.
        ray_options: of that `VectorEnv`.
        kwargs: those of `GymWrapper`, `GymLikeEnv`, `EnvBase`; others go to `make`, with `disable_env_checker` true.

    Attributes:
        available_envs: of the class: the names that the current backend can make.

    >>> GymEnv("Pendulum-v1", g=9.81).rollout(5).shape
    torch.Size([5])
    >>> GymEnv("Pendulum-v1", num_envs=3).rollout(5).shape
    torch.Size([3, 5])
    """

    available_envs: Any = _AvailableEnvs()
    _WRAPPER_ARGUMENTS = (
        *("device", "batch_size", "run_type_checks", "allow_done_after_reset", "spec_locked", "auto_reset"),
        *("auto_reset_replace", "convert_actions_to_numpy", "missing_obs_value"),
    )

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
        backend: Any = None,
        ray_options: Any = None,
        **kwargs: Any,
    ):
        wrapper_kwargs = {name: kwargs.pop(name) for name in self._WRAPPER_ARGUMENTS if name in kwargs}
        pixel_options: dict[str, Any] = {
            "from_pixels": from_pixels,
            "pixels_only": pixels_only,
            "frame_skip": frame_skip,
        }
        kwargs.update(library=self._library(), from_pixels=from_pixels)
        num_rows = num_envs if num_envs is not None or (num_workers or 1) < 2 else num_workers
        if num_rows is not None:
            make_env = partial(make_wrapped, env_name, kwargs, pixel_options, self._vector_reward)
            env, pixel_options = make_gym_vector(make_env, num_rows, backend, num_workers, ray_options), {}
        else:
            env = make(env_name, **kwargs)
        super().__init__(env, categorical_action_encoding, **pixel_options, **wrapper_kwargs)

    @classmethod
    def _env_names(cls) -> list[str]:
        registry: Any = gym_backend("envs").registry
        return sorted(registry if isinstance(registry, dict) else [spec.id for spec in registry.all()])

    @classmethod
    def _library(cls) -> str:
        """The name of the library whose `make` makes the environments."""
        return gym_backend().__name__


_FLAG_ARRAYS = np.zeros(1, np.bool_), np.ones(1, np.bool_)  # quicker to copy than tensors are
_UNWRAP_METHODS = ("reset", "step", "_reset", "_step", "maybe_reset", "set_seed", "_set_seed")
_READ_METHODS = (
    "_step_env",
    "_output_transform",
    "read_reward",
    "read_done",
    "read_info",
    "_with_info",
    "_flag",
    "_reward_spec",
)
_RECORD_METHODS = ("_reset_env", "_step_recorded", "_reset_output_transform", "read_obs", "read_action")


def _encode_checked(spec: TensorSpec, leaf: Leaf, batch_shape: tuple[int, ...], value: Any) -> Any:
    return spec.encode(to_leaf_array(value, leaf, *batch_shape))


def _same_memory_layout(spec: TensorSpec, values: Any) -> bool:
    return spec.shape == values.shape[1:] and torch.from_numpy(values[:0]).dtype == spec.dtype
