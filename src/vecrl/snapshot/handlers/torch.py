"""Captures and restores objects of torch, tensordict and JAX.

Libraries are recognized by the modules of the objects' classes. This module imports none of them, and uses only those
that are loaded.
"""

from __future__ import annotations

from types import ModuleType

import numpy as np

from ...errors import StateError
from .base import (
    MISSING,
    Get,
    LibraryHandler,
    LibraryObject,
    Node,
    Ref,
    Restored,
    is_instance_of_library,
    loaded_module,
    top_package,
)


class Tensors(LibraryHandler):
    """Tensors of torch.

    Parameters, buffers and tensors in shared memory are written into, so that all users of the memory get the values.
    Other tensors are replaced, since they may have been returned to a caller.
    """

    tag = "tensor"
    library, class_names = "torch", ("Tensor",)

    def capture(self, value: LibraryObject, ref: Ref) -> Node:
        if not value.is_contiguous() and value.layout != loaded_module("torch").strided:
            raise StateError(f"Expected dense tensors in a state, got one of layout {value.layout}.")
        gradient_flag = {"requires_grad": True} if value.requires_grad and value.is_leaf else {}
        parameter_flag = {"parameter": True} if is_instance_of_library(type(value), "torch", "Parameter") else {}
        return {"value": value.detach().cpu().clone(), "device": str(value.device), **gradient_flag, **parameter_flag}

    def restore(self, node: Node, old: LibraryObject, get: Get) -> Restored:
        torch, value = loaded_module("torch"), node["value"]
        if not isinstance(value, torch.Tensor):
            raise StateError(f"Expected a tensor in a state, got a {type(value).__name__}.")
        if isinstance(old, torch.Tensor) and _can_copy_into(old, node):
            return old, lambda: _copy(torch, old, value)
        device = old.device if isinstance(old, torch.Tensor) else _available_device(torch, node["device"])
        new = value.to(device, copy=True)
        if node.get("parameter"):
            new = torch.nn.Parameter(new, requires_grad=node.get("requires_grad", False))
        return new.requires_grad_(node.get("requires_grad", False)), None


def _can_copy_into(old: LibraryObject, node: Node) -> bool:
    """Whether the state is written into the existing tensor, as opposed to a new one."""
    value = node["value"]
    must_keep = (
        node.get("in_place")
        or is_instance_of_library(type(old), "torch", "Parameter")
        or (old.device.type == "cpu" and old.is_shared())
    )
    must_keep = must_keep or type(old).__name__ == "MemoryMappedTensor"
    return (
        must_keep and old.shape == value.shape and old.dtype == value.dtype and not (old.grad_fn or old.is_inference())
    )


def _available_device(torch: ModuleType, device: str) -> str:
    """Returns the device, or the CPU if CUDA is not available: a state may come from another machine."""
    return device if not device.startswith("cuda") or torch.cuda.is_available() else "cpu"


def _copy(torch: ModuleType, old: LibraryObject, value: LibraryObject) -> None:
    with torch.no_grad():
        old.copy_(value)


class TorchGenerators(LibraryHandler):
    """Random number generators of torch."""

    tag = "torch_generator"
    library, class_names = "torch", ("Generator",)

    def capture(self, value: LibraryObject, ref: Ref) -> Node:
        return {"state": value.get_state().clone(), "device": str(value.device)}

    def restore(self, node: Node, old: LibraryObject, get: Get) -> Restored:
        torch = loaded_module("torch")
        generator = (
            old if isinstance(old, torch.Generator) else torch.Generator(_available_device(torch, node["device"]))
        )
        return generator, lambda: generator.set_state(node["state"])


class Sizes(LibraryHandler):
    """Sizes of torch."""

    tag = "size"
    library, class_names = "torch", ("Size",)

    def capture(self, value: LibraryObject, ref: Ref) -> Node:
        return {"value": list(value)}

    def restore(self, node: Node, old: LibraryObject, get: Get) -> Restored:
        return loaded_module("torch").Size(node["value"]), None


_STACKS = ("LazyStackedTensorDict", "NonTensorStack")


class TensorDicts(LibraryHandler):
    """TensorDicts, including nested and stacked ones, and non-tensor data."""

    tag = "tensordict"
    library, class_names = "tensordict", ("TensorDict", "NonTensorData", *_STACKS)

    def capture(self, value: LibraryObject, ref: Ref) -> Node:
        class_name = next(base.__name__ for base in type(value).__mro__ if base.__name__ in self.class_names)
        metadata = {
            "of": class_name,
            "size": list(value.batch_size),
            "device": None if value.device is None else str(value.device),
        }
        if class_name == "NonTensorData":
            return {**metadata, "data": ref(value.data, ".data")}
        if class_name in _STACKS:
            return {**metadata, "dim": value.stack_dim, "items": [ref(part, "[…]") for part in value.tensordicts]}
        return {**metadata, "items": [[key, ref(part, f"[{key!r}]")] for key, part in value.items()]}

    def restore(self, node: Node, old: LibraryObject, get: Get) -> Restored:
        tensordict = loaded_module("tensordict")
        if node["of"] == "NonTensorData":
            return tensordict.NonTensorData(get(node["data"]), batch_size=node["size"], device=node["device"]), None
        if node["of"] in _STACKS:
            stack = getattr(tensordict, node["of"])
            return stack(*[get(part) for part in node["items"]], stack_dim=node["dim"]), None
        same_kind = type(old).__name__ == node["of"]
        entries = {key: get(part, old.get(key, MISSING) if same_kind else MISSING) for key, part in node["items"]}
        if (
            same_kind
            and len(entries) == len(old.keys())
            and all(old.get(k, None) is part for k, part in entries.items())
        ):
            return old, None
        return tensordict.TensorDict(entries, node["size"], device=node["device"]), None


class JaxArrays:
    """Arrays of JAX, including random keys."""

    tag = "jax"

    def matches(self, cls: type) -> bool:
        return top_package(cls) in ("jaxlib", "jax") and cls.__name__ in ("ArrayImpl", "PRNGKeyArray")

    def capture(self, value: LibraryObject, ref: Ref) -> Node:
        if type(value).__name__ == "ArrayImpl":
            return {"value": np.array(value)}
        random = loaded_module("jax").random
        return {"value": np.array(random.key_data(value)), "key": str(random.key_impl(value))}

    def restore(self, node: Node, old: LibraryObject, get: Get) -> Restored:
        jax = loaded_module("jax")
        value = jax.numpy.asarray(node["value"].copy())
        return (jax.random.wrap_key_data(value, impl=node["key"]) if "key" in node else value), None


HANDLERS = (Tensors(), TorchGenerators(), Sizes(), TensorDicts(), JaxArrays())
