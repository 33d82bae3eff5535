"""gymnasium's robots that move: Ant, HalfCheetah, Hopper, Humanoid, HumanoidStandup, Swimmer and Walker2d.

`RUNNERS` has what differs between the six that are rewarded for their speed; the rest is the same for all. Sums have
the order of gymnasium's, so that results are equal to the bit. HalfCheetah and Hopper take tensors as well as arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...engine.simulator import Array
from .physics import Rows
from .task import Move, MujocoTask, Reward, Start, columns, flat, lengths, sum_of_squares

Arguments = Any
"""The arguments of gymnasium's environment, as attributes."""

SPEED_LIMIT = 10.0  # observed speeds are clipped at this value in some tasks


@dataclass(frozen=True, kw_only=True, slots=True)
class Runner:
    """A robot that is rewarded for its speed along the x-axis.

    Attributes:
        position: computes the positions `[n, d]` of what moves; the first is along the x-axis.
        skipped: how many of the first positions are not observed.
        infos: computes the infos of a step, besides speeds and terms of the reward.
        observed: computes `[n, k]` numbers that are observed besides positions and velocities.
        healthy: computes `[n]` bool; None for a robot without such a reward.
        contact_cost: computes `[n]`; None for a robot without such a cost.
        reads: the fields of MuJoCo that these functions read, besides positions and velocities.
        normal_velocities: whether velocities begin with normal noise rather than uniform noise.
        clips_speeds: whether observed speeds are clipped.
        exact_controls: whether the cost of actions is computed in float64.
    """

    position: Callable[[Rows, Arguments], np.ndarray]
    skipped: int
    infos: Callable[[Move], Mapping[str, np.ndarray]]
    observed: Callable[[Rows, Arguments], Sequence[np.ndarray]] = lambda rows, args: ()
    healthy: Callable[[Rows, Arguments], np.ndarray] | None = None
    contact_cost: Callable[[Rows, Arguments], np.ndarray] | None = None
    reads: Sequence[str] = ()
    normal_velocities: bool = False
    clips_speeds: bool = False
    exact_controls: bool = False


def make_runner(name: str, args: Arguments) -> MujocoTask:
    """Makes the task of a key of `RUNNERS`."""
    robot = RUNNERS[name]
    terminates = robot.healthy is not None and args.terminate_when_unhealthy

    def reward(move: Move) -> Reward:
        rows = move.after
        speeds = (robot.position(rows, args) - robot.position(move.before, args)) / rows.dt[:, None]
        forward = args.forward_reward_weight * speeds[:, 0]
        action = move.action.astype(np.float64) if robot.exact_controls else move.action
        costs = args.ctrl_cost_weight * sum_of_squares(action)
        infos = {"x_velocity": speeds[:, 0], "reward_forward": forward, "reward_ctrl": -costs, **robot.infos(move)}
        if speeds.shape[1] > 1:
            infos["y_velocity"] = speeds[:, 1]
        rewards = forward
        if robot.healthy is not None:
            healthy = ~move.terminated if terminates else robot.healthy(rows, args)
            infos["reward_survive"] = survive = healthy * float(args.healthy_reward)
            rewards = forward + survive
        if robot.contact_cost is not None:
            contact = robot.contact_cost(rows, args)
            infos["reward_contact"] = -contact
            costs = costs + contact
        return rewards - costs, infos

    def terminated(move: Move) -> np.ndarray:
        assert robot.healthy is not None
        return ~robot.healthy(move.after, args)

    return MujocoTask(
        xml=args.xml_file,
        frame_skip=args.frame_skip,
        start=noise(args.reset_noise_scale, robot.normal_velocities),
        observe=_observe(robot, args),
        reward=reward,
        terminated=terminated if terminates else None,
        reads=("qpos", "qvel", *robot.reads),
        forces="cfrc_ext" in robot.reads,
        camera=args.default_camera_config,
    )


def make_standup(args: Arguments) -> MujocoTask:
    """Makes HumanoidStandup. As in gymnasium, `uph_cost_weight` has no effect."""

    def reward(move: Move) -> Reward:
        rows = move.after
        rise = (rows.qpos[:, 2] - 0) / (rows.dt / args.frame_skip)
        control = args.ctrl_cost_weight * sum_of_squares(move.action.astype(np.float64))
        impact = args.impact_cost_weight * sum_of_squares(rows.cfrc_ext)
        impact = np.clip(impact, *args.impact_cost_range)
        terms = {"reward_linup": rise, "reward_quadctrl": -control, "reward_impact": -impact}
        height = {"z_distance_from_origin": rows.qpos[:, 2] - move.home[:, 2]}
        return rise - control - impact + 1, terms | height | _places(move, 2) | _tendons(move)

    robot = RUNNERS["Humanoid-v5"]
    return MujocoTask(
        xml=args.xml_file,
        frame_skip=args.frame_skip,
        start=noise(args.reset_noise_scale),
        observe=_observe(robot, args),
        reward=reward,
        reads=("qpos", "qvel", *robot.reads),
        forces=True,
        camera=args.default_camera_config,
    )


def noise(scale: float, normal_velocities: bool = False) -> Callable[[Start], tuple[Array, Array]]:
    """Returns a function that starts episodes near the positions of the model, with uniform or normal velocities."""

    def start(start: Start) -> tuple[Array, Array]:
        positions = start.qpos + start.uniform(-scale, scale, start.qpos.shape[1])
        size = start.qvel.shape[1]
        velocities = scale * start.normal(size) if normal_velocities else start.uniform(-scale, scale, size)
        return positions, start.qvel + velocities

    return start


