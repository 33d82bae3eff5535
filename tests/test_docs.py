"""Runs the Python blocks of the documentation: those of most pages one by one, those of extending.md as one program."""

import ast
import contextlib
import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import SkipTest

import gymnasium
import pytest
import torch
from tools import list_modules

import vecrl.envs
import vecrl.record
from vecrl.engine.backends.registry import backend_names, unregister_backend
from vecrl.envs.transforms import Transform
from vecrl.simulators import registry
from vecrl.simulators.availability import available

DOCS = Path(__file__).parents[1] / "docs"
SOURCE = Path(vecrl.envs.__file__).parents[1]
BLOCKS = [
    (page, number, block)
    for page in (
        "../README.md",
        "vector.md",
        "native.md",
        "policy.md",
        "tensordict.md",
        "transforms.md",
        "venv.md",
        "classic.md",
        "checkpoints.md",
        "recording.md",
        "from-gymnasium.md",
    )
    for number, block in enumerate(re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(), re.DOTALL), 1)
]


ELSEWHERE = {  # the test files that run the blocks of further pages
    "brax.md": "simulators/test_docs.py",
    "clusters.md": "engine/test_ray_backend.py",
    "extending.md": "simulators/test_docs.py",  # and this file
    "first-environment.md": "test_tutorials.py",
    "first-native-task.md": "test_tutorials.py",
    "from-evotorch.md": "interop/test_docs.py",
    "from-sb3.md": "interop/test_sb3_page.py",
    "from-tianshou.md": "interop/test_docs.py",
    "from-torchrl.md": "interop/test_docs.py",
    "mujoco.md": "simulators/mujoco/test_docs.py",
    "simulators.md": "simulators/test_docs.py",
    "tensordict-steps.md": "envs/test_tensordict_steps.py",
    "training.md": "interop/test_training_page.py",
}


def test_all_blocks_are_run() -> None:
    pages = {path.name for path in DOCS.glob("*.md") if "```python" in path.read_text()}
    assert pages == {page for page, _, _ in BLOCKS if page != "../README.md"} | ELSEWHERE.keys()
    for page, file in ELSEWHERE.items():
        text = (Path(__file__).parent / file).read_text()
        assert page in text, file
        assert "exec(" in text or "subprocess" in text, file


