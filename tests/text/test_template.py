"""Classes, witnesses and refusals of the template compiler."""

import copy
import dataclasses
import datetime
import pickle
from typing import Any

import numpy as np
import pytest
from tokenizers import normalizers

import statelesschat as sc
from statelesschat.text.render import Renderer, RenderError
from statelesschat.text.writer import Writer
from tests import vocab
from tests.text import templates as t
from tests.text.drive import Talk, drive, row

USER, ASSISTANT, TOOL, SYSTEM = sc.Role.USER, sc.Role.ASSISTANT, sc.Role.TOOL, sc.Role.SYSTEM
GENERATE, START = sc.Kind.GENERATE, sc.Kind.START
LIMITS: dict[str, Any] = {
    "capacity": 1024,
    "max_messages": 16,
    "max_message_len": 256,
    "max_prompt_len": 512,
    "max_turns": 8,
}


@pytest.fixture(scope="module")
def tokenizer():
    return sc.load_tokenizer(None)


@pytest.mark.parametrize(
    ("source", "kind"),
    [
        (None, "EXACT"),
        (t.TRIMS, "EXACT"),
        (t.SHOUTS, "GAPS_EXACT"),
        (t.NO_TOOLS, "EXACT_CHAT"),
        (t.NO_SYSTEM, "EXACT"),
        (t.ALTERNATES, "EXACT_CHAT"),
        (t.DEFAULT_SYSTEM, "EXACT"),
        (t.SPACED, "EXACT"),
        (t.FOOTER_LAST, "EXACT"),
        (t.DATED, "EXACT"),
        (t.EMPTY_SKIPPED, "EXACT"),
    ],
)
def test_class_of_a_template_that_compiles(source: str | None, kind: str) -> None:
    tokenizer = _with_bos()
    assert sc.compile_template(tokenizer, chat_template=source).kind == kind


@pytest.mark.parametrize(
    ("source", "kind", "words"),
    [
        (t.DROPS_THOUGHT, "FROZEN_HISTORY", "rewrites an answer"),
        (t.OPENS_AND_DROPS, "FROZEN_HISTORY", "rewrites an answer"),
        (t.COUNTS_TURNS, "HOST_ONLY", "otherwise"),
        (t.LAST_FIRST, "MOVES_CONTENT", "moved"),
        (t.PARTS_ONLY, "MOVES_CONTENT", "parts"),
        (t.UNMARKED, "HOST_ONLY", "added token"),
        ("{{ raise_exception('never') }}", "HOST_ONLY", "never"),
        ("{% for m in messages %}{{ m.nothing.at_all }}{% endfor %}", "HOST_ONLY", "raises on a single user message"),
        ("{% for m in messages %}", "HOST_ONLY", "TemplateSyntaxError"),
    ],
)
def test_refused_template_says_why(tokenizer, source: str, kind: str, words: str) -> None:
    with pytest.raises(sc.TemplateError, match=kind) as caught:
        sc.compile_template(tokenizer, chat_template=source)
    assert caught.value.kind == kind
    assert words in str(caught.value)
    assert "what to do" in str(caught.value)


def test_history_that_counts_backwards_is_frozen_with_a_witness(tokenizer) -> None:
    """A template that renumbers earlier messages as the conversation grows rewrites history."""
    with pytest.raises(sc.TemplateError) as caught:
        sc.compile_template(tokenizer, chat_template=t.COUNTS_LEFT)
    assert caught.value.kind in ("FROZEN_HISTORY", "HOST_ONLY")
    assert caught.value.witness is not None


def test_thinking_template_is_refused_before_the_first_step_and_shows_what_changed() -> None:
    """Reasoning that vanishes from earlier answers is found at construction, not in the middle of training."""
    with pytest.raises(sc.TemplateError) as caught:
        sc.make_config(vocab.qwen25(vocab.QWEN3), **LIMITS)
    error = caught.value
    assert error.kind == "FROZEN_HISTORY"
    assert [m["role"] for m in error.witness.messages] == ["user", "assistant", "user"]
    assert "<think>" in error.witness.before + error.witness.after
    assert 'history="frozen"' in str(error)


