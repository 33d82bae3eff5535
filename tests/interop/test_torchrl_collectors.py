"""TorchRL's collectors and evaluators on vecrl's environments."""

from functools import partial
from typing import Any

import pytest
import torch
from tensordict.nn import TensorDictModule
from tests.fixtures.agents_envs import Countdown
from tests.fixtures.cartpole_actor import make_actor, make_cartpole
from torch import nn

from vecrl.envs import EnvBase, EnvCreator, GymEnv, ParallelEnv, RandomPolicy, SerialEnv
from vecrl.envs.libs.parallel_agents import ParallelAgentsEnv
from vecrl.envs.transforms import Compose, RewardSum, StepCounter, TensorDictPrimer, TransformedEnv, VecNorm
from vecrl.specs import Unbounded

pytestmark = [pytest.mark.torchrl, pytest.mark.peers, pytest.mark.filterwarnings("ignore")]

FRAMES = {"frames_per_batch": 20, "total_frames": 40}


def pendulum(max_steps: int = 7) -> EnvBase:
    return TransformedEnv(GymEnv("Pendulum-v1"), Compose(StepCounter(max_steps), RewardSum()))


def normed_pendulum() -> EnvBase:
    return TransformedEnv(GymEnv("Pendulum-v1"), Compose(StepCounter(7), VecNorm(decay=1.0)))


def steer() -> TensorDictModule:
    return TensorDictModule(nn.Linear(3, 1), in_keys=["observation"], out_keys=["action"])


def collect(collector: Any) -> list[Any]:
    try:
        return [None if data is None else data.clone() for data in collector]
    finally:
        collector.shutdown()


@pytest.mark.parametrize("kind", ["single", "serial", "parallel"])
@pytest.mark.parametrize("random", [True, False])
def test_collectors_run_on_vecrl_environments(kind: str, random: bool) -> None:
    from torchrl.collectors import Collector

    env = make_cartpole(kind)
    policy = RandomPolicy(env.full_action_spec) if random else make_actor()
    batches = collect(Collector(lambda: env, policy, frames_per_batch=60, total_frames=120))
    assert [data.numel() for data in batches] == [60, 60]
    data = batches[1]
    next_td, root = data[..., :-1]["next"], data[..., 1:]
    goes_on = ~next_td["done"].squeeze(-1)
    assert root["observation"][goes_on].equal(next_td["observation"][goes_on])
    assert root["step_count"][~goes_on].eq(0).all()
    assert data["next", "episode_reward"].equal(data["next", "step_count"].float())


@pytest.mark.parametrize(
    "source",
    [pendulum, pendulum(), SerialEnv(2, pendulum), EnvCreator(pendulum)],
    ids=["function", "environment", "serial", "creator"],
)
def test_collectors_take_environments_and_functions_without_a_policy(source: Any) -> None:
    from torchrl.collectors import Collector

    batches = collect(Collector(source, None, **FRAMES))
    assert [data.numel() for data in batches] == [20, 20]
    assert batches[0]["action"].unique().numel() == 20
    assert batches[1]["step_count"].reshape(-1)[0] > 0  # the episodes continue


def test_collectors_reset_at_each_iteration() -> None:
    from torchrl.collectors import Collector

    for env in (pendulum(), SerialEnv(2, pendulum)):
        batches = collect(Collector(env, None, reset_at_each_iter=True, **FRAMES))
        assert all(data[..., 0]["step_count"].eq(0).all() for data in batches)


def test_collectors_split_trajectories() -> None:
    from torchrl.collectors import Collector

    [data, _] = collect(Collector(SerialEnv(2, pendulum), None, split_trajs=True, **FRAMES))
    assert data.shape == (4, 7)
    assert data["collector", "mask"].sum() == 20


def test_collectors_have_the_values_of_a_rollout() -> None:
    from torchrl.collectors import Collector

    policy = steer()
    env = pendulum(30)
    env.set_seed(3)
    collector = Collector(env, policy, **FRAMES)
    data = next(iter(collector))
    collector.shutdown()
    again = pendulum(30)
    again.set_seed(3)
    with torch.no_grad():
        expected = again.rollout(20, policy)
    assert all(data[key].equal(expected[key]) for key in expected.keys(True, True))


