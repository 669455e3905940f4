"""Running out of room, of turns, of messages, of rows; and what a batch that never changes shape compiles."""

import dataclasses

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import statelesschat as sc
from statelesschat import ChatData, ChatState, Finish, Kind, Status
from statelesschat.core.types import Column
from tests import toy


def start(config: sc.ChatConfig, *ids: int, turn_limit: int | None = None) -> ChatState:
    return sc.reset(sc.init(config), toy.question(config, *ids, turn_limit=turn_limit))


@pytest.mark.parametrize("reward", [0.0, -2.0])
def test_context_overflow_ends_the_row_and_no_other(reward: float) -> None:
    """A prompt six ids short of full, asked for eight: the answer is cut, its row ends with a status of its own."""
    config = toy.config(capacity=30, overflow_reward=reward)
    data = [toy.prompt([(Kind.RAW, [30] * n)]) for n in (24, 4)]
    states = jax.vmap(sc.reset, (None, 0))(sc.init(config), jax.tree.map(lambda *x: np.stack(x), *data))
    assert jax.vmap(sc.remaining)(states).tolist() == [6, 26]
    actions = jax.tree.map(lambda *x: np.stack(x), *[toy.action([40] * 8)] * 2)
    states = jax.vmap(sc.step)(states, actions)
    assert states.length.tolist() == [30, 12] and states.truncated.tolist() == [True, False]
    assert states.status.tolist() == [Status.OVERFLOW, Status.OK]
    assert states.reward.tolist() == [reward, 0.0] and np.asarray(states.turn_rewards)[:, 0].tolist() == [reward, 0.0]
    assert jax.vmap(sc.remaining)(states).tolist() == [0, 18]
    again = jax.vmap(sc.step)(states, actions)
    np.testing.assert_array_equal(again.tokens[0, :30], states.tokens[0, :30])
    np.testing.assert_array_equal(again.counts[0], states.counts[0])
    assert float(again.reward[0]) == 0.0


def test_a_message_that_does_not_fit_is_refused_whole() -> None:
    config = toy.config(capacity=18, overflow_reward=-1.0)
    state = sc.step(start(config, 30), toy.action([40, 8]))
    after = sc.append(state, toy.reply(config, 31))
    assert int(after.length) == int(state.length) == 11 and int(after.status) == Status.OVERFLOW
    assert bool(after.truncated) and float(after.reward) == -1.0 and int(after.num_messages) == 2
    assert int(sc.append(state, toy.reply(config, 31, next=Kind.USER)).status) == Status.OK


def test_an_answer_may_fill_the_row_to_the_brim() -> None:
    config = toy.config(capacity=13)
    state = sc.step(start(config, 30), toy.action([40, 41, 42, 8]))
    assert int(state.length) == 13 and int(state.status) == Status.OK and not bool(state.done)
    assert int(state.table[1, Column.FINISH]) == Finish.STOP and int(sc.remaining(state)) == 0


def test_the_budget_is_the_row_s() -> None:
    """Turns share one capacity: what is left shrinks by what was written, whoever wrote it."""
    config = toy.config()
    state = start(config, 30)
    room = [int(sc.remaining(state))]
    for _ in range(2):
        state = sc.append(sc.step(state, toy.action([40] * 5)), toy.reply(config, 31))
        room.append(int(sc.remaining(state)))
    assert room == [55, 39, 23]


def test_an_endless_loop_of_tools_ends() -> None:
    config = toy.config(capacity=512, max_messages=64, max_turns=3)
    state = start(config, 30)
    for _ in range(10):
        state = sc.append(sc.step(state, toy.action([40, 8])), toy.reply(config, 50, role=Kind.TOOL))
    assert int(state.turn) == 3 and bool(state.truncated) and not bool(state.terminated)
    assert int(state.status) == Status.OK
    state = sc.terminate(sc.step(start(config, 30), toy.action([40, 8])))
    assert bool(state.terminated) and not bool(state.truncated)
    assert int(sc.append(state, toy.reply(config, 31)).length) == int(state.length)


def test_the_turn_limit_of_a_row() -> None:
    config = toy.config(max_turns=3)
    assert int(start(config, 30, turn_limit=99).turn_limit) == 3
    state = sc.step(start(config, 30, turn_limit=1), toy.action([40, 8]))
    assert bool(state.truncated) and int(state.turn) == 1
    assert bool(start(config, 30, turn_limit=0).done)


