"""What users of environments need beside them."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import torch
from tensordict import TensorDictBase
from tensordict.nn.probabilistic import InteractionType as ExplorationType
from tensordict.nn.probabilistic import interaction_type as exploration_type
from tensordict.nn.probabilistic import set_interaction_type as set_exploration_type

from ..specs import Composite, TensorSpec
from .check_specs import check_env_specs
from .spec_container import FLAGS, join_key, split_key
from .spec_inference import make_composite_from_td
from .step_mdp import step_mdp

__all__ = [
    "ExplorationType",
    "RandomPolicy",
    "check_env_specs",
    "exploration_type",
    "get_available_libraries",
    "make_composite_from_td",
    "set_exploration_type",
    "step_mdp",
    "terminated_or_truncated",
]


SIMULATORS = ("gym", "gymnasium", "mo_gymnasium")
"""The libraries that there is a wrapper of."""


def get_available_libraries() -> dict[str, bool]:
    """Whether the simulators of `vecrl.envs.libs` are installed, by the names that they are imported by."""
    return {name: find_spec(name) is not None for name in SIMULATORS}


class RandomPolicy:
    """Writes random actions into a TensorDict.

    Args:
        action_spec: what to draw from; it may be set later.
        action_key: where to write it, where that is no `Composite`.
    """

    def __init__(self, action_spec: TensorSpec | None = None, action_key: Any = "action"):
        self.action_spec = action_spec
        self.action_key = action_key

    def __call__(self, td: TensorDictBase) -> TensorDictBase:
        """`td` with actions in it."""
        if self.action_spec is None:
            raise ValueError(
                "RandomPolicy has nothing to draw from: give it an action_spec, such as env.full_action_spec."
            )
        actions = self.action_spec.rand()
        return td.update(actions) if isinstance(self.action_spec, Composite) else td.set(self.action_key, actions)


def terminated_or_truncated(
    data: TensorDictBase,
    full_done_spec: Composite | None = None,
    key: str | None = "_reset",
    write_full_false: bool = False,
) -> bool:
    """Whether a row has ended; where one has, who did is written beside the flags.

    Args:
        data: with done flags at the root or in groups.
        full_done_spec: where they are; by default wherever they are found.
        key: the name of what is written: the union of the flags. None writes nothing.
        write_full_false: write it also where nobody has ended.

    >>> import torch
    >>> from tensordict import TensorDict
    >>> data = TensorDict({"done": torch.tensor([[True], [False]])}, [2])
    >>> terminated_or_truncated(data), data["_reset"].squeeze(-1)
    (True, tensor([ True, False]))
    """
    source = data if full_done_spec is None else full_done_spec
    end_flags: dict[tuple[str, ...], list[torch.Tensor]] = {}
    for key_found in source.keys(include_nested=True, leaves_only=True):
        prefix, name = split_key(key_found)
        if name in FLAGS and data.get(key_found, None) is not None:
            end_flags.setdefault(prefix, []).append(data.get(key_found))
    masks = {prefix: torch.stack(flags).any(0) for prefix, flags in end_flags.items()}
    any_ended = any(bool(mask.any()) for mask in masks.values())
    if key is not None and (any_ended or write_full_false):
        for prefix, mask in masks.items():
            data.set(join_key(prefix, key), mask)
    return any_ended
