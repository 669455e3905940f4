"""Messages that are more than a text: tool calls, and tool results that name what they answer."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple


class ToolCall(NamedTuple):
    """A call of a tool: its name, its arguments as JSON of an object, and the id that its result refers to."""

    name: str
    arguments: str
    id: str | None = None


class Fields(NamedTuple):
    """A message with tool calls (``calls``), or a tool result with what it says of the call it answers."""

    content: str
    calls: tuple[ToolCall, ...] = ()
    name: str | None = None
    call_id: str | None = None


Content = str | Fields
_PLAIN = re.compile(r"[\w.:/\-]+")  # no character that a control token is made of


def text_part(content: Content) -> str:
    """What is said in a message, its calls and references apart."""
    return content.content if isinstance(content, Fields) else content


def message_dict(role: str, content: Content, arguments: str = "dict", blank: str = "empty") -> dict[str, Any]:
    """A message as templates read it; ``arguments``: calls carry a ``"dict"``, or its JSON as a ``"string"``.

    ``blank``: with calls and nothing said the content is ``"empty"`` or ``"null"``.
    """
    if isinstance(content, str):
        return {"role": role, "content": content}
    said = None if content.calls and blank == "null" and not content.content else content.content
    message: dict[str, Any] = {"role": role, "content": said}
    if content.calls:
        message["tool_calls"] = [_call_dict(call, arguments) for call in content.calls]
    if content.name is not None:
        message["name"] = content.name
    if content.call_id is not None:
        message["tool_call_id"] = content.call_id
    return message


def _call_dict(call: ToolCall, arguments: str) -> dict[str, Any]:
    values = call.arguments if arguments == "string" else json.loads(call.arguments)
    entry: dict[str, Any] = {"type": "function", "function": {"name": call.name, "arguments": values}}
    return entry if call.id is None else {"type": "function", "id": call.id, "function": entry["function"]}


def strings_of(content: Content) -> list[str]:
    """Every string that the message's author wrote freely: said text, keys and values of arguments."""
    found: list[str] = []
    map_strings(content, lambda text: (found.append(text), text)[1])
    return found


def map_strings(content: Content, change: Callable[[str], str]) -> Content:
    """The same message with every string of `strings_of` changed."""
    if isinstance(content, str):
        return change(content)
    calls = tuple(
        c._replace(arguments=json.dumps(_mapped(json.loads(c.arguments), change), ensure_ascii=False))
        for c in content.calls
    )
    return content._replace(content=change(content.content), calls=calls)


def reference_of(value: Any, what: str) -> str | None:
    """A name or an id, checked."""
    if value is None:
        return None
    if not isinstance(value, str) or not _PLAIN.fullmatch(value):
        raise ValueError(f"{what} is {value!r}; give letters, digits and any of _ . : / - only")
    return value


def _mapped(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, list):
        return [_mapped(item, change) for item in value]
    if isinstance(value, dict):
        return {change(key): _mapped(item, change) for key, item in value.items()}
    return value


def calls_of(calls: Any) -> tuple[ToolCall, ...]:
    """Tool calls as messages carry them; ValueError says which one cannot be read.

    A call is ``{"function": {"name": …, "arguments": …}, "id": …}`` or ``{"name": …, "arguments": …}``; arguments are
    a mapping or its JSON.
    """
    if isinstance(calls, Mapping | str) or not isinstance(calls, Sequence):
        raise ValueError("tool_calls is no list; give a list of calls")
    return tuple(_call_of(call, index) for index, call in enumerate(calls))


def _call_of(call: Any, index: int) -> ToolCall:
    if isinstance(call, ToolCall):
        return call
    body = call.get("function", call) if isinstance(call, Mapping) else None
    name = body.get("name") if isinstance(body, Mapping) else None
    if not isinstance(body, Mapping) or name is None:
        raise ValueError(f"tool call {index} has no name; a call is {{'function': {{'name': …, 'arguments': …}}}}")
    arguments = given = body.get("arguments", {})
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"tool call {index}: arguments are no JSON ({error})") from None
    if not isinstance(arguments, Mapping):
        raise ValueError(f"tool call {index}: arguments are a {type(arguments).__name__}; give a mapping or its JSON")
    identity = reference_of(call.get("id"), f"the id of tool call {index}")
    label = reference_of(name, f"the name of tool call {index}") or ""
    try:
        written = json.dumps(arguments, allow_nan=False, ensure_ascii=False)
        written.encode()
        _check_keys(arguments)
        return ToolCall(label, given if isinstance(given, str) else written, identity)
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"tool call {index}: arguments cannot be written as JSON ({error})") from None


def _check_keys(value: Any) -> None:
    if isinstance(value, Mapping):
        wrong = [key for key in value if not isinstance(key, str)]
        if wrong:
            raise ValueError(f"the key {wrong[0]!r} is no string")
    for item in value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ():
        _check_keys(item)


def specs_of(tools: Any) -> tuple[str, ...]:
    """Tool specs as JSON, one each; functions are described by their signature and docstring, as transformers does."""
    if tools is None:
        return ()
    if isinstance(tools, Mapping | str) or not isinstance(tools, Sequence):
        raise TypeError(f"tools is a {type(tools).__name__}; give a list of specs or functions")
    return tuple(_spec_of(tool, index) for index, tool in enumerate(tools))


def _spec_of(tool: Any, index: int) -> str:
    if callable(tool):
        from transformers.utils.chat_template_utils import get_json_schema

        try:
            tool = get_json_schema(tool)
        except Exception as error:  # it reads docstrings and annotations that others wrote
            first = str(error).partition("\n")[0]
            raise ValueError(f"tools[{index}]: this function cannot be described ({first}); give its spec") from None
    body = tool.get("function", tool) if isinstance(tool, Mapping) else None
    if not isinstance(body, Mapping) or not isinstance(body.get("name"), str):
        raise ValueError(
            f"tools[{index}] has no name; a spec is {{'type': 'function', 'function': {{'name': …, 'parameters': …}}}}"
        )
    try:
        return json.dumps(tool, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"tools[{index}] ({body['name']}) cannot be written as JSON: {error}") from None
