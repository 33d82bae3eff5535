"""Rows between two batch buffers: the requested rows, and no others, arrive as they were written."""

import numpy as np
import pytest
from gymnasium import spaces
from tests.fixtures.gym_envs import SPACES

from vecrl.engine.backends.ray_cluster.worker import RowCodec
from vecrl.engine.batch_buffers import BatchBuffers
from vecrl.engine.space_layout import Layout
from vecrl.engine.worker import Command, Op

N, START, STOP = 7, 2, 6
ROWS = {"all": None, "some": [0, 2], "some are reset": [1, ~3], "none": []}


def both_ends(observation: spaces.Space, action: spaces.Space) -> tuple[BatchBuffers, BatchBuffers, RowCodec, RowCodec]:
    layouts = Layout(observation), Layout(action)
    caller_buffers, worker_buffers = BatchBuffers(*layouts, N, 3), BatchBuffers(*layouts, N, 1)
    return caller_buffers, worker_buffers, RowCodec(caller_buffers, START, STOP), RowCodec(worker_buffers, START, STOP)


def overwrite(arrays: list, seed: int) -> None:
    """Fills arrays with random bytes; flags get valid booleans."""
    random = np.random.default_rng(seed)
    for array in arrays:
        if array is None:
            continue
        if array.dtype == bool:
            array[...] = random.random(array.shape) < 0.5
        else:
            array.view(np.uint8)[...] = random.integers(0, 256, array.view(np.uint8).shape)


def leaves(buffers: BatchBuffers, slot: int) -> list:
    s = buffers.slots[slot]
    return [s.flags.T, s.reward, s.returns, s.lengths, *[leaf for leaf in s.obs if leaf is not None]]


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("name", ["box", "dict", "dict_of_text", "image", "text"])
def test_results_round_trip(name: str, rows: str) -> None:
    caller_buffers, worker_buffers, caller, worker = both_ends(SPACES[name], SPACES["discrete"])
    overwrite(leaves(worker_buffers, 0)[1:] + worker_buffers.final_obs, 1)
    overwrite([worker_buffers.slots[0].flags], 2)
    overwrite(leaves(caller_buffers, 1)[1:] + caller_buffers.final_obs, 3)
    before = (
        [leaf.copy() for leaf in leaves(caller_buffers, 1)],
        [None if f is None else f.copy() for f in caller_buffers.final_obs],
    )
    asked = Command(Op.STEP, slot=1, rows=ROWS[rows])
    data = worker.pack(Command(Op.STEP, slot=0, rows=ROWS[rows]))
    caller.unpack(asked, data)
    chosen = np.zeros(N, bool)
    chosen[START:STOP] = ROWS[rows] is None
    chosen[[START + (r if r >= 0 else ~r) for r in ROWS[rows] or []]] = True
    for actual, expected, old in zip(leaves(caller_buffers, 1), leaves(worker_buffers, 0), before[0], strict=True):
        assert actual[chosen].tobytes() == expected[chosen].tobytes()
        assert actual[~chosen].tobytes() == old[~chosen].tobytes()
    terminated, truncated, was_reset = worker_buffers.slots[0].flags
    ended = (terminated | truncated) & was_reset & chosen
    for actual, expected, old in zip(caller_buffers.final_obs, worker_buffers.final_obs, before[1], strict=True):
        if actual is not None:
            assert actual[ended].tobytes() == expected[ended].tobytes()
            assert actual[~ended].tobytes() == old[~ended].tobytes()


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("name", ["discrete", "dict", "dict_of_text", "text"])
def test_actions_round_trip(name: str, rows: str) -> None:
    caller_buffers, worker_buffers, caller, worker = both_ends(SPACES["box"], SPACES[name])
    overwrite([*caller_buffers.actions, caller_buffers.reset_mask], 1)
    command = Command(Op.STEP, rows=ROWS[rows], masked=rows == "all")
    worker.unpack_actions(command, caller.pack_actions(command))
    where = [START + (r if r >= 0 else ~r) for r in (range(STOP - START) if ROWS[rows] is None else ROWS[rows])]
    for actual, expected in zip(caller_buffers.actions, worker_buffers.actions, strict=True):
        if actual is not None:
            assert actual[where].tobytes() == expected[where].tobytes()
            assert not expected[:START].any()
    assert (worker_buffers.reset_mask == (caller_buffers.reset_mask if rows == "all" else 0))[START:STOP].all()


def test_other_commands_carry_no_rows() -> None:
    *_, caller, worker = both_ends(SPACES["box"], SPACES["box"])
    for op in (Op.CONSTRUCT, Op.ATTACH, Op.INVOKE, Op.CLOSE):
        assert caller.pack_actions(Command(op)) == worker.pack(Command(op)) == b""
    assert caller.pack_actions(Command(Op.RESET)) == b"", "a reset has no actions"
