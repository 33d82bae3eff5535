"""Policies are loaded from files as they were saved; any other file raises."""

from dataclasses import asdict

import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete

from vecrl.policy import Policy, RunningNorm
from vecrl.policy.policy_io import PolicyIO
from vecrl.policy.saved_policy import SavedPolicy, save_atomically

SIZES = {"obs_length": 3, "act_length": 2}


def saved(network, normalized):
    norm = RunningNorm(shape=3, clip=2.0)
    norm.update(torch.randn(50, 3) * 4 + 7)
    vector = torch.randn(Policy(network, **SIZES).parameter_length)
    return SavedPolicy("Some-v1", network, SIZES, vector, norm.state_dict() if normalized else None, 2.0, 7.5), norm


@pytest.mark.parametrize("normalized", [False, True])
@pytest.mark.parametrize("network", ["Linear(obs_length, act_length)", "RNN(obs_length, 4) >> Linear(4, act_length)"])
def test_files_hold_the_complete_policy(network, normalized, tmp_path):
    before, norm = saved(network, normalized)
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
        expected = policy(norm.normalize(x) if normalized else x)
        out = module(x, *h)
        out, h = (out[0], (out[1],)) if isinstance(out, tuple) else (out, ())
        torch.testing.assert_close(out, expected)


def test_other_files_raise(tmp_path):
    torch.save({"weights": torch.zeros(3)}, tmp_path / "other.pt")
    with pytest.raises(ValueError, match="Expected a vecrl policy"):
        SavedPolicy.load(tmp_path / "other.pt")


def test_failed_saves_keep_the_old_file(tmp_path):
    save_atomically({"x": 1}, tmp_path / "a.pt")
    with pytest.raises(Exception, match=r"pickle|local object"):  # the message of the interpreter
        save_atomically({"x": lambda: 1}, tmp_path / "a.pt")
    assert torch.load(tmp_path / "a.pt", weights_only=True) == {"x": 1}
    assert [f.name for f in tmp_path.iterdir()] == ["a.pt"]


class Malicious:
    """Runs code if it is unpickled."""

    def __reduce__(self):
        return exec, ("raise SystemExit('it ran')",)


def damaged(path, how):
    torch.save({"x": torch.zeros(100)}, path)
    content = path.read_bytes()
    if how == "malicious":
        torch.save({"x": Malicious()}, path)
    else:
        path.write_bytes({"empty": b"", "text": b"hello\n", "half": content[:300], "no end": content[:-40]}[how])


@pytest.mark.parametrize("how", ["empty", "text", "half", "no end", "malicious"])
def test_damaged_files_raise(tmp_path, how):
    damaged(tmp_path / "p.pt", how)
    with pytest.raises(ValueError, match=r"p\.pt cannot be read: expected .* Use another") as exc_info:
        SavedPolicy.load(tmp_path / "p.pt")
    assert "weights_only" not in str(exc_info.value)
    with pytest.raises(FileNotFoundError):
        SavedPolicy.load(tmp_path / "none.pt")


LINEAR = "Linear(obs_length, act_length)"


@pytest.mark.parametrize(
    ("pieces", "text"),
    [
        ({"parameters": [1.0, 2.0]}, "Expected parameters to be a vector of floats, got list"),
        ({"parameters": torch.zeros(2, 4)}, "a vector of floats"),
        ({"parameters": torch.zeros(7)}, "Expected 8 parameters for its network, got 7"),
        ({"network": "Linear(obs_length, 10**9)"}, "at most 1,073,741,824 parameters, got 4,000,000,000"),
        ({"network": "Linear("}, "line 1"),
        ({"network": None}, "Expected network to be text, got None"),
        ({"constants": {"obs_length": "3"}}, "whole numbers by name"),
        ({"clip": "wide"}, "Expected clip to be None, or a number above 0, got 'wide'"),
        ({"clip": -1.0}, "above 0, got -1.0"),
        ({"norm": {"mean": torch.zeros(3)}}, "Expected norm"),
        ({"norm": {"count": torch.tensor(1.0), "mean": torch.zeros(5), "m2": torch.zeros(5)}}, "3 observed numbers"),
        ({"mean_return": "much"}, "Expected mean_return"),
        ({"spaces": {"actions": 3}}, "Expected spaces to be None, or texts by name, got dict"),
        ({"extra": 1}, "Expected env, network"),
    ],
)
def test_invalid_fields_raise_with_their_name(tmp_path, pieces, text):
    state = asdict(SavedPolicy("Some-v1", LINEAR, SIZES, torch.zeros(8)))
    save_atomically({"format": 1, **state, **pieces}, tmp_path / "p.pt")
    with pytest.raises(ValueError, match=r"p\.pt contains an invalid policy: ") as exc_info:
        SavedPolicy.load(tmp_path / "p.pt")
    assert text in str(exc_info.value)


def test_files_without_spaces_can_be_loaded(tmp_path):
    state = asdict(SavedPolicy("Some-v1", LINEAR, SIZES, torch.zeros(8)))
    del state["spaces"]
    save_atomically({"format": 1, **state}, tmp_path / "p.pt")
    assert SavedPolicy.load(tmp_path / "p.pt").spaces is None


def test_other_spaces_raise_with_their_description(tmp_path):
    policy_io = PolicyIO(Dict({"x": Box(-1, 1, (1,)), "n": Discrete(2)}), Discrete(2))
    policy = SavedPolicy("Some-v1", LINEAR, SIZES, torch.zeros(8), spaces=policy_io.spaces)
    policy.save(tmp_path / "p.pt")
    policy = SavedPolicy.load(tmp_path / "p.pt")
    policy.check_spaces("Some-v2", policy_io)
    with pytest.raises(ValueError, match=r"obs_length 3, as Some-v1 has, got Other-v0 with obs_length 4. Give"):
        policy.check_spaces("Other-v0", PolicyIO(Box(-1, 1, (4,)), Discrete(2)))
    expected = (
        r"observations \['n'\]: Discrete\(2\); \['x'\]: Box\(1,\), as Some-v1 has, got Other-v0 with .* Box\(3,\)"
    )
    with pytest.raises(ValueError, match=expected):
        policy.check_spaces("Other-v0", PolicyIO(Box(-1, 1, (3,)), Discrete(2)))
    with pytest.raises(ValueError, match=r"actions Discrete\(2\), .* with actions Box\(2,\)"):
        policy.check_spaces("Other-v0", PolicyIO(policy_io.observation_space, Box(-1, 1, (2,))))
