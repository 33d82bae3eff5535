"""gymnasium's environments, single ones and vectors of them, over TensorDicts; those of the old gym as well.

Observations that are no dict lie under "observation"; those of dicts under their own keys. Actions are one-hot where
the space is discrete, unless asked otherwise. What an environment hands out is copied, unless it is the caller's.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from ...engine.layout import Layout, Leaf
from ...errors import SpaceError
from ...simulators.gym_making import dressed, make, make_row, modern
from ...specs import Categorical, Composite, TensorSpec, Unbounded
from ...specs.conversions import spec_from_gym
from ...specs.conversions.dtypes import numpy_dtype
from ..gym_like import GymLikeEnv, Outcome, default_info_dict_reader, quick_encoder
from ..lifting import Lifted
from ..overriding import overrides
from ..owner import FLAGS
from ..partial import Masks
from ..seeds import next_seed, seed_chain
from ..tape import record
from ..tuples import fitted, not_an_outcome, number
from .gym_backends import DEFAULT_GYM, gym_backend, set_gym_backend
from .gym_spaces import as_tuples, observed_keys, register_gym_spec_conversion, with_tuples
from .gym_vector import VectorSteps, check_env, is_vector, spaces_of, vector_of

__all__ = [
    "DEFAULT_GYM",
    "GymEnv",
    "GymWrapper",
    "default_info_dict_reader",
    "gym_backend",
    "register_gym_spec_conversion",
    "set_gym_backend",
]


class GymWrapper(GymLikeEnv):
    """A gymnasium environment, or a vector of them, as an `EnvBase`.

    A vector environment of n rows has the batch size (n,). Whatever its auto-reset mode, "next" holds the true
    successors, final observations included, and rows that ended begin anew in the root that follows. For that, one in
    next-step or disabled mode must heed `options["reset_mask"]`; with one that does not (`CartPoleVectorEnv`), rollouts
    must end with the first end. One that takes a single seed gets the first row's.

    Args:
        env: any `gymnasium.Env` or `gymnasium.vector.VectorEnv`, or an environment of the old gym (0.21 to 0.26).
        categorical_action_encoding: discrete actions and observations as indices instead of one-hot rows.
        from_pixels: observe what the environment renders, under "pixels", uint8 `[H, W, C]`; its render mode must be
            "rgb_array".
        pixels_only: do so instead of what it observes itself, otherwise beside it.
        frame_skip: how many steps of the environment make one here; their rewards are added up.
        missing_obs_value: what stands for the final observation where a vector environment loses it.
        kwargs: see `GymLikeEnv`.

    Raises:
        SpaceError: a batch size that is not the environment's; `from_pixels` or `frame_skip` for a vector, whose
            environments must do that themselves.

    >>> import gymnasium
    >>> env = GymWrapper(gymnasium.make("CartPole-v1"))
    >>> env.set_seed(0)
    795726461
    >>> env.rollout(3)["next", "observation"].shape
    torch.Size([3, 4])
    """

    libname = "gym"
    _arrays_are_new = True
    _objectives = False  # whether rewards are vectors

    def __init__(
        self,
        env: Any = None,
        categorical_action_encoding: bool = False,
        *,
        from_pixels: bool = False,
        pixels_only: bool = True,
        frame_skip: int | None = None,
        missing_obs_value: float = math.nan,
        **kwargs: Any,
    ):
        self._categorical = categorical_action_encoding
        self._missing = missing_obs_value
        self._seed: int | None = None
        self._rows: VectorSteps | None = None
        below = {"from_pixels": from_pixels, "pixels_only": pixels_only, "frame_skip": 1}
        if from_pixels and frame_skip is not None and frame_skip > 1:  # so that skipped frames are not rendered
            below["frame_skip"], frame_skip = frame_skip, None
        super().__init__(env=env, frame_skip=frame_skip, below=below, **kwargs)

    def _build_env(self, below: dict[str, Any], env: Any = None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        check_env(env)
        if not is_vector(env):
            if self.batch_size:
                raise SpaceError(f"Expected a batch size of () for one environment, but {tuple(self.batch_size)} came.")
            return dressed(modern(env), **below)
        if self.batch_size not in ((), (env.num_envs,)):
            raise SpaceError(f"Expected a batch size of {(env.num_envs,)}, but {tuple(self.batch_size)} came.")
        if below["from_pixels"] or below["frame_skip"] > 1 or self.frame_skip > 1:
            raise SpaceError(
                "from_pixels and frame_skip are for single environments: let those of the vector do it themselves, as "
                "GymEnv(name, num_envs=n, frame_skip=k) has them do."
            )
        self.batch_size = [env.num_envs]
        self._rows = VectorSteps(env, self._output_transform, self._missing)
        return env

    def _make_specs(self, env: Any) -> None:
        rows = self._rows
        where = self.device or torch.device("cpu")
        how: dict[str, Any] = {"device": where, "categorical": self._categorical}
        observed, acted = spaces_of(env)
        self._layout = Layout(observed) if rows is None else rows.layout
        seen = spec_from_gym(env.observation_space if rows is None else env.single_observation_space, **how)
        self.observation_spec = self._batched(seen if isinstance(seen, Composite) else Composite(observation=seen))
        action_spec = spec_from_gym(acted, **how)
        self.action_spec = self._batched(action_spec)
        self._keyed_actions = isinstance(action_spec, Composite)
        self._tuples = with_tuples(acted)
        self.reward_spec = self._batched(self._reward_spec(where))
        flags = {flag: Categorical(2, (1,), device=where, dtype=torch.bool) for flag in FLAGS}
        self.full_done_spec = self._batched(Composite(flags))
        keys = observed_keys(self._layout)
        self._leaves: list[tuple[Any, TensorSpec]] = [(key, self.observation_spec[key]) for key in keys]
        self._action_key = next(iter(self.action_keys), "action")
        own = not overrides(self, GymWrapper, _READ)
        plain = self._convert_actions_to_numpy and len(self.action_keys) == 1 and not self._keyed_actions
        self._quick = own and plain and rows is None  # whether a step may go without detours
        self._reward_dtype = numpy_dtype(self.reward_spec.dtype)
        pairs = zip(self._leaves, self._layout.leaves, strict=True)
        self._encoders = [(key, self._encoder(spec.to("cpu"), leaf)) for (key, spec), leaf in pairs]

    def _encoder(self, spec: TensorSpec, leaf: Leaf) -> Callable[[Any], Any]:
        """From an observation's leaf, of all rows where there are several, to its tensor."""
        rows = self._rows
        count = () if rows is None else (rows.num_envs,)
        return quick_encoder(spec, leaf.dtype, rows is None or not rows.fresh, partial(_checked, spec, leaf, count))

    def _reward_spec(self, device: torch.device) -> TensorSpec:
        return Unbounded((1,), device=device)

    # -- step by step

    def read_obs(self, observations: Any) -> dict[str, Any]:
        """An observation of the environment's as tensors by their keys."""
        entries: dict[str, Any] = {}
        for (path, encode), value in zip(self._encoders, self._layout.split(observations), strict=True):
            branch = entries
            for step in path[:-1]:
                branch = branch.setdefault(step, {})
            branch[path[-1]] = encode(value)
        return entries

    def read_action(self, action: Any) -> Any:
        """An action's tensor (of several, a TensorDict) as the environment wants it."""
        ready = super().read_action(action)
        return as_tuples(ready, self._tuples) if self._tuples else ready

    def _begin(self, **kwargs: Any) -> Any:
        seed, self._seed = self._seed, None
        return self._reset_output_transform(self._env.reset(**{"seed": seed, **kwargs}))

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        if self._rows is None:
            obs, info = self._begin(**kwargs)
        else:
            mask = None if tensordict is None else tensordict.get("_reset", None)
            mask = None if mask is None else mask.reshape(self._rows.num_envs, -1).any(-1).cpu().numpy()
            obs, info = self._rows.reset(mask, self._row_seeds(), **kwargs)
        return self._with_info(self.read_obs(obs), info)

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        if self.info_dict_reader or not self._quick:
            return super()._step(tensordict)
        obs, reward, terminated, truncated = self._taped(self.read_action(tensordict.get(self._action_key)))
        entries = self.read_obs(obs)
        entries["reward"] = torch.from_numpy(np.array((reward,), self._reward_dtype))
        entries["done"] = torch.from_numpy(_ONE[terminated or truncated].copy())
        entries["terminated"] = torch.from_numpy(_ONE[terminated].copy())
        entries["truncated"] = torch.from_numpy(_ONE[truncated].copy())
        return TensorDict(entries, self._batch_size, device=self._device)

    def _advance(self, tensordict: TensorDictBase) -> TensorDictBase:
        """See `EnvBase._advance`: what a quick step gives has all flags, and all in the shapes of the specs."""
        plain = not (self.run_type_checks or self.info_dict_reader) and self._begun is None
        if plain and self._cached("whole", self._is_whole):
            return self._step(tensordict)
        return super()._advance(tensordict)

    def _is_whole(self) -> bool:
        """Whether what `_step` gives needs no completing, since nobody has changed the specs or the step."""
        shapes = {key: spec.shape for key, spec in (*self.full_done_spec.items(), *self.full_reward_spec.items())}
        usual = shapes == dict.fromkeys((*FLAGS, "reward"), (1,))
        return usual and self._quick and not overrides(self, GymWrapper, ("_step",))

    def _act(self, action: Any) -> Outcome:
        if self._rows is not None:
            return self._rows.step(action, self._objectives or bool(self.info_dict_reader))
        return super()._act(action)

    # -- vectors

    def read_reward(self, reward: Any) -> Tensor:
        """A reward, or those of all rows, as a tensor of `reward_spec`."""
        if type(reward) is not np.ndarray or self.reward_spec.dtype != torch.float32:
            return super().read_reward(reward)
        return torch.from_numpy(reward.astype(np.float32)).unsqueeze(-1)

    def _flag(self, flag: Any) -> Tensor:
        return torch.from_numpy(flag.copy()).unsqueeze(-1) if type(flag) is np.ndarray else super()._flag(flag)

    def maybe_reset(self, tensordict: TensorDictBase) -> TensorDictBase:
        """See `EnvBase.maybe_reset`; rows that began anew in the step itself are spared the way through a reset."""
        if self._rows is None:
            return super().maybe_reset(tensordict)
        begun = self._rows.begun
        own = not overrides(self, GymWrapper, ("_reset", "reset"))
        if begun is None or not own or self.info_dict_reader or self._begun is not None:
            return super().maybe_reset(tensordict)
        done = tensordict.get("done")
        mask = torch.from_numpy(begun).unsqueeze(-1).to(done.device)
        if not mask.equal(done):
            return super().maybe_reset(tensordict)
        first = self._with_info(self.read_obs(self._rows.reset(begun)[0]), {})
        Masks({(): mask}, [()]).merge(first, tensordict)
        return tensordict.update(first).update({flag: torch.zeros_like(mask) for flag in FLAGS})

    def _step_some(self, tensordict: TensorDictBase, mask: Tensor) -> TensorDictBase:
        if self._rows is not None and not bool((mask.reshape(-1, 1) | tensordict.get("done")).all()):
            raise SpaceError(
                "A vector environment steps all of its rows: a '_step' mask may only leave out those that are done. "
                "Put the environments into a SerialEnv or a ParallelEnv to step some of them."
            )
        return super()._step_some(tensordict, mask)

    # -- seeds

    def _set_seed(self, seed: int | None) -> None:
        self._seed = seed

    def _row_seeds(self) -> list[int | None] | None:
        seed, self._seed = self._seed, None
        return None if seed is None else list(seed_chain(seed, self.numel()))

    def set_seed(self, seed: int | None = None, static_seed: bool = False) -> int | None:
        """See `EnvBase.set_seed`; rows of a vector get the seeds that as many environments would, one by one."""
        following = super().set_seed(seed, static_seed)
        if self._rows is None or static_seed or seed is None:
            return following
        return next_seed(seed_chain(seed, self.numel())[-1])

    # -- a rollout at once

    def _taped(self, action: Any) -> tuple[Any, float, bool, bool]:
        result, paid, skipped = self._acted(action), 0.0, self.frame_skip - 1
        while skipped and not (result[2] or result[3]):
            paid, skipped = paid + result[1], skipped - 1
            result = self._acted(action)
        return (result[0], paid + result[1], *result[2:]) if paid else result

    def _acted(self, action: Any) -> tuple[Any, float, bool, bool]:
        outcome = self._env.step(action)
        try:
            obs, reward, terminated, truncated, _ = outcome
        except (TypeError, ValueError):
            raise not_an_outcome(outcome) from None
        return obs, reward if type(reward) is float else number(reward), bool(terminated), bool(truncated)

    def _lifted(self) -> Lifted | None:
        overridden = overrides(self, GymWrapper, (*_TAPED, *_LIFTED))
        plain = self._quick and self.frame_skip == 1 and self._begun is None and not self.run_type_checks
        if overridden or not plain or self._tuples or self._layout.opaque or self.info_dict_reader:
            return None
        return Lifted(self._env, tuple(key for key, _ in self._leaves))

    def _play(self, steps: int, actions: Any, stop: bool) -> TensorDictBase | None:
        plain = self._quick and not self.info_dict_reader and not self._layout.opaque and self._begun is None
        if not plain or overrides(self, GymWrapper, _TAPED):
            return None
        spec = self.action_spec
        actions = spec.rand((steps,)) if actions is None else actions[:steps].clone()
        ready = spec.expand(len(actions), *spec.shape).to_numpy(actions)
        tape = record(lambda: self._begin()[0], self._taped, list(ready), self._layout, stop)
        n = len(tape.reward)
        ends = torch.from_numpy(tape.terminated), torch.from_numpy(tape.truncated)
        flags = dict(zip(FLAGS, (ends[0] | ends[1], *ends), strict=True))
        following = self._unrolled(tape.next_obs, n, {flag: value.unsqueeze(-1) for flag, value in flags.items()})
        following.set("reward", torch.from_numpy(tape.reward).to(self.reward_spec.dtype).unsqueeze(-1))
        root = self._unrolled(tape.obs, n, {flag: torch.zeros(n, 1, dtype=torch.bool) for flag in FLAGS})
        root.set(self.action_key, actions[:n])
        root.set("next", following)
        root.names = ["time"]
        return root

    def _unrolled(self, leaves: Any, n: int, more: dict[str, Any]) -> TensorDict:
        data = TensorDict(more, [n], device=self.device)
        for (key, spec), values in zip(self._leaves, leaves, strict=True):
            whole = _as_it_is(spec, values)
            data.set(key, torch.from_numpy(values) if whole else spec.expand(n, *spec.shape).encode(values))
        return data

    # -- the library's environment

    @property
    def lib(self) -> Any:
        """The library that the environment comes from: gymnasium, or gym."""
        return import_module(self.get_library_name())

    def get_library_name(self, env: Any = None) -> str:
        """Which library an environment (this one by default) comes from: "gymnasium" or "gym"."""
        env = self._env if env is None else env
        kinds = type(getattr(env, "old", env)).__mro__
        return "gym" if any(kind.__module__.partition(".")[0] == "gym" for kind in kinds) else "gymnasium"

    def _look_up(self, name: str) -> Any:
        if self._rows is None:
            return self._env.get_wrapper_attr(name)
        if hasattr(self._env, name):
            return getattr(self._env, name)
        try:
            return list(self._env.get_attr(name))
        except Exception as error:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}") from error


