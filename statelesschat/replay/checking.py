"""Checks of what stands on the device against what the tokenizer itself makes of the same conversation."""

import collections
import dataclasses
import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from statelesschat.core.types import Column, Count, Finish, Kind, Role
from statelesschat.replay.driving import Ending, Prompts, Row
from statelesschat.replay.planning import Script
from statelesschat.text.codec import Codec
from statelesschat.text.draft import Draft
from statelesschat.text.fields import text_part
from statelesschat.text.inputs import kind_name
from statelesschat.text.reference import Reference
from statelesschat.text.report import around_difference
from statelesschat.text.transforms import KNOWN


class Mismatch(NamedTuple):
    """A difference between the device and the tokenizer."""

    script: Script
    turn: int  # 0 is the first prompt
    what: str  # what differs
    device: str  # the stretch around the first difference
    expected: str


class Cut(NamedTuple):
    """A conversation that ended before its end."""

    script: Script
    turn: int
    reason: str  # the name of a `Status`, or PROMPT_TOO_WIDE, ANSWER_TOO_WIDE, MESSAGE_TOO_WIDE


@dataclasses.dataclass
class Tally:
    """Counts over all conversations."""

    turns: int = 0  # answers that went in
    prompts: int = 0  # prompts compared
    tokens: int = 0  # ids on the device when the conversations were over
    loss_tokens: int = 0  # of these, those the loss mask marks
    retokenised: int = 0  # answers whose ids a re-render would merge or split otherwise
    mismatches: list[Mismatch] = dataclasses.field(default_factory=list)
    cuts: list[Cut] = dataclasses.field(default_factory=list)
    shown: dict[int, list[tuple[str, bool]]] = dataclasses.field(default_factory=dict)  # by conversation: text, sampled

    @property
    def truncations(self) -> dict[str, int]:
        """How many conversations were cut, by reason."""
        return dict(sorted(collections.Counter(cut.reason for cut in self.cuts).items()))


