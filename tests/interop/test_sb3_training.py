"""Stable-Baselines3's algorithms, wrappers and callbacks run on `vecrl.interop.sb3.VecEnv`, as on `DummyVecEnv`."""

import sys
import types
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from tests.fixtures.gym_envs import SPACES, NoiseEnv

from vecrl.vector import make_vector_env

pytestmark = [pytest.mark.peers, pytest.mark.filterwarnings("ignore")]
OFF_POLICY = {"learning_starts": 20, "batch_size": 16, "gradient_steps": 2, "train_freq": 4}
ALGORITHMS: dict[str, tuple[str, dict[str, Any]]] = {
    "PPO": ("CartPole-v1", {"n_steps": 32, "batch_size": 32, "n_epochs": 2}),
    "A2C": ("CartPole-v1", {"n_steps": 8}),
    "DQN": ("CartPole-v1", OFF_POLICY),
    "SAC": ("Pendulum-v1", OFF_POLICY),
    "TD3": ("Pendulum-v1", OFF_POLICY),
}
PROCESSES = {"backend": "processes", "num_workers": 2}


def dummy_and_vecrl(env_fn: Any, count: int = 2, **options: Any) -> list[Any]:
    from stable_baselines3.common.vec_env import DummyVecEnv

    from vecrl.interop.sb3 import VecEnv

    return [DummyVecEnv([env_fn] * count), VecEnv([env_fn] * count, **options)]


def assert_equal_weights(expected: Any, model: Any) -> None:
    expected_weights, weights = expected.policy.state_dict(), model.policy.state_dict()
    assert weights.keys() == expected_weights.keys()
    for name, value in expected_weights.items():
        assert torch.equal(weights[name], value), name


@pytest.mark.parametrize("name", ALGORITHMS)
def test_algorithms_learn_the_same_weights(name: str) -> None:
    import stable_baselines3

    env_name, settings = ALGORITHMS[name]
    env_fn = partial(gymnasium.make, env_name, max_episode_steps=25)
    models: list[Any] = []
    for env in dummy_and_vecrl(env_fn, **PROCESSES):
        algorithm = getattr(stable_baselines3, name)
        model = algorithm("MlpPolicy", env, seed=3, policy_kwargs={"net_arch": [16]}, **settings)
        initial = [value.clone() for value in model.policy.state_dict().values()]
        models.append(model.learn(128))
        assert any(not torch.equal(a, b) for a, b in zip(initial, model.policy.state_dict().values(), strict=True))
        env.close()
    assert_equal_weights(*models)


def test_policies_of_dict_observations_learn_the_same_weights() -> None:
    from stable_baselines3 import PPO

    space = spaces.Dict(vector=SPACES["box"], number=SPACES["discrete"])
    models = [
        PPO("MultiInputPolicy", env, n_steps=16, batch_size=16, n_epochs=1, seed=0).learn(32)
        for env in dummy_and_vecrl(partial(NoiseEnv, space))
    ]
    assert_equal_weights(*models)


def test_native_tasks_train() -> None:
    from stable_baselines3 import PPO
    from stable_baselines3.common.vec_env import VecMonitor

    from vecrl.interop.sb3 import VecEnv

    env = VecMonitor(VecEnv(make_vector_env("native::CartPole-v1", num_envs=16)))
    settings = {"n_steps": 64, "batch_size": 256, "n_epochs": 8, "learning_rate": 1e-3, "seed": 0}
    model = PPO("MlpPolicy", env, **settings)
    model.learn(1024)
    first = np.mean([episode["r"] for episode in model.ep_info_buffer])
    model.learn(12288)
    assert np.mean([episode["r"] for episode in model.ep_info_buffer]) > 2 * first


def test_make_vec_env_makes_it() -> None:
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.monitor import Monitor

    from vecrl.interop.sb3 import VecEnv

    settings = {"n_envs": 2, "seed": 4, "env_kwargs": {"max_episode_steps": 9}}
    env = make_vec_env("CartPole-v1", vec_env_cls=VecEnv, vec_env_kwargs=PROCESSES, **settings)
    expected = make_vec_env("CartPole-v1", **settings)
    assert type(env) is VecEnv
    assert env.env_is_wrapped(Monitor) == [True, True]
    np.testing.assert_array_equal(env.reset(), expected.reset(), strict=True)
    episodes: list[list[tuple[float, int]]] = [[], []]
    for _ in range(20):
        (obs, _, _, infos), (expected_obs, _, _, expected_infos) = env.step([0, 1]), expected.step([0, 1])
        np.testing.assert_array_equal(obs, expected_obs, strict=True)
        for found, step_infos in zip(episodes, (infos, expected_infos), strict=True):
            found += [(info["episode"]["r"], info["episode"]["l"]) for info in step_infos if "episode" in info]
    assert episodes[0] == episodes[1]
    assert len(episodes[0]) > 3
    env.close()


