"""However a script ends, its workers, their child processes and the shared memory end with it."""

import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.fixtures.processes import wait_until
from tests.fixtures.scripts import Script


@pytest.fixture
def run(tmp_path: Path) -> Iterator[type]:
    """Starts scripts. Afterwards, checks that all their processes end within two seconds."""
    scripts: list[Script] = []

    def start(body: str) -> Script:
        scripts.append(Script(body, tmp_path))
        return scripts[-1]

    shared = set(os.listdir("/dev/shm"))
    yield start  # type: ignore[misc]
    for script in scripts:
        ended = wait_until(lambda: script.process.poll() is not None, 2.0)  # noqa: B023
        remaining = wait_until(lambda: not script.others(), 2.0) or script.others()  # noqa: B023
        for process in script.others():
            process.kill()
        script.process.kill()
        script.process.communicate()
        assert ended, "the script itself did not end"
        assert remaining is True, f"left behind: {remaining}"
    assert not {name for name in set(os.listdir("/dev/shm")) - shared if "vecrl" in name}


ENDINGS = {
    "normally": ("", 0, ""),
    "by an exception": ("raise RuntimeError('a bug in the script')", 1, "RuntimeError: a bug in the script"),
    "by sys.exit": ("sys.exit(5)", 5, ""),
    "by os._exit": ("os._exit(6)", 6, ""),
    "by SIGTERM": ("os.kill(os.getpid(), signal.SIGTERM); time.sleep(10)", -signal.SIGTERM, ""),
    "by SIGKILL": ("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL, ""),
    "by SIGKILL while asking": (
        "envs._pool.step_async(np.zeros(4, int)); os.kill(os.getpid(), signal.SIGKILL)",
        -signal.SIGKILL,
        "",
    ),
}


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("backend", ["processes", "threads"])
def test_finished_scripts_leave_no_processes(ending: str, backend: str, run: type) -> None:
    options, status, says = ENDINGS[ending]
    body = f"""
    envs = make(backend={backend!r})
    envs.reset()
    say(envs.step(np.zeros(4, int))[1])
    {options}
    """
    code, out, err = run(body).finish()
    assert code == status
    assert out.strip() == "[1. 1. 1. 1.]"
    assert says in err
    assert ("Traceback" in err) == bool(says)
    assert "Warning" not in err


@pytest.mark.parametrize("place", ["construct", "reset", "step", "close"])
def test_killed_script_with_a_sleeping_worker_leaves_no_processes(place: str, run: type) -> None:
    script = run(
        f"""
        from threading import Thread
        def use():
            envs = make({place!r}, sleeps_forever)
            envs.reset()
            envs.step(np.zeros(4, int))
            envs.close()
        Thread(target=use, daemon=True).start()
        time.sleep(1000)
        """
    )
    script.wait_for("asleep")
    assert wait_until(lambda: len(script.workers()) == 2)
    script.process.kill()


def test_killed_script_with_grandchildren_leaves_no_processes(run: type) -> None:
    script = run(
        """
        envs = make("reset", starts_children)
        envs.reset()
        say("ready")
        envs.get_attr("env_id")
        time.sleep(1000)
        """
    )
    script.wait_for("ready")
    assert wait_until(lambda: len(script.workers()) == 2 + 8)
    script.process.kill()


def test_killed_script_with_a_surviving_fork_leaves_no_workers(run: type) -> None:
    script = run(
        """
        envs = make("step", sleeps_forever)
        envs.reset()
        if os.fork() == 0:
            for name in ("stdout", "stderr"):
                os.close(getattr(sys, name).fileno())
            time.sleep(3)
            os._exit(0)
        envs._pool.step_async(np.zeros(4, int))
        say("forked")
        time.sleep(1000)
        """
    )
    script.wait_for("forked")
    assert wait_until(lambda: len(script.workers()) == 3)
    script.process.kill()
    assert wait_until(lambda: len(script.others()) == 1, 2.0), "only the fork is left"
    script.others()[0].kill()


@pytest.mark.parametrize("seed", range(6))
def test_scripts_killed_at_any_moment_leave_no_processes(seed: int, run: type, tmp_path: Path) -> None:
    """The script imports modules in fork servers, makes, steps and closes environments, and drops some."""
    for i in range(40):
        (tmp_path / f"slow_{i}.py").write_text(
            "import time\nfrom tests.fixtures.faulty_envs import FaultyEnv\n"
            "time.sleep(0.05)\nclass Mine(FaultyEnv): pass\n"
        )
    script = run(
        """
        import importlib
        say("started")
        kept = []
        for i in range(40):
            mine = importlib.import_module(f"slow_{i}").Mine
            envs = VectorEnv([mine] * 3, backend="processes", num_workers=3)
            envs.reset()
            for _ in range(10):
                envs.step(np.zeros(3, int))
            if i % 3:
                envs.close()
            elif i % 2:
                kept.append(envs)
        time.sleep(1000)
        """
    )
    script.wait_for("started")
    time.sleep(random.Random(seed).uniform(0.0, 2.0))
    script.process.kill()
    script.process.wait()
    assert wait_until(lambda: not script.others(), 1.0), script.others()


def test_ctrl_c_during_steps_leaves_no_processes(run: type) -> None:
    script = run(
        """
        with make() as envs:
            envs.reset()
            say("stepping")
            while True:
                envs.step(np.zeros(4, int))
        """
    )
    script.wait_for("stepping")
    begin = time.monotonic()
    os.killpg(script.process.pid, signal.SIGINT)
    code, _, err = script.finish()
    assert time.monotonic() - begin < 2.0
    assert code == -signal.SIGINT
    assert err.strip().endswith("KeyboardInterrupt")
    assert err.count("Traceback") == 1, err


@pytest.mark.parametrize("backend", ["processes", "threads", "serial"])
def test_scripts_can_continue_after_ctrl_c(backend: str, run: type) -> None:
    script = run(
        f"""
        from tests.fixtures.faulty_envs import sleeps_once
        envs = make("step", sleeps_once, backend={backend!r})
        envs.reset()
        try:
            envs.step(np.zeros(4, int))
        except KeyboardInterrupt:
            say("interrupted")
        print(envs.reset()[0][:, 1:].tolist())
        print(envs.step(np.zeros(4, int))[0][:, 1:].tolist())
        envs.close()
        """
    )
    script.wait_for("asleep")
    os.killpg(script.process.pid, signal.SIGINT)
    code, out, err = script.finish()
    assert (code, err) == (0, "")
    lines = [line for line in out.splitlines() if line != "asleep"]
    assert lines == ["interrupted", str([[1.0, 0.0]] * 4), str([[1.0, 1.0]] * 4)]


def test_ctrl_c_during_worker_imports_leaves_no_processes(run: type, tmp_path: Path) -> None:
    (tmp_path / "slow_to_import.py").write_text(
        "import os, time\nif 'SLOW' in os.environ:\n    os.write(1, b'importing\\n')\n    time.sleep(30)\n"
        "from tests.fixtures.faulty_envs import FaultyEnv\nclass Slow(FaultyEnv):\n    pass\n"
    )
    script = run(
        """
        from slow_to_import import Slow
        os.environ["SLOW"] = "1"
        VectorEnv([Slow] * 2, backend="processes", num_workers=2)
        """
    )
    script.wait_for("importing")
    begin = time.monotonic()
    os.killpg(script.process.pid, signal.SIGINT)
    code, _, err = script.finish()
    assert time.monotonic() - begin < 5.0
    assert code == -signal.SIGINT
    assert err.strip().endswith("KeyboardInterrupt")


def test_scripts_need_no_main_guard(run: type) -> None:
    code, out, err = run(
        """
        class Mine(FaultyEnv):
            def __init__(self, number):
                super().__init__(number)
        say("imported")
        envs = VectorEnv([lambda i=i: Mine(i) for i in range(3)], backend="processes", num_workers=2)
        print(envs.reset()[0][:, 0].tolist())
        envs.close()
        """
    ).finish()
    assert (code, err) == (0, "")
    assert out.split("\n")[:2] == ["imported", "[0.0, 1.0, 2.0]"], "the script ran once"


@pytest.mark.parametrize("start_method", ["forkserver", "spawn"])
def test_scripts_can_register_their_environment(start_method: str, run: type) -> None:
    code, out, err = run(
        f"""
        import gymnasium
        class Mine(FaultyEnv):
            pass
        gymnasium.register("Mine-v0", entry_point=Mine)
        gymnasium.register("Theirs-v0", entry_point="tests.fixtures.faulty_envs:FaultyEnv")
        makers = [lambda i=i: gymnasium.make(i).unwrapped for i in ("Mine-v0", "Theirs-v0")]
        envs = VectorEnv(makers, backend="processes", num_workers=2, start_method={start_method!r})
        say(envs.reset()[0].shape)
        envs.close()
        """
    ).finish()
    assert (code, out, err) == (0, "(2, 3)\n", "")


def test_garbage_collected_environments_end_their_workers(run: type) -> None:
    code, out, err = run(
        """
        import gc, psutil
        envs = make()
        envs.reset()
        del envs
        gc.collect()
        end = time.monotonic() + 2
        me = psutil.Process()
        groups = lambda: {os.getpgid(process.pid) for process in me.children(recursive=True)}
        while len(groups()) > 1 and time.monotonic() < end:
            time.sleep(0.01)
        print(len(groups()), [f for f in os.listdir("/proc/self/fd")
              if "vecrl" in os.path.realpath(f"/proc/self/fd/{f}")])
        """
    ).finish()
    assert (code, err) == (0, "")
    assert out.strip() == "1 []", "only fork servers remain"


def test_too_few_descriptors_raise(run: type) -> None:
    code, out, err = run(
        """
        import resource, psutil
        make().close()
        before = psutil.Process().num_fds()
        resource.setrlimit(resource.RLIMIT_NOFILE, (before + 12, 4096))
        try:
            make(count=40, num_workers=40)
        except OSError as error:
            say(error.strerror)
        print(psutil.Process().num_fds() - before)
        envs = make()
        print(envs.reset()[0].shape)
        envs.close()
        """
    ).finish()
    assert (code, err) == (0, "")
    assert out.splitlines() == ["Too many open files", "0", "(4, 3)"]


@pytest.mark.parametrize("ending", ["", "raise RuntimeError", "del envs", "envs._pool.step_async(np.zeros(4, int))"])
@pytest.mark.parametrize("backend", ["serial", "threads", "processes"])
def test_unclosed_environments_are_closed_at_exit(backend: str, ending: str, run: type, tmp_path: Path) -> None:
    run(
        f"""
        class Noting(FaultyEnv):
            def close(self):
                open({str(tmp_path)!r} + f"/closed-{{self.env_id}}", "x").close()
        envs = VectorEnv([partial(Noting, i) for i in range(4)], backend={backend!r}, num_workers=2)
        envs.reset()
        {ending}
        """
    ).finish()
    assert sorted(p.name for p in tmp_path.glob("closed-*")) == [f"closed-{i}" for i in range(4)]
