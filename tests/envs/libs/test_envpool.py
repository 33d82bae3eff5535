"""EnvPool's environments over TensorDicts: steps equal to EnvPool's, row resets, skipped frames, seeds, errors."""

import os
import sys
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from tensordict import TensorDict

from vecrl.envs import (
    GymWrapper,
    MultiThreadedEnv,
    MultiThreadedEnvWrapper,
    RewardSum,
    StepCounter,
    TransformedEnv,
    check_env_specs,
)
from vecrl.errors import ClosedError, SpaceError
from vecrl.simulators.envpool import with_infinite_bounds
from vecrl.specs import Bounded, Categorical, OneHot, Unbounded

pytestmark = [
    pytest.mark.torchrl,
    pytest.mark.filterwarnings("ignore:.*precision lowered:UserWarning"),
]


def _pool(name: str = "CartPole-v1", num_envs: int = 3, **options: Any) -> Any:
    import envpool

    return envpool.make(name, **{"env_type": "gymnasium", "num_envs": num_envs, **options})


def _short(steps: int = 4, num_workers: int = 3, **kwargs: Any) -> MultiThreadedEnv:
    return MultiThreadedEnv(num_workers, "CartPole-v1", create_env_kwargs={"max_episode_steps": steps}, **kwargs)


@pytest.mark.parametrize("name", ["CartPole-v1", "Pendulum-v1", "FrozenLake-v1", "MiniGrid-Empty-5x5-v0", "Catch-v0"])
@pytest.mark.parametrize("indices", [True, False])
def test_specs_describe_the_entries(name: str, indices: bool) -> None:
    env = MultiThreadedEnv(2, name, categorical_action_encoding=indices)
    check_env_specs(env, break_when_any_done="both")
    assert env.batch_size == (2,)
    assert env.rollout(5, break_when_any_done=False).shape == (2, 5)
    env.close()


def test_shapes_dtypes_and_encodings() -> None:
    env = MultiThreadedEnv(3, "CartPole-v1")
    assert isinstance(env.action_spec, Categorical)
    assert env.action_spec.shape == (3,)
    assert env.observation_spec["observation"].shape == (3, 4)
    assert env.reward_spec == Unbounded((3, 1), device="cpu")
    assert env.full_done_spec["truncated"].shape == (3, 1)
    one_hot = MultiThreadedEnv(3, "CartPole-v1", categorical_action_encoding=False)
    assert isinstance(one_hot.action_spec, OneHot)
    assert one_hot.action_spec.shape == (3, 2)
    pendulum = MultiThreadedEnv(3, "Pendulum-v1", device="cpu", disable_env_checker=True, from_pixels=False)
    assert isinstance(pendulum.action_spec, Bounded)
    assert pendulum.rollout(2).device == torch.device("cpu")


def test_steps_equal_envpool() -> None:
    bare, env = _pool(seed=3), MultiThreadedEnvWrapper(_pool(seed=3))
    td = env.reset()
    np.testing.assert_array_equal(td["observation"], bare.reset()[0])
    rng = np.random.default_rng(0)
    for _ in range(8):
        actions = rng.integers(2, size=3)
        td = env.step(td.set("action", torch.from_numpy(actions)))
        obs, reward, terminated, truncated, _ = bare.step(actions)
        np.testing.assert_array_equal(td["next", "observation"], obs)
        np.testing.assert_array_equal(td["next", "reward"].squeeze(-1), reward)
        np.testing.assert_array_equal(td["next", "terminated"].squeeze(-1), terminated)
        np.testing.assert_array_equal(td["next", "truncated"].squeeze(-1), truncated)
        td = env.step_mdp(td)


def test_a_rollout_loses_no_step_after_the_end_of_an_episode() -> None:
    """EnvPool itself would ignore the action after an end and return the reward 0."""
    env = _short(3)
    env.auto_register_info_dict()
    rollout = env.rollout(7, break_when_any_done=False)
    assert rollout["next", "truncated"][0, :, 0].tolist() == [False, False, True] * 2 + [False]
    assert rollout["next", "reward"].eq(1).all()
    assert rollout["elapsed_step"].tolist() == [[0, 1, 2, 0, 1, 2, 0]] * 3
    assert rollout["next", "elapsed_step"].tolist() == [[1, 2, 3, 1, 2, 3, 1]] * 3
    is_same_episode = ~rollout["next", "done"][:, :-1, 0]
    successors, roots = rollout["next", "observation"][:, :-1], rollout["observation"][:, 1:]
    assert torch.equal(successors[is_same_episode], roots[is_same_episode])
    assert not successors[~is_same_episode].eq(roots[~is_same_episode]).any()
    assert roots[~is_same_episode].abs().max() <= 0.05  # first observations of CartPole