def test_frozen_history_gives_the_templates_next_turn_and_keeps_what_was_sampled() -> None:
    tokenizer = vocab.qwen25(vocab.QWEN3)
    codec = sc.Codec(tokenizer, sc.make_config(tokenizer, history="frozen", **LIMITS))
    assert codec.config.template.kind == "FROZEN_HISTORY"
    contents = ("2+2?", "<think>\neasy\n</think>\n\n4", "3+3?", "<think>\nhm\n</think>\n\n6", "bye")
    talk = Talk((USER, ASSISTANT) * 2 + (USER,), contents, 1, (False,) * 5, (1,) * 5)
    for point in drive(codec, talk):
        render = tokenizer.apply_chat_template(talk.messages(point.upto), add_generation_prompt=True, tokenize=False)
        if not point.sampled:
            assert tokenizer.decode(point.ids) == render
            continue
        last = contents[max(point.sampled)]
        answer = tokenizer.decode(point.sampled[max(point.sampled)])
        assert answer == last + "<|im_end|>"
        behind = tokenizer.decode(point.ids).rpartition(answer)[2]
        assert render.endswith("<|im_end|>" + behind)
        assert "easy" in tokenizer.decode(point.ids) and (point.upto < 5 or "easy" not in render)


def test_masks_come_from_who_wrote_the_ids_though_the_template_hides_reasoning() -> None:
    """With a think block shown for the last answer only, differences of lengths would mask the wrong ids."""
    tokenizer = vocab.qwen25(vocab.QWEN3)
    codec = sc.Codec(tokenizer, sc.make_config(tokenizer, history="frozen", **LIMITS))
    contents = ("2+2?", "<think>\neasy\n</think>\n\n4", "3+3?", "<think>\nhm\n</think>\n\n6", "bye")
    *_, last = drive(codec, Talk((USER, ASSISTANT) * 2 + (USER,), contents, 1, (False,) * 5, (1,) * 5))
    mask, turns = np.asarray(sc.loss_mask(last.state)), np.asarray(sc.turn_ids(last.state))
    ids = np.asarray(last.state.tokens)[: len(mask)]
    for turn, index in enumerate((1, 3)):
        assert ids[mask & (turns == turn)].tolist() == last.sampled[index]


def test_what_a_generation_prompt_opens_is_part_of_the_answers_content(tokenizer) -> None:
    """A template that opens a thought and leaves past contents alone is exact: contents begin with the opening."""
    codec = sc.Codec(tokenizer, sc.make_config(tokenizer, chat_template=t.OPENS_THOUGHT, **LIMITS))
    assert codec.config.template.kind == "EXACT"
    assert codec.config.template.opened == "<think>\n"
    talk = Talk((USER, ASSISTANT, USER), ("2+2?", "easy\n</think>\n\n4", "bye"), 1, (False,) * 3, (1,) * 3)
    *_, last = drive(codec, talk)
    history = codec.decode_history(last.state)[0]
    assert history[1]["content"] == "<think>\neasy\n</think>\n\n4"
    messages = [{"role": m["role"], "content": m["content"]} for m in history]
    whole = tokenizer.apply_chat_template(
        messages, chat_template=t.OPENS_THOUGHT, add_generation_prompt=True, return_dict=False
    )
    assert last.ids == whole
    sampled = np.asarray(last.state.tokens)[: len(last.ids)][np.asarray(sc.loss_mask(last.state))[: len(last.ids)]]
    assert tokenizer.decode(sampled) == "easy\n</think>\n\n4<|im_end|>"


def test_few_shot_history_under_a_frozen_template_is_the_templates_own() -> None:
    """Prompts are rendered whole, so reasoning that the template drops from the past is dropped there."""
    tokenizer = vocab.qwen25(vocab.QWEN3)
    codec = sc.Codec(tokenizer, sc.make_config(tokenizer, history="frozen", **LIMITS))
    history = [
        {"role": "user", "content": "2+2?"},
        {"role": "assistant", "content": "<think>\neasy\n</think>\n\n4"},
        {"role": "user", "content": "3+3?"},
    ]
    data = codec.encode([history])
    whole = tokenizer.apply_chat_template(history, add_generation_prompt=True, tokenize=True, return_dict=False)
    assert data.tokens[0][: data.length[0]].tolist() == whole


