"""Loops over rows of MuJoCo, compiled by Numba: threads run them without Python's lock.

`mujoco.mj_step` takes Python's lock again after every row, and a thread that finds it taken goes to sleep: with two
threads, a third of the time of 1,024 HalfCheetahs. These loops call the same C functions, so results are the same to
the bit. Numba takes a second to compile them, once in a process. This module must not know Python's threads.

Threads share the work by numbers in memory. `LEFT` is the number of parts that no thread has taken: the caller sets it
when the job is complete, and threads take parts by atomic subtraction. `ACTIVE` is the number of helping threads that
may have a part; the caller waits until it is 0. A helper that comes late finds no part, and touches nothing. `ASLEEP`
helpers read from a pipe, into which the caller writes a byte for each. One that is about to sleep misses a job at most.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..imports import import_library

LEFT, ACTIVE, ASLEEP, CLOSED, BYTES = 0, 64, 128, 192, 256  # offsets in bytes, in different cache lines
SHARED_SIZE = 320
_LIBRARY_FILES = "libmujoco*.so*", "libmujoco*.dylib", "mujoco.dll"  # in the folder of the package


class Loops(NamedTuple):
    """The compiled functions, see `compiled_loops`.

    Attributes:
        run: `run(shared, writer, parts, job)` publishes a job, works on it, and returns when all of its parts are done.
        help: `help(shared, reader, max_polls, job)` works on jobs until `CLOSED` is set. It sleeps after `max_polls`
            polls without work. `reader` and `writer` are the file descriptors of a pipe.
    """

    run: Callable[..., None]
    help: Callable[..., None]


class Job(NamedTuple):
    """Arrays of intp that tell what to do: sizes in bytes, and addresses of memory that the caller keeps alive.

    Attributes:
        numbers: whether to reset, the number of rows, and the number of rows of a part.
        rows: `[n]`, the rows to step or reset.
        sources: `[2]`, of the inputs: controls to step; positions and velocities to reset. One after another.
        outputs: `[k]`, of the arrays `[n, ...]` for the fields.
        models, data: `[n]`, of `mjModel` and `mjData`.
        inputs: `[3, n]`, of the controls, positions and velocities in `mjData`.
        input_sizes: `[3]`, of one row.
        fields: `[k, n]`, of the fields in `mjData`.
        field_sizes: `[k]`, of one row.
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
    hint = 'is not installed: pip install "vecrl[mujoco]"'
    numba = import_library("numba", f"Numba {hint}")
    folder = Path(import_library("mujoco", f"MuJoCo {hint}").__file__).parent
    library = ctypes.CDLL(str(next(path for name in _LIBRARY_FILES for path in sorted(folder.glob(name)))))
    system, atomic = ctypes.CDLL(None), _Atomic(_atomic("add"), _atomic("xchg"), _atomic("load"))
    compiled = numba.njit(nogil=True)
    work = _work(compiled, atomic, _do_part(compiled, library, _function(system.memcpy, 3)))
    return Loops(_run(compiled, atomic, system, work), _help(compiled, atomic, system, work))


class _Atomic(NamedTuple):
    """Functions of an address and a number that return the value before."""

    add: Any
    exchange: Any
    load: Any


def _do_part(compiled: Any, library: Any, copy_memory: Any) -> Any:
    mj_step, mj_forces = _function(library.mj_step, 2), _function(library.mj_rnePostConstraint, 2)
    mj_reset, mj_forward = _function(library.mj_resetData, 2), _function(library.mj_forward, 2)

    @compiled
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


def _work(compiled: Any, atomic: _Atomic, do_part: Any) -> Any:
    add, _, load = atomic

    @compiled
    def work(shared: Any, job: Any) -> None:
        """Takes parts and does them until none is left."""
        while load(shared + LEFT, 0) > 0:
            part = add(shared + LEFT, -1) - 1
            if part >= 0:  # else another thread was faster
                do_part(part, job)

    return work


def _run(compiled: Any, atomic: _Atomic, system: Any, work: Any) -> Any:
    _, exchange, load = atomic
    write_bytes, yield_core = _function(system.write, 3), _function(system.sched_yield, 0)

    @compiled
    def run(shared: Any, writer: Any, parts: Any, job: Any) -> None:
        exchange(shared + LEFT, parts)
        if parts > 1:
            for _ in range(exchange(shared + ASLEEP, 0)):
                write_bytes(writer, shared + BYTES, 1)
        work(shared, job)
        while load(shared + ACTIVE, 0) > 0:
            yield_core()

    return run


def _help(compiled: Any, atomic: _Atomic, system: Any, work: Any) -> Any:
    add, _, load = atomic
    read_bytes, yield_core = _function(system.read, 3), _function(system.sched_yield, 0)

    @compiled
    def help_others(shared: Any, reader: Any, max_polls: Any, job: Any) -> None:
        polls = 0
        while load(shared + CLOSED, 0) == 0:
            if load(shared + LEFT, 0) > 0:
                add(shared + ACTIVE, 1)
                work(shared, job)
                add(shared + ACTIVE, -1)
                polls = 0
            elif polls < max_polls:
                polls += 1
                yield_core()
            else:
                add(shared + ASLEEP, 1)
                read_bytes(reader, shared + BYTES + 8, 1)
                polls = 0

    return help_others


def _function(function: Any, num_arguments: int) -> Any:
    """Declares the arguments of a C function as addresses or sizes, and no result."""
    function.restype, function.argtypes = None, [ctypes.c_ssize_t] * num_arguments
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
