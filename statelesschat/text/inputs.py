"""Reading what callers hand over: prompts, histories and rows, checked before any device work."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from statelesschat.core.types import Kind, Role
from statelesschat.text.fields import Content, Fields, calls_of, reference_of, text_part
from statelesschat.text.marks import results_behind
from statelesschat.text.render import role_of

PROMPT_KEYS = ("messages", "prompt", "query", "prompt_ids")
_UNWRITTEN = ("reasoning_content", "reasoning", "thinking", "function_call", "images", "audio", "videos")


Reads = Callable[[str, str], bool]  # whether the template writes a message's key, by role name


class TooLongError(ValueError):
    """Rows that the config has no room for; ``rows`` says of each, by its index in the batch, what is too long."""

    def __init__(self, message: str, rows: Mapping[int, str] | None = None) -> None:
        super().__init__(message)
        self.rows = dict(rows or {})


class Conversation(NamedTuple):
    """A prompt as roles and contents, or as ids (then ``kinds`` and ``contents`` are empty)."""

    kinds: tuple[int, ...]
    contents: tuple[Content, ...]
    ids: tuple[int, ...] | None = None


def rows_of(items: Any) -> list[Any]:
    """The rows of a batch: one string, one history and one dict are a batch of one."""
    if isinstance(items, str | Mapping):
        return [items]
    if isinstance(items, set | frozenset):
        raise TypeError("a set of prompts has no order; give a list")
    try:
        rows = list(items)
    except TypeError:
        raise TypeError(
            f"prompts come as a string, a history or a list of either, not as {type(items).__name__}"
        ) from None
    if not rows:
        raise ValueError("the batch is empty; give at least one prompt")
    if all(isinstance(row, Mapping) and "role" in row for row in rows):
        return [rows]
    return rows


def conversation_of(row: Any, names: Sequence[str], key: str | None, reads: Reads | None = None) -> Conversation:
    """A prompt from a string, a history or a dict that holds one under ``key`` or one of `PROMPT_KEYS`."""
    if isinstance(row, Mapping):
        if key is not None and key not in row:
            raise ValueError(f"no key {key!r} among {sorted(map(str, row))}")
        found = key or next((k for k in PROMPT_KEYS if row.get(k) is not None), None)
        if found is None:
            raise ValueError(f"none of the keys {', '.join(PROMPT_KEYS)} among {sorted(map(str, row))}; pass key=...")
        if found == "prompt_ids":
            return Conversation((), (), tuple(ids_of(row[found])))
        row = row[found]
    if isinstance(row, str):
        return Conversation((int(Role.USER),), (text_of(row),))
    if isinstance(row, Mapping) or not isinstance(row, Sequence):
        raise ValueError(f"a prompt is a string or a list of messages, not {_kind_of(row)}")
    if not row:
        raise ValueError("the history is empty; give at least one message")
    kinds, contents = zip(*(message_of(m, i, names, reads) for i, m in enumerate(row)), strict=True)
    return Conversation(kinds, linked(kinds, contents))


def message_of(message: Any, index: int, names: Sequence[str], reads: Reads | None = None) -> tuple[int, Content]:
    """Kind and content of a message dict; ValueError names what is wrong with it."""
    if not isinstance(message, Mapping) or "role" not in message:
        raise ValueError(f"message {index} is {_kind_of(message)}; a message is a dict with role and content")
    try:
        role = role_of(message["role"], names)
        if message.get("tool_calls") and role != Role.ASSISTANT:
            raise ValueError(f"a {names[role]} message has tool_calls; only an assistant's can")
        check_keys(message, role.name.lower(), reads)
        content = answer_of(message) if role == Role.ASSISTANT else result_of(message, role == Role.TOOL)
    except ValueError as error:
        raise ValueError(f"message {index}: {error}") from None
    return int(Kind.CALL if isinstance(content, Fields) and content.calls else role), content


def check_keys(message: Mapping[str, Any], role: str, reads: Reads | None) -> None:
    """Raise ValueError for keys that the template would write and that nothing here does."""
    known = {"role", "content", "tool_calls", "finish_reason"} | ({"name", "tool_call_id"} if role == "tool" else set())
    others = [str(key) for key, value in message.items() if key not in known and value not in (None, "", [], {})]
    lost = [key for key in others if key in _UNWRITTEN or (reads is not None and reads(role, key))]
    if lost:
        raise ValueError(f"{', '.join(lost)} would be lost; write it into the content as the template does")


def answer_of(message: Mapping[str, Any]) -> Content:
    """The content of an assistant's message: a text, or fields if it calls tools."""
    if not message.get("tool_calls"):
        return text_of(message.get("content"))
    said = message.get("content")
    return Fields("" if said is None else text_of(said), calls_of(message["tool_calls"]))


