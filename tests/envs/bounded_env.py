"""An environment with random values within bounds, for the tests of specs."""

from typing import Any

import torch
from tensordict import TensorDictBase

from vecrl.envs import EnvBase
from vecrl.specs import Bounded, Categorical, Composite, OneHot, Unbounded


class BoundedValuesEnv(EnvBase):
    """Has floating observations, rewards and actions and endless episodes. Records the input of each step."""

    def __init__(self, *batch: int, dtype: torch.dtype = torch.float32, **kwargs: Any):
        super().__init__(batch_size=batch, **kwargs)
        self.observation_spec = Composite(
            observation=Bounded(-2, 4, (*batch, 3), dtype=dtype),
            image=Unbounded((*batch, 2, 1, 5), dtype=dtype),
            index=Bounded(0, 9, (*batch, 1), dtype=torch.int64),
            kind=Categorical(4, batch),
            row=OneHot(4, (*batch, 4)),
            shape=batch,
        )
        self.action_spec = Bounded(-0.1, 0.1, (*batch, 2), dtype=dtype)
        self.reward_spec = Bounded(-1, 3, (*batch, 1), dtype=dtype)
        self.given: Any = None

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        return self.observation_spec.rand()

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        self.given = tensordict.copy()
        return self.observation_spec.rand().update(self.full_reward_spec.rand()).update(self.full_done_spec.zero())

    def _set_seed(self, seed: int | None) -> None: ...
