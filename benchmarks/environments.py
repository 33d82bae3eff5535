"""The Python environment of each implementation: built once with pip, with pinned versions, and reused.

torch has the version of the project's constraints in all of them. Requirements of a library that the work does not need
are not installed; versions that it pins (PufferLib: an old NumPy) are.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SCRATCH = ROOT / ".scratch"


@dataclass(frozen=True, slots=True)
class Environment:
    """A virtual environment: the arguments of each `pip install`, and the packages with versions to report."""

    installs: tuple[tuple[str, ...], ...]
    reported: tuple[str, ...]

    def fingerprint(self) -> str:
        """Returns a hash of the requirements."""
        return hashlib.sha256(repr((self.installs, _torch_pin(), sys.version)).encode()).hexdigest()[:12]


ENVIRONMENTS = {
    "main": Environment((), ("vecrl", "gymnasium", "torch", "numpy", "mujoco")),
    "sb3": Environment(
        (
            ("-e", f"{ROOT}[tensordict]"),
            ("stable-baselines3==2.9.2", "gymnasium[mujoco]==1.4.0", "numpy==2.4.6", "mujoco==3.17.0", "torch"),
        ),
        ("vecrl", "stable-baselines3", "gymnasium", "numpy", "mujoco"),
    ),
    "tianshou": Environment(
        (("tianshou==2.0.1", "gymnasium[mujoco]==1.4.0", "numpy==2.4.6", "mujoco==3.17.0", "ray==2.60.0", "torch"),),
        ("tianshou", "gymnasium", "numpy", "mujoco", "ray"),
    ),
    "evotorch": Environment(
        (("evotorch==0.6.1", "gymnasium[classic-control]==1.4.0", "numpy==2.4.6", "ray==2.60.0", "torch"),),
        ("evotorch", "gymnasium", "numpy", "torch", "ray"),
    ),
    "ray": Environment(
        (
            (
                *("-e", f"{ROOT}[ray,tensordict]"),
                "gymnasium[classic-control]==1.4.0",
                "numpy==2.4.6",
                "ray==2.60.0",
                "torch",
            ),
        ),
        ("vecrl", "ray", "gymnasium", "numpy"),
    ),
    "torchrl": Environment(
        (("torchrl==0.14.1", "gymnasium[classic-control]==1.4.0", "numpy==2.4.6", "torch"),),
        ("torchrl", "tensordict", "gymnasium", "torch", "numpy"),
    ),
    "torchrl-vision": Environment(
        (
            ("torchrl==0.14.1", "gymnasium[classic-control]==1.4.0", "numpy==2.4.6", "torch", "pillow==13.0.0"),
            ("--no-deps", "torchvision==0.28.0"),  # it requires a CUDA build of torch
        ),
        ("torchrl", "torchvision", "tensordict", "torch", "numpy"),
    ),
    "simulators": Environment(
        (
            (
                "-e",
                f"{ROOT}[tensordict,dmc,pettingzoo,openspiel,minigrid,atari,mo-gym,vmas,jumanji,brax,envpool,pgx,xminigrid]",
            ),
            (
                *("--no-deps", "torchrl==0.14.1", "torchvision==0.28.0", "jaxmarl==0.2.0", "navix==0.7.4"),
                *("gymnax==1.0.1", "distrax==0.1.9", "rlax==0.1.9", "tfp-nightly==0.26.0.dev20261027"),
            ),
            ("jaxtyping", "gast", "decorator", "dm-tree", "safetensors", "matplotlib", "seaborn", "six", "wandb"),
        ),
        (
            *("vecrl", "torchrl", "tensordict", "torch", "dm-control", "pettingzoo", "vmas", "jumanji", "brax"),
            *("envpool", "pgx", "navix", "xminigrid", "jaxmarl"),
        ),
    ),
    "pufferlib": Environment(  # 2.0 and 3.0 download binaries when they build; 1.0.1 is the newest that pip can build
        (
            ("pufferlib==1.0.1", "psutil==7.2.2", "filelock", "rich"),
            ("--no-deps", "gymnasium==1.4.0", "cloudpickle", "typing-extensions"),
        ),
        ("pufferlib", "gymnasium", "numpy"),
    ),
    "batched": Environment(
        (
            (
                "envpool==1.2.5",
                "gymnax==1.0.1",
                "six",
                "jax==0.10.2",
                "jaxlib==0.10.2",
                "gymnasium==1.3.0",
                "numpy==2.4.6",
            ),
        ),
        ("envpool", "gymnax", "jax", "numpy"),
    ),
}


class BuildError(RuntimeError):
    """pip could not build an environment; the message contains the end of its log."""


def python_of(name: str) -> Path:
    """Returns the interpreter of the environment `name`; builds it first if it is missing or out of date."""
    environment = ENVIRONMENTS[name]
    if not environment.installs:
        return Path(sys.executable)
    home = SCRATCH / f"bench-{name}"
    stamp = home / "built"
    python = home / "bin" / "python"
    if not stamp.exists() or stamp.read_text() != environment.fingerprint():
        print(f"building {home.relative_to(ROOT)} (once) ...", flush=True)
        _build(home, python, environment)
        stamp.write_text(environment.fingerprint())
    return python


def versions_of(name: str) -> dict[str, str]:
    """Returns the installed versions of the packages to report."""
    code = "import sys, importlib.metadata as m; [print(n, m.version(n)) for n in sys.argv[1:]]"
    command = [str(python_of(name)), "-c", code, *ENVIRONMENTS[name].reported]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    return dict(line.split() for line in lines)


def _build(home: Path, python: Path, environment: Environment) -> None:
    home.parent.mkdir(exist_ok=True)
    subprocess.run([sys.executable, "-m", "venv", "--clear", str(home)], check=True)
    constraint = home / "constraints.txt"
    constraint.write_text(_torch_pin() + "\n")
    log = home / "pip.log"
    for arguments in environment.installs:
        command = [str(python), "-m", "pip", "install", "--quiet", "--constraint", str(constraint), *arguments]
        with log.open("a") as out:
            failed = subprocess.run(command, stdout=out, stderr=subprocess.STDOUT).returncode
        if failed:
            raise BuildError(f"{home.name}: pip install {' '.join(arguments)} failed:\n{log.read_text()[-2000:]}")


def _torch_pin() -> str:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return next(line for line in lines if line.startswith("torch=="))
