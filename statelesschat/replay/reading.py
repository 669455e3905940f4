"""Conversations from the shapes in which data sets hold them."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from statelesschat.core.types import Role
from statelesschat.text.draft import ANSWERS
from statelesschat.text.fields import Content
from statelesschat.text.inputs import linked, message_of, text_of
from statelesschat.text.jsonfile import InputError, Located, is_history, name_of, parse, read_text
from statelesschat.text.render import DEFAULT_ROLES

KEYS = ("messages", "turns", "prompt", "question")
ANSWER_KEYS = ("answers", "turns", "answer", "solution", "choices")
_ID_KEYS = ("id", "question_id")
T = TypeVar("T")


class Record(NamedTuple):
    """A conversation as it was read."""

    line: int  # where it begins in its file, from 1
    id: str | None  # its ``id`` or ``question_id``
    kinds: tuple[int, ...]  # a `Role` for each message, or CALL
    contents: tuple[Content, ...]
    waiting: tuple[str, ...] = ()  # further user messages, each behind an answer that is yet to come

    @property
    def prompt(self) -> int:
        """How many messages stand before the first answer: an assistant message that follows another's."""
        others = [i for i, kind in enumerate(self.kinds) if kind not in ANSWERS]
        answers = [i for i, kind in enumerate(self.kinds) if kind in ANSWERS and i > others[0]]
        return answers[0] if answers else len(self.kinds)


def read_conversations(source: str) -> list[Record]:
    """The conversations of a file, or of standard input for ``"-"``.

    The file holds a JSON value on each line, one array of them, or one object. A conversation is a list of messages,
    or an object with one of these keys, looked for in this order:

    * ``messages``: a list of ``{"role", "content"}``;
    * ``turns``: a list of user texts, whose answers come from elsewhere (`answer_records`);
    * ``prompt``: a text or a list of messages;
    * ``question``: a user text, and its answer under ``answer`` or ``solution`` if there is one.

    Raises InputError, which names the file, the line and what to do.
    """
    return records_of(read_text(source), name_of(source))


def records_of(text: str, name: str) -> list[Record]:
    """The conversations of a text, as `read_conversations` reads them; errors call it ``name``.

    Example:
        >>> records_of('{"question": "2+3?", "answer": "5"}', "x")
        [Record(line=1, id=None, kinds=(1, 2), contents=('2+3?', '5'), waiting=())]
    """
    found = parse(text, name)
    if not found:
        raise InputError(f"{name}: holds no conversations; give one JSON object on each line, with {_list(KEYS)}")
    return [_at(name, item, _record) for item in found]


def read_answers(source: str) -> list[tuple[str | None, tuple[str, ...], int]]:
    """The lines of an answers file, as (id, answers, line).

    A line is a text, a list of texts, null for none, or an object that holds either under ``answers``, ``turns``,
    ``answer`` or ``solution``, or the first of its ``choices`` (``turns``, or ``message.content``).
    """
    name = name_of(source)
    return [(*_at(name, item, _answers), item.line) for item in parse(read_text(source), name)]


def answer_records(records: Sequence[Record], source: str) -> list[Record]:
    """The conversations, those without an answer given theirs from an answers file.

    Lines are matched by ``id`` or ``question_id`` where all of them, and all conversations that need answers, have
    one; else by order, line by line. Answers that are fewer than the user's turns leave the rest undriven.

    Raises InputError where the two files do not fit together.
    """
    name = name_of(source)
    lines = read_answers(source)
    needy = [i for i, record in enumerate(records) if record.prompt == len(record.kinds)]
    matched: dict[int, tuple[tuple[str, ...], int]] = {}
    if lines and all(key is not None for key, _, _ in lines) and all(records[i].id is not None for i in needy):
        keyed: dict[str | None, tuple[tuple[str, ...], int]] = {}
        for key, answers, line in lines:
            if key in keyed:
                raise InputError(f"{name}:{line}: id {key} stands on line {keyed[key][1]} already; give each once")
            keyed[key] = answers, line
        matched = {i: keyed[records[i].id] for i in needy if records[i].id in keyed}
        if needy and not matched:
            raise InputError(f"{name}: none of its ids is that of a conversation; leave ids out to match by order")
    elif len(lines) != len(records):
        raise InputError(
            f"{name}: {len(lines)} lines for {len(records)} conversations; give one for each, null where there is no "
            "answer, or an id on every line of both files"
        )
    else:
        matched = {i: lines[i][1:] for i in needy}
    return [_answered(r, *matched[i], name) if i in matched else r for i, r in enumerate(records)]


