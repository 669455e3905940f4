"""Contents that stand out: sentinels in place of what messages say, and renders taken apart around them."""

import json
import re
from collections.abc import Sequence
from typing import NamedTuple

from statelesschat.core.types import Kind
from statelesschat.text.fields import Content, Fields, ToolCall


class Displaced(ValueError):
    """A content stands elsewhere than in its turn: left out, repeated or out of order."""

    def __init__(self, kind: int, what: str, kinds: Sequence[int]) -> None:
        self.kind, self.what, self.kinds = int(kind), what, tuple(kinds)
        order = ", ".join(Kind(k).name.lower() for k in kinds)
        super().__init__(f"the {Kind(kind).name.lower()} content is {what} in the conversation [{order}]")


class Shape(NamedTuple):
    """How often a template writes the fields of a tool call and of a tool result, and where a call ends."""

    said: int = 0  # the text of a message with calls
    call_name: int = 1
    call_id: int = 0
    result_name: int = 0
    result_id: int = 0
    stop: str = ""  # the control token that ends a message with calls
    blank: str = "empty"  # what a message with calls has for content where nothing is said: "empty" or "null"
    arguments: str = "dict"  # how calls carry their arguments: "dict" or "string"

    @property
    def refers(self) -> tuple[str, ...]:
        """The fields besides its content that a tool result is written with."""
        found = ("name", self.result_name), ("tool_call_id", self.result_id)
        return tuple(name for name, count in found if count)


class Segments(NamedTuple):
    """A render with sentinels, taken apart: ``gaps[i]`` stands before content ``i``, the last one behind."""

    gaps: tuple[str, ...]
    spans: tuple[tuple[int, int], ...]  # where each content stands
    text: str


def sentinels(count: int, beside: Sequence[str] = ()) -> list[str]:
    """Contents that no template writes of itself, that case, trimming and escaping leave alone.

    None of them stands in the contents given as ``beside``.
    """
    for salt in range(10_000):
        stem = f"71039{salt:04d}"
        if not any(stem in content for content in beside):
            return [f"{stem}{i:03d}93017" for i in range(count)]
    raise ValueError("these contents hold every sentinel there is")


def identity(index: int) -> str:
    """An id of a call: nine letters and digits, which is what the strictest templates ask for."""
    return f"58204q{index:03d}"


def marks(kinds: Sequence[int], shape: Shape | None) -> list[Content]:
    """A sentinel content for each message; calls and their results share names and ids."""
    plain = sentinels(3 * len(kinds))
    contents: list[Content] = list(plain[: len(kinds)])
    if shape is None:
        return contents
    for index, kind in enumerate(kinds):
        if kind == Kind.CALL:
            results = results_behind(kinds, index)
            calls = [_call(i, plain[len(kinds) + i], plain[2 * len(kinds) + i]) for i in results or [index]]
            contents[index] = Fields(plain[index] if shape.said else "", tuple(calls))
            for i, call in zip(results, calls, strict=False):
                contents[i] = Fields(plain[i], (), call.name, call.id)
    return contents


def value_mark(content: Content) -> str:
    """The sentinel in the arguments of a marked message's first call."""
    assert isinstance(content, Fields)
    return json.loads(content.calls[0].arguments)["key"]


def results_behind(kinds: Sequence[int], index: int) -> list[int]:
    """The tool results right behind a message."""
    end = index + 1
    while end < len(kinds) and kinds[end] == Kind.TOOL:
        end += 1
    return list(range(index + 1, end))


def _call(index: int, name: str, value: str) -> ToolCall:
    return ToolCall(name, json.dumps({"key": value}), identity(index))


def take_apart(text: str, kinds: Sequence[int], contents: Sequence[Content], shape: Shape | None) -> Segments:
    """Where marked contents stand, once each and in order; Displaced where they do not.

    Of a message with fields it is the stretch from its first field to its last.
    """
    gaps, spans, position = [], [], 0
    for kind, content in zip(kinds, contents, strict=True):
        start, end = _find(text, position, kind, kinds, content, shape)
        gaps.append(text[position:start])
        spans.append((start, end))
        position = end
    return Segments((*gaps, text[position:]), tuple(spans), text)


def _find(
    text: str, position: int, kind: int, kinds: Sequence[int], content: Content, shape: Shape | None
) -> tuple[int, int]:
    wanted: list[tuple[str, int]] = []
    if isinstance(content, str) or shape is None:
        unique = str(content)
    elif content.calls:
        unique = value_mark(content)
        wanted += [(content.content, 1)] if content.content else []
        for call in content.calls:
            wanted += [(json.loads(call.arguments)["key"], 1), (call.name, shape.call_name)]
            wanted += [(call.id or "", shape.call_id)]
    else:
        unique = content.content
        wanted += [(content.name or "", shape.result_name), (content.call_id or "", shape.result_id)]
    count = text.count(unique)
    if count != 1:
        raise Displaced(kind, "left out" if count == 0 else f"written {count} times", kinds)
    if text.index(unique) < position:
        raise Displaced(kind, "moved before an earlier one", kinds)
    start, end = text.index(unique), text.index(unique) + len(unique)
    for mark, times in wanted:
        at = position - 1
        for turn in range(times):
            at = text.find(mark, at + 1)
            if at < 0:
                raise Displaced(kind, "not written with all of its fields", kinds)
            if turn == 0:
                start = min(start, at)
        if times:
            end = max(end, at + len(mark))
    return start, end


def split_at(text: str, parts: Sequence[str]) -> list[str]:
    """The stretches of a text between parts that must stand in it once each and in order; ValueError otherwise."""
    if any(text.count(part) != 1 for part in parts):
        raise ValueError("a mark is missing or repeated")
    between = re.split("|".join(map(re.escape, parts)), text) if parts else [text]
    return between
