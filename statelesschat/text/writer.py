"""Messages to blocks of ids: what the template writes, encoded piece by piece.

A draft is a list of segments: control tokens whose ids are known, and pieces of plain text whose ids come from the
tokenizer. Drafts of a whole batch are encoded in one call.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

from statelesschat.core.config import ChatTemplate, Gap
from statelesschat.core.types import Finish, Kind
from statelesschat.text.pieces import PieceCodec
from statelesschat.text.probe import LEADS, Displaced, segments
from statelesschat.text.render import Renderer, RenderError, options_dict
from statelesschat.text.transforms import KNOWN, RENDERED, contextual

ANSWERS = (Kind.ASSISTANT, Kind.CALL)


@dataclasses.dataclass
class Member:
    """Where a message's content stands in the text of a piece, in characters."""

    row: int
    start: int
    end: int


@dataclasses.dataclass
class Segment:
    """A stretch of a block: ids that are known, or a piece of text yet to be encoded (``ids`` None)."""

    text: str
    ids: Sequence[int] | None = None
    answer: bool = False
    first: bool = False
    closes: bool = False  # the stop id of the answer before it, whose block ends here
    members: list[Member] = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class Draft:
    """A block or a prompt before encoding."""

    segments: list[Segment]
    kinds: tuple[int, ...]
    left: int = -1  # the control token that stands before the draft, -1 for none


@dataclasses.dataclass
class Written:
    """A block or a prompt after encoding; ``spans[i]`` is (start, piece start, piece end, lead, trail) of message i."""

    ids: list[int]
    text: str
    spans: list[tuple[int, int, int, int, int]]
    finishes: list[int]


