"""Damaged states of batched simulators: they are refused and change nothing, or can be replaced by the state before."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.vector.utils import create_empty_array
from tests.fixtures.equality import assert_same
from torch import Tensor

from vecrl.errors import VecrlError
from vecrl.simulators.registry import find_entry
from vecrl.vector.factory import make_simulator

ROWS = 3
LIBRARIES = ("brax::inverted_pendulum", "gymnax::CartPole-v1", "jumanji::Snake-v1", "vmas::balance")
NAMES = [
    *("native::CartPole-v1", "native::Acrobot-v1", "mujoco::Hopper-v5"),
    *(pytest.param(name, marks=[pytest.mark.simulators, pytest.mark.filterwarnings("ignore")]) for name in LIBRARIES),
]


def make(name: str) -> Any:
    entry, env_name = find_entry(name)
    simulator = make_simulator(entry, env_name, ROWS)
    simulator.reset([1, 2, 3])
    step(simulator)
    return simulator


def step(simulator: Any) -> Any:
    zeros = create_empty_array(simulator.action_space, ROWS, fn=np.zeros)
    if isinstance(zeros, dict):
        result = simulator.step({name: torch.as_tensor(action) for name, action in zeros.items()})
    else:
        result = simulator.step(torch.as_tensor(zeros))
    return result.next_obs, result.reward


def wrong_values(value: Tensor) -> dict[str, Any]:
    """Returns values that no simulator can take in place of an entry of its state, by what is wrong."""
    other = torch.int64 if value.is_floating_point() else torch.float64
    return {
        "None": None,
        "a text": "text",
        "a number": 3,
        "a row less": value[:-1],
        "a row more": torch.cat([value, value[:1]]),
        "one more dimension": value[..., None],
        "one number for each row": value.flatten(1)[:, :1].squeeze(1) if value.ndim > 1 else value[:, None],
        "another kind": torch.zeros(value.shape, dtype=other),
        "complex": torch.zeros(value.shape, dtype=torch.complex64),
        "without memory": torch.zeros(value.shape, dtype=value.dtype, device="meta"),
    }


def wrong_states(state: dict[str, Tensor]) -> Iterator[tuple[str, Any]]:
    for whole in (None, 3, "text", [], [1], {}, {"x": 1}, {3: torch.zeros(ROWS)}):
        yield repr(whole), whole
    names = list(state)
    for name in dict.fromkeys([names[0], names[len(names) // 2], names[-1]]):
        for what, value in wrong_values(state[name]).items():
            yield f"{name} is {what}", {**state, name: value}


def copies(state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in state.items()}


@pytest.mark.parametrize("name", NAMES)
def test_wrong_states_are_refused_and_change_nothing(name: str) -> None:
    simulator = make(name)
    state, problems = copies(simulator.get_state()), []
    for what, wrong in wrong_states(state):
        try:
            simulator.set_state(wrong)
            problems.append(f"{what}: accepted")
        except VecrlError:
            pass
        except Exception as error:
            problems.append(f"{what}: {type(error).__name__}: {error!s:.150}")
    assert_same(simulator.get_state(), state)
    simulator.close()
    assert not problems, "\n".join(["", *problems])


def flipped(value: Tensor, generator: torch.Generator) -> Tensor:
    """Returns a copy in which one byte has another value."""
    raw = value.contiguous().clone()
    flat = raw.view(-1).view(torch.uint8) if raw.numel() else raw
    if flat.numel():
        place = int(torch.randint(flat.numel(), (), generator=generator))
        flat[place] = int(torch.randint(256, (), generator=generator))
    return raw


@pytest.mark.parametrize("name", NAMES)
def test_damaged_numbers_end_no_process_and_can_be_replaced(name: str) -> None:
    """What numbers mean is known to a library only: it may get any, and raise any error in a step."""
    simulator, generator = make(name), torch.Generator().manual_seed(0)
    state, accepted = copies(simulator.get_state()), 0
    for turn in range(60):
        key = list(state)[turn % len(state)]
        damaged = {**state, key: flipped(state[key], generator)}
        with suppress(VecrlError):
            simulator.set_state(damaged)
            accepted += 1
            with suppress(Exception):
                step(simulator)
    simulator.set_state(state)
    before = step(simulator)
    simulator.set_state(state)
    assert_same(step(simulator), before)
    simulator.close()
    assert accepted
