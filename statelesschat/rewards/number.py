r"""Numbers in text, read and compared exactly: no float anywhere.

A number is a fraction of two decimals of up to 18 significant digits each, kept as limbs of three digits behind the
decimal point (``0.123 456 …``) and a power of ten, so that trailing zeros never matter and two numbers are equal where
the cross products are, digit by digit.
"""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from statelesschat.rewards.automaton import Automaton, any_of, compile_language, either, literal, many, maybe, sequence
from statelesschat.rewards.text import Text, strip, window

DIGITS = 18  # significant digits of a number, or of a fraction's part
WIDTH = 64  # bytes of a number in text
CURRENCIES = ("$", "\\$", "£", "€", "¥", "₹")
_MINUS = "−"  # U+2212
SIGNS = ("+", "-", _MINUS)
_LIMBS = DIGITS // 3
_HALF = DIGITS // 2  # of them fit an int32
_ROWS = 256  # texts read in one call


class Number(NamedTuple):
    """A number; ``valid`` is False where a text was none, and then the rest means nothing."""

    negative: Bool[Array, ""]
    numerator: Int[Array, "6"]  # int32, three digits each, the first behind the decimal point; its first digit not 0
    denominator: Int[Array, "6"]  # the same
    exponent: Int[Array, ""]  # int32, the power of ten of numerator / denominator
    percent: Bool[Array, ""]  # a percent sign was read: the value is a hundredth of what stands before it
    valid: Bool[Array, ""]


def parse_decimal(text: Text) -> Number:
    r"""The number that a text is, white space at its ends and one period behind it left out.

    Read are: a sign (``+``, ``-`` or U+2212), before or behind a currency; a currency (``$ \$ £ € ¥ ₹``) before or
    behind the number; digits with or without thousands commas, which have to be whole (``1,000``; not ``1,00``
    or ``0,123``); a decimal point; ``e`` or ``E`` with an exponent of up to four digits; a fraction, ``1/2`` or
    ``\frac{1}{2}`` (also ``\dfrac``, ``\tfrac``, a sign in the numerator too), of parts without exponents; ``%`` or
    ``\%`` behind it.

    Not a number, so not ``valid``: anything else; more than 18 significant digits in a part (zeros in front and behind
    do not count); a denominator of 0; a text of more than 64 bytes.

    Example:
        >>> from statelesschat.rewards import parse_decimal, same_number, text_of
        >>> bool(same_number(parse_decimal(text_of("$70,000.")), parse_decimal(text_of("7e4"))))
        True
    """
    stripped = strip(text)
    read = _read(window(stripped, WIDTH), stripped.length)
    return read._replace(valid=read.valid & (stripped.length <= WIDTH) & text.fits)


def reads_as_number(text: Text) -> Bool[Array, ""]:
    """Whether a text is written as a number, one that `parse_decimal` could hold or not; in less time than that."""
    stripped = strip(text)
    grammar = _grammar()
    table = jnp.asarray(grammar.table.ravel())

    def read(state: Array, item: tuple[Array, Array]) -> tuple[Array, None]:
        byte, here = item
        return jnp.where(here, table[state * 256 + byte.astype(jnp.int32)], state), None

    here = jnp.arange(WIDTH) < stripped.length
    state, _ = jax.lax.scan(read, jnp.int32(1), (window(stripped, WIDTH), here), unroll=8)
    return jnp.asarray(grammar.accepts)[state] & (stripped.length <= WIDTH) & text.fits


def same_number(one: Number, other: Number, *, percent_or_not: bool = False) -> Bool[Array, ""]:
    """Whether both are valid and exactly equal.

    ``percent_or_not``: where just one of them has a percent sign, it may be left out as well (50% is 0.5, or 50).
    """
    left = _product(one.numerator, other.denominator)
    right = _product(other.numerator, one.denominator)
    # Both begin within two digits of the point, so powers of ten further apart than that are a difference.
    equal = _is_zero(jnp.stack([left - 10 * right, left - right, 10 * left - right], axis=1))
    gap = one.exponent - other.exponent
    steps = jnp.arange(-1, 2)
    same = jnp.any(equal & (steps == gap))
    if percent_or_not:
        bare = gap + 2 * (one.percent.astype(jnp.int32) - other.percent.astype(jnp.int32))
        same = same | jnp.any(equal & (steps == bare))
    zero = (one.numerator[0] == 0) & (other.numerator[0] == 0)
    return one.valid & other.valid & (zero | (same & (one.negative == other.negative)))


