"""Ids to bytes on the device, against what tokenizers decode: the embedded one and real vocabularies."""

import functools
import json
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

import statelesschat as sc
from statelesschat.rewards import TokenBytes, decode_bytes
from tests import vocab
from tests.rewards.batches import bytes_of

MAKERS: dict[str, Callable[[], Any]] = {
    "bytes": lambda: sc.load_tokenizer(None),
    "qwen2": vocab.qwen2,
    "qwen2.5": vocab.qwen25,
    "qwen3": vocab.qwen3,
    "qwen3.5": vocab.qwen35,
    "deepseek": vocab.deepseek,
    "llama3": vocab.llama3,
    "mistral-v3": vocab.mistral_v3,
    "mistral-v3-legacy": vocab.mistral_v3_legacy,
    "mistral-v7": vocab.mistral_v7,
    "tekken": vocab.tekken,
}
OFTEN = {"bytes", "qwen2.5", "mistral-v3"}
NAMES = [pytest.param(name, marks=[pytest.mark.slow] * (name not in OFTEN)) for name in MAKERS]
ROWS, WIDTH = 64, 24
TEXT = "Naïve café — “quotes” 你好 😀 −3 ½ \t\r\n\n    x = {'a': [1, 2.5]}  <|im_end|> ####  18\\boxed{7}\u0301\x00"


@functools.cache
def tokenizer_of(name: str) -> Any:
    return MAKERS[name]()


@functools.cache
def vocabulary_of(name: str) -> TokenBytes:
    return sc.token_bytes(tokenizer_of(name))


@functools.partial(jax.jit, static_argnames="size")
def decoded(vocabulary: TokenBytes, tokens: Any, lengths: Any, *, size: int | None = None) -> Any:
    return jax.vmap(functools.partial(decode_bytes, size=size), (None, 0, 0))(vocabulary, tokens, lengths)


def rows_of(texts: Any) -> list[bytes | None]:
    texts = jax.tree.map(np.asarray, texts)
    return [bytes_of(jax.tree.map(lambda leaf, row=row: leaf[row], texts)) for row in range(len(texts.end))]


def host_text(tokenizer: Any, ids: list[int]) -> str:
    """What transformers decodes, behind a first id whose text is taken off again: no space of a beginning is lost."""
    lead = tokenizer.encode("x", add_special_tokens=False)[-1:]
    whole = tokenizer.decode(lead + ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
    return whole.removeprefix("x")


def falls_back(tokenizer: Any) -> list[int]:
    """The ids of single bytes of a vocabulary of characters: alone they decode to no text, in their own way."""
    if "ByteFallback" not in json.dumps(json.loads(tokenizer.backend_tokenizer.to_str())["decoder"]):
        return []
    return [tokenizer.convert_tokens_to_ids(f"<0x{byte:02X}>") for byte in range(256)]


@pytest.mark.parametrize("name", NAMES)
def test_random_ids_are_the_bytes_of_what_they_decode_to(name: str) -> None:
    """Control tokens, parts of characters and pieces of every kind, in any order."""
    tokenizer, source = tokenizer_of(name), np.random.default_rng(0)
    vocabulary = vocabulary_of(name)
    size = len(tokenizer)
    excluded = set(falls_back(tokenizer)) | ({tokenizer.unk_token_id} if falls_back(tokenizer) else set())
    usable = np.array([i for i in range(size) if i not in excluded], np.int32)
    controls = np.array(sorted(tokenizer.added_tokens_decoder), np.int32)
    tokens = source.choice(usable, (ROWS, WIDTH)).astype(np.int32)
    tokens = np.where(source.random((ROWS, WIDTH)) < 0.1, source.choice(controls, (ROWS, WIDTH)), tokens)
    tokens[0, :9] = usable[:9]
    lengths = source.integers(0, WIDTH + 1, ROWS).astype(np.int32)
    lengths[:2] = WIDTH, 0
    texts = decoded(vocabulary, tokens, lengths, size=2048)
    for ids, length, text in zip(tokens, lengths, rows_of(texts), strict=True):
        assert text is not None
        assert text.decode(errors="replace") == host_text(tokenizer, ids[:length].tolist())


@pytest.mark.parametrize("name", NAMES)
def test_texts_come_back_byte_by_byte(name: str) -> None:
    tokenizer = tokenizer_of(name)
    ids = [tokenizer.encode(TEXT[:end], add_special_tokens=False) for end in range(0, len(TEXT), 5)]
    if tokenizer.backend_tokenizer.normalizer is None:  # others change the text that they are given
        ids.append(tokenizer.encode("x" + TEXT, add_special_tokens=False))
    width = max(map(len, ids))
    tokens = np.array([row + [7] * (width - len(row)) for row in ids], np.int32)
    lengths = np.array([len(row) for row in ids], np.int32)
    texts = rows_of(decoded(vocabulary_of(name), tokens, lengths, size=2048))
    for row, text in zip(ids, texts, strict=True):
        assert text is not None and text.decode(errors="replace") == host_text(tokenizer, row)


@pytest.mark.parametrize("name", NAMES)
def test_every_id_has_its_own_bytes(name: str) -> None:
    """As transformers names them: a vocabulary of bytes by its symbols, one of characters by its pieces."""
    tokenizer, vocabulary = tokenizer_of(name), vocabulary_of(name)
    flat, offsets = np.asarray(vocabulary.flat).tobytes(), np.asarray(vocabulary.offsets)
    assert len(offsets) == len(tokenizer) + 1 and offsets[0] == 0 and (np.diff(offsets) >= 0).all()
    for i, token in tokenizer.added_tokens_decoder.items():
        assert flat[offsets[i] : offsets[i + 1]] == token.content.encode()
    singles = falls_back(tokenizer)
    for byte, i in enumerate(singles):
        assert flat[offsets[i] : offsets[i + 1]] == bytes([byte])


def test_ids_out_of_range_have_no_bytes() -> None:
    vocabulary = vocabulary_of("bytes")
    tokens = np.array([[72, -1, 105, 259, 2**31 - 1, -(2**31), 33]], np.int32)
    assert rows_of(decoded(vocabulary, tokens, np.array([7], np.int32))) == [b"Hi!"]


@pytest.mark.parametrize(("length", "text"), [(0, b""), (-3, b""), (2, b"Hi"), (3, b"Hi!"), (9, b"Hi!")])
def test_length_says_how_many_ids_count(length: int, text: bytes) -> None:
    tokens = np.array([[72, 105, 33]], np.int32)
    assert rows_of(decoded(vocabulary_of("bytes"), tokens, np.array([length], np.int32))) == [text]


@pytest.mark.parametrize("size", [0, 1, 2, 3, 12, 13, 14, 15, 40])
def test_a_text_that_takes_more_room_says_so_and_keeps_its_beginning(size: int) -> None:
    tokens = np.array([[72, 257, 33]], np.int32)
    text = jax.tree.map(
        lambda leaf: np.asarray(leaf)[0], decoded(vocabulary_of("bytes"), tokens, np.array([3]), size=size)
    )
    whole = b"H<|im_start|>!"
    assert text.end == len(whole) and bool(text.fits) == (size >= len(whole))
    assert text.bytes.tobytes()[: len(whole)] == whole[:size]


def test_no_ids_at_all() -> None:
    text = decode_bytes(vocabulary_of("bytes"), np.zeros(0, np.int32), np.int32(0))
    assert int(text.length) == 0 and bool(text.fits)


def test_ids_without_bytes_stand_between_others() -> None:
    """Empty pieces share their place with the next id."""
    vocabulary = TokenBytes(np.frombuffer(b"abcde", np.uint8), np.array([0, 0, 2, 2, 2, 5, 5], np.int32), 2)
    pieces = [b"", b"ab", b"", b"", b"cde", b""]
    rows = [[1, 0, 2, 4, 5, 1, 3], [0, 2, 3], [5, 5, 4, 4, 0], [1, 1, 0, 0, 1], [0], [4]]
    tokens = np.array([row + [1] * (7 - len(row)) for row in rows], np.int32)
    texts = decoded(vocabulary, tokens, np.array([len(row) for row in rows]))
    assert rows_of(texts) == [b"".join(pieces[i] for i in row) for row in rows]


def wrapped(backend: Tokenizer) -> Any:
    return PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="[UNK]")


