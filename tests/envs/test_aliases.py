"""Module paths and names of TorchRL that `vecrl.envs.aliases` resolves."""

import importlib
import os
import pickle
import subprocess
import sys

import pytest
import torch
from gymnasium import spaces

import vecrl.envs
from vecrl.envs.aliases import ABSENT, MODULES, NAMES
from vecrl.envs.transforms.functional import rgb_to_grayscale
from vecrl.envs.utils import clear_mpi_env_vars
from vecrl.specs import Composite


@pytest.mark.parametrize("module", MODULES)
def test_a_module_without_a_file_has_the_names_of_its_source(module: str) -> None:
    source, alias = importlib.import_module(MODULES[module]), importlib.import_module(module)
    name = source.__all__[0]
    assert getattr(alias, name) is getattr(source, name)
    assert alias.__all__ == source.__all__
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = alias.no_such_name


def test_a_module_replaces_no_function_of_its_name() -> None:
    from vecrl.envs.env_creator import EnvCreator, env_creator

    assert vecrl.envs.env_creator is env_creator
    assert isinstance(vecrl.envs.env_creator(vecrl.envs.PendulumEnv), EnvCreator)


def test_classes_are_the_same_by_every_path_and_pickle_by_their_own_module() -> None:
    from vecrl.envs.batched_envs import BatchedEnvBase, ParallelEnv
    from vecrl.envs.common import EnvBase
    from vecrl.envs.custom.tictactoeenv import TicTacToeEnv
    from vecrl.envs.transforms.transforms import StepCounter

    from vecrl.envs.libs import GymEnv
    from vecrl.envs.libs.gym import MOGymEnv

    assert EnvBase is vecrl.envs.EnvBase
    assert GymEnv is vecrl.envs.GymEnv
    assert MOGymEnv is vecrl.envs.MOGymEnv
    assert issubclass(ParallelEnv, BatchedEnvBase)
    assert isinstance(TicTacToeEnv(), EnvBase)
    assert pickle.loads(pickle.dumps(StepCounter)) is vecrl.envs.StepCounter
    assert b"transforms.transforms" not in pickle.dumps(StepCounter)


@pytest.mark.parametrize("module", NAMES)
def test_every_name_of_the_tables_exists(module: str) -> None:
    # libraries that are not installed may be missing when an environment is made, but not when its class is imported
    for name, path in NAMES[module].items():
        assert getattr(importlib.import_module(module), name) is _resolve(path)


def _resolve(path: str) -> object:
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)


@pytest.mark.parametrize("name", ABSENT)
def test_names_that_vecrl_does_not_have_raise_when_they_are_used(name: str) -> None:
    absent = getattr(vecrl.envs, name)
    assert name not in vecrl.envs.__all__
    with pytest.raises(NotImplementedError, match=f"TorchRL's {name}"):
        absent("coinrun")
    assert getattr(vecrl.envs, name) is absent


def test_star_imports_have_the_names_of_the_source() -> None:
    namespace: dict[str, object] = {}
    exec("from vecrl.envs.transforms.transforms import *", namespace)
    assert namespace["Compose"] is vecrl.envs.Compose


def test_the_finder_is_installed_once_and_imports_nothing_early() -> None:
    code = (
        "import sys, vecrl.envs;"
        "vecrl.envs.aliases.install();"
        "print(sum(type(finder).__name__ == '_AliasFinder' for finder in sys.meta_path),"
        " 'vecrl.envs.common' in sys.modules, 'vecrl.envs.libs.gym' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["1", "False", "False"]


def test_spec_conversions_take_the_arguments_of_torchrl() -> None:
    from vecrl.envs.libs.gym import _gym_to_torchrl_spec_transform as to_spec
    from vecrl.envs.libs.gym import _torchrl_to_gym_spec_transform as to_gym

    space = spaces.Dict(state=spaces.Box(-1, 1, (3,)), choice=spaces.Discrete(3))
    spec = to_spec(space, batch_size=(2,), categorical_action_encoding=True)
    assert isinstance(spec, Composite)
    assert {key: tuple(part.shape) for key, part in spec.items()} == {"choice": (2,), "observation": (2, 3)}
    assert "state" in to_spec(space, remap_state_to_observation=False)
    assert to_gym(to_spec(spaces.Discrete(3)), categorical_action_encoding=True) == spaces.Discrete(3)


def test_rgb_to_grayscale_weighs_the_channels() -> None:
    image = torch.tensor([1.0, 10.0, 100.0]).view(3, 1, 1).expand(2, 3, 4, 5)
    torch.testing.assert_close(rgb_to_grayscale(image), torch.full((2, 1, 4, 5), 0.2989 + 5.87 + 11.4))
    assert rgb_to_grayscale(image, 3).shape == (2, 3, 4, 5)
    with pytest.raises(ValueError, match="to be 1 or 3"):
        rgb_to_grayscale(image, 2)
    with pytest.raises(ValueError, match=r"\[..., 3, height, width\]"):
        rgb_to_grayscale(image[:, :2])


def test_clear_mpi_env_vars_removes_them_in_the_context(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMPI_COMM", "1")
    monkeypatch.setenv("PMI_RANK", "2")
    with clear_mpi_env_vars():
        assert not {"OMPI_COMM", "PMI_RANK"} & os.environ.keys()
    assert (os.environ["OMPI_COMM"], os.environ["PMI_RANK"]) == ("1", "2")
