"""A shuffle as a function: a keyed bijection of [0, N) that is computed where it is asked, never stored."""

import math

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Int, UInt32

_ROUNDS = 8
_GOLDEN = np.uint32(0x9E3779B9)


def permuted(places: Int[Array, "*n"], size: int, key: UInt32[Array, "2"], epoch: Int[Array, ""]) -> Int[Array, "*n"]:
    """Where a key and an epoch send places of [0, size): another order for each, every row once.

    A generalised Feistel network permutes the mixed-radix domain a·b >= size, a = ceil(sqrt(size)),
    b = ceil(size / a); a place that lands at or beyond ``size`` is sent on until it lands below (cycle walking), which
    makes a bijection of [0, size) of one of [0, a·b). As a·b - size < a, that happens to one place in sqrt(size).
    Of no cryptographic strength: the round function is a 32-bit hash.

    Args:
        places: int32, each in [0, size).
        size: N, static, 1 to 2**31 - 1.
        key: uint32[2].
        epoch: int32.

    Source:
        J. Black, P. Rogaway: Ciphers with Arbitrary Finite Domains. CT-RSA 2002, methods 2 and 3.
        The round function is the finaliser of MurmurHash3 (A. Appleby).

    Example:
        >>> order = permuted(jnp.arange(5), 5, jnp.asarray([1, 2], jnp.uint32), jnp.int32(0))
        >>> sorted(order.tolist())
        [0, 1, 2, 3, 4]
    """
    if size == 1:
        return places
    keys = _round_keys(key, epoch)

    def walk(carry: tuple[UInt32[Array, "*n"], Bool[Array, "*n"]]) -> tuple[UInt32[Array, "*n"], Bool[Array, "*n"]]:
        x, outside = carry
        x = jnp.where(outside, _network(x, size, keys), x)
        return x, x >= np.uint32(size)

    # Every place takes the first step, so all of them begin as if outside.
    start = places.astype(jnp.uint32), places >= 0
    walked, _ = lax.while_loop(lambda carry: jnp.any(carry[1]), walk, start)
    return walked.astype(jnp.int32)


def radices(size: int) -> tuple[int, int]:
    """The smallest a and b, a nearest the root, with a·b >= size; both fit in 16 bits.

    Example:
        >>> radices(10), radices(2**31 - 1)
        ((4, 3), (46341, 46341))
    """
    a = math.isqrt(size - 1) + 1
    return a, -(-size // a)


def _network(x: UInt32[Array, "*n"], size: int, keys: list[UInt32[Array, ""]]) -> UInt32[Array, "*n"]:
    a, b = radices(size)
    left, right = x // np.uint32(b), x % np.uint32(b)
    for at, key in enumerate(keys):
        if at % 2 == 0:
            left = _add(left, _mix(right * _GOLDEN + key), a)
        else:
            right = _add(right, _mix(left * _GOLDEN + key), b)
    return left * np.uint32(b) + right


def _add(digit: UInt32[Array, "*n"], mixed: UInt32[Array, "*n"], radix: int) -> UInt32[Array, "*n"]:
    """(digit + floor(mixed · radix / 2**32)) mod radix, without a division and within 32 bits, as radix < 2**16."""
    high, low = mixed >> np.uint32(16), mixed & np.uint32(0xFFFF)
    scaled = (high * np.uint32(radix) + ((low * np.uint32(radix)) >> np.uint32(16))) >> np.uint32(16)
    total = digit + scaled
    return jnp.where(total >= np.uint32(radix), total - np.uint32(radix), total)


def _mix(x: UInt32[Array, "*n"]) -> UInt32[Array, "*n"]:
    x = (x ^ (x >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    x = (x ^ (x >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    return x ^ (x >> np.uint32(16))


def _round_keys(key: UInt32[Array, "2"], epoch: Int[Array, ""]) -> list[UInt32[Array, ""]]:
    rounds = jnp.arange(1, _ROUNDS + 1, dtype=jnp.uint32) * _GOLDEN
    keys = _mix(_mix(_mix(rounds + key[0]) ^ key[1]) ^ lax.convert_element_type(epoch, jnp.uint32))
    return [keys[i] for i in range(_ROUNDS)]
