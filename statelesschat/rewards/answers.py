r"""Where in a response the final answer stands, and the number that it is.

Tasks ask for an answer in a *mark*: ``#### 18``, ``\boxed{18}``, ``<answer>18</answer>``, ``A: 18``, "the answer
is 18". The mark that begins last decides, for an answer that is corrected later is the later one. Numbers are looked
for with the care that a reader takes: a hyphen between two numbers is no sign, a period that ends a sentence no point.

A text is gone over once, for the last mark and the last digit; all else happens in a window of a few hundred bytes.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from statelesschat.rewards.number import CURRENCIES, SIGNS, WIDTH, Number, parse_decimal
from statelesschat.rewards.text import SPACES, Text, begins, choose, inside, is_any, lower, missing, strip, until

LONGEST = 256  # bytes of an answer in a mark, its closing included

_TAG = "<answer>"
_BOXES = ("\\boxed{", "\\fbox{")
_LINES = ("####", "answer:", "answer is")  # in small letters
_LINE_START = "a:"  # a mark at the beginning of a line only
_MARKS = (_TAG, *_BOXES, *_LINES, _LINE_START)
_DIGITS = b"0123456789"
_LETTERS = bytes(range(ord("a"), ord("z") + 1)) + bytes(range(ord("A"), ord("Z") + 1))
_ROOM = WIDTH + 16  # bytes beside a digit that its number, sign and currency can take


class Answer(NamedTuple):
    """A final answer: its text, and the kind of mark it stands in."""

    text: Text
    marked: Bool[Array, ""]  # False: there is no mark at all
    enclosed: Bool[Array, ""]  # the mark has an end of its own, as ``\\boxed{…}`` has


def final_answer(text: Text) -> Answer:
    r"""What the last mark of a text holds, in a window of its own; missing where that mark is not closed or absent.

    ``<answer>…</answer>``, ``\boxed{…}`` and ``\fbox{…}`` (braces balanced) enclose an answer of up to
    256 bytes, its closing included. ``####``, ``A:`` at the beginning of a line, ``answer:`` and ``answer is`` (in any
    case) are followed by one: from the next byte that is neither white space nor one of ``: *`` to the end of its line.
    """
    kind, behind = _last_mark(text)
    marked = kind >= 0
    enclosed = marked & (kind < 1 + len(_BOXES))
    near = _window(text, behind, LONGEST)
    tagged, boxed = until(near, _TAG.replace("<", "</")), until(near, "}", nested="{")
    solid = inside(near) & ~is_any(near, SPACES + b":*")
    first = jnp.where(jnp.any(solid), jnp.argmax(solid).astype(jnp.int32), near.end)
    ends = begins(near, "\n") & (jnp.arange(LONGEST) >= first)
    line = near._replace(start=first, end=jnp.where(jnp.any(ends), jnp.argmax(ends).astype(jnp.int32), near.end))
    answer = choose(enclosed, choose(kind == 0, tagged, boxed), line)
    return Answer(strip(choose(marked, answer, missing(near))), marked, enclosed)


def final_number(text: Text) -> Number:
    r"""The number that a response ends up with.

    In a mark (`final_answer`) it is the mark's whole content if that is a number; else, in a mark that encloses its
    answer, the only number there, if all else are words, ``=`` or ``\text{…}`` (so not in ``\sqrt{5}`` or ``5x``);
    in a mark up to the end of its line, the first number. In a text without any mark it is the last number. Otherwise,
    and where what was found is more than a number (``1,2,3``, ``12/25/2020``), nothing is valid.

    Example:
        >>> from statelesschat.rewards import final_number, parse_decimal, same_number, text_of
        >>> said = final_number(text_of("She makes 9 * 2 = 18 dollars.\n#### $18.00"))
        >>> bool(same_number(said, parse_decimal(text_of("18"))))
        True
    """
    answer = final_answer(text)
    digits = is_digit(text)
    last = jnp.max(jnp.where(digits, jnp.arange(text.bytes.shape[0], dtype=jnp.int32), -1))
    tail = _window(text, jnp.maximum(last - _ROOM, text.start), LONGEST)
    tail = tail._replace(end=jnp.where(last >= 0, tail.end, -1))
    where = Text(
        jnp.where(answer.marked, answer.text.bytes, tail.bytes),
        jnp.where(answer.marked, answer.text.start, tail.start),
        jnp.where(answer.marked, answer.text.end, tail.end),
    )
    digits = is_digit(where)
    positions = jnp.arange(LONGEST, dtype=jnp.int32)
    first, last = jnp.argmax(digits).astype(jnp.int32), jnp.max(jnp.where(digits, positions, -1))
    run = number_around(where, jnp.where(answer.marked, first, last))
    usable = ~answer.enclosed | _only_words_beside(where, run)
    run = choose(usable & (last >= 0), run, missing(where))
    whole = choose(answer.marked, where, missing(where))
    short = (_window(part, part.start, WIDTH + 1) for part in (whole, run))
    both = jax.tree.map(lambda *parts: jnp.stack(parts), *short)
    as_whole, in_part = (jax.tree.map(lambda leaf, i=i: leaf[i], jax.vmap(parse_decimal)(both)) for i in (0, 1))
    found = jax.tree.map(lambda a, b: jnp.where(as_whole.valid, a, b), as_whole, in_part)
    return found._replace(valid=found.valid & text.fits)


def is_digit(text: Text) -> Bool[Array, "S"]:
    """Which bytes of the text are digits."""
    return is_any(text, _DIGITS) & inside(text)


def number_around(text: Text, position: Int[Array, ""]) -> Text:
    r"""The longest stretch around a digit that reads as one number, its sign, currency and percent sign included.

    Part of it are digits; periods, commas and slashes between two digits; a period before a digit; ``e`` or ``E`` with
    its sign between digits. A sign counts where nothing that could be subtracted from stands before it: no letter, no
    digit, no closing bracket.
    """
    before, after = lambda where, n=1: _shift(where, n), lambda where, n=1: _shift(where, -n)
    here = inside(text)
    digit = is_digit(text)
    letter = is_any(text, _LETTERS) & here
    signs = is_any(text, b"+-") & here
    joint = is_any(text, b".,/") & before(digit) & after(digit)
    point = begins(text, ".") & after(digit) & ~before(letter)
    power = is_any(text, b"eE") & here & before(digit) & (after(digit) | (after(signs) & after(digit, 2)))
    raised = signs & before(power) & after(digit)
    part = digit | joint | point | power | raised
    positions = jnp.arange(text.bytes.shape[0], dtype=jnp.int32)
    start = jnp.max(jnp.where(~part & (positions < position), positions, -1)) + 1
    end = jnp.min(jnp.where(~part & (positions > position), positions, text.bytes.shape[0]))
    start = jnp.clip(start, text.start, position)
    end = jnp.minimum(end, text.end)
    start = _back_over(text, start)
    percent = _at(begins(text, "%"), end)
    slashed = _at(begins(text, "\\%"), end)
    return text._replace(start=start, end=end + jnp.where(slashed, 2, percent.astype(jnp.int32)))


def _last_mark(text: Text) -> tuple[Int[Array, ""], Int[Array, ""]]:
    """The last mark as an index into ``_MARKS``, -1 for none, and where what it marks begins."""
    size = text.bytes.shape[0]
    small = lower(text)
    positions = jnp.arange(size, dtype=jnp.int32)
    after_newline = jnp.concatenate([jnp.zeros(1, bool), text.bytes[:-1] == ord("\n")])
    keys = jnp.full(size, -1, jnp.int32)
    for kind, mark in enumerate(_MARKS):
        here = begins(text if kind <= len(_BOXES) else small, mark)
        if mark == _LINE_START:
            here = here & (after_newline | (positions == text.start))
        keys = jnp.where(here, positions * len(_MARKS) + kind, keys)
    last = jnp.max(keys)
    kind = jnp.where(last >= 0, last % len(_MARKS), -1)
    widths = jnp.asarray([len(mark) for mark in _MARKS], jnp.int32)
    return kind, last // len(_MARKS) + widths[kind]


def _window(text: Text, start: Int[Array, ""], width: int) -> Text:
    """The text from a place in its array on, in an array of ``width`` bytes that says so where it did not fit."""
    offsets = jnp.arange(width, dtype=jnp.int32)
    found = jnp.asarray(text.bytes).at[start + offsets].get(mode="fill", fill_value=0)
    return Text(found, jnp.zeros_like(start), text.end - start)


def _back_over(text: Text, start: Int[Array, ""]) -> Int[Array, ""]:
    """Where the sign and the currency before a number begin: sign, currency, sign and currency, or the reverse."""
    bound = is_any(text, _DIGITS + _LETTERS + b")]}%") & inside(text)

    def over(place: Array, pattern: str) -> Array:
        width = len(pattern.encode())
        return jnp.where(_at(begins(text, pattern), place - width), place - width, place)

    def over_one(place: Array, patterns: Sequence[str]) -> Array:
        moved = place
        for pattern in sorted(patterns, key=lambda p: -len(p.encode())):
            moved = jnp.where(moved == place, over(place, pattern), moved)
        return moved

    def over_sign(place: Array) -> Array:
        moved = over_one(place, SIGNS)
        return jnp.where(_at(bound, moved - 1), place, moved)

    signed = over_sign(start)
    with_currency = over_one(signed, CURRENCIES)
    return jnp.where(signed < start, with_currency, over_sign(with_currency))


def _only_words_beside(text: Text, run: Text) -> Bool[Array, ""]:
    """Whether what stands beside the number are words, ``=``, or LaTeX text, none of it stuck to the number."""
    positions = jnp.arange(text.bytes.shape[0], dtype=jnp.int32)
    beside = inside(text) & ~((positions >= run.start) & (positions < run.end))
    harmless = is_any(text, _LETTERS + b" \t\n\r=:.,{}$~")
    slashed = begins(text, "\\text{") | begins(text, "\\ ") | begins(text, "\\,")
    letter = is_any(text, _LETTERS)
    stuck = _at(letter & beside, run.start - 1) | _at(letter & beside, run.end)
    return ~jnp.any(beside & ~harmless & ~slashed) & ~stuck


def _at(where: Bool[Array, "S"], position: Int[Array, ""]) -> Bool[Array, ""]:
    return where.at[jnp.where(position < 0, where.shape[0], position)].get(mode="fill", fill_value=False)


def _shift(where: Bool[Array, "S"], by: int) -> Bool[Array, "S"]:
    """The mask as seen from ``by`` places further on."""
    if by > 0:
        return jnp.concatenate([jnp.zeros(by, bool), where[:-by]])
    return jnp.concatenate([where[-by:], jnp.zeros(-by, bool)])
