r"""Text as padded bytes, and what verifiers ask of it: pure functions of one row, without a copy of the text.

A `Text` is a stretch of a padded byte string. To cut, strip or search it is arithmetic on where it begins and ends; a
text that was looked for and not found is *missing*, and whatever is asked of a missing text is missing, -1 or False.
Axis letter: ``S`` bytes.
"""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Int, UInt8

SPACES = b" \t\n\r\x0b\x0c"
_BLOCK = 16


class Text(NamedTuple):
    """The bytes ``[start, end)`` of a padded byte string; missing where ``end < start``.

    ``end`` may lie beyond the array: then the text did not fit, ``fits`` is False, and no verdict can rest on it. What
    is searched in such a text is the part that is there.
    """

    bytes: UInt8[Array, "S"]  # uint8, UTF-8; unspecified outside the stretch
    start: Int[Array, ""]  # int32
    end: Int[Array, ""]  # int32

    @property
    def length(self) -> Int[Array, ""]:
        """Bytes in the text, int32; -1 where it is missing."""
        return jnp.maximum(self.end - self.start, -1)

    @property
    def found(self) -> Bool[Array, ""]:
        """Whether there is a text, an empty one included."""
        return self.end >= self.start

    @property
    def fits(self) -> Bool[Array, ""]:
        """Whether all of it is in the array."""
        return self.end <= self.bytes.shape[-1]


def text_of(text: str | bytes, size: int | None = None) -> Text:
    """A Python string as a `Text` of numpy arrays: a gold answer, a word to look for.

    ``size`` is S, by default its length in bytes, at least 1. ValueError where it is longer.

    Example:
        >>> int(text_of("4 €").length)
        5
    """
    data = text.encode() if isinstance(text, str) else text
    size = max(len(data), 1) if size is None else size
    if len(data) > size:
        raise ValueError(f"a text of {len(data)} bytes is longer than size={size}; raise it")
    padded: UInt8[Array, S] = np.zeros(size, np.uint8)  # type: ignore[assignment]
    padded[: len(data)] = np.frombuffer(data, np.uint8)  # type: ignore[index]
    return Text(padded, np.int32(0), np.int32(len(data)))  # type: ignore[arg-type]


def missing(text: Text) -> Text:
    """No text, in the same array."""
    return text._replace(start=jnp.zeros_like(text.start), end=jnp.full_like(text.end, -1))


def choose(where: Bool[Array, ""], one: Text, other: Text) -> Text:
    """One stretch or another of the *same* array."""
    return one._replace(start=jnp.where(where, one.start, other.start), end=jnp.where(where, one.end, other.end))


def cut(text: Text, start: Int[Array, ""] | int, end: Int[Array, ""] | int | None = None) -> Text:
    """The bytes ``[start, end)`` of a text, counted from its beginning and held to its bounds, as a slice is.

    Missing where the text is, or where ``end`` lies before ``start``.
    """
    size = text.end - text.start
    stop = size if end is None else jnp.clip(end, -1, size)
    stretch = text._replace(start=text.start + jnp.clip(start, 0, size), end=text.start + stop)
    return choose(text.found, stretch, missing(text))


def find(text: Text, pattern: str | bytes) -> Int[Array, ""]:
    """Where a static, non-empty pattern occurs first, counted from the beginning, -1 for nowhere."""
    return first_of(begins(text, pattern)) - jnp.where(contains(text, pattern), text.start, 0)


def find_last(text: Text, pattern: str | bytes) -> Int[Array, ""]:
    """Where a static, non-empty pattern occurs last, counted from the beginning, -1 for nowhere.

    Example:
        >>> int(find_last(text_of("#### 4 #### 5"), "####"))
        7
    """
    at = last_of(begins(text, pattern))
    return at - jnp.where(at >= 0, text.start, 0)


def contains(text: Text, pattern: str | bytes) -> Bool[Array, ""]:
    """Whether a static, non-empty pattern occurs."""
    return jnp.any(begins(text, pattern))


def count(text: Text, pattern: str | bytes) -> Int[Array, ""]:
    """How often a static, non-empty pattern occurs, overlapping occurrences included, int32."""
    return jnp.sum(begins(text, pattern), dtype=jnp.int32)


