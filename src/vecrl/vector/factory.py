"""Makes environments by name, each in a `TorchWrapper`.

`make_vector_env` takes any name with a registered prefix; the other makers use vecrl's own entries, also if a user has
replaced them. Each simulator is imported only when an environment of it is made, so that programs do not import
simulators that they do not use.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from inspect import signature
from operator import itemgetter
from typing import Any

import gymnasium
import numpy as np
import torch

from ..engine.backends.registry import BackendName, backend_entry
from ..engine.backends.worker_options import RayOptions, Wait
from ..engine.infos import InfoDict
from ..engine.simulator import BatchSimulator
from ..engine.space_layout import Tree
from ..engine.transition import AutoresetMode
from ..engine.transition import autoreset_mode as parse_autoreset_mode
from ..engine.trees import map_tree
from ..errors import SpaceError
from ..simulators.faster import mention_faster_name
from ..simulators.registry import (
    Entry,
    check_env_name,
    explained_arguments,
    find_entry,
    find_own_entry,
    unknown_argument,
)
from ..validation import normalize_device, parse_device, parse_optional_count
from .checked_simulator import CheckedSimulator
from .env_fns import AUTO
from .torch_wrapper import TorchVectorEnv, TorchWrapper

Device = str | torch.device


def make_vector_env(
    env_name: str,
    *,
    force_classic_api: bool = False,
    num_envs: int | None = None,
    discrete_to_continuous_act: bool = False,
    clip_actions: bool = False,
    gym_kwargs: Mapping[str, Any] | None = None,
    brax_kwargs: Mapping[str, Any] | None = None,
    **kwargs: Any,
) -> TorchWrapper:
    """Makes an environment of any supported simulator by name.

    Args:
        env_name: `gym::NAME` or a bare `NAME` (gymnasium), `brax::NAME`, `brax::old::NAME`, `native::NAME`, or a name
            with another prefix that `vecrl.vector.register` added.
        num_envs: the number of environments; None makes one environment without a batch axis.
        force_classic_api, discrete_to_continuous_act, clip_actions: see `TorchWrapper`.
        gym_kwargs: further arguments for gymnasium environments only; they override `kwargs`.
        brax_kwargs: further arguments for Brax environments only; they override `kwargs`.
        kwargs: `num_episodes`, `empty_info`, `device`, `autoreset_mode` and `episode_stats`, as for `BatchedVectorEnv`;
            for simulators of single environments (gymnasium) `backend`, `num_workers`, `ray_options` and `wait` too;
            and further arguments of the simulator. Single environments are in a `SyncVectorEnv`; with another
            `autoreset_mode` than "same_step" in a `VectorEnv`, which has gymnasium's seeds and infos, and no
            `num_episodes`, `empty_info` or `device`.

    Seeds: `reset(seed=s)` of a batched simulator (`native::`, `mujoco::`, `brax::`, …) or a `VectorEnv` seeds row i
    with s + i, as gymnasium does. A `SyncVectorEnv` draws the seeds of its rows from s, as EvoTorch does. A sequence of
    one seed per row means the same for all.

    Raises:
        ValueError: the prefix is unknown; the message lists the known ones. Or an argument does not apply to the
            `autoreset_mode`.

    >>> with make_vector_env("gym::CartPole-v1", num_envs=2, empty_info=True) as env:
    ...     obs, info = env.reset(seed=1)
    >>> obs.shape
    torch.Size([2, 4])
    """
    entry, name = find_entry(env_name)
    for argument, value in (("gym_kwargs", gym_kwargs), ("brax_kwargs", brax_kwargs)):
        if value is not None and not (isinstance(value, Mapping) and all(isinstance(key, str) for key in value)):
            raise TypeError(f"Expected {argument} to be a mapping of names to arguments, got {value!r:.80}.")
    prefix_kwargs = {"gym": gym_kwargs, "brax": brax_kwargs, "brax::old": brax_kwargs}.get(entry.prefix)
    make = partial(_make, entry) if entry.maker is None else entry.maker
    if num_envs is not None and not entry.is_batched:
        mention_faster_name(env_name)
    return make(
        name,
        force_classic_api=force_classic_api,
        num_envs=num_envs,
        discrete_to_continuous_act=discrete_to_continuous_act,
        clip_actions=clip_actions,
        **{**kwargs, **(prefix_kwargs or {})},
    )


def make_gym_env(
    env_name: str,
    *,
    force_classic_api: bool = False,
    num_envs: int | None = None,
    discrete_to_continuous_act: bool = False,
    clip_actions: bool = False,
    empty_info: bool = False,
    num_episodes: int | None = None,
    device: Device | None = None,
    backend: BackendName = "serial",
    num_workers: int | None = None,
    ray_options: RayOptions | None = None,
    wait: Wait = "auto",
    **kwargs: Any,
) -> TorchWrapper:
    """Makes a gymnasium environment, or `num_envs` of them in a `SyncVectorEnv`.

    Args:
        env_name: a name that `gymnasium.make` takes.
        num_envs: the number of environments; None makes one environment, without auto-reset.
        force_classic_api, discrete_to_continuous_act, clip_actions: see `TorchWrapper`.
        empty_info, num_episodes, device, backend, num_workers, ray_options, wait: see `SyncVectorEnv`.
        kwargs: passed to `gymnasium.make`.

    Raises:
        ValueError: an argument of `SyncVectorEnv` is given without `num_envs`.
    """
    return _make(
        *find_own_entry(_full_name("gym", env_name)),
        force_classic_api=force_classic_api,
        num_envs=num_envs,
        discrete_to_continuous_act=discrete_to_continuous_act,
        clip_actions=clip_actions,
        empty_info=empty_info,
        num_episodes=num_episodes,
        device=device,
        backend=backend,
        num_workers=num_workers,
        ray_options=ray_options,
        wait=wait,
        **kwargs,
    )


def make_brax_env(
    env_name: str,
    *,
    force_classic_api: bool = False,
    num_envs: int | None = None,
    discrete_to_continuous_act: bool = False,
    clip_actions: bool = False,
    empty_info: bool = False,
    num_episodes: int | None = None,
    device: Device | None = None,
    **kwargs: Any,
) -> TorchWrapper:
    """Makes a Brax environment; one compiled call steps all rows, and auto-reset is in the same step.

    Episodes that reach `episode_length` (by default 1000) are reported as truncated; their final observations are in
    the info. The first `reset` and the first `step` compile, which takes seconds.

    Args:
        env_name: Brax's name of the environment; `old::NAME` takes it from `brax.v1`.
        num_envs: the number of environments (`batch_size` means the same); None makes one environment, without
            auto-reset.
        force_classic_api, discrete_to_continuous_act, clip_actions: see `TorchWrapper`.
        empty_info: whether infos are `{}`; Brax's metrics are then not returned.
        num_episodes: the number of episodes that each row runs after a `reset`; None means no limit.
        device: "cpu", "cuda", …; None is JAX's default device.
        kwargs: passed to `JaxSimulator` and Brax (`backend`, `episode_length`, `render_mode`, …). `auto_reset` (or
            `autoreset`) may be given, and must be true.

    Raises:
        ImportError: Brax, or `brax.v1`, is not installed; the message names the extra.
        ValueError: both spellings of an argument are given, auto-reset is turned off, or `empty_info` or
            `num_episodes` is given for a single environment.
    """
    return _make(
        *find_own_entry(_full_name("brax", env_name)),
        force_classic_api=force_classic_api,
        num_envs=num_envs,
        discrete_to_continuous_act=discrete_to_continuous_act,
        clip_actions=clip_actions,
        empty_info=empty_info,
        num_episodes=num_episodes,
        device=device,
        **kwargs,
    )


def make_native_env(
    env_name: str,
    *,
    force_classic_api: bool = False,
    num_envs: int | None = None,
    discrete_to_continuous_act: bool = False,
    clip_actions: bool = False,
    empty_info: bool = False,
    num_episodes: int | None = None,
    device: Device | None = None,
    **kwargs: Any,
) -> TorchWrapper:
    """Makes one of vecrl's native tasks, which compute with tensors on `device` only.

    Args:
        env_name: a key of `vecrl.simulators.native.NATIVE` ("CartPole-v1", …).
        num_envs: the number of environments; None makes one environment, without auto-reset.
        force_classic_api, discrete_to_continuous_act, clip_actions: see `TorchWrapper`.
        empty_info: whether infos are `{}`.
        num_episodes: the number of episodes that each row runs after a `reset`; None means no limit.
        device: the device of the tensors; None is the CPU.
        kwargs: passed to `vecrl.simulators.native.make_native`.

    Raises:
        ValueError: the name is unknown, or `empty_info` or `num_episodes` is given for a single environment.
    """
    return _make(
        *find_own_entry(_full_name("native", env_name)),
        force_classic_api=force_classic_api,
        num_envs=num_envs,
        discrete_to_continuous_act=discrete_to_continuous_act,
        clip_actions=clip_actions,
        empty_info=empty_info,
        num_episodes=num_episodes,
        device=device,
        **kwargs,
    )


def _full_name(prefix: str, env_name: str) -> str:
    check_env_name(env_name)
    return f"{prefix}::{env_name}"


class SingleEnvOfBatch(gymnasium.Env[Tree, Tree]):
    """A single environment over a `BatchSimulator` of one row, with (trees of) tensors and without auto-reset."""

    excluded_from_state = ("_checked",)  # it has no state besides the simulator's

    def __init__(self, simulator: BatchSimulator):
        self.simulator = simulator
        self._checked = CheckedSimulator(simulator)
        self.observation_space = simulator.observation_space
        self.action_space = simulator.action_space
        self.metadata = simulator.metadata
        self.render_mode = simulator.render_mode

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Tree, dict[str, Any]]:
        """Resets the environment and returns `(observation, info)`; the observation is a tensor, or a tree of them."""
        return map_tree(itemgetter(0), self._checked.reset([seed], options)), {}

    def step(self, action: Tree) -> tuple[Tree, Any, Any, Any, dict[str, Any]]:
        """Steps the environment and returns gymnasium's five values; all but the info are tensors, and so are the
        info's values."""
        step = self._checked.step(map_tree(itemgetter(None), action))
        info = {key: value[0] for key, value in step.info.items()}
        return map_tree(itemgetter(0), step.next_obs), step.reward[0], step.terminated[0], step.truncated[0], info

    def render(self) -> Any:
        """Returns a frame, or None if there is no render mode."""
        return self.simulator.render(0)

    def close(self) -> None:
        """Closes the simulator."""
        self.simulator.close()


