"""Mistral's prompts on device against the ids that Mistral's own library gives the same messages.

Where the public templates and that library differ, what both define is compared:

* Answers lose white space at their ends in the template of v0.3, spaces at their end in the library, and nothing in
  the template of Nemo; so answers here begin and end in none.
* An empty user message is a lone space to the SentencePiece template and nothing to the library; so none is empty.
* Template and library of v3 put a system prompt before the *last* user message, wherever that is. Earlier turns are
  rewritten so, and the library here refuses it; v7 and later write it where it stands.
* The template of v3 writes a tool result as it is, the library as JSON; so results here are JSON.
* The conversion with a space before every piece (`mistral-v3-legacy`) gives other ids than the library: the
  template's own space comes on top. It equals transformers, not Mistral, and is left out here.
"""

import functools
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import statelesschat as sc
from tests.text.drive import ASSISTANT, PLAIN_CONTENT, SYSTEM, USER, Talk, drive, row
from tests.text.real import codec_of
from tests.vocab.mistral import TEKKEN, V3, V7, data

# Each setup with the library's file and version.
ORACLES = {
    "mistral-v3": (V3, "InstructTokenizerV3"),
    "mistral-v7": (V7, "InstructTokenizerV7"),
    "tekken-nemo": (TEKKEN, "InstructTokenizerV3"),
    "tekken-small": (TEKKEN, "InstructTokenizerV7"),
}
PARAMS = [pytest.param(n, marks=[pytest.mark.slow] * (n in ("mistral-v7", "tekken-small"))) for n in ORACLES]


@functools.cache
def encoder(name: str) -> Any:
    """The library's encoder of requests."""
    from mistral_common.tokens.tokenizers import instruct
    from mistral_common.tokens.tokenizers.sentencepiece import SentencePieceTokenizer
    from mistral_common.tokens.tokenizers.tekken import Tekkenizer

    file, version = ORACLES[name]
    load = Tekkenizer.from_file if file == TEKKEN else SentencePieceTokenizer
    return getattr(instruct, version)(load(data(file)))


def library_ids(name: str, messages: list[dict[str, Any]]) -> list[int]:
    """Ids of messages as the library writes them."""
    from mistral_common.protocol.instruct import messages as m
    from mistral_common.protocol.instruct.request import InstructRequest
    from mistral_common.protocol.instruct.tool_calls import FunctionCall, ToolCall

    def message_of(message: dict[str, Any]) -> Any:
        if message["role"] == "tool":
            return m.ToolMessage(content=message["content"], tool_call_id=message["tool_call_id"], name=message["name"])
        if message.get("tool_calls"):
            functions = [(c["id"], c["function"]["name"], c["function"]["arguments"]) for c in message["tool_calls"]]
            calls = [
                ToolCall(id=i, function=FunctionCall(name=n, arguments=json.dumps(a, ensure_ascii=False)))
                for i, n, a in functions
            ]
            return m.AssistantMessage(content=None, tool_calls=calls)
        return kinds[message["role"]](content=message["content"])

    kinds = {"system": m.SystemMessage, "user": m.UserMessage, "assistant": m.AssistantMessage}
    system = None
    if ORACLES[name][1] == "InstructTokenizerV3" and messages[0]["role"] == "system":
        system, messages = messages[0]["content"], messages[1:]
    told = [message_of(message) for message in messages]
    return encoder(name).encode_instruct(InstructRequest(messages=told, system_prompt=system)).tokens


def conversations(chains: list[tuple[int, ...]]) -> st.SearchStrategy[Talk]:
    """Conversations of these kinds with contents on whose white space template and library agree."""

    def talk(kinds: tuple[int, ...], contents: list[str], prompt: int) -> Talk:
        told = (c.strip() if k == ASSISTANT else c for k, c in zip(kinds, contents, strict=False))
        starts = [i for i, kind in enumerate(kinds) if kind == ASSISTANT] + [len(kinds)]
        none = (False,) * len(kinds)
        return Talk(kinds, tuple(c or "x" for c in told), starts[prompt % len(starts)], none, (1,) * len(kinds))

    kinds = st.sampled_from([tuple(map(int, chain)) for chain in chains])
    return st.builds(talk, kinds, st.lists(PLAIN_CONTENT, min_size=5, max_size=5), st.integers(0, 2))


TURNS: list[tuple[int, ...]] = [(USER,), (USER, ASSISTANT, USER), (USER, ASSISTANT, USER, ASSISTANT, USER)]
WITH_SYSTEM: list[tuple[int, ...]] = [(SYSTEM, *kinds) for kinds in TURNS[:2]]


@pytest.mark.parametrize("name", PARAMS)
def test_prompts_equal_mistrals_own(name: str) -> None:
    codec = codec_of(name)
    placed = ORACLES[name][1] != "InstructTokenizerV3"
    # Without a system prompt Small's template writes one of its own, which the library does not.
    chains = WITH_SYSTEM if name == "tekken-small" else TURNS + WITH_SYSTEM * placed

    @settings(max_examples=12)
    @given(conversations(chains))
    def check(talk: Talk) -> None:
        for point in drive(codec, talk):
            assert point.ids == library_ids(name, talk.messages(point.upto))

    check()


@pytest.mark.parametrize("name", ["mistral-v3", "tekken-nemo"])
def test_calls_and_results_equal_mistrals_own(name: str) -> None:
    """Few-shot calls, one and several, and calls that were sampled: ids as the library gives them."""
    codec = codec_of(name)
    calls = [
        {"id": f"abcdef12{i}", "type": "function", "function": {"name": "look_up", "arguments": arguments}}
        for i, arguments in enumerate(
            [{"city": "Oslo", "said": 'caf\u00e9 "x"\n'}, {"days": 3, "deep": {"er": [1, None]}}]
        )
    ]
    results = [
        {"role": "tool", "content": json.dumps({"celsius": i}), "name": "look_up", "tool_call_id": c["id"]}
        for i, c in enumerate(calls)
    ]
    asked = [{"role": "user", "content": "How warm is it?"}]
    for count in (1, 2):
        called = {"role": "assistant", "content": "", "tool_calls": calls[:count]}
        messages = [*asked, called, *results[:count]]
        answered = [*messages, {"role": "assistant", "content": "Cold."}, {"role": "user", "content": "And now?"}]
        for told in (messages, answered):
            data = codec.encode([told])
            assert data.tokens[0][: data.length[0]].tolist() == library_ids(name, told)
        state = sc.reset(sc.init(codec.config), row(codec.encode([asked])))
        state = sc.step(state, row(codec.encode_actions([called])))
        for i, result in enumerate(results[:count]):
            following = "generate" if i == count - 1 else "tool"
            previous = "assistant" if i == 0 else "tool"
            state = sc.append(state, row(codec.encode_messages("tool", [result], previous=previous, next=following)))
        assert np.asarray(state.tokens)[: int(state.length)].tolist() == library_ids(name, messages)


@pytest.mark.parametrize("name", ["mistral-v3", "tekken-nemo"])
def test_system_prompt_that_moves_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="cannot write a system message after the start"):
        codec_of(name).encode([[{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]])


def test_space_before_an_answer_is_one_with_it() -> None:
    """The template writes `` Hello``, the library ``Hello`` with the space it puts before any text: the same ids."""
    action = codec_of("mistral-v3").encode_actions(["Hello"])
    ids = action.tokens[0][: action.length[0]].tolist()
    assert ids == encoder("mistral-v3").tokenizer.encode("Hello", False, True)
