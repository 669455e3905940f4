"""Faults of rendering and retokenising that are common in this field, each as its right outcome."""

from typing import Any

import jax
import numpy as np
import pytest

import statelesschat as sc
from tests import vocab
from tests.text.drive import ASSISTANT, USER, Talk, drive, row

LIMITS: dict[str, Any] = {
    "capacity": 512,
    "max_messages": 16,
    "max_message_len": 256,
    "max_prompt_len": 256,
    "max_turns": 8,
}


@pytest.fixture(scope="module")
def codec() -> sc.Codec:
    tokenizer = vocab.qwen25(vocab.CHATML)
    return sc.Codec(tokenizer, sc.make_config(tokenizer, **LIMITS))


def after_answer(codec: sc.Codec, ids: list[int]) -> tuple[list[int], sc.ChatState]:
    """The prompt's ids before an answer, and the state once the answer and a reply are in."""
    state = sc.reset(sc.init(codec.config), row(codec.encode(["Name a fruit."])))
    before = np.asarray(state.tokens)[: int(state.length)].tolist()
    state = sc.step(state, row(codec.encode_actions([ids])))
    return before, sc.append(state, row(codec.encode_messages("user", ["More."])))


def test_sampled_ids_are_never_retokenised(codec: sc.Codec) -> None:
    """`ban`, `ana` decode to a word that encodes otherwise; the next prompt has the ids that were sampled."""
    tokenizer = codec.tokenizer
    letters = [tokenizer.convert_tokens_to_ids(c) for c in "banana"]
    assert tokenizer("banana", add_special_tokens=False).input_ids != letters
    before, state = after_answer(codec, [*letters, tokenizer.eos_token_id])
    after = np.asarray(state.tokens)[: int(state.length)].tolist()
    assert after[: len(before) + 7] == [*before, *letters, tokenizer.eos_token_id]
    delta, length = sc.delta(state)
    assert after == [*before, *letters, tokenizer.eos_token_id, *np.asarray(delta)[: int(length)].tolist()]


def test_answer_at_the_length_limit_keeps_its_ids_though_its_text_encodes_to_more(codec: sc.Codec) -> None:
    """Ids that stop inside a character decode to a replacement character, which would encode to other ids."""
    whole = codec.tokenizer("\U00013000", add_special_tokens=False).input_ids
    assert len(whole) > 1
    _, state = after_answer(codec, whole[:1])
    assert codec.decode_history(state)[0][1] == {"role": "assistant", "content": "\ufffd", "finish_reason": "length"}
    mask = np.asarray(sc.loss_mask(state))
    assert np.asarray(state.tokens)[: len(mask)][mask].tolist() == whole[:1]


def test_newline_behind_the_stop_token_is_written_and_not_trained(codec: sc.Codec) -> None:
    tokenizer = codec.tokenizer
    yes = tokenizer("yes", add_special_tokens=False).input_ids
    before, state = after_answer(codec, [*yes, tokenizer.eos_token_id])
    delta, length = sc.delta(state)
    text = tokenizer.decode(np.asarray(delta)[: int(length)])
    assert text == "\n<|im_start|>user\nMore.<|im_end|>\n<|im_start|>assistant\n"
    mask = np.asarray(sc.loss_mask(state))
    assert mask.sum() == len(yes) + 1 and not mask[len(before) + len(yes) + 1 :].any()


def test_stop_token_that_was_not_sampled_is_written_and_not_trained(codec: sc.Codec) -> None:
    tokenizer = codec.tokenizer
    yes = tokenizer("yes", add_special_tokens=False).input_ids
    before, state = after_answer(codec, yes)
    ids = np.asarray(state.tokens)[: int(state.length)].tolist()
    assert ids[len(before) + len(yes)] == tokenizer.eos_token_id
    assert np.asarray(sc.loss_mask(state)).sum() == len(yes)


def test_other_stop_id_ends_an_answer_too(codec: sc.Codec) -> None:
    """A stop id that the template does not write itself: the answer has stopped, and nothing is doubled."""
    tokenizer = vocab.qwen25(vocab.CHATML)
    tokenizer.eos_token = "<|endoftext|>"
    try:
        other = sc.Codec(tokenizer, sc.make_config(tokenizer, **LIMITS))
        end = tokenizer.convert_tokens_to_ids("<|endoftext|>")
        assert other.config.template.stop_ids == (end, tokenizer.convert_tokens_to_ids("<|im_end|>"))
        _, state = after_answer(other, [9693, end])
        assert other.decode_history(state)[0][1]["finish_reason"] == "stop"
        assert "<|endoftext|>\n<|im_start|>user" in other.decode_text(state)[0]
    finally:
        tokenizer.eos_token = "<|im_end|>"


def test_mask_needs_no_generation_tag_in_the_template(codec: sc.Codec) -> None:
    assert "{% generation" not in codec.config.template.source
    _, state = after_answer(codec, [9693])
    assert np.asarray(sc.loss_mask(state)).sum() == 1


def test_few_shot_answers_are_not_trained_and_render_whole(codec: sc.Codec) -> None:
    history = [
        {"role": "user", "content": "1+1"},
        {"role": "assistant", "content": " 2\n"},
        {"role": "user", "content": "2+2"},
    ]
    state = sc.reset(sc.init(codec.config), row(codec.encode([history])))
    ids = np.asarray(state.tokens)[: int(state.length)].tolist()
    assert ids == codec.tokenizer.apply_chat_template(
        history, add_generation_prompt=True, tokenize=True, return_dict=False
    )
    assert not np.asarray(sc.loss_mask(state)).any()
    state = sc.step(state, row(codec.encode_actions(["4"])))
    assert np.asarray(sc.loss_mask(state)).sum() == 2


def test_turns_are_found_without_searching_for_text(codec: sc.Codec) -> None:
    """Six turns whose answers all say the same, and which quote the header: offsets were known when written."""
    said = "assistant\nuser\nsame"
    talk = Talk((USER, ASSISTANT) * 6 + (USER,), (said,) * 13, 1, (False,) * 13, (1,) * 13)
    *_, last = drive(codec, talk)
    turns, mask = np.asarray(sc.turn_ids(last.state)), np.asarray(sc.loss_mask(last.state))
    ids = np.asarray(last.state.tokens)[: len(mask)]
    for turn, index in enumerate(range(1, 13, 2)):
        assert ids[mask & (turns == turn)].tolist() == last.sampled[index]


def test_content_in_parts_is_joined(codec: sc.Codec) -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    one, two = codec.encode([[{"role": "user", "content": parts}], [{"role": "user", "content": "ab"}]]).tokens
    assert one.tolist() == two.tolist()


def test_one_trace_for_all_lengths_of_an_epoch_with_a_ragged_tail(codec: sc.Codec) -> None:
    import chex

    step = jax.jit(jax.vmap(chex.assert_max_traces(lambda state, action: sc.step(state, action), n=1)))
    reset = jax.jit(jax.vmap(chex.assert_max_traces(lambda blank, data: sc.reset(blank, data), n=1), (None, 0)))
    blank = sc.init(codec.config)
    for prompts in (["x" * n for n in (100, 101, 102)], ["y", "z", "w"]):
        states = step(reset(blank, codec.encode(prompts)), codec.encode_actions(["a", "bb", "ccc"]))
        assert not np.asarray(states.status).any()
