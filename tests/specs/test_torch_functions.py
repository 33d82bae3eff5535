"""Functions of torch on specs, and corners of Composites and of lazy stacks of them."""

from typing import Any

import numpy as np
import pytest
import torch
from tensordict import NonTensorData, NonTensorStack, TensorDict, lazy_stack

from vecrl.errors import SpaceError
from vecrl.specs import Bounded, Categorical, Choice, Composite, OneHot, TensorSpec, Unbounded

function: Any = torch  # its functions are typed for tensors only, and accept specs too
BOUNDED = Bounded(torch.arange(6.0).reshape(3, 2), torch.arange(6.0).reshape(3, 2) + 1, (3, 2))
SPECS = {
    "bounded": BOUNDED,
    "categorical": Categorical(4, (3,)),
    "one-hot": OneHot(4, (3, 4)),
    "composite": Composite(a=BOUNDED, b=Composite(c=Categorical(3, (3,)), shape=(3,)), shape=(3,)),
    "lazy": function.stack([Bounded(0, high, (2,)) for high in (1, 2, 3)]),
}


@pytest.mark.parametrize("name", SPECS)
def test_index_select_selects_specs_as_values(name: str) -> None:
    spec: TensorSpec = SPECS[name]
    index = torch.tensor([2, 0])
    selected = function.index_select(spec, 0, index)
    assert selected.shape == (2, *spec.shape[1:])
    assert selected == spec[index] == spec.index_select(-spec.ndim, index)
    value: Any = spec.rand()
    assert selected.is_in(value[index])
    assert function.index_select(input=spec, dim=0, index=index) == selected


def test_index_select_of_a_choice_is_refused() -> None:
    with pytest.raises(IndexError, match="one choice"):
        OneHot(4, (3, 4)).index_select(1, torch.tensor([0]))
    with pytest.raises(IndexError, match="dimension"):
        BOUNDED.index_select(2, torch.tensor([0]))


def test_permute_is_a_function_too() -> None:
    permuted = function.permute(BOUNDED, (1, 0))
    assert permuted.shape == (2, 3)
    assert permuted.is_in(BOUNDED.rand().permute(1, 0))
    with pytest.raises(SpaceError, match=r"cat does not take specs.*index_select"):
        function.cat([BOUNDED, BOUNDED])


@pytest.mark.parametrize("flipped", [False, True])
def test_composites_and_leaves_cannot_be_stacked(flipped: bool) -> None:
    specs = [Unbounded((1,)), Composite(a=Unbounded((1,)))]
    with pytest.raises(SpaceError, match="Expected only Composites or only other specs to stack, got"):
        function.stack(specs[::-1] if flipped else specs)


# -- lazy stacks of Composites


def stacked(*sizes: int, **shared: Any) -> Any:
    return function.stack([Composite(a=Unbounded((size,)), **shared) for size in sizes])


def test_the_length_of_a_stack_is_the_number_of_its_specs() -> None:
    spec = stacked(3, 4, b=Unbounded((1,)), c=Unbounded((1,)))
    assert len(spec) == 2
    assert not spec.is_empty()
    assert function.stack([Composite(a=Unbounded((1,))), Composite(b=Unbounded((1,)))]).is_empty()


def test_stacks_convert_to_one_dict() -> None:
    spec = stacked(3, 4, b=Unbounded((1,)))
    arrays = spec.to_numpy(spec.zero())
    assert [array.shape for array in arrays["a"]] == [(3,), (4,)]
    assert arrays["b"].shape == (2, 1)
    nested = function.stack(
        [Composite(n=Composite(x=Bounded(0, high, (2,))), **{f"only{high}": Unbounded((1,))}) for high in (1, 2)]
    )
    value = nested.rand((5,))
    arrays = nested.to_numpy(value, safe=True)
    assert arrays["only1"][1] is None
    assert arrays["only2"][1].shape == (5, 1)
    np.testing.assert_array_equal(arrays["n"]["x"], value["n", "x"].numpy())


# -- names


def test_names_do_not_count_in_equality() -> None:
    assert Composite(x=Unbounded((2,)), shape=(2,), names=["b"]) == Composite(x=Unbounded((2,)), shape=(2,))


def test_names_are_passed_to_nested_composites() -> None:
    def nested() -> Composite:
        return Composite(n=Composite(x=Unbounded((2, 3)), shape=(2, 3)), shape=(2,))

    spec = Composite({"n": nested()["n"]}, shape=(2,), names=["batch"])
    spec["more"] = Composite(m=Composite(shape=(2, 4), names=["other", "inner"]), shape=(2,))
    assert spec["n"].names == ["batch", None]
    assert spec["more"].names == ["batch"]
    assert spec["more", "m"].names == ["batch", "inner"]
    assert spec.zero()["n"].names == ["batch", None]
    renamed = nested()
    renamed.names = ["t"]
    assert renamed["n"].names == nested().refine_names("t")["n"].names == ["t", None]


# -- choices


def test_choices_of_stacks_keep_their_order() -> None:
    spec = Choice([NonTensorStack("a", "b"), NonTensorStack("c", "d")])
    for value, expected in ((("a", "b"), True), (("c", "d"), True), (("b", "a"), False), (("a", "d"), False)):
        assert spec.is_in(NonTensorStack(*value)) is expected
    assert spec.is_in(spec.rand((3,)))
    assert spec.is_in(lazy_stack([NonTensorStack("a", "b"), NonTensorStack("c", "d")]))  # pyright: ignore[reportArgumentType]
    assert not spec.is_in(NonTensorStack("a", "b", "c"))
    single = Choice([NonTensorData("a"), NonTensorData("b")])
    assert single.is_in(NonTensorStack("b", "a"))


# -- corners that differ from TorchRL on purpose


def test_corners_stay_as_documented() -> None:
    assert Unbounded((1, 2)).expand(1, -1, 2).shape == (1, 1, 2)
    assert Unbounded((1, 2)).make_neg_dim(0).shape == (-1, 2)
    with pytest.raises(SpaceError, match="at least one option"):
        Categorical(0)
    with pytest.raises(ValueError, match="slice"):
        BOUNDED[::-1]
    keys_of_methods = Composite({name: Unbounded((1,)) for name in ("shape", "device", "dtype", "space")})
    assert keys_of_methods.is_in(keys_of_methods.rand())
    assert not keys_of_methods.is_in(TensorDict())
    with pytest.raises(SpaceError):
        Bounded(0, 2, (1,), dtype=torch.bool)
