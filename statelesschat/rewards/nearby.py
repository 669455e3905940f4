r"""A number in running text: how far it reaches, and whether what stands beside it makes another of it.

Numbers are looked for with the care that a reader takes: a hyphen between two numbers is no sign, a period that ends a
sentence no point, and "5 million" is not 5.
"""

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from statelesschat.rewards.number import CURRENCIES, SIGNS
from statelesschat.rewards.text import Text, among, begins, bytes_at, first_of, inside, is_any, last_of

_DIGITS = b"0123456789"
_LETTERS = bytes(range(ord("a"), ord("z") + 1)) + bytes(range(ord("A"), ord("Z") + 1))
_JOINTS = b".,/:^"  # between two digits: then it is one run, a number or none
_PAIRS = [(sign, currency) for sign in SIGNS for currency in CURRENCIES]
_SIGNED = (*SIGNS, *CURRENCIES, *(s + c for s, c in _PAIRS), *(c + s for s, c in _PAIRS))
_AHEAD = ("minus", "negative", "not", "n't", "than", "at least", "at most")
_BEHIND = (
    "hundred", "thousand", "million", "billion", "trillion", "lakh", "crore", "dozen", "squared", "cubed", "and a half",
)  # fmt: skip
_OR = "or"  # a word of its own
_WORDS = 12  # bytes that the longest of these has
_GAP = 4  # bytes between a word and its number, at most
# Code points that, where they touch a number, are part of what it means: superscripts and subscripts, fractions,
# Greek letters, operators, per mille, digits of other scripts, and the letters and digits of mathematics.
_MEANING = (
    (0xB1, 0xB3), (0xB9, 0xB9), (0xBC, 0xBE), (0xD7, 0xD7), (0xF7, 0xF7), (0x370, 0x3FF), (0x660, 0x66C),
    (0x6F0, 0x6F9), (0x966, 0x96F), (0x2030, 0x2031), (0x2044, 0x2044), (0x2070, 0x209C), (0x2150, 0x218F),
    (0x2200, 0x22FF), (0xFF10, 0xFF19), (0x1D400, 0x1D7FF),
)  # fmt: skip
# And before it: hyphens and dashes that may be meant as a sign, but for the long ones, and wide signs and points.
_SIGNLIKE = ((0x2010, 0x2013), (0xFF0B, 0xFF0B), (0xFF0D, 0xFF0F))


def is_digit(text: Text) -> Bool[Array, "S"]:
    """Which bytes of the text are digits."""
    return is_any(text, _DIGITS) & inside(text)


def number_around(text: Text, position: Int[Array, ""]) -> Text:
    r"""The longest stretch around a digit that reads as one number, its sign, currency and percent sign included.

    Part of it are digits; one of ``. , / : ^`` between two digits; a period before a digit, but none behind a letter or
    another period; ``e`` or ``E`` with its sign between digits. A sign counts where nothing that could be subtracted
    from stands before it: no letter, no digit, no closing bracket.
    """
    before, after = lambda where, n=1: _shift(where, n), lambda where, n=1: _shift(where, -n)
    here = inside(text)
    digit = is_digit(text)
    signs = is_any(text, b"+-") & here
    joint = is_any(text, _JOINTS) & before(digit) & after(digit)
    point = begins(text, ".") & after(digit) & ~before(is_any(text, _LETTERS + b".") & here)
    power = is_any(text, b"eE") & here & before(digit) & (after(digit) | (after(signs) & after(digit, 2)))
    raised = signs & before(power) & after(digit)
    part = digit | joint | point | power | raised
    positions = jnp.arange(text.bytes.shape[0], dtype=jnp.int32)
    start = last_of(~part & (positions < position)) + 1
    end = first_of(~part & (positions > position))
    end = jnp.where(end < 0, text.bytes.shape[0], end)
    start = jnp.clip(start, text.start, position)
    end = jnp.minimum(end, text.end)
    behind = _near(text, end + jnp.arange(2, dtype=jnp.int32))
    percent = jnp.where(behind[0] == ord("%"), 1, jnp.where(_same(behind, "\\%"), 2, 0))
    return text._replace(start=start - _width_ahead(text, start), end=end + percent)


def only_words_beside(text: Text, run: Text) -> Bool[Array, ""]:
    r"""Whether what stands beside a number are words, ``=``, or LaTeX text.

    A letter alone is a variable or a unit: it has to be ``a``, or to stand before ``=`` or ``}``, as in ``x = 5`` and
    ``5 \text{ m}``.
    """
    positions = jnp.arange(text.bytes.shape[0], dtype=jnp.int32)
    beside = inside(text) & ~((positions >= run.start) & (positions < run.end))
    harmless = is_any(text, _LETTERS + b" \t\n\r=:.,{}$~")
    slashed = begins(text, "\\text{") | begins(text, "\\ ") | begins(text, "\\,")
    letter = is_any(text, _LETTERS) & inside(text)
    single = letter & ~_shift(letter, 1) & ~_shift(letter, -1) & ~is_any(text, b"aA")
    named = (begins(text, "=") | begins(text, " =") | begins(text, "}")) & inside(text)
    return ~jnp.any(beside & ~harmless & ~slashed) & ~jnp.any(beside & single & ~_shift(named, -1))


