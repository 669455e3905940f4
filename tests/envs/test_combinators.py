"""What each combinator does to a conversation, on templates made by hand."""

import dataclasses
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.tree_util import Partial

import statelesschat as sc
from statelesschat import Finish, Kind, RowInfo, Status
from statelesschat.envs import Env, EnvState, combine
from statelesschat.testing import api_test
from tests import toy

CONFIG = toy.config(overflow_reward=-1.0)
B = 4


def info(row: int, script: Any = None) -> RowInfo:
    return RowInfo(np.int32(row), np.int32(row), np.int32(0), {"gold": np.int32(33 + row)}, script)


def data(config: sc.ChatConfig = CONFIG, turn_limits: tuple[int, ...] = (4, 4, 4, 4), script: Any = None) -> Any:
    rows = [toy.question(config, 30 + i, turn_limit=turn_limits[i], info=info(i, script)) for i in range(B)]
    return jax.tree.map(lambda *x: jnp.stack(x), *rows)


def answers(*ids: Any, finished: Any = True, config: sc.ChatConfig = CONFIG) -> Any:
    """One answer for each row, each with a stop id behind it."""
    flags = [finished] * B if isinstance(finished, bool) else finished
    made = [
        toy.action(
            [*i, toy.END] if f else list(i), f, logprobs=[-1.0] * (len(i) + f) if config.store_logprobs else None
        )
        for i, f in zip(ids, flags, strict=True)
    ]
    return jax.tree.map(lambda *x: jnp.stack(x), *made)


def gold(state: sc.ChatState, action: sc.Action) -> Any:
    """1.0 where the first id of the answer is the gold one."""
    tokens, length = sc.rewards.response_tokens(state)
    return jnp.where((length > 0) & (tokens[0] == state.info.task["gold"]), jnp.float32(1), jnp.float32(0))


def more(state: sc.ChatState, action: sc.Action) -> Any:
    """A reply to every answer."""
    return jax.tree.map(jnp.asarray, toy.reply(state.config, 50)), jnp.bool_(True)


def solved(state: sc.ChatState, action: sc.Action) -> Any:
    return state.reward > jnp.float32(0)


def full_env(config: sc.ChatConfig = CONFIG) -> Env:
    return sc.with_reply(sc.with_stop(sc.with_reward(sc.chat_env(config), gold), solved), more)


def start(env: Env, rows: Any = None) -> EnvState:
    return sc.begin(env, data() if rows is None else rows, jax.random.key(3))


def step(env: Env, states: EnvState, action: Any) -> EnvState:
    return jax.vmap(env.step)(states, action)


def test_answers_are_judged_and_the_right_ones_end_the_episode() -> None:
    env = full_env()
    states = step(env, start(env), answers([33], [99], [35], [1]))
    assert states.reward.tolist() == [1, 0, 1, 0]
    assert states.terminated.tolist() == [True, False, True, False]
    assert states.chat.awaits_answer.tolist() == [False, True, False, True]
    states = step(env, states, answers([0], [34], [35], [1]))
    assert states.reward.tolist() == [0, 1, 0, 0]
    assert states.chat.turn_rewards.tolist() == [[1, 0, 0, 0], [0, 1, 0, 0], [1, 0, 0, 0], [0, 0, 0, 0]]


def test_an_answer_that_goes_on_is_judged_when_it_is_over_and_as_a_whole() -> None:
    env = full_env()
    begun = step(env, start(env), answers([33], [34], [35], [36], finished=False))
    assert begun.reward.tolist() == [0] * 4 and begun.chat.turn.tolist() == [0] * 4
    assert begun.chat.awaits_answer.all()
    states = step(env, begun, answers([5], [5], [5], [5]))
    assert states.reward.tolist() == [1] * 4


def test_an_answer_that_was_cut_gets_the_overflow_reward_and_no_other() -> None:
    config = toy.config(capacity=24, overflow_reward=-1.0)
    env = sc.with_reward(sc.chat_env(config), lambda state, action: jnp.float32(5))
    states = start(env, data(config))
    while not bool(states.done[0]):
        states = step(env, states, answers([1] * 7, [1], [1], [1], finished=[False, True, True, True], config=config))
    assert Status(int(states.status[0])) is Status.OVERFLOW
    assert states.chat.turn_rewards.sum(1).tolist()[0] == -1.0


