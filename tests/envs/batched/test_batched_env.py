"""`SerialEnv` and `ParallelEnv`: start and close, attributes, seeds, states, and copies of results."""

import math
import pickle
from functools import partial
from types import SimpleNamespace
from typing import Any

import cloudpickle
import gymnasium
import psutil
import pytest
import torch
from tensordict import TensorDict, TensorDictBase
from tests.fixtures.batch_reference import assert_same
from tests.fixtures.tensordict_envs import (
    MAKERS,
    CountingRowsEnv,
    CountingTensorDictEnv,
    DynamicSizeEnv,
    ObjectObsEnv,
    StatefulEnv,
)
from torch import nn

from vecrl.envs import (
    Compose,
    EnvBase,
    EnvCreator,
    EnvMetaData,
    FrameSkipTransform,
    GymEnv,
    ParallelEnv,
    PendulumEnv,
    SerialEnv,
    StepCounter,
    TicTacToeEnv,
    TransformedEnv,
    default_info_dict_reader,
    make_env,
)
from vecrl.envs.batched.codecs import GymCodec
from vecrl.envs.seed_chain import next_seed, seed_chain
from vecrl.errors import ClosedError, SpaceError, WorkerError
from vecrl.simulators.registry import register, unregister
from vecrl.specs import Composite, StackedComposite, Unbounded

BOTH = pytest.mark.parametrize("kind", [SerialEnv, partial(ParallelEnv, envs_per_worker=2)])


@BOTH
def test_batch_size_and_specs(kind: Any) -> None:
    with kind(3, partial(CountingRowsEnv, 2, 3)) as env:
        assert env.batch_size == (3, 2)
        assert env.action_spec.shape == (3, 2, 2)
        assert type(env.full_action_spec) is Composite
        assert env.reset().batch_size == (3, 2)
    with kind(3, MAKERS["classes"]) as env:
        assert isinstance(env.observation_spec, StackedComposite)
        assert env.observation_keys == ["count", "seen"]
        assert sorted(env.reset()[1].keys()) == ["count", "done", "seen", "terminated", "text", "truncated"]


@BOTH
def test_attributes_and_methods_reach_all_environments(kind: Any) -> None:
    with kind(3, [partial(CountingTensorDictEnv, limit) for limit in (4, 5, 6)]) as env:
        assert env.limit == [4, 5, 6]
        assert env.say("ho", times=2) == ["hoho"] * 3
        assert env.words == [["ho"]] * 3
        with pytest.raises(AttributeError, match=r"Neither .*Env nor its environments \[0, 1, 2\] have 'nothing'"):
            _ = env.nothing
        assert not hasattr(env, "_nothing")
    with pytest.raises(AttributeError, match="closed"):
        _ = env.limit


class Chained(CountingTensorDictEnv):
    def __init__(self, number: int = 3):
        super().__init__()
        self.inner = SimpleNamespace(value=number, deep=SimpleNamespace(add=lambda other: number + other))


@BOTH
def test_chained_attributes_reach_all_environments(kind: Any) -> None:
    with kind(2, [partial(Chained, 3), partial(Chained, 4)]) as env:
        assert env.inner.value == [3, 4]
        assert env.inner.deep.add(10) == [13, 14]
        assert [inner.value for inner in env.inner] == [3, 4]
        assert pickle.loads(pickle.dumps(env.inner.value)) == [3, 4]
        with pytest.raises(AttributeError, match=r"have 'inner\.nothing'"):
            _ = env.inner.nothing
        assert not hasattr(env.inner, "_value")


class Watched(GymEnv):
    def elapsed(self) -> int:
        return self._env.get_wrapper_attr("_elapsed_steps")


@BOTH
def test_wrapper_attributes_are_current_when_read(kind: Any) -> None:
    with kind(2, partial(Watched, "CartPole-v1", max_episode_steps=9)) as env:
        assert isinstance(env._codec, GymCodec)
        env.rollout(3, break_when_any_done=False)
        assert env.elapsed() == [3, 3]


