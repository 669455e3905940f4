"""Messages and prompts made on device, from contents that are ids already.

The template's text around a content is encoded once, at compile time, and *joined* to the content's ids: at a seam
where the tokenizer would merge the two, the ids differ from a re-render while the text is the same.
"""

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Int

from statelesschat.core.config import ANSWERS, ChatConfig, Gap
from statelesschat.core.types import ChatData, Column, Finish, Kind, Message, Role


def glue(
    config: ChatConfig,
    content_tokens: Int[Array, "C"],
    length: Int[Array, ""],
    role: int,
    previous: int,
    next: int,
) -> Message:
    """The block of one message whose content is given as ids.

    ``content_tokens`` int32[C] with ``length`` of them valid; ``role``, ``previous`` and ``next`` are static: a
    `Role`, and what stands before (a `Role` or ``Kind.START``) and after (a `Role` or ``Kind.GENERATE``). Raises
    ValueError at trace where the template cannot write that order, transforms the role's content, or the block is
    wider than ``max_message_len``.
    """
    before, after = _gaps(config, role, previous, next)
    closing = before.trail_ids if previous in ANSWERS else ()
    head = closing + before.core_ids + before.lead_ids
    closes = role in ANSWERS and next != Kind.GENERATE  # by the block of the message after it
    trail_ids, trail = ((), "") if closes else (after.trail_ids, after.trail)
    tail = trail_ids + (after.core_ids + after.lead_ids if next == Kind.GENERATE else ())
    width = len(head) + content_tokens.shape[0] + len(tail)
    if width > config.max_message_len:
        raise ValueError(
            f"glue: a block of up to {width} ids ({content_tokens.shape[0]} of content) is wider than "
            f"max_message_len={config.max_message_len}; raise it or narrow the content"
        )
    length = jnp.clip(length, 0, content_tokens.shape[0])
    tokens = _join(jnp.full(width, config.template.pad_id, jnp.int32), [(head, content_tokens, length, tail)])
    start = len(head) - len(before.lead_ids)
    header = [
        jnp.int32(role),
        jnp.int32(start),
        len(head) + length + len(trail_ids),
        jnp.int32(len(before.lead)),
        jnp.int32(len(trail)),
        jnp.int32(previous),
        jnp.int32(next),
    ]
    return Message(tokens, len(head) + length + len(tail), jnp.stack(header))


def compose(config: ChatConfig, messages: Sequence[tuple[int, Int[Array, "C"], Int[Array, ""]]]) -> ChatData:
    """A first prompt from messages whose contents are ids: ``(role, content_tokens, length)`` each, roles static.

    After the last message an answer opens. Raises ValueError at trace as `glue` does, and where the prompt could be
    wider than ``max_prompt_len``. ``info`` is None and the turn limit ``max_turns``: replace them as needed.
    """
    if not messages:
        raise ValueError("compose: no messages; give at least one (role, content_tokens, length)")
    if len(messages) >= config.max_messages:
        raise ValueError(
            f"compose: {len(messages)} messages and the answer they open are more than "
            f"max_messages={config.max_messages}; raise it"
        )
    kinds = [int(role) for role, _, _ in messages]
    ends = [int(Kind.START), *kinds[:-1]], [*kinds[1:], int(Kind.GENERATE)]
    parts, rows, offset = [], [], jnp.int32(0)
    for (role, tokens, length), previous, next in zip(messages, *ends, strict=True):
        before, after = _gaps(config, int(role), previous, next)
        answer = int(role) == Kind.ASSISTANT
        opened = config.template.stop_id >= 0 and previous == Kind.ASSISTANT  # the stop id went to the answer
        head = before.core_ids[int(opened) :] + before.lead_ids
        tail = after.trail_ids
        if answer and config.template.stop_id >= 0:
            tail = tail + after.core_ids[:1]
        if next == Kind.GENERATE:
            tail = tail + after.core_ids[int(answer and config.template.stop_id >= 0) :] + after.lead_ids
        length = jnp.clip(length, 0, tokens.shape[0])
        start = offset + len(head) - len(before.lead_ids)
        end = offset + len(head) + length + len(after.trail_ids)
        finish = Finish.NONE if not answer else Finish.STOP if config.template.stop_id >= 0 else Finish.LENGTH
        row = [int(role), offset, start, end, len(before.lead), len(after.trail), previous, next, -1, int(finish)]
        rows.append(jnp.stack([jnp.asarray(v, jnp.int32) for v in row]))
        parts.append((head, tokens, length, tail))
        offset = offset + len(head) + length + len(tail)
    width = sum(len(head) + tokens.shape[0] + len(tail) for head, tokens, _, tail in parts)
    if width > config.max_prompt_len:
        raise ValueError(
            f"compose: a prompt of up to {width} ids is wider than max_prompt_len={config.max_prompt_len}; "
            "raise it or narrow the contents"
        )
    table = jnp.full((config.max_messages, len(Column)), -1, jnp.int32)
    return ChatData(
        tokens=_join(jnp.full(width, config.template.pad_id, jnp.int32), parts),
        length=offset,
        table=lax.dynamic_update_slice(table, jnp.stack(rows), (0, 0)),
        turn_limit=jnp.int32(config.max_turns),
    )


_Part = tuple[tuple[int, ...], Int[Array, "C"], Int[Array, ""], tuple[int, ...]]


def _join(buffer: Int[Array, "W"], parts: Sequence[_Part]) -> Int[Array, "W"]:
    """Head, content and tail of every part, one after the other; each write overlays the padding of the last."""
    width = buffer.shape[0]
    slack = max(tokens.shape[0] for _, tokens, _, _ in parts)
    buffer = jnp.concatenate([buffer, jnp.zeros(slack, jnp.int32)])
    offset = jnp.int32(0)
    for head, tokens, length, tail in parts:
        for block, count in ((head, len(head)), (tokens, length), (tail, len(tail))):
            block = np.array(block, np.int32) if isinstance(block, tuple) else block
            if block.shape[0]:
                buffer = lax.dynamic_update_slice(buffer, jnp.asarray(block), (offset,))
            offset = offset + count
    return buffer[:width]


def _gaps(config: ChatConfig, role: int, previous: int, next: int) -> tuple[Gap, Gap]:
    template = config.template
    transform = template.transforms[role]
    if transform != "identity":
        raise ValueError(
            f"the template changes the content of role {Role(role).name} ({transform}); encode such messages on the "
            "host with Codec.encode_messages"
        )
    for pair in ((previous, role), (role, next)):
        if not template.allows(*pair):
            names = " then ".join(Kind(kind).name for kind in pair)
            raise ValueError(f"the template cannot write {names}; see template.report")
    return template.gap(previous, role), template.gap(role, next)
