"""`vecrl evolve` with real runs: the files of a run, and equal results after resuming."""

import csv
import os
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import psutil
import pytest
import torch
import yaml
from matplotlib.image import imread
from tests.cli.conftest import frames_of
from typer.testing import CliRunner

from vecrl import checkpoint
from vecrl.cli import media
from vecrl.cli.app import SEARCHES, app
from vecrl.cli.run_folder import METRIC_COLUMNS
from vecrl.engine.pool import Pool
from vecrl.policy import ALGORITHMS
from vecrl.policy.saved_policy import SavedPolicy
from vecrl.vector.remote_workers import RemoteWorkerGroup

SMALL = ["--popsize", 6, "--max-steps", 30, "--test-episodes", 3, "--seed", 1]


def rows(folder):
    with (folder / "metrics.csv").open() as file:
        return [{k: float(v or "-inf") for k, v in row.items() if k != "seconds"} for row in csv.DictReader(file)]


def plain(state):
    """Returns a state as nested dictionaries with lists instead of tensors."""
    if isinstance(state, dict):
        return {name: plain(value) for name, value in state.items()}
    return state.tolist() if torch.is_tensor(state) else state


def test_a_run_writes_all_its_files(vecrl, tmp_path):
    answer = vecrl("evolve", "CartPole-v1", *SMALL, "--generations", 3, "--out", tmp_path)
    assert answer.code == 0, answer.out
    folder = tmp_path / "CartPole-v1-1"
    for name in ("config.yaml", "metrics.csv", "learning-curve.png", "best.pt", "best.mp4", "state.ckpt"):
        assert (folder / name).stat().st_size > 0
        assert name == "config.yaml" or name == "state.ckpt" or str(folder / name) in answer.out
    assert not [f.name for f in folder.iterdir() if f.name.startswith(".")]
    assert "over 3 fresh episodes" in answer.out
    for line in ("running 3 fresh episodes", "recording the best policy"):  # what a terminal shows for a while
        assert answer.out.count(f"{line}\n") == 1

    config = yaml.safe_load((folder / "config.yaml").read_text())
    assert (config["env"], config["popsize"], config["seed"], config["backend"]) == ("CartPole-v1", 6, 1, "serial")

    lines = rows(folder)
    assert [line["generation"] for line in lines] == [1, 2, 3]
    assert all(line["best"] >= line["mean"] > 0 for line in lines)
    assert lines[0]["steps"] < lines[1]["steps"] < lines[2]["steps"]

    assert imread(folder / "learning-curve.png").std() > 0.01

    best = SavedPolicy.load(folder / "best.pt")
    assert best.env == "CartPole-v1"
    assert best.norm["count"] > 0
    assert best.module()(torch.zeros(4)).shape == (2,)
    assert torch.load(folder / "best.pt", weights_only=True)["mean_return"] == pytest.approx(best.mean_return)

    frames, rate = frames_of(folder / "best.mp4")
    assert frames.shape[1:] == (400, 600, 3)
    assert rate == 25  # every second of 50 frames per second
    assert len(frames) > 5
    assert frames[0].std() > 10


@pytest.mark.parametrize("env", ["CartPole-v1", "native::CartPole-v1"])
def test_resumed_runs_equal_uninterrupted_runs(vecrl, tmp_path, env):
    stem = env.replace("::", "-")
    once = ["evolve", env, *SMALL, "--test-every", 2, "--no-video", "--out", tmp_path]
    assert vecrl(*once, "--generations", 5).code == 0
    assert vecrl(*once, "--generations", 2).code == 0
    complete, parts = tmp_path / f"{stem}-1", tmp_path / f"{stem}-2"
    assert not (parts / "best.mp4").exists()
    changes = [] if "native" in env else ["--backend", "threads"]
    answer = vecrl("evolve", "--resume", parts, "--generations", 5, *changes)
    assert answer.code == 0, answer.out
    assert rows(complete) == rows(parts)
    states = [checkpoint.load(folder / "state.ckpt")["run"] for folder in (complete, parts)]
    assert torch.equal(states[0]["search"]["center"], states[1]["search"]["center"])
    assert plain(states[0]["selection"]) == plain(states[1]["selection"])
    assert (complete / "best.pt").read_bytes() == (parts / "best.pt").read_bytes()
    assert yaml.safe_load((parts / "config.yaml").read_text())["generations"] == 5


