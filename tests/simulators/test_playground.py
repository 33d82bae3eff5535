"""MuJoCo Playground, on the real library. Only environments that need no download; one is compiled."""

import jax
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box
from tensordict import TensorDict

from vecrl.engine.simulator import BatchSimulator
from vecrl.envs import (
    MujocoPlaygroundAgentMapping,
    MujocoPlaygroundAgentSpec,
    MujocoPlaygroundEnv,
    MujocoPlaygroundWrapper,
    check_env_specs,
)
from vecrl.envs.seed_chain import seed_chain
from vecrl.errors import SpaceError
from vecrl.simulators.playground import make_batch, make_task, names
from vecrl.specs import Bounded

pytestmark = [pytest.mark.simulators, pytest.mark.timeout(400)]  # compiling takes long on a busy machine
ROWS = torch.tensor([True, False])


@pytest.fixture(scope="module")
def env():
    return MujocoPlaygroundEnv("CartpoleBalance", batch_size=[2], episode_length=4, from_pixels=True, pixels_only=False)


@pytest.fixture
def cart(env):
    """The simulator of `env`, so that one is compiled."""
    return env.simulator


def test_names():
    assert {"CartpoleBalance", "CheetahRun", "WalkerWalk"} <= set(names())


def test_shapes(cart):
    assert isinstance(cart, BatchSimulator)
    assert cart.observation_space == Box(-np.inf, np.inf, (5,), np.float32)
    assert cart.action_space == Box(-1, 1, (1,), np.float32)
    assert cart.metadata == {"render_modes": ["rgb_array"], "render_fps": 100.0}
    cart.reset([1, 2])
    step = cart.step(torch.zeros(2, 1))
    assert (step.next_obs.shape, step.reward.shape, step.terminated.dtype) == ((2, 5), (2,), torch.bool)
    assert step.info["reward/upright"].shape == (2,)


def test_observations_may_be_nested():
    """Without compiling: spaces have the structure of observations."""
    task = make_task("CheetahRun")
    assert task.observation_space.shape == task.start_shapes[1].shape == (17,)
    shapes = jax.eval_shape(task.step, task.start_shapes[0], np.zeros(6, np.float32))
    assert (shapes.obs.shape, shapes.reward.shape) == ((17,), ())


def test_equal_seeds_give_equal_episodes(cart):
    """A row without a seed continues its own stream, and rows do not depend on each other."""
    first, second = cart.reset([7, 8]), cart.reset([8, None])
    assert torch.equal(second[0], first[1])
    assert not torch.equal(second[1], first[1])
    actions = torch.tensor([[0.5], [-0.5]])
    runs = [[cart.reset([7, 8]), *(cart.step(actions).next_obs for _ in range(3))] for _ in range(2)]
    assert all(torch.equal(*pair) for pair in zip(*runs, strict=True))


def test_the_time_limit_truncates_and_resets_are_partial(cart):
    cart.reset([1, 2])
    for _ in range(2):
        cart.step(torch.zeros(2, 1))
    before = cart.step(torch.zeros(2, 1)).next_obs
    obs = cart.reset_where(ROWS)
    assert torch.equal(obs[1], before[1])
    assert not torch.equal(obs[0], before[0])
    step = cart.step(torch.zeros(2, 1))
    assert (step.truncated.tolist(), step.terminated.tolist()) == ([False, True], [False, False])


def test_states_restore_the_same_future(cart):
    cart.reset([1, 2])
    state = cart.get_state()
    assert all(len(value) == 2 for value in state.values())
    expected = cart.step(torch.ones(2, 1)).next_obs, cart.reset_where(ROWS)
    cart.set_state(state)
    assert torch.equal(cart.step(torch.ones(2, 1)).next_obs, expected[0])
    assert torch.equal(cart.reset_where(ROWS), expected[1])
    assert cart._reset_where._cache_size() == cart._step_compiled._cache_size() == 1


