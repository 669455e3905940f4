"""How a compiled template's tool calls are read, derived from what it writes."""

import json
import os.path
import re
from collections.abc import Callable
from typing import Any

from statelesschat.text.calls import DECODER, CallFormat, read_calls
from statelesschat.text.fields import Fields, ToolCall

_NAME, _ID, _SAID = "71039n93017", "58204i001", "71039said"
_KEYS, _VALUES = ("71039k1", "71039k2"), ("71039v1", "71039v2")
_ARGUMENTS = dict(zip(_KEYS, _VALUES, strict=True))


def format_of(write: Callable[[Fields], str]) -> CallFormat | None:
    """The format of the calls that ``write`` writes, None where none of the known styles fits."""

    def written(count: int, said: str = "") -> str:
        calls = [ToolCall(_NAME + "x" * i, json.dumps(_ARGUMENTS), f"{_ID[:-1]}{i}") for i in range(1, count + 1)]
        try:
            return write(Fields(said, tuple(calls)))
        except ValueError:
            return ""

    text, twice, said = written(1), written(2), written(1, _SAID)
    text = text[_start(text, said) :]
    found = _style_of(text, twice)
    if found is None:
        return None
    return found._replace(between=_behind_each(found, text, twice))


def _behind_each(found: CallFormat, text: str, twice: str) -> str:
    """What of the closing stands behind the first of two calls as well."""
    closing = found.closing.strip()
    end = text.rindex(closing) if closing else len(text)
    told = text[max(end - 24, 0) : end].rstrip()
    if not closing or told.endswith("]") or told not in twice:
        return closing if told not in twice else ""
    behind = twice[twice.index(told) + len(told) :].lstrip()
    same = os.path.commonprefix([closing, behind])
    if same == closing or closing[len(same)] in "<[\n ":
        return same.strip()
    return same[: max(same.rfind(">"), same.rfind("]")) + 1]  # no part of a mark


def _style_of(text: str, twice: str) -> CallFormat | None:
    name, identity = _NAME + "x", f"{_ID[:-1]}1"
    span = _json_span(text, text.find(_KEYS[0]), text.find(_VALUES[1]) + len(_VALUES[1]))
    if span is not None:
        return _json_style(text, name, identity, span) or _named_style(text, twice, name, identity, span)
    loose = re.search(rf"{name}\{{{_KEYS[0]}:(.*?){_VALUES[0]}(.*?),{_KEYS[1]}:", text)
    if loose is not None:
        opening, head = _heads(text[: loose.start()], _between(twice, "}", name, name, identity))
        closing = text[text.rindex("}") + 1 :]
        return CallFormat("loose", opening, head, value_close=loose[1], closing=closing)
    if re.search(rf"{name}\(\s*{_KEYS[0]}\s*=", text):
        return CallFormat(
            "python", text[: text.index(name)].rstrip("[( "), closing=text[text.rindex(")") + 1 :].lstrip("]) ")
        )
    return _tagged_style(text, twice, name, identity)


def _start(text: str, said: str) -> int:
    """Where calls begin in a text in which nothing is said beside them: behind what stands before anything said."""
    if _SAID not in said:
        return 0
    behind = said[said.index(_SAID) + len(_SAID) :]
    return len(text) - len(_whole_marks(_common_suffix(text, behind)))


def _whole_marks(text: str) -> str:
    """A text without the part of a mark it may begin with."""
    at = re.search(r"[<\[\s]", text)
    return text[at.start() :] if at is not None else text


def _json_span(text: str, first: int, last: int) -> tuple[int, int] | None:
    """The smallest stretch around two places that is a JSON object."""
    if first < 0:
        return None
    start = text.rfind("{", 0, first)
    while start >= 0:
        try:
            value, end = DECODER.raw_decode(text, start)
        except ValueError:
            end, value = -1, None
        if end >= last and isinstance(value, dict):
            return start, end
        start = text.rfind("{", 0, start)
    return None