class Checker:
    """Compares prompts, loss masks and histories with the reference, and counts.

    Args:
        codec: of the config that was run with.
        show: of how many conversations the text is kept, the first ones.
    """

    def __init__(self, codec: Codec, show: int = 0) -> None:
        self.tally = Tally()
        self.show = show
        self.config = codec.config
        self.writer = codec.writer
        self.reference = Reference(codec.writer)
        added = codec.writer.pieces.controls.values()
        self._swallows = any(token.lstrip or token.rstrip for token in added)

    def prompts(self, seen: Prompts) -> None:
        """Compare the ids of every prompt that is ready with the template's own render.

        Of a FROZEN_HISTORY template only what was written behind the last answer is compared.
        """
        frozen = self.config.template.kind == "FROZEN_HISTORY"
        for i, upto in zip(seen.ready, seen.upto, strict=True):
            row, counts = seen.rows[i], seen.counts[i]
            begin = counts[Count.DELTA] if frozen and row.sampled else 0
            ours = seen.tokens[i, begin : counts[Count.LENGTH]].tolist()
            self.tally.prompts += 1
            script = row.script
            try:
                theirs = self.reference.prompt_ids(script.kinds[:upto], script.contents[:upto], row.sampled)
            except ValueError as error:
                self._add(script, seen.turn, f"the template: {error}")
                continue
            if ours != theirs:
                self._add(script, seen.turn, "the prompt", *self._texts(ours, theirs))

    def ending(self, end: Ending) -> None:
        """Compare sampled ids, masks, lengths and histories of conversations that are over."""
        for i, row in enumerate(end.rows):
            counts, mask = end.counts[i], end.loss_mask[i]
            length = int(counts[Count.LENGTH])
            if row.script.number <= self.show:
                self.tally.shown[row.script.number] = self._runs(end.tokens[i, :length], mask[:length])
            self.tally.turns += int(counts[Count.TURN])
            self.tally.tokens += length
            self.tally.loss_tokens += int(mask.sum())
            if row.fault:
                self.tally.cuts.append(Cut(row.script, row.fault_turn, row.fault))
            self._fit(row, length)
            self._sampled(row, end.tokens[i][mask].tolist())
            self._history(row, end.histories[i], end.table[i])
            self._retokenised(row, end.table[i])

    def unfit(self, script: Script) -> None:
        """Count a conversation whose first prompt is wider than the capacity, so that it was never begun."""
        self.tally.cuts.append(Cut(script, 0, "PROMPT_TOO_WIDE"))

    def _runs(self, ids: np.ndarray, sampled: np.ndarray) -> list[tuple[str, bool]]:
        """A conversation's text in stretches that were sampled and stretches that were not."""
        bounds = [0, *(np.flatnonzero(np.diff(sampled)) + 1).tolist(), len(ids)]
        pairs = [(a, b) for a, b in itertools.pairwise(bounds) if b > a]
        return [(self._decoded(ids[a:b].tolist()), bool(sampled[a])) for a, b in pairs]

    def _fit(self, row: Row, length: int) -> None:
        total, capacity = row.script.total, self.config.capacity
        if not row.fault and length != total:
            self._add(row.script, len(row.script.turns), f"the length: {length} ids, where {total} were written")
        if row.fault and total <= capacity:
            self._add(
                row.script,
                row.fault_turn,
                f"it ended with {row.fault}, yet it takes {total} of {capacity} ids",
            )

    def _sampled(self, row: Row, ours: list[int]) -> None:
        """The ids the mask marks must be those of the answers, as far as the capacity reaches."""
        capacity = self.config.capacity
        kept = [answer.ids[: max(capacity - row.script.start(i), 0)] for i, answer in sorted(row.sampled.items())]
        theirs = [token for ids in kept for token in ids]
        if ours != theirs:
            self._add(row.script, len(row.script.turns), "the ids the loss mask marks", *self._texts(ours, theirs))

    def _history(self, row: Row, history: Sequence[dict[str, str]], table: np.ndarray) -> None:
        script, names = row.script, self.config.template.roles
        if len(history) > len(script.kinds) or (not row.fault and len(history) < len(script.kinds)):
            what = f"the history: {len(history)} messages, where {len(script.kinds)} were written"
            self._add(script, len(script.turns), what)
            return
        for index, message in enumerate(history):
            role, text = kind_name(script.kinds[index], names), self._written(script, index, index in row.sampled)
            turn = sum(turn.answer <= index for turn in script.turns)
            if message["role"] != role:
                self._add(script, turn, f"the role of message {index} of the history", message["role"], role)
            elif not _is_cut(row, table[index]) and not self._same(message["content"], text, index in row.sampled):
                differing = around_difference(message["content"], text)
                self._add(script, turn, f"message {index} of the history", *differing)

    def _retokenised(self, row: Row, table: np.ndarray) -> None:
        template, script = self.config.template, row.script
        for index, (ids, stopped) in row.sampled.items():
            if _is_cut(row, table[index]):
                continue
            try:
                before = self.reference.render(script.kinds[:index], script.contents[:index], True)
            except ValueError:
                continue  # counted when the prompt was compared
            rest, sampled = template.rest_core + template.rest_lead, self._decoded(ids)
            if template.kind == "FROZEN_HISTORY" and not sampled.startswith(rest):
                rest = ""  # the answer brought its own
            closing, _, _ = template.closing_of(script.kinds[index])
            rest = "" if script.kinds[index] == Kind.CALL else rest
            answer = rest + self._written(script, index, True).removeprefix(template.opened) + closing
            self.tally.retokenised += self.reference.retokenised(before, answer, ids, stopped)

    def _written(self, script: Script, index: int, sampled: bool) -> str:
        """A content as the template writes it; under FROZEN_HISTORY that depends on where it was written."""
        kind, content, template = script.kinds[index], script.contents[index], self.config.template
        if template.kind == "FROZEN_HISTORY" and index < script.prompt:
            return _member(self.writer.prompt(script.kinds[: script.prompt], script.contents[: script.prompt]), index)
        if kind == Kind.CALL:
            text = self.writer.written(kind, content).text
            if not sampled:
                return text
            text = text.removeprefix(template.opened)
            return template.opened + text.removeprefix(template.rest_core + template.rest_lead)
        content = text_part(content)
        if kind == Kind.TOOL and self.writer.render.shape is not None and self.writer.render.shape.refers:
            return content
        if template.kind == "FROZEN_HISTORY" and kind == Role.ASSISTANT:
            return _member(self.writer.answer(content), 0)
        name = template.transforms[kind]
        if sampled:
            content = template.opened + content.removeprefix(template.opened)
        return KNOWN[name](content) if name in KNOWN else self.writer.transformed(kind, content)

    def _same(self, ours: str, theirs: str, answer: bool) -> bool:
        """Equality of contents, up to what the tokenizer itself does to a text."""
        if ours == theirs:
            return True
        pieces = self.writer.pieces
        normal = pieces.decode(pieces.encode([theirs], answer))[0]
        return ours == normal or (self._swallows and ours.strip() == normal.strip())

    def _texts(self, ours: Sequence[int], theirs: Sequence[int]) -> tuple[str, str]:
        one, two = self._decoded(ours), self._decoded(theirs)
        if one != two:
            return around_difference(one, two)
        at = next((i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), 0)
        return f"ids {ours[at : at + 8]}", f"ids {theirs[at : at + 8]} of the same text"

    def _decoded(self, ids: Sequence[int]) -> str:
        return self.writer.pieces.full.decode(list(ids), skip_special_tokens=False)

    def _add(self, script: Script, turn: int, what: str, device: str = "", expected: str = "") -> None:
        self.tally.mismatches.append(Mismatch(script, turn, what, device, expected))


def _is_cut(row: Row, line: np.ndarray) -> bool:
    """Whether a message is the answer of which the buffer held only a part."""
    return row.fault == "OVERFLOW" and line[Column.SAMPLED] >= 0 and line[Column.FINISH] == Finish.LENGTH


def _member(draft: Draft, row: int) -> str:
    return next(part.text[m.start : m.end] for part in draft.segments for m in part.members if m.row == row)
