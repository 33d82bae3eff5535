"""The files of a release, and its wheel in new environments, without extras and with each of `torch`, `tensordict` and
`cli`: what runs there, what it imports, and which extra the error of an import names. Needs uv, and a package registry
or uv's cache."""

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

pytestmark = [pytest.mark.packages, pytest.mark.timeout(400)]  # the first import of torch compiles its modules

ROOT = Path(__file__).parents[1]
# Each extra, with a library that it installs. Each has what the ones before it have.
LIBRARIES = {"torch": "torch", "tensordict": "tensordict", "cli": "typer"}
LEVELS = ["core", *LIBRARIES]
CORE = {"vecrl", "numpy", "gymnasium", "cloudpickle", "farama-notifications", "typing-extensions"}

# What runs with each extra
PROGRAMS = {
    "core": """
import gymnasium, numpy
from vecrl import checkpoint
from vecrl.classic import GymEnv
from vecrl.running_stats import RunningStats
from vecrl.vector import AsyncVectorEnv, VectorEnv, available
from vecrl.venv import DummyVectorEnv, ShmemVectorEnv, SubprocVectorEnv

env_fns = [lambda: gymnasium.make("CartPole-v1")] * 2
for backend in "serial", "threads", "processes":
    with VectorEnv(env_fns, backend=backend, num_workers=2) as envs:
        assert envs.reset(seed=0)[0].shape == (2, 4)
        assert envs.step(numpy.array([0, 1]))[1].tolist() == [1, 1]
        checkpoint.save("envs.ckpt", envs=envs, stats=RunningStats(4))
        checkpoint.load("envs.ckpt", envs=envs)
envs = AsyncVectorEnv(env_fns)
envs.reset(seed=0)
envs.step_async([0, 1])
assert envs.step_wait()[0].shape == (2, 4)
envs.close()
for make in DummyVectorEnv, SubprocVectorEnv, ShmemVectorEnv:
    envs = make(env_fns, wait_num=1)
    envs.reset(1)
    envs.reset()
    assert len(envs.step([0, 1])[0]) >= 1
    envs.close()
for name in "CartPole-v1", "gym::CartPole-v1":
    env = GymEnv(name)
    assert env.reset().shape == (4,)
    assert env.step(0)[1:3] == (1, False)
    env.close()
assert "CartPole-v1" in available("gym").names
""",
    "torch": """
import torch
from vecrl.policy import Policy, PopulationEvaluator, PopulationSearch
from vecrl.vector import make_vector_env

with make_vector_env("native::CartPole-v1", num_envs=8) as envs:
    policy = Policy("Linear(4, 2)")
    policy.set_parameters(torch.randn(8, policy.parameter_length))
    obs = envs.reset(seed=0)[0]
    assert envs.step(policy(obs).argmax(-1))[1].tolist() == [1] * 8
with make_vector_env("CartPole-v1", num_envs=2) as envs:
    assert envs.reset(seed=0)[0].shape == torch.Size([2, 4])
""",
    "tensordict": """
from vecrl.classic import GymEnv as ClassicEnv, from_classic
from vecrl.envs import GymEnv, ParallelEnv, RewardSum, TransformedEnv, check_env_specs
from vecrl.record import CSVLogger

env = TransformedEnv(ParallelEnv(2, lambda: GymEnv("CartPole-v1")), RewardSum())
assert env.rollout(4)["next", "episode_reward"].shape == (2, 4, 1)
env.close()
check_env_specs(from_classic(ClassicEnv("CartPole-v1")))
with CSVLogger("run", "logs") as logger:
    logger.log_scalar("return", 1.0, step=0)
""",
    "cli": """
from vecrl.cli import main

for command in ("envs --prefix native", "check CartPole-v1", "rollout native::CartPole-v1 --episodes 2 --seed 0",
                "bench CartPole-v1 --envs 2 --seconds 0.1",
                "evolve native::CartPole-v1 --generations 2 --seed 0 --out runs --no-video --test-episodes 2"):
    try:
        main(command.split())
    except SystemExit as end:
        assert end.code == 0, command
""",
}

# What needs an extra, and what the message names
NEEDS = {
    "import vecrl.policy": ("torch", "vecrl.policy"),
    "import vecrl.policy.policy": ("torch", "vecrl.policy"),
    "from vecrl.vector import TorchWrapper": ("torch", "vecrl.vector.TorchWrapper"),
    "import vecrl; vecrl.vector.make_vector_env('native::CartPole-v1')": ("torch", "vecrl.vector.make_vector_env"),
    "import vecrl.simulators.native": ("torch", "vecrl.simulators.native"),
    **{
        f"import vecrl.simulators.{module}": ("torch", f"vecrl.simulators.{module}")
        for module in ("batch_adapter", "jax_simulator", "row_task")
    },
    "from vecrl.classic import GymEnv; GymEnv('native::CartPole-v1')": ("torch", "native::CartPole-v1"),
    "from vecrl.running_stats import RunningStats; RunningStats(device='cpu')": ("torch", "devices"),
    "import vecrl.specs": ("tensordict", "vecrl.specs"),
    "from vecrl.envs import GymEnv": ("tensordict", "vecrl.envs"),
    "import vecrl.envs.libs.gym": ("tensordict", "vecrl.envs"),
    "import vecrl.record": ("tensordict", "vecrl.record"),
    "import vecrl; vecrl.convert": ("tensordict", "vecrl.convert"),
    "from vecrl.classic import to_classic": ("tensordict", "vecrl.classic.to_classic"),
    "from vecrl.testing import EnvConformance": ("tensordict", "vecrl.testing.EnvConformance"),
    "from vecrl.cli import main; main(['--help'])": ("cli", "the command line"),
}
REPORT = """
import sys
print("imported:", *{name.partition(".")[0] for name in sys.modules})
"""
ASK = """
import contextlib, io, json, sys

for statement in json.load(sys.stdin):
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            exec(statement)
    except (ImportError, SystemExit) as error:
        if str(error) != "0":  # a command that has ended well
            print(json.dumps([statement, type(error).__name__, str(error)]))
"""


