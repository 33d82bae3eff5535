"""Makes environments by name, each in a `TorchWrapper`.

`make_vector_env` takes any name with a registered prefix and calls one of the other makers. Each simulator is imported
only when an environment of it is made, so that programs do not import simulators that they do not use.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import gymnasium
import torch

from ..engine.backends.ray_cluster.options import RayOptions
from ..engine.backends.registry import BackendName
from ..engine.simulator import BatchSimulator
from .registry import find_entry, register
from .torch_wrapper import TorchWrapper

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
            with another prefix that `vecrl.vector.registry.register` added.
        num_envs: the number of environments; None makes one environment without a batch axis.
        force_classic_api, discrete_to_continuous_act, clip_actions: see `TorchWrapper`.
        gym_kwargs: further arguments for gymnasium environments only; they override `kwargs`.
        brax_kwargs: further arguments for Brax environments only; they override `kwargs`.
        kwargs: further arguments of the maker: `num_episodes`, `empty_info`, `device`, and those of the simulator.

    Raises:
        ValueError: the prefix is unknown; the message lists the known ones.

    >>> with make_vector_env("gym::CartPole-v1", num_envs=2, empty_info=True) as env:
    ...     obs, info = env.reset(seed=1)
    >>> obs.shape
    torch.Size([2, 4])
    """
    entry, name = find_entry(env_name)
    prefix_kwargs = {"gym": gym_kwargs, "brax": brax_kwargs, "brax::old": brax_kwargs}.get(entry.prefix)
    return entry.maker(
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
    **kwargs: Any,
) -> TorchWrapper:
    """Makes a gymnasium environment, or `num_envs` of them in a `SyncVectorEnv`.

    Args:
        env_name: a name that `gymnasium.make` takes.
        num_envs: the number of environments; None makes one environment, without auto-reset.
        force_classic_api, discrete_to_continuous_act, clip_actions: see `TorchWrapper`.
        empty_info, num_episodes, device, backend, num_workers, ray_options: see `SyncVectorEnv`.
        kwargs: passed to `gymnasium.make`.

    Raises:
        ValueError: an argument of `SyncVectorEnv` is given without `num_envs`.
    """
    if num_envs is None:
        vector_arguments = {"backend": backend != "serial", "num_workers": num_workers, "ray_options": ray_options}
        _reject_without_num_envs(empty_info=empty_info, num_episodes=num_episodes, device=device, **vector_arguments)
        env: Any = gymnasium.make(env_name, **kwargs)
    else:
        from .sync_env import SyncVectorEnv

        makers = [partial(gymnasium.make, env_name, **kwargs)] * num_envs
        pool_options: Any = {
            "device": device,
            "backend": backend,
            "num_workers": num_workers,
            "ray_options": ray_options,
        }
        env = SyncVectorEnv(makers, empty_info=empty_info, num_episodes=num_episodes, **pool_options)
    return TorchWrapper(
        env,
        force_classic_api=force_classic_api,
        discrete_to_continuous_act=discrete_to_continuous_act,
        clip_actions=clip_actions,
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
        kwargs: passed to `BraxSimulator` and Brax (`backend`, `episode_length`, `render_mode`, …). `auto_reset` (or
            `autoreset`) may be given, and must be true.

    Raises:
        ImportError: Brax, or `brax.v1`, is not installed; the message names the extra.
        ValueError: both spellings of an argument are given, auto-reset is turned off, or `empty_info` or
            `num_episodes` is given for a single environment.
    """
    batch_size = kwargs.pop("batch_size", None)
    num_envs = _one_of("num_envs", num_envs, "batch_size", batch_size)
    auto_reset = _one_of("auto_reset", kwargs.pop("auto_reset", None), "autoreset", kwargs.pop("autoreset", None))
    if auto_reset is not None and not auto_reset:
        raise ValueError(f"Expected auto-reset to be on for Brax environments, got {auto_reset!r}. Omit auto_reset.")
    from ..simulators.brax import BraxSimulator

    name = env_name.removeprefix("old::")
    make_simulator = partial(BraxSimulator, name, old=name != env_name, device=device, metrics=not empty_info, **kwargs)
    return _wrap_batch(
        make_simulator,
        num_envs,
        empty_info=empty_info,
        num_episodes=num_episodes,
        force_classic_api=force_classic_api,
        discrete_to_continuous_act=discrete_to_continuous_act,
        clip_actions=clip_actions,
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
    from ..simulators.native import make_native

    return _wrap_batch(
        partial(make_native, env_name, device=device or "cpu", **kwargs),
        num_envs,
        empty_info=empty_info,
        num_episodes=num_episodes,
        force_classic_api=force_classic_api,
        discrete_to_continuous_act=discrete_to_continuous_act,
        clip_actions=clip_actions,
    )


class SingleEnvOfBatch(gymnasium.Env[torch.Tensor, torch.Tensor]):
    """A single environment over a `BatchSimulator` of one row, with tensors and without auto-reset."""

    def __init__(self, simulator: BatchSimulator):
        self.simulator = simulator
        self.observation_space = simulator.observation_space
        self.action_space = simulator.action_space
        self.metadata = simulator.metadata
        self.render_mode = simulator.render_mode

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[torch.Tensor, dict[str, Any]]:
        """Resets the environment and returns `(observation, info)`; the observation is a tensor."""
        return self.simulator.reset([seed], options)[0], {}

    def step(self, action: torch.Tensor) -> tuple[torch.Tensor, Any, Any, Any, dict[str, Any]]:
        """Steps the environment and returns gymnasium's five values; all but the info are tensors, and so are the
        info's values."""
        step = self.simulator.step(action[None])
        info = {key: value[0] for key, value in step.info.items()}
        return step.next_obs[0], step.reward[0], step.terminated[0], step.truncated[0], info

    def render(self) -> Any:
        """Returns a frame, or None if there is no render mode."""
        return self.simulator.render(0)

    def close(self) -> None:
        """Closes the simulator."""
        self.simulator.close()


def _wrap_batch(
    make_simulator: Any, num_envs: int | None, *, empty_info: bool, num_episodes: int | None, **options: bool
) -> TorchWrapper:
    if num_envs is None:
        _reject_without_num_envs(empty_info=empty_info, num_episodes=num_episodes)
        return TorchWrapper(SingleEnvOfBatch(make_simulator(num_envs=1)), **options)
    from .batched_env import BatchedVectorEnv

    env = BatchedVectorEnv(
        make_simulator(num_envs=num_envs), autoreset_mode="same_step", num_episodes=num_episodes, empty_info=empty_info
    )
    return TorchWrapper(env, **options)


def _reject_without_num_envs(**arguments: Any) -> None:
    names = [name for name, value in arguments.items() if value is not None and value is not False]
    if names:
        invalid_names = ", ".join(names)
        raise ValueError(
            f"Expected num_envs, got None: {invalid_names} can only be given for a vectorized environment."
        )


def _one_of(name: str, value: Any, other_name: str, other_value: Any) -> Any:
    if value is not None and other_value is not None:
        raise ValueError(f"Expected {name} or {other_name}, which mean the same, got both. Give one of them.")
    return other_value if value is None else value


def _gym_names() -> list[str]:
    return list(gymnasium.registry)


def _brax_names(old: bool) -> list[str]:
    from ..simulators.brax import brax_names

    return brax_names(old)


def _native_names() -> list[str]:
    from ..simulators.native import NATIVE

    return list(NATIVE)


def _make_old_brax_env(env_name: str, **kwargs: Any) -> TorchWrapper:
    return make_brax_env("old::" + env_name, **kwargs)


register("gym", make_gym_env, "gymnasium's environments, stepped one after another", names=_gym_names)
register("brax", make_brax_env, "Brax's environments, in one compiled call", "brax", names=partial(_brax_names, False))
register("brax::old", _make_old_brax_env, "those of brax.v1", "brax-v1", names=partial(_brax_names, True))
register("native", make_native_env, "vecrl's own tasks, as tensors on any device", names=_native_names)
