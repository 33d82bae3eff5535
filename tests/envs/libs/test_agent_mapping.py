"""How `AgentParts` divides observations and joins actions. MuJoCo Playground's environments use it, see its tests."""

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict

from vecrl.envs import MujocoPlaygroundAgentMapping, MujocoPlaygroundAgentSpec
from vecrl.envs.libs.agent_mapping import KNOWN_MARL_MAPPINGS, AgentParts, find_mapping
from vecrl.errors import SpaceError

CPU = torch.device("cpu")
OBS = Box(-np.inf, np.inf, (4,), np.float32)
VALUES = torch.arange(8.0).reshape(2, 4)
FRONT = MujocoPlaygroundAgentSpec("front", [2, 0], [0, 1, 3])
BACK = MujocoPlaygroundAgentSpec("back", [1], [2])
AGENTS = [FRONT, BACK]


def make_parts(mode: Any = "none", agents: Any = AGENTS, space: Any = OBS, actions: int = 3) -> AgentParts:
    return AgentParts(MujocoPlaygroundAgentMapping(agents, mode), space, actions)


@pytest.mark.parametrize(
    ("mode", "front", "back"),
    [
        ("none", [4, 5, 7], [6]),
        ("max", [1, 0, 4, 5, 7], [0, 1, 6, 0, 0]),
        ("concat", [4, 5, 0, 7], [0, 0, 6, 0]),
    ],
)
def test_observations(mode: str, front: list[float], back: list[float]) -> None:
    parts = make_parts(mode)
    divided = parts.divide([VALUES])
    assert {name: values[1].tolist() for name, values in divided.items()} == {"front": front, "back": back}
    observations, _, rewards = parts.specs(CPU)
    for name, spec in observations.items():
        assert spec["observation"].expand(2, -1).is_in(divided[name])
        assert rewards[name]["reward"].shape == (1,)


@pytest.mark.parametrize(
    ("mode", "front", "back"), [("none", [1, 2], [3]), ("max", [1, 2], [3, 9]), ("concat", [2, 9, 1], [9, 3, 9])]
)
def test_actions(mode: str, front: list[float], back: list[float]) -> None:
    """Numbers in positions of others, here 9, do not count."""
    parts = make_parts(mode)
    actions = [torch.tensor([values], dtype=torch.float32) for values in (front, back)]
    assert parts.join(actions).tolist() == [[2, 3, 1]]
    _, specs, _ = parts.specs(CPU)
    assert [spec["action"].shape for spec in specs.values()] == [(len(front),), (len(back),)]


def test_observations_in_a_dict() -> None:
    """Parts are joined in the order of the agent's dict."""
    space = Dict({"state": OBS, "wind": Box(-1, 1, (2,), np.float32)})
    agents = [
        MujocoPlaygroundAgentSpec("a", [0], {"wind": [1], "state": [3, 0]}),
        MujocoPlaygroundAgentSpec("b", [], {}),
    ]
    parts = make_parts(agents=agents, space=space, actions=1)
    assert parts.entries == ["state", "wind"]
    divided = parts.divide([VALUES, torch.tensor([[10.0, 11.0], [20.0, 21.0]])])
    assert divided["a"].tolist() == [[11, 3, 0], [21, 7, 4]]
    assert divided["b"].shape == (2, 0)
    with pytest.raises(SpaceError, match="homogenization_mode='none' for observations in a dict, got 'max'"):
        make_parts("max", agents, space, 1)
    with pytest.raises(SpaceError, match=r"a dict with keys of \['state', 'wind'\] as observation_indices of 'front'"):
        make_parts(space=space)
    with pytest.raises(SpaceError, match=r"positions from 0 to 1 in 'wind' as observation_indices of 'a', got \[2\]"):
        make_parts(agents=[MujocoPlaygroundAgentSpec("a", [0], {"wind": [2]})], space=space, actions=1)


def test_known_mappings() -> None:
    for name, (obs_size, action_size) in {"halfcheetah_6x1": (17, 6), "walker2d_2x3": (24, 6)}.items():
        parts = AgentParts(find_mapping(name), Box(-1, 1, (obs_size,)), action_size)
        assert parts.names == [f"agent_{i}" for i in range(len(KNOWN_MARL_MAPPINGS[name].agents))]
    with pytest.raises(ValueError, match="one of 'halfcheetah_6x1', 'walker2d_2x3', got 'ant_4x2'"):
        find_mapping("ant_4x2")
    wrong: Any = 3
    with pytest.raises(TypeError, match="a MujocoPlaygroundAgentMapping or a name, got 3"):
        find_mapping(wrong)


@pytest.mark.parametrize(
    ("agents", "message"),
    [
        ([FRONT], r"each of the actions 0 to 2 to belong to one agent, got \[0, 2\]"),
        ([FRONT, MujocoPlaygroundAgentSpec("b", [0, 1], [])], r"got \[0, 0, 1, 2\]"),
        ([FRONT, MujocoPlaygroundAgentSpec("b", [1], [4])], r"from 0 to 3 in 'observation' .* of 'b', got \[4\]"),
        (
            [FRONT, MujocoPlaygroundAgentSpec("b", [1], [True, False])],
            r"for the agent .b., got \[True",
        ),
        ([FRONT, MujocoPlaygroundAgentSpec("b", [1.0], [])], r"for the agent 'b', got \[1.0\]"),
        ([FRONT, MujocoPlaygroundAgentSpec("b", [1], {"x": [4]})], "a list as observation_indices of 'b'"),
    ],
)
def test_mappings_that_do_not_fit(agents: Any, message: str) -> None:
    with pytest.raises(SpaceError, match=message):
        make_parts(agents=agents)


def test_invalid_mappings() -> None:
    wrong: Any = "mean"
    with pytest.raises(ValueError, match="homogenization_mode to be one of 'none', 'max', 'concat', got 'mean'"):
        MujocoPlaygroundAgentMapping(AGENTS, wrong)
    wrong_names: Any = [], ["a", "a"], ["done"], ["_reset"], [("a",)]
    for names in wrong_names:
        with pytest.raises(ValueError, match="with different texts as names"):
            MujocoPlaygroundAgentMapping([MujocoPlaygroundAgentSpec(name, [], []) for name in names])
    with pytest.raises(SpaceError, match="observations that are vectors"):
        make_parts(space=Box(-1, 1, (2, 2)))