def _answered(record: Record, answers: Sequence[str], line: int, name: str) -> Record:
    room = 1 + len(record.waiting)
    if len(answers) > room:
        raise InputError(
            f"{name}:{line}: {len(answers)} answers for a conversation with {room} user turns (line {record.line}); "
            "give at most one for each"
        )
    kinds, contents = list(record.kinds), list(record.contents)
    for index, answer in enumerate(answers):
        kinds.append(int(Role.ASSISTANT))
        contents.append(answer)
        if index < len(record.waiting):
            kinds.append(int(Role.USER))
            contents.append(record.waiting[index])
    return record._replace(kinds=tuple(kinds), contents=tuple(contents), waiting=record.waiting[len(answers) :])


def _record(item: Located) -> Record:
    line, value = item
    if is_history(value):
        return _history(line, None, value)
    if not isinstance(value, Mapping):
        raise ValueError(f"a conversation is an object with {_list(KEYS)}, not {_json_name(value)}")
    key = next((k for k in KEYS if value.get(k) is not None), None)
    if key is None:
        raise ValueError(f"none of the keys {_list(KEYS)} among {', '.join(map(repr, value)) or 'none'}; rename one")
    held = value[key]
    if key == "messages" or (key == "prompt" and not isinstance(held, str)):
        if not isinstance(held, list) or not held:
            raise ValueError(f"{key} is {_json_name(held)}; give a list of messages with role and content")
        return _history(line, _id(value), held)
    if key == "turns":
        first, *rest = _texts(held, key)
        return Record(line, _id(value), (int(Role.USER),), (first,), tuple(rest))
    answer = next((value[k] for k in ("answer", "solution") if value.get(k) is not None), None)
    texts = [_text(held, key)]
    if key == "question" and answer is not None:
        texts.append(_text(answer, "the answer"))
    return Record(line, _id(value), (int(Role.USER), int(Role.ASSISTANT))[: len(texts)], tuple(texts))


def _history(line: int, key: str | None, messages: Sequence[Any]) -> Record:
    kinds, contents = zip(*(message_of(m, i, DEFAULT_ROLES) for i, m in enumerate(messages)), strict=True)
    contents = linked(kinds, contents)
    if all(kind in ANSWERS for kind in kinds):
        raise ValueError("all its messages are the assistant's; begin with what it answers")
    record = Record(line, key, kinds, contents)
    for index in range(record.prompt + 1, len(kinds)):
        if kinds[index - 1] in ANSWERS and kinds[index] in ANSWERS:
            raise ValueError(f"message {index} is an answer right behind another; join the two")
    return record


def _answers(item: Located) -> tuple[str | None, tuple[str, ...]]:
    value = item.value
    if not isinstance(value, Mapping):
        return None, _answer_texts(value, "the line")
    key = next((k for k in ANSWER_KEYS if value.get(k) is not None), None)
    if key is None:
        raise ValueError(f"none of the keys {_list(ANSWER_KEYS)}; give the answers under one of them")
    held = value[key]
    if key == "choices":
        first = held[0] if isinstance(held, list) and held else None
        message = first.get("message") if isinstance(first, Mapping) else None
        turns = first.get("turns") if isinstance(first, Mapping) else None
        held = message.get("content") if isinstance(message, Mapping) else turns
        if held is None:
            raise ValueError("choices holds no turns and no message; give the first choice one of them")
    return _id(value), _answer_texts(held, key)


def _answer_texts(value: Any, name: str) -> tuple[str, ...]:
    if value is None or value == []:
        return ()
    return (_text(value, name),) if isinstance(value, str) else tuple(_texts(value, name))


def _texts(value: Any, name: str) -> list[str]:
    if not isinstance(value, list) or not value:
        raise ValueError(f"{name} is {_json_name(value)}; give a list of texts")
    return [_text(text, f"text {index} of {name}") for index, text in enumerate(value)]


def _text(value: Any, name: str) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{name} is {_json_name(value)}; give a text")
    try:
        return text_of(value)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


def _id(value: Mapping[str, Any]) -> str | None:
    key = next((value[k] for k in _ID_KEYS if value.get(k) is not None), None)
    return None if key is None else str(key)


def _at(name: str, item: Located, function: Callable[[Located], T]) -> T:
    try:
        return function(item)
    except ValueError as error:
        raise InputError(f"{name}:{item.line}: {error}") from None


def _list(names: Sequence[str]) -> str:
    return f"{', '.join(names[:-1])} or {names[-1]}"


def _json_name(value: Any) -> str:
    if isinstance(value, list | dict | str) and not value:
        return {list: "an empty list", dict: "an empty object", str: "an empty text"}[type(value)]
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    names = {list: "a list", dict: "an object", str: "a text", int: "a number", float: "a number"}
    return names[type(value)]
