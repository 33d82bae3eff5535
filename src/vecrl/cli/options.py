"""The options of `vecrl evolve`, as `config.yaml` holds them: their kinds and ranges, and which may change."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

from vecrl.policy.population import PopulationEvaluator

CHANGEABLE = {"generations", "stop_at", "test_every", "test_episodes", "video"}
CHANGEABLE |= {"backend", "workers", "device", "compile", "threads"}
COUNTS = "generations", "subbatch_size", "episodes", "max_steps", "workers", "test_every", "test_episodes", "threads"
LEAST = {"popsize": 2, "seed": 0, **dict.fromkeys(COUNTS, 1)}


@dataclass(frozen=True, slots=True)
class Options:
    """What `config.yaml` holds: the options of the command."""

    env: str
    network: str
    generations: int
    popsize: int
    subbatch_size: int
    episodes: int
    max_steps: int | None
    stdev: float
    max_speed: float | None
    obs_norm: bool
    action_noise: float
    decrease_rewards_by: float
    alive_bonus: tuple[float, float, float] | None
    backend: str
    workers: int | None
    device: str | None
    compile: bool
    seed: int | None
    stop_at: float | None
    test_every: int | None
    test_episodes: int
    video: bool
    threads: int
    env_args: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Look at every value, for it may come from a file that somebody wrote by hand.

        Raises:
            ValueError: a value of another kind, or out of its range.
        """
        for name, kind in get_type_hints(type(self)).items():
            value = getattr(self, name)
            if not _fits(value, kind):
                raise ValueError(f"Expected {name} to be {_described(kind)}, but {value!r} came.")
            if name in LEAST and value is not None and value < LEAST[name]:
                raise ValueError(f"Expected {name} of {LEAST[name]} or more, but {value!r} came.")

    @classmethod
    def of(cls, config: Mapping[str, Any], path: Path) -> Options:
        """From the mapping in the file `path`.

        Raises:
            ValueError: a key is missing or unknown, or a value does not fit.
        """
        missing, unknown = cls.names() - set(config), set(map(str, config)) - cls.names()
        for problem, keys in (("lacks", missing), ("should not have", unknown)):
            if keys:
                raise ValueError(f"{path} {problem} {', '.join(sorted(keys))}; mend it, or begin a new run.")
        given: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in config.items()
        }
        try:
            return cls(**given)
        except ValueError as error:
            raise ValueError(f"{path} cannot be used: {error}") from error

    @classmethod
    def names(cls) -> set[str]:
        """Of all options."""
        return {option.name for option in fields(cls)}

    def evaluator(self) -> PopulationEvaluator:
        """What judges populations; one more than `popsize`, the search's centre, goes along."""
        return PopulationEvaluator(
            self.env,
            self.network,
            self.popsize + 1,
            subbatch_size=self.subbatch_size,
            backend=self.backend,  # type: ignore[arg-type]
            num_workers=self.workers,
            num_episodes=self.episodes,
            max_steps=self.max_steps,
            obs_norm=self.obs_norm,
            action_noise=self.action_noise,
            decrease_rewards_by=self.decrease_rewards_by,
            alive_bonus=self.alive_bonus,
            seed=self.seed,
            device=self.device,
            compile=self.compile,
            env_kwargs=self.env_args,
        )


def _fits(value: Any, kind: Any) -> bool:
    """Whether a value is of a kind that is annotated above; whole numbers are numbers, bools and nan are not."""
    arguments = get_args(kind)
    if isinstance(kind, UnionType):
        return any(_fits(value, one) for one in arguments)
    if get_origin(kind) is tuple:
        return isinstance(value, tuple) and len(value) == len(arguments) and all(map(_fits, value, arguments))
    if get_origin(kind) is dict:
        return isinstance(value, dict) and all(isinstance(key, str) for key in value)
    if kind is float:
        return type(value) is int or (type(value) is float and math.isfinite(value))
    return type(value) is kind


def _described(kind: Any) -> str:
    words = {float: "a finite number", int: "a whole number", str: "text", bool: "true or false", type(None): "nothing"}
    if isinstance(kind, UnionType):
        return " or ".join(map(_described, get_args(kind)))
    if get_origin(kind) is tuple:
        return f"{len(get_args(kind))} finite numbers"
    return words.get(kind, "a mapping of names")
