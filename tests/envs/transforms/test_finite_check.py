"""Transforms that check values and do not change them."""

import pytest
import torch
from tensordict import TensorDict, TensorDictBase
from tests.fixtures.tensordict_envs import BoundedValuesEnv

from vecrl.envs import check_env_specs
from vecrl.envs.transforms import FiniteTensorDictCheck, TransformedEnv


class Broken(BoundedValuesEnv):
    """Returns a non-finite value in its second step."""

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        next_td = super()._step(tensordict)
        if self.given.get("late", None) is not None:
            next_td["image"][0, 0, 0, 2] = torch.inf
            next_td["reward"][1:] = torch.nan
        return next_td


def test_non_finite_entries_raise() -> None:
    env = TransformedEnv(Broken(4), FiniteTensorDictCheck())
    check_env_specs(env)
    root = env.step_mdp(env.step(env.rand_action(env.reset())))
    with pytest.raises(ValueError, match=r"'image' \(1 of 40\), 'reward' \(3 of 4\)"):
        env.step(env.rand_action(root).set("late", torch.ones(4, 1)))


def test_nested_stored_data_are_checked() -> None:
    next_td = TensorDict({"a": torch.tensor([1.0, torch.nan])}, [2])
    data = TensorDict({"a": torch.zeros(2), "text": "x", "next": next_td}, [2])
    with pytest.raises(ValueError, match="'next', 'a'"):
        FiniteTensorDictCheck()(data)
    assert FiniteTensorDictCheck()(data.exclude("next"))["text"] == "x"
