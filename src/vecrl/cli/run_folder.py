"""The folder of a run: its files, their names, and what in them must be on the command line too.

A run folder must not run code, so what may name a module or a program must be given again. Values in the files are
plain words or may name code. A plain word has no ".", "/", "\\" or ":", and its argument is not called "python" or
"modules". Plain words are safe only if no simulator imports or starts what one of them names, in the working folder or
on the import path. The author of a simulator must see to it:

- If an argument names a module or a program by a plain word, add the argument to `_CODE_ARGUMENTS`.
- If the name of an environment does so, do not return that name from the `names` of the simulator's entry.
"""

from __future__ import annotations

import json
import math
import os
import re
import shlex
import stat
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from .. import checkpoint
from ..errors import CheckpointError
from ..policy.saved_policy import SavedPolicy
from ..simulators.availability import is_unknown
from ..simulators.registry import BARE, find_entry
from ..snapshot.atomic_write import append_text, lock_file, write_atomically
from .config_file import read_yaml

_LONGEST_LINE = 1000  # bytes of a line of metrics.csv
FORMAT = 2  # of the state; 1 did not contain the tested best policy
LOCK_TIMEOUT_S = 3.0  # workers of a killed run hold the lock until they end
_CODE_ARGUMENTS = {"python", "modules"}  # arguments of environments which name an interpreter and what it imports
_CODE_CHARACTERS = "./\\:"  # in paths of programs and files, and in names of modules, classes and functions
METRIC_COLUMNS = ["generation", "steps", "seconds", "best", "mean", "median", "center", "length", "stdev", "test"]


