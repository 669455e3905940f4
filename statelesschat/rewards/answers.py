r"""Where in a response the final answer stands, and the number that it is.

Tasks ask for an answer in a *mark*: ``#### 18``, ``\boxed{18}``, ``<answer>18</answer>``, ``A: 18``, "the answer
is 18". The mark that begins last decides, for an answer that is corrected later is the later one. What a response
thinks (``<think>…</think>``) is no answer.

A text is gone over once, for thoughts, marks and the last digit; all else happens in a window of a few hundred bytes.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Int

from statelesschat.rewards.nearby import changed_beside, is_digit, number_around, only_words_beside
from statelesschat.rewards.number import WIDTH, Number, parse_decimal, reads_as_number
from statelesschat.rewards.text import (
    SPACES,
    Text,
    among,
    begins,
    bytes_at,
    choose,
    first_of,
    inside,
    is_any,
    last_of,
    lower,
    missing,
    strip,
    until,
)

LONGEST = 256  # bytes of an answer in a mark, its closing included

_TAG = "<answer>"
_BOXES = ("\\boxed{", "\\fbox{")
_LINES = ("####", "answer:", "answer is")  # in small letters
_LINE_START = "a:"  # a mark at the beginning of a line only
_MARKS = (_TAG, *_BOXES, *_LINES, _LINE_START)
_DIGIT = 255  # among the marks, one that is none
_ENCLOSING = 1 + len(_BOXES)
_THINK, _THOUGHT = "<think>", "</think>"
_WIDEST = max(map(len, (*_MARKS, _THOUGHT)))
_ROOM = WIDTH + 16  # bytes beside a digit that its number, sign and currency can take


class Answer(NamedTuple):
    """A final answer: its text, and the kind of mark it stands in."""

    text: Text
    marked: Bool[Array, ""]  # False: there is no mark at all
    enclosed: Bool[Array, ""]  # the mark has an end of its own, as ``\\boxed{…}`` has


class _Look(NamedTuple):
    """What going over a text once finds."""

    said: Text  # what stands behind the thoughts
    kind: Int[Array, ""]  # of its last mark, as an index into _MARKS; -1 for none
    behind: Int[Array, ""]  # where what the mark marks begins
    digit: Int[Array, ""]  # where the last digit stands, -1 for nowhere


def final_answer(text: Text) -> Answer:
    r"""What the last mark of a text holds, in a window of its own; missing where that mark is not closed or absent.

    ``<answer>…</answer>``, ``\boxed{…}`` and ``\fbox{…}`` (braces balanced) enclose an answer of up to
    256 bytes, its closing included. ``####``, ``A:`` at the beginning of a line, ``answer:`` and ``answer is`` (in any
    case) are followed by one: from the next byte that is neither white space nor one of ``: *`` to the end of its line.

    Marks are looked for behind the last ``</think>``. There are none in a text that ends in a thought, behind a
    ``<think>`` that is not closed, and none in a text that does not fit.

    Example:
        >>> from statelesschat.rewards import text_of
        >>> answer = final_answer(text_of(r"<think>\boxed{2}?</think> It is \boxed{x = 3}."))
        >>> bytes(answer.text.bytes)[answer.text.start : answer.text.end]
        b'x = 3'
    """
    return _answer_in(_looked_over(text))


def final_number(text: Text) -> Number:
    r"""The number that a response ends up with.

    In a mark (`final_answer`) it is the mark's whole content if that is a number. Else it is the only number there: in
    a mark that encloses its answer beside words, ``=`` or ``\text{…}`` alone (so not in ``\sqrt{5}`` or ``5 x``); in a
    mark up to the end of its line, in all up to the end of the sentence that its first number stands in. In a text
    without any mark it is the last number behind the thoughts. Otherwise, and where what was found is more than a
    number (``1,2,3``, ``12/25/2020``, ``10:30``), nothing is valid.

    Nor is a number beside which stands what makes another of it, or of several choices one: a letter, ``^``, a sign of
    mathematics or a digit of another script that touches it (``5x``, ``2^5``, ``5½``), an operator before it, a number
    before it (``1 1/2``); before it one of the words *minus, negative, not, than, at least, at most*, or behind it
    *hundred, thousand, million, billion, trillion, lakh, crore, dozen, squared, cubed, and a half, or*.

    Example:
        >>> from statelesschat.rewards import final_number, parse_decimal, same_number, text_of
        >>> said = final_number(text_of("She makes 9 * 2 = 18 dollars.\n#### $18.00"))
        >>> bool(same_number(said, parse_decimal(text_of("18"))))
        True
    """
    look = _looked_over(text)
    answer = _answer_in(look)
    tail = _window(look.said, jnp.maximum(look.digit - _ROOM, look.said.start), LONGEST)
    where = lax.optimization_barrier(jax.tree.map(lambda a, b: jnp.where(answer.marked, a, b), answer.text, tail))
    digits = is_digit(where)
    first, last = first_of(digits), last_of(digits)
    run = number_around(where, jnp.maximum(jnp.where(answer.marked, first, last), 0))
    alone = jnp.where(answer.enclosed, only_words_beside(where, run), _alone_in_sentence(where, run))
    usable = (first >= 0) & (alone | ~answer.marked) & ~changed_beside(where, run)
    whole = answer.marked & reads_as_number(_window(where, where.start, WIDTH + 1))
    part = choose(whole, where, choose(usable, run, missing(where)))
    return parse_decimal(_window(part, part.start, WIDTH + 1))


def _answer_in(look: _Look) -> Answer:
    """The content of the last mark."""
    marked = look.kind >= 0
    enclosed = marked & (look.kind < _ENCLOSING)
    near = _window(look.said, look.behind, LONGEST)
    tagged, boxed = until(near, _TAG.replace("<", "</")), until(near, "}", nested="{")
    solid = inside(near) & ~is_any(near, SPACES + b":*")
    first = jnp.where(jnp.any(solid), first_of(solid), near.end)
    end = first_of(begins(near, "\n") & (jnp.arange(LONGEST) >= first))
    line = near._replace(start=first, end=jnp.where(end >= 0, end, near.end))
    answer = choose(enclosed, choose(look.kind == 0, tagged, boxed), line)
    return Answer(strip(choose(marked, answer, missing(near))), marked, enclosed)


def _alone_in_sentence(text: Text, run: Text) -> Bool[Array, ""]:
    """Whether there is no digit but those of a run up to the end of its sentence, and that end is in the window."""
    positions = jnp.arange(text.bytes.shape[0], dtype=jnp.int32)
    space = jnp.concatenate([is_any(text, SPACES)[1:], jnp.zeros(1, bool)])
    ends = is_any(text, b".!?;") & inside(text) & (space | (positions + 1 == text.end)) & (positions >= run.end)
    end = first_of(ends)
    others = is_digit(text) & ~((positions >= run.start) & (positions < run.end))
    others = others & ((end < 0) | (positions < end))
    return ~jnp.any(others) & (text.fits | (end >= 0))


def _looked_over(text: Text) -> _Look:
    size = text.bytes.shape[0]
    positions = jnp.arange(size, dtype=jnp.int32)
    # Bytes outside are 0, of which no mark has any. The barriers keep XLA from making it all anew for each use.
    held = jnp.where(inside(text), text.bytes, np.uint8(0))
    held = lax.optimization_barrier(jnp.concatenate([held, jnp.zeros(_WIDEST, jnp.uint8)]))
    small = lax.optimization_barrier(lower(text._replace(bytes=held)).bytes)
    kinds = jnp.zeros(size, jnp.uint8)
    for kind, mark in enumerate((*_MARKS, _THINK, _THOUGHT)):
        read = small if mark in (*_LINES, _LINE_START) else held
        here = jnp.ones(size, bool)
        for offset, byte in enumerate(mark.encode()):
            here = here & (read[offset : offset + size] == byte)
        kinds = jnp.where(here, np.uint8(kind + 1), kinds)
    kinds = lax.optimization_barrier(jnp.where(among(held[:size], b"0123456789"), np.uint8(_DIGIT), kinds))

    think, thought = (last_of(kinds == len(_MARKS) + i) for i in (1, 2))
    start = jnp.where(thought >= 0, thought + len(_THOUGHT), text.start)
    said = choose((think <= thought) & text.fits & text.found, text._replace(start=start), missing(text))
    begins_line = jnp.concatenate([jnp.ones(1, bool), held == ord("\n")])[:size] | (positions == said.start)
    marks = (kinds > 0) & (kinds <= len(_MARKS)) & ((kinds != _MARKS.index(_LINE_START) + 1) | begins_line)
    last = last_of(marks & inside(said))
    kind = bytes_at(text._replace(bytes=kinds), jnp.where(last < 0, size, last)).astype(jnp.int32) - 1
    widths = jnp.asarray([len(mark) for mark in _MARKS], jnp.int32)
    digit = last_of((kinds == _DIGIT) & inside(said))
    return _Look(said, kind, last + widths[jnp.maximum(kind, 0)], digit)


def _window(text: Text, start: Int[Array, ""], width: int) -> Text:
    """The text from a place in its array on, in an array of ``width`` bytes that says so where it did not fit."""
    offsets = jnp.arange(width, dtype=jnp.int32)
    found = lax.optimization_barrier(bytes_at(text, start + offsets))
    return Text(found, jnp.zeros_like(start), text.end - start)
