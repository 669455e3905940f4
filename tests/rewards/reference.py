r"""What `statelesschat.rewards` says it does, once more on the host, by `re`, `fractions` and bytes methods.

Written from the docstrings. Texts are bytes, a missing one is None; everything is about whole texts unless it says so.
"""

import re
from decimal import Decimal
from fractions import Fraction
from typing import NamedTuple

WHITE = b" \t\n\r\x0b\x0c"
SIGN = rb"(?:[+-]|\xe2\x88\x92)"
CURRENCY = rb"(?:\\\$|\$|\xc2\xa3|\xe2\x82\xac|\xc2\xa5|\xe2\x82\xb9)"
DECIMAL = rb"(?:(?:[1-9][0-9]{0,2}(?:,[0-9]{3})+|[0-9]+)(?:\.[0-9]*)?|\.[0-9]+)"
_NUMBER = re.compile(
    b"(?P<ahead>%(sign)s?|%(sign)s%(currency)s|%(currency)s%(sign)s?)"
    b"(?:(?P<simple>%(decimal)s(?:[eE][+-]?[0-9]{1,4})?)"
    b"|(?P<top>%(decimal)s)/(?P<bottom>%(decimal)s)"
    rb"|\\[dt]?frac\{(?P<inner>%(sign)s?)(?P<above>%(decimal)s)\}\{(?P<below>%(decimal)s)\})"
    rb"(?:%(currency)s?|(?P<percent>\\?%%))" % {b"sign": SIGN, b"currency": CURRENCY, b"decimal": DECIMAL}
)


class Value(NamedTuple):
    """A number that was read; ``bare`` is it without its percent sign."""

    value: Fraction
    bare: Fraction
    percent: bool


def parse_decimal(text: bytes | None) -> Value | None:
    if text is None:
        return None
    text = text.strip(WHITE)
    if len(text) > 64:
        return None
    found = _NUMBER.fullmatch(text) or (_NUMBER.fullmatch(text[:-1]) if text.endswith(b".") else None)
    if found is None:
        return None
    parts = [found[name] for name in ("simple", "top", "bottom", "above", "below") if found[name] is not None]
    if any(significant(part) > 18 for part in parts):
        return None
    numbers = [Fraction(Decimal(part.replace(b",", b"").decode())) for part in parts]
    if len(numbers) == 2 and numbers[1] == 0:
        return None
    value = numbers[0] / numbers[1] if len(numbers) == 2 else numbers[0]
    for signs in (found["ahead"], found["inner"] or b""):
        if re.search(rb"-|\xe2\x88\x92", signs):
            value = -value
    return Value(value / 100 if found["percent"] else value, value, bool(found["percent"]))


def significant(part: bytes) -> int:
    digits = re.sub(rb"[eE].*|[.,]", b"", part)
    return len(digits.strip(b"0"))


def same_number(one: Value | None, other: Value | None, percent_or_not: bool = False) -> bool:
    if one is None or other is None:
        return False
    left_out = percent_or_not and one.percent != other.percent and one.bare == other.bare
    return one.value == other.value or left_out


def count(text: bytes, pattern: bytes) -> int:
    return len(re.findall(b"(?=%s)" % re.escape(pattern), text, re.DOTALL))


def until(text: bytes, closing: bytes, nested: bytes = b"") -> bytes | None:
    if not nested:
        before, found, _ = text.partition(closing)
        return before if found else None
    depth = 0
    tokens = re.finditer(rb"\\.|" + re.escape(nested) + b"|" + re.escape(closing), text, re.DOTALL)
    for token in tokens:  # a backslash and what it stands before are one
        depth += (token[0] == nested) - (token[0] == closing)
        if depth < 0:
            return text[: token.start()]
    return None


def between(text: bytes, opening: bytes, closing: bytes, nested: bool = False) -> bytes | None:
    starts = [m.start() + len(opening) for m in re.finditer(b"(?=%s)" % re.escape(opening), text, re.DOTALL)]
    if nested:
        return until(text[starts[-1] :], closing, opening[-1:]) if starts else None
    closed = [text[start:] for start in starts if closing in text[start:]]
    return until(closed[-1], closing) if closed else None


def tag_format(text: bytes, tags: tuple[str, ...] = ("think", "answer")) -> bool:
    names = [tag.encode() for tag in tags]
    white = b"[%s]*" % WHITE
    pattern = white + white.join(b"<%s>.*</%s>" % (name, name) for name in names) + white
    once = all(text.count(form % name) == 1 for name in names for form in (b"<%s>", b"</%s>"))
    return once and re.fullmatch(pattern, text, re.DOTALL) is not None


def length_penalty(length: int, limit: int, margin: int) -> Fraction:
    if length <= limit - margin:
        return Fraction(0)
    return max(Fraction(limit - margin - length, margin), Fraction(-1))


def repetition_penalty(ids: list[int], ngram: int, largest: int = 1) -> Fraction:
    grams = [tuple(ids[i : i + ngram]) for i in range(len(ids) - ngram + 1)]
    return -largest * (1 - Fraction(len(set(grams)), len(grams))) if grams else Fraction(0)


