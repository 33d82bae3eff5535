"""An environment over a model that predicts the distribution of the next observation."""

from __future__ import annotations

from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import TensorDictModuleBase

from ...errors import SpaceError
from ...specs import Composite, Unbounded
from ..base import EnvBase
from ..entries.keys import Key
from .base import ModelBasedEnvBase


class ImaginedEnv(ModelBasedEnvBase):
    """An environment over a learned model that predicts mean and covariance of the next observation.

    An episode never ends; `max_steps` of `rollout` limits it. It starts from an observation of `base_env`, with a
    covariance of zeros. The reward is what the model writes, or else 0.

    Args:
        world_model_module: reads "action" and "observation", which has the entries "mean" `[*batch, n]` and "var"
            `[*batch, n, n]`, and writes "mean" and "var" under `next_observation_key`.
        base_env: the environment that the model is of. Its specs are copied, and resets call its `reset`.
        batch_size: the batch size; by default that of `base_env`, or `[1]` if that has none.
        next_observation_key: the key of the predicted observation.
        kwargs: see `ModelBasedEnvBase`.

    Raises:
        SpaceError: `base_env` has several observations, or one that is no vector.

    >>> from tensordict.nn import TensorDictModule
    >>> from vecrl.envs import GymEnv
    >>> def predict(action, observation):
    ...     return observation["mean"], observation["var"] + 0.1 * torch.eye(3)
    >>> model = TensorDictModule(
    ...     predict, ["action", "observation"], [("next", "observation", "mean"), ("next", "observation", "var")]
    ... )
    >>> env = ImaginedEnv(model, GymEnv("Pendulum-v1"))
    >>> env.rollout(5)["next", "observation", "var"][0, :, 0, 0]
    tensor([0.1000, 0.2000, 0.3000, 0.4000, 0.5000])
    """

    def __init__(
        self,
        world_model_module: TensorDictModuleBase,
        base_env: EnvBase,
        batch_size: Any = None,
        next_observation_key: Key = ("next", "observation"),
        **kwargs: Any,
    ):
        if batch_size is None:
            batch_size = base_env.batch_size or torch.Size([1])
        batch_size = torch.Size([batch_size] if isinstance(batch_size, int) else batch_size)
        super().__init__(world_model_module, batch_size=batch_size, **kwargs)
        self.base_env = base_env
        self.next_observation_key = next_observation_key
        if base_env.batch_size not in (batch_size, torch.Size([])):
            raise SpaceError(
                f"Expected a base_env of batch size {tuple(batch_size)} or none, got {tuple(base_env.batch_size)}."
            )
        self._set_specs()

    def _set_specs(self) -> None:
        env, batch = self.base_env, self.batch_size
        keys = env.observation_keys
        if len(keys) != 1 or len(env.observation_spec[keys[0]].shape) != env.batch_dims + 1:
            raise SpaceError(
                f"Expected a base_env with one vector as its observation, got "
                f"{ {str(key): tuple(env.observation_spec[key].shape) for key in keys} }. Use CatTensors to make one."
            )
        self._base_key = keys[0]
        size, dtype = env.observation_spec[keys[0]].shape[-1], env.observation_spec[keys[0]].dtype
        observation = Composite(
            mean=Unbounded((*batch, size), dtype=dtype, device=self.device),
            var=Unbounded((*batch, size, size), dtype=dtype, device=self.device),
            shape=batch,
        )
        self.observation_spec = Composite(observation=observation, shape=batch)
        self.state_spec = self.observation_spec.clone()
        for name in ("full_action_spec", "full_reward_spec", "full_done_spec"):
            spec = getattr(env, name).to(self.device)
            setattr(self, name, spec.clone() if env.batch_size else spec.expand(batch))

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        obs = self.base_env.reset(**kwargs).get(self._base_key).to(self.device)
        if not self.base_env.batch_size:
            obs = obs.expand(*self.batch_size, *obs.shape).clone()
        zeros = torch.zeros(*obs.shape, obs.shape[-1], dtype=obs.dtype, device=self.device)
        observation = TensorDict({"mean": obs, "var": zeros}, self.batch_size)
        return TensorDict({"observation": observation}, self.batch_size, device=self.device)

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        output = self._predict(tensordict.copy())
        predicted = output.get(self.next_observation_key, None)
        if not isinstance(predicted, TensorDictBase):
            raise SpaceError(
                f"Expected a model that writes 'mean' and 'var' under {self.next_observation_key!r}, got one that "
                f"writes {self.world_model.out_keys}."
            )
        result = TensorDict({"observation": predicted.select("mean", "var")}, self.batch_size, device=self.device)
        for key in self.reward_keys:
            written = output.get(("next", key), output.get(key, None))
            result.set(key, self.full_reward_spec[key].zero() if written is None else written)
        return result.update(self.full_done_spec.zero())

    def _set_seed(self, seed: int | None) -> None:
        super()._set_seed(seed)
        self.base_env.set_seed(seed)
