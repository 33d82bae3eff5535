"""A stateless pendulum: its state and its physical parameters are entries of the TensorDict."""

from __future__ import annotations

import math
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from ...specs import Bounded, Composite, Unbounded
from ..base import EnvBase
from ..spec_inference import make_composite_from_td
from .generator import seeded_generator

_START_ANGLE, _START_SPEED = math.pi, 1.0  # rad, rad/s: initial states are sampled between minus and plus these


class PendulumEnv(EnvBase):
    """Swings a pendulum up and holds it there, as gymnasium's "Pendulum-v1", with physical parameters from the input.

    The batch size is that of the input of `reset`. Steps are differentiable with respect to actions and "params".

    Args:
        td_params: the parameters if the input has none: the result of `gen_params`, possibly with other values.
        seed: the seed of the initial states; None for a random seed.
        device: the device of all computations.

    Entries, in the shape of the batch: "th" (rad, 0 is upright), "thdot" (rad/s), and under "params" `g` (m/s²),
    `m` (kg), `l` (m), `dt` (s), `max_speed` (rad/s) and `max_torque` (N m). "action" (N m) and "reward" have the shape
    `[*batch, 1]`. An episode never ends.

    If the input of `reset` has "th" and "thdot", the episode starts from these, unless the input has a "_reset" mask or
    `set_state=False` is given.

    >>> env = PendulumEnv(seed=0)
    >>> env.rollout(3, tensordict=env.gen_params(batch_size=[4, 2])).shape
    torch.Size([4, 2, 3])
    """

    returns_new_tensors = True
    _batch_locked = False
    _supports_set_state = True

    def __init__(self, td_params: TensorDictBase | None = None, seed: int | None = None, device: Any = None):
        super().__init__(device=device, batch_size=[])
        params = self.gen_params() if td_params is None else td_params
        self._params: Any = params["params"].to(self.device or "cpu")
        if self._params.batch_size:
            raise ValueError(
                f"Expected td_params without a batch size, got batch size {tuple(self._params.batch_size)}. "
                "Pass batches to reset."
            )
        max_speed, max_torque = float(self._params["max_speed"]), float(self._params["max_torque"])
        # A step wraps the angle first, then adds to it, so it may exceed pi (TorchRL's spec says pi)
        max_angle = math.pi + max_speed * float(self._params["dt"])
        self.observation_spec = Composite(
            th=Bounded(-max_angle, max_angle, (), device=self.device, dtype=torch.float32),
            thdot=Bounded(-max_speed, max_speed, (), device=self.device, dtype=torch.float32),
            params=make_composite_from_td(self._params, unsqueeze_null_shapes=False),
        )
        self.state_spec = self.observation_spec.clone()
        self.action_spec = Bounded(-max_torque, max_torque, (1,), device=self.device, dtype=torch.float32)
        self.reward_spec = Unbounded((1,), device=self.device)
        self.set_seed(seed)

    @staticmethod
    def gen_params(g: float = 10.0, batch_size: Any = None, device: Any = None) -> TensorDict:
        """Returns default parameters under "params", float32 `[*batch_size]` each, with the gravity `g` in m/s²."""
        defaults = {"max_speed": 8.0, "max_torque": 2.0, "dt": 0.05, "g": g, "m": 1.0, "l": 1.0}
        shape = torch.Size(() if batch_size is None else batch_size)
        params = {name: torch.full(shape, value, device=device) for name, value in defaults.items()}
        return TensorDict({"params": TensorDict(params, shape)}, shape, device=device)

    def _reset(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, tensordict: TensorDictBase | None = None, *, set_state: bool | None = None
    ) -> TensorDictBase:
        shape = self.batch_size if tensordict is None else tensordict.batch_size
        input_params = None if tensordict is None else tensordict.get("params", None)
        params = self._params.expand(shape).clone() if input_params is None else input_params
        initial = {
            "th": self._uniform(shape) * _START_ANGLE,
            "thdot": self._uniform(shape) * _START_SPEED,
            "params": params,
        }
        if set_state is not False and tensordict is not None and tensordict.get("_reset", None) is None:
            initial |= {
                name: tensordict.get(name) for name in ("th", "thdot") if tensordict.get(name, None) is not None
            }
        return TensorDict(initial, shape, device=self.device)

    def _uniform(self, shape: torch.Size) -> Tensor:
        """Samples uniform numbers in [-1, 1)."""
        return torch.rand(shape, generator=self._generator, device=self._generator.device) * 2 - 1

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        th, thdot = _wrap_angle(tensordict["th"]), tensordict["thdot"]
        p: Any = tensordict["params"]
        torque = tensordict["action"].squeeze(-1)
        torque = torch.minimum(torch.maximum(torque, -p["max_torque"]), p["max_torque"])
        cost = th**2 + 0.1 * thdot**2 + 0.001 * torque**2
        acceleration = 3 * p["g"] / (2 * p["l"]) * th.sin() + 3 / (p["m"] * p["l"] ** 2) * torque
        thdot = torch.minimum(torch.maximum(thdot + acceleration * p["dt"], -p["max_speed"]), p["max_speed"])
        next_td = {"th": th + thdot * p["dt"], "thdot": thdot, "params": p, "reward": -cost.unsqueeze(-1)}
        done = torch.zeros_like(next_td["reward"], dtype=torch.bool)
        return TensorDict({**next_td, "done": done}, tensordict.batch_size, device=self.device)

    def _set_seed(self, seed: int | None) -> None:
        self._generator = seeded_generator(seed, self.device)


def _wrap_angle(angle: Tensor) -> Tensor:
    """Wraps an angle to [-pi, pi)."""
    return torch.remainder(angle + math.pi, 2 * math.pi) - math.pi