def _make(
    entry: Entry,
    env_name: str,
    *,
    force_classic_api: bool,
    discrete_to_continuous_act: bool,
    clip_actions: bool,
    **kwargs: Any,
) -> TorchWrapper:
    """Makes an environment of a registered simulator."""
    env = (_make_single if entry.make_batch is None else _make_batched)(entry, env_name, **kwargs)
    wrapper = TorchVectorEnv if isinstance(env, gymnasium.vector.VectorEnv) else TorchWrapper
    return wrapper(
        env,
        force_classic_api=force_classic_api,
        discrete_to_continuous_act=discrete_to_continuous_act,
        clip_actions=clip_actions,
    )


def _make_single(
    entry: Entry,
    env_name: str,
    *,
    num_envs: int | None = None,
    empty_info: bool = False,
    num_episodes: int | None = None,
    device: Device | None = None,
    backend: BackendName = "serial",
    num_workers: int | None = None,
    ray_options: RayOptions | None = None,
    wait: Wait = "auto",
    autoreset_mode: Any = "same_step",
    episode_stats: bool = False,
    **kwargs: Any,
) -> Any:
    """Makes one environment of a simulator of single environments, or a vector environment of them."""
    assert entry.env_fn is not None
    mode = parse_autoreset_mode(autoreset_mode)
    workers: Any = {"num_workers": num_workers, "ray_options": ray_options}
    options: Any = {"device": device, "empty_info": empty_info, "num_episodes": num_episodes}
    num_envs = parse_optional_count("num_envs", num_envs, error=SpaceError)
    if num_envs is None:
        modes = {"autoreset_mode": mode is not AutoresetMode.SAME_STEP, "episode_stats": episode_stats}
        is_given = backend == AUTO or not backend_entry(backend, AUTO).runs_inline
        _reject_without_num_envs(**workers, **options, **modes, backend=is_given, wait=wait != "auto")
        with explained_arguments(f"{entry.prefix}::{env_name}", kwargs):
            return entry.env_fn(env_name, **kwargs)()
    from .sync_env import SyncVectorEnv, SyncVectorEnvWithEpisodes, VectorEnvWithEpisodes
    from .vector_env import VectorEnv

    if mode is not AutoresetMode.SAME_STEP and (given := _given(**options)):
        raise ValueError(
            f"Expected autoreset_mode='same_step' with {given}, got {mode.value!r}. Omit {given}, or the mode."
        )
    workers |= {"backend": backend, "wait": wait}
    with explained_arguments(f"{entry.prefix}::{env_name}", kwargs):
        env_fns = [entry.env_fn(env_name, **kwargs)] * num_envs
        if mode is AutoresetMode.SAME_STEP:
            return (SyncVectorEnvWithEpisodes if episode_stats else SyncVectorEnv)(env_fns, **workers, **options)
        return (VectorEnvWithEpisodes if episode_stats else VectorEnv)(env_fns, autoreset_mode=mode, **workers)


