"""Conversations driven through reset, step and append, a batch at a time."""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool

from statelesschat.core.transition import append, init, reset, step, terminate
from statelesschat.core.types import Action, ChatData, ChatState, Column, Count, Header, Kind, Message, Status
from statelesschat.core.views import loss_mask, prompt, role_ids, turn_ids
from statelesschat.replay.planning import Script
from statelesschat.text.codec import Codec
from statelesschat.text.fields import Content, message_dict
from statelesschat.text.inputs import kind_name
from statelesschat.text.reference import Sampled

T = TypeVar("T")


@dataclasses.dataclass
class Row:
    """One conversation of a batch, and how far it has come."""

    script: Script
    sampled: dict[int, Sampled] = dataclasses.field(default_factory=dict)  # by message
    fault: str = ""  # why it ended early: the name of a `Status`, or of what was too wide to be encoded
    fault_turn: int = 0  # the turn in which it did, from 1; 0 is the first prompt


class Prompts(NamedTuple):
    """Prompts that wait on the device for an answer, after `reset` (turn 0) or after a turn."""

    turn: int
    rows: list[Row]
    ready: list[int]  # rows whose next prompt is ready, by index
    upto: list[int]  # how many messages it holds, for each of ``ready``
    tokens: np.ndarray  # int32[B, capacity], padded
    counts: np.ndarray  # int32[B, 12], see `Count`


class Ending(NamedTuple):
    """What a batch leaves when all its conversations are over."""

    rows: list[Row]
    tokens: np.ndarray  # int32[B, capacity], padded
    counts: np.ndarray  # int32[B, 12], see `Count`
    table: np.ndarray  # int32[B, max_messages, 10], see `Column`
    loss_mask: np.ndarray  # bool[B, capacity]
    role_ids: np.ndarray  # int32[B, capacity]
    turn_ids: np.ndarray  # int32[B, capacity]
    histories: list[list[dict[str, str]]]


