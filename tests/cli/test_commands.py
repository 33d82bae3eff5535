"""`vecrl envs`, `check`, `rollout` and `bench` with real environments."""

import json
import re
import subprocess
import sys
from functools import partial
from importlib.metadata import version
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch
from matplotlib.image import imread
from tests.cli.conftest import frames_of
from tests.fixtures.invalid_envs import FourValues, Unseeded
from tests.fixtures.nested_simulators import NestedBatch
from tests.fixtures.walk_envs import NestedWalk

from vecrl.cli import main
from vecrl.policy.saved_policy import SavedPolicy
from vecrl.simulators import registry
from vecrl.simulators.native import make_native
from vecrl.vector import VectorEnv, make_vector_env


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


# ---------------------------------------------------------------------- envs


def missing_names():
    raise AssertionError("called for a library that is missing")


def broken_names():
    print("a greeting of the library")
    raise SystemExit("libworlds.so has the wrong version\nand more")


def unbuilt_names():
    raise ImportError("build it yourself")


@pytest.fixture
def libraries():
    """Registers the simulators of a missing, a broken and an installed library."""
    registry.register("gone", make_batch=print, extra="gone", requires=["no_such_library.part"], names=missing_names)
    registry.register("broken", make_batch=print, summary="worlds", requires=["json"], names=broken_names)
    registry.register("good", make_batch=print, summary="games", requires=["json"], names=lambda: "xy", example="x")
    registry.register("other", make_batch=print, extra="of-others", requires=["no_such_library"])
    registry.register("nameless", make_batch=print, requires=["no_such_library"], names=unbuilt_names)
    yield
    for prefix in ("gone", "broken", "good", "other", "nameless"):
        registry.unregister(prefix)


def test_envs_lists_available_and_missing_simulators(vecrl, libraries):
    answer = vecrl("envs")
    assert answer.code == 0
    rows = {line.split()[0]: line.split() for line in answer.out.splitlines() if line.strip()}
    assert rows["gym::"][1] == "CartPole-v1"
    assert rows["native::"][1] == "native::CartPole-v1"
    assert rows["good::"] == ["good::", "good::x", "games"]
    assert "broken::" in rows  # its library is not imported
    (missing,) = [line for line in answer.out.splitlines() if line.startswith("Not installed: ")]
    assert "gone" in missing.removesuffix(".").split(", ")
    assert "other (of-others)" in missing
    assert '  pip install "vecrl[EXTRA]"  an extra' in answer.out
    assert "Without an extra: " in answer.out
    assert "nameless" in answer.out.split("Without an extra: ")[1]
    assert "greeting" not in answer.out


def test_envs_can_list_only_what_is_installed(vecrl, libraries):
    answer = vecrl("envs", "--installed")
    assert "good::x" in answer.out
    assert "gone" not in answer.out
    assert vecrl("envs", "--prefix", "gone").out == (
        'Error: no_such_library.part is not installed: pip install "vecrl[gone]"\n'
    )
    assert vecrl("envs", "--prefix", "broken").out == (
        "Error: SystemExit: libworlds.so has the wrong version (--traceback shows the rest)\n"
    )


def test_envs_names_what_a_simulator_without_an_extra_needs(vecrl, libraries):
    assert vecrl("envs", "--prefix", "nameless").out == "Error: build it yourself\n"


def test_envs_imports_no_library():
    code = "import sys; from vecrl.cli import main\ntry: main(['envs'])\nexcept SystemExit as e: assert not e.code\n"
    code += "assert not {'torch', 'mujoco', 'brax', 'jax', 'sklearn'} & set(sys.modules), set(sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "mujoco::InvertedPendulum-v5" in done.stdout


def test_envs_prints_json(vecrl, libraries):
    found = {one["prefix"]: one for one in json.loads(vecrl("envs", "--json").out)}
    assert found["good::"] == {
        "prefix": "good::",
        "description": "games",
        "example": "good::x",
        "installed": True,
        "missing": None,
        "install": None,
    }
    assert found["gone::"]["installed"] is False
    assert found["gone::"]["install"] == 'pip install "vecrl[gone]"'
    assert json.loads(vecrl("envs", "--prefix", "good", "--json").out) == ["good::x", "good::y"]


