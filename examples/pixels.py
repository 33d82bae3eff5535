"""CartPole from pixels with a stack of four frames: `python examples/pixels.py --picture frames.png`."""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path

import imageio.v3 as iio
import torch

from vecrl.envs import GymEnv, ParallelEnv
from vecrl.envs.transforms import CatFrames, Compose, GrayScale, Resize, RewardSum, ToTensorImage, TransformedEnv

KEYS = ["pixels"]


def make(envs: int) -> TransformedEnv:
    """Creates environments that observe the last four frames, `[envs, 4, 84, 84]` float32 in [0, 1]."""
    item = partial(GymEnv, "CartPole-v1", from_pixels=True, pixels_only=True)
    shown = Compose(
        ToTensorImage(in_keys=KEYS),
        GrayScale(in_keys=KEYS),
        Resize(84, 84, in_keys=KEYS),
        CatFrames(4, dim=-3, in_keys=KEYS),
        RewardSum(),
    )
    return TransformedEnv(ParallelEnv(envs, item), shown)


def main() -> None:
    """Steps with random actions, and writes the last frames of each environment to an image."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--envs", type=int, default=2)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--picture", type=Path, default=Path("frames.png"))
    options = parser.parse_args()
    env = make(options.envs)
    env.set_seed(0)
    rollout = env.rollout(options.steps, break_when_any_done=False)
    env.close()
    frames = rollout["next", "pixels"][:, -1]
    rows = [torch.cat(list(stack), -1) for stack in frames]
    iio.imwrite(options.picture, (torch.cat(rows) * 255).byte().numpy())
    print(f"{rollout['next', 'pixels'].shape}: the last four frames of each environment are in {options.picture}")


if __name__ == "__main__":
    main()
