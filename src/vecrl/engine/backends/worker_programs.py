"""What a worker process runs: vecrl's worker on this interpreter, or the one for another interpreter.

Both get the same commands with the same header. They differ in what the extras of commands are and how these are
pickled.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import os
import pickletools
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import cloudpickle
import gymnasium

from ...errors import SerializationError, name_ids
from ..batch_buffers import BatchBuffers
from ..large_boxes import dump_by_value
from ..pickling import dump_with_files
from ..simulator import EnvDescription, ResetKeywords, SimulatorMaker
from ..space_layout import Layout
from ..worker import Command, Op, WorkerSpec
from .foreign_worker.plain_data import dumps
from .interpreters import find_python
from .process_worker import ConstructPayload, ProcessContext
from .protocol import encode_command
from .worker_options import WorkerOptions


class WorkerProgram(Protocol):
    """The program of all worker processes of a pool.

    Attributes:
        request: what the fork server needs to start it.
    """

    request: dict[str, Any]

    def construct_payload(self, worker_spec: WorkerSpec, context: ProcessContext) -> Any:
        """Returns the extra of `Op.CONSTRUCT` for a worker, with an attribute `seed`."""
        ...

    def attach_extra(self, buffers: BatchBuffers, obs: Layout, action: Layout) -> Any:
        """Returns the extra of `Op.ATTACH`."""
        ...

    def encode(self, command: Command) -> bytes:
        """Returns a command as bytes."""
        ...


def program_for(worker_specs: Sequence[WorkerSpec], options: WorkerOptions) -> WorkerProgram:
    """Returns the program for these workers.

    It is that for another interpreter if `options` names one, or if all environments are described and name the same.

    Raises:
        ModuleNotFoundError: a module in `preload` does not exist.
        SerializationError: a worker spec cannot be pickled, or is not described for the interpreter of the options.
    """
    descriptions = [_descriptions(spec) for spec in worker_specs]
    pythons = {description.python for part in descriptions for description in part or [EnvDescription("")]}
    python = options.python or (pythons.pop() if len(pythons) == 1 else None)
    if python is None:
        return ThisPython(worker_specs, options)
    described = [part for part in descriptions if part is not None]
    if len(described) < len(worker_specs):
        raise SerializationError(
            f"Expected functions that describe their environments for the interpreter {python}, got others. Use "
            "`vecrl.simulators.foreign.foreign_env`, or `make_vector_env(name, python=...)`."
        )
    return OtherPython(find_python(python), described, options)


def _descriptions(worker_spec: WorkerSpec) -> list[EnvDescription] | None:
    """Returns the descriptions of all environments of a worker, or None if one has none."""
    make = worker_spec.make
    descriptions = make.descriptions if isinstance(make, SimulatorMaker) else []
    return descriptions if len(descriptions) == worker_spec.num_envs else None


class ThisPython:
    """The worker of `process_worker`, on the caller's interpreter."""

    def __init__(self, worker_specs: Sequence[WorkerSpec], options: WorkerOptions):
        fork = options.start_method == "forkserver" and sys.platform == "linux"  # imports fork with calls of Linux
        preload = options.preload
        if own := [name for name in preload if _is_running_script(name)]:
            raise ValueError(
                f"Expected preload to name other modules than the running script, got {own[0]!r}. Put what workers "
                "need into a module of its own, and name that."
            )
        if missing := [name for name in preload if importlib.util.find_spec(name.partition(".")[0]) is None]:
            raise ModuleNotFoundError(
                f"Expected preload to name modules that can be imported, got {missing[0]!r}. "
                "Install it, or remove it from preload."
            )
        self._preload = preload
        self._pickled = [pickle_worker_spec(worker_spec) for worker_spec in worker_specs]
        modules = sorted(set(preload).union(*map(modules_in, self._pickled))) if fork else []
        self.request = {"fork": fork, "preload": modules, "program": None}

    def construct_payload(self, worker_spec: WorkerSpec, context: ProcessContext) -> ConstructPayload:
        pickled = self._pickled[worker_spec.index]
        specs = pickle_specs(pickled)
        ids, seed = worker_spec.ids, worker_spec.seed
        return ConstructPayload(context, worker_spec.index, ids, pickled, specs, seed, self._preload)

    def attach_extra(self, buffers: BatchBuffers, obs: Layout, action: Layout) -> Any:
        return obs.space, action.space, buffers.num_envs, len(buffers.slots)

    def encode(self, command: Command) -> bytes:
        return encode_command(command, dump_by_value) if command.op == Op.ATTACH else encode_command(command)


def _is_running_script(name: str) -> bool:
    """Returns whether a module is the file that runs as `__main__`, which would start its workers when imported."""
    path = getattr(sys.modules.get("__main__"), "__file__", None)
    if name == "__main__" or path is None or "." in name:
        return name == "__main__"
    spec = importlib.util.find_spec(name)
    return spec is not None and spec.origin is not None and os.path.realpath(path) == os.path.realpath(spec.origin)


