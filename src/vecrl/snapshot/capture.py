"""Takes the state of a thing: a walk over all that hangs on it, written down as numbered nodes of plain data.

A state is plain data throughout: numbers, text, bytes, None, arrays, tensors, and lists and dicts of these. A node says
what it is (`is`), and points at others by lists of one number. What is shared is one node; what goes in circles too.
"""

from __future__ import annotations

import types
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from enum import Enum
from typing import Any

from ..errors import StateError, WorkerError
from .handlers.base import (
    IMMEDIATE,
    Node,
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
from .handlers.mujoco_ale import HANDLERS as SIMULATORS
from .handlers.numpy import HANDLERS as ARRAYS
from .handlers.spaces import HANDLERS as SPACES
from .handlers.stdlib import HANDLERS as LITERALS
from .handlers.torch import HANDLERS as LIBRARIES

FORMAT = 3
HANDLERS: list[StateHandler] = [*ARRAYS, *SPACES, *LITERALS, *LIBRARIES, *SIMULATORS]
OWN_GENERATORS = ("_np_random", "np_random", "_np_random_seed", "action_space", "observation_space")
"""What an environment that says its own state usually leaves unsaid."""


def capture(value: Any, about: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The state of `value` and of all that hangs on it, as plain data that shares nothing with it.

    Args:
        value: an environment, or anything else.
        about: what must be equal where the state is put back, by name.

    Raises:
        StateError: something in it keeps its state where nobody sees it; names where that is, and what to do.

    >>> import random
    >>> from vecrl.snapshot import put
    >>> dice = random.Random(1)
    >>> state = capture(dice)
    >>> dice.random()
    0.13436424411240122
    >>> put(dice, state).random()
    0.13436424411240122
    """
    walk = Capturer(describe_object(value))
    with as_state_errors():
        root = walk.walk(value)
    return {
        "vecrl": "state",
        "format": FORMAT,
        "about": space_descriptions(value) | dict(about or {}),
        "root": root,
        "nodes": walk.nodes,
    }


@contextmanager
def as_state_errors() -> Iterator[None]:
    """What workers say of states that cannot be had, or do not fit, is said as what it is."""
    try:
        yield
    except WorkerError as error:
        if isinstance(error.__cause__, StateError):
            raise StateError(str(error)) from error
        raise


class Capturer:
    """One walk.

    Args:
        name: of what is walked over, for messages.
        lenient: pass over what cannot be held; for a look at which classes there are.

    Attributes:
        nodes: what was written down.
        classes: of the objects that were met, by name.
    """

    def __init__(self, name: str, lenient: bool = False):
        self.nodes: list[Any] = []
        self.classes: dict[str, type] = {}
        self._name, self._lenient = name, lenient
        self._known: dict[int, int] = {}
        self._things: list[Any] = []  # kept, so that no other gets the id of one that is gone
        self._above: list[tuple[int, str]] = []
        self._methods: list[tuple[Node, Any]] = []
        self._now = -1
        self._staying: set[int] = set()  # by id: modules' buffers, which are written into and never replaced

    def walk(self, value: Any) -> Any:
        """What stands for `value`, all that hangs on it being written down."""
        root = self.ref(value, "")
        at = 0
        while at < len(self._things):  # those near the root first, as `putting` goes too
            self._now = at
            self.nodes[at] = self._node(self._things[at])
            at += 1
        for node, method in self._methods:
            owner = self._known.get(id(method.__self__))
            if owner is not None:
                node.update({"is": "method", "of": [owner], "name": method.__name__})
        return root

    def ref(self, value: Any, label: str) -> Any:
        """What stands for a thing reached by `label` from the one being written down."""
        if type(value) in IMMEDIATE:
            return value
        at = self._known.get(id(value))
        if at is None:
            at = self._known[id(value)] = len(self.nodes)
            self.nodes.append(None)
            self._things.append(value)
            self._above.append((self._now, label))
        return [at]

    def _node(self, value: Any) -> Node:
        cls = type(value)
        plain = _PLAIN.get(cls)
        if plain is not None:
            return plain(value, self.ref)
        kind = kind_of(cls)
        if kind is not None:
            stays = {"stays": True} if id(value) in self._staying else {}
            return {"is": kind.tag, **kind.capture(value, self.ref), **stays}
        if isinstance(value, Enum):
            self.classes[class_name(cls)] = cls
            return {"is": "enum", "of": class_name(cls), "name": value.name, "value": self.ref(value.value, ".value")}
        if is_stateless(value):
            return self._left(value)
        self.classes |= {class_name(known): known for known in (cls, *declared_names(cls, "state_classes"))}
        if isinstance(value, tuple) and hasattr(cls, "_fields"):
            return {"is": "tuple", "of": class_name(cls), "items": _items(value, self.ref)}
        if has_own_state(cls):
            return self._own(value)
        if is_external(value) or not is_python(cls):
            return self._refuse(value)
        return self._object(value)

    def _left(self, value: Any) -> Node:
        node: Node = {"is": "left"}
        if isinstance(value, type):
            self.classes[class_name(value)] = value
        elif isinstance(value, types.MethodType | types.BuiltinMethodType) and value.__self__ is not None:
            self._methods.append((node, value))
        return node

    def _own(self, value: Any) -> Node:
        """One that says its state itself."""
        node = {"is": "own", "of": class_name(type(value))}
        if self._lenient:
            return node
        state = value.get_state()
        if getattr(type(value), "state_is_plain_data", False):
            return {**node, "plain": state}
        there = getattr(value, "__dict__", {})
        attrs = {name: there[name] for name in OWN_GENERATORS if there.get(name) is not None}
        return {**node, "state": self.ref(state, ".get_state()"), "attrs": self._refs(attrs)}

    def _object(self, value: Any) -> Node:
        cls = type(value)
        out = declared_names(cls, "excluded_from_state")
        attrs = {name: found for name, found in getattr(value, "__dict__", {}).items() if name not in out}
        self._staying |= set(map(id, getattr(value, "__dict__", {}).get("_buffers", {}).values()))
        node: Node = {"is": "object", "of": class_name(cls), "attrs": self._refs(attrs)}
        if is_environment(value):  # whose spaces may be the class's, with the generators that they draw by
            spaces = {name: getattr(cls, name, None) for name in ("action_space", "observation_space")}
            shared = {name: space for name, space in spaces.items() if name not in attrs and hasattr(space, "sample")}
            node |= {"shared": self._refs(shared)} if shared else {}
        slots = {}
        for name, slot in slots_of(cls):
            if name not in out and name not in ("__dict__", "__weakref__"):
                try:
                    slots[name] = slot.__get__(value, cls)
                except AttributeError:  # never set
                    continue
        if slots:
            node["slots"] = self._refs(slots)
        if (base := container_base(cls)) is not None:
            pairs = issubclass(base, dict)
            node["items"] = _pairs(value, self.ref) if pairs else _items(base.__iter__(value), self.ref)
        return node

    def _refs(self, values: Mapping[str, Any]) -> dict[str, Any]:
        return {name: self.ref(value, f".{name}") for name, value in values.items()}

    def _refuse(self, value: Any) -> Node:
        if self._lenient:
            return {"is": "left"}
        where, at = "", self._now
        while at > 0:
            at, label = self._above[at]
            where = label + where
        attribute = where.rpartition(".")[2]
        raise StateError(
            f"The state of {self._name} cannot be taken: at env{where} is a {class_name(type(value))}, which keeps its "
            "state where Python cannot see it. Give the environment get_state() and set_state(state) of its own, which "
            "are asked instead; or, where that is none of its state, name it in the class that holds it: "
            f"`excluded_from_state = {{{attribute!r}}}`."
        )


@cached_by_class
def kind_of(cls: type) -> StateHandler | None:
    """The rule by which instances of a class are held, where there is one."""
    return next((kind for kind in HANDLERS if kind.matches(cls)), None)


@cached_by_class
def has_own_state(cls: type) -> bool:
    """Whether what steps also says its state: by `get_state()` and `set_state(state)` of its own."""
    names = ("get_state", "set_state", "step", "reset")
    return all(callable(getattr(cls, name, None)) for name in names) and not hasattr(
        cls.get_state, "is_generic_get_state"
    )


def _items(values: Any, ref: Callable[[Any, str], Any]) -> list[Any]:
    return [ref(value, f"[{place}]") for place, value in enumerate(values)]


def _pairs(values: Any, ref: Callable[[Any, str], Any]) -> list[Any]:
    items = mapping_base(values).items(values)
    return [[ref(key, f"[key {key!r:.40}]"), ref(value, f"[{key!r:.40}]")] for key, value in items]


_PLAIN: dict[type, Callable[[Any, Any], Node]] = {
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
