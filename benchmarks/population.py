"""The population that every library evaluates: one network, one batch of flat parameters, torch's layout."""

from __future__ import annotations

import numpy as np

OBS, HIDDEN, ACTIONS = 4, 64, 2
LENGTH = OBS * HIDDEN + HIDDEN + HIDDEN * ACTIONS + ACTIONS
NETWORK = f"Linear({OBS}, {HIDDEN}) >> Tanh() >> Linear({HIDDEN}, {ACTIONS})"


def parameters(members: int) -> np.ndarray:
    """Returns `[members, LENGTH]` float32: from bad to good at CartPole, as early in a search.

    Of 256 members, half fall within a dozen steps and a few last for all 500. So an evaluation is long, but most of its
    members end early; the mean is about 28 steps.
    """
    rng = np.random.default_rng(0)
    signs = rng.choice([-1.0, 1.0], HIDDEN)
    towards = np.outer(signs, [0.1, 0.3, 1.0, 1.0]).ravel()  # push in the direction of the pole's angle and velocity
    good = np.concatenate([towards, np.zeros(HIDDEN), np.concatenate([-signs, signs]) / 8, np.zeros(ACTIONS)])
    share = np.linspace(0, 0.5, members)[:, None]
    return (share * good + rng.normal(0, 0.5, (members, LENGTH))).astype(np.float32)


def observations(members: int) -> np.ndarray:
    """Returns `[members, OBS]` float32."""
    return np.random.default_rng(1).normal(0, 1, (members, OBS)).astype(np.float32)


def split(flat):
    """Returns weights and biases of the two layers of `[..., LENGTH]`: arrays or tensors, views if possible."""
    a, b, c = OBS * HIDDEN, OBS * HIDDEN + HIDDEN, OBS * HIDDEN + HIDDEN + HIDDEN * ACTIONS
    lead = flat.shape[:-1]
    return (
        flat[..., :a].reshape(*lead, HIDDEN, OBS),
        flat[..., a:b],
        flat[..., b:c].reshape(*lead, ACTIONS, HIDDEN),
        flat[..., c:],
    )
