"""Training programs in one file, as CleanRL has them, compute the same on vecrl after a change of one import.

Each program of `cleanrl_scripts/` trains for a second or two, on gymnasium's vector environments first, and returns its
losses and returns. "Coming from gymnasium" in the documentation shows the change.
"""

from pathlib import Path

import pytest
from tests.fixtures.training_scripts import load

pytestmark = [pytest.mark.usefixtures("one_thread"), pytest.mark.filterwarnings("ignore:.*:UserWarning:gymnasium")]
SCRIPTS = Path(__file__).parent / "cleanrl_scripts"
IMPORTS = {
    "from gymnasium.vector import SyncVectorEnv": "from vecrl.vector import VectorEnv as SyncVectorEnv",
    "from gymnasium.vector import AutoresetMode, SyncVectorEnv": (
        "from gymnasium.vector import AutoresetMode\nfrom vecrl.vector import VectorEnv as SyncVectorEnv"
    ),
    "from gymnasium.vector import AsyncVectorEnv, AutoresetMode": (
        "from gymnasium.vector import AutoresetMode\nfrom vecrl.vector import AsyncVectorEnv"
    ),
}
SEED = 1


@pytest.mark.timeout(180)
@pytest.mark.parametrize("name", ["dqn", "ppo", "ppo_continuous", "ppo_pixels_lstm", "td3"])
def test_a_program_computes_the_same_after_a_change_of_its_import(name: str) -> None:
    source = (SCRIPTS / f"{name}.py").read_text()
    [line] = [line for line in source.splitlines() if line in IMPORTS]
    changed = load(name, source.replace(line, IMPORTS[line]))
    assert [value for value in vars(changed).values() if getattr(value, "__module__", "").startswith("vecrl.vector")]
    expected = load(name, source).main(SEED)
    assert changed.main(SEED) == expected
