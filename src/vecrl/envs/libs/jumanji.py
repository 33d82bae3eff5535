"""Jumanji's environments over TensorDicts, under TorchRL's names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...simulators import jumanji
from ...specs import TensorSpec
from ...specs.convert import spec_from_jax
from ..env_specs import Device
from ..library_env import pop_env_arguments
from .gym.backends import AvailableEnvs
from .jax_env import JaxTaskEnv


class JumanjiWrapper(JaxTaskEnv):
    """An environment of Jumanji as an `EnvBase`, with its state under "state"; see `JaxTaskEnv`.

    Each part of an observation has a key of its own; parts of parts have nested keys. Rewards have the shape
    `[*batch, 1]`, or `[*batch, agents]` if the environment has a reward per agent. "terminated" is true where the
    discount is zero at the end of an episode, and "truncated" at other ends.

    Args:
        env: the environment.
        categorical_action_encoding: discrete actions as indices, int32 like the environment's; otherwise as one-hot
            rows.
        jit: compile resets and steps.
        batch_size: the batch size; None for an environment that takes TensorDicts of any batch size.
        device: the device of all tensors; None is the CPU.
        kwargs: arguments of `EnvBase`.

    >>> import jumanji  # doctest: +SKIP
    >>> env = JumanjiWrapper(jumanji.make("Snake-v1"), batch_size=[4])  # doctest: +SKIP
    >>> env.rollout(3)["next", "grid"].shape  # doctest: +SKIP
    torch.Size([4, 3, 12, 12, 5])
    """

    libname = "jumanji"
    git_url = "https://github.com/instadeepai/jumanji"
    available_envs: Any = AvailableEnvs(jumanji.names)

    def __init__(
        self,
        env: Any = None,
        categorical_action_encoding: bool = True,
        jit: bool = True,
        *,
        batch_size: Sequence[int] | int | None = None,
        device: Device = None,
        **kwargs: Any,
    ):
        if not (hasattr(env, "observation_spec") and hasattr(env, "reset") and hasattr(env, "step")):
            raise TypeError(f"Expected an environment of Jumanji, got {type(env).__name__}. Use jumanji.make(name).")
        self._env, self._categorical = env, categorical_action_encoding
        super().__init__(jumanji.JumanjiTask(env), batch_size=batch_size, device=device, jit=jit, **kwargs)

    def _action_and_obs_specs(self) -> tuple[TensorSpec, TensorSpec]:
        action_spec = spec_from_jax(self._env.action_spec, device=self.device, categorical=self._categorical)
        return action_spec, spec_from_jax(self._env.observation_spec, device=self.device, categorical=True)

    def _reward_shape(self) -> tuple[int, ...]:
        return tuple(self._env.reward_spec.shape) or (1,)

    @property
    def jit(self) -> bool:
        """Whether resets and steps are compiled."""
        return self._jit

    @property
    def key(self) -> Any:
        """The JAX key of the next reset."""
        return self._key

    @property
    def lib(self) -> Any:
        """The module `jumanji`."""
        return jumanji.jumanji_module()

    def __repr__(self) -> str:
        return f"{type(self).__name__}(env={self._env}, batch_size={self.batch_size}, device={self.device})"


class JumanjiEnv(JumanjiWrapper):
    """An environment of Jumanji, made by its name; see `JumanjiWrapper`.

    Args:
        env_name: one of `available_envs`.
        categorical_action_encoding, jit, batch_size, device: as in `JumanjiWrapper`.
        kwargs: arguments of `EnvBase`; all others are passed to `jumanji.make`.

    Attributes:
        available_envs: class attribute, the names of all environments; `Sokoban-v0` downloads its levels.

    Raises:
        VersionError: Jumanji is not installed.
        ValueError: there is no environment of this name.

    >>> env = JumanjiEnv("Maze-v0")  # doctest: +SKIP
    >>> env.step(env.rand_action(env.reset()))["next", "state", "agent_position", "row"].shape  # doctest: +SKIP
    torch.Size([])
    """

    def __init__(
        self,
        env_name: str,
        *,
        categorical_action_encoding: bool = True,
        jit: bool = True,
        batch_size: Sequence[int] | int | None = None,
        device: Device = None,
        **kwargs: Any,
    ):
        options: dict[str, Any] = {"batch_size": batch_size, "device": device, **pop_env_arguments(kwargs)}
        self.env_name = env_name
        super().__init__(jumanji.make_task(env_name, **kwargs).env, categorical_action_encoding, jit, **options)

    def __repr__(self) -> str:
        return f"JumanjiEnv(env={self.env_name}, batch_size={self.batch_size}, device={self.device})"
