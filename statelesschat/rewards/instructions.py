r"""Whether a response follows an instruction that its bytes alone decide, as IFEval asks for them.

Source: Zhou et al., "Instruction-Following Evaluation for Large Language Models" (2023, arXiv:2311.07911); identifiers
and arguments are those of its data. Where IFEval looks at letters of all scripts, these look at ASCII, and say so.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool

from statelesschat.rewards.text import SPACES, Text, begins, contains, inside, is_any, lower, strip

Check = Callable[[Text], Bool[Array, ""]]

_RELATIONS = ("less than", "at least")
_SMALL, _CAPITAL = bytes(range(ord("a"), ord("z") + 1)), bytes(range(ord("A"), ord("Z") + 1))
_WORD = _SMALL + _CAPITAL + b"0123456789_" + bytes(range(0x80, 0x100))


def instruction(identifier: str, **arguments: Any) -> Check:
    r"""The check of one instruction: a pure function of a `Text` that says whether the text follows it.

    ===================================== ============================= ================================================
    identifier                            arguments                     followed where
    ===================================== ============================= ================================================
    length_constraints:number_words       relation, num_words           it has ``"less than"`` or ``"at least"`` so many
                                                                        words
    keywords:existence                    keywords                      each occurs, in any case, inside words too
    keywords:forbidden_words              forbidden_words               none occurs as a word, in any case
    punctuation:no_comma                                                it has no ``,``
    startend:quotation                                                  it begins and ends with ``"``, two of them
    startend:end_checker                  end_phrase                    it ends with the phrase, in any case, or with it
                                                                        and quotation marks
    change_case:english_lowercase                                       it has small letters and no capitals
    change_case:english_capital                                         it has capitals and no small letters
    detectable_format:number_bullet_lists num_bullets                   so many lines, no more and no fewer, begin with
                                                                        ``-`` or with one ``*`` and something behind it
    ===================================== ============================= ================================================

    Words are runs of ASCII letters, digits, ``_`` and characters that are not ASCII, but for U+0080 to U+00BF, U+2000
    to U+206F and U+3000 to U+303F, which are punctuation. (IFEval asks Unicode about each character.) A forbidden word
    counts where either end of it is such a word's end or beginning: ``\b`` of regular expressions. Case is that of
    ASCII letters, white space that of `strip`; keywords are plain text, not patterns.

    A text that is missing, blank or does not fit its array follows nothing.

    Raises:
        ValueError: an unknown identifier or relation; arguments that are missing, unknown, empty or of another type.

    Example:
        >>> from statelesschat.rewards import text_of
        >>> short = instruction("length_constraints:number_words", relation="less than", num_words=5)
        >>> bool(short(text_of("Four words, no more.")))
        True
    """
    if identifier not in _KINDS:
        raise ValueError(f"there is no instruction {identifier!r}; give one of {', '.join(sorted(_KINDS))}")
    kind = _KINDS[identifier]
    if set(arguments) != set(kind.arguments):
        wanted = ", ".join(kind.arguments) or "none"
        raise ValueError(f"{identifier} takes these arguments: {wanted}; given: {', '.join(arguments) or 'none'}")
    checked = {name: kind.arguments[name](f"{identifier}: {name}", value) for name, value in arguments.items()}
    follows = kind.make(**checked)
    return lambda text: follows(text) & jnp.any(_solid(text)) & text.fits


def _number_words(relation: str, num_words: int) -> Check:
    def follows(text: Text) -> Bool[Array, ""]:
        word = _in_word(text)
        words = jnp.sum(word & ~_before(word), dtype=jnp.int32)
        return words < num_words if relation == "less than" else words >= num_words

    return follows


def _existence(keywords: list[str]) -> Check:
    def follows(text: Text) -> Bool[Array, ""]:
        small = lower(text)
        return jnp.all(jnp.stack([contains(small, _small(word)) for word in keywords]))

    return follows


def _forbidden_words(forbidden_words: list[str]) -> Check:
    def follows(text: Text) -> Bool[Array, ""]:
        small, word = lower(text), _in_word(text)
        edge = jnp.concatenate([word, jnp.zeros(1, bool)]) ^ jnp.concatenate([jnp.zeros(1, bool), word])
        found = jnp.bool_(False)
        for forbidden in forbidden_words:
            size = len(forbidden.encode())
            behind = jnp.concatenate([edge, jnp.zeros(size, bool)])[size : size + word.shape[0]]
            found = found | jnp.any(begins(small, _small(forbidden)) & edge[:-1] & behind)
        return ~found

    return follows


def _no_comma() -> Check:
    return lambda text: ~contains(text, ",")


def _quotation() -> Check:
    def follows(text: Text) -> Bool[Array, ""]:
        text = strip(text)
        marks = begins(text, '"')
        return (text.length > 1) & _holds(marks, text.start) & _holds(marks, text.end - 1)

    return follows


def _end_checker(end_phrase: str) -> Check:
    phrase = _small(end_phrase.strip())

    def follows(text: Text) -> Bool[Array, ""]:
        text = lower(strip(text))
        positions = jnp.arange(text.bytes.shape[0], dtype=jnp.int32)
        said = inside(text) & ~begins(text, '"')
        end = jnp.max(jnp.where(said, positions + 1, 0), initial=0)
        start = jnp.min(jnp.where(said, positions, text.end), initial=text.bytes.shape[0])
        return _holds(begins(text._replace(start=start, end=end), phrase), end - len(phrase.encode()))

    return follows


def _one_case(wanted: bytes, other: bytes) -> Check:
    return lambda text: jnp.any(is_any(text, wanted) & inside(text)) & ~jnp.any(is_any(text, other) & inside(text))


def _bullets(num_bullets: int) -> Check:
    def follows(text: Text) -> Bool[Array, ""]:
        solid, positions = _solid(text), jnp.arange(text.bytes.shape[0], dtype=jnp.int32)
        newline = lax.cummax(jnp.where(begins(text, "\n"), positions, -1))
        last = lax.cummax(jnp.where(solid, positions, -1))
        first = solid & (jnp.concatenate([jnp.full(1, -1, jnp.int32), last])[:-1] <= newline)
        star = begins(text, "*") & _behind(inside(text) & ~begins(text, "*") & ~begins(text, "\n"))
        return jnp.sum(first & (begins(text, "-") | star), dtype=jnp.int32) == num_bullets

    return follows


def _in_word(text: Text) -> Bool[Array, "S"]:
    follows = lambda low, high, n=1: _behind((text.bytes >= low) & (text.bytes <= high), n)  # noqa: E731
    lead, two, three = text.bytes == 0xC2, text.bytes == 0xE2, text.bytes == 0xE3
    wide = two & (follows(0x80, 0x80) | follows(0x81, 0x81) & follows(0x80, 0xAF, 2)) | three & follows(0x80, 0x80)
    punctuation = lead | _before(lead) | wide | _before(wide) | _before(wide, 2)
    return is_any(text, _WORD) & ~punctuation & inside(text)


def _solid(text: Text) -> Bool[Array, "S"]:
    return inside(text) & ~is_any(text, SPACES)


def _before(where: Bool[Array, "S"], by: int = 1) -> Bool[Array, "S"]:
    return jnp.concatenate([jnp.zeros(by, bool), where])[: where.shape[0]]


def _behind(where: Bool[Array, "S"], by: int = 1) -> Bool[Array, "S"]:
    return jnp.concatenate([where, jnp.zeros(by, bool)])[by:]


def _holds(where: Bool[Array, "S"], position: Array) -> Bool[Array, ""]:
    return jnp.any(where & (jnp.arange(where.shape[0]) == position))


def _small(word: str) -> str:
    return "".join(c.lower() if c.isascii() else c for c in word)


def _words(name: str, value: Any) -> list[str]:
    if not isinstance(value, list | tuple) or not value or not all(isinstance(word, str) and word for word in value):
        raise ValueError(f"{name}={value!r}; give a list of words")
    return list(value)


def _phrase(name: str, value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{name}={value!r}; give a text that is not blank")
    return value


def _count(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**31:
        raise ValueError(f"{name}={value!r}; give a whole number from 0 on")
    return value


def _relation(name: str, value: Any) -> str:
    if value not in _RELATIONS:
        raise ValueError(f"{name}={value!r}; give one of {', '.join(map(repr, _RELATIONS))}")
    return value


class _Kind(NamedTuple):
    make: Callable[..., Check]
    arguments: Mapping[str, Callable[[str, Any], Any]]  # each with what checks it


_KINDS = {
    "length_constraints:number_words": _Kind(_number_words, {"relation": _relation, "num_words": _count}),
    "keywords:existence": _Kind(_existence, {"keywords": _words}),
    "keywords:forbidden_words": _Kind(_forbidden_words, {"forbidden_words": _words}),
    "punctuation:no_comma": _Kind(_no_comma, {}),
    "startend:quotation": _Kind(_quotation, {}),
    "startend:end_checker": _Kind(_end_checker, {"end_phrase": _phrase}),
    "change_case:english_lowercase": _Kind(lambda: _one_case(_SMALL, _CAPITAL), {}),
    "change_case:english_capital": _Kind(lambda: _one_case(_CAPITAL, _SMALL), {}),
    "detectable_format:number_bullet_lists": _Kind(_bullets, {"num_bullets": _count}),
}
