"""Plots of learning curves and returns (without a screen), and videos of episodes (by ffmpeg). Knows no command."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

from ..policy.policy_io import PolicyIO
from ..policy.population import creation_errors
from ..simulators.registry import find_entry
from ..vector.factory import make_vector_env
from ..vector.torch_wrapper import TorchWrapper
from .constant_observation import make_constant_observation_env
from .run_log import RunLog

MAX_FRAMES = 3000
VIDEO_SUFFIXES = ".mp4", ".mkv", ".mov"
PLOT_SUFFIXES = (".png",)
PolicyFn = Callable[..., Tensor | tuple[Tensor, ...]]
"""Computes outputs from features `[1, obs_length]`, and a hidden state if there is one."""


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
    figure, axes = _figure(title)
    steps = [row["steps"] for row in rows]
    marker = "o" if len(rows) < 3 else None
    best, mean = ([row[name] for row in rows] for name in ("best", "mean"))
    axes.plot(steps, best, color="#9ecae1", marker=marker, label="best member")
    axes.plot(steps, [row["center"] for row in rows], color="#d95f0e", marker=marker, label="centre of the search")
    axes.plot(steps, mean, color="#08519c", linewidth=2, marker=marker, label="mean of the population")
    tested = [(row["steps"], row["test"]) for row in rows if not math.isnan(row["test"])]
    if tested:
        style = {"color": "#238b45", "linestyle": "--", "marker": "D", "markersize": 5, "zorder": 3}
        axes.plot(*zip(*tested, strict=True), **style, label="test")
        axes.plot(*max(tested, key=itemgetter(1)), "*", color="#238b45", markersize=14, zorder=4, label="best test")
    if target is not None:
        axes.axhline(target, color="gray", linestyle="--", linewidth=1, label=f"goal: {target:g}")
    axes.set_xlabel("environment steps")
    axes.set_ylabel("return of an episode")
    axes.ticklabel_format(axis="x", style="sci", scilimits=(0, 5))
    axes.legend(loc="best", frameon=False)
    figure.savefig(path, format="png", dpi=120)


def draw_returns(returns: Sequence[float], path: Path, title: str) -> None:
    """Plots a histogram of returns, as a png."""
    figure, axes = _figure(title)
    axes.hist(returns, bins="auto" if len(set(returns)) > 1 else 1, color="#9ecae1", edgecolor="#08519c")
    axes.axvline(float(np.mean(returns)), color="#d95f0e", label=f"mean {np.mean(returns):.4g}")
    axes.set_xlabel("return of an episode")
    axes.set_ylabel("episodes")
    axes.legend(loc="best", frameon=False)
    figure.savefig(path, format="png", dpi=120)


def _figure(title: str) -> tuple[Figure, Axes]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots()
    axes.set_title(title)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def record_video(
    env: str,
    act: PolicyFn,
    path: Path,
    *,
    seed: int,
    env_kwargs: Mapping[str, Any],
    constant_observation: bool = False,
    log: RunLog,
) -> float:
    """Records at most `MAX_FRAMES` frames of one episode in a file with one of `VIDEO_SUFFIXES`.

    Args:
        constant_observation: `act` ignores its input, so the observations may be of any space.
        log: also gets the video, with the name of the file without its suffix.

    Returns:
        The return of the recorded steps.

    Raises:
        ImportError: imageio-ffmpeg is not installed; the message names the extra.
        ValueError: the environment renders no images.
    """
    from ..record.video import VideoWriter  # here, since the package imports TensorDicts

    total = 0.0
    kwargs = {**env_kwargs, "render_mode": "rgb_array"}
    with creation_errors(env, kwargs):
        env_wrapper = _make(env, kwargs, constant_observation)
    try:
        rate: Any = float((env_wrapper.env.metadata or {}).get("render_fps") or 30)
        with VideoWriter(path, fps=rate) as video, log.video(path.stem, rate) as write_to_log:
            for frame, reward in islice(_episode(env_wrapper, act, seed), MAX_FRAMES):
                video.write(frame)
                write_to_log(frame)
                total += reward
    finally:
        env_wrapper.close()
    return total


def _make(env: str, kwargs: Mapping[str, Any], constant_observation: bool) -> TorchWrapper:
    entry, name = find_entry(env)
    if constant_observation and entry.env_fn is not None:
        return TorchWrapper(make_constant_observation_env(entry.env_fn(name, **kwargs)))
    return make_vector_env(env, **kwargs)


@torch.no_grad()
def _episode(env: TorchWrapper, act: PolicyFn, seed: int) -> Iterator[tuple[np.ndarray, float]]:
    """Yields the frames of an episode, each with the reward of the step before it."""
    policy_io = PolicyIO(env.observation_space, env.action_space)
    obs, _ = env.reset(seed=seed)
    reward, is_over, state = 0.0, False, ()
    while True:
        frame = env.render()
        if frame is None:
            raise ValueError("Expected an environment that renders images (render_mode 'rgb_array'), got None.")
        yield np.asarray(frame), reward
        if is_over:
            return
        outputs = act(policy_io.features(obs[None]), *state)
        if isinstance(outputs, tuple):
            outputs, *state = outputs
        obs, reward, terminated, truncated, _ = env.step(policy_io.actions(outputs)[0])
        reward, is_over = float(reward), bool(terminated) or bool(truncated)
