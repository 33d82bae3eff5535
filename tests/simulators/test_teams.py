"""Teams of rware and lbforaging."""

import gymnasium
import numpy as np
import pytest
import torch

from vecrl.envs import LBForagingEnv, LBForagingWrapper, check_env_specs
from vecrl.envs.libs.agent_libraries import RwareEnv
from vecrl.errors import PendingError, SpaceError
from vecrl.simulators.gymnasium.libraries import env_fn, names
from vecrl.vector import VectorEnv, make_vector_env

pytestmark = pytest.mark.simulators
EXAMPLES = {"rware": "rware-tiny-2ag-v2", "lbforaging": "Foraging-8x8-2p-1f-v3"}
AGENTS = "agent_0", "agent_1"


def make_team(name, library, render_mode=None, **kwargs):
    return env_fn(name, library=library, render_mode=render_mode, **kwargs)().agents_env


@pytest.mark.parametrize("library", EXAMPLES)
def test_three_hundred_steps_equal_those_of_the_library(library):
    """With episode ends."""
    name, kwargs = EXAMPLES[library], {"max_episode_steps": 40}
    assert name in names(library)
    with make_vector_env(f"{library}::{name}", num_envs=2, autoreset_mode="same_step", **kwargs) as env:
        env.action_space.seed(0)
        actions = [env.action_space.sample() for _ in range(300)]
        steps = [(env.reset(seed=[3, 4])[0], None, None)]
        for action in actions:
            obs, reward, terminated, truncated, info = env.step(action)
            assert set(info["rewards"][0]) == set(AGENTS)
            steps.append((obs, reward, terminated | truncated))
    ends = 0
    for row, seed in enumerate((3, 4)):
        raw = gymnasium.make(name, disable_env_checker=True, **kwargs)
        obs, _ = raw.reset(seed=seed)
        for step, (found, rewards, dones) in enumerate(steps):
            if step:
                action = actions[step - 1]
                obs, parts, terminated, truncated, _ = raw.step([int(action[agent][row]) for agent in AGENTS])
                assert (rewards[row], dones[row]) == (sum(parts), terminated or truncated)
                if terminated or truncated:
                    ends += 1
                    obs, _ = raw.reset()
            for agent, part in zip(AGENTS, obs, strict=True):
                assert np.array_equal(found[agent][row], part)
    assert ends > 2


@pytest.mark.parametrize(
    ("cls", "library", "group"), [(RwareEnv, "rware", "agent"), (LBForagingEnv, "lbforaging", "agents")]
)
def test_agents_are_a_group_over_tensordicts(cls, library, group):
    env = cls(EXAMPLES[library], max_episode_steps=5, seed=1)
    check_env_specs(env)
    # agents stay where they are, since random moves may collect the only food
    rollout = env.rollout(8, lambda td: td.set((group, "action"), torch.zeros(2, dtype=torch.int64)))
    assert rollout["next", group, "reward"].shape == (5, 2, 1)
    assert rollout["next", "truncated"][-1].all()
    assert env.libname == library
    assert EXAMPLES[library] in cls.available_envs


def test_wrapped_foraging_has_the_entries_of_torchrl():
    env = LBForagingWrapper(gymnasium.make(EXAMPLES["lbforaging"]), categorical_actions=False, seed=2)
    check_env_specs(env)
    rollout = env.rollout(60)
    assert env.group_map == {"agents": list(AGENTS)}
    assert rollout["agents", "action"].shape[1:] == (2, 6)
    assert set(rollout["next"].keys(True, True)) == {
        *("done", "terminated", "truncated", ("agents", "observation"), ("agents", "reward")),
    }
    assert len(rollout) <= 50
    wrapped = LBForagingWrapper(gymnasium.make(EXAMPLES["lbforaging"]), seed=2).reset()
    by_name = LBForagingEnv(EXAMPLES["lbforaging"], seed=2).reset()
    assert by_name["agents", "observation"].equal(wrapped["agents", "observation"])
    with pytest.raises(TypeError, match=r"Expected an environment of lbforaging, got None\. LBForagingEnv makes one"):
        LBForagingWrapper()