def _make_batched(
    entry: Entry,
    env_name: str,
    *,
    num_envs: int | None = None,
    empty_info: bool = False,
    num_episodes: int | None = None,
    autoreset_mode: Any = "same_step",
    episode_stats: bool = False,
    batch_size: int | None = None,
    auto_reset: bool | None = None,
    autoreset: bool | None = None,
    **kwargs: Any,
) -> Any:
    """Makes one environment of a batched simulator, or a `BatchedVectorEnv`."""
    num_envs = parse_optional_count("num_envs", _one_of("num_envs", num_envs, "batch_size", batch_size))
    auto_reset = _one_of("auto_reset", auto_reset, "autoreset", autoreset)
    if auto_reset is not None and not auto_reset:
        raise ValueError(
            f"Expected auto-reset to be on, got {auto_reset!r}. Omit it, or choose autoreset_mode='disabled'."
        )
    if num_envs is None:
        options = {"empty_info": empty_info, "num_episodes": num_episodes, "episode_stats": episode_stats}
        _reject_without_num_envs(**options, autoreset_mode=autoreset_mode != "same_step")
        return SingleEnvOfBatch(make_simulator(entry, env_name, 1, infos=not empty_info, **kwargs))
    from .batched_vector_env import BatchedVectorEnv

    return BatchedVectorEnv(
        make_simulator(entry, env_name, num_envs, infos=not empty_info, **kwargs),
        autoreset_mode=autoreset_mode,
        num_episodes=num_episodes,
        empty_info=empty_info,
        episode_stats=episode_stats,
    )


