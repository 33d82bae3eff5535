"""Agents of unlike shapes: their specs are stacked Composites, and their entries are lazy stacks."""

from typing import Any

import pytest
import torch
from tensordict import LazyStackedTensorDict, TensorDict, TensorDictBase, lazy_stack

from vecrl.envs import EnvBase, ParallelEnv, SerialEnv, check_env_specs, step_mdp
from vecrl.envs.transforms import (
    ClipTransform,
    Compose,
    DeviceCastTransform,
    DTypeCastTransform,
    FiniteTensorDictCheck,
    Hash,
    ObservationNorm,
    RenameTransform,
    RewardSum,
    SelectTransform,
    SignTransform,
    StepCounter,
    TransformedEnv,
    UnsqueezeTransform,
)
from vecrl.errors import SpaceError
from vecrl.specs import Composite, Unbounded

SIZES = 3, 4
stack: Any = torch.stack  # typed for tensors only, accepts specs too


class Agents(EnvBase):
    """Two agents: one observes 3 numbers and sets 1, the other observes 4 numbers and sets 2. Ends after 3 steps."""

    def __init__(self, wrong: bool = False):
        super().__init__()
        self.wrong = wrong
        specs = [Composite(observation=Unbounded((size,))) for size in SIZES]
        actions = [Composite(action=Unbounded((size,))) for size in (1, 2)]
        self.full_observation_spec = Composite(agents=stack(specs), shape=())
        self.full_action_spec = Composite(agents=stack(actions), shape=())
        self.full_reward_spec = Composite(agents=Composite(reward=Unbounded((2, 1)), shape=(2,)))

    def _look(self) -> Any:
        sizes = (3, 5) if self.wrong and self.count else SIZES
        return lazy_stack([TensorDict({"observation": torch.full((size,), float(self.count))}) for size in sizes])

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        self.count = 0
        return TensorDict({"agents": self._look()})

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        self.count += 1
        agents: Any = tensordict["agents"]
        reward = torch.stack([agent["action"].sum().reshape(1) for agent in agents.unbind(0)])
        return TensorDict({"agents": self._look().set("reward", reward), "done": torch.tensor([self.count == 3])})

    def _set_seed(self, seed: int | None) -> None: ...


def shapes(data: Any) -> list[tuple[int, ...]]:
    """Returns the shapes of the agents' observations in a single step of a single environment."""
    return [tuple(agent["observation"].shape) for agent in data["agents"].unbind(0)]


def test_specs_are_checked_agent_by_agent() -> None:
    check_env_specs(Agents())
    with pytest.raises(SpaceError, match=r"\('agents', 'observation'\).*expected shape \(4,\), found \(5,\)"):
        check_env_specs(Agents(wrong=True))
    with pytest.raises(SpaceError, match=r"expected shape \(4,\), found \(5,\)"):
        Agents(wrong=True).rollout(2)


@pytest.mark.parametrize("contiguous", [None, True, False])
def test_rollouts_equal_single_steps(contiguous: bool | None) -> None:
    rollout: Any = Agents().rollout(9, return_contiguous=contiguous)
    assert rollout.shape == (3,)
    assert rollout.names == ["time"]
    assert rollout["next", "agents", "reward"].shape == (3, 2, 1)
    for t in range(3):
        step = rollout[t]
        assert shapes(step) == shapes(step["next"]) == [(3,), (4,)]
        assert step["agents"][1]["observation"].unique() == t
        actions = [agent["action"].sum() for agent in step["agents"].unbind(0)]
        assert step["next", "agents", "reward"].flatten().tolist() == torch.stack(actions).tolist()


def test_step_mdp_keeps_each_agent() -> None:
    env = Agents()
    stepped: Any = env.rand_step(env.reset())
    root: Any = env.step_mdp(stepped)
    assert isinstance(root["agents"], LazyStackedTensorDict)
    assert shapes(root) == [(3,), (4,)]
    assert set(root["agents"].keys()) == {"observation"}
    other: Any = step_mdp(stepped, action_keys=("agents", "action"), reward_keys=("agents", "reward"))
    assert shapes(other) == shapes(root)
    assert set(other["agents"].keys()) == {"observation"}


