"""`vecrl check`: checks an environment and prints what differs from what is expected.

The checks run in a worker process, so that crashes and timeouts of an environment are reported, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.spaces import Box, Dict, Discrete, Space, Tuple
from rich.markup import escape

from ..engine.space_layout import AnySpace, Tree
from ..engine.transition import AutoresetMode
from ..engine.trees import map_tree
from ..errors import SpaceError, StepTimeout, WorkerCrash, place_of
from ..gym_interface import Env
from ..simulators.native import NativeSimulator
from ..simulators.registry import BARE, Entry, find_entry, register_entry
from ..simulators.row_task_checks import check_functions
from ..vector.batched_vector_env import BatchedVectorEnv
from ..vector.factory import make_vector_env
from ..vector.vector_env import VectorEnv
from .console import console, first_line, name_hint, print_json

AnyVectorEnv = gymnasium.vector.VectorEnv[Tree, Tree, np.ndarray]
EPISODES = 2
MAX_STEPS = 1500
EXIT_ADVICE = "Raise an exception instead of ending the process (os._exit, abort, a crash in native code)."
TIMEOUT_ADVICE = "It hangs or is slow. --timeout gives each check more seconds."
ALWAYS_0 = "Rewards were always 0. Check step, unless they are rare."
NOT_FINITE = "A division by 0, a logarithm or an overflow makes it. Check what it is computed from."
NO_EXCEPTION = "no exception"
WORKER, RENDERING = "same in a worker process", "rendering"


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check; `ok` is None if the check could not run. Warnings are about what is seldom intended."""

    check_name: str
    ok: bool | None
    expected: str
    actual: str
    advice: str = ""
    warnings: tuple[str, ...] = ()


class CheckFailed(Exception):
    """The actual result differs from the expected one."""

    def __init__(self, expected: str, actual: str, advice: str = ""):
        super().__init__(expected, actual, advice)


class EnvChecks(gymnasium.Env[Tree, Tree]):
    """Runs the checks of an environment; is an environment itself, so that the engine runs it in a worker process.

    So crashes and timeouts are detected and reported as for any environment.

    Args:
        name: the environment to check, a name for `make_vector_env`.
        make_one: creates one environment; None for a batched simulator, which is created by name.
        kwargs: keyword arguments of the environment.
        seed: seed of all episodes.
        entry: the entry of the environment's prefix, since the checks run in a worker.
        make_rendering: creates one environment that renders images; None for a batched simulator.
    """

    observation_space = action_space = Discrete(1)  # required, but this environment is never stepped

    def __init__(
        self,
        name: str,
        make_one: Callable[[], Env] | None,
        kwargs: Mapping[str, Any],
        seed: int,
        entry: Entry,
        make_rendering: Callable[[], Env] | None = None,
    ):
        register_entry(entry)
        self.name, self.make_one, self.kwargs, self.seed = name, make_one, kwargs, seed
        self.make_rendering = make_rendering
        self.env: Any = None
        self.warnings: list[str] = []  # of the check that is running

    def run_check(self, check_name: str) -> Finding | None:
        """Runs a check, a key of `CHECKS`, and returns its result; None if it is for other environments."""
        self.warnings.clear()
        try:
            if (found := CHECKS[check_name](self)) is None:
                return None
            return Finding(check_name, True, *found, warnings=tuple(self.warnings))
        except CheckFailed as failure:
            expected, actual, advice = failure.args
            return Finding(check_name, False, expected, actual, advice)
        except (Exception, SystemExit) as error:  # any exception of the environment is a finding
            text = first_line(error, "")
            if not isinstance(error, SpaceError) and text != type(error).__name__:  # which says what was expected
                text = f"{type(error).__name__}: {text}"
            return Finding(check_name, False, NO_EXCEPTION, text + place_of(error))

    def make(self, renders: bool = False) -> Env:
        """Creates one environment, which renders images if `renders`."""
        make_python_env = self.make_rendering if renders else self.make_one
        if make_python_env is not None:
            return make_python_env()
        render_kwargs: dict[str, Any] = {"render_mode": "rgb_array"} if renders else {}
        return make_vector_env(self.name, **self.kwargs, **render_kwargs).env

    def make_vector(self, mode: AutoresetMode, backend: str = "serial") -> AnyVectorEnv:
        """Creates a vector environment of three environments."""
        if self.make_one is None:
            env = make_vector_env(self.name, num_envs=3, **self.kwargs).env
            return BatchedVectorEnv(env.simulator, autoreset_mode=mode) if isinstance(env, BatchedVectorEnv) else env
        return VectorEnv([self.make_one] * 3, backend=backend, autoreset_mode=mode, num_workers=2)  # type: ignore[arg-type]


