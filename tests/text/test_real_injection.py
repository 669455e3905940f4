"""Text that looks like control tokens stays text on real vocabularies, some of which have a thousand of them."""

from collections.abc import Iterator

import pytest

import statelesschat as sc
from tests.text.drive import ASSISTANT, SYSTEM, TOOL, USER
from tests.text.real import PARAMS, allows, codec_of, normal

SEPARATORS = ("", " ", "\n", "x")
AT_ONCE = 16  # tokens in a content


@pytest.fixture(scope="module", params=PARAMS)
def codec(request: pytest.FixtureRequest) -> sc.Codec:
    return codec_of(request.param)


def controls(codec: sc.Codec, ids) -> list[int]:
    added = set(codec.tokenizer.added_tokens_decoder)
    return [int(i) for i in ids if int(i) in added]


def forgeries(codec: sc.Codec) -> Iterator[str]:
    """Every added token whole, glued to its like and to text, doubled, and with another inside."""
    tokens = [str(token.content) for token in codec.tokenizer.added_tokens_decoder.values()]
    forms = [tokens, [t[: len(t) // 2] + t + t[len(t) // 2 :] for t in tokens]]
    for number, form in enumerate(forms):
        for at in range(0, len(form), AT_ONCE):
            yield SEPARATORS[(number + at // AT_ONCE) % len(SEPARATORS)].join(form[at : at + AT_ONCE])


def test_no_message_holds_a_control_token_of_its_author(codec: sc.Codec) -> None:
    texts = list(forgeries(codec))
    for kind in (USER, SYSTEM, TOOL):
        if not allows(codec.config.template, (USER, ASSISTANT, kind)):
            continue
        plain = codec.encode_messages(kind, ["x"])
        expected = controls(codec, plain.tokens[0][: plain.length[0]])
        message = codec.encode_messages(kind, texts)
        for text, tokens, length in zip(texts, message.tokens, message.length, strict=True):
            assert controls(codec, tokens[:length]) == expected, text
        if codec.config.template.transforms[kind] in ("identity", "strip"):
            decoded = [m["content"] for m in codec.decode_messages(message)]
            assert decoded == [normal(codec.tokenizer, text) for text in texts]


def test_no_prompt_holds_a_control_token_of_its_author(codec: sc.Codec) -> None:
    """Prompts are rendered whole; a token cut in two by the border of two messages does not come together either."""
    texts = list(forgeries(codec))[::4]
    tokens = [str(t.content) for t in codec.tokenizer.added_tokens_decoder.values()][:: max(1, len(texts) // 2)]
    system = allows(codec.config.template, (SYSTEM, USER))

    def prompts(pairs: list[tuple[str, str]]) -> sc.ChatData:
        first = "system" if system else "user"
        names = (first, "user") if system else ("user",)
        return codec.encode([[{"role": r, "content": c} for r, c in zip(names, p, strict=False)] for p in pairs])

    plain = prompts([("s", "u")])
    expected = controls(codec, plain.tokens[0][: plain.length[0]])
    forged = prompts([(t, t) for t in texts] + [(t[: len(t) // 2], t[len(t) // 2 :]) for t in tokens])
    for ids, length in zip(forged.tokens, forged.length, strict=True):
        assert controls(codec, ids[:length]) == expected


def test_answers_hold_the_tags_that_a_policy_samples_and_no_others(codec: sc.Codec) -> None:
    """Added tokens that are not special are ids in an answer given as text, special ones are not."""
    added = codec.tokenizer.added_tokens_decoder
    action = codec.encode_actions([f"a{t.content}b" for t in list(added.values())[-60:]], stop=False, begin=False)
    for token, ids, length in zip(list(added)[-60:], action.tokens, action.length, strict=True):
        assert controls(codec, ids[:length]) == ([] if added[token].special else [token])
