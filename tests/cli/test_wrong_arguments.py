"""Wrong arguments of the command line, from tables: each ends with one line that names the argument."""

import re
from collections.abc import Iterable
from itertools import product
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from vecrl.cli.app import app

Case = tuple[list[str], tuple[str, ...]]
"""The arguments, and words of which the message contains one."""

RUN = ["evolve", "native::CartPole-v1"]
SHORT = [*RUN, "--popsize", "2", "--generations", "1", "--max-steps", "2", "--no-video", "--test-episodes", "1"]
TARGETS = {"check": "CartPole-v1", "rollout": "CartPole-v1", "evolve": "native::CartPole-v1", "bench": "CartPole-v1"}
COUNTS = ["0", "-1", "nan", "1e30", "abc", "99999999999999999999"]
NUMBERS = ["abc", "nan", ""]

COMMANDS: list[tuple[str, str]] = [
    ("nowhere", "nowhere"),
    ("Check CartPole-v1", "Check"),
    ("--nowhere", "--nowhere"),
    ("--traceback=3 envs", "--traceback"),
    ("check CartPole-v1 --nowhere", "--nowhere"),
    ("check CartPole-v1 Pendulum-v1", "Pendulum-v1"),
    ("check CartPole-v1 -x", "-x"),
    ("check CartPole-v1 --backend serial", "--backend"),
    ("check CartPole-v1 --render=yes", "--render"),
    ("envs CartPole-v1", "CartPole-v1"),
    ("envs --installed=3", "--installed"),
    ("envs --prefix", "--prefix"),
    ("envs --prefix nowhere", "nowhere"),
    ("envs --prefix 3", "prefix"),
    ("rollout CartPole-v1 --popsize 3", "--popsize"),
    ("rollout CartPole-v1 --episodes", "--episodes"),
    ("rollout CartPole-v1 --seed", "--seed"),
    ("bench CartPole-v1 --seed 3", "--seed"),
    ("bench CartPole-v1 --video x.mp4", "--video"),
    ("evolve", "--resume"),
    ("evolve native::CartPole-v1 --alive-bonus 1 2", "alive-bonus"),
    ("evolve native::CartPole-v1 --alive-bonus a b c", "alive-bonus"),
    ("evolve native::CartPole-v1 --popsize 1", "popsize"),
    ("evolve native::CartPole-v1 --algorithm pgpe --popsize 3", "popsize"),
    ("evolve native::CartPole-v1 --network nowhere", "--network"),
    ("evolve native::CartPole-v1 --network Linear(", "--network"),
    ("evolve native::CartPole-v1 --network Linear(obs_length,3)", "a network"),
    ("evolve native::CartPole-v1 --video=3", "--video"),
    ("evolve CartPole-v1 --compile", "compile"),
]
COUNT_OPTIONS = {
    "rollout": ["--episodes", "--envs", "--max-steps", "--workers", "--threads"],
    "evolve": ["--generations", "--popsize", "--subbatch-size", "--episodes", "--test-every", "--test-episodes"],
    "bench": ["--workers", "--envs", "--threads"],
}
NUMBER_OPTIONS: dict[str, dict[str, list[str]]] = {
    "check": {"--timeout": ["0", "-1", "0.01"], "--seed": ["-1", "1.5", "inf"]},
    "rollout": {"--seed": ["-1", "1.5", "inf"]},
    "evolve": {
        "--stdev": ["inf", "-1", "0"],
        "--max-speed": ["inf", "-1", "0"],
        "--action-noise": ["inf", "-1"],
        "--decrease-rewards-by": ["inf"],
        "--stop-at": ["inf"],
        "--seed": ["-1", "1.5", "inf"],
    },
    "bench": {"--seconds": ["0", "-1"]},
}
CHOICES = {
    "--backend": (["rollout", "evolve", "bench"], ["nowhere", "", "Serial"]),
    "--logger": (["rollout", "evolve"], ["nowhere", "", "CSV"]),
    "--import": (TARGETS, ["nowhere", "nowhere.py", "1abc"]),
    "--python": (TARGETS, ["/nowhere/python", "/tmp"]),
    "--env-arg": (
        TARGETS,
        ["abc", "=3", "a b=3", "1=2", "gravity=[1", "gravity='", "gravity=!!python/name:os.system", ""],
    ),
}
ENVS = {
    "Nowhere-v0": "`Nowhere`",
    "CartPole-v99": "`v99`",
    "nowhere::x": "nowhere",
    "native::nowhere": "'nowhere'",
    "a b-v0": "a b-v0",
    "::": "prefixes",
    "nowhere:CartPole-v1": "'nowhere'",
}


def test_wrong_commands() -> None:
    check((text.split(), (word,)) for text, word in COMMANDS)


def test_wrong_numbers() -> None:
    options = [(command, option) for command, options in COUNT_OPTIONS.items() for option in options]
    cases = [((command, option), value) for (command, option), value in product(options, COUNTS)]
    for command, values_of in NUMBER_OPTIONS.items():
        cases += [((command, option), value) for option, values in values_of.items() for value in [*NUMBERS, *values]]
    assert len(cases) > 100
    check(([command, TARGETS[command], f"{option}={value}"], _names(option)) for (command, option), value in cases)


def test_wrong_choices() -> None:
    cases = [
        (option, command, value)
        for option, (commands, values) in CHOICES.items()
        for command, value in product(commands, values)
    ]
    words = {"--env-arg": ("KEY=VALUE", "YAML value"), "--import": ("--import",)}
    check(([command, TARGETS[command], o, value], words.get(o, _names(o))) for o, command, value in cases)


