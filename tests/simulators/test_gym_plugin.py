"""Messages about Habitat and RoboHive where they are missing."""

import sys

import pytest

from vecrl.envs import HabitatEnv, RoboHiveEnv
from vecrl.errors import VersionError
from vecrl.simulators import availability


@pytest.mark.parametrize(
    ("env_class", "prefix", "hint"),
    [(HabitatEnv, "habitat", "conda install habitat-sim"), (RoboHiveEnv, "robohive", "pip install --no-deps robohive")],
)
def test_missing_libraries_are_explained(monkeypatch, env_class, prefix, hint):
    monkeypatch.setitem(sys.modules, prefix, None)
    with pytest.raises(VersionError, match=hint):
        env_class("x")
    assert env_class.available_envs == []
    assert hint in (availability.available(prefix).missing or "")
