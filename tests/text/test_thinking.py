"""Templates that open, keep, drop or rewrite reasoning: their classes, their witnesses, their own switches."""

from typing import Any

import jax
import numpy as np
import pytest

import statelesschat as sc
from tests.text import public

LIMITS: dict[str, Any] = {"capacity": 1024, "max_messages": 8, "max_message_len": 512, "max_turns": 3}
THOUGHT = "<think>\nwhy\n</think>\n\nso"


@pytest.mark.parametrize(
    ("name", "opened"),
    [
        ("allenai-Olmo-3-7B-Think", "<think>"),
        ("arcee-ai-Trinity-Large-Thinking", "<think>"),
        ("edwardcapriolo-antares-350m-JQ4", "<think>\n"),
        ("ServiceNow-AI-Apriel-1.6-15b-Thinker", "Here are my reasoning steps:\n"),
    ],
)
def test_opened_and_kept_is_exact(name: str, opened: str) -> None:
    template = sc.compile_template(public.tokenizer(name))
    assert template.kind in ("EXACT", "EXACT_CHAT", "GAPS_EXACT")
    assert template.opened == opened
    assert template.gap(sc.Kind.USER, sc.Kind.GENERATE).text.endswith(opened)
    assert f"is opened with {opened!r}" in template.report


@pytest.mark.parametrize(
    ("name", "reason", "dropped"),
    [
        ("Qwen-Qwen3-0.6B", "header while it is the last message", None),
        ("Qwen-Qwen3.6-35B-A3B", "header while it is the last message", None),
        ("deepseek-ai-DeepSeek-R1-Distill-Llama-8B", "rewrites an answer", "so"),
        ("zai-org-GLM-4.5-Air", "rewrites an answer", "so"),
    ],
)
def test_dropped_or_rewritten_is_frozen_history_with_a_witness(name: str, reason: str, dropped: str | None) -> None:
    with pytest.raises(sc.TemplateError, match=reason) as caught:
        sc.compile_template(public.tokenizer(name))
    assert caught.value.kind == "FROZEN_HISTORY"
    assert caught.value.witness is not None and caught.value.witness.messages
    assert 'history="frozen"' in str(caught.value)
    template = sc.compile_template(public.tokenizer(name), history="frozen")
    assert template.kind == "FROZEN_HISTORY"
    if dropped is not None:
        assert caught.value.witness.after.endswith(dropped)


@pytest.mark.parametrize(
    ("switch", "opening"),
    [({}, "<|im_start|>assistant\n"), ({"enable_thinking": False}, "<|im_start|>assistant\n<think>\n\n</think>\n\n")],
)
def test_the_templates_own_switch_changes_what_is_opened(switch: dict[str, bool], opening: str) -> None:
    tokenizer = public.tokenizer("Qwen-Qwen3-0.6B")
    config = sc.make_config(tokenizer, history="frozen", template_kwargs=switch, **LIMITS)
    codec = sc.Codec(tokenizer, config)
    states = jax.vmap(sc.reset, (None, 0))(sc.init(config), codec.encode(["2+2?"]))
    assert codec.decode_text(states)[0].endswith(opening)
    states = jax.vmap(sc.step)(states, codec.encode_actions([THOUGHT if not switch else "so"]))
    states = jax.vmap(sc.append)(states, codec.encode_messages("user", ["and 3+3?"]))
    (text,) = codec.decode_text(states)
    assert text.endswith(f"<|im_end|>\n<|im_start|>user\nand 3+3?<|im_end|>\n{opening}")
    assert text.count("<think>") == (1 if not switch else 2)  # what was written stays


def test_a_generation_prompt_that_history_lacks_is_never_on_the_loss_mask() -> None:
    tokenizer = public.tokenizer("deepseek-ai-DeepSeek-R1-Distill-Llama-8B")
    config = sc.make_config(tokenizer, history="frozen", **LIMITS)
    codec = sc.Codec(tokenizer, config)
    states = jax.vmap(sc.reset, (None, 0))(sc.init(config), codec.encode(["2+2?"]))
    assert codec.decode_text(states)[0].endswith("<｜Assistant｜><think>\n")
    states = jax.vmap(sc.step)(states, codec.encode_actions(["why\n</think>\n\nso"]))
    tokens, mask = np.asarray(states.tokens)[0], np.asarray(jax.vmap(sc.loss_mask)(states))[0]
    assert tokenizer.decode(tokens[: len(mask)][mask]) == "why\n</think>\n\nso<｜end▁of▁sentence｜>"


def test_an_answer_that_goes_on_behind_a_tool_result_is_told_in_the_report() -> None:
    """DeepSeek writes no assistant header there, so the report warns that the answer begins without one."""
    template = sc.compile_template(public.tokenizer("deepseek-ai-DeepSeek-V3.1"), history="frozen")
    asked, after = (template.gap(kind, sc.Kind.GENERATE).text for kind in (sc.Kind.USER, sc.Kind.TOOL))
    assert "<｜Assistant｜>" in asked and "<｜Assistant｜>" not in after
    assert "no assistant header is written" in template.report
    qwen = sc.compile_template(public.tokenizer("Qwen-Qwen2.5-7B-Instruct"))
    assert "no assistant header" not in qwen.report
