"""Serial, thread and process batches equal a loop over single environments bit for bit."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fixtures.batch_reference import LoopReference, assert_same
from tests.fixtures.tensordict_envs import MAKERS

from vecrl.envs import ParallelEnv, SerialEnv, check_env_specs
from vecrl.envs.batched.codecs import GymCodec, TensorDictCodec

WAYS: dict[str, Any] = {
    "serial": (SerialEnv, {}),
    "serial, one by one": (SerialEnv, {"envs_per_worker": 1}),
    "threads": (ParallelEnv, {"backend": "threads", "envs_per_worker": 2}),
    "processes": (ParallelEnv, {"envs_per_worker": 2}),
}


@pytest.fixture(params=list(WAYS))
def way(request: pytest.FixtureRequest) -> Any:
    kind, options = WAYS[request.param]
    return lambda kinds: kind(3, MAKERS[kinds], **options)


def _actions(env: Any, steps: int) -> Iterator[Any]:
    torch.manual_seed(7)
    return iter([env.full_action_spec.rand() for _ in range(steps)])


@pytest.mark.parametrize("kinds", list(MAKERS))
def test_batches_equal_loops(way: Any, kinds: str) -> None:
    loop = LoopReference(MAKERS[kinds])
    with way(kinds) as env:
        assert env.set_seed(3) == loop.set_seed(3)
        root, expected = env.reset(), loop.reset()
        assert_same(root, expected)
        for number, actions in enumerate(_actions(env, 12)):
            data = env.rand_action(root)
            for row, expected_row, action in zip(data.unbind(0), expected.unbind(0), actions.unbind(0), strict=True):
                row.update(action)
                expected_row.update(action)
            data = _with(root, actions)
            if number % 3 == 2:
                step_td, expected = env.step(data), loop.step(expected)
                assert_same(step_td, expected)
                root, expected = env.step_mdp(step_td), loop.step_mdp(expected)
                if bool(root["done"].any()):  # flags as an independent step may leave them
                    root, expected = env.maybe_reset(root), _maybe_reset(loop, expected)
            else:
                step_td, root = env.step_and_maybe_reset(data)
                reference, expected = loop.step_and_maybe_reset(expected)
                assert_same(step_td, reference)
            assert_same(root, expected)


def _with(root: Any, actions: Any) -> Any:
    rows = [row.copy().update(action) for row, action in zip(root.unbind(0), actions.unbind(0), strict=True)]
    return torch.stack(rows) if type(root).__name__ == "TensorDict" else type(root).lazy_stack(rows, 0)


def _maybe_reset(loop: LoopReference, data: Any) -> Any:
    rows = [env.maybe_reset(row) for env, row in zip(loop.envs, data.unbind(0), strict=True)]
    return type(data).lazy_stack(rows, 0)


@pytest.mark.parametrize("kinds", list(MAKERS))
def test_outputs_match_the_specs(kinds: str) -> None:
    with SerialEnv(3, MAKERS[kinds]) as env:
        check_env_specs(env, break_when_any_done="both")


def test_outputs_of_processes_match_the_specs() -> None:
    for kinds in ("cartpole", "batches", "sizes"):
        with ParallelEnv(3, MAKERS[kinds], envs_per_worker=2) as env:
            check_env_specs(env, break_when_any_done="both")


masks = st.lists(st.booleans(), min_size=3, max_size=3)
rounds = st.lists(st.tuples(masks, masks), min_size=1, max_size=8)


@settings(max_examples=25)
@pytest.mark.parametrize("kinds", ["counting", "cartpole", "talking", "growing", "stateful"])
@given(rounds)
def test_partial_steps_and_resets_equal_loops(kinds: str, script: list[tuple[list[bool], list[bool]]]) -> None:
    with SerialEnv(3, MAKERS[kinds], envs_per_worker=2) as env:
        _partial(env, LoopReference(MAKERS[kinds]), script)


def test_partial_steps_and_resets_of_processes_equal_loops() -> None:
    script = [([True, False, True], [False, True, False]), ([True, True, True], [True, False, True])] * 3
    for kinds in ("counting", "cartpole", "classes"):
        with ParallelEnv(3, MAKERS[kinds], envs_per_worker=2) as env:
            _partial(env, LoopReference(MAKERS[kinds]), script)


def _partial(env: Any, loop: LoopReference, script: list[tuple[list[bool], list[bool]]]) -> None:
    env.set_seed(5)
    loop.set_seed(5)
    root, expected = env.reset(), loop.reset()
    for (stepping, resetting), actions in zip(script, _actions(env, len(script)), strict=True):
        data = _with(root, actions)
        expected = _with(expected, actions)
        if not all(stepping):
            data.set("_step", torch.tensor(stepping))
            expected.set("_step", torch.tensor(stepping))
        step_td, expected = env.step(data), loop.step(expected)
        assert_same(step_td, expected)
        root, expected = env.step_mdp(step_td), loop.step_mdp(expected)
        mask = torch.tensor(resetting).unsqueeze(-1) | root["done"]
        root, expected = env.reset(root.set("_reset", mask)), loop.reset(expected.set("_reset", mask))
        assert_same(root, expected)


@settings(max_examples=25)
@given(st.lists(st.lists(st.booleans(), min_size=6, max_size=6), min_size=1, max_size=6))
def test_masks_reach_batched_environments_within_the_batch(script: list[list[bool]]) -> None:
    with SerialEnv(3, MAKERS["batches"]) as env:
        loop = LoopReference(MAKERS["batches"])
        root, expected = env.reset(), loop.reset()
        for flags, actions in zip(script, _actions(env, len(script)), strict=True):
            mask = torch.tensor(flags).reshape(3, 2)
            data, expected = _with(root, actions).set("_step", mask), _with(expected, actions).set("_step", mask)
            step_td, expected = env.step(data), loop.step(expected)
            assert_same(step_td, expected)
            root, expected = env.step_mdp(step_td), loop.step_mdp(expected)
            repeated = root["done"] | mask.unsqueeze(-1)
            root, expected = env.reset(root.set("_reset", repeated)), loop.reset(expected.set("_reset", repeated))
            assert_same(root, expected)


@pytest.mark.parametrize("kinds", ["counting", "cartpole"])
def test_rollouts_are_equal_on_every_backend(kinds: str) -> None:
    rollout = []
    for kind, options in WAYS.values():
        with kind(3, MAKERS[kinds], **options) as env:
            env.set_seed(1)
            torch.manual_seed(1)
            rollout.append(env.rollout(50, break_when_any_done=False))
    for other in rollout[1:]:
        assert_same(other, rollout[0])


def test_rollouts_equal_single_steps() -> None:
    with SerialEnv(3, MAKERS["cartpole"]) as env:
        env.set_seed(2)
        torch.manual_seed(2)
        rollout = env.rollout(40, break_when_any_done=False)
        env.set_seed(2)
        torch.manual_seed(2)
        root, steps = env.reset(), []
        for _ in range(40):
            step_td = env.step(env.rand_action(root))
            steps.append(step_td)
            root = env.maybe_reset(env.step_mdp(step_td))
        assert_same(rollout, torch.stack(steps, 1))


def test_gym_codec_equals_tensordict_codec() -> None:
    class Wrapped(MAKERS["cartpole"][0].func):  # a class that overrides `read_obs` is stepped through its override
        def read_obs(self, obs: Any) -> Any:
            return super().read_obs(obs)

    makers = [lambda: Wrapped("CartPole-v1", max_episode_steps=7)] * 3
    bare = [lambda: MAKERS["cartpole"][0].func("CartPole-v1", max_episode_steps=7)] * 3
    with SerialEnv(3, makers) as slow, SerialEnv(3, bare) as quick:
        assert [type(env._codec) for env in (slow, quick)] == [TensorDictCodec, GymCodec]
        for env in (slow, quick):
            env.set_seed(11)
        actions = torch.stack([slow.action_spec.rand() for _ in range(60)], 1)
        actual, reference = (env.rollout(60, actions=actions, break_when_any_done=False) for env in (quick, slow))
        assert_same(actual, reference)
        assert actual["next", "truncated"].any()
        assert actual["next", "terminated"].any() or actual["next", "done"].sum() > 3


@pytest.mark.parametrize("kinds", ["counting", "cartpole", "sizes"])
def test_reset_rows_arrive_with_the_step(kinds: str) -> None:
    with SerialEnv(3, MAKERS[kinds]) as env:
        env.set_seed(0)
        root = env.reset()
        for _ in range(40):
            next_td, after_reset = env._step_and_reset_done(env.rand_action(root))
            done = next_td["done"].flatten().tolist()
            assert (after_reset is not None) == any(done)
            if after_reset is not None:
                assert not after_reset["done"].any()
                assert "reward" not in after_reset.keys()  # noqa: SIM118
                break
            root = next_td
        assert after_reset is not None
        rows = zip(done, next_td.unbind(0), after_reset.unbind(0), strict=True)
        look = "observation" if kinds == "cartpole" else "seen"
        assert [not before[look].equal(after[look]) for _, before, after in rows] == done
