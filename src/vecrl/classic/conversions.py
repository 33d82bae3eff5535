"""Converts classic environments to TensorDict environments (dialect 3), and the other way round.

Both directions keep every bit of states and rewards, and distinguish terminated from truncated episodes.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Unpack

import numpy as np
import torch
from numpy.typing import ArrayLike
from tensordict import TensorDictBase
from torch import Tensor

from ..envs.adapters import adapt_env
from ..envs.base import EnvBase
from ..envs.entries.keys import FLAGS, Key
from ..envs.gym_like import GymLikeEnv, StepOutput
from ..envs.utils import single_observation_key
from ..errors import SpaceError
from ..specs import Categorical, Composite, TensorSpec, Unbounded
from ..specs.convert import space_from_spec, spec_from_gym
from .base import BaseEnv, BaseOptions, Step
from .done_info import split_done, to_classic_done
from .spaces import SpaceInfo, info_of_space, space_of_info, to_space_action

__all__ = ["ClassicWrapper", "TensorDictEnv", "from_classic", "to_classic"]


def from_classic(env: BaseEnv, **kwargs: Any) -> ClassicWrapper:
    """Converts a classic environment to a TensorDict environment with "observation", "action", "reward" and all flags.

    Rewards have the environment's `reward_dtype`, usually float64; `DoubleToFloat` converts them to float32.

    Args:
        env: any `BaseEnv`.
        kwargs: those of `ClassicWrapper`.

    Raises:
        TypeError: `env` is no `BaseEnv`.

    >>> from vecrl.classic import GymEnv
    >>> env = from_classic(GymEnv("CartPole-v1"))
    >>> env.rollout(3)["next", "observation"].shape
    torch.Size([3, 4])
    """
    if not isinstance(env, BaseEnv):
        raise TypeError(
            f"Expected a classic environment (vecrl.classic.BaseEnv), got {env!r:.80}. "
            "Use vecrl.convert.to_tensordict for gymnasium and vector environments."
        )
    return ClassicWrapper(env, **kwargs)


class ClassicWrapper(GymLikeEnv):
    """A classic environment as an `EnvBase`, see `from_classic`.

    Args:
        env: any `BaseEnv`. What it returns is copied.
        categorical_action_encoding: discrete actions are indices instead of one-hot vectors.
        kwargs: those of `GymLikeEnv`.
    """

    libname = "classic"

    def __init__(self, env: BaseEnv, categorical_action_encoding: bool = False, **kwargs: Any):
        self._categorical = categorical_action_encoding
        super().__init__(env=env, **kwargs)

    def _build_env(self, env: BaseEnv) -> BaseEnv:  # pyright: ignore[reportIncompatibleMethodOverride]
        if self.batch_size:
            raise SpaceError(f"Expected batch size () for a single environment, got {tuple(self.batch_size)}.")
        self._resets_when_seeded = isinstance(env, TensorDictEnv) and env.env._resets_when_seeded
        return env

    def _make_specs(self, env: BaseEnv) -> None:
        device = self.device or torch.device("cpu")
        to_spec = partial(spec_from_gym, device=device, categorical=self._categorical)
        state_space = space_of_info(env.get_state_info(), is_action=False)
        self.observation_spec = Composite(observation=to_spec(state_space))
        self.action_spec = to_spec(space_of_info(env.get_action_info(), is_action=True))
        self.reward_spec = Unbounded((1,), device, torch.from_numpy(np.empty(0, env.reward_dtype)).dtype)
        self.full_done_spec = Composite({flag: Categorical(2, (1,), device, torch.bool) for flag in FLAGS})

    def _output_transform(self, step_outputs_tuple: tuple[Any, ...]) -> StepOutput:
        state, reward, done, info = step_outputs_tuple
        return state, reward, *split_done(done, info), bool(done), info

    def _reset_output_transform(self, reset_outputs_tuple: Any) -> tuple[Any, dict[str, Any]]:
        return reset_outputs_tuple, {}

    def _set_seed(self, seed: int | None) -> None:
        self._env.seed(seed)


def to_classic(env: EnvBase, observation: Key | None = None, **kwargs: Unpack[BaseOptions]) -> TensorDictEnv:
    """Converts a TensorDict environment to a classic one.

    Args:
        env: an environment without batch dimensions, with one action and one reward.
        observation: the key of the state, if there are several observations; the others are in a step's info.
        kwargs: the options of `BaseEnv`.

    Raises:
        SpaceError: `env` is batched, has several observations, actions, rewards or groups, or has states or actions
            that a classic environment cannot describe, see `GymEnv.get_space_info`.
        TypeError: `env` is no `EnvBase`.

    >>> from vecrl.envs import GymEnv, StepCounter, TransformedEnv
    >>> env = to_classic(TransformedEnv(GymEnv("CartPole-v1"), StepCounter(max_steps=2)), "observation")
    >>> env.reset().shape
    (4,)
    >>> env.step(1)[2:], env.step(1)[2:]
    ((False, {'step_count': array([1])}), (True, {'step_count': array([2]), 'TimeLimit.truncated': True}))
    """
    env = adapt_env(env)
    if not isinstance(env, EnvBase):
        raise TypeError(f"Expected a TensorDict environment (EnvBase), got {env!r:.80}.")
    return TensorDictEnv(env, observation, **kwargs)


class TensorDictEnv(BaseEnv):
    """A TensorDict environment as a classic one, see `to_classic`."""

    def __init__(self, env: EnvBase, observation: Key | None = None, **kwargs: Unpack[BaseOptions]):
        self._key = _validate_env(env, observation)
        self._env = env
        self._other_keys = [key for key in env.observation_keys if key != self._key]
        self._obs_spec, self._action_spec = env.observation_spec[self._key], env.action_spec
        self._spaces = space_from_spec(self._obs_spec), space_from_spec(self._action_spec)
        self._root: TensorDictBase | None = None
        reward = env.full_reward_spec[env.reward_key]
        self.reward_dtype = torch.empty(0, dtype=reward.dtype).numpy().dtype
        self._infos = [info_of_space(space) for space in self._spaces]
        super().__init__(_name_of(env, "env_name"), **kwargs)

    def _create_env(self) -> EnvBase:
        return self._env

    @property
    def simulator(self) -> str:
        """The environment's `simulator` or `libname`, else the name of its class."""
        return _name_of(self.env, "simulator", "libname")

    def seed(self, seed: int | None = None) -> list[int | None]:
        """Seeds the environment; returns the seed in a list."""
        self.env._seed_next_reset(seed)
        return [seed]

    def reset(self) -> np.ndarray:
        self._root = self.env.reset()
        return self._state(self._root)

    def step(self, action: ArrayLike) -> Step:
        """Steps the environment as `GymEnv.step` does; the info contains the other observations by key."""
        if self._root is None:
            raise SpaceError("Expected a reset before the first step, got none. Call reset().")
        encoded_action = self._action_spec.encode(to_space_action(action, self._spaces[1]))
        result = self.env.step(self._root.set(self.env.action_key, encoded_action))
        next_td = result.get("next")
        self._root = self.env.step_mdp(result)
        info = {key: _to_numpy(self.env.observation_spec[key], next_td.get(key)) for key in self._other_keys}
        truncated = next_td.get("truncated", None)
        end_flags = bool(next_td.get("terminated")), truncated is not None and bool(truncated)
        reward = next_td.get(self.env.reward_key).item()
        return self._state(next_td), float(reward), *to_classic_done(*end_flags, info)

    def _state(self, data: TensorDictBase) -> np.ndarray:
        return _to_numpy(self._obs_spec, data.get(self._key))

    def get_state_info(self) -> SpaceInfo:
        """Returns the description of states, see `GymEnv.get_space_info`."""
        return dict(self._infos[0])

    def get_action_info(self) -> SpaceInfo:
        """Returns the description of actions, see `GymEnv.get_space_info`."""
        return dict(self._infos[1])


def _validate_env(env: EnvBase, observation: Key | None) -> Key:
    """Checks that an environment can be a classic one; returns the key of its observation."""
    if env.batch_size:
        raise SpaceError(
            f"Expected a single environment, got batch size {tuple(env.batch_size)}. "
            "Convert a single one; vecrl.convert.to_vector converts the batch."
        )
    key = single_observation_key(env, observation)
    shape = env.full_reward_spec[env.reward_key].shape
    if shape.numel() != 1:
        raise SpaceError(f"Expected a reward that is one number, got shape {tuple(shape)}.")
    return key


def _to_numpy(spec: TensorSpec, value: Tensor) -> np.ndarray:
    """Returns a copy of a value as an array (an index for a one-hot vector)."""
    return np.array(spec.to_numpy(value))


def _name_of(env: EnvBase, *attributes: str) -> str:
    """Returns the first of these attributes that is a non-empty string, else the name of the class."""
    values = (getattr(env, attribute, None) for attribute in attributes)
    return next((value for value in values if isinstance(value, str) and value), type(env).__name__)
