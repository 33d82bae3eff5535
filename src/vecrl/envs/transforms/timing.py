"""Transforms that measure durations and number trajectories."""

from __future__ import annotations

import atexit
import os
import tempfile
from collections.abc import Callable
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor

from ...specs import Bounded, Composite, TensorSpec, Unbounded
from ...validation import parse_optional_count
from ..entries.keys import Key, join_key, parse_key, split_key
from ..entries.row_masks import broadcast_mask
from ..entries.step_mdp import as_keys
from ..shared_folder import publish
from .base import Transform
from .counters import Tracker
from .keyed_module import Keys

__all__ = ["Timer", "TrajCounter"]


class Timer(Transform):
    """Writes durations in seconds, `[*batch]` float32, with the same number in every row.

    After a step, the step duration includes all transforms before this one. The policy duration is the time from the
    previous output to the call of this step. After a reset, the reset duration is set. Other durations are 0.

    Args:
        out_keys: three keys, for steps, policies and resets; by default `time_key` with "_step", "_policy", "_reset".
        time_key: the prefix of the default keys.

    Raises:
        TypeError: `out_keys` are not three.
        RuntimeError: on use with stored data.
    """

    preserves_done = True
    _env_only = "Remove it."
    _now: Callable[[], float] = staticmethod(perf_counter)

    def __init__(self, out_keys: Keys = None, time_key: Key = "time"):
        super().__init__()
        prefix, name = split_key(parse_key("time_key", time_key))
        names = as_keys(
            [join_key(prefix, f"{name}_{phase}") for phase in ("step", "policy", "reset")]
            if out_keys is None
            else out_keys
        )
        if len(names) != 3:
            raise TypeError(f"Expected three out_keys, for steps, policies and resets, got {names}.")
        self._out_keys = names
        self._last = self._now()
        self._policy = 0.0

    def _elapsed(self) -> float:
        """Returns the seconds since the last call."""
        previous, self._last = self._last, self._now()
        return self._last - previous

    def _inv_call(self, tensordict: TensorDictBase) -> TensorDictBase:
        self._policy = self._elapsed()
        return tensordict

    def _step(self, tensordict: TensorDictBase, next_tensordict: TensorDictBase) -> TensorDictBase:
        return self._write(next_tensordict, (self._elapsed(), self._policy, 0.0))

    def _reset_env_preprocess(self, tensordict: TensorDictBase | None) -> TensorDictBase | None:
        self._elapsed()
        return tensordict

    def _reset(self, tensordict: TensorDictBase, tensordict_reset: TensorDictBase) -> TensorDictBase:
        return self._write(tensordict_reset, (0.0, 0.0, self._elapsed()))

    def _write(self, tensordict: TensorDictBase, times: tuple[float, float, float]) -> TensorDictBase:
        for key, seconds in zip(self.out_keys, times, strict=True):
            value = torch.full(tensordict.batch_size, seconds, dtype=torch.float32, device=tensordict.device)
            tensordict.set(key, value)
        return tensordict

    def transform_observation_spec(self, observation_spec: Composite) -> Composite:
        """Adds the specs of the durations."""
        for key in self.out_keys:
            shape, device = observation_spec.shape, observation_spec.device
            observation_spec[key] = Unbounded(shape, dtype=torch.float32, device=device)
        return observation_spec


