"""The values a conversation is made of: immutable pytrees of padded arrays, without a batch axis.

Axis letters: ``L`` buffer, ``W`` message width, ``R`` response width, ``D`` prompt width, ``M`` messages,
``P`` prompt messages, ``T`` turns. Batch with ``jax.vmap``.
"""

import dataclasses
import enum
from functools import partial
from typing import Any

import jax
from jaxtyping import Array, Bool, Float, Int

from statelesschat.core.config import ChatConfig


class Role(enum.IntEnum):
    """Who speaks. The strings a template uses for them are set when it is compiled."""

    SYSTEM = 0
    USER = 1
    ASSISTANT = 2
    TOOL = 3


class Kind(enum.IntEnum):
    """What stands beside a gap of the template: a role, or one of the marks that are no role.

    ``CALL`` is an assistant message with tool calls; ``RAW`` a prompt given as ids, whose messages are unknown;
    ``START`` the beginning of the conversation; ``GENERATE`` an answer yet to come; ``NONE`` not known (what
    follows a finished answer).
    """

    NONE = -1
    SYSTEM = 0
    USER = 1
    ASSISTANT = 2
    TOOL = 3
    CALL = 4
    RAW = 5
    START = 6
    GENERATE = 7


class Status(enum.IntEnum):
    """What befell a row; ``OK`` until something does. The first fault stays, for a truncated row absorbs."""

    OK = 0
    OVERFLOW = 1
    TOO_MANY_MESSAGES = 2
    ILLEGAL_ROLE_ORDER = 3
    FORMAT_ERROR = 4
    PENDING = 5
    HOST_ERROR = 6


class Finish(enum.IntEnum):
    """How an answer ended: ``STOP`` with a stop id, ``LENGTH`` without, ``OPEN`` it goes on; ``NONE`` no answer."""

    NONE = 0
    STOP = 1
    LENGTH = 2
    OPEN = 3


class Column(enum.IntEnum):
    """Columns of the message table, one row per message in order of the conversation.

    Positions are indices into ``tokens``. ``START`` is where the message's block begins (for an answer, where it
    opened); ``[PIECE_START, PIECE_END)`` the piece that holds its content, an answer's stop id left out, of whose
    decoded text ``LEAD`` characters before and ``TRAIL`` after the content belong to the template (-1 in an
    answer that was sampled: they are there only if the policy wrote them). ``SAMPLED`` is where the sampled ids
    begin, -1 if there are none; they end at ``PIECE_END``, or one further if ``FINISH`` is ``STOP``.
    """

    KIND = 0
    START = 1
    PIECE_START = 2
    PIECE_END = 3
    LEAD = 4
    TRAIL = 5
    PREVIOUS = 6
    NEXT = 7
    SAMPLED = 8
    FINISH = 9


class Header(enum.IntEnum):
    """Entries of ``Message.header``; the names mean what they mean in the table, counted within the block."""

    KIND = 0
    PIECE_START = 1
    PIECE_END = 2
    LEAD = 3
    TRAIL = 4
    PREVIOUS = 5
    NEXT = 6


class Count(enum.IntEnum):
    """Entries of ``ChatState.counts``.

    ``KIND`` is the last message's kind and ``NEXT`` what must follow it (``GENERATE``: an answer is open).
    ``OPENED`` is where the latest answer opened, ``SAMPLED`` where its sampled ids begin (-1: none yet),
    ``DELTA`` where what was written since the last sampled id begins, ``STOP`` the stop id that ended the last answer
    (-1: it ended without).
    """

    LENGTH = 0
    MESSAGES = 1
    TURN = 2
    TURN_LIMIT = 3
    FLAGS = 4
    STATUS = 5
    KIND = 6
    NEXT = 7
    OPENED = 8
    SAMPLED = 9
    DELTA = 10
    STOP = 11


class Flag(enum.IntFlag):
    """Bits of ``counts[Count.FLAGS]``.

    ``LISTED``: the open answer has a row in the table (something of it was written). ``STOPPED``: the last
    answer's last id is a stop id. ``PENDING``: the row waits for something outside; ``HELD_TERMINATED`` and
    ``HELD_TRUNCATED`` are what it will be when it is settled. ``BLOCKED``: no transition acts.
    """

    TERMINATED = 1
    TRUNCATED = 2
    DONE = 3
    LISTED = 4
    STOPPED = 8
    PENDING = 16
    BLOCKED = 19
    HELD_TERMINATED = 32
    HELD_TRUNCATED = 64


