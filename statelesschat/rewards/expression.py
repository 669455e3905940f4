"""Arithmetic in text, evaluated exactly on the device: a bounded machine, not ``eval``.

Values are fractions whose two parts are kept as remainders by several primes. A part of a value of ``k`` numbers below
``v`` is below ``2**(k - 1) * v**k``; with primes whose product is larger, two values are equal where all remainders
are, and a part is 0 where all its remainders are. (Chinese remainder theorem.)
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, UInt32

from statelesschat.rewards.text import Text, strip, window

WIDTH = 128  # bytes of an expression
_DEPTH = 24  # operators and brackets that may be open at once
_LARGEST = 9_999_999  # of a number in an expression
_OPEN = 5  # an open bracket among the operators, which are 1 to 4 for + - * /


class _Machine(NamedTuple):
    at: Int[Array, ""]  # the next byte
    numerators: UInt32[Array, "K+1 P"]
    denominators: UInt32[Array, "K+1 P"]
    values: Int[Array, ""]  # on the stack
    operators: Int[Array, "D"]
    depth: Int[Array, ""]
    literal: Int[Array, ""]  # the number being read, -1 between numbers
    operand: Bool[Array, ""]  # whether a value has to come next
    used: Bool[Array, "K"]
    failed: Bool[Array, ""]
    over: Bool[Array, ""]


def makes_target(
    text: Text, numbers: Int[Array, "K"], count: Int[Array, ""], target: Int[Array, ""], *, largest: int = 999
) -> Bool[Array, ""]:
    """Whether a text is an expression of the numbers, each used exactly once, that is exactly the target.

    An expression is made of whole numbers, ``+ - * /``, round brackets and spaces, with the usual precedence, from left
    to right; white space at its ends is left out. Division is exact, with fractions in between. Anything else is no
    expression: a sign before a number, other numbers than those given, a division by 0, more than 128 bytes, more than
    24 operators and brackets open at once.

    Args:
        text: the expression alone.
        numbers: int32[K], each from 0 to ``largest``.
        count: int32, how many of them are given.
        target: int32, less than 2**24 in absolute value.
        largest: static, what no number is above; it and K set how many primes are needed.

    Example:
        >>> import numpy as np
        >>> from statelesschat.rewards import text_of
        >>> given = np.array([3, 3, 8, 8], np.int32)
        >>> bool(makes_target(text_of("8 / (3 - 8/3)"), given, np.int32(4), np.int32(24)))
        True
    """
    size = numbers.shape[0]
    primes = _primes(size, largest)
    text_ = strip(text)
    length = text_.length
    read = window(text_, WIDTH)
    numbers, target = jnp.asarray(numbers), jnp.asarray(target)
    given = jnp.arange(size) < count
    modulus = jnp.asarray(primes, jnp.uint32)
    zeros = jnp.zeros((size + 1, len(primes)), jnp.uint32)
    machine = _Machine(
        jnp.int32(0), zeros, zeros, jnp.int32(0), jnp.zeros(_DEPTH, jnp.int32), jnp.int32(0), jnp.int32(-1),
        jnp.bool_(True), jnp.zeros(size, bool), ~((length > 0) & (length <= WIDTH) & text.fits), jnp.bool_(False),
    )  # fmt: skip

    def step(m: _Machine) -> _Machine:
        byte = jnp.where(m.at < length, read[jnp.minimum(m.at, WIDTH - 1)].astype(jnp.int32), 0)
        ends = m.at >= length
        digit = (byte >= ord("0")) & (byte <= ord("9"))
        reads = digit & (m.operand | (m.literal >= 0))
        pushes = (m.literal >= 0) & ~digit  # a number is over: it becomes a value, and the byte is looked at again
        free = ~reads & ~pushes

        operator = sum((jnp.where(byte == ord(c), i, 0) for i, c in enumerate("+-*/", 1)), jnp.int32(0))
        top = jnp.where(m.depth > 0, m.operators[jnp.maximum(m.depth - 1, 0)], 0)
        binds = (top > 0) & (top < _OPEN) & ((top >= 3) | (operator <= 2))
        closes = byte == ord(")")
        reduces = free & ~m.operand & ((operator > 0) & binds | (closes | ends) & (top > 0) & (top < _OPEN))
        shifts = free & ~reduces & ~m.operand & (operator > 0)
        opens = free & m.operand & (byte == ord("("))
        closed = free & ~reduces & ~m.operand & closes & (top == _OPEN)
        skips = free & (byte == ord(" "))
        over = free & ~reduces & ends & ~m.operand & (m.depth == 0)

        fits = given & ~m.used & (numbers == m.literal)
        slot = jnp.argmax(fits)
        known = jnp.any(fits)
        right, left = jnp.maximum(m.values - 1, 0), jnp.maximum(m.values - 2, 0)
        numerator, denominator, by_zero = _applied(
            top, m.numerators[left], m.denominators[left], m.numerators[right], m.denominators[right], modulus
        )
        place = jnp.where(pushes, m.values, left)
        pushed = m.literal.astype(jnp.uint32) % modulus
        writes = pushes & known | reduces
        here = ((jnp.arange(size + 1) == place) & writes)[:, None]
        literal = jnp.where(m.literal >= 0, m.literal * 10, 0) + byte - ord("0")
        grows = shifts | opens
        deep = grows & (m.depth >= _DEPTH)
        spot = (jnp.arange(_DEPTH) == m.depth) & grows
        good = reads | pushes | reduces | shifts | opens | closed | skips | over
        return _Machine(
            at=m.at + (reads | shifts | opens | closed | skips).astype(jnp.int32),
            numerators=jnp.where(here, jnp.where(pushes, pushed, numerator)[None], m.numerators),
            denominators=jnp.where(here, jnp.where(pushes, jnp.uint32(1), denominator)[None], m.denominators),
            values=m.values + (pushes & known).astype(jnp.int32) - reduces.astype(jnp.int32),
            operators=jnp.where(spot, jnp.where(opens, _OPEN, operator), m.operators),
            depth=m.depth + grows.astype(jnp.int32) - (reduces | closed).astype(jnp.int32),
            literal=jnp.where(reads, literal, jnp.where(pushes, -1, m.literal)),
            operand=jnp.where(pushes, jnp.bool_(False), m.operand | shifts),
            used=m.used | ((jnp.arange(size) == slot) & known & pushes),
            failed=m.failed | ~good | deep | (pushes & ~known) | (reduces & by_zero) | (reads & (literal > _LARGEST)),
            over=m.over | over,
        )

    machine = jax.lax.while_loop(lambda m: ~(m.over | m.failed), step, machine)
    wanted = jnp.abs(target).astype(jnp.uint32) % modulus
    wanted = jnp.where(target < 0, (modulus - wanted) % modulus, wanted)
    equal = jnp.all(machine.numerators[0] == wanted * machine.denominators[0] % modulus)
    return machine.over & ~machine.failed & jnp.all(machine.used == given) & equal


def _applied(
    operator: Array, a: Array, b: Array, c: Array, d: Array, modulus: Array
) -> tuple[Array, Array, Bool[Array, ""]]:
    """``a/b`` and ``c/d`` put together, in remainders, and whether that divides by 0."""
    ad, cb, ac, bd = (x * y % modulus for x, y in ((a, d), (c, b), (a, c), (b, d)))
    minus = (ad + modulus - cb) % modulus
    numerator = jnp.where(operator == 1, (ad + cb) % modulus, jnp.where(operator == 2, minus, ac))
    numerator = jnp.where(operator == 4, ad, numerator)
    denominator = jnp.where(operator == 4, cb, bd)
    return numerator, denominator, (operator == 4) & jnp.all(c == 0)


def _primes(size: int, largest: int) -> list[int]:
    """The largest primes below 2**16, as many as make two values of so many numbers, and a target, differ."""
    if size < 1 or not 1 <= largest <= _LARGEST:
        raise ValueError(f"{size} numbers of up to {largest}: give one number or more, of up to {_LARGEST}")
    bits = size - 1 + size * math.log2(largest + 1) + 24 + 2
    primes: list[int] = []
    candidate = 2**16 - 1
    while sum(map(math.log2, primes)) < bits:
        if all(candidate % divisor for divisor in range(3, 256, 2)):
            primes.append(candidate)
        candidate -= 2
    return primes
