"""An import in a fork server that goes wrong affects the pool that asked for it, and no other."""

import signal
import textwrap
import time
from pathlib import Path

import psutil
import pytest
from tests.fixtures.processes import wait_until
from tests.fixtures.scripts import Script

HOSTILE = """
import ctypes, os, resource, signal, subprocess, sys, threading, time
from tests.fixtures.faulty_envs import FaultyEnv

if os.environ.get("CALLER") != str(os.getpid()):
    {code}

class Hostile(FaultyEnv):
    pass
"""

SCRIPT = """
os.environ["CALLER"] = str(os.getpid())
import psutil, wave
from vecrl.errors import VecrlError, WorkerCrash
import hostile

def make_hostile():
    return VectorEnv([hostile.Hostile] * 2, backend="processes", num_workers=2)

def works(envs):
    envs.reset()
    return envs.step(np.zeros(2, int))[1].tolist() == [1.0, 1.0]

def within(seconds, call, *args):
    begin = time.monotonic()
    result = call(*args)
    assert time.monotonic() - begin < seconds, f"took {time.monotonic() - begin:.2f} s"
    return result

def notices_a_crash(envs):
    os.kill(envs.get_attr("pid")[0], signal.SIGKILL)
    try:
        envs.step(np.zeros(2, int))
    except WorkerCrash:
        return True
    return False

old = make(count=2)
works(old)
"""

# what the module does when it is imported: what its own pool gets
ENDINGS = {
    "os._exit(3)": "its worker process exited with code 3",
    "ctypes.string_at(0)": "its worker process was killed by SIGSEGV",
    "os.kill(os.getpid(), signal.SIGKILL)": "its worker process was killed by SIGKILL",
    "raise KeyboardInterrupt": "KeyboardInterrupt",
    "raise GeneratorExit('no')": "GeneratorExit: no",
    "sys.exit(4)": "SystemExit: 4",
    "raise OSError('no display')": "OSError: no display",
    "os.closerange(3, 256)": "its worker process",
    "os.closerange(0, 256)": "its worker process",
    "sys.stdout.close()": "",
    "signal.signal(signal.SIGCHLD, signal.SIG_IGN)": "",
    "signal.signal(signal.SIGCHLD, signal.SIG_DFL)": "",
    "signal.set_wakeup_fd(-1)": "",
    "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])": "",
    "signal.signal(signal.SIGINT, signal.default_int_handler)": "",
    "threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()": "",
    "resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))": "",
    "subprocess.Popen(['sleep', '1000'])": "",
}


@pytest.mark.parametrize("code", ENDINGS)
def test_only_the_pool_that_asked_for_an_import_is_affected(code: str, tmp_path: Path) -> None:
    (tmp_path / "hostile.py").write_text(HOSTILE.format(code=code))
    body = """
    def ask():
        try:
            envs = make_hostile()
        except VecrlError as error:
            return str(error)
        assert works(envs)
        envs.close()
        return ""

    for _ in range(2):
        say(within(5.0, ask).split("\\n")[0].partition(": ")[2])
    assert works(old)
    other = VectorEnv([FaultyEnv] * 2, backend="processes", num_workers=2, preload=["wave"])
    assert works(other)
    assert within(1.0, notices_a_crash, other)
    assert within(1.0, notices_a_crash, old)
    """
    script = Script(SCRIPT + textwrap.dedent(body), tmp_path)
    status, out, err = script.finish(60.0)
    assert status == 0, err
    first, second = out.splitlines()
    if not ENDINGS[code]:
        assert (first, second) == ("", "")
    else:
        assert ENDINGS[code] in first
        assert ENDINGS[code] in second
    assert wait_until(lambda: not script.others(), 2.0), script.others()


def test_an_import_that_blocks_delays_no_other_pool_and_can_be_given_up(tmp_path: Path) -> None:
    (tmp_path / "hostile.py").write_text(HOSTILE.format(code="time.sleep(1000)"))
    body = """
    def interrupt():
        time.sleep(1.0)
        os.kill(os.getpid(), signal.SIGINT)

    from threading import Thread
    for _ in range(2):
        Thread(target=interrupt, daemon=True).start()
        try:
            make_hostile()
        except KeyboardInterrupt:
            say("interrupted")
    blocked = Thread(target=make_hostile, daemon=True)
    blocked.start()
    time.sleep(0.5)
    assert within(5.0, works, make(count=2))
    assert within(5.0, works, VectorEnv([FaultyEnv] * 2, backend="processes", num_workers=2, preload=["wave"]))
    assert within(1.0, notices_a_crash, old)
    say("waiting")
    time.sleep(1000)
    """
    script = Script(SCRIPT + textwrap.dedent(body), tmp_path)
    try:
        script.wait_for("interrupted")
        script.wait_for("interrupted")
        script.wait_for("waiting")
    finally:
        importing = [process for process in script.others() if process not in script.workers()]
        script.process.kill()
        begin = time.monotonic()
        script.process.communicate()
    assert importing
    assert wait_until(lambda: not script.others(), 1.0 - (time.monotonic() - begin)), script.others()


