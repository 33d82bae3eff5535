"""`EnvBase`: resets, steps, rollouts, seeds, and what is completed of what a subclass returns."""

import pickle
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from tensordict import TensorDict, TensorDictBase

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
from vecrl.envs.base import next_seed
from vecrl.errors import ClosedError, SpaceError
from vecrl.specs import Bounded, Categorical, Composite, Unbounded

from .counting import Counting, Groups


def test_a_reset_gives_observations_and_flags_and_no_reward() -> None:
    first = Counting(2, 3).reset()
    assert sorted(first.keys()) == ["count", "done", "terminated"]
    assert first.batch_size == (2,)
    assert not first["done"].any()


def test_a_step_writes_next_into_what_it_was_given() -> None:
    env = Counting(1, 3)
    data = env.rand_action(env.reset())
    stepped = env.step(data)
    assert stepped is data
    assert sorted(stepped["next"].keys()) == ["count", "done", "reward", "terminated"]
    assert stepped["next", "done"].squeeze(-1).tolist() == [True, False]
    assert stepped["next", "terminated"].equal(stepped["next", "done"]), "a lone done counts as terminated"


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
def test_flags_complete_each_other(given: dict[str, bool], done: bool, terminated: bool) -> None:
    class Flags(Counting):
        def _step(self, tensordict: Any) -> Any:
            flags = {name: torch.full((1,), value) for name, value in given.items()}
            return TensorDict({"count": self.count, "reward": torch.ones(1), **flags}, self.batch_size)

    following = Flags(3).add_truncated_keys().rand_step()["next"]
    assert {name: following[name].shape for name in ("done", "terminated", "truncated", "reward")} == dict.fromkeys(
        ("done", "terminated", "truncated", "reward"), (1, 1)
    )
    assert (following["done"].item(), following["terminated"].item()) == (done, terminated)


def test_a_reward_that_is_missing_is_told() -> None:
    class Unpaid(Counting):
        def _step(self, tensordict: Any) -> Any:
            return super()._step(tensordict).exclude("reward")

    with pytest.raises(SpaceError, match="to return 'reward'"):
        Unpaid(2).rand_step()


def test_a_rollout_ends_with_the_first_row_that_is_done() -> None:
    played = Counting(2, 3).rollout(10)
    assert played.shape == (2, 2)
    assert played.names == [None, "time"]
    assert played["next", "done"].squeeze(-1).tolist() == [[False, True], [False, False]]


def test_a_rollout_goes_on_past_ends() -> None:
    played = Counting(2, 3).rollout(6, break_when_any_done=False)
    assert played["count"].squeeze(-1).tolist() == [[0, 1, 0, 1, 0, 1], [0, 1, 2, 0, 1, 2]]
    assert played["next", "count"].squeeze(-1).tolist() == [[1, 2, 1, 2, 1, 2], [1, 2, 3, 1, 2, 3]]
    assert not played["done"].any()


def test_a_rollout_leaves_rows_that_are_done_until_all_are() -> None:
    played = Counting(2, 4).rollout(10, break_when_all_done=True)
    assert played["next", "count"].squeeze(-1).tolist() == [[1, 2, 2, 2], [1, 2, 3, 4]]
    assert played["next", "reward"].squeeze(-1).tolist() == [[1, 1, 0, 0], [1, 1, 1, 1]], "who stands earns nothing"
    assert played["next", "done"][:, -1].all()


def test_policies_actions_and_callbacks() -> None:
    env, seen = Counting(9), []
    env.rollout(2, lambda td: td.set("action", torch.full((1, 2), 0.5)), lambda e, td: seen.append((e, td.clone())))
    assert [td["action"].flatten().tolist() for _, td in seen] == [[0.5, 0.5]] * 2
    assert [td["next", "count"].item() for e, td in seen if e is env] == [1, 2]
    given = torch.rand(1, 3, 2)
    assert env.rollout(9, actions=given)["action"].equal(given), "the rollout ends with the actions"
    in_place = env.rollout(1, policy=lambda td: [td.set("action", torch.ones(1, 2))].clear())
    assert in_place["action"].eq(1).all()
    with pytest.raises(TypeError, match="the policy to return a TensorDict"):
        env.rollout(1, policy=lambda td: torch.ones(1, 2))


