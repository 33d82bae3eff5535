"""What the author of a batched simulator reads if it fails or returns other arrays than it declares."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete

from vecrl.convert import to_tensordict, to_venv
from vecrl.engine.simulator import BatchStep
from vecrl.errors import SpaceError, WorkerError
from vecrl.policy import PopulationEvaluator
from vecrl.simulators import registry
from vecrl.vector import BatchedVectorEnv, make_vector_env
from vecrl.vector.checked_simulator import CheckedSimulator
from vecrl.vector.factory import SingleEnvOfBatch

NET = "Linear(obs_length, act_length)"


class Drift:
    """A point that its action moves; every method of it can be replaced."""

    observation_space = Box(-np.inf, np.inf, (2,), np.float32)
    action_space: Any = Box(-1, 1, (2,), np.float32)
    metadata = {"render_modes": []}
    render_mode = None
    device = "cpu"

    def __init__(self, num_envs: int = 3):
        self.num_envs = num_envs
        self.position = torch.zeros(num_envs, 2)

    def reset(self, seeds: Any = None, options: Any = None) -> torch.Tensor:
        self.position = torch.zeros(self.num_envs, 2)
        return self.position.clone()

    def reset_where(self, mask: torch.Tensor) -> torch.Tensor:
        self.position = torch.where(mask[:, None], 0.0, self.position)
        return self.position.clone()

    def step(self, actions: torch.Tensor) -> BatchStep:
        self.position = self.position + actions
        far = self.position.abs().sum(1) > 3
        return BatchStep(self.position.clone(), self.position.sum(1), far, torch.zeros_like(far))

    def render(self, row: int) -> None:
        return None

    def get_state(self) -> dict[str, torch.Tensor]:
        return {"position": self.position.clone()}

    def set_state(self, state: Any) -> None:
        self.position = state["position"].clone()

    def close(self) -> None:
        pass


class DriftWithReset(Drift):
    """Has the optional method too."""

    def step_and_reset(self, actions: torch.Tensor) -> Any:
        step = self.step(actions)
        return step, step.terminated, self.reset_where(step.terminated)


def changed(method: str, change: Callable[[Any], Any], base: type[Drift] = Drift) -> Drift:
    """Returns a simulator with a method that returns something else."""
    simulator = base()
    original = getattr(simulator, method)
    setattr(simulator, method, lambda *args: change(original(*args)))
    return simulator


def play(simulator: Any, actions: Any = None) -> None:
    env = BatchedVectorEnv(simulator)
    env.reset(seed=1)
    env.step(np.zeros((3, 2), np.float32) if actions is None else actions)


RESULTS = [
    ("reset", lambda obs: obs[:2], r"observations of Drift\.reset to have the shape \(3, 2\), got \(2, 2\)"),
    ("reset", lambda obs: obs.double(), r"observations of Drift\.reset to have the dtype float32, got float64"),
    ("reset", lambda obs: obs.numpy(), r"observations of Drift\.reset to be a torch tensor, got ndarray of shape"),
    ("reset", lambda obs: (obs, {}), r"observations of Drift\.reset to be a torch tensor, got tuple"),
    ("reset", lambda obs: None, r"observations of Drift\.reset to be a torch tensor, got NoneType"),
    ("reset", lambda obs: obs.to("meta"), r"Drift\.reset on device 'cpu', which Drift\.device names, got 'meta'"),
    (
        "reset_where",
        lambda obs: obs[:1],
        r"of Drift\.reset_where to have the shape \(3, 2\), got \(1, 2\)",
    ),
    ("step", lambda step: (step.next_obs, step.reward), r"a BatchStep from Drift\.step, got tuple"),
    ("step", lambda step: replace(step, next_obs=step.next_obs[:, 0]), r"next_obs of Drift\.step .* got \(3,\)"),
    ("step", lambda step: replace(step, reward=step.reward[:, None]), r"reward of .* shape \(3,\), got \(3, 1\)"),
    ("step", lambda step: replace(step, reward=step.reward.long()), r"reward of .* dtype float32, got int64"),
    ("step", lambda step: replace(step, terminated=step.terminated.int()), r"terminated of .* dtype bool, got int32"),
    ("step", lambda step: replace(step, truncated=False), r"truncated of Drift\.step to be a torch tensor, got bool"),
    ("step", lambda step: replace(step, info=[{}] * 3), r"info of Drift\.step to be one dict of arrays, got list"),
    ("step", lambda step: replace(step, info={"speed": 2.0}), r"info\['speed'\] of Drift\.step .* leading size 3"),
]


@pytest.mark.parametrize(("method", "change", "message"), RESULTS, ids=range(len(RESULTS)))
def test_results_that_do_not_fit_the_spaces_raise(method: str, change: Any, message: str) -> None:
    with pytest.raises(SpaceError, match=message):
        play(changed(method, change))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda result: result[:2], r"Expected \(step, done, obs\) from DriftWithReset\.step_and_reset, got tuple"),
        (lambda result: (result[0], result[1].float(), result[2]), r"done of .* dtype bool, got float32"),
        (lambda result: (*result[:2], result[2][:1]), r"after resets of .* shape \(3, 2\), got \(1, 2\)"),
    ],
)
def test_results_of_step_and_reset_are_checked(change: Any, message: str) -> None:
    with pytest.raises(SpaceError, match=message):
        play(changed("step_and_reset", change, DriftWithReset))


def test_later_results_are_checked_by_their_shapes() -> None:
    simulator = Drift()
    env = BatchedVectorEnv(simulator)
    env.reset()
    env.step(np.zeros((3, 2), np.float32))
    step = simulator.step
    simulator.step = lambda actions: replace(step(actions), next_obs=torch.zeros(3, 3))
    with pytest.raises(SpaceError, match=r"next_obs of Drift\.step to have the shape \(3, 2\), got \(3, 3\)"):
        env.step(np.zeros((3, 2), np.float32))


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        (torch.zeros(2, dtype=torch.bool), r"terminated of Drift\.step to have the shape \(3,\), got \(2,\)"),
        (torch.zeros(3), r"terminated of Drift\.step to have the dtype bool, got float32"),
    ],
)
def test_later_flags_are_checked(flag: torch.Tensor, message: str) -> None:
    simulator = Drift()
    env = BatchedVectorEnv(simulator)
    env.reset()
    env.step(np.zeros((3, 2), np.float32))
    step = simulator.step
    simulator.step = lambda actions: replace(step(actions), terminated=flag)
    with pytest.raises(SpaceError, match=message):
        env.step(np.zeros((3, 2), np.float32))


@pytest.mark.parametrize(
    ("space", "actions", "message"),
    [
        (Drift.action_space, np.zeros(3, np.float32), r"shape \(3, 2\) for Drift, .*, got shape \(3,\)"),
        (Drift.action_space, np.zeros((3, 1), np.float32), r"shape \(3, 2\) for Drift, .*, got shape \(3, 1\)"),
        (Drift.action_space, np.zeros((2, 2), np.float32), r"leftmost size 3"),
        (Drift.action_space, np.zeros((3, 2), np.complex64), r"dtype torch.float32 for Drift, got torch.complex64"),
        (Discrete(2), np.zeros((3, 1), np.int64), r"shape \(3,\) for Drift, .*Discrete\(2\), got shape \(3, 1\)"),
        (Discrete(2), np.zeros(3, np.float32), r"dtype torch.int64 for Drift, got torch.float32"),
    ],
)
def test_actions_that_do_not_fit_the_space_raise(space: Any, actions: Any, message: str) -> None:
    simulator = Drift()
    simulator.action_space = space
    with pytest.raises(SpaceError, match=message):
        play(simulator, actions)


def test_actions_are_converted_to_the_dtype_of_the_space() -> None:
    seen: list[torch.dtype] = []
    simulator = Drift()
    step = simulator.step
    simulator.step = lambda actions: seen.append(actions.dtype) or step(actions)
    for dtype in (np.float64, np.int64, np.float32):
        play(simulator, np.zeros((3, 2), dtype))
    assert seen == [torch.float32] * 3


# -- exceptions --------------------------------------------------------------------------------------


@pytest.fixture
def failing() -> Iterator[Drift]:
    """A simulator that raises in its second step, registered as "failing::drift"."""
    simulator = Drift()
    step, count = simulator.step, iter(range(100))

    def fail_later(actions: torch.Tensor) -> BatchStep:
        if next(count):
            raise ZeroDivisionError("no mass")
        return step(actions)

    simulator.step = fail_later  # pyright: ignore[reportAttributeAccessIssue]
    registry.register("failing", make_batch=lambda name, num_envs, **kwargs: simulator)
    yield simulator
    registry.unregister("failing")


def fail_twice(step: Callable[[], Any]) -> WorkerError:
    step()
    with pytest.raises(WorkerError, match=r"environments 0, 1, 2 .* in 'step.*': ZeroDivisionError: no mass") as caught:
        step()
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    assert caught.value.env_ids == (0, 1, 2)
    assert "in fail_later" in str(caught.value), "the simulator's own traceback is missing"
    return caught.value


def test_vector_environments_name_the_environments_that_failed(failing: Drift) -> None:
    env = make_vector_env("failing::drift", num_envs=3)
    env.reset()
    error = fail_twice(lambda: env.step(torch.zeros(3, 2)))
    assert str(error).endswith("One call of Drift.step computes all rows, so all are affected. Reset all environments "
                               "to continue.")  # fmt: skip


def test_environments_with_ids_name_the_environments_that_failed(failing: Drift) -> None:
    venv = to_venv(failing)
    venv.reset()
    fail_twice(lambda: venv.step(np.zeros((3, 2), np.float32)))


def test_tensordict_environments_name_the_environments_that_failed(failing: Drift) -> None:
    env = to_tensordict(BatchedVectorEnv(failing))
    root = env.reset()
    fail_twice(lambda: env.step(env.rand_action(root)))


def test_populations_name_the_members_that_failed(failing: Drift) -> None:
    evaluate = PopulationEvaluator("failing::drift", NET, 3, max_steps=9)
    with pytest.raises(WorkerError, match=r"environments 0, 1, 2 .*ZeroDivisionError") as caught:
        evaluate(torch.zeros(3, evaluate.parameter_length))
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_populations_check_results() -> None:
    registry.register("short", make_batch=lambda name, num_envs, **_: changed("reset", lambda obs: obs[:1]))
    try:
        with PopulationEvaluator("short::drift", NET, 3) as evaluate, pytest.raises(SpaceError, match=r"Drift\.reset"):
            evaluate(torch.zeros(3, evaluate.parameter_length))
    finally:
        registry.unregister("short")


def test_single_environments_of_a_batch_are_checked() -> None:
    simulator = Drift(1)
    env = SingleEnvOfBatch(simulator)
    env.reset()
    with pytest.raises(SpaceError, match=r"shape \(1, 2\) for Drift"):
        env.step(torch.zeros(3))
    simulator.step = lambda actions: 1 / 0  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(WorkerError, match=r"environment 0 .*ZeroDivisionError"):
        env.step(torch.zeros(2))


@pytest.mark.parametrize("method", ["reset", "reset_where", "step_and_reset"])
def test_exceptions_of_every_method_are_explained(method: str) -> None:
    with pytest.raises(WorkerError, match=rf"in '{method}': KeyError: 'gravity'"):
        play(changed(method, lambda _: {}["gravity"], DriftWithReset if "and" in method else Drift))


def test_exceptions_that_are_no_exception_are_explained() -> None:
    def panic(_: Any) -> Any:
        raise GeneratorExit("out of bounds")

    with pytest.raises(WorkerError, match="in 'step': GeneratorExit: out of bounds"):
        play(changed("step", panic))


def test_errors_of_vecrl_and_interrupts_pass_unchanged() -> None:
    for kind in (SpaceError, KeyboardInterrupt):

        def interrupt(_: Any, kind: type[BaseException] = kind) -> Any:
            raise kind("exact")

        with pytest.raises(kind, match=r"^exact$"):
            play(changed("step", interrupt))


def test_long_lists_of_environments_are_abbreviated() -> None:
    simulator = changed("reset", lambda _: 1 / 0)
    simulator.num_envs = 5000
    with pytest.raises(WorkerError) as caught:
        CheckedSimulator(simulator).reset()
    assert str(caught.value).startswith("environments 0 to 4999 (worker 0")


# -- methods that are missing ------------------------------------------------------------------------


def without(*names: str) -> Any:
    members = {name: value for name, value in vars(Drift).items() if name not in names}
    return type("Incomplete", (), members)()


def test_a_missing_method_is_named_at_construction() -> None:
    with pytest.raises(TypeError, match=r"vecrl\.engine\.BatchSimulator, got Incomplete without reset_where, step\. "):
        BatchedVectorEnv(without("step", "reset_where"))


@pytest.mark.parametrize("convert", [to_venv, lambda sim: to_venv(BatchedVectorEnv(sim))])
def test_a_conversion_names_the_missing_method(convert: Any) -> None:
    with pytest.raises(TypeError, match=r"vecrl\.engine\.BatchSimulator, got Incomplete without get_state\. "):
        convert(without("get_state"))


def test_partial_resets_with_seeds_name_the_missing_method() -> None:
    env = BatchedVectorEnv(without("get_state", "set_state"))
    env.reset()
    with pytest.raises(TypeError, match="Incomplete without get_state, set_state"):
        env.reset(seed=1, options={"reset_mask": np.array([True, False, False])})


def test_a_simulator_alone_becomes_a_tensordict_environment() -> None:
    assert to_tensordict(Drift()).rollout(2, break_when_any_done=False).shape == (3, 2)
    with pytest.raises(TypeError, match="got Incomplete without get_state"):
        to_tensordict(without("get_state"))
