"""Simulators of other libraries as TensorDict environments, one file per library, imported on first use."""

from ..aliases import NAMES, lazy_names

__all__ = sorted(NAMES[__name__])  # pyright: ignore[reportUnsupportedDunderAll]

__getattr__ = lazy_names(__name__)