def make_simulator(entry: Entry, env_name: str, num_envs: int, **kwargs: Any) -> BatchSimulator:
    """Calls `make_batch` of an entry and explains what is wrong with its arguments or its result."""
    assert entry.make_batch is not None
    name = f"{entry.prefix}::{env_name}"
    if kwargs.get("device") is not None:
        parse_device(kwargs["device"])
        kwargs["device"] = normalize_device(kwargs["device"])
    try:
        simulator = entry.make_batch(env_name, num_envs, **kwargs)
    except TypeError as error:
        unknown = unknown_argument(error, kwargs)
        if unknown is None:
            raise
        if unknown == "infos":
            raise TypeError(
                f"Expected make_batch of the prefix {entry.prefix!r} to take infos, got a function without it. Define "
                "make_batch(name, num_envs, *, device=None, infos=True)."
            ) from error
        raise TypeError(
            f"Expected arguments of {name!r} ({_accepted_arguments(entry.make_batch)}), got {unknown!r}. "
            "Correct the name, or omit the argument."
        ) from error
    if getattr(simulator, "num_envs", num_envs) != num_envs:
        raise SpaceError(
            f"Expected make_batch of the prefix {entry.prefix!r} to make {num_envs} rows, got "
            f"{type(simulator).__name__} with num_envs {simulator.num_envs}. Pass num_envs to its constructor."
        )
    return simulator


