"""Reads the options of `vecrl evolve` from a file: YAML with the names of the options, such as a run's config.yaml."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from ..registries import did_you_mean, nearest

MOST_BYTES = 2**20
IGNORED = {"vecrl"}  # the version that wrote the file


def read_yaml(path: Path) -> dict[str, Any]:
    """Returns the mapping in a YAML file, which is data only.

    Raises:
        ValueError: the file cannot be read, is too large, has aliases, or contains something else.
    """
    try:
        with path.open("rb") as file:
            text = file.read(MOST_BYTES + 1)
        if len(text) > MOST_BYTES:
            raise ValueError(f"it has more than {MOST_BYTES} bytes")
        if any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(text, yaml.SafeLoader)):
            raise ValueError("it has aliases (*), which can describe a value without end; write the value out")
        config = yaml.safe_load(text)
    except (OSError, yaml.YAMLError, UnicodeDecodeError, RecursionError, ValueError) as error:
        reason = getattr(error, "strerror", None) or " ".join(str(error).split())
        raise ValueError(f"Expected {path} to be YAML with options, got an error: {reason}") from error
    if not isinstance(config, dict):
        raise ValueError(f"Expected {path} to contain a mapping, got {type(config).__name__}.")
    return config


def defaults_of(path: Path, options: Mapping[str, int]) -> dict[str, Any]:
    """Returns the options in a file as defaults of a command.

    Args:
        path: the file. `env_args` is a mapping there; null stands for the default of an option.
        options: the names of the options that the file may have, besides `env_args`, and how many values each takes.

    Raises:
        ValueError: the file cannot be read, has another name, or several values of an option that takes one.
    """
    config = {name: value for name, value in read_yaml(path).items() if name not in IGNORED and value is not None}
    env_args = config.pop("env_args", {})
    if not isinstance(env_args, Mapping):
        raise ValueError(f"Expected env_args in {path} to be a mapping, got {env_args!r:.80}.")
    for name, value in config.items():
        if name not in options:
            advice = did_you_mean(nearest(str(name), options)) or f"There are {', '.join(sorted(options))}."
            raise ValueError(f"Expected names of options in {path}, got {name!r}. {advice}".rstrip())
        if isinstance(value, dict) or (isinstance(value, list) and options[name] == 1):
            raise ValueError(f"Expected a value of {name} in {path}, got {value!r:.80}. Write one number or text.")
    pairs = [f"{key}={json.dumps(value, default=str)}" for key, value in env_args.items()]
    return {**config, **({"env_arg": pairs} if pairs else {})}