@pytest.mark.parametrize("command", ["rollout", "evolve", "bench"])
def test_wrong_environments(command: str) -> None:
    cases: list[Case] = [([command, env], (word,)) for env, word in ENVS.items()]
    cases += [([command, TARGETS[command], "--env-arg", "nowhere=3"], ("'nowhere'",))]
    cases += [([command, "native::CartPole-v1", "--device", device], ("device",)) for device in ("nowhere", "3")]
    check(cases)


def test_wrong_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("text").write_text("hello")
    Path("junk.pt").write_bytes(b"\x80\x02garbage")
    Path("empty.pt").write_bytes(b"")
    Path("broken.py").write_text("def f(:\n")
    for folder in ("folder", "x.png", "x.mp4"):
        Path(folder).mkdir()
    cases: list[Case] = []
    for file in ("nowhere.pt", "text", "junk.pt", "empty.pt", "folder"):
        cases.append((["rollout", "CartPole-v1", "--policy", file], (file,)))
    for option, files in {"--video": ["x", "x.webm", "x.mp4", "text/x.mp4"], "--plot": ["x", "x.jpg", "x.png"]}.items():
        for file in files:
            short = ["rollout", "CartPole-v1", "--episodes", "1", "--max-steps", "2"]
            cases.append(([*short, option, file], (file, "text")))
    cases += [(["evolve", "--resume", file], (file,)) for file in ("nowhere", "text", "folder")]
    cases += [
        ([*SHORT, "--out", "text"], ("text",)),
        (["check", "CartPole-v1", "--import", "folder.py"], ("folder.py",)),
    ]
    cases += [(["check", "CartPole-v1", "--import", "broken.py"], ("broken.py",))]
    cases += [(["rollout", "CartPole-v1", "--logger", "csv", "--out", "text"], ("text",))]
    check(cases)


def test_wrong_run_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A configuration that is damaged, or that was edited; and options that contradict it."""
    monkeypatch.chdir(tmp_path)
    assert CliRunner().invoke(app, [*SHORT, "--seed", "1"]).exit_code == 0
    (run,) = Path("runs").iterdir()
    config, state = run / "config.yaml", run / "state.ckpt"
    text, contents = config.read_text(), state.read_bytes()
    values = yaml.safe_load(text)
    changes: dict[str, object] = {"popsize": "4", "generations": 0, "stdev": float("nan"), "env": 3, "backend": 7}
    changes |= {"seed": -1, "network": None, "video": "maybe", "alive_bonus": [1, 2], "max_steps": 1.5, "unknown": 3}
    texts = {name: yaml.safe_dump({**values, name: value}) for name, value in changes.items()}
    texts |= {
        "mapping": "- 1\n",
        "YAML": "env: [1",
        "lacks": "env: CartPole-v1\n",
        "aliases": f"{text}x: &a 1\ny: *a\n",
    }
    texts |= {"config.yaml": "\x00", "an error": '{"env": '}
    problems = []
    for word, changed in texts.items():
        config.write_text(changed)
        problems += problems_of((["evolve", "--resume", str(run)], (word,)))
    config.write_text(text)
    for content in (b"", b"junk", contents[: len(contents) // 2]):
        state.write_bytes(content)
        problems += problems_of((["evolve", "--resume", str(run), "--generations", "2"], ("state.ckpt",)))
    state.write_bytes(contents)
    fixed = ["--popsize=4", "--stdev=0.5", "--episodes=2", "--max-steps=3", "--seed=2", "--network=Tanh()"]
    for option in fixed:
        name = option.partition("=")[0]
        problems += problems_of((["evolve", "--resume", str(run), option], _names(name)))
    problems += problems_of((["evolve", "CartPole-v1", "--resume", str(run)], ("CartPole-v1",)))
    problems += problems_of((["evolve", "--resume", str(run), "--env-arg", "gravity=3"], ("gravity",)))
    assert not problems, "\n".join(problems)
    assert CliRunner().invoke(app, ["evolve", "--resume", str(run), "--generations", "2"]).exit_code == 0


def check(cases: Iterable[Case]) -> None:
    """Checks the exit code and the message of each command."""
    problems = [problem for case in cases for problem in problems_of(case)]
    assert not problems, "\n".join(problems)


def problems_of(case: Case) -> list[str]:
    """Returns what is wrong with the exit code and the message of a command."""
    arguments, words = case
    result = CliRunner().invoke(app, arguments, env={"COLUMNS": "1000", "TERMINAL_WIDTH": "1000"})
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", result.stderr)
    lines = [line for line in text.splitlines() if line.strip(" │╭╰─╯")]
    if result.exit_code == 2:
        is_short = sum(line.startswith("│") for line in lines) == 1  # in a box, below the usage
    else:
        is_short = result.exit_code == 1 and len(lines) in (1, 2) and lines[0].startswith("Error:")
    is_raised = result.exception is not None and not isinstance(result.exception, SystemExit)
    if is_short and not is_raised and "Traceback" not in text and any(word.lower() in text.lower() for word in words):
        return []
    return [f"{arguments}, expected {words}: {result.exit_code} {result.exception!r} {' '.join(text.split())[:300]}"]


def _names(option: str) -> tuple[str, ...]:
    """Returns an option's name on the command line and in `config.yaml`."""
    name = option.removeprefix("--")
    return name, name.replace("-", "_")


ENDLESS: list[Case] = [
    (["bench", "CartPole-v1", "--seconds=inf"], ("seconds",)),
    (["bench", "CartPole-v1", "--seconds=1e30"], ("seconds",)),
]


def test_endless_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    """The commands are not run: only their options are parsed."""
    monkeypatch.setattr("vecrl.cli.bench.Bench.show", lambda self: None)
    check(ENDLESS)
