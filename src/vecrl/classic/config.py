"""`Config`: settings by name, in sections, that a YAML file keeps.

Knows nothing of what the settings are for. PyYAML is imported when a file is written or read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import date
from difflib import get_close_matches
from functools import cache
from os import PathLike
from pathlib import Path
from typing import Any, Self

import numpy as np

from ..errors import VersionError


class Config:
    """Settings, as attributes or by `config["name"]`; dicts of them are sections, which are Configs too.

    Names are any strings but those of the methods here. A dict whose keys are not all strings stays a dict.

    Args:
        values: a mapping of settings.
        extra_values: settings.

    >>> config = Config(seed=3)
    >>> is_section = config.new_section("model", layers=(64, 64), lr=1e-3)
    >>> config.model.lr, config["model"].layers, list(config)
    (0.001, (64, 64), ['seed', 'model'])
    >>> config.modle
    Traceback (most recent call last):
    AttributeError: There is no 'modle' here: did you mean 'model'? There are ['seed', 'model'].
    """

    def __init__(self, values: Mapping[str, Any] | None = None, /, **extra_values: Any):
        for name, value in {**(values or {}), **extra_values}.items():
            self[name] = value

    def new_section(self, name: str, /, **values: Any) -> Config:
        """Add a section with these settings, and return it.

        Raises:
            ValueError: there is something of that name already, or the name is reserved.
        """
        if name in self:
            raise ValueError(f"{name!r} is there already, as {self[name]!r:.80}: change what is in it, or delete it.")
        self[name] = values
        return self[name]

    # -- names

    def __setattr__(self, name: str, value: Any) -> None:
        if not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            yaml_hint = " (in YAML, names such as yes, no, on, off and numbers need quotes)"
            raise ValueError(f"{name!r} cannot be the name of a setting: only strings can{yaml_hint}.")
        if name in dir(type(self)):
            reserved = [attribute for attribute in vars(Config) if not attribute.startswith("_")]
            raise ValueError(f"{name!r} cannot be the name of a setting, as {reserved} and the like cannot.")
        is_section = isinstance(value, Mapping) and all(isinstance(key, str) for key in value)
        super().__setattr__(name, Config(value) if is_section else value)

    __setitem__ = __setattr__

    def __getattr__(self, name: str) -> Any:
        matches = get_close_matches(name, self, 1)
        hint = f": did you mean {matches[0]!r}?" if matches else "."
        raise AttributeError(f"There is no {name!r} here{hint} There are {list(self)}.")

    def __getitem__(self, name: str) -> Any:
        if name in self:
            return vars(self)[name]
        try:
            return self.__getattr__(name)
        except AttributeError as error:
            raise KeyError(str(error)) from None

    def __delitem__(self, name: str) -> None:
        self[name]  # or an error that says what there is
        del vars(self)[name]

    def __contains__(self, name: object) -> bool:
        return name in vars(self)

    def __iter__(self) -> Iterator[str]:
        return iter(vars(self))

    def __len__(self) -> int:
        return len(vars(self))

    def __eq__(self, other: object) -> bool:
        """Whether both would be written alike."""
        return isinstance(other, Config) and _to_plain(self, ()) == _to_plain(other, ())

    __hash__ = None  # pyright: ignore[reportAssignmentType] - it can be changed

    def __repr__(self) -> str:
        return f"Config({', '.join(f'{name}={value!r}' for name, value in vars(self).items())})"

    # -- files

    def save(self, path: str | PathLike[str]) -> None:
        """Write all settings as YAML: numbers, texts, bytes, bools, None, dates, and lists, tuples and dicts of them.

        NumPy's scalars become Python's numbers, arrays become lists.

        Raises:
            TypeError: something else; the message says where it is.
            VersionError: PyYAML is not installed.
        """
        text = _yaml().dump(_to_plain(self, ()), Dumper=_safe_yaml_classes()[0], sort_keys=False, allow_unicode=True)
        Path(path).write_text(text, encoding="utf-8")

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Self:
        """Read what `save` wrote, or any YAML file that is a mapping. No object is ever made but of the kinds there.

        Raises:
            ValueError: the file is no YAML, means an object of another kind, or holds something else than settings by
                their names.
            VersionError: PyYAML is not installed.
        """
        with Path(path).open(encoding="utf-8") as file:
            try:
                settings = _yaml().load(file, Loader=_safe_yaml_classes()[1])
            except _yaml().YAMLError as error:
                raise ValueError(f"Expected {path} to be YAML of plain values, but: {error}") from error
        if not isinstance(settings, Mapping | None):
            raise ValueError(f"Expected {path} to hold settings by their names, but it is {settings!r:.80}.")
        return cls(settings)


def _to_plain(value: Any, path: tuple[str, ...]) -> Any:
    """`value` made of what YAML can say."""
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
            return cls(value)  # of a subclass, what it is one of
    if value is None or isinstance(value, date):
        return value
    raise TypeError(
        f"Expected numbers, texts, lists, tuples and dicts to write, but {'.'.join(path)} is {value!r:.80}, a "
        f"{type(value).__name__}."
    )


_PLAIN_TYPES: tuple[Any, ...] = (bool, int, float, str, bytes)
_EXPONENT = re.compile(r"[-+]?[0-9][0-9_]*[eE][-+]?[0-9]+$")


def _yaml() -> Any:
    try:
        import yaml
    except ModuleNotFoundError as error:
        message = 'Expected PyYAML to be installed, for files of settings: pip install "vecrl[cli]", or PyYAML.'
        raise VersionError(message, name="yaml") from error
    return yaml


@cache
def _safe_yaml_classes() -> tuple[Any, Any]:
    """PyYAML's safe dumper and loader, with tuples and with numbers such as 1e-3, which it takes for texts."""
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


def _represent_str(dumper: Any, text: str) -> Any:
    """A text; quoted where PyYAML would else lose a line break of Unicode's."""
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, None if text.isprintable() else '"')
