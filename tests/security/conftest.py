"""The program that makes calls with limits for memory and time, started once for all tests."""

from collections.abc import Iterator

import pytest
from tests.security.limited_calls import LimitedCalls

EVIL = """
import os
with open(os.environ["MARKER"], "a") as file:
    file.write(__name__)
class Evil:
    pass
"""


@pytest.fixture(scope="session")
def limited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LimitedCalls]:
    """Makes calls in a folder with a module `mine`, which writes a marker if it is imported."""
    folder = tmp_path_factory.mktemp("limited")
    (folder / "mine.py").write_text(EVIL)
    calls = LimitedCalls(folder)
    yield calls
    calls.close()
