"""Adapts VMAS, the vectorized simulator of teams of robots in torch, to a `BatchSimulator`.

VMAS draws all random numbers from one stream of its class. So that a row depends on its own seed only, the numbers of
each reset come from a stream of the row and the episode.
"""

from __future__ import annotations

import importlib
import random
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from inspect import signature
from typing import Any, NamedTuple

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from ..engine.simulator import BatchStep
from ..engine.space_layout import Tree
from ..imports import import_library
from ..registries import check_name, did_you_mean, nearest
from ..seeding import seed_for
from ..validation import normalize_device
from .batch_adapter import BatchAdapter, Seeds, check_entries, named_infos
from .legacy_gym import as_gymnasium_space
from .vmas_state import get_rows, set_rows, set_tensors

STEP_STREAM = 1  # of the random numbers of steps; resets have those of rows, see `RowStreams`
STEPS = "steps_of_batch"


def vmas_library() -> Any:
    """Imports VMAS.

    Raises:
        ImportError: it is not installed; the message names the extra that installs it.
    """
    return import_library("vmas", 'VMAS is not installed: pip install "vecrl[vmas]"')


def names() -> list[str]:
    """Returns the names of all scenarios.

    Raises:
        ImportError: as `vmas_library`.
    """
    library = vmas_library()
    return sorted([*library.scenarios, *library.mpe_scenarios, *library.debug_scenarios])


def make_batch(
    name: Any,
    num_envs: int,
    *,
    device: str | torch.device | None = None,
    infos: bool = True,
    render_mode: str | None = None,
    independent_rows: bool = True,
    **kwargs: Any,
) -> VmasSimulator:
    """Makes a VMAS environment by the name of its scenario, as a `VmasSimulator`.

    Args:
        name: of the scenario ("balance", "simple_tag", ...), or a `vmas.simulator.scenario.BaseScenario`.
        num_envs: the number of rows.
        device: the device of all tensors; None for the CPU.
        infos, render_mode, independent_rows: see `VmasSimulator`.
        kwargs: further arguments of `vmas.make_env`, such as `max_steps`, `continuous_actions` and those of the
            scenario (`n_agents`, ...).

    Raises:
        ImportError: VMAS is not installed.
        ValueError: there is no scenario of this name.

    Warns:
        UserWarning: the scenario has no argument of a name in `kwargs`, and ignores it.
    """
    if isinstance(name, str):
        check_name("a scenario of VMAS", name, names())
    device = torch.device("cpu" if device is None else normalize_device(device))
    with random_stream(device, 0):  # what is drawn here is drawn again by the first reset
        env = _make_env(name, num_envs, device=device, **{"terminated_truncated": True, **kwargs})
        simulator = VmasSimulator(env, infos=infos, render_mode=render_mode, independent_rows=independent_rows)
        spaces_by_agent: Any = simulator.action_space
        simulator.step({agent: _zeros(space, num_envs, device) for agent, space in spaces_by_agent.items()})
        simulator.keep_first_tensors()
    return simulator


def _make_env(name: Any, num_envs: int, **kwargs: Any) -> Any:
    """Calls `vmas.make_env`; adds similar names to its warning of arguments that its scenario does not have."""
    library = vmas_library()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        env = library.make_env(name, num_envs, **kwargs)
    for warning in caught:
        text = str(warning.message)
        if "not used by the scenario" not in text:
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
            continue
        unknown = [key for key in kwargs if repr(key) in text]
        # a scenario takes its arguments out of a dict, so their names are among the constants of its code
        constants = type(env.scenario).make_world.__code__.co_consts
        known = [*signature(library.make_env).parameters, *(text for text in constants if isinstance(text, str))]
        advice = did_you_mean(dict.fromkeys(match for key in unknown for match in nearest(key, known, 1)))
        text = f"Expected arguments of the scenario {name!r}, got {', '.join(unknown)}, which it ignores. {advice}"
        warnings.warn(text.rstrip(), UserWarning, stacklevel=3)
    return env


class AgentsStep(NamedTuple):
    """The results of a step; dicts have an entry per agent.

    Attributes:
        obs: observations, tensors `[n, size]` or dicts of these.
        rewards: `[n]` float32.
        terminated, truncated: `[n]` bool, of all agents.
        infos: what the scenario tells, dicts of tensors of leading size n.
    """

    obs: dict[str, Tree]
    rewards: dict[str, Tensor]
    terminated: Tensor
    truncated: Tensor
    infos: dict[str, Mapping[str, Any]]


