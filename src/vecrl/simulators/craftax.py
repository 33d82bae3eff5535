"""Adapts Craftax and Craftax-Classic, written in JAX, to a `BatchSimulator` of torch tensors.

The variants without auto-reset are used. Compiling takes long: about 20 s for Craftax-Classic, and more than a minute
for Craftax. The environments with `Pixels` in their names observe images; when the first of them is made, Craftax
prepares its textures, which takes minutes, and stores them beside its code.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from ..engine.simulator import Array
from ..engine.space_layout import Tree
from ..registries import check_name
from .gymnax import GymnaxTask
from .jax_library import jax_library
from .jax_simulator import make_jax_batch

craftax_module = partial(jax_library, "craftax.craftax_env", "Craftax", "craftax")
NAMES = "Craftax-Classic-Pixels-v1", "Craftax-Classic-Symbolic-v1", "Craftax-Pixels-v1", "Craftax-Symbolic-v1"


def names() -> list[str]:
    """Returns the names of all environments; raises ImportError if Craftax is not installed."""
    craftax_module()
    return list(NAMES)


def make_task(name: str, **params: Any) -> CraftaxTask:
    """Makes an environment by its name.

    Args:
        name: of the environment ("Craftax-Symbolic-v1", …).
        params: values that replace fields of the environment's default parameters (`max_timesteps=…`).
    """
    check_name("an environment of Craftax", name, names())
    env = craftax_module().make_craftax_env_from_name(name, auto_reset=False)
    return CraftaxTask(env, env.default_params.replace(**params), name)


make_batch = partial(make_jax_batch, make_task)


class CraftaxTask(GymnaxTask):
    """An environment of Craftax, which has gymnax's interface; see `GymnaxTask`."""

    def end_flags(self, state: Tree, done: Array) -> tuple[Array, Array]:
        unlimited = self.params.replace(max_timesteps=np.iinfo(np.int32).max)  # the flag includes the time limit
        return self.env.is_terminal(state, unlimited), done