def _uv(*arguments: str) -> str:
    program = os.environ.get("VECRL_UV") or shutil.which("uv")
    if program is None:
        pytest.fail("Expected uv on the path or in the variable VECRL_UV, got none. Run `make test-packages`.")
    links = {"UV_FIND_LINKS": os.environ["PIP_FIND_LINKS"]} if "PIP_FIND_LINKS" in os.environ else {}
    done = subprocess.run([program, *arguments], capture_output=True, text=True, env={**links, **os.environ})
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a folder with the source archive and the wheel, which is made from that archive."""
    folder = tmp_path_factory.mktemp("release")
    _uv(
        "tool",
        "run",
        "--from",
        "build[uv]==1.6.1",
        "pyproject-build",
        "--installer",
        "uv",
        "--outdir",
        str(folder),
        str(ROOT),
    )
    return folder


@pytest.fixture(scope="module", params=[pytest.param(level, marks=pytest.mark.xdist_group(level)) for level in LEVELS])
def level(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def python(level: str, release: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the interpreter of a new environment with the wheel and the extra of `level`."""
    folder = tmp_path_factory.mktemp(level)
    _uv("venv", "--python", sys.executable, f"{folder}/venv")
    python = folder / "venv" / "bin" / "python"
    extra = "" if level == "core" else f"[{level}]"
    constraints = ["--constraint", str(ROOT / "constraints.txt")]
    (wheel,) = release.glob("*.whl")
    # uv would take a wheel of another commit from its cache
    _uv("pip", "install", "--python", str(python), *constraints, "--refresh-package", "vecrl", f"{wheel}{extra}")
    return python


def _run(python: Path, program: str, stdin: str = "") -> list[str]:
    """Returns the lines that a program prints, which is run in the folder of the environment."""
    folder = python.parents[2]
    variables = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    (folder / "program.py").write_text(program)
    done = subprocess.run(
        [python, "-W", "error::ImportWarning", "program.py"],
        input=stdin, capture_output=True, text=True, cwd=folder, env=variables,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


def _later(level: str) -> set[str]:
    """Returns the libraries of the extras after this one."""
    return {library for extra, library in LIBRARIES.items() if LEVELS.index(extra) > LEVELS.index(level)}


def _tracked(*paths: str) -> set[str]:
    """Returns the files that git knows."""
    return set(subprocess.run(["git", "ls-files", *paths], cwd=ROOT, capture_output=True, text=True).stdout.split())


def test_the_wheel_has_every_module_and_nothing_else(release: Path) -> None:
    (wheel,) = release.glob("*.whl")
    with zipfile.ZipFile(wheel) as opened:
        names = opened.namelist()
    metadata = {name for name in names if ".dist-info/" in name}
    assert {name.removeprefix("src/") for name in _tracked("src/vecrl")} == set(names) - metadata
    files = {name.partition("/")[2] for name in metadata}
    assert files == {"METADATA", "WHEEL", "RECORD", "entry_points.txt", "licenses/LICENSE"}


def test_the_source_archive_has_what_git_knows(release: Path) -> None:
    (archive,) = release.glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        names = {name.partition("/")[2] for name in opened.getnames()}
    assert names - {"PKG-INFO"} == _tracked()


def test_the_registry_would_take_both(release: Path) -> None:
    """Twine checks the metadata and that the README can be shown."""
    printed = _uv("tool", "run", "twine==7.0.0", "check", "--strict", *map(str, release.iterdir()))
    assert printed.count("PASSED") == 2


def test_versions_agree(release: Path) -> None:
    import vecrl

    assert re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)[0] == vecrl.__version__
    assert {path.name.split("-")[1].removesuffix(".tar.gz") for path in release.iterdir()} == {vecrl.__version__}


def test_an_extra_installs_no_more_than_it_needs(level: str, python: Path) -> None:
    packages = json.loads(_uv("pip", "list", "--python", str(python), "--format", "json"))
    installed = {package["name"] for package in packages}
    assert installed >= CORE if level != "core" else installed == CORE
    assert {*LIBRARIES.values()} - installed == _later(level)


def test_what_an_extra_is_for_runs_without_libraries_of_later_ones(level: str, python: Path) -> None:
    """One program after another, from that of the core on, in one process."""
    levels = LEVELS[: LEVELS.index(level) + 1]
    lines = _run(python, "".join(PROGRAMS[name] + REPORT for name in levels))
    reports = [line.split()[1:] for line in lines if line.startswith("imported: ")]
    for name, imported in zip(levels, reports, strict=True):
        assert _later(name).isdisjoint(imported), name


def test_what_needs_another_extra_says_which(level: str, python: Path) -> None:
    errors = {statement: rest for statement, *rest in map(json.loads, _run(python, ASK, json.dumps([*NEEDS])))}
    expected = {
        statement: [
            "SystemExit" if extra == "cli" else "VersionError",
            f'Expected the extra "{extra}" for {user}, got none. Install it: pip install "vecrl[{extra}]" '
            f"(No module named '{LIBRARIES[extra]}')",
        ]
        for statement, (extra, user) in NEEDS.items()
        if LIBRARIES[extra] in _later(level)
    }
    assert errors == expected
