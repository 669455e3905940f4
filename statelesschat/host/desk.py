"""Where conversations' answers arrive on the host: ids become text, and what is replied becomes blocks again."""

import enum
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int

from statelesschat.core.types import Message, Role
from statelesschat.host.bridge import register, unregister
from statelesschat.host.fitting import fit_messages
from statelesschat.host.registry import Ticket
from statelesschat.host.session import Outcome, Row
from statelesschat.text.codec import Codec

_REMEMBERED = 4096  # details of faults
_HEADER = 7
desks: "dict[int, Desk]" = {}  # by handle


class Ask(enum.IntEnum):
    """Entries of what a row tells the host, before the ids of its answer."""

    SLOT = 0
    GENERATION = 1
    CALLS = 2  # answered before in this episode
    SEED = 3
    FINAL = 4  # the episode ended with this answer
    TURN = 5
    ROW = 6  # -1, as the two below: not known
    GROUP = 7
    REPEAT = 8
    FINISH = 9
    FIRST = 10  # the answer is the first thing in the conversation
    LENGTH = 11


class Got(enum.IntEnum):
    """Entries of what a row is told, before its messages, each of which is its length, its header and its ids."""

    SLOT = 0
    GENERATION = 1
    PENDING = 2
    OUTCOME = 3
    REWARD = 4  # the bits of a float32
    TERMINATE = 5
    FAULT = 6
    RAN = 7


class Answer(NamedTuple):
    """An answer of a conversation, on the host."""

    ticket: Ticket
    text: str
    whole: bool  # False: of a longer answer than the bridge has room for, only the beginning
    told: Int[np.ndarray, "T"] = np.zeros(0, np.int32)  # what `with_host` is asked to tell besides


class Verdict(NamedTuple):
    """What the host replies to an answer."""

    slot: int = -1
    generation: int = 0
    pending: bool = False  # not ready: the same answer comes again
    outcome: Outcome = Outcome.OK
    detail: str = ""  # for people, where the outcome is a fault
    messages: tuple[str | Mapping[str, Any], ...] = ()  # said to the model, in order, as `encode_messages` takes them
    reward: float = 0.0
    terminate: bool = False
    fault: bool = False  # the row ends with HOST_ERROR
    error: BaseException | None = None  # behind it
    ran: bool = True  # False: nothing was run, and the next command has the same number


Serve = Callable[[list[Answer]], list[Verdict]]


