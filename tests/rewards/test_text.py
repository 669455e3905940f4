"""Text as padded bytes against methods of Python's bytes, wherever the text lies in its array."""

import functools
import itertools
import random
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given

from statelesschat import rewards
from statelesschat.rewards import Text, text_of
from tests.rewards import reference, texts
from tests.rewards.batches import ROWS, answers, bytes_of, stacked

SIZE = 80
PATTERNS = (b"####", b"\\boxed{", b"{", b"}", b"</answer>", "−".encode(), b"1", b"\x00", b"aa")
PAIRS = ((b"<answer>", b"</answer>"), (b"#", b"\n"), (b"aa", b"a"))
NESTED = ((b"\\boxed{", b"}"), (b"(", b")"), (b"{", b"}"))
PIECES = [*texts.PIECES, ["a", "aa", "<answer>", "</answer>", "\\boxed{", "\\fbox{"], texts.BRACES, texts.WHITE]


class Facts(NamedTuple):
    """What is asked of each text."""

    found: dict[str, Any]
    between: list[Text]
    nested: list[Text]
    until: list[Text]
    stripped: Text
    lowered: Text
    cut: list[Text]
    bare: list[Text]


CUTS = ((0, None), (2, 5), (5, 2), (3, 3), (-2, 4), (0, -1), (1000, None), (7, 1000))


def ask(text: Text) -> Facts:
    """All of it, in one program."""
    questions = (rewards.find, rewards.find_last, rewards.contains, rewards.count)
    return Facts(
        {f"{q.__name__} {p!r}": q(text, p) for q in questions for p in PATTERNS},
        [rewards.between(text, a, b) for a, b in PAIRS],
        [rewards.between(text, a, b, nested=True) for a, b in NESTED],
        [rewards.until(text, b"</answer>"), rewards.until(text, b"}", nested=b"{")],
        rewards.strip(text),
        rewards.lower(text),
        [rewards.cut(text, a, b) for a, b in CUTS],
        [rewards.remove_prefix(text, b"#"), rewards.remove_suffix(text, "\n"), rewards.remove_suffix(text, "", True)],
    )


def expected(text: bytes) -> Facts:
    """The same by the reference."""
    n = len(text)
    bounds = [(min(max(a, 0), n), n if b is None else min(max(b, -1), n)) for a, b in CUTS]
    return Facts(
        {f"find {p!r}": text.find(p) for p in PATTERNS}
        | {f"find_last {p!r}": text.rfind(p) for p in PATTERNS}
        | {f"contains {p!r}": p in text for p in PATTERNS}
        | {f"count {p!r}": reference.count(text, p) for p in PATTERNS},
        [reference.between(text, a, b) for a, b in PAIRS],  # type: ignore[misc]
        [reference.between(text, a, b, nested=True) for a, b in NESTED],  # type: ignore[misc]
        [reference.until(text, b"</answer>"), reference.until(text, b"}", b"{")],  # type: ignore[misc]
        text.strip(reference.WHITE),  # type: ignore[arg-type]
        text.lower(),  # type: ignore[arg-type]
        [text[a:b] if b >= a else None for a, b in bounds],  # type: ignore[misc]
        [text.removeprefix(b"#"), text.removesuffix(b"\n"), text],  # type: ignore[list-item]
    )


def facts_of(rows: Facts) -> Facts:
    """A row's answers in Python's types."""
    found = {name: value.item() for name, value in rows.found.items()}
    return Facts(found, *jax.tree.map(bytes_of, tuple(rows)[1:], is_leaf=lambda x: isinstance(x, Text)))


def check(source: random.Random, most: int = 24) -> None:
    batch = [texts.jumble(source, most, PIECES)[:SIZE] for _ in range(ROWS)]
    for text, row in zip(batch, answers(ask, stacked(batch, SIZE), rows=ROWS), strict=True):
        assert facts_of(row) == expected(text), text


@given(texts.seeds())
def test_texts_are_searched_cut_and_stripped_as_python_does(source: random.Random) -> None:
    check(source)


