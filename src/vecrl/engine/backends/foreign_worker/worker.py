"""The worker on another Python interpreter: makes environments there and executes commands on them.

It speaks the protocol of `protocol.py`, with the rows in the same shared memory, but what is pickled is plain data. It
needs only the standard library and NumPy, runs on Python 3.7 or newer, and imports no module of vecrl except its own
package: classes of one interpreter may not exist in the other.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import mmap
import os
import random
import resource
import signal
import struct
import sys
import traceback
from array import array
from types import SimpleNamespace
from typing import Any, Callable, Sequence

import numpy as np

from .environment import Environment
from .plain_data import as_method, as_text, dumps, loads

COMMAND = struct.Struct("<BBHIII")  # as in protocol.py, which a test compares with this file
REPLY = struct.Struct("<II")
ALL_ROWS = 0xFFFFFFFF
RESET_DONE, MASKED = 1, 2
CONSTRUCT, ATTACH, RESET, STEP, INVOKE, CLOSE, REBUILD = range(7)
OP_NAMES = "construct", "attach", "reset", "step", "invoke", "close", "rebuild"
PLAIN = b"V"  # begins a reply in plain data


class SpaceError(ValueError):
    """A value does not fit its space. The caller raises vecrl's error of this name."""


class ForeignWorker:
    """Executes commands on the environments of one worker, as `vecrl.engine.worker.Worker` does."""

    def __init__(self, memory: int):
        self._memory = memory
        self._spaces = b""
        self.envs: list[Any] = []
        self.num_steps = 0
        handlers = self._construct, self._attach, self._reset, self._step, self._invoke
        self._handlers = (*handlers, self._close_rows, self._rebuild)  # in the order of operations

    def execute(self, op: int, flags: int, slot: int, rows: Sequence[int] | None, extra: Any) -> dict[str, Any] | None:
        """Executes a command. Returns a reply, or None if everything is in the rows."""
        self._reply: dict[str, Any] = {}
        self._op = OP_NAMES[op]
        if op == CONSTRUCT:
            self._payload = extra
        try:
            self._handlers[op](range(len(self.envs)) if rows is None else rows, flags, slot, extra)
        except BaseException as error:
            self._fail(self._payload["ids"], error)
        return self._reply or None

    def failure(self, error: BaseException) -> dict[str, Any]:
        """Returns a reply to the last command which says only that it failed in all environments."""
        self._reply = {}
        self._fail(self._payload["ids"], error)
        return self._reply

    def _each(self, rows: Sequence[int], function: Callable[[int], Any]) -> list[Any]:
        """Calls a function with each row and returns the results. An exception is a failure of its row."""
        results: list[Any] = []
        for row in rows:
            try:
                results.append(function(row))
            except BaseException as error:
                results.append(None)
                self._fail([self._payload["ids"][row]], error)
        return results

    def _fail(self, ids: Sequence[int], error: BaseException) -> None:
        name = text = type(error).__name__
        try:
            text += f": {error}"
        except Exception:
            text += " (its __str__ raised)"
        trace = "".join(traceback.format_exception(type(error), error, error.__traceback__))
        failure = (list(ids), self._op, text, trace, self._payload["index"], os.getpid(), self.num_steps, name)
        self._reply.setdefault("failures", []).append(failure)

    def _construct(self, rows: Any, flags: int, slot: int, payload: dict[str, Any]) -> None:
        context = payload["context"]
        os.environ.clear()
        os.environ.update({k: v for k, v in context["environment"].items() if k not in ("PYTHONPATH", "PYTHONHOME")})
        os.chdir(context["folder"])
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        with contextlib.suppress(ValueError):  # more than this process may have
            resource.setrlimit(resource.RLIMIT_NOFILE, (context["descriptors"], most))
        if context["cores"] is not None:
            os.sched_setaffinity(0, context["cores"])
        for name in payload["preload"]:
            importlib.import_module(name)
        random.seed(payload["seed"])
        np.random.seed(payload["seed"] % 2**32)  # noqa: NPY002 -- old environments use the global generator
        self.envs = [None] * len(payload["envs"])
        self._each(range(len(self.envs)), self._make)
        if "failures" in self._reply:
            self._each(range(len(self.envs)), self._close)
            return
        first = self.envs[0]
        names = "observation_space", "action_space", "metadata", "render_mode"
        result = {name: getattr(first, name) for name in names}
        result.update(num_envs=len(self.envs), spec=first.access("get", "spec", None), pid=os.getpid())
        self._reply["result"] = result

    def _make(self, row: int) -> None:
        """Makes the environment of a row, after it has closed the previous one."""
        if self.envs[row] is not None:
            with contextlib.suppress(BaseException):
                self._close(row)
        env = Environment(self._payload["envs"][row])
        self._spaces = self._spaces or env.spaces
        if self._payload["same_spaces"] and env.spaces != self._spaces:
            raise SpaceError("expected the same spaces as those of the first environment, got others.")
        self.envs[row] = env

    def _rebuild(self, rows: Sequence[int], *_: Any) -> None:
        self._op = "construct"
        self._each(rows, self._make)

    def _close_rows(self, rows: Sequence[int], *_: Any) -> None:
        self._each(rows, self._close)

    def _close(self, row: int) -> None:
        env, self.envs[row] = self.envs[row], None
        if env is not None:
            env.close()

    def _attach(self, rows: Any, flags: int, slot: int, places: dict[str, Any]) -> None:
        """Maps the batch buffers. `places` says where their arrays are, see `BatchBuffers.places`."""
        memory = mmap.mmap(self._memory, places["size"])
        rows = slice(self._payload["ids"][0], self._payload["ids"][-1] + 1)

        def views(place: Any) -> Any:
            if isinstance(place, dict):
                return {name: views(child) for name, child in place.items()}
            if isinstance(place, list):
                return [views(child) for child in place]
            offset, shape, dtype = place
            return np.ndarray(shape, dtype, memory, offset)[rows]

        arrays = views(places["arrays"])
        self._actions, self._final_obs, self._reset_mask = arrays["actions"], arrays["final_obs"], arrays["reset_mask"]
        self._slots = [SimpleNamespace(**slot_arrays) for slot_arrays in arrays["slots"]]
        self._obs_paths, self._action_paths = places["obs_paths"], places["action_paths"]
        for env in self.envs:
            _check_leaves(env.observation_space, self._obs_paths, self._final_obs)
            _check_leaves(env.action_space, self._action_paths, self._actions)
        self._returns, self._lengths = np.zeros(len(self.envs)), np.zeros(len(self.envs), np.int64)

    def _reset(self, rows: Sequence[int], flags: int, slot: int, extra: Any) -> None:
        seeds, options, as_keywords = extra or (None, None, False)
        keywords = {} if options is None else options if as_keywords else {"options": options}
        seed_of = {} if seeds is None else dict(zip(rows, seeds))
        self._each(rows, lambda row: self._reset_row(row, self._slots[slot], seed_of.get(row), keywords))

    def _reset_row(self, row: int, out: Any, seed: int | None = None, keywords: dict[str, Any] = {}) -> None:  # noqa: B006
        obs, info = self.envs[row].reset(seed, **keywords)
        out.reward[row] = out.terminated[row] = out.truncated[row] = 0
        out.was_reset[row] = True
        self._returns[row] = self._lengths[row] = 0
        self._write(out.obs, row, obs)
        self._add_info("infos", row, info)

    def _step(self, rows: Sequence[int], flags: int, slot: int, extra: Any) -> None:
        self.num_steps += 1
        out = self._slots[slot]
        if flags & MASKED:
            rows = [~row if self._reset_mask[row] else row for row in rows]
        self._op = "reset"
        self._each([~row for row in rows if row < 0], lambda row: self._reset_row(row, out))
        self._op = "step"
        rows = [row for row in rows if row >= 0]
        # leaves in the caller's dtype, by row
        own = {self._action_paths[leaf]: dict(zip(rows, values)) for leaf, values in (extra or {}).items()}
        self._each(rows, lambda row: self._step_row(row, out, bool(flags & RESET_DONE), own))

    def _step_row(self, row: int, out: Any, reset_done: bool, own: dict[Any, dict[int, Any]]) -> None:
        out.terminated[row] = out.truncated[row] = out.was_reset[row] = False
        out.reward[row] = np.nan
        leaves = {path: leaf[row].copy() for path, leaf in zip(self._action_paths, self._actions)}
        leaves.update((path, values[row]) for path, values in own.items())
        env = self.envs[row]
        obs, reward, terminated, truncated, info = env.step(_nest(env.action_space, leaves))
        number = np.asarray(reward)
        if number.size != 1 or number.dtype.kind not in "fiub":
            raise SpaceError(f"expected a number as the reward, got {reward!r}.")
        self._returns[row] += number.item()
        self._lengths[row] += 1
        ended = bool(terminated or truncated)
        self._write(self._final_obs if ended and reset_done else out.obs, row, obs)
        if self._payload["check_nan"] and np.isnan(number).any():
            raise FloatingPointError("the reward is NaN (found since check_nan=True)")
        if ended:
            out.returns[row], out.lengths[row] = self._returns[row], self._lengths[row]
        if ended and reset_done:
            self._add_info("final_infos", row, info)
            self._reset_row(row, out)
        else:
            self._add_info("infos", row, info)
        out.reward[row] = number.item()
        out.terminated[row], out.truncated[row] = bool(terminated), bool(truncated)

    def _write(self, leaves: list[np.ndarray], row: int, obs: Any) -> None:
        """Writes an observation into a row."""
        for path, leaf in zip(self._obs_paths, leaves):
            value = np.asarray(_at(obs, path))
            if value.shape != leaf.shape[1:] and (value.shape, leaf.shape[1:]) != ((), (1,)):
                raise SpaceError(f"expected an observation of shape {leaf.shape[1:]} at {path}, got {value.shape}.")
            if not np.can_cast(value.dtype, leaf.dtype, "same_kind"):
                raise SpaceError(f"expected an observation of dtype {leaf.dtype} at {path}, got {value.dtype}.")
            if self._payload["check_nan"] and value.dtype.kind == "f" and np.isnan(value).any():
                raise FloatingPointError("the observation is NaN (found since check_nan=True)")
            leaf[row] = value

    def _add_info(self, name: str, row: int, info: Any) -> None:
        if not isinstance(info, dict):
            raise SpaceError(f"expected a dict as the info, got {type(info).__name__}.")
        if info and self._payload["infos"]:
            self._reply.setdefault(name, []).append((self._payload["ids"][row], dict(info)))

    def _invoke(self, rows: Sequence[int], flags: int, slot: int, extra: Any) -> None:
        kind, name, values = extra
        self._op = name if kind == "call" else kind
        value_of = dict(zip(rows, values))
        found = self._each(rows, lambda row: dumps(self.envs[row].access(kind, name, value_of[row]), as_method))
        self._reply["result"] = found


