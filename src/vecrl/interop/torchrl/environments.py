"""Environments of vecrl as environments of TorchRL, and back.

This module imports TorchRL, so it is imported only by programs that have imported it. It must not know transforms.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, Self

from tensordict import TensorDict, TensorDictBase
from torchrl.envs import EnvBase as TheirEnvBase

from ...envs import EnvBase
from ...envs.entries.keys import INPUTS, OUTPUTS
from ...envs.library_env import LibraryEnv
from .spec_conversion import from_torchrl, to_torchrl

__all__ = ["EnvInTorchRL", "TorchRLEnv"]

_SPECS = [f"full_{name}_spec" for name in (*INPUTS, *OUTPUTS)]


class EnvInTorchRL(TheirEnvBase):
    """An environment of vecrl as one of TorchRL's class, with specs of TorchRL, which are read on first use.

    Args:
        env: the environment of vecrl. It is not a submodule, so its state is not part of the state of this object.
    """

    def __init__(self, env: EnvBase):
        super().__init__(device=env.device, batch_size=env.batch_size, allow_done_after_reset=True)
        self.__dict__["vecrl_env"] = env

    @classmethod
    def over(cls, env: EnvBase) -> Self:
        """Returns the environment without the last part of TorchRL's construction, which reads the specs."""
        return type.__call__(cls, env)

    @cached_property
    def input_spec(self) -> Any:
        """The specs of actions and other inputs."""
        return to_torchrl(self.vecrl_env.input_spec).lock_(recurse=True)

    @cached_property
    def output_spec(self) -> Any:
        """The specs of observations, rewards and done flags."""
        return to_torchrl(self.vecrl_env.output_spec).lock_(recurse=True)

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        env = self.vecrl_env
        if tensordict is not None:  # entries that transforms have changed may have other shapes
            tensordict = tensordict.select(*env.reset_keys, *env.state_keys, strict=False)
        return env.reset(tensordict, **kwargs)

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        return self.vecrl_env.step(tensordict.copy()).get("next")

    def _set_seed(self, seed: int | None) -> None:
        self.vecrl_env.set_seed(seed)

    def rand_action(self, tensordict: TensorDictBase | None = None) -> TensorDictBase:
        """Samples an action for every row as the environment of vecrl does, and writes them into `tensordict`."""
        return self.vecrl_env.rand_action(tensordict)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name.startswith("_") or "vecrl_env" not in vars(self):
                raise
        return getattr(self.vecrl_env, name)


class TorchRLEnv(LibraryEnv):
    """An environment of TorchRL in vecrl, with specs of vecrl. Other attributes are those of TorchRL's environment.

    `TransformedEnv`, `SerialEnv`, `ParallelEnv`, `check_env_specs` and the functions of `vecrl.convert` make it by
    themselves. The environment of TorchRL does the seeding, partial resets and partial steps.

    Args:
        env: an environment of TorchRL.

    Raises:
        TypeError: `env` is no environment of TorchRL.
    """

    auto_complete_done_specs = False  # TorchRL has completed them

    def __init__(self, env: Any):
        if TheirEnvBase not in type(env).__mro__:
            raise TypeError(f"Expected an environment of TorchRL, got {env!r:.80}.")
        super().__init__(device=env.device, batch_size=env.batch_size, allow_done_after_reset=True)
        self._env = env
        self._batch_locked = env.batch_locked
        self._read_specs()

    def _read_specs(self) -> None:
        for name in _SPECS:
            setattr(self, name, from_torchrl(getattr(self._env, name)))

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        if tensordict is not None:
            masks_td = tensordict.select(*self.reset_keys, strict=False)
            # as TorchRL does in rollouts; other entries are the state to start from
            tensordict = tensordict.copy() if masks_td.is_empty() else masks_td
        return self._env.reset(tensordict, **kwargs)

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        return self._env.step(tensordict.copy()).get("next")

    def _apply_seed(self, seed: int | None, static_seed: bool) -> int | None:
        return self._env.set_seed(seed, static_seed)

    def rand_action(self, tensordict: TensorDictBase | None = None) -> TensorDictBase:
        """Samples an action for every row as TorchRL's environment does, and writes them into `tensordict`."""
        if tensordict is None:
            tensordict = TensorDict({}, self.batch_size, device=self.device)
        return self._env.rand_action(tensordict)

    def to(self, device: Any) -> Any:
        """Moves TorchRL's environment to another device. Returns this environment."""
        self._env.to(device)
        return super().to(device)