@BOTH
def test_close_and_restart(kind: Any) -> None:
    env = kind(2, CountingTensorDictEnv, create_env_kwargs={"limit": 2})
    assert env.rollout(9).shape == (2, 2)
    env.close()
    env.close()
    assert env.is_closed
    with pytest.raises(ClosedError, match=r"start\(\) or reset\(\)"):
        env.step(TensorDict({}, [2]))
    with pytest.raises(ClosedError):
        env.close(raise_if_closed=True)
    env.update_kwargs({"limit": 4})
    assert env.rollout(9).shape == (2, 4)
    env.close()
    env.update_kwargs([{"limit": 1}, {"limit": 7}])
    env.start()
    assert not env.is_closed
    assert env.limit == [1, 7]
    env.close()


@BOTH
def test_new_keywords_apply_immediately(kind: Any) -> None:
    with kind(2, CountingTensorDictEnv) as env, TransformedEnv(env, StepCounter()) as seen:
        env.update_kwargs([{"limit": 1, "size": 5}, {"limit": 2, "size": 5}])
        env.start()
        assert env.limit == [1, 2]
        assert env.observation_spec["seen"].shape == seen.observation_spec["seen"].shape == (2, 5)
        assert seen.rollout(9, break_when_all_done=True).shape == (2, 2)
        env.update_kwargs({"limit": 7})
        with pytest.raises(ClosedError, match=r"start\(\) or reset\(\)"):
            env.rand_step()
        assert env.rollout(9).shape == (2, 7)
        with pytest.raises(SpaceError, match="list of 2"):
            env.update_kwargs([{}])
        assert env.limit == [7, 7]


@BOTH
@pytest.mark.parametrize("make", [CountingTensorDictEnv, lambda **_: GymEnv("CartPole-v1")], ids=["counting", "gym"])
def test_new_keywords_do_not_change_seeds(kind: Any, make: Any) -> None:
    with kind(2, make) as env, kind(2, make) as other:
        for item in (env, other):
            item.set_seed(5)
        env.update_kwargs({"limit": 2})
        assert_same(env.reset(), other.reset())
        env.update_kwargs({"limit": 3})
        assert env.is_closed


def test_keywords_per_environment() -> None:
    with SerialEnv(2, CountingTensorDictEnv, create_env_kwargs=[{"limit": 2}, {"limit": 3}]) as env:
        assert env.limit == [2, 3]
    with pytest.raises(SpaceError, match=r"create_env_kwargs .* list of 2, one per environment, got 1"):
        SerialEnv(2, CountingTensorDictEnv, create_env_kwargs=[{}])
    with pytest.raises(SpaceError, match="create_env_fn"):
        SerialEnv(2, [CountingTensorDictEnv])
    with pytest.raises(SpaceError, match="Give `lambda: GymEnv"):
        SerialEnv(1, [CountingTensorDictEnv()])
    with pytest.raises(SpaceError, match="1 or more"):
        SerialEnv(0, CountingTensorDictEnv)


def test_incompatible_environments_raise() -> None:
    with pytest.raises(SpaceError, match="one batch size"):
        SerialEnv(2, [partial(CountingRowsEnv, 2), partial(CountingRowsEnv, 2, 3)])
    makers = [CountingTensorDictEnv, CountingTensorDictEnv, partial(GymEnv, "CartPole-v1")]
    with pytest.raises(SpaceError, match=r"(?s)action at 'action'.*environment 0 has .*and environment 2 has "):
        SerialEnv(3, makers)
    with pytest.raises(RuntimeError, match=r"Use GymWrapper\(env\)"):
        SerialEnv(1, lambda: nn.Linear(1, 1))


def test_swapped_arguments_raise() -> None:
    swapped: Any = (CountingTensorDictEnv, 2)
    with pytest.raises(
        TypeError, match=r"num_workers to be an integer.*CountingTensorDictEnv.*num_workers comes first"
    ):
        ParallelEnv(*swapped)


