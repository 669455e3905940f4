"""Whole batches through an environment, as one `lax.scan`."""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from statelesschat.core.types import Action, ChatData
from statelesschat.envs.env import Env, EnvState, restart


class Policy(Protocol):
    """A pair of pure functions of a *batch* of states."""

    @property
    def init(self) -> Callable[[Any, EnvState], Any]:
        """``(params, states) -> carry``, as a cache."""
        ...

    @property
    def act(self) -> Callable[[Any, Any, PRNGKeyArray, EnvState], tuple[Any, Action]]:
        """``(params, carry, key, states) -> (carry, action)``. Rows that are done or wait may be given anything."""
        ...


class Turn(NamedTuple):
    """What is kept of each turn of each row; all arrays are [T, B]."""

    reward: Float[Array, "T B"]  # float32
    terminated: Bool[Array, "T B"]
    truncated: Bool[Array, "T B"]
    status: Int[Array, "T B"]  # int32, a `Status`
    length: Int[Array, "T B"]  # int32, ids in the conversation after the turn
    ended: Bool[Array, "T B"]  # the episode ended in this turn


def rollout(
    env: Env, policy: Policy, params: Any, states: EnvState, key: PRNGKeyArray, num_turns: int
) -> tuple[EnvState, Turn]:
    """``num_turns`` answers of a policy. Rows that are done stay as they are.

    The final states hold every token; of the turns only small arrays are kept, never a buffer. Give the environment and
    the policy's params as arguments of what is jitted.

    Args:
        env: one row's functions; they are vmapped here.
        policy: `Policy`; anything with its two functions.
        params: the policy's, handed on.
        states: axis B, as `begin` gives them.
        key: for the policy, a new one for each turn.
        num_turns: T, static.

    Returns:
        The states after the last turn, and a `Turn` of arrays [T, B].
    """

    def turn(carry: tuple[Any, EnvState], key: PRNGKeyArray) -> tuple[tuple[Any, EnvState], Turn]:
        memory, states = carry
        memory, action = policy.act(params, memory, key, states)
        after = jax.vmap(env.step)(states, action)
        return (memory, after), _turn(states, after)

    carry = policy.init(params, states), states
    (_, states), turns = jax.lax.scan(turn, carry, jax.random.split(key, num_turns))
    return states, turns


def collect(
    env: Env,
    policy: Policy,
    params: Any,
    states: EnvState,
    key: PRNGKeyArray,
    num_turns: int,
    *,
    source: Any,
    draw: Callable[[Any, Bool[Array, "B"]], tuple[Any, ChatData, Bool[Array, "B"]]],
    total: Any,
    hand_over: Callable[[Any, EnvState, Bool[Array, "B"]], Any],
) -> tuple[EnvState, Any, Any, Turn]:
    """``num_turns`` answers, every finished episode handed over and its row begun anew, in one scan.

    There is no hidden reset: in each turn the policy answers, ``hand_over`` is given all states and which of them have
    just ended, and only then do the rows that are done begin anew with what ``draw`` deals them. A row that is dealt
    nothing (an exhausted source) stays done, and is not handed over again.

    Args:
        env: one row's functions.
        policy: `Policy`. Where a row has begun anew its ``chat.turn`` is 0 again.
        params: the policy's.
        states: axis B, as `begin` gives them.
        key: for the policy.
        num_turns: T, static.
        source: what rows are drawn from, as a `Cursor`.
        draw: ``(source, where) -> (source, data, valid)``: as many rows as are True in ``where``, in their places. For
            a table: ``lambda cursor, where: next_batch(cursor, table, B, repeats, where=where)``.
        total: what ``hand_over`` adds up, a pytree.
        hand_over: ``(total, states, ended) -> total``; what it keeps of the buffers it pays for in every turn.

    Returns:
        States, source and total after the last turn, and a `Turn` of arrays [T, B].
    """

    def turn(carry: tuple[Any, EnvState, Any, Any], key: PRNGKeyArray) -> tuple[tuple[Any, EnvState, Any, Any], Turn]:
        memory, states, source, total = carry
        memory, action = policy.act(params, memory, key, states)
        after = jax.vmap(env.step)(states, action)
        kept = _turn(states, after)
        total = hand_over(total, after, kept.ended)
        source, data, valid = draw(source, after.done)
        return (memory, restart(env, after, data, after.done & valid), source, total), kept

    carry = policy.init(params, states), states, source, total
    (_, states, source, total), turns = jax.lax.scan(turn, carry, jax.random.split(key, num_turns))
    return states, source, total, turns


def _turn(before: EnvState, after: EnvState) -> Turn:
    """Of what ended before this turn the reward is 0 already."""
    chat = after.chat
    ended = after.done & ~before.done
    return Turn(chat.reward, chat.terminated, chat.truncated, chat.status, chat.length, jnp.asarray(ended))