# ---------------------------------------------------------------------- single environments


def _check_make(checks: EnvChecks) -> tuple[str, str]:
    checks.env = checks.make()
    return "an environment", type(checks.env.unwrapped).__name__


def _check_space(env: object, name: str) -> tuple[str, str]:
    space = getattr(env, name, None)
    if not isinstance(space, Space):
        raise CheckFailed(
            "a space", repr(space)[:80], f"Set self.{name} to one of gymnasium.spaces in the constructor."
        )
    return "a space", str(space)


def _check_reset(env: Env, seed: int) -> tuple[str, str]:
    actual = env.reset(seed=seed)
    if not isinstance(actual, tuple) or len(actual) != 2 or not isinstance(actual[1], dict):
        raise CheckFailed(
            "(observation, info)", type(actual).__name__, "reset should return an observation and a dict."
        )
    _check_obs(env.observation_space, actual[0])
    return "within its space", _describe_value(actual[0])


def _check_functions(checks: EnvChecks) -> tuple[str, str] | None:
    simulator = getattr(checks.env.unwrapped, "simulator", None)
    if not isinstance(simulator, NativeSimulator):
        return None
    check_functions(simulator)
    return "shapes and dtypes as declared", "as declared"


def _step(env: Env, action: Tree) -> tuple[Tree, ...]:
    try:
        result = env.step(action)
    except ValueError as error:
        if " values to unpack" not in str(error):
            raise
        result = env.unwrapped.step(action)  # the wrapper for the time limit has unpacked what this returns
        if isinstance(result, tuple) and len(result) == 5:
            raise
    if not isinstance(result, tuple) or len(result) != 5:
        found = f"{len(result)} values" if isinstance(result, tuple) else type(result).__name__
        raise CheckFailed(
            "(observation, reward, terminated, truncated, info) from step",
            found,
            "Four values are the old gym's interface: wrap it in vecrl.simulators.legacy_gym.LegacyGymAdapter.",
        )
    return result


def _check_steps(checks: EnvChecks) -> tuple[str, str]:
    env, seed = checks.env, checks.seed
    lengths, ends = [0] * EPISODES, False
    observations, rewards = _Distinct(), _Distinct()
    for episode in range(EPISODES):
        observations.add(_leaves(env.reset(seed=seed + episode)[0]))
        env.action_space.seed(seed + episode)  # after the reset, in which some environments make a new space
        for lengths[episode] in range(1, MAX_STEPS + 1):
            obs, reward, terminated, truncated, info = _step(env, _sample(env))
            _check_obs(env.observation_space, obs)
            if not np.isscalar(_to_numpy(reward)[()]) or not np.isfinite(float(reward)):
                is_number = np.isscalar(_to_numpy(reward)[()])
                raise CheckFailed(
                    f"a finite number as reward in step {lengths[episode]} of episode {episode}",
                    f"{float(reward)}" if is_number else repr(reward),
                    NOT_FINITE if is_number else "step should return a float as reward.",
                )
            for flag, value in (("terminated", terminated), ("truncated", truncated)):
                if _to_numpy(value).dtype != bool or _to_numpy(value).shape != ():
                    raise CheckFailed(f"{flag} to be a bool", repr(value), f"step should return bool({flag}).")
            if not isinstance(info, dict):
                raise CheckFailed("info to be a dict", type(info).__name__)
            observations.add(_leaves(obs))
            rewards.add([_to_numpy(reward)])
            if terminated or truncated:
                ends = True
                break
    checks.warnings += [
        text
        for applies, text in (
            (not ends, f"No episode ended within {MAX_STEPS} steps. Give it a time limit."),
            (not observations.differ, "Observations never changed. Return a new observation in each step."),
            (not rewards.differ and float(rewards.first[0]) == 0.0, ALWAYS_0),
        )
        if applies
    ]
    return "observations, rewards and flags as declared", f"lengths {lengths}"


