"""`EnvMetaData`: a picklable description of an environment, so that its specs are known without creating it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from tensordict import TensorDictBase

from ...specs import Composite
from ..base import EnvBase
from ..entries.keys import INPUTS, OUTPUTS, Key


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvMetaData:
    """The specs, sizes and devices of an environment.

    Attributes:
        tensordict: the result of `fake_tensordict`; None if not requested.
        specs: `env.specs`.
        batch_size: the batch size of the environment.
        env_str: its `repr`.
        device: the device of inputs and outputs; None if not specified.
        batch_locked: whether only this batch size is accepted.
        device_map: the device of every leaf, by key.
        supports_set_state: whether `reset` can start from a given state.
        has_custom_rand_action: whether random actions are sampled in another way than from the action specs.

    >>> from vecrl.envs import GymEnv
    >>> meta = EnvMetaData.metadata_from_env(GymEnv("CartPole-v1"))
    >>> meta.batch_size, meta.spec("action").shape
    (torch.Size([]), torch.Size([2]))
    """

    tensordict: TensorDictBase | None = field(repr=False)
    specs: Composite = field(repr=False)
    batch_size: torch.Size
    env_str: str
    device: torch.device | None
    batch_locked: bool
    device_map: dict[Key, torch.device | None] = field(repr=False)
    supports_set_state: bool = False
    has_custom_rand_action: bool = False

    @classmethod
    def metadata_from_env(cls, env: EnvBase, *, fake: bool = True) -> EnvMetaData:
        """Returns the metadata of `env`.

        Args:
            env: the environment.
            fake: whether to include the `tensordict`.
        """
        specs = env.specs
        return cls(
            tensordict=env.fake_tensordict() if fake else None,
            specs=specs,
            batch_size=env.batch_size,
            env_str=repr(env),
            device=env.device,
            batch_locked=env.batch_locked,
            supports_set_state=env.supports_set_state,
            has_custom_rand_action=env._has_custom_rand_action,
            device_map={key: None if leaf is None else leaf.device for key, leaf in specs.items(True, True)},
        )

    def full(self, name: str) -> Composite:
        """Returns the `Composite` "action", "state", "observation", "reward" or "done"."""
        side = "input_spec" if name in INPUTS else "output_spec"
        assert name in (*INPUTS, *OUTPUTS)
        return self.specs[side, f"full_{name}_spec"]

    def spec(self, name: str) -> Any:
        """Returns the `Composite` as `full` does, or its leaf if there is only one."""
        full = self.full(name)
        leaves = list(full.values(True, True))
        return leaves[0] if len(leaves) == 1 else full