def test_the_turn_limit_is_data_and_nothing_is_said_behind_it() -> None:
    env = full_env()
    states = step(env, start(env, data(turn_limits=(1, 2, 3, 4))), answers([1], [1], [1], [1]))
    assert states.truncated.tolist() == [True, False, False, False]
    assert states.chat.awaits_answer.tolist() == [False, True, True, True]
    assert (states.status == int(Status.OK)).all()


def test_a_policy_that_never_stops_calling_is_stopped_by_the_turn_limit() -> None:
    env = sc.with_reply(sc.chat_env(CONFIG), more)
    states = start(env)
    for _ in range(10):
        states = step(env, states, answers([1], [1], [1], [1]))
    assert states.truncated.all() and states.chat.turn.tolist() == [4] * 4
    assert not states.terminated.any()


def test_a_tool_with_nothing_to_say_ends_the_episode() -> None:
    def once(state: sc.ChatState, action: sc.Action) -> Any:
        return more(state, action)[0], state.turn < 2

    env = sc.with_reply(sc.chat_env(CONFIG), once)
    states = step(env, start(env), answers([1], [1], [1], [1]))
    assert not states.done.any()
    states = step(env, states, answers([1], [1], [1], [1]))
    assert states.terminated.all() and not states.truncated.any()


def test_scripted_turns_are_said_in_order_and_then_the_episode_ends() -> None:
    first, second = toy.reply(CONFIG, 50), toy.reply(CONFIG, 51)
    nothing = dataclasses.replace(second, length=np.int32(0))
    whole = jax.tree.map(lambda *x: np.stack(x), first, second)
    short = jax.tree.map(lambda *x: np.stack(x), first, nothing)
    rows = [toy.question(CONFIG, 30, info=info(i, [whole, short, whole, short][i])) for i in range(B)]
    env = sc.with_reply(sc.chat_env(CONFIG))
    states = sc.begin(env, jax.tree.map(lambda *x: jnp.stack(x), *rows), jax.random.key(0))
    for _ in range(3):
        states = step(env, states, answers([1], [1], [1], [1]))
    assert states.terminated.all() and states.chat.turn.tolist() == [3, 2, 3, 2]
    tokens = np.asarray(jax.vmap(sc.prompt)(states.chat)[0]).tolist()
    assert [row.count(50) + 10 * row.count(51) for row in tokens] == [11, 1, 11, 1]


def test_scripted_turns_need_a_script() -> None:
    env = sc.with_reply(sc.chat_env(CONFIG))
    with pytest.raises(ValueError, match="info.script"):
        step(env, start(env), answers([1], [1], [1], [1]))


def test_random_replies_differ_between_rows_and_turns_and_not_between_runs() -> None:
    def dice(state: sc.ChatState, action: sc.Action, key: Any) -> Any:
        rolled = jax.random.randint(key, (), 40, 90, jnp.int32)
        message = jax.tree.map(jnp.asarray, toy.reply(state.config, 50))
        return dataclasses.replace(message, tokens=jnp.where(message.tokens == 50, rolled, message.tokens)), True

    env = sc.with_reply(sc.chat_env(CONFIG), dice, random=True)
    once = step(env, start(env), answers([1], [1], [1], [1]))
    twice = step(env, once, answers([1], [1], [1], [1]))
    again = step(env, step(env, start(env), answers([1], [1], [1], [1])), answers([1], [1], [1], [1]))
    chex.assert_trees_all_equal(twice.chat, again.chat)
    tokens = np.asarray(twice.chat.tokens)
    assert len({tuple(row[: int(n)]) for row, n in zip(tokens, twice.chat.length, strict=True)}) == 4


def test_a_reward_that_cannot_tell_is_a_status_and_no_reward() -> None:
    def unsure(state: sc.ChatState, action: sc.Action) -> Any:
        return jnp.where(state.info.row_id == 1, jnp.nan, jnp.where(state.info.row_id == 2, jnp.inf, 1.0))

    env = sc.with_reply(sc.with_reward(sc.chat_env(CONFIG), unsure), more)
    states = step(env, start(env), answers([1], [1], [1], [1]))
    assert states.reward.tolist() == [1, 0, 0, 1]
    assert states.status.tolist() == [0, int(Status.FORMAT_ERROR), int(Status.FORMAT_ERROR), 0]
    assert states.truncated.tolist() == [False, True, True, False]
    assert states.chat.awaits_answer.tolist() == [True, False, False, True]


