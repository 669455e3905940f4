"""A conversation as plain Python lists: slow, obvious, and written from the design rather than from the core.

Every id remembers who wrote it, so masks, logprobs, message, role and turn ids are read off, never computed.
"""

import copy
import dataclasses
from typing import Any

import jax
import numpy as np

import statelesschat as sc
from statelesschat import Action, ChatConfig, ChatData, ChatState, Finish, Kind, Message, Status
from statelesschat.core.types import Column, Header


@dataclasses.dataclass
class Token:
    """One id and where it came from."""

    id: int
    message: int
    role: int
    turn: int
    sampled: bool = False
    logprob: float = 0.0


@dataclasses.dataclass
class Entry:
    """One message; ``stepped`` where `step` wrote to it after any prefill."""

    kind: int
    previous: int
    next: int
    finish: int
    piece: tuple[int, int] | None = None
    stepped: bool = False


@dataclasses.dataclass
class Conversation:
    """What the transitions of the core must amount to."""

    config: ChatConfig
    tokens: list[Token] = dataclasses.field(default_factory=list)
    messages: list[Entry] = dataclasses.field(default_factory=list)
    turn: int = 0
    limit: int = 0
    terminated: bool = False
    truncated: bool = False
    status: Status = Status.OK
    reward: float = 0.0
    turn_rewards: list[float] = dataclasses.field(default_factory=list)
    begun: int = 0  # where what was written since the latest answer begins

    def __post_init__(self) -> None:
        self.limit = self.config.max_turns
        self.turn_rewards = [0.0] * self.config.max_turns

    @property
    def done(self) -> bool:
        return self.terminated or self.truncated

    @property
    def last(self) -> Entry | None:
        return self.messages[-1] if self.messages else None

    @property
    def listed(self) -> bool:
        """Whether the open answer is among the messages already."""
        return self.last is not None and self.last.finish == Finish.OPEN

    @property
    def opened(self) -> bool:
        """Whether an answer is open."""
        return self.last is not None and (self.listed or self.last.next == Kind.GENERATE)

    @property
    def kind(self) -> int:
        """Kind of the last whole message."""
        if self.last is None:
            return Kind.START
        return self.last.previous if self.listed else self.last.kind

    @property
    def sampled_here(self) -> bool:
        """Whether the open answer has sampled ids."""
        index = len(self.messages) - 1
        return self.listed and any(t.sampled for t in self.tokens if t.message == index)

    @property
    def ended_in_stop(self) -> bool:
        """Whether the conversation ends in the stop id of a finished answer, so that no closing needs it again."""
        return self.last is not None and self.last.finish == Finish.STOP and not self.opened

    def reset(self, data: ChatData) -> None:
        fresh = Conversation(self.config)
        ids, count = np.asarray(data.tokens).tolist(), int(data.length)
        rows = [r for r in np.asarray(data.table).tolist() if r[Column.KIND] >= 0]
        for row in rows:
            entry = Entry(row[Column.KIND], row[Column.PREVIOUS], row[Column.NEXT], row[Column.FINISH])
            entry.piece = row[Column.PIECE_START], row[Column.PIECE_END]
            fresh.messages.append(entry)
        for position in range(count if rows else 0):
            owner = sum(r[Column.START] <= position for r in rows) - 1
            fresh.tokens.append(Token(ids[position], owner, rows[owner][Column.KIND], 0))
        fresh.limit = min(int(data.turn_limit), self.config.max_turns)
        fresh.truncated = fresh.limit <= 0
        if len(rows) + int(fresh.opened) > self.config.max_messages:
            fresh.truncated, fresh.status = True, Status.TOO_MANY_MESSAGES
        self.__dict__.update(fresh.__dict__)

    def restart(self, data: ChatData, where: bool) -> None:
        if where:
            self.reset(data)

    def step(self, action: Action) -> None:
        self.reward = 0.0
        if self.done:
            return
        if not self.opened:
            return self._refuse(Status.ILLEGAL_ROLE_ORDER)
        ids = np.asarray(action.tokens).tolist()[: max(int(action.length), 0)]
        probs = [0.0] * len(ids) if action.logprobs is None else np.asarray(action.logprobs).tolist()
        room = self.config.capacity - len(self.tokens)
        cut = len(ids) > room
        entry = self._list_answer()
        entry.stepped = True
        for id, logprob in list(zip(ids, probs, strict=False))[:room]:
            self._write(id, True, logprob)
        self.begun = len(self.tokens)
        if not (bool(action.finished) or cut):
            return None
        written = [t for t in self.tokens if t.message == len(self.messages) - 1 and t.sampled]
        stops = bool(written) and written[-1].id in self.config.template.stop_ids and not cut
        entry.finish = Finish.STOP if stops else Finish.LENGTH
        self.turn += 1
        if cut:
            self._refuse(Status.OVERFLOW, self.turn - 1)
        self.truncated |= self.turn >= self.limit
        return None

    def append(self, message: Message) -> None:
        self.reward = 0.0
        if self.done:
            return None
        header, count = np.asarray(message.header).tolist(), int(message.length)
        ids = np.asarray(message.tokens).tolist()
        kind, previous, next = header[Header.KIND], header[Header.PREVIOUS], header[Header.NEXT]
        expected = Kind.NONE if self.last is None else self.last.next
        if self.opened or previous != self.kind or expected not in (Kind.NONE, kind) or count > len(ids):
            return self._refuse(Status.ILLEGAL_ROLE_ORDER)
        shift = dict(self.config.template.shifts).get(self.kind, 0) if self.ended_in_stop else 0
        block = ids[shift:count]
        if len(self.tokens) + len(block) > self.config.capacity:
            return self._refuse(Status.OVERFLOW, self.turn - 1)
        if len(self.messages) + 1 + int(next == Kind.GENERATE) > self.config.max_messages:
            return self._refuse(Status.TOO_MANY_MESSAGES)
        at = len(self.tokens) - shift
        piece = at + header[Header.PIECE_START], at + header[Header.PIECE_END]
        self.messages.append(Entry(kind, previous, next, Finish.NONE, piece))
        for id in block:
            self._write(id)
        return None

    def prefill(self, tokens: Any, length: int) -> None:
        self.reward = 0.0
        if self.done:
            return None
        ids = np.asarray(tokens).tolist()[: max(int(length), 0)]
        if not self.opened or self.sampled_here:
            return self._refuse(Status.ILLEGAL_ROLE_ORDER)
        if len(self.tokens) + len(ids) > self.config.capacity:
            return self._refuse(Status.OVERFLOW, self.turn)
        self._list_answer().stepped = False
        for id in ids:
            self._write(id)
        return None

    def terminate(self, where: bool) -> None:
        self.terminated |= bool(where)

    def rewind(self, count: int) -> None:
        count = min(max(int(count), 0), len(self.messages))
        self.messages = copy.deepcopy(self.messages[:count])
        self.tokens = [t for t in self.tokens if t.message < count]
        finished = [i for i, m in enumerate(self.messages) if m.stepped and m.finish != Finish.OPEN]
        stepped = [i for i, m in enumerate(self.messages) if m.stepped]
        self.begun = sum(t.message <= stepped[-1] for t in self.tokens) if stepped else 0
        self.turn, self.terminated, self.reward = len(finished), False, 0.0
        crowded = count + int(self.opened and not self.listed) > self.config.max_messages
        self.truncated = self.turn >= self.limit or crowded
        self.status = Status.TOO_MANY_MESSAGES if crowded else Status.OK
        if self.last is not None and self.last.finish in (Finish.STOP, Finish.LENGTH) and not self.opened:
            self.last.next = Kind.NONE
        kept = self.turn + int(self.opened)
        self.turn_rewards = [r if i < kept else 0.0 for i, r in enumerate(self.turn_rewards)]

    def _list_answer(self) -> Entry:
        if not self.listed:
            self.messages.append(Entry(Kind.ASSISTANT, self.kind, Kind.NONE, Finish.OPEN))
        return self.messages[-1]

    def _write(self, id: int, sampled: bool = False, logprob: float = 0.0) -> None:
        index = len(self.messages) - 1
        self.tokens.append(Token(id, index, self.messages[index].kind, self.turn, sampled, logprob))

    def _refuse(self, status: Status, turn: int = 0) -> None:
        self.truncated, self.status = True, status
        if status == Status.OVERFLOW:
            self.reward = self.config.overflow_reward
            self.turn_rewards[min(max(turn, 0), len(self.turn_rewards) - 1)] += self.reward

    def observe(self) -> dict[str, Any]:
        """All that the views of the core show, as they must show it."""
        width, count = self.config.capacity, len(self.tokens)
        answers = [i for i, m in enumerate(self.messages) if m.stepped]
        response = [t.id for t in self.tokens if answers and t.message == answers[-1]]
        if answers and self.messages[answers[-1]].finish == Finish.STOP:
            response = response[:-1]
        since = [t.id for t in self.tokens[self.begun :]]
        pad = self.config.template.pad_id

        def full(values: list[Any], fill: Any = 0) -> list[Any]:
            return [*values, *[fill] * (width - len(values))]

        seen = {
            "tokens": full([t.id for t in self.tokens], pad),
            "length": count,
            "attention_mask": full([True] * count, False),
            "position_ids": full(list(range(count))),
            "loss_mask": full([t.sampled for t in self.tokens], False),
            "message_ids": full([t.message for t in self.tokens], -1),
            "role_ids": full([int(t.role) for t in self.tokens], -1),
            "turn_ids": full([t.turn for t in self.tokens], -1),
            "delta": full(since, pad),
            "delta_length": len(since),
            "last_response": full(response, pad),
            "last_response_length": len(response),
            "remaining": 0 if self.done else width - count,
            "num_messages": len(self.messages),
            "turn": self.turn,
            "turn_limit": self.limit,
            "terminated": self.terminated,
            "truncated": self.truncated,
            "done": self.done,
            "status": int(self.status),
            "awaits_answer": self.opened,
            "reward": self.reward,
            "turn_rewards": self.turn_rewards,
            "kinds": [int(m.kind) for m in self.messages],
            "finishes": [int(m.finish) for m in self.messages],
            "pieces": [m.piece for m in self.messages if m.piece is not None],
        }
        if self.config.store_logprobs:
            seen["logprobs"] = full([t.logprob for t in self.tokens], 0.0)
        return seen