def test_template_switches_are_passed_and_part_of_the_identity(tokenizer) -> None:
    on = sc.compile_template(tokenizer, chat_template=t.SWITCHED, template_kwargs={"thinking": True})
    assert on.kind == "EXACT"
    off = sc.compile_template(tokenizer, chat_template=t.SWITCHED)
    assert (on.opened, off.opened) == ("", "<think>\n\n</think>\n\n")
    assert on != off
    assert off.gap(USER, GENERATE).text.endswith("</think>\n\n")


def test_switch_that_json_cannot_hold_is_refused(tokenizer) -> None:
    with pytest.raises(TypeError, match="template_kwargs"):
        sc.compile_template(tokenizer, template_kwargs={"now": datetime.datetime.now})


def test_dates_stand_still_and_are_reported(tokenizer) -> None:
    template = sc.compile_template(tokenizer, chat_template=t.DATED)
    assert f"frozen at {template.clock[:10]}" in template.report
    opening = template.gap(START, USER).text
    assert datetime.date.fromisoformat(template.clock[:10]).strftime("%d %b %Y") in opening
    moved = Writer(tokenizer, dataclasses.replace(template, clock="2001-02-03T12:00:00"))
    assert "03 Feb 2001" in moved.render([USER], ["x"], True)
    assert datetime.datetime.now().year > 2001


def test_default_system_prompt_comes_from_the_template_and_is_reported() -> None:
    """With no system message in data or config the template's own stands first; one in the data replaces it."""
    tokenizer = vocab.qwen25(vocab.QWEN25)
    template = sc.compile_template(tokenizer)
    assert "You answer briefly" in template.gap(START, USER).text
    assert "You answer briefly" in template.report
    assert "You answer briefly" not in template.gap(START, SYSTEM).text + template.gap(SYSTEM, USER).text


def test_role_names_of_the_template(tokenizer) -> None:
    source = t.TRIMS.replace("start|>assistant", "start|>model")
    template = sc.compile_template(
        tokenizer, chat_template=source, roles={"tool": "ipython", sc.Role.ASSISTANT: "model"}
    )
    assert template.roles == ("system", "user", "model", "ipython")
    assert "<|im_start|>ipython" in template.gap(ASSISTANT, TOOL).text
    with pytest.raises(ValueError, match="roles"):
        sc.compile_template(tokenizer, roles=("system", "user"))


def test_order_the_template_refuses_is_an_error_that_names_the_pair(tokenizer) -> None:
    """Two user messages in a row, where roles must alternate: an error on the host, with the row."""
    config = sc.make_config(tokenizer, chat_template=t.ALTERNATES, **LIMITS)
    codec = sc.Codec(tokenizer, config)
    with pytest.raises(ValueError, match=r"row 1: .*a user message after a user message"):
        codec.encode(["fine", [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]])
    assert "must alternate" in config.template.report


def test_system_message_without_a_system_role_is_a_clear_error(tokenizer) -> None:
    config = sc.make_config(tokenizer, chat_template=t.NO_SYSTEM, **LIMITS)
    assert "System role not supported" in config.template.report
    history = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
    with pytest.raises(ValueError, match=r"row 0: .*system message after the start"):
        sc.Codec(tokenizer, config).encode([history])
    with pytest.raises(ValueError, match="system_prompt"):
        sc.make_config(tokenizer, chat_template=t.NO_SYSTEM, system_prompt="s", **LIMITS)


def test_generation_prompt_that_lacks_its_header_after_a_tool_is_seen(tokenizer) -> None:
    """The header after a tool result is compared with the one after a user message: tools are refused, chat is not."""
    template = sc.compile_template(tokenizer, chat_template=t.HEADERLESS_TOOL)
    assert template.kind == "EXACT_CHAT"
    assert not template.allows(ASSISTANT, TOOL)
    assert "header" in template.report


def test_empty_content_that_changes_the_text_around_it_is_refused(tokenizer) -> None:
    config = sc.make_config(tokenizer, chat_template=t.EMPTY_SKIPPED, **LIMITS)
    codec = sc.Codec(tokenizer, config)
    with pytest.raises(ValueError, match=r"row 0: .*blank"):
        codec.encode([""])


