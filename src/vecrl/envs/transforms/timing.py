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
from ..owner import Key, joined, split
from ..partial import aligned
from ..sharing import publish
from ..successor import as_keys
from .base import Transform
from .counting import Tracker


class Timer(Transform):
    """Writes how long things took, in seconds, `[*batch]` float32, the same number in every row.

    After a step there are the time that it took, with all transforms before this one, and the time from what was seen
    before to the call of that step, which is the policy's; after a reset, the time that it took. What did not happen
    took 0.

    Args:
        out_keys: three names, for steps, policies and resets; by default `time_key` with "_step", "_policy", "_reset".
        time_key: how the default names begin.
    """

    keeps_done = True
    _now: Any = staticmethod(perf_counter)

    def __init__(self, out_keys: Any = None, time_key: str = "time"):
        super().__init__()
        names = as_keys(
            [f"{time_key}_{what}" for what in ("step", "policy", "reset")] if out_keys is None else out_keys
        )
        if len(names) != 3:
            raise TypeError(f"Expected three out_keys, for steps, policies and resets, but {names} came.")
        self._out_keys = names
        self._last = self._now()
        self._policy = 0.0

    def _lap(self) -> float:
        """Seconds since it was last called."""
        before, self._last = self._last, self._now()
        return self._last - before

    def _inv_call(self, tensordict: TensorDictBase) -> TensorDictBase:
        self._policy = self._lap()
        return tensordict

    def _step(self, tensordict: TensorDictBase, next_tensordict: TensorDictBase) -> TensorDictBase:
        return self._write(next_tensordict, (self._lap(), self._policy, 0.0))

    def _reset_env_preprocess(self, tensordict: TensorDictBase | None) -> TensorDictBase | None:
        self._lap()
        return tensordict

    def _reset(self, tensordict: TensorDictBase, tensordict_reset: TensorDictBase) -> TensorDictBase:
        return self._write(tensordict_reset, (0.0, 0.0, self._lap()))

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
        self._tally = Tally()

    @property
    def _counts(self) -> list[tuple[Key, Key]]:
        """The done flags and the numbers that belong to them."""
        return self._once("counts", self._found_counts)

    def _found_counts(self) -> list[tuple[Key, Key]]:
        place, name = split(self.out_keys[0])
        if place and self.parent is not None and place not in self._places:
            flags = [joined(p, "done") for p in self._places]
            raise RuntimeError(
                f"Expected TrajCounter's out_key beside one of the done flags {flags}, got {self.out_keys[0]!r}, in a "
                "group that has none. Put the key beside a flag."
            )
        return [(joined(p, "done"), joined(p, name)) for p in ([place] if place else self._places)]

    @property
    def _unrolls(self) -> bool:
        return False

    def _step(self, tensordict: TensorDictBase, next_tensordict: TensorDictBase) -> TensorDictBase:
        for _, key in self._counts:
            next_tensordict.set(key, self._of(tensordict, key))
        return next_tensordict

    def _reset(self, tensordict: TensorDictBase, tensordict_reset: TensorDictBase) -> TensorDictBase:
        masks = self._masks(tensordict)
        for done_key, key in self._counts:
            done = tensordict_reset.get(done_key)
            mask = masks.of(done_key)
            begun = torch.ones_like(done) if mask is None else aligned(mask, done).expand_as(done)
            tensordict_reset.set(key, self._numbered(begun))
        return tensordict_reset

    def _numbered(self, begun: Tensor) -> Tensor:
        """The next numbers where `begun` is set, zeros elsewhere."""
        order = begun.flatten().cumsum(0).view(begun.shape) - 1
        first = self._tally.take(int(begun.sum()))
        return torch.where(begun, (first + order) // self._repeats, 0)

    def _unroll(self, roots: TensorDictBase, following: TensorDictBase, first: Tensor) -> None:
        """Number stored trajectories."""
        for done_key, key in self._counts:
            done = self._of(following, done_key)
            begun = aligned(first, done).expand_as(done)
            number = torch.where(begun, self._numbered(begun), -1).cummax(first.ndim - 1).values
            roots.set(key, number)
            following.set(key, number.clone())

    def share_state_(self, path: Path) -> None:
        """Takes numbers from the count in the file `path`, as all others that are given this path do."""
        self._tally.join(path)

    def get_extra_state(self) -> Tensor:
        """How many trajectories have begun."""
        return torch.tensor(self._tally.value)

    def set_extra_state(self, state: Tensor) -> None:
        """Go on from a number of trajectories."""
        self._tally.value = int(state)

    def transform_output_spec(self, output_spec: Composite) -> Composite:
        """With the numbers."""
        for done_key, key in self._counts:
            flag = output_spec["full_done_spec"][done_key]
            output_spec["full_observation_spec"][key] = self._number(flag)
        return output_spec

    def transform_input_spec(self, input_spec: Composite) -> Composite:
        """With the numbers, which a step goes on with."""
        flags = self._require_parent().full_done_spec
        for done_key, key in self._counts:
            input_spec["full_state_spec"][key] = self._number(flags[done_key])
        return input_spec

    def _number(self, flag: Any) -> Bounded:
        return Bounded(0, torch.iinfo(torch.int64).max, flag.shape, dtype=torch.int64, device=flag.device)


class Tally:
    """A count that copies in other processes go on with.

    When it is first pickled, the count goes to a file, which all copies on this machine share; a copy elsewhere goes on
    by itself from where the count stood. A shared count never goes back when a state is set, so that no number is
    taken twice.
    """

    not_state = ("_file",)

    def __init__(self):
        self._value = 0
        self._file: str | None = None

    def take(self, n: int) -> int:
        """The first of `n` numbers that nobody else gets."""
        return self._change(lambda value: value + n)

    @property
    def value(self) -> int:
        """How many have been taken."""
        return self.take(0)

    @value.setter
    def value(self, value: int) -> None:
        self._change(lambda _: value)

    def _change(self, change: Any) -> int:
        """Set the count to what `change` makes of it; returns what it was."""
        if self._file is None:
            before = self._value
            self._value = change(before)
            return before
        import fcntl  # which not every system has, and most counts need not

        with open(self._file, "r+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # until the file is closed
            before = max(int(file.read()), self._value)
            self._value = change(before)
            file.seek(0)
            file.write(f"{self._value:020d}")
        return before

    def join(self, path: Path) -> None:
        """Goes on with the count in a file, which begins with this count where it is new; no effect if it has one."""
        if self._file is None:
            publish(path, self._write)
            self._file = str(path)

    def _write(self, path: Path) -> None:
        path.write_text(f"{self._value:020d}")

    def __getstate__(self) -> dict[str, Any]:
        if self._file is None:
            handle, path = tempfile.mkstemp(prefix="vecrl-count-")
            os.close(handle)
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
