"""Serial, threads, processes and a loop over single environments: the same, bit for bit."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vecrl.envs import ParallelEnv, SerialEnv, check_env_specs
from vecrl.envs.batched.codecs import BareCodec, PathCodec

from .zoo import MAKERS, Loop, assert_same

WAYS: dict[str, Any] = {
    "serial": (SerialEnv, {}),
    "serial, one by one": (SerialEnv, {"envs_per_worker": 1}),
    "threads": (ParallelEnv, {"backend": "threads", "envs_per_worker": 2}),
    "processes": (ParallelEnv, {"envs_per_worker": 2}),
}


@pytest.fixture(params=list(WAYS))
def way(request: pytest.FixtureRequest) -> Any:
    kind, how = WAYS[request.param]
    return lambda kinds: kind(3, MAKERS[kinds], **how)


def _actions(env: Any, steps: int) -> Iterator[Any]:
    torch.manual_seed(7)
    return iter([env.full_action_spec.rand() for _ in range(steps)])


@pytest.mark.parametrize("kinds", list(MAKERS))
def test_batches_equal_loops(way: Any, kinds: str) -> None:
    loop = Loop(MAKERS[kinds])
    with way(kinds) as env:
        assert env.set_seed(3) == loop.set_seed(3)
        root, expected = env.reset(), loop.reset()
        assert_same(root, expected)
        for number, actions in enumerate(_actions(env, 12)):
            data = env.rand_action(root)
            for mine, other, action in zip(data.unbind(0), expected.unbind(0), actions.unbind(0), strict=True):
                mine.update(action)
                other.update(action)
            data = _with(root, actions)
            if number % 3 == 2:
                stepped, expected = env.step(data), loop.step(expected)
                assert_same(stepped, expected)
                root, expected = env.step_mdp(stepped), loop.step_mdp(expected)
                if bool(root["done"].any()):  # as they may be after a step alone
                    root, expected = env.maybe_reset(root), _maybe_reset(loop, expected)
            else:
                stepped, root = env.step_and_maybe_reset(data)
                theirs, expected = loop.step_and_maybe_reset(expected)
                assert_same(stepped, theirs)
            assert_same(root, expected)


def _with(root: Any, actions: Any) -> Any:
    rows = [row.copy().update(action) for row, action in zip(root.unbind(0), actions.unbind(0), strict=True)]
    return torch.stack(rows) if type(root).__name__ == "TensorDict" else type(root).lazy_stack(rows, 0)


def _maybe_reset(loop: Loop, data: Any) -> Any:
    rows = [env.maybe_reset(row) for env, row in zip(loop.envs, data.unbind(0), strict=True)]
    return type(data).lazy_stack(rows, 0)


@pytest.mark.parametrize("kinds", list(MAKERS))
def test_specs_are_kept_to(kinds: str) -> None:
    with SerialEnv(3, MAKERS[kinds]) as env:
        check_env_specs(env, break_when_any_done="both")


def test_specs_are_kept_to_by_processes() -> None:
    for kinds in ("cartpole", "batches", "sizes"):
        with ParallelEnv(3, MAKERS[kinds], envs_per_worker=2) as env:
            check_env_specs(env, break_when_any_done="both")


masks = st.lists(st.booleans(), min_size=3, max_size=3)
rounds = st.lists(st.tuples(masks, masks), min_size=1, max_size=8)


@settings(max_examples=25)
@pytest.mark.parametrize("kinds", ["tally", "cartpole", "talking", "growing", "stateful"])
@given(rounds)
def test_partial_steps_and_resets_equal_loops(kinds: str, script: list[tuple[list[bool], list[bool]]]) -> None:
    with SerialEnv(3, MAKERS[kinds], envs_per_worker=2) as env:
        _partial(env, Loop(MAKERS[kinds]), script)


def test_partial_steps_and_resets_of_processes_equal_loops() -> None:
    script = [([True, False, True], [False, True, False]), ([True, True, True], [True, False, True])] * 3
    for kinds in ("tally", "cartpole", "classes"):
        with ParallelEnv(3, MAKERS[kinds], envs_per_worker=2) as env:
            _partial(env, Loop(MAKERS[kinds]), script)


def _partial(env: Any, loop: Loop, script: list[tuple[list[bool], list[bool]]]) -> None:
    env.set_seed(5)
    loop.set_seed(5)
    root, expected = env.reset(), loop.reset()
    for (stepping, resetting), actions in zip(script, _actions(env, len(script)), strict=True):
        data = _with(root, actions)
        expected = _with(expected, actions)
        if not all(stepping):
            data.set("_step", torch.tensor(stepping))
            expected.set("_step", torch.tensor(stepping))
        stepped, expected = env.step(data), loop.step(expected)
        assert_same(stepped, expected)
        root, expected = env.step_mdp(stepped), loop.step_mdp(expected)
        mask = torch.tensor(resetting).unsqueeze(-1) | root["done"]
        root, expected = env.reset(root.set("_reset", mask)), loop.reset(expected.set("_reset", mask))
        assert_same(root, expected)


@settings(max_examples=25)
@given(st.lists(st.lists(st.booleans(), min_size=6, max_size=6), min_size=1, max_size=6))
def test_masks_that_are_finer_than_environments(script: list[list[bool]]) -> None:
    with SerialEnv(3, MAKERS["batches"]) as env:
        loop = Loop(MAKERS["batches"])
        root, expected = env.reset(), loop.reset()
        for flags, actions in zip(script, _actions(env, len(script)), strict=True):
            mask = torch.tensor(flags).reshape(3, 2)
            data, expected = _with(root, actions).set("_step", mask), _with(expected, actions).set("_step", mask)
            stepped, expected = env.step(data), loop.step(expected)
            assert_same(stepped, expected)
            root, expected = env.step_mdp(stepped), loop.step_mdp(expected)
            again = root["done"] | mask.unsqueeze(-1)
            root, expected = env.reset(root.set("_reset", again)), loop.reset(expected.set("_reset", again))
            assert_same(root, expected)


@pytest.mark.parametrize("kinds", ["tally", "cartpole"])
def test_rollouts_are_the_same_everywhere(kinds: str) -> None:
    played = []
    for kind, how in WAYS.values():
        with kind(3, MAKERS[kinds], **how) as env:
            env.set_seed(1)
            torch.manual_seed(1)
            played.append(env.rollout(50, break_when_any_done=False))
    for other in played[1:]:
        assert_same(other, played[0])


def test_a_rollout_equals_steps() -> None:
    with SerialEnv(3, MAKERS["cartpole"]) as env:
        env.set_seed(2)
        torch.manual_seed(2)
        played = env.rollout(40, break_when_any_done=False)
        env.set_seed(2)
        torch.manual_seed(2)
        root, steps = env.reset(), []
        for _ in range(40):
            stepped = env.step(env.rand_action(root))
            steps.append(stepped)
            root = env.maybe_reset(env.step_mdp(stepped))
        assert_same(played, torch.stack(steps, 1))


def test_bare_gymnasium_environments_give_what_their_wrappers_give() -> None:
    class Wrapped(MAKERS["cartpole"][0].func):  # a class that overrides `read_obs` is stepped as it is
        def read_obs(self, obs: Any) -> Any:
            return super().read_obs(obs)

    makers = [lambda: Wrapped("CartPole-v1", max_episode_steps=7)] * 3
    bare = [lambda: MAKERS["cartpole"][0].func("CartPole-v1", max_episode_steps=7)] * 3
    with SerialEnv(3, makers) as slow, SerialEnv(3, bare) as quick:
        assert [type(env._codec) for env in (slow, quick)] == [PathCodec, BareCodec]
        for env in (slow, quick):
            env.set_seed(11)
        actions = torch.stack([slow.action_spec.rand() for _ in range(60)], 1)
        ours, theirs = (env.rollout(60, actions=actions, break_when_any_done=False) for env in (quick, slow))
        assert_same(ours, theirs)
        assert ours["next", "truncated"].any()
        assert ours["next", "terminated"].any() or ours["next", "done"].sum() > 3


@pytest.mark.parametrize("kinds", ["tally", "cartpole", "sizes"])
def test_what_began_anew_comes_with_the_step(kinds: str) -> None:
    with SerialEnv(3, MAKERS[kinds]) as env:
        env.set_seed(0)
        root = env.reset()
        for _ in range(40):
            following, renewed = env._step_and_renew(env.rand_action(root))
            done = following["done"].flatten().tolist()
            assert (renewed is not None) == any(done)
            if renewed is not None:
                assert not renewed["done"].any()
                assert "reward" not in renewed.keys()  # noqa: SIM118
                break
            root = following
        assert renewed is not None
        rows = zip(done, following.unbind(0), renewed.unbind(0), strict=True)
        look = "observation" if kinds == "cartpole" else "seen"
        assert [not before[look].equal(after[look]) for _, before, after in rows] == done
