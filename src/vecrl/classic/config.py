"""`Config`: settings by name, in sections, saved as YAML.

Does not know what the settings are for. PyYAML is imported when a file is written or read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import date
from difflib import get_close_matches
from functools import cache
from os import PathLike, fspath
from pathlib import Path
from typing import Any, Self

import numpy as np

from ..imports import import_library


class Config:
    """Settings, as attributes or by `config["name"]`; a dict becomes a section, which is a Config too.

    Names are any strings except the names of methods of this class. A dict with keys that are no strings stays a dict.

    Args:
        values: a mapping of settings.
        extra_values: more settings; they replace those of the same names in `values`.

    >>> config = Config(seed=3)
    >>> is_section = config.new_section("model", layers=(64, 64), lr=1e-3)
    >>> config.model.lr, config["model"].layers, list(config)
    (0.001, (64, 64), ['seed', 'model'])
    >>> config.modle
    Traceback (most recent call last):
    AttributeError: Expected one of ['seed', 'model'], got 'modle'. Did you mean 'model'?
    """

    def __init__(self, values: Mapping[str, object] | None = None, /, **extra_values: object):
        if not isinstance(values, Mapping | None):
            raise TypeError(f"Expected values to be a mapping of settings by name, got {values!r:.80}.")
        for name, value in {**(values or {}), **extra_values}.items():
            self[name] = value

    def new_section(self, name: str, /, **values: object) -> Config:
        """Adds a section with these settings, and returns it.

        Raises:
            ValueError: the name exists already, or is reserved.
        """
        if name in self:
            raise ValueError(f"Expected a new name, got {name!r}, which is {self[name]!r:.80}. Change or delete that.")
        self[name] = values
        return self[name]

    # -- names

    def __setattr__(self, name: str, value: object) -> None:
        if not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            yaml_hint = " (in YAML, names such as yes, no, on, off and numbers need quotes)"
            raise ValueError(f"Expected the name of a setting to be a string, got {name!r}{yaml_hint}.")
        if name in dir(type(self)):
            reserved = [attribute for attribute in vars(Config) if not attribute.startswith("_")]
            raise ValueError(f"Expected the name of a setting, got the reserved name {name!r} (reserved: {reserved}).")
        if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
            value = Config(value)
        super().__setattr__(name, value)

    __setitem__ = __setattr__

    def __getattr__(self, name: str) -> Any:
        matches = get_close_matches(str(name), self, 1)
        hint = f" Did you mean {matches[0]!r}?" if matches else ""
        raise AttributeError(f"Expected one of {list(self)}, got {name!r}.{hint}")

    def __getitem__(self, name: str) -> Any:
        if name in self:
            return vars(self)[name]
        try:
            return self.__getattr__(name)
        except AttributeError as error:
            raise KeyError(str(error)) from None

    def __delitem__(self, name: str) -> None:
        self[name]  # raises if the name does not exist
        del vars(self)[name]

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name in vars(self)

    def __iter__(self) -> Iterator[str]:
        return iter(vars(self))

    def __len__(self) -> int:
        return len(vars(self))

    def __eq__(self, other: object) -> bool:
        """Returns whether both would be written as the same YAML."""
        return isinstance(other, Config) and _to_plain(self, ()) == _to_plain(other, ())

    __hash__ = None  # pyright: ignore[reportAssignmentType] - Configs are mutable

    def __repr__(self) -> str:
        return f"Config({', '.join(f'{name}={value!r}' for name, value in vars(self).items())})"

    # -- files

    def save(self, path: str | PathLike[str]) -> None:
        """Writes all settings as YAML: numbers, strings, bytes, bools, None, dates, and lists, tuples, dicts of them.

        NumPy scalars become Python numbers, and arrays become lists.

        Raises:
            TypeError: a value is of another type; the message contains its name.
            VersionError: PyYAML is not installed.
        """
        text = _yaml().dump(_to_plain(self, ()), Dumper=_safe_yaml_classes()[0], sort_keys=False, allow_unicode=True)
        Path(fspath(path)).write_text(text, encoding="utf-8")

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Self:
        """Reads a file that `save` wrote, or any YAML file with a mapping. Creates only types that `save` takes.

        Raises:
            ValueError: the file is no YAML, contains an object of another type, or is no mapping of names to settings.
            VersionError: PyYAML is not installed.
        """
        with Path(fspath(path)).open(encoding="utf-8") as file:
            try:
                settings = _yaml().load(file, Loader=_safe_yaml_classes()[1])
            except _yaml().YAMLError as error:
                raise ValueError(f"Expected {path} to be YAML with plain values, got an error: {error}") from error
        if not isinstance(settings, Mapping | None):
            raise ValueError(f"Expected {path} to contain settings by name, got {settings!r:.80}.")
        return cls(settings)


def _to_plain(value: object, path: tuple[str, ...]) -> object:
    """Returns `value` converted to types that YAML has."""
    if isinstance(value, Config | Mapping):
        items = vars(value).items() if isinstance(value, Config) else value.items()
        return {key: _to_plain(part, (*path, str(key))) for key, part in items}
    if isinstance(value, np.ndarray | np.generic):
        return _to_plain(value.tolist(), path)
    if isinstance(value, list | tuple):
        parts = [_to_plain(part, (*path, str(i))) for i, part in enumerate(value)]
        return tuple(parts) if isinstance(value, tuple) else parts
    for cls in _PLAIN_TYPES:
        if isinstance(value, cls):
            return cls(value)  # an instance of a subclass becomes one of the base class
    if value is None or isinstance(value, date):
        return value
    raise TypeError(
        f"Expected {'.'.join(path)} to consist of numbers, strings, lists, tuples and dicts, "
        f"got {value!r:.80} ({type(value).__name__})."
    )


_PLAIN_TYPES: tuple[type[Any], ...] = (bool, int, float, str, bytes)
_EXPONENT = re.compile(r"[-+]?[0-9][0-9_]*[eE][-+]?[0-9]+$")


def _yaml() -> Any:
    return import_library("yaml", 'Expected PyYAML for config files, got none. Install it: pip install "vecrl[cli]"')


@cache
def _safe_yaml_classes() -> tuple[Any, Any]:
    """Returns PyYAML's safe dumper and loader, extended by tuples and by numbers such as 1e-3 (strings in PyYAML)."""
    yaml = _yaml()
    dumper: Any = type("Dumper", (yaml.SafeDumper,), {})
    loader: Any = type("Loader", (yaml.SafeLoader,), {})
    tag = "tag:yaml.org,2002:python/tuple"
    dumper.add_representer(str, _represent_str)
    dumper.add_representer(tuple, lambda dump, value: dump.represent_sequence(tag, value))
    loader.add_constructor(tag, lambda load, node: tuple(load.construct_sequence(node, deep=True)))
    for cls in (dumper, loader):
        cls.add_implicit_resolver("tag:yaml.org,2002:float", _EXPONENT, list("-+0123456789"))
    return dumper, loader


def _represent_str(dumper: Any, text: str) -> object:
    """Represents a string; quoted if it has Unicode line breaks, which PyYAML would lose otherwise."""
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, None if text.isprintable() else '"')
