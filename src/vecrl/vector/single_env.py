"""Single environments of every registered simulator, with NumPy arrays."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import torch

from ..engine.infos import InfoDict
from ..engine.space_layout import Tree
from ..errors import SpaceError
from ..simulators.registry import explained_arguments, find_entry
from .factory import SingleEnvOfBatch, make_simulator
from .trees import map_tree


class TensorToNumpyWrapper(gymnasium.Wrapper):
    """Wraps a single environment with tensors, or trees of them, into one with arrays and numbers in their place."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Tree, InfoDict]:
        """Resets the environment and returns the observation as an array, and the info."""
        obs, info = self.env.reset(seed=seed, options=options)
        return map_tree(_to_numpy, obs), info

    def step(self, action: Tree) -> tuple[Tree, float, bool, bool, InfoDict]:
        """Steps the environment with an array or number and returns what gymnasium's `step` returns."""
        obs, reward, terminated, truncated, info = self.env.step(map_tree(torch.as_tensor, action))
        return map_tree(_to_numpy, obs), float(reward), bool(terminated), bool(truncated), info


def _to_numpy(tensor: torch.Tensor) -> np.ndarray:
    return tensor.numpy(force=True)


def make_single_env(env_name: str, **kwargs: Any) -> gymnasium.Env[Any, Any]:
    """Makes one environment of any registered simulator, with NumPy arrays and without auto-reset.

    Args:
        env_name: a name as `make_vector_env` takes it; without a prefix it is gymnasium's.
        kwargs: arguments of the simulator.

    Raises:
        ValueError: the prefix is unknown.
        SpaceError: the prefix was registered with a maker for `make_vector_env` only.

    >>> env = make_single_env("native::CartPole-v1")
    >>> observation, info = env.reset(seed=1)
    >>> observation.shape, env.step(0)[1:4]
    ((4,), (1.0, False, False))
    """
    entry, name = find_entry(env_name)
    if entry.env_fn is not None:
        with explained_arguments(env_name, kwargs):
            return entry.env_fn(name, **kwargs)()
    if entry.make_batch is not None:
        return TensorToNumpyWrapper(SingleEnvOfBatch(make_simulator(entry, name, 1, **kwargs)))
    raise SpaceError(
        f"Expected a prefix that was registered with env_fn or make_batch, got {entry.prefix!r}, which has only a "
        "maker of vector environments. Register one of the two."
    )
