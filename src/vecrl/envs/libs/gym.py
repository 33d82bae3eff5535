"""One gymnasium environment over TensorDicts.

Observations that are no dict lie under "observation"; those of dicts under their own keys. Actions are one-hot where
the space is discrete, unless categorical ones are asked for. Whatever an environment hands out is copied, since it may
go on with it.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase

from ...engine.layout import Layout
from ...errors import SpaceError
from ...specs import Categorical, Composite, TensorSpec, Unbounded
from ...specs.conversions import spec_from_gym
from ..base import EnvBase
from ..lifting import Lifted
from ..owner import FLAGS
from ..tape import record


class GymWrapper(EnvBase):
    """A gymnasium environment as an `EnvBase`.

    Args:
        env: what `gymnasium.make` returns, or any `gymnasium.Env`.
        categorical_action_encoding: discrete actions and observations as indices instead of one-hot rows.
        frame_skip: how many steps of the environment make one here; their rewards are added up.
        kwargs: see `EnvBase`; environments are not batched here.

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
        if self.batch_size:
            raise SpaceError(f"Expected a batch size of () for one environment, but {tuple(self.batch_size)} came.")
        if frame_skip < 1:
            raise ValueError(f"Expected frame_skip of 1 or more, but {frame_skip} came.")
        self._env = env
        self._seed: int | None = None
        self.frame_skip = frame_skip
        where = self.device or torch.device("cpu")
        self._layout = Layout(env.observation_space)
        seen = spec_from_gym(env.observation_space, device=where, categorical=categorical_action_encoding)
        self.observation_spec = seen if isinstance(seen, Composite) else Composite(observation=seen)
        self.action_spec = spec_from_gym(env.action_space, device=where, categorical=categorical_action_encoding)
        self.reward_spec = Unbounded((1,), device=where)
        self.full_done_spec = Composite({flag: Categorical(2, (1,), device=where, dtype=torch.bool) for flag in FLAGS})
        flat = self._layout.flat
        keys = [("observation",) if flat else tuple(map(str, leaf.path)) for leaf in self._layout.leaves]
        self._leaves: list[tuple[Any, TensorSpec]] = [(key, self.observation_spec[key]) for key in keys]

    # -- step by step

    def _read(self, obs: Any) -> TensorDict:
        data = TensorDict({}, self.batch_size, device=self.device)
        for (key, spec), value in zip(self._leaves, self._layout.split(obs), strict=True):
            data.set(key, spec.encode(value))
        return data

    def _begin(self, **kwargs: Any) -> Any:
        seed, self._seed = self._seed, None
        return self._env.reset(seed=seed, **kwargs)[0]

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        return self._read(self._begin(**kwargs))

    def _act(self, action: Any) -> tuple[Any, float, bool, bool]:
        obs, reward, terminated, truncated, _ = self._env.step(action)
        for _ in range(self.frame_skip - 1):
            if terminated or truncated:
                break
            obs, more, terminated, truncated, _ = self._env.step(action)
            reward += more
        return obs, float(reward), bool(terminated), bool(truncated)

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        actions = tensordict.select(*self.action_keys) if len(self.action_keys) > 1 else tensordict.get(self.action_key)
        obs, reward, terminated, truncated = self._act(_plain(self.action_spec.to_numpy(actions)))
        data = self._read(obs)
        data.set("reward", torch.tensor([reward]))
        for flag, value in zip(FLAGS, (terminated or truncated, terminated, truncated), strict=True):
            data.set(flag, torch.tensor([value]))
        return data

    def _set_seed(self, seed: int | None) -> None:
        self._seed = seed

    def _lifted(self) -> Lifted | None:
        own = ("reset", "step", "_reset", "_step", "_begin", "_act", "_read", "maybe_reset", "set_seed", "_set_seed")
        steady = all(getattr(type(self), name) is getattr(GymWrapper, name) for name in own)
        plain = self.frame_skip == 1 and self._begun is None and not self.run_type_checks
        if not (steady and plain) or len(self.action_keys) > 1 or self._layout.opaque:
            return None
        return Lifted(self._env, tuple(key for key, _ in self._leaves))

    # -- a rollout at once

    def _play(self, steps: int, actions: Any, stop: bool) -> TensorDictBase | None:
        steady = type(self)._step is GymWrapper._step and type(self)._reset is GymWrapper._reset
        if not steady or self._layout.opaque or len(self.action_keys) > 1 or self._begun is not None:
            return None
        actions = self.action_spec.rand((steps,)) if actions is None else actions[:steps]
        ready = self.action_spec.expand(len(actions), *self.action_spec.shape).to_numpy(actions)
        tape = record(self._begin, self._act, list(ready), self._layout, stop)
        n = len(tape.reward)
        ends = torch.from_numpy(tape.terminated), torch.from_numpy(tape.truncated)
        flags = dict(zip(FLAGS, (ends[0] | ends[1], *ends), strict=True))
        following = self._unrolled(tape.next_obs, n, {flag: value.unsqueeze(-1) for flag, value in flags.items()})
        following.set("reward", torch.from_numpy(tape.reward).to(self.reward_spec.dtype).unsqueeze(-1))
        root = self._unrolled(tape.obs, n, {flag: torch.zeros(n, 1, dtype=torch.bool) for flag in FLAGS})
        root.set(self.action_key, actions[:n])
        root.set("next", following)
        root.names = ["time"]
        return root

    def _unrolled(self, leaves: Any, n: int, more: dict[str, Any]) -> TensorDict:
        data = TensorDict(more, [n], device=self.device)
        for (key, spec), values in zip(self._leaves, leaves, strict=True):
            whole = _as_it_is(spec, values)
            data.set(key, torch.from_numpy(values) if whole else spec.expand(n, *spec.shape).encode(values))
        return data

    def close(self, *, raise_if_closed: bool = False) -> None:
        """Close the environment; twice is harmless unless `raise_if_closed`."""
        if not self.is_closed:
            self._env.close()
        super().close(raise_if_closed=raise_if_closed)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._env}, device={self.device})"


class GymEnv(GymWrapper):
    """A gymnasium environment by its name, see `GymWrapper`.

    Args:
        env_name: as `gymnasium.make` takes it.
        categorical_action_encoding: see `GymWrapper`.
        kwargs: those of `GymWrapper` and `EnvBase`; the others go to `gymnasium.make`.

    >>> GymEnv("Pendulum-v1", g=9.81).rollout(5).shape
    torch.Size([5])
    """

    _OWN = ("frame_skip", "device", "batch_size", "run_type_checks", "allow_done_after_reset", "spec_locked")

    def __init__(self, env_name: str, categorical_action_encoding: bool = False, **kwargs: Any):
        own = {name: kwargs.pop(name) for name in (*self._OWN, "auto_reset", "auto_reset_replace") if name in kwargs}
        super().__init__(gymnasium.make(env_name, **kwargs), categorical_action_encoding, **own)


def _plain(action: Any) -> Any:
    """A number rather than an array without dimensions, which some environments cannot look up."""
    return action[()] if isinstance(action, np.ndarray) else action


def _as_it_is(spec: TensorSpec, values: Any) -> bool:
    return spec.shape == values.shape[1:] and torch.from_numpy(values[:0]).dtype == spec.dtype
