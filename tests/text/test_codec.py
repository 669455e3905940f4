"""What goes into a codec and comes out of it, and the errors for what cannot."""

from typing import Any

import jax
import numpy as np
import pytest

import statelesschat as sc

LIMITS: dict[str, Any] = {
    "capacity": 256,
    "max_messages": 6,
    "max_message_len": 64,
    "max_prompt_len": 128,
    "max_turns": 3,
}


@pytest.fixture(scope="module")
def tokenizer():
    return sc.load_tokenizer(None)


@pytest.fixture(scope="module")
def codec(tokenizer) -> sc.Codec:
    return sc.Codec(tokenizer, sc.make_config(tokenizer, **LIMITS))


@pytest.fixture(scope="module")
def logging_codec(tokenizer) -> sc.Codec:
    return sc.Codec(tokenizer, sc.make_config(tokenizer, store_logprobs=True, **LIMITS))


def texts(codec: sc.Codec, data: sc.ChatData) -> list[str]:
    return [codec.tokenizer.decode(t[:n]) for t, n in zip(data.tokens, data.length, strict=True)]


USER = "<|im_start|>user\n{}<|im_end|>\n"
ASKS = "<|im_start|>assistant\n"


@pytest.mark.parametrize(
    ("prompts", "expected"),
    [
        ("hi", [USER.format("hi") + ASKS]),
        (["hi", "yo"], [USER.format("hi") + ASKS, USER.format("yo") + ASKS]),
        ([{"role": "user", "content": "hi"}], [USER.format("hi") + ASKS]),
        ([[{"role": "user", "content": "hi"}], "yo"], [USER.format("hi") + ASKS, USER.format("yo") + ASKS]),
        ({"prompt": "hi"}, [USER.format("hi") + ASKS]),
        (
            [{"query": "hi"}, {"messages": [{"role": "user", "content": "yo"}]}],
            [USER.format("hi") + ASKS, USER.format("yo") + ASKS],
        ),
        ({"prompt_ids": [104, 105]}, ["hi"]),
        ({"prompt_ids": np.array([104, 105])}, ["hi"]),
        (
            [{"role": "user", "content": [{"type": "text", "text": "h"}, {"type": "text", "text": "i"}]}],
            [USER.format("hi") + ASKS],
        ),
        ([{"role": sc.Role.USER, "content": "hi"}], [USER.format("hi") + ASKS]),
    ],
)
def test_prompts_in_every_form(codec: sc.Codec, prompts, expected: list[str]) -> None:
    data = codec.encode(prompts)
    assert texts(codec, data) == expected
    assert data.tokens.dtype == data.length.dtype == data.table.dtype == data.turn_limit.dtype == np.int32
    assert data.tokens.shape == (len(expected), 128) and data.table.shape == (len(expected), 6, 10)


def test_key_of_a_row_can_be_set(codec: sc.Codec) -> None:
    rows = [{"prompt": "no", "question": "hi"}]
    assert texts(codec, codec.encode(rows, key="question")) == [USER.format("hi") + ASKS]
    with pytest.raises(ValueError, match=r"row 0: no key 'q' among"):
        codec.encode(rows, key="q")


def test_history_keeps_its_roles_and_ends_at_an_answer_if_it_does(codec: sc.Codec) -> None:
    """A history is not wrapped into one user message; after a last answer no generation prompt is written."""
    history = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    data = codec.encode([history])
    assert texts(codec, data) == [USER.format("a") + ASKS + "b<|im_end|>"]
    states = jax.vmap(sc.reset, (None, 0))(sc.init(codec.config), data)
    assert not states.awaits_answer[0]
    states = jax.vmap(sc.append)(states, codec.encode_messages("user", ["c"]))
    assert codec.decode_text(states) == [USER.format("a") + ASKS + "b<|im_end|>\n" + USER.format("c") + ASKS]
    assert codec.decode_history(states)[0] == [*history, {"role": "user", "content": "c"}]
    assert not jax.vmap(sc.loss_mask)(states).any()


