"""Numbers against `fractions.Fraction`: what is one, which one, and which are the same."""

import random

import chex
import jax
import numpy as np
import pytest
from hypothesis import given

from statelesschat import rewards
from statelesschat.rewards import Number, Text
from tests.rewards import reference, texts
from tests.rewards.batches import ROWS, answers, compiled, stacked, value_of

SIZE = 96


def one_text(source: random.Random) -> bytes:
    """A number, one with a fault, or a jumble."""
    kind = source.random()
    text = texts.number(source)
    if kind > 0.5:
        text = texts.mutated(source, text)
    return texts.jumble(source, 6, texts.NUMBER_PIECES) if kind > 0.85 else text.encode()


def check(source: random.Random) -> None:
    batch = [one_text(source) for _ in range(ROWS)]
    read = answers(rewards.parse_decimal, stacked(batch, SIZE), rows=ROWS)
    for text, number in zip(batch, read, strict=True):
        wanted = reference.parse_decimal(text) if len(text) <= SIZE else None
        assert value_of(number) == wanted, text


def both(one: Text, other: Text) -> tuple[jax.Array, jax.Array]:
    numbers = rewards.parse_decimal(one), rewards.parse_decimal(other)
    return rewards.same_number(*numbers), rewards.same_number(*numbers, percent_or_not=True)


def check_pairs(source: random.Random) -> None:
    ones = [texts.number(source) for _ in range(ROWS)]
    pairs = [(one.encode(), texts.equal_to(source, one).encode()) for one in ones]
    verdicts = answers(both, *(stacked(side, SIZE) for side in zip(*pairs, strict=True)), rows=ROWS)
    for (one, other), (strict, loose) in zip(pairs, verdicts, strict=True):
        numbers = reference.parse_decimal(one), reference.parse_decimal(other)
        if max(len(one), len(other)) <= SIZE:
            assert strict == reference.same_number(*numbers), (one, other)
            assert loose == reference.same_number(*numbers, percent_or_not=True), (one, other)


@given(texts.seeds())
def test_a_text_is_read_as_the_number_that_it_is(source: random.Random) -> None:
    check(source)


@given(texts.seeds())
def test_same_number_is_equality_of_fractions(source: random.Random) -> None:
    check_pairs(source)


@pytest.mark.slow
def test_200_000_texts_are_read_as_the_numbers_that_they_are() -> None:
    for seed in range(200_000 // ROWS):
        check(random.Random(seed))


@pytest.mark.slow
def test_100_000_pairs_are_the_same_number_where_their_fractions_are() -> None:
    for seed in range(100_000 // ROWS):
        check_pairs(random.Random(seed))


READ = {
    "0": "0", "-0": "0", ".5": "1/2", "5.": "5", "5..": "5", "1,234,567.80": "6172839/5", "7e4": "70000",
    "7E-2": "7/100", "$-3": "-3", "-$3": "-3", "€3": "3", "3€": "3", "\\$3.50": "7/2", "−3": "-3", "50%": "1/2",
    "50\\%": "1/2", "\\frac{-1}{2}": "-1/2", "-\\dfrac{1}{2}": "-1/2", "-\\tfrac{-1}{2}": "1/2", "1.5/0.5": "3",
    "007": "7", "123456789012345678": "123456789012345678", "1234567890123456780000": "1234567890123456780000",
    "0.000123456789012345678": "61728394506172839/500000000000000000000",
}  # fmt: skip
REFUSED = (
    "", " ", "-", ".", "$", "%", "--3", "+-3", "-$-3", "1,00", "1,0000", "0,123", "00,123", ",123", "1,234,56",
    "1 000", "1e", "1e12345", "1/0", "1/0.0", "1/2/3", "1/-2", "\\frac{1}{0}", "\\frac{1}{2", "\\frac12", "1e3/2",
    "0x10", "1_000", "٣", "３", "nan", "inf", "1234567890123456789", "1.234567890123456789", "1" * 65, "5 %", "$ 5",
    "1\x002", "5%%", "5!", "(5)",
)  # fmt: skip


def test_read() -> None:
    batch = [text.encode() for text in READ]
    for text, number in zip(batch, answers(rewards.parse_decimal, stacked(batch, SIZE), rows=len(batch)), strict=True):
        value = value_of(number)
        assert value is not None and str(value.value) == READ[text.decode()], text
        assert reference.parse_decimal(text) == value, text


def test_refused() -> None:
    for text, number in zip(REFUSED, answers(rewards.parse_decimal, stacked([t.encode() for t in REFUSED], SIZE),
                                             rows=len(REFUSED)), strict=True):  # fmt: skip
        assert not number.valid, text
        assert reference.parse_decimal(text.encode()) is None, text


def test_every_text_at_the_border_of_64_bytes() -> None:
    batch = [b"0" * zeros + b"7" + b" " * spaces for zeros in (62, 63, 64) for spaces in (0, 1, 20)]
    for text, number in zip(batch, answers(rewards.parse_decimal, stacked(batch, SIZE), rows=len(batch)), strict=True):
        assert bool(number.valid) == (len(text.strip()) <= 64) == (reference.parse_decimal(text) is not None)


def test_one_trace_reads_every_batch() -> None:
    read = jax.jit(jax.vmap(chex.assert_max_traces(rewards.parse_decimal, n=1)))
    for seed in range(3):
        jax.block_until_ready(read(stacked([one_text(random.Random(seed)) for _ in range(ROWS)], SIZE)))


def test_gold_answers_are_read_as_texts_are_and_the_row_at_fault_is_named() -> None:
    golds = [*READ, 5, -12]
    numbers = rewards.numbers_of(golds)
    assert isinstance(numbers, Number) and all(isinstance(leaf, np.ndarray) for leaf in numbers)
    for row, gold in enumerate(golds):
        value = value_of(jax.tree.map(lambda leaf, row=row: leaf[row], numbers))
        assert value is not None and str(value.value) == READ.get(str(gold), str(gold))
    with pytest.raises(ValueError, match="row 1: 'eleven'"):
        rewards.numbers_of(["1", "eleven"])
    with pytest.raises(ValueError, match="no texts"):
        rewards.numbers_of([])


def test_numbers_that_are_not_valid_are_the_same_as_none() -> None:
    sides = stacked([b"x", b"x", b"5"], SIZE), stacked([b"x", b"5", b"x"], SIZE)
    assert not any(np.asarray(verdict)[:3].any() for verdict in compiled(both)(*sides))