class Desk:
    """Serves the rows of one environment: decodes their answers, asks ``serve``, encodes what it says.

    Args:
        codec: of the environment's config.
        serve: all answers of one call to a verdict each; it never raises for what a row can cause.
        role: who speaks, a `Role` or its name.
        messages: the most messages in one turn; 0: nothing is said.
        response_len: ids of an answer that reach the host.
        message_len: ids of room for each message.
    """

    def __init__(
        self, codec: Codec, serve: Serve, *, role: Any = "user", messages: int = 1, response_len: int, message_len: int
    ) -> None:
        self.codec, self.role = codec, role
        self.count, self.response_len, self.message_len = messages, response_len, message_len
        self.answer_width = len(Got) + messages * (1 + _HEADER + message_len)
        self._serve = serve
        self._faults: dict[tuple[int, int], tuple[str, BaseException | None]] = {}
        self._lock = threading.Lock()
        if messages:
            self._check_role()
        self.handle = register(self._called, self.answer_width)
        desks[self.handle] = self

    def close(self) -> None:
        """Take no more answers, and forget what went wrong."""
        unregister(self.handle)
        desks.pop(self.handle, None)

    def fault(self, slot: int, generation: int) -> tuple[str, BaseException | None]:
        """What is known of an episode's fault, and the exception behind it, if there is one."""
        return self._faults.get((slot, generation), ("", None))

    def _check_role(self) -> None:
        try:
            for previous in ("assistant", *((self.role,) if self.count > 1 else ())):
                fit_messages(self.codec, self.role, ["x" * 99_999], [previous], ["generate"], self.message_len)
        except ValueError as error:
            names = ", ".join(repr(role.name.lower()) for role in Role if role is not Role.ASSISTANT)
            raise ValueError(
                f"this template cannot write replies as role={self.role!r}: {error}; choose another of {names}"
            ) from None

    def _called(self, rows: Int[np.ndarray, "N A"]) -> Int[np.ndarray, "N K"]:
        """The handler of the bridge."""
        answers = self._read(rows)
        verdicts = self._serve(answers)
        return self._write(verdicts)

    def _read(self, rows: Int[np.ndarray, "N A"]) -> list[Answer]:
        ids, told = np.split(rows[:, len(Ask) :], [self.response_len], axis=1)
        lengths = rows[:, Ask.LENGTH]
        texts = self.codec.decode_answers(
            ids, np.minimum(lengths, ids.shape[1]), rows[:, Ask.FINISH], rows[:, Ask.FIRST]
        )
        return [
            Answer(_ticket(row), text, row[Ask.LENGTH] <= ids.shape[1], more)
            for row, text, more in zip(rows[:, : len(Ask)].tolist(), texts, told, strict=True)
        ]

    def _write(self, verdicts: Sequence[Verdict]) -> Int[np.ndarray, "N K"]:
        made = np.zeros((len(verdicts), self.answer_width), np.int32)
        for row, verdict in zip(made, verdicts, strict=True):
            row[Got.SLOT], row[Got.GENERATION] = verdict.slot, verdict.generation
            row[Got.PENDING], row[Got.OUTCOME] = verdict.pending, verdict.outcome
            with np.errstate(over="ignore"):
                row[Got.REWARD] = np.float32(verdict.reward).view(np.int32)
            row[Got.TERMINATE], row[Got.FAULT], row[Got.RAN] = verdict.terminate, verdict.fault, verdict.ran
            if verdict.fault:
                self._remember(verdict)
        if self.count:
            self._say(made, verdicts)
        return made

    def _say(self, made: Int[np.ndarray, "N K"], verdicts: Sequence[Verdict]) -> None:
        """Write the messages of all verdicts into their rows."""
        places: list[tuple[int, int]] = []
        contents: list[str | Mapping[str, Any]] = []
        befores: list[Any] = []
        afters: list[Any] = []
        for index, verdict in enumerate(verdicts):
            said = verdict.messages[: self.count]
            for place, content in enumerate(said):
                places.append((index, place))
                contents.append(content)
                befores.append(self.role if place else "assistant")
                afters.append("generate" if place == len(said) - 1 else self.role)
        if not contents:
            return
        block = fit_messages(self.codec, self.role, contents, befores, afters, self.message_len)
        size = 1 + _HEADER + self.message_len
        packed = np.concatenate([block.length[:, None], block.header, block.tokens], axis=1)
        for (index, place), entry in zip(places, packed, strict=True):
            begin = len(Got) + place * size
            made[index, begin : begin + size] = entry

    def _remember(self, verdict: Verdict) -> None:
        with self._lock:
            self._faults[verdict.slot, verdict.generation] = verdict.detail, verdict.error
            while len(self._faults) > _REMEMBERED:
                del self._faults[next(iter(self._faults))]


def _ticket(row: list[int]) -> Ticket:
    who = Row(row[Ask.ROW], row[Ask.GROUP], row[Ask.REPEAT], row[Ask.TURN])
    return Ticket(row[Ask.SLOT], row[Ask.GENERATION], row[Ask.CALLS], row[Ask.SEED], bool(row[Ask.FINAL]), who)


def message_at(answer: Any, place: int, message_len: int) -> Message:
    """One of the messages of an answer of the bridge, on device."""
    begin = len(Got) + place * (1 + _HEADER + message_len)
    tokens = begin + 1 + _HEADER
    return Message(answer[tokens : tokens + message_len], answer[begin], answer[begin + 1 : tokens])
