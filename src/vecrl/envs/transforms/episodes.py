"""Transforms that end episodes, or mark where parts of them end."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor

from ...errors import SpaceError
from ...specs import Categorical, Composite, Unbounded
from ...validation import parse_count, parse_number
from ..entries.keys import Key, join_key
from ..entries.row_masks import Prefix, broadcast_mask
from ..utils import attribute_at
from .base import RowStateTransform, Transform

__all__ = ["EndOfLifeTransform", "RandomTruncationTransform", "TerminateTransform"]


class EndOfLifeTransform(Transform):
    """Marks the steps at which a life of the game is lost, as for Atari games; the episode goes on.

    Use the mark as the done flag of a loss, by `register_keys(loss)`: then it learns that losing a life is bad. The
    mark is no done flag of the environment, so it resets nothing. See Mnih et al., 2015, "Human-level control through
    deep reinforcement learning".

    The environment may be a batch of environments: then the lives are read from all of them at each step. It is faster
    to put the transform into each environment of the batch.

    Args:
        eol_key: the key of the mark, bool with the shape of the done flag: True if a life was lost in the step or the
            episode ended; False after a reset.
        lives_key: the key of the number of lives, `[*batch]` int64.
        done_key: the key of the done flag.
        eol_attribute: where the environment has the number of lives: the name of an attribute, with dots, or of a
            method without arguments.

    Raises:
        AttributeError: on use, if the environment has no such attribute.
        RuntimeError: on use outside an environment.

    >>> from vecrl.envs import GymEnv
    >>> env = GymEnv("CartPole-v1").append_transform(EndOfLifeTransform(eol_attribute="unwrapped.gravity"))
    >>> env.rollout(2)["next", "lives"]
    tensor([9, 9])
    """

    _takes_records = True

    def __init__(
        self,
        eol_key: Key = "end-of-life",
        lives_key: Key = "lives",
        done_key: Key = "done",
        eol_attribute: str = "unwrapped.ale.lives",
    ):
        super().__init__()
        self.eol_key = eol_key
        self.lives_key = lives_key
        self.done_key = done_key
        self.eol_attribute = eol_attribute

    def _read_lives(self, tensordict: TensorDictBase) -> Tensor:
        """Returns the number of lives in each row, `[*batch]` int64."""
        try:
            lives = attribute_at(self._parent, self.eol_attribute)
        except AttributeError as error:
            raise AttributeError(
                f"Expected the environment to have the number of lives at {self.eol_attribute!r}, got an environment "
                f"without it. Give another eol_attribute."
            ) from error
        lives = torch.as_tensor(lives() if callable(lives) else lives, device=tensordict.device)
        return lives.to(torch.int64).reshape(tensordict.batch_size)

    @cached_property
    def _parent(self) -> Any:
        return self._require_parent()

    def _step(self, tensordict: TensorDictBase, next_tensordict: TensorDictBase) -> TensorDictBase:
        previous = tensordict.get(self.lives_key, None)
        if previous is None:
            raise self._missing(self.lives_key, tensordict)
        lives, done = self._read_lives(next_tensordict), next_tensordict.get(self.done_key)
        lost = lives < previous
        next_tensordict.set(self.eol_key, lost.reshape(*lost.shape, *[1] * (done.ndim - lost.ndim)) | done)
        return next_tensordict.set(self.lives_key, lives)

    def _reset(self, tensordict: TensorDictBase, tensordict_reset: TensorDictBase) -> TensorDictBase:
        tensordict_reset.set(self.eol_key, torch.zeros_like(tensordict_reset.get(self.done_key)))
        return tensordict_reset.set(self.lives_key, self._read_lives(tensordict_reset))

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Returns stored data unchanged. Raises a RuntimeError outside an environment."""
        self._require_parent()
        return tensordict

    def register_keys(self, loss_or_advantage: Any) -> None:
        """Sets the mark as the "done" and "terminated" flags of a loss or an advantage, by its `set_keys`."""
        loss_or_advantage.set_keys(done=self.eol_key, terminated=self.eol_key)

    def transform_output_spec(self, output_spec: Composite) -> Composite:
        """Adds the specs of the mark and the number of lives."""
        observation_spec, done_spec = output_spec["full_observation_spec"], output_spec["full_done_spec"][self.done_key]
        observation_spec[self.eol_key] = Categorical(2, done_spec.shape, done_spec.device, torch.bool)
        observation_spec[self.lives_key] = self._lives_spec(output_spec)
        return output_spec

    def transform_input_spec(self, input_spec: Composite) -> Composite:
        """Adds the spec of the number of lives, an input of the next step."""
        input_spec["full_state_spec"][self.lives_key] = self._lives_spec(input_spec)
        return input_spec

    @staticmethod
    def _lives_spec(specs: Composite) -> Unbounded:
        return Unbounded(specs.shape, dtype=torch.int64, device=specs.device)


