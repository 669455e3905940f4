"""Reading tool calls out of an answer's text, in the way the compiled template itself writes them."""

import ast
import itertools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from statelesschat.text.fields import ToolCall

_CONSTANTS = {"True": True, "False": False, "None": None}  # some templates write these as Python does
DECODER = json.JSONDecoder()


class CallFormat(NamedTuple):
    """How calls stand in an answer's text.

    ``style`` is ``"json"`` (an object with name and arguments, or a list of such), ``"named"`` (a name, then
    arguments as JSON), ``"loose"`` (the same with bare keys and marks of its own around strings), ``"tagged"`` (a
    name, then each argument between marks) or ``"python"`` (``name(key=value)``).
    The other fields are the stretches of text between them, ``{id}`` where a call's id stands.
    """

    style: str
    opening: str  # what stands before the first call
    head: str = ""  # before a name
    middle: str = ""  # between name and arguments
    key_open: str = ""
    key_close: str = ""
    value_close: str = ""
    closing: str = ""  # behind a call
    label: str = "name"  # what stands where a name is expected: "name", or an "id" that holds it
    name_path: tuple[str, ...] = ()  # where in the object the name stands
    arguments_path: tuple[str, ...] = ()
    id_path: tuple[str, ...] = ()


class Reading(NamedTuple):
    """What an answer says and the calls it makes; ``error`` tells what is wrong with a call that cannot be read."""

    content: str
    calls: tuple[ToolCall, ...] = ()
    error: str | None = None


def argument_types(tools: Sequence[str]) -> dict[str, dict[str, str]]:
    """The JSON type of every argument of every tool, from their specs as JSON."""
    types: dict[str, dict[str, str]] = {}
    for tool in map(json.loads, tools):
        body = tool.get("function", tool)
        parameters = body.get("parameters") or {}
        known = parameters.get("properties") if isinstance(parameters, dict) else None
        entries = known.items() if isinstance(known, dict) else ()
        types[body["name"]] = {key: str(spec.get("type")) for key, spec in entries if isinstance(spec, dict)}
    return types


def read_calls(form: CallFormat, text: str, types: Mapping[str, Mapping[str, str]] | None = None) -> Reading:
    """The calls in an answer's text, control tokens written out and the stop token left out.

    ``types`` gives, for each tool, its arguments' JSON types; a tagged argument that is no string is read as JSON.
    """
    reader = {
        "json": _read_json,
        "named": _read_named,
        "loose": _read_loose,
        "tagged": _read_tagged,
        "python": _read_python,
    }[form.style]
    marker = form.opening.strip() if form.style in ("json", "python") else form.head.strip()
    at = text.find(marker) if marker else _bare(text)
    if at < 0:
        return Reading(text)
    content = text[:at].rstrip()
    if marker != form.opening.strip():
        content = content.removesuffix(form.opening.strip()).rstrip()
    calls: list[ToolCall] = []
    try:
        for call in reader(form, text[at:], types or {}):
            calls.append(call)
    except ValueError as error:
        return Reading(content, tuple(calls), str(error))
    if not calls:
        return Reading(text) if not marker else Reading(content, (), "no call could be read behind its opening")
    return Reading(content, tuple(calls))


def _bare(text: str) -> int:
    """Where an answer that is nothing but JSON begins."""
    start = len(text) - len(text.lstrip())
    return start if text[start : start + 1] in ("{", "[") else -1


def _read_json(form: CallFormat, text: str, types: Mapping[str, Any]) -> Iterator[ToolCall]:
    marker, position = form.opening.strip(), 0
    while True:
        position = text.find(marker, position)
        if position < 0:
            return
        start = _skip_space(text, position + len(marker))
        try:
            value, position = DECODER.raw_decode(text, start)
        except ValueError as error:
            if not marker:
                return
            raise ValueError(f"the call is no JSON ({error})") from None
        for item in value if isinstance(value, list) else [value]:
            name, arguments = _get(item, form.name_path), _get(item, form.arguments_path)
            if not isinstance(name, str):
                if not marker:
                    return
                raise ValueError(f"the call has no {'.'.join(form.name_path)}")
            identity = _get(item, form.id_path) if form.id_path else None
            yield _call(name, {} if arguments is None else arguments, identity)
        if not marker:
            rest = re.match(r"\s*[;,]?\s*(?=\{)", text[position:])
            if rest is None:
                return
            position += rest.end()


def _get(value: Any, path: Sequence[str]) -> Any:
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def _call(name: str, arguments: Any, identity: Any) -> ToolCall:
    if isinstance(arguments, str):
        arguments = json.loads(arguments)
    if not isinstance(arguments, dict):
        raise ValueError(f"the arguments of {name} are no object")
    return ToolCall(name.strip(), json.dumps(arguments), identity if isinstance(identity, str) else None)


def _read_named(form: CallFormat, text: str, types: Mapping[str, Any]) -> Iterator[ToolCall]:
    pattern = re.compile(_literal(form.head) + r"\s*(?P<name>[\w.:/\- ]+?)\s*" + _literal(form.middle) + r"\s*(?=\{)")
    position, found = 0, False
    while match := pattern.search(text, position):
        found = True
        try:
            arguments, position = DECODER.raw_decode(text, match.end())
        except ValueError as error:
            raise ValueError(f"the arguments of {match['name']} are no JSON ({error})") from None
        name, identity = _named(form, match)
        yield _call(name, arguments, identity)
    if not found:
        raise ValueError(f"no name and arguments stand behind {form.head.strip() or form.opening.strip()!r}")


