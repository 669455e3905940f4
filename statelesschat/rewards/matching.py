"""Verdicts on a response: each takes the response alone, never the prompt, and gives a float32 scalar."""

from collections.abc import Sequence

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from statelesschat.rewards.answers import final_number
from statelesschat.rewards.number import Number, same_number
from statelesschat.rewards.text import Text, count, equals, find, lower, strip


def exact_match(text: Text, gold: Text, *, ignore_case: bool = False) -> Float[Array, ""]:
    """1.0 where the two are the same text, white space at both ends left out, else 0.0.

    ``ignore_case`` takes ASCII letters for the same in either case.
    """
    if ignore_case:
        text, gold = lower(text), lower(gold)
    return _float(equals(strip(text), strip(gold)))


def numeric_match(text: Text, gold: Number) -> Float[Array, ""]:
    r"""1.0 where the number that the response ends up with (`final_number`) is exactly the gold one, else 0.0.

    A percent sign may stand on either side alone: with the gold answer 50 both ``50`` and ``50%`` are right, and so is
    ``50%`` with 0.5.
    """
    return _float(same_number(final_number(text), gold, percent_or_not=True))


def tag_format(text: Text, tags: Sequence[str] = ("think", "answer")) -> Float[Array, ""]:
    """1.0 where the response is made of these tags in order and nothing else, else 0.0.

    Each ``<tag>`` and ``</tag>`` has to occur once, one tag behind the other, with nothing but white space before the
    first, between two, and behind the last.

    Example:
        >>> from statelesschat.rewards import text_of
        >>> float(tag_format(text_of("<think>3+4</think> <answer>7</answer>")))
        1.0
    """
    if not tags:
        raise ValueError("tag_format: no tags; give at least one name")
    text = strip(text)
    good, rest = text.found, text
    for tag in tags:
        opening, closing = f"<{tag}>", f"</{tag}>"
        good = good & (count(text, opening) == 1) & (count(text, closing) == 1)
        rest = strip(rest)
        good = good & (find(rest, opening) == 0)
        end = find(rest, closing)
        good = good & (end >= len(opening))
        rest = rest._replace(start=rest.start + jnp.maximum(end, 0) + len(closing))
    return _float(good & text.fits & (strip(rest).length == 0))


def length_penalty(length: Int[Array, ""], limit: int, margin: int) -> Float[Array, ""]:
    """0 for responses of up to ``limit - margin`` ids, falling in a line to -1 at ``limit``, and -1 beyond it.

    Source: soft overlong punishment, DAPO (Yu et al., 2025, arXiv:2503.14476), equation 13.

    Example:
        >>> import jax.numpy as jnp
        >>> float(length_penalty(jnp.int32(90), limit=100, margin=20))
        -0.5
    """
    if not 0 < margin <= limit:
        raise ValueError(
            f"length_penalty: margin={margin} is not between 1 and limit={limit}; the penalty starts there"
        )
    over = (length - (limit - margin)).astype(jnp.float32) / jnp.float32(margin)
    return -jnp.clip(over, 0.0, 1.0)


def repetition_penalty(
    tokens: Int[Array, "R"], length: Int[Array, ""], *, ngram: int = 3, largest: float = 1.0
) -> Float[Array, ""]:
    """Minus the share of n-grams of ids that occurred before, times ``largest``; 0 for fewer than ``ngram`` ids.

    Source: the n-gram repetition penalty of Yeo et al. (2025, arXiv:2502.03373), as one value for the response:
    ``-largest * (1 - distinct / all)``. Counting is exact, by sorting the n-grams.
    """
    if ngram < 1 or largest < 0:
        raise ValueError(f"repetition_penalty: ngram={ngram}, largest={largest}; give 1 or more, and 0 or more")
    width = tokens.shape[0]
    if width < ngram:
        return jnp.float32(0)
    places = width - ngram + 1
    total = jnp.clip(length - ngram + 1, 0, places)
    valid = jnp.arange(places) < total
    grams = [jnp.where(valid, tokens[i : i + places], -1) for i in range(ngram)]  # no id is -1, so the rest sort apart
    ordered = lax.sort(grams, num_keys=ngram)
    same = jnp.ones(places - 1, bool)
    for column in ordered:
        same = same & (column[1:] == column[:-1])
    repeats = jnp.sum(same & (ordered[0][1:] >= 0), dtype=jnp.int32)
    share = repeats.astype(jnp.float32) / jnp.maximum(total, 1).astype(jnp.float32)
    return -jnp.float32(largest) * share


def _float(verdict: Array) -> Float[Array, ""]:
    return jnp.where(verdict, jnp.float32(1), jnp.float32(0))
