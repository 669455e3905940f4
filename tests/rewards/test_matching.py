"""Verdicts and penalties against the reference."""

import random

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from statelesschat import rewards
from statelesschat.rewards import Text
from tests.rewards import reference, texts
from tests.rewards.batches import ROWS, answers, compiled, stacked

TAGS = [
    ["<think>", "</think>", "<answer>", "</answer>"],
    ["<think>", "</think>"],
    ["<answer>", "</answer>"],
    ["a", "7 ", "<"],
]


def tag_verdicts(text: Text) -> tuple[jax.Array, jax.Array]:
    return rewards.tag_format(text), rewards.tag_format(text, ("answer",))


def tagged(source: random.Random) -> bytes:
    """Tags in order with things between, or anything of tags."""
    if source.random() < 0.4:
        return texts.jumble(source, 8, [*TAGS, texts.WHITE])[:90]
    white = [source.choice(["", " ", "\n", "\t", "x"]) if source.random() < 0.3 else "" for _ in range(6)]
    inner = [texts.jumble(source, 3, [["a", "7", "<", "</think>", " "], texts.WHITE]).decode() for _ in range(2)]
    parts = [white[0], "<think>", inner[0], "</think>", white[1], "<answer>", inner[1], "</answer>", white[2]]
    if source.random() < 0.3:
        parts.pop(source.randrange(len(parts)))
    return "".join(parts).encode()[:90]


def check_tags(source: random.Random) -> None:
    batch = [tagged(source) for _ in range(ROWS)]
    for text, (two, one) in zip(batch, answers(tag_verdicts, stacked(batch), rows=ROWS), strict=True):
        assert two == reference.tag_format(text), text
        assert one == reference.tag_format(text, ("answer",)), text


@given(texts.seeds())
def test_tag_format_is_that_of_a_pattern(source: random.Random) -> None:
    check_tags(source)


@pytest.mark.slow
def test_tag_format_of_100_000_texts() -> None:
    for seed in range(100_000 // ROWS):
        check_tags(random.Random(seed))


@pytest.mark.parametrize(
    "text",
    [
        "<think>a</think><answer>b</answer><answer>c</answer>",
        "<think>a<answer>b</think></answer>",
        "<answer>b</answer><think>a</think>",
        "<think>a</think><answer>b</answer>!",
        "<think>a</think>, so <answer>b</answer>",
        "<think>a</think><answer>b</answer",
        "<Think>a</Think><answer>b</answer>",
        "<think><think>a</think></think><answer>b</answer>",
        "</think><think><answer></answer>",
        "",
    ],
)
def test_tags_out_of_order_or_place_earn_nothing(text: str) -> None:
    assert compiled(rewards.tag_format)(stacked([text.encode()]))[0] == 0


def test_tags_have_to_be_given() -> None:
    with pytest.raises(ValueError, match="no tags"):
        rewards.tag_format(rewards.text_of("a"), ())


def in_any_case(text: Text, gold: Text) -> jax.Array:
    return rewards.exact_match(text, gold, ignore_case=True)


@given(texts.seeds())
def test_exact_match_leaves_out_white_space_and_case_if_asked_to(source: random.Random) -> None:
    ones = [texts.jumble(source, 4)[:40] for _ in range(ROWS)]
    others = [source.choice([one, b" " + one, one + b"\n\t", one.upper(), one + b"x", b"\x00" + one]) for one in ones]
    exact = answers(rewards.exact_match, stacked(ones), stacked(others), rows=ROWS)
    for one, other, verdict in zip(ones, others, exact, strict=True):
        assert verdict == (one.strip(reference.WHITE) == other.strip(reference.WHITE)), (one, other)
    loose = answers(in_any_case, stacked(ones), stacked(others), rows=ROWS)
    for one, other, verdict in zip(ones, others, loose, strict=True):
        assert verdict == (one.lower().strip(reference.WHITE) == other.lower().strip(reference.WHITE)), (one, other)


def repetitions(tokens: jax.Array, length: jax.Array) -> list[jax.Array]:
    return [rewards.repetition_penalty(tokens, length, ngram=n) for n in (1, 2, 3, 17)]


@given(texts.seeds())
def test_repetition_is_the_share_of_ngrams_that_were_there_before(source: random.Random) -> None:
    rows = [[source.randrange(source.choice([1, 2, 3, 50])) for _ in range(source.randint(0, 16))] for _ in range(ROWS)]
    tokens = np.full((ROWS, 16), source.choice([0, 1, -1]), np.int32)
    for row, ids in enumerate(rows):
        tokens[row, : len(ids)] = ids
    lengths = np.array([len(ids) for ids in rows], np.int32)
    for ids, found in zip(rows, answers(repetitions, tokens, lengths, rows=ROWS), strict=True):
        for n, penalty in zip((1, 2, 3, 17), found, strict=True):
            assert penalty == pytest.approx(float(reference.repetition_penalty(ids, n)), abs=1e-6), (ids, n)


def test_repetition_scales_and_looks_at_the_ids_that_are_there() -> None:
    tokens = np.array([5, 5, 5, 5], np.int32)
    assert rewards.repetition_penalty(tokens, np.int32(4), ngram=1, largest=2.0) == -1.5
    assert rewards.repetition_penalty(tokens, np.int32(9), ngram=1) == -0.75
    with pytest.raises(ValueError, match="ngram=0"):
        rewards.repetition_penalty(tokens, np.int32(4), ngram=0)


@given(st.integers(0, 300), st.integers(1, 200), st.integers(1, 200))
def test_length_penalty_falls_in_a_line(length: int, limit: int, margin: int) -> None:
    if margin > limit:
        with pytest.raises(ValueError, match=f"margin={margin}"):
            rewards.length_penalty(np.int32(length), limit, margin)
        return
    found = rewards.length_penalty(np.int32(length), limit, margin)
    assert found.dtype == np.float32
    assert float(found) == pytest.approx(float(reference.length_penalty(length, limit, margin)), abs=1e-6)
