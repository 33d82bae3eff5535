"""Time and trajectories: how long things take, and which trajectory a step belongs to."""

from __future__ import annotations

import atexit
import os
import tempfile
from contextlib import suppress
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor

from ...specs import Bounded, Composite, Unbounded
from ..row_masks import broadcast_mask
from ..shared_folder import publish
from ..spec_container import Key, join_key, split_key
from ..step_mdp import as_keys
from .base import Transform
from .counters import Tracker


class Timer(Transform):
    """Writes how long things took, in seconds, `[*batch]` float32, the same number in every row.

    After a step there are the time that it took, with all transforms before this one, and the time from what was seen
    before to the call of that step, which is the policy's; after a reset, the time that it took. What did not happen
    took 0.

    Args:
        out_keys: three names, for steps, policies and resets; by default `time_key` with "_step", "_policy", "_reset".
        time_key: how the default names begin.
    """

    preserves_done = True
    _now: Any = staticmethod(perf_counter)

    def __init__(self, out_keys: Any = None, time_key: str = "time"):
        super().__init__()
        names = as_keys(
            [f"{time_key}_{phase}" for phase in ("step", "policy", "reset")] if out_keys is None else out_keys
        )
        if len(names) != 3:
            raise TypeError(f"Expected three out_keys, for steps, policies and resets, but {names} came.")
        self._out_keys = names
        self._last = self._now()
        self._policy = 0.0

    def _elapsed(self) -> float:
        """Seconds since it was last called."""
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

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Stored data took no time: they stay as they are."""
        return tensordict

    def transform_observation_spec(self, observation_spec: Composite) -> Composite:
        """With the times."""
        for key in self.out_keys:
            shape, device = observation_spec.shape, observation_spec.device
            observation_spec[key] = Unbounded(shape, dtype=torch.float32, device=device)
        return observation_spec


class TrajCounter(Tracker):
    """Numbers trajectories: every reset of a row takes the next number, `[*batch, 1]` int64 beside the done flags.

    Clones take from the same numbers, and so do copies in other processes of the same machine and the environments of
    one `EnvCreator`: no two trajectories have the same one.

    Args:
        out_key: the name of the number; a tuple names the group whose done flags it belongs to. A group without done
            flags is a RuntimeError.
        repeats: how many trajectories, one after another, have the same number; 1 by default. (TorchRL takes it without
            any effect.)

    >>> from vecrl.envs import GymEnv
    >>> from vecrl.envs.transforms import Compose, StepCounter
    >>> env = GymEnv("Pendulum-v1").append_transform(Compose(StepCounter(2), TrajCounter()))
    >>> env.rollout(6, break_when_any_done=False)["traj_count"].squeeze(-1)
    tensor([0, 0, 1, 1, 2, 2])
    """

    def __init__(self, out_key: Key = "traj_count", *, repeats: int | None = None):
        if repeats is not None and repeats < 1:
            raise ValueError(f"Expected repeats of 1 or more, or None, but {repeats} came.")
        super().__init__()
        self._out_keys = as_keys(out_key)
        self._repeats = repeats or 1
        self._counter = SharedCounter()

    @property
    def _done_and_count_keys(self) -> list[tuple[Key, Key]]:
        """The done flags and the numbers that belong to them."""
        return self._cached("counts", self._found_counts)

    def _found_counts(self) -> list[tuple[Key, Key]]:
        prefix, name = split_key(self.out_keys[0])
        if prefix and self.parent is not None and prefix not in self._done_prefixes:
            flags = [join_key(done_prefix, "done") for done_prefix in self._done_prefixes]
            raise RuntimeError(
                f"Expected TrajCounter's out_key beside one of the done flags {flags}, got {self.out_keys[0]!r}, in a "
                "group that has none. Put the key beside a flag."
            )
        return [
            (join_key(done_prefix, "done"), join_key(done_prefix, name))
            for done_prefix in ([prefix] if prefix else self._done_prefixes)
        ]

    @property
    def supports_rollout(self) -> bool:
        return False

    def _step(self, tensordict: TensorDictBase, next_tensordict: TensorDictBase) -> TensorDictBase:
        for _, key in self._done_and_count_keys:
            next_tensordict.set(key, self._of(tensordict, key))
        return next_tensordict

    def _reset(self, tensordict: TensorDictBase, tensordict_reset: TensorDictBase) -> TensorDictBase:
        masks = self._masks(tensordict)
        for done_key, key in self._done_and_count_keys:
            done = tensordict_reset.get(done_key)
            mask = masks.for_key(done_key)
            was_reset = torch.ones_like(done) if mask is None else broadcast_mask(mask, done).expand_as(done)
            tensordict_reset.set(key, self._new_numbers(was_reset))
        return tensordict_reset

    def _new_numbers(self, was_reset: Tensor) -> Tensor:
        """The next numbers where `was_reset` is set, zeros elsewhere."""
        offset = was_reset.flatten().cumsum(0).view(was_reset.shape) - 1
        first_number = self._counter.next_values(int(was_reset.sum()))
        return torch.where(was_reset, (first_number + offset) // self._repeats, 0)

    def _apply_to_rollout(self, root: TensorDictBase, next_td: TensorDictBase, is_first: Tensor) -> None:
        """Number stored trajectories."""
        for done_key, key in self._done_and_count_keys:
            done = self._of(next_td, done_key)
            was_reset = broadcast_mask(is_first, done).expand_as(done)
            numbers = torch.where(was_reset, self._new_numbers(was_reset), -1).cummax(is_first.ndim - 1).values
            root.set(key, numbers)
            next_td.set(key, numbers.clone())

    def share_state_(self, path: Path) -> None:
        """Takes numbers from the count in the file `path`, as all others that are given this path do."""
        self._counter.join(path)

    def get_extra_state(self) -> Tensor:
        """How many trajectories have begun."""
        return torch.tensor(self._counter.value)

    def set_extra_state(self, state: Tensor) -> None:
        """Go on from a number of trajectories."""
        self._counter.value = int(state)

    def transform_output_spec(self, output_spec: Composite) -> Composite:
        """With the numbers."""
        for done_key, key in self._done_and_count_keys:
            flag = output_spec["full_done_spec"][done_key]
            output_spec["full_observation_spec"][key] = self._count_spec(flag)
        return output_spec

    def transform_input_spec(self, input_spec: Composite) -> Composite:
        """With the numbers, which a step goes on with."""
        flags = self._require_parent().full_done_spec
        for done_key, key in self._done_and_count_keys:
            input_spec["full_state_spec"][key] = self._count_spec(flags[done_key])
        return input_spec

    def _count_spec(self, flag: Any) -> Bounded:
        return Bounded(0, torch.iinfo(torch.int64).max, flag.shape, dtype=torch.int64, device=flag.device)


class SharedCounter:
    """A count that copies in other processes go on with.

    When it is first pickled, the count goes to a file, which all copies on this machine share; a copy elsewhere goes on
    by itself from where the count stood. A shared count never goes back when a state is set, so that no number is
    taken twice.
    """

    excluded_from_state = ("_file",)

    def __init__(self):
        self._value = 0
        self._file: str | None = None

    def next_values(self, n: int) -> int:
        """The first of `n` numbers that nobody else gets."""
        return self._update(lambda value: value + n)

    @property
    def value(self) -> int:
        """How many have been taken."""
        return self.next_values(0)

    @value.setter
    def value(self, value: int) -> None:
        self._update(lambda _: value)

    def _update(self, update: Any) -> int:
        """Set the count to what `update` makes of it; returns what it was."""
        if self._file is None:
            previous = self._value
            self._value = update(previous)
            return previous
        import fcntl  # which not every system has, and most counts need not

        with open(self._file, "r+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # until the file is closed
            previous = max(int(file.read()), self._value)
            self._value = update(previous)
            file.seek(0)
            file.write(f"{self._value:020d}")
        return previous

    def join(self, path: Path) -> None:
        """Goes on with the count in a file, which begins with this count where it is new; no effect if it has one."""
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
