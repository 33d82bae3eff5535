"""Roboschool's tasks by name, on Roboschool itself or on another simulator that has them.

Roboschool is not maintained, and its last supported version of Python is 3.7. It runs on such an interpreter, see
`foreign`. PyBullet has ports of the tasks, with states of the same sizes; MuJoCo has the originals, with other states
and rewards. Both are maintained.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import lru_cache, partial
from importlib import import_module
from typing import Any

import gymnasium

from ..errors import VersionError
from ..gym_interface import Env
from .foreign import ForeignLibrary, named_env
from .gymnasium.make import make

ROBOSCHOOL = ForeignLibrary(
    module="roboschool",
    variable="VECRL_PYTHON_ROBOSCHOOL",
    version="3.7",
    requirements="roboschool==1.0.49 gym==0.15.4",
    names_code="[spec.id for spec in gym.envs.registry.all() if spec.id.startswith('Roboschool')]",
    names_module="gym",
)
_COMMON_TASKS = (
    "InvertedPendulum",
    "InvertedDoublePendulum",
    "Reacher",
    "Hopper",
    "Walker2d",
    "HalfCheetah",
    "Ant",
    "Humanoid",
)
_ROBOSCHOOL_AND_BULLET_TASKS = ("InvertedPendulumSwingup", "HumanoidFlagrun", "HumanoidFlagrunHarder")
_ROBOSCHOOL_ONLY_TASKS = ("Pong", "AtlasForwardWalk")


@dataclass(frozen=True, slots=True)
class SimulatorSource:
    """A simulator that has some of the tasks.

    Attributes:
        simulator: its name.
        module: the module that registers its environments on import.
        library: the library with the `make` that creates them.
        install: the requirement for `pip install`.
        differs: the differences from Roboschool's tasks.
        ids: names of environments by task; the first that is registered is used.
    """

    simulator: str
    module: str
    library: str
    install: str
    differs: str
    ids: Mapping[str, tuple[str, ...]]

    def find_id(self, task: str, elsewhere: bool = False) -> tuple[str | None, str]:
        """Returns the environment's name, or None and the reason why it is not available.

        Args:
            task: the task.
            elsewhere: whether the environment is made on another interpreter, so that nothing is looked up here.
        """
        if task not in self.ids:
            return None, f"{self.simulator} has no such task"
        if elsewhere:
            return self.ids[task][0], ""
        try:
            import_module(self.module)
        except ImportError as error:
            missing = isinstance(error, ModuleNotFoundError) and error.name == self.module
            reason = f'not installed (pip install "{self.install}")' if missing else f"cannot be imported ({error})"
            return None, f"{self.simulator} is {reason}"
        known_ids = self.ids[task]
        if self.library != "gymnasium":
            return known_ids[0], ""
        registered_id = next((name for name in known_ids if name in gymnasium.registry), None)
        return registered_id, "" if registered_id else f"{self.simulator} has registered none of {known_ids}"


SIMULATOR_SOURCES = (
    SimulatorSource(
        "roboschool",
        "roboschool",
        "gym",
        "roboschool==1.0.49",
        "nothing",
        {
            task: (f"Roboschool{task}-v1",)
            for task in (*_COMMON_TASKS, *_ROBOSCHOOL_AND_BULLET_TASKS, *_ROBOSCHOOL_ONLY_TASKS)
        },
    ),
    SimulatorSource(
        "pybullet",
        "pybullet_envs_gymnasium",
        "gymnasium",
        "pybullet-envs-gymnasium",
        "states and actions have the same sizes, physics and rewards differ a little",
        {
            task: (f"{task.replace('2d', '2D')}BulletEnv-v0",)
            for task in (*_COMMON_TASKS, *_ROBOSCHOOL_AND_BULLET_TASKS)
        },
    ),
    SimulatorSource(
        "mujoco",
        "mujoco",
        "gymnasium",
        "gymnasium[mujoco]",
        "states and rewards differ, and so may their sizes",
        {task: tuple(f"{task}-v{version}" for version in (5, 4)) for task in _COMMON_TASKS},
    ),
)


def env_fn(name: str, *, python: str | None = None, simulator: str | None = None, **kwargs: Any) -> Callable[[], Env]:
    """Returns a function that makes a task of Roboschool, on Roboschool itself or on PyBullet.

    Args:
        name: a name such as "RoboschoolHopper-v1".
        python: an interpreter with Roboschool; by default the one that VECRL_PYTHON_ROBOSCHOOL names.
        simulator: "roboschool", "pybullet" or "mujoco" to use only that one; None for Roboschool if there is an
            interpreter with it, else PyBullet, with one warning.
        kwargs: arguments of `make`.

    Raises:
        ValueError: Roboschool has no such task, or there is no such simulator.
        VersionError: no simulator that has the task is available; the message says what to install.
    """
    source, running, arguments = find_source(name, simulator, python, ("roboschool", "pybullet"))
    if simulator is None and source is not SIMULATOR_SOURCES[0]:
        _warn_once(source.simulator, source.differs)
    if arguments:
        return named_env(running, source.library, **arguments, **kwargs)
    return partial(make, running, source.library, **kwargs)


@lru_cache
def _warn_once(simulator: str, differences: str) -> None:
    warnings.warn(
        f"Tasks of Roboschool run on {simulator}, since no interpreter with roboschool is named "
        f"({ROBOSCHOOL.variable}): {differences}.",
        stacklevel=3,
    )


def names() -> list[str]:
    """Returns the names of the tasks that can be made.

    Raises:
        VersionError: no simulator that has them is available.
    """
    found, error = [], None
    for task in SIMULATOR_SOURCES[0].ids:
        try:
            find_source(f"Roboschool{task}-v1", default=("roboschool", "pybullet"))
        except VersionError as caught:
            error = caught
        else:
            found.append(f"Roboschool{task}-v1")
    if error is not None and not found:
        raise error
    return found


def find_source(
    env_name: str, simulator: str | None = None, python: str | None = None, default: Sequence[str] = ()
) -> tuple[SimulatorSource, str, dict[str, Any]]:
    """Returns the first source that has the task, the environment's name there, and arguments for `make`.

    Args:
        env_name: Roboschool's name of the task.
        simulator: the only source to use.
        python: an interpreter with Roboschool; by default the one that VECRL_PYTHON_ROBOSCHOOL names.
        default: the sources to use without `simulator`; all if empty.

    Raises:
        ValueError: Roboschool has no such task, or there is no such simulator.
        VersionError: no simulator that has the task is available; the message says what to install.
    """
    names = {f"Roboschool{task}-v1": task for task in SIMULATOR_SOURCES[0].ids}
    if env_name not in names:
        matches = get_close_matches(env_name, names, 1)
        hint = f"Did you mean {matches[0]!r}? " if matches else ""
        raise ValueError(f"Expected a task of Roboschool, got {env_name!r}. {hint}There are {list(names)}.")
    wanted = [simulator] if simulator is not None else default or [source.simulator for source in SIMULATOR_SOURCES]
    sources = [source for source in SIMULATOR_SOURCES if source.simulator in wanted]
    if not sources:
        simulator_names = [source.simulator for source in SIMULATOR_SOURCES]
        raise ValueError(f"Expected simulator to be one of {simulator_names}, got {simulator!r}.")
    reasons: list[str] = []
    for source in sources:
        path = ROBOSCHOOL.find_python(python) if source is SIMULATOR_SOURCES[0] else None
        running, reason = source.find_id(names[env_name], path is not None)
        if running is not None:
            return source, running, {} if path is None else {"python": path, "modules": (source.module,)}
        reasons.append(reason)
    advice = f" Roboschool needs an older Python. {ROBOSCHOOL.advice}" if SIMULATOR_SOURCES[0] in sources else ""
    raise VersionError(
        f"Expected a simulator that has {env_name}, got none. Install one: {'; '.join(reasons)}.{advice}"
    )
