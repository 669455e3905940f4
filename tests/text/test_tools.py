"""Tool specs, tool calls and tool results, on public templates, from the codec through the device and back."""

import functools
import json
import random
from typing import Any

import jax
import numpy as np
import pytest

import statelesschat as sc
from statelesschat.text.fields import Fields
from statelesschat.text.verify import Conversation, random_conversations
from tests.text import public
from tests.text.drive import row

SYSTEM, USER, ASSISTANT, TOOL, CALL = sc.Kind.SYSTEM, sc.Kind.USER, sc.Kind.ASSISTANT, sc.Kind.TOOL, sc.Kind.CALL
LIMITS: dict[str, Any] = {
    "capacity": 8192,
    "max_messages": 16,
    "max_message_len": 2048,
    "max_prompt_len": 4096,
    "max_turns": 8,
}
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["city"],
        },
    },
}
# What each writes: the class, the style its calls are read in, and what a tool result has to say of its call.
FAMILIES = {
    "Qwen-Qwen2.5-7B-Instruct": ("EXACT", "json", ()),
    "NousResearch-Hermes-4-14B": ("EXACT", "json", ()),
    "meta-llama-Llama-3.1-8B-Instruct": ("EXACT", "json", ()),
    "mistralai-Mistral-7B-Instruct-v0.3": ("GAPS_EXACT", "json", ("tool_call_id",)),
    "mistralai-Devstral-2-123B-Instruct-2512": ("EXACT", "named", ()),
    "moonshotai-Kimi-K2-Instruct": ("GAPS_EXACT", "named", ("name", "tool_call_id")),
    "Qwen-Qwen3-Coder-30B-A3B-Instruct": ("EXACT", "tagged", ()),
    "arcee-ai-Trinity-Large-Thinking": ("EXACT", "tagged", ()),
    "deepseek-ai-DeepSeek-V3.1": ("FROZEN_HISTORY", "named", ()),
    "zai-org-GLM-4.5-Air": ("FROZEN_HISTORY", "tagged", ()),
    "MiniMaxAI-MiniMax-M2.1": ("FROZEN_HISTORY", "tagged", ()),
    "openai-gpt-oss-120b": ("FROZEN_HISTORY", "named", ("name",)),
    "google-gemma-4-31B-it": ("FROZEN_HISTORY", "loose", ("name",)),
}
LEAVES_SPECS_OUT = ("deepseek-ai-DeepSeek-V3.1",)
CALLED = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'
CHAINS = [
    (USER, CALL, TOOL),
    (USER, CALL, TOOL, ASSISTANT, USER, CALL, TOOL),
    (SYSTEM, USER, CALL, TOOL, CALL, TOOL, ASSISTANT, USER),
    (USER, CALL, TOOL, TOOL, ASSISTANT, USER),
    (USER, ASSISTANT, USER, CALL, TOOL, TOOL, TOOL),
]
_reset, _step, _append, _prompt = (jax.jit(f) for f in (sc.reset, sc.step, sc.append, sc.prompt))


@functools.cache
def codec_of(name: str, tools: bool = False) -> sc.Codec:
    tokenizer = public.tokenizer(name)
    specs = [WEATHER] if tools and name not in LEAVES_SPECS_OUT else None
    return sc.Codec(tokenizer, sc.make_config(tokenizer, history="frozen", tools=specs, **LIMITS))


def as_messages(codec: sc.Codec, talk: Conversation) -> list[dict[str, Any]]:
    return codec.writer.render.messages(talk.kinds, talk.contents)


def as_input(content: str | Fields) -> Any:
    if isinstance(content, str):
        return content
    return {"content": content.content, "name": content.name, "tool_call_id": content.call_id}


