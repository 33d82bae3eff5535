"""Defines the types of the data in a state and the interface of handlers, and classifies objects.

An object has a state that can be captured, or no state, or a state outside Python, which cannot be captured.
Objects with a rule of their own (arrays, generators, objects that libraries keep outside Python) have a `StateHandler`.
All others (containers and objects) are walked by `capture` and rebuilt by `restore`. This module knows libraries by
name and imports none of them: an object of a library exists only if the library is loaded.
"""

from __future__ import annotations

import functools
import io
import logging
import re
import sys
import threading
import types
import weakref
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol, TypeAlias, TypedDict, TypeVar

from ...errors import StateError

Immediate: TypeAlias = bool | int | float | complex | str | bytes | None
"""A value that is stored where it is used. All other values are nodes."""
IMMEDIATE = (type(None), bool, int, float, complex, str, bytes)
Reference: TypeAlias = Immediate | list[int]
"""An immediate value, or a list of one number: the index of a node."""
Ref: TypeAlias = Callable[[object, str], Reference]
"""Takes an object and the label that leads to it, and returns the reference to it for a node."""
Node: TypeAlias = dict[str, Any]
"""One object as plain data. The entry `is` is its kind, which determines the other entries."""
LibraryObject: TypeAlias = Any
"""An object of a library that this package does not import, not even for its types."""
Restored: TypeAlias = tuple[object, Callable[[], object] | None]
"""An object, and a function that carries out the changes to it, or None if there are none."""


class State(TypedDict):
    """The state of an object, as `capture` returns it.

    Attributes:
        vecrl: "state".
        format: the version of this format.
        about: facts that must be equal when the state is restored, by name.
        root: the reference to the object.
        nodes: the object and all objects that can be reached from it.
    """

    vecrl: str
    format: int
    about: dict[str, object]
    root: Reference
    nodes: list[Node]


class _Missing:
    def __repr__(self) -> str:
        return "MISSING"


MISSING: Any = _Missing()


class Get(Protocol):
    """Takes a reference and the existing object at its place (or `MISSING`), and returns the restored object."""

    def __call__(self, value: Reference, old: object = MISSING) -> Any: ...


cached_by_class = functools.lru_cache(maxsize=4096)
"""Caches functions of a class, since they are called for every object."""
T_contra = TypeVar("T_contra", contravariant=True)


class StateHandler(Protocol[T_contra]):
    """The rule by which objects of some classes are captured and restored.

    Attributes:
        tag: the kind of their nodes, under the key `is`.
    """

    tag: str

    def matches(self, cls: type) -> bool:
        """Whether this handler applies to instances of a class."""
        ...

    def capture(self, value: T_contra, ref: Ref) -> Node:
        """Captures the state of an object and returns its node, without the tag."""
        ...

    def restore(self, node: Node, old: LibraryObject, get: Get) -> Restored:
        """Finds or creates the object for a node, without any change to existing ones.

        Returns:
            The object, which is `old` if that can be used, and a function that carries out the changes, or None.
        """
        ...


class LibraryHandler:
    """Base class of handlers for the classes of one library, which it recognizes by name.

    Attributes:
        library: the name of the library's package.
        class_names: the names of the classes. Their subclasses match too.
    """

    library: str
    class_names: tuple[str, ...]

    def matches(self, cls: type) -> bool:
        """Whether this handler applies to instances of a class."""
        return is_instance_of_library(cls, self.library, *self.class_names)

    def require_match(self, old: object) -> None:
        """Checks that an existing object, which the state is to be written into, is of these classes.

        Raises:
            StateError: it is not.
        """
        if not self.matches(type(old)):
            raise StateError(
                f"Expected {' or '.join(self.class_names)}, as in the state, got {type(old).__name__}. Construct the "
                "environment in the same way."
            )


def is_instance_of_library(cls: type, package: str, *names: str) -> bool:
    """Whether a class, or one of its bases, has one of these names and is of this package."""
    return any(base.__name__ in names and top_package(base) == package for base in cls.__mro__)


