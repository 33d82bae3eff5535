"""Which package may import which, checked by the modules that an import loads and by the import statements."""

import ast
import subprocess
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest

import vecrl

SOURCE = Path(__file__).parents[1] / "src" / "vecrl"
# the files that may import Ray
RAY_FILES = {f"engine/backends/ray_cluster/{name}.py" for name in ("backend", "session")}
STDLIB_MODULES = set(sys.stdlib_module_names)
OPTIONAL = {
    "brax",
    "dm_control",
    "envpool",
    "imageio",
    "jax",
    "jaxlib",
    "matplotlib",
    "mujoco",
    "ray",
    "rich",
    "tensordict",
    "typer",
}


# Book 2, TensorDicts: what needs the extra `tensordict`. Names end before a dot.
BOOK_2 = (
    *("vecrl.specs", "vecrl.envs", "vecrl.record"),
    *("vecrl.testing.envs", "vecrl.testing.independent_rows", "vecrl.testing.transforms"),
)
# Above both books. `testing.batch_simulators` tests a simulator in all dialects.
ABOVE = (
    *("vecrl.convert", "vecrl.interop", "vecrl.cli", "vecrl.__main__"),
    *("vecrl.classic.conversions", "vecrl.testing.batch_simulators"),
)


# Of each group of statements: what is imported first, which saves time, and packages that none of them may import.
WITHOUT_TORCH = [
    *("import vecrl", "from vecrl.vector import VectorEnv", "import vecrl.engine", "import vecrl.classic"),
    "from vecrl.venv import ShmemVectorEnv, VectorEnvNormObs",
]
IN_WORKERS = [
    *("vecrl.engine", "vecrl.engine.worker", "vecrl.engine.backends.process_worker", "vecrl.checkpoint"),
    *("vecrl.simulators.gymnasium", "vecrl.simulators.gymnasium.make", "vecrl.simulators.gymnasium.libraries"),
    *("vecrl.simulators.heterogeneous", "vecrl.simulators.dm_control", "vecrl.simulators.meltingpot"),
    "vecrl.simulators.pettingzoo",
]
WITHOUT_COMPILER = ["vecrl.vector.factory", "vecrl.policy", "vecrl.simulators.native"]
WITHOUT_OPTIONAL = [
    "vecrl",
    "vecrl.vector",
    "vecrl.venv",
    "vecrl.policy",
    "vecrl.specs",
    "vecrl.specs.convert",
    "vecrl.envs",
]
IMPORTS: dict[str, tuple[list[str], set[str]]] = {
    "import numpy": (WITHOUT_TORCH, {"torch", "tensordict", "yaml"}),
    "import gymnasium": ([f"import {module}" for module in IN_WORKERS], OPTIONAL | {"torch"}),
    "import torch": ([f"import {module}" for module in WITHOUT_COMPILER], {"sympy"}),  # which the compiler imports
    "import tensordict": ([f"import {module}" for module in WITHOUT_OPTIONAL], OPTIONAL - {"tensordict"}),
}
FORKED = """
import os, sys
for first, statements in {imports!r}:
    exec(first)
    for statement in statements:
        if os.fork() == 0:
            exec(statement)
            print(*{{name.partition(".")[0] for name in sys.modules}}, flush=True)
            os._exit(0)
        if os.wait()[1]:
            sys.exit(f"This failed: {{statement}}")
"""
"""A program that executes statements, each in a process in which vecrl is not imported yet."""


def test_imports_load_only_what_they_need() -> None:
    code = FORKED.format(imports=[(first, statements) for first, (statements, _) in IMPORTS.items()])
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    names = iter(done.stdout.splitlines())
    found = {
        (statement, first): set(next(names).split()) & excluded
        for first, (statements, excluded) in IMPORTS.items()
        for statement in statements
    }
    assert {statement: packages for statement, packages in found.items() if packages} == {}
    assert list(names) == []


