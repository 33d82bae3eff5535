"""Environments on another Python interpreter, for libraries that do not run on this one.

A description of plain data says how to make such an environment. Worker processes on that interpreter make it
themselves. Wherever a single environment is needed, a `ForeignEnv` stands for it, with a worker of its own.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import gymnasium
import numpy as np

from ..engine.backends.foreign_worker.plain_data import Method
from ..engine.backends.interpreters import find_python, run_python
from ..engine.env_access import InvokeKind
from ..engine.infos import InfoDict
from ..engine.pool import Pool
from ..engine.simulator import EnvDescription, SimulatorMaker
from ..engine.space_layout import Tree
from ..engine.transition import Transition
from ..errors import StateError, VersionError, WorkerError
from ..gym_interface import EnvReset, EnvStep

MAKE = "gymnasium:make|gym:make"  # by name, with the library that the other interpreter has


class ForeignEnvFn:
    """A function that makes one environment on another interpreter.

    Attributes:
        description: how to make it.
    """

    def __init__(self, description: EnvDescription):
        self.description = description

    def __call__(self) -> ForeignEnv:
        return ForeignEnv(self)

    def __repr__(self) -> str:
        return f"foreign_env({self.description.target!r}, *{self.description.args!r})"


def foreign_env(
    target: str, *args: Any, python: str | None = None, modules: tuple[str, ...] = (), **kwargs: Any
) -> ForeignEnvFn:
    """Returns a function that makes one environment on another interpreter.

    Give it to any vector environment. With `backend="processes"` the workers themselves run on that interpreter.

    Args:
        target: the function to call there: "MODULE:NAME" or "FILE.py:NAME". Modules are looked up in the environment of
            the interpreter, and in the working directory if it is on `sys.path` here.
        args, kwargs: its arguments: numbers, texts, arrays, lists and dicts.
        python: the interpreter, see `WorkerOptions`; None for that of the vector environment.
        modules: modules to import there before.

    >>> import sys
    >>> from vecrl.vector import VectorEnv
    >>> cartpole = foreign_env("gymnasium:make", "CartPole-v1")
    >>> with VectorEnv([cartpole] * 2, backend="processes", num_workers=1, python=sys.executable) as envs:
    ...     envs.reset(seed=1)[0].shape
    (2, 4)
    """
    return ForeignEnvFn(EnvDescription(target, args, kwargs, modules, python))


class ForeignEnv(gymnasium.Env[Tree, Tree]):
    """One environment on another interpreter, in a worker process of its own, with gymnasium's interface.

    Attributes that are not found here are those of the environment there.

    Args:
        make: describes the environment.

    Raises:
        VersionError: no interpreter is named.
        WorkerError: the environment could not be made; contains the traceback of its interpreter.
    """

    def __init__(self, make: ForeignEnvFn):
        python = make.description.python
        if python is None:
            raise VersionError(
                f"Expected the path of an interpreter for {make}, got none. Give python=..., here or to the vector "
                'environment with backend="processes".'
            )
        self._pool = Pool([(SimulatorMaker(_made_there, [make]), 1)], "processes", infos="dicts", python=python)
        worker_info = self._pool.worker_info
        self.observation_space = worker_info.observation_space
        self.action_space = worker_info.action_space
        self.metadata = worker_info.metadata
        self.render_mode = worker_info.render_mode
        self.spec = worker_info.spec
        self._obs = self._pool.obs_layout
        self._actions = self._pool.action_layout

    def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> EnvReset:
        """Resets the environment and returns the observation and the info."""
        transition = self._pool.reset(None if seed is None else [seed], options or None)
        return self._first(transition.obs), _only_info(transition)

    def step(self, action: Tree) -> EnvStep:
        """Steps the environment and returns gymnasium's five values."""
        batch = self._actions.build([np.asarray(leaf)[None] for leaf in self._actions.split(action)])
        transition = self._pool.step(batch)
        ends = bool(transition.terminated[0]), bool(transition.truncated[0])
        return self._first(transition.next_obs), float(transition.reward[0]), *ends, _only_info(transition)

    def _first(self, obs: Tree) -> Tree:
        return self._obs.rows([leaf.copy() for leaf in self._obs.split(obs)], 1)[0]

    def render(self) -> Any:
        """Returns what the environment renders."""
        return self._invoke("render")

    def close(self) -> None:
        """Closes the environment and ends its process."""
        self._pool.close()

    def _invoke(self, kind: InvokeKind, name: str = "", value: Any = None) -> Any:
        return self._pool.invoke(kind, name, [value])[0]

    def get_wrapper_attr(self, name: str) -> Any:
        """Returns an attribute of this object or of the environment; a method of it as a function."""
        return getattr(self, name)

    def set_wrapper_attr(self, name: str, value: Any, *, force: bool = True) -> bool:
        """Sets an attribute of the environment. Returns True."""
        self._invoke("set", name, value)
        return True

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or "_pool" not in vars(self):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        try:
            value = self._invoke("get", name)
        except WorkerError as error:
            raise AttributeError(f"The environment has no attribute {name!r}: {error.failures[0].error}") from error
        return partial(self._call, name) if isinstance(value, Method) else value

    def _call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        return self._invoke("call", name, (args, kwargs))

    def get_state(self, *_: Any, **__: Any) -> Any:
        """Raises a `StateError`: the state of an environment on another interpreter cannot be saved."""
        raise StateError("Expected an environment of this interpreter, got one of another. Its state cannot be saved.")

    set_state = get_state

    def __str__(self) -> str:
        return f"<ForeignEnv {'' if self.spec is None else self.spec.id}>"


