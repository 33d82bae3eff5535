"""Classifies objects: those with a state that can be captured, those without state, and those outside Python.

Objects with a rule of their own (arrays, generators, objects that libraries keep outside Python) have a `StateHandler`.
All others (containers and objects) are walked by `capture` and rebuilt by `restore`. This module knows libraries by
name and imports none of them: an object of a library exists only if the library is loaded.
"""

from __future__ import annotations

import functools
import io
import logging
import re
import threading
import types
import weakref
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol

Ref = Callable[[Any, str], Any]
"""Takes an object and the label that leads to it, and returns the reference to it for a node."""
Get = Callable[..., Any]
"""Takes a reference and the existing object at its place (or `MISSING`), and returns the restored object."""
Node = dict[str, Any]


class _Missing:
    def __repr__(self) -> str:
        return "MISSING"


MISSING: Any = _Missing()
IMMEDIATE = (type(None), bool, int, float, complex, str, bytes)


cached_by_class = functools.lru_cache(maxsize=4096)
"""Caches functions of a class, since they are called for every object."""


class StateHandler(Protocol):
    """The rule by which objects of some classes are captured and restored.

    Attributes:
        tag: the kind of their nodes, under the key `is`.
    """

    tag: str

    def matches(self, cls: type) -> bool:
        """Whether this handler applies to instances of a class."""
        ...

    def capture(self, value: Any, ref: Ref) -> Node:
        """Captures the state of an object and returns its node, without the tag."""
        ...

    def restore(self, node: Node, old: Any, get: Get) -> tuple[Any, Callable[[], None] | None]:
        """Finds or creates the object for a node, without any change to existing ones.

        Returns:
            The object, which is `old` if that can be used, and a function that carries out the changes, or None.
        """
        ...


_STATELESS_TYPES = (
    type,
    types.ModuleType,
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodType,
    types.MethodWrapperType,
    types.WrapperDescriptorType,
    types.CodeType,
    types.MappingProxyType,
    staticmethod,
    classmethod,
    property,
    functools.partial,
    weakref.ReferenceType,
    weakref.WeakSet,
    weakref.finalize,
    io.IOBase,
    threading.Thread,
    threading.Event,
    threading.Condition,
    threading.local,
    type(threading.Lock()),
    type(threading.RLock()),
    logging.Logger,
    logging.Handler,
    re.Pattern,
    BaseException,
    type(Ellipsis),
    type(NotImplemented),
)
_STATELESS_MODULES = {"pygame", "pyglet", "OpenGL", "glfw", "glcontext", "moderngl", "matplotlib", "imageio", "moviepy"}
_STATELESS_MODULES |= {"cv2", "tkinter", "wandb", "tensorboard", "logging", "typing"}
_STATELESS_MODULE_PARTS = (
    "gymnasium.envs.registration",
    "mujoco_rendering",
    "gymnasium.envs.classic_control.rendering",
)
_STATELESS_SUFFIXES = ("renderer", "viewer", "window")
_EXTERNAL_MODULES = {
    "subprocess",
    "multiprocessing",
    "socket",
    "asyncio",
    "concurrent",
    "grpc",
    "ray",
    "ctypes",
    "_ctypes",
}
_EXTERNAL_MODULES |= {"pybullet", "pybullet_utils"}


def is_environment(value: Any) -> bool:
    """Whether an object has the methods `step` and `reset`."""
    return _is_environment(type(value))


def _is_environment(cls: type) -> bool:
    return callable(getattr(cls, "step", None)) and callable(getattr(cls, "reset", None))


def is_stateless(value: Any) -> bool:
    """Whether an object (code, a file, a window) has no state, so that the existing object at its place stays."""
    return _is_stateless(type(value))


