"""`AsyncEnvPool`: sends and receives of some environments, in threads and processes."""

from __future__ import annotations

import copy
import itertools
import threading
import time
from functools import partial
from typing import Any

import pytest
import torch
from tensordict import LazyStackedTensorDict, NonTensorStack, TensorDict, TensorDictBase

from vecrl.engine.pool import Pool
from vecrl.envs import (
    AsyncEnvPool,
    EnvBase,
    GymEnv,
    ProcessorAsyncEnvPool,
    SerialEnv,
    StepCounter,
    ThreadingAsyncEnvPool,
    TransformedEnv,
)
from vecrl.errors import ClosedError, PendingError, SpaceError, StepTimeout, WorkerError
from vecrl.specs import Composite, Unbounded

BOTH = pytest.mark.parametrize("cls", [ThreadingAsyncEnvPool, ProcessorAsyncEnvPool])


class CountEnv(EnvBase):
    """Counts from 100 * limit; an episode has `limit` steps.

    A step waits for `gate`, raises at action 9 and takes 10 s at action -9.
    """

    def __init__(self, limit: int, gate: threading.Event | None = None):
        super().__init__()
        self.limit, self.count, self.gate = limit, 0, gate
        self.observation_spec = Composite(count=Unbounded((1,)))
        self.action_spec = self.reward_spec = Unbounded((1,))

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        self.count = 0
        return TensorDict({"count": torch.full((1,), 100.0 * self.limit)})

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        if self.gate is not None:
            self.gate.wait(10)
        if tensordict["action"] == -9:
            time.sleep(10)
        if tensordict["action"] == 9:
            raise ZeroDivisionError("on purpose")
        self.count += 1
        observation = {"count": torch.full((1,), 100.0 * self.limit + self.count)}
        done = torch.tensor([self.count >= self.limit])
        return TensorDict({**observation, "reward": tensordict["action"].clone(), "done": done})

    def _set_seed(self, seed: int | None) -> None:
        pass


def make(cls: type[AsyncEnvPool], *limits: int, **kwargs: Any) -> AsyncEnvPool:
    return cls([partial(CountEnv, limit) for limit in limits], **kwargs)


def counts(data: Any) -> list[float]:
    return data["count"].squeeze(-1).tolist()


def with_actions(data: Any, *actions: float) -> Any:
    return data.set("action", torch.tensor(actions).unsqueeze(-1))


@BOTH
def test_all_environments_step_as_in_a_batch(cls: type[AsyncEnvPool]) -> None:
    with make(cls, 2, 3, 4) as env, SerialEnv(3, [partial(CountEnv, n) for n in (2, 3, 4)]) as reference:
        assert (env.num_envs, env.min_get, env.batch_size, env.env_batch_sizes) == (3, 1, (3,), [torch.Size([])] * 3)
        root = env.reset()
        assert isinstance(root.get("env_index"), NonTensorStack)
        assert root["env_index"] == [0, 1, 2]
        torch.manual_seed(0)
        rollout = env.rollout(6, break_when_any_done=False)
        torch.manual_seed(0)
        expected = reference.rollout(6, break_when_any_done=False)
        assert (rollout.exclude("env_index", ("next", "env_index")) == expected).all()
        assert env.set_seed(3) == reference.set_seed(3)


@BOTH
def test_some_environments_step(cls: type[AsyncEnvPool]) -> None:
    with make(cls, 2, 3, 4) as env:
        root = with_actions(env.reset(), 1, 2, 3)
        env.async_step_send(root[torch.tensor([0, 2])])
        received = env.async_step_recv(min_get=2)
        assert received["env_index"] == [0, 2]
        assert counts(received) == [200, 400]
        assert counts(received["next"]) == [201, 401]
        assert received["next", "reward"].squeeze(-1).tolist() == [1, 3]
        assert "next" not in root, "the caller's data are not changed"
        env.async_step_send(TensorDict({"action": torch.ones(1)}), env_index=1)
        single = env.async_step_recv(env_index=1)
        assert single.batch_size == ()
        assert (single["env_index"], counts(single["next"])) == (1, 301)
        env.async_step_send(TensorDict({"action": torch.ones(2, 1)}, [2]), env_index=[2, 1])
        received = env.async_step_recv(2)
        assert (received["env_index"], counts(received["next"])) == ([1, 2], [302, 402])


