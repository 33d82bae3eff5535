"""Captures the state of an object: walks over all reachable objects and writes them as numbered nodes of plain data.

Plain data are numbers, text, bytes, None, arrays, tensors, and lists and dicts of these. The entry `is` of a node is
its kind. A reference to another node is a list of one number. An object that is reached several times, also in a
cycle, is one node.
"""

from __future__ import annotations

import types
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from enum import Enum
from typing import Any

from ..errors import StateError, WorkerError
from .handlers.base import (
    IMMEDIATE,
    Node,
    Ref,
    Reference,
    State,
    StateHandler,
    cached_by_class,
    class_name,
    container_base,
    declared_names,
    describe_object,
    is_environment,
    is_external,
    is_python,
    is_stateless,
    mapping_base,
    slots_of,
    space_descriptions,
)
from .handlers.games import HANDLERS as GAMES
from .handlers.mujoco_ale import HANDLERS as MUJOCO_ALE
from .handlers.numpy import HANDLERS as NUMPY
from .handlers.spaces import HANDLERS as SPACES
from .handlers.stdlib import HANDLERS as STDLIB
from .handlers.torch import HANDLERS as TORCH

FORMAT = 3
HANDLERS: list[StateHandler[Any]] = [*NUMPY, *SPACES, *STDLIB, *TORCH, *MUJOCO_ALE, *GAMES]
OWN_GENERATORS = ("_np_random", "np_random", "_np_random_seed", "action_space", "observation_space")
"""Attributes that the `get_state` of an environment usually omits."""


def capture(value: object, about: Mapping[str, object] | None = None) -> State:
    """Returns the state of `value` and all objects reachable from it, as plain data that shares no memory with them.

    Args:
        value: an environment, or any other object.
        about: facts by name, which must be equal when the state is restored.

    Raises:
        StateError: an object keeps its state outside Python; the message gives its path, and what to do.

    >>> import random
    >>> from vecrl.snapshot import restore
    >>> dice = random.Random(1)
    >>> state = capture(dice)
    >>> dice.random()
    0.13436424411240122
    >>> restore(dice, state).random()
    0.13436424411240122
    """
    capturer = Capturer(describe_object(value))
    with as_state_errors():
        root = capturer.walk(value)
    return {
        "vecrl": "state",
        "format": FORMAT,
        "about": {**space_descriptions(value), **(about or {})},
        "root": root,
        "nodes": capturer.nodes,
    }


@contextmanager
def as_state_errors() -> Iterator[None]:
    """Raises the `StateError` of a worker, which arrives as a `WorkerError`, as a `StateError`."""
    try:
        yield
    except WorkerError as error:
        if isinstance(error.__cause__, StateError):
            raise StateError(str(error)) from error
        raise


