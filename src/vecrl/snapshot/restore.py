"""Restores an object from a state: writes into the existing objects if they are of the same kind.

First all objects are found or created without any change, so that a state that does not fit changes nothing. Then the
changes are carried out. No class is imported or called because a state names it: a new object is created without its
constructor, and only if the restored object already contains objects of its class, or the caller allows the class.
"""

from __future__ import annotations

import sys
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum, Flag
from itertools import chain, zip_longest
from types import MemberDescriptorType
from typing import Any, ClassVar, TypeAlias, TypeGuard

from ..errors import StateError, VecrlError
from .capture import FORMAT, HANDLERS, Capturer, as_state_errors, facts_of
from .handlers.base import (
    IMMEDIATE,
    MISSING,
    LibraryObject,
    Node,
    Reference,
    State,
    class_name,
    container_base,
    declared_names,
    describe_object,
    is_python,
    is_stateless,
    mapping_base,
    same_name,
    slots_of,
    space_descriptions,
)

_MOST_HASHED = 10**6

Allowed: TypeAlias = Iterable[type | str]
"""Classes, or their full names."""


class UnknownClassError(StateError):
    """A state contains an object of a class that is unknown to the object that is restored."""


def restore(
    value: object, state: Mapping[str, object], *, allow: Allowed = (), about: Mapping[str, object] | None = None
) -> Any:
    """Restores `value` to a state that `capture` returned.

    Args:
        value: the captured object, or one that was constructed in the same way.
        state: the result of `capture`.
        allow: classes (or their full names) of objects that may be created, in addition to those that `value` contains.
        about: facts by name, which must equal those given to `capture`.

    Returns:
        `value` itself; if it cannot be changed (a number, a tuple), the captured value.

    Raises:
        StateError: this is not a state, or one of an object that was constructed in another way. Nothing was changed,
            unless a worker or a library refused its part.
    """
    if not _is_state(state):
        raise StateError(f"Expected a result of get_state(), got a {type(state).__name__}.")
    if state.get("format") != FORMAT:
        raise StateError(
            f"Expected a state in format {FORMAT}, got one in format {state.get('format')!r}. Read it with the "
            "version of vecrl that wrote it."
        )
    _check_facts({**space_descriptions(value), **(about or {})}, state["about"], value)
    restorer = Restorer(value, state["nodes"], allow)
    try:
        with as_state_errors():
            return restorer.restore(state["root"])
    except VecrlError:
        raise
    except (KeyError, TypeError, AttributeError, IndexError, ValueError, OverflowError, RuntimeError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise StateError(
            f"This state of {describe_object(value)} is damaged, or of another object ({reason})."
        ) from error


def _check_facts(expected: Mapping[str, object], actual: Mapping[str, object], value: object) -> None:
    for name, fact in expected.items():
        if actual.get(name) != fact:
            raise StateError(
                f"Expected a state with {name} {fact}, as {describe_object(value)} has, got one with "
                f"{actual.get(name)}. Construct the object as the saved one was."
            )


def _is_state(state: object) -> TypeGuard[State]:
    """Whether an object has the form of a state. Its nodes may still be wrong."""
    return isinstance(state, Mapping) and state.get("vecrl") == "state" and isinstance(state.get("nodes"), list)


class Restorer:
    """One restoration of an object.

    Args:
        value: the object to restore.
        nodes: the nodes of the state.
        allow: classes of objects that may be created, as for `restore`.
    """

    def __init__(self, value: object, nodes: list[Node], allow: Allowed):
        self._value, self._nodes = value, nodes
        self._allow = {cls if isinstance(cls, str) else class_name(cls): cls for cls in allow}
        self._restored: dict[int, object] = {}
        self._claimed: set[int] = set()  # ids of existing objects that are in use for a node
        self._kept_alive: list[object] = []
        self._hash_sizes: dict[int, int] = {}  # by the id of a tuple: how many elements its hash visits
        self._fill_tasks: deque[_Task] = deque()
        self._assignments: list[_Task] = []
        self._hashed_assignments: list[_Task] = []  # after all others, since hashes may depend on them
        self._worker_assignments: list[_Task] = []  # before all others, since workers may refuse
        self._own_state_calls: list[_Task] = []  # last, since they receive restored objects
        self._classes: dict[str, type] | None = None

    def restore(self, root: Reference) -> Any:
        """Carries out all changes and returns the object for `root`."""
        result = self.get(root, self._value)
        while self._fill_tasks:
            self._fill_tasks.popleft()()
        for assign in chain(
            self._worker_assignments, self._assignments, self._hashed_assignments, self._own_state_calls
        ):
            assign()
        return result

    def get(self, value: Any, old: Any = MISSING) -> Any:
        """Returns the object for the reference `value`; `old` is the existing object at the same place."""
        if type(value) in IMMEDIATE:
            return value
        [index] = value
        if index in self._restored:
            return self._restored[index]
        node = self._nodes[index]
        tag = node["is"]
        if tag in ("not_stored", "method"):  # not stored: each place that refers to the node keeps its own object
            return old if tag == "not_stored" else self._method(node, old)
        if id(old) in self._claimed:
            old = MISSING
        if tag in _HANDLERS:
            result, assign = _HANDLERS[tag].restore(node, old, self.get)
            if assign is not None:
                self._assignments.append(assign)
        else:
            result = self._restore_by_tag[tag](self, node, old)
        self._restored[index] = result
        if result is old and not isinstance(old, Enum | tuple):
            self._claimed.add(id(old))
        self._kept_alive.append(result)
        return result

    # -- containers --------------------------------------------------------------------------------

    def _mapping(self, node: Node, old: Any) -> dict[Any, Any]:
        cls = _MAPPINGS[node["is"]]
        target = old if type(old) is cls else cls()
        self._fill_tasks.append(lambda: self._fill_mapping(node, target))
        return target

    def _fill_mapping(self, node: Node, target: dict[Any, Any]) -> None:
        pairs = [(self.get(key, _key_at(index, target)), value) for index, (key, value) in enumerate(node["items"])]
        self._check_hashes(key for key, _ in pairs)
        pairs_restored = [(key, self.get(value, _lookup(target, key))) for key, value in pairs]
        defaults = target if "default" in node and isinstance(target, defaultdict) else None
        factory = None if defaults is None else self.get(node["default"], defaults.default_factory)

        def assign() -> None:
            base = mapping_base(target)
            base.clear(target)
            for key, value in pairs_restored:
                if value is not MISSING:
                    base.__setitem__(target, key, value)
            if defaults is not None and factory is not None and factory is not MISSING:
                defaults.default_factory = factory

        immediate_keys = all(type(key) in IMMEDIATE for key, _ in pairs_restored)
        (self._assignments if immediate_keys else self._hashed_assignments).append(assign)

    def _collection(self, node: Node, old: object) -> object:
        cls = _COLLECTIONS[node["is"]]
        can_use_old = type(old) is cls and getattr(old, "maxlen", None) == node.get("maxlen")
        target = old if can_use_old else deque(maxlen=node["maxlen"]) if cls is deque else cls()
        self._fill_tasks.append(lambda: self._fill_collection(node, target, cls))
        return target

    def _fill_collection(self, node: Node, target: Any, base: Any) -> None:
        """Replaces the elements of a list, deque or set, by the methods of `base`, its class or a base class of it."""
        values = self._children(node["items"], list(base.__iter__(target)))
        is_hashed = base is set
        if is_hashed:
            self._check_hashes(values)

        def assign() -> None:
            base.clear(target)
            (base.update if is_hashed else base.extend)(target, values)

        (self._hashed_assignments if is_hashed else self._assignments).append(assign)

    def _children(self, items: list[Reference], old: Sequence[object]) -> list[Any]:
        """Returns the elements of a container; one without state stays, or becomes None if its place is new."""
        pairs = zip_longest(items, old[: len(items)], fillvalue=MISSING)
        values = [self.get(item, old_item) for item, old_item in pairs]
        return [None if item is MISSING else item for item in values]

    def _tuple(self, node: Node, old: object) -> object:
        old_values = tuple(old) if isinstance(old, tuple) else ()
        values = self._children(node["items"], old_values)
        is_equal = len(values) == len(old_values) and all(a is b for a, b in zip(values, old_values, strict=True))
        if is_equal and isinstance(old, tuple):
            return old
        if "of" not in node:
            return tuple(values)
        cls = type(old) if isinstance(old, tuple) and same_name(class_name(type(old)), node["of"]) else None
        return tuple.__new__(cls or self._class(node["of"]), values)

    def _value_of(self, node: Node, old: object) -> object:
        """Returns a new immutable value, or a new bytearray."""
        match node["is"]:
            case "frozenset":
                values = self._children(node["items"], [])
                self._check_hashes(values)
                return frozenset(values)
            case "slice":
                return slice(*self._children(node["items"], []))
            case "range":
                return range(*node["items"])
            case _ if isinstance(node["value"], bytes):
                return bytearray(node["value"])
            case _:  # a number would be the length of a new one
                raise StateError(f"Expected the bytes of a bytearray, got {type(node['value']).__name__}.")

    def _check_hashes(self, values: Iterable[object]) -> None:
        """Checks that values can be hashed in time: a tuple that contains another twice takes twice its time."""
        if any(self._hash_size(value) > _MOST_HASHED for value in values):
            raise StateError(f"Expected keys with at most {_MOST_HASHED} elements in tuples in tuples, got more.")

    def _hash_size(self, value: object) -> int:
        if not isinstance(value, tuple | frozenset):
            return 1
        if id(value) not in self._hash_sizes:  # its id is not used again, since what was restored is kept alive
            self._hash_sizes[id(value)] = 1 + sum(map(self._hash_size, value))
        return self._hash_sizes[id(value)]

    # -- objects -----------------------------------------------------------------------------------

    def _enum(self, node: Node, old: object) -> Enum:
        cls = type(old) if isinstance(old, Enum) and same_name(class_name(type(old)), node["of"]) else None
        cls = cls or self._class(node["of"])
        if not issubclass(cls, Enum):
            raise StateError(f"Expected {node['of']} to be an enumeration, got {cls!r}.")
        if node["name"] in cls.__members__:
            return cls[node["name"]]
        if issubclass(cls, Flag):
            return cls(node["value"])
        raise StateError(f"Expected one of the members of {node['of']}, got {node['name']!r}.")

    def _method(self, node: Node, old: Any) -> Any:
        """Returns a bound method, bound to the restored object if that is a new one."""
        if getattr(old, "__name__", None) != node["name"] or getattr(old, "__self__", None) is None:
            return old
        owner = self.get(node["of"], old.__self__)
        return old if owner is old.__self__ else getattr(owner, node["name"])

    def _own_state(self, node: Node, old: LibraryObject) -> object:
        if old is MISSING or not same_name(class_name(type(old)), node["of"]):
            raise StateError(self._mismatch_message(node["of"], old))
        if "plain" in node:
            self._worker_assignments.append(lambda: old.set_state(node["plain"], allow=list(self._allow.values())))
            return old
        state = self.get(node["state"])
        self._own_state_calls.append(lambda: old.set_state(state))
        self._fill_tasks.append(lambda: self._fill_attributes(old, node["attrs"], old, keep_others=True))
        return old

    def _object(self, node: Node, old: object) -> object:
        is_same_class = old is not MISSING and same_name(class_name(type(old)), node["of"])
        if is_same_class and not _is_frozen(old):
            target = old
            if "about" in node:
                _check_facts(facts_of(old), node["about"], old)
        elif not is_same_class and old is self._value:
            raise StateError(self._mismatch_message(node["of"], old))
        else:
            cls = type(old) if is_same_class else self._class(node["of"])
            if not is_python(cls) or issubclass(cls, Enum):
                raise StateError(f"Expected {node['of']} to keep its state in Python attributes only, got {cls!r}.")
            base: Any = container_base(cls) or object
            target = base.__new__(cls)
        self._fill_tasks.append(lambda: self._fill_object(node, target, old if is_same_class else target))
        return target

    def _fill_object(self, node: Node, target: object, old: object) -> None:
        """Sets what `target` holds. `old` is the existing object: `target`, or a frozen one that it replaces."""
        self._fill_attributes(target, node["attrs"], old)
        for name, space in node.get("shared", {}).items():
            self.get(space, getattr(type(target), name, MISSING))
        slots = dict(slots_of(type(target)))
        for name, value in node.get("slots", {}).items():
            if name not in slots:
                raise StateError(f"Expected {node['of']} to have a slot {name!r}, got only {sorted(slots)}.")
            restored = self.get(value, _slot_value(slots[name], old))
            if restored is not MISSING and not is_stateless(_slot_value(slots[name], target)):
                self._assignments.append(lambda slot=slots[name], restored=restored: slot.__set__(target, restored))
        if "items" in node:
            if isinstance(target, dict):
                self._fill_mapping(node, target)
            else:
                self._fill_collection(node, target, container_base(type(target)) or set)

    def _fill_attributes(
        self, target: object, attrs: Mapping[str, Reference], old: object, keep_others: bool = False
    ) -> None:
        """Sets attributes. Removes other attributes with state, unless `keep_others` is true."""
        attributes, existing = (vars(each) if hasattr(each, "__dict__") else {} for each in (target, old))
        values = {name: self.get(value, existing.get(name, MISSING)) for name, value in attrs.items()}
        keep = declared_names(type(target), "excluded_from_state") | values.keys()

        def assign() -> None:
            if not keep_others:
                for name in [name for name, old in attributes.items() if name not in keep and not is_stateless(old)]:
                    del attributes[name]
            for name, value in values.items():
                if value is not MISSING and (is_stateless(value) or not is_stateless(attributes.get(name))):
                    attributes[name] = value

        self._assignments.append(assign)

    _restore_by_tag: ClassVar[dict[str, Callable[[Restorer, Node, Any], object]]] = {
        **dict.fromkeys(("dict", "ordered", "defaultdict"), _mapping),
        **dict.fromkeys(("list", "deque", "set"), _collection),
        **dict.fromkeys(("frozenset", "slice", "range", "bytearray"), _value_of),
        "tuple": _tuple,
        "enum": _enum,
        "object": _object,
        "own": _own_state,
    }

    # -- classes -----------------------------------------------------------------------------------

    def _class(self, name: str) -> type:
        """Returns the class of this name.

        Raises:
            UnknownClassError: the restored object contains no such objects, and the caller does not allow the class.
        """
        if self._classes is None:
            capturer = Capturer(describe_object(self._value), lenient=True)
            capturer.walk(self._value)
            self._classes = capturer.classes
        known_classes = chain(self._classes.items(), self._allow.items())
        found = next((cls for known_name, cls in known_classes if same_name(known_name, name)), None)
        if found is None:
            raise UnknownClassError(
                f"This state of {describe_object(self._value)} contains a {name}, but the object contains none. Reset "
                f"it before set_state, so that it has one, or allow the class: allow=[{name!r}]."
            )
        cls = self._find_allowed(found) if isinstance(found, str) else found
        if cls is None:
            raise UnknownClassError(f"{found} is allowed, but its module is not imported. Import it first.")
        return cls

    def _find_allowed(self, name: str) -> type | None:
        """Returns an allowed class from its module, if imported, or from the globals of a contained class's methods."""
        module, _, short_name = name.rpartition(".")
        namespaces = [vars(sys.modules[module])] if module in sys.modules else []
        for cls in (self._classes or {}).values():
            namespaces += [f.__globals__ for f in vars(cls).values() if hasattr(f, "__globals__")]
        result = next(
            (namespace[short_name] for namespace in namespaces if isinstance(namespace.get(short_name), type)), None
        )
        return result if result is not None and same_name(class_name(result), name) else None

    def _mismatch_message(self, name: str, old: object) -> str:
        actual = "nothing" if old is MISSING else class_name(type(old))
        return f"Expected an object of the class in the state, {name}, got {actual}. Construct it in the same way."


_HANDLERS = {handler.tag: handler for handler in HANDLERS}
_MAPPINGS = {"dict": dict, "ordered": OrderedDict, "defaultdict": defaultdict}
_COLLECTIONS = {"list": list, "deque": deque, "set": set}
_Task: TypeAlias = Callable[[], object]


def _key_at(index: int, mapping: Iterable[object]) -> object:
    """Returns the key at an index, for keys that are objects. Only the first 64 are looked up: the search is linear."""
    return next((key for number, key in enumerate(mapping) if number == index), MISSING) if index < 64 else MISSING


def _lookup(mapping: dict[Any, Any], key: object) -> object:
    try:
        return dict.get(mapping, key, MISSING)
    except Exception:  # the key is not restored yet: its hash may fail
        return MISSING


def _slot_value(slot: MemberDescriptorType, target: object) -> object:
    try:
        return slot.__get__(target, type(target))
    except AttributeError:
        return MISSING


def _is_frozen(value: object) -> bool:
    parameters = getattr(type(value), "__dataclass_params__", None)
    return parameters is not None and bool(parameters.frozen)
