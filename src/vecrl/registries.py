"""`Registry`: named entries that the library defines, that programs add, and that installed distributions define.

The registries of simulators and of backends are of this class.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from importlib.metadata import EntryPoint, entry_points
from typing import Generic, TypeVar

E = TypeVar("E")
MAX_LISTED = 100  # names in a message


class Registry(dict[str, E], Generic[E]):
    """The entries that are registered in this process, by name.

    A distribution declares an entry point with the name of the entry and a module that registers it when it is
    imported. The module is imported only if `find` is asked for its name, and no entry of that name is registered.

    Args:
        noun: what a name is, for messages ("prefix").
        group: the group of entry points.

    >>> letters: Registry[int] = Registry("letter", "example.letters")
    >>> letters.add("a", 1)
    >>> letters.find("a"), letters.find("b"), letters.names()
    (1, None, ('a',))
    """

    def __init__(self, noun: str, group: str):
        super().__init__()
        self.noun, self.group = noun, group

    def add(self, name: str, entry: E, replace: bool = False) -> None:
        """Adds an entry.

        Raises:
            ValueError: the name is not a text with at least one character, or another entry has it and `replace` is
                False.
        """
        if not isinstance(name, str) or not name:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ValueError(f"Expected a {self.noun} as text, such as 'mine', got {name!r}.")
        if not replace and self.get(name, entry) != entry:
            raise ValueError(
                f"Expected a {self.noun} that is not registered, got {name!r}. Choose another one, or give "
                "replace=True to replace its entry."
            )
        self[name] = entry

    def installed(self) -> dict[str, EntryPoint]:
        """Returns the entry points of installed distributions with names that are not registered; imports nothing."""
        return {point.name: point for point in entry_points(group=self.group) if point.name not in self}

    def names(self) -> tuple[str, ...]:
        """Returns the names that are registered, in the order of registration, and those of entry points."""
        return (*self, *sorted(self.installed()))

    def find(self, name: str) -> E | None:
        """Returns the entry of a name, or None; imports the module of the entry point if there is one.

        Raises:
            ImportError: the module of the entry point cannot be imported, or does not register the name.
        """
        if name not in self and (point := self.installed().get(name)) is not None:
            self._load(point)
        return self.get(name)

    def _load(self, point: EntryPoint) -> None:
        owner = "an unknown distribution" if point.dist is None else point.dist.name
        source = f"the entry point {point.name!r} = {point.value!r} of {owner} (group {self.group!r})"
        try:
            point.load()
        except Exception as error:
            raise ImportError(
                f"Expected {source} to be importable, got {type(error).__name__}: {error}. Repair or uninstall {owner}."
            ) from error
        if point.name not in self:
            raise ImportError(
                f"Expected the import of {source} to register the {self.noun} {point.name!r}, got none of this name. "
                "Register it when the module is imported."
            )


def nearest(name: str, candidates: Iterable[str], count: int = 3) -> list[str]:
    """Returns the candidates that are similar to a name, the most similar one first; upper and lower case are equal.

    >>> nearest("cartpole-v1", ["Acrobot-v1", "CartPole-v0", "CartPole-v1"])
    ['CartPole-v1', 'CartPole-v0']
    """
    by_lower = {candidate.lower(): candidate for candidate in candidates}
    return [by_lower[match] for match in get_close_matches(name.lower(), by_lower, count, cutoff=0.7)]


def did_you_mean(names: Iterable[str]) -> str:
    """Returns a sentence with similar names and a space after it, for error messages; "" if there are none."""
    text = ", ".join(names)
    return f"Did you mean {text}? " if text else ""


def check_name(kind: str, name: object, names: Iterable[str], error: type[Exception] = ValueError) -> None:
    """Raises an error unless a name is known; the message has similar names, or all if there are none.

    Args:
        kind: what the names are of, such as "a game of Procgen".
        name: the name.
        names: the known names; at most `MAX_LISTED` are listed.
        error: the class of the error.

    >>> check_name("a game", "chss", ["chess", "go"])
    Traceback (most recent call last):
        ...
    ValueError: Expected the name of a game, got 'chss'. Did you mean chess?
    >>> check_name("a game", "poker", ["chess", "go"])
    Traceback (most recent call last):
        ...
    ValueError: Expected the name of a game, got 'poker'. There are chess, go.
    """
    names = list(names)
    if name not in names:
        more = ", …" if len(names) > MAX_LISTED else ""
        advice = did_you_mean(nearest(str(name), names)) or f"There are {', '.join(names[:MAX_LISTED])}{more}."
        raise error(f"Expected the name of {kind}, got {name!r}. {advice.rstrip()}")
