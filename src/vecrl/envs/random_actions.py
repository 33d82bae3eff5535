"""`RandomActions`: draws the actions of environments from their specs. It must not know resets and steps."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from tensordict import TensorDict, TensorDictBase

from .env_specs import EnvSpecs
from .fast_paths import bypassed_by
from .row_masks import merge_into
from .step_mdp import leaves_of


class RandomActions(EnvSpecs):
    """The base of environments that draws their actions."""

    @bypassed_by("_rollout_at_once")
    def rand_action(self, tensordict: TensorDictBase | None = None) -> TensorDictBase:
        """Writes a random action for every row into `tensordict` (by default a new one) and returns it."""
        if tensordict is None:
            tensordict = TensorDict({}, self.batch_size, device=self.device)
        return merge_into(tensordict, self.full_action_spec.rand(self._extra_batch_shape(tensordict)))

    @property
    def _has_custom_rand_action(self) -> bool:
        """Whether a subclass overrides `rand_action`, so that it may do more than sample from the action specs."""
        return type(self).rand_action is not RandomActions.rand_action

    def _seeded_rand_action(self, tensordict: TensorDictBase, seed: int) -> TensorDictBase:
        """Returns only the actions of `rand_action`, drawn with `seed`; leaves torch's CPU generator unchanged."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return self.rand_action(tensordict).select(*leaves_of(self.full_action_spec))

    def _extra_batch_shape(self, tensordict: TensorDictBase) -> Sequence[int]:
        """Returns the leading sizes of `tensordict` that the specs do not have."""
        return () if self.batch_locked or self.batch_size else tensordict.batch_size
