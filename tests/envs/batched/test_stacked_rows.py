"""Transforms of all environments of a worker are applied in one call, with the results of one call for each."""

import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Thread
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from tensordict import TensorDict
from tests.fixtures.batch_reference import assert_same

from vecrl.envs import GymEnv, GymWrapper, ParallelEnv, SerialEnv
from vecrl.envs.batched import env_simulator
from vecrl.envs.batched.stacked_rows import StackedRows, equal_settings
from vecrl.envs.transforms import (
    CatFrames,
    CatTensors,
    Compose,
    FiniteTensorDictCheck,
    InitTracker,
    ObservationNorm,
    PermuteTransform,
    RenameTransform,
    RewardClipping,
    RewardScaling,
    RewardSum,
    StepCounter,
    Transform,
    TransformedEnv,
    UnsqueezeTransform,
)
from vecrl.errors import ClosedError, SpaceError, WorkerError

Make = Callable[[], TransformedEnv]


def _trackers() -> Compose:
    return Compose(StepCounter(), RewardSum(), InitTracker())


def _limited() -> Compose:
    return Compose(
        StepCounter(7), RewardScaling(0.5, 2.0), RewardSum(), ObservationNorm(0.1, 2.0, in_keys=["observation"])
    )


def _renamed() -> Compose:
    names: Any = {"in_keys": ["observation"], "out_keys": ["position"]}
    return Compose(
        RenameTransform(**names), UnsqueezeTransform(-1, in_keys=["position"]), StepCounter(), RewardClipping(0, 0.5)
    )


def _inverse() -> Compose:
    return Compose(UnsqueezeTransform(-1, in_keys=[], in_keys_inv=["action"]), StepCounter(9), InitTracker())


CHAINS: dict[str, tuple[str, Callable[[], Any]]] = {
    "trackers": ("CartPole-v1", _trackers),
    "limited": ("CartPole-v1", _limited),
    "renamed": ("CartPole-v1", _renamed),
    "inverse": ("Pendulum-v1", _inverse),
    "single": ("CartPole-v1", lambda: StepCounter(5)),
    "joined": ("CartPole-v1", lambda: CatTensors(["observation", "observation"], "both", del_keys=False)),
}


def _make(name: str, transform: Callable[[], Any]) -> TransformedEnv:
    return TransformedEnv(GymEnv(name), transform())


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> Callable[..., SerialEnv]:
    """Makes batches in which each environment transforms its own row."""

    def make(*args: Any, **kwargs: Any) -> SerialEnv:
        with monkeypatch.context() as patch:
            patch.setattr(env_simulator, "gymnasium_envs_under", lambda envs: None)
            return SerialEnv(*args, **kwargs)

    return make


@pytest.fixture
def stacked_steps(monkeypatch: pytest.MonkeyPatch) -> list[StackedRows]:
    """The rows of each step in this process in which transforms were applied to all rows in one call."""
    steps: list[StackedRows] = []
    step_all = StackedRows._step_all

    def count(self: StackedRows, *args: Any) -> Any:
        steps.append(self)
        return step_all(self, *args)

    monkeypatch.setattr(StackedRows, "_step_all", count)
    return steps


@pytest.mark.parametrize("chain", CHAINS)
def test_trajectories_equal_those_of_single_rows(chain: str, alone: Any, stacked_steps: list[Any]) -> None:
    make = partial(_make, *CHAINS[chain])
    batch, reference = SerialEnv(4, make), alone(4, make)
    for env in (batch, reference):
        env.set_seed(3)
    torch.manual_seed(0)
    rollout = batch.rollout(60, break_when_any_done=False)
    assert len(stacked_steps) == 60
    torch.manual_seed(0)
    assert_same(rollout, reference.rollout(60, break_when_any_done=False))
    assert rollout["next", "done"].any()
    assert len(stacked_steps) == 60


