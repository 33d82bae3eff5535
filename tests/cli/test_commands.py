"""`vecrl envs`, `check`, `rollout` and `bench` with real environments."""

import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from matplotlib.image import imread
from tests.cli.conftest import frames_of

from vecrl.cli import main
from vecrl.policy.saved_policy import SavedPolicy
from vecrl.simulators import registry
from vecrl.simulators.native import make_native


def test_help_is_fast():
    code = "import sys; from vecrl.cli import main\ntry: main(['--help'])\nexcept SystemExit as e: assert not e.code\n"
    code += "assert not {'torch', 'numpy', 'gymnasium', 'matplotlib'} & set(sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    for command in ("envs", "check", "rollout", "evolve", "bench"):
        assert command in done.stdout


def test_traceback_flag_is_accepted_anywhere(capsys):
    with pytest.raises(ValueError, match="Expected one of the prefixes"):
        main(["check", "nowhere::x", "--traceback"])
    with pytest.raises(SystemExit) as end:
        main(["check", "nowhere::x"])
    assert end.value.code == 1
    assert "Traceback" not in capsys.readouterr().err


MY_ENV = """
import gymnasium
from tests.fixtures.invalid_envs import Valid
gymnasium.register("My-v0", Valid)
"""


def test_the_script_finds_modules_in_the_working_directory(tmp_path):
    (tmp_path / "myenv.py").write_text(MY_ENV)
    script = "import sys; sys.path.pop(0); sys.argv = ['vecrl', 'check', 'myenv:My-v0']\n"
    script += "from vecrl.cli import main; main()"
    environment = {**os.environ, "PYTHONPATH": os.getcwd()}
    options = {"cwd": tmp_path, "env": environment, "capture_output": True, "text": True}
    done = subprocess.run([sys.executable, "-c", script], **options)
    assert done.returncode == 0, done.stderr
    assert "All checks passed" in done.stdout


# ---------------------------------------------------------------------- envs


def test_envs_lists_available_and_missing_simulators(vecrl):
    answer = vecrl("envs")
    assert answer.code == 0
    for text in ("gym::", "native::", "brax::", "CartPole-v1"):
        assert text in answer.out


def test_envs_lists_a_prefix(vecrl):
    assert "native::CartPole-v1\nnative::MountainCar-v0" in vecrl("envs", "--prefix", "native").out
    assert "\nCartPole-v1\n" in vecrl("envs", "--prefix", "gym").out
    assert vecrl("envs", "--prefix", "nowhere").code == 1


# ---------------------------------------------------------------------- check


@pytest.mark.parametrize("env", ["Odd/Valid-v0", "CartPole-v1", "native::MountainCarContinuous-v0"])
def test_check_passes_valid_environments(vecrl, odd, env):
    answer = vecrl("check", env, "--render")
    assert answer.code == 0, answer.out
    assert "All checks passed" in answer.out
    assert "uint8" in answer.out


@pytest.mark.parametrize(
    ("env", "texts"),
    [
        ("WrongDtype", ["float32", "float64", "Return observations as float32"]),
        ("OutOfBounds", ["[-1, 1] at (0,)", "Widen the bounds"]),
        ("Unseeded", ["they differ from step 0 on", "self.np_random"]),
        ("OddFlag", ["terminated to be a bool", "bool(terminated)"]),
        ("Raising", ["RuntimeError: out of order"]),
        ("Unmakeable", ["creation", "RuntimeError: no such level …"]),
        ("Spaceless", ["observation space: Set self.observation_space"]),
        ("NoObservationSpace", ["observation space", "a space"]),
        ("Exiting", ["checking: first observation", "exited with code 4", "os._exit"]),
        ("Stuck", ["checking: 2 episodes", "a result within 2 s", "--timeout"]),
        ("Unclosable", ["RuntimeError: it will not close"]),
    ],
)
def test_check_reports_mismatches(vecrl, odd, env, texts):
    answer = vecrl("check", f"Odd/{env}-v0", "--timeout", 2 if env == "Stuck" else 100)
    assert answer.code == 1
    assert "Traceback" not in answer.out
    assert "Mismatches:" in answer.out
    for text in texts:
        assert text in answer.out


# ---------------------------------------------------------------------- rollout


@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1", "native::Pendulum-v1"])
def test_rollout_uses_random_actions(vecrl, env, tmp_path):
    plot = tmp_path / "returns.png"
    answer = vecrl("rollout", env, "--episodes", 5, "--envs", 2, "--max-steps", 50, "--seed", 1, "--plot", plot)
    assert answer.code == 0, answer.out
    assert "5 episodes" in answer.out
    assert "steps/s (seed 1)" in answer.out
    assert imread(plot).std() > 0.01


def test_rollout_is_equal_on_every_backend(vecrl):
    def table(*place):
        answer = vecrl("rollout", "CartPole-v1", "--episodes", 7, "--envs", 3, "--seed", 2, *place)
        assert answer.code == 0, answer.out
        return [line for line in answer.out.splitlines() if "return" in line or "length" in line]

    assert table() == table("--backend", "processes", "--workers", 2) == table("--backend", "threads")
    assert len(table()) == 2


@pytest.mark.ray
def test_rollout_and_bench_run_on_ray(vecrl):
    answers = [
        vecrl("rollout", "CartPole-v1", "--episodes", 7, "--envs", 3, "--seed", 2, "--backend", b, "--workers", 2)
        for b in ("serial", "ray")
    ]
    assert [answer.code for answer in answers] == [0, 0], answers[1].out
    lines = [[x for x in answer.out.splitlines() if "return" in x or "length" in x] for answer in answers]
    assert lines[0] == lines[1]
    answer = vecrl("bench", "CartPole-v1", "--backend", "ray", "--workers", 1, "--envs", 2, "--seconds", 0.05)
    assert answer.code == 0, answer.out
    assert "backend='ray', num_workers=1" in answer.out