def loaded_module(name: str) -> types.ModuleType:
    """Returns a library that is loaded already.

    Raises:
        StateError: it is not loaded.
    """
    if name not in sys.modules:
        raise StateError(f"The state contains objects of {name}, which is not loaded. Import it first.")
    return sys.modules[name]


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
PYGAME_VALUES = "Rect", "FRect", "Vector2", "Vector3"  # all else of pygame is for windows and images
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
    "ctypes",
    "_ctypes",
    "grpc",
    "ray",
}
_EXTERNAL_MODULES |= {"pybullet", "pybullet_utils"}


def is_environment(cls: type) -> bool:
    """Whether a class has the methods `step` and `reset`."""
    return callable(getattr(cls, "step", None)) and callable(getattr(cls, "reset", None))


def is_stateless(value: object) -> bool:
    """Whether an object (code, a file, a window) has no state, so that the existing object at its place stays."""
    return _is_stateless(type(value))


@cached_by_class
def _is_stateless(cls: type) -> bool:
    if issubclass(cls, _STATELESS_TYPES):
        return True
    module, top = module_of(cls), top_package(cls)
    if top == "pygame" and (cls.__name__ in PYGAME_VALUES or module == "pygame.sprite"):
        return False
    if top in _STATELESS_MODULES or any(part in module for part in _STATELESS_MODULE_PARTS):
        return True
    if module == "multiprocessing.synchronize":
        return cls.__name__ in ("Lock", "RLock", "Condition")
    if top == "mujoco":
        return cls.__name__ not in ("MjData", "MjModel")
    if top == "torch":
        return cls.__name__ in ("dtype", "device", "Stream", "Event", "layout", "memory_format")
    if top in ("jaxlib", "jax"):
        return any("__call__" in vars(base) for base in cls.__mro__)
    return cls.__name__.lower().endswith(_STATELESS_SUFFIXES) and not is_environment(cls)


def is_external(cls: type) -> bool:
    """Whether instances represent state in another process, or in a library that is accessed by a handle."""
    return top_package(cls) in _EXTERNAL_MODULES


Container: TypeAlias = type[dict[Any, Any]] | type[list[Any]] | type[set[Any]]
_CONTAINERS: tuple[Container, ...] = (OrderedDict, dict, list, set)


def container_base(cls: type) -> Container | None:
    """Returns the container class that a class derives from, or None. Its methods bypass those of subclasses."""
    return next((base for base in _CONTAINERS if issubclass(cls, base)), None)


def mapping_base(value: object) -> type[dict[Any, Any]]:
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
def slots_of(cls: type) -> tuple[tuple[str, types.MemberDescriptorType], ...]:
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


def top_package(cls: type) -> str:
    """Returns the name of the top-level package of a class.

    >>> top_package(OrderedDict)
    'collections'
    """
    return module_of(cls).partition(".")[0]


def same_name(first: str, second: str) -> bool:
    """Whether two names denote the same class, even if its module is `__main__` in one of them."""
    if first == second:
        return True
    if "__main__" not in (first.partition(".")[0], second.partition(".")[0]):
        return False
    return first.rpartition(".")[2] == second.rpartition(".")[2]


def space_descriptions(value: object) -> dict[str, str]:
    """Returns descriptions of the spaces of an environment, if it has any."""
    if not is_environment(type(value)):
        return {}
    attributes = getattr(value, "__dict__", {})
    names = [name for name in ("observation_space", "action_space") if name in attributes or hasattr(type(value), name)]
    return {name: describe_space(getattr(value, name, None)) for name in names}


def describe_space(space: LibraryObject) -> str:
    """Describes a space. The description of a `Box` omits its bounds, since NumPy formats them slowly."""
    return f"Box{space.shape} of {space.dtype}" if hasattr(space, "low") else str(space)


def describe_object(value: object) -> str:
    """Returns the name of an object for messages: the id of an environment, or the class.

    >>> describe_object([])
    'list'
    """
    spec = None
    if hasattr(type(value), "spec"):  # on the class, since an instance may forward the access to its workers
        with suppress(Exception):
            spec = getattr(value, "spec", None)
    spec_id = getattr(spec, "id", None)
    return spec_id if isinstance(spec_id, str) else type(value).__name__
