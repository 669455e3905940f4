"""What the tokenizer itself says a conversation is: the oracle that compilation and replay compare with.

Equality of tokens leaves answers out: a conversation's ids must be those of the template's own render with each
answer's stretch replaced by the ids that were sampled. Renders are split at the answers by sentinels, and each part
is encoded by the whole tokenizer, so nothing here relies on the table of gaps.
"""

import json
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from statelesschat.core.types import Kind
from statelesschat.text.fields import Content, Fields, strings_of, text_part
from statelesschat.text.marks import Displaced, sentinels, split_at
from statelesschat.text.probe import segments
from statelesschat.text.render import RenderError
from statelesschat.text.spans import Span
from statelesschat.text.transforms import contextual
from statelesschat.text.writer import Writer


class Sampled(NamedTuple):
    """An answer as it was sampled."""

    ids: Sequence[int]  # a sampled stop id included
    stopped: bool  # whether the last of them is a stop id


class Reference:
    """Expected ids of conversations under a compiled template."""

    def __init__(self, writer: Writer) -> None:
        self.writer = writer
        self.render = writer.render
        self.pieces = writer.pieces
        added = () if writer.pieces.trusted else writer.pieces.controls.values()
        self._controls = [str(token.content) for token in added]
        self._special = [control for control in self._controls if control not in writer.pieces.unmarked]

    def parts(self, kinds: Sequence[int], contents: Sequence[Content], sampled: Sequence[int]) -> list[str]:
        """The texts between the sampled answers, as the template writes them; ValueError where it does not."""
        marked = self._marked(kinds, contents, sampled)
        spots = [self.writer.written(kinds[i], marked[i]).text if kinds[i] == Kind.CALL else marked[i] for i in sampled]
        try:
            return split_at(self.render(kinds, marked, True), [str(spot) for spot in spots])
        except RenderError as error:
            raise ValueError(f"the template refuses the conversation ({error})") from None

    def _marked(self, kinds: Sequence[int], contents: Sequence[Content], sampled: Sequence[int]) -> list[Content]:
        """The conversation with what was sampled replaced by sentinels; calls keep their names and ids."""
        marks = sentinels(len(kinds), [string for content in contents for string in strings_of(content)])
        marked = list(contents)
        for i in sampled:
            content = contents[i]
            if isinstance(content, Fields):
                arguments = [json.dumps({"key": f"{marks[i]}{j}"}) for j in range(len(content.calls))]
                calls = [c._replace(arguments=a) for c, a in zip(content.calls, arguments, strict=True)]
                opened = self.writer.template.opened
                marked[i] = Fields(opened + marks[i] if opened else "", tuple(calls))
            else:
                marked[i] = marks[i]
        return marked

    def prompt_ids(
        self, kinds: Sequence[int], contents: Sequence[Content], sampled: Mapping[int, Sampled]
    ) -> list[int]:
        """Ids of the prompt after these messages, the answers' own ids in their places.

        Of a FROZEN_HISTORY template with sampled answers: only what stands behind the last of them (and its stop
        id), which is all that such a template promises.
        """
        template = self.writer.template
        frozen = template.kind == "FROZEN_HISTORY" and bool(sampled)
        order = sorted(sampled)[-1:] if frozen else sorted(sampled)
        texts = self.parts(kinds, contents, order)
        ids: list[int] = []
        closing_ids: tuple[int, ...] = ()
        for index, text in enumerate(texts):
            if frozen and index == 0:
                continue
            if index:
                closing, closing_ids, _ = template.closing_of(kinds[order[index - 1]])
                if not text.startswith(closing):
                    raise ValueError(f"behind an answer the template writes {text[:40]!r}, not {closing!r}")
                text = text[len(closing) :]
            if index < len(order):
                text = self._before(kinds[order[index]], text)
            encoded = self._encode(text, kinds, contents)
            if index:
                answer = sampled[order[index - 1]]
                head = [] if frozen else [*answer.ids]
                skip = self._redundant(answer, encoded)
                ids += [*head, *([] if skip else closing_ids), *encoded[skip:]]
            else:
                ids += encoded
        return ids

    def _before(self, kind: int, text: str) -> str:
        """The text before an answer up to where the policy goes on."""
        template = self.writer.template
        if kind == Kind.CALL:
            return text + template.opened
        rest = template.rest_core + template.rest_lead
        if not text.endswith(rest):
            raise ValueError(f"before an answer the template writes {text[-40:]!r}, which lacks {rest!r}")
        return text[: len(text) - len(rest)] + template.opened

    def _redundant(self, answer: Sampled, encoded: Sequence[int]) -> int:
        """Whether the stop token that the template writes behind an answer was sampled already: 1 or 0."""
        template = self.writer.template
        if not answer.stopped or template.stop_id < 0:
            return 0
        stop = answer.ids[-1] if answer.ids else encoded[0]
        return int(stop == encoded[0] or stop not in template.answer_stops)

    def retokenised(self, before: str, answer: str, ids: Sequence[int], stopped: bool) -> bool:
        """Whether a re-render would merge or split the answer's ids otherwise than they were sampled.

        ``before`` is the text in front of the answer, ``answer`` its own text without the stop token.
        """
        template = self.writer.template
        stop = [template.stop_id] if template.stop_id >= 0 and stopped else []
        tail = self.pieces.full.decode(stop, skip_special_tokens=False) if stop else ""
        whole = self.pieces.reference(before + answer + tail)
        return whole != [*self.pieces.reference(before), *ids]

    def _encode(self, text: str, kinds: Sequence[int], contents: Sequence[Content]) -> list[int]:
        escaped = (
            control in string
            for kind, content in zip(kinds, contents, strict=True)
            for string in strings_of(content)
            for control in (self._special if kind == Kind.ASSISTANT else self._controls)
        )
        if not any(escaped):
            return self.pieces.reference(text)
        return self._encode_escaped(text, kinds, contents)

    def _encode_escaped(self, text: str, kinds: Sequence[int], contents: Sequence[Content]) -> list[int]:
        """Ids of a text some of whose contents hold what looks like control tokens and must stay text.

        The text is cut at the control tokens that the template wrote, found where no content stands, and each
        stretch between two of them encoded without any.
        """
        try:
            gaps = segments(self.render, kinds, True).gaps
            spans = [self._span(kinds, i, content) for i, content in enumerate(contents)]
        except (Displaced, RenderError) as error:
            raise ValueError(str(error)) from None
        whole = "".join(a + b for a, b in zip(gaps, [*(span.text for span in spans), ""], strict=True))
        offset = whole.find(text)
        if offset < 0:
            raise ValueError("the contents change the text the template writes around them")
        inside: list[tuple[int, int, bool]] = []
        position = 0
        for kind, gap, span in zip(kinds, gaps, spans, strict=False):
            position += len(gap)
            plain = [(0, len(span.text))] if span.plain is None else span.plain
            inside += [(position + a, position + b, kind == Kind.ASSISTANT) for a, b in plain]
            position += len(span.text)
        encoding = self.pieces.full.encode(whole, add_special_tokens=False)
        ids: list[int] = []
        cursor = offset
        first = offset == 0
        for token, (a, b) in zip(encoding.ids, encoding.offsets, strict=True):
            if token not in self.pieces.controls or a < offset or b > offset + len(text):
                continue
            own = self.pieces.controls[token].content not in self.pieces.unmarked
            if any(x < b and a < y and (own or not answer) for x, y, answer in inside):
                continue
            ids += self.pieces.encode([whole[cursor:a]], first=first)[0]
            ids.append(token)
            cursor, first = b, False
        ids += self.pieces.encode([whole[cursor : offset + len(text)]], first=first)[0]
        return ids

    def _span(self, kinds: Sequence[int], index: int, content: Content) -> Span:
        shape = self.render.shape
        if kinds[index] == Kind.CALL or (kinds[index] == Kind.TOOL and shape is not None and shape.refers):
            return self.writer.written(kinds[index], content)
        return Span(contextual(self.render, kinds, index, True)(text_part(content)))
