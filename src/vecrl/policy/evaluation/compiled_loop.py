"""Runs the episodes of a population in a native simulator with compiled steps: policy, task and scores in one.

A region is `STEPS_PER_REGION` steps at one batch size as one function of tensors. There are regions for a few sizes,
each a quarter of the previous one, so that finished members cost no time here either. Compiling all regions takes about
a minute, once per evaluator, which pays off in long searches. Networks with a hidden state are not supported.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...errors import SpaceError
from ...simulators.compile_utils import compile_static
from ...simulators.row_task import RowState, RowTaskSimulator
from ..batched_kernels import batched_forward
from ..functional import ParameterLayout
from ..policy import Policy
from ..policy_io import PolicyIO
from .device_loop import TensorEpisodeAccounting
from .settings import Evaluation, FitnessRules, Normalizer, Seeding

STEPS_PER_REGION = 8
SHRINK_FACTOR = 4  # the ratio of one batch size to the next smaller one
MIN_BATCH_SIZE = 16


class CompiledEvaluation:
    """Evaluates populations of up to `simulator.num_envs` members with compiled regions.

    Args:
        simulator: the simulator that is compiled into the regions.
        policy: the policy with the network that is compiled into the regions; parameters are arguments of each call.
        policy_io: the conversion between network and spaces.

    Raises:
        SpaceError: the network has a hidden state.
    """

    def __init__(self, simulator: RowTaskSimulator, policy: Policy, policy_io: PolicyIO):
        self._simulator, self._policy_io = simulator, policy_io
        self._module, self._layout = policy.wrapped_module, ParameterLayout(policy.wrapped_module)
        self._regions: dict[Any, Callable[..., tuple[Tensor, ...]]] = {}
        self._sizes = [simulator.num_envs]
        while self._sizes[-1] // SHRINK_FACTOR >= MIN_BATCH_SIZE:
            self._sizes.append(self._sizes[-1] // SHRINK_FACTOR)
        with torch.no_grad():
            flat = torch.zeros(1, policy.parameter_length, device=simulator.device)
            step = batched_forward(self._module, self._layout.split(flat))
            if isinstance(step(torch.zeros(1, 1, policy_io.obs_length, device=simulator.device)), tuple):
                raise SpaceError("Expected a network without a hidden state to compile, got one with it. Omit compile.")

    @torch.no_grad()
    def __call__(
        self,
        policy: Policy,
        rules: FitnessRules,
        seeds: Seeding,
        normalizer: Normalizer,
        generator: torch.Generator | None,
    ) -> Evaluation:
        """Runs the episodes of all members and returns their results; for the arguments see `evaluate_on_device`."""
        members, size = len(policy.parameters), self._sizes[0]
        device = policy.parameters.device
        ids = np.arange(size)
        self._simulator.reset(seeds(ids, np.zeros_like(ids)).tolist())
        state = self._simulator.rows
        accounting = TensorEpisodeAccounting(size, rules, device)
        accounting.active = torch.arange(size, device=device) < members
        parameters = policy.parameters[torch.arange(size, device=device).clamp(max=members - 1)]
        constants = *_norm_constants(normalizer, self._policy_io.obs_length, device), self._policy_io.bounds.to(device)
        while True:
            noise = self._noise(rules, accounting.ids, generator)
            region = self._region(len(accounting.ids), rules, normalizer.norm is not None)
            outputs = region(
                parameters, *constants, noise, *accounting.running_columns(), *(value.contiguous() for value in state)
            )
            accounting.set_columns(outputs[:6])
            state = RowState(outputs[6], outputs[7], outputs[8], state.keys)
            if normalizer.norm is not None:
                normalizer.add(outputs[9].flatten(0, 1), outputs[10].flatten())
            num_active = int(accounting.active.sum())
            if not num_active:
                normalizer.flush()
                return accounting.result(members)
            new_size = min((candidate for candidate in self._sizes if candidate >= num_active), default=size)
            if new_size < len(accounting.ids):
                kept_rows = _first_true(accounting.active, new_size)
                parameters, state = parameters[kept_rows], RowState(*(value[..., kept_rows] for value in state))
                accounting.keep(kept_rows)

    def _noise(self, rules: FitnessRules, ids: Tensor, generator: torch.Generator | None) -> Tensor:
        shape = STEPS_PER_REGION, self._sizes[0] if rules.action_noise else 0, self._policy_io.act_length
        noise = torch.randn(shape, generator=generator, device=ids.device)
        return noise[:, ids] if rules.action_noise else noise

    def _region(self, size: int, rules: FitnessRules, update_norm: bool) -> Callable[..., tuple[Tensor, ...]]:
        key = size, rules, update_norm
        if key in self._regions:
            return self._regions[key]
        from torch._inductor import config as inductor  # takes a second to import

        def region(*tensors: Tensor) -> tuple[Tensor, ...]:
            return self._steps(rules, update_norm, *tensors)

        self._regions[key] = compiled = compile_static(region)

        def compile_on_first_call(*tensors: Tensor) -> tuple[Tensor, ...]:
            # On a CPU, the code that calls the kernels is compiled too, since there are several kernels per step.
            with inductor.patch(cpp_wrapper=tensors[0].device.type == "cpu"):
                return compiled(*tensors)

        return compile_on_first_call

    def _steps(self, rules: FitnessRules, update_norm: bool, *tensors: Tensor) -> tuple[Tensor, ...]:
        parameters, mean, stdev, bound, limits, noise, *state_columns = tensors
        accounting = TensorEpisodeAccounting(len(parameters), rules, parameters.device)
        accounting.set_columns(state_columns[:6])
        state = RowState(*state_columns[6:])
        network = batched_forward(self._module, self._layout.split(parameters))
        obs = self._simulator.rows_obs(state)
        features_steps: list[Tensor] = []
        masks: list[Tensor] = []
        for t in range(STEPS_PER_REGION):
            features = self._policy_io.features(obs)
            features_steps.append(features)
            masks.append(accounting.active)
            x = torch.maximum(torch.minimum((features.double() - mean) / stdev, bound), -bound).float()
            outputs = network(x.unsqueeze(1)).squeeze(1)
            if rules.action_noise:
                outputs = outputs + rules.action_noise * noise[t]
            step, obs, state = self._simulator.step_and_restart(self._policy_io.actions(outputs, limits), state)
            accounting.add(step.reward, step.terminated, step.truncated)
        norm_updates = (torch.stack(features_steps), torch.stack(masks)) if update_norm else ()
        return (*accounting.running_columns(), state.state, state.steps, state.episodes, *norm_updates)


def _norm_constants(normalizer: Normalizer, length: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Returns mean, standard deviation and bound; without a layer 0, 1 and infinity, which have no effect."""
    layer: Any = normalizer.layer
    zeros = torch.zeros(length, dtype=torch.float64, device=device)
    if layer is None:
        return zeros, torch.ones_like(zeros), torch.full((), torch.inf, dtype=torch.float64, device=device)
    high = torch.inf if layer.high is None else layer.high
    return layer.mean, layer.stdev, torch.full((), high, dtype=torch.float64, device=device)


def _first_true(mask: Tensor, size: int) -> Tensor:
    """Returns `size` rows: those where `mask` is True, then others."""
    return mask.to(torch.int8).argsort(descending=True, stable=True)[:size]