@pytest.mark.parametrize("algorithm", [name for name in ALGORITHMS if name != SEARCHES[0]])
def test_searches_of_each_algorithm_can_be_resumed(vecrl, tmp_path, algorithm):
    once = ["evolve", "native::CartPole-v1", *SMALL, "--test-every", 2, "--no-video", "--out", tmp_path]
    once += ["--algorithm", algorithm]
    assert vecrl(*once, "--generations", 5).code == 0
    assert vecrl(*once, "--generations", 2).code == 0
    complete, parts = tmp_path / "native-CartPole-v1-1", tmp_path / "native-CartPole-v1-2"
    assert yaml.safe_load((parts / "config.yaml").read_text())["algorithm"] == algorithm
    answer = vecrl("evolve", "--resume", parts, "--generations", 5)
    assert answer.code == 0, answer.out
    assert rows(complete) == rows(parts)
    states = [checkpoint.load(folder / "state.ckpt")["run"]["search"] for folder in (complete, parts)]
    assert torch.equal(states[0]["center"], states[1]["center"])
    answer = vecrl("evolve", "--resume", parts, "--algorithm", SEARCHES[0])
    assert "Expected only changes of" in answer.out


def test_names_of_algorithms_are_the_same_without_torch():
    assert tuple(ALGORITHMS) == SEARCHES


@pytest.mark.ray
@pytest.mark.parametrize(
    ("size", "called_class", "method", "fatal"), [([], Pool, "send", 40), ([1], RemoteWorkerGroup, "call_all", 3)]
)
def test_losing_a_cluster_node_does_not_change_results(
    vecrl, tmp_path, cluster, monkeypatch, caplog, size, called_class, method, fatal
):
    """Once in the middle of a generation (stepped by this process) and once before a generation (stepped by the
    workers)."""
    once = ["evolve", "CartPole-v1", *SMALL, "--generations", 3, "--no-video", "--out", tmp_path]
    once += [part for item in size for part in ("--subbatch-size", item)]
    assert vecrl(*once).code == 0
    with cluster.node() as node:
        calls, original = [], getattr(called_class, method)

        def killing(self, *args, **kwargs):
            calls.append(1)
            if len(calls) == fatal:
                cluster.kill(node)
            return original(self, *args, **kwargs)

        monkeypatch.setattr(called_class, method, killing)
        answer = vecrl(*once, "--backend", "ray", "--workers", 7)
        assert answer.code == 0, answer.out
        assert len(calls) > fatal
        assert "evaluated again in other workers" in caplog.text, "the node had some of the seven"
    folders = [tmp_path / f"CartPole-v1-{n}" for n in (1, 2)]
    assert rows(folders[0]) == rows(folders[1])
    states = [checkpoint.load(folder / "state.ckpt")["run"]["search"] for folder in folders]
    assert torch.equal(states[0]["center"], states[1]["center"])


def test_stops_at_the_target_return(vecrl, tmp_path):
    options = ["--stop-at", 30, "--generations", 60, "--no-video", "--popsize", 32, "--out", tmp_path]
    answer = vecrl("evolve", "native::CartPole-v1", *options, "--seed", 1, "--test-episodes", 20)
    assert answer.code == 0
    assert "Solved by best.pt: mean return" in answer.out
    assert len(rows(tmp_path / "native-CartPole-v1-1")) < 60
    assert SavedPolicy.load(tmp_path / "native-CartPole-v1-1" / "best.pt").mean_return >= 30


def test_every_option_reaches_the_search(vecrl, tmp_path):
    network = "RNN(obs_length, 4) >> Linear(4, act_length)"
    options = ["--network", network, "--no-obs-norm", "--action-noise", 0.1, "--decrease-rewards-by", 1]
    options += ["--alive-bonus", 2, 5, 10, "--env-arg", "g=3.0", "--episodes", 2, "--stdev", 0.5]
    options += ["--algorithm", "pgpe-clipup", "--max-speed", 0.2]
    options += ["--backend", "processes", "--workers", 2, "--subbatch-size", 4]
    answer = vecrl("evolve", "Pendulum-v1", *SMALL, *options, "--generations", 2, "--out", tmp_path)
    assert answer.code == 0, answer.out
    folder = tmp_path / "Pendulum-v1-1"
    config = yaml.safe_load((folder / "config.yaml").read_text())
    assert config["env_args"] == {"g": 3.0}
    assert config["alive_bonus"] == [2.0, 5.0, 10.0]
    best = SavedPolicy.load(folder / "best.pt")
    assert (best.network, best.norm) == (network, None)
    assert (folder / "best.mp4").exists()
    assert vecrl("evolve", "--resume", folder, "--generations", 3, "--no-video").code == 0
    assert len(rows(folder)) == 3


