"""Regular languages of bytes as tables, so that a text is read in one pass without backtracking.

A language is built from few parts on the host and made into a deterministic automaton by the subset construction
(Rabin and Scott, 1959). Reading it on the device is one table look-up a byte.
"""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np


class Language(NamedTuple):
    """A regular language: one of the five ways to make one, with its parts."""

    kind: str  # "bytes", "sequence", "either", "repeat"
    parts: tuple["Language", ...] = ()
    members: bytes = b""


class Automaton(NamedTuple):
    """A deterministic automaton: ``table[state, byte]`` is the next state; state 0 refuses for ever, 1 begins."""

    table: np.ndarray  # int32[states, 256]
    accepts: np.ndarray  # bool[states]


def any_of(members: bytes | str) -> Language:
    """One byte, any of ``members``."""
    return Language("bytes", (), members.encode() if isinstance(members, str) else members)


def literal(text: str) -> Language:
    """Exactly this text, in UTF-8."""
    return sequence(*(any_of(bytes([byte])) for byte in text.encode()))


def sequence(*parts: Language) -> Language:
    """One part after the other."""
    return Language("sequence", parts)


def either(*parts: Language) -> Language:
    """One of the parts."""
    return Language("either", parts)


def maybe(*parts: Language) -> Language:
    """The parts in sequence, or nothing."""
    return either(sequence(*parts), sequence())


def many(*parts: Language) -> Language:
    """The parts in sequence, any number of times, or nothing."""
    return Language("repeat", (sequence(*parts),))


def compile_language(language: Language) -> Automaton:
    """The automaton that accepts just this language."""
    edges: list[list[tuple[bytes, int]]] = []  # of the nondeterministic one; b"" is an edge that reads nothing

    def state() -> int:
        edges.append([])
        return len(edges) - 1

    def build(part: Language, begin: int, end: int) -> None:
        match part.kind:
            case "bytes":
                edges[begin].append((part.members, end))
            case "sequence":
                for inner in part.parts:
                    after = state()
                    build(inner, begin, after)
                    begin = after
                edges[begin].append((b"", end))
            case "either":
                for inner in part.parts:
                    build(inner, begin, end)
            case "repeat":
                inner = state()
                edges[begin].append((b"", inner))
                edges[inner].append((b"", end))
                build(part.parts[0], inner, inner)

    begin, end = state(), state()
    build(language, begin, end)

    def closure(states: Iterable[int]) -> frozenset[int]:
        reached, waiting = set(states), list(states)
        while waiting:
            for members, after in edges[waiting.pop()]:
                if not members and after not in reached:
                    reached.add(after)
                    waiting.append(after)
        return frozenset(reached)

    known: dict[frozenset[int], int] = {frozenset(): 0, closure([begin]): 1}
    order = list(known)
    rows = []
    for subset in order:  # grows while it is read
        targets: list[set[int]] = [set() for _ in range(256)]
        for nfa_state in subset:
            for members, after in edges[nfa_state]:
                for byte in members:
                    targets[byte].add(after)
        row = []
        for target in targets:
            closed = closure(target)
            if closed not in known:
                known[closed] = len(order)
                order.append(closed)
            row.append(known[closed])
        rows.append(row)
    return Automaton(np.asarray(rows, np.int32), np.asarray([end in subset for subset in order]))
