"""Environments whose other side is on the host: an answer goes out, a reply, a reward or both come back."""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from statelesschat.core.transition import credit, terminate, truncate
from statelesschat.core.types import Action, ChatState, Column, Status
from statelesschat.core.views import last_response, latest_answer
from statelesschat.core.waiting import pend, settle
from statelesschat.envs.env import Env, EnvState, answered, append, combine
from statelesschat.host.bridge import Reached, cross
from statelesschat.host.desk import Answer, Ask, Desk, Got, Verdict, message_at
from statelesschat.host.registry import Called, Registry
from statelesschat.host.session import Outcome, Reply
from statelesschat.host.visit import Visit
from statelesschat.text.codec import Codec

SAID = (Outcome.OK, Outcome.TIMEOUT, Outcome.REFUSED)  # outcomes that the model is told of, and goes on


def with_session(
    env: Env,
    codec: Codec,
    registry: Registry,
    *,
    role: Any = "user",
    messages: int = 1,
    read: Callable[[str], bytes] = str.encode,
    show: Callable[[Reply], str | None] | None = None,
    deadline_s: float | None = None,
    response_len: int | None = None,
) -> Env:
    r"""Give each conversation a session of its own: an answer is a command, its output is what is said next.

    The session starts with an episode's first command, and ends with the episode; where it is a combinator further
    out that ends it, it lives until the row begins anew, or until ``registry.release()``. A command that times out is
    told to the model, with what it wrote until then. An episode whose session says ``exit`` or ``submit`` is
    terminated; what a session is worth by itself (``Reply.reward``) is the turn's reward. A session that died, or could
    not be had, ends its row with status HOST_ERROR: `host.check` says why.

    Called outside of jit, as ``jax.vmap(env.step)(states, actions)``, the host is reached by a plain call: the better
    way for commands that run long. Within jit it is one callback for the whole batch.

    Args:
        env: what it wraps.
        codec: of the environment's config.
        registry: of the sessions.
        role: who says the output.
        messages: the most messages in a reply; only a session that gives ``parts`` has more than one.
        read: an answer's text to a command, on the host.
        show: a reply to what the model is told, None for nothing; by default `show_reply`.
        deadline_s: seconds until a step goes on without rows that are not ready: these are PENDING, take part in
            nothing, and are collected by a later step. None: a step takes as long as its slowest row.
        response_len: ids of an answer that are sent, by default ``max_response_len``: raise it where answers are given
            in pieces. A longer answer is not run, and the model is told so.

    Example:
        >>> import jax, statelesschat as sc
        >>> from statelesschat.host import Registry, ShellSession, with_session
        >>> tokenizer = sc.load_tokenizer(None)
        >>> config = sc.make_config(tokenizer, capacity=512, max_messages=8, max_message_len=128, max_turns=4)
        >>> codec = sc.Codec(tokenizer, config)
        >>> with Registry(lambda: ShellSession(isolation="none")) as registry:
        ...     env = with_session(sc.chat_env(config), codec, registry)
        ...     states = sc.begin(env, codec.encode(["Count to two."]), jax.random.key(0))
        ...     states = jax.jit(jax.vmap(env.step))(states, codec.encode_actions(["echo 1; echo 2"]))
        >>> codec.decode_history(states)[0][-1]
        {'role': 'user', 'content': '1\n2\n'}
    """

    def serve(answers: list[Answer]) -> list[Verdict]:
        commands = [_command(answer, read) for answer in answers]
        runs = {i: command for i, command in enumerate(commands) if isinstance(command, bytes)}
        tickets = [answers[i].ticket for i in runs]
        called = dict(zip(runs, registry.call(tickets, list(runs.values()), deadline_s=deadline_s), strict=True))
        return [
            _verdict(called[i], show or show_reply) if i in called else _unread(answer, str(commands[i]))
            for i, answer in enumerate(answers)
        ]

    return with_host(env, codec, serve, role=role, messages=messages, response_len=response_len)


def with_host(
    env: Env,
    codec: Codec,
    serve: Callable[[list[Answer]], list[Verdict]],
    *,
    role: Any = "user",
    messages: int = 1,
    response_len: int | None = None,
    tell: Callable[[ChatState], Int[Array, "T"]] | None = None,
) -> Env:
    """Let a function on the host reply to finished answers, of all rows at once: what all of ``host`` stands on.

    Args:
        env: what it wraps.
        codec: of the environment's config.
        serve: a list of `Answer` to as many `Verdict`, numpy and Python only; several threads may call it at once.
        role: who speaks.
        messages: the most messages in a turn; 0: it only judges.
        response_len: ids of an answer that are sent, by default ``max_response_len``.
        tell: what else goes with an answer, int32[T] of the conversation, as a module's function: `Answer.told`.
    """
    config = codec.config
    width = config.max_response_len if response_len is None else response_len
    desk = Desk(codec, serve, role=role, messages=messages, response_len=width, message_len=config.max_message_len)
    # The desk is reached by its handle, which is data: environments alike but for their desks share their programs.
    static = desk.answer_width, messages, width, tell, config.max_message_len
    return combine(env, _visited, static=static, own=Visit.fresh(desk.handle), renew=Visit.renewed, eager=True)


