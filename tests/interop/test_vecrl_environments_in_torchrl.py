"""vecrl's environments in TorchRL's `TransformedEnv`, `SerialEnv`, `ParallelEnv` and length limits of collectors."""

from functools import partial
from typing import Any

import pytest
import torch
from tensordict import TensorDictBase

from vecrl.envs import EnvBase, GymEnv, SerialEnv, TransformedEnv
from vecrl.envs.transforms import Compose, RewardSum, StepCounter

pytestmark = [pytest.mark.torchrl, pytest.mark.peers, pytest.mark.filterwarnings("ignore")]

OBS = ["observation"]
pendulum = partial(GymEnv, "Pendulum-v1")


def transformed(max_steps: int = 4) -> EnvBase:
    return TransformedEnv(pendulum(), Compose(StepCounter(max_steps), RewardSum()))


def rollout(env: Any) -> TensorDictBase:
    env.set_seed(5)
    torch.manual_seed(5)
    data = env.rollout(9, break_when_any_done=False)
    env.close()
    return data


SOURCES = {
    "single": pendulum,
    "transformed": lambda: TransformedEnv(pendulum(), RewardSum()),
    "batch": partial(SerialEnv, 2, pendulum),
}


@pytest.mark.parametrize("source", SOURCES)
def test_collectors_limit_the_frames_of_trajectories(source: str) -> None:
    from torchrl.collectors import Collector

    env = SOURCES[source]()
    frames = 10 * env.numel()
    collector = Collector(env, None, frames_per_batch=frames, total_frames=2 * frames, max_frames_per_traj=4)
    first, second = (data.clone() for data in collector)
    collector.shutdown()
    truncated = torch.cat([first, second], -1)["next", "truncated"].squeeze(-1)
    assert truncated.equal((torch.arange(20) % 4 == 3).expand(truncated.shape))


@pytest.mark.parametrize("source", SOURCES)
def test_torchrls_transformed_env_is_vecrls(source: str) -> None:
    from torchrl import envs

    def transform() -> Any:
        return envs.Compose(envs.StepCounter(4), envs.ObservationNorm(1.0, 2.0, in_keys=OBS))

    base = SOURCES[source]()
    env = envs.TransformedEnv(base_env=base, transform=transform())
    assert isinstance(env, TransformedEnv)
    assert isinstance(env, envs.TransformedEnv)
    assert env.base_env is base
    env.check_env_specs()
    expected = rollout(TransformedEnv(SOURCES[source](), transform()))
    actual = rollout(env)
    assert actual["next", "truncated"].sum() == 2 * base.numel()
    assert (actual == expected).all()


def test_torchrls_transformed_env_of_torchrls_environments_is_torchrls() -> None:
    from torchrl import envs

    class Counted(envs.TransformedEnv):
        def __init__(self, env: Any) -> None:
            super().__init__(env, envs.StepCounter(4))

    env = Counted(envs.GymEnv("Pendulum-v1"))
    assert type(env) is Counted
    assert rollout(env)["next", "truncated"].sum() == 2
    assert type(envs.TransformedEnv(env)) is envs.TransformedEnv
    with pytest.raises(TypeError, match=r"Derive Counted from vecrl\.envs\.TransformedEnv\.$"):
        Counted(pendulum())


@pytest.mark.parametrize("batch", ["SerialEnv", "ParallelEnv"])
def test_torchrls_batches_of_transformed_environments(batch: str) -> None:
    from torchrl import envs

    expected = rollout(SerialEnv(2, transformed))
    settings = {"mp_start_method": "fork"} if batch == "ParallelEnv" else {}  # other methods import TorchRL in workers
    actual = rollout(getattr(envs, batch)(2, transformed, **settings))
    assert actual["next", "truncated"].sum() == 4
    for key in expected.keys(True, True):
        assert actual[key].equal(expected[key]), key


def test_torchrls_batches_check_torchrls_transforms() -> None:
    from torchrl import envs

    class Outer(envs.Transform):
        def _check_batched_worker_compat(self) -> None:
            raise RuntimeError("not in a batch")

    with pytest.raises(RuntimeError, match="not in a batch"):
        envs.SerialEnv(2, lambda: TransformedEnv(pendulum(), Outer())).reset()


def test_attributes_that_scripts_read_are_those_of_torchrl() -> None:
    from torchrl import envs as theirs

    from vecrl import envs as own

    read: list[dict[str, object]] = []
    for library in (theirs, own):
        gym = library.GymEnv("Pendulum-v1", frame_skip=2, device="cpu", g=9.0)
        env = library.TransformedEnv(gym, library.StepCounter())
        names = ("env_name", "libname", "lib", "frame_skip", "from_pixels", "pixels_only", "device", "batch_size")
        arguments = {name: gym._constructor_kwargs[name] for name in ("env_name", "g")}
        read.append({name: getattr(env, name) for name in names} | arguments | {"unwrapped": env.unwrapped.g})
        assert "Pendulum-v1" in gym.available_envs
    assert read[0] == read[1]


def test_constructor_arguments_are_not_part_of_the_state() -> None:
    env, other = pendulum(), pendulum(g=9.0)
    other.set_state(env.get_state())
    assert other._constructor_kwargs == {"env_name": "Pendulum-v1", "g": 9.0}
    batch = SerialEnv(2, pendulum)
    assert batch.env_name == ["Pendulum-v1"] * 2
