"""`EnvBase`: resets, steps, rollouts, seeds, and completion of the entries that a subclass returns."""

import pickle
from collections.abc import Callable
from copy import deepcopy
from functools import partial
from typing import Any

import pytest
import torch
from tensordict import TensorDict, TensorDictBase
from tests.fixtures.tensordict_envs import CountingRowsEnv, GroupsEnv

from vecrl.envs import (
    EnvBase,
    GymEnv,
    NativeEnv,
    ParallelEnv,
    SerialEnv,
    StepCounter,
    TransformedEnv,
    check_env_specs,
)
from vecrl.envs.seed_chain import next_seed
from vecrl.errors import ClosedError, SpaceError
from vecrl.specs import Bounded, Categorical, Composite, Unbounded


def test_reset_returns_observations_and_flags_without_reward() -> None:
    first = CountingRowsEnv(2, 3).reset()
    assert sorted(first.keys()) == ["count", "done", "terminated"]
    assert first.batch_size == (2,)
    assert not first["done"].any()


def test_step_writes_next_into_its_input() -> None:
    env = CountingRowsEnv(1, 3)
    data = env.rand_action(env.reset())
    step_td = env.step(data)
    assert step_td is data
    assert sorted(step_td["next"].keys()) == ["count", "done", "reward", "terminated"]
    assert step_td["next", "done"].squeeze(-1).tolist() == [True, False]
    assert step_td["next", "terminated"].equal(step_td["next", "done"]), "a lone done counts as terminated"


@pytest.mark.parametrize(
    ("given", "done", "terminated"),
    [
        ({"terminated": True, "truncated": False}, True, True),
        ({"terminated": False, "truncated": True}, True, False),
        ({"done": True, "truncated": True}, True, False),
        ({"done": True, "truncated": False}, True, True),
        ({}, False, False),
    ],
)
def test_missing_done_flags_are_derived(given: dict[str, bool], done: bool, terminated: bool) -> None:
    class Flags(CountingRowsEnv):
        def _step(self, tensordict: Any) -> Any:
            flags = {name: torch.full((1,), value) for name, value in given.items()}
            return TensorDict({"count": self.count, "reward": torch.ones(1), **flags}, self.batch_size)

    next_td = Flags(3).add_truncated_keys().rand_step()["next"]
    assert {name: next_td[name].shape for name in ("done", "terminated", "truncated", "reward")} == dict.fromkeys(
        ("done", "terminated", "truncated", "reward"), (1, 1)
    )
    assert (next_td["done"].item(), next_td["terminated"].item()) == (done, terminated)


def test_steps_use_the_current_specs() -> None:
    env = CountingRowsEnv(2, 3)
    env.rand_step()
    changed = deepcopy(env).add_truncated_keys()
    assert "truncated" in changed.rand_step()["next"]
    assert "truncated" not in env.rand_step()["next"]
    env.set_spec_lock_(False)
    env.rand_step()
    env.full_done_spec["truncated"] = env.full_done_spec["done"].clone()  # in place, so nothing is notified
    assert "truncated" in env.rand_step()["next"]


def test_missing_rewards_raise() -> None:
    class WithoutReward(CountingRowsEnv):
        def _step(self, tensordict: Any) -> Any:
            return super()._step(tensordict).exclude("reward")

    with pytest.raises(SpaceError, match="to return 'reward'"):
        WithoutReward(2).rand_step()


def test_rollouts_stop_at_the_first_done_row() -> None:
    rollout = CountingRowsEnv(2, 3).rollout(10)
    assert rollout.shape == (2, 2)
    assert rollout.names == [None, "time"]
    assert rollout["next", "done"].squeeze(-1).tolist() == [[False, True], [False, False]]


def test_rollouts_reset_done_rows() -> None:
    rollout = CountingRowsEnv(2, 3).rollout(6, break_when_any_done=False)
    assert rollout["count"].squeeze(-1).tolist() == [[0, 1, 0, 1, 0, 1], [0, 1, 2, 0, 1, 2]]
    assert rollout["next", "count"].squeeze(-1).tolist() == [[1, 2, 1, 2, 1, 2], [1, 2, 3, 1, 2, 3]]
    assert not rollout["done"].any()


