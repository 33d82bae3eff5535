"""What is done with runs: several seeds, files of options, tables of runs, playing and exporting their policies."""

import json
import re
import shutil

import pytest
import torch
import yaml
from matplotlib.image import imread
from tests.cli.conftest import frames_of

from vecrl.policy import Policy
from vecrl.policy.saved_policy import SavedPolicy

SMALL = ["--popsize", 6, "--max-steps", 30, "--test-episodes", 3, "--no-video"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with one run of two generations."""
    from typer.testing import CliRunner

    from vecrl.cli.app import app

    out = tmp_path_factory.mktemp("runs")
    once = ["evolve", "CartPole-v1", *SMALL, "--generations", 2, "--seed", 5, "--stop-at", 400, "--out", out]
    assert CliRunner().invoke(app, [str(argument) for argument in once]).exit_code == 0
    return out


def test_seeds_are_runs_of_their_own_with_one_picture(vecrl, tmp_path):
    once = ["evolve", "native::CartPole-v1", *SMALL, "--generations", 2, "--out", tmp_path]
    answer = vecrl(*once, "--seeds", 3, "--seed", 7)
    assert answer.code == 0, answer.out
    parent = tmp_path / "native-CartPole-v1-seeds-1"
    assert f"3 of 3 seeds are complete: {parent}" in answer.out
    assert imread(parent / "learning-curves.png").std() > 0.01
    runs = sorted(parent.glob("*/config.yaml"))
    assert [yaml.safe_load(file.read_text())["seed"] for file in runs] == [7, 8, 9]
    assert vecrl(*once, "--seed", 8).code == 0
    alone = tmp_path / "native-CartPole-v1-1" / "best.pt"
    assert alone.read_bytes() == (runs[1].parent / "best.pt").read_bytes()


def test_wrong_options_of_seeds_leave_no_folder(vecrl, tmp_path):
    answer = vecrl("evolve", "CartPole-v1", "--algorithm", "pgpe", "--popsize", 7, "--seeds", 2, "--out", tmp_path)
    assert answer.code == 1
    assert "even popsize" in answer.out
    assert not list(tmp_path.iterdir())


def test_an_interrupt_ends_all_seeds(vecrl, tmp_path, monkeypatch):
    from vecrl.cli.evolve import Evolution

    monkeypatch.setattr(Evolution, "advance", lambda self: (_ for _ in ()).throw(KeyboardInterrupt))
    answer = vecrl("evolve", "CartPole-v1", *SMALL, "--seeds", 3, "--out", tmp_path)
    assert answer.code == 130
    assert "0 of 3 seeds are complete" in answer.out
    assert re.search(r"The other seeds: the same command with --seed \d+ --seeds 2\n", answer.out)


def test_options_from_a_file_are_defaults(vecrl, tmp_path):
    file = tmp_path / "options.yaml"
    options = {"env": "Pendulum-v1", "generations": 1, "popsize": 4, "max_steps": 5, "test_episodes": 2, "video": False}
    file.write_text(yaml.safe_dump({**options, "env_args": {"g": 9.0}, "device": None, "alive_bonus": [1, 2, 0.5]}))
    answer = vecrl("evolve", "--config", file, "--popsize", 6, "--out", tmp_path)
    assert answer.code == 0, answer.out
    used = yaml.safe_load((tmp_path / "Pendulum-v1-1" / "config.yaml").read_text())
    assert used["env_args"] == {"g": 9.0}
    assert used["alive_bonus"] == [1, 2, 0.5]
    assert (used["generations"], used["popsize"], used["stdev"]) == (1, 6, 0.3)
    answer = vecrl("evolve", "--config", tmp_path / "Pendulum-v1-1" / "config.yaml", "--out", tmp_path)
    assert answer.code == 0, answer.out
    assert (tmp_path / "Pendulum-v1-2" / "best.pt").read_bytes() == (tmp_path / "Pendulum-v1-1/best.pt").read_bytes()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("popsiz: 3", "got 'popsiz'. Did you mean popsize?"),
        ("python: /bin/evil", "got 'python'"),
        ("imports: [os]", "got 'imports'"),
        ("[1, 2]", "to contain a mapping, got list"),
        ("a: &x [1]\nb: *x", "it has aliases"),
        ("popsize: 'many'", "popsize"),
        ("popsize: [1, 2]", "popsize"),
        ("env: 'evil:World-v0'", "to name no code, got env: 'evil:World-v0'"),
        ("env: CartPole-v1\nenv_args: {render: 'evil.py'}", "to name no code, got render: 'evil.py'"),
        ("env_args: 3", "Expected env_args"),
        ("x: [", "to be YAML with options"),
    ],
)
def test_wrong_files_of_options_are_refused(vecrl, tmp_path, text, message):
    file = tmp_path / "options.yaml"
    file.write_text(text)
    answer = vecrl("evolve", "--config", file, "--out", tmp_path / "runs")
    assert answer.code in (1, 2)
    assert message in " ".join(answer.out.replace("│", " ").split())
    assert isinstance(answer.error, SystemExit)
    assert not (tmp_path / "runs").exists()


def test_files_of_options_that_cannot_be_read_are_refused(vecrl, tmp_path):
    (tmp_path / "large.yaml").write_bytes(b"#" * (2**20 + 1))
    for name, message in {
        "none.yaml": "No such file",
        "large.yaml": "more than 1048576 bytes",
        ".": "directory",
    }.items():
        answer = vecrl("evolve", "--config", tmp_path / name)
        assert answer.code == 2
        assert message in " ".join(answer.out.replace("│", " ").split())


def test_runs_are_listed_and_drawn(vecrl, folder, tmp_path):
    picture = tmp_path / "runs.png"
    answer = vecrl("runs", folder, "--plot", picture, "--json")
    assert answer.code == 0, answer.out
    (run,) = json.loads(answer.stdout)["runs"]
    assert run["run"] == "CartPole-v1-1"
    assert (run["env"], run["algorithm"], run["seed"], run["generations"]) == ("CartPole-v1", "cem", 5, 2)
    assert run["solved"] is False
    assert run["test"] == pytest.approx(SavedPolicy.load(folder / "CartPole-v1-1" / "best.pt").mean_return)
    assert imread(picture).std() > 0.01
    line = next(line for line in answer.out.splitlines() if line.startswith("CartPole-v1-1"))
    assert line.split()[-1] == "no"


def test_broken_runs_are_named_and_the_others_listed(vecrl, folder, tmp_path):
    shutil.copytree(folder, tmp_path / "runs")
    shutil.copytree(folder / "CartPole-v1-1", tmp_path / "runs" / "broken")
    (tmp_path / "runs" / "broken" / "config.yaml").write_text("env: [")
    answer = vecrl("runs", tmp_path / "runs")
    assert answer.code == 0, answer.out
    assert "broken: Expected" in answer.out
    assert "\nCartPole-v1-1 " in answer.out
    assert (tmp_path / "runs" / "runs.png").exists()


def test_the_picture_is_not_written_through_a_link(vecrl, folder, tmp_path):
    shutil.copytree(folder, tmp_path / "runs")
    (tmp_path / "mine.png").write_bytes(b"mine")
    (tmp_path / "runs" / "runs.png").unlink(missing_ok=True)
    (tmp_path / "runs" / "runs.png").symlink_to(tmp_path / "mine.png")
    answer = vecrl("runs", tmp_path / "runs")
    assert answer.code == 1
    assert "got runs.png. Remove it" in answer.out
    assert (tmp_path / "mine.png").read_bytes() == b"mine"


def test_the_picture_has_a_part_for_each_of_the_first_environments(vecrl, folder, tmp_path, monkeypatch):
    config = folder / "CartPole-v1-1" / "config.yaml"
    for env in ("A", "B", "C"):
        shutil.copytree(folder / "CartPole-v1-1", tmp_path / env)
        text = config.read_text().replace("env: CartPole-v1", f"env: {env}-v0")
        (tmp_path / env / "config.yaml").write_text(text)
    assert vecrl("runs", tmp_path).code == 0
    height = imread(tmp_path / "runs.png").shape[0]
    monkeypatch.setattr("vecrl.cli.runs.MOST_DRAWN", 1)
    assert vecrl("runs", tmp_path).code == 0
    assert imread(tmp_path / "runs.png").shape[0] * 3 == height


def test_a_folder_without_runs_is_an_error(vecrl, tmp_path):
    answer = vecrl("runs", tmp_path)
    assert answer.code == 1
    assert f"Expected runs of vecrl evolve in {tmp_path}, got none." in answer.out


def test_the_best_policy_of_a_run_is_played(vecrl, folder, tmp_path, monkeypatch):
    run, video = folder / "CartPole-v1-1", tmp_path / "v.gif"
    answer = vecrl("play", run, "--seed", 3, "--video", video, "--video-envs", 2, "--video-steps", 5)
    assert answer.code == 0, answer.out
    assert "saved policy: 1 episodes" in answer.out
    assert frames_of(video)[0].shape[0] == 3  # after 0, 2 and 4 steps
    rolled = vecrl(
        "rollout", "CartPole-v1", "--policy", run / "best.pt", "--episodes", 1, "--seed", 3, "--max-steps", 30
    )
    tables = [[line for line in one.out.splitlines() if "return │" in line] for one in (answer, rolled)]
    assert tables[0] == tables[1]
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    for path in (run, run / "best.pt"):
        answer = vecrl("play", path)
        assert answer.code == 1
        assert "DISPLAY is not set. Add --video play.mp4." in answer.out
    monkeypatch.setenv("DISPLAY", ":0")  # SDL draws to memory
    assert "in the window: return" in vecrl("play", run, "--seed", 3).out


def test_playing_runs_no_code_of_a_folder(vecrl, folder, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(folder / "CartPole-v1-1", run)
    config = yaml.safe_load((run / "config.yaml").read_text())
    (run / "config.yaml").write_text(yaml.safe_dump({**config, "env": "evil:World-v0"}))
    answer = vecrl("play", run, "--video", tmp_path / "v.mp4")
    assert answer.code == 1
    assert "repeat it on the command line: --env evil:World-v0" in answer.out


def test_the_best_policy_of_a_run_is_exported(vecrl, folder, tmp_path):
    run, file = folder / "CartPole-v1-1", tmp_path / "new" / "policy.pt2"
    answer = vecrl("export", run, file)
    assert answer.code == 0, answer.out
    assert answer.out.splitlines()[-1] == f"exported: {file}"
    obs = torch.randn(3, 4)
    policy = Policy.load(run / "best.pt")
    torch.testing.assert_close(torch.export.load(file).module()(obs), policy(obs))


@pytest.mark.parametrize("command", ["play", "export"])
def test_folders_without_a_policy_are_refused(vecrl, tmp_path, command):
    extra = [tmp_path / "p.pt2"] if command == "export" else ["--video", tmp_path / "v.mp4"]
    for path in (tmp_path / "none", tmp_path):
        answer = vecrl(command, path, *extra)
        assert answer.code == 1
        assert "Expected " in answer.out
        assert len(answer.out.strip().splitlines()) == 1


def test_exports_with_another_suffix_are_refused_first(vecrl, folder, tmp_path):
    answer = vecrl("export", folder / "CartPole-v1-1", tmp_path / "new" / "policy.bin")
    assert answer.code == 1
    assert "Expected a file name that ends in .pt2 or .onnx" in answer.out
    assert not (tmp_path / "new").exists()
