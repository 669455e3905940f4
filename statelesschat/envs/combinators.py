"""Rewards, stop rules and the other side of the conversation, each a function from Env to Env.

The innermost acts first. So ``with_reply(with_stop(with_reward(env, judge), solved), reply)`` judges an answer, then
ends the episode if it was right, and replies where it goes on.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from statelesschat.core.transition import credit, terminate, truncate
from statelesschat.core.types import Action, ChatState, Kind, Message, Status
from statelesschat.envs.env import Env, EnvState, answered, append, as_partial, combine, prefill

Reward = Callable[[ChatState, Action], Float[Array, ""]]
"""A pure function of the conversation after the answer, and the action: a float32 scalar, NaN where it cannot tell."""

Predicate = Callable[[ChatState, Action], Bool[Array, ""]]
"""A pure function of the conversation after the answer, and the action."""

Reply = Callable[[ChatState, Action], tuple[Message, Bool[Array, ""]]]
"""What the other side says to an answer, and whether it says anything."""


def with_reward(env: Env, reward: Reward) -> Env:
    """Judge each finished answer; its reward is the transition's, and is kept in ``turn_rewards`` for its turn.

    A reward that is NaN or infinite means that the answer could not be judged (it did not fit the verifier's window, a
    gold answer is unusable): the row gets 0, status FORMAT_ERROR, and is truncated. Answers that go on
    (``finished=False``), that were cut by the capacity, and rows that are done get nothing.

    Args:
        env: what it wraps.
        reward: `Reward`; with arrays of its own as a ``jax.tree_util.Partial``, which makes them part of the env.
    """
    return combine(env, _rewarded, arrays=as_partial(reward))


def _rewarded(step: Any, reward: Reward, own: Any, state: EnvState, action: Action) -> tuple[EnvState, Any]:
    turn = state.chat.turn
    state = step(state, action)
    acts = answered(state.chat, turn)
    value = jnp.asarray(reward(state.chat, action), jnp.float32)
    if value.ndim:
        raise ValueError(f"the reward has shape {value.shape}; it is a function of one row and gives a scalar")
    judged = jnp.isfinite(value)
    chat = credit(state.chat, jnp.where(judged, value, jnp.float32(0)), turn, acts)
    chat = truncate(chat, Status.FORMAT_ERROR, acts & ~judged)
    return dataclasses.replace(state, chat=chat), own


def with_stop(env: Env, stop: Predicate | None = None) -> Env:
    """End the episode (``terminated``) behind a finished answer for which ``stop`` holds; by default behind any.

    Where something already followed the answer, and a new one is open, nothing is ended.
    """
    return combine(env, _stopped, arrays=as_partial(_always if stop is None else stop))


def _always(state: ChatState, action: Action) -> Bool[Array, ""]:
    return jnp.bool_(True)


def _stopped(step: Any, stop: Predicate, own: Any, state: EnvState, action: Action) -> tuple[EnvState, Any]:
    turn = state.chat.turn
    state = step(state, action)
    acts = answered(state.chat, turn) & ~state.chat.awaits_answer
    return dataclasses.replace(state, chat=terminate(state.chat, acts & _flag(stop(state.chat, action)))), own


def with_reply(env: Env, reply: Reply | None = None, *, random: bool = False) -> Env:
    """Let the other side speak after each finished answer, until it has nothing to say: then the row is terminated.

    Args:
        env: what it wraps.
        reply: a function of (state, action) that gives a `Message` of one width (of `Codec.encode_messages`, `glue`,
            or a choice between such) and whether it is said; by default what the data brings: ``info.script``, a
            `Message` with a leading axis of turns, one said after the other, a length of 0 for none.
        random: True calls ``reply(state, action, key)``, with a new key of the row's own in each step.
    """
    if reply is None:
        return combine(env, _scripted, own=np.int32(0))
    return combine(env, _replied, static=(bool(random),), arrays=as_partial(reply))


def _replied(
    random: bool, step: Any, reply: Callable[..., Any], own: Any, state: EnvState, action: Action
) -> tuple[EnvState, Any]:
    turn = state.chat.turn
    state = step(state, action)
    if random:
        key, used = jax.random.split(state.key)
        state = dataclasses.replace(state, key=key)
        message, speaks = reply(state.chat, action, used)
    else:
        message, speaks = reply(state.chat, action)
    return _said(state, turn, message, speaks)[0], own


def _scripted(step: Any, arrays: Any, said: Array, state: EnvState, action: Action) -> tuple[EnvState, Any]:
    turn = state.chat.turn
    state = step(state, action)
    script = getattr(state.chat.info, "script", None)
    if not isinstance(script, Message):
        raise ValueError(
            "with_reply without a function reads info.script, which this data lacks; give a column turns when the "
            "table is made, or a reply function"
        )
    turns = script.tokens.shape[0]
    message = jax.tree.map(lambda leaf: leaf[jnp.minimum(said, turns - 1)], script)
    state, spoke = _said(state, turn, message, (said < turns) & (message.length > 0))
    return state, said + spoke.astype(jnp.int32)


def _said(state: EnvState, turn: Array, message: Message, speaks: Array) -> tuple[EnvState, Array]:
    acts, speaks = answered(state.chat, turn) & ~state.chat.awaits_answer, _flag(speaks)
    says = acts & speaks & ~state.chat.done
    state = append(state, message, says)
    # Also behind the last turn that the limit allows: then the row is both terminated and truncated.
    return dataclasses.replace(state, chat=terminate(state.chat, acts & ~speaks)), says


def with_thinking_prompt(
    env: Env,
    message: Message,
    when: Predicate,
    *,
    prefilled: tuple[Any, Any] | None = None,
    times: int = 1,
) -> Env:
    """Ask for another answer, up to ``times`` in a conversation, behind one for which ``when`` holds.

    It decides before the episode is ended: wrap `with_stop` around it, which passes over an answer that is to be
    thought over. Nothing is edited and no row that is done comes back: behind the last turn that the limit allows,
    nothing is asked. Each answer is judged by a `with_reward` inside or around it; inside, ``when`` can go by the
    reward.

    Args:
        env: what it wraps.
        message: what is said, one row (no batch axis) of `Codec.encode_messages`; an answer has to follow it.
        when: `Predicate`.
        prefilled: ids, int32[W], and how many they are, that the new answer begins with; they are not trained on.
        times: how often in a conversation.

    Example:
        >>> import jax, jax.numpy as jnp, statelesschat as sc
        >>> tokenizer = sc.load_tokenizer(None)
        >>> config = sc.make_config(tokenizer, capacity=256, max_messages=8, max_message_len=64, max_turns=4)
        >>> codec = sc.Codec(tokenizer, config)
        >>> again = jax.tree.map(lambda leaf: leaf[0], codec.encode_messages("user", ["Are you sure?"]))
        >>> hasty = lambda state, action: action.length < 4
        >>> env = sc.with_stop(sc.with_thinking_prompt(sc.chat_env(config), again, hasty))
        >>> states = sc.begin(env, codec.encode(["2+3?"]), jax.random.key(0))
        >>> for answer in ("5", "5"):
        ...     states = jax.vmap(env.step)(states, codec.encode_actions([answer]))
        >>> [m["content"] for m in codec.decode_history(states.chat)[0]]
        ['2+3?', '5', 'Are you sure?', '5']
    """
    if isinstance(times, bool) or not isinstance(times, int) or times < 1:
        raise ValueError(f"times={times!r}; give a whole number of 1 or more")
    if np.ndim(message.tokens) != 1:
        raise ValueError(
            f"the message has tokens of shape {np.shape(message.tokens)}; give one row: "
            "jax.tree.map(lambda leaf: leaf[0], codec.encode_messages(...))"
        )
    if int(message.header[-1]) != int(Kind.GENERATE):
        raise ValueError("the message is followed by no answer; encode it with next='generate'")
    front = None if prefilled is None else (jnp.asarray(prefilled[0], jnp.int32), jnp.asarray(prefilled[1], jnp.int32))
    arrays = jax.tree.map(jnp.asarray, message), front, as_partial(when)
    return combine(env, _thought_over, static=(times,), arrays=arrays, own=np.int32(0))


def _thought_over(
    times: int, step: Any, arrays: Any, asked: Array, state: EnvState, action: Action
) -> tuple[EnvState, Any]:
    message, front, when = arrays
    turn = state.chat.turn
    state = step(state, action)
    acts = answered(state.chat, turn) & ~state.chat.done & ~state.chat.awaits_answer & (asked < times)
    asks = acts & _flag(when(state.chat, action))
    state = append(state, message, asks)
    if front is not None:
        state = prefill(state, front[0], front[1], asks & ~state.chat.done)
    return state, asked + asks.astype(jnp.int32)


def _flag(value: Any) -> Bool[Array, ""]:
    """What a user's function says, also where it is a bool of Python."""
    return jnp.asarray(value, bool)