class _Distinct:
    """Whether the values that were added differ."""

    def __init__(self) -> None:
        self.first: list[np.ndarray] = []
        self.differ = False

    def add(self, leaves: list[np.ndarray]) -> None:
        """Adds a value; it is copied, since an environment may write to it later."""
        if not self.first:
            self.first = [leaf.copy() for leaf in leaves]
        elif not self.differ:
            self.differ = not all(map(_arrays_equal, self.first, leaves))


def _check_obs(space: AnySpace, obs: Tree, name: str = "") -> None:
    """Raises `CheckFailed` if an observation, or a part of it called `name`, is not in its space."""
    if isinstance(space, Dict):
        if not isinstance(obs, Mapping) or set(obs) != set(space.spaces):
            raise CheckFailed(f"keys {sorted(space.spaces)}{name}", _describe_value(obs), "Return all declared keys.")
        for key, part in space.spaces.items():
            _check_obs(part, obs[key], f"{name or ' at '}[{key!r}]")
        return
    if isinstance(space, Tuple):
        if not isinstance(obs, tuple) or len(obs) != len(space.spaces):
            raise CheckFailed(f"a tuple of {len(space.spaces)}{name}", _describe_value(obs), "Return all parts.")
        for index, part in enumerate(space.spaces):
            _check_obs(part, obs[index], f"{name or ' at '}[{index}]")
        return
    value = _to_numpy(obs) if isinstance(obs, torch.Tensor) else obs
    if isinstance(space, Box):
        _check_box(space, np.asarray(value), name)
    elif value not in space:
        raise CheckFailed(f"{space}{name}", repr(value)[:80], "Return observations in the declared space.")


def _check_box(space: Box, array: np.ndarray, name: str) -> None:
    declared = space.dtype, space.shape
    if (array.dtype, array.shape) != declared:
        advice = [f"as {space.dtype}"] * (array.dtype != space.dtype)
        advice += [f"of shape {space.shape}"] * (array.shape != space.shape)
        raise CheckFailed(
            f"{space.dtype} of shape {space.shape}{name}",
            f"{array.dtype} of shape {array.shape}",
            f"Return observations {' '.join(advice)}, as the space declares.",
        )
    if array.dtype.kind == "f" and np.isnan(array).any():
        raise CheckFailed(f"numbers{name}", f"nan at {tuple(np.argwhere(np.isnan(array))[0].tolist())}", NOT_FINITE)
    out_of_bounds = ~((array >= space.low) & (array <= space.high))
    if out_of_bounds.any():
        position = tuple(int(i) for i in np.argwhere(out_of_bounds)[0])
        bounds = f"[{space.low[position]:g}, {space.high[position]:g}] at {position}{name.replace(' at ', ' of ')}"
        raise CheckFailed(bounds, f"{array[position]:g}", "Widen the bounds, or clip observations.")


