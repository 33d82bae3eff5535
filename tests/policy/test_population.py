"""The evaluation of a population equals evaluating one member after another, on every backend and number of workers."""

import math
import threading
from functools import partial
from typing import ClassVar

import numpy as np
import pytest
import torch
from tests.fixtures import walk_envs
from tests.fixtures.batch_simulators import WalkBatch
from tests.fixtures.nested_simulators import NestedBatch, NestedEnv
from tests.fixtures.walk_envs import FailingWalk, NestedWalk, RoomIdWalk, WalkEnv, Words

from vecrl.errors import ClosedError, SerializationError, SpaceError, WorkerError
from vecrl.policy import Policy, RunningNorm, alive_bonus
from vecrl.policy.evaluation import compiled_loop
from vecrl.policy.population import PopulationEvaluator
from vecrl.seeding import ListedSeeds, SharedSeeds, seed_for
from vecrl.simulators import registry
from vecrl.simulators.native import make_native
from vecrl.vector.batched_vector_env import BatchedVectorEnv
from vecrl.vector.torch_wrapper import TorchWrapper

NET = "Linear(obs_length, 3) >> Tanh() >> Linear(3, act_length)"
RECURRENT = "RNN(obs_length, 3) >> Linear(3, act_length)"
PLACES = [
    ("serial", 3),
    ("threads", 2),
    ("processes", 1),
    ("processes", 2),
    pytest.param("ray", 2, marks=pytest.mark.ray),
]


@pytest.fixture
def walks():
    """Registers the prefix `walks::`, a batch of fixed size, and returns a list of those that were made."""
    made = []

    def make(name, *, num_envs, **kwargs):
        made.append(WalkBatch(num_envs))
        return TorchWrapper(BatchedVectorEnv(made[-1]))

    registry.register("walks", make, "for tests")
    yield made
    registry.unregister("walks")


def members(evaluator, count=9, seed=0):
    return torch.randn(count, evaluator.parameter_length, generator=torch.Generator().manual_seed(seed))


def one_by_one(net, population, seeds, *, episodes=1, max_steps=math.inf, shape=None, layer=None):
    """Evaluates `WalkEnv` in the simplest way. Returns `[3, P]` fitness, returns and lengths, and all observations."""
    env, policy, rows, seen = WalkEnv(), Policy(net), [], []
    for member, vector in enumerate(population):
        policy.set_parameters(vector)
        fitness, returns, steps, rollout = 0.0, 0.0, 0, 0
        while rollout < episodes and steps < max_steps:
            obs, _ = env.reset(seed=seeds(member, rollout))
            policy.reset()
            age, is_over = 0, False
            while not is_over and steps < max_steps:
                seen.append(obs)
                x = torch.from_numpy(obs)
                action = policy((x if layer is None else layer(x)).float()).detach().clamp(-2, 2)
                obs, reward, terminated, truncated, _ = env.step(action.numpy())
                age, steps, is_over = age + 1, steps + 1, terminated or truncated
                returns += reward
                fitness += shape(reward, age, terminated) if shape else reward
            rollout += 1
        rows.append((fitness / rollout, returns / rollout, steps / rollout))
    return torch.tensor(rows, dtype=torch.float64).T, np.array(seen)


def check(result, expected):
    for actual, requested in zip((result.fitness, result.returns, result.lengths), expected, strict=True):
        assert actual.dtype == torch.float64
        torch.testing.assert_close(actual, requested, rtol=1e-5, atol=1e-5)


def same(a, b):
    for name in ("fitness", "returns", "lengths"):
        assert torch.equal(getattr(a, name), getattr(b, name)), name
    assert a.interactions == b.interactions


# ---------------------------------------------------------------------- fitness of members