def test_a_seed_gives_one_map_whatever_was_before():
    """lbforaging itself keeps places free where its players were last."""
    env = make_team(EXAMPLES["lbforaging"], "lbforaging")
    maps = []
    for actions in ([], [1, 2, 3, 4] * 5):
        env.reset(seed=2)
        for action in actions:
            env.step(dict.fromkeys(AGENTS, action))
        maps.append([str(env.reset(seed=seed)[0]) for seed in range(20)])
    assert maps[0] == maps[1]


@pytest.mark.parametrize("library", EXAMPLES)
def test_workers_and_wrong_names(library):
    functions = [env_fn(EXAMPLES[library], library=library)] * 2
    with VectorEnv(functions) as here, VectorEnv(functions, backend="processes", num_workers=2) as there:
        expected, found = (env.reset(seed=5)[0] for env in (here, there))
        assert all(np.array_equal(expected[agent], found[agent]) for agent in AGENTS)
    with pytest.raises(ValueError, match=f"environment of {library}, got 'CartPole-v1'"):
        env_fn("CartPole-v1", library=library)


@pytest.mark.parametrize(("library", "limit"), [("rware", 500), ("lbforaging", 50)])
def test_time_limits_truncate(library, limit):
    """The libraries themselves say that the episode is terminated."""
    for kwargs, steps in (({}, limit), ({"max_episode_steps": 60}, 60)):
        team = make_team(EXAMPLES[library], library, **kwargs)
        team.reset(seed=1)
        for step in range(1, steps + 1):
            *_, terminated, truncated, _ = team.step(dict.fromkeys(AGENTS, 0))
            assert not any(terminated.values())
            assert set(truncated.values()) == {step == steps}


def test_messages_are_parts_of_actions_and_render_modes_are_checked():
    team = make_team("rware-tiny-2ag-v2", "rware", msg_bits=1)
    team.reset(seed=1)
    assert team.action_space("agent_0").shape == (2,)
    team.step({agent: np.array([0, 1]) for agent in AGENTS})
    with pytest.raises(ValueError, match="None or 'rgb_array', got 'human'"):
        make_team("rware-tiny-2ag-v2", "rware", "human")


def test_resets_on_threads():
    """rware counts agents in attributes of classes."""
    functions = [env_fn("rware-tiny-2ag-v2", library="rware")] * 4
    with VectorEnv(functions) as here, VectorEnv(functions, backend="threads", num_workers=4) as threads:
        for seed in range(10):
            expected, found = (env.reset(seed=seed)[0] for env in (here, threads))
            assert all(np.array_equal(expected[agent], found[agent]) for agent in AGENTS)


def test_wrapped_foraging_keeps_the_time_limit_of_its_maker():
    env = LBForagingWrapper(gymnasium.make("Foraging-8x8-2p-1f-v3", max_episode_steps=3))
    env.set_seed(0)
    stay = env.full_action_spec.zero()
    rollout = env.rollout(9, lambda td: td.update(stay))
    assert rollout["next", "truncated"].flatten().tolist() == [False, False, True]


def test_wrong_calls_of_foraging():
    name = "Foraging-8x8-2p-1f-v3"
    with pytest.raises(ValueError, match="Expected return_state=False"):
        LBForagingEnv(name, return_state=True)
    env = LBForagingEnv(name, max_episode_steps=1)
    with pytest.raises(PendingError, match="there was no reset"):
        env.step(env.full_action_spec.zero())
    root = env.rand_action(env.reset())
    with pytest.raises(SpaceError, match=r"Expected an action in Discrete\(6\) of agent_0, got 99"):
        env.step(root.clone().set(("agents", "action"), torch.full((2,), 99)))
    ended = env.step(root)["next"]
    with pytest.raises(PendingError, match="the episode has ended"):
        env.step(env.rand_action(ended))
    assert env.field.shape == (8, 8)
