"""Examples: an environment that resets itself, and one with growing observations."""

from typing import Any

import pytest
import torch
from tensordict import LazyStackedTensorDict, TensorDict

from vecrl.envs import AutoResetEnv, AutoResetTransform, EnvBase, GymEnv
from vecrl.specs import Binary, Bounded, Composite, Unbounded


class AutoResettingGymEnv(GymEnv):
    def _step(self, tensordict: Any) -> Any:
        next_td = super()._step(tensordict)
        if next_td["done"].any():
            next_td.update(super().reset().exclude(*self.done_keys))
        return next_td

    def _reset(self, tensordict: Any = None, **kwargs: Any) -> Any:
        if tensordict is not None and tensordict.get("_reset", None) is not None:
            return tensordict.copy()
        return super()._reset(tensordict, **kwargs)


@pytest.mark.parametrize("way", ["argument", "transform"])
def test_auto_resetting_gym_env(way: str) -> None:
    torch.manual_seed(0)
    if way == "argument":
        env: EnvBase = AutoResettingGymEnv("CartPole-v1", auto_reset=True, auto_reset_replace=True)
    else:
        env = AutoResetEnv(AutoResettingGymEnv("CartPole-v1"), AutoResetTransform(replace=True))
    env.set_seed(0)
    rollout = env.rollout(60, break_when_any_done=False)
    done = rollout["next", "done"].squeeze(-1)
    assert done.any()
    assert rollout["next", "observation"].isnan().all(-1).equal(done)
    assert not rollout["observation"].isnan().any()
    assert not rollout["done"].any()


def test_dynamic_specs() -> None:
    class EnvWithDynamicSpec(EnvBase):
        def __init__(self, max_count: int = 5):
            super().__init__(batch_size=())
            self.observation_spec = Composite(observation=Unbounded(shape=(3, -1, 2)))
            self.action_spec = Bounded(low=-1, high=1, shape=(2,))
            flags = {name: Binary(1, shape=(1,), dtype=torch.bool) for name in ("done", "terminated", "truncated")}
            self.full_done_spec = Composite(**flags)
            self.reward_spec = Unbounded((1,), dtype=torch.float)
            self.count, self.max_count = 0, max_count

        def _observe(self) -> TensorDict:
            dtype = self.observation_spec["observation"].dtype
            return TensorDict({"observation": torch.full((3, self.count + 1, 2), self.count, dtype=dtype)})

        def _reset(self, tensordict: Any = None) -> Any:
            self.count = 0
            return self._observe().update(self.done_spec.zero())

        def _step(self, tensordict: Any) -> Any:
            self.count += 1
            done = self.full_done_spec.zero() | (self.count >= self.max_count)
            return self._observe().update(done).update(self.full_reward_spec.zero())

        def _set_seed(self, seed: int | None) -> None:
            self.manual_seed = seed

    rollout = EnvWithDynamicSpec().rollout(5, return_contiguous=False)
    assert isinstance(rollout, LazyStackedTensorDict)
    assert rollout.shape == (5,)
    assert [step["next", "observation"].shape[1] for step in rollout.unbind(0)] == [2, 3, 4, 5, 6]
    assert [step["observation"].shape[1] for step in rollout.unbind(0)] == [1, 2, 3, 4, 5]
