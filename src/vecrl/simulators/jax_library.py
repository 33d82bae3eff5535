"""What the modules of JAX libraries share: imports, spaces, nested observations, and frames of figures."""

from __future__ import annotations

import dataclasses
import importlib
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

from ..engine.space_layout import AnySpace, Tree
from ..imports import import_library


def jax_library(module: str, title: str, extra: str) -> Any:
    """Imports and returns a module.

    Args:
        module: its name.
        title: the name of the library, for the error.
        extra: of vecrl, which installs it.

    Raises:
        VersionError: (an ImportError) it is not installed; the message names the extra.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some libraries import modules that other packages have deprecated
        return import_library(module, f'{title} is not installed: pip install "vecrl[{extra}]"')


def space_of(spec: Any, dtype: Any = None) -> AnySpace:
    """Returns the space of one row that a gymnax space, a Jumanji spec or a `jax.ShapeDtypeStruct` describes.

    A nested one is a `Dict`. Arrays without bounds are a `Box` of all values of the dtype, which are False and True for
    bools.

    Args:
        spec: what is converted.
        dtype: of the elements; None for that of `spec`.
    """
    parts = getattr(spec, "_specs", None) or spec
    if isinstance(parts, Mapping):
        return spaces.Dict({key: space_of(part) for key, part in parts.items()})
    kind = np.dtype(spec.dtype if dtype is None else dtype)
    count: Any = getattr(spec, "n", getattr(spec, "num_values", None))
    if count is not None and np.ndim(count):
        return spaces.MultiDiscrete(np.asarray(count), dtype=kind.type)
    if count is not None:
        return spaces.Discrete(int(count), dtype=kind.type)
    names = ("low", "high") if hasattr(spec, "low") else ("minimum", "maximum")
    bounds = [getattr(spec, name) for name in names] if hasattr(spec, names[0]) else _limits(kind)
    low, high = (np.broadcast_to(np.asarray(bound), spec.shape).astype(kind) for bound in bounds)
    return spaces.Box(low, high, spec.shape, kind.type)


def _limits(dtype: np.dtype[Any]) -> tuple[float, float]:
    if dtype.kind == "f":
        return -np.inf, np.inf
    return (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)


def as_dicts(tree: Any) -> Tree:
    """Returns an observation or a state with dicts in place of named tuples and dataclasses."""
    if hasattr(tree, "_asdict"):
        tree = tree._asdict()
    if dataclasses.is_dataclass(tree):
        tree = {each.name: getattr(tree, each.name) for each in dataclasses.fields(tree)}
    return {key: as_dicts(value) for key, value in tree.items()} if isinstance(tree, Mapping) else tree


def figure_frame(render: Callable[..., object], *args: Any) -> np.ndarray:
    """Calls `render(*args)`, which draws a figure of matplotlib, and returns it as `[height, width, 3]` uint8."""
    pyplot: Any = importlib.import_module("matplotlib.pyplot")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # matplotlib warns that its backend has no windows
        render(*args)
    figure = pyplot.gcf()
    figure.canvas.draw()
    frame = np.asarray(figure.canvas.buffer_rgba())[..., :3].copy()
    pyplot.close(figure)
    return frame
