"""Brax's environments over TensorDicts, under TorchRL's names, with gradients through the simulator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tensordict import TensorDictBase

from ...registries import check_name
from ...simulators.brax import BraxTask, brax_envs, names
from ...specs import Bounded, TensorSpec, Unbounded
from ..env_specs import Device
from ..library_env import pop_env_arguments
from .gym.backends import AvailableEnvs
from .jax_env import JaxTaskEnv


class BraxWrapper(JaxTaskEnv):
    """An environment of Brax as an `EnvBase`, with its state under "state"; see `JaxTaskEnv`.

    Entries: "observation" `[*batch, size]`, "action" `[*batch, size]` in [-1, 1], "reward", "done" and "terminated"
    `[*batch, 1]`; also "truncated" if the environment has a limit of steps.

    Args:
        env: the environment, made by `brax.envs.get_environment`, without an auto-reset.
        categorical_action_encoding: has no effect, since actions are continuous.
        cache_clear_frequency: clear JAX's caches of compiled functions after every so many steps; None for never.
        requires_grad: whether gradients flow from rewards, observations and states to actions and earlier states.
        batch_size: the batch size; None for an environment that takes TensorDicts of any batch size.
        device: the device of all tensors; None is the CPU.
        kwargs: arguments of `EnvBase`.

    Raises:
        TypeError: `env` is no environment of Brax.

    >>> import brax.envs  # doctest: +SKIP
    >>> env = BraxWrapper(brax.envs.get_environment("ant"), batch_size=[4])  # doctest: +SKIP
    >>> env.rollout(3)["next", "reward"].shape  # doctest: +SKIP
    torch.Size([4, 3, 1])
    """

    libname = "brax"
    git_url = "https://github.com/google/brax"
    available_envs: Any = AvailableEnvs(names)
    excluded_from_state = ("_env",)  # Brax's functions, which have no state

    def __init__(
        self,
        env: Any = None,
        categorical_action_encoding: bool = False,
        cache_clear_frequency: int | None = None,
        *,
        requires_grad: bool = False,
        batch_size: Sequence[int] | int | None = None,
        device: Device = None,
        **kwargs: Any,
    ):
        if not all(hasattr(env, name) for name in ("reset", "step", "action_size", "observation_size")):
            raise TypeError(
                f"Expected an environment of Brax, got {type(env).__name__}. Use brax.envs.get_environment(name)."
            )
        self._env = env
        self._cache_clear_frequency, self._num_steps = cache_clear_frequency, 0
        task, options = BraxTask(env, f"Brax's {type(env).__name__}"), {"requires_grad": requires_grad, **kwargs}
        super().__init__(task, batch_size=batch_size, device=device, **options)

    def _action_and_obs_specs(self) -> tuple[TensorSpec, TensorSpec]:
        obs_spec = Unbounded(self._task.observation_space.shape or (), self.device)
        return Bounded(-1.0, 1.0, (self._env.action_size,), self.device), obs_spec

    def _set_specs(self) -> None:
        if ("info", "truncation") not in self._state_paths:  # there is no limit of steps
            self._flag_names = "done", "terminated"
        super()._set_specs()

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        self._clear_cache_if_due()
        return super()._step(tensordict)

    def _clear_cache_if_due(self) -> None:
        self._num_steps += 1
        if self._cache_clear_frequency and self._num_steps % self._cache_clear_frequency == 0:
            self.clear_cache()

    def clear_cache(self) -> None:
        """Clears JAX's caches of compiled functions; the next reset and step compile again."""
        import jax

        jax.clear_caches()

    # -- names

    @property
    def lib(self) -> Any:
        """The module `brax`."""
        import brax

        return brax

    def __repr__(self) -> str:
        return f"{type(self).__name__}(env={self._env}, batch_size={self.batch_size}, device={self.device})"


class BraxEnv(BraxWrapper):
    """An environment of Brax, made by its name; see `BraxWrapper`.

    Args:
        env_name: one of `available_envs`.
        cache_clear_frequency, requires_grad, batch_size, device: as in `BraxWrapper`.
        episode_length: steps until an episode is truncated; None for no limit.
        action_repeat: the number of physics steps of Brax per step, if there is a limit.
        kwargs: arguments of `EnvBase`; all others are passed to the environment (`backend`).

    Attributes:
        available_envs: class attribute, the names of all environments.

    Raises:
        VersionError: Brax is not installed.
        ValueError: there is no environment of this name.

    >>> env = BraxEnv("inverted_pendulum", batch_size=[2], requires_grad=True)  # doctest: +SKIP
    >>> action = torch.zeros(2, 1, requires_grad=True)  # doctest: +SKIP
    >>> env.step(env.reset().set("action", action))["next", "observation"].sum().backward()  # doctest: +SKIP
    """

    def __init__(
        self,
        env_name: str,
        *,
        categorical_action_encoding: bool = False,
        cache_clear_frequency: int | None = None,
        requires_grad: bool = False,
        batch_size: Sequence[int] | int | None = None,
        device: Device = None,
        episode_length: int | None = None,
        action_repeat: int = 1,
        **kwargs: Any,
    ):
        env_kwargs = pop_env_arguments(kwargs)
        envs: Any = brax_envs()
        check_name("a Brax environment", env_name, names())
        if episode_length is None:
            env = envs.get_environment(env_name, **kwargs)
        else:
            limits: dict[str, Any] = {"episode_length": episode_length, "action_repeat": action_repeat}
            env = envs.create(env_name, auto_reset=False, **limits, **kwargs)
        self.env_name = env_name
        super().__init__(
            env,
            categorical_action_encoding,
            cache_clear_frequency,
            requires_grad=requires_grad,
            batch_size=batch_size,
            device=device,
            **env_kwargs,
        )

    def __repr__(self) -> str:
        return f"BraxEnv(env={self.env_name}, batch_size={self.batch_size}, device={self.device})"