@pytest.mark.parametrize("net", [NET, RECURRENT])
@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize(
    "rules",
    [
        {},
        {"num_episodes": 3},
        {"max_steps": 5},
        {"num_episodes": 3, "max_steps": 13},
        {"num_episodes": 2, "decrease_rewards_by": 0.5, "alive_bonus": (2, 4, 10.0)},
    ],
    ids=str,
)
def test_population_equals_sequential_evaluation(rules, net, batched, walks):
    """Covers num_episodes, step budget and shaping: per-member mean returns, lengths and interactions."""

    def seeds(member, episode):
        later = batched and episode  # from there on, the row's own random stream continues
        return None if later else seed_for(4, member, episode)

    def shape(reward, age, terminated):
        bonus = 0.0 if terminated else alive_bonus(age, rules.get("alive_bonus"))
        return reward - rules.get("decrease_rewards_by", 0.0) + bonus

    with PopulationEvaluator("walks::walk" if batched else WalkEnv, net, 9, seed=4, **rules) as evaluator:
        population = members(evaluator)
        result = evaluator(population)
        module = evaluator.policy.wrapped_module
    limits = {"episodes": rules.get("num_episodes", 1), "max_steps": rules.get("max_steps", math.inf)}
    requested, seen = one_by_one(module, population, seeds, shape=shape, **limits)
    check(result, requested)
    assert result.interactions == len(seen)


@pytest.mark.parametrize("batched", [False, True])
def test_norm_statistics_apply_from_the_next_call(batched, walks):
    norm = RunningNorm(shape=2, clip=3.0)
    env = "walks::walk" if batched else WalkEnv
    with PopulationEvaluator(env, NET, 9, seed=4, obs_norm=norm) as evaluator:
        population, module = members(evaluator), evaluator.policy.wrapped_module
        first, seen = one_by_one(module, population, lambda i, e: seed_for(4, i, 0))
        check(evaluator(population), first)
        assert norm.count == len(seen)
        torch.testing.assert_close(norm.mean, torch.from_numpy(seen.mean(0)).float())
        torch.testing.assert_close(norm.stdev, torch.from_numpy(seen.std(0)).float())
        layer = norm.to_layer()
        second, more = one_by_one(module, population, lambda i, e: seed_for(4, i, 1), layer=layer)
        check(evaluator(population), second)
        assert norm.count == len(seen) + len(more)


def test_done_members_are_not_stepped():
    walk_envs.LOG.clear()
    with PopulationEvaluator(WalkEnv, NET, 9, num_episodes=2, seed=1) as evaluator:
        result = evaluator(members(evaluator))
    steps = [entry for entry in walk_envs.LOG if entry[0] == "step"]
    assert len(steps) == result.interactions == int((result.lengths * 2).sum())
    assert walk_envs.LOG.count(("reset", 0)) == 18


def test_discrete_spaces_are_one_hot_and_arg_max():
    always_six = torch.tensor([0.0, 0.0, 0.0, 1.0, 1.0, 1.0])  # the weights of two outputs for three rooms
    six_in_room_two = torch.tensor([1.0, 0.0, 1.0, 0.0, 1.0, 0.0])
    with PopulationEvaluator(RoomIdWalk, "Linear(obs_length, act_length, bias=False)", 2, seed=3) as evaluator:
        assert evaluator.parameter_length == 6
        result = evaluator(torch.stack([always_six, six_in_room_two]))
    first, second = result.lengths.tolist()
    assert result.returns[0] == 6 * first
    assert result.returns[1] == sum(6 if 1 + t % 3 == 2 else 5 for t in range(int(second)))


# ---------------------------------------------------------------------- what must not change results


@pytest.mark.parametrize(("backend", "num_workers"), PLACES)
@pytest.mark.parametrize("size", [128, 4, 1])
@pytest.mark.parametrize("net", [NET, RECURRENT])
def test_results_do_not_depend_on_backend_and_workers(backend, num_workers, net, size):
    """Runs in this process or in worker processes that evaluate whole subbatches."""

    def run(**place):
        options = {"num_episodes": 2, "obs_norm": True, "action_noise": 0.3, "seed": 5, "subbatch_size": size}
        with PopulationEvaluator(WalkEnv, net, 9, **options, **place) as evaluator:
            population = members(evaluator)
            return [evaluator(population) for _ in range(3)]

    for expected, actual in zip(run(), run(backend=backend, num_workers=num_workers), strict=True):
        same(expected, actual)


