"""VMAS in dialect 3 and as a batched simulator."""

from __future__ import annotations

from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from tensordict import TensorDict

from vecrl.envs import MarlGroupMapType, check_env_specs
from vecrl.envs.libs.vmas import VmasEnv, VmasWrapper
from vecrl.errors import SpaceError, StateError
from vecrl.simulators.vmas import VmasSimulator, make_batch, names, random_stream, vmas_library
from vecrl.testing import BatchSimulatorConformance, EnvConformance

pytestmark = pytest.mark.simulators


# -- as a batched simulator


def sample_actions(simulator: Any, step: int) -> Any:
    return BatchSimulatorConformance().action(simulator, step)


class TestBalance(BatchSimulatorConformance):
    num_steps = 12
    tolerance = 1e-5  # sums of forces are rounded differently in batches of other sizes

    def make(self, num_envs: int) -> VmasSimulator:
        return make_batch("balance", num_envs, max_steps=5)


class TestDiscreteTag(BatchSimulatorConformance):
    num_steps = 8
    tolerance = 1e-5

    def make(self, num_envs: int) -> VmasSimulator:
        return make_batch("simple_tag", num_envs, max_steps=4, continuous_actions=False, render_mode="rgb_array")


def test_spaces_have_an_entry_per_agent() -> None:
    sim = make_batch("simple_tag", 2, continuous_actions=False)
    assert sim.agents == ["adversary_0", "adversary_1", "adversary_2", "agent_0"]
    assert sim.observation_space["agent_0"] == gymnasium.spaces.Box(-np.inf, np.inf, (14,), np.float32)
    assert sim.action_space["agent_0"] == gymnasium.spaces.Discrete(9)


def test_the_reward_is_the_sum_over_agents() -> None:
    sim = make_batch("simple_adversary", 3)
    sim.reset([1, 2, 3])
    step = sim.step(sample_actions(sim, 0))
    rewards = [step.info[f"{agent}/reward"] for agent in sim.agents]
    torch.testing.assert_close(step.reward, torch.stack(rewards).sum(0))
    assert len({float(reward[0]) for reward in rewards}) > 1


def test_infos_are_named_by_agent_and_can_be_omitted() -> None:
    for infos, expected in ((True, {"reward", "pos_rew", "ground_rew"}), (False, {"reward"})):
        sim = make_batch("balance", 2, infos=infos)
        sim.reset()
        info = sim.step(sample_actions(sim, 0)).info
        assert {key.partition("/")[2] for key in info if key.startswith("agent_0/")} == expected


def test_a_time_limit_truncates() -> None:
    sim = make_batch("simple_tag", 2, max_steps=1)
    sim.reset([0, 1])
    step = sim.step(sample_actions(sim, 0))
    assert step.truncated.all()
    assert not step.terminated.any()


def test_a_reset_of_no_row_returns_the_observations_of_the_step() -> None:
    sim = make_batch("balance", 2)
    sim.reset([0, 1])
    step, state = sim.step(sample_actions(sim, 0)), sim.get_state()
    no_row = torch.zeros(2, dtype=torch.bool)
    assert sim.reset_where(no_row)["agent_0"] is step.next_obs["agent_0"]
    sim.step(sample_actions(sim, 1))
    sim.set_state(state)
    assert torch.equal(sim.reset_where(no_row)["agent_0"], step.next_obs["agent_0"])


def test_resets_of_all_rows_at_once_are_one_call_of_vmas() -> None:
    """With `independent_rows=False`, row 1 depends on row 0's seed; other generators are not touched."""
    sim = make_batch("balance", 3, independent_rows=False)
    calls: list[int] = []
    reset_at = sim.env.reset_at
    sim.env.reset_at = lambda row, **kwargs: (calls.append(row), reset_at(row, **kwargs))
    torch.manual_seed(7)
    first = sim.reset([1, 2, 3])
    drawn = torch.rand(1)
    assert calls == []
    assert not torch.equal(first["agent_0"][1], sim.reset([4, 2, 3])["agent_0"][1])
    sim.reset_where(torch.tensor([False, True, True]))
    assert calls == [1, 2]
    torch.manual_seed(7)
    assert torch.equal(drawn, torch.rand(1))


@pytest.mark.parametrize("wrapped", [False, True])
def test_infos_are_float32_before_and_after_the_first_step(wrapped: bool) -> None:
    """The scenario returns a float32 before the first step, and int64 after it."""
    if wrapped:
        env = VmasWrapper(vmas_library().make_env("discovery", num_envs=2, n_agents=3))
    else:
        env = VmasEnv("discovery", num_envs=2, n_agents=3)
    rollout = env.rollout(3)
    for info in (rollout["agents", "info"], rollout["next", "agents", "info"]):
        assert {value.dtype for value in info.values()} == {torch.float32}
    assert env.observation_spec["agents", "info"].is_in(env.reset()["agents", "info"])