@pytest.mark.slow
def test_100_000_texts_are_searched_cut_and_stripped_as_python_does() -> None:
    for seed in range(100_000 // ROWS):
        check(random.Random(seed))


@given(texts.seeds())
def test_equality_is_that_of_the_bytes(source: random.Random) -> None:
    ones = [texts.jumble(source, 3)[:30] for _ in range(ROWS)]
    others = [source.choice([one, one + b"\x00", one[:-1], texts.jumble(source, 3)[:30]]) for one in ones]
    same = answers(rewards.equals, stacked(ones, 31), stacked(others, 47), rows=ROWS)
    for one, other, verdict in zip(ones, others, same, strict=True):
        assert verdict == (one == other), (one, other)


def test_a_bracket_behind_an_odd_number_of_backslashes_is_none() -> None:
    batch = [b"{" + b"\\" * slashes + b"}x}" for slashes in range(6)]
    for slashes, row in enumerate(answers(ask, stacked(batch, SIZE), rows=6)):
        assert bytes_of(row.nested[2]) == batch[slashes][1 : -1 if slashes % 2 else -3]


def test_backslashes_before_the_text_escape_nothing_in_it() -> None:
    text = text_of(b"\\}a}")._replace(start=np.int32(1))
    assert bytes_of(rewards.until(text, b"}", nested=b"{")) == b""


QUESTIONS = {
    "found": lambda t: t.found,
    "contains": lambda t: rewards.contains(t, "a"),
    "equals": lambda t: rewards.equals(t, t),
    "exact": lambda t: rewards.exact_match(t, t) > 0,
    "number": lambda t: rewards.parse_decimal(t).valid,
    "final": lambda t: rewards.final_number(t).valid,
    "tags": lambda t: rewards.tag_format(t, ("a",)) > 0,
    "find": lambda t: rewards.find(t, "a") >= 0,
    "find_last": lambda t: rewards.find_last(t, "a") >= 0,
    "count": lambda t: rewards.count(t, "a") > 0,
    "strip": lambda t: rewards.strip(t).found,
    "cut": lambda t: rewards.cut(t, 0).found,
    "between": lambda t: rewards.between(t, "a", "b").found,
    "nested": lambda t: rewards.between(t, "{", "}", nested=True).found,
    "until": lambda t: rewards.until(t, "b").found,
    "answer": lambda t: rewards.final_answer(t).text.found,
    "lower": lambda t: rewards.lower(t).found,
}


WIDTH = 12
ALWAYS = {"found", "equals", "exact", "strip", "cut", "lower"}  # what holds of any text there is
OF_LETTERS = {"contains", "find", "find_last", "count"}
VERDICTS = {"equals", "exact", "number", "final", "tags", "between", "nested", "answer"}


@functools.cache
def everything() -> Any:
    """All questions in one program."""
    return jax.jit(lambda text: {name: question(text) for name, question in QUESTIONS.items()})


def true_of(text: Text) -> set[str]:
    """The questions that a text answers with True."""
    return {name for name, verdict in everything()(text).items() if verdict}


def test_of_a_missing_text_everything_is_missing() -> None:
    text = text_of(b"<a>b</a>{a}7", WIDTH)
    assert not true_of(text._replace(end=np.int32(-1)))
    assert not true_of(text._replace(start=np.int32(5), end=np.int32(4)))


@pytest.mark.parametrize("width", [0, 1])
def test_arrays_of_hardly_any_width(width: int) -> None:
    text = Text(np.full(width, ord("a"), np.uint8), np.int32(0), np.int32(width))
    assert true_of(text) == (ALWAYS | OF_LETTERS if width else ALWAYS)
    assert true_of(text._replace(end=np.int32(0))) == ALWAYS


@pytest.mark.parametrize("kept", [b"7", b"<a>b</a>", b"{a}b", b"#### 7\n", b"a b", b"\\fbox{7}"])
def test_no_verdict_rests_on_a_text_that_does_not_fit(kept: bytes) -> None:
    """What is cut off might be anything: another answer, or a digit more."""
    assert not VERDICTS & true_of(text_of(kept.rjust(WIDTH))._replace(end=np.int32(WIDTH + 1)))


def test_a_text_that_does_not_fit_still_does_not_when_stripped_or_cut_to_its_end() -> None:
    text = text_of(b" a  ")._replace(end=np.int32(9))
    for part in (text, rewards.strip(text), rewards.cut(text, 1), rewards.lower(text)):
        assert not bool(part.fits)
    assert bool(rewards.cut(text, 0, 3).fits)
    assert not bool(rewards.contains(text_of(b"a")._replace(end=np.int32(2)), b"a\x00"))


BATCH = (b"\\boxed{7}", b"#### 1/2", None, b"so 3", b"7" * 90, b"aa<a>")


def test_nested_vmap_is_vmap() -> None:
    batch = stacked(BATCH, WIDTH, 6)
    nested = jax.tree.map(lambda leaf: leaf.reshape(2, 3, *leaf.shape[1:]), batch)
    few = {name: QUESTIONS[name] for name in ("equals", "exact", "tags", "find_last", "strip", "nested", "until")}
    twice = jax.jit(jax.vmap(jax.vmap(lambda text: {name: question(text) for name, question in few.items()})))(nested)
    for row, column in itertools.product(range(2), range(3)):
        alone = true_of(Text(*(leaf[row, column] for leaf in nested)))
        assert alone & few.keys() == {name for name, verdict in twice.items() if verdict[row, column]}


@pytest.mark.slow
def test_numpy_without_jit() -> None:
    """Op by op it takes its time; the doctests do this every time for what they show."""
    batch = stacked(BATCH, SIZE, 6)
    for row in range(6):
        text = Text(*(leaf[row] for leaf in batch))
        assert {name for name, question in QUESTIONS.items() if question(text)} == true_of(text)


def test_a_program_with_texts_in_it_has_a_gradient() -> None:
    """Under two vmaps, which the numbers have to bear as well."""
    batch = stacked([b"\\boxed{7}", b"#### 8", b"A: 14/2", b"7 or 8"], SIZE, 4)
    nested = jax.tree.map(lambda leaf: leaf.reshape(2, 2, *leaf.shape[1:]), (batch, rewards.numbers_of(["7"] * 4)))

    def loss(weights: jax.Array) -> jax.Array:
        return jnp.sum(jax.vmap(jax.vmap(rewards.numeric_match))(*nested) * weights)

    assert jax.jit(jax.grad(loss))(jnp.full((2, 2), 3.0)).tolist() == [[1, 0], [1, 0]]


def test_a_pattern_is_never_empty_and_a_text_never_too_long() -> None:
    with pytest.raises(ValueError, match="empty pattern"):
        rewards.contains(text_of("a"), "")
    with pytest.raises(ValueError, match=r"2 bytes .* size=1"):
        text_of("é", 1)
    with pytest.raises(ValueError, match="one character"):
        rewards.until(text_of("a"), "))", nested="(")
