"""Environments and a population on the nodes of a Ray cluster, which continue if a node is lost.

python examples/cluster.py --here            # two nodes on this machine; one is killed during the run
python examples/cluster.py --address auto    # the cluster of this machine (docs/clusters.md)
"""

import argparse
import logging
import os
import time
from collections import Counter
from contextlib import contextmanager

import gymnasium
import numpy as np
import torch

from vecrl.policy.population import PopulationEvaluator
from vecrl.vector import RayOptions, VectorEnv


class Placed(gymnasium.Wrapper):
    """CartPole with a method that returns its node. Classes of the script are pickled by value."""

    def __init__(self):
        super().__init__(gymnasium.make("CartPole-v1"))

    def node(self):
        import ray

        return ray.get_runtime_context().get_node_id()[:8]


@contextmanager
def two_nodes_here():
    """Starts a cluster of two nodes on this machine; yields its address, and a function that kills one node."""
    os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # keeps Ray to the loopback address
    from ray.cluster_utils import Cluster

    small = {"num_cpus": 2, "object_store_memory": 100 * 2**20}
    cluster = Cluster(initialize_head=True, head_node_args={**small, "include_dashboard": False})
    other = cluster.add_node(**small)
    yield cluster.address, lambda: cluster.remove_node(other, allow_graceful=False)
    cluster.shutdown()


def step_environments(options, num_envs=8, num_workers=2, steps=300):
    """Runs the same steps on all nodes and in this process."""
    totals = {}
    for place in ({"backend": "ray", "num_workers": num_workers, "ray_options": options}, {"backend": "serial"}):
        with VectorEnv([Placed] * num_envs, **place) as envs:
            if place["backend"] == "ray":
                print("environments on each node:", dict(Counter(envs.call("node"))))
            envs.reset(seed=1)
            started = time.perf_counter()
            totals[place["backend"]] = sum(envs.step(np.arange(num_envs) % 2)[1].sum() for _ in range(steps))
            print(f"{place['backend']}: {num_envs * steps / (time.perf_counter() - started):,.0f} steps/s")
    assert totals["ray"] == totals["serial"], "equal seeds give equal rewards on every backend"


def evaluate(kill=None, popsize=16, generations=12, **place):
    """Returns the mean returns of a population in each generation; calls `kill` before the third."""
    net = "Linear(obs_length, 16) >> Tanh() >> Linear(16, act_length)"
    with PopulationEvaluator(Placed, net, popsize, num_episodes=3, seed=1, **place) as evaluator:
        population = 0.3 * torch.randn(popsize, evaluator.parameter_length, generator=torch.Generator().manual_seed(0))
        means = []
        for generation in range(generations):
            if generation == 2 and kill is not None:
                kill()
                print("killed a node")
            means.append(evaluator(population).returns.mean().item())
    return means


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--address", help="address of a cluster: auto, or host:port")
    parser.add_argument("--here", action="store_true", help="make a cluster of two nodes on this machine")
    arguments = parser.parse_args()
    logging.basicConfig(format="%(name)s: %(message)s")  # lost workers are logged
    if arguments.here:
        with two_nodes_here() as (address, kill):
            run(address, kill)
    else:
        run(arguments.address, None)


def run(address, kill):
    options = RayOptions(address=address, placement_strategy="SPREAD")
    step_environments(options)
    means = evaluate(kill, backend="ray", num_workers=2, ray_options=options)
    assert means == evaluate(backend="serial"), "a lost node does not change the results"
    print("mean returns:", *[round(mean, 2) for mean in means])


if __name__ == "__main__":
    main()
