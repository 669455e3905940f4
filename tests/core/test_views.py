"""Logprobs, positions, left padding and branching."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import statelesschat as sc
from statelesschat import Kind, Status
from tests import toy


def test_logprobs_are_aligned_with_tokens() -> None:
    """``logprobs[t]`` belongs to ``tokens[t]``: of a, b, c with b and c sampled, 0 stands at a."""
    config = toy.config(store_logprobs=True)
    state = sc.reset(sc.init(config), toy.prompt([(Kind.RAW, [30])]))
    state = sc.step(state, toy.action([31, 32], logprobs=[-0.5, -1.5]))
    assert sc.prompt(state)[0].tolist()[:4] == [30, 31, 32, 0]
    assert sc.sampled_logprobs(state).tolist()[:4] == [0.0, -0.5, -1.5, 0.0]
    assert sc.sampled_logprobs(state).dtype == jnp.float32


def test_logprobs_are_zero_where_not_sampled() -> None:
    """What lay in the buffer before, of a longer action or another conversation, does not show."""
    config = toy.config(store_logprobs=True)
    state = sc.reset(sc.init(config), toy.question(config, 30))
    state = sc.step(state, toy.action([40] * 8, logprobs=[-9.0] * 8, length=1))
    state = sc.step(sc.append(state, toy.reply(config, 31)), toy.action([41, 8], logprobs=[-1.0, -2.0]))
    logprobs, mask = sc.sampled_logprobs(state), sc.loss_mask(state)
    assert logprobs[mask].tolist() == [-9.0, -1.0, -2.0]
    assert not bool(jnp.any(jnp.where(mask, 0.0, logprobs)))
    again = sc.restart(state, toy.question(config, 33), True)
    assert not bool(jnp.any(sc.sampled_logprobs(again)))


def test_positions_of_rows_of_different_length() -> None:
    """Rows of length 2 and 5: right padding, positions count the ids; the left-padded view computes both."""
    config = toy.config()
    data = [toy.prompt([(Kind.RAW, [30] * n)]) for n in (2, 5)]
    batch = jax.tree.map(lambda *x: np.stack(x), *data)
    states = jax.vmap(sc.reset, (None, 0))(sc.init(config), batch)
    assert np.asarray(jax.vmap(sc.position_ids)(states))[:, :6].tolist() == [[0, 1, 0, 0, 0, 0], [0, 1, 2, 3, 4, 0]]
    assert jax.vmap(sc.attention_mask)(states)[:, :6].sum(1).tolist() == [2, 5]
    tokens, mask, positions = jax.vmap(lambda s: sc.left_padded(s, 5))(states)
    assert tokens.tolist() == [[0, 0, 0, 30, 30], [30] * 5]
    assert mask.tolist() == [[False] * 3 + [True] * 2, [True] * 5]
    assert positions.tolist() == [[0, 0, 0, 0, 1], [0, 1, 2, 3, 4]]


def test_left_padding_narrower_than_the_conversation_shows_its_end() -> None:
    config = toy.config()
    state = sc.reset(sc.init(config), toy.prompt([(Kind.RAW, [30, 31, 32, 33])]))
    tokens, mask, positions = sc.left_padded(state, 2)
    assert (tokens.tolist(), mask.tolist(), positions.tolist()) == ([32, 33], [True, True], [2, 3])
    assert sc.left_padded(state)[0].shape == (config.capacity,)


def test_a_view_too_narrow_says_so() -> None:
    config = toy.config()
    state = sc.reset(sc.init(config), toy.prompt([(Kind.RAW, [30, 31, 32, 33])]))
    tokens, length = sc.delta(state, 2)
    assert tokens.tolist() == [30, 31] and int(length) == 4
    assert int(sc.last_response(state, 2)[1]) == 0


def test_views_are_functions_of_the_state() -> None:
    """Nothing is to be set or kept in step: the views of an older state are still its own."""
    config = toy.config()
    first = sc.reset(sc.init(config), toy.question(config, 30))
    before = jax.tree.map(np.array, (sc.prompt(first), sc.message_ids(first)))
    second = sc.step(first, toy.action([40, 8]))
    jax.tree.map(np.testing.assert_array_equal, (sc.prompt(first), sc.message_ids(first)), before)
    assert sc.message_ids(second).tolist()[: int(second.length)] == [0] * 9 + [1] * 2
    assert sc.role_ids(second).tolist()[: int(second.length)] == [Kind.USER] * 9 + [Kind.ASSISTANT] * 2


def test_a_rewound_conversation_goes_on_as_if_never_continued() -> None:
    config = toy.config()
    one = sc.step(sc.reset(sc.init(config), toy.question(config, 30)), toy.action([40, 8]))
    two = sc.step(sc.append(one, toy.reply(config, 31)), toy.action([41, 8]))
    back = sc.rewind(sc.terminate(two), 2)
    assert not bool(back.done) and int(back.turn) == 1
    ends = [sc.append(state, toy.reply(config, 33)) for state in (one, back)]
    jax.tree.map(np.testing.assert_array_equal, sc.prompt(ends[0]), sc.prompt(ends[1]))
    open_again = sc.rewind(two, 1)
    assert bool(open_again.awaits_answer) and int(open_again.turn) == 0 and int(open_again.length) == 9
    assert int(sc.rewind(two, 0).length) == 0


@pytest.mark.parametrize("where", [True, False])
def test_terminated_and_truncated_may_both_be_true(where: bool) -> None:
    config = toy.config(max_turns=1)
    state = sc.step(sc.reset(sc.init(config), toy.question(config, 30)), toy.action([40, 8]))
    state = sc.terminate(state, where)
    assert bool(state.truncated) and bool(state.terminated) == where and int(state.status) == Status.OK
