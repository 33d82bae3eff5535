"""`rename_torchrl_keys`: reads state dictionaries that TorchRL has saved. It must not know transforms."""

from __future__ import annotations

from typing import Any

_CHILDREN = ("transform.", "base_env.")
TORCHRL_ARGUMENTS = ("standard_normal",)
"""Entries of TorchRL that are arguments of vecrl's transforms."""


def rename_torchrl_keys(state_dict: dict[str, Any], prefix: str) -> None:
    """Renames the keys of TorchRL under `prefix`: "transforms.1.loc" is "transform.transforms.1.loc" in vecrl.

    A dictionary with vecrl's keys is not changed.

    >>> state = {"transforms.0.loc": 1.0, "transforms.0.standard_normal": True}
    >>> rename_torchrl_keys(state, "")
    >>> state
    {'transform.transforms.0.loc': 1.0}
    """
    keys = [key for key in state_dict if key.startswith(prefix)]
    if any(key.removeprefix(prefix).startswith(_CHILDREN) for key in keys):
        return
    for key in keys:
        value, name = state_dict.pop(key), key.removeprefix(prefix)
        if name.rpartition(".")[2] not in TORCHRL_ARGUMENTS:
            state_dict[f"{prefix}transform.{name}"] = value
