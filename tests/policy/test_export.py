"""Policies from files: `Policy.load`, and programs of torch.export and ONNX with the same outputs."""

import sys

import numpy as np
import pytest
import torch

from vecrl.policy import Policy, str_to_net
from vecrl.policy.export import export_policy
from vecrl.policy.functional import count_parameters
from vecrl.policy.saved_policy import SavedPolicy

NETWORKS = {
    "feed-forward": "Linear(obs_length, 16) >> Tanh() >> Linear(16, act_length)",
    "rnn": "RNN(obs_length, 8) >> Linear(8, act_length)",
    "lstm": "Linear(obs_length, 8) >> LSTM(8, 8) >> Linear(8, act_length)",
}
EVERY = pytest.mark.parametrize("network", NETWORKS.values(), ids=NETWORKS)


def saved_policy(network):
    constants = {"obs_length": 4, "act_length": 2}
    parameters = torch.randn(count_parameters(str_to_net(network, **constants)), generator=torch.manual_seed(0))
    norm = {"count": torch.tensor(9.0), "mean": torch.arange(4.0), "m2": torch.full((4,), 20.0)}
    return SavedPolicy("CartPole-v1", network, constants, parameters, norm, 5.0)


def episode_of(module, observations):
    """Returns the outputs of a module for the observations of an episode `[t, n, 4]`, and its hidden states."""
    outputs, state = [], ()
    for obs in observations:
        result = module(obs, *state)
        output, *state = result if isinstance(result, tuple) else (result,)
        outputs.append(output)
    return torch.stack(outputs)


@EVERY
def test_loaded_policies_compute_what_the_saved_module_does(network, tmp_path):
    saved = saved_policy(network)
    saved.save(tmp_path / "best.pt")
    policy = Policy.load(tmp_path / "best.pt")
    observations = torch.randn(5, 3, 4)
    with torch.no_grad():
        expected = episode_of(saved.module(), observations)
        torch.testing.assert_close(torch.stack([policy(obs) for obs in observations]), expected)
    assert torch.equal(policy.parameters, saved.parameters)
    assert torch.equal(Policy.load(tmp_path).parameters, saved.parameters)


def test_loading_refuses_what_is_no_policy(tmp_path):
    (tmp_path / "best.pt").write_bytes(b"junk")
    with pytest.raises(ValueError, match=r"best\.pt"):
        Policy.load(tmp_path / "best.pt")
    with pytest.raises(OSError):
        Policy.load(tmp_path / "none.pt")


@EVERY
@pytest.mark.parametrize("rows", [1, 7])
def test_exported_programs_compute_the_same_for_any_number_of_rows(network, rows, tmp_path):
    saved = saved_policy(network)
    export_policy(saved, tmp_path / "policy.pt2")
    program = torch.export.load(tmp_path / "policy.pt2").module()
    observations = torch.randn(5, rows, 4)
    with torch.no_grad():
        module = saved.module()
        if network == NETWORKS["feed-forward"]:
            torch.testing.assert_close(episode_of(program, observations), episode_of(module, observations))
            return
        zeros = torch.utils._pytree.tree_map(torch.zeros_like, module(observations[0])[1])
        state = other = zeros
        for obs in observations:
            output, state = module(obs, state)
            same, other = program(obs, other)
            torch.testing.assert_close(same, output)


@pytest.mark.peers
@EVERY
def test_onnx_computes_the_same(network, tmp_path):
    import onnxruntime

    saved = saved_policy(network)
    export_policy(saved, tmp_path / "policy.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "policy.onnx")
    names = [entry.name for entry in session.get_inputs()]
    obs = torch.randn(3, 4)
    with torch.no_grad():
        result = saved.module()(obs)
        leaves = [] if isinstance(result, torch.Tensor) else torch.utils._pytree.tree_leaves(result[1])
        zeros = [np.zeros(leaf.shape, np.float32) for leaf in leaves]
        found = session.run(None, dict(zip(names, [obs.numpy(), *zeros], strict=True)))
        expected = result if isinstance(result, torch.Tensor) else result[0]
    np.testing.assert_allclose(found[0], expected, rtol=1e-4, atol=1e-5)


def test_other_files_and_missing_libraries_are_refused(tmp_path, monkeypatch):
    saved = saved_policy(NETWORKS["feed-forward"])
    with pytest.raises(ValueError, match=r"ends in \.pt2 or \.onnx, got"):
        export_policy(saved, tmp_path / "policy.bin")
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(ImportError, match=r'Expected the extra "onnx" for the export to ONNX, got none'):
        export_policy(saved, tmp_path / "policy.onnx")
    assert not list(tmp_path.iterdir())
