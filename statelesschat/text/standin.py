"""A tokenizer to look at a chat template with, where the template's own tokenizer is not at hand."""

import contextlib
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from statelesschat.text.patience import TooLong, at_most
from statelesschat.text.tokenizer import byte_symbols

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

_MARKERS = re.compile(
    r"""
      <\|[^<>|\n'"{}]{1,60}\|>         # <|im_start|>, <|hy_eos:opensource|>
    | <\|"\|>
    | <\|[\w:.\-/]{1,40}> | <[\w:.\-/]{1,40}\|>   # <|turn>, <turn|>
    | </?[|]?｜[^｜<>\n]{1,60}｜\w*>      # <｜User｜>, <｜DSML｜invoke>
    | </?[^\W\d][\w:.▁]{0,40}>     # <s>, <start_of_turn>, <seed:bos>, </think>, <用户>
    | \[\|[^\]|\n]{1,40}\|\]           # [|user|]
    | \[/?[A-Z][A-Z_]{1,40}\] | \[gMASK\]         # [INST]
    | \[e~\[ | \]~[a-z!]{1,3}\[? \]? | \]<\][\w\-]{1,20}\[>\[
    """,
    re.VERBOSE,
)
_THOUGHTS = ("<think>", "</think>")  # one of them may stand alone: the policy writes the other
_PATIENCE = 10.0  # seconds for a few renders
_ATTRIBUTES = ("pad_token", "unk_token", "sep_token", "cls_token", "mask_token")


def stand_in(source: str) -> "PreTrainedTokenizerFast":
    """A byte-level tokenizer whose added tokens are the markers that a chat template writes.

    Markers are recognised by their looks (``<|…|>``, ``[INST]``, ``<start_of_turn>``, …) in the template's source and
    in what it renders. Tags that come in pairs, as ``<think>`` and ``</think>`` do, are added tokens that are not
    special; the others are special. ``bos_token`` is ``<s>`` (256) and ``eos_token`` is ``</s>`` (257).
    The ids are of no model: what such a tokenizer shows is how a template behaves.

    Args:
        source: the Jinja text.

    Example:
        >>> tokenizer = stand_in("{% for m in messages %}[INST]{{ m.content }}[/INST]{% endfor %}")
        >>> tokenizer.encode("[INST]Hi", add_special_tokens=False)
        [258, 72, 105]
    """
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer(models.BPE(vocab=byte_symbols(), merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    named = {"bos_token": "<s>", "eos_token": "</s>"}
    named |= {name: f"<|{name.removesuffix('_token')}|>" for name in _ATTRIBUTES if name in source}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, chat_template=source, clean_up_tokenization_spaces=False, **named
    )
    texts = [source]
    with contextlib.suppress(TooLong), at_most(_PATIENCE):
        texts += _renders(tokenizer)
    found = dict.fromkeys(marker for text in texts for marker in _MARKERS.findall(text))
    paired = {marker for marker in found if _partner(marker) in found or marker in _THOUGHTS} - {*named.values()}
    tokens: Any = [AddedToken(marker, special=marker not in paired, normalized=False) for marker in found]
    tokenizer.add_tokens(tokens)
    return tokenizer


def looks_like_markers(text: str) -> list[str]:
    """What in a text looks like a control token, each once."""
    return list(dict.fromkeys(_MARKERS.findall(text)))


def _partner(marker: str) -> str:
    return "<" + marker[2:] if marker.startswith("</") else "</" + marker[1:] if marker.startswith("<") else ""


def _renders(tokenizer: Any) -> Iterator[str]:
    """What the template writes of a few conversations, as far as it does."""
    user, answer = {"role": "user", "content": "1"}, {"role": "assistant", "content": "2"}
    call = {"type": "function", "id": "123456789", "function": {"name": "f", "arguments": {"a": "3"}}}
    tool = {"role": "tool", "content": "4", "name": "f", "tool_call_id": "123456789"}
    for messages in (
        [user, answer, user],
        [{"role": "system", "content": "0"}, user, answer, user],
        [user, {"role": "assistant", "content": "", "tool_calls": [call]}, tool],
    ):
        for generate in (False, True):
            try:
                yield tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=generate)
            except Exception:  # a template is a program of somebody else's: what it refuses is seen elsewhere
                continue
