"""Puts a thing back to what a state says: into the objects that are there, as far as they are of the same kind.

First all is found and made without a change to anything, so that a state that does not fit leaves everything as it was;
then the changes are carried out. No class is ever imported or called because a state names it: an object that must be
made anew is of a class that the thing itself holds already, or that the caller allows, and is made without its
constructor.
"""

from __future__ import annotations

import sys
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping
from enum import Enum, Flag
from itertools import chain
from typing import Any

from ..errors import StateError, VecrlError
from .kinds import (
    IMMEDIATE,
    MISSING,
    Node,
    container_of,
    declared_by,
    is_left,
    is_python,
    mapping_of,
    name_of,
    names_itself,
    same_name,
    slots_of,
    spaces_of,
)
from .taking import FORMAT, KINDS, Taker, as_state_errors

Allowed = Iterable[type | str]


class UnknownClassError(StateError):
    """A state holds an object of a class that is not known where it is put back."""


def put(value: Any, state: Mapping[str, Any], *, allow: Allowed = (), about: Mapping[str, Any] | None = None) -> Any:
    """Put `value` back to what `take` found.

    Args:
        value: made as the one was whose state it is.
        state: of `take`.
        allow: classes (or their full names) that objects may be made of, beside those that `value` holds already.
        about: what must be equal to what was given to `take`.

    Returns:
        `value` itself; where it cannot be changed (a number, a tuple), what it was.

    Raises:
        StateError: this is no state, or none of something made like this; nothing was changed, unless some of the
            workers, or a library, refused what was to be put back into them.
    """
    check_state(state)
    for name, wanted in (spaces_of(value) | dict(about or {})).items():
        came = state["about"].get(name)
        if came != wanted:
            own = names_itself(value)
            raise StateError(f"Expected a state with {name} {wanted}, as {own} has, but one with {came} came.")
    putter = Putter(value, state["nodes"], allow)
    try:
        with as_state_errors():
            return putter.put(state["root"])
    except VecrlError:
        raise
    except (KeyError, TypeError, AttributeError, IndexError, ValueError, OverflowError, RuntimeError) as error:
        said = f"{type(error).__name__}: {error}"
        raise StateError(f"This state of {names_itself(value)} is damaged, or of another one ({said}).") from error


def check_state(state: Any) -> None:
    """See that something looks like what `take` gives.

    Raises:
        StateError: it does not.
    """
    if not isinstance(state, Mapping) or state.get("vecrl") != "state" or not isinstance(state.get("nodes"), list):
        raise StateError(f"Expected what get_state() returned, but a {type(state).__name__} came.")
    if state.get("format") != FORMAT:
        raise StateError(
            f"Expected a state in format {FORMAT}, but one in format {state.get('format')!r} came: read it with the "
            "version of vecrl that wrote it."
        )


