"""Loops over rows of MuJoCo, compiled by Numba: threads run them without Python's lock.

`mujoco.mj_step` takes Python's lock again after every row, and a thread that finds it taken goes to sleep. With two
threads, this costs a third of the time of a step of 1,024 HalfCheetahs. These loops call the same C functions, so
results are the same to the bit. Numba compiles them when the first simulator of a process is made, in a second.

Threads share the work by numbers in memory. `LEFT` is the number of parts that no thread has taken: the caller sets it
when the job is complete, and threads take parts by atomic subtraction. `ACTIVE` is the number of helping threads that
may have a part; the caller waits until it is 0. A helper that comes late finds no part, and touches nothing. `ASLEEP`
helpers read from a pipe, into which the caller writes a byte for each. A job that is published just before a helper
counts itself in `ASLEEP` does not wake it; the next one does.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from .libraries import mujoco_library, numba_library

LEFT, ACTIVE, ASLEEP, CLOSED, BYTES = 0, 64, 128, 192, 256  # offsets in bytes, in different cache lines
SHARED_SIZE = 320
BUSY_NS, PAUSE_NS = 200_000, 10**9  # without the core for so long, a thread does not poll for a second
_LIBRARY_FILES = "libmujoco*.so*", "libmujoco*.dylib"  # in the folder of the package


class Loops(NamedTuple):
    """The compiled functions, see `compiled_loops`.

    Attributes:
        run: `run(shared, writer, parts, job)` publishes a job, works on it, and returns when all of its parts are done.
        help: `help(shared, reader, limit, clock, job)` works on jobs until `CLOSED` is set. It polls for `limit`
            nanoseconds before it sleeps, unless other programs need the core. `clock` is the address of 16 bytes for
            this thread; `reader` and `writer` are the file descriptors of a pipe.
    """

    run: Callable[..., None]
    help: Callable[..., None]


class Job(NamedTuple):
    """A step or a reset of some rows, as arrays of intp: addresses of memory that the caller keeps alive, and sizes in
    bytes.

    Attributes:
        numbers: whether to reset, the number m of rows, and the number of rows of a part.
        rows: `[n]`, of which the first m are the rows to step or reset.
        sources: `[2]`, addresses of contiguous float64 arrays of m rows: the controls of a step (the second is unused),
            or the positions and the velocities of a reset.
        outputs: `[k]`, the address of the array `[n, ...]` of each field.
        models, data: `[n]`, the addresses of `mjModel` and `mjData`.
        inputs: `[3, n]`, the addresses of controls, positions and velocities in `mjData`.
        input_sizes: `[3]`, the size of a row of each.
        fields: `[k, n]`, the addresses of the fields in `mjData`.
        field_sizes: `[k]`, the size of a row of each.
        settings: steps of MuJoCo per step, and whether to compute the forces between bodies after a step.
    """

    numbers: np.ndarray
    rows: np.ndarray
    sources: np.ndarray
    outputs: np.ndarray
    models: np.ndarray
    data: np.ndarray
    inputs: np.ndarray
    input_sizes: np.ndarray
    fields: np.ndarray
    field_sizes: np.ndarray
    settings: np.ndarray


@cache
def compiled_loops() -> Loops:
    """Compiles the loops.

    Raises:
        ImportError: MuJoCo or Numba is not installed; the message names the extra.
    """
    numba, folder = numba_library(), Path(mujoco_library().__file__).parent
    paths = [path for name in _LIBRARY_FILES for path in sorted(folder.glob(name))]
    if not paths:
        names = ", ".join(_LIBRARY_FILES)
        raise ImportError(f"Expected MuJoCo's C library ({names}) in {folder}, got none. Install mujoco by pip.")
    library, system = ctypes.CDLL(str(paths[0])), ctypes.CDLL(None)
    atomic = _Atomic(_atomic("add"), _atomic("xchg"), _atomic("load"))
    njit = numba.njit(nogil=True)
    work = _make_work(njit, atomic, _make_do_part(njit, library, _function(system.memcpy, 3)))
    return Loops(_make_run(njit, atomic, system, work), _make_help(njit, atomic, system, work))


class _Atomic(NamedTuple):
    """Functions of an address and a number that return the value before."""

    add: Any
    exchange: Any
    load: Any


def _make_do_part(njit: Any, library: Any, copy_memory: Any) -> Any:
    mj_step, mj_forces = _function(library.mj_step, 2), _function(library.mj_rnePostConstraint, 2)
    mj_reset, mj_forward = _function(library.mj_resetData, 2), _function(library.mj_forward, 2)

    @njit
    def do_part(part: Any, job: Any) -> None:
        (numbers, rows, sources, outputs, models, data, inputs, input_sizes, fields, field_sizes, settings) = job
        resets, count, size = numbers
        frame_skip, with_forces = settings
        for i in range(part * size, min(part * size + size, count)):
            row = rows[i]
            model, state = models[row], data[row]
            if resets:
                mj_reset(model, state)
                for k in range(2):
                    copy_memory(inputs[1 + k, row], sources[k] + i * input_sizes[1 + k], input_sizes[1 + k])
                mj_forward(model, state)
            else:
                copy_memory(inputs[0, row], sources[0] + i * input_sizes[0], input_sizes[0])
                for _ in range(frame_skip):
                    mj_step(model, state)
                if with_forces:
                    mj_forces(model, state)
            for k in range(len(outputs)):
                copy_memory(outputs[k] + row * field_sizes[k], fields[k, row], field_sizes[k])

    return do_part


def _make_work(njit: Any, atomic: _Atomic, do_part: Any) -> Any:
    add, _, load = atomic

    @njit
    def work(shared: Any, job: Any) -> None:
        """Takes parts and does them until none is left."""
        while load(shared + LEFT, 0) > 0:
            part = add(shared + LEFT, -1) - 1
            if part >= 0:  # else another thread was faster
                do_part(part, job)

    return work


def _make_run(njit: Any, atomic: _Atomic, system: Any, work: Any) -> Any:
    _, exchange, load = atomic
    write_bytes, yield_core = _function(system.write, 3), _function(system.sched_yield, 0)

    @njit
    def run(shared: Any, writer: Any, parts: Any, job: Any) -> None:
        exchange(shared + LEFT, parts)
        if parts > 1:
            for _ in range(exchange(shared + ASLEEP, 0)):
                write_bytes(writer, shared + BYTES, 1)
        work(shared, job)
        while load(shared + ACTIVE, 0) > 0:
            yield_core()

    return run


def _make_help(njit: Any, atomic: _Atomic, system: Any, work: Any) -> Any:
    add, _, load = atomic
    read_bytes, yield_core = _function(system.read, 3, ctypes.c_ssize_t), _function(system.sched_yield, 0)
    read_clock, which = _function(system.clock_gettime, 2), time.CLOCK_MONOTONIC

    @njit
    def nanoseconds(clock: Any) -> Any:
        read_clock(which, clock)
        return load(clock, 0) * 10**9 + load(clock + 8, 0)

    @njit
    def help_others(shared: Any, reader: Any, limit: Any, clock: Any, job: Any) -> None:
        begin = nanoseconds(clock)
        resume_at = begin
        while load(shared + CLOSED, 0) == 0:
            if load(shared + LEFT, 0) > 0:
                add(shared + ACTIVE, 1)
                work(shared, job)
                add(shared + ACTIVE, -1)
                begin = nanoseconds(clock)
                continue
            now = nanoseconds(clock)
            if now - begin < limit and now >= resume_at:
                yield_core()
                if nanoseconds(clock) - now > BUSY_NS:  # another program has taken the core
                    resume_at = now + PAUSE_NS
            else:
                add(shared + ASLEEP, 1)
                while read_bytes(reader, shared + BYTES + 8, 1) != 1 and load(shared + CLOSED, 0) == 0:
                    yield_core()  # a signal has interrupted it
                begin = nanoseconds(clock)

    return help_others


def _function(function: Any, num_arguments: int, result: Any = None) -> Any:
    """Declares the arguments of a C function as addresses or sizes, and the type of its result."""
    function.restype, function.argtypes = result, [ctypes.c_ssize_t] * num_arguments
    return function


def _atomic(operation: str) -> Any:
    """Returns a function of an address and a number for Numba: an atomic operation that returns the value before."""
    from llvmlite import ir
    from numba import types
    from numba.extending import intrinsic

    @intrinsic
    def atomic(_context: Any, _address: Any, _number: Any) -> Any:
        def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            integer = ir.IntType(64)
            pointer = builder.inttoptr(arguments[0], integer.as_pointer())
            if operation == "load":
                return builder.load_atomic(pointer, "seq_cst", 8, typ=integer)
            return builder.atomic_rmw(operation, pointer, arguments[1], "seq_cst")

        return types.int64(types.int64, types.int64), generate

    return atomic