@pytest.mark.parametrize("env", [WalkEnv, "walks::walk", "native::Pendulum-v1"])
def test_chunked_populations_give_equal_results(env, walks):
    options = {"num_episodes": 2, "obs_norm": True, "seed": 6, "max_steps": 40}
    with PopulationEvaluator(env, NET, 9, **options) as complete, PopulationEvaluator(env, NET, 4, **options) as parts:
        population = members(complete)
        for _ in range(2):
            a, b = complete(population), parts(population)
            check(a, (b.fitness, b.returns, b.lengths))
            assert a.interactions == b.interactions
        torch.testing.assert_close(complete.norm.mean, parts.norm.mean)
        assert len(complete(population[:2]).returns) == 2


def test_subbatches_do_not_depend_on_each_other():
    options = {"num_episodes": 2, "action_noise": 0.3, "seed": 6, "subbatch_size": 3}
    with PopulationEvaluator(WalkEnv, RECURRENT, 9, **options) as evaluator:
        population = members(evaluator)
        complete = evaluator(population)
        last = torch.arange(9) % 3 == 2  # members are dealt out in turn
        changed = population * last[:, None]
        evaluator.calls = 0
        repeated = evaluator(changed)
    assert torch.equal(complete.returns[last], repeated.returns[last])
    assert not torch.equal(complete.returns[~last], repeated.returns[~last])


def test_networks_use_one_thread_on_every_backend():
    class Counting(torch.nn.Linear):
        threads: ClassVar[list[int]] = []

        def forward(self, x):
            self.threads.append(torch.get_num_threads())
            return super().forward(x)

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with PopulationEvaluator(WalkEnv, Counting(2, 1), 3, seed=1) as evaluator:
            Counting.threads.clear()
            evaluator(members(evaluator, 3))
        assert set(Counting.threads) == {1}
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_noise_is_per_member_and_seeded():
    def run(seed, stdev):
        with PopulationEvaluator(WalkEnv, NET, 9, seed=seed, action_noise=stdev) as evaluator:
            return [evaluator(members(evaluator).mul(0)).returns for _ in range(2)]

    first, second = run(1, 0.1)
    assert torch.equal(first, run(1, 0.1)[0])
    assert not torch.equal(first, run(2, 0.1)[0])
    assert len(first.unique()) == len(first)
    assert not torch.equal(first, second)
    assert run(1, 0.0)[0].unique().tolist() == [0.0]


@pytest.mark.parametrize("popsize", [3, 9])
def test_noise_is_per_member_with_shared_seeds(popsize):
    options = {"action_noise": 0.3, "seed": SharedSeeds(3), "subbatch_size": 2}
    with PopulationEvaluator(WalkEnv, NET, popsize, **options) as evaluator:
        returns = [evaluator(members(evaluator).mul(0)).returns for _ in range(2)]
    assert len(torch.cat(returns).unique()) == 18


@pytest.mark.parametrize("backend", ["serial", "processes"])
def test_failing_members_of_later_chunks_are_reported_by_index(backend):
    class Failing(WalkEnv):
        def step(self, action):
            if action[0] > 0:
                raise ArithmeticError("on purpose")
            return super().step(action)

    options = {"subbatch_size": 2, "backend": backend, "num_workers": 2}
    with PopulationEvaluator(Failing, "Linear(obs_length, act_length)", 4, **options) as evaluator:
        population = torch.zeros(8, 3)
        population[5, 2] = 1.0
        with pytest.raises(WorkerError, match="environment 5 ") as exc_info:
            evaluator(population)
    assert exc_info.value.env_ids == (5,)
    assert isinstance(exc_info.value.__cause__, ArithmeticError)


def test_unpicklable_networks_raise():
    class Locked(torch.nn.Linear):
        lock = None

        def __init__(self, *args):
            super().__init__(*args)
            self.lock = threading.Lock()

    place = {"subbatch_size": 2, "backend": "processes", "num_workers": 2}
    reported = pytest.raises(SerializationError, match=r"Expected the network to be picklable.*lock")
    with PopulationEvaluator(WalkEnv, Locked(2, 1), 4, **place) as evaluator, reported:
        evaluator(members(evaluator, 4))


