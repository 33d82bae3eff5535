"""Adapts vecrl's environments to gymnasium's interface, for `EnvBase.register_gym`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import partial
from types import ModuleType
from typing import Any

from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from ....errors import SpaceError
from ....simulators.legacy_gym import convert_space
from ....specs import Composite, TensorSpec
from ....specs.convert import space_from_spec
from ...base import EnvBase
from ...entries.keys import Key, join_key
from .backends import Backend, gym_backend, set_gym_backend


def register_gym(
    id: str,  # noqa: A002 - its public name
    entry_point: Callable[..., EnvBase],
    *,
    backend: Backend | None = None,
    transform: object = None,
    info_keys: Sequence[Key] | None = None,
    to_numpy: bool = False,
    registration: dict[str, object],
    arguments: dict[str, object],
) -> None:
    """Registers an environment with `register` of gymnasium or of another backend.

    Args:
        id: the name.
        entry_point: makes the environment.
        backend: see `set_gym_backend`; by default the current one.
        transform, info_keys, to_numpy: see `EnvBase.register_gym`.
        registration: further arguments of `register`; those that are None or False and that the backend does not accept
            are omitted.
        arguments: passed to `entry_point`.
    """
    library = gym_backend() if backend is None else set_gym_backend(backend).backend
    register: Any = library.register if hasattr(library, "register") else library.envs.register
    parameters = inspect.signature(register).parameters
    unset = (None, False)
    registration_kwargs = {
        name: value for name, value in registration.items() if name in parameters or value not in unset
    }
    kwargs = {"transform": transform, "info_keys": info_keys, "to_numpy": to_numpy, **arguments}
    register(
        id=id, entry_point=partial(_make_adapter, entry_point, library.__name__), kwargs=kwargs, **registration_kwargs
    )


def _make_adapter(
    entry_point: Callable[..., EnvBase],
    library: str,
    *,
    transform: Any = None,
    info_keys: Sequence[Key] | None = None,
    to_numpy: bool = False,
    render_mode: str | None = None,
    **arguments: object,
) -> Any:
    env = entry_point(**arguments) if render_mode is None else entry_point(render_mode=render_mode, **arguments)
    if transform is not None:
        from ...transforms import Compose, TransformedEnv

        env = TransformedEnv(env, Compose(*transform) if isinstance(transform, list | tuple) else transform)
    module = set_gym_backend(library).backend
    adapter_class = type("RegisteredEnv", (GymnasiumAdapter, module.Env), {})
    return adapter_class(env, module.spaces, info_keys or (), to_numpy, render_mode)


class GymnasiumAdapter:
    """An environment without batch dimensions behind gymnasium's interface.

    Observations are dicts with the environment's keys. Actions are elements of the action space, or tensors.

    Args:
        env: the environment to step.
        spaces: the library's module of spaces.
        info_keys: observation entries to return in the info instead.
        to_numpy: return arrays and numbers instead of tensors.
        render_mode: the requested render mode.
    """

    def __init__(
        self, env: EnvBase, spaces: ModuleType, info_keys: Sequence[Key], to_numpy: bool, render_mode: str | None
    ):
        if env.batch_size:
            raise SpaceError(
                f"Expected an environment without batch dimensions, as in gymnasium, got {env!r} with the batch size "
                f"{tuple(env.batch_size)}."
            )
        self.env_base = env
        self.info_keys = list(info_keys)
        self.to_numpy = to_numpy
        self.render_mode = render_mode
        self.metadata = {"render_modes": [] if render_mode is None else [render_mode]}
        self._obs_spec = obs_spec = _drop_keys(env.full_observation_spec, {*self.info_keys})
        action_spec = env.full_action_spec if len(env.action_keys) > 1 else env.action_spec
        self._action_spec = action_spec
        is_gymnasium = spaces.__name__.startswith("gymnasium")
        self.observation_space, self.action_space = (
            space if is_gymnasium else convert_space(spaces, space)
            for space in map(space_from_spec, (obs_spec, action_spec))
        )
        self._root: TensorDictBase | None = None

    def reset(self, *, seed: int | None = None, options: dict[str, object] | None = None) -> tuple[Any, dict[str, Any]]:
        """Resets the environment as in gymnasium and returns the observation and the info."""
        super().reset(seed=seed)  # pyright: ignore[reportAttributeAccessIssue] - of the library's Env
        if seed is not None:
            self.env_base._seed_next_reset(seed)
        self._root = self.env_base.reset(options=options) if options else self.env_base.reset()
        return self._obs_and_info(self._root)

    def step(self, action: object) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Steps the environment as in gymnasium; without `to_numpy`, reward and flags are tensors of the specs.

        Raises:
            SpaceError: if there was no reset before.
        """
        env, root = self.env_base, self._root
        if root is None:
            raise SpaceError("Expected a reset before the first step, got none. Call reset().")
        encoded_action = self._action_spec.encode(action)
        result = env.step(
            root.update(encoded_action)
            if isinstance(encoded_action, TensorDictBase)
            else root.set(env.action_key, encoded_action)
        )
        next_td = result.get("next")
        self._root = env.step_mdp(result)
        obs, info = self._obs_and_info(next_td)
        reward_key = env.reward_key if env.reward_keys else "reward"  # without a reward_spec
        reward, terminated = next_td.get(reward_key), next_td.get("terminated")
        truncated = next_td.get("truncated", None)
        truncated = terminated & False if truncated is None else truncated
        if self.to_numpy:
            return obs, _number(reward), bool(terminated.any()), bool(truncated.any()), info
        return obs, reward, terminated, truncated, info

    def _obs_and_info(self, data: TensorDictBase) -> tuple[Any, dict[str, Any]]:
        obs_td = data.select(*self._obs_spec.keys(include_nested=True, leaves_only=True))
        info_td = data.select(*self.info_keys)
        if not self.to_numpy:
            return obs_td.to_dict(), info_td.to_dict()
        info = TensorDict({}).update(info_td).to_dict(convert_tensors="numpy") if self.info_keys else {}
        return self._obs_spec.to_numpy(obs_td), info

    def render(self) -> object:
        """Returns what the environment renders."""
        return self.env_base.render()  # pyright: ignore[reportCallIssue]

    def close(self) -> None:
        """Closes the environment."""
        self.env_base.close()


def _drop_keys(spec: Composite, keys: set[Key], prefix: tuple[str, ...] = ()) -> Composite:
    """Returns the spec without some keys, and without Composites that are empty then, which gymnasium rejects."""
    entries: dict[str, TensorSpec] = {}
    name: Any
    sub_spec: Any
    for name, sub_spec in spec.items():
        path = (*prefix, name)
        if join_key(prefix, name) in keys:
            continue
        if isinstance(sub_spec, Composite):
            sub_spec = _drop_keys(sub_spec, keys, path)
            if not len(sub_spec):
                continue
        entries[name] = sub_spec
    return Composite(entries, shape=spec.shape)


def _number(reward: Tensor) -> Any:
    array = reward.detach().cpu().numpy()
    return array.item() if array.size == 1 else array
