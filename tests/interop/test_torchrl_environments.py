"""TorchRL's environments in vecrl: transforms, batches, checks, conversions and collectors of rollouts."""

from functools import partial
from typing import Any

import pytest
import torch
from tensordict import TensorDict, TensorDictBase

from vecrl import convert
from vecrl.classic import to_classic
from vecrl.envs import AsyncEnvPool, EnvBase, EnvCreator, ParallelEnv, SerialEnv, TransformedEnv, check_env_specs
from vecrl.envs.transforms import RewardSum, StepCounter

pytestmark = [pytest.mark.torchrl, pytest.mark.peers, pytest.mark.filterwarnings("ignore")]


def pendulum() -> Any:
    from torchrl.envs import GymEnv

    return GymEnv("Pendulum-v1")


def agents() -> Any:
    """Returns an environment of TorchRL with two agents, which have flags and rewards, and with a state."""
    from torchrl.data import Binary, Bounded, Composite, Unbounded
    from torchrl.envs import EnvBase as TheirBase

    class Agents(TheirBase):
        def __init__(self) -> None:
            super().__init__()
            obs, flag = Unbounded((2, 3)), Binary(1, (2, 1), dtype=torch.bool)
            self.observation_spec = Composite(agents=Composite(observation=obs, shape=(2,)), total=Unbounded((1,)))
            self.state_spec = Composite(total=Unbounded((1,)))
            self.action_spec = Composite(agents=Composite(action=Bounded(-1, 1, (2, 1)), shape=(2,)))
            self.reward_spec = Composite(agents=Composite(reward=Unbounded((2, 1)), shape=(2,)))
            self.done_spec = Composite(agents=Composite(done=flag, terminated=flag.clone(), shape=(2,)))

        def _result(self, total: torch.Tensor) -> TensorDict:
            done = torch.stack([total > 4, total > 4])
            group = {"observation": total.expand(2, 3), "done": done, "terminated": done.clone()}
            return TensorDict({"agents": TensorDict(group, [2]), "total": total})

        def _reset(self, tensordict: Any = None, **_: Any) -> TensorDict:
            start = None if tensordict is None else tensordict.get("total", None)
            return self._result(torch.zeros(1) if start is None else start.clone())

        def _step(self, tensordict: Any) -> TensorDict:
            result = self._result(tensordict["total"] + 1)
            return result.set(("agents", "reward"), tensordict["agents", "action"] * 2)

        def _set_seed(self, seed: int | None) -> None: ...

    return Agents()


def tic_tac_toe() -> Any:
    from torchrl.envs import TicTacToeEnv

    return TicTacToeEnv()


def batch(make: Any) -> Any:
    from torchrl.envs import SerialEnv as TheirSerialEnv

    return TheirSerialEnv(3, make)


KINDS = {
    "single": pendulum,
    "batch": partial(batch, pendulum),
    "agents": agents,
    "several rows of agents": partial(batch, agents),
    "masked actions": tic_tac_toe,
}


@pytest.mark.parametrize("kind", KINDS)
def test_specs_and_results_agree(kind: str) -> None:
    env = KINDS[kind]()
    check_env_specs(env)
    check_env_specs(TransformedEnv(env, StepCounter()), break_when_any_done="both")


@pytest.mark.parametrize("kind", KINDS)
def test_steps_equal_those_of_torchrl(kind: str) -> None:
    rollouts = []
    for wrap in (lambda env: env, lambda env: TransformedEnv(env, StepCounter(100))):
        env = wrap(KINDS[kind]())
        env.set_seed(4)
        torch.manual_seed(0)
        rollouts.append(env.rollout(12, break_when_any_done=False))
    theirs, own = rollouts
    keys = [key for key in theirs.keys(True, True) if "truncated" not in str(key)]
    assert len(keys) > 5
    for key in keys:
        assert own[key].equal(theirs[key]), key


def test_partial_resets_keep_other_rows() -> None:
    env = TransformedEnv(batch(pendulum), StepCounter())
    root = env.step_mdp(env.rand_step(env.reset()))
    before = root["observation"].clone()
    root = env.reset(root.set("_reset", torch.tensor([[False], [True], [False]])))
    assert root["step_count"].flatten().tolist() == [1, 0, 1]
    assert (root["observation"] == before).all(-1).tolist() == [True, False, True]


def test_resets_start_from_a_state() -> None:
    env = TransformedEnv(agents(), StepCounter())
    start = env.reset().set("total", torch.tensor([3.0]))
    assert env.reset(start)["agents", "observation"].eq(3).all()
    assert "total" in env.state_keys
    steps = env.rollout(20)
    assert steps["next", "total"].flatten().tolist() == [1, 2, 3, 4, 5]


def test_random_actions_follow_the_masks() -> None:
    env = TransformedEnv(tic_tac_toe(), StepCounter())
    for _ in range(5):
        actions = env.rollout(9)["action"]
        assert len(set(actions.tolist())) == len(actions)


@pytest.mark.parametrize("make_batch", [SerialEnv, ParallelEnv])
@pytest.mark.parametrize("kind", ["single", "agents"])
def test_batches_of_them(make_batch: Any, kind: str) -> None:
    with make_batch(2, KINDS[kind]) as env:
        env.set_seed(0)
        torch.manual_seed(0)
        data = env.rollout(7, break_when_any_done=False)
    alone = SerialEnv(2, lambda: TransformedEnv(KINDS[kind](), RewardSum()))
    alone.set_seed(0)
    torch.manual_seed(0)
    expected = alone.rollout(7, break_when_any_done=False)
    assert data.batch_size == (2, 7)
    for key in data.keys(True, True):
        assert data[key].equal(expected[key])


def test_conversions() -> None:
    vector = convert.to_vector(batch(pendulum))
    assert vector.reset(seed=1)[0].shape == (3, 3)
    assert vector.step(vector.action_space.sample())[1].shape == (3,)
    venv = convert.to_venv(batch(pendulum))
    assert venv.reset([2, 0])[0].shape == (2, 3)
    assert convert.to_tensordict(pendulum()).rollout(2).shape == (2,)
    assert to_classic(pendulum()).reset().shape == (3,)
    assert isinstance(EnvCreator(pendulum)(), EnvBase)
    with AsyncEnvPool([pendulum, pendulum()], backend="threading") as pool:
        assert pool.reset()["observation"].shape == (2, 3)


def test_attributes_are_those_of_torchrls_environment() -> None:
    env = TransformedEnv(pendulum(), StepCounter())
    assert env.env_name == "Pendulum-v1"
    assert env.base_env._env.is_closed is False
    env.close()
    assert env.base_env._env.is_closed


def test_own_environments_are_not_adapted() -> None:
    from torchrl.envs import EnvBase as TheirBase

    from vecrl.envs import PendulumEnv

    env = PendulumEnv()
    assert isinstance(env, TheirBase)
    assert TransformedEnv(env).base_env is env
    with pytest.raises(TypeError, match=r"Expected an environment of vecrl\.envs"):
        TransformedEnv(_not_an_env)  # pyright: ignore[reportArgumentType]


def _not_an_env(td: TensorDictBase) -> TensorDictBase:
    return td
