"""Conversations that wait for something outside: for a tool's result, for a grader's verdict."""

import dataclasses

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool

from statelesschat.core.packing import put_flag
from statelesschat.core.types import ChatState, Count, Flag, Status

_SHIFT = 5  # from `TERMINATED` and `TRUNCATED` to the bits that hold them while a row waits
_HELD = int(Flag.DONE) << _SHIFT


def pend(state: ChatState, where: Bool[Array, ""] | np.bool_ | bool = True) -> ChatState:
    """Let a conversation wait, behind an answer whose consequences are not known yet, where ``where`` is True.

    While it waits its status is PENDING, `step`, `append` and `prefill` change nothing, no answer is open, and the
    answer does not count as a turn: what looks for finished answers finds this one when it is settled. Whether the
    answer ended the episode is held back as long. A row that waits already, or has a fault, stays as it is.

    Example:
        >>> import jax, statelesschat as sc
        >>> tokenizer = sc.load_tokenizer(None)
        >>> config = sc.make_config(tokenizer, capacity=256, max_messages=8, max_message_len=64, max_turns=2)
        >>> codec = sc.Codec(tokenizer, config)
        >>> states = jax.vmap(sc.reset, (None, 0))(sc.init(config), codec.encode(["List the files.", "Hi"]))
        >>> states = jax.vmap(sc.step)(states, codec.encode_actions(["ls", "Hello"]))
        >>> waits = jax.vmap(sc.pend)(states, jax.numpy.array([True, False]))
        >>> waits.status.tolist(), waits.turn.tolist(), jax.vmap(sc.settle)(waits).turn.tolist()
        ([5, 0], [0, 1], [1, 1])
    """
    old = state.counts
    where = jnp.asarray(where) & (old[Count.STATUS] == int(Status.OK)) & (old[Count.TURN] > 0)
    flags = old[Count.FLAGS]
    held = (flags & ~int(Flag.DONE)) | ((flags & int(Flag.DONE)) << _SHIFT) | int(Flag.PENDING)
    return _put(state, where, held, int(Status.PENDING), old[Count.TURN] - 1)


def settle(state: ChatState, where: Bool[Array, ""] | np.bool_ | bool = True) -> ChatState:
    """Take a conversation up again that waits, where ``where`` is True: all is as it was before `pend`."""
    old = state.counts
    flags = old[Count.FLAGS]
    where = jnp.asarray(where) & ((flags & int(Flag.PENDING)) != 0)
    freed = put_flag(flags & ~_HELD, Flag.PENDING, jnp.bool_(False)) | ((flags & _HELD) >> _SHIFT)
    return _put(state, where, freed, int(Status.OK), old[Count.TURN] + 1)


def _put(state: ChatState, where: Bool[Array, ""], flags: Array, status: int, turn: Array) -> ChatState:
    old = state.counts
    new = old.at[np.array([Count.FLAGS, Count.STATUS, Count.TURN])].set(jnp.stack([flags, jnp.int32(status), turn]))
    return dataclasses.replace(state, counts=jnp.where(where, new, old))