def prompts(codec: sc.Codec, talk: Conversation):
    """The device's prompt each time an answer is asked for, with where the last sampled answer ends in it."""
    messages = as_messages(codec, talk)
    state = _reset(sc.init(codec.config), row(codec.encode([messages[: talk.prompt]])))
    sampled, end = {}, 0
    if talk.kinds[talk.prompt - 1] not in (ASSISTANT, CALL):
        yield talk.prompt, state, dict(sampled), end
    for index in range(talk.prompt, len(talk.kinds)):
        kind = talk.kinds[index]
        if kind in (ASSISTANT, CALL):
            answer = messages[index] if kind == CALL else talk.contents[index]
            action = row(codec.encode_actions([answer], stop=index not in talk.cut))
            state = _step(state, action)
            sampled[index], end = action.tokens[: int(action.length)].tolist(), int(state.length)
            continue
        asked = index + 1 == len(talk.kinds) or talk.kinds[index + 1] in (ASSISTANT, CALL)
        block = codec.encode_messages(
            sc.Role(kind),
            [as_input(talk.contents[index])],
            previous=sc.Kind(talk.kinds[index - 1]),
            next="generate" if asked else sc.Kind(talk.kinds[index + 1]),
        )
        state = _append(state, row(block))
        assert int(state.status) == sc.Status.OK, sc.Status(int(state.status))
        if asked:
            yield index + 1, state, dict(sampled), end


@pytest.mark.parametrize("name", FAMILIES)
def test_tool_turns_on_the_device_are_the_templates_own(name: str) -> None:
    """Calls, several of them, and consecutive results: ids as transformers renders and encodes the same messages.

    All contents are plain, and calls are sampled as the template writes them, so that nothing may differ; of a
    template that rewrites history, what stands behind the last sampled answer.
    """
    codec = codec_of(name)
    template = codec.config.template
    kind, style, refers = FAMILIES[name]
    assert (template.kind, template.call_format[0], codec.writer.render.shape.refers) == (kind, style, refers)
    rng = random.Random(5)
    pairs = {(gap.previous, gap.next) for gap in template.gaps}
    chains = [c for c in CHAINS if set(zip(c, c[1:], strict=False)) | {(sc.Kind.START, c[0])} <= pairs]
    assert len(chains) >= 2
    compared = 0
    for talk in random_conversations(rng, chains * 3, template, thoughts=False):
        contents = tuple(
            c.strip() or "x" if k == ASSISTANT else c for k, c in zip(talk.kinds, talk.contents, strict=True)
        )
        talk = talk._replace(contents=contents)
        for upto, state, sampled, end in prompts(codec, talk):
            tokens, length = _prompt(state)
            ours = np.asarray(tokens)[: int(length)].tolist()
            theirs = codec.tokenizer.apply_chat_template(
                as_messages(codec, talk)[:upto], add_generation_prompt=True, tokenize=True, return_dict=False
            )
            if template.kind == "FROZEN_HISTORY" and sampled:
                assert ours[end:] == theirs[len(theirs) - (len(ours) - end) :]
            else:
                assert ours == theirs
            mask = np.asarray(sc.loss_mask(state))[: len(ours)]
            assert [t for t, m in zip(ours, mask, strict=True) if m] == [t for i in sorted(sampled) for t in sampled[i]]
            compared += 1
    assert compared >= 6


def call(name: str, arguments: Any, identity: str = "abcdef123") -> dict[str, Any]:
    return {"type": "function", "id": identity, "function": {"name": name, "arguments": arguments}}


def few_shot(*, said: str = "", result: str = "sunny", city: str = "Paris") -> list[dict[str, Any]]:
    return [
        {"role": "user", "content": "How is the weather?"},
        {"role": "assistant", "content": said, "tool_calls": [call("get_weather", {"city": city})]},
        {"role": "tool", "content": result, "name": "get_weather", "tool_call_id": "abcdef123"},
    ]


