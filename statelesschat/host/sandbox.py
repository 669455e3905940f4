"""How a bash is started so that it reaches nothing outside, or with no isolation where that is asked for in words."""

import dataclasses
import functools
import itertools
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from typing import Literal

from statelesschat.host import processes

Isolation = Literal["bubblewrap", "none"]

WORKSPACE = "/workspace"
# It is interactive, so that an interrupt ends the command and not the shell. Such a bash takes what its stderr is at
# the start for its terminal, and complains in the middle of the output when that is none.
_BASH = (
    "sh",
    "-c",
    '[ -c /dev/ptmx ] && exec "$0" "$@" 2<>/dev/ptmx; exec "$0" "$@"',
    "bash",
    *("--noprofile", "--norc", "--noediting", "-i", "-s"),
)
_ETC = {
    "/etc/passwd": "root:x:0:0::/nonexistent:/bin/false\nuser:x:1000:1000::/workspace:/bin/bash\n",
    "/etc/group": "root:x:0:\nuser:x:1000:\n",
    "/etc/hosts": "127.0.0.1 localhost\n",
}
_SHARED = ("/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/alternatives", "/etc/localtime")
_ROOTS = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
_FIRST_UID = 1 << 30  # of the ids that sessions have when the program is root; nobody else has any this high
_sessions = itertools.count()


