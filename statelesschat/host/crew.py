"""Threads that run what may take long, and never keep the program from ending."""

import itertools
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

_numbers = itertools.count(1)


class Crew:
    """Up to ``size`` daemon threads, started as they are needed.

    Threads of a `concurrent.futures` pool are joined before anything is closed at exit, so one that waits for a
    command of 40 minutes holds the program as long; these do not.
    """

    def __init__(self, size: int, name: str) -> None:
        self._size, self._name = size, f"{name}-{next(_numbers)}"
        self._work: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._lock = threading.RLock()  # a signal that closes it may come while the same thread holds it
        self._threads = self._busy = 0
        self._closed = False

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """Run a function as soon as a thread is free."""
        future: Future[Any] = Future()
        with self._lock:
            if self._closed:
                raise RuntimeError(f"{self._name} is closed")
            self._busy += 1
            if self._busy > self._threads and self._threads < self._size:
                self._threads += 1
                name = f"{self._name}.{self._threads}"
                threading.Thread(target=self._run, name=name, daemon=True).start()
        self._work.put((future, function, arguments))
        return future

    def close(self) -> None:
        """Let the threads end when they have done what was submitted; not waited for."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            for _ in range(self._threads):
                self._work.put(None)

    def _run(self) -> None:
        while (item := self._work.get()) is not None:
            future, function, arguments = item
            try:
                result = function(*arguments)
            except BaseException as error:  # noqa: BLE001
                future.set_exception(error)
            else:
                future.set_result(result)
            with self._lock:
                self._busy -= 1
            del item, future, function, arguments