def test_the_version_is_printed(vecrl):
    assert vecrl("--version").out == f"vecrl {version('vecrl')}\n"


WITHOUT_TORCH = """
import sys

class Missing:
    def find_spec(self, name, *_):
        if name.partition(".")[0] == "torch":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
from vecrl.cli import main

for command in ["envs", "--prefix", "gym"], ["envs", "--prefix", "native"], ["check", "CartPole-v1"], ["bench"]:
    try:
        main(command)
    except SystemExit:
        pass
"""


def test_commands_without_torch_name_the_extra() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT_TORCH], capture_output=True, text=True, check=True)
    assert "CartPole-v1" in done.stdout.split()
    errors = done.stderr.splitlines()
    assert errors[0] == 'Error: torch is not installed: pip install "vecrl[torch]"'
    expected = "vecrl check", "vecrl bench"
    for error, user in zip(errors[1:], expected, strict=True):
        assert error.startswith(f'Error: Expected the extra "torch" for {user}, got none. Install it: pip install')


@pytest.mark.parametrize("command", ["check", "rollout", "bench"])
def test_commands_without_a_name_show_examples(vecrl, libraries, command):
    answer = vecrl(command)
    assert answer.code == 2
    assert f"\n  vecrl {command} CartPole-v1\n" in answer.out
    assert f"\n  vecrl {command} good::x\n" in answer.out
    assert "gone" not in answer.out


@pytest.mark.parametrize(
    ("command", "name", "text"),
    [
        ("check", "native::cartpole-v1", "Did you mean native::CartPole-v1?"),
        ("rollout", "native::MountainCarContinous-v0", "Did you mean native::MountainCarContinuous-v0, native::Mount"),
        ("bench", "natve::CartPole-v1", "Did you mean native::?"),
        ("rollout", "dmc-cartpole-swingup", "Did you mean dmc::cartpole-swingup?"),
        ("rollout", "Cartpole-v1", "Did you mean: `CartPole`?"),  # by gymnasium
    ],
)
def test_unknown_names_get_similar_ones(vecrl, command, name, text):
    answer = vecrl(command, name)
    assert answer.code == 1
    assert text in answer.out
    assert answer.out.count("Did you mean") == 1


def test_errors_of_known_names_have_no_suggestion(vecrl):
    answer = vecrl("rollout", "native::CartPole-v1", "--env-arg", "foo=1")
    assert answer.code == 1
    assert "Did you mean" not in answer.out


def test_envs_lists_a_prefix(vecrl):
    assert "native::CartPole-v1\nnative::MountainCar-v0" in vecrl("envs", "--prefix", "native").out
    assert "\nCartPole-v1\n" in vecrl("envs", "--prefix", "gym").out
    assert vecrl("envs", "--prefix", "nowhere").code == 1


# ---------------------------------------------------------------------- check


@pytest.mark.parametrize(
    "env", ["Odd/Valid-v0", "Odd/NewActionSpace-v0", "CartPole-v1", "native::MountainCarContinuous-v0"]
)
def test_check_passes_valid_environments(vecrl, odd, env):
    answer = vecrl("check", env, "--render")
    assert answer.code == 0, answer.out
    assert "All checks passed" in answer.out
    assert "uint8" in answer.out


