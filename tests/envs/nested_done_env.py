"""Environments with done flags in any nesting of groups, for the tests."""

from functools import cache
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase

from vecrl.envs import EnvBase
from vecrl.envs.spec_container import join_key
from vecrl.specs import Binary, Composite, Unbounded

Place = tuple[str, ...]
ROWS = 2
AGENTS = {"a": 3, "b": 1, "sub": 2}
FRESH, STEPPED = 100.0, 200.0


def sizes(place: Place) -> tuple[int, ...]:
    """Returns the batch shape of a place. Every group adds its number of agents."""
    return (ROWS, *(AGENTS[name] for name in place))


class NestedDoneEnv(EnvBase):
    """Has done flags at `places`, and entries at, between and below them.

    A reset returns `FRESH` and a step `STEPPED` in every row, whatever the mask: the base class applies masks.
    """

    def __init__(self, places: tuple[Place, ...], batch_locked: bool = True):
        super().__init__(batch_size=[ROWS] if batch_locked else [])
        self.batch_locked = batch_locked
        self.places = places
        seen, done, pays = (
            Composite(shape=self.batch_size),
            Composite(shape=self.batch_size),
            Composite(shape=self.batch_size),
        )
        for place in all_groups(places):
            shape = sizes(place)[0 if batch_locked else 1 :]
            if place:
                seen[place] = Composite(shape=shape)
            seen[join_key(place, "wide")] = Unbounded((*shape, 3))
            seen[join_key(place, "flat")] = Unbounded(shape)
            seen[join_key((*place, "inner"), "one")] = Unbounded((*shape, 1))
        for place in places:
            shape = sizes(place)[0 if batch_locked else 1 :]
            done[join_key(place, "done")] = Binary(shape=(*shape, 1), dtype=torch.bool)
            pays[join_key(place, "reward")] = Unbounded((*shape, 1))
        self.full_done_spec, self.observation_spec, self.full_reward_spec = done, seen, pays

    def _filled(self, spec: Any, value: float, shape: torch.Size) -> TensorDictBase:
        return spec.zero(() if self.batch_locked else shape).apply(lambda leaf: torch.full_like(leaf, value))

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        return self._filled(self.observation_spec, FRESH, self.batch_size if tensordict is None else tensordict.shape)

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        next_td = self._filled(self.observation_spec, STEPPED, tensordict.shape)
        return next_td.update(self._filled(self.full_reward_spec, STEPPED, tensordict.shape))

    def _set_seed(self, seed: int | None) -> None: ...


def all_groups(places: tuple[Place, ...]) -> list[Place]:
    """Returns the places and all groups that contain them."""
    return sorted({place[:length] for place in places for length in range(len(place) + 1)})


@cache
def tree(places: tuple[Place, ...], batch_locked: bool = True) -> NestedDoneEnv:
    """Returns a `NestedDoneEnv`, cached for the tests of one run, since it has no state."""
    return NestedDoneEnv(places, batch_locked)


def former(env: NestedDoneEnv, stored: set[Any], done: bool) -> TensorDict:
    """Returns data that an earlier step may have left: the entries `stored`, with different values per row, and
    flags."""
    data = TensorDict({}, [ROWS])
    for place in all_groups(env.places):
        if place:
            data[place] = TensorDict({}, sizes(place))
    for spec, value in ((env.observation_spec, 1.0), (env.full_done_spec, float(done))):
        for key in spec.keys(True, True):
            if key in stored:
                leaf = spec[key].zero(() if env.batch_locked else (ROWS,))
                numbers = torch.full_like(leaf, value)
                data[key] = (
                    numbers
                    if leaf.dtype == torch.bool
                    else numbers + torch.arange(ROWS).reshape(-1, *[1] * (leaf.ndim - 1))
                )
    return data
