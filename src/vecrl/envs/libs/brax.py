"""Brax's environments over TensorDicts, under TorchRL's names, with gradients through the simulator."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from ...engine.simulator import Array
from ...registries import check_name
from ...simulators.brax import BraxTask, brax_envs, names
from ...simulators.jax_simulator import from_torch, to_torch
from ...specs import Bounded, Composite, TensorSpec, Unbounded
from ..env_specs import Device
from .gym_backends import AvailableEnvs
from .jax_env import JaxTaskEnv
from .jumanji import ENV_ARGUMENTS


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
    returns_new_tensors = True
    git_url = "https://github.com/google/brax"
    available_envs: Any = AvailableEnvs(names)
    excluded_from_state = ("_backward", "_env")  # Brax's functions, which have no state

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
        self._env, self.requires_grad = env, requires_grad
        self._cache_clear_frequency, self._num_steps = cache_clear_frequency, 0
        super().__init__(BraxTask(env, f"Brax's {type(env).__name__}"), batch_size=batch_size, device=device, **kwargs)

    def _action_and_obs_specs(self) -> tuple[TensorSpec, Composite]:
        obs_spec = Unbounded(self._task.observation_space.shape or (), self.device)
        return (
            Bounded(-1.0, 1.0, (self._env.action_size,), self.device),
            Composite(observation=obs_spec, device=self.device),
        )

    def _make_specs(self) -> None:
        super()._make_specs()
        self._has_limit = ("info", "truncation") in self._state_paths
        if not self._has_limit:
            flags = {name: spec for name, spec in self.full_done_spec.items() if name != "truncated"}
            self.full_done_spec = Composite(flags, shape=self.batch_size, device=self.device)

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        self._clear_cache_if_due()
        result = self._step_with_grad(tensordict) if self.requires_grad else super()._step(tensordict)
        return result if self._has_limit else result.exclude("truncated", inplace=True)

    def _clear_cache_if_due(self) -> None:
        self._num_steps += 1
        if self._cache_clear_frequency and self._num_steps % self._cache_clear_frequency == 0:
            self.clear_cache()

    def clear_cache(self) -> None:
        """Clears JAX's caches of compiled functions; the next reset and step compile again."""
        import jax

        jax.clear_caches()

    # -- gradients

    def _step_with_grad(self, tensordict: TensorDictBase) -> TensorDictBase:
        shape, count = tensordict.batch_size, len(self._state_paths)
        state = [tensordict.get(("state", *path)) for path in self._state_paths]
        outputs = _Step.apply(self, tensordict, *state, tensordict.get("action"))
        state_td = TensorDict({}, shape, device=self.device)
        for path, value in zip(self._state_paths, outputs[:count], strict=True):
            state_td[path] = value
        obs, reward, terminated, truncated = outputs[count:]
        entries = {"observation": obs, "reward": reward, "terminated": terminated, "truncated": truncated}
        entries["done"] = terminated | truncated
        return TensorDict({**entries, "state": state_td}, shape, device=self.device)

    def _outputs(self, tensordict: TensorDictBase) -> list[Tensor]:
        """Returns the results of a step without a graph: the leaves of the state, observation, reward, flags."""
        data = JaxTaskEnv._step(self, tensordict)
        names = "observation", "reward", "terminated", "truncated"
        return [*(data["state", *path] for path in self._state_paths), *(data[name] for name in names)]

    @cached_property
    def _backward(self) -> Any:
        """A compiled function of state leaves, action and gradients of the results, to the gradients of the former.

        It computes the step again, so that no results of intermediate computations are kept between the two.
        """
        import jax

        is_float = [_is_float(leaf) for leaf in self._state_leaves]

        def backward(leaves: list[Array], action: Array, gradients: list[Array]) -> Any:
            def step(floats: list[Array], action: Array) -> list[Array]:
                values = iter(floats)
                merged = [next(values) if use else leaf for use, leaf in zip(is_float, leaves, strict=True)]
                result = self._functions[1](merged, action)
                state = zip(is_float, result.state, strict=True)
                return [*(leaf for use, leaf in state if use), result.obs, result.reward]

            floats = [leaf for use, leaf in zip(is_float, leaves, strict=True) if use]
            return jax.vjp(step, floats, action)[1](gradients)

        return jax.jit(backward)

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
        env_kwargs = {name: kwargs.pop(name) for name in ENV_ARGUMENTS if name in kwargs}
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


class _Step(torch.autograd.Function):
    """A step of a `BraxWrapper`: from the leaves of the state and the action to the results, see `_outputs`."""

    @staticmethod
    def forward(ctx: Any, env: BraxWrapper, tensordict: TensorDictBase, *inputs: Tensor) -> tuple[Tensor, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        outputs = env._outputs(tensordict)
        ctx.env, ctx.rows = env, tensordict.batch_size.numel()
        ctx.save_for_backward(*inputs)
        ctx.mark_non_differentiable(*(value for value in outputs if not value.is_floating_point()))
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        env, rows, (*state, action) = ctx.env, ctx.rows, ctx.saved_tensors
        leaves = [_to_rows(value, leaf, rows) for value, leaf in zip(state, env._state_leaves, strict=True)]
        shapes = [leaf.shape for leaf in env._state_leaves if _is_float(leaf)]
        shapes += [env._task.observation_space.shape or (), ()]
        given = [
            gradient
            for gradient, leaf in zip(gradients, [*env._state_leaves, None, None], strict=False)
            if leaf is None or _is_float(leaf)
        ]
        cotangents = [
            from_torch(gradient.detach().reshape(rows, *shape)) for gradient, shape in zip(given, shapes, strict=True)
        ]
        jax_action = from_torch(action.detach().reshape(rows, -1))
        floats, action_gradient = env._backward(leaves, jax_action, cotangents)
        values = iter(floats)
        result = [
            to_torch(next(values)).reshape(value.shape) if _is_float(leaf) else None
            for value, leaf in zip(state, env._state_leaves, strict=True)
        ]
        return (None, None, *result, to_torch(action_gradient).reshape(action.shape))


def _is_float(leaf: Any) -> bool:
    return bool(np.issubdtype(leaf.dtype, np.floating))


def _to_rows(value: Tensor, leaf: Any, rows: int) -> Array:
    value = value.detach().reshape((rows, *leaf.shape))
    return from_torch(value.view(torch.uint32) if leaf.dtype == np.uint32 else value)