def test_system_prompt_goes_first_unless_the_history_brings_one(tokenizer) -> None:
    codec = sc.Codec(tokenizer, sc.make_config(tokenizer, system_prompt="Be terse.", **LIMITS))
    own = [{"role": "system", "content": "Own."}, {"role": "user", "content": "hi"}]
    first, second, third = texts(codec, codec.encode(["hi", own, {"prompt_ids": [104]}]))
    assert first == "<|im_start|>system\nBe terse.<|im_end|>\n" + USER.format("hi") + ASKS
    assert second == "<|im_start|>system\nOwn.<|im_end|>\n" + USER.format("hi") + ASKS
    assert third == "h"


def test_prompt_of_ids_is_taken_as_it_is_and_goes_on(codec: sc.Codec) -> None:
    states = jax.vmap(sc.reset, (None, 0))(sc.init(codec.config), codec.encode({"prompt_ids": [104, 258, 105]}))
    states = jax.vmap(sc.step)(states, codec.encode_actions(["yes"]))
    states = jax.vmap(sc.append)(states, codec.encode_messages("user", ["more"]))
    assert codec.decode_text(states)[0] == "h<|im_end|>iyes<|im_end|>\n" + USER.format("more") + ASKS
    assert codec.decode_history(states)[0][0] == {"role": "prompt", "content": "h<|im_end|>i"}


@pytest.mark.parametrize(
    ("prompts", "words"),
    [
        ([], "the batch is empty"),
        (
            ["ok", [{"role": "narrator", "content": "x"}]],
            r"row 1: message 0: unknown role 'narrator'; the roles are system, user",
        ),
        ([[{"role": "user", "content": None}]], r"row 0: message 0: content is None"),
        ([[{"role": "user"}]], r"row 0: message 0: content is None"),
        ([[{"role": "user", "content": 3}]], "content is a int"),
        ([[{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}]], "part of type 'image_url'"),
        ([[]], "row 0: the history is empty"),
        ([[{"content": "x"}]], "a message is a dict with role and content"),
        ([{"question": "x"}], r"none of the keys messages, prompt, query, prompt_ids among \['question'\]"),
        ([None], "row 0: a prompt is a string or a list of messages, not None"),
        (7, "not as int"),
        (["ok", "x" * 200], r"row 1: the prompt takes \d+ ids, more than max_prompt_len=128"),
        ([[{"role": "user", "content": "x"}] * 7], r"row 0: 7 messages and an answer are more than max_messages=6"),
        ([[{"role": "tool", "content": "x"}]], r"row 0: .*a tool message after the start"),
        ([{"prompt_ids": [1, 259]}], "row 0: id 259 is outside the vocabulary of 259"),
        ([{"prompt_ids": [-1]}], "row 0: id -1 is outside"),
        ([{"prompt_ids": [0.5]}], "flat list of integers"),
        (["\ud800"], "row 0: .*half a surrogate pair"),
        ([[{"role": "assistant", "content": "", "tool_calls": [{}]}]], "row 0: message 0: tool call 0 has no name"),
    ],
)
def test_prompt_that_cannot_be_encoded_names_its_row(codec: sc.Codec, prompts, words: str) -> None:
    with pytest.raises((ValueError, TypeError), match=words):
        codec.encode(prompts)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda c: c.encode_actions([]), "the batch is empty"),
        (lambda c: c.encode_actions([[1, 300]]), "row 0: id 300 is outside the vocabulary"),
        (
            lambda c: c.encode_actions(["ok", "x" * 70]),
            r"row 1: the answer takes \d+ ids, more than max_response_len=64",
        ),
        (lambda c: c.encode_actions(["a"], logprobs=[[0.0, 0.0]]), "stores no logprobs"),
        (lambda c: c.encode_actions(["a", "b"], finished=[True]), "finished has 1 entries for 2 rows"),
        (lambda c: c.encode_actions([None]), "row 0"),
        (lambda c: c.encode_messages("user", []), "the batch is empty"),
        (
            lambda c: c.encode_messages("user", ["x" * 70]),
            r"row 0: the message takes \d+ ids, more than max_message_len=64",
        ),
        (lambda c: c.encode_messages("who", ["x"]), "unknown role 'who'"),
        (lambda c: c.encode_messages("user", ["x"], next="later"), "unknown role 'later'"),
        (lambda c: c.encode_messages("tool", ["x"], previous="start"), "row 0: .*a tool message after the start"),
        (lambda c: c.encode_messages("user", [None]), "row 0: content is None"),
        (lambda c: c.encode(["x"], turn_limit=4), "turn_limit=4; give 1 to max_turns=3"),
        (lambda c: c.encode(["x"], turn_limit=0), "turn_limit=0"),
        (lambda c: c.encode(["x"], width=129), "width=129"),
        (lambda c: c.encode(["xxxxxxxxxx"], width=8), "row 0: .*width=8"),
    ],
)
def test_action_or_message_that_cannot_be_encoded_names_its_row(codec: sc.Codec, call, words: str) -> None:
    with pytest.raises((ValueError, TypeError), match=words):
        call(codec)


