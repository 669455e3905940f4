"""What consumers read of a conversation. Functions of one state; batch them with ``jax.vmap``.

A view costs the whole buffer it returns: call it outside the loop that steps.
"""

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from statelesschat.core.packing import sampled_end
from statelesschat.core.types import ChatState, Column, Count, Finish, Flag

_FAR = 2**31 - 1


def prompt(state: ChatState) -> tuple[Int[Array, "L"], Int[Array, ""]]:
    """All ids so far, padded on the right with the template's pad id, and how many they are.

    Returns int32[capacity] and int32. After `reset` and `append` this is what a model is asked to continue.
    """
    return _masked(state, state.tokens[: state.config.capacity], state.config.template.pad_id), state.length


def delta(state: ChatState, width: int | None = None) -> tuple[Int[Array, "W"], Int[Array, ""]]:
    """What was written since the last sampled id, padded to ``width`` (default: capacity), and its length.

    An engine that keeps its cache feeds just this. The length returned is the true one, so a ``width`` that is too
    small shows itself.
    """
    return _span(state, state.counts[Count.DELTA], state.length, width)


def last_response(state: ChatState, width: int | None = None) -> tuple[Int[Array, "W"], Int[Array, ""]]:
    """The latest answer: its prefill and sampled ids without the stop id, padded to ``width``, and its length.

    ``width`` defaults to capacity; the length returned is the true one. Before any answer the length is 0.
    """
    row = latest_answer(state)
    return _span(state, row[Column.PIECE_START], row[Column.PIECE_END], width)


def latest_answer(state: ChatState) -> Int[Array, "10"]:
    """The table row (see `Column`) of the latest answer that was sampled; all 0 before there is one."""
    table = state.table
    answered = _written(state) & (table[:, Column.SAMPLED] >= 0)
    index = jnp.max(jnp.where(answered, jnp.arange(table.shape[0]), -1))
    return jnp.where(index >= 0, table[jnp.maximum(index, 0)], 0)


def remaining(state: ChatState) -> Int[Array, ""]:
    """How many more ids fit, int32; 0 on a row that is done."""
    return jnp.where(state.done | state.pending, 0, state.config.capacity - state.length)


def attention_mask(state: ChatState) -> Bool[Array, "L"]:
    """True on the ids of the conversation, by its length alone. bool[capacity]."""
    return jnp.arange(state.config.capacity) < state.length


def position_ids(state: ChatState) -> Int[Array, "L"]:
    """0, 1, 2, … over the conversation and 0 beyond. int32[capacity]."""
    return _masked(state, jnp.arange(state.config.capacity, dtype=jnp.int32), 0)


def loss_mask(state: ChatState) -> Bool[Array, "L"]:
    """True exactly on the ids that came in an `Action`, a sampled stop id included. bool[capacity].

    ``mask[t]`` is about ``tokens[t]``, which the logits at ``t - 1`` predict.
    """
    ids = _row_of_token(state)
    table = state.table
    ends = sampled_end(table)
    begins = jnp.where(table[:, Column.SAMPLED] >= 0, table[:, Column.SAMPLED], _FAR)
    positions = jnp.arange(state.config.capacity, dtype=jnp.int32)
    return (positions >= begins[ids]) & (positions < ends[ids]) & attention_mask(state)


def sampled_logprobs(state: ChatState) -> Float[Array, "L"]:
    """Log p(tokens[t] | tokens before t) in nats as the policy gave it, 0 where not sampled. float32[capacity].

    ValueError where the config does not store logprobs.
    """
    if state.logprobs is None:
        raise ValueError("this state stores no logprobs; make_config(..., store_logprobs=True) does")
    kept = state.logprobs[: state.config.capacity]
    return jnp.where(loss_mask(state), kept, jnp.float32(0))


def message_ids(state: ChatState) -> Int[Array, "L"]:
    """Index of the message in whose block each id was written, -1 beyond the length. int32[capacity].

    A block reaches from the previous stop id to where the next writer starts, so a message's closing counts with
    the message after it, and a generation prompt with the message that opens the answer.
    """
    return _masked(state, _row_of_token(state), -1)


def role_ids(state: ChatState) -> Int[Array, "L"]:
    """`Kind` of the message in whose block each id was written, -1 beyond the length. int32[capacity]."""
    return _masked(state, state.table[_row_of_token(state), Column.KIND], -1)


def turn_ids(state: ChatState) -> Int[Array, "L"]:
    """Turn of each id, -1 beyond the length. int32[capacity].

    A turn is what was written for an answer and the answer: the first prompt and answer are turn 0.
    """
    table = state.table
    ended = (table[:, Column.SAMPLED] >= 0) & (table[:, Column.FINISH] != int(Finish.OPEN)) & _written(state)
    before = jnp.cumsum(ended.astype(jnp.int32)) - ended.astype(jnp.int32)
    return _masked(state, before[_row_of_token(state)], -1)


def left_padded(
    state: ChatState, width: int | None = None
) -> tuple[Int[Array, "W"], Bool[Array, "W"], Int[Array, "W"]]:
    """Ids, attention mask and position ids with the padding on the left, for engines that want it so.

    ``width`` defaults to capacity; of a longer conversation the last ``width`` ids are shown, at their positions.
    """
    width = state.config.capacity if width is None else width
    source = jnp.arange(width, dtype=jnp.int32) + state.length - width
    mask = source >= 0
    tokens = state.tokens.at[jnp.maximum(source, 0)].get(mode="promise_in_bounds")
    return jnp.where(mask, tokens, state.config.template.pad_id), mask, jnp.where(mask, source, 0)


def stopped(state: ChatState) -> Bool[Array, ""]:
    """Whether the latest answer's last id is a stop id."""
    return (state.counts[Count.FLAGS] & int(Flag.STOPPED)) != 0


def _written(state: ChatState) -> Bool[Array, "M"]:
    return jnp.arange(state.table.shape[0]) < state.num_messages


def _row_of_token(state: ChatState) -> Int[Array, "L"]:
    starts = jnp.where(_written(state), state.table[:, Column.START], _FAR)
    positions = jnp.arange(state.config.capacity, dtype=jnp.int32)
    rows = jnp.searchsorted(starts, positions, side="right").astype(jnp.int32) - 1
    return jnp.maximum(rows, 0)


def _masked(state: ChatState, values: Int[Array, "L"], fill: int) -> Int[Array, "L"]:
    return jnp.where(attention_mask(state), values, fill)


def _span(
    state: ChatState, start: Int[Array, ""], end: Int[Array, ""], width: int | None
) -> tuple[Int[Array, "W"], Int[Array, ""]]:
    width = state.config.capacity if width is None else width
    offsets = jnp.arange(width, dtype=jnp.int32)
    if width <= state.config.buffer - state.config.capacity:  # the slack: no slice is clamped, and one copy is cheaper
        tokens = lax.dynamic_slice(state.tokens, (start,), (width,))
    else:
        tokens = state.tokens.at[start + offsets].get(mode="fill", fill_value=0)
    return jnp.where(offsets < end - start, tokens, state.config.template.pad_id), end - start
