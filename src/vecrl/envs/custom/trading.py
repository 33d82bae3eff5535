"""A stateless market with one asset: its prices, the position and the parameters are entries of the TensorDict."""

from __future__ import annotations

import math
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from ...errors import SpaceError
from ...specs import Binary, Categorical, Composite, Unbounded
from ..base import EnvBase
from ..entries.keys import FLAGS
from ..spec_inference import make_composite_from_td
from .generator import seeded_generator

_STEPS_PER_YEAR = 252  # trading days
_HOLDING_REWARD = 0.1  # the weight of the return of one step while the asset is held
_BUY, _SELL = 1, 2


class FinancialRegimeEnv(EnvBase):
    """Buys and sells one asset. Its price is a geometric Brownian motion with 252 steps a year.

    Actions, `[*batch, 1]` int64: 0 holds, 1 buys one unit unless one is held, 2 sells the unit if one is held.

    The reward `[*batch, 1]` is the sum of

    - the relative gain over the entry price, when the unit is sold,
    - minus `transaction_cost` times the price, when it is bought or sold,
    - 0.1 times the relative change of the price in this step, if it is held after the action.

    Entries: "price_history" `[*batch, window_size]`, the last is the current price; "current_holdings" `[*batch, 1]`
    bool; "entry_price" `[*batch, 1]`, 0 without a unit; "step_count" `[*batch]` int64; and under "params"
    `initial_price`, `volatility` and `drift` (per year), `transaction_cost`, `max_steps`, `window_size`. An episode is
    truncated after `max_steps`. The batch size and the "params" are those of the input of `reset`.

    Args:
        td_params: the parameters if the input of `reset` has none: the result of `gen_params`, possibly with other
            values.
        seed: the seed of the prices; None for a random seed.
        device: the device of all computations.
        window_size: the number of prices in "price_history"; by default that of the parameters.

    >>> env = FinancialRegimeEnv(seed=0)
    >>> env.rollout(1000).shape
    torch.Size([252])
    >>> env.rollout(5, tensordict=env.gen_params(batch_size=[3]))["price_history"].shape
    torch.Size([3, 5, 50])
    """

    returns_new_tensors = True
    _batch_locked = False

    def __init__(
        self,
        td_params: TensorDictBase | None = None,
        seed: int | None = None,
        device: Any = None,
        window_size: int | None = None,
    ):
        super().__init__(device=device, batch_size=[])
        params = self.gen_params() if td_params is None else td_params
        self._params: Any = params["params"].to(self.device or "cpu").clone()
        if self._params.batch_size:
            raise ValueError(
                f"Expected td_params without a batch size, got batch size {tuple(self._params.batch_size)}. "
                "Pass batches to reset."
            )
        if window_size is not None:
            self._params["window_size"] = torch.tensor(window_size)
        self._window = int(self._params["window_size"])
        if self._window < 2:
            raise ValueError(f"Expected a window_size of 2 or more, got {self._window}.")
        self.observation_spec = Composite(
            price_history=Unbounded((self._window,), device=self.device),
            current_holdings=Binary(1, (1,), dtype=torch.bool, device=self.device),
            entry_price=Unbounded((1,), device=self.device),
            step_count=Unbounded((), dtype=torch.int64, device=self.device),
            params=make_composite_from_td(self._params, unsqueeze_null_shapes=False),
        )
        self.state_spec = self.observation_spec.clone()
        self.action_spec = Categorical(3, (1,), device=self.device)
        self.reward_spec = Unbounded((1,), device=self.device)
        flag = Categorical(2, (1,), dtype=torch.bool, device=self.device)
        self.full_done_spec = Composite({name: flag.clone() for name in FLAGS})
        self.set_seed(seed)

    @staticmethod
    def gen_params(batch_size: Any = None, device: Any = None) -> TensorDict:
        """Returns default parameters under "params", `[*batch_size]` each."""
        defaults = {"initial_price": 100.0, "volatility": 0.2, "drift": 0.05, "transaction_cost": 0.001}
        counts = {"window_size": 50, "max_steps": _STEPS_PER_YEAR}
        shape = torch.Size(() if batch_size is None else batch_size)
        params = {name: torch.full(shape, value, device=device) for name, value in (defaults | counts).items()}
        return TensorDict({"params": TensorDict(params, shape)}, shape, device=device)

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        shape = self.batch_size if tensordict is None else tensordict.batch_size
        given = None if tensordict is None else tensordict.get("params", None)
        params = self._params.expand(shape).clone() if given is None else given
        if (params["window_size"] != self._window).any():
            raise SpaceError(
                f"Expected params with a window_size of {self._window}, got {params['window_size'].unique().tolist()}. "
                "Give window_size to the constructor."
            )
        returns = self._log_returns(params, self._window).cumsum(-1)
        data = {
            "price_history": params["initial_price"].unsqueeze(-1) * returns.exp(),
            "current_holdings": torch.zeros(*shape, 1, dtype=torch.bool, device=self.device),
            "entry_price": torch.zeros(*shape, 1, device=self.device),
            "step_count": torch.zeros(shape, dtype=torch.int64, device=self.device),
            "params": params,
        }
        return TensorDict(data, shape, device=self.device)

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        p: Any = tensordict["params"]
        prices, held, action = tensordict["price_history"], tensordict["current_holdings"], tensordict["action"]
        price, entry_price = prices[..., -1:], tensordict["entry_price"]
        next_price = price * self._log_returns(p, 1).exp()
        buys, sells = (action == _BUY) & ~held, (action == _SELL) & held
        gain = torch.where(sells, (price - entry_price) / entry_price, 0.0)
        cost = torch.where(buys | sells, p["transaction_cost"].unsqueeze(-1) * price, 0.0)
        held = (held | buys) & ~sells
        step_count = tensordict["step_count"] + 1
        truncated = (step_count >= p["max_steps"]).unsqueeze(-1)
        data = {
            "price_history": torch.cat([prices[..., 1:], next_price], -1),
            "current_holdings": held,
            "entry_price": torch.where(held, torch.where(buys, price, entry_price), 0.0),
            "step_count": step_count,
            "params": p,
            "reward": gain - cost + torch.where(held, _HOLDING_REWARD * (next_price / price - 1), 0.0),
            "terminated": torch.zeros_like(truncated),
            "truncated": truncated,
        }
        return TensorDict(data, tensordict.batch_size, device=self.device)

    def _log_returns(self, params: Any, steps: int) -> Tensor:
        """Samples the logarithms of the relative prices of steps, `[*batch, steps]`."""
        drift, volatility = params["drift"].unsqueeze(-1), params["volatility"].unsqueeze(-1)
        shape = (*drift.shape[:-1], steps)
        noise = torch.randn(shape, generator=self._generator, device=self._generator.device)
        mean = (drift - volatility**2 / 2) / _STEPS_PER_YEAR
        return mean + volatility / math.sqrt(_STEPS_PER_YEAR) * noise

    def _set_seed(self, seed: int | None) -> None:
        self._generator = seeded_generator(seed, self.device)