def test_missing_seeds_are_drawn_and_saved(vecrl, tmp_path):
    once = ["evolve", "native::CartPole-v1", "--popsize", 4, "--generations", 1, "--no-video", "--test-episodes", 1]
    seeds = set()
    for number in (1, 2):
        assert vecrl(*once, "--out", tmp_path).code == 0
        seeds.add(yaml.safe_load((tmp_path / f"native-CartPole-v1-{number}" / "config.yaml").read_text())["seed"])
    assert len(seeds) == 2


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["evolve", "Nowhere-v1"], "Nowhere"),
        (["evolve", "nowhere::x"], "got 'nowhere::'"),
        (["evolve", "brax::ant"], "pip install"),
        (["evolve", "CartPole-v1", "--network", "Linear(obs_length"], "line 1"),
        (["evolve", "CartPole-v1", "--algorithm", "pgpe", "--popsize", "7"], "even popsize"),
        (["evolve", "CartPole-v1", "--algorithm", "cmaes"], "Expected the name of a search, got 'cmaes'. Did you mean"),
        (["evolve", "CartPole-v1", "--algorithm", "cem", "--max-speed", "1"], "with the algorithm 'pgpe-clipup' only"),
        (
            [
                "evolve",
                "CartPole-v1",
                "--algorithm",
                "cma-es",
                "--network",
                "Linear(obs_length, 400) >> Linear(400, 2)",
            ],
            "at most 2,000 parameters for CMA-ES",
        ),
        (["evolve", "CartPole-v1", "--env-arg", "nonsense"], "KEY=VALUE"),
        (["evolve", "CartPole-v1", "--network", "Linear(7, 2)"], "Expected a network from 4 features to 2 outputs"),
        (["evolve", "CartPole-v1", "--network", "Linear(obs_length, 5)"], "got (1, 5)"),
        (["evolve", "CartPole-v1", "--device", "foo"], "Expected no --device for 'CartPole-v1'"),
        (["evolve", "CartPole-v1", "--env-arg", "foo=1"], "unexpected keyword argument 'foo'"),
        (
            ["evolve", "native::CartPole-v1", "--device", "foo"],
            "Expected a device, such as 'cpu' or 'cuda:0', got 'foo'",
        ),
        (["evolve", "native::CartPole-v1", "--env-arg", "foo=1"], "could not be made with foo=1"),
        (["evolve", "CartPole-v1", "--algorithm", "pgpe-clipup", "--max-speed", "-1"], "max_speed above 0"),
        (["evolve", "CartPole-v1", "--stop-at", "nan"], "stop_at to be a finite number or nothing, got nan"),
        (["evolve", "CartPole-v1", "--stdev", "inf"], "stdev to be a finite number"),
        (["evolve", "CartPole-v1", "--popsize", 10**20], f"popsize of 2147483647 or less, got {10**20}"),
        (["evolve", "CartPole-v1", "--episodes", 10**20], f"episodes of 2147483647 or less, got {10**20}"),
        (["evolve", "--resume", "there-is-none"], "Expected a run folder, got there-is-none"),
    ],
)
def test_invalid_options_print_one_line_and_make_no_folder(vecrl, tmp_path, arguments, text):
    out = [] if "--resume" in arguments else ["--out", tmp_path]
    answer = vecrl(*arguments, *out)
    assert answer.code == 1
    assert "Error:" in answer.out
    assert text in answer.out
    hint = ["If a file of yours registers it, give --import FILE."] if text == "Nowhere" else []
    assert answer.out.strip().splitlines()[1:] == hint
    assert not list(tmp_path.iterdir())


def test_a_run_that_fails_at_once_leaves_no_folder(vecrl, odd, tmp_path):
    answer = vecrl("evolve", "Odd/Raising-v0", "--out", tmp_path)
    assert answer.code == 1
    assert "out of order" in answer.out
    assert not list(tmp_path.iterdir())


def test_a_run_without_success_says_what_to_try(vecrl, tmp_path):
    options = ["--generations", 2, "--popsize", 4, "--test-episodes", 2, "--no-video", "--out", tmp_path]
    answer = vecrl("evolve", "native::CartPole-v1", "--stop-at", 501, *options)
    assert answer.code == 0
    assert "The goal was not reached. What may help: more --generations" in answer.out
    assert "not reached" not in vecrl("evolve", "native::CartPole-v1", "--stop-at", 5, *options).out