def changed_beside(text: Text, run: Text) -> Bool[Array, ""]:
    """Whether what stands right beside a number makes another of it; `final_number` says what does."""
    offsets = jnp.arange(4, dtype=jnp.int32)
    ahead, behind = _near(text, run.start - 4 + offsets), _near(text, run.end + offsets)
    last, before, after = ahead[3], _code_point_ending(ahead), _code_point_beginning(behind)
    first = _near(text, run.start)
    bare = among(first, _DIGITS) | (first == ord("."))  # a currency may follow letters: US$5
    touched = among(last, _LETTERS) & bare | among(last, b"+-/^") | _within(before, (*_MEANING, *_SIGNLIKE))
    touched = touched | among(behind[0], _LETTERS + b"^") | _within(after, _MEANING)
    mixed = (last == ord(" ")) & among(ahead[2], _DIGITS)
    return touched | mixed | _word_beside(text, run.start, _AHEAD, -1) | _word_beside(text, run.end, _BEHIND, 1)


def _word_beside(text: Text, place: Int[Array, ""], words: Sequence[str], step: int) -> Bool[Array, ""]:
    """Whether one of the words stands before (``step`` -1) or behind (1) a place, with a small gap between."""
    offsets = jnp.arange(_GAP, dtype=jnp.int32)
    gap = _near(text, place + offsets if step > 0 else place - 1 - offsets)
    wide = jnp.sum(jnp.cumprod(among(gap, b" \t-~*_").astype(jnp.int32), dtype=jnp.int32), dtype=jnp.int32)
    offsets = jnp.arange(_WORDS, dtype=jnp.int32)
    found = _near(text, place + wide + offsets if step > 0 else place - wide - _WORDS + offsets)
    found = jnp.where((found >= ord("A")) & (found <= ord("Z")), found + 32, found)
    whole = step < 0 or ~among(found[len(_OR)], _LETTERS)
    return jnp.any(_matches(found, words, step)) | (_same(found[: len(_OR)], _OR) & whole & (step > 0))


def _width_ahead(text: Text, start: Int[Array, ""]) -> Int[Array, ""]:
    """Bytes of the sign and the currency before a number: sign, currency, sign and currency, or the reverse."""
    widths = np.array([len(ahead.encode()) for ahead in _SIGNED], np.int32)
    near = _near(text, start - (max(widths) + 1) + jnp.arange(max(widths) + 1, dtype=jnp.int32))
    bound = among(near, _DIGITS + _LETTERS + b")]}%")[max(widths) - widths]  # what stands before each, if it is there
    signed = np.array([ahead.startswith(SIGNS) for ahead in _SIGNED])
    return jnp.max(jnp.where(_matches(near, _SIGNED, -1) & ~(signed & bound), widths, 0))


def _matches(found: Int[Array, "W"], words: Sequence[str], step: int) -> Bool[Array, "N"]:
    """Which of the words the bytes begin with (``step`` 1) or end in (-1)."""
    width, encoded = found.shape[0], [word.encode() for word in words]
    rows = [word.ljust(width, b"\0") if step > 0 else word.rjust(width, b"\0") for word in encoded]
    table = np.array([list(row) for row in rows], np.int32)
    return jnp.all((table == 0) | (found[None] == table), axis=1)


def _same(found: Int[Array, "W"], word: str) -> Bool[Array, ""]:
    return _matches(found, [word], 1)[0]


def _near(text: Text, places: Array) -> Array:
    """Bytes of the text as int32, 0 outside it."""
    within = (places >= text.start) & (places < text.end) & (places >= 0)
    return jnp.where(within, bytes_at(text, jnp.maximum(places, 0)).astype(jnp.int32), 0)


def _code_point_beginning(four: Int[Array, "4"]) -> Int[Array, ""]:
    """The character that begins four bytes of UTF-8; -1 where none does."""
    first, low = four[0], four & 0x3F
    three = (first & 0x0F) << 12 | low[1] << 6 | low[2]
    long = (first & 0x07) << 18 | low[1] << 12 | low[2] << 6 | low[3]
    short = jnp.where(first < 0x80, first, jnp.where(first < 0xC0, -1, (first & 0x1F) << 6 | low[1]))
    return jnp.where(first < 0xE0, short, jnp.where(first < 0xF0, three, long))


def _code_point_ending(four: Int[Array, "4"]) -> Int[Array, ""]:
    """The character that ends four bytes of UTF-8; -1 where none does."""
    from_each = jnp.stack([_code_point_beginning(jnp.roll(four, -i)) for i in range(4)])
    lengths = jnp.where(four < 0x80, 1, jnp.where(four < 0xE0, 2, jnp.where(four < 0xF0, 3, 4)))
    ends = (four < 0x80) | (four >= 0xC0)
    ends = ends & (lengths == 4 - jnp.arange(4))
    return jnp.max(jnp.where(ends, from_each, -1))


def _within(code_point: Int[Array, ""], ranges: Sequence[tuple[int, int]]) -> Bool[Array, ""]:
    first, last = jnp.asarray(ranges, jnp.int32).T
    return jnp.any((code_point >= first) & (code_point <= last))


def _shift(where: Bool[Array, "S"], by: int) -> Bool[Array, "S"]:
    """The mask as seen from ``by`` places further on."""
    if by > 0:
        return jnp.concatenate([jnp.zeros(by, bool), where])[: where.shape[0]]
    return jnp.concatenate([where, jnp.zeros(-by, bool)])[-by:]