class Putter:
    """One way back.

    Args:
        value: what is to be put back.
        nodes: of the state.
        allow: see `put`.
    """

    def __init__(self, value: Any, nodes: list[Any], allow: Allowed):
        self._value, self._nodes = value, nodes
        self._allow = {one if isinstance(one, str) else name_of(one): one for one in allow}
        self._made: dict[int, Any] = {}
        self._taken: set[int] = set()  # by id: objects that are one node's already
        self._keep: list[Any] = []
        self._todo: deque[Callable[[], None]] = deque()
        self._changes: list[Callable[[], None]] = []
        self._hashed: list[Callable[[], None]] = []  # after all changes, since a hash may hang on them
        self._asked: list[Callable[[], None]] = []  # before all others, since workers may refuse
        self._own: list[Callable[[], None]] = []  # last, since they are given what is put back
        self._classes: dict[str, type] | None = None

    def put(self, root: Any) -> Any:
        """What `root` stands for, with all changes carried out."""
        found = self.get(root, self._value)
        while self._todo:
            self._todo.popleft()()
        for change in chain(self._asked, self._changes, self._hashed, self._own):
            change()
        return found

    def get(self, value: Any, old: Any = MISSING) -> Any:
        """What `value` stands for; `old` is in its place now."""
        if type(value) in IMMEDIATE:
            return value
        [at] = value
        if at in self._made:
            return self._made[at]
        node = self._nodes[at]
        tag = node["is"]
        if tag in ("left", "method"):  # not noted: where it occurs twice, each place keeps its own
            return old if tag == "left" else self._method(node, old)
        if id(old) in self._taken:
            old = MISSING
        if tag in _KINDS:
            found, change = _KINDS[tag].put(node, old, self.get)
            if change is not None:
                self._changes.append(change)
        else:
            found = getattr(self, f"_{_RULES[tag]}")(node, old)
        self._made[at] = found
        if found is old and not isinstance(old, Enum | tuple):
            self._taken.add(id(old))
        self._keep.append(found)
        return found

    # -- containers --------------------------------------------------------------------------------

    def _mapping(self, node: Node, old: Any) -> Any:
        cls = _MAPPINGS[node["is"]]
        own = old if type(old) is cls else cls()
        self._todo.append(lambda: self._fill_mapping(node, own))
        return own

    def _fill_mapping(self, node: Node, own: Any) -> None:
        pairs = [(self.get(key, _at(place, own)), value) for place, (key, value) in enumerate(node["items"])]
        ready = [(key, self.get(value, _looked_up(own, key))) for key, value in pairs]
        factory = self.get(node["default"], own.default_factory) if "default" in node else None

        def fill() -> None:
            base = mapping_of(own)
            base.clear(own)
            for key, value in ready:
                if value is not MISSING:
                    base.__setitem__(own, key, value)
            if factory is not None and factory is not MISSING:
                own.default_factory = factory

        plain = all(type(key) in IMMEDIATE for key, _ in ready)
        (self._changes if plain else self._hashed).append(fill)

    def _sequence(self, node: Node, old: Any) -> Any:
        if node["is"] == "deque":
            same = type(old) is deque and old.maxlen == node["maxlen"]
            own: Any = old if same else deque(maxlen=node["maxlen"])
        else:
            own = old if type(old) is list else []
        self._todo.append(lambda: self._fill_sequence(node, own))
        return own

    def _fill_sequence(self, node: Node, own: Any) -> None:
        ready = self._children(node["items"], list(own))

        def fill() -> None:
            own.clear()
            own.extend(ready)

        self._changes.append(fill)

    def _set(self, node: Node, old: Any) -> Any:
        own: set[Any] = old if type(old) is set else set()
        self._todo.append(lambda: self._fill_set(node, own))
        return own

    def _fill_set(self, node: Node, own: set[Any]) -> None:
        ready = self._children(node["items"], list(own))

        def fill() -> None:
            own.clear()
            own.update(ready)

        self._hashed.append(fill)

    def _children(self, items: list[Any], old: list[Any]) -> list[Any]:
        """Elements, each by what is in its place; who is nothing but code stays, or is None where nobody was."""
        old = old + [MISSING] * (len(items) - len(old))
        ready = [self.get(item, before) for item, before in zip(items, old, strict=False)]
        return [None if one is MISSING else one for one in ready]

    def _tuple(self, node: Node, old: Any) -> Any:
        before = list(old) if isinstance(old, tuple) else []
        ready = self._children(node["items"], before)
        if len(ready) == len(before) and all(a is b for a, b in zip(ready, before, strict=True)):
            return old
        if "of" not in node:
            return tuple(ready)
        cls = type(old) if isinstance(old, tuple) and same_name(name_of(type(old)), node["of"]) else None
        return tuple.__new__(cls or self._class(node["of"]), ready)

    def _value_of(self, node: Node, old: Any) -> Any:
        """Things that are never changed, only replaced."""
        match node["is"]:
            case "frozenset":
                return frozenset(self._children(node["items"], []))
            case "slice":
                return slice(*self._children(node["items"], []))
            case "range":
                return range(*node["items"])
            case _:
                return bytearray(node["value"])

    # -- objects -----------------------------------------------------------------------------------

    def _enum(self, node: Node, old: Any) -> Any:
        cls = type(old) if isinstance(old, Enum) and same_name(name_of(type(old)), node["of"]) else None
        cls = cls or self._class(node["of"])
        if not issubclass(cls, Enum):
            raise StateError(f"Expected {node['of']} to be an enumeration, but it is none.")
        if node["name"] in cls.__members__:
            return cls[node["name"]]
        if issubclass(cls, Flag):
            return cls(node["value"])
        raise StateError(f"Expected one of the members of {node['of']}, but {node['name']!r} came.")

    def _method(self, node: Node, old: Any) -> Any:
        """A method of an object that may be another one now."""
        if getattr(old, "__name__", None) != node["name"] or getattr(old, "__self__", None) is None:
            return old
        owner = self.get(node["of"], old.__self__)
        return old if owner is old.__self__ else getattr(owner, node["name"])

    def _own_say(self, node: Node, old: Any) -> Any:
        if old is MISSING or not same_name(name_of(type(old)), node["of"]):
            raise StateError(self._misfit(node["of"], old))
        if "plain" in node:
            self._asked.append(lambda: old.set_state(node["plain"], allow=list(self._allow.values())))
            return old
        state = self.get(node["state"])
        self._own.append(lambda: old.set_state(state))
        self._todo.append(lambda: self._fill_attributes(old, node["attrs"], extras=True))
        return old

    def _object(self, node: Node, old: Any) -> Any:
        same = old is not MISSING and same_name(name_of(type(old)), node["of"])
        if same and not _is_frozen(old):
            own = old
        elif not same and old is self._value:
            raise StateError(self._misfit(node["of"], old))
        else:
            cls = type(old) if same else self._class(node["of"])
            if not is_python(cls) or issubclass(cls, Enum):
                raise StateError(f"Expected {node['of']} to be a class of attributes alone, but it is none.")
            base: Any = container_of(cls) or object
            own = base.__new__(cls)
        self._todo.append(lambda: self._fill_object(node, own))
        return own

    def _fill_object(self, node: Node, own: Any) -> None:
        self._fill_attributes(own, node["attrs"])
        for name, space in node.get("shared", {}).items():
            self.get(space, getattr(type(own), name, MISSING))
        slots = dict(slots_of(type(own)))
        for name, value in node.get("slots", {}).items():
            if name not in slots:
                raise StateError(f"Expected {node['of']} to have a slot {name!r}, but it has none.")
            ready = self.get(value, _slot(slots[name], own))
            if ready is not MISSING and not is_left(_slot(slots[name], own)):
                self._changes.append(lambda slot=slots[name], ready=ready: slot.__set__(own, ready))
        if "items" in node:
            self._fill_items(node, own)

    def _fill_items(self, node: Node, own: Any) -> None:
        base = container_of(type(own))
        if base is not None and issubclass(base, dict):
            self._fill_mapping({"items": node["items"]}, own)
            return
        ready = self._children(node["items"], list(base.__iter__(own)) if base else [])

        def fill() -> None:
            if base is list:
                list.__setitem__(own, slice(None), ready)
            else:
                set.clear(own)
                set.update(own, ready)

        (self._changes if base is list else self._hashed).append(fill)

    def _fill_attributes(self, own: Any, attrs: Mapping[str, Any], extras: bool = False) -> None:
        """Set attributes; those beside them are taken away, unless they are code, or only `extras` are set."""
        there = vars(own) if hasattr(own, "__dict__") else {}
        ready = {name: self.get(value, there.get(name, MISSING)) for name, value in attrs.items()}
        out = declared_by(type(own), "not_state") | ready.keys()

        def fill() -> None:
            for name in [] if extras else [name for name, old in there.items() if name not in out and not is_left(old)]:
                del there[name]
            for name, value in ready.items():
                if value is not MISSING and (is_left(value) or not is_left(there.get(name))):
                    there[name] = value

        self._changes.append(fill)

    # -- classes -----------------------------------------------------------------------------------

    def _class(self, name: str) -> type:
        """The class of that name, if it is one that may be made."""
        if self._classes is None:
            look = Taker(names_itself(self._value), lenient=True)
            look.walk(self._value)
            self._classes = look.classes
        found, asked = next((cls for known, cls in self._classes.items() if same_name(known, name)), None), None
        if found is None:
            asked = next((one for known, one in self._allow.items() if same_name(known, name)), None)
            found = self._looked_up(asked) if isinstance(asked, str) else asked
        if found is None and isinstance(asked, str):
            raise UnknownClassError(f"{asked} is allowed, but its module is not imported here: import it first.")
        if found is None:
            raise UnknownClassError(
                f"This state of {names_itself(self._value)} holds a {name}, of which there is none here now. Reset it "
                f"once before its state is set, so that it has one, or allow the class: allow=[{name!r}]."
            )
        return found

    def _looked_up(self, name: str) -> type | None:
        """An allowed class, where its module, or the code of a class that is held, knows it."""
        module, _, last = name.rpartition(".")
        spaces = [vars(sys.modules[module])] if module in sys.modules else []
        for cls in (self._classes or {}).values():
            spaces += [f.__globals__ for f in vars(cls).values() if hasattr(f, "__globals__")]
        found = next((space[last] for space in spaces if isinstance(space.get(last), type)), None)
        return found if found is not None and same_name(name_of(found), name) else None

    def _misfit(self, name: str, old: Any) -> str:
        is_now = "there is nothing" if old is MISSING else f"this is {name_of(type(old))}"
        return f"Expected something made as the one was whose state it is, {name}, but {is_now}."


_KINDS = {kind.tag: kind for kind in KINDS}
_MAPPINGS: dict[str, type] = {"dict": dict, "ordered": OrderedDict, "defaultdict": defaultdict}
_RULES = {
    **dict.fromkeys(_MAPPINGS, "mapping"),
    **dict.fromkeys(("list", "deque"), "sequence"),
    **dict.fromkeys(("frozenset", "slice", "range", "bytearray"), "value_of"),
    **{name: name for name in ("set", "tuple", "enum", "object")},
    "own": "own_say",
}


def _at(place: int, mapping: Any) -> Any:
    """The key in a place, for keys that are objects."""
    return next((key for number, key in enumerate(mapping) if number == place), MISSING) if place < 64 else MISSING


def _looked_up(mapping: Any, key: Any) -> Any:
    try:
        return dict.get(mapping, key, MISSING)
    except Exception:  # the key is not yet what it will be
        return MISSING


def _slot(slot: Any, own: Any) -> Any:
    try:
        return slot.__get__(own, type(own))
    except AttributeError:
        return MISSING


def _is_frozen(value: Any) -> bool:
    parameters = getattr(type(value), "__dataclass_params__", None)
    return parameters is not None and bool(parameters.frozen)