@BOTH
@pytest.mark.parametrize("is_gym", [False, True])
def test_resets_of_some_environments(cls: type[AsyncEnvPool], is_gym: bool) -> None:
    if is_gym:
        with cls([lambda: GymEnv("CartPole-v1")] * 3) as env, SerialEnv(3, lambda: GymEnv("CartPole-v1")) as reference:
            env.set_seed(1)
            reference.set_seed(1)
            expected = reference.reset()["observation"]
            env.async_reset_send(env_index=[0, 2])
            env.async_reset_send(env_index=1)
            assert torch.equal(env.async_reset_recv(3)["observation"], expected)
        return
    with make(cls, 2, 3, 4) as env:
        env.async_reset_send()
        assert counts(env.async_reset_recv(min_get=3)) == [200, 300, 400]
        env.async_step_send(with_actions(env.reset(), 1, 1, 1)[:2])
        env.async_reset_send(env_index=2)
        assert counts(env.async_reset_recv()) == [400], "steps are received apart from resets"
        assert counts(env.async_step_recv(2)["next"]) == [201, 301]


class StateEnv(CountEnv):
    """Counts from the state "start" if a reset has it."""

    def __init__(self, limit: int):
        super().__init__(limit)
        self.state_spec = Composite(start=Unbounded((1,)))

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        reset_td = super()._reset(tensordict, **kwargs)
        start = None if tensordict is None else tensordict.get("start", None)
        return reset_td if start is None else reset_td.update({"count": start.clone()})


@BOTH
def test_resets_get_the_states_of_their_environments(cls: type[AsyncEnvPool]) -> None:
    with cls([partial(StateEnv, 2)] * 3) as env:
        starts = TensorDict({"start": torch.tensor([[1.0], [2.0], [3.0]])}, [3])
        env.async_reset_send(starts)
        assert counts(env.async_reset_recv(3)) == [1, 2, 3]
        env.async_reset_send(starts[:2], env_index=[2, 0])
        received = env.async_reset_recv(2)
        assert (received["env_index"], counts(received)) == ([0, 2], [2, 1])
        env.async_reset_send(starts[1], env_index=1)
        assert env.async_reset_recv(env_index=1)["count"] == 2
        env.async_reset_send()
        assert counts(env.async_reset_recv(3)) == [200, 200, 200]
        with pytest.raises(SpaceError, match=r"one row for each of 1 environments, got \(3,\)"):
            env.async_reset_send(starts, env_index=[0])


def test_resets_of_gymnasium_environments_accept_rows() -> None:
    with AsyncEnvPool([partial(GymEnv, "Pendulum-v1")] * 2) as env:
        env.async_reset_send(env.reset()[1:])
        assert env.async_reset_recv()["env_index"] == [1]


def test_a_row_names_its_environment() -> None:
    with make(ThreadingAsyncEnvPool, 2, 3) as env:
        env.async_step_send(with_actions(env.reset(), 1, 2)[1])
        received = env.async_step_recv()
        assert (received["env_index"], counts(received["next"])) == ([1], [301])
        env.async_reset_send(received[0])
        assert env.async_reset_recv(env_index=1)["count"] == 300
    with AsyncEnvPool([lambda: SerialEnv(2, partial(CountEnv, 3))] * 2) as env:
        env.async_step_send(env.rand_action(env.reset())[1])
        assert env.async_step_recv(1)["env_index"] == [[1, 1]]


@BOTH
def test_steps_with_resets(cls: type[AsyncEnvPool]) -> None:
    with make(cls, 1, 3) as env:
        env.async_step_and_maybe_reset_send(with_actions(env.reset(), 1, 1))
        stepped, root = env.async_step_and_maybe_reset_recv(min_get=2)
        assert counts(stepped["next"]) == [101, 301]
        assert stepped["next", "done"].squeeze(-1).tolist() == [True, False]
        assert (counts(root), root["env_index"]) == ([100, 301], [0, 1])
        assert not root["done"].any()
        env.async_step_and_maybe_reset_send(with_actions(root, 1, 1))
        stepped, root = env.async_step_and_maybe_reset_recv(min_get=2)
        assert counts(stepped) == [100, 301]
        assert counts(root) == [100, 302]


def test_the_first_environments_do_not_wait_for_others() -> None:
    gate = threading.Event()
    with ThreadingAsyncEnvPool([partial(CountEnv, 2, gate), partial(CountEnv, 3), partial(CountEnv, 4)]) as env:
        env.async_step_send(with_actions(env.reset(), 1, 1, 1))
        assert env.async_step_recv(min_get=2)["env_index"] == [1, 2]
        with pytest.raises(PendingError, match=r"Environments \[0\] have results that were not received"):
            env.async_step_send(TensorDict({"action": torch.ones(1)}), env_index=0)
        env.async_step_send(TensorDict({"action": torch.ones(1)}), env_index=1)
        assert env.async_step_recv(env_index=1)["next", "count"] == 302
        gate.set()
        assert env.async_step_recv()["env_index"] == [0]


