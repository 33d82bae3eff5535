"""The batched policy and image transforms written by hand in torch: only the arithmetic is timed."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from benchmarks.implementation import RunFactory
from benchmarks.population import observations, parameters, split

torch.set_num_threads(1)


def policy(members: int, way: str, compiled: bool = False) -> RunFactory:
    """The forward pass of all members by `way`, "bmm" or "sum"; under `torch.compile` if `compiled`."""
    forward = torch.compile(WAYS[way], dynamic=False) if compiled else WAYS[way]
    weights = [part.contiguous() for part in split(torch.from_numpy(parameters(members)))]
    x = torch.from_numpy(observations(members))

    def run(units: int) -> None:
        with torch.no_grad():
            for _ in range(units):
                forward(x, *weights)

    yield run


def _bmm(x: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor) -> Tensor:
    hidden = torch.tanh(torch.baddbmm(b1.unsqueeze(-1), w1, x.unsqueeze(-1)))
    return torch.baddbmm(b2.unsqueeze(-1), w2, hidden).squeeze(-1)


def _sum(x: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor) -> Tensor:
    hidden = torch.tanh((w1 * x.unsqueeze(-2)).sum(-1) + b1)
    return (w2 * hidden.unsqueeze(-2)).sum(-1) + b2


WAYS: dict[str, Callable[..., Tensor]] = {"bmm": _bmm, "sum": _sum}


def pixels(num_envs: int, antialias: bool = True) -> RunFactory:
    """Converts frames to floats and to luminance, resizes them to 84×84, and stacks the last four."""
    rng = np.random.default_rng(0)
    frames = torch.from_numpy(rng.integers(0, 256, (8, num_envs, 210, 160, 3), dtype=np.uint8))
    weights = torch.tensor([0.2989, 0.587, 0.114])
    stack = torch.zeros(num_envs, 4, 84, 84)

    def run(units: int) -> None:
        nonlocal stack
        for i in range(units):
            gray = (frames[i % 8].float().div_(255) @ weights).unsqueeze(1)
            small = torch.nn.functional.interpolate(gray, (84, 84), mode="bilinear", antialias=antialias)
            stack = torch.cat([stack[:, 1:], small], 1)

    yield run