def test_seeds_can_be_shared_or_listed():
    for rule in (SharedSeeds(3), ListedSeeds((8,) * 9)):
        with PopulationEvaluator(WalkEnv, NET, 9, seed=rule) as evaluator:
            lengths = [evaluator(members(evaluator)).lengths for _ in range(4)]
        assert all(len(each.unique()) == 1 for each in lengths)
        assert len(torch.stack(lengths).unique()) > 1


def test_state_dict_restores_the_evaluator():
    def make():
        return PopulationEvaluator(WalkEnv, NET, 9, seed=2, obs_norm=True, action_noise=0.1)

    with make() as complete, make() as resumed:
        population = members(complete)
        complete(population)
        resumed.load_state_dict(complete.state_dict())
        same(complete(population), resumed(population))


# ---------------------------------------------------------------------- one batched simulator


@pytest.mark.parametrize("episodes", [1, 2])
def test_native_rows_are_independent(episodes):
    """Fused on one device with a batched environment."""
    with PopulationEvaluator("native::CartPole-v1", NET, 40, seed=7, num_episodes=episodes, max_steps=300) as evaluator:
        population = members(evaluator, 40, seed=1) * 2
        result = evaluator(population)
    assert len(result.lengths.unique()) > 5  # so the batch becomes smaller during the run
    for i in (0, 7, 39):
        simulator, policy = make_native("CartPole-v1", 1), Policy(evaluator.policy.wrapped_module)
        policy.set_parameters(population[i : i + 1])
        obs, steps, rollout = simulator.reset([seed_for(7, i)]), 0, 0
        while rollout < episodes and steps < 300:
            step = simulator.step(policy(obs).argmax(1))
            steps += 1
            is_over = bool(step.terminated | step.truncated)
            rollout += is_over or steps == 300
            obs = simulator.reset_where(torch.tensor([is_over]))
        assert result.lengths[i] == result.returns[i] == steps / rollout


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # raised by torch while it imports its compiler
@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1"])
def test_compiled_results_equal_eager_results(env, monkeypatch):
    monkeypatch.setattr(compiled_loop, "STEPS_PER_REGION", 2)  # compiles faster
    monkeypatch.setattr(compiled_loop, "MIN_BATCH_SIZE", 8)
    options = {"num_episodes": 2, "max_steps": 41, "obs_norm": True, "alive_bonus": (5, 9, 1.0), "seed": 3}
    results = []
    for compile_it in (False, True):
        with PopulationEvaluator(f"native::{env}", NET, 32, compile=compile_it, **options) as evaluator:
            population = members(evaluator, 32) * 3
            results.append([evaluator(population), evaluator(population), evaluator(population[:20])])
            results[-1].append(evaluator.norm)
    for plain, fast in zip(*results, strict=True):
        if isinstance(plain, RunningNorm):
            assert plain.count == fast.count
            torch.testing.assert_close(plain.mean, fast.mean, rtol=1e-3, atol=1e-3)
            continue
        assert plain.interactions == fast.interactions
        torch.testing.assert_close(plain.lengths, fast.lengths)
        torch.testing.assert_close(plain.fitness, fast.fitness, rtol=1e-3, atol=1e-3)


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # raised by torch while it imports its compiler
def test_noise_is_compiled_too(monkeypatch):
    monkeypatch.setattr(compiled_loop, "STEPS_PER_REGION", 2)
    options = {"action_noise": 1.0, "max_steps": 20, "seed": 3, "compile": True}
    with PopulationEvaluator("native::Pendulum-v1", NET, 8, **options) as evaluator:
        returns = evaluator(members(evaluator, 8).mul(0)).returns
        evaluator.calls = 0
        assert torch.equal(returns, evaluator(members(evaluator, 8).mul(0)).returns)
    assert len(returns.unique()) == 8


