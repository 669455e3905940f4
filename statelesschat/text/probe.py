"""Asking a template what it writes: renders with sentinel contents, taken apart into gaps."""

import itertools
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from statelesschat.core.types import Kind
from statelesschat.text.render import Renderer, RenderError

SYSTEM, USER, ASSISTANT, TOOL = Kind.SYSTEM, Kind.USER, Kind.ASSISTANT, Kind.TOOL
START, GENERATE = Kind.START, Kind.GENERATE


class Displaced(ValueError):
    """A content stands elsewhere than in its turn: left out, repeated or out of order."""

    def __init__(self, kind: int, what: str, kinds: Sequence[int]) -> None:
        self.kind, self.what, self.kinds = int(kind), what, tuple(kinds)
        order = ", ".join(Kind(k).name.lower() for k in kinds)
        super().__init__(f"the {Kind(kind).name.lower()} content is {what} in the conversation [{order}]")


class Segments(NamedTuple):
    """A render with sentinel contents, taken apart: ``gaps[i]`` stands before content ``i``, the last one behind."""

    gaps: tuple[str, ...]
    text: str


def sentinels(count: int, beside: Sequence[str] = ()) -> list[str]:
    """Contents that no template writes of itself, that case, trimming and escaping leave alone.

    None of them stands in the contents given as ``beside``.
    """
    for salt in range(10_000):
        stem = f"71039{salt:04d}"
        if not any(stem in content for content in beside):
            return [f"{stem}{i:03d}93017" for i in range(count)]
    raise ValueError("these contents hold every sentinel there is")


def segments(render: Renderer, kinds: Sequence[int], generate: bool) -> Segments:
    """Render ``kinds`` with sentinels and take the text apart; Displaced or RenderError where that fails."""
    marks = sentinels(len(kinds))
    return take_apart(render(kinds, marks, generate), kinds, marks)


def take_apart(text: str, kinds: Sequence[int], marks: Sequence[str]) -> Segments:
    """The gaps of a text around marks that must stand in it once each and in order."""
    gaps, position = [], 0
    for kind, mark in zip(kinds, marks, strict=True):
        count = text.count(mark)
        if count != 1:
            raise Displaced(kind, "left out" if count == 0 else f"written {count} times", kinds)
        at = text.index(mark)
        if at < position:
            raise Displaced(kind, "moved before an earlier one", kinds)
        gaps.append(text[position:at])
        position = at + len(mark)
    return Segments((*gaps, text[position:]), text)


def split_at(text: str, marks: Sequence[str]) -> list[str]:
    """The parts of a text between marks, which must stand in it once each and in order; ValueError otherwise."""
    if any(text.count(mark) != 1 for mark in marks):
        raise ValueError("a mark is missing or repeated")
    parts = re.split("|".join(map(re.escape, marks)), text) if marks else [text]
    return parts


class Group(NamedTuple):
    """Pairs of neighbours that a template writes or does not write together, and role sequences that show them."""

    name: str
    pairs: frozenset[tuple[int, int]]
    chains: tuple[tuple[int, ...], ...]


LEADS = {START: (), SYSTEM: (SYSTEM,), USER: (USER,), ASSISTANT: (USER, ASSISTANT), TOOL: (USER, ASSISTANT, TOOL)}
CHAT = Group(
    "chat",
    frozenset({(START, USER), (USER, GENERATE), (USER, ASSISTANT), (ASSISTANT, USER)}),
    ((USER,), (USER, ASSISTANT, USER), (USER, ASSISTANT, USER, ASSISTANT, USER)),
)
SYSTEMS = Group(
    "system messages",
    frozenset({(START, SYSTEM), (SYSTEM, USER)}),
    ((SYSTEM, USER), (SYSTEM, USER, ASSISTANT, USER), (SYSTEM, USER, ASSISTANT, USER, ASSISTANT, USER)),
)
TOOLS = Group(
    "tool results",
    frozenset({(ASSISTANT, TOOL), (TOOL, GENERATE), (TOOL, ASSISTANT)}),
    (
        (USER, ASSISTANT, TOOL),
        (USER, ASSISTANT, TOOL, ASSISTANT, USER),
        (USER, ASSISTANT, TOOL, ASSISTANT, TOOL),
        (USER, ASSISTANT, USER, ASSISTANT, TOOL, ASSISTANT, USER),
        (SYSTEM, USER, ASSISTANT, TOOL),
    ),
)
_OPTIONAL = (
    (TOOL, TOOL),
    (USER, USER),
    (TOOL, USER),
    (USER, SYSTEM),
    (SYSTEM, SYSTEM),
    (ASSISTANT, SYSTEM),
    (SYSTEM, GENERATE),
    (SYSTEM, ASSISTANT),
    (START, ASSISTANT),
    (USER, TOOL),
)


def _sequences_with(pair: tuple[int, int]) -> Iterator[tuple[int, ...]]:
    """Role sequences in which ``pair`` stands early, late and after a system message."""
    previous, next = pair
    lead = LEADS[Kind(previous)]
    tail = () if next == GENERATE else (next,)
    if next in (ASSISTANT, SYSTEM):
        tail = (*tail, USER)
    plain = (*lead, *tail)
    yield plain
    if previous not in (START, SYSTEM):
        yield (USER, ASSISTANT, *plain)
        yield (SYSTEM, *plain)
    elif previous == SYSTEM and next != GENERATE:
        yield (*plain, ASSISTANT, USER) if next == SYSTEM else (*plain, USER)
    if next not in (GENERATE, ASSISTANT):
        yield (*plain, ASSISTANT, USER)


def pair_name(pair: tuple[int, int]) -> str:
    """A pair in words."""
    names = {int(START): "the start", int(GENERATE): "a generation prompt", int(ASSISTANT): "an assistant message"}
    one, two = (names.get(int(k), f"a {Kind(k).name.lower()} message") for k in pair)
    return f"{two} after {one}"


OPTIONAL = tuple(Group(pair_name(p), frozenset({p}), tuple(_sequences_with(p))) for p in _OPTIONAL)
GROUPS = (CHAT, SYSTEMS, TOOLS, *OPTIONAL)


def pairs_of(kinds: Sequence[int]) -> list[tuple[int, int]]:
    """The neighbours in a conversation that ends in a generation prompt."""
    chain = [int(START), *map(int, kinds), int(GENERATE)]
    return list(itertools.pairwise(chain))


class Observed(NamedTuple):
    """What probing found, by role sequence."""

    gaps: dict[tuple[int, ...], tuple[str, ...]]  # with the generation prompt
    finals: dict[tuple[int, ...], str]  # gap before an answer that ends the render
    displaced: dict[tuple[int, ...], Displaced]
    refused: dict[tuple[int, ...], str]  # the template's own error


def probe(render: Renderer) -> Observed:
    """Render the probing conversations and take each apart."""
    found = Observed({}, {}, {}, {})
    for kinds in dict.fromkeys(kinds for group in GROUPS for kinds in group.chains):
        try:
            found.gaps[kinds] = segments(render, kinds, True).gaps
        except RenderError as error:
            found.refused[kinds] = str(error)
        except Displaced as error:
            found.displaced[kinds] = error
    for kinds in ((USER,), (SYSTEM, USER), (USER, ASSISTANT, USER)):
        try:
            found.finals[kinds] = segments(render, (*kinds, ASSISTANT), False).gaps[-2]
        except (RenderError, Displaced):
            continue
    return found
