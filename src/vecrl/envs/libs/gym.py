"""One gymnasium environment over TensorDicts.

Observations that are no dict lie under "observation"; those of dicts under their own keys. Actions are one-hot where the
space is discrete, unless categorical ones are asked for. Whatever an environment hands out is copied: it may go on with it.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import torch
from tensordict import TensorDict, TensorDictBase

from ...specs import Categorical, Composite, Unbounded
from ...specs.conversions import spec_from_gym
from ..base import EnvBase
from ..owner import FLAGS


class GymWrapper(EnvBase):
    """A gymnasium environment as an `EnvBase`.

    Args:
        env: what `gymnasium.make` returns, or any `gymnasium.Env`.
        categorical_action_encoding: discrete actions as indices instead of one-hot rows.
        frame_skip: how many steps of the environment make one here; their rewards are added up.
        kwargs: see `EnvBase`.

    >>> env = GymWrapper(gymnasium.make("CartPole-v1"))
    >>> env.set_seed(0)
    795726461
    >>> env.rollout(3)["next", "observation"].shape
    torch.Size([3, 4])
    """

    def __init__(
        self,
        env: Any,
        categorical_action_encoding: bool = False,
        *,
        frame_skip: int = 1,
        device: Any = None,
        **kwargs: Any,
    ):
        super().__init__(device=device, **kwargs)
        if frame_skip < 1:
            raise ValueError(f"Expected frame_skip of 1 or more, but {frame_skip} came.")
        self._env = env
        self._seed: int | None = None
        self.frame_skip = frame_skip
        where = self.device or torch.device("cpu")
        seen = spec_from_gym(env.observation_space, device=where, categorical=categorical_action_encoding)
        self._flat = not isinstance(seen, Composite)
        self.observation_spec = Composite(observation=seen) if self._flat else seen
        self.action_spec = spec_from_gym(env.action_space, device=where, categorical=categorical_action_encoding)
        self.reward_spec = Unbounded((1,), device=where)
        self.full_done_spec = Composite({flag: Categorical(2, (1,), device=where, dtype=torch.bool) for flag in FLAGS})

    def _read(self, obs: Any) -> dict[str, Any]:
        spec = self.observation_spec
        if self._flat:
            return {"observation": spec["observation"].encode(obs)}
        encoded = spec.encode(obs)
        return dict(encoded.items())

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        seed, self._seed = self._seed, None
        obs, _ = self._env.reset(seed=seed, **kwargs)
        return TensorDict(self._read(obs), self.batch_size, device=self.device)

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        action = self.action_spec.to_numpy(tensordict.get(self.action_key))
        total = 0.0
        for _ in range(self.frame_skip):
            obs, reward, terminated, truncated, _ = self._env.step(action)
            total += float(reward)
            if terminated or truncated:
                break
        data = self._read(obs)
        data["reward"] = torch.tensor([total])
        data["terminated"], data["truncated"] = torch.tensor([terminated]), torch.tensor([truncated])
        data["done"] = torch.tensor([terminated or truncated])
        return TensorDict(data, self.batch_size, device=self.device)

    def _set_seed(self, seed: int | None) -> None:
        self._seed = seed

    def close(self, *, raise_if_closed: bool = False) -> None:
        """Close the environment; twice is harmless unless `raise_if_closed`."""
        if not self.is_closed:
            self._env.close()
        super().close(raise_if_closed=raise_if_closed)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._env}, device={self.device})"


class GymEnv(GymWrapper):
    """The same, by name; further keywords go to `gymnasium.make`."""

    def __init__(self, env_name: str, categorical_action_encoding: bool = False, **kwargs: Any):
        own = {"frame_skip", "device", "run_type_checks", "spec_locked", "allow_done_after_reset", "auto_reset"}
        ours = {name: kwargs.pop(name) for name in own & kwargs.keys()}
        super().__init__(gymnasium.make(env_name, **kwargs), categorical_action_encoding, **ours)
