"""Things made ahead by one background thread, handed over in order through a bounded queue."""

import collections
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

T = TypeVar("T")
_PATIENCE = 5.0  # seconds that closing waits for a source that is in the middle of a row


class Prefetcher(Generic[T]):
    """An iterator over what another one gives, which runs ahead in a thread.

    A fault is raised where the thing would have come; after the end, a fault or `close` it is at its end for good.
    The thread ends with the source, with `close`, and with the last reference to the prefetcher.

    Args:
        make: called in the thread, gives the iterator. Its argument tells whether the prefetcher was closed, which an
            iterator that may be long in making one thing asks from time to time.
        ahead: how many things may lie ready.
    """

    def __init__(self, make: Callable[[Callable[[], bool]], Iterator[T]], ahead: int) -> None:
        self._channel: _Channel[T] = _Channel(ahead)
        # The thread knows the channel alone, so that the prefetcher can be collected while it runs.
        self.thread = threading.Thread(target=_work, args=(self._channel, make), name="prefetch", daemon=True)
        self._finalizer = weakref.finalize(self, _end, self._channel, self.thread)
        self.thread.start()

    def __iter__(self) -> Iterator[T]:
        """Itself."""
        return self

    def __next__(self) -> T:
        """The next thing, waited for if it is not ready."""
        return self._channel.get()

    def close(self) -> None:
        """End the thread; nothing more comes."""
        self._finalizer()


class _Channel(Generic[T]):
    def __init__(self, ahead: int) -> None:
        self._ahead = ahead
        self._ready: collections.deque[T] = collections.deque()
        self._changed = threading.Condition()  # reentrant: a collection may close the channel from inside a wait
        self._ended = self.closed = False
        self._error: BaseException | None = None

    def put(self, thing: T) -> bool:
        """Wait for room and put; False once the channel is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._ended or len(self._ready) < self._ahead)
            if self._ended:
                return False
            self._ready.append(thing)
            self._changed.notify_all()
            return True

    def get(self) -> T:
        with self._changed:
            self._changed.wait_for(lambda: self._ended or bool(self._ready))
            if self._ready:
                thing = self._ready.popleft()
                self._changed.notify_all()
                return thing
            error, self._error = self._error, None
        if error is not None:
            raise error
        raise StopIteration

    def end(self, error: BaseException | None = None) -> None:
        """Nothing more is put; what is ready is still handed over, then the error is raised."""
        with self._changed:
            if not self._ended:
                self._ended, self._error = True, error
            self._changed.notify_all()

    def close(self) -> None:
        """Nothing more is put or handed over."""
        with self._changed:
            self._ended, self.closed, self._error = True, True, None
            self._ready.clear()
            self._changed.notify_all()


def _work(channel: _Channel[Any], make: Callable[[Callable[[], bool]], Iterator[Any]]) -> None:
    try:
        for thing in make(lambda: channel.closed):
            if not channel.put(thing):
                return
    except BaseException as error:  # Whatever it is, the consumer must hear of it, or would wait for ever.
        channel.end(error)
    else:
        channel.end()


def _end(channel: _Channel[Any], thread: threading.Thread) -> None:
    channel.close()
    if thread is not threading.current_thread():
        thread.join(_PATIENCE)