def _made_there(env_fns: Sequence[ForeignEnvFn]) -> Any:
    """Raises an AssertionError, since workers on another interpreter make environments by their descriptions."""
    raise AssertionError(f"Expected a worker on another interpreter, got one on this with {env_fns}.")


def _only_info(transition: Transition) -> InfoDict:
    return next((dict(info) for _, info in transition.infos.items()), {})


@dataclass(frozen=True, slots=True)
class ForeignLibrary:
    """A library of environments that needs an older Python.

    Attributes:
        module: the module to import.
        variable: the environment variable that names an interpreter with the library.
        version: a version of Python on which it runs.
        requirements: what pip must install.
        names_code: an expression for the names of its environments, after `names_module` is imported.
        names_module: the module with these names.
    """

    module: str
    variable: str
    version: str
    requirements: str
    names_code: str
    names_module: str

    def find_python(self, python: str | None = None) -> str | None:
        """Returns the path of the interpreter: `python`, or the one that the variable names; None without both."""
        python = python or os.environ.get(self.variable)
        return find_python(python) if python else None

    def require_python(self, python: str | None = None) -> str:
        """Returns the path of the interpreter.

        Raises:
            VersionError: none is named; the message says how to make one.
        """
        path = self.find_python(python)
        if path is None:
            raise VersionError(
                f"Expected a Python interpreter with {self.module}, which does not run on this version. {self.advice}",
                name=self.module,
            )
        return path

    @property
    def advice(self) -> str:
        """How to make such an interpreter."""
        python = f"{self.module}/bin/python"
        return (
            f"Make one: python{self.version} -m venv {self.module}; {python} -m pip install {self.requirements}. "
            f"Then give python='{python}', or set {self.variable} to it."
        )

    def names(self) -> list[str]:
        """Returns the names of its environments.

        Raises:
            VersionError: no interpreter is named, or the library is not installed there.
        """
        path = self.require_python()
        line = _run_once(path, f"import json, {self.module}, {self.names_module}; print(json.dumps({self.names_code}))")
        if not line:
            raise VersionError(
                f"Expected {self.module} in {path}, got none. Install it: {path} -m pip install {self.requirements}",
                name=self.module,
            )
        return json.loads(line)


_run_once = lru_cache(run_python)  # imports of such libraries take seconds


def named_env(
    name: str, library: str = "gymnasium", *, python: str, modules: tuple[str, ...] = (), **kwargs: Any
) -> ForeignEnvFn:
    """Returns a function that makes the environment `name` by gymnasium, or the old gym, of another interpreter.

    Args:
        name: the name of the environment.
        library: the library to prefer.
        python, modules, kwargs: see `foreign_env`.
    """
    target = MAKE if library == "gymnasium" else f"{library}:make|{MAKE}"
    return foreign_env(target, name, python=find_python(python), modules=modules, **kwargs)