def result_of(content: Any, tool: bool = True) -> Content:
    """The content of any other message: a text, or fields if it is a tool result that says what it answers."""
    if not isinstance(content, Mapping):
        return text_of(content)
    text = text_of(content.get("content"))
    name, identity = content.get("name"), content.get("tool_call_id")
    if not tool or (name is None and identity is None):
        return text
    return Fields(text, (), reference_of(name, "name"), reference_of(identity, "tool_call_id"))


def linked(kinds: Sequence[int], contents: Sequence[Content]) -> tuple[Content, ...]:
    """Contents with every tool result referring to its call; ValueError where they are out of order."""
    made = list(contents)
    for index, (kind, content) in enumerate(zip(kinds, contents, strict=True)):
        if kind != Kind.CALL or not isinstance(content, Fields):
            continue
        results = results_behind(kinds, index)
        if len(results) > len(content.calls):
            raise ValueError(f"message {results[len(content.calls)]}: a tool result to no call of message {index}")
        for i, call in zip(results, content.calls, strict=False):
            result = made[i] if isinstance(made[i], Fields) else Fields(text_part(made[i]))
            assert isinstance(result, Fields)
            for what, one, other in (("tool_call_id", result.call_id, call.id), ("name", result.name, call.name)):
                if one is not None and other is not None and one != other:
                    raise ValueError(
                        f"message {i}: {what} is {one!r}, but the call in its place is {other!r}; give the results "
                        "in the order of the calls"
                    )
            made[i] = Fields(result.content, (), result.name or call.name, result.call_id or call.id)
    return tuple(made)


def text_of(content: Any) -> str:
    """The text of a content: a string, or a list of text parts, which are joined."""
    if content is None:
        raise ValueError("content is None; give a string, the empty one if nothing is said")
    if isinstance(content, list | tuple):
        parts = []
        for part in content:
            kind = part.get("type", "text") if isinstance(part, Mapping) else type(part).__name__
            if not isinstance(part, str) and (kind != "text" or not isinstance(part.get("text"), str)):
                raise ValueError(f"a content part of type {kind!r}; only text can be encoded")
            parts.append(part if isinstance(part, str) else part["text"])
        content = "".join(parts)
    if not isinstance(content, str):
        raise ValueError(f"content is {_kind_of(content)}; give a string")
    try:
        content.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"content has half a surrogate pair at character {error.start}, which no text file can hold; "
            'clean it with content.encode("utf-8", "replace").decode()'
        ) from None
    return content


def ids_of(ids: Any, vocab_size: int | None = None) -> list[int]:
    """Token ids as ints, checked against the vocabulary."""
    array = np.asarray(ids)
    if array.size == 0:
        return []
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise ValueError(f"token ids must be a flat list of integers, not {array.dtype} of shape {array.shape}")
    if vocab_size is not None and (array.min() < 0 or array.max() >= vocab_size):
        wrong = int(array.min() if array.min() < 0 else array.max())
        raise ValueError(f"id {wrong} is outside the vocabulary of {vocab_size} ids")
    return [int(i) for i in array]


def per_row(value: Any, count: int, what: str) -> list[Any]:
    """One value for each row: a scalar is repeated, a sequence must have one for each."""
    if isinstance(value, str) or not hasattr(value, "__len__") or getattr(value, "ndim", 1) == 0:
        return [value] * count
    if len(value) != count:
        raise ValueError(f"{what} has {len(value)} entries for {count} rows")
    return np.asarray(value).tolist() if hasattr(value, "dtype") else list(value)


def logprobs_of(values: Any, count: int) -> np.ndarray:
    """Log-probabilities of one answer, float32, one for each id; ValueError where they cannot be ones."""
    array = np.asarray(values, np.float32)
    if array.shape != (count,):
        raise ValueError(f"{array.size} logprobs for {count} ids; give one for each sampled id")
    if not np.isfinite(array).all():
        at = int(np.flatnonzero(~np.isfinite(array))[0])
        raise ValueError(f"logprob {at} is {array[at]}; a sampled id has a finite log-probability")
    if (array > 1e-3).any():
        at = int(np.flatnonzero(array > 1e-3)[0])
        raise ValueError(f"logprob {at} is {array[at]}, above 0; give natural logs of probabilities")
    return array


def kind_name(kind: int, names: Sequence[str]) -> str:
    """The role name of a message's kind; a prompt given as ids is a ``"prompt"``."""
    if kind == Kind.RAW:
        return "prompt"
    return names[kind] if kind < len(names) else names[Role.ASSISTANT]


def _kind_of(value: Any) -> str:
    return "None" if value is None else f"a {type(value).__name__}"
