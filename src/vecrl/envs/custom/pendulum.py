"""A pendulum that keeps nothing: its state and its physics are entries of the TensorDict."""

from __future__ import annotations

import math
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from ...specs import Bounded, Composite, Unbounded
from ..base import EnvBase
from ..spec_inference import make_composite_from_td

_START_ANGLE, _START_SPEED = math.pi, 1.0  # rad, rad/s: where episodes begin lies between plus and minus these


class PendulumEnv(EnvBase):
    """Swing a pendulum up and hold it there, as gymnasium's "Pendulum-v1", with physics that the input decides.

    Any batch size will do: that of what `reset` is given. All is differentiable with respect to actions and "params".

    Args:
        td_params: the physics to take where the input has none: what `gen_params` returns, or such with other values.
        seed: of the start states; None leaves them to chance.
        device: where everything is computed.

    Entries, of the batch's shape: "th" (rad, 0 is upright), "thdot" (rad/s), the physics under "params" (`g` in m/s²,
    `m` in kg, `l` in m, `dt` in s, `max_speed` in rad/s, `max_torque` in N m);
    "action" `[*batch, 1]` (N m) and "reward" `[*batch, 1]`. It never ends.

    An input of `reset` that has "th" and "thdot" already says where to begin, unless it has a "_reset" mask, or
    `set_state=False` is given.

    >>> env = PendulumEnv(seed=0)
    >>> env.rollout(3, tensordict=env.gen_params(batch_size=[4, 2])).shape
    torch.Size([4, 2, 3])
    """

    batch_locked = False
    supports_set_state = True

    def __init__(self, td_params: TensorDictBase | None = None, seed: int | None = None, device: Any = None):
        super().__init__(device=device, batch_size=[])
        params = self.gen_params() if td_params is None else td_params
        self._params: Any = params["params"].to(self.device or "cpu")
        if self._params.batch_size:
            raise ValueError(
                f"Expected td_params of one pendulum, but one of the batch size {tuple(self._params.batch_size)} came. "
                "Give batches to reset."
            )
        spin, twist = float(self._params["max_speed"]), float(self._params["max_torque"])
        top = math.pi + spin * float(
            self._params["dt"]
        )  # it is wrapped before a step (TorchRL's spec says pi all the same)
        self.observation_spec = Composite(
            th=Bounded(-top, top, (), device=self.device, dtype=torch.float32),
            thdot=Bounded(-spin, spin, (), device=self.device, dtype=torch.float32),
            params=make_composite_from_td(self._params, unsqueeze_null_shapes=False),
        )
        self.state_spec = self.observation_spec.clone()
        self.action_spec = Bounded(-twist, twist, (1,), device=self.device, dtype=torch.float32)
        self.reward_spec = Unbounded((1,), device=self.device)
        self.set_seed(seed)

    @staticmethod
    def gen_params(g: float = 10.0, batch_size: Any = None, device: Any = None) -> TensorDict:
        """The usual physics under "params", float32, as many times as `batch_size` says, with another gravity `g`."""
        usual = {"max_speed": 8.0, "max_torque": 2.0, "dt": 0.05, "g": g, "m": 1.0, "l": 1.0}
        shape = torch.Size(() if batch_size is None else batch_size)
        params = {name: torch.full(shape, value, device=device) for name, value in usual.items()}
        return TensorDict({"params": TensorDict(params, shape)}, shape, device=device)

    def _reset(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, tensordict: TensorDictBase | None = None, *, set_state: bool | None = None
    ) -> TensorDictBase:
        shape = self.batch_size if tensordict is None else tensordict.batch_size
        given = None if tensordict is None else tensordict.get("params", None)
        params = self._params.expand(shape).clone() if given is None else given
        start = {"th": self._draw(shape) * _START_ANGLE, "thdot": self._draw(shape) * _START_SPEED, "params": params}
        if set_state is not False and tensordict is not None and tensordict.get("_reset", None) is None:
            start |= {name: tensordict.get(name) for name in ("th", "thdot") if tensordict.get(name, None) is not None}
        return TensorDict(start, shape, device=self.device)

    def _draw(self, shape: torch.Size) -> Tensor:
        """Numbers in [-1, 1)."""
        return torch.rand(shape, generator=self._generator, device=self._generator.device) * 2 - 1

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        th, thdot = _wrapped(tensordict["th"]), tensordict["thdot"]
        p: Any = tensordict["params"]
        torque = tensordict["action"].squeeze(-1)
        torque = torch.minimum(torch.maximum(torque, -p["max_torque"]), p["max_torque"])
        cost = th**2 + 0.1 * thdot**2 + 0.001 * torque**2
        pull = 3 * p["g"] / (2 * p["l"]) * th.sin() + 3 / (p["m"] * p["l"] ** 2) * torque
        thdot = torch.minimum(torch.maximum(thdot + pull * p["dt"], -p["max_speed"]), p["max_speed"])
        next_td = {"th": th + thdot * p["dt"], "thdot": thdot, "params": p, "reward": -cost.unsqueeze(-1)}
        return TensorDict(next_td, tensordict.batch_size, device=self.device)

    def _set_seed(self, seed: int | None) -> None:
        self._generator = torch.Generator(self.device or "cpu")
        if seed is None:
            self._generator.seed()
        else:
            self._generator.manual_seed(seed)


def _wrapped(angle: Tensor) -> Tensor:
    """The angle in [-pi, pi)."""
    return torch.remainder(angle + math.pi, 2 * math.pi) - math.pi
