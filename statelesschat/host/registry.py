"""Who runs in which session: tickets of conversations, and what their turns were answered."""

import collections
import dataclasses
import hashlib
import math
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import NamedTuple

from statelesschat.host.crew import Crew
from statelesschat.host.endings import close_at_end, closed
from statelesschat.host.pool import NoSessionError, SessionPool
from statelesschat.host.session import Outcome, Reply, Row, Session

_KEPT = 1 << 16  # episodes that are over and still remembered, so that what comes late is told STALE


class Ticket(NamedTuple):
    """Which turn of which episode a command belongs to."""

    slot: int  # -1: none yet, one is given
    generation: int  # of the slot: a higher one than before begins a new episode, in a fresh session
    turn: int  # commands run before in this episode
    seed: int = 0  # what a fresh session is reset with
    final: bool = False  # the episode ends with this command: its session is let go of afterwards
    row: Row = Row()  # told to sessions that ask for it


class Called(NamedTuple):
    """What came of a command."""

    slot: int
    generation: int
    reply: Reply | None  # None: it is not ready; the same call again collects it


@dataclasses.dataclass(eq=False)
class _Episode:
    """One slot; guarded by the registry's lock, all but the session, which only the running command touches."""

    generation: int
    session: Session | None = None
    turn: int = -1  # of the latest command
    digest: bytes = b""
    future: Future[Reply] | None = None
    over: bool = False  # no command comes after the latest
    gone: bool = False  # forgotten: a session that is started for it is not wanted any more