def test_too_many_messages() -> None:
    config = toy.config(max_messages=3, max_turns=9)
    state = sc.step(start(config, 30), toy.action([40, 8]))
    assert int(sc.append(state, toy.reply(config, 31)).status) == Status.TOO_MANY_MESSAGES
    alone = sc.append(state, toy.reply(config, 31, next=Kind.USER))
    assert int(alone.status) == Status.OK and int(alone.num_messages) == 3
    crowded = sc.append(alone, toy.message([31], Kind.USER, Kind.USER, Kind.USER))
    assert int(crowded.status) == Status.TOO_MANY_MESSAGES and int(crowded.num_messages) == 3
    full = sc.reset(sc.init(config), toy.prompt([(Kind.USER, [30])] * 3, rows=3))
    assert int(full.status) == Status.TOO_MANY_MESSAGES and bool(full.truncated)
    np.testing.assert_array_equal(np.asarray(sc.step(full, toy.action([40])).table)[:3], np.asarray(full.table)[:3])


@pytest.mark.parametrize(
    "case", ["step twice", "append to an open answer", "another neighbour", "another role", "too long"]
)
def test_what_is_out_of_order_is_refused(case: str) -> None:
    config = toy.config()
    opened = start(config, 30)
    answered = sc.step(opened, toy.action([40, 8]))
    if case == "step twice":
        state, before = sc.step(answered, toy.action([41, 8])), answered
    elif case == "append to an open answer":
        state, before = sc.append(opened, toy.message([31], Kind.USER, Kind.USER, Kind.USER)), opened
    elif case == "another neighbour":
        state, before = sc.append(answered, toy.message([31], Kind.USER, Kind.TOOL, Kind.USER)), answered
    elif case == "another role":
        before = sc.append(answered, toy.reply(config, 31, next=Kind.USER))
        state = sc.append(before, toy.message([31], Kind.TOOL, Kind.USER, Kind.GENERATE))
    else:
        message = toy.reply(config, 31)
        state, before = sc.append(answered, dataclasses.replace(message, length=np.int32(13))), answered
    assert int(state.status) == Status.ILLEGAL_ROLE_ORDER and bool(state.truncated)
    assert int(state.length) == int(before.length) and int(state.turn) == int(before.turn)


def epoch(rows: int, batch: int) -> list[tuple[ChatData, int]]:
    """Batches of one width, the last filled up with rows that are done at once."""
    batches = []
    for first in range(0, rows, batch):
        real = min(batch, rows - first)
        data = [toy.question(CONFIG, *[30] * (1 + (first + i) % 5)) for i in range(real)]
        data += [toy.question(CONFIG, turn_limit=0)] * (batch - real)
        batches.append((jax.tree.map(lambda *x: np.stack(x), *data), real))
    return batches


CONFIG = toy.config(store_logprobs=True)


def test_a_ragged_last_batch_of_an_epoch_compiles_nothing_new() -> None:
    """Thirty rows in batches of 16: one trace of every function, and the filling rows never act."""
    chex.clear_trace_counter()
    reset = jax.jit(jax.vmap(chex.assert_max_traces(sc.reset, n=1), (None, 0)))
    step = jax.jit(jax.vmap(chex.assert_max_traces(sc.step, n=1)))
    append = jax.jit(jax.vmap(chex.assert_max_traces(sc.append, n=1)))
    seen = 0
    for index, (data, real) in enumerate(epoch(30, 16)):
        states = reset(sc.init(toy.config(store_logprobs=True)), data)
        assert states.done.tolist() == [False] * real + [True] * (16 - real)
        for turn in range(2):
            answers = [toy.action([40] * (1 + (index + turn + i) % 6), logprobs=[-1.0] * 8) for i in range(16)]
            states = step(states, jax.tree.map(lambda *x: np.stack(x), *answers))
            replies = [toy.reply(CONFIG, *[31] * (i % 3)) for i in range(16)]
            states = append(states, jax.tree.map(lambda *x: np.stack(x), *replies))
        mask = np.asarray(jax.vmap(sc.loss_mask)(states))
        assert not mask[real:].any() and mask[:real].any(1).all()
        assert states.turn.tolist() == [2] * real + [0] * (16 - real)
        assert not bool(jnp.any(states.reward))
        seen += real
    assert seen == 30


def test_lengths_are_data_and_compile_nothing() -> None:
    """Prompts, answers and messages of any length run through the program compiled for the first."""
    chex.clear_trace_counter()
    config = toy.config(capacity=65)
    run = jax.jit(chex.assert_max_traces(lambda s, d, a, m: sc.append(sc.step(sc.reset(s, d), a), m), n=1))
    for n in range(3):
        data, action = toy.question(config, *[30] * (10 + n)), toy.action([40] * (5 + n))
        state = run(sc.init(config), data, action, toy.reply(config, *[31] * n))
        assert int(state.length) == 18 + n + 5 + n + 10 + n
