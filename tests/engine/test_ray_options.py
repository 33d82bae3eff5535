"""Options of the Ray backend, and the errors if Ray is not installed or not selected. Needs no Ray."""

import builtins
from typing import Any

import pytest
from tests.fixtures.faulty_envs import FaultyEnv
from tests.fixtures.pools import make_pool

from vecrl.engine.backends.worker_options import RayOptions
from vecrl.errors import VersionError


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"num_cpus": -1}, "num_cpus of 0 or more, got -1"),
        ({"num_gpus": float("nan")}, "num_gpus of 0 or more"),
        ({"resources": {"arm": -2}}, "arm of 0 or more, got -2"),
        ({"start_timeout": 0}, "start_timeout to be seconds above 0"),
        ({"placement_strategy": "WIDE"}, "placement_strategy to be one of .*'SPREAD'.*, got 'WIDE'"),
        ({"placement_strategy": "PACK", "num_cpus": 0}, "Give num_cpus above 0"),
        ({"address": "ray://somewhere:10001"}, "address='auto'"),
    ],
)
def test_invalid_options_raise(given: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        RayOptions(**given)


def test_options_raise_on_other_backends() -> None:
    with pytest.raises(ValueError, match="backend='ray' together with ray_options, got backend='processes'"):
        make_pool([FaultyEnv], "processes", 1, ray_options=RayOptions())


def test_missing_ray_raises_with_install_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    existing = builtins.__import__

    def absent(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.startswith("ray") or name == "backends.actors":
            raise ModuleNotFoundError("No module named 'ray'", name="ray")
        return existing(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", absent)
    with pytest.raises(VersionError, match=r"pip install 'vecrl\[ray\]'"):
        make_pool([FaultyEnv], "ray", 1)
