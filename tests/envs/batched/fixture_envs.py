"""Environments for the tests of batches, and a loop over single environments as the reference."""

import os
import signal
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from tensordict import LazyStackedTensorDict, NonTensorData, TensorDict, TensorDictBase

from vecrl.envs import EnvBase, GymEnv
from vecrl.specs import Bounded, Categorical, Composite, NonTensor, Unbounded

from ..counting_envs import Counting, Groups


class CountingTensorDictEnv(EnvBase):
    """Counts its steps, observes random numbers, and ends after `limit` steps. Even limits truncate."""

    def __init__(self, limit: int = 3, size: int = 3, **kwargs: Any):
        super().__init__(**kwargs)
        self.observation_spec = Composite(seen=Unbounded((size,)), count=Unbounded((1,), dtype=torch.int64))
        self.action_spec = Bounded(-1, 1, (2,))
        self.full_done_spec = Composite(
            {flag: Categorical(2, (1,), dtype=torch.bool) for flag in ("done", "terminated", "truncated")}
        )
        self.limit, self.size, self.count, self.pid = limit, size, 0, os.getpid()
        self.words: list[str] = []
        self._source = torch.Generator()

    def say(self, word: str, times: int = 1) -> str:
        self.words.append(word)
        return word * times

    def _look(self) -> TensorDict:
        seen = torch.rand(self.size, generator=self._source)
        return TensorDict({"seen": seen, "count": torch.tensor([self.count])})

    def _reset(self, tensordict: TensorDictBase | None = None, count: int = 0, **kwargs: Any) -> TensorDictBase:
        self.count = count
        return self._look()

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        self.count += 1
        is_over, even = self.count >= self.limit, self.limit % 2 == 0
        flags = {"terminated": torch.tensor([is_over and not even]), "truncated": torch.tensor([is_over and even])}
        return self._look().update({"reward": tensordict["action"].sum(-1, keepdim=True), **flags})

    def _set_seed(self, seed: int | None) -> None:
        if seed is not None:
            self._source.manual_seed(seed)


class FaultyEnv(CountingTensorDictEnv):
    """Commits a fault at one place, from the second step on."""

    def __init__(self, place: str, fault: Callable[[], Any]):
        super().__init__(99)
        self.place, self.fault = place, fault
        self._commit("construct")

    def _commit(self, place: str) -> None:
        if place == self.place:
            self.fault()

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        self._commit("reset")
        return super()._reset(tensordict)

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        if self.count:
            self._commit("step")
        return super()._step(tensordict)


def fails() -> None:
    raise ArithmeticError("went wrong on purpose")


def dies() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def sleeps() -> None:
    time.sleep(60)


class ObjectObsEnv(CountingTensorDictEnv):
    """Observes its count as an object."""

    def __init__(self, limit: int = 3):
        super().__init__(limit)
        spec = self.observation_spec.clone()
        spec["text"] = NonTensor((), example_data="")
        self.observation_spec = spec

    def _look(self) -> TensorDict:
        return super()._look().set("text", NonTensorData(f"at {self.count}"))


class DynamicSizeEnv(EnvBase):
    """Observes one more row with every step."""

    def __init__(self, limit: int = 5):
        super().__init__()
        self.observation_spec = Composite(observation=Unbounded((3, -1, 2)))
        self.action_spec = Bounded(-1, 1, (2,))
        self.limit, self.count = limit, 0

    def _look(self) -> TensorDict:
        return TensorDict({"observation": torch.full((3, self.count + 1, 2), float(self.count))})

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        self.count = 0
        return self._look()

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        self.count += 1
        done = torch.tensor([self.count >= self.limit])
        return self._look().update({"reward": torch.ones(1), "done": done})

    def _set_seed(self, seed: int | None) -> None: ...


class Stateful(EnvBase):
    """Continues from the state in the TensorDict and keeps none itself."""

    def __init__(self) -> None:
        super().__init__()
        self.observation_spec = Composite(place=Unbounded((1,)))
        self.state_spec = Composite(place=Unbounded((1,)))
        self.action_spec = Bounded(-1, 1, (1,))

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        start = torch.zeros(1) if tensordict is None else tensordict.get("place", torch.zeros(1))
        return TensorDict({"place": start.clone()})

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        place = tensordict["place"] + tensordict["action"]
        return TensorDict({"place": place, "reward": -place.abs(), "done": place.abs() > 2})

    def _set_seed(self, seed: int | None) -> None: ...


