"""Which part may know which: seen in what importing them brings along, and in their own import statements."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "vecrl"
RAYS = {f"engine/backends/{name}.py" for name in ("actors", "placing", "session")}  # the files that know Ray
STANDARD = set(sys.stdlib_module_names)
OPTIONAL = {"brax", "envpool", "imageio", "jax", "jaxlib", "matplotlib", "mujoco", "ray", "rich", "tensordict", "typer"}


def _brought_along(statement: str) -> set[str]:
    code = f"import sys; {statement}; print(*{{name.partition('.')[0] for name in sys.modules}})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


@pytest.mark.parametrize(
    "module",
    [
        "vecrl.engine",
        "vecrl.engine.worker",
        "vecrl.engine.backends.child",
        "vecrl.simulators.gymnasium",
        "vecrl.checkpoint",
        "vecrl.simulators.assorted",
        "vecrl.simulators.gym_making",
    ],
)
def test_workers_start_without_torch(module: str) -> None:
    assert not _brought_along(f"import {module}") & (OPTIONAL | {"torch"})


@pytest.mark.parametrize(
    "statement",
    [
        "import vecrl",
        "from vecrl.vector import VectorEnv",
        "from vecrl.venv import ShmemVectorEnv, VectorEnvNormObs",
        "import vecrl.engine",
        "import vecrl.classic",
    ],
)
def test_who_needs_no_specs_pays_for_none(statement: str) -> None:
    assert not _brought_along(statement) & {"torch", "tensordict", "yaml"}


@pytest.mark.parametrize(
    "module",
    ["vecrl", "vecrl.vector", "vecrl.venv", "vecrl.policy", "vecrl.specs", "vecrl.specs.conversions", "vecrl.envs"],
)
def test_importing_vecrl_takes_nothing_optional(module: str) -> None:
    assert not _brought_along(f"import {module}") & (OPTIONAL - {"tensordict"})


def _imports(path: Path) -> Iterator[str]:
    """The full names of the modules that a file imports; of its own package's, with what is taken of them."""
    package = ("vecrl", *path.relative_to(SOURCE).parent.parts)
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            base = ".".join([*above, *([node.module] if node.module else [])])
            ours = base.partition(".")[0] == "vecrl"
            yield from (f"{base}.{alias.name}" if ours else base for alias in node.names)


def _strangers(folder: str, allowed: tuple[str, ...], libraries: set[str]) -> list[str]:
    """Imports of the files in `folder` that are none of: below `allowed`, the standard library, `libraries`."""
    found: list[str] = []
    for path in sorted((SOURCE / folder).rglob("*.py")) if (SOURCE / folder).is_dir() else [SOURCE / folder]:
        for name in _imports(path):
            top = name.partition(".")[0]
            ours = top == "vecrl" and any(name == a or name.startswith(a + ".") for a in allowed)
            if not ours and top not in STANDARD and top not in libraries:
                found.append(f"{path.relative_to(SOURCE)} imports {name}")
    return found


def test_the_errors_know_nobody() -> None:
    assert _strangers("errors.py", (), {"cloudpickle"}) == []


def test_states_know_arrays_alone() -> None:
    assert _strangers("states", ("vecrl.states", "vecrl.errors"), {"numpy"}) == []


def test_the_engine_knows_arrays_and_spaces() -> None:
    libraries = {"numpy", "gymnasium", "cloudpickle"}
    own = "vecrl.engine", "vecrl.errors", "vecrl.seeding", "vecrl.random_streams"
    found = _strangers("engine", own, libraries)
    assert {line.split(" imports ")[0] for line in found} == RAYS
    for path in RAYS:
        assert _strangers(path, own, libraries | {"ray"}) == []


def test_specs_know_tensors_and_spaces() -> None:
    libraries = {"numpy", "torch", "tensordict", "gymnasium"}
    assert _strangers("specs", ("vecrl.specs", "vecrl.errors"), libraries) == []


