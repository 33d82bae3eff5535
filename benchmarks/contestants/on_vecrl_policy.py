"""vecrl's batched policies."""

from __future__ import annotations

import torch

from benchmarks.contestant import Contest
from benchmarks.population import NETWORK, observations, parameters
from vecrl.policy import Policy

torch.set_num_threads(1)


def policy(members: int) -> Contest:
    net = Policy(NETWORK)
    net.set_parameters(torch.from_numpy(parameters(members)))
    x = torch.from_numpy(observations(members))

    def run(units: int) -> None:
        with torch.no_grad():
            for _ in range(units):
                net(x)

    yield run
