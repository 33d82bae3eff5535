"""How what simulators keep outside Python is held and put back: MuJoCo's data and models, Atari's emulator.

They are known by the module of their classes; nothing is imported here.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ..errors import StateError
from .kinds import Get, Kind, Node, Ref, module_of
from .libraries import is_of, library

Made = tuple[Any, Callable[[], None] | None]


class MujocoData:
    """MuJoCo's `MjData`: what integration hangs on, and whatever arrays it has computed besides."""

    tag = "mujoco_data"

    def fits(self, cls: type) -> bool:
        """See `Kind`."""
        return is_of(cls, "mujoco", "MjData")

    def take(self, value: Any, ref: Ref) -> Node:
        """See `Kind`."""
        mujoco, model = library("mujoco"), value.model
        spec = int(mujoco.mjtState.mjSTATE_INTEGRATION)
        vector = np.empty(mujoco.mj_stateSize(model, spec))
        mujoco.mj_getState(model, value, vector, spec)
        arrays = {name: found.copy() for name, found in _arrays(value) if found.size}
        return {"state": vector, "arrays": arrays, "model": ref(model, ".model"), "size": _size(model)}

    def put(self, node: Node, old: Any, get: Get) -> Made:
        """See `Kind`."""
        if not self.fits(type(old)):
            raise StateError("The state holds MuJoCo's data where this environment has none: was it made alike?")
        get(node["model"], old.model)
        if node["size"] != _size(old.model):
            raise StateError(
                f"Expected a state of a MuJoCo model with {_size(old.model)}, but one with {node['size']} came."
            )

        def go_on() -> None:
            mujoco, vector = library("mujoco"), node["state"]
            spec = int(mujoco.mjtState.mjSTATE_INTEGRATION)
            mujoco.mj_setState(old.model, old, vector, spec)
            mujoco.mj_forward(old.model, old)  # so that contacts, whose number varies, are there
            mujoco.mj_setState(old.model, old, vector, spec)
            for name, found in _arrays(old):
                kept = node["arrays"].get(name)
                if kept is not None and (kept.shape, kept.dtype) == (found.shape, found.dtype):
                    found[...] = kept

        return old, go_on


def _size(model: Any) -> str:
    return f"nq={model.nq}, nv={model.nv}, nu={model.nu}, nbody={model.nbody}"


_FIXED = ("tex_", "mesh_", "skin_", "bvh_", "oct_", "name", "text_", "tuple_", "plugin", "hfield_", "paths")


class MujocoModels:
    """MuJoCo's `MjModel`: its numbers, since environments change them; not the shapes and pictures that it shows."""

    tag = "mujoco_model"

    def fits(self, cls: type) -> bool:
        """See `Kind`."""
        return is_of(cls, "mujoco", "MjModel")

    def take(self, value: Any, ref: Ref) -> Node:
        """See `Kind`."""
        arrays = {name: found.copy() for name, found in _arrays(value) if found.size and not name.startswith(_FIXED)}
        options = {
            name: found for name in _public(value.opt) if isinstance(found := getattr(value.opt, name), int | float)
        }
        return {"arrays": arrays, "options": options, "vectors": {n: found.copy() for n, found in _arrays(value.opt)}}

    def put(self, node: Node, old: Any, get: Get) -> Made:
        """See `Kind`."""
        if not self.fits(type(old)):
            raise StateError("The state holds a MuJoCo model where this environment has none: was it made alike?")

        def go_on() -> None:
            for owner, arrays in ((old, node["arrays"]), (old.opt, node["vectors"])):
                for name, found in _arrays(owner):
                    kept = arrays.get(name)
                    if kept is not None and kept.shape == found.shape and not np.array_equal(kept, found):
                        found[...] = kept
            for name in _public(old.opt):
                if name in node["options"] and node["options"][name] != getattr(old.opt, name):
                    setattr(old.opt, name, node["options"][name])

        return old, go_on


def _public(value: Any) -> list[str]:
    return [name for name in dir(value) if not name.startswith("_")]


def _arrays(value: Any) -> list[tuple[str, np.ndarray]]:
    found = [(name, getattr(value, name)) for name in _public(value)]
    return [(name, one) for name, one in found if isinstance(one, np.ndarray)]


class Emulators:
    """Atari's emulator, by its own way of writing itself down, its generator included.

    That leaves out the action of the frame before, which sticky actions repeat. So it is found by trying: the one from
    which the frames to come are those that come.
    """

    tag = "ale"

    def fits(self, cls: type) -> bool:
        """See `Kind`."""
        return cls.__name__ == "ALEInterface" and module_of(cls).partition(".")[0] == "ale_py"

    def take(self, value: Any, ref: Ref) -> Node:
        """See `Kind`."""
        state = value.cloneState(include_rng=True)
        sticky = value.getFloat("repeat_action_probability")
        last = None
        if sticky and not value.game_over():
            actions = value.getLegalActionSet()
            truth = _frames(value, actions[0])
            for last in actions:
                _repeat(value, last, sticky)
                value.restoreState(state)
                if _frames(value, actions[0]) == truth:
                    break
            _repeat(value, last, sticky)
            value.restoreState(state)
        return {"state": bytes(state.serialize()), "last": None if last is None else int(last.value)}

    def put(self, node: Node, old: Any, get: Get) -> Made:
        """See `Kind`."""
        if not self.fits(type(old)):
            raise StateError("The state holds an Atari emulator where this environment has none: was it made alike?")

        def go_on() -> None:
            actions = {int(action.value): action for action in old.getLegalActionSet()}
            if node["last"] in actions:
                if old.game_over():
                    old.reset_game()
                _repeat(old, actions[node["last"]], old.getFloat("repeat_action_probability"))
            kind = type(old.cloneState(include_rng=True))
            old.restoreState(kind(node["state"]))

        return old, go_on


_PROBED = 8  # frames: a sticky run is longer than that once in 65,000 times at the usual probability


def _frames(ale: Any, action: Any) -> bytes:
    """What a few frames under an action lead to."""
    for _ in range(_PROBED):
        ale.act(action)
    return ale.cloneState(include_rng=True).serialize()


def _repeat(ale: Any, action: Any, sticky: float) -> None:
    """Act until this is surely the action of the frame before."""
    for _ in range(int(min(1000, 30 / -math.log(min(sticky, 0.99)))) if sticky else 1):
        ale.act(action)


KINDS: list[Kind] = [MujocoData(), MujocoModels(), Emulators()]
