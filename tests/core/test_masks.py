"""Which ids are trained on: those that came in an action, and no others."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import statelesschat as sc
from statelesschat import ChatState, Finish, Kind, Status
from statelesschat.core.types import Column
from tests import toy


def start(config: sc.ChatConfig, *ids: int) -> ChatState:
    return sc.reset(sc.init(config), toy.question(config, *ids))


def shown(state: ChatState) -> tuple[list[int], list[int]]:
    """Tokens and loss mask, up to the length."""
    tokens, length = sc.prompt(state)
    mask = np.asarray(sc.loss_mask(state), np.int32)
    assert not mask[int(length) :].any()
    return tokens.tolist()[: int(length)], mask[: int(length)].tolist()


def test_header_in_mask() -> None:
    """The header of an answer is the template's: of ``[7, assistant, newline, hi, 8]`` only hi and 8 count."""
    state = sc.step(start(toy.config(), 30), toy.action([40, 8]))
    tokens, mask = shown(state)
    assert tokens == [7, 20, 10, 30, 8, 10, 7, 22, 10, 40, 8]
    assert mask == [0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1]


def test_sampled_stop_token_is_trained_and_an_added_one_is_not() -> None:
    config = toy.config()
    stopped = sc.append(sc.step(start(config, 30), toy.action([40, 8])), toy.reply(config, 31))
    cut = sc.append(sc.step(start(config, 30), toy.action([40])), toy.reply(config, 31))
    assert shown(stopped)[0] == shown(cut)[0]
    assert shown(stopped)[1][9:13] == [1, 1, 0, 0]
    assert shown(cut)[1][9:13] == [1, 0, 0, 0]
    assert int(stopped.table[1, Column.FINISH]) == Finish.STOP and int(cut.table[1, Column.FINISH]) == Finish.LENGTH


def test_newline_after_the_stop_token_is_the_template_s() -> None:
    """The delta after ``[yes, 8]`` starts with the newline of the template, mask 0."""
    config = toy.config()
    state = sc.append(sc.step(start(config, 30), toy.action([40, 8])), toy.reply(config, 31))
    delta, length = sc.delta(state, 16)
    assert delta.tolist()[: int(length)] == [10, 7, 20, 10, 31, 8, 10, 7, 22, 10]
    assert delta.tolist()[int(length) :] == [0] * (16 - int(length))


def test_many_stop_ids() -> None:
    """Any id of the stop set ends an answer, and the one that was sampled stays."""
    config = toy.config(toy.chatml(stop_ids=(8, 9)))
    for stop in (8, 9):
        state = sc.append(sc.step(start(config, 30), toy.action([40, stop])), toy.reply(config, 31))
        tokens, mask = shown(state)
        assert tokens[9:12] == [40, stop, 10] and mask[9:12] == [1, 1, 0]
        assert int(state.table[1, Column.FINISH]) == Finish.STOP
    state = sc.step(start(config, 30), toy.action([9, 40]))
    assert int(state.table[1, Column.FINISH]) == Finish.LENGTH


def test_a_stop_id_after_a_soft_closing() -> None:
    """Where the template writes something between answer and stop id, both were sampled or neither is there."""
    config = toy.config(toy.long_closing())
    stopped = sc.append(sc.step(start(config, 30), toy.action([40, 10, 8])), toy.reply(config, 31))
    cut = sc.append(sc.step(start(config, 30), toy.action([40])), toy.reply(config, 31))
    assert shown(stopped)[0] == shown(cut)[0]
    assert shown(stopped)[0][9:15] == [40, 10, 8, 10, 7, 20]
    assert shown(stopped)[1][9:14] == [1, 1, 1, 0, 0] and shown(cut)[1][9:14] == [1, 0, 0, 0, 0]


def test_mask_and_truncation() -> None:
    """An answer cut after 3 of 6 ids keeps mask 1 on what was kept."""
    config = toy.config(capacity=12)
    state = sc.step(start(config, 30), toy.action([40, 41, 42, 43, 44, 8]))
    tokens, mask = shown(state)
    assert tokens[9:] == [40, 41, 42] and mask[9:] == [1, 1, 1]
    assert bool(state.truncated) and not bool(state.terminated) and int(state.status) == Status.OVERFLOW
    assert int(state.table[1, Column.FINISH]) == Finish.LENGTH


def test_pad_is_eos() -> None:
    """Validity comes from the length: the row ``[5, 2, 2, 2]`` of length 2 has two valid ids."""
    config = toy.config(toy.pad_is_eos())
    blank = sc.prefill(sc.reset(sc.init(config), toy.prompt([(Kind.RAW, [])])), toy.padded([2], 1), toy.int32(0))
    state = sc.step(blank, toy.action([5, 2]))
    tokens, length = sc.prompt(state)
    assert tokens.tolist()[:4] == [5, 2, 2, 2] and int(length) == 2
    assert sc.loss_mask(state).tolist()[:4] == [True, True, False, False]
    assert sc.attention_mask(state).tolist()[:4] == [True, True, False, False]
    assert int(state.table[1, Column.FINISH]) == Finish.STOP