def equals(text: Text, other: Text) -> Bool[Array, ""]:
    """Whether both are there and hold the same bytes; texts that do not fit their arrays equal nothing."""
    width = min(text.bytes.shape[0], other.bytes.shape[0])
    same = window(text, width) == window(other, width)
    same = jnp.all(same | (jnp.arange(width) >= text.length))
    return same & text.found & (text.length == other.length) & text.fits & other.fits


def strip(text: Text) -> Text:
    r"""Without white space (space, ``\t \n \r \v \f``) at both ends; the end of a text that does not fit stays."""
    solid = inside(text) & ~is_any(text, SPACES)
    first, last = first_of(solid), last_of(solid)
    start = jnp.where(last < 0, text.start, first)
    end = jnp.where(text.fits, jnp.where(last < 0, text.start, last + 1), text.end)
    return choose(text.found, text._replace(start=start, end=end), missing(text))


def lower(text: Text) -> Text:
    """ASCII capitals made small; other bytes stay."""
    capital = (text.bytes >= ord("A")) & (text.bytes <= ord("Z"))
    return text._replace(bytes=jnp.where(capital, text.bytes | np.uint8(0x20), text.bytes))


def remove_prefix(text: Text, prefix: str | bytes) -> Text:
    """Without a static prefix, if it has it."""
    prefix = _encoded(prefix)
    if not prefix:
        return text
    has = find(text, prefix) == 0
    return text._replace(start=text.start + jnp.where(has, len(prefix), 0))


def remove_suffix(text: Text, suffix: str | bytes, where: Bool[Array, ""] | bool = True) -> Text:
    """Without a static suffix, if it has it and ``where`` holds."""
    suffix = _encoded(suffix)
    if not suffix:
        return text
    has = (find_last(text, suffix) == text.length - len(suffix)) & (text.length >= len(suffix)) & where
    return text._replace(end=text.end - jnp.where(has, len(suffix), 0))


def between(text: Text, opening: str | bytes, closing: str | bytes, *, nested: bool = False) -> Text:
    r"""What stands between the last ``opening`` that is closed and the first ``closing`` behind it.

    Both are static. With ``nested`` the pair of brackets that ``opening`` ends in and ``closing`` is are counted, and
    the *last* opening decides: it reaches to the bracket that balances it, and if there is none the text is missing. A
    bracket behind a backslash (``\{``, but not ``\\{``) is no bracket. Missing, too, in a text that does not fit: its
    last opening is not known.

    Example:
        >>> answer = between(text_of(r"so \boxed{\frac{1}{2}}"), r"\boxed{", "}", nested=True)
        >>> int(answer.start), int(answer.end)
        (10, 21)
    """
    opening, closing = _encoded(opening), _encoded(closing)
    opens = begins(text, opening)
    if nested:
        first = last_of(opens) + len(opening)
        found = until(text._replace(start=first), closing, nested=opening[-1:])
    else:
        last_close = last_of(begins(text, closing))
        first = last_of(opens & (_positions(text) + len(opening) <= last_close)) + len(opening)
        found = until(text._replace(start=first), closing)
    return choose((first >= len(opening)) & text.fits, found, missing(text))


def until(text: Text, closing: str | bytes, *, nested: str | bytes = b"") -> Text:
    r"""What stands before the first ``closing``; missing if there is none.

    ``nested`` is an opening bracket: pairs of it and ``closing``, which then is one character, are skipped. A bracket
    behind a backslash (``\{``, but not ``\\{``) is no bracket.
    """
    closes = begins(text, closing)
    if nested:
        if len(_encoded(closing)) != 1:
            raise ValueError(f"nested brackets are closed by one character, not by {closing!r}")
        bracket = ~_escaped(text)
        depth = (begins(text, nested) & bracket).astype(jnp.int32) - (closes & bracket).astype(jnp.int32)
        closes = closes & bracket & (jnp.cumsum(depth, dtype=jnp.int32) < 0)
    end = first_of(closes)
    return choose(end >= 0, text._replace(end=end), missing(text))


def begins(text: Text, pattern: str | bytes) -> Bool[Array, "S"]:
    """Where occurrences of a static, non-empty pattern begin, by position in the array."""
    pattern = _encoded(pattern)
    if not pattern:
        raise ValueError("an empty pattern is everywhere; give at least one byte")
    size = text.bytes.shape[0]
    padded = jnp.concatenate([text.bytes, jnp.zeros(len(pattern) - 1, jnp.uint8)])
    here = (_positions(text) >= text.start) & (_positions(text) + len(pattern) <= jnp.minimum(text.end, size))
    for offset, byte in enumerate(pattern):
        here = here & (padded[offset : offset + size] == byte)
    return here