@jax.jit
def views(state: ChatState) -> dict[str, Any]:
    """Every view and property of a state, in one call."""
    tokens, length = sc.prompt(state)
    since, since_length = sc.delta(state)
    response, response_length = sc.last_response(state)
    seen = {
        "tokens": tokens,
        "length": length,
        "delta": since,
        "delta_length": since_length,
        "last_response": response,
        "last_response_length": response_length,
        "reward": state.reward,
        "turn_rewards": state.turn_rewards,
        "table": state.table,
    }
    for view in (sc.attention_mask, sc.position_ids, sc.loss_mask, sc.message_ids, sc.role_ids, sc.turn_ids):
        seen[view.__name__] = view(state)
    seen["remaining"] = sc.remaining(state)
    for name in ("num_messages", "turn", "turn_limit", "terminated", "truncated", "done", "status", "awaits_answer"):
        seen[name] = getattr(state, name)
    if state.logprobs is not None:
        seen["logprobs"] = sc.sampled_logprobs(state)
    return seen


def observe(state: ChatState) -> dict[str, Any]:
    """The views of the core in the shape of `Conversation.observe`."""
    seen = {name: np.asarray(value).tolist() for name, value in views(state).items()}
    rows = seen.pop("table")[: seen["num_messages"]]
    seen["kinds"] = [r[Column.KIND] for r in rows]
    seen["finishes"] = [r[Column.FINISH] for r in rows]
    pieces = [(r[Column.PIECE_START], r[Column.PIECE_END]) for r in rows if r[Column.LEAD] >= 0]
    seen["pieces"] = pieces
    return seen