@pytest.mark.parametrize("scenario", ["simple_push", "simple_reference", "discovery", "joint_passage"])
def test_states_hold_what_a_scenario_keeps_for_all_rows(scenario: str) -> None:
    """Goals that all rows share, colors and targets are restored in a simulator with others."""
    sim, other = make_batch(scenario, 4), make_batch(scenario, 4)
    sim.reset([0, 1, 2, 3])
    sim.step(sample_actions(sim, 0))
    state = sim.get_state()
    for seed in range(4):  # so that some of them have another goal
        other.reset([seed] * 4)
        other.set_state(state)
        sim.set_state(state)
        for number in range(3):
            first, second = (each.step(sample_actions(each, number)) for each in (sim, other))
            for agent in sim.agents:
                assert torch.equal(first.next_obs[agent], second.next_obs[agent])
                assert torch.equal(first.info[f"{agent}/reward"], second.info[f"{agent}/reward"])


def test_states_of_other_arguments_are_refused() -> None:
    with pytest.raises(StateError, match="Restore it in a simulator that was made with the same arguments"):
        make_batch("balance", 2).set_state(make_batch("balance", 2, n_agents=5).get_state())


def test_frames_show_the_row() -> None:
    sim = make_batch("simple", 2, render_mode="rgb_array")
    sim.reset([0, 5])
    first, second = sim.render(0), sim.render(1)
    assert first is not None
    assert (first.dtype, first.shape) == (np.uint8, (700, 700, 3))
    assert (first != second).any()
    sim.close()


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="Expected the name of a scenario of VMAS"):
        make_batch("nope", 2)
    with pytest.raises(ValueError, match="Expected render_mode to be None or 'rgb_array' for VMAS, got 'human'"):
        make_batch("balance", 2, render_mode="human")
    with pytest.raises(SpaceError, match="Expected no reset options for VMAS"):
        make_batch("balance", 2).reset(options={"x": 1})


# -- in dialect 3


class TestBalanceEnv(EnvConformance):
    num_steps = 8

    def make(self) -> VmasEnv:
        return VmasEnv("balance", num_envs=2, max_steps=5)


class TestGroupsEnv(EnvConformance):
    num_steps = 6

    def make(self) -> VmasEnv:
        return VmasEnv("simple_tag", num_envs=2, max_steps=4, continuous_actions=False)


@pytest.mark.parametrize("scenario", names())
def test_all_scenarios_fit_their_specs(scenario: str) -> None:
    env = VmasEnv(scenario, num_envs=2, seed=0)
    root = env.reset()
    assert env.observation_spec.is_in(root)
    for _ in range(2):
        step, root = env.step_and_maybe_reset(env.rand_action(root))
        assert env.full_action_spec.is_in(step)
        assert env.observation_spec.is_in(step["next"])
        assert env.full_reward_spec.is_in(step["next"])
        assert env.full_done_spec.is_in(step["next"])
    assert {*step["next"].keys()} == {*env.group_map, "done", "terminated"}


# what TorchRL gives for the scenarios
GROUPS = {
    "balance": {"agents": ["agent_0", "agent_1", "agent_2"]},
    "simple": {"agents": ["agent_0"]},
    "asym_joint": {"agents": ["agent 0", "agent 1"]},
    "football": {"agent_blue": ["agent_blue_0", "agent_blue_1", "agent_blue_2"]},
    "simple_crypto": {"eve": ["eve_0"], "bob": ["bob_0"], "alice": ["alice_0"]},
    "diff_drive": {"diff_drive": ["diff_drive_0"], "holo_rot": ["holo_rot_1"]},
    "simple_world_comm": {
        "lead_adversary": ["lead_adversary_0"],
        "adversary": ["adversary_1", "adversary_2", "adversary_3"],
        "agent": ["agent_0", "agent_1"],
    },
}


@pytest.mark.parametrize("scenario", GROUPS)
def test_agents_are_grouped_by_their_types(scenario: str) -> None:
    assert VmasEnv(scenario, num_envs=2).group_map == GROUPS[scenario]


def test_layout() -> None:
    """Keys, shapes and dtypes that TorchRL gives."""
    rollout = VmasEnv("balance", num_envs=3, n_agents=5).rollout(2)
    found = {key: (tuple(value.shape), value.dtype) for key, value in rollout.items(True, True)}
    flag = ((3, 2, 1), torch.bool)
    observed = {
        ("agents", "observation"): ((3, 2, 5, 16), torch.float32),
        ("agents", "info", "pos_rew"): ((3, 2, 5, 1), torch.float32),
        ("agents", "info", "ground_rew"): ((3, 2, 5, 1), torch.float32),
    }
    assert found == {
        "done": flag,
        "terminated": flag,
        ("next", "done"): flag,
        ("next", "terminated"): flag,
        ("agents", "action"): ((3, 2, 5, 2), torch.float32),
        ("next", "agents", "reward"): ((3, 2, 5, 1), torch.float32),
        **observed,
        **{("next", *key): value for key, value in observed.items()},
    }


