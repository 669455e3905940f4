"""Tokenizers: loading one, the embedded byte tokenizer, and the plain copy that encodes contents."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

_CHATML = """
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0]['role'] == 'system' %}
        {{- messages[0]['content'] + '\\n\\n' }}
    {%- endif %}
    {{- 'You can call tools. These are described by JSON schemas, one on each line:\\n' }}
    {%- for tool in tools %}
        {{- tool | tojson + '\\n' }}
    {%- endfor %}
    {{- 'A call is written <tool_call>{"name": ..., "arguments": {...}}</tool_call><|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message['role'] not in ('system', 'user', 'assistant', 'tool') %}
        {{- raise_exception('unknown role ' ~ message['role'] ~ ': use system, user, assistant or tool') }}
    {%- endif %}
    {%- if not (tools and loop.first and message['role'] == 'system') %}
        {{- '<|im_start|>' + message['role'] + '\\n' + message['content'] }}
        {%- for call in message['tool_calls'] or [] %}
            {{- '<tool_call>' + call['function'] | tojson + '</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
""".strip()

_HUB_TIMEOUT = 10.0  # seconds; the hub's own client retries each of a tokenizer's files for most of a minute

_WORK_OFFLINE = (
    "To work offline, download it on a connected machine with `hf download NAME --local-dir FOLDER` "
    "and pass that folder, or pass None for the embedded byte tokenizer."
)


def load_tokenizer(source: "str | os.PathLike[str] | PreTrainedTokenizerFast | None") -> "PreTrainedTokenizerFast":
    """A fast tokenizer of transformers, from wherever it is.

    Args:
        source: None for the embedded byte tokenizer with a ChatML template (ids 0..255 are the bytes of the text in
            UTF-8, 256 ``<|endoftext|>`` pads, 257 ``<|im_start|>``, 258 ``<|im_end|>`` ends an answer); a folder
            written by ``save_pretrained``, read without network; a name on the Hugging Face hub, taken from the local
            cache if it is there; or a tokenizer, which is returned as it is.

    Raises:
        FileNotFoundError: a path that does not exist.
        ValueError: a path that holds no tokenizer.
        OSError: a hub name that can be had neither from the cache nor from the hub. Raised within seconds.
        TypeError: a tokenizer without a Rust backend, or something else that is no tokenizer.

    Example:
        >>> tokenizer = load_tokenizer(None)
        >>> tokenizer.encode("<|im_start|>Hi", add_special_tokens=False)
        [257, 72, 105]
    """
    if source is None:
        return _byte_tokenizer()
    if not isinstance(source, str | os.PathLike):
        return _require_fast(source)
    path = Path(source).expanduser()
    if path.exists():
        return _require_fast(_from_folder(path))
    if isinstance(source, os.PathLike) or not _is_hub_name(source):
        raise FileNotFoundError(f"there is no tokenizer folder {str(path)!r}. {_WORK_OFFLINE}")
    return _require_fast(_from_hub(source))


def _byte_tokenizer() -> "PreTrainedTokenizerFast":
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer(models.BPE(vocab=byte_symbols(), merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    markers = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
    backend.add_special_tokens([AddedToken(marker, special=True, normalized=False) for marker in markers])
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token="<|endoftext|>",
        eos_token="<|im_end|>",
        chat_template=_CHATML,
        clean_up_tokenization_spaces=False,
    )


def byte_symbols() -> dict[str, int]:
    """The printable characters by which byte-level vocabularies write bytes (as GPT-2's encoder does), with the bytes.

    Example:
        >>> byte_symbols()["A"], byte_symbols()["Ġ"]
        (65, 32)
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(b) if b in printable else chr(0x100 + others.index(b)): b for b in range(256)}


def _from_folder(path: Path) -> Any:
    from transformers import AutoTokenizer

    if path.is_file():
        raise ValueError(f"{str(path)!r} is a file. Pass the folder that `save_pretrained` wrote it to")
    try:
        return AutoTokenizer.from_pretrained(str(path), local_files_only=True, trust_remote_code=False)
    except Exception as error:
        reason = _first_line(error)
    raise ValueError(
        f"the folder {str(path)!r} holds no tokenizer that can be loaded ({reason}). It needs the files that "
        "`tokenizer.save_pretrained(folder)` writes, tokenizer.json among them"
    )


def _from_hub(name: str) -> Any:
    from huggingface_hub import HfApi
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(name, local_files_only=True, trust_remote_code=False)
    except Exception as error:
        cached = _first_line(error)
    try:
        HfApi().model_info(name, timeout=_HUB_TIMEOUT)  # One request says whether the hub answers; no retries.
        return AutoTokenizer.from_pretrained(name, trust_remote_code=False)
    except Exception as error:
        online = _first_line(error)
    raise OSError(
        f"no folder is named {name!r}; the local Hugging Face cache has no tokenizer of that name ({cached}); and the "
        f"hub did not give it ({online}). {_WORK_OFFLINE.replace('NAME', name)}"
    )


def _is_hub_name(name: str) -> bool:
    from huggingface_hub.utils import HFValidationError, validate_repo_id

    try:
        validate_repo_id(name)
    except HFValidationError:
        return False
    return True


def _require_fast(tokenizer: Any) -> "PreTrainedTokenizerFast":
    import tokenizers
    from transformers import PreTrainedTokenizerBase

    kind = f"{type(tokenizer).__module__}.{type(tokenizer).__qualname__}"
    if isinstance(tokenizer, tokenizers.Tokenizer):
        raise TypeError(f"{kind} is a bare backend. Wrap it: PreTrainedTokenizerFast(tokenizer_object=…)")
    if not isinstance(tokenizer, PreTrainedTokenizerBase):
        hint = "Pass its .tokenizer" if hasattr(tokenizer, "tokenizer") else "Pass None, a folder, a hub name or one"
        raise TypeError(f"{kind} is no tokenizer of transformers. {hint}")
    if not tokenizer.is_fast:
        raise TypeError(
            f"{kind} is a slow tokenizer, written in Python. A fast one, with a tokenizer.json, is needed: "
            "its Rust backend encodes batches and tells control tokens from text"
        )
    return tokenizer  # type: ignore[return-value]


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}".rstrip(": ")
