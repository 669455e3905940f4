"""A bash for a conversation, in a sandbox that needs no container engine."""

import atexit
import contextlib
import os
import signal
import threading
import time
import weakref
from collections.abc import Mapping, Sequence

from statelesschat.host import framing, processes, sandbox
from statelesschat.host.capture import Capture
from statelesschat.host.recipe import Recipe, pack
from statelesschat.host.sandbox import Isolation, Limits
from statelesschat.host.session import MAX_COMMAND_BYTES, Event, Outcome, Reply, Score, SessionSpec
from statelesschat.host.transport import Frame, Stop, Transport

_live: "set[Transport]" = set()
_STRUCK = {  # exit codes of a bash that did not end by itself
    128 + number: number
    for number in (signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGILL, signal.SIGXCPU)
}


class ShellSession:
    """One bash that lives from command to command: its folder, variables, functions and background jobs persist.

    A `Session`. With ``isolation="bubblewrap"`` commands see a read-only ``/usr``, an empty ``/workspace`` and
    ``/tmp`` in memory, their own processes, and nothing else of the machine: no network, no home, no environment.
    With ``"none"`` they are run as the user of this program, with all its rights, in a temporary folder.

    Commands have no stdin and no terminal; stdout and stderr come as one. ``set -e``, traps on INT and redirections
    by ``exec`` of stdin, stdout and stderr last for one command. What a job in the background writes comes with the
    output of a later command.
    A reset takes 10 to 20 ms, a command well under one.

    Args:
        isolation: ``"bubblewrap"`` or ``"none"``.
        files: what the workspace holds at first, by relative path; those that begin with ``#!`` are executable.
        setup: commands run at each reset, after the files are there; if the last one fails, so does the reset.
        limits: what the session may take.
        env: further environment variables, such as another ``PATH``.
        read_only: absolute paths of the host that are seen, with isolation; everyone must be able to read them.
        start_timeout_s: seconds that a reset may take, ``setup`` included.
        name: for the `SessionSpec`.
        replayable: for the `SessionSpec`: that its commands have the same effects in a fresh world.

    Raises:
        IsolationError: when made, if this machine cannot do it; says what to install or to change.
        ValueError: an argument that means nothing.

    Example:
        >>> session = ShellSession(isolation="none", files={"notes.txt": "hello"})
        >>> session.reset(seed=0).outcome.name
        'OK'
        >>> session.run(0, b"cat notes.txt", timeout_s=10, idle_s=None, max_bytes=1000).obs
        b'hello'
        >>> session.kill()
    """

    def __init__(
        self,
        *,
        isolation: Isolation = "bubblewrap",
        files: Mapping[str, bytes | str] | None = None,
        setup: str | None = None,
        limits: Limits | None = None,
        env: Mapping[str, str] | None = None,
        read_only: Sequence[str] = (),
        start_timeout_s: float = 30.0,
        name: str = "shell",
        replayable: bool = False,
    ) -> None:
        sandbox.check(isolation)
        if not start_timeout_s > 0:
            raise ValueError(f"start_timeout_s={start_timeout_s!r}; give a number above 0")
        for path in read_only:
            if not os.path.isabs(path) or not os.path.exists(path):
                raise ValueError(f"read_only has {path!r}, which is no absolute path of anything on this machine")
        if read_only and isolation == "none":
            raise ValueError("read_only means nothing with isolation='none': everything is seen")
        self.spec = SessionSpec(name=name, isolated=isolation == "bubblewrap", replayable=replayable)
        self._limits = limits or Limits()
        self._recipe = Recipe(isolation, self._limits, dict(env or {}), tuple(read_only), pack(files or {}))
        self._setup, self._start_timeout_s = setup, start_timeout_s
        self._running = threading.Lock()  # held by reset and run
        self._guard = threading.RLock()  # of the two below; signal handlers may come in between
        self._kills = 0
        self._transport: Transport | None = None
        self._finalizer: weakref.finalize | None = None
        self._cwd, self._rc = "", 0

    def reset(self, seed: int) -> Reply:
        """A fresh world: an empty workspace but for ``files``, and ``RANDOM`` seeded. ``obs`` is what setup wrote.

        START_FAILED if it does not start in time, with what was written and ``detail``; it may be tried again.
        """
        begun = time.perf_counter()
        if not self._running.acquire(blocking=False):
            return _busy()
        capture = Capture(1 << 14)
        try:
            with self._guard:
                kills = self._kills
            self._end()
            try:
                detail = self._start(seed, kills, capture)
            except Exception as error:
                detail = f"{type(error).__name__}: {error}"
            if not detail:
                return _reply(capture, Outcome.OK, begun, rc=0)
            self._end()
            return _reply(capture, Outcome.START_FAILED, begun, detail=detail)
        finally:
            self._running.release()

    def run(self, step: int, action: bytes, *, timeout_s: float, idle_s: float | None, max_bytes: int) -> Reply:
        """Run one command, as `Session` has it."""
        begun = time.perf_counter()
        if not self._running.acquire(blocking=False):
            return _busy()
        capture = Capture(max_bytes)
        try:
            transport = self._transport
            if transport is None or transport.killed:
                self._end()
                return _reply(capture, Outcome.DEAD, begun, detail="the session has ended; reset it first")
            if b"\0" in action or len(action) > MAX_COMMAND_BYTES:
                said = f"a command has at most {MAX_COMMAND_BYTES} bytes, and no NUL; nothing was run"
                return _reply(capture, Outcome.REFUSED, begun, detail=said)
            return self._run(transport, action, capture, timeout_s, idle_s, begun)
        except Exception as error:  # the session is in no known state
            self._end()
            return _reply(capture, Outcome.DEAD, begun, detail=f"{type(error).__name__}: {error}")
        finally:
            self._running.release()

    def state(self) -> Mapping[str, str]:
        """``working_dir``, if there is one."""
        return {"working_dir": self._cwd} if self._cwd else {}

    def score(self, final: bool) -> Score:
        """Nothing is measured."""
        return Score({})

    def kill(self) -> None:
        """End it at once, as `Session` has it."""
        with self._guard:
            self._kills += 1
            transport = self._transport
        if transport is not None:
            transport.kill()
        if self._running.acquire(blocking=False):  # else whoever runs sees it
            try:
                self._end()
            finally:
                self._running.release()

    def _start(self, seed: int, kills: int, capture: Capture) -> str:
        """Start a bash; what went wrong, or nothing."""
        until = time.monotonic() + self._start_timeout_s
        transport = self._recipe.start()
        _live.add(transport)
        self._finalizer = weakref.finalize(self, _finish, transport)
        self._finalizer.atexit = False
        with self._guard:
            self._transport = transport
            if self._kills != kills:
                return "it was killed while it started"
        began = Capture(4096)
        answer = transport.ask(self._recipe.first_line(transport, seed), began, timeout_s=self._start_timeout_s)
        if isinstance(answer, Frame) and answer.rc == 0:
            self._cwd, self._rc = answer.cwd, 0
            if self._setup is None:
                return ""
            line = framing.command(self._setup.encode(), 0)
            left = max(until - time.monotonic(), 0.0)
            answer = transport.ask(line, capture, timeout_s=left, most=self._limits.output_bytes)
            if isinstance(answer, Frame):
                self._cwd, self._rc = answer.cwd, answer.rc
                return "" if answer.rc == 0 else f"setup failed with exit code {answer.rc}"
            return "it was killed while it started" if transport.killed else f"setup did not finish: {answer.value}"
        said = began.text().decode(errors="replace").strip()
        why = "the files could not be unpacked" if isinstance(answer, Frame) else answer.value
        if transport.killed:
            return "it was killed while it started"
        return f"bash did not start: {why}: {said}"

    def _run(
        self,
        transport: Transport,
        action: bytes,
        capture: Capture,
        timeout_s: float,
        idle_s: float | None,
        begun: float,
    ) -> Reply:
        since = processes.ticks()
        answer = transport.ask(
            framing.command(action, self._rc),
            capture,
            timeout_s=timeout_s,
            idle_s=idle_s,
            most=self._limits.output_bytes,
        )
        if isinstance(answer, Frame):
            self._cwd, self._rc = answer.cwd, answer.rc
            return _reply(capture, Outcome.OK, begun, rc=answer.rc)
        if answer is not Stop.ENDED:
            stopped = transport.interrupt(since, capture)
            if isinstance(stopped, Frame):
                self._cwd, self._rc = stopped.cwd, 130
                said = {
                    Stop.TIMEOUT: f"it was stopped after {timeout_s:g} s",
                    Stop.IDLE: f"it was stopped after {idle_s} s without output",
                    Stop.FLOOD: f"it was stopped after {self._limits.output_bytes} bytes of output",
                }
                return _reply(capture, Outcome.TIMEOUT, begun, detail=said[answer])
            if stopped is not Stop.ENDED:
                self._end()
                return _reply(capture, Outcome.DEAD, begun, detail="it could not be stopped, so the session was ended")
        killed = transport.killed
        rc = self._end()
        if killed:
            return _reply(capture, Outcome.DEAD, begun, detail="the session was killed")
        if rc in _STRUCK:  # by what is short of memory, or from outside: not what the policy chose
            detail = f"bash was ended by {_STRUCK[rc].name}"
            return _reply(capture, Outcome.DEAD, begun, rc=rc, detail=detail)
        return _reply(capture, Outcome.DEAD, begun, rc=rc, event="exit", detail="bash has ended")

    def _end(self) -> int | None:
        """End the world; the exit code of bash. Only whoever holds the lock for running may."""
        with self._guard:
            transport, self._transport, self._cwd = self._transport, None, ""
        if transport is None:
            return None
        if self._finalizer is not None:
            self._finalizer.detach()
        return _finish(transport)


@atexit.register
def end_all() -> None:
    """End all sessions of this program; it happens by itself when the program ends normally.

    Programs that end by a signal call it in their handler. Sessions in bubblewrap end with the program in any case.
    """
    for transport in list(_live):
        with contextlib.suppress(Exception):
            transport.kill()


def _finish(transport: Transport) -> int | None:
    _live.discard(transport)
    return transport.close()


def _busy() -> Reply:
    return Reply(b"", Outcome.BUSY, detail="the session runs another command at this moment")


def _reply(
    capture: Capture,
    outcome: Outcome,
    begun: float,
    *,
    rc: int | None = None,
    event: Event | None = None,
    detail: str = "",
) -> Reply:
    return Reply(
        capture.text(),
        outcome,
        rc=rc,
        n_bytes=capture.total,
        truncated=capture.truncated,
        ms=(time.perf_counter() - begun) * 1000,
        event=event,
        detail=detail,
    )
