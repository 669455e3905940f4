import gc
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

import pytest

from statelesschat.host import sandbox, shell
from statelesschat.host.capture import Capture
from statelesschat.host.reaper import marked, owner, reap
from statelesschat.host.sandbox import IsolationError, Limits
from statelesschat.host.session import Outcome
from statelesschat.host.shell import ShellSession
from tests.host.conformance import SessionConformance, begun, output, run


def why_not(isolation) -> str:
    try:
        sandbox.check(isolation)
    except IsolationError as error:
        return str(error)
    return ""


@pytest.fixture(params=["bubblewrap", "none"])
def isolation(request):
    if reason := why_not(request.param):
        pytest.skip(reason)
    return request.param


@pytest.fixture
def make(isolation):
    return lambda: ShellSession(isolation=isolation)


@pytest.fixture
def session(make):
    with begun(make()) as session:
        yield session


class TestConformance(SessionConformance):
    pass


def test_spec(isolation):
    spec = ShellSession(isolation=isolation, name="task", replayable=True).spec
    assert (spec.name, spec.isolated, spec.replayable) == ("task", isolation == "bubblewrap", True)
    assert not spec.deterministic and not spec.scores


def test_files_and_setup(isolation):
    files = {"a/b.txt": "text\n", "run.sh": "#!/bin/sh\necho ran", "é '$x'": b"\x00\xff"}
    session = ShellSession(isolation=isolation, files=files, setup="echo set up; X=1; cd a", env={"MINE": "it's"})
    for _ in range(2):
        reply = session.reset(0)
        assert (reply.outcome, reply.obs) == (Outcome.OK, b"set up\n")
        assert session.state()["working_dir"].endswith("/workspace/a")
        assert output(session, "cat b.txt; ../run.sh; echo $X $MINE; cat ../é*") == b"text\nran\n1 it's\n\x00\xff"
        run(session, "rm -r ~/*")
    session.kill()


def test_many_files(isolation):
    with begun(ShellSession(isolation=isolation, files={f"d/{i}": b"x" * 5000 for i in range(500)})) as session:
        assert output(session, "cat d/* | wc -c") == b"2500000\n"


@pytest.mark.parametrize("setup", ["echo why; false", "exit 1", "while :; do :; done", "("])
def test_setup_that_fails(isolation, setup):
    session = ShellSession(isolation=isolation, setup=setup, start_timeout_s=0.5)
    reply = session.reset(0)
    assert reply.outcome is Outcome.START_FAILED
    assert reply.detail
    assert run(session, "echo a").outcome is Outcome.DEAD
    assert b"why" in reply.obs or "why" not in setup


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"isolation": "docker"}, "bubblewrap"),
        ({"files": {"../a": ""}}, r"\.\./a"),
        ({"files": {"/a": ""}}, "relative"),
        ({"files": {"": ""}}, "relative"),
        ({"start_timeout_s": 0}, "start_timeout_s"),
        ({"read_only": ["/usr"]}, "read_only"),
    ],
)
def test_wrong_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        ShellSession(**{"isolation": "none", **arguments})


def test_wrong_limits():
    with pytest.raises(ValueError, match="processes"):
        Limits(processes=0)
    with pytest.raises(ValueError, match="memory_bytes"):
        Limits(memory_bytes=1e9)


def test_nothing_to_isolate_with(monkeypatch):
    for cached in (sandbox._found, sandbox._fault):
        cached.cache_clear()
    monkeypatch.setattr(shutil, "which", lambda name, **_: None if name == "bwrap" else f"/usr/bin/{name}")
    try:
        with pytest.raises(IsolationError, match="apt install bubblewrap.*isolation='none'"):
            ShellSession()
    finally:
        for cached in (sandbox._found, sandbox._fault):
            cached.cache_clear()


def test_namespaces_that_are_forbidden(monkeypatch, tmp_path):
    fake = tmp_path / "bwrap"
    fake.write_text("#!/bin/sh\necho bwrap: No permissions to create new namespace >&2; exit 1\n")
    fake.chmod(0o755)
    tmp_path.chmod(0o755)
    monkeypatch.setattr(sandbox, "_as_nobody", list)
    monkeypatch.setattr(sandbox, "_has_option", lambda _: True)
    monkeypatch.setattr(sandbox, "_found", lambda name: str(fake) if name == "bwrap" else f"/usr/bin/{name}")
    sandbox._fault.cache_clear()
    try:
        with pytest.raises(IsolationError, match="No permissions.*user namespaces.*isolation='none'"):
            ShellSession()
    finally:
        sandbox._fault.cache_clear()


def test_too_much_output_is_stopped(isolation):
    with begun(ShellSession(isolation=isolation, limits=Limits(output_bytes=1 << 20))) as session:
        reply = run(session, "yes")
        assert reply.outcome is Outcome.TIMEOUT
        assert reply.n_bytes > 1 << 20
        assert output(session, "echo next") == b"next\n"


def test_process_limits(isolation):
    limits = Limits(open_files=50, file_bytes=1 << 20, memory_bytes=256 << 20, cpu_s=2)
    with begun(ShellSession(isolation=isolation, limits=limits)) as session:
        assert output(session, "ulimit -Hn; ulimit -Sn; ulimit -Hf; ulimit -Hd") == b"50\n50\n1024\n262144\n"
        assert run(session, "head -c 2000000 /dev/zero >big").rc != 0
        assert output(session, "stat -c %s big") == b"1048576\n"
        assert run(session, "tail -c 600000000 /dev/zero | wc -c").obs.strip().endswith(b"0")
        assert run(session, "sh -c 'while :; do :; done'").rc == 137
        assert run(session, "ulimit -n 5000").rc != 0


