"""States and messages back to text and histories."""

import functools
import json
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from statelesschat.core.types import ChatState, Column, Finish, Header, Kind, Message
from statelesschat.text.calls import CallFormat, read_calls
from statelesschat.text.inputs import kind_name
from statelesschat.text.writer import ANSWERS, Writer


def decode_texts(writer: Writer, states: ChatState) -> list[str]:
    """Each conversation as text, control tokens written out."""
    states = _chat_of(states)
    tokens, counts = _batched(states.tokens, 1), np.atleast_1d(np.asarray(states.length))
    sequences = [row[:n].tolist() for row, n in zip(tokens, counts, strict=True)]
    return writer.pieces.decode(sequences, first=True)


def decode_histories(writer: Writer, states: ChatState, calls: bool) -> list[list[dict[str, Any]]]:
    """Each conversation as message dicts, read from its ids and its message table."""
    states = _chat_of(states)
    tokens, tables = _batched(states.tokens, 1), _batched(states.table, 2)
    counts = np.atleast_1d(np.asarray(states.num_messages))
    spots = [(row, table[i]) for row, (table, n) in enumerate(zip(tables, counts, strict=True)) for i in range(n)]
    pieces = [tokens[row, line[Column.PIECE_START] : line[Column.PIECE_END]].tolist() for row, line in spots]
    texts = _decode(writer, pieces, [line[Column.PIECE_START] == 0 for _, line in spots])
    histories: list[list[dict[str, Any]]] = [[] for _ in counts]
    for (row, line), text in zip(spots, texts, strict=True):
        message: dict[str, Any] = {"role": kind_name(int(line[Column.KIND]), writer.template.roles)}
        finish = Finish(int(line[Column.FINISH]))
        if line[Column.LEAD] < 0:
            message["content"] = _answer_content(writer, text, finish)
            message["finish_reason"] = finish.name.lower()
        else:
            text = text[line[Column.LEAD] : len(text) - line[Column.TRAIL]]
            message |= _message_content(writer, int(line[Column.KIND]), text)
        if calls and writer.template.call_format and int(line[Column.KIND]) in ANSWERS:
            _show_calls(writer, message)
        histories[row].append(message)
    return histories


def decode_responses(writer: Writer, states: ChatState) -> list[str]:
    """Each conversation's latest answer as text; of the buffers only its ids leave the device."""
    states = _chat_of(states)
    batched = states.tokens.ndim > 1
    tables, messages = states.table if batched else states.table[None], jnp.atleast_1d(states.num_messages)
    starts, ends, finishes = np.asarray(_latest_answers(tables, messages)).T
    counts = ends - starts
    # One width is one trace, so widths are powers of two.
    width = min(1 << max(int(counts.max()) - 1, 0).bit_length(), states.tokens.shape[-1])
    tokens = np.asarray(_stretches(states.tokens if batched else states.tokens[None], starts, width))
    return decode_answers(writer, tokens, counts, finishes, starts == 0)


def decode_answers(
    writer: Writer,
    tokens: Int[np.ndarray, "B R"],
    lengths: Int[np.ndarray, "B"],
    finishes: Int[np.ndarray, "B"],
    first: Bool[np.ndarray, "B"],
) -> list[str]:
    """Answers as text, of their ids without a stop id; ``first`` of those that are a conversation's first tokens."""
    pieces = [row[:count].tolist() for row, count in zip(tokens, lengths, strict=True)]
    texts = _decode(writer, pieces, first.tolist())
    return [
        _answer_content(writer, text, Finish(finish)) if finish != Finish.NONE else ""
        for text, finish in zip(texts, finishes.tolist(), strict=True)
    ]


