"""Environments that update their buffers in place: results that they returned do not change."""

from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from tensordict import TensorDict, TensorDictBase

from vecrl.envs import EnvBase, GymWrapper, ParallelEnv, SerialEnv, StepCounter, TransformedEnv
from vecrl.envs.shared_entries import copy_shared_entries
from vecrl.specs import Composite, Unbounded
from vecrl.vector import VectorEnv

ZERO = torch.zeros(1)


class InPlace(EnvBase):
    """Counts to 3 in its own buffer, which it returns in one of the `WAYS`; rewards are in a second buffer."""

    def __init__(self, way: str):
        super().__init__()
        self.observation_spec = Composite(group=Composite(count=Unbounded((1,))))
        self.action_spec = Unbounded((1,))
        self.reward_spec = Unbounded((*self.batch_size, 1))
        self.memory = np.zeros(1, np.float32)
        self.count = torch.from_numpy(self.memory) if way == "array" else torch.zeros(1)
        self.paid, self.way = torch.zeros(1), way
        self.known = TensorDict({"group": TensorDict({"count": self.count})})

    def _look(self) -> TensorDict:
        if self.way == "held group":
            return TensorDict({"group": self.known["group"]})
        return TensorDict({"group": TensorDict({"count": WAYS[self.way](self.count)})})

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        self.count.zero_()
        data = self.known if self.way == "held whole" else self._look()
        return data.set("done", torch.zeros(1, dtype=torch.bool))

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        self.count += 1
        self.paid += 1
        data = self.known if self.way == "held whole" else self._look()
        return data.update({"reward": self.paid, "done": self.count >= 3})

    def _set_seed(self, seed: int | None) -> None: ...


WAYS: dict[str, Callable[[torch.Tensor], Any]] = {
    "itself": lambda count: count,
    "a view": lambda count: count[:],
    "detached": lambda count: count.detach(),
    "its data": lambda count: count.data,
    "array": lambda count: torch.from_numpy(count.numpy()),
    "held group": lambda count: count,
    "held whole": lambda count: count,
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "make",
    [
        InPlace,
        lambda way: TransformedEnv(InPlace(way), StepCounter()),
        lambda way: SerialEnv(1, partial(InPlace, way)),
        lambda way: ParallelEnv(1, partial(InPlace, way)),
    ],
    ids=["single", "transformed", "serial", "parallel"],
)
def test_rollouts_hold_the_values_of_their_steps(make: Callable[[str], EnvBase], way: str) -> None:
    with make(way) as env:
        for _ in range(2):
            rollout = env.rollout(5, lambda td: td.set("action", torch.zeros(*td.shape, 1)), break_when_any_done=False)
            assert rollout["group", "count"].flatten().tolist() == [0, 1, 2, 0, 1]
            assert rollout["next", "group", "count"].flatten().tolist() == [1, 2, 3, 1, 2]
            assert rollout["next", "reward"].flatten().diff().eq(1).all()


@pytest.mark.parametrize("way", WAYS)
def test_step_results_do_not_change_later(way: str) -> None:
    env = InPlace(way)
    first = env.reset()
    item = env.step(first.copy().set("action", ZERO))
    two = env.step(env.step_mdp(item).set("action", ZERO))
    assert [td["group", "count"].item() for td in (first, item["next"], two["next"])] == [0, 1, 2]
    with torch.inference_mode():
        three = env.step(env.step_mdp(two).set("action", ZERO))
        env.reset()
    assert three["next", "group", "count"].item() == 3


def test_only_referenced_entries_are_copied() -> None:
    stored, inputs = torch.zeros(4), TensorDict({"passed on": torch.zeros(2)})

    def returned() -> TensorDict:
        return TensorDict(
            {
                "new": torch.zeros(2),
                "view of new": torch.zeros(3, 2)[:2],
                "group": TensorDict({"new": torch.zeros(1).expand(3, 1)}),
                "passed on": inputs["passed on"],
                "held": stored,
                "slice of held": stored[:2],
                "array": torch.from_numpy(np.zeros(2)),
            }
        )

    def places(data: TensorDictBase) -> dict[Any, int]:
        return {key: value.data_ptr() for key, value in data.items(True, True)}

    data = returned()
    before = places(data)
    after = places(copy_shared_entries(data, inputs))
    assert {key for key, place in after.items() if place != before[key]} == {"held", "slice of held", "array"}
    data = returned()
    before = places(data)
    after = places(copy_shared_entries(data, inputs, arrays_are_new=True))
    assert {key for key, place in after.items() if place != before[key]} == {"held", "slice of held"}


class InPlaceGym(gymnasium.Env[Any, Any]):
    def __init__(self) -> None:
        self.observation_space = gymnasium.spaces.Box(-9, 9, (1,))
        self.action_space = gymnasium.spaces.Box(-1, 1, (1,))
        self.count = np.zeros(1, np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.count[:] = 0
        return self.count, {}

    def step(self, action: Any) -> Any:
        self.count += 1
        return self.count, 0.0, bool(self.count[0] >= 3), False, {}


@pytest.mark.parametrize("policy", [None, lambda td: td.set("action", torch.zeros(*td.shape, 1))], ids=["none", "some"])
@pytest.mark.parametrize(
    "make",
    [
        lambda: GymWrapper(InPlaceGym()),
        lambda: SerialEnv(1, lambda: GymWrapper(InPlaceGym())),
        lambda: SerialEnv(2, lambda: GymWrapper(InPlaceGym())),
        lambda: ParallelEnv(1, lambda: GymWrapper(InPlaceGym())),
    ],
    ids=["single", "serial of 1", "serial of 2", "parallel"],
)
def test_gymnasium_rollouts_hold_final_observations(make: Callable[[], EnvBase], policy: Any) -> None:
    with make() as env:
        rollout = env.rollout(4, policy, break_when_any_done=False).reshape(-1, 4)[0]
    assert rollout["observation"].flatten().tolist() == [0, 1, 2, 0]
    assert rollout["next", "observation"].flatten().tolist() == [1, 2, 3, 1]


@pytest.mark.parametrize("count", [1, 2])
def test_same_step_autoreset_keeps_final_observations(count: int) -> None:
    with VectorEnv([InPlaceGym] * count, autoreset_mode="same_step") as env:
        env.reset()
        for _ in range(3):
            obs, *_, info = env.step(np.zeros((count, 1), np.float32))
    assert obs.tolist() == [[0]] * count
    assert [final.tolist() for final in info["final_obs"]] == [[3]] * count
