"""`TorchRLTransform`: a transform of TorchRL in an environment of vecrl.

The transform has a parent and a container of TorchRL's classes, with TorchRL's specs. This module imports TorchRL, so
it is imported only by programs that have imported it.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, Self

import torch
from tensordict import TensorDictBase
from torch import nn
from torchrl.envs import transforms as torchrl_transforms

from ...envs.entries.keys import Key
from ...envs.transforms import Compose, Transform
from ...envs.transforms.compose import torchrl_transform_error
from ...envs.transforms.transformed_env import TORCHRL_ARGUMENTS
from ...specs import Composite
from .environments import EnvInTorchRL
from .spec_conversion import restore_specs, to_torchrl

__all__ = ["TorchRLTransform", "is_torchrl_transform"]

_UNSUPPORTED = ("ActionMask", "AutoResetTransform", "BatchSizeTransform", "RayTransform", "VecGymEnvTransform")
"""Transforms that rely on TorchRL's `TransformedEnv` beyond the methods that transforms have."""


class TorchRLTransform(Transform):
    """A transform of TorchRL as one of vecrl. Its results are those of TorchRL.

    `TransformedEnv`, `append_transform` and `Compose` make it by themselves. Other attributes than those of `Transform`
    are looked up in the transform of TorchRL: `env.transform[0].loc`.

    Args:
        transform: the transform of TorchRL, which belongs to no environment.

    Attributes:
        transform: the transform of TorchRL.

    Raises:
        AttributeError: the transform belongs to an environment or to a `Compose`.
        TypeError: the transform needs TorchRL's own `TransformedEnv`.
    """

    def __init__(self, transform: Any):
        check_adaptable(transform)
        if transform.container is not None:
            raise AttributeError(
                f"Expected {type(transform).__name__} to belong to no environment, got one that already belongs to "
                "another. Use transform.clone()."
            )
        super().__init__()
        self.transform = transform.eval()  # as TorchRL does in its environments
        self._is_clone = False
        self._last_reset_td: TensorDictBase | None = None

    # -- the environment of TorchRL's transform

    def _is_in_env(self) -> bool:
        """Returns whether the transform is in an environment, and all containers are complete."""
        part: Any = self
        while isinstance(container := part.container, Compose):
            if part not in list(container):  # it is not inserted yet
                return False
            part = container
        return container is not None and container._modules.get("transform") is part

    @cached_property
    def _torchrl_env(self) -> Any:
        """The environment of TorchRL's class that contains the transform; None outside an environment."""
        self.transform.reset_parent()
        if not self._is_in_env():
            return None
        is_training, parent = self.transform.training, self._require_parent()
        for part in self.transform.modules():
            _expand_primers(part, parent.batch_size)
        env = torchrl_transforms.TransformedEnv(EnvInTorchRL.over(parent), self.transform)
        self.transform.train(is_training)
        return env

    @property
    def _transform_in_env(self) -> Any:
        """The transform of TorchRL, with its environment."""
        _ = self._torchrl_env
        return self.transform

    def empty_cache(self) -> None:
        super().empty_cache()
        self.transform.empty_cache()
        if not self._is_clone and self._is_in_env():  # its owner may call its methods, which need the environment
            _ = self._torchrl_env

    def reset_parent(self) -> None:
        super().reset_parent()
        self.transform.reset_parent()

    def clone(self) -> Self:
        """Returns an adapter of a clone of the transform, which TorchRL makes."""
        cloned = super().clone()
        cloned._clear_cache()
        cloned.transform = self.transform.clone()
        cloned._is_clone = True
        return cloned

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name.startswith("_") or "transform" not in self._modules:
                raise
        return getattr(self._transform_in_env, name)

    def __getitem__(self, index: Any) -> Any:
        """Returns a part of TorchRL's `Compose`."""
        return self._transform_in_env[index]

    def __len__(self) -> int:
        return len(self.transform)

    # -- values

    @property
    def _has_inverse(self) -> bool:
        return True

    def _call(self, next_tensordict: TensorDictBase) -> TensorDictBase:
        return self._transform_in_env._call(next_tensordict)

    def _step(self, tensordict: TensorDictBase, next_tensordict: TensorDictBase) -> TensorDictBase:
        policy_next_td = tensordict.get("next", None)
        if policy_next_td is not None:  # TorchRL's transforms find there what a policy has set, such as its memory
            known = set(next_tensordict.keys(include_nested=True, leaves_only=True))
            next_tensordict.update(policy_next_td.exclude(*known))
        return self._transform_in_env._step(tensordict, next_tensordict)

    def _reset_env_preprocess(self, tensordict: TensorDictBase | None) -> TensorDictBase | None:
        request = self._reset_request(tensordict)
        result = self._transform_in_env._reset_env_preprocess(request)
        if result is None or tensordict is None:
            return result
        return tensordict.copy().update(result)

    def _reset(self, tensordict: TensorDictBase, tensordict_reset: TensorDictBase) -> TensorDictBase:
        masks = self._reset_masks(tensordict)
        if masks and self._last_reset_td is not None:  # other rows have the entries of their last reset, as in TorchRL
            tensordict_reset = masks.select(tensordict_reset, self._last_reset_td)
        self._last_reset_td = tensordict_reset.copy()
        return self._transform_in_env._reset(self._reset_request(tensordict), tensordict_reset)

    def _reset_request(self, tensordict: Any) -> Any:
        """Returns the entries that TorchRL passes to resets: masks and states."""
        if tensordict is None:
            return None
        env = self._env
        return tensordict.select(*env.reset_keys, *env.state_keys, strict=False)

    def _inv_call(self, tensordict: TensorDictBase) -> TensorDictBase:
        return self._transform_in_env.inv(tensordict)

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        return self._transform_in_env(tensordict)

    # -- specs

    def transform_output_spec(self, output_spec: Composite) -> Composite:
        """Returns the specs of all outputs that TorchRL's transform derives."""
        return self._transform_spec("transform_output_spec", output_spec)

    def transform_input_spec(self, input_spec: Composite) -> Composite:
        """Returns the specs of all inputs that TorchRL's transform derives."""
        return self._transform_spec("transform_input_spec", input_spec)

    def transform_observation_spec(self, observation_spec: Composite) -> Composite:
        """Returns the specs of the observations that TorchRL's transform derives."""
        return self._transform_spec("transform_observation_spec", observation_spec)

    def transform_reward_spec(self, reward_spec: Composite) -> Composite:
        """Returns the specs of the rewards that TorchRL's transform derives."""
        return self._transform_spec("transform_reward_spec", reward_spec)

    def transform_done_spec(self, done_spec: Composite) -> Composite:
        """Returns the specs of the done flags that TorchRL's transform derives."""
        return self._transform_spec("transform_done_spec", done_spec)

    def transform_action_spec(self, action_spec: Composite) -> Composite:
        """Returns the specs of the actions that TorchRL's transform derives."""
        return self._transform_spec("transform_action_spec", action_spec)

    def transform_state_spec(self, state_spec: Composite) -> Composite:
        """Returns the specs of other inputs that TorchRL's transform derives."""
        return self._transform_spec("transform_state_spec", state_spec)

    def _transform_spec(self, method: str, spec: Composite) -> Composite:
        return restore_specs(getattr(self._transform_in_env, method)(to_torchrl(spec)), spec)

    def transform_env_device(self, device: torch.device | None) -> torch.device | None:
        """Returns the device that TorchRL's transform gives the environment."""
        return self.transform.transform_env_device(device)

    def transform_fake_tensordict(self, fake_tensordict: TensorDictBase) -> TensorDictBase:
        """Returns the TensorDict of zeros that TorchRL's transform makes of another one."""
        return self._transform_in_env.transform_fake_tensordict(fake_tensordict)

    # -- the rest

    def _check_batched_worker_compat(self) -> None:
        """Raises an error if TorchRL's transform must not be in a batch of environments of TorchRL."""
        self.transform._check_batched_worker_compat()

    def _default_in_keys(self) -> list[Key]:
        return list(self._transform_in_env.in_keys)

    def _default_out_keys(self) -> list[Key]:
        return list(self._transform_in_env.out_keys)

    def _default_in_keys_inv(self) -> list[Key]:
        return list(self._transform_in_env.in_keys_inv)

    def _default_out_keys_inv(self) -> list[Key]:
        return list(self._transform_in_env.out_keys_inv)

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

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Loads a state that was saved with this adapter, or by TorchRL's environment without it."""
        keys, own_prefix = [key for key in state_dict if key.startswith(prefix)], f"{prefix}transform."
        if not any(key.startswith(own_prefix) for key in keys):
            for key in keys:
                state_dict[own_prefix + key.removeprefix(prefix)] = state_dict.pop(key)
            for name, value in self.transform.state_dict().items():
                if name.rpartition(".")[2] in TORCHRL_ARGUMENTS:  # which `TransformedEnv` has dropped
                    state_dict.setdefault(own_prefix + name, value)
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.transform!r})"


