"""Random values of specs are those that TorchRL draws from the same seed, so that random actions are too."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch

from vecrl import envs, specs

pytestmark = [pytest.mark.peers, pytest.mark.filterwarnings("ignore")]

MASK = torch.tensor([True, False, True, True])
SPECS: dict[str, Callable[[Any], Any]] = {
    "Categorical": lambda s: s.Categorical(4, (5,)),
    "Categorical with a mask": lambda s: s.Categorical(4, (5,), mask=MASK.expand(5, 4)),
    "OneHot": lambda s: s.OneHot(4),
    "OneHot with a mask": lambda s: s.OneHot(4, mask=MASK),
    "MultiCategorical": lambda s: s.MultiCategorical([2, 5, 3]),
    "MultiCategorical of a batch": lambda s: s.MultiCategorical([2, 5], (4, 2)),
    "MultiCategorical with a mask": lambda s: s.MultiCategorical([2, 2], mask=MASK),
    "MultiOneHot": lambda s: s.MultiOneHot([2, 5, 3]),
    "Binary": lambda s: s.Binary(6, dtype=torch.int8),
    "Bounded": lambda s: s.Bounded(torch.tensor([-1.0, 0.0]), torch.tensor([1.0, 5.0])),
    "Unbounded": lambda s: s.Unbounded((3,)),
    "Composite": lambda s: s.Composite(
        b=s.Bounded(-2, 2, (4, 1)), a=s.Composite(c=s.OneHot(3).expand(4, 3), shape=(4,)), shape=(4,)
    ),
}


@pytest.mark.parametrize("name", SPECS)
def test_random_values_are_those_of_torchrl(name: str) -> None:
    torchrl_specs = pytest.importorskip("torchrl.data")
    drawn = []
    for library in (torchrl_specs, specs):
        torch.manual_seed(0)
        values = SPECS[name](library).rand()
        drawn.append((values, torch.rand(())))
    (expected, expected_after), (values, after) = drawn
    assert (values == expected).all()
    assert values.shape == expected.shape
    assert after == expected_after


@pytest.mark.parametrize("rows", [None, 3])
def test_rollouts_of_random_actions_leave_the_generator_as_torchrls_do(rows: int | None) -> None:
    torchrl_envs = pytest.importorskip("torchrl.envs")
    played = []
    for library in (torchrl_envs, envs):
        make = partial(library.GymEnv, "CartPole-v1")
        env = make() if rows is None else library.SerialEnv(rows, make)
        env.set_seed(0)
        torch.manual_seed(0)
        first = env.rollout(500)  # which ends much earlier
        played.append((first["action"], torch.rand(()), env.rollout(500)["action"]))
        env.close()
    for expected, actual in zip(*played, strict=True):
        assert actual.equal(expected)