def _named(form: CallFormat, match: re.Match[str]) -> tuple[str, str | None]:
    """Name and id of a call; where only an id is written, as ``functions.name:0``, the name is part of it."""
    label = match["name"].strip()
    if form.label == "id":
        return re.sub(r":\d+$", "", label.removeprefix("functions.")), label
    return label, match.groupdict().get("id")


def _read_tagged(form: CallFormat, text: str, types: Mapping[str, Any]) -> Iterator[ToolCall]:
    pattern = re.compile(_literal(form.head) + r"\s*(?P<name>[\w.:/\- ]+)\s*" + _literal(form.middle))
    key_close = re.escape(form.key_close.rstrip()) + ("\\n?" if form.key_close.endswith("\n") else "")
    key = re.compile(r"\s*" + _literal(form.key_open) + r"(?P<key>.+?)" + key_close, re.DOTALL)
    position = 0
    while match := pattern.search(text, position):
        position = match.end()
        name, identity = _named(form, match)
        arguments: dict[str, Any] = {}
        while argument := key.match(text, position):
            start = argument.end()
            end, position = _end_of(text, start, form.value_close)
            if end < 0:
                raise ValueError(f"argument {argument['key']} of {name} is not closed by {form.value_close.strip()!r}")
            arguments[argument["key"].strip()] = _typed(
                text[start:end], types.get(name, {}).get(argument["key"].strip())
            )
        yield _call(name, arguments, identity)


def _end_of(text: str, start: int, close: str) -> tuple[int, int]:
    """Where a value ends and where what closes it does; white space at its edge is the template's if it writes some."""
    at = text.find(close, start)
    bare = text.find(close.strip(), start)
    if at < 0 or (0 <= bare < at):
        return bare, bare + len(close.strip())
    return at, at + len(close)


def _typed(value: str, kind: str | None) -> Any:
    if kind == "string":
        return value
    try:
        return json.loads(value)
    except ValueError:
        return _CONSTANTS.get(value.strip(), value)


def _read_python(form: CallFormat, text: str, types: Mapping[str, Any]) -> Iterator[ToolCall]:
    body = text.strip().removeprefix(form.opening.strip()).removesuffix(form.closing.strip()).strip()
    try:
        nodes: list[Any] = [part.value for part in ast.parse(body).body if isinstance(part, ast.Expr)]
    except (SyntaxError, ValueError) as error:
        raise ValueError(f"the call is no Python ({error})") from None
    for node in itertools.chain.from_iterable(n.elts if isinstance(n, ast.List | ast.Tuple) else [n] for n in nodes):
        if not isinstance(node, ast.Call) or node.args or any(word.arg is None for word in node.keywords):
            raise ValueError("a call is name(key=value, …)")
        arguments = {str(word.arg): _value(word.value) for word in node.keywords}
        yield _call(ast.unparse(node.func), arguments, None)


def _value(node: ast.expr) -> Any:
    if isinstance(node, ast.Name) and node.id in ("true", "false", "null"):
        return json.loads(node.id)
    if isinstance(node, ast.List | ast.Tuple):
        return [_value(item) for item in node.elts]
    if isinstance(node, ast.Dict):
        return {_value(k): _value(v) for k, v in zip(node.keys, node.values, strict=True) if k is not None}
    return ast.literal_eval(node)


def _read_loose(form: CallFormat, text: str, types: Mapping[str, Any]) -> Iterator[ToolCall]:
    pattern = re.compile(_literal(form.head) + r"\s*(?P<name>[\w.:/\- ]+?)\s*(?=\{)")
    position = 0
    while match := pattern.search(text, position):
        try:
            arguments, position = _loose_value(text, match.end(), form.value_close)
        except (IndexError, ValueError):
            raise ValueError(f"the arguments of {match['name']} cannot be read") from None
        yield _call(match["name"], arguments, None)


def _loose_value(text: str, at: int, quote: str) -> tuple[Any, int]:
    """A value and where it ends: objects and lists as in JSON, but keys bare and strings between two marks."""
    at = _skip_space(text, at)
    if text.startswith(quote, at):
        end = text.index(quote, at + len(quote))
        return text[at + len(quote) : end], end + len(quote)
    if text[at] in "{[":
        close, found = "}" if text[at] == "{" else "]", []
        at = _skip_space(text, at + 1)
        while text[at] != close:
            key = ""
            if close == "}" and text.startswith(quote, at):
                key, at = _loose_value(text, at, quote)
                at = text.index(":", at) + 1
            elif close == "}":
                key, _, _ = text[at:].partition(":")
                at += len(key) + 1
            value, at = _loose_value(text, at, quote)
            found.append((key.strip(), value))
            at = _skip_space(text, at)
            at = _skip_space(text, at + 1) if text[at] == "," else at
        return (dict(found) if close == "}" else [value for _, value in found]), at + 1
    match = re.compile(r"[^,\]}]*").match(text, at)
    word = match[0] if match is not None else ""
    return json.loads(word.strip()), at + len(word)


def _literal(text: str) -> str:
    """A pattern for a stretch of the template's text, its white space loosely; ``{id}`` is an id."""
    words = [re.escape(word).replace(re.escape("{id}"), r"(?P<id>[\w.:/\-]+)") for word in text.split()]
    return r"\s*".join(words)


def _skip_space(text: str, at: int) -> int:
    while at < len(text) and text[at].isspace():
        at += 1
    return at


_READERS = {
    "json": _read_json,
    "named": _read_named,
    "loose": _read_loose,
    "tagged": _read_tagged,
    "python": _read_python,
}