WRAPPERS: dict[str, dict[str, Any]] = {"VecNormalize": {}, "VecMonitor": {}, "VecFrameStack": {"n_stack": 3}}


@pytest.mark.parametrize("name", WRAPPERS)
def test_wrappers_return_the_same(name: str) -> None:
    import stable_baselines3.common.vec_env

    wrapper = getattr(stable_baselines3.common.vec_env, name)
    env_fn = partial(gymnasium.make, "Pendulum-v1", max_episode_steps=7)
    expected, env = (wrapper(env, **WRAPPERS[name]) for env in dummy_and_vecrl(env_fn, **PROCESSES))
    env.seed(2), expected.seed(2)
    np.testing.assert_array_equal(env.reset(), expected.reset(), strict=True)
    ended = 0
    for step in range(16):
        actions = np.full((2, 1), np.sin(step), np.float32)
        (*results, infos), (*expected_results, expected_infos) = env.step(actions), expected.step(actions)
        for pair in zip(results, expected_results, strict=True):
            np.testing.assert_array_equal(*pair, strict=True)
        for info in (*infos, *expected_infos):
            if "episode" in info:
                assert info["episode"].pop("t") >= 0  # the time
                ended += 1
        np.testing.assert_equal(infos, expected_infos)
    assert ended == (8 if name == "VecMonitor" else 0)
    env.close()


def test_videos_have_the_frames_of_the_environments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from stable_baselines3.common.vec_env import VecVideoRecorder

    written: list[tuple[list[np.ndarray], str]] = []

    class Clip:
        """In place of the class of moviepy that encodes a video."""

        def __init__(self, frames: list[np.ndarray], fps: float):
            self.frames = frames

        def write_videofile(self, path: str, **_: Any) -> None:
            written.append((self.frames, path))

    names = ("moviepy", "moviepy.video", "moviepy.video.io", "moviepy.video.io.ImageSequenceClip")
    for name in names:
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setattr(sys.modules[names[-1]], "ImageSequenceClip", Clip, raising=False)
    env_fn = partial(gymnasium.make, "CartPole-v1", render_mode="rgb_array")
    videos = []
    for env in dummy_and_vecrl(env_fn, **PROCESSES):
        recorder = VecVideoRecorder(env, str(tmp_path), record_video_trigger=lambda step: step == 0, video_length=3)
        recorder.seed(1)
        recorder.reset()
        for _ in range(4):
            recorder.step([0, 1])
        recorder.close()
        videos.append(written.pop()[0])
    assert [len(video) for video in videos] == [4, 4]  # that of the reset, and of three steps
    for frame, expected in zip(*videos, strict=True):
        np.testing.assert_array_equal(frame, expected)


def test_evaluation_and_checkpoints_during_a_training(tmp_path: Path) -> None:
    from stable_baselines3 import PPO
    from stable_baselines3.common.callbacks import CheckpointCallback, EvalCallback
    from stable_baselines3.common.evaluation import evaluate_policy
    from stable_baselines3.common.monitor import Monitor

    returns = []
    for index, env in enumerate(dummy_and_vecrl(lambda: Monitor(gymnasium.make("CartPole-v1")), **PROCESSES)):
        eval_env = dummy_and_vecrl(lambda: Monitor(gymnasium.make("CartPole-v1")))[index]
        eval_env.seed(9)
        folder = tmp_path / str(index)
        evaluation = EvalCallback(eval_env, eval_freq=16, n_eval_episodes=4, log_path=str(folder), verbose=0)
        checkpoints = CheckpointCallback(save_freq=32, save_path=str(folder))
        model = PPO("MlpPolicy", env, n_steps=32, batch_size=32, n_epochs=1, seed=1)
        model.learn(128, callback=[evaluation, checkpoints])
        assert {path.name for path in folder.glob("*.zip")} == {"rl_model_64_steps.zip", "rl_model_128_steps.zip"}
        loaded = PPO.load(folder / "rl_model_128_steps.zip", env=env)
        logged = dict(np.load(folder / "evaluations.npz"))
        assert logged["timesteps"].tolist() == [32, 64, 96, 128]
        eval_env.seed(5)
        scores = evaluate_policy(loaded, eval_env, n_eval_episodes=4, return_episode_rewards=True)
        returns.append((logged["results"].tolist(), scores))
        env.close()
    assert returns[0] == returns[1]
    assert len(returns[0][1][0]) == 4
