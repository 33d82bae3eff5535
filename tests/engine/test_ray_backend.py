"""Ray actors: placement, process environment, and cleanup of a Ray that vecrl started."""

import os
import re
import signal
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from tests.fixtures.faulty_envs import FaultyEnv
from tests.fixtures.pools import make_pool
from tests.fixtures.processes import running, wait_until
from tests.fixtures.ray_cluster import TestCluster
from tests.fixtures.scripts import Script

from vecrl.engine.backends.worker_options import RayOptions
from vecrl.engine.pool import Pool
from vecrl.engine.worker import Command, Op
from vecrl.errors import WorkerCrash

ACTIONS = np.zeros(4, int)


class ProcessInfoEnv(FaultyEnv):
    """Answers questions about its process."""

    def ask(self, question: str) -> Any:
        return eval(question, {"os": os, "sys": sys})

    def node(self) -> str:
        import ray

        return ray.get_runtime_context().get_node_id()


def ask(pool: Pool, name: str, *arguments: Any) -> list[Any]:
    return pool.invoke("call", name, [(arguments, {})] * pool.num_envs)


@pytest.mark.ray
def test_actors_follow_placement_options(cluster: TestCluster) -> None:
    head = cluster.head.node_id
    with cluster.node(simulators=1) as node:
        for options, homes in (
            (RayOptions(placement_strategy="STRICT_SPREAD"), {head, node.node_id}),
            (RayOptions(placement_strategy="STRICT_PACK", num_cpus=0.5), None),
            (RayOptions(resources={"simulators": 0.5}), {node.node_id}),
        ):
            pool = make_pool([ProcessInfoEnv] * 2, "ray", ray_options=options)
            found = set(ask(pool, "node"))
            assert found == homes or (homes is None and len(found) == 1)
            pool.close()


@pytest.mark.ray
def test_unplaced_actors_raise_after_the_start_timeout(cluster: TestCluster) -> None:
    options = RayOptions(resources={"unicorns": 1}, start_timeout=0.5)
    requested = "requests 1 CPU, 1 unicorns, did not start within 0.5 s"
    reported = rf"(?s)environments 0, 1 .*{requested}; free in the cluster: [0-9]+ CPU"
    with pytest.raises(WorkerCrash, match=reported):
        make_pool([FaultyEnv] * 2, "ray", ray_options=options)
    with pytest.raises(ValueError, match=f"Expected address '{cluster.address}'.*got 'localhost:1'"):
        make_pool([FaultyEnv], "ray", 1, ray_options=RayOptions(address="localhost:1"))
    pool = make_pool([FaultyEnv], "ray", 1, ray_options=RayOptions(address=cluster.address))
    assert pool.reset().obs.shape == (1, 3)
    pool.close()


@pytest.mark.ray
def test_actors_sent_to_dead_nodes_start_elsewhere(cluster: TestCluster) -> None:
    with cluster.node(num_cpus=50) as node:
        cluster.kill(node)
        pool = make_pool([ProcessInfoEnv] * 2, "ray", ray_options=RayOptions(placement_strategy="SPREAD"))
        assert set(ask(pool, "node")) == {cluster.head.node_id}
        pool.close()


@pytest.mark.ray
def test_environments_run_in_own_processes_with_thread_limits() -> None:
    pool = make_pool([ProcessInfoEnv] * 2, "ray", threads_per_worker=3, ray_options=RayOptions(num_cpus=0))
    pids = ask(pool, "ask", "os.getpid()")
    assert len({*pids, os.getpid()}) == 3
    assert ask(pool, "ask", "os.environ['OMP_NUM_THREADS'], 'torch' in sys.modules") == [("3", False)] * 2
    pool.close()


@pytest.mark.ray
def test_crashed_actors_are_replaced() -> None:
    """Through the pool: a crashed actor is closed, replaced and used again."""
    pool = make_pool([ProcessInfoEnv] * 4, "ray")
    pool.reset()
    backend: Any = pool._backend
    before = ask(pool, "ask", "os.getpid()")
    backend.send([(0, Command(Op.STEP, 7))])
    assert backend.kill(0)
    backend.respawn(0)
    ((worker, seq, report),) = backend.receive(20.0)
    assert (worker, seq, report.result.num_envs) == (0, 0, 2), "no answer to what the lost one was asked"
    backend.reattach(0)
    assert backend.receive(5.0) == [(0, 0, None)]
    assert pool.reset().obs[:, 1].tolist() == [0, 0, 1, 1]
    after = ask(pool, "ask", "os.getpid()")
    assert (after[2:], after[0] == before[0]) == (before[2:], False)
    pool.close()


@pytest.mark.ray
def test_killed_nodes_are_detected_and_workers_restart_elsewhere(cluster: TestCluster) -> None:
    with cluster.node() as node:
        pool = make_pool([ProcessInfoEnv] * 4, "ray", ray_options=RayOptions(placement_strategy="STRICT_SPREAD"))
        pool.reset()
        lost = ask(pool, "node").index(node.node_id) // 2
        cluster.kill(node)
        ids = [2 * lost, 2 * lost + 1]
        reported = rf"environments {ids[0]}, {ids[1]} .*on node {node.node_id[:8]} is lost"
        with pytest.raises(WorkerCrash, match=reported):  # noqa: PT012
            for _ in range(100_000):
                pool.step(ACTIONS)
        backend: Any = pool._backend
        backend.respawn(lost)
        assert backend.receive(30.0)[0][2].result.num_envs == 2
        backend.reattach(lost)
        assert backend.receive(5.0) == [(lost, 0, None)]
        del pool._pending.crashed[lost]
        assert pool.reset().obs[:, 2].tolist() == [0] * 4
        assert node.node_id not in ask(pool, "node")
        pool.close()