MAKERS: dict[str, Sequence[Callable[[], EnvBase]]] = {
    "tally": [partial(CountingTensorDictEnv, 2), partial(CountingTensorDictEnv, 3), partial(CountingTensorDictEnv, 5)],
    "cartpole": [partial(GymEnv, "CartPole-v1")] * 3,
    "pendulum": [partial(GymEnv, "Pendulum-v1")] * 3,
    "categorical": [partial(GymEnv, "CartPole-v1", categorical_action_encoding=True, max_episode_steps=4)] * 3,
    "grid": [partial(GymEnv, "FrozenLake-v1")] * 3,
    "batches": [partial(Counting, 2, 3), partial(Counting, 4, 1), partial(Counting, 9, 2)],
    "groups": [partial(Groups, ("a", "b"), True)] * 3,
    "talking": [partial(ObjectObsEnv, 2), partial(ObjectObsEnv, 3), partial(ObjectObsEnv, 4)],
    "growing": [partial(DynamicSizeEnv, 2), partial(DynamicSizeEnv, 3), partial(DynamicSizeEnv, 4)],
    "sizes": [
        partial(CountingTensorDictEnv, 2, 3),
        partial(CountingTensorDictEnv, 3, 4),
        partial(CountingTensorDictEnv, 4, 3),
    ],
    "classes": [partial(CountingTensorDictEnv, 2), partial(ObjectObsEnv, 3), partial(CountingTensorDictEnv, 4)],
    "stateful": [Stateful] * 3,
}
"""By a name: what makes three environments."""


class LoopReference:
    """Steps environments one by one, as the reference for a batch."""

    def __init__(self, makers: Sequence[Callable[[], EnvBase]]):
        self.envs = [make() for make in makers]

    def set_seed(self, seed: int | None) -> int | None:
        for env in self.envs:
            seed = env.set_seed(seed)
        return seed

    def reset(self, data: TensorDictBase | None = None) -> TensorDictBase:
        rows = [None] * len(self.envs) if data is None else data.unbind(0)
        return _stacked([env.reset(row) for env, row in zip(self.envs, rows, strict=True)])

    def step(self, data: TensorDictBase) -> TensorDictBase:
        return _stacked([env.step(row) for env, row in zip(self.envs, data.unbind(0), strict=True)])

    def step_mdp(self, data: TensorDictBase) -> TensorDictBase:
        return _stacked([env.step_mdp(row) for env, row in zip(self.envs, data.unbind(0), strict=True)])

    def step_and_maybe_reset(self, data: TensorDictBase) -> tuple[TensorDictBase, TensorDictBase]:
        rows = zip(self.envs, data.unbind(0), strict=True)
        step_td, roots = zip(*(env.step_and_maybe_reset(row) for env, row in rows), strict=True)
        return _stacked(step_td), _stacked(roots)


def _stacked(rows: Sequence[Any]) -> Any:
    return LazyStackedTensorDict.lazy_stack(list(rows), 0)


def assert_same(actual: Any, reference: Any) -> None:
    """Asserts that two TensorDicts of a batch are bit-identical, row by row."""
    assert actual.batch_size == reference.batch_size
    for row, (own_value, other) in enumerate(zip(actual.unbind(0), reference.unbind(0), strict=True)):
        remaining, right = flat(own_value), flat(other)
        assert remaining.keys() == right.keys(), row
        for key, value in remaining.items():
            if isinstance(value, torch.Tensor):
                expected = right[key]
                assert value.dtype == expected.dtype, (row, key, value, expected)
                assert value.shape == expected.shape, (row, key, value, expected)
                assert torch.equal(value, expected), (row, key, value, expected)
            else:
                assert value == right[key], (row, key)


def flat(data: Any, above: tuple[str, ...] = ()) -> dict[tuple[str, ...], Any]:
    """Returns all entries of a TensorDict by path; objects are returned unchanged."""
    found: dict[tuple[str, ...], Any] = {}
    for name in data.keys():  # noqa: SIM118
        value = data.get(name)
        if isinstance(value, torch.Tensor):
            found[(*above, name)] = value
        elif isinstance(value, NonTensorData):
            found[(*above, name)] = value.data
        elif isinstance(value, TensorDictBase):
            found |= flat(value, (*above, name))
        else:
            found[(*above, name)] = value.tolist()
    return found