class Capturer:
    """One walk over an object.

    Args:
        name: of the object, for messages.
        lenient: ignore objects that cannot be captured; used to collect the classes of all objects.

    Attributes:
        nodes: the nodes of the state.
        classes: the classes of the objects that were reached, by name.
    """

    def __init__(self, name: str, lenient: bool = False):
        self.nodes: list[Node] = []
        self.classes: dict[str, type] = {}
        self._name, self._lenient = name, lenient
        self._index_by_id: dict[int, int] = {}
        self._objects: list[object] = []  # references, so that the ids are not used again
        self._parents: list[tuple[int, str]] = []
        self._methods: list[tuple[Node, types.MethodType | types.BuiltinMethodType]] = []
        self._current = -1
        self._in_place_ids: set[int] = set()  # buffers of modules, which are written into and never replaced

    def walk(self, value: object) -> Reference:
        """Captures all objects reachable from `value` and returns the reference to it."""
        root = self.ref(value, "")
        index = 0
        while index < len(self._objects):  # breadth first, as `Restorer` does
            self._current = index
            self.nodes[index] = self._node(self._objects[index])
            index += 1
        for node, method in self._methods:
            owner = self._index_by_id.get(id(method.__self__))
            if owner is not None:
                node.update({"is": "method", "of": [owner], "name": method.__name__})
        return root

    def ref(self, value: Any, label: str) -> Reference:
        """Returns the reference to an object that the current object reaches by `label`; immediate values as such."""
        if type(value) in IMMEDIATE:
            return value
        index = self._index_by_id.get(id(value))
        if index is None:
            index = self._index_by_id[id(value)] = len(self.nodes)
            self.nodes.append({})
            self._objects.append(value)
            self._parents.append((self._current, label))
        return [index]

    def _node(self, value: Any) -> Node:
        cls = type(value)
        capture_builtin = _BUILTINS.get(cls)
        if capture_builtin is not None:
            return capture_builtin(value, self.ref)
        handler = handler_of(cls)
        if handler is not None:
            in_place = {"in_place": True} if id(value) in self._in_place_ids else {}
            return {"is": handler.tag, **handler.capture(value, self.ref), **in_place}
        if isinstance(value, Enum):
            self.classes[class_name(cls)] = cls
            return {"is": "enum", "of": class_name(cls), "name": value.name, "value": self.ref(value.value, ".value")}
        if is_stateless(value):
            return self._stateless_node(value)
        self.classes |= {class_name(known): known for known in (cls, *declared_names(cls, "state_classes"))}
        if isinstance(value, tuple) and hasattr(cls, "_fields"):
            return {"is": "tuple", "of": class_name(cls), "items": _items(value, self.ref)}
        if has_own_state(cls):
            return self._own_state_node(value)
        if is_external(cls) or not is_python(cls):
            return self._refuse(value)
        return self._object_node(value)

    def _stateless_node(self, value: object) -> Node:
        node: Node = {"is": "not_stored"}
        if isinstance(value, type):
            self.classes[class_name(value)] = value
        elif isinstance(value, types.MethodType | types.BuiltinMethodType) and value.__self__ is not None:
            self._methods.append((node, value))
        return node

    def _own_state_node(self, value: Any) -> Node:
        """Captures an object with its own `get_state`."""
        node = {"is": "own", "of": class_name(type(value))}
        if self._lenient:
            return node
        state = value.get_state()
        if getattr(type(value), "state_is_plain_data", False):
            return {**node, "plain": state}
        attributes = getattr(value, "__dict__", {})
        attrs = {name: attributes[name] for name in OWN_GENERATORS if attributes.get(name) is not None}
        return {**node, "state": self.ref(state, ".get_state()"), "attrs": self._refs(attrs)}

    def _object_node(self, value: Any) -> Node:
        cls = type(value)
        excluded = declared_names(cls, "excluded_from_state")
        attrs = {name: found for name, found in getattr(value, "__dict__", {}).items() if name not in excluded}
        self._in_place_ids |= set(map(id, getattr(value, "__dict__", {}).get("_buffers", {}).values()))
        node: Node = {"is": "object", "of": class_name(cls), "attrs": self._refs(attrs)}
        if self._current > 0 and not self._lenient and (facts := facts_of(value)):
            node["about"] = facts
        if is_environment(cls):  # its spaces may be attributes of the class; they have random number generators
            spaces = {name: getattr(cls, name, None) for name in ("action_space", "observation_space")}
            shared = {name: space for name, space in spaces.items() if name not in attrs and hasattr(space, "sample")}
            node |= {"shared": self._refs(shared)} if shared else {}
        slots = {}
        for name, slot in slots_of(cls):
            if name not in excluded and name not in ("__dict__", "__weakref__"):
                try:
                    slots[name] = slot.__get__(value, cls)
                except AttributeError:  # not set
                    continue
        if slots:
            node["slots"] = self._refs(slots)
        if (base := container_base(cls)) is not None:
            pairs = issubclass(base, dict)
            node["items"] = _pairs(value, self.ref) if pairs else _items(base.__iter__(value), self.ref)
        return node

    def _refs(self, values: Mapping[str, object]) -> dict[str, Reference]:
        return {name: self.ref(value, f".{name}") for name, value in values.items()}

    def _refuse(self, value: object) -> Node:
        if self._lenient:
            return {"is": "not_stored"}
        path, index = "", self._current
        while index > 0:
            index, label = self._parents[index]
            path = label + path
        attribute = path.rpartition(".")[2]
        raise StateError(
            f"The state of {self._name} cannot be captured: at env{path} is a {class_name(type(value))}, which keeps "
            "its state outside Python. Add methods get_state() and set_state(state) to the environment, which are "
            "called instead. If the object is not part of its state, exclude it in the class that holds it: "
            f"`excluded_from_state = {{{attribute!r}}}`."
        )


def facts_of(value: Any) -> dict[str, object]:
    """Returns the facts of a `Stateful` object, which must be equal when it is restored; `{}` for other objects."""
    return value._state_facts() if hasattr(type(value), "_state_facts") else {}


@cached_by_class
def handler_of(cls: type) -> StateHandler[Any] | None:
    """Returns the handler for instances of a class, or None."""
    return next((handler for handler in HANDLERS if handler.matches(cls)), None)


@cached_by_class
def has_own_state(cls: type) -> bool:
    """Whether a class has its own `get_state()` and `set_state(state)`.

    It also needs `step` and `reset`, so that it is an environment, or the attribute `state_is_plain_data`.
    """
    names = ["get_state", "set_state"]
    if not getattr(cls, "state_is_plain_data", False):
        names += ["step", "reset"]
    return all(callable(getattr(cls, name, None)) for name in names) and not hasattr(
        cls.get_state, "is_generic_get_state"
    )


def _items(values: Iterable[object], ref: Ref) -> list[Reference]:
    return [ref(value, f"[{place}]") for place, value in enumerate(values)]


def _pairs(values: dict[Any, Any], ref: Ref) -> list[list[Reference]]:
    items = mapping_base(values).items(values)
    return [[ref(key, f"[key {key!r:.40}]"), ref(value, f"[{key!r:.40}]")] for key, value in items]


_BUILTINS: dict[type, Callable[[Any, Ref], Node]] = {
    dict: lambda value, ref: {"is": "dict", "items": _pairs(value, ref)},
    OrderedDict: lambda value, ref: {"is": "ordered", "items": _pairs(value, ref)},
    defaultdict: lambda value, ref: {
        "is": "defaultdict",
        "items": _pairs(value, ref),
        "default": ref(value.default_factory, ".default_factory"),
    },
    list: lambda value, ref: {"is": "list", "items": _items(value, ref)},
    tuple: lambda value, ref: {"is": "tuple", "items": _items(value, ref)},
    set: lambda value, ref: {"is": "set", "items": _items(value, ref)},
    frozenset: lambda value, ref: {"is": "frozenset", "items": _items(value, ref)},
    deque: lambda value, ref: {"is": "deque", "items": _items(value, ref), "maxlen": value.maxlen},
    bytearray: lambda value, ref: {"is": "bytearray", "value": bytes(value)},
    slice: lambda value, ref: {"is": "slice", "items": _items((value.start, value.stop, value.step), ref)},
    range: lambda value, ref: {"is": "range", "items": [value.start, value.stop, value.step]},
}