def _check_seeds(checks: EnvChecks) -> tuple[str, str]:
    first_trajectory, second_trajectory, other_trajectory = (
        _trajectory(checks.env, seed) for seed in (checks.seed, checks.seed, checks.seed + 1)
    )
    position = _difference(first_trajectory, second_trajectory)
    if position is not None:
        raise CheckFailed(
            "equal trajectories",
            f"others from step {position} on",
            "Call super().reset(seed=seed), set every attribute in reset, and draw from self.np_random only.",
        )
    # the actions of another seed differ, too
    if all(map(_arrays_equal, first_trajectory[0], other_trajectory[0])):
        other = _trajectory(checks.env, checks.seed + 1, checks.seed)
        if _difference(first_trajectory, other) is None:
            checks.warnings.append("Another seed gave the same episode. Use self.np_random if episodes should differ.")
    return "equal trajectories", "equal"


def _check_close(checks: EnvChecks) -> tuple[str, str]:
    checks.env.close()
    return "no exception", "none"


def _check_new_env(make: Callable[..., Env], seed: int) -> tuple[str, str]:
    trajectories: list[list[list[np.ndarray]]] = []
    for _ in range(2):
        with closing(make()) as env:
            trajectories.append(_trajectory(env, seed))
    position = _difference(*trajectories)
    if position is not None:
        raise CheckFailed(
            "equal trajectories",
            f"others from step {position} on",
            "Keep no state outside the environment object.",
        )
    return "equal trajectories", "equal"


def _trajectory(env: Env, seed: int, action_seed: int | None = None) -> list[list[np.ndarray]]:
    obs, _ = env.reset(seed=seed)
    env.action_space.seed(
        seed if action_seed is None else action_seed
    )  # after the reset, in which some environments make a new space
    rows = [_leaves(obs)]
    for _ in range(200):
        obs, reward, terminated, truncated, _ = _step(env, _sample(env))
        rows.append([*_leaves(obs), _to_numpy(reward), _to_numpy(terminated), _to_numpy(truncated)])
        if terminated or truncated:
            break
    return rows


def _check_render(make: Callable[..., Env], seed: int) -> tuple[str, str]:
    expected = "uint8 [height, width, 3]"
    with closing(make(renders=True)) as env:
        env.reset(seed=seed)
        frame = env.render()
    if frame is None:
        raise CheckFailed(expected, "None", "render should return an image.")
    frame = np.asarray(frame)
    if frame.dtype != np.uint8 or frame.ndim != 3 or frame.shape[2] != 3:
        raise CheckFailed(expected, _describe_value(frame))
    return expected, _describe_value(frame)


# ---------------------------------------------------------------------- vector environments


def _check_modes(make_vector: Callable[..., AnyVectorEnv], seed: int) -> tuple[str, str]:
    """Checks that the rewards of the first episode of each row are the same in all auto-reset modes."""
    rewards_by_mode = {mode: _first_episodes(make_vector(mode), seed) for mode in AutoresetMode}
    reference = rewards_by_mode[AutoresetMode.NEXT_STEP]
    for mode, rewards in rewards_by_mode.items():
        if not all(np.array_equal(a, b) for a, b in zip(rewards, reference, strict=True)):
            raise CheckFailed("the same rewards in each mode", f"others in {mode.value}")
    return "the same rewards in each mode", f"first lengths {[len(rewards) for rewards in reference]}"


def _check_backends(make_vector: Callable[..., AnyVectorEnv], seed: int) -> tuple[str, str]:
    local_rewards, remote_rewards = (
        _first_episodes(make_vector(AutoresetMode.SAME_STEP, b), seed) for b in ("serial", "processes")
    )
    if not all(np.array_equal(a, b) for a, b in zip(local_rewards, remote_rewards, strict=True)):
        raise CheckFailed(
            "the same rewards as in this process", "others", "Do not depend on the state of this process."
        )
    return "the same rewards as in this process", "the same"