def test_subpackages_are_attributes_that_are_imported_on_first_use() -> None:
    modules = "print(*sorted(name for name in sys.modules if name.count('.') == 1 and name.startswith('vecrl.')))"
    code = f"import sys, vecrl; {modules}; vecrl.errors; {modules}; print(vecrl.vector.VectorEnv.__name__, dir(vecrl))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    before, after, last = done.stdout.splitlines()
    assert (before, after) == ("vecrl.interop", "vecrl.errors vecrl.interop")
    assert last.startswith("VectorEnv")
    assert all(repr(path.stem) in last for path in SOURCE.iterdir() if (path / "__init__.py").exists())
    with pytest.raises(AttributeError, match="module 'vecrl' has no attribute 'vectors'"):
        _ = vecrl.vectors  # pyright: ignore[reportAttributeAccessIssue]


def _statements(body: Iterable[ast.AST]) -> Iterator[ast.Import | ast.ImportFrom]:
    """Returns the import statements of a module, those in functions included, except those for types alone."""
    for node in body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            yield from _statements(node.orelse)
        else:
            yield from _statements(ast.iter_child_nodes(node))


def _targets(module: str, path: Path, statement: ast.Import | ast.ImportFrom) -> Iterator[tuple[str, str]]:
    """Returns the names that a statement imports: of each, what is imported from, and the full name."""
    if isinstance(statement, ast.Import):
        yield from ((alias.name, alias.name) for alias in statement.names)
    else:
        package = module.split(".") if path.name == "__init__.py" else module.split(".")[:-1]
        above = package[: len(package) - statement.level + 1] if statement.level else []
        base = ".".join([*above, *([statement.module] if statement.module else [])])
        yield from ((base, f"{base}.{alias.name}") for alias in statement.names)


def _module_of(path: Path) -> str:
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _imports(path: Path) -> Iterator[str]:
    """Returns the full names of the modules that a file imports; for its own package, with the imported names."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import | ast.ImportFrom):
            for base, full in _targets(_module_of(path), path, node):
                yield full if base.partition(".")[0] == "vecrl" else base


@cache
def _graph() -> dict[str, set[str]]:
    """Returns the modules of vecrl that each module of it imports, also within functions.

    Not counted are imports for types alone, and names that a package imports at the first access, by text.
    """
    paths = {_module_of(path): path for path in SOURCE.rglob("*.py")}
    graph: dict[str, set[str]] = {}
    for module, path in paths.items():
        names = [name for node in _statements([ast.parse(path.read_text())]) for name in _targets(module, path, node)]
        found = {full if full in paths else base for base, full in names}
        graph[module] = (found & paths.keys()) - {module}
    return graph


def _in_circles(graph: dict[str, set[str]]) -> set[str]:
    """Returns the nodes from which a path leads back to them."""

    def is_reachable(node: str) -> bool:
        seen, waiting = set(), [*graph[node]]
        while waiting:
            other = waiting.pop()
            if other not in seen:
                seen.add(other)
                waiting += graph.get(other, ())
        return node in seen

    return {node for node in graph if is_reachable(node)}


def _book(module: str) -> int:
    """Returns 1 or 2, or 3 for what is above both books."""
    for number, names in ((3, ABOVE), (2, BOOK_2)):
        if any(f"{module}.".startswith(f"{name}.") for name in names):
            return number
    return 3 if module == "vecrl" else 1


def test_book_1_imports_neither_book_2_nor_what_is_above_it() -> None:
    """And book 2 imports nothing that is above both."""
    edges = [(module, other) for module, imported in _graph().items() for other in imported]
    assert len(edges) > 1000
    assert [f"{module} imports {other}" for module, other in edges if _book(module) < _book(other)] == []


def test_each_module_that_is_imported_exists() -> None:
    """Also in functions, which the type checker accepts."""
    modules = {_module_of(path): path for path in SOURCE.rglob("*.py")}
    names = [
        (module, base)
        for module, path in modules.items()
        for statement in _statements([ast.parse(path.read_text())])
        for base, _ in _targets(module, path, statement)
    ]
    assert [
        f"{module} imports {base}" for module, base in names if base.startswith("vecrl") and base not in modules
    ] == []


def test_each_part_of_a_book_exists() -> None:
    assert {*BOOK_2, *ABOVE} <= _graph().keys()


def test_no_modules_import_each_other() -> None:
    """Imports in functions are counted, those for types alone are not."""
    assert _in_circles(_graph()) == set()


def test_no_packages_import_each_other() -> None:
    graph: dict[str, set[str]] = {}
    for module, imported in _graph().items():
        package = ".".join(module.split(".")[:2])
        graph.setdefault(package, set()).update(".".join(other.split(".")[:2]) for other in imported)
    for package, others in graph.items():
        others.discard(package)
    assert _in_circles(graph) == set()


def test_the_graph_counts_imports_in_functions_and_not_those_for_types() -> None:
    code = """
