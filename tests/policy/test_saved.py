"""Policies come out of their files as they went in, and as nothing else."""

import pytest
import torch

from vecrl.policy import Policy, RunningNorm
from vecrl.policy.saved import SavedPolicy, save_atomically

SIZES = {"obs_length": 3, "act_length": 2}


def saved(network, normalised):
    norm = RunningNorm(shape=3, clip=2.0)
    norm.update(torch.randn(50, 3) * 4 + 7)
    vector = torch.randn(Policy(network, **SIZES).parameter_length)
    return SavedPolicy("Some-v1", network, SIZES, vector, norm.state_dict() if normalised else None, 2.0, 7.5), norm


@pytest.mark.parametrize("normalised", [False, True])
@pytest.mark.parametrize("network", ["Linear(obs_length, act_length)", "RNN(obs_length, 4) >> Linear(4, act_length)"])
def test_a_file_holds_all_it_takes(network, normalised, tmp_path):
    before, norm = saved(network, normalised)
    before.save(tmp_path / "best.pt")
    assert [f.name for f in tmp_path.iterdir()] == ["best.pt"]
    after = SavedPolicy.load(tmp_path / "best.pt")
    assert (after.env, after.network, after.constants, after.mean_return) == ("Some-v1", network, SIZES, 7.5)
    assert torch.equal(after.parameters, before.parameters)
    policy = Policy(network, **SIZES)
    policy.set_parameters(before.parameters)
    module, h = after.module(), ()
    for _ in range(3):
        x = torch.randn(3) * 20
        wanted = policy(norm.normalize(x) if normalised else x)
        out = module(x, *h)
        out, h = (out[0], (out[1],)) if isinstance(out, tuple) else (out, ())
        torch.testing.assert_close(out, wanted)


def test_something_else_is_refused(tmp_path):
    torch.save({"weights": torch.zeros(3)}, tmp_path / "other.pt")
    with pytest.raises(ValueError, match="no policy of vecrl"):
        SavedPolicy.load(tmp_path / "other.pt")


def test_a_save_that_fails_leaves_the_old_file_alone(tmp_path):
    save_atomically({"x": 1}, tmp_path / "a.pt")
    with pytest.raises(Exception, match="pickle"):
        save_atomically({"x": lambda: 1}, tmp_path / "a.pt")
    assert torch.load(tmp_path / "a.pt", weights_only=True) == {"x": 1}
    assert [f.name for f in tmp_path.iterdir()] == ["a.pt"]