def test_tracebacks_on_request(vecrl):
    answer = vecrl("--traceback", "evolve", "CartPole-v1", "--algorithm", "pgpe", "--popsize", 7)
    assert isinstance(answer.error, ValueError)


def test_resumed_runs_cannot_change_fixed_options(vecrl, tmp_path):
    assert vecrl("evolve", "native::CartPole-v1", *SMALL, "--generations", 1, "--no-video", "--out", tmp_path).code == 0
    answer = vecrl("evolve", "--resume", tmp_path / "native-CartPole-v1-1", "--popsize", 8)
    assert answer.code == 1
    assert "in a resumed run, got popsize" in answer.out


def test_missing_environment_raises(vecrl):
    answer = vecrl("evolve")
    assert answer.code == 2
    assert "Expected an environment" in answer.out


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_video_that_is_interrupted_leaves_no_file(vecrl, tmp_path, monkeypatch, number):
    def end_at_second_frame(env):
        if len(frames) == 2:
            assert [file for file in (tmp_path / "CartPole-v1-1").iterdir() if file.name.startswith(".best.mp4.")]
            os.kill(os.getpid(), number)
        frames.append(frame(env))
        return frames[-1]

    frames, frame = [], media._frame
    before = signal.signal(signal.SIGTERM, lambda *_: pytest.fail("SIGTERM is not handled"))
    try:
        monkeypatch.setattr(media, "_frame", end_at_second_frame)
        answer = vecrl("evolve", "CartPole-v1", *SMALL, "--generations", 1, "--out", tmp_path)
    finally:
        handler = signal.signal(signal.SIGTERM, before)
    assert answer.code == 130, answer.out
    assert handler.__name__ == "<lambda>"
    folder = tmp_path / "CartPole-v1-1"
    assert (folder / "best.pt").exists()
    assert not [file.name for file in folder.iterdir() if file.name.startswith(".") or file.suffix == ".mp4"]


@pytest.mark.parametrize("backend", ["serial", "processes"])
def test_interrupted_runs_save_their_results(vecrl, tmp_path, backend):
    command = [sys.executable, "-m", "vecrl", "evolve", "CartPole-v1", "--generations", "100000", "--popsize", "16"]
    command += ["--backend", backend, "--out", str(tmp_path), "--seed", "3", "--max-steps", "100"]
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "start_new_session": True}
    with subprocess.Popen(command, **options) as process:
        folder = tmp_path / "CartPole-v1-1"
        while not (folder / "metrics.csv").exists() or len(rows(folder)) < 3:
            assert process.poll() is None, process.stdout.read()
            time.sleep(0.05)
        children = psutil.Process(process.pid).children(recursive=True)
        os.killpg(process.pid, signal.SIGINT)
        out, _ = process.communicate(timeout=30)
    assert process.returncode == 130, out
    assert "Traceback" not in out
    assert "Interrupted" in out
    assert f"vecrl evolve --resume {folder}" in out
    _, alive = psutil.wait_procs(children, timeout=5)
    assert not alive
    saved = len(rows(folder))
    assert checkpoint.load(folder / "state.ckpt")["run"]["search"]["generation"] == saved
    assert (folder / "learning-curve.png").exists()
    assert (folder / "best.pt").exists()
    answer = vecrl("evolve", "--resume", folder, "--generations", saved + 2, "--no-video", "--test-episodes", 2)
    assert answer.code == 0, answer.out
    assert [row["generation"] for row in rows(folder)] == list(range(1, saved + 3))


