"""An environment with independent rows, for the tests: the values of a row depend only on its id, its episode and its
actions, so a batch must equal the same number of single environments."""

from collections.abc import Sequence
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase

from ..envs import EnvBase
from ..specs import Bounded, Categorical, Composite, Unbounded


class IndependentRowsEnv(EnvBase):
    """Has the rows `ids`, or the single row `ids` without a batch dimension. Episode e of row i ends after 2 + (i + e)
    % 3 steps, alternately terminated and truncated. Obeys reset masks and step masks."""

    def __init__(self, ids: Sequence[int] | int = 0, **kwargs: Any):
        self.ids = torch.as_tensor(ids)
        super().__init__(batch_size=self.ids.shape, **kwargs)
        batch = self.batch_size
        self.observation_spec = Composite(
            observation=Unbounded((*batch, 3)),
            position=Unbounded((*batch, 2), dtype=torch.float64),
            pixels=Bounded(0, 255, (*batch, 6, 8, 3), dtype=torch.uint8),
            ticks=Unbounded((*batch, 1), dtype=torch.int64),
            action_mask=Categorical(2, (*batch, 4), dtype=torch.bool),
            shape=batch,
        )
        self.full_action_spec = Composite(action=Bounded(-1, 1, (*batch, 2)), choice=Categorical(4, batch), shape=batch)
        self.reward_spec = Unbounded((*batch, 1))
        flags = ("done", "terminated", "truncated")
        self.full_done_spec = Composite(
            {flag: Categorical(2, (*batch, 1), dtype=torch.bool) for flag in flags}, shape=batch
        )
        self.ticks = torch.zeros(batch, dtype=torch.int64)
        self.episode = torch.full(batch, -1)
        self.moved = torch.zeros(*batch, 2)

    def _mask(self, tensordict: TensorDictBase | None, name: str) -> torch.Tensor:
        mask = None if tensordict is None else tensordict.get(name, None)
        return torch.ones(self.batch_size, dtype=torch.bool) if mask is None else mask.reshape(self.batch_size)

    def _seen(self) -> TensorDict:
        kind = (self.ids * 7 + self.episode * 3).unsqueeze(-1)
        ticks = self.ticks.unsqueeze(-1)
        pixels = (kind * 31 + ticks * 17).unsqueeze(-1).unsqueeze(-1) + torch.arange(6 * 8 * 3).reshape(6, 8, 3) * 5
        return TensorDict(
            {
                "observation": torch.cat([kind + ticks * 0.5, self.moved], -1).float(),
                "position": torch.cat([ticks, kind], -1).double() / 3,
                "pixels": (pixels % 256).to(torch.uint8),
                "ticks": ticks.clone(),
                "action_mask": (torch.arange(4) + kind + ticks) % 3 != 0,
            },
            self.batch_size,
        )

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: object) -> TensorDictBase:
        mask = self._mask(tensordict, "_reset")
        self.ticks = torch.where(mask, 0, self.ticks)
        self.episode = self.episode + mask
        self.moved = torch.where(mask.unsqueeze(-1), 0.0, self.moved)
        return self._seen()

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        mask = self._mask(tensordict, "_step")
        self.ticks = self.ticks + mask
        change = tensordict["action"] + tensordict["choice"].unsqueeze(-1)
        self.moved = torch.where(mask.unsqueeze(-1), self.moved + change, self.moved)
        is_over = (self.ticks >= 2 + (self.ids + self.episode) % 3).unsqueeze(-1)
        invalid = (self.episode % 2 == 1).unsqueeze(-1)
        data = self._seen().set("reward", self.moved.sum(-1, keepdim=True) + 1)
        return data.update({"done": is_over, "terminated": is_over & ~invalid, "truncated": is_over & invalid})

    def _set_seed(self, seed: int | None) -> None: ...
