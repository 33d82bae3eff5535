"""Saves a policy in a file: parameters, network and observation normalization. Loading a file runs no code from it."""

from __future__ import annotations

import io
import os
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import IO, Any, TypeGuard

import torch
from torch import Tensor, nn

from ..snapshot.atomic_write import write_atomically
from .functional import fill_parameters
from .network_language import num_parameters, str_to_net
from .obs_norm import ObsNormLayer, RunningNorm
from .policy_io import PolicyIO

FORMAT = 1


@dataclass(frozen=True, slots=True)
class SavedPolicy:
    """A policy with everything that is needed to use it.

    Attributes:
        env: the name of its environment.
        network: the network, in the network language.
        constants: the constants of the network.
        parameters: `[L]` float32.
        norm: the `state_dict` of the observation statistics, or None if observations are not normalized.
        clip: normalized observations are clipped to `[-clip, clip]`; None disables clipping.
        mean_return: the mean return in the test that selected the policy; None if it was not tested.
        spaces: what the features and outputs of the network mean, `PolicyIO.spaces`; None if unknown.

    >>> saved = SavedPolicy("CartPole-v1", "Linear(obs_length, act_length)", {"obs_length": 4, "act_length": 2},
    ...                     torch.zeros(10))
    >>> saved.module()(torch.ones(4)).tolist()
    [0.0, 0.0]
    """

    env: str
    network: str
    constants: dict[str, int]
    parameters: Tensor
    norm: dict[str, Tensor] | None = None
    clip: float | None = None
    mean_return: float | None = None
    spaces: dict[str, str] | None = None

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the file atomically."""
        save_atomically({"format": FORMAT, **asdict(self)}, path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> SavedPolicy:
        """Reads a file that `save` wrote, with torch's `weights_only`: only tensors, numbers and text, no code.

        Args:
            path: the file, or the folder of a run of `vecrl evolve`, of which it is best.pt.

        Raises:
            ValueError: the file is damaged, or contains no policy.
            OSError: there is no file, or it cannot be opened.
        """
        path = os.path.join(path, "best.pt") if os.path.isdir(path) else path
        try:
            state = load_tensors(path)
        except OSError as error:
            found = f"{os.fspath(path)!r}: {error.strerror}"
            raise type(error)(f"Expected the folder of a run of vecrl evolve, or its best.pt, got {found}.") from error
        file_format = state.pop("format", None) if isinstance(state, dict) else None
        if type(file_format) is not int or file_format != FORMAT:
            raise ValueError(f"Expected a vecrl policy of format {FORMAT} in {os.fspath(path)}, got other data.")
        try:
            return cls.from_dict(state)
        except ValueError as error:
            raise ValueError(f"{os.fspath(path)} contains an invalid policy: {error}") from error

    @classmethod
    def from_dict(cls, state: Any) -> SavedPolicy:
        """Makes a policy from its `asdict`, and checks every field, because the data may come from anywhere.

        Raises:
            ValueError: a field is missing, has another type, or does not fit the others.
        """
        if isinstance(state, dict):
            state = {"spaces": None, **state}  # earlier versions did not save it
        if not isinstance(state, dict) or set(state) != {field.name for field in fields(cls)}:
            actual = sorted(map(str, state)) if isinstance(state, dict) else type(state).__name__
            raise ValueError(f"Expected {', '.join(field.name for field in fields(cls))}, got {actual}.")
        for name, (expected, is_valid) in _FIELD_CHECKS.items():
            if not is_valid(state[name]):
                raise ValueError(f"Expected {name} to be {expected}, got {_short_repr(state[name])}.")
        policy = cls(**state)
        _check_network(policy)
        return policy

    def check_spaces(self, env: str, policy_io: PolicyIO) -> None:
        """Checks that the network fits the spaces of an environment.

        Args:
            env: the name of the environment, for the message.
            policy_io: the conversion of its spaces.

        Raises:
            ValueError: the spaces differ in size or in what the features and outputs mean.
        """
        pairs = [(self.constants, policy_io.constants), (self.spaces or policy_io.spaces, policy_io.spaces)]
        for expected, actual in pairs:
            differing = [name for name in expected if expected[name] != actual.get(name)]
            if differing:
                raise ValueError(
                    f"Expected an environment with {_text(expected, differing)}, as {self.env} has, got {env} with "
                    f"{_text(actual, differing)}. Give the environment of the policy."
                )

    def obs_layer(self) -> ObsNormLayer | None:
        """Returns the normalization layer for observations, or None."""
        if self.norm is None:
            return None
        norm = RunningNorm(shape=tuple(self.norm["mean"].shape), clip=self.clip)
        norm.load_state_dict(self.norm)
        return norm.to_layer()

    def module(self) -> nn.Module:
        """Returns the normalization and the network with its parameters, for flat observations `[..., obs_length]`."""
        net, layer = str_to_net(self.network, **self.constants), self.obs_layer()
        fill_parameters(net, self.parameters)
        return _NormalizedModule(nn.Identity() if layer is None else layer, net)


def _text(values: Mapping[str, object], names: list[str]) -> str:
    return ", ".join(f"{name} {values.get(name)}" for name in names)


def _check_network(policy: SavedPolicy) -> None:
    """Checks the number of parameters without allocating them, since a short text can describe a huge network."""
    expected_count = num_parameters(policy.network, **policy.constants)
    if expected_count != len(policy.parameters):
        raise ValueError(f"Expected {expected_count} parameters for its network, got {len(policy.parameters)}.")
    if policy.norm is not None and policy.norm["mean"].shape != (policy.constants.get("obs_length"),):
        actual, length = tuple(policy.norm["mean"].shape), policy.constants.get("obs_length")
        raise ValueError(f"Expected norm of {length} observed numbers, got shape {actual}.")


class _NormalizedModule(nn.Module):
    """Applies a normalization layer, then a network to its float32 outputs; passes a hidden state too."""

    def __init__(self, layer: nn.Module, net: nn.Module):
        super().__init__()
        self.layer, self.net = layer, net

    def forward(self, x: Tensor, *h: Any) -> Any:
        return self.net(self.layer(x).float(), *h)


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_vector(value: object) -> bool:
    """Returns whether this is a vector of floats with memory of its own for each."""
    if not isinstance(value, Tensor) or value.layout != torch.strided or value.is_meta:
        return False
    size = value.numel() * value.element_size()
    return value.ndim == 1 and value.is_floating_point() and value.untyped_storage().nbytes() >= size


def _is_norm(value: object) -> bool:
    if not isinstance(value, dict) or set(value) != {"count", "mean", "m2"}:
        return False
    count, mean, m2 = value["count"], value["mean"], value["m2"]
    is_number = isinstance(count, Tensor) and count.ndim == 0 and not (count.is_meta or count.is_complex())
    counted = is_number and bool(count >= 1)
    return counted and _is_vector(mean) and _is_vector(m2) and mean.shape == m2.shape


_FIELD_CHECKS: dict[str, tuple[str, Callable[[object], bool]]] = {
    "env": ("text", lambda value: isinstance(value, str)),
    "network": ("text", lambda value: isinstance(value, str)),
    "constants": (
        "whole numbers by name",
        lambda value: isinstance(value, dict) and all(type(k) is str and type(v) is int for k, v in value.items()),
    ),
    "parameters": ("a vector of floats", _is_vector),
    "norm": ("None, or count (1 or more), mean and m2", lambda value: value is None or _is_norm(value)),
    "clip": ("None, or a number above 0", lambda value: value is None or (_is_number(value) and value > 0)),
    "mean_return": ("None, or a number", lambda value: value is None or _is_number(value)),
    "spaces": (
        "None, or texts by name",
        lambda value: (
            value is None
            or (isinstance(value, dict) and all(type(k) is str and type(v) is str for k, v in value.items()))
        ),
    ),
}


def _short_repr(value: object) -> str:
    return repr(value) if value is None or isinstance(value, int | float | str) else type(value).__name__


def load_tensors(path: str | os.PathLike[str]) -> Any:
    """Loads a file that `save_atomically` wrote: tensors, numbers and text, on the CPU. It runs no code from the file.

    Raises:
        ValueError: the file is empty, incomplete or damaged, or contains code.
        OSError: the file cannot be opened.
    """
    with open(path, "rb") as file:
        try:
            _check_entries(file)
            return torch.load(file, weights_only=True, map_location="cpu")
        except Exception as error:  # damaged bytes make torch, its zip reader or its unpickler raise any exception
            raise ValueError(
                f"{os.fspath(path)} cannot be read: expected tensors, numbers and text saved by vecrl, got an empty, "
                "incomplete, damaged or other file. Use another file, or save it again."
            ) from error


def _check_entries(file: IO[bytes]) -> None:
    """Raises a `ValueError` if a zip file describes more bytes than it has."""
    size = file.seek(0, io.SEEK_END)
    with zipfile.ZipFile(file) as entries:
        if sum(entry.file_size for entry in entries.infolist()) > size:
            raise ValueError("Expected entries that are not compressed.")
    file.seek(0)


def save_atomically(state: object, path: str | os.PathLike[str]) -> None:
    """Writes `state` with `torch.save` to a temporary file and renames it to `path`, so that `path` is never
    incomplete."""
    file = io.BytesIO()
    torch.save(state, file)
    write_atomically(path, [file.getvalue()])