@pytest.mark.parametrize(
    ("logprobs", "words"),
    [
        (None, "this config stores logprobs"),
        ([[-0.1]], "1 logprobs for 2 ids"),
        ([[-0.1, float("nan")]], "row 0: logprob 1 is nan"),
        ([[-0.1, float("-inf")]], "row 0: logprob 1 is -inf"),
        ([[-0.1, 0.5]], "row 0: logprob 1 is 0.5, above 0"),
        ([[-0.1, -0.1], [-0.1]], "logprobs has 2 entries for 1 rows"),
    ],
)
def test_logprobs_that_cannot_be_are_refused(logging_codec: sc.Codec, logprobs, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        logging_codec.encode_actions([[104, 105]], logprobs=logprobs)


def test_logprobs_stand_at_their_tokens(logging_codec: sc.Codec) -> None:
    codec = logging_codec
    states = jax.vmap(sc.reset, (None, 0))(sc.init(codec.config), codec.encode("q"))
    begin = int(states.length[0])
    states = jax.vmap(sc.step)(states, codec.encode_actions([[104, 105, 258]], logprobs=[[-0.5, -1.0, -1.5]]))
    states = jax.vmap(sc.append)(states, codec.encode_messages("user", ["more"]))
    logprobs = np.asarray(jax.vmap(sc.sampled_logprobs)(states))[0]
    assert logprobs[begin : begin + 3].tolist() == [-0.5, -1.0, -1.5]
    assert not logprobs[:begin].any() and not logprobs[begin + 3 :].any()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"capacity": 0}, "capacity=0; give a positive whole number"),
        ({"max_turns": 1.5}, "max_turns=1.5"),
        ({"max_prompt_len": 300}, "max_prompt_len=300 is more than capacity=256"),
        ({"max_messages": 1}, "no room for an answer"),
        ({"overflow_reward": float("nan")}, "overflow_reward"),
        ({"system_prompt": "x" * 200}, "system_prompt: .*more than max_prompt_len=128"),
        ({"system_prompt": 3}, "system_prompt: content is a int"),
    ],
)
def test_config_that_cannot_be_says_what_to_change(tokenizer, changes: dict, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        sc.make_config(tokenizer, **{**LIMITS, **changes})


def test_codec_refuses_another_tokenizer(codec: sc.Codec) -> None:
    other = sc.load_tokenizer(None)
    other.add_tokens(["<new>"])
    with pytest.raises(ValueError, match="same tokenizer"):
        sc.Codec(other, codec.config)


def test_answer_over_open_pieces_closes_once_and_decodes_whole(codec: sc.Codec) -> None:
    states = jax.vmap(sc.reset, (None, 0))(sc.init(codec.config), codec.encode("q"))
    states = jax.vmap(sc.step)(states, codec.encode_actions(["one "], finished=False))
    assert codec.decode_history(states)[0][-1] == {"role": "assistant", "content": "one ", "finish_reason": "open"}
    assert int(states.turn[0]) == 0
    states = jax.vmap(sc.step)(states, codec.encode_actions(["two"], begin=False))
    assert int(states.turn[0]) == 1
    states = jax.vmap(sc.append)(states, codec.encode_messages("user", ["r"]))
    assert codec.decode_text(states)[0] == USER.format("q") + ASKS + "one two<|im_end|>\n" + USER.format("r") + ASKS
    assert codec.decode_history(states)[0][1] == {"role": "assistant", "content": "one two", "finish_reason": "stop"}


def test_rows_of_one_batch_may_have_other_roles_and_neighbours(codec: sc.Codec) -> None:
    states = jax.vmap(sc.reset, (None, 0))(sc.init(codec.config), codec.encode(["q", "q"]))
    states = jax.vmap(sc.step)(states, codec.encode_actions(["a", "b"]))
    states = jax.vmap(sc.append)(
        states, codec.encode_messages(["user", "tool"], ["r", "42"], next=["generate", "tool"])
    )
    assert states.awaits_answer.tolist() == [True, False]
    assert [h[-1]["role"] for h in codec.decode_history(states)] == ["user", "tool"]


def test_prefill_is_content_but_not_trained(codec: sc.Codec) -> None:
    """A prefix is put after the header as it is, nothing stripped, mask False, and part of the answer's content."""
    states = jax.vmap(sc.reset, (None, 0))(sc.init(codec.config), codec.encode("q"))
    begun = codec.encode_actions(["The answer is "], finished=False)
    states = jax.vmap(sc.prefill)(states, begun.tokens, begun.length)
    states = jax.vmap(sc.step)(states, codec.encode_actions(["5"], begin=False))
    assert codec.decode_text(states)[0] == USER.format("q") + ASKS + "The answer is 5<|im_end|>"
    assert codec.decode_history(states)[0][-1]["content"] == "The answer is 5"
    assert int(jax.vmap(sc.loss_mask)(states).sum()) == 2


def test_responses_are_the_latest_answers_of_the_histories(codec: sc.Codec) -> None:
    """Whatever was sampled last, finished or open, however long, prefill included; nothing before any answer."""
    states = jax.vmap(sc.reset, (None, 0))(sc.init(codec.config), codec.encode(["q"] * 4))
    assert codec.decode_responses(states) == [""] * 4
    begun = codec.encode_actions(["so: "] * 4, finished=False)
    states = jax.vmap(sc.prefill)(states, begun.tokens, begun.length)
    answers = codec.encode_actions(["a", "", "long " * 10, "cut "], begin=False, finished=[True, True, True, False])
    states = jax.vmap(sc.step)(states, answers)
    assert codec.decode_responses(states) == ["so: a", "so: ", "so: " + "long " * 10, "so: cut "]
    states = jax.vmap(sc.append)(states, codec.encode_messages("user", ["more"] * 4))  # refused where one is open
    states = jax.vmap(sc.step)(states, codec.encode_actions(["b<|im_start|>", [258], "c", "off"]))
    responses = codec.decode_responses(states)
    assert responses == [history[-1]["content"] for history in codec.decode_history(states, calls=False)]
    assert responses == ["b<|im_start|>", "", "c", "so: cut "]
    assert codec.decode_responses(jax.tree.map(lambda x: x[0], states)) == responses[:1]


def test_three_modes_are_views_of_one_state(codec: sc.Codec) -> None:
    """Text, history and tokens are functions of the state, so there is nothing to fall out of step."""
    states = jax.vmap(sc.reset, (None, 0))(sc.init(codec.config), codec.encode("q"))
    for answer in ("a", "b"):
        states = jax.vmap(sc.step)(states, codec.encode_actions([answer]))
        tokens, length = jax.vmap(sc.prompt)(states)
        history = codec.decode_history(states)[0]
        rendered = codec.tokenizer.apply_chat_template(history, tokenize=False).removesuffix("\n")
        assert (
            codec.decode_text(states)[0] == rendered == codec.tokenizer.decode(np.asarray(tokens)[0][: int(length[0])])
        )
        states = jax.vmap(sc.append)(states, codec.encode_messages("user", ["more"]))


def test_pad_id_may_be_the_stop_id(tokenizer) -> None:
    padded = sc.load_tokenizer(None)
    padded.pad_token = padded.eos_token
    codec = sc.Codec(padded, sc.make_config(padded, **LIMITS))
    assert codec.config.template.pad_id in codec.config.template.stop_ids
    states = jax.vmap(sc.reset, (None, 0))(sc.init(codec.config), codec.encode(["q", "longer question"]))
    states = jax.vmap(sc.step)(states, codec.encode_actions(["a", "b"]))
    assert jax.vmap(sc.loss_mask)(states).sum(1).tolist() == [2, 2]
    assert jax.vmap(sc.attention_mask)(states).sum(1).tolist() == states.length.tolist()
