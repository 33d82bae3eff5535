"""Output of the commands: one console, errors on one line, exit codes for interrupts."""

from __future__ import annotations

import functools
import json
import math
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import typer
from rich.console import Console
from rich.markup import escape
from rich.status import Status

from ..errors import place_of

MAX_COUNT = 2**31 - 1  # of members, episodes, steps, workers, …
MAX_THREADS = 1024  # each has a stack
SLOW_S = 15.0  # seconds without a result after which a command says what it does
P = ParamSpec("P")
R = TypeVar("R")

console = Console(highlight=False)
error_console = Console(stderr=True, highlight=False)
INTERRUPTED = 130


class Settings:
    """Settings of all commands.

    Attributes:
        traceback: show errors with their tracebacks.
        imports: the modules and files of `--import`.
    """

    traceback = False
    imports: Sequence[str] = ()


def handle_errors(command: Callable[P, R]) -> Callable[P, R]:
    """Decorates a command: errors that the user can correct exit with one line and code 1, interrupts with code 130.

    SIGTERM interrupts it as Ctrl-C does.
    """

    @functools.wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            with _termination_as_interrupt():
                return command(*args, **kwargs)
        except KeyboardInterrupt:
            error_console.print("[yellow]Interrupted.[/]")
            raise typer.Exit(INTERRUPTED) from None
        except Exception as error:
            hint = "" if isinstance(error, typer.Exit | ImportError) else name_hint(kwargs.get("env"), str(error))
            if Settings.traceback or not (hint or _is_expected(error)):
                raise
            text = first_line(error)
            if isinstance(error, MemoryError):
                text = (
                    f"Expected work that fits into memory, got {text}. Give fewer members, environments or parameters."
                )
            error_console.print(f"[bold red]Error:[/] {escape(text)}", soft_wrap=True)
            if hint:
                error_console.print(escape(hint), soft_wrap=True)
            raise typer.Exit(1) from None

    return run


@contextmanager
def _termination_as_interrupt() -> Iterator[None]:
    """Lets SIGTERM raise KeyboardInterrupt, so that a command saves its results and removes incomplete files."""
    if threading.current_thread() is not threading.main_thread():  # only the main thread may set handlers
        yield
        return
    previous = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        if previous is not None:  # as a handler is that Python has not installed
            signal.signal(signal.SIGTERM, previous)


@contextmanager
def deferred_interrupts() -> Iterator[None]:
    """A context that delays SIGINT and SIGTERM: if one arrives inside, it raises a KeyboardInterrupt at the end."""
    if threading.current_thread() is not threading.main_thread():  # only the main thread gets interrupts
        yield
        return
    signals: list[int] = []
    numbers = signal.SIGINT, signal.SIGTERM
    previous = [signal.signal(number, lambda received, _: signals.append(received)) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, previous, strict=True):
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
    if signals:
        raise KeyboardInterrupt


def status(text: str) -> Status:
    """Returns a context in which the terminal shows what the command does. Any other output gets one line now."""
    if not console.is_terminal:
        console.print(text, soft_wrap=True)
    return console.status(text)


def print_columns(rows: Sequence[Sequence[str]]) -> None:
    """Prints rows of texts in columns, a line each, which a terminal cuts at its width; the first has the titles."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for index, row in enumerate(rows):
        line = "  ".join(f"{text:<{width}}" for text, width in zip(row, widths, strict=True)).rstrip()
        width = console.width if console.is_terminal else len(line)
        text = line if len(line) <= width else line[: width - 1] + "…"
        console.print(text, style=None if index else "bold", markup=False, soft_wrap=True)


def print_json(data: object) -> None:
    """Prints data as JSON, and nothing else to the standard output. A number that is not finite is null."""
    typer.echo(json.dumps(_finite(data), indent=2, ensure_ascii=False))


def _finite(data: Any) -> Any:
    """Returns data without NaN and infinity, which JSON has no words for."""
    if isinstance(data, dict):
        return {key: _finite(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [_finite(value) for value in data]
    return None if isinstance(data, float) and not math.isfinite(data) else data


@contextmanager
def messages_on_stderr(active: bool) -> Iterator[None]:
    """A context in which the messages of a command go to the standard error, so that only its JSON is on the other."""
    previous, console.stderr = console.stderr, active or console.stderr
    try:
        yield
    finally:
        console.stderr = previous


class SlowNotice:
    """Prints a line as soon as watched work has taken some seconds, and only once.

    Args:
        is_limited: whether the user has limited the steps of episodes.
    """

    def __init__(self, is_limited: bool):
        advice = "" if is_limited else " If the environment has no time limit, give one by --max-steps."
        self._text = (
            f"Still running: no result for {SLOW_S:g} s. Some simulators compile on first use, and a batch of episodes "
            f"ends with the last of them.{advice}"
        )
        self._printed = False

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Returns a context with work that may take long."""
        timer = threading.Timer(SLOW_S, self._print)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def _print(self) -> None:
        if not self._printed:
            self._printed = True
            console.print(self._text, soft_wrap=True)