def test_rollout_runs_a_saved_policy(vecrl, odd, tmp_path):
    sizes = {"obs_length": 2, "act_length": 2}
    SavedPolicy("Odd/Valid-v0", "Linear(obs_length, act_length)", sizes, torch.zeros(6)).save(tmp_path / "p.pt")
    video = tmp_path / "v.mp4"
    answer = vecrl("rollout", "Odd/Valid-v0", "--policy", tmp_path / "p.pt", "--episodes", 3, "--video", video)
    assert answer.code == 0, answer.out
    assert "saved policy: 3 episodes" in answer.out
    frames, rate = frames_of(video)
    assert (frames.shape, rate) == ((11, 34, 48, 3), 10)  # odd frame sizes are padded
    levels = frames.mean((1, 2, 3))
    assert (np.diff(levels) > 10).all()
    wrong = vecrl("rollout", "CartPole-v1", "--policy", tmp_path / "p.pt")
    assert wrong.code == 1
    assert "as Odd/Valid-v0 has" in wrong.out


def test_rollout_reports_results_before_an_interrupt(vecrl, monkeypatch):
    from vecrl.cli.rollout import RolloutCommand

    complete = RolloutCommand._evaluate

    def interrupted(self, evaluator, first):
        if first == 4:
            raise KeyboardInterrupt
        return complete(self, evaluator, first)

    monkeypatch.setattr(RolloutCommand, "_evaluate", interrupted)
    answer = vecrl("rollout", "CartPole-v1", "--episodes", 8, "--envs", 2, "--backend", "processes")
    assert answer.code == 130
    assert "random actions: 4 episodes" in answer.out
    assert "Interrupted after 4 episodes" in answer.out


def test_random_actions_ignore_observations(vecrl, tmp_path):
    video = tmp_path / "new" / "folder" / "v.mkv"
    place = ["--backend", "processes", "--workers", 2]
    answer = vecrl("rollout", "Blackjack-v1", "--episodes", 4, "--seed", 1, "--video", video, *place)
    assert answer.code == 0, answer.out
    assert "random actions: 4 episodes" in answer.out
    assert video.stat().st_size > 0


@pytest.mark.parametrize(
    ("option", "name"), [("--video", "v.gif"), ("--video", "v.txt"), ("--video", "v"), ("--plot", "p.pdf")]
)
def test_unwritable_output_files_raise_first(vecrl, tmp_path, option, name):
    answer = vecrl("rollout", "CartPole-v1", option, tmp_path / "new" / name)
    assert answer.code == 1
    assert "Expected a file name that ends in ." in answer.out
    assert len(answer.out.strip().splitlines()) == 1
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("content", [b"", b"hello", b"PK\x03\x04"])
def test_invalid_policy_files_raise_one_line(vecrl, tmp_path, content):
    (tmp_path / "p.pt").write_bytes(content)
    answer = vecrl("rollout", "CartPole-v1", "--policy", tmp_path / "p.pt")
    assert answer.code == 1
    assert "p.pt cannot be read" in answer.out
    assert len(answer.out.strip().splitlines()) == 1


# ---------------------------------------------------------------------- bench


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["CartPole-v1", "--workers", 0], 2, "--workers"),
        (["CartPole-v1", "--backend", "rays"], 2, "Expected backend to be 'serial', 'threads'"),
        (["CartPole-v1", "--envs", 0], 2, "--envs"),
        (["native::CartPole-v1", "--device", "foo"], 1, "could not be made with device='foo'"),
        (["native::CartPole-v1", "--env-arg", "foo=1"], 1, "could not be made with foo=1"),
    ],
)
def test_bench_reports_unavailable_backends(vecrl, arguments, code, text):
    answer = vecrl("bench", *arguments)
    assert answer.code == code
    assert text in answer.out


@pytest.mark.parametrize("env", ["CartPole-v1", "native::CartPole-v1"])
def test_bench_prints_the_call_to_copy(vecrl, env):
    answer = vecrl("bench", env, "--seconds", 0.05, "--workers", 2, "--envs", 1, "--envs", 3)
    assert answer.code == 0, answer.out
    call = answer.out.strip().splitlines()[-1].strip()
    if "native" in env:
        from vecrl.vector.factory import make_vector_env

        made = eval(call, {"make_vector_env": make_vector_env})
        assert made.num_envs in (1, 3)
    else:
        import gymnasium

        from vecrl.vector import VectorEnv

        made = eval(call, {"VectorEnv": VectorEnv, "gymnasium": gymnasium})
        assert made.num_envs in (1, 3, 2, 6)
        assert "processes" in answer.out
    made.close()


def test_bench_prints_results_before_an_interrupt(vecrl, monkeypatch):
    from vecrl.cli.bench import Bench

    complete = Bench._time

    def interrupted(self, env, tensors=False):
        if env.num_envs > 1:
            raise KeyboardInterrupt
        return complete(self, env, tensors)

    monkeypatch.setattr(Bench, "_time", interrupted)
    answer = vecrl("bench", "CartPole-v1", "--seconds", 0.05, "--envs", 1, "--envs", 3)
    assert answer.code == 130
    assert "Interrupted" in answer.out
    assert answer.out.count("serial") >= 1


def test_registered_batched_simulators_can_be_checked(vecrl):
    """The checks run in a worker, which has not registered the prefix."""
    registry.register("mine", make_batch=lambda name, num_envs, **_: make_native("CartPole-v1", num_envs))
    try:
        answer = vecrl("check", "mine::anything")
    finally:
        registry.unregister("mine")
    assert answer.code == 0, answer.out
