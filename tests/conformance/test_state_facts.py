"""A state is refused by an object that was constructed in another way, wherever in it the difference is."""

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.wrappers.vector import RecordEpisodeStatistics

from vecrl import checkpoint
from vecrl.envs import GymWrapper
from vecrl.errors import CheckpointError, StateError
from vecrl.vector import AsyncVectorEnv, SyncVectorEnv, VectorEnv, make_vector_env

MODES = ["next_step", "disabled", "same_step"]


def cartpoles(n: int = 2) -> list[Callable[[], Any]]:
    return [lambda: gymnasium.make("CartPole-v1")] * n


def named(name: str, **options: Any) -> Any:
    return make_vector_env(name, **{"num_envs": 2, **options})


WITH_MODES: dict[str, Callable[[str], Any]] = {
    "VectorEnv": lambda mode: VectorEnv(cartpoles(), autoreset_mode=mode),
    "AsyncVectorEnv": lambda mode: AsyncVectorEnv(cartpoles(), autoreset_mode=mode, num_workers=1),
    "gym::": lambda mode: named("gym::CartPole-v1", autoreset_mode=mode),
    "native::": lambda mode: named("native::CartPole-v1", autoreset_mode=mode),
    "a wrapper of gymnasium": lambda mode: RecordEpisodeStatistics(VectorEnv(cartpoles(), autoreset_mode=mode)),
    "a wrapper of both": lambda mode: RecordEpisodeStatistics(named("native::CartPole-v1", autoreset_mode=mode)),
    "TensorDict": lambda mode: GymWrapper(VectorEnv(cartpoles(), autoreset_mode=mode)),
}


@pytest.mark.parametrize("name", WITH_MODES)
def test_states_of_another_autoreset_mode_raise(name, tmp_path):
    make = WITH_MODES[name]
    modes = MODES[:2] if name in ("gym::", "TensorDict") else MODES  # the third is another class, or not taken
    for saved_mode in modes:
        saved = make(saved_mode)
        checkpoint.save(tmp_path / "a.ckpt", env=saved)
        for mode in modes:
            env = make(mode)
            before = getattr(env, "metadata", None)
            if mode == saved_mode:
                checkpoint.load(tmp_path / "a.ckpt", env=env)
            else:
                with pytest.raises(StateError, match="Expected a state with autoreset_mode"):
                    checkpoint.load(tmp_path / "a.ckpt", env=env)
            assert getattr(env, "metadata", None) == before
            env.close()
        saved.close()


@pytest.mark.parametrize(
    ("make", "options"),
    [
        (named, {"force_classic_api": True}),
        (named, {"clip_actions": True}),
        (named, {"num_episodes": 3}),
        (named, {"empty_info": True}),
        (named, {"discrete_to_continuous_act": True}),
        (lambda _, **options: SyncVectorEnv(cartpoles(), **options), {"num_episodes": 3}),
        (lambda _, **options: SyncVectorEnv(cartpoles(), **options), {"empty_info": True}),
    ],
)
@pytest.mark.parametrize("name", ["native::CartPole-v1", "gym::CartPole-v1"])
def test_states_of_other_options_raise(name, make, options, tmp_path):
    saved, env = make(name, **options), make(name)
    saved.reset(seed=1)
    env.reset(seed=1)
    checkpoint.save(tmp_path / "a.ckpt", env=saved)
    with pytest.raises((CheckpointError, StateError), match=f"{next(iter(options))}|action_space"):
        checkpoint.load(tmp_path / "a.ckpt", env=env)
    action = np.ones(2, np.int64) if isinstance(env, SyncVectorEnv) else torch.ones(2, dtype=torch.int64)
    assert len(env.step(action)) == 5
    saved.close()
    env.close()
