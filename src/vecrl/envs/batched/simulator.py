"""The sub-environments of one worker as an engine simulator.

They are stepped as the TensorDict environments they are (`rows`), or, where all of a pool's are no more than gymnasium
environments under specs, as those (`simulators.gymnasium`). Which of the two is agreed upon when all workers stand.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

from gymnasium import spaces

from ...engine.layout import Layout
from ...engine.simulator import RowsFailed
from ...engine.worker import Card
from ...errors import LockedError, SpaceError
from ...simulators.gymnasium import GymnasiumSimulator, close_all, make_all, put_back
from ...states import put, take
from ..base import EnvBase
from ..lifting import Lifted
from .graphs import Graphs
from .metadata import EnvMetaData
from .rows import EnvRows
from .wiring import inputs_of, is_by_path, outputs_of, space_of

EnvMaker = Callable[[], EnvBase]
MISSING = "missing"
METHOD = "method"
VALUE = "value"
_TOO_LATE = ("set_info_dict_reader", "auto_register_info_dict")  # they change specs, which are known to all by now


class EnvSimulator:
    """k environments; see `engine.simulator.Simulator`.

    Args:
        makers: each makes an environment.
        start: the number of the first of them.
        graphs: see `EnvRows`.

    Attributes:
        spec: the `EnvMetaData` of every environment.

    Raises:
        RowsFailed: with the index and the exception of each that could not be made.
    """

    render_mode = None
    reset: Any
    step: Any

    def __init__(self, makers: Sequence[EnvMaker], start: int = 0, graphs: Graphs | None = None):
        self.envs = make_all(makers, _check_env)
        self._makers = makers
        self.num_envs = len(self.envs)
        self.spec = _metadata(self.envs)
        self._start = start
        self._graphs = graphs
        self._lifted = _lifted(self.envs, self.spec)
        self._bare: GymnasiumSimulator | None = None
        self._by_path: EnvRows | None = None
        self.metadata: dict[str, Any] = {}
        if self._lifted is None:
            self.observation_space, self.action_space = spaces_by_path(self.spec)
        else:
            first = self._lifted[0]
            self.observation_space, self.action_space = first.env.observation_space, first.env.action_space
            self.metadata["keys"] = first.keys

    def lay_out(self, observation_space: spaces.Space[Any], action_space: spaces.Space[Any]) -> None:
        """Step environments so that their rows are in these spaces, see `agree`."""
        self.observation_space, self.action_space = observation_space, action_space
        if is_by_path(observation_space):
            self._by_path = EnvRows(self.envs, self._start, observation_space, action_space, self._graphs)
            rows: Any = self._by_path
        else:
            assert self._lifted is not None
            makers = [lambda env=lifted.env: env for lifted in self._lifted]
            rows = self._bare = GymnasiumSimulator(makers)
        self.reset = rows.reset
        self.step = rows.step

    def invoke(self, row: int, kind: str, name: str, value: Any) -> Any:
        """See `Simulator.invoke`; "get" returns whether it is a method, a value or missing, and the value."""
        env = self.envs[row]
        if kind == "call" and name in _TOO_LATE:
            raise LockedError(
                f"{name} changes an environment's specs, which those of its batch were made of. Call it in the "
                f"function that makes the environment: `lambda: GymEnv(...).{name}(...)`."
            )
        with self._shown(row):
            if kind == "set":
                return setattr(env, name, value)
            if kind == "get":
                found = getattr(env, name, _NOTHING)
                if found is _NOTHING:
                    return MISSING, None
                return (METHOD, None) if callable(found) else (VALUE, found)
            args, kwargs = value
            return getattr(env, name)(*args, **kwargs)

    def remake(self, row: int) -> None:
        """See `Simulator`."""
        close_all([self.envs[row]])
        env = self._makers[row]()
        _check_env(env)
        [meta] = _metadata([env])
        if not alike(meta, self.spec[row]):
            raise SpaceError(f"it looked otherwise before it was made anew; now it is {env}.")
        self.envs[row] = env
        if self._bare is not None and (lifted := env._lifted()) is not None:
            self._bare.take(row, lifted.env)

    def _shown(self, row: int) -> Any:
        return nullcontext() if self._bare is None else self._bare.shown(row)

    def get_state(self, row: int) -> Any:
        """See `Simulator`."""
        with self._shown(row):
            root = None if self._by_path is None else take(self._by_path.roots[row])
            return {"env": self.envs[row].get_state(), "root": root}

    def set_state(self, row: int, state: Any, allow: Sequence[str]) -> None:
        """See `Simulator`; the environment is reset before if it has no objects of a class that the state holds."""
        env = self.envs[row]
        with self._shown(row):
            put_back(env, lambda: env.set_state(state["env"], allow=allow))
            if self._by_path is not None and state["root"] is not None:
                self._by_path.roots[row] = put(None, state["root"])

    def close(self) -> None:
        """Close every environment, also where one of them raises; then raise what they raised."""
        failures = close_all([env for env in self.envs if not env.is_closed])
        if failures:
            raise RowsFailed(failures)


_NOTHING: Any = object()
_OUTSIDE = ("batch_size", "device", "batch_locked", "supports_set_state", "draws")


def spaces_by_path(metas: Sequence[EnvMetaData]) -> tuple[spaces.Space[Any], spaces.Space[Any]]:
    """The spaces of what comes out of environments, and of what goes into them."""
    return space_of([outputs_of(meta) for meta in metas]), space_of([inputs_of(meta) for meta in metas])


def agree(cards: Sequence[Card]) -> tuple[spaces.Space[Any], spaces.Space[Any]]:
    """The spaces that all workers can do with: those of gymnasium environments if all are alike, else by paths."""
    first = cards[0]
    metas = [meta for card in cards for meta in card.spec]
    if "keys" in first.metadata and all(
        card.metadata == first.metadata
        and card.observation_space == first.observation_space
        and card.action_space == first.action_space
        and card.spec[0].specs == first.spec[0].specs
        for card in cards
    ):
        return first.observation_space, first.action_space
    return spaces_by_path(metas)


def _check_env(env: Any) -> None:
    if not isinstance(env, EnvBase):
        raise TypeError(
            f"Expected an EnvBase, but the function that makes it returned {env!r:.80}. "
            "GymWrapper(env) makes one of a gymnasium environment."
        )


def _metadata(envs: Sequence[EnvBase]) -> list[EnvMetaData]:
    """That of every environment; of like ones the same object, which travels once."""
    metas: list[EnvMetaData] = []
    for env in envs:
        meta = EnvMetaData.metadata_from_env(env, fake=False)
        metas.append(next((known for known in metas[:1] if alike(known, meta)), meta))
    return metas


def alike(a: EnvMetaData, b: EnvMetaData) -> bool:
    """Whether two environments look the same from outside."""
    same = (getattr(a, name) == getattr(b, name) for name in _OUTSIDE)
    return all(same) and a.specs == b.specs


def _lifted(envs: Sequence[EnvBase], metas: Sequence[EnvMetaData]) -> list[Lifted] | None:
    """What is under the environments, if they are all alike and each has something."""
    found = [env._lifted() for env in envs]
    lifted = [one for one in found if one is not None]
    if len(lifted) < len(envs) or any(meta is not metas[0] for meta in metas):
        return None
    first = lifted[0]
    for one in lifted:
        spaces_differ = any(
            getattr(one.env, name) != getattr(first.env, name) for name in ("observation_space", "action_space")
        )
        if one.keys != first.keys or spaces_differ or not _is_plain(one.env):
            return None
    return lifted


def _is_plain(env: Any) -> bool:
    """Whether observations lie in arrays, and the action is one array."""
    return not Layout(env.observation_space).opaque and Layout(env.action_space).flat