@pytest.mark.parametrize(
    ("options", "spec", "shape"),
    [
        ({}, "Categorical", (2, 3)),
        ({"categorical_actions": False}, "OneHot", (2, 3, 9)),
        ({"multidiscrete_actions": True}, "MultiCategorical", (2, 3, 2)),
        ({"multidiscrete_actions": True, "categorical_actions": False}, "MultiOneHot", (2, 3, 6)),
    ],
)
def test_discrete_actions(options: dict[str, Any], spec: str, shape: tuple[int, ...]) -> None:
    env = VmasEnv("balance", num_envs=2, continuous_actions=False, **options)
    action_spec = env.full_action_spec["agents", "action"]
    assert (type(action_spec).__name__, tuple(action_spec.shape), action_spec.dtype) == (spec, shape, torch.int64)
    check_env_specs(env)


def test_one_hot_actions_are_those_of_indices() -> None:
    make = partial(VmasEnv, "balance", num_envs=2, continuous_actions=False, seed=3)
    indices, one_hot = make(), make(categorical_actions=False)
    index = torch.tensor([[1, 2, 3], [4, 5, 6]])
    rewards = []
    for env, action in ((indices, index), (one_hot, torch.nn.functional.one_hot(index, 9))):
        td = env.reset()
        td["agents", "action"] = action
        rewards.append(env.step(td)["next", "agents", "observation"])
    assert torch.equal(*rewards)


def test_unlike_agents_of_a_group_are_stacked_lazily() -> None:
    env = VmasEnv("simple_tag", num_envs=3, group_map=MarlGroupMapType.ALL_IN_ONE_GROUP)
    assert env.het_specs
    check_env_specs(env)
    agents: Any = env.rollout(2)["agents"]
    sizes = [tuple(agent["observation"].shape) for agent in agents.unbind(-1)]
    assert sizes == [(3, 2, 16)] * 3 + [(3, 2, 14)]


def test_masked_resets_change_the_selected_rows_only() -> None:
    env = VmasEnv("balance", num_envs=2, seed=0)
    td = env.step_mdp(env.rand_step(env.reset()))
    before = td["agents", "observation"].clone()
    after = env.reset(td.set("_reset", torch.tensor([[True], [False]])))["agents", "observation"]
    assert (after == before).flatten(1).all(1).tolist() == [False, True]


def test_masked_steps_step_the_selected_rows_only() -> None:
    env, other = VmasEnv("balance", num_envs=2, seed=0), VmasEnv("balance", num_envs=2, seed=0)
    first, second = env.rand_action(env.reset()), other.reset()
    action = first["agents", "action"]
    env.step(first.set("_step", torch.tensor([True, False])))
    steps = []
    for each, td in ((env, first.exclude("next", "_step")), (other, second)):
        td["agents", "action"] = action
        steps.append(each.step(td)["next", "agents", "observation"])
    assert (steps[0] == steps[1]).flatten(1).all(1).tolist() == [False, True]


def test_the_first_reset_is_that_of_vmas_with_the_seed() -> None:
    import vmas

    expected = vmas.make_env("balance", num_envs=2, seed=5).reset(seed=5)
    env = VmasEnv("balance", num_envs=2)
    env.set_seed(5)
    assert torch.equal(env.reset()["agents", "observation"], torch.stack(expected, 1))


def test_infos_of_a_reset_do_not_depend_on_earlier_episodes() -> None:
    env = VmasEnv("balance", num_envs=2)
    resets = []
    for _ in range(2):
        env.set_seed(5)
        resets.append(env.reset()["agents", "info"])
        env.rollout(3, auto_reset=False, tensordict=env.reset())
    assert (resets[0] == resets[1]).all()


def test_gradients_flow_through_the_simulator() -> None:
    env = VmasEnv("balance", num_envs=2, grad_enabled=True)
    td = env.reset()
    action = torch.zeros(2, 3, 2, requires_grad=True)
    td["agents", "action"] = action
    env.step(td)["next", "agents", "observation"].sum().backward()
    assert action.grad is not None
    assert action.grad.abs().sum() > 0


def test_a_time_limit_is_a_truncation_if_vmas_tells_them_apart() -> None:
    rollout = VmasEnv("simple_tag", num_envs=2, max_steps=2, terminated_truncated=True).rollout(5)
    assert rollout.shape == (2, 2)
    assert rollout["next", "truncated"].squeeze(-1).tolist() == [[False, True]] * 2
    assert not rollout["next", "terminated"].any()
    rollout = VmasEnv("simple_tag", num_envs=2, max_steps=2).rollout(5)
    assert rollout["next", "terminated"].squeeze(-1).tolist() == [[False, True]] * 2