@pytest.mark.parametrize("chain", CHAINS)
@pytest.mark.parametrize("options", [{}, {"break_when_any_done": False}], ids=str)
def test_results_that_are_passed_on_equal_those_of_single_rows(
    chain: str, options: Any, alone: Any, stacked_steps: list[Any]
) -> None:
    """The caller changes entries of records in place."""
    make = partial(_make, *CHAINS[chain])
    results = []
    for env in (SerialEnv(4, make), alone(4, make)):
        env.set_seed(3)
        torch.manual_seed(0)

        def act(td: Any, env: Any = env) -> Any:
            td = env.rand_action(td)
            for key in {*env.observation_keys, *env.state_keys}:
                td[key].logical_not_() if td[key].dtype == torch.bool else td[key].add_(1)
            return td

        trajectories = [env.rollout(30, act, **options) for _ in range(2)]
        root, steps = env.reset(), []
        for _ in range(30):
            step, root = env.step_and_maybe_reset(act(root))
            steps.append(step.clone())
            for value in step["next"].values():
                value.zero_()
        kept: Any = list(env._pool._only_simulator._tensordict_rows.root_by_row().values())
        results.append([*trajectories, torch.stack(steps), torch.stack(kept).select(*env.observation_keys)])
        assert all(rows.results is not None for rows in stacked_steps)
    assert len(stacked_steps) == sum(result.shape[-1] for result in results[0][:2]) + 30
    for found, expected in zip(*results, strict=True):
        assert_same(found, expected)


def test_a_setting_that_a_policy_changes_is_used_at_once(alone: Any) -> None:
    """As soon as the settings of rows differ, their results are no longer passed on."""
    rollouts = []
    for make in (SerialEnv, alone):
        counters = [StepCounter() for _ in range(2)]
        envs = [TransformedEnv(GymEnv("CartPole-v1"), counter) for counter in counters]
        batch = make(2, [lambda env=env: env for env in envs])
        batch.set_seed(0)
        torch.manual_seed(0)

        def act(td: Any, batch: Any = batch, counters: Any = counters) -> Any:
            if td["step_count"][0] == 3:
                counters[1].max_steps = 5
            return batch.rand_action(td)

        rollouts.append(batch.rollout(12, act, break_when_any_done=False))
    assert_same(*rollouts)
    assert rollouts[0]["next", "truncated"].any()


@pytest.mark.parametrize("missing", ["action", "step_count"])
def test_a_missing_input_is_named(missing: str) -> None:
    env = SerialEnv(2, partial(_make, "CartPole-v1", _trackers))
    data = env.rand_action(env.reset()).exclude(missing)
    with pytest.raises(SpaceError, match=f"Expected '{missing}' among the inputs of a step, got .*'observation'"):
        env.step_and_maybe_reset(data)


def test_a_batch_that_a_policy_closes_and_opens_again_is_stepped(alone: Any) -> None:
    """Its environments are the same objects."""
    rollouts = []
    for make in (SerialEnv, alone):
        envs = [_make("CartPole-v1", _trackers) for _ in range(2)]
        batch = make(2, [lambda env=env: env for env in envs])
        calls = iter(range(9))

        def act(td: Any, batch: Any = batch, calls: Any = calls) -> Any:
            if next(calls) == 4:
                batch.close()
                batch.set_seed(5)
                td.update(batch.reset())
            return batch.rand_action(td)

        batch.set_seed(0)
        torch.manual_seed(0)
        rollouts.append(batch.rollout(8, act, break_when_any_done=False))
    assert_same(*rollouts)


def test_threads_get_the_results_of_their_own_steps() -> None:
    env = SerialEnv(2, lambda: TransformedEnv(GymWrapper(_Fragile(at=-1)), StepCounter()))
    root = env.reset()
    counts, interval = [], sys.getswitchinterval()

    def play() -> None:
        data = root.clone()
        for _ in range(200):
            data = env.step_and_maybe_reset(data.set("action", torch.tensor([[1, 0], [1, 0]])))[1]
            counts.append(data["observation"][0, 0].item())

    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(3) as threads:
            for future in [threads.submit(play) for _ in range(3)]:
                future.result()
    finally:
        sys.setswitchinterval(interval)
    assert sorted(counts) == [*range(1, 601)]


def test_a_step_in_which_another_thread_closes_the_batch_raises() -> None:
    class Closes(_Fragile):
        def step(self, action: Any) -> Any:
            if self._steps == 2:
                thread = Thread(target=env.close)
                thread.start()
                thread.join(0.2)
                assert thread.is_alive()
            return super().step(action)

    env = SerialEnv(2, lambda: TransformedEnv(GymWrapper(Closes(at=-1)), StepCounter()))
    data = env.reset()
    for _ in range(2):
        data = env.step_and_maybe_reset(env.rand_action(data))[1]
    with pytest.raises(ClosedError):
        env.step_and_maybe_reset(env.rand_action(data))


