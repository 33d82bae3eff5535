"""`JumanjiEnv` and `JumanjiWrapper` on the real library. Keys, shapes and dtypes are those that TorchRL gives."""

import jumanji
import numpy as np
import pytest
import torch
from tensordict import TensorDict

from vecrl.envs import JumanjiEnv, JumanjiWrapper, check_env_specs
from vecrl.errors import SpaceError
from vecrl.specs import Bounded, Categorical, MultiCategorical, OneHot

pytestmark = [pytest.mark.simulators, pytest.mark.timeout(300)]  # compiling takes long on a busy machine
I32, F32, BOOL = torch.int32, torch.float32, torch.bool
SNAKE_OBS = {"grid": ((12, 12, 5), F32), "step_count": ((), I32), "action_mask": ((4,), BOOL)}
SNAKE_STATE = {
    "body": ((12, 12), BOOL),
    "body_state": ((12, 12), I32),
    ("head_position", "row"): ((), I32),
    ("head_position", "col"): ((), I32),
    "tail": ((12, 12), BOOL),
    ("fruit_position", "row"): ((), I32),
    ("fruit_position", "col"): ((), I32),
    "length": ((), I32),
    "step_count": ((), I32),
    "action_mask": ((4,), BOOL),
    "key": ((2,), I32),
}


def leaves(specs, *prefix):
    """Returns shapes and dtypes of leaves by their keys below a prefix."""
    specs = specs[prefix] if prefix else specs
    return {key: (tuple(spec.shape), spec.dtype) for key, spec in specs.items(True, True) if key[0] != "state"}


@pytest.fixture(scope="module")
def maze():
    return JumanjiEnv("Maze-v0", batch_size=[3], time_limit=10)


@pytest.fixture(scope="module")
def free():
    """An environment for TensorDicts of any batch size."""
    return JumanjiEnv("Maze-v0")


def test_specs():
    env = JumanjiEnv("Snake-v1", batch_size=[2])
    batched = {key: ((2, *shape), dtype) for key, (shape, dtype) in SNAKE_OBS.items()}
    assert leaves(env.observation_spec) == batched
    state = {key: ((2, *shape), dtype) for key, (shape, dtype) in SNAKE_STATE.items()}
    assert leaves(env.observation_spec, "state") == leaves(env.state_spec, "state") == state
    assert env.observation_spec["step_count"] == Categorical(4000, (2,), dtype=I32)
    assert env.observation_spec["grid"] == Bounded(0, 1, (2, 12, 12, 5))
    assert env.action_spec == Categorical(4, (2,), dtype=I32)
    assert env.reward_spec.shape == (2, 1)
    assert set(env.full_done_spec.keys()) == {"done", "terminated", "truncated"}


@pytest.mark.parametrize(
    ("name", "action", "reward"),
    [
        ("Connector-v3", MultiCategorical([5] * 10, dtype=I32), (10,)),
        ("LevelBasedForaging-v0", MultiCategorical([6, 6], dtype=I32), (2,)),
        ("MultiCVRP-v0", Bounded(0, 21, (2,), dtype=torch.int16), (1,)),
        ("SearchAndRescue-v0", Bounded(-1, 1, (2, 2), dtype=F32), (2,)),
    ],
)
def test_specs_of_several_agents(name, action, reward):
    env = JumanjiEnv(name)
    assert env.action_spec == action
    assert env.reward_spec.shape == reward
    assert env.batch_size == ()


def test_nested_observations():
    env = JumanjiEnv("BinPack-v2")
    assert leaves(env.observation_spec)[("ems", "x1")] == ((40,), F32)
    assert leaves(env.observation_spec)["action_mask"] == ((40, 20), BOOL)


def test_rollouts(maze):
    """Time limits of Jumanji's mazes have a discount of 0, so they are terminations."""
    maze.set_seed(0)
    check_env_specs(maze)
    rollout = maze.rollout(12, lambda td: td.set("action", torch.zeros(3, dtype=I32)), break_when_any_done=False)
    assert rollout["next", "terminated"].squeeze(-1).nonzero()[:, 1].tolist() == [9, 9, 9]
    assert rollout["next", "step_count"][0].tolist() == [*range(1, 11), 1, 2]
    assert rollout["next", "state", "agent_position", "row"].dtype == I32


