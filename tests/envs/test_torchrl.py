"""Results of TorchRL and vecrl, and losses over rollouts, if TorchRL is installed (`make test-old-tensordict`)."""

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from tests.fixtures.cartpole_actor import make_actor, make_cartpole
from torch import nn

from vecrl import specs
from vecrl.envs.transforms import ClipTransform

pytestmark = [pytest.mark.torchrl, pytest.mark.filterwarnings("ignore")]


def test_losses_train_on_vecrl_rollouts() -> None:
    from torchrl.objectives import ClipPPOLoss
    from torchrl.objectives.value import GAE

    env, policy = make_cartpole("serial"), make_actor()
    critic = TensorDictModule(nn.Linear(4, 1), in_keys=["observation"], out_keys=["state_value"])
    data = env.rollout(40, policy, break_when_any_done=False)
    GAE(gamma=0.99, lmbda=0.95, value_network=critic)(data)
    losses = ClipPPOLoss(policy, critic)(data.reshape(-1).detach())
    total = sum(value for key, value in losses.items() if key.startswith("loss_"))
    total.backward()
    assert all(weight.grad is not None for weight in policy.parameters())
    env.close()


def test_integer_clipping_equals_torchrl() -> None:
    from torchrl.envs.transforms import ClipTransform as Theirs

    values = torch.tensor([-3, 0, 2])
    for ends in ({"low": -0.1, "high": 0.1}, {"low": -1, "high": 1.5}):
        actual, expected = (
            clip(in_keys=["x"], **ends)(TensorDict(x=values.clone()))["x"] for clip in (ClipTransform, Theirs)
        )
        assert actual.dtype == expected.dtype
        assert actual.equal(expected)


def test_projections_equal_torchrl() -> None:
    from torchrl import data

    found = []
    for module in (data, specs):
        spec = module.Composite(x=module.Bounded(0, 1, (2, 3)), shape=(2,))
        inputs = TensorDict(x=torch.full((5, 2, 3), 7.0), batch_size=(5, 2), names=["time", "row"])
        assert spec.project(inputs) is inputs
        found.append(inputs)
    assert (found[0] == found[1]).all()
    assert found[0].names == found[1].names


def test_nested_specs_are_shared_as_in_torchrl() -> None:
    from torchrl import data

    for module in (data, specs):
        inner = module.Composite(x=module.Unbounded((2,)))
        outer = module.Composite(inner=inner)
        assert outer["inner"] is inner
        outer.lock_(recurse=True)
        assert inner.is_locked
        parts = [module.Composite(x=module.Unbounded((size,))) for size in (2, 3)]
        stack = torch.stack(parts)
        assert stack[0] is parts[0]
        del stack[0]["x"]
        assert list(stack.keys()) == []
