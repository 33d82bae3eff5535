"""Tianshou's collectors, buffers and algorithms over environments of `vecrl.venv` and over its own: equal results."""

from __future__ import annotations

from functools import partial
from types import ModuleType
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

import vecrl.venv

pytestmark = [pytest.mark.peers, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(scope="module")
def tianshou() -> ModuleType:
    """Tianshou, with the modules that are used here."""
    import tianshou.algorithm
    import tianshou.data
    import tianshou.env
    import tianshou.trainer
    import tianshou.utils.net.common

    return tianshou


CLASSES = ("DummyVectorEnv", "SubprocVectorEnv", "ShmemVectorEnv")


def make_envs(module: ModuleType, kind: str, env_id: str, **options: Any) -> Any:
    """Makes two environments with random streams that are equal in both modules."""
    envs = getattr(module, kind)([partial(gymnasium.make, env_id, max_episode_steps=40)] * 2, **options)
    torch.manual_seed(0)
    np.random.seed(0)  # noqa: NPY002 (Tianshou draws from it)
    envs.seed(3)
    if module is vecrl.venv:
        envs.reset()  # Tianshou's `seed` has reset the environments
    return envs


def net(tianshou: ModuleType, size: int, **options: Any) -> Any:
    return tianshou.utils.net.common.Net(state_shape=(size,), hidden_sizes=[16], **options)


def optimizer() -> Any:
    from tianshou.algorithm.optim import AdamOptimizerFactory

    return AdamOptimizerFactory(lr=1e-3)


def dqn(tianshou: ModuleType, action_space: Any, recurrent: bool = False) -> Any:
    from tianshou.algorithm.modelfree.dqn import DiscreteQLearningPolicy

    class WithState(DiscreteQLearningPolicy):
        """Returns a hidden state, as recurrent policies do."""

        def forward(self, batch: Any, state: Any = None, **options: Any) -> Any:
            result = super().forward(batch, state=state, **options)
            result.state = tianshou.data.Batch(hidden=np.zeros((len(result.act), 1)))
            return result

    kind = WithState if recurrent else DiscreteQLearningPolicy
    policy = kind(model=net(tianshou, 4, action_shape=2), action_space=action_space, eps_training=0.2)
    return tianshou.algorithm.DQN(policy=policy, optim=optimizer(), n_step_return_horizon=3, target_update_freq=20)


def ppo(tianshou: ModuleType, action_space: Any) -> Any:
    from tianshou.algorithm.modelfree.reinforce import DiscreteActorPolicy
    from tianshou.utils.net.discrete import DiscreteActor, DiscreteCritic

    actor = DiscreteActor(preprocess_net=net(tianshou, 4), action_shape=2, softmax_output=False)
    critic = DiscreteCritic(preprocess_net=net(tianshou, 4))
    policy = DiscreteActorPolicy(actor=actor, action_space=action_space)
    return tianshou.algorithm.PPO(policy=policy, critic=critic, optim=optimizer(), return_scaling=True)


def sac(tianshou: ModuleType, action_space: Any) -> Any:
    from tianshou.algorithm.modelfree.sac import SACPolicy
    from tianshou.utils.net.continuous import ContinuousActorProbabilistic, ContinuousCritic

    actor = ContinuousActorProbabilistic(
        preprocess_net=net(tianshou, 3), action_shape=(1,), unbounded=True, conditioned_sigma=True
    )
    critic = ContinuousCritic(preprocess_net=net(tianshou, 3, action_shape=(1,), concat=True))
    policy = SACPolicy(actor=actor, action_space=action_space)
    return tianshou.algorithm.SAC(
        policy=policy, policy_optim=optimizer(), critic=critic, critic_optim=optimizer(), alpha=0.1
    )


def train(tianshou: ModuleType, module: ModuleType, kind: str, name: str, prioritized: bool = False) -> list[Any]:
    """Trains an algorithm for a short time; returns its best score, the collected data and the parameters."""
    from tianshou.data import Collector, PrioritizedVectorReplayBuffer, VectorReplayBuffer
    from tianshou.trainer import OffPolicyTrainerParams, OnPolicyTrainerParams

    envs, test_envs = (
        make_envs(module, kind, "Pendulum-v1" if name == "sac" else "CartPole-v1") for kind in (kind, "DummyVectorEnv")
    )
    algorithm = {"dqn": dqn, "ppo": ppo, "sac": sac}[name](tianshou, envs.action_space[0])
    buffer = (
        PrioritizedVectorReplayBuffer(400, 2, alpha=0.6, beta=0.4)
        if prioritized
        else VectorReplayBuffer(400, len(envs))
    )
    collector = Collector(algorithm, envs, buffer, exploration_noise=name != "ppo")
    collector.reset()
    common = {
        "training_collector": collector,
        "test_collector": Collector(algorithm, test_envs),
        "max_epochs": 2,
        "epoch_num_steps": 100,
        "collection_step_num_env_steps": 50,
        "test_step_num_episodes": 2,
        "batch_size": 32,
        "verbose": False,
        "show_progress": False,
    }
    on_policy = name == "ppo"
    params = (
        OnPolicyTrainerParams(update_step_num_repetitions=2, **common)
        if on_policy
        else OffPolicyTrainerParams(update_step_num_gradient_steps_per_sample=0.2, **common)
    )
    result = algorithm.run_training(params)
    envs.close()
    test_envs.close()
    parameters = torch.cat([weight.detach().flatten() for weight in algorithm.policy.parameters()])
    return [result.best_score, buffer.obs.tolist(), np.asarray(buffer.act).tolist(), parameters.tolist()]


@pytest.mark.parametrize("kind", CLASSES)
def test_dqn_learns_the_same(tianshou: ModuleType, kind: str) -> None:
    assert train(tianshou, vecrl.venv, kind, "dqn") == train(tianshou, tianshou.env, "DummyVectorEnv", "dqn")


@pytest.mark.parametrize(("name", "prioritized"), [("dqn", True), ("ppo", False), ("sac", False)])
def test_algorithms_and_buffers_give_the_same_results(tianshou: ModuleType, name: str, prioritized: bool) -> None:
    runs = [train(tianshou, module, "SubprocVectorEnv", name, prioritized) for module in (vecrl.venv, tianshou.env)]
    assert runs[0] == runs[1]


@pytest.mark.parametrize("options", [{"wait_num": 1}, {"timeout": 0.01}])
@pytest.mark.parametrize("kind", CLASSES)
def test_the_asynchronous_collector_takes_policies_with_a_hidden_state(
    tianshou: ModuleType, kind: str, options: dict[str, Any]
) -> None:
    envs = make_envs(vecrl.venv, kind, "CartPole-v1", **options)
    algorithm = dqn(tianshou, envs.action_space[0], recurrent=True)
    buffer = tianshou.data.VectorReplayBuffer(400, 2)
    collector = tianshou.data.AsyncCollector(algorithm, envs, buffer, exploration_noise=True)
    collector.reset()
    steps = sum(collector.collect(n_step=60).n_collected_steps for _ in range(2))
    collected = collector.collect(n_episode=4)
    envs.close()
    assert collected.n_collected_episodes >= 4
    assert len(buffer) == steps + collected.n_collected_steps
    for part in buffer.buffers:  # no transition is lost or doubled: each continues the one before
        data = part[np.arange(len(part))]
        assert (data.obs_next[:-1] == data.obs[1:]).all(-1)[~data.done[:-1]].all()


def test_the_asynchronous_collector_collects_the_same(tianshou: ModuleType) -> None:
    runs = []
    for module in (vecrl.venv, tianshou.env):
        envs = make_envs(module, "DummyVectorEnv", "CartPole-v1", wait_num=2)
        buffer = tianshou.data.VectorReplayBuffer(400, 2)
        algorithm = dqn(tianshou, envs.action_space[0], recurrent=True)
        collector = tianshou.data.AsyncCollector(algorithm, envs, buffer)
        collector.reset()
        collector.collect(n_step=60)
        runs.append(buffer.obs.tolist())
    assert runs[0] == runs[1]


def test_the_asynchronous_collector_fails_with_other_policies_on_any_environments(tianshou: ModuleType) -> None:
    """Once this fails, remove the sentence about it from docs/from-tianshou.md."""
    for module in (vecrl.venv, tianshou.env):
        envs = make_envs(module, "DummyVectorEnv", "CartPole-v1", wait_num=1)
        collector = tianshou.data.AsyncCollector(
            dqn(tianshou, envs.action_space[0]), envs, tianshou.data.VectorReplayBuffer(400, 2)
        )
        collector.reset()
        with pytest.raises(IndexError, match="empty Batch"):
            collector.collect(n_step=10)


def test_normalizing_wrappers_of_both_wrap_environments_of_both(tianshou: ModuleType) -> None:
    runs = []
    for wrapper in (vecrl.venv.VectorEnvNormObs, tianshou.env.VectorEnvNormObs):
        for module in (vecrl.venv, tianshou.env):
            envs = wrapper(make_envs(module, "DummyVectorEnv", "CartPole-v1"))
            buffer = tianshou.data.VectorReplayBuffer(400, 2)
            collector = tianshou.data.Collector(dqn(tianshou, envs.action_space[0]), envs, buffer)
            collector.reset()
            collector.collect(n_step=60)
            assert len(envs) == 2
            runs.append(buffer.obs[:60])
            envs.close()
    for run in runs[1:]:
        np.testing.assert_allclose(run, runs[0], atol=1e-5)


class NoSpaces(gymnasium.Env):
    """Declares no spaces; observes dicts."""

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        self.count = 0
        return {"count": 0, "array": np.zeros(2)}, {}

    def step(self, action: Any) -> Any:
        self.count += 1
        return {"count": self.count, "array": np.full(2, self.count)}, 1.0, self.count == 4, False, {}


class AnotherShape(gymnasium.Env):
    """Observes an array where its space declares a number."""

    observation_space, action_space = spaces.Box(-9, 9, ()), spaces.Discrete(2)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        self.count = 0
        return np.zeros(1), {}

    def step(self, action: Any) -> Any:
        self.count += 1
        return np.full(1, float(self.count)), 1.0, self.count == 4, False, {}


@pytest.mark.parametrize("kind", CLASSES)
@pytest.mark.parametrize("env_class", [NoSpaces, AnotherShape])
def test_collectors_take_environments_without_spaces_or_with_other_observations(
    tianshou: ModuleType, kind: str, env_class: type[gymnasium.Env]
) -> None:
    from tianshou.algorithm.algorithm_base import Policy

    class First(Policy):
        def forward(self, batch: Any, state: Any = None, **options: Any) -> Any:
            rows = batch.obs.count if env_class is NoSpaces else batch.obs
            return tianshou.data.Batch(act=np.zeros(len(rows), int), state=None)

    envs = getattr(vecrl.venv, kind)([env_class] * 2)
    buffer = tianshou.data.VectorReplayBuffer(40, 2)
    collector = tianshou.data.Collector(First(action_space=spaces.Discrete(2)), envs, buffer)
    collector.reset()
    collected = collector.collect(n_episode=2)
    envs.close()
    assert collected.returns.tolist() == [4, 4]
    numbers = buffer.obs.array if env_class is NoSpaces else buffer.obs
    assert numbers[:4, 0].tolist() == [0, 1, 2, 3]
    assert numbers.shape == ((40, 2) if env_class is NoSpaces else (40, 1))


def make_game() -> Any:
    from pettingzoo.classic import tictactoe_v3
    from tianshou.env import PettingZooEnv

    return PettingZooEnv(tictactoe_v3.env())


def test_agents_of_pettingzoo_play_the_same_games(tianshou: ModuleType) -> None:
    from tianshou.algorithm.multiagent.marl import MultiAgentPolicy
    from tianshou.algorithm.random import MARLRandomDiscreteMaskedOffPolicyAlgorithm as RandomPlayer

    runs = []
    for module in (vecrl.venv, tianshou.env):
        np.random.seed(0)  # noqa: NPY002 (Tianshou draws from it)
        envs, game = module.DummyVectorEnv([make_game] * 2), make_game()
        players = {agent: RandomPlayer(action_space=game.action_space).policy for agent in game.agents}
        buffer = tianshou.data.VectorReplayBuffer(200, 2)
        collector = tianshou.data.Collector(MultiAgentPolicy(policies=players), envs, buffer)
        collector.reset()
        runs.append([collector.collect(n_episode=4).returns.tolist(), buffer.rew.tolist(), buffer.act.tolist()])
        envs.close()
    assert runs[0] == runs[1]
    assert np.shape(runs[0][0]) == (4, 2)