def test_truncations():
    """The time limit of this environment has a discount of 1; rewards are those of the agents."""
    env = JumanjiEnv("LevelBasedForaging-v0", time_limit=3)
    rollout = env.rollout(5)
    assert rollout["next", "truncated"].squeeze(-1).tolist() == [False, False, True]
    assert not rollout["next", "terminated"].any()
    assert rollout["next", "reward"].shape == (3, 2)


def test_seeds(maze):
    rollouts = []
    for seed in (1, 1, 2):
        maze.set_seed(seed)
        torch.manual_seed(0)
        rollouts.append(maze.rollout(3))
    first, second, other = (rollout["next", "walls"] for rollout in rollouts)
    assert torch.equal(first, second)
    assert not torch.equal(first, other)


def test_steps_depend_on_their_input_only(maze):
    """A step is repeated exactly from the same TensorDict, and its entries are not written later."""
    td = maze.rand_action(maze.reset())
    before = td.clone()
    first = maze.step(td)["next"].clone()
    for _ in range(3):
        maze.step(maze.rand_action(maze.reset()))
    assert (td.exclude("next") == before).all()
    assert (maze.step(before)["next"] == first).all()


def test_partial_resets_keep_other_rows(maze):
    td = maze.step(maze.rand_action(maze.reset()))["next"]
    mask = torch.tensor([[True], [False], [False]])
    reset = maze.reset(td.clone().set("_reset", mask))
    assert (reset[1:] == td[1:]).all()
    assert reset["step_count"].tolist() == [0, 1, 1]


def test_batch_sizes_are_free_without_an_argument(free):
    assert not free.batch_locked
    assert free.reset().batch_size == ()
    td = free.reset(TensorDict({}, [2, 2]))
    assert td.batch_size == (2, 2)
    td["action"] = torch.ones(2, 2, dtype=I32)
    assert free.step(td)["next", "reward"].shape == (2, 2, 1)
    assert free.step(td[0].clone())["next", "walls"].shape == (2, 10, 10)
    with pytest.raises(SpaceError, match=r"Expected the entry \('state', "):
        free.step(TensorDict(action=torch.ones((), dtype=I32)))


def test_one_hot_actions(maze):
    env = JumanjiEnv("Maze-v0", batch_size=[3], categorical_action_encoding=False, time_limit=10)
    assert env.action_spec == OneHot(4).expand(3, 4)
    td = env.reset()
    index = torch.tensor([0, 1, 3])
    one_hot = env.step(td.clone().set("action", torch.nn.functional.one_hot(index, 4).bool()))["next"]
    assert (one_hot == maze.step(td.clone().set("action", index.int()))["next"]).all()


def test_wrapper():
    """The wrapper takes Jumanji's environment; without `jit`, results are equal."""
    env = jumanji.make("Maze-v0")
    compiled, other = JumanjiWrapper(env, batch_size=[2]), JumanjiWrapper(env, batch_size=[2], jit=False)
    assert (compiled.jit, other.jit) == (True, False)
    assert compiled._env is env
    td = compiled.reset().set("action", torch.tensor([0, 1], dtype=I32))
    assert (compiled.step(td.clone())["next"] == other.step(td.clone())["next"]).all()
    with pytest.raises(TypeError, match="Expected an environment of Jumanji, got str"):
        JumanjiWrapper("Maze-v0")


def test_frames_are_those_of_a_state(free):
    td = free.reset()
    frame = free.render(td)
    assert (frame.shape, frame.dtype) == ((1000, 1000, 3), np.uint8)
    with pytest.raises(SpaceError, match="Expected a TensorDict of one row"):
        free.render(free.reset(TensorDict({}, [2])))


def test_names():
    assert "Snake-v1" in JumanjiEnv.available_envs
    with pytest.raises(ValueError, match="Expected the name of an environment of Jumanji"):
        JumanjiEnv("nothing")
