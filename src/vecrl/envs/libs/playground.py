"""MuJoCo Playground's environments over TensorDicts, under TorchRL's names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ...simulators import playground
from ...simulators.jax_simulator import JaxSimulator, JaxTask
from .gym.backends import AvailableEnvs
from .simulator_env import SimulatorEnv, batch_size_of


class MujocoPlaygroundWrapper(SimulatorEnv):
    """An environment of MuJoCo Playground, in one or many rows, as an `EnvBase`; see `SimulatorEnv`.

    Observations are under "observation"; those that Playground returns in a dict have its keys.

    Args:
        env: the environment, without wrappers.
        batch_size: the batch size; None for a single environment without batch dimensions.
        episode_length: steps until an episode is truncated; None for no limit.
        device: the device of the simulator and of all tensors; None is JAX's default device.
        kwargs: arguments of `SimulatorEnv`, also `num_envs` instead of `batch_size`.

    >>> from mujoco_playground import registry  # doctest: +SKIP
    >>> MujocoPlaygroundWrapper(registry.load("CheetahRun"), batch_size=[8]).rollout(3).shape  # doctest: +SKIP
    torch.Size([8, 3])
    """

    libname = "mujoco_playground"
    _resets_when_seeded = False
    git_url = "https://github.com/google-deepmind/mujoco_playground"
    available_envs: Any = AvailableEnvs(lambda: playground.playground_module().registry.ALL_ENVS)

    def __init__(
        self,
        env: Any = None,
        *,
        batch_size: Sequence[int] | int | None = None,
        episode_length: int | None = None,
        device: torch.device | str | int | None = None,
        **kwargs: Any,
    ):
        if not (hasattr(env, "mjx_model") and hasattr(env, "action_size")):
            raise TypeError(f"Expected an environment of MuJoCo Playground, got {type(env).__name__}.")
        self._set_up(playground.PlaygroundTask(env, episode_length=episode_length), batch_size, device, kwargs)

    def _set_up(
        self,
        task: JaxTask,
        batch_size: Sequence[int] | int | None,
        device: torch.device | str | int | None,
        kwargs: dict[str, Any],
    ) -> None:
        shape = batch_size_of(kwargs.pop("num_envs", None), batch_size) or torch.Size()
        render_mode = "rgb_array" if kwargs.get("from_pixels") else None
        simulator = JaxSimulator(task, shape.numel(), device=device, render_mode=render_mode)
        SimulatorEnv.__init__(self, simulator, batch_size=shape, device=device, **kwargs)

    @property
    def lib(self) -> Any:
        """The module `mujoco_playground`."""
        return playground.playground_module()


class MujocoPlaygroundEnv(MujocoPlaygroundWrapper):
    """An environment of MuJoCo Playground, made by its name; see `MujocoPlaygroundWrapper`.

    Args:
        env_name: one of `available_envs`.
        config: its configuration, an `ml_collections.ConfigDict`; None for its default one.
        config_overrides: values that replace some of the configuration. Without a CUDA device, `impl` is "jax" unless
            this or `config` says otherwise.
        episode_length: steps until an episode is truncated; None for that of the configuration.
        batch_size, device, kwargs: as in `MujocoPlaygroundWrapper`.

    Attributes:
        available_envs: class attribute, the names of all environments. Those of robots download their models.

    Raises:
        VersionError: MuJoCo Playground is not installed.
        ValueError: there is no environment of this name.

    >>> MujocoPlaygroundEnv("CartpoleBalance").rollout(3)["next", "observation"].shape  # doctest: +SKIP
    torch.Size([3, 5])
    """

    def __init__(
        self,
        env_name: str,
        *,
        config: Any = None,
        config_overrides: Mapping[str, Any] | None = None,
        batch_size: Sequence[int] | int | None = None,
        episode_length: int | None = None,
        device: torch.device | str | int | None = None,
        **kwargs: Any,
    ):
        task = playground.make_task(env_name, config, config_overrides, episode_length)
        self.env_name = env_name
        self._set_up(task, batch_size, device, kwargs)

    def __repr__(self) -> str:
        return f"MujocoPlaygroundEnv({self.env_name!r}, batch_size={tuple(self.batch_size)}, device={self.device})"
