"""habitat-lab from the package index, on an interpreter of its own, since it needs an older gym.

Only what is below it, habitat-sim, has stand-ins; so the environment is one that these tests register with habitat-lab.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any

import pytest
import torch

from vecrl.envs import HabitatEnv, check_env_specs
from vecrl.vector import make_vector_env

pytestmark = pytest.mark.simulators

FIXTURES = Path(__file__).parents[1] / "fixtures"
OPTIONS: dict[str, Any] = {
    "cfg_file_path": "benchmark/rearrange/skills/pick.yaml",
    "override_options": [
        "habitat.env_task=Room",
        "habitat.dataset.type=NoScenes",
        "habitat.environment.max_episode_steps=3",
    ],
}
IN_THE_CALLER = """
import json, sys
import habitat.gym, habitat_room
from vecrl.envs import HabitatEnv
from vecrl.simulators.availability import available

options = json.loads(sys.argv[1])
env = HabitatEnv("Habitat-v0", from_pixels=True, pixels_only=False, **options)
try:
    HabitatEnv("CartPole-v1")
except ValueError as error:
    message = str(error)
result = {
    "names": HabitatEnv.available_envs,
    "are_available": sorted(available("habitat").names) == sorted(HabitatEnv.available_envs),
    "message": message,
    "shapes": {key: list(value.shape) for key, value in env.rollout(9)["next"].items()},
}
print(json.dumps(result))
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """An interpreter with habitat-lab, the packages of this one, and the stand-ins."""
    folder = tmp_path_factory.mktemp("habitat")
    venv.create(folder, symlinks=True, with_pip=False)
    site_packages = next(folder.glob("lib/python*/site-packages"))
    packages = [path for path in sys.path if path.endswith("site-packages")]
    lines = [str(Path(sys.prefix) / "habitat"), *packages, str(FIXTURES), "import habitat_stand_in"]
    (site_packages / "habitat.pth").write_text("\n".join(lines))
    return str(folder / "bin/python")


def test_environments_are_made_on_another_interpreter(python: str) -> None:
    options = {**OPTIONS, "python": python, "modules": ("habitat_room",)}
    env = HabitatEnv("Habitat-v0", categorical_action_encoding=True, from_pixels=True, pixels_only=False, **options)
    check_env_specs(env)
    rollout = env.rollout(9)
    assert rollout.shape == (3,)
    assert rollout["depth"].shape == (3, 8, 8, 1)
    assert rollout["place"][:, 1].tolist() == [0, 1, 2]
    assert rollout["next", "reward"][:, 0].tolist() == rollout["action"].tolist()
    frames = rollout["next", "pixels"]
    assert (tuple(frames.shape), frames[:, 0, 0, 0].tolist()) == ((3, 6, 7, 3), [1, 2, 3])
    starts = [env.set_seed(seed) and env.reset()["place"] for seed in (3, 3, 4)]
    assert torch.equal(starts[0], starts[1])
    assert not torch.equal(starts[0], starts[2])
    env.close()


def test_workers_use_another_interpreter(python: str) -> None:
    options = {**OPTIONS, "python": python, "modules": ("habitat_room",)}
    with make_vector_env("habitat::Habitat-v0", num_envs=2, backend="processes", num_workers=1, **options) as env:
        env.reset(seed=3)
        assert env.step(env.action_space.sample())[1].shape == (2,)


def test_environments_are_made_in_the_caller(python: str) -> None:
    """This process has another gym, so the caller is a process of that interpreter, with vecrl."""
    program = [python, "-c", IN_THE_CALLER, json.dumps(OPTIONS)]
    source = str(Path(__file__).parents[2] / "src")
    run = subprocess.run(program, env={**os.environ, "PYTHONPATH": source}, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    result = json.loads(run.stdout.splitlines()[-1])
    assert {"Habitat-v0", "HabitatPick-v0", "HabitatRenderPick-v0"} <= set(result["names"])
    assert result["are_available"]
    assert "got 'CartPole-v1'. There are Habitat" in result["message"]
    shapes = {"depth": [3, 8, 8, 1], "place": [3, 2], "pixels": [3, 6, 7, 3], "reward": [3, 1]}
    assert shapes.items() <= result["shapes"].items()