@pytest.mark.parametrize(
    ("env", "texts"),
    [
        ("WrongDtype", ["float32", "float64", "Return observations as float32"]),
        ("NestedDtype", ["float32 of shape (2,) at ['pair'][0]", "float64", "Return observations as float32"]),
        ("WrongShape", ["got float64 of shape (2, 1).", "Return observations as float32 of shape (2,), as the space"]),
        ("NestedKeys", ["keys ['pair']", "{other: int64 []}", "Return all declared keys"]),
        ("OutOfBounds", ["[-1, 1] at (0,)", "Widen the bounds"]),
        ("Unseeded", ["got others from step 0 on", "draw from self.np_random only"]),
        ("OddFlag", ["terminated to be a bool", "bool(terminated)"]),
        ("Raising", ["2 episodes: RuntimeError: out of order (invalid_envs.py:", ", in step)."]),
        (
            "FourValues",
            ["(observation, reward, terminated, truncated, info) from step, got 4 values", "LegacyGymAdapter"],
        ),
        ("Unmakeable", ["creation", "RuntimeError: no such level (invalid_envs.py:"]),
        ("Spaceless", ["observation space: Expected a space, got None. Set self.observation_space"]),
        ("NoObservationSpace", ["observation space", "a space"]),
        ("NotANumber", ["first observation: Expected numbers, got nan at (0,). A division by 0"]),
        ("Exiting", ["first observation", "exited with code 4", "os._exit"]),
        ("Stuck", ["2 episodes: Expected a result within 2 s", "--timeout"]),
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


@pytest.mark.parametrize(
    ("env", "warning"),
    [
        ("Endless", "2 episodes: No episode ended within 1500 steps."),
        ("Motionless", "2 episodes: Observations never changed."),
        ("Rewardless", "2 episodes: Rewards were always 0."),
        ("Repetitive", "same seed, same episode: Another seed gave the same episode."),
    ],
)
def test_check_warns_of_what_is_seldom_intended(vecrl, odd, env, warning):
    answer = vecrl("check", f"Odd/{env}-v0")
    assert answer.code == 0, answer.out
    assert f"\n{warning}" in answer.out
    assert "\n  !  " in answer.out
    assert "All checks passed" in answer.out


def test_valid_environments_get_no_warning(vecrl):
    assert "!" not in vecrl("check", "CartPole-v1").out


def test_check_prints_each_error_once_in_full(vecrl, odd):
    answer = vecrl("check", "Odd/OutOfBounds-v0")
    (line,) = [line for line in answer.out.splitlines() if line.startswith("first observation: ")]
    assert line.endswith("Widen the bounds, or clip observations.")
    assert answer.out.count(line.partition("got ")[2]) == 1


def test_four_values_are_explained_under_a_time_limit(vecrl, odd):
    gymnasium.register("Odd/Limited-v0", FourValues, max_episode_steps=5)
    try:
        out = vecrl("check", "Odd/Limited-v0").out
    finally:
        del gymnasium.registry["Odd/Limited-v0"]
    assert "got 4 values. Four values are the old gym's interface" in out


@pytest.mark.parametrize("env", ["Raising", "FourValues", "WrongDtype", "Unseeded"])
def test_check_prints_a_cause_once(vecrl, odd, env):
    out = vecrl("check", f"Odd/{env}-v0").out
    assert "Mismatches: 1." in out
    assert "not checked, since " in out


def test_check_says_what_the_functions_of_a_task_return(vecrl, tmp_path):
    page = (Path(__file__).parents[2] / "docs" / "first-native-task.md").read_text()
    source = next(block for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "class Docking" in block)
    wrong = source.replace("speed + 0.1 * xp.clip(action[:, 0], -1, 1)", "speed + 0.1 * (action[:, 0] > 0)")
    assert wrong != source
    (tmp_path / "wrong_docking.py").write_text(wrong.replace("Docking-v0", "WrongDocking-v0"))
    answer = vecrl("check", "native::WrongDocking-v0", "--import", tmp_path / "wrong_docking.py")
    assert answer.code == 1
    assert "Expected the state from Docking.advance with NumPy to have the dtype float32, got float64" in answer.out
    assert "Mismatches: 1." in answer.out


def test_files_of_the_user_are_named(vecrl, tmp_path):
    """In the errors of an import, and where a run has a task that a file must register."""
    (tmp_path / "broken_tasks.py").write_text("import gymnasium\n\ngymnasium.no_such_function()\n")
    answer = vecrl("check", "CartPole-v1", "--import", tmp_path / "broken_tasks.py")
    assert "no_such_function' (broken_tasks.py:3, in <module>).\n" in answer.out
    answer = vecrl("check", "CartPole-v1", "--import", "no_such_module")
    assert "No module named 'no_such_module'. Give an installed module, one on PYTHONPATH" in answer.out
    answer = vecrl("rollout", "native::NoSuchTask-v0")
    assert answer.out.endswith("If a file of yours registers it, give --import FILE.\n")
    (tmp_path / "other_tasks.py").write_text("")
    answer = vecrl("rollout", "native::NoSuchTask-v0", "--import", tmp_path / "other_tasks.py")
    assert answer.out.endswith("other_tasks.py did not register it.\n")


def test_check_prints_json(vecrl, odd):
    answer = vecrl("check", "Odd/Rewardless-v0", "--json")
    found = json.loads(answer.stdout)
    assert (found["env"], found["passed"]) == ("Odd/Rewardless-v0", True)
    checks = {check["check_name"]: check for check in found["checks"]}
    assert checks["2 episodes"]["warnings"] == ["Rewards were always 0. Check step, unless they are rare."]
    answer = vecrl("check", "Odd/WrongDtype-v0", "--json")
    assert answer.code == 1
    assert json.loads(answer.stdout)["passed"] is False


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


@pytest.mark.parametrize("env", ["CartPole-v1", "native::CartPole-v1"])
def test_rollout_plays_the_same_episodes_in_batches_of_any_size(vecrl, env):
    found = [json.loads(vecrl("rollout", env, "--episodes", 7, "--seed", 2, "--json", *size).stdout) for size in SIZES]
    assert found[0]["lengths"] == found[1]["lengths"] == found[2]["lengths"]
    assert len({*found[0]["lengths"]}) > 2
    other = json.loads(vecrl("rollout", env, "--episodes", 7, "--seed", 3, "--json").stdout)
    assert other["lengths"] != found[0]["lengths"]


SIZES = (["--envs", 1], ["--envs", 3], ["--envs", 64])


def test_rollout_prints_json(vecrl, tmp_path):
    video = tmp_path / "v.mp4"
    answer = vecrl(
        "rollout", "CartPole-v1", "--episodes", 3, "--seed", 2, "--json", "--video", video, "--video-envs", 2
    )
    found = json.loads(answer.stdout)
    assert found["returns"] == found["lengths"]
    assert found["steps"] == sum(found["lengths"])
    assert found["video"] == {"path": str(video), "returns": found["returns"][:2]}


@pytest.mark.parametrize(("count", "grid"), [(1, (1, 1)), (2, (1, 2)), (5, (2, 3))])
def test_videos_show_episodes_side_by_side(vecrl, odd, tmp_path, count, grid):
    video = tmp_path / "v.gif"
    shown = ["--video", video, "--video-envs", count, "--video-steps", 4]
    answer = vecrl("rollout", "Odd/Valid-v0", "--episodes", 1, *shown)
    assert answer.code == 0, answer.out
    frames, rate = frames_of(video)
    assert rate == 10
    assert frames.shape == (5, *(size + size % 2 for size in (33 * grid[0], 47 * grid[1])), 3)
    last = frames[-1].mean(2)
    assert abs(last[5, 5] - 80) < 3
    assert (abs(last[-5, -5] - 80) < 3) == (grid[0] * grid[1] == count)  # else black


def test_the_window_shows_the_first_episode(vecrl, monkeypatch):
    monkeypatch.setenv("DISPLAY", ":0")  # SDL draws to memory, see the fixture
    answer = vecrl("rollout", "CartPole-v1", "--episodes", 2, "--seed", 2, "--human", "--video-steps", 4)
    assert answer.code == 0, answer.out
    assert "in the window: return 4\n" in answer.out


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (
            ["native::CartPole-v1", "--backend", "serial"],
            "Expected no --backend for 'native::CartPole-v1', which steps",
        ),
        (["native::CartPole-v1", "--workers", 2], "for 'native::CartPole-v1', which steps as one batch"),
        (["CartPole-v1", "--device", "cpu"], "Expected no --device for 'CartPole-v1', which is made of Python"),
        (["CartPole-v1", "--video-envs", 2], "Expected --video with --video-envs, got --video-envs alone"),
        (["CartPole-v1", "--video-steps", 2], "Expected --video or --human with --video-steps"),
        (["CartPole-v1", "--out", "runs"], "Expected --logger with --out"),
        (["native::CartPole-v1", "--human"], "Expected an environment that opens windows, got 'native::CartPole-v1'"),
        (["CartPole-v1", "--human"], "Expected a screen for a window, got none: DISPLAY is not set."),
    ],
)
def test_options_without_an_effect_are_refused(vecrl, monkeypatch, arguments, text):
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    answer = vecrl("rollout", *arguments)
    assert answer.code == 1
    assert text in answer.out
    assert len(answer.out.strip().splitlines()) == 1