def test_few_shot_answers_are_not_trained() -> None:
    history = [
        (Kind.USER, [7, 20, 30, 8, 7, 22]),
        (Kind.ASSISTANT, [40, 8], Finish.STOP),
        (Kind.USER, [7, 20, 31, 8, 7, 22]),
    ]
    config = toy.config()
    state = sc.step(sc.reset(sc.init(config), toy.prompt(history)), toy.action([41, 8]))
    assert shown(state)[1] == [0] * 14 + [1, 1]


def test_a_mask_is_never_all_zero_after_an_answer() -> None:
    """It needs no marks in the template; before any answer it is all zero because nothing was sampled."""
    state = start(toy.config(), 30)
    assert int(sc.loss_mask(state).sum()) == 0
    assert int(sc.loss_mask(sc.step(state, toy.action([40, 8]))).sum()) == 2


def test_tool_results_are_not_trained() -> None:
    config = toy.config()
    state = sc.step(start(config, 30), toy.action([40, 8]))
    state = sc.append(state, toy.reply(config, 50, 51, role=Kind.TOOL))
    state = sc.step(state, toy.action([41]))
    tokens, mask = shown(state)
    assert [t for t, m in zip(tokens, mask, strict=True) if m] == [40, 8, 41]


def test_prefill_is_content_but_not_trained() -> None:
    config = toy.config()
    state = sc.prefill(start(config, 30), toy.padded([60, 61], 3), toy.int32(2))
    assert bool(state.awaits_answer) and int(state.num_messages) == 2
    state = sc.step(state, toy.action([40, 8]))
    tokens, mask = shown(state)
    assert tokens[9:] == [60, 61, 40, 8] and mask[9:] == [0, 0, 1, 1]
    response, length = sc.last_response(state, 8)
    assert response.tolist()[: int(length)] == [60, 61, 40]
    late = sc.prefill(sc.step(start(config, 30), toy.action([40], finished=False)), toy.padded([60], 1), toy.int32(1))
    assert int(late.status) == Status.ILLEGAL_ROLE_ORDER and bool(late.truncated)


def test_turns_are_found_without_a_search() -> None:
    """Six turns of a template without headers, whose marks are ids that a search could take for contents."""
    config = toy.config(toy.mistral(), max_messages=12, max_turns=6, capacity=64)
    state = start(config, 30)
    for turn in range(6):
        state = sc.step(state, toy.action([40 + turn, 4, 2]))
        if turn < 5:
            state = sc.append(state, toy.reply(config, 31, 3))
    tokens, mask = shown(state)
    assert [t for t, m in zip(tokens, mask, strict=True) if m] == [x for t in range(6) for x in (40 + t, 4, 2)]
    turns = sc.turn_ids(state).tolist()[: int(state.length)]
    assert [turns[i] for i, t in enumerate(tokens) if t >= 40] == list(range(6))
    assert turns == sorted(turns)


def test_an_answer_over_several_pieces_is_one_message() -> None:
    config = toy.config()
    state = start(config, 30)
    for piece, finished in (([40], False), ([], False), ([41, 8], True)):
        state = sc.step(state, toy.action(piece, finished=finished))
        assert int(state.num_messages) == 2
    assert int(state.turn) == 1 and shown(state)[1][9:] == [1, 1, 1]
    assert int(state.table[1, Column.FINISH]) == Finish.STOP


def test_token_count_per_loss() -> None:
    """The only normaliser is the sum of the mask: two rows with 3 and 7 trainable ids."""
    config = toy.config()
    actions = jax.tree.map(lambda *x: np.stack(x), toy.action([40, 41, 8]), toy.action([40] * 6 + [8]))
    states = jax.vmap(sc.step, (None, 0))(start(config, 30), actions)
    assert jax.vmap(sc.loss_mask)(states).sum(1).tolist() == [3, 7]


def test_no_gradient_where_the_mask_is_zero() -> None:
    config = toy.config()
    state = sc.step(start(config, 30), toy.action([40, 8]))
    state = sc.step(sc.append(state, toy.reply(config, 50, role=Kind.TOOL)), toy.action([41, 8]))
    tokens, mask = sc.prompt(state)[0], sc.loss_mask(state)

    def loss(logits: jax.Array) -> jax.Array:
        chosen = jnp.take_along_axis(jax.nn.log_softmax(logits[:-1]), tokens[1:, None], 1)[:, 0]
        return -jnp.sum(jnp.where(mask[1:], chosen, 0.0)) / mask.sum().astype(jnp.float32)

    gradient = jax.grad(loss)(jnp.zeros((config.capacity, 100)))
    used = jnp.abs(gradient).sum(1) > 0
    assert used.tolist()[:-1] == mask.tolist()[1:] and not bool(used[-1])


@pytest.mark.parametrize("wrong", ["content", "search"])
def test_masks_come_from_who_wrote_not_from_what(wrong: str) -> None:
    """A user who writes an answer's very ids, header and all, is not trained on."""
    config = toy.config()
    answer = [40, 41, 8] if wrong == "content" else [7, 22, 10, 40, 8]
    state = sc.step(start(config, *answer), toy.action(answer))
    assert shown(state)[1] == [0] * (8 + len(answer)) + [1] * len(answer)
