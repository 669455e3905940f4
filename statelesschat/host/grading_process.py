"""One worker of `statelesschat.host.grading`, as the program sees it: started, asked, ended."""

import contextlib
import functools
import inspect
import json
import os
import pickle
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from statelesschat.host import grading_worker, processes
from statelesschat.host.grading_worker import HEAD, MARK

_STANDALONE = ("statelesschat.host.graders",)  # modules to be loaded by their path, without the package around them
_MAX_REPLY = 1 << 20  # bytes; a worker says a number or a few lines
_SLICE_S = 0.5  # how often it is looked at whether a worker is alive, whose children may keep its line open


class GraderError(Exception):
    """A grader that no worker can load, or start with; says why."""


class WorkerDiedError(Exception):
    """The process ended by itself; says how."""


def order_for(grader: Callable[..., Any]) -> bytes:
    """What a worker needs to find a grader: where it is defined, and what is bound to it.

    Raises:
        TypeError: not a function, nor a `functools.partial` of one.
        ValueError: a function that cannot be found by its name from another process; says what to do.
    """
    bound: tuple[tuple[Any, ...], dict[str, Any]] = ((), {})
    function: Any = grader
    if isinstance(grader, functools.partial):
        function, bound = grader.func, (grader.args, grader.keywords)
    if not inspect.isroutine(function):
        raise TypeError(
            f"{grader!r} is no grader; give a function at the top level of a module, or a functools.partial of one"
        )
    module, qualname = getattr(function, "__module__", None), getattr(function, "__qualname__", "")
    if "<lambda>" in qualname or "<locals>" in qualname or not module:
        raise ValueError(
            f"{qualname or function!r} cannot reach a worker process, which finds a grader by its name; define it "
            "with def at the top level of a module, and bind what it needs with functools.partial"
        )
    found: Any = sys.modules.get(module)
    for name in qualname.split("."):
        found = getattr(found, name, None)
    if found is not function:
        raise ValueError(
            f"{module}.{qualname} is not this function but {found!r}, so a worker process would find another one; "
            "give a function that its module holds under its own name"
        )
    try:
        kept = pickle.dumps(bound)
    except Exception as error:
        raise ValueError(f"what is bound to {qualname} cannot be pickled: {error}; bind plain values") from error
    name, path = _place(module, qualname)
    sys_path = [each or os.getcwd() for each in sys.path]
    return pickle.dumps(
        {"module": name, "path": path, "qualname": qualname, "bound": kept, "sys_path": sys_path, "argv": sys.argv}
    )