def word_pieces() -> Any:
    vocab = {"[UNK]": 0} | {piece: i for i, piece in enumerate(["a", "##b", "c", "##s", ",", "what", "is"], 1)}
    backend = Tokenizer(models.WordPiece(vocab, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.decoder = decoders.WordPiece()
    return wrapped(backend)


def words() -> Any:
    """No decoder: tokens are put together with spaces."""
    backend = Tokenizer(models.WordLevel({"[UNK]": 0, "a": 1, "b": 2, "12": 3}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    return wrapped(backend)


def suffixed() -> Any:
    backend = Tokenizer(models.BPE({"[UNK]": 0, "a</w>": 1, "b": 2, "1</w>": 3}, [], unk_token="[UNK]"))
    backend.decoder = decoders.BPEDecoder(suffix="</w>")
    return wrapped(backend)


@pytest.mark.parametrize("make", [word_pieces, words, suffixed])
def test_tokenizers_that_put_more_than_bytes_together_are_refused(make: Callable[[], Any]) -> None:
    with pytest.raises(ValueError, match="cannot be read on the device; score on the host"):
        sc.token_bytes(make())


def test_a_vocabulary_that_is_an_argument_is_not_in_the_program() -> None:
    vocabulary = vocabulary_of("qwen2.5")
    tokens, lengths = np.zeros((2, 8), np.int32), np.zeros(2, np.int32)
    traced = jax.make_jaxpr(decoded)(vocabulary, tokens, lengths)
    assert sum(np.size(constant) for constant in traced.consts) < 1000
    lowered = decoded.lower(vocabulary, tokens, lengths)
    assert len(lowered.as_text()) < 100_000
    assert len(lowered.compile().as_text()) < 100_000
    baked = jax.make_jaxpr(lambda t, n: decoded(vocabulary, t, n))(tokens, lengths)
    assert sum(np.size(constant) for constant in baked.consts) > 10**6  # as it would be otherwise


def test_a_vocabulary_is_two_arrays_and_a_static_width() -> None:
    vocabulary = vocabulary_of("bytes")
    leaves, structure = jax.tree.flatten(vocabulary)
    assert [leaf.dtype for leaf in leaves] == [jnp.uint8, jnp.int32]
    assert jax.tree.unflatten(structure, leaves).size_of(10) == 10 * vocabulary.usual + 64
