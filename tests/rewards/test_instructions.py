r"""Instructions against the regular expressions and string methods that IFEval decides them by."""

import random
import re
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given

from statelesschat.rewards import Text, instruction, text_of
from tests.rewards import reference, texts
from tests.rewards.batches import ROWS, stacked

WORDS = "length_constraints:number_words"
PUNCTUATION = "\u0080-\u00bf\u2000-\u206f\u3000-\u303f"
WORD = re.compile(rf"(?:[A-Za-z0-9_]|(?![{PUNCTUATION}])[^\x00-\x7f])+")


def has_word(text: str, word: str) -> bool:
    """As ``\\b word \\b``, with our words: an edge at both of its ends."""
    edges = {0 if not text else -1}
    for m in WORD.finditer(text):
        edges |= {m.start(), m.end()}
    places = [m.start() for m in re.finditer(f"(?={re.escape(small(word))})", small(text))]
    return any(place in edges and place + len(word) in edges for place in places)


def small(text: str) -> str:
    return "".join(c.lower() if c.isascii() else c for c in text)


def letters(text: str) -> str:
    return "".join(re.findall("[A-Za-z]", text))


CASES: list[tuple[str, dict[str, Any], Callable[[str], bool]]] = [
    (WORDS, {"relation": "less than", "num_words": 4}, lambda t: len(WORD.findall(t)) < 4),
    (WORDS, {"relation": "at least", "num_words": 4}, lambda t: len(WORD.findall(t)) >= 4),
    ("keywords:existence", {"keywords": ["Dog", "é", "-"]}, lambda t: all(k in small(t) for k in ("dog", "é", "-"))),
    ("keywords:existence", {"keywords": ["dog"]}, lambda t: "dog" in small(t)),
    ("keywords:forbidden_words", {"forbidden_words": ["Dog", "a cat"]},
     lambda t: not any(has_word(t, w) for w in ("dog", "a cat"))),
    ("keywords:forbidden_words", {"forbidden_words": ["é", "-"]},
     lambda t: not any(has_word(t, w) for w in ("é", "-"))),
    ("punctuation:no_comma", {}, lambda t: "," not in t),
    ("startend:quotation", {}, lambda t: len(t) > 1 and t[0] == '"' and t[-1] == '"'),
    ("startend:end_checker", {"end_phrase": " A dog. "}, lambda t: small(t).strip('"').endswith("a dog.")),
    ("startend:end_checker", {"end_phrase": "é"}, lambda t: t.strip('"').endswith("é")),
    ("change_case:english_lowercase", {}, lambda t: letters(t).islower()),
    ("change_case:english_capital", {}, lambda t: letters(t).isupper()),
    ("detectable_format:number_bullet_lists", {"num_bullets": 2},
     lambda t: len(re.findall(r"^[ \t\r\x0b\x0c]*(?:-|\*[^*\n])", t, re.MULTILINE)) == 2),
]  # fmt: skip
PIECES = [
    ["dog", "Dog", "a cat", "A CAT", "a", "B", "7", "_", "A dog."],
    ["é", "ñ", "—", "“", "”", "。", "元", "\u00a0", "½", "\u2070", "\u2bff", "£"],
    ['"', '"', ",", ".", "-", "*", "**", "- ", "* ", "\n- ", "\n* ", "\n", "\n\n", "  ", "\t", "\r\n", "---"],
]


def follow(text: Text) -> list[jax.Array]:
    return [instruction(identifier, **arguments)(text) for identifier, arguments, _ in CASES]


FOLLOW = jax.jit(jax.vmap(follow))


def check(source: random.Random) -> None:
    batch = [texts.jumble(source, source.choice([3, 8, 14]), PIECES)[:60] for _ in range(ROWS)]
    batch = [text.decode(errors="ignore").encode() for text in batch]
    for (identifier, arguments, decide), verdicts in zip(CASES, FOLLOW(stacked(batch)), strict=True):
        for text, verdict in zip(batch, np.asarray(verdicts), strict=True):
            shown = text.decode()
            stripped = shown.strip(reference.WHITE.decode())
            whole = stripped if identifier.startswith("startend") else shown
            assert verdict == (bool(stripped) and decide(whole)), (identifier, arguments, shown)


@given(texts.seeds())
def test_instructions_are_followed_as_host_checks_say(source: random.Random) -> None:
    check(source)


@pytest.mark.slow
def test_instructions_on_100_000_texts() -> None:
    for seed in range(100_000 // ROWS):
        check(random.Random(seed))


def follows(text: str, identifier: str, **arguments: Any) -> bool:
    return bool(instruction(identifier, **arguments)(text_of(text, max(len(text.encode()), 32))))


def test_less_than_five_words() -> None:
    arguments: dict[str, Any] = {"relation": "less than", "num_words": 5}
    assert not follows("one two three four five six seven eight nine", WORDS, **arguments)
    assert not follows("one two three four five", WORDS, **arguments)
    assert follows("one, two -- three four!", WORDS, **arguments)
    assert follows("don't café — naïve", WORDS, **arguments)  # don and t are two, an em dash is none


@pytest.mark.parametrize("kind", range(len(CASES)))
@pytest.mark.parametrize("text", ["", "  \n", "abc"])
def test_nothing_is_followed_by_a_text_that_is_blank_missing_or_does_not_fit(kind: int, text: str) -> None:
    identifier, arguments, _ = CASES[kind]
    check = jax.jit(instruction(identifier, **arguments))
    held = text_of(text, 3)
    for bad in (held._replace(end=np.int32(-1)), held._replace(end=np.int32(4)), *([held] if not text.strip() else [])):
        assert not bool(check(bad))


@pytest.mark.parametrize(
    ("identifier", "arguments", "words"),
    [
        (
            "keywords:letter",
            {},
            "no instruction 'keywords:letter'; give one of change_case:.*no_comma",
        ),
        (
            WORDS,
            {"num_words": 4},
            "takes these arguments: relation, num_words; given: num_words",
        ),
        (
            WORDS,
            {"relation": "more than", "num_words": 4},
            "'more than'; give one of 'less",
        ),
        (WORDS, {"relation": "at least", "num_words": "4"}, "num_words='4'; give a whole"),
        (WORDS, {"relation": "at least", "num_words": True}, "num_words=True"),
        ("punctuation:no_comma", {"commas": 0}, "takes these arguments: none; given: commas"),
        ("keywords:existence", {"keywords": []}, "keywords=.*give a list of words"),
        ("keywords:existence", {"keywords": "dog"}, "give a list of words"),
        ("keywords:forbidden_words", {"forbidden_words": ["a", ""]}, "give a list of words"),
        ("startend:end_checker", {"end_phrase": " "}, "not blank"),
        ("detectable_format:number_bullet_lists", {"num_bullets": -1}, "from 0 on"),
    ],
)
def test_what_is_unknown_is_refused_with_what_there_is(identifier: str, arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        instruction(identifier, **arguments)
