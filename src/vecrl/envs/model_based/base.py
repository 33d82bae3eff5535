"""World models as environments. A step is a call of the model, so gradients flow through rollouts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase, TensorDictSequential
from torch import Tensor, nn

from ...errors import SpaceError
from ..base import EnvBase
from ..entries.row_masks import merge_into


class WorldModelWrapper(TensorDictSequential):
    """A world model of two parts, which are called one after the other.

    Args:
        transition_model: reads a state and an action, and writes the next state.
        reward_model: reads the next state, and writes the reward.
    """

    def __init__(self, transition_model: TensorDictModuleBase, reward_model: TensorDictModuleBase):
        super().__init__(transition_model, reward_model)

    def get_transition_model_operator(self) -> nn.Module:
        """Returns the transition model."""
        return self.module[0]

    def get_reward_operator(self) -> nn.Module:
        """Returns the reward model."""
        return self.module[1]


class ModelBasedEnvBase(EnvBase):
    """Steps by calls of a world model.

    The model reads the entries of `state_spec` and of the action from the TensorDict of a step. What it writes under
    the keys of the specs of observations, rewards and done flags is the result of the step; the keys may also be under
    "next". Done flags that it does not write are False. A rollout is differentiable with respect to actions, initial
    state and parameters.

    A subclass sets the specs, by hand or by `set_specs_from_env`, and defines `_reset`.

    Args:
        world_model: a module over TensorDicts.
        params: parameters to use in place of those of the model, in the order of `world_model.parameters()`.
        buffers: buffers to use in place of those of the model, in the order of `world_model.buffers()`.
        device: the device of inputs, outputs and the model.
        batch_size: the batch size. If it is None, each input of `reset` may have another (`batch_locked` is False).
        run_type_checks, allow_done_after_reset: see `EnvBase`.

    Raises:
        ValueError: `params` or `buffers` are not as many as those of the model.

    >>> import torch
    >>> from tensordict import TensorDict
    >>> from tensordict.nn import TensorDictModule
    >>> from vecrl.specs import Composite, Unbounded
    >>> class Drift(ModelBasedEnvBase):
    ...     def __init__(self):
    ...         model = TensorDictModule(lambda x, action: (x + action, -x.abs()), ["x", "action"], ["x", "reward"])
    ...         super().__init__(model)
    ...         self.observation_spec = Composite(x=Unbounded((1,)))
    ...         self.state_spec = self.observation_spec.clone()
    ...         self.action_spec = self.reward_spec = Unbounded((1,))
    ...     def _reset(self, tensordict=None):
    ...         shape = () if tensordict is None else tensordict.batch_size
    ...         return TensorDict({"x": torch.zeros(*shape, 1)}, shape)
    >>> actions = torch.ones(3, 1, requires_grad=True)
    >>> data = Drift().rollout(3, actions=actions)
    >>> data["next", "x"].flatten().tolist()
    [1.0, 2.0, 3.0]
    >>> data["next", "x"].sum().backward()
    >>> actions.grad.flatten().tolist()
    [3.0, 2.0, 1.0]
    """

    _batch_locked = False
    _copied_specs: tuple[str, ...] = ("observation", "action", "reward", "done")

    def __init__(
        self,
        world_model: TensorDictModuleBase,
        params: Sequence[Tensor] | None = None,
        buffers: Sequence[Tensor] | None = None,
        device: Any = "cpu",
        batch_size: Any = None,
        run_type_checks: bool = False,
        allow_done_after_reset: bool = False,
    ):
        super().__init__(
            device=device,
            batch_size=batch_size,
            run_type_checks=run_type_checks,
            allow_done_after_reset=allow_done_after_reset,
        )
        self._batch_locked = batch_size is not None
        self.world_model = world_model.to(self.device)
        self.world_model_params = _named(params, world_model.named_parameters(), "params")
        self.world_model_buffers = _named(buffers, world_model.named_buffers(), "buffers")

    def set_specs_from_env(self, env: EnvBase) -> None:
        """Copies the specs of observations, actions, rewards and done flags of an environment, on this device.

        A `DreamerEnv` keeps those of its observations.

        Args:
            env: an environment of the same batch size, or one without a batch size if this has none.
        """
        for name in self._copied_specs:
            setattr(self, f"full_{name}_spec", getattr(env, f"full_{name}_spec").clone().to(self.device))

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        output = self._predict(tensordict.copy())
        written = output.get("next", None)
        if isinstance(written, TensorDictBase):
            output = merge_into(output, written)
        result = output.select(*self.observation_keys, *self.reward_keys, *self.done_keys, strict=False)
        missing = [key for key in self.reward_keys if result.get(key, None) is None]
        if missing:
            raise SpaceError(
                f"Expected a world model that writes {missing}, got one that writes {self.world_model.out_keys}. "
                "Add a reward model, as in WorldModelWrapper, or override _step."
            )
        for key, spec in self.full_done_spec.items(include_nested=True, leaves_only=True):
            if key not in self.world_model.out_keys and ("next", key) not in self.world_model.out_keys:
                shape = () if self.batch_locked else tensordict.batch_size
                result.set(key, spec.zero(shape))
        return result

    def _predict(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Calls the world model, with the parameters and buffers given to the constructor."""
        replaced = {**self.world_model_params, **self.world_model_buffers}
        if not replaced:
            return self.world_model(tensordict)
        return torch.func.functional_call(self.world_model, replaced, (tensordict,))

    def _set_seed(self, seed: int | None) -> None:
        """Seeds torch's generator, from which stochastic models draw."""
        if seed is not None:
            torch.manual_seed(seed)


def _named(values: Sequence[Tensor] | None, names: Any, kind: str) -> dict[str, Tensor]:
    names = [name for name, _ in names]
    if values is None:
        return {}
    if len(values) != len(names):
        raise ValueError(f"Expected {kind} for {names}, got {len(values)} tensors. Give one for each.")
    return dict(zip(names, values, strict=True))
