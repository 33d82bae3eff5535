"""Environments that count, for the tests."""

from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase

from vecrl.envs import EnvBase
from vecrl.specs import Bounded, Composite, Unbounded


class Counting(EnvBase):
    """Row i counts its steps and is done after `limits[i]` of them. Obeys reset masks and steps every row."""

    def __init__(self, *limits: int, **kwargs: Any):
        super().__init__(batch_size=[len(limits)], **kwargs)
        shape = (len(limits), 1)
        self.observation_spec = Composite(count=Unbounded(shape, dtype=torch.int64), shape=self.batch_size)
        self.action_spec = Bounded(-1, 1, (len(limits), 2))
        self.limits = torch.tensor(limits).unsqueeze(-1)
        self.count = torch.zeros(shape, dtype=torch.int64)
        self.seeds: list[int | None] = []
        self.resets = 0

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        self.resets += 1
        mask = None if tensordict is None else tensordict.get("_reset", None)
        self.count = torch.zeros_like(self.count) if mask is None else self.count * ~mask
        return TensorDict({"count": self.count}, self.batch_size)

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        self.count = tensordict.get("count", self.count) + 1
        reward = torch.ones(*self.batch_size, 1)
        return TensorDict({"count": self.count, "reward": reward, "done": self.count >= self.limits}, self.batch_size)

    def _set_seed(self, seed: int | None) -> None:
        self.seeds.append(seed)


class Groups(EnvBase):
    """Has groups of agents with their own done flags and, if `root`, flags at the root. A reset returns zeros."""

    def __init__(self, groups: tuple[str, ...], root: bool, agents: int = 2):
        super().__init__()
        done, seen, acts, pays = Composite(), Composite(), Composite(), Composite()
        for name in groups:
            done[name, "done"] = Bounded(0, 1, (agents, 1), dtype=torch.bool)
            seen[name, "val"] = Unbounded((agents, 3))
            acts[name, "action"] = Unbounded((agents, 1))
            pays[name, "reward"] = Unbounded((agents, 1))
        if root:
            done["done"] = Bounded(0, 1, (1,), dtype=torch.bool)
            seen["val"] = Unbounded((3,))
        self.full_done_spec, self.observation_spec = done, seen
        self.full_action_spec, self.full_reward_spec = acts, pays

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        return self.observation_spec.zero()

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        return self.observation_spec.one().update(self.full_reward_spec.one()).update(self.full_done_spec.zero())

    def _set_seed(self, seed: int | None) -> None: ...