class TrajCounter(Tracker):
    """Numbers trajectories. Each reset of a row takes the next number, `[*batch, 1]` int64 in the group of done flags.

    Clones, copies in other processes of the same machine, and the environments of one `EnvCreator` share one counter.
    So numbers are unique among them.

    Args:
        out_key: the name of the number; a tuple also names its group of done flags.
        repeats: the number of consecutive trajectories with the same number; 1 by default. (TorchRL ignores it.)

    Raises:
        ValueError: `repeats` is less than 1.
        RuntimeError: on use, if the group of `out_key` has no done flags.

    >>> from vecrl.envs import GymEnv
    >>> from vecrl.envs.transforms import Compose, StepCounter
    >>> env = GymEnv("Pendulum-v1").append_transform(Compose(StepCounter(2), TrajCounter()))
    >>> env.rollout(6, break_when_any_done=False)["traj_count"].squeeze(-1)
    tensor([0, 0, 1, 1, 2, 2])
    """

    def __init__(self, out_key: Key = "traj_count", *, repeats: int | None = None):
        super().__init__()
        self._out_keys: list[Key] = [parse_key("out_key", out_key)]
        self._repeats = parse_optional_count("repeats", repeats) or 1
        self._counter = SharedCounter()

    @cached_property
    def _tracked_keys(self) -> list[tuple[Key, Key]]:
        prefix, name = split_key(self.out_keys[0])
        if prefix and self.parent is not None and prefix not in self._done_prefixes:
            flags = [join_key(done_prefix, "done") for done_prefix in self._done_prefixes]
            raise RuntimeError(
                f"Expected TrajCounter's out_key beside one of the done flags {flags}, got {self.out_keys[0]!r}, in a "
                "group without one. Give a key in a group with a done flag."
            )
        return [(join_key(prefix, "done"), join_key(prefix, name))] if prefix else self._keys_beside_done(name)

    @property
    def supports_rollout(self) -> bool:
        return False

    def _next_value(self, previous: Any, source: Tensor) -> Tensor:
        return previous

    def _initial_value(self, source_key: Key, key: Key, tensordict: TensorDictBase, reset_td: TensorDictBase) -> Tensor:
        return self._new_numbers(self._was_reset(tensordict, source_key, reset_td.get(source_key)))

    def _new_numbers(self, was_reset: Tensor) -> Tensor:
        """Returns the next numbers for the True elements of `was_reset`, zeros for others."""
        offset = was_reset.flatten().cumsum(0).view(was_reset.shape) - 1
        first_number = self._counter.next_values(int(was_reset.sum()))
        return torch.where(was_reset, (first_number + offset) // self._repeats, 0)

    def _trajectory(self, source: Tensor, is_first: Tensor) -> tuple[Tensor, Tensor]:
        was_reset = broadcast_mask(is_first, source).expand_as(source)
        numbers = torch.where(was_reset, self._new_numbers(was_reset), -1).cummax(is_first.ndim - 1).values
        return numbers, numbers.clone()

    def share_state_(self, path: Path) -> None:
        """Shares the counter in the file `path` with all transforms that were given this path."""
        self._counter.join(path)

    def get_extra_state(self) -> Tensor:
        """Returns the number of started trajectories, for `state_dict`."""
        return torch.tensor(self._counter.value)

    def set_extra_state(self, state: Tensor) -> None:
        """Sets the number of started trajectories."""
        self._counter.value = int(state)

    def _spec(self, spec: TensorSpec) -> TensorSpec:
        return Bounded(0, torch.iinfo(torch.int64).max, spec.shape, dtype=torch.int64, device=spec.device)


class SharedCounter:
    """A counter shared with its copies in other processes.

    When it is first pickled, its value is written to a file that all copies on this machine share. A copy on another
    machine continues alone from that value. Setting a state never decreases a shared counter, so that no number is used
    twice.
    """

    excluded_from_state = ("_file",)

    def __init__(self):
        self._value = 0
        self._file: str | None = None

    def next_values(self, n: int) -> int:
        """Reserves `n` consecutive numbers and returns the first."""
        return self._update(lambda value: value + n)

    @property
    def value(self) -> int:
        """The count of reserved numbers."""
        return self.next_values(0)

    @value.setter
    def value(self, value: int) -> None:
        self._update(lambda _: value)

    def _update(self, update: Callable[[int], int]) -> int:
        """Sets the count to `update(count)` and returns the previous count."""
        if self._file is None:
            previous = self._value
            self._value = update(previous)
            return previous
        import fcntl  # not on every system, and not needed by unshared counters

        with open(self._file, "r+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # until the file is closed
            previous = max(int(file.read()), self._value)
            self._value = update(previous)
            file.seek(0)
            file.write(f"{self._value:020d}")
        return previous

    def join(self, path: Path) -> None:
        """Continues with the count in a file; a new file gets this count. No effect if there is a file already."""
        if self._file is None:
            publish(path, self._write)
            self._file = str(path)

    def _write(self, path: Path) -> None:
        path.write_text(f"{self._value:020d}")

    def __getstate__(self) -> dict[str, Any]:
        if self._file is None:
            fd, path = tempfile.mkstemp(prefix="vecrl-count-")
            os.close(fd)
            self._write(Path(path))
            atexit.register(_remove, path)
            self._file = path
        return {"_file": self._file, "_value": self.value}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if not Path(state["_file"]).exists():
            self._file = None


def _remove(path: str) -> None:
    with suppress(FileNotFoundError):
        os.unlink(path)
