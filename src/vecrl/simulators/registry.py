"""The registry of simulators: by which prefix, how, and from which package each is made.

An entry is one of `entries.py`, one call of `register` by a user, or an entry point of an installed distribution in the
group "vecrl.simulators". Every dialect and the command line make environments by their entries. This module must not
know any simulator or dialect.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.machinery import PathFinder
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from ..engine.simulator import BatchSimulator
from ..errors import SpaceError, WorkerError
from ..registries import Registry, did_you_mean, nearest
from ..validation import check_names

if TYPE_CHECKING:
    from ..gym_interface import Env

SEPARATOR = "::"
BARE = "gym"  # the prefix of a name that has none
_POOL_OPTIONS = "check_nan", "on_failure", "restarts_per_hour", "step_timeout"
LIMITS = "seeds", "partial reset", "final observation", "pixels", "states"  # what some simulators cannot do


@dataclass(frozen=True, slots=True)
class Entry:
    """A registered prefix. Exactly one of `env_fn`, `make_batch` and `maker` is given.

    Attributes:
        prefix: the part of a name before the last `::`; it may contain `::` itself ("brax::old").
        maker: `maker(name, *, force_classic_api, num_envs, discrete_to_continuous_act, clip_actions, **kwargs)` makes
            an environment for `make_vector_env`.
        summary: a one-line description.
        extra: the extra of vecrl that installs the simulator; None if it needs no extra.
        names: returns the names of its environments; raises ImportError if a package is missing.
        env_fn: `env_fn(name, **kwargs)` returns a function that makes one gymnasium environment, for a simulator of
            single environments. Workers call that function.
        make_batch: `make_batch(name, num_envs, *, device=None, infos=True, **kwargs)` makes a `BatchSimulator`, for a
            simulator that steps many environments in one call. `device` None is the simulator's default device; with
            `infos` False, infos of steps are not used.
        example: one of the names, of an environment that is made and stepped quickly.
        env_class: the class for environments over TensorDicts, "MODULE:CLASS" in `vecrl.envs.libs`; None if the one
            for any simulator is used. Its class method `from_name(name, **kwargs)` makes an environment, if it has one,
            otherwise the class. `num_envs` is passed if it takes that, else a `batch_size` for a batched simulator.
        limits: what the simulator cannot do, each a word of `LIMITS` with the reason.
        requires: the modules without which none of its environments can be made on this interpreter.
    """

    prefix: str
    maker: Callable[..., Any] | None
    summary: str
    extra: str | None = None
    names: Callable[[], Iterable[str]] = tuple
    env_fn: Callable[..., Callable[[], Env]] | None = None
    make_batch: Callable[..., BatchSimulator] | None = None
    example: str | None = None
    env_class: str | None = None
    limits: Mapping[str, str] = field(default_factory=dict)
    requires: tuple[str, ...] = ()

    @property
    def install(self) -> str | None:
        """The command that installs the simulator, or None if it needs no extra."""
        return None if self.extra is None else f'pip install "vecrl[{self.extra}]"'

    @property
    def missing(self) -> str | None:
        """The first module of `requires` that is not installed, or None; nothing is imported."""
        return next((module for module in self.requires if not _is_installed(module)), None)

    @property
    def is_batched(self) -> bool:
        """Whether many environments step in one call, rather than one after another in workers."""
        return self.env_fn is None


_entries: Registry[Entry] = Registry("prefix", "vecrl.simulators")
_own_entries: dict[str, Entry] = {}


def register(
    prefix: str,
    maker: Callable[..., Any] | None = None,
    summary: str = "",
    extra: str | None = None,
    *,
    names: Callable[[], Iterable[str]] = tuple,
    env_fn: Callable[..., Callable[[], Env]] | None = None,
    make_batch: Callable[..., BatchSimulator] | None = None,
    example: str | None = None,
    env_class: str | None = None,
    limits: Mapping[str, str] | None = None,
    requires: Sequence[str] = (),
    replace: bool = False,
) -> None:
    """Adds a prefix to the registry.

    Args:
        prefix, maker, summary, extra, names, env_fn, make_batch, example, env_class, limits, requires: see `Entry`.
            With `env_fn` or `make_batch`, all dialects, `PopulationEvaluator` and the command line can use the names.
        replace: whether to replace the entry of a prefix that is registered, which may be one of vecrl's own.
            `make_gym_env`, `make_brax_env` and `make_native_env` use vecrl's own entries even then.

    Raises:
        ValueError: the prefix is empty, contains a separator at an end, or is registered; or there is not exactly one
            of `maker`, `env_fn` and `make_batch`; or a limit is none of `LIMITS`.
        TypeError: one of the functions cannot be called.

    >>> register("mine", lambda name, **kwargs: f"an environment called {name}", "my environments")
    >>> entry, name = find_entry("mine::first")
    >>> entry.maker(name)
    'an environment called first'
    >>> unregister("mine")
    """
    if not isinstance(prefix, str) or not prefix.strip(":") or prefix != prefix.strip(":"):
        raise ValueError(f"Expected a prefix without the `::` after it, such as 'mine', got {prefix!r}.")
    if (given := 3 - [maker, env_fn, make_batch].count(None)) != 1:
        raise ValueError(f"Expected one of maker, env_fn and make_batch, got {given} of them.")
    functions = {"maker": maker, "names": names, "env_fn": env_fn, "make_batch": make_batch}
    for name, function in functions.items():
        if function is not None and not callable(function):
            raise TypeError(f"Expected {name} of the prefix {prefix!r} to be a function, got {function!r:.80}.")
    if unknown := sorted({*(limits or {})} - {*LIMITS}):
        raise ValueError(f"Expected limits among {', '.join(LIMITS)}, got {', '.join(map(repr, unknown))}.")
    check_names("requires", requires, "modules")
    traits = example, env_class, limits or {}, tuple(requires)
    entry = Entry(prefix, maker, summary, extra, names, env_fn, make_batch, *traits)
    _entries.add(prefix, entry, replace)


def register_entry(entry: Entry) -> None:
    """Adds an entry that another process has registered; has no effect if its prefix is registered here."""
    _entries.setdefault(entry.prefix, entry)


def keep_own_entries() -> None:
    """Records the entries so far as vecrl's own, which `find_own_entry` finds also if they are replaced."""
    _own_entries.update(_entries)