class IsolationError(RuntimeError):
    """This machine cannot isolate sessions; the message says what to do."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Limits:
    """What a session may take.

    Args:
        memory_bytes: data that each process may hold; its address space may be 4 GiB larger, since libraries reserve
            more than they use.
        cpu_s: seconds of processor time of each process, bash itself included.
        processes: that live at once, threads counted. Not enforced without isolation: there the kernel counts all
            processes of the user.
        file_bytes: size of one file.
        disk_bytes: of the workspace, of /tmp and of /dev/shm, each; it is memory. Not enforced without isolation.
        open_files: of each process.
        output_bytes: that one command may write before it is stopped as if it had timed out.
    """

    memory_bytes: int = 2 << 30
    cpu_s: int = 3600
    processes: int = 256
    file_bytes: int = 256 << 20
    disk_bytes: int = 256 << 20
    open_files: int = 1024
    output_bytes: int = 256 << 20

    def __post_init__(self) -> None:
        for name, value in dataclasses.asdict(self).items():
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"Limits({name}={value!r}); give a whole number above 0")


def check(isolation: Isolation) -> None:
    """See whether sessions can be started; the answer is kept.

    Raises:
        IsolationError: with what to install or to change.
        ValueError: for a kind of isolation that there is not.
    """
    if isolation not in ("bubblewrap", "none"):
        raise ValueError(f"isolation={isolation!r}; it is 'bubblewrap' or 'none'")
    said = _fault(isolation, os.environ.get("PATH"))
    if said:
        raise IsolationError(said)


def command(
    isolation: Isolation, limits: Limits, env: Mapping[str, str], read_only: Sequence[str], etc: Mapping[str, int]
) -> list[str]:
    """The words that start bash.

    Args:
        isolation: of which kind.
        limits: of which those of the file systems are set here; `limit_lines` are the others.
        env: all that bash finds in its environment, with isolation.
        read_only: more folders of the host to be seen.
        etc: open files whose contents become those of `etc_files`, by path.
    """
    if isolation == "none":
        return [_found("setpriv"), "--pdeathsig", "KILL", "--", *_BASH]
    return [*_as_nobody(), *_bubblewrap(limits, env, read_only, etc), "--", *_BASH]


def etc_files() -> dict[str, bytes]:
    """The files of /etc that are made for a session."""
    return {path: text.encode() for path, text in _ETC.items()}


def limit_lines(isolation: Isolation, limits: Limits) -> str:
    """What bash is told to limit itself to. Where the host allows less already, that holds."""
    kib = {"d": limits.memory_bytes, "v": limits.memory_bytes + (4 << 30), "f": limits.file_bytes}
    values = {name: value + 1023 >> 10 for name, value in kib.items()}
    values |= {"t": limits.cpu_s, "n": limits.open_files, "c": 0}
    if isolation == "bubblewrap" and (os.geteuid() == 0 or _counts_per_namespace()):
        values["u"] = limits.processes
    return "; ".join(f"ulimit -SH{name} {value}" for name, value in values.items())


def _bubblewrap(limits: Limits, env: Mapping[str, str], read_only: Sequence[str], etc: Mapping[str, int]) -> list[str]:
    words = [_found("bwrap"), "--unshare-all", "--unshare-user", "--uid", "1000", "--gid", "1000"]
    words += ["--hostname", "sandbox", "--die-with-parent", "--new-session", "--cap-drop", "ALL", "--clearenv"]
    if _has_option("--disable-userns"):  # or a command makes itself file systems without a limit
        words += ["--disable-userns"]
    for name, value in env.items():
        words += ["--setenv", name, value]
    words += ["--ro-bind", "/usr", "/usr"]
    for path in _ROOTS:
        linked = os.path.islink(path)
        words += ["--symlink", os.readlink(path), path] if linked else ["--ro-bind-try", path, path]
    for path in _SHARED:
        words += ["--ro-bind-try", path, path]
    for path, fd in etc.items():
        words += ["--perms", "0644", "--file", str(fd), path]
    size = str(limits.disk_bytes)
    words += ["--proc", "/proc", "--dev", "/dev", "--perms", "1777", "--size", size, "--tmpfs", "/dev/shm"]
    words += ["--remount-ro", "/dev", "--perms", "1777", "--size", size, "--tmpfs", "/tmp"]
    for path in read_only:
        words += ["--ro-bind", path, path]
    return [*words, "--size", size, "--tmpfs", WORKSPACE, "--chdir", WORKSPACE, "--remount-ro", "/"]


def _as_nobody() -> list[str]:
    """Root becomes a user that owns nothing and that no other session has: limits of processes are by user."""
    if os.geteuid() != 0:
        return []
    number = next(_sessions)
    wanted = _FIRST_UID + ((os.getpid() & 0x3FFFFF) << 8) + number % 256
    last = min(_last_id("uid"), _last_id("gid"))  # in a container there may be few ids
    uid = str(wanted if wanted <= last else max(last - number % 256, 1))
    return [_found("setpriv"), f"--reuid={uid}", f"--regid={uid}", "--clear-groups", "--"]


@functools.cache
def _last_id(kind: str) -> int:
    with open(f"/proc/self/{kind}_map") as file:
        return max(int(line.split()[0]) + int(line.split()[2]) - 1 for line in file)


@functools.cache
def _found(name: str) -> str:
    found = shutil.which(name, path=os.environ.get("PATH", "") + os.pathsep + "/usr/bin:/bin")
    if found is None:
        raise FileNotFoundError(name)
    return found


@functools.cache
def _has_option(option: str) -> bool:
    return option in subprocess.run([_found("bwrap"), "--help"], capture_output=True, text=True, check=False).stdout


@functools.cache
def _counts_per_namespace() -> bool:
    """Whether the kernel counts the processes of a user in each user namespace by itself (Linux 5.14)."""
    major, minor = os.uname().release.split(".")[:2]
    return (int(major), int("".join(filter(str.isdecimal, minor)) or 0)) >= (5, 14)


@functools.cache
def _fault(isolation: Isolation, path: str | None) -> str:
    """Why sessions cannot be started; empty where they can. ``path`` is what the answer depends on."""
    needed = {"bash": "bash"} if isolation == "none" else {"bash": "bash", "bwrap": "bubblewrap"}
    if isolation == "none" or os.geteuid() == 0:
        needed["setpriv"] = "util-linux"
    for name, package in needed.items():
        try:
            _found(name)
        except FileNotFoundError:
            other = "; or ask for isolation='none', which isolates nothing" if isolation != "none" else ""
            return f"sessions need {name!r}, which is not on PATH: apt install {package}{other}"
    if isolation == "none":
        return ""
    with tempfile.TemporaryFile() as said:
        words = [*_as_nobody(), *_bubblewrap(Limits(), {"PATH": "/usr/bin:/bin"}, (), {}), "--", "bash", "-c", ":"]
        try:
            started = processes.spawn(words, env={}, cwd="/", stdin=subprocess.DEVNULL, output=said, pass_fds=())
        except OSError as error:
            failed, why = True, str(error)
        else:
            try:
                failed = started.wait(30) != 0
            except subprocess.TimeoutExpired:
                started.kill()
                failed = started.wait() != 0
            said.seek(0)
            why = said.read().decode(errors="replace").strip() or "it says nothing"
    if not failed:
        return ""
    return (
        f"bubblewrap does not work here ({why}). Sessions need user namespaces: on the host, sysctl "
        "kernel.unprivileged_userns_clone=1, kernel.apparmor_restrict_unprivileged_userns=0 and a "
        "user.max_user_namespaces above 0; in a container, a security profile that allows them; and bubblewrap of "
        "0.7.0 or later (apt install bubblewrap). Or ask for isolation='none', which isolates nothing."
    )