def name_hint(env: object, message: str = "") -> str:
    """Returns what to try instead of an unknown name; "" if it is known.

    Args:
        env: the name.
        message: what is printed before; similar names in it are not repeated.
    """
    if not isinstance(env, str):
        return ""
    from ..simulators.availability import is_unknown, suggest

    if not is_unknown(env):
        return ""
    similar = "" if "Did you mean" in message else suggest(env)
    if Settings.imports:
        return f"{similar}{', '.join(Settings.imports)} did not register it."
    return f"{similar}If a file of yours registers it, give --import FILE."


def first_line(error: BaseException, suffix: str = " (--traceback shows the rest)") -> str:
    """Returns the first line of an error's message, followed by `suffix` if there are more lines."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    suffix = suffix if len(lines) > 1 else ""
    return (lines[0] if lines else type(error).__name__) + suffix


def _is_expected(error: Exception) -> bool:
    """Returns whether the user can correct an error: of vecrl, of gymnasium, or about values, files and memory."""
    from gymnasium.error import Error as GymnasiumError

    from ..errors import VecrlError

    return isinstance(error, VecrlError | GymnasiumError | ValueError | ImportError | OSError | MemoryError)


def import_modules(names: Sequence[str]) -> list[str]:
    """Imports the modules that `--import` names, which register environments; returns their names.

    Args:
        names: modules that are installed or on PYTHONPATH, or paths of Python files. The folder of a file is added at
            the end of the import path, so that workers find the file too.

    Raises:
        ImportError: a module cannot be imported.
        ValueError: a file does not exist, or another module has its name.
    """
    modules: list[str] = []
    Settings.imports = names
    for name in names:
        module = _module_of_file(Path(name)) if name.endswith(".py") else name
        modules.append(module)
        try:
            import_module(module)
        except Exception as error:  # the module may raise anything
            is_found = not (isinstance(error, ModuleNotFoundError) and error.name == module)
            advice = "" if is_found else " Give an installed module, one on PYTHONPATH, or the path of a Python file."
            raise ImportError(
                f"Expected --import {name} to be importable, got {type(error).__name__}: {first_line(error, '')}"
                f"{place_of(error)}.{advice}"
            ) from error
    return modules


def _module_of_file(path: Path) -> str:
    """Adds the folder of a file to the import path; returns the name of the file's module."""
    path = path.resolve()
    if not path.is_file():
        raise ValueError(f"Expected --import to name a Python file that exists, got {str(path)!r}. Correct the path.")
    sys.path.append(str(path.parent))
    found = find_spec(path.stem) if path.stem.isidentifier() else None
    if found is None or found.origin is None or Path(found.origin).resolve() != path:
        raise ValueError(
            f"Expected a file that can be imported by its name, got {str(path)!r}. Rename it: {path.stem!r} is another "
            "module, or no name of a module."
        )
    return path.stem


def parse_pairs(pairs: list[str]) -> dict[str, Any]:
    """Converts `["a=1", "b=[2, 3]"]` to a dict; values are YAML.

    >>> parse_pairs(["gravity=-9.5", "name=x"])
    {'gravity': -9.5, 'name': 'x'}
    """
    import yaml

    parsed: dict[str, Any] = {}
    for pair in pairs:
        key, separator, value = pair.partition("=")
        if not separator or not key.isidentifier():
            raise ValueError(f"Expected KEY=VALUE, got {pair!r}.")
        try:
            parsed[key] = yaml.safe_load(value)
        except yaml.YAMLError as error:
            raise ValueError(f"Expected a YAML value in {pair!r}, got one that cannot be parsed. Quote it.") from error
    return parsed
