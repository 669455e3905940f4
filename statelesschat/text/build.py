"""From a table of gap texts to a compiled template: ids, contents' transforms, stop ids."""

import random
import re
from collections.abc import Callable, Sequence
from typing import Any

from statelesschat.core.config import ChatTemplate
from statelesschat.text.draft import ANSWERS
from statelesschat.text.marks import Displaced
from statelesschat.text.pieces import ENCODINGS, PieceCodec
from statelesschat.text.probe import ASSISTANT, CALL, LEADS, START, SYSTEM, TOOL, USER, pair_name
from statelesschat.text.render import Renderer, RenderError
from statelesschat.text.report import TemplateError, Witness
from statelesschat.text.standin import looks_like_markers
from statelesschat.text.table import Refuted, Table
from statelesschat.text.transforms import (
    KNOWN,
    PROBES,
    RENDERED,
    THOUGHTS,
    TRIMMING,
    UNKNOWN,
    classify,
    contextual,
    keeps_blank,
)
from statelesschat.text.verify import random_content

SEED = 20_000
_MARKED = re.compile(r"[<\[]\||<｜|\|>$")  # unlike <b> or [NOTE], these are meant to be control tokens


class Builder:
    """Builds compiled templates, not yet verified, from tables of one source template."""

    def __init__(self, tokenizer: Any, render: Renderer, options: tuple[tuple[str, str], ...], trusted: bool) -> None:
        self.tokenizer = tokenizer
        self.render = render
        self.options = options
        self.trusted = trusted
        self.pieces = PieceCodec(tokenizer, "plain", trusted)

    def build(self, table: Table) -> ChatTemplate:
        """A compiled template that claims the whole table; TemplateError where nothing marks the end of an answer.

        Pairs that close an answer otherwise than the rest are taken out of the table.
        """
        gaps = {pair: self.pieces.gap(*pair, text, pair[0] == START) for pair, text in table.pairs.items()}
        ending = gaps[int(ASSISTANT), int(USER)]
        if not ending.core_ids:
            raise TemplateError("HOST_ONLY", _no_marker(ending.text), None)
        known = {str(token.content) for token in self.tokenizer.added_tokens_decoder.values()}
        texts = [text for (previous, _), text in table.pairs.items() if previous != START]
        strange = [m for m in looks_like_markers("\n".join(texts)) if m not in known and _MARKED.match(m)]
        if strange:
            table.notes.append(f"{', '.join(strange)}: no added tokens of this tokenizer, so they are written as text")
        for pair, gap in list(gaps.items()):
            trail = ending.trail if pair[0] == ASSISTANT else ""
            if pair[0] in ANSWERS and (gap.trail != trail or not gap.core_ids):
                table.notes.append(f"{pair_name(pair)}: refused, for it closes the answer with {gap.text!r}")
                del gaps[pair], table.pairs[pair]
        encoding = piece_encoding(self.tokenizer, ending.core_ids)
        if encoding != self.pieces.encoding:
            self.pieces = PieceCodec(self.tokenizer, encoding, self.trusted)
            gaps = {pair: self.pieces.gap(*pair, gap.text, pair[0] == START) for pair, gap in gaps.items()}
            ending = gaps[int(ASSISTANT), int(USER)]
        stop = ending.core_ids[0]
        shape = self.render.shape
        called = gaps.get((int(CALL), int(TOOL)))
        stops = {gap.core_ids[0] for pair, gap in gaps.items() if pair[0] in ANSWERS}
        cut = self.pieces.cut(table.rest)
        head = self.pieces.encode([cut.trail])[0] if cut.core else []
        transforms, nonempty = self._transforms(table)
        eos = self.tokenizer.eos_token_id
        return ChatTemplate(
            kind="FROZEN_HISTORY" if table.late else "EXACT",
            gaps=tuple(gaps[pair] for pair in sorted(gaps)),
            roles=self.render.roles,
            transforms=transforms,
            nonempty=nonempty,
            stop_ids=tuple(sorted(stops if eos is None else {*stops, int(eos)})),
            stop_id=stop,
            closing=ending.trail,
            closing_ids=ending.trail_ids,
            rest_core=cut.trail + cut.core if cut.core else "",
            rest_core_ids=(*head, *cut.core_ids),
            rest_lead=cut.lead if cut.core else table.rest,
            opened=table.opened,
            tools=self.render.tools,
            calls=tuple(shape) if shape is not None and called is not None else (),
            call_stop_id=called.core_ids[0] if called is not None else -1,
            shifts=((int(ASSISTANT), len(ending.trail_ids) + 1), (int(CALL), 1)),
            pad_id=pad_id(self.tokenizer),
            vocab_size=len(self.tokenizer),
            source=self.render.source,
            options=self.options,
            clock=self.render.clock.isoformat(),
            piece_encoding=encoding,
            trusted_control_tokens=self.trusted,
            fingerprint=fingerprint(self.tokenizer),
        )

    def _transforms(self, table: Table) -> tuple[tuple[str, ...], tuple[bool, ...]]:
        """What happens to each role's contents, and whether an empty one changes the text around it."""
        names, nonempty = [], []
        for role in (SYSTEM, USER, ASSISTANT, TOOL):
            lead = LEADS[role]
            final = role == ASSISTANT and table.late
            if role == TOOL and (int(CALL), int(TOOL)) in table.pairs:
                lead = (USER, CALL, TOOL)
                if self.render.shape is not None and self.render.shape.refers:
                    names.append(RENDERED)
                    nonempty.append(False)
                    continue
            kinds = lead if final or role in (USER, TOOL) else (*lead, USER)
            try:
                transform = contextual(self.render, kinds, len(lead) - 1, not final)
            except (Displaced, RenderError):
                names.append(UNKNOWN)
                nonempty.append(False)
                continue
            name = classify(transform, PROBES)
            if role == ASSISTANT and table.late:
                name = name if name in TRIMMING else "identity"
            elif role == ASSISTANT:
                self._check_answers(kinds, name, transform, table.opened)
            names.append(name)
            nonempty.append(not keeps_blank(transform, name))
        return tuple(names), tuple(nonempty)

    def _check_answers(self, kinds: Sequence[int], name: str, transform: Callable[[str], str], opened: str) -> None:
        """An answer may lose white space at its ends, nothing else: what was sampled must stand in later prompts.

        What the generation prompt has opened stands in them too, as the beginning of the answer's content.
        """
        for text in (opened + text for text in (*PROBES, *THOUGHTS)):
            try:
                written = transform(text)
            except (Displaced, RenderError) as error:
                written = f"({error})"
            if name not in TRIMMING or KNOWN[name](text) != written or not written.startswith(opened):
                messages = self.render.messages(kinds, [text if k == ASSISTANT else "…" for k in kinds])
                raise Refuted(Witness("the template rewrites an answer once it is past", messages, text, written))


