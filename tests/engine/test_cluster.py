"""What may be asked of a cluster, and what is said where Ray is not installed or not meant. Needs no Ray."""

import builtins
from typing import Any

import pytest
from tests.faults.zoo import Counting, make_pool

from vecrl.engine.backends.cluster import RayOptions
from vecrl.errors import VersionError


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"num_cpus": -1}, "num_cpus of 0 or more, but -1"),
        ({"num_gpus": float("nan")}, "num_gpus of 0 or more"),
        ({"resources": {"arm": -2}}, "arm of 0 or more, but -2"),
        ({"start_timeout": 0}, "start_timeout to be seconds above 0"),
        ({"placement_strategy": "WIDE"}, "placement_strategy to be one of .*'SPREAD'.*, but 'WIDE'"),
        ({"placement_strategy": "PACK", "num_cpus": 0}, "give num_cpus above 0"),
        ({"address": "ray://somewhere:10001"}, "address='auto'"),
    ],
)
def test_bad_options(given: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        RayOptions(**given)


def test_options_are_for_ray_alone() -> None:
    with pytest.raises(ValueError, match="backend='ray' beside ray_options, but backend='processes' came"):
        make_pool([Counting], "processes", 1, ray_options=RayOptions())


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    there = builtins.__import__

    def absent(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.startswith("ray") or name == "backends.actors":
            raise ModuleNotFoundError("No module named 'ray'", name="ray")
        return there(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", absent)
    with pytest.raises(VersionError, match=r"pip install 'vecrl\[ray\]'"):
        make_pool([Counting], "ray", 1)