@pytest.mark.parametrize("command", ["evolve", "bench"])
def test_other_commands_refuse_options_without_an_effect(vecrl, command):
    answer = vecrl(command, "native::CartPole-v1", "--backend", "processes")
    assert answer.code == 1
    assert "Expected no --backend for 'native::CartPole-v1'" in answer.out


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


def test_videos_are_as_short_as_episodes(vecrl, odd, tmp_path):
    """Observations are float64, and the policy has no normalization."""
    sizes = {"obs_length": 4, "act_length": 1}
    SavedPolicy("InvertedPendulum-v5", "Linear(obs_length, act_length)", sizes, torch.zeros(5)).save(tmp_path / "p.pt")
    played = ["--policy", tmp_path / "p.pt", "--episodes", 1, "--max-steps", 3, "--video", tmp_path / "v.mp4"]
    answer = vecrl("rollout", "InvertedPendulum-v5", *played)
    assert answer.code == 0, answer.out
    assert len(frames_of(tmp_path / "v.mp4")[0]) == 4


def test_policies_of_nested_spaces(vecrl, tmp_path):
    short = ["--generations", 1, "--popsize", 2, "--test-episodes", 1, "--no-video", "--out", tmp_path]
    answer = vecrl("evolve", "Blackjack-v1", *short)
    assert answer.code == 0, answer.out
    best, video = tmp_path / "Blackjack-v1-1" / "best.pt", tmp_path / "v.mp4"
    description = "[0]: Discrete(32); [1]: Discrete(11); [2]: Discrete(2)"
    assert SavedPolicy.load(best).spaces == {"observations": description, "actions": "Discrete(2)"}
    answer = vecrl("rollout", "Blackjack-v1", "--policy", best, "--episodes", 2, "--video", video)
    assert answer.code == 0, answer.out
    assert frames_of(video)[0].std() > 1
    answer = vecrl("rollout", "CartPole-v1", "--policy", best)
    assert answer.code == 1
    assert "obs_length 45, as Blackjack-v1 has, got CartPole-v1 with obs_length 4." in answer.out