@pytest.mark.parametrize(("page", "number", "block"), BLOCKS, ids=[f"{page}-{number}" for page, number, _ in BLOCKS])
def test_block_runs(page: str, number: int, block: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # some blocks write files
    monkeypatch.setattr(gymnasium.envs.registration, "registry", dict(gymnasium.registry))  # one registers a name
    exec(compile(block, f"{page}, block {number}", "exec"), {"__name__": "block"})


def _api_objects() -> Iterator[tuple[str, Any]]:
    """Yields the public classes and functions of the modules of API pages, of those that can be imported here."""
    for page in sorted((DOCS / "api").glob("*.md")):
        for name in re.findall(r"^::: (vecrl[\w.]*)$", page.read_text(), re.MULTILINE):
            with contextlib.suppress(ImportError, AttributeError):  # of a simulator, or of a single object
                module = importlib.import_module(name)
                members = {member for member in vars(module) if not member.startswith("_")}
                for member in getattr(module, "__all__", sorted(members)):
                    found = getattr(module, member)
                    if getattr(found, "__module__", "").startswith("vecrl") and callable(found):
                        yield f"{name}.{member}", found


def test_api_pages_name_nothing_private() -> None:
    """In bases and in signatures."""
    objects = dict(_api_objects())
    assert len(objects) > 300
    private: list[str] = []
    for name, found in objects.items():
        bases = found.__bases__ if isinstance(found, type) else ()
        private += [f"{name}: {base.__name__}" for base in bases if base.__name__.startswith("_")]
        with contextlib.suppress(ValueError, TypeError):  # it has no signature
            words = re.findall(r"\b_[A-Za-z]\w*", str(inspect.signature(found)))
            private += [f"{name}: {word}" for word in words if word != "_reset"]  # a key of TorchRL
    assert private == []


def test_every_argument_has_an_entry_of_its_own() -> None:
    """Not at the end of the line of another one, as in "its size. dim: its dimension"."""
    lost: list[str] = []
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                arguments = {part.arg for part in ast.walk(node) if isinstance(part, ast.arg)}
                inline = re.findall(r"\. (\w+): ", ast.get_docstring(node) or "")
                lost += [f"{path.name}, {node.name}: {name}" for name in inline if name in arguments]
    assert lost == []


@pytest.mark.parametrize("page", sorted(path.name for path in DOCS.glob("*.md")))
def test_tables_have_heads(page: str) -> None:
    """A blank line in a table makes a new one, of which the first row needs a line of dashes after it."""
    lines = (DOCS / page).read_text().splitlines()
    starts = [i for i, line in enumerate(lines) if line.startswith("|") and (not i or not lines[i - 1].startswith("|"))]
    assert [lines[i] for i in starts if not re.match(r"\|[\s:]*-", lines[i + 1])] == []


def test_every_transform_has_a_row() -> None:
    page = (DOCS / "transforms.md").read_text().partition("## Included transforms")[2].partition("## Differences")[0]
    rows = [line.split("|")[1:-1] for line in page.splitlines() if line.startswith("| `")]
    assert {len(row) for row in rows} == {4}  # names, what it reads and writes, what it is for
    named = [name for row in rows for name in re.findall(r"`([A-Z]\w+|gSDENoise)`", row[0])]
    assert len(named) == len(set(named))
    modules = (vecrl.envs, vecrl.envs.transforms, vecrl.record)
    exported = {name: getattr(module, name) for module in modules for name in module.__all__}
    transforms = {name for name, kind in exported.items() if isinstance(kind, type) and issubclass(kind, Transform)}
    assert transforms == set(named)


@pytest.fixture
def extending() -> Iterator[dict[str, Any]]:
    """The names that extending.md defines."""
    names: dict[str, Any] = {"__name__": "extending"}
    before, backends = registry.known_prefixes(), backend_names()
    for block in re.findall(r"```python\n(.*?)```", (DOCS / "extending.md").read_text(), re.DOTALL):
        exec(compile(block, "extending.md", "exec"), names)
    yield names
    for prefix in set(registry.known_prefixes()).difference(before):
        registry.unregister(prefix)
    for backend in set(backend_names()).difference(backends):
        unregister_backend(backend)


def test_the_parts_of_extending_conform(extending: dict[str, Any]) -> None:
    suites = [value for name, value in extending.items() if name.startswith("Test")]
    assert len(suites) == 5
    for suite in suites:
        for name in dir(suite):
            if name.startswith("test_"):
                with contextlib.suppress(SkipTest):  # what does not apply to the part
                    getattr(suite(), name)()


def test_a_registered_simulator_is_used_by_all_dialects(extending: dict[str, Any]) -> None:
    assert extending["obs"].shape == (4, 1)
    assert extending["venv"].reset(seed=[3, 4, 5, 6])[0].tolist() == extending["obs"].tolist()
    assert extending["rollout"].shape == (4, 10)
    assert extending["fitness"].shape == (8,)
    assert available("drift").names == ("line",)
    extending["env"].reset(seed=1)
    steps = [extending["env"].step(torch.zeros(2, dtype=torch.int64)) for _ in range(5)]
    assert steps[-1][3].tolist() == [True, True]


def test_a_spec_follows_from_its_domain(extending: dict[str, Any]) -> None:
    spec, batch, doses, dose = (extending[name] for name in ("spec", "batch", "doses", "Dose"))
    assert (doses % torch.tensor([5, 20])).eq(0).all()
    assert batch.project(batch.one() * 7)["dose"][0].tolist() == [5, 0]
    assert spec.mismatch({"dose": torch.tensor([3, 20])}) == "at 'dose': 1 elements are no multiples"
    assert spec["dose"][1] == dose(20) != dose(5)
    assert torch.stack([dose(5), dose(5)]) == dose(5, (2,))
    assert spec.cardinality() == 11
    assert repr(dose(5, (2,))) == "Dose(step=5, shape=(2,), dtype=torch.int64, device=cpu)"
    assert repr(spec["dose"]) == "Dose(step=[5…20], shape=(2,), dtype=torch.int64, device=cpu)"
    assert dose(5, (-1,)).is_in(dose(5, (3,)).rand())
    assert dose(5, (-1,)).rand().shape == (1,)


def test_architecture_lists_each_module_with_what_it_is_for() -> None:
    page = list_modules.on_page_markdown((DOCS / "architecture.md").read_text())
    rows = re.findall(r"^\| `(\w+)` \| (.*) \|$", page.partition("## Files")[2], flags=re.MULTILINE)
    names = [path.stem for path in list_modules.SOURCE.rglob("*.py") if path.name != "__init__.py"]
    assert len(names) > 200
    assert sorted(name for name, _ in rows) == sorted(names)
    assert [name for name, text in rows if not text or len(text) > 200] == []
    assert list_modules.on_page_markdown("a page without the line") == "a page without the line"