def test_the_true_final_observation_is_the_successor() -> None:
    bare, env = _pool(num_envs=1, seed=5), MultiThreadedEnvWrapper(_pool(num_envs=1, seed=5))
    bare.reset()
    actions = torch.ones(1, 200, dtype=torch.int64)
    rollout = env.rollout(200, lambda td: td.set("action", actions[:, 0]))
    assert rollout["next", "terminated"][0, -1]
    for t in range(rollout.shape[1]):
        expected = bare.step(np.ones(1, np.int64))[0]
        np.testing.assert_array_equal(rollout["next", "observation"][:, t], expected)


def test_partial_resets_keep_other_rows() -> None:
    env = MultiThreadedEnv(3, "CartPole-v1")
    env.auto_register_info_dict()
    td = env.rollout(2)[:, -1]["next"].exclude("reward")
    before = td["observation"].clone()
    td["_reset"] = torch.tensor([[True], [False], [True]])
    after = env.reset(td)
    assert after["elapsed_step"].tolist() == [0, 2, 0]
    assert after["env_id"].tolist() == [0, 1, 2]
    assert torch.equal(after["observation"][1], before[1])
    assert not after["observation"][[0, 2]].eq(before[[0, 2]]).any()
    after = env.rand_step(after)
    assert after["next", "elapsed_step"].tolist() == [1, 3, 1]


def test_masked_steps_step_the_selected_rows_only() -> None:
    env = MultiThreadedEnv(3, "CartPole-v1", frame_skip=2)
    env.auto_register_info_dict()
    td = env.rand_action(env.reset())
    td["_step"] = torch.tensor([False, True, False])
    td = env.step(td)
    assert td["next", "elapsed_step"].tolist() == [0, 2, 0]
    assert torch.equal(td["next", "observation"][[0, 2]], td["observation"][[0, 2]])
    assert td["next", "reward"].tolist() == [[0], [2], [0]]
    assert env.rand_step(env.step_mdp(td))["next", "elapsed_step"].tolist() == [2, 4, 2]


def test_skipped_frames_end_with_the_episode() -> None:
    env = _short(5, frame_skip=3)
    env.auto_register_info_dict()
    rollout = env.rollout(4, lambda td: td.set("action", torch.ones(3, dtype=torch.int64)), break_when_any_done=False)
    assert rollout["next", "reward"].squeeze(-1).tolist() == [[3, 2, 3, 2]] * 3
    assert rollout["next", "elapsed_step"].tolist() == [[3, 5, 3, 5]] * 3


def test_rows_that_are_done_stop_while_others_skip_frames() -> None:
    env = _short(5, frame_skip=4)
    env.auto_register_info_dict()
    td = env.rand_action(env.reset())
    td["_step"] = torch.tensor([True, False, False])
    td = env.step_mdp(env.step(td))  # the rows have done 4, 0 and 0 steps
    td = env.rand_step(td)
    assert td["next", "reward"].tolist() == [[1], [4], [4]]
    assert td["next", "done"].tolist() == [[True], [False], [False]]
    assert td["next", "elapsed_step"].tolist() == [5, 4, 4]


def test_seeds_are_those_of_envpool() -> None:
    env = MultiThreadedEnv(3, "CartPole-v1")
    assert env.set_seed(3) == 2346560485
    first = env.reset()["observation"]
    np.testing.assert_array_equal(first, _pool(seed=3).reset()[0])
    assert env.set_seed(2346560485) is not None  # more than EnvPool's seeds allow
    assert not env.reset()["observation"].eq(first).any()
    assert env.set_seed(3, static_seed=True) == 3
    assert torch.equal(env.reset()["observation"], first)
    assert env.set_seed(None) is None
    assert not env.reset()["observation"].eq(first).any()
    seeded = MultiThreadedEnv(3, "CartPole-v1", create_env_kwargs={"seed": 3})
    assert torch.equal(seeded.reset()["observation"], first)


