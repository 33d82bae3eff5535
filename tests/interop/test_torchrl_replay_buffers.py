"""vecrl's transforms in TorchRL's replay buffers: forward when data are read, inverse when they are stored."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModule
from tests.envs.transforms.test_stored_data import gru, random_steps
from tests.fixtures.transforms import CASES
from torch import nn

from vecrl.envs import transforms
from vecrl.envs.transforms.compose import as_transform
from vecrl.testing import IndependentRowsEnv

pytestmark = [pytest.mark.torchrl, pytest.mark.peers, pytest.mark.filterwarnings("ignore")]

LENGTH = 12
NORMS = torch.tensor([[0.5, 1.0], [0.0, 0.0]])


def _steps() -> Any:
    """Returns steps of an environment with entries of many kinds, `[time]`."""
    torch.manual_seed(0)
    data = IndependentRowsEnv((0,)).rollout(LENGTH, break_when_any_done=False)[0].clone()
    given = dict.fromkeys(("act", "given", "unit"), data["action"])
    stacked = {"actions": data["action"].unsqueeze(-2).unsqueeze(-1)}
    return data.update({"reward": data["next", "reward"], **given, **stacked})


def _trajectories() -> Any:
    data = random_steps((LENGTH,))
    data["next", "done"][-1] = True
    ids = torch.arange(LENGTH) // 7
    return data.update(
        {"hidden": torch.rand(LENGTH, 4), "action": torch.rand(LENGTH, 6), "collector": {"traj_ids": ids}}
    )


STORED: dict[str, Callable[[], Any]] = {
    "ActionScaling": lambda: transforms.ActionScaling(loc=0.5, scale=2.0),
    "BurnInTransform": lambda: transforms.BurnInTransform(_module(), 4),
    "DeviceCastTransform": lambda: transforms.DeviceCastTransform("cpu", "cpu"),
    "DoubleToFloat": lambda: transforms.DoubleToFloat(["observation"], in_keys_inv=["observation"]),
    "FlattenAction": lambda: transforms.FlattenAction(action_shape=(2, 3)),
    "MultiStepTransform": lambda: transforms.MultiStepTransform(3, 0.9),
    "NextObservationDelta": lambda: transforms.NextObservationDelta(in_keys=["observation"]),
    "NextStateReconstructor": lambda: transforms.NextStateReconstructor(["observation"]),
    "ObservationNorm": lambda: transforms.ObservationNorm(0.5, 2.0, ["observation"], in_keys_inv=["action"]),
    "RandomCropTensorDict": lambda: transforms.RandomCropTensorDict(5),
    "Reward2GoTransform": lambda: transforms.Reward2GoTransform(0.9),
    "StepCounter": transforms.StepCounter,
    "several": lambda: transforms.Compose(
        transforms.UnsqueezeTransform(-1, in_keys=["observation"]),
        transforms.RewardScaling(1.0, 2.0, in_keys=[("next", "reward")]),
        transforms.Reward2GoTransform(0.9),
    ),
    "in a sequence": lambda: nn.Sequential(transforms.DoubleToFloat(), transforms.Reward2GoTransform(0.9)),
}
ENV_ONLY = {
    *("ActionMask", "ActionDiscretizer", "AutoResetTransform", "ConditionalPolicySwitch", "ConditionalSkip"),
    *("DiscreteActionProjection", "EndOfLifeTransform", "FrameSkipTransform", "MeanActionSelector", "MultiAction"),
    *("RandomTruncationTransform", "TerminateTransform", "Timer", "VecGymEnvTransform"),
}
NEED_ARGUMENTS = {
    *("ActionScaling", "BatchSizeTransform", "Compose: within another", "DeviceCastTransform", "FlattenAction"),
    *("DeviceCastTransform: of some", "NextObservationDelta", "NextStateReconstructor", "StepCounter"),
    *("ObservationNorm: of all and of actions", "TensorDictPrimer: before resets"),
}
"""Cases for environments, which have one in `STORED` instead, or which truncate episodes."""


def _module() -> TensorDictModule:
    torch.manual_seed(1)
    return gru()


def _buffer(size: int, transform: Any = None, **kwargs: Any) -> Any:
    """Returns a replay buffer of TorchRL that reads `size` steps in the order of their storage."""
    from torchrl.data import LazyTensorStorage, ReplayBuffer
    from torchrl.data.replay_buffers.samplers import SamplerWithoutReplacement

    sampler = SamplerWithoutReplacement(shuffle=False)
    return ReplayBuffer(storage=LazyTensorStorage(100), sampler=sampler, batch_size=size, transform=transform, **kwargs)


def _through_buffer(make: Callable[[], Any], data: TensorDictBase) -> Any:
    buffer = _buffer(1, make())
    buffer.extend(data.clone())
    torch.manual_seed(5)
    return buffer.sample(len(buffer))


def _through_methods(make: Callable[[], Any], data: TensorDictBase) -> Any:
    transform = as_transform(make())
    stored = transform.inv(data.clone())
    torch.manual_seed(5)
    return transform(stored.clone())


def entries(td: Any) -> dict[str, Any]:
    return {str(key): td[key] for key in td.keys(include_nested=True, leaves_only=True)}


def _for_stored_data(name: str) -> bool:
    return name.partition(":")[0] not in ENV_ONLY and name not in NEED_ARGUMENTS


@pytest.mark.parametrize("name", [*filter(_for_stored_data, CASES), *(f"stored {name}" for name in STORED)])
def test_buffers_store_and_read_what_the_methods_return(name: str) -> None:
    stored = name.removeprefix("stored ")
    make, data = (CASES[name].make, _steps()) if stored == name else (STORED[stored], _trajectories())
    expected, actual = (entries(way(make, data)) for way in (_through_methods, _through_buffer))
    torch.testing.assert_close(actual, expected, equal_nan=True)


@pytest.mark.parametrize("name", sorted(name for name in CASES if not _for_stored_data(name)))
def test_buffers_raise_the_errors_of_the_methods(name: str) -> None:
    messages = []
    for way in (_through_methods, _through_buffer):
        with pytest.raises((RuntimeError, ValueError, KeyError)) as caught:
            way(CASES[name].make, _steps())
        messages.append(str(caught.value))
    assert messages[0] == messages[1]


def test_steps_that_wait_for_later_ones_are_stored_with_them() -> None:
    data = _trajectories()
    buffer = _buffer(20, transforms.MultiStepTransform(2, 0.9))
    for part in data.split([1, 1, 3, 7]):
        buffer.extend(part.clone())
    expected = transforms.MultiStepTransform(2, 0.9).inv(data.clone())
    torch.testing.assert_close(entries(buffer.sample(len(buffer))), entries(expected))
    assert len(buffer) == LENGTH - 2


def test_transforms_are_added_to_a_buffer() -> None:
    data = _trajectories()
    buffer = _buffer(LENGTH)
    buffer.append_transform(transforms.RewardScaling(1.0, 2.0, in_keys=[("next", "reward")]))
    buffer.append_transform(transforms.Reward2GoTransform(0.9))
    buffer.insert_transform(0, transforms.UnsqueezeTransform(-1, in_keys=["observation"]))
    buffer.extend(data.clone())
    sums = transforms.Reward2GoTransform(0.9).inv(data.clone())["next", "reward"]
    torch.testing.assert_close(buffer.sample()["next", "reward"], sums * 2 + 1)
    assert buffer.sample()["observation"].shape == (LENGTH, 2, 1)
    made_later = _buffer(LENGTH, transform_factory=lambda: transforms.Reward2GoTransform(0.9))
    made_later.extend(data.clone())
    torch.testing.assert_close(made_later.sample()["next", "reward"], sums)


def test_transforms_of_both_libraries_are_combined() -> None:
    from torchrl.envs import transforms as theirs

    data = _trajectories()
    own, other = transforms.Reward2GoTransform(0.9), theirs.DoubleToFloat(["observation"], in_keys_inv=["observation"])
    for combined in (theirs.Compose(own, other), transforms.Compose(own.clone(), other.clone())):
        buffer = _buffer(LENGTH, combined)
        buffer.extend(data.clone())
        assert buffer[:]["observation"].dtype == torch.float32
        assert buffer._storage[:]["observation"].dtype == torch.float64
        expected = transforms.Reward2GoTransform(0.9).inv(data.clone())["next", "reward"]
        torch.testing.assert_close(buffer.sample()["next", "reward"], expected)


def test_buffers_of_tensordicts() -> None:
    from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer

    transform = transforms.DoubleToFloat(["observation"], in_keys_inv=["observation"])
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(20), transform=transform, batch_size=4, prefetch=2)
    data = _trajectories()
    buffer.extend(data)
    buffer.add(data[0])
    assert len(buffer) == LENGTH + 1
    for _ in range(3):
        assert buffer.sample()["observation"].dtype == torch.float32
    assert buffer._storage[:]["observation"].dtype == torch.float64


def test_states_of_transforms_are_saved_with_the_buffer() -> None:
    buffers = [_buffer(LENGTH, transforms.ObservationNorm(loc, torch.ones(2), ["observation"])) for loc in NORMS]
    for buffer in buffers:
        buffer.extend(_trajectories())
    buffers[1].load_state_dict(buffers[0].state_dict())
    assert buffers[0].sample()["observation"].equal(buffers[1].sample()["observation"])


def test_parts_of_a_compose_can_be_added_to_a_buffer_and_stay_in_it() -> None:
    data = _trajectories()
    norm = transforms.ObservationNorm(0.0, 0.5, ["observation"])
    parts = transforms.Compose(norm, transforms.UnsqueezeTransform(-1, in_keys=["observation"]))
    buffer = _buffer(LENGTH)
    for part in parts:
        buffer.append_transform(part)
    buffer.extend(data.clone())
    sample = buffer.sample()
    torch.testing.assert_close(sample["observation"], data["observation"].unsqueeze(-1) * 0.5)
    env = transforms.TransformedEnv(IndependentRowsEnv((0,)), parts)  # they still belong to the Compose
    assert [*env.transform] == [*parts]
    with pytest.raises(AttributeError, match=r"belongs to an environment\. Use transform\.clone\(\)"):
        buffer.append_transform(parts[0])


def test_a_transform_of_an_environment_is_refused() -> None:
    counter = transforms.StepCounter()
    env = IndependentRowsEnv(0).append_transform(counter)
    with pytest.raises(AttributeError, match=r"Use transform\.clone\(\)"):
        _buffer(LENGTH, counter)
    assert "step_count" in env.reset()