class Driver:
    """Drives batches of one size; each of the functions it calls is traced once for the config.

    Args:
        codec: of the config to run with.
        batch: B. A batch of fewer conversations is filled up with rows that are done at once (turn limit 0).
    """

    def __init__(self, codec: Codec, batch: int) -> None:
        self.codec = codec
        self.batch = batch
        self.jitted = dict(_JITTED)

    def warm_up(self) -> None:
        """Compile everything, on a batch of which no row is alive."""
        config, size, nobody = self.codec.config, self.batch, np.zeros(self.batch, bool)
        zeros = np.zeros(size, np.int32)
        table = np.full((size, config.max_messages, len(Column)), -1, np.int32)
        widths = config.max_prompt_len, config.max_response_len, config.max_message_len
        first, answer, block = (np.zeros((size, width), np.int32) for width in widths)
        header = np.zeros((size, len(Header)), np.int32)
        states = self.jitted["reset"](config, ChatData(first, zeros, table, zeros))  # type: ignore[arg-type]
        states = self.jitted["step"](states, Action(answer, zeros, None, nobody), nobody)  # type: ignore[arg-type]
        states = self.jitted["append"](states, Message(block, zeros, header), nobody)  # type: ignore[arg-type]
        jax.block_until_ready([self.jitted["prompt"](states), self.jitted["views"](states)])

    def drive(self, scripts: Sequence[Script]) -> Iterator[Prompts | Ending]:
        """Run at most ``batch`` conversations whose first prompts fit.

        Yields the first prompts, then those that each turn has brought, and at last the ending. A conversation that
        does not fit ends there: its ``fault`` says why.
        """
        rows = [Row(script) for script in scripts]
        everyone = list(range(len(rows)))
        states = self._start(rows)
        counts = _note(rows, states, 0)
        ready = [i for i in everyone if not rows[i].fault]
        yield Prompts(0, rows, ready, [rows[i].script.prompt for i in ready], self._tokens(states), counts)
        for turn in range(max(len(script.turns) for script in scripts)):
            acting = [i for i in everyone if not rows[i].fault and turn < len(scripts[i].turns)]
            if not acting:
                break
            states, answered = self._answer(states, rows, acting, turn)
            replying = [i for i in answered if scripts[i].turns[turn].replies]
            for place in range(max((len(scripts[i].turns[turn].replies) for i in replying), default=0)):
                states = self._reply(states, rows, replying, turn, place)
            counts = _note(rows, states, turn + 1)
            ready = [i for i in replying if not rows[i].fault]
            upto = [scripts[i].turns[turn].replies.stop for i in ready]
            if ready:
                yield Prompts(turn + 1, rows, ready, upto, self._tokens(states), counts)
        yield self._ending(rows, states)

    def _start(self, rows: Sequence[Row]) -> ChatState:
        names = self.codec.config.template.roles
        histories = []
        for script in (row.script for row in rows):
            messages = list(zip(script.kinds, script.contents, strict=True))[int(script.configured) : script.prompt]
            histories.append([message_dict(kind_name(kind, names), content) for kind, content in messages])
        data = self._spread(self.codec.encode(histories), range(len(rows)))
        limits = np.where(np.arange(self.batch) < len(rows), data.turn_limit, 0).astype(np.int32)
        return self.jitted["reset"](self.codec.config, dataclasses.replace(data, turn_limit=limits))  # type: ignore[arg-type]

    def _answer(
        self, states: ChatState, rows: Sequence[Row], acting: Sequence[int], turn: int
    ) -> tuple[ChatState, list[int]]:
        indices = {i: rows[i].script.turns[turn].answer for i in acting}
        fitting = self._fitting(rows, indices, self.codec.config.max_response_len, "ANSWER_TOO_WIDE", turn)
        if not fitting:
            return states, fitting
        action = self.codec.encode_actions([_as_input(rows[i].script.contents[indices[i]]) for i in fitting])
        stops = self.codec.config.template.stop_ids
        for i, tokens, length in zip(fitting, action.tokens, action.length, strict=True):
            ids = tokens[:length].tolist()
            rows[i].sampled[indices[i]] = Sampled(ids, bool(ids) and ids[-1] in stops)
        return self.jitted["step"](states, self._spread(action, fitting), self._where(fitting)), fitting

    def _reply(
        self, states: ChatState, rows: Sequence[Row], replying: Sequence[int], turn: int, place: int
    ) -> ChatState:
        indices = {i: replies[place] for i in replying if place < len(replies := rows[i].script.turns[turn].replies)}
        fitting = self._fitting(rows, indices, self.codec.config.max_message_len, "MESSAGE_TOO_WIDE", turn)
        if not fitting:
            return states
        messages = [(rows[i].script, indices[i]) for i in fitting]
        kinds = [script.kinds[index] for script, index in messages]
        contents = [_as_input(script.contents[index]) for script, index in messages]
        befores, afters = zip(*(script.neighbours(index) for script, index in messages), strict=True)
        block = self.codec.encode_messages(
            kinds, contents, previous=[Kind(k) for k in befores], next=[Kind(k) for k in afters]
        )
        return self.jitted["append"](states, self._spread(block, fitting), self._where(fitting))

    def _fitting(self, rows: Sequence[Row], indices: dict[int, int], width: int, fault: str, turn: int) -> list[int]:
        """The rows whose block can be encoded at all; the others end here, with a fault."""
        for i, index in indices.items():
            if not rows[i].fault and rows[i].script.size(index) > width:
                rows[i].fault, rows[i].fault_turn = fault, turn + 1
        return [i for i in indices if not rows[i].fault]

    def _tokens(self, states: ChatState) -> np.ndarray:
        return np.asarray(self.jitted["prompt"](states))

    def _ending(self, rows: list[Row], states: ChatState) -> Ending:
        masks, roles, turns = (np.asarray(view) for view in self.jitted["views"](states))
        table = np.asarray(states.table)[:, : self.codec.config.max_messages]
        tokens, counts = self._tokens(states), np.asarray(states.counts)
        return Ending(rows, tokens, counts, table, masks, roles, turns, self.codec.decode_history(states, calls=False))

    def _spread(self, block: T, places: Sequence[int]) -> T:
        """Blocks laid out over the batch; a row that has none gets the first, which it will ignore."""
        index = np.zeros(self.batch, np.int32)
        index[list(places)] = np.arange(len(places))
        return jax.tree.map(lambda leaf: leaf[index], block)

    def _where(self, places: Sequence[int]) -> np.ndarray:
        where = np.zeros(self.batch, bool)
        where[list(places)] = True
        return where


def _as_input(content: Content) -> str | dict[str, Any]:
    """A content as the codec takes it."""
    return content if isinstance(content, str) else message_dict("", content)


def only(
    transition: Callable[[ChatState, T], ChatState],
) -> Callable[[ChatState, T, Bool[Array, ""]], ChatState]:
    """A transition that happens where its third argument is True and leaves the conversation as it is elsewhere.

    The row that does not act is shown to the transition as done and then gets its counts back, which costs nothing of
    the buffer's size.
    """

    def masked(state: ChatState, block: T, where: Bool[Array, ""]) -> ChatState:
        after = transition(terminate(state, ~where), block)
        return dataclasses.replace(after, counts=jnp.where(where, after.counts, state.counts))

    return masked


def _note(rows: Sequence[Row], states: ChatState, turn: int) -> np.ndarray:
    """The counts, read from the device; faults that are new are noted in their rows."""
    counts = np.array(states.counts)  # a copy: the next transition takes the states' memory
    for row, status in zip(rows, counts[:, Count.STATUS], strict=False):
        if status != Status.OK and not row.fault:
            row.fault, row.fault_turn = Status(int(status)).name, turn
    return counts


_JITTED: dict[str, Callable[..., Any]] = {
    "reset": jax.jit(lambda config, data: jax.vmap(reset, (None, 0))(init(config), data), static_argnums=0),
    "step": jax.jit(jax.vmap(only(step)), donate_argnums=0),
    "append": jax.jit(jax.vmap(only(append)), donate_argnums=0),
    "prompt": jax.jit(lambda states: jax.vmap(prompt)(states)[0]),
    "views": jax.jit(lambda states: [jax.vmap(view)(states) for view in (loss_mask, role_ids, turn_ids)]),
}