@pytest.mark.parametrize("kind", [SerialEnv, ParallelEnv])
def test_batches_of_such_environments(kind: Any) -> None:
    with kind(2, Agents) as env:
        check_env_specs(env)
        rollout = env.rollout(5, break_when_any_done=False)
        assert rollout.shape == (2, 5)
        assert rollout.names[-1] == "time"
        assert rollout["next", "agents", "reward"].shape == (2, 5, 2, 1)
        assert rollout["next", "done"][0].flatten().tolist() == [False, False, True, False, False]
        assert [shapes(rollout[row, t]) for row in range(2) for t in range(5)] == [[(3,), (4,)]] * 10
        assert [int(rollout[1, t]["agents"][1]["observation"][0]) for t in range(5)] == [0, 1, 2, 0, 1]


def test_partial_resets_keep_the_other_rows() -> None:
    env = SerialEnv(2, Agents)
    root = env.step_mdp(env.rand_step(env.reset()))
    reset_td: Any = env.reset(root.set("_reset", torch.tensor([[True], [False]])))
    assert [float(reset_td[row]["agents"][1]["observation"][0]) for row in range(2)] == [0.0, 1.0]


def test_masks_of_agents_select_in_a_lazy_stack() -> None:
    class Masked(Agents):
        def __init__(self) -> None:
            super().__init__()
            flag = self.full_done_spec["done"].clone().unsqueeze(0).expand(2, 1)
            self.full_done_spec = Composite(agents=Composite(done=flag, shape=(2,)))
            self.count = 0

        def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
            stepped: Any = super()._step(tensordict)
            stepped["agents"].set("done", stepped["done"].expand(2, 1).clone())
            return stepped.exclude("done")

    env = Masked()
    root: Any = env.step_mdp(env.rand_step(env.reset()))
    root["agents"].set("_reset", torch.tensor([[False], [True]]))
    reset_td: Any = env.reset(root)
    assert [float(agent["observation"][0]) for agent in reset_td["agents"].unbind(0)] == [1.0, 0.0]


@pytest.mark.parametrize("make", [Agents, lambda: SerialEnv(2, Agents)])
def test_transforms_over_such_environments(make: Any) -> None:
    env = TransformedEnv(make(), StepCounter())
    check_env_specs(env)
    assert env.rollout(3)["next", "step_count"].reshape(-1, 3)[0].tolist() == [1, 2, 3]


def test_sums_of_the_rewards_of_agents() -> None:
    env = TransformedEnv(Agents(), RewardSum(in_keys=[("agents", "reward")]))
    check_env_specs(env)
    rollout = env.rollout(3)
    sums = rollout["next", "agents", "episode_reward"]
    torch.testing.assert_close(sums, rollout["next", "agents", "reward"].cumsum(0))


def test_transforms_that_need_one_shape_say_so() -> None:
    env = TransformedEnv(Agents(), UnsqueezeTransform(-1, in_keys=[("agents", "observation")]))
    with pytest.raises(SpaceError, match=r"Expected agents with equal specs, .* Transform entries of one shape"):
        env.reset()


def test_agents_may_be_the_batch() -> None:
    class Batch(Agents):
        def __init__(self) -> None:
            EnvBase.__init__(self, batch_size=[2])
            self.wrong = False
            self.full_observation_spec = stack([Composite(observation=Unbounded((size,))) for size in SIZES])
            self.full_action_spec = stack([Composite(action=Unbounded((size,))) for size in (1, 2)])

        def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
            self.count = 0
            return self._look()

        def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
            self.count += 1
            return self._look().set("done", torch.full((2, 1), self.count == 3))

    env = Batch()
    check_env_specs(env)
    rows: Any = env.rollout(5).unbind(0)
    assert [tuple(row[0]["observation"].shape) for row in rows] == [(3,), (4,)]