def test_environments_know_specs_and_the_engine_and_only_their_own_library() -> None:
    below = ("vecrl.envs", "vecrl.specs", "vecrl.engine", "vecrl.states", "vecrl.errors")
    libraries = {"numpy", "torch", "tensordict"}
    for path in sorted((SOURCE / "envs").iterdir()):
        if path.suffix == ".py":
            assert _strangers(f"envs/{path.name}", below, libraries) == []
    with_simulators, spaces = (*below, "vecrl.simulators"), {"gymnasium", "cloudpickle"}
    assert _strangers("envs/batched", with_simulators, libraries | spaces) == []
    own = {"gym": {"gymnasium"}, "mo_gym": {"mo_gymnasium", "gymnasium"}}
    below = (*below, "vecrl.vector", "vecrl.simulators", "vecrl._utils")
    for path in sorted((SOURCE / "envs" / "libs").glob("*.py")):
        name = "gym" if path.stem.startswith("gym_") else path.stem
        assert _strangers(f"envs/libs/{path.name}", below, libraries | own.get(name, set())) == []


def test_classic_environments_know_spaces_and_their_conversions_tensordicts() -> None:
    below = ("vecrl.classic", "vecrl.errors", "vecrl.stats", "vecrl.states", "vecrl.simulators.gym_making")
    over_tensordicts = (*below, "vecrl.envs", "vecrl.specs")
    for path in sorted((SOURCE / "classic").glob("*.py")):
        name = f"classic/{path.name}"
        if path.stem == "conversions":
            assert _strangers(name, over_tensordicts, {"numpy", "gymnasium", "torch", "tensordict"}) == []
        else:
            assert _strangers(name, below, {"numpy", "gymnasium", "yaml"}) == []


def test_environments_with_ids_know_the_engine_and_dialect_1_alone() -> None:
    """Without torch, but for what stands on batches of tensors."""
    below = ("vecrl.engine", "vecrl.errors", "vecrl.stats", "vecrl.states", "vecrl.vector", "vecrl.simulators")
    below = (*below, "vecrl.venv")
    for path in sorted((SOURCE / "venv").glob("*.py")):
        tensors = {"torch"} if path.stem == "batched" else set()
        assert _strangers(f"venv/{path.name}", below, {"numpy", "gymnasium"} | tensors) == []


def test_only_the_conversions_of_specs_know_gymnasium() -> None:
    for path in sorted((SOURCE / "specs").glob("*.py")):
        assert not {name for name in _imports(path) if name.startswith(("gymnasium", "vecrl.specs.conversions"))}, path


def test_simulators_know_the_lowest_seam_and_their_own_library() -> None:
    seams = ("vecrl.engine.simulator", "vecrl.engine.layout", "vecrl.errors", "vecrl.simulators", "vecrl.seeding")
    seams = (*seams, "vecrl.states")
    for path in sorted((SOURCE / "simulators").iterdir()):
        if path.suffix == ".py" or path.is_dir():
            own = {"brax": {"brax", "jax", "torch"}, "native": {"torch"}}.get(path.stem, set())  # tensors come of these
            assert _strangers(f"simulators/{path.name}", seams, {"numpy", "gymnasium"} | own) == []


@pytest.mark.parametrize(
    "folder", ["engine", "states", "simulators", "specs", "errors.py", "seeding.py", "random_streams.py", "stats.py"]
)
def test_nothing_knows_what_stands_on_it(folder: str) -> None:
    upper = ("vecrl.vector", "vecrl.policy", "vecrl.cli", "vecrl.venv", "vecrl.envs", "vecrl.classic")
    paths = sorted((SOURCE / folder).rglob("*.py")) if (SOURCE / folder).is_dir() else [SOURCE / folder]
    assert paths
    for path in paths:
        assert [name for name in _imports(path) if name.startswith(upper)] == [], path


def test_only_the_command_line_knows_the_command_line() -> None:
    for path in sorted(SOURCE.rglob("*.py")):
        if "cli" not in path.parts and path.name != "__main__.py":
            assert [name for name in _imports(path) if name.startswith("vecrl.cli")] == [], path


def test_the_parser_of_imports_sees_them() -> None:
    names = set(_imports(SOURCE / "engine" / "backends" / "processes.py"))
    assert {"select", "vecrl.errors.Failure", "vecrl.engine.arena.Arena", "vecrl.engine.backends.zygote"} <= names