def test_the_seed_of_an_existing_environment_cannot_change() -> None:
    with pytest.warns(UserWarning, match="EnvPool takes seeds only when it makes environments"):
        MultiThreadedEnvWrapper(_pool()).set_seed(3)


def test_transforms_follow_the_rows() -> None:
    env = TransformedEnv(_short(3), RewardSum()).append_transform(StepCounter())
    check_env_specs(env, break_when_any_done="both")
    rollout = env.rollout(5, break_when_any_done=False)
    assert rollout["next", "episode_reward"][0, :, 0].tolist() == [1, 2, 3, 1, 2]
    assert rollout["step_count"][0, :, 0].tolist() == [0, 1, 2, 0, 1]


def test_bounds_that_mean_infinity_are_infinite() -> None:
    limits = np.finfo(np.float64)
    box: Any = spaces.Box(limits.tiny, limits.max, (2,), np.float64)
    space = with_infinite_bounds(spaces.Dict(x=box, y=spaces.Box(-1, 1, (1,)), n=spaces.Discrete(3)))
    assert space == spaces.Dict(
        x=spaces.Box(-np.inf, np.inf, (2,), np.float64), y=spaces.Box(-1, 1, (1,)), n=spaces.Discrete(3)
    )


def test_attributes_and_names() -> None:
    import envpool

    env = MultiThreadedEnv(2, "CartPole-v1")
    assert repr(env) == "MultiThreadedEnv(env=CartPole-v1, num_workers=2, device=None)"
    assert repr(MultiThreadedEnvWrapper(_pool())) == "MultiThreadedEnvWrapper(num_workers=3, device=None)"
    assert env.lib is envpool
    assert env.config["num_envs"] == 2
    assert "Pendulum-v1" in MultiThreadedEnv.available_envs
    with pytest.raises(AttributeError, match="no_such"):
        env.no_such  # noqa: B018


def test_close_ends_the_threads() -> None:
    before = len(os.listdir("/proc/self/task"))
    env = MultiThreadedEnv(4, "CartPole-v1", create_env_kwargs={"num_threads": 4})
    env.reset()
    assert len(os.listdir("/proc/self/task")) > before
    env.close()
    assert len(os.listdir("/proc/self/task")) == before
    env.close()
    assert "num_workers=4" in repr(env)
    with pytest.raises(ClosedError):
        env.rand_step(env.fake_tensordict())
    assert env.rollout(3).shape == (4, 3)
    env.close()
    assert len(os.listdir("/proc/self/task")) == before


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"batch_size": 2}, SpaceError, "synchronous .* batch_size=2"),
        ({"env_type": "dm"}, TypeError, 'env_type="gymnasium"'),
    ],
)
def test_other_modes_are_refused(options: dict[str, Any], error: Any, text: str) -> None:
    with pytest.raises(error, match=text):
        MultiThreadedEnvWrapper(_pool(**options))


def test_wrong_arguments_are_errors() -> None:
    for num_workers in (0, -1, 2.5):
        with pytest.raises(ValueError, match="num_workers"):
            MultiThreadedEnv(num_workers, "CartPole-v1")  # pyright: ignore[reportArgumentType]
    with pytest.raises(SpaceError, match="from_pixels"):
        MultiThreadedEnv(2, "CartPole-v1", from_pixels=True)
    with pytest.raises(SpaceError, match=r"batch size of \(2,\)"):
        MultiThreadedEnv(2, "CartPole-v1", batch_size=[3])
    with pytest.raises(TypeError, match="num_threads"):
        MultiThreadedEnv(2, "CartPole-v1", num_threads=1)
    env = MultiThreadedEnv(2, "CartPole-v1")
    for td in (None, env.reset().set("_reset", torch.tensor([[True], [False]]))):
        with pytest.raises(ValueError, match="Unsupported"):
            env.reset(td, options={"low": 0})
    for other in (None, TensorDict):
        with pytest.raises(TypeError, match=r"envpool\.make"):
            MultiThreadedEnvWrapper(other)
    with pytest.raises(TypeError, match="MultiThreadedEnvWrapper"):
        GymWrapper(_pool())


def test_a_missing_library_is_an_import_error_with_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "envpool", None)
    with pytest.raises(ImportError, match=r"vecrl\[envpool\]"):
        MultiThreadedEnv(2, "CartPole-v1")
