"""The registry of simulators: by which prefix, how, and from which package each is made.

A simulator is one file in this folder and one entry here, one call of `register` by its user, or an entry point of an
installed distribution in the group "vecrl.simulators". Every dialect and the command line make environments by their
entries. This module imports a simulator when it is used, and must not know any dialect.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib import import_module
from inspect import Signature, signature
from typing import TYPE_CHECKING, Any

from ..engine.simulator import BatchSimulator
from ..registries import Registry

if TYPE_CHECKING:
    from .wrapper_bypass import Env

SEPARATOR = "::"
BARE = "gym"  # the prefix of a name that has none


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
    """

    prefix: str
    maker: Callable[..., Any] | None
    summary: str
    extra: str | None = None
    names: Callable[[], Iterable[str]] = tuple
    env_fn: Callable[..., Callable[[], Env]] | None = None
    make_batch: Callable[..., BatchSimulator] | None = None

    @property
    def is_batched(self) -> bool:
        """Whether many environments step in one call, rather than one after another in workers."""
        return self.env_fn is None


@dataclass(frozen=True, slots=True)
class Availability:
    """The environments of one prefix that can be made in this installation.

    Attributes:
        prefix, summary: those of the entry.
        names: the names of the environments that can be made, sorted.
        missing: the reason if none can be made, else None.
        install: the command that installs the missing package, or None.
    """

    prefix: str
    summary: str
    names: tuple[str, ...]
    missing: str | None = None
    install: str | None = None


_entries: Registry[Entry] = Registry("prefix", "vecrl.simulators")


def register(
    prefix: str,
    maker: Callable[..., Any] | None = None,
    summary: str = "",
    extra: str | None = None,
    *,
    names: Callable[[], Iterable[str]] = tuple,
    env_fn: Callable[..., Callable[[], Env]] | None = None,
    make_batch: Callable[..., BatchSimulator] | None = None,
    replace: bool = False,
) -> None:
    """Adds a prefix to the registry.

    Args:
        prefix, maker, summary, extra, names, env_fn, make_batch: see `Entry`. With `env_fn` or `make_batch`, all
            dialects, `PopulationEvaluator` and the command line can use the names.
        replace: whether to replace the entry of a prefix that is registered, which may be one of vecrl's own.
            `make_gym_env`, `make_brax_env` and `make_native_env` use vecrl's own entries even then.

    Raises:
        ValueError: the prefix is empty, contains a separator at an end, or is registered; or there is not exactly one
            of `maker`, `env_fn` and `make_batch`.
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
    _entries.add(prefix, Entry(prefix, maker, summary, extra, names, env_fn, make_batch), replace)


def register_entry(entry: Entry) -> None:
    """Adds an entry that another process has registered; has no effect if its prefix is registered here."""
    _entries.setdefault(entry.prefix, entry)


def unregister(prefix: str) -> None:
    """Removes a prefix from the registry; raises KeyError if it is not registered."""
    del _entries[prefix]


def known_prefixes() -> tuple[str, ...]:
    """Returns all prefixes: in the order of their registration, then those of installed distributions."""
    return _entries.names()


def find_entry(env_name: str) -> tuple[Entry, str]:
    """Returns the entry with the longest prefix of `env_name`, and the rest of the name.

    A name without a prefix is gymnasium's.

    Raises:
        TypeError: `env_name` is not a string.
        ValueError: the prefix is unknown; the message lists the known ones.
        ImportError: the prefix is that of an installed distribution, which cannot be imported.
    """
    if not isinstance(env_name, str):
        raise TypeError(f"Expected the name of an environment, such as 'CartPole-v1', got {env_name!r:.80}.")
    if SEPARATOR not in env_name:
        return _entries[BARE], env_name
    longest = _longest_prefix(env_name, _entries) or _longest_prefix(env_name, _entries.installed())
    entry = _entries.find(longest)
    if entry is None:
        prefix = env_name.partition(SEPARATOR)[0]
        known = ", ".join(known + SEPARATOR for known in known_prefixes())
        raise ValueError(
            f"Expected one of the prefixes {known}, got {prefix + SEPARATOR!r} in {env_name!r}. Others must be "
            'registered by vecrl.vector.register, or by the entry point of an installed package ("vecrl.simulators").'
        )
    return entry, env_name[len(longest + SEPARATOR) :]


def _longest_prefix(env_name: str, prefixes: Iterable[str]) -> str:
    """Returns the longest of these prefixes that the name has, or ""."""
    return max((prefix for prefix in prefixes if env_name.startswith(prefix + SEPARATOR)), key=len, default="")


def find_own_entry(env_name: str) -> tuple[Entry, str]:
    """Returns vecrl's own entry of a name with one of its prefixes, also if it was replaced; and the rest of it."""
    longest = _longest_prefix(env_name, _own_entries)
    return _own_entries[longest], env_name[len(longest + SEPARATOR) :]


def available(prefix: str) -> Availability:
    """Returns the environments of `prefix` that can be made here, or what is missing and how to install it.

    Raises:
        ValueError: the prefix is unknown; the message lists the known ones.
    """
    try:
        entry, _ = find_entry(prefix + SEPARATOR)
    except ImportError as error:  # of a distribution that has an entry point
        return Availability(prefix, "", (), str(error))
    try:
        return Availability(prefix, entry.summary, tuple(sorted(entry.names())))
    except ImportError as error:
        install = None if entry.extra is None else f'pip install "vecrl[{entry.extra}]"'
        return Availability(prefix, entry.summary, (), str(error), install)


@dataclass(frozen=True)
class _LazyFunction:
    """A function of a module of this package, which is imported when the function is called."""

    module: str
    name: str
    options: Mapping[str, bool]

    def __call__(self, *args: object, **kwargs: object) -> object:
        return getattr(import_module(self.module, __package__), self.name)(*args, **self.options, **kwargs)

    @property
    def __signature__(self) -> Signature:
        return signature(getattr(import_module(self.module, __package__), self.name))


def _lazy(module: str, *functions: str, **options: bool) -> dict[str, Any]:
    """Returns arguments of an entry: functions of a module, called with `options` too."""
    return {function: _LazyFunction(module, function, options) for function in functions}


_BATCHED = "make_batch", "names"
register("gym", None, "gymnasium's environments, stepped one after another", **_lazy(".gymnasium", "env_fn", "names"))
register("brax", None, "Brax's environments, in one compiled call", "brax", **_lazy(".brax", *_BATCHED, old=False))
register("brax::old", None, "those of brax.v1", "brax-v1", **_lazy(".brax", *_BATCHED, old=True))
register("native", None, "vecrl's own tasks, as tensors on any device", **_lazy(".native", *_BATCHED))
_own_entries = dict(_entries)