def test_break_when_all_done_masks_done_rows() -> None:
    rollout = CountingRowsEnv(2, 4).rollout(10, break_when_all_done=True)
    assert rollout["next", "count"].squeeze(-1).tolist() == [[1, 2, 2, 2], [1, 2, 3, 4]]
    assert rollout["next", "reward"].squeeze(-1).tolist() == [[1, 1, 0, 0], [1, 1, 1, 1]], "masked rows get no reward"
    assert rollout["next", "done"][:, -1].all()


def test_rollouts_use_policies_actions_and_callbacks() -> None:
    env, seen = CountingRowsEnv(9), []
    env.rollout(2, lambda td: td.set("action", torch.full((1, 2), 0.5)), lambda e, td: seen.append((e, td.clone())))
    assert [td["action"].flatten().tolist() for _, td in seen] == [[0.5, 0.5]] * 2
    assert [td["next", "count"].item() for e, td in seen if e is env] == [1, 2]
    given = torch.rand(1, 3, 2)
    assert env.rollout(9, actions=given)["action"].equal(given), "the rollout ends with the actions"
    in_place = env.rollout(1, policy=lambda td: [td.set("action", torch.ones(1, 2))].clear())
    assert in_place["action"].eq(1).all()
    with pytest.raises(TypeError, match="the policy to return a TensorDict"):
        env.rollout(1, policy=lambda td: [torch.ones(1, 2)])


def test_rollouts_start_from_a_tensordict() -> None:
    env = CountingRowsEnv(9)
    data = env.step_mdp(env.rand_step(env.reset()))
    assert env.rollout(2, tensordict=data, auto_reset=False)["count"].flatten().tolist() == [1, 2]
    assert env.rollout(1, tensordict=TensorDict({"extra": torch.ones(1)}, [1]))["extra"].item() == 1
    with pytest.raises(ValueError, match="auto_reset=False"):
        env.rollout(1, auto_reset=False)


BATCHES: dict[str, Callable[[], EnvBase]] = {
    "single": lambda: CountingRowsEnv(2, 9),
    "transformed": lambda: TransformedEnv(CountingRowsEnv(2, 9), StepCounter()),
    "serial": lambda: SerialEnv(2, [partial(CountingRowsEnv, 2), partial(CountingRowsEnv, 9)]),
    "parallel": lambda: TransformedEnv(
        ParallelEnv(2, [partial(CountingRowsEnv, 2), partial(CountingRowsEnv, 9)]), StepCounter()
    ),
}


@pytest.mark.parametrize("kind", BATCHES)
@pytest.mark.parametrize(
    "stop", [{"break_when_any_done": False}, {"break_when_any_done": True}, {"break_when_all_done": True}]
)
def test_continued_rollouts_reset_done_rows(kind: str, stop: Any) -> None:
    with BATCHES[kind]() as env:
        last = env.step_mdp(env.rollout(2)[..., -1])
        assert last["done"].flatten().tolist() == [True, False]
        rollout = env.rollout(2, auto_reset=False, tensordict=last, **stop)
    assert rollout["count"].flatten().tolist() == [0, 1, 2, 3]
    assert rollout["next", "count"].flatten().tolist() == [1, 2, 3, 4]
    assert not rollout["done"].any()
    assert last["done"].flatten().tolist() == [True, False], "the caller's own stays what it was"
    assert last["count"].flatten().tolist() == [2, 2]


QUICK: dict[str, Callable[[], EnvBase]] = {
    "gym": lambda: GymEnv("CartPole-v1", max_episode_steps=3),
    "vector": lambda: GymEnv("CartPole-v1", num_envs=2, max_episode_steps=3),
    "native": lambda: NativeEnv("CartPole-v1", 2, max_episode_steps=3),
    "serial": lambda: SerialEnv(2, lambda: GymEnv("CartPole-v1", max_episode_steps=3)),
    "serial, transformed": lambda: SerialEnv(2, lambda: TransformedEnv(GymEnv("CartPole-v1", max_episode_steps=3))),
    "parallel": lambda: ParallelEnv(2, lambda: GymEnv("CartPole-v1", max_episode_steps=3)),
}


