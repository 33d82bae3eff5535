"""Environments that worker processes can import, with known results."""

from __future__ import annotations

import copy
import random
import time
import zlib
from functools import partial
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class Counting(gymnasium.Env):
    """Observes `[env_id, episode, count]` and ends at `length`: even ids terminate, odd ids are truncated.

    The reward is the count plus the action. With `delay`, each step takes a random time of up to `delay` seconds.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 7}
    observation_space = spaces.Box(-1.0, 1e9, (3,), np.float64)
    action_space = spaces.Discrete(4)

    def __init__(self, env_id: int, length: int = 4, delay: float = 0.0, render_mode: str | None = None):
        self.env_id, self.length, self.delay, self.render_mode = env_id, length, delay, render_mode
        self.episode = -1
        self.count = 0
        self.options: list[Any] = []
        self.closes = 0
        self.label = f"counting {env_id}"

    def observe(self) -> np.ndarray:
        return np.array([self.env_id, self.episode, self.count], np.float64)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.options.append(options)
        self.episode += 1
        self.count = 0
        return self.observe(), {"episode_index": self.episode}

    def step(self, action):
        if self.delay:
            time.sleep(random.uniform(0, self.delay))
        self.count += 1
        is_over = self.count >= self.length
        even = self.env_id % 2 == 0
        return self.observe(), self.count + float(action), is_over and even, is_over and not even, {"count": self.count}

    def render(self):
        return np.full((2, 2, 3), self.env_id, np.uint8)

    def close(self):
        self.closes += 1

    def twice(self, number: int, plus: int = 0) -> int:
        return 2 * number + plus + self.env_id


UNIT = spaces.Box(-1.0, 1.0, (2,), np.float32)


class Echo(gymnasium.Env):
    """Observes `observe()`, records its calls, and returns configured values."""

    def __init__(self, observation=UNIT, action=UNIT, length=3, infos=None, fault_at=None):
        self.observation_space, self.action_space = observation, action
        self.length, self.infos, self.fault_at = length, infos or [{}], fault_at
        self.calls: list[Any] = []
        self.count = 0
        self.render_mode = None

    def observe(self):
        return np.full(self.observation_space.shape, self.count, self.observation_space.dtype)

    def reset(self, **kwargs):
        self.calls.append(kwargs)
        self.count = 0
        return self.observe(), {}

    def step(self, action):
        self.calls.append(action)
        self.count += 1
        if self.count == self.fault_at:
            raise ZeroDivisionError("requested failure")
        return self.observe(), 1, self.count >= self.length, False, self.infos[self.count % len(self.infos)]

    def close(self):
        self.calls.append("close")


class Noise(gymnasium.Env):
    """Observes samples of a space and folds the action (value and type) into the reward.

    Episodes have random lengths. Infos contain every kind of value that gymnasium merges, with varying keys.
    """

    metadata: dict[str, Any] = {"render_modes": []}

    def __init__(self, observation_space: spaces.Space, action_space: spaces.Space = spaces.Discrete(3), infos=True):  # noqa: B008
        self.observation_space = copy.deepcopy(observation_space)  # other threads may use the global one
        self.action_space, self.infos = action_space, infos
        self.render_mode = None

    def observe(self) -> Any:
        self.observation_space.seed(int(self.np_random.integers(2**31)))
        return self.observation_space.sample()

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.observe(), self.info()

    def step(self, action):
        end = self.np_random.random(2) < 0.15
        return self.observe(), fold_to_number(action), bool(end[0]), bool(end[1]), self.info()

    def info(self) -> dict[str, Any]:
        draw = self.np_random.random()
        if not self.infos or draw < 0.2:
            return {}
        info = {"draw": draw, "high": draw > 0.5, "wide": np.float32(draw), "row": np.full(2, draw, np.float32)}
        if draw > 0.4:
            info |= {"name": f"{draw:.2f}", "nested": {"x": int(100 * draw), "deep": {"y": draw}}}
        return info


def fold_to_number(value: Any) -> float:
    """Returns a number that distinguishes values, their types and their dtypes."""
    if isinstance(value, dict):
        return sum((i + 1) * fold_to_number(item) for i, (_, item) in enumerate(sorted(value.items())))
    if isinstance(value, tuple | list):
        return sum((i + 1) * fold_to_number(item) for i, item in enumerate(value))
    if value is None or isinstance(value, str):
        return float(zlib.crc32(str(value).encode()) % 1000)
    array = np.asarray(value)
    digest = zlib.crc32(np.ascontiguousarray(array).tobytes() + str((type(value), array.dtype, array.shape)).encode())
    return float(digest % 100_000)


SPACES: dict[str, spaces.Space] = {
    "box": spaces.Box(-1, 1, (2, 3), np.float32),
    "box_scalar": spaces.Box(0, 5, (), np.float64),
    "box_integers": spaces.Box(-3, 3, (2,), np.int16),
    "image": spaces.Box(0, 255, (12, 10, 3), np.uint8),
    "discrete": spaces.Discrete(5),
    "discrete_start": spaces.Discrete(4, start=-2),
    "multi_discrete": spaces.MultiDiscrete([3, 4, 5]),
    "multi_discrete_2d": spaces.MultiDiscrete([[3, 4], [5, 6]]),
    "multi_binary": spaces.MultiBinary((2, 2)),
    "tuple": spaces.Tuple((spaces.Discrete(3), spaces.Box(-1, 1, (2,), np.float64))),
    "dict": spaces.Dict(
        inner=spaces.Dict(image=spaces.Box(0, 9, (2, 2), np.uint8), number=spaces.Discrete(3)),
        pair=spaces.Tuple((spaces.MultiBinary(2), spaces.Box(-1, 1, (1,), np.float32))),
    ),
    "text": spaces.Text(8),
    "graph": spaces.Graph(spaces.Box(-1, 1, (2,)), spaces.Discrete(3)),
    "sequence": spaces.Sequence(spaces.Box(-1, 1, (2,))),
    "sequence_stacked": spaces.Sequence(spaces.Discrete(4), stack=True),
    "one_of": spaces.OneOf((spaces.Discrete(3), spaces.Box(-1, 1, (2,)))),
    "dict_of_text": spaces.Dict(words=spaces.Text(4), place=spaces.Box(-1, 1, (2,), np.float32)),
}
GYMNASIUM = {
    "CartPole-v1": {},
    "Pendulum-v1": {},
    "MountainCar-v0": {"max_episode_steps": 13},
    "MountainCarContinuous-v0": {"max_episode_steps": 9},
    "Blackjack-v1": {},
    "FrozenLake-v1": {"is_slippery": False},
    "Taxi-v4": {"max_episode_steps": 11},
    "InvertedPendulum-v5": {},
}


def counting(n: int, length: int = 4, **kwargs: Any) -> list[Any]:
    """Returns factories of counting environments. Number i ends after `length + i` steps."""
    return [partial(Counting, i, length + i, **kwargs) for i in range(n)]


def echoes(n: int, **kwargs: Any) -> tuple[list[Echo], list[Any]]:
    """Returns recording environments and their factories."""
    envs = [Echo(**kwargs) for _ in range(n)]
    return envs, [lambda env=env: env for env in envs]


def ones(n: int) -> np.ndarray:
    return np.ones((n, 2), np.float32)


def noise(name: str, n: int, action: str = "discrete", **kwargs: Any) -> list[Any]:
    """Returns factories of noise environments over named spaces."""
    return [partial(Noise, SPACES[name], SPACES[action], **kwargs)] * n


def makers(name: str, n: int) -> list[Any]:
    """Returns factories by name: a gymnasium id, "counting", or the name of a space for noise."""
    if name == "counting":
        return counting(n)
    if name in GYMNASIUM:
        return [partial(gymnasium.make, name, **GYMNASIUM[name])] * n
    return noise(name, n)