def test_metrics_after_the_saved_state_are_removed(vecrl, tmp_path):
    once = ["evolve", "native::CartPole-v1", *SMALL, "--no-video", "--out", tmp_path]
    assert vecrl(*once, "--generations", 2).code == 0
    folder = tmp_path / "native-CartPole-v1-1"
    before = rows(folder)
    with (folder / "metrics.csv").open("a") as file:
        file.write("3,1,1,1,1,1,1,1,1,1\n")  # as if the process had been killed before it saved its state
    assert vecrl("evolve", "--resume", folder, "--generations", 3).code == 0
    assert rows(folder)[:2] == before
    assert [row["generation"] for row in rows(folder)] == [1, 2, 3]
    assert rows(folder)[2]["steps"] > before[1]["steps"]
    with (folder / "metrics.csv").open("a") as file:
        file.write("4,1,1")  # as if the process had been killed while writing
    assert vecrl("evolve", "--resume", folder, "--generations", 4).code == 0
    assert [row["generation"] for row in rows(folder)] == [1, 2, 3, 4]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Returns the folder of a short run, to be copied."""
    parent = tmp_path_factory.mktemp("runs")
    arguments = ["evolve", "native::CartPole-v1", *SMALL, "--generations", 1, "--no-video", "--out", parent]
    assert not CliRunner().invoke(app, list(map(str, arguments))).exit_code
    return parent / "native-CartPole-v1-1"


def in_config(old, new):
    def change(folder):
        text = (folder / "config.yaml").read_text()
        assert old in text
        (folder / "config.yaml").write_text(text.replace(old, new))

    return change


def in_state(**changes):
    def change(folder):
        state = checkpoint.load(folder / "state.ckpt")["run"]
        checkpoint.save(folder / "state.ckpt", run={**state, **changes})

    return change


def test_parent_folders_raise_and_list_their_runs(vecrl, tmp_path, finished):
    for name in ("one", "two"):
        shutil.copytree(finished, tmp_path / name)
    answer = vecrl("evolve", "--resume", tmp_path)
    assert answer.code == 1
    assert "Runs in this folder: one, two." in answer.out


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda folder: (folder / "state.ckpt").write_bytes(b""), "state.ckpt is empty"),
        (lambda folder: (folder / "state.ckpt").write_text("hello"), "state.ckpt is no checkpoint"),
        (lambda folder: os.truncate(folder / "state.ckpt", 700), "state.ckpt is cut short"),
        (lambda folder: checkpoint.save(folder / "state.ckpt", x=1), "to contain the state of a run, got x"),
        (lambda folder: checkpoint.save(folder / "state.ckpt", run={"search": {}}), "in format 2, got format 1"),
        (lambda folder: (folder / "state.ckpt").unlink(), "without config.yaml or state.ckpt"),
        (in_state(search=None), "state.ckpt to be the state of the run in config.yaml"),
        (in_state(selection={"best": {"env": 3}}), "state.ckpt to be the state of the run in config.yaml"),
        (in_state(steps="many"), "state.ckpt to be the state of the run in config.yaml"),
        (in_config("popsize: 6", "popsize: 8"), "state.ckpt to be the state of the run in config.yaml"),
        (in_config("popsize: 6", "popsize: six"), "popsize to be a whole number, got 'six'"),
        (in_config("popsize: 6", "popsize: -6"), "popsize of 2 or more"),
        (in_config("popsize: 6", "popsize: 99999999999"), "popsize of 2147483647 or less"),
        (in_config("popsize: 6", "popsise: 6"), "lacks popsize"),
        (in_config("popsize: 6", "popsize: 6\nspeed: 1"), "should not have speed"),
        (in_config("popsize: 6", "popsize: [6"), "to be YAML with options"),
        (in_config("video: false", "video: 0"), "video to be true or false, got 0"),
        (in_config("alive_bonus: null", "alive_bonus: [1, 2]"), "3 finite numbers"),
        (lambda folder: (folder / "metrics.csv").write_text("a,b\n1,2\n"), "Expected line 1 of"),
        (
            lambda folder: (folder / "metrics.csv").write_text(",".join(METRIC_COLUMNS) + "\n1,x\n"),
            "Expected line 2 of",
        ),
    ],
)
def test_damaged_runs_raise_one_line(vecrl, tmp_path, finished, change, text):
    folder = shutil.copytree(finished, tmp_path / "run")
    change(folder)
    answer = vecrl("evolve", "--resume", folder, "--generations", 2)
    assert answer.code == 1
    assert "Error:" in answer.out
    assert text in answer.out
    assert len(answer.out.strip().splitlines()) == 1


def test_a_slow_generation_is_explained_once(vecrl, tmp_path, monkeypatch):
    monkeypatch.setattr("vecrl.cli.console.SLOW_S", 0.0)
    options = ["--popsize", 6, "--test-episodes", 3, "--seed", 1, "--generations", 2, "--no-video", "--out", tmp_path]
    answer = vecrl("evolve", "CartPole-v1", *options)
    assert answer.code == 0, answer.out
    assert answer.out.count("Still running:") == 1
    assert answer.out.count("give one by --max-steps") == 1
    limited = vecrl("evolve", "CartPole-v1", *options, "--max-steps", 30)
    assert "Still running:" in limited.out
    assert "give one by --max-steps" not in limited.out


def test_many_parameters_are_mentioned_before_the_first_generation(vecrl, tmp_path, monkeypatch):
    options = [*SMALL, "--generations", 1, "--no-video", "--out", tmp_path]
    assert "parameters is slow" not in vecrl("evolve", "CartPole-v1", *options).out
    monkeypatch.setattr("vecrl.cli.evolve.MANY_PARAMETERS", 5)
    assert "A search over 114 parameters is slow." in vecrl("evolve", "CartPole-v1", *options).out


def test_a_missing_encoder_is_reported_before_the_first_step(vecrl, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    answer = vecrl("evolve", "CartPole-v1", *SMALL, "--generations", 1, "--out", tmp_path)
    assert answer.code == 0, answer.out
    assert "There will be no video: Expected imageio-ffmpeg for videos, got none. Install it: pip" in answer.out
    assert "recording" not in answer.out
    answer = vecrl("rollout", "CartPole-v1", "--video", tmp_path / "run.mp4")
    assert answer.code == 1
    assert 'pip install "vecrl[video]"' in answer.out
    assert "steps/s" not in answer.out


def test_names_and_paths_are_printed_as_they_are(vecrl, tmp_path):
    folder = tmp_path / "[bold]runs[/q]"
    answer = vecrl("evolve", "CartPole-v1", *SMALL, "--generations", 1, "--no-video", "--out", folder)
    assert answer.code == 0, answer.out
    assert f"in {folder}/CartPole-v1-1" in answer.out
    assert f"best     {folder}/CartPole-v1-1/best.pt" in answer.out


def test_values_that_are_no_yaml_are_refused(vecrl):
    answer = vecrl("evolve", "native::CartPole-v1", "--env-arg", "a=[1")
    assert answer.code == 1
    assert "Expected a YAML value in 'a=[1', got one that cannot be parsed. Quote it." in answer.out


def test_work_that_does_not_fit_into_memory_prints_one_line(vecrl, monkeypatch):
    """As a real one is, which the test cannot wait for."""

    def evaluator(options):
        np.empty(2**62, np.uint8)

    monkeypatch.setattr("vecrl.cli.options.Options.evaluator", evaluator)
    answer = vecrl("evolve", "native::CartPole-v1")
    assert answer.code == 1
    assert answer.out.startswith("Error: Expected work that fits into memory, got ")
    assert len(answer.out.splitlines()) == 1


@pytest.mark.parametrize("command", [["rollout", "CartPole-v1", "--episodes"], ["bench", "CartPole-v1", "--envs"]])
def test_counts_have_a_maximum(vecrl, command):
    answer = vecrl(*command, 10**20)
    assert answer.code == 2
    assert "2147483647" in answer.out


INTERRUPTED_START = """
import os, signal, sys
from vecrl.cli import main
from vecrl.cli.run_folder import RunFolder