def _json_style(text: str, name: str, identity: str, inner: tuple[int, int]) -> CallFormat | None:
    if name not in text:
        return None
    places = [*inner, text.index(name), text.index(name) + len(name)]
    span = _json_span(text, min(places), max(places))
    if span is None:
        return None
    value = json.loads(text[span[0] : span[1]])
    paths = [_path(value, name), _path(value, _ARGUMENTS), _path(value, identity)]
    if paths[0] is None or paths[1] is None:
        return None
    opening = text[: span[0]].rstrip().removesuffix("[").rstrip()
    closing = text[span[1] :].lstrip().removeprefix("]").lstrip()
    return CallFormat(
        "json",
        opening,
        closing=closing,
        keys=tuple(value),
        name_path=paths[0],
        arguments_path=paths[1],
        id_path=paths[2] or (),
    )


def _path(value: Any, wanted: Any) -> tuple[str, ...] | None:
    if value == wanted:
        return ()
    if isinstance(value, dict):
        for key, item in value.items():
            below = _path(item, wanted)
            if below is not None:
                return (key, *below)
    return None


def _named_style(text: str, twice: str, name: str, identity: str, span: tuple[int, int]) -> CallFormat | None:
    label = name if name in text[: span[0]] else identity
    at = text.find(label, 0, span[0])
    if at < 0:
        return None
    middle = text[at + len(label) : span[0]].replace(identity, "{id}")
    opening, head = _heads(text[:at], _between(twice, "}", label, name, identity))
    form = CallFormat("named", opening, head, middle, closing=text[span[1] :])
    return form._replace(label="id" if label == identity else "name")


def _tagged_style(text: str, twice: str, name: str, identity: str) -> CallFormat | None:
    places = [text.find(mark) for mark in (name, _KEYS[0], _VALUES[0], _KEYS[1], _VALUES[1])]
    if -1 in places or places != sorted(places):
        return None
    n, k1, v1, k2, v2 = places
    before_first, between = text[n + len(name) : k1], text[v1 + len(_VALUES[0]) : k2]
    key_open = _common_suffix(before_first, between)
    value_close = os.path.commonprefix([between[: len(between) - len(key_open)], text[v2 + len(_VALUES[1]) :]])
    key_close = text[k1 + len(_KEYS[0]) : v1]
    if not (key_open.strip() and key_close.strip() and value_close.strip()):
        return None
    opening, head = _heads(text[:n], _between(twice, _VALUES[1], name, name, identity))
    middle = before_first[: len(before_first) - len(key_open)].replace(identity, "{id}")
    closing = text[v2 + len(_VALUES[1]) + len(value_close) :]
    return CallFormat("tagged", opening, head, middle, key_open, key_close, value_close, closing)


def _between(twice: str, end: str, label: str, name: str, identity: str) -> str:
    """The text between two calls, from ``end`` of the first to the name of the second."""
    second = f"{name}x" if label == name else identity[:-1] + "2"
    at = twice.find(second)
    return twice[twice.rfind(end, 0, at) + len(end) : at] if at >= 0 else ""


def _heads(before: str, between: str) -> tuple[str, str]:
    """What stands before the first call only, and what before every one."""
    head = _common_suffix(before, between) if between else before
    head = _whole_marks(head) if head.strip() else before
    return before[: len(before) - len(head)], head


def _common_suffix(one: str, two: str) -> str:
    return os.path.commonprefix([one[::-1], two[::-1]])[::-1]


def reads_back(form: CallFormat, write: Callable[[Fields], str], said: bool) -> bool:
    """Whether what ``write`` writes is read as the calls it was given."""
    values: list[dict[str, Any]] = [
        {"city": "Paris"},
        {"query": 'a "quoted" word, {braces} and a \\ stroke', "limit": 5, "exact": True},
        {"text": "two\nlines\n\n and more", "ids": [1, 2]},
        {},
    ]
    for count, start in ((1, 0), (1, 1), (1, 2), (1, 3), (2, 0)):
        chosen = values[start : start + count]
        ids = "functions.look_up:{}" if form.label == "id" else "{}abcdefgh"
        calls = tuple(ToolCall("look_up", json.dumps(v), ids.format(i)) for i, v in enumerate(chosen))
        content = Fields("let me look" if said else "", calls)
        try:
            text = write(content)
        except ValueError:
            if count == 1:
                return False
            continue  # this template writes one call at a time
        read = read_calls(form, text)
        if read.error or [(c.name, json.loads(c.arguments)) for c in read.calls] != [("look_up", v) for v in chosen]:
            return False
        if content.content not in read.content:
            return False
    return True
