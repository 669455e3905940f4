"""Pieces between control tokens, where a tokenizer writes a space before texts or looks at what stands beside."""

from typing import Any

import pytest
from hypothesis import given
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

import statelesschat as sc
from statelesschat.text.build import piece_encoding
from statelesschat.text.pieces import PieceCodec
from statelesschat.text.tokenizer import byte_symbols
from tests.text.drive import PLAIN_CONTENT, drive, talks
from tests.text.texts import ODD_TEXTS

LIMITS: dict[str, Any] = {"capacity": 1024, "max_messages": 16, "max_message_len": 256, "max_turns": 8}
MARKERS = ("<s>", "</s>", "[INST]", "[/INST]")
SPACED = (
    "{{- bos_token }}{%- for m in messages %}"
    "{%- if m.role == 'assistant' %}{{- ' ' + m.content + eos_token }}"
    "{%- else %}{{- '[INST] ' + m.role + ': ' + m.content + '[/INST]' }}{%- endif %}{%- endfor %}"
)
GUARDED = (
    "{%- for m in messages %}{{- '<|s|>\n' + m.role + '\n' + m.content + '\n<|e|>\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|s|>\nassistant\n' }}{%- endif %}"
)


def sentencepiece(prefix: str, **options: Any) -> PreTrainedTokenizerFast:
    """Characters and bytes with a few merges; ``prefix`` is how a space is written before texts."""
    letters = [*"abcdefghijklmnopqrstuvwxyz:<>/[]IN▁"]
    tokens = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), *letters, "▁a", "▁▁", "er", "▁us", "us"]
    merges = [("▁", "a"), ("▁", "▁"), ("e", "r"), ("u", "s"), ("▁", "us")]
    vocabulary = {token: i for i, token in enumerate(tokens)}
    backend = Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    strip = decoders.Strip(content=" ", left=1)
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), strip])
    if prefix == "prepend":
        backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    else:
        backend.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme=prefix, split=False)
    backend.add_special_tokens([AddedToken(m, normalized=False, special=True, **options) for m in MARKERS])
    backend.add_tokens([AddedToken("<think>", normalized=False), AddedToken("</think>", normalized=False)])
    return PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>", eos_token="</s>", chat_template=SPACED)


def byte_level(**options: Any) -> PreTrainedTokenizerFast:
    backend = Tokenizer(models.BPE(vocab=byte_symbols(), merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(m, normalized=False, special=True, **options) for m in ("<|s|>", "<|e|>")])
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|e|>", chat_template=GUARDED)


def written(text: str) -> str:
    """A text as SentencePiece's ids decode."""
    return text.replace("▁", " ")


@pytest.mark.parametrize(
    "prefix, encoding", [("first", "unprefixed"), ("prepend", "plain"), ("always", "plain"), ("never", "plain")]
)
def test_encoding_is_found_by_trying(prefix: str, encoding: str) -> None:
    assert piece_encoding(sentencepiece(prefix), ()) == encoding


@pytest.mark.parametrize("prefix", ["first", "prepend", "never"])
def test_pieces_decode_to_their_text(prefix: str) -> None:
    """An answer's tags cut it into pieces of their own; what begins a conversation is no exception."""
    tokenizer = sentencepiece(prefix)
    pieces = PieceCodec(tokenizer, piece_encoding(tokenizer, ()))
    texts = [*ODD_TEXTS, " a", "  a", "a ", "<think>a</think> b", "<think> a</think>b", "</s>[INST]", "\n a"]
    for answers in (False, True):
        assert pieces.decode(pieces.encode(texts, answers)) == [written(text) for text in texts]
    if prefix == "prepend":  # "first" writes no space where there is one: the two are the same ids
        assert pieces.decode(pieces.encode(texts, first=True), first=True) == [written(text) for text in texts]
    assert pieces.decode([[]]) == [""]


def test_ids_that_nothing_was_written_before_keep_their_spaces() -> None:
    """A policy may sample a token with a space where none is due, or none where one is."""
    tokenizer = sentencepiece("prepend")
    pieces = PieceCodec(tokenizer, "plain")
    ids = tokenizer.convert_tokens_to_ids
    assert pieces.decode([[ids("a")], [ids("▁a")], [ids("▁▁"), ids("a")]]) == ["a", "a", " a"]


@pytest.mark.parametrize("prefix", ["first", "prepend"])
def test_prompts_equal_the_whole_text(prefix: str) -> None:
    tokenizer = sentencepiece(prefix)
    codec = sc.Codec(tokenizer, sc.make_config(tokenizer, **LIMITS))

    @given(talk=talks(PLAIN_CONTENT))
    def check(talk) -> None:
        for point in drive(codec, talk):
            messages = talk.messages(point.upto)
            whole = tokenizer.apply_chat_template(messages, tokenize=True, return_dict=False)
            text = tokenizer.apply_chat_template(messages, tokenize=False)
            assert point.ids == whole
            assert codec.decode_text(point.state)[0] == written(text)
            history = codec.decode_history(point.state)[0]
            assert [m["content"] for m in history] == [written(m["content"]) for m in messages]

    check()


def test_tokens_that_are_found_between_words_only() -> None:
    """With something between them and any content they are always found; content cannot make one."""
    tokenizer = byte_level(single_word=True)
    codec = sc.Codec(tokenizer, sc.make_config(tokenizer, **LIMITS))
    assert codec.config.template.kind == "EXACT"
    stop = tokenizer.convert_tokens_to_ids("<|e|>")
    data = codec.encode(["a <|e|> b"])
    assert data.tokens[0][: data.length[0]].tolist().count(stop) == 1

    @given(talk=talks(PLAIN_CONTENT))
    def check(talk) -> None:
        for point in drive(codec, talk):
            assert point.ids == tokenizer.apply_chat_template(
                talk.messages(point.upto), add_generation_prompt=True, tokenize=True, return_dict=False
            )

    check()


def test_tokens_between_words_right_beside_contents_are_refused() -> None:
    """Whether they are found depends on the content's own end, so the template cannot be cut at them."""
    tokenizer = byte_level(single_word=True)
    source = GUARDED.replace("m.content + '\n<|e|>", "m.content + '<|e|>")
    with pytest.raises(sc.TemplateError):
        sc.make_config(tokenizer, chat_template=source, **LIMITS)


def test_tokens_that_swallow_white_space_do_not_hide_the_prefix() -> None:
    assert piece_encoding(sentencepiece("first", rstrip=True), ()) == "unprefixed"
    assert piece_encoding(sentencepiece("first", single_word=True), ()) == "unprefixed"
