"""What is known before the first token: the compiled template and the widths, as hashable constants."""

import dataclasses
from typing import Any

ASSISTANT, CALL = 2, 4  # of types.Kind, which imports this module
ANSWERS = (ASSISTANT, CALL)


class Static:
    """Mixin of frozen dataclasses that serve as jit constants: the hash is computed once and never pickled."""

    def __hash__(self) -> int:
        """Hash of the fields that take part in comparison."""
        cached = self.__dict__.get("_hash")
        if cached is None:
            cached = hash(self._key())
            object.__setattr__(self, "_hash", cached)
        return cached

    def __eq__(self, other: object) -> bool:
        """Equality of the fields that take part in comparison; identity is tried first."""
        if self is other:
            return True
        if type(self) is not type(other) or hash(self) != hash(other):
            return False
        return self._key() == other._key()  # type: ignore[attr-defined]

    def _key(self) -> tuple[Any, ...]:
        return tuple(getattr(self, f.name) for f in dataclasses.fields(self) if f.compare)  # type: ignore[arg-type]

    def __getstate__(self) -> dict[str, Any]:
        """State without the cached hash: hashes of strings differ between processes."""
        return {k: v for k, v in self.__dict__.items() if k != "_hash"}


@dataclasses.dataclass(frozen=True, eq=False)
class Gap(Static):
    """What a template writes between the contents of two neighbours, cut at the control tokens in it.

    ``trail`` (plain text) belongs to the piece before, ``lead`` to the piece after, and ``core`` in between begins
    and ends with a control token. A gap without a control token is cut where the tokenizer always cuts, whatever the
    contents beside it; where there is no such place it is all ``trail``, and not ``appendable``: the second message
    can only be encoded together with the first, in a prompt.
    """

    previous: int  # Kind
    next: int  # Kind
    trail: str
    core: str
    lead: str
    trail_ids: tuple[int, ...]  # `trail` encoded alone; a piece's own ids may merge across its seams
    core_ids: tuple[int, ...]
    lead_ids: tuple[int, ...]
    appendable: bool = True

    @property
    def text(self) -> str:
        """All that stands between the two contents."""
        return self.trail + self.core + self.lead


@dataclasses.dataclass(frozen=True, eq=False)
class ChatTemplate(Static):
    """A compiled chat template: the table of gaps, and what the device and the codec need besides.

    ``statelesschat.compile_template`` makes one; ``print(template.report)`` tells what it found.
    """

    kind: str  # "EXACT", "EXACT_CHAT", "GAPS_EXACT", "FROZEN_HISTORY", or "RAW" of `raw_template`
    gaps: tuple[Gap, ...]
    roles: tuple[str, ...]  # the template's name of each Role, in the order of Role
    transforms: tuple[str, ...]  # what it does to each Role's content: a name of `text.transforms`
    nonempty: tuple[bool, ...]  # per Role: an empty content changes the text around it, so it is refused
    stop_ids: tuple[int, ...]  # ids after which an answer has ended
    stop_id: int  # the one the template itself writes after an answer; -1 where it writes none
    closing: str  # plain text it writes between an answer and its stop id
    closing_ids: tuple[int, ...]
    rest_core: str  # what a past answer has before it that the generation prompt lacks, up to its last control token
    rest_core_ids: tuple[int, ...]
    rest_lead: str  # and the plain text behind that
    shifts: tuple[tuple[int, int], ...]  # (answer kind, ids of a block that a sampled stop id makes redundant)
    pad_id: int
    vocab_size: int
    source: str  # the Jinja text
    options: tuple[tuple[str, str], ...]  # template_kwargs, as (name, JSON)
    clock: str  # the moment at which the template's dates stand still, ISO 8601
    piece_encoding: str  # how pieces between control tokens are encoded: a name of `text.pieces.ENCODINGS`
    trusted_control_tokens: bool
    tools: tuple[str, ...] = ()  # specs the template writes, as JSON
    calls: tuple[Any, ...] = ()  # how it writes tool calls, a `text.marks.Shape`; empty where it does not
    call_format: tuple[Any, ...] = ()  # how they are read, a `text.calls.CallFormat`; empty where that is not known
    call_stop_id: int = -1  # the id it writes after a message with tool calls
    opened: str = ""  # what a generation prompt ends in that past answers have only in their content, as `<think>`
    fingerprint: tuple[int, ...] = ()  # ids of a fixed text, by which the tokenizer is known again
    report: str = dataclasses.field(default="", compare=False)

    def __repr__(self) -> str:
        """A line; ``report`` tells the rest."""
        return f"ChatTemplate(kind={self.kind!r}, {len(self.gaps)} gaps, stop_ids={self.stop_ids})"

    def gap(self, previous: int, next: int) -> Gap:
        """The gap between two kinds; KeyError where the template has none."""
        table = self.__dict__.get("_table")
        if table is None:
            table = {(g.previous, g.next): g for g in self.gaps}
            object.__setattr__(self, "_table", table)
        return table[int(previous), int(next)]

    @property
    def answer_stops(self) -> tuple[int, ...]:
        """Ids with which the text between an answer and the next message begins."""
        stops = self.__dict__.get("_stops")
        if stops is None:
            found = {g.core_ids[0] for g in self.gaps if g.previous in ANSWERS and g.core_ids}
            stops = tuple(sorted(found))
            object.__setattr__(self, "_stops", stops)
        return stops

    def closing_of(self, kind: int) -> tuple[str, tuple[int, ...], int]:
        """What closes an answer: plain text, its ids, and the stop id; a message with calls holds its plain text."""
        if kind == CALL:
            return "", (), self.call_stop_id
        return self.closing, self.closing_ids, self.stop_id

    def allows(self, previous: int, next: int) -> bool:
        """Whether the template can write these two kinds one after the other."""
        return any(g.previous == int(previous) and g.next == int(next) for g in self.gaps)

    def __getstate__(self) -> dict[str, Any]:
        """State without what is derived."""
        return {k: v for k, v in super().__getstate__().items() if k not in ("_table", "_stops")}


@dataclasses.dataclass(frozen=True, eq=False)
class ChatConfig(Static):
    """The constants of an environment: template, widths and limits. ``statelesschat.make_config`` checks them."""

    template: ChatTemplate
    capacity: int  # ids a conversation may hold
    max_messages: int  # messages a conversation may hold, the system message and answers included
    max_message_len: int  # ids of an appended block
    max_prompt_len: int  # ids of the first prompt
    max_response_len: int  # ids of an action
    max_turns: int  # answers until truncation
    system_prompt: str | None = None
    store_logprobs: bool = False
    overflow_reward: float = 0.0

    @property
    def buffer(self) -> int:
        """Length of the token buffer: capacity and one block of slack, so that no write is ever clamped."""
        return self.capacity + max(self.max_message_len, self.max_response_len)
