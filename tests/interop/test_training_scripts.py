"""Training scripts written for TorchRL run on vecrl after a change of their import lines, with the same results.

Each script of `training_scripts/` trains for a few seconds and returns its losses and returns. It runs on TorchRL alone
first, then with the import lines replaced. "Coming from TorchRL" in the documentation has a table of them.
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from unittest.mock import patch

import pytest
import torch

from vecrl.envs import TransformedEnv

pytestmark = [pytest.mark.peers, pytest.mark.filterwarnings("ignore")]

SCRIPTS = Path(__file__).parent / "training_scripts"
IMPORTS = {"from torchrl.envs": "from vecrl.envs", "from torchrl.data.tensor_specs": "from vecrl.specs"}
SEED = 1
ROUNDING = {"iql": 1e-4}  # vecrl wraps the angle of `PendulumEnv` in each step, so that it stays within its spec
"""Relative tolerances of scripts with results that are rounded differently. All other results are equal."""
NAMES = sorted(path.stem for path in SCRIPTS.glob("*.py"))


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def replace_imports(source: str) -> str:
    lines = source.splitlines(keepends=True)
    for old, new in IMPORTS.items():
        lines = [new + line.removeprefix(old) if line.startswith(old) else line for line in lines]
    return "".join(lines)


def load(name: str, source: str) -> ModuleType:
    module = ModuleType(name)  # it is not importable, so that workers get its functions by value
    exec(compile(source, f"{name}.py", "exec"), vars(module))
    return module


@contextlib.contextmanager
def episodes_of_torchrl() -> Iterator[None]:
    """Makes `set_seed` reset once, as that of TorchRL does: both libraries then go on with the second episode.

    Only the environment on which a script calls `set_seed` resets, below its transforms.
    """
    set_seed = TransformedEnv.set_seed
    is_nested = False

    def set_seed_and_reset(self: TransformedEnv, seed: int | None = None, static_seed: bool = False) -> int | None:
        nonlocal is_nested
        if is_nested:
            return set_seed(self, seed, static_seed)
        is_nested = True
        try:
            next_seed = set_seed(self, seed, static_seed)
            self.base_env.reset()
        finally:
            is_nested = False
        return next_seed

    with patch.object(TransformedEnv, "set_seed", set_seed_and_reset):
        yield


@pytest.mark.timeout(300)  # TorchRL's ParallelEnv starts two interpreters, each of which imports the library
@pytest.mark.parametrize("name", NAMES)
def test_a_script_gives_the_same_results_after_a_change_of_its_imports(name: str) -> None:
    source = (SCRIPTS / f"{name}.py").read_text()
    expected = load(name, source).main(SEED)

    script = load(name, replace_imports(source))
    assert not [key for key, value in vars(script).items() if _is_from_torchrl_envs(value)]
    resets_in_set_seed = "PendulumEnv" not in source  # that of TorchRL does not
    with episodes_of_torchrl() if resets_in_set_seed else contextlib.nullcontext():
        results = script.main(SEED)

    if name in ROUNDING:
        assert results == pytest.approx(expected, rel=ROUNDING[name])
    else:
        assert results == expected


def _is_from_torchrl_envs(value: object) -> bool:
    return str(getattr(value, "__module__", "")).startswith("torchrl.envs")
