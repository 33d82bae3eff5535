"""DQN and SAC of Tianshou on its vector environments and on vecrl's."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import tianshou.env
import torch
from tianshou.algorithm import DQN, SAC
from tianshou.algorithm.modelfree.dqn import DiscreteQLearningPolicy
from tianshou.algorithm.modelfree.sac import SACPolicy
from tianshou.algorithm.optim import AdamOptimizerFactory
from tianshou.data import Collector, VectorReplayBuffer
from tianshou.trainer import OffPolicyTrainerParams
from tianshou.utils.net.common import Net
from tianshou.utils.net.continuous import ContinuousActorProbabilistic, ContinuousCritic

import vecrl.venv

from .log import Log

WAYS: dict[str, Callable[[Any], Any]] = {
    "Tianshou DummyVectorEnv": tianshou.env.DummyVectorEnv,
    "Tianshou SubprocVectorEnv": tianshou.env.SubprocVectorEnv,
    "vecrl DummyVectorEnv": vecrl.venv.DummyVectorEnv,
    "vecrl SubprocVectorEnv, 2 workers": partial(vecrl.venv.SubprocVectorEnv, num_workers=2),
}


def train(
    way: str,
    seed: int,
    log: Log,
    *,
    env: str,
    envs: int,
    total: int,
    epochs: int,
    tests: int = 10,
    updates: float = 0.5,
) -> None:
    """Trains for `total` steps in so many epochs, with `tests` episodes after each, and `updates` for each step.

    DQN, as on the training page, or SAC, if actions are numbers.
    """
    torch.manual_seed(seed)
    np.random.seed(seed)  # noqa: NPY002 -- Tianshou draws from it
    made, test = (WAYS[way]([partial(gymnasium.make, env)] * count) for count in (envs, tests))
    made.seed(seed)
    test.seed(100 + seed)
    for each in (made, test):
        if way.startswith("vecrl"):
            each.reset()  # which Tianshou's `seed` does
        each.step = log.timed(each.step)
    algorithm = (_dqn if made.action_space[0].shape == () else _sac)(made)
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
            update_step_num_gradient_steps_per_sample=updates,
            batch_size=64,
            test_step_num_episodes=tests,
            compute_score_fn=score,
            verbose=False,
            show_progress=False,
        )
    )
    made.close()
    test.close()


def _dqn(envs: Any) -> Any:
    network = Net(state_shape=(4,), action_shape=2, hidden_sizes=[128, 128], norm_layer=torch.nn.LayerNorm)
    policy = DiscreteQLearningPolicy(model=network, action_space=envs.action_space[0], eps_training=0.1)
    optimizer = AdamOptimizerFactory(lr=5e-4)
    return DQN(policy=policy, optim=optimizer, gamma=0.99, n_step_return_horizon=3, target_update_freq=50)


def _sac(envs: Any) -> Any:
    observed, action_space = envs.observation_space[0].shape, envs.action_space[0]
    actor = ContinuousActorProbabilistic(
        preprocess_net=Net(state_shape=observed, hidden_sizes=[256, 256]),
        action_shape=action_space.shape,
        unbounded=True,
        conditioned_sigma=True,
    )
    networks = (
        Net(state_shape=observed, action_shape=action_space.shape, hidden_sizes=[256, 256], concat=True)
        for _ in range(2)
    )
    first, second = (ContinuousCritic(preprocess_net=network) for network in networks)
    optimizer = AdamOptimizerFactory(lr=3e-4)
    return SAC(
        policy=SACPolicy(actor=actor, action_space=action_space),
        policy_optim=optimizer,
        critic=first,
        critic_optim=optimizer,
        critic2=second,
        critic2_optim=optimizer,
    )
