"""Transforms that look, and change nothing."""

import pytest
import torch
from tensordict import TensorDict, TensorDictBase

from vecrl.envs import check_env_specs
from vecrl.envs.transforms import FiniteTensorDictCheck, TransformedEnv

from ..bounded import Within


class Broken(Within):
    """Its second step is not finite."""

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        following = super()._step(tensordict)
        if self.given.get("late", None) is not None:
            following["image"][0, 0, 0, 2] = torch.inf
            following["reward"][1:] = torch.nan
        return following


def test_where_numbers_are_not_finite() -> None:
    env = TransformedEnv(Broken(4), FiniteTensorDictCheck())
    check_env_specs(env)
    root = env.step_mdp(env.step(env.rand_action(env.reset())))
    with pytest.raises(ValueError, match=r"'image' \(1 of 40\), 'reward' \(3 of 4\)"):
        env.step(env.rand_action(root).set("late", torch.ones(4, 1)))


def test_stored_data_are_looked_at_below_too() -> None:
    following = TensorDict({"a": torch.tensor([1.0, torch.nan])}, [2])
    data = TensorDict({"a": torch.zeros(2), "text": "x", "next": following}, [2])
    with pytest.raises(ValueError, match="'next', 'a'"):
        FiniteTensorDictCheck()(data)
    assert FiniteTensorDictCheck()(data.exclude("next"))["text"] == "x"
