"""Prompts on device against transformers' own encoding of its own render."""

import copy
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import statelesschat as sc
from tests import vocab
from tests.text.drive import ANY_CONTENT, ASSISTANT, PLAIN_CONTENT, Talk, blocks, drive, talks

LIMITS: dict[str, Any] = {
    "capacity": 1536,
    "max_messages": 16,
    "max_message_len": 512,
    "max_prompt_len": 1024,
    "max_turns": 8,
}
SETUPS = {
    "qwen25-chatml": (vocab.qwen25, vocab.CHATML),
    "qwen25-own": (vocab.qwen25, vocab.QWEN25),
    "bytes": (lambda template: sc.load_tokenizer(None), None),
}


@pytest.fixture(scope="module", params=SETUPS)
def codec(request: pytest.FixtureRequest) -> sc.Codec:
    make, template = SETUPS[request.param]
    tokenizer = make(template)
    return sc.Codec(tokenizer, sc.make_config(tokenizer, **LIMITS))


def escaping(codec: sc.Codec):
    """The tokenizer, told that all of its added tokens are control tokens when they stand in contents."""
    tokenizer = copy.copy(codec.tokenizer)
    tokenizer.chat_control_tokens = [str(t.content) for t in tokenizer.added_tokens_decoder.values()]
    return tokenizer


def theirs(codec: sc.Codec, talk: Talk, upto: int) -> list[int]:
    return escaping(codec).apply_chat_template(
        talk.messages(upto), add_generation_prompt=True, tokenize=True, return_dict=False, sanitize_control_tokens=True
    )


@given(talk=talks())
def test_prompts_equal_the_tokenizers_own_encoding(codec: sc.Codec, talk: Talk) -> None:
    """Every block but the sampled answers' is the one transformers gives; those are header and the action's ids.

    Where contents hold what looks like control tokens, transformers encodes that stretch apart from its neighbours,
    so its text is compared, and that it holds no control token.
    """
    controls = codec.tokenizer.added_tokens_decoder
    opener, stop = (codec.tokenizer.convert_tokens_to_ids(t) for t in ("<|im_start|>", "<|im_end|>"))
    header = codec.tokenizer("assistant\n", add_special_tokens=False).input_ids
    newline = codec.tokenizer("\n", add_special_tokens=False).input_ids
    for point in drive(codec, talk):
        ours, expected = blocks(point.ids, opener), blocks(theirs(codec, talk, point.upto), opener)
        assert len(ours) == len(expected)
        answers = iter(i for i, kind in enumerate(talk.kinds[: point.upto]) if kind == ASSISTANT)
        for mine, other in zip(ours, expected, strict=True):
            answer = mine[1 : 1 + len(header)] == header and mine is not ours[-1]
            index = next(answers) if answer else None
            if index in point.sampled:
                ids = point.sampled[index]
                closing = [] if ids[-1:] == [stop] else [stop]
                assert mine == [opener, *header, *ids, *closing, *newline]
            elif mine != other:
                assert codec.tokenizer.decode(mine) == codec.tokenizer.decode(other)
                assert any(str(t.content) in c for t in controls.values() for c in talk.contents)
                text_only = set(controls) if index is None else set(codec.tokenizer.all_special_ids)
                assert [t for t in mine if t in text_only] == [t for t in other if t in text_only]


@given(talk=talks(PLAIN_CONTENT))
def test_whole_prompt_equals_apply_chat_template_where_no_answer_merges(codec: sc.Codec, talk: Talk) -> None:
    """With answers that begin in no white space nothing may differ at all, the answers' ids included."""
    contents = tuple(c.lstrip() if k == ASSISTANT else c for k, c in zip(talk.kinds, talk.contents, strict=True))
    talk = talk._replace(contents=contents)
    for point in drive(codec, talk):
        whole = codec.tokenizer.apply_chat_template(
            talk.messages(point.upto), add_generation_prompt=True, tokenize=True, return_dict=False
        )
        assert point.ids == whole


@given(talk=talks())
def test_histories_come_back_exactly(codec: sc.Codec, talk: Talk) -> None:
    """Contents are decoded as they went in, up to the tokenizer's normaliser."""
    backend = codec.tokenizer.backend_tokenizer
    normal = (lambda text: text) if backend.normalizer is None else backend.normalizer.normalize_str
    for point in drive(codec, talk):
        history = codec.decode_history(point.state)[0]
        assert [(m["role"], m["content"]) for m in history] == [
            (m["role"], normal(m["content"])) for m in talk.messages(point.upto)
        ]
        reasons = [m.get("finish_reason") for i, m in enumerate(history) if i in point.sampled]
        assert reasons == ["length" if talk.cut[i] else "stop" for i in sorted(point.sampled)]
        assert [i for i, m in enumerate(history) if "finish_reason" in m] == sorted(point.sampled)


@given(talk=talks())
def test_mask_covers_the_sampled_ids_and_nothing_else(codec: sc.Codec, talk: Talk) -> None:
    for point in drive(codec, talk):
        mask = np.asarray(sc.loss_mask(point.state))[: len(point.ids)]
        assert [t for t, m in zip(point.ids, mask, strict=True) if m] == [
            t for i in sorted(point.sampled) for t in point.sampled[i]
        ]


@settings(max_examples=20)
@given(texts=st.lists(ANY_CONTENT, min_size=1, max_size=5))
def test_messages_decode_to_what_was_encoded(codec: sc.Codec, texts: list[str]) -> None:
    backend = codec.tokenizer.backend_tokenizer
    normal = (lambda text: text) if backend.normalizer is None else backend.normalizer.normalize_str
    decoded = codec.decode_messages(codec.encode_messages("user", texts))
    assert decoded == [{"role": "user", "content": normal(text)} for text in texts]
