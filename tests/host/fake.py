"""A session in this process, for tests: it does what its commands say."""

import dataclasses
import itertools
import threading
import time
from collections.abc import Callable
from typing import Any

from statelesschat.host.session import Outcome, Part, Reply, Row, Score, SessionSpec

LONG = 60.0  # seconds that nothing here takes


@dataclasses.dataclass
class World:
    """What all sessions of a test share: how they start, and a record of what befell them.

    Commands: ``echo X``; ``count`` (how many commands this session ran before); ``sleep S``; ``wait`` (for ``gate``);
    ``hang`` (until killed); ``meet`` (all who come, at ``barrier``); ``raise``, ``quit`` (SystemExit), ``nothing`` (no
    reply), ``die``; ``exit``, ``submit``; ``reward X``; ``big N``; ``binary``; ``refuse``; ``late``; ``parts A B``;
    ``who`` (the row that asks); ``seed``. What is anything else is said back.
    """

    start: Callable[[int], Outcome | None] = lambda number: Outcome.OK  # of a session's number; None: it raises
    gate: threading.Event = dataclasses.field(default_factory=threading.Event)
    starting: threading.Event | None = None  # what a start waits for
    barrier: threading.Barrier | None = None
    sessions: list["FakeSession"] = dataclasses.field(default_factory=list)
    ran: list[tuple[int, int, str]] = dataclasses.field(default_factory=list)  # session, step, command
    at_once: int = 0  # the most starts at the same time
    starts: int = 0
    _lock: Any = dataclasses.field(default_factory=threading.Lock)
    _numbers: Any = dataclasses.field(default_factory=itertools.count)

    def make(self) -> "FakeSession":
        session = FakeSession(self, next(self._numbers))
        with self._lock:
            self.sessions.append(session)
        return session

    def count(self, command: str) -> int:
        """How often a command ran."""
        return sum(ran == command for _, _, ran in self.ran)

    @property
    def living(self) -> list[int]:
        """Sessions that were reset, and not killed since."""
        return [session.number for session in self.sessions if session.alive]


class FakeSession:
    """See `World`."""

    spec = SessionSpec("fake", isolated=True, deterministic=True, replayable=True)

    def __init__(self, world: World, number: int) -> None:
        self.world, self.number = world, number
        self.seeds: list[int] = []
        self.alive = False
        self.kills = self.commands = 0
        self._killed = threading.Event()
        self._row = Row()

    def reset(self, seed: int) -> Reply:
        world = self.world
        with world._lock:
            world.starts += 1
            world.at_once = max(world.at_once, world.starts)
        try:
            if world.starting is not None:
                assert world.starting.wait(LONG)
            outcome = world.start(self.number)
        finally:
            with world._lock:
                world.starts -= 1
        if outcome is None:
            raise OSError("no engine")
        if outcome is Outcome.OK:
            self.seeds.append(seed)
            self._killed.clear()
            self.alive, self.commands = True, 0
        return Reply(b"", outcome, detail="" if outcome is Outcome.OK else "no engine answers")

    def meet(self, row: Row) -> None:
        self._row = row

    def run(self, step: int, action: bytes, *, timeout_s: float, idle_s: float | None, max_bytes: int) -> Any:
        command = action.decode("utf-8", "backslashreplace")
        with self.world._lock:
            self.world.ran.append((self.number, step, command))
        if not self.alive:
            return Reply(b"", Outcome.DEAD, detail="killed before")
        number, self.commands = self.commands, self.commands + 1
        name, _, rest = command.partition(" ")
        said = self._does(name, rest, number)
        if not self.alive and not isinstance(said, Reply):
            return Reply(b"", Outcome.DEAD, detail="killed meanwhile")
        return said if isinstance(said, Reply) or said is None else Reply(said, rc=0, n_bytes=len(said))

    def _does(self, name: str, rest: str, number: int) -> Any:
        match name:
            case "echo":
                return rest.encode()
            case "count":
                return b"%d" % number
            case "sleep":
                time.sleep(float(rest))
                return b"slept"
            case "wait":
                while not self.world.gate.wait(0.005) and not self._killed.is_set():
                    pass
                return b"waited" + rest.encode()
            case "hang":
                self._killed.wait(LONG)
                return b"hung"
            case "meet":
                assert self.world.barrier is not None
                self.world.barrier.wait(LONG)
                return b"met"
            case "raise":
                raise KeyError("a session that raises")
            case "quit":
                raise SystemExit(3)
            case "nothing":
                return None
            case "nan":
                return Reply(b"", reward=float("nan"))
            case "die":
                self.alive = False
                return Reply(b"", Outcome.DEAD, detail="it died of a command")
            case "exit" | "submit":
                return Reply(b"bye", event=name, reward=2.0)
            case "reward":
                return Reply(b"paid", reward=float(rest))
            case "big":
                data = b"".join(b"%07d " % i for i in range(int(rest) // 8))
                return data
            case "binary":
                return bytes(range(256))
            case "refuse":
                return Reply(b"", Outcome.REFUSED, detail="not this")
            case "late":
                return Reply(b"half", Outcome.TIMEOUT, detail="stopped after 1 s")
            case "parts":
                return Reply(b"", parts=tuple(Part(text) for text in rest.split()))
            case "who":
                return repr(tuple(self._row)).encode()
            case "seed":
                return b"%d" % self.seeds[-1]
            case _:
                return f"{name} {rest}".encode()

    def state(self) -> dict[str, str]:
        return {}

    def score(self, final: bool) -> Score:
        return Score({})

    def kill(self) -> None:
        self.kills += 1
        self.alive = False
        self._killed.set()


def until(holds: Callable[[], bool]) -> None:
    """Wait for what other threads do soon."""
    end = time.monotonic() + LONG
    while not holds():
        assert time.monotonic() < end, "it never came about"
        time.sleep(0.002)
