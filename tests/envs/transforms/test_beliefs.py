"""Beliefs for policies over Gaussians."""

import pytest
import torch
from tensordict import TensorDict

from vecrl.envs import check_env_specs
from vecrl.envs.transforms import MeanActionSelector, TransformedEnv
from vecrl.errors import SpaceError
from vecrl.specs import Bounded, Unbounded
from vecrl.testing import IndependentRowsEnv

from .test_actions import ActionRecorder


@pytest.mark.parametrize("batch", [(), (4,)])
def test_beliefs_and_means(batch: tuple[int, ...]) -> None:
    base = ActionRecorder(Bounded(-1, 1, (*batch, 2)), batch)
    env = TransformedEnv(base, MeanActionSelector())
    root = env.reset()
    assert root["observation", "mean"].shape == (*batch, 1)
    assert root["observation", "var"].equal(torch.zeros(*batch, 1, 1))
    mean = torch.rand(*batch, 2)
    root["action"] = TensorDict(mean=mean, var=torch.zeros(*batch, 2, 2), batch_size=batch)
    step = env.step(root)
    assert base.action.equal(mean)
    assert step["action", "mean"].equal(mean)
    assert set(step["next", "observation"].keys()) == {"mean", "var"}
    check_env_specs(env)


def test_specs() -> None:
    env = TransformedEnv(IndependentRowsEnv((0, 1)), MeanActionSelector("position", "action"))
    assert env.full_action_spec["action", "mean"] == Bounded(-1, 1, (2, 2))
    position = env.observation_spec["position"]
    assert position["mean"] == Unbounded((2, 2), dtype=torch.float64)
    assert position["var"] == Unbounded((2, 2, 2), dtype=torch.float64)
    assert env.rollout(3)["position", "mean"].equal(IndependentRowsEnv((0, 1)).rollout(3)["position"])


def test_stored_data() -> None:
    belief = MeanActionSelector()(TensorDict(observation=torch.ones(5, 3), batch_size=[5]))["observation"]
    assert belief["mean"].equal(torch.ones(5, 3))
    assert belief["var"].shape == (5, 3, 3)
    assert MeanActionSelector().inv(TensorDict(action=TensorDict(mean=torch.ones(2))))["action"].tolist() == [1, 1]


def test_errors() -> None:
    for key in ("ticks", "pixels", "absent"):
        with pytest.raises(SpaceError, match=f"an observation at '{key}' that is a vector of floats"):
            TransformedEnv(IndependentRowsEnv(), MeanActionSelector(key)).observation_spec  # noqa: B018
    with pytest.raises(SpaceError, match=r"an action at 'force', got only \['action', 'choice'\]"):
        TransformedEnv(IndependentRowsEnv(), MeanActionSelector(action_key="force")).action_spec  # noqa: B018
    with pytest.raises(KeyError, match="expects an entry 'observation'"):
        MeanActionSelector()(TensorDict(x=torch.ones(1)))