def inside(text: Text) -> Bool[Array, "S"]:
    """Which bytes of the array are in the text."""
    return (_positions(text) >= text.start) & (_positions(text) < text.end)


def is_any(text: Text, members: bytes) -> Bool[Array, "S"]:
    """Which bytes of the array are one of the static ``members``, in the text or not."""
    return among(text.bytes, members)


def among(values: Array, members: bytes) -> Bool[Array, "..."]:
    """Which bytes, of any integer dtype, are one of the static ``members``."""
    hit = jnp.zeros(values.shape, bool)
    for first, last in _ranges(members):
        hit = hit | ((values >= first) & (values <= last) if first != last else values == first)
    return hit


def window(text: Text, width: int) -> UInt8[Array, "W"]:
    """The first ``width`` bytes of a text, 0 behind its end."""
    offsets = jnp.arange(width, dtype=jnp.int32)
    return jnp.where(offsets < text.length, bytes_at(text, text.start + offsets), np.uint8(0))


def bytes_at(text: Text, places: Int[Array, "W"]) -> UInt8[Array, "W"]:
    """The bytes at some places of the array, from 0 on; 0 behind its end."""
    if not text.bytes.shape[0]:
        return jnp.zeros(places.shape, jnp.uint8)
    return jnp.asarray(text.bytes).at[places].get(mode="fill", fill_value=0)


def first_of(where: Bool[Array, "S"]) -> Int[Array, ""]:
    """The first position at which a mask holds, -1 for none."""
    size = where.shape[0]
    blocks, begins_at = _blocks(where)
    within = jnp.min(jnp.where(blocks, np.arange(_BLOCK, dtype=np.uint8)[None], np.uint8(_BLOCK)), axis=1)
    first = jnp.min(jnp.where(within < _BLOCK, begins_at + within.astype(jnp.int32), size), initial=size)
    return jnp.where(first < size, first, -1)


def last_of(where: Bool[Array, "S"]) -> Int[Array, ""]:
    """The last position at which a mask holds, -1 for none."""
    blocks, begins_at = _blocks(where)
    within = jnp.max(jnp.where(blocks, np.arange(1, _BLOCK + 1, dtype=np.uint8)[None], np.uint8(0)), axis=1)
    return jnp.max(jnp.where(within > 0, begins_at + within.astype(jnp.int32) - 1, -1), initial=-1)


def _blocks(where: Bool[Array, "S"]) -> tuple[Bool[Array, "N 16"], Int[Array, "N"]]:
    """A mask in blocks, and where these begin: reduced byte by byte first, it takes a quarter of the time on a CPU."""
    count = -(-where.shape[0] // _BLOCK)
    padded = jnp.concatenate([where, jnp.zeros(count * _BLOCK - where.shape[0], bool)])
    return padded.reshape(count, _BLOCK), jnp.arange(count, dtype=jnp.int32) * _BLOCK


def _escaped(text: Text) -> Bool[Array, "S"]:
    """Which bytes stand behind an odd number of backslashes: two of them are one that is written out."""
    positions = _positions(text)
    other = jnp.where(begins(text, b"\\"), text.start - 1, positions)
    last = lax.cummax(other)  # the last byte up to here that is no backslash, or the one before the text
    run = jnp.concatenate([jnp.zeros(1, jnp.int32), positions - last])[: positions.shape[0]]
    return run % 2 == 1


def _positions(text: Text) -> Int[Array, "S"]:
    return jnp.arange(text.bytes.shape[0], dtype=jnp.int32)


def _encoded(pattern: str | bytes) -> bytes:
    return pattern.encode() if isinstance(pattern, str) else pattern


def _ranges(members: bytes) -> list[tuple[int, int]]:
    ranges: list[tuple[int, int]] = []
    for byte in sorted(set(members)):
        if ranges and ranges[-1][1] == byte - 1:
            ranges[-1] = ranges[-1][0], byte
        else:
            ranges.append((byte, byte))
    return ranges