def test_a_reward_of_the_wrong_shape_says_so() -> None:
    env = sc.with_reward(sc.chat_env(CONFIG), lambda state, action: jnp.zeros(3))
    with pytest.raises(ValueError, match="scalar"):
        step(env, start(env), answers([1], [1], [1], [1]))


def test_rewards_add_up_over_a_transition_and_stay_apart_by_turn() -> None:
    env = sc.with_reward(sc.with_reply(sc.with_reward(sc.chat_env(CONFIG), gold), more), lambda s, a: jnp.float32(0.25))
    states = step(env, start(env), answers([33], [1], [1], [1]))
    assert states.reward.tolist() == [1.25, 0.25, 0.25, 0.25]
    states = step(env, states, answers([1], [34], [1], [1]))
    assert states.reward.tolist() == [0.25, 1.25, 0.25, 0.25]
    assert states.chat.turn_rewards[:, :2].tolist() == [[1.25, 0.25], [0.25, 1.25], [0.25, 0.25], [0.25, 0.25]]


def thinking(times: int = 1, prefilled: Any = None) -> Env:
    again = jax.tree.map(jnp.asarray, toy.reply(CONFIG, 60))
    judged = sc.with_reward(sc.chat_env(CONFIG), gold)
    wrong = lambda state, action: state.reward <= jnp.float32(0)  # noqa: E731
    return sc.with_stop(sc.with_thinking_prompt(judged, again, wrong, times=times, prefilled=prefilled))


def test_a_thinking_prompt_withholds_the_end_and_edits_nothing() -> None:
    env = thinking()
    states = step(env, start(env), answers([33], [1], [1], [1]))
    assert states.terminated.tolist() == [True, False, False, False]
    before = states
    states = step(env, states, answers([0], [34], [1], [1]))
    assert states.terminated.all() and states.reward.tolist() == [0, 1, 0, 0]
    for row in range(B):
        length = int(before.chat.length[row])
        assert (states.chat.tokens[row, :length] == before.chat.tokens[row, :length]).all()
    assert states.chat.turn.tolist() == [1, 2, 2, 2]


def test_a_thinking_prompt_asks_as_often_as_told_and_never_behind_the_last_turn() -> None:
    env = thinking(times=9)
    states = start(env, data(turn_limits=(1, 2, 3, 4)))
    for _ in range(5):
        states = step(env, states, answers([1], [1], [1], [1]))
    assert states.chat.turn.tolist() == [1, 2, 3, 4]
    assert states.truncated.all()
    again = step(env, states, answers([1], [1], [1], [1]))
    chex.assert_trees_all_equal(again.chat.counts, states.chat.counts)


def test_what_the_new_answer_begins_with_is_not_trained_on() -> None:
    env = thinking(prefilled=([70, 71, 0], 2))
    states = step(env, start(env), answers([1], [1], [1], [1]))
    assert states.chat.awaits_answer.all()
    states = step(env, states, answers([33], [34], [35], [36]))
    mask = np.asarray(jax.vmap(sc.loss_mask)(states.chat))
    tokens = np.asarray(states.chat.tokens)[:, : CONFIG.capacity]
    assert not mask[(tokens == 70) | (tokens == 71)].any()
    assert sorted(tokens[mask].tolist()) == sorted([1, 8] * 4 + [33, 34, 35, 36] + [8] * 4)
    assert states.reward.tolist() == [0] * 4  # the response begins with what was prefilled


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"times": 0}, "times"),
        ({"message": jax.tree.map(lambda x: x[None], toy.reply(CONFIG, 60))}, "one row"),
        ({"message": toy.reply(CONFIG, 60, next=Kind.USER)}, "no answer"),
    ],
)
def test_a_thinking_prompt_that_cannot_be_is_refused(arguments: dict[str, Any], message: str) -> None:
    given = {"message": toy.reply(CONFIG, 60), "when": solved} | arguments
    with pytest.raises(ValueError, match=message):
        sc.with_thinking_prompt(sc.chat_env(CONFIG), **given)


def test_finished_rows_that_were_restarted_begin_with_fresh_entries() -> None:
    env = thinking()
    states = step(env, start(env), answers([1], [1], [1], [1]))
    assert states.inner[1].tolist() == [1] * 4
    where = jnp.array([True, False, True, False])
    states = sc.envs.restart(env, states, data(), where)
    assert states.inner[1].tolist() == [0, 1, 0, 1]
    assert states.chat.turn.tolist() == [0, 1, 0, 1]


