"""What the transforms of values, keys and shapes share: they do at resets what they do at steps."""

from __future__ import annotations

from tensordict import TensorDictBase
from torch import Tensor

from ..spec_container import Key
from .base import Transform


class StatelessTransform(Transform):
    """The base of transforms whose `_call` says all: it is given what resets give, too."""

    preserves_done = True

    def _reset(self, tensordict: TensorDictBase, tensordict_reset: TensorDictBase) -> TensorDictBase:
        return self._call_allow_missing(tensordict_reset)

    def _reset_env_preprocess(self, tensordict: TensorDictBase | None) -> TensorDictBase | None:
        """Environments without a state of their own may begin from what they are given."""
        if tensordict is None or not self._has_inverse:
            return tensordict
        allow_missing, self._allow_missing = self._allow_missing, True
        try:
            return self._inv_call(tensordict.copy())
        finally:
            self._allow_missing = allow_missing

    @property
    def supports_rollout(self) -> bool:
        return self.elementwise and self._has_no_step_hooks

    def _apply_to_rollout(self, root: TensorDictBase, next_td: TensorDictBase, is_first: Tensor) -> None:
        super()._apply_to_rollout(root, next_td, is_first)


class ObservationTransform(StatelessTransform):
    """The base of transforms of observations: where no `in_keys` are given, they are all that the environment has.

    Args:
        in_keys, out_keys, in_keys_inv, out_keys_inv: see `Transform`.

    Raises:
        ValueError: stored data came, and neither `in_keys` nor an environment say which entries are meant.
    """

    def _default_in_keys(self) -> list[Key]:
        parent = self.parent
        return [] if parent is None else list(parent.observation_keys)

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Change stored data: the entries `in_keys` of the root, in place; returns it."""
        self._check_keys()
        return self._call(tensordict)

    def _check_keys(self) -> None:
        if self._in_keys is None and self.container is None:
            raise ValueError(f"Outside an environment {type(self).__name__} cannot know what is meant: give in_keys.")