def _at(tree: Any, path: Sequence[Any]) -> Any:
    for key in path:
        tree = tree[key]
    return tree


def _nest(space: Any, leaves: dict[tuple[Any, ...], Any], path: tuple[Any, ...] = ()) -> Any:
    """Returns the leaves, by their paths, as an element of the space."""
    children = getattr(space, "spaces", None)
    if children is None:
        return leaves[path]
    if isinstance(children, (list, tuple)):
        return tuple(_nest(child, leaves, (*path, index)) for index, child in enumerate(children))
    return {name: _nest(child, leaves, (*path, name)) for name, child in children.items()}


def _check_leaves(space: Any, paths: Sequence[Sequence[Any]], leaves: Sequence[np.ndarray]) -> None:
    """Raises if the arrays do not fit the leaves of a space."""
    for path, leaf in zip(paths, leaves):
        child = space
        for key in path:
            child = child.spaces[key]
        if tuple(getattr(child, "shape", None) or ()) != leaf.shape[1:]:
            raise SpaceError(
                f"expected the shape {leaf.shape[1:]} at {path}, as in the first environment, got {child}."
            )


# -- the process -----------------------------------------------------------------------------------


def _read(fd: int, size: int) -> bytes:
    """Reads `size` bytes; ends the process if the caller has ended."""
    data = bytearray()
    while len(data) < size:
        chunk = os.read(fd, min(size - len(data), 1 << 20))
        if not chunk:
            os._exit(0)
        data += chunk
    return bytes(data)


