"""`GymLikeEnv`: base class for environments of libraries in which `reset` and `step` return tuples, as in gym.

Each part of such a tuple is read by a method that a subclass may override; infos are read by registered readers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Self

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from ..errors import SpaceError
from ..gym_interface import repeat_step, reset_error, step_error
from ..specs import Composite, TensorSpec, Unbounded
from ..specs.shape_ops import has_shape
from ..validation import parse_optional_count
from .check_specs import no_action, wrong_action
from .entries.keys import FLAGS, Key, key_path
from .entries.shared_entries import copy_entries
from .env_specs import Device, spec_cached_property
from .fast_paths import bypassed_by
from .library_env import LibraryEnv

__all__ = ["BaseInfoDictReader", "GymLikeEnv", "default_info_dict_reader"]

Info = Mapping[str, Any]
StepOutput = tuple[Any, Any, Any, Any, Any, dict[str, Any]]
Encoder = Callable[[object], object]
InfoReader = Callable[[Info, TensorDictBase], TensorDictBase | None]
_INFO_PROBE_STEPS = 10  # number of steps with which auto_register_info_dict looks for infos


class GymLikeEnv(LibraryEnv):
    """Wraps an environment of another library, which it keeps in `_env` and which steps like a gym environment.

    A subclass defines `_build_env`, `_make_specs` and `_set_seed`. If the library's tuples are not
    (obs, reward, terminated, truncated, info) and (obs, info), it also overrides `_output_transform` and
    `_reset_output_transform`. Missing attributes are looked up in `_env`.

    Args:
        env: passed to `_build_env` under this name unless it is None.
        device, batch_size, allow_done_after_reset, spec_locked, run_type_checks, auto_reset, auto_reset_replace: see
            `EnvBase`.
        frame_skip: number of library steps per step; their rewards are summed, and the end of an episode stops them.
            None is 1.
        convert_actions_to_numpy: pass arrays and numbers to the library; otherwise tensors.
        kwargs: for `_build_env`.

    >>> import torch
    >>> from vecrl.specs import Bounded, Composite, Unbounded
    >>> class Walk:
    ...     def reset(self): self.x = 0.0; return [self.x]
    ...     def step(self, a): self.x += float(a[0]); return [self.x], -abs(self.x), abs(self.x) > 3, {"far": self.x}
    >>> class WalkEnv(GymLikeEnv):
    ...     def _build_env(self): return Walk()
    ...     def _make_specs(self, env):
    ...         self.observation_spec = Composite(position=Unbounded((1,)))
    ...         self.action_spec = Bounded(-1, 1, (1,))
    ...     def _output_transform(self, out):
    ...         obs, reward, done, info = out
    ...         return obs, reward, done, False, done, info
    ...     def _reset_output_transform(self, out): return out, {}
    ...     def _set_seed(self, seed): ...
    >>> env = WalkEnv().set_info_dict_reader(default_info_dict_reader(["far"]))
    >>> env.rollout(3)["next", "far"].shape
    torch.Size([3])
    """

    libname: str | None = None
    excluded_from_state = ("info_dict_reader", "_info_keys", "_encoders", "_obs_keys", "_layout", "_tuples")
    _converts_actions = True
    _result_methods = ("_reset", "_step", "read_obs", "read_reward", "read_done", "read_info")
    _dict_actions = False
    """Whether the library takes a dict of actions, even for a single action."""

    def __init__(
        self,
        env: object = None,
        *,
        device: Device = None,
        batch_size: Sequence[int] | int | None = None,
        allow_done_after_reset: bool = False,
        spec_locked: bool = True,
        run_type_checks: bool = False,
        auto_reset: bool = False,
        auto_reset_replace: bool | None = None,
        frame_skip: int | None = None,
        convert_actions_to_numpy: bool = True,
        **kwargs: object,
    ):
        super().__init__(
            device=device,
            batch_size=batch_size,
            allow_done_after_reset=allow_done_after_reset,
            spec_locked=spec_locked,
            run_type_checks=run_type_checks,
            auto_reset=auto_reset,
            auto_reset_replace=auto_reset_replace,
        )
        self.frame_skip = parse_optional_count("frame_skip", frame_skip) or 1
        self.info_dict_reader: list[InfoReader] = []
        self._info_keys: set[Key] = set()
        self._convert_actions_to_numpy = convert_actions_to_numpy
        if env is not None:
            kwargs["env"] = env
        self._check_kwargs(kwargs)
        self._env = self._build_env(**kwargs)
        self.reward_spec = Unbounded((*self.batch_size, 1))
        self._make_specs(self._env)
        self._init_env()

    # -- methods that a subclass defines

    def _check_kwargs(self, kwargs: dict[str, object]) -> None:
        """Raises if the arguments of `_build_env` are invalid; accepts all by default."""

    def _build_env(self, **kwargs: object) -> Any:
        raise NotImplementedError(f"{type(self).__name__} has no _build_env.")

    def _make_specs(self, env: Any) -> None:
        raise NotImplementedError(f"{type(self).__name__} has no _make_specs.")

    def _init_env(self) -> None:
        """Completes the construction after the specs are set; does nothing by default."""

    # -- reading the library's tuples

    @bypassed_by("_fast_step")
    def _output_transform(self, step_outputs_tuple: tuple[Any, ...]) -> StepOutput:
        """Converts the return value of the library's `step` to (obs, reward, terminated, truncated, done, info)."""
        if not isinstance(step_outputs_tuple, tuple) or len(step_outputs_tuple) != 5:
            raise step_error(step_outputs_tuple, self._env)
        obs, reward, terminated, truncated, info = step_outputs_tuple
        return obs, reward, terminated, truncated, terminated | truncated, info

    @bypassed_by("_rollout_at_once", "_unwrapped_gym")
    def _reset_output_transform(self, reset_outputs_tuple: object) -> tuple[Any, dict[str, Any]]:
        """Converts the return value of the library's `reset` to (obs, info)."""
        if not isinstance(reset_outputs_tuple, tuple) or len(reset_outputs_tuple) != 2:
            raise reset_error(reset_outputs_tuple, self._env)
        obs, info = reset_outputs_tuple
        return obs, info

    @bypassed_by("_rollout_at_once", "_unwrapped_gym")
    def read_action(self, action: Tensor | TensorDictBase | None) -> Any:
        """Converts an action, a tensor or a TensorDict of several, to the arrays and numbers that the library takes.

        Raises:
            SpaceError: if the action is missing or its shape differs from the spec's.
        """
        if isinstance(action, TensorDictBase):
            return _unwrap_scalars(self.full_action_spec.to_numpy(action))
        spec = self._action_leaf
        if action is None:
            raise no_action(self.action_keys[0])
        if not has_shape(action.shape, spec.shape):
            raise wrong_action(self.action_keys[0], action, spec.shape, spec.domain)
        array: Any = spec.to_numpy(action)
        # some environments cannot use 0-dimensional arrays as dict keys
        return array[()] if isinstance(array, np.ndarray) else array

    @spec_cached_property
    def _action_leaf(self) -> TensorSpec:
        return self.action_spec

    @bypassed_by("_rollout_at_once", "_unwrapped_gym")
    def read_obs(self, observations: object) -> dict[str, Any]:
        """Converts an observation to a dict of tensors, nested like `observation_spec`.

        Raises:
            SpaceError: if it is not a mapping and there are several observation keys.
        """
        if isinstance(observations, Mapping):
            return _encode_dict(self.observation_spec, observations)
        obs_keys = [key for key in self.observation_keys if key not in self._info_keys]
        if len(obs_keys) != 1:
            raise SpaceError(f"Expected a dict with the keys {obs_keys}, got {observations!r:.80}. Override read_obs.")
        entries: dict[str, Any] = {}
        set_nested(entries, obs_keys[0], self.observation_spec[obs_keys[0]].encode(observations))
        return entries

    @bypassed_by("_fast_step")
    def read_reward(self, reward: object) -> Tensor:
        """Converts a reward to a tensor of `reward_spec`."""
        return self.reward_spec.encode(reward)

    @bypassed_by("_fast_step")
    def read_done(self, terminated: Any = None, truncated: Any = None, done: Any = None) -> tuple[Any, Any, Any, bool]:
        """Derives the missing done flags of a step.

        Returns:
            terminated, truncated (None if it is not given), done, and whether any row is done.
        """
        if done is None:
            done = terminated if truncated is None else terminated | truncated
        if terminated is None:
            terminated = done if truncated is None else done ^ (done & truncated)
        return terminated, truncated, done, done if isinstance(done, bool) else bool(np.any(done))

    @bypassed_by("_fast_step")
    def read_info(self, info: Info, tensordict_out: TensorDictBase) -> TensorDictBase:
        """Calls the registered readers, which write entries of `info` into `tensordict_out`, and returns it."""
        for reader in self.info_dict_reader:
            result = reader(info, tensordict_out)
            tensordict_out = tensordict_out if result is None else result
        return tensordict_out

    # -- infos

    def set_info_dict_reader(self, info_dict_reader: InfoReader | None = None, ignore_private: bool = True) -> Self:
        """Registers a reader for the infos of resets and steps.

        Args:
            info_dict_reader: a function of an info and the TensorDict that it writes into; a TensorDict that it returns
                replaces that one. By default a `default_info_dict_reader` of all keys. The `info_spec` of a
                `BaseInfoDictReader` is added to the observation specs.
            ignore_private: passed to the default reader.

        Returns:
            The environment itself.

        Raises:
            TypeError: if the reader is not callable.
            SpaceError: if one of its keys is a key of the environment already.
        """
        reader = (
            default_info_dict_reader(ignore_private=ignore_private) if info_dict_reader is None else info_dict_reader
        )
        if not callable(reader):
            raise TypeError(f"Expected a function of an info and a TensorDict as a reader, got {reader!r:.80}.")
        if isinstance(reader, BaseInfoDictReader):
            env_keys = [*self.observation_keys, *self.action_keys, *self.reward_keys, *self.done_keys]
            check_key_conflicts(
                reader.info_spec.keys(True, True), [key for key in env_keys if key not in self._info_keys]
            )
        self.info_dict_reader.append(reader)
        if isinstance(reader, BaseInfoDictReader) and len(reader.info_spec):
            observation_spec = self.observation_spec.clone().unlock_(recurse=True)
            for key, spec in reader.info_spec.items(include_nested=True, leaves_only=True):
                observation_spec[key] = self._batched(spec)
                self._info_keys.add(key)
            self.observation_spec = observation_spec
        return self

    def auto_register_info_dict(
        self, ignore_private: bool = True, *, info_dict_reader: BaseInfoDictReader | None = None
    ) -> Self:
        """Registers a reader for all infos, with keys and specs inferred from a reset and some random steps.

        The entries are added to the observation specs. An entry that an info lacks, such as the infos of many resets,
        is filled with zeros.

        Args:
            ignore_private: skip keys that begin with "_".
            info_dict_reader: a reader with known specs; nothing is stepped then.

        Returns:
            The environment itself, which must be reset.
        """
        if info_dict_reader is None:
            observed: dict[Key, TensorSpec] = {}

            def collect_specs(info: Info, _: TensorDictBase) -> None:
                observed.update(specs_of(info, ignore_private, self.batch_dims))

            self.info_dict_reader.append(collect_specs)
            try:
                self.rollout(_INFO_PROBE_STEPS, break_when_any_done=False)
            finally:
                self.info_dict_reader.remove(collect_specs)
            info_dict_reader = default_info_dict_reader(spec=observed)
        return self.set_info_dict_reader(info_dict_reader)

    def _batched(self, spec: Any) -> Any:
        return spec.expand(*self.batch_size, *spec.shape) if self.batch_size else spec

    # -- steps

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: object) -> TensorDictBase:
        obs, info = self._reset_output_transform(self._env.reset(**kwargs))
        return self._with_info(self.read_obs(obs), info)

    @bypassed_by("_fast_step")
    def _step_env(self, action: object) -> StepOutput:
        def step(action: object) -> StepOutput:
            return self._output_transform(self._env.step(action))

        output: Any = repeat_step(step, action, self.frame_skip, lambda output: self.read_done(*output[2:5])[3])
        return output

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        keys = self.action_keys
        single_tensor = len(keys) == 1 and not self._dict_actions
        action: Any = tensordict.get(keys[0]) if single_tensor else tensordict.select(*keys)
        if self._convert_actions_to_numpy:
            action = self.read_action(action)
        obs, reward, terminated, truncated, done, info = self._step_env(action)
        entries = self.read_obs(obs)
        set_nested(entries, self.reward_key, self.read_reward(reward))
        terminated, truncated, done, _ = self.read_done(terminated, truncated, done)
        done_keys = self.done_keys
        for name, flag in (("terminated", terminated), ("truncated", truncated), ("done", done)):
            if flag is not None and name in done_keys:
                entries[name] = self._flag(flag)
        return self._with_info(entries, info)

    @bypassed_by("_fast_step")
    def _flag(self, flag: object) -> Tensor:
        if isinstance(flag, bool | np.bool_):
            return torch.tensor([flag], device=self.device)
        tensor = torch.as_tensor(flag, dtype=torch.bool, device=self.device)
        return tensor.reshape(*self.batch_size, -1)

    @bypassed_by("_fast_step")
    def _with_info(self, entries: dict[str, object], info: Info) -> TensorDictBase:
        data: Any = TensorDict(entries, self.batch_size, device=self.device)
        # a reader may write values that the environment keeps in its infos
        return copy_entries(self.read_info(info, data.copy()), data) if self.info_dict_reader else data

    def fast_encoding(self) -> Self:
        """Returns the environment unchanged, since encoding is always fast; exists for scripts that call it."""
        return self


