"""Many texts in one call: padded to one size, with trouble around them, so that one trace serves all."""

import functools
from collections.abc import Callable, Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Any

import jax
import numpy as np

from statelesschat import rewards
from statelesschat.rewards import Answer, Number, Text
from tests.rewards.reference import Value

ROWS = 64
SIZE = 512  # bytes of a response
_AROUND = b"9}8{\n#7</answer>\\6</think><think>,5.4%3-2e1"  # what lies outside a text must not matter


def stacked(texts: Sequence[bytes | None], size: int = 96, rows: int = ROWS) -> Text:
    """Texts as rows of ``size`` bytes, at different places in them; one that is longer does not fit."""
    assert len(texts) <= rows
    around = np.frombuffer(_AROUND * (size // len(_AROUND) + 2), np.uint8)
    data = np.stack([around[row % len(_AROUND) :][:size] for row in range(rows)])
    starts, ends = np.zeros(rows, np.int32), np.full(rows, -1, np.int32)
    for row, text in enumerate(texts):
        if text is None:
            continue
        starts[row] = (7 * row) % (max(size - len(text), 0) + 1)
        ends[row] = starts[row] + len(text)
        kept = text[: size - starts[row]]
        data[row, starts[row] : starts[row] + len(kept)] = np.frombuffer(kept, np.uint8)
    return Text(data, starts, ends)


@functools.cache
def compiled(function: Callable[..., Any]) -> Any:
    """A function of one row, for batches."""
    return jax.jit(jax.vmap(function))


def verdicts(text: Text, gold: Number) -> tuple[Answer, Number, Any]:
    """What a response comes to, in one program, for it takes seconds to compile."""
    return rewards.final_answer(text), rewards.final_number(text), rewards.numeric_match(text, gold)


@functools.cache
def no_golds() -> Number:
    """Gold numbers where none matter."""
    return rewards.numbers_of(["0"] * ROWS)


def answers(function: Callable[..., Any], *batches: Any, rows: int) -> list[Any]:
    """What a function of one row makes of each row, as pytrees of numpy scalars and arrays."""
    found = jax.tree.map(np.asarray, compiled(function)(*batches))
    return [jax.tree.map(lambda leaf, row=row: leaf[row], found) for row in range(rows)]


def bytes_of(text: Text) -> bytes | None:
    """A row's text; None where it is missing."""
    start, end = int(text.start), int(text.end)
    return None if end < start else np.asarray(text.bytes)[start:end].tobytes()


def value_of(number: Number) -> Value | None:
    """A row's number as a fraction; None where it is not valid."""
    if not bool(number.valid):
        return None
    top, bottom = (int("".join(f"{limb:03d}" for limb in limbs)) for limbs in (number.numerator, number.denominator))
    value = Fraction(-top if number.negative else top, bottom) * Fraction(Decimal(10) ** int(number.exponent))
    return Value(value, value * 100 if number.percent else value, bool(number.percent))
