"""vecrl's checkpoints: everything that a training job needs to resume, in one file."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import torch

from benchmarks.implementation import Measurement, RunFactory
from benchmarks.stopwatch import watch
from vecrl import checkpoint
from vecrl.policy.obs_norm import RunningNorm
from vecrl.simulators.native import make_native
from vecrl.vector import BatchedVectorEnv

torch.set_num_threads(1)


def save_and_load(num_envs: int, what: str) -> RunFactory:
    """A checkpoint of native environments, statistics, a policy of two layers of 256 and its optimizer.

    A unit of "save" is a save minus the time of the disk for as many bytes; of "disk", that time; of "load", a load.
    """
    objects = _job(num_envs)
    with tempfile.TemporaryDirectory(dir=Path(__file__).parents[2]) as folder:
        path, raw = Path(folder) / "run.ckpt", Path(folder) / "raw"
        checkpoint.save(path, steps=0, **objects)
        size = path.stat().st_size

        def disk() -> None:
            with raw.open("wb") as file:
                file.write(bytes(size))
                file.flush()
                os.fsync(file.fileno())

        def save() -> None:
            checkpoint.save(path, steps=0, **objects)

        def run(units: int) -> Measurement:
            if what == "save":
                return Measurement(max(1e-6, watch(save, units) - watch(disk, units)), units)
            return Measurement(
                watch(disk if what == "disk" else lambda: checkpoint.load(path, **objects), units), units
            )

        yield run
    objects["envs"].close()


def _job(num_envs: int) -> dict[str, Any]:
    envs = BatchedVectorEnv(make_native("CartPole-v1", num_envs), episode_stats=True)
    obs, _ = envs.tensor_reset(seed=0)
    norm = RunningNorm(shape=4)
    norm.update(obs)
    net = torch.nn.Sequential(
        torch.nn.Linear(4, 256), torch.nn.Tanh(), torch.nn.Linear(256, 256), torch.nn.Linear(256, 2)
    )
    optimizer = torch.optim.Adam(net.parameters())
    net(obs).sum().backward()
    optimizer.step()
    return {"envs": envs, "norm": norm, "net": net, "optimizer": optimizer}
