"""The folder of a run: its files and their names. Knows files, not searches."""

from __future__ import annotations

import fcntl
import math
import os
import re
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
from ..snapshot.atomic_write import write_atomically

FORMAT = 2  # of the state; 1 did not contain the tested best policy
LOCK_TIMEOUT_S = 3.0  # workers of a killed run hold the lock until they end
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
        try:
            text = self.config.read_text()
            config = yaml.safe_load(text)
            has_alias = any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(text, yaml.SafeLoader))
        except (yaml.YAMLError, UnicodeDecodeError, RecursionError, ValueError) as error:
            reason = " ".join(str(error).split())
            raise ValueError(
                f"Expected {self.config} to be YAML as the run wrote it, got an error: {reason}"
            ) from error
        if not isinstance(config, dict):
            raise ValueError(f"Expected {self.config} to contain a mapping, got {type(config).__name__}.")
        if has_alias:  # a short text could describe a value without end
            raise ValueError(f"Expected {self.config} without aliases (*), got one. Write the value out.")
        return config

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
        is_new = not self.metrics.exists()
        with self.metrics.open("a", newline="") as file:
            if is_new:
                file.write(_line(METRIC_COLUMNS))
            file.write(_line(_cells(row)))

    def rows(self) -> list[dict[str, float]]:
        """Returns the lines of `metrics.csv`, except an incomplete last one: the process may have been killed.

        Raises:
            ValueError: another line is damaged.
        """
        if not self.metrics.exists():
            return []
        lines = self.metrics.read_bytes().splitlines(keepends=True)
        complete_lines = [line.decode(errors="replace").strip() for line in lines if line.endswith(b"\n")]
        if complete_lines[:1] not in ([], [",".join(METRIC_COLUMNS)]):
            raise ValueError(
                f"Expected line 1 of {self.metrics} to be {','.join(METRIC_COLUMNS)}, got {complete_lines[0][:80]!r}. "
                "Correct it, or remove the file."
            )
        return [self._row(number, line) for number, line in enumerate(complete_lines[1:], 2)]

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
        if version != FORMAT:
            raise CheckpointError(
                f"Expected {self.state} in format {FORMAT}, got format {version} of another version of vecrl. Start a "
                f"new run; {self.best.name} can still be used."
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
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True
