"""The checks of arguments that constructors share, and the options that `Pool` checks with them."""

from typing import Any

import numpy as np
import pytest
import torch

from vecrl.engine.pool_options import PoolOptions
from vecrl.errors import SpaceError
from vecrl.validation import (
    check_callables,
    check_length,
    check_seconds,
    check_seed,
    parse_count,
    parse_device,
    parse_optional_count,
)


@pytest.mark.parametrize("value", [3, 3.0, np.int32(3), np.float64(3.0)])
def test_whole_numbers_are_counts(value: Any) -> None:
    count = parse_count("steps", value)
    assert (count, type(count)) == (3, int)


@pytest.mark.parametrize("value", [0, -1, 2.5, True, np.True_, "3", None, float("nan"), float("inf")])
def test_other_values_are_no_counts(value: Any) -> None:
    with pytest.raises(SpaceError, match="Expected steps to be an int of 1 or more, got"):
        parse_count("steps", value, error=SpaceError)


def test_none_is_accepted_where_it_has_a_meaning() -> None:
    assert parse_optional_count("steps", None) is None
    check_seconds("timeout", None)
    check_length("seeds", None, 2)
    with pytest.raises(ValueError, match="int of 1 or more, or None, got 0"):
        parse_optional_count("steps", 0)


def test_devices_that_this_machine_lacks_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(
        SpaceError, match=r"a device of this machine, got 'cuda:1': torch .* no cuda device. Choose 'cpu'"
    ):
        parse_device("cuda:1")


@pytest.mark.parametrize("seed", [True, np.True_])
def test_bools_are_no_seeds(seed: object) -> None:
    with pytest.raises(SpaceError, match=r"Expected a seed to be an int of 0 or more, or None, got .*True"):
        check_seed(seed)


def test_items_that_cannot_be_called_are_named() -> None:
    with pytest.raises(SpaceError, match=r"Expected functions, got int as item 1\. Give two\."):
        check_callables("functions", [print, 2], "Give two.")


def test_fork_gives_a_warning_and_means_forkserver() -> None:
    with pytest.warns(UserWarning, match="Expected start_method to be 'forkserver' or 'spawn', got 'fork'"):
        options = PoolOptions(start_method="fork")  # pyright: ignore[reportArgumentType]
    assert options.start_method == options.worker_options.start_method == "forkserver"


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"backend": "ships"}, "Expected backend to be 'serial'"),
        ({"start_method": "thread"}, "Expected start_method to be 'forkserver' or 'spawn', got 'thread'"),
        ({"step_timeout": "a"}, "Expected step_timeout to be a number of seconds above 0, or None, got 'a'"),
        ({"wait": "never"}, "Expected wait to be 'sleep', 'auto' or 'spin', got 'never'"),
        ({"pin_workers": "yes"}, "Expected pin_workers to be True or False, got 'yes'"),
        ({"preload": "numpy"}, r"Expected preload to be a list of names of modules, got 'numpy'. Give \['numpy'\]"),
        ({"preload": [1]}, r"Expected preload to be a list of names of modules, got \[1\]"),
        ({"threads_per_worker": 0}, "Expected threads_per_worker to be an int of 1 or more, got 0"),
        ({"step_timeout": 0}, "Expected step_timeout to be a number of seconds above 0, or None, got 0"),
        ({"on_failure": "hide"}, "Expected on_failure to be 'raise', 'restart' or 'mask', got 'hide'"),
        ({"restarts_per_hour": 1.5}, "Expected restarts_per_hour to be an int of 1 or more, got 1.5"),
    ],
)
def test_pool_options_are_checked_for_every_backend(options: dict[str, Any], expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        PoolOptions(**options)