@pytest.mark.parametrize("code", ["time.sleep(1000)", "subprocess.run(['sleep', '1000'])"])
def test_nothing_is_left_if_the_caller_is_killed_during_an_import(code: str, tmp_path: Path) -> None:
    (tmp_path / "hostile.py").write_text(HOSTILE.format(code=f"os.write(1, b'importing\\n'); {code}"))
    script = Script(SCRIPT + "make_hostile()", tmp_path)
    script.wait_for("importing")
    assert len(script.others()) >= 3
    script.process.kill()
    script.process.communicate()
    assert wait_until(lambda: not script.others(), 1.0), script.others()


def test_an_import_that_is_killed_from_outside_affects_no_other_pool(tmp_path: Path) -> None:
    (tmp_path / "hostile.py").write_text(HOSTILE.format(code="os.write(1, b'%d\\n' % os.getpid()); time.sleep(2)"))
    script = Script(SCRIPT + "assert works(make_hostile())\nassert works(old)\nsay('works')", tmp_path)
    assert script.process.stdout is not None
    psutil.Process(int(script.process.stdout.readline())).kill()
    status, out, err = script.finish(30.0)
    assert status == 0, err
    assert out.endswith("works\n")


def test_stopped_fork_servers_are_continued(tmp_path: Path) -> None:
    (tmp_path / "hostile.py").write_text(HOSTILE.format(code="pass"))
    body = """
    with make_hostile() as envs:
        assert works(envs)

        def stop_servers():
            root = psutil.Process().children()[0]
            for server in (root, *root.children(recursive=True)):
                if os.getpgid(server.pid) == root.pid:
                    server.suspend()

        stop_servers()
        assert within(2.5, notices_a_crash, envs)
        stop_servers()
        assert within(3.0, works, make(count=2))
        stop_servers()
    """
    script = Script(SCRIPT + textwrap.dedent(body), tmp_path)
    status, _, err = script.finish(30.0)
    assert status == 0, err
    assert wait_until(lambda: not script.others(), 2.0), script.others()


def test_workers_that_cannot_be_started_fail_alone(tmp_path: Path) -> None:
    """The limit of descriptors is so low that the fork server has none left for further workers."""
    (tmp_path / "hostile.py").write_text(HOSTILE.format(code="pass"))
    body = """
    from vecrl.errors import WorkerCrash
    import resource
    root = psutil.Process().children()[0]
    servers = [s.pid for s in (root, *root.children(recursive=True)) if os.getpgid(s.pid) == root.pid]
    before = resource.prlimit(root.pid, resource.RLIMIT_NOFILE)
    for pid in servers:
        used = len(os.listdir(f"/proc/{pid}/fd"))
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (used + 6, before[1]))
    try:
        VectorEnv([FaultyEnv] * 8, backend="processes", num_workers=8)
    except WorkerCrash as error:
        say(str(error).split("\\n")[0])
    for pid in servers:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, before)
    assert works(old)
    assert works(make(count=2))
    assert within(1.0, notices_a_crash, old)
    """
    script = Script(SCRIPT + textwrap.dedent(body), tmp_path)
    status, out, err = script.finish(30.0)
    assert status == 0, err
    assert "could not be started" in out


def test_workers_may_open_as_many_descriptors_as_their_caller(tmp_path: Path) -> None:
    (tmp_path / "hostile.py").write_text(HOSTILE.format(code="pass"))
    body = """
    import resource
    def limit():
        return resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    class Limited(FaultyEnv):
        limit = property(lambda self: limit())
    for soft in (300, 400):
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
        for start_method in ("forkserver", "spawn"):
            envs = VectorEnv([Limited] * 2, backend="processes", num_workers=2, start_method=start_method)
            say(envs.get_attr("limit"))
            envs.close()
    """
    script = Script(SCRIPT + textwrap.dedent(body), tmp_path)
    status, out, err = script.finish(30.0)
    assert status == 0, err
    assert out.splitlines() == ["(300, 300)"] * 2 + ["(400, 400)"] * 2


def test_signals_have_the_actions_of_a_worker(tmp_path: Path) -> None:
    """What an import does to signals is undone in workers, as is what the fork server needs."""
    code = "signal.signal(signal.SIGCHLD, signal.SIG_IGN)"
    (tmp_path / "hostile.py").write_text(HOSTILE.format(code=code))
    body = """
    class Signals(hostile.Hostile):
        actions = property(lambda self: [str(signal.getsignal(n)) for n in (signal.SIGINT, signal.SIGCHLD)])
    envs = VectorEnv([Signals] * 2, backend="processes", num_workers=2)
    say(envs.get_attr("actions")[0])
    """
    status, out, err = Script(SCRIPT + textwrap.dedent(body), tmp_path).finish(30.0)
    assert status == 0, err
    assert out.strip() == str([str(signal.SIG_IGN), str(signal.SIG_DFL)])
