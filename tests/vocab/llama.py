"""The vocabulary of Llama 3, from the `llama-models` package, of which no code is run: it needs more than is here."""

import base64

from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import TikTokenConverter

from tests.vocab.cache import folder, wrap

# As published with Llama 3.1. Its reserved tokens are numbered on behind those that were given names.
_NAMED = (
    "<|begin_of_text|>", "<|end_of_text|>", "<|reserved_special_token_0|>", "<|reserved_special_token_1|>",
    "<|finetune_right_pad_id|>", "<|reserved_special_token_2|>", "<|start_header_id|>", "<|end_header_id|>",
    "<|eom_id|>", "<|eot_id|>", "<|python_tag|>",
)  # fmt: skip
SPECIAL = (*_NAMED, *(f"<|reserved_special_token_{i}|>" for i in range(3, 3 + 256 - len(_NAMED))))


class _Converter(TikTokenConverter):
    """Transformers' own conversion, without the library it reads the file with."""

    @staticmethod
    def load_tiktoken_bpe(tiktoken_url: str) -> dict[bytes, int]:
        return ranks()


def ranks() -> dict[bytes, int]:
    """Rank, which is also id, of each of its 128,000 entries."""
    lines = (folder("llama_models") / "llama3" / "tokenizer.model").read_bytes().splitlines()
    return {base64.b64decode(token): int(rank) for token, rank in map(bytes.split, filter(None, lines))}


def llama3(chat_template: str | None = None) -> PreTrainedTokenizerFast:
    """128,000 entries and 256 added tokens, all special."""
    folder("llama_models")
    tokens = {
        "bos_token": "<|begin_of_text|>",
        "eos_token": "<|eot_id|>",
        "pad_token": "<|finetune_right_pad_id|>",
    }
    return wrap("llama3", "llama-models", _build, chat_template, **tokens)


def _build() -> Tokenizer:
    return _Converter(vocab_file="", extra_special_tokens=list(SPECIAL)).converted()
