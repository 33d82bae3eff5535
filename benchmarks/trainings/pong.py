"""PPO of TorchRL's parts on frames of an Atari game, on TorchRL's environments, on vecrl's, or by its workers."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import wrappers
from gymnasium.spaces import Box
from tensordict.nn import TensorDictModule
from torch import Tensor, nn
from torch.distributions import Categorical
from torchrl.modules import ProbabilisticActor
from torchrl.objectives import ClipPPOLoss
from torchrl.objectives.value import GAE

from vecrl.envs.transforms.backbones import import_vision
from vecrl.vector import RolloutWorkers

from .log import Log
from .torchrl import ENVIRONMENTS, WORKERS, collect, learn

SIZE, FRAMES = 84, 4
PIXELS = np.ix_(np.arange(SIZE) * 210 // SIZE, np.arange(SIZE) * 160 // SIZE)  # of a frame, for one of this size


def make_single(env: str) -> Any:
    """Makes a game that observes its last four gray frames, uint8 `[4, 84, 84]`."""
    import ale_py

    gymnasium.register_envs(ale_py)
    made = gymnasium.make(env, obs_type="grayscale")
    small = wrappers.TransformObservation(made, lambda obs: obs[PIXELS], Box(0, 255, (SIZE, SIZE), np.uint8))
    return wrappers.FrameStackObservation(small, FRAMES)


def make_over_tensordicts(library: Any, env: str) -> Any:
    """Makes the same over TensorDicts, by transforms of the library, with the frames under "pixels" as floats."""
    import ale_py

    import_vision("torchvision")  # for TorchRL's transforms, also if it was built for another torch
    gymnasium.register_envs(ale_py)
    transforms = (
        *(library.ToTensorImage(), library.GrayScale(), library.Resize(SIZE, SIZE)),
        library.CatFrames(N=FRAMES, dim=-3),
    )
    made = library.GymEnv(env, from_pixels=True, pixels_only=True, frame_skip=4, categorical_action_encoding=True)
    return library.TransformedEnv(made, library.Compose(*transforms))


class Network(nn.Module):
    """A head on the features of four frames `[..., 4, 84, 84]`, floats in [0, 1]."""

    def __init__(self, outputs: int):
        super().__init__()
        self.layers = nn.Sequential(
            *(nn.Conv2d(FRAMES, 16, 8, 4), nn.ReLU(), nn.Conv2d(16, 32, 4, 2), nn.ReLU(), nn.Flatten()),
            *(nn.Linear(2592, 128), nn.ReLU(), nn.Linear(128, outputs)),
        )

    def forward(self, frames: Tensor) -> Tensor:
        return self.layers(frames.reshape(-1, *frames.shape[-3:])).reshape(*frames.shape[:-3], -1)


class WorkerPolicy(nn.Module):
    """The policy for workers, which also returns log-probabilities."""

    def __init__(self, network: Network):
        super().__init__()
        self.network = network

    @torch.no_grad()
    def forward(self, obs: Any) -> tuple[Tensor, dict[str, Tensor]]:
        policy = Categorical(logits=self.network(torch.from_numpy(obs) / 255))
        action = policy.sample()
        return action, {"action_log_prob": policy.log_prob(action)}


def train(way: str, seed: int, log: Log, *, env: str, envs: int, total: int, batch: int = 1024) -> None:
    """Trains for `total` frames, `batch` of them between two updates."""
    torch.manual_seed(seed)
    with make_single(env) as one:
        network = Network(int(one.action_space.n))
    critic = TensorDictModule(Network(1), in_keys=["pixels"], out_keys=["state_value"])
    module = TensorDictModule(network, in_keys=["pixels"], out_keys=["logits"])
    actor = ProbabilisticActor(module, in_keys=["logits"], distribution_class=Categorical, return_log_prob=True)
    advantage = GAE(gamma=0.99, lmbda=0.95, value_network=critic)
    loss = ClipPPOLoss(actor, critic, clip_epsilon=0.1, entropy_bonus=False, normalize_advantage=True)
    optimizer = torch.optim.Adam(loss.parameters(), 2.5e-4)
    steps, batches = 0, _batches(way, seed, log, env, envs, total, batch, actor, network)
    next(batches)  # makes the environments ready
    log.start()
    for data in batches:
        steps += data.numel()
        log.add(steps, 1000 * float(data["next", "reward"].mean()))
        with torch.no_grad():
            data = advantage(data).reshape(-1)
        learn(loss, optimizer, data, epochs=2, minibatches=4, norm=0.5)


def _batches(
    way: str, seed: int, log: Log, env: str, envs: int, total: int, batch: int, actor: Any, network: Network
) -> Iterator[Any]:
    """Yields None when the environments are ready, and then batches of frames."""
    if way == WORKERS:
        policy = WorkerPolicy(network)
        with RolloutWorkers([partial(make_single, env)] * envs, policy, num_workers=2, seed=seed) as workers:
            workers.rollout(1)
            rollout = log.timed(workers.rollout)
            yield None
            for _ in range(total // batch):
                data = rollout(batch // envs, policy.state_dict()).to_tensordict()
                for part in (data, data["next"]):
                    part["pixels"] = part.pop("observation") / 255
                yield data
        return
    library, cls = ENVIRONMENTS[way]
    made = getattr(library, cls)(envs, partial(make_over_tensordicts, library, env))
    yield from collect(made, actor, seed, log, batch, total)
