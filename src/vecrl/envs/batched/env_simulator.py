"""`EnvSimulator`: the sub-environments of one worker as an engine simulator.

They are stepped as TensorDict environments (`tensordict_rows`). If all environments of a pool only wrap gymnasium
environments, these are stepped directly (`simulators.gymnasium`). The choice is made after all workers have reported
their spaces. This module must not know pools or other workers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from ...engine.simulator import RowFailures
from ...engine.space_layout import Layout
from ...engine.worker import WorkerInfo
from ...errors import LockedError, SpaceError
from ...simulators.gymnasium import GymnasiumSimulator, close_all, make_all, restore_env
from ...snapshot import capture, restore
from ..adapters import adapt_env
from ..base import EnvBase, UnwrappedGymEnv
from ..utils import attribute_at
from .autograd_graphs import Graphs
from .entry_layout import Space, inputs_of, is_tensordict_layout, outputs_of, space_of_formats
from .metadata import EnvMetaData
from .stacked_rows import StackedRows, gymnasium_envs_under
from .tensordict_rows import TensorDictRows

EnvMaker = Callable[[], EnvBase]
MISSING = "missing"
METHOD = "method"
VALUE = "value"
# they change specs, which the caller and other workers already use
_SPEC_CHANGING_METHODS = ("set_info_dict_reader", "auto_register_info_dict")


class EnvSimulator:
    """A simulator of k environments, as in `engine.simulator.Simulator`.

    Args:
        env_fns: functions that create the environments.
        start: the index of the first environment in the pool.
        graphs: as in `TensorDictRows`.

    Attributes:
        spec: the `EnvMetaData` of every environment.

    Raises:
        RowFailures: environments could not be created; has their indices and exceptions.
    """

    render_mode = None
    reset: Any
    step: Any

    def __init__(self, env_fns: Sequence[EnvMaker], start: int = 0, graphs: Graphs | None = None):
        env_fns = [partial(_make_env, env_fn) for env_fn in env_fns]
        self.envs = make_all(env_fns, _check_env)
        self._env_fns = env_fns
        self.num_envs = len(self.envs)
        self.spec = _metadata(self.envs)
        self._start = start
        self._graphs = graphs
        self._unwrapped = _unwrapped_gym(self.envs, self.spec)
        self._gym_simulator: GymnasiumSimulator | None = None
        self._tensordict_rows: TensorDictRows | None = None
        self.metadata: dict[str, Any] = {}
        if self._unwrapped is None:
            self.observation_space, self.action_space = tensordict_spaces(self.spec)
        else:
            first_env = self._unwrapped[0]
            self.observation_space, self.action_space = first_env.env.observation_space, first_env.env.action_space
            self.metadata["keys"] = first_env.keys

    @property
    def innermost_envs(self) -> list[object]:
        """The environments inside all transforms and wrappers."""
        return [_innermost(env) for env in self.envs]

    def set_spaces(self, observation_space: Space, action_space: Space) -> None:
        """Sets the spaces of rows, from `resolve_spaces`, and chooses how environments are stepped."""
        self.observation_space, self.action_space = observation_space, action_space
        if is_tensordict_layout(observation_space):
            rows: Any = self._make_tensordict_rows()
            self._tensordict_rows = rows
        else:
            assert self._unwrapped is not None
            env_fns = [lambda env=unwrapped.env: env for unwrapped in self._unwrapped]
            rows = self._gym_simulator = GymnasiumSimulator(env_fns)
        self.reset = rows.reset
        self.step = rows.step

    @property
    def stacked_rows(self) -> StackedRows | None:
        """What steps all environments with one call of their transforms, if it does."""
        return self._tensordict_rows if isinstance(self._tensordict_rows, StackedRows) else None

    def _make_tensordict_rows(self) -> TensorDictRows:
        arguments = self.envs, self._start, self.observation_space, self.action_space, self._graphs
        unwrapped = None if self._unwrapped else gymnasium_envs_under(self.envs)
        if unwrapped is None or not _are_alike(unwrapped, self.spec):
            return TensorDictRows(*arguments)
        self._gym_simulator = GymnasiumSimulator([lambda env=item.env: env for item in unwrapped])
        return StackedRows(*arguments, self._gym_simulator, unwrapped[0].keys)

    def invoke(self, row: int, kind: str, name: str, value: Any) -> Any:
        """Gets, sets or calls an attribute of an environment, as `Simulator.invoke` does.

        "get" returns a kind, which is `METHOD`, `VALUE` or `MISSING`, and the value, which is None unless `VALUE`.

        Raises:
            LockedError: the call would change the specs of the environment.
        """
        env = self.envs[row]
        if kind == "call" and name in _SPEC_CHANGING_METHODS:
            raise LockedError(
                f"Expected a method that does not change specs, got {name}. The batch depends on the specs. "
                f"Call it in the function that creates the environment: `lambda: GymEnv(...).{name}(...)`."
            )
        if kind != "get" and self._tensordict_rows is not None:
            self._tensordict_rows.settings_changed()
        if kind == "set":
            return setattr(env, name, value)
        if kind == "get":
            try:
                attribute = attribute_at(env, name)
            except AttributeError:
                return MISSING, None
            return (METHOD, None) if callable(attribute) else (VALUE, attribute)
        args, kwargs = value
        return attribute_at(env, name)(*args, **kwargs)

    def rebuild(self, row: int) -> None:
        """Closes an environment and creates it again.

        Raises:
            SpaceError: the new environment has other specs.
        """
        close_all([self.envs[row]])
        env = self._env_fns[row]()
        _check_env(env)
        [meta] = _metadata([env])
        if not same_metadata(meta, self.spec[row]):
            raise SpaceError(f"Expected the same specs after the restart, got other specs from {env}.")
        self.envs[row] = env
        if self._gym_simulator is not None:
            self._gym_simulator.envs[row] = _under_transforms(env)._unwrapped_gym().env
        if self._tensordict_rows is not None:
            self._tensordict_rows.settings_changed()

    def get_state(self, row: int) -> Any:
        """Returns the state of an environment and of its root TensorDict."""
        root = None if self._tensordict_rows is None else capture(self._tensordict_rows.root_by_row()[row])
        return {"env": self.envs[row].get_state(), "root": root}

    def set_state(self, row: int, state: Any, allow: Sequence[str]) -> None:
        """Sets the state of an environment. Resets it first if it has no object of a class in the state."""
        env = self.envs[row]
        restore_env(env, lambda: env.set_state(state["env"], allow=allow))
        if self._tensordict_rows is not None and state["root"] is not None:
            self._tensordict_rows.root_by_row()[row] = restore(None, state["root"])

    def close(self) -> None:
        """Closes all environments, also if some raise.

        Raises:
            RowFailures: environments raised; has their indices and exceptions.
        """
        failures = close_all([env for env in self.envs if not env.is_closed])
        if failures:
            raise RowFailures(failures)


_COMPARED_FIELDS = ("batch_size", "device", "batch_locked", "supports_set_state", "has_custom_rand_action")


def tensordict_spaces(metas: Sequence[EnvMetaData]) -> tuple[Space, Space]:
    """Returns the spaces of outputs and inputs of environments, by path."""
    return space_of_formats([outputs_of(meta) for meta in metas]), space_of_formats([inputs_of(meta) for meta in metas])


def resolve_spaces(worker_infos: Sequence[WorkerInfo]) -> tuple[Space, Space]:
    """Returns spaces for all workers: those of the gymnasium environments if all are equal, else spaces by path."""
    first_info = worker_infos[0]
    metas = [meta for worker_info in worker_infos for meta in worker_info.spec]
    if "keys" in first_info.metadata and all(
        worker_info.metadata == first_info.metadata
        and worker_info.observation_space == first_info.observation_space
        and worker_info.action_space == first_info.action_space
        and worker_info.spec[0].specs == first_info.spec[0].specs
        for worker_info in worker_infos
    ):
        return first_info.observation_space, first_info.action_space
    return tensordict_spaces(metas)


def _make_env(env_fn: EnvMaker) -> EnvBase:
    return adapt_env(env_fn())


def _check_env(env: object) -> None:
    if not isinstance(env, EnvBase):
        raise TypeError(
            f"Expected an EnvBase from the function that creates an environment, got {env!r:.80}. "
            "Use GymWrapper(env) for a gymnasium environment."
        )


def _metadata(envs: Sequence[EnvBase]) -> list[EnvMetaData]:
    """Returns the metadata of every environment. Equal metadata are one object, which is pickled once."""
    metas: list[EnvMetaData] = []
    for env in envs:
        meta = EnvMetaData.metadata_from_env(env, fake=False)
        metas.append(next((existing for existing in metas[:1] if same_metadata(existing, meta)), meta))
    return metas


def same_metadata(a: EnvMetaData, b: EnvMetaData) -> bool:
    """Returns whether two environments have equal metadata."""
    field_equal = (getattr(a, name) == getattr(b, name) for name in _COMPARED_FIELDS)
    return all(field_equal) and a.specs == b.specs


def _unwrapped_gym(envs: Sequence[EnvBase], metas: Sequence[EnvMetaData]) -> list[UnwrappedGymEnv] | None:
    """Returns the gymnasium environments inside the environments if each has one and all are equal, else None."""
    candidates = [env._unwrapped_gym() for env in envs]
    unwrapped = [item for item in candidates if item is not None]
    return unwrapped if len(unwrapped) == len(envs) and _are_alike(unwrapped, metas) else None


def _are_alike(unwrapped: Sequence[UnwrappedGymEnv], metas: Sequence[EnvMetaData]) -> bool:
    """Returns whether the metadata and the spaces of all environments are equal, without opaque leaves."""
    if any(meta is not metas[0] for meta in metas):
        return False
    first_env = unwrapped[0]
    for item in unwrapped:
        spaces_differ = any(
            getattr(item.env, name) != getattr(first_env.env, name) for name in ("observation_space", "action_space")
        )
        if item.keys != first_env.keys or spaces_differ or not _is_flat(item.env):
            return False
    return True


def _under_transforms(env: Any) -> Any:
    """Returns the base of a transformed environment, and other environments unchanged."""
    return env if env._unwrapped_gym() is not None else env.base_env


def _innermost(env: Any) -> object:
    """Returns what is behind all transforms and wrappers of an environment."""
    if (unwrapped := env._unwrapped_gym()) is not None:
        return unwrapped.env.unwrapped
    return _innermost(env.base_env) if isinstance(getattr(env, "base_env", None), EnvBase) else env


def _is_flat(env: Any) -> bool:
    """Returns whether observations have no opaque leaves and the action is one array."""
    return not Layout(env.observation_space).opaque and Layout(env.action_space).flat
