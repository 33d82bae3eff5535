"""Converts replies in plain data, of workers on another interpreter, to those of workers on this one."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec

from ... import errors
from ...errors import Failure
from ..infos import Infos
from ..space_layout import AnySpace
from ..worker import WorkerInfo, WorkerReply
from .foreign_worker.plain_data import loads


def parse_plain_reply(body: bytes) -> WorkerReply:
    """Returns the reply that a worker on another interpreter has sent."""
    reply = loads(body, _make)
    failures = [_failure(*values) for values in reply.get("failures", ())]
    result: Any = reply.get("result")
    if isinstance(result, list):  # of a call: one pickle for each environment
        items: list[bytes | None] = result
        result = [None if item is None else loads(item, _make) for item in items]
    elif result is not None:
        result = WorkerInfo(**result)
    infos, final_infos = Infos(dicts=reply.get("infos")), Infos(dicts=reply.get("final_infos"))
    return WorkerReply(infos=infos, final_infos=final_infos, failures=failures, result=result)


def _failure(
    ids: list[int], command: str, text: str, trace: str, worker: int, pid: int, step: int, class_name: str
) -> Failure:
    """Returns a failure; its exception is one of the same class if that is vecrl's or built in, else None."""
    exception = None
    cls: object = getattr(errors, class_name, getattr(builtins, class_name, None))
    if isinstance(cls, type) and issubclass(cls, BaseException):
        try:
            exception = cls(text.partition(": ")[2])
        except TypeError:  # it needs other arguments
            exception = None
    return Failure(tuple(ids), command, text, trace, worker, pid, step, exception)


def _make(kind: str, *values: Any) -> AnySpace | EnvSpec | None:
    """Makes a space, or the spec of an environment, from its description."""
    if kind == "space":
        name, *arguments = values
        return _SPACES[name](*arguments)
    env_id, max_episode_steps = values
    try:
        return EnvSpec(env_id, max_episode_steps=max_episode_steps)
    except Exception:  # gymnasium does not accept the name
        return None


def _box(low: np.ndarray, high: np.ndarray, shape: tuple[int, ...], dtype: str) -> AnySpace:
    return spaces.Box(low, high, shape, np.dtype(dtype).type)


def _discrete(n: int, start: int) -> AnySpace:
    return spaces.Discrete(n, start=start)


def _multi_discrete(nvec: np.ndarray, dtype: str) -> AnySpace:
    return spaces.MultiDiscrete(nvec, dtype=np.dtype(dtype).type)


def _dict(items: Sequence[tuple[str, AnySpace]]) -> AnySpace:
    return spaces.Dict(dict(items))


_SPACES: dict[str, Callable[..., AnySpace]] = {
    "Box": _box,
    "Discrete": _discrete,
    "MultiDiscrete": _multi_discrete,
    "MultiBinary": spaces.MultiBinary,
    "Dict": _dict,
    "Tuple": spaces.Tuple,
}
