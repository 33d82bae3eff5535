"""Specs derived from data."""

from typing import Any

import pytest
import torch
from tensordict import NonTensorData, TensorDict
from tensordict.nn import TensorDictModule

from vecrl.envs import EnvBase, check_env_specs, make_composite_from_td
from vecrl.errors import SpaceError
from vecrl.specs import Composite, NonTensor, Unbounded


def _data() -> TensorDict:
    nested = TensorDict({"float": torch.zeros(4, 3, 5), "flag": torch.zeros(4, 3, dtype=torch.bool)}, [4, 3])
    return TensorDict(
        {"int": torch.zeros(4, dtype=torch.int64), "text": NonTensorData("a", [4]), "nested": nested}, [4]
    )


def test_derived_specs_match_the_data() -> None:
    spec = make_composite_from_td(_data())
    assert spec.is_in(_data())
    assert spec.shape == (4,)
    assert spec["nested"].shape == (4, 3)
    assert isinstance(spec["text"], NonTensor)
    assert {key: spec[key].dtype for key in ("int", ("nested", "float"), ("nested", "flag"))} == {
        "int": torch.int64,
        ("nested", "float"): torch.float32,
        ("nested", "flag"): torch.bool,
    }


def test_specs_of_single_numbers() -> None:
    data = TensorDict({"one": torch.zeros(())})
    assert make_composite_from_td(data)["one"].shape == (1,)
    assert make_composite_from_td(data, unsqueeze_null_shapes=False)["one"].shape == ()


def test_differing_shapes_give_dynamic_dimensions() -> None:
    spec = make_composite_from_td(_data(), dynamic_shape=True)
    assert spec["nested", "float"].shape == (4, 3, -1)
    assert spec["int"].shape == (4,)
    assert spec.is_in(_data())


class Bare(EnvBase):
    """An environment without specs, with groups. Its rows grow with every step if `growing`."""

    def __init__(self, batch: Any = (), growing: bool = False):
        super().__init__(batch_size=batch)
        self.growing = growing
        self.count = 0

    def _seen(self) -> TensorDict:
        rows = 2 + self.growing * self.count
        agents = TensorDict({"observation": torch.zeros(*self.batch_size, 3, rows)}, [*self.batch_size, 3])
        clock = torch.full((*self.batch_size, 1), self.count)
        return TensorDict(
            {"observation": torch.rand(*self.batch_size, 4), "clock": clock, "agents": agents}, self.batch_size
        )

    def _reset(self, tensordict: Any = None, **kwargs: Any) -> Any:
        self.count = 0
        return self._seen()

    def _step(self, tensordict: Any) -> Any:
        self.count += 1
        reward = tensordict["action"].sum(-1)
        return self._seen().update({"reward": reward, "terminated": reward > 99, "truncated": reward > 100})

    def _set_seed(self, seed: int | None) -> None: ...


@pytest.mark.parametrize("batch", [(), (5,)])
def test_specs_of_an_environment_that_has_none(batch: Any) -> None:
    env = Bare(batch)
    policy = TensorDictModule(torch.nn.Linear(4, 2), in_keys=["observation"], out_keys=["action"])
    assert env.auto_specs_(policy) is env
    check_env_specs(env)
    assert env.action_keys == ["action"]
    assert env.action_spec.shape == (*batch, 2)
    assert env.full_reward_spec["reward"].shape == (*batch, 1)
    assert env.done_keys == ["done", "terminated", "truncated"]
    assert sorted(env.observation_keys, key=str) == [("agents", "observation"), "clock", "observation"]
    assert env.is_spec_locked
    assert env.rollout(3, policy).shape == (*batch, 3)


def test_sizes_that_change_are_dynamic() -> None:
    env = Bare(growing=True).auto_specs_(lambda data: data.set("action", torch.zeros(2)))
    assert env.full_observation_spec["agents", "observation"].shape == (3, -1)
    assert env.full_observation_spec["observation"].shape == (4,)
    assert env.has_dynamic_specs


def test_missing_entries_raise() -> None:
    with pytest.raises(SpaceError, match=r"Expected the entries \['pixels', 'act'\]"):
        Bare().auto_specs_(lambda data: data.set("action", torch.zeros(2)), observation_key="pixels", action_key="act")


def test_other_step_inputs_become_state_specs() -> None:
    def policy(data: TensorDict) -> TensorDict:
        return data.set("action", torch.zeros(2)).set("mood", torch.zeros(3))

    env = Bare().auto_specs_(policy)
    assert env.state_keys == ["mood"]
    assert env.full_state_spec == Composite(mood=Unbounded((3,)))
