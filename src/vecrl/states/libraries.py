"""How what libraries keep outside Python is held: torch's and JAX's arrays, MuJoCo's data, Atari's emulator.

A library is known by the module of its classes, and is only ever the one that is loaded: nothing is imported here.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from ..errors import StateError
from .kinds import MISSING, Get, Kind, Node, Ref, module_of

Made = tuple[Any, Callable[[], None] | None]


def _library(name: str) -> Any:
    if name not in sys.modules:
        raise StateError(f"The state holds things of {name}, which is not loaded here: import it first.")
    return sys.modules[name]


def _is_of(cls: type, library: str, *names: str) -> bool:
    """Whether a class, or one that it derives from, is one of a library's of these names."""
    return any(module_of(base).partition(".")[0] == library and base.__name__ in names for base in cls.__mro__)


class Tensors:
    """torch's tensors. Parameters, buffers and what is in shared memory are written into, so that who shares them sees
    it; others are replaced, since they may have been handed out."""

    tag = "tensor"

    def fits(self, cls: type) -> bool:
        """See `Kind`."""
        return _is_of(cls, "torch", "Tensor")

    def take(self, value: Any, ref: Ref) -> Node:
        """See `Kind`."""
        if not value.is_contiguous() and value.layout != _library("torch").strided:
            raise StateError(f"Expected dense tensors in a state, but one of layout {value.layout} came.")
        asks = {"asks": True} if value.requires_grad and value.is_leaf else {}
        kind = {"parameter": True} if _is_of(type(value), "torch", "Parameter") else {}
        return {"value": value.detach().cpu().clone(), "device": str(value.device), **asks, **kind}

    def put(self, node: Node, old: Any, get: Get) -> Made:
        """See `Kind`."""
        torch, value = _library("torch"), node["value"]
        if not isinstance(value, torch.Tensor):
            raise StateError(f"Expected a tensor in a state, but it holds a {type(value).__name__}.")
        if isinstance(old, torch.Tensor) and _takes(old, node):
            return old, lambda: _copy(torch, old, value)
        device = old.device if isinstance(old, torch.Tensor) else node["device"]
        new = value.to(device, copy=True)
        if node.get("parameter"):
            new = torch.nn.Parameter(new, requires_grad=node.get("asks", False))
        return new.requires_grad_(node.get("asks", False)), None


def _takes(old: Any, node: Node) -> bool:
    """Whether a tensor is one to be written into."""
    value = node["value"]
    held = node.get("stays") or _is_of(type(old), "torch", "Parameter") or (old.device.type == "cpu" and old.is_shared())
    held = held or type(old).__name__ == "MemoryMappedTensor"
    return held and old.shape == value.shape and old.dtype == value.dtype and not (old.grad_fn or old.is_inference())


def _copy(torch: Any, old: Any, value: Any) -> None:
    with torch.no_grad():
        old.copy_(value)


class TorchGenerators:
    """torch's generators."""

    tag = "torch_generator"

    def fits(self, cls: type) -> bool:
        """See `Kind`."""
        return _is_of(cls, "torch", "Generator")

    def take(self, value: Any, ref: Ref) -> Node:
        """See `Kind`."""
        return {"state": value.get_state().clone(), "device": str(value.device)}

    def put(self, node: Node, old: Any, get: Get) -> Made:
        """See `Kind`."""
        torch = _library("torch")
        own = old if isinstance(old, torch.Generator) else torch.Generator(node["device"])
        return own, lambda: own.set_state(node["state"])


class Sizes:
    """torch's sizes."""

    tag = "size"

    def fits(self, cls: type) -> bool:
        """See `Kind`."""
        return _is_of(cls, "torch", "Size")

    def take(self, value: Any, ref: Ref) -> Node:
        """See `Kind`."""
        return {"value": list(value)}

    def put(self, node: Node, old: Any, get: Get) -> Made:
        """See `Kind`."""
        return _library("torch").Size(node["value"]), None