def numbers_of(texts: Sequence[str | int]) -> Number:
    """Gold answers as `Number` arrays with a leading axis, read as `parse_decimal` reads them; numpy, on the host.

    Raises ValueError with the row of a text that is no number.

    Example:
        >>> numbers_of(["-3", "70,000"]).negative.tolist()
        [True, False]
    """
    if not texts:
        raise ValueError("no texts; give at least one number")
    count = -(-len(texts) // _ROWS) * _ROWS  # whole batches, so that one trace serves all
    padded, lengths = np.zeros((count, WIDTH), np.uint8), np.zeros(count, np.int32)
    for row, text in enumerate(texts):
        encoded = str(text).strip().encode(errors="replace")[: WIDTH + 1]
        lengths[row] = len(encoded)
        padded[row, : min(len(encoded), WIDTH)] = np.frombuffer(encoded[:WIDTH], np.uint8)
    starts = np.zeros(_ROWS, np.int32)
    batches = [slice(i, i + _ROWS) for i in range(0, count, _ROWS)]
    read = [_parse_rows()(Text(padded[at], starts, lengths[at])) for at in batches]  # type: ignore[arg-type]
    numbers: Number = jax.tree.map(lambda *leaves: np.concatenate(leaves)[: len(texts)], *read)
    wrong = np.flatnonzero(~np.asarray(numbers.valid))
    if wrong.size:
        raise NumberError(int(wrong[0]), str(texts[int(wrong[0])]))
    return numbers


class NumberError(ValueError):
    """A text that is no number: ``row`` says which of those given, ``reason`` what it is."""

    def __init__(self, row: int, text: str) -> None:
        self.row = row
        shown = text if len(text) <= 40 else f"{text[:37]}..."
        self.reason = (
            f"{shown!r} is no number of up to {DIGITS} significant digits and {WIDTH} bytes; write it as -3, 70,000, "
            "1/2 or 0.5"
        )
        super().__init__(f"row {row}: {self.reason}")


@functools.cache
def _parse_rows() -> Any:
    return jax.jit(jax.vmap(parse_decimal))


@functools.cache
def _grammar() -> Automaton:
    digit = any_of("0123456789")
    sign = either(any_of("+-"), literal(_MINUS))
    currency = either(*map(literal, CURRENCIES))
    grouped = sequence(
        any_of("123456789"), maybe(digit), maybe(digit), literal(","), *[digit] * 3, many(literal(","), *[digit] * 3)
    )
    whole = either(sequence(digit, many(digit)), grouped)
    decimal = either(sequence(whole, maybe(literal("."), many(digit))), sequence(literal("."), digit, many(digit)))
    exponent = sequence(any_of("eE"), maybe(any_of("+-")), digit, maybe(digit), maybe(digit), maybe(digit))
    latex = sequence(
        either(literal("\\frac{"), literal("\\dfrac{"), literal("\\tfrac{")),
        maybe(sign), decimal, literal("}{"), decimal, literal("}"),
    )  # fmt: skip
    magnitude = either(sequence(decimal, maybe(exponent)), sequence(decimal, literal("/"), decimal), latex)
    ahead = either(maybe(sign), sequence(sign, currency), sequence(currency, maybe(sign)))
    behind = either(maybe(currency), sequence(maybe(literal("\\")), literal("%")))
    return compile_language(sequence(ahead, magnitude, behind, maybe(literal("."))))


class _Part(NamedTuple):
    """Digits read so far of a numerator or denominator."""

    high: Int[Array, ""]  # the first nine digits that count, as one number
    low: Int[Array, ""]  # the nine behind them
    kept: Int[Array, ""]  # digits from the first that is not 0 on
    point: Int[Array, ""]  # how far the first kept digit stands before the decimal point; grows with integer digits
    fraction: Bool[Array, ""]  # the decimal point was read
    lost: Bool[Array, ""]  # a digit that counts had no place


class _Scan(NamedTuple):
    state: Int[Array, ""]
    top: _Part
    bottom: _Part
    below: Bool[Array, ""]  # the denominator is being read
    braces: Int[Array, ""]
    negative: Bool[Array, ""]
    raising: Bool[Array, ""]  # the exponent is being read
    exponent: Int[Array, ""]
    lowers: Bool[Array, ""]  # the exponent is negative
    percent: Bool[Array, ""]


def _read(window: Array, length: Array) -> Number:
    grammar = _grammar()
    none, zero = jnp.bool_(False), jnp.int32(0)
    part = _Part(zero, zero, zero, zero, none, none)
    scan = _Scan(jnp.int32(1), part, part, none, zero, none, none, zero, none, none)
    table = jnp.asarray(grammar.table.ravel())

    def read(scan: _Scan, item: tuple[Array, Array]) -> tuple[_Scan, None]:
        byte, here = item
        byte = jnp.where(here, byte.astype(jnp.int32), 0)
        digit = byte - ord("0")
        is_digit = here & (digit >= 0) & (digit <= 9)
        value = jnp.clip(digit, 0, 9)
        counts = is_digit & ~scan.raising
        minus = here & ((byte == ord("-")) | (byte == _MINUS.encode()[-1]))
        braces = scan.braces + (here & (byte == ord("{"))).astype(jnp.int32)
        return _Scan(
            state=jnp.where(here, table[scan.state * 256 + byte], scan.state),
            top=_with_digit(scan.top, value, counts & ~scan.below, (byte == ord(".")) & ~scan.below),
            bottom=_with_digit(scan.bottom, value, counts & scan.below, (byte == ord(".")) & scan.below),
            below=scan.below | (byte == ord("/")) | (braces == 2),
            braces=braces,
            negative=scan.negative ^ (minus & ~scan.raising),
            raising=scan.raising | (byte == ord("e")) | (byte == ord("E")),
            exponent=jnp.where(is_digit & scan.raising, scan.exponent * 10 + value, scan.exponent) % 100_000,
            lowers=scan.lowers | (minus & scan.raising),
            percent=scan.percent | (byte == ord("%")),
        ), None

    here = jnp.arange(window.shape[0]) < length
    scan, _ = jax.lax.scan(read, scan, (window, here), unroll=4)
    one = np.zeros(_LIMBS, np.int32)
    one[0] = 100
    numerator, denominator = _limbs(scan.top), _limbs(scan.bottom)
    raised = jnp.where(scan.lowers, -scan.exponent, scan.exponent)
    exponent = scan.top.point - jnp.where(scan.below, scan.bottom.point, 1) + raised
    accepted = jnp.asarray(grammar.accepts)[scan.state]
    undefined = scan.below & (scan.bottom.kept == 0)
    return Number(
        negative=scan.negative,
        numerator=numerator,
        denominator=jnp.where(scan.below, denominator, one),
        exponent=exponent - jnp.where(scan.percent, 2, 0),
        percent=scan.percent,
        valid=accepted & ~undefined & ~scan.top.lost & ~scan.bottom.lost,
    )


def _with_digit(part: _Part, digit: Array, where: Array, point: Array) -> _Part:
    keeps = where & ((part.kept > 0) | (digit > 0))
    moves = where & jnp.where(keeps, ~part.fraction, False)
    skips = where & ~keeps & part.fraction  # a zero between the point and the first digit that counts
    return _Part(
        high=jnp.where(keeps & (part.kept < _HALF), part.high * 10 + digit, part.high),
        low=jnp.where(keeps & (part.kept >= _HALF) & (part.kept < DIGITS), part.low * 10 + digit, part.low),
        kept=part.kept + keeps.astype(jnp.int32),
        point=part.point + moves.astype(jnp.int32) - skips.astype(jnp.int32),
        fraction=part.fraction | point,
        lost=part.lost | (keeps & (part.kept >= DIGITS) & (digit > 0)),
    )


def _limbs(part: _Part) -> Int[Array, "6"]:
    powers = jnp.asarray([10**n for n in range(_HALF + 1)], jnp.int32)
    high = part.high * powers[_HALF - jnp.clip(part.kept, 0, _HALF)]
    low = part.low * powers[_HALF - jnp.clip(part.kept - _HALF, 0, _HALF)]
    return jnp.stack([half // unit % 1000 for half in (high, low) for unit in (10**6, 10**3, 1)])


def _product(one: Int[Array, "6"], other: Int[Array, "6"]) -> Int[Array, "12"]:
    """Limbs of the product of two decimals; they may be larger than 1000."""
    apart = one[:, None] * other[None, :]
    # Row i one place further on than the row before: read as rows of 12, what is laid out in rows of 13.
    wide = jnp.concatenate([apart, jnp.zeros((_LIMBS, _LIMBS + 1), jnp.int32)], axis=1)
    return jnp.sum(wide.ravel()[: 2 * _LIMBS * _LIMBS].reshape(_LIMBS, 2 * _LIMBS), axis=0, dtype=jnp.int32)


def _is_zero(limbs: Int[Array, "12 K"]) -> Bool[Array, "K"]:
    """Which columns of limbs, of any sign and size, are 0 as a whole: carrying from the right leaves nothing."""
    zero, carry = jnp.ones(limbs.shape[1], bool), jnp.zeros(limbs.shape[1], jnp.int32)
    for limb in limbs[::-1]:
        total = limb + carry
        carry = total // 1000
        zero = zero & (total == carry * 1000)
    return zero & (carry == 0)
