"""Environments with another batch size."""

from functools import partial
from typing import Any

import pytest
import torch
from tensordict import TensorDict, TensorDictBase

from vecrl.envs import PendulumEnv, SerialEnv, TicTacToeEnv, check_env_specs
from vecrl.envs.transforms import BatchSizeTransform, Compose, ConditionalSkip, StepCounter, TransformedEnv
from vecrl.errors import SpaceError
from vecrl.testing import IndependentRowsEnv

RESHAPES: dict[str, Any] = {
    "reshape": lambda data: data.reshape(2, 3),
    "unflatten": lambda data: data.unflatten(0, (3, 2)).unsqueeze(0),
    "permute": lambda data: data.reshape(2, 3).permute(1, 0),
}
IDS = (0, 1, 2, 3, 4, 5)


def pair(name: str) -> tuple[Any, Any]:
    """Returns an environment in another batch size with counters before and after, and the plain one."""
    steps = (StepCounter(step_count_key="before"), BatchSizeTransform(reshape_fn=RESHAPES[name]), StepCounter())
    changed = TransformedEnv(IndependentRowsEnv(IDS), Compose(*steps))
    plain = Compose(StepCounter(step_count_key="before"), StepCounter())
    return changed, TransformedEnv(IndependentRowsEnv(IDS), plain)


def same(changed: TensorDictBase, plain: TensorDictBase, name: str) -> None:
    expected = RESHAPES[name](plain)
    assert changed.batch_size == expected.batch_size
    for key in ("observation", "before", "step_count", "done"):
        assert changed[key].equal(expected[key]), key


@pytest.mark.parametrize("name", RESHAPES)
def test_rows_are_those_of_the_environment(name: str) -> None:
    changed, plain = pair(name)
    assert changed.batch_size == RESHAPES[name](torch.zeros(6)).shape
    check_env_specs(changed, break_when_any_done="both")
    random = torch.Generator().manual_seed(0)
    changed, plain = pair(name)
    root, plain_root = changed.reset(), plain.reset()
    for _ in range(20):
        action = plain.rand_action()
        mask = torch.rand(6, generator=random) < 0.5
        if mask[0]:
            plain_root = plain.reset(plain_root.set("_reset", mask.unsqueeze(-1)))
            root = changed.reset(root.set("_reset", RESHAPES[name](mask).unsqueeze(-1)))
        elif mask.any():
            plain_root = plain.step_mdp(plain.step(plain_root.update(action).set("_step", mask)))
            root = root.update(RESHAPES[name](action)).set("_step", RESHAPES[name](mask))
            root = changed.step_mdp(changed.step(root))
        same(root, plain_root, name)


@pytest.mark.parametrize("name", RESHAPES)
def test_rollouts_reset_the_rows_that_are_done(name: str) -> None:
    changed, plain = pair(name)
    actions = plain.rollout(12, break_when_any_done=False).select("action", "choice")
    root, plain_root = changed.reset(), pair(name)[1].reset()
    plain = pair(name)[1]
    plain_root = plain.reset()
    for step in range(12):
        action = actions[:, step]
        stepped, root = changed.step_and_maybe_reset(root.update(RESHAPES[name](action)))
        plain_stepped, plain_root = plain.step_and_maybe_reset(plain_root.update(action))
        same(stepped["next"], plain_stepped["next"], name)
        same(root, plain_root, name)


def test_skipped_rows_keep_their_places() -> None:
    for position in (0, 1):
        parts = [BatchSizeTransform(reshape_fn=RESHAPES["permute"])]
        parts.insert(position, ConditionalSkip(lambda td: td["choice"] == 0))
        env = TransformedEnv(IndependentRowsEnv(IDS), Compose(*parts))
        with_action = env.rand_action(env.reset())
        ticks = env.step(with_action)["next", "ticks"].squeeze(-1)
        assert ticks.equal((with_action["choice"] != 0).long())


def test_a_single_environment_and_one_in_a_batch() -> None:
    single = BatchSizeTransform(reshape_fn=lambda data: data.reshape(1, 1))
    env = TransformedEnv(IndependentRowsEnv(1), single)
    assert env.rollout(3).batch_size == (1, 1, 3)
    check_env_specs(env)

    def make(row: int) -> TransformedEnv:
        return TransformedEnv(IndependentRowsEnv(row), BatchSizeTransform(reshape_fn=lambda data: data.reshape(1)))

    check_env_specs(SerialEnv(2, [partial(make, 0), partial(make, 1)]))


def test_environments_of_any_batch_size_get_one() -> None:
    env = PendulumEnv(seed=0).append_transform(BatchSizeTransform(batch_size=[5]))
    check_env_specs(env)
    assert env.batch_size == (5,)
    assert env.action_spec.shape == (5, 1)
    assert len(env.reset()["th"].unique()) == 5
    assert env.rollout(3).shape == (5, 3)
    games = TicTacToeEnv().append_transform(BatchSizeTransform(batch_size=[2, 3]))
    check_env_specs(games)
    assert games.rollout(20, break_when_any_done=False).shape == (2, 3, 20)


@pytest.mark.parametrize("env_kwarg", [False, True])
def test_a_function_may_reset(env_kwarg: bool) -> None:
    def reset(request: Any, output: TensorDictBase, **kwargs: Any) -> TensorDictBase:
        assert output.batch_size == ()
        assert (kwargs["env"].batch_size == (4,)) if env_kwarg else not kwargs
        return output.expand(4).clone()

    transform = BatchSizeTransform(batch_size=[4], reset_func=reset, env_kwarg=env_kwarg)
    env = PendulumEnv().append_transform(transform)
    assert len(env.reset()["th"].unique()) == 1
    assert env.rollout(3).shape == (4, 3)


def test_stored_data() -> None:
    data = TensorDict({"x": torch.arange(6)}, [6])
    assert BatchSizeTransform(reshape_fn=RESHAPES["reshape"])(data)["x"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert BatchSizeTransform(batch_size=[6])(data).batch_size == (6,)


def test_errors() -> None:
    with pytest.raises(ValueError, match="got neither"):
        BatchSizeTransform()
    with pytest.raises(ValueError, match="got both"):
        BatchSizeTransform(batch_size=[2], reshape_fn=lambda data: data)
    with pytest.raises(SpaceError, match="accepts any batch size"):
        TransformedEnv(IndependentRowsEnv(IDS), BatchSizeTransform(batch_size=[5])).rollout(1)
    with pytest.raises(SpaceError, match="keep each of 6 rows"):
        TransformedEnv(IndependentRowsEnv(IDS), BatchSizeTransform(reshape_fn=lambda data: data[:2]))


def test_arguments() -> None:
    assert BatchSizeTransform(batch_size=4).batch_size == torch.Size([4])
    with pytest.raises(ValueError, match=r"sizes of 0 or more, got \[-1\]"):
        BatchSizeTransform(batch_size=[-1])
    for name in ("reshape_fn", "reset_func"):
        arguments: Any = {"reshape_fn": lambda data: data, name: 3}
        with pytest.raises(ValueError, match=f"{name} to be a function, got 3"):
            BatchSizeTransform(**arguments)