def _expand_primers(part: nn.Module, batch_size: torch.Size) -> None:
    """Gives primers the batch size of the environment, as TorchRL does at the first reset, before specs are read."""
    is_primer = isinstance(part, torchrl_transforms.TensorDictPrimer)
    if is_primer and part.expand_specs is None and part.primers.shape != batch_size:
        vars(part)["expand_specs"] = True


def is_torchrl_transform(value: object) -> bool:
    """Returns whether an object is an instance of TorchRL's own `Transform`."""
    return torchrl_transforms.Transform in type(value).__mro__


def check_adaptable(transform: nn.Module) -> None:
    """Raises a TypeError if a transform of TorchRL needs more of TorchRL's environments than vecrl's give.

    These are transforms that change how environments draw actions, step or reset, beyond `Transform`'s own methods.
    """
    parts = [part for part in transform.modules() if is_torchrl_transform(part)]
    unsupported = [part for part in parts if _is_unsupported(type(part))]
    if unsupported:
        raise torchrl_transform_error(unsupported)


def _is_unsupported(cls: type) -> bool:
    names = {base.__name__ for base in cls.__mro__}
    if "Compose" in names:  # its parts are checked
        return False
    hook = "_post_step_mdp_hooks"  # vecrl has no such hook
    return bool(names & {*_UNSUPPORTED}) or getattr(cls, hook) is not getattr(torchrl_transforms.Transform, hook)