def test_results_are_contiguous() -> None:
    def swap() -> Compose:
        return Compose(
            UnsqueezeTransform(-1, in_keys=["observation"]), PermuteTransform((-1, -2), in_keys=["observation"])
        )

    env = SerialEnv(2, partial(_make, "Pendulum-v1", swap))
    step, root = env.step_and_maybe_reset(env.rand_action(env.reset()))
    assert step["next", "observation"].is_contiguous()
    assert root["observation"].is_contiguous()


def test_partial_steps_and_resets_equal_those_of_single_rows(alone: Any) -> None:
    make = partial(_make, "CartPole-v1", _limited)
    batch, reference = SerialEnv(4, make), alone(4, make)
    results = []
    for env in (batch, reference):
        env.set_seed(1)
        torch.manual_seed(0)
        data, seen = env.reset(), []
        for t in range(40):
            data = env.rand_action(data)
            if t % 5 == 2:
                data["_step"] = torch.tensor([True, False, True, t % 2 == 0])
            data = env.step(data)
            seen.append(data.clone())
            data = env.step_mdp(data)
            done = data["done"]
            if t % 7 == 3:
                data["_reset"] = torch.tensor([[False], [True], [False], [True]]) | done
                data = env.reset(data)
            elif done.any():
                data = env.maybe_reset(data)
        results.append(torch.stack(seen))
    assert_same(*results)


def test_workers_give_the_same_as_this_process() -> None:
    make = partial(_make, "CartPole-v1", _limited)
    rollouts = []
    for kind in (SerialEnv, partial(ParallelEnv, envs_per_worker=3)):
        with kind(6, make) as env:
            env.set_seed(5)
            torch.manual_seed(2)
            rollouts.append(env.rollout(40, break_when_any_done=False))
    assert_same(*rollouts)


def test_the_wrappers_of_the_time_limit_have_its_count(alone: Any) -> None:
    make = partial(_make, "Pendulum-v1", _trackers)
    batch, reference = SerialEnv(2, make), alone(2, make)
    for env in (batch, reference):
        env.set_seed(0)
        torch.manual_seed(0)
        env.rollout(150)
        assert env.get_wrapper_attr("_elapsed_steps") == [150, 150]
        state = env.get_state()
        rollout = env.rollout(60, tensordict=env.fake_tensordict(), break_when_any_done=False, auto_reset=False)
        env.set_state(state)
        assert rollout["next", "truncated"].sum() == 2


def test_a_state_restores_the_same_future() -> None:
    env = SerialEnv(3, partial(_make, "CartPole-v1", _trackers))
    env.set_seed(4)
    data = env.reset()
    for _ in range(7):
        data = env.step_and_maybe_reset(env.rand_action(data))[1]
    state, root = env.get_state(), data.clone()
    futures = []
    for _ in range(2):
        env.set_state(state)
        torch.manual_seed(1)
        futures.append(env.rollout(20, auto_reset=False, tensordict=root.clone(), break_when_any_done=False))
    assert_same(*futures)


