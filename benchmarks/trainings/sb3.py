"""PPO and SAC of Stable-Baselines3 on its vector environments and on vecrl's."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium
import numpy as np
from stable_baselines3 import PPO, SAC
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecMonitor

from vecrl.interop.sb3 import VecEnv

from .log import Log


def _monitored(env: str) -> Any:
    return Monitor(gymnasium.make(env))


def _functions(env: str, count: int) -> list[Callable[[], Any]]:
    return [partial(_monitored, env)] * count


WAYS: dict[str, Callable[[str, int], Any]] = {
    "SB3 DummyVecEnv": lambda env, count: DummyVecEnv(_functions(env, count)),
    "SB3 SubprocVecEnv": lambda env, count: SubprocVecEnv(_functions(env, count)),
    "vecrl, import changed": lambda env, count: VecEnv(_functions(env, count), backend="auto"),
    "vecrl, mujoco::": lambda env, count: VecMonitor(VecEnv(f"mujoco::{env}", n_envs=count)),
}


class _Recorder(BaseCallback):
    """Records the mean return of the last hundred episodes after each rollout."""

    def __init__(self, log: Log, every: int):
        super().__init__()
        self.log, self.every, self.next = log, every, every

    def _on_training_start(self) -> None:
        self.log.start()

    def _on_step(self) -> bool:
        if self.num_timesteps >= self.next and self.model.ep_info_buffer:
            self.next += self.every
            self.log.add(self.num_timesteps, np.mean([episode["r"] for episode in self.model.ep_info_buffer]))
        return True


def train(way: str, seed: int, log: Log, *, env: str, envs: int, total: int, algorithm: str, **options: Any) -> None:
    """Trains PPO or SAC for `total` steps of all environments."""
    made = WAYS[way](env, envs)
    made.step = log.timed(made.step)
    made.seed(seed)
    cls: Any = {"PPO": PPO, "SAC": SAC}[algorithm]
    model = cls("MlpPolicy", made, seed=seed, device="cpu", **options)
    model.learn(total, callback=_Recorder(log, total // 20))
    made.close()
