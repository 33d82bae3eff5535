"""Random sequences of calls to a pool, compared with a model of each environment."""

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from tests.fixtures.pools import make_pool

from vecrl.errors import ClosedError, PendingError, StepTimeout, WorkerError

N = 5
STEP, END, FAIL = 0, 1, 2


class RecordingEnv(gymnasium.Env):
    """Observes `[env_id, episode, count, total]`. Action 1 ends the episode, action 2 raises. The info repeats the
    observation."""

    observation_space = spaces.Box(0, 1e9, (4,), np.float64)
    action_space = spaces.Discrete(3)

    def __init__(self, env_id: int):
        self.env_id, self.episode, self.count, self.total = env_id, -1, 0, 0
        self.tag = -1

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        if options and options.get("fail") == self.env_id:
            raise ArithmeticError("asked to fail in reset")
        self.episode, self.count = self.episode + 1, 0
        return self._observe(), {"id": self.env_id, "seed": -1 if seed is None else seed}

    def step(self, action: Any) -> Any:
        if action == FAIL:
            raise ArithmeticError("asked to fail")
        self.count, self.total = self.count + 1, self.total + 1
        return self._observe(), 10.0 * self.env_id + self.count, action == END, False, {"id": self.env_id}

    def _observe(self) -> np.ndarray:
        return np.array([self.env_id, self.episode, self.count, self.total], np.float64)


class Model:
    """The reference model of one environment, without workers, slots or pending commands."""

    def __init__(self, env_id: int):
        self.env_id, self.episode, self.count, self.total = env_id, -1, 0, 0
        self.broken = False
        self.due: tuple[str, Any] | None = None  # the expected values of its next row

    def obs(self) -> list[int]:
        return [self.env_id, self.episode, self.count, self.total]

    def ask_reset(self, fail: bool, seed: int | None) -> None:
        self.broken = fail
        if fail:
            self.due = ("failed", None)
            return
        self.episode, self.count = self.episode + 1, 0
        self.due = ("reset", (self.obs(), -1 if seed is None else seed))

    def ask_step(self, action: int, reset_done: bool) -> None:
        if action == FAIL:
            self.broken, self.due = True, ("failed", None)
            return
        self.count, self.total = self.count + 1, self.total + 1
        reward, final = 10 * self.env_id + self.count, self.obs()
        ends = action == END
        if ends and reset_done:
            self.episode, self.count = self.episode + 1, 0
        self.due = ("step", (self.obs(), reward, ends, ends and reset_done, final))