def serve(commands: int, replies: int, memory: int) -> None:
    """Executes commands until `CLOSE`, or until the caller has ended.

    Args:
        commands, replies: descriptors to read from and to write to.
        memory: descriptor of the shared memory.
    """
    worker = ForeignWorker(memory)
    op = CONSTRUCT
    while op != CLOSE:
        op, flags, slot, seq, count, size = COMMAND.unpack(_read(commands, COMMAND.size))
        rows = None if count == ALL_ROWS else array("i", _read(commands, 4 * count)).tolist()
        extra = loads(_read(commands, size)) if size else None
        try:
            reply = worker.execute(op, flags, slot, rows, extra)
            body = b"" if reply is None else PLAIN + dumps(reply, as_text)
        except BaseException as error:  # without a reply the caller would learn only that this process ended
            body = PLAIN + dumps(worker.failure(error), as_text)
        data = memoryview(REPLY.pack(seq, len(body)) + body)
        while data:
            data = data[os.write(replies, data) :]


def main() -> None:
    """Runs a worker process; its arguments are the descriptors for `serve`."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform == "linux":  # the kernel kills this process when the fork server ends
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    descriptors = [int(argument) for argument in sys.argv[1:]]
    for fd in descriptors:  # processes that simulators start must not inherit them
        os.set_inheritable(fd, False)
    code = 1
    try:
        serve(*descriptors)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)