def _accepted_arguments(make_batch: Callable[..., BatchSimulator]) -> str:
    """Returns the names of the arguments that users of a simulator may give, as text."""
    _, _, *parameters = signature(make_batch).parameters.values()
    names = [parameter.name for parameter in parameters if parameter.kind is not parameter.VAR_KEYWORD]
    further = ["further ones of the simulator"] if len(names) < len(parameters) else []
    return ", ".join([*(name for name in names if name not in ("infos", "old")), *further]) or "none"


def _reject_without_num_envs(**arguments: Any) -> None:
    if given := _given(**arguments):
        raise ValueError(f"Expected num_envs, got None: {given} can only be given for a vectorized environment.")


def _given(**arguments: Any) -> str:
    """Returns the names of the arguments that are given, as text."""
    return ", ".join(name for name, value in arguments.items() if value is not None and value is not False)


def _one_of(name: str, value: Any, other_name: str, other_value: Any) -> Any:
    if value is not None and other_value is not None:
        raise ValueError(f"Expected {name} or {other_name}, which mean the same, got both. Give one of them.")
    return other_value if value is None else value


class TensorToNumpyWrapper(gymnasium.Wrapper):
    """Wraps a single environment with tensors, or trees of them, into one with arrays and numbers in their place."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Tree, InfoDict]:
        """Resets the environment and returns the observation as an array, and the info."""
        obs, info = self.env.reset(seed=seed, options=options)
        return map_tree(_to_numpy, obs), info

    def step(self, action: Tree) -> tuple[Tree, float, bool, bool, InfoDict]:
        """Steps the environment with an array or number and returns what gymnasium's `step` returns."""
        obs, reward, terminated, truncated, info = self.env.step(map_tree(torch.as_tensor, action))
        return map_tree(_to_numpy, obs), float(reward), bool(terminated), bool(truncated), info


def _to_numpy(tensor: torch.Tensor) -> np.ndarray:
    return tensor.numpy(force=True)


def make_single_env(env_name: str, **kwargs: Any) -> gymnasium.Env[Any, Any]:
    """Makes one environment of any registered simulator, with NumPy arrays and without auto-reset.

    Args:
        env_name: a name as `make_vector_env` takes it; without a prefix it is gymnasium's.
        kwargs: arguments of the simulator.

    Raises:
        ValueError: the prefix is unknown.
        SpaceError: the prefix was registered with a maker for `make_vector_env` only.

    >>> env = make_single_env("native::CartPole-v1")
    >>> observation, info = env.reset(seed=1)
    >>> observation.shape, env.step(0)[1:4]
    ((4,), (1.0, False, False))
    """
    entry, name = find_entry(env_name)
    if entry.env_fn is not None:
        with explained_arguments(env_name, kwargs):
            return entry.env_fn(name, **kwargs)()
    if entry.make_batch is not None:
        return TensorToNumpyWrapper(SingleEnvOfBatch(make_simulator(entry, name, 1, **kwargs)))
    raise SpaceError(
        f"Expected a prefix that was registered with env_fn or make_batch, got {entry.prefix!r}, which has only a "
        "maker of vector environments. Register one of the two."
    )
