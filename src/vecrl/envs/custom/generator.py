"""Random generators of the environments of this folder, so that they leave torch's global generators alone."""

from __future__ import annotations

from typing import Any

import torch


def seeded_generator(seed: int | None, device: Any) -> torch.Generator:
    """Returns a generator on `device` (None for the CPU) with a seed; None for a random seed."""
    generator = torch.Generator(device or "cpu")
    if seed is None:
        generator.seed()
    else:
        generator.manual_seed(seed)
    return generator