@pytest.mark.parametrize("kind", QUICK)
def test_rollouts_of_simulators_continue_each_other(kind: str) -> None:
    with QUICK[kind]() as env:
        env.set_seed(0)
        chunks = [env.rollout(3, break_when_any_done=False)]
        for _ in range(2):
            root = env.step_mdp(chunks[-1][..., -1])
            chunks.append(env.rollout(2, auto_reset=False, tensordict=root, break_when_any_done=False))
    done = torch.cat([chunk["next", "done"] for chunk in chunks], -2)
    assert done.squeeze(-1).reshape(-1, 7)[0].tolist() == [False, False, True, False, False, True, False]
    assert not any(bool(chunk["done"].any()) for chunk in chunks)


def test_rollouts_continue_from_a_tensordict_without_flags() -> None:
    env = CountingRowsEnv(9)
    root = env.reset().exclude("done", "terminated")
    assert env.rollout(2, auto_reset=False, tensordict=root)["next", "count"].flatten().tolist() == [1, 2]
    with pytest.raises(SpaceError, match=r"batch size \(1,\)"):
        env.rollout(2, auto_reset=False, tensordict=CountingRowsEnv(9, 9).reset())


@pytest.mark.parametrize("kind", BATCHES)
@pytest.mark.parametrize("trusted", [False, True])
@pytest.mark.parametrize("stop", [True, False])
def test_policy_outputs_are_merged_into_the_root(kind: str, trusted: bool, stop: bool) -> None:
    def act(td: TensorDictBase) -> TensorDictBase:
        return TensorDict({"action": torch.ones(2, *td["count"].shape[1:-1], 2), "said": td["count"] * 1}, td.shape)

    with BATCHES[kind]() as env:
        rollout = env.rollout(2, act, trust_policy=trusted, break_when_any_done=stop)
    assert rollout["count"].flatten().tolist() == [0, 1, 0, 1]
    assert rollout["said"].equal(rollout["count"])
    assert not rollout["done"].any()


def test_invalid_rollout_arguments_raise() -> None:
    env = CountingRowsEnv(3)
    with pytest.raises(TypeError, match="got both"):
        env.rollout(3, break_when_all_done=True, break_when_any_done=True)
    with pytest.raises(ValueError, match="1 or more, got 0"):
        env.rollout(0)
    with pytest.raises(ValueError, match="got none"):
        env.rollout(3, actions=[])
    with pytest.raises(SpaceError, match="add_truncated_keys"):
        env.rollout(3, set_truncated=True)


def test_the_last_step_can_be_marked_truncated() -> None:
    rollout = CountingRowsEnv(3, 9).add_truncated_keys().rollout(2, set_truncated=True)
    assert rollout["next", "truncated"].squeeze(-1).tolist() == [[False, True]] * 2
    assert rollout["next", "done"][:, -1].all()
    assert not rollout["next", "terminated"].any()


def test_rollouts_write_into_out() -> None:
    env = CountingRowsEnv(9)
    out = env.rollout(3).zero_()
    assert env.rollout(3, out=out) is out
    assert out["next", "count"].flatten().tolist() == [1, 2, 3]


def test_step_and_maybe_reset_gives_the_root_of_the_next_step() -> None:
    env = CountingRowsEnv(1, 3)
    step_td, root = env.step_and_maybe_reset(env.rand_action(env.reset()))
    assert step_td["next", "count"].flatten().tolist() == [1, 1]
    assert root["count"].flatten().tolist() == [0, 1]
    assert not root["done"].any()
    assert sorted(root.keys()) == ["count", "done", "terminated"]


def test_set_seed_returns_the_next_seed() -> None:
    env = CountingRowsEnv(2)
    assert env.set_seed(0) == next_seed(0) == 795726461
    assert env.set_seed(5, static_seed=True) == 5
    assert env.seeds == [0, 5]
    chain = [0]
    for _ in range(1000):
        chain.append(next_seed(chain[-1]))
    assert len(set(chain)) == len(chain)


def test_self_resetting_simulators_roll_out() -> None:
    class Auto(CountingRowsEnv):
        def _step(self, tensordict: Any) -> Any:
            next_td = super()._step(tensordict)
            ended = next_td["done"]
            return next_td.set("count", next_td["count"] * ~ended)

    for replace, last in ((True, -1), (False, 0)):
        env = Auto(2, 3, auto_reset=True, auto_reset_replace=replace)
        rollout = env.rollout(5, break_when_any_done=False)
        assert env.resets == 1
        assert rollout["count"].squeeze(-1).tolist() == [[0, 1, 0, 1, 0], [0, 1, 2, 0, 1]]
        assert rollout["next", "count"].squeeze(-1)[0].tolist() == [1, last, 1, last, 1]
        assert not rollout["done"].any()


