"""Spaces of large observations are compared, sent and batched as gymnasium would, without their arrays of bounds."""

import pickle
from functools import partial

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector.utils import batch_space as gymnasium_batch_space
from tests.fixtures.pools import make_pool

from vecrl.engine.large_boxes import LARGE, batch_space, dump_by_reference, dump_by_value, equal_spaces
from vecrl.vector import VectorEnv

SIZE = LARGE + 7
PIXELS = spaces.Box(0, 255, (SIZE,), np.uint8)
MIXED = spaces.Box(np.linspace(-1, 0, SIZE // 4).astype(np.float32), np.inf)
NESTED = spaces.Dict(pixels=PIXELS, part=spaces.Tuple([MIXED, spaces.Discrete(3, start=-1)]))
OTHERS = [
    spaces.Box(0, 254, (SIZE,), np.uint8),
    spaces.Box(0, 255, (SIZE, 1), np.uint8),
    spaces.Box(0, 255, (SIZE,), np.uint16),
    spaces.Box(0, 255, (9,), np.uint8),
    spaces.Dict(pixels=PIXELS, part=spaces.Tuple([MIXED, spaces.Discrete(3)])),
    spaces.Dict(pixels=PIXELS),
]


class PixelsEnv(gymnasium.Env):
    """Observes `SIZE` equal bytes, of a space with the upper bound `high`."""

    action_space = spaces.Discrete(2)

    def __init__(self, high: int = 255):
        self.observation_space = spaces.Box(0, high, (SIZE,), np.uint8)
        self._value = 0

    def _observed(self) -> np.ndarray:
        return np.full(SIZE, self._value, np.uint8)

    def reset(self, *, seed=None, options=None):
        self._value = 0
        return self._observed(), {}

    def step(self, action):
        self._value += int(action)
        return self._observed(), 0.0, False, False, {}


@pytest.mark.parametrize("space", [PIXELS, MIXED, NESTED])
def test_pickles_are_small_and_equal(space: spaces.Space) -> None:
    for dump in (dump_by_reference, dump_by_value):
        data = dump(space)
        loaded = pickle.loads(data)
        assert loaded == space
        assert equal_spaces(loaded, space)
        assert equal_spaces(space, loaded)
        assert loaded.contains(loaded.sample())
        assert space is PIXELS or len(data) > SIZE  # the lower bounds of MIXED differ
        assert space is not PIXELS or len(data) < 1000


def test_spaces_are_equal_as_in_gymnasium() -> None:
    every = [PIXELS, MIXED, NESTED, *OTHERS, *map(pickle.loads, map(dump_by_value, [PIXELS, MIXED, NESTED]))]
    for one in every:
        for other in every:
            assert equal_spaces(one, other) == (one == other)


@pytest.mark.parametrize("space", [PIXELS, MIXED, NESTED, *OTHERS])
def test_batches_are_those_of_gymnasium(space: spaces.Space) -> None:
    space.seed(5)
    batched, expected = batch_space(space, 3), gymnasium_batch_space(space, 3)
    assert batched == expected
    assert repr(batched) == repr(expected)
    batched.seed(1)
    expected.seed(1)
    sample = batched.sample()
    assert expected.contains(sample)
    assert batched.contains(expected.sample())
    assert pickle.loads(pickle.dumps(batched)) == expected


@pytest.mark.parametrize("backend", ["serial", "threads", "processes"])
def test_environments_of_large_observations(backend: str) -> None:
    with VectorEnv([PixelsEnv] * 2, backend=backend, num_workers=2) as envs:
        assert envs.single_observation_space == PIXELS
        assert envs.observation_space == gymnasium_batch_space(PIXELS, 2)
        if backend == "processes":
            assert envs.single_observation_space.low.strides == (0,)
        envs.reset()
        obs = envs.step(np.array([1, 0]))[0]
        assert obs[0].min() == obs[0].max() == 1
        assert not obs[1].any()


def test_differing_large_spaces_are_refused() -> None:
    with pytest.raises(ValueError, match="expected the observation_space"):
        make_pool([PixelsEnv, partial(PixelsEnv, 254)], "processes", 2)