def test_collectors_fill_replay_buffers() -> None:
    from torchrl.collectors import Collector
    from torchrl.data import LazyTensorStorage, ReplayBuffer

    buffer = ReplayBuffer(storage=LazyTensorStorage(100), batch_size=5)
    collect(Collector(pendulum(), None, replay_buffer=buffer, **FRAMES))
    assert len(buffer) == 40
    assert buffer.sample()["next", "reward"].shape == (5, 1)


@pytest.mark.parametrize(
    "make", [pendulum, partial(SerialEnv, 2, pendulum), partial(GymEnv, "CartPole-v1", num_envs=2)]
)
def test_environments_can_be_used_after_their_collector(make: Any) -> None:
    from torchrl.collectors import Collector

    env = make()
    collect(Collector(env, env.rand_action, **FRAMES))
    assert env.is_closed
    assert env.rollout(3).shape[-1] == 3
    env.close()


def teams() -> EnvBase:
    game = Countdown()
    memory = TensorDictPrimer({("cat", "memory"): Unbounded((2, 3))})
    return TransformedEnv(ParallelAgentsEnv(game, game), Compose(RewardSum(), StepCounter(), memory))


@pytest.mark.parametrize("source", [teams, partial(SerialEnv, 2, teams)])
def test_collectors_run_over_groups(source: Any) -> None:
    from torchrl.collectors import Collector

    env = source()
    data = collect(Collector(env, env.rand_action, **FRAMES))[1]
    for group, agents in (("cat", 2), ("dog", 1)):
        assert data[group].batch_size == data["next", group].batch_size == (*data.batch_size, agents)
        time = data["next", group, "step_count"]
        assert data["next", group, "episode_reward"].equal((time * (time + 1) / 2).float())
    assert data["cat", "memory"].shape == (*data.batch_size, 2, 3)


@pytest.mark.parametrize("name", ["MultiSyncCollector", "MultiAsyncCollector"])
def test_collectors_with_processes_share_the_state_of_a_creator(name: str) -> None:
    from torchrl import collectors

    creator = EnvCreator(normed_pendulum)
    batches = collect(getattr(collectors, name)([creator, creator], steer(), **FRAMES))
    assert [data.numel() for data in batches] == [20, 20]
    assert all(data["next", "step_count"].max() >= 7 for data in batches)
    counts = [
        creator.state_dict()["transform.transforms.1._extra_state"][f"{key}_count"] for key in ("reward", "observation")
    ]
    assert all(count.ge(40).all() for count in counts)
    assert (counts[1] - counts[0]).ge(2).all()  # the resets of two workers


@pytest.mark.parametrize("used", [False, True])
def test_collectors_with_processes_take_environments(used: bool) -> None:
    from torchrl.collectors import MultiSyncCollector

    env = pendulum()
    if used:
        env.rollout(3, steer())
    batches = collect(MultiSyncCollector([env], steer(), **FRAMES))
    assert [data.numel() for data in batches] == [20, 20]
    assert env.rollout(9)["next", "truncated"].sum() == 1


def test_torchrls_env_creator_creates_environments_of_vecrl() -> None:
    from torchrl.envs import EnvCreator as TheirCreator

    creator = TheirCreator(pendulum)
    assert isinstance(creator(), TransformedEnv)
    env = ParallelEnv(2, creator)
    assert env.rollout(9, break_when_any_done=False)["step_count"][:, -1].eq(1).all()
    env.close()


@pytest.mark.parametrize("source", [pendulum, pendulum(), SerialEnv(2, pendulum)], ids=["function", "single", "serial"])
def test_evaluators_run_on_vecrl_environments(source: Any) -> None:
    collectors = pytest.importorskip("torchrl.collectors")
    if not hasattr(collectors, "Evaluator"):
        pytest.skip("this version of TorchRL has no Evaluator")
    evaluator = collectors.Evaluator(source, policy=steer(), num_trajectories=2, max_steps=50)
    metrics = evaluator.evaluate()
    evaluator.shutdown()
    assert metrics["eval/episode_length"] == 7
    assert metrics["eval/num_episodes"] == 2
    assert metrics["eval/reward"] < 0


def test_check_env_specs_of_torchrl_accepts_vecrl_environments() -> None:
    from torchrl.envs.utils import check_env_specs

    for env in (pendulum(), SerialEnv(2, pendulum), ParallelEnv(2, pendulum), GymEnv("CartPole-v1")):
        check_env_specs(env)
        env.close()
