"""Rows between two arenas: what is written at one end is what is read at the other, of the rows asked and no others."""

import numpy as np
import pytest
from gymnasium import spaces
from tests.conformance.zoo import SPACES

from vecrl.engine.arena import Arena
from vecrl.engine.backends.freight import Freight
from vecrl.engine.layout import Layout
from vecrl.engine.worker import Command, Op

N, START, STOP = 7, 2, 6
ROWS = {"all": None, "some": [0, 2], "some begin anew": [1, ~3], "none": []}


def both_ends(observation: spaces.Space, action: spaces.Space) -> tuple[Arena, Arena, Freight, Freight]:
    layouts = Layout(observation), Layout(action)
    here, there = Arena(*layouts, N, 3), Arena(*layouts, N, 1)
    return here, there, Freight(here, START, STOP), Freight(there, START, STOP)


def scribble(arrays: list, seed: int) -> None:
    """Fill arrays with random bytes; flags are flags all the same."""
    random = np.random.default_rng(seed)
    for array in arrays:
        if array is None:
            continue
        if array.dtype == bool:
            array[...] = random.random(array.shape) < 0.5
        else:
            array.view(np.uint8)[...] = random.integers(0, 256, array.view(np.uint8).shape)


def leaves(arena: Arena, slot: int) -> list:
    s = arena.slots[slot]
    return [s.flags.T, s.reward, s.returns, s.lengths, *[leaf for leaf in s.obs if leaf is not None]]


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("name", ["box", "dict", "dict_of_text", "image", "text"])
def test_results_arrive_as_they_were(name: str, rows: str) -> None:
    here, there, caller, worker = both_ends(SPACES[name], SPACES["discrete"])
    scribble(leaves(there, 0)[1:] + there.final_obs, 1)
    scribble([there.slots[0].flags], 2)
    scribble(leaves(here, 1)[1:] + here.final_obs, 3)
    before = [leaf.copy() for leaf in leaves(here, 1)], [None if f is None else f.copy() for f in here.final_obs]
    asked = Command(Op.STEP, slot=1, rows=ROWS[rows])
    data = worker.pack(Command(Op.STEP, slot=0, rows=ROWS[rows]))
    caller.take(asked, data)
    chosen = np.zeros(N, bool)
    chosen[START:STOP] = ROWS[rows] is None
    chosen[[START + (r if r >= 0 else ~r) for r in ROWS[rows] or []]] = True
    for mine, theirs, old in zip(leaves(here, 1), leaves(there, 0), before[0], strict=True):
        assert mine[chosen].tobytes() == theirs[chosen].tobytes()
        assert mine[~chosen].tobytes() == old[~chosen].tobytes()
    terminated, truncated, begun = there.slots[0].flags
    ended = (terminated | truncated) & begun & chosen
    for mine, theirs, old in zip(here.final_obs, there.final_obs, before[1], strict=True):
        if mine is not None:
            assert mine[ended].tobytes() == theirs[ended].tobytes()
            assert mine[~ended].tobytes() == old[~ended].tobytes()


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("name", ["discrete", "dict", "dict_of_text", "text"])
def test_actions_arrive_as_they_were(name: str, rows: str) -> None:
    here, there, caller, worker = both_ends(SPACES["box"], SPACES[name])
    scribble([*here.actions, here.begin], 1)
    command = Command(Op.STEP, rows=ROWS[rows], masked=rows == "all")
    worker.take_actions(command, caller.pack_actions(command))
    where = [START + (r if r >= 0 else ~r) for r in (range(STOP - START) if ROWS[rows] is None else ROWS[rows])]
    for mine, theirs in zip(here.actions, there.actions, strict=True):
        if mine is not None:
            assert mine[where].tobytes() == theirs[where].tobytes()
            assert not theirs[:START].any()
    assert (there.begin == (here.begin if rows == "all" else 0))[START:STOP].all()


def test_what_has_no_rows_carries_none() -> None:
    *_, caller, worker = both_ends(SPACES["box"], SPACES["box"])
    for op in (Op.CONSTRUCT, Op.ATTACH, Op.INVOKE, Op.CLOSE):
        assert caller.pack_actions(Command(op)) == worker.pack(Command(op)) == b""
    assert caller.pack_actions(Command(Op.RESET)) == b"", "a reset has no actions"