class RunFolder:
    """Files `config.yaml`, `metrics.csv`, `learning-curve.png`, `best.pt`, `best.mp4`, and `state.ckpt` for a resume.

    Args:
        path: an existing folder.
    """

    def __init__(self, path: Path):
        self.path = path
        self.config, self.metrics, self.curve, self.best, self.video, self.state = (
            path / name
            for name in ("config.yaml", "metrics.csv", "learning-curve.png", "best.pt", "best.mp4", "state.ckpt")
        )

    @classmethod
    def new(cls, parent: Path, env: str) -> RunFolder:
        """Creates the folder `<env>-<n>` in `parent`, with the lowest free number."""
        stem = re.sub(r"[^\w.+-]+", "-", env).strip("-") or "run"
        number = 1
        while True:
            try:
                (parent / f"{stem}-{number}").mkdir(parents=True)
            except FileExistsError:
                number += 1
            else:
                return cls(parent / f"{stem}-{number}")

    def write_config(self, config: Mapping[str, object]) -> None:
        """Writes `config.yaml` atomically."""
        _write_text(self.config, yaml.dump(dict(config), Dumper=_Dumper, sort_keys=False, allow_unicode=True))

    def read_config(self) -> dict[str, Any]:
        """Reads what `write_config` wrote.

        Raises:
            ValueError: this is no run folder, or the file is damaged.
        """
        if not self.config.is_file() or not self.state.is_file():
            runs = sorted(state_path.parent.name for state_path in self.path.glob("*/state.ckpt"))
            runs_hint = f" Runs in this folder: {', '.join(runs)}." if runs else ""
            missing = "without config.yaml or state.ckpt"
            raise ValueError(f"Expected a run folder, got {self.path} {missing}. Give the folder of a run.{runs_hint}")
        self._check_files()
        return read_yaml(self.config)

    def _check_files(self) -> None:
        """Raises a ValueError if the folder has links or pipes in it: writing through a link changes other files.

        The folder of wandb has links of its own. It writes into new folders.
        """
        for folder, folders, names in os.walk(self.path):
            if Path(folder) == self.path and "wandb" in folders and not (self.path / "wandb").is_symlink():
                folders.remove("wandb")
            for path in (Path(folder, name) for name in [*folders, *names]):
                mode = path.lstat().st_mode
                if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
                    raise ValueError(
                        f"Expected files and folders only in {self.path}, got {path}, which is a link, a pipe or a "
                        "device. Remove it, or replace it by a copy."
                    )

    def append(self, row: Mapping[str, float]) -> None:
        """Appends a line to `metrics.csv`; before the first, writes the column names."""
        head = "" if self.metrics.exists() else _line(METRIC_COLUMNS)
        append_text(self.metrics, head + _line(_cells(row)))

    def rows(self) -> list[dict[str, float]]:
        """Returns the lines of `metrics.csv`, except an incomplete last one: the process may have been killed.

        Raises:
            ValueError: another line is damaged.
        """
        if not self.metrics.exists():
            return []
        rows: list[dict[str, float]] = []
        with self.metrics.open("rb") as file:
            for number, line in enumerate(iter(lambda: file.readline(_LONGEST_LINE), b""), 1):
                text = line.decode(errors="replace").strip()
                if len(line) < _LONGEST_LINE and not line.endswith(b"\n"):
                    break
                if number > 1:
                    rows.append(self._row(number, text))
                elif text != ",".join(METRIC_COLUMNS):
                    raise ValueError(
                        f"Expected line 1 of {self.metrics} to be {','.join(METRIC_COLUMNS)}, got {text[:80]!r}. "
                        "Correct it, or remove the file."
                    )
        return rows

    def _row(self, number: int, line: str) -> dict[str, float]:
        try:
            row = dict(zip(METRIC_COLUMNS, line.split(","), strict=True))
            return {name: float(cell or "nan") if name == "test" else float(cell) for name, cell in row.items()}
        except ValueError:
            expected = f"to contain {len(METRIC_COLUMNS)} numbers"
            raise ValueError(
                f"Expected line {number} of {self.metrics} {expected}, got {line[:80]!r}. "
                "Correct it, or remove the file."
            ) from None

    def rewind(self, generation: int) -> None:
        """Removes lines after `generation` from `metrics.csv`: they are newer than the saved state."""
        self._write_rows([row for row in self.rows() if row["generation"] <= generation])

    def record_test(self, generation: int, mean: float) -> None:
        """Writes a test's mean return into the line of a generation, unless the line has a higher one."""
        rows = self.rows()
        for row in rows:
            if row["generation"] == generation and not row["test"] >= mean:
                row["test"] = mean
        self._write_rows(rows)

    def _write_rows(self, rows: Sequence[Mapping[str, float]]) -> None:
        if rows:
            _write_text(self.metrics, "".join(map(_line, [METRIC_COLUMNS, *map(_cells, rows)])))
        else:
            self.metrics.unlink(missing_ok=True)

    def write_state(self, state: Mapping[str, object], best: SavedPolicy | None) -> None:
        """Writes `state.ckpt` and `best.pt` atomically, after the lines of `metrics.csv` are on the disk."""
        if self.metrics.exists():
            with self.metrics.open("rb") as file:
                os.fsync(file.fileno())
        checkpoint.save(self.state, run={"format": FORMAT, **state})
        if best is not None:
            best.save(self.best)

    def read_state(self) -> dict[str, Any]:
        """Reads what `write_state` wrote.

        Raises:
            ValueError: the file is damaged, or is no state of a run.
        """
        contents = checkpoint.load(self.state)
        if not isinstance(contents.get("run"), dict):
            raise CheckpointError(
                f"Expected {self.state} to contain the state of a run, got {', '.join(contents) or 'nothing'}."
            )
        version = contents["run"].get("format", 1)
        if type(version) is not int or version != FORMAT:
            raise CheckpointError(
                f"Expected {self.state} in format {FORMAT}, got format {version!r:.80} of another "
                f"version of vecrl. Start a new run; {self.best.name} can still be used."
            )
        return contents["run"]

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Locks the folder for this process within a `with` block.

        Raises:
            ValueError: another process has the lock.
        """
        folder = os.open(self.path, os.O_RDONLY)
        try:
            deadline = time.monotonic() + LOCK_TIMEOUT_S
            while not _lock(folder):
                if time.monotonic() > deadline:
                    raise ValueError(
                        f"Expected {self.path} to be free, got a folder that is in use by another process. "
                        "Wait for it, or stop it."
                    )
                time.sleep(0.05)
            yield
        finally:
            os.close(folder)

    def existing_files(self, *names: str) -> Sequence[tuple[str, Path]]:
        """Returns names and paths of these attributes, for files that exist."""
        return [(name, getattr(self, name)) for name in names if getattr(self, name).exists()]


class _Dumper(yaml.SafeDumper):
    """Writes every value out, without aliases, which `RunFolder.read_config` refuses."""

    def ignore_aliases(self, data: object) -> bool:
        return True


def _cells(row: Mapping[str, float]) -> list[str]:
    """Returns the cells of a line of `metrics.csv`; `test` is empty if there was no test."""
    return ["" if name == "test" and math.isnan(row[name]) else format(row[name], ".10g") for name in METRIC_COLUMNS]


def _line(cells: Sequence[str]) -> str:
    return ",".join(cells) + "\n"


def _write_text(path: Path, text: str) -> None:
    write_atomically(path, [text.encode()])


def _lock(folder: int) -> bool:
    """Locks an open folder; returns False if another process has the lock. True if folders cannot be locked here."""
    try:
        lock_file(folder, wait=False)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


def checked_env_args(
    file: Path, env: str, env_args: Mapping[str, Any], given: Mapping[str, Any], env_option: str | None = None
) -> dict[str, Any]:
    """Returns the arguments of a run's environment, after it has checked what may name code.

    An environment is safe if its prefix lists it, or if it is in gymnasium's registry. An argument is safe if all its
    texts are plain words, see this module. All others must be given as well.

    Args:
        file: the file with the values, for messages.
        env, env_args: the values in the file.
        given: the values of the command line: "env", which must be equal, and "env_args", of which only "python" may
            differ.
        env_option: the option of the command that repeats the environment; None for `vecrl evolve --resume`.

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
        resume = f"vecrl evolve {_shell(env)} --resume {_shell(str(file.parent))}"
        _refuse(file, "env", env, resume if env_option is None else f"{env_option} {_shell(env)}")
    for name, value in env_args.items():
        if name not in given_args and _may_name_code({name: value}):
            text = value if isinstance(value, str) else json.dumps(value, default=str)
            option = f"--python {_shell(text)}" if name == "python" else f"--env-arg {_shell(f'{name}={text}')}"
            _refuse(file, name, value, option)
    return {**env_args, **given_args}


def check_config_file(file: Path, env: str | None, env_args: Mapping[str, Any]) -> None:
    """Raises a ValueError if what a file of options gives may name code, see `checked_env_args`.

    Args:
        file: the file, for messages.
        env: the environment in the file; None if it is on the command line.
        env_args: the environment's arguments in the file.
    """
    if env is not None and not _is_registered(env):
        _refuse(file, "env", env, _shell(env))
    for name, value in env_args.items():
        if _may_name_code({name: value}):
            _refuse(file, name, value, f"--env-arg {_shell(f'{name}={value}')}")


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
    if name == "env" and isinstance(value, str) and is_unknown(value):
        raise ValueError(
            f"Expected an environment that is registered here, got {value!r:.200} of {file}. Give --import with the "
            "module or file that registers it."
        )
    raise ValueError(
        f"Expected {file} to name no code, got {name}: {value!r:.200}, which may run a file, a module or a program. If "
        f"you trust it, repeat it on the command line: {option}"
    )
