"""Stored conversations as what a task's environment takes: a first prompt, an answer, and what is right."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from statelesschat.tasks.task import PLACE, Task
from statelesschat.text.inputs import text_of
from statelesschat.text.jsonfile import InputError, Located, name_of, parse, read_text

TEXT_KEYS = ("response", "solution", "completion", "output")
ID_KEYS = ("response_ids", "solution_ids", "completion_ids", "output_ids")


@dataclasses.dataclass(frozen=True)
class Stored:
    """An answer to be scored."""

    line: int  # where it begins in its file, from 1
    prompt: Any  # as `Codec.encode` takes it
    answer: str | list[int]  # text, or ids
    task: dict[str, Any]  # what the task reads of the row
    label: bool | None  # the row's own ``is_correct``


def read_stored(source: str, task: Task) -> list[Stored]:
    """The rows of a file (JSONL, a JSON array or object; ``"-"``: standard input) for a task.

    An answer stands under ``response``, ``solution``, ``completion`` or ``output`` as text or as a list of messages,
    under one of these with ``_ids`` as token ids, or is the last message of ``messages``. What comes before it is the
    prompt: ``prompt_ids``, the other ``messages``, or what the task asks. InputError names the line of a wrong row.
    """
    name = name_of(source)
    found = parse(read_text(source), name)
    if not found:
        raise InputError(f"{name}: holds no rows; give one JSON object on each line, with {task.columns} and an answer")
    return [_stored(item, index, task, name) for index, item in enumerate(found)]


def _stored(item: Located, index: int, task: Task, name: str) -> Stored:
    raw = item.value
    try:
        if not isinstance(raw, Mapping):
            raise ValueError(f"a row is an object with {task.columns} and an answer, not a {type(raw).__name__}")
        before, answer = _answer(raw)
        asked = {} if raw.get("question") is not None else {"question": _last_question(before)}
        fields = {**task.read({**raw, **asked}), PLACE: index}
        prompt = {"prompt_ids": raw["prompt_ids"]} if raw.get("prompt_ids") is not None else before or fields["prompt"]
        label = raw.get("is_correct")
        if label is not None and label not in (True, False):
            raise ValueError(f"is_correct is {str(label)[:40]!r}; give true or false")
        return Stored(item.line, prompt, answer, fields, None if label is None else bool(label))
    except (ValueError, TypeError) as error:
        raise InputError(f"{name}:{item.line}: {error}") from None


def _answer(raw: Mapping[str, Any]) -> tuple[list[Any], str | list[int]]:
    """The messages before the answer, if they are given, and the answer."""
    messages = raw.get("messages")
    for key in (*ID_KEYS, *TEXT_KEYS):
        value = raw.get(key)
        if value is None:
            continue
        before = _messages(messages, "messages") if messages is not None else []
        if key in ID_KEYS:
            if not isinstance(value, list) or not all(isinstance(i, int) and not isinstance(i, bool) for i in value):
                raise ValueError(f"{key} is {str(value)[:40]!r}; give a list of token ids")
            return before, value
        if isinstance(value, list):
            return before, _spoken(_messages(value, key)[-1], key)
        return before, text_of(value)
    if messages is None:
        raise ValueError(f"no answer to score; give {', '.join(TEXT_KEYS)}, one of these with _ids, or messages")
    history = _messages(messages, "messages")
    if history[-1].get("role") != "assistant":
        raise ValueError("the last of messages is no assistant's; there is no answer to score")
    return history[:-1], _spoken(history[-1], "messages")


def _messages(value: Any, key: str) -> list[Any]:
    if not isinstance(value, list) or not value or not all(isinstance(m, Mapping) and "role" in m for m in value):
        raise ValueError(f"{key} is {str(value)[:40]!r}; give a list of messages with role and content")
    return value


def _spoken(message: Mapping[str, Any], key: str) -> str:
    try:
        return text_of(message.get("content"))
    except ValueError as error:
        raise ValueError(f"the answer in {key}: {error}") from None


def _last_question(before: Sequence[Mapping[str, Any]]) -> str | None:
    asked = [message.get("content") for message in before if message.get("role") == "user"]
    return asked[-1] if asked and isinstance(asked[-1], str) else None
