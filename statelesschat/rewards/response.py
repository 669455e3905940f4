"""What a policy answered, read from the conversation on the device."""

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Int

from statelesschat.core.types import ChatState, Column, Finish
from statelesschat.core.views import last_response, latest_answer
from statelesschat.rewards.text import Text, remove_prefix, remove_suffix
from statelesschat.rewards.tokens import TokenBytes, decode_bytes


def response_tokens(state: ChatState, width: int | None = None) -> tuple[Int[Array, "R"], Int[Array, ""]]:
    """The ids of the latest answer without its stop id, int32[width], and how many they are.

    ``width`` is by default ``max_response_len``, enough for an answer given in one action; the length returned is the
    true one, so a ``width`` that is too small shows itself.
    """
    return last_response(state, state.config.max_response_len if width is None else width)


def response_text(
    state: ChatState, vocabulary: TokenBytes, *, width: int | None = None, size: int | None = None
) -> Text:
    """The text of the latest answer and of nothing else, as `Codec.decode_responses` gives it.

    What a generation prompt opens (``<think>``) is part of it; what the template itself writes around answers is not.
    Before any answer it is empty. Of tokenizers that write a space before every piece, as the oldest conversions of
    SentencePiece do, the space stays.

    Args:
        state: after the answer was written.
        vocabulary: of `token_bytes`.
        width: ids of room, by default ``max_response_len``: raise it where answers are given in pieces.
        size: bytes of room, by default ``vocabulary.size_of(width)``.

    Returns:
        Text; one that takes more room than there is has ``fits`` False.
    """
    template = state.config.template
    tokens, length = response_tokens(state, width)
    finish = latest_answer(state)[Column.FINISH]
    text = decode_bytes(vocabulary, tokens, length, size=size)
    cut = length > tokens.shape[0]
    text = text._replace(end=jnp.where(cut, text.bytes.shape[0] + 1, text.end))
    text = _with_front(remove_prefix(text, template.rest_core + template.rest_lead), template.opened)
    text = remove_suffix(text, template.closing, finish == int(Finish.STOP))
    return text._replace(end=jnp.where(finish == int(Finish.NONE), text.start, text.end))


def _with_front(text: Text, front: str) -> Text:
    """The text with a static one before it."""
    opened = np.frombuffer(front.encode(), np.uint8)
    if not opened.size:
        return text
    padded = jnp.concatenate([jnp.zeros(opened.size, jnp.uint8), text.bytes])
    return Text(lax.dynamic_update_slice(padded, opened, (text.start,)), text.start, text.end + opened.size)
