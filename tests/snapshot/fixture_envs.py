"""Environments that keep state in every supported way."""

from __future__ import annotations

import random
from collections import OrderedDict, defaultdict, deque
from dataclasses import dataclass, field
from enum import Enum, Flag, auto
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium import spaces


class Mood(Enum):
    CALM = 1
    CROSS = "x"


class Powers(Flag):
    FLY = auto()
    SWIM = auto()


class Place(NamedTuple):
    x: float
    y: float


@dataclass
class Enemy:
    place: Place
    mood: Mood = Mood.CALM
    friends: list[Enemy] = field(default_factory=list)


@dataclass(frozen=True)
class Law:
    limit: float


class Slotted:
    __slots__ = ("energy", "never_stops")

    def __init__(self) -> None:
        self.energy = 1.0


class Bag(dict):
    def __init__(self) -> None:
        super().__init__()
        self.weight = 0.0


class Pile(list):
    label = ""


class Herd(set):
    label = ""


class Window:
    """Cannot be saved: a restore must keep the existing object."""


class RichStateEnv(gymnasium.Env[Any, Any]):
    """Has attributes of every kind. Its steps change them, and its observations depend on them."""

    def __init__(self) -> None:
        self.observation_space = spaces.Box(-np.inf, np.inf, (4,))
        self.action_space = spaces.Discrete(3)
        self.window: Window | None = Window()
        self.file = open(__file__, "rb")  # noqa: SIM115 -- closed by `close`
        self.draw = lambda: self.np_random.random()
        self.reset()

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.board = np.zeros((3, 4))
        self.row = self.board[1]
        self.turned = np.arange(6.0).reshape(2, 3).T.copy(order="F")
        seed = int(self.np_random.integers(1 << 30))
        self.dice, self.old = random.Random(seed), np.random.RandomState(seed)
        self.enemies = [Enemy(Place(1.0, 2.0))]
        self.boss = self.enemies[0]
        self.boss.friends.append(self.boss)
        self.law, self.mood, self.powers = Law(1.0), Mood.CALM, Powers.FLY
        self.past: deque[float] = deque(maxlen=3)
        self.seen: set[int] = set()
        self.counts: defaultdict[str, int] = defaultdict(int)
        self.order: OrderedDict[str, int] = OrderedDict()
        self.slotted, self.bag, self.pile, self.herd = Slotted(), Bag(), Pile(), Herd()
        self.grid = np.array([None, self.boss], object)
        self.number, self.raw, self.wave, self.marks = np.float32(0.5), b"", 1j, bytearray(b"a")
        self.frozen = frozenset({1})
        return self._look(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        move = self.np_random.normal() + self.dice.random() + self.old.rand() + self.draw()
        self.row += move
        self.turned[0] += self.row[0]
        if self.dice.random() < 0.3:
            self.enemies.append(Enemy(Place(move, 0.0), Mood.CROSS, [self.boss]))
            self.boss = self.enemies[-1]
            self.law, self.powers = Law(move), self.powers ^ Powers.SWIM
        self.boss.place = Place(self.boss.place.y, move)
        self.mood = Mood.CROSS if move > 1 else Mood.CALM
        self.past.append(move)
        self.seen.add(int(move * 10))
        self.counts[f"{int(move)}"] += 1
        self.order[f"{int(move)}"] = int(action)
        self.order.move_to_end(next(iter(self.order)))
        self.slotted.energy *= 0.9
        self.bag["move"], self.bag.weight = move, self.bag.weight + 1
        self.pile.append(move)
        self.herd.add(int(move))
        self.grid[0] = self.boss
        self.number = np.float32(self.number + move)
        self.raw, self.wave, self.marks = bytes([int(action)]), self.wave * 2, self.marks + b"b"
        self.frozen = self.frozen | {int(action)}
        return self._look(), float(move), False, len(self.pile) >= 40, {}

    def _look(self) -> np.ndarray:
        assert not self.file.closed
        assert self.row.base is self.board
        assert self.grid[1] is self.enemies[0]
        assert self.boss in self.enemies
        parts = [self.board.sum(), self.turned.ravel(order="K")[0], self.boss.place.x, self.law.limit]
        parts[0] += sum(self.past) + sum(self.seen) + len(self.counts) + sum(self.order.values()) + len(self.raw)
        parts[1] += self.slotted.energy + self.bag.weight + sum(self.pile) + sum(self.herd) + float(self.number)
        parts[2] += len(self.enemies) + (self.mood is Mood.CROSS) + abs(self.wave) + len(self.marks)
        parts[3] += self.powers.value + sum(self.frozen) + (next(iter(self.order.values())) if self.order else 0)
        return np.array(parts, np.float32)

    def close(self) -> None:
        self.file.close()


class OwnStateEnv(gymnasium.Env[Any, Any]):
    """Saves its own state, without that of its generator."""

    observation_space = spaces.Box(-np.inf, np.inf, (1,))
    action_space = spaces.Discrete(2)

    def __init__(self) -> None:
        self.hidden = iter(())  # cannot be saved
        self.x = 0.0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.x = 0.0
        return np.array([self.x], np.float32), {}

    def step(self, action: int) -> Any:
        self.x += self.np_random.random()
        return np.array([self.x], np.float32), self.x, self.x > 9, False, {}

    def get_state(self) -> dict[str, Any]:
        return {"x": np.array([self.x]), "place": Place(1.0, self.x)}

    def set_state(self, state: dict[str, Any]) -> None:
        assert state["place"].y == state["x"][0]
        self.x = float(state["x"][0])

    state_classes = (Place,)


class HiddenStateEnv(OwnStateEnv):
    """Has an iterator that affects its results."""

    get_state = set_state = None  # type: ignore[assignment]


def play(env: Any, steps: int = 30) -> list[Any]:
    """Returns the results of an environment under actions sampled from its own space."""
    seen: list[Any] = []
    for _ in range(steps):
        obs, reward, terminated, truncated, _ = env.step(env.action_space.sample())
        seen.append((np.asarray(obs).tobytes(), reward, terminated, truncated))
        if terminated or truncated:
            seen.append(np.asarray(env.reset()[0]).tobytes())
    return seen
