"""gymnasium's pendulums and arms: InvertedPendulum, InvertedDoublePendulum, Pusher and Reacher.

InvertedPendulum takes tensors as well as arrays.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..array_library import namespace_of
from .locomotion import noise
from .physics import Rows
from .task import Move, MujocoTask, Reward, Start, columns, lengths, sum_of_squares

Arguments = Any
"""The arguments of gymnasium's environment, as attributes."""

FALLEN_ANGLE = 0.2  # of InvertedPendulum, in radians
FALLEN_HEIGHT = 1.0  # of the tip of InvertedDoublePendulum, in metres
LIMIT = 10.0  # observed speeds and forces of InvertedDoublePendulum are clipped at this value


def make_inverted_pendulum(args: Arguments) -> MujocoTask:
    """Makes InvertedPendulum."""

    def terminated(move: Move) -> np.ndarray:
        state = columns([move.after.qpos, move.after.qvel])
        return ~namespace_of(state).isfinite(state).all(1) | (abs(state[:, 1]) > FALLEN_ANGLE)

    def reward(move: Move) -> Reward:
        rewards = ~move.terminated * 1.0
        return rewards, {"reward_survive": rewards}

    return MujocoTask(
        xml=args.xml_file,
        frame_skip=args.frame_skip,
        start=noise(args.reset_noise_scale),
        observe=lambda rows: columns([rows.qpos, rows.qvel]),
        reward=reward,
        terminated=terminated,
        camera=args.default_camera_config,
    )


def make_inverted_double_pendulum(args: Arguments) -> MujocoTask:
    """Makes InvertedDoublePendulum."""

    def observe(rows: Rows) -> np.ndarray:
        angles, limits = rows.qpos[:, 1:], (-LIMIT, LIMIT)
        speeds, forces = np.clip(rows.qvel, *limits), np.clip(rows.qfrc_constraint[:, :1], *limits)
        return np.concatenate([rows.qpos[:, :1], np.sin(angles), np.cos(angles), speeds, forces], axis=1)

    def reward(move: Move) -> Reward:
        x, _, height = move.after.site_xpos[:, 0].T
        distance = 0.01 * _squares(x) + _squares(height - 2)
        speed = 1e-3 * _squares(move.after.qvel[:, 1]) + 5e-3 * _squares(move.after.qvel[:, 2])
        survive = float(args.healthy_reward) * ~move.terminated
        infos = {"reward_survive": survive, "distance_penalty": -distance, "velocity_penalty": -speed}
        return survive - distance - speed, infos

    return MujocoTask(
        xml=args.xml_file,
        frame_skip=args.frame_skip,
        start=noise(args.reset_noise_scale, normal_velocities=True),
        observe=observe,
        reward=reward,
        terminated=lambda move: move.after.site_xpos[:, 0, 2] <= FALLEN_HEIGHT,
        reads=("qpos", "qvel", "qfrc_constraint", "site_xpos"),
        camera=args.default_camera_config,
    )


def make_pusher(args: Arguments) -> MujocoTask:
    """Makes Pusher."""

    def places(rows: Rows) -> list[np.ndarray]:
        return [rows.xpos[:, rows.body(name)] for name in ("tips_arm", "object", "goal")]

    def reward(move: Move) -> Reward:
        tip, thing, goal = places(move.after)
        near = -lengths(thing - tip) * args.reward_near_weight
        distance = -lengths(thing - goal) * args.reward_dist_weight
        control = -sum_of_squares(move.action) * args.reward_control_weight
        return distance + control + near, {"reward_dist": distance, "reward_ctrl": control, "reward_near": near}

    def start(start: Start) -> tuple[np.ndarray, np.ndarray]:
        start.qpos[:, -4:-2] = [_sample_point(rng, (-0.3, 0), (-0.2, 0.2), 0.17, np.inf) for rng in start.rngs]
        start.qpos[:, -2:] = 0
        velocities = start.qvel + start.uniform(-0.005, 0.005, start.qvel.shape[1])
        velocities[:, -4:] = 0
        return start.qpos, velocities

    return MujocoTask(
        xml=args.xml_file,
        frame_skip=args.frame_skip,
        start=start,
        observe=lambda rows: np.concatenate([rows.qpos[:, :7], rows.qvel[:, :7], *places(rows)], axis=1),
        reward=reward,
        reads=("qpos", "qvel", "xpos"),
        max_episode_steps=100,
        camera=args.default_camera_config,
    )


def make_reacher(args: Arguments) -> MujocoTask:
    """Makes Reacher."""

    def offset(rows: Rows) -> np.ndarray:
        return rows.xpos[:, rows.body("fingertip")] - rows.xpos[:, rows.body("target")]

    def observe(rows: Rows) -> np.ndarray:
        angles = rows.qpos[:, :2]
        parts = [np.cos(angles), np.sin(angles), rows.qpos[:, 2:], rows.qvel[:, :2], offset(rows)[:, :2]]
        return np.concatenate(parts, axis=1)

    def reward(move: Move) -> Reward:
        distance = -lengths(offset(move.after)) * args.reward_dist_weight
        control = -sum_of_squares(move.action) * args.reward_control_weight
        return distance + control, {"reward_dist": distance, "reward_ctrl": control}

    def start(start: Start) -> tuple[np.ndarray, np.ndarray]:
        positions = start.uniform(-0.1, 0.1, start.qpos.shape[1]) + start.qpos
        positions[:, -2:] = [_sample_point(rng, (-0.2, 0.2), (-0.2, 0.2), -np.inf, 0.2) for rng in start.rngs]
        velocities = start.qvel + start.uniform(-0.005, 0.005, start.qvel.shape[1])
        velocities[:, -2:] = 0
        return positions, velocities

    return MujocoTask(
        xml=args.xml_file,
        frame_skip=args.frame_skip,
        start=start,
        observe=observe,
        reward=reward,
        reads=("qpos", "qvel", "xpos"),
        max_episode_steps=50,
        camera=args.default_camera_config,
    )


def _sample_point(
    rng: np.random.Generator, xs: tuple[float, float], ys: tuple[float, float], above: float, below: float
) -> np.ndarray:
    """Samples a point of a rectangle until its distance to the origin is within the bounds, which are excluded."""
    while True:
        point = np.array([rng.uniform(*xs), rng.uniform(*ys)])
        if above < np.linalg.norm(point) < below:
            return point


def _squares(values: np.ndarray) -> np.ndarray:
    """Computes squares by the power function of numbers, as gymnasium does; those of arrays differ in the last bit."""
    return np.array([value**2 for value in values])
