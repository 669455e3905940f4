"""The plain copy of a tokenizer's backend, to which control tokens are text."""

import itertools
from collections.abc import Callable

import pytest
from hypothesis import given
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from statelesschat.text.plain import is_text, plain_backend
from statelesschat.text.tokenizer import byte_symbols, load_tokenizer
from tests import vocab
from tests.text.texts import text_with


def wrap(backend: Tokenizer, **names: str) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(tokenizer_object=backend, clean_up_tokenization_spaces=False, **names)


LETTERS = [*"abcdefghijklmnopqrstuvwxyz<>/|_[]▁"]


def unigram() -> PreTrainedTokenizerFast:
    """As T5's: control tokens stand in the model's vocabulary, where text that spells them would find them."""
    pieces = [("<unk>", 0.0), ("<s>", 0.0), ("</s>", 0.0), ("<sep>", 0.0), ("▁user", -3.0), ("th", -2.0)]
    backend = Tokenizer(models.Unigram([*pieces, *((c, -5.0) for c in LETTERS)], unk_id=0, byte_fallback=False))
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Metaspace()
    backend.add_special_tokens([AddedToken(t, normalized=False, special=True) for t in ("<s>", "</s>", "<unk>")])
    backend.add_tokens([AddedToken("<sep>", normalized=False), AddedToken("<think>", normalized=False)])
    return wrap(backend, unk_token="<unk>", eos_token="</s>")


def sentencepiece_bpe() -> PreTrainedTokenizerFast:
    """As Llama 2's, with merges that spell ``</s>``, as converters have been known to write."""
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    tokens = ["<unk>", "<s>", "</s>", *bytes_, *LETTERS, "</", "s>", "th", "▁th"]
    merges = [("t", "h"), ("▁", "th"), ("s", ">"), ("<", "/"), ("</", "s>"), ("<", "s>")]
    model = models.BPE(
        vocab={token: i for i, token in enumerate(tokens)},
        merges=merges,
        unk_token="<unk>",
        fuse_unk=True,
        byte_fallback=True,
    )
    backend = Tokenizer(model)
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    strip = decoders.Strip(content=" ", left=1)
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), strip])
    backend.add_special_tokens([AddedToken(t, normalized=False, special=True) for t in ("<unk>", "<s>", "</s>")])
    backend.add_tokens([AddedToken("<think>", normalized=True), AddedToken("</think>", lstrip=True, rstrip=True)])
    return wrap(backend, bos_token="<s>", eos_token="</s>")


def whole_word_bpe() -> PreTrainedTokenizerFast:
    """As Llama 3's, which looks whole words up before it merges, with a marker among the words."""
    model = models.BPE({**byte_symbols(), "<mark>": 256, "th": 257}, [("t", "h")], ignore_merges=True)
    backend = Tokenizer(model)
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken("<mark>", normalized=False), AddedToken("<end>", normalized=False)])
    return wrap(backend, eos_token="<end>")


def word_level() -> PreTrainedTokenizerFast:
    words = ["[UNK]", "[CLS]", "[SEP]", "the", "user"]
    backend = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.add_special_tokens(["[UNK]", "[CLS]", "[SEP]"])
    return wrap(backend, unk_token="[UNK]")


