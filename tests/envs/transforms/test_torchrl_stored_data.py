"""The values of transforms of stored data equal those of TorchRL's, if TorchRL is installed."""

from functools import partial
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule

import vecrl.envs.transforms

from .test_stored_data import GRU, random_steps

pytestmark = [pytest.mark.torchrl, pytest.mark.filterwarnings("ignore")]


def in_both(apply: Any) -> list[Any]:
    """Returns the results of a function of the module of transforms, for vecrl and TorchRL, from the same seed."""
    import torchrl.envs.transforms

    results = []
    for transforms in (vecrl.envs.transforms, torchrl.envs.transforms):
        torch.manual_seed(0)
        results.append(apply(transforms))
    return results


def assert_close(own_data: Any, theirs: Any) -> None:
    """Checks that two TensorDicts have the same entries with close values."""
    torch.testing.assert_close(own_data.flatten_keys(".").to_dict(), theirs.flatten_keys(".").to_dict())


@pytest.mark.parametrize("batch", [(), (3,), (2, 3)])
@pytest.mark.parametrize("n_steps", [2, 3, 7])
def test_steps_stored_in_parts_equal_torchrl(batch: tuple[int, ...], n_steps: int) -> None:
    data = random_steps((*batch, 40))

    def stored(done_keys: Any, transforms: Any) -> list[Any]:
        transform = transforms.MultiStepTransform(n_steps, 0.9, done_keys=done_keys)
        parts = [transform.inv(part.clone()) for part in data.split([4, 1, 2, 13, 20], -1)]
        return [parts, transform.inv(data.clone())]

    for done_keys in (None, ["done"], []):
        (own_parts, own_data), (parts, theirs) = in_both(partial(stored, done_keys))
        assert [part is None for part in own_parts] == [part is None for part in parts]
        for own_part, part in zip([*own_parts, own_data], [*parts, theirs], strict=True):
            if part is not None:
                assert_close(own_part, part.view(own_part.batch_size))


def test_invalid_steps_equal_torchrl() -> None:
    data = random_steps((2, 30)).set("mask", torch.arange(30).expand(2, 30) < 20)
    own_data, theirs = in_both(lambda t: t.MultiStepTransform(3, 0.9).inv(data.clone()))
    assert_close(own_data, theirs)


@pytest.mark.parametrize("shape", [(30,), (3, 30), (2, 3, 30)])
@pytest.mark.parametrize("gamma", [1.0, 0.9, 0.1])
def test_rewards_to_go_equal_torchrl(shape: tuple[int, ...], gamma: float) -> None:
    data = random_steps(shape)
    data["next", "done"][..., -1, :] = True
    for out_keys in (None, [("a", "sum")]):
        own_data, theirs = in_both(
            lambda t, out_keys=out_keys: t.Reward2GoTransform(gamma, out_keys=out_keys).inv(data.clone())
        )
        assert_close(own_data, theirs)


def test_burnt_in_states_equal_torchrl() -> None:
    data = random_steps((3, 9)).set("hidden", torch.rand(3, 9, 4))

    def read(transforms: Any) -> TensorDict:
        module = TensorDictModule(GRU(), in_keys=["observation", "hidden"], out_keys=["out", ("next", "hidden")])
        return transforms.BurnInTransform([module], 4)(data.clone())

    own_data, theirs = in_both(read)
    assert own_data["hidden"][:, 0].abs().min() > 0
    assert_close(own_data, theirs)


@pytest.mark.parametrize("masked", [False, True])
def test_crops_have_the_form_of_torchrl(masked: bool) -> None:
    """Except for the last possible start, which TorchRL never takes."""
    data = TensorDict({"x": torch.arange(10).expand(500, 10), "mask": torch.arange(10).expand(500, 10) < 8}, [500, 10])
    own_data, theirs = in_both(lambda t: t.RandomCropTensorDict(4, mask_key="mask" if masked else None)(data.clone()))
    assert own_data.shape == theirs.shape
    last = 4 if masked else 6
    starts = [set(values["x"][:, 0].tolist()) for values in (own_data, theirs)]
    assert starts == [{*range(last + 1)}, {*range(last)}]
    for values in (own_data, theirs):
        assert (values["x"].diff(dim=1) == 1).all()