def test_closing_text_before_the_stop_token_belongs_to_the_answer() -> None:
    """A space between an answer and its stop token, and one before it, are sampled as part of a text answer."""
    tokenizer = _with_bos()
    codec = sc.Codec(tokenizer, sc.make_config(tokenizer, chat_template=t.SPACED, **LIMITS))
    action = codec.encode_actions(["yes"])
    assert tokenizer.decode(action.tokens[0][: action.length[0]]) == " yes <|im_end|>"
    for cut in (False, True):
        talk = Talk((USER, ASSISTANT, USER), ("q", "yes", "more"), 1, (False, cut, False), (1, 1, 1))
        *_, last = drive(codec, talk)
        whole = tokenizer.apply_chat_template(
            talk.messages(3), chat_template=t.SPACED, add_generation_prompt=True, tokenize=False
        )
        assert tokenizer.decode(last.ids) == whole
        assert codec.decode_history(last.state)[0][1]["content"] == "yes"


def test_bos_is_written_once() -> None:
    tokenizer = _with_bos()
    codec = sc.Codec(tokenizer, sc.make_config(tokenizer, chat_template=t.SPACED, **LIMITS))
    talk = Talk((USER, ASSISTANT, USER), ("q", "yes", "more"), 1, (False,) * 3, (1,) * 3)
    for point in drive(codec, talk):
        assert point.ids.count(tokenizer.bos_token_id) == 1


def test_tokenizer_without_a_template_is_refused(tokenizer) -> None:
    bare = copy.copy(tokenizer)
    bare.chat_template = None
    with pytest.raises(sc.TemplateError, match="raw_template"):
        sc.compile_template(bare)


def test_raw_template_writes_contents_and_nothing_else(tokenizer) -> None:
    config = sc.make_config(tokenizer, chat_template=sc.raw_template(tokenizer), **LIMITS)
    codec = sc.Codec(tokenizer, config)
    talk = Talk((USER, ASSISTANT, USER), ("Once upon", " a time", " there"), 1, (False, True, False), (1,) * 3)
    *_, last = drive(codec, talk)
    assert tokenizer.decode(last.ids) == "Once upon a time there"
    assert [m["content"] for m in codec.decode_history(last.state)[0]] == ["Once upon", " a time", " there"]


def test_compiling_twice_gives_equal_templates_and_pickling_keeps_them(tokenizer) -> None:
    one, two = sc.compile_template(tokenizer), sc.compile_template(tokenizer)
    assert one == two and hash(one) == hash(two)
    assert pickle.loads(pickle.dumps(one)) == one


def test_unknown_history_mode_is_refused(tokenizer) -> None:
    with pytest.raises(ValueError, match="history"):
        sc.compile_template(tokenizer, history="none")


def test_render_errors_are_the_templates_own_words(tokenizer) -> None:
    render = Renderer(tokenizer, "{{ raise_exception('no') }}", ("s", "u", "a", "t"), {}, "1970-01-01T00:00:00")
    with pytest.raises(RenderError, match="no"):
        render([USER], ["x"], True)


def _with_bos():
    tokenizer = sc.load_tokenizer(None)
    tokenizer.bos_token = "<|endoftext|>"
    return tokenizer


def test_text_between_messages_without_a_control_token_is_cut_where_the_tokenizer_cuts() -> None:
    """Tool results merged into one block by plain text: appended one by one, and the ids are still the tokenizer's."""
    source = vocab.QWEN25.replace("tool_response>", "tool_result>")
    tokenizer = vocab.qwen25(source)
    codec = sc.Codec(tokenizer, sc.make_config(tokenizer, **LIMITS))
    gap = codec.config.template.gap(TOOL, TOOL)
    assert not gap.core and gap.appendable
    for one, two in [("x", "  the"), ("\n\nx", "\n"), ("", ""), ("4 ", "'s"), ("}", "\r\nx"), (" ", "\t")]:
        talk = Talk((USER, ASSISTANT, TOOL, TOOL), ("q", "a", one, two), 1, (False,) * 4, (1,) * 4)
        *_, last = drive(codec, talk)
        assert last.ids == tokenizer.apply_chat_template(
            talk.messages(4), add_generation_prompt=True, tokenize=True, return_dict=False
        )


