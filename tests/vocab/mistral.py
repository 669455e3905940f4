"""The vocabularies of Mistral: SentencePiece (v3) and Tekken, from the `mistral-common` package."""

from pathlib import Path

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from transformers.tokenization_utils_base import generate_merges

from tests.vocab.cache import folder, wrap

V3, V7 = "mistral_instruct_tokenizer_240323.model.v3", "mistral_instruct_tokenizer_241114.model.v7"
TEKKEN = "tekken_240911.json"
_TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}


def data(name: str) -> Path:
    """A data file of the package."""
    return folder("mistral_common") / "data" / name


def mistral_v3(chat_template: str | None = None) -> PreTrainedTokenizerFast:
    """32,768 SentencePiece entries; a space is put before the first piece of a text only, as its own library does."""
    _needs()
    return wrap("mistral-v3", "mistral-common", _build_first, chat_template, **_TOKENS)


def mistral_v7(chat_template: str | None = None) -> PreTrainedTokenizerFast:
    """The same entries with other control tokens among them, `[SYSTEM_PROMPT]` for one."""
    _needs()
    return wrap("mistral-v7", "mistral-common", _build_v7, chat_template, **_TOKENS)


def mistral_v3_legacy(chat_template: str | None = None) -> PreTrainedTokenizerFast:
    """The same as its first conversions have it: a space is put before every piece."""
    _needs()
    return wrap("mistral-v3-legacy", "mistral-common", _build_legacy, chat_template, **_TOKENS)


def tekken(chat_template: str | None = None) -> PreTrainedTokenizerFast:
    """130,072 byte-level entries and 1,000 added tokens, all special."""
    data(TEKKEN)
    return wrap("tekken", "mistral-common", _build_tekken, chat_template, pad_token="<pad>", **_TOKENS)


def _needs() -> None:
    folder("mistral_common")
    pytest.importorskip("sentencepiece")


def _build_first(file: str = V3) -> Tokenizer:
    backend = _sentencepiece(file)
    backend.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="first", split=False)
    return backend


def _build_v7() -> Tokenizer:
    return _build_first(V7)


def _build_legacy() -> Tokenizer:
    backend = _sentencepiece(V3)
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    return backend


def _sentencepiece(file: str) -> Tokenizer:
    """As `LlamaConverter` of transformers makes it; its own reading of the file is broken in version 5.24."""
    from sentencepiece import SentencePieceProcessor

    model = SentencePieceProcessor(model_file=str(data(file)))
    pieces = [model.id_to_piece(i) for i in range(model.get_piece_size())]
    vocab = {piece: i for i, piece in enumerate(pieces)}
    # Merges are ordered by score, not by id: those of white space have ids before all others and are the last to apply.
    merges = generate_merges(vocab, {piece: model.get_score(i) for i, piece in enumerate(pieces)})
    bpe = models.BPE(vocab, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    backend = Tokenizer(bpe)
    strip = decoders.Strip(content=" ", left=1)
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), strip])
    control = [piece for i, piece in enumerate(pieces) if model.is_control(i) or model.is_unknown(i)]
    backend.add_special_tokens([AddedToken(piece, normalized=False, special=True) for piece in control])
    return backend


def _build_tekken() -> Tokenizer:
    from transformers.integrations.mistral.tokenizer import MistralConverter

    return MistralConverter(str(data(TEKKEN))).converted()
