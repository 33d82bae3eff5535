"""`ObservationTransform`: the base of transforms of observations. It must not know single transforms."""

from __future__ import annotations

from tensordict import TensorDictBase

from ..keys import Key
from .base import StatelessTransform

__all__ = ["ObservationTransform"]


class ObservationTransform(StatelessTransform):
    """The base of transforms of observations. The default `in_keys` are all observations of the environment.

    Args:
        in_keys, out_keys, in_keys_inv, out_keys_inv: as in `Transform`.

    Raises:
        ValueError: on use with stored data, if there are neither `in_keys` nor an environment.
    """

    _kinds = ("observation", "action", "state")

    def _default_in_keys(self) -> list[Key]:
        parent = self.parent
        return [] if parent is None else list(parent.observation_keys)

    def _removable(self, keys: list[Key]) -> list[Key]:
        """Returns the keys that the next step of the environment does not need."""
        parent = self.parent
        return keys if parent is None else [key for key in keys if key not in parent.state_keys]

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        if self._in_keys is None and self.container is None:
            raise ValueError(
                f"Expected {type(self).__name__} outside an environment to have in_keys, got none. Give in_keys."
            )
        return self._call(tensordict)
