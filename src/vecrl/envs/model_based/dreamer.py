"""Environments of Dreamer: imagination in the latent space of a recurrent state-space model.

Source: Hafner et al., "Dream to Control: Learning Behaviors by Latent Imagination", ICLR 2020.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import TensorDictModuleBase

from ...specs import Composite, Unbounded
from ..entries.keys import Key
from ..spec_inference import make_composite_from_td
from ..transforms.base import Transform
from .base import ModelBasedEnvBase


class DreamerEnv(ModelBasedEnvBase):
    """The latent space of a recurrent state-space model as an environment that never ends.

    Its observations are "state" `[*batch, *prior_shape]` and "belief" `[*batch, *belief_shape]`, float32. A reset keeps
    those of its input, and starts from zeros without one.

    Args:
        world_model: reads "state", "belief" and "action", and writes the next "state" and "belief", and "reward".
        prior_shape, belief_shape: the shapes of the stochastic and of the deterministic state.
        obs_decoder: a module that reads "state" and "belief", and writes an observation, for `decode_obs`.
        device: the device of everything.
        batch_size: see `ModelBasedEnvBase`.

    Call `set_specs_from_env` to set the specs of actions, rewards and done flags.
    """

    _supports_set_state = True
    _copied_specs = ("action", "reward", "done")  # the observations are the latent state

    def __init__(
        self,
        world_model: TensorDictModuleBase,
        prior_shape: tuple[int, ...],
        belief_shape: tuple[int, ...],
        obs_decoder: TensorDictModuleBase | None = None,
        device: Any = "cpu",
        batch_size: Any = None,
    ):
        super().__init__(world_model, device=device, batch_size=batch_size)
        self.obs_decoder = None if obs_decoder is None else obs_decoder.to(self.device)
        self.prior_shape, self.belief_shape = tuple(prior_shape), tuple(belief_shape)
        batch = self.batch_size
        self.observation_spec = Composite(
            state=Unbounded((*batch, *self.prior_shape), device=self.device),
            belief=Unbounded((*batch, *self.belief_shape), device=self.device),
            shape=batch,
        )
        self.state_spec = self.observation_spec.clone()

    def _reset(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, tensordict: TensorDictBase | None = None, *, set_state: bool | None = None
    ) -> TensorDictBase:
        shape = self.batch_size if tensordict is None else tensordict.batch_size
        latents = self.state_spec.zero(() if self.batch_locked else shape)
        if tensordict is not None and set_state is not False and tensordict.get("_reset", None) is None:
            latents.update(tensordict.select(*latents.keys(), strict=False))
        return latents

    def decode_obs(self, tensordict: TensorDictBase, compute_latents: bool = False) -> TensorDictBase:
        """Writes the observation that the decoder makes of "state" and "belief".

        Args:
            tensordict: has "state" and "belief"; it is written to and returned.
            compute_latents: compute these from an action first, by the world model.

        Raises:
            ValueError: there is no decoder.
        """
        if self.obs_decoder is None:
            raise ValueError("Expected a DreamerEnv with an obs_decoder, got none. Give one to the constructor.")
        if compute_latents:
            tensordict = self._predict(tensordict)
        return self.obs_decoder(tensordict)


class DreamerDecoder(Transform):
    """Adds the decoded observation to the results of resets and steps of a `DreamerEnv`.

    Args:
        in_keys, out_keys, in_keys_inv, out_keys_inv: not used; the decoder has its own keys.

    Raises:
        TypeError: on use, if the environment is not a `DreamerEnv`.
    """

    _checked_keys = ()

    def __init__(
        self,
        in_keys: Sequence[Key] | None = None,
        out_keys: Sequence[Key] | None = None,
        in_keys_inv: Sequence[Key] | None = None,
        out_keys_inv: Sequence[Key] | None = None,
    ):
        super().__init__(in_keys, out_keys, in_keys_inv, out_keys_inv)

    @property
    def _dreamer(self) -> DreamerEnv:
        env: Any = self.parent
        while env is not None and not isinstance(env, DreamerEnv):
            env = getattr(env, "base_env", None)
        if env is None:
            raise TypeError(f"Expected DreamerDecoder in a DreamerEnv, got {self.parent!r:.80}.")
        return env

    def _call(self, next_tensordict: TensorDictBase) -> TensorDictBase:
        return self._dreamer.decode_obs(next_tensordict)

    def _reset(self, tensordict: TensorDictBase, tensordict_reset: TensorDictBase) -> TensorDictBase:
        return self._call(tensordict_reset)

    def transform_observation_spec(self, observation_spec: Composite) -> Composite:
        """Adds the entries that the decoder writes, as found by one call."""
        env = self._dreamer
        assert env.obs_decoder is not None
        with torch.no_grad():
            example: TensorDict = env.decode_obs(env.state_spec.zero())
        decoded = make_composite_from_td(example.select(*env.obs_decoder.out_keys), unsqueeze_null_shapes=False)
        observation_spec.update(decoded)
        return observation_spec
