"""The table of gymnasium's MuJoCo tasks: what makes each task, and the arguments of its environment with defaults.

The defaults are those of version 5.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np

from .balance_and_reach import make_inverted_double_pendulum, make_inverted_pendulum, make_pusher, make_reacher
from .locomotion import make_runner, make_standup
from .task import MujocoTask


@dataclass(frozen=True, slots=True)
class TaskEntry:
    """One of gymnasium's tasks.

    Attributes:
        make: makes the task from the arguments, which are attributes.
        defaults: the arguments of gymnasium's environment.
    """

    make: Callable[[Any], MujocoTask]
    defaults: Mapping[str, Any]


def make_task(name: str, **arguments: Any) -> MujocoTask:
    """Makes one of gymnasium's tasks.

    Args:
        name: a key of `TASKS`.
        arguments: of gymnasium's environment.

    Raises:
        ValueError: there is no such task.
        TypeError: the environment has no such argument.

    >>> make_task("Hopper-v5", reset_noise_scale=0.0).frame_skip
    4
    """
    if name not in TASKS:
        raise ValueError(f"Expected one of {', '.join(TASKS)}, got {name!r}.")
    entry = TASKS[name]
    if unknown := sorted({*arguments} - {*entry.defaults}):
        raise TypeError(f"Expected arguments of {name} among {', '.join(entry.defaults)}, got {', '.join(unknown)}.")
    return entry.make(SimpleNamespace(**{**entry.defaults, **arguments}))


def _camera(height: float, distance: float, body: int) -> dict[str, Any]:
    return {"trackbodyid": body, "distance": distance, "lookat": np.array((0.0, 0.0, height)), "elevation": -20.0}


_MOVES = {"forward_reward_weight": 1.0, "reset_noise_scale": 0.1, "exclude_current_positions_from_observation": True}
_BALANCES = _MOVES | {
    "ctrl_cost_weight": 1e-3,
    "healthy_reward": 1.0,
    "terminate_when_unhealthy": True,
    "reset_noise_scale": 5e-3,
}
_HUMANOID = {
    "frame_skip": 5,
    "ctrl_cost_weight": 0.1,
    "reset_noise_scale": 1e-2,
    "exclude_current_positions_from_observation": True,
    "include_cinert_in_observation": True,
    "include_cvel_in_observation": True,
    "include_qfrc_actuator_in_observation": True,
    "include_cfrc_ext_in_observation": True,
}
TASKS = {
    "Ant-v5": TaskEntry(
        partial(make_runner, "Ant-v5"),
        _MOVES
        | {
            "xml_file": "ant.xml",
            "frame_skip": 5,
            "default_camera_config": {"distance": 4.0},
            "ctrl_cost_weight": 0.5,
            "contact_cost_weight": 5e-4,
            "healthy_reward": 1.0,
            "main_body": 1,
            "terminate_when_unhealthy": True,
            "healthy_z_range": (0.2, 1.0),
            "contact_force_range": (-1.0, 1.0),
            "include_cfrc_ext_in_observation": True,
        },
    ),
    "HalfCheetah-v5": TaskEntry(
        partial(make_runner, "HalfCheetah-v5"),
        _MOVES
        | {
            "xml_file": "half_cheetah.xml",
            "frame_skip": 5,
            "default_camera_config": {"distance": 4.0},
            "ctrl_cost_weight": 0.1,
        },
    ),
    "Hopper-v5": TaskEntry(
        partial(make_runner, "Hopper-v5"),
        _BALANCES
        | {
            "xml_file": "hopper.xml",
            "frame_skip": 4,
            "default_camera_config": _camera(1.15, 3.0, 2),
            "healthy_state_range": (-100.0, 100.0),
            "healthy_z_range": (0.7, float("inf")),
            "healthy_angle_range": (-0.2, 0.2),
        },
    ),
    "Humanoid-v5": TaskEntry(
        partial(make_runner, "Humanoid-v5"),
        _HUMANOID
        | {
            "xml_file": "humanoid.xml",
            "default_camera_config": _camera(2.0, 4.0, 1),
            "forward_reward_weight": 1.25,
            "contact_cost_weight": 5e-7,
            "contact_cost_range": (-np.inf, 10.0),
            "healthy_reward": 5.0,
            "terminate_when_unhealthy": True,
            "healthy_z_range": (1.0, 2.0),
        },
    ),
    "HumanoidStandup-v5": TaskEntry(
        make_standup,
        _HUMANOID
        | {
            "xml_file": "humanoidstandup.xml",
            "default_camera_config": _camera(0.8925, 4.0, 1),
            "uph_cost_weight": 1,
            "impact_cost_weight": 0.5e-6,
            "impact_cost_range": (-np.inf, 10.0),
        },
    ),
    "InvertedDoublePendulum-v5": TaskEntry(
        make_inverted_double_pendulum,
        {
            "xml_file": "inverted_double_pendulum.xml",
            "frame_skip": 5,
            "default_camera_config": None,
            "healthy_reward": 10.0,
            "reset_noise_scale": 0.1,
        },
    ),
    "InvertedPendulum-v5": TaskEntry(
        make_inverted_pendulum,
        {
            "xml_file": "inverted_pendulum.xml",
            "frame_skip": 2,
            "default_camera_config": {"trackbodyid": 0, "distance": 2.04},
            "reset_noise_scale": 0.01,
        },
    ),
    "Pusher-v5": TaskEntry(
        make_pusher,
        {
            "xml_file": "pusher_v5.xml",
            "frame_skip": 5,
            "default_camera_config": {"trackbodyid": -1, "distance": 4.0},
            "reward_near_weight": 0.5,
            "reward_dist_weight": 1,
            "reward_control_weight": 0.1,
        },
    ),
    "Reacher-v5": TaskEntry(
        make_reacher,
        {
            "xml_file": "reacher.xml",
            "frame_skip": 2,
            "default_camera_config": {"trackbodyid": 0},
            "reward_dist_weight": 1,
            "reward_control_weight": 1,
        },
    ),
    "Swimmer-v5": TaskEntry(
        partial(make_runner, "Swimmer-v5"),
        _MOVES | {"xml_file": "swimmer.xml", "frame_skip": 4, "default_camera_config": None, "ctrl_cost_weight": 1e-4},
    ),
    "Walker2d-v5": TaskEntry(
        partial(make_runner, "Walker2d-v5"),
        _BALANCES
        | {
            "xml_file": "walker2d_v5.xml",
            "frame_skip": 4,
            "default_camera_config": _camera(1.15, 4.0, 2),
            "healthy_z_range": (0.8, 2.0),
            "healthy_angle_range": (-1.0, 1.0),
        },
    ),
}
