"""`TransformInTorchRL`: a transform of vecrl in a replay buffer, a `Compose` or an environment of TorchRL.

This module imports TorchRL, so it is imported only by programs that have imported it.
"""

from __future__ import annotations

from typing import Any, Self

import torch
from tensordict import TensorDictBase
from torch import nn
from torchrl.envs import transforms as torchrl_transforms

from ...envs.transforms import Transform, TransformedEnv, VecNormV2
from ...envs.transforms.compose import as_transform
from .environments import TorchRLEnv
from .spec_conversion import from_torchrl, to_torchrl

__all__ = ["TransformInTorchRL"]

_REFUSED = ("ActionMask", "AutoResetTransform", "BatchSizeTransform", "EndOfLifeTransform", "VecGymEnvTransform")
"""Transforms that change environments beyond the methods that transforms have."""


class TransformInTorchRL(torchrl_transforms.Transform):
    """A transform of vecrl as one of TorchRL. Its results are those of vecrl.

    TorchRL's classes get it where they are given a transform of vecrl. In a replay buffer, `inv` of the transform
    changes the data to store, and `forward` those that are read. Other attributes are those of the transform of vecrl.

    Args:
        transform: the transform of vecrl, which belongs to no environment of vecrl; or an `nn.Sequential` of several.
            Of a part of a `Compose`, a clone is used, which shares the part's buffers.

    Attributes:
        transform: the transform of vecrl.

    Raises:
        AttributeError: the transform belongs to an environment of vecrl.
    """

    def __init__(self, transform: Any):
        transform = as_transform(transform)
        if transform.container is not None:
            if transform._env is not None:
                raise AttributeError(
                    f"Expected {type(transform).__name__} to belong to no environment, got one that already belongs "
                    "to an environment. Use transform.clone()."
                )
            transform = transform.clone()  # a part of a Compose stays there, as in TorchRL
        super().__init__()
        self.transform = transform
        self.__dict__["_vecrl_env"] = None  # never a submodule

    # -- the environment of vecrl's transform

    @property
    def _transform_in_env(self) -> Transform:
        """The transform of vecrl, in an environment of vecrl if this object is in one of TorchRL."""
        if self._vecrl_env is None and self.parent is not None:
            _check_adaptable(self.transform)
            self.__dict__["_vecrl_env"] = TransformedEnv(TorchRLEnv(self.parent), self.transform)
        return self.transform

    def _leave(self) -> None:
        if self._vecrl_env is not None:
            self.transform.reset_parent()
            self.__dict__["_vecrl_env"] = None

    def set_container(self, container: Any) -> None:
        """Makes the transform a part of a `Compose` or an environment of TorchRL."""
        self._leave()
        super().set_container(container)

    def reset_parent(self) -> None:
        """Removes the transform from its container."""
        self._leave()
        super().reset_parent()

    def empty_cache(self) -> None:
        """Clears cached values that depend on the environment."""
        self._leave()
        super().empty_cache()

    def clone(self) -> Self:
        """Returns an adapter of a clone of the transform."""
        return type(self)(self.transform.clone())

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name.startswith("_") or "transform" not in self._modules:
                raise
        return getattr(self._transform_in_env, name)

    # -- values

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Changes stored data."""
        return self._transform_in_env(tensordict)

    def _inv_call(self, tensordict: TensorDictBase) -> TensorDictBase:
        return self._transform_in_env.inv(tensordict)

    def _call(self, next_tensordict: TensorDictBase) -> TensorDictBase:
        return self._transform_in_env._call(next_tensordict)

    def _step(self, tensordict: TensorDictBase, next_tensordict: TensorDictBase) -> TensorDictBase:
        return self._transform_in_env._step(tensordict, next_tensordict)

    def _reset(self, tensordict: TensorDictBase, tensordict_reset: TensorDictBase) -> TensorDictBase:
        return self._transform_in_env._reset(tensordict, tensordict_reset)

    def _reset_env_preprocess(self, tensordict: TensorDictBase) -> TensorDictBase:
        return self._transform_in_env._reset_env_preprocess(tensordict)

    # -- specs

    def transform_output_spec(self, output_spec: Any) -> Any:
        """Returns the specs of all outputs that vecrl's transform derives."""
        return self._transform_spec("transform_output_spec", output_spec)

    def transform_input_spec(self, input_spec: Any) -> Any:
        """Returns the specs of all inputs that vecrl's transform derives."""
        return self._transform_spec("transform_input_spec", input_spec)

    def _transform_spec(self, method: str, spec: Any) -> Any:
        return to_torchrl(getattr(self._transform_in_env, method)(from_torchrl(spec)))

    def transform_env_batch_size(self, batch_size: torch.Size) -> torch.Size:
        """Returns the batch size that the user sees."""
        return self.transform.transform_env_batch_size(batch_size)

    def transform_env_device(self, device: torch.device | None) -> torch.device | None:
        """Returns the device that the user sees."""
        return self.transform.transform_env_device(device)

    def transform_fake_tensordict(self, fake_tensordict: TensorDictBase) -> TensorDictBase:
        """Returns the TensorDict of zeros that the user sees."""
        return self._transform_in_env.transform_fake_tensordict(fake_tensordict)

    # -- the rest

    def init(self, tensordict: TensorDictBase) -> None:
        """Initializes the transform from the first data."""
        self._transform_in_env.init(tensordict)

    def close(self) -> None:
        """Releases the resources of the transform."""
        self.transform.close()

    def dump(self, **kwargs: Any) -> None:
        """Writes collected data to its destination."""
        self._transform_in_env.dump(**kwargs)

    def set_missing_tolerance(self, mode: bool = False) -> None:
        """Sets whether entries may be missing."""
        super().set_missing_tolerance(mode)
        self.transform.set_missing_tolerance(mode)

    def train(self, mode: bool = True) -> Self:
        """Sets the mode of this object, not that of vecrl's transform. TorchRL sets the mode of all transforms that it
        gets to evaluation, in which vecrl's running statistics are not updated."""
        self.training = mode
        return self

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_vecrl_env": None}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.transform!r})"


def _check_adaptable(transform: Transform) -> None:
    """Raises a TypeError if a transform of vecrl needs more of an environment than TorchRL's gives."""
    parts = [part for part in transform.modules() if _is_refused(part)]
    if parts:
        raise TypeError(
            "Expected transforms that change entries only, in an environment of TorchRL, got vecrl's "
            f"{[type(part).__name__ for part in parts]}. Use those of TorchRL, or vecrl.envs.TransformedEnv."
        )


def _is_refused(part: nn.Module) -> bool:
    stateless = isinstance(part, VecNormV2) and not part.stateful  # resets of TorchRL drop its statistics
    return stateless or type(part).__name__ in _REFUSED
