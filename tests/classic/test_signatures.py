"""Public names and signatures of dialect 4: a user of the source library changes only an import."""

import inspect

import pytest

from vecrl import classic

SIGNATURES = {
    classic.BaseEnv: (
        lambda env_name, *, fixed_normalize_states=False, running_normalize_states=False, scale_reward=False: ...
    ),
    classic.BaseEnv.reset: lambda self: ...,
    classic.BaseEnv.step: lambda self, action: ...,
    classic.BaseEnv.get_state_info: lambda self: ...,
    classic.BaseEnv.get_action_info: lambda self: ...,
    classic.BaseEnv.update_config: lambda self, config: ...,
    classic.BaseEnv._create_env: lambda self: ...,
    classic.GymEnv: lambda env_name, wrappers=(), **kwargs: ...,
    classic.GymEnv.get_space_info: lambda space: ...,
    classic.GymEnv.reset: lambda self: ...,
    classic.GymEnv.step: lambda self, action: ...,
    classic.RoboschoolEnv: lambda env_name, *args, **kwargs: ...,
    classic.from_classic: lambda env, **kwargs: ...,
    classic.to_classic: lambda env, **kwargs: ...,
}
FREE = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


@pytest.mark.parametrize("ours", SIGNATURES, ids=lambda thing: thing.__qualname__)
def test_signatures_match_the_source(ours: object) -> None:
    """Further parameters must be optional."""
    expected = inspect.signature(SIGNATURES[ours]).parameters
    found = inspect.signature(ours).parameters
    assert [name for name in found if name in expected] == list(expected)
    for name, parameter in expected.items():
        assert (found[name].kind, found[name].default) == (parameter.kind, parameter.default)
    for name in set(found) - set(expected):
        assert found[name].kind in FREE
        assert found[name].default is not inspect.Parameter.empty


def test_all_names_exist() -> None:
    assert set(classic.__all__) == {"BaseEnv", "Config", "GymEnv", "RoboschoolEnv", "from_classic", "to_classic"}
    for name in classic.__all__:
        assert callable(getattr(classic, name))
    assert isinstance(inspect.getattr_static(classic.GymEnv, "get_space_info"), staticmethod)
    assert isinstance(classic.GymEnv.simulator, property)