@partial(jax.tree_util.register_dataclass, data_fields=["tokens", "length", "header"], meta_fields=[])
@dataclasses.dataclass(frozen=True)
class Message:
    """One message as the whole block from the previous stop token to where the next writer starts.

    The block holds the closing of the previous message, the template's text around the content, the content and,
    when an answer follows, the generation prompt. ``Codec.encode_messages`` or ``glue`` make one.
    """

    tokens: Int[Array, "W"]  # int32, ids; unspecified from `length` on
    length: Int[Array, ""]  # int32, ids in the block
    header: Int[Array, "7"]  # int32, see `Header`


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["tokens", "length", "table", "turn_limit", "info"],
    meta_fields=[],
)
@dataclasses.dataclass(frozen=True)
class ChatData:
    """What a conversation begins with: the first prompt, rendered whole, and what the task knows of the row."""

    tokens: Int[Array, "D"]  # int32, ids; unspecified from `length` on
    length: Int[Array, ""]  # int32, ids in the prompt
    table: Int[Array, "P 10"]  # int32, see `Column`; rows without a message have KIND -1
    turn_limit: Int[Array, ""]  # int32, answers until truncation; at most `max_turns` counts; 0 is done at once
    info: Any = None  # pytree of numeric arrays: reference answer, row id, group id, …


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["tokens", "length", "logprobs", "finished"],
    meta_fields=[],
)
@dataclasses.dataclass(frozen=True)
class Action:
    """What a policy sampled: an answer or a piece of one."""

    tokens: Int[Array, "R"]  # int32, sampled ids, a sampled stop id included; unspecified from `length` on
    length: Int[Array, ""]  # int32, ids sampled
    logprobs: Float[Array, "R"] | None  # float32, nats, log p(tokens[i] | all before); None unless stored
    finished: Bool[Array, ""]  # False: the answer goes on in the next step; no turn is counted


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["tokens", "logprobs", "table", "turn_rewards", "counts", "reward", "info"],
    meta_fields=["config"],
)
@dataclasses.dataclass(frozen=True)
class ChatState:
    """A conversation. What lies at and beyond its length is unspecified in every buffer; views pad it."""

    tokens: Int[Array, "L"]  # int32, ids
    logprobs: Float[Array, "L"] | None  # float32, nats, unspecified where not sampled; view: `sampled_logprobs`
    table: Int[Array, "M+1 10"]  # int32, see `Column`; its spare row takes the writes of rows that do not act
    turn_rewards: Float[Array, "T"]  # float32, reward credited to each turn
    counts: Int[Array, "12"]  # int32, see `Count`
    reward: Float[Array, ""]  # float32, of the last transition
    info: Any  # as it came in the `ChatData`
    config: ChatConfig  # static

    @property
    def length(self) -> Int[Array, ""]:
        """Ids in the conversation, int32."""
        return self.counts[..., Count.LENGTH]

    @property
    def num_messages(self) -> Int[Array, ""]:
        """Messages written so far, int32; an open answer counts from its first id."""
        return self.counts[..., Count.MESSAGES]

    @property
    def turn(self) -> Int[Array, ""]:
        """Answers finished so far, int32."""
        return self.counts[..., Count.TURN]

    @property
    def turn_limit(self) -> Int[Array, ""]:
        """Answers after which the row is truncated, int32."""
        return self.counts[..., Count.TURN_LIMIT]

    @property
    def terminated(self) -> Bool[Array, ""]:
        """Whether a stop rule of the task ended the episode."""
        return (self.counts[..., Count.FLAGS] & int(Flag.TERMINATED)) != 0

    @property
    def truncated(self) -> Bool[Array, ""]:
        """Whether the turn limit, an overflow or another fault cut the episode; `status` says which."""
        return (self.counts[..., Count.FLAGS] & int(Flag.TRUNCATED)) != 0

    @property
    def done(self) -> Bool[Array, ""]:
        """Terminated or truncated."""
        return (self.counts[..., Count.FLAGS] & int(Flag.DONE)) != 0

    @property
    def status(self) -> Int[Array, ""]:
        """A `Status`, int32."""
        return self.counts[..., Count.STATUS]

    @property
    def awaits_answer(self) -> Bool[Array, ""]:
        """Whether an answer is open, so that `step` is legal (on a row that is not done)."""
        return (self.counts[..., Count.NEXT] == int(Kind.GENERATE)) & ~self.pending

    @property
    def pending(self) -> Bool[Array, ""]:
        """Whether the row waits for something outside, as a tool's result."""
        return (self.counts[..., Count.FLAGS] & int(Flag.PENDING)) != 0
