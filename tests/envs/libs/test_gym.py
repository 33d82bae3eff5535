"""`GymWrapper` and `GymEnv`. Fast rollouts equal rollouts step by step."""

import pickle
from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from tensordict import TensorDict, TensorDictBase

from vecrl.classic import to_classic
from vecrl.envs import GymEnv, GymWrapper, NativeEnv, SerialEnv, TransformedEnv, check_env_specs, make_env
from vecrl.envs.transforms import StepCounter
from vecrl.errors import ClosedError, SpaceError
from vecrl.specs import Categorical, Composite, OneHot, Unbounded
from vecrl.vector import VectorEnv


class Odd(gymnasium.Env[Any, Any]):
    """Has nested observations, written into arrays that it reuses."""

    observation_space = spaces.Dict(
        x=spaces.Box(-9, 9, (2,)), n=spaces.Discrete(5), t=spaces.Tuple([spaces.MultiBinary(3), spaces.Box(0, 1, ())])
    )
    action_space = spaces.MultiDiscrete([2, 3])

    def __init__(self) -> None:
        self.x = np.zeros(2, np.float32)
        self.steps = 0

    def _look(self) -> Any:
        self.x[:] = self.steps
        bits = np.array([self.steps >> i & 1 for i in range(3)], np.int8)
        return {"x": self.x, "n": self.steps % 5, "t": (bits, np.float32(0.5))}

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.steps = 0
        return self._look(), {}

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action)
        self.steps += 1
        return self._look(), float(action[1]), self.steps == 3, self.steps == 4, {}


MAKERS: dict[str, Callable[[], GymWrapper]] = {
    "box and choice": lambda: GymEnv("CartPole-v1"),
    "indices": lambda: GymEnv("CartPole-v1", categorical_action_encoding=True),
    "box and box": lambda: GymEnv("Pendulum-v1"),
    "choice and choice": lambda: GymEnv("FrozenLake-v1"),
    "nested": lambda: GymWrapper(Odd()),
    "frame skip": lambda: GymEnv("CartPole-v1", frame_skip=3),
}