class _Names:
    """A class's `_names()`, as an attribute of the class."""

    def __get__(self, owner: Any, kind: Any = None) -> list[str]:
        return kind._names()


class GymEnv(GymWrapper):
    """A gymnasium environment by its name, or several of them, see `GymWrapper`.

    Args:
        env_name: as the `make` of the current backend takes it, see `set_gym_backend`.
        categorical_action_encoding, from_pixels, pixels_only, frame_skip: see `GymWrapper`.
        num_envs: how many; the batch size is (num_envs,) then. They are stepped by a `vecrl.vector.VectorEnv`.
        num_workers: how many worker processes share them; alone, it also says how many environments there are.
        backend: of that `VectorEnv`: "serial", "threads", "ray" or "processes", the default for several workers.
        ray_options: of that `VectorEnv`.
        kwargs: those of `GymWrapper`, `GymLikeEnv`, `EnvBase`; others go to `make`, with `disable_env_checker` true.

    Attributes:
        available_envs: of the class: the names that the current backend can make.

    >>> GymEnv("Pendulum-v1", g=9.81).rollout(5).shape
    torch.Size([5])
    >>> GymEnv("Pendulum-v1", num_envs=3).rollout(5).shape
    torch.Size([3, 5])
    """

    available_envs: Any = _Names()
    _OWN = (
        *("device", "batch_size", "run_type_checks", "allow_done_after_reset", "spec_locked", "auto_reset"),
        *("auto_reset_replace", "convert_actions_to_numpy", "missing_obs_value"),
    )

    def __init__(
        self,
        env_name: str,
        categorical_action_encoding: bool = False,
        *,
        from_pixels: bool = False,
        pixels_only: bool = True,
        frame_skip: int | None = None,
        num_envs: int | None = None,
        num_workers: int | None = None,
        backend: Any = None,
        ray_options: Any = None,
        **kwargs: Any,
    ):
        own = {name: kwargs.pop(name) for name in self._OWN if name in kwargs}
        below: dict[str, Any] = {"from_pixels": from_pixels, "pixels_only": pixels_only, "frame_skip": frame_skip}
        kwargs.update(library=self._library(), from_pixels=from_pixels)
        many = num_envs if num_envs is not None or (num_workers or 1) < 2 else num_workers
        if many is not None:
            make_env = partial(make_row, env_name, kwargs, below, self._objectives)
            env, below = vector_of(make_env, many, backend, num_workers, ray_options), {}
        else:
            env = make(env_name, **kwargs)
        super().__init__(env, categorical_action_encoding, **below, **own)

    @classmethod
    def _names(cls) -> list[str]:
        registry: Any = gym_backend("envs").registry
        return sorted(registry if isinstance(registry, dict) else [spec.id for spec in registry.all()])

    @classmethod
    def _library(cls) -> str:
        """The name of the library whose `make` makes the environments."""
        return gym_backend().__name__


_ONE = np.zeros(1, np.bool_), np.ones(1, np.bool_)  # quicker to copy than tensors are
_LIFTED = ("reset", "step", "_reset", "_step", "maybe_reset", "set_seed", "_set_seed")
_READ = ("_act", "_output_transform", "read_reward", "read_done", "read_info", "_with_info", "_flag", "_reward_spec")
_TAPED = ("_begin", "_taped", "_reset_output_transform", "read_obs", "read_action")


def _checked(spec: TensorSpec, leaf: Leaf, rows: tuple[int, ...], value: Any) -> Any:
    return spec.encode(fitted(value, leaf, *rows))


def _as_it_is(spec: TensorSpec, values: Any) -> bool:
    return spec.shape == values.shape[1:] and torch.from_numpy(values[:0]).dtype == spec.dtype
