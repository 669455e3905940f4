"""What commands in a sandbox try to reach, take or break outside of it."""

import contextlib
import os
import socket
import tempfile
import threading
import time

import pytest

from statelesschat.host import sandbox
from statelesschat.host.sandbox import IsolationError, Limits
from statelesschat.host.session import Outcome
from statelesschat.host.shell import ShellSession
from tests.host.conformance import begun, output, run

SMALL = Limits(processes=40, disk_bytes=4 << 20, memory_bytes=512 << 20)


@pytest.fixture(scope="module", autouse=True)
def possible():
    try:
        sandbox.check("bubblewrap")
    except IsolationError as error:
        pytest.skip(str(error))


@pytest.fixture
def session():
    with begun(ShellSession(limits=SMALL)) as session:
        yield session


def test_files_of_the_host_are_not_there(session, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("hidden")
    secret.chmod(0o666)
    places = [
        "/root",
        "/home",
        "/var",
        "/mnt",
        "/work",
        "/opt",
        "/srv",
        "/run",
        "/sys",
        "/etc/shadow",
        str(secret),
        os.getcwd(),
    ]
    for place in places:
        assert run(session, f"[ -e {place} ] || [ -e /proc/1/root{place} ]").rc == 1, place
    assert b"hidden" not in run(session, f"cat {secret} /proc/*/root{secret} /proc/*/cwd{secret}").obs
    listed = set(output(session, "ls -A /").decode().split())
    assert listed <= {"bin", "dev", "etc", "lib", "lib32", "lib64", "libx32", "proc", "sbin", "tmp", "usr", "workspace"}
    assert output(session, "ls -A ~ /tmp /dev/shm") == b"/dev/shm:\n\n/tmp:\n\n/workspace:\n"
    assert output(session, "cat /etc/passwd").count(b"\n") == 2


def test_environment_of_the_host_is_not_there(monkeypatch):
    monkeypatch.setenv("HOST_SECRET", "hidden")
    with begun(ShellSession(env={"MINE": "1"})) as session:
        names = {line.split("=")[0] for line in output(session, "env").decode().splitlines()}
        assert names == {"PATH", "HOME", "USER", "LANG", "TERM", "SHELL", "PWD", "SHLVL", "_", "MINE"}
        assert b"hidden" not in run(session, "cat /proc/*/environ /proc/*/cmdline").obs


@pytest.mark.parametrize("place", ["/", "/usr", "/usr/bin", "/etc", "/dev", "/proc", "/usr/local/lib", "/bin"])
def test_nothing_outside_can_be_written(session, place):
    reply = run(session, f"echo x >{place}/escaped; mkdir {place}/escaped; ln -s /tmp {place}/escaped")
    assert reply.rc != 0
    assert run(session, f"[ -e {place}/escaped ]").rc == 1
    assert not os.path.exists(f"{place}/escaped")


@pytest.mark.parametrize(
    "command",
    [
        "mount -o remount,rw /usr",
        "mount -t tmpfs none /workspace",
        "umount /usr",
        "unshare -Ur true",
        "unshare -rm mount -t tmpfs none /tmp",
        "chroot / true",
        "nsenter -t 1 -a true",
        "mknod /tmp/disk b 8 0",
        "hostname escaped",
        "sysctl -w kernel.hostname=escaped",
        "echo 1 >/proc/sys/vm/drop_caches",
        "echo b >/proc/sysrq-trigger",
        "renice -n -5 $$",
        "setpriv --reuid 0 true",
        "su -c true",
        "dmesg",
        "date -s 2000-01-01",
        "ulimit -u 10000",
        "chown 0 /tmp",
    ],
)
def test_no_rights(session, command):
    assert run(session, command).rc not in (0, None)


def test_no_network(session):
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as server:
        port = server.getsockname()[1]
        for host in ("127.0.0.1", "localhost", "1.1.1.1"):
            assert run(session, f"echo x >/dev/tcp/{host}/{port}").rc != 0
        server.setblocking(False)
        with pytest.raises(BlockingIOError):
            server.accept()
    path = f"\0statelesschat-test-{os.getpid()}"  # abstract sockets are of the network namespace
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as server:
        server.bind(path)
        server.listen()
        code = f"import socket; socket.socket(socket.AF_UNIX).connect({path!r})"
        assert run(session, f"/usr/bin/python3 -c {code!r}".replace("\0", "")).rc != 0
    assert output(session, "cat /proc/net/dev").count(b":") <= 2  # headings and lo


def test_other_processes_cannot_be_seen_or_killed(session):
    pids = output(session, "cd /proc; echo [0-9]*").split()
    assert len(pids) <= 4
    assert b"pytest" not in run(session, "cat /proc/*/cmdline").obs
    with begun(ShellSession()) as other:
        for pid in (os.getpid(), os.getppid()):
            if str(pid).encode() not in pids:
                assert run(session, f"kill -9 {pid}").rc != 0
        reply = run(session, "kill -9 -1; kill -9 1; kill -9 $PPID; echo still")
        assert reply.outcome in (Outcome.OK, Outcome.DEAD)
        assert output(other, "echo well") == b"well\n"


def test_memory_of_others_cannot_be_read(session):
    attach = (
        "import ctypes; libc = ctypes.CDLL(None, use_errno=True); "
        "bad = [p for p in ({pid}, {pid} + 1) if libc.ptrace(16, p, 0, 0) == 0]; print(bad)"
    ).replace("{pid}", str(os.getpid()))
    reply = run(session, f"/usr/bin/python3 -c '{attach}'")
    if reply.rc != 127:  # there is a Python
        assert reply.obs == b"[]\n"
    assert run(session, f"cat /proc/{os.getpid()}/mem").rc != 0


def test_fork_bomb(session):
    with begun(ShellSession()) as other:
        bomb = threading.Thread(target=lambda: run(session, "bomb() { bomb | bomb & }; bomb; sleep 1000", timeout_s=2))
        bomb.start()
        time.sleep(0.5)
        assert output(other, "seq 3 | sort -r | head -1", timeout_s=30) == b"3\n"
        bomb.join(30)
        assert not bomb.is_alive()
        session.kill()
        assert session.reset(0).outcome is Outcome.OK
        assert output(session, "sh -c 'echo well'") == b"well\n"


def test_processes_are_counted_per_session():
    with begun(ShellSession(limits=SMALL)) as one, begun(ShellSession(limits=SMALL)) as other:
        run(one, "for i in $(seq 30); do sleep 1000 & done 2>/dev/null")
        assert run(one, "for i in $(seq 30); do sleep 1000 & done", timeout_s=0.5).obs.count(b"retry")
        assert output(other, "for i in $(seq 25); do sleep 1000 & done 2>/dev/null; sh -c 'echo well'").endswith(
            b"well\n"
        )


@pytest.mark.parametrize("place", ["/workspace", "/tmp", "/dev/shm"])
def test_filling_the_disk(session, place):
    assert b"No space left" in run(session, f"cat /dev/zero >{place}/full").obs
    assert int(output(session, f"stat -c %s {place}/full")) <= SMALL.disk_bytes
    assert output(session, "echo well; cd /; pwd") == b"well\n/\n"
    assert session.reset(0).outcome is Outcome.OK
    assert run(session, f"head -c 1000000 /dev/zero >{place}/again").rc == 0


def test_using_up_memory(session):
    reply = run(
        session, "tail -c 2000000000 /dev/zero | wc -c; x=$(head -c 900000000 /dev/zero | tr '\\0' x)", timeout_s=30
    )
    assert reply.outcome in (Outcome.OK, Outcome.DEAD)
    with open("/proc/self/oom_score_adj") as file:
        own = int(file.read())
    session.reset(0)
    assert int(output(session, "cat /proc/self/oom_score_adj")) == 1000 >= own


def test_setuid_programs_give_nothing(session):
    found = output(session, "find /usr/bin -perm -4000 | head -5").decode().split()
    for path in found:
        assert "nosuid" in output(session, "grep ' /usr ' /proc/mounts").decode(), path
    assert b"NoNewPrivs:\t1" in output(session, "cat /proc/self/status")
    capabilities = [line for line in output(session, "cat /proc/self/status").splitlines() if line.startswith(b"Cap")]
    assert all(int(line.split()[1], 16) == 0 for line in capabilities)


def test_pipes_to_the_host_are_not_inherited(session):
    shown = output(session, "ls -l /proc/self/fd").decode()
    numbers = {line.split()[8] for line in shown.splitlines() if "->" in line}
    assert numbers <= {"0", "1", "2", "3"}


def test_read_only_folders():
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        with open(f"{folder}/a", "w") as file:
            file.write("shown")
        with begun(ShellSession(read_only=[folder])) as session:
            assert output(session, f"cat {folder}/a") == b"shown"
            assert run(session, f"echo x >{folder}/a; rm {folder}/a; echo x >{folder}/b").rc != 0
        assert os.listdir(folder) == ["a"]
    with pytest.raises(ValueError, match="read_only"):
        ShellSession(read_only=[folder])  # it is gone


def test_root_gives_its_rights_away(session):
    if os.geteuid() != 0:
        pytest.skip("this user has none")
    run(session, "sleep 54321 & sleep 0.2")
    uids = set()
    for name in os.listdir("/proc"):
        if name.isdecimal():
            with contextlib.suppress(OSError), open(f"/proc/{name}/cmdline", "rb") as file:
                if file.read() == b"sleep\x0054321\0":
                    uids.add(os.stat(f"/proc/{name}").st_uid)
    assert len(uids) == 1 and min(uids) > 0
