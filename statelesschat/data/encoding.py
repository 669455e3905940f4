"""Rows that were read to arrays: prompts and later turns through the codec, rows that are too long set apart."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np

from statelesschat.core.types import ChatData, Column, Kind, Message
from statelesschat.data.options import RowOptions
from statelesschat.data.reading import Row
from statelesschat.data.rows import RowInfo
from statelesschat.data.task import narrowed, wide_task
from statelesschat.text.codec import Codec
from statelesschat.text.inputs import TooLongError

_NAMED = 10  # rows that a message names one by one
_ROW = re.compile(r"row (\d+): (.*)", re.DOTALL)
T = TypeVar("T")


class Block(NamedTuple):
    """Some encoded rows, numpy: ``data`` without info, ``script`` or None, the task before it is narrowed."""

    data: ChatData
    script: Message | None
    task: Any
    ids: np.ndarray  # int32, the rows' indices in the source


class Widths(NamedTuple):
    """Widths of arrays: prompt, prompt messages, later turns and the ids of one; no turns: no script."""

    prompt: int
    messages: int
    turns: int
    turn: int


def encode_rows(rows: Sequence[Row], options: RowOptions) -> tuple[Block | None, dict[int, str]]:
    """The rows that fit, and of the others, by their index in the source, what is too long.

    Raises:
        ValueError, TypeError: a row that is wrong otherwise; it is named.
    """
    long: dict[int, str] = {}
    while rows:
        try:
            data, script = _encoded(rows, options)
        except TooLongError as error:
            long |= {rows[i].index: what for i, what in error.rows.items()}
            rows = [row for i, row in enumerate(rows) if i not in error.rows]
            continue
        ids = np.asarray([row.index for row in rows], np.int32)
        return Block(data, script, wide_task(rows, options), ids), long
    return None, long


def _encoded(rows: Sequence[Row], options: RowOptions) -> tuple[ChatData, Message | None]:
    codec = options.codec
    most = codec.config.max_turns
    many = {i: len(row.script) + 1 for i, row in enumerate(rows) if row.script is not None and len(row.script) >= most}
    if many:
        raise TooLongError("turns", {i: f"{n} turns are more than max_turns={most}" for i, n in many.items()})
    limits = [most if row.turn_limit is None else row.turn_limit for row in rows]
    prompts = [row.prompt for row in rows]
    data = _named(rows, options, lambda: codec.encode(prompts, turn_limit=limits, width=options.width))
    return data, _scripts(rows, options)


def _scripts(rows: Sequence[Row], options: RowOptions) -> Message | None:
    """Later turns as [n, S, W]; what is not there has length 0 and a header that `append` refuses."""
    if all(row.script is None for row in rows):
        return None
    codec, scripts = options.codec, [row.script or () for row in rows]
    at = [(i, turn) for i, script in enumerate(scripts) for turn in range(len(script))]
    most = max(1, *map(len, scripts))
    script = blank_script(codec, len(rows), most, codec.config.max_message_len)
    if not at:
        return script
    texts = [scripts[i][turn] for i, turn in at]
    try:
        written = _named([rows[i] for i, _ in at], options, lambda: codec.encode_messages("user", texts))
    except TooLongError as error:
        long = {at[j][0]: f"turn {at[j][1] + 2}: {what}" for j, what in error.rows.items()}
        raise TooLongError("turns", long) from None
    where = tuple(np.asarray(at).T)
    for name in ("tokens", "length", "header"):
        getattr(script, name)[where] = getattr(written, name)
    return script


def blank_script(codec: Codec, rows: int, turns: int, width: int) -> Message:
    """A script without a turn."""
    tokens: Any = np.full((rows, turns, width), codec.config.template.pad_id, np.int32)
    lengths: Any = np.zeros((rows, turns), np.int32)
    headers: Any = np.full((rows, turns, 7), int(Kind.NONE), np.int32)
    return Message(tokens, lengths, headers)


def _named(rows: Sequence[Row], options: RowOptions, function: Callable[[], T]) -> T:
    """What the codec gives; its faults name a row by its place in the source, not in the batch."""
    try:
        return function()
    except TooLongError:
        raise
    except (ValueError, TypeError) as error:
        found = _ROW.fullmatch(str(error))
        if found is None:
            raise
        raise type(error)(f"{options.place(rows[int(found[1])].index)}: {found[2]}") from None


def widest(blocks: Sequence[Block], width: int | None) -> Widths:
    """The widths that hold all rows and no more."""
    scripts = [block.script for block in blocks if block.script is not None]
    return Widths(
        prompt=width or max(1, *(int(np.max(block.data.length)) for block in blocks)),
        messages=max(1, *(int((block.data.table[..., Column.KIND] >= 0).sum(1).max()) for block in blocks)),
        turns=max((script.length.shape[1] for script in scripts), default=0),
        turn=max((max(1, int(np.max(script.length))) for script in scripts), default=0),
    )


def assembled(
    blocks: Sequence[Block],
    options: RowOptions,
    widths: Widths,
    first_group: int = 0,
    group_step: int = 1,
    like: Mapping[str, Any] | None = None,
) -> ChatData:
    """The rows of all blocks as one table, numpy; groups are counted from ``first_group``."""
    codec = options.codec
    pad = codec.config.template.pad_id
    ids = np.concatenate([block.ids for block in blocks])
    script: Any = None
    if widths.turns:
        scripts = [block.script or blank_script(codec, len(block.ids), 1, 1) for block in blocks]
        script = Message(
            _joined([s.tokens for s in scripts], (widths.turns, widths.turn), pad),
            _joined([s.length for s in scripts], (widths.turns,), 0),
            _joined([s.header for s in scripts], (widths.turns, 7), int(Kind.NONE)),
        )
    groups: Any = ((first_group + group_step * np.arange(len(ids), dtype=np.int64)) & (2**31 - 1)).astype(np.int32)
    task = narrowed([block.task for block in blocks], ids, options, like)
    return ChatData(
        tokens=_joined([block.data.tokens for block in blocks], (widths.prompt,), pad),
        length=_joined([block.data.length for block in blocks], (), 0),
        table=_joined([block.data.table for block in blocks], (widths.messages, len(Column)), -1),
        turn_limit=_joined([block.data.turn_limit for block in blocks], (), 0),
        info=RowInfo(ids, groups, np.zeros_like(ids), task, script),  # type: ignore[arg-type]
    )


def _joined(arrays: Sequence[Any], widths: tuple[int, ...], fill: int) -> Any:
    """Arrays one behind the other, each cut (of what no row uses) or filled to the widths."""
    whole = np.full((sum(len(array) for array in arrays), *widths), fill, np.int32)
    start = 0
    for array in arrays:
        common = tuple(slice(0, min(n, w)) for n, w in zip(array.shape[1:], widths, strict=True))
        whole[(slice(start, start + len(array)), *common)] = np.asarray(array)[(slice(None), *common)]
        start += len(array)
    return whole


def long_rows(long: Mapping[int, str], options: RowOptions) -> str:
    """Which rows are too long, for a message: the first of them with what they take and the limit."""
    named = "; ".join(f"{options.place(index)}: {what}" for index, what in list(long.items())[:_NAMED])
    more = f"; and {len(long) - _NAMED} more" if len(long) > _NAMED else ""
    return f"{len(long)} {'row is' if len(long) == 1 else 'rows are'} too long ({named}{more})"
