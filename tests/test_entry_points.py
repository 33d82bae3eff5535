"""Simulators and backends of installed distributions are found by their entry points, when they are asked for."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SIMULATOR = """
from vecrl.simulators.native import make_native
from vecrl.vector import register

print("imported the simulator")
register("poles", summary="carts with poles", names=lambda: ["short"],
         make_batch=lambda name, num_envs, **_: make_native("CartPole-v1", num_envs))
"""
BACKEND = """
from vecrl.engine import register_backend
from vecrl.engine.backends.serial import SerialBackend

print("imported the backend")
register_backend("inline", lambda: SerialBackend, in_process=True, runs_inline=True)
"""


def distribution(folder: Path, entry_points: str, **modules: str) -> Path:
    """Writes an installed distribution `toy` to a folder."""
    info = folder / "toy-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: toy\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(entry_points)
    for name, text in modules.items():
        (folder / f"{name}.py").write_text(text)
    return folder


@pytest.fixture
def toy(tmp_path: Path) -> Path:
    points = "[vecrl.simulators]\npoles = toy_poles\n\n[vecrl.backends]\ninline = toy_inline\n"
    return distribution(tmp_path, points, toy_poles=SIMULATOR, toy_inline=BACKEND)


def run(folder: Path, code: str) -> str:
    """Runs code in a new interpreter that finds the distributions in a folder."""
    text = f"import sys; sys.path.insert(0, {str(folder)!r})\n{code}"
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_simulator_is_imported_when_its_prefix_is_used(toy: Path) -> None:
    code = """
from vecrl.vector import known_prefixes, make_vector_env
make_vector_env("native::CartPole-v1", num_envs=2)
print(known_prefixes()[0], known_prefixes()[-1])
print(make_vector_env("poles::short", num_envs=2).reset(seed=1)[0].shape)
"""
    lines = run(toy, code).splitlines()
    assert lines == [
        "gym poles",
        "imported the simulator",
        "torch.Size([2, 4])",
    ]


def test_a_backend_is_imported_when_its_name_is_used(toy: Path) -> None:
    code = """
import gymnasium
from vecrl.engine.backends.registry import backend_names
from vecrl.vector import VectorEnv
make = [lambda: gymnasium.make("CartPole-v1")] * 2
VectorEnv(make, backend="serial").close()
print(backend_names())
with VectorEnv(make, backend="inline") as env:
    print(env.reset(seed=1)[0].shape)
"""
    lines = run(toy, code).splitlines()
    assert lines == ["['serial', 'threads', 'processes', 'ray', 'inline']", "imported the backend", "(2, 4)"]


def test_unknown_names_list_those_of_installed_distributions(toy: Path) -> None:
    code = """
from vecrl.engine.backends.registry import backend_entry
from vecrl.vector import make_vector_env
for make in (lambda: make_vector_env("pole::short"), lambda: backend_entry("outline")):
    try:
        make()
    except ValueError as error:
        print(error)
"""
    first, second = run(toy, code).splitlines()
    assert first.startswith("Expected one of the prefixes gym::, brax::, brax::old::, native::, ")
    assert " poles::, got 'pole::'" in first
    assert second == "Expected backend to be 'serial', 'threads', 'processes', 'ray' or 'inline', got 'outline'."


def test_the_command_line_lists_them(toy: Path) -> None:
    code = """
import vecrl
try:
    vecrl.cli.main(["envs"])
except SystemExit as error:
    print("code", error.code)
try:
    vecrl.cli.main(["rollout", "poles::short", "--episodes", "2", "--envs", "2", "--seed", "1"])
except SystemExit as error:
    print("code", error.code)
"""
    text = run(toy, code)
    assert "poles::" in text
    assert "carts with poles" in text
    assert "gym::" in text
    assert text.count("code 0") == 2, text


def test_a_program_of_its_own_checks_environments_of_its_folder(tmp_path: Path) -> None:
    """Workers find the modules of the folder too, in which the program is called."""
    (tmp_path / "my_simulators.py").write_text(
        "import gymnasium\nfrom gymnasium.envs.classic_control import CartPoleEnv\n"
        "class Mine(CartPoleEnv): pass\n"
        "gymnasium.register('Mine-v0', Mine, max_episode_steps=9)\n"
    )
    (tmp_path / "my_vecrl.py").write_text("import my_simulators\nimport vecrl\nvecrl.cli.main()\n")
    command = [sys.executable, "my_vecrl.py", "check", "Mine-v0"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "All checks passed." in done.stdout


def test_the_command_line_shows_why_an_entry_point_fails(tmp_path: Path) -> None:
    entry_points = "[vecrl.simulators]\nbroken = broken_module\n"
    folder = distribution(tmp_path, entry_points, broken_module="import no_such_package")
    code = """
import vecrl
try:
    vecrl.cli.main(["envs"])
except SystemExit as error:
    print("code", error.code)
"""
    text = " ".join(run(folder, code).replace("│", " ").split())
    assert "error Expected" in text, text
    assert "no_such_package" in text
    assert "code 0" in text


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (
            "import no_such_package",
            "'broken' = 'broken_module' of toy (group 'vecrl.simulators') to be importable, got ModuleNotFoundError: "
            "No module named 'no_such_package'. Repair or uninstall toy.",
        ),
        (
            "",
            "of toy (group 'vecrl.simulators') to register the prefix 'broken', got none of this name. "
            "Register it when the module is imported.",
        ),
    ],
    ids=["import fails", "registers nothing"],
)
def test_broken_distributions_are_named(tmp_path: Path, module: str, message: str) -> None:
    folder = distribution(tmp_path, "[vecrl.simulators]\nbroken = broken_module\n", broken_module=module)
    code = """
from vecrl.vector import available, make_vector_env
make_vector_env("native::CartPole-v1")
print(available("broken").missing)
try:
    make_vector_env("broken::env")
except ImportError as error:
    print(error)
"""
    first, second = run(folder, code).splitlines()
    assert first == second
    assert first.endswith(message)