class Registry:
    r"""Sessions of many conversations: each runs in its own, concurrently, each command once.

    A call is told apart by its ticket: the same turn with the same command is answered as before and runs nothing,
    with another command it is FORKED; a turn too far is SKIPPED; one of an earlier generation is STALE. A session is
    started when its first command comes, and ended when its episode is.

    Args:
        make: gives a new session; called from several threads.
        timeout_s: seconds a command may take.
        idle_s: seconds it may write nothing; None: no such limit.
        max_bytes: the most of its output that is kept, head and tail.
        size: sessions that live at once; these and the rest as `SessionPool` has them.
        spares: sessions ready ahead of need.
        seed: one for all sessions; None: each row's own.
        starts_at_once: sessions that start at once.
        attempts: times that a start is tried.
        backoff_s: seconds before the second try.

    Example:
        >>> from statelesschat.host.registry import Registry, Ticket
        >>> from statelesschat.host.shell import ShellSession
        >>> with Registry(lambda: ShellSession(isolation="none")) as registry:  # doctest: +SKIP
        ...     called = registry.call([Ticket(-1, 0, 0)], [b"echo hello"])
        ...     called[0].reply.obs
        b'hello\n'
    """

    def __init__(
        self,
        make: Callable[[], Session],
        *,
        timeout_s: float = 30.0,
        idle_s: float | None = None,
        max_bytes: int = 16384,
        size: int = 64,
        spares: int = 0,
        seed: int | None = None,
        starts_at_once: int = 4,
        attempts: int = 3,
        backoff_s: float = 0.25,
    ) -> None:
        for name, value in (("timeout_s", timeout_s), ("idle_s", idle_s), ("max_bytes", max_bytes)):
            if value is not None and not (value > 0 and math.isfinite(value)):
                raise ValueError(f"{name}={value!r}; give a number above 0")
        self.timeout_s, self.idle_s, self.max_bytes = timeout_s, idle_s, max_bytes
        self._pool = SessionPool(
            make,
            size=size,
            spares=spares,
            seed=seed,
            starts_at_once=starts_at_once,
            attempts=attempts,
            backoff_s=backoff_s,
        )
        self._crew = Crew(size, "statelesschat-sessions")
        self._lock = threading.RLock()  # a signal that closes it may come while the same thread holds it
        self._episodes: dict[int, _Episode] = {}
        self._over: collections.deque[int] = collections.deque()
        self._slots = 0
        self._closed = False
        close_at_end(self)

    def __enter__(self) -> "Registry":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def call(
        self, tickets: Sequence[Ticket], actions: Sequence[bytes], *, deadline_s: float | None = None
    ) -> list[Called]:
        """Run commands concurrently, and wait for them, at most ``deadline_s`` seconds. Never raises for a command.

        Args:
            tickets: one for each command.
            actions: the commands.
            deadline_s: seconds until this call returns, with what is ready; None: when all are.
        """
        until = None if deadline_s is None else time.monotonic() + deadline_s
        begun = [self._begin(ticket, action) for ticket, action in zip(tickets, actions, strict=True)]
        called = []
        for slot, generation, future in begun:
            left = None if until is None else max(until - time.monotonic(), 0.0)
            called.append(Called(slot, generation, _result(future, left)))
        return called

    def release(self, slots: Sequence[int] | None = None) -> None:
        """Let go of episodes that nobody will go on with, by default of all: their sessions end."""
        with self._lock:
            chosen = list(self._episodes) if slots is None else [s for s in slots if s in self._episodes]
            ended = [self._end(slot) for slot in chosen]
        for session in ended:
            if session is not None:
                self._pool.give_back(session)

    def session(self, slot: int) -> Session | None:
        """The session of an episode that goes on."""
        with self._lock:
            episode = self._episodes.get(slot)
            return None if episode is None else episode.session

    def close(self) -> None:
        """End every session; commands that run are answered DEAD. It may be called twice."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._pool.close()
        self._crew.close()
        closed(self)

    def _begin(self, ticket: Ticket, action: bytes) -> tuple[int, int, "Future[Reply] | Reply"]:
        """The future of a command, new or already there, or what it is refused with."""
        digest = hashlib.blake2b(action, digest_size=16).digest()
        with self._lock:
            slot, generation = ticket.slot, ticket.generation
            if self._closed:
                return slot, generation, _refused(Outcome.EXHAUSTED, "the registry of sessions is closed")
            if slot < 0:
                slot, self._slots = self._slots, self._slots + 1
            episode = self._episodes.get(slot)
            old = None
            if episode is None:
                if ticket.slot >= 0 and ticket.turn:
                    return slot, generation, _refused(Outcome.STALE, f"episode {slot} is not known here (any more)")
                self._slots = max(self._slots, slot + 1)  # of an earlier run: given to nobody else
                episode = self._episodes[slot] = _Episode(generation)
            elif generation < episode.generation:
                said = f"episode {slot} is in its generation {episode.generation}, this is of {generation}"
                return slot, generation, _refused(Outcome.STALE, said)
            elif generation > episode.generation:
                old = self._end(slot)
                episode = self._episodes[slot] = _Episode(generation)
            answer = self._answer(slot, episode, ticket, digest, action, old)
            if ticket.final and isinstance(answer, Future):
                self._finish(slot, episode)
        if old is not None and not isinstance(answer, Future):
            self._pool.give_back(old)
        return slot, generation, answer

    def _answer(
        self, slot: int, episode: _Episode, ticket: Ticket, digest: bytes, action: bytes, old: Session | None
    ) -> "Future[Reply] | Reply":
        if ticket.turn == episode.turn and episode.future is not None:
            if digest == episode.digest:
                return episode.future
            return _refused(Outcome.FORKED, f"turn {ticket.turn} was run with another command")
        if ticket.turn != episode.turn + 1:
            said = f"turn {ticket.turn} behind turn {episode.turn}"
            return _refused(Outcome.SKIPPED if ticket.turn > episode.turn else Outcome.FORKED, said)
        if episode.over:
            return _refused(Outcome.STALE, "the episode is over, its session was let go of")
        if episode.future is not None and not episode.future.done():
            return _refused(Outcome.BUSY, "the command before it still runs")
        episode.turn, episode.digest = ticket.turn, digest
        episode.future = self._crew.submit(self._run, slot, episode, ticket, action, old)
        return episode.future

    def _run(self, slot: int, episode: _Episode, ticket: Ticket, action: bytes, old: Session | None) -> Reply:
        """In a thread of the crew."""
        if old is not None:
            self._pool.give_back(old)
        try:
            session = episode.session
            if session is None:
                session = self._pool.take(ticket.seed)
                with self._lock:
                    gone = episode.gone
                    episode.session = None if gone else session
                if gone:
                    self._pool.give_back(session)
                    return _refused(Outcome.STALE, "the episode was let go of while its session started")
            if (meet := getattr(session, "meet", None)) is not None:
                meet(ticket.row)
            reply = session.run(
                ticket.turn, action, timeout_s=self.timeout_s, idle_s=self.idle_s, max_bytes=self.max_bytes
            )
            if not isinstance(reply, Reply) or not math.isfinite(reply.reward):
                raise TypeError(f"the session gave {reply!r}; a Reply with a finite reward is needed")
        except NoSessionError as error:
            with self._lock:
                self._finish(slot, episode)
            return error.reply
        except BaseException as error:  # noqa: BLE001  # a session that breaks its contract
            reply = Reply(b"", Outcome.FAULT, detail=f"{type(error).__name__}: {error}", error=error)
        if ticket.final or reply.outcome in (Outcome.DEAD, Outcome.FAULT) or reply.event in ("exit", "submit"):
            with self._lock:
                session, episode.session = episode.session, None
                self._finish(slot, episode)
            if session is not None:
                self._pool.give_back(session)
        return reply

    def _end(self, slot: int) -> Session | None:
        """Forget an episode; the session to be ended."""
        episode = self._episodes.pop(slot)
        session, episode.session, episode.over, episode.gone = episode.session, None, True, True
        return session

    def _finish(self, slot: int, episode: _Episode) -> None:
        """No command comes any more: of its kind only so many are remembered."""
        if episode.over:
            return
        episode.over = True
        self._over.append(slot)
        while len(self._over) > _KEPT:
            late = self._over.popleft()
            if late in self._episodes and self._episodes[late].over:
                del self._episodes[late]


def _result(future: "Future[Reply] | Reply", timeout: float | None) -> Reply | None:
    if isinstance(future, Reply):
        return future
    try:
        return future.result(timeout)
    except TimeoutError:
        return None
    except Exception as error:  # of the registry itself; a row has to learn of it
        return Reply(b"", Outcome.FAULT, detail=f"{type(error).__name__}: {error}", error=error)


def _refused(outcome: Outcome, detail: str) -> Reply:
    return Reply(b"", outcome, detail=detail)
