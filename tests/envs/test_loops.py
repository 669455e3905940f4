"""Rollouts and loops with restarts: what is handed over, what is dealt, and that no buffer is copied."""

import collections
import dataclasses
import types
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import statelesschat as sc
from tests import toy
from tests.core.test_cost import HLO_WRITES, WRITES, hlo_over_the_buffer, over_the_buffer
from tests.envs.test_combinators import CONFIG, answers, data, full_env, gold, info, more, solved, start, step

N, BATCH, TURNS = 10, 4, 30


def policy(answer: Any) -> Any:
    """A policy that gives each row of a batch the answer that a function of the states makes."""
    return types.SimpleNamespace(
        init=lambda params, states: jnp.int32(0),
        act=lambda params, count, key, states: (count + 1, answer(params, key, states)),
    )


def guess(params: Any, key: Any, states: Any) -> sc.Action:
    """The row's gold id in its second turn, some other one before."""
    batch = states.chat.turn.shape[0]
    right = jnp.where(states.chat.turn >= 1, states.chat.info.task["gold"], params)
    tokens = jnp.stack([right, jnp.full(batch, toy.END, jnp.int32)], axis=1)
    return sc.Action(tokens, jnp.full(batch, 2, jnp.int32), None, jnp.ones(batch, bool))


def table(config: sc.ChatConfig = CONFIG) -> Any:
    rows = [toy.question(config, 30 + i, info=info(i)) for i in range(N)]
    return jax.tree.map(lambda *x: jnp.stack(x), *rows)


def test_a_rollout_is_the_same_as_steps_by_hand() -> None:
    env = full_env()
    states, turns = sc.rollout(env, policy(guess), jnp.int32(1), start(env), jax.random.key(0), 3)
    by_hand = start(env)
    rewards = []
    for _ in range(3):
        by_hand = step(env, by_hand, guess(jnp.int32(1), None, by_hand))
        rewards.append(by_hand.reward)
    # What lies beyond the length is unspecified, so conversations are compared by what they hold.
    chex.assert_trees_all_equal(jax.vmap(sc.prompt)(states.chat), jax.vmap(sc.prompt)(by_hand.chat))
    chex.assert_trees_all_equal(turns.reward, jnp.stack(rewards))
    assert turns.ended.tolist() == [[False] * 4, [True] * 4, [False] * 4]
    assert turns.reward.sum(0).tolist() == [1] * 4


def test_a_rollout_keeps_no_buffers_of_its_turns() -> None:
    env = full_env()
    _, turns = sc.rollout(env, policy(guess), jnp.int32(1), start(env), jax.random.key(0), 3)
    assert {np.shape(leaf) for leaf in turns} == {(3, 4)}


def collected(epochs: int, repeats: int, turns: int = TURNS) -> Any:
    env = full_env()
    cursor = sc.make_cursor(5, num_epochs=epochs)
    rows = table()
    draw = lambda cursor, where: sc.next_batch(cursor, rows, BATCH, repeats, where=where)  # noqa: E731
    cursor, first, _ = sc.next_batch(cursor, rows, BATCH, repeats)
    total = jnp.zeros((N, repeats), jnp.int32), jnp.float32(0)

    def hand_over(total: Any, states: Any, ended: Any) -> Any:
        counts, reward = total
        at = states.chat.info
        counts = counts.at[at.row_id, at.repeat_id].add(ended.astype(jnp.int32))
        return counts, reward + jnp.sum(jnp.where(ended, states.chat.turn_rewards.sum(1), jnp.float32(0)))

    states = sc.begin(env, first, jax.random.key(0))
    return sc.collect(
        env, policy(guess), jnp.int32(1), states, jax.random.key(1), turns,
        source=cursor, draw=draw, total=total, hand_over=hand_over,
    )  # fmt: skip


@pytest.mark.parametrize(("epochs", "repeats"), [(1, 1), (1, 3), (2, 2), (3, 1)])
def test_every_row_is_handed_over_as_often_as_it_was_dealt(epochs: int, repeats: int) -> None:
    states, cursor, (counts, reward), _ = collected(epochs, repeats, turns=60)
    assert counts.tolist() == [[epochs] * repeats] * N
    assert float(reward) == epochs * repeats * N
    assert bool(cursor.exhausted) and states.done.all()


