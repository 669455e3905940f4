"""What a session is: a world that runs the commands of one conversation and answers in bytes."""

import dataclasses
import enum
import math
from collections.abc import Mapping
from typing import Literal, NamedTuple, Protocol, runtime_checkable

MAX_COMMAND_BYTES = 1 << 20

Event = Literal["exit", "submit", "validate"]


class Outcome(enum.IntEnum):
    """How a command ended. What is not ``OK`` or ``TIMEOUT`` was refused, or is the end of the session.

    ``BUSY``: the session runs another command at this moment. ``REFUSED``: the command cannot be given to it (NUL
    bytes, too long). ``DEAD``: the session ended, before or during the command; only ``reset`` and ``kill`` are
    legal then. ``START_FAILED``: a reset that did not succeed. ``STALE``: the ticket is of an earlier generation.
    ``FORKED``: the turn was run before with another command. ``SKIPPED``: the turn before it was never run.
    ``DIVERGED``: a tape holds another command at this place. ``EXHAUSTED``: all sessions are taken. ``FAULT``: the
    session broke its contract and raised.
    """

    OK = 0
    TIMEOUT = 1
    BUSY = 2
    REFUSED = 3
    DEAD = 4
    START_FAILED = 5
    STALE = 6
    FORKED = 7
    SKIPPED = 8
    DIVERGED = 9
    EXHAUSTED = 10
    FAULT = 11


class Row(NamedTuple):
    """Which conversation asks: -1 where the data does not say."""

    row_id: int = -1  # of the table
    group_id: int = -1  # of its repeats
    repeat_id: int = -1
    turn: int = 0  # answers finished before


@dataclasses.dataclass(frozen=True)
class Part:
    """One of several messages in a reply, as a tool result that says what it answers."""

    content: str
    name: str | None = None
    call_id: str | None = None

    def message(self) -> str | dict[str, str]:
        """As `Codec.encode_messages` takes it."""
        refers = {"name": self.name, "tool_call_id": self.call_id}
        known = {key: value for key, value in refers.items() if value is not None}
        return {"content": self.content, **known} if known else self.content


@dataclasses.dataclass(frozen=True)
class Reply:
    """What a session answers to a command.

    Args:
        obs: output, at most as many bytes as were asked for; of what was longer, head and tail with a note between.
        outcome: how the command ended.
        rc: exit code; None where there is none (a time-out, a tape).
        n_bytes: how many bytes the command wrote, those that ``obs`` leaves out included.
        truncated: whether ``obs`` leaves any out.
        ms: milliseconds it took.
        event: what the command meant for the episode, where the session knows; the session never decides ``done``.
        reward: what the turn earned, where the session knows by itself; finite.
        detail: what went wrong, for people.
        parts: the messages it consists of, where it is more than one text.
        error: the exception behind a FAULT.
    """

    obs: bytes
    outcome: Outcome = Outcome.OK
    rc: int | None = None
    n_bytes: int = 0
    truncated: bool = False
    ms: float = 0.0
    event: Event | None = None
    reward: float = 0.0
    detail: str = ""
    parts: tuple[Part, ...] = ()
    error: BaseException | None = dataclasses.field(default=None, compare=False, repr=False)


@dataclasses.dataclass(frozen=True)
class Score:
    """What the world measured of the work done in it, through a channel that no command's output reaches.

    A metric that is not finite is refused at construction. ``artefact`` names what was measured.
    """

    metrics: Mapping[str, float]
    artefact: str | None = None
    outcome: Outcome = Outcome.OK

    def __post_init__(self) -> None:
        wrong = {name: value for name, value in self.metrics.items() if not math.isfinite(value)}
        if wrong:
            raise ValueError(f"scores must be finite, and these are not: {wrong}")


@dataclasses.dataclass(frozen=True)
class SessionSpec:
    """What can be relied on in a session.

    Args:
        name: of the kind of session, or of its task.
        isolated: whether its commands can reach nothing outside of it.
        deterministic: whether the same commands after ``reset`` with the same seed get the same replies.
        replayable: whether running its commands again in a fresh world is a faithful way to rebuild it.
        scores: whether ``score`` measures anything.
    """

    name: str
    isolated: bool
    deterministic: bool = False
    replayable: bool = False
    scores: bool = False


@runtime_checkable
class Session(Protocol):
    """One world. ``reset`` and ``run`` never raise, at most one of them is in flight at a time.

    One that has a method ``meet(row: Row)`` is told before each command which conversation asks.
    """

    spec: SessionSpec

    def reset(self, seed: int) -> Reply:
        """Make the world fresh, whatever state it was in (also after DEAD). ``obs`` may be empty."""
        ...

    def run(self, step: int, action: bytes, *, timeout_s: float, idle_s: float | None, max_bytes: int) -> Reply:
        """Run one command.

        Args:
            step: turn of the conversation, from 0; for tapes and journals.
            action: the command.
            timeout_s: seconds after which it is stopped; what it wrote until then is returned, with TIMEOUT, and the
                session is usable.
            idle_s: seconds without any output after which the same happens; None: no such limit.
            max_bytes: the most that ``obs`` may hold.
        """
        ...

    def state(self) -> Mapping[str, str]:
        """What a prompt may tell of the world, such as ``working_dir``; may be empty."""
        ...

    def score(self, final: bool) -> Score:
        """What the work is worth by now; ``final`` at the end of the episode."""
        ...

    def kill(self) -> None:
        """End it at once: idempotent, done within 2 s, from any thread, also while a command runs, which gets DEAD."""
        ...