@pytest.mark.parametrize("name", [name for name in FAMILIES if name not in LEAVES_SPECS_OUT])
def test_specs_are_part_of_what_the_template_writes_first(name: str) -> None:
    codec = codec_of(name, tools=True)
    messages = few_shot() if codec.config.template.calls else few_shot()[:1]
    data = codec.encode([messages])
    ours = data.tokens[0][: data.length[0]].tolist()
    assert ours == codec.tokenizer.apply_chat_template(
        messages, tools=[WEATHER], add_generation_prompt=True, tokenize=True, return_dict=False
    )
    assert "The weather in a city." in codec.tokenizer.decode(ours)
    assert codec.config.template != codec_of(name).config.template


@pytest.mark.parametrize("name", FAMILIES)
def test_calls_are_read_as_they_were_written(name: str) -> None:
    """What the template writes for calls is read back from the sampled ids: names, arguments and what is said."""
    codec = codec_of(name, tools=True)
    identity = "functions.get_weather:0" if name.startswith("moonshotai") else "abcdef123"
    city = "Paris" if name in LEAVES_SPECS_OUT else "3"
    given = {
        "role": "assistant",
        "content": "",
        "tool_calls": [call("get_weather", {"city": city, "days": 2}, identity)],
    }
    if codec.config.template.opened:
        given["content"] = codec.config.template.opened + "hm</think>"
    states = jax.vmap(sc.reset, (None, 0))(sc.init(codec.config), codec.encode(["How is the weather?"]))
    states = jax.vmap(sc.step)(states, codec.encode_actions([given]))
    answer = codec.decode_history(states)[0][-1]
    assert [c["function"] for c in answer["tool_calls"]] == [
        {"name": "get_weather", "arguments": {"city": city, "days": 2}}
    ]
    assert answer["finish_reason"] == "stop"
    assert codec.decode_history(states, calls=False)[0][-1].keys() == {"role", "content", "finish_reason"}


@pytest.mark.parametrize("name", [name for name, (_, _, refers) in FAMILIES.items() if refers])
def test_results_come_back_with_what_they_refer_to(name: str) -> None:
    codec = codec_of(name)
    given = {"content": 'sunny, "call_id"', "name": "get_weather", "tool_call_id": "abcdef123"}
    block = codec.encode_messages("tool", [given])
    refers = {key: given[key] for key in FAMILIES[name][2]}
    assert codec.decode_messages(block) == [{"role": "tool", "content": given["content"], **refers}]
    state = sc.reset(sc.init(codec.config), row(codec.encode([few_shot(result='say "x"')])))
    assert codec.decode_history(state)[0][2]["content"] == 'say "x"'


def test_arguments_are_written_as_they_are_given() -> None:
    """Letters beyond ASCII stay letters, and arguments given as JSON are not written anew."""
    codec = codec_of("deepseek-ai-DeepSeek-V3.1")
    for arguments in ('{"city":"Z\u00fcrich", "x": 1e5}', {"city": "Z\u00fcrich"}):
        (ids,) = codec.encode_actions([{"tool_calls": [call("f", arguments)]}]).tokens
        assert "Z\u00fcrich" in codec.tokenizer.decode(ids)
    (ids,) = (
        codec_of("tencent-DeepSeek-V3.1-Terminus-W4AFP8")
        .encode_actions([{"tool_calls": [call("f", '{"city":"Z\u00fcrich", "x": 1e5}')]}])
        .tokens
    )
    assert '{"city":"Z\u00fcrich", "x": 1e5}' in codec.tokenizer.decode(ids)


def test_prose_about_calls_ends_as_answers_end() -> None:
    codec = codec_of("zai-org-GLM-4.5-Air")
    action = codec.encode_actions(["Just say <tool_call> when ready."])
    assert codec.tokenizer.decode([action.tokens[0][action.length[0] - 1]]) == "<|user|>"
    gemma = codec_of("google-gemma-4-31B-it")
    action = gemma.encode_actions(["<|tool_call>call:f{a:1}<tool_call|> is how."])
    assert gemma.tokenizer.decode([action.tokens[0][action.length[0] - 1]]) == "<turn|>"


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ({"role": "user", "content": "x", "name": "Alice"}, "name would be lost"),
        ({"role": "assistant", "content": "x", "tool_calls": [call("f", {1: "a", "1": "b"})]}, "no string"),
        ({"role": "assistant", "content": "x", "tool_calls": [call("f", {"a": "\ud800"})]}, "tool call 0"),
        ({"role": "assistant", "content": "x", "tool_calls": [call("f", {"a": float("nan")})]}, "tool call 0"),
    ],
)
def test_what_would_be_lost_or_cannot_be_written_is_refused(message: dict, words: str) -> None:
    codec = codec_of("moonshotai-Kimi-K2-Instruct")
    with pytest.raises(ValueError, match=f"row 0: message 0: .*{words}"):
        codec.encode([[message, {"role": "user", "content": "x"}]])


