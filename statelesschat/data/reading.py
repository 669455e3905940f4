"""One row of a source, as it comes, to what is encoded of it."""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from statelesschat.core.types import Role
from statelesschat.data.options import PROMPTS, RowError, RowOptions

_SHOWN = 20  # columns that a message lists


@dataclasses.dataclass(frozen=True)
class Row:
    """A row that was read, not yet encoded."""

    index: int  # in the source
    prompt: dict[str, Any]  # as `Codec.encode` takes it
    script: tuple[str, ...] | None  # the user's later turns; None where the row is not given as turns
    turn_limit: Any  # None: as the config says
    fields: dict[str, Any]  # all columns, ours by our names


def read_rows(raws: Iterable[tuple[int, Any]], options: RowOptions) -> Iterator[Row]:
    """Rows with their index in the source; ValueError or TypeError names the row and what to do."""
    for index, raw in raws:
        try:
            row = _read(index, raw, options)
        except (ValueError, TypeError) as error:
            raise type(error)(f"{options.place(index)}: {error}") from error.__cause__
        yield row


def _read(index: int, raw: Any, options: RowOptions) -> Row:
    fields = _fields(raw, options)
    name = _prompt_name(fields, options)
    for column in options.info:
        _need(fields, column, "info")
    value, script = fields[name], None
    if value is None:
        raise ValueError(f"{name} is None; give a prompt in every row")
    if name == "prompt_ids" and not len(value):
        raise ValueError("prompt_ids is empty; give at least one id")
    last = value[-1] if isinstance(value, list | tuple) and value else None
    if isinstance(last, Mapping) and last.get("role") == options.codec.config.template.roles[Role.ASSISTANT]:
        raise ValueError("the history ends in an answer, so nothing is asked; leave the answer out")
    if name == "turns":
        value, script = _turns(value)
    prompt = {"prompt_ids": value} if name == "prompt_ids" else {"prompt": value}
    return Row(index, prompt, script, fields.get("turn_limit"), fields)


def _fields(raw: Any, options: RowOptions) -> dict[str, Any]:
    """The row as a dict, mapped and renamed."""
    if options.map is not None:
        try:
            mapped = options.map(raw)
        except RowError as error:
            raise ValueError(str(error)) from None
        except Exception as error:
            raise ValueError(f"map raised {type(error).__name__}: {error}") from error
        if not isinstance(mapped, Mapping):
            raise TypeError(f"map returned a {type(mapped).__name__}; it must return a dict")
        fields = dict(mapped)
    elif isinstance(raw, str):
        fields = {"prompt": raw}
    elif isinstance(raw, list | tuple):
        fields = {"messages": raw}
    elif isinstance(raw, Mapping):
        fields = dict(raw)
        if "role" in fields and "content" in fields and not options.columns:
            raise ValueError("this is a message, and a row is a list of messages; give [history] for one history")
    else:
        raise TypeError(f"a row is a string, a list of messages or a dict, not a {type(raw).__name__}")
    renamed = {}
    for ours, theirs in options.columns.items():
        _need(fields, theirs, f"columns[{ours!r}]")
        renamed[ours] = fields[theirs]
    return fields | renamed


def _prompt_name(fields: Mapping[str, Any], options: RowOptions) -> str:
    """Under which of our names the prompt stands."""
    named = next((name for name in options.columns if name in PROMPTS), None)
    if named is not None:
        return named
    there = [name for name in PROMPTS if fields.get(name) is not None]
    if not there:
        raise ValueError(
            f"no column {', '.join(PROMPTS[:-1])} or {PROMPTS[-1]}; there are {_listed(fields)}. Say which one holds "
            "the prompt: columns={'prompt': ...}"
        )
    if "turns" in there and len(there) > 1:
        other = there[0]
        raise ValueError(
            f"columns {other} and turns may both be the prompt; say which: columns={{{other!r}: {other!r}}} or "
            "columns={'turns': 'turns'}"
        )
    return there[0]


def _turns(value: Any) -> tuple[str, tuple[str, ...]]:
    texts = list(value) if isinstance(value, Sequence) and not isinstance(value, str) else []
    if not texts or not all(isinstance(text, str) for text in texts):
        raise TypeError(f"turns is {_shown(value)}; give a list of the user's texts, the first of which is the prompt")
    return texts[0], tuple(texts[1:])


def _need(fields: Mapping[str, Any], column: str, what: str) -> None:
    if column not in fields:
        raise ValueError(f"no column {column!r}, which {what} names; there are {_listed(fields)}")


def _listed(fields: Mapping[str, Any]) -> str:
    names = [str(name) for name in fields]
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return (", ".join(names[:_SHOWN]) or "none") + more


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
