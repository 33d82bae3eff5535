"""The table of TorchRL's names in the migration page."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.torchrl


def test_the_table_has_all_names_of_torchrl() -> None:
    script = Path(__file__).parents[2] / "tools" / "torchrl_names.py"
    done = subprocess.run([sys.executable, str(script), "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
