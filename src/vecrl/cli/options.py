"""The options of `vecrl evolve` as in `config.yaml`: their types and ranges, and which may change on a resume."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

from torch import Tensor

from ..errors import NetParsingError
from ..policy.population import PopulationEvaluator
from ..policy.search import Search
from ..policy.search_algorithms import ALGORITHMS
from ..registries import check_name
from ..validation import parse_device
from .console import MAX_COUNT, MAX_THREADS

CHANGEABLE_OPTIONS = {"generations", "stop_at", "test_every", "test_episodes", "video", "logger"}
CHANGEABLE_OPTIONS |= {"backend", "workers", "device", "compile", "threads"}
COUNT_OPTIONS = (
    "generations",
    "subbatch_size",
    "episodes",
    "max_steps",
    "workers",
    "test_every",
    "test_episodes",
    "threads",
)
VERSION = "vecrl"  # the key of the version of vecrl
MINIMUMS = {"popsize": 2, "seed": 0, **dict.fromkeys(COUNT_OPTIONS, 1)}
MAXIMUMS = {**dict.fromkeys(("popsize", *COUNT_OPTIONS), MAX_COUNT), "threads": MAX_THREADS}


@dataclass(frozen=True, slots=True)
class Options:
    """The contents of `config.yaml`: the options of the command."""

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
    logger: str | None = None
    algorithm: str = "cem"

    def __post_init__(self) -> None:
        """Checks every value, since it may come from a file that was edited by hand.

        Raises:
            ValueError: a value has the wrong type, or is out of its range.
        """
        for name, expected_type in get_type_hints(type(self)).items():
            value = getattr(self, name)
            if not _has_type(value, expected_type):
                raise ValueError(f"Expected {name} to be {_describe_type(expected_type)}, got {value!r}.")
            if name in MINIMUMS and value is not None and value < MINIMUMS[name]:
                raise ValueError(f"Expected {name} of {MINIMUMS[name]} or more, got {value!r}.")
            if name in MAXIMUMS and value is not None and value > MAXIMUMS[name]:
                raise ValueError(f"Expected {name} of {MAXIMUMS[name]} or less, got {value!r}.")
        if self.device is not None:
            parse_device(self.device)
        check_name("a search", self.algorithm, ALGORITHMS)
        if self.max_speed is not None and self.algorithm != "pgpe-clipup":
            raise ValueError(
                f"Expected max_speed with the algorithm 'pgpe-clipup' only, got it with {self.algorithm!r}. Omit it, "
                "or give --algorithm pgpe-clipup."
            )

    @classmethod
    def from_dict(cls, config: Mapping[str, Any], path: Path) -> Options:
        """Creates the options from the mapping in the file `path`, which may also name the version that wrote it.

        Raises:
            ValueError: a key is missing or unknown, or a value does not fit.
        """
        config = {name: value for name, value in config.items() if name != VERSION}
        missing, unknown = cls.names() - set(config), set(map(str, config)) - cls.names()
        for problem_text, keys in (("lacks", missing), ("should not have", unknown)):
            if keys:
                raise ValueError(f"{path} {problem_text} {', '.join(sorted(keys))}. Correct it, or start a new run.")
        values: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in config.items()
        }
        try:
            return cls(**values)
        except ValueError as error:
            raise ValueError(f"{path} cannot be used: {error}") from error

    @classmethod
    def names(cls) -> set[str]:
        """Returns the names of all options."""
        return {option.name for option in fields(cls)}

    def search(self, center: Tensor, seed: int) -> Search:
        """Creates the search, with `seed` for its noise.

        Raises:
            ValueError: the algorithm cannot have this population size or number of parameters.
        """
        speed: dict[str, Any] = {} if self.max_speed is None else {"max_speed": self.max_speed}
        return ALGORITHMS[self.algorithm](center, self.popsize, stdev=self.stdev, seed=seed, **speed)

    def evaluator(self) -> PopulationEvaluator:
        """Creates the evaluator, for `popsize` members and the center of the search.

        Raises:
            ValueError: the network is not in the network language, or another option does not fit.
        """
        try:
            return self._evaluator()
        except NetParsingError as error:
            raise ValueError(f"Expected a --network in the network language, got {self.network!r}: {error}") from error

    def _evaluator(self) -> PopulationEvaluator:
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


def _has_type(value: object, expected_type: object) -> bool:
    """Returns whether a value has an annotated type; an int is a float, too, but a bool or nan is not."""
    arguments = get_args(expected_type)
    if isinstance(expected_type, UnionType):
        return any(_has_type(value, member_type) for member_type in arguments)
    if get_origin(expected_type) is tuple:
        return isinstance(value, tuple) and len(value) == len(arguments) and all(map(_has_type, value, arguments))
    if get_origin(expected_type) is dict:
        return isinstance(value, dict) and all(isinstance(key, str) for key in value)
    if expected_type is float:
        is_finite = type(value) is float and math.isfinite(value)
        return is_finite or (type(value) is int and abs(value) <= sys.float_info.max)
    return type(value) is expected_type


def _describe_type(expected_type: object) -> str:
    names = {float: "a finite number", int: "a whole number", str: "text", bool: "true or false", type(None): "nothing"}
    if isinstance(expected_type, UnionType):
        return " or ".join(map(_describe_type, get_args(expected_type)))
    if get_origin(expected_type) is tuple:
        return f"{len(get_args(expected_type))} finite numbers"
    return names.get(expected_type, "a mapping of names")