class _Fragile(gymnasium.Env[Any, Any]):
    """Raises in its step number `at`, or observes NaN there."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,))
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, at: int, has_nan: bool = False):
        self._at, self._has_nan, self._steps = at, has_nan, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        self._steps += 1
        if self._steps == self._at and not self._has_nan:
            raise ArithmeticError("went wrong on purpose")
        value = np.nan if self._steps == self._at else self._steps
        return np.full(2, value, np.float32), 1.0, False, False, {}


@pytest.mark.parametrize("over_records", [False, True])
@pytest.mark.parametrize("has_nan", [False, True])
def test_a_failure_is_that_of_its_environment(has_nan: bool, over_records: bool, stacked_steps: list[Any]) -> None:
    def make(at: int) -> TransformedEnv:
        return TransformedEnv(GymWrapper(_Fragile(at, has_nan)), Compose(StepCounter(), FiniteTensorDictCheck()))

    env = SerialEnv(3, [partial(make, 99), partial(make, 3), partial(make, 99)])
    data = env.reset()
    for _ in range(2):
        data = env.step_and_maybe_reset(env.rand_action(data))[1]
    assert len(stacked_steps) == 2
    step = env.step_and_maybe_reset if over_records else env.step
    with pytest.raises(WorkerError, match="environment 1") as failure:
        step(env.rand_action(data))
    assert failure.value.env_ids == (1,)
    assert failure.value.transition["step_count"][[0, 2]].tolist() == [[3], [3]]
    data = env.reset(TensorDict({"_reset": torch.tensor([[False], [True], [False]])}, [3]))
    stepped = env.step(env.rand_action(failure.value.transition.exclude("reward").update(data)))
    assert stepped["next", "observation"][:, 0].tolist() == [4, 4, 4]


def test_unequal_settings_are_used() -> None:
    env = SerialEnv(2, [partial(_make, "CartPole-v1", partial(StepCounter, limit)) for limit in (3, 5)])
    counts = env.rollout(8, break_when_any_done=False)["next", "step_count"].squeeze(-1)
    assert counts.tolist() == [[1, 2, 3, 1, 2, 3, 1, 2], [1, 2, 3, 4, 5, 1, 2, 3]]


def test_a_setting_that_is_changed_is_used_at_once_and_only_there() -> None:
    scalings, counters = [RewardScaling(0.0, 1.0) for _ in range(2)], [StepCounter() for _ in range(2)]
    envs = [TransformedEnv(GymEnv("CartPole-v1"), Compose(*parts)) for parts in zip(scalings, counters, strict=True)]
    batch = SerialEnv(2, [lambda env=env: env for env in envs])

    def step() -> Any:
        return batch.step(batch.rand_action(batch.reset()))["next"]

    assert step()["reward"].tolist() == [[1], [1]]
    states = batch.state_dict()
    batch.load_state_dict({key: value + 2 if "worker1" in key else value for key, value in states.items()})
    assert step()["reward"].tolist() == [[1], [5]]
    scalings[0].scale.fill_(4.0)
    assert step()["reward"].tolist() == [[4], [5]]
    scalings[1].loc, scalings[1].scale = torch.tensor(0.0), torch.tensor(4.0)
    assert step()["reward"].tolist() == [[4], [4]]
    counters[1].max_steps = 1
    assert step()["truncated"].tolist() == [[False], [True]]
    envs[0].append_transform(RewardScaling(0.0, 10.0))
    assert step()["reward"].tolist() == [[40], [4]]


def test_gradients_of_transforms_are_kept() -> None:
    scale = torch.nn.Parameter(torch.tensor(2.0))

    def make() -> TransformedEnv:
        transform = RewardScaling(0.0, 1.0)
        del transform.scale
        transform.scale = scale
        return TransformedEnv(GymEnv("CartPole-v1"), Compose(transform, RewardSum()))

    batch = SerialEnv(2, make)
    rollout = batch.rollout(3)
    rollout["next", "reward"].sum().backward()
    assert scale.grad == 6
    assert rollout["next", "episode_reward"].requires_grad


@pytest.mark.parametrize("transform", [partial(CatFrames, 2, -1, in_keys=["observation"]), lambda: _Custom()])
def test_other_transforms_are_applied_to_each_row(transform: Any, stacked_steps: list[Any]) -> None:
    env = SerialEnv(2, partial(_make, "CartPole-v1", transform))
    assert env.rollout(3).shape == (2, 3)
    assert not stacked_steps


class _Custom(Transform):
    def _call(self, next_tensordict: Any) -> Any:
        assert not next_tensordict.batch_size
        return next_tensordict

    def _reset(self, tensordict: Any, tensordict_reset: Any) -> Any:
        return tensordict_reset


def test_settings_are_compared_by_value() -> None:
    norm = partial(ObservationNorm, in_keys=["observation"])
    assert equal_settings(norm(0.0, 1.0), norm(0.0, 1.0))
    assert not equal_settings(norm(0.0, 1.0), norm(0.5, 1.0))
    assert not equal_settings(norm(0.0, 1.0), StepCounter())
    assert not equal_settings(Compose(StepCounter()), Compose(StepCounter(), StepCounter(3)))
    assert not equal_settings(object(), object())
