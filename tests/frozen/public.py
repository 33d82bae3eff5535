"""The public names and signatures of vecrl, as text.

For each class: its constructor, and the methods, properties and attributes that vecrl defines and that do not equal
those of a public base class. So a definition may move within a class hierarchy, and a base class may be split, without
a change to the text. Annotations are omitted, since different annotations may mean the same.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from importlib import import_module
from typing import Any

EMPTY = inspect.Parameter.empty
IGNORED = ("vecrl", "typing", "abc")  # modules with base classes that are omitted unless they are public

# Where a name is in several modules, the first of them describes it and the others refer to that one. A module without
# an `__all__` has its names here.
PUBLIC: dict[str, tuple[str, ...] | None] = {
    "errors": (
        *("CheckpointError", "ClosedError", "Failure", "LockedError", "NetParsingError", "OutOfSpecError"),
        *(
            "PendingError",
            "SerializationError",
            "SpaceError",
            "StateError",
            "StepTimeout",
            "VecrlError",
            "VersionError",
        ),
        *("VersionError", "WorkerCrash", "WorkerError"),
    ),
    "seeding": (
        *("ListedSeeds", "OwnSeeds", "SeedRule", "SeedSet", "SharedSeeds", "seed_for", "seed_rule", "seeds_for"),
        *("split_seeds", "stream_for"),
    ),
    "running_stats": ("RunningStats",),
    "engine": None,
    "simulators.native": None,
    "snapshot": None,
    "vector": None,
    "venv": None,
    "specs": None,
    "specs.convert": None,
    "envs.transforms": None,
    "envs.utils": None,
    "envs": None,
    "envs.libs.gym": None,
    "envs.model_based": None,
    "record": None,
    "record.loggers": None,
    "policy": None,
    "classic": None,
    "convert": ("to_tensordict", "to_vector", "to_venv"),
    "checkpoint": None,
    "testing": None,
    "_utils": ("implement_for",),  # TorchRL's users import from a module of this name
}
SPECIAL = {
    f"__{name}__"
    for name in (
        *("call", "contains", "delitem", "enter", "eq", "exit", "getitem", "iter", "len", "next", "setitem"),
        *("add", "and", "or", "sub", "mul", "truediv", "neg", "invert", "xor"),
    )
}


def names_of(module: str) -> tuple[str, ...]:
    """Returns the public names of a module, sorted."""
    listed = PUBLIC[module]
    return tuple(sorted(import_module(f"vecrl.{module}").__all__ if listed is None else listed))


def described() -> str:
    """Returns all public names with their signatures, one a line, the members of a class below it."""
    found = {(module, name): _get(module, name) for module in PUBLIC for name in names_of(module)}
    homes: dict[Any, str] = {}
    for (module, name), value in found.items():
        if callable(value):
            homes.setdefault(value, f"{module}.{name}")
    lines: list[str] = []
    for (module, name), value in sorted(found.items(), key=lambda item: item[0]):
        place = f"{module}.{name}"
        if callable(value) and homes[value] != place:
            lines.append(f"{place} = {homes[value]}")
        else:
            lines += _entry(place, value, homes)
    return "\n".join(part for line in lines for part in _wrapped(line)) + "\n"


def _wrapped(line: str, width: int = 120) -> list[str]:
    """Splits a line that is too long into one line per parameter, so that a difference shows one parameter."""
    if len(line) <= width or "(" not in line:
        return [line]
    head, _, remaining = line.partition("(")
    inside, _, tail = remaining.rpartition(")")
    indent = " " * (len(head) - len(head.lstrip()) + 8)
    parameters = re.split(r", (?![^(\[<]*[)\]>])", inside)
    return [f"{head}(", *(f"{indent}{parameter}," for parameter in parameters), f"{indent[4:]}){tail}"]


def _get(module: str, name: str) -> Any:
    return getattr(import_module(f"vecrl.{module}"), name)


def _entry(place: str, value: Any, homes: Mapping[Any, str]) -> list[str]:
    if inspect.ismodule(value):
        return [f"{place}: a module"]
    if not callable(value):
        return [f"{place}: {type(value).__name__}"]
    if not value.__module__.startswith("vecrl"):
        return [f"{place} = {value.__module__.partition('.')[0]}'s {value.__name__}"]
    if not inspect.isclass(value):
        return [f"{place}{_signature(value)}"]
    bases = [base for base in value.__mro__[1:] if base in homes]
    inherited = set().union(*(_members(base) for base in bases))
    made = "" if issubclass(value, Enum) else _signature(value)
    return [
        f"class {place}{made}{_below(value, homes)}",
        *(f"    {member}" for member in sorted(_members(value) - inherited)),
    ]


def _below(value: type, homes: Mapping[Any, str]) -> str:
    """Returns the nearest base classes that are public or from another library."""
    known = {
        base: homes.get(base) or f"{base.__module__.partition('.')[0]}.{base.__name__}".removeprefix("builtins.")
        for base in value.__mro__[1:]
        if base in homes or (base.__module__.partition(".")[0] not in IGNORED and base is not object)
    }
    nearest = [name for base, name in known.items() if not any(base in other.__mro__[1:] for other in known)]
    return f" < {', '.join(sorted(nearest))}" if nearest else ""


def _members(kind: type) -> set[str]:
    """Returns the public members that vecrl defines, as text."""
    return set(_own_members(kind))


def _own_members(kind: type) -> Iterator[str]:
    for name in dir(kind):
        owner = next((base for base in kind.__mro__ if name in vars(base)), None)
        if owner is None or not owner.__module__.startswith("vecrl") or not _is_public(name):
            continue
        yield _member(name, vars(owner)[name])
    if is_dataclass(kind):
        yield from (f".{field.name}" for field in fields(kind))


def _is_public(name: str) -> bool:
    return name in SPECIAL or not name.startswith("_")


def _member(name: str, value: Any) -> str:
    if isinstance(value, property):
        return f".{name}" + ("" if value.fset is None else " (can be set)")
    if isinstance(value, classmethod | staticmethod):
        return f"@{type(value).__name__} .{name}{_signature(value.__func__)}"
    if inspect.isfunction(value):
        return f".{name}{_signature(value)}"
    return f".{name}"  # an attribute, or a cached property


def _signature(value: Any) -> str:
    try:
        found = inspect.signature(value)
    except ValueError:  # a base class implemented in C has no signature
        return "(...)"
    parameters = [
        parameter.replace(
            annotation=EMPTY, default=parameter.default if parameter.default is EMPTY else _Shown(parameter.default)
        )
        for parameter in found.parameters.values()
    ]
    return str(found.replace(parameters=parameters, return_annotation=EMPTY))


class _Shown:
    """A default value, written without addresses and modules, which are not part of an interface."""

    def __init__(self, value: Any):
        self._text = value.__name__ if inspect.isclass(value) or inspect.isfunction(value) else repr(value)

    def __repr__(self) -> str:
        return re.sub(r" at 0x[0-9a-f]+|\bvecrl\.[\w.]*\.", "", self._text)
