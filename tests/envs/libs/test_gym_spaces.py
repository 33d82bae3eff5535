"""User-defined conversions of spaces and specs, in both directions."""

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from vecrl.envs import GymWrapper, check_env_specs, register_gym_spec_conversion
from vecrl.envs.libs.gym.spaces import find_tuple_spaces, restore_tuples
from vecrl.errors import SpaceError
from vecrl.simulators.legacy_gym import as_gymnasium_space
from vecrl.specs import Bounded, Categorical, Unbounded
from vecrl.specs.convert import from_gym, space_from_spec, spec_from_gym


class Angle(spaces.Box):
    """A user-defined space."""

    def __init__(self) -> None:
        super().__init__(-np.pi, np.pi, (1,), np.float32)


@pytest.fixture(autouse=True)
def restored_converters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(from_gym, "_CONVERTERS", dict(from_gym._CONVERTERS))


@pytest.mark.parametrize("named", [Angle, "Angle", f"{Angle.__module__}.Angle"])
def test_registration_by_class_or_name(named: Any) -> None:
    @register_gym_spec_conversion(named)
    def convert(space: Any, **kwargs: Any) -> Any:
        assert set(kwargs) >= {"dtype", "device", "categorical_action_encoding", "batch_size"}
        return Bounded(-4, 4, (1,), device=kwargs["device"])

    assert spec_from_gym(spaces.Dict(a=Angle()))["a"] == Bounded(-4, 4, (1,))
    assert convert(Angle(), dtype=0, device=None, categorical_action_encoding=0, batch_size=()) == Bounded(-4, 4, (1,))


def test_converters_receive_the_keywords_they_name() -> None:
    @register_gym_spec_conversion(Angle)
    def convert(space: Any, categorical_action_encoding: bool = False) -> Any:
        return Categorical(7) if categorical_action_encoding else Unbounded((2,))

    assert spec_from_gym(Angle()) == Unbounded((2,))
    assert spec_from_gym(Angle(), categorical=True) == Categorical(7)


def test_environments_use_registered_converters() -> None:
    class Turning(gymnasium.Env[Any, Any]):
        observation_space, action_space = Angle(), spaces.Discrete(2)

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            return np.ones(1, np.float32), {}

        def step(self, action: Any) -> Any:
            return np.ones(1, np.float32), 0.0, False, False, {}

    @register_gym_spec_conversion(Angle)
    def convert(space: Any, **_: Any) -> Any:
        return Bounded(-4, 4, (1,))

    env = GymWrapper(Turning())
    assert env.observation_spec["observation"] == Bounded(-4, 4, (1,))
    check_env_specs(env)


def test_registered_specs_convert_to_spaces() -> None:
    class AngleSpec(Bounded):
        """A user-defined spec."""

    @register_gym_spec_conversion(AngleSpec)
    def convert(spec: Any) -> Any:
        return Angle()

    assert isinstance(space_from_spec(AngleSpec(-4, 4, (1,))), Angle)
    assert not isinstance(space_from_spec(Bounded(-4, 4, (1,))), Angle)


def test_invalid_types_raise() -> None:
    with pytest.raises(SpaceError, match="a class or the name of one"):
        register_gym_spec_conversion(Angle())  # pyright: ignore[reportArgumentType]


def test_nested_tuples_within_dicts_convert() -> None:
    space = spaces.Dict(a=spaces.Tuple([spaces.Discrete(2), spaces.Dict(c=spaces.Discrete(3))]), b=spaces.Discrete(2))
    assert find_tuple_spaces(space) is space
    assert find_tuple_spaces(spaces.Dict(b=spaces.Discrete(2))) is None
    assert restore_tuples({"a": {"0": 1, "1": {"c": 2}}, "b": 0}, space) == {"a": (1, {"c": 2}), "b": 0}


class _Old:
    """Spaces of the old gym: other classes of the same names."""

    class MultiDiscrete:
        nvec, dtype = np.array([2, 3]), np.int64

    class MultiBinary:
        n = 4

    class Tuple:
        def __init__(self, *parts: Any):
            self.spaces = parts

    class Dict:
        def __init__(self, **parts: Any):
            self.spaces = parts


def test_old_gym_spaces_convert() -> None:
    old = _Old.Dict(a=_Old.Tuple(_Old.MultiBinary(), _Old.MultiDiscrete()))
    expected = spaces.Dict(a=spaces.Tuple([spaces.MultiBinary(4), spaces.MultiDiscrete([2, 3])]))
    assert as_gymnasium_space(old) == expected
    with pytest.raises(SpaceError, match="both libraries have"):
        as_gymnasium_space(_Old.Dict(a=object()))