def test_kill_while_it_starts(isolation):
    session = ShellSession(isolation=isolation, setup="sleep 1000")
    replies = []
    thread = threading.Thread(target=lambda: replies.append(session.reset(0)))
    thread.start()
    time.sleep(0.3)
    session.kill()
    thread.join(10)
    assert replies[0].outcome is Outcome.START_FAILED
    assert run(session, "echo a").outcome is Outcome.DEAD


def test_nothing_is_left_open(make):
    run_in(make)  # what is made once
    before = sorted(os.listdir("/proc/self/fd"))
    for _ in range(3):
        run_in(make)
    session = make()
    session.reset(0)
    run(session, "exit")
    session.reset(0)
    del session  # without kill
    gc.collect()
    assert sorted(os.listdir("/proc/self/fd")) == before
    assert not shell._live
    assert not [name for name in os.listdir(temporary()) if owner() in name]


def run_in(make):
    with begun(make()) as session:
        run(session, "sleep 1000 & setsid sleep 1000 & echo a")


def temporary() -> str:
    return tempfile.gettempdir()


PROGRAM = """
import os, sys, signal, threading
from statelesschat.host.shell import ShellSession
session = ShellSession(isolation=sys.argv[1])
assert session.reset(0).outcome == 0
thread = threading.Thread(target=lambda: session.reset(0))  # a thread that ends does not take sessions with it
thread.start(); thread.join()
assert session.run(0, b"setsid sleep 98765 & sleep 98765 &", timeout_s=9, idle_s=None, max_bytes=9).outcome == 0
other = ShellSession(isolation=sys.argv[1])
assert other.reset(0).outcome == 0
def work():
    other.run(0, b"sleep 98765", timeout_s=999, idle_s=None, max_bytes=9)
threading.Thread(target=work, daemon=True).start()
import time; time.sleep(0.3)
print(os.getpid(), flush=True)
if sys.argv[2] == "wait": sys.stdin.read()
"""


def sleepers() -> list[str]:
    found = []
    for name in os.listdir("/proc"):
        if name.isdecimal():
            try:
                with open(f"/proc/{name}/cmdline", "rb") as file:
                    if b"sleep\0" + b"98765\0" in file.read():
                        found.append(name)
            except OSError:
                pass
    return found


def gone(deadline_s: float = 5) -> bool:
    until = time.monotonic() + deadline_s
    while sleepers() and time.monotonic() < until:
        time.sleep(0.02)
    return not sleepers()


@pytest.mark.parametrize("end", ["exit", "kill"])
def test_program_that_ends_leaves_nothing(isolation, end):
    words = [sys.executable, "-W", "error", "-c", PROGRAM, isolation, "wait" if end == "kill" else "go"]
    program = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert program.stdout and program.stdin
    with program.stdout, program.stdin:
        pid = program.stdout.readline().decode().strip()
        assert pid == str(program.pid)
        if end == "kill":
            assert len(sleepers()) == 3
            program.kill()
        assert program.wait(30) == (-9 if end == "kill" else 0)
    if isolation == "none" and end == "kill":  # without namespaces somebody has to clean up: the next program
        assert reap() >= 1
    assert gone()
    assert not [name for name in os.listdir(temporary()) if name.startswith(f"statelesschat-{pid}-")]


def test_reaping_leaves_the_living_alone():
    with begun(ShellSession(isolation="none")) as session:
        run(session, "sleep 1000 & echo >kept")
        reap()
        assert output(session, "ls; jobs -r | wc -l") == b"kept\n1\n"


@pytest.mark.parametrize("most", [0, 1, 10, 39, 40, 41, 60, 100, 1000, 100_000])
def test_capture(most):
    data = bytes(i * 7 % 256 for i in range(200_000))
    for size in (0, 1, most - 1, most, most + 1, 2 * most, 200_000):
        for chunk in (size or 1, 7777):
            capture = Capture(most)
            for i in range(0, max(size, 0), chunk):
                capture.add(data[i : min(i + chunk, size)])
            text = capture.text()
            assert len(text) <= most
            assert capture.total == max(size, 0)
            assert capture.truncated == (max(size, 0) > most)
            if not capture.truncated:
                assert text == data[: max(size, 0)]
            elif most >= 60:
                head, rest = text.split(b"\n[", 1)
                note, tail = rest.split(b" bytes left out]\n", 1)
                left_out, total = map(int, note.split(b" of "))
                assert total == size == len(head) + left_out + len(tail)
                assert data[:size].startswith(head) and data[:size].endswith(tail)
                assert len(text) == most


def test_bubblewrap_that_is_killed_before_its_child_is_tied_to_it_leaves_no_child(monkeypatch):
    if reason := why_not("bubblewrap"):
        pytest.skip(reason)
    words = ["sh", "-c", "setsid sleep 98766 & kill -9 $$"]  # as it is for a moment, once in thousands of kills
    monkeypatch.setattr(sandbox, "command", lambda *_: words)
    session = ShellSession(isolation="bubblewrap", start_timeout_s=5)
    reply = session.reset(0)
    assert reply.outcome is Outcome.START_FAILED
    assert marked(f"{owner()}-b") == []


def test_a_bash_that_is_killed_is_no_exit(isolation, make):
    with begun(make()) as session:
        transport = session._transport
        assert transport is not None
        os.kill(transport.process.pid, signal.SIGKILL)
        reply = run(session, "sleep 10")
        assert (reply.outcome, reply.event) == (Outcome.DEAD, None) and "SIGKILL" in reply.detail
