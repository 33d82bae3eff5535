"""Actors of a cluster: where they are placed, what they live in, and what is left of a Ray of our own."""

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.clusters import TestCluster, wait_for
from tests.faults.test_leftovers import Script
from tests.faults.zoo import Counting, make_pool

from vecrl.engine.backends.cluster import RayOptions
from vecrl.engine.pool import Pool
from vecrl.engine.worker import Command, Op
from vecrl.errors import WorkerCrash

ACTIONS = np.zeros(4, int)


class Asked(Counting):
    """Answers questions about its process."""

    def ask(self, question: str) -> Any:
        return eval(question, {"os": os, "sys": sys})

    def node(self) -> str:
        import ray

        return ray.get_runtime_context().get_node_id()


def ask(pool: Pool, name: str, *arguments: Any) -> list[Any]:
    return pool.invoke("call", name, [(arguments, {})] * pool.num_envs)


@pytest.mark.ray
def test_actors_are_placed_as_the_options_say(cluster: TestCluster) -> None:
    head = cluster.head.node_id
    with cluster.node(simulators=1) as node:
        for options, homes in (
            (RayOptions(placement_strategy="STRICT_SPREAD"), {head, node.node_id}),
            (RayOptions(placement_strategy="STRICT_PACK", num_cpus=0.5), None),
            (RayOptions(resources={"simulators": 0.5}), {node.node_id}),
        ):
            pool = make_pool([Asked] * 2, "ray", ray_options=options)
            found = set(ask(pool, "node"))
            assert found == homes or (homes is None and len(found) == 1)
            pool.close()


@pytest.mark.ray
def test_actors_without_a_place_are_an_error_in_time(cluster: TestCluster) -> None:
    options = RayOptions(resources={"unicorns": 1}, start_timeout=0.5)
    told = r"(?s)environment 0 .*claims 1 CPU, 1 unicorns, did not begin within 0.5 s; free in the cluster: [0-9]+ CPU"
    with pytest.raises(WorkerCrash, match=told):
        make_pool([Counting] * 2, "ray", ray_options=options)
    with pytest.raises(ValueError, match=f"Expected address '{cluster.address}'.*but 'localhost:1' came"):
        make_pool([Counting], "ray", 1, ray_options=RayOptions(address="localhost:1"))
    pool = make_pool([Counting], "ray", 1, ray_options=RayOptions(address=cluster.address))
    assert pool.reset().obs.shape == (1, 3)
    pool.close()


@pytest.mark.ray
def test_an_actor_that_is_sent_to_a_node_that_is_gone_begins_elsewhere(cluster: TestCluster) -> None:
    with cluster.node(num_cpus=50) as node:
        cluster.kill(node)
        pool = make_pool([Asked] * 2, "ray", ray_options=RayOptions(placement_strategy="SPREAD"))
        assert set(ask(pool, "node")) == {cluster.head.node_id}
        pool.close()


@pytest.mark.ray
def test_environments_live_in_processes_of_their_own_with_their_threads() -> None:
    pool = make_pool([Asked] * 2, "ray", threads_per_worker=3, ray_options=RayOptions(num_cpus=0))
    pids = ask(pool, "ask", "os.getpid()")
    assert len({*pids, os.getpid()}) == 3
    assert ask(pool, "ask", "os.environ['OMP_NUM_THREADS'], 'torch' in sys.modules") == [("3", False)] * 2
    pool.close()


@pytest.mark.ray
def test_another_takes_the_place_of_one_that_is_gone() -> None:
    """As the pool has it: end, replace, rejoin."""
    pool = make_pool([Asked] * 4, "ray")
    pool.reset()
    backend: Any = pool._backend
    before = ask(pool, "ask", "os.getpid()")
    backend.send([(0, Command(Op.STEP, 7))])
    assert backend.end(0)
    backend.replace(0)
    ((worker, seq, report),) = backend.receive(20.0)
    assert (worker, seq, report.result.num_envs) == (0, 0, 2), "no answer to what the lost one was asked"
    backend.rejoin(0)
    assert backend.receive(5.0) == [(0, 0, None)]
    assert pool.reset().obs[:, 1].tolist() == [0, 0, 1, 1]
    after = ask(pool, "ask", "os.getpid()")
    assert (after[2:], after[0] == before[0]) == (before[2:], False)
    pool.close()


@pytest.mark.ray
def test_a_node_that_is_killed_is_noticed_and_its_workers_begin_elsewhere(cluster: TestCluster) -> None:
    with cluster.node() as node:
        pool = make_pool([Asked] * 4, "ray", ray_options=RayOptions(placement_strategy="STRICT_SPREAD"))
        pool.reset()
        lost = ask(pool, "node").index(node.node_id) // 2
        cluster.kill(node)
        ids = [2 * lost, 2 * lost + 1]
        told = rf"environments {ids[0]}, {ids[1]} .*on node {node.node_id[:8]} is gone"
        with pytest.raises(WorkerCrash, match=told):  # noqa: PT012
            for _ in range(100_000):
                pool.step(ACTIONS)
        backend: Any = pool._backend
        backend.replace(lost)
        assert backend.receive(30.0)[0][2].result.num_envs == 2
        backend.rejoin(lost)
        assert backend.receive(5.0) == [(lost, 0, None)]
        del pool._flights.dead[lost]
        assert pool.reset().obs[:, 2].tolist() == [0] * 4
        assert node.node_id not in ask(pool, "node")
        pool.close()