def test_a_rollout_goes_on_from_a_tensordict() -> None:
    env = Counting(9)
    data = env.step_mdp(env.rand_step(env.reset()))
    assert env.rollout(2, tensordict=data, auto_reset=False)["count"].flatten().tolist() == [1, 2]
    assert env.rollout(1, tensordict=TensorDict({"extra": torch.ones(1)}, [1]))["extra"].item() == 1
    with pytest.raises(ValueError, match="auto_reset=False"):
        env.rollout(1, auto_reset=False)


BATCHES: dict[str, Callable[[], EnvBase]] = {
    "single": lambda: Counting(2, 9),
    "transformed": lambda: TransformedEnv(Counting(2, 9), StepCounter()),
    "serial": lambda: SerialEnv(2, [partial(Counting, 2), partial(Counting, 9)]),
    "parallel": lambda: TransformedEnv(ParallelEnv(2, [partial(Counting, 2), partial(Counting, 9)]), StepCounter()),
}


@pytest.mark.parametrize("kind", BATCHES)
@pytest.mark.parametrize(
    "stop", [{"break_when_any_done": False}, {"break_when_any_done": True}, {"break_when_all_done": True}]
)
def test_a_rollout_that_goes_on_resets_the_rows_that_are_done(kind: str, stop: Any) -> None:
    with BATCHES[kind]() as env:
        last = env.step_mdp(env.rollout(2)[..., -1])
        assert last["done"].flatten().tolist() == [True, False]
        played = env.rollout(2, auto_reset=False, tensordict=last, **stop)
    assert played["count"].flatten().tolist() == [0, 1, 2, 3]
    assert played["next", "count"].flatten().tolist() == [1, 2, 3, 4]
    assert not played["done"].any()
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
def test_rollouts_of_simulators_go_on_behind_one_another(kind: str) -> None:
    with QUICK[kind]() as env:
        env.set_seed(0)
        chunks = [env.rollout(3, break_when_any_done=False)]
        for _ in range(2):
            root = env.step_mdp(chunks[-1][..., -1])
            chunks.append(env.rollout(2, auto_reset=False, tensordict=root, break_when_any_done=False))
    done = torch.cat([chunk["next", "done"] for chunk in chunks], -2)
    assert done.squeeze(-1).reshape(-1, 7)[0].tolist() == [False, False, True, False, False, True, False]
    assert not any(bool(chunk["done"].any()) for chunk in chunks)


def test_a_rollout_goes_on_from_a_tensordict_without_flags() -> None:
    env = Counting(9)
    root = env.reset().exclude("done", "terminated")
    assert env.rollout(2, auto_reset=False, tensordict=root)["next", "count"].flatten().tolist() == [1, 2]
    with pytest.raises(SpaceError, match=r"batch size \(1,\)"):
        env.rollout(2, auto_reset=False, tensordict=Counting(9, 9).reset())


@pytest.mark.parametrize("kind", BATCHES)
@pytest.mark.parametrize("trusted", [False, True])
@pytest.mark.parametrize("stop", [True, False])
def test_what_a_policy_returns_is_merged_into_the_root(kind: str, trusted: bool, stop: bool) -> None:
    def act(td: TensorDictBase) -> TensorDictBase:
        return TensorDict({"action": torch.ones(2, *td["count"].shape[1:-1], 2), "said": td["count"] * 1}, td.shape)

    with BATCHES[kind]() as env:
        played = env.rollout(2, act, trust_policy=trusted, break_when_any_done=stop)
    assert played["count"].flatten().tolist() == [0, 1, 0, 1]
    assert played["said"].equal(played["count"])
    assert not played["done"].any()


def test_arguments_of_a_rollout_that_make_no_sense() -> None:
    env = Counting(3)
    with pytest.raises(TypeError, match="contradict"):
        env.rollout(3, break_when_all_done=True, break_when_any_done=True)
    with pytest.raises(ValueError, match="1 or more, but 0"):
        env.rollout(0)
    with pytest.raises(ValueError, match="there were none"):
        env.rollout(3, actions=[])
    with pytest.raises(SpaceError, match="add_truncated_keys"):
        env.rollout(3, set_truncated=True)