class VmasSimulator(BatchAdapter):
    """The rows of a VMAS environment; see `BatchAdapter`.

    Observations are dicts with an entry per agent: a float32 tensor `[n, size]`, or a dict of these. So are actions:
    float32 `[n, size]`, or int64 `[n]` or `[n, choices]` if they are discrete. The reward `[n]` is the sum over the
    agents. The info of a step has the entry "AGENT/reward" `[n]` of each agent, and "AGENT/KEY" of what the scenario
    tells about it.

    Args:
        env: made by `vmas.make_env`, without a wrapper.
        infos: return the infos of the scenario.
        render_mode: None or "rgb_array".
        independent_rows: reset the rows one after another, each with random numbers of its own seed. If False, a reset
            of all rows at once is one call with random numbers of row 0's seed, which is faster for more than a few
            rows. What a scenario draws once for all rows, or within a step, depends on row 0's seed in both cases.

    Attributes:
        env: the VMAS environment.
        agents: the names of the agents.
    """

    label = "VMAS"

    def __init__(self, env: Any, *, infos: bool = True, render_mode: str | None = None, independent_rows: bool = True):
        self.env = env
        self.agents: list[str] = [agent.name for agent in env.agents]
        obs_space, action_space = map(self._space, (env.observation_space, env.action_space))
        fps = round(1 / env.world.dt)
        super().__init__(
            env.num_envs, obs_space, action_space, device=env.device, render_mode=render_mode, render_fps=fps
        )
        self.was_reset = True  # by VMAS
        self._infos, self._independent_rows = infos, independent_rows
        self._batch_steps = 0
        self._last_obs: dict[str, Tree] | None = None  # of the last step, unless rows have changed since
        self.keep_first_tensors()

    # -- BatchAdapter --------------------------------------------------------------------------------

    def seed(self, seeds: Sequence[int | None]) -> None:
        """Seeds the rows of all seeds that are not None, for their next resets; that of row 0 also seeds steps."""
        super().seed(seeds)
        if seeds[0] is not None:
            self._batch_steps = 0

    def start(self, rows: np.ndarray, seeds: Seeds) -> None:
        """Starts an episode in each of `rows`; the numbers of the first episode of a row are VMAS's for its seed."""
        self._last_obs = None
        is_full, row_seeds = len(rows) == self.num_envs, self.streams.draw(rows)
        if is_full:  # also resets what the scenario keeps once for all rows
            set_tensors(self.env, self._first_tensors)  # a scenario does not reset the parts of rewards in its infos
            with random_stream(self.env.device, row_seeds[0] % 2**32):
                self.env.reset(return_observations=False)
        if not is_full or self._independent_rows:
            for row, seed in zip(rows.tolist(), row_seeds, strict=True):
                with random_stream(self.env.device, seed % 2**32):
                    self.env.reset_at(row, return_observations=False)

    def advance(self, actions: Tree) -> BatchStep:
        """Steps all rows with the actions of all agents."""
        step = self.step_agents(actions)
        info = {f"{agent}/reward": reward for agent, reward in step.rewards.items()}
        if self._infos:
            info |= dict(named_infos(step.infos))
        reward = torch.stack(list(step.rewards.values())).sum(0)
        return BatchStep(step.obs, reward, step.terminated, step.truncated, info)

    def observe(self) -> dict[str, Tree]:
        """Returns the present observations of all agents; those of the last step cost nothing."""
        # to compute them is as costly for VMAS as a step
        return self._named(self._read(get_observations=True)) if self._last_obs is None else self._last_obs

    def draw(self, row: int) -> np.ndarray:
        """Renders a frame `[height, width, 3]` uint8 of one row."""
        return self.env.render(mode="rgb_array", env_index=row)

    def read_state(self) -> dict[str, Tensor]:
        """Returns copies of all tensors of the scenario and its world, and the steps of the batch."""
        return {STEPS: torch.full((self.num_envs,), self._batch_steps, device=self.device), **get_rows(self.env)}

    def write_state(self, state: Mapping[str, Tensor]) -> None:
        """Restores what `read_state` returned."""
        check_entries(self.label, state, {STEPS: torch.zeros(self.num_envs, dtype=torch.int64)})
        set_rows(self.env, state)
        self._last_obs = None
        self._batch_steps = int(state[STEPS][0])

    def free(self) -> None:
        """Closes the window of the renderer, if there is one."""
        if self.env.viewer is not None:
            self.env.viewer.close()
            self.env.viewer = None

    # -- for interfaces to several agents --------------------------------------------------------------

    def step_agents(self, actions: Mapping[str, Tensor]) -> AgentsStep:
        """Steps all rows. Gradients flow back to the actions if VMAS was made with `grad_enabled`."""
        action_list = [action if action.ndim > 1 else action.unsqueeze(-1) for action in self._by_agent(actions)]
        with self._step_stream():
            obs, rewards, *flags, infos = self.env.step(action_list)
        self._batch_steps += 1
        terminated, truncated = flags if len(flags) > 1 else (flags[0], torch.zeros_like(flags[0]))
        rewards = [reward.reshape(self.num_envs) for reward in self._by_agent(rewards)]  # some are [n, 1]
        self._last_obs = self._named(obs)
        return AgentsStep(self._last_obs, self._named(rewards), terminated, truncated, self._named(infos))

    def read_infos(self) -> dict[str, Mapping[str, Tensor]]:
        """Returns what the scenario tells about each agent now; empty dicts if that is nothing."""
        return self._named(self._read(get_infos=True))

    def keep_first_tensors(self) -> None:
        """Keeps the present tensors, which a reset of all rows restores before it resets them."""
        self._first_tensors = get_rows(self.env)

    def to(self, device: torch.device) -> None:
        """Moves the environment to another device."""
        self._last_obs = None
        self.env.to(device)
        self.device = str(normalize_device(device))

    # -- private methods -------------------------------------------------------------------------------

    def _read(self, **what: bool) -> Any:
        names = ("get_observations", "get_rewards", "get_infos", "get_dones")
        with self._step_stream():
            return self.env.get_from_scenario(**{name: what.get(name, False) for name in names})[0]

    def _step_stream(self) -> Any:
        """Returns the random numbers of the next step of all rows, and of what is read before it."""
        return random_stream(self.env.device, seed_for(int(self.streams.roots[0]), STEP_STREAM, self._batch_steps))

    def _space(self, space: Any) -> spaces.Dict:
        parts = self._by_agent(space.spaces)
        return spaces.Dict({name: as_gymnasium_space(part) for name, part in zip(self.agents, parts, strict=True)})

    def _by_agent(self, values: Any) -> list[Any]:
        """Returns the values of all agents in their order: VMAS has them in dicts if it was made with dict_spaces."""
        return [values[name] for name in self.agents] if isinstance(values, Mapping) else list(values)

    def _named(self, values: Any) -> dict[str, Any]:
        return dict(zip(self.agents, self._by_agent(values), strict=True))


@contextmanager
def random_stream(device: torch.device, seed: int) -> Iterator[None]:
    """Within the block, VMAS draws the numbers of `seed`; the generators of the process are not changed.

    Args:
        device: the device of the environment.
        seed: 0 <= seed < 2**32.
    """
    states = importlib.import_module("vmas.simulator.environment").Environment.vmas_random_state
    before = list(states)
    numpy_generator = _numpy_generator()
    numpy_generator.seed(seed)
    states[:] = (
        torch.Generator().manual_seed(seed).get_state(),
        numpy_generator.get_state(),
        random.Random(seed).getstate(),
    )
    try:
        if device.type == "cpu":
            yield
            return
        with torch.random.fork_rng([device.index or 0], device_type=device.type):
            torch.cuda.default_generators[device.index or 0].manual_seed(seed)
            yield
    finally:
        states[:] = before


@cache
def _numpy_generator() -> np.random.RandomState:
    """Returns a generator that is seeded again and again, since to make one takes three times as long."""
    return np.random.RandomState()


def _zeros(space: Any, num_envs: int, device: torch.device) -> Tensor:
    dtype = torch.float32 if isinstance(space, spaces.Box) else torch.int64
    return torch.zeros((num_envs, *space.shape), dtype=dtype, device=device)
