"""How a population plays episodes in a native simulator when its steps are compiled: policy, task and scores in one go.

A region is `CHUNK` steps of one batch size as one function of tensors. There are regions for a few sizes, each a
quarter of the one before, so that members that are done soon cost nothing here either. To compile them takes a minute
or so in all, once for an evaluator; it pays in long searches. Networks with a hidden state are not compiled.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch._inductor import config as inductor

from vecrl.errors import SpaceError
from vecrl.policy.batched import batched_forward
from vecrl.policy.episodes import Evaluation, Normaliser, Rules, Seeding
from vecrl.policy.functional import ParameterLayout
from vecrl.policy.fused import Scores
from vecrl.policy.interface import Interface
from vecrl.policy.policy import Policy
from vecrl.simulators.native import NativeSimulator
from vecrl.simulators.native.base import Rows
from vecrl.simulators.native.compiled import compile_static

CHUNK = 8  # steps of a region
QUARTER = 4  # how much smaller the next batch is
LEAST = 16  # no batch is smaller


class CompiledPlay:
    """Plays populations of up to `simulator.num_envs` members by compiled regions.

    Args:
        simulator: what is compiled into the regions.
        policy: whose network is compiled into them; its parameters are taken anew by each play.
        interface: of the simulator.

    Raises:
        SpaceError: the network has a hidden state.
    """

    def __init__(self, simulator: NativeSimulator, policy: Policy, interface: Interface):
        self._simulator, self._interface = simulator, interface
        self._module, self._layout = policy.wrapped_module, ParameterLayout(policy.wrapped_module)
        self._regions: dict[Any, Callable[..., tuple[Tensor, ...]]] = {}
        self._sizes = [simulator.num_envs]
        while self._sizes[-1] // QUARTER >= LEAST:
            self._sizes.append(self._sizes[-1] // QUARTER)
        with torch.no_grad():
            flat = torch.zeros(1, policy.parameter_length, device=simulator.device)
            step = batched_forward(self._module, self._layout.split(flat))
            if isinstance(step(torch.zeros(1, 1, interface.obs_length, device=simulator.device)), tuple):
                raise SpaceError("Networks with a hidden state are not compiled; leave compile out.")

    @torch.no_grad()
    def __call__(
        self, policy: Policy, rules: Rules, seeds: Seeding, normaliser: Normaliser, generator: torch.Generator | None
    ) -> Evaluation:
        """See `play_batch`."""
        members, size = len(policy.parameters), self._sizes[0]
        device = policy.parameters.device
        ids = np.arange(size)
        self._simulator.reset(seeds(ids, np.zeros_like(ids)).tolist())
        rows = self._simulator.rows
        scores = Scores(size, rules, device)
        scores.alive = torch.arange(size, device=device) < members
        parameters = policy.parameters[torch.arange(size, device=device).clamp(max=members - 1)]
        constants = *_look_through(normaliser, self._interface.obs_length, device), self._interface.bounds.to(device)
        while True:
            noise = self._noise(rules, scores.ids, generator)
            region = self._region(len(scores.ids), rules, normaliser.norm is not None)
            out = region(parameters, *constants, noise, *scores.columns(), *(value.contiguous() for value in rows))
            scores.set_columns(out[:6])
            rows = Rows(out[6], out[7], out[8], rows.keys)
            if normaliser.norm is not None:
                normaliser.take_in(out[9].flatten(0, 1), out[10].flatten())
            left = int(scores.alive.sum())
            if not left:
                normaliser.flush()
                return scores.result(members)
            smaller = min((s for s in self._sizes if s >= left), default=size)
            if smaller < len(scores.ids):
                chosen = _first(scores.alive, smaller)
                parameters, rows = parameters[chosen], Rows(*(value[..., chosen] for value in rows))
                scores.keep(chosen)

    def _noise(self, rules: Rules, ids: Tensor, generator: torch.Generator | None) -> Tensor:
        shape = CHUNK, self._sizes[0] if rules.action_noise else 0, self._interface.act_length
        noise = torch.randn(shape, generator=generator, device=ids.device)
        return noise[:, ids] if rules.action_noise else noise

    def _region(self, size: int, rules: Rules, learns: bool) -> Callable[..., tuple[Tensor, ...]]:
        key = size, rules, learns
        if key in self._regions:
            return self._regions[key]

        def region(*tensors: Tensor) -> tuple[Tensor, ...]:
            return self._steps(rules, learns, *tensors)

        self._regions[key] = compiled = compile_static(region)

        def first(*tensors: Tensor) -> tuple[Tensor, ...]:
            # On a CPU, what calls the kernels is compiled too: there are several a step.
            with inductor.patch(cpp_wrapper=tensors[0].device.type == "cpu"):
                return compiled(*tensors)

        return first

    def _steps(self, rules: Rules, learns: bool, *tensors: Tensor) -> tuple[Tensor, ...]:
        parameters, mean, stdev, bound, limits, noise, *rest = tensors
        scores = Scores(len(parameters), rules, parameters.device)
        scores.set_columns(rest[:6])
        rows = Rows(*rest[6:])
        network = batched_forward(self._module, self._layout.split(parameters))
        obs = self._simulator.rows_obs(rows)
        seen: list[Tensor] = []
        masks: list[Tensor] = []
        for t in range(CHUNK):
            features = self._interface.features(obs)
            seen.append(features)
            masks.append(scores.alive)
            x = torch.maximum(torch.minimum((features.double() - mean) / stdev, bound), -bound).float()
            outputs = network(x.unsqueeze(1)).squeeze(1)
            if rules.action_noise:
                outputs = outputs + rules.action_noise * noise[t]
            step, obs, rows = self._simulator.transition(self._interface.actions(outputs, limits), rows)
            scores.add(step.reward, step.terminated, step.truncated)
        learnt = (torch.stack(seen), torch.stack(masks)) if learns else ()
        return (*scores.columns(), rows.state, rows.steps, rows.episodes, *learnt)


def _look_through(normaliser: Normaliser, length: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Mean, deviation and bound; without a layer those that change nothing."""
    layer: Any = normaliser.layer
    plain = torch.zeros(length, dtype=torch.float64, device=device)
    if layer is None:
        return plain, torch.ones_like(plain), torch.full((), torch.inf, dtype=torch.float64, device=device)
    high = torch.inf if layer.high is None else layer.high
    return layer.mean, layer.stdev, torch.full((), high, dtype=torch.float64, device=device)


def _first(mask: Tensor, size: int) -> Tensor:
    """The rows where `mask` holds, and others to make up `size`."""
    return mask.to(torch.int8).argsort(descending=True, stable=True)[:size]