@dataclass
class ForeignPayload:
    """The extra of `Op.CONSTRUCT` for another interpreter; the worker gets its fields as a dict."""

    context: ProcessContext
    index: int
    ids: tuple[int, ...]
    envs: list[EnvDescription]
    same_spaces: bool
    infos: bool
    check_nan: bool
    preload: Sequence[str]
    seed: int


class OtherPython:
    """The worker of `foreign_worker`, on another interpreter.

    Args:
        python: the path of the interpreter.
        descriptions: the environments of each worker.
        options: as for every backend.
    """

    def __init__(self, python: str, descriptions: Sequence[list[EnvDescription]], options: WorkerOptions):
        folder = str(Path(__file__).parent)
        hide_working_folder = "del sys.path[0]; " if {"", os.getcwd()}.isdisjoint(sys.path) else ""
        code = (  # NumPy first, since modules in this folder must not hide those that NumPy imports
            f"import sys; {hide_working_folder}import numpy; sys.path.insert(0, {folder!r}); "
            "from foreign_worker.worker import main; del sys.path[0]; main()"
        )
        self._descriptions = descriptions
        self._preload = list(options.preload)
        self.request = {"fork": False, "preload": [], "program": [python, "-E", "-c", code]}

    def construct_payload(self, worker_spec: WorkerSpec, context: ProcessContext) -> ForeignPayload:
        make = worker_spec.make
        maker_options = make.options if isinstance(make, SimulatorMaker) else {}
        if not maker_options.get("trust_spaces", True):
            raise SerializationError(
                "Expected trust_spaces=True with environments on another interpreter, got False. They are exchanged as "
                "arrays of the spaces that they declare."
            )
        same_spaces = maker_options.get("same_spaces", True)
        envs = self._descriptions[worker_spec.index]
        flags = same_spaces, bool(worker_spec.infos), worker_spec.check_nan
        return ForeignPayload(
            context, worker_spec.index, worker_spec.ids, envs, *flags, self._preload, worker_spec.seed
        )

    def attach_extra(self, buffers: BatchBuffers, obs: Layout, action: Layout) -> Any:
        if obs.opaque or action.opaque:
            raise SerializationError(
                "Expected environments with one layout of arrays in all workers, got different ones. Environments on "
                "another interpreter are exchanged as arrays only: use environments with equal spaces."
            )
        return {
            "obs_paths": [leaf.path for leaf in obs.leaves],
            "action_paths": [leaf.path for leaf in action.leaves],
            "size": BatchBuffers.size(obs, action, buffers.num_envs, len(buffers.slots)),
            "arrays": buffers.places(),
        }

    def encode(self, command: Command) -> bytes:
        extra: Any = command.extra
        if isinstance(extra, ForeignPayload):
            extra = dataclasses.asdict(extra)
        elif command.op == Op.RESET and extra is not None:
            seeds, options = extra
            extra = seeds, options, isinstance(options, ResetKeywords)
        return encode_command(dataclasses.replace(command, extra=extra), dumps)


# -- pickles of worker specs, and the modules to import before a process is forked ------------------


def pickle_worker_spec(worker_spec: WorkerSpec) -> bytes:
    """Pickles a worker spec with cloudpickle: objects of `__main__` by value.

    Raises:
        SerializationError: it cannot be pickled.
    """
    try:
        return dump_with_files(worker_spec)
    except Exception as error:
        raise SerializationError(
            f"Expected a factory of {name_ids(worker_spec.ids)} that can be pickled and sent to a worker process, got "
            f"{type(error).__name__}: {error}. Make objects that cannot be pickled (locks, open files, windows, …) "
            'inside the factory, or use backend="threads".'
        ) from error


def modules_in(payload: bytes) -> set[str]:
    """Returns the imported modules that a pickle refers to, and the modules of gymnasium ids in it."""
    names: set[str] = set()
    for text in _texts_in(payload):
        names.update(name for name in text.split(" ")[:1] if name in sys.modules)
        spec = gymnasium.registry.get(text)
        if spec is not None and isinstance(spec.entry_point, str):
            names.add(spec.entry_point.partition(":")[0])
    return {name for name in names if name != "__main__" and not name.startswith("_")}


def pickle_specs(payload: bytes) -> bytes:
    """Pickles the gymnasium registrations of the ids in a pickle, except gymnasium's own ids.

    A worker process needs them, because the code that registered these ids may not run there.
    """
    specs = [gymnasium.registry[text] for text in set(_texts_in(payload)) if text in gymnasium.registry]
    custom_specs = [spec for spec in specs if not str(spec.entry_point).startswith("gymnasium.envs.")]
    try:
        return cloudpickle.dumps(custom_specs)
    except Exception:  # the worker then reports the missing id
        return cloudpickle.dumps([])


def _texts_in(payload: bytes) -> Iterator[str]:
    for _, text, _ in pickletools.genops(payload):
        if isinstance(text, str):
            yield text
        elif isinstance(text, bytes) and text[:1] == b"\x80":  # a pickle inside the pickle, as cloudpickle makes
            with contextlib.suppress(ValueError):
                yield from _texts_in(text)
