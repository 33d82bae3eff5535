"""The commands of the documentation: all have valid options, and those of README.md and cli.md run."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import typer.main
from tests.fixtures.ray_cluster import TestCluster
from typer.testing import CliRunner

from vecrl.cli.app import app

ROOT = Path(__file__).parents[2]
MARKS = {"ray": pytest.mark.ray, "brax::": pytest.mark.simulators, "tensorboard": pytest.mark.loggers}
MARKS["wandb"] = pytest.mark.loggers


def commands(path):
    """Returns the lines of a page's shell blocks that call vecrl; each is its variables and its arguments."""
    found = []
    for block in re.findall(r"```(?:sh|console)\n(.*?)```", path.read_text(), re.DOTALL):
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line.removeprefix("$ "), comments=True)
            variables = [word for word in words if re.match(r"[A-Z_]+=", word)]
            command = words[len(variables) :]
            if command[:3] == ["python", "-m", "vecrl"]:
                command = command[2:]
            if command and Path(command[0]).name == "vecrl":
                found.append((dict(variable.split("=") for variable in variables), command[1:]))
    return found


# To compile takes minutes; another test does.
OF_USE = [command for name in ("README.md", "docs/cli.md") for command in commands(ROOT / name)]
RUN = [command for command in OF_USE if "--compile" not in command[1]]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
OTHERS = [words for page in PAGES for variables, words in commands(page) if (variables, words) not in RUN]


@pytest.mark.parametrize("arguments", OTHERS, ids=" ".join)
def test_options_exist(arguments):
    name, *rest = arguments
    command = typer.main.get_command(app)
    context = command.make_context("vecrl", [name], resilient_parsing=True)
    found = command.get_command(context, name)
    assert found.make_context(name, rest, parent=context).params


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("docs") / "runs"
    arguments = ["evolve", "CartPole-v1", "--generations", "2", "--no-video", "--out", str(folder)]
    assert CliRunner().invoke(app, arguments).exit_code == 0
    return folder / "CartPole-v1-1"


def _marks(variables, arguments):
    line = " ".join([*variables, *arguments])
    return [mark for word, mark in MARKS.items() if word in line.lower()]


@pytest.mark.parametrize(
    ("variables", "arguments"), [pytest.param(*c, id=" ".join(c[1]), marks=_marks(*c)) for c in RUN]
)
def test_command_runs(vecrl, variables, arguments, run_folder, tmp_path, monkeypatch, request):
    """With few generations and tests, in a folder in which the first search of the page has run.

    Commands with variables run in a process of their own, since libraries read their variables once.
    """
    monkeypatch.chdir(tmp_path)
    shutil.copytree(run_folder, tmp_path / "runs" / "CartPole-v1-1")
    if "RAY_ADDRESS" in variables:
        cluster: TestCluster = request.getfixturevalue("cluster")
        variables = {**variables, "RAY_ADDRESS": cluster.address}
    if arguments[0] == "evolve":
        arguments = [*arguments, "--generations", "3", "--no-video", "--test-episodes", "4"]
        arguments += ["--workers", "2"] if "RAY_ADDRESS" in variables else []
    if variables:
        command, environment = [sys.executable, "-m", "vecrl", *arguments], {**os.environ, **variables}
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
        assert done.returncode == 0, done.stderr
        return
    answer = vecrl(*arguments)
    assert answer.code == 0, answer.out
    for option in ("--video", "--plot"):
        if option in arguments:
            assert (tmp_path / arguments[arguments.index(option) + 1]).stat().st_size > 1000


def test_the_pages_have_commands():
    assert len(RUN) > 15
    assert len(OTHERS) > 8
    assert {"evolve", "rollout", "play", "export", "runs", "envs"} <= {arguments[0] for _, arguments in RUN}
