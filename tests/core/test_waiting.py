"""Conversations that wait: nothing moves, nothing counts, and afterwards all is as if they never had."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import statelesschat as sc
from statelesschat import Status
from tests import toy

CONFIG = toy.config(max_turns=3)


def same(one: Any, other: Any) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True))


def answered(*ids: int) -> sc.ChatState:
    state = sc.reset(sc.init(CONFIG), toy.question(CONFIG, 30))
    return sc.step(state, toy.action(list(ids)))


@pytest.mark.parametrize("ids", [[31, 8], [31, 32, 33]], ids=["a turn's end", "cut off"])
def test_waiting_and_going_on_leaves_no_trace(ids: list[int]) -> None:
    state = answered(*ids)
    waits = sc.pend(state)
    assert int(waits.status) == Status.PENDING and bool(waits.pending) and not bool(waits.awaits_answer)
    assert int(waits.turn) == int(state.turn) - 1
    assert same(sc.settle(waits), state)
    assert same(jax.jit(lambda state: sc.settle(sc.pend(state)))(state), state)


def test_while_it_waits_nothing_moves() -> None:
    waits = sc.pend(answered(31, 8))
    moves = [
        sc.step(waits, toy.action([40, 8])),
        sc.append(waits, toy.reply(CONFIG, 41)),
        sc.pend(waits),
    ]
    for moved in moves:
        assert same(sc.prompt(moved), sc.prompt(waits)) and same(sc.message_ids(moved), sc.message_ids(waits))
        assert int(moved.status) == Status.PENDING and int(moved.turn) == 0
    state = sc.settle(waits)
    assert same(sc.append(state, toy.reply(CONFIG, 41)), sc.append(answered(31, 8), toy.reply(CONFIG, 41)))


def test_whether_it_ended_is_held_back() -> None:
    state = answered(31, 8)
    state = sc.step(sc.append(state, toy.reply(CONFIG, 41)), toy.action([32, 8]))
    state = sc.step(sc.append(state, toy.reply(CONFIG, 42)), toy.action([33, 8]))
    assert bool(state.truncated) and bool(state.done)
    waits = sc.pend(state)
    assert not bool(waits.done) and not bool(waits.truncated)
    assert same(sc.settle(waits), state)
    ended = sc.pend(sc.terminate(answered(31, 8)))
    assert not bool(ended.terminated) and bool(sc.settle(ended).terminated)


def test_rows_without_an_answer_or_with_a_fault_do_not_wait() -> None:
    fresh = sc.reset(sc.init(CONFIG), toy.question(CONFIG, 30))
    broken = sc.truncate(answered(31, 8), Status.HOST_ERROR)
    for state in (fresh, broken):
        assert same(sc.pend(state), state)
        assert same(sc.settle(state), state)


def test_where_is_for_each_row() -> None:
    state = answered(31, 8)
    states = jax.tree.map(lambda x: jnp.stack([x, x]), state)
    waits = jax.vmap(sc.pend)(states, jnp.array([True, False]))
    assert waits.pending.tolist() == [True, False]
    part = jax.vmap(sc.settle)(waits, jnp.array([False, True]))
    assert same(part, waits)


def test_a_row_that_waits_is_restarted_as_any_other() -> None:
    waits = sc.pend(answered(31, 8))
    again = sc.restart(waits, toy.question(CONFIG, 33), True)
    assert same(again, sc.reset(sc.init(CONFIG), toy.question(CONFIG, 33)))


def test_views_of_a_row_that_waits_have_its_answer() -> None:
    state = answered(31, 8)
    waits = sc.pend(state)
    assert same(sc.loss_mask(waits), sc.loss_mask(state))
    assert sc.last_response(waits)[0].tolist() == sc.last_response(state)[0].tolist()
