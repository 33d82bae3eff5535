"""Which things have a state that can be held, which are left as they are, and which can do neither.

What is held as a whole by a rule of its own (arrays, generators, what libraries keep outside Python) is a
`StateHandler`; the
rest (containers and objects) is walked by `taking` and built again by `putting`. Knows names of libraries, and imports
none of them: a thing of a library is there only if the library is.
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
"""Of a thing and the name by which it is reached: what stands for it in a node."""
Get = Callable[..., Any]
"""Of what stands for a thing, and of what is in its place now (or `MISSING`): the thing."""
Node = dict[str, Any]


class _Missing:
    def __repr__(self) -> str:
        return "MISSING"


MISSING: Any = _Missing()
IMMEDIATE = (type(None), bool, int, float, complex, str, bytes)


cached_by_class = functools.lru_cache(maxsize=4096)
"""For functions of a class, which are asked for every object."""


class StateHandler(Protocol):
    """Things that are held by one rule.

    Attributes:
        tag: what their nodes say they are.
    """

    tag: str

    def matches(self, cls: type) -> bool:
        """Whether instances of a class are such."""
        ...

    def capture(self, value: Any, ref: Ref) -> Node:
        """All that is to be known of it, but for the tag."""
        ...

    def restore(self, node: Node, old: Any, get: Get) -> tuple[Any, Callable[[], None] | None]:
        """The thing, `old` itself where that will do, and what is still to be done to make it what it was."""
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
    """Whether something steps and begins anew."""
    return _is_environment(type(value))


def _is_environment(cls: type) -> bool:
    return callable(getattr(cls, "step", None)) and callable(getattr(cls, "reset", None))


def is_stateless(value: Any) -> bool:
    """Whether something has no state to be held, so that what is in its place is left there: code, files, windows."""
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
    """Whether something stands for what another process, or a library behind a number, keeps to itself."""
    return module_of(type(value)).partition(".")[0] in _EXTERNAL_MODULES


_CONTAINERS = (OrderedDict, dict, list, set)


def container_base(cls: type) -> type | None:
    """Which container a class derives from, if any."""
    return next((base for base in _CONTAINERS if issubclass(cls, base)), None)


def mapping_base(value: Any) -> Any:
    """The class whose methods a dict's items are had and set by, past those of a class that derives from it."""
    return OrderedDict if isinstance(value, OrderedDict) else dict


@cached_by_class
def is_python(cls: type) -> bool:
    """Whether all that instances hold are attributes (and items), so that nothing is kept where nobody sees it."""
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
    """The names of a class's slots, and how to reach them."""
    slot_dicts = [vars(base) for base in cls.__mro__ if "__slots__" in vars(base)]
    slots = [pair for slot_dict in slot_dicts for pair in slot_dict.items()]
    return tuple((name, slot) for name, slot in slots if isinstance(slot, types.MemberDescriptorType))


@cached_by_class
def declared_names(cls: type, name: str) -> frozenset[Any]:
    """What a class and those it derives from list under a name: `excluded_from_state`, attributes that are none of the
    state, or
    `state_classes`, of which there may be objects in it."""
    return frozenset(declared for base in cls.__mro__ for declared in vars(base).get(name, ()))


def class_name(cls: type) -> str:
    """A class by module and name.

    >>> class_name(dict)
    'builtins.dict'
    """
    return f"{module_of(cls)}.{cls.__qualname__}"


def module_of(cls: type) -> str:
    """The name of the module that a class is of; some of SWIG's have none."""
    return str(getattr(cls, "__module__", ""))


def same_name(first: str, second: str) -> bool:
    """Whether two names are of one class, also where its module is run as the program in one of the cases."""
    if first == second:
        return True
    if "__main__" not in (first.partition(".")[0], second.partition(".")[0]):
        return False
    return first.rpartition(".")[2] == second.rpartition(".")[2]


def space_descriptions(value: Any) -> dict[str, str]:
    """What the spaces of an environment look like, if it has any."""
    if not is_environment(value):
        return {}
    attributes = getattr(value, "__dict__", {})
    names = [name for name in ("observation_space", "action_space") if name in attributes or hasattr(type(value), name)]
    return {name: describe_space(getattr(value, name, None)) for name in names}


def describe_space(slot_dict: Any) -> str:
    """A space in words; those of a `Box` leave out its bounds, for which NumPy takes a while."""
    return f"Box{slot_dict.shape} of {slot_dict.dtype}" if hasattr(slot_dict, "low") else str(slot_dict)


def describe_object(value: Any) -> str:
    """What to call a thing in a message: an environment's id, or its class.

    >>> describe_object([])
    'list'
    """
    spec = None
    if hasattr(type(value), "spec"):  # to look it up in the thing itself could be to ask its workers
        with suppress(Exception):
            spec = value.spec
    spec_id = getattr(spec, "id", None)
    return spec_id if isinstance(spec_id, str) else type(value).__name__