def test_an_answer_as_a_message_is_checked_as_histories_are() -> None:
    codec = codec_of("Qwen-Qwen2.5-7B-Instruct")
    for answer in ({"content": "x", "reasoning_content": "y"}, {"role": "user"}):
        with pytest.raises(ValueError, match="row 0: "):
            codec.encode_actions([answer])


def test_a_call_given_as_text_ends_as_calls_end() -> None:
    """GLM ends a call with the marker of the tool that answers, an answer with the user's."""
    codec = codec_of("zai-org-GLM-4.5-Air")
    text = "\n<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n</tool_call>"
    action = codec.encode_actions([text, "It is sunny."])
    last = [codec.tokenizer.decode([ids[n - 1]]) for ids, n in zip(action.tokens, action.length, strict=True)]
    assert last == ["<|observation|>", "<|user|>"]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("mistralai-Mistral-7B-Instruct-v0.3", '[TOOL_CALLS] [{"name": "f", "arguments": {}, "id": "abcdef123"}]'),
        ("Qwen-Qwen2.5-7B-Instruct", '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'),
    ],
)
def test_a_call_given_as_text_has_the_templates_control_tokens(name: str, text: str) -> None:
    """What a policy samples to call a tool may be special; as text of an answer it is that token too."""
    codec = codec_of(name)
    as_text = codec.encode_actions([text])
    as_message = codec.encode_actions([{"tool_calls": [{"id": "abcdef123", "name": "f", "arguments": {}}]}])
    assert as_text.tokens.tolist() == as_message.tokens.tolist()
    (ids,), (n,) = codec.encode_messages("user", [text]).tokens, codec.encode_messages("user", [text]).length
    markers = {t for t in as_text.tokens[0].tolist() if t in codec.writer.pieces.controls} - {
        codec.config.template.call_stop_id,
        codec.config.template.pad_id,
    }
    assert markers and not markers & set(ids[:n].tolist())