def unregister(prefix: str) -> None:
    """Removes a prefix from the registry; raises KeyError if it is not registered."""
    if not isinstance(prefix, str) or prefix not in _entries:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise KeyError(f"Expected a prefix that is registered, {', '.join(_entries)}, got {prefix!r:.80}.")
    del _entries[prefix]


def examples() -> dict[str, str]:
    """Returns the examples of all registered prefixes, by prefix; imports nothing."""
    return {prefix: entry.example for prefix, entry in _entries.items() if entry.example is not None}


def known_prefixes() -> tuple[str, ...]:
    """Returns all prefixes: in the order of their registration, then those of installed distributions."""
    return _entries.names()


def check_env_name(env_name: object) -> None:
    """Raises a `SpaceError` (a `TypeError` and a `ValueError`) unless this is a text with at least one character."""
    if not isinstance(env_name, str) or not env_name:
        advice = " Give functions that make environments to VectorEnv." if callable(env_name) else ""
        raise SpaceError(f"Expected the name of an environment, such as 'CartPole-v1', got {env_name!r:.80}.{advice}")


def find_entry(env_name: str) -> tuple[Entry, str]:
    """Returns the entry with the longest prefix of `env_name`, and the rest of the name.

    A name without a prefix is gymnasium's.

    Raises:
        SpaceError: `env_name` is not a string, or empty.
        ValueError: the prefix is unknown; the message lists the known ones.
        ImportError: the prefix is that of an installed distribution, which cannot be imported.
    """
    check_env_name(env_name)
    if SEPARATOR not in env_name:
        return _entries[BARE], env_name
    longest = _longest_prefix(env_name, _entries) or _longest_prefix(env_name, _entries.installed())
    entry = _entries.find(longest)
    if entry is None:
        prefix = env_name.partition(SEPARATOR)[0]
        known = ", ".join(known + SEPARATOR for known in known_prefixes())
        raise ValueError(
            f"Expected one of the prefixes {known}, got {prefix + SEPARATOR!r} in {env_name!r}. "
            f"{did_you_mean(name + SEPARATOR for name in nearest(prefix, known_prefixes()))}Others must be "
            'registered by vecrl.vector.register, or by the entry point of an installed package ("vecrl.simulators").'
        )
    return entry, env_name[len(longest + SEPARATOR) :]


@contextmanager
def explained_arguments(env_name: str, arguments: Mapping[str, Any]) -> Iterator[None]:
    """A context in which an environment is made; an argument that it does not take is a short error.

    Args:
        env_name: the name of the environment.
        arguments: the arguments of the simulator.

    Raises:
        TypeError: the simulator does not take one of the arguments.
    """
    try:
        yield
    except TypeError as error:  # of a worker, too: a `WorkerError` is also of the class of its cause
        cause = error.__cause__ if isinstance(error, WorkerError) else error
        unknown = unknown_argument(cause, arguments)
        if unknown is None:
            raise
        text = str(cause).partition(" was raised from ")[0]  # gymnasium adds all arguments
        raise TypeError(f"Expected arguments of {env_name!r}, got {unknown!r}: {text}. {_advice(unknown)}") from None


def unknown_argument(error: BaseException | None, arguments: Mapping[str, Any]) -> str | None:
    """Returns the one of the `arguments` that a function does not take, as a `TypeError` of Python says; or None."""
    unknown = re.match(r"\S+ got an unexpected keyword argument '(\w+)'", str(error))
    return unknown[1] if unknown is not None and unknown[1] in arguments else None


def _advice(unknown: str) -> str:
    """Returns what to do with an argument that a simulator does not take."""
    if unknown in _POOL_OPTIONS:
        return "Give it to a VectorEnv or a ParallelEnv, which make environments in workers."
    if unknown in ("n_envs", "env_num"):
        return "Did you mean num_envs?"
    return "Correct the name, or omit the argument."


def _longest_prefix(env_name: str, prefixes: Iterable[str]) -> str:
    """Returns the longest of these prefixes that the name has, or ""."""
    return max((prefix for prefix in prefixes if env_name.startswith(prefix + SEPARATOR)), key=len, default="")


def find_own_entry(env_name: str) -> tuple[Entry, str]:
    """Returns vecrl's own entry of a name with one of its prefixes, also if it was replaced; and the rest of it."""
    longest = _longest_prefix(env_name, _own_entries)
    return _own_entries[longest], env_name[len(longest + SEPARATOR) :]


def _is_installed(module: str) -> bool:
    """Returns whether a module can be found; neither it nor a package that it is in is imported."""
    package, *parts = module.split(".")
    try:
        spec, name = find_spec(package), package
        for part in parts:
            name = f"{name}.{part}"
            folders = None if spec is None else spec.submodule_search_locations
            spec = None if folders is None else PathFinder.find_spec(name, folders)
        return spec is not None
    except (ImportError, ValueError):  # an importer refuses the module, or it was made without a spec
        return module in sys.modules