class TerminateTransform(Transform):
    """Terminates episodes when a condition holds.

    Args:
        stop: takes the output of a step, with the entries of the transforms before this one, and returns a bool, or a
            tensor `[*batch]` or of the shape of the done flags.
        write_done: whether to set "done" too, so that rollouts stop or reset; otherwise only "terminated" is set.

    Raises:
        TypeError: `stop` is no function.
        SpaceError: on use, if its result does not fit the done flags.
        RuntimeError: on use with stored data.

    >>> from vecrl.envs import GymEnv
    >>> env = GymEnv("CartPole-v1").append_transform(TerminateTransform(lambda td: td["observation"][..., 0] < 9))
    >>> env.rollout(10)["next", "terminated"].tolist()
    [[True]]
    """

    preserves_done = True
    _env_only = "Set the flags in the data."

    def __init__(self, stop: Callable[[TensorDictBase], Any], *, write_done: bool = True):
        if not callable(stop):
            raise TypeError(f"Expected stop to be a function of a TensorDict, got {stop!r}.")
        super().__init__()
        self.stop = stop
        self.write_done = write_done

    def _call(self, next_tensordict: TensorDictBase) -> TensorDictBase:
        result = torch.as_tensor(self.stop(next_tensordict), device=next_tensordict.device).bool()
        for prefix in self._done_prefixes:
            for name in ("terminated", "done") if self.write_done else ("terminated",):
                key = join_key(prefix, name)
                flag = next_tensordict.get(key)
                next_tensordict.set(key, flag | self._like(result, flag))
        return next_tensordict

    def _like(self, result: Tensor, flag: Tensor) -> Tensor:
        """Returns the result of `stop` with the dimensions of a flag."""
        if result.shape != flag.shape[: result.ndim]:
            raise SpaceError(
                f"Expected stop to return a bool, or a tensor of the batch size or of the shape of the done flags, "
                f"{tuple(flag.shape)}, got shape {tuple(result.shape)}."
            )
        return result[(..., *[None] * (flag.ndim - result.ndim))]