def test_threads_receive_their_own_environments() -> None:
    with make(ThreadingAsyncEnvPool, 50, 60, 70) as env:
        root = env.reset()
        results: dict[int, list[float]] = {}

        def collect(index: int) -> None:
            results[index] = []
            for _ in range(20):
                env.async_step_send(TensorDict({"action": torch.ones(1)}), env_index=index)
                results[index] += counts(env.async_step_recv(env_index=index)["next"].unsqueeze(0))

        threads = [threading.Thread(target=collect, args=(index,)) for index in range(len(root))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        assert results == {i: [first + step for step in range(1, 21)] for i, first in enumerate((5000, 6000, 7000))}


@BOTH
def test_failures_leave_the_other_results(cls: type[AsyncEnvPool]) -> None:
    with make(cls, 2, 3, 4) as env:
        env.async_step_send(with_actions(env.reset(), 1, 9, 1))
        received: list[int] = []
        with pytest.raises(ZeroDivisionError) as caught:  # noqa: PT012 - some may be received before it is raised
            while True:
                received += env.async_step_recv()["env_index"]
        assert isinstance(caught.value, WorkerError)
        assert caught.value.env_ids == (1,)
        while len(received) < 2:
            received += env.async_step_recv()["env_index"]
        assert sorted(received) == [0, 2]
        env.async_reset_send(env_index=1)
        assert counts(env.async_reset_recv()) == [300]


def test_an_environment_that_failed_can_be_reset_after_a_refused_step() -> None:
    with make(ThreadingAsyncEnvPool, 2, 3) as env:
        root = env.reset()
        env.async_step_send(with_actions(root[:1], 9), env_index=[0])
        with pytest.raises(ZeroDivisionError):
            env.async_step_recv()
        with pytest.raises(PendingError, match=r"Environments \[0\] failed before; reset them"):
            env.async_step_send(with_actions(root, 1, 1))
        env.async_step_send(with_actions(root[1:], 1))
        assert counts(env.async_step_recv()["next"]) == [301]
        env.async_reset_send(env_index=0)
        assert counts(env.async_reset_recv()) == [200]


@pytest.mark.parametrize("operation", ["step", "reset"])
def test_a_send_that_fails_leaves_no_operation(operation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*args: Any, **kwargs: Any) -> None:
        raise KeyboardInterrupt

    with make(ThreadingAsyncEnvPool, 2, 3) as env:
        root = with_actions(env.reset(), 1, 1)
        send = getattr(env, f"async_{operation}_send")
        with monkeypatch.context() as patch:
            patch.setattr(Pool, "send", interrupt)
            patch.setattr(Pool, "send_reset", interrupt)
            with pytest.raises(KeyboardInterrupt):
                send(root)
        with pytest.raises(PendingError, match=r"got those of \[\]"):
            getattr(env, f"async_{operation}_recv")()
        send(root)
        assert len(getattr(env, f"async_{operation}_recv")(2)) == 2


def test_a_closed_pool_can_be_started_after_a_send() -> None:
    with make(ThreadingAsyncEnvPool, 2, 3) as env:
        root = with_actions(env.reset(), 1, 1)
        env.close()
        with pytest.raises(ClosedError):
            env.async_step_send(root)
        env.async_reset_send()
        assert counts(env.async_reset_recv(2)) == [200, 300]


def test_an_environment_that_timed_out_can_be_cancelled() -> None:
    with make(ProcessorAsyncEnvPool, 2, 3, step_timeout=0.2) as env:
        env.async_step_send(with_actions(env.reset(), -9, 1))
        assert counts(env.async_step_recv(env_index=1)["next"].unsqueeze(0)) == [301]
        with pytest.raises(StepTimeout, match="async_step_recv"):
            env.async_step_recv()
        env.async_step_send(with_actions(env.fake_tensordict()[1:], 1), env_index=[1])
        assert env.cancel([0]).tolist() == [0]
        assert counts(env.async_step_recv()["next"]) == [302], "other environments are not affected"
        env.async_reset_send(env_index=0)
        assert counts(env.async_reset_recv()) == [200]


def test_wrong_calls_raise() -> None:
    with make(ThreadingAsyncEnvPool, 2, 3) as env:
        root = with_actions(env.reset(), 1, 1)
        with pytest.raises(PendingError, match=r"Expected a pending step of 1 environments, got those of \[\]"):
            env.async_step_recv()
        with pytest.raises(PendingError, match="Expected a pending reset of environment 1"):
            env.async_reset_recv(env_index=1)
        with pytest.raises(TypeError, match=r"env_index to be an int or None, got \[0\]"):
            env.async_step_recv(env_index=[0])  # pyright: ignore[reportArgumentType]
        with pytest.raises(TypeError, match=r"^ThreadingAsyncEnvPool objects cannot be copied"):
            copy.copy(env)
        with pytest.raises(SpaceError, match=r"one row for each of 1 environments, got \(2,\)"):
            env.async_step_send(root, env_index=[0])
        for wrong in ([0, 0], [0, 2], -1):
            with pytest.raises(SpaceError, match="Expected different environments from 0 to 1"):
                env.async_step_send(root, env_index=wrong)
        env.async_step_send(root)
        with pytest.raises(PendingError, match="got those of"):
            env.async_step_recv(min_get=3)
        with pytest.raises(ValueError, match="min_get to be an int of 1 or more, got 0"):
            env.async_step_recv(min_get=0)
        assert counts(env.reset()) == [200, 300], "it drops pending results"
        with pytest.raises(PendingError):
            env.async_step_recv()
    with pytest.raises(ClosedError):
        env.async_step_send(root)
    with pytest.raises(ValueError, match="stack to be 'dense', 'maybe_dense' or 'lazy', got 'x'"):
        AsyncEnvPool(partial(CountEnv, 1), stack="x")
    with pytest.raises(ValueError, match="backend to be"):
        AsyncEnvPool(partial(CountEnv, 1), backend="asyncio")


def test_arguments() -> None:
    with AsyncEnvPool([CountEnv, CountEnv], create_env_kwargs=[{"limit": 5}, {"limit": 6}]) as env:
        assert counts(env.reset()) == [500, 600]
    for makers in (partial(CountEnv, 5), CountEnv(5), [CountEnv(5)]):
        with AsyncEnvPool(makers, stack="lazy", backend="threads") as env:
            env.async_step_send(env.rand_action(env.reset()))
            received = env.async_step_recv()
            assert isinstance(received, LazyStackedTensorDict)
            assert counts(received) == [500]
        env.shutdown()


def test_wrong_environments_raise() -> None:
    env = CountEnv(5)
    with pytest.raises(SpaceError, match=r"different environments, got one twice\. Give functions"):
        AsyncEnvPool([env, env])
    with pytest.raises(SpaceError, match="env_makers to be one or more functions or environments, got none"):
        AsyncEnvPool([])
    with pytest.raises(SpaceError, match="env_makers to be functions or environments, got int as item 1"):
        AsyncEnvPool([env, 3])
    with AsyncEnvPool([env, CountEnv(6)]) as pool:
        assert counts(pool.reset()) == [500, 600]


def test_environments_may_be_batches_or_transformed() -> None:
    with AsyncEnvPool([lambda: SerialEnv(2, partial(CountEnv, 3))] * 2) as env:
        assert env.batch_size == (2, 2)
        env.async_step_send(env.rand_action(env.reset()))
        received = env.async_step_recv(2)
        assert received["env_index"] == [[0, 0], [1, 1]]
        env.async_step_send(env.rand_action(received["next"].set("env_index", received.get("env_index"))))
        assert env.async_step_recv(2)["next", "count"].squeeze(-1).tolist() == [[302, 302]] * 2
    with AsyncEnvPool([lambda: TransformedEnv(CountEnv(3), StepCounter())] * 2) as env:
        env.async_step_send(env.rand_action(env.reset()))
        assert env.async_step_recv(2)["next", "step_count"].tolist() == [[1], [1]]


def test_transforms_around_it_refuse_asynchronous_methods() -> None:
    with TransformedEnv(TransformedEnv(make(ThreadingAsyncEnvPool, 2, 3)), StepCounter()) as env:
        for operation, end in itertools.product(("step", "reset", "step_and_maybe_reset"), ("send", "recv")):
            with pytest.raises(AttributeError, match="Put the transforms into its environments: ThreadingAsyncEnvPool"):
                getattr(env, f"async_{operation}_{end}")
        assert (env.num_envs, env.rollout(2)["next", "step_count"].squeeze(-1).tolist()) == (2, [[1, 2], [1, 2]])


def test_a_pool_with_a_hung_environment_can_be_closed() -> None:
    gate = threading.Event()
    env = ThreadingAsyncEnvPool([partial(CountEnv, 3, gate)] * 2, step_timeout=0.1)
    env.async_step_send(env.rand_action(env.reset()))
    begin = time.monotonic()
    with pytest.raises(StepTimeout, match="its thread cannot be killed"):
        env.close()
    assert time.monotonic() - begin < 5
    assert env.is_closed
    env.close()
    gate.set()


def test_seeds_are_refused_while_environments_are_pending() -> None:
    with AsyncEnvPool([lambda: GymEnv("CartPole-v1")] * 2, backend="threading") as env:
        root = env.reset()
        env.async_step_send(env.rand_action(root))
        with pytest.raises(PendingError, match=r"got \[0, 1\]\. Receive their results first"):
            env.set_seed(1)
        env.async_step_recv(min_get=2)
        env.set_seed(1)
        assert not env.reset()["observation"][0].equal(root["observation"][0])
