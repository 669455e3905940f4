"""Processes: the table of them in /proc, and the one thread that starts them all."""

import contextlib
import os
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from typing import IO, NamedTuple

_TICKS = os.sysconf("SC_CLK_TCK")  # per second, of the start times in /proc


class Process(NamedTuple):
    """One row of the table."""

    pid: int
    parent: int
    started: int  # ticks since the machine started


def table() -> dict[int, Process]:
    """Every process that can be seen, by pid."""
    found = (process(int(name)) for name in os.listdir("/proc") if name.isdecimal())
    return {each.pid: each for each in found if each is not None}


def process(pid: int) -> Process | None:
    """The row of one process; None if there is none, or it is a zombie."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            said = file.read()
    except OSError:
        return None
    fields = said[said.rindex(b")") + 2 :].split()  # the name before it may hold anything
    return None if fields[0] in (b"Z", b"X") else Process(pid, int(fields[1]), int(fields[19]))


def descendants(pid: int, among: dict[int, Process], since: int = 0) -> list[Process]:
    """Children of a process, their children, and so on, the nearest first; of those started since, in ticks."""
    children: dict[int, list[Process]] = {}
    for each in among.values():
        if each.started >= since:
            children.setdefault(each.parent, []).append(each)
    found = list(children.get(pid, ()))
    for each in found:  # which grows
        found += children.get(each.pid, ())
    return found


def inner_pid(pid: int) -> int:
    """Which pid a process has in its own namespace; a very high one if it is gone."""
    try:
        with open(f"/proc/{pid}/status") as file:
            return next((int(line.split()[-1]) for line in file if line.startswith("NSpid:")), pid)
    except OSError:
        return 1 << 30


def ticks() -> int:
    """Now, as the start times of processes are counted."""
    return int(time.clock_gettime(time.CLOCK_BOOTTIME) * _TICKS)


def send(number: signal.Signals, pids: Collection[int]) -> None:
    """Send a signal to processes; those that are gone, or belong to others, are passed over."""
    for pid in pids:
        try:
            os.kill(pid, number)
        except (ProcessLookupError, PermissionError):
            pass


def interrupt(shell: int, others: Collection[int], *, group: bool) -> None:
    """What Ctrl-C does, to a shell and to others; those that were stopped go on.

    Args:
        shell: pid; 0: none. It gets one signal.
        others: pids.
        group: all in the process group of the shell as well, jobs in the background among them.
    """
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if shell and group:
            os.killpg(os.getpgid(shell), signal.SIGINT)
        elif shell:
            os.kill(shell, signal.SIGINT)
    send(signal.SIGINT, others)
    send(signal.SIGCONT, [shell, *others] if shell else others)


class _Spawner(threading.Thread):
    """Starts processes. Those that are to end with their parent end with the *thread* that started them: this one."""

    def __init__(self) -> None:
        super().__init__(name="statelesschat-spawner", daemon=True)
        self.asked = queue.SimpleQueue[tuple[Future[subprocess.Popen[bytes]], Callable[[], subprocess.Popen[bytes]]]]()
        self.start()

    def run(self) -> None:
        while True:
            future, start = self.asked.get()
            try:
                future.set_result(start())
            except BaseException as error:  # whoever asked is told
                future.set_exception(error)
            del future, start  # nothing is kept until the next comes


_spawner: _Spawner | None = None
_lock = threading.Lock()


def spawn(
    argv: Sequence[str], *, env: dict[str, str], cwd: str, stdin: int, output: int | IO[bytes], pass_fds: Sequence[int]
) -> subprocess.Popen[bytes]:
    """Start a process in a session of its own: Ctrl-C in our terminal is not for it.

    Raises:
        OSError: as `subprocess.Popen` does.
    """
    global _spawner
    with _lock:
        if _spawner is None:
            _spawner = _Spawner()
        spawner = _spawner
    future: Future[subprocess.Popen[bytes]] = Future()

    def start() -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            argv,
            env=env,
            cwd=cwd,
            stdin=stdin,
            stdout=output,
            stderr=output,
            pass_fds=pass_fds,
            start_new_session=True,
        )

    spawner.asked.put((future, start))
    return future.result()


def _forget() -> None:
    """In a forked child, which has none of its parent's threads."""
    global _spawner, _lock
    _spawner, _lock = None, threading.Lock()


os.register_at_fork(after_in_child=_forget)