@pytest.mark.parametrize("stop", [True, False])
@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_fast_rollouts_equal_stepwise_rollouts(make: Callable[[], GymWrapper], stop: bool) -> None:
    env = make()
    actions = env.action_spec.rand((60,))
    rollout = []
    for callback in (None, lambda *_: None):  # a callback forces the stepwise loop
        env.set_seed(3)
        rollout.append(env.rollout(60, actions=actions, callback=callback, break_when_any_done=stop))
    at_once, by_steps = rollout
    assert at_once.names == by_steps.names == ["time"]
    assert at_once.shape == by_steps.shape
    keys = sorted(by_steps.keys(True, True), key=str)
    assert sorted(at_once.keys(True, True), key=str) == keys
    for key in keys:
        torch.testing.assert_close(at_once[key], by_steps[key], rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_specs_match_the_spaces(make: Callable[[], GymWrapper]) -> None:
    check_env_specs(make(), seed=0, break_when_any_done="both")


def test_observations_equal_gymnasium() -> None:
    env, plain = GymEnv("CartPole-v1"), gymnasium.make("CartPole-v1")
    env.set_seed(7)
    rollout = env.rollout(500)
    plain.reset(seed=7)
    obs, _ = plain.reset()
    for step in rollout:
        np.testing.assert_array_equal(step["observation"], obs)
        obs, reward, terminated, truncated, _ = plain.step(int(step["action"].argmax()))
        np.testing.assert_array_equal(step["next", "observation"], obs)
        assert (step["next", "reward"].item(), step["next", "terminated"].item()) == (reward, terminated)
        assert step["next", "truncated"].item() == truncated


def test_seeds_apply_to_the_next_reset_only() -> None:
    env = GymEnv("CartPole-v1")
    env.set_seed(1)
    first, second = env.reset()["observation"], env.reset()["observation"]
    assert not first.equal(second)
    env.set_seed(1)
    assert env.reset()["observation"].equal(first)


def test_long_rollouts_stop_when_the_episode_ends() -> None:
    class Long(Odd):
        observation_space = spaces.Box(0, 1e6, (), np.float64)

        def step(self, action: Any) -> Any:
            self.steps += 1
            return np.float64(self.steps), 0.0, self.steps == 3000, False, {}

        def reset(self, **kwargs: Any) -> Any:
            self.steps = 0
            return np.float64(0), {}

    rollout = GymWrapper(Long()).rollout(10_000)
    assert rollout["next", "observation"].tolist() == list(range(1, 3001))
    assert rollout["observation"].tolist() == list(range(3000))


def test_actions_are_one_hot_by_default() -> None:
    assert GymEnv("CartPole-v1").action_spec == OneHot(2, dtype=torch.int64)
    assert GymEnv("CartPole-v1", categorical_action_encoding=True).action_spec == Categorical(2)


def test_reused_environment_arrays_are_copied() -> None:
    env = GymWrapper(Odd())
    first = env.reset()
    env.step(env.rand_action(first.clone()))
    assert first["x"].tolist() == [0, 0]


def test_overridden_step_methods_are_called() -> None:
    class Twice(GymEnv):
        def _step(self, tensordict: Any) -> Any:
            next_td = super()._step(tensordict)
            return next_td.set("reward", 2 * next_td["reward"])

    assert Twice("CartPole-v1").rollout(3)["next", "reward"].flatten().tolist() == [2, 2, 2]


def test_invalid_arguments_raise() -> None:
    with pytest.raises(ValueError, match=r"frame_skip (of|to be an int of) 1 or more"):
        GymEnv("CartPole-v1", frame_skip=0)
    with pytest.raises(SpaceError, match=r"batch size of \(\)"):
        GymEnv("CartPole-v1", batch_size=[2])
    with pytest.raises(gymnasium.error.NameNotFound):
        GymEnv("NoSuchEnv-v0")


def test_closed_environments_open_at_the_next_reset() -> None:
    for env in (GymEnv("CartPole-v1"), GymEnv("CartPole-v1", num_envs=2), GymEnv("CartPole-v1", num_workers=2)):
        first = env.rollout(3)
        for _ in range(2):
            env.close()
            with pytest.raises(ClosedError, match=r"Call reset\(\) to open it"):
                env.step(first[..., 0])
            assert env.rollout(3).shape == first.shape
            assert not env.is_closed
        env.close()


@pytest.mark.parametrize("backend", ["serial", "processes"])
@pytest.mark.parametrize("make", [GymEnv, partial(make_env, "mujoco::InvertedPendulum-v5"), NativeEnv, SerialEnv])
def test_a_closed_batch_needs_a_reset_of_all_rows(make: Any, backend: str) -> None:
    """The episodes of the other rows ended with `close`."""
    if make is SerialEnv:
        env = SerialEnv(2, partial(GymEnv, "CartPole-v1"), backend=backend)
    elif make is GymEnv:
        env = GymEnv("CartPole-v1", num_envs=2, backend=backend)
    else:
        env = make("CartPole-v1", 2) if make is NativeEnv else make(num_envs=2)
    for each in (env, TransformedEnv(env, StepCounter())):
        data = each.reset()
        each.close()
        with pytest.raises(ClosedError, match=r"a reset of all rows of .*, which is closed, got a mask of some"):
            each.reset(data.copy().set("_reset", torch.tensor([[True], [False]])))
        assert each.is_closed
        assert each.reset(data.copy().set("_reset", torch.ones(2, 1, dtype=torch.bool))).shape == (2,)
    env.close()


def test_an_environment_that_cannot_be_reset_after_close_says_so() -> None:
    class Once(gymnasium.Wrapper[Any, Any, Any, Any]):
        def close(self) -> None:
            del self.env

    for env in (
        GymWrapper(Once(gymnasium.make("CartPole-v1"))),
        GymWrapper(VectorEnv([partial(gymnasium.make, "CartPole-v1")] * 2)),
    ):
        env.reset()
        env.close()
        for _ in range(2):
            with pytest.raises(ClosedError, match=r"GymWrapper to be reset after close, got .*\. Make a new one"):
                env.rollout(2)
        assert env.is_closed


def test_frame_skip_does_not_change_the_environments_reward_array() -> None:
    class Paying(gymnasium.Wrapper[Any, Any, Any, Any]):
        pay = np.ones(())

        def step(self, action: Any) -> Any:
            obs, _, *remaining = self.env.step(action)
            return obs, self.pay, *remaining

    env = GymWrapper(Paying(gymnasium.make("Pendulum-v1")), frame_skip=3)
    assert env.rollout(4)["next", "reward"].flatten().tolist() == [3.0] * 4
    assert Paying.pay == 1


def test_given_actions_are_copied() -> None:
    env = GymEnv("Pendulum-v1")
    actions = torch.zeros(4, 1)
    rollout = env.rollout(4, actions=actions)
    actions.fill_(9)
    assert rollout["action"].eq(0).all()


@pytest.mark.parametrize(
    "make",
    [
        lambda: GymEnv("CartPole-v1"),
        lambda: GymEnv("CartPole-v1", categorical_action_encoding=True, frame_skip=2),
        lambda: GymEnv("Pendulum-v1"),
        lambda: TransformedEnv(GymEnv("CartPole-v1"), StepCounter()),
    ],
)
def test_pickled_environments_give_equal_rollouts(make: Callable[[], Any]) -> None:
    env = make()
    env.rollout(3)
    rollout = []
    for item in (env, pickle.loads(pickle.dumps(env))):
        item.set_seed(3)
        torch.manual_seed(0)
        rollout.append(item.rollout(30, break_when_any_done=False))
        rollout.append(item.step(item.rand_action(item.reset())))
    assert (rollout[0] == rollout[2]).all()
    assert (rollout[1] == rollout[3]).all()


def test_overridden_step_results_are_completed() -> None:
    """Entries that the fast path omits (its own steps are complete) are present for subclasses."""

    class Terse(GymEnv):
        def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
            step_td = super()._step(tensordict).exclude("done", "truncated")
            return step_td.set("reward", step_td["reward"].squeeze(-1))

    actions = GymEnv("CartPole-v1").action_spec.rand((60,))
    rollout = []
    for kind in (Terse, GymEnv):
        env = kind("CartPole-v1")
        env.set_seed(3)
        rollout.append(env.rollout(60, actions=actions, break_when_any_done=False, callback=lambda *_: None))
    assert (rollout[0] == rollout[1]).all()


def test_later_spec_changes_apply() -> None:
    env = GymEnv("CartPole-v1")
    env.rollout(2, callback=lambda *_: None)
    env.full_done_spec = Composite(done=Categorical(2, (1,), dtype=torch.bool), shape=())
    env.reward_spec = Composite(gain=Unbounded((1,)), shape=())
    with pytest.raises(SpaceError, match="return 'gain', as reward_spec says"):
        env.rollout(2, callback=lambda *_: None)


def test_rewards_have_the_spec_dtype() -> None:
    env = GymEnv("CartPole-v1")
    torch.set_default_dtype(torch.float64)
    try:
        assert env.rand_step(env.reset())["next", "reward"].dtype == env.reward_spec.dtype == torch.float32
    finally:
        torch.set_default_dtype(torch.float32)


def test_a_step_makes_no_more_tensordicts_than_it_returns(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step creates one TensorDict for "next" and one for the next root, in each way of calling it."""
    env = TransformedEnv(GymEnv("CartPole-v1"), StepCounter())
    root = env.rand_action(env.step_and_maybe_reset(env.rand_action(env.reset()))[1])
    made: list[Any] = []
    init = TensorDict.__init__
    monkeypatch.setattr(
        TensorDict, "__init__", lambda td, *args, **kwargs: made.append(td) or init(td, *args, **kwargs)
    )
    step_td, next_td = env.step_and_maybe_reset(root)
    assert [id(td) for td in made] == [id(step_td["next"]), id(next_td)]


def test_resets_keep_policy_entries() -> None:
    """Entries that a policy wrote into the root are kept in the next episode. Entries of the environment are new."""
    env = GymEnv("CartPole-v1")
    env.set_seed(0)
    rollout = env.rollout(
        60,
        lambda td: env.rand_action(td.set("mark", td.get("mark", torch.zeros(1)) + 1)),
        break_when_any_done=False,
    )
    assert rollout["mark"].flatten().tolist() == list(range(1, 61))
    ends = rollout["next", "done"].flatten().nonzero().flatten()
    assert len(ends)
    started = rollout["observation"][ends[ends < 59] + 1]
    assert (started.abs() <= 0.05).all()
    assert not rollout["done"].any()


def test_seeds_are_used_at_once_and_none_is_random() -> None:
    plain = gymnasium.make("CartPole-v1")
    plain.reset(seed=5)
    second = torch.from_numpy(plain.reset()[0])
    for env in (GymEnv("CartPole-v1"), GymEnv("CartPole-v1", num_envs=2), SerialEnv(2, lambda: GymEnv("CartPole-v1"))):
        env.set_seed(5)
        first_row = env.reset()["observation"].reshape(-1, 4)[0]
        assert first_row.equal(second)
        env.set_seed(5)
        env.set_seed(None)
        assert not env.reset()["observation"].reshape(-1, 4)[0].equal(second)
        env.close()
    single = GymEnv("CartPole-v1")
    single.close()
    single.set_seed(5)  # resets the environment
    assert single.reset()["observation"].equal(second)


def test_conversions_call_set_seed_of_a_class_of_ones_own() -> None:
    class Seeded(GymEnv):
        seeds: list[int | None]

        def set_seed(self, seed: int | None = None, static_seed: bool = False) -> int | None:
            self.seeds = [*vars(self).get("seeds", []), seed]
            return super().set_seed(seed, static_seed)

    env = Seeded("CartPole-v1")
    to_classic(env, "observation").seed(3)
    to_classic(env.append_transform(StepCounter()), "observation").seed(4)
    assert env.seeds == [3, 4]