def test_frames(cart):
    cart.reset([1, 2])
    first = cart.render(0)
    assert (first.shape, first.dtype) == ((240, 320, 3), np.uint8)
    assert first.std() > 1
    for _ in range(20):
        cart.step(torch.ones(2, 1))
    assert (cart.render(0) != first).any()
    cart.close()
    cart.close()


def test_environments_over_tensordicts(env):
    """Keys, shapes and dtypes are TorchRL's, with "truncated" for the time limit."""
    assert {key: (tuple(spec.shape), spec.dtype) for key, spec in env.observation_spec.items()} == {
        "observation": ((2, 5), torch.float32),
        "pixels": ((2, 240, 320, 3), torch.uint8),
    }
    assert env.action_spec == Bounded(-1, 1, (2, 1))
    assert env.reward_spec.shape == (2, 1)
    check_env_specs(env)
    rollout = env.rollout(5, break_when_any_done=False)
    assert rollout["next", "truncated"].squeeze(-1).tolist() == [[False, False, False, True, False]] * 2
    assert not torch.equal(rollout["next", "pixels"][0, 0], rollout["next", "pixels"][0, 4])
    starts = []
    for seed in (3, 3, seed_chain(3, 2)[1]):
        env.set_seed(seed)
        starts.append(env.reset()["observation"])
    assert torch.equal(starts[0], starts[1])
    assert torch.equal(starts[0][1], starts[2][0])


def test_wrapper_and_names():
    """The wrapper takes Playground's environment; a single environment has no batch dimension."""
    env = MujocoPlaygroundWrapper(make_task("CheetahRun").env)
    assert env.batch_size == ()
    assert (env.observation_spec["observation"].shape, env.action_spec.shape) == ((17,), (6,))
    assert MujocoPlaygroundWrapper(make_task("CheetahRun").env, num_envs=3).batch_size == (3,)
    assert {"CartpoleBalance", "Go1JoystickFlatTerrain"} <= set(MujocoPlaygroundEnv.available_envs)
    with pytest.raises(TypeError, match="Expected an environment of MuJoCo Playground, got str"):
        MujocoPlaygroundWrapper("CheetahRun")


def test_errors(cart):
    with pytest.raises(ValueError, match=r"Expected the name of an environment of MuJoCo Playground.*CheetahRun"):
        make_batch("nothing", 2)
    with pytest.raises(ValueError, match=r"Expected actions of shape \[2, 1\]"):
        cart.step(torch.zeros(3, 1))


def test_agents():
    """Each agent gets its part of the robot's observation, and the common reward; actions are joined."""
    parts = [MujocoPlaygroundAgentSpec("x", [0], [0, 2]), MujocoPlaygroundAgentSpec("y", [1], [1, 3])]
    mapping = MujocoPlaygroundAgentMapping(parts)
    envs = [
        MujocoPlaygroundEnv("PointMass", batch_size=[2], episode_length=4, agent_mapping=agents)
        for agents in (None, mapping)
    ]
    for env in envs:
        env.set_seed(3)
    torch.manual_seed(0)
    robot = envs[0].rollout(6, break_when_any_done=False)
    actions = [
        TensorDict({"x": {"action": a[:, :1]}, "y": {"action": a[:, 1:]}}, [2]) for a in robot["action"].unbind(1)
    ]
    agents = envs[1].rollout(6, actions=actions, break_when_any_done=False)
    for source, expected in ((agents, robot), (agents["next"], robot["next"])):
        for axis, name in enumerate(("x", "y")):
            assert torch.equal(source[name, "observation"], expected["observation"][..., axis::2])
        assert torch.equal(source["done"], expected["done"])
    assert torch.equal(agents["next", "x", "reward"], robot["next", "reward"])
    assert torch.equal(agents["next", "y", "reward"], robot["next", "reward"])
    check_env_specs(envs[1])
    assert envs[1].rollout(2)["y", "action"].shape == (2, 2, 1)
    with pytest.raises(SpaceError, match=r"Expected actions of shape \(2, 1\) at \('x', 'action'\), got none"):
        envs[1].step(envs[1].reset())
    for env in envs:
        env.close()
