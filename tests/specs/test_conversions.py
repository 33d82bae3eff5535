"""Conversions between specs and gymnasium's spaces, and from array specs of dm_env, Jumanji, gymnax and JAX."""

from __future__ import annotations

from collections import namedtuple
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st
from tests.fixtures.specs import ALL

from vecrl.errors import SpaceError
from vecrl.specs import (
    Binary,
    Bounded,
    Categorical,
    Composite,
    MultiCategorical,
    MultiOneHot,
    NonTensor,
    OneHot,
    TensorSpec,
    Unbounded,
)
from vecrl.specs.convert import space_from_spec, spec_from_dm, spec_from_gym, spec_from_jax

INF = float("inf")
FLAT = [
    spaces.Box(-1, 1, (2, 3)),
    spaces.Box(np.array([-1.0, 0.0]), np.array([1.0, 9.0]), dtype=np.float64),
    spaces.Box(-np.inf, np.inf, (3,), np.float64),
    spaces.Box(np.array([0.0, -np.inf], np.float32), np.array([np.inf, 1.0], np.float32)),
    spaces.Box(0, 255, (4, 4), np.uint8),
    spaces.Box(0, 9, (4,), np.uint8),
    spaces.Box(-5, 5, (), np.int32),
    spaces.Box(-(2**63), 2**63 - 1, (2,), np.int64),
    spaces.Box(0, 60000, (2,), np.uint16),
    spaces.Box(0, 1, (2,), np.bool_),
    spaces.Box(-1, 1, (2,), np.float16),
    spaces.Discrete(3),
    spaces.Discrete(4, start=-2),
    spaces.MultiDiscrete([3, 2]),
    spaces.MultiDiscrete([3, 2], start=[1, -1]),
    spaces.MultiDiscrete(np.array([[2, 3], [4, 5]])),
    spaces.MultiBinary(3),
    spaces.MultiBinary((2, 3)),
    spaces.Text(4),
    spaces.Sequence(spaces.Discrete(2)),
    spaces.Graph(spaces.Box(-1, 1, (2,)), None),
    spaces.OneOf((spaces.Discrete(2), spaces.Box(0, 1, (2,)))),
]


