"""`mujoco::` in the command line, and where it is mentioned for gymnasium's tasks."""

import logging

import gymnasium

from vecrl.policy.saved_policy import SavedPolicy
from vecrl.simulators import faster
from vecrl.simulators.faster import FASTER, faster_name
from vecrl.simulators.mujoco import names
from vecrl.vector import make_vector_env

SMALL = ["--popsize", 4, "--generations", 1, "--test-episodes", 1, "--no-video", "--episodes", 1, "--max-steps", 5]


def test_names_with_a_faster_one_are_those_of_the_simulator():
    assert {*FASTER.values()} == {f"mujoco::{name}" for name in names()}
    assert {*FASTER} < {*gymnasium.registry}


def test_make_vector_env_mentions_the_faster_name_once(caplog, monkeypatch):
    monkeypatch.setattr(faster, "_mentioned", set())
    with caplog.at_level(logging.WARNING, "vecrl"):
        for name in ("Swimmer-v5", "gym::Swimmer-v5"):
            for _ in range(2):
                make_vector_env(name, num_envs=2).close()
        make_vector_env("mujoco::Swimmer-v5", num_envs=2).close()
        make_vector_env("Reacher-v5").close()
        make_vector_env("CartPole-v1", num_envs=2).close()
    assert [record.message for record in caplog.records] == [
        "make_vector_env('mujoco::Swimmer-v5') gives the values of Swimmer-v5 to the bit, and is faster.",
    ]


def test_evolve_mentions_the_faster_name(vecrl, tmp_path):
    answer = vecrl("evolve", "InvertedPendulum-v5", *SMALL, "--out", tmp_path)
    assert answer.code == 0, answer.out
    assert "vecrl evolve mujoco::InvertedPendulum-v5 gives the same values" in answer.out
    answer = vecrl("evolve", "mujoco::InvertedPendulum-v5", *SMALL, "--out", tmp_path)
    assert answer.code == 0, answer.out
    assert "faster" not in answer.out


def test_bench_measures_the_faster_name_beside_the_others(vecrl):
    answer = vecrl("bench", "InvertedPendulum-v5", "--seconds", 0.05, "--backend", "serial", "--envs", 2)
    assert answer.code == 0, answer.out
    assert faster_name("InvertedPendulum-v5") in answer.out
    assert "serial" in answer.out
    assert answer.out.count("mujoco::InvertedPendulum-v5") in (1, 2)  # in the table, and perhaps as the fastest


def test_a_short_search_learns_to_balance(vecrl, tmp_path):
    """InvertedPendulum: from ten steps an episode to more than a hundred."""
    options = ["--popsize", 32, "--network", "Linear(obs_length, act_length)", "--stdev", 0.3]
    options += [
        "--stop-at",
        150,
        "--max-steps",
        200,
        "--generations",
        25,
        "--test-episodes",
        10,
        "--seed",
        3,
        "--no-video",
    ]
    answer = vecrl("evolve", "mujoco::InvertedPendulum-v5", *options, "--out", tmp_path)
    assert answer.code == 0, answer.out
    (folder,) = tmp_path.iterdir()
    assert SavedPolicy.load(folder / "best.pt").mean_return >= 150
