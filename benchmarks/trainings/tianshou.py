"""DQN of Tianshou on its vector environments and on vecrl's."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import tianshou.env
import torch
from tianshou.algorithm import DQN
from tianshou.algorithm.modelfree.dqn import DiscreteQLearningPolicy
from tianshou.algorithm.optim import AdamOptimizerFactory
from tianshou.data import Collector, VectorReplayBuffer
from tianshou.trainer import OffPolicyTrainerParams
from tianshou.utils.net.common import Net

import vecrl.venv

from .log import Log

WAYS: dict[str, Callable[[Any], Any]] = {
    "Tianshou DummyVectorEnv": tianshou.env.DummyVectorEnv,
    "Tianshou SubprocVectorEnv": tianshou.env.SubprocVectorEnv,
    "vecrl DummyVectorEnv": vecrl.venv.DummyVectorEnv,
    "vecrl SubprocVectorEnv, 2 workers": partial(vecrl.venv.SubprocVectorEnv, num_workers=2),
}


def train(way: str, seed: int, log: Log, *, env: str, envs: int, total: int, epochs: int) -> None:
    """Trains for `total` steps in so many epochs, with a test of ten episodes after each, as the training page does."""
    torch.manual_seed(seed)
    np.random.seed(seed)  # noqa: NPY002 -- Tianshou draws from it
    made, test = (WAYS[way]([partial(gymnasium.make, env)] * envs) for _ in range(2))
    made.seed(seed)
    test.seed(100 + seed)
    for each in (made, test):
        if way.startswith("vecrl"):
            each.reset()  # which Tianshou's `seed` does
        each.step = log.timed(each.step)
    space: Any = made.action_space[0]
    network = Net(state_shape=(4,), action_shape=2, hidden_sizes=[128, 128], norm_layer=torch.nn.LayerNorm)
    policy = DiscreteQLearningPolicy(model=network, action_space=space, eps_training=0.1)
    algorithm = DQN(
        policy=policy, optim=AdamOptimizerFactory(lr=5e-4), gamma=0.99, n_step_return_horizon=3, target_update_freq=50
    )
    collector = Collector(algorithm, made, VectorReplayBuffer(50_000, envs), exploration_noise=True)
    collector.reset()
    collector.collect(n_step=1_000)
    steps = iter(range(0, 2 * total, total // epochs))

    def score(stats: Any) -> float:
        log.add(next(steps), stats.returns_stat.mean)
        return stats.returns_stat.mean

    log.start()
    algorithm.run_training(
        OffPolicyTrainerParams(
            training_collector=collector,
            test_collector=Collector(algorithm, test),
            max_epochs=epochs,
            epoch_num_steps=total // epochs,
            collection_step_num_env_steps=envs,
            update_step_num_gradient_steps_per_sample=0.5,
            batch_size=64,
            test_step_num_episodes=10,
            compute_score_fn=score,
            verbose=False,
            show_progress=False,
        )
    )
    made.close()
    test.close()
