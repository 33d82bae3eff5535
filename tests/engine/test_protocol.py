"""Commands and replies as bytes: they are decoded to what was encoded, however the bytes are split on the way."""

import os
import select
import time
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fixtures.faulty_envs import SilentError, UnpicklableError, UnprintableError
from tests.fixtures.interrupts import Interrupt

from vecrl.engine.backends import protocol
from vecrl.engine.backends.protocol import ReplyCodec, encode_command, read_command
from vecrl.engine.backends.worker_connection import Descriptors, ForkserverClient, WorkerConnection
from vecrl.engine.infos import InfoBatch, Infos
from vecrl.engine.worker import Command, Op, WorkerReply, describe_failure

COMMANDS = st.builds(
    Command,
    op=st.sampled_from(Op),
    seq=st.integers(0, 2**32 - 1),
    slot=st.integers(0, 2**16 - 1),
    reset_done=st.booleans(),
    masked=st.booleans(),
    rows=st.none() | st.lists(st.integers(-(2**31), 2**31 - 1), max_size=4),
)


@given(COMMANDS)
def test_commands_round_trip(command: Command) -> None:
    read, write = os.pipe()
    try:
        os.write(write, encode_command(command) * 2)
        os.close(write)
        assert read_command(read) == command
        assert read_command(read) == command
        assert read_command(read) is None, "the caller is gone"
    finally:
        os.close(read)


@pytest.mark.parametrize("size", range(1, 40))
def test_truncated_commands_end_the_worker(size: int) -> None:
    data = encode_command(Command(Op.STEP, 1, rows=[1, 2], extra="a"))
    assert len(data) > 39
    read, write = os.pipe()
    os.write(write, data[:size])
    os.close(write)
    assert read_command(read) is None
    os.close(read)


def _block(count: int, kind: Any = int) -> WorkerReply:
    return WorkerReply(infos=Infos(batches=[InfoBatch(4, np.array([(count, 0.5)] * 2, [("a", kind), ("b", float)]))]))


@pytest.mark.parametrize("chunk", [1, 7, 8, 64, 1 << 16])
def test_replies_round_trip(chunk: int) -> None:
    """Covers numbers that are sent raw from the second reply on, with dtypes that change in between."""
    sent = [
        None,
        _block(1),
        _block(2),
        WorkerReply(result=[1, "x"]),
        _block(3),
        _block(4, float),
        None,
        _block(5, float),
    ]
    encoder = ReplyCodec()
    data = b"".join(encoder.encode(seq, report) for seq, report in enumerate(sent))
    fds = [*os.pipe(), *os.pipe(), *os.pipe()]
    link = WorkerConnection(0, (4, 5), ForkserverClient.for_threads(1), Descriptors([fds[1], fds[2], fds[4]]))
    received: list[Any] = []
    for start in range(0, len(data), chunk):
        os.write(fds[3], data[start : start + chunk])
        while link.is_readable(link.replies_fd):
            link.read(received)
    assert [seq for _, seq, _ in received] == list(range(len(sent)))
    for (_, _, report), original in zip(received, sent, strict=True):
        assert (report is None) == (original is None)
        if report is not None and original is not None:
            assert list(report.infos.items()) == list(original.infos.items())
            assert report.result == original.result
    link.close()
    for index in (0, 3, 5):
        os.close(fds[index])


@pytest.mark.parametrize(
    "error",
    [ValueError("plain"), UnprintableError(1, "odd"), UnpicklableError(), SilentError()],
    ids=lambda e: type(e).__name__,
)
def test_unpicklable_exceptions_keep_their_text_and_class(error: Exception) -> None:
    failure = describe_failure((3,), "step", error, 1, 7)
    encoder, decoder = ReplyCodec(), ReplyCodec()
    data = encoder.encode(1, WorkerReply(failures=[failure]))
    (back,) = decoder.decode(data[8:]).failures
    assert (back.env_ids, back.error, back.traceback, back.step) == ((3,), failure.error, failure.traceback, 7)
    assert type(back.exception) is type(error)
    assert failure.exception is error, "what is encoded is left as it was"


def _link() -> tuple[WorkerConnection, int, int]:
    """Returns a link and the worker's ends of its pipes: the one for commands and the one for replies."""
    (expected, commands), (answers, actual), (status, other) = os.pipe(), os.pipe(), os.pipe()
    os.close(other)
    ends = Descriptors([commands, answers, status])
    return WorkerConnection(0, (0,), ForkserverClient.for_threads(1), ends), expected, actual


def test_ctrl_c_loses_no_part_of_a_long_reply() -> None:
    """Otherwise the next reply would be read as the rest of this one."""
    long, last = ReplyCodec().encode(1, WorkerReply(result=b"x" * 60_000)), ReplyCodec().encode(2, None)
    interrupt, at = Interrupt(0), 1
    while interrupt.left <= 0:
        link, expected, actual = _link()
        received: list[Any] = []
        for part in (long[:30_000], long[30_000:]):
            os.write(actual, part)
            with (interrupt := Interrupt(at, bytecodes=True)):
                link.read(received)
        os.write(actual, last)
        link.read(received)
        assert [seq for _, seq, _ in received] in ([1, 2], [2])
        for fd in (expected, actual):
            os.close(fd)
        link.close()
        at += 1


def test_ctrl_c_loses_no_part_of_a_long_command() -> None:
    long, last = Command(Op.INVOKE, 1, extra=b"x" * 200_000), Command(Op.STEP, 2)
    interrupt, at = Interrupt(0), 1
    while interrupt.left <= 0:
        link, expected, actual = _link()
        with (interrupt := Interrupt(at, bytecodes=True)):
            link.send(encode_command(long))
        os.set_blocking(expected, False)
        received = b""
        link.send(encode_command(last))
        while link.has_unsent:
            received += os.read(expected, 1 << 16)
            link.flush()
        received += os.read(expected, 1 << 18)
        assert received in (encode_command(long) + encode_command(last), encode_command(last))
        for fd in (expected, actual):
            os.close(fd)
        link.close()
        at += 1


def test_nothing_polls_while_other_programs_take_the_core(monkeypatch: pytest.MonkeyPatch) -> None:
    offers = 0

    def offer(seconds: float) -> None:
        nonlocal offers
        offers += 1
        time.sleep(seconds)

    read_end, write_end = os.pipe()
    poll = select.poll()
    poll.register(read_end, select.POLLIN)
    spin = protocol.Spin(0.02)
    monkeypatch.setattr(protocol, "_PAUSE_S", 0.1)
    monkeypatch.setattr(protocol, "_BUSY_S", 1.0)
    monkeypatch.setattr(protocol, "_yield_core", lambda: offer(0.0))
    assert spin(poll) == []
    assert offers > 2, "it polls for the whole time"
    monkeypatch.setattr(protocol, "_BUSY_S", 5e-4)
    monkeypatch.setattr(protocol, "_yield_core", lambda: offer(1e-3))
    offers = 0
    assert [spin(poll) for _ in range(3)] == [[], (), ()]
    assert offers == 1
    time.sleep(0.1)
    os.write(write_end, b"x")
    assert spin(poll) == [(read_end, select.POLLIN)]
    for fd in (read_end, write_end):
        os.close(fd)
