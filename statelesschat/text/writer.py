"""Messages to blocks of ids: what a compiled template writes around contents."""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

from statelesschat.core.config import ChatTemplate, Gap
from statelesschat.core.types import Kind, Role
from statelesschat.text.calls import CallFormat, argument_types, read_calls
from statelesschat.text.draft import ANSWERS, Block, Draft, Joined, Member, Segment, Written, encode_drafts
from statelesschat.text.fields import Content, Fields, text_part
from statelesschat.text.marks import Displaced, Shape
from statelesschat.text.pieces import PieceCodec
from statelesschat.text.probe import LEADS, segments
from statelesschat.text.render import Renderer, RenderError, options_dict
from statelesschat.text.spans import Span, Spans
from statelesschat.text.transforms import KNOWN, RENDERED, contextual

_REMEMBERED = 1024


class Frame(NamedTuple):
    """What is written around an appended message's content: ids that are known, and text of its piece."""

    head: tuple[int, ...]
    lead: str
    trail: str
    tail: tuple[int, ...]
    first: bool  # the piece stands at the very beginning of the conversation


class Writer:
    """Drafts and encodes what a compiled template writes."""

    def __init__(self, tokenizer: Any, template: ChatTemplate) -> None:
        self.template = template
        sampled = "\n".join((template.opened, *(part for part in template.call_format if isinstance(part, str))))
        self.pieces = PieceCodec(tokenizer, template.piece_encoding, template.trusted_control_tokens, sampled)
        self.render = Renderer(
            tokenizer,
            template.source,
            template.roles,
            options_dict(template.options),
            template.clock,
            template.tools,
            Shape(*template.calls) if template.calls else None,
        )
        self._contextual: dict[int, Any] = {}
        self._spans: dict[Fields, Span] = {}
        self._read: dict[tuple[str, str], bool] = {}
        self._frame = functools.cache(self._frame_between)
        self.types = argument_types(template.tools)
        controls = [] if template.trusted_control_tokens else [str(t.content) for t in self.pieces.controls.values()]
        self.spans = (
            Spans(self.render, controls, self.pieces.unmarked, self.pieces.found)
            if self.render.shape is not None
            else None
        )

    def written(self, kind: int, content: Content) -> Span:
        """A content as the template writes it; ValueError where it would change the text around it."""
        if kind == Kind.CALL or (kind == Kind.TOOL and self.render.shape is not None and self.render.shape.refers):
            if self.spans is None:
                raise ValueError("this template cannot write tool calls; print(template.report) says why")
            fields = content if isinstance(content, Fields) else Fields(content)
            if len(self._spans) > _REMEMBERED:
                self._spans.clear()
            if fields not in self._spans:
                self._spans[fields] = self.spans(kind, fields)
            return self._spans[fields]
        return Span(self.transformed(kind, text_part(content)))

    def transformed(self, kind: int, content: str) -> str:
        """The same for a message that is all text."""
        template = self.template
        name = template.transforms[kind]
        result = KNOWN[name](content) if name != RENDERED else self._ask(kind, content)
        if template.nonempty[kind] and not result.strip():
            raise ValueError(
                f"the {template.roles[kind]} content is blank, and this template then changes the text around it; "
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

    def behind(self, previous: int, kind: int) -> int:
        """What a message stands behind: a tool result stands behind a call, where the template writes calls."""
        if previous == Kind.ASSISTANT and kind == Kind.TOOL and self.template.allows(Kind.CALL, Kind.TOOL):
            return int(Kind.CALL)
        return int(previous)

    def reads(self, role: str, key: str) -> bool:
        """Whether the template writes a key of this role's messages; False where it cannot be asked."""
        if (role, key) not in self._read:
            kind = Role[role.upper()]
            told = {"role": self.template.roles[kind], "content": "x", key: "71039key93017"}
            asked: list[dict[str, Any]] = [{"role": self.template.roles[Role.USER], "content": "x"}]
            orders = {Role.USER: [told], Role.SYSTEM: [told, *asked]}
            messages = orders.get(kind, [*asked, told])
            try:
                self._read[role, key] = "71039key93017" in self.render.render(messages, False)
            except RenderError:
                self._read[role, key] = False  # the plain message may not be legal here either
        return self._read[role, key]

    def calls_tools(self, answer: Content) -> bool:
        """Whether an answer given as text calls tools in the template's own way."""
        form = self.template.call_format
        return bool(form) and isinstance(answer, str) and read_calls(CallFormat(*form), answer).final

    def prompt(self, kinds: Sequence[int], contents: Sequence[Content]) -> Draft:
        """A conversation from its start to the generation prompt, or, after an answer, to its stop id."""
        generate = not kinds or kinds[-1] not in ANSWERS
        chain = [Kind.START, *kinds, Kind.GENERATE if generate else Kind.NONE]
        if self.template.kind == "FROZEN_HISTORY":
            gaps, spans = self._whole(kinds, contents, generate)
        else:
            gaps = [self.order(a, b) for a, b in zip(chain[:-1], chain[1:], strict=True) if b != Kind.NONE]
            spans = [self.written(k, c) for k, c in zip(kinds, contents, strict=True)]
        return self._join(kinds, spans, gaps, generate)

    def message(self, kind: int, content: Content, previous: int, next: int) -> Draft:
        """The block of one message between two neighbours."""
        frame = self._frame(kind, previous, next)
        span = self.written(kind, content)
        text = frame.lead + span.text + frame.trail
        lead, trail = len(frame.lead), len(frame.trail)
        block = Block(frame.head, text, frame.tail, lead, trail, (kind,), kind in ANSWERS, frame.first)
        return block if span.plain is None else _mixed(block, span)

    def _frame_between(self, kind: int, previous: int, next: int) -> Frame:
        before, after = self.order(previous, kind), self.order(kind, next)
        for gap in (before, after):
            if not gap.appendable:
                raise ValueError(
                    f"between {_name(self.template, gap.previous)} and {_name(self.template, gap.next)} this template "
                    f"writes {gap.text!r}, with no control token in it, so their ids depend on one another and the two "
                    "can only be encoded together, in a prompt; merge their contents into one message"
                )
        head = (before.trail_ids if previous in ANSWERS else ()) + before.core_ids
        tail = after.core_ids + after.lead_ids if next == Kind.GENERATE else ()
        trail = "" if kind in ANSWERS else after.trail  # an answer's closing is written with the next message
        first = previous == Kind.START and not before.core
        return Frame(head, before.lead, trail, tail, first)

    def answer(
        self, content: Content, *, begin: bool = True, finished: bool = True, stop: bool = True, calls: bool = False
    ) -> Draft:
        """An answer, or a piece of one, as ids a policy would have sampled.

        ``begin``: with what the template writes first, behind the generation prompt. ``finished`` and ``stop``: with
        the closing and the stop id. Only a whole answer is transformed as the template does. ``calls``: the text
        calls tools, so it begins and ends as such messages do.
        """
        if isinstance(content, Fields):
            span = self.written(Kind.CALL, content)
            begun = span.text.startswith(self.template.opened)  # else it is what the policy says behind the opening
            opened = len(self.template.opened) if begun else 0
            plain = None if span.plain is None else tuple((a - opened, b - opened) for a, b in span.plain)
            span = Span(span.text[opened:], plain)
            ends = (self.template.call_stop_id,) if finished and stop else ()
            block = Block((), span.text, ends, 0, 0, (int(Kind.CALL),), True, False, self._opener)
            return _mixed(block, span)
        text = content
        template = self.template
        name = template.transforms[Kind.ASSISTANT]
        called = calls and template.call_stop_id >= 0
        core, lead = (template.rest_core_ids, template.rest_lead) if begin and not called else ((), "")
        if called:
            text = text.removeprefix(template.opened)
        elif begin and finished and template.kind == "FROZEN_HISTORY":
            text, as_last = self._as_last(text)
            core, lead = (core, lead) if as_last else ((), "")
        elif begin and finished and name in KNOWN:
            opened = template.opened
            text = KNOWN[name](opened + text.removeprefix(opened)).removeprefix(opened)
        ends = finished and stop
        closing = template.closing if ends and not called else ""
        stop_id = template.call_stop_id if called else template.stop_id
        stops = ((stop_id,) if stop_id >= 0 else template.stop_ids[:1]) if ends else ()
        left = self._opener if begin and not core else -1
        kinds = (int(Kind.ASSISTANT),)
        return Block(core, lead + text + closing, stops, len(lead), len(closing), kinds, True, False, left)

    def write(self, drafts: Sequence[Draft]) -> list[Written]:
        """Encode drafts, in few calls of the tokenizer."""
        return encode_drafts(self.pieces, drafts)

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

    @functools.cached_property
    def _opener(self) -> int:
        """The control token right behind which an answer begins, -1 if text stands between."""
        openings = [gap for gap in self.template.gaps if gap.next == Kind.GENERATE and gap.core_ids and not gap.lead]
        return openings[0].core_ids[-1] if openings else -1

    def _join(self, kinds: Sequence[int], spans: Sequence[Span], gaps: Sequence[Gap], generate: bool) -> Draft:
        parts: list[Segment] = []
        piece = Segment("", first=True)
        for index, span in enumerate(spans):
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
            piece.text += span.text
            piece.members.append(Member(index, start, len(piece.text)))
        if generate:
            gap = gaps[-1]
            piece.text += gap.trail
            _close(parts, piece)
            parts += [Segment(gap.core, gap.core_ids), Segment(gap.lead, gap.lead_ids)]
        else:
            closing, _, stop_id = self.template.closing_of(kinds[-1])
            piece.text += closing
            _close(parts, piece)
            if stop_id >= 0:
                parts.append(Segment("", (stop_id,), closes=True))
        for part in parts:
            part.answer = bool(part.members) and all(kinds[m.row] in ANSWERS for m in part.members)
            _mix(part, spans)
        return Joined(parts, tuple(kinds))

    def _whole(self, kinds: Sequence[int], contents: Sequence[Content], generate: bool) -> tuple[list[Gap], list[Span]]:
        """Gaps and contents as the template writes them in this very conversation, rendered whole."""
        try:
            texts = segments(self.render, kinds, generate).gaps
            whole = self.render(kinds, contents, generate)
            spans = self._expected(kinds, contents, texts, whole)
            spans = spans or [self._placed(kinds, i, generate, content) for i, content in enumerate(contents)]
        except RenderError as error:
            raise ValueError(f"the template refuses this conversation ({error})") from None
        except Displaced as error:
            raise ValueError(f"the template cannot write this conversation in order: {error}") from None
        joined = "".join(a + b for a, b in zip(texts, [*(span.text for span in spans), ""], strict=True))
        if joined != whole:
            raise ValueError("the contents of this conversation change the text the template writes around them")
        chain = [Kind.START, *kinds, Kind.GENERATE if generate else Kind.NONE]
        pairs = zip(chain[:-1], chain[1:], texts, strict=True)
        return [self.pieces.gap(a, b, text, a == Kind.START) for a, b, text in pairs], spans

    def _expected(
        self, kinds: Sequence[int], contents: Sequence[Content], texts: Sequence[str], whole: str
    ) -> list[Span] | None:
        """Contents as the template is known to write them, if that gives the whole; it spares a render for each."""
        names = self.template.transforms
        if any(k == Kind.CALL or not isinstance(c, str) or names[k] not in KNOWN for k, c in zip(kinds, contents)):
            return None
        written = [KNOWN[names[k]](text_part(c)) for k, c in zip(kinds, contents, strict=True)]
        joined = "".join(a + b for a, b in zip(texts, [*written, ""], strict=True))
        return [Span(text) for text in written] if joined == whole else None

    def _placed(self, kinds: Sequence[int], index: int, generate: bool, content: Content) -> Span:
        if kinds[index] == Kind.CALL or (
            isinstance(content, Fields) and self.render.shape and self.render.shape.refers
        ):
            return self.written(kinds[index], content)
        return Span(contextual(self.render, kinds, index, generate)(text_part(content)))

    def _ask(self, kind: int, content: str) -> str:
        if kind not in self._contextual:
            lead = LEADS[Kind(kind)]
            kinds = (*lead, Kind.USER) if kind in (Kind.ASSISTANT, Kind.SYSTEM) else lead
            self._contextual[kind] = contextual(self.render, kinds, len(lead) - 1, True)
        try:
            return self._contextual[kind](content)
        except (Displaced, RenderError) as error:
            raise ValueError(f"the template cannot write this content: {error}") from None


def _mixed(block: Block, span: Span) -> Draft:
    """A block in segments, its piece told which of its text cannot be control tokens."""
    segments = block.segments
    _mix(segments[1], [span])
    return Joined(segments, block.kinds, block.left)


def _mix(piece: Segment, spans: Sequence[Span]) -> None:
    """Tell a piece which of its text cannot be control tokens, if any of its members brings some."""
    if not any(spans[member.row].plain is not None for member in piece.members):
        return
    plain: list[tuple[int, int]] = []
    for member in piece.members:
        inside = spans[member.row].plain
        whole = [(0, member.end - member.start)] if inside is None else inside
        plain += [(member.start + a, member.start + b) for a, b in whole]
    piece.plain = tuple(plain)


def _close(parts: list[Segment], piece: Segment) -> None:
    piece.first = piece.first and not parts
    if piece.text or piece.members:
        parts.append(piece)


def _name(template: ChatTemplate, kind: int) -> str:
    if kind == Kind.START:
        return "the start"
    if kind == Kind.GENERATE:
        return "a generation prompt"
    if 0 <= kind < len(template.roles) or kind == Kind.CALL:
        role = template.roles[Kind.ASSISTANT if kind == Kind.CALL else kind]
        article = "an" if role[:1].lower() in "aeio" else "a"  # not "u": a user
        return f"{article} {role} message" + (" with tool calls" if kind == Kind.CALL else "")
    return f"a {Kind(kind).name.lower()} message"
