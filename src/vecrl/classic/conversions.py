"""Classic environments as ones over TensorDicts (dialect 3), and the other way round.

Both ways keep every bit of states and rewards, and tell the two ends of an episode apart.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from tensordict import TensorDictBase

from ..envs.base import EnvBase
from ..envs.gym_like import GymLikeEnv, Outcome
from ..envs.owner import FLAGS, Key, sole_observation
from ..errors import SpaceError
from ..specs import Categorical, Composite, Unbounded
from ..specs.conversions import space_from_spec, spec_from_gym
from .base import BaseEnv, Step
from .ends import joined, parted
from .spaces import fitted, info_of_space, space_of_info

__all__ = ["ClassicWrapper", "TensorDictEnv", "from_classic", "to_classic"]


def from_classic(env: BaseEnv, **kwargs: Any) -> ClassicWrapper:
    """A classic environment as one over TensorDicts, with "observation", "action", "reward" and all three flags.

    Rewards are of float64, in which none loses a digit; `DoubleToFloat` makes them what networks want.

    Args:
        env: any `BaseEnv`.
        kwargs: those of `ClassicWrapper`.

    Raises:
        TypeError: something else.

    >>> from vecrl.classic import GymEnv
    >>> env = from_classic(GymEnv("CartPole-v1"))
    >>> env.rollout(3)["next", "observation"].shape
    torch.Size([3, 4])
    """
    if not isinstance(env, BaseEnv):
        raise TypeError(
            f"Expected a classic environment, a vecrl.classic.BaseEnv, but {env!r:.80} came. "
            "vecrl.dialects.to_tensordict takes gymnasium's and vector environments."
        )
    return ClassicWrapper(env, **kwargs)


class ClassicWrapper(GymLikeEnv):
    """A classic environment as an `EnvBase`, see `from_classic`.

    Args:
        env: any `BaseEnv`. What it returns is copied.
        categorical_action_encoding: choices as indices instead of one-hot rows.
        kwargs: see `GymLikeEnv`.
    """

    libname = "classic"

    def __init__(self, env: BaseEnv, categorical_action_encoding: bool = False, **kwargs: Any):
        self._categorical = categorical_action_encoding
        super().__init__(env=env, **kwargs)

    def _build_env(self, env: BaseEnv) -> BaseEnv:  # pyright: ignore[reportIncompatibleMethodOverride]
        if self.batch_size:
            raise SpaceError(f"Expected a batch size of () for one environment, but {tuple(self.batch_size)} came.")
        return env

    def _make_specs(self, env: BaseEnv) -> None:
        where = self.device or torch.device("cpu")
        how: dict[str, Any] = {"device": where, "categorical": self._categorical}
        seen = space_of_info(env.get_state_info(), acted=False)
        self.observation_spec = Composite(observation=spec_from_gym(seen, **how))
        self.action_spec = spec_from_gym(space_of_info(env.get_action_info(), acted=True), **how)
        self.reward_spec = Unbounded((1,), where, torch.from_numpy(np.empty(0, env.reward_dtype)).dtype)
        self.full_done_spec = Composite({flag: Categorical(2, (1,), where, torch.bool) for flag in FLAGS})

    def _output_transform(self, step_outputs_tuple: tuple[Any, ...]) -> Outcome:
        state, reward, done, info = step_outputs_tuple
        return state, reward, *parted(done, info), bool(done), info

    def _reset_output_transform(self, reset_outputs_tuple: Any) -> tuple[Any, dict[str, Any]]:
        return reset_outputs_tuple, {}

    def _set_seed(self, seed: int | None) -> None:
        self._env.seed(seed)


def to_classic(env: EnvBase, observation: Key | None = None, **kwargs: Any) -> TensorDictEnv:
    """An environment over TensorDicts as a classic one.

    Args:
        env: without batch dimensions, with one action and one reward.
        observation: which entry the state is, where there are several; the others come in a step's info.
        kwargs: the options of `BaseEnv`.

    Raises:
        SpaceError: a batch of environments; several observations, actions, rewards or groups; states or actions that
            a classic environment cannot say, see `GymEnv.get_space_info`.
        TypeError: something else than an `EnvBase`.

    >>> from vecrl.envs import GymEnv, StepCounter, TransformedEnv
    >>> env = to_classic(TransformedEnv(GymEnv("CartPole-v1"), StepCounter(max_steps=2)), "observation")
    >>> env.reset().shape
    (4,)
    >>> env.step(1)[2:], env.step(1)[2:]
    ((False, {'step_count': array([1])}), (True, {'step_count': array([2]), 'TimeLimit.truncated': True}))
    """
    if not isinstance(env, EnvBase):
        raise TypeError(f"Expected an environment over TensorDicts, an EnvBase, but {env!r:.80} came.")
    return TensorDictEnv(env, observation, **kwargs)


class TensorDictEnv(BaseEnv):
    """An environment over TensorDicts as a classic one, see `to_classic`."""

    def __init__(self, env: EnvBase, observation: Key | None = None, **kwargs: Any):
        self._key = _checked(env, observation)
        self._given = env
        self._beside: list[Any] = [key for key in env.observation_keys if key != self._key]
        self._seen, self._acted = env.observation_spec[self._key], env.action_spec
        self._spaces = space_from_spec(self._seen), space_from_spec(self._acted)
        self._root: TensorDictBase | None = None
        reward = env.full_reward_spec[env.reward_key]
        self.reward_dtype = torch.empty(0, dtype=reward.dtype).numpy().dtype
        self._infos = [info_of_space(space) for space in self._spaces]
        super().__init__(_told(env, "env_name") or type(env).__name__, **kwargs)

    def _create_env(self) -> EnvBase:
        return self._given

    @property
    def simulator(self) -> str:
        """What the environment says, or the library that it is of."""
        return _told(self.env, "simulator") or _told(self.env, "libname") or type(self.env).__name__

    def seed(self, seed: int | None = None) -> list[int | None]:
        """Seed the environment; returns the seed in a list."""
        self.env.set_seed(seed)
        return [seed]

    def reset(self) -> np.ndarray:
        """Begin an episode; its first state, an array of the caller's own."""
        self._root = self.env.reset()
        return self._state(self._root)

    def step(self, action: Any) -> Step:
        """Take an action, see `GymEnv.step`; further observations are in the info, by their keys."""
        if self._root is None:
            raise SpaceError("Expected a reset before the first step.")
        encoded = self._acted.encode(fitted(action, self._spaces[1]))
        stepped = self.env.step(self._root.set(self.env.action_key, encoded))
        following: Any = stepped.get("next")
        self._root = self.env.step_mdp(stepped)
        info = {key: _own(self.env.observation_spec[key], following.get(key)) for key in self._beside}
        truncated = following.get("truncated", None)
        ends = bool(following.get("terminated")), truncated is not None and bool(truncated)
        reward = following.get(self.env.reward_key).item()
        return self._state(following), float(reward), *joined(*ends, info)

    def _state(self, data: Any) -> np.ndarray:
        return np.asarray(_own(self._seen, data.get(self._key)))

    def get_state_info(self) -> dict[str, Any]:
        """What states look like, see `GymEnv.get_space_info`."""
        return dict(self._infos[0])

    def get_action_info(self) -> dict[str, Any]:
        """What actions look like, see `GymEnv.get_space_info`."""
        return dict(self._infos[1])


def _checked(env: EnvBase, observation: Key | None) -> Key:
    """The observation of what can be a classic environment."""
    if env.batch_size:
        raise SpaceError(
            f"Expected a single environment, as classic ones are, but its batch size is {tuple(env.batch_size)}. "
            "Convert one of those that the batch is made of; vecrl.dialects.to_vector converts the whole of it."
        )
    key = sole_observation(env, observation)
    shape = env.full_reward_spec[env.reward_key].shape
    if shape.numel() != 1:
        raise SpaceError(f"Expected a reward that is one number, but its shape is {tuple(shape)}.")
    return key


def _own(spec: Any, value: Any) -> Any:
    """A value as an array (an index, where it is one-hot) that shares no memory with it."""
    return np.array(spec.to_numpy(value))


def _told(env: Any, name: str) -> str | None:
    found = getattr(env, name, None)
    return found if isinstance(found, str) else None
