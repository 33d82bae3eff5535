"""Keeps a run folder from running code: what may name a module or a program must be on the command line too.

Values in the files are plain words or may name code. A plain word has no ".", "/", "\\" or ":", and its argument is not
called "python" or "modules". Plain words are safe only if no simulator imports or starts what one of them names, in the
working folder or on the import path. The author of a simulator must see to it:

- If an argument names a module or a program by a plain word, add the argument to `_CODE_ARGUMENTS`.
- If the name of an environment does so, do not return that name from the `names` of the simulator's entry.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..simulators.registry import BARE, find_entry

_CODE_ARGUMENTS = {"python", "modules"}  # arguments of environments which name an interpreter and what it imports
_CODE_CHARACTERS = "./\\:"  # in paths of programs and files, and in names of modules, classes and functions


def checked_env_args(file: Path, env: str, env_args: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the arguments of a resumed run's environment, after it has checked what may name code.

    An environment is safe if its prefix lists it, or if it is in gymnasium's registry. An argument is safe if all its
    texts are plain words, see the module. All others must be given as well.

    Args:
        file: the file with the values, for messages.
        env, env_args: the values in the file.
        given: the values of the command line: "env", which must be equal, and "env_args", of which only "python" may
            differ.

    Raises:
        ValueError: a value in the file may name code and is not given, or a given value differs.
    """
    given_env, given_args = given.get("env"), given.get("env_args") or {}
    if given_env is not None and given_env != env:
        raise ValueError(f"Expected the environment of the run, {env!r}, got {given_env!r}. Omit it.")
    for name, value in given_args.items():
        if name != "python" and (name not in env_args or env_args[name] != value):
            expected = f"{env_args[name]!r}, as in {file}" if name in env_args else f"none, as {file} has none"
            raise ValueError(f"Expected the environment's argument {name} to be {expected}, got {value!r}. Omit it.")
    if given_env is None and not _is_registered(env):
        _refuse(file, "env", env, f"vecrl evolve {_shell(env)} --resume {_shell(str(file.parent))}")
    for name, value in env_args.items():
        if name not in given_args and _may_name_code({name: value}):
            text = value if isinstance(value, str) else json.dumps(value, default=str)
            option = f"--python {_shell(text)}" if name == "python" else f"--env-arg {_shell(f'{name}={text}')}"
            _refuse(file, name, value, option)
    return {**env_args, **given_args}


def _is_registered(env: str) -> bool:
    """Returns whether the name selects an environment that is registered here, and no file or module."""
    entry, name = find_entry(env)
    if entry.prefix == BARE:
        return ":" not in name  # "module:Id" is imported; other names are looked up
    try:
        return name in entry.names()
    except (Exception, SystemExit):  # libraries may raise anything when they are imported
        return False


def _may_name_code(value: object) -> bool:
    """Returns whether a value, or one in it, is a text that is no plain word, or is for an argument that names code."""
    if isinstance(value, bytes):
        value = value.decode(errors="replace")
    if isinstance(value, str):
        return any(character in value for character in _CODE_CHARACTERS)
    if isinstance(value, Mapping):
        return any(k in _CODE_ARGUMENTS or _may_name_code(k) or _may_name_code(v) for k, v in value.items())
    return isinstance(value, list | tuple | set) and any(map(_may_name_code, value))


def _shell(text: str) -> str:
    return shlex.quote(text) if text.isprintable() else repr(text)


def _refuse(file: Path, name: str, value: object, option: str) -> None:
    raise ValueError(
        f"Expected {file} to name no code, got {name}: {value!r:.200}, which may run a file, a module or a program. If "
        f"you trust it, repeat it on the command line: {option}"
    )