@cached_by_class
def _is_stateless(cls: type) -> bool:
    if issubclass(cls, _STATELESS_TYPES):
        return True
    module = module_of(cls)
    top = module.partition(".")[0]
    if top in _STATELESS_MODULES or any(part in module for part in _STATELESS_MODULE_PARTS):
        return True
    if top == "mujoco":
        return cls.__name__ not in ("MjData", "MjModel")
    if top == "torch":
        return cls.__name__ in ("dtype", "device", "Stream", "Event", "layout", "memory_format")
    if top in ("jaxlib", "jax"):
        return any("__call__" in vars(base) for base in cls.__mro__)
    return cls.__name__.lower().endswith(_STATELESS_SUFFIXES) and not _is_environment(cls)


def is_external(value: Any) -> bool:
    """Whether an object represents state in another process, or in a library that is accessed by a handle."""
    return module_of(type(value)).partition(".")[0] in _EXTERNAL_MODULES


_CONTAINERS = (OrderedDict, dict, list, set)


def container_base(cls: type) -> type | None:
    """Returns the container class that a class derives from, or None."""
    return next((base for base in _CONTAINERS if issubclass(cls, base)), None)


def mapping_base(value: Any) -> Any:
    """Returns the class with the methods that read and set the items of a dict, which bypass those of subclasses."""
    return OrderedDict if isinstance(value, OrderedDict) else dict


@cached_by_class
def is_python(cls: type) -> bool:
    """Whether the whole state of instances is in attributes (and items): no extension type keeps more of it."""
    base = container_base(cls) or object
    size = cls.__basicsize__ - base.__basicsize__
    if cls.__weakrefoffset__ > 0 and not base.__weakrefoffset__:
        size -= 8
    if cls.__dictoffset__ > 0:
        size -= 8
    size -= 8 * len(slots_of(cls))
    return size <= 0 and not (cls.__itemsize__ and base is object)


@cached_by_class
def slots_of(cls: type) -> tuple[tuple[str, Any], ...]:
    """Returns the names and descriptors of the slots of a class."""
    slot_dicts = [vars(base) for base in cls.__mro__ if "__slots__" in vars(base)]
    slots = [pair for slot_dict in slot_dicts for pair in slot_dict.items()]
    return tuple((name, slot) for name, slot in slots if isinstance(slot, types.MemberDescriptorType))


@cached_by_class
def declared_names(cls: type, name: str) -> frozenset[Any]:
    """Returns the union of a declaration over a class and its bases.

    Declarations are `excluded_from_state`, the attributes that are not part of the state, and `state_classes`, the
    classes of objects that a state may contain.
    """
    return frozenset(declared for base in cls.__mro__ for declared in vars(base).get(name, ()))


def class_name(cls: type) -> str:
    """Returns the module and qualified name of a class.

    >>> class_name(dict)
    'builtins.dict'
    """
    return f"{module_of(cls)}.{cls.__qualname__}"


def module_of(cls: type) -> str:
    """Returns the name of the module of a class; "" for some classes of SWIG, which have none."""
    return str(getattr(cls, "__module__", ""))


def same_name(first: str, second: str) -> bool:
    """Whether two names denote the same class, even if its module is `__main__` in one of them."""
    if first == second:
        return True
    if "__main__" not in (first.partition(".")[0], second.partition(".")[0]):
        return False
    return first.rpartition(".")[2] == second.rpartition(".")[2]


def space_descriptions(value: Any) -> dict[str, str]:
    """Returns descriptions of the spaces of an environment, if it has any."""
    if not is_environment(value):
        return {}
    attributes = getattr(value, "__dict__", {})
    names = [name for name in ("observation_space", "action_space") if name in attributes or hasattr(type(value), name)]
    return {name: describe_space(getattr(value, name, None)) for name in names}


def describe_space(space: Any) -> str:
    """Describes a space. The description of a `Box` omits its bounds, since NumPy formats them slowly."""
    return f"Box{space.shape} of {space.dtype}" if hasattr(space, "low") else str(space)


def describe_object(value: Any) -> str:
    """Returns the name of an object for messages: the id of an environment, or the class.

    >>> describe_object([])
    'list'
    """
    spec = None
    if hasattr(type(value), "spec"):  # on the class, since an instance may forward the access to its workers
        with suppress(Exception):
            spec = value.spec
    spec_id = getattr(spec, "id", None)
    return spec_id if isinstance(spec_id, str) else type(value).__name__
