"""What the host says, made to fit into the room that a message has."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from statelesschat.core.types import Message
from statelesschat.text.codec import Codec
from statelesschat.text.inputs import TooLongError

_TRIES = 24
_NOTE = re.compile(r"\n\[(\d+)(?: of \d+)? bytes left out\]\n")


def cut(text: str, size: int) -> str:
    r"""Head and tail of a text, ``size`` characters of it in all, and between them how many bytes are left out.

    Example:
        >>> cut("0123456789" * 10, 10)
        '01234\n[90 bytes left out]\n56789'
    """
    if len(text) <= size:
        return text
    head = (size + 1) // 2
    tail = size - head
    between = text[head : len(text) - tail]
    left_out = len(between.encode("utf-8", "surrogatepass"))
    for note in _NOTE.finditer(between):  # what was cut before is left out too
        left_out += int(note[1]) - len(note[0])
    return f"{text[:head]}\n[{left_out} bytes left out]\n{text[len(text) - tail :]}"


def fit_messages(
    codec: Codec,
    role: Any,
    contents: Sequence[str | Mapping[str, Any]],
    previous: Sequence[Any],
    following: Sequence[Any],
    width: int,
) -> Message:
    """Messages encoded, of those that are too long head and tail, with a note of the bytes between; axis B.

    Raises:
        ValueError: not even the note fits into ``width`` ids.
    """
    contents = [_clean(content) for content in contents]
    try:
        return codec.encode_messages(role, contents, previous=previous, next=following, width=width)
    except TooLongError:
        pass
    rows = [
        _fitted(codec, role, content, before, after, width)
        for content, before, after in zip(contents, previous, following, strict=True)
    ]
    joined: Any = [np.concatenate([getattr(row, name) for row in rows]) for name in ("tokens", "length", "header")]
    return Message(*joined)


def _fitted(codec: Codec, role: Any, content: str | Mapping[str, Any], before: Any, after: Any, width: int) -> Message:
    text = content if isinstance(content, str) else str(content["content"])
    size = len(text)
    for _ in range(_TRIES):
        shorter = cut(text, size)
        said = shorter if isinstance(content, str) else {**content, "content": shorter}
        try:
            return codec.encode_messages(role, [said], previous=[before], next=[after], width=width)
        except TooLongError:
            if not size:
                break
            size = min(size * 3 // 4, 4 * width)
    raise ValueError(
        f"a reply has no room: messages are {width} ids wide, and what the template writes around them takes most of "
        "it; raise max_message_len"
    )


def _clean(content: str | Mapping[str, Any]) -> str | Mapping[str, Any]:
    """Without halves of surrogate pairs, which no tokenizer takes."""
    if isinstance(content, str):
        return content.encode("utf-8", "replace").decode() if not content.isascii() else content
    return {key: _clean(value) if isinstance(value, str) else value for key, value in content.items()}