def _first_episodes(vector: AnyVectorEnv, seed: int) -> list[np.ndarray]:
    with closing(vector):
        vector.action_space.seed(seed)
        vector.reset(seed=seed)
        rewards: list[list[float]] = [[] for _ in range(vector.num_envs)]
        is_running = [True] * vector.num_envs
        for _ in range(MAX_STEPS):
            _, reward, terminated, truncated, _ = vector.step(vector.action_space.sample())
            for row in np.flatnonzero(is_running).tolist():
                rewards[row].append(float(reward[row]))
                is_running[row] = not (terminated[row] or truncated[row])
            if not any(is_running):
                break
            done = terminated | truncated
            if vector.metadata["autoreset_mode"] is AutoresetMode.DISABLED and done.any():
                vector.reset(options={"reset_mask": done})
    return [np.array(row) for row in rewards]


# ---------------------------------------------------------------------- values


def _sample(env: Env) -> Tree:
    action = env.action_space.sample()
    return map_tree(torch.as_tensor, action) if hasattr(env, "simulator") else action


def _to_numpy(value: Tree) -> np.ndarray:
    return value.cpu().numpy() if isinstance(value, torch.Tensor) else np.asarray(value)


def _leaves(obs: Tree) -> list[np.ndarray]:
    if isinstance(obs, Mapping):
        return [leaf for key in sorted(obs) for leaf in _leaves(obs[key])]
    if isinstance(obs, tuple):
        return [leaf for part in obs for leaf in _leaves(part)]
    return [_to_numpy(obs)]


def _difference(a: list[list[np.ndarray]], b: list[list[np.ndarray]]) -> int | None:
    """Returns the first step in which two trajectories differ, or None."""
    for step, (row, other_row) in enumerate(zip(a, b, strict=False)):
        if not all(map(_arrays_equal, row, other_row)):
            return step
    return None if len(a) == len(b) else min(len(a), len(b))


def _arrays_equal(x: np.ndarray, y: np.ndarray) -> bool:
    return np.array_equal(x, y, equal_nan=x.dtype.kind == "f")


def _describe_value(value: Tree) -> str:
    if isinstance(value, tuple):
        return "(" + ", ".join(map(_describe_value, value)) + ")"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {_describe_value(part)}" for key, part in value.items()) + "}"
    numpy_value = _to_numpy(value)
    return f"{numpy_value.dtype} {list(numpy_value.shape)}"


BASIC: dict[str, Callable[[EnvChecks], tuple[str, str]]] = {  # if one of these fails, the others cannot run
    "creation": _check_make,
    "observation space": lambda checks: _check_space(checks.env, "observation_space"),
    "action space": lambda checks: _check_space(checks.env, "action_space"),
}
CHECKS: dict[str, Callable[[EnvChecks], tuple[str, str] | None]] = {
    **BASIC,
    "functions of the task": _check_functions,
    "first observation": lambda checks: _check_reset(checks.env, checks.seed),
    f"{EPISODES} episodes": _check_steps,
    "same seed, same episode": _check_seeds,
    "closing": _check_close,
    "fresh object, same episode": lambda checks: _check_new_env(checks.make, checks.seed),
    "auto-reset in all modes": lambda checks: _check_modes(checks.make_vector, checks.seed),
    WORKER: lambda checks: _check_backends(checks.make_vector, checks.seed),
    RENDERING: lambda checks: _check_render(checks.make, checks.seed),
}
SEEDED = "same seed, same episode", "fresh object, same episode", "auto-reset in all modes", WORKER
# If one of these fails, the next ones would fail for the same reason.
CHAIN = "functions of the task", "first observation", f"{EPISODES} episodes", *SEEDED, RENDERING
LIMITED_CHECKS = {"seeds": SEEDED, "pixels": (RENDERING,)}  # checks that a limit of an entry rules out


