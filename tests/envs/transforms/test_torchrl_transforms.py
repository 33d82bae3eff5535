"""The values of transforms of actions and episodes equal those of TorchRL's, if TorchRL is installed."""

from typing import Any

import pytest
import torch
from tensordict import TensorDict

import vecrl.envs
import vecrl.envs.transforms
import vecrl.specs
from vecrl.envs.transforms import NextObservationDelta

from .test_episodes import Lives

pytestmark = [pytest.mark.torchrl, pytest.mark.filterwarnings("ignore")]


def libraries() -> list[tuple[Any, Any, Any]]:
    """Returns the modules of environments, transforms and specs of vecrl and of TorchRL."""
    import torchrl.data
    import torchrl.envs
    import torchrl.envs.transforms

    return [
        (vecrl.envs, vecrl.envs.transforms, vecrl.specs),
        (torchrl.envs, torchrl.envs.transforms, torchrl.data),
    ]


def make_env(envs: Any, specs: Any, action_spec: Any) -> Any:
    """Returns an environment with episodes of 5 steps, the k-th of which has reward k, which records its action."""

    class Env(envs.EnvBase):
        def __init__(self) -> None:
            super().__init__()
            self.observation_spec = specs.Composite(observation=specs.Unbounded((3,)))
            self.action_spec = action_spec
            self.reward_spec = specs.Unbounded((1,))
            self.step_number, self.last_action = 0, None

        def _observe(self) -> TensorDict:
            values = torch.tensor([5.0, -3.0, 2.0, -9.0, 1.0, 4.0])
            return TensorDict(observation=values[self.step_number] * torch.tensor([1.0, -1.0, 0.5]))

        def _reset(self, tensordict: Any = None, **kwargs: Any) -> TensorDict:
            self.step_number = 0
            return self._observe()

        def _step(self, tensordict: Any) -> TensorDict:
            self.step_number, self.last_action = self.step_number + 1, tensordict["action"]
            done = torch.tensor([self.step_number >= 5])
            return self._observe().update({"reward": torch.tensor([float(self.step_number)]), "done": done})

        def _set_seed(self, seed: Any) -> None: ...

    return Env()


def assert_same_actions(make_spec: Any, make_transform: Any, actions: list[Any], key: str = "action") -> None:
    """Checks that the environment gets equal actions in both libraries, and that forward gives equal data."""
    taken = []
    for envs, transforms, specs in libraries():
        env = envs.TransformedEnv(make_env(envs, specs, make_spec(specs)), make_transform(transforms))
        for action in actions:
            env.step(env.reset().set(key, action.clone()))
            taken.append(env.base_env.last_action)
    for own_action, theirs in zip(taken[: len(actions)], taken[len(actions) :], strict=True):
        torch.testing.assert_close(own_action, theirs)


@pytest.mark.parametrize("sampling", [0, 1, 2])
def test_discrete_actions_equal_torchrl(sampling: int) -> None:
    def spec(specs: Any) -> Any:
        return specs.Bounded(torch.tensor([0.0, 10.0]), torch.tensor([1.0, 30.0]), (2,))

    def make(transforms: Any, **options: Any) -> Any:
        strategy = list(transforms.ActionDiscretizer.SamplingStrategy)[sampling]
        return transforms.ActionDiscretizer(torch.tensor([2, 4]), sampling=strategy, **options)

    actions = [torch.tensor([i, j]) for i in range(2) for j in range(4)]
    assert_same_actions(spec, make, actions)
    rows = [torch.tensor([0, 1, 0, 0, 1, 0]).bool(), torch.tensor([1, 0, 0, 0, 0, 1]).bool()]
    assert_same_actions(spec, lambda t: make(t, categorical=False, out_action_key="d"), rows, "d")