def nested_spaces() -> st.SearchStrategy[Any]:
    def nest(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
        dicts = st.dictionaries(st.text("abc", min_size=1, max_size=2), inner, max_size=3).map(spaces.Dict)
        return dicts | st.lists(inner, min_size=1, max_size=3).map(lambda parts: spaces.Tuple(tuple(parts)))

    return st.recursive(st.sampled_from(FLAT), nest, max_leaves=6)


def _as_dicts(element: Any, space: Any) -> Any:
    """Returns an element with dicts instead of tuples, as `encode` expects it."""
    if isinstance(space, spaces.Tuple):
        return {str(i): _as_dicts(part, space.spaces[i]) for i, part in enumerate(element)}
    if isinstance(space, spaces.Dict):
        return {name: _as_dicts(part, space.spaces[name]) for name, part in element.items()}
    return element


def _as_tuples(value: Any, space: Any) -> Any:
    if isinstance(space, spaces.Tuple):
        return tuple(_as_tuples(value[str(i)], sub) for i, sub in enumerate(space.spaces))
    if isinstance(space, spaces.Dict):
        return {name: _as_tuples(value[name], sub) for name, sub in space.spaces.items()}
    if isinstance(space, spaces.Discrete):
        return np.int64(value)
    return value


@given(nested_spaces(), st.booleans())
def test_spaces_round_trip_through_specs(space: Any, categorical: bool) -> None:
    spec = spec_from_gym(space, categorical=categorical)
    back = space_from_spec(spec)
    assert back == space
    element = space.sample()
    value = spec.encode(_as_dicts(element, space))
    assert spec.mismatch(value) is None
    assert space.contains(_as_tuples(spec.to_numpy(value), space))
    assert space.contains(_as_tuples(spec.to_numpy(spec.rand()), space))
    assert spec_from_gym(back, categorical=categorical) == spec or _has_objects(spec)


def _has_objects(spec: Any) -> bool:
    if isinstance(spec, Composite):
        return any(map(_has_objects, spec.values()))
    return isinstance(spec, NonTensor)


@pytest.mark.parametrize(
    ("space", "spec"),
    [
        (FLAT[0], Bounded(-1, 1, (2, 3))),
        (FLAT[2], Unbounded((3,), dtype=torch.float64)),
        (FLAT[3], Bounded([0, -INF], [INF, 1])),
        (FLAT[4], Unbounded((4, 4), dtype=torch.uint8)),
        (FLAT[5], Bounded(0, 9, (4,), dtype=torch.uint8)),
        (FLAT[9], Unbounded((2,), dtype=torch.bool)),
        (FLAT[11], OneHot(3, dtype=torch.int64)),
        (FLAT[12], OneHot(4, dtype=torch.int64, min=-2)),
        (FLAT[13], MultiOneHot((3, 2), dtype=torch.int64)),
        (FLAT[15], MultiCategorical(torch.tensor([[2, 3], [4, 5]]))),
        (FLAT[16], Binary(3)),
    ],
)
def test_specs_of_spaces(space: Any, spec: TensorSpec) -> None:
    assert spec_from_gym(space) == spec


def test_choices_as_indices() -> None:
    assert spec_from_gym(spaces.Discrete(4, start=-2), categorical=True) == Categorical(4, min=-2)
    assert spec_from_gym(spaces.MultiDiscrete([3, 2]), categorical=True) == MultiCategorical((3, 2))
    assert spec_from_gym(spaces.Discrete(4), dtype=torch.bool) == OneHot(4)
    assert spec_from_gym(spaces.Discrete(4), device="meta").device == torch.device("meta")


def test_nests() -> None:
    spec = spec_from_gym(spaces.Dict(a=spaces.Tuple((spaces.Discrete(2), spaces.Text(3)))), device="cpu")
    assert list(spec.keys(True, True)) == [("a", "0"), ("a", "1")]
    assert spec.device == torch.device("cpu")


def test_objects_are_sampled_from_their_space() -> None:
    spec = spec_from_gym(spaces.Text(5, charset="ab"))
    assert spec.space.contains(spec.example_data)
    assert spec.is_in(spec.rand())
    assert spec.expand(3).rand().batch_size == (3,)
    assert space_from_spec(spec.expand(2)) == spaces.Tuple((spaces.Text(5, charset="ab"),) * 2)


class Odd(spaces.Space[Any]):
    def __init__(self) -> None:
        super().__init__((2,), np.float32)

    def sample(self, mask: Any = None, probability: Any = None) -> Any:
        return "odd"

    def contains(self, x: Any) -> bool:
        return x == "odd"


class Round(Odd):
    """A space with a registered conversion."""


def test_custom_spaces() -> None:
    assert spec_from_gym(Odd()).rand().data == "odd"

    @spec_from_gym.register(Round)
    def _(space: Any, options: Any) -> TensorSpec:
        return Unbounded(space.shape, options.device)

    assert spec_from_gym(spaces.Dict(a=Round()))["a"] == Unbounded((2,))
    with pytest.raises(SpaceError, match="Expected a space"):
        spec_from_gym(3)


def test_old_gym_spaces_are_recognized_by_name() -> None:
    old = type("Discrete", (), {"__module__": "gym.spaces.discrete", "n": 3, "dtype": np.dtype(np.int64)})
    assert spec_from_gym(old()) == OneHot(3, dtype=torch.int64)


def test_spaces_of_specs() -> None:
    assert space_from_spec(Bounded(-1, 1, (2,))) == spaces.Box(-1, 1, (2,))
    assert space_from_spec(Categorical(3, (2,))) == spaces.MultiDiscrete([3, 3])
    assert space_from_spec(OneHot(3, (2, 3), min=1)) == spaces.MultiDiscrete([3, 3], start=[1, 1])
    assert space_from_spec(Categorical(2, dtype=torch.bool)) == spaces.Discrete(2)
    assert space_from_spec(Binary(2, dtype=torch.bool)) == spaces.Box(0, 1, (2,), np.bool_)
    assert space_from_spec(MultiCategorical((3, 2))[0]) == spaces.Discrete(3)
    assert space_from_spec(Composite(a=None, b=Unbounded(()))) == spaces.Dict(b=spaces.Box(-np.inf, np.inf, ()))
    for name in ("stack of bounds", "ragged stack", "stack of composites"):
        assert isinstance(space_from_spec(ALL[name]), spaces.Tuple)


@pytest.mark.parametrize(
    "spec",
    [
        Unbounded((-1, 2)),
        Bounded(0, 1, (-1,)),
        NonTensor(()),
        Categorical(-1),
        Unbounded((2,), dtype=torch.bfloat16),
        ALL["choice of specs"],
    ],
)
def test_specs_without_a_space_raise(spec: TensorSpec) -> None:
    with pytest.raises(SpaceError):
        space_from_spec(spec)


# -- other libraries' array specs


def array(shape: tuple[int, ...], dtype: Any = np.float32, **more: Any) -> Any:
    return SimpleNamespace(shape=shape, dtype=np.dtype(dtype), **more)


def test_dm_env_like_specs() -> None:
    Pair = namedtuple("Pair", "x y")
    nest = {
        "free": array((3,), np.float64),
        "bounded": array((2,), minimum=np.array([-1.0, 0.0]), maximum=1.0),
        "endless": array((2,), minimum=-np.inf, maximum=np.inf),
        "n": array((), np.int32, minimum=0, maximum=2, num_values=3),
        "text": array((), object, string_type=str),
        "pair": Pair(array((1,)), [array((2,))]),
    }
    spec = spec_from_dm(nest, categorical=True)
    assert spec == Composite(
        free=Unbounded((3,), dtype=torch.float64),
        bounded=Bounded([-1, 0], 1),
        endless=Unbounded((2,)),
        n=Categorical(3, dtype=torch.int32),
        text=NonTensor((), example_data=""),
        pair={"x": Unbounded((1,)), "y": {"0": Unbounded((2,))}},
    )
    assert spec_from_dm(nest["n"]) == OneHot(3)
    with pytest.raises(SpaceError, match="shape and a dtype"):
        spec_from_dm(3)
    with pytest.raises(SpaceError, match="dtype that tensors"):
        spec_from_dm(array((), "datetime64[s]"))


def test_dm_env_itself() -> None:
    from dm_env import specs

    nest = {
        "a": specs.Array((2,), np.float32),
        "b": specs.BoundedArray((2,), np.float64, minimum=[-1, -2], maximum=1),
        "d": specs.DiscreteArray(4),
        "s": specs.StringArray((2,)),
    }
    assert spec_from_dm(nest, categorical=True) == Composite(
        a=Unbounded((2,)),
        b=Bounded([-1, -2], 1, dtype=torch.float64),
        d=Categorical(4, dtype=torch.int32),
        s=NonTensor((2,), example_data=""),
    )


def test_jax_like_spaces() -> None:
    structure = SimpleNamespace(
        _specs={
            "board": array((3, 3), np.int8, minimum=0, maximum=2),
            "move": array((2,), np.int32, num_values=np.array([3, 4])),
        }
    )
    assert spec_from_jax(structure, categorical=True) == Composite(
        board=Bounded(0, 2, (3, 3), dtype=torch.int8), move=MultiCategorical((3, 4), dtype=torch.int32)
    )
    assert spec_from_jax(structure._specs["move"]) == MultiOneHot((3, 4))
    assert spec_from_jax(array((), np.int32, num_values=np.full((2, 2), 3))).shape == (2, 2)
    discrete = type("Discrete", (), {"n": 3, "dtype": np.int32})()
    box = type("Box", (), {"low": -1.0, "high": 1.0, "shape": (2,), "dtype": np.float32})()
    both = type("Dict", (), {"spaces": {"a": discrete, "b": box}})()
    assert spec_from_jax(both) == Composite(a=OneHot(3), b=Bounded(-1, 1, (2,)))


@pytest.mark.simulators
def test_jax_itself() -> None:
    import jax

    nest = {"x": jax.ShapeDtypeStruct((2, 3), "float32"), "i": jax.ShapeDtypeStruct((), "bfloat16")}
    assert spec_from_jax(nest) == Composite(x=Unbounded((2, 3)), i=Unbounded((), dtype=torch.bfloat16))
