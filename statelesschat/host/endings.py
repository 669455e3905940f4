"""What has to be closed when the program ends: normally, by a signal, or by an exception."""

import atexit
import contextlib
import os
import signal
import threading
import weakref
from types import FrameType
from typing import Any, Protocol


class Closable(Protocol):
    """Anything with a ``close`` that may be called twice, from any thread, and is done within seconds."""

    def close(self) -> None:
        """End what it holds."""
        ...


_open: weakref.WeakSet[Any] = weakref.WeakSet()
_lock = threading.RLock()
_chained: dict[int, Any] = {}


def close_at_end(thing: Closable) -> None:
    """Close it when the program ends, if it is not closed or gone by then.

    The first call, if made in the main thread, also chains itself before what SIGTERM and SIGHUP do: their default
    would end the program without closing anything. Ctrl-C raises KeyboardInterrupt, and the program ends normally.
    """
    with _lock:
        _open.add(thing)
    for number in (signal.SIGTERM, signal.SIGHUP):
        _chain(number)


def closed(thing: Closable) -> None:
    """Say that it is closed already."""
    with _lock:
        _open.discard(thing)


@atexit.register
def close_all() -> None:
    """Close everything that is open. Faults of one do not keep the others open."""
    with _lock:
        things = list(_open)
        _open.clear()
    for thing in things:
        with contextlib.suppress(Exception):
            thing.close()


def _chain(number: int) -> None:
    if number in _chained or threading.current_thread() is not threading.main_thread():
        return
    before = signal.getsignal(number)
    if before is None or before is signal.SIG_IGN:  # not set from Python, or meant to be passed over
        return
    _chained[number] = before
    signal.signal(number, _on_signal)


def _on_signal(number: int, frame: FrameType | None) -> None:
    close_all()
    before = _chained.pop(number, signal.SIG_DFL)
    signal.signal(number, before)
    if callable(before):
        before(number, frame)
    else:
        os.kill(os.getpid(), number)