@pytest.mark.parametrize(
    "options", [{}, {"standard_normal": False}, {"loc": 1.0, "scale": 2.0}, {"loc": torch.ones(2), "scale": 0.5}]
)
def test_scaled_actions_equal_torchrl(options: dict[str, Any]) -> None:
    def spec(specs: Any) -> Any:
        return specs.Bounded(torch.tensor([-2.0, 0.0]), torch.tensor([4.0, 10.0]), (2,))

    assert_same_actions(spec, lambda t: t.ActionScaling(**options), [torch.tensor([0.5, 0.25]), torch.ones(2)])
    if "loc" in options:
        own_data, theirs = (t.ActionScaling(**options)(TensorDict(action=torch.ones(2))) for _, t, _ in libraries())
        torch.testing.assert_close(own_data["action"], theirs["action"])


def test_projected_and_flattened_actions_equal_torchrl() -> None:
    rows = list(torch.eye(4, dtype=torch.int64)[:2])
    assert_same_actions(
        lambda specs: specs.OneHot(2, dtype=torch.int64), lambda t: t.DiscreteActionProjection(2, 4), rows
    )
    assert_same_actions(lambda specs: specs.Bounded(-1, 1, (3, 5)), lambda t: t.FlattenAction(), [torch.rand(15)])
    own_data, theirs = (
        t.FlattenAction(-3, -2, action_shape=(3, 5)).inv(TensorDict(action=torch.arange(60.0).reshape(2, 15, 2)))
        for _, t, _ in libraries()
    )
    assert own_data["action"].equal(theirs["action"])


def rollouts(make_transform: Any, keys: list[Any], steps: int = 12) -> list[list[Any]]:
    """Returns entries of rollouts through several episodes in both libraries."""
    found = []
    for envs, transforms, specs in libraries():
        env = envs.TransformedEnv(make_env(envs, specs, specs.Bounded(-1, 1, (2,))), make_transform(transforms))
        rollout = env.rollout(steps, break_when_any_done=False)
        found.append([rollout[key] for key in keys])
    return found


def test_lost_lives_equal_torchrl() -> None:
    for limit in (3, 100):
        found = []
        for envs, transforms, _ in libraries():
            env = envs.TransformedEnv(envs.GymWrapper(Lives(limit)), transforms.EndOfLifeTransform())
            rollout = env.rollout(14, break_when_any_done=False)
            keys = ["lives", "end-of-life"]
            found.append([rollout[key] for key in keys] + [rollout["next", key] for key in keys])
        for own_value, theirs in zip(*found, strict=True):
            assert own_value.equal(theirs)


@pytest.mark.parametrize("write_done", [True, False])
def test_terminated_episodes_equal_torchrl(write_done: bool) -> None:
    def make(transforms: Any) -> Any:
        return transforms.TerminateTransform(lambda td: td["reward"] >= 3, write_done=write_done)

    own_rollout, theirs = rollouts(make, [("next", "terminated"), ("next", "done"), "observation"])
    assert all(own_value.equal(value) for own_value, value in zip(own_rollout, theirs, strict=True))


def test_random_truncation_has_the_range_of_torchrl() -> None:
    def make(transforms: Any) -> Any:
        return transforms.Compose(
            transforms.StepCounter(), transforms.RandomTruncationTransform(2, 3, prob=1.0, first_episode_prob=0.0)
        )

    for done, truncated, count in rollouts(make, [("next", "done"), ("next", "truncated"), ("next", "step_count")], 60):
        lengths = count[done].tolist()
        assert truncated.equal(done)
        assert lengths[0] in (1, 2, 3)
        assert lengths[1] == 3
        assert set(lengths[2:]) == {2, 3}


@pytest.mark.parametrize("mode", ["reduce", "constant"])
def test_target_returns_equal_torchrl(mode: str) -> None:
    own_rollout, theirs = rollouts(lambda t: t.TargetReturn(10.0, mode), ["target_return", ("next", "target_return")])
    assert all(own_value.equal(value) for own_value, value in zip(own_rollout, theirs, strict=True))


