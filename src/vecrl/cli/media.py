"""Plots of learning curves and returns (without a screen), and videos of episodes (by ffmpeg)."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from itertools import count, islice, zip_longest
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    from matplotlib.axes import Axes

from ..policy.policy_io import PolicyIO
from ..policy.population import creation_errors
from ..simulators.registry import find_entry
from ..snapshot.atomic_write import atomic_file
from ..vector.batched_vector_env import BatchedVectorEnv
from ..vector.factory import make_vector_env
from ..vector.vector_env import VectorEnv
from .constant_observation import make_constant_observation_env
from .run_log import RunLog

MAX_FRAMES = 3000
MAX_RATE = 30  # frames per second; environments with more steps per second are rendered at every few steps
VIDEO_SUFFIXES = ".mp4", ".mkv", ".mov", ".gif"
PLOT_SUFFIXES = (".png",)
PolicyFn = Callable[..., Tensor | tuple[Tensor, ...]]
"""Computes outputs from features `[1, obs_length]`, and a hidden state if there is one."""


def require_ffmpeg() -> None:
    """Raises an ImportError, which says what to install, if videos cannot be encoded."""
    from ..record import video  # here, since the package imports TensorDicts

    video.require_ffmpeg()


def prepare_output_path(path: Path, suffixes: Sequence[str]) -> None:
    """Creates the folder of a file to write.

    Raises:
        ValueError: the file has none of these suffixes, or is a folder.
        OSError: the folder cannot be created or written to.
    """
    if path.suffix.lower() not in suffixes or path.is_dir():
        raise ValueError(f"Expected a file name that ends in {' or '.join(suffixes)}, got {str(path)!r}.")
    path.parent.mkdir(parents=True, exist_ok=True)
    if not os.access(path.parent, os.W_OK):
        raise PermissionError(f"Expected a writable folder, got {path.parent}. Give a file in another folder.")


def draw_curve(rows: Sequence[Mapping[str, float]], path: Path, title: str, target: float | None = None) -> None:
    """Plots the returns over environment steps from the rows of metrics.csv, as a png."""
    with _figure(path, title) as axes:
        _draw_curve(rows, axes, target)


def _draw_curve(rows: Sequence[Mapping[str, float]], axes: Axes, target: float | None) -> None:
    steps = [row["steps"] for row in rows]
    marker = "o" if len(rows) < 3 else None
    best, mean = ([row[name] for row in rows] for name in ("best", "mean"))
    axes.plot(steps, best, color="#9ecae1", marker=marker, label="best member")
    axes.plot(steps, [row["center"] for row in rows], color="#d95f0e", marker=marker, label="center of the search")
    axes.plot(steps, mean, color="#08519c", linewidth=2, marker=marker, label="mean of the population")
    tested = _points(rows, "test")
    if tested:
        style = {"color": "#238b45", "linestyle": "--", "marker": "D", "markersize": 5, "zorder": 3}
        axes.plot(*zip(*tested, strict=True), **style, label="test")
        axes.plot(*max(tested, key=itemgetter(1)), "*", color="#238b45", markersize=14, zorder=4, label="best test")
    _label(axes, "return of an episode", target)


def draw_runs(runs: Mapping[str, tuple[str, Sequence[Mapping[str, float]]]], path: Path) -> None:
    """Plots the test returns of runs over environment steps, as a png: a part of the picture for each environment.

    Args:
        runs: the environment and the rows of metrics.csv, by the name of the run.
    """
    envs = sorted({env for env, _ in runs.values()})
    with _pictures(path, envs) as pictures:
        for axes, env in zip(pictures, envs, strict=True):
            for name, (run_env, rows) in runs.items():
                if run_env == env:
                    points = _points(rows, "test") or [(math.nan, math.nan)]
                    axes.plot(*zip(*points, strict=True), marker="o", markersize=3, label=name)
            _label(axes, "mean return of a test")


def draw_seeds(runs: Sequence[Sequence[Mapping[str, float]]], path: Path, title: str, target: float | None) -> None:
    """Plots the mean over runs with other seeds, and a band from the lowest to the highest, as a png.

    Between two tests, and after its last one, a run counts with its latest.

    Args:
        runs: the rows of metrics.csv of each run.
    """
    with _pictures(path, [title]) as (axes,):
        for name, label, color in (("mean", "mean of the population", "#08519c"), ("test", "test", "#238b45")):
            curves = [points for rows in runs if (points := _points(rows, name))]
            if not curves:
                continue
            steps = np.unique([step for curve in curves for step, _ in curve])
            values = np.array([_latest(curve, steps) for curve in curves])
            with warnings.catch_warnings():  # before the first values of all runs
                warnings.simplefilter("ignore", RuntimeWarning)
                low, middle, high = np.nanmin(values, 0), np.nanmean(values, 0), np.nanmax(values, 0)
            axes.plot(steps, middle, color=color, linewidth=2, label=f"{label}, mean of {len(runs)} seeds")
            axes.fill_between(steps, low, high, color=color, alpha=0.2, linewidth=0)
        _label(axes, "return of an episode", target)


def _latest(curve: Sequence[tuple[float, float]], steps: np.ndarray) -> np.ndarray:
    """Returns the latest value of a curve at each of these steps; NaN before its first."""
    own_steps, values = np.array(curve).T
    index = np.searchsorted(own_steps, steps, "right") - 1
    return np.where(index < 0, np.nan, values[index])


def _points(rows: Sequence[Mapping[str, float]], name: str) -> list[tuple[float, float]]:
    """Returns the steps and the values of a column, of the rows that have one."""
    return [(row["steps"], row[name]) for row in rows if not math.isnan(row[name])]


def _label(axes: Axes, ylabel: str, target: float | None = None) -> None:
    """Labels the axes of a curve, and draws the goal if there is one."""
    if target is not None:
        axes.axhline(target, color="gray", linestyle="--", linewidth=1, label=f"goal: {target:g}")
    axes.set_xlabel("environment steps")
    axes.set_ylabel(ylabel)
    axes.ticklabel_format(axis="x", style="sci", scilimits=(0, 5))
    if axes.get_lines():  # the legend stands beside them, since it would hide some
        axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1), borderaxespad=0, frameon=False)


def draw_returns(returns: Sequence[float], path: Path, title: str) -> None:
    """Plots a histogram of returns, as a png."""
    with _figure(path, title) as axes:
        axes.hist(returns, bins="auto" if len(set(returns)) > 1 else 1, color="#9ecae1", edgecolor="#08519c")
        axes.axvline(float(np.mean(returns)), color="#d95f0e", label=f"mean {np.mean(returns):.4g}")
        axes.set_xlabel("return of an episode")
        axes.set_ylabel("episodes")
        axes.legend(loc="best", framealpha=0.8, edgecolor="none")


@contextmanager
def _figure(path: Path, title: str) -> Iterator[Axes]:
    """A context that draws into the axes which it gives, and then writes the file."""
    with _pictures(path, [title]) as (axes,):
        yield axes


@contextmanager
def _pictures(path: Path, titles: Sequence[str]) -> Iterator[Sequence[Axes]]:
    """A context that draws into axes with these titles, one below the other, and then writes the file."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context():
        matplotlib.rcdefaults()  # the settings may be those of a matplotlibrc in the working folder, and start LaTeX
        matplotlib.rcParams["text.parse_math"] = False  # a dollar in a name is a dollar
        figure = Figure(figsize=(9, 4.5 * len(titles)), layout="constrained")
        pictures: list[Axes] = figure.subplots(len(titles), squeeze=False)[:, 0].tolist()
        for axes, title in zip(pictures, titles, strict=True):
            axes.set_title(title)
            axes.grid(alpha=0.3)
            axes.spines[["top", "right"]].set_visible(False)
        yield pictures
        with atomic_file(path) as file:
            figure.savefig(file, format="png", dpi=120)


