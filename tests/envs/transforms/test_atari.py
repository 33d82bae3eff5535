"""Transforms of Atari games, in the emulator that `ale-py` brings with its games."""

import itertools
from typing import Any

import gymnasium
import pytest
import torch

import vecrl.envs
from vecrl.envs import GymEnv, ParallelEnv, SerialEnv, check_env_specs
from vecrl.envs.transforms import (
    CatFrames,
    Compose,
    EndOfLifeTransform,
    GrayScale,
    NoopResetEnv,
    Resize,
    RewardSum,
    ToTensorImage,
    TransformedEnv,
)

pytestmark = [pytest.mark.torchrl, pytest.mark.filterwarnings("ignore")]


def make_breakout(library: Any = vecrl.envs) -> Any:
    import ale_py

    gymnasium.register_envs(ale_py)
    return library.GymEnv("ALE/Breakout-v5", frame_skip=4, repeat_action_probability=0.0)


def fire_and_wait(steps: int) -> torch.Tensor:
    """Returns one-hot actions that serve the ball at every eighth step, and do nothing in between."""
    return torch.nn.functional.one_hot((torch.arange(steps) % 8 == 0).long(), 4)


def play(library: Any, transform: Any, steps: int) -> Any:
    """Returns the marks and lives of a game with fixed actions, and whether it is over, in either library."""
    env = library.TransformedEnv(make_breakout(library), transform)
    env.set_seed(3)
    td, rows = env.reset(), []
    for action in fire_and_wait(steps):
        td = env.step(td.set("action", action))
        rows.append([int(td["next", key]) for key in ("lives", "end-of-life", "done")])
        if td["next", "done"]:
            break
        td = env.step_mdp(td)
    env.close()
    return rows


@pytest.mark.parametrize("name", ["ALE/Breakout-v5", "BreakoutNoFrameskip-v4"])
@pytest.mark.parametrize("options", [{}, {"frame_skip": 4}, {"frame_skip": 2, "from_pixels": True}])
def test_frames_are_those_of_torchrl(name: str, options: dict[str, Any]) -> None:
    """In both libraries, games skip the frames that `frame_skip` says, and none without it."""
    import ale_py
    import torchrl.envs

    gymnasium.register_envs(ale_py)
    results = []
    for library in (torchrl.envs, vecrl.envs):
        env = library.GymEnv(name, **options)
        env.set_seed(2)
        td, frames = env.reset(), []
        for action in fire_and_wait(40):
            td = env.step(td.set("action", action))
            frames.append(td["next", "pixels"].clone())
            td = env.step_mdp(td)
        results.append(torch.stack(frames))
        env.close()
    assert torch.equal(*results)
    with GymEnv(name, num_envs=2, **options) as env:
        env.set_seed(2)
        td = env.reset()
        for action in fire_and_wait(40):
            td = env.step(td.set("action", action.expand(2, 4)))
            last = td["next", "pixels"]
            td = env.step_mdp(td)
    assert torch.equal(last[0], results[0][-1])


def test_two_ways_to_skip_frames_raise() -> None:
    with pytest.raises(ValueError, match="Expected frame_skip or frameskip, got frame_skip=4"):
        GymEnv("ALE/Breakout-v5", frame_skip=4, frameskip=2)


def test_lost_lives_of_a_game_are_marked_as_in_torchrl() -> None:
    import torchrl.envs

    rows = play(vecrl.envs, EndOfLifeTransform(), 600)
    lives = [5, *(row[0] for row in rows)]
    assert lives[-1] == 0
    assert rows[-1][2] == 1
    marks = [int(after < before) for before, after in itertools.pairwise(lives)]
    assert [row[1] for row in rows] == marks
    assert rows == play(torchrl.envs, torchrl.envs.EndOfLifeTransform(), 600)


@pytest.mark.parametrize("batch", [SerialEnv, ParallelEnv])
def test_lives_of_games_in_a_batch(batch: Any) -> None:
    env = TransformedEnv(batch(2, make_breakout), EndOfLifeTransform())
    rollout = env.rollout(80, break_when_any_done=False)
    env.close()
    lost = rollout["next", "lives"] < rollout["lives"]
    assert lost.any()
    assert lost.equal(rollout["next", "end-of-life"].squeeze(-1))


def test_the_usual_preprocessing_of_a_game() -> None:
    env = make_breakout().append_transform(
        Compose(
            NoopResetEnv(5),
            EndOfLifeTransform(),
            ToTensorImage(),
            GrayScale(),
            Resize(84, 84),
            CatFrames(4, -3),
            RewardSum(),
        )
    )
    check_env_specs(env)
    rollout = env.rollout(20)
    assert rollout["next", "pixels"].shape == (20, 4, 84, 84)
    assert rollout["pixels"][1:, -1].equal(rollout["next", "pixels"][:-1, -1])
    assert isinstance(env.base_env, GymEnv)
