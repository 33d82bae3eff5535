"""Utilities for environments: exploration types, random policies, available libraries, and helpers for specs."""

from typing import Any

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import ProbabilisticTensorDictModule, TensorDictModule, TensorDictSequential, set_interaction_type
from tests.fixtures.tensordict_envs import CountingRowsEnv, GroupsEnv
from torch.distributions import Categorical as CategoricalDistribution
from torch.distributions import Normal

from vecrl.envs import EnvBase, ExplorationType, RandomPolicy, exploration_type, set_exploration_type
from vecrl.envs.utils import get_available_libraries
from vecrl.specs import Bounded, Categorical, Composite, OneHot


def _actor(kind: Any = Normal) -> TensorDictSequential:
    if kind is Normal:
        keys, parts = ["loc", "scale"], TensorDictModule(lambda x: (x, x + 1), ["count"], ["loc", "scale"])
    else:
        keys, parts = ["logits"], TensorDictModule(lambda x: x, ["count"], ["logits"])
    draw = ProbabilisticTensorDictModule(keys, ["action"], distribution_class=kind)
    return TensorDictSequential(parts, draw)


def test_tensordict_modules_obey_the_exploration_type() -> None:
    data = TensorDict({"count": torch.ones(1000, 1)}, [1000])
    actor = _actor()
    with set_exploration_type(ExplorationType.RANDOM):
        assert exploration_type() == ExplorationType.RANDOM
        assert actor(data.clone())["action"].std() > 1
    for kind in (ExplorationType.MODE, ExplorationType.MEAN, ExplorationType.DETERMINISTIC):
        with set_exploration_type(kind):
            assert actor(data.clone())["action"].eq(1).all(), kind


def test_exploration_type_is_tensordicts_interaction_type() -> None:
    before = exploration_type()
    with set_interaction_type(ExplorationType.MODE):
        assert exploration_type() == ExplorationType.MODE
        with set_exploration_type(ExplorationType.RANDOM):
            assert exploration_type() == ExplorationType.RANDOM
        assert exploration_type() == ExplorationType.MODE
    assert exploration_type() == before


def test_exploration_defaults_to_deterministic_and_accepts_names() -> None:
    with set_exploration_type():
        assert exploration_type() == ExplorationType.DETERMINISTIC
    with set_exploration_type("random"):
        assert exploration_type() == ExplorationType.RANDOM


def test_rollouts_obey_the_exploration_type() -> None:
    env = CountingRowsEnv(50)
    env.action_spec = Bounded(-100, 100, (1, 1))
    with set_exploration_type(ExplorationType.MODE):
        greedy = env.rollout(20, _actor_of_floats())
    assert greedy["action"].equal(greedy["count"].float())
    with set_exploration_type(ExplorationType.RANDOM):
        explored = env.rollout(20, _actor_of_floats())
    assert not explored["action"].eq(explored["count"].float()).any()


def _actor_of_floats() -> TensorDictSequential:
    cast = TensorDictModule(lambda x: x.float(), ["count"], ["count_as_float"])
    spread = TensorDictModule(lambda x: (x, x + 1), ["count_as_float"], ["loc", "scale"])
    return TensorDictSequential(
        cast, spread, ProbabilisticTensorDictModule(["loc", "scale"], ["action"], distribution_class=Normal)
    )


def test_masked_distributions_choose_allowed_actions() -> None:
    """A user's policy: the mask of the environment is one more input of the distribution."""

    class Masked(CategoricalDistribution):
        def __init__(self, logits: torch.Tensor, mask: torch.Tensor):
            super().__init__(logits=logits.masked_fill(~mask, -torch.inf))

    actor = TensorDictSequential(
        TensorDictModule(torch.nn.Linear(3, 4), in_keys=["observation"], out_keys=["logits"]),
        ProbabilisticTensorDictModule(
            in_keys={"logits": "logits", "mask": "action_mask"}, out_keys=["action"], distribution_class=Masked
        ),
    )
    data = TensorDict(
        {"observation": torch.rand(500, 3), "action_mask": torch.tensor([False, True, False, True]).expand(500, 4)},
        [500],
    )
    with set_exploration_type(ExplorationType.RANDOM):
        assert set(actor(data)["action"].tolist()) == {1, 3}


@pytest.mark.parametrize("spec", [OneHot(3), Composite(action=OneHot(3))])
def test_random_policy_draws_from_the_spec(spec: Any) -> None:
    data = RandomPolicy(spec)(TensorDict())
    assert OneHot(3).is_in(data["action"])
    assert RandomPolicy(action_spec=OneHot(3), action_key=("agents", "act"))(TensorDict())["agents", "act"].shape == (
        3,
    )


def test_available_libraries_are_listed() -> None:
    found = get_available_libraries()
    assert found["gymnasium"] is True
    assert set(map(type, found.values())) == {bool}


def test_all_actions_lists_every_action() -> None:
    env = CountingRowsEnv(3, 3)
    env.action_spec = Categorical(4, (2,))
    assert env.cardinality() == 4
    assert env.all_actions()["action"].tolist() == [[n, n] for n in range(4)]
    env.action_spec = Categorical(4, (2,), mask=torch.tensor([True, False, True, False]))
    assert env.all_actions()["action"].tolist() == [[0, 0], [2, 2]]
    assert env.all_actions().batch_size == (2, 2)
    assert CountingRowsEnv(3).cardinality() == float("inf")


def test_specs_of_one_row() -> None:
    env = CountingRowsEnv(3, 3)
    assert env.input_spec_unbatched["full_action_spec", "action"].shape == (2,)
    assert env.output_spec_unbatched["full_observation_spec", "count"].shape == (1,)
    assert GroupsEnv(("a",), root=True).output_spec_unbatched["full_reward_spec", "a", "reward"].shape == (2, 1)


def test_check_env_specs_is_also_a_method() -> None:
    CountingRowsEnv(3).check_env_specs(seed=0)


def test_environments_hold_a_weak_reference_to_their_collector() -> None:
    class Collector: ...

    env: EnvBase = CountingRowsEnv(3)
    assert env.collector is None
    collector = Collector()
    env.register_collector(collector)
    assert env.collector is collector
    del collector
    assert env.collector is None, "which it does not keep alive"


def test_utils_have_the_groups_of_agents() -> None:
    import vecrl.envs
    from vecrl.envs import utils

    assert {"MarlGroupMapType", "check_marl_grouping"} <= set(utils.__all__)
    assert utils.MarlGroupMapType is vecrl.envs.MarlGroupMapType
