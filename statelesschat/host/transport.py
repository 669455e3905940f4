"""A bash that reads what to run from one pipe, writes through another, and says how it went through a third.

Its own stdout and stderr go nowhere: a command gets the output pipe for both, so that their order is kept.
"""

import contextlib
import dataclasses
import enum
import os
import select
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping

from statelesschat.host import framing, pipes, processes
from statelesschat.host.capture import Capture

_WAITS_S = (0.5, *8 * (0.1,), 0.3, 0.3)  # for the frame, after each interrupt


class Stop(enum.Enum):
    """Why no frame came."""

    TIMEOUT = "timeout"
    IDLE = "idle"
    FLOOD = "flood"  # too much output
    ENDED = "ended"  # bash is gone


@dataclasses.dataclass(frozen=True)
class Frame:
    """What bash says after a command."""

    rc: int
    cwd: str


class Transport:
    """One bash and the pipes to it. One thread at a time may use it; `kill` is for any thread.

    Args:
        argv: gives the words that start it, from the numbers that the open files of ``data`` have.
        env: its environment.
        cwd: where it starts.
        data: contents that it finds in open files.
        nested: whether the process started is not bash itself but an ancestor, all of whose descendants are of the
            session.
        clean: called once when everything should have ended: with True if the process started was killed by somebody
            else, or had not come so far as to say anything.

    Raises:
        OSError: it cannot be started.
    """

    def __init__(
        self,
        argv: Callable[[Mapping[str, int]], list[str]],
        *,
        env: dict[str, str],
        cwd: str,
        data: Mapping[str, bytes],
        nested: bool,
        clean: Callable[[bool], None],
    ) -> None:
        self._nested, self._clean, self._owner = nested, clean, os.getpid()
        self._unsent, self._said = memoryview(b""), b""
        self._closing = threading.RLock()  # signal handlers may come in between
        self.killed = self._stopped = self._closed = self._heard = False
        with contextlib.ExitStack() as ours, contextlib.ExitStack() as theirs:
            control, self._control = pipes.pipe(theirs, ours)
            self._output, output = pipes.pipe(ours, theirs)
            self._status, self.status_fd = pipes.pipe(ours, theirs)
            self.data = {name: pipes.file(content, theirs) for name, content in data.items()}
            passed = (self.status_fd, *self.data.values())
            self.process = processes.spawn(
                argv(self.data), env=env, cwd=cwd, stdin=control, output=output, pass_fds=passed
            )
            try:
                self._pidfd = os.pidfd_open(self.process.pid)
            except BaseException:
                self.process.kill()
                self.process.wait()
                raise
            ours.pop_all()
        for fd in (self._control, self._output, self._status):
            os.set_blocking(fd, False)

    def ask(
        self, line: bytes, capture: Capture, *, timeout_s: float, idle_s: float | None = None, most: int | None = None
    ) -> Frame | Stop:
        """Send a line and wait for its frame; what is written meanwhile goes to ``capture``.

        Args:
            line: without a newline outside of quotes; a list of commands ends with ``;`` or a blank.
            capture: of the output.
            timeout_s: seconds until TIMEOUT.
            idle_s: seconds without output until IDLE.
            most: bytes of output until FLOOD.
        """
        names = framing.new_name(), framing.new_name()
        self._send(line + framing.frame(names[0]) + framing.frame(names[1]))
        return self._await(names, capture, timeout_s, idle_s, most)

    def interrupt(self, since: int, capture: Capture) -> Frame | Stop:
        """Stop what runs, within 2 s: as Ctrl-C does, and if that is not enough, by ending all that it started.

        Args:
            since: ticks; what was started before is left alone.
            capture: of the output.
        """
        if self._unsent:  # bash does not read: it would do so later
            return Stop.TIMEOUT
        stop: Frame | Stop = Stop.TIMEOUT
        for attempt, wait_s in enumerate(_WAITS_S):
            bash, started = self._running(since)
            if attempt:
                processes.send(signal.SIGKILL, started)
            if attempt != 1:  # bash may end by an interrupt in the moment that a command does
                time.sleep(attempt * 2e-4)  # what it starts next can be interrupted, until it says otherwise
                processes.interrupt(bash, started, group=attempt > 0)
            name = framing.new_name()
            self._send(framing.frame(name))
            stop = self._await((name,), capture, wait_s, None, None)
            if stop is not Stop.TIMEOUT:
                break
        return stop

    def kill(self) -> None:
        """End everything and clean up, within 2 s; whoever waits for a frame sees it."""
        self.killed = True
        self._stop()

    def close(self) -> int | None:
        """End everything, clean up and close the pipes; the exit code of bash."""
        self._stop()
        with self._closing:
            if self._owner == os.getpid() and not self._closed:
                self._closed = True
                for fd in (self._control, self._output, self._status, self._pidfd):
                    os.close(fd)
        rc = self.process.returncode
        return 128 - rc if rc is not None and rc < 0 else rc

    def _stop(self) -> None:
        with self._closing:
            if self._stopped or self._owner != os.getpid():  # not by a fork of the program that has it
                return
            self._stopped = True
            struck = not self._heard or (self.process.poll() or 0) < 0
            self.process.kill()
            if self._nested:  # its descendants follow, bash among them, which held the status pipe
                pipes.wait(self._pidfd, select.POLLIN, 0.8)
                pipes.wait(self._status, 0, 0.8)
            else:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(self.process.pid, signal.SIGKILL)
                pipes.wait(self._pidfd, select.POLLIN, 0.8)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(1)
            self._clean(struck)

    def _send(self, text: bytes) -> None:
        self._unsent = memoryview(bytes(self._unsent) + text)
        self._write()

    def _write(self) -> None:
        try:
            while self._unsent:
                self._unsent = self._unsent[os.write(self._control, self._unsent[: pipes.CHUNK]) :]
        except BlockingIOError:
            pass
        except BrokenPipeError:  # bash is gone, which is seen elsewhere
            self._unsent = memoryview(b"")

    def _await(
        self, names: tuple[bytes, ...], capture: Capture, timeout_s: float, idle_s: float | None, most: int | None
    ) -> Frame | Stop:
        frame = framing.pattern(*names)
        until = time.monotonic() + timeout_s
        poll = select.poll()
        for fd in (self._output, self._status, self._pidfd):
            poll.register(fd, select.POLLIN)
        if self._unsent:
            poll.register(self._control, select.POLLOUT)
        quiet_until = None if idle_s is None else time.monotonic() + idle_s
        while True:
            now = time.monotonic()
            if now >= until:
                return Stop.TIMEOUT
            if quiet_until is not None and now >= quiet_until:
                return Stop.IDLE
            left = until - now if quiet_until is None else min(until, quiet_until) - now
            ready = dict(poll.poll(min(left * 1000 + 1, 1e9)))
            if self.killed:
                return Stop.ENDED
            if self._control in ready:
                self._write()
                if not self._unsent:
                    poll.unregister(self._control)
            if self._output in ready:
                if self._read(capture):
                    quiet_until = None if idle_s is None else time.monotonic() + idle_s
                else:
                    poll.unregister(self._output)
                if most is not None and capture.total > most:
                    return Stop.FLOOD
            if self._status in ready:
                said = pipes.read(self._status)
                if not said:
                    poll.unregister(self._status)
                self._said += said
                found = frame.search(self._said)
                if found:
                    self._said, self._heard = b"", True
                    self._drain(capture)  # a command's own output came before its frame
                    return Frame(int(found[2]) & 255, os.fsdecode(found[3]))
                self._said = self._said[-framing.MOST :]
            if self._pidfd in ready:
                self._drain(capture)
                return Stop.ENDED

    def _read(self, capture: Capture) -> int:
        data = pipes.read(self._output)
        capture.add(data)
        return len(data)

    def _drain(self, capture: Capture) -> None:
        """What is in the output pipe now, and no more: something in the background may write without end."""
        left = pipes.held(self._output)
        while left > 0 and (read := self._read(capture)):
            left -= read

    def _running(self, since: int) -> tuple[int, list[int]]:
        """The pid of bash, 0 if it is gone, and those of what was started since."""
        table = processes.table()
        bash = first = self.process.pid
        if self._nested:  # the process started has one child, the first of the namespace, and bash is its first
            first = next((each.pid for each in table.values() if each.parent == self.process.pid), 0)
            children = [each.pid for each in table.values() if each.parent == first]
            bash = min(children, key=processes.inner_pid, default=0)
        started = {each.pid for root in {first, bash} for each in processes.descendants(root, table, since)}
        return bash, list(started - {bash})