@jax.jit
def _latest_answers(tables: Int[Array, "B M 10"], messages: Int[Array, "B"]) -> Int[Array, "B 3"]:
    """Start, end and finish of what `statelesschat.last_response` gives, zeros where there is no answer."""
    rows = jnp.arange(tables.shape[1])[None]
    answered = (rows < messages[:, None]) & (tables[:, :, Column.SAMPLED] >= 0)
    latest = jnp.max(jnp.where(answered, rows, -1), axis=1)
    lines = jnp.take_along_axis(tables, jnp.maximum(latest, 0)[:, None, None], axis=1)[:, 0]
    lines = lines[:, jnp.array([int(Column.PIECE_START), int(Column.PIECE_END), int(Column.FINISH)])]
    return jnp.where(latest[:, None] >= 0, lines, 0)


@functools.partial(jax.jit, static_argnums=2)
def _stretches(tokens: Int[Array, "B L"], starts: Int[Array, "B"], width: int) -> Int[Array, "B W"]:
    """``width`` ids of each row from its start; of what lies beyond the buffer the last id."""
    places = starts[:, None] + jnp.arange(width, dtype=jnp.int32)[None]
    return jnp.take_along_axis(tokens, jnp.minimum(places, tokens.shape[1] - 1), axis=1)


def _chat_of(states: Any) -> ChatState:
    """Conversations, also those in the states of an environment."""
    return states if isinstance(states, ChatState) else states.chat


def _message_content(writer: Writer, kind: int, text: str) -> dict[str, str]:
    """The content of a message that was not sampled; a tool result's name and id stand apart again."""
    refers = writer.render.shape.refers if writer.render.shape is not None else ()
    if kind != Kind.TOOL or not refers or writer.spans is None or writer.spans.pattern is None:
        return {"content": text}
    fields = writer.spans.pattern.fields_of(text)
    if fields is None:
        return {"content": text}
    names = {"content": "content", "name": "name", "call_id": "tool_call_id"}
    return {names[field]: value for field, value in fields.items()}


def _show_calls(writer: Writer, message: dict[str, Any]) -> None:
    """Tell an answer's calls from what it says, if they can be read; else its text stays as it is."""
    read = read_calls(CallFormat(*writer.template.call_format), message["content"], writer.types)
    if not read.calls or read.error is not None:
        return  # the text is all there is to tell
    message["content"] = read.content
    message["tool_calls"] = [
        {"type": "function", "function": {"name": call.name, "arguments": json.loads(call.arguments)}}
        | ({} if call.id is None else {"id": call.id})
        for call in read.calls
    ]


def decode_blocks(writer: Writer, messages: Message) -> list[dict[str, str]]:
    """Each message as a dict, read from its block and header."""
    tokens, headers = _batched(messages.tokens, 1), _batched(messages.header, 1)
    pieces = [t[h[Header.PIECE_START] : h[Header.PIECE_END]].tolist() for t, h in zip(tokens, headers, strict=True)]
    first = [h[Header.PIECE_START] == 0 and h[Header.PREVIOUS] == Kind.START for h in headers]
    return [
        {
            "role": kind_name(int(h[Header.KIND]), writer.template.roles),
            **_message_content(writer, int(h[Header.KIND]), text[h[Header.LEAD] : len(text) - h[Header.TRAIL]]),
        }
        for h, text in zip(headers, _decode(writer, pieces, first), strict=True)
    ]


def _decode(writer: Writer, pieces: Sequence[list[int]], first: Sequence[bool]) -> list[str]:
    """Texts of pieces; those that begin their conversation, behind no control token, are decoded as such."""
    texts = writer.pieces.decode(pieces)
    opening = [i for i, is_first in enumerate(first) if is_first]
    for index, text in zip(opening, writer.pieces.decode([pieces[i] for i in opening], True), strict=True):
        texts[index] = text
    return texts


def _answer_content(writer: Writer, text: str, finish: Finish) -> str:
    """An answer's text without what the template writes around answers, where the policy wrote it too."""
    template = writer.template
    text = template.opened + text.removeprefix(template.rest_core + template.rest_lead)
    return text.removesuffix(template.closing) if finish is Finish.STOP else text


def _batched(array: Any, ndim: int) -> np.ndarray:
    array = np.asarray(array)
    return array[None] if array.ndim == ndim else array