def test_messages_that_merge_are_encoded_together_or_refused() -> None:
    """Where nothing keeps two contents' ids apart the two go into a prompt, and are refused one by one."""
    tokenizer = vocab.qwen25(t.JOINS_USERS)
    config = sc.make_config(tokenizer, **LIMITS)
    codec = sc.Codec(tokenizer, config)
    assert "(in prompts only)" in config.template.report
    history = [{"role": "user", "content": "a\n"}, {"role": "user", "content": "\nb"}]
    data = codec.encode([history])
    whole = tokenizer.apply_chat_template(history, add_generation_prompt=True, tokenize=True, return_dict=False)
    assert data.tokens[0][: data.length[0]].tolist() == whole
    with pytest.raises(ValueError, match=r"row 0: between a user message and a user message .*merge"):
        codec.encode_messages("user", ["a"], next="user")


def test_answer_that_the_host_appends_is_closed_once(tokenizer) -> None:
    """An assistant message that nobody sampled, under a template with text before the stop token."""
    codec = sc.Codec(tokenizer, sc.make_config(tokenizer, chat_template=t.CLOSES, **LIMITS))
    state = sc.init(codec.config)
    chain = [
        ("user", "q", "start", "assistant"),
        ("assistant", "a", "user", "user"),
        ("user", "z", "assistant", "generate"),
    ]
    for role, content, previous, following in chain:
        message = codec.encode_messages(role, [content], previous=previous, next=following)
        state = sc.append(state, row(message))
    messages = [{"role": role, "content": content} for role, content, _, _ in chain]
    assert codec.decode_text(state)[0] == tokenizer.apply_chat_template(
        messages, chat_template=t.CLOSES, add_generation_prompt=True, tokenize=False
    )
    assert codec.decode_history(state)[0] == messages


@pytest.mark.parametrize(
    "source",
    [
        t.EMPTY_SKIPPED.replace("m.content %}", "m.content|trim %}", 1),
        t.TRIMS.replace("| trim", "[:100]"),
        t.TRIMS.replace("| trim", "| replace('`', '')"),
        t.TRIMS.replace("in messages", "in messages[-10:]"),
    ],
)
def test_template_that_treats_rare_contents_otherwise_is_seen_through(tokenizer, source: str) -> None:
    """Blank, long and odd contents and long conversations: refused, rendered by the host, or an error with the row."""
    contents = [" ", "x" * 150, "a`b"]
    try:
        codec = sc.Codec(tokenizer, sc.make_config(tokenizer, chat_template=source, **LIMITS))
    except sc.TemplateError:
        return
    for content in contents:
        history = [{"role": "user", "content": content}]
        try:
            data = codec.encode([history])
        except ValueError as error:
            assert "row 0" in str(error)
            continue
        assert tokenizer.decode(data.tokens[0][: data.length[0]]) == tokenizer.apply_chat_template(
            history, chat_template=source, add_generation_prompt=True, tokenize=False
        )


def test_words_added_to_the_vocabulary_are_text() -> None:
    """A domain's words are added tokens without being control tokens, so contents use them."""
    tokenizer = sc.load_tokenizer(None)
    tokenizer.add_tokens(["protein"])
    codec = sc.Codec(tokenizer, sc.make_config(tokenizer, **LIMITS))
    data = codec.encode(["a protein"])
    history = [{"role": "user", "content": "a protein"}]
    whole = tokenizer.apply_chat_template(history, add_generation_prompt=True, tokenize=True, return_dict=False)
    assert data.tokens[0][: data.length[0]].tolist() == whole


def test_codec_knows_its_tokenizer_by_what_it_encodes(tokenizer) -> None:
    config = sc.make_config(tokenizer, **LIMITS)
    other = copy.deepcopy(tokenizer)
    other.backend_tokenizer.normalizer = normalizers.Lowercase()
    with pytest.raises(ValueError, match="same tokenizer"):
        sc.Codec(other, config)