@pytest.mark.parametrize(
    ("name", "text", "content", "calls", "words"),
    [
        ("Qwen-Qwen2.5-7B-Instruct", "no call at all", "no call at all", [], None),
        ("Qwen-Qwen2.5-7B-Instruct", '{"name": "f"}', '{"name": "f"}', [], None),
        (
            "Qwen-Qwen2.5-7B-Instruct",
            'Both:\n<tool_call>{"name":"f","arguments":{}}</tool_call><tool_call>\n{"name": "g", "arguments": {"a": "</x>"}}</tool_call>',
            "Both:",
            [("f", {}), ("g", {"a": "</x>"})],
            None,
        ),
        ("Qwen-Qwen2.5-7B-Instruct", '<tool_call>\n{"name": "f", "argu', "", [], "no JSON"),
        ("Qwen-Qwen2.5-7B-Instruct", "<tool_call>\n[1, 2]\n</tool_call>", "", [], "no name"),
        ("Qwen-Qwen2.5-7B-Instruct", '<tool_call>{"name": "f", "arguments": 3}</tool_call>', "", [], "no object"),
        ("meta-llama-Llama-3.1-8B-Instruct", '{"name": "f", "parameters": {"x": 1}}', "", [("f", {"x": 1})], None),
        ("meta-llama-Llama-3.1-8B-Instruct", '{"temperature": 20}', '{"temperature": 20}', [], None),
        ("mistralai-Mistral-7B-Instruct-v0.3", '[TOOL_CALLS] [{"name": "f", "arguments": {}}]', "", [("f", {})], None),
        ("Qwen-Qwen3-Coder-30B-A3B-Instruct", "<tool_call>\n<function=f>\n<parameter=a>\n1", "", [], "not closed"),
        ("Qwen-Qwen3-Coder-30B-A3B-Instruct", "<tool_call>\n<function=f>\n</function>\n</tool_call>", "", [("f", {})], None),
        ("google-gemma-4-31B-it", '<|tool_call>call:f{a:[1,{b:<|"|>x, y<|"|>}]}<tool_call|>', "", [("f", {"a": [1, {"b": "x, y"}]})], None),
        ("Qwen-Qwen2.5-7B-Instruct", f"x {CALLED} and THAT.", "x\nand THAT.", [("f", {})], None),
        ("Qwen-Qwen2.5-7B-Instruct", f"{CALLED} MIDDLE {CALLED}", "MIDDLE", [("f", {}), ("f", {})], None),
        ("Qwen-Qwen2.5-7B-Instruct", f"<think>maybe {CALLED}</think>It is 4.", f"<think>maybe {CALLED}</think>It is 4.", [], None),
        ("Qwen-Qwen2.5-7B-Instruct", '<tool_call>{"name": "f", "arguments": {}}', "", [], "not closed"),
        ("Qwen-Qwen2.5-7B-Instruct", '<tool_call>{"name": "f", "parameters": {"a": 1}}</tool_call>', "", [], "no arguments"),
        ("Qwen-Qwen2.5-7B-Instruct", '<tool_call>{"name": "f", "arguments": {"a": NaN}}</tool_call>', "", [], "JSON compliant"),
        ("Qwen-Qwen2.5-7B-Instruct", "<tool_call>" + "[" * 20000, "", [], "too deeply"),
        ("meta-llama-Llama-3.1-8B-Instruct", '{"name": "Bob", "age": 30}', '{"name": "Bob", "age": 30}', [], None),
        ("meta-llama-Llama-3.1-8B-Instruct", "[" * 20000, "", [], "too deeply"),
        ("zai-org-GLM-4.5-Air", "Just say <tool_call> when ready.", "", [], "not closed"),
        ("zai-org-GLM-4.5-Air", "<tool_call>writ", "", [], "not closed"),
        ("Qwen-Qwen3-Coder-30B-A3B-Instruct", "<tool_call>\n<function=write>", "", [], "not closed"),
        (
            "Qwen-Qwen3-Coder-30B-A3B-Instruct",
            "<tool_call>\n<function=f>\n<parameter=a>\nprint('</parameter>')\n</parameter>\n</function>\n</tool_call>",
            "",
            [("f", {"a": "print('</parameter>')"})],
            None,
        ),
        ("google-gemma-4-31B-it", '<|tool_call>call:f{a:<|"|>x<|"|>y<|"|>,b:None}<tool_call|>', "", [("f", {"a": 'x<|"|>y', "b": None})], None),
        ("google-gemma-4-31B-it", "<|tool_call>call:f" + " " * 20000, "", [], "no name and arguments"),
        (
            "moonshotai-Kimi-K2-Instruct",
            '<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{"a": "<|tool_call_begin|>"}<|tool_call_end|>',
            "",
            [("f", {"a": "<|tool_call_begin|>"})],
            None,
        ),
        ("google-gemma-4-31B-it", "<|tool_call>call:f{a:[1,", "", [], "not as the template writes"),
    ],
)  # fmt: skip
def test_answers_of_policies_are_read_with_care(
    name: str, text: str, content: str, calls: list, words: str | None
) -> None:
    (read,) = codec_of(name).read_calls([text])
    assert read.content == (content if words is None else text)
    assert [(c.name, json.loads(c.arguments)) for c in read.calls] == calls
    assert (words in (read.error or "")) if words else read.error is None


