"""Rewards with several objectives, using mo-gymnasium if it is installed."""

import importlib.util
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from vecrl.envs import MOGymEnv, MOGymWrapper, check_env_specs
from vecrl.errors import VersionError
from vecrl.simulators.gymnasium.make import RewardInInfo, SkipFrames
from vecrl.vector import VectorEnv

installed = pytest.mark.skipif(importlib.util.find_spec("mo_gymnasium") is None, reason="mo-gymnasium is not installed")


class Two(gymnasium.Env[Any, Any]):
    """Has two objectives: steps done and steps remaining. Ends after four steps."""

    observation_space = spaces.Box(0, 9, (1,))
    action_space = spaces.Discrete(2)
    reward_space = spaces.Box(0, 4, (2,))

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        reward: Any = np.array([self.steps, 4 - self.steps], np.float32)
        return np.full(1, self.steps, np.float32), reward, self.steps == 4, False, {"count": self.steps}


REWARDS = [[1, 3], [2, 2], [3, 1], [4, 0], [1, 3], [2, 2]]


def test_rewards_have_one_value_per_objective() -> None:
    env = MOGymWrapper(Two())
    check_env_specs(env, break_when_any_done="both")
    assert env.reward_spec.shape == (2,)
    rollout = env.rollout(6, break_when_any_done=False)
    assert rollout["next", "reward"].tolist() == REWARDS


def test_skipped_frames_add_up() -> None:
    env = MOGymWrapper(Two(), frame_skip=3)
    check_env_specs(env)
    assert env.rollout(6)["next", "reward"].tolist() == [[6, 6], [4, 0]]


@pytest.mark.parametrize("mode", ["same_step", "next_step", "disabled"])
def test_vector_environments_have_vector_rewards(mode: str) -> None:
    env = MOGymWrapper(VectorEnv([lambda: RewardInInfo(Two())] * 2, autoreset_mode=mode))
    check_env_specs(env, break_when_any_done="both")
    rollout = env.rollout(6, break_when_any_done=False)
    assert rollout["next", "reward"].tolist() == [REWARDS] * 2
    env = MOGymWrapper(VectorEnv([lambda: RewardInInfo(SkipFrames(Two(), 3))], autoreset_mode=mode))
    assert env.auto_register_info_dict().rollout(2)["next", "count"].tolist() == [[3, 4]]


def test_missing_library_raises_with_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "mo_gymnasium", None)
    with pytest.raises(VersionError, match="pip install"):
        MOGymEnv("deep-sea-treasure-v0")


@installed
@pytest.mark.filterwarnings("ignore:.*precision lowered by casting")
@pytest.mark.parametrize("kwargs", [{}, {"num_envs": 3}, {"num_envs": 2, "num_workers": 2, "frame_skip": 2}])
def test_environments_by_name(kwargs: dict[str, Any]) -> None:
    assert "deep-sea-treasure-v0" in MOGymEnv.available_envs
    env = MOGymEnv("deep-sea-treasure-v0", **kwargs)
    check_env_specs(env, seed=0, break_when_any_done="both")
    rollout = env.rollout(30, break_when_any_done=False)
    assert rollout["next", "reward"].shape == (*env.batch_size, 30, 2)
    assert (rollout["next", "reward"][..., 1] < 0).all()
    env.close()


@installed
@pytest.mark.filterwarnings("ignore:.*precision lowered by casting")
def test_vector_environments_of_mo_gymnasium() -> None:
    import mo_gymnasium

    fns = [lambda: mo_gymnasium.make("deep-sea-treasure-v0")] * 3
    env = MOGymWrapper(mo_gymnasium.wrappers.vector.MOSyncVectorEnv(fns))
    check_env_specs(env, seed=0, break_when_any_done="both")
    env.set_seed(0)
    rollout = env.rollout(60, break_when_any_done=False)
    assert rollout["next", "done"].any()
    started = rollout["next", "done"][:, :-1].squeeze(-1)
    assert not rollout["observation"][:, 1:][started].any()
    assert torch.where(started, -1.0, rollout["next", "reward"][:, :-1, 1]).eq(-1).all()