def test_the_last_step_can_be_marked_truncated() -> None:
    played = Counting(3, 9).add_truncated_keys().rollout(2, set_truncated=True)
    assert played["next", "truncated"].squeeze(-1).tolist() == [[False, True]] * 2
    assert played["next", "done"][:, -1].all()
    assert not played["next", "terminated"].any()


def test_a_rollout_into_memory_at_hand() -> None:
    env = Counting(9)
    out = env.rollout(3).zero_()
    assert env.rollout(3, out=out) is out
    assert out["next", "count"].flatten().tolist() == [1, 2, 3]


def test_step_and_maybe_reset_gives_the_root_of_the_next_step() -> None:
    env = Counting(1, 3)
    stepped, root = env.step_and_maybe_reset(env.rand_action(env.reset()))
    assert stepped["next", "count"].flatten().tolist() == [1, 1]
    assert root["count"].flatten().tolist() == [0, 1]
    assert not root["done"].any()
    assert sorted(root.keys()) == ["count", "done", "terminated"]


def test_seeds_follow_one_another() -> None:
    env = Counting(2)
    assert env.set_seed(0) == next_seed(0) == 795726461
    assert env.set_seed(5, static_seed=True) == 5
    assert env.seeds == [0, 5]
    chain = [0]
    for _ in range(1000):
        chain.append(next_seed(chain[-1]))
    assert len(set(chain)) == len(chain)


def test_simulators_that_begin_anew_by_themselves() -> None:
    class Auto(Counting):
        def _step(self, tensordict: Any) -> Any:
            following = super()._step(tensordict)
            ended = following["done"]
            return following.set("count", following["count"] * ~ended)

    for replace, last in ((True, 0), (False, 0)):
        env = Auto(2, 3, auto_reset=True, auto_reset_replace=replace)
        played = env.rollout(5, break_when_any_done=False)
        assert env.resets == 1
        assert played["count"].squeeze(-1).tolist() == [[0, 1, 0, 1, 0], [0, 1, 2, 0, 1]]
        assert played["next", "count"].squeeze(-1)[0].tolist() == [1, last, 1, last, 1]
        assert not played["done"].any()


def test_dynamic_shapes_are_stacked_lazily() -> None:
    class Growing(Counting):
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
    played = env.rollout(3)
    assert [step["next", "seen"].shape[1] for step in played.unbind(1)] == [2, 3, 4]
    assert played.names == [None, "time"]
    check_env_specs(env)
    with pytest.raises(SpaceError):
        env.rollout(3, return_contiguous=True)


def test_specs_begin_with_the_batch_size_and_are_locked() -> None:
    env = Counting(1, 2)
    with pytest.raises(SpaceError, match=r"\(2,\).*'action'.*\(3, 2\)"):
        env.action_spec = Bounded(-1, 1, (3, 2))
    with pytest.raises(RuntimeError, match="locked"):
        env.observation_spec["more"] = Unbounded((2, 1))
    env.action_spec_unbatched = Categorical(4)
    assert env.action_spec.shape == (2,)
    assert env.action_spec_unbatched == Categorical(4)
    assert env.set_spec_lock_(False).observation_spec.set("more", Unbounded((2, 1))) is not None
    assert env.observation_keys == ["count", "more"]
    with pytest.raises(TypeError, match="to be a Composite"):
        env.observation_spec = Unbounded((2, 1))


def test_setting_a_spec_sets_its_keys() -> None:
    env = Groups(("a", "b"), root=False)
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
    played = Groups(("a", "b"), root=True).rollout(3)
    assert played["next", "a", "reward"].shape == (3, 2, 1)
    assert ("a", "reward") not in played.keys(include_nested=True)
    assert played["a", "val"][:, 0, 0].tolist() == [0, 1, 1]


def test_check_env_specs_names_all_that_differs() -> None:
    class Wrong(Counting):
        def _step(self, tensordict: Any) -> Any:
            return super()._step(tensordict).set("count", torch.zeros(1, 2)).set("extra", torch.zeros(1))

    check_env_specs(Counting(2, 3))
    check_env_specs(Groups(("a",), root=True), break_when_any_done="both")
    with pytest.raises(SpaceError) as caught:
        check_env_specs(Wrong(5))
    text = str(caught.value)
    assert "'count' (observation_spec): expected dtype torch.int64, found torch.float32" in text
    assert "'extra': not in observation_spec, but came" in text


