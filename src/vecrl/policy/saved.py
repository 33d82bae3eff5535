"""A policy in a file: parameters, network and what it looks through, read back without running anybody's code.

It knows nothing of searches; environments only by the name that is written beside the policy.
"""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vecrl.policy.functional import fill_parameters
from vecrl.policy.language import str_to_net
from vecrl.policy.norm import ObsNormLayer, RunningNorm

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
        mean_return: what it reached, as far as that is known.

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
            ValueError: the file holds something else.
        """
        state = torch.load(path, weights_only=True, map_location="cpu")
        if not isinstance(state, dict) or state.pop("format", None) != FORMAT:
            raise ValueError(f"{os.fspath(path)} holds no policy of vecrl, or one of another version.")
        return cls(**state)

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
        return net if layer is None else _Normalised(layer, net)


class _Normalised(nn.Module):
    """A network that looks through a layer; like `nn.Sequential`, but a hidden state goes along."""

    def __init__(self, layer: nn.Module, net: nn.Module):
        super().__init__()
        self.layer, self.net = layer, net

    def forward(self, x: Tensor, *h: Any) -> Any:
        return self.net(self.layer(x).float(), *h)


def save_atomically(state: Any, path: str | os.PathLike[str]) -> None:
    """`torch.save` to a file beside `path` which then takes its name: nobody ever sees half a file."""
    path = Path(path)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        torch.save(state, draft)
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)