def test_dynamic_shapes_are_stacked_lazily() -> None:
    class Growing(CountingRowsEnv):
        def __init__(self) -> None:
            super().__init__(9)
            self.observation_spec = Composite(seen=Unbounded((1, -1, 2)), shape=[1])

        def _look(self, data: Any) -> Any:
            return data.exclude("count").set("seen", torch.zeros(1, int(self.count) + 1, 2))

        def _reset(self, tensordict: Any = None, **kwargs: Any) -> Any:
            return self._look(super()._reset(tensordict))

        def _step(self, tensordict: Any) -> Any:
            return self._look(super()._step(tensordict))

    env = Growing()
    rollout = env.rollout(3)
    assert [step["next", "seen"].shape[1] for step in rollout.unbind(1)] == [2, 3, 4]
    assert rollout.names == [None, "time"]
    check_env_specs(env)
    with pytest.raises(SpaceError):
        env.rollout(3, return_contiguous=True)


def test_specs_start_with_the_batch_size_and_are_locked() -> None:
    env = CountingRowsEnv(1, 2)
    with pytest.raises(SpaceError, match=r"\(2,\).*\(3, 2\) at 'action'"):
        env.action_spec = Bounded(-1, 1, (3, 2))
    with pytest.raises(RuntimeError, match="locked"):
        env.observation_spec["more"] = Unbounded((2, 1))
    env.action_spec_unbatched = Categorical(4)
    assert env.action_spec.shape == (2,)
    assert env.action_spec_unbatched == Categorical(4)
    assert env.set_spec_lock_(False).observation_spec.set("more", Unbounded((2, 1))) is not None
    assert env.observation_keys == ["count", "more"]
    with pytest.raises(TypeError, match="to be a Composite"):
        env.state_spec = Unbounded((2, 1))


def test_setting_a_spec_sets_its_keys() -> None:
    env = GroupsEnv(("a", "b"), root=False)
    assert env.action_keys == [("a", "action"), ("b", "action")]
    assert env.done_keys_groups == [[("a", "done"), ("a", "terminated")], [("b", "done"), ("b", "terminated")]]
    assert env.reset_keys == [("a", "_reset"), ("b", "_reset")]
    with pytest.raises(KeyError, match="action_keys"):
        _ = env.action_key
    env.action_spec = Unbounded((1,))
    assert env.action_key == "action"
    assert env.action_spec == Unbounded((1,))
    assert env.input_spec["full_action_spec", "action"] == Unbounded((1,))


def test_nested_groups_are_rolled_out() -> None:
    rollout = GroupsEnv(("a", "b"), root=True).rollout(3)
    assert rollout["next", "a", "reward"].shape == (3, 2, 1)
    assert ("a", "reward") not in rollout.keys(include_nested=True)
    assert rollout["a", "val"][:, 0, 0].tolist() == [0, 1, 1]


def test_check_env_specs_names_all_differences() -> None:
    class Wrong(CountingRowsEnv):
        def _step(self, tensordict: Any) -> Any:
            return super()._step(tensordict).set("count", torch.zeros(1, 2)).set("extra", torch.zeros(1))

    check_env_specs(CountingRowsEnv(2, 3))
    check_env_specs(GroupsEnv(("a",), root=True), break_when_any_done="both")
    with pytest.raises(SpaceError) as exc_info:
        check_env_specs(Wrong(5))
    text = str(exc_info.value)
    assert "'count' (observation_spec): expected dtype torch.int64, found torch.float32" in text
    assert "'extra': returned, but not in observation_spec" in text


def test_check_env_specs_preserves_the_torch_rng() -> None:
    env = CountingRowsEnv(2)
    state = torch.random.get_rng_state()
    check_env_specs(env)
    assert state.equal(torch.random.get_rng_state())


def test_fake_tensordict_looks_like_a_step() -> None:
    env = CountingRowsEnv(1, 3)
    fake, real = env.fake_tensordict(), env.rand_step(env.reset())
    assert sorted(fake.keys(True, True), key=str) == sorted(real.keys(True, True), key=str)
    assert all(fake[key].shape == real[key].shape for key in real.keys(True, True))