def test_the_message_view_keeps_calls_and_tokens_are_the_truth() -> None:
    """Call, result, answer: nothing of the call is dropped from the history, and ids stay as sampled."""
    codec = codec_of("Qwen-Qwen2.5-7B-Instruct")
    said = 'let me look\n<tool_call>\n{"name": "f",  "arguments": {}}\n</tool_call>'  # two spaces: not the template's
    states = jax.vmap(sc.reset, (None, 0))(sc.init(codec.config), codec.encode(["go"]))
    action = codec.encode_actions([said])
    states = jax.vmap(sc.step)(states, action)
    states = jax.vmap(sc.append)(states, codec.encode_messages("tool", ["done"]))
    states = jax.vmap(sc.step)(states, codec.encode_actions(["It is done."]))
    history = codec.decode_history(states)[0]
    assert [m["role"] for m in history] == ["user", "assistant", "tool", "assistant"]
    assert history[1]["content"] == "let me look"
    assert history[1]["tool_calls"][0]["function"] == {"name": "f", "arguments": {}}
    assert history[2] == {"role": "tool", "content": "done"}
    turn = np.asarray(jax.vmap(sc.turn_ids)(states))[0] == 0
    mask = np.asarray(jax.vmap(sc.loss_mask)(states))[0]
    sampled = np.asarray(states.tokens)[0][: len(mask)][mask & turn]
    assert sampled.tolist() == action.tokens[0][: action.length[0]].tolist()


def test_few_shot_calls_are_rendered_in_one_piece_with_what_is_said_beside_them() -> None:
    codec = codec_of("Qwen-Qwen2.5-7B-Instruct")
    messages = [
        *few_shot(said="let me look"),
        {"role": "assistant", "content": "Sunny."},
        {"role": "user", "content": "Ta"},
    ]
    data = codec.encode([messages])
    ours = data.tokens[0][: data.length[0]].tolist()
    assert ours == codec.tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    state = sc.reset(sc.init(codec.config), row(data))
    assert not np.asarray(sc.loss_mask(state)).any()
    assert codec.decode_history(state)[0][1]["content"] == "let me look"


@pytest.mark.parametrize("name", FAMILIES)
def test_no_argument_and_no_result_becomes_a_control_token(name: str) -> None:
    """Every added token, whole and in pieces, in arguments and in results: no control token beyond the template's."""
    codec = codec_of(name)
    controls = {i: str(t.content) for i, t in codec.tokenizer.added_tokens_decoder.items()}
    plain = few_shot(result="x", city="x")
    expected = control_ids(codec, plain, controls)
    for control in controls.values():
        half = len(control) // 2
        for forged in (control, f"a {control}{control} b", control[:half], control[half:]):
            assert control_ids(codec, few_shot(result=forged), controls) == expected, forged
            assert control_ids(codec, few_shot(city=forged), controls) == expected, forged
            result = {"content": forged, "name": "get_weather", "tool_call_id": "abcdef123"}
            block = codec.encode_messages("tool", [result, {**result, "content": "x"}], previous=CALL)
            ids = [
                [t for t in r[:n].tolist() if t in controls] for r, n in zip(block.tokens, block.length, strict=True)
            ]
            assert ids[0] == ids[1], forged


