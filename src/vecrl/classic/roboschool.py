"""Roboschool's tasks as classic environments. `vecrl.simulators.roboschool` finds a simulator that has them."""

from __future__ import annotations

import warnings
from typing import Any

from ..simulators.registry import check_env_name
from ..simulators.roboschool import SIMULATOR_SOURCES, find_source
from .gym import GymEnv


class RoboschoolEnv(GymEnv):
    """A task of Roboschool, on the first of roboschool, PyBullet and MuJoCo that is available.

    Warns if the simulator is not Roboschool itself; `simulator` and `running` say which one is used.

    Args:
        env_name: a name such as "RoboschoolHopper-v1".
        wrappers, seed: see `GymEnv`.
        simulator: "roboschool", "pybullet" or "mujoco" to use only that one, without a warning; None for the first
            that is installed.
        python: an interpreter with Roboschool, which needs Python 3.7; by default the one that the environment variable
            VECRL_PYTHON_ROBOSCHOOL names.
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

    def __init__(
        self, env_name: str, *args: Any, simulator: str | None = None, python: str | None = None, **kwargs: Any
    ):
        check_env_name(env_name)
        source, self.running, arguments = find_source(env_name, simulator, python)
        self._source = source
        if simulator is None and source is not SIMULATOR_SOURCES[0]:
            warnings.warn(
                f"{env_name} runs as {self.running} on {source.simulator}, since roboschool is not available: "
                f'{source.differs}. Set simulator="{source.simulator}" to choose it without a warning.',
                stacklevel=2,
            )
        super().__init__(env_name, *args, library=source.library, **arguments, **kwargs)

    def _id(self) -> str:
        return self.running

    @property
    def simulator(self) -> str:
        """The simulator that is used: "roboschool", "pybullet" or "mujoco"."""
        return self._source.simulator

    def __repr__(self) -> str:
        return f"{super().__repr__()[:-1]}, running={self.running!r})"
