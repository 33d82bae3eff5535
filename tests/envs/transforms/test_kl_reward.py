"""Penalties for policies that leave a reference policy."""

from typing import Any

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import (
    NormalParamExtractor,
    ProbabilisticTensorDictModule,
    ProbabilisticTensorDictSequential,
    TensorDictModule,
)
from torch import distributions, nn

from vecrl.envs import GymEnv
from vecrl.envs.transforms import KLRewardTransform


class IndependentNormal(distributions.Independent):
    def __init__(self, loc: torch.Tensor, scale: torch.Tensor) -> None:
        super().__init__(distributions.Normal(loc, scale), 1)


def actor(size: int = 1) -> Any:
    network = nn.Sequential(nn.Linear(3, 2 * size), NormalParamExtractor())
    sampling = {"distribution_class": IndependentNormal, "return_log_prob": True, "log_prob_key": "log_p"}
    return ProbabilisticTensorDictSequential(
        TensorDictModule(network, in_keys=["observation"], out_keys=["loc", "scale"]),
        ProbabilisticTensorDictModule(["loc", "scale"], ["action"], **sampling),
    )


def played(policy: Any, rows: int = 5) -> Any:
    roots = policy(TensorDict({"observation": torch.rand(rows, 3)}, [rows])).detach()
    return roots.set("next", TensorDict({"reward": torch.rand(rows, 1)}, [rows]))


def test_rewards_lose_the_difference_of_log_probabilities() -> None:
    policy, reference = actor(2), actor(2)
    data = played(policy)
    reward = data["next", "reward"].clone()
    changed = KLRewardTransform(reference, coef=0.3, log_prob_key="log_p")(data)
    with torch.no_grad():
        dist = IndependentNormal(*reference[0].module(data["observation"]))
        expected = (data["log_p"] - dist.log_prob(data["action"])).unsqueeze(-1)
    assert expected.abs().min() > 0
    torch.testing.assert_close(changed["next", "kl_penalty"], expected)
    torch.testing.assert_close(changed["next", "reward"], reward - 0.3 * expected)
    assert changed["log_p"].equal(data["log_p"])


def test_the_policy_itself_costs_nothing() -> None:
    policy = actor()
    data = played(policy)
    reward = data["next", "reward"].clone()
    torch.testing.assert_close(KLRewardTransform(policy, log_prob_key="log_p")(data)["next", "reward"], reward)


def test_only_the_penalty_and_other_keys() -> None:
    policy = actor()
    data = played(policy)
    reward = data["next", "reward"].clone()
    data = KLRewardTransform(actor(), log_prob_key="log_p", add_to_reward=False)(data)
    assert data["next", "reward"].equal(reward)
    assert data["next", "kl_penalty"].abs().min() > 0
    data = played(policy)
    data["next", "agents", "pay"] = torch.ones(5, 2, 1)
    keys: Any = [("agents", "pay")], [("agents", "new")]
    data = KLRewardTransform(ref_model_factory=actor, in_keys=keys[0], out_keys=keys[1], log_prob_key="log_p")(data)
    penalty = data["next", "agents", "kl_penalty"]
    assert penalty.shape == (5, 2, 1)
    torch.testing.assert_close(data["next", "agents", "new"], 1 - penalty)


def test_gradients() -> None:
    for requires_grad in (False, True):
        reference = actor()
        data = KLRewardTransform(reference, log_prob_key="log_p", requires_grad=requires_grad)(played(actor()))
        assert data["next", "reward"].requires_grad == requires_grad
    assert set(KLRewardTransform(reference).state_dict()) == {f"ref_model.{key}" for key in reference.state_dict()}


def test_a_model_that_writes_log_probabilities_of_tokens() -> None:
    """The form of a language model: the reward of each token loses the difference for this token."""
    model = TensorDictModule(lambda tokens: -tokens.float(), in_keys=["tokens"], out_keys=[("log_probs", "full")])
    roots = {"tokens": torch.arange(6).view(2, 3), "log_probs": {"full": torch.zeros(2, 3)}}
    data = TensorDict({**roots, "next": {"reward": torch.zeros(2, 3, 1)}}, [2])
    changed = KLRewardTransform(model, coef=2.0)(data)
    assert changed["next", "reward"].squeeze(-1).tolist() == [[0, -2, -4], [-6, -8, -10]]
    assert not data["log_probs", "full"].any()


def test_in_an_environment_with_its_policy() -> None:
    policy = actor()
    env = GymEnv("Pendulum-v1").append_transform(KLRewardTransform(policy, log_prob_key="log_p"))
    rollout = env.rollout(4, policy)
    torch.testing.assert_close(rollout["next", "kl_penalty"], torch.zeros(4, 1))
    assert rollout["kl_penalty"].shape == (4, 1)


def test_errors() -> None:
    for arguments in ({}, {"ref_model": actor(), "ref_model_factory": actor}):
        with pytest.raises(ValueError, match="either ref_model or ref_model_factory"):
            KLRewardTransform(**arguments)
    with pytest.raises(KeyError, match="log_probs"):
        KLRewardTransform(actor())(played(actor()))
    with pytest.raises(KeyError, match="'next'"):
        KLRewardTransform(actor(), log_prob_key="log_p")(played(actor()).exclude("next"))
    with pytest.raises(KeyError, match="'pay'"):
        KLRewardTransform(actor(), in_keys="pay", log_prob_key="log_p")(played(actor()))
    data = played(actor())
    data["log_p"] = torch.zeros(5, 7)
    with pytest.raises(ValueError, match=r"broadcast with the reward 'reward' of shape \(5, 1\)"):
        KLRewardTransform(TensorDictModule(nn.Linear(3, 7), ["observation"], ["log_p"]), log_prob_key="log_p")(data)