def check_env(
    env: str,
    kwargs: Mapping[str, Any],
    *,
    seed: int,
    render: bool,
    timeout: float,
    preload: Sequence[str] = (),
    as_json: bool = False,
) -> bool:
    """Prints a line for each check, then what is wrong; returns whether all checks passed.

    Args:
        timeout: timeout of each check in seconds.
        preload: modules that register environments, for the process of the checks.
        as_json: whether to print the results as JSON, too.
    """
    console.print(f"[bold]{escape(env)}[/]")
    findings: list[Finding] = []
    symbols = {True: "[green]ok[/]", False: "[bold red]no[/]", None: "[yellow]–[/] "}
    width = max(map(len, CHECKS))
    for finding in _findings(env, kwargs, seed, render, timeout, preload):
        findings.append(finding)
        text = finding.actual if finding.ok is not False else "see below"
        symbol = "[yellow]! [/]" if finding.warnings else symbols[finding.ok]
        console.print(f"  {symbol}  {finding.check_name:<{width}}  {escape(text)}", soft_wrap=True)
    mismatches = [finding for finding in findings if finding.ok is False]
    for finding in mismatches:
        what = "" if finding.expected == NO_EXCEPTION else f"Expected {finding.expected}, got "
        text = f"{what}{finding.actual.removesuffix('.')}. {finding.advice}".rstrip()
        console.print(f"[red]{finding.check_name}[/]: {escape(text)}", soft_wrap=True)
    for finding in findings:
        for warning in finding.warnings:
            console.print(f"[yellow]{finding.check_name}[/]: {escape(warning)}", soft_wrap=True)
    if findings and findings[0].ok is False and (hint := name_hint(env)):
        console.print(escape(hint), soft_wrap=True)
    console.print("[green]All checks passed.[/]" if not mismatches else f"[red]Mismatches: {len(mismatches)}.[/]")
    if as_json:
        print_json({"env": env, "passed": not mismatches, "checks": [asdict(finding) for finding in findings]})
    return not mismatches


def _reason_for_no_check(check_name: str, entry: Entry, failed: str) -> str:
    """Returns why a check would say nothing new: a limit of the simulator, or a check that failed before; else ""."""
    limits = (text for word, text in entry.limits.items() if check_name in LIMITED_CHECKS.get(word, ()))
    return next(limits, f"not checked, since {failed!r} failed" if failed and check_name in CHAIN else "")


def _findings(
    env: str, kwargs: Mapping[str, Any], seed: int, render: bool, timeout: float, preload: Sequence[str]
) -> Iterator[Finding]:
    entry, name = find_entry(env)
    make_env = make_rendering = None
    if entry.env_fn is not None:  # called here, since names may not be registered in the worker
        options = {**kwargs, "disable_env_checker": True} if entry.prefix == BARE else kwargs
        make_env = entry.env_fn(name, **options)
        make_rendering = entry.env_fn(name, **options, render_mode="rgb_array") if render else None
    skipped = {WORKER} if entry.is_batched else set()
    skipped |= set() if render else {RENDERING}
    checks = partial(EnvChecks, env, make_env, kwargs, seed, entry, make_rendering)
    with VectorEnv([checks], backend="processes", num_workers=1, step_timeout=timeout, preload=preload) as worker:
        failed = ""  # the first check of the chain that failed
        for check_name in CHECKS:
            if check_name in skipped:
                continue
            if reason := _reason_for_no_check(check_name, entry, failed):
                yield Finding(check_name, None, "no check", reason)
                continue
            try:
                with console.status(f"checking: {check_name}"):
                    finding = worker.call("run_check", check_name)[0]
            except WorkerCrash as error:
                yield Finding(check_name, False, "no end of the process", error.failures[0].error, EXIT_ADVICE)
                return
            except StepTimeout:
                yield Finding(check_name, False, f"a result within {timeout:g} s", "none", TIMEOUT_ADVICE)
                return
            if finding is None:
                continue
            yield finding
            if check_name in BASIC and not finding.ok:
                return
            if check_name in CHAIN and finding.ok is False:
                failed = check_name
