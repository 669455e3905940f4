"""Laws 1 to 5: any program of transitions does what the plain-Python conversation does."""

from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import statelesschat as sc
from statelesschat import ChatData, Finish, Kind, Status
from tests import toy
from tests.core.reference import Conversation, observe

CONFIGS = {
    "chatml": toy.config(store_logprobs=True),
    "pad_is_eos": toy.config(toy.pad_is_eos(), max_messages=16),
    "long_closing": toy.config(toy.long_closing(), capacity=48, store_logprobs=True, overflow_reward=-1.0),
    "mistral": toy.config(toy.mistral(), max_turns=2, overflow_reward=0.5),
}
JIT = {
    name: jax.jit(function)
    for name, function in {
        "reset": sc.reset,
        "restart": sc.restart,
        "step": sc.step,
        "append": sc.append,
        "prefill": sc.prefill,
        "rewind": sc.rewind,
        "terminate": sc.terminate,
    }.items()
}
IDS = st.sampled_from([0, 2, 7, 8, 8, 30, 31, 32, 33])


def blocks(limit: int) -> st.SearchStrategy[list[int]]:
    """Ids of a block, of any length up to ``limit``."""
    return st.lists(IDS, max_size=limit)


@st.composite
def prompts(draw: st.DrawFn) -> ChatData:
    """First prompts: raw ids, histories with answers in them, empty ones, too many messages, any turn limit."""
    count = draw(st.sampled_from([1, 1, 1, 2, 3, 8, 0]))
    kinds = [draw(st.sampled_from([0, 1, 2, 3, 5])) for _ in range(count)]
    messages = []
    for kind in kinds:
        ids = draw(blocks(2 if count > 3 else 7))
        stops = kind == Kind.ASSISTANT and draw(st.booleans())
        finish = Finish.STOP if stops else Finish.LENGTH if kind == Kind.ASSISTANT else Finish.NONE
        messages.append((kind, [*ids, 8] if stops else ids, finish))
    next = Kind.GENERATE if not kinds or kinds[-1] != Kind.ASSISTANT else draw(st.sampled_from([-1, 1, 7]))
    return toy.prompt(messages, next=next, turn_limit=draw(st.sampled_from([4, 4, 4, 9, 2, 1, 0])))


@st.composite
def operations(draw: st.DrawFn) -> tuple[Any, ...]:
    """One transition; what depends on the conversation is settled when it is applied."""
    name = draw(
        st.sampled_from(["step"] * 6 + ["append"] * 6 + ["prefill", "prefill", "rewind", "restart", "terminate"])
    )
    if name == "step":
        ids = draw(blocks(8))
        claimed = draw(st.sampled_from([len(ids)] * 8 + [-3, 0, 8, 11]))
        logprobs = [-0.25 * (i + 1) for i in range(8)]
        return name, toy.action(ids, draw(st.sampled_from([True, True, False])), logprobs, length=claimed)
    if name == "append":
        ids = draw(blocks(12))
        legal = draw(st.sampled_from([True] * 5 + [False]))
        header = (
            draw(st.sampled_from([0, 1, 1, 3])),
            draw(st.sampled_from([0, 1, 2, 3, 6])),
            draw(st.sampled_from([7, 7, 1, 3])),
        )
        return name, ids, legal, header, draw(st.sampled_from([len(ids)] * 9 + [13]))
    if name == "prefill":
        return name, toy.padded(draw(blocks(5)), 6), np.int32(draw(st.sampled_from([0, 1, 2, 5])))
    if name == "rewind":
        return name, np.int32(draw(st.integers(-1, 9)))
    if name == "restart":
        return name, draw(prompts()), np.bool_(draw(st.sampled_from([True, False, False])))
    return name, np.bool_(draw(st.sampled_from([True, False, False, False, False])))


def settled(model: Conversation, operation: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments of a transition, messages made to fit the conversation where they shall be legal."""
    name, *arguments = operation
    if name == "step" and not model.config.store_logprobs:
        action = arguments[0]
        return (sc.Action(action.tokens, action.length, None, action.finished),)
    if name == "append":
        ids, legal, (kind, previous, next), length = arguments
        if legal:
            previous = model.kind
            expected = model.last.next if model.last is not None else Kind.NONE
            kind = expected if 0 <= expected < 4 else kind
        message = toy.message(ids, kind, previous, next, span=(1, 2))
        return (sc.Message(message.tokens, toy.int32(length), message.header),)
    return tuple(arguments)


def same(model: Conversation, state: sc.ChatState, where: str) -> None:
    """Raise unless core and model show the same, naming what differs."""
    want, got = model.observe(), observe(state)
    wrong = {name: (got.get(name), value) for name, value in want.items() if got.get(name) != value}
    assert not wrong, f"{where}: core, model = {wrong}"


@pytest.mark.parametrize("name", CONFIGS)
@settings(max_examples=toy.examples(2), deadline=None)
@given(first=prompts(), program=st.lists(operations(), min_size=1, max_size=14))
def test_any_program_equals_the_model(name: str, first: ChatData, program: list[tuple[Any, ...]]) -> None:
    config = CONFIGS[name]
    model, state = Conversation(config), sc.init(config)
    same(model, state, "init")
    model.reset(first)
    state = JIT["reset"](state, first)
    same(model, state, "reset")
    for operation in program:
        arguments, before, done = settled(model, operation), state, model.done
        getattr(model, operation[0])(*arguments)
        state = JIT[operation[0]](state, *arguments)
        same(model, state, operation[0])
        kept = int(before.length)
        if operation[0] in ("step", "append", "prefill", "terminate"):
            np.testing.assert_array_equal(
                np.asarray(state.tokens)[:kept], np.asarray(before.tokens)[:kept], "append-only"
            )
        if done and operation[0] in ("step", "append", "prefill"):
            np.testing.assert_array_equal(state.counts, before.counts, "a finished row absorbs")
            assert float(state.reward) == 0.0


@given(capacity=st.integers(12, 20), ids=blocks(8), extra=blocks(12), next=st.sampled_from([7, 1]))
def test_nothing_is_lost_silently(capacity: int, ids: list[int], extra: list[int], next: int) -> None:
    """What is written is what was given, or a status tells of it; a message is written whole or not at all."""
    config = toy.config(capacity=64)
    filler = toy.prompt([(Kind.USER, [30] * 24)])
    state = JIT["reset"](sc.init(config), filler)
    while int(state.length) < 64 - capacity:
        state = JIT["step"](state, toy.action([31] * 8, finished=False))
    room = int(sc.remaining(state))
    state = JIT["step"](state, toy.action(ids))
    assert int(state.length) - (64 - room) == min(len(ids), room)
    assert int(state.status) == (Status.OK if len(ids) <= room else Status.OVERFLOW)
    before = state
    state = JIT["append"](state, toy.message(extra, Kind.USER, Kind.ASSISTANT, next))
    written = int(state.length) - int(before.length)
    shift = int(bool(ids) and ids[-1] in (2, 8) and not bool(before.done))
    assert written == (0 if bool(state.truncated) else max(len(extra) - shift, 0))
    assert bool(state.truncated) == (int(state.status) != Status.OK) or int(before.turn) >= int(before.turn_limit)