def _no_marker(text: str) -> str:
    missing = looks_like_markers(text)
    named = f"; {' and '.join(missing)} would be, but the tokenizer has no such token" if missing else ""
    return (
        f"between an answer and the next message the template writes {text!r}, and nothing in it is an added token of "
        f"this tokenizer{named}, so the end of an answer cannot be told from its text; add the missing marker with "
        "tokenizer.add_special_tokens, or use the tokenizer this template was written for"
    )


def fingerprint(tokenizer: Any) -> tuple[int, ...]:
    """Ids of a fixed text, by which a tokenizer is known again."""
    text = "The quick brown fox, 0123456789; don't! \u00c9t\u00e9 \u4f60\u597d\n\tx = {};"
    return tuple(tokenizer.backend_tokenizer.encode(text, add_special_tokens=False).ids)


def pad_id(tokenizer: Any) -> int:
    """The id buffers are padded with: the tokenizer's pad or stop id, else 0."""
    for token in (tokenizer.pad_token_id, tokenizer.eos_token_id):
        if token is not None:
            return int(token)
    return 0


def piece_encoding(tokenizer: Any, core_ids: Sequence[int]) -> str:
    """The way of encoding pieces that equals the whole tokenizer's, behind and before a control token."""
    added = tokenizer.added_tokens_decoder
    others = (i for i, token in added.items() if not token.normalized)
    control = next((i for i in (*core_ids, *others) if i in added), None)
    if control is None:
        return ENCODINGS[0]
    marker = added[control]
    # What swallows white space, or is found between words only, is tried on texts that begin and end in neither.
    frame = "({})" if marker.lstrip or marker.rstrip or marker.single_word else "{}"
    rng = random.Random(SEED)
    texts = [frame.format(random_content(rng, empty=False)) for _ in range(40)]
    for encoding in ENCODINGS:
        pieces = PieceCodec(tokenizer, encoding)
        behind = [pieces.reference(f"{marker.content}{text}{marker.content}") for text in texts]
        if all(b == [control, *p, control] for b, p in zip(behind, pieces.encode(texts), strict=True)):
            return encoding
    raise TemplateError(
        "HOST_ONLY",
        f"this tokenizer encodes text behind {marker.content!r} in a way that no piece encoding reproduces",
        None,
    )
