"""TorchRL's examples of vectorized environments, partial resets and dynamic specs, with one import changed."""

from typing import Any

import pytest
import torch
from tensordict import TensorDict, TensorDictBase

from vecrl.envs import EnvBase, GymEnv, ParallelEnv, SerialEnv, check_env_specs
from vecrl.specs import Binary, Bounded, Composite, Unbounded


class Pendulum(GymEnv):
    def __init__(self) -> None:
        super().__init__("Pendulum-v1", g=9.81)

    @property
    def g(self) -> float:
        return self._env.unwrapped.g


@pytest.mark.parametrize("kind", [ParallelEnv, SerialEnv])
def test_vectorized_environments(kind: Any) -> None:
    def make_env() -> EnvBase:
        return Pendulum()  # on the CPU, and without pixels

    check_env_specs(make_env())
    env = kind(4, make_env)
    assert env.batch_size == torch.Size([4])
    a, b, c, d = env.g
    assert (a, b, c, d) == (9.81,) * 4
    tensordict = TensorDict({"_reset": torch.tensor([[True], [False], [True], [True]])}, [4])
    env.reset(tensordict)
    assert sorted(tensordict.keys()) == ["done", "observation", "terminated", "truncated"]
    assert tensordict["observation"].abs().sum(-1).bool().tolist() == [True, False, True, True]
    env.close()


class EnvWithDynamicSpec(EnvBase):
    def __init__(self, max_count: int = 5):
        super().__init__(batch_size=())
        self.observation_spec = Composite(observation=Unbounded(shape=(3, -1, 2)))
        self.action_spec = Bounded(low=-1, high=1, shape=(2,))
        self.full_done_spec = Composite(
            done=Binary(1, shape=(1,), dtype=torch.bool),
            terminated=Binary(1, shape=(1,), dtype=torch.bool),
            truncated=Binary(1, shape=(1,), dtype=torch.bool),
        )
        self.reward_spec = Unbounded((1,), dtype=torch.float)
        self.count = 0
        self.max_count = max_count

    def _observe(self) -> TensorDict:
        dtype = self.observation_spec["observation"].dtype
        return TensorDict({"observation": torch.full((3, self.count + 1, 2), self.count, dtype=dtype)})

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        self.count = 0
        return self._observe().update(self.full_done_spec.zero())

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        self.count += 1
        done = self.full_done_spec.zero() | (self.count >= self.max_count)
        return self._observe().update(done).update(self.full_reward_spec.zero())

    def _set_seed(self, seed: int | None) -> None:
        self.manual_seed = seed


@pytest.mark.parametrize("kind", [None, ParallelEnv, SerialEnv])
def test_dynamic_specs(kind: Any) -> None:
    env = EnvWithDynamicSpec() if kind is None else kind(2, EnvWithDynamicSpec)
    rollout = env.rollout(5, return_contiguous=False)
    assert rollout.batch_size == (*env.batch_size, 5)
    steps = rollout if kind is None else rollout[0]
    assert [step["observation"].shape for step in steps.unbind(0)] == [(3, n, 2) for n in range(1, 6)]
    check_env_specs(env)
    env.close()