def test_unsupported_compilation_raises():
    with pytest.raises(SpaceError, match="hidden state"):
        PopulationEvaluator("native::CartPole-v1", RECURRENT, 3, compile=True)
    with pytest.raises(ValueError, match="native task"):
        PopulationEvaluator(WalkEnv, NET, 3, compile=True)


def test_batches_of_fixed_size_are_made_once(walks):
    with PopulationEvaluator("walks::walk", NET, 9, seed=1) as evaluator:
        nine = evaluator(members(evaluator))
        evaluator.calls = 0
        four = evaluator(members(evaluator)[:4])
        assert torch.equal(nine.lengths[:4], four.lengths)
        assert four.interactions == int(four.lengths.sum())
    assert len(walks) == 1
    assert walks[0].closed


# ---------------------------------------------------------------------- tests of one policy


def test_tests_are_repeatable_and_do_not_update_statistics():
    with PopulationEvaluator(WalkEnv, NET, 9, seed=1, obs_norm=True, decrease_rewards_by=5.0) as evaluator:
        vector = members(evaluator)[0]
        evaluator(members(evaluator))
        before = evaluator.norm.count, evaluator.calls
        result = evaluator.test(vector, 25)
        assert (evaluator.norm.count, evaluator.calls) == before
        assert len(result.returns) == 25
        assert len(result.lengths.unique()) > 3
        same(result, evaluator.test(vector, 25))
        assert not torch.equal(result.returns, evaluator.test(vector, 25, seed=9).returns)
        assert not torch.equal(result.returns, evaluator.test(vector, 25, obs_layer=None).returns)
        with pytest.raises(SpaceError, match="Expected parameters"):
            evaluator.test(vector[None])


# ---------------------------------------------------------------------- errors


def test_failing_environments_are_named_and_the_evaluator_stays_usable():
    with PopulationEvaluator(FailingWalk, NET, 3, seed=1) as evaluator:
        for _ in range(2):
            with pytest.raises(WorkerError, match=r"environment.* 0.*out of order"):
                evaluator(members(evaluator, 3))
        evaluator.rules = type(evaluator.rules)(max_steps=1)
        assert evaluator(members(evaluator, 3)).interactions == 3


@pytest.mark.parametrize("wrong", [torch.zeros(17), torch.zeros(2, 4), torch.zeros(0, 13)])
def test_parameters_of_a_wrong_shape_raise(wrong):
    with PopulationEvaluator(WalkEnv, NET, 3) as evaluator, pytest.raises(SpaceError, match=r"\[P, 13\]"):
        evaluator(wrong)


def test_use_after_close_raises():
    evaluator = PopulationEvaluator(WalkEnv, NET, 3)
    evaluator.close()
    evaluator.close()
    with pytest.raises(ClosedError):
        evaluator(torch.zeros(3, 13))


@pytest.mark.parametrize(("backend", "size"), [("serial", 128), ("processes", 128), ("processes", 3)])
def test_nested_spaces_give_the_same_returns(backend, size, caplog):
    """The network has the weights of the other one for the numbers that count, and zeros for the rest."""
    options = {"popsize": 6, "num_episodes": 2, "seed": 3, "obs_norm": True, "backend": backend, "subbatch_size": size}
    net = "Linear(obs_length, act_length)"
    with (
        PopulationEvaluator(WalkEnv, net, **options) as flat,
        PopulationEvaluator(NestedWalk, net, **options) as nested,
    ):
        assert nested.policy_io.constants == {"obs_length": 5, "act_length": 6}
        parameters = members(flat, 6)
        weights, biases = torch.zeros(6, 6, 5), torch.zeros(6, 6)
        weights[:, :1, :2], biases[:, :1] = parameters[:, :2].view(6, 1, 2), parameters[:, 2:]
        for _ in range(2):
            expected, result = flat(parameters), nested(torch.cat([weights.flatten(1), biases], 1))
            torch.testing.assert_close(result.returns, expected.returns)
            assert torch.equal(result.lengths, expected.lengths)
            assert result.interactions == expected.interactions
    assert "without ['b'], since" in caplog.text


