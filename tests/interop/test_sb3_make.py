"""`vecrl.interop.sb3.make_vec_env` makes what Stable-Baselines3's function of this name makes, from any simulator."""

import csv
import os
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from tests.fixtures.gym_envs import CountingEnv, counting

from vecrl.vector import register, unregister

pytestmark = [pytest.mark.peers, pytest.mark.filterwarnings("ignore")]


def make_vec_env(*args: Any, **settings: Any) -> Any:
    from vecrl.interop.sb3 import make_vec_env

    return make_vec_env(*args, **settings)


def rows(file: Path) -> list[list[str]]:
    """Returns returns and lengths of a monitor's file, without times."""
    return [row[:2] for row in csv.reader(file.open()) if not row[0].startswith("#")]


@pytest.mark.parametrize("cls", [None, "DummyVecEnv", "SubprocVecEnv"])
def test_results_files_and_wrappers_are_those_of_sb3(cls: str | None, tmp_path: Path) -> None:
    from stable_baselines3.common import env_util, vec_env

    settings = {
        "n_envs": 3,
        "seed": 5,
        "start_index": 2,
        "wrapper_class": gymnasium.wrappers.FlattenObservation,
        "env_kwargs": {"max_episode_steps": 7},
        "vec_env_cls": cls and getattr(vec_env, cls),
        "monitor_kwargs": {"allow_early_resets": False},
    }
    env = make_vec_env("CartPole-v1", monitor_dir=str(tmp_path / "ours"), **settings)
    expected = env_util.make_vec_env("CartPole-v1", monitor_dir=str(tmp_path / "theirs"), **settings)
    assert env.env_is_wrapped(gymnasium.wrappers.FlattenObservation) == [True] * 3
    np.testing.assert_array_equal(env.reset(), expected.reset(), strict=True)
    for actions in np.random.default_rng(0).integers(0, 2, (20, 3)):
        np.testing.assert_equal(env.step(actions)[:3], expected.step(actions)[:3])
    env.close()
    expected.close()
    files = {path.name for path in (tmp_path / "theirs").iterdir()}
    assert {path.name for path in (tmp_path / "ours").iterdir()} == files == {f"{n}.monitor.csv" for n in (2, 3, 4)}
    for name in files:
        assert rows(tmp_path / "ours" / name) == rows(tmp_path / "theirs" / name)
        assert len(rows(tmp_path / "ours" / name)) >= 3


def test_processes_and_classes_are_taken_from_the_arguments() -> None:
    from stable_baselines3.common.vec_env import SubprocVecEnv

    from vecrl.interop.sb3 import VecEnv

    class Own(VecEnv):
        pass

    class InProcess(CountingEnv):
        @property
        def process(self) -> int:
            return os.getpid()

    env = make_vec_env(InProcess, 2, env_kwargs={"env_id": 0}, vec_env_cls=SubprocVecEnv)
    assert os.getpid() not in env.get_attr("process")
    env.close()
    env = make_vec_env(counting(1)[0], 2, vec_env_cls=Own)
    assert type(env) is Own
    with pytest.raises(TypeError, match="Expected vec_env_cls to be vecrl's VecEnv"):
        make_vec_env("CartPole-v1", vec_env_cls=gymnasium.vector.SyncVectorEnv)


def test_other_prefixes_make_single_environments() -> None:
    from stable_baselines3.common.monitor import Monitor

    register("counted", env_fn=lambda name, **kwargs: partial(CountingEnv, **kwargs))
    try:
        env = make_vec_env("counted::any", n_envs=2, seed=1, env_kwargs={"env_id": 0, "length": 3})
        assert env.env_is_wrapped(Monitor) == [True, True]
        env.reset()
        dones = [env.step([env.action_space.sample()] * 2)[2].tolist() for _ in range(3)]
        assert dones == [[False, False], [False, False], [True, True]]
        env.close()
    finally:
        unregister("counted")


def test_a_batch_is_monitored_as_one(tmp_path: Path) -> None:
    from stable_baselines3 import PPO
    from stable_baselines3.common.vec_env import VecMonitor

    env = make_vec_env(
        "native::CartPole-v1",
        8,
        seed=3,
        monitor_dir=str(tmp_path / "new" / "folder"),
        env_kwargs={"max_episode_steps": 20},
    )
    assert type(env) is VecMonitor
    model = PPO("MlpPolicy", env, n_steps=32, batch_size=64, n_epochs=1, seed=3).learn(256)
    lengths = [int(row[1]) for row in rows(tmp_path / "new" / "folder" / "0.monitor.csv")[1:]]
    assert len(lengths) >= 8
    assert max(lengths) <= 20
    assert sum(episode["l"] for episode in model.ep_info_buffer) == sum(lengths)
    env.seed(3)
    first = env.reset()
    again = make_vec_env("native::CartPole-v1", 8, seed=3, start_index=0)
    np.testing.assert_array_equal(again.reset(), first)
    with pytest.raises(ValueError, match="Expected no wrapper_class for 'native::CartPole-v1'"):
        make_vec_env("native::CartPole-v1", 8, wrapper_class=gymnasium.wrappers.FlattenObservation)


def test_a_name_takes_the_number_as_sb3_calls_it() -> None:
    from vecrl.interop.sb3 import VecEnv

    assert VecEnv("native::CartPole-v1", n_envs=3).num_envs == 3
    env = VecEnv("CartPole-v1", n_envs=2)
    assert env.num_envs == 2
    env.close()