def test_closed_environments_raise_until_they_are_reset() -> None:
    with CountingRowsEnv(2) as env:
        root = env.reset()
    env.close()
    for call in (env.rand_step, env.step_and_maybe_reset, lambda td: env.rollout(2, auto_reset=False, tensordict=td)):
        with pytest.raises(ClosedError, match=r"Call reset\(\) to open it"):
            call(root.copy())
    with pytest.raises(ClosedError):
        env.close(raise_if_closed=True)
    with pytest.raises(SpaceError):  # after a wrong argument it is open
        env.reset(TensorDict(batch_size=[5]))
    assert not env.is_closed
    env.close()
    assert env.rollout(2).shape == (1, 2)


def test_wrong_batch_sizes_raise() -> None:
    with pytest.raises(SpaceError, match=r"\(2,\), got one of \(3,\)"):
        CountingRowsEnv(1, 2).step(TensorDict({"action": torch.zeros(3, 2)}, [3]))


def test_environments_can_be_pickled() -> None:
    env = pickle.loads(pickle.dumps(CountingRowsEnv(2, 3, auto_reset=True)))
    assert env.rollout(2)["next", "count"].shape == (2, 2, 1)


def test_run_type_checks_rejects_other_dtypes() -> None:
    class Wrong(CountingRowsEnv):
        def _step(self, tensordict: Any) -> Any:
            return super()._step(tensordict).set("count", torch.zeros(1, 1))

    Wrong(5).rand_step()
    with pytest.raises(Exception, match="count"):
        Wrong(5, run_type_checks=True).rand_step()


def test_results_that_are_not_tensordicts_raise() -> None:
    class Wrong(EnvBase):
        def _reset(self, tensordict: Any = None, **kwargs: Any) -> Any:
            return {"a": 1}

        def _step(self, tensordict: Any) -> Any:
            return None

    with pytest.raises(TypeError, match="_reset to return a TensorDict"):
        Wrong().reset()
    with pytest.raises(TypeError, match="_step to return a TensorDict"):
        Wrong().step(TensorDict())


@pytest.mark.parametrize("partial", [True, False])
def test_policy_entries_below_next_are_kept(partial: bool) -> None:
    def remembers(td: TensorDictBase) -> TensorDictBase:
        memory = td.get("memory", torch.zeros(2, 1))
        td = td.set("memory", memory).set(("next", "memory"), memory + 1)
        return env.rand_action(td.set("_step", torch.ones(2, dtype=torch.bool)) if partial else td)

    env = CountingRowsEnv(9, 9)
    rollout = env.rollout(4, remembers)
    assert rollout["next", "memory"][0].squeeze(-1).tolist() == [1, 2, 3, 4]
    assert rollout["next", "count"][0].squeeze(-1).tolist() == [1, 2, 3, 4]


@pytest.mark.parametrize("source", ["environment", "policy", "reader"])
def test_unspecified_entries_stay_below_next(source: str) -> None:
    class EnvWithExtraEntries(CountingRowsEnv):
        def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
            return super()._step(tensordict).set("extra", torch.ones(2, 1)).set(("deep", "extra"), torch.ones(2, 1))

    def policy_with_extra_entries(td: TensorDictBase) -> TensorDictBase:
        return env.rand_action(td.set(("next", "extra"), torch.ones(*td.batch_size, 1)))

    made: dict[str, Any] = {"environment": lambda: EnvWithExtraEntries(9, 9), "policy": lambda: CountingRowsEnv(9, 9)}
    env = made[source]() if source in made else GymEnv("Pendulum-v1")
    if source == "reader":
        env.set_info_dict_reader(lambda info, td: td.set("extra", torch.ones(1)) if "reward" in td else td)
    rollout = env.rollout(4, policy_with_extra_entries if source == "policy" else None)
    assert "extra" in rollout["next"]
    assert "extra" not in rollout
    assert "deep" not in rollout


@pytest.mark.parametrize("wrong", [3, {"action": torch.zeros(1)}])
def test_inputs_that_are_not_tensordicts_raise(wrong: Any) -> None:
    env = CountingRowsEnv(3)
    for call in (env.reset, env.step, env.step_and_maybe_reset):
        with pytest.raises(SpaceError, match=r"Expected a TensorDict of batch size \(1,\), got .*"):
            call(wrong)