class TensorDicts:
    """TensorDicts, nested and stacked ones too, and the objects in them."""

    tag = "tensordict"

    def fits(self, cls: type) -> bool:
        """See `Kind`."""
        return _is_of(cls, "tensordict", "TensorDict", "LazyStackedTensorDict", "NonTensorData", "NonTensorStack")

    def take(self, value: Any, ref: Ref) -> Node:
        """See `Kind`."""
        kind = next(b.__name__ for b in type(value).__mro__ if b.__name__ in ("TensorDict", "NonTensorData", *_STACKS))
        look = {"of": kind, "size": list(value.batch_size), "device": None if value.device is None else str(value.device)}
        if kind == "NonTensorData":
            return {**look, "data": ref(value.data, ".data")}
        if kind in _STACKS:
            return {**look, "dim": value.stack_dim, "items": [ref(part, "[…]") for part in value.tensordicts]}
        return {**look, "items": [[key, ref(part, f"[{key!r}]")] for key, part in value.items()]}

    def put(self, node: Node, old: Any, get: Get) -> Made:
        """See `Kind`."""
        library = _library("tensordict")
        if node["of"] == "NonTensorData":
            return library.NonTensorData(get(node["data"]), batch_size=node["size"], device=node["device"]), None
        if node["of"] in _STACKS:
            stack = getattr(library, node["of"])
            return stack(*[get(part) for part in node["items"]], stack_dim=node["dim"]), None
        whole = type(old).__name__ == node["of"]
        entries = {key: get(part, old.get(key, MISSING) if whole else MISSING) for key, part in node["items"]}
        if whole and len(entries) == len(old.keys()) and all(old.get(k, None) is part for k, part in entries.items()):
            return old, None
        return library.TensorDict(entries, node["size"], device=node["device"]), None


_STACKS = ("LazyStackedTensorDict", "NonTensorStack")


class JaxArrays:
    """JAX's arrays, random keys included."""

    tag = "jax"

    def fits(self, cls: type) -> bool:
        """See `Kind`."""
        return module_of(cls).partition(".")[0] in ("jaxlib", "jax") and cls.__name__ in ("ArrayImpl", "PRNGKeyArray")

    def take(self, value: Any, ref: Ref) -> Node:
        """See `Kind`."""
        if type(value).__name__ == "ArrayImpl":
            return {"value": np.array(value)}
        random = _library("jax").random
        return {"value": np.array(random.key_data(value)), "key": str(random.key_impl(value))}

    def put(self, node: Node, old: Any, get: Get) -> Made:
        """See `Kind`."""
        jax = _library("jax")
        value = jax.numpy.asarray(node["value"].copy())
        return (jax.random.wrap_key_data(value, impl=node["key"]) if "key" in node else value), None


class MujocoData:
    """MuJoCo's `MjData`: what integration hangs on, and whatever arrays it has computed besides."""

    tag = "mujoco_data"

    def fits(self, cls: type) -> bool:
        """See `Kind`."""
        return _is_of(cls, "mujoco", "MjData")

    def take(self, value: Any, ref: Ref) -> Node:
        """See `Kind`."""
        mujoco, model = _library("mujoco"), value.model
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
            mujoco, vector = _library("mujoco"), node["state"]
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
        return _is_of(cls, "mujoco", "MjModel")

    def take(self, value: Any, ref: Ref) -> Node:
        """See `Kind`."""
        arrays = {name: found.copy() for name, found in _arrays(value) if found.size and not name.startswith(_FIXED)}
        options = {name: found for name in _public(value.opt) if isinstance(found := getattr(value.opt, name), int | float)}
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


KINDS: list[Kind] = [Tensors(), TorchGenerators(), Sizes(), TensorDicts(), JaxArrays(), MujocoData(), MujocoModels()]
KINDS.append(Emulators())