from typing import TYPE_CHECKING
if TYPE_CHECKING:
    import for_types
else:
    import otherwise
def function():
    if True:
        from .. import module
"""
    found = [ast.unparse(node) for node in _statements([ast.parse(code)])]
    assert found == ["from typing import TYPE_CHECKING", "import otherwise", "from .. import module"]
    assert _in_circles({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == {"b", "c"}
    assert [*map(_book, ("vecrl", "vecrl.envs.base", "vecrl.envs_of", "vecrl.testing", "vecrl.convert"))] == [
        3,
        2,
        1,
        1,
        3,
    ]
    statement = ast.parse("from ..engine import pool").body[0]
    assert [*_targets("vecrl.venv.base", Path("base.py"), statement)] == [("vecrl.engine", "vecrl.engine.pool")]


def _disallowed_imports(folder: str, allowed: tuple[str, ...], libraries: set[str]) -> list[str]:
    """Returns imports of the files in `folder` that are not below `allowed`, nor in the standard library or
    `libraries`."""
    found: list[str] = []
    for path in sorted((SOURCE / folder).rglob("*.py")) if (SOURCE / folder).is_dir() else [SOURCE / folder]:
        for name in _imports(path):
            top = name.partition(".")[0]
            actual = top == "vecrl" and any(name == a or name.startswith(a + ".") for a in allowed)
            if not actual and top not in STDLIB_MODULES and top not in libraries:
                found.append(f"{path.relative_to(SOURCE)} imports {name}")
    return found


def test_errors_import_no_other_module() -> None:
    assert _disallowed_imports("errors.py", (), {"cloudpickle"}) == []


def test_imports_of_libraries_import_errors_only() -> None:
    assert _disallowed_imports("imports.py", ("vecrl.errors",), set()) == []


def test_registries_import_no_other_module() -> None:
    assert _disallowed_imports("registries.py", (), set()) == []


def test_validation_imports_errors_only() -> None:
    assert _disallowed_imports("validation.py", ("vecrl.errors", "vecrl.imports"), {"numpy", "torch"}) == []


def test_the_messages_about_environments_import_spaces_only() -> None:
    seams = ("vecrl.errors", "vecrl.engine.space_layout")
    assert _disallowed_imports("gym_interface.py", seams, {"gymnasium"}) == []


def test_snapshot_imports_numpy_only() -> None:
    assert _disallowed_imports("snapshot", ("vecrl.snapshot", "vecrl.errors"), {"numpy"}) == []


def test_engine_imports_arrays_and_spaces_only() -> None:
    libraries = {"numpy", "gymnasium", "cloudpickle"}
    own = (
        "vecrl.engine",
        "vecrl.errors",
        "vecrl.seeding",
        "vecrl.random_streams",
        "vecrl.registries",
        "vecrl.cores",
        "vecrl.validation",
    )
    found = _disallowed_imports("engine", own, libraries)
    assert {line.split(" imports ")[0] for line in found} == RAY_FILES
    for path in RAY_FILES:
        assert _disallowed_imports(path, own, libraries | {"ray"}) == []


def test_specs_import_tensors_and_spaces_only() -> None:
    libraries = {"numpy", "torch", "tensordict", "gymnasium"}
    for path in sorted((SOURCE / "specs").iterdir()):
        below = ("vecrl.specs", "vecrl.errors", "vecrl.imports", "vecrl.validation")
        assert _disallowed_imports(f"specs/{path.name}", below, libraries) == []


# Modules of `interop` that import their peer, and are imported within functions only, after a program imported it
PEER_MODULES = {"environments", "spec_conversion", "transforms", "transforms_in_torchrl"}


def test_interop_imports_peers_in_functions_only() -> None:
    assert _disallowed_imports("interop/peer_imports.py", (), set()) == []
    assert _disallowed_imports("interop/evotorch.py", ("vecrl.errors", "vecrl.vector"), set()) == []
    for path in sorted((SOURCE / "interop" / "torchrl").glob("*.py")):
        if path.stem in PEER_MODULES:
            continue
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.Import | ast.ImportFrom):
                text = ast.unparse(node)
                assert "torchrl" not in text.replace("vecrl.interop.torchrl", ""), path
                assert not any(text.startswith(f"from .{name} ") for name in PEER_MODULES), path


def test_envs_import_specs_engine_and_their_own_library_only() -> None:
    below = ("vecrl.envs", "vecrl.specs", "vecrl.engine", "vecrl.snapshot", "vecrl.errors", "vecrl.validation")
    below = (*below, "vecrl.gym_interface", "vecrl.imports", "vecrl.seeding")
    libraries = {"numpy", "torch", "tensordict"}
    for pattern in ("*.py", "entries/*.py", "rollouts/*.py"):
        for path in sorted((SOURCE / "envs").glob(pattern)):
            assert _disallowed_imports(f"envs/{path.relative_to(SOURCE / 'envs')}", below, libraries) == []
    with_simulators, spaces = (*below, "vecrl.simulators"), {"gymnasium", "cloudpickle"}
    assert _disallowed_imports("envs/batched", with_simulators, libraries | spaces) == []
    below = (*below, "vecrl.vector", "vecrl.simulators", "vecrl.registries", "vecrl._utils")
    libs = SOURCE / "envs" / "libs"
    for path in sorted(libs.rglob("*.py")):
        file = path.relative_to(libs)
        name = "gym" if file.stem.startswith("gym_") else file.with_suffix("").parts[0]
        allowed = libraries | ENV_LIBRARIES.get(name, set())
        assert _disallowed_imports(f"envs/libs/{file}", below, allowed) == []


def test_the_base_of_environments_imports_nothing_that_imports_it() -> None:
    """Not in functions either."""
    order = ("env_specs", "check_specs", "rollouts.rollout", "spec_inference", "base")
    for index, name in enumerate(order):
        upper = ("transforms", "batched", "libs", "gym_like", *order[index + 1 :])
        found = {other.split(".")[2] for other in _graph()[f"vecrl.envs.{name}"] if ".envs." in other}
        assert found.isdisjoint(upper), name


def test_classic_imports_spaces_and_only_conversions_import_tensordict() -> None:
    base = ("vecrl.classic", "vecrl.errors", "vecrl.running_stats", "vecrl.snapshot", "vecrl.validation")
    below = (*base, "vecrl.simulators.gymnasium.make", "vecrl.simulators.registry", "vecrl.vector.factory")
    below = (*below, "vecrl.simulators.roboschool", "vecrl.gym_interface", "vecrl.imports")
    over_tensordicts = (*below, "vecrl.envs", "vecrl.specs")
    for path in sorted((SOURCE / "classic").glob("*.py")):
        name = f"classic/{path.name}"
        if path.stem == "conversions":
            assert _disallowed_imports(name, over_tensordicts, {"numpy", "gymnasium", "torch", "tensordict"}) == []
        else:
            assert _disallowed_imports(name, below, {"numpy", "gymnasium", "yaml"}) == []


def test_venv_imports_engine_and_vector_only() -> None:
    """Without torch, except in the modules for batches of tensors."""
    below = (
        "vecrl.engine",
        "vecrl.errors",
        "vecrl.running_stats",
        "vecrl.snapshot",
        "vecrl.validation",
        "vecrl.vector",
        "vecrl.simulators",
    )
    below = (*below, "vecrl.venv")
    for path in sorted((SOURCE / "venv").glob("*.py")):
        tensors = {"torch"} if path.stem == "batched_venv" else set()
        assert _disallowed_imports(f"venv/{path.name}", below, {"numpy", "gymnasium"} | tensors) == []


def test_only_spec_conversions_import_gymnasium() -> None:
    for path in sorted((SOURCE / "specs").glob("*.py")):
        assert not {name for name in _imports(path) if name.startswith(("gymnasium", "vecrl.specs.convert"))}, path


# What modules may import besides the seams, NumPy and gymnasium. Batched simulators return tensors of torch.
SIMULATOR_LIBRARIES = {
    "procgen": {"procgen"},
    "atari_vector": {"torch"},
    "batch_adapter": {"torch"},
    "brax": {"brax", "jax"},
    "craftax": {"craftax", "jax"},
    "dm_control": {"dm_control"},
    "envpool": {"torch"},
    "gymnax": {"gymnax", "jax"},
    "jax_simulator": {"jax", "torch"},
    "jaxmarl": {"jax"},
    "jumanji": {"jumanji"},
    "pgx": {"jax"},
    "playground": {"jax"},
    "mujoco": {"torch", "numba", "llvmlite"},
    **{
        name: {"torch"}
        for name in ("array_library", "compile_utils", "counter_rng", "native", "row_task", "row_task_checks")
    },
    "openml": {"torch"},
    "vmas": {"torch"},
    "vmas_state": {"torch"},
    "isaac": {"isaaclab", "torch"},
    "genesis": {"torch"},
    "mjlab": {"torch"},
    "genesis_tasks": {"torch"},
    "unity": {"mlagents_envs"},
    "unity_player": {"mlagents_envs", "grpc"},
}
FOREIGN = {"foreign", "safety", "roboschool"}  # they have worker processes on other interpreters
ENV_LIBRARIES = {
    "brax": {"brax", "jax"},
    "envpool": {"envpool", "gymnasium"},
    "gym": {"gymnasium"},
    "jax_env": {"jax"},
}


def test_simulators_import_the_engine_contract_and_their_own_library_only() -> None:
    seams = ("vecrl.engine.simulator", "vecrl.engine.space_layout", "vecrl.errors", "vecrl.simulators", "vecrl.seeding")
    seams = (*seams, "vecrl.snapshot", "vecrl.registries", "vecrl.validation", "vecrl.cores", "vecrl.gym_interface")
    seams = (*seams, "vecrl.engine.trees", "vecrl.engine.large_boxes", "vecrl.imports")
    for path in sorted((SOURCE / "simulators").iterdir()):
        if path.suffix == ".py" or path.is_dir():
            own = SIMULATOR_LIBRARIES.get(path.stem, set())
            allowed = (*seams, "vecrl.engine") if path.stem in FOREIGN else seams
            assert _disallowed_imports(f"simulators/{path.name}", allowed, {"numpy", "gymnasium"} | own) == []


@pytest.mark.parametrize(
    "folder",
    [
        *("engine", "snapshot", "simulators", "specs"),
        *("errors.py", "imports.py", "seeding.py", "random_streams.py", "running_stats.py", "validation.py"),
    ],
)
def test_lower_layers_do_not_import_upper_layers(folder: str) -> None:
    upper = ("vecrl.vector", "vecrl.policy", "vecrl.cli", "vecrl.record", "vecrl.venv", "vecrl.envs", "vecrl.classic")
    paths = sorted((SOURCE / folder).rglob("*.py")) if (SOURCE / folder).is_dir() else [SOURCE / folder]
    assert paths
    for path in paths:
        assert [name for name in _imports(path) if name.startswith(upper)] == [], path


def test_record_imports_environments_and_atomic_files_only() -> None:
    libraries = {"numpy", "torch", "tensordict", "PIL", "imageio_ffmpeg", "matplotlib"}
    modules = ("vecrl.record", "vecrl.envs", "vecrl.specs", "vecrl.snapshot.atomic_write", "vecrl.errors")
    modules = (*modules, "vecrl.imports", "vecrl.validation")
    assert _disallowed_imports("record", modules, libraries) == []


def test_only_the_cli_imports_the_cli() -> None:
    for path in sorted(SOURCE.rglob("*.py")):
        if "cli" not in path.parts and path.name != "__main__.py":
            assert [name for name in _imports(path) if name.startswith("vecrl.cli")] == [], path


def test_the_import_parser_finds_imports() -> None:
    names = set(_imports(SOURCE / "engine" / "backends" / "processes.py"))
    assert {
        "select",
        "vecrl.errors.Failure",
        "vecrl.engine.batch_buffers.BatchBuffers",
        "vecrl.engine.backends.forkserver",
    } <= names
