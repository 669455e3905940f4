"""What programs that were killed have left behind, told apart by whose it is."""

import contextlib
import functools
import itertools
import os
import shutil
import signal
import tempfile

from statelesschat.host import processes

MARKER = "STATELESSCHAT_SESSION"  # in the environment of bubblewrap, and of every process without isolation
_PREFIX = "statelesschat-"
_numbers = itertools.count()


@functools.cache
def _owner(pid: int) -> str:
    own = processes.process(pid)
    return f"{pid}-{own.started if own else 0}-{_namespace()}"


def owner() -> str:
    """This program, never to be taken for another: pid, start time, and the namespace that pids are of."""
    return _owner(os.getpid())


def make_folder() -> str:
    """A new temporary folder of this program; `reap` removes it if the program is killed."""
    return tempfile.mkdtemp(prefix=f"{_PREFIX}{owner()}-")


def new_mark() -> str:
    """For the processes of a session that has no folder."""
    return f"{owner()}-b{next(_numbers)}-"


def mark_of(folder: str) -> str:
    """What the processes of a session are marked with, whose folder this is."""
    return os.path.basename(folder).removeprefix(_PREFIX)


def remove_folder(path: str) -> None:
    """Remove a folder and all in it; what cannot be removed stays."""
    for folder, names, _ in os.walk(path):
        for name in names:  # a command may have taken its own rights away
            with contextlib.suppress(OSError):
                if not os.path.islink(where := os.path.join(folder, name)):
                    os.chmod(where, 0o700)
    shutil.rmtree(path, ignore_errors=True)


def marked(mark: str) -> list[int]:
    """Processes whose environment at their start had this mark, a whole one or its beginning."""
    wanted = f"{MARKER}={mark}".encode()
    return [pid for pid in processes.table() if any(entry.startswith(wanted) for entry in _environ(pid))]


def kill_marked(mark: str) -> None:
    """Kill them, and those that they start meanwhile."""
    for _ in range(8):
        pids = marked(mark)
        if not pids:
            return
        processes.send(signal.SIGKILL, pids)


def reap() -> int:
    """End the processes and remove the folders of sessions whose program is gone; how many of both.

    Sessions without isolation need it after their program was killed; those in bubblewrap end with it, unless somebody
    killed bubblewrap itself just when it started. It runs by itself before a program's first session.

    Example:
        >>> from statelesschat.host.reaper import reap
        >>> _ = reap()
    """
    gone = 0
    wanted = f"{MARKER}=".encode()
    for pid in processes.table():
        for entry in _environ(pid):
            if entry.startswith(wanted) and _is_over(entry[len(wanted) :].decode("ascii", "replace")):
                processes.send(signal.SIGKILL, [pid])
                gone += 1
    with os.scandir(tempfile.gettempdir()) as entries:
        folders = [entry for entry in entries if entry.name.startswith(_PREFIX)]
    for folder in folders:
        with contextlib.suppress(OSError):
            own = folder.stat(follow_symlinks=False).st_uid == os.geteuid() and folder.is_dir(follow_symlinks=False)
            if own and _is_over(folder.name.removeprefix(_PREFIX)):
                remove_folder(folder.path)
                gone += 1
    return gone


@functools.cache
def reap_once() -> None:
    """`reap`, once in a program."""
    reap()


def _is_over(mark: str) -> bool:
    """Whether the program of a mark is gone; what cannot be known is not."""
    parts = mark.split("-")
    if len(parts) < 4 or not (parts[0].isdecimal() and parts[1].isdecimal()) or parts[2] != _namespace():
        return False
    own = processes.process(int(parts[0]))
    return own is None or own.started != int(parts[1])


def _namespace() -> str:
    return str(os.stat("/proc/self/ns/pid").st_ino)


def _environ(pid: int) -> list[bytes]:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return file.read().split(b"\0")
    except OSError:
        return []