def record_video(
    env: str,
    acts: Sequence[PolicyFn],
    path: Path,
    *,
    seeds: Sequence[int],
    env_kwargs: Mapping[str, Any],
    constant_observation: bool = False,
    max_steps: int | None = None,
    log: RunLog,
) -> list[float]:
    """Records at most `MAX_FRAMES` frames of episodes, side by side, in a file with one of `VIDEO_SUFFIXES`.

    An environment of more than `MAX_RATE` steps per second is rendered at every k-th step and at the last one. An
    episode that has ended shows its last frame until all have.

    Args:
        acts, seeds: the policy and the seed of each episode.
        constant_observation: `acts` ignore their input, so the observations may be of any space.
        max_steps: the largest number of steps; None for whole episodes.
        log: also gets the video, with the name of the file without its suffix.

    Returns:
        The return of the recorded steps of each episode.

    Raises:
        ImportError: imageio-ffmpeg is not installed; the message names the extra.
        ValueError: the environment renders no images.
    """
    from ..record.video import VideoWriter  # here, since the package imports TensorDicts

    kwargs = {**env_kwargs, "render_mode": "rgb_array"}
    returns = [0.0] * len(acts)
    with ExitStack() as stack:
        envs: list[VectorEnv | BatchedVectorEnv] = []
        for _ in acts:
            with _reason_for_no_images(env), creation_errors(env, kwargs):
                envs.append(stack.enter_context(closing(_make(env, kwargs, constant_observation))))
        steps_per_second = float((envs[0].metadata or {}).get("render_fps") or 30)
        every = math.ceil(steps_per_second / MAX_RATE)
        rate: Any = steps_per_second / every
        limit = MAX_FRAMES * every if max_steps is None else min(MAX_FRAMES * every, max_steps + 1)
        episodes = [_episode(*one, every) for one in zip(envs, acts, seeds, strict=True)]
        frames: list[np.ndarray | None] = [None] * len(acts)
        video = stack.enter_context(VideoWriter(path, fps=rate))
        write_to_log = stack.enter_context(log.video(path.stem, rate))
        for rows in islice(zip_longest(*episodes, fillvalue=(None, 0.0)), limit):
            for index, (frame, reward) in enumerate(rows):
                frames[index] = frames[index] if frame is None else frame
                returns[index] += reward
            if any(frame is not None for frame, _ in rows):
                tiled = _tile([frame for frame in frames if frame is not None])
                video.write(tiled)
                write_to_log(tiled)
    return returns