class PoolMachine(RuleBasedStateMachine):
    """Checks that the pool returns every row that the model expects exactly once."""

    backend = "serial"

    @initialize(workers=st.integers(1, 3))
    def open(self, workers: int) -> None:
        self.pool = make_pool([lambda i=i: RecordingEnv(i) for i in range(N)], self.backend, workers)
        self.models = [Model(i) for i in range(N)]
        self.pending: list[int] = []
        self.whole = False  # whether a command to all environments is pending
        self.closed = False
        self.rest = [True] * N  # not reset yet

    # -- commands ----------------------------------------------------------------------------------

    def _ask_reset(self, ids: list[int], fail: int, seeds: Any) -> None:
        for place, i in enumerate(ids):
            self.models[i].ask_reset(i == fail, None if seeds is None else seeds[place])
            self.rest[i] = False

    @precondition(lambda self: not self.closed)
    @rule(fail=st.integers(-6, N - 1), seed=st.none() | st.integers(0, 9))
    def reset_all(self, fail: int, seed: int | None) -> None:
        seeds = None if seed is None else [seed + i for i in range(N)]
        self._forget()
        self._ask_reset(list(range(N)), fail, seeds)
        self._check(lambda: self.pool.reset(seeds, {"fail": fail}), list(range(N)))

    @precondition(lambda self: not self.closed)
    @rule(ids=st.permutations(range(N)), count=st.integers(1, N), fail=st.integers(-6, N - 1), wait=st.booleans())
    def reset_rows(self, ids: list[int], count: int, fail: int, wait: bool) -> None:
        ids = ids[:count]
        if self.whole or set(ids) & set(self.pending):
            with pytest.raises(PendingError):
                self.pool.send_reset(ids)
            return
        self._ask_reset(ids, fail, list(range(count)))
        if wait:
            self._check(lambda: self.pool.reset(list(range(count)), {"fail": fail}, ids), ids)
        else:
            self.pool.send_reset(ids, list(range(count)), {"fail": fail})
            self.pending += ids

    @precondition(lambda self: not self.closed)
    @rule(
        ids=st.permutations(range(N)),
        count=st.integers(1, N),
        actions=st.lists(st.sampled_from([STEP, STEP, STEP, END, FAIL]), min_size=N, max_size=N),
        reset_done=st.booleans(),
    )
    def send(self, ids: list[int], count: int, actions: list[int], reset_done: bool) -> None:
        ids = ids[:count]
        unfit = [i for i in ids if self.models[i].broken]
        if self.whole or set(ids) & set(self.pending) or unfit:
            with pytest.raises(PendingError):
                self.pool.send(ids, actions[:count], reset_done=reset_done)
            return
        self._start(ids)
        for i, action in zip(ids, actions, strict=False):
            self.models[i].ask_step(action, reset_done)
        self.pool.send(ids, actions[:count], reset_done=reset_done)
        self.pending += ids

    @precondition(lambda self: not self.closed)
    @rule(
        actions=st.lists(st.sampled_from([STEP, STEP, STEP, END, FAIL]), min_size=N, max_size=N),
        reset_mask=st.lists(st.booleans(), min_size=N, max_size=N) | st.none(),
        reset_done=st.booleans(),
        wait=st.booleans(),
    )
    def step_all(self, actions: list[int], reset_mask: list[bool] | None, reset_done: bool, wait: bool) -> None:
        reset_rows = reset_mask or [False] * N
        mask = None if reset_mask is None else np.array(reset_mask)
        unfit = [m for m in self.models if m.broken and not reset_rows[m.env_id]]
        if self.pending or self.whole or unfit:
            with pytest.raises(PendingError):
                self.pool.step_async(np.array(actions), reset_mask=mask, reset_done=reset_done)
            return
        self._start(range(N))
        for model, action, begins in zip(self.models, actions, reset_rows, strict=True):
            if begins:
                model.ask_reset(False, None)
            else:
                model.ask_step(action, reset_done)
        self.pool.step_async(np.array(actions), reset_mask=mask, reset_done=reset_done)
        if wait:
            self._check(self.pool.wait, list(range(N)))
        else:
            self.whole = True

    def _start(self, ids: Any) -> None:
        """Environments that were never reset can be stepped; their episode is -1."""

    # -- receiving ---------------------------------------------------------------------------------

    @precondition(lambda self: not self.closed)
    @rule()
    def wait(self) -> None:
        if not self.whole:
            with pytest.raises(PendingError):
                self.pool.wait()
            return
        self.whole = False
        self._check(self.pool.wait, list(range(N)))

    @precondition(lambda self: not self.closed)
    @rule(at_least=st.none() | st.integers(1, N), timeout=st.none() | st.just(0.0) | st.just(5.0))
    def recv(self, at_least: int | None, timeout: float | None) -> None:
        if not self.pending:
            with pytest.raises(PendingError):
                self.pool.recv(at_least, timeout)
            return
        try:
            self._check(
                lambda: self.pool.recv(at_least, timeout), None if at_least else self.pending, at_least, timeout
            )
        except StepTimeout:
            assert timeout == 0.0

    def _check(self, receive: Any, ids: list[int] | None, at_least: int | None = None, timeout: Any = None) -> None:
        failed: set[int] = set()
        try:
            t = receive()
        except StepTimeout:
            raise
        except WorkerError as error:
            t, failed = error.transition, set(error.env_ids)
        actual = t.ids.tolist()
        assert ids is None or actual == ids
        assert at_least is None or timeout == 0.0 or len(actual) >= min(at_least, len(self.pending))
        self.pending = [i for i in self.pending if i not in actual]
        infos = dict(t.infos.items())
        ended = dict(zip(t.final_rows.tolist(), t.final_obs if len(t.final_rows) else [], strict=True))
        for row, i in enumerate(actual):
            self._check_row(t, row, self.models[i], i in failed, infos, ended)
        assert failed <= set(actual)

    def _check_row(self, t: Any, row: int, model: Model, failed: bool, infos: Any, ended: Any) -> None:
        assert model.due is not None, "a row that was not requested"
        kind, what = model.due
        model.due = None
        assert failed == (kind == "failed")
        if kind == "reset":
            obs, seed = what
            assert t.obs[row].tolist() == obs
            assert (t.reward[row], t.terminated[row], t.was_reset[row]) == (0.0, False, True)
            assert infos[model.env_id] == {"id": model.env_id, "seed": seed}
        elif kind == "step":
            obs, reward, ends, reset_rows, final = what
            assert t.obs[row].tolist() == obs
            assert t.next_obs[row].tolist() == final
            assert (t.reward[row], t.terminated[row], t.was_reset[row], row in ended) == (
                reward,
                ends,
                reset_rows,
                reset_rows,
            )
            assert infos[model.env_id]["id"] == model.env_id
            if reset_rows:
                assert ended[row].tolist() == final

    def _forget(self) -> None:
        """A reset of all environments drops pending commands."""
        self.pending, self.whole = [], False

    # -- other calls -------------------------------------------------------------------------------

    @precondition(lambda self: not self.closed)
    @rule(ids=st.none() | st.permutations(range(N)), value=st.integers(0, 99))
    def invoke(self, ids: list[int] | None, value: int) -> None:
        if self.pending or self.whole:
            with pytest.raises(PendingError):
                self.pool.invoke("get", "total", ids=ids)
            return
        order = list(range(N)) if ids is None else ids
        self.pool.invoke("set", "tag", [value + i for i in order], ids)
        assert self.pool.invoke("get", "tag", ids=ids) == [value + i for i in order]
        assert self.pool.invoke("get", "total", ids=ids) == [self.models[i].total for i in order]

    @invariant()
    def pending_ids_match_the_model(self) -> None:
        if hasattr(self, "pool") and not self.closed:
            assert self.pool.pending.tolist() == (list(range(N)) if self.whole else sorted(self.pending))

    @rule(really=st.integers(0, 5))
    def close(self, really: int) -> None:
        if really == 5 or self.closed:
            self.closed = True
            self.pool.close()
            for use in (self.pool.reset, lambda: self.pool.step([0] * N), lambda: self.pool.send([0], [0])):
                with pytest.raises(ClosedError):
                    use()

    def teardown(self) -> None:
        if hasattr(self, "pool"):
            self.pool.close()


@pytest.mark.parametrize(("backend", "examples"), [("serial", 60), ("threads", 20), ("processes", 12)])
def test_any_sequence_of_calls_equals_the_model(backend: str, examples: int) -> None:
    machine = type("Machine", (PoolMachine,), {"backend": backend})
    few = settings(
        max_examples=examples,
        stateful_step_count=30,
        database=None,
    )
    run_state_machine_as_test(machine, settings=few)