class Answer(NamedTuple):
    """As the device's; ``whole`` is False where a line goes on beyond the 256 bytes looked at."""

    text: bytes | None
    marked: bool = False
    enclosed: bool = False
    whole: bool = True


_MARK = re.compile(
    rb"(?=(?P<tag><answer>)|(?P<box>\\boxed\{|\\fbox\{)|(?P<line>\#\#\#\#|(?i:answer(?::|[ ]is))|^[Aa]:))",
    re.MULTILINE | re.VERBOSE,
)


def spoken(text: bytes) -> bytes | None:
    """What is said behind the thoughts; None where a thought is not over."""
    said = text.rpartition(b"</think>")[2]
    return None if b"<think>" in said else said


def final_answer(text: bytes) -> Answer:
    said = spoken(text)
    marks = list(_MARK.finditer(said)) if said is not None else []
    if said is None or not marks:
        return Answer(None)
    mark = marks[-1]
    rest = said[mark.start() + len(mark["tag"] or mark["box"] or mark["line"]) :]
    near = rest[:256]
    if mark["tag"] or mark["box"]:
        content = until(near, b"</answer>") if mark["tag"] else until(near, b"}", b"{")
        return Answer(None if content is None else content.strip(WHITE), True, True)
    line = near.lstrip(WHITE + b":*")
    whole = len(rest) <= 256 or b"\n" in line
    return Answer(line.partition(b"\n")[0].strip(WHITE) if whole else line, True, False, whole)


_CORE = rb"(?:(?<![A-Za-z.])\.)?[0-9]+(?:(?:[.,/:^]|[eE][+-]?)[0-9]+)*"
_SIGNED = rb"(?<![0-9A-Za-z)\]}%%])%(sign)s"
_AHEAD = re.compile(
    b"(?:%(currency)s?%(signed)s|(?:%(signed)s)?%(currency)s)\\Z"
    % {b"currency": CURRENCY, b"signed": _SIGNED % {b"sign": SIGN}}
)
_WORDS_AHEAD = re.compile(r"(?ai:minus|negative|not|n't|than|at least|at most)[ \t\-~*_]{0,4}\Z")
_WORDS_BEHIND = re.compile(
    r"[ \t\-~*_]{0,4}(?ai:hundred|thousand|million|billion|trillion|lakh|crore|dozen"
    r"|squared|cubed|and a half|or(?![a-z]))"
)
_TOUCHING = "±²³¹¼½¾×÷Ͱ-Ͽ٠-٬۰-۹०-९‰‱⁄⁰-ₜ⅐-↏∀-⋿０-９\U0001d400-\U0001d7ff"  # noqa: RUF001
_TOUCHED_AHEAD = re.compile(f"[-+/^{_TOUCHING}\u2010-\u2013\uff0b\uff0d-\uff0f]\\Z")
_TOUCHED_BEHIND = re.compile(f"[A-Za-z^{_TOUCHING}]")


def number_runs(text: bytes) -> list[tuple[int, int]]:
    """Where what reads as one number begins and ends, signs, currencies and percent signs included."""
    runs = []
    for core in re.finditer(_CORE, text):
        ahead = _AHEAD.search(text, 0, core.start())
        behind = re.compile(rb"\\?%").match(text, core.end())
        runs.append((ahead.start() if ahead else core.start(), behind.end() if behind else core.end()))
    return runs


def changed_beside(text: bytes, start: int, end: int) -> bool:
    before, after = text[:start].decode(errors="replace"), text[end:].decode(errors="replace")
    stuck = re.search(r"[A-Za-z]\Z", before) and re.match(rb"[0-9.]", text[start:])
    return bool(
        stuck
        or _TOUCHED_AHEAD.search(before)
        or _TOUCHED_BEHIND.match(after)
        or re.search(r"[0-9] \Z", before)
        or _WORDS_AHEAD.search(before)
        or _WORDS_BEHIND.match(after)
    )


def only_words_beside(text: bytes, start: int, end: int) -> bool:
    beside = [i for i in range(len(text)) if not start <= i < end]
    plain = re.compile(rb"[A-Za-z \t\n\r=:.,{}$~]|\\text\{|\\ |\\,")
    lone = {m.start() for m in re.finditer(rb"(?<![A-Za-z])[B-Zb-z](?![A-Za-z]|=| =|\})", text)}
    return all(plain.match(text, i) and i not in lone for i in beside)


def final_number(text: bytes) -> Value | None:
    said, answer = spoken(text), final_answer(text)
    where = answer.text if answer.marked else said
    if where is None:
        return None
    runs = number_runs(where)
    if answer.marked and answer.whole and (whole := parse_decimal(where)):
        return whole
    if not runs:
        return None
    start, end = runs[0] if answer.marked else runs[-1]
    if answer.enclosed and not only_words_beside(where, start, end):
        return None
    if answer.marked and not answer.enclosed:
        stop = re.compile(b"[.!?;](?=[%s]|%s)" % (WHITE, rb"\Z" if answer.whole else b"(?!)")).search(where, end)
        if not stop and not answer.whole:
            return None
        if re.search(rb"[0-9]", where[end : stop.start() if stop else None]):
            return None
    return None if changed_beside(where, start, end) else parse_decimal(where[start:end])
