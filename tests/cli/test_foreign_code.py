"""A run folder is data: resuming it runs no file, module or program that the folder names or contains."""

import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import gymnasium
import pytest
import yaml
from typer.testing import CliRunner

from vecrl.cli.app import app

MARK = "with open(__import__('os').environ['MARKER'], 'a') as file:\n    file.write(__name__ + '\\n')\n"
REGISTERS = MARK + (
    "import gymnasium\nfrom gymnasium.envs.classic_control import PendulumEnv\n"
    "gymnasium.register('Mine-v0', PendulumEnv, max_episode_steps=5)\n"
)
HELPER = f"#!{sys.executable}\n{MARK}"
SCRIPT = "import sys; del sys.path[0]; from vecrl.cli import main; main()"
SHADOWED = "numpy", "torch", "yaml", "gymnasium", "sitecustomize", "ale_py", "importlib", "multiprocessing"


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A finished run of one generation."""
    parent = tmp_path_factory.mktemp("runs")
    command = ["evolve", "Pendulum-v1", "--popsize", "2", "--generations", "1", "--max-steps", "3", "--seed", "0"]
    done = CliRunner().invoke(app, [*command, "--no-video", "--test-episodes", "1", "--out", str(parent)])
    assert done.exit_code == 0, done.output
    return parent / "Pendulum-v1-1"


@pytest.fixture
def hostile(finished, tmp_path):
    """Copies the run, with modules and a program that write a marker, and changes its config.yaml."""

    def make(**changes):
        folder = tmp_path / "run"
        shutil.copytree(finished, folder)
        (folder / "mine.py").write_text(REGISTERS)
        (folder / "helper").write_text(HELPER)
        (folder / "helper").chmod(0o755)
        config = yaml.safe_load((folder / "config.yaml").read_text())
        (folder / "config.yaml").write_text(yaml.safe_dump({**config, "generations": 2, **changes}, sort_keys=False))
        return folder

    return make


@pytest.fixture
def run_in(vecrl, monkeypatch):
    """Calls the command in a folder that is on the import path; returns the answer and the modules that were run."""

    def call(folder, *arguments):
        marker = folder.parent / "marker"
        marker.unlink(missing_ok=True)
        monkeypatch.setenv("MARKER", str(marker))
        monkeypatch.chdir(folder)
        monkeypatch.syspath_prepend(folder)
        answer = vecrl(*arguments)
        sys.modules.pop("mine", None)
        gymnasium.registry.pop("Mine-v0", None)
        return answer, marker.read_text().split() if marker.exists() else []

    return call


def run_process(folder, *arguments, program=("-c", SCRIPT), **env):
    """Calls the command in a folder as the console script does; returns the process and the modules that were run."""
    marker = folder.parent / "marker"
    marker.unlink(missing_ok=True)
    environment = {**os.environ, "MARKER": str(marker), **env}
    command = [sys.executable, *program, *map(str, arguments)]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=100)
    return done, marker.read_text().split() if marker.exists() else []


@pytest.mark.parametrize(
    ("changes", "option"),
    [
        ({"env": "mine:Mine-v0"}, "vecrl evolve mine:Mine-v0 --resume ."),
        ({"env": "gym::mine:Mine-v0"}, "vecrl evolve gym::mine:Mine-v0 --resume ."),
        ({"env": "unity::./helper"}, "vecrl evolve unity::./helper --resume ."),
        ({"env": "unity::helper"}, "vecrl evolve unity::helper --resume ."),
        (
            {"env": "safety::Pendulum-v1", "env_args": {"python": "./helper"}},
            "vecrl evolve safety::Pendulum-v1 --resume .",
        ),
        ({"env_args": {"python": "./helper"}}, "--python ./helper"),
        ({"env_args": {"python": "helper"}}, "--python helper"),
        ({"env_args": {"modules": ["mine"]}}, """--env-arg 'modules=["mine"]'"""),
        ({"env": "GymV26Environment-v0", "env_args": {"env_id": "mine:Mine-v0"}}, "--env-arg env_id=mine:Mine-v0"),
        ({"env_args": {"config": {"vehicles": ["mine.Car"]}}}, """--env-arg 'config={"vehicles": ["mine.Car"]}'"""),
        ({"env_args": {"options": {"python": "helper"}}}, """--env-arg 'options={"python": "helper"}'"""),
    ],
)
def test_what_may_name_code_must_be_repeated(run_in, hostile, changes, option):
    answer, executed = run_in(hostile(**changes), "evolve", "--resume", ".")
    assert (answer.code, executed) == (1, [])
    (line,) = answer.out.splitlines()
    assert line.startswith("Error: Expected config.yaml to name no code, got ")
    assert line.endswith(f"repeat it on the command line: {option}")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"env": "mine::Mine-v0"}, "Expected one of the prefixes"),
        ({"backend": "mine:Backend"}, "mine:Backend"),
        ({"logger": "mine"}, "mine"),
        ({"network": "mine.Net(1)"}, "expected the name of a layer"),
        ({"network": "__import__('mine')"}, "no layer is called"),
        ({"device": "mine:0"}, "mine"),
    ],
)
def test_other_fields_take_registered_names_only(run_in, hostile, changes, message):
    answer, executed = run_in(hostile(**changes), "evolve", "--resume", ".")
    assert (answer.code, executed) == (1, [])
    (line,) = answer.out.splitlines()
    assert message in line


@pytest.mark.parametrize(
    "text", ["!!python/object/apply:os.system [./helper]", "!!python/name:mine.x", "&a [*a]", "[" * 10000]
)
def test_yaml_makes_plain_data_only(run_in, hostile, text):
    folder = hostile()
    config = (folder / "config.yaml").read_text().replace("env_args: {}", f"env_args: {text}")
    assert text in config
    (folder / "config.yaml").write_text(config)
    answer, executed = run_in(folder, "evolve", "--resume", ".")
    assert (answer.code, executed) == (1, [])
    assert answer.out.startswith("Error: Expected config.yaml ")


class Payload:
    """Runs a program when it is unpickled."""

    def __reduce__(self):
        return os.system, ("./helper",)


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
@pytest.mark.parametrize("file", ["state.ckpt", "best.pt"])
def test_files_of_a_run_are_not_unpickled(run_in, hostile, file):
    folder = hostile()
    (folder / file).write_bytes(pickle.dumps(Payload()))
    command = ["evolve", "--resume", "."] if file == "state.ckpt" else ["rollout", "Pendulum-v1", "--policy", file]
    answer, executed = run_in(folder, *command)
    assert (answer.code, executed) == (1, [])
    assert len(answer.out.splitlines()) == 1


@pytest.mark.parametrize("name", ["metrics.csv", "texts/hparams0.txt", "scalars", "best.mp4"])
def test_links_in_a_run_folder_are_refused(run_in, hostile, name):
    """A file that is written through a link would be another one, such as a script that a shell runs."""
    folder = hostile(logger="csv", env_args={"render_mode": "$(./helper)"})
    target = folder.parent / "target"
    target.mkdir() if name == "scalars" else target.write_text("kept")
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to(target)
    answer, executed = run_in(folder, "evolve", "--resume", ".")
    assert (answer.code, executed) == (1, [])
    assert (
        answer.out
        == f"Error: Expected files and folders only in ., got {name}, which is a link, a pipe or a device. "
        + ("Remove it, or replace it by a copy.\n")
    )
    assert list(target.iterdir()) == [] if name == "scalars" else target.read_text() == "kept"


@pytest.mark.timeout(30)
def test_pipes_in_a_run_folder_are_refused(run_in, hostile):
    folder = hostile()
    (folder / "metrics.csv").unlink()
    os.mkfifo(folder / "metrics.csv")
    answer, _ = run_in(folder, "evolve", "--resume", ".")
    assert "got metrics.csv, which is a link, a pipe or a device" in answer.out


def test_what_the_command_line_names_is_used(run_in, hostile):
    folder = hostile(env="mine:Mine-v0", env_args={"g": 9.5, "render_mode": "rgb_array"})
    answer, _ = run_in(folder, "evolve", "mine:Other-v0", "--resume", ".")
    assert "Expected the environment of the run, 'mine:Mine-v0', got 'mine:Other-v0'. Omit it." in answer.out
    for argument in ("g=3", "h=3"):
        answer, executed = run_in(folder, "evolve", "mine:Mine-v0", "--resume", ".", "--env-arg", argument)
        assert (answer.code, executed) == (1, [])
        assert f"Expected the environment's argument {argument[0]} to be " in answer.out
    answer, executed = run_in(folder, "evolve", "mine:Mine-v0", "--resume", ".", "--no-video", "--env-arg", "g=9.5")
    assert answer.code == 0, answer.out
    assert executed == ["mine"]


def test_no_file_of_the_working_folder_is_imported(hostile):
    folder = hostile()
    for name in SHADOWED:
        (folder / f"{name}.py").write_text(MARK)
    (folder / "matplotlibrc").write_text("text.usetex: True\n")  # the plot would start LaTeX
    (folder / "latex").write_text(HELPER)
    (folder / "latex").chmod(0o755)
    path = f"{folder}{os.pathsep}{os.environ['PATH']}"
    done, executed = run_process(folder, "evolve", "--resume", ".", "--backend", "processes", "--no-video", PATH=path)
    assert done.returncode == 0, done.stderr
    assert executed == []


def test_python_m_removes_the_working_folder_from_the_path(hostile):
    """`python -m` itself searches it until vecrl has started, so no file has the name of a module that it needs."""
    folder = hostile()
    for name in ("numpy", "torch", "yaml", "gymnasium", "typer"):
        (folder / f"{name}.py").write_text(MARK)
    command = "evolve", "--resume", ".", "--backend", "processes", "--no-video"
    done, executed = run_process(folder, *command, program=("-m", "vecrl"))
    assert done.returncode == 0, done.stderr
    assert executed == []


def test_workers_on_another_interpreter_import_nothing_from_the_working_folder(hostile):
    folder = hostile(env_args={"python": "./helper"})
    for name in SHADOWED:
        (folder / f"{name}.py").write_text(MARK)
    done, executed = run_process(folder, "evolve", "--resume", ".", "--python", sys.executable, "--no-video")
    assert done.returncode == 0, done.stderr
    assert executed == []


def test_import_runs_a_file_also_for_workers(tmp_path):
    folder = tmp_path / "envs"
    folder.mkdir()
    (folder / "mine.py").write_text(REGISTERS)
    command = ["evolve", "Mine-v0", "--popsize", 2, "--generations", 1, "--no-video", "--test-episodes", 1]
    done, executed = run_process(folder, *command, "--backend", "processes", "--import", "mine.py")
    assert done.returncode == 0, done.stderr
    assert executed[:1] == ["mine"]


def test_runs_of_imported_environments_resume_with_the_import(run_in, hostile):
    folder = hostile(env="Mine-v0")
    answer, executed = run_in(folder, "evolve", "--resume", ".")
    assert (answer.code, executed) == (1, [])
    answer, executed = run_in(folder, "evolve", "--resume", ".", "--no-video", "--import", "mine")
    assert answer.code == 0, answer.out
    assert executed == ["mine"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("no_such_module", "Expected --import no_such_module to be importable, got ModuleNotFoundError"),
        ("gone.py", "Expected --import to name a Python file that exists"),
        ("json.py", "Expected a file that can be imported by its name"),
        ("my-env.py", "Expected a file that can be imported by its name"),
        ("broken.py", "Expected --import broken.py to be importable, got NameError: name 'x' is not defined"),
    ],
)
def test_imports_that_fail_say_what_to_do(vecrl, tmp_path, monkeypatch, name, message):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    if name != "gone.py":
        Path(tmp_path, name).write_text("x\n")
    answer = vecrl("check", "Pendulum-v1", "--import", name)
    assert answer.code == 1
    (line,) = answer.out.splitlines()
    assert message in line
