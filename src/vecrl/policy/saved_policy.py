"""A policy in a file: parameters, network and what it looks through, read back without running anybody's code.

It knows nothing of searches; environments only by the name that is written beside the policy.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from typing import Any

import torch
from torch import Tensor, nn

from vecrl.policy.functional import count_parameters, fill_parameters
from vecrl.policy.network_language import str_to_net
from vecrl.policy.obs_norm import ObsNormLayer, RunningNorm
from vecrl.snapshot.atomic_write import write_atomically

FORMAT = 1


@dataclass(frozen=True, slots=True)
class SavedPolicy:
    """A policy and what it takes to use it again.

    Attributes:
        env: name of the environment that it was made for.
        network: in the network language.
        constants: of the network.
        parameters: `[L]` float32.
        norm: the observation statistics' `state_dict`, or None where observations are not normalised.
        clip: normalised observations were clipped to `[-clip, clip]`.
        mean_return: its mean return in the test that chose it; None if it was not tested.

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

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the file, at once or not at all."""
        save_atomically({"format": FORMAT, **asdict(self)}, path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> SavedPolicy:
        """Read what `save` wrote, by torch's `weights_only`: tensors, numbers and text, nothing that runs.

        Raises:
            ValueError: the file is damaged, or holds something else.
            OSError: it cannot be opened.
        """
        state = load_tensors(path)
        if not isinstance(state, dict) or state.pop("format", None) != FORMAT:
            raise ValueError(f"{os.fspath(path)} holds no policy of vecrl, or one of another version.")
        try:
            return cls.from_dict(state)
        except ValueError as error:
            raise ValueError(f"{os.fspath(path)} holds a policy that cannot be used: {error}") from error

    @classmethod
    def from_dict(cls, state: Any) -> SavedPolicy:
        """The policy of its `asdict`, looked at piece by piece, for it may come from anywhere.

        Raises:
            ValueError: a piece is missing, of another kind, or does not fit the others.
        """
        if not isinstance(state, dict) or set(state) != {field.name for field in fields(cls)}:
            actual = sorted(map(str, state)) if isinstance(state, dict) else type(state).__name__
            raise ValueError(f"expected {', '.join(field.name for field in fields(cls))}, but {actual} came.")
        for name, (expected, is_valid) in _FIELD_CHECKS.items():
            if not is_valid(state[name]):
                raise ValueError(f"expected {name} to be {expected}, but {_short_repr(state[name])} came.")
        policy = cls(**state)
        policy._check_network()
        return policy

    def _check_network(self) -> None:
        """Count without allocating: a few letters in a file must not fill the memory."""
        with torch.device("meta"):
            expected_count = count_parameters(str_to_net(self.network, **self.constants))
        if expected_count != len(self.parameters):
            raise ValueError(f"its network has {expected_count} parameters, but {len(self.parameters)} came.")
        if self.norm is not None and self.norm["mean"].shape != (self.constants.get("obs_length"),):
            actual, length = tuple(self.norm["mean"].shape), self.constants.get("obs_length")
            raise ValueError(f"expected norm of {length} observed numbers, but {actual} came.")

    def obs_layer(self) -> ObsNormLayer | None:
        """What observations go through before the network, or None."""
        if self.norm is None:
            return None
        norm = RunningNorm(shape=tuple(self.norm["mean"].shape), clip=self.clip)
        norm.load_state_dict(self.norm)
        return norm.to_layer()

    def module(self) -> nn.Module:
        """The network with its parameters, the normalisation before it: for flat observations `[..., obs_length]`."""
        net, layer = str_to_net(self.network, **self.constants), self.obs_layer()
        fill_parameters(net, self.parameters)
        return net if layer is None else _NormalizedModule(layer, net)


class _NormalizedModule(nn.Module):
    """A network that looks through a layer; like `nn.Sequential`, but a hidden state goes along."""

    def __init__(self, layer: nn.Module, net: nn.Module):
        super().__init__()
        self.layer, self.net = layer, net

    def forward(self, x: Tensor, *h: Any) -> Any:
        return self.net(self.layer(x).float(), *h)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_vector(value: Any) -> bool:
    return isinstance(value, Tensor) and value.layout == torch.strided and value.ndim == 1 and value.is_floating_point()


def _is_norm(value: Any) -> bool:
    if not isinstance(value, dict) or set(value) != {"count", "mean", "m2"}:
        return False
    count, mean, m2 = value["count"], value["mean"], value["m2"]
    counted = isinstance(count, Tensor) and count.numel() == 1 and not count.is_complex() and bool(count >= 1)
    return counted and _is_vector(mean) and _is_vector(m2) and mean.shape == m2.shape


_FIELD_CHECKS: dict[str, tuple[str, Callable[[Any], bool]]] = {
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
}


def _short_repr(value: Any) -> str:
    return repr(value) if value is None or isinstance(value, int | float | str) else type(value).__name__


def load_tensors(path: str | os.PathLike[str]) -> Any:
    """What `save_atomically` wrote: tensors, numbers and text, on the CPU; nothing in the file is ever run.

    Raises:
        ValueError: the file is empty, cut short or damaged, or would have to run something.
        OSError: it cannot be opened.
    """
    with open(path, "rb") as file:
        try:
            return torch.load(file, weights_only=True, map_location="cpu")
        except Exception as error:  # whatever damaged bytes make torch, its zip reader and its unpickler raise
            raise ValueError(
                f"{os.fspath(path)} cannot be read: expected tensors, numbers and text as vecrl saves them, but the "
                "file is empty, cut short, damaged or of another kind; take another, or make it anew."
            ) from error


def save_atomically(state: Any, path: str | os.PathLike[str]) -> None:
    """`torch.save` to a file beside `path` which then takes its name: nobody ever sees half a file."""
    file = io.BytesIO()
    torch.save(state, file)
    write_atomically(path, [file.getvalue()])