def test_check_env_specs_leaves_torchs_randomness_alone() -> None:
    env = Counting(2)
    state = torch.random.get_rng_state()
    check_env_specs(env)
    assert state.equal(torch.random.get_rng_state())


def test_fake_tensordict_looks_like_a_step() -> None:
    env = Counting(1, 3)
    fake, real = env.fake_tensordict(), env.rand_step(env.reset())
    assert sorted(fake.keys(True, True), key=str) == sorted(real.keys(True, True), key=str)
    assert all(fake[key].shape == real[key].shape for key in real.keys(True, True))


def test_closed_means_closed() -> None:
    with Counting(2) as env:
        env.reset()
    env.close()
    with pytest.raises(ClosedError):
        env.reset()
    with pytest.raises(ClosedError):
        env.close(raise_if_closed=True)


def test_another_batch_size_is_told() -> None:
    with pytest.raises(SpaceError, match=r"\(2,\), but one of \(3,\)"):
        Counting(1, 2).step(TensorDict({"action": torch.zeros(3, 2)}, [3]))


def test_environments_can_be_pickled() -> None:
    env = pickle.loads(pickle.dumps(Counting(2, 3, auto_reset=True)))
    assert env.rollout(2)["next", "count"].shape == (2, 2, 1)


def test_run_type_checks() -> None:
    class Wrong(Counting):
        def _step(self, tensordict: Any) -> Any:
            return super()._step(tensordict).set("count", torch.zeros(1, 1))

    Wrong(5).rand_step()
    with pytest.raises(Exception, match="count"):
        Wrong(5, run_type_checks=True).rand_step()


def test_a_subclass_that_gives_no_tensordict() -> None:
    class Wrong(EnvBase):
        def _reset(self, tensordict: Any = None, **kwargs: Any) -> Any:
            return {"a": 1}

    with pytest.raises(TypeError, match="_reset to return a TensorDict"):
        Wrong().reset()
    with pytest.raises(NotImplementedError, match="has no _step"):
        Wrong().step(TensorDict())


@pytest.mark.parametrize("partial", [True, False])
def test_what_a_policy_says_of_the_next_step_stays(partial: bool) -> None:
    def remembers(td: TensorDictBase) -> TensorDictBase:
        memory = td.get("memory", torch.zeros(2, 1))
        td = td.set("memory", memory).set(("next", "memory"), memory + 1)
        return env.rand_action(td.set("_step", torch.ones(2, dtype=torch.bool)) if partial else td)

    env = Counting(9, 9)
    played = env.rollout(4, remembers)
    assert played["next", "memory"][0].squeeze(-1).tolist() == [1, 2, 3, 4]
    assert played["next", "count"][0].squeeze(-1).tolist() == [1, 2, 3, 4]


@pytest.mark.parametrize("who", ["environment", "policy", "reader"])
def test_what_no_spec_names_and_no_root_holds_stays_below_next(who: str) -> None:
    class Telling(Counting):
        def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
            return super()._step(tensordict).set("extra", torch.ones(2, 1)).set(("deep", "extra"), torch.ones(2, 1))

    def telling(td: TensorDictBase) -> TensorDictBase:
        return env.rand_action(td.set(("next", "extra"), torch.ones(*td.batch_size, 1)))

    made: dict[str, Any] = {"environment": lambda: Telling(9, 9), "policy": lambda: Counting(9, 9)}
    env = made[who]() if who in made else GymEnv("Pendulum-v1")
    if who == "reader":
        env.set_info_dict_reader(lambda info, td: td.set("extra", torch.ones(1)) if "reward" in td else td)
    played = env.rollout(4, telling if who == "policy" else None)
    assert "extra" in played["next"]
    assert "extra" not in played
    assert "deep" not in played


@pytest.mark.parametrize("wrong", [3, {"action": torch.zeros(1)}])
def test_what_is_no_tensordict_is_told(wrong: Any) -> None:
    env = Counting(3)
    for call in (env.reset, env.step, env.step_and_maybe_reset):
        with pytest.raises(SpaceError, match=r"Expected a TensorDict of batch size \(1,\), but .* came"):
            call(wrong)