class Writer:
    """Drafts and encodes what a compiled template writes."""

    def __init__(self, tokenizer: Any, template: ChatTemplate) -> None:
        self.template = template
        self.pieces = PieceCodec(tokenizer, template.piece_encoding, template.trusted_control_tokens)
        self.render = Renderer(
            tokenizer, template.source, template.roles, options_dict(template.options), template.clock
        )
        self._contextual: dict[int, Any] = {}

    def transformed(self, kind: int, content: str) -> str:
        """A content as the template writes it; ValueError where it would change the text around it."""
        template = self.template
        name = template.transforms[kind]
        result = KNOWN[name](content) if name != RENDERED else self._ask(kind, content)
        if template.nonempty[kind] and not result:
            raise ValueError(
                f"the {template.roles[kind]} content is empty, and this template then changes the text around it; "
                "give it some text or leave the message out"
            )
        return result

    def order(self, previous: int, next: int) -> Gap:
        """The gap between two kinds; ValueError names what the template cannot write."""
        if self.template.allows(previous, next):
            return self.template.gap(previous, next)
        raise ValueError(
            f"this template cannot write {_name(self.template, next)} after {_name(self.template, previous)}; "
            "reorder or merge the messages, or print(template.report) to see which orders it can write"
        )

    def prompt(self, kinds: Sequence[int], contents: Sequence[str]) -> Draft:
        """A conversation from its start to the generation prompt, or, after an answer, to its stop id."""
        generate = not kinds or kinds[-1] not in ANSWERS
        chain = [Kind.START, *kinds, Kind.GENERATE if generate else Kind.NONE]
        if self.template.kind == "FROZEN_HISTORY":
            gaps, contents = self._whole(kinds, contents, generate)
        else:
            gaps = [self.order(a, b) for a, b in zip(chain[:-1], chain[1:], strict=True) if b != Kind.NONE]
            contents = [self.transformed(k, c) for k, c in zip(kinds, contents, strict=True)]
        return self._join(kinds, contents, gaps, generate)

    def message(self, kind: int, content: str, previous: int, next: int) -> Draft:
        """The block of one message between two neighbours."""
        before, after = self.order(previous, kind), self.order(kind, next)
        content = self.transformed(kind, content)
        parts = []
        if previous in ANSWERS:
            parts.append(Segment(before.trail, before.trail_ids))
        parts.append(Segment(before.core, before.core_ids))
        start = len(before.lead)
        text = before.lead + content + after.trail
        members = [Member(0, start, start + len(content))]
        first = previous == Kind.START and not before.core
        parts.append(Segment(text, answer=kind in ANSWERS, first=first, members=members))
        if next == Kind.GENERATE:
            parts.append(Segment(after.core, after.core_ids))
            parts.append(Segment(after.lead, after.lead_ids))
        return Draft(parts, (kind,))

    def answer(self, text: str, *, begin: bool = True, finished: bool = True, stop: bool = True) -> Draft:
        """An answer, or a piece of one, as ids a policy would have sampled.

        ``begin``: with what the template writes first, behind the generation prompt. ``finished`` and ``stop``: with
        the closing and the stop id. Only a whole answer is transformed as the template does.
        """
        template = self.template
        name = template.transforms[Kind.ASSISTANT]
        core, lead = (template.rest_core_ids, template.rest_lead) if begin else ((), "")
        if begin and finished and template.kind == "FROZEN_HISTORY":
            text, as_last = self._as_last(text)
            core, lead = (core, lead) if as_last else ((), "")
        elif begin and finished and name in KNOWN:
            text = KNOWN[name](text)
        ends = finished and stop
        piece = Segment(
            lead + text + (template.closing if ends else ""),
            answer=True,
            members=[Member(0, len(lead), len(lead) + len(text))],
        )
        parts = [Segment("", core), piece]
        stops = (template.stop_id,) if template.stop_id >= 0 else template.stop_ids[:1]
        if ends:
            parts.append(Segment("", stops))
        return Draft(parts, (int(Kind.ASSISTANT),), self._opener() if begin and not core else -1)

    def write(self, drafts: Sequence[Draft]) -> list[Written]:
        """Encode drafts, all pieces of a sort in one call."""
        for draft in drafts:
            _swallow(self.pieces, draft)
        groups: dict[tuple[bool, bool], list[Segment]] = {}
        for draft in drafts:
            for part in draft.segments:
                if part.ids is None:
                    groups.setdefault((part.answer, part.first), []).append(part)
        for (answer, first), parts in groups.items():
            for part, ids in zip(parts, self.pieces.encode([p.text for p in parts], answer, first), strict=True):
                part.ids = ids
        return [self._assemble(draft) for draft in drafts]

    def _as_last(self, text: str) -> tuple[str, bool]:
        """An answer as the template writes it while it is the last message, and whether the rest goes before it.

        A template that loses some of an answer even then is not asked: the text stays as it is.
        """
        template = self.template
        rest = template.rest_core + template.rest_lead
        try:
            opening = self.render([Kind.USER], ["?"], True)
            written = self.render([Kind.USER, Kind.ASSISTANT], ["?", text], False)
        except RenderError:
            return text, True
        stop = self.pieces.full.decode([template.stop_id], skip_special_tokens=False)
        body, found, _ = written.removeprefix(opening).rpartition(template.closing + stop)
        if not written.startswith(opening) or not found or "".join(text.split()) not in "".join(body.split()):
            return text, True
        return (body[len(rest) :], True) if body.startswith(rest) else (body, False)

    def _opener(self) -> int:
        """The control token right behind which an answer begins, -1 if text stands between."""
        openings = [gap for gap in self.template.gaps if gap.next == Kind.GENERATE and gap.core_ids and not gap.lead]
        return openings[0].core_ids[-1] if openings else -1

    def _join(
        self, kinds: Sequence[int], contents: Sequence[str], gaps: Sequence[Gap], generate: bool
    ) -> Draft:
        parts: list[Segment] = []
        piece = Segment("", first=True)
        for index, (kind, content) in enumerate(zip(kinds, contents, strict=True)):
            gap = gaps[index]
            piece.text += gap.trail
            if gap.core:
                _close(parts, piece)
                core = list(gap.core_ids)
                if index and kinds[index - 1] in ANSWERS and core[0] in self.template.stop_ids:
                    parts.append(Segment("", core[:1], closes=True))
                    core = core[1:]
                parts.append(Segment(gap.core, core))
                piece = Segment(gap.lead)
            else:
                piece.text += gap.lead
            start = len(piece.text)
            piece.text += content
            piece.members.append(Member(index, start, len(piece.text)))
        if generate:
            gap = gaps[-1]
            piece.text += gap.trail
            _close(parts, piece)
            parts += [Segment(gap.core, gap.core_ids), Segment(gap.lead, gap.lead_ids)]
        else:
            piece.text += self.template.closing
            _close(parts, piece)
            if self.template.stop_id >= 0:
                parts.append(Segment("", (self.template.stop_id,), closes=True))
        for part in parts:
            part.answer = bool(part.members) and all(kinds[m.row] in ANSWERS for m in part.members)
        return Draft(parts, tuple(kinds))

    def _whole(
        self, kinds: Sequence[int], contents: Sequence[str], generate: bool
    ) -> tuple[list[Gap], list[str]]:
        """Gaps and contents as the template writes them in this very conversation, rendered whole."""
        try:
            texts = segments(self.render, kinds, generate).gaps
            written = [contextual(self.render, kinds, i, generate)(c) for i, c in enumerate(contents)]
            whole = self.render(kinds, contents, generate)
        except RenderError as error:
            raise ValueError(f"the template refuses this conversation ({error})") from None
        except Displaced as error:
            raise ValueError(f"the template cannot write this conversation in order: {error}") from None
        joined = "".join(a + b for a, b in zip(texts, [*written, ""], strict=True))
        if joined != whole:
            raise ValueError("the contents of this conversation change the text the template writes around them")
        chain = [Kind.START, *kinds, Kind.GENERATE if generate else Kind.NONE]
        pairs = zip(chain[:-1], chain[1:], texts, strict=True)
        return [self.pieces.gap(a, b, text, a == Kind.START) for a, b, text in pairs], written

    def _ask(self, kind: int, content: str) -> str:
        if kind not in self._contextual:
            lead = LEADS[Kind(kind)]
            kinds = (*lead, Kind.USER) if kind in (Kind.ASSISTANT, Kind.SYSTEM) else lead
            self._contextual[kind] = contextual(self.render, kinds, len(lead) - 1, True)
        try:
            return self._contextual[kind](content)
        except (Displaced, RenderError) as error:
            raise ValueError(f"the template cannot write this content: {error}") from None

    def _assemble(self, draft: Draft) -> Written:
        ids: list[int] = []
        spans: list[tuple[int, int, int, int, int]] = []
        finishes = [int(Finish.NONE) if kind not in ANSWERS else int(Finish.LENGTH) for kind in draft.kinds]
        begin = 0
        for part in draft.segments:
            known = part.ids or ()
            for member in part.members:
                first, last, lead, trail = self._span(part, member)
                start, end = len(ids) + first, len(ids) + last
                spans.append((min(begin, start), start, end, lead, trail))
                begin = end
            ids.extend(known)
            if part.members:
                begin = len(ids)
            if part.closes:
                begin = len(ids)
                finishes[len(spans) - 1] = int(Finish.STOP)
        return Written(ids, "".join(part.text for part in draft.segments), spans, finishes)

    def _span(self, part: Segment, member: Member) -> tuple[int, int, int, int]:
        """Ids of a member within its piece, and the characters around its content in their text."""
        count = len(part.ids or ())
        if len(part.members) == 1:
            return 0, count, member.start, len(part.text) - member.end
        offsets = self.pieces.offsets(part.text, part.answer, part.first)
        inside = [i for i, (a, b) in enumerate(offsets) if b > member.start and a < member.end]
        if not inside:
            at = sum(1 for _, b in offsets if b <= member.start)
            return at, at, 0, 0
        first, last = inside[0], inside[-1] + 1
        return first, last, member.start - offsets[first][0], offsets[last - 1][1] - member.end


def _close(parts: list[Segment], piece: Segment) -> None:
    piece.first = piece.first and not parts
    if piece.text or piece.members:
        parts.append(piece)


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


def _name(template: ChatTemplate, kind: int) -> str:
    if kind == Kind.START:
        return "the start"
    if kind == Kind.GENERATE:
        return "a generation prompt"
    if 0 <= kind < len(template.roles):
        return f"a {template.roles[kind]} message"
    return f"a {Kind(kind).name.lower()} message"
