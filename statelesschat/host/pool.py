"""A bounded number of sessions, started few at a time, some of them ahead of need."""

import contextlib
import threading
import time
from collections.abc import Callable

from statelesschat.host.crew import Crew
from statelesschat.host.session import Outcome, Reply, Session


class NoSessionError(Exception):
    """No session could be had; ``reply`` says why, with EXHAUSTED or START_FAILED."""

    def __init__(self, reply: Reply) -> None:
        super().__init__(reply.detail)
        self.reply = reply


class SessionPool:
    """Sessions made by a function, each used for one episode and then ended.

    Args:
        make: gives a new session, not yet reset; called from several threads.
        size: the most that live at once, spares included.
        spares: how many are kept ready ahead of need. With a ``seed`` they are reset too; without one every episode
            has a seed of its own, so a spare is made only.
        seed: what every session is reset with.
        starts_at_once: the most that are made or reset at the same time: engines time out under many starts.
        attempts: how often a start is tried, the pause between doubling from ``backoff_s``.
        backoff_s: seconds.
    """

    def __init__(
        self,
        make: Callable[[], Session],
        *,
        size: int = 64,
        spares: int = 0,
        seed: int | None = None,
        starts_at_once: int = 4,
        attempts: int = 3,
        backoff_s: float = 0.25,
    ) -> None:
        for name, value, least in (
            ("size", size, 1),
            ("spares", spares, 0),
            ("starts_at_once", starts_at_once, 1),
            ("attempts", attempts, 1),
        ):
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ValueError(f"{name}={value!r}; give a whole number of {least} or more")
        if spares >= size:
            raise ValueError(f"spares={spares} of size={size} leave no room for the sessions in use; raise size")
        self.size, self.seed = size, seed
        self._make, self._wanted = make, spares
        self._attempts, self._backoff_s = attempts, backoff_s
        self._starts = threading.BoundedSemaphore(starts_at_once)
        self._lock = threading.Condition(threading.RLock())  # told when a spare came, or failed to
        self._live: dict[int, Session] = {}  # by id: in use, and spares
        self._spares: list[Session] = []
        self._coming = 0  # spares that are being made
        self._held = 0  # places taken, also of sessions that are being made
        self._closed = False
        self._crew = Crew(max(spares, 1), "statelesschat-spares")
        self._refill()

    def take(self, seed: int) -> Session:
        """A session that is fresh; NoSessionError where there is none to have."""
        with self._lock:
            while not self._spares and self._held >= self.size and self._coming and not self._closed:
                self._lock.wait()
            if self._closed:
                raise NoSessionError(Reply(b"", Outcome.EXHAUSTED, detail="the pool of sessions is closed"))
            spare = self._spares.pop() if self._spares else None
            if spare is None and self._held >= self.size:
                detail = (
                    f"all {self.size} sessions are taken by conversations that have not ended; raise size, or let go "
                    "of those that were given up with release()"
                )
                raise NoSessionError(Reply(b"", Outcome.EXHAUSTED, detail=detail))
            if spare is None:
                self._held += 1
        if spare is not None:
            self._refill()
        ready = spare is not None and self.seed is not None
        return spare if ready and spare is not None else self._started(spare, seed if self.seed is None else self.seed)

    def give_back(self, session: Session) -> None:
        """End a session and free its place."""
        with contextlib.suppress(Exception):
            session.kill()
        with self._lock:
            if self._live.pop(id(session), None) is not None:
                self._held -= 1
        self._refill()

    def close(self) -> None:
        """End every session, in use or not; those that run a command answer DEAD."""
        with self._lock:
            self._closed = True
            live, self._live, self._spares, self._held = list(self._live.values()), {}, [], 0
            self._lock.notify_all()
        self._crew.close()
        threads = [threading.Thread(target=_kill, args=(session,), daemon=True) for session in live]
        for thread in threads:
            thread.start()
        until = time.monotonic() + 5
        for thread in threads:
            thread.join(max(until - time.monotonic(), 0))

    def _started(self, session: Session | None, seed: int | None) -> Session:
        """A session, made if there is none, and reset unless the seed is None; on failure its place is given up."""
        said = "was never tried"
        for attempt in range(self._attempts):
            if attempt:
                time.sleep(self._backoff_s * 2 ** (attempt - 1))
            with self._starts:
                try:
                    session = self._make() if session is None else session
                    with self._lock:
                        closed = self._closed
                        self._live[id(session)] = session
                    if closed:
                        said = "the pool of sessions was closed"
                        break
                    reply = Reply(b"") if seed is None else session.reset(seed)
                except BaseException as error:  # noqa: BLE001  # one that breaks its contract did not start
                    said = f"{type(error).__name__}: {error}"
                else:
                    with self._lock:
                        closed = self._closed  # killed before it was up, it may be up now
                    if closed:
                        said = "the pool of sessions was closed"
                        break
                    if reply.outcome is Outcome.OK:
                        return session
                    said = reply.detail or reply.obs.decode("utf-8", "backslashreplace") or reply.outcome.name
            if session is not None:
                _kill(session)
                with self._lock:
                    self._live.pop(id(session), None)
                session = None
        if session is not None:
            _kill(session)
        with self._lock:
            if not self._closed:
                self._live.pop(id(session), None)
                self._held -= 1
        detail = f"no session started in {self._attempts} attempts: {said}"
        raise NoSessionError(Reply(b"", Outcome.START_FAILED, detail=detail))

    def _refill(self) -> None:
        """See to it that as many spares as wanted are there or on their way."""
        with self._lock:
            missing = min(self._wanted - len(self._spares) - self._coming, self.size - self._held)
            if self._closed or missing <= 0:
                return
            self._coming += missing
            self._held += missing
        for _ in range(missing):
            with contextlib.suppress(RuntimeError):  # closed just now
                self._crew.submit(self._add_spare)

    def _add_spare(self) -> None:
        session: Session | None = None
        try:
            session = self._started(None, self.seed)
        except NoSessionError:
            pass  # whoever needs a session next tries again, and is told
        with self._lock:
            self._coming -= 1
            self._lock.notify_all()
            if session is not None and not self._closed:
                self._spares.append(session)
                return
        if session is not None:
            _kill(session)


def _kill(session: Session) -> None:
    with contextlib.suppress(Exception):
        session.kill()
