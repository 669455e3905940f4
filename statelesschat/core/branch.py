"""Going back: the one place where a conversation gets shorter."""

import dataclasses

import jax.numpy as jnp
from jaxtyping import Array, Int

from statelesschat.core.packing import GENERATE, NONE, is_stop, pack_counts, put_flag, sampled_end
from statelesschat.core.types import ChatState, Column, Count, Finish, Flag, Kind, Status


def rewind(state: ChatState, num_messages: Int[Array, ""] | int) -> ChatState:
    """A new conversation that ends after its first ``num_messages`` messages: lengths change, no token does.

    The one function that takes tokens away, so that branching and edited histories are named as such. It ends no
    episode: flags and status are cleared, and turns counted anew (what is still at its turn limit, or still has too
    many messages, stays truncated). After a message that opened an answer the answer is open; after an answer any
    message may follow. ``num_messages`` is clipped to what there is.
    """
    config, old, table = state.config, state.counts, state.table
    keep = jnp.clip(num_messages, 0, old[Count.MESSAGES])
    last = table[jnp.maximum(keep - 1, 0)]
    some = keep > 0
    start = jnp.where(keep < old[Count.MESSAGES], table[keep, Column.START], old[Count.LENGTH])
    length = jnp.where(some, start, 0)

    kept = jnp.arange(table.shape[0]) < keep
    sampled = kept & (table[:, Column.SAMPLED] >= 0)
    closed = sampled & (table[:, Column.FINISH] != int(Finish.OPEN))
    turn = jnp.sum(closed, dtype=jnp.int32)
    finish = last[Column.FINISH]
    answered = (finish == int(Finish.STOP)) | (finish == int(Finish.LENGTH))
    is_open = some & ((finish == int(Finish.OPEN)) | (last[Column.NEXT] == GENERATE))
    listed = some & (finish == int(Finish.OPEN))
    last_id = state.tokens[jnp.maximum(length - 1, 0)]
    partly = listed & (last[Column.SAMPLED] >= 0) & (last[Column.SAMPLED] < length)
    stopped = some & jnp.where(partly, is_stop(config, last_id), (finish == int(Finish.STOP)) & ~is_open)
    crowded = keep + (is_open & ~listed).astype(jnp.int32) > config.max_messages
    flags = jnp.where((turn >= old[Count.TURN_LIMIT]) | crowded, int(Flag.TRUNCATED), 0)
    flags = put_flag(put_flag(flags, Flag.LISTED, listed), Flag.STOPPED, stopped)
    ends = jnp.where(sampled, sampled_end(table), 0)
    counts = pack_counts(
        LENGTH=length,
        MESSAGES=keep,
        TURN=turn,
        TURN_LIMIT=old[Count.TURN_LIMIT],
        FLAGS=flags,
        STATUS=jnp.where(crowded, int(Status.TOO_MANY_MESSAGES), int(Status.OK)),
        KIND=jnp.where(some, jnp.where(listed, last[Column.PREVIOUS], last[Column.KIND]), int(Kind.START)),
        NEXT=jnp.where(is_open, GENERATE, jnp.where(some & ~answered, last[Column.NEXT], NONE)),
        OPENED=jnp.where(listed, last[Column.START], length),
        SAMPLED=jnp.where(partly, last[Column.SAMPLED], -1),
        DELTA=jnp.max(ends),
        STOP=jnp.where(stopped, last_id, -1),
    )
    turns = jnp.arange(config.max_turns) <= jnp.where(is_open, turn, turn - 1)
    return dataclasses.replace(
        state,
        counts=counts,
        reward=jnp.zeros_like(state.reward),
        turn_rewards=jnp.where(turns, state.turn_rewards, 0),
    )