def test_nested_actions_are_random(vecrl):
    gymnasium.register("Nested/Walk-v0", NestedWalk)
    try:
        answer = vecrl("rollout", "Nested/Walk-v0", "--episodes", 3, "--seed", 1)
        timed = vecrl("bench", "Nested/Walk-v0", "--backend", "serial", "--envs", 2, "--seconds", 0.05)
    finally:
        del gymnasium.registry["Nested/Walk-v0"]
    assert answer.code == 0, answer.out
    assert "random actions: 3 episodes" in answer.out
    assert timed.code == 0, timed.out


@pytest.mark.parametrize(
    ("option", "name"), [("--video", "v.webm"), ("--video", "v.txt"), ("--video", "v"), ("--plot", "p.pdf")]
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
        (["native::CartPole-v1", "--device", "foo"], 1, "Expected a device, such as 'cpu' or 'cuda:0', got 'foo'"),
        (["native::CartPole-v1", "--env-arg", "foo=1"], 1, "could not be made with foo=1"),
    ],
)
def test_bench_reports_unavailable_backends(vecrl, arguments, code, text):
    answer = vecrl("bench", *arguments)
    assert answer.code == code
    assert text in answer.out


@pytest.mark.parametrize("env", ["CartPole-v1", "native::CartPole-v1"])
def test_bench_prints_the_call_to_copy(vecrl, env):
    workers = [] if "native" in env else ["--workers", 2]
    answer = vecrl("bench", env, "--seconds", 0.05, *workers, "--envs", 1, "--envs", 3)
    assert answer.code == 0, answer.out
    call = answer.out.strip().splitlines()[-1].strip()
    if "native" in env:
        made = eval(call, {"make_vector_env": make_vector_env})
        assert made.num_envs in (1, 3)
    else:
        made = eval(call, {"VectorEnv": VectorEnv, "gymnasium": gymnasium})
        assert made.num_envs in (1, 3, 2, 6)
        assert "processes" in answer.out
    made.close()