def test_nested_batched_simulators_equal_single_environments():
    registry.register("nested", make_batch=lambda name, num_envs, **_: NestedBatch(num_envs))
    try:
        make = partial(PopulationEvaluator, net=NET, popsize=5, seed=ListedSeeds([3, 5, 8, 13, 21]), obs_norm=True)
        with make("nested::any") as batched, make(NestedEnv) as single:
            assert batched.policy_io.constants == {"obs_length": 106, "act_length": 11}
            parameters = members(single, 5)
            for _ in range(2):
                expected, result = single(parameters), batched(parameters)
                torch.testing.assert_close(result.returns, expected.returns)
                assert torch.equal(result.lengths, expected.lengths)
        with make("nested::any", num_episodes=2) as batched:
            result = batched(parameters)
            assert result.interactions == 2 * result.lengths.sum()
    finally:
        registry.unregister("nested")


@pytest.mark.parametrize(
    ("env", "options", "error", "text"),
    [
        (Words, {}, SpaceError, "TransformObservation"),
        ("nowhere::x", {}, ValueError, "Expected one of the prefixes"),
        (WalkEnv, {"popsize": 0}, ValueError, "popsize"),
        (WalkEnv, {"subbatch_size": 0}, ValueError, "subbatch_size"),
        (WalkEnv, {"subbatch_size": 2.5}, ValueError, "subbatch_size"),
        (WalkEnv, {"num_episodes": 0}, ValueError, "num_episodes"),
        (WalkEnv, {"device": "cuda"}, ValueError, "CPU"),
        (WalkEnv, {"obs_norm": RunningNorm(shape=7)}, SpaceError, "obs_norm"),
        (WalkEnv, {"device": "foo"}, ValueError, "which run on the CPU, got 'foo'"),
        (WalkEnv, {"action_noise": -1.0}, ValueError, "action_noise of 0 or more, got -1.0"),
        (WalkEnv, {"action_noise": math.nan}, ValueError, "action_noise"),
        (WalkEnv, {"decrease_rewards_by": math.inf}, ValueError, "decrease_rewards_by to be a finite"),
        (WalkEnv, {"seed": -1}, ValueError, "seed of 0 or more, got -1"),
        (WalkEnv, {"net": "Linear(3, nowhere)"}, ValueError, "nowhere"),
        (WalkEnv, {"net": "Linear(7, act_length)"}, SpaceError, "on zeros it raised RuntimeError"),
        (WalkEnv, {"net": "Linear(obs_length, 5)"}, SpaceError, r"got \(1, 5\). Use obs_length and act_length"),
        ("CartPole-v1", {"net": "Linear(obs_length, 1)"}, SpaceError, "from 4 features to 2 outputs"),
        ("native::CartPole-v1", {"net": "Linear(obs_length, 5)"}, SpaceError, "from 4 features to 2 outputs"),
        (
            "native::CartPole-v1",
            {"device": "foo"},
            ValueError,
            "Expected a device, such as 'cpu' or 'cuda:0', got 'foo'",
        ),
        ("native::CartPole-v1", {"env_kwargs": {"foo": 1}}, ValueError, "could not be made with foo=1: TypeError"),
    ],
)
def test_invalid_arguments_raise(env, options, error, text):
    with pytest.raises(error, match=text):
        PopulationEvaluator(env, options.pop("net", NET), options.pop("popsize", 3), **options)


@pytest.mark.parametrize("wraps", [False, True])
def test_makers_may_return_either_form_of_a_batched_simulator(wraps):
    def maker(name, *, num_envs=None, **_):
        envs = BatchedVectorEnv(make_native(name, num_envs))
        return TorchWrapper(envs) if wraps else envs

    registry.register("made", maker)
    try:
        results = []
        for env in ("made::CartPole-v1", "native::CartPole-v1"):
            with PopulationEvaluator(env, "Linear(obs_length, act_length)", 3, seed=1) as evaluator:
                results.append(evaluator(torch.zeros(3, evaluator.parameter_length)).fitness.tolist())
        assert results[0] == results[1]
    finally:
        registry.unregister("made")