def test_a_row_without_an_epoch_left_stays_done_and_is_not_handed_over_again() -> None:
    _, _, (counts, _), turns = collected(1, 1, turns=60)
    assert int(turns.ended.sum()) == N == int(counts.sum())
    assert not turns.ended[-10:].any() and (turns.reward[-10:] == 0).all()


def loop(env: Any, rows: Any, states: Any, cursor: Any, key: Any) -> Any:
    draw = lambda cursor, where: sc.next_batch(cursor, rows, 16, 2, where=where)  # noqa: E731
    count = lambda total, states, ended: total + jnp.sum(ended)  # noqa: E731
    return sc.collect(
        env, policy(guess), jnp.int32(1), states, key, 5, source=cursor, draw=draw, total=jnp.int32(0), hand_over=count
    )


def wide(**options: Any) -> sc.ChatConfig:
    """Widths that no other dimension has."""
    return toy.config(
        capacity=4096,
        max_message_len=33,
        max_response_len=64,
        max_prompt_len=48,
        max_messages=20,
        max_turns=9,
        **options,
    )


def everything(config: sc.ChatConfig) -> Any:
    """Every combinator at once."""
    again = jax.tree.map(jnp.asarray, toy.reply(config, 60))
    unsure = lambda state, action: state.reward <= jnp.float32(0)  # noqa: E731
    env = sc.with_reward(sc.chat_env(config), gold)
    env = sc.with_thinking_prompt(env, again, unsure, prefilled=([70, 71], 2))
    env = sc.with_kl_reward(env, 0.1, reference=lambda state, action: jnp.zeros_like(action.logprobs))
    return sc.with_reply(sc.with_stop(env, solved), more)


@pytest.mark.parametrize("logprobs", [False, True], ids=["plain", "every combinator"])
def test_a_rollout_copies_no_buffer_and_selects_over_none(logprobs: bool) -> None:
    config = wide(store_logprobs=logprobs)
    env = everything(config) if logprobs else full_env(config)
    states = sc.begin(env, table(config), jax.random.key(0))

    def answer(params: Any, key: Any, states: Any) -> sc.Action:
        made = guess(params, key, states)
        return dataclasses.replace(made, logprobs=jnp.full(made.tokens.shape, -1.0) if logprobs else None)

    run = lambda states, env, key: sc.rollout(env, policy(answer), jnp.int32(1), states, key, 4)  # noqa: E731
    arguments = states, env, jax.random.key(0)
    found = over_the_buffer(run, config, arguments)
    assert not set(found) - WRITES, found
    compiled = hlo_over_the_buffer(run, config, arguments, N)
    assert not set(compiled) - HLO_WRITES, compiled


def test_no_select_over_the_buffer_and_no_copy_of_it() -> None:
    config = wide()
    env = full_env(config)
    rows = table(config)
    cursor, first, _ = sc.next_batch(sc.make_cursor(0), rows, 16, 2)
    states = sc.begin(env, first, jax.random.key(0))
    arguments = states, env, rows, cursor, jax.random.key(0)
    ordered = lambda states, env, rows, cursor, key: loop(env, rows, states, cursor, key)  # noqa: E731
    found: collections.Counter[str] = over_the_buffer(ordered, config, arguments)
    assert not set(found) - WRITES, found
    compiled = hlo_over_the_buffer(ordered, config, arguments, 16)
    assert not set(compiled) - HLO_WRITES, compiled


def test_loops_are_one_trace_over_epochs_and_their_ragged_ends() -> None:
    chex.clear_trace_counter()
    env, rows = full_env(), table()
    run = jax.jit(chex.assert_max_traces(n=1)(loop))
    cursor, first, _ = sc.next_batch(sc.make_cursor(0), rows, 16, 2)
    states = sc.begin(env, first, jax.random.key(0))
    for seed in range(4):
        states, cursor, _, _ = run(env, rows, states, cursor, jax.random.key(seed))
    assert int(cursor.epoch) > 1


def test_a_batch_axis_is_needed() -> None:
    with pytest.raises(ValueError, match="batch axis"):
        sc.begin(full_env(), jax.tree.map(lambda x: x[0], data()), jax.random.key(0))
    assert answers([1], [1], [1], [1]).tokens.shape == (4, 8)
