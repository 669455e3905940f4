"""What the tokenizer itself says a conversation is: the oracle that compilation and replay compare with.

Equality of tokens leaves answers out: a conversation's ids must be those of the template's own render with each
answer's stretch replaced by the ids that were sampled. Renders are split at the answers by sentinels, and each part
is encoded by the whole tokenizer, so nothing here relies on the table of gaps.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from statelesschat.text.probe import Displaced, sentinels, split_at, take_apart
from statelesschat.text.render import RenderError
from statelesschat.text.transforms import contextual
from statelesschat.text.writer import ANSWERS, Writer


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
        self._special = [str(token.content) for token in added if token.special]

    def parts(self, kinds: Sequence[int], contents: Sequence[str], sampled: Sequence[int]) -> list[str]:
        """The texts between the sampled answers, as the template writes them; ValueError where it does not."""
        marks = sentinels(len(kinds), contents)
        marked = [marks[i] if i in set(sampled) else c for i, c in enumerate(contents)]
        try:
            return split_at(self.render(kinds, marked, True), [marks[i] for i in sampled])
        except RenderError as error:
            raise ValueError(f"the template refuses the conversation ({error})") from None

    def prompt_ids(self, kinds: Sequence[int], contents: Sequence[str], sampled: Mapping[int, Sampled]) -> list[int]:
        """Ids of the prompt after these messages, the answers' own ids in their places.

        Of a FROZEN_HISTORY template with sampled answers: only what stands behind the last of them (and its stop
        id), which is all that such a template promises.
        """
        template = self.writer.template
        order = sorted(sampled)
        texts = self.parts(kinds, contents, order)
        frozen = template.kind == "FROZEN_HISTORY" and bool(order)
        rest = template.rest_core + template.rest_lead
        ids: list[int] = []
        for index, text in enumerate(texts):
            if frozen and index < len(texts) - 1:
                continue
            if index:
                if not text.startswith(template.closing):
                    raise ValueError(f"behind an answer the template writes {text[:40]!r}, not {template.closing!r}")
                text = text[len(template.closing) :]
            if index < len(order):
                if not text.endswith(rest):
                    raise ValueError(f"before an answer the template writes {text[-40:]!r}, which lacks {rest!r}")
                text = text[: len(text) - len(rest)]
            encoded = self._encode(text, kinds, contents)
            if index:
                answer = sampled[order[index - 1]]
                closing = [] if answer.stopped else list(template.closing_ids)
                head = [] if frozen else [*answer.ids]
                skip = 1 if answer.stopped and template.stop_id >= 0 else 0
                ids += [*head, *closing, *encoded[skip:]]
            else:
                ids += encoded
        return ids

    def retokenised(self, before: str, answer: str, ids: Sequence[int], stopped: bool) -> bool:
        """Whether a re-render would merge or split the answer's ids otherwise than they were sampled.

        ``before`` is the text in front of the answer, ``answer`` its own text without the stop token.
        """
        template = self.writer.template
        stop = [template.stop_id] if template.stop_id >= 0 and stopped else []
        tail = self.pieces.full.decode(stop, skip_special_tokens=False) if stop else ""
        whole = self.pieces.reference(before + answer + tail)
        return whole != [*self.pieces.reference(before), *ids]

    def _encode(self, text: str, kinds: Sequence[int], contents: Sequence[str]) -> list[int]:
        escaped = (
            any(control in content for control in (self._special if kind in ANSWERS else self._controls))
            for kind, content in zip(kinds, contents, strict=True)
        )
        if not any(escaped):
            return self.pieces.reference(text)
        return self._encode_escaped(text, kinds, contents)

    def _encode_escaped(self, text: str, kinds: Sequence[int], contents: Sequence[str]) -> list[int]:
        """Ids of a text some of whose contents hold what looks like control tokens and must stay text.

        The text is cut at the control tokens that the template wrote, found where no content stands, and each
        stretch between two of them encoded without any.
        """
        marks = sentinels(len(kinds))
        gaps = take_apart(self.render(kinds, marks, True), kinds, marks).gaps
        try:
            written = [contextual(self.render, kinds, i, True)(c) for i, c in enumerate(contents)]
        except (Displaced, RenderError) as error:
            raise ValueError(str(error)) from None
        whole = "".join(a + b for a, b in zip(gaps, [*written, ""], strict=True))
        offset = whole.find(text)
        if offset < 0:
            raise ValueError("the contents change the text the template writes around them")
        inside: list[tuple[int, int, bool]] = []
        position = 0
        for kind, gap, content in zip(kinds, gaps, written, strict=False):
            position += len(gap)
            inside.append((position, position + len(content), kind in ANSWERS))
            position += len(content)
        encoding = self.pieces.full.encode(whole, add_special_tokens=False)
        ids: list[int] = []
        cursor = offset
        first = offset == 0
        for token, (a, b) in zip(encoding.ids, encoding.offsets, strict=True):
            if token not in self.pieces.controls or a < offset or b > offset + len(text):
                continue
            own = self.pieces.controls[token].special
            if any(x < b and a < y and (own or not answer) for x, y, answer in inside):
                continue
            ids += self.pieces.encode([whole[cursor:a]], first=first)[0]
            ids.append(token)
            cursor, first = b, False
        ids += self.pieces.encode([whole[cursor : offset + len(text)]], first=first)[0]
        return ids
