"""Roboschool's tasks by name, on Roboschool itself or on another simulator that has them.

Roboschool is not maintained, and its last supported version of Python is 3.7. PyBullet has ports of the tasks, with
states of the same sizes; MuJoCo has the originals, with other states and rewards. Both are maintained.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from importlib import import_module
from typing import Any

import gymnasium

from ..errors import VersionError
from .gym import GymEnv

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

    def find_id(self, task: str) -> tuple[str | None, str]:
        """Returns the environment's name, or None and the reason why it is not available."""
        if task not in self.ids:
            return None, f"{self.simulator} has no such task"
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


class RoboschoolEnv(GymEnv):
    """A task of Roboschool, on the first of roboschool, PyBullet and MuJoCo that is installed.

    Warns if the simulator is not Roboschool itself; `simulator` and `running` say which one is used.

    Args:
        env_name: a name such as "RoboschoolHopper-v1".
        wrappers, seed: see `GymEnv`.
        simulator: "roboschool", "pybullet" or "mujoco" to use only that one, without a warning; None for the first
            that is installed.
        kwargs: see `GymEnv`.

    Attributes:
        running: the name of the environment that is used.

    Raises:
        ValueError: Roboschool has no such task, or there is no such simulator.
        VersionError: no simulator that has the task is installed; the message says what to install.

    >>> env = RoboschoolEnv("RoboschoolInvertedPendulum-v1", simulator="mujoco")
    >>> env.running.rstrip("45"), env.reset().shape
    ('InvertedPendulum-v', (4,))
    """

    def __init__(self, env_name: str, *args: Any, simulator: str | None = None, **kwargs: Any):
        source, self.running = _find_source(env_name, simulator)
        self._source = source
        if simulator is None and source is not SIMULATOR_SOURCES[0]:
            warnings.warn(
                f"{env_name} runs as {self.running} on {source.simulator}, since roboschool is not available: "
                f'{source.differs}. Set simulator="{source.simulator}" to choose it without a warning.',
                stacklevel=2,
            )
        super().__init__(env_name, *args, library=source.library, **kwargs)

    def _id(self) -> str:
        return self.running

    @property
    def simulator(self) -> str:
        """The simulator that is used: "roboschool", "pybullet" or "mujoco"."""
        return self._source.simulator

    def __repr__(self) -> str:
        return f"{super().__repr__()[:-1]}, running={self.running!r})"


def _find_source(env_name: str, simulator: str | None) -> tuple[SimulatorSource, str]:
    """Returns the first source that has the task (or only `simulator`, if given), and the environment's name there."""
    names = {f"Roboschool{task}-v1": task for task in SIMULATOR_SOURCES[0].ids}
    if env_name not in names:
        matches = get_close_matches(env_name, names, 1)
        hint = f"Did you mean {matches[0]!r}? " if matches else ""
        raise ValueError(f"Expected a task of Roboschool, got {env_name!r}. {hint}There are {list(names)}.")
    sources = [source for source in SIMULATOR_SOURCES if simulator in (None, source.simulator)]
    if not sources:
        simulator_names = [source.simulator for source in SIMULATOR_SOURCES]
        raise ValueError(f"Expected simulator to be one of {simulator_names}, got {simulator!r}.")
    reasons: list[str] = []
    for source in sources:
        running, reason = source.find_id(names[env_name])
        if running is not None:
            return source, running
        reasons.append(reason)
    raise VersionError(f"Expected a simulator that has {env_name}, got none. Install one: {'; '.join(reasons)}.")