def _observe(robot: Runner, args: Arguments) -> Callable[[Rows], Array]:
    skipped = robot.skipped if args.exclude_current_positions_from_observation else 0

    def observe(rows: Rows) -> Array:
        velocities = rows.qvel.clip(-SPEED_LIMIT, SPEED_LIMIT) if robot.clips_speeds else rows.qvel
        return columns([rows.qpos[:, skipped:], velocities, *robot.observed(rows, args)])

    return observe


def _within(values: np.ndarray, bounds: tuple[float, float]) -> np.ndarray:
    low, high = bounds
    return (low < values) & (values < high)


def _first_positions(count: int) -> Callable[[Rows, Arguments], np.ndarray]:
    return lambda rows, args: rows.qpos[:, :count]


def _main_body(rows: Rows, args: Arguments) -> np.ndarray:
    return rows.xpos[:, rows.body(args.main_body), :2]


def _center_of_mass(rows: Rows, args: Arguments) -> np.ndarray:
    mass = rows.body_mass
    return (np.sum(mass[:, :, None] * rows.xipos, axis=1) / np.sum(mass, axis=1)[:, None])[:, :2]


def _ant_forces(rows: Rows, args: Arguments) -> np.ndarray:
    return np.clip(rows.cfrc_ext, *args.contact_force_range)


def _ant_contact_cost(rows: Rows, args: Arguments) -> np.ndarray:
    return args.contact_cost_weight * sum_of_squares(_ant_forces(rows, args))


def _ant_observed(rows: Rows, args: Arguments) -> Sequence[np.ndarray]:
    return [flat(_ant_forces(rows, args)[:, 1:])] if args.include_cfrc_ext_in_observation else []


def _ant_healthy(rows: Rows, args: Arguments) -> np.ndarray:
    low, high = args.healthy_z_range
    height = rows.qpos[:, 2]
    return np.isfinite(rows.qpos).all(1) & np.isfinite(rows.qvel).all(1) & (low <= height) & (height <= high)


def _hopper_healthy(rows: Rows, args: Arguments) -> np.ndarray:
    state = columns([rows.qpos[:, 2:], rows.qvel])
    return _within(state, args.healthy_state_range).all(1) & _upright(rows, args)


def _upright(rows: Rows, args: Arguments) -> np.ndarray:
    return _within(rows.qpos[:, 1], args.healthy_z_range) & _within(rows.qpos[:, 2], args.healthy_angle_range)


def _humanoid_healthy(rows: Rows, args: Arguments) -> np.ndarray:
    return _within(rows.qpos[:, 2], args.healthy_z_range)


def _humanoid_contact_cost(rows: Rows, args: Arguments) -> np.ndarray:
    return np.clip(args.contact_cost_weight * sum_of_squares(rows.cfrc_ext), *args.contact_cost_range)


def _humanoid_observed(rows: Rows, args: Arguments) -> Sequence[np.ndarray]:
    parts = {
        "cinert": 1,
        "cvel": 1,
        "qfrc_actuator": 6,
        "cfrc_ext": 1,
    }  # after the world's, or the root's
    chosen = [name for name in parts if getattr(args, f"include_{name}_in_observation")]
    return [flat(getattr(rows, name)[:, parts[name] :]) for name in chosen]


def _places(move: Move, count: int) -> dict[str, np.ndarray]:
    return {f"{axis}_position": move.after.qpos[:, i] for i, axis in enumerate("xy"[:count])}


def _distance(move: Move) -> dict[str, np.ndarray]:
    return _places(move, 2) | {"distance_from_origin": lengths(move.after.qpos[:, :2])}


def _height(move: Move) -> dict[str, np.ndarray]:
    return _places(move, 1) | {"z_distance_from_origin": move.after.qpos[:, 1] - move.home[:, 1]}


def _tendons(move: Move) -> dict[str, np.ndarray]:
    return {"tendon_length": move.after.ten_length, "tendon_velocity": move.after.ten_velocity}


RUNNERS = {
    "Ant-v5": Runner(
        position=_main_body,
        skipped=2,
        infos=_distance,
        observed=_ant_observed,
        healthy=_ant_healthy,
        contact_cost=_ant_contact_cost,
        reads=("xpos", "cfrc_ext"),
        normal_velocities=True,
    ),
    "HalfCheetah-v5": Runner(
        position=_first_positions(1), skipped=1, infos=lambda move: _places(move, 1), normal_velocities=True
    ),
    "Hopper-v5": Runner(
        position=_first_positions(1), skipped=1, infos=_height, healthy=_hopper_healthy, clips_speeds=True
    ),
    "Humanoid-v5": Runner(
        position=_center_of_mass,
        skipped=2,
        infos=lambda move: _distance(move) | _tendons(move),
        observed=_humanoid_observed,
        healthy=_humanoid_healthy,
        contact_cost=_humanoid_contact_cost,
        reads=(*("body_mass", "xipos", "cinert", "cvel"), *("qfrc_actuator", "cfrc_ext", "ten_length", "ten_velocity")),
        exact_controls=True,
    ),
    "Swimmer-v5": Runner(position=_first_positions(2), skipped=2, infos=_distance),
    "Walker2d-v5": Runner(position=_first_positions(1), skipped=1, infos=_height, healthy=_upright, clips_speeds=True),
}