class RandomTruncationTransform(RowStateTransform):
    """Truncates episodes at random steps, so that the environments of a batch do not end at the same steps.

    Environments with equal time limits are otherwise reset together, and all data of a step are from the same part of
    an episode. The first episode of each row ends after a number of steps sampled from 1 to `max_horizon`. Later ones
    end after `max_horizon` steps, or with a probability after a number sampled from `min_horizon` to `max_horizon`. The
    numbers are sampled uniformly, both ends included.

    It needs a `StepCounter` before it, with the entry "step_count".

    Args:
        min_horizon, max_horizon: numbers of steps, 1 or more. `max_horizon` is usually the time limit of the
            environment.
        prob: the probability of a random number of steps.
        first_episode_prob: the same for the second episode of each row, the first one after those that spread the rows;
            `prob` by default.

    Raises:
        ValueError: not `1 <= min_horizon <= max_horizon`, or a probability is not in [0, 1].
        KeyError: on use, if there is no "step_count".

    >>> from vecrl.envs import GymEnv, SerialEnv
    >>> from vecrl.envs.transforms import Compose, StepCounter
    >>> env = SerialEnv(3, lambda: GymEnv("Pendulum-v1"))
    >>> env = env.append_transform(Compose(StepCounter(), RandomTruncationTransform(5, 10)))
    >>> bool(env.rollout(40, break_when_any_done=False)["step_count"].max() < 10)
    True
    >>> env.close()
    """

    _env_only = "Remove it."
    _takes_records = True

    def __init__(self, min_horizon: int, max_horizon: int, prob: float = 0.0, first_episode_prob: float | None = None):
        min_horizon, max_horizon = parse_count("min_horizon", min_horizon), parse_count("max_horizon", max_horizon)
        if min_horizon > max_horizon:
            raise ValueError(f"Expected 1 <= min_horizon <= max_horizon, got {min_horizon} and {max_horizon}.")
        super().__init__()
        self.min_horizon = min_horizon
        self.max_horizon = max_horizon
        self.prob = parse_number("prob", prob, 0, 1)
        first = prob if first_episode_prob is None else first_episode_prob
        self.first_episode_prob = parse_number("first_episode_prob", first, 0, 1)

    def _step(self, tensordict: TensorDictBase, next_tensordict: TensorDictBase) -> TensorDictBase:
        for prefix in self._done_prefixes:
            horizon = self._buffers[_row_name("horizon", prefix)]
            assert horizon is not None
            is_over = self._step_count(next_tensordict, prefix) >= horizon
            for name in ("truncated", "done"):
                key = join_key(prefix, name)
                flag = next_tensordict.get(key, None)
                next_tensordict.set(key, is_over if flag is None else is_over | flag)
        return next_tensordict

    def _step_count(self, tensordict: TensorDictBase, prefix: Prefix) -> Tensor:
        key = join_key(prefix, "step_count")
        count = tensordict.get(key, None)
        if count is None:
            raise KeyError(
                f"Expected {key!r} before RandomTruncationTransform, got no such entry. Put a StepCounter() before it."
            )
        return count

    def _reset(self, tensordict: TensorDictBase, tensordict_reset: TensorDictBase) -> TensorDictBase:
        masks = self._reset_masks(tensordict)
        for prefix in self._done_prefixes:
            done = tensordict_reset.get(join_key(prefix, "done"))
            self._step_count(tensordict_reset, prefix)
            mask = masks.for_key(join_key(prefix, "done"))
            mask = None if mask is None else broadcast_mask(mask, done)
            episode = self._buffers.get(_row_name("episode", prefix))
            if episode is None or episode.shape != done.shape:
                episode = torch.zeros_like(done, dtype=torch.int64)
            self._store(_row_name("horizon", prefix), self._sample_horizons(episode), mask)
            self._store(_row_name("episode", prefix), episode + 1, mask)
            key = join_key(prefix, "truncated")
            if tensordict_reset.get(key, None) is None:
                tensordict_reset.set(key, torch.zeros_like(done))
        return tensordict_reset

    def _sample_horizons(self, episode: Tensor) -> Tensor:
        """Returns the number of steps of each episode, int64.

        Args:
            episode: how many episodes each row has had before, int64.
        """
        probability = torch.where(episode == 1, self.first_episode_prob, self.prob)
        is_random = (torch.rand(episode.shape, device=episode.device) < probability) | (episode == 0)
        low = torch.where(episode == 0, 1, self.min_horizon)
        fraction = torch.rand(episode.shape, device=episode.device, dtype=torch.float64)
        return torch.where(is_random, low + (fraction * (self.max_horizon + 1 - low)).long(), self.max_horizon)

    def transform_done_spec(self, done_spec: Composite) -> Composite:
        """Adds a truncated flag in each group of done flags."""
        for prefix in self._done_prefixes:
            done_spec[join_key(prefix, "truncated")] = done_spec[join_key(prefix, "done")].clone()
        return done_spec


def _row_name(name: str, prefix: Prefix) -> str:
    """Returns the name of the buffer of a group of done flags."""
    return "_".join((f"_{name}", *(part.replace(".", "%2E") for part in prefix)))
