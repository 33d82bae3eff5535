"""How what simulators keep outside Python is held and put back: MuJoCo's data and models, Atari's emulator.

They are known by the module of their classes; nothing is imported here.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ...errors import StateError
from .base import Get, Node, Ref, StateHandler, module_of
from .torch import is_instance_of_library, loaded_module

Restored = tuple[Any, Callable[[], None] | None]


class MujocoData:
    """MuJoCo's `MjData`: what integration hangs on, and whatever arrays it has computed besides."""

    tag = "mujoco_data"

    def matches(self, cls: type) -> bool:
        """See `StateHandler`."""
        return is_instance_of_library(cls, "mujoco", "MjData")

    def capture(self, value: Any, ref: Ref) -> Node:
        """See `StateHandler`."""
        mujoco, model = loaded_module("mujoco"), value.model
        spec = int(mujoco.mjtState.mjSTATE_INTEGRATION)
        vector = np.empty(mujoco.mj_stateSize(model, spec))
        mujoco.mj_getState(model, value, vector, spec)
        arrays = {name: array.copy() for name, array in _array_attributes(value) if array.size}
        return {"state": vector, "arrays": arrays, "model": ref(model, ".model"), "size": _size(model)}

    def restore(self, node: Node, old: Any, get: Get) -> Restored:
        """See `StateHandler`."""
        if not self.matches(type(old)):
            raise StateError("The state holds MuJoCo's data where this environment has none: was it made alike?")
        get(node["model"], old.model)
        if node["size"] != _size(old.model):
            raise StateError(
                f"Expected a state of a MuJoCo model with {_size(old.model)}, but one with {node['size']} came."
            )

        def restore_state() -> None:
            mujoco, vector = loaded_module("mujoco"), node["state"]
            spec = int(mujoco.mjtState.mjSTATE_INTEGRATION)
            mujoco.mj_setState(old.model, old, vector, spec)
            mujoco.mj_forward(old.model, old)  # so that contacts, whose number varies, are there
            mujoco.mj_setState(old.model, old, vector, spec)
            for name, array in _array_attributes(old):
                saved = node["arrays"].get(name)
                if saved is not None and (saved.shape, saved.dtype) == (array.shape, array.dtype):
                    array[...] = saved

        return old, restore_state


def _size(model: Any) -> str:
    return f"nq={model.nq}, nv={model.nv}, nu={model.nu}, nbody={model.nbody}"


_CONSTANT_PREFIXES = ("tex_", "mesh_", "skin_", "bvh_", "oct_", "name", "text_", "tuple_", "plugin", "hfield_", "paths")


class MujocoModels:
    """MuJoCo's `MjModel`: its numbers, since environments change them; not the shapes and pictures that it shows."""

    tag = "mujoco_model"

    def matches(self, cls: type) -> bool:
        """See `StateHandler`."""
        return is_instance_of_library(cls, "mujoco", "MjModel")

    def capture(self, value: Any, ref: Ref) -> Node:
        """See `StateHandler`."""
        arrays = {
            name: array.copy()
            for name, array in _array_attributes(value)
            if array.size and not name.startswith(_CONSTANT_PREFIXES)
        }
        options = {
            name: array
            for name in _public_names(value.opt)
            if isinstance(array := getattr(value.opt, name), int | float)
        }
        return {
            "arrays": arrays,
            "options": options,
            "vectors": {n: array.copy() for n, array in _array_attributes(value.opt)},
        }

    def restore(self, node: Node, old: Any, get: Get) -> Restored:
        """See `StateHandler`."""
        if not self.matches(type(old)):
            raise StateError("The state holds a MuJoCo model where this environment has none: was it made alike?")

        def restore_state() -> None:
            for owner, arrays in ((old, node["arrays"]), (old.opt, node["vectors"])):
                for name, array in _array_attributes(owner):
                    saved = arrays.get(name)
                    if saved is not None and saved.shape == array.shape and not np.array_equal(saved, array):
                        array[...] = saved
            for name in _public_names(old.opt):
                if name in node["options"] and node["options"][name] != getattr(old.opt, name):
                    setattr(old.opt, name, node["options"][name])

        return old, restore_state


def _public_names(value: Any) -> list[str]:
    return [name for name in dir(value) if not name.startswith("_")]


def _array_attributes(value: Any) -> list[tuple[str, np.ndarray]]:
    attributes = [(name, getattr(value, name)) for name in _public_names(value)]
    return [(name, array) for name, array in attributes if isinstance(array, np.ndarray)]


class AtariEmulators:
    """Atari's emulator, by its own way of writing itself down, its generator included.

    That leaves out the action of the frame before, which sticky actions repeat. So it is found by trying: the one from
    which the frames to come are those that come.
    """

    tag = "ale"

    def matches(self, cls: type) -> bool:
        """See `StateHandler`."""
        return cls.__name__ == "ALEInterface" and module_of(cls).partition(".")[0] == "ale_py"

    def capture(self, value: Any, ref: Ref) -> Node:
        """See `StateHandler`."""
        state = value.cloneState(include_rng=True)
        sticky_probability = value.getFloat("repeat_action_probability")
        last_action = None
        if sticky_probability and not value.game_over():
            actions = value.getLegalActionSet()
            expected_frames = _probe_frames(value, actions[0])
            for last_action in actions:
                _repeat(value, last_action, sticky_probability)
                value.restoreState(state)
                if _probe_frames(value, actions[0]) == expected_frames:
                    break
            _repeat(value, last_action, sticky_probability)
            value.restoreState(state)
        return {"state": bytes(state.serialize()), "last": None if last_action is None else int(last_action.value)}

    def restore(self, node: Node, old: Any, get: Get) -> Restored:
        """See `StateHandler`."""
        if not self.matches(type(old)):
            raise StateError("The state holds an Atari emulator where this environment has none: was it made alike?")

        def restore_state() -> None:
            actions = {int(action.value): action for action in old.getLegalActionSet()}
            if node["last"] in actions:
                if old.game_over():
                    old.reset_game()
                _repeat(old, actions[node["last"]], old.getFloat("repeat_action_probability"))
            kind = type(old.cloneState(include_rng=True))
            old.restoreState(kind(node["state"]))

        return old, restore_state


_PROBE_FRAMES = 8  # frames: a sticky run is longer than that once in 65,000 times at the usual probability


def _probe_frames(ale: Any, action: Any) -> bytes:
    """What a few frames under an action lead to."""
    for _ in range(_PROBE_FRAMES):
        ale.act(action)
    return ale.cloneState(include_rng=True).serialize()


def _repeat(ale: Any, action: Any, sticky_probability: float) -> None:
    """Act until this is surely the action of the frame before."""
    for _ in range(int(min(1000, 30 / -math.log(min(sticky_probability, 0.99)))) if sticky_probability else 1):
        ale.act(action)


HANDLERS: list[StateHandler] = [MujocoData(), MujocoModels(), AtariEmulators()]
