"""A worker of `statelesschat.host.grading`: rows come in, rewards go out.

It is run by its path and imports nothing of the package, whose import starts jax: a worker is there within a moment,
takes no device and holds little memory. What comes in is pickled by the program; what goes out is JSON, because a
grader may be led by what it reads (sympy evaluates text), and unpickling what it says would hand it the program.
"""

import functools
import importlib
import importlib.util
import json
import math
import os
import pickle
import runpy
import select
import signal
import socket
import struct
import sys
import threading
import traceback
from collections.abc import Callable
from types import ModuleType
from typing import Any

HEAD = struct.Struct("!Q")
MARK = "STATELESSCHAT_GRADER"  # in the environment of a worker
MAX_DETAIL = 2000  # characters
_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Serve the program until it closes its side."""
    fd, parent = int(sys.argv[1]), int(sys.argv[2])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the program, which closes its pool
    os.set_inheritable(fd, False)
    _end_with(parent)
    threading.Thread(target=_watch, args=(fd, parent), daemon=True).start()
    with socket.socket(fileno=fd) as line:
        try:
            grader = _load(pickle.loads(_receive(line)))
        except BaseException as error:
            where = traceback.format_exc(limit=-1).strip().splitlines()
            _send(line, "failed", _said(error), where[1].strip() if len(where) > 2 else "")
            return
        _send(line, "ready")
        while True:
            row = _receive(line)
            _send(line, "begun")  # from here on, what happens is the row's doing
            _send(line, *_graded(grader, row))


def _graded(grader: Callable[..., Any], row: bytes) -> tuple[str, Any]:
    try:
        reward = grader(*pickle.loads(row))
    except BaseException as error:  # also SystemExit: a grader must not end the worker by raising
        return "raised", _said(error)
    try:
        number = math.nan if isinstance(reward, str | bytes | bytearray) else float(reward)
    except BaseException:  # of an object of the grader's
        number = math.nan
    if math.isfinite(number):
        return "reward", number
    try:
        shown = f"{reward!r:.200}"
    except BaseException:
        shown = f"a {type(reward).__name__}"
    return "raised", f"the grader returned {shown}; let it return a finite number"


def _load(order: dict[str, Any]) -> Callable[..., Any]:
    """The grader; see `grading_process.order_for` for what an order holds."""
    sys.path[:] = order["sys_path"]
    sys.argv[:] = order["argv"]
    found: Any = _module(order["module"], order["path"])
    for name in order["qualname"].split("."):
        found = getattr(found, name)
    getattr(found, "prepare", lambda: None)()
    args, kwargs = pickle.loads(order["bound"])
    return functools.partial(found, *args, **kwargs) if args or kwargs else found


def _module(name: str, path: str | None) -> ModuleType:
    if path is None:
        return importlib.import_module(name)
    if name == "__main__":  # as multiprocessing does: under another name, so that what `if __name__` guards stays out
        module = ModuleType("__mp_main__")
        sys.modules["__mp_main__"] = module
        module.__dict__.update(runpy.run_path(path, run_name="__mp_main__"))
        sys.modules["__main__"] = module  # what is pickled refers to it
        return module
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _said(error: BaseException) -> str:
    try:
        return "".join(traceback.format_exception_only(error)).strip()[:MAX_DETAIL]
    except BaseException:  # an exception whose text cannot be made
        return type(error).__name__


def _receive(line: socket.socket) -> bytes:
    (size,) = HEAD.unpack(_read(line, HEAD.size))
    return _read(line, size)


def _read(line: socket.socket, size: int) -> bytes:
    buffer = bytearray(size)
    view = memoryview(buffer)
    while view:
        got = line.recv_into(view)
        if not got:
            os._exit(0)  # the program closed its side
        view = view[got:]
    return bytes(buffer)


def _send(line: socket.socket, *message: Any) -> None:
    data = json.dumps(message).encode("ascii")
    line.sendall(HEAD.pack(len(data)) + data)


def _end_with(parent: int) -> None:
    """Let the kernel end this process with the program.

    The thread below could not while a grader holds the interpreter's lock, as a regular expression does or a large
    power; where there is no such call, it is all there is.
    """
    if sys.platform != "linux":
        return
    import ctypes

    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it ended before
        os._exit(0)
    try:
        with open("/proc/self/oom_score_adj", "w") as file:  # where memory runs out, the program is not what ends
            file.write("1000")
    except OSError:
        pass


def _watch(fd: int, parent: int) -> None:
    poll = select.poll()
    poll.register(fd, 0)  # only its end
    while not poll.poll(1000) and os.getppid() == parent:
        pass
    os._exit(0)


if __name__ == "__main__":
    main()