def _unwrap_scalars(array: object) -> Any:
    """Converts 0-dimensional arrays in a nested dict to numbers."""
    if isinstance(array, np.ndarray):
        return array[()]
    return {name: _unwrap_scalars(item) for name, item in array.items()} if isinstance(array, dict) else array


def fast_encoder(spec: TensorSpec, dtype: np.dtype | None, copy: bool = True, encode: Encoder | None = None) -> Encoder:
    """Returns a function like `spec.encode` that is faster for arrays of the spec's shape and dtype.

    Args:
        spec: the spec of the encoded values.
        dtype: the NumPy dtype of the expected arrays; None if no arrays are expected.
        copy: whether to copy these arrays, since the environment may write to them later.
        encode: the function for all other values; by default `spec.encode`.
    """
    encode, device = encode or spec.encode, spec.device
    same_device = dtype is not None and (device is None or device.type == "cpu")
    if not same_device or torch.from_numpy(np.empty(0, dtype)).dtype != spec.dtype:
        return encode
    return partial(_encode_fast, encode, dtype, tuple(spec.shape), copy)


def _encode_fast(encode: Encoder, dtype: np.dtype | None, shape: tuple[int, ...], copy: bool, value: object) -> object:
    if type(value) is np.ndarray and value.dtype == dtype and value.shape == shape:
        return torch.from_numpy(value.copy() if copy else value)
    return encode(value)