@pytest.mark.parametrize("number", [1, 2, 3])
def test_maxima_equal_torchrl(number: int) -> None:
    """Except at the start of episodes, where 0 is among TorchRL's values."""
    keys: list[Any] = [("next", "observation"), ("next", "done")]
    (own_values, done), (theirs, _) = rollouts(lambda t: t.TimeMaxPool(T=number), keys, 5)
    assert done.flatten().tolist() == [False] * 4 + [True]
    assert own_values[number - 1 :].equal(theirs[number - 1 :])


@pytest.mark.parametrize("options", [{}, {"stack_observations": True}, {"stack_rewards": False}])
def test_several_actions_equal_torchrl(options: dict[str, Any]) -> None:
    found = []
    for envs, transforms, specs in libraries():
        base = make_env(envs, specs, specs.Bounded(-1, 1, (2,)))
        env = envs.TransformedEnv(base, transforms.MultiAction(**options))
        found.append(env.step(env.reset().set("action", torch.zeros(3, 2)))["next"])
    for key in ("observation", "reward", "done"):
        assert found[0][key].equal(found[1][key])


def test_noise_has_the_shapes_of_torchrl() -> None:
    for options in ({"state_dim": 3, "action_dim": 2}, {"state_dim": 3, "action_dim": 2, "shape": (5,)}, {}):
        own_noise, theirs = rollouts(lambda t, options=options: t.gSDENoise(**options), ["_eps_gSDE"])
        assert own_noise[0].shape == theirs[0].shape
        changes = [(noise[1:] != noise[:-1]).flatten(1).any(-1).tolist() for noise in (own_noise[0], theirs[0])]
        assert changes[0] == changes[1]


def test_skipped_steps_equal_torchrl() -> None:
    def make(transforms: Any) -> Any:
        return transforms.Compose(
            transforms.StepCounter(), transforms.ConditionalSkip(lambda td: td["action"][..., 0] < 0)
        )

    found = []
    for envs, transforms, specs in libraries():
        env = envs.TransformedEnv(make_env(envs, specs, specs.Bounded(-1, 1, (2,))), make(transforms))
        root, results = env.reset(), []
        for sign in (1, -1, 1, -1, -1, 1):
            step = env.step(root.set("action", torch.full((2,), 0.5 * sign)))
            results.append(step["next"].clone())
            root = env.step_mdp(step)
        found.append(results)
    for own_step, theirs in zip(*found, strict=True):
        for key in ("observation", "reward", "done", "step_count"):
            assert own_step[key].equal(theirs[key])


def test_switched_policies_equal_torchrl() -> None:
    def policy(td: Any) -> Any:
        return td.set("action", torch.zeros(2))

    def make(transforms: Any) -> Any:
        return transforms.Compose(
            transforms.StepCounter(step_count_key="both"),
            transforms.ConditionalPolicySwitch(policy=policy, condition=lambda td: td["both"] % 3 == 1),
            transforms.StepCounter(step_count_key="own"),
        )

    keys: list[Any] = ["observation", "both", "own", ("next", "reward"), ("next", "own"), ("next", "done")]
    own_rollout, theirs = rollouts(make, keys)
    assert all(own_value.equal(value) for own_value, value in zip(own_rollout, theirs, strict=True))


def test_means_of_actions_equal_torchrl() -> None:
    mean = TensorDict(mean=torch.tensor([0.1, 0.2]), var=torch.zeros(2, 2))
    assert_same_actions(lambda specs: specs.Bounded(-1, 1, (2,)), lambda t: t.MeanActionSelector(), [mean])


def test_restored_observations_equal_torchrl() -> None:
    roots, following = torch.rand(5, 3), torch.rand(5, 3)
    stored = NextObservationDelta(["observation"]).inv(
        TensorDict({"observation": roots, "next": {"observation": following}}, [5])
    )
    own_data, theirs = (t.NextObservationDelta(["observation"])(stored.clone()) for _, t, _ in libraries())
    assert own_data["next", "observation"].equal(theirs["next", "observation"])