class Worker:
    """A worker process, not yet ready; it is in a group of its own. `end` may be called twice, and from any thread."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        try:
            argv = [sys.executable, "-P", grading_worker.__file__, str(theirs.fileno()), str(os.getpid())]
            self._process = processes.spawn(
                argv,
                env={**os.environ, MARK: "1", "JAX_PLATFORMS": "cpu"},  # a grader that uses jax takes no device
                cwd=os.getcwd(),
                stdin=subprocess.DEVNULL,
                output=_stderr(),  # what graders print does not mix with what the program does
                pass_fds=[theirs.fileno()],
            )
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        self._line = ours
        self._lock = threading.Lock()

    def meet(self, order: bytes, timeout_s: float) -> None:
        """Wait until it has loaded the grader.

        Raises:
            GraderError: it cannot load it.
            TimeoutError: it takes longer.
            WorkerDiedError: it ended.
        """
        self._send(order, timeout_s)
        match self.hear(timeout_s):
            case ["ready"]:
                return
            case ["failed", said, where]:
                raise GraderError(f"no worker can load the grader: {said}" + (f" ({where})" if where else ""))
            case said:
                raise _no_reply(said)

    def begin(self, row: bytes, timeout_s: float) -> None:
        """Hand it a row and wait until it begins; after an error it had not, and is only to be closed.

        Raises:
            TimeoutError: it takes longer.
            WorkerDiedError: it ended before.
        """
        self._send(row, timeout_s)
        if (said := self.hear(timeout_s)) != ["begun"]:
            raise _no_reply(said)

    def hear(self, timeout_s: float) -> Any:
        """What it says next; after an error it is only to be closed.

        Raises:
            TimeoutError: nothing within that many seconds.
            WorkerDiedError: it ended instead.
        """
        until = time.monotonic() + timeout_s
        with self._deaths():
            (size,) = HEAD.unpack(self._read(HEAD.size, until))
            if size > _MAX_REPLY:
                raise _no_reply(f"{size} bytes")
            said = self._read(size, until)
            try:
                return json.loads(said)
            except ValueError as error:
                raise _no_reply(said) from error

    def alive(self) -> bool:
        """Whether it runs; it is left for `end` to be waited for, so that its number stays taken."""
        if self._process.returncode is not None:
            return False
        try:
            return os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
        except ChildProcessError:
            return False

    def end(self) -> None:
        """Kill it and what it started, and wait for it. Whoever asks it something is told at once."""
        with self._lock:
            if self._process.returncode is None:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(self._process.pid, signal.SIGKILL)
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    self._process.kill()
                self._process.wait()
            with contextlib.suppress(OSError):
                self._line.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """`end` it and close the line; only for the thread that asks."""
        self.end()
        self._line.close()

    def _send(self, message: bytes, timeout_s: float) -> None:
        with self._deaths():
            self._line.settimeout(timeout_s)  # for all of it
            self._line.sendall(HEAD.pack(len(message)))
            self._line.sendall(message)

    @contextlib.contextmanager
    def _deaths(self) -> Iterator[None]:
        """Tell its end apart from its silence."""
        try:
            yield
        except TimeoutError:
            if self.alive():
                raise
            raise WorkerDiedError(self._death()) from None
        except OSError as error:
            raise WorkerDiedError(self._death()) from error

    def _read(self, size: int, until: float) -> bytes:
        if self._line.fileno() < 0:
            raise ConnectionResetError
        data = bytearray()
        poll = select.poll()
        poll.register(self._line, select.POLLIN)
        while len(data) < size:
            left = until - time.monotonic()
            if left <= 0:
                raise TimeoutError
            lived = self.alive()  # asked before: what it wrote at last is there then
            if poll.poll(min(left, _SLICE_S) * 1000):
                got = self._line.recv(size - len(data))
                if not got:
                    raise ConnectionResetError
                data += got
            elif not lived:
                raise ConnectionResetError
        return bytes(data)

    def _death(self) -> str:
        self.end()
        code = self._process.returncode
        if code is not None and code < 0:
            with contextlib.suppress(ValueError):
                why = "; the machine may be out of memory" if code == -signal.SIGKILL else ""
                return f"the worker process was ended by {signal.Signals(-code).name}{why}"
        return f"the worker process ended with status {code}"


def _no_reply(said: Any) -> WorkerDiedError:
    return WorkerDiedError(f"the worker process wrote what is no reply: {said!r:.200}")


def _place(module: str, qualname: str) -> tuple[str, str | None]:
    """Which module to import in a worker, and the path to run it from, if not by its name."""
    if module in _STANDALONE:
        return module, sys.modules[module].__file__
    if module != "__main__":
        return module, None
    main = sys.modules["__main__"]
    if main.__spec__ is not None:  # python -m
        return main.__spec__.name, None
    path = getattr(main, "__file__", None)
    if path is None or not os.path.isfile(path):
        raise ValueError(
            f"{qualname} was defined in a notebook or a prompt, where a worker process cannot find it; put it in a "
            "file and import it"
        )
    return module, os.path.abspath(path)


def _stderr() -> int:
    try:
        os.fstat(2)
    except OSError:  # a program without one
        return subprocess.DEVNULL
    return 2
