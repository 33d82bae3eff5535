"""Training scripts written for TorchRL run on vecrl after a change of their import lines, with the same results.

Each script of `training_scripts/` trains for a few seconds and returns its losses and returns. It runs on TorchRL alone
first, then with the import lines replaced. "Coming from TorchRL" in the documentation has a table of them.
"""

from pathlib import Path

import pytest
from tests.fixtures.training_scripts import load

from vecrl.envs.transforms.backbones import import_vision

pytestmark = [pytest.mark.peers, pytest.mark.usefixtures("one_thread"), pytest.mark.filterwarnings("ignore")]

SCRIPTS = Path(__file__).parent / "training_scripts"
IMPORTS = {"from torchrl.envs": "from vecrl.envs", "from torchrl.data.tensor_specs": "from vecrl.specs"}
SEED = 1
ROUNDING = {
    "iql": 1e-4,  # vecrl wraps the angle of `PendulumEnv` in each step, so that it stays within its spec
    "dqn_pixels": 1e-4,  # frames differ in the last bit
    "decision_transformer": 1e-3,  # the returns to go differ in the last bits
}
"""Relative tolerances of scripts with results that are rounded differently. All other results are equal."""
NAMES = sorted(path.stem for path in SCRIPTS.glob("*.py"))


def replace_imports(source: str) -> str:
    lines = source.splitlines(keepends=True)
    for old, new in IMPORTS.items():
        lines = [new + line.removeprefix(old) if line.startswith(old) else line for line in lines]
    return "".join(lines)


@pytest.mark.timeout(300)  # TorchRL's ParallelEnv starts two interpreters, each of which imports the library
@pytest.mark.parametrize("name", NAMES)
def test_a_script_gives_the_same_results_after_a_change_of_its_imports(name: str) -> None:
    source = (SCRIPTS / f"{name}.py").read_text()
    if "Resize" in source:
        import_vision("torchvision")  # for TorchRL's transforms, also if it was built for another torch
    expected = load(name, source).main(SEED)

    script = load(name, replace_imports(source))
    assert not [key for key, value in vars(script).items() if _is_from_torchrl_envs(value)]
    results = script.main(SEED)

    if name in ROUNDING:
        assert results == pytest.approx(expected, rel=ROUNDING[name])
    else:
        assert results == expected


def _is_from_torchrl_envs(value: object) -> bool:
    return str(getattr(value, "__module__", "")).startswith("torchrl.envs")