@pytest.mark.parametrize(
    ("env", "peak", "sizes"),
    [
        ("CartPole-v1", 64, [1, 4, 16, 64, 256]),
        ("CartPole-v1", 4, [1, 4, 16]),
        ("CartPole-v1", 10**9, [1, 4, 16, 64, 256, 1024]),
        ("native::CartPole-v1", 16384, [1, 64, 1024, 4096, 16384, 65536]),
    ],
)
def test_bench_goes_on_while_the_largest_size_is_the_fastest(vecrl, monkeypatch, env, peak, sizes):
    from vecrl.cli.bench import Bench

    monkeypatch.setattr(Bench, "_time", lambda _, env, tensors=False: 1e3 * min(env.num_envs, peak**2 / env.num_envs))
    backend = ["--backend", "serial"] if env == "CartPole-v1" else []
    found = json.loads(vecrl("bench", env, "--json", *backend).stdout)
    assert found["env"] == env
    assert [result["num_envs"] for result in found["results"]] == sizes
    assert max(found["results"], key=lambda result: result["rate"])["num_envs"] == min(peak, sizes[-1])


class Silent(gymnasium.Env):
    """Renders a text."""

    observation_space, action_space = gymnasium.spaces.Discrete(2), gymnasium.spaces.Discrete(2)

    def __init__(self, render_mode: str | None = None):
        self.render_mode = render_mode

    def reset(self, *, seed=None, options=None):
        return 0, {}

    def render(self):
        return "text"


def test_fast_environments_are_rendered_at_every_few_steps(vecrl, odd, tmp_path):
    answer = vecrl("rollout", "Odd/Fast-v0", "--episodes", 1, "--video", tmp_path / "v.mp4")
    assert "(return 10)" in answer.out
    frames, rate = frames_of(tmp_path / "v.mp4")
    assert (len(frames), rate) == (4, 25)  # after 0, 4, 8 and all 10 steps
    assert abs(frames[-1].mean() - 200) < 12


def test_the_reason_for_no_images_is_that_of_the_registry(vecrl, tmp_path):
    registry.register(
        "mine", env_fn=lambda name, **kwargs: partial(Silent, **kwargs), limits={"pixels": "it has words"}
    )
    try:
        answer = vecrl("rollout", "mine::anything", "--video", tmp_path / "v.mp4")
    finally:
        registry.unregister("mine")
    assert answer.code == 1
    assert "got 'mine::anything': it has words. Omit the video." in " ".join(answer.out.split())


