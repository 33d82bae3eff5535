"""vecrl's transforms in TorchRL's environments and collectors: their results and specs are those in vecrl's."""

from functools import partial
from typing import Any

import pytest
import torch
from tensordict import TensorDictBase
from tests.fixtures.transforms import CASES

from vecrl.envs import PendulumEnv, transforms
from vecrl.envs.transforms import TransformedEnv
from vecrl.testing import IndependentRowsEnv

pytestmark = [pytest.mark.torchrl, pytest.mark.peers, pytest.mark.filterwarnings("ignore")]

REFUSED = {
    *("ActionMask", "AutoResetTransform", "BatchSizeTransform", "EndOfLifeTransform", "VecGymEnvTransform"),
    "VecNormV2: stateless",
}
DIFFERENT = {"ConditionalSkip: with a counter"}
"""In TorchRL, later transforms do not know which rows were not stepped."""


def results_of(env: Any, actions: list[TensorDictBase]) -> list[TensorDictBase]:
    """Returns the results of resets and steps with given actions; one of the resets is partial."""
    torch.manual_seed(3)
    root = env.reset()
    results = [root.clone()]
    for number, action in enumerate(actions):
        step, root = env.step_and_maybe_reset(root.copy().update(action.clone()))
        results += [step["next"].clone(), root.exclude(*action.keys(True, True)).clone()]
        if number == 3:
            root = env.reset(root.set("_reset", torch.tensor([[True], [False], [True]])))
    return results


def entries(td: Any) -> dict[str, Any]:
    return {str(key): td[key] for key in td.keys(include_nested=True, leaves_only=True)}


def in_torchrl(transform: Any) -> Any:
    """Returns an environment of TorchRL's classes with a transform."""
    from torchrl import envs

    from vecrl.interop.torchrl.environments import EnvInTorchRL

    return envs.TransformedEnv(EnvInTorchRL.over(IndependentRowsEnv((0, 1, 2))), transform)


@pytest.mark.parametrize("name", sorted(CASES.keys() - REFUSED - DIFFERENT))
def test_results_and_specs_equal_vecrl(name: str) -> None:
    from vecrl.interop.torchrl.spec_conversion import to_torchrl

    own = TransformedEnv(IndependentRowsEnv((0, 1, 2)), CASES[name].make())
    theirs = in_torchrl(CASES[name].make())
    actions = [own.full_action_spec.rand() for _ in range(8)]
    for expected, actual in zip(results_of(own, actions), results_of(theirs, actions), strict=True):
        torch.testing.assert_close(entries(actual), entries(expected), equal_nan=True)
    for kind in ("action", "state", "observation", "reward", "done"):
        specs = [getattr(env, f"full_{kind}_spec") for env in (own, theirs)]
        assert entries(to_torchrl(specs[0])) == entries(specs[1])


@pytest.mark.parametrize("name", sorted(REFUSED & CASES.keys()))
def test_transforms_that_change_environments_are_refused(name: str) -> None:
    with pytest.raises(TypeError, match=r"Use those of TorchRL, or vecrl\.envs\.TransformedEnv"):
        in_torchrl(CASES[name].make()).reset()


def test_transforms_of_stored_data_are_refused() -> None:
    with pytest.raises(ValueError, match="needs several steps at once"):
        in_torchrl(transforms.MultiStepTransform(2, 0.9)).reset()


def test_transforms_of_both_libraries_are_combined() -> None:
    from torchrl import envs

    env = envs.TransformedEnv(
        envs.SerialEnv(2, partial(envs.GymEnv, "Pendulum-v1")),
        envs.transforms.Compose(transforms.StepCounter(4), envs.transforms.RewardSum()),
    )
    env.append_transform(transforms.RenameTransform(["episode_reward"], ["total"], create_copy=True))
    data = env.rollout(7, break_when_any_done=False)
    assert data["next", "step_count"].squeeze(-1).tolist() == [[1, 2, 3, 4, 1, 2, 3]] * 2
    torch.testing.assert_close(data["next", "total"][:, :4], data["next", "reward"][:, :4].cumsum(1))
    assert "step_count" in env.transform[2].parent.observation_spec
    envs.utils.check_env_specs(env)


def test_running_statistics_are_updated_in_environments_of_torchrl() -> None:
    from torchrl import envs

    norm = transforms.VecNorm(["observation"])
    env = envs.TransformedEnv(envs.GymEnv("Pendulum-v1"), norm)
    states = []
    for _ in range(2):
        env.rollout(5)
        states.append(str(norm.state_dict()))
    norm.eval()
    env.rollout(5)
    assert states[0] != states[1] == str(norm.state_dict())


def test_transforms_follow_collectors() -> None:
    from torchrl.collectors import Collector
    from torchrl.envs import transforms as theirs
    from torchrl.modules import RandomPolicy

    batches = []
    for library in (transforms, theirs):
        torch.manual_seed(0)
        env = PendulumEnv()
        env.set_seed(0)
        scaling = library.RewardScaling(1.0, 2.0, in_keys=[("next", "reward")])
        collector = Collector(
            lambda env=env: env,
            RandomPolicy(env.full_action_spec),
            frames_per_batch=5,
            total_frames=5,
            postproc=scaling,
        )
        batches.append(next(iter(collector))["next", "reward"])
        collector.shutdown()
    assert batches[0].equal(batches[1])