def show_reply(reply: Reply) -> str:
    """What the model is told of a reply: its output as text, and what went wrong if anything did."""
    text = reply.obs.decode("utf-8", "backslashreplace")
    if reply.outcome is Outcome.TIMEOUT:
        return f"{text}\n[{reply.detail or 'stopped: it took too long'}]".lstrip("\n")
    if reply.outcome is Outcome.REFUSED:
        return f"[not run: {reply.detail}]"
    return text


def _command(answer: Answer, read: Callable[[str], bytes]) -> bytes | str:
    """The command of an answer, or why there is none."""
    if not answer.whole:
        return "the answer is longer than what can be run; shorten it"
    try:
        return bytes(read(answer.text))
    except (ValueError, TypeError) as error:
        return str(error)


def _unread(answer: Answer, why: str) -> Verdict:
    slot, generation = answer.ticket.slot, answer.ticket.generation
    return Verdict(slot, generation, outcome=Outcome.REFUSED, messages=(f"[not run: {why}]",), ran=False)


def _verdict(called: Called, show: Callable[[Reply], str | None]) -> Verdict:
    """What a reply means for the row."""
    reply = called.reply
    if reply is None:
        return Verdict(called.slot, called.generation, pending=True)
    ended = reply.event in ("exit", "submit")
    lost = reply.outcome not in SAID and not ended
    shown = None if lost or reply.parts else show(reply)
    said = tuple(part.message() for part in reply.parts) if shown is None else (shown,)
    return Verdict(
        called.slot,
        called.generation,
        outcome=reply.outcome,
        detail=reply.detail,
        error=reply.error,
        messages=() if ended or lost else said,
        reward=reply.reward,
        terminate=ended,
        fault=lost,
    )


def _visited(
    answer_width: int,
    messages: int,
    width: int,
    tell: Callable[[ChatState], Array] | None,
    message_len: int,
    step: Any,
    arrays: Any,
    visit: Visit,
    state: EnvState,
    action: Action,
) -> tuple[EnvState, Visit]:
    """One step: whatever is inside, then the host, then what it said."""
    turn = state.chat.turn
    state = step(state, action)
    packed, acts = _asking(width, tell, visit, state, turn)
    reached, answer = cross(packed, visit.handle, acts, answer_width)
    return _told(messages, message_len, visit, state, turn, acts, reached, answer)


@partial(jax.jit, static_argnums=(0, 1))
def _asking(
    width: int, tell: Callable[[ChatState], Array] | None, visit: Visit, state: EnvState, turn: Array
) -> tuple[Int[Array, "A"], Bool[Array, ""]]:
    chat = state.chat
    acts = answered(chat, turn) | visit.waits
    tokens, length = last_response(chat, width)
    line = latest_answer(chat)
    seed = jax.random.key_data(state.key).reshape(-1)[-1].astype(jnp.int32) & jnp.int32(2**31 - 1)
    told = {
        Ask.SLOT: visit.slot,
        Ask.GENERATION: visit.generation,
        Ask.CALLS: visit.calls,
        Ask.SEED: seed,
        Ask.FINAL: chat.done | ((turn + 1) >= chat.turn_limit),
        Ask.TURN: turn,
        Ask.ROW: _info(chat, "row_id"),
        Ask.GROUP: _info(chat, "group_id"),
        Ask.REPEAT: _info(chat, "repeat_id"),
        Ask.FINISH: line[Column.FINISH],
        Ask.FIRST: line[Column.PIECE_START] == 0,
        Ask.LENGTH: length,
    }
    front = jnp.stack([jnp.asarray(told[name], jnp.int32) for name in Ask])
    more = [] if tell is None else [jnp.asarray(tell(chat), jnp.int32)]
    return jnp.concatenate([front, tokens, *more]), acts


@partial(jax.jit, static_argnums=(0, 1))
def _told(
    messages: int,
    message_len: int,
    visit: Visit,
    state: EnvState,
    turn: Array,
    acts: Bool[Array, ""],
    reached: Int[Array, ""],
    answer: Int[Array, "K"],
) -> tuple[EnvState, Visit]:
    broken = acts & (reached != int(Reached.ANSWERED))
    pending = acts & ~broken & (answer[Got.PENDING] != 0)
    ready = acts & ~pending
    chat = pend(settle(state.chat, visit.waits & ready), pending & ~visit.waits)
    reward = jax.lax.bitcast_convert_type(answer[Got.REWARD], jnp.float32)
    judged = jnp.isfinite(reward)
    chat = credit(chat, jnp.where(judged, reward, jnp.float32(0)), turn, ready & ~broken)
    chat = truncate(chat, Status.HOST_ERROR, broken | (ready & (answer[Got.FAULT] != 0)))
    chat = truncate(chat, Status.FORMAT_ERROR, ready & ~broken & ~judged)
    state = dataclasses.replace(state, chat=chat)
    for place in range(messages):
        message = message_at(answer, place, message_len)
        state = append(state, message, ready & (message.length > 0) & ~state.chat.done)
    ends = ready & (answer[Got.TERMINATE] != 0)
    state = dataclasses.replace(state, chat=terminate(state.chat, ends))
    outcome = jnp.where(broken, int(Outcome.FAULT), answer[Got.OUTCOME])
    ran = broken | (answer[Got.RAN] != 0)
    return state, visit.after(acts, ready, broken, answer[Got.SLOT], answer[Got.GENERATION], outcome, ran)


def _info(chat: ChatState, name: str) -> Any:
    """What the data says of the row, -1 where it says nothing."""
    value = getattr(chat.info, name, None)
    return np.int32(-1) if value is None else value