def test_environments_without_images_are_refused_before_the_episodes(vecrl, tmp_path, monkeypatch):
    from vecrl.cli.rollout import RolloutCommand

    episodes: list[int] = []
    monkeypatch.setattr(RolloutCommand, "_evaluate", lambda *_: episodes.append(1))
    registry.register("mine", env_fn=lambda name, **kwargs: partial(Silent, **kwargs))
    try:
        answer = vecrl("rollout", "mine::anything", "--video", tmp_path / "v.mp4")
    finally:
        registry.unregister("mine")
    assert answer.code == 1
    text = " ".join(answer.out.split())
    assert "Expected an environment that renders images (render_mode 'rgb_array'), got str" in text
    assert not episodes
    assert not list(tmp_path.iterdir())


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


def test_bench_prints_the_call_for_a_registered_simulator(vecrl):
    registry.register("mine", env_fn=lambda name, **kwargs: partial(gymnasium.make, name, **kwargs))
    try:
        answer = vecrl("bench", "mine::CartPole-v1", "--backend", "serial", "--envs", 2, "--seconds", 0.05)
        assert answer.code == 0, answer.out
        call = answer.out.strip().splitlines()[-1].strip()
        assert call == "make_vector_env('mine::CartPole-v1', num_envs=2, backend='serial')"
        with eval(call, {"make_vector_env": make_vector_env}) as made:
            assert (made.num_envs, made.env.spec.id) == (2, "CartPole-v1")
    finally:
        registry.unregister("mine")


def test_limits_of_a_simulator_are_no_mismatches(vecrl):
    """Without the limit, the check of seeds fails."""
    limits = {"seeds": "the game draws its own numbers"}
    for given, code in ((limits, 0), ({}, 1)):
        registry.register("mine", env_fn=lambda name, **_: Unseeded, limits=given)
        try:
            answer = vecrl("check", "mine::anything")
        finally:
            registry.unregister("mine")
        assert answer.code == code, answer.out
        assert answer.out.count("the game draws its own numbers") == 4 * len(given)


def test_registered_batched_simulators_can_be_checked(vecrl):
    """The checks run in a worker, which has not registered the prefix."""
    registry.register("mine", make_batch=lambda name, num_envs, **_: make_native("CartPole-v1", num_envs))
    try:
        answer = vecrl("check", "mine::anything")
    finally:
        registry.unregister("mine")
    assert answer.code == 0, answer.out


def test_every_command_takes_nested_batched_simulators(vecrl, tmp_path):
    registry.register("nested", make_batch=lambda name, num_envs, infos, **kwargs: NestedBatch(num_envs, **kwargs))
    try:
        checked = vecrl("check", "nested::any", "--render")
        timed = vecrl("bench", "nested::any", "--envs", 2, "--seconds", 0.05)
        short = ["--generations", 1, "--popsize", 2, "--test-episodes", 1, "--out", tmp_path]
        solved = vecrl("evolve", "nested::any", *short)
        (run,) = tmp_path.glob("nested*")
        played = vecrl("rollout", "nested::any", "--policy", run / "best.pt", "--episodes", 2)
        drawn = vecrl("rollout", "nested::any", "--episodes", 2, "--video", tmp_path / "v.mp4")
    finally:
        registry.unregister("nested")
    for answer in (checked, timed, solved, played, drawn):
        assert answer.code == 0, answer.out
    assert "{position: float32 [2], clock: (int64 [], {seed: int64 [1]}), bits: int8 [3]}" in checked.out
    assert "saved policy: 2 episodes" in played.out
    assert frames_of(run / "best.mp4")[0].shape[1:] == frames_of(tmp_path / "v.mp4")[0].shape[1:] == (4, 6, 3)


def test_invalid_networks_and_policies_are_named(vecrl, tmp_path):
    answer = vecrl("evolve", "CartPole-v1", "--network", "Foo()", "--out", tmp_path / "run")
    assert answer.code != 0
    assert "Expected a --network in the network language, got 'Foo()': no layer is called 'Foo'" in answer.out
    answer = vecrl("rollout", "CartPole-v1", "--policy", tmp_path / "none.pt")
    assert answer.code != 0
    assert "Expected the folder of a run of vecrl evolve, or its best.pt" in answer.out
    assert "none.pt" in answer.out
