"""The tool calls in an answer, in the template's own way, as XML, or as fenced code."""

import json
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from statelesschat.host.tool import Tool
from statelesschat.text.codec import Codec

FORMATS = ("template", "xml", "fence")
_XML = re.compile(r"<tool(?P<attributes>\s[^<>]*)?>(?P<body>.*?)(?P<end></tool>|\Z)", re.DOTALL)
_ATTRIBUTE = re.compile(r"""(\w+)\s*=\s*(?:"([^"]*)"|'([^']*)')""")
_FENCE = re.compile(r"^```(?P<name>[\w+-]+)[^\n]*\n(?P<body>.*?)(?P<end>^```[ \t]*$|\Z)", re.DOTALL | re.MULTILINE)


class Call(NamedTuple):
    """One call; ``error`` says what is wrong with one that cannot be run."""

    name: str
    arguments: dict[str, Any]
    id: str | None = None
    error: str | None = None


def find_calls(codec: Codec, tools: Sequence[Tool], formats: Sequence[str], answer: str) -> list[Call]:
    """The calls of an answer, in order, in the first of the formats that it has any of.

    ``"xml"`` is ``<tool name="NAME">BODY</tool>`` or ``<tool>NAME``, a new line and ``BODY</tool>``; ``"fence"`` a
    block of code that begins with three backticks and a name of `Tool.fences`. A body is a JSON object of arguments,
    or, for a tool whose only required argument is a string, that string. What stands in a thought closed by
    ``</think>`` calls nothing.
    """
    by_name = {tool.name: tool for tool in tools}
    for form in formats:
        if form == "template":
            calls = _template(codec, answer)
        elif form == "xml":
            calls = [_xml(by_name, match) for match in _XML.finditer(_behind_thought(answer))]
        else:
            calls = _fenced(tools, _behind_thought(answer))
        if calls:
            return [_checked(by_name, call) for call in calls]
    return []


def _behind_thought(answer: str) -> str:
    return answer.rpartition("</think>")[2]


def _checked(by_name: dict[str, Tool], call: Call) -> Call:
    """The call, with an error if no tool takes it."""
    if call.error is not None:
        return call
    tool = by_name.get(call.name)
    if tool is None:
        return call._replace(error=f"there is no tool {call.name!r}; there are {', '.join(by_name)}")
    try:
        tool.check(call.arguments)
    except ValueError as error:
        return call._replace(error=str(error))
    return call


def _template(codec: Codec, answer: str) -> list[Call]:
    reading = codec.read_calls([answer])[0]
    calls = [Call(call.name, json.loads(call.arguments), call.id) for call in reading.calls]
    if reading.error is not None:
        calls.append(Call("", {}, error=reading.error))
    return calls


def _xml(by_name: dict[str, Tool], match: re.Match[str]) -> Call:
    attributes = {m[1]: m[2] if m[2] is not None else m[3] for m in _ATTRIBUTE.finditer(match["attributes"] or "")}
    body = match["body"]
    name, identity = attributes.get("name"), attributes.get("id")
    if name is None:
        first, _, body = body.lstrip().partition("\n")
        name = first.strip()
    if not match["end"]:
        return Call(name, {}, identity, "the call is not closed by </tool>")
    return _with_body(by_name.get(name), name, body, identity)


def _fenced(tools: Sequence[Tool], answer: str) -> list[Call]:
    by_fence = {fence: tool for tool in tools for fence in tool.fences}
    calls = []
    for match in _FENCE.finditer(answer):
        tool = by_fence.get(match["name"].lower())
        if tool is None:
            continue
        if not match["end"]:
            calls.append(Call(tool.name, {}, error="the block of code is not closed by ```"))
        else:
            calls.append(Call(tool.name, {tool.main or "": match["body"]}))
    return calls


def _with_body(tool: Tool | None, name: str, body: str, identity: str | None) -> Call:
    """A call from the text of its arguments."""
    text = body.strip()
    known = set(tool.parameters) if tool is not None else None
    try:
        value = json.loads(text) if text else {}
    except (ValueError, RecursionError) as error:
        value, wrong = None, str(error)
    else:
        wrong = f"its arguments are {text[:40]!r}, which is no JSON object"
    if isinstance(value, dict) and (known is None or not tool or tool.main is None or set(value) <= known):
        return Call(name, value, identity)
    if tool is not None and tool.main is not None:
        return Call(name, {tool.main: body.strip("\n")}, identity)
    return Call(name, {}, identity, f"the call of {name} cannot be read: {wrong}")
