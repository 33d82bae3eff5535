"""Recognises transforms of TorchRL, which are not adapted yet. Does not import TorchRL."""

from __future__ import annotations

from typing import Any

from torch import nn


def refuse_torchrl_transforms(transform: Any) -> None:
    """Refuses TorchRL's transforms, and modules that hold any.

    Called as functions they would do nothing or, as a primer at each step, reset what they should keep.

    Raises:
        TypeError: `transform` is or holds such a transform. Names vecrl's transforms of the same names.
    """
    from .. import transforms as own  # the package that imports this module

    parts = transform.modules() if isinstance(transform, nn.Module) else [transform]
    names = list(dict.fromkeys(name for name in map(_torchrl_name, parts) if name is not None))
    if not names:
        return
    available = ", ".join(f"vecrl.envs.{name}" for name in names if name in own.__all__)
    missing = ", ".join(name for name in names if name not in own.__all__)
    raise TypeError(
        f"Expected transforms of vecrl, got TorchRL's {', '.join(names)}. "
        + (f"Use {available}." if available else "")
        + (" " if available and missing else "")
        + (f"vecrl has no {missing} yet: derive one from vecrl.envs.Transform." if missing else "")
    )


def _torchrl_name(part: Any) -> str | None:
    """The name of the class of TorchRL's transforms that `part` is of; None for anything else."""
    kinds = [kind for kind in type(part).__mro__ if kind.__module__.startswith("torchrl.")]
    return kinds[0].__name__ if any(kind.__name__ == "Transform" for kind in kinds) else None
