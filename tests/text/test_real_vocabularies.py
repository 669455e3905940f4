"""Prompts on device against the templates' own, on real vocabularies with real templates of their families."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import statelesschat as sc
from statelesschat.text.transforms import KNOWN
from tests.text.drive import ANY_CONTENT, ASSISTANT, Point, Talk, drive
from tests.text.real import PARAMS, codec_of, fitting, normal

MARKS = [f"QZ{i}ZQ" for i in range(9)]


@pytest.fixture(scope="module", params=PARAMS)
def codec(request: pytest.FixtureRequest) -> sc.Codec:
    return codec_of(request.param)


def rendered(codec: sc.Codec, talk: Talk, upto: int, marked: list[int]) -> str:
    """The template's own text before an answer, with some messages replaced by marks."""
    messages = talk.messages(upto)
    for i in marked:
        messages[i]["content"] = MARKS[i]
    return codec.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)


def encoded(codec: sc.Codec, text: str) -> list[int]:
    return codec.tokenizer.encode(text, add_special_tokens=False)


def whole(codec: sc.Codec, talk: Talk, point: Point) -> list[int]:
    """Ids of the template's text with each sampled answer's ids in its place, the stop id once."""
    sampled = sorted(point.sampled)
    text = rendered(codec, talk, point.upto, sampled)
    ids: list[int] = []
    begin, stopped = 0, False
    for i in [*sampled, None]:
        asked = text if i is None else rendered(codec, talk, i, [j for j in sampled if j < i])
        assert text.startswith(asked)
        ids += encoded(codec, asked[begin:])[stopped:]
        if i is not None:
            begin = text.index(MARKS[i]) + len(MARKS[i])
            ids += point.sampled[i]
            stopped = point.sampled[i][-1:] == [codec.config.template.stop_id]
    return ids


def behind(codec: sc.Codec, talk: Talk, point: Point, last: int) -> list[int]:
    """Ids of what the template writes behind an answer, from its stop id on."""
    return encoded(codec, rendered(codec, talk, point.upto, [last]).split(MARKS[last])[1])


def check_prompts(codec: sc.Codec, talk: Talk) -> None:
    """Of a template that rewrites its past, what stands behind the last answer has to be its own, if one was sampled.

    An answer at the end of the first prompt counts: it was written as a last message has it.
    """
    frozen = codec.config.template.kind == "FROZEN_HISTORY"
    for point in drive(codec, talk):
        if frozen and (point.sampled or talk.kinds[talk.prompt - 1] == ASSISTANT):
            last = max(i for i in range(point.upto) if talk.kinds[i] == ASSISTANT)
            tail = behind(codec, talk, point, last)
            assert point.ids[-len(tail) :] == tail
            ids = point.sampled.get(last, [])
            before = point.ids[: len(point.ids) - len(tail)]
            assert before[len(before) - len(ids) + (ids[-1:] == tail[:1]) :] == ids[: len(ids) - (ids[-1:] == tail[:1])]
            continue
        assert point.ids == whole(codec, talk, point)
        if not point.sampled:
            assert point.ids == codec.tokenizer.apply_chat_template(
                talk.messages(point.upto), add_generation_prompt=True, tokenize=True, return_dict=False
            )
        if not frozen:
            text = rendered(codec, talk, point.upto, [])
            assert codec.decode_text(point.state)[0] == normal(codec.tokenizer, text)


def check_histories(codec: sc.Codec, talk: Talk) -> None:
    """Contents are decoded as they went in, up to the normaliser and what the template does to them."""
    transforms = codec.config.template.transforms
    frozen = codec.config.template.kind == "FROZEN_HISTORY"
    for point in drive(codec, talk):
        history = codec.decode_history(point.state)[0]
        assert [m["role"] for m in history] == [m["role"] for m in talk.messages(point.upto)]
        for kind, content, message in zip(talk.kinds, talk.contents, history, strict=False):
            if transforms[kind] in KNOWN and not (frozen and kind == ASSISTANT):
                expected = KNOWN[transforms[kind]](content)
                assert message["content"] == normal(codec.tokenizer, expected)


@settings(max_examples=6)
@given(data=st.data())
def test_prompts_equal_the_templates_own(codec: sc.Codec, data: st.DataObject) -> None:
    check_prompts(codec, data.draw(fitting(codec.config.template)))


@settings(max_examples=4)
@given(data=st.data())
def test_histories_come_back(codec: sc.Codec, data: st.DataObject) -> None:
    check_histories(codec, data.draw(fitting(codec.config.template)))


@pytest.mark.slow
@settings(max_examples=150)
@given(data=st.data())
def test_more_prompts_and_histories(codec: sc.Codec, data: st.DataObject) -> None:
    talk = data.draw(fitting(codec.config.template))
    check_prompts(codec, talk)
    check_histories(codec, talk)


@settings(max_examples=20)
@given(texts=st.lists(ANY_CONTENT, min_size=1, max_size=5))
def test_pieces_decode_to_their_text(codec: sc.Codec, texts: list[str]) -> None:
    """No space is lost or added, wherever a piece stands, and an answer's own tags are no exception."""
    pieces = codec.writer.pieces
    for answers in (False, True):
        ids = pieces.encode(texts, answers)
        assert pieces.decode(ids) == [normal(codec.tokenizer, text) for text in texts]
