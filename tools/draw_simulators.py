"""Draws a frame of each simulator that renders, docs/assets/simulators.webp, from the frames of several environments.

.venv-simulators/bin/python tools/draw_simulators.py   # renders what is installed there into .scratch/frames, and draws
"""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np

from vecrl.simulators.registry import find_entry, known_prefixes
from vecrl.vector import make_vector_env

ROOT = Path(__file__).parents[1]
FRAMES = ROOT / ".scratch" / "frames"
PICTURE = ROOT / "docs" / "assets" / "simulators.webp"
STEPS, COLUMNS = 20, 8
OTHERS = {
    "metaworld": "pick-place-v3",
    "robotics": "FetchPickAndPlace-v4",
    "ogbench": "antmaze-medium-v0",
    "gym": "Ant-v5",
}
OTHERS |= {"mujoco": "Humanoid-v5", "dmc": "quadruped-run", "pgx": "minatar-breakout"}


def frame_of(prefix: str) -> np.ndarray:
    """Returns a frame after some random steps, uint8 `[height, width, 3]`."""
    name = OTHERS.get(prefix, find_entry(f"{prefix}::")[0].example)
    with make_vector_env(f"{prefix}::{name}", num_envs=1, render_mode="rgb_array") as env:
        env.reset(seed=1)
        env.action_space.seed(1)
        for _ in range(STEPS):
            env.step(env.action_space.sample())
        frames: Any = env.render()
    return np.asarray(frames[0])


def main() -> None:
    """Renders what this environment has, and draws all frames that there are."""
    FRAMES.mkdir(parents=True, exist_ok=True)
    for prefix in known_prefixes():
        try:
            plt.imsave(FRAMES / f"{prefix.replace('::', '-')}.png", frame_of(prefix))
        except Exception as error:  # not installed here, or without frames
            print(f"{prefix}: {type(error).__name__}: {str(error)[:100]}")
    paths = sorted(FRAMES.glob("*.png"))
    rows = math.ceil(len(paths) / COLUMNS)
    figure, axes = plt.subplots(rows, COLUMNS, figsize=(1.6 * COLUMNS, 1.75 * rows))
    for plot in axes.flat:
        plot.axis("off")
    for path, plot in zip(paths, axes.flat, strict=False):
        plot.imshow(plt.imread(path))
        plot.set_title(f"{path.stem}::", fontsize=8)
    figure.tight_layout(pad=0.4)
    figure.savefig(PICTURE, dpi=110, pil_kwargs={"quality": 80})
    plt.close(figure)


if __name__ == "__main__":
    os.environ.setdefault("MUJOCO_GL", "egl")
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
    os.environ.setdefault("PYGLET_HEADLESS", "1")
    main()
