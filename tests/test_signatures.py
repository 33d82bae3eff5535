"""Public names and signatures of dialects 1 and 2: a user of the source library changes only an import."""

import inspect
from importlib import import_module
from operator import attrgetter

import pytest
from torch import nn

SIGNATURES = {
    "vector.array_type": lambda x, fallback=None: ...,
    "vector.convert_to_torch": lambda x: ...,
    "vector.convert_from_torch": lambda x, array_type: ...,
    "vector.convert_to_torch_bool": lambda x: ...,
    "vector.reset_tensors": lambda x, indices: ...,
    "vector.BaseVectorEnv": lambda num_envs, observation_space, action_space: ...,
    "vector.SyncVectorEnv": lambda env_makers, *, empty_info=False, num_episodes=None, device=None: ...,
    "vector.TorchWrapper": (
        lambda env, *, force_classic_api=False, discrete_to_continuous_act=False, clip_actions=False: ...
    ),
    "vector.make_gym_env": (
        lambda env_name, *, force_classic_api=False, num_envs=None, discrete_to_continuous_act=False,
        clip_actions=False, empty_info=False, num_episodes=None, device=None, **kwargs: ...
    ),
    "vector.make_brax_env": (
        lambda env_name, *, force_classic_api=False, num_envs=None, discrete_to_continuous_act=False,
        clip_actions=False, **kwargs: ...
    ),
    "vector.make_vector_env": (
        lambda env_name, *, force_classic_api=False, num_envs=None, discrete_to_continuous_act=False,
        clip_actions=False, gym_kwargs=None, brax_kwargs=None, **kwargs: ...
    ),
    "venv.DummyVectorEnv": lambda env_fns, wait_num=None, timeout=None: ...,
    "venv.SubprocVectorEnv": lambda env_fns, wait_num=None, timeout=None, share_memory=False, context=None: ...,
    "venv.ShmemVectorEnv": lambda env_fns, wait_num=None, timeout=None: ...,
    "venv.RayVectorEnv": lambda env_fns, wait_num=None, timeout=None: ...,
    "venv.BaseVectorEnv.get_env_attr": lambda self, key, id=None: ...,  # noqa: A006
    "venv.BaseVectorEnv.set_env_attr": lambda self, key, value, id=None: ...,  # noqa: A006
    "venv.BaseVectorEnv.reset": lambda self, env_id=None, **kwargs: ...,
    "venv.BaseVectorEnv.step": lambda self, action, id=None: ...,  # noqa: A006
    "venv.BaseVectorEnv.seed": lambda self, seed=None: ...,
    "venv.BaseVectorEnv.render": lambda self, **kwargs: ...,
    "venv.VectorEnvWrapper": lambda venv: ...,
    "venv.VectorEnvNormObs": lambda venv, update_obs_rms=True: ...,
    "venv.VectorEnvNormObs.set_obs_rms": lambda self, obs_rms: ...,
    "venv.VectorEnvNormObs.get_obs_rms": lambda self: ...,
    "venv.RunningMeanStd": lambda mean=0.0, std=1.0, clip_max=10.0, epsilon=2**-23: ...,
    "venv.RunningMeanStd.update": lambda self, data_array: ...,
    "venv.RunningMeanStd.norm": lambda self, data_array: ...,
    "policy.Policy": lambda net, **kwargs: ...,
    "policy.Policy.set_parameters": lambda self, parameters, indices=None, *, reset=True: ...,
    "policy.Policy.__call__": lambda self, x: ...,
    "policy.Policy.reset": lambda self, indices=None, *, copy=True: ...,
    "policy.Policy.to_torch_module": lambda self, vector: ...,
    "policy.make_functional_module": lambda net, *, disable_autograd_tracking=False: ...,
    "policy.ModuleExpectingFlatParameters.__call__": lambda self, flat_parameters, x, h=None: ...,
    "policy.parameter_vector": lambda net: ...,
    "policy.fill_parameters": lambda net, vector: ...,
    "policy.count_parameters": lambda net: ...,
    "policy.str_to_net": lambda text, /, **constants: ...,  # so that a constant may have any name
    "policy.Clip": lambda lb, ub: ...,
    "policy.Bin": lambda lb, ub: ...,
    "policy.Slice": lambda from_index, to_index: ...,
    "policy.Round": lambda ndigits: ...,
    "policy.Apply": lambda operator, argument: ...,
    "policy.RNN": lambda input_size, hidden_size, nonlinearity="tanh": ...,
    "policy.LSTM": lambda input_size, hidden_size: ...,
}  # fmt: skip
FREE = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.VAR_KEYWORD)


@pytest.mark.parametrize("name", SIGNATURES)
def test_public_signatures_match_the_source(name):
    """Covers public names of `vecrl.vector`, `vecrl.policy` and `vecrl.venv`; additional parameters are
    keyword-only."""
    home, _, path = name.partition(".")
    actual = inspect.signature(attrgetter(path)(import_module(f"vecrl.{home}"))).parameters
    expected = inspect.signature(SIGNATURES[name]).parameters
    assert [key for key in actual if key in expected] == list(expected)
    for key, parameter in expected.items():
        assert actual[key].kind == parameter.kind
        assert parameter.default in (inspect.Parameter.empty, actual[key].default)
    further = [parameter for key, parameter in actual.items() if key not in expected]
    assert all(parameter.kind in FREE for parameter in further)
    assert path.partition(".")[0] in import_module(f"vecrl.{home}").__all__


@pytest.mark.parametrize("name", ["MultiLayered", "FeedForwardNet", "StructuredControlNet", "LocomotorNet"])
def test_further_layers_are_public(name):
    """Covers further public names of `vecrl.policy` for dialect 1."""
    assert name in import_module("vecrl.policy").__all__
    assert issubclass(getattr(import_module("vecrl.policy"), name), nn.Module)
