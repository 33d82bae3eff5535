"""Tasks of Genesis with robots that its package contains: an arm that reaches goals, a dog that stands.

Each part is a function of a built scene, see `GenesisTask`. Genesis is imported when a scene is made.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch
from gymnasium.spaces import Box
from torch import Tensor

from ..registries import check_name
from .genesis import GenesisSimulator, GenesisTask, Scene, genesis_library, new_scene
from .row_task import make_row_batch

ARM = torch.tensor([0.0, -0.785, 0.0, -2.356, 0.0, 1.571, 0.785, 0.04, 0.04])  # joints of the Franka arm at the start
GOAL = torch.tensor([0.3, -0.3, 0.2]), torch.tensor([0.6, 0.3, 0.6])  # bounds of goals in meters
STANCE = torch.tensor([0.0, 0.8, -1.5, 0.0, 0.8, -1.5, 0.0, 1.0, -1.5, 0.0, 1.0, -1.5])  # joints of a Go2 that stands
HEIGHT = 0.3  # of its trunk in meters


def _arm_scene() -> Scene:
    gs = genesis_library()
    scene = new_scene(collisions=False)
    scene.add_entity(gs.morphs.MJCF(file="xml/franka_emika_panda/panda.xml"))
    floating = gs.materials.Rigid(gravity_compensation=1.0)
    scene.add_entity(gs.morphs.Sphere(radius=0.03, collision=False), floating, gs.surfaces.Default(color=(1, 0, 0)))
    return scene


def _start_arm(positions: Tensor, draws: Tensor) -> Tensor:
    positions[:, :9] = ARM.to(positions) + 0.1 * (2 * draws[:, :9] - 1) * (ARM.to(positions) != 0.04)
    low, high = (bound.to(positions) for bound in GOAL)
    positions[:, 9:12] = low + (high - low) * draws[:, 9:12]
    return positions


def _move_arm(scene: Scene, actions: Tensor) -> None:
    arm = scene.entities[1]
    arm.control_dofs_position(arm.get_dofs_position()[:, :7] + 0.1 * actions, range(7))


def _to_goal(scene: Scene) -> Tensor:
    return scene.entities[2].get_pos() - scene.entities[1].get_link("hand").get_pos()


def _observe_arm(scene: Scene) -> Tensor:
    arm = scene.entities[1]
    hand = arm.get_link("hand").get_pos()
    return torch.cat([arm.get_dofs_position(), arm.get_dofs_velocity(), hand, _to_goal(scene)], 1)


def _dog_scene() -> Scene:
    gs = genesis_library()
    scene = new_scene()
    scene.add_entity(gs.morphs.URDF(file="urdf/go2/urdf/go2.urdf", pos=(0, 0, 0.36)))
    return scene


def _start_dog(positions: Tensor, draws: Tensor) -> Tensor:
    positions[:, 7:] = STANCE.to(positions) + 0.1 * (2 * draws[:, 7:] - 1)
    return positions


def _move_dog(scene: Scene, actions: Tensor) -> None:
    dog = scene.entities[1]
    errors = STANCE.to(actions) + 0.3 * actions - dog.get_dofs_position()[:, 6:]
    torques = 40 * errors - dog.get_dofs_velocity()[:, 6:]
    dog.control_dofs_force(torques.clamp(-23.7, 23.7), range(6, 18))


def _observe_dog(scene: Scene) -> Tensor:
    dog = scene.entities[1]
    return torch.cat([dog.get_qpos()[:, 2:], dog.get_dofs_velocity()], 1)


def _reward_dog(scene: Scene, actions: Tensor) -> Tensor:
    height = scene.entities[1].get_pos()[:, 2]
    return 1 - 5 * (height - HEIGHT).abs() - 0.05 * actions.square().sum(1)


def _has_fallen(scene: Scene) -> Tensor:
    dog = scene.entities[1]
    quaternion = dog.get_quat()
    upright = 1 - 2 * quaternion[:, 1:3].square().sum(1)  # the vertical part of the trunk's axis
    return (dog.get_pos()[:, 2] < HEIGHT / 2) | (upright < 0.5)


TASKS = {
    "franka-reach": GenesisTask(
        name="franka-reach",
        make_scene=_arm_scene,
        action_space=Box(-1, 1, (7,), np.float32),
        act=_move_arm,
        observe=_observe_arm,
        reward=lambda scene, actions: -_to_goal(scene).norm(dim=1),
        start=_start_arm,
        max_episode_steps=200,
    ),
    "go2-stand": GenesisTask(
        name="go2-stand",
        make_scene=_dog_scene,
        action_space=Box(-1, 1, (12,), np.float32),
        act=_move_dog,
        observe=_observe_dog,
        reward=_reward_dog,
        terminated=_has_fallen,
        start=_start_dog,
        max_episode_steps=500,
    ),
}


def make_simulator(name: str, num_envs: int, **options: Any) -> GenesisSimulator:
    """Makes a `GenesisSimulator` of the task of this name; `options` are its further arguments."""
    check_name("a task of Genesis", name, TASKS)
    return GenesisSimulator(TASKS[name], num_envs, **options)


make_batch = partial(make_row_batch, make_simulator)


def names() -> list[str]:
    """Returns the names of the tasks."""
    return [*TASKS]