def _tile(frames: Sequence[np.ndarray]) -> np.ndarray:
    """Returns frames of one shape in a square grid, row by row; black where there is none."""
    columns = math.ceil(math.sqrt(len(frames)))
    blank = [np.zeros_like(frames[0])] * (-len(frames) % columns)
    padded = [*frames, *blank]
    rows = [np.concatenate(padded[start : start + columns], 1) for start in range(0, len(padded), columns)]
    return np.concatenate(rows, 0)


def play_in_window(
    env: str,
    act: PolicyFn,
    *,
    seed: int,
    env_kwargs: Mapping[str, Any],
    constant_observation: bool = False,
    max_steps: int | None = None,
) -> float:
    """Shows an episode in a window, which the environment opens; arguments as in `record_video`. Returns the return.

    `check_window` raises what is wrong before.
    """
    kwargs = {**env_kwargs, "render_mode": "human"}
    with creation_errors(env, kwargs), closing(_make(env, kwargs, constant_observation)) as made:
        limit = None if max_steps is None else max_steps + 1
        return sum(reward for _, reward in islice(_episode(made, act, seed, 1), limit))


def check_window(env: str) -> None:
    """Raises the errors of `play_in_window` that need no environment."""
    if find_entry(env)[0].is_batched:
        raise ValueError(f"Expected an environment that opens windows, got {env!r}, a batch. Add --video play.mp4.")
    if "DISPLAY" not in os.environ and "WAYLAND_DISPLAY" not in os.environ:
        raise ValueError("Expected a screen for a window, got none: DISPLAY is not set. Add --video play.mp4.")


def check_renders(env: str, *, env_kwargs: Mapping[str, Any], constant_observation: bool = False) -> None:
    """Raises the errors of `record_video` that do not need an episode; arguments as there."""
    require_ffmpeg()
    kwargs = {**env_kwargs, "render_mode": "rgb_array"}
    with _reason_for_no_images(env):
        with creation_errors(env, kwargs):
            vector_env = _make(env, kwargs, constant_observation)
        try:
            vector_env.reset(seed=0)
            _frame(vector_env)
        finally:
            vector_env.close()


@contextmanager
def _reason_for_no_images(env: str) -> Iterator[None]:
    """Raises the reason in place of the simulator's error: that of the registry, or that it takes no `render_mode`."""
    try:
        yield
    except Exception as error:
        reason = find_entry(env)[0].limits.get("pixels")
        if reason is None and "render_mode" in str(error) and "TypeError" in str(error):
            reason = "its constructor takes no render_mode"
        if reason is None:
            raise
        raise ValueError(
            f"Expected an environment that renders images, got {env!r}: {reason}. Omit the video."
        ) from error


def _frame(env: VectorEnv | BatchedVectorEnv) -> np.ndarray:
    """Renders the only environment."""
    (frame,) = env.render() or (None,)
    if not isinstance(frame, np.ndarray) or frame.ndim != 3:
        raise ValueError(
            f"Expected an environment that renders images (render_mode 'rgb_array'), got {type(frame).__name__} from "
            "render. Omit the video."
        )
    return frame


def _make(env: str, kwargs: Mapping[str, Any], constant_observation: bool) -> VectorEnv | BatchedVectorEnv:
    """Makes a vector environment of one environment, which does not reset itself."""
    entry, name = find_entry(env)
    if entry.env_fn is None:
        made = make_vector_env(env, num_envs=1, **kwargs).env
        return BatchedVectorEnv(made.simulator, autoreset_mode="disabled")
    make = entry.env_fn(name, **kwargs)
    make_one = partial(make_constant_observation_env, make) if constant_observation else make
    return VectorEnv([make_one], autoreset_mode="disabled")


@torch.no_grad()
def _episode(
    env: VectorEnv | BatchedVectorEnv, act: PolicyFn, seed: int, every: int
) -> Iterator[tuple[np.ndarray | None, float]]:
    """Yields a frame at every k-th step of an episode and at its end, else None; and the reward of the step before."""
    policy_io = PolicyIO(env.single_observation_space, env.single_action_space)
    obs, _ = env.reset(seed=seed)
    reward, is_over, state = 0.0, False, ()
    shows = env.render_mode == "rgb_array"
    for step in count():
        yield _frame(env) if shows and (is_over or step % every == 0) else None, reward
        if is_over:
            return
        outputs = act(policy_io.features(obs), *state)
        if isinstance(outputs, tuple):
            outputs, *state = outputs
        obs, rewards, terminated, truncated, _ = env.step(policy_io.action_arrays(outputs))
        reward, is_over = float(rewards[0]), bool(terminated[0] or truncated[0])
