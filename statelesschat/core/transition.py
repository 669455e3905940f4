"""Pure transitions of one conversation; batch them with ``jax.vmap``.

Every transition writes its block once, at ``length``, whether or not the row acts: what lies at and beyond
``length`` is unspecified, so a row that does not act keeps its state by keeping its counts.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from statelesschat.core.config import ChatConfig
from statelesschat.core.packing import (
    GENERATE,
    NONE,
    answer_row,
    check_action,
    check_block,
    check_data,
    drop_stop,
    first_status,
    follows,
    is_stop,
    opens_row,
    overlay_front,
    pack_counts,
    put_flag,
    row_index,
    select_info,
    set_flag,
    write_row,
)
from statelesschat.core.types import (
    Action,
    ChatData,
    ChatState,
    Column,
    Count,
    Finish,
    Flag,
    Header,
    Kind,
    Message,
    Status,
)


def init(config: ChatConfig, example_data: ChatData | None = None) -> ChatState:
    """A blank conversation: no tokens, no message, ready for `reset` or for a first `append`.

    ``example_data`` (one row, only its ``info`` is looked at) gives ``info`` its structure, filled with zeros; it is
    needed only where a blank state is carried through a loop. Without it ``info`` is None.

    Example:
        >>> import statelesschat as sc
        >>> config = sc.make_config(
        ...     sc.load_tokenizer(None), capacity=256, max_messages=8, max_message_len=64, max_turns=2)
        >>> int(sc.init(config).length)
        0
    """
    counts = np.zeros(len(Count), np.int32)
    counts[[Count.KIND, Count.NEXT, Count.SAMPLED, Count.STOP]] = Kind.START, Kind.NONE, -1, -1
    counts[Count.TURN_LIMIT] = config.max_turns
    info = None if example_data is None else jax.tree.map(jnp.zeros_like, example_data.info)
    return ChatState(
        tokens=jnp.full(config.buffer, config.template.pad_id, jnp.int32),
        logprobs=jnp.zeros(config.buffer, jnp.float32) if config.store_logprobs else None,
        table=jnp.full((config.max_messages + 1, len(Column)), -1, jnp.int32),
        turn_rewards=jnp.zeros(config.max_turns, jnp.float32),
        counts=jnp.asarray(counts),
        reward=jnp.zeros((), jnp.float32),
        info=info,
        config=config,
    )


def reset(state: ChatState, data: ChatData) -> ChatState:
    """Begin a conversation with the first prompt; of ``state`` only the config and the buffers' memory are used.

    A batch starts with ``jax.vmap(reset, (None, 0))(init(config), data)``, which broadcasts the blank buffers once;
    inside loops use `restart`.
    """
    return restart(state, data, np.True_)


def restart(state: ChatState, data: ChatData, where: Bool[Array, ""] | np.bool_ | bool) -> ChatState:
    """Begin anew where ``where`` is True, keep the conversation as it is elsewhere; costs as much as a prompt.

    The row that begins anew is the one `reset` gives; what stays keeps its reward too. A prompt whose messages and
    the answer it opens are more than ``max_messages`` is done at once, with status TOO_MANY_MESSAGES.
    """
    config = state.config
    check_data(config, data)
    where = jnp.asarray(where)
    table = jnp.asarray(data.table)
    messages = jnp.sum(table[:, Column.KIND] >= 0, dtype=jnp.int32)
    last = table[jnp.maximum(messages - 1, 0)]
    empty = messages == 0
    limit = jnp.minimum(data.turn_limit, config.max_turns)
    opens = (last[Column.NEXT] == GENERATE) & ~empty
    answered = (last[Column.FINISH] == int(Finish.STOP)) & ~empty & ~opens
    crowded = messages + opens.astype(jnp.int32) > config.max_messages
    ended = (limit <= 0) | crowded
    length = jnp.where(empty, 0, jnp.clip(data.length, 0, data.tokens.shape[0]))
    counts = pack_counts(
        LENGTH=length,
        MESSAGES=messages,
        TURN=0,
        TURN_LIMIT=limit,
        FLAGS=jnp.where(ended, int(Flag.TRUNCATED), 0) | jnp.where(answered, int(Flag.STOPPED), 0),
        STATUS=jnp.where(crowded, int(Status.TOO_MANY_MESSAGES), int(Status.OK)),
        KIND=jnp.where(empty, int(Kind.START), last[Column.KIND]),
        NEXT=jnp.where(empty, NONE, last[Column.NEXT]),
        OPENED=length,
        SAMPLED=-1,
        DELTA=0,
        STOP=jnp.where(answered, jnp.asarray(data.tokens)[jnp.maximum(length - 1, 0)], -1),
    )
    width = data.tokens.shape[0]
    return dataclasses.replace(
        state,
        tokens=overlay_front(state.tokens, jnp.where(where, data.tokens, state.tokens[:width])),
        table=overlay_front(state.table, jnp.where(where, table, state.table[: table.shape[0]])),
        turn_rewards=jnp.where(where, jnp.float32(0), state.turn_rewards),
        counts=jnp.where(where, counts, state.counts),
        reward=jnp.where(where, jnp.float32(0), state.reward),
        info=select_info(where, data.info, state.info),
    )


def step(state: ChatState, action: Action) -> ChatState:
    """Write sampled ids into the open answer; ``finished`` closes it and counts a turn.

    Ids that do not fit are dropped from the end: the answer keeps its longest prefix, with finish reason LENGTH,
    status OVERFLOW and ``truncated``. Where no answer is open: ILLEGAL_ROLE_ORDER, truncated, nothing written.
    A row that is done, or pending, stays as it is, with reward 0.
    """
    config, old = state.config, state.counts
    check_action(config, action)
    length, flags = old[Count.LENGTH], old[Count.FLAGS]
    live = (flags & int(Flag.BLOCKED)) == 0
    acts = live & (old[Count.NEXT] == GENERATE)

    offered = jnp.where(acts, jnp.clip(action.length, 0, action.tokens.shape[0]), 0)
    kept = jnp.minimum(offered, config.capacity - length)
    overflow = kept < offered
    ended = acts & (action.finished | overflow)
    end = length + kept
    last_id = jnp.asarray(action.tokens)[jnp.maximum(kept - 1, 0)]
    stop = jnp.where(kept > 0, jnp.where(is_stop(config, last_id), last_id, -1), old[Count.STOP])
    stopped = stop >= 0
    closed = ended & stopped & ~overflow
    finish = jnp.where(ended, jnp.where(closed, int(Finish.STOP), int(Finish.LENGTH)), int(Finish.OPEN))
    unsampled = old[Count.SAMPLED] < 0
    begin = jnp.where(unsampled, length, old[Count.SAMPLED])

    row = answer_row(old, end - closed.astype(jnp.int32), begin, finish)
    turn = old[Count.TURN] + ended.astype(jnp.int32)
    flags = set_flag(flags, Flag.TRUNCATED, (live & ~acts) | overflow | (ended & (turn >= old[Count.TURN_LIMIT])))
    flags = jnp.where(acts, put_flag(put_flag(flags, Flag.STOPPED, stopped), Flag.LISTED, ~ended), flags)
    counts = pack_counts(
        LENGTH=end,
        MESSAGES=old[Count.MESSAGES] + opens_row(old, acts),
        TURN=turn,
        TURN_LIMIT=old[Count.TURN_LIMIT],
        FLAGS=flags,
        STATUS=first_status(old[Count.STATUS], (live & ~acts, Status.ILLEGAL_ROLE_ORDER), (overflow, Status.OVERFLOW)),
        KIND=jnp.where(ended, int(Kind.ASSISTANT), old[Count.KIND]),
        NEXT=jnp.where(ended, NONE, old[Count.NEXT]),
        OPENED=old[Count.OPENED],
        SAMPLED=jnp.where(acts & unsampled & (kept > 0), length, old[Count.SAMPLED]),
        DELTA=jnp.where(acts, end, old[Count.DELTA]),
        STOP=jnp.where(acts, stop, old[Count.STOP]),
    )
    logprobs = state.logprobs
    if logprobs is not None and action.logprobs is not None:
        logprobs = lax.dynamic_update_slice(logprobs, action.logprobs, (length,))
    return _credit(
        dataclasses.replace(
            state,
            tokens=lax.dynamic_update_slice(state.tokens, action.tokens, (length,)),
            logprobs=logprobs,
            table=write_row(state.table, row, row_index(old, acts)),
            counts=counts,
        ),
        overflow,
        old[Count.TURN],
    )


def append(state: ChatState, message: Message, where: Bool[Array, ""] | np.bool_ | bool = True) -> ChatState:
    """Write a message whole, its generation prompt included; ``message.header`` says whether an answer opens.

    Refused whole, with a status and ``truncated``: a message that does not fit (OVERFLOW), one more than
    ``max_messages`` with the answer it opens (TOO_MANY_MESSAGES), and one made for another neighbour or for a
    conversation whose answer is still open (ILLEGAL_ROLE_ORDER). A row that is done, or pending, stays as it is, with
    reward 0; so does one where ``where`` is False.
    """
    config, old = state.config, state.counts
    check_block("message", message.tokens, config.max_message_len, "max_message_len")
    header = message.header
    live = ((old[Count.FLAGS] & int(Flag.BLOCKED)) == 0) & where
    opens = header[Header.NEXT] == GENERATE

    tokens, shift = drop_stop(config, message.tokens, header[Header.PREVIOUS], old[Count.STOP])
    size = jnp.maximum(message.length - shift, 0)
    expected = old[Count.NEXT]
    legal = follows(header[Header.PREVIOUS], old[Count.KIND]) & ((expected == NONE) | (expected == header[Header.KIND]))
    legal = legal & (expected != GENERATE) & (message.length <= message.tokens.shape[0])
    listable = old[Count.MESSAGES] + 1 + opens.astype(jnp.int32) <= config.max_messages
    fits = size <= config.capacity - old[Count.LENGTH]
    acts = live & legal & listable & fits

    length = old[Count.LENGTH]
    end = length + jnp.where(acts, size, 0)
    row = jnp.stack(
        [
            header[Header.KIND],
            length,
            length + header[Header.PIECE_START] - shift,
            length + header[Header.PIECE_END] - shift,
            header[Header.LEAD],
            header[Header.TRAIL],
            header[Header.PREVIOUS],
            header[Header.NEXT],
            jnp.int32(-1),
            jnp.int32(int(Finish.NONE)),
        ]
    )
    flags = set_flag(old[Count.FLAGS], Flag.TRUNCATED, live & ~acts)
    counts = pack_counts(
        LENGTH=end,
        MESSAGES=old[Count.MESSAGES] + acts.astype(jnp.int32),
        TURN=old[Count.TURN],
        TURN_LIMIT=old[Count.TURN_LIMIT],
        FLAGS=jnp.where(acts, flags & ~int(Flag.STOPPED), flags),
        STATUS=first_status(
            old[Count.STATUS],
            (live & ~legal, Status.ILLEGAL_ROLE_ORDER),
            (live & ~fits, Status.OVERFLOW),
            (live & ~listable, Status.TOO_MANY_MESSAGES),
        ),
        KIND=jnp.where(acts, header[Header.KIND], old[Count.KIND]),
        NEXT=jnp.where(acts, header[Header.NEXT], old[Count.NEXT]),
        OPENED=jnp.where(acts, end, old[Count.OPENED]),
        SAMPLED=jnp.where(acts, -1, old[Count.SAMPLED]),
        DELTA=old[Count.DELTA],
        STOP=jnp.where(acts, -1, old[Count.STOP]),
    )
    return _credit(
        dataclasses.replace(
            state,
            tokens=lax.dynamic_update_slice(state.tokens, tokens, (length,)),
            table=write_row(state.table, row, old[Count.MESSAGES]),
            counts=counts,
        ),
        live & legal & ~fits,
        old[Count.TURN] - 1,
    )


def prefill(
    state: ChatState,
    tokens: Int[Array, "W"],
    length: Int[Array, ""],
    where: Bool[Array, ""] | np.bool_ | bool = True,
) -> ChatState:
    """Put ids after the generation prompt: part of the answer's content, never of its loss mask.

    Legal while an answer is open and nothing of it was sampled, else ILLEGAL_ROLE_ORDER; what does not fit is
    refused whole with OVERFLOW; both truncate. A row that is done, or pending, stays as it is, with reward 0; so does
    one where ``where`` is False.
    """
    config, old = state.config, state.counts
    check_block("prefill", tokens, config.max_message_len, "max_message_len")
    live = ((old[Count.FLAGS] & int(Flag.BLOCKED)) == 0) & where
    legal = (old[Count.NEXT] == GENERATE) & (old[Count.SAMPLED] < 0)
    size = jnp.clip(length, 0, tokens.shape[0])
    fits = size <= config.capacity - old[Count.LENGTH]
    acts = live & legal & fits
    end = old[Count.LENGTH] + jnp.where(acts, size, 0)
    flags = set_flag(old[Count.FLAGS], Flag.TRUNCATED, live & ~acts)
    counts = old.at[np.array([Count.LENGTH, Count.MESSAGES, Count.FLAGS, Count.STATUS])].set(
        jnp.stack(
            [
                end,
                old[Count.MESSAGES] + opens_row(old, acts),
                set_flag(flags, Flag.LISTED, acts),
                first_status(
                    old[Count.STATUS],
                    (live & ~legal, Status.ILLEGAL_ROLE_ORDER),
                    (live & ~fits, Status.OVERFLOW),
                ),
            ]
        )
    )
    row = answer_row(old, end, jnp.int32(-1), jnp.int32(int(Finish.OPEN)))
    return _credit(
        dataclasses.replace(
            state,
            tokens=lax.dynamic_update_slice(state.tokens, tokens, (old[Count.LENGTH],)),
            table=write_row(state.table, row, row_index(old, acts)),
            counts=counts,
        ),
        live & legal & ~fits,
        old[Count.TURN],
    )


def terminate(state: ChatState, where: Bool[Array, ""] | bool = True) -> ChatState:
    """Set ``terminated`` where ``where`` is True: a stop rule of the task ended the episode."""
    flags = set_flag(state.counts[Count.FLAGS], Flag.TERMINATED, jnp.asarray(where))
    return dataclasses.replace(state, counts=state.counts.at[Count.FLAGS].set(flags))


def truncate(state: ChatState, status: Status, where: Bool[Array, ""] | np.bool_ | bool = True) -> ChatState:
    """Set ``truncated``, and a status that says why, where ``where`` is True: a fault that the core cannot see.

    The first status of a row stays.
    """
    old, where = state.counts, jnp.asarray(where)
    flags = set_flag(old[Count.FLAGS], Flag.TRUNCATED, where)
    first = where & (old[Count.STATUS] == int(Status.OK))
    counts = old.at[np.array([Count.FLAGS, Count.STATUS])].set(
        jnp.stack([flags, first_status(old[Count.STATUS], (first, status))])
    )
    return dataclasses.replace(state, counts=counts)


def credit(
    state: ChatState,
    reward: Float[Array, ""],
    turn: Int[Array, ""],
    where: Bool[Array, ""] | np.bool_ | bool = True,
) -> ChatState:
    """Add a reward to the last transition's, and to that of a turn (counted from 0), where ``where`` is True."""
    reward = jnp.where(where, reward, jnp.float32(0))
    here = jnp.arange(state.config.max_turns) == jnp.maximum(turn, 0)
    turn_rewards = state.turn_rewards + jnp.where(here, reward, jnp.float32(0))
    return dataclasses.replace(state, reward=state.reward + reward, turn_rewards=turn_rewards)


def _credit(state: ChatState, overflow: Bool[Array, ""], turn: Int[Array, ""]) -> ChatState:
    """Give the transition its reward, which the core knows only for an overflow."""
    state = dataclasses.replace(state, reward=jnp.zeros_like(state.reward))
    amount = state.config.overflow_reward
    return credit(state, jnp.float32(amount), turn, overflow) if amount else state