# -- a Ray started by vecrl ------------------------------------------------------------------------


@pytest.mark.ray
def test_working_dir_is_uploaded(cluster: TestCluster, tmp_path: Path) -> None:
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
def test_working_dir_raises_when_already_connected(tmp_path: Path) -> None:
    options = RayOptions(runtime_env={"working_dir": str(tmp_path)})
    with pytest.raises(ValueError, match=r"folders are uploaded only when it connects.*ray.init\(runtime_env="):
        make_pool([FaultyEnv], "ray", ray_options=options)


@pytest.mark.ray
def test_runtime_env_variables_are_set() -> None:
    pool = make_pool(
        [ProcessInfoEnv], "ray", 1, ray_options=RayOptions(runtime_env={"env_vars": {"VECRL_ASKED": "yes"}})
    )
    assert ask(pool, "ask", "os.environ['VECRL_ASKED']") == ["yes"]
    pool.close()


@pytest.mark.ray
def test_nodes_without_vecrl_raise(cluster: TestCluster, tmp_path: Path) -> None:
    """As on a node where Python finds another module named vecrl."""
    (tmp_path / "shipped").mkdir()
    (tmp_path / "shipped" / "vecrl.py").write_text("")
    script = Script(
        f"""
    from vecrl.errors import WorkerCrash
    from vecrl.vector import RayOptions
    options = RayOptions(address={cluster.address!r}, runtime_env={{"working_dir": {str(tmp_path / "shipped")!r}}})
    try:
        VectorEnv([FaultyEnv], backend="ray", ray_options=options)
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
    class Noting(FaultyEnv):
        def close(self):
            open(f"closed-{self.env_id}", "x").close()
        def where(self):
            return os.environ["ASKED"], os.environ["OMP_NUM_THREADS"], os.getcwd()
    envs = VectorEnv([partial(Noting, i) for i in range(4)], backend="ray", num_workers=2)
    envs.reset()
"""


@pytest.mark.ray
def test_scripts_start_a_quiet_ray_and_leave_no_processes(tmp_path: Path) -> None:
    script = Script(
        f"    os.chdir({str(tmp_path)!r})"
        + BODY
        + """
    say(envs.step(np.zeros(4, int))[1].tolist())
    say(envs.call("where")[3])
    family = [psutil.Process(), *psutil.Process().children(recursive=True)]
    listening = {c.laddr.ip for p in family for c in p.net_connections("inet") if c.status == "LISTEN"}
    say(all(ip in ("127.0.0.1", "::1", "::ffff:127.0.0.1") for ip in listening) or listening)
    other = VectorEnv([FaultyEnv], backend="ray")
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
    assert wait_until(lambda: not script.others()), script.others()


@pytest.mark.ray
@pytest.mark.parametrize(("send", "how"), [(os.kill, signal.SIGKILL), (os.killpg, signal.SIGINT)])
def test_killed_or_interrupted_scripts_leave_no_processes(send: Any, how: signal.Signals, tmp_path: Path) -> None:
    """Ray's own processes end too, if only the script is killed."""
    script = Script(
        f"    os.chdir({str(tmp_path)!r})"
        + BODY
        + """
    say("stepping")
    while True:
        envs.step(np.zeros(4, int))
    """,
        tmp_path,
    )
    script.wait_for("stepping")
    begin = time.monotonic()
    family = psutil.Process(script.process.pid).children(recursive=True)
    send(script.process.pid, how)
    _, err = script.process.communicate(timeout=20.0)
    wait_until(lambda: not running(family), 2.0 if how == signal.SIGKILL else 8.0)
    assert not running(family)
    assert time.monotonic() - begin < 8.0
    assert script.process.returncode
    assert err.strip().endswith("KeyboardInterrupt" if how == signal.SIGINT else "")


@pytest.mark.ray
def test_the_block_of_the_page_runs(cluster: TestCluster) -> None:
    page = (Path(__file__).parents[2] / "docs" / "clusters.md").read_text()
    (block,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    names: dict[str, Any] = {}
    with cluster.node(num_cpus=4):
        exec(compile(block, "clusters.md", "exec"), names)
    assert names["obs"].shape == (64, 4)


@pytest.mark.ray
def test_long_commands_of_several_actors_are_stored_once(monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    stored, put = [], ray.put
    monkeypatch.setattr(ray, "put", lambda value: stored.append(len(value)) or put(value))
    pool = make_pool([FaultyEnv] * 3, "ray", 3)
    pool.invoke("set", "note", [bytes(200_000)] * 3)
    pool.invoke("set", "short", [bytes(100)] * 3)
    assert len(stored) == 1
    assert stored[0] >= 200_000
    pool.invoke("set", "note", [bytes(200_000), bytes(200_001), bytes(200_002)])
    assert len(stored) == 1, "different commands are sent with the calls"
    assert [len(note) for note in pool.invoke("get", "note")] == [200_000, 200_001, 200_002]
    assert [len(note) for note in pool.invoke("get", "short")] == [100] * 3
    pool.close()