def test_fork_gives_a_warning_and_means_forkserver() -> None:
    with pytest.warns(UserWarning, match="mp_start_method to be 'forkserver' or 'spawn', got 'fork'.*locks"):
        env = ParallelEnv(1, CountingTensorDictEnv, mp_start_method="fork")
    assert env.rollout(2).shape == (1, 2)
    with pytest.warns(UserWarning, match="locks that its threads hold"):
        env.configure_parallel(mp_start_method="fork")
    env.close()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"num_threads": 0}, "num_threads to be an int of 1 or more, or None, got 0"),
        ({"step_timeout": "a"}, "step_timeout to be a number of seconds"),
        ({"envs_per_worker": "2"}, "envs_per_worker to be an int"),
        ({"wait": "never"}, "Expected wait to be 'sleep', 'auto' or 'spin', got 'never'"),
    ],
)
def test_wrong_options_raise(options: Any, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        SerialEnv(1, CountingTensorDictEnv, **options)


def test_compatibility_arguments_are_accepted() -> None:
    nothing = {"pin_memory": True, "share_individual_td": True, "shared_memory": False, "memmap": True, "daemon": True}
    with SerialEnv(
        2, CountingTensorDictEnv, **nothing, use_buffers=False, policy_proof=lambda td: td, consolidate=False
    ) as env:
        assert env.reset().batch_size == (2,)
        assert env.non_blocking is False


def test_single_environment_needs_no_process() -> None:
    with ParallelEnv(1, CountingTensorDictEnv, serial_for_single=True) as env:
        assert env.pid == [psutil.Process().pid]
    with ParallelEnv(1, CountingTensorDictEnv) as env:
        assert env.pid != [psutil.Process().pid]


def test_environments_are_divided_among_workers() -> None:
    for per_worker, workers in ((1, 4), (2, 2), (3, 2), (4, 1)):
        with ParallelEnv(4, CountingTensorDictEnv, envs_per_worker=per_worker) as env:
            assert len(set(env.pid)) == workers
    with pytest.raises(SpaceError, match="envs_per_worker"):
        SerialEnv(2, CountingTensorDictEnv, envs_per_worker=0)


def test_torch_threads_in_workers_can_be_set() -> None:
    class ThreadCountEnv(CountingTensorDictEnv):
        def threads(self) -> int:
            return torch.get_num_threads()

    with ParallelEnv(1, ThreadCountEnv, num_sub_threads=2, mp_start_method="spawn") as env:
        assert env.threads() == [2]


@pytest.mark.parametrize(
    "make",
    [
        lambda: ParallelEnv(2, partial(GymEnv, "CartPole-v1"), wait="sleep"),
        lambda: ParallelEnv(2, partial(GymEnv, "CartPole-v1")).configure_parallel(wait="sleep"),
        lambda: GymEnv("CartPole-v1", num_envs=2, num_workers=2, wait="sleep"),
        lambda: make_env("mine::CartPole-v1", 2, num_workers=2, wait="sleep"),
    ],
)
def test_the_way_to_wait_for_workers_reaches_the_pool(make: Any, request: pytest.FixtureRequest) -> None:
    register("mine", env_fn=lambda name, **kwargs: partial(gymnasium.make, name, **kwargs))
    request.addfinalizer(lambda: unregister("mine"))
    with make() as env:
        env.reset()
        pool = env._pool if isinstance(env, ParallelEnv) else env._vector.env._pool
        assert pool._options.wait == "sleep"


def test_settings_apply_from_the_next_start() -> None:
    env = ParallelEnv(2, CountingTensorDictEnv).configure_parallel(envs_per_worker=1, use_buffers=False)
    assert env.is_closed
    env.reset()
    assert len(set(env.pid)) == 2
    with pytest.raises(TypeError, match="color"):
        env.configure_parallel(color="red")
    env.close()
    assert (single := CountingTensorDictEnv()).configure_parallel(num_threads=1) is single
    with EnvBase.make_parallel(CountingTensorDictEnv, num_envs=2, backend="serial") as env:
        assert env.batch_size == (2,)


@BOTH
def test_set_seed_seeds_every_environment(kind: Any) -> None:
    for make in (CountingTensorDictEnv, partial(GymEnv, "CartPole-v1")):
        with kind(3, make) as env:
            assert env.set_seed(0) == next_seed(next_seed(next_seed(0)))
            first = env.reset()
            assert env.set_seed(0) is not None
            assert_same(env.reset(), first)
            assert env.set_seed(4, static_seed=True) == 4
            same = env.reset()
            assert_same(same[0:1], same[1:2])
            assert env.set_seed(None) is None


class OwnSeedEnv(CountingTensorDictEnv):
    """An environment with a `set_seed` of a user."""

    def set_seed(self, seed: int | None = None, static_seed: bool = False) -> int | None:
        super().set_seed(seed, static_seed)
        return 7


@BOTH
@pytest.mark.parametrize("nested", [False, True])
def test_seeded_rows_are_reset_in_one_command(kind: Any, nested: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each row has the trajectory of an environment that is seeded alone."""

    def make_one() -> TransformedEnv:
        return TransformedEnv(GymEnv("Pendulum-v1"), Compose(StepCounter(), FrameSkipTransform(2)))

    def second_episode(env: Any, seed: int) -> TensorDictBase:
        env.set_seed(seed)
        return env.reset()

    make = partial(SerialEnv, 2, make_one) if nested else make_one
    seeds = seed_chain(5, 6)
    alone = torch.stack([second_episode(make_one(), seed) for seed in seeds])
    with kind(3, make) as env:
        names: list[tuple[str, Any]] = []
        invoke = env._pool.invoke
        monkeypatch.setattr(
            env._pool, "invoke", lambda kind, name, *args: (names.append((name, args)), invoke(kind, name, *args))[1]
        )
        assert env.set_seed(5) == next_seed(seeds[5 if nested else 2])
        calls = [args for name, args in names if name == "_reset_after_seed"]
        assert [len(args[0]) for args in calls] == [3]
        assert "set_seed" not in [name for name, _ in names]
        assert_same(env.reset().reshape(-1), alone if nested else alone[:3])


@BOTH
def test_a_set_seed_of_a_user_is_called(kind: Any) -> None:
    with kind(2, OwnSeedEnv) as env, kind(2, lambda: TransformedEnv(OwnSeedEnv())) as transformed:
        for batch in (env, transformed):
            assert batch.set_seed(0) == 7
            rows = batch.reset()
            for row, seed in enumerate((0, 7)):
                single = OwnSeedEnv()
                single.set_seed(seed)
                assert_same(single.reset()[None], rows[row : row + 1])


def test_seeds_apply_at_the_reset_of_their_row() -> None:
    make = partial(GymEnv, "CartPole-v1", max_episode_steps=2)
    with SerialEnv(2, make) as env:
        env.set_seed(9)
        expected = env.reset()["observation"]
        env.set_seed(9)
        root = env.step_and_maybe_reset(env.rand_action(TensorDict({}, [2])))[1]
        root = env.step_and_maybe_reset(env.rand_action(root))[1]
        assert root["observation"].equal(expected)


@BOTH
def test_results_are_copies(kind: Any) -> None:
    for make in (partial(GymEnv, "Pendulum-v1"), ObjectObsEnv):
        with kind(2, make) as env:
            root, saved = env.reset(), []
            for _ in range(9):
                step_td, root = env.step_and_maybe_reset(env.rand_action(root))
                saved.append((step_td, step_td.clone(), root, root.clone()))
            for step_td, copy, next_td, another in saved:
                if next_td is not saved[-1][2]:
                    next_td = next_td.exclude("action", "next")
                    another = another.exclude("action", "next")
                assert_same(step_td, copy)
                assert_same(next_td, another)
            first = env.reset()["done"]
            first.fill_(True)
            assert not env.reset()["done"].any()


@BOTH
def test_keywords_and_states_reach_environments(kind: Any) -> None:
    with kind(2, CountingTensorDictEnv) as env:
        assert env.reset(count=7)["count"].flatten().tolist() == [7, 7]
    with kind(2, StatefulEnv) as env:
        start = TensorDict({"place": torch.tensor([[0.5], [1.0]])}, [2])
        assert env.reset(start)["place"].flatten().tolist() == [0.5, 1.0]
        data = env.step(TensorDict({"place": torch.tensor([[0.0], [1.5]]), "action": torch.ones(2, 1)}, [2]))
        assert data["next", "place"].flatten().tolist() == [1.0, 2.5]
        with pytest.raises(SpaceError, match="Expected 'place' among the inputs of a step"):
            env.step(env.rand_action(TensorDict({}, [2])))


class StartingEnv(CountingTensorDictEnv):
    """Starts at "count" of the TensorDict if it has no mask, and records the keys that resets get."""

    def _reset(self, tensordict: TensorDictBase | None = None, count: int = 0, **kwargs: Any) -> TensorDictBase:
        self.words = [] if tensordict is None else sorted(tensordict.keys())
        is_given = "count" in self.words and "_reset" not in self.words
        return super()._reset(count=int(tensordict["count"]) if tensordict is not None and is_given else count)


@BOTH
@pytest.mark.parametrize("wrap", [lambda env: env, lambda env: TransformedEnv(env, StepCounter())])
def test_observations_reach_environments_at_resets_without_masks(kind: Any, wrap: Any) -> None:
    start = TensorDict({"count": torch.tensor([[1], [2]]), "note": torch.zeros(2, 1)}, [2])
    with wrap(kind(2, StartingEnv)) as env:
        root = env.reset(start.clone())
        assert root["count"].flatten().tolist() == [1, 2]
        assert env.words == [["count"]] * 2
        assert env.step(env.rand_action(root))["next", "done"].flatten().tolist() == [False, True]
        partly = start.clone().set("_reset", torch.tensor([[True], [False]]))
        assert env.reset(partly)["count"].flatten().tolist() == [0, 2]
        assert env.rollout(4, break_when_any_done=False)["count"].tolist() == [[[0], [1], [2], [0]]] * 2


@BOTH
def test_batches_can_be_nested(kind: Any) -> None:
    inner = partial(SerialEnv, 2, [partial(CountingTensorDictEnv, 2), partial(CountingTensorDictEnv, 3)])
    with kind(2, inner) as env:
        assert env.batch_size == (2, 2)
        assert env.set_seed(0) == next_seed(next_seed(next_seed(next_seed(0))))
        rollout = env.rollout(6, break_when_any_done=False)
        assert rollout["count"].squeeze(-1).tolist() == [[[0, 1] * 3, [0, 1, 2] * 2]] * 2
        assert env.limit == [[2, 3]] * 2


def test_process_batches_can_be_nested() -> None:
    with ParallelEnv(2, partial(ParallelEnv, 2, CountingTensorDictEnv, envs_per_worker=1), envs_per_worker=1) as env:
        assert env.rollout(2).shape == (2, 2, 2)
        assert len({pid for pids in env.pid for pid in pids}) == 4


@BOTH
def test_object_observations_are_returned(kind: Any) -> None:
    with kind(2, [partial(ObjectObsEnv, 2), partial(ObjectObsEnv, 3)]) as env:
        rollout = env.rollout(4, break_when_any_done=False)
        assert rollout["text"] == [["at 0", "at 1", "at 0", "at 1"], ["at 0", "at 1", "at 2", "at 0"]]
        assert rollout["next", "text"][1] == ["at 1", "at 2", "at 3", "at 1"]


@BOTH
def test_dynamic_shapes_are_stacked_lazily(kind: Any) -> None:
    with kind(2, [partial(DynamicSizeEnv, 2), partial(DynamicSizeEnv, 5)]) as env:
        assert env.has_dynamic_specs
        rollout = env.rollout(4, return_contiguous=False, break_when_any_done=False)
        sizes = [[step["observation"].shape[1] for step in row.unbind(0)] for row in rollout.unbind(0)]
        assert sizes == [[1, 2, 1, 2], [1, 2, 3, 4]]
        assert rollout.names[-1] == "time"


class Learning(CountingTensorDictEnv):
    def __init__(self, start: float = 0.0):
        super().__init__()
        self.weight = nn.Parameter(torch.full((2,), start))


@BOTH
def test_states_of_all_environments_restore(kind: Any) -> None:
    with kind(2, [partial(Learning, 1.0), partial(Learning, 2.0)]) as env:
        state = env.state_dict()
        assert {key: value.tolist() for key, value in state.items()} == {
            "worker0.weight": [1, 1],
            "worker1.weight": [2, 2],
        }
        holder = nn.ModuleDict({"env": env})
        holder.load_state_dict({f"env.{key}": value + 5 for key, value in state.items()})
        assert env.state_dict()["worker1.weight"].tolist() == [7, 7]


def test_added_truncated_keys() -> None:
    with SerialEnv(2, partial(CountingRowsEnv, 2)) as env:
        rollout = env.add_truncated_keys().rollout(5, break_when_any_done=False, set_truncated=True)
        assert rollout["next", "truncated"].flatten().tolist() == [False] * 4 + [True] + [False] * 4 + [True]
        assert not rollout["truncated"].any()


def test_fake_tensordict_of_heterogeneous_environments() -> None:
    with SerialEnv(3, MAKERS["classes"]) as env:
        fake, real = env.fake_tensordict(), env.rand_step(env.reset())
        for fake_row, real_row in zip(fake.unbind(0), real.unbind(0), strict=True):
            assert sorted(fake_row.keys(True, True), key=str) == sorted(real_row.keys(True, True), key=str)


def test_results_are_moved_to_the_device() -> None:
    with SerialEnv(2, CountingTensorDictEnv, device="cpu") as env:
        assert env.device == torch.device("cpu")
        assert env.rollout(2).device == torch.device("cpu")
    with SerialEnv(2, CountingTensorDictEnv) as env:
        assert env.device is None
        assert env.to("cpu").reset().device == torch.device("cpu")
        assert env.action_spec.device == torch.device("cpu")
    with SerialEnv(3, MAKERS["classes"]) as env:
        assert sorted(env.to("cpu").observation_spec[1].keys()) == ["count", "seen", "text"]


def test_env_creators_are_accepted() -> None:
    make = EnvCreator(CountingTensorDictEnv, {"limit": 3}, size=5)
    repeated = cloudpickle.loads(cloudpickle.dumps(make))
    assert (repeated().limit, repeated(limit=9).limit, repeated.make_variant(size=1)().size) == (3, 9, 1)
    assert make.meta_data.batch_size == ()
    with ParallelEnv(2, make) as env:
        assert (env.limit, env.size) == ([3, 3], [5, 5])
    with pytest.raises(TypeError, match="a function"):
        EnvCreator(CountingTensorDictEnv())  # pyright: ignore[reportArgumentType]


def test_environment_metadata() -> None:
    meta = EnvMetaData.metadata_from_env(CountingRowsEnv(2, 3))
    assert (meta.batch_size, meta.device, meta.batch_locked) == ((2,), None, True)
    assert meta.tensordict is not None
    assert meta.tensordict["next", "count"].shape == (2, 1)
    assert meta.spec("action") == CountingRowsEnv(2, 3).action_spec
    assert cloudpickle.loads(cloudpickle.dumps(meta)).specs == meta.specs


def test_closures_reach_processes() -> None:
    limit = 4

    class Local(CountingTensorDictEnv):
        def __init__(self) -> None:
            super().__init__(limit)

    with ParallelEnv(2, lambda: Local()) as env:
        assert env.limit == [4, 4]


@BOTH
def test_set_state_is_forwarded(kind: Any) -> None:
    start = TensorDict({"th": torch.full((2,), 9.0), "thdot": torch.zeros(2)}, [2])
    with kind(2, PendulumEnv) as env:
        assert env.supports_set_state
        assert env.reset(start.clone())["th"].tolist() == [9.0, 9.0]
        assert env.reset(start.clone(), set_state=True)["th"].tolist() == [9.0, 9.0]
        assert env.reset(start.clone(), set_state=False)["th"].abs().le(math.pi).all()
    assert EnvMetaData.metadata_from_env(PendulumEnv()).supports_set_state
    with kind(2, CountingTensorDictEnv) as env, pytest.raises(NotImplementedError, match="set_state"):
        env.reset(set_state=True)


@BOTH
def test_reset_seed_reaches_every_environment(kind: Any) -> None:
    with kind(2, partial(GymEnv, "CartPole-v1")) as env:
        alone = GymEnv("CartPole-v1").reset(seed=3)["observation"]
        env.set_seed(1)
        root = env.reset(seed=3)
        assert root["observation"].equal(alone.expand(2, 4))
        subset = env.reset(root.set("_reset", torch.tensor([[False], [True]])), seed=4)["observation"]
        assert subset[0].equal(alone)
        assert subset[1].equal(GymEnv("CartPole-v1").reset(seed=4)["observation"])
        assert not env.reset()["observation"][0].equal(alone)


@BOTH
@pytest.mark.parametrize("name", ["set_info_dict_reader", "auto_register_info_dict"])
def test_info_readers_must_be_set_before_batching(kind: Any, name: str) -> None:
    with kind(2, partial(GymEnv, "CartPole-v1")) as env, pytest.raises(WorkerError, match="Call it in the function"):
        getattr(env, name)()
    with kind(2, lambda: GymEnv("FrozenLake-v1").set_info_dict_reader(default_info_dict_reader(["prob"]))) as env:
        assert env.rollout(2)["next", "prob"].gt(0).all()


@BOTH
def test_environment_randomness_is_equal_on_every_backend(kind: Any) -> None:
    make = partial(TicTacToeEnv, single_player=True)
    with SerialEnv(3, make) as item, kind(3, make) as other:
        boards = []
        for env in (item, other):
            env.set_seed(5)
            torch.manual_seed(0)
            root = env.reset().set("action", torch.tensor([0, 4, 8]))
            torch.rand(len(boards))  # the caller's random numbers have no effect
            boards.append(env.step(root)["next", "board"])
        assert boards[0].equal(boards[1])


def test_selected_entries_are_cloned() -> None:
    value = torch.zeros(2)
    with SerialEnv(2, lambda: GymEnv("CartPole-v1")) as env:
        for key in ("observation", "reward", "done"):
            clone = env.select_and_clone(key, value)
            assert clone is not None
            assert clone is not value
        assert env.select_and_clone("action", value) is None
        assert env.select_and_clone(("a", "b"), value, [("a", "b")]) is not None


class ReadsMasks(EnvBase):
    """Counts resets with and without a mask. A reset starts from the observation that it gets, if there is one."""

    def __init__(self) -> None:
        super().__init__()
        self.observation_spec = Composite(counts=Unbounded((2,)), start=Unbounded((1,)))
        self.action_spec = Unbounded((1,))
        self.counts = torch.zeros(2)

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        mask = None if tensordict is None else tensordict.get("_reset", None)
        self.counts = self.counts + torch.tensor([mask is not None, mask is None])
        start = None if tensordict is None else tensordict.get("start", None)
        return TensorDict({"counts": self.counts, "start": torch.zeros(1) if start is None else start})

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        return TensorDict({"counts": self.counts, "start": torch.ones(1), "done": torch.zeros(1, dtype=torch.bool)})

    def _set_seed(self, seed: int | None) -> None: ...


@pytest.mark.parametrize(
    "make", [partial(SerialEnv, 2), partial(ParallelEnv, 2), lambda make: SerialEnv(1, lambda: SerialEnv(2, make))]
)
def test_masks_of_whole_rows_reach_environments(make: Any) -> None:
    with make(ReadsMasks) as env:
        root = env.step_mdp(env.rand_step(env.reset()))
        mask = torch.zeros(*env.batch_size, 1, dtype=torch.bool)
        mask[..., 1, :] = True
        root = env.reset(root.set("_reset", mask))
        assert root["counts"].reshape(2, 2).tolist() == [[0, 1], [1, 1]]
        assert root["start"].flatten().tolist() == [1, 0]  # the observation of the last episode is not passed
        root = env.reset(root.set("_reset", torch.ones_like(mask)))
        assert root["counts"].reshape(2, 2).tolist() == [[1, 1], [2, 1]]
