"""EvoTorch's problems and searchers over environments of `vecrl.vector`."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from vecrl.errors import VersionError
from vecrl.interop.evotorch import activate
from vecrl.policy import Policy, str_to_net
from vecrl.vector import SyncVectorEnv, TorchWrapper, VectorEnv, make_vector_env

pytestmark = [pytest.mark.peers, pytest.mark.filterwarnings("ignore")]

LINEAR = "Linear(obs_length, act_length)"


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def search(problem: Any, name: str = "SNES", generations: int = 1) -> list[float]:
    """Runs one of EvoTorch's searchers; returns the mean evaluation of each generation."""
    import evotorch.algorithms

    options = {
        "PGPE": {"center_learning_rate": 0.3, "stdev_learning_rate": 0.1},
        "CEM": {"parenthood_ratio": 0.25},
    }
    searcher = getattr(evotorch.algorithms, name)(problem, popsize=16, stdev_init=0.5, **options.get(name, {}))
    means = []
    for _ in range(generations):
        searcher.step()
        means.append(float(searcher.status["mean_eval"]))
    return means


def problem(env: Any, network: Any = LINEAR, **options: Any) -> Any:
    from evotorch.neuroevolution import VecGymNE

    return VecGymNE(env, network, **options)


@pytest.mark.parametrize("name", ["PGPE", "SNES", "CEM"])
def test_searchers_learn_on_native_tasks_as_they_are_made(name: str) -> None:
    cart_pole = problem(
        partial(make_vector_env, "native::CartPole-v1"),
        env_config={"max_episode_steps": 100},
        observation_normalization=True,
    )
    means = search(cart_pole, name, generations=6)
    assert means[-1] > 1.5 * means[0]
    assert all(1 <= mean <= 100 for mean in means)


MAKERS: dict[str, Any] = {
    "native": partial(make_vector_env, "native::CartPole-v1"),
    "gymnasium": partial(make_vector_env, "gym::CartPole-v1", empty_info=True),
    "the array environment": lambda num_envs: make_vector_env("native::CartPole-v1", num_envs=num_envs).env,
    "TorchWrapper": lambda num_envs: make_vector_env("CartPole-v1", num_envs=num_envs, backend="threads"),
    "SyncVectorEnv": lambda num_envs: SyncVectorEnv([partial(gymnasium.make, "CartPole-v1")] * num_envs),
    "VectorEnv": lambda num_envs: VectorEnv(
        [partial(gymnasium.make, "CartPole-v1")] * num_envs, autoreset_mode="same_step"
    ),
}


@pytest.mark.parametrize("maker", MAKERS)
def test_a_population_has_the_same_returns_on_each_class(maker: str) -> None:
    """A policy that always pushes to one side ends its episodes after 8 to 11 steps."""
    cart_pole = problem(MAKERS[maker], "Linear(obs_length, act_length, bias=True)", num_episodes=2)
    batch = cart_pole.generate_batch(4)
    batch.set_values(torch.tensor([0.0] * 8 + [0.0, 1.0]).expand(4, -1))
    cart_pole.evaluate(batch)
    assert ((batch.evals >= 8) & (batch.evals <= 11)).all()


def test_continuous_actions_and_observation_normalization() -> None:
    pendulum = problem(partial(make_vector_env, "native::Pendulum-v1"), observation_normalization=True)
    assert -2000 < search(pendulum)[0] < -500


@pytest.mark.parametrize("network", [str_to_net("RNN(4, 8) >> Linear(8, 2)"), str_to_net("Linear(4, 2)")])
def test_networks_of_vecrl_are_taken(network: torch.nn.Module) -> None:
    assert search(problem(MAKERS["native"], network))[0] > 8


def test_networks_of_evotorch_are_taken_by_policies_of_vecrl() -> None:
    from evotorch.neuroevolution.net import str_to_net as evotorch_net

    policy = Policy(evotorch_net("Linear(4, 8) >> Tanh() >> Linear(8, 2)"))
    policy.set_parameters(torch.randn(3, policy.parameter_length))
    assert policy(torch.randn(3, 4)).shape == (3, 2)


@pytest.mark.parametrize("name", ["native::CartPole-v1", "gym::CartPole-v1"])
def test_single_environments_are_taken_by_gymne(name: str) -> None:
    from evotorch.neuroevolution import GymNE

    assert search(GymNE(partial(make_vector_env, name), LINEAR))[0] > 8


@pytest.mark.parametrize("maker", MAKERS)
def test_the_wrapper_of_evotorch_returns_tensors(maker: str) -> None:
    from evotorch.neuroevolution.net.vecrl import TorchWrapper as EvoTorchWrapper

    wrapped, own = EvoTorchWrapper(MAKERS[maker](num_envs=2)), MAKERS[maker](num_envs=2)
    own = own if isinstance(own, TorchWrapper) else TorchWrapper(own)
    for env in (wrapped, own):
        env.reset(seed=1)
    actions = torch.tensor([0, 1])
    for result, expected in zip(wrapped.step(actions)[:4], own.step(actions)[:4], strict=True):
        assert torch.equal(result, expected)


@pytest.fixture
def vecgymne() -> Iterator[Any]:
    """The module that `activate` changes."""
    from evotorch.neuroevolution import vecgymne

    original = vecgymne.make_vector_env
    yield vecgymne
    vecgymne.make_vector_env = original


@pytest.mark.usefixtures("vecgymne")
def test_names_are_those_of_vecrl_after_activation() -> None:
    with pytest.raises(ValueError, match="native"):
        search(problem("native::CartPole-v1"))
    activate()
    for name in ("native::CartPole-v1", "gym::CartPole-v1", "CartPole-v1"):
        assert search(problem(name, num_episodes=2))[0] > 8


def test_other_versions_raise(vecgymne: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(vecgymne, "make_vector_env")
    with pytest.raises(VersionError, match="Give VecGymNE a function"):
        activate()
    monkeypatch.undo()


def test_environments_as_they_are_made_are_vector_environments_of_gymnasium() -> None:
    env = make_vector_env("native::CartPole-v1", num_envs=2)
    assert isinstance(env, gymnasium.vector.VectorEnv)
    assert isinstance(env.reset(seed=1)[0], torch.Tensor)
    assert isinstance(env.env.reset(seed=1)[0], np.ndarray)
