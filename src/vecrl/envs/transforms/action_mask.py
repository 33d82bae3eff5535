"""`ActionMask`: random actions that an environment allows, row by row."""

from __future__ import annotations

from typing import Any

from tensordict import TensorDictBase
from torch import Tensor

from ...errors import SpaceError
from ...specs import Categorical, Composite, MultiCategorical, MultiOneHot, OneHot
from ..row_masks import RowMasks
from ..spec_container import Key
from .base import Transform

_MASKABLE = (Categorical, OneHot, MultiOneHot, MultiCategorical)


class ActionMask(Transform):
    """Has `rand_action` draw among the actions that are allowed, by the mask in the TensorDict that it is given.

    The mask of what came last is in the action spec too, for policies that draw from it. In a batch of environments it
    belongs around the batch, not around each of them.

    Args:
        action_key: of discrete actions (`Categorical`, `OneHot`, `MultiCategorical` or `MultiOneHot`).
        mask_key: of the masks, `[*batch, ..., options]` bool: what the spec's `update_mask` takes.

    Raises:
        SpaceError: on use, where the actions are of another kind.
        RuntimeError: on use outside an environment.

    >>> from tensordict import TensorDict
    >>> import torch
    >>> from vecrl.envs import EnvBase
    >>> from vecrl.specs import Binary
    >>> class Even(EnvBase):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.action_spec = Categorical(4)
    ...         self.observation_spec = Composite(action_mask=Binary(4, (4,), dtype=torch.bool))
    ...     def _reset(self, tensordict=None):
    ...         return TensorDict({"action_mask": torch.tensor([True, False, True, False])})
    ...     def _step(self, tensordict):
    ...         return self._reset().update({"reward": torch.zeros(1), "done": torch.zeros(1, dtype=torch.bool)})
    ...     def _set_seed(self, seed): ...
    >>> Even().append_transform(ActionMask()).rollout(20)["action"].remainder(2).any()
    tensor(False)
    """

    preserves_done = True
    _masks_actions = True

    def __init__(self, action_key: Key = "action", mask_key: Key = "action_mask"):
        super().__init__()
        self.action_key = action_key
        self.mask_key = mask_key
        self._masked_spec: Any = None

    def _mask_action_spec(self, specs: Composite, tensordict: TensorDictBase) -> Composite:
        mask = tensordict.get(self.mask_key, None)
        spec = specs.get(self.action_key, None)
        if mask is None or spec is None:
            return specs
        batch = tensordict.batch_size
        if len(specs.shape) < len(batch):  # an environment that takes any batch
            specs = specs.expand(*batch, *specs.shape).clone()
            spec = specs[self.action_key]
        spec.update_mask(mask)
        return specs

    def _step(self, tensordict: TensorDictBase, next_tensordict: TensorDictBase) -> TensorDictBase:
        mask = tensordict.get("_step", None)
        self._update_mask(tensordict, next_tensordict, RowMasks({} if mask is None else {(): mask}, [()]))
        return next_tensordict

    def _reset(self, tensordict: TensorDictBase, tensordict_reset: TensorDictBase) -> TensorDictBase:
        self._update_mask(
            tensordict,
            tensordict_reset,
            RowMasks.from_tensordict(tensordict, "_reset", self._require_parent().done_prefixes),
        )
        return tensordict_reset

    def _update_mask(self, previous: TensorDictBase, current: TensorDictBase, masks: RowMasks) -> None:
        """Have the action spec know the masks that came, of the rows that are meant."""
        mask: Tensor | None = current.get(self.mask_key, None)
        spec = self._masked_spec
        if mask is None or spec is None or current.batch_size != self._require_parent().batch_size:
            return
        if masks and previous.get(self.mask_key, None) is not None:
            mask = masks.select(current.select(self.mask_key), previous).get(self.mask_key)
        spec.update_mask(mask)

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Not for stored data."""
        self._require_parent()
        return tensordict

    def transform_action_spec(self, action_spec: Composite) -> Composite:
        """The same, checked; its masks follow from what comes."""
        spec = action_spec[self.action_key]
        if not isinstance(spec, _MASKABLE):
            names = ", ".join(kind.__name__ for kind in _MASKABLE)
            raise SpaceError(f"Expected actions of {names} at {self.action_key!r}, but {spec!r} came.")
        if self.mask_key not in self._require_parent().full_observation_spec:
            raise SpaceError(f"Expected a mask at {self.mask_key!r}, but there is no such observation.")
        self._masked_spec = spec
        return action_spec
