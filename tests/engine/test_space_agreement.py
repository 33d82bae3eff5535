"""Workers with differing simulators, and the spaces that they agree on."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
from gymnasium import Space, spaces
from tests.fixtures.pools import BACKENDS

from vecrl.engine.pool import Pool
from vecrl.engine.simulator import RowBuffers, StepNotes
from vecrl.engine.worker import WorkerInfo
from vecrl.errors import SpaceError


class AnySpace(Space[Any]):
    """A space that is opaque to the engine."""

    def __init__(self) -> None:
        super().__init__(None, None)


class Sized:
    """One environment that observes `size` ones, as an array of its own size or of the agreed space."""

    num_envs = 1
    metadata: dict[str, Any] = {}
    render_mode = None
    spec = None
    action_space = spaces.Discrete(2)

    def __init__(self, size: int):
        self.size = size
        self.observation_space: Space[Any] = spaces.Box(0, 1, (size,), np.float32)
        self.agreed: list[Space[Any]] = []

    def set_spaces(self, observation_space: Space[Any], action_space: Space[Any]) -> None:
        self.agreed = [observation_space, action_space]

    def _observe(self, out: RowBuffers) -> StepNotes:
        notes = StepNotes()
        if out.obs[0] is None:
            notes.objects[0] = [(0, np.ones(self.size, np.float32))]
        else:
            out.obs[0][0] = 1
        return notes

    def reset(self, rows: Any, seeds: Any, options: Any, out: RowBuffers) -> StepNotes:
        return self._observe(out)

    def step(self, rows: Any, actions: Any, out: RowBuffers, renew: bool) -> StepNotes:
        return self._observe(out)

    def invoke(self, row: int, kind: str, name: str, value: Any) -> Any:
        return getattr(self, name)

    def close(self) -> None: ...


def _agree(cards: Sequence[WorkerInfo]) -> tuple[Space[Any], Space[Any]]:
    alike = all(card.observation_space == cards[0].observation_space for card in cards)
    return cards[0].observation_space if alike else AnySpace(), cards[0].action_space


@pytest.mark.parametrize("backend", BACKENDS)
def test_differing_spaces_are_sent_as_objects(backend: Any) -> None:
    for sizes in ((2, 3), (2, 2)):
        pool = Pool([(partial(Sized, size), 1) for size in sizes], backend, resolve_spaces=_agree)
        assert [card.observation_space.shape for card in pool.worker_infos] == [(size,) for size in sizes]
        for transition in (pool.reset(), pool.step(np.zeros(2, int)), pool.reset(ids=[1, 0])):
            assert sorted(obs.shape for obs in transition.obs) == sorted((size,) for size in sizes)
        kinds = {type(agreed[0]) for agreed in pool.invoke("get", "agreed")}
        assert kinds == {spaces.Box if len(set(sizes)) == 1 else AnySpace}
        pool.close()


def test_differing_spaces_raise_without_resolve_spaces() -> None:
    with pytest.raises(SpaceError, match="environment 1: expected the observation_space"):
        Pool([(partial(Sized, size), 1) for size in (2, 3)])
