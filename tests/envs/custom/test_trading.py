"""The market with one asset."""

from __future__ import annotations

import math

import pytest
import torch

from vecrl.envs import check_env_specs
from vecrl.envs.custom.trading import FinancialRegimeEnv
from vecrl.errors import SpaceError

HOLD, BUY, SELL = 0, 1, 2


def test_specs_hold() -> None:
    check_env_specs(FinancialRegimeEnv())
    check_env_specs(FinancialRegimeEnv(window_size=7))


def test_rewards_and_positions() -> None:
    actions = [BUY, HOLD, BUY, SELL, SELL, HOLD]
    data = FinancialRegimeEnv(seed=0).rollout(6, actions=torch.tensor(actions)[:, None])
    price, next_price = data["price_history"][:, -1], data["next", "price_history"][:, -1]
    change = 0.1 * (next_price / price - 1)
    entry, cost = price[0], 0.001
    expected = [
        change[0] - cost * entry,
        change[1],
        change[2],
        (price[3] - entry) / entry - cost * price[3],
        torch.tensor(0.0),
        torch.tensor(0.0),
    ]
    torch.testing.assert_close(data["next", "reward"].squeeze(-1), torch.stack(expected))
    assert data["next", "current_holdings"].flatten().tolist() == [True, True, True, False, False, False]
    torch.testing.assert_close(data["next", "entry_price"].flatten(), torch.tensor([entry] * 3 + [0.0] * 3))
    torch.testing.assert_close(data["next", "price_history"][:, :-1], data["price_history"][:, 1:])
    assert data["next", "step_count"].tolist() == [1, 2, 3, 4, 5, 6]


def test_prices_are_a_geometric_brownian_motion() -> None:
    env = FinancialRegimeEnv(seed=0)
    params = env.gen_params(batch_size=[500])
    params["params", "drift"][:250] = 5.0
    log_prices = env.reset(params)["price_history"].log()
    returns = log_prices.diff(dim=-1)
    assert returns[250:].std().item() == pytest.approx(0.2 / math.sqrt(252), rel=0.05)
    mean_returns = returns.unflatten(0, (2, 250)).mean((1, 2)) * 252
    torch.testing.assert_close(mean_returns, torch.tensor([5.0 - 0.02, 0.05 - 0.02]), atol=0.15, rtol=0.0)


def test_episodes_are_truncated() -> None:
    env = FinancialRegimeEnv()
    params = env.gen_params()
    params["params", "max_steps"] = torch.tensor(4)
    data = env.rollout(10, tensordict=params)
    assert data["next", "truncated"].flatten().tolist() == [False, False, False, True]
    assert not data["next", "terminated"].any()


def test_seeds_repeat_prices() -> None:
    first, second = (FinancialRegimeEnv(seed=4).rollout(5)["price_history"] for _ in range(2))
    torch.testing.assert_close(first, second)


def test_windows_are_fixed() -> None:
    params = FinancialRegimeEnv.gen_params()
    with pytest.raises(SpaceError, match=r"Expected params with a window_size of 7, got \[50\]"):
        FinancialRegimeEnv(window_size=7).reset(params)
    with pytest.raises(ValueError, match="Expected a window_size of 2 or more, got 1"):
        FinancialRegimeEnv(window_size=1)
    with pytest.raises(ValueError, match="Expected td_params without a batch size"):
        FinancialRegimeEnv(FinancialRegimeEnv.gen_params(batch_size=[2]))
