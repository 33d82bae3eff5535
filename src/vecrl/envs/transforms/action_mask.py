"""`ActionMask`: restricts random actions to those that the environment allows in each row.

It must not know how policies choose actions.
"""

from __future__ import annotations

from typing import Any

from tensordict import TensorDictBase
from torch import Tensor

from ...errors import SpaceError
from ...specs import Categorical, Composite, MultiCategorical, MultiOneHot, OneHot
from ..keys import Key
from ..row_masks import RowMasks
from .base import Transform

__all__ = ["ActionMask"]

_MASKABLE = (Categorical, OneHot, MultiOneHot, MultiCategorical)


class ActionMask(Transform):
    """Makes `rand_action` sample only actions that the mask in its input TensorDict allows.

    The last mask is also set in the action spec, for policies that sample from it. In a batch of environments, append
    the transform to the batch and not to each environment.

    Args:
        action_key: the key of discrete actions (`Categorical`, `OneHot`, `MultiCategorical` or `MultiOneHot`).
        mask_key: the key of the masks, `[*batch, ..., options]` bool, as the spec's `update_mask` takes them. If an
            action is one of all combinations of several choices, `[*batch, options 1, options 2, …]`.

    Raises:
        SpaceError: on use, if the actions have another spec.
        RuntimeError: on use outside an environment.

    >>> from tensordict import TensorDict
    >>> import torch
    >>> from vecrl.envs import EnvBase
    >>> from vecrl.specs import Binary, Unbounded
    >>> class Even(EnvBase):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.action_spec = Categorical(4)
    ...         self.observation_spec = Composite(action_mask=Binary(4, (4,), dtype=torch.bool))
    ...         self.reward_spec = Unbounded((1,))
    ...     def _reset(self, tensordict=None):
    ...         return TensorDict({"action_mask": torch.tensor([True, False, True, False])})
    ...     def _step(self, tensordict):
    ...         return self._reset().update({"reward": torch.zeros(1), "done": torch.zeros(1, dtype=torch.bool)})
    ...     def _set_seed(self, seed): ...
    >>> Even().append_transform(ActionMask()).rollout(20)["action"].remainder(2).any()
    tensor(False)
    """

    preserves_done = True

    def __init__(self, action_key: Key = "action", mask_key: Key = "action_mask"):
        super().__init__()
        self.action_key = action_key
        self.mask_key = mask_key
        self._masked_spec: Any = None

    def _mask_action_spec(self, tensordict: TensorDictBase, specs: Composite) -> Composite:
        """Returns the action specs with the masks in `tensordict` applied."""
        mask: Tensor | None = tensordict.get(self.mask_key, None)
        spec = specs.get(self.action_key, None)
        if mask is None or spec is None:
            return specs
        batch = tensordict.batch_size
        if len(specs.shape) < len(batch):  # an environment that accepts any batch size
            specs = specs.expand(*batch, *specs.shape).clone()
            spec = specs[self.action_key]
        spec.update_mask(_one_flag_per_option(mask, spec))
        return specs

    def _step(self, tensordict: TensorDictBase, next_tensordict: TensorDictBase) -> TensorDictBase:
        mask = tensordict.get("_step", None)
        self._update_mask(tensordict, next_tensordict, RowMasks({} if mask is None else {(): mask}, [()]))
        return next_tensordict

    def _reset(self, tensordict: TensorDictBase, tensordict_reset: TensorDictBase) -> TensorDictBase:
        self._update_mask(tensordict, tensordict_reset, self._reset_masks(tensordict))
        return tensordict_reset

    def _update_mask(self, previous: TensorDictBase, current: TensorDictBase, masks: RowMasks) -> None:
        """Sets the masks of `current`, in the rows of `masks`, in the action spec."""
        mask: Tensor | None = current.get(self.mask_key, None)
        spec = self._masked_spec
        if mask is None or spec is None or current.batch_size != self._require_parent().batch_size:
            return
        if masks and previous.get(self.mask_key, None) is not None:
            mask = masks.select(current.select(self.mask_key), previous).get(self.mask_key)
        spec.update_mask(_one_flag_per_option(mask, spec))

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Returns stored data unchanged. Raises a RuntimeError outside an environment."""
        self._require_parent()
        return tensordict

    def _leaf_keys(self, kind: str) -> tuple[Key, Key]:
        return (self.action_key, self.action_key) if kind == "action" else super()._leaf_keys(kind)

    def transform_action_spec(self, action_spec: Composite) -> Composite:
        """Checks the action spec and returns it. Later steps and resets set its masks."""
        spec = action_spec[self.action_key]
        if not isinstance(spec, _MASKABLE):
            names = ", ".join(kind.__name__ for kind in _MASKABLE)
            raise SpaceError(f"Expected actions of {names} at {self.action_key!r}, got {spec!r}.")
        parent = self.parent
        if parent is not None and self.mask_key not in parent.full_observation_spec:
            raise SpaceError(
                f"Expected a mask among the observations at {self.mask_key!r}, got none. Give another mask_key."
            )
        self._masked_spec = spec
        return action_spec


def _one_flag_per_option(mask: Any, spec: Any) -> Tensor:
    """Flattens a mask of combinations, `[..., n_1, n_2, …]`, for a spec of one choice among all combinations."""
    if not isinstance(spec, Categorical | OneHot):
        return mask
    dims = spec.ndim - isinstance(spec, OneHot)  # of the mask, before those of the options
    is_joint = mask.ndim > dims + 1 and mask.shape[dims:].numel() == spec.n
    return mask.flatten(dims) if is_joint else mask