def test_missing_actions_are_reported() -> None:
    with pytest.raises(KeyError, match=r"agents.*action"):
        Agents().rollout(2, lambda td: td)


OBS = ("agents", "observation")
ACTION = ("agents", "action")


def value_transforms() -> dict[str, tuple[Any, Any, Any]]:
    """Returns transforms that change values: each with the new key of observations, and what it computes."""
    float64, half = torch.float64, 0.5
    return {
        "clip": (
            ClipTransform([OBS], [("agents", "new")], low=-half, high=half),
            "new",
            lambda x: x.clamp(-half, half),
        ),
        "replace": (ClipTransform([OBS], low=-half, high=half), "observation", lambda x: x.clamp(-half, half)),
        "sign": (SignTransform([OBS], [("agents", "new")]), "new", torch.sign),
        "norm": (ObservationNorm(1.0, 2.0, in_keys=[OBS]), "observation", lambda x: x * 2 + 1),
        "cast": (DTypeCastTransform(torch.float32, float64, in_keys=[OBS]), "observation", lambda x: x.to(float64)),
        "cast all": (DTypeCastTransform(torch.float32, float64), "observation", lambda x: x.to(float64)),
        "device": (DeviceCastTransform("cpu", in_keys=[OBS]), "observation", lambda x: x),
        "rename": (RenameTransform([OBS], [("agents", "new")]), "new", lambda x: x),
        "copy": (RenameTransform([OBS], [("agents", "new")], create_copy=True), "new", lambda x: x),
        "hash": (Hash([OBS], [("agents", "new")]), "new", Hash.reproducible_hash),
        "check": (FiniteTensorDictCheck(), "observation", lambda x: x),
        "select": (SelectTransform(OBS), "observation", lambda x: x),
    }


@pytest.mark.parametrize("make", [Agents, lambda: SerialEnv(2, Agents)])
@pytest.mark.parametrize("name", value_transforms())
def test_transforms_of_values_change_each_agent(name: str, make: Any) -> None:
    transform, key, function = value_transforms()[name]
    env = TransformedEnv(make(), transform)
    check_env_specs(env)
    steps, stored = env.rollout(3), transform.clone()(make().rollout(3))
    for data, first in ((steps, 0), (steps["next"], 1), (stored, 0)):
        rows: Any = data.reshape(-1).unbind(0)
        for count, row in enumerate(rows[:3], first):
            for agent, size in zip(row["agents"].unbind(0), SIZES, strict=True):
                assert agent[key].equal(function(torch.full((size,), float(count))))


def test_inverses_of_stored_data_of_unlike_agents() -> None:
    stored: Any = Agents().rollout(3)
    for transform in (
        RenameTransform([OBS], [("agents", "new")], [OBS], [("agents", "new")]),
        DTypeCastTransform(torch.float32, torch.float64),
        ObservationNorm(1.0, 2.0, in_keys=[OBS], in_keys_inv=[OBS]),
    ):
        restored: Any = transform.inv(transform(stored.clone()))
        for agent, expected in zip(restored["agents"].unbind(-1), stored["agents"].unbind(-1), strict=True):
            assert agent["observation"].equal(expected["observation"])


def test_inputs_of_unlike_agents_are_changed() -> None:
    env = TransformedEnv(
        Agents(),
        Compose(
            ClipTransform(in_keys_inv=[ACTION], low=-0.5, high=0.5),
            RenameTransform([], [], [ACTION], [("agents", "act")]),
        ),
    )
    check_env_specs(env)
    for step in env.rollout(3).unbind(0):
        rewards = [agent["act"].clamp(-0.5, 0.5).sum() for agent in step["agents"].unbind(0)]
        torch.testing.assert_close(step["next", "agents", "reward"].flatten(), torch.stack(rewards))


def test_ragged_entries_stay_in_their_group() -> None:
    for transform in (RenameTransform([OBS], ["seen"]), SignTransform([OBS], [("others", "seen")])):
        with pytest.raises(SpaceError, match="Use a key that starts with 'agents'"):
            TransformedEnv(Agents(), transform).reset()
