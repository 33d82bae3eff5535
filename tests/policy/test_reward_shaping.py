"""The alive bonus."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from vecrl.policy import AliveBonus, alive_bonus


@given(t=st.integers(0, 300), t0=st.integers(0, 200), ramp=st.integers(0, 100), bonus=st.floats(-10, 10))
def test_none_before_linear_between_full_after(t, t0, ramp, bonus):
    """The alive bonus (t0, t1, bonus) is zero before t0, linear up to t1 and full afterwards."""
    actual = alive_bonus(t, (t0, t0 + ramp, bonus))
    if t < t0:
        assert actual == 0
    elif t >= t0 + ramp:
        assert actual == bonus
    else:
        assert actual == pytest.approx(bonus * (t - t0) / ramp)
    for batch in (np.array([t, t]), torch.tensor([t, t])):
        result = alive_bonus(batch, (t0, t0 + ramp, bonus))
        assert isinstance(result, type(batch))
        np.testing.assert_allclose(np.asarray(result), [actual, actual], rtol=1e-5, atol=1e-6)


def test_short_forms_of_the_schedule():
    assert AliveBonus.from_schedule((5, 2.0)) == AliveBonus(5, 5, 2.0)
    assert [alive_bonus(t, (5, 2.0)) for t in (4, 5)] == [0.0, 2.0]
    assert alive_bonus(99, None) == 0.0
    assert AliveBonus.from_schedule(AliveBonus(1, 2, 3)) == AliveBonus(1, 2, 3)


def test_invalid_schedules_raise():
    with pytest.raises(ValueError, match="t0 <= t1"):
        AliveBonus(2, 1, 1.0)
    with pytest.raises(ValueError, match=r"\(t0, t1, bonus\)"):
        alive_bonus(0, (1,))