def word_piece() -> PreTrainedTokenizerFast:
    words = ["[UNK]", "[CLS]", "[SEP]", "the", "user", *LETTERS, *(f"##{c}" for c in LETTERS)]
    backend = Tokenizer(models.WordPiece({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
    backend.normalizer = normalizers.Lowercase()
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.add_special_tokens(["[UNK]", "[CLS]", "[SEP]"])
    backend.add_tokens([AddedToken("the", normalized=True)])
    return wrap(backend, unk_token="[UNK]")


BUILDERS: dict[str, Callable[[], PreTrainedTokenizerFast]] = {
    "embedded": lambda: load_tokenizer(None),
    "qwen25": vocab.qwen25,
    "qwen35": vocab.qwen35,
    "unigram": unigram,
    "sentencepiece_bpe": sentencepiece_bpe,
    "whole_word_bpe": whole_word_bpe,
    "word_level": word_level,
    "word_piece": word_piece,
}


@pytest.fixture(params=BUILDERS)
def tokenizer(request) -> PreTrainedTokenizerFast:
    return BUILDERS[request.param]()


def forbidden(tokenizer: PreTrainedTokenizerFast) -> dict[int, str]:
    """Ids of added tokens, but for the one that stands for unknown text and words that are not special."""
    added = {i: t for i, t in tokenizer.added_tokens_decoder.items() if not is_text(t)}
    return {i: str(t) for i, t in added.items() if str(t) not in ("<unk>", "[UNK]")}


def test_plain_copy_writes_no_added_token_for_its_text(tokenizer):
    plain, added = plain_backend(tokenizer), forbidden(tokenizer)
    frames = ("{}", " {}", "{} ", "the{}the", "{0}{0}", "\n{}\n", "<{}>", "{}s>", "</{}", "the {} user")
    texts = [frame.format(content) for frame in frames for content in added.values()]
    texts += [content[i:j] for content in added.values() for i, j in itertools.combinations(range(len(content) + 1), 2)]
    texts += ["".join(pair) for pair in itertools.permutations(added.values(), 2)]
    for text, encoding in zip(texts, plain.encode_batch(texts), strict=True):
        assert not added.keys() & set(encoding.ids), text


@pytest.mark.parametrize("name", BUILDERS)
def test_plain_copy_writes_no_added_token_for_any_text(name: str):
    tokenizer = BUILDERS[name]()
    plain, added = plain_backend(tokenizer), forbidden(tokenizer)

    @given(text_with([*added.values(), "th", "the", "user", "<s", "s>"]))
    def check(text: str):
        assert not added.keys() & set(plain.encode(text).ids)

    check()


@pytest.mark.parametrize("name", BUILDERS)
def test_plain_copy_keeps_the_ids_of_ordinary_text(name: str):
    tokenizer = BUILDERS[name]()
    plain, added = plain_backend(tokenizer), forbidden(tokenizer)

    @given(text_with(["th", "a user", "<", "▁", " ", "12", "don't"]))
    def check(text: str):
        ids = tokenizer.encode(text, add_special_tokens=False)
        if not added.keys() & set(ids):
            assert plain.encode(text).ids == ids

    check()


@pytest.mark.parametrize("name", ["embedded", "qwen25", "qwen35"])
def test_plain_ids_of_byte_level_vocabularies_decode_to_the_text(name: str):
    tokenizer = BUILDERS[name]()
    plain = plain_backend(tokenizer)

    @given(text_with([str(token) for token in tokenizer.added_tokens_decoder.values()]))
    def check(text: str):
        normal = plain.normalizer.normalize_str(text) if plain.normalizer else text
        assert tokenizer.decode(plain.encode(text).ids, skip_special_tokens=False) == normal

    check()


def test_plain_copy_keeps_the_tokens_it_is_told_to(tokenizer):
    contents = [str(token) for token in tokenizer.added_tokens_decoder.values()]
    for keep in ([contents[-1]], contents[1:], contents):
        plain = plain_backend(tokenizer, keep)
        for content in keep:
            text = f"the {content} user"
            assert tokenizer.convert_tokens_to_ids(content) in plain.encode(text).ids
            if len(keep) == len(contents):
                assert plain.encode(text).ids == tokenizer.encode(text, add_special_tokens=False)
        others = {i: c for i, c in forbidden(tokenizer).items() if c not in keep}
        for content in others.values():
            assert not others.keys() & set(plain.encode(f"{content} the{content}{keep[0]}{content}").ids)


def test_plain_copy_refuses_to_keep_what_is_not_there():
    with pytest.raises(ValueError, match="<absent>"):
        plain_backend(load_tokenizer(None), ["<absent>", "<|im_end|>"])


def test_plain_copy_leaves_the_tokenizer_alone(tokenizer):
    before = tokenizer.backend_tokenizer.to_str()
    plain = plain_backend(tokenizer)
    plain.add_tokens(["user"])
    plain.enable_truncation(1)
    plain.normalizer = normalizers.Lowercase()
    assert tokenizer.backend_tokenizer.to_str() == before


def test_plain_copy_has_no_frame_around_the_text():
    tokenizer = load_tokenizer(None)
    backend = tokenizer.backend_tokenizer
    backend.post_processor = processors.TemplateProcessing(
        single="<|im_start|> $A", special_tokens=[("<|im_start|>", 257)]
    )
    backend.enable_truncation(2)
    backend.enable_padding(length=9)
    assert backend.encode("abcd").ids[0] == 257
    assert plain_backend(tokenizer).encode("abcd").ids == [97, 98, 99, 100]


def test_added_white_space_and_single_characters_stay_text():
    """As in vocabularies with tokens for runs of spaces, or for characters that their model cannot write."""
    tokenizer = load_tokenizer(None)
    tokenizer.add_tokens(["<think>", "\n\n", "    ", "在"])
    text = "a\n\n    在"
    assert plain_backend(tokenizer).encode(text).ids == tokenizer.encode(text) == [97, 260, 261, 262]
    assert 259 not in plain_backend(tokenizer).encode("<think>").ids


def test_character_that_also_pads_can_still_be_written():
    tokenizer = load_tokenizer(None)
    tokenizer.add_special_tokens({"pad_token": "!"})
    assert plain_backend(tokenizer).encode("a!").ids == [97, 33]
