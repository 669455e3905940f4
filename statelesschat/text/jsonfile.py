"""JSON values and the lines they begin on, from a file or standard input."""

import json
import re
import sys
from pathlib import Path
from typing import Any, NamedTuple

_SPACE = re.compile(r"[ \t\r\n]*")
_FAULTS = (ValueError, RecursionError)  # what json raises: broken JSON, numbers too long, lists too deep


class InputError(ValueError):
    """Input that cannot be read; its message is one line that says where, what, and what to do."""


class Located(NamedTuple):
    """A JSON value and the line on which it begins, counted from 1."""

    line: int
    value: Any


def read_text(source: str) -> str:
    """The text of a UTF-8 file, or of standard input for ``"-"``, without a byte order mark.

    Raises InputError for what cannot be read: no such file, a folder, another encoding (with the line number).

    Example:
        >>> read_text("no/such/file")
        Traceback (most recent call last):
        statelesschat.text.jsonfile.InputError: no/such/file: cannot be read (No such file or directory)
    """
    name = name_of(source)
    try:
        data = sys.stdin.buffer.read() if source == "-" else Path(source).read_bytes()
    except (OSError, ValueError) as error:
        raise InputError(f"{name}: cannot be read ({getattr(error, 'strerror', None) or error})") from None
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise InputError(f"{name}:1: this is UTF-16; save it as UTF-8")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        start = error.start + (3 if data.startswith(b"\xef\xbb\xbf") else 0)
        line, byte = data.count(b"\n", 0, start) + 1, data[start]
        raise InputError(f"{name}:{line}: not UTF-8 (byte 0x{byte:02x}); save it as UTF-8") from None


def name_of(source: str) -> str:
    """What messages call a source."""
    return "standard input" if source == "-" else source


def parse(text: str, name: str) -> list[Located]:
    r"""JSON values of a text: one on each line (blank lines skipped), or one array of them, or a single object.

    Args:
        text: the whole text.
        name: what error messages call it.

    Raises:
        InputError: what is not JSON, with its line.

    Example:
        >>> parse('{"a": 1}\n\n{"a": 2}', "x")
        [Located(line=1, value={'a': 1}), Located(line=3, value={'a': 2})]
        >>> parse('[{"a": 1},\n {"a": 2}]', "x")
        [Located(line=1, value={'a': 1}), Located(line=2, value={'a': 2})]
    """
    lines = [(i, line) for i, line in enumerate(text.split("\n"), 1) if line.strip()]
    if not lines:
        return []
    found: list[Located] = []
    for number, line in lines:
        try:
            found.append(Located(number, json.loads(line)))
        except _FAULTS as error:
            if found:
                raise _not_json(name, number, error) from None
            try:
                return _document(text)
            except _FAULTS as other:
                by_line = len(lines) > 1 and _is_object(lines[1][1])
                where = (number, error) if by_line else (getattr(other, "lineno", number), other)
                raise _not_json(name, *where) from None
    if len(found) == 1 and isinstance(found[0].value, list):
        return _document(text)
    return found


def _document(text: str) -> list[Located]:
    """The elements of one array over several lines, or a single value; raises what json does."""
    value = json.loads(text)
    at = _skip(text, 0)
    line = 1 + text.count("\n", 0, at)
    if not isinstance(value, list) or is_history(value):
        return [Located(line, value)]
    elements: list[Located] = []
    decoder = json.JSONDecoder()
    at += 1
    for _ in value:
        start = _skip(text, at)
        line += text.count("\n", at, start)
        element, end = decoder.raw_decode(text, start)
        elements.append(Located(line, element))
        comma = _skip(text, end)
        line += text.count("\n", start, comma)
        at = comma + 1
    return elements


def is_history(value: Any) -> bool:
    """Whether a JSON value is a list of messages."""
    return isinstance(value, list) and bool(value) and all(isinstance(m, dict) and "role" in m for m in value)


def _skip(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return found.end() if found else at


def _is_object(line: str) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except _FAULTS:
        return False


def _not_json(name: str, line: int, error: Exception) -> InputError:
    if isinstance(error, json.JSONDecodeError):
        reason = f"{error.msg} at column {error.colno}"
    else:
        reason = "lists too deep" if isinstance(error, RecursionError) else str(error)
    return InputError(f"{name}:{line}: not JSON ({reason}); give one JSON value on each line, or one array of objects")