def _encode_dict(spec: Composite, values: Mapping[str, Any]) -> dict[str, Any]:
    encoded: dict[str, Any] = {}
    sub_spec: Any
    name: Any
    for name, sub_spec in spec.items():
        if name in values:
            value = values[name]
            encoded[name] = _encode_dict(sub_spec, value) if isinstance(sub_spec, Composite) else sub_spec.encode(value)
    return encoded


def set_nested(entries: dict[str, Any], key: Key, value: object) -> None:
    path = key_path(key)
    for name_part in path[:-1]:
        entries = entries.setdefault(name_part, {})
    entries[path[-1]] = value


class BaseInfoDictReader:
    """Base class of readers that write infos into TensorDicts. A subclass defines `__call__` and `info_spec`."""

    def __call__(self, info_dict: Info, tensordict: TensorDictBase) -> TensorDictBase:
        """Writes entries of `info_dict` into `tensordict` and returns it."""
        raise NotImplementedError(f"{type(self).__name__} has no __call__.")

    @property
    def info_spec(self) -> Composite:
        """The specs of the entries that it writes, without batch dimensions."""
        raise NotImplementedError(f"{type(self).__name__} has no info_spec.")


class default_info_dict_reader(BaseInfoDictReader):
    """Reads info entries under their own keys. An entry that an info lacks is read as zeros.

    Args:
        keys: the keys to read: strings, or tuples of strings for nested dicts. By default the keys of `spec`, or all
            keys of the first info.
        spec: the specs of the entries, to which values are converted: a mapping or `Composite`, or a sequence in the
            order of `keys`. The default is a number (`Unbounded` with shape () and the default float dtype).
        ignore_private: skip keys that begin with "_", unless `keys` contains them.

    Raises:
        SpaceError: if the numbers of keys and specs differ, or an info entry is not numeric or has the wrong shape.

    >>> from tensordict import TensorDict
    >>> reader = default_info_dict_reader(["lives"])
    >>> reader({"lives": 3, "frame": 20}, TensorDict({}))["lives"]
    tensor(3.)
    """

    def __init__(
        self,
        keys: Sequence[Key] | None = None,
        spec: Mapping[Any, TensorSpec] | Sequence[TensorSpec] | Composite | None = None,
        ignore_private: bool = True,
    ):
        self.ignore_private = ignore_private
        self.keys: list[Key] | None = None if keys is None else list(keys)
        self._specs: dict[Key, TensorSpec] = {}
        if isinstance(spec, Composite):
            spec = {
                key: leaf_spec
                for key, leaf_spec in spec.items(include_nested=True, leaves_only=True)
                if leaf_spec is not None
            }
        if isinstance(spec, Mapping):
            self._specs.update(spec)
        elif spec is not None:
            if self.keys is None or len(spec) != len(self.keys):
                raise SpaceError(f"Expected a spec for each of keys={keys}, got {len(spec)} specs.")
            self._specs.update(zip(self.keys, spec, strict=True))
        if self.keys is None and spec is not None:
            self.keys = list(self._specs)
        for key in self.keys or ():
            self._specs.setdefault(key, Unbounded(()))

    @property
    def info_spec(self) -> Composite:
        """The specs of the entries that it writes; empty until the keys are known."""
        return Composite(self._specs)

    def __call__(self, info_dict: Info, tensordict: TensorDictBase) -> TensorDictBase:
        """Writes the entries into `tensordict` and returns it; their shapes start with its batch size."""
        if self.keys is None:
            self._specs = specs_of(info_dict, self.ignore_private, tensordict.batch_dims)
            check_key_conflicts(self._specs, [*tensordict.keys(True, True), "action", "reward", *FLAGS])
            self.keys = list(self._specs)
        batch = tensordict.batch_size
        for key in self.keys:
            spec = self._specs[key]
            value = _lookup(info_dict, key)
            tensordict.set(key, _to_tensor(value, key, spec, batch))
        return tensordict


