"""The text of an answer on the device is what the codec decodes on the host, and never the prompt's."""

import functools
from typing import Any

import jax
import numpy as np
import pytest

import statelesschat as sc
from statelesschat.rewards import TokenBytes, response_text, response_tokens
from tests import vocab
from tests.rewards.batches import bytes_of
from tests.text import public

LIMITS: dict[str, Any] = {
    "capacity": 768,
    "max_messages": 8,
    "max_message_len": 128,
    "max_prompt_len": 384,
    "max_turns": 3,
}
SECRET = "#### 42 \\boxed{42} <answer>42</answer> café"
ANSWERS = ["so 5", "", " 7 ", "<think>\nwhy\n</think>\n\nso", "<|im_end|", "naïve − 😀\n", "x" * 70, "\n\n9"]
MAKERS = {
    "bytes": lambda: (sc.load_tokenizer(None), "exact"),
    "qwen2.5": lambda: (vocab.qwen25(vocab.CHATML), "exact"),
    "qwen3": lambda: (vocab.qwen3(vocab.QWEN3), "frozen"),
    "opens a thought": lambda: (public.tokenizer("allenai-Olmo-3-7B-Think"), "exact"),
    "opens a thought and a line": lambda: (public.tokenizer("edwardcapriolo-antares-350m-JQ4"), "exact"),
    "writes a header for past answers": lambda: (
        public.tokenizer("deepseek-ai-DeepSeek-R1-Distill-Llama-8B"),
        "frozen",
    ),
    "mistral-v3": lambda: (vocab.mistral_v3(vocab.public("mistralai-Mistral-7B-Instruct-v0.3")), "exact"),
    "mistral-v3-legacy": lambda: (vocab.mistral_v3_legacy(vocab.public("mistralai-Mistral-7B-Instruct-v0.3")), "exact"),
}
OFTEN = {"bytes", "qwen2.5", "opens a thought and a line"}
NAMES = [pytest.param(name, marks=[pytest.mark.slow] * (name not in OFTEN)) for name in MAKERS]


@functools.cache
def setup(name: str) -> tuple[sc.Codec, TokenBytes]:
    tokenizer, history = MAKERS[name]()
    return sc.Codec(tokenizer, sc.make_config(tokenizer, history=history, **LIMITS)), sc.token_bytes(tokenizer)


@functools.partial(jax.jit, static_argnames=("width", "size"))
def texts_of(states: sc.ChatState, vocabulary: TokenBytes, width: int | None = None, size: int | None = None) -> Any:
    return jax.vmap(lambda s: response_text(s, vocabulary, width=width, size=size))(states)


def check(name: str, states: sc.ChatState, expected: list[str] | None = None) -> list[str]:
    """Raise unless device and host read the same; what they read."""
    codec, vocabulary = setup(name)
    host = codec.decode_responses(states)
    texts = jax.tree.map(np.asarray, texts_of(states, vocabulary, width=256))
    device = [bytes_of(jax.tree.map(lambda leaf, row=row: leaf[row], texts)) for row in range(len(host))]
    assert all(text is not None for text in device)
    read = [text.decode(errors="replace") for text in device if text is not None]
    if name.endswith("legacy"):
        read = [text.removeprefix(" ") for text in read]
    assert read == host
    assert not any("42" in text for text in read)
    assert expected is None or read == expected
    return read


def begun(name: str) -> sc.ChatState:
    codec, _ = setup(name)
    prompts = [SECRET if row % 2 else [{"role": "user", "content": f"{SECRET} {row}"}] for row in range(len(ANSWERS))]
    return jax.vmap(sc.reset, (None, 0))(sc.init(codec.config), codec.encode(prompts))


@pytest.mark.parametrize("name", NAMES)
def test_response_is_what_the_codec_decodes_turn_after_turn(name: str) -> None:
    codec, _ = setup(name)
    states = begun(name)
    check(name, states, [""] * len(ANSWERS))
    for answers in (ANSWERS, ANSWERS[::-1]):
        states = jax.vmap(sc.step)(states, codec.encode_actions(answers))
        read = check(name, states)
        assert all(answer.strip() in text for text, answer in zip(read, answers, strict=True))
        states = jax.vmap(sc.append)(states, codec.encode_messages("user", [SECRET] * len(ANSWERS)))
        check(name, states, read)


@pytest.mark.parametrize("name", NAMES)
def test_response_cut_by_length(name: str) -> None:
    codec, _ = setup(name)
    states = jax.vmap(sc.step)(begun(name), codec.encode_actions(ANSWERS, stop=False))
    check(name, states)
    ids = [ids[: len(ids) // 2] for ids in (codec.tokenizer.encode(a, add_special_tokens=False) for a in ANSWERS)]
    check(name, jax.vmap(sc.step)(begun(name), codec.encode_actions(ids)))


@pytest.mark.parametrize("name", NAMES)
def test_response_with_a_prefill_and_in_pieces(name: str) -> None:
    codec, _ = setup(name)
    begin = codec.encode_actions(["So: "] * len(ANSWERS), finished=False)
    states = jax.vmap(sc.prefill)(begun(name), begin.tokens, begin.length)
    for finished in (False, True):
        actions = codec.encode_actions(ANSWERS, begin=False, finished=finished)
        states = jax.vmap(sc.step)(states, actions)
        check(name, states)


@pytest.mark.parametrize("name", NAMES)
def test_response_of_any_ids(name: str) -> None:
    """A policy may sample what no text encodes to: control tokens, parts of characters, the closing of the template."""
    codec, _ = setup(name)
    template, source = codec.config.template, np.random.default_rng(1)
    stop = template.stop_id
    few = sorted({*template.closing_ids, *template.rest_core_ids, stop, 0, 5, 13, 200})
    answers = [[int(i) for i in source.choice(few, 6)] for _ in range(len(ANSWERS) - 2)]
    answers += [[*template.rest_core_ids, 65, *template.closing_ids, stop], [*template.closing_ids, stop]]
    states = jax.vmap(sc.step)(begun(name), codec.encode_actions(answers))
    check(name, states)


def test_text_that_takes_more_room_than_there_is_does_not_fit() -> None:
    codec, vocabulary = setup("bytes")
    states = jax.vmap(sc.step)(begun("bytes"), codec.encode_actions(["x" * n for n in (0, 7, 8, 9, 10, 60, 100, 1)]))
    assert texts_of(states, vocabulary, width=8).fits.tolist() == [True, True, True, False, False, False, False, True]
    assert texts_of(states, vocabulary, size=9).fits.tolist() == [True, True, True, True, False, False, False, True]
    tokens, length = jax.vmap(lambda s: response_tokens(s, 8))(states)
    assert tokens.shape == (8, 8) and length.tolist() == [0, 7, 8, 9, 10, 60, 100, 1]