def test_rows_have_keys_of_their_own() -> None:
    keys = jax.random.key_data(start(full_env()).key)
    assert len({tuple(key) for key in np.asarray(keys).tolist()}) == B


def test_equal_environments_are_one_program() -> None:
    chex.clear_trace_counter()

    @jax.jit
    @chex.assert_max_traces(n=1)
    def act(env: Env, states: EnvState, action: Any) -> EnvState:
        return jax.vmap(env.step)(states, action)

    one, other = (sc.with_stop(sc.with_reward(sc.chat_env(CONFIG), gold)) for _ in range(2))
    act(one, start(one), answers([1], [1], [1], [1]))
    act(other, start(other), answers([1], [1], [1], [1]))


def test_arrays_of_a_reward_are_arguments_of_the_program() -> None:
    big = jnp.arange(100_003, dtype=jnp.float32)
    env = sc.with_reward(sc.chat_env(CONFIG), Partial(lambda big, s, a: big[s.info.row_id], big))
    lowered = jax.jit(lambda e, s, a: jax.vmap(e.step)(s, a)).lower(env, start(env), answers([1], [1], [1], [1]))
    lines = [line for line in lowered.as_text().splitlines() if "tensor<100003xf32>" in line]
    assert any("%arg" in line for line in lines)
    assert not any("constant" in line for line in lines)


def test_a_combinator_of_ones_own() -> None:
    def counted(step: Any, bonus: Any, count: Any, state: EnvState, action: Any) -> tuple[EnvState, Any]:
        state = step(state, action)
        return dataclasses.replace(state, chat=sc.credit(state.chat, bonus, state.chat.turn - 1)), count + 1

    env = combine(full_env(), counted, arrays=jnp.float32(0.5), own=np.int32(0))
    states = step(env, start(env), answers([33], [1], [1], [1]))
    assert states.reward.tolist() == [1.5, 0.5, 0.5, 0.5] and states.inner[-1].tolist() == [1] * 4


@pytest.mark.parametrize("env", [sc.chat_env(CONFIG), full_env(), thinking()], ids=["chat", "full", "thinking"])
def test_the_laws_hold(env: Env) -> None:
    api_test(env, data())


def test_finish_reasons_are_those_of_the_core() -> None:
    env = full_env()
    states = step(env, start(env), answers([1], [1], [1], [1]))
    assert (np.asarray(states.chat.table)[:, 1, -1] == int(Finish.STOP)).all()


def test_a_tool_knows_its_row_its_group_its_repeat_and_its_turn() -> None:
    """Case 52: a tool that keeps something per row has to tell repeats of one prompt apart."""

    config = toy.config(max_message_len=16)
    gap = config.template.gap(Kind.ASSISTANT, Kind.USER)
    place = np.int32(len(gap.core_ids) + len(gap.lead_ids))

    def tell(state: sc.ChatState, action: sc.Action) -> Any:
        at = state.info
        ids = jnp.stack([at.row_id, at.group_id, at.repeat_id, state.turn]) + 50
        message = jax.tree.map(jnp.asarray, toy.reply(config, 0, 0, 0, 0, width=16))
        return dataclasses.replace(message, tokens=jax.lax.dynamic_update_slice(message.tokens, ids, (place,))), True

    _, dealt, _ = sc.next_batch(sc.make_cursor(0), data(config), 8, 4)
    env = sc.with_reply(sc.chat_env(config), tell)
    states = sc.begin(env, dealt, jax.random.key(0))
    eight = jax.tree.map(lambda leaf: jnp.concatenate([leaf, leaf]), answers([1], [1], [1], [1]))
    for turn in (1, 2):
        before = np.asarray(states.chat.length) + 2  # the answer has two ids
        states = step(env, states, eight)
        begins = before - 1 + place  # the stop id in the block is not written again
        told = np.stack([np.asarray(states.chat.tokens)[r, b : b + 4] - 50 for r, b in enumerate(begins)])
        at = dealt.info
        wanted = np.stack([at.row_id, at.group_id, at.repeat_id, np.full(8, turn)], axis=1)
        assert (told == wanted).all()
    assert sorted(dealt.info.repeat_id.tolist()) == sorted([0, 1, 2, 3] * 2)
