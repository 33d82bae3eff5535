"""Custom environments and transforms, written as TorchRL's tutorials write them."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.fixtures import tutorial_style
from tests.fixtures.tutorial_style import NewEntry, Sine, Wheel, roll_out
from vecrl.envs.transforms.transforms import _apply_to_composite_inv

from vecrl.envs import ActionScaling, Transform, TransformedEnv, check_env_specs
from vecrl.errors import SpaceError
from vecrl.specs import Bounded, Composite, TensorSpec, Unbounded


def test_all_styles_of_specs_work() -> None:
    result = roll_out()
    data = result["data"]
    assert result["keys"] == ["('params', 'drift')", "angle", "copied", "sine", "sine2", "turns"]
    assert result["bounds"] == [-2.0, 2.0, 1.0]
    assert result["steps"] == 4
    assert torch.equal(data["sine2"], data["angle"].sin().sin())
    assert torch.equal(data["copied"], data["angle"])
    torch.testing.assert_close(data["('next', 'angle')"], data["angle"] + data["action"] / 2 + 0.25)
    assert torch.equal(data["('next', 'reward')"], -data["('next', 'angle')"].abs() - 1)


@pytest.mark.peers
@pytest.mark.filterwarnings("ignore")
def test_torchrl_gives_the_same() -> None:
    source = Path(tutorial_style.__file__).read_text()
    for ours_name, theirs_name in (("vecrl.specs", "torchrl.data"), ("vecrl.envs", "torchrl.envs")):
        source = source.replace(f"from {ours_name}", f"from {theirs_name}")
    module: dict[str, Any] = {}
    exec(source, module)
    theirs, ours = module["roll_out"](), roll_out()
    assert {name: theirs[name] for name in ("keys", "bounds", "steps")} == {
        name: ours[name] for name in ("keys", "bounds", "steps")
    }
    assert theirs["data"].keys() == ours["data"].keys()
    for key, value in theirs["data"].items():  # resets differ: TorchRL draws one more after set_seed
        assert (value.shape, value.dtype) == (ours["data"][key].shape, ours["data"][key].dtype)


def test_a_method_for_entries_takes_entries_and_composites() -> None:
    sine = Sine(in_keys=["a", "missing"], out_keys=["b", "c"])
    assert sine.transform_observation_spec(Unbounded((2,))) == Bounded(-1, 1, (2,))
    specs = sine.transform_observation_spec(Composite(a=Unbounded((2,)), other=Unbounded((1,))))
    assert specs == Composite(a=Unbounded((2,)), other=Unbounded((1,)), b=Bounded(-1, 1, (2,)))


@pytest.mark.parametrize("nested", [False, True])
def test_input_entries_are_replaced(nested: bool) -> None:
    class Renamed(Transform):
        @_apply_to_composite_inv
        def transform_action_spec(self, action_spec: TensorSpec) -> TensorSpec:
            return Bounded(-2, 2, action_spec.shape)

    renamed = Renamed(in_keys_inv=["u"], out_keys_inv=["v"])
    spec = Composite(u=Unbounded((2,)))
    result = renamed.transform_action_spec(Composite(full_action_spec=spec) if nested else spec)
    assert (result["full_action_spec"] if nested else result) == Composite(v=Bounded(-2, 2, (2,)))
    assert renamed.transform_action_spec(Unbounded((3,))) == Bounded(-2, 2, (3,))


class PlainSine(Transform):
    """Its specs are written for one entry, without a decorator."""

    def _apply_transform(self, value: torch.Tensor) -> torch.Tensor:
        return value.sin()

    def transform_observation_spec(self, observation_spec: TensorSpec) -> TensorSpec:
        return Bounded(-1, 1, observation_spec.shape, dtype=observation_spec.dtype)


def test_a_method_that_returns_the_spec_of_an_entry_is_called_for_each() -> None:
    env = TransformedEnv(Wheel(), PlainSine(["angle"], ["sine"]))
    check_env_specs(env)
    assert env.observation_spec["sine"] == Bounded(-1, 1, (1,))
    assert PlainSine(["a"]).transform_observation_spec(Unbounded((3,))) == Bounded(-1, 1, (3,))


def test_leaves_of_built_in_transforms_still_need_a_composite_for_several_entries() -> None:
    assert ActionScaling().transform_action_spec(Bounded(-2.0, 2.0, (1,))).shape == (1,)
    with pytest.raises(SpaceError, match="Expected a Composite"):
        NewEntry().transform_observation_spec(Unbounded((1,)))