def test_wrapper_takes_environments_of_vmas() -> None:
    import vmas

    for dict_spaces in (False, True):
        env = VmasWrapper(vmas.make_env("balance", num_envs=2, dict_spaces=dict_spaces))
        assert env.n_agents == 3
        assert env.max_steps is None
        check_env_specs(env)
    with pytest.raises(TypeError, match="without a wrapper, got 3"):
        VmasWrapper(3)


def test_wrong_arguments_of_the_environment() -> None:
    with pytest.raises(ValueError, match="in no group"):
        VmasEnv("balance", num_envs=2, group_map={"a": ["agent_1", "agent_2"]})
    with pytest.raises(SpaceError, match=r"Expected a batch size of \(2,\), got \(3,\)"):
        VmasEnv("balance", num_envs=2, batch_size=[3])
    with pytest.raises(ValueError, match="num_envs"):
        VmasEnv("balance", num_envs=0)
    assert len(VmasEnv.available_envs) == 41


def test_devices() -> None:
    env = VmasEnv("balance", num_envs=2, device="cpu")
    assert env.reset().device == torch.device("cpu")
    assert VmasEnv("balance", num_envs=2).reset().device is None
    assert env.to("cpu").rollout(2).device == torch.device("cpu")
    assert repr(env) == "VmasEnv(scenario=balance, num_envs=2, n_agents=3, batch_size=(2,), device=cpu)"


def test_scenarios_of_ones_own() -> None:
    from vmas.simulator.core import Agent, World
    from vmas.simulator.scenario import BaseScenario

    class Still(BaseScenario):
        def make_world(self, batch_dim: int, device: Any, **kwargs: Any) -> World:
            world = World(batch_dim, device)
            for name in kwargs["agent_names"]:
                world.add_agent(Agent(name=name))
            return world

        def reset_world_at(self, env_index: int | None = None) -> None: ...

        def observation(self, agent: Agent) -> Any:
            return {"pos": agent.state.pos, "vel": agent.state.vel}

        def reward(self, agent: Agent) -> torch.Tensor:
            return torch.ones(self.world.batch_dim)

    env = VmasEnv(Still(), num_envs=2, scenario_kwargs={"agent_names": ["tom_0", "jerry_0", "tom_1"]})
    assert env.group_map == {"tom": ["tom_0", "tom_1"], "jerry": ["jerry_0"]}
    check_env_specs(env)
    shape = env.reset()["tom", "observation", "vel"].shape
    assert shape == (2, 2, 2)


def test_random_streams_leave_the_generators_of_vmas() -> None:
    import vmas

    env = vmas.make_env("balance", num_envs=2, seed=1)
    before = [np.asarray(part) for part in env.vmas_random_state[:1]]
    with random_stream(torch.device("cpu"), 3):
        env.reset()
    assert np.array_equal(before[0], np.asarray(env.vmas_random_state[0]))


def test_frames_of_the_environment() -> None:
    env = VmasEnv("simple", num_envs=2, seed=0)
    env.reset()
    frame = env.render(env_index=1)
    assert (frame.dtype, frame.shape) == (np.uint8, (700, 700, 3))
    env.close()


def test_data_of_a_step_is_not_kept() -> None:
    """The caller may write to actions and results."""
    env, other = VmasEnv("balance", num_envs=2, seed=0), VmasEnv("balance", num_envs=2, seed=0)
    td = env.rand_action(env.reset())
    td_copy: TensorDict = td.clone()
    other.reset()
    next_td = env.step(td)["next"]
    next_td.apply(lambda value: value.zero_(), inplace=True)
    td["agents", "action"].zero_()
    other.step(td_copy)
    action = torch.full((2, 3, 2), 0.3)
    results = [
        each.step(TensorDict({"agents": TensorDict({"action": action}, [2, 3])}, [2]))["next", "agents", "observation"]
        for each in (env, other)
    ]
    assert torch.equal(*results)


def test_unknown_arguments_warn_and_seeds_are_refused() -> None:
    message = r"'balance', got n_agent, max_step, which it ignores\. Did you mean n_agents, max_steps\?"
    with pytest.warns(UserWarning, match=message) as caught:
        make_batch("balance", 2, n_agent=3, max_step=4)
    assert len(caught) == 1
    with pytest.warns(UserWarning, match="'simple_tag', got n_agents, which it ignores"):
        assert VmasEnv("simple_tag", num_envs=2, n_agents=9).rollout(2).shape == (2, 2)
    with pytest.raises(SpaceError, match="Expected a seed of 0 or more"):
        make_batch("balance", 2).reset([-1, 0])
