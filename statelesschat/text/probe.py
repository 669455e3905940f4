"""Asking a template what it writes: renders with sentinel contents, taken apart into gaps."""

import contextlib
import itertools
import os.path
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from statelesschat.core.types import Kind
from statelesschat.text.marks import Displaced, Segments, marks, take_apart
from statelesschat.text.render import Renderer, RenderError

SYSTEM, USER, ASSISTANT, TOOL, CALL = Kind.SYSTEM, Kind.USER, Kind.ASSISTANT, Kind.TOOL, Kind.CALL
START, GENERATE = Kind.START, Kind.GENERATE


def segments(render: Renderer, kinds: Sequence[int], generate: bool) -> Segments:
    """Render ``kinds`` with sentinels and take the text apart; Displaced or RenderError where that fails.

    A message with calls reaches from the generation prompt, as the conversation before it ends in, to its stop token.
    """
    key = tuple(kinds), generate
    if key not in render.taken:
        contents = marks(kinds, render.shape)
        found = take_apart(render(kinds, contents, generate), kinds, contents, render.shape)
        render.taken[key] = _with_calls(render, kinds, generate, found) if CALL in kinds else found
    return render.taken[key]


def _with_calls(render: Renderer, kinds: Sequence[int], generate: bool, found: Segments) -> Segments:
    gaps, spans = list(found.gaps), list(found.spans)
    stop = render.shape.stop if render.shape is not None else ""
    for i, kind in enumerate(kinds):
        if kind != CALL:
            continue
        head = _same_head(render, gaps[i], segments(render, kinds[:i], True).gaps[-1])
        final = i == len(kinds) - 1 and not generate
        at = gaps[i + 1].find(stop)
        if at < 0 and not final:
            raise Displaced(kind, f"not followed by {stop!r}", kinds)
        tail = gaps[i + 1][: at if at >= 0 else len(gaps[i + 1])]
        spans[i] = (spans[i][0] - len(gaps[i]) + len(head), spans[i][1] + len(tail))
        gaps[i], gaps[i + 1] = head, gaps[i + 1][len(tail) :]
    return Segments(tuple(gaps), tuple(spans), found.text)


def _same_head(render: Renderer, one: str, two: str) -> str:
    """What two texts begin with alike, no added token cut in two."""
    length = len(os.path.commonprefix([one, two]))
    encoding = render.tokenizer.backend_tokenizer.encode(one, add_special_tokens=False)
    added = render.tokenizer.added_tokens_decoder
    for token, (start, end) in zip(encoding.ids, encoding.offsets, strict=True):
        if token in added and start < length < end:
            return one[:start]
    return one[:length]


def _tail(render: Renderer, kinds: Sequence[int]) -> tuple[str, ...]:
    """The gaps behind the last answer of a conversation; those before it are left empty."""
    last = max((i for i, kind in enumerate(kinds) if kind in (ASSISTANT, CALL)), default=-1)
    if last < 0:
        raise Displaced(kinds[-1], "not behind an answer", kinds)
    contents = marks(kinds, render.shape)
    found = take_apart(render(kinds, contents, True), kinds[last:], contents[last:], render.shape)
    gaps = list(found.gaps)
    if kinds[last] == CALL and render.shape is not None:
        at = gaps[1].find(render.shape.stop)
        if at < 0:
            raise Displaced(CALL, f"not followed by {render.shape.stop!r}", kinds)
        gaps[1] = gaps[1][at:]
    return ("",) * (last + 1) + tuple(gaps[1:])


class Group(NamedTuple):
    """Pairs of neighbours that a template writes or does not write together, and role sequences that show them."""

    name: str
    pairs: frozenset[tuple[int, int]]
    chains: tuple[tuple[int, ...], ...]


LEADS = {
    START: (),
    SYSTEM: (SYSTEM,),
    USER: (USER,),
    ASSISTANT: (USER, ASSISTANT),
    TOOL: (USER, ASSISTANT, TOOL),
    CALL: (USER, CALL),
}
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
CALLS = Group(
    "tool calls",
    frozenset({(USER, CALL), (CALL, TOOL), (TOOL, GENERATE), (TOOL, CALL), (TOOL, ASSISTANT)}),
    (
        (USER, CALL, TOOL),
        (USER, CALL, TOOL, ASSISTANT, USER),
        (USER, CALL, TOOL, CALL, TOOL),
        (USER, CALL, TOOL, CALL, TOOL, ASSISTANT, USER),
        (USER, ASSISTANT, USER, CALL, TOOL, ASSISTANT, USER),
        (SYSTEM, USER, CALL, TOOL),
        (SYSTEM, USER, ASSISTANT, USER, CALL, TOOL),
    ),
)
TOOLS = Group(
    "tool results behind answers without calls",
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


def _optional(pair: tuple[int, int]) -> Group:
    """A pair and its sequences; those with tool results behind calls first."""
    chains = tuple(_sequences_with(pair))
    if TOOL in pair:
        chains = (*(_called(kinds) for kinds in chains), *chains)
    return Group(pair_name(pair), frozenset({pair}), tuple(dict.fromkeys(chains)))


def _called(kinds: Sequence[int]) -> tuple[int, ...]:
    """A role sequence in which every answer before a tool result calls a tool."""
    nexts = [*kinds[1:], int(Kind.NONE)]
    return tuple(CALL if (k, n) == (ASSISTANT, TOOL) else k for k, n in zip(kinds, nexts, strict=True))


OPTIONAL = tuple(map(_optional, _OPTIONAL))
GROUPS = (CHAT, SYSTEMS, CALLS, *OPTIONAL, TOOLS)


def groups_of(called: bool) -> tuple[Group, ...]:
    """The groups in the order in which they are tried; ``called``: the template writes tool calls.

    Results behind answers without calls are then tried last, so that it is they that have to agree.
    """
    return GROUPS if called else (CHAT, SYSTEMS, TOOLS, *OPTIONAL)


def pairs_of(kinds: Sequence[int]) -> list[tuple[int, int]]:
    """The neighbours in a conversation that ends in a generation prompt."""
    chain = [int(START), *map(int, kinds), int(GENERATE)]
    return list(itertools.pairwise(chain))


class Observed(NamedTuple):
    """What probing found, by role sequence."""

    gaps: dict[tuple[int, ...], tuple[str, ...]]  # with the generation prompt
    tails: dict[tuple[int, ...], tuple[str, ...]]  # the same where only what stands behind the last answer is in order
    finals: dict[tuple[int, ...], str]  # gap before an answer that ends the render
    displaced: dict[tuple[int, ...], Displaced]
    refused: dict[tuple[int, ...], str]  # the template's own error


def probe(render: Renderer, groups: Sequence[Group] = GROUPS) -> Observed:
    """Render the probing conversations and take each apart; those with calls only if the renderer has a shape."""
    found = Observed({}, {}, {}, {}, {})
    for kinds in dict.fromkeys(kinds for group in groups for kinds in group.chains):
        if CALL in kinds and render.shape is None:
            continue
        try:
            found.gaps[kinds] = segments(render, kinds, True).gaps
        except RenderError as error:
            found.refused[kinds] = str(error)
        except Displaced as error:
            found.displaced[kinds] = error
            with contextlib.suppress(Displaced):
                found.tails[kinds] = _tail(render, kinds)
    for kinds in ((USER,), (SYSTEM, USER), (USER, ASSISTANT, USER)):
        try:
            found.finals[kinds] = segments(render, (*kinds, ASSISTANT), False).gaps[-2]
        except (RenderError, Displaced):
            continue
    return found