def check_key_conflicts(keys: Iterable[Key], existing_keys: Iterable[Key]) -> None:
    """Raises a `SpaceError` if an info key equals, contains or is inside a key of the environment."""
    taken_paths = [key if isinstance(key, tuple) else (key,) for key in (*existing_keys, "next")]
    for key in keys:
        path = key if isinstance(key, tuple) else (key,)
        if any(path[: len(taken_path)] == taken_path or taken_path[: len(path)] == path for taken_path in taken_paths):
            raise SpaceError(
                f"Expected info keys that the environment does not use, got {key!r}. Name the keys to read, without "
                "it: env.set_info_dict_reader(default_info_dict_reader([...]))."
            )


def specs_of(info: Info, ignore_private: bool = True, batch_dims: int = 0) -> dict[Key, TensorSpec]:
    """Returns the specs of an info's entries that are not None, without the first `batch_dims` dimensions.

    Arrays, tensors and numbers of NumPy keep their dtypes. Floats of Python have torch's default dtype.

    Raises:
        SpaceError: if an entry is neither a number nor an array of numbers.

    >>> specs_of({"x": 1.0, "_x": True, "deep": {"y": [1, 2]}})[("deep", "y")].shape
    torch.Size([2])
    """
    specs: dict[Key, TensorSpec] = {}
    for key, value in _entries(info, ignore_private):
        if value is None:
            continue
        try:
            array = value.numpy(force=True) if isinstance(value, Tensor) else np.asarray(value)
            tensor = torch.from_numpy(np.array(array, copy=True)) if array.dtype.kind in "biuf" else None
        except ValueError:  # a ragged list
            tensor = None
        if tensor is None:
            raise SpaceError(
                f"Expected info entries to be numbers or arrays of numbers, got {value!r:.80} at {key!r}. Name the "
                "keys to read: env.set_info_dict_reader(default_info_dict_reader([...]))."
            )
        dtype = torch.get_default_dtype() if type(value) is float else tensor.dtype  # np.float64 derives from float
        device = value.device if isinstance(value, Tensor) else None
        specs[key] = Unbounded(tensor.shape[batch_dims:], device, dtype)
    return specs


