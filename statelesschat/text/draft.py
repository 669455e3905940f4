"""Drafts of blocks: control tokens whose ids are known and pieces of text yet to be encoded, put together in order."""

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

from statelesschat.core.types import Finish, Kind
from statelesschat.text.pieces import PieceCodec

ANSWERS = (Kind.ASSISTANT, Kind.CALL)
_NONE, _LENGTH, _STOP = int(Finish.NONE), int(Finish.LENGTH), int(Finish.STOP)


@dataclasses.dataclass(slots=True)
class Member:
    """Where a message's content stands in the text of a piece, in characters."""

    row: int
    start: int
    end: int


@dataclasses.dataclass(slots=True)
class Segment:
    """A stretch of a block: ids that are known, or a piece of text yet to be encoded (``ids`` None).

    A segment whose ids are known is never changed, so many drafts may share it.
    """

    text: str
    ids: Sequence[int] | None = None
    answer: bool = False
    first: bool = False
    plain: tuple[tuple[int, int], ...] | None = None  # the template's control tokens stand in it, not in these
    closes: bool = False  # the stop id of the answer before it, whose block ends here
    members: list[Member] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(slots=True)
class Joined:
    """A block or a prompt before encoding, in segments."""

    segments: list[Segment]
    kinds: tuple[int, ...]
    left: int = -1  # the control token that stands before the draft, -1 for none


class Block(NamedTuple):
    """A block of one message before encoding: a piece of text between known ids, as nearly all blocks are.

    A batch makes one a row, so it is as light as can be.
    """

    head: tuple[int, ...]
    text: str
    tail: tuple[int, ...]
    lead: int  # characters of the text before the content
    trail: int  # and behind it
    kinds: tuple[int]
    answer: bool = False
    first: bool = False
    left: int = -1

    @property
    def segments(self) -> list[Segment]:
        """The same as segments."""
        member = Member(0, self.lead, len(self.text) - self.trail)
        piece = Segment(self.text, answer=self.answer, first=self.first, members=[member])
        return [Segment("", self.head), piece, Segment("", self.tail)]


Draft = Joined | Block


@dataclasses.dataclass(slots=True)
class Written:
    """A block or a prompt after encoding; ``spans[i]`` is (start, piece start, piece end, lead, trail) of message i."""

    ids: list[int]
    spans: list[tuple[int, int, int, int, int]]
    finishes: list[int]


def encode_drafts(pieces: PieceCodec, drafts: Sequence[Draft]) -> list[Written]:
    """Encode drafts, all pieces of a sort in one call."""
    if pieces.swallows:
        drafts = [Joined(draft.segments, draft.kinds, draft.left) for draft in drafts]
        for draft in drafts:
            _swallow(pieces, draft)
    blocks: dict[tuple[bool, bool], list[tuple[int, Block]]] = {}
    groups: dict[tuple[bool, bool], list[Segment]] = {}
    for index, draft in enumerate(drafts):
        if isinstance(draft, Block):
            blocks.setdefault((draft.answer, draft.first), []).append((index, draft))
            continue
        for part in draft.segments:
            if part.ids is None and part.plain is not None:
                part.ids = pieces.mixed(part.text, part.plain, part.first)[0]
            elif part.ids is None:
                groups.setdefault((part.answer, part.first), []).append(part)
    for (answer, first), parts in groups.items():
        for part, ids in zip(parts, pieces.encode([p.text for p in parts], answer, first), strict=True):
            part.ids = ids
    written: dict[int, Written] = {}
    for (answer, first), rows in blocks.items():
        encoded = pieces.encode([block.text for _, block in rows], answer, first)
        for (index, block), ids in zip(rows, encoded, strict=True):
            written[index] = _put(block, ids)
    return [written[i] if i in written else _assemble(pieces, draft) for i, draft in enumerate(drafts)]


def _put(block: Block, ids: list[int]) -> Written:
    start = len(block.head)
    span = (0, start, start + len(ids), block.lead, block.trail)
    return Written([*block.head, *ids, *block.tail], [span], [_LENGTH if block.answer else _NONE])


def _assemble(pieces: PieceCodec, draft: Draft) -> Written:
    ids: list[int] = []
    spans: list[tuple[int, int, int, int, int]] = []
    finishes = [_LENGTH if kind in ANSWERS else _NONE for kind in draft.kinds]
    begin = 0
    for part in draft.segments:
        for member in part.members:
            first, last, lead, trail = _span(pieces, part, member)
            start, end = len(ids) + first, len(ids) + last
            spans.append((min(begin, start), start, end, lead, trail))
            begin = end
        ids.extend(part.ids or ())
        if part.members:
            begin = len(ids)
        if part.closes:
            begin = len(ids)
            finishes[len(spans) - 1] = _STOP
    return Written(ids, spans, finishes)


def _span(pieces: PieceCodec, part: Segment, member: Member) -> tuple[int, int, int, int]:
    """Ids of a member within its piece, and the characters around its content in their text."""
    count = len(part.ids or ())
    if len(part.members) == 1:
        return 0, count, member.start, len(part.text) - member.end
    if part.plain is not None:
        offsets = pieces.mixed(part.text, part.plain, part.first)[1]
    else:
        offsets = pieces.offsets(part.text, part.answer, part.first)
    inside = [i for i, (a, b) in enumerate(offsets) if b > member.start and a < member.end]
    if not inside:
        at = sum(1 for _, b in offsets if b <= member.start)
        return at, at, 0, 0
    first, last = inside[0], inside[-1] + 1
    return first, last, member.start - offsets[first][0], offsets[last - 1][1] - member.end


def _swallow(pieces: PieceCodec, draft: Draft) -> None:
    """Take from the pieces the white space that the control tokens beside them swallow."""
    parts = draft.segments
    for index, part in enumerate(parts):
        if part.ids is not None or not part.text:
            continue
        before = next((p.ids[-1] for p in reversed(parts[:index]) if p.ids), draft.left)
        after = next((p.ids[0] for p in parts[index + 1 :] if p.ids), -1)
        if pieces.swallows_right(before):
            cut = len(part.text) - len(part.text.lstrip())
            part.text = part.text[cut:]
            for member in part.members:
                member.start, member.end = max(member.start - cut, 0), max(member.end - cut, 0)
        if pieces.swallows_left(after):
            part.text = part.text.rstrip()
            for member in part.members:
                member.start, member.end = min(member.start, len(part.text)), min(member.end, len(part.text))