write = RunFolder.write_state

def interrupted(self, state, best):
    os.kill(os.getpid(), signal.SIGINT)
    write(self, state, best)

RunFolder.write_state = interrupted
main(sys.argv[1:])
"""


def test_an_interrupt_at_the_start_leaves_a_whole_folder(vecrl, tmp_path):
    """The signal comes between the creation of the folder and its first file."""
    command = [sys.executable, "-c", INTERRUPTED_START, "evolve", "native::CartPole-v1", *map(str, SMALL), "--no-video"]
    done = subprocess.run([*command, "--out", tmp_path], capture_output=True, text=True, timeout=100)
    assert done.returncode == 130, done.stderr
    folder = tmp_path / "native-CartPole-v1-1"
    assert sorted(path.name for path in folder.iterdir()) == ["config.yaml", "state.ckpt"]
    assert vecrl("evolve", "--resume", folder, "--generations", 1).code == 0


def test_an_error_at_the_start_leaves_no_folder(vecrl, tmp_path, monkeypatch):
    def full(self, config):
        raise OSError("No space left on device")

    monkeypatch.setattr("vecrl.cli.run_folder.RunFolder.write_config", full)
    answer = vecrl("evolve", "native::CartPole-v1", *SMALL, "--no-video", "--out", tmp_path)
    assert (answer.code, list(tmp_path.iterdir())) == (1, [])