# -- a Ray of one's own ----------------------------------------------------------------------------


@pytest.mark.ray
def test_a_folder_is_shipped_to_the_nodes(cluster: TestCluster, tmp_path: Path) -> None:
    (tmp_path / "homemade.py").write_text(
        "import gymnasium\n"
        "class Homemade(gymnasium.Wrapper):\n"
        "    def __init__(self):\n"
        "        super().__init__(gymnasium.make('CartPole-v1'))\n"
        "    def where(self):\n"
        "        return __file__\n"
    )
    script = Script(
        f"""
    from homemade import Homemade
    from vecrl.vector import RayOptions
    options = RayOptions(address={cluster.address!r}, runtime_env={{"working_dir": {str(tmp_path)!r}}})
    for _ in range(2):
        with VectorEnv([Homemade] * 2, backend="ray", num_workers=2, ray_options=options) as envs:
            say([(os.path.basename(place), {str(tmp_path)!r} in place) for place in envs.call("where")])
    """,
        tmp_path,
    )
    code, out, err = script.finish(60.0)
    assert (code, err) == (0, "")
    assert out.splitlines() == [str([("homemade.py", False)] * 2)] * 2, "found, and not in the caller's own folder"


@pytest.mark.ray
def test_a_folder_is_not_shipped_by_a_process_that_is_connected(tmp_path: Path) -> None:
    options = RayOptions(runtime_env={"working_dir": str(tmp_path)})
    with pytest.raises(ValueError, match=r"folders are shipped only then.*ray.init\(runtime_env="):
        make_pool([Counting], "ray", ray_options=options)


@pytest.mark.ray
def test_variables_of_a_runtime_environment_are_there() -> None:
    pool = make_pool([Asked], "ray", 1, ray_options=RayOptions(runtime_env={"env_vars": {"VECRL_ASKED": "yes"}}))
    assert ask(pool, "ask", "os.environ['VECRL_ASKED']") == ["yes"]
    pool.close()


@pytest.mark.ray
def test_a_node_without_this_library_is_told(cluster: TestCluster, tmp_path: Path) -> None:
    """As one is where the Python finds something else under its name."""
    (tmp_path / "shipped").mkdir()
    (tmp_path / "shipped" / "vecrl.py").write_text("")
    script = Script(
        f"""
    from vecrl.errors import WorkerCrash
    from vecrl.vector import RayOptions
    options = RayOptions(address={cluster.address!r}, runtime_env={{"working_dir": {str(tmp_path / "shipped")!r}}})
    try:
        VectorEnv([Counting], backend="ray", ray_options=options)
    except WorkerCrash as error:
        say(str(error).splitlines()[0])
    """,
        tmp_path,
    )
    code, out, err = script.finish(60.0)
    assert (code, err) == (0, "")
    assert "every node needs the same Python, vecrl and Ray" in out


BODY = """
    import psutil, ray
    os.environ.pop("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER")
    os.environ["ASKED"] = "here"
    class Noting(Counting):
        def close(self):
            open(f"closed-{self.env_id}", "x").close()
        def where(self):
            return os.environ["ASKED"], os.environ["OMP_NUM_THREADS"], os.getcwd()
    envs = VectorEnv([partial(Noting, i) for i in range(4)], backend="ray", num_workers=2)
    envs.reset()
"""


@pytest.mark.ray
def test_a_script_has_a_ray_of_its_own_that_is_quiet_and_leaves_nothing(tmp_path: Path) -> None:
    script = Script(
        f"    os.chdir({str(tmp_path)!r})"
        + BODY
        + """
    say(envs.step(np.zeros(4, int))[1].tolist())
    say(envs.call("where")[3])
    family = [psutil.Process(), *psutil.Process().children(recursive=True)]
    listening = {c.laddr.ip for p in family for c in p.net_connections("inet") if c.status == "LISTEN"}
    say(all(ip in ("127.0.0.1", "::1", "::ffff:127.0.0.1") for ip in listening) or listening)
    other = VectorEnv([Counting], backend="ray")
    say(other.reset()[0].shape)
    other.close()
    say(ray.is_initialized())
    """,
        tmp_path,
    )
    code, out, err = script.finish(60.0)
    assert (code, err) == (0, "")
    home = str(("here", "1", str(tmp_path)))
    assert out.splitlines() == ["[1.0, 1.0, 1.0, 1.0]", home, "True", "(1, 3)", "True"]
    assert sorted(path.name for path in tmp_path.glob("closed-*")) == [f"closed-{i}" for i in range(4)]
    assert wait_for(lambda: not script.others()), script.others()


@pytest.mark.ray
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_script_that_is_killed_or_interrupted_leaves_nothing(how: signal.Signals, tmp_path: Path) -> None:
    script = Script(
        BODY
        + """
    say("stepping")
    while True:
        envs.step(np.zeros(4, int))
    """,
        tmp_path,
    )
    script.wait_for("stepping")
    begin = time.monotonic()
    os.killpg(script.process.pid, how)
    code, _, err = script.finish(20.0)
    assert time.monotonic() - begin < 8.0
    assert code
    assert err.strip().endswith("KeyboardInterrupt" if how == signal.SIGINT else "")
    assert wait_for(lambda: not script.others()), script.others()
