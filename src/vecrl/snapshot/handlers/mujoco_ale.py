"""Captures and restores what simulators keep outside Python: MuJoCo's data and models, and Atari's emulator.

The objects are recognized by the modules of their classes. This module imports no simulators.
"""

from __future__ import annotations

import math

import numpy as np

from ...errors import StateError
from .base import MISSING, Get, LibraryHandler, LibraryObject, Node, Ref, Restored, loaded_module


class MujocoData(LibraryHandler):
    """MuJoCo's `MjData`: the integration state, and all arrays of computed values."""

    tag = "mujoco_data"
    library, class_names = "mujoco", ("MjData",)

    def capture(self, value: LibraryObject, ref: Ref) -> Node:
        mujoco, model = loaded_module("mujoco"), value.model
        spec = int(mujoco.mjtState.mjSTATE_INTEGRATION)
        vector = np.empty(mujoco.mj_stateSize(model, spec))
        mujoco.mj_getState(model, value, vector, spec)
        arrays = {name: array.copy() for name, array in _array_attributes(value) if array.size}
        return {"state": vector, "arrays": arrays, "model": ref(model, ".model"), "size": _size(model)}

    def restore(self, node: Node, old: LibraryObject, get: Get) -> Restored:
        self.require_match(old)
        get(node["model"], old.model)
        if node["size"] != _size(old.model):
            raise StateError(
                f"Expected a state of a MuJoCo model with {_size(old.model)}, got one with {node['size']}."
            )

        def restore_state() -> None:
            mujoco, vector = loaded_module("mujoco"), node["state"]
            spec = int(mujoco.mjtState.mjSTATE_INTEGRATION)
            mujoco.mj_setState(old.model, old, vector, spec)
            mujoco.mj_forward(old.model, old)  # creates the contacts, the number of which varies
            mujoco.mj_setState(old.model, old, vector, spec)
            for name, array in _array_attributes(old):
                saved = node["arrays"].get(name)
                if saved is not None and (saved.shape, saved.dtype) == (array.shape, array.dtype):
                    array[...] = saved

        return old, restore_state


def _size(model: LibraryObject) -> str:
    return f"nq={model.nq}, nv={model.nv}, nu={model.nu}, nbody={model.nbody}"


_CONSTANT_PREFIXES = ("tex_", "mesh_", "skin_", "bvh_", "oct_", "name", "text_", "tuple_", "plugin", "paths")


class MujocoModels(LibraryHandler):
    """MuJoCo's `MjModel`: its numbers, since environments change them, without meshes, textures and names."""

    tag = "mujoco_model"
    library, class_names = "mujoco", ("MjModel",)

    def capture(self, value: LibraryObject, ref: Ref) -> Node:
        arrays = {
            name: array.copy()
            for name, array in _array_attributes(value)
            if array.size and not name.startswith(_CONSTANT_PREFIXES)
        }
        options = {
            name: option
            for name in _public_names(value.opt)
            if isinstance(option := getattr(value.opt, name), int | float)
        }
        return {
            "arrays": arrays,
            "options": options,
            "vectors": {n: array.copy() for n, array in _array_attributes(value.opt)},
        }

    def restore(self, node: Node, old: LibraryObject, get: Get) -> Restored:
        self.require_match(old)

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


def _public_names(value: object) -> list[str]:
    return [name for name in dir(value) if not name.startswith("_")]


def _array_attributes(value: object) -> list[tuple[str, np.ndarray]]:
    attributes = [(name, getattr(value, name)) for name in _public_names(value)]
    return [(name, array) for name, array in attributes if isinstance(array, np.ndarray)]


class DmControlPhysics(LibraryHandler):
    """dm_control's `Physics`: MuJoCo's data and model, since its own `get_state` omits most of them."""

    tag = "dm_control_physics"
    library, class_names = "dm_control", ("Physics",)
    _ENGINE_ATTRIBUTES = frozenset(
        ("_contexts", "_contexts_lock", "_data", "_named", "_warnings", "_warnings_before", "_new_warnings")
    )

    def capture(self, value: LibraryObject, ref: Ref) -> Node:
        attributes = {name: item for name, item in vars(value).items() if name not in self._ENGINE_ATTRIBUTES}
        attrs = {name: ref(item, f".{name}") for name, item in attributes.items()}
        return {"data": ref(value.data.ptr, ".data"), "attrs": attrs}

    def restore(self, node: Node, old: LibraryObject, get: Get) -> Restored:
        self.require_match(old)
        get(node["data"], old.data.ptr)
        attrs = {name: get(item, getattr(old, name, MISSING)) for name, item in node["attrs"].items()}
        return old, lambda: vars(old).update(attrs)


class AtariEmulators(LibraryHandler):
    """Atari's emulator, in its own serialization format, including its random number generator.

    The format omits the action of the previous frame, which sticky actions repeat. `capture` finds it by trial: it is
    the action after which the emulator produces the same next frames.
    """

    tag = "ale"
    library, class_names = "ale_py", ("ALEInterface",)

    def matches(self, cls: type) -> bool:  # not subclasses, which may have attributes
        return super().matches(cls) and cls.__name__ in self.class_names

    def capture(self, value: LibraryObject, ref: Ref) -> Node:
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

    def restore(self, node: Node, old: LibraryObject, get: Get) -> Restored:
        self.require_match(old)

        def restore_state() -> None:
            actions = {int(action.value): action for action in old.getLegalActionSet()}
            if node["last"] in actions:
                if old.game_over():
                    old.reset_game()
                _repeat(old, actions[node["last"]], old.getFloat("repeat_action_probability"))
            kind = type(old.cloneState(include_rng=True))
            old.restoreState(kind(node["state"]))

        return old, restore_state


# At the usual probability of sticky actions, one of 65,000 runs of repeated actions is longer than this.
_PROBE_FRAMES = 8


def _probe_frames(ale: LibraryObject, action: LibraryObject) -> bytes:
    """Steps a few frames with an action and returns the serialized state."""
    for _ in range(_PROBE_FRAMES):
        ale.act(action)
    return ale.cloneState(include_rng=True).serialize()


def _repeat(ale: LibraryObject, action: LibraryObject, sticky_probability: float) -> None:
    """Steps until `action` is almost surely the action of the previous frame, despite sticky actions."""
    for _ in range(int(min(1000, 30 / -math.log(min(sticky_probability, 0.99)))) if sticky_probability else 1):
        ale.act(action)


HANDLERS = (MujocoData(), MujocoModels(), DmControlPhysics(), AtariEmulators())