def _entries(info: Info, ignore_private: bool, prefix: tuple[str, ...] = ()) -> Iterator[tuple[Key, object]]:
    for name, value in info.items():
        if ignore_private and str(name).startswith("_"):
            continue
        path = (*prefix, str(name))
        if isinstance(value, Mapping):
            yield from _entries(value, ignore_private, path)
        else:
            yield path if prefix else path[0], value


def _lookup(info: Info, key: Key) -> object:
    value: Any = info
    for name in key_path(key):
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def _to_tensor(value: object, key: Key, spec: TensorSpec, batch: torch.Size) -> Tensor:
    shape = (*batch, *spec.shape)
    if value is None:
        return torch.zeros(shape, dtype=spec.dtype, device=spec.device)
    if isinstance(value, np.ndarray) and value.dtype == object:  # some rows are None
        zeros = np.zeros(tuple(spec.shape))
        value = np.stack([zeros if row is None else np.asarray(row) for row in value])
    try:
        tensor = value if isinstance(value, Tensor) else torch.as_tensor(np.array(value))
    except (TypeError, ValueError) as error:
        raise SpaceError(f"Expected numbers at info {key!r}, got {value!r:.80}. Remove it from the keys.") from error
    tensor = tensor.to(device=spec.device, dtype=spec.dtype)
    if tensor.numel() != torch.Size(shape).numel():
        value_shape = tuple(tensor.shape[len(batch) :])
        raise SpaceError(
            f"Expected shape {tuple(shape)} at info {key!r}, got {tuple(tensor.shape)}. Give its spec: "
            f"default_info_dict_reader([{key!r}], spec={{{key!r}: Unbounded({value_shape})}})."
        )
    return tensor.reshape(shape)
