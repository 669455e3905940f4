"""A limit on how long somebody else's program may run inside ours."""

import contextlib
import ctypes
import threading
from collections.abc import Iterator


class TooLong(Exception):
    """The time was up."""


class _Interrupt(BaseException):
    """Raised inside the running thread; no ``except Exception`` on the way stops it."""


@contextlib.contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Raise TooLong in the block once it has run for so many seconds; anything written in Python is interrupted.

    Example:
        >>> with at_most(30):
        ...     sum(range(10))
        45
    """
    thread = ctypes.c_ulong(threading.get_ident())
    lock = threading.Lock()
    over = False

    def interrupt() -> None:
        with lock:
            if not over:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(thread, ctypes.py_object(_Interrupt))

    timer = threading.Timer(seconds, interrupt)
    timer.daemon = True
    timer.start()
    try:
        try:
            yield
        finally:
            with lock:
                over = True
            timer.cancel()
    except _Interrupt:
        raise TooLong(f"more than {seconds:g} seconds") from None
