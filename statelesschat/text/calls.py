"""Reading tool calls out of an answer's text, in the way the compiled template itself writes them."""

import ast
import itertools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from statelesschat.text.fields import ToolCall

_NAME = re.compile(r"[\w.:/\-]+")
_NAMED = r"\s*(?P<name>[\w.:/\-]+)\s*"
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
    closing: str = ""  # behind the last call
    between: str = ""  # what of it stands behind every call
    keys: tuple[str, ...] = ()  # of the object, where nothing else marks a call
    label: str = "name"  # what stands where a name is expected: "name", or an "id" that holds it
    name_path: tuple[str, ...] = ()  # where in the object the name stands
    arguments_path: tuple[str, ...] = ()
    id_path: tuple[str, ...] = ()


class Reading(NamedTuple):
    """What an answer says and the calls it makes.

    ``content`` is all that stands outside the calls; ``error`` tells what is wrong with a call that cannot be read, and
    then ``content`` is the whole text; ``final`` says that nothing is said behind the calls.
    """

    content: str
    calls: tuple[ToolCall, ...] = ()
    error: str | None = None
    final: bool = False


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

    ``types`` gives, for each tool, its arguments' JSON types; a tagged argument that is no string is read as JSON. What
    stands in a thought that is closed by ``</think>`` calls nothing.
    """
    marker = form.opening.strip() if form.style in ("json", "python") else form.head.strip()
    thought = text.rfind("</think>") + 1
    at = text.find(marker, thought) if marker else _bare(text, thought)
    if at < 0:
        return Reading(text)
    calls: list[ToolCall] = []
    said: list[str] = []
    cursor = end = at
    try:
        for call, start, end in _READERS[form.style](form, text, at, types or {}):
            calls.append(call)
            said.append(text[cursor:start])
            cursor = end
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError | MemoryError) else str(error)
        return Reading(text, tuple(calls), f"call {len(calls) + 1} cannot be read: {reason}")
    if not calls:
        return Reading(text) if not marker else Reading(text, (), f"no call stands behind {marker!r}")
    rest = text[end:].strip().removeprefix(form.closing.strip().removeprefix(form.between.strip()).strip())
    before = text[:at].rstrip()
    if marker != form.opening.strip():
        before = before.removesuffix(form.opening.strip()).rstrip()
    words = [before, *(part.strip() for part in said), rest.strip()]
    return Reading("\n".join(word for word in words if word), tuple(calls), None, not rest.strip())


Found = tuple[ToolCall, int, int]  # a call, and where its text begins and ends


def _closed(form: CallFormat, text: str, at: int, name: str) -> int:
    """Where a call that must be closed here ends."""
    found = re.compile(r"\s*" + _literal(form.between)).match(text, at) if form.between.strip() else None
    if found is None and form.between.strip():
        raise ValueError(f"the call of {name} is not closed by {form.between.strip()!r}")
    return found.end() if found is not None else at


def _bare(text: str, begin: int) -> int:
    """Where an answer that is nothing but JSON begins."""
    begin = begin + len("</think>") - 1 if begin else 0
    start = _skip_space(text, begin)
    return start if text[start : start + 1] in ("{", "[") else -1


def _read_json(form: CallFormat, text: str, position: int, types: Mapping[str, Any]) -> Iterator[Found]:
    marker = form.opening.strip()
    while position >= 0:
        start = _skip_space(text, position + len(marker))
        try:
            value, end = DECODER.raw_decode(text, start)
        except ValueError as error:
            if not marker:
                return
            raise ValueError(f"it is no JSON ({error})") from None
        items = value if isinstance(value, list) else [value]
        names = [_get(item, form.name_path) for item in items]
        if not marker and not all(isinstance(item, dict) and set(item) == set(form.keys) for item in items):
            return
        end = _closed(form, text, end, str(names[0]) if names else "nothing")
        for item, name in zip(items, names, strict=True):
            if not isinstance(name, str) or not _NAME.fullmatch(name):
                raise ValueError(f"it has no {'.'.join(form.name_path)}")
            arguments = _get(item, form.arguments_path)
            if arguments is None:
                raise ValueError(f"the call of {name} has no {'.'.join(form.arguments_path)}")
            identity = _get(item, form.id_path) if form.id_path else None
            yield _call(name, arguments, identity), position, end
            position = end
        if marker:
            position = text.find(marker, end)
        else:
            more = re.compile(r"\s*[;,]?\s*(?=\{)").match(text, end)
            position = more.end() if more is not None else -1


def _get(value: Any, path: Sequence[str]) -> Any:
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def _call(name: str, arguments: Any, identity: Any) -> ToolCall:
    if isinstance(arguments, str):
        arguments = json.loads(arguments)
    if not isinstance(arguments, dict):
        raise ValueError(f"the arguments of {name} are no object")
    written = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
    written.encode()  # half a surrogate pair is no text
    return ToolCall(name, written, identity if isinstance(identity, str) else None)


def _read_named(form: CallFormat, text: str, start: int, types: Mapping[str, Any]) -> Iterator[Found]:
    pattern = re.compile(_literal(form.head) + _NAMED + _literal(form.middle) + r"\s*(?=\{)")
    while start >= 0:
        match = _begun(pattern, form, text, start)
        name, identity = _named(form, match)
        try:
            arguments, end = DECODER.raw_decode(text, match.end())
        except ValueError as error:
            raise ValueError(f"the arguments of {name} are no JSON ({error})") from None
        end = _closed(form, text, end, name)
        yield _call(name, arguments, identity), start, end
        start = text.find(form.head.strip(), end)


def _begun(pattern: re.Pattern[str], form: CallFormat, text: str, start: int) -> re.Match[str]:
    """The beginning of a call, up to its arguments."""
    match = pattern.match(text, start)
    if match is None:
        raise ValueError(f"no name and arguments stand behind {form.head.strip()!r}")
    return match


def _named(form: CallFormat, match: re.Match[str]) -> tuple[str, str | None]:
    """Name and id of a call; where only an id is written, as ``functions.name:0``, the name is part of it."""
    label = match["name"].strip()
    if form.label == "id":
        return re.sub(r":\d+$", "", label.removeprefix("functions.")), label
    return label, match.groupdict().get("id")


def _read_tagged(form: CallFormat, text: str, start: int, types: Mapping[str, Any]) -> Iterator[Found]:
    pattern = re.compile(_literal(form.head) + _NAMED + _literal(form.middle))
    key_close = re.escape(form.key_close.rstrip()) + ("\\n?" if form.key_close.endswith("\n") else "")
    key = re.compile(r"\s*" + _literal(form.key_open) + r"(?P<key>[^<>\n]*?)" + key_close)
    while start >= 0:
        match = _begun(pattern, form, text, start)
        name, identity = _named(form, match)
        arguments: dict[str, Any] = {}
        end = match.end()
        while argument := key.match(text, end):
            label = argument["key"].strip()
            if not label or label in arguments:
                raise ValueError(f"an argument of {name} has no name of its own")
            value, end = _value_until(form, key, text, argument.end(), f"argument {label} of {name}")
            arguments[label] = _typed(value, types.get(name, {}).get(label))
        end = _closed(form, text, end, name)
        yield _call(name, arguments, identity), start, end
        start = text.find(form.head.strip(), end)


def _value_until(form: CallFormat, key: re.Pattern[str], text: str, start: int, what: str) -> tuple[str, int]:
    """A value and where what closes it ends: the first closing mark behind which the call goes on or ends."""
    mark = form.value_close.strip()
    close = re.compile(r"\s*" + _literal(form.between))
    at = text.find(mark, start)
    while at >= 0:
        end = at + len(mark)
        if key.match(text, end) or close.match(text, end):
            before = form.value_close[: form.value_close.index(mark)]
            return text[start:at].removesuffix(before), end
        at = text.find(mark, end)
    raise ValueError(f"{what} is not closed by {mark!r}, or the call is not")


def _typed(value: str, kind: str | None) -> Any:
    if kind == "string":
        return value
    try:
        return json.loads(value)
    except ValueError:
        return _CONSTANTS.get(value.strip(), value)


def _read_python(form: CallFormat, text: str, position: int, types: Mapping[str, Any]) -> Iterator[Found]:
    start = position + len(form.opening.strip())
    close = form.closing.strip()
    end = text.find(close, start) if close else len(text)
    if end < 0:
        raise ValueError(f"it is not closed by {close!r}")
    body = text[start:end].strip()
    try:
        nodes: list[Any] = [part.value for part in ast.parse(body).body if isinstance(part, ast.Expr)]
    except (SyntaxError, ValueError) as error:
        raise ValueError(f"it is no Python ({error})") from None
    for node in itertools.chain.from_iterable(n.elts if isinstance(n, ast.List | ast.Tuple) else [n] for n in nodes):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name | ast.Attribute):
            raise ValueError("a call is name(key=value, …)")
        words = [word.arg for word in node.keywords]
        if node.args or None in words or len(set(words)) < len(words):
            raise ValueError("a call is name(key=value, …)")
        arguments = {str(word.arg): _value(word.value) for word in node.keywords}
        yield _call(ast.unparse(node.func), arguments, None), position, end + len(close)
        position = end + len(close)


def _value(node: ast.expr) -> Any:
    if isinstance(node, ast.Name) and node.id in ("true", "false", "null"):
        return json.loads(node.id)
    if isinstance(node, ast.List | ast.Tuple):
        return [_value(item) for item in node.elts]
    if isinstance(node, ast.Dict):
        if not all(isinstance(k, ast.Constant) and isinstance(k.value, str) for k in node.keys):
            raise ValueError("keys of an object are strings")
        return {_value(k): _value(v) for k, v in zip(node.keys, node.values, strict=True) if k is not None}
    return ast.literal_eval(node)


def _read_loose(form: CallFormat, text: str, start: int, types: Mapping[str, Any]) -> Iterator[Found]:
    pattern = re.compile(_literal(form.head) + _NAMED + r"(?=\{)")
    while start >= 0:
        match = _begun(pattern, form, text, start)
        try:
            arguments, end = _loose_value(text, match.end(), form.value_close)
        except (IndexError, ValueError):
            raise ValueError(f"the arguments of {match['name']} are not as the template writes them") from None
        end = _closed(form, text, end, match["name"])
        yield _call(match["name"], arguments, None), start, end
        start = text.find(form.head.strip(), end)


def _loose_value(text: str, at: int, quote: str) -> tuple[Any, int]:
    """A value and where it ends: objects and lists as in JSON, but keys bare and strings between two marks."""
    at = _skip_space(text, at)
    if text.startswith(quote, at):
        end = text.index(quote, at + len(quote))
        while text[_skip_space(text, end + len(quote)) :][:1] not in tuple(",}]:"):
            end = text.index(quote, end + 1)
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
    return _CONSTANTS[word.strip()] if word.strip() in _CONSTANTS else json.loads(word), at + len(word)


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
