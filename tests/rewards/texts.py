r"""Texts that make trouble: marks whole and in pieces, numbers of the grammar and beside it, signs of other scripts."""

import random
from collections.abc import Callable

from hypothesis import strategies as st

DIGITS = list("0123456789")
SIGNS = ["+", "-", "\u2212", "--", "\u2013", "\u2014"]
CURRENCIES = ["$", "\\$", "£", "€", "¥", "₹"]
POINTS = [".", ",", "/", ":", "^", "%", "\\%", "e", "E", "e-", "1,000", "0,123", "00"]
BRACES = ["{", "}", "\\{", "\\}", "\\\\", "\\", "\\frac{", "}{", "\\text{", "\\dfrac{1}{2}", "(", ")", "[", "]"]
WORDS = [
    "x", "a", "is", "=", "x = ", "not ", " million", " or ", "minus ", "at least ", " and a half", "apples", " m}",
]  # fmt: skip
WHITE = [" ", "\n", "\t", "\r\n", "\x0b", "  "]
OTHER = [
    "é",
    "½",
    "²",
    "π",
    "×",
    "３",
    "😀",
    "𝟓",
    "元",
    "。",
    "\x00",
    "\x7f",
    "*",
    "**",
    "_",
    "~",
    "!",
    "? ",
    ". ",
    ";",
]
MARKS = [
    "####", "##", "#", "\\boxed{", "\\fbox{", "\\boxed", "boxed{", "<answer>", "</answer>", "<answer", "A:", "a: ",
    "\nA: ", "\nA:", "answer is ", "The answer is ", "Answer:", "ANSWER: ", "answer", "<think>", "</think>", "</thin",
]  # fmt: skip
FEW_MARKS = [mark for mark in MARKS if "think" not in mark]
PIECES = [DIGITS, DIGITS, SIGNS, CURRENCIES, POINTS, BRACES, WORDS, WHITE, OTHER, MARKS]
NUMBER_PIECES = [DIGITS, DIGITS, DIGITS, SIGNS, CURRENCIES, POINTS, [" ", "\n"], ["\\frac{", "}{", "}"]]


def jumble(source: random.Random, most: int, pieces: list[list[str]] | None = None) -> bytes:
    """Up to ``most`` random pieces."""
    kinds = PIECES if pieces is None else pieces
    return "".join(source.choice(source.choice(kinds)) for _ in range(source.randint(0, most))).encode()


def digits(source: random.Random, most: int = 20) -> str:
    """Digits around the borders that count: 1, 3, 17, 18 and 19 of them, zeros in front and behind."""
    length = source.choice([1, 1, 2, 3, 4, 17, 18, 19, source.randint(1, most)])
    body = "".join(source.choice("0123456789") for _ in range(min(length, most)))
    return "0" * source.choice([0, 0, 0, 1, 3]) + body + "0" * source.choice([0, 0, 0, 2, 8])


def decimal(source: random.Random) -> str:
    """A decimal, with thousands commas or without."""
    whole = digits(source)
    if source.random() < 0.3:
        whole = f"{int(whole):,}"
    return source.choice([whole, whole, f"{whole}.{digits(source)}", f".{digits(source)}", f"{whole}."])


def number(source: random.Random) -> str:
    """A number as it may be written, mostly one that is read."""
    sign, currency = source.choice(["", "", "", *SIGNS[:3]]), source.choice(["", "", "", *CURRENCIES])
    exponent = source.choice(["", "", "", "e3", "E-2", "e+9999", "e-9999", f"e{source.randint(-40, 40)}", "e12345"])
    kinds: list[Callable[[], str]] = [
        lambda: decimal(source) + exponent,
        lambda: f"{decimal(source)}/{decimal(source)}",
        lambda: rf"\{source.choice(['', 'd', 't'])}frac{{{sign}{decimal(source)}}}{{{decimal(source)}}}",
    ]
    ahead = source.choice([sign + currency, currency + sign])
    behind = source.choice(["", "", "", "%", "\\%", *CURRENCIES])
    text = ahead + source.choice([kinds[0], *kinds])() + behind + source.choice(["", "", "."])
    return source.choice(["", " ", "\n"]) + text + source.choice(["", " ", "\t\n"])


def mutated(source: random.Random, text: str) -> str:
    """The text with one character taken out, doubled, put in or swapped."""
    at = source.randrange(len(text)) if text else 0
    other = source.choice(source.choice(NUMBER_PIECES))
    return source.choice(
        [text[:at] + text[at + 1 :], text[:at] + text[at:][:1] + text[at:], text[:at] + other + text[at:],
         text[:at] + other + text[at + 1 :]]
    )  # fmt: skip


def equal_to(source: random.Random, text: str) -> str:
    """Another text for (often) the same number."""
    plain = text.strip().rstrip(".")
    return source.choice(
        [text, f" {plain} ", f"${plain}", f"+{plain}", f"{plain}%", f"{plain}e0", f"{plain}0", f"{plain}.0",
         f"0{plain}", f"{plain}/1", f"-{plain}", f"{plain}1", rf"\frac{{{plain}}}{{1}}", f"{plain}/100", f"{plain}00%"]
    )  # fmt: skip


def answer(source: random.Random) -> bytes:
    """A response: some text, perhaps a thought, a mark, a number, more text."""
    marks = ["####", "#### ", "\\boxed{", "\\fbox{", "<answer>", "\nA: ", "answer is ", "Answer: ", "**Answer:** ", ""]
    ends = ["}", "}.", "</answer>", "", "\n", ".", " apples", ". So ", " or ", " million", "x", " m", "\\text{ cm}}"]
    parts = [
        jumble(source, 6) if source.random() < 0.5 else b"so 3 * 6 = 18. ".replace(b"6", digits(source, 3).encode())
    ]
    for _ in range(source.choice([1, 1, 1, 2])):
        said = number(source) if source.random() < 0.6 else digits(source, 3)
        near = source.choice(["", "", "", "x = ", "about ", "not ", "$", "3 or ", "\\text{is }", "x"])
        parts.append((source.choice(marks) + near + said.strip() + source.choice(ends)).encode())
        if source.random() < 0.2:
            parts.append(jumble(source, 4))
    if source.random() < 0.1:
        parts.insert(source.randrange(len(parts)), source.choice([b"<think>", b"</think>"]))
    return b"".join(parts)


def seeds() -> st.SearchStrategy[random.Random]:
    """Randomness that hypothesis keeps and repeats; drawn once for a batch, for drawing bytes one by one is slow."""
    return st.integers(0, 2**32 - 1).map(random.Random)
