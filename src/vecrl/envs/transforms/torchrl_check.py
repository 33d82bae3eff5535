"""Detects transforms of TorchRL, which are not supported yet. It must not import TorchRL."""

from __future__ import annotations

from typing import Any

from torch import nn


def refuse_torchrl_transforms(transform: Any) -> None:
    """Raises an error for transforms of TorchRL, and for modules that contain one.

    Called as functions, they would do nothing, or reset entries that they should keep (a primer at each step).

    Raises:
        TypeError: `transform` is or contains such a transform. The message names the transforms of vecrl with equal
            names.
    """
    from .. import transforms as vecrl_transforms  # the package that imports this module

    parts = transform.modules() if isinstance(transform, nn.Module) else [transform]
    names = list(dict.fromkeys(name for name in map(_torchrl_name, parts) if name is not None))
    if not names:
        return
    available = ", ".join(f"vecrl.envs.{name}" for name in names if name in vecrl_transforms.__all__)
    missing = ", ".join(name for name in names if name not in vecrl_transforms.__all__)
    raise TypeError(
        f"Expected transforms of vecrl, got TorchRL's {', '.join(names)}. "
        + (f"Use {available}." if available else "")
        + (" " if available and missing else "")
        + (f"vecrl has no {missing} yet: derive one from vecrl.envs.Transform." if missing else "")
    )


def _torchrl_name(part: Any) -> str | None:
    """Returns the class name of a transform of TorchRL, None for anything else."""
    kinds = [kind for kind in type(part).__mro__ if kind.__module__.startswith("torchrl.")]
    return kinds[0].__name__ if any(kind.__name__ == "Transform" for kind in kinds) else None
