"""The table of gaps, read off what probing found."""

from collections.abc import Sequence

from statelesschat.core.types import Kind
from statelesschat.text.draft import ANSWERS
from statelesschat.text.probe import (
    ASSISTANT,
    CALL,
    CHAT,
    GENERATE,
    SYSTEM,
    USER,
    Group,
    Observed,
    groups_of,
    pair_name,
    pairs_of,
)
from statelesschat.text.render import Renderer
from statelesschat.text.report import Witness

Pair = tuple[int, int]


class Refuted(Exception):
    """Plain chat does not fit a table; the witness says where."""

    def __init__(self, witness: Witness) -> None:
        super().__init__(witness.reason)
        self.witness = witness


class Table:
    """Gap texts by pair of neighbours, the same in every conversation that shows them.

    Args:
        found: what probing found.
        render: for the messages of a witness.
        late: only what stands behind the last answer has to agree (FROZEN_HISTORY).

    Attributes:
        pairs: the text of each pair.
        rest: what a past answer has before it that the generation prompt lacks.
        opened: what the generation prompt ends in that a past answer has only if its content begins with it.
        notes: what was left out, and why.

    Raises:
        Refuted: plain chat itself does not agree with a table.
    """

    def __init__(self, found: Observed, render: Renderer, late: bool = False) -> None:
        self.found, self.render, self.late = found, render, late
        self.pairs: dict[Pair, str] = {}
        self.notes: list[str] = []
        self._shown: dict[Pair, tuple[int, ...]] = {}
        self.rest = self.opened = ""
        for group in groups_of(render.shape is not None):
            self._take(group)

    def _take(self, group: Group) -> None:
        """Add a group's pairs, all of them or none."""
        chat = group is CHAT
        pairs, shown = dict(self.pairs), dict(self._shown)
        wanted = set(pairs) | set(group.pairs)
        for kinds in group.chains:
            if not set(pairs_of(kinds)) <= wanted:
                continue
            problem = self._merge(pairs, shown, kinds)
            if problem is not None:
                return self._refuse(group, problem)
        if chat and self.late:
            self._set_rest(pairs)
        if self.late:
            for pair in group.pairs:
                asked = pairs.get((pair[0], int(GENERATE)))
                if asked is not None and (pair[1] == CALL or (pair[1] == ASSISTANT and pair not in pairs)):
                    pairs[pair] = asked if pair[1] == CALL else asked + self.rest
        if not set(group.pairs) <= set(pairs):
            if not chat and not any(set(pairs_of(kinds)) <= wanted for kinds in group.chains):
                return None  # its sequences need a group that was left out
            missing = pair_name(sorted(set(group.pairs) - set(pairs))[0])
            return self._refuse(group, Witness(f"the template never writes {missing}", [], "", ""))
        problem = None if self.late else self._check_openings(pairs)
        if problem is not None:
            return self._refuse(group, problem)
        self.pairs, self._shown = pairs, shown
        return None

    def _refuse(self, group: Group, witness: Witness) -> None:
        if group is CHAT:
            raise Refuted(witness)
        self.notes.append(f"{group.name}: refused, for {witness.reason}")

    def _merge(
        self, pairs: dict[Pair, str], shown: dict[Pair, tuple[int, ...]], kinds: Sequence[int]
    ) -> Witness | None:
        kinds = tuple(kinds)
        if kinds in self.found.refused:
            return Witness(f"the template raises ({self.found.refused[kinds]})", self._messages(kinds), "", "")
        tail = self.found.tails.get(kinds) if self.late else None
        if kinds in self.found.displaced and tail is None:
            return Witness(str(self.found.displaced[kinds]), self._messages(kinds), "", "")
        last = max((i for i, kind in enumerate(kinds) if kind in ANSWERS), default=-1)
        for index, (pair, text) in enumerate(zip(pairs_of(kinds), tail or self.found.gaps[kinds], strict=True)):
            if self.late and index <= last:
                if tail is not None:
                    continue
                if pair not in pairs and pair != (USER, ASSISTANT) and pair[1] != CALL:
                    pairs[pair], shown[pair] = text, kinds
                continue
            if self.late and last < 0 and pair in pairs:
                continue
            if self.late and last >= 0 and pair in pairs and not set(ANSWERS) & set(shown[pair]):
                pairs[pair], shown[pair] = text, kinds
                continue
            if pairs.setdefault(pair, text) != text:
                return self._conflict(pair, (pairs[pair], shown[pair]), (text, kinds))
            shown.setdefault(pair, kinds)
        return None

    def _set_rest(self, pairs: dict[Pair, str]) -> None:
        """What the template writes before an answer that ends the conversation, behind the generation prompt."""
        opening, final = pairs.get((USER, GENERATE), ""), self.found.finals.get((USER,), "")
        self.rest = final[len(opening) :] if final.startswith(opening) else ""
        pairs[USER, ASSISTANT] = opening + self.rest

    def _check_openings(self, pairs: dict[Pair, str]) -> Witness | None:
        """A past answer must have the generation prompt before it, and the same text between the two everywhere."""
        opening, past = pairs[USER, GENERATE], pairs[USER, ASSISTANT]
        if opening.startswith(past):
            opened, rest = opening[len(past) :], ""
        elif past.startswith(opening):
            opened, rest = "", past[len(opening) :]
        else:
            reason = "the generation prompt is not what the template writes before a past answer"
            return Witness(reason, self._messages((USER, ASSISTANT, USER)), opening, past)
        for pair, text in pairs.items():
            asked = pairs.get((pair[0], int(GENERATE)))
            other = asked if pair[1] == CALL else None if asked is None else asked + rest
            if pair[1] in ANSWERS and asked is not None and other != text + opened:
                reason = f"{pair_name(pair)} has another header than the generation prompt there"
                return Witness(reason, [], asked, text)
        for kinds, text in self.found.finals.items():
            if (kinds[-1], ASSISTANT) in pairs and SYSTEM not in kinds and text != pairs[kinds[-1], ASSISTANT]:
                reason = "an answer has another header while it is the last message than once it is past"
                return Witness(reason, self._messages((*kinds, ASSISTANT, USER)), text, pairs[kinds[-1], ASSISTANT])
        self.rest, self.opened = rest, opened
        return None

    def _conflict(self, pair: Pair, one: tuple[str, tuple[int, ...]], two: tuple[str, tuple[int, ...]]) -> Witness:
        (short_text, short), (long_text, long) = sorted((one, two), key=lambda x: len(x[1]))
        names = [", ".join(Kind(k).name.lower() for k in kinds) for kinds in (short, long)]
        reason = f"{pair_name(pair)} is written otherwise in [{names[1]}] than in [{names[0]}]"
        return Witness(reason, self._messages(long), short_text, long_text)

    def _messages(self, kinds: Sequence[int]) -> list[dict[str, str]]:
        return self.render.messages(kinds, [f"content {i}" for i in range(len(kinds))])