def control_ids(codec: sc.Codec, messages: list[dict[str, Any]], controls: dict[int, str]) -> list[int]:
    data = codec.encode([messages])
    return [token for token in data.tokens[0][: data.length[0]].tolist() if token in controls]


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        ([few_shot()[0], {"role": "user", "content": "x", "tool_calls": [call("f", {})]}], "only an assistant's"),
        ([few_shot()[0], {**few_shot()[1], "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}], "no JSON"),
        ([few_shot()[0], {**few_shot()[1], "tool_calls": [call("f", [1])]}], "are a list"),
        ([few_shot()[0], {**few_shot()[1], "tool_calls": [call("<|im_end|>", {})]}], "letters, digits"),
        ([few_shot()[0], {**few_shot()[1], "tool_calls": [call("f", {"x": object()})]}], "cannot be written as JSON"),
        ([few_shot()[0], {**few_shot()[1], "tool_calls": "f()"}], "no list"),
        ([*few_shot()[:2], {**few_shot()[2], "tool_call_id": "other0000"}], "in the order of the calls"),
        ([*few_shot()[:2], {**few_shot()[2], "name": "other"}], "in the order of the calls"),
        ([*few_shot(), few_shot()[2]], "a tool result to no call"),
        ([{"role": "user", "content": "x", "images": ["a.png"]}], "images would be lost"),
        (
            [few_shot()[0], {"role": "assistant", "content": "x", "reasoning_content": "y"}],
            "reasoning_content would be lost",
        ),
    ],
)
def test_calls_and_results_that_cannot_be_right_name_their_row(messages: list, words: str) -> None:
    codec = codec_of("Qwen-Qwen2.5-7B-Instruct")
    with pytest.raises(ValueError, match=f"row 1: .*{words}"):
        codec.encode(["fine", messages])


def test_what_a_result_has_to_say_is_asked_for() -> None:
    codec = codec_of("mistralai-Mistral-7B-Instruct-v0.3")
    with pytest.raises(ValueError, match=r"row 0: this template writes the tool_call_id of a tool result"):
        codec.encode_messages("tool", ["sunny"])
    with pytest.raises(ValueError, match=r"row 0: this template writes the id of a tool call"):
        codec.encode_actions([{"tool_calls": [{"name": "f", "arguments": {}}]}])
    with pytest.raises(ValueError, match="leaves out or moves what is said"):
        codec.encode([few_shot(said="let me look")])


@pytest.mark.parametrize(
    ("tools", "error", "words"),
    [
        (
            [{"type": "function", "function": {"name": "f", "parameters": {1, 2}}}],
            ValueError,
            r"tools\[0\] \(f\).*JSON",
        ),
        ([{"type": "function"}], ValueError, r"tools\[0\] has no name"),
        ("get_weather", TypeError, "list of specs"),
        ([lambda city: city], ValueError, r"tools\[0\]: this function cannot be described"),
    ],
)
def test_specs_that_cannot_be_written_are_refused_at_construction(tools: Any, error: type, words: str) -> None:
    with pytest.raises(error, match=words):
        sc.compile_template(public.tokenizer("Qwen-Qwen2.5-7B-Instruct"), tools=tools)


def test_specs_that_the_template_leaves_out_are_refused() -> None:
    for tokenizer in map(public.tokenizer, LEAVES_SPECS_OUT):
        with pytest.raises(sc.TemplateError, match="does not write the tool specs"):
            sc.compile_template(tokenizer, tools=[WEATHER])


def test_functions_are_specs() -> None:
    def get_weather(city: str) -> str:
        """The weather in a city.

        Args:
            city: Where.
        """
        return city

    template = sc.compile_template(public.tokenizer("Qwen-Qwen2.5-7B-Instruct"), tools=[get_weather])
    assert json.loads(template.tools[0])["function"]["name"] == "get_weather"
    assert "The weather in a city." in template.gap(SYSTEM, USER).text


def test_without_tool_parity_tools_are_refused_with_the_reason() -> None:
    """Of a template that leaves calls out, or raises on a tool message, chat alone compiles."""
    tokenizer = public.tokenizer("mistralai-Mistral-7B-Instruct-v0.2")
    codec = sc.Codec(tokenizer, sc.make_config(tokenizer, **LIMITS))
    assert codec.config.template.kind == "EXACT_CHAT"
    assert "tool calls: refused" in codec.config.template.report
    with pytest.raises(ValueError, match="cannot write an assistant message with tool calls"):
        codec.encode([few_shot()])
    with pytest.raises(ValueError, match="cannot write a tool message"):
        codec.encode_messages("tool", ["sunny"])
    with pytest.raises(ValueError, match="cannot be read"):
        codec.read_calls(["x"])
